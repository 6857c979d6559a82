//! Shards in one thread, over sockets in memory, for tests. Mail (messages between shards) stays with its sender until the test delivers
//! it.
#![allow(dead_code, reason = "each test needs a part of it")]

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crore_broker::access::Question;
use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{
    Batch, CloseMode, Committed, ConnId, Input, Io, Mail, Now, Offsets, OutputPart, PartitionId,
    Report, Shard, ShardId, Slice, SocketId, Ticket, TurnLimits, World,
};
use crore_wire::mqtt;

/// The start time of the shards.
pub const NOW: Now = Now {
    s: 1000,
    unix_s: 1_800_000_000,
};

/// The peer's end of a connection.
pub struct Socket {
    /// The shard's id of the connection, while it is admitted and open.
    pub conn: Option<ConnId>,
    pub received: Vec<u8>,
    /// Number of further bytes that the socket accepts.
    window: usize,
    refused: bool,
    pub is_read: bool,
    wants_to_write: bool,
    /// Whether the shard has closed its sending side.
    pub ended: bool,
    closed: bool,
}

/// The sockets of one shard, by link, and the shard's other outputs.
#[derive(Default)]
pub struct Sockets {
    pub all: Vec<Socket>,
    /// If true, sent bytes are counted but not kept, for tests whose clients receive more than fits into memory.
    pub forget: bool,
    /// Number of sends, and of accepted bytes.
    pub sends: usize,
    pub bytes: u64,
    /// The large parts that were sent, for tests of a transport that keeps unacknowledged bytes.
    pub unacknowledged: Option<Vec<Slice>>,
    /// The reports of [`Io::report_deliveries`]: stamps and deliveries.
    pub written: Vec<(u64, u64)>,
    pub asked: Vec<(ConnId, Question)>,
    pub mail: VecDeque<(ShardId, Mail)>,
    /// Batches of records that wait for the engine (the writer of the log).
    pub batches: VecDeque<Batch>,
    /// Bytes of all batches so far.
    pub batch_bytes: usize,
    pub reports: Vec<(Ticket, Report)>,
}

impl Sockets {
    fn add(&mut self) -> SocketId {
        self.all.push(Socket {
            conn: None,
            received: Vec::new(),
            window: usize::MAX,
            refused: false,
            is_read: true,
            wants_to_write: false,
            ended: false,
            closed: false,
        });
        SocketId(self.all.len() as u32 - 1)
    }

    fn socket(&mut self, link: SocketId) -> &mut Socket {
        let socket = &mut self.all[link.0 as usize];
        assert!(!socket.closed, "{link:?} is closed");
        socket
    }
}

impl Io for Sockets {
    fn start_reading(&mut self, link: SocketId, conn: ConnId) {
        self.socket(link).conn = Some(conn);
    }
    fn send(&mut self, link: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let forget = self.forget;
        let socket = self.socket(link);
        assert!(!socket.refused, "it has not said that it takes bytes again");
        let mut sent = 0;
        for part in parts {
            let bytes = part.as_ref();
            let taken = bytes.len().min(socket.window - sent);
            if !forget {
                socket.received.extend_from_slice(&bytes[..taken]);
            }
            sent += taken;
            socket.refused |= taken < bytes.len();
        }
        if socket.window != usize::MAX {
            socket.window -= sent;
        }
        if let Some(kept) = &mut self.unacknowledged {
            kept.extend(parts.iter().filter_map(|part| match part {
                OutputPart::Shared(slice) => Some((*slice).clone()),
                OutputPart::Bytes(_) => None,
            }));
        }
        self.sends += 1;
        self.bytes += sent as u64;
        sent
    }
    fn set_interest(&mut self, link: SocketId, conn: ConnId, read: bool, write: bool) {
        let socket = self.socket(link);
        assert_eq!(socket.conn, Some(conn), "a link has one connection");
        (socket.is_read, socket.wants_to_write) = (read, write);
    }
    fn close(&mut self, link: SocketId, how: CloseMode) {
        let socket = self.socket(link);
        (socket.ended, socket.closed) = (true, how != CloseMode::Drain);
        if socket.closed {
            socket.conn = None;
        }
    }
    fn post(&mut self, to: ShardId, mail: Mail) {
        self.mail.push_back((to, mail));
    }
    fn append(&mut self, batch: Batch) {
        self.batch_bytes += batch.bytes.len();
        self.batches.push_back(batch);
    }
    fn answer_order(&mut self, ticket: Ticket, report: Report) {
        self.reports.push((ticket, report));
    }
    fn report_deliveries(&mut self, stamp: u64, deliveries: u64) {
        if !self.forget {
            self.written.push((stamp, deliveries));
        }
    }
    fn ask_verifier(&mut self, conn: ConnId, question: Question) -> bool {
        self.asked.push((conn, question));
        true
    }
}

