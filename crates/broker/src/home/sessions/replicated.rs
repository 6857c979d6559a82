//! The sessions of a cluster. All nodes apply the records of all sessions in the order of the log. Each node keeps the stored form of every session,
//! even while a connection holds it. So if the node of that connection dies, the client continues at any other node.
//!
//! Invariants:
//! * Only records of the log change the state of a session, so the state is the same at all nodes. Two things are local: which connection of the node
//!   holds a session, and which wills and ends the node has begun to record.
//! * The connection with the last claim in the log holds the session. A change by any other connection is void at all nodes (fencing).
//! * The homes of each node must keep the messages for every session. If a connection of the node holds the session, that connection tells the homes
//!   which messages; otherwise this table does.
//! * Only the steward of the partition publishes wills and ends sessions that expire.
//! * If a session or a will ends, its token is [retired](crate::home::retired_tokens): its keys are released later.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::absent::key_bytes;
use super::snapshot::{checked_session, patched_session};
use super::{AwaySession, DelayedWill, FOREVER_S, Sessions, second_after};
use crate::base::ids::{ConnId, ShardId};
use crate::base::planted::{self, Fault};
use crate::base::snapshot::Block;
use crate::base::time::Now;
use crate::budget::admission::{Counts, Party};
use crate::budget::world::World;
use crate::home::retired_tokens::{Charge, SavedToken, WILL_KEPT_S, WILL_RETRY_S};
use crate::home::session_terms::{
    BegunWork, Consequences, DeadHolder, DueInLog, HolderTerms, LogPlace, Replica, WillRetry,
};
use crate::mail::session::record::{
    ChangeAtHome, ChangedBy, Fence, RecordedPatch, RecordedState, SessionChange, SessionRecord,
    Terms,
};
use crate::mail::session::stored::{
    StoredSession, StoredSubscription, set_epoch, subscriptions, token_of,
};
use crate::mail::session::{EncodedSession, SavedSession, SessionId, Will};

impl Sessions {
    /// Applies a record of the log. Returns the effects of the record. If the node that held the session has died, first returns the effects of its
    /// death, unless an earlier call has returned them.
    pub(super) fn apply(
        &mut self,
        record: &SessionRecord<'_>,
        world: &World,
        place: LogPlace,
    ) -> (Option<Consequences>, Consequences) {
        let hash = world.hash_of(record.name);
        let found = self.find(hash, record.name);
        let of_node_death = found.and_then(|id| self.release_if_dead(id));
        let of_record = match (&record.change, record.fence) {
            (SessionChange::Claim { .. }, _) => self.apply_claim(found, record, world, place),
            (SessionChange::State(state), Some(fence)) => match self.row_if_allowed(found, fence) {
                Some(id) => self.apply_state(id, state, fence.changed_by, world, place.now),
                None => Consequences::void(),
            },
            (SessionChange::Patch(patch), Some(fence)) => match self.row_if_allowed(found, fence) {
                Some(id) => self.apply_patch(id, patch, fence.changed_by, world, place.now),
                None => Consequences::void(),
            },
            (SessionChange::End { .. }, Some(fence)) => match self.row_if_allowed(found, fence) {
                Some(id) => self.end_replica(id, fence.changed_by, world, place.now),
                None => Consequences::void(),
            },
            (_, None) => Consequences::void(),
        };
        (of_node_death, of_record)
    }

    /// The row, if the condition of the change holds.
    fn row_if_allowed(&self, found: Option<u32>, fence: Fence) -> Option<u32> {
        let id = found?;
        let replica = self.replica(id)?;
        let is_holder = matches!(fence.changed_by, ChangedBy::Holder | ChangedBy::Closing);
        let is_newest = replica.claim == fence.claim || planted::is(Fault::FencedAccepted);
        (is_newest && replica.holder_terms.is_some() == is_holder).then_some(id)
    }

