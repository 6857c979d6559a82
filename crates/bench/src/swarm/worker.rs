//! A worker: the clients of one device, on one thread. It reads packets, lets clients connect and drop, and looks after alarms.
//!
//! Invariant: a client with bytes or a SYN or FIN under way has an alarm set.

mod receive;
mod segment;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::alarms::{Alarms, RETRIES, kind};
use super::counts::Counts;
use super::packet::{Segment, flag};
use super::plan::{Plan, Shared};
use super::row::{Places, Row, Sides, State, mark};
use super::turnover::{Leaving, Opening, Pace};
use super::wire::{READ_BYTES, Wire};
use crate::measure::payload::mix;
use crate::sys;

/// Packets of a turn.
const PACKETS: usize = 256;
/// Attempts of one client that may fail, one after another.
const FAILURES_MAX: u8 = 5;
/// How far the numbers of a client's next connection begin behind those of its last one, so that a server that still waits
/// for the end of the old one takes the new one (RFC 9293 §3.6.1).
const NUMBERS_APART: u32 = 1 << 17;
/// Bytes a second that a slow reader takes.
const SLOW_BYTES: u16 = 1_024;
/// Longest time between two looks around.
const LOOK_NS: u64 = 5_000_000;
/// Time between two reports of the counters.
const REPORT_NS: u64 = 50_000_000;

/// The clients of one device.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    clients: Clients,
    wire: Wire,
    alarms: Alarms,
    counts: Counts,
    /// Clients that owe an acknowledgement.
    owing: Vec<u32>,
    opening: Opening,
    leaving: Leaving,
    /// A client's bytes with those that were held before them.
    joined: Vec<u8>,
    request: String,
}

/// The clients, by number: a row for each, and side rows for few of them.
struct Clients {
    /// The topic of the first one.
    first: u32,
    places: Places,
    rows: Vec<Row>,
    sides: Sides,
}

impl Worker {
    /// Clients `first..first + count` on this wire, which has these places for them.
    pub fn new(
        plan: Arc<Plan>,
        shared: Arc<Shared>,
        first: u32,
        places: Places,
        wire: Wire,
        pace: Pace,
    ) -> Worker {
        const STEPS: u64 = 1 << 32;
        let slow = (plan.slow_share * STEPS as f64) as u64;
        let row = |index| {
            let number = mix(u64::from(first + index));
            let mut row = Row::new(number as u32);
            row.mark(mark::SLOW, number >> 32 < slow);
            row
        };
        Worker {
            opening: Opening::new(pace, places.count),
            clients: Clients {
                first,
                rows: (0..places.count).map(row).collect(),
                places,
                sides: Sides::default(),
            },
            alarms: Alarms::new(plan.close_within_ns),
            plan,
            shared,
            wire,
            counts: Counts::default(),
            owing: Vec::new(),
            leaving: Leaving::new(u64::from(first)),
            joined: Vec::new(),
            request: String::new(),
        }
    }

    /// Works until it is told to stop. Then all that was published must have come.
    pub fn run(mut self) {
        // One thread stands for all the clients: where it waits for its turn behind hundreds of the server's, they all seem slow.
        sys::favour_thread();
        let mut packet = [0; READ_BYTES];
        let mut reported_ns = 0;
        loop {
            let now_ns = sys::now_ns();
            let packets = self.read(&mut packet, now_ns);
            self.acknowledge(now_ns);
            self.ring(now_ns);
            let steps = self.opening.pace.steps(packets);
            let connects = self.connects(steps, now_ns);
            let drops = self.drops(steps, now_ns);
            let is_over = self.shared.stop.load(Relaxed);
            if now_ns - reported_ns >= REPORT_NS || is_over {
                reported_ns = now_ns;
                self.report();
            }
            if is_over {
                self.compare();
                return self.report();
            }
            if !(packets || connects || drops) {
                let next_ns = self.alarms.next_ns().unwrap_or(u64::MAX);
                let longest_ns = next_ns.saturating_sub(now_ns).min(LOOK_NS);
                self.wire.wait(longest_ns, now_ns);
            }
        }
    }

