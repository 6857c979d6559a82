//! Tests backpressure: a shard without credit at a home (the part of a shard that keeps topics) begins no publish. A client that publishes meanwhile, over
//! any protocol, waits for credit and then gets its answer.

use crore_broker::settings::Settings;
use crore_broker::{Input, TurnLimits};
use support::{NOW, TestServer};

mod support;

/// The shard with the home, and the shard with the publishers.
const HOME: usize = 0;
const SHARD: usize = 1;

/// Two shards. One has the home, and runs only when the test calls it. All publishes of the other go to that home.
struct Pair(TestServer);

impl Pair {
    fn new() -> Pair {
        let mut settings = Settings::default();
        settings.limits.publish_credit_bytes = 0;
        let world = support::world(settings, 2, 1);
        Pair(TestServer::new(&world, TurnLimits::default(), NOW))
    }

    /// A new connection.
    fn open(&mut self) -> usize {
        self.0.open(SHARD)
    }

    fn receive(&mut self, conn: usize, bytes: &[u8]) {
        self.0.send(conn, bytes);
    }

    /// A connection that has sent these bytes.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let conn = self.open();
        self.receive(conn, bytes);
        conn
    }

    /// Runs one turn (one round of the event loop) of a shard, and delivers its mail. Returns the number of publishes that the home
    /// received.
    fn turn(&mut self, n: usize) -> usize {
        self.0.flush(n);
        let asks = |bytes: &[u8]| bytes.windows(7).filter(|w| w == b"message").count();
        let mail = &self.0.io[n].mail;
        let messages = mail.iter().map(|(_, mail)| asks(&mail.bytes)).sum();
        self.0.deliver_mail(1 - n);
        messages
    }

    fn text(&self, conn: usize) -> String {
        String::from_utf8_lossy(self.0.received(conn)).into_owned()
    }

    fn reads(&mut self, conn: usize) -> bool {
        self.0.socket(conn).is_read
    }
}

fn post(body: &str, fields: &str) -> Vec<u8> {
    let len = body.len();
    format!("POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n{body}")
        .into_bytes()
}

fn batch(lines: usize) -> Vec<u8> {
    let body = "{\"topic\":\"t\",\"data\":\"message\"}\n".repeat(lines);
    let len = body.len();
    format!("POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {len}\r\n\r\n{body}")
        .into_bytes()
}

/// A WebSocket request that publishes with acknowledgements, directly followed by this number of frames.
fn frames(count: usize) -> Vec<u8> {
    let mut bytes = b"GET /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
        Sec-WebSocket-Protocol: ws+meta.nchan\r\n\r\n"
        .to_vec();
    for _ in 0..count {
        // A text frame, masked with zeros.
        bytes.extend([0x81, 0x87, 0, 0, 0, 0]);
        bytes.extend(b"message");
    }
    bytes
}

#[test]
fn new_publisher_waits_until_there_is_credit() {
    let mut pair = Pair::new();
    let first = pair.send(&post("message", ""));
    assert_eq!(pair.turn(SHARD), 1);
    assert!(!pair.reads(first), "it has published");
    // All these requests arrive while there is no credit.
    let one = pair.send(&post("message", ""));
    let two = pair.send(&[post("message", ""), post("message", "")].concat());
    let lines = pair.send(&batch(3));
    let socket = pair.send(&frames(4));
    let asks = pair.send(b"GET /pub?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let chunked = pair.open();
    pair.receive(chunked, b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nmes");
    pair.receive(chunked, b"sage\r\n0\r\n\r\n");
    assert_eq!(pair.turn(SHARD), 0, "nothing was published");
    for held in [one, two, lines, socket, chunked] {
        assert!(!pair.reads(held), "{held} is held");
    }
    // Other requests continue, and a connection that waits for credit does not time out.
    assert!(pair.reads(asks));
    for _ in 0..300 {
        pair.0.now.s += 1;
        pair.0.handle(SHARD, Input::Tick);
        assert_eq!(pair.turn(SHARD), 0);
    }
    let mut published = 0;
    for _ in 0..200 {
        pair.turn(HOME);
        let messages = pair.turn(SHARD);
        // A batch is published as a whole, and other publishes one by one.
        assert!(messages <= 3, "{messages} at once");
        published += messages;
    }
    assert_eq!(published, 1 + 2 + 3 + 4 + 1);
    for (link, count) in [(first, 1), (one, 1), (two, 2), (chunked, 1)] {
        let text = pair.text(link);
        assert_eq!(
            text.matches("HTTP/1.1 202").count(),
            count,
            "{link}: {text}"
        );
    }
    let answer = pair.text(lines);
    assert!(
        answer.contains("{\"published\": 3, \"failed\": []}"),
        "{answer}"
    );
    assert_eq!(pair.text(socket).matches("status: 202").count(), 4);
    for link in [first, one, two, lines, socket, chunked] {
        assert!(pair.reads(link), "{link} is read again");
    }
    assert_eq!(pair.0.shards[SHARD].accounts().receive_bytes, 0);
}

#[test]
fn publisher_that_closed_its_side_is_still_answered() {
    let mut pair = Pair::new();
    pair.send(&post("message", ""));
    assert_eq!(pair.turn(SHARD), 1);
    pair.turn(HOME);
    // The next publish of the same connection waits for an answer. Meanwhile the peer closes its sending side.
    let link = pair.send(&[post("message", ""), post("message", "")].concat());
    pair.0.end(link);
    for _ in 0..20 {
        pair.turn(SHARD);
        pair.turn(HOME);
    }
    assert_eq!(pair.text(link).matches("HTTP/1.1 202").count(), 2);
    assert!(!pair.0.is_open(link), "it is over");
}

#[test]
fn publisher_that_leaves_while_it_waits_for_credit_leaves_nothing() {
    let mut pair = Pair::new();
    pair.send(&post("message", ""));
    pair.turn(SHARD);
    for bytes in [post("message", ""), frames(3), batch(2)] {
        let link = pair.send(&bytes);
        pair.0.cut(link);
    }
    for _ in 0..5 {
        pair.turn(HOME);
        assert_eq!(pair.turn(SHARD), 0);
    }
    let accounts = pair.0.shards[SHARD].accounts();
    assert_eq!((accounts.receive_bytes, accounts.spills), (0, 0));
}
