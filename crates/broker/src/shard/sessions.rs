//! Gives MQTT sessions to connections, and takes a session back when its connection ends. Each session has a home, the shard that keeps it; a hash of the
//! client id chooses the home. When a session ends, its home publishes the will and releases the session's messages.
//!
//! A *turn* is a pass of the shard's loop.

use alloc::boxed::Box;

use crate::base::ids::ShardId;
use crate::base::notices::Notice;
use crate::base::planted::{self, Fault};
use crate::base::reason::Closed;
use crate::budget::account::MemoryPart;
use crate::budget::admission::{Client, Party};
use crate::client::asking::publish;
use crate::client::relief::has_memory_for_absent;
use crate::home::session_terms::LeftSession;
use crate::home::sessions::{Claim, CloseOutcome, OpenOutcome, SessionsAtHome};
use crate::home::takeovers::IsFirst;
use crate::mail::message::{DedupKey, Publish};
use crate::mail::session::Will;
use crate::mail::session::stored::token_of;
use crate::mail::{ClosingSession, ReplyTo, SessionReply, Tell, WantedAnswer};
use crate::protocol::front::{Census, Clients, Front, Lanes, Subscriptions};
use crate::protocol::mqtt::access::client_id_of_session;
use crate::protocol::mqtt::retention::{release_published, session_ended};
use crate::shard::Shard;

use crore_wire::mqtt::ReasonCode;

impl Shard {
    /// Gives a session to the client that connects, or refuses the client.
    pub(crate) fn open_session(&mut self, claim: Claim, client: (u32, &[u8])) {
        let (shard, to, owner) = (claim.shard, claim.to, claim.owner);
        let token = claim.recorded.as_ref().map(|recorded| recorded.token);
        let (front, sessions) = (&mut self.front, &mut self.sessions);
        let (clients, census) = (&mut front.clients, &front.census);
        let before = sessions.len();
        let opening = match may_open(clients, census, sessions, client.0, client.1, owner) {
            true => {
                let admission = &clients.ctx.world.admission;
                sessions.open(client, claim, admission, clients.ctx.now)
            }
            false => OpenOutcome::Full,
        };
        if matches!(opening, OpenOutcome::Claimed { .. }) {
            let (now, mqtt) = (clients.ctx.now, &clients.ctx.world.settings.mqtt);
            sessions.count_takeover(client.0, now, mqtt.takeovers_per_minute);
            clients.meter.stats.takeovers += 1;
        }
        count_sessions(clients, sessions, before);
        let is_refused = matches!(opening, OpenOutcome::Full);
        let will = answer_claim(clients, &mut front.subs, (shard, to), owner, opening);
        self.publish_will_once(client.1.into(), None, will);
        if let Some(token) = token.filter(|_| is_refused) {
            // The record of the claim has begun a session in the log, so the log must get a record of its end.
            let has_ended = true;
            self.record_state_or_end(client.1, Some(LeftSession { token, has_ended }), 0);
        }
    }

    /// Whether a connection must not take over this session now, since connections have taken the session over from each other too often.
    pub(super) fn refuses_takeover(&mut self, hash: u32, client: &[u8]) -> bool {
        let clients = &mut self.front.clients;
        let (now, per_minute) = (
            clients.ctx.now,
            clients.ctx.world.settings.mqtt.takeovers_per_minute,
        );
        let client = (hash, client);
        let Some(IsFirst(is_first)) = self.sessions.refuses_takeover(client, now, per_minute)
        else {
            return false;
        };
        clients.meter.stats.refused_takeovers += 1;
        if is_first {
            let notices = &mut clients.meter.notices;
            notices.note(Notice::Takeovers, client_id_of_session(client.1));
        }
        true
    }

    /// Removes old takeovers from the count. Called once a second.
    pub(super) fn forget_takeovers(&mut self) {
        let ctx = &self.front.clients.ctx;
        let per_minute = ctx.world.settings.mqtt.takeovers_per_minute;
        self.sessions.forget_takeovers(ctx.now, per_minute);
        count_held_bytes(&mut self.front.clients, &self.sessions);
    }

    /// Takes a session back from a connection that has ended.
    pub(crate) fn close_session(&mut self, session: ClosingSession) {
        let (Front { clients, subs, .. }, sessions) = (&mut self.front, &mut self.sessions);
        let name = Box::from(sessions.name_of(session.id).unwrap_or_default());
        let left_session = LeftSession {
            token: session.token,
            has_ended: session.kept.is_none(),
        };
        let recorded = session.is_recorded.then_some(left_session);
        let before = sessions.len();
        let admission = &clients.ctx.world.admission;
        let closing = sessions.close(session, admission, clients.ctx.now);
        count_sessions(clients, sessions, before);
        match closing {
            CloseOutcome::Done(will) => self.publish_will_once(name, recorded, will),
            CloseOutcome::Stale => {
                clients.meter.stats.closed[Closed::Broken as usize] += 1;
            }
            CloseOutcome::Next(claim, opening) => {
                let to = (claim.shard, claim.to);
                let will = answer_claim(clients, subs, to, claim.owner, opening);
                self.publish_will_once(name, None, will);
            }
        }
    }

    /// Publishes the wills and ends the sessions that are due: at least one, and more until half of the turn's budget is spent.
    pub(crate) fn end_sessions(&mut self) {
        if self.front.clients.ctx.world.replicates_sessions() {
            return self.end_replicated_sessions();
        }
        while let Some(at) = self.sessions.due_partition(self.front.clients.ctx.now) {
            let Front { clients, subs, .. } = &mut self.front;
            clients.meter.work.steps.add(1);
            let recorded: Option<Box<[u8]>> = match clients.ctx.world.records_sessions() {
                true => self.sessions.next_due_name(at).map(Box::from),
                false => None,
            };
            let (will, left) = end_due_session(clients, subs, &mut self.sessions, at);
            match (recorded, will) {
                (Some(name), None) => self.record_state_or_end(&name, Some(left), 0),
                (name, will) => {
                    self.publish_will_once(name.unwrap_or_default(), Some(left), will);
                }
            }
            if self.front.clients.meter.work.is_half_spent() {
                return;
            }
        }
    }
}

