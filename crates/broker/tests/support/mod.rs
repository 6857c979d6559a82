//! Runs shards in one thread for tests, over sockets in memory. Mail (messages between shards) waits at its sender until the test delivers
//! it.
#![allow(dead_code, reason = "each test needs a part of it")]

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crore_broker::access::{Grants, Question, Right, VerifiedClient};
use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{
    Batch, CloseMode, Committed, ConnId, Input, Io, Mail, Now, Offsets, OutputPart, PartitionId,
    Report, Shard, ShardId, Slice, SocketId, Ticket, TurnLimits, Verdict, World,
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
    is_blocked: bool,
    pub is_read: bool,
    wants_to_write: bool,
    /// Whether the shard has closed its sending side.
    pub ended: bool,
    closed: bool,
}

/// The sockets of one shard, by link, and the shard's other outputs.
#[derive(Default)]
pub struct Sockets {
    pub sockets: Vec<Socket>,
    /// If true, sent bytes are counted but not kept, for tests whose clients receive more than fits into memory.
    pub discards_bytes: bool,
    /// Number of sends, and of accepted bytes.
    pub sends: usize,
    pub bytes: u64,
    /// The large parts that were sent, for tests of a transport that keeps unacknowledged bytes.
    pub unacknowledged: Option<Vec<Slice>>,
    /// The reports of [`Io::report_deliveries`]: stamps and deliveries.
    pub delivery_reports: Vec<(u64, u64)>,
    pub questions: Vec<(ConnId, Question)>,
    pub mail: VecDeque<(ShardId, Mail)>,
    /// Batches of records that wait for the engine (the writer of the log).
    pub batches: VecDeque<Batch>,
    /// Bytes of all batches so far.
    pub batch_bytes: usize,
    pub reports: Vec<(Ticket, Report)>,
}

impl Sockets {
    fn add(&mut self) -> SocketId {
        self.sockets.push(Socket {
            conn: None,
            received: Vec::new(),
            window: usize::MAX,
            is_blocked: false,
            is_read: true,
            wants_to_write: false,
            ended: false,
            closed: false,
        });
        SocketId(self.sockets.len() as u32 - 1)
    }

    fn socket(&mut self, link: SocketId) -> &mut Socket {
        let socket = &mut self.sockets[link.0 as usize];
        assert!(!socket.closed, "{link:?} is closed");
        socket
    }
}

