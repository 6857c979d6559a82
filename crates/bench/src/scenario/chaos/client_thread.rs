//! Runs a share of the clients on one thread: the sockets and reconnects of its [`Client`]s.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;

use super::client::{Client, ClientTotals};
use super::shared_state::SharedState;
use crate::client::subscription::Next;
use crate::measure::payload::Random;
use crate::sys::{self, DialOptions, Epoll, Interest};

/// The maximum size of one read, in bytes.
const RECEIVE_BYTES: usize = 64 << 10;
/// The maximum number of events of one wait.
const EVENTS: usize = 512;
/// The maximum time to wait for events.
const TURN: Duration = Duration::from_millis(20);
/// The maximum time before a client reconnects: with network faults, and without.
const AWAY_NS: (u64, u64) = (3_000_000_000, 300_000_000);
/// With each unanswered connection the maximum time before a reconnect doubles, up to this limit. Otherwise thousands of clients that try
/// to reach dead servers would use the processor time that the servers need to start.
const AWAY_MAX_NS: u64 = 5_000_000_000;
/// How many connections a second one thread opens at the start of the run.
const OPENING_PER_S: u64 = 2_000;
/// Time between two counts of the complete clients.
const POLL_NS: u64 = 100_000_000;
/// The maximum number of violations that are described in words.
const REASONS_MAX: usize = 10;

/// The results of a thread of clients.
#[derive(Default)]
pub struct ClientThreadResult {
    /// The counts of all clients together.
    pub totals: ClientTotals,
    /// Connections that were cut.
    pub lost_connections: u64,
    /// Descriptions of the first answers that violate the protocol.
    pub violations: Vec<String>,
}

impl ClientThreadResult {
    /// Adds the results of another thread.
    pub fn merge(&mut self, other: ClientThreadResult) {
        self.totals.merge(&other.totals);
        self.lost_connections += other.lost_connections;
        self.violations.extend(other.violations);
    }
}

struct ClientSlot {
    client: Client,
    /// The number of the client's connects so far. Each connect uses the next address.
    dials: usize,
    /// The number of consecutive connections without an answer.
    unanswered: u32,
    fd: RawFd,
    watched: Interest,
    connecting: bool,
    open: bool,
}

/// A share of the clients.
pub struct ClientThread<'a> {
    shared: &'a SharedState,
    addresses: &'a [SocketAddr],
    first: u32,
    slots: Vec<ClientSlot>,
    reconnects: BinaryHeap<Reverse<(u64, u32)>>,
    random: Random,
    epoll: Epoll,
    buffer: Vec<u8>,
    result: ClientThreadResult,
    counted_ns: u64,
    complete: u32,
    /// When the last move of a client to another address was due.
    moved_ns: u64,
}

