//! A server with two shards in one thread, for fuzz targets. Its sockets are in memory and have a receive window. Mail (messages between
//! shards) arrives when the target says so.
//!
//! Checked at every step: a shard touches only its own links, sends nothing after it has closed one, and holds no more than its settings
//! allow. After all clients have left and time has passed, it holds nothing.

use crore_broker::Restored;
use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::{RetentionMode, Rule, Settings, SlowConsumerPolicy};
use crore_broker::snapshot::{Damaged, Head};
use crore_broker::{
    CloseMode, ConnId, Input, Io, Mail, Now, Offsets, OutputPart, Shard, ShardId, SocketId,
    TurnLimits, World,
};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

pub const SHARDS: usize = 2;
/// Turns (runs of a shard's event loop) within which the shards must become idle.
const TURNS_MAX: usize = 20_000;
/// Consecutive rounds that may pass without an event while a shard waits until another shard has processed its messages.
const WAITS_MAX: usize = 8;
/// The maximum of bytes in one read.
const READ_BYTES: usize = 600;
/// Seconds that are longer than every deadline, linger and window of these settings.
const LATER_S: u32 = 400;
/// Ticks at the end, a minute apart. Each one forgets a part of the state that has expired.
const FORGET_TICKS: usize = 8;
/// The maximum of bytes that answer the pipelined requests of one read.
const ANSWERS_BYTES: usize = 64 << 10;
/// The maximum of bytes that an encoding adds to a message.
const ENCODING_BYTES: usize = 300;

/// A connection, as both ends see it.
struct Socket {
    shard: usize,
    conn: Option<ConnId>,
    to_server: VecDeque<u8>,
    to_client: Vec<u8>,
    window: usize,
    read: bool,
    write: bool,
    fin: bool,
    fin_told: bool,
    ended: bool,
    closed: bool,
}

/// The sockets, and the mail between shards.
struct Net {
    sockets: Vec<Socket>,
    mail: [VecDeque<Mail>; SHARDS],
    turn_of: usize,
}

impl Net {
    fn socket(&mut self, link: SocketId) -> &mut Socket {
        let socket = &mut self.sockets[link.0 as usize];
        assert!(!socket.closed, "link {} is closed", link.0);
        assert_eq!(socket.shard, self.turn_of, "link {} is another's", link.0);
        socket
    }
}

impl Io for Net {
    fn start_reading(&mut self, link: SocketId, conn: ConnId) {
        self.socket(link).conn = Some(conn);
    }

    fn send(&mut self, link: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let socket = self.socket(link);
        assert!(!socket.ended, "bytes after the end of link {}", link.0);
        let mut sent = 0;
        for part in parts {
            let part = part.as_ref();
            let taken = part.len().min(socket.window);
            socket.to_client.extend_from_slice(&part[..taken]);
            socket.window -= taken;
            sent += taken;
            if taken < part.len() {
                break;
            }
        }
        sent
    }

    fn set_interest(&mut self, link: SocketId, conn: ConnId, read: bool, write: bool) {
        let socket = self.socket(link);
        assert_eq!(socket.conn, Some(conn), "a link has one connection");
        (socket.read, socket.write) = (read, write);
    }

    fn close(&mut self, link: SocketId, how: CloseMode) {
        let socket = self.socket(link);
        socket.ended = true;
        socket.closed = how != CloseMode::Drain;
    }

    fn post(&mut self, to: ShardId, mail: Mail) {
        assert_eq!(usize::from(mail.from), self.turn_of);
        self.mail[usize::from(to)].push_back(mail);
    }
}