    fn apply_claim(
        &mut self,
        found: Option<u32>,
        record: &SessionRecord<'_>,
        world: &World,
        place: LogPlace,
    ) -> Consequences {
        let &SessionChange::Claim {
            clean,
            expiry_s,
            owner,
            token,
            ref will,
        } = &record.change
        else {
            return Consequences::void();
        };
        let (mut consequences, counts, now) =
            (Consequences::default(), &world.admission, place.now);
        let mut continued = None;
        if let Some(id) = found {
            let expires_s = self.expires_s(id);
            let old_replica = self.remove_replica(id);
            let has_ended = clean
                || match old_replica.holder_terms {
                    Some(held) => held.expiry_s == 0,
                    None => expires_s <= now.unix_s,
                };
            // A will that is due is still here if the steward is busy, or if a limit has refused it.
            let is_due = self.is_will_due(id, now);
            let (kept, old_will, old_owner) = self.take_stored(id, counts, now);
            (consequences.fenced_holder, consequences.is_takeover) =
                (old_replica.local_holder, old_replica.holder_terms.is_some());
            let party = counts.party_of_session(record.name, old_owner);
            match old_will {
                Some(will) if has_ended || is_due || will.delay_s == 0 => {
                    self.retire(will.token, Some(will), party, 0, world, now);
                }
                Some(will) => self.retire(will.token, None, party, 0, world, now),
                None => {}
            }
            let bytes = &kept.state.bytes;
            if has_ended {
                self.retire(token_of(bytes), None, party, key_bytes(bytes), world, now);
                consequences.no_longer_needed =
                    old_replica.local_holder.is_none().then(|| bytes.clone());
                self.remove_row(id);
                counts.leave_session(old_owner, record.name);
            } else {
                consequences.newly_needed =
                    old_replica.local_holder.is_some().then(|| bytes.clone());
                counts.move_session(old_owner, owner);
                continued = Some((id, kept.state));
            }
        }
        let will = will.clone().map(|mut will| {
            // The record does not repeat the client: it is that of the session.
            will.client = owner;
            Box::new(DelayedWill {
                will,
                due_s: FOREVER_S,
            })
        });
        let (row, state) = match continued {
            Some((id, state)) => (Some(id), state),
            None => {
                let begun = StoredSession {
                    token,
                    ..StoredSession::default()
                };
                let mut state = begun.encode();
                set_epoch(&mut state.bytes, world.epoch);
                counts.begin_session(owner, record.name);
                (None, state)
            }
        };
        let away = AwaySession {
            state_bytes: state.bytes.len() as u32,
            state: self.insert_state(state.bytes, counts),
            will,
            expires_s: FOREVER_S,
            owner,
        };
        let id = match row {
            Some(id) => {
                self.store_away(id, away, state.payloads);
                id
            }
            None => self.insert_row(record.name, away, state.payloads, world),
        };
        self.charge(id, world);
        let held = Some(HolderTerms {
            writer: place.writer,
            expiry_s,
        });
        let replica = Replica {
            claim: place.offset,
            holder_terms: held,
            local_holder: None,
        };
        self.insert_replica(id, replica);
        consequences
    }

    fn apply_state(
        &mut self,
        id: u32,
        state: &RecordedState<'_>,
        by: ChangedBy,
        world: &World,
        now: Now,
    ) -> Consequences {
        let Ok(mut session) = checked_session(state.bytes, &state.payloads, world) else {
            return self.end_unreadable(id, world, now);
        };
        set_epoch(&mut session.bytes, world.epoch);
        self.set_state(id, session, state.terms.clone(), by, world, now)
    }

    fn apply_patch(
        &mut self,
        id: u32,
        patch: &RecordedPatch<'_>,
        by: ChangedBy,
        world: &World,
        now: Now,
    ) -> Consequences {
        let old_state = self.copy_of_state(id);
        match (patched_session(&old_state, patch, world), &patch.terms) {
            (Ok(session), Some(terms)) => {
                self.set_state(id, session, terms.clone(), by, world, now)
            }
            (Ok(session), None) if by == ChangedBy::Holder => {
                let mut consequences = Consequences::default();
                if !self.has_holder_here(id) && !has_same_needs(&old_state.bytes, &session.bytes) {
                    (consequences.no_longer_needed, consequences.newly_needed) =
                        (Some(old_state.bytes), Some(session.bytes.clone()));
                }
                self.replace_state(id, session, &world.admission);
                consequences
            }
            _ => self.end_unreadable(id, world, now),
        }
    }

