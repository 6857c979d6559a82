//! A worker: the clients of one device, on one thread. It handles packets and timers, and makes clients connect and drop.
//!
//! Invariant: a client with unacknowledged data, SYN or FIN has a timer set.

mod receive;
mod segment;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::churn::{ConnectQueue, DropQueue, Pace};
use super::client_row::{BufferPool, ClientAddresses, ClientRow, State, mark};
use super::counts::Counts;
use super::packet::{Segment, flag};
use super::plan::{Plan, Shared};
use super::timers::{RETRIES, Timers, kind};
use super::wire::{READ_BYTES, Wire};
use crate::measure::payload::mix;
use crate::sys;

/// The maximum number of packets that are read in one turn.
const PACKETS: usize = 256;
/// Consecutive failed attempts after which a client gives up.
const FAILURES_MAX: u8 = 5;
/// Distance between the sequence numbers of a client's last connection and of its next one. Because of this distance, a server whose old
/// connection is still in TIME-WAIT accepts the new connection (RFC 9293 §3.6.1).
const NUMBERS_APART: u32 = 1 << 17;
/// Bytes a second that a slow reader reads.
const SLOW_BYTES: u16 = 1_024;
/// The maximum wait for packets before commands are read again.
const POLL_NS: u64 = 5_000_000;
/// Time between two reports of the counters.
const REPORT_NS: u64 = 50_000_000;

/// The clients of one device.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    clients: Clients,
    wire: Wire,
    timers: Timers,
    counts: Counts,
    /// Clients with [`mark::ACK_PENDING`].
    pending_acks: Vec<u32>,
    connect_queue: ConnectQueue,
    drop_queue: DropQueue,
    /// Scratch buffer: the held bytes of a client, followed by the received ones.
    joined: Vec<u8>,
    request: String,
}

