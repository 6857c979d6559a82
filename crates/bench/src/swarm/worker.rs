//! A worker runs the clients of one device on one thread. It handles packets and timers, and makes clients connect and drop.

mod connection;
mod receive;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crore_tcp::{Account, Checksums, Config, Conn, Secret, Table};

use super::churn::{ConnectQueue, DropQueue, Pace};
use super::client_row::{ClientAddresses, ClientRow, IncompleteUnits, State, flag};
use super::counts::Counts;
use super::flood::Flood;
use super::namespace::PACKET_BYTES;
use super::plan::{Plan, SharedState};
use super::timers::{TimerKind, Timers};
use super::wire::{READ_BYTES, Wire};
use crate::measure::payload::mix;
use crate::sys;

/// The maximum number of packets that a worker reads in one turn.
const PACKETS_PER_TURN_MAX: usize = 256;
/// Consecutive failed attempts after which a client gives up.
const FAILURES_MAX: u8 = 5;
/// Without an acknowledgement a client retransmits after 1, 2, 4 and 8 seconds, and gives up after 16 more.
pub const RETRIES: u8 = 5;
const RETRY_US: u32 = 1_000_000;
/// The maximum number of unacknowledged bytes of a client.
pub const SEND_BYTES: u32 = 64 << 10;
/// A slow reader reads `1 << SLOW_BYTES_LOG2` bytes a second, and has a receive buffer of this size.
const SLOW_BYTES_LOG2: u8 = 10;
/// The maximum wait for packets before the worker reads its commands again.
const WAIT_MAX_NS: u64 = 5_000_000;
/// The same while SYNs must be sent.
const FLOOD_WAIT_MAX_NS: u64 = 200_000;
/// Time between two reports of the counters.
const REPORT_INTERVAL_NS: u64 = 50_000_000;

/// The clients of one device.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<SharedState>,
    clients: Clients,
    /// The connections that are not parked.
    table: Table<&'static [u8], NoAccount>,
    wire: Wire,
    timers: Timers,
    counts: Counts,
    /// Clients whose connection may be idle now, and is then parked in its row.
    park_candidates: Vec<u32>,
    /// Scratch list: clients whose connection has ended.
    ended_clients: Vec<u32>,
    /// The largest number of connections in the table.
    active_max: usize,
    connect_queue: ConnectQueue,
    drop_queue: DropQueue,
    flood: Flood,
    /// Scratch buffer: the kept bytes of a client, followed by the received ones.
    received_bytes: Vec<u8>,
    request: String,
}

/// A row for each client, and the incomplete units of some of them.
struct Clients {
    /// The topic index of the first client.
    first: u32,
    addresses: ClientAddresses,
    rows: Vec<ClientRow>,
    incomplete_units: IncompleteUnits,
}

/// An account without a limit: clients read received bytes at once, so connections hold few.
struct NoAccount;

impl Account for NoAccount {
    fn charge(&mut self, _: Conn, _: usize) -> bool {
        true
    }

    fn release(&mut self, _: Conn, _: usize) {}

    fn resize_entry(&mut self, _: Conn, _: usize, _: usize) {}
}