    /// Sets the state and the terms of the session in this row.
    fn set_state(
        &mut self,
        id: u32,
        session: EncodedSession,
        terms: Terms,
        by: ChangedBy,
        world: &World,
        now: Now,
    ) -> Consequences {
        let (mut consequences, counts) = (Consequences::default(), &world.admission);
        let (old_session, old_will, old_owner) = self.take_stored(id, counts, now);
        let token_of_will = |will: &Option<Box<Will>>| will.as_ref().map_or(0, |will| will.token);
        if token_of_will(&old_will) != token_of_will(&terms.will) {
            let name = self.clients.get(self.rows.get(id).client);
            let party = counts.party_of_session(name, old_owner);
            self.retire(token_of_will(&old_will), None, party, 0, world, now);
        }
        let is_held = by == ChangedBy::Holder;
        if !self.has_holder_here(id) && !has_same_needs(&old_session.state.bytes, &session.bytes) {
            (consequences.no_longer_needed, consequences.newly_needed) =
                (Some(old_session.state.bytes), Some(session.bytes.clone()));
        }
        counts.move_session(old_owner, terms.owner);
        let will = terms.will.map(|mut will| {
            will.client = terms.owner;
            let due_s = match (is_held, will.delay_s) {
                (true, _) => FOREVER_S,
                (false, delay_s) => due_s(now, delay_s),
            };
            Box::new(DelayedWill { will, due_s })
        });
        let away = AwaySession {
            state_bytes: session.bytes.len() as u32,
            state: self.insert_state(session.bytes, counts),
            will,
            expires_s: match (is_held, terms.expiry_s) {
                (true, _) | (_, FOREVER_S) => FOREVER_S,
                (false, expiry_s) => due_s(now, expiry_s),
            },
            owner: terms.owner,
        };
        self.store_away(id, away, session.payloads);
        self.charge(id, world);
        if let Some(replicas) = self.replicas.as_deref_mut()
            && let Some(replica) = replicas.by_row.get_mut(&id)
        {
            match &mut replica.holder_terms {
                Some(held) if is_held => held.expiry_s = terms.expiry_s,
                held => {
                    replicas.held_count -= u32::from(held.take().is_some());
                    replica.local_holder = None;
                }
            }
        }
        consequences
    }

    /// Ends a session whose record cannot be decoded: all nodes do the same. The client is told that it has no session any more. The record counts as
    /// void, so a connection that has ended still releases the messages that homes kept for it.
    fn end_unreadable(&mut self, id: u32, world: &World, now: Now) -> Consequences {
        Consequences {
            is_void: true,
            ..self.end_replica(id, ChangedBy::Steward, world, now)
        }
    }

    fn end_replica(&mut self, id: u32, by: ChangedBy, world: &World, now: Now) -> Consequences {
        let old_replica = self.remove_replica(id);
        let (kept, will, owner) = self.take_stored(id, &world.admission, now);
        let name = self.clients.get(self.rows.get(id).client);
        let party = world.admission.party_of_session(name, owner);
        self.remove_session(id, owner, &world.admission);
        let bytes = &kept.state.bytes;
        self.retire(token_of(bytes), None, party, key_bytes(bytes), world, now);
        if let Some(will) = will {
            // If an operator ends the session, nobody has published the will yet.
            let is_due = by == ChangedBy::Operator;
            self.retire(will.token, is_due.then_some(will), party, 0, world, now);
        }
        Consequences {
            // If a connection of this node has held the session, it releases the messages itself when it ends.
            no_longer_needed: old_replica
                .local_holder
                .is_none()
                .then_some(kept.state.bytes),
            fenced_holder: old_replica
                .local_holder
                .filter(|_| by != ChangedBy::Closing),
            ..Consequences::default()
        }
    }

