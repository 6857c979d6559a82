//! Writes the changes of MQTT sessions to the log, if [sessions are durable](crate::budget::world::World::records_sessions). A client's request
//! takes effect only when its record is committed: the CONNACK or the SUBACK is sent, or the session goes to the next connection.
//!
//! Invariants:
//! * The requests for the sessions of a partition take effect in the order in which they were made, with or without a record.
//! * When a connection gets a session, the log has a record of its claim (its request for the session). If that record, or the record of a closed session,
//!   is out of date when it is committed, a new record is written first.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::commit::queue::Scope;
use crate::commit::record::{ControlRecord, GroupPosition};
use crate::home::session_terms::LeftSession;
use crate::home::sessions::{Claim, SessionsAtHome};
use crate::home::{DuePosition, GroupKey, ONLY_HOMES_ARE_ASKED};
use crate::mail::message::Release;
use crate::mail::session::record::{
    ChangeAtHome, EncodedRecord, RecordedState, SessionChange, SessionRecord, Terms,
};
use crate::mail::session::{EncodedSession, Will};
use crate::mail::{Ask, ClosingSession, RecordedClaim, ReleaseAt, ReplyTo, Tell};
use crate::protocol::front::{Context, Front};
use crate::protocol::mqtt::retention::release_published;
use crate::shard::Shard;
use crate::shard::enqueue::is_outdated;
use crate::shard::pending_request::{PendingRequest, Request};
use crate::shard::sessions::refuse_session;

use crore_wire::mqtt::ReasonCode;

impl Shard {
    /// Handles a request for a session: writes the record that the request needs, and carries the request out when the record is committed.
    pub(super) fn handle_session_request(&mut self, from: ShardId, ask: Ask) {
        let Some(mut ask) = self.wait_for_will(from, ask) else {
            return;
        };
        if let Some(to) = self.refused_for_room(&ask) {
            let lanes = &mut self.front.subs.lanes;
            return refuse_session(lanes, from, to, ReasonCode::QUOTA_EXCEEDED);
        }
        self.end_if_spare_is_spent(from, &ask);
        self.store_will_of_end(&ask);
        store_recorded_state(&mut self.sessions, &mut ask, self.front.clients.ctx.now);
        let Some((name, record)) = record_for(&self.sessions, &ask) else {
            return self.carry_out_unlogged(from, ask, &[]);
        };
        let ctx = &self.front.clients.ctx;
        let (partition_index, now) = (partition_index_of(ctx, &name), ctx.now);
        let scope = Scope::Partition(partition_index);
        if record.is_none() && self.commits.can_take_effect(scope) {
            return self.carry_out_unlogged(from, ask, &[]);
        }
        let owner = owner_of(&ask);
        let waiting = PendingRequest::of_ask(from, ask);
        match record {
            Some(record) => {
                let bytes = self.write_session_record(partition_index, waiting, &record);
                let admission = &self.front.clients.ctx.world.admission;
                admission.add_written_session(owner, bytes);
            }
            None => {
                let bytes = size_of::<(Ask, Vec<u8>)>();
                self.commits.push(scope, waiting, bytes, now);
            }
        }
    }

    /// If a new session cannot be recorded because the disk is full: the connection that asks for the session. Existing sessions continue, since the spare
    /// segments of the log have room for their records, until the client has used its part of that room.
    fn refused_for_room(&self, ask: &Ask) -> Option<ReplyTo> {
        match ask {
            Ask::SessionOpen {
                to,
                hash,
                client,
                expiry_s: 1..,
                owner,
                recorded: Some(_),
                begins: None,
                ..
            } => {
                let ctx = &self.front.clients.ctx;
                let admission = &ctx.world.admission;
                let may_write = match self.sessions.would_continue(*hash, client, ctx.now) {
                    true => admission.check_session_write(*owner),
                    false => admission.check_disk_share(*owner, ctx.now.unix_s),
                };
                may_write.is_err().then_some(*to)
            }
            _ => None,
        }
    }

    /// Ends the connection that asks for a record of its session, if its client has used its part of the room that a full disk or log has for such records.
    pub(super) fn end_if_spare_is_spent(&mut self, from: ShardId, ask: &Ask) {
        let admission = &self.front.clients.ctx.world.admission;
        if let Ask::SessionRecord(session) = ask
            && let Err(reason) = admission.check_session_write(session.owner)
        {
            let holder = session.to.connection();
            let lanes = &mut self.front.subs.lanes;
            lanes.tell(from, Tell::NoRoomForRecords(holder, reason));
        }
    }

