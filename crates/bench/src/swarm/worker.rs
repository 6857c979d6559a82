//! A worker: the clients of one device, on one thread. It handles packets and timers, and makes clients connect and drop.

mod connection;
mod receive;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crore_tcp::{Account, Config, Conn, Secret, Table};

use super::churn::{ConnectQueue, DropQueue, Pace};
use super::client_row::{ClientAddresses, ClientRow, IncompleteUnits, State, mark};
use super::counts::Counts;
use super::namespace::PACKET_BYTES;
use super::plan::{Plan, Shared};
use super::timers::{Kind, Timers};
use super::wire::{READ_BYTES, Wire};
use crate::measure::payload::mix;
use crate::sys;

/// The maximum number of packets that are read in one turn.
const PACKETS: usize = 256;
/// Consecutive failed attempts after which a client gives up.
const FAILURES_MAX: u8 = 5;
/// Retransmissions after 1, 2, 4, 8 and 16 seconds without an acknowledgement, of which the last one is not made: the client gives up instead.
pub const RETRIES: u8 = 5;
const RETRY_US: u32 = 1_000_000;
/// The number of bytes of a client that may wait to be acknowledged.
pub const SEND_BYTES: u32 = 64 << 10;
/// A slow reader reads `1 << SLOW_LOG2` bytes a second, and has a receive buffer of this size.
const SLOW_LOG2: u8 = 10;
/// The maximum wait for packets before commands are read again.
const POLL_NS: u64 = 5_000_000;
/// Time between two reports of the counters.
const REPORT_NS: u64 = 50_000_000;

/// The clients of one device.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    clients: Clients,
    /// The connections that are not parked.
    table: Table<&'static [u8], NoAccount>,
    wire: Wire,
    timers: Timers,
    counts: Counts,
    /// Clients whose connection may be idle now.
    to_park: Vec<u32>,
    /// Scratch list: clients whose connection is over.
    over: Vec<u32>,
    /// The largest number of connections in the table.
    active_max: usize,
    connect_queue: ConnectQueue,
    drop_queue: DropQueue,
    /// Scratch buffer: the held bytes of a client, followed by the received ones.
    joined: Vec<u8>,
    request: String,
}

/// The clients: a row for each, and incomplete units of some of them.
struct Clients {
    /// The topic index of the first client.
    first: u32,
    addresses: ClientAddresses,
    rows: Vec<ClientRow>,
    incomplete: IncompleteUnits,
}

/// Nobody counts the bytes that connections hold: clients read them at once.
struct NoAccount;

impl Account for NoAccount {
    fn charge(&mut self, _: Conn, _: usize) -> bool {
        true
    }

    fn release(&mut self, _: Conn, _: usize) {}
}

/// The settings of the clients' TCP: a plain one, so that the server's end costs the least. The worker knows the client of each segment, and
/// its clients close first and connect again from the same port at once.
fn config(clients: u32) -> Config {
    Config {
        packet_bytes: PACKET_BYTES,
        computes_checksums: false,
        verifies_checksums: false,
        finds_connections: false,
        uses_extensions: false,
        connections: clients,
        send_bytes: SEND_BYTES,
        ack_delay_us: 0,
        rto_first_us: RETRY_US,
        rto_min_us: RETRY_US,
        retries: RETRIES - 1,
        syn_retries: RETRIES - 1,
        time_wait_ms: 0,
        ..Config::default()
    }
}

