//! Relief: the server lets go of bytes that clients make it hold when their account nears its limit.
//!
//! First nothing more is added to outboxes: subscribers fall back to their positions ([`Front::fits`]), and losses are remembered of
//! fewer topics. Then clients that hold much get nothing new ([`Front::may_take`], [`Front::may_leave`]): no session, no subscription.
//! Short of the limit the sessions of the address or user that holds most end whose clients are away, as if they had expired, and then
//! its connections, largest first, until there is room again. Clients that hold little are served; only past the limit do they end too,
//! at a shard where nobody holds much and all together do.
//!
//! Nothing counts the bytes of each connection's client as they come and go. While the sum is near its limit a census (`census`) finds
//! who holds most. What absent sessions hold is counted by party always (`home::sessions`).

use crate::budget::account::{Level, Part};
use crate::budget::admission::Party;
use crate::client::census::{self, Holder};
use crate::client::front::Front;
use crate::client::protocols::Protocols;
use crate::home::Home;
use crate::home::sessions::SessionsAtHome;
use crate::io::Io;

/// Connections and sessions that end in one go, of which a turn has a few at most: each may be told so with a write.
const ENDS_PER_TURN: usize = 64;
/// While the sum is near its limit a home remembers the losses of so many topics at most.
const LOSSES_NEAR: usize = 1 << 10;

impl<P: Protocols> Front<P> {
    /// Whether this connection may make the shard hold so many bytes more, of a request or a session: always below
    /// [`Level::Full`], from then on only where its address or user holds little with them.
    pub(crate) fn may_take(&self, slot: u32, bytes: usize) -> bool {
        if self.conns.level() < Level::Full {
            return true;
        }
        let user = self.conns.identity(slot).map(|(grants, _)| grants.user());
        let absent = match user.is_some_and(|user| !user.is_empty()) {
            true => self.party(slot),
            false => Party::of_address(self.conns.get(slot).client),
        };
        let absent_bytes = self.world.admission.absent_bytes(absent);
        let held = self.census.held_by(self.party(slot)).max(absent_bytes);
        held + bytes <= self.little_bytes()
    }

    /// The same of a session at this home whose client is away, or not there yet.
    pub(crate) fn may_leave(&self, party: Party, bytes: usize) -> bool {
        if self.conns.level() < Level::Full {
            return true;
        }
        let absent_bytes = self.world.admission.absent_bytes(party);
        self.census.held_by(party).max(absent_bytes) + bytes <= self.little_bytes()
    }

    /// Bytes that one address or user may hold, whatever the others do.
    pub(crate) fn little_bytes(&self) -> usize {
        self.world.settings.limits.little_bytes()
    }

    /// After an input: charges partly received bytes, and makes room if the sum is past its limit.
    #[inline]
    pub(crate) fn charge_input<I: Io>(&mut self, sessions: &mut SessionsAtHome, io: &mut I) {
        self.conns.charge_received();
        if self.conns.must_weigh() {
            self.conns.weigh_touched();
        }
        // Once a turn: where no connection can be ended, inputs must not cost a step of the census each.
        if self.conns.level() == Level::Over && self.census.may_look() {
            self.relieve(sessions, io);
        }
    }

    /// The sessions at this home have changed: charges what they hold while their clients are away.
    pub(crate) fn charge_sessions(&mut self, bytes: usize) {
        self.conns.charge(Part::Sessions, bytes);
    }

    /// At the end of a turn: charges bytes that are counted elsewhere, among them the records that wait for the engine.
    pub(crate) fn charge_turn<I: Io>(
        &mut self,
        mut home: Option<&mut Home>,
        records_bytes: usize,
        io: &I,
    ) {
        self.census.begin_turn();
        if self.conns.level() >= Level::Near
            && let Some(home) = &mut home
        {
            home.logs.trim_losses(&home.topics, LOSSES_NEAR);
        }
        self.conns.weigh_touched();
        let of_home = |bytes: fn(&Home) -> usize| home.as_deref().map_or(0, bytes);
        let owed = of_home(Home::readings_bytes);
        let queued = owed + self.queues.bytes() + records_bytes;
        self.conns
            .charge(Part::Turns, self.lanes.own_bytes() + queued);
        let subscriptions = of_home(Home::subscriptions_bytes) + self.matching.bytes();
        self.conns.charge(Part::Subscriptions, subscriptions);
        self.conns.charge(Part::Tls, io.held_bytes());
        self.conns
            .charge(Part::Answers, of_home(|home| home.retries.answers_bytes()));
    }