/// Whether a client may have this session. When memory is short, a client that already holds much gets no new session.
pub(super) fn may_open(
    clients: &Clients,
    census: &Census,
    sessions: &SessionsAtHome,
    hash: u32,
    client: &[u8],
    owner: Client,
) -> bool {
    let party = Party::of_session(client, owner, clients.ctx.world.seed);
    has_memory_for_absent(clients, census, party, 0) || sessions.has(hash, client)
}

/// Ends a session together with its connection, if memory is short and its client holds much.
pub(super) fn end_if_memory_is_short(
    clients: &mut Clients,
    lanes: &mut Lanes,
    census: &Census,
    sessions: &SessionsAtHome,
    session: &mut ClosingSession,
) {
    let Some(name) = sessions.name_of(session.id) else {
        return;
    };
    let party = Party::of_session(name, session.owner, clients.ctx.world.seed);
    let will = session.will.as_ref().map_or(0, |will| will.bytes());
    let state = session.kept.as_ref().map(|kept| kept.state.bytes.len());
    if let Some(state) = state
        && !has_memory_for_absent(clients, census, party, state + will)
    {
        let ended = session.kept.take();
        session_ended(lanes, &clients.meter.work, &clients.ctx, ended);
        clients.meter.stats.sessions_evicted += 1;
    }
}

/// Counts the sessions that have begun or ended. `before` is the number of sessions before the change.
fn count_sessions(clients: &mut Clients, sessions: &SessionsAtHome, before: u32) {
    let admission = &clients.ctx.world.admission;
    admission.count_sessions(before, sessions.len());
    count_held_bytes(clients, sessions);
}

pub(super) fn count_held_bytes(clients: &mut Clients, sessions: &SessionsAtHome) {
    clients
        .conns
        .set_charge(MemoryPart::Sessions, sessions.held_bytes());
}

/// Tells a connection the outcome of its claim to a session. Returns the will to publish.
fn answer_claim(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (shard, to): (ShardId, ReplyTo),
    owner: Client,
    opening: OpenOutcome,
) -> Option<Box<Will>> {
    match opening {
        OpenOutcome::Opened {
            id,
            kept,
            ended,
            will,
            dropped_will,
        } => {
            let token = ended.as_ref().map_or(0, |it| token_of(&it.state.bytes));
            for token in [token, dropped_will] {
                release_published(&mut subs.lanes, &clients.ctx, token);
            }
            session_ended(&mut subs.lanes, &clients.meter.work, &clients.ctx, ended);
            let given = Box::new(SessionReply::Yes {
                id,
                owner,
                kept,
                claim: 0,
            });
            subs.lanes.tell(shard, Tell::Session(to, given));
            will
        }
        OpenOutcome::Claimed { holder, superseded } => {
            if let Some((shard, holder)) = holder {
                subs.lanes.tell(shard, Tell::SessionTaken(holder));
            }
            if let Some(Claim { shard, to, .. }) = superseded {
                refuse_session(&mut subs.lanes, shard, to, ReasonCode::SERVER_BUSY);
            }
            None
        }
        OpenOutcome::Full => {
            refuse_session(&mut subs.lanes, shard, to, ReasonCode::QUOTA_EXCEEDED);
            None
        }
    }
}

pub(super) fn refuse_session(lanes: &mut Lanes, shard: ShardId, to: ReplyTo, reason: ReasonCode) {
    let given = Box::new(SessionReply::Refused(reason));
    lanes.tell(shard, Tell::Session(to, given));
}

/// Handles the next session of this partition that is due. Returns the will to publish, and whether the session has ended.
fn end_due_session(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    sessions: &mut SessionsAtHome,
    partition_index: usize,
) -> (Option<Box<Will>>, LeftSession) {
    let before = sessions.len();
    let admission = &clients.ctx.world.admission;
    let Some((will, ended)) = sessions.take_due(partition_index, admission, clients.ctx.now) else {
        let (token, has_ended) = (0, false);
        return (None, LeftSession { token, has_ended });
    };
    let left_session = LeftSession {
        token: ended.as_ref().map_or(0, |it| token_of(&it.state.bytes)),
        has_ended: ended.is_some(),
    };
    count_sessions(clients, sessions, before);
    clients.meter.stats.sessions_expired += u64::from(ended.is_some());
    session_ended(&mut subs.lanes, &clients.meter.work, &clients.ctx, ended);
    (will, left_session)
}

/// Publishes a will; `to` gets the outcome. The home of the topic recognises a repeated will by its token, and publishes it only once.
pub(super) fn publish_will(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    will: &Will,
    to: Option<ReplyTo>,
) {
    let (hash, home) = clients.ctx.hash_and_home_of(&will.topic);
    let message = Publish {
        hash,
        name: &will.topic,
        data: &will.data,
        headers: will.headers.map(|field| &field[..]),
        dedup: to
            .filter(|_| !planted::is(Fault::KeylessWill))
            .map(|_| DedupKey {
                key: &[0; 2][..],
                publisher: Party::qos2_publisher(will.token),
            }),
        client: will.client,
    };
    let answer = to.map_or(WantedAnswer::None, WantedAnswer::OutcomeAndInfo);
    publish(clients, subs, &mut None, home, &message, answer);
}
