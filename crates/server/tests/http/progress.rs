//! What has begun must come on at a rate: a byte now and then holds no connection, and no memory that others need.

use crate::conn::{Conn, info, once, publish};
use crate::support::Server;
use crate::ws::{FIN, TEXT, Ws, handshake, head};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longer than the settings of these tests allow by far.
const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: &str = "[timeouts]\nbody_s = 1\n";

/// Sends a byte each fifth of a second; the seconds until the peer closes, if it does.
fn dribbled(stream: &mut TcpStream) -> Option<u64> {
    let began = Instant::now();
    let wait = Some(Duration::from_millis(200));
    stream.set_read_timeout(wait).expect("a timeout");
    let mut bytes = [0; 1000];
    while began.elapsed() < PATIENCE {
        let sent = stream.write(b"x");
        match (sent, stream.read(&mut bytes)) {
            (Err(_), _) | (_, Ok(0)) => return Some(began.elapsed().as_secs()),
            (_, Err(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return Some(began.elapsed().as_secs());
            }
            _ => {}
        }
    }
    None
}

fn post(conn: &mut Conn, length: usize, first: usize) {
    conn.send(format!(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    ));
    conn.send(vec![b'x'; first]);
}

#[test]
fn a_byte_now_and_then_holds_nothing() {
    let server = Server::with(SHORT);
    let mut body = Conn::open(&server);
    post(&mut body, 100_000, 99_000);
    let mut chunk = Conn::open(&server);
    chunk.send(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
    );
    let mut frame = Ws::open(&server, "/pub/a", &[]);
    frame.conn.send(head(FIN | TEXT, 100_000, true));
    let mut tcp = TcpStream::connect(server.address()).expect("a connection");
    // MQTT 5 CONNECT without a keep alive, then the beginning of a PUBLISH.
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
    framed.send(crate::ws::masked(FIN | crate::ws::BINARY, &connect));
    framed.send(crate::ws::masked(
        FIN | crate::ws::BINARY,
        b"\x30\xff\xff\x03\x00\x01a\x00",
    ));
    let streams = [
        ("a body", body.stream()),
        ("a chunked body", chunk.stream()),
        ("a frame", frame.conn.stream()),
        ("a packet", &tcp),
    ];
    let held: Vec<_> = std::thread::scope(|scope| {
        let waits: Vec<_> = streams
            .into_iter()
            .map(|(what, stream)| {
                let mut stream = stream.try_clone().expect("a second handle");
                (what, scope.spawn(move || dribbled(&mut stream)))
            })
            .collect();
        let mut held: Vec<_> = waits
            .into_iter()
            .filter_map(|(what, wait)| wait.join().expect("a thread").is_none().then_some(what))
            .collect();
        // A frame for each byte, and each of them cut in two.
        let began = Instant::now();
        let one = crate::ws::masked(FIN | crate::ws::BINARY, b"x");
        let mut cut = one[..3].to_vec();
        while began.elapsed() < PATIENCE {
            if framed.stream().write_all(&cut).is_err() {
                return held;
            }
            cut = [&one[3..], &one[..3]].concat();
            std::thread::sleep(Duration::from_millis(200));
        }
        held.push("a packet in frames");
        held
    });
    assert!(held.is_empty(), "{held:?} held for {PATIENCE:?}");
}

#[test]
fn who_comes_on_is_never_cut_off() {
    let server = Server::with(SHORT);
    let mut slow = Conn::open(&server);
    let mut frames = Ws::open(&server, "/pub/frames", &[]);
    post(&mut slow, 20_000, 0);
    let frame = crate::ws::masked(FIN | TEXT, &[b'x'; 20_000]);
    frames.conn.send(&frame[..frame.len() - 20_000]);
    // Several times the allowance, at twice the rate and more.
    for n in 0..20 {
        slow.send([b'x'; 1_000]);
        let at = frame.len() - 20_000 + n * 1_000;
        frames.conn.send(&frame[at..at + 1_000]);
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(slow.response().status, 202);
    crate::conn::await_subscribers(&server, "frames", 0);
    assert_eq!(info(&server, "frames")["messages"], 1);
}

/// A server of one shard whose received bytes are soon too many.
fn small() -> Server {
    Server::with_shards(
        1,
        "[limits]\nmessage_bytes = 65536\nbatch_bytes = 65536\noutbox_bytes = 65536\nmemory_bytes = 524288\n",
    )
}

/// A publish in two pieces with some time between them.
fn split_post(server: &Server, number: usize) -> u16 {
    let mut conn = Conn::open(server);
    post(&mut conn, 2_000, 1_000);
    std::thread::sleep(Duration::from_millis(20));
    conn.send([b'x'; 1_000]);
    let status = conn.response().status;
    assert!([201, 202].contains(&status), "publish {number}: {status}");
    status
}

#[test]
fn half_sent_bodies_do_not_shut_out_those_who_send_theirs() {
    let server = small();
    let hold = || {
        let mut conn = Conn::open(&server);
        post(&mut conn, 65_000, 64_900);
        conn
    };
    let mut held: Vec<Conn> = (0..16).map(|_| hold()).collect();
    // What they leave is less than a piece of a publish.
    held.extend((0..16).map(|_| {
        let mut conn = Conn::open(&server);
        post(&mut conn, 65_000, 200);
        conn
    }));
    std::thread::sleep(Duration::from_secs(3));
    for number in 0..10 {
        split_post(&server, number);
        held.push(hold());
    }
    // While they still come.
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| (0..100).map(|_| hold()).collect::<Vec<Conn>>());
        for number in 0..20 {
            split_post(&server, number);
        }
        attack.join().expect("the attack")
    });
}

#[test]
fn junk_behind_polls_does_not_shut_out_those_who_send_theirs() {
    let server = small();
    publish(&server, "kept", "x");
    let polls: Vec<Conn> = (0..200)
        .map(|n| {
            let mut conn = Conn::open(&server);
            let text = conn.text_of("GET", &format!("/sub/silent/{n}"), &[], b"");
            conn.send(text);
            conn.send(vec![b'x'; 7_000]);
            conn
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    for number in 0..10 {
        split_post(&server, number);
    }
    // Each poll is answered all the same.
    for (n, mut conn) in polls.into_iter().enumerate().skip(190) {
        once(&server, "POST", &format!("/pub/silent/{n}"), &[], "y");
        assert_eq!(conn.response().text(), "y");
    }
}