/// A world (settings and shared state) in which the first `homes` shards are homes (keep topics), with one partition each.
pub fn world(settings: Settings, shards: ShardId, homes: ShardId) -> Arc<World> {
    partitioned(settings, shards, homes, homes)
}

/// A world with this number of partitions.
pub fn partitioned(
    settings: Settings,
    shards: ShardId,
    homes: ShardId,
    partitions: PartitionId,
) -> Arc<World> {
    Arc::new(World {
        admission: Admission::new(&settings, 42),
        rules: Rules::new(&settings.rules),
        settings,
        shards,
        homes,
        partitions,
        epoch: 7,
        writer: None,
        offsets: Offsets::ByWriter,
        seed: 42,
    })
}

/// Shards and their sockets. Each connection has a number that is unique over all shards.
pub struct TestServer {
    pub shards: Vec<Shard>,
    pub io: Vec<Sockets>,
    pub now: Now,
    /// A reused buffer for received bytes, since the shard may change them.
    buffer: Vec<u8>,
}

impl TestServer {
    /// New shards of a world.
    pub fn new(world: &Arc<World>, turn_limits: TurnLimits, now: Now) -> TestServer {
        let shard = |id| {
            let mut shard = Shard::new(id, Arc::clone(world), now);
            shard.set_turn_limits(turn_limits);
            shard
        };
        TestServer::of((0..world.shards).map(shard).collect(), now)
    }

    /// Existing shards.
    pub fn of(shards: Vec<Shard>, now: Now) -> TestServer {
        TestServer {
            io: shards.iter().map(|_| Sockets::default()).collect(),
            shards,
            now,
            buffer: Vec::with_capacity(1 << 20),
        }
    }

    fn place(&self, conn: usize) -> (usize, usize) {
        (conn % self.shards.len(), conn / self.shards.len())
    }

    /// Passes an input to a shard.
    pub fn handle(&mut self, at: usize, input: Input<'_>) {
        self.shards[at].handle(input, self.now, &mut self.io[at]);
    }

    /// A client with this address connects to a shard.
    pub fn open_from(&mut self, at: usize, peer: IpAddr) -> usize {
        let link = self.io[at].add();
        self.handle(at, Input::Accepted(link, peer));
        link.0 as usize * self.shards.len() + at
    }

    /// A client connects to a shard.
    pub fn open(&mut self, at: usize) -> usize {
        self.open_from(at, Ipv4Addr::LOCALHOST.into())
    }

    pub fn socket(&mut self, conn: usize) -> &mut Socket {
        let (at, link) = self.place(conn);
        &mut self.io[at].all[link]
    }

    /// The shard's id of a connection.
    pub fn id(&mut self, conn: usize) -> ConnId {
        self.socket(conn).conn.expect("it is open")
    }

    /// Whether the shard may still send on the connection.
    pub fn is_open(&self, conn: usize) -> bool {
        let (at, link) = self.place(conn);
        !self.io[at].all[link].ended
    }

    /// The bytes that the peer has received and not taken yet.
    pub fn received(&self, conn: usize) -> &[u8] {
        let (at, link) = self.place(conn);
        &self.io[at].all[link].received
    }

    /// The peer of a connection sends bytes.
    pub fn say(&mut self, conn: usize, bytes: impl AsRef<[u8]>) {
        let id = self.id(conn);
        self.receive(conn % self.shards.len(), id, bytes.as_ref());
    }

