//! The connections: rows, and their index by addresses.
//!
//! Invariant: a connection that is not over is in the index, and so is one that is remembered. `dirty` and `listed` name a row at most once, which its
//! flags `DIRTY` and `LISTED` tell.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv6Addr;

use crate::account::Account;
use crate::config::Config;
use crate::counters::Counters;
use crate::orphans::Orphans;
use crate::packet::{End, Head, header_bytes, write};
use crate::row::{Conn, NONE, Row, flags};
use crate::siphash::Secret;
use crate::timers::Timers;
use crate::transfer::Transfer;

/// Where packets go.
pub trait Device {
    /// Sends a packet of `bytes` bytes that `fill` writes, of this connection. `None`: it answers the packet that is being received, whose
    /// sender may have forged its address. `false` if there is no room for it.
    fn transmit(&mut self, conn: Option<Conn>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool;
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
pub(crate) struct Remembered {
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
    pub(crate) free_rows: Vec<u32>,
    /// The first row of each bucket, plus one; 0 if there is none. No buckets if the caller finds connections.
    buckets: Vec<u32>,
    pub(crate) transfers: Vec<Transfer<H>>,
    pub(crate) free_transfers: Vec<u32>,
    /// Our addresses, and the index of each.
    pub(crate) locals: Vec<Ipv6Addr>,
    local_indexes: BTreeMap<Ipv6Addr, u16>,
    pub(crate) listeners: Vec<Listener>,
    /// Rows with something to send.
    pub(crate) dirty: Vec<u32>,
    /// Rows with an event for the caller.
    pub(crate) listed: Vec<u32>,
    /// The place in that list with which the next call of [`Table::events`] begins.
    pub(crate) next_listed: usize,
    /// Rows whose bytes to send the account has refused.
    pub(crate) blocked: Vec<u32>,
    /// The next place of the side table that is visited while memory is short.
    pub(crate) next_pressed: usize,
    pub(crate) timers: Timers,
    pub(crate) time_waits: VecDeque<Remembered>,
    pub(crate) orphans: Orphans,
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
        let config = config.bounded();
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
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            locals: Vec::new(),
            local_indexes: BTreeMap::new(),
            listeners: Vec::new(),
            dirty: Vec::new(),
            listed: Vec::new(),
            next_listed: 0,
            blocked: Vec::new(),
            next_pressed: 0,
            timers: Timers::default(),
            time_waits: VecDeque::new(),
            orphans: Orphans::default(),
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

    /// The number of connections with an entry in the side table.
    pub fn transfer_count(&self) -> usize {
        self.transfers.len() - self.free_transfers.len()
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
            self.forget_if_same(&oldest);
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
    pub(crate) fn unlink(&mut self, id: u32) {
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

    /// Notes that a row has something to send.
    pub(crate) fn queue_to_send(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        if !row.is(flags::DIRTY) {
            row.set(flags::DIRTY);
            self.dirty.push(id);
        }
    }

    /// Notes that an acknowledgement is due at the end of the turn.
    pub(crate) fn acknowledge(&mut self, id: u32) {
        self.rows[id as usize].set(flags::ACK_NOW);
        self.queue_to_send(id);
    }

    /// Notes that a row may have an event for the caller.
    pub(crate) fn queue_event(&mut self, id: u32) {
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

    /// Sends a packet. `conn`: see [`Device::transmit`].
    pub(crate) fn transmit<D: Device>(
        &mut self,
        device: &mut D,
        conn: Option<Conn>,
        head: &Head,
        data_bytes: usize,
        fill: impl FnOnce(&Self, &mut [u8]),
    ) -> bool {
        let bytes = header_bytes(head.to, &head.options) + data_bytes;
        let checksums = self.config.computes_checksums;
        let this = &*self;
        let is_sent = device.transmit(conn, bytes, |out| {
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
