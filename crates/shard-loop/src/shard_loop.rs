//! The event loop of a shard, generic over its [`Transport`].
//!
//! In each turn the loop waits for ready sockets and mail with one system call, hands the events to the shard within budgets of time and bytes, and
//! calls `Shard::flush`. It makes no decisions about connections: even a failure of a socket is only passed on, as `Input::Failed`.

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
use crate::shard_io::{AskBackend, AskVerifier, ShardIo};
use crate::tls::{FailureLog, Tls};
use fair_order::FairOrder;

/// Size of the shard's only receive buffer. A read touches only the pages that it fills. A publisher's batch (60 kB) fits as a whole. With
/// 64 KiB most batches took two reads, and 10% fewer messages were delivered per second.
const RECEIVE_BYTES: usize = 128 << 10;
/// The sleep of a shard that waits for a condition of which no event tells (`Shard::is_waiting`).
const CONDITION_POLL_MS: u32 = 1;
/// The maximum number of ticks in one turn. A shard that is late makes up for missed ticks.
const TICKS_PER_TURN: u32 = 8;
/// A turn with more events than this handles them in [`FairOrder`], otherwise in the poller's order.
const UNSORTED_EVENTS_MAX: usize = 8;
/// The time that a turn may spend on its events. The next wait reports the rest again.
const TURN_EVENTS_NS: u64 = 400_000;
/// The clock is read after this many events, or earlier when they have received and sent more than [`BYTES_PER_CLOCK_READ`].
const EVENTS_PER_CLOCK_READ: usize = 8;
const BYTES_PER_CLOCK_READ: u64 = 64 << 10;
/// Bytes of outboxes written in one turn. The writable sockets share this number, since hundreds may be ready at once.
const TURN_WRITE_BYTES: usize = 4 << 20;
/// The least share of one socket (some 150 us of work). With 64 KiB instead, large messages took 33% more CPU.
const SOCKET_WRITE_BYTES_MIN: usize = 256 << 10;
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
    /// Sends calls of clients to the backend.
    pub ask_backend: AskBackend,
    /// Appends to the log, if there is an engine.
    pub appender: Option<Appender>,
    /// Measures the turns, and publishes the shard's counters.
    pub meter: Meter,
    /// Certificate and settings of TLS, if it is on.
    pub tls: Option<Tls>,
    /// The clients whose events are logged; empty for all.
    pub logged_clients: Arc<[ClientFilter]>,
}

/// The loop of a shard, over connections of any kind.
pub trait Run {
    /// Runs the loop until the process ends.
    fn run(self: Box<Self>) -> !;
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
    start_ms: u64,
    /// When the next tick is due.
    next_tick_ms: u64,
    /// The second in which the wall clock was last read.
    wall_clock_read_s: u32,
}

/// Limits the log lines about refused connections. The two numbers are counts of connections that are logged already.
struct RefusalLog {
    logged_turned_away: u64,
    logged_untrusted: u64,
    /// The next line may not be logged before this second.
    quiet_until_s: u32,
    tls_failures: Option<FailureLog>,
}

impl<T: Transport> Run for ShardLoop<T> {
    fn run(mut self: Box<Self>) -> ! {
        let mut has_work = false;
        loop {
            has_work = self.run_turn(has_work);
        }
    }
}

