//! Tests the server behind a proxy: the PROXY protocol (version 2) before the first request, and handshakes that a proxy has changed.

use std::io::{Read, Write};

use crate::support::attempt;
use crate::support::http::{Conn, once};
use crate::support::ws::handshake;
use crate::support::{Server, connect, until};

/// A header of the PROXY protocol: the signature, version 2 and the command PROXY, TCP over IPv4, and twelve bytes of addresses.
fn header() -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    bytes.extend([0x21, 0x11, 0, 12]);
    bytes.extend([192, 0, 2, 7, 127, 0, 0, 1]);
    bytes.extend(40_000_u16.to_be_bytes());
    bytes.extend(8800_u16.to_be_bytes());
    bytes
}

/// Settings that trust the tests' own address as a proxy.
const FROM_HERE: &str = "proxy_protocol = true\ntrusted_proxies = [\"127.0.0.0/8\"]";

fn server() -> Server {
    Server::with(&format!("[http]\n{FROM_HERE}\n[timeouts]\nhead_s = 1\n"))
}

#[test]
fn proxy_header_is_accepted_only_before_the_first_request() {
    let server = server();
    for slowly in [false, true] {
        let mut conn = Conn::open(&server);
        let request = conn.request_bytes("POST", "/pub/news", &[], b"x");
        let bytes = [header(), request.clone()].concat();
        if slowly {
            conn.dribble(bytes);
        } else {
            conn.send(bytes);
        }
        assert_eq!(conn.response().status, 202);
        conn.send(&request);
        assert_eq!(conn.response().status, 202);
    }
    // The command LOCAL, which health checks send, has no addresses.
    let mut conn = Conn::open(&server);
    let request = conn.request_bytes("GET", "/pub/news", &[], b"");
    conn.send([&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], &request].concat());
    assert_eq!(conn.response().status, 200);
}

#[test]
fn connection_without_the_proxy_header_is_not_served() {
    let server = server();
    let plain = |conn: &Conn| conn.request_bytes("POST", "/pub/news", &[], b"x");
    let mut short = header();
    short.truncate(9);
    let mut version_1 = b"PROXY TCP4 192.0.2.7 127.0.0.1 40000 8800\r\n".to_vec();
    version_1.extend(plain(&Conn::open(&server)));
    let mut version_3 = header();
    version_3[12] = 0x31;
    for bytes in [plain(&Conn::open(&server)), short, version_1, version_3] {
        let mut conn = Conn::open(&server);
        conn.send(&bytes);
        let response = attempt(|| conn.read_to_end()).expect("it ends within the time for a head");
        assert_eq!(String::from_utf8_lossy(&response), "");
    }
}

#[test]
fn proxy_header_of_an_untrusted_peer_is_not_read() {
    let server =
        Server::with("[http]\nproxy_protocol = true\ntrusted_proxies = [\"10.0.0.0/8\"]\n");
    for prefix in [header(), Vec::new(), header(), header()] {
        let mut stream = connect(server.address());
        let request = b"POST /pub/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
        // The server may have closed the connection already.
        let _ = stream.write_all(&[&prefix[..], request].concat());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(String::from_utf8_lossy(&answer), "");
    }
    // Each shard logs this at most once, not once for each connection.
    let warning = "came from peers that are not in http.trusted_proxies";
    server.await_log(warning);
    let log = server.log();
    assert!((1..=2).contains(&log.matches(warning).count()), "{log}");
}

#[test]
fn proxy_header_is_a_bad_request_if_not_configured() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let request = conn.request_bytes("POST", "/pub/news", &[], b"x");
    conn.send([header(), request].concat());
    assert_eq!(conn.response().status, 400);
    assert!(conn.ends());
}

/// A server where each client address may hold two connections.
fn limited(http: &str) -> Server {
    Server::with(&format!(
        "[http]\n{http}\n[limits]\nconnections_per_address_max = 2\n"
    ))
}

fn header_of_client(client: u8) -> Vec<u8> {
    let mut bytes = header();
    bytes[19] = client;
    bytes
}

/// Opens a connection, and sends `prefix` and a request. Returns the status and the connection.
fn send_and_read_status(server: &Server, prefix: &[u8], headers: &[(&str, &str)]) -> (u16, Conn) {
    let mut conn = Conn::open(server);
    let request = conn.request_bytes("GET", "/pub/news", headers, b"");
    conn.send([prefix, &request].concat());
    let response = conn.response();
    if response.status == 429 {
        let retry_after_s: u32 = response
            .header("retry-after")
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("no Retry-After in {response:?}"));
        assert!((5..=20).contains(&retry_after_s), "{response:?}");
    }
    (response.status, conn)
}

