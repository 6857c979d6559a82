//! Relief: the server lets go of bytes that clients make it hold when their account nears its limit.
//!
//! First nothing more is put behind what waits for sockets: subscribers fall back to their positions
//! ([`Shard::fits`]). Then whoever holds much gets nothing new ([`Shard::may_take`]). At last connections end, of those
//! whose address or user holds most, largest first, until there is room again. Clients that hold little are served.
//!
//! Nothing counts the bytes of each client as they come and go. While the sum is near its limit a census walks over the
//! connections, some rows in a turn, and adds up the bytes of each address or user.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::account::{Level, Part};
use crate::conn::{ConnId, EVENTS, FILTERS, FOLLOWS, KEEP, MULTI, Spill, State, UPGRADE};
use crate::connection::close_code;
use crate::io::{Close, Io};
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

/// Connections that a turn looks at: some 100 us.
const ROWS_PER_TURN: u32 = 4096;
/// Side rows that wait to be weighed: past it they do not wait for the end of the turn.
const TOUCHED_MAX: usize = 4096;
/// Connections that a turn ends: each may say so with a write.
const ENDS_PER_TURN: usize = 64;
/// An address or user holds little when it holds no more than this part of the sum, and no more than the largest message and
/// its head.
const LITTLE_PART: usize = 32;
/// Why a connection ends.
const REASON: &str = "limits.memory_bytes is reached, and this client holds most";

/// Address or user.
type Owner = u64;

/// The bytes that each address or user makes this shard hold.
#[derive(Default)]
pub(crate) struct Census {
    /// It was looked at in this turn already.
    looked: bool,
    /// The next row of the walk under way.
    next: u32,
    counting: BTreeMap<Owner, usize>,
    /// Those that hold more than a little, as the last whole walk found them.
    heavy: BTreeMap<Owner, usize>,
    /// The one that held most then.
    heaviest: Option<Owner>,
    /// The connections of that one, as far as the walk under way has met them, and what each holds.
    met: Vec<(usize, ConnId)>,
    /// All of them that a whole walk has met, the largest last: they end.
    ends: Vec<(usize, ConnId)>,
}

impl Shard {
    /// Whether this connection may make the shard hold so many bytes more, of a request, a page or a session.
    pub(crate) fn may_take(&self, slot: u32, bytes: usize) -> bool {
        if self.purse.level() < Level::Full {
            return true;
        }
        let others = self.census.heavy.get(&self.owner(slot)).copied();
        others.unwrap_or(0) + bytes <= self.little_bytes()
    }

    /// Bytes that one address or user may hold, whatever the others do.
    fn little_bytes(&self) -> usize {
        let limits = &self.world.settings.limits;
        (limits.memory_bytes / LITTLE_PART).min(limits.message_bytes + limits.head_bytes)
    }

    /// Charges what came in part; makes room where an input has taken the last.
    #[inline]
    pub(crate) fn charge_input<I: Io>(&mut self, io: &mut I) {
        if self.purse.part(Part::Received) != self.receive_bytes {
            self.purse.set(Part::Received, self.receive_bytes);
        }
        if self.touched.len() > TOUCHED_MAX {
            self.weigh_touched();
        }
        // Once a turn: where nobody is found to end, inputs must not cost a walk each.
        if self.purse.level() == Level::Over && !self.census.looked {
            self.census.looked = true;
            self.relieve(io);
        }
    }

    /// Charges what side rows hold that may have changed.
    fn weigh_touched(&mut self) {
        let mut touched = core::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for slot in touched.drain(..) {
            self.weigh_extra(slot);
        }
        self.touched = touched;
    }

    /// Charges what is counted elsewhere.
    pub(crate) fn charge_turn<I: Io>(&mut self, io: &I) {
        self.census.looked = false;
        self.weigh_touched();
        self.purse.set(Part::Turns, self.lanes.own_bytes());
        self.purse.set(Part::Sessions, self.sessions.held_bytes());
        self.purse.set(Part::Tls, io.held_bytes());
        let answers_bytes = self.home.as_ref().map_or(0, |home| home.answers_bytes());
        self.purse.set(Part::Answers, answers_bytes);
    }

    /// Makes room where the sum has passed its limit; says whether it goes on in the next turn.
    pub(crate) fn relieve<I: Io>(&mut self, io: &mut I) -> bool {
        let level = self.purse.level();
        if level < Level::Near {
            if self.census.next > 0 || !self.census.heavy.is_empty() {
                self.census = Census::default();
            }
            return false;
        }
        if level == Level::Over {
            self.end_heaviest(io);
        }
        // Of a small table, in one turn, who holds most and what of.
        let walks = if self.conns.end() <= ROWS_PER_TURN / 2 {
            2
        } else {
            1
        };
        for _ in 0..walks {
            if self.census.ends.is_empty() {
                self.count_holders();
            }
        }
        if level == Level::Over {
            self.end_heaviest(io);
        }
        // Where nobody is found to end there is nothing to go on with before something happens.
        level == Level::Over && (self.census.next > 0 || !self.census.ends.is_empty())
    }