/// Small limits, so that short inputs reach them; and topic rules of several kinds.
fn settings() -> Settings {
    let mut settings = Settings::default();
    let limits = &mut settings.limits;
    limits.head_bytes = 600;
    limits.message_bytes = 300;
    limits.batch_bytes = 1500;
    limits.batch_lines = 12;
    limits.topic_bytes = 40;
    limits.topics_per_connection = 3;
    limits.topics_per_shard = 6;
    limits.connections_per_shard = 4;
    limits.log_bytes = 16 << 10;
    limits.outbox_bytes = 700;
    limits.memory_bytes = 64 << 10;
    limits.publish_credit_bytes = 1000;
    settings.deflate.min_bytes = 16;
    settings.publish.idempotency_window_s = 20;
    settings.publish.idempotency_keys = 8;
    settings.interest.debounce_s = 2;
    settings.interest.followers_max = 2;
    let rule = |filter: &str| Rule {
        filter: filter.into(),
        log_messages: 4,
        position_age_s: 30,
        log_age_s: 60,
        ..Rule::default()
    };
    settings.rules = vec![
        Rule {
            keep: RetentionMode::Latest,
            keys_max: 3,
            ..rule("latest/#")
        },
        Rule {
            log_messages: 0,
            ..rule("none/+")
        },
        Rule {
            ttl_s: 3,
            slow: SlowConsumerPolicy::Skip,
            outbox_messages: 2,
            ..rule("skip/#")
        },
        rule("#"),
    ];
    settings
}

/// The server, and the client ends of its connections.
pub struct Shards {
    shards: Vec<Shard>,
    net: Net,
    now: Now,
    ticked_s: [u32; SHARDS],
    world: Arc<World>,
    turn_limits: TurnLimits,
}