impl Worker {
    /// A worker for clients `first..first + addresses.count` on this link.
    pub fn new(
        plan: Arc<Plan>,
        shared: Arc<Shared>,
        first: u32,
        addresses: ClientAddresses,
        wire: Wire,
        pace: Pace,
    ) -> Worker {
        const STEPS: u64 = 1 << 32;
        let slow = (plan.slow_share * STEPS as f64) as u64;
        let row = |index| {
            let mut row = ClientRow::new();
            row.mark(mark::SLOW, mix(u64::from(first + index)) >> 32 < slow);
            row
        };
        // Nobody attacks these clients, so that the secret need not be one. It differs between runs.
        let secret = Secret(sys::now_ns(), first.into());
        let mut table = Table::new(config(addresses.count), secret, NoAccount);
        for end in addresses.addresses() {
            table.add_address(end);
        }
        Worker {
            connect_queue: ConnectQueue::new(pace, addresses.count),
            clients: Clients {
                first,
                rows: (0..addresses.count).map(row).collect(),
                addresses,
                incomplete: IncompleteUnits::default(),
            },
            timers: Timers::new(plan.close_within_ns),
            plan,
            shared,
            table,
            wire,
            counts: Counts::default(),
            to_park: Vec::new(),
            over: Vec::new(),
            active_max: 0,
            drop_queue: DropQueue::new(u64::from(first)),
            joined: Vec::new(),
            request: String::new(),
        }
    }

    /// Runs until the worker is told to stop. Messages that have not arrived by then count as missing.
    pub fn run(mut self) {
        // This one thread simulates all clients. If hundreds of the server's threads ran before this thread, all clients would seem slow.
        sys::favour_thread();
        let mut packet = [0; READ_BYTES];
        let mut reported_ns = 0;
        loop {
            let now_ns = sys::now_ns();
            self.wire.now_ns = now_ns;
            let packets = self.read(&mut packet);
            self.handle_timers(now_ns);
            // Before clients connect from the ends of connections whose last segments are still to be sent.
            self.end_turn(now_ns);
            let steps = self.connect_queue.pace.steps(packets);
            let connects = self.connect_due(steps, now_ns);
            let drops = self.drop_due(steps, now_ns);
            self.end_turn(now_ns);
            let is_over = self.shared.stop.load(Relaxed);
            if now_ns - reported_ns >= REPORT_NS || is_over {
                reported_ns = now_ns;
                self.report();
            }
            if is_over {
                self.count_missing();
                return self.report();
            }
            if !(packets || connects || drops) {
                let tcp_ns = self.table.next_us().map(|next_us| next_us * 1_000);
                let next_ns = [tcp_ns, self.timers.next_ns()].into_iter().flatten().min();
                let longest_ns = next_ns.map_or(POLL_NS, |next_ns| next_ns.saturating_sub(now_ns));
                self.wire.wait(longest_ns.min(POLL_NS));
            }
        }
    }

    /// Handles the packets that are ready, up to the limit of a turn. Returns whether there may be more.
    fn read(&mut self, packet: &mut [u8; READ_BYTES]) -> bool {
        for _ in 0..PACKETS {
            match self.wire.receive(packet) {
                Ok(Some(count)) => self.receive_packet(&packet[..count]),
                Ok(None) => return false,
                Err(_) => {
                    self.wire.traffic.write_failed += 1;
                    return false;
                }
            }
        }
        true
    }

    fn report(&mut self) {
        self.counts.traffic = std::mem::take(&mut self.wire.traffic);
        let segments = std::mem::take(&mut self.table.counters);
        self.counts.retransmitted = segments.retransmitted;
        self.counts.out_of_order = segments.out_of_order;
        self.counts.repeated = segments.repeated;
        self.shared
            .all_dialed
            .store(self.connect_queue.is_done(), Relaxed);
        let counts = std::mem::take(&mut self.counts);
        self.shared.counts().merge(&counts);
        self.shared
            .active_max
            .store(self.active_max as u64, Relaxed);
    }

    /// Counts the messages that have not arrived: as lost if their client was open when they were published, otherwise as missed while
    /// away.
    fn count_missing(&mut self) {
        for index in 0..self.clients.addresses.count {
            let row = self.clients.rows[index as usize];
            let published =
                self.plan.published[(self.clients.first + index) as usize].load(Relaxed);
            let from = if row.is(mark::FIRST) || row.state != State::Open {
                row.published.max(row.last)
            } else {
                row.last
            };
            self.counts.tally.missed_away += u64::from(from - row.last);
            let rest = u64::from(published.saturating_sub(from));
            match row.state {
                State::Open if row.is(mark::SLOW) => self.counts.slow_missed += rest,
                State::Open => self.counts.tally.lost += rest,
                _ => self.counts.tally.missed_away += rest,
            }
        }
    }

