//! A server of some shards in one thread, over sockets in memory with windows. Clients speak the meta
//! subprotocol.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::{Keep, Rule, Settings};
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Pace, Shard, ShardId, World};

pub const TOPICS: [&str; 2] = ["one", "three/x"];

/// The topics that a subscriber wants.
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

/// A socket's other end.
#[derive(Default)]
struct Socket {
    conn: Option<ConnId>,
    received: Vec<u8>,
    /// How much of it was read.
    read: usize,
    window: usize,
    wants_to_write: bool,
}

#[derive(Default)]
struct Sockets {
    sockets: Vec<Socket>,
    mail: VecDeque<(ShardId, Mail)>,
}

impl Io for Sockets {
    fn open(&mut self, link: Link, conn: ConnId) {
        self.sockets[link.0 as usize].conn = Some(conn);
    }
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        let socket = &mut self.sockets[link.0 as usize];
        let mut sent = 0;
        for part in parts {
            let taken = part.len().min(socket.window);
            socket.received.extend_from_slice(&part[..taken]);
            socket.window -= if socket.window == usize::MAX {
                0
            } else {
                taken
            };
            sent += taken;
            if taken < part.len() {
                break;
            }
        }
        sent
    }
    fn interest(&mut self, link: Link, _: ConnId, _: bool, write: bool) {
        self.sockets[link.0 as usize].wants_to_write = write;
    }
    fn close(&mut self, link: Link, _: Close) {
        self.sockets[link.0 as usize].conn = None;
    }
    fn post(&mut self, to: ShardId, mail: Mail) {
        self.mail.push_back((to, mail));
    }
}

/// A message in the meta subprotocol.
#[derive(Debug)]
pub struct Frame {
    pub lines: BTreeMap<String, String>,
    pub data: String,
}

pub struct Town {
    shards: Vec<(Shard, Sockets)>,
    now: Now,
    publisher: usize,
}

