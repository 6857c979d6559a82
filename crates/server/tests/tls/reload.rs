//! Certificates that are replaced while connections go on.

use crate::support::Server;
use crate::tool::{Certificates, curl, try_curl};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn reload(server: &Server) {
    let pid = server.pid().to_string();
    let status = Command::new("kill").args(["-HUP", &pid]).status();
    assert!(status.expect("kill is there").success());
}

/// Waits until the log has this once more than `before` times.
fn await_log(server: &Server, what: &str, before: usize) {
    let began = Instant::now();
    while server.log().matches(what).count() <= before {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{}",
            server.log()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_new_certificate_is_shown_after_a_reload_and_streams_go_on() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let server = Server::with(&old.settings(""));
    let url = format!("https://{}/sub/a", server.address());
    let stream = Command::new("curl")
        .args([
            "-sSN",
            "--cacert",
            &old.path("ca.pem"),
            "-H",
            "Accept: text/event-stream",
            &url,
        ])
        .stdout(Stdio::piped())
        .spawn();
    let mut stream = stream.expect("curl");
    let mut lines = BufReader::new(stream.stdout.take().expect("a pipe")).lines();
    let mut await_line = |wanted: &str| {
        assert!(
            lines
                .by_ref()
                .map_while(Result::ok)
                .any(|line| line == wanted),
            "{wanted}"
        );
    };
    curl(&server, &old, "/pub/a", &["-d", "early"]);
    for name in ["server.pem", "server.key"] {
        std::fs::copy(new.path(name), old.path(name)).expect("a copy");
    }
    reload(&server);
    await_log(&server, "settings read again", 0);
    curl(&server, &new, "/pub/a", &["-d", "late"]);
    await_line("data: late");
    assert!(
        !try_curl(&server, &old, "/pub/a", &["-d", "x"])
            .status
            .success()
    );
    // Half a file changes nothing, and the reason is told.
    old.write("server.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    reload(&server);
    await_log(&server, "settings not changed: tls.certificate", 0);
    curl(&server, &new, "/pub/a", &["-d", "last"]);
    await_line("data: last");
    stream.kill().expect("it runs");
    stream.wait().expect("it ends");
}

#[test]
fn tls_is_neither_switched_off_nor_made_a_duty_while_the_server_runs() {
    let all = Certificates::new();
    let server = Server::with(&all.settings(""));
    let before = std::fs::read_to_string(server.settings_file()).expect("the settings");
    let write = |text: &str| std::fs::write(server.settings_file(), text).expect("settings");
    write("shards = 2\n");
    reload(&server);
    await_log(&server, "restart kept=tls.certificate, tls.key", 0);
    curl(&server, &all, "/pub/a", &["-d", "still"]);
    write(&format!("{before}required = true\nhandshakes_max = 9\n"));
    reload(&server);
    await_log(&server, "restart kept=tls.handshakes_max, tls.required", 0);
    let plain = format!("http://{}/pub/a", server.address());
    let status = Command::new("curl")
        .args(["-fsS", "-d", "x", &plain])
        .status();
    assert!(status.expect("curl").success());
    // What is not in order changes nothing, and is told with the remedy.
    write(&before.replace("server.key", "ca.pem"));
    reload(&server);
    await_log(&server, "settings not changed", 0);
    assert!(server.log().contains("tls.key"), "{}", server.log());
    curl(&server, &all, "/pub/a", &["-d", "still"]);
}