    /// A connection of this shard receives bytes.
    pub fn receive(&mut self, at: usize, conn: ConnId, bytes: &[u8]) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.handle(at, Input::Received(conn, &mut buffer));
        self.buffer = buffer;
    }

    /// The peer closes its sending side.
    pub fn end(&mut self, conn: usize) {
        let id = self.id(conn);
        self.handle(conn % self.shards.len(), Input::HalfClosed(id));
    }

    /// The connection fails.
    pub fn cut(&mut self, conn: usize) {
        let id = self.id(conn);
        self.handle(conn % self.shards.len(), Input::Failed(id));
    }

    /// The socket accepts `bytes` more bytes.
    pub fn window(&mut self, conn: usize, bytes: usize) {
        let socket = self.socket(conn);
        socket.window = bytes;
        if bytes == 0 {
            return;
        }
        socket.refused = false;
        self.report_writable(conn, usize::MAX);
    }

    /// Reports the socket as writable, for at most `most` bytes, if it accepts bytes and the shard waits for it. Returns whether it did.
    pub fn report_writable(&mut self, conn: usize, most: usize) -> bool {
        let socket = self.socket(conn);
        let reports = socket.wants_to_write && !socket.refused;
        if reports {
            let id = self.id(conn);
            self.handle(conn % self.shards.len(), Input::Writable(id, most));
        }
        reports
    }

    /// Lets the socket accept all bytes from now on. The shard is not told yet.
    pub fn widen(&mut self, conn: usize) {
        let socket = self.socket(conn);
        (socket.window, socket.refused) = (usize::MAX, false);
    }

    /// Ends a turn (one run of the event loop) of a shard. Returns whether it has more to do.
    pub fn flush(&mut self, at: usize) -> bool {
        self.shards[at].flush(self.now, &mut self.io[at])
    }

    /// A shard works until it has nothing to do. Its mail is not delivered.
    pub fn settle_one(&mut self, at: usize) {
        while self.flush(at) {}
        for socket in &self.io[at].all {
            assert!(
                !socket.refused || socket.wants_to_write || socket.closed,
                "who was refused asks to be told"
            );
        }
    }

    /// Delivers the mail of all other shards to a shard. Returns whether there was any.
    pub fn carry(&mut self, to: usize) -> bool {
        let mut any = false;
        for from in 0..self.shards.len() {
            for _ in 0..self.io[from].mail.len() {
                match self.io[from].mail.pop_front() {
                    Some((at, mail)) if usize::from(at) == to => {
                        self.handle(to, Input::Mail(mail));
                        any = true;
                    }
                    other => self.io[from].mail.extend(other),
                }
            }
        }
        any
    }

    /// All shards work, and all mail is delivered, until nothing is left to do.
    pub fn settle(&mut self) {
        let mut quiet_rounds = 0;
        // A shard may wait for something that no event reports, so it is called again. A shard that waits for a socket goes on waiting, so
        // the rounds are limited.
        while quiet_rounds == 0 || quiet_rounds < 3 && self.shards.iter().any(Shard::is_waiting) {
            let mut busy = false;
            for at in 0..self.shards.len() {
                busy |= self.carry(at) | self.flush(at);
            }
            match busy || self.io.iter().any(|io| !io.mail.is_empty()) {
                true => quiet_rounds = 0,
                false => quiet_rounds += 1,
            }
        }
    }

    /// The engine commits each waiting batch for which `keeps` returns true, and loses the others. Returns whether there were any.
    pub fn decide(&mut self, mut keeps: impl FnMut() -> bool) -> bool {
        let mut any = false;
        for at in 0..self.shards.len() {
            while let Some(batch) = self.io[at].batches.pop_front() {
                any = true;
                if keeps() {
                    self.handle(at, Input::Committed(committed(&batch)));
                }
            }
        }
        any
    }

    /// Lets time pass without a tick.
    pub fn later_s(&mut self, seconds: u32) {
        self.now.s += seconds;
        self.now.unix_s += seconds;
    }

    /// Lets time pass, and all shards get a tick.
    pub fn tick_s(&mut self, seconds: u32) {
        self.later_s(seconds);
        (0..self.shards.len()).for_each(|at| self.handle(at, Input::Tick));
    }
}

/// The engine's report that a batch is committed.
pub fn committed(batch: &Batch) -> Committed {
    Committed {
        header: batch.header,
        batch: None,
    }
}

/// A CONNECT of MQTT 5 with this session expiry.
pub fn connect(client: &str, expiry_s: u32) -> Vec<u8> {
    connect_as(client, expiry_s, false)
}

/// The same with Clean Start.
#[allow(dead_code, reason = "not each test file needs it")]
pub fn connect_clean(client: &str, expiry_s: u32) -> Vec<u8> {
    connect_as(client, expiry_s, true)
}

fn connect_as(client: &str, expiry_s: u32, clean_start: bool) -> Vec<u8> {
    let mut set = mqtt::PropertyWriter::new();
    set.session_expiry_interval_s(expiry_s);
    let mut out = Vec::new();
    let connect = mqtt::Connect {
        version: mqtt::Version::V5,
        bridge: false,
        clean_start,
        keep_alive_s: 0,
        properties: set.properties(),
        client_id: client,
        will: None,
        user_name: None,
        password: None,
    };
    mqtt::encode::connect(&mut out, &connect);
    out
}
