//! The event loop of a shard, generic over its [`Transport`].
//!
//! A turn waits for readiness and mail with one system call, hands all events to the shard within time and byte budgets, and flushes. The
//! loop decides nothing: a failure of a socket becomes `Input::Closed`.

mod arrivals;
mod events;
mod order;

use std::sync::Arc;

use crore_broker::accept_queue::AcceptQueue;
use crore_broker::{ConnId, Input, Now, Shard, ShardId, World};
use crore_net::transport::{Event, Transport};
use crore_net::{Inbox, Sender, clock};
use crore_settings::ClientFilter;

use crate::appender::Appender;
use crate::client_log::ClientLog;
use crate::counters::Meter;
use crate::letters::{Letter, Reported};
use crate::links::{Links, Questions};
use crate::tls::{FailureLog, Tls};
use order::Order;

/// Size of the shard's one receive buffer. Its pages are touched only as far as a read fills them. A publisher's batch
/// (60 kB) fits as a whole. With 64 KiB most batches took two reads, and a tenth fewer messages were delivered per second.
const RECEIVE_BYTES: usize = 128 << 10;
/// Sleep of a shard that waits for another shard's credit.
const STALL_MS: u32 = 1;
/// Most ticks in one turn. A shard that is late makes up for missed ticks.
const TICKS_PER_TURN: u32 = 8;
/// With more events than this a turn handles them in the order of [`Order`], otherwise in the poller's order.
const FEW_EVENTS: usize = 8;
/// The time that a turn may spend on its events. The next wait reports the rest again.
const EVENTS_NS: u64 = 400_000;
/// The clock is read after this many events, or earlier when they have moved more than [`BYTES_TOGETHER`].
const EVENTS_TOGETHER: usize = 8;
const BYTES_TOGETHER: u64 = 64 << 10;
/// Bytes of outboxes written in one turn, divided among its writable sockets: hundreds may be ready at once.
const WRITES_BYTES: usize = 4 << 20;
/// The least share of one socket (some 150 us of work). With 64 KiB, large messages took a third more CPU.
const WRITE_BYTES: usize = 256 << 10;
/// Offset between the seconds of two neighbouring shards, in milliseconds. It is a golden section, so that the sweeps of any number of
/// shards spread evenly over the second.
const SHARD_APART_MS: u64 = 618;

/// Everything that a shard thread needs to begin.
pub struct Start {
    /// Its number.
    pub id: ShardId,
    /// The state that all shards share.
    pub world: Arc<World>,
    /// The shard with restored state. Without one a new shard is made.
    pub shard: Option<Shard>,
    /// Its mailbox.
    pub inbox: Inbox<Letter>,
    /// The inboxes of all shards, by number.
    pub peers: Vec<Sender<Letter>>,
    /// The control thread's inbox.
    pub reports: Sender<Reported>,
    /// Sends credentials to the thread that verifies them.
    pub questions: Questions,
    /// Appends to the log, if there is an engine.
    pub appender: Option<Appender>,
    /// Publishes its counters.
    pub meter: Meter,
    /// Certificate and settings of TLS, if it is on.
    pub tls: Option<Tls>,
    /// The clients whose events are logged; empty for all.
    pub logged: Arc<[ClientFilter]>,
}

/// The event loop.
pub struct ShardLoop<T> {
    shard: Shard,
    io: Links<T>,
    inbox: Inbox<Letter>,
    buffer: Box<[u8]>,
    letters: Vec<Letter>,
    order: Order,
    accept_queue: AcceptQueue,
    /// The first event that the last turn had no time for.
    left_from: usize,
    pulse: Pulse,
    told: Told,
}

/// The schedule of a shard's ticks.
struct Pulse {
    /// When the shard began.
    began_ms: u64,
    /// When the next tick is due.
    tick_ms: u64,
    /// The second in which the wall clock was last read.
    looked_s: u32,
}

/// State that limits log lines about refused connections: the counts already logged.
struct Told {
    turned_away: u64,
    untrusted: u64,
    /// No line about connections that are turned away before this second.
    quiet_until_s: u32,
    tls: Option<FailureLog>,
}