    /// Releases the sessions of a dead node: its connections hold no sessions any more, and the delays of these sessions begin at this time of the log.
    /// Later turns visit the rows. If a record concerns a row before that visit, the session in the row is [released](Self::release_if_dead) first. With
    /// `at_once` all rows are visited now.
    pub(super) fn release_writer(&mut self, writer: u64, now: Now, at_once: bool) {
        let Some(replicas) = &mut self.replicas else {
            return;
        };
        let is_known = replicas.dead_holders.iter().any(|it| it.writer == writer);
        if is_known || replicas.by_row.is_empty() {
            return;
        }
        replicas.dead_holders.push(DeadHolder {
            writer,
            since_s: now.unix_s,
            next_row: 0,
        });
        while at_once && self.release_some_of_dead().is_some() {}
    }

    /// Visits some rows after the death of a node. Returns their number and the effects; `None` if all rows are visited for every dead node.
    fn release_some_of_dead(&mut self) -> Option<(u32, Vec<Consequences>)> {
        let replicas = self.replicas.as_mut()?;
        let dead = replicas.dead_holders.first_mut()?;
        let rows = replicas.by_row.range(dead.next_row..).map(|(id, _)| *id);
        let rows: Vec<u32> = rows.take(ROWS_PER_PIECE).collect();
        match rows.last() {
            Some(last) => dead.next_row = last + 1,
            None => {
                replicas.dead_holders.remove(0);
            }
        }
        let consequences = rows.iter().filter_map(|id| self.release_if_dead(*id));
        let consequences = consequences.collect();
        Some((rows.len() as u32, consequences))
    }

    /// Releases the session in this row if its holder's node has died. Returns the effects, if a connection of this node held the session.
    fn release_if_dead(&mut self, id: u32) -> Option<Consequences> {
        let replicas = self.replicas.as_deref_mut()?;
        if replicas.dead_holders.is_empty() {
            return None;
        }
        let replica = replicas.by_row.get_mut(&id)?;
        let held = replica.holder_terms?;
        let dead = replicas
            .dead_holders
            .iter()
            .find(|it| it.writer == held.writer)?;
        let now = Now {
            s: 0,
            unix_s: dead.since_s,
        };
        replica.holder_terms = None;
        replicas.held_count -= 1;
        let fenced = replica.local_holder.take();
        self.reschedule(id, |away| {
            away.expires_s = match held.expiry_s {
                FOREVER_S => FOREVER_S,
                expiry_s => due_s(now, expiry_s),
            };
            if let Some(delayed) = &mut away.will {
                delayed.due_s = due_s(now, delayed.will.delay_s);
            }
        });
        fenced?;
        Some(Consequences {
            fenced_holder: fenced,
            newly_needed: Some(self.state_of(id).into()),
            ..Consequences::default()
        })
    }

    /// Gives the session with this name to a connection of this node whose claim was just applied. Returns the session, and the offset of the claim.
    pub(super) fn give_to_holder(
        &mut self,
        (hash, name): (u32, &[u8]),
        holder: (ShardId, ConnId),
    ) -> Option<(SessionId, SavedSession, u64)> {
        let id = self.find(hash, name)?;
        let partition = self.partition as u8;
        let replica = self.replicas.as_mut()?.by_row.get_mut(&id)?;
        replica.local_holder = Some(holder);
        let (claim, expiry_s) = (
            replica.claim,
            replica.holder_terms.map_or(0, |held| held.expiry_s),
        );
        let row = self.rows.get_mut(id);
        row.serial = row.serial.wrapping_add(1);
        let (serial, life) = (row.serial, row.life);
        let state = self.copy_of_state(id);
        let session = SessionId {
            row: id,
            serial,
            life,
            partition,
        };
        Some((session, SavedSession { expiry_s, state }, claim))
    }

    /// The condition under which a change of this session by its connection is applied; `None` if the connection does not hold the session any more.
    pub(super) fn fence_of(&self, id: SessionId, by: ChangedBy) -> Option<Fence> {
        self.name_of(id)?;
        let claim = self.replica(id.row)?.claim;
        Some(Fence {
            claim,
            changed_by: by,
        })
    }