/// Waits until the limit admits another connection. The server may notice the end of a connection with a delay.
fn await_room(server: &Server, prefix: &[u8], headers: &[(&str, &str)]) {
    until("room", || {
        send_and_read_status(server, prefix, headers).0 == 404
    });
}

#[test]
fn limits_apply_to_the_client_named_by_the_proxy_header() {
    let server = limited(FROM_HERE);
    let connections: Vec<Conn> = (0..2)
        .map(|_| {
            let (status, conn) = send_and_read_status(&server, &header_of_client(7), &[]);
            assert_eq!(status, 404, "there is room, and no such topic");
            conn
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(
            send_and_read_status(&server, &header_of_client(7), &[]).0,
            429
        );
    }
    let other_client = send_and_read_status(&server, &header_of_client(8), &[]);
    assert_eq!(other_client.0, 404, "another client of the same proxy");
    // The client's own header is ignored, since its address is in no trusted network.
    let claims = [("X-Forwarded-For", "192.0.2.9")];
    assert_eq!(
        send_and_read_status(&server, &header_of_client(7), &claims).0,
        429
    );
    drop(connections);
    await_room(&server, &header_of_client(7), &[]);
}

#[test]
fn forwarded_client_of_a_trusted_proxy_counts() {
    let server = limited("trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]");
    let status_with = |fields: &[(&str, &str)]| send_and_read_status(&server, b"", fields);
    let xff = |value| [("X-Forwarded-For", value)];
    let connections: Vec<_> = (0..2).map(|_| status_with(&xff("198.51.100.1"))).collect();
    assert!(connections.iter().all(|(status, _)| *status == 404));
    assert_eq!(status_with(&xff("198.51.100.1")).0, 429);
    // The rightmost address that is no trusted proxy counts. The client itself may have written those before it.
    for chain in [
        "203.0.113.5, 198.51.100.1",
        "198.51.100.1, 10.1.2.3",
        "198.51.100.1,127.0.0.9 , 10.1.2.3",
    ] {
        assert_eq!(status_with(&xff(chain)).0, 429, "{chain}");
    }
    assert_eq!(status_with(&xff("198.51.100.1, 203.0.113.5")).0, 404);
    // Requests that name no client are counted for no client, so they have no limit.
    let nobody: Vec<_> = (0..5).map(|_| status_with(&[])).collect();
    assert!(nobody.iter().all(|(status, _)| *status == 404));
    drop(connections);
    await_room(&server, b"", &xff("198.51.100.1"));
}

#[test]
fn forwarded_client_of_an_untrusted_peer_is_ignored() {
    let server = limited("trusted_proxies = [\"10.0.0.0/8\"]");
    let connections: Vec<_> = (1..=2)
        .map(|n| {
            let client = format!("198.51.100.{n}");
            send_and_read_status(&server, b"", &[("X-Forwarded-For", &client)])
        })
        .collect();
    assert!(connections.iter().all(|(status, _)| *status == 404));
    let third = send_and_read_status(&server, b"", &[("X-Forwarded-For", "198.51.100.3")]);
    assert_eq!(third.0, 429, "all of them are 127.0.0.1");
    drop(connections);
    await_room(&server, b"", &[]);
}

#[test]
fn one_connection_of_a_proxy_carries_requests_of_many_clients() {
    let server = limited("trusted_proxies = [\"127.0.0.0/8\"]");
    let address = |n: u32| format!("198.51.100.{n}");
    let connections: Vec<_> = (0..2)
        .map(|_| send_and_read_status(&server, b"", &[("X-Forwarded-For", &address(1))]))
        .collect();
    let mut shared = Conn::open(&server);
    for n in [2, 3, 1, 4] {
        let response = shared.get("/pub/news", &[("X-Forwarded-For", &address(n))]);
        let expected = if n == 1 { 429 } else { 404 };
        assert_eq!(response.status, expected, "a request of client {n}");
    }
    drop(connections);
}

#[test]
fn a_handshake_without_upgrade_is_426_and_names_the_proxy() {
    let server = Server::start();
    for name in ["Upgrade", "Connection"] {
        let mut headers = handshake(&[]);
        headers.retain(|(other, _)| *other != name);
        for target in ["/sub/news", "/pub/news", "/interest", "/mqtt"] {
            let answer = once(&server, "GET", target, &headers, "");
            assert_eq!(answer.status, 426, "{target} without {name}");
            assert!(answer.text().contains("proxy"), "{}", answer.text());
        }
    }
}
