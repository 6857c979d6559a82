//! The hot path allocates nothing for a delivery: what a published message costs the allocator is
//! the same whether nobody, one or ten thousand receive it.
//!
//! Real shards, driven as the server's loop drives them (inputs, then a flush), over an [`Io`] in
//! memory that allocates nothing itself. The counter belongs to the thread, so tests run side by side.
//! All counts are of the steady state: tables, logs and buffers have the size that the work needs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that ends allocates nothing that is asked for here.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator as it came; counting touches a cell of
// the thread, which needs no allocation (`const` and without a destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often the allocator was asked while `work` ran.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

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
struct Town {
    shards: Vec<(Shard, Sockets)>,
    received: Vec<u8>,
}

const NOW: Now = Now {
    s: 1,
    unix_s: 1_800_000_000,
};

impl Town {
    fn new(shards: ShardId, rule: Rule) -> Town {
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
            sockets.conns.reserve(20_000);
            sockets.mail.reserve(64);
            (Shard::new(id, Arc::clone(&world), NOW), sockets)
        };
        Town {
            shards: (0..shards).map(shard).collect(),
            received: Vec::with_capacity(1 << 20),
        }
    }

    /// A connection that has sent `request`.
    fn open(&mut self, at: usize, request: &str) -> ConnId {
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
    fn receive(&mut self, at: usize, conn: ConnId, bytes: &[u8]) {
        self.received.clear();
        self.received.extend_from_slice(bytes);
        let (shard, sockets) = &mut self.shards[at];
        shard.handle(Input::Received(conn, &mut self.received), NOW, sockets);
    }

    /// Turns until nobody has anything left to do.
    fn settle(&mut self) {
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

    fn writes(&self) -> u64 {
        self.shards.iter().map(|(_, sockets)| sockets.writes).sum()
    }
}

fn keeping(log_messages: u32) -> Rule {
    Rule {
        filter: "#".into(),
        log_messages,
        ..Rule::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Transport {
    WebSocket,
    Events,
}

fn subscribe(transport: Transport, topic: &str) -> String {
    let fields = match transport {
        Transport::WebSocket => {
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        }
        Transport::Events => "Accept: text/event-stream\r\n",
    };
    format!("GET /sub/{topic} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

/// A message of so many bytes as one request.
fn post(topic: &str) -> Vec<u8> {
    let data = "x".repeat(MESSAGE_BYTES);
    format!(
        "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MESSAGE_BYTES}\r\n\r\n{data}"
    )
    .into_bytes()
}

/// A message to each of the topics as one request.
fn batch(topics: std::ops::Range<usize>) -> Vec<u8> {
    let data = "x".repeat(MESSAGE_BYTES);
    let line = |n| format!("{{\"topic\":\"{}\",\"data\":\"{data}\"}}\n", own_topic(n));
    let lines: String = topics.map(line).collect();
    let head = "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n";
    format!("{head}Content-Length: {}\r\n\r\n{lines}", lines.len()).into_bytes()
}

fn own_topic(n: usize) -> String {
    format!("own/{n}")
}

/// As the issue has it for a fan-out and for topics of one's own.
const MESSAGE_BYTES: usize = 512;
const TOPICS: usize = 10_000;
/// Messages that wait in one turn.
const TOGETHER: usize = 1_000;
/// What is published again and again until nothing grows any more: more turns than a shard keeps
/// frames under way.
const WARM_UP: usize = 70;

const TRANSPORTS: [Transport; 2] = [Transport::WebSocket, Transport::Events];

/// Every world in which a delivery must cost nothing: one shard or mail between two, a log of so many
/// messages or none.
fn worlds() -> impl Iterator<Item = (ShardId, u32, Transport)> {
    [(1, 0), (1, 2), (2, 2)]
        .into_iter()
        .flat_map(|(shards, keep)| TRANSPORTS.map(|by| (shards, keep, by)))
}

/// What one message to so many subscribers of its topic costs, at most.
fn fan_out(shards: ShardId, keep: u32, by: Transport, members: usize) -> u64 {
    let mut town = Town::new(shards, keeping(keep));
    for n in 0..members {
        town.open(n % shards as usize, &subscribe(by, "news"));
    }
    let publisher = town.open(0, "");
    let request = post("news");
    let message = |town: &mut Town| {
        let before = town.writes();
        let count = allocations(|| {
            town.receive(0, publisher, &request);
            town.settle();
        });
        assert_eq!(
            town.writes() - before,
            members as u64 + 1,
            "to each, and to the publisher"
        );
        count
    };
    for _ in 0..WARM_UP {
        message(&mut town);
    }
    (0..10)
        .map(|_| message(&mut town))
        .max()
        .expect("ten messages")
}

/// What a message to each of the topics costs, at most, with one subscriber for each or without.
fn unicast(shards: ShardId, keep: u32, by: Transport, one: bool, subscribed: bool) -> u64 {
    let mut town = Town::new(shards, keeping(keep));
    if subscribed {
        for n in 0..TOPICS {
            town.open(n % shards as usize, &subscribe(by, &own_topic(n)));
        }
    }
    let publisher = town.open(0, "");
    let requests: Vec<Vec<u8>> = if one {
        (0..TOPICS).map(|n| post(&own_topic(n))).collect()
    } else {
        (0..TOPICS)
            .step_by(TOGETHER)
            .map(|n| batch(n..n + TOGETHER))
            .collect()
    };
    let round = |town: &mut Town| {
        let before = town.writes();
        let count = allocations(|| {
            for request in &requests {
                town.receive(0, publisher, request);
                town.settle();
            }
        });
        let deliveries = if subscribed { TOPICS } else { 0 };
        assert_eq!(town.writes() - before, (deliveries + requests.len()) as u64);
        count
    };
    for _ in 0..4 {
        round(&mut town);
    }
    round(&mut town)
}

/// A published message may cost this much (its request is read, its outcome answered, the mail of the
/// turn made), whoever receives it. Measured: 5 to 11.
const PER_MESSAGE_MAX: u64 = 24;
/// How many visits of a walk over subscribers fit into a turn, at least: an event is encoded again
/// when the walk goes on in the next.
const VISITS_PER_TURN_MIN: usize = 2_000;
/// An event is encoded once, however many get it; its position is written first.
const PER_ENCODING_MAX: u64 = 1;

#[test]
fn ten_thousand_subscribers_of_a_topic_cost_no_more_than_one() {
    for (shards, keep, by) in worlds() {
        let one = fan_out(shards, keep, by, shards as usize);
        assert!(
            one <= PER_MESSAGE_MAX,
            "{shards} shards, {keep} kept, {by:?}: {one} a message"
        );
        for members in [1_000, 10_000] {
            let again = members / shards as usize / VISITS_PER_TURN_MIN;
            let encodings = match by {
                Transport::WebSocket => 0,
                Transport::Events => (again * shards as usize) as u64 * PER_ENCODING_MAX,
            };
            let many = fan_out(shards, keep, by, members);
            assert!(
                many <= one + encodings,
                "{shards} shards, {keep} kept, {by:?}, {members} subscribers: {many} a message, not {one}"
            );
        }
    }
}

/// A turn may make this many lists, however much it delivers: what all tells of the turn stand in,
/// grown by doubling to [`TOGETHER`], and the mail between two shards. Measured: 1, and 17.
const PER_TURN_MAX: u64 = 32;

#[test]
fn a_delivery_to_a_topic_of_its_own_costs_nothing_beyond_its_turn() {
    for (shards, keep, by) in worlds() {
        let cost = |one, subscribed| unicast(shards, keep, by, one, subscribed);
        // A turn for each message: what is paid a turn is paid a message.
        let (nobody, everybody) = (cost(true, false), cost(true, true));
        assert!(
            everybody <= TOPICS as u64 * PER_MESSAGE_MAX,
            "{shards} shards, {keep} kept, {by:?}: {everybody} for {TOPICS} messages"
        );
        let lists = everybody.saturating_sub(nobody);
        let allowed = match by {
            Transport::WebSocket => 1,
            Transport::Events => 1 + PER_ENCODING_MAX,
        };
        // Mail between shards that is cut differently may need a list more here or there.
        assert!(
            lists <= TOPICS as u64 * (allowed * 100 + 1) / 100,
            "{shards} shards, {keep} kept, {by:?}: {lists} for {TOPICS} deliveries, one a turn"
        );
        // Many in a turn: nothing is paid a message.
        let (nobody, everybody) = (cost(false, false), cost(false, true));
        let lists = everybody.saturating_sub(nobody);
        let encodings = match by {
            Transport::WebSocket => 0,
            Transport::Events => TOPICS as u64 * PER_ENCODING_MAX,
        };
        let turns = (TOPICS / TOGETHER) as u64;
        assert!(
            lists <= turns * PER_TURN_MAX + encodings,
            "{shards} shards, {keep} kept, {by:?}: {lists} for {TOPICS} deliveries in {turns} turns"
        );
    }
}
