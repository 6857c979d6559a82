//! No publish begins while there is no credit: whoever sends one then, on whatever connection and however, is
//! held, and answered when there is credit again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};

/// The home, and the shard with the publishers.
const HOME: usize = 0;
const SHARD: usize = 1;

#[derive(Default)]
struct Sockets {
    conns: BTreeMap<u32, ConnId>,
    reads: BTreeMap<u32, bool>,
    sent: BTreeMap<u32, Vec<u8>>,
    mail: Vec<Mail>,
}

impl Io for Sockets {
    fn open(&mut self, link: Link, conn: ConnId) {
        self.conns.insert(link.0, conn);
    }
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        let sent = self.sent.entry(link.0).or_default();
        parts.iter().for_each(|part| sent.extend_from_slice(part));
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, link: Link, _: ConnId, read: bool, _: bool) {
        self.reads.insert(link.0, read);
    }
    fn close(&mut self, link: Link, _: Close) {
        self.conns.remove(&link.0);
    }
    fn post(&mut self, _: ShardId, mail: Mail) {
        self.mail.push(mail);
    }
}

/// A home that does nothing before it is told to, and a shard whose publishes all go there.
struct Pair {
    shards: [Shard; 2],
    sockets: [Sockets; 2],
    now: Now,
    links: u32,
}

impl Pair {
    fn new() -> Pair {
        let mut settings = Settings::default();
        settings.limits.publish_credit_bytes = 0;
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            admission: Admission::new(&settings, 9),
            settings,
            shards: 2,
            homes: 1,
            epoch: 7,
            seed: 42,
        });
        let now = Now {
            s: 1,
            unix_s: 1_800_000_000,
        };
        Pair {
            shards: [0, 1].map(|n| Shard::new(n, world.clone(), now)),
            sockets: Default::default(),
            now,
            links: 0,
        }
    }

    /// A new connection.
    fn open(&mut self) -> u32 {
        self.links += 1;
        let (link, peer) = (self.links, [127, 0, 0, 1].into());
        self.handle(Input::Accepted(Link(link), peer));
        link
    }

    fn handle(&mut self, input: Input<'_>) {
        self.shards[SHARD].handle(input, self.now, &mut self.sockets[SHARD]);
    }

    fn receive(&mut self, link: u32, bytes: &[u8]) {
        let conn = self.sockets[SHARD].conns[&link];
        self.handle(Input::Received(conn, &mut bytes.to_vec()));
    }

    /// A connection that has sent these bytes.
    fn send(&mut self, bytes: &[u8]) -> u32 {
        let link = self.open();
        self.receive(link, bytes);
        link
    }

    /// A turn of a shard, after which its mail has arrived; the messages that were asked of the home.
    fn turn(&mut self, n: usize) -> usize {
        self.shards[n].flush(self.now, &mut self.sockets[n]);
        let mut messages = 0;
        for mail in std::mem::take(&mut self.sockets[n].mail) {
            messages += mail.bytes.windows(7).filter(|w| w == b"message").count();
            self.shards[1 - n].handle(Input::Mail(mail), self.now, &mut self.sockets[1 - n]);
        }
        messages
    }

    fn text(&self, link: u32) -> String {
        let sent = self.sockets[SHARD].sent.get(&link);
        String::from_utf8_lossy(sent.map_or(&[], Vec::as_slice)).into_owned()
    }

    fn reads(&self, link: u32) -> bool {
        self.sockets[SHARD].reads.get(&link) != Some(&false)
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

/// A WebSocket that publishes, with acknowledgements, and so many frames at once behind its request.
fn frames(count: usize) -> Vec<u8> {
    let mut bytes = b"GET /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
        Sec-WebSocket-Protocol: ws+meta.nchan\r\n\r\n"
        .to_vec();
    for _ in 0..count {
        // Text, masked with zeros.
        bytes.extend([0x81, 0x87, 0, 0, 0, 0]);
        bytes.extend(b"message");
    }
    bytes
}

#[test]
fn who_comes_anew_is_held_until_there_is_credit() {
    let mut pair = Pair::new();
    let first = pair.send(&post("message", ""));
    assert_eq!(pair.turn(SHARD), 1);
    assert!(!pair.reads(first), "it has published");
    // All of them come while the home owes the credit.
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
    // What is no publish goes on, and waiting for credit is nobody's fault.
    assert!(pair.reads(asks));
    for _ in 0..300 {
        pair.now.s += 1;
        pair.handle(Input::Tick);
        assert_eq!(pair.turn(SHARD), 0);
    }
    let mut published = 0;
    for _ in 0..200 {
        pair.turn(HOME);
        let messages = pair.turn(SHARD);
        // A batch is carried out whole, everything else one by one.
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
    assert_eq!(pair.shards[SHARD].accounts().receive_bytes, 0);
}

#[test]
fn who_sends_no_more_is_answered_all_the_same() {
    let mut pair = Pair::new();
    pair.send(&post("message", ""));
    assert_eq!(pair.turn(SHARD), 1);
    pair.turn(HOME);
    // The next one of the same connection waits for an answer, and the peer closes its half meanwhile.
    let link = pair.send(&[post("message", ""), post("message", "")].concat());
    let conn = pair.sockets[SHARD].conns[&link];
    pair.handle(Input::End(conn));
    for _ in 0..20 {
        pair.turn(SHARD);
        pair.turn(HOME);
    }
    assert_eq!(pair.text(link).matches("HTTP/1.1 202").count(), 2);
    assert!(!pair.sockets[SHARD].conns.contains_key(&link), "it is over");
}

#[test]
fn who_is_held_and_leaves_leaves_nothing() {
    let mut pair = Pair::new();
    pair.send(&post("message", ""));
    pair.turn(SHARD);
    for bytes in [post("message", ""), frames(3), batch(2)] {
        let link = pair.send(&bytes);
        let conn = pair.sockets[SHARD].conns[&link];
        pair.handle(Input::Closed(conn));
    }
    for _ in 0..5 {
        pair.turn(HOME);
        assert_eq!(pair.turn(SHARD), 0);
    }
    let accounts = pair.shards[SHARD].accounts();
    assert_eq!((accounts.receive_bytes, accounts.spills), (0, 0));
}