    /// Sets whether this node is the steward of the partition: the node that publishes wills and ends sessions.
    pub(super) fn set_steward(&mut self, is_steward: bool) {
        let Some(replicas) = &mut self.replicas else {
            return;
        };
        if core::mem::replace(&mut replicas.is_steward, is_steward) == is_steward {
            return;
        }
        match is_steward {
            true => self.restart_steward_work(),
            // The next steward publishes the refused wills.
            false => replicas.refused_wills = VecDeque::new(),
        }
    }

    /// Makes the steward start over with all work whose record is not in the log.
    pub(super) fn restart_steward_work(&mut self) {
        if let Some(replicas) = &mut self.replicas {
            replicas.claimed_wills.publish_all_again();
            replicas.refused_wills = VecDeque::new();
            replicas.stewardship += 1;
        }
    }

    /// The next work of this node that is due now. A session stays in the table until the record of its end is applied.
    pub(super) fn next_due_in_log(&mut self, now: Now, counts: &Counts) -> Option<DueInLog> {
        if let Some((visited, consequences)) = self.release_some_of_dead() {
            return Some(DueInLog::Released(visited, consequences));
        }
        let replicas = self.replicas.as_mut()?;
        let is_steward = replicas.is_steward;
        for retired in [&mut replicas.retired, &mut replicas.claimed_wills] {
            if let Some(due) = retired.next_due(is_steward, now.unix_s, counts) {
                return due.map(DueInLog::Retired);
            }
        }
        if !replicas.is_steward {
            return None;
        }
        // A record that this process wrote in an earlier stewardship may be lost, so its work begins again.
        let stewardship = replicas.stewardship;
        let begun_work = replicas.begun_work.first().copied();
        let refused = replicas.refused_wills.front().copied();
        let row = match (
            begun_work.filter(|it| it.stewardship < stewardship),
            refused,
        ) {
            (Some(begun), _) => {
                replicas.begun_work.remove(&begun);
                begun.row
            }
            (None, Some(WillRetry { again_s, row })) if again_s <= now.unix_s => {
                replicas.refused_wills.pop_front();
                if replicas.refused_wills.is_empty() {
                    replicas.refused_wills = VecDeque::new();
                }
                // If the session has changed meanwhile, its work is not begun any more.
                replicas
                    .begun_work
                    .remove(&BegunWork { stewardship, row })
                    .then_some(row)?
            }
            _ => self.due_rows.pop_first()?.1,
        };
        let due = self.due_work(row, now)?;
        let replicas = self.replicas.as_mut()?;
        replicas.begun_work.insert(BegunWork { stewardship, row });
        Some(due)
    }

    /// Makes the steward publish a will again later, because a limit has refused it. `will` is its token, and `name` that of its session. Returns false
    /// if the will is dropped: it was due long ago, or the session ends because memory is short.
    pub(super) fn keep_refused_will(
        &mut self,
        (hash, name): (u32, &[u8]),
        will: u64,
        now: Now,
    ) -> bool {
        let Some(id) = self.find(hash, name).filter(|id| !self.evicted.has(*id)) else {
            return false;
        };
        let away = self.states.rows.get(self.rows.get(id).holder);
        let delayed = away.will.as_ref();
        let Some(delayed) = delayed.filter(|delayed| delayed.will.token == will) else {
            return false;
        };
        let since_s = delayed.due_s.min(away.expires_s);
        if since_s.saturating_add(WILL_KEPT_S) <= now.unix_s {
            return false;
        }
        if let Some(replicas) = &mut self.replicas {
            let again_s = now.unix_s.saturating_add(WILL_RETRY_S);
            replicas
                .refused_wills
                .push_back(WillRetry { again_s, row: id });
        }
        true
    }

    /// Makes the steward publish the will of the retired token with this number again later, because a limit has refused the will.
    pub(super) fn publish_retired_will_later(&mut self, number: u64, now: Now) {
        if let Some(replicas) = &mut self.replicas {
            replicas.claimed_wills.publish_later(number, now.unix_s);
        }
    }

