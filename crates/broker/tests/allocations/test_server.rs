//! A server of several shards in one thread, for tests of allocations. It runs like the real server's loop (inputs, then a flush). Its
//! sockets are in memory and do not allocate.

use crore_broker::settings::{Rule, Settings};
use crore_broker::{ConnId, ShardId, TurnLimits};

use crate::support::{self, NOW};

/// A server with its shards in one thread.
pub struct TestServer(support::TestServer);

/// Maximum of turns (runs of a shard's event loop) whose frames may be in flight: few, so that lists soon reach their final length.
pub const TURNS_UNDER_WAY: usize = 4;

impl TestServer {
    pub fn new(shards: ShardId, rule: Rule) -> TestServer {
        let mut settings = Settings {
            rules: vec![rule],
            ..Settings::default()
        };
        settings.http.h2_cleartext = true;
        let turn_limits = TurnLimits {
            backpressure_turns: TURNS_UNDER_WAY,
            ..TurnLimits::default()
        };
        let mut server =
            support::TestServer::new(&support::world(settings, shards, shards), turn_limits, NOW);
        for io in &mut server.io {
            io.discards_bytes = true;
            io.sockets.reserve(200_000);
            io.mail.reserve(64);
        }
        TestServer(server)
    }

    /// A connection that has sent `request`.
    pub fn open(&mut self, shard: usize, request: &str) -> ConnId {
        let conn = self.0.open(shard);
        self.0.send(conn, request);
        self.settle();
        self.0.conn_id(conn)
    }

    /// The shard receives bytes of a peer.
    pub fn receive(&mut self, shard: usize, conn: ConnId, bytes: &[u8]) {
        self.0.receive(shard, conn, bytes);
    }

    /// Runs turns until nothing is left to do.
    pub fn settle(&mut self) {
        self.0.settle();
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// Number of writes to sockets.
    pub fn writes(&self) -> u64 {
        self.0.io.iter().map(|io| io.sends as u64).sum()
    }

    /// Bytes written to sockets.
    pub fn bytes(&self) -> u64 {
        self.0.io.iter().map(|io| io.bytes).sum()
    }
}

/// A rule for all topics that keeps this number of messages.
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
    /// A WebSocket with the subprotocol `ws+meta.nchan`.
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

/// Bytes of a message's data.
pub const MESSAGE_BYTES: usize = 512;

/// A request that publishes `MESSAGE_BYTES` bytes.
pub fn post(topic: &str) -> Vec<u8> {
    let data = "x".repeat(MESSAGE_BYTES);
    format!(
        "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MESSAGE_BYTES}\r\n\r\n{data}"
    )
    .into_bytes()
}
