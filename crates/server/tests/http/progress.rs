//! Tests the minimum rate at which a begun head, body or frame must arrive. A client that sends a byte now and then cannot hold a
//! connection, or memory that others need.

use crate::support::http::{Conn, info, once, publish};
use crate::support::ws::{BINARY, FIN, TEXT, Ws, handshake, head, masked};
use crate::support::{Server, connect, connect_from, until};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const SHORT: &str = "[timeouts]\nbody_s = 1\n";

/// Sends the two pieces alternately, one each fifth of a second, until the peer closes. Returns the bytes that the peer sends. `case` names
/// the case in the message of a failure.
fn send_slowly(case: &str, mut stream: &TcpStream, pieces: [&[u8]; 2]) -> Vec<u8> {
    let wait = Some(Duration::from_millis(200));
    stream.set_read_timeout(wait).expect("a timeout");
    let mut pieces = pieces.into_iter().cycle();
    let (mut received, mut bytes) = (Vec::new(), [0; 1000]);
    until(&format!("the end of {case}"), || {
        let sent = stream.write(pieces.next().expect("it is endless"));
        match (sent, stream.read(&mut bytes)) {
            (Err(_), _) | (_, Ok(0)) => true,
            (_, Ok(count)) => {
                received.extend_from_slice(&bytes[..count]);
                false
            }
            (_, Err(error)) => error.kind() == ErrorKind::ConnectionReset,
        }
    });
    received
}

fn post(conn: &mut Conn, length: usize, first: usize) {
    conn.send(format!(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    ));
    conn.send(vec![b'x'; first]);
}

#[test]
fn client_that_sends_a_byte_now_and_then_is_disconnected() {
    let server = Server::with(SHORT);
    let mut body = Conn::open(&server);
    post(&mut body, 100_000, 99_000);
    let mut chunk = Conn::open(&server);
    chunk.send(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
    );
    let mut frame = Ws::open(&server, "/pub/a", &[]);
    frame.conn.send(head(FIN | BINARY, 100_000, true));
    let mut tcp = connect(server.address());
    // An MQTT 5 CONNECT without a keep alive, then the beginning of a PUBLISH.
    let connect = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x03one";
    tcp.write_all(connect).expect("sent");
    tcp.write_all(b"\x30\xff\xff\x03\x00\x01a\x00")
        .expect("sent");
    let mut framed = Conn::open(&server);
    framed.ask(
        "GET",
        "/mqtt",
        &handshake(&[("Sec-WebSocket-Protocol", "mqtt")]),
        "",
    );
    assert_eq!(framed.head().status, 101);
    let mut connect = connect.to_vec();
    connect[17] = b'w';
    framed.send(masked(FIN | BINARY, &connect));
    framed.send(masked(FIN | BINARY, b"\x30\xff\xff\x03\x00\x01a\x00"));
    // Each byte of the message has its own frame, and each frame is sent in two pieces.
    let frame_of_one_byte = masked(FIN | BINARY, b"x");
    let (cut, byte) = (
        [&frame_of_one_byte[..3], &frame_of_one_byte[3..]],
        [&b"x"[..]; 2],
    );
    // How each protocol ends the connection: the status 408, the close code 1001, or a DISCONNECT with the reason 0x83 after the CONNACK.
    let status = |received: &[u8]| received.starts_with(b"HTTP/1.1 408 ");
    let code = |received: &[u8]| received[0] == 0x88 && received[2..4] == 1001_u16.to_be_bytes();
    let reason = |received: &[u8]| {
        received
            .windows(3)
            .any(|window| window[0] == 0xe0 && window[2] == 0x83)
    };
    type IsRight<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);
    let streams: [(_, _, _, IsRight<'_>); 5] = [
        ("a body", body.stream(), byte, &status),
        ("a chunked body", chunk.stream(), byte, &status),
        ("a frame", frame.conn.stream(), byte, &code),
        ("a packet", &tcp, byte, &reason),
        ("a packet in frames", framed.stream(), cut, &reason),
    ];
    std::thread::scope(|scope| {
        for (case, stream, pieces, is_right) in streams {
            scope.spawn(move || {
                let received = send_slowly(case, stream, pieces);
                assert!(is_right(&received), "{case}: {received:02x?}");
            });
        }
    });
}

#[test]
fn client_that_makes_progress_is_never_cut_off() {
    let server = Server::with(SHORT);
    let mut slow = Conn::open(&server);
    let mut frames = Ws::open(&server, "/pub/frames", &[]);
    post(&mut slow, 20_000, 0);
    let frame = masked(FIN | TEXT, &[b'x'; 20_000]);
    frames.conn.send(&frame[..frame.len() - 20_000]);
    // The bytes take several times `body_s`, at more than twice the required rate.
    for n in 0..20 {
        slow.send([b'x'; 1_000]);
        let offset = frame.len() - 20_000 + n * 1_000;
        frames.conn.send(&frame[offset..offset + 1_000]);
        std::thread::sleep(Duration::from_millis(250)); // the pace of the load
    }
    assert_eq!(slow.response().status, 202);
    server.await_subscribers("frames", 0);
    assert_eq!(info(&server, "frames")["messages"], 1);
}

