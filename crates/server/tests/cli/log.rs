//! A server whose stderr nobody reads.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::crore;
use crate::support::PATIENCE;

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pipe's end that takes nothing more, and the end that nobody reads.
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
fn a_server_serves_and_stops_while_its_stderr_takes_nothing() {
    let (stderr, _reader) = full();
    // The log cannot tell a port of the kernel's choice: an address that no other test has.
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
    let told = Command::new("kill").arg(server.0.id().to_string()).status();
    assert!(told.expect("kill").success());
    let ended = loop {
        if let Some(ended) = server.0.try_wait().expect("it is ours") {
            break ended;
        }
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.code(), Some(0));
}
