//! MQTT sessions in a cluster: writes their records, and carries out the effects of the records of all nodes
//! (`home/sessions/replicated.rs`).
//!
//! Invariants:
//! * A connection gets its session when its claim (the record by which it takes the session) is applied. The claim fences the former connection. So no
//!   client waits for the former connection, which may be at a node that cannot be reached.
//! * Each node carries out most effects itself. The steward of the partition does the work that must be done once, such as to publish a will.

use alloc::boxed::Box;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::client::relief::has_memory_for_absent;
use crate::commit::batch::StoredHeader;
use crate::home::retired_tokens::DueToken;
use crate::home::session_terms::LeftSession;
use crate::home::session_terms::{Consequences, DueInLog, LogPlace};
use crate::mail::orders::{Ended, SessionName};
use crate::mail::session::record::{
    ChangedBy, EncodedRecord, RecordedState, SessionChange, SessionRecord, Terms,
};
use crate::mail::session::stored::token_of;
use crate::mail::session::{EncodedSession, SavedSession};
use crate::mail::{Ask, ClosingSession, RecordedClaim, ReplyTo, SessionReply, Tell};
use crate::protocol::front::Front;
use crate::protocol::mqtt::access::session_name_of;
use crate::protocol::mqtt::retention::{count_stored_needs, release_needs, release_token};
use crate::shard::Shard;
use crate::shard::pending_request::{PendingRequest, Request};
use crate::shard::session_log::owner_of;
use crate::shard::sessions::{count_held_bytes, may_open, refuse_session};

/// Why a request for a session is refused.
enum RecordRefusal {
    /// There is no room for another session.
    Full,
    /// The connection does not hold the session any more.
    Fenced,
}

impl Shard {
    /// Handles a request for a session: writes its record, and carries the request out when the record is applied.
    pub(super) fn handle_replicated_request(&mut self, from: ShardId, ask: Ask) {
        match self.replicated_record(&ask) {
            Ok((name, record)) => {
                self.end_if_spare_is_spent(from, &ask);
                let owner = owner_of(&ask);
                let waiting = PendingRequest::of_ask(from, ask);
                let at = self.place_of_session(&name);
                let bytes = self.write_session_record(at, waiting, &record);
                let admission = &self.front.clients.ctx.world.admission;
                admission.add_written_session(owner, bytes);
            }
            Err(RecordRefusal::Full) => {
                self.refuse_session_ask(from, ask, ReasonCode::QUOTA_EXCEEDED)
            }
            Err(RecordRefusal::Fenced) => {
                self.refuse_session_ask(from, ask, ReasonCode::SERVER_UNAVAILABLE)
            }
        }
    }

    /// The name of the session that a request concerns, and the record that the request needs.
    fn replicated_record(&self, ask: &Ask) -> Result<(Box<[u8]>, EncodedRecord), RecordRefusal> {
        let sessions = &self.sessions;
        match ask {
            Ask::SessionOpen {
                hash,
                client,
                clean,
                expiry_s,
                owner,
                recorded,
                ..
            } => {
                let front = &self.front;
                let admission = &front.clients.ctx.world.admission;
                let is_new = !sessions.has(*hash, client);
                let now = front.clients.ctx.now;
                // While publishers wait for the full log, a new session may use the spare room, as the records of existing sessions do.
                let is_log_full = admission.check_session_write(*owner).is_err()
                    || is_new
                        && *expiry_s > 0
                        && admission.check_disk_share(*owner, now.unix_s).is_err();
                if is_log_full
                    || is_new && !admission.may_enter_session(*owner, client)
                    || !may_open(
                        &front.clients,
                        &front.census,
                        sessions,
                        *hash,
                        client,
                        *owner,
                    )
                    || !self.has_memory_for_will(client, *owner, recorded.as_deref())
                {
                    return Err(RecordRefusal::Full);
                }
                let change = SessionChange::Claim {
                    clean: *clean,
                    expiry_s: *expiry_s,
                    owner: *owner,
                    token: recorded.as_ref().map_or(0, |claim| claim.token),
                    will: recorded.as_ref().and_then(|claim| claim.will.clone()),
                };
                let record = SessionRecord {
                    name: client,
                    change,
                    fence: None,
                };
                Ok((client.clone(), record.encode()))
            }
            Ask::SessionRecord(session) => {
                let name = sessions.name_of(session.id).ok_or(RecordRefusal::Fenced)?;
                let fence = sessions.fence_of(session.id, ChangedBy::Holder);
                let record = SessionRecord {
                    name,
                    change: session.change(),
                    fence,
                };
                Ok((name.into(), record.encode()))
            }
            Ask::SessionClose(session) => {
                let name = sessions.name_of(session.id).ok_or(RecordRefusal::Fenced)?;
                let fence = sessions.fence_of(session.id, ChangedBy::Closing);
                let empty = session.without_state();
                let change = change_at_close(session, &empty);
                let record = SessionRecord {
                    name,
                    change,
                    fence,
                };
                Ok((name.into(), record.encode()))
            }
            _ => Err(RecordRefusal::Fenced),
        }
    }

