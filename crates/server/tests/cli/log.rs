//! Tests the log of a server on stderr: its first lines, its format, and a stderr that nobody reads.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::crore;
use crate::support::state::State;
use crate::support::{PATIENCE, Server};

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One end of a socket pair that accepts no more bytes, and the other end, which nobody reads.
fn full() -> (OwnedFd, UnixStream) {
    let (mut full, reader) = UnixStream::pair().expect("a pair");
    full.set_nonblocking(true).expect("it can be");
    let refused = loop {
        if let Err(error) = full.write(&[b'\n'; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    full.set_nonblocking(false).expect("it can be");
    (full.into(), reader)
}

#[test]
fn server_serves_and_stops_with_a_blocked_stderr() {
    let (stderr, _reader) = full();
    // The test cannot read the port from the log, so the server gets a fixed port at an address that no other test uses.
    let pid = std::process::id();
    let address = format!("127.{}.{}.77:8800", 1 + pid / 250 % 250, pid % 250);
    let arguments = ["serve", "--listen", &address, "--no-admin", "--log", "info"];
    let child = crore(&arguments).stderr(Stdio::from(stderr)).spawn();
    let mut server = Running(child.expect("it starts"));
    let until = Instant::now() + PATIENCE;
    let mut link = loop {
        match TcpStream::connect(&address) {
            Ok(link) => break link,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    link.set_read_timeout(Some(PATIENCE)).expect("it can be");
    link.write_all(b"POST /pub/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx")
        .expect("it is sent");
    let mut answer = String::new();
    link.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    let kill_status = Command::new("kill").arg(server.0.id().to_string()).status();
    assert!(kill_status.expect("kill").success());
    let status = loop {
        if let Some(status) = server.0.try_wait().expect("it is ours") {
            break status;
        }
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn each_line_is_an_object_where_the_log_is_json() {
    let server = Server::with_admin("[log]\nformat = 'json'\n");
    server.await_log("try it: ");
    let log = server.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert_eq!(lines.len(), 5, "{log}");
    for line in &lines {
        assert_eq!(line["level"], "INFO", "{line}");
        assert!(
            line["timestamp"].is_string() && line["message"].is_string(),
            "{line}"
        );
    }
}

#[test]
fn the_first_lines_say_where_the_server_is_and_what_it_keeps() {
    let state = State::new();
    let in_memory = ["in memory, until a restart (state.directory keeps them on disk)"];
    let log_location = format!("on disk in {}", state.directory.display());
    let on_disk = [&log_location[..], "; 2 [[rule]] tables"];
    let rules = "[[rule]]\nmatch = 'a'\n[[rule]]\nmatch = 'b'\n";
    for (settings, is_kept) in [
        (String::new(), &in_memory[..]),
        (format!("{}{rules}", state.settings()), &on_disk),
    ] {
        let server = Server::with_admin(&settings);
        server.await_log("try it: ");
        let log = server.log();
        let lines: Vec<&str> = log
            .lines()
            .map(|line| line.split_once(" INFO ").expect("a line").1)
            .collect();
        assert_eq!(lines.len(), 5, "{log}");
        assert!(
            lines[0].starts_with("listening on http://127.0.0.1:"),
            "{log}"
        );
        assert!(
            lines[1].starts_with("admin port at http://127.0.0.1:"),
            "{log}"
        );
        assert!(
            lines[2].starts_with("each topic keeps the messages of the last 1h, up to 256 KiB, "),
            "{log}"
        );
        assert!(
            is_kept.iter().all(|words| lines[2].contains(words)),
            "{log}"
        );
        assert!(lines[3].starts_with("settings of /"), "{log}");
    }
}