    /// Whether the record of a request is out of date, since other requests for the session took effect meanwhile. Such a request is recorded
    /// again before it takes effect. Otherwise a crash could undo an effect that the client was told of.
    pub(super) fn must_record_again(&self, ask: &Ask) -> bool {
        let ctx = &self.front.clients.ctx;
        let (sessions, world) = (&self.sessions, &ctx.world);
        match ask {
            Ask::SessionOpen {
                hash,
                client,
                clean,
                begins: Some(begins),
                ..
            } => {
                // A session that a connection holds is recorded when that connection ends.
                *begins != begins_session(sessions, *clean, (*hash, client), ctx.now)
                    && !sessions.is_held(*hash, client)
            }
            Ask::SessionClose(session) => {
                world.records_sessions()
                    && !world.replicates_sessions()
                    && sessions.name_of(session.id).is_some()
                    && session.recorded_for != claimant_of(sessions, session)
            }
            _ => false,
        }
    }

    /// Records a request again, since its record is out of date.
    pub(super) fn record_again(&mut self, from: ShardId, mut ask: Ask) {
        if let Ask::SessionClose(session) = &mut ask {
            // The log has these changes already, and may have a session of another connection after them.
            session.patch = None;
        }
        if let Ask::SessionOpen { client, to, .. } = &ask
            && self.sessions.claims_in_flight(client) > 1
        {
            // The other claims in flight are newer, and would take effect before a new record of this claim.
            self.sessions.remove_claim_in_flight(client);
            let lanes = &mut self.front.subs.lanes;
            return refuse_session(lanes, from, *to, ReasonCode::SERVER_BUSY);
        }
        self.handle_session_request(from, ask);
    }

    /// Handles the release of QoS 2 messages: writes a record to each log that has one of the messages, and answers when the records are
    /// committed. A home that does not know the message answers at once.
    pub(super) fn handle_release(&mut self, from: ShardId, ask: Ask) {
        let Ask::Release { key, claim, at, to } = ask else {
            return;
        };
        if to.is_some() && is_outdated(&self.front) {
            // Another node may have taken the session so long ago that no node remembers that this claim is outdated.
            return self.refuse_session_ask(from, ask, ReasonCode::SERVER_UNAVAILABLE);
        }
        let home = self.home.as_ref().expect(ONLY_HOMES_ARE_ASKED);
        let places = match at {
            ReleaseAt::Everywhere => home.all_partition_indexes(),
            ReleaseAt::Known | ReleaseAt::Nowhere => home.partitions_of_release(key),
        };
        if at == ReleaseAt::Nowhere {
            let is_known = !places.is_empty();
            let lanes = &mut self.front.subs.lanes;
            return to
                .into_iter()
                .for_each(|to| lanes.tell(from, Tell::Released(to, is_known)));
        }
        let control = ControlRecord::Release(Release { key, claim });
        let write = |shard: &mut Shard, at, waiting| {
            shard.write_record(at, waiting, |out, offset_delta| {
                control.encode(out, offset_delta);
            });
        };
        match (&places[..], to) {
            ([], Some(to)) => self.front.subs.lanes.tell(from, Tell::Released(to, false)),
            ([at], _) => write(self, *at, PendingRequest::of_ask(from, ask)),
            _ => {
                let own_shard = self.front.clients.ctx.own_shard;
                for at in places {
                    write(self, at, PendingRequest::new(own_shard, Request::Answered));
                }
                let (bytes, now) = (size_of::<Ask>(), self.front.clients.ctx.now);
                let waiting = PendingRequest::of_ask(from, ask);
                self.commits.push(Scope::All, waiting, bytes, now);
            }
        }
    }

    /// Records the state of a session after its will was published, or the end of the session. No client waits for this record. When the
    /// record is committed, the homes of topics forget the will, and the QoS 2 messages of an ended session. They must not forget them
    /// earlier, since a crash before the commit restores the session.
    pub(super) fn record_state_or_end(
        &mut self,
        name: &[u8],
        session: Option<LeftSession>,
        will: u64,
    ) {
        if self.front.clients.ctx.world.replicates_sessions() {
            // If `session` is `None`, a claim has made the will due, and the record of that claim has replaced the will.
            if session.is_some() {
                self.record_as_steward(name, will);
            }
            return;
        }
        let ctx = &self.front.clients.ctx;
        let ended = session.filter(|session| session.has_ended);
        let tokens = [ended.map_or(0, |session| session.token), will];
        if !ctx.world.records_sessions() {
            // The will is that of a session which an earlier run recorded.
            return self.release_tokens(tokens);
        }
        let (hash, _) = ctx.hash_and_home_of(name);
        if self.sessions.claims_in_flight(name) > 0 {
            // The record of the claim replaces the will. If the claim begins a new session, it is recorded again.
            return self.release_tokens(tokens);
        }
        let change = match (
            self.sessions.record_of_terms((hash, name), ctx.now),
            session,
        ) {
            (Some((patch, terms)), _) => ChangeAtHome::Terms(patch, terms),
            (None, Some(session)) if !self.sessions.has(hash, name) => {
                ChangeAtHome::End(session.token)
            }
            // A connection holds the session, and records the session with the connection's will.
            (None, _) => return self.release_tokens(tokens),
        };
        let waiting = PendingRequest::new(ctx.own_shard, Request::EndRecorded(tokens));
        let record = change.encode(name, None);
        self.write_session_record(partition_index_of(ctx, name), waiting, &record);
    }

