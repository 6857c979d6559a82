//! A shard over sockets in memory that stop in the midst of a write, and perhaps a far one that answers when it is
//! told to. A socket that refused a byte must not be written to before it has said that it takes bytes again.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::{Limits, Rule, Settings};
use crore_broker::stats::Accounts;
use crore_broker::{
    Close, ConnId, Control, Input, Io, Link, Mail, Now, Pace, Shard, ShardId, Stats, Ticket, World,
};

/// How a subscriber gets its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// WebSocket, data only.
    Plain,
    /// WebSocket, each message behind its id.
    Meta,
    /// WebSocket, each message in an envelope.
    Envelope,
    /// Event stream.
    Sse,
}

pub const KINDS: [Kind; 4] = [Kind::Plain, Kind::Meta, Kind::Envelope, Kind::Sse];

/// A socket's other end.
#[derive(Default)]
pub struct Socket {
    conn: Option<ConnId>,
    pub received: Vec<u8>,
    /// How many bytes it takes before it refuses one.
    window: Option<usize>,
    refused: bool,
    wants_to_write: bool,
    is_paused: bool,
}

#[derive(Default)]
pub struct Sockets {
    sockets: Vec<Socket>,
    /// How often something was sent.
    pub sends: usize,
    /// Stamps and deliveries as they were told.
    pub written: Vec<(u64, u64)>,
    mail: Vec<Mail>,
}

impl Io for Sockets {
    fn open(&mut self, link: Link, conn: ConnId) {
        self.sockets[link.0 as usize].conn = Some(conn);
    }
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        let socket = &mut self.sockets[link.0 as usize];
        assert!(socket.conn.is_some(), "it is open");
        assert!(!socket.refused, "it takes nothing now");
        self.sends += 1;
        let bytes = parts.concat();
        let taken = bytes.len().min(socket.window.unwrap_or(usize::MAX));
        socket.received.extend_from_slice(&bytes[..taken]);
        socket.refused = taken < bytes.len();
        if let Some(window) = &mut socket.window {
            *window -= taken;
        }
        taken
    }
    fn interest(&mut self, link: Link, _: ConnId, read: bool, write: bool) {
        let socket = &mut self.sockets[link.0 as usize];
        (socket.is_paused, socket.wants_to_write) = (!read, write);
    }
    fn close(&mut self, link: Link, _: Close) {
        self.sockets[link.0 as usize].conn = None;
    }
    fn post(&mut self, _: ShardId, mail: Mail) {
        self.mail.push(mail);
    }
    fn written(&mut self, stamp: u64, deliveries: u64) {
        self.written.push((stamp, deliveries));
    }
}

pub struct Town {
    shard: Shard,
    pub io: Sockets,
    far: Option<(Shard, Sockets)>,
    now: Now,
    publisher: usize,
}

impl Town {
    /// With these limits, at this pace.
    pub fn new(rule: Rule, limits: impl FnOnce(&mut Limits), pace: Pace) -> Town {
        let mut settings = Settings {
            rules: vec![rule],
            ..Settings::default()
        };
        limits(&mut settings.limits);
        Town::with(settings, pace, 1)
    }

