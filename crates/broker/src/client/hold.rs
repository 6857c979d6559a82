//! Received bytes that are held: how many may be, how room is made for them, and the end of inputs that are too slow (`progress`).
//!
//! Where received bytes have no room in the account of memory, room is made: first by dropping bytes behind waiting polls, then by
//! ending inputs that lag by some seconds, at last by ending connections of addresses that hold more than the newcomer's, and those
//! of its own address that hold more than it asks for. Addresses that hold little are spared.
//!
//! Invariant: no second is counted in which we do not read the connection.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::close::end_connection;
use crate::client::parts::{Census, Clients, Connections, Context, Queues};
use crate::client::progress::Allowance;
use crate::client::protocols::{Holds, Protocols};
use crate::client::row::PAUSED;
use crate::client::types::Spilled;
use crate::io::Io;
use crate::store::slab::NONE;

/// Rows looked at in one go to make room, as many as in a step of the census.
const ROWS_MAX: u32 = 4_096;
/// When room is made, this part of the limit is freed at once if possible, so that not every input has to look for room.
const ROOM_PART: usize = 32;
/// An input that lags by more bytes than are due in so many seconds ends before connections that hold much.
const SLOW_S: u64 = 2;
/// A connection that may lose bytes or end to make room, the largest first: how, the bytes owed, those its address holds, its own,
/// the slot.
type Hoarder = (Class, u64, usize, usize, u32);

/// How room is made; the last one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Its address holds more than a little and more than the newcomer's, or it is the newcomer's own address and it holds more
    /// than the newcomer asks for: it ends.
    Large,
    /// Its input lags by more than [`SLOW_S`]: it ends.
    Slow,
    /// A waiting poll: the bytes behind it are dropped.
    Poll,
}

/// Whether a connection may hold so many more received bytes, which are not counted yet: there is room, if need be by making
/// some, or its client holds little. Connections that end for room are answered, so no answer of the caller's may be half
/// written in `reply`.
pub(crate) fn has_receive_room<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    queues: &Queues,
    census: &Census,
    slot: u32,
    bytes: usize,
    io: &mut I,
) -> bool {
    // If little of the memory is received input, dropping input would not help.
    let part = clients.ctx.world.settings.limits.memory_bytes / ROOM_PART;
    if clients.conns.lacks(bytes) > 0 && clients.conns.receive_bytes() > part {
        make_room(clients, queues, slot, bytes, io);
    }
    clients.conns.lacks(bytes) == 0 || clients.may_take(census, slot, bytes)
}

/// Makes room for so many bytes of this connection, at the cost of some of the next rows.
fn make_room<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    queues: &Queues,
    newcomer: u32,
    bytes: usize,
    io: &mut I,
) {
    let part = clients.ctx.world.settings.limits.memory_bytes / ROOM_PART;
    for (class, .., slot) in hoarders(clients, newcomer, bytes) {
        let enough = match class {
            Class::Large => clients.conns.lacks(bytes) == 0,
            Class::Slow | Class::Poll => clients.conns.lacks(bytes + part) == 0,
        };
        if enough {
            return;
        }
        match class {
            Class::Poll => P::drop_pipelined(clients, queues, slot, io),
            Class::Slow => end_connection(clients, slot, Reason::TooSlow, io),
            Class::Large => end_for_room(clients, slot, io),
        }
    }
}

/// Ends a connection to make room for what clients send, and tells it why if it still reads.
pub(crate) fn end_for_room<P: Protocols, I: Io>(clients: &mut Clients<P>, slot: u32, io: &mut I) {
    end_connection(clients, slot, Reason::InputsFull, io);
}

impl Context {
    fn allowance(&self) -> Allowance {
        let timeouts = &self.world.settings.timeouts;
        let per_s = u64::from(timeouts.progress_bytes_per_s);
        Allowance {
            per_s,
            most: per_s * u64::from(timeouts.body_s),
        }
    }
}

/// Received bytes that are held for this connection.
fn held_of<P: Protocols>(conns: &Connections<P>, slot: u32) -> usize {
    let spilled = conns.spill(slot).map_or(0, Spilled::bytes);
    spilled + P::partial_of(conns, slot).0
}

/// Connections among the next rows that could make room for so many bytes of this one, in the order to try them.
fn hoarders<P: Protocols>(clients: &mut Clients<P>, newcomer: u32, bytes: usize) -> Vec<Hoarder> {
    let end = clients.conns.end();
    let mut by_address: BTreeMap<u32, usize> = BTreeMap::new();
    let of = |client: Client| client.number();
    by_address.insert(of(clients.conns.get(newcomer).client), bytes);
    let mut found = Vec::new();
    for _ in 0..end.min(ROWS_MAX) {
        let slot = clients.conns.next_hoard();
        let row = clients.conns.get(slot);
        if slot == newcomer || !row.is_open() {
            continue;
        }
        let held = held_of(&clients.conns, slot);
        if held == 0 {
            continue;
        }
        *by_address.entry(of(row.client)).or_default() += held;
        found.push((held, slot));
    }
    let owed_most = SLOW_S * clients.ctx.allowance().per_s;
    let little_bytes = clients.ctx.little_bytes();
    let mine = of(clients.conns.get(newcomer).client);
    let mut hoarders = Vec::with_capacity(found.len());
    for (held, slot) in found {
        let (row, owed) = (clients.conns.get(slot), owed_of(&clients.conns, slot));
        let (address, of_address) = (of(row.client), by_address[&of(row.client)]);
        let class = match P::holds(&clients.conns, slot) {
            Holds::Pipelined => Class::Poll,
            Holds::Input if owed > owed_most => Class::Slow,
            Holds::Input => {
                let larger = match address == mine {
                    true => held > bytes,
                    false => of_address > by_address[&mine],
                };
                // Addresses that hold little are served, also where sessions and outboxes hold the memory.
                if !larger || of_address <= little_bytes {
                    continue;
                }
                Class::Large
            }
            Holds::Other => continue,
        };
        hoarders.push((class, owed, of_address, held, slot));
    }
    hoarders.sort_unstable_by(|one, other| other.cmp(one));
    hoarders
}

/// Bytes that should have come by now for this connection.
fn owed_of<P: Protocols>(conns: &Connections<P>, slot: u32) -> u64 {
    let spilled = conns.spill(slot).map_or(0, Spilled::owed_bytes);
    spilled.max(P::partial_of(conns, slot).1)
}

/// Counts a second of a partly received input. Whether it is too slow.
pub(crate) fn is_too_slow<P: Protocols>(clients: &mut Clients<P>, slot: u32) -> bool {
    let row = clients.conns.get(slot);
    if row.outbox != NONE || row.is(PAUSED) {
        return false;
    }
    let allowance = clients.ctx.allowance();
    P::input_lags(clients, slot, allowance)
}