    /// Tells the homes to forget the messages of these sessions and wills.
    pub(super) fn release_tokens(&mut self, tokens: [u64; 2]) {
        let Front { clients, subs, .. } = &mut self.front;
        for token in tokens {
            release_published(&mut subs.lanes, &clients.ctx, token);
        }
    }

    /// Records the positions of shared subscriptions that have begun or ended. With `moved`, also records some positions that have changed.
    pub(super) fn record_group_positions(&mut self, moved: bool) {
        let Some(home) = &mut self.home else { return };
        for due in home.take_due_positions(moved) {
            let DuePosition {
                partition_index: at,
                group,
                offset,
                owner,
                may_wait,
            } = due;
            let admission = &self.front.clients.ctx.world.admission;
            if may_wait && admission.check_session_write(owner).is_err() {
                // The position is recorded when there is room again. After a crash before that, the group gets more messages again.
                continue;
            }
            let waiting = PendingRequest::new(self.front.clients.ctx.own_shard, Request::Answered);
            let GroupKey { filter, name } = &group;
            let control = ControlRecord::Group(GroupPosition {
                filter,
                name,
                offset,
            });
            let bytes = self.write_record(at, waiting, |out, offset_delta| {
                control.encode(out, offset_delta);
            });
            let admission = &self.front.clients.ctx.world.admission;
            admission.add_written_session(owner, bytes);
        }
    }

    /// Records that this process has begun, in each partition with sessions that connections of the process before held. Called once a second.
    pub(super) fn record_starts(&mut self) {
        for at in self.sessions.partitions_with_unrecorded_start() {
            self.record_start(at);
        }
    }

    /// Records in this partition that this process has begun, if connections of the process before held sessions and the log has no such record yet.
    fn record_start(&mut self, partition_index: usize) {
        if self.sessions.take_unrecorded_start(partition_index) {
            let waiting = PendingRequest::new(self.front.clients.ctx.own_shard, Request::Answered);
            self.write_record(partition_index, waiting, |out, offset_delta| {
                ControlRecord::Start.encode(out, offset_delta);
            });
        }
    }

    /// Writes a record of a session. Returns the bytes of the record.
    pub(super) fn write_session_record(
        &mut self,
        partition_index: usize,
        waiting: PendingRequest,
        record: &EncodedRecord,
    ) -> usize {
        // The record of the start of this process must come before its claims.
        self.record_start(partition_index);
        self.write_record(partition_index, waiting, |out, offset_delta| {
            record.write(out, offset_delta);
        })
    }

