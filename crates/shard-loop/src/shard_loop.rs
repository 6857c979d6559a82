//! The event loop of a shard, generic over its [`Transport`].
//!
//! In each turn the loop waits for ready sockets and mail with one system call, hands the events to the shard within budgets of time and bytes, and
//! calls `Shard::flush`. It makes no decisions about connections: even a failure of a socket is only passed on, as `Input::Closed`.

mod arrivals;
mod events;
mod fair_order;

use std::sync::Arc;

use crore_broker::accept_queue::AcceptQueue;
use crore_broker::{ConnId, Input, Now, Shard, ShardId, World};
use crore_net::transport::{Event, Transport};
use crore_net::{Inbox, Sender, clock};
use crore_settings::ClientFilter;

use crate::appender::Appender;
use crate::client_log::ClientLog;
use crate::counters::Meter;
use crate::letters::{ControlLetter, Letter};
use crate::shard_io::{AskVerifier, ShardIo};
use crate::tls::{FailureLog, Tls};
use fair_order::FairOrder;

/// Size of the shard's only receive buffer. A read touches only the pages that it fills. A publisher's batch (60 kB) fits as a whole. With
/// 64 KiB most batches took two reads, and 10% fewer messages were delivered per second.
const RECEIVE_BYTES: usize = 128 << 10;
/// The sleep of a shard that waits for a condition that no event reports (`Shard::is_waiting`).
const STALL_MS: u32 = 1;
/// Most ticks in one turn. A shard that is late makes up for missed ticks.
const TICKS_PER_TURN: u32 = 8;
/// A turn with more events than this handles them in [`FairOrder`], otherwise in the poller's order.
const FEW_EVENTS: usize = 8;
/// The time that a turn may spend on its events. The next wait reports the rest again.
const EVENTS_NS: u64 = 400_000;
/// The clock is read after this many events, or earlier when they have received and sent more than [`BYTES_TOGETHER`].
const EVENTS_TOGETHER: usize = 8;
const BYTES_TOGETHER: u64 = 64 << 10;
/// Bytes of outboxes written in one turn. The writable sockets share this number, since hundreds may be ready at once.
const WRITES_BYTES: usize = 4 << 20;
/// The least share of one socket (some 150 us of work). With 64 KiB instead, large messages took 33% more CPU.
const WRITE_BYTES: usize = 256 << 10;
/// Offset between the ticks of two successive shards, in milliseconds. It is the golden section of a second, so that the ticks of any
/// number of shards are spread evenly over the second.
const TICK_OFFSET_MS: u64 = 618;

/// Everything that a shard thread needs to begin.
pub struct ShardStart {
    /// The shard's number.
    pub id: ShardId,
    /// The state that all shards share.
    pub world: Arc<World>,
    /// The shard with its restored state. None makes a new shard.
    pub restored: Option<Shard>,
    /// The shard's inbox.
    pub inbox: Inbox<Letter>,
    /// The inboxes of all shards, by number.
    pub peers: Vec<Sender<Letter>>,
    /// The control thread's inbox.
    pub reports: Sender<ControlLetter>,
    /// Sends credentials to the verifier.
    pub ask_verifier: AskVerifier,
    /// Appends to the log, if there is an engine.
    pub appender: Option<Appender>,
    /// Measures the turns, and publishes the shard's counters.
    pub meter: Meter,
    /// Certificate and settings of TLS, if it is on.
    pub tls: Option<Tls>,
    /// The clients whose events are logged; empty for all.
    pub logged_clients: Arc<[ClientFilter]>,
}

/// The event loop.
pub struct ShardLoop<T> {
    shard: Shard,
    io: ShardIo<T>,
    inbox: Inbox<Letter>,
    buffer: Box<[u8]>,
    letters: Vec<Letter>,
    order: FairOrder,
    accept_queue: AcceptQueue,
    /// The number of the first event that the last turn had no time for.
    first_unhandled: usize,
    schedule: TickSchedule,
    refusal_log: RefusalLog,
}

/// The schedule of a shard's ticks.
struct TickSchedule {
    /// The start of the shard, minus the offset of the shard's ticks. The shard's seconds are counted from here.
    began_ms: u64,
    /// When the next tick is due.
    tick_ms: u64,
    /// The second in which the wall clock was last read.
    wall_read_s: u32,
}

/// Limits the log lines about refused connections. `turned_away` and `untrusted` count the connections that are logged already.
struct RefusalLog {
    turned_away: u64,
    untrusted: u64,
    /// The next line may not be logged before this second.
    quiet_until_s: u32,
    tls_failures: Option<FailureLog>,
}

impl<T: Transport> ShardLoop<T> {
    /// The loop of a shard. Must be called in the thread that made the transport.
    pub fn new(start: ShardStart, transport: T) -> Self {
        let offset_ms = u64::from(start.id) * TICK_OFFSET_MS % 1000;
        let began_ms = clock::monotonic_ms().saturating_sub(offset_ms);
        let world = &start.world;
        let accepts_per_s = world.settings.limits.accepts_per_s;
        let accepts_per_s = accepts_per_s.div_ceil(u32::from(world.shards));
        let accept_queue = AcceptQueue::new(accepts_per_s, transport.room(), world.seed);
        let mut shard = start
            .restored
            .unwrap_or_else(|| Shard::new(start.id, start.world, now(0)));
        shard.limit_connections(transport.room());
        let client_log = ClientLog::if_enabled(start.id, &start.logged_clients);
        if client_log.is_some() {
            shard.report_client_events();
        }
        let (streams, failures) = start.tls.map(|it| (it.streams, it.failures)).unzip();
        let mut meter = start.meter;
        meter.loop_stats.connections_max = u64::from(transport.room());
        ShardLoop {
            shard,
            io: ShardIo {
                transport,
                tls: streams,
                peers: start.peers,
                reports: start.reports,
                ask_verifier: start.ask_verifier,
                appender: start.appender,
                meter,
                client_log,
                failed: Vec::new(),
            },
            inbox: start.inbox,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            letters: Vec::new(),
            order: FairOrder::default(),
            accept_queue,
            first_unhandled: 0,
            schedule: TickSchedule {
                began_ms,
                tick_ms: began_ms,
                wall_read_s: 0,
            },
            refusal_log: RefusalLog {
                turned_away: 0,
                untrusted: 0,
                quiet_until_s: 0,
                tls_failures: failures,
            },
        }
    }