    /// Whether the client may connect with this will. When a claim ends a session, all nodes keep the session's will for eleven minutes. So
    /// while memory is short, a client that holds much cannot connect with a will.
    fn has_memory_for_will(
        &self,
        name: &[u8],
        owner: Client,
        claim: Option<&RecordedClaim>,
    ) -> bool {
        let Front {
            clients, census, ..
        } = &self.front;
        let party = clients.ctx.world.admission.party_of_session(name, owner);
        claim
            .and_then(|claim| claim.will.as_ref())
            .is_none_or(|will| has_memory_for_absent(clients, census, party, will.bytes()))
    }

    fn place_of_session(&self, name: &[u8]) -> usize {
        let ctx = &self.front.clients.ctx;
        ctx.world.placement().index_at_home(ctx.partition_of(name))
    }

    /// Refuses a request for a session whose record has no effect, or was not written.
    pub(super) fn refuse_session_ask(&mut self, from: ShardId, ask: Ask, reason: ReasonCode) {
        let (clients, lanes) = (&mut self.front.clients, &mut self.front.subs.lanes);
        match ask {
            Ask::SessionOpen { to, .. } => refuse_session(lanes, from, to, reason),
            // The connection was told when the record was applied that has taken its session away.
            Ask::SessionClose(session) => {
                if let Some(kept) = session.kept {
                    release_needs(lanes, &clients.meter.work, &clients.ctx, &kept.state.bytes);
                }
            }
            Ask::Release { to: Some(to), .. } => {
                // A PUBCOMP would let the client use the packet id again.
                lanes.tell(from, Tell::SessionTaken(to.connection()));
                lanes.tell(from, Tell::Released(to, false));
            }
            _ => {}
        }
    }

    /// Gives a session to the connection whose claim was applied.
    pub(super) fn give_session(
        &mut self,
        from: ShardId,
        to: ReplyTo,
        client: (u32, &[u8]),
        token: u64,
        owner: Client,
    ) {
        let holder = to.connection();
        let lanes = &mut self.front.subs.lanes;
        let Some((id, session, claim)) = self.sessions.give_to_holder(client, (from, holder))
        else {
            return refuse_session(lanes, from, to, ReasonCode::SERVER_UNAVAILABLE);
        };
        let is_new = token_of(&session.state.bytes) == token;
        let kept: Option<SavedSession> = (!is_new).then_some(session);
        let given = SessionReply::Yes {
            id,
            owner,
            kept,
            claim,
        };
        lanes.tell(from, Tell::Session(to, Box::new(given)));
    }

    /// Applies the record of a session at this offset of this partition. Returns false if the record is void.
    pub(super) fn apply_session_record(
        &mut self,
        partition_index: usize,
        record: &SessionRecord<'_>,
        stored: &StoredHeader,
        offset: u64,
    ) -> bool {
        let is_claim = matches!(record.change, SessionChange::Claim { .. });
        if is_claim && stored.is_late() {
            // The record was stored too late: the client has given up, and may have connected to another node.
            return false;
        }
        let world = self.front.clients.ctx.world.clone();
        let place = LogPlace {
            offset,
            writer: stored.header.writer,
            now: self.time_of_log(partition_index),
        };
        let (of_death, after) = self.sessions.apply(record, &world, place);
        if after.is_takeover && self.counts_needs() {
            let ctx = &self.front.clients.ctx;
            let (hash, _) = ctx.hash_and_home_of(record.name);
            let per_minute = world.settings.mqtt.takeovers_per_minute;
            self.sessions.count_takeover(hash, ctx.now, per_minute);
            self.front.clients.meter.stats.takeovers += u64::from(after.fenced_holder.is_some());
        }
        count_held_bytes(&mut self.front.clients, &self.sessions);
        let is_void = after.is_void;
        of_death
            .into_iter()
            .for_each(|it| self.carry_out_consequences(it));
        self.carry_out_consequences(after);
        !is_void
    }

    /// Releases the sessions of this partition that a dead node's connections held.
    pub(super) fn release_sessions_of(&mut self, partition_index: usize, writer: u64) {
        let now = self.time_of_log(partition_index);
        let at_once = !self.counts_needs();
        self.sessions
            .release_writer(partition_index, writer, now, at_once);
    }

    /// Stores whether this node is the steward of this partition.
    pub(super) fn update_steward(&mut self, partition_index: usize) {
        let Some(home) = &mut self.home else { return };
        let is_steward = home.logs.writer_set(partition_index).steward
            == Some(self.commits.writer(partition_index));
        self.sessions.set_steward(partition_index, is_steward);
    }

