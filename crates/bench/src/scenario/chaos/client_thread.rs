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
use crate::client::subscription::NextAction;
use crate::measure::payload::Random;
use crate::sys::{self, DialOptions, Epoll, Interest};

/// The maximum size of one read, in bytes.
const RECEIVE_BYTES: usize = 64 << 10;
/// The maximum number of events of one wait.
const EVENTS_MAX: usize = 512;
/// The maximum time to wait for events.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// The maximum time before a client reconnects: with network faults, and without.
const AWAY_NS: (u64, u64) = (3_000_000_000, 300_000_000);
/// With each unanswered connection the maximum time before a reconnect doubles, up to this limit. Otherwise thousands of clients that try
/// to reach dead servers would use the processor time that the servers need to start.
const BACKOFF_MAX_NS: u64 = 5_000_000_000;
/// How many connections a second one thread opens at the start of the run.
const OPENED_PER_S: u64 = 2_000;
/// Time between two counts of the complete clients.
const COUNT_INTERVAL_NS: u64 = 100_000_000;
/// Time between two rounds in which clients of Centrifugo's protocol change their subscriptions.
const CHANGE_INTERVAL_NS: u64 = 200_000_000;
/// The maximum number of violations that are described in words.
const VIOLATIONS_MAX: usize = 10;

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
    connect_count: usize,
    /// The number of consecutive connections without an answer.
    unanswered_count: u32,
    fd: RawFd,
    watched_interest: Interest,
    is_connecting: bool,
    is_open: bool,
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
    count_ns: u64,
    change_ns: u64,
    complete_count: u32,
    /// When the last move of a client to another address was due.
    move_ns: u64,
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
            client: Client::new(shared.client_plan(number), shared),
            connect_count: 0,
            unanswered_count: 0,
            fd: -1,
            watched_interest: Interest::IN,
            is_connecting: false,
            is_open: false,
        };
        let now = sys::now_ns();
        let first_connect =
            |index: u32| Reverse((now + u64::from(index) * 1_000_000_000 / OPENED_PER_S, index));
        Ok(ClientThread {
            shared,
            addresses,
            first,
            slots: (first..first + count).map(slot).collect(),
            reconnects: (0..count).map(first_connect).collect(),
            random: Random::new(shared.seed ^ u64::from(first) << 24 ^ 0xc0de),
            epoll: Epoll::new(EVENTS_MAX)?,
            buffer: vec![0; RECEIVE_BYTES],
            result: ClientThreadResult::default(),
            count_ns: 0,
            change_ns: 0,
            complete_count: 0,
            move_ns: 0,
        })
    }

    /// Runs the clients until the run is over, then counts their missing messages.
    pub fn run(mut self) -> Result<ClientThreadResult> {
        while !self.shared.must_stop.load(Relaxed) {
            let count = self.epoll.wait(WAIT_MAX)?;
            for index in 0..count {
                let ready = self.epoll.ready(index);
                let slot = ready.key as usize;
                if self.slots[slot].is_connecting {
                    self.finish_connect(slot);
                } else if ready.readable {
                    self.read(slot);
                }
                if ready.writable {
                    self.flush(slot);
                }
            }
            self.start_due_connects();
            self.move_clients();
            self.change_subscriptions();
            self.count_complete();
        }
        for slot in 0..self.slots.len() {
            self.disconnect(slot);
            self.slots[slot]
                .client
                .check_missing(self.shared, &mut self.result.totals);
        }
        Ok(self.result)
    }

    fn start_due_connects(&mut self) {
        let now = sys::now_ns();
        while self
            .reconnects
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            let Some(Reverse((_, slot))) = self.reconnects.pop() else {
                return;
            };
            self.start_connect(slot as usize);
        }
    }

    /// Disconnects clients that are due to move to another address.
    fn move_clients(&mut self) {
        let (now, stay_mean_s) = (sys::now_ns(), self.shared.stay_mean_s.load(Relaxed));
        let move_interval_ns = u64::from(stay_mean_s) * 1_000_000_000 / self.slots.len() as u64;
        if move_interval_ns == 0 {
            self.move_ns = now;
            return;
        }
        while self.move_ns + move_interval_ns <= now {
            self.move_ns += move_interval_ns;
            let slot = self.random.below(self.slots.len() as u32) as usize;
            if self.slots[slot].client.is_answered {
                self.disconnect(slot);
                self.schedule_reconnect(slot);
            }
        }
    }

    /// Lets connected clients change their subscriptions while messages are published. Later they have all of them.
    fn change_subscriptions(&mut self) {
        let now = sys::now_ns();
        if now < self.change_ns + CHANGE_INTERVAL_NS {
            return;
        }
        self.change_ns = now;
        let must_have_all = !self.shared.may_publish.load(Relaxed);
        for slot in 0..self.slots.len() {
            let row = &mut self.slots[slot];
            if row.is_open && !row.is_connecting {
                let totals = &mut self.result.totals;
                row.client
                    .change_subscriptions(must_have_all, &mut self.random, totals);
                self.flush(slot);
            }
        }
    }

    fn start_connect(&mut self, slot: usize) {
        let number = self.first as usize + slot;
        let address_turn = number + self.slots[slot].connect_count;
        self.slots[slot].connect_count += 1;
        let options = DialOptions {
            remote: self.addresses[address_turn % self.addresses.len()],
            local: Some(([127, 0, 1, 1 + (number % 20) as u8], 0).into()),
            receive_buffer: None,
        };
        let Ok((fd, connected)) = sys::dial(&options) else {
            return self.schedule_reconnect(slot);
        };
        let row = &mut self.slots[slot];
        (row.fd, row.is_open, row.is_connecting) = (fd, true, true);
        row.watched_interest = Interest::IN | Interest::OUT;
        if self
            .epoll
            .add(fd, row.watched_interest, slot as u64)
            .is_err()
        {
            return self.record_lost_connection(slot);
        }
        if connected {
            self.finish_connect(slot);
        }
    }

    fn finish_connect(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        row.is_connecting = false;
        if sys::connect_result(row.fd).is_err() {
            return self.record_lost_connection(slot);
        }
        row.client.start_connection();
        self.flush(slot);
    }

    fn flush(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        if !row.is_open || row.is_connecting {
            return;
        }
        let outgoing = row.client.connection.outgoing();
        while !outgoing.is_empty() {
            match sys::send(row.fd, outgoing) {
                Ok(0) => break,
                Ok(count) => drop(outgoing.drain(..count)),
                Err(_) => return self.record_lost_connection(slot),
            }
        }
        let wanted_interest = sys::reading(!outgoing.is_empty());
        if wanted_interest != row.watched_interest {
            row.watched_interest = wanted_interest;
            if self
                .epoll
                .modify(row.fd, wanted_interest, slot as u64)
                .is_err()
            {
                self.record_lost_connection(slot);
            }
        }
    }

    fn read(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        if !row.is_open {
            return;
        }
        let count = match sys::receive(row.fd, &mut self.buffer) {
            Ok(None) => return,
            Ok(Some(0)) | Err(_) => return self.record_lost_connection(slot),
            Ok(Some(count)) => count,
        };
        let was_answered = row.client.is_answered;
        let action =
            row.client
                .handle_bytes(&self.buffer[..count], self.shared, &mut self.result.totals);
        if row.client.is_answered && !was_answered {
            self.shared.open_clients.fetch_add(1, Relaxed);
        }
        match action {
            Ok(NextAction::KeepConnection) => return self.flush(slot),
            Err(reason) if self.result.violations.len() < VIOLATIONS_MAX => {
                let number = self.first as usize + slot;
                let violation = format!("client {number}: {reason}");
                self.result.violations.push(violation);
            }
            Ok(NextAction::Reconnect) | Err(_) => {}
        }
        self.disconnect(slot);
        self.schedule_reconnect(slot);
    }

    /// Closes a connection that was cut, and schedules a reconnect.
    fn record_lost_connection(&mut self, slot: usize) {
        self.result.lost_connections += 1;
        self.disconnect(slot);
        self.schedule_reconnect(slot);
    }

    fn disconnect(&mut self, slot: usize) {
        let row = &mut self.slots[slot];
        if !row.is_open {
            return;
        }
        sys::close(row.fd);
        (row.is_open, row.is_connecting) = (false, false);
        row.unanswered_count += 1;
        if std::mem::take(&mut row.client.is_answered) {
            row.unanswered_count = 0;
            self.shared.open_clients.fetch_sub(1, Relaxed);
        }
    }

    fn schedule_reconnect(&mut self, slot: usize) {
        let away_max_ns = match self.shared.away_max_s.load(Relaxed) {
            0 if self.shared.has_faults.load(Relaxed) => AWAY_NS.0,
            0 => AWAY_NS.1,
            seconds => u64::from(seconds) * 1_000_000_000,
        };
        let unanswered_count = self.slots[slot].unanswered_count;
        let backoff_ns = away_max_ns.saturating_mul(1 << unanswered_count.min(16));
        let away_ns = self.random.draw() % backoff_ns.min(away_max_ns.max(BACKOFF_MAX_NS));
        self.reconnects
            .push(Reverse((sys::now_ns() + away_ns, slot as u32)));
    }

    /// Updates the count of complete clients, once the last messages are published.
    fn count_complete(&mut self) {
        let now = sys::now_ns();
        if !self.shared.must_publish_last.load(Relaxed) || now < self.count_ns + COUNT_INTERVAL_NS {
            return;
        }
        self.count_ns = now;
        let is_complete = |slot: &&ClientSlot| slot.client.is_complete(self.shared);
        let count = self.slots.iter().filter(is_complete).count() as u32;
        self.shared
            .complete_clients
            .fetch_add(count.wrapping_sub(self.complete_count), Relaxed);
        self.complete_count = count;
    }
}