impl Shards {
    /// A new server without connections.
    pub fn new() -> Shards {
        let settings = settings();
        let now = Now {
            s: 100,
            unix_s: 1_800_000_000,
        };
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            admission: Admission::new(&settings, 42),
            settings,
            shards: SHARDS as ShardId,
            homes: SHARDS as ShardId,
            partitions: SHARDS as ShardId,
            epoch: 7,
            writer: None,
            offsets: Offsets::ByWriter,
            seed: 42,
        });
        let turn_limits = TurnLimits {
            visits_per_turn: 3,
            steps_per_turn: 40,
            page_messages: 2,
            page_bytes: 400,
            page_entries: 3,
            interest_page_topics: 2,
            backpressure_turns: 3,
            publish_credit_bytes: 0,
            prefetch_from_rows: 0,
            removals_per_turn: 2,
            rows_per_tick: 2,
            ends_per_tick: 2,
        };
        let shard = |n| {
            let mut shard = Shard::new(n as ShardId, Arc::clone(&world), now);
            shard.set_turn_limits(turn_limits);
            shard
        };
        Shards {
            shards: (0..SHARDS).map(shard).collect(),
            net: Net {
                sockets: Vec::new(),
                mail: Default::default(),
                turn_of: 0,
            },
            now,
            ticked_s: [now.s; SHARDS],
            world,
            turn_limits,
        }
    }

    /// Connects a client that reads at most `window` bytes. Returns its link.
    pub fn connect(&mut self, shard: usize, window: usize) -> usize {
        let link = self.net.sockets.len();
        self.net.sockets.push(Socket {
            shard,
            conn: None,
            to_server: VecDeque::new(),
            to_client: Vec::new(),
            window,
            read: true,
            write: false,
            fin: false,
            fin_told: false,
            ended: false,
            closed: false,
        });
        self.net.turn_of = shard;
        let from = IpAddr::from([127, 0, 0, 1]);
        let accepted = Input::Accepted(SocketId(link as u32), from);
        self.shards[shard].handle(accepted, self.now, &mut self.net);
        link
    }

    /// The client writes these bytes.
    pub fn write(&mut self, link: usize, bytes: &[u8]) {
        let socket = &mut self.net.sockets[link];
        if !socket.closed && !socket.fin {
            socket.to_server.extend(bytes);
        }
    }

    /// The client reads this many bytes more.
    pub fn widen(&mut self, link: usize, bytes: usize) {
        let window = &mut self.net.sockets[link].window;
        *window = window.saturating_add(bytes);
    }

    /// The client closes its sending side.
    pub fn finish(&mut self, link: usize) {
        self.net.sockets[link].fin = true;
    }

    /// The connection is reset.
    pub fn reset(&mut self, link: usize) {
        let socket = &mut self.net.sockets[link];
        if let (false, Some(conn)) = (socket.closed, socket.conn) {
            self.net.turn_of = socket.shard;
            self.shards[self.net.turn_of].handle(Input::Failed(conn), self.now, &mut self.net);
        }
    }

    /// The bytes that the client has received.
    pub fn read(&self, link: usize) -> &[u8] {
        &self.net.sockets[link].to_client
    }

    /// This many seconds pass.
    pub fn pass(&mut self, s: u32) {
        self.now.s += s;
        self.now.unix_s += s;
    }

    /// Runs a turn of one shard: a read of at most `read` bytes from each socket and, if `mail`, one mail. True if anything was done.
    pub fn turn(&mut self, n: usize, read: usize, mail: bool) -> bool {
        self.net.turn_of = n;
        let mut moved = false;
        if self.ticked_s[n] != self.now.s {
            self.ticked_s[n] = self.now.s;
            self.shards[n].handle(Input::Tick, self.now, &mut self.net);
            moved = true;
        }
        for link in 0..self.net.sockets.len() {
            moved |= self.net.sockets[link].shard == n && self.event(n, link, read);
        }
        if mail && let Some(mail) = self.net.mail[n].pop_front() {
            self.shards[n].handle(Input::Mail(mail), self.now, &mut self.net);
            moved = true;
        }
        moved |= self.shards[n].flush(self.now, &mut self.net);
        self.check(n);
        moved
    }

    /// Handles the readiness of a socket.
    fn event(&mut self, n: usize, link: usize, read: usize) -> bool {
        let (shard, net) = (&mut self.shards[n], &mut self.net);
        let socket = &mut net.sockets[link];
        let (false, Some(conn)) = (socket.closed, socket.conn) else {
            return false;
        };
        let writable = socket.write && socket.window > 0;
        if writable {
            shard.handle(Input::Writable(conn, usize::MAX), self.now, net);
        }
        let socket = &mut net.sockets[link];
        if socket.closed || !socket.read || shard.socket_of(conn).is_none() {
            return writable;
        }
        if !socket.to_server.is_empty() {
            let len = socket.to_server.len().min(read.clamp(1, READ_BYTES));
            let mut bytes: Vec<u8> = socket.to_server.drain(..len).collect();
            shard.handle(Input::Received(conn, &mut bytes), self.now, net);
            return true;
        }
        if socket.fin && !socket.fin_told {
            socket.fin_told = true;
            shard.handle(Input::HalfClosed(conn), self.now, net);
            return true;
        }
        writable
    }

    /// Takes turns until no shard has work.
    pub fn settle(&mut self) {
        let mut waits = 0;
        for _ in 0..TURNS_MAX {
            let mut moved = false;
            for n in 0..SHARDS {
                moved |= self.turn(n, READ_BYTES, true);
            }
            if moved {
                waits = 0;
            } else if self.shards.iter().any(Shard::is_waiting) {
                waits += 1;
                assert!(
                    waits < WAITS_MAX,
                    "a shard waits for credit that nobody gives"
                );
            } else {
                return;
            }
        }
        panic!("no rest after {TURNS_MAX} turns");
    }

    /// Checks the limits. Each check allows for the work that may be in flight when a limit takes effect.
    fn check(&self, n: usize) {
        let limits = &self.world.settings.limits;
        let held = self.shards[n].accounts();
        let connections = held.connections as usize;
        let admitted = self.world.admission.connections() as usize;
        let room = SHARDS * limits.connections_per_shard;
        assert!(
            admitted <= room,
            "{admitted} connections where there is room for {room}"
        );
        assert!(
            held.log_bytes <= limits.log_bytes / SHARDS,
            "{} bytes of log",
            held.log_bytes
        );
        assert!(held.home_topics as usize <= limits.topics_per_shard);
        let request = limits.batch_bytes.max(limits.head_bytes) + READ_BYTES;
        assert!(
            held.receive_bytes <= limits.memory_bytes.max(connections * request) + request,
            "{} bytes received",
            held.receive_bytes
        );
        let message = 2 * limits.message_bytes + ENCODING_BYTES;
        let page = self.turn_limits.page_messages * message + 2 * self.turn_limits.page_bytes;
        let outbox = limits.outbox_bytes + 3 * page + ANSWERS_BYTES;
        assert!(
            held.outbox_bytes <= connections * outbox,
            "{} bytes in outboxes",
            held.outbox_bytes
        );
        let keys = self.world.settings.publish.keys_per_home(SHARDS);
        assert!(held.answers <= keys, "{} answers kept", held.answers);
    }

    /// Closes all client connections. After everything has expired, the server may hold nothing. Latest values never expire, so their
    /// rules are changed first.
    pub fn end(mut self) {
        for link in 0..self.net.sockets.len() {
            self.reset(link);
        }
        self.settle();
        let mut settings = self.world.settings.clone();
        settings
            .rules
            .iter_mut()
            .for_each(|rule| rule.keep = RetentionMode::Log);
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            settings,
            admission: self.world.admission.clone(),
            ..*self.world
        });
        for shard in &mut self.shards {
            shard.change_settings(Arc::clone(&world));
        }
        self.world = world;
        for wait_s in [1, 1, LATER_S, LATER_S, LATER_S] {
            self.pass(wait_s);
            self.settle();
        }
        for _ in 0..FORGET_TICKS {
            self.pass(60);
            self.settle();
        }
        assert_eq!(self.world.admission.connections(), 0);
        for (n, shard) in self.shards.iter().enumerate() {
            let held = shard.accounts();
            assert!(held.is_empty(), "at the end shard {n} holds {held:?}");
        }
    }
}

