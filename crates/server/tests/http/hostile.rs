//! Tests attacks that once crashed the server or filled its memory: single requests, and small crowds of clients that do not read.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::ws::{Ws, handshake};

/// How many bytes the server's memory may grow if a message is stored once for all clients that do not read it.
const GROWN_MAX: u64 = 48 << 20;

#[test]
fn request_for_two_topics_with_an_immediate_answer_does_not_crash() {
    let server = Server::start();
    let accept = [("Accept", "text/event-stream")];
    for target in ["/sub?topic=a&topic=b", "/sub?filter=a%2F%23&filter=b"] {
        let mut conn = Conn::open(&server);
        conn.ask("HEAD", target, &accept, "");
        assert_eq!(conn.head().status, 200);
        drop(conn);
        for left_out in ["Sec-WebSocket-Version", "Sec-WebSocket-Key"] {
            let mut headers = handshake(&[]);
            headers.retain(|(name, _)| *name != left_out);
            let mut conn = Conn::open(&server);
            conn.ask("GET", target, &headers, "");
            let status = if left_out == "Sec-WebSocket-Key" {
                400
            } else {
                426
            };
            assert_eq!(conn.head().status, status, "{target}");
            drop(conn);
        }
        assert_eq!(publish(&server, "a", "still here").status, 202);
    }
}

/// One request reads 32 topics. Each has a message of 1 MB, which takes six times as many bytes in JSON.
#[test]
fn large_messages_of_several_topics_are_read_one_by_one() {
    let server = Server::start();
    let topics: Vec<String> = (0..32).map(|n| format!("t{n}")).collect();
    for topic in &topics {
        assert_eq!(publish(&server, topic, "\u{1}".repeat(1 << 20)).status, 202);
    }
    let query = topics.iter().map(|topic| format!("topic={topic}&"));
    let target = format!(
        "/sub?{}since=oldest&envelope=json",
        query.collect::<String>()
    );
    let bytes_before = server.pss_bytes();
    let mut connections = Vec::new();
    for headers in [&[][..], &[("Accept", "text/event-stream")][..]] {
        let mut conn = Conn::open(&server);
        conn.ask("GET", &target, headers, "");
        connections.push(conn);
    }
    let mut ws = Ws::open(&server, &target, &[]);
    server.assert_growth_below(bytes_before, GROWN_MAX);
    // All messages arrive nevertheless.
    for _ in &topics {
        assert!(ws.message().payload.len() > 6 << 20);
    }
    assert_eq!(publish(&server, "t3", "live").status, 201);
    assert!(ws.message().text().contains("live"));
}

/// Many clients request one message of 1 MB, over each transport, and read nothing.
#[test]
fn large_message_is_stored_once_for_all_clients_that_do_not_read() {
    let server = Server::start();
    assert_eq!(
        publish(&server, "big", "x".repeat((1 << 20) - 10)).status,
        202
    );
    let bytes_before = server.pss_bytes();
    let mut connections = Vec::new();
    for _ in 0..300 {
        for (target, headers) in [
            ("/sub/big?since=oldest", &[][..]),
            (
                "/sub/big?since=oldest",
                &[("Accept", "text/event-stream")][..],
            ),
            ("/sub/big?since=oldest", &handshake(&[])[..]),
        ] {
            let mut conn = Conn::open(&server);
            conn.ask("GET", target, headers, "");
            connections.push(conn);
        }
    }
    server.assert_growth_below(bytes_before, GROWN_MAX);
    assert_eq!(once(&server, "GET", "/pub/big", &[], "").status, 200);
}

/// Many clients that read nothing wait while messages of 1 MB are published.
#[test]
fn large_message_in_transit_is_stored_once() {
    let server = Server::with("[[rule]]\nmatch = '#'\nlog_messages = 2\n");
    let mut connections: Vec<Conn> = Vec::new();
    for n in 0..400 {
        let mut conn = Conn::open(&server);
        let headers = match n % 2 {
            0 => vec![("Accept", "text/event-stream")],
            _ => handshake(&[]),
        };
        conn.ask("GET", "/sub/big", &headers, "");
        connections.push(conn);
    }
    server.await_subscribers("big", 400);
    let bytes_before = server.pss_bytes();
    for _ in 0..4 {
        let data = "x".repeat((1 << 20) - 10);
        assert_eq!(publish(&server, "big", data).status, 201);
    }
    server.assert_growth_below(bytes_before, GROWN_MAX);
}
