//! A server of several shards in one thread, over sockets in memory with limited windows. Its clients use the meta subprotocol.

use std::collections::BTreeMap;

use crore_broker::settings::{RetentionMode, Rule, Settings};
use crore_broker::{ShardId, TurnLimits};

use crate::support::{self, NOW};

pub const TOPICS: [&str; 2] = ["one", "three/x"];

/// The topics of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    First,
    Second,
    Both,
}

impl Want {
    pub fn has(self, topic: usize) -> bool {
        match self {
            Want::First => topic == 0,
            Want::Second => topic == 1,
            Want::Both => true,
        }
    }
}

/// A message in the meta subprotocol.
#[derive(Debug)]
pub struct Frame {
    pub lines: BTreeMap<String, String>,
    pub data: String,
}

pub struct TestServer {
    inner: support::TestServer,
    publisher: usize,
    /// Number of bytes that the test has read, by connection.
    read_bytes: BTreeMap<usize, usize>,
}

impl TestServer {
    pub fn new(shards: ShardId, page_messages: usize) -> TestServer {
        let rule = Rule {
            filter: "#".into(),
            keep: RetentionMode::Latest,
            log_messages: 1,
            ..Rule::default()
        };
        let mut settings = Settings {
            rules: vec![rule],
            ..Settings::default()
        };
        settings.heartbeat.interval_s = 0;
        for timeout_s in [
            &mut settings.timeouts.head_s,
            &mut settings.timeouts.body_s,
            &mut settings.timeouts.keep_alive_s,
        ] {
            *timeout_s = 1_000_000;
        }
        let turn_limits = TurnLimits {
            page_messages,
            ..TurnLimits::default()
        };
        let mut inner =
            support::TestServer::new(&support::world(settings, shards, shards), turn_limits, NOW);
        let publisher = inner.open(0);
        TestServer {
            inner,
            publisher,
            read_bytes: BTreeMap::new(),
        }
    }

    pub fn now_s(&self) -> u32 {
        self.inner.now.unix_s
    }

    pub fn publish(&mut self, topic: usize, key: &str, ttl_s: Option<u32>, number: usize) {
        let key = if key.is_empty() {
            String::new()
        } else {
            format!("Crore-Key: {key}\r\n")
        };
        let ttl = ttl_s.map_or(String::new(), |s| format!("Crore-TTL: {s}\r\n"));
        let (topic, data) = (TOPICS[topic], number.to_string());
        let text = format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n{key}{ttl}Content-Length: {}\r\n\r\n{data}",
            data.len()
        );
        self.inner.send(self.publisher, text);
    }

    pub fn subscribe(&mut self, shard: usize, want: Want, id: Option<&str>) -> usize {
        let conn = self.inner.open(shard % self.inner.shards.len());
        let names = (0..2).filter(|n| want.has(*n));
        let names: Vec<_> = names.map(|n| format!("topic={}", TOPICS[n])).collect();
        let since = id.map_or(String::new(), |id| format!("&since={id}"));
        let text = format!(
            "GET /sub?{}{since} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: ws+meta.nchan\r\n\r\n",
            names.join("&")
        );
        self.inner.send(conn, text);
        conn
    }

    pub fn cut(&mut self, conn: usize) {
        self.inner.cut(conn);
    }

    /// The socket accepts this number of further bytes.
    pub fn set_window(&mut self, conn: usize, bytes: usize) {
        self.inner.set_window(conn, bytes);
    }

    /// Runs a turn (one run of the event loop) of a shard, with all mail that waits for it.
    pub fn run_turn(&mut self, shard: usize) {
        let shard = shard % self.inner.shards.len();
        self.inner.deliver_mail(shard);
        self.inner.flush(shard);
    }

    /// Runs turns until nothing is left to do.
    pub fn settle(&mut self) {
        self.inner.settle();
    }

    pub fn advance_and_tick_s(&mut self, seconds: u32) {
        self.inner.advance_and_tick_s(seconds);
        self.settle();
    }

    /// The complete frames since the last call.
    pub fn frames(&mut self, conn: usize) -> Vec<Frame> {
        let received = self.inner.received(conn);
        let read_bytes = self.read_bytes.entry(conn).or_default();
        if *read_bytes == 0 {
            let end = received.windows(4).position(|w| w == b"\r\n\r\n");
            let Some(end) = end else { return Vec::new() };
            assert!(received.starts_with(b"HTTP/1.1 101"));
            *read_bytes = end + 4;
        }
        let mut frames = Vec::new();
        while let Some(len) = complete_frame_len(&received[*read_bytes..]) {
            let frame = &received[*read_bytes..*read_bytes + len];
            *read_bytes += len;
            assert_eq!(frame[0], 0x81, "a text frame");
            let start = if frame[1] < 126 { 2 } else { 4 };
            let text = std::str::from_utf8(&frame[start..]).expect("text");
            let (head, data) = text.split_once("\n\n").expect("an empty line");
            let lines = head.lines().map(|line| {
                let (name, value) = line.split_once(": ").expect("a line");
                (name.to_owned(), value.to_owned())
            });
            frames.push(Frame {
                lines: lines.collect(),
                data: data.to_owned(),
            });
        }
        frames
    }

    /// Whether a frame has arrived in part, after all complete ones are read.
    pub fn has_partial_frame(&self, conn: usize) -> bool {
        let read_bytes = self.read_bytes.get(&conn).copied().unwrap_or(0);
        read_bytes < self.inner.received(conn).len()
    }

    /// Deletes the topics (latest values do not expire), closes all connections, and lets time pass. Then all memory must be released.
    pub fn end_and_check_memory(&mut self) {
        self.settle();
        for topic in TOPICS {
            let request = format!("DELETE /pub?topic={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            self.inner.send(self.publisher, request);
            self.settle();
        }
        self.cut(self.publisher);
        self.settle();
        for seconds in [10_000, 10_000] {
            self.advance_and_tick_s(seconds);
        }
        for shard in &self.inner.shards {
            let held = shard.accounts();
            assert!(held.is_empty(), "{held:?}");
        }
    }
}

/// The length of the first frame, if it is complete.
fn complete_frame_len(bytes: &[u8]) -> Option<usize> {
    let len = match *bytes.get(1)? {
        126 => 4 + usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])),
        127 => unreachable!("no message here is that long"),
        len => 2 + usize::from(len),
    };
    (bytes.len() >= len).then_some(len)
}