impl Io for Sockets {
    fn start_reading(&mut self, link: SocketId, conn: ConnId) {
        self.socket(link).conn = Some(conn);
    }
    fn send(&mut self, link: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let discards_bytes = self.discards_bytes;
        let socket = self.socket(link);
        assert!(
            !socket.is_blocked,
            "the socket has not become writable again"
        );
        let mut sent = 0;
        for part in parts {
            let bytes = part.as_ref();
            let accepted = bytes.len().min(socket.window - sent);
            if !discards_bytes {
                socket.received.extend_from_slice(&bytes[..accepted]);
            }
            sent += accepted;
            socket.is_blocked |= accepted < bytes.len();
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
    fn close(&mut self, link: SocketId, mode: CloseMode) {
        let socket = self.socket(link);
        (socket.ended, socket.closed) = (true, mode != CloseMode::Drain);
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
        if !self.discards_bytes {
            self.delivery_reports.push((stamp, deliveries));
        }
    }
    fn ask_verifier(&mut self, conn: ConnId, question: Question) -> bool {
        self.questions.push((conn, question));
        true
    }
}

/// Opens an event stream of a path, with a token of this user and info if it has a name.
pub fn stream(
    server: &mut TestServer,
    shard: usize,
    path: &str,
    (user, info): (&str, &str),
) -> usize {
    let conn = server.open(shard);
    let token = match user {
        "" => String::new(),
        user => format!("Authorization: Bearer {user}\r\n"),
    };
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{token}\r\n"
    );
    server.send(conn, head);
    // A shard asks only once about a token.
    if let Some((asker, question)) = server.io[shard].questions.pop() {
        let rights = [Right::Subscribe, Right::Presence].map(|right| (right, "#"));
        let grants = Grants::new(user, rights).expect("they are valid");
        let grants = match info {
            "" => grants,
            info => grants.with_info(info),
        };
        let verdict = Verdict {
            digest: question.digest,
            found: Ok(VerifiedClient {
                grants: Arc::new(grants),
                until_unix_s: u32::MAX,
            }),
            believed_until_s: NOW.unix_s + 3600,
            settings_generation: question.settings_generation,
        };
        server.handle(shard, Input::Verdict(asker, verdict));
    }
    conn
}

/// A world: the settings and the shared state of shards. The first `homes` shards are homes (they keep topics), with one partition each.
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
        let new_shard = |id| {
            let mut shard = Shard::new(id, Arc::clone(world), now);
            shard.set_turn_limits(turn_limits);
            shard
        };
        TestServer::from_shards((0..world.shards).map(new_shard).collect(), now)
    }

    /// Existing shards.
    pub fn from_shards(shards: Vec<Shard>, now: Now) -> TestServer {
        TestServer {
            io: shards.iter().map(|_| Sockets::default()).collect(),
            shards,
            now,
            buffer: Vec::with_capacity(1 << 20),
        }
    }

    fn shard_and_link(&self, conn: usize) -> (usize, usize) {
        (conn % self.shards.len(), conn / self.shards.len())
    }

    /// Passes an input to a shard.
    pub fn handle(&mut self, shard: usize, input: Input<'_>) {
        self.shards[shard].handle(input, self.now, &mut self.io[shard]);
    }

    /// A client with this address connects to a shard.
    pub fn open_from(&mut self, shard: usize, peer: IpAddr) -> usize {
        let link = self.io[shard].add();
        self.handle(shard, Input::Accepted(link, peer));
        link.0 as usize * self.shards.len() + shard
    }

    /// A client connects to a shard.
    pub fn open(&mut self, shard: usize) -> usize {
        self.open_from(shard, Ipv4Addr::LOCALHOST.into())
    }

    pub fn socket(&mut self, conn: usize) -> &mut Socket {
        let (shard, link) = self.shard_and_link(conn);
        &mut self.io[shard].sockets[link]
    }

    /// The shard's id of a connection.
    pub fn conn_id(&mut self, conn: usize) -> ConnId {
        self.socket(conn).conn.expect("the connection is open")
    }

    /// Whether the shard may still send on the connection.
    pub fn is_open(&self, conn: usize) -> bool {
        let (shard, link) = self.shard_and_link(conn);
        !self.io[shard].sockets[link].ended
    }

    /// The bytes that the peer has received and the test has not taken yet.
    pub fn received(&self, conn: usize) -> &[u8] {
        let (shard, link) = self.shard_and_link(conn);
        &self.io[shard].sockets[link].received
    }

    /// The peer of a connection sends bytes.
    pub fn send(&mut self, conn: usize, bytes: impl AsRef<[u8]>) {
        let id = self.conn_id(conn);
        self.receive(conn % self.shards.len(), id, bytes.as_ref());
    }

    /// A connection of this shard receives bytes.
    pub fn receive(&mut self, shard: usize, conn: ConnId, bytes: &[u8]) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.handle(shard, Input::Received(conn, &mut buffer));
        self.buffer = buffer;
    }

    /// The peer closes its sending side.
    pub fn end(&mut self, conn: usize) {
        let id = self.conn_id(conn);
        self.handle(conn % self.shards.len(), Input::HalfClosed(id));
    }

    /// The connection fails.
    pub fn cut(&mut self, conn: usize) {
        let id = self.conn_id(conn);
        self.handle(conn % self.shards.len(), Input::Failed(id));
    }

    /// The socket accepts `bytes` more bytes.
    pub fn set_window(&mut self, conn: usize, bytes: usize) {
        let socket = self.socket(conn);
        socket.window = bytes;
        if bytes == 0 {
            return;
        }
        socket.is_blocked = false;
        self.report_writable(conn, usize::MAX);
    }

    /// Reports the socket as writable, for at most `bytes_max` bytes, if it accepts bytes and the shard waits for it. Returns whether it
    /// did.
    pub fn report_writable(&mut self, conn: usize, bytes_max: usize) -> bool {
        let socket = self.socket(conn);
        let is_reported = socket.wants_to_write && !socket.is_blocked;
        if is_reported {
            let id = self.conn_id(conn);
            self.handle(conn % self.shards.len(), Input::Writable(id, bytes_max));
        }
        is_reported
    }

    /// Lets the socket accept all bytes from now on. The shard is not told yet.
    pub fn open_window(&mut self, conn: usize) {
        let socket = self.socket(conn);
        (socket.window, socket.is_blocked) = (usize::MAX, false);
    }

    /// Ends a turn (one run of the event loop) of a shard. Returns whether it has more to do.
    pub fn flush(&mut self, shard: usize) -> bool {
        self.shards[shard].flush(self.now, &mut self.io[shard])
    }

    /// A shard works until it has nothing to do. Its mail is not delivered.
    pub fn settle_one(&mut self, shard: usize) {
        while self.flush(shard) {}
        for socket in &self.io[shard].sockets {
            assert!(
                !socket.is_blocked || socket.wants_to_write || socket.closed,
                "a blocked socket is reported when it is writable"
            );
        }
    }

    /// Delivers the mail of all other shards to a shard. Returns whether there was any.
    pub fn deliver_mail(&mut self, to: usize) -> bool {
        let mut has_any = false;
        for from in 0..self.shards.len() {
            for _ in 0..self.io[from].mail.len() {
                match self.io[from].mail.pop_front() {
                    Some((sender, mail)) if usize::from(sender) == to => {
                        self.handle(to, Input::Mail(mail));
                        has_any = true;
                    }
                    other => self.io[from].mail.extend(other),
                }
            }
        }
        has_any
    }

    /// All shards work, and all mail is delivered, until nothing is left to do.
    pub fn settle(&mut self) {
        let mut quiet_rounds = 0;
        // A shard may wait for something that no event reports, so it is called again. A shard may also wait for a socket for ever, so the rounds are
        // limited.
        while quiet_rounds == 0 || quiet_rounds < 3 && self.shards.iter().any(Shard::is_waiting) {
            let mut is_busy = false;
            for shard in 0..self.shards.len() {
                is_busy |= self.deliver_mail(shard) | self.flush(shard);
            }
            match is_busy || self.io.iter().any(|io| !io.mail.is_empty()) {
                true => quiet_rounds = 0,
                false => quiet_rounds += 1,
            }
        }
    }

    /// The engine commits each waiting batch for which `keeps` returns true, and loses the others. Returns whether there were any.
    pub fn commit_batches(&mut self, mut keeps: impl FnMut() -> bool) -> bool {
        let mut has_any = false;
        for shard in 0..self.shards.len() {
            while let Some(batch) = self.io[shard].batches.pop_front() {
                has_any = true;
                if keeps() {
                    self.handle(shard, Input::Committed(committed(&batch)));
                }
            }
        }
        has_any
    }

    /// Lets time pass without a tick.
    pub fn advance_s(&mut self, seconds: u32) {
        self.now.s += seconds;
        self.now.unix_s += seconds;
    }

    /// Lets time pass, and all shards get a tick.
    pub fn advance_and_tick_s(&mut self, seconds: u32) {
        self.advance_s(seconds);
        (0..self.shards.len()).for_each(|shard| self.handle(shard, Input::Tick));
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

/// A CONNECT of MQTT 5 with this session expiry and Clean Start.
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
