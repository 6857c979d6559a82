//! A server of some shards in one thread, driven as the server's loop drives them (inputs, then a
//! flush), over sockets in memory that allocate nothing themselves.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Pace, Shard, ShardId, World};

/// Sockets in memory: they take everything and remember how much.
#[derive(Default)]
struct Sockets {
    conns: Vec<ConnId>,
    writes: u64,
    bytes: u64,
    mail: VecDeque<(ShardId, Mail)>,
}

impl Io for Sockets {
    fn open(&mut self, _: Link, conn: ConnId) {
        self.conns.push(conn);
    }
    fn send(&mut self, _: Link, parts: &[&[u8]]) -> usize {
        let taken = parts.iter().map(|part| part.len()).sum::<usize>();
        self.writes += 1;
        self.bytes += taken as u64;
        taken
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, link: Link, how: Close) {
        panic!("nobody is let go here, but {link:?} is, {how:?}");
    }
    fn post(&mut self, to: ShardId, mail: Mail) {
        self.mail.push_back((to, mail));
    }
}

/// A server of some shards, in one thread.
pub struct Town {
    shards: Vec<(Shard, Sockets)>,
    received: Vec<u8>,
}

const NOW: Now = Now {
    s: 1,
    unix_s: 1_800_000_000,
};

/// Turns whose frames a home keeps under way: few, so that its lists are soon as long as they become.
pub const TURNS_UNDER_WAY: usize = 4;

impl Town {
    pub fn new(shards: ShardId, rule: Rule) -> Town {
        let settings = Settings {
            rules: vec![rule],
            ..Settings::default()
        };
        let rules = Rules::new(&settings.rules);
        let admission = Admission::new(&settings, 42);
        let world = Arc::new(World {
            admission,
            settings,
            rules,
            shards,
            homes: shards,
            epoch: 7,
            seed: 42,
        });
        let shard = |id| {
            let mut sockets = Sockets::default();
            sockets.conns.reserve(200_000);
            sockets.mail.reserve(64);
            let mut shard = Shard::new(id, Arc::clone(&world), NOW);
            shard.set_pace(Pace {
                turns_under_way: TURNS_UNDER_WAY,
                ..Pace::default()
            });
            (shard, sockets)
        };
        Town {
            shards: (0..shards).map(shard).collect(),
            received: Vec::with_capacity(1 << 20),
        }
    }

    /// A connection that has sent `request`.
    pub fn open(&mut self, at: usize, request: &str) -> ConnId {
        let (shard, sockets) = &mut self.shards[at];
        let link = Link(sockets.conns.len() as u32);
        shard.handle(
            Input::Accepted(link, Ipv4Addr::LOCALHOST.into()),
            NOW,
            sockets,
        );
        let conn = *sockets.conns.last().expect("it was opened");
        self.receive(at, conn, request.as_bytes());
        self.settle();
        conn
    }

    /// Bytes of a peer. They are copied, since a shard may change what it is given.
    pub fn receive(&mut self, at: usize, conn: ConnId, bytes: &[u8]) {
        self.received.clear();
        self.received.extend_from_slice(bytes);
        let (shard, sockets) = &mut self.shards[at];
        shard.handle(Input::Received(conn, &mut self.received), NOW, sockets);
    }

    /// Turns until nobody has anything left to do.
    pub fn settle(&mut self) {
        loop {
            let mut busy = false;
            for at in 0..self.shards.len() {
                let (shard, sockets) = &mut self.shards[at];
                busy |= shard.flush(NOW, sockets);
                while let Some((to, mail)) = self.shards[at].1.mail.pop_front() {
                    let (shard, sockets) = &mut self.shards[to as usize];
                    shard.handle(Input::Mail(mail), NOW, sockets);
                    busy = true;
                }
            }
            if !busy {
                return;
            }
        }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// How often something was written to a socket.
    pub fn writes(&self) -> u64 {
        self.shards.iter().map(|(_, sockets)| sockets.writes).sum()
    }

    /// How many bytes were written to sockets.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|(_, sockets)| sockets.bytes).sum()
    }
}

/// A rule for all topics that keeps so many messages.
pub fn keeping(log_messages: u32) -> Rule {
    Rule {
        filter: "#".into(),
        log_messages,
        ..Rule::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    WebSocket,
    Events,
    LongPoll,
    Deflated,
    /// `ws+meta.nchan`.
    Meta,
    /// A WebSocket whose messages are JSON objects.
    Envelope,
}

impl Transport {
    pub const ALL: [Transport; 6] = [
        Transport::WebSocket,
        Transport::Events,
        Transport::LongPoll,
        Transport::Deflated,
        Transport::Meta,
        Transport::Envelope,
    ];
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// A request that subscribes.
pub fn subscribe(transport: Transport, topic: &str) -> String {
    let (query, upgrade, field) = match transport {
        Transport::WebSocket => ("", UPGRADE, ""),
        Transport::Events => ("", "", "Accept: text/event-stream\r\n"),
        Transport::LongPoll => ("?since=live", "", ""),
        Transport::Deflated => (
            "",
            UPGRADE,
            "Sec-WebSocket-Extensions: permessage-deflate\r\n",
        ),
        Transport::Meta => ("", UPGRADE, "Sec-WebSocket-Protocol: ws+meta.nchan\r\n"),
        Transport::Envelope => ("?envelope=json", UPGRADE, ""),
    };
    format!("GET /sub/{topic}{query} HTTP/1.1\r\nHost: localhost\r\n{upgrade}{field}\r\n")
}

/// Data of a message.
pub const MESSAGE_BYTES: usize = 512;

/// A message of so many bytes as one request.
pub fn post(topic: &str) -> Vec<u8> {
    let data = "x".repeat(MESSAGE_BYTES);
    format!(
        "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MESSAGE_BYTES}\r\n\r\n{data}"
    )
    .into_bytes()
}