impl Town {
    pub fn new(shards: ShardId, page_messages: usize) -> Town {
        let rule = Rule {
            filter: "#".into(),
            keep: Keep::Latest,
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
        let now = Now {
            s: 1000,
            unix_s: 1_800_000_000,
        };
        let world = Arc::new(World {
            admission: Admission::new(&settings, 42),
            rules: Rules::new(&settings.rules),
            settings,
            shards,
            homes: shards,
            epoch: 7,
            seed: 42,
        });
        let shard = |id| {
            let mut shard = Shard::new(id, Arc::clone(&world), now);
            shard.set_pace(Pace {
                page_messages,
                ..Pace::default()
            });
            (shard, Sockets::default())
        };
        let mut town = Town {
            shards: (0..shards).map(shard).collect(),
            now,
            publisher: 0,
        };
        town.publisher = town.open(0);
        town
    }

    pub fn now_s(&self) -> u32 {
        self.now.unix_s
    }

    /// A connection to a shard: its socket's number times the shards, plus the shard's.
    fn open(&mut self, shard: usize) -> usize {
        let count = self.shards.len();
        let shard = shard % count;
        let (of, sockets) = &mut self.shards[shard];
        let link = sockets.sockets.len();
        sockets.sockets.push(Socket {
            window: usize::MAX,
            ..Socket::default()
        });
        let peer = Ipv4Addr::LOCALHOST.into();
        of.handle(Input::Accepted(Link(link as u32), peer), self.now, sockets);
        link * count + shard
    }

    fn socket(&mut self, conn: usize) -> &mut Socket {
        let count = self.shards.len();
        &mut self.shards[conn % count].1.sockets[conn / count]
    }

    fn receive(&mut self, conn: usize, mut bytes: Vec<u8>) {
        let id = self.socket(conn).conn.expect("it is open");
        let count = self.shards.len();
        let (shard, sockets) = &mut self.shards[conn % count];
        shard.handle(Input::Received(id, &mut bytes), self.now, sockets);
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
        self.receive(self.publisher, text.into_bytes());
    }

    pub fn subscribe(&mut self, shard: usize, want: Want, id: Option<&str>) -> usize {
        let conn = self.open(shard);
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
        self.receive(conn, text.into_bytes());
        conn
    }

    pub fn cut(&mut self, conn: usize) {
        let id = self.socket(conn).conn.expect("it is open");
        let count = self.shards.len();
        let (shard, sockets) = &mut self.shards[conn % count];
        shard.handle(Input::Closed(id), self.now, sockets);
    }

    /// The socket takes so many bytes more.
    pub fn window(&mut self, conn: usize, bytes: usize) {
        let socket = self.socket(conn);
        socket.window = bytes;
        if socket.wants_to_write && bytes > 0 {
            let id = socket.conn.expect("it is open");
            let count = self.shards.len();
            let (shard, sockets) = &mut self.shards[conn % count];
            shard.handle(Input::Writable(id), self.now, sockets);
        }
    }

    /// A turn of a shard, with all mail that waits for it.
    pub fn turn(&mut self, at: usize) {
        let at = at % self.shards.len();
        for from in 0..self.shards.len() {
            let mut kept = VecDeque::new();
            while let Some((to, mail)) = self.shards[from].1.mail.pop_front() {
                if to as usize == at {
                    let (shard, sockets) = &mut self.shards[at];
                    shard.handle(Input::Mail(mail), self.now, sockets);
                } else {
                    kept.push_back((to, mail));
                }
            }
            self.shards[from].1.mail.append(&mut kept);
        }
        let (shard, sockets) = &mut self.shards[at];
        shard.flush(self.now, sockets);
    }

    /// Turns until nobody has anything left to do.
    pub fn settle(&mut self) {
        loop {
            for at in 0..self.shards.len() {
                self.turn(at);
            }
            let busy = |(shard, sockets): &(Shard, Sockets)| {
                let held = shard.accounts();
                !sockets.mail.is_empty() || held.deliveries > 0 || held.waiting > 0
            };
            if !self.shards.iter().any(busy) {
                return;
            }
        }
    }

    pub fn wait_s(&mut self, seconds: u32) {
        self.now.s += seconds;
        self.now.unix_s += seconds;
        for (shard, sockets) in &mut self.shards {
            shard.handle(Input::Tick, self.now, sockets);
        }
        self.settle();
    }

    /// The whole frames that came since the last time.
    pub fn frames(&mut self, conn: usize) -> Vec<Frame> {
        let socket = self.socket(conn);
        if socket.read == 0 {
            let end = socket.received.windows(4).position(|w| w == b"\r\n\r\n");
            let Some(end) = end else { return Vec::new() };
            assert!(socket.received.starts_with(b"HTTP/1.1 101"));
            socket.read = end + 4;
        }
        let mut frames = Vec::new();
        while let Some(len) = whole(&socket.received[socket.read..]) {
            let frame = &socket.received[socket.read..socket.read + len];
            socket.read += len;
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

    /// Whether a frame has come in part; all whole ones are read.
    pub fn is_torn(&mut self, conn: usize) -> bool {
        let socket = self.socket(conn);
        socket.read < socket.received.len()
    }

    /// Nobody is there and time passes: all is given back.
    pub fn vanish(&mut self) {
        self.cut(self.publisher);
        self.settle();
        for seconds in [10_000, 10_000] {
            self.wait_s(seconds);
        }
        for (shard, _) in &self.shards {
            let held = shard.accounts();
            assert!(held.is_empty(), "{held:?}");
        }
    }
}

/// The length of the frame at the start, if it is whole.
fn whole(bytes: &[u8]) -> Option<usize> {
    let len = match *bytes.get(1)? {
        126 => 4 + usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])),
        127 => unreachable!("no message here is that long"),
        len => 2 + usize::from(len),
    };
    (bytes.len() >= len).then_some(len)
}
