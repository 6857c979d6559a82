//! One shard's thread: turns until it is told to stop, over the [`Transport`] that it was given ([`links`] implements the
//! broker's [`Io`](crore_broker::Io) by it).
//!
//! A turn: wait for readiness and mail with one system call, hand everything to the shard within
//! budgets, then flush. The loop decides nothing; a failure of a socket becomes `Input::Closed`.

mod arrivals;
mod client_log;
mod engine;
mod events;
mod letters;
mod links;
mod order;

use std::sync::Arc;

use crore_broker::accept_queue::AcceptQueue;
use crore_broker::{ConnId, Input, Now, Shard, ShardId, World};
use crore_net::transport::{Event, Transport};
use crore_net::{Inbox, Sender, clock};

use crate::access::QuestionSender;
use crate::counters::Meter;
use crate::settings::log::ClientFilter;
use crate::tls;
use client_log::ClientLog;
pub use engine::{Appender, Durable, Engine, Listener, Member, start_disk};
pub use letters::{Letter, Reported};
use links::Links;
use order::Order;

/// The shard's one receive buffer. Its pages are touched only as far as a read fills them. A publisher's batch
/// (60 kB) fits in whole: with 64 KiB most of them came in two, and a tenth fewer messages a second were delivered.
const RECEIVE_BYTES: usize = 128 << 10;
/// How long a shard that waits for another's credit sleeps.
const STALL_MS: u32 = 1;
/// Ticks of one turn at most, by which a shard that could not tick in time catches up.
const TICKS_PER_TURN: u32 = 8;
/// A turn with more events than this deals with them in the order of [`Order`], and with fewer as they come.
const FEW_EVENTS: usize = 8;
/// The time that a turn may spend on its events: the rest are reported again by the next wait.
const EVENTS_NS: u64 = 400_000;
/// Events between two looks at the clock, and bytes that they may move meanwhile.
const EVENTS_TOGETHER: usize = 8;
const BYTES_TOGETHER: u64 = 64 << 10;
/// Bytes of outboxes that the writable sockets of a turn share: hundreds of them may be ready beside those of other clients. In a
/// turn with few events each socket may get them all.
const WRITES_BYTES: usize = 4 << 20;
/// Bytes that each of them gets in any case, in some 150 us. With 64 KiB, large messages took a third more CPU.
const WRITE_BYTES: usize = 256 << 10;
/// How far the seconds of one shard are from those of the next, in milliseconds: a golden section, so that
/// the sweeps of any number of shards fall between each other.
const SHARD_APART_MS: u64 = 618;
/// Everything that a shard thread needs to begin.
pub struct Start {
    /// Its number.
    pub id: ShardId,
    /// The state that all shards share.
    pub world: Arc<World>,
    /// The shard, with the state that its predecessor left.
    pub shard: Option<Shard>,
    /// Its mail.
    pub inbox: Inbox<Letter>,
    /// The inboxes of all shards, by number.
    pub peers: Vec<Sender<Letter>>,
    /// Where reports go.
    pub reports: Sender<Reported>,
    /// Its way to ask about credentials.
    pub questions: QuestionSender,
    /// Its way to the engine, where there is one.
    pub appender: Option<Appender>,
    /// Where its counters stand.
    pub meter: Meter,
    /// By what TLS handshakes are done, where there are some.
    pub tls: Option<tls::Shared>,
    /// Whose lines the log of clients has; empty for all.
    pub logged: Arc<[ClientFilter]>,
}

/// The thread.
pub struct ShardLoop<T> {
    shard: Shard,
    io: Links<T>,
    inbox: Inbox<Letter>,
    buffer: Box<[u8]>,
    letters: Vec<Letter>,
    order: Order,
    accept_queue: AcceptQueue,
    /// The event from which on the last turn had no time.
    left_from: usize,
    pulse: Pulse,
    told: Told,
}

/// The times by which a shard ticks.
struct Pulse {
    /// When the shard began.
    began_ms: u64,
    /// When the next tick is due.
    tick_ms: u64,
    /// The second of the last look at the wall clock.
    looked_s: u32,
}

/// The refused connections that the log has told: not each of them is a line.
struct Told {
    turned_away: u64,
    untrusted: u64,
    /// Until this second the log says nothing more of connections that are turned away.
    quiet_until_s: u32,
    tls: Option<tls::FailureLog>,
}

impl<T: Transport> ShardLoop<T> {
    /// In the thread that made the transport.
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
        let mut meter = start.meter;
        meter.turns.room = u64::from(transport.room());
        ShardLoop {
            shard,
            io: Links {
                transport,
                tls: start.tls.as_ref().map(tls::Shared::streams),
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
                tls: start.tls.as_ref().map(tls::Shared::failure_log),
            },
        }
    }

    /// Turns for ever.
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
            // Once a second is often enough for dates, and spares each turn a look at another clock.
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

    /// Deals with the events of a wait, as far as the turn goes. The next wait reports the others again, at the places that they
    /// had: it begins with them, since those before may be ready at every wait.
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

    /// Bytes that came from sockets or that these took.
    fn moved_bytes(&self) -> u64 {
        let turns = &self.io.meter.turns;
        turns.received_bytes + turns.sent_bytes
    }

    /// Says how time passes: as each second begins, and within it as often as the shard asks for.
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

    /// Until the next tick while there is anything that may time out or is to be told, and until the rate admits connections
    /// that wait; else without end.
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

/// The moment at which a shard began, so long after that.
pub fn now(elapsed_ms: u64) -> Now {
    Now {
        s: u32::try_from(elapsed_ms / 1000 + 1).unwrap_or(u32::MAX),
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
