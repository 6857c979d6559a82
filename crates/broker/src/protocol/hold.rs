//! Received bytes that are held: how many may be, how room is made for them, and the end of inputs that are too slow (`progress`).
//!
//! Where received bytes have no room in the account of memory, room is made: first by dropping bytes behind waiting polls, then by
//! ending inputs that lag by some seconds, at last by ending connections of addresses that hold more than the newcomer's, and those
//! of its own address that hold more than it asks for. Addresses that hold little are spared.
//!
//! Invariants: no second is counted in which we do not read the connection; a request whose credentials are being judged, and frames
//! behind a WebSocket handshake, are never dropped alone to make room: their connection ends instead.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::conn::io::Io;
use crate::conn::{KEEP, PAUSED, State, UPGRADE};
use crate::protocol::front::Front;
use crate::protocol::progress::Allowance;
use crate::protocol::side::Spill;
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

/// What the received bytes are that are held for a connection.
pub(super) enum Holds {
    /// A part of its input.
    Input,
    /// Requests behind one that waits for a message.
    Pipelined,
    /// They are not dropped to make room.
    Other,
}

impl Front {
    /// Whether a connection may hold so many more received bytes, which are not counted yet: there is room, if need be by making
    /// some, or its client holds little. Connections that end for room are answered, so no answer of the caller's may be half
    /// written in `reply`.
    pub(crate) fn has_receive_room<I: Io>(&mut self, slot: u32, bytes: usize, io: &mut I) -> bool {
        // If little of the memory is received input, dropping input would not help.
        let part = self.world.settings.limits.memory_bytes / ROOM_PART;
        if self.conns.lacks(bytes) > 0 && self.conns.receive_bytes() > part {
            self.make_room(slot, bytes, io);
        }
        self.conns.lacks(bytes) == 0 || self.may_take(slot, bytes)
    }

    fn allowance(&self) -> Allowance {
        let timeouts = &self.world.settings.timeouts;
        let per_s = u64::from(timeouts.progress_bytes_per_s);
        Allowance {
            per_s,
            most: per_s * u64::from(timeouts.body_s),
        }
    }

    /// Received bytes that are held for this connection.
    fn held_of(&self, slot: u32) -> usize {
        let spilled = self.conns.spill(slot).map_or(0, Spill::bytes);
        spilled + self.partial_of(slot).0
    }

    /// Makes room for so many bytes of this connection, at the cost of some of the next rows.
    fn make_room<I: Io>(&mut self, newcomer: u32, bytes: usize, io: &mut I) {
        let part = self.world.settings.limits.memory_bytes / ROOM_PART;
        for (class, .., slot) in self.hoarders(newcomer, bytes) {
            let enough = match class {
                Class::Large => self.conns.lacks(bytes) == 0,
                Class::Slow | Class::Poll => self.conns.lacks(bytes + part) == 0,
            };
            if enough {
                return;
            }
            match class {
                Class::Poll => self.forget_pipelined(slot, io),
                Class::Slow => _ = self.end_for(slot, Reason::TooSlow, io),
                Class::Large => self.end_for_room(slot, io),
            }
        }
    }