    fn write_record(
        &mut self,
        partition_index: usize,
        waiting: PendingRequest,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> usize {
        let clients = &self.front.clients;
        let sequence = self
            .home
            .as_ref()
            .expect(ONLY_HOMES_ARE_ASKED)
            .logs
            .sequence(partition_index);
        let len =
            self.commits
                .push_write(partition_index, waiting, clients.ctx.now, sequence, encode);
        clients.meter.work.steps.add_bytes(len);
        len
    }
}

/// The index of the session's partition at this home.
fn partition_index_of(ctx: &Context, name: &[u8]) -> usize {
    ctx.world.placement().index_at_home(ctx.partition_of(name))
}

/// The client that is charged for the session of a request.
pub(super) fn owner_of(ask: &Ask) -> Client {
    match ask {
        Ask::SessionOpen { owner, .. } => *owner,
        Ask::SessionRecord(session) => session.owner,
        Ask::SessionClose(session) => session.owner,
        _ => Client::NOBODY,
    }
}

/// Whether a claim begins a session.
fn begins_session(
    sessions: &SessionsAtHome,
    clean: bool,
    (hash, name): (u32, &[u8]),
    now: Now,
) -> bool {
    clean || !sessions.would_continue(hash, name, now)
}

fn has_token(will: &Will) -> bool {
    will.token != 0
}

/// The connection that waits for the session of this closing connection.
fn claimant_of(sessions: &SessionsAtHome, session: &ClosingSession) -> Option<(ShardId, ReplyTo)> {
    let claim = sessions.claim_to(session.id)?;
    Some((claim.shard, claim.to))
}

/// Stores in the request what its next record will contain.
fn store_recorded_state(sessions: &mut SessionsAtHome, ask: &mut Ask, now: Now) {
    match ask {
        Ask::SessionOpen {
            hash,
            client,
            clean,
            expiry_s,
            begins,
            ..
        } => {
            // A session that ends with its connection needs no record.
            if *expiry_s == 0 && begins.is_none() && !sessions.has(*hash, client) {
                return;
            }
            let is_again = begins.is_some();
            // If another claim is in flight, that claim begins the session, and this claim continues it. If this claim also began a session, the log would
            // ignore the records of the other connection.
            let others = sessions.claims_in_flight(client) - u32::from(is_again);
            let begins_new = others == 0 && begins_session(sessions, false, (*hash, client), now);
            *begins = Some(*clean || begins_new);
            if !is_again {
                sessions.add_claim_in_flight(client);
            }
        }
        Ask::SessionClose(session) => {
            session.recorded_for = claimant_of(sessions, session);
            let name = sessions.name_of(session.id);
            if session.recorded_for.is_some()
                || name.is_some_and(|name| sessions.claims_in_flight(name) > 0)
            {
                // In the log, the claim may have begun another session, to which a patch cannot be applied.
                session.patch = None;
            }
        }
        _ => {}
    }
}

/// The name of a request's session, and the record that the request needs. The record is `None` if the request changes nothing that is
/// logged. The result is `None` if the request does not concern a session, or if its connection no longer holds the session.
fn record_for(sessions: &SessionsAtHome, ask: &Ask) -> Option<(Box<[u8]>, Option<EncodedRecord>)> {
    let empty;
    let (name, change) = match ask {
        Ask::SessionOpen {
            client,
            expiry_s,
            owner,
            recorded,
            begins,
            ..
        } => {
            let change = |begins| change_by_claim(begins, *expiry_s, *owner, recorded.as_deref());
            (&**client, begins.map(change))
        }
        Ask::SessionRecord(session) => {
            let name = sessions.name_of(session.id)?;
            (name, Some(session.change()))
        }
        Ask::SessionClose(session) => {
            let name = sessions.name_of(session.id)?;
            let claim = sessions.claim_to(session.id);
            empty = session.without_state();
            (name, change_at_close(session, claim, &empty))
        }
        _ => return None,
    };
    let fence = None;
    let record = change.map(|change| {
        SessionRecord {
            name,
            change,
            fence,
        }
        .encode()
    });
    Some((name.into(), record))
}

fn change_by_claim<'a>(
    begins: bool,
    expiry_s: u32,
    owner: Client,
    recorded: Option<&RecordedClaim>,
) -> SessionChange<'a> {
    SessionChange::Claim {
        clean: begins,
        expiry_s,
        owner,
        token: recorded.map_or(0, |claim| claim.token),
        will: recorded.and_then(|claim| claim.will.clone()),
    }
}

/// The change to record when a connection ends. If another connection waits for the session, this record gives the session to that connection: the record
/// of its claim is not enough, since records of the former connection may follow it in the log. `empty`: see [`ClosingSession::without_state`].
fn change_at_close<'a>(
    session: &'a ClosingSession,
    claim: Option<&Claim>,
    empty: &'a EncodedSession,
) -> Option<SessionChange<'a>> {
    match (claim, &session.kept) {
        (Some(claim), Some(kept)) if !claim.clean => {
            let recorded = claim.recorded.as_ref();
            Some(session.change(
                &kept.state,
                Terms {
                    owner: claim.owner,
                    is_held: true,
                    expiry_s: claim.expiry_s,
                    will: recorded.and_then(|recorded| recorded.will.clone()),
                },
            ))
        }
        (Some(claim), _) => {
            let recorded = claim.recorded.as_deref();
            let is_needed = session.is_recorded || recorded.is_some();
            is_needed.then(|| change_by_claim(true, claim.expiry_s, claim.owner, recorded))
        }
        // The will stays in the log until it is published.
        (None, Some(kept)) => Some(session.change(
            &kept.state,
            Terms {
                owner: session.owner,
                is_held: false,
                expiry_s: kept.expiry_s,
                will: session.will.clone(),
            },
        )),
        // The session ends, but stays in the log as an expired session, which no claim continues, until its will is published. A will without a token does
        // not stay, since it could be published twice.
        (None, None) if session.is_recorded && session.will.as_deref().is_some_and(has_token) => {
            let terms = Terms {
                owner: session.owner,
                is_held: false,
                expiry_s: 0,
                will: session.will.clone(),
            };
            Some(SessionChange::State(RecordedState::new(empty, terms)))
        }
        (None, None) => session.is_recorded.then_some(SessionChange::End {
            token: session.token,
        }),
    }
}