impl<T: Transport> ShardLoop<T> {
    /// Must be called in the thread that made the transport.
    pub fn new(start: Start, transport: T) -> Self {
        let apart_ms = u64::from(start.id) * SHARD_APART_MS % 1000;
        let began_ms = clock::monotonic_ms().saturating_sub(apart_ms);
        let world = &start.world;
        let accepts_per_s = world.settings.limits.accepts_per_s;
        let accepts_per_s = accepts_per_s.div_ceil(u32::from(world.shards));
        let accept_queue = AcceptQueue::new(accepts_per_s, transport.room(), world.seed);
        let begun = start.shard;
        let mut shard = begun.unwrap_or_else(|| Shard::new(start.id, start.world, now(0)));
        shard.limit_connections(transport.room());
        let client_log = ClientLog::wanted(start.id, &start.logged);
        if client_log.is_some() {
            shard.log_clients();
        }
        let (streams, failures) = start.tls.map(|it| (it.streams, it.failures)).unzip();
        let mut meter = start.meter;
        meter.turns.room = u64::from(transport.room());
        ShardLoop {
            shard,
            io: Links {
                transport,
                tls: streams,
                peers: start.peers,
                reports: start.reports,
                questions: start.questions,
                appender: start.appender,
                meter,
                client_log,
                failed: Vec::new(),
            },
            inbox: start.inbox,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            letters: Vec::new(),
            order: Order::default(),
            accept_queue,
            left_from: 0,
            pulse: Pulse {
                began_ms,
                tick_ms: began_ms,
                looked_s: 0,
            },
            told: Told {
                turned_away: 0,
                untrusted: 0,
                quiet_until_s: 0,
                tls: failures,
            },
        }
    }

    /// Runs turns until the process ends.
    pub fn run(mut self) -> ! {
        let mut busy = false;
        loop {
            busy = self.turn(busy);
        }
    }

    fn turn(&mut self, busy: bool) -> bool {
        let timeout_ms = if busy || !self.inbox.sleep() {
            Some(0)
        } else {
            self.sleep_ms()
        };
        let events = match self.io.transport.wait(timeout_ms) {
            Ok(events) => events,
            Err(error) => panic!("the transport failed: {error}"),
        };
        self.inbox.awake();
        let began_ns = self.io.meter.begin_turn();
        self.shard.stamp(began_ns);
        let now_ms = clock::monotonic_ms();
        let now = now(now_ms - self.pulse.began_ms);
        if now.unix_s != self.pulse.looked_s {
            // Dates need the wall clock once a second only, so that most turns do not read it.
            self.pulse.looked_s = now.unix_s;
            self.shard.set_wall(clock::ahead_s());
        }
        self.tick(now_ms, now);
        self.events(events, began_ns + EVENTS_NS, now);
        if !self.accept_queue.is_empty() {
            self.accept(None, began_ns + EVENTS_NS, now);
        }
        let handshakes = self.handshakes(now);
        let mut letters = std::mem::take(&mut self.letters);
        self.inbox.drain(&mut letters);
        for letter in letters.drain(..) {
            let input = match letter {
                Letter::Mail(mail) => Input::Mail(mail),
                Letter::Control(ticket, control) => Input::Control(ticket, control),
                Letter::Verdict(conn, verdict) => Input::Verdict(conn, verdict),
                Letter::Counted(to, elsewhere) => Input::Counted(to, elsewhere),
                Letter::Committed(of) => Input::Committed(of),
            };
            self.shard.handle(input, now, &mut self.io);
        }
        self.letters = letters;
        if self.shard.drains() {
            self.close_entrance(now);
        }
        let busy = self.shard.flush(now, &mut self.io) | handshakes;
        if let Some(appender) = &mut self.io.appender {
            appender.hand_over();
        }
        while let Some(conn) = self.io.failed.pop() {
            self.shard.handle(Input::Closed(conn), now, &mut self.io);
        }
        let connections = self.shard.connections() + self.accept_queue.len() as u32;
        let now_ms = clock::monotonic_ms();
        if let Err(error) = self.io.transport.settle(connections, now_ms) {
            tracing::warn!(%error, "new connections cannot be kept from a shard that is full");
        }
        self.tell_tls(now);
        let tls = self.io.tls.as_deref();
        self.io.meter.end_turn(&self.shard, tls, now_ms);
        busy
    }

