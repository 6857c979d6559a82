//! Bounds the received bytes that the server holds, frees memory for new ones, and ends inputs that are too slow (`progress`).
//!
//! If the account of memory has no room for the bytes of a connection (the newcomer), the server makes room in this order:
//! 1. It drops the pipelined requests behind long-polls that wait.
//! 2. It ends connections whose input is some seconds late.
//! 3. It ends connections whose address holds more than the newcomer's address, and connections of the newcomer's address that hold more than
//!    the newcomer needs. Addresses that hold little are spared.
//!
//! Invariant: a second in which the server does not read a connection does not count against its input.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::parts::{Census, Clients, Connections, Context, Queues};
use crate::client::progress::Allowance;
use crate::client::protocols::{InputKind, Protocols, protocol_of};
use crate::client::row::PAUSED;
use crate::client::types::{PartialInput, UnprocessedInput};
use crate::io::Io;
use crate::store::slab::NONE;

/// The maximum number of rows that one search for room examines: as many as one step of the census (`census.rs`).
const ROWS_MAX: u32 = 4_096;
/// A search for room frees this fraction of the memory limit, if possible, so that not every input must search.
const ROOM_DIVISOR: usize = 32;
/// An input ends before large connections if it is behind by more than the bytes due in this many seconds.
const SLOW_INPUT_S: u64 = 2;
/// A connection that may lose bytes or end to make room. The greatest one, in the order of the fields, is used first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Hoarder {
    source: RoomSource,
    /// How many bytes its input is behind, if it is slow.
    bytes_behind: u64,
    /// The bytes that its address holds.
    address_bytes: usize,
    held_bytes: usize,
    slot: u32,
}

/// How a connection makes room. The last class is used first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RoomSource {
    /// The connection ends. Its address holds more than a little, and more than the newcomer's address. Or it is of the newcomer's
    /// address, and holds more than the newcomer needs.
    Large,
    /// The connection ends: its input is behind by more than [`SLOW_INPUT_S`].
    Slow,
    /// The connection is a waiting poll. The bytes behind the poll are dropped.
    Poll,
}

/// Whether a connection may hold `bytes` more received bytes, which are not counted yet. Makes room if there is none. If no room can be made,
/// only a client that holds little may hold them. Connections that end to make room get their answer through the buffer `reply`. The caller's answers in
/// `reply` are sent before, so they must be complete.
pub(crate) fn has_receive_room<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    queues: &Queues,
    census: &Census,
    slot: u32,
    bytes: usize,
    io: &mut I,
) -> bool {
    // If little of the memory is received input, dropping input would not help.
    let reserve_bytes = clients.ctx.world.settings.limits.memory_bytes / ROOM_DIVISOR;
    if clients.conns.missing_bytes(bytes) > 0 && clients.conns.receive_bytes() > reserve_bytes {
        clients.send_reply(slot, io);
        make_room(clients, queues, slot, bytes, io);
    }
    clients.conns.missing_bytes(bytes) == 0 || clients.has_memory_for(census, slot, bytes)
}

/// Makes room for `bytes` bytes of this connection with some of the next rows of the table.
fn make_room<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    queues: &Queues,
    newcomer: u32,
    bytes: usize,
    io: &mut I,
) {
    let reserve_bytes = clients.ctx.world.settings.limits.memory_bytes / ROOM_DIVISOR;
    for Hoarder { source, slot, .. } in hoarders(clients, newcomer, bytes) {
        let has_room = match source {
            RoomSource::Large => clients.conns.missing_bytes(bytes) == 0,
            RoomSource::Slow | RoomSource::Poll => {
                clients.conns.missing_bytes(bytes + reserve_bytes) == 0
            }
        };
        if has_room {
            return;
        }
        match source {
            RoomSource::Poll => {
                let conns = &mut clients.conns;
                let state = conns.get(slot).consumer.state;
                protocol_of!(P, state, drop_pipelined(conns, queues, slot, io));
            }
            RoomSource::Slow => clients.end_connection(slot, Reason::TooSlow, io),
            RoomSource::Large => end_for_room(clients, slot, io),
        }
    }
}

/// Ends a connection to make room for received bytes. Tells the client why, if it still reads.
pub(crate) fn end_for_room<P: Protocols, I: Io>(clients: &mut Clients<P>, slot: u32, io: &mut I) {
    clients.end_connection(slot, Reason::InputsFull, io);
}