    /// Takes the packets that are there; whether there may be more.
    fn read(&mut self, packet: &mut [u8; READ_BYTES], now_ns: u64) -> bool {
        for _ in 0..PACKETS {
            match self.wire.receive(packet, now_ns) {
                Ok(Some(count)) => self.packet(&packet[..count]),
                Ok(None) => return false,
                Err(_) => {
                    self.wire.traffic.not_taken += 1;
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
            .store(self.opening.is_done(), Relaxed);
        let counts = std::mem::take(&mut self.counts);
        self.shared.counts().merge(&counts);
        self.shared
            .sides
            .store(self.clients.sides.most() as u64, Relaxed);
    }

    /// Counts the messages as lost that were published while their client was open, and have not come until the end.
    fn compare(&mut self) {
        for index in 0..self.clients.places.count {
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

    fn owes_ack(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        if !row.is(mark::OWES_ACK) {
            row.mark(mark::OWES_ACK, true);
            self.owing.push(index);
        }
    }

    /// Sends the acknowledgements that no other segment has carried.
    fn acknowledge(&mut self, now_ns: u64) {
        let mut owing = std::mem::take(&mut self.owing);
        for index in owing.drain(..) {
            let row = self.clients.rows[index as usize];
            if row.is(mark::OWES_ACK) {
                self.emit(index, flag::ACK, row.send_next, &[], now_ns);
            }
        }
        self.owing = owing;
    }

    /// Sends one segment of a client.
    fn emit(&mut self, index: u32, flags: u8, sequence: u32, data: &[u8], now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        row.mark(mark::OWES_ACK, false);
        let segment = Segment {
            from: self.clients.places.end(index),
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

    /// Sends data, which is kept until it is acknowledged.
    fn say(&mut self, index: u32, data: &[u8], now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let (sequence, is_first) = (row.send_next, row.send_first == row.send_next);
        self.clients
            .sides
            .of(row)
            .unacknowledged
            .extend_from_slice(data);
        row.send_next = sequence.wrapping_add(data.len() as u32);
        if is_first {
            self.alarms.set(kind::RETRY, index, sequence, now_ns);
        }
        self.emit(index, flag::ACK | flag::PSH, sequence, data, now_ns);
    }

    /// Begins a client's connection.
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
        self.alarms.set(kind::RETRY, index, number, now_ns);
        self.emit(index, flag::SYN, number, &[], now_ns);
    }

    /// Lets so many clients connect at most, as many as may be under way and the rate allows; whether there are more.
    fn connects(&mut self, steps: u32, now_ns: u64) -> bool {
        if !self.shared.may_open.load(Relaxed) {
            return false;
        }
        let due = self.opening.due(self.plan.connect_rate, now_ns);
        for _ in 0..due.min(steps.into()) {
            let Some(index) = self.opening.next() else {
                return false;
            };
            self.connect(index, now_ns);
        }
        due >= steps.into()
    }

    /// Drops so many at most of the clients that the drop rate and the tsunami ask for; whether there are more.
    fn drops(&mut self, steps: u32, now_ns: u64) -> bool {
        let rate = f64::from_bits(self.shared.drop_per_s.load(Relaxed));
        for _ in 0..self.leaving.drops(steps, rate, now_ns) {
            let index = self.leaving.any(self.clients.places.count);
            if self.clients.rows[index as usize].state == State::Open {
                self.close(index, now_ns);
            }
        }
        let more = self.shared.to_reset.swap(0, Relaxed);
        for index in self.leaving.resets(more, steps) {
            if index < self.clients.places.count
                && self.clients.rows[index as usize].state == State::Open
            {
                self.reset(index, now_ns);
                self.left(index);
                self.counts.dropped += 1;
                self.forget(index, None);
            }
        }
        self.leaving.has_resets()
    }

    /// Closes a client's side in order.
    fn close(&mut self, index: u32, now_ns: u64) {
        self.left(index);
        self.counts.dropped += 1;
        let row = &mut self.clients.rows[index as usize];
        let sequence = row.send_next;
        row.state = State::Closing;
        row.send_next = sequence.wrapping_add(1);
        if row.send_first == sequence {
            self.alarms.set(kind::RETRY, index, sequence, now_ns);
        }
        self.alarms.set(kind::CLOSE, index, sequence, now_ns);
        self.emit(index, flag::FIN | flag::ACK, sequence, &[], now_ns);
    }

    /// Tells the server that there is no connection.
    fn reset(&mut self, index: u32, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        self.emit(index, flag::RST | flag::ACK, row.send_next, &[], now_ns);
    }

    /// A client that was open is so no more.
    fn left(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        // Until it is open again its messages may go elsewhere.
        if row.is(mark::FIRST) {
            let seen = row.last.max(row.published);
            self.counts.tally.missed_away += u64::from(seen - row.last);
            row.last = seen;
        }
        row.state = State::Closed;
        self.shared.open.fetch_sub(1, Relaxed);
    }

    /// A client has no connection any more; it will have one after a while, or as soon as it may.
    fn forget(&mut self, index: u32, now_ns: Option<u64>) {
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Closed;
        self.clients.sides.release(row);
        match now_ns {
            Some(now_ns) => self.alarms.set(kind::AGAIN, index, row.send_next, now_ns),
            None => self.opening.ready.push_back(index),
        }
    }

    /// An attempt to connect has failed.
    fn failed(&mut self, index: u32, why: &str, now_ns: u64) {
        self.opening.under_way -= 1;
        let life = &mut self.counts.tally.life;
        life.failed += 1;
        life.first_failure.get_or_insert_with(|| why.to_string());
        let row = &mut self.clients.rows[index as usize];
        self.clients.sides.release(row);
        row.failures += 1;
        row.state = if row.failures > FAILURES_MAX {
            life.given_up += 1;
            self.shared.given_up.fetch_add(1, Relaxed);
            State::GivenUp
        } else {
            self.alarms.set(kind::AGAIN, index, row.send_next, now_ns);
            State::Closed
        };
    }

    /// Handles the alarms that are due.
    fn ring(&mut self, now_ns: u64) {
        while let Some((kind, alarm)) = self.alarms.ring(now_ns) {
            let (index, row) = (alarm.row, self.clients.rows[alarm.row as usize]);
            match kind {
                kind::AGAIN if row.state == State::Closed && row.send_next == alarm.stamp => {
                    self.opening.ready.push_back(index);
                }
                kind::CLOSE
                    if row.state == State::Closing
                        && row.send_next == alarm.stamp.wrapping_add(1) =>
                {
                    self.counts.late_closes += 1;
                    self.reset(index, now_ns);
                    self.forget(index, None);
                }
                kind::SLOW => self.read_on(index, now_ns),
                0..RETRIES => self.retry(index, kind, alarm.stamp, now_ns),
                _ => {}
            }
        }
    }

    /// A slow reader takes the bytes of another second.
    fn read_on(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        row.mark(mark::HAS_ALARM, false);
        if row.state != State::Open {
            return;
        }
        row.mark(mark::HAS_ALARM, true);
        let was = row.window;
        row.window = SLOW_BYTES;
        let sequence = row.send_next;
        self.alarms.set(kind::SLOW, index, 0, now_ns);
        if was < SLOW_BYTES {
            self.emit(index, flag::ACK, sequence, &[], now_ns);
        }
    }

    /// Sends bytes again that have been under way for too long.
    fn retry(&mut self, index: u32, level: usize, stamp: u32, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        let is_under_way = !matches!(row.state, State::Closed | State::GivenUp);
        if !is_under_way || row.send_first == row.send_next {
            return;
        }
        if row.send_first != stamp {
            return self.alarms.set(kind::RETRY, index, row.send_first, now_ns);
        }
        if level + 1 == RETRIES {
            return self.silent(index, now_ns);
        }
        self.alarms.set(level + 1, index, stamp, now_ns);
        self.counts.retransmitted += 1;
        let fin = u32::from(row.state == State::Closing);
        match row.state {
            State::Dialing => self.emit(index, flag::SYN, stamp, &[], now_ns),
            _ if row.send_next.wrapping_sub(stamp) == fin => {
                self.emit(index, flag::FIN | flag::ACK, stamp, &[], now_ns);
            }
            _ => {
                let Some(side) = self.clients.sides.get(&row) else {
                    return;
                };
                let data = std::mem::take(&mut side.unacknowledged);
                self.emit(index, flag::ACK | flag::PSH, stamp, &data, now_ns);
                self.clients
                    .sides
                    .of(&mut self.clients.rows[index as usize])
                    .unacknowledged = data;
            }
        }
    }

    /// The server acknowledges nothing.
    fn silent(&mut self, index: u32, now_ns: u64) {
        self.reset(index, now_ns);
        match self.clients.rows[index as usize].state {
            State::Open => {
                self.counts
                    .violated("nothing was acknowledged for half a minute");
                self.left(index);
                self.forget(index, None);
            }
            State::Closing => {
                self.counts.late_closes += 1;
                self.forget(index, None);
            }
            _ => self.failed(index, "no answer for half a minute", now_ns),
        }
    }
}