/// The settings of the clients' TCP. It has no extensions, so that the server's end costs the least. The worker itself finds the client of
/// each segment. Clients close first and connect again from the same port at once, so there is no TIME-WAIT.
fn tcp_config(clients: u32, computes_checksums: bool) -> Config {
    Config {
        packet_bytes: PACKET_BYTES,
        computes_checksums,
        checksums: Checksums::Ignored,
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
        shared: Arc<SharedState>,
        first: u32,
        addresses: ClientAddresses,
        wire: Wire,
        pace: Pace,
    ) -> Worker {
        const STEPS: u64 = 1 << 32;
        let slow_bound = (plan.slow_share * STEPS as f64) as u64;
        let row = |index| {
            let mut row = ClientRow::new();
            row.set_flag(flag::SLOW, mix(u64::from(first + index)) >> 32 < slow_bound);
            row
        };
        // Nobody attacks these clients, so the secret only has to differ between runs.
        let secret = Secret(sys::now_ns(), first.into());
        let config = tcp_config(addresses.count, wire.needs_checksums());
        let mut table = Table::new(config, secret, NoAccount);
        for endpoint in addresses.address_endpoints() {
            table.add_address(endpoint);
        }
        Worker {
            connect_queue: ConnectQueue::new(pace, addresses.count),
            clients: Clients {
                first,
                rows: (0..addresses.count).map(row).collect(),
                addresses,
                incomplete_units: IncompleteUnits::default(),
            },
            timers: Timers::new(plan.close_within_ns),
            plan,
            shared,
            table,
            wire,
            counts: Counts::default(),
            park_candidates: Vec::new(),
            ended_clients: Vec::new(),
            active_max: 0,
            drop_queue: DropQueue::new(u64::from(first)),
            flood: Flood::new(u64::from(first)),
            received_bytes: Vec::new(),
            request: String::new(),
        }
    }

    /// Runs until the worker is told to stop. Messages that have not arrived by then count as missing.
    pub fn run(mut self) {
        // This thread simulates all clients of a device. If hundreds of the server's threads ran before it, all these clients would seem slow.
        sys::favour_thread();
        let mut packet = [0; READ_BYTES];
        let mut reported_ns = 0;
        loop {
            let now_ns = sys::now_ns();
            self.wire.now_ns = now_ns;
            let has_more_packets = self.read_packets(&mut packet);
            self.handle_timers(now_ns);
            // Send the last segments of ended connections before new connections use their endpoints.
            self.end_turn(now_ns);
            let steps = self.connect_queue.pace.steps(has_more_packets);
            let has_more_connects = self.connect_due(steps, now_ns);
            let has_more_resets = self.drop_due(steps, now_ns);
            let flood_per_s = f64::from_bits(self.shared.flood_per_s.load(Relaxed));
            self.counts.forged_syns +=
                self.flood
                    .send(flood_per_s, self.plan.server, &mut self.wire, now_ns);
            self.end_turn(now_ns);
            let must_stop = self.shared.must_stop.load(Relaxed);
            if now_ns - reported_ns >= REPORT_INTERVAL_NS || must_stop {
                reported_ns = now_ns;
                self.report();
            }
            if must_stop {
                self.count_missing();
                return self.report();
            }
            if !(has_more_packets || has_more_connects || has_more_resets) {
                let tcp_timer_ns = self.table.next_us().map(|next_us| next_us * 1_000);
                let next_ns = [tcp_timer_ns, self.timers.next_ns()]
                    .into_iter()
                    .flatten()
                    .min();
                let wait_ns = next_ns.map_or(WAIT_MAX_NS, |next_ns| next_ns.saturating_sub(now_ns));
                let longest_ns = match flood_per_s > 0.0 {
                    true => FLOOD_WAIT_MAX_NS,
                    false => WAIT_MAX_NS,
                };
                self.wire.wait(wait_ns.min(longest_ns));
            }
        }
    }

    /// Handles the packets that are ready, up to the limit of a turn. Returns whether there may be more.
    fn read_packets(&mut self, packet: &mut [u8; READ_BYTES]) -> bool {
        for _ in 0..PACKETS_PER_TURN_MAX {
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
        let counts = std::mem::take(&mut self.counts);
        self.shared.counts().merge(&counts);
        self.shared
            .active_max
            .store(self.active_max as u64, Relaxed);
    }

    /// Counts the messages that have not arrived. If the client was open when a message was published, it counts as lost, otherwise as missed
    /// while away. Slow readers have a counter of their own.
    fn count_missing(&mut self) {
        for index in 0..self.clients.addresses.count {
            let row = self.clients.rows[index as usize];
            let published =
                self.plan.published[(self.clients.first + index) as usize].load(Relaxed);
            let last_excused = if row.has(flag::AWAITS_FIRST) || row.state != State::Open {
                row.published_at_open.max(row.last_received)
            } else {
                row.last_received
            };
            self.counts.tally.missed_away += u64::from(last_excused - row.last_received);
            let missing = u64::from(published.saturating_sub(last_excused));
            match row.state {
                State::Open if row.has(flag::SLOW) => self.counts.slow_missed += missing,
                State::Open => self.counts.tally.lost += missing,
                _ => self.counts.tally.missed_away += missing,
            }
        }
    }

    /// Starts the connects that are due, at most `steps`, and no more than the limit of connects in progress allows. Returns whether more may
    /// be due.
    fn connect_due(&mut self, steps: u32, now_ns: u64) -> bool {
        if !self.shared.may_connect.load(Relaxed) {
            return false;
        }
        let due = self.connect_queue.due_count(self.plan.connect_rate, now_ns);
        for _ in 0..due.min(steps.into()) {
            let Some(index) = self.connect_queue.take_next() else {
                return false;
            };
            self.connect(index, now_ns);
        }
        due >= steps.into()
    }

    /// Makes the drops and resets that are due, at most `steps` of each. Returns whether more resets are due.
    fn drop_due(&mut self, steps: u32, now_ns: u64) -> bool {
        let rate = f64::from_bits(self.shared.drop_per_s.load(Relaxed));
        for _ in 0..self.drop_queue.take_due_drops(steps, rate, now_ns) {
            let index = self.drop_queue.random_client(self.clients.addresses.count);
            if self.clients.rows[index as usize].state == State::Open {
                self.close(index, now_ns);
            }
        }
        let requested_resets = self.shared.requested_resets.swap(0, Relaxed);
        for index in self.drop_queue.take_due_resets(requested_resets, steps) {
            if index < self.clients.addresses.count
                && self.clients.rows[index as usize].state == State::Open
            {
                self.reset(index, now_ns);
                self.mark_closed(index);
                self.counts.dropped += 1;
                self.schedule_reconnect(index, None);
            }
        }
        self.drop_queue.has_resets()
    }

    /// Marks an open client as closed.
    fn mark_closed(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        // The client has received no message since it opened. The messages that were published before that count as missed while away.
        if row.has(flag::AWAITS_FIRST) {
            let last_excused = row.last_received.max(row.published_at_open);
            self.counts.tally.missed_away += u64::from(last_excused - row.last_received);
            row.last_received = last_excused;
        }
        row.state = State::Closed;
        self.shared.open_clients.fetch_sub(1, Relaxed);
    }

    /// Marks the client as closed. It reconnects after a delay that starts at `now_ns`, or, if `now_ns` is `None`, as soon as the pace allows.
    fn schedule_reconnect(&mut self, index: u32, now_ns: Option<u64>) {
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Closed;
        match now_ns {
            Some(now_ns) => {
                let dialed_us = row.dialed_us;
                self.timers
                    .set(TimerKind::Reconnect, index, dialed_us, now_ns);
            }
            None => self.connect_queue.ready.push_back(index),
        }
    }

    /// Counts a failed attempt to connect and schedules the next one, or gives up.
    fn record_failed_connect(&mut self, index: u32, reason: &str, now_ns: u64) {
        self.connect_queue.in_progress -= 1;
        let connections = &mut self.counts.tally.connections;
        connections.failed += 1;
        connections
            .first_failure
            .get_or_insert_with(|| reason.to_string());
        let row = &mut self.clients.rows[index as usize];
        row.failures += 1;
        if row.failures <= FAILURES_MAX {
            return self.schedule_reconnect(index, Some(now_ns));
        }
        connections.given_up += 1;
        self.shared.given_up.fetch_add(1, Relaxed);
        row.state = State::GivenUp;
    }

    /// Handles the expired timers.
    fn handle_timers(&mut self, now_ns: u64) {
        while let Some((kind, timer)) = self.timers.pop_expired(now_ns) {
            let (index, row) = (timer.client, &self.clients.rows[timer.client as usize]);
            match kind {
                TimerKind::Reconnect if row.state == State::Closed => {
                    self.connect_queue.ready.push_back(index);
                }
                TimerKind::Close
                    if row.state == State::Closing && row.dialed_us == timer.dialed_us =>
                {
                    self.counts.late_closes += 1;
                    self.reset(index, now_ns);
                    self.schedule_reconnect(index, None);
                }
                TimerKind::SlowRead => self.read_slowly(index, now_ns),
                _ => {}
            }
        }
    }
}