impl<T: Transport> ShardLoop<T> {
    /// The loop of a shard. Must be called in the thread that made the transport.
    pub fn new(start: ShardStart, transport: T) -> Self {
        let offset_ms = u64::from(start.id) * TICK_OFFSET_MS % 1000;
        let start_ms = clock::monotonic_ms().saturating_sub(offset_ms);
        let world = &start.world;
        let accepts_per_s = world.settings.limits.accepts_per_s;
        let accepts_per_s = accepts_per_s.div_ceil(u32::from(world.shards));
        let accept_queue = AcceptQueue::new(accepts_per_s, transport.room(), world.seed);
        let mut shard = start
            .restored
            .unwrap_or_else(|| Shard::new(start.id, start.world, current_time(0)));
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
                ask_backend: start.ask_backend,
                appender: start.appender,
                meter,
                client_log,
                failed_connections: Vec::new(),
            },
            inbox: start.inbox,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            letters: Vec::new(),
            order: FairOrder::default(),
            accept_queue,
            first_unhandled: 0,
            schedule: TickSchedule {
                start_ms,
                next_tick_ms: start_ms,
                wall_clock_read_s: 0,
            },
            refusal_log: RefusalLog {
                logged_turned_away: 0,
                logged_untrusted: 0,
                quiet_until_s: 0,
                tls_failures: failures,
            },
        }
    }

    /// Runs one turn. `has_work` tells whether the previous turn left work. Returns whether this turn leaves work.
    fn run_turn(&mut self, has_work: bool) -> bool {
        let timeout_ms = if has_work || !self.inbox.announce_sleep() {
            Some(0)
        } else {
            self.sleep_ms()
        };
        let events = match self.io.transport.wait(timeout_ms) {
            Ok(events) => events,
            Err(error) => panic!("the transport failed: {error}"),
        };
        self.inbox.end_sleep();
        let turn_start_ns = self.io.meter.begin_turn();
        self.shard.set_turn_time(turn_start_ns);
        let now_ms = clock::monotonic_ms();
        let now = current_time(now_ms - self.schedule.start_ms);
        if now.unix_s != self.schedule.wall_clock_read_s {
            // Dates need the wall clock only once a second, so most turns do not read it.
            self.schedule.wall_clock_read_s = now.unix_s;
            self.shard.set_wall_clock_offset(clock::wall_offset_s());
        }
        self.tick(now_ms, now);
        self.handle_events(events, turn_start_ns + TURN_EVENTS_NS, now);
        if !self.accept_queue.is_empty() {
            self.accept(None, turn_start_ns + TURN_EVENTS_NS, now);
        }
        let has_handshakes = self.continue_handshakes(now);
        let mut letters = std::mem::take(&mut self.letters);
        self.inbox.drain(&mut letters);
        for letter in letters.drain(..) {
            let input = match letter {
                Letter::Mail(mail) => Input::Mail(mail),
                Letter::Control(ticket, control) => Input::Control(ticket, control),
                Letter::Verdict(conn, verdict) => Input::Verdict(conn, verdict),
                Letter::BackendAnswer(conn, answer) => Input::BackendAnswer(conn, answer),
                Letter::Counted(reply_to, subscribers) => {
                    Input::SubscriberCount(reply_to, subscribers)
                }
                Letter::Committed(committed) => Input::Committed(committed),
            };
            self.shard.handle(input, now, &mut self.io);
        }
        self.letters = letters;
        if self.shard.is_draining() {
            self.close_listeners(now);
        }
        let has_work = self.shard.flush(now, &mut self.io) | has_handshakes;
        if let Some(appender) = &mut self.io.appender {
            appender.flush();
        }
        while let Some(conn) = self.io.failed_connections.pop() {
            self.shard.handle(Input::Failed(conn), now, &mut self.io);
        }
        let connections = self.shard.connection_count() + self.accept_queue.len() as u32;
        let now_ms = clock::monotonic_ms();
        if let Err(error) = self.io.transport.adjust_accepting(connections, now_ms) {
            tracing::warn!(%error, "new connections cannot be kept from a shard that is full");
        }
        self.log_tls_failures(now);
        let tls = self.io.tls.as_deref();
        let transport = &self.io.transport;
        self.io.meter.end_turn(&self.shard, tls, transport, now_ms);
        has_work
    }

    /// Handles the events of a wait, within the turn's budgets. The next wait reports the remaining events again, with the same numbers.
    /// The next turn begins with them. Otherwise the earlier events, which may be ready at every wait, would delay them again.
    fn handle_events(&mut self, events: usize, until_ns: u64, now: Now) {
        let first = std::mem::take(&mut self.first_unhandled);
        let is_sorted = events > UNSORTED_EVENTS_MAX;
        let mut writable = 0;
        if is_sorted {
            let (shard, transport) = (&self.shard, &self.io.transport);
            self.order
                .sort_fairly(events, first, |event| match transport.event(event) {
                    Event::Link(ready) => {
                        writable += usize::from(ready.writable);
                        shard.party_of(ConnId::from_token(ready.token))
                    }
                    Event::Listener(_) | Event::Woken => 0,
                });
        }
        let write_bytes = (TURN_WRITE_BYTES / writable.max(1)).max(SOCKET_WRITE_BYTES_MIN);
        let (mut clock_read_position, mut counted_bytes) = (0, self.moved_bytes());
        for position in 0..events {
            let new_bytes = self.moved_bytes() - counted_bytes;
            let reads_clock = position - clock_read_position >= EVENTS_PER_CLOCK_READ
                || new_bytes > BYTES_PER_CLOCK_READ;
            if reads_clock {
                (clock_read_position, counted_bytes) = (position, self.moved_bytes());
            }
            let is_late = reads_clock && clock::monotonic_ns() > until_ns;
            let event = match is_sorted {
                true => self.order.event_at(position),
                false => (first + position) % events,
            };
            if is_late || self.shard.is_spent() {
                self.first_unhandled = event;
                return;
            }
            match self.io.transport.event(event) {
                Event::Link(ready) => self.handle_connection_event(ready, write_bytes, now),
                Event::Listener(listener) => self.accept(Some(listener), until_ns, now),
                Event::Woken => {}
            }
        }
    }

    /// Bytes received from sockets and sent to them.
    fn moved_bytes(&self) -> u64 {
        let stats = &self.io.meter.loop_stats;
        stats.received_bytes + stats.sent_bytes
    }

    /// Ticks the shard at the beginning of each second, and more often if the shard requires it (`Shard::ms_until_tick`).
    fn tick(&mut self, now_ms: u64, now: Now) {
        for _ in 0..TICKS_PER_TURN {
            if now_ms < self.schedule.next_tick_ms {
                return;
            }
            self.shard.handle(Input::Tick, now, &mut self.io);
            self.schedule.next_tick_ms = match self.shard.ms_until_tick() {
                Some(ms) => self.schedule.next_tick_ms + u64::from(ms),
                None => {
                    self.log_turned_away(now);
                    now_ms + 1000 - (now_ms - self.schedule.start_ms) % 1000
                }
            };
        }
    }

    /// The timeout of the next wait: until the next tick if anything can time out, until the counters must be published, until the accept queue may
    /// admit the next connection, or until the shard has news to tell. `None` is a wait without end.
    fn sleep_ms(&self) -> Option<u32> {
        if self.shard.is_waiting() {
            return Some(CONDITION_POLL_MS);
        }
        let now_ms = clock::monotonic_ms();
        let needs_tick = !self.shard.is_idle();
        let tick_ms = needs_tick.then(|| self.schedule.next_tick_ms.saturating_sub(now_ms) as u32);
        let publish_ms = self.io.meter.sleep_ms(now_ms);
        let has_waiting = !self.accept_queue.is_empty();
        let paused_ms =
            has_waiting.then(|| self.accept_queue.paused_until_ms().saturating_sub(now_ms) as u32);
        let now_ns = clock::monotonic_ns();
        let from_now_ms = |at_ns: u64| at_ns.saturating_sub(now_ns).div_ceil(1_000_000) as u32;
        let news_ms = self.shard.next_wake_ns().map(from_now_ms);
        let known_ms = tick_ms.into_iter().chain(publish_ms).chain(paused_ms);
        known_ms.chain(news_ms).min()
    }
}

/// The current time, for a shard whose seconds began `elapsed_ms` ago.
fn current_time(elapsed_ms: u64) -> Now {
    Now {
        s: u32::try_from(elapsed_ms / 1000 + 1).unwrap_or(u32::MAX),
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
