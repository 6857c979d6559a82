//! Tests which connections the server ends when memory for received bytes is short, and with which answer.

use crore_broker::settings::Settings;
use crore_broker::{TurnLimits, World};
use std::sync::Arc;
use support::{NOW, TestServer};

mod support;

const MEMORY_BYTES: usize = 4 << 20;

fn world() -> Arc<World> {
    let mut settings = Settings::default();
    settings.limits.memory_bytes = MEMORY_BYTES;
    settings.limits.message_bytes = MEMORY_BYTES;
    support::world(settings, 1, 1)
}

/// A masked frame of a client. A mask of zeros leaves the payload unchanged.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a short frame");
    let mut frame = vec![0x80 | opcode];
    match length {
        0..=125 => frame.push(0x80 | payload.len() as u8),
        _ => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&length.to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    [&frame, payload].concat()
}

#[test]
fn client_that_ends_for_room_gets_no_bytes_of_the_client_that_needs_it() {
    let mut server = TestServer::new(&world(), TurnLimits::default(), NOW);
    let large = server.open(0);
    let head = format!(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        3 << 20
    );
    server.send(large, head);
    let device = server.open(0);
    server.send(
        device,
        b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
    );
    // The first bytes of a PUBLISH of a megabyte, without a CONNECT before it. The server parses it only when it is complete.
    server.send(device, frame(2, &[0x10, 0x80, 0x80, 0x40]));
    let mut sent = 0;
    while server.is_open(large) && sent < 4 << 20 {
        server.send(large, vec![b'x'; 60_000]);
        let more = [frame(9, b"PONG OF ANOTHER"), frame(2, &[b'y'; 30_000])].concat();
        server.send(device, more);
        server.settle();
        server.flush(0);
        sent += 60_000;
    }
    let told = String::from_utf8_lossy(server.received(large)).into_owned();
    assert!(told.contains("503"), "{sent} bytes: {told}");
    assert!(!told.contains("PONG"), "{told}");
}

/// A server with memory for about seven bodies of `begin_upload`.
fn small_server() -> TestServer {
    let mut settings = Settings::default();
    settings.limits.memory_bytes = 512 << 10;
    settings.limits.message_bytes = 64 << 10;
    TestServer::new(&support::world(settings, 1, 1), TurnLimits::default(), NOW)
}

fn head(length: usize) -> String {
    format!("POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
}

/// Sends a request without the last 100 bytes of its body.
fn begin_upload(server: &mut TestServer, is_in_one_piece: bool) {
    let conn = server.open(0);
    let body = "x".repeat(64_900);
    match is_in_one_piece {
        true => server.send(conn, head(65_000) + &body),
        false => {
            server.send(conn, head(65_000));
            server.flush(0);
            server.send(conn, body);
        }
    }
    server.flush(0);
}

/// Begins a small publish between uploads of the same address that need more memory than there is. Calls `before_rest` before the rest of the publish
/// arrives. Returns the answer.
fn answer_beside_uploads(before_rest: impl Fn(&mut TestServer)) -> String {
    let mut server = small_server();
    for _ in 0..8 {
        begin_upload(&mut server, false);
    }
    let publisher = server.open(0);
    server.send(publisher, head(2_000));
    server.flush(0);
    server.send(publisher, "x".repeat(1_000));
    server.flush(0);
    before_rest(&mut server);
    server.send(publisher, "x".repeat(1_000));
    server.settle();
    String::from_utf8_lossy(server.received(publisher)).into_owned()
}

#[test]
fn large_uploads_that_came_later_end_before_a_small_one() {
    let answer = answer_beside_uploads(|server| {
        for _ in 0..8 {
            begin_upload(server, true);
        }
    });
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
}

#[test]
fn large_uploads_of_this_second_end_before_a_small_one_of_the_last_second() {
    let answer = answer_beside_uploads(|server| {
        server.advance_and_tick_s(1);
        server.flush(0);
        for _ in 0..14 {
            begin_upload(server, false);
        }
    });
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
}