impl Context {
    fn allowance(&self) -> Allowance {
        let timeouts = &self.world.settings.timeouts;
        let bytes_per_s = u64::from(timeouts.progress_bytes_per_s);
        Allowance {
            bytes_per_s,
            bytes_behind_max: bytes_per_s * u64::from(timeouts.body_s),
        }
    }
}

/// The received bytes that are held for this connection.
fn held_input_bytes<P: Protocols>(conns: &Connections<P>, slot: u32) -> usize {
    let spilled = conns
        .unprocessed_input(slot)
        .map_or(0, UnprocessedInput::bytes);
    spilled + partial_of(conns, slot).bytes
}

/// The connections among the next rows that could make room for `bytes` bytes of `newcomer`, in the order in which they are used.
fn hoarders<P: Protocols>(clients: &mut Clients<P>, newcomer: u32, bytes: usize) -> Vec<Hoarder> {
    let end = clients.conns.end();
    let mut by_address: BTreeMap<u32, usize> = BTreeMap::new();
    let address_of = |client: Client| client.number();
    by_address.insert(
        address_of(clients.conns.get(newcomer).consumer.client),
        bytes,
    );
    let mut found = Vec::new();
    for _ in 0..end.min(ROWS_MAX) {
        let slot = clients.conns.next_row_to_search();
        let row = clients.conns.get(slot);
        if slot == newcomer || !row.is_open() {
            continue;
        }
        let held_bytes = held_input_bytes(&clients.conns, slot);
        if held_bytes == 0 {
            continue;
        }
        *by_address
            .entry(address_of(row.consumer.client))
            .or_default() += held_bytes;
        found.push((held_bytes, slot));
    }
    let bytes_behind_max = SLOW_INPUT_S * clients.ctx.allowance().bytes_per_s;
    let little_bytes = clients.ctx.little_bytes();
    let own_address = address_of(clients.conns.get(newcomer).consumer.client);
    let mut hoarders = Vec::with_capacity(found.len());
    for (held_bytes, slot) in found {
        let row = clients.conns.get(slot);
        let bytes_behind = input_bytes_behind(&clients.conns, slot);
        let address = address_of(row.consumer.client);
        let address_bytes = by_address[&address];
        let source = match protocol_of!(P, row.consumer.state, unprocessed_input_kind(row)) {
            InputKind::Pipelined => RoomSource::Poll,
            InputKind::Incomplete if bytes_behind > bytes_behind_max => RoomSource::Slow,
            InputKind::Incomplete => {
                let larger = match address == own_address {
                    true => held_bytes > bytes,
                    false => address_bytes > by_address[&own_address],
                };
                // Addresses that hold little are served, even if sessions and outboxes use up the memory.
                if !larger || address_bytes <= little_bytes {
                    continue;
                }
                RoomSource::Large
            }
            InputKind::MustStay => continue,
        };
        hoarders.push(Hoarder {
            source,
            // The walk of each second finds every input behind by the bytes of that second, however fast it arrives. So among inputs that are not slow,
            // the larger one ends first.
            bytes_behind: if source == RoomSource::Slow {
                bytes_behind
            } else {
                0
            },
            address_bytes,
            held_bytes,
            slot,
        });
    }
    hoarders.sort_unstable_by(|one, other| other.cmp(one));
    hoarders
}

/// How many bytes this connection's input is behind.
fn input_bytes_behind<P: Protocols>(conns: &Connections<P>, slot: u32) -> u64 {
    let spilled = conns
        .unprocessed_input(slot)
        .map_or(0, UnprocessedInput::bytes_behind);
    spilled.max(partial_of(conns, slot).bytes_behind)
}

/// See [`Protocol::partial_input`](crate::client::protocols::Protocol::partial_input).
fn partial_of<P: Protocols>(conns: &Connections<P>, slot: u32) -> PartialInput {
    protocol_of!(
        P,
        conns.get(slot).consumer.state,
        partial_input(conns, slot)
    )
}

/// Counts a second of a partly received input. Returns whether the input is too slow.
pub(crate) fn is_too_slow<P: Protocols>(clients: &mut Clients<P>, slot: u32) -> bool {
    let row = clients.conns.get(slot);
    if row.link.outbox != NONE || row.link.has(PAUSED) {
        return false;
    }
    let (state, allowance) = (row.consumer.state, clients.ctx.allowance());
    protocol_of!(P, state, count_input_second(clients, slot, allowance))
}