    /// Handles the events of a wait, within the turn's budgets. The next wait reports the remaining events again, in the same
    /// places. The next turn begins with them, since the events before them may be ready at every wait.
    fn events(&mut self, events: usize, until_ns: u64, now: Now) {
        let from = std::mem::take(&mut self.left_from);
        let many = events > FEW_EVENTS;
        let mut writable = 0;
        if many {
            let (shard, transport) = (&self.shard, &self.io.transport);
            self.order
                .arrange(events, from, |n| match transport.event(n) {
                    Event::Link(ready) => {
                        writable += usize::from(ready.writable);
                        shard.party_of(ConnId::from_token(ready.token))
                    }
                    Event::Arrival(_) | Event::Woken => 0,
                });
        }
        let write_bytes = (WRITES_BYTES / writable.max(1)).max(WRITE_BYTES);
        let (mut looked_at, mut moved_bytes) = (0, self.moved_bytes());
        for place in 0..events {
            let moved = self.moved_bytes() - moved_bytes;
            let looks = place - looked_at >= EVENTS_TOGETHER || moved > BYTES_TOGETHER;
            if looks {
                (looked_at, moved_bytes) = (place, self.moved_bytes());
            }
            let late = looks && clock::monotonic_ns() > until_ns;
            let n = match many {
                true => self.order.at(place),
                false => (from + place) % events,
            };
            if late || self.shard.is_spent() {
                self.left_from = n;
                return;
            }
            match self.io.transport.event(n) {
                Event::Link(ready) => self.connection_event(ready, write_bytes, now),
                Event::Arrival(listener) => self.accept(Some(listener), until_ns, now),
                Event::Woken => {}
            }
        }
    }

    /// Bytes received from sockets and sent to them.
    fn moved_bytes(&self) -> u64 {
        let turns = &self.io.meter.turns;
        turns.received_bytes + turns.sent_bytes
    }

    /// Ticks the shard at the beginning of each second, and within the second as often as it asks for.
    fn tick(&mut self, now_ms: u64, now: Now) {
        for _ in 0..TICKS_PER_TURN {
            if now_ms < self.pulse.tick_ms {
                return;
            }
            self.shard.handle(Input::Tick, now, &mut self.io);
            self.pulse.tick_ms = match self.shard.tick_in_ms() {
                Some(ms) => self.pulse.tick_ms + u64::from(ms),
                None => {
                    self.tell_turned_away(now);
                    now_ms + 1000 - (now_ms - self.pulse.began_ms) % 1000
                }
            };
        }
    }

    /// The timeout of the next wait: until the next tick if anything may time out, until counters are due, or until a connection that waits
    /// may be admitted, whichever is first. `None` waits without end.
    fn sleep_ms(&self) -> Option<u32> {
        if self.shard.is_waiting() {
            return Some(STALL_MS);
        }
        let now_ms = clock::monotonic_ms();
        let ticks = !self.shard.is_idle();
        let tick = ticks.then(|| self.pulse.tick_ms.saturating_sub(now_ms) as u32);
        let publish = self.io.meter.sleep_ms(now_ms);
        let waits = !self.accept_queue.is_empty();
        let paused_ms =
            waits.then(|| self.accept_queue.paused_until_ms().saturating_sub(now_ms) as u32);
        tick.into_iter().chain(publish).chain(paused_ms).min()
    }
}

/// The time of a shard that began `elapsed_ms` ago.
fn now(elapsed_ms: u64) -> Now {
    Now {
        s: u32::try_from(elapsed_ms / 1000 + 1).unwrap_or(u32::MAX),
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
