//! Tests notifications to a supervisor (`sd_notify(3)`). The test reads them from a socket, as systemd does.

use crate::support::{PATIENCE, Server, eventually};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

use crore_net::clock;

use crate::support::port::{ask, stream};

/// The supervisor: the socket on which it receives notifications.
struct Supervisor {
    socket: UnixDatagram,
    /// The value of `NOTIFY_SOCKET`.
    path: PathBuf,
}

impl Supervisor {
    fn new(name: &str) -> Supervisor {
        let name = format!("crore-test-notify-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Supervisor { socket, path }
    }

    /// A supervisor with an abstract socket, which has no file. systemd may use one for a container.
    fn abstract_one() -> Supervisor {
        let name = format!("crore-test-notify-abstract-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Supervisor {
            socket,
            path: PathBuf::from(format!("@{name}")),
        }
    }

    /// Starts a server with this supervisor and an admin port.
    fn start(&self, settings: &str, environment: &[(&str, &str)]) -> Server {
        let socket = self.path.to_str().expect("text");
        let environment = [&[("NOTIFY_SOCKET", socket)], environment].concat();
        Server::with_environment(settings, &environment)
    }

    /// The next message, as pairs of name and value.
    fn message(&self) -> Vec<(String, String)> {
        let mut bytes = [0; 4096];
        let count = loop {
            match self.socket.recv(&mut bytes) {
                // A read is interrupted if the process was stopped and continues.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                count => break count.expect("a message"),
            }
        };
        let text = std::str::from_utf8(&bytes[..count]).expect("text");
        let name_and_value = |line: &str| {
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            (name.to_string(), value.to_string())
        };
        text.lines().map(name_and_value).collect()
    }

    /// The values of the next message, which must have these names.
    fn expect(&self, names: &[&str]) -> Vec<String> {
        let (received_names, values): (Vec<_>, Vec<_>) = self.message().into_iter().unzip();
        assert_eq!(received_names, names, "{values:?}");
        values
    }

    /// Expects the message that the server serves, and where.
    fn expect_ready(&self) {
        let values = self.expect(&["READY", "STATUS"]);
        assert_eq!(values[0], "1");
        assert!(values[1].starts_with("serving on 127.0.0.1:"), "{values:?}");
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn supervisor_is_notified_of_start_reload_and_stop() {
    let supervisor = Supervisor::new("life");
    let server = supervisor.start("", &[]);
    supervisor.expect_ready();
    for (text, status) in [("shards = 2\n", 200), ("shards = 'many'\n", 422)] {
        std::fs::write(server.settings_file(), text).expect("settings");
        let before_us = clock::monotonic_ns() / 1000;
        let answer = ask(server.admin(), "POST /api/v1/reload", Some("{}"));
        assert_eq!(answer.status, status);
        // systemd 253 and later compare MONOTONIC_USEC with the moment of the signal.
        let values = supervisor.expect(&["RELOADING", "MONOTONIC_USEC"]);
        assert_eq!(values[0], "1");
        let told_us: u64 = values[1].parse().expect("microseconds");
        let after_us = clock::monotonic_ns() / 1000;
        assert!(
            (before_us..=after_us).contains(&told_us),
            "{before_us} {told_us} {after_us}"
        );
        // The server is ready also after a reload that changed nothing.
        supervisor.expect_ready();
    }
    server.signal("HUP");
    supervisor.expect(&["RELOADING", "MONOTONIC_USEC"]);
    supervisor.expect_ready();
    server.signal("TERM");
    assert_eq!(supervisor.expect(&["STOPPING"]), ["1"]);
    server.await_end();
}

#[test]
fn supervisor_with_an_abstract_socket_is_notified() {
    let supervisor = Supervisor::abstract_one();
    let server = supervisor.start("", &[]);
    supervisor.expect_ready();
    server.signal("TERM");
    supervisor.expect(&["STOPPING"]);
    server.await_end();
}

#[test]
fn supervisor_gets_the_progress_of_a_drain_and_is_asked_for_time() {
    let supervisor = Supervisor::new("drain");
    let directory = format!("{}.state", supervisor.path.display());
    let settings =
        format!("[drain]\nrate_per_s = 2\n[state]\ndirectory = '{directory}'\ndeadline_s = 70\n");
    let server = supervisor.start(&settings, &[]);
    supervisor.expect_ready();
    let _readers: Vec<_> = (0..6).map(|_| stream(server.address(), "/sub/a")).collect();
    server.signal("TERM");
    supervisor.expect(&["STOPPING"]);
    // The admin port says the same.
    let readiness = ask(server.admin(), "GET /readyz", None);
    assert_eq!(
        (readiness.status, readiness.body.as_str()),
        (503, "the server stops\n")
    );
    assert_eq!(ask(server.admin(), "GET /healthz", None).status, 200);
    let (mut last, mut reports) = (u64::MAX, 0);
    let budget_us = loop {
        let values = supervisor.expect(&["STATUS", "EXTEND_TIMEOUT_USEC"]);
        let more_us: u64 = values[1].parse().expect("microseconds");
        if values[0] == "writing logs and sessions to disk" {
            break more_us;
        }
        let remaining = values[0].strip_prefix("moving clients off: ");
        let (remaining, rest) = remaining
            .and_then(|it| it.split_once(' '))
            .expect("a count");
        let remaining: u64 = remaining.parse().expect("a number");
        assert!(rest.ends_with(" are still here"), "{rest}");
        match reports {
            0 => assert_eq!(remaining, 6, "it is told as soon as it begins"),
            _ => assert!(
                remaining <= last && remaining > 0,
                "{remaining} after {last}"
            ),
        }
        assert!(more_us > 2_000_000, "more than between two messages");
        (last, reports) = (remaining, reports + 1);
    };
    assert!(reports > 1, "nothing was told of the drain");
    assert!(
        budget_us > 70_000_000,
        "{budget_us}: the writing may take 70 s"
    );
    let log = server.await_end();
    assert!(log.contains("clients are still here"), "{log}");
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn watchdog_is_notified_in_time_while_all_shards_run() {
    let supervisor = Supervisor::new("watchdog");
    let server = supervisor.start("", &[("WATCHDOG_USEC", "400000")]);
    supervisor.expect_ready();
    for _ in 0..5 {
        assert_eq!(supervisor.expect(&["WATCHDOG"]), ["1"]);
    }
    server.signal("TERM");
    while supervisor.message()[0].0 != "STOPPING" {}
    server.await_end();
}

#[test]
fn watchdog_of_another_process_is_ignored() {
    let supervisor = Supervisor::new("other");
    let environment = [("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")];
    let server = supervisor.start("", &environment);
    supervisor.expect_ready();
    eventually("an answer", || {
        let readiness = ask(server.admin(), "GET /readyz", None);
        (readiness.status == 200).then_some(())
    });
    server.signal("TERM");
    supervisor.expect(&["STOPPING"]);
    server.await_end();
}

#[test]
fn server_continues_without_its_supervisor() {
    for socket in ["/nowhere/notify", "", "@", "vsock-dgram:2:1234"] {
        let environment = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "1000")];
        let server = Server::with_environment("", &environment);
        let readiness = ask(server.admin(), "GET /readyz", None);
        assert_eq!(readiness.status, 200, "{socket}: {}", readiness.body);
        server.signal("TERM");
        server.await_end();
    }
}
