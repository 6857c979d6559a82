//! Tests many connections that send random requests and end at random places. The server must neither crash nor stop serving other clients.
//! A failure names its seed; `CRORE_TEST_SEED` runs one seed alone.

use crate::support::Server;
use crate::support::http::{Conn, publish};
use crate::support::ws::{
    BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, RSV1, TEXT, Ws, handshake, masked,
};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Number of seeds, which are the same in each run. It is enough to try every pair of steps.
const SEEDS: u64 = 40;

/// Connections of one seed. Several of them are open at a time.
const CONNECTIONS: usize = 60;

/// The topics. They are few, so that many connections use the same one.
const TOPICS: [&str; 4] = ["a", "b", "c/d", "e%20f"];

/// xorshift64*: repeatable, and good enough to choose steps.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }
}

fn request(random: &mut Random, conn: &Conn) -> Vec<u8> {
    let topic = random.pick(&TOPICS);
    let since = random.pick(&[
        "",
        "?since=oldest",
        "?since=live",
        "?since=-2",
        "?last_event_id=1-1",
        "?since=zz",
    ]);
    let kind = random.pick(&[
        "text/plain",
        "application/octet-stream",
        "application/x-ndjson",
    ]);
    let several = "/sub?topic=a&topic=b&topic=c/d";
    let body = vec![b'x'; random.pick(&[0, 1, 5, 300, 20_000])];
    match random.below(12) {
        0..=2 => conn.request_bytes(
            "POST",
            &format!("/pub/{topic}"),
            &[("Content-Type", kind)],
            &body,
        ),
        3 => {
            let lines = format!(
                "{{\"topic\":\"a\",\"data\":\"y\"}}\n{{\"topic\":\"{topic}\",\"data\":1}}\nzzz\n"
            );
            conn.request_bytes(
                "POST",
                "/pub",
                &[("Content-Type", "application/x-ndjson")],
                lines.as_bytes(),
            )
        }
        4 => conn.request_bytes("DELETE", &format!("/pub/{topic}"), &[], b""),
        5 => conn.request_bytes("PUT", &format!("/pub/{topic}"), &[], b""),
        6 => conn.request_bytes(
            random.pick(&["GET", "HEAD", "OPTIONS", "PATCH"]),
            &format!("/pub/{topic}"),
            &[],
            b"",
        ),
        7 => conn.request_bytes("HEAD", &format!("/sub/{topic}{since}"), &[], b""),
        8 => conn.request_bytes(
            "GET",
            several,
            &[("Accept", random.pick(&["*/*", "text/event-stream"]))],
            b"",
        ),
        9 => conn.request_bytes(
            "GET",
            &format!("/sub/{topic}{since}"),
            &[("Accept", "text/event-stream")],
            b"",
        ),
        _ => conn.request_bytes("GET", &format!("/sub/{topic}{since}"), &[], b""),
    }
}

fn frames(random: &mut Random) -> Vec<u8> {
    let payload = vec![random.pick(b"a{\xff"); random.pick(&[0, 1, 100, 126, 5000, 70_000])];
    match random.below(9) {
        0..=3 => masked(FIN | random.pick(&[TEXT, BINARY]), &payload),
        4 => [
            masked(TEXT, b"frag"),
            masked(FIN | PING, b"p"),
            masked(FIN | CONTINUATION, b"ment"),
        ]
        .concat(),
        5 => masked(FIN | random.pick(&[PING, PONG]), b"beat"),
        6 => masked(FIN | CLOSE, &1000_u16.to_be_bytes()),
        7 => masked(random.below(256) as u8, &payload),
        _ => masked(
            FIN | RSV1 | TEXT,
            &[0xca, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
        ),
    }
}

/// The bytes that one connection sends.
fn script(random: &mut Random, conn: &Conn) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(5) {
        bytes.extend(request(random, conn));
    }
    if random.below(2) == 0 {
        let door = random.pick(&["/sub", "/pub", "/pubsub"]);
        let target = match random.below(4) {
            0 => format!("{door}?topic=a&topic=b"),
            _ => format!(
                "{door}/{}?since={}",
                random.pick(&TOPICS),
                random.pick(&["oldest", "live", "-1"])
            ),
        };
        let offer = [
            ("Sec-WebSocket-Protocol", "ws+meta.nchan"),
            ("Sec-WebSocket-Extensions", "permessage-deflate"),
        ];
        let from = random.below(3);
        bytes.extend(conn.request_bytes(
            random.pick(&["GET", "GET", "GET", "HEAD"]),
            &target,
            &handshake(&offer[from.min(2)..]),
            b"",
        ));
        for _ in 0..random.below(6) {
            bytes.extend(frames(random));
        }
    }
    if random.below(6) == 0 && !bytes.is_empty() {
        let keep = random.below(bytes.len());
        bytes.truncate(keep);
    }
    bytes
}

fn run(seed: u64) {
    // Polls time out soon. While a poll waits, the server does not read the bytes behind it, so it does not notice that the client has
    // closed.
    let server = Server::with(
        "[limits]\noutbox_bytes = 60000\nmessage_bytes = 60000\n[deflate]\nmin_bytes = 10\n\
         [timeouts]\nhead_s = 1\nbody_s = 1\nkeep_alive_s = 1\ndrain_s = 1\n\
         [[rule]]\nmatch = \"a\"\nlog_messages = 2\nconcurrency = \"last\"\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"b\"\nlog_messages = 0\nslow = \"skip\"\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"c/#\"\nconcurrency = \"first\"\npublisher_creates = true\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\n",
    );
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let mut open: Vec<Conn> = Vec::new();
    for _ in 0..CONNECTIONS {
        let conn = Conn::open(&server);
        let bytes = script(&mut random, &conn);
        conn.stream()
            .set_write_timeout(Some(Duration::from_millis(300)))
            .expect("a timeout");
        let mut unsent = bytes.as_slice();
        while !unsent.is_empty() {
            let (now, later) = unsent.split_at(1 + random.below(unsent.len().min(3000)));
            if conn.stream().write_all(now).is_err() {
                break; // the server has closed the connection, or reads no more of it
            }
            unsent = later;
            if random.below(3) == 0 {
                std::thread::sleep(Duration::from_micros(500)); // the pace of the load
            }
        }
        match random.below(5) {
            0 => drop(conn),
            1 => {
                let _ = conn.stream().shutdown(Shutdown::Write);
                open.push(conn);
            }
            _ => open.push(conn),
        }
        if open.len() > 20 {
            let index = random.below(open.len());
            drain(open.swap_remove(index).stream());
        }
    }
    open.clear();
    for topic in ["a", "b", "e%20f"] {
        server.await_subscribers(topic, 0);
    }
    // This topic has no other publisher: messages of clients that have left may still arrive at the common topics.
    let mut healthy = Ws::open(&server, "/sub/whole", &[]);
    server.await_subscribers("whole", 1);
    assert_eq!(publish(&server, "whole", "still here").status, 201);
    assert_eq!(healthy.message().text(), "still here");
}

/// Reads the bytes that have arrived, so that the connection closes with FIN. A connection with unread bytes closes with a reset.
fn drain(mut stream: &TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
    while matches!(stream.read(&mut [0; 8192]), Ok(1..)) {}
}

#[test]
fn random_requests_in_random_order_do_not_harm_the_server() {
    let only = std::env::var("CRORE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut failed = Vec::new();
    for seed in only.map_or(1..SEEDS + 1, |seed: u64| seed..seed + 1) {
        if crate::support::attempt(|| run(seed)).is_none() {
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "CRORE_TEST_SEED of {failed:?}");
}