    /// Starts at most `steps` connects, as the rate and the limit of connects in progress allow. Returns whether more are due.
    fn connect_due(&mut self, steps: u32, now_ns: u64) -> bool {
        if !self.shared.may_open.load(Relaxed) {
            return false;
        }
        let due = self.connect_queue.due(self.plan.connect_rate, now_ns);
        for _ in 0..due.min(steps.into()) {
            let Some(index) = self.connect_queue.next() else {
                return false;
            };
            self.connect(index, now_ns);
        }
        due >= steps.into()
    }

    /// Makes the drops and resets that are due, at most `steps` of each. Returns whether more resets are due.
    fn drop_due(&mut self, steps: u32, now_ns: u64) -> bool {
        let rate = f64::from_bits(self.shared.drop_per_s.load(Relaxed));
        for _ in 0..self.drop_queue.due(steps, rate, now_ns) {
            let index = self.drop_queue.random_client(self.clients.addresses.count);
            if self.clients.rows[index as usize].state == State::Open {
                self.close(index, now_ns);
            }
        }
        let more = self.shared.to_reset.swap(0, Relaxed);
        for index in self.drop_queue.due_resets(more, steps) {
            if index < self.clients.addresses.count
                && self.clients.rows[index as usize].state == State::Open
            {
                self.reset(index, now_ns);
                self.no_longer_open(index);
                self.counts.dropped += 1;
                self.schedule_reconnect(index, None);
            }
        }
        self.drop_queue.has_resets()
    }

    /// Marks an open client as closed.
    fn no_longer_open(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        // The client has received no message since it opened. Messages that were published before count as missed while away.
        if row.is(mark::FIRST) {
            let seen = row.last.max(row.published);
            self.counts.tally.missed_away += u64::from(seen - row.last);
            row.last = seen;
        }
        row.state = State::Closed;
        self.shared.open.fetch_sub(1, Relaxed);
    }

    /// Closes the row. The client reconnects after a delay that begins at `now_ns`, or as soon as the pace allows if `now_ns` is `None`.
    fn schedule_reconnect(&mut self, index: u32, now_ns: Option<u64>) {
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Closed;
        match now_ns {
            Some(now_ns) => {
                let dialed_us = row.dialed_us;
                self.timers.set(Kind::Reconnect, index, dialed_us, now_ns);
            }
            None => self.connect_queue.ready.push_back(index),
        }
    }

    /// Counts a failed attempt to connect and schedules the next one, or gives up.
    fn connect_failed(&mut self, index: u32, why: &str, now_ns: u64) {
        self.connect_queue.in_progress -= 1;
        let life = &mut self.counts.tally.life;
        life.failed += 1;
        life.first_failure.get_or_insert_with(|| why.to_string());
        let row = &mut self.clients.rows[index as usize];
        row.failures += 1;
        if row.failures <= FAILURES_MAX {
            return self.schedule_reconnect(index, Some(now_ns));
        }
        life.given_up += 1;
        self.shared.given_up.fetch_add(1, Relaxed);
        row.state = State::GivenUp;
    }

    /// Handles the expired timers.
    fn handle_timers(&mut self, now_ns: u64) {
        while let Some((kind, timer)) = self.timers.expired(now_ns) {
            let (index, row) = (timer.row, &self.clients.rows[timer.row as usize]);
            match kind {
                Kind::Reconnect if row.state == State::Closed => {
                    self.connect_queue.ready.push_back(index);
                }
                Kind::Close if row.state == State::Closing && row.dialed_us == timer.dialed_us => {
                    self.counts.late_closes += 1;
                    self.reset(index, now_ns);
                    self.schedule_reconnect(index, None);
                }
                Kind::SlowRead => self.slow_read(index, now_ns),
                _ => {}
            }
        }
    }
}