/// A server with one shard and little memory for received bytes.
fn small() -> Server {
    Server::with_shards(
        1,
        "[limits]\nmessage_bytes = 65536\nbatch_bytes = 65536\noutbox_bytes = 65536\nmemory_bytes = 524288\n",
    )
}

/// Sends a publish in two pieces with some time between them, and expects that it is accepted.
fn split_post(server: &Server, number: &str) {
    let mut conn = Conn::open(server);
    post(&mut conn, 2_000, 1_000);
    std::thread::sleep(Duration::from_millis(20)); // the pace of the load
    conn.send([b'x'; 1_000]);
    let answer = conn.response();
    assert_eq!(answer.status, 202, "publish {number}: {answer:?}");
}

#[test]
fn incomplete_bodies_do_not_block_complete_ones() {
    let server = small();
    let hold = || {
        let mut conn = Conn::open(&server);
        post(&mut conn, 65_000, 64_900);
        conn
    };
    let mut incomplete: Vec<Conn> = (0..16).map(|_| hold()).collect();
    // Smaller incomplete bodies use up some of the memory that is left.
    incomplete.extend((0..16).map(|_| {
        let mut conn = Conn::open(&server);
        post(&mut conn, 65_000, 200);
        conn
    }));
    // Waits until these connections count as stalled.
    server.await_uptime(4.0);
    for number in 0..10 {
        split_post(&server, &format!("{number} between the uploads"));
        incomplete.push(hold());
    }
    // New incomplete bodies keep coming during the publishes.
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| (0..100).map(|_| hold()).collect::<Vec<Conn>>());
        for number in 0..20 {
            split_post(&server, &format!("{number} during the uploads"));
        }
        attack.join().expect("the attack")
    });
}

#[test]
fn client_with_little_memory_is_not_ended_for_the_unacknowledged_messages_of_others() {
    let settings = "[limits]\nmessage_bytes = 65536\nbatch_bytes = 65536\noutbox_bytes = 65536\n\
        memory_bytes = 524288\n[[rule]]\nmatch = 'big'\nkeep = 'latest'\n";
    let server = Server::with_shards(1, settings);
    let mut deaf = connect_from(2, server.address());
    // MQTT 5: CONNECT and SUBSCRIBE with QoS 1. The client never sends a PUBACK.
    let packets =
        b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x03one\x82\x09\x00\x01\x00\x00\x03big\x01";
    deaf.write_all(packets).expect("sent");
    server.await_subscribers("big", 1);
    // Together with the memory that the shard has reserved ahead, this is more than seven eighths of the limit. The topic keeps only the
    // last message.
    for _ in 0..7 {
        publish(&server, "big", "x".repeat(58_000));
    }
    let send_half_of_a_post = |host, length: usize| {
        let mut conn = Conn::from_stream(connect_from(host, server.address()), &server);
        post(&mut conn, length, length / 2);
        std::thread::sleep(Duration::from_millis(50)); // the pace of the load
        conn
    };
    // Each address holds little, but all together hold more than the shard has reserved.
    let _others: Vec<Conn> = (40..68)
        .map(|host| send_half_of_a_post(host, 14_000))
        .collect();
    // The address of this client is not that of the publisher, for which the server holds many bytes.
    let mut honest_client = send_half_of_a_post(31, 15_000);
    let _smaller = send_half_of_a_post(30, 1_000);
    // The server may read the body in pieces. All of them together are still few bytes.
    for _ in 0..5 {
        honest_client.send([b'x'; 1_500]);
        std::thread::sleep(Duration::from_millis(20)); // the pace of the load
    }
    let answer = honest_client.response();
    assert_eq!(answer.status, 202, "{answer:?}");
}

#[test]
fn bytes_pipelined_after_polls_do_not_block_publishes() {
    let server = small();
    publish(&server, "kept", "x");
    let polls: Vec<Conn> = (0..200)
        .map(|n| {
            let mut conn = Conn::open(&server);
            let text = conn.request_bytes("GET", &format!("/sub/silent/{n}"), &[], b"");
            conn.send(text);
            conn.send(vec![b'x'; 7_000]);
            conn
        })
        .collect();
    server.await_subscribers("silent/199", 1);
    for number in 0..10 {
        split_post(&server, &number.to_string());
    }
    // Each poll is answered nevertheless.
    for (n, mut conn) in polls.into_iter().enumerate().skip(190) {
        once(&server, "POST", &format!("/pub/silent/{n}"), &[], "y");
        assert_eq!(conn.response().text(), "y");
    }
}