    /// Connections among the next rows that could make room for so many bytes of this one, in the order to try them.
    fn hoarders(&mut self, newcomer: u32, bytes: usize) -> Vec<Hoarder> {
        let end = self.conns.end();
        let mut by_address: BTreeMap<u32, usize> = BTreeMap::new();
        let of = |client: Client| client.number();
        by_address.insert(of(self.conns.get(newcomer).client), bytes);
        let mut found = Vec::new();
        for _ in 0..end.min(ROWS_MAX) {
            let slot = self.conns.next_hoard();
            let row = self.conns.get(slot);
            if slot == newcomer || !row.is_open() {
                continue;
            }
            let held = self.held_of(slot);
            if held == 0 {
                continue;
            }
            *by_address.entry(of(row.client)).or_default() += held;
            found.push((held, slot));
        }
        let owed_most = SLOW_S * self.allowance().per_s;
        let little_bytes = self.little_bytes();
        let mine = of(self.conns.get(newcomer).client);
        let mut hoarders = Vec::with_capacity(found.len());
        for (held, slot) in found {
            let (row, owed) = (self.conns.get(slot), self.owed_of(slot));
            let (address, of_address) = (of(row.client), by_address[&of(row.client)]);
            let class = match self.holds(slot) {
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
    fn owed_of(&self, slot: u32) -> u64 {
        let spilled = self.conns.spill(slot).map_or(0, |it| it.progress().owed());
        spilled.max(self.partial_of(slot).1)
    }

    /// Drops the bytes pipelined behind a waiting request, which becomes the last one of its connection: the client sends the
    /// dropped requests again (RFC 9112 section 9.3.2).
    pub(crate) fn forget_pipelined<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.conns.take_spill(slot);
        let row = self.conns.get_mut(slot);
        row.options &= !KEEP;
        if row.state == State::Poll {
            // It is read on, so that its end is noticed; received bytes are discarded.
            return self.read_again(self.conns.id_of(slot), io);
        }
        if !row.is(PAUSED) {
            row.flags |= PAUSED;
            self.conns.update_interest(slot, io);
        }
    }

    /// Keeps bytes received while a request waits. Past the length of a head the socket is not read; behind a poll, which must be
    /// read so that its end is noticed, they are dropped then.
    pub(crate) fn hold<I: Io>(&mut self, slot: u32, bytes: &[u8], io: &mut I) {
        let limit = self.world.settings.limits.head_bytes;
        let row = self.conns.get(slot);
        if row.state == State::Poll && !row.wants(KEEP) {
            // Bytes after the last request of a connection have no meaning.
            return;
        }
        let (polls, upgrades) = (row.state == State::Poll, row.wants(UPGRADE));
        let (before, asked) = match self.conns.spill(slot) {
            None => (0, false),
            Some(Spill::Http(spill)) => (spill.data.len(), spill.asked),
            Some(_) => return self.end_for_room(slot, io),
        };
        let long = polls && before + bytes.len() > limit;
        if long || !self.has_receive_room(slot, bytes.len(), io) {
            return match upgrades || asked {
                // The bytes are frames, or the request whose credentials are being judged.
                true => self.end_for_room(slot, io),
                false => self.forget_pipelined(slot, io),
            };
        }
        let held = self.conns.append_spill(slot, bytes, limit);
        if held.is_some_and(|held| held > limit) {
            self.conns.get_mut(slot).flags |= PAUSED;
            self.conns.update_interest(slot, io);
        }
    }

    /// A long-poll begins to wait: bytes pipelined behind it are dropped if it is the connection's last request, or if they are
    /// more than a head may have.
    pub(crate) fn polls_from_now<I: Io>(&mut self, slot: u32, io: &mut I) {
        let limit = self.world.settings.limits.head_bytes;
        self.conns.get_mut(slot).state = State::Poll;
        let row = self.conns.get(slot);
        let spill = self.conns.spill(slot);
        let long = matches!(spill, Some(Spill::Http(it)) if it.data.len() > limit);
        if long || !row.wants(KEEP) {
            self.forget_pipelined(slot, io);
        }
    }

    /// Counts a second of a partly received input. Whether it is too slow.
    pub(crate) fn is_too_slow(&mut self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        if row.outbox != NONE || row.is(PAUSED) {
            return false;
        }
        let state = row.state;
        if self.input_waits(slot) {
            return false;
        }
        let allowance = self.allowance();
        let mut came = 0;
        if let Some(spill) = self.conns.spill_mut(slot) {
            let slow = match spill {
                Spill::Http(spill) => {
                    let in_body = spill.judged && state == State::Http;
                    in_body && spill.progress.second(spill.data.len(), allowance)
                }
                Spill::WebSocket(partial, progress) => {
                    came = partial.received_bytes();
                    progress.second(came, allowance)
                }
                Spill::Mqtt(data, progress) => progress.second(data.rest().len(), allowance),
                Spill::Frames(..) => false,
            };
            if slow {
                return true;
            }
        }
        self.partial_is_slow(slot, came, allowance)
    }

    /// Ends a connection to make room for what clients send, and tells it why if it still reads.
    pub(crate) fn end_for_room<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.end_for(slot, Reason::InputsFull, io);
    }
}