    /// Ends some of those whose owner holds most, while the sum is past its limit.
    fn end_heaviest<I: Io>(&mut self, io: &mut I) {
        for _ in 0..ENDS_PER_TURN {
            if self.purse.level() < Level::Over {
                return self.census.ends.clear();
            }
            let Some((_, conn)) = self.census.ends.pop() else {
                return;
            };
            if !self.is_current(conn) {
                continue;
            }
            let row = self.conns.get(conn.slot);
            match row.state {
                // It has asked for nothing.
                State::Http if row.spill == NONE && row.outbox == NONE => self.shut(conn.slot, io),
                // A publish is on its way, and its answer comes soon: what is pipelined behind it goes.
                State::Waiting if !self.is_subscribing(conn.slot) && !self.is_judged(conn.slot) => {
                    self.forget_pipelined(conn.slot, io);
                }
                _ => self.end_for_room(conn.slot, REASON, io),
            }
            self.stats.relieved += 1;
        }
    }

    /// Walks on over the connections.
    fn count_holders(&mut self) {
        let end = self.conns.end();
        let until = end.min(self.census.next + ROWS_PER_TURN);
        for slot in self.census.next..until {
            if !self.conns.get(slot).is_open() {
                continue;
            }
            let bytes = self.held_by(slot);
            if bytes > 0 {
                let owner = self.owner(slot);
                *self.census.counting.entry(owner).or_default() += bytes;
                if self.census.heaviest == Some(owner) {
                    self.census.met.push((bytes, self.id_of(slot)));
                }
            }
        }
        self.census.next = until;
        if until == end {
            self.end_count();
        }
    }

    fn end_count(&mut self) {
        let little_bytes = self.little_bytes();
        let census = &mut self.census;
        census.next = 0;
        census.ends = core::mem::take(&mut census.met);
        census.ends.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut all = core::mem::take(&mut census.counting);
        let heaviest = all.iter().max_by_key(|(_, bytes)| **bytes);
        census.heaviest = heaviest.map(|(owner, _)| *owner);
        all.retain(|_, bytes| *bytes > little_bytes);
        census.heavy = all;
    }

    /// A connection is charged to its user, or else to its address; to itself where neither is known.
    fn owner(&self, slot: u32) -> Owner {
        let seed = self.world.seed;
        let user = self.passes.get(slot).map(|(grants, _)| grants.user());
        if let Some(user) = user.filter(|user| !user.is_empty()) {
            return xxh3_64_with_seed(user.as_bytes(), seed) | 1 << 63;
        }
        let client = self.conns.get(slot).client;
        match client.is_known() {
            true => u64::from(client.number()),
            false => u64::from(slot) | 1 << 62,
        }
    }

    /// Bytes that a connection makes the shard hold; of messages that others hold too its part.
    pub(crate) fn held_by(&self, slot: u32) -> usize {
        let row = self.conns.get(slot);
        let spill = match row.spill {
            NONE => 0,
            spill => self.spills.get(spill).bytes(),
        };
        let outbox = match row.outbox {
            NONE => 0,
            outbox => self.outboxes.get(outbox).queue.weight(),
        };
        let extra = match row.extra {
            NONE => 0,
            extra => self.extras.get(extra).weight(),
        };
        spill + outbox + extra
    }

    /// Whether the request that waits is one for messages.
    fn is_subscribing(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        row.topic != NONE || row.options & (MULTI | FILTERS | FOLLOWS) != 0
    }

    /// Whether somebody looks at what the request at hand came with.
    fn is_judged(&self, slot: u32) -> bool {
        let spill = self.conns.get(slot).spill;
        spill != NONE && matches!(self.spills.get(spill), Spill::Http(it) if it.asked)
    }

    /// Ends a connection to make room, and tells it why where it listens.
    pub(crate) fn end_for_room<I: Io>(&mut self, slot: u32, reason: &str, io: &mut I) {
        self.because(Reason::Full);
        if self.conns.get(slot).outbox != NONE {
            return self.reset(slot, io);
        }
        let row = self.conns.get(slot);
        match row.state {
            State::Waiting | State::Poll if self.is_subscribing(slot) => {
                let row = self.conns.get_mut(slot);
                row.options &= !(KEEP | UPGRADE | EVENTS);
                let conn = self.id_of(slot);
                self.answer_status(slot, 503, reason, io);
                if self.is_current(conn) {
                    self.drop_extra(slot);
                }
            }
            State::Http | State::Waiting | State::Poll => self.refuse(slot, 503, reason, io),
            State::Sse | State::WebSocket => {
                self.end_stream(slot, close_code::TRY_AGAIN, reason, io);
            }
            State::Mqtt => {
                self.reply.clear();
                self.mqtt_end(slot, ReasonCode::QUOTA_EXCEEDED, io);
            }
            State::Proxy | State::Draining => self.drop_conn(slot, Close::Now, io),
        }
    }
}