    /// Whether homes are told of each change of the messages that sessions need. False until the start has read the log: the needs are counted at its end.
    fn counts_needs(&self) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.counts_needs)
    }

    fn carry_out_consequences(&mut self, after: Consequences) {
        if !self.counts_needs() {
            return;
        }
        let (clients, lanes) = (&mut self.front.clients, &mut self.front.subs.lanes);
        let (work, ctx) = (&clients.meter.work, &clients.ctx);
        if let Some((shard, conn)) = after.fenced_holder {
            lanes.tell(shard, Tell::SessionTaken(conn));
        }
        if let Some(state) = &after.newly_needed {
            count_stored_needs(lanes, work, ctx, state);
        }
        if let Some(state) = &after.no_longer_needed {
            release_needs(lanes, work, ctx, state);
        }
    }

    /// Releases the keys of ended sessions and published wills. As the steward, also publishes the wills and ends the sessions that are due.
    /// Handles at least one, and more until half of the turn's budget is spent.
    pub(super) fn end_replicated_sessions(&mut self) {
        let now = self.front.clients.ctx.now;
        let world = self.front.clients.ctx.world.clone();
        while self.has_session_due()
            && let Some(at) = self.sessions.due_partition(now)
        {
            self.front.clients.meter.work.steps.add(1);
            match self.sessions.next_due_in_log(at, now, &world.admission) {
                Some(DueInLog::Will(name, will)) => {
                    self.publish_will_once(name, Some(LeftSession::default()), Some(will))
                }
                Some(DueInLog::End(name)) => self.record_as_steward(&name, 0),
                Some(DueInLog::Retired(DueToken::Publish(will, number))) => {
                    self.publish_retired_will(will, (at, number))
                }
                Some(DueInLog::Retired(DueToken::Release(token))) => {
                    let Front { clients, subs, .. } = &mut self.front;
                    release_token(&mut subs.lanes, &clients.ctx, token);
                }
                Some(DueInLog::Released(visited, all)) => {
                    self.front.clients.meter.work.steps.add(visited as usize);
                    all.into_iter()
                        .for_each(|after| self.carry_out_consequences(after));
                }
                None => {}
            }
            count_held_bytes(&mut self.front.clients, &self.sessions);
            if self.front.clients.meter.work.is_half_spent() {
                return;
            }
        }
    }

    /// Whether a will, an end or a release is due. False while the node is cut off from the log, since another node may be the steward by
    /// then, and this node would publish a will after the release of the will's key.
    pub(super) fn has_session_due(&self) -> bool {
        let ctx = &self.front.clients.ctx;
        self.sessions.is_due(ctx.now) && !ctx.is_cut_off()
    }

    /// As the steward: records the end of an expired session, or a session's state without the published will with this token.
    pub(super) fn record_as_steward(&mut self, name: &[u8], will: u64) {
        let ctx = &self.front.clients.ctx;
        let (hash, _) = ctx.hash_and_home_of(name);
        let Some((change, fence)) = self.sessions.change_by_steward((hash, name), will, ctx.now)
        else {
            return;
        };
        let record = change.encode(name, Some(fence));
        let waiting = PendingRequest::new(ctx.own_shard, Request::EndRecorded([0, will]));
        self.write_session_record(self.place_of_session(name), waiting, &record);
    }

    /// Records that an operator ends this session, if its client is disconnected. Any node may write this record.
    pub(super) fn record_end_by_operator(&mut self, name: &SessionName) -> Ended {
        let name = session_name_of(&name.client_id, &name.user);
        let ctx = &self.front.clients.ctx;
        let (hash, _) = ctx.hash_and_home_of(&name);
        let change = self.sessions.change_by_operator((hash, &name));
        let count = u32::from(change.is_some());
        if let Some((change, fence)) = change {
            let record = change.encode(&name, Some(fence));
            let waiting = PendingRequest::new(ctx.own_shard, Request::Answered);
            self.write_session_record(self.place_of_session(&name), waiting, &record);
        }
        Ended { count, next: None }
    }

    /// The time of the log of this partition: the clock that all nodes share.
    fn time_of_log(&self, partition_index: usize) -> Now {
        let now = self.front.clients.ctx.now;
        let home = self.home.as_ref();
        Now {
            unix_s: home.map_or(now.unix_s, |home| home.logs.time_s(partition_index)),
            ..now
        }
    }
}

/// The change to record when the connection that holds a session ends. A session that ends with its connection stays, in the stored form
/// `empty`, until its will is published.
fn change_at_close<'a>(
    session: &'a ClosingSession,
    empty: &'a EncodedSession,
) -> SessionChange<'a> {
    let will = session.will.clone();
    let terms = |expiry_s, will| Terms {
        owner: session.owner,
        is_held: false,
        expiry_s,
        will,
    };
    match (&session.kept, will) {
        (Some(kept), will) => session.change(&kept.state, terms(kept.expiry_s, will)),
        (None, will @ Some(_)) => SessionChange::State(RecordedState::new(empty, terms(0, will))),
        (None, None) => SessionChange::End {
            token: session.token,
        },
    }
}
