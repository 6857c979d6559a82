//! A shard for tests. Its sockets are in memory, and can stop in the middle of a write. A remote shard, if any, runs only when the test calls
//! `run_remote_shard`. After a socket has refused a byte, the shard must not write to it until the socket is reported as writable.

use std::sync::Arc;

use crore_broker::account::MemoryAccount;
use crore_broker::settings::{Limits, Rule, Settings};
use crore_broker::stats::Accounts;
use crore_broker::{Control, Input, PartitionId, ShardId, Stats, Ticket, TurnLimits, World};

use crate::support::{self, NOW, Sockets};

/// The transport and encoding of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A WebSocket whose messages are the data only.
    Plain,
    /// A WebSocket with the meta subprotocol: the id is sent first, then the message.
    Meta,
    /// A WebSocket whose messages are JSON envelopes.
    Envelope,
    /// An event stream (server-sent events).
    Sse,
}

pub const KINDS: [Kind; 4] = [Kind::Plain, Kind::Meta, Kind::Envelope, Kind::Sse];

pub struct TestServer {
    world: Arc<World>,
    inner: support::TestServer,
    publisher: usize,
}

impl TestServer {
    /// A shard with one rule, these limits, and these limits of a turn (one run of the event loop).
    pub fn new(
        rule: Rule,
        change_limits: impl FnOnce(&mut Limits),
        turn_limits: TurnLimits,
    ) -> TestServer {
        let mut settings = Settings {
            rules: vec![rule],
            ..Settings::default()
        };
        change_limits(&mut settings.limits);
        TestServer::with(settings, turn_limits, 1)
    }

    /// A shard with these settings, and a remote one too if `shards` is two.
    pub fn with(settings: Settings, turn_limits: TurnLimits, shards: ShardId) -> TestServer {
        TestServer::from_world(support::world(settings, shards, shards), turn_limits)
    }

    /// A shard with this number of partitions.
    pub fn partitioned(settings: Settings, partitions: PartitionId) -> TestServer {
        let world = support::partitioned(settings, 1, 1, partitions);
        TestServer::from_world(world, TurnLimits::default())
    }

    fn from_world(world: Arc<World>, turn_limits: TurnLimits) -> TestServer {
        let mut inner = support::TestServer::new(&world, turn_limits, NOW);
        let publisher = inner.open(0);
        TestServer {
            world,
            inner,
            publisher,
        }
    }

    /// The memory account of all shards.
    pub fn account(&self) -> &MemoryAccount {
        &self.world.admission.account
    }

    /// The sockets of the first shard.
    pub fn io(&mut self) -> &mut Sockets {
        &mut self.inner.io[0]
    }

    /// Opens a connection that sends this request.
    pub fn connect_and_send(&mut self, bytes: impl AsRef<[u8]>) -> usize {
        let link = self.inner.open(0);
        self.send(link, bytes);
        link
    }

    /// The text received since the last call.
    pub fn take_received(&mut self, link: usize) -> String {
        let bytes = std::mem::take(&mut self.inner.socket(link).received);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The remote shard receives its mail (messages between shards), handles it and answers.
    pub fn run_remote_shard(&mut self) {
        self.inner.deliver_mail(1);
        self.inner.flush(1);
        self.inner.deliver_mail(0);
        self.settle();
    }

    /// Time passes without a tick.
    pub fn advance_s(&mut self, seconds: u32) {
        self.inner.advance_s(seconds);
    }

    pub fn advance_and_tick_s(&mut self, seconds: u32) {
        self.inner.advance_s(seconds);
        self.inner.handle(0, Input::Tick);
        self.settle();
    }

    /// The client sends bytes.
    pub fn send(&mut self, link: usize, bytes: impl AsRef<[u8]>) {
        self.inner.send(link, bytes);
    }

    /// The operator gives an order.
    pub fn give_order(&mut self, control: Control) {
        self.inner.handle(0, Input::Control(Ticket(0), control));
    }

    /// The client closes its sending side.
    pub fn end(&mut self, link: usize) {
        self.inner.end(link);
    }

    /// The connection fails.
    pub fn cut(&mut self, link: usize) {
        self.inner.cut(link);
    }

    /// Begins a turn at this time.
    pub fn set_turn_time(&mut self, time: u64) {
        self.inner.shards[0].set_turn_time(time);
    }

    /// Subscribes to a topic (or to several: `a&topic=b`). The stream has begun when this returns.
    pub fn subscribe(&mut self, kind: Kind, topic: &str) -> usize {
        self.subscribe_to(kind, &format!("topic={topic}"))
    }

    /// Subscribes to the topics and filters of a query. The stream has begun when this returns.
    pub fn subscribe_to(&mut self, kind: Kind, query: &str) -> usize {
        let link = self.ask_for(kind, query);
        self.settle();
        self.inner.socket(link).received.clear();
        link
    }

    /// Sends the request to subscribe to a topic. The stream has not begun when this returns: call `settle`.
    pub fn ask(&mut self, kind: Kind, topic: &str) -> usize {
        self.ask_for(kind, &format!("topic={topic}"))
    }

    /// Sends the request to subscribe to the topics and filters of a query. The stream has not begun when this returns: call `settle`.
    pub fn ask_for(&mut self, kind: Kind, query: &str) -> usize {
        let headers = match kind {
            Kind::Sse => "Accept: text/event-stream\r\n",
            Kind::Plain | Kind::Meta | Kind::Envelope => {
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            }
        };
        let protocol = match kind {
            Kind::Meta => "Sec-WebSocket-Protocol: ws+meta.nchan\r\n",
            _ => "",
        };
        let envelope = match kind {
            Kind::Envelope => "&envelope=json",
            _ => "",
        };
        let text = format!(
            "GET /sub?{query}&since=live{envelope} HTTP/1.1\r\nHost: localhost\r\n{headers}{protocol}\r\n"
        );
        self.connect_and_send(text)
    }

    /// Publishes messages, each with its topic, in one request.
    pub fn publish<'a>(&mut self, messages: impl IntoIterator<Item = (&'a str, String)>) {
        let lines = messages
            .into_iter()
            .map(|(topic, data)| format!("{{\"topic\":\"{topic}\",\"data\":\"{data}\"}}\n"));
        let body: String = lines.collect();
        let text = format!(
            "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.inner.send(self.publisher, text);
    }

    /// Ends the turn.
    pub fn end_turn(&mut self) {
        self.inner.flush(0);
    }

    /// Runs turns until nothing is left to do.
    pub fn settle(&mut self) {
        self.inner.settle_one(0);
    }

    /// The socket accepts this number of further bytes; `None`: all.
    pub fn set_window(&mut self, link: usize, bytes: Option<usize>) {
        self.inner.set_window(link, bytes.unwrap_or(usize::MAX));
    }

    pub fn received(&self, link: usize) -> &[u8] {
        self.inner.received(link)
    }

    pub fn is_open(&self, link: usize) -> bool {
        self.inner.is_open(link)
    }

    /// Whether the server reads from the connection.
    pub fn reads_from(&mut self, link: usize) -> bool {
        self.inner.socket(link).is_read
    }

    pub fn accounts(&self) -> Accounts {
        self.inner.shards[0].accounts()
    }

    /// The highest number of messages that have waited in one outbox.
    pub fn most_waiting(&self) -> usize {
        self.inner.shards[0].most_messages_waiting()
    }

    pub fn stats(&self) -> Stats {
        self.inner.shards[0].stats()
    }
}
