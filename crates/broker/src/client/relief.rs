//! Frees memory that clients make the server hold, when the memory account nears its limit.
//!
//! First, nothing more is added to outboxes: subscribers fall back to the log ([`fits`](crate::client::send::fits)), and lost
//! messages are remembered for fewer topics. Then clients that hold much get no new session or subscription ([`Clients::has_memory_for`],
//! [`has_memory_for_absent`]). Just below the limit, the heaviest party (address or user) loses what it holds, until there is room again. First
//! its sessions without a connection end, as if they had expired, then its connections, largest first. Clients that hold little keep their
//! connections, unless the sum is above the limit, nobody on the shard holds much, and all its clients together do.
//!
//! The bytes of each party's connections are not counted all the time. While the sum is near its limit, a census (`census`) finds
//! the party that holds most. The bytes of absent sessions are always counted by party (`home::sessions`).

use crate::budget::account::{MemoryLevel, MemoryPart};
use crate::budget::admission::Party;
use crate::client::census::{self, Holder};
use crate::client::front::Front;
use crate::client::parts::{Census, Clients, Context, Lanes, Matching};
use crate::client::presence::member_bytes;
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::home::sessions::SessionsAtHome;
use crate::io::Io;

/// The connections and sessions that one call ends. A turn has a few calls at most. Each end may be a write.
const ENDS_PER_TURN: usize = 64;
/// The topics whose losses a home (a part of a shard that keeps topics) remembers for readers by filter. They need 13 MiB.
const LOSSES_MAX: usize = 1 << 18;
/// The number of topics whose losses are remembered while the sum is near its limit.
const LOSSES_NEAR: usize = 1 << 10;
/// The topics whose losses are dropped in a turn, which takes about 100 us.
const LOSSES_PER_TURN: usize = 1 << 10;

impl<P: Protocols> Front<P> {
    /// After an input: charges partly received bytes, and makes room if the sum is over its limit.
    #[inline]
    pub(crate) fn charge_input<I: Io>(&mut self, sessions: &mut SessionsAtHome, io: &mut I) {
        self.clients.conns.charge_received();
        if self.clients.conns.must_weigh_now() {
            self.clients.conns.weigh_changed_side_rows();
        }
        // Once a turn: if no connection can be ended, inputs must not each cost a step of the census.
        if self.clients.conns.level() == MemoryLevel::Over && self.census.begin_making_room() {
            self.relieve(sessions, io);
        }
    }

    /// Continues the census while the sum is near its limit. From [`MemoryLevel::Tight`] on, also ends sessions and connections. Returns
    /// whether the next turn must continue.
    pub(crate) fn relieve<I: Io>(&mut self, sessions: &mut SessionsAtHome, io: &mut I) -> bool {
        let level = self.clients.conns.level();
        if level < MemoryLevel::Near {
            self.census.end();
            return false;
        }
        self.census.set_tight(level >= MemoryLevel::Tight);
        if level >= MemoryLevel::Tight {
            self.end_heaviest(sessions, io);
        }
        // In small tables two steps are two complete walks: the first finds the heaviest party, the second its connections and
        // sessions.
        let walks = if self.clients.conns.end() + sessions.row_count() <= census::ROWS_PER_TURN / 2
        {
            2
        } else {
            1
        };
        for _ in 0..walks {
            if !self.census.has_holders_to_end() {
                count_holders(
                    &self.clients,
                    &self.subs.matching,
                    &mut self.census,
                    sessions,
                );
            }
        }
        if level >= MemoryLevel::Tight {
            self.end_heaviest(sessions, io);
        }
        // If no connection can be ended, the next turn has nothing to do.
        level >= MemoryLevel::Tight && self.census.is_under_way()
    }

    /// Ends some sessions and connections of the heaviest party, until the sum is below [`MemoryLevel::Tight`].
    fn end_heaviest<I: Io>(&mut self, sessions: &mut SessionsAtHome, io: &mut I) {
        for _ in 0..ENDS_PER_TURN {
            // Takes the partly received bytes of the last ended connection off the account. Otherwise this happens only after an
            // input.
            self.clients.conns.charge_received();
            // A session that is evicted ends in a later turn.
            let level = self.clients.conns.level_without(sessions.evicted_bytes());
            let must_end = match self.census.has_heavy() {
                true => level >= MemoryLevel::Tight,
                false => {
                    level == MemoryLevel::Over
                        && holds_share(&self.subs.lanes, &self.census, &self.clients.ctx)
                }
            };
            if !must_end {
                return self.census.forget_holders_to_end();
            }
            match self.census.take_holder_to_end() {
                None => return,
                Some(Holder::Session(id)) => {
                    let evicted = sessions.evict(id, &self.clients.ctx.world.admission);
                    self.clients.meter.stats.sessions_evicted += u64::from(evicted);
                }
                Some(Holder::Connection(conn)) if self.clients.conns.is_current(conn) => {
                    let (clients, queues) = (&mut self.clients, &self.queues);
                    let state = clients.conns.get(conn.slot).consumer.state;
                    protocol_of!(P, state, free_memory(clients, queues, conn.slot, io));
                    self.carry_out_ends(io);
                    self.clients.meter.stats.relieved += 1;
                }
                Some(Holder::Connection(_)) => {}
            }
        }
    }
}

/// Whether a session at this home, whose client is absent, may hold `bytes` more: as in [`Clients::has_memory_for`].
pub(crate) fn has_memory_for_absent<P: ProtocolTypes>(
    clients: &Clients<P>,
    census: &Census,
    party: Party,
    bytes: usize,
) -> bool {
    if clients.conns.level() < MemoryLevel::Full {
        return true;
    }
    let absent_bytes = clients.ctx.world.admission.absent_bytes(party);
    census.heavy_bytes(party).max(absent_bytes) + bytes <= clients.ctx.little_bytes()
}