/// The snapshot of a home (the part of a shard that keeps topics), and what is needed to restore it.
pub struct SavedHome {
    /// The head of the snapshot.
    pub head: Head,
    /// The blocks of the snapshot, without the head.
    pub blocks: Vec<Vec<u8>>,
    /// The state that all shards share.
    pub world: Arc<World>,
    /// The time of the snapshot.
    pub now: Now,
}

impl Shards {
    /// Closes all client connections at once, and writes the snapshot of a home.
    pub fn save_home(mut self, home: ShardId) -> SavedHome {
        for link in 0..self.net.sockets.len() {
            self.reset(link);
        }
        self.settle();
        let head = Head {
            stop_id: 1,
            epoch: self.world.epoch,
            seed: self.world.seed,
            partitions: self.world.partitions,
            homes: self.world.homes,
            home,
            unix_s: self.now.unix_s,
            wall_s: self.now.unix_s,
        };
        let blocks = saved(&mut self.shards[usize::from(home)], &head);
        SavedHome {
            head,
            blocks,
            world: self.world,
            now: self.now,
        }
    }
}

impl SavedHome {
    /// A shard restored from the snapshot, after a tick and a turn.
    ///
    /// # Errors
    /// If the snapshot is not valid.
    pub fn restored(&self) -> Result<Shard, Damaged> {
        let mut restored = Restored::new(Arc::clone(&self.world), self.head.home, self.now);
        restored.begin_snapshot(&self.head)?;
        for block in &self.blocks {
            restored.read_block(block)?;
        }
        let restored = restored.finish()?;
        let mut shard = Shard::new(self.head.home, Arc::clone(&self.world), self.now);
        shard.adopt(restored);
        let mut net = Net {
            sockets: Vec::new(),
            mail: Default::default(),
            turn_of: self.head.home.into(),
        };
        shard.handle(Input::Tick, self.now, &mut net);
        shard.flush(self.now, &mut net);
        Ok(shard)
    }
}

/// The blocks of a shard's snapshot, without the head.
pub fn saved(shard: &mut Shard, head: &Head) -> Vec<Vec<u8>> {
    let blocks = std::iter::from_fn(|| Some(shard.save(head, usize::MAX)));
    let blocks = blocks.skip(1).take_while(|block| !block.is_empty());
    blocks.collect()
}