impl<'a> ClientThread<'a> {
    /// The thread of the clients `first..first + count`, which connect to these addresses in turn. Must be called on the thread that will
    /// run the clients.
    pub fn new(
        shared: &'a SharedState,
        addresses: &'a [SocketAddr],
        first: u32,
        count: u32,
    ) -> Result<ClientThread<'a>> {
        sys::unshare_descriptor_table()?;
        let slot = |number| ClientSlot {
            client: Client::new(shared.plan(number), shared),
            dials: 0,
            unanswered: 0,
            fd: -1,
            watched: Interest::IN,
            connecting: false,
            open: false,
        };
        let now = sys::now_ns();
        let turn = |index: u32| {
            Reverse((
                now + u64::from(index) * 1_000_000_000 / OPENING_PER_S,
                index,
            ))
        };
        Ok(ClientThread {
            shared,
            addresses,
            first,
            slots: (first..first + count).map(slot).collect(),
            reconnects: (0..count).map(turn).collect(),
            random: Random::new(shared.seed ^ u64::from(first) << 24 ^ 0xc0de),
            epoll: Epoll::new(EVENTS)?,
            buffer: vec![0; RECEIVE_BYTES],
            result: ClientThreadResult::default(),
            counted_ns: 0,
            complete: 0,
            moved_ns: 0,
        })
    }

    /// Runs the clients until the run is over, then counts their missing messages.
    pub fn run(mut self) -> Result<ClientThreadResult> {
        while !self.shared.stop.load(Relaxed) {
            let count = self.epoll.wait(TURN)?;
            for index in 0..count {
                let ready = self.epoll.ready(index);
                let slot = ready.key as usize;
                if self.slots[slot].connecting {
                    self.connected(slot);
                } else if ready.readable {
                    self.readable(slot);
                }
                if ready.writable {
                    self.flush(slot);
                }
            }
            self.open_due();
            self.move_clients();
            self.count_complete();
        }
        for slot in 0..self.slots.len() {
            self.disconnect(slot);
            self.slots[slot]
                .client
                .close(self.shared, &mut self.result.totals);
        }
        Ok(self.result)
    }

    fn open_due(&mut self) {
        let now = sys::now_ns();
        while self
            .reconnects
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            let Some(Reverse((_, slot))) = self.reconnects.pop() else {
                return;
            };
            self.dial(slot as usize);
        }
    }

    /// Disconnects clients that are due to move to another address.
    fn move_clients(&mut self) {
        let (now, stays_s) = (sys::now_ns(), self.shared.stays_s.load(Relaxed));
        let each_ns = u64::from(stays_s) * 1_000_000_000 / self.slots.len() as u64;
        if each_ns == 0 {
            self.moved_ns = now;
            return;
        }
        while self.moved_ns + each_ns <= now {
            self.moved_ns += each_ns;
            let slot = self.random.below(self.slots.len() as u32) as usize;
            if self.slots[slot].client.is_answered {
                self.disconnect(slot);
                self.schedule_reconnect(slot);
            }
        }
    }

    fn dial(&mut self, slot: usize) {
        let number = self.first as usize + slot;
        let turn = number + self.slots[slot].dials;
        self.slots[slot].dials += 1;
        let dial = DialOptions {
            remote: self.addresses[turn % self.addresses.len()],
            local: Some(([127, 0, 1, 1 + (number % 20) as u8], 0).into()),
            receive_buffer: None,
        };
        let Ok((fd, connected)) = sys::dial(&dial) else {
            return self.schedule_reconnect(slot);
        };
        let row = &mut self.slots[slot];
        (row.fd, row.open, row.connecting) = (fd, true, true);
        row.watched = Interest::IN | Interest::OUT;
        if self.epoll.add(fd, row.watched, slot as u64).is_err() {
            return self.connection_lost(slot);
        }
        if connected {
            self.connected(slot);
        }
    }

    fn connected(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        row.connecting = false;
        if sys::connect_result(row.fd).is_err() {
            return self.connection_lost(slot);
        }
        row.client.connected();
        self.flush(slot);
    }

    fn flush(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        if !row.open || row.connecting {
            return;
        }
        while !row.client.subscription.out.is_empty() {
            match sys::send(row.fd, &row.client.subscription.out) {
                Ok(0) => break,
                Ok(count) => drop(row.client.subscription.out.drain(..count)),
                Err(_) => return self.connection_lost(slot),
            }
        }
        let wanted = sys::reading(!row.client.subscription.out.is_empty());
        if wanted != row.watched {
            row.watched = wanted;
            if self.epoll.modify(row.fd, wanted, slot as u64).is_err() {
                self.connection_lost(slot);
            }
        }
    }

    fn readable(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        if !row.open {
            return;
        }
        let count = match sys::receive(row.fd, &mut self.buffer) {
            Ok(None) => return,
            Ok(Some(0)) | Err(_) => return self.connection_lost(slot),
            Ok(Some(count)) => count,
        };
        let was = row.client.is_answered;
        let next = row
            .client
            .received(&self.buffer[..count], self.shared, &mut self.result.totals);
        if row.client.is_answered && !was {
            self.shared.live.fetch_add(1, Relaxed);
        }
        match next {
            Ok(Next::Continue) => return self.flush(slot),
            Err(reason) if self.result.violations.len() < REASONS_MAX => {
                let number = self.first as usize + slot;
                let violation = format!("client {number}: {reason}");
                self.result.violations.push(violation);
            }
            Ok(Next::Reconnect) | Err(_) => {}
        }
        self.disconnect(slot);
        self.schedule_reconnect(slot);
    }

    /// Closes a connection that was cut, and schedules a reconnect.
    fn connection_lost(&mut self, slot: usize) {
        self.result.lost_connections += 1;
        self.disconnect(slot);
        self.schedule_reconnect(slot);
    }

    fn disconnect(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        if !row.open {
            return;
        }
        sys::close(row.fd);
        (row.open, row.connecting) = (false, false);
        row.unanswered += 1;
        if std::mem::take(&mut row.client.is_answered) {
            row.unanswered = 0;
            self.shared.live.fetch_sub(1, Relaxed);
        }
    }

    fn schedule_reconnect(&mut self, slot: usize) {
        let away_max_ns = match self.shared.away_s.load(Relaxed) {
            0 if self.shared.faults.load(Relaxed) => AWAY_NS.0,
            0 => AWAY_NS.1,
            seconds => u64::from(seconds) * 1_000_000_000,
        };
        let unanswered = self.slots[slot].unanswered;
        let backoff_ns = away_max_ns.saturating_mul(1 << unanswered.min(16));
        let away_ns = self.random.draw() % backoff_ns.min(away_max_ns.max(AWAY_MAX_NS));
        self.reconnects
            .push(Reverse((sys::now_ns() + away_ns, slot as u32)));
    }

    /// Updates the count of complete clients, once the last messages are published.
    fn count_complete(&mut self) {
        let now = sys::now_ns();
        if !self.shared.closing.load(Relaxed) || now < self.counted_ns + POLL_NS {
            return;
        }
        self.counted_ns = now;
        let complete = |slot: &&ClientSlot| slot.client.is_complete(self.shared);
        let count = self.slots.iter().filter(complete).count() as u32;
        self.shared
            .complete
            .fetch_add(count.wrapping_sub(self.complete), Relaxed);
        self.complete = count;
    }
}
