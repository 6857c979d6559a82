//! Tests clients that stop reading, hold descriptors, flood or send noise. Their cost is bounded, and other clients notice nothing.

use crate::support::http::{Conn, info, once, publish};
use crate::support::ws::{TEXT, Ws, handshake};
use crate::support::{Server, until};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn subscriber_that_stops_reading_is_disconnected_at_its_outbox_limit() {
    // With a long `drain_s` the server keeps the unread bytes of a closed connection until the test reads them.
    let server = Server::with(
        "[timeouts]\ndrain_s = 600\n[limits]\noutbox_bytes = 200000\nmessage_bytes = 100000\n",
    );
    let mut stalled: Vec<Ws> = (0..10)
        .map(|_| Ws::open(&server, "/sub/news", &[]))
        .collect();
    let mut healthy = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 11);
    let bytes_before = server.resident_bytes();
    let mut publisher = Conn::open(&server);
    let payload = "x".repeat(100_000);
    // 20 MB to each subscriber: more than the two kernels' buffers and the outbox hold together.
    for number in 0..200 {
        assert_eq!(
            publisher.request("POST", "/pub/news", &[], &payload).status,
            201,
            "message {number}"
        );
        assert_eq!(
            healthy.message().payload.len(),
            payload.len(),
            "message {number}"
        );
    }
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    assert!(
        grown < 32 << 20,
        "ten stalled subscribers of 200 kB each: it grew by {grown} bytes"
    );
    // By default a slow subscriber is disconnected. The bytes that it received before are complete frames.
    for ws in &mut stalled {
        let mut frames = 0;
        loop {
            let frame = ws.frame();
            if frame.opcode() != TEXT {
                assert_eq!(frame.close_code(), Some(4412), "{frames} frames");
                assert!(frames < 200, "it cannot have got everything");
                break;
            }
            assert_eq!(frame.payload.len(), payload.len());
            frames += 1;
        }
    }
}

#[test]
fn client_that_reads_no_answers_is_not_read() {
    let server = Server::start();
    publish(&server, "big", "x".repeat(50_000));
    let bytes_before = server.resident_bytes();
    let stream = TcpStream::connect(server.address()).expect("a connection");
    let mut conn = Conn::from_stream(stream, &server);
    conn.stream()
        .set_write_timeout(Some(Duration::from_secs(1)))
        .expect("a timeout");
    let requests = conn
        .request_bytes("GET", "/sub/big", &[], b"")
        .repeat(20_000);
    conn.send(requests); // until the server stops reading
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    assert!(grown < 24 << 20, "it grew by {grown} bytes");
    assert_eq!(publish(&server, "other", "x").status, 202);
}

#[test]
fn new_connections_are_refused_while_descriptors_are_used_up() {
    let server = Server::with_descriptors("", 40);
    let mut subscriber = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    let crowd: Vec<TcpStream> = (0..300)
        .filter_map(|_| TcpStream::connect(server.address()).ok())
        .collect();
    server.await_log("new connections are turned away");
    drop(crowd);
    let status_after_crowd = || once(&server, "POST", "/pub/news", &[], "after the crowd").status;
    until("room again", || status_after_crowd() == 201);
    assert_eq!(subscriber.message().text(), "after the crowd");
    let lines = server.log().lines().count();
    assert!(
        lines < 60,
        "it logs the state, not each connection: {lines} lines"
    );
}

#[test]
fn random_bytes_are_refused_and_disturb_no_client() {
    let server = Server::start();
    let mut neighbour = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..150 {
        let mut conn = Conn::open(&server);
        let mut bytes: Vec<u8> = match round % 3 {
            0 => Vec::new(),
            1 => conn.request_bytes("GET", "/pubsub/noise", &handshake(&[]), b""),
            _ => conn.request_bytes("POST", "/pub/noise", &[], b"body"),
        };
        let head = bytes.len();
        bytes.extend((0..random() % 400).map(|_| random() as u8));
        if round % 3 == 2 {
            for _ in 0..3 {
                let index = random() as usize % head;
                bytes[index] ^= 1 << (random() % 8);
            }
        }
        conn.send(bytes);
        let _ = conn.stream().shutdown(std::net::Shutdown::Write);
        conn.read_to_end(); // any answer is right, if the connection ends
    }
    assert_eq!(publish(&server, "news", "undisturbed").status, 201);
    assert_eq!(neighbour.message().text(), "undisturbed");
}

#[test]
fn topics_beyond_the_limit_are_503_and_affect_no_other_client() {
    let server = Server::with("[limits]\ntopics_per_shard = 50\n");
    publish(&server, "first", "kept");
    let statuses: Vec<u16> = (0..300)
        .map(|number| once(&server, "POST", &format!("/pub/t/{number}"), &[], "x").status)
        .collect();
    let accepted = statuses.iter().filter(|status| **status == 202).count();
    let refused = statuses.iter().filter(|status| **status == 503).count();
    assert_eq!(accepted + refused, 300, "{statuses:?}");
    assert!(
        (50..100).contains(&accepted),
        "two shards of 50, and one is kept: {accepted}"
    );
    assert_eq!(info(&server, "first")["messages"], 1);
    assert_eq!(publish(&server, "first", "more").status, 202);
}

#[test]
fn reset_connection_is_no_subscriber_any_more() {
    let server = Server::start();
    for _ in 0..50 {
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/sub/news", &[("Accept", "text/event-stream")], "");
        assert_eq!(conn.head().status, 200);
        // The unread bytes in the client's receive buffer make its close a reset.
    }
    server.await_subscribers("news", 0);
}