/// The clients: a row for each, and buffers for few of them.
struct Clients {
    /// The topic index of the first client.
    first: u32,
    addresses: ClientAddresses,
    rows: Vec<ClientRow>,
    buffers: BufferPool,
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
            let number = mix(u64::from(first + index));
            let mut row = ClientRow::new(number as u32);
            row.mark(mark::SLOW, number >> 32 < slow);
            row
        };
        Worker {
            connect_queue: ConnectQueue::new(pace, addresses.count),
            clients: Clients {
                first,
                rows: (0..addresses.count).map(row).collect(),
                addresses,
                buffers: BufferPool::default(),
            },
            timers: Timers::new(plan.close_within_ns),
            plan,
            shared,
            wire,
            counts: Counts::default(),
            pending_acks: Vec::new(),
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
            let packets = self.read(&mut packet, now_ns);
            self.send_acks(now_ns);
            self.handle_timers(now_ns);
            let steps = self.connect_queue.pace.steps(packets);
            let connects = self.connect_due(steps, now_ns);
            let drops = self.drop_due(steps, now_ns);
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
                let next_ns = self.timers.next_ns().unwrap_or(u64::MAX);
                let longest_ns = next_ns.saturating_sub(now_ns).min(POLL_NS);
                self.wire.wait(longest_ns, now_ns);
            }
        }
    }

    /// Handles the packets that are ready, up to the limit of a turn. Returns whether there may be more.
    fn read(&mut self, packet: &mut [u8; READ_BYTES], now_ns: u64) -> bool {
        for _ in 0..PACKETS {
            match self.wire.receive(packet, now_ns) {
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
        let traffic = std::mem::take(&mut self.wire.traffic);
        self.counts.traffic = traffic;
        self.shared
            .all_dialed
            .store(self.connect_queue.is_done(), Relaxed);
        let counts = std::mem::take(&mut self.counts);
        self.shared.counts().merge(&counts);
        self.shared
            .buffers
            .store(self.clients.buffers.allocated() as u64, Relaxed);
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

    fn queue_ack(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        if !row.is(mark::ACK_PENDING) {
            row.mark(mark::ACK_PENDING, true);
            self.pending_acks.push(index);
        }
    }

    /// Sends the acknowledgements that are due and were not sent with another segment in this turn.
    fn send_acks(&mut self, now_ns: u64) {
        let mut pending_acks = std::mem::take(&mut self.pending_acks);
        for index in pending_acks.drain(..) {
            let row = self.clients.rows[index as usize];
            if row.is(mark::ACK_PENDING) {
                self.send_segment(index, flag::ACK, row.send_next, &[], now_ns);
            }
        }
        self.pending_acks = pending_acks;
    }

    /// Sends one segment of a client.
    fn send_segment(&mut self, index: u32, flags: u8, sequence: u32, data: &[u8], now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        row.mark(mark::ACK_PENDING, false);
        let segment = Segment {
            from: self.clients.addresses.end(index),
            to: self.plan.server,
            sequence,
            acknowledged: if flags & flag::ACK == 0 {
                0
            } else {
                row.receive_next
            },
            flags,
            window: row.window,
            data,
        };
        self.wire.send(&segment, now_ns);
    }

    /// Sends data and keeps it until it is acknowledged.
    fn send_data(&mut self, index: u32, data: &[u8], now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let (sequence, is_first) = (row.send_next, row.send_first == row.send_next);
        self.clients
            .buffers
            .of(row)
            .unacknowledged
            .extend_from_slice(data);
        row.send_next = sequence.wrapping_add(data.len() as u32);
        if is_first {
            self.timers.set(kind::RETRY, index, sequence, now_ns);
        }
        self.send_segment(index, flag::ACK | flag::PSH, sequence, data, now_ns);
    }

    /// Sends a client's SYN.
    fn connect(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let number = row.send_next.wrapping_add(NUMBERS_APART);
        row.send_first = number;
        row.send_next = number.wrapping_add(1);
        row.receive_next = 0;
        row.dialed_us = (now_ns / 1_000) as u32;
        row.chunk_left = 0;
        row.state = State::Dialing;
        row.window = if row.is(mark::SLOW) {
            SLOW_BYTES
        } else {
            u16::MAX
        };
        self.timers.set(kind::RETRY, index, number, now_ns);
        self.send_segment(index, flag::SYN, number, &[], now_ns);
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

    /// Closes a client's connection with a FIN.
    fn close(&mut self, index: u32, now_ns: u64) {
        self.no_longer_open(index);
        self.counts.dropped += 1;
        let row = &mut self.clients.rows[index as usize];
        let sequence = row.send_next;
        row.state = State::Closing;
        row.send_next = sequence.wrapping_add(1);
        if row.send_first == sequence {
            self.timers.set(kind::RETRY, index, sequence, now_ns);
        }
        self.timers.set(kind::CLOSE, index, sequence, now_ns);
        self.send_segment(index, flag::FIN | flag::ACK, sequence, &[], now_ns);
    }

    /// Sends a reset.
    fn reset(&mut self, index: u32, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        self.send_segment(index, flag::RST | flag::ACK, row.send_next, &[], now_ns);
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
        self.clients.buffers.release(row);
        match now_ns {
            Some(now_ns) => self
                .timers
                .set(kind::RECONNECT, index, row.send_next, now_ns),
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
        self.clients.buffers.release(row);
        row.failures += 1;
        row.state = if row.failures > FAILURES_MAX {
            life.given_up += 1;
            self.shared.given_up.fetch_add(1, Relaxed);
            State::GivenUp
        } else {
            self.timers
                .set(kind::RECONNECT, index, row.send_next, now_ns);
            State::Closed
        };
    }

    /// Handles the expired timers.
    fn handle_timers(&mut self, now_ns: u64) {
        while let Some((kind, timer)) = self.timers.expired(now_ns) {
            let (index, row) = (timer.row, self.clients.rows[timer.row as usize]);
            match kind {
                kind::RECONNECT
                    if row.state == State::Closed && row.send_next == timer.sequence =>
                {
                    self.connect_queue.ready.push_back(index);
                }
                kind::CLOSE
                    if row.state == State::Closing
                        && row.send_next == timer.sequence.wrapping_add(1) =>
                {
                    self.counts.late_closes += 1;
                    self.reset(index, now_ns);
                    self.schedule_reconnect(index, None);
                }
                kind::SLOW_READ => self.reopen_window(index, now_ns),
                0..RETRIES => self.retry(index, kind, timer.sequence, now_ns),
                _ => {}
            }
        }
    }

    /// Gives a slow reader its window for the next second.
    fn reopen_window(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        row.mark(mark::HAS_TIMER, false);
        if row.state != State::Open {
            return;
        }
        row.mark(mark::HAS_TIMER, true);
        let was = row.window;
        row.window = SLOW_BYTES;
        let sequence = row.send_next;
        self.timers.set(kind::SLOW_READ, index, 0, now_ns);
        if was < SLOW_BYTES {
            self.send_segment(index, flag::ACK, sequence, &[], now_ns);
        }
    }

    /// Retransmits a SYN, FIN or data that was not acknowledged in time.
    fn retry(&mut self, index: u32, level: usize, sequence: u32, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        let is_under_way = !matches!(row.state, State::Closed | State::GivenUp);
        if !is_under_way || row.send_first == row.send_next {
            return;
        }
        if row.send_first != sequence {
            return self.timers.set(kind::RETRY, index, row.send_first, now_ns);
        }
        if level + 1 == RETRIES {
            return self.retries_exhausted(index, now_ns);
        }
        self.timers.set(level + 1, index, sequence, now_ns);
        self.counts.retransmitted += 1;
        let fin = u32::from(row.state == State::Closing);
        match row.state {
            State::Dialing => self.send_segment(index, flag::SYN, sequence, &[], now_ns),
            _ if row.send_next.wrapping_sub(sequence) == fin => {
                self.send_segment(index, flag::FIN | flag::ACK, sequence, &[], now_ns);
            }
            _ => {
                let Some(buffers) = self.clients.buffers.get(&row) else {
                    return;
                };
                let data = std::mem::take(&mut buffers.unacknowledged);
                self.send_segment(index, flag::ACK | flag::PSH, sequence, &data, now_ns);
                self.clients
                    .buffers
                    .of(&mut self.clients.rows[index as usize])
                    .unacknowledged = data;
            }
        }
    }

    /// Ends a connection whose last retry was not acknowledged.
    fn retries_exhausted(&mut self, index: u32, now_ns: u64) {
        self.reset(index, now_ns);
        match self.clients.rows[index as usize].state {
            State::Open => {
                self.counts
                    .violated("nothing was acknowledged for half a minute");
                self.no_longer_open(index);
                self.schedule_reconnect(index, None);
            }
            State::Closing => {
                self.counts.late_closes += 1;
                self.schedule_reconnect(index, None);
            }
            _ => self.connect_failed(index, "no answer for half a minute", now_ns),
        }
    }
}
