//! Relief: the server lets go of bytes that clients make it hold when their account nears its limit.
//!
//! First nothing more is added to outboxes: subscribers fall back to their positions ([`Front::fits`]). Then clients that hold much
//! get nothing new ([`Front::may_take`]). Short of the limit connections end, of the address or user that holds most, largest first,
//! until there is room again. Clients that hold little are served; only past the limit do they end too, at a shard where nobody holds
//! much and all together do.
//!
//! Nothing counts the bytes of each client as they come and go. While the sum is near its limit a census (`census`) finds who holds
//! most.

use crate::budget::account::{Level, Part};
use crate::budget::admission::Party;
use crate::conn::io::Io;
use crate::conn::{FILTERS, FOLLOWS, MULTI, State};
use crate::home::Home;
use crate::protocol::census;
use crate::protocol::front::Front;
use crate::protocol::side::Spill;
use crate::protocol::why::Why;
use crate::store::slab::NONE;

/// Connections that end in one go, of which a turn has a few at most: each may be told so with a write.
const ENDS_PER_TURN: usize = 64;
/// An address or user holds little when it holds no more than this part of `limits.memory_bytes`, and no more than the largest
/// message and its head.
const LITTLE_PART: usize = 32;
/// Why a connection ends.
const REASON: &str = "limits.memory_bytes is reached, and this client holds most";

impl Front {
    /// Whether this connection may make the shard hold so many bytes more, of a request or a session: always below
    /// [`Level::Full`], from then on only where its address or user holds little with them.
    pub(crate) fn may_take(&self, slot: u32, bytes: usize) -> bool {
        if self.conns.level() < Level::Full {
            return true;
        }
        self.census.held_by(self.party(slot)) + bytes <= self.little_bytes()
    }

    /// Bytes that one address or user may hold, whatever the others do.
    pub(crate) fn little_bytes(&self) -> usize {
        let limits = &self.world.settings.limits;
        (limits.memory_bytes / LITTLE_PART).min(limits.message_bytes + limits.head_bytes)
    }

    /// After an input: charges partly received bytes, and makes room if the sum is past its limit.
    #[inline]
    pub(crate) fn charge_input<I: Io>(&mut self, io: &mut I) {
        self.conns.charge_received();
        if self.conns.must_weigh() {
            self.conns.weigh_touched();
        }
        // Once a turn: where no connection can be ended, inputs must not cost a step of the census each.
        if self.conns.level() == Level::Over && self.census.may_look() {
            self.relieve(io);
        }
    }

    /// At the end of a turn: charges bytes that are counted elsewhere, among them the sessions at this home and the
    /// records that wait for the engine.
    pub(crate) fn charge_turn<I: Io>(
        &mut self,
        sessions_bytes: usize,
        records_bytes: usize,
        io: &I,
    ) {
        self.census.begin_turn();
        self.conns.weigh_touched();
        let home = self.home.as_ref();
        let of_home = |bytes: fn(&Home) -> usize| home.map_or(0, bytes);
        let owed = of_home(Home::readings_bytes);
        let queued = owed + self.queues.bytes() + records_bytes;
        self.conns
            .charge(Part::Turns, self.lanes.own_bytes() + queued);
        let groups = of_home(Home::groups_bytes);
        self.conns.charge(Part::Sessions, sessions_bytes + groups);
        self.conns.charge(Part::Tls, io.held_bytes());
        self.conns
            .charge(Part::Answers, of_home(Home::answers_bytes));
    }

    /// Goes on with the census where the sum is near its limit, and from [`Level::Tight`] on ends connections; says whether the
    /// next turn must go on.
    pub(crate) fn relieve<I: Io>(&mut self, io: &mut I) -> bool {
        let level = self.conns.level();
        if level < Level::Near {
            self.census.end();
            return false;
        }
        if level >= Level::Tight {
            self.end_heaviest(io);
        }
        // In a small table two steps are two whole walks: the first finds the heaviest client, the second its connections.
        let walks = if self.conns.end() <= census::ROWS_PER_TURN / 2 {
            2
        } else {
            1
        };
        for _ in 0..walks {
            if !self.census.has_ends() {
                self.count_holders();
            }
        }
        if level >= Level::Tight {
            self.end_heaviest(io);
        }
        // If no connection can be ended, the next turn has nothing to go on with.
        level >= Level::Tight && self.census.is_under_way()
    }

    /// Ends some connections of the address or user that holds most, until the sum is below [`Level::Tight`].
    fn end_heaviest<I: Io>(&mut self, io: &mut I) {
        for _ in 0..ENDS_PER_TURN {
            // The partly received bytes of the connection that ended before are taken off the account, which is else done after
            // an input.
            self.conns.charge_received();
            let level = self.conns.level();
            let end = match self.census.has_heavy() {
                true => level >= Level::Tight,
                false => level == Level::Over && self.holds_share(),
            };
            if !end {
                return self.census.forget_ends();
            }
            let Some(conn) = self.census.next_end() else {
                return;
            };
            if !self.conns.is_current(conn) {
                continue;
            }
            let row = self.conns.get(conn.slot);
            match row.state {
                // It has no request under way.
                State::Http if row.spill == NONE && row.outbox == NONE => self.shut(conn.slot, io),
                // A publish is on its way, and its answer comes soon: the bytes pipelined behind it are dropped.
                State::Waiting if !self.is_subscribing(conn.slot) && !self.is_judged(conn.slot) => {
                    self.forget_pipelined(conn.slot, io);
                }
                _ => _ = self.end_for(conn.slot, Why::NoRoom(REASON), io),
            }
            self.stats.relieved += 1;
        }
    }

    /// Whether the connections of this shard hold so much together that their ends help: half of the shard's part of the limit. If
    /// all connections hold half of the limit, those of some shard do.
    fn holds_share(&self) -> bool {
        let share = self.world.settings.limits.memory_bytes / self.lanes.to.len();
        self.census.sum_bytes() > share / 2
    }

    /// One step of the census: adds up what the next connections hold.
    fn count_holders(&mut self) {
        let end = self.conns.end();
        let rows = self.census.rows(end);
        for slot in rows.clone() {
            if !self.conns.get(slot).is_open() {
                continue;
            }
            let bytes = self.conns.held_by(slot);
            if bytes > 0 {
                let (party, conn) = (self.party(slot), self.conns.id_of(slot));
                self.census.count(party, conn, bytes);
            }
        }
        let little_bytes = self.little_bytes();
        self.census.counted(rows.end, end, little_bytes);
    }

    /// The address or user that is charged for a connection.
    pub(crate) fn party(&self, slot: u32) -> Party {
        let user = self.conns.pass(slot).map(|(grants, _)| grants.user());
        match user.filter(|user| !user.is_empty()) {
            Some(user) => Party::user(user, self.world.seed),
            None => Party::without_name(self.conns.get(slot).client, slot),
        }
    }

    /// Whether the waiting request is a subscription.
    pub(super) fn is_subscribing(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        row.topic != NONE || row.options & (MULTI | FILTERS | FOLLOWS) != 0
    }

    /// Whether the verdict on the request's credential is awaited.
    fn is_judged(&self, slot: u32) -> bool {
        matches!(self.conns.spill(slot), Some(Spill::Http(it)) if it.asked)
    }
}