    /// The work that is due now for the session in this row.
    fn due_work(&self, id: u32, now: Now) -> Option<DueInLog> {
        let row = self.away_row(id)?;
        let (away, name) = (
            self.states.rows.get(row.holder),
            self.clients.get(row.client),
        );
        let ends = away.expires_s <= now.unix_s || self.evicted.has(id);
        let will = away.will.as_ref();
        let will = will.filter(|delayed| delayed.due_s <= now.unix_s || ends);
        Some(match will {
            Some(delayed) => DueInLog::Will(name.into(), delayed.will.clone()),
            None if ends => DueInLog::End(name.into()),
            None => return None,
        })
    }

    /// The change that the steward records after it has published the session's will with the token `will` (0: the session has no will). If the session
    /// has expired, the change ends it; otherwise the change removes the will. `None` if a connection holds the session, or if the session does not have
    /// this will any more.
    pub(super) fn change_by_steward(
        &self,
        (hash, name): (u32, &[u8]),
        will: u64,
        now: Now,
    ) -> Option<(ChangeAtHome, Fence)> {
        let id = self.find(hash, name)?;
        let delayed_will = self.states.rows.get(self.rows.get(id).holder).will.as_ref();
        if delayed_will.map_or(0, |delayed| delayed.will.token) != will {
            // Another connection has held the session meanwhile.
            return None;
        }
        let replica = self
            .replica(id)
            .filter(|replica| replica.holder_terms.is_none())?;
        let fence = Fence {
            claim: replica.claim,
            changed_by: ChangedBy::Steward,
        };
        if self.expires_s(id) <= now.unix_s || self.evicted.has(id) {
            let token = token_of(self.state_of(id));
            return Some((ChangeAtHome::End(token), fence));
        }
        let (patch, terms) = self.record_of_terms((hash, name), now)?;
        let terms = Terms {
            will: None,
            ..terms
        };
        Some((ChangeAtHome::Terms(patch, terms), fence))
    }

    /// The change by which an operator ends the session with this name; `None` if there is no such session, or if a connection holds it.
    pub(super) fn change_by_operator(
        &self,
        (hash, name): (u32, &[u8]),
    ) -> Option<(ChangeAtHome, Fence)> {
        let id = self.find(hash, name)?;
        let replica = self
            .replica(id)
            .filter(|replica| replica.holder_terms.is_none())?;
        let fence = Fence {
            claim: replica.claim,
            changed_by: ChangedBy::Operator,
        };
        let token = token_of(self.state_of(id));
        Some((ChangeAtHome::End(token), fence))
    }

    /// Whether a connection holds the session in this row, at any node of a cluster.
    pub(super) fn is_held_somewhere(&self, id: u32) -> bool {
        self.replica(id)
            .is_some_and(|replica| replica.holder_terms.is_some())
    }

    /// Whether a connection of this node of a cluster holds the session in this row.
    pub(super) fn has_holder_here(&self, id: u32) -> bool {
        self.replica(id)
            .is_some_and(|replica| replica.local_holder.is_some())
    }

    /// Whether this process may end the session in this row, which is away. In a cluster only the steward may.
    pub(super) fn may_end(&self, id: u32) -> bool {
        let replicas = self.replicas.as_ref();
        replicas.is_none_or(|all| all.is_steward && !self.is_held_somewhere(id))
    }

    /// A digest of the state that is the same at all nodes.
    pub(super) fn digest(&self, seed: u64) -> u64 {
        let Some(replicas) = &self.replicas else {
            return 0;
        };
        replicas.by_row.iter().fold(0, |digest, (id, replica)| {
            let name = xxh3_64_with_seed(self.clients.get(self.rows.get(*id).client), seed);
            let state = xxh3_64_with_seed(self.state_of(*id), name);
            let held = replica
                .holder_terms
                .map_or(0, |held| held.writer ^ u64::from(held.expiry_s));
            let shared_state = [
                replica.claim.to_le_bytes(),
                held.to_le_bytes(),
                u64::from(self.expires_s(*id)).to_le_bytes(),
            ];
            digest ^ xxh3_64_with_seed(shared_state.as_flattened(), state)
        })
    }