    /// Runs the loop until the process ends.
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
        self.shard.set_turn_time(began_ns);
        let now_ms = clock::monotonic_ms();
        let now = now(now_ms - self.schedule.began_ms);
        if now.unix_s != self.schedule.wall_read_s {
            // Dates need the wall clock only once a second, so most turns do not read it.
            self.schedule.wall_read_s = now.unix_s;
            self.shard.set_wall_clock_offset(clock::wall_offset_s());
        }
        self.tick(now_ms, now);
        self.handle_events(events, began_ns + EVENTS_NS, now);
        if !self.accept_queue.is_empty() {
            self.accept(None, began_ns + EVENTS_NS, now);
        }
        let handshakes = self.continue_handshakes(now);
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
            self.close_listeners(now);
        }
        let busy = self.shard.flush(now, &mut self.io) | handshakes;
        if let Some(appender) = &mut self.io.appender {
            appender.flush();
        }
        while let Some(conn) = self.io.failed.pop() {
            self.shard.handle(Input::Closed(conn), now, &mut self.io);
        }
        let connections = self.shard.connections() + self.accept_queue.len() as u32;
        let now_ms = clock::monotonic_ms();
        if let Err(error) = self.io.transport.settle(connections, now_ms) {
            tracing::warn!(%error, "new connections cannot be kept from a shard that is full");
        }
        self.log_tls_failures(now);
        let tls = self.io.tls.as_deref();
        self.io.meter.end_turn(&self.shard, tls, now_ms);
        busy
    }

    /// Handles the events of a wait, within the turn's budgets. The next wait reports the remaining events again, with the same numbers.
    /// The next turn begins with the remaining events: the earlier ones may be ready at every wait, and would delay them again.
    fn handle_events(&mut self, events: usize, until_ns: u64, now: Now) {
        let from = std::mem::take(&mut self.first_unhandled);
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
                    Event::AcceptResult(_) | Event::Woken => 0,
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
                true => self.order.event_at(place),
                false => (from + place) % events,
            };
            if late || self.shard.is_spent() {
                self.first_unhandled = n;
                return;
            }
            match self.io.transport.event(n) {
                Event::Link(ready) => self.handle_connection_event(ready, write_bytes, now),
                Event::AcceptResult(listener) => self.accept(Some(listener), until_ns, now),
                Event::Woken => {}
            }
        }
    }

    /// Bytes received from sockets and sent to them.
    fn moved_bytes(&self) -> u64 {
        let stats = &self.io.meter.loop_stats;
        stats.received_bytes + stats.sent_bytes
    }

    /// Ticks the shard at the beginning of each second, and more often if the shard requires it (`Shard::tick_in_ms`).
    fn tick(&mut self, now_ms: u64, now: Now) {
        for _ in 0..TICKS_PER_TURN {
            if now_ms < self.schedule.tick_ms {
                return;
            }
            self.shard.handle(Input::Tick, now, &mut self.io);
            self.schedule.tick_ms = match self.shard.tick_in_ms() {
                Some(ms) => self.schedule.tick_ms + u64::from(ms),
                None => {
                    self.log_turned_away(now);
                    now_ms + 1000 - (now_ms - self.schedule.began_ms) % 1000
                }
            };
        }
    }

    /// The timeout of the next wait: until the next tick if anything can time out, until the counters must be published, until the accept queue may
    /// admit the next connection, or until the shard has news to tell. `None` is a wait without end.
    fn sleep_ms(&self) -> Option<u32> {
        if self.shard.is_waiting() {
            return Some(STALL_MS);
        }
        let now_ms = clock::monotonic_ms();
        let ticks = !self.shard.is_idle();
        let tick = ticks.then(|| self.schedule.tick_ms.saturating_sub(now_ms) as u32);
        let publish = self.io.meter.sleep_ms(now_ms);
        let waits = !self.accept_queue.is_empty();
        let paused_ms =
            waits.then(|| self.accept_queue.paused_until_ms().saturating_sub(now_ms) as u32);
        let now_ns = clock::monotonic_ns();
        let in_ms = |at_ns: u64| at_ns.saturating_sub(now_ns).div_ceil(1_000_000) as u32;
        let wakes_ms = self.shard.wakes_at_ns().map(in_ms);
        let sooner = tick.into_iter().chain(publish).chain(paused_ms);
        sooner.chain(wakes_ms).min()
    }
}

/// The current time, for a shard whose seconds began `elapsed_ms` ago.
fn now(elapsed_ms: u64) -> Now {
    Now {
        s: u32::try_from(elapsed_ms / 1000 + 1).unwrap_or(u32::MAX),
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