    /// With these settings; of two shards the second is the far one.
    pub fn with(settings: Settings, pace: Pace, shards: ShardId) -> Town {
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
            shard.set_pace(pace);
            shard
        };
        let far = || (shard(1), Sockets::default());
        let mut town = Town {
            shard: shard(0),
            io: Sockets::default(),
            far: (shards > 1).then(far),
            now,
            publisher: 0,
        };
        town.publisher = town.open();
        town
    }

    fn handle(&mut self, input: Input<'_>) {
        self.shard.handle(input, self.now, &mut self.io);
    }

    fn open(&mut self) -> usize {
        let link = self.io.sockets.len();
        self.io.sockets.push(Socket::default());
        let peer = Ipv4Addr::LOCALHOST.into();
        self.handle(Input::Accepted(Link(link as u32), peer));
        link
    }

    /// A new connection that sends this.
    pub fn says(&mut self, text: &str) -> usize {
        let link = self.open();
        self.request(link, text.to_owned());
        link
    }

    pub fn says_bytes(&mut self, mut bytes: Vec<u8>) -> usize {
        let link = self.open();
        let conn = self.io.sockets[link].conn.expect("it is open");
        self.handle(Input::Received(conn, &mut bytes));
        link
    }

    /// What came since the last time.
    pub fn take(&mut self, link: usize) -> String {
        let bytes = std::mem::take(&mut self.io.sockets[link].received);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The far shard gets its mail and answers.
    pub fn far_turn(&mut self) {
        let (far, io) = self.far.as_mut().expect("there is one");
        for mail in self.io.mail.drain(..) {
            far.handle(Input::Mail(mail), self.now, io);
        }
        far.flush(self.now, io);
        for mail in std::mem::take(&mut io.mail) {
            self.handle(Input::Mail(mail));
        }
        self.settle();
    }

    /// Time passes, and nobody has looked after anything yet.
    pub fn later_s(&mut self, seconds: u32) {
        self.now.s += seconds;
        self.now.unix_s += seconds;
    }

    pub fn wait_s(&mut self, seconds: u32) {
        self.now.s += seconds;
        self.now.unix_s += seconds;
        self.handle(Input::Tick);
        self.settle();
    }

    pub fn request(&mut self, link: usize, text: String) {
        let conn = self.io.sockets[link].conn.expect("it is open");
        self.handle(Input::Received(conn, &mut text.into_bytes()));
    }

    /// The client sends bytes.
    pub fn sends(&mut self, link: usize, mut bytes: Vec<u8>) {
        let conn = self.io.sockets[link].conn.expect("it is open");
        self.handle(Input::Received(conn, &mut bytes));
    }

    /// The operator wants something.
    pub fn orders(&mut self, control: Control) {
        self.handle(Input::Control(Ticket(0), control));
    }

    /// The client sends no more.
    pub fn end(&mut self, link: usize) {
        let conn = self.io.sockets[link].conn.expect("it is open");
        self.handle(Input::End(conn));
    }

    /// The connection is cut.
    pub fn cut(&mut self, link: usize) {
        let conn = self.io.sockets[link].conn.take().expect("it is open");
        self.handle(Input::Closed(conn));
    }

    /// A turn begins at this moment.
    pub fn stamp(&mut self, stamp: u64) {
        self.shard.stamp(stamp);
    }

    /// A subscriber of a topic (or of several: `a&topic=b`), whose stream has begun.
    pub fn subscribe(&mut self, kind: Kind, topic: &str) -> usize {
        self.subscribe_to(kind, &format!("topic={topic}"))
    }

    /// The same of topics and filters, as a query.
    pub fn subscribe_to(&mut self, kind: Kind, query: &str) -> usize {
        let link = self.ask_for(kind, query);
        self.settle();
        self.io.sockets[link].received.clear();
        link
    }

    /// A subscriber whose request has come.
    pub fn ask(&mut self, kind: Kind, topic: &str) -> usize {
        self.ask_for(kind, &format!("topic={topic}"))
    }

    /// The same of topics and filters, as a query.
    pub fn ask_for(&mut self, kind: Kind, query: &str) -> usize {
        let link = self.open();
        let more = match kind {
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
            "GET /sub?{query}&since=live{envelope} HTTP/1.1\r\nHost: localhost\r\n{more}{protocol}\r\n"
        );
        self.request(link, text);
        link
    }

    /// Messages that come in one request, each with its topic.
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
        self.request(self.publisher, text);
    }

    /// The end of the turn.
    pub fn turn(&mut self) {
        self.shard.flush(self.now, &mut self.io);
    }

    /// Turns until nothing is left to do.
    pub fn settle(&mut self) {
        while self.shard.flush(self.now, &mut self.io) {}
        for socket in &self.io.sockets {
            assert!(
                !socket.refused || socket.wants_to_write || socket.conn.is_none(),
                "who was refused asks to be told"
            );
        }
    }

    /// The socket takes so many bytes more, `None` is all of them.
    pub fn window(&mut self, link: usize, bytes: Option<usize>) {
        let socket = &mut self.io.sockets[link];
        socket.window = bytes;
        if bytes == Some(0) {
            return;
        }
        socket.refused = false;
        if socket.wants_to_write {
            let conn = socket.conn.expect("it is open");
            self.handle(Input::Writable(conn));
        }
    }

    pub fn received(&self, link: usize) -> &[u8] {
        &self.io.sockets[link].received
    }

    pub fn is_open(&self, link: usize) -> bool {
        self.io.sockets[link].conn.is_some()
    }

    /// Whether the server reads what comes.
    pub fn is_read(&self, link: usize) -> bool {
        !self.io.sockets[link].is_paused
    }

    pub fn accounts(&self) -> Accounts {
        self.shard.accounts()
    }

    /// The most messages that wait for one connection.
    pub fn most_waiting(&self) -> usize {
        self.shard.most_messages_waiting()
    }

    pub fn stats(&self) -> Stats {
        self.shard.stats()
    }
}
