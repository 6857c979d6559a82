//! A server with connections over `AF_XDP`, and clients in another network namespace: `curl`, and a WebSocket.
//!
//! The test runs itself again in a namespace of its own, and once more in that of the clients. Without the right to make them it says what it
//! leaves out; with `CRORE_TOOLS=required` it fails.

#![allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use support::port::metric;
use support::{PATIENCE, Server, until};

/// Which part of the test this process is.
const PART: &str = "CRORE_XDP_PART";
const SETTINGS: &str = "[xdp]\nlisten = \"server:8800\"\n\
                        [access]\n[access.anonymous]\npublish = [\"#\"]\nsubscribe = [\"#\"]\n";
const ADDRESS: &str = "10.77.0.1:8800";

/// The command that runs this test again, by way of `program`.
fn again(program: &str, arguments: &[&str], part: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(arguments).arg(this).env(PART, part);
    command.args(["--exact", "clients_are_served_over_af_xdp", "--nocapture"]);
    command
}

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// A process whose namespace is that of the clients.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespace {
    fn new() -> Namespace {
        // It ends with its input, also if this process is killed.
        let mut child = Command::new("unshare");
        let child = child.args(["--net", "cat"]).stdin(Stdio::piped()).spawn();
        let namespace = Namespace(child.expect("unshare"));
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        let id = namespace.0.id().to_string();
        until("the process has a namespace", || of(&id) != of("self"));
        namespace
    }
}

#[test]
fn clients_are_served_over_af_xdp() {
    match std::env::var(PART).as_deref() {
        Ok("server") => serve(),
        Ok("clients") => publish_and_subscribe(),
        _ => {
            let mut setup = Command::new("unshare");
            let try_it = "ip link add left type veth peer name right";
            let tried = setup.args(["--net", "sh", "-c", try_it]).status();
            if !tried.is_ok_and(|status| status.success()) {
                let is_required = std::env::var("CRORE_TOOLS").as_deref() == Ok("required");
                assert!(!is_required, "the test needs root, `ip` and `unshare`");
                eprintln!("not run: a pair of interfaces needs root, `ip` and `unshare`");
                return;
            }
            let status = again("unshare", &["--net"], "server").status();
            assert!(status.expect("unshare").success());
        }
    }
}

/// In the namespace of the server.
fn serve() {
    let namespace = Namespace::new();
    let clients = namespace.0.id();
    assert!(ip("link set lo up"));
    assert!(ip("link add server type veth peer name clients"));
    assert!(ip("addr add 10.77.0.1/16 dev server"));
    assert!(ip("link set server up"));
    assert!(ip(&format!("link set clients netns {clients}")));
    let server = Server::with_admin(SETTINGS);
    let target = clients.to_string();
    let status = again("nsenter", &["--net", "--target", &target], "clients").status();
    assert!(status.expect("nsenter").success());
    for (name, least) in [
        ("crore_xdp_cookies_total{kind=\"sent\"}", 3.0),
        ("crore_xdp_packets_total{direction=\"received\"}", 10.0),
    ] {
        // The shard publishes its counters now and then.
        let is_counted = || metric(server.admin(), name).is_some_and(|value| value >= least);
        until(name, is_counted);
    }
    // The kernel has the interface to itself again when the server has ended.
    server.stop();
    let shown = Command::new("ip").args(["link", "show", "server"]).output();
    let shown = String::from_utf8(shown.expect("ip").stdout).expect("text");
    assert!(!shown.contains("xdp"), "{shown}");
}

/// In the namespace of the clients.
fn publish_and_subscribe() {
    assert!(ip("addr add 10.77.0.2/16 dev clients"));
    assert!(ip("link set clients up"));
    let address = ADDRESS.parse().expect("an address");
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let upgrade = format!(
        "GET /sub/news HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(upgrade.as_bytes()).expect("room");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).expect("the answer");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{head:?}");
    for bytes in [5, 60_000] {
        let message = "x".repeat(bytes);
        let url = format!("http://{ADDRESS}/pub/news");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "30"]);
        curl.args(["--data-binary", "@-", &url])
            .stdin(Stdio::piped());
        let mut curl = curl.stdout(Stdio::null()).spawn().expect("curl");
        let mut input = curl.stdin.take().expect("it is piped");
        input.write_all(message.as_bytes()).expect("room");
        drop(input);
        assert!(curl.wait().expect("curl").success());
        let mut frame = vec![0; bytes + if bytes < 126 { 2 } else { 4 }];
        socket.read_exact(&mut frame).expect("a message");
        let header = frame.len() - bytes;
        assert_eq!(frame[0], 0x81, "one frame of text");
        assert!(frame[header..] == *message.as_bytes());
    }
}