    /// Goes on with the census where the sum is near its limit, and from [`Level::Tight`] on ends sessions and connections; says
    /// whether the next turn must go on.
    pub(crate) fn relieve<I: Io>(&mut self, sessions: &mut SessionsAtHome, io: &mut I) -> bool {
        let level = self.conns.level();
        if level < Level::Near {
            self.census.end();
            return false;
        }
        if level >= Level::Tight {
            self.end_heaviest(sessions, io);
        }
        // In small tables two steps are two whole walks: the first finds the heaviest client, the second what it has.
        let walks = if self.conns.end() + sessions.end() <= census::ROWS_PER_TURN / 2 {
            2
        } else {
            1
        };
        for _ in 0..walks {
            if !self.census.has_ends() {
                self.count_holders(sessions);
            }
        }
        if level >= Level::Tight {
            self.end_heaviest(sessions, io);
        }
        // If no connection can be ended, the next turn has nothing to go on with.
        level >= Level::Tight && self.census.is_under_way()
    }

    /// Ends some sessions and connections of the address or user that holds most, until the sum is below [`Level::Tight`].
    fn end_heaviest<I: Io>(&mut self, sessions: &mut SessionsAtHome, io: &mut I) {
        for _ in 0..ENDS_PER_TURN {
            // The partly received bytes of the connection that ended before are taken off the account, which is else done after
            // an input.
            self.conns.charge_received();
            // A session that is evicted ends in a later turn.
            let level = self.conns.level_without(sessions.evicted_bytes());
            let end = match self.census.has_heavy() {
                true => level >= Level::Tight,
                false => level == Level::Over && self.holds_share(),
            };
            if !end {
                return self.census.forget_ends();
            }
            match self.census.next_end() {
                None => return,
                Some(Holder::Session(id)) => {
                    let evicted = sessions.evict(id, &self.world.admission);
                    self.stats.sessions_evicted += u64::from(evicted);
                }
                Some(Holder::Connection(conn)) if self.conns.is_current(conn) => {
                    P::relieve(self, conn.slot, io);
                    self.stats.relieved += 1;
                }
                Some(Holder::Connection(_)) => {}
            }
        }
    }

    /// Whether the connections and absent sessions of this shard hold so much together that their ends help: half of the shard's part of the limit. If
    /// all connections hold half of the limit, those of some shard do.
    fn holds_share(&self) -> bool {
        let share = self.world.settings.limits.memory_bytes / self.lanes.to.len();
        self.census.sum_bytes() > share / 2
    }

    /// One step of the census: adds up what the next connections and absent sessions hold.
    fn count_holders(&mut self, sessions: &SessionsAtHome) {
        let first = self.conns.end();
        let end = first + sessions.end();
        let rows = self.census.rows(end);
        let filter_bytes = self.filter_bytes();
        for slot in rows.start..rows.end.min(first) {
            if !self.conns.get(slot).is_open() {
                continue;
            }
            let bytes = self.conns.held_by(slot) + self.conns.filters_of(slot) * filter_bytes;
            if bytes > 0 {
                let (party, conn) = (self.party(slot), self.conns.id_of(slot));
                let holder = Holder::Connection(conn);
                self.census.count(party, holder, bytes);
            }
        }
        let (census, admission) = (&mut self.census, &self.world.admission);
        let absent = rows.start.max(first) - first..rows.end.max(first) - first;
        sessions.each_absent(absent, admission, |it| {
            census.count(it.party, Holder::Session(it.id), it.bytes);
        });
        let little_bytes = self.world.settings.limits.little_bytes();
        let absent_bytes = |party| admission.absent_bytes(party);
        census.counted(rows.end, end, little_bytes, absent_bytes);
    }

    /// Bytes that a filter of a connection needs in the tables of this shard and of all homes, on the average.
    fn filter_bytes(&self) -> usize {
        let here = self.matching.bytes() / self.matching.len().max(1);
        here * (1 + 2 * usize::from(self.world.homes))
    }

    /// The address or user that is charged for a connection.
    pub(crate) fn party(&self, slot: u32) -> Party {
        let user = self.conns.identity(slot).map(|(grants, _)| grants.user());
        match user.filter(|user| !user.is_empty()) {
            Some(user) => Party::user(user, self.world.seed),
            None => Party::without_name(self.conns.get(slot).client, slot),
        }
    }
}