    /// Called after the log was read: from now on this process releases the keys of retired tokens.
    pub(super) fn begin_releases(&mut self) {
        if let Some(replicas) = &mut self.replicas {
            replicas.retired.releases_keys = true;
            replicas.claimed_wills.releases_keys = true;
        }
    }

    /// Writes the retired tokens from index `from` on. Returns the index to continue with, if tokens are left.
    pub(super) fn save_retired(&self, from: usize, block: &mut Block<'_>) -> Option<usize> {
        let replicas = self.replicas.as_ref()?;
        let (retired, wills) = (&replicas.retired, &replicas.claimed_wills);
        if from < retired.len()
            && let Some(next) = retired.save(self.partition, from, block)
        {
            return Some(next);
        }
        let of_wills = from.saturating_sub(retired.len());
        let next = wills.save(self.partition, of_wills, block)?;
        Some(retired.len() + next)
    }

    /// Restores a retired token from a snapshot. The tokens come in the order of their ends.
    pub(super) fn restore_retired(&mut self, saved: SavedToken, world: &World) {
        let SavedToken {
            end_s,
            token,
            will,
            key_charge,
        } = saved;
        if let Some(replicas) = &mut self.replicas {
            let all = replicas.tokens_for(will.is_some());
            all.insert(token, will, end_s, key_charge, &world.admission);
        }
    }

    pub(super) fn replica(&self, id: u32) -> Option<&Replica> {
        self.replicas.as_ref()?.by_row.get(&id)
    }

    pub(super) fn insert_replica(&mut self, id: u32, replica: Replica) {
        if let Some(replicas) = &mut self.replicas {
            replicas.held_count += u32::from(replica.holder_terms.is_some());
            replicas.by_row.insert(id, replica);
        }
    }

    fn remove_replica(&mut self, id: u32) -> Replica {
        let replicas = self.replicas.as_mut();
        let removed = replicas.and_then(|replicas| {
            let replica = replicas.by_row.remove(&id)?;
            replicas.held_count -= u32::from(replica.holder_terms.is_some());
            Some(replica)
        });
        removed.unwrap_or(Replica {
            claim: 0,
            holder_terms: None,
            local_holder: None,
        })
    }

    /// Retires a token, with the will if the steward must publish it. The token has `key_bytes` bytes of keys. `party` is that of the session, and is
    /// charged for them and for the will.
    fn retire(
        &mut self,
        token: u64,
        will: Option<Box<Will>>,
        party: Party,
        key_bytes: usize,
        world: &World,
        now: Now,
    ) {
        if let Some(replicas) = &mut self.replicas {
            let all = replicas.tokens_for(will.is_some());
            let charge = Charge {
                party,
                bytes: key_bytes,
            };
            all.insert(token, will, now.unix_s, Some(charge), &world.admission);
        }
    }

    /// Whether the will of the session in this row is due.
    pub(super) fn is_will_due(&self, id: u32, now: Now) -> bool {
        let away = self.states.rows.get(self.rows.get(id).holder);
        let will = away.will.as_ref();
        will.is_some_and(|delayed| delayed.due_s <= now.unix_s)
    }

    fn expires_s(&self, id: u32) -> u32 {
        self.states.rows.get(self.rows.get(id).holder).expires_s
    }

    fn charge(&self, id: u32, world: &World) {
        let (party, bytes) = self.party_and_bytes(id, &world.admission);
        world.admission.change_absent(party, 0, bytes);
    }
}

/// After the death of a node, one step of work visits this many rows.
const ROWS_PER_PIECE: usize = 16;

/// The first second in which `seconds` whole seconds have passed; for 0, the current second.
fn due_s(now: Now, seconds: u32) -> u32 {
    match seconds {
        0 => now.unix_s,
        seconds => second_after(now, seconds),
    }
}

/// Whether homes keep the same messages for two stored forms.
fn has_same_needs(one: &[u8], other: &[u8]) -> bool {
    let needs = |bytes| subscriptions(bytes).filter(StoredSubscription::needs_log);
    let (mut one, mut other) = (needs(one), needs(other));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one.filter == other.filter => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests;