/// At the end of a turn: charges bytes that are counted elsewhere. `waiting_bytes` are those of records that wait for the engine and of
/// deliveries under way. Returns whether the next turn must drop more losses.
pub(crate) fn charge_turn<P: ProtocolTypes, I: Io>(
    front: &mut Front<P>,
    mut home: Option<&mut Home>,
    waiting_bytes: usize,
    io: &I,
) -> bool {
    front.census.begin_turn();
    let client_log_bytes = front.clients.journal_bytes();
    let conns = &mut front.clients.conns;
    let is_near = conns.level() >= MemoryLevel::Near;
    let has_more_to_trim = home.as_mut().is_some_and(|home| {
        // Drops all losses above the limit at once, since this turn has added them.
        home.trim_losses(LOSSES_MAX, usize::MAX);
        is_near && home.trim_losses(LOSSES_NEAR, LOSSES_PER_TURN)
    });
    conns.weigh_changed_side_rows();
    let of_home = |bytes: fn(&Home) -> usize| home.as_deref().map_or(0, bytes);
    let queued = of_home(Home::pages_bytes) + front.queues.bytes() + waiting_bytes;
    let turns = front.subs.lanes.own_bytes() + queued;
    let filters = of_home(Home::subscriptions_bytes) + front.subs.matching.bytes();
    let subscriptions = filters + of_home(Home::losses_bytes);
    let answers = of_home(|home| home.retries.answers_bytes());
    let presence = of_home(Home::presence_bytes);
    conns.set_charge(MemoryPart::Turns, turns);
    conns.set_charge(MemoryPart::Subscriptions, subscriptions);
    conns.set_charge(MemoryPart::Presence, presence);
    conns.set_charge(MemoryPart::Credentials, front.gate.question_bytes().get());
    conns.set_charge(MemoryPart::ClientLog, client_log_bytes);
    conns.set_charge(MemoryPart::Tls, io.transport_bytes());
    conns.set_charge(MemoryPart::Answers, answers);
    has_more_to_trim
}

/// Whether the connections and absent sessions of this shard hold enough together that ending them helps: half of the shard's part
/// of the limit. If all connections hold half of the limit, then those of at least one shard do.
fn holds_share(lanes: &Lanes, census: &Census, ctx: &Context) -> bool {
    let share = ctx.world.settings.limits.memory_bytes / lanes.to.len();
    census.sum_bytes() > share / 2
}

/// Does one step of the census: counts the bytes of the next connections and absent sessions.
fn count_holders<P: ProtocolTypes>(
    clients: &Clients<P>,
    matching: &Matching,
    census: &mut Census,
    sessions: &SessionsAtHome,
) {
    let first = clients.conns.end();
    let end = first + sessions.row_count();
    let rows = census.next_rows(end);
    let filter_bytes = average_filter_bytes(matching, &clients.ctx);
    for slot in rows.start..rows.end.min(first) {
        if !clients.conns.get(slot).is_open() {
            continue;
        }
        let bytes = clients.conns.held_bytes(slot)
            + clients.conns.filter_count(slot) * filter_bytes
            + member_bytes(clients, slot);
        if bytes > 0 {
            let (party, conn) = (clients.party(slot), clients.conns.id_of(slot));
            let holder = Holder::Connection(conn);
            census.count(party, holder, bytes);
        }
    }
    let admission = &clients.ctx.world.admission;
    let absent = rows.start.max(first) - first..rows.end.max(first) - first;
    sessions.for_each_absent(absent, admission, |it| {
        census.count(it.party, Holder::Session(it.id), it.bytes);
    });
    let little_bytes = clients.ctx.world.settings.limits.little_bytes();
    let absent_bytes = |party| admission.absent_bytes(party);
    census.finish_step(rows.end, end, little_bytes, absent_bytes);
}

/// The average bytes of a connection's filter in the tables of this shard and of all homes.
fn average_filter_bytes(matching: &Matching, ctx: &Context) -> usize {
    let bytes_per_filter = matching.bytes() / matching.len().max(1);
    bytes_per_filter * (1 + 2 * usize::from(ctx.world.homes))
}

impl<P: ProtocolTypes> Clients<P> {
    /// The address or user that is charged for a connection.
    pub(crate) fn party(&self, slot: u32) -> Party {
        let identity = self.conns.grants.get(slot);
        let user = identity.map(|(grants, _)| grants.user());
        match user.filter(|user| !user.is_empty()) {
            Some(user) => Party::user(user, self.ctx.world.seed),
            None => Party::of_connection(self.conns.get(slot).consumer.client, slot),
        }
    }

    /// The address or user that is charged for what may outlive a connection. All clients of unknown address without a user are one.
    pub(crate) fn payer(&self, slot: u32) -> Party {
        let party = self.party(slot);
        match party.is_user() {
            true => party,
            false => Party::of_address(self.conns.get(slot).consumer.client),
        }
    }

    /// Whether this connection may make the shard hold `bytes` more bytes of a request or a session. Always below [`MemoryLevel::Full`].
    /// From then on only if its address or user then still holds little.
    pub(crate) fn has_memory_for(&self, census: &Census, slot: u32, bytes: usize) -> bool {
        if self.conns.level() < MemoryLevel::Full {
            return true;
        }
        let absent_bytes = self.ctx.world.admission.absent_bytes(self.payer(slot));
        let held_bytes = census.heavy_bytes(self.party(slot)).max(absent_bytes);
        held_bytes + bytes <= self.ctx.little_bytes()
    }
}
