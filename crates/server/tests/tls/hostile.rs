//! Peers that do not do as they should.

use crate::support::Server;
use crate::tool::{Certificates, curl};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("a connection");
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).expect("a timeout");
    stream
}

/// What comes until the server ends the connection.
fn until_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server does not end the connection: {error}"),
    }
    bytes
}

#[test]
fn garbage_gets_an_alert_and_is_logged_once() {
    let all = Certificates::new();
    let server = Server::with(&all.settings(""));
    for _ in 0..20 {
        let mut stream = connect(&server);
        stream.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 9]).unwrap();
        let said = until_end(&mut stream);
        assert_eq!((said[0], said[5]), (21, 2), "a fatal alert: {said:?}");
    }
    curl(&server, &all, "/pub/a", &["-d", "others go on"]);
    std::thread::sleep(Duration::from_millis(2500));
    let log = server.log();
    let told = log.matches("TLS: a connection was ended").count();
    // Once for each shard.
    assert!((1..=2).contains(&told), "{log}");
}

#[test]
fn a_handshake_that_does_not_go_on_is_ended_by_the_first_deadline() {
    let all = Certificates::new();
    let settings = format!("[timeouts]\nhead_s = 1\n{}", all.settings(""));
    let server = Server::with(&settings);
    let mut slow = connect(&server);
    slow.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    let said = until_end(&mut slow);
    assert!(
        said.is_empty() || said[0] == 21,
        "no plain answer: {said:?}"
    );
    let mut silent = connect(&server);
    let said = until_end(&mut silent);
    assert!(said.starts_with(b"HTTP/1.1 408"), "{said:?}");
}

#[test]
fn plain_connections_are_refused_where_tls_is_required() {
    let all = Certificates::new();
    let server = Server::with(&all.settings("required = true"));
    let mut http = connect(&server);
    http.write_all(b"GET /sub/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let said = String::from_utf8(until_end(&mut http)).unwrap();
    assert!(
        said.starts_with("HTTP/1.1 400") && said.contains("https://"),
        "{said}"
    );
    assert!(said.ends_with("wss://.\n"), "{said}");
    let mut mqtt = connect(&server);
    mqtt.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        .unwrap();
    assert_eq!(until_end(&mut mqtt), b"");
    curl(&server, &all, "/pub/a", &["-d", "x"]);
}

#[test]
fn renegotiation_is_refused() {
    let all = Certificates::new();
    let server = Server::with(&all.settings(""));
    let (address, root) = (server.address().to_string(), all.path("ca.pem"));
    let mut child = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &address,
            "-CAfile",
            &root,
            "-tls1_2",
            "-legacy_renegotiation",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl");
    let mut input = child.stdin.take().expect("a pipe");
    std::thread::sleep(Duration::from_secs(1));
    input.write_all(b"R\n").expect("it reads");
    std::thread::sleep(Duration::from_secs(1));
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("RENEGOTIATING"), "{said}");
    assert!(said.contains("no renegotiation"), "{said}");
    curl(&server, &all, "/pub/a", &["-d", "others go on"]);
}
