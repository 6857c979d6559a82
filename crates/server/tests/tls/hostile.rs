//! Tests TLS clients that break or stall the protocol.

use crate::support::port::metric;
use crate::support::{Server, connect, eventually, until};
use crate::tool::{Certificates, Interactive, curl, try_curl};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// The bytes that the server sends until it closes the connection.
fn until_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server does not end the connection: {error}"),
    }
    bytes
}

/// Waits until this many connections were ended for this reason, and checks that none ended for other reasons. The log must name the
/// remedy, once.
fn assert_counted(server: &Server, reason: &str, count: f64, remedy: &str) {
    let count_by = |reason: &str| {
        let name = format!("crore_tls_ended_connections_total{{reason=\"{reason}\"}}");
        metric(server.admin(), &name).expect("a metric")
    };
    until(reason, || count_by(reason) == count);
    let count_logged = || {
        let log = server.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("TLS: a connection was ended"));
        lines.filter(|line| line.contains(remedy)).count()
    };
    until(remedy, || count_logged() > 0);
    assert_eq!(count_logged(), 1, "{}", server.log());
}

#[test]
fn garbage_gets_an_alert_is_counted_and_logged_once() {
    let certificates = Certificates::new();
    let server = Server::with_admin(&certificates.settings(""));
    for _ in 0..20 {
        let mut stream = connect(server.address());
        stream.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 9]).unwrap();
        let received = until_end(&mut stream);
        assert_eq!(
            (received[0], received[5]),
            (21, 2),
            "a fatal alert: {received:?}"
        );
    }
    curl(&server, &certificates, "/pub/a", &["-d", "others go on"]);
    assert_counted(&server, "garbage", 20.0, "see who speaks something else");
}

#[test]
fn handshakes_and_connections_are_counted() {
    let certificates = Certificates::new();
    let server = Server::with_admin(&certificates.settings("min_version = '1.3'"));
    let value = |name: &str| metric(server.admin(), name).expect(name);
    assert_eq!(value("crore_table_memory_bytes{table=\"tls_keys\"}"), 0.0);
    let address = server.address().to_string();
    let (root, tickets) = (certificates.path("ca.pem"), certificates.path("tickets"));
    let openssl = |files: &[&str]| {
        let mut child = Command::new("openssl")
            .args(["s_client", "-connect", &address, "-CAfile", &root])
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        let mut input = child.stdin.take().expect("a pipe");
        input
            .write_all(b"GET /sub/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("it reads");
        (child, input)
    };
    let connections = |count: f64| {
        let connection_count = || value("crore_tls_connections");
        until("connections with TLS", || connection_count() == count);
    };
    let (mut first, _open) = openssl(&["-sess_out", &tickets]);
    connections(1.0);
    // The session ticket comes right after the handshake.
    eventually("a ticket", || std::fs::metadata(&tickets).ok());
    let (mut second, _open) = openssl(&["-sess_in", &tickets]);
    connections(2.0);
    assert_eq!(value("crore_tls_handshakes_total{kind=\"full\"}"), 1.0);
    assert_eq!(value("crore_tls_handshakes_total{kind=\"resumed\"}"), 1.0);
    assert!(value("crore_table_memory_bytes{table=\"tls_keys\"}") >= 80.0);
    assert!(value("crore_table_memory_bytes{table=\"tls_descriptors\"}") >= 4096.0);
    let mut incomplete = connect(server.address());
    incomplete.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    let under_way = || value("crore_tls_handshakes_under_way");
    until("a handshake", || under_way() == 1.0);
    let limit = "crore_limit_used{name=\"tls.handshakes_max\",unit=\"handshakes\"}";
    assert_eq!(value(limit), 1.0);
    drop(incomplete);
    assert_counted(&server, "gone", 1.0, "probes of the port do this");
    assert_eq!(under_way(), 0.0);
    for child in [&mut first, &mut second] {
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
    connections(0.0);
    let untrusting = try_curl(&server, &Certificates::new(), "/pub/a", &["-d", "x"]);
    assert!(!untrusting.status.success());
    assert_counted(&server, "distrust", 1.0, "clients must trust the root");
    let old_version = try_curl(
        &server,
        &certificates,
        "/pub/a",
        &["-d", "x", "--tls-max", "1.2"],
    );
    assert!(!old_version.status.success());
    assert_counted(
        &server,
        "incompatible",
        1.0,
        "clients need TLS 1.2 with ECDHE, or 1.3",
    );
}

#[test]
fn stalled_handshake_ends_at_the_first_deadline() {
    let certificates = Certificates::new();
    let settings = format!("[timeouts]\nhead_s = 1\n{}", certificates.settings(""));
    let server = Server::with_admin(&settings);
    let mut slow = connect(server.address());
    slow.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    let received = until_end(&mut slow);
    assert_eq!(received, b"", "no plain answer");
    assert_counted(&server, "slow", 1.0, "raise timeouts.head_s");
    // A client that sends a byte now and then of a long record is ended too.
    let mut crumbs = connect(server.address());
    crumbs.write_all(&[22, 3, 1, 4, 0]).unwrap();
    until("its end", || crumbs.write_all(&[0]).is_err());
    let mut silent = connect(server.address());
    let received = until_end(&mut silent);
    assert!(received.starts_with(b"HTTP/1.1 408"), "{received:?}");
}

#[test]
fn plain_connections_are_refused_where_tls_is_required() {
    let certificates = Certificates::new();
    let server = Server::with_admin(&certificates.settings("required = true"));
    let mut http = connect(server.address());
    http.write_all(b"GET /sub/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let received = String::from_utf8(until_end(&mut http)).unwrap();
    assert!(
        received.starts_with("HTTP/1.1 400") && received.contains("https://"),
        "{received}"
    );
    assert!(received.ends_with("wss://.\n"), "{received}");
    let mut mqtt = connect(server.address());
    mqtt.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        .unwrap();
    assert_eq!(until_end(&mut mqtt), b"");
    assert_counted(&server, "plain", 2.0, "clients need https://");
    curl(&server, &certificates, "/pub/a", &["-d", "x"]);
}

#[test]
fn renegotiation_is_refused() {
    let certificates = Certificates::new();
    let server = Server::with_admin(&certificates.settings(""));
    let mut client = Interactive::start(&server, &certificates, "-tls1_2");
    client.type_line("R\n", "RENEGOTIATING");
    client.type_line("", "no renegotiation");
    assert_counted(
        &server,
        "renegotiation",
        1.0,
        "the client must not ask for it",
    );
    curl(&server, &certificates, "/pub/a", &["-d", "others go on"]);
}
