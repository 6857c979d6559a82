//! The connections: rows, their index by addresses, and the side table of the busy ones.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv6Addr;

use crate::account::Account;
use crate::busy::Busy;
use crate::config::Config;
use crate::congestion::{Congestion, initial_window};
use crate::cookie::COOKIE_GOOD_MS;
use crate::counters::Counters;
use crate::planted::{self, Fault};
use crate::row::{Conn, Failure, NO_THRESHOLD, NONE, Row, State, flags};
use crate::segment::{End, Head, header_bytes, write};
use crate::siphash::Secret;
use crate::timers::{NEVER, Timers};

/// Places of the side table that may be free, beyond as many as are in use.
const FREE_PLACES: usize = 1_024;

/// Where packets go.
pub trait Device {
    /// Sends a packet of `bytes` bytes that `fill` writes. `false` if there is no room for it.
    fn transmit(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool;
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub port: u16,
    /// Connections that wait to be accepted.
    pub queue: VecDeque<u32>,
    /// Whether handshakes are answered.
    pub is_open: bool,
}

/// A connection that is over, and when it is forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub due_us: u64,
    pub row: u32,
    /// The row is still of this connection if it expects this sequence number.
    pub receive_next: u32,
}

/// All connections of one thread. `H` is a handle to bytes that are shared, such as an `Arc`.
#[derive(Debug)]
pub struct Table<H, A> {
    pub(crate) config: Config,
    pub(crate) secret: Secret,
    /// What the clock of timestamps counts from. Without it the clock would tell how long the machine has been up.
    clock_start: u32,
    /// The caller's account of memory.
    pub account: A,
    pub(crate) rows: Vec<Row>,
    free_rows: Vec<u32>,
    /// The first row of each bucket, plus one; 0 if there is none. No buckets if the caller finds connections.
    buckets: Vec<u32>,
    pub(crate) busy: Vec<Busy<H>>,
    free_busy: Vec<u32>,
    /// Our addresses, and the index of each.
    pub(crate) locals: Vec<Ipv6Addr>,
    local_indexes: BTreeMap<Ipv6Addr, u16>,
    pub(crate) listeners: Vec<Listener>,
    /// Rows with something to send.
    pub(crate) dirty: Vec<u32>,
    /// Rows with an event for the caller.
    pub(crate) listed: Vec<u32>,
    pub(crate) timers: Timers,
    pub(crate) time_waits: VecDeque<Rest>,
    /// The time that the caller has given last.
    pub(crate) now_us: u64,
    /// The next row that the slow sweep visits, and the time up to which it is done.
    pub(crate) sweep: (u32, u64),
    /// Answers to unacceptable segments that are left in this second.
    pub(crate) challenges: (u64, u32),
    /// What has happened.
    pub counters: Counters,
}

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// An empty table. The secret must be random: who knows it can guess sequence numbers.
    pub fn new(config: Config, secret: Secret, account: A) -> Self {
        let buckets = match config.finds_connections {
            true => (config.connections as usize).next_power_of_two(),
            false => 0,
        };
        Table {
            config,
            secret,
            clock_start: secret.hash(b"clock") as u32,
            account,
            rows: Vec::new(),
            free_rows: Vec::new(),
            // Zeroes cost no memory before they are used.
            buckets: vec![0; buckets],
            busy: Vec::new(),
            free_busy: Vec::new(),
            locals: Vec::new(),
            local_indexes: BTreeMap::new(),
            listeners: Vec::new(),
            dirty: Vec::new(),
            listed: Vec::new(),
            timers: Timers::default(),
            time_waits: VecDeque::new(),
            now_us: 0,
            sweep: (0, 0),
            challenges: (0, 0),
            counters: Counters::default(),
        }
    }

    /// Adds an address of ours. Packets to other addresses are not answered. Returns its index; `None` if there are too many.
    pub fn add_address(&mut self, end: End) -> Option<u16> {
        if let Some(index) = self.local_indexes.get(&end.address) {
            return Some(*index);
        }
        let index = u16::try_from(self.locals.len()).ok()?;
        self.locals.push(end.address);
        self.local_indexes.insert(end.address, index);
        Some(index)
    }

    pub(crate) fn local_index(&self, address: Ipv6Addr) -> Option<u16> {
        self.local_indexes.get(&address).copied()
    }

    /// The number of connections, including those that are closed and not over.
    pub fn len(&self) -> usize {
        self.rows.len() - self.free_rows.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of busy connections.
    pub fn busy(&self) -> usize {
        self.busy.len() - self.free_busy.len()
    }

    /// The bucket of a connection between these ends, if there are buckets.
    fn bucket(&self, local: &End, remote: &End) -> Option<usize> {
        let last = self.buckets.len().checked_sub(1)?;
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&remote.address.octets());
        bytes[16..32].copy_from_slice(&local.address.octets());
        bytes[32..34].copy_from_slice(&remote.port.to_be_bytes());
        bytes[34..36].copy_from_slice(&local.port.to_be_bytes());
        Some(self.secret.hash(&bytes) as usize & last)
    }

    /// The row of the connection between these ends.
    pub(crate) fn find(&self, local: &End, remote: &End) -> Option<u32> {
        let mut next = self.buckets[self.bucket(local, remote)?].checked_sub(1)?;
        while next != NONE {
            let row = &self.rows[next as usize];
            if row.remote == remote.address
                && row.remote_port == remote.port
                && row.local_port == local.port
                && self.locals[usize::from(row.local)] == local.address
            {
                return Some(next);
            }
            next = row.chain;
        }
        None
    }

    /// Takes a free row for a connection between these ends; `None` if there is no room, or if the local address is not ours.
    pub(crate) fn add(&mut self, local: &End, remote: &End) -> Option<u32> {
        let index = self.local_index(local.address)?;
        while self.len() >= self.config.connections as usize {
            let oldest = self.time_waits.pop_front()?;
            self.rested(&oldest);
        }
        let id = self.free_rows.pop().unwrap_or_else(|| {
            self.rows.push(Row::free());
            self.rows.len() as u32 - 1
        });
        let bucket = self.bucket(local, remote);
        let next = bucket.and_then(|bucket| self.buckets[bucket].checked_sub(1));
        self.rows[id as usize] = Row {
            remote: remote.address,
            remote_port: remote.port,
            local_port: local.port,
            local: index,
            chain: next.unwrap_or(NONE),
            receive_log2: self.config.receive_log2,
            flags: self.rows[id as usize].flags,
            ..Row::free()
        };
        if let Some(bucket) = bucket {
            self.buckets[bucket] = id + 1;
        }
        Some(id)
    }

    /// The two ends of a connection.
    pub(crate) fn ends(&self, id: u32) -> (End, End) {
        let row = &self.rows[id as usize];
        let local = End {
            address: self.locals[usize::from(row.local)],
            port: row.local_port,
        };
        let remote = End {
            address: row.remote,
            port: row.remote_port,
        };
        (local, remote)
    }

    /// Removes a row from the index, so that its ends may begin a new connection.
    fn unlink(&mut self, id: u32) {
        let (local, remote) = self.ends(id);
        let Some(bucket) = self.bucket(&local, &remote) else {
            return;
        };
        let chain = self.rows[id as usize].chain;
        if self.buckets[bucket] == id + 1 {
            self.buckets[bucket] = if chain == NONE { 0 } else { chain + 1 };
            return;
        }
        let mut at = self.buckets[bucket].wrapping_sub(1);
        while let Some(row) = self.rows.get_mut(at as usize) {
            if row.chain == id {
                row.chain = chain;
                return;
            }
            at = row.chain;
        }
    }

    /// Ends a connection. Its row is free at once if the caller has closed it, and otherwise when the caller closes it. Received bytes can
    /// still be read unless the connection has failed.
    pub(crate) fn end(&mut self, id: u32, failure: Option<Failure>) {
        let row = &self.rows[id as usize];
        let keeps_bytes = failure.is_none() && !row.is(flags::ORPHAN);
        if row.state == State::Closed {
            return;
        }
        let must_rest = row.is(flags::BY_COOKIE)
            && !row.is(flags::RESTING)
            && !planted::is_planted(Fault::SpentCookie);
        let rests = must_rest && self.rest_in_queue(id);
        if !rests {
            self.unlink(id);
        }
        let row = &mut self.rows[id as usize];
        row.state = State::Closed;
        row.failure = failure;
        row.clear(flags::ACK_NOW);
        if !rests {
            row.clear(flags::RESTING);
        }
        if keeps_bytes && row.busy != NONE {
            self.drop_unsent(id);
            self.tidy(id);
        } else {
            self.release_busy(id);
        }
        if !self.rows[id as usize].is(flags::ORPHAN) {
            self.list(id);
        } else if !rests {
            self.free(id);
        }
    }

    /// A connection in TIME-WAIT has acknowledged the peer's FIN. It is over at once if nothing is to be remembered.
    pub(crate) fn rest(&mut self, id: u32) {
        if !self.rows[id as usize].is(flags::RESTING) && !self.rest_in_queue(id) {
            self.end(id, None);
        }
    }

    /// Remembers a connection that is over for a while. `false` if the settings say that none is remembered.
    fn rest_in_queue(&mut self, id: u32) -> bool {
        let mut remembered_ms = u64::from(self.config.time_wait_ms);
        if !self.listeners.is_empty() {
            // An old copy of the third packet would begin the connection once more.
            remembered_ms = remembered_ms.max(COOKIE_GOOD_MS);
        }
        if remembered_ms == 0 || self.config.time_waits == 0 {
            return false;
        }
        if self.time_waits.len() >= self.config.time_waits
            && let Some(oldest) = self.time_waits.pop_front()
        {
            self.rested(&oldest);
        }
        let row = &mut self.rows[id as usize];
        row.set(flags::RESTING);
        let receive_next = row.receive_next;
        self.time_waits.push_back(Rest {
            due_us: self.now_us + remembered_ms * 1_000,
            row: id,
            receive_next,
        });
        true
    }

    /// Forgets a connection that was remembered long enough.
    pub(crate) fn rested(&mut self, rest: &Rest) {
        let row = &self.rows[rest.row as usize];
        if row.is(flags::RESTING) && row.receive_next == rest.receive_next {
            self.forget(rest.row);
        }
    }

    /// Forgets a connection that is remembered.
    pub(crate) fn forget(&mut self, id: u32) {
        if self.rows[id as usize].state == State::TimeWait {
            self.rows[id as usize].set(flags::RESTING);
            return self.end(id, None);
        }
        self.unlink(id);
        self.rows[id as usize].clear(flags::RESTING);
        if self.rows[id as usize].is(flags::ORPHAN) {
            self.free(id);
        }
    }

    /// The caller has closed a connection that is over.
    pub(crate) fn discard(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        row.set(flags::ORPHAN);
        if !row.is(flags::RESTING) {
            self.free(id);
        } else {
            self.release_busy(id);
        }
    }

    /// Forgets the row of a connection that is over and that the caller has closed.
    pub(crate) fn free(&mut self, id: u32) {
        self.release_busy(id);
        let row = &mut self.rows[id as usize];
        // The lists may still name the row.
        row.flags &= flags::LISTED | flags::DIRTY;
        self.free_rows.push(id);
    }

    /// The side-table entry of a row, if it has one.
    pub(crate) fn busy_of(&mut self, id: u32) -> Option<&mut Busy<H>> {
        self.busy.get_mut(self.rows[id as usize].busy as usize)
    }

    /// The side-table entry of a row. Makes it if there is none.
    pub(crate) fn make_busy(&mut self, id: u32, now_us: u64) -> u32 {
        let row = &self.rows[id as usize];
        if row.busy != NONE {
            return row.busy;
        }
        let bytes = row.data_bytes();
        let idle_ms = ((now_us / 1_000) as u32).wrapping_sub(row.heard_ms);
        let timeout_us = row.rtt.timeout_us(&self.config, 0);
        // After a pause the window begins anew (RFC 5681 §4.1).
        let window = match u32::from(row.window) * bytes {
            0 => initial_window(bytes),
            window if u64::from(idle_ms) * 1_000 > timeout_us => window.min(initial_window(bytes)),
            window => window,
        };
        let threshold = match row.threshold {
            NO_THRESHOLD => u32::MAX,
            segments => u32::from(segments) * bytes,
        };
        let congestion = Congestion::new(window, threshold);
        let (next, send_window) = (row.send_next, row.send_window);
        let place = match self.free_busy.pop() {
            Some(place) => {
                let old = &mut self.busy[place as usize];
                let fresh = Busy::new(id, next, congestion, now_us);
                // The entries among the timers belong to the place. Empty buffers keep their memory.
                *old = Busy {
                    entry_us: old.entry_us,
                    receive: core::mem::take(&mut old.receive),
                    board: core::mem::take(&mut old.board),
                    ..fresh
                };
                place
            }
            None => {
                self.busy.push(Busy::new(id, next, congestion, now_us));
                self.busy.len() as u32 - 1
            }
        };
        self.busy[place as usize].largest_window = send_window;
        self.rows[id as usize].busy = place;
        place
    }

    /// Frees the side-table entry of a row if nothing is under way.
    pub(crate) fn tidy(&mut self, id: u32) {
        let owes_fin = self.rows[id as usize].owes_fin();
        if self
            .busy_of(id)
            .is_some_and(|busy| busy.is_idle() && !owes_fin)
        {
            self.release_busy(id);
        }
    }

    /// Frees the side-table entry of a row, with all bytes in it.
    pub(crate) fn release_busy(&mut self, id: u32) {
        let place = self.rows[id as usize].busy;
        let Some(busy) = self.busy.get_mut(place as usize) else {
            return;
        };
        let held = busy.send.len() as usize + busy.receive.held();
        let congestion = busy.congestion;
        busy.row = NONE;
        busy.send.clear();
        busy.receive.clear();
        busy.board.clear();
        busy.stop_timers();
        self.free_busy.push(place);
        let row = &mut self.rows[id as usize];
        row.busy = NONE;
        let segments = |bytes: u32| (bytes / row.data_bytes()).clamp(1, 1 << 15) as u16;
        (row.window, row.threshold) = match congestion.threshold {
            u32::MAX => (segments(congestion.window), NO_THRESHOLD),
            threshold => (segments(congestion.window), segments(threshold)),
        };
        if held > 0 {
            self.account.release(Conn(id), held);
        }
    }

    /// Makes the side table smaller if most of its places are free, so that a burst does not leave its memory behind.
    pub(crate) fn trim(&mut self) {
        if self.free_busy.len() <= self.busy() + FREE_PLACES {
            return;
        }
        self.free_busy = Vec::new();
        self.busy.retain(|busy| busy.row != NONE);
        self.busy.shrink_to_fit();
        self.timers = Timers::default();
        for (place, busy) in (0..).zip(&mut self.busy) {
            self.rows[busy.row as usize].busy = place;
            let entry_us = core::mem::replace(&mut busy.entry_us, NEVER);
            self.timers.set(place, entry_us, &mut busy.entry_us);
        }
    }

    /// Forgets the bytes that will not be sent any more.
    fn drop_unsent(&mut self, id: u32) {
        if let Some(busy) = self.busy_of(id) {
            let freed = busy.send.len() as usize + busy.receive.drop_ranges();
            busy.send.clear();
            busy.board.clear();
            busy.receive.fin = None;
            busy.stop_timers();
            if freed > 0 {
                self.account.release(Conn(id), freed);
            }
        }
    }

    /// Notes that a row has something to send.
    pub(crate) fn touch(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        if !row.is(flags::DIRTY) {
            row.set(flags::DIRTY);
            self.dirty.push(id);
        }
    }

    /// Notes that an acknowledgement is due at the end of the turn.
    pub(crate) fn acknowledge(&mut self, id: u32) {
        self.rows[id as usize].set(flags::ACK_NOW);
        self.touch(id);
    }

    /// Notes that a row may have an event for the caller.
    pub(crate) fn list(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        if row.is(flags::OPEN) && !row.is(flags::LISTED) {
            row.set(flags::LISTED);
            self.listed.push(id);
        }
    }

    /// The clock of our timestamps.
    pub(crate) fn clock(&self, now_us: u64) -> u32 {
        ((now_us / 1_000) as u32).wrapping_add(self.clock_start)
    }

    /// Sends a packet.
    pub(crate) fn transmit<D: Device>(
        &mut self,
        device: &mut D,
        head: &Head,
        data_bytes: usize,
        fill: impl FnOnce(&Self, &mut [u8]),
    ) -> bool {
        let bytes = header_bytes(head.to, &head.options) + data_bytes;
        let checksums = self.config.computes_checksums;
        let this = &*self;
        let is_sent = device.transmit(bytes, |out| {
            write(head, checksums, out, |data| fill(this, data));
        });
        if is_sent {
            self.counters.sent += 1;
        } else {
            self.counters.refused_by_device += 1;
        }
        is_sent
    }
}
