//! The sessions of a cluster. All nodes apply the records of all sessions in the order of the log, so each node has every session, with its stored form,
//! also while a connection holds it. If the node of that connection dies, the client goes on at any other node.
//!
//! Invariants:
//! * Only records of the log change what is known of a session, so all nodes know the same. What a node alone knows is which of its connections holds a
//!   session, and what it has begun to end.
//! * The connection whose claim stands last in the log holds the session. A change by any other connection is void at all nodes alike (fencing).
//! * The homes of a node keep messages for a session on account of this table exactly while no connection of the node holds it. Otherwise they keep them
//!   on account of the connection.
//! * Only the steward of the partition publishes wills and ends sessions that expire.

use alloc::boxed::Box;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::snapshot::checked_session;
use super::{Away, Delayed, FOREVER_S, Sessions, end_s};
use crate::base::ids::{ConnId, ShardId};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::budget::world::World;
use crate::home::session_terms::{Consequences, DueInLog, Held, LogPlace, Replica};
use crate::mail::session::record::{ChangedBy, Fence, RecordedState, SessionChange, SessionRecord};
use crate::mail::session::stored::{
    StoredSession, StoredSubscription, set_epoch, subscriptions, token_of,
};
use crate::mail::session::{SavedSession, SessionId};

impl Sessions {
    /// Applies a record of the log of a cluster.
    pub(super) fn apply(
        &mut self,
        record: &SessionRecord<'_>,
        world: &World,
        place: LogPlace,
    ) -> Consequences {
        let hash = xxh3_64_with_seed(record.name, world.seed) as u32;
        let found = self.find(hash, record.name);
        match (&record.change, record.fence) {
            (SessionChange::Claim { .. }, _) => self.apply_claim(found, record, world, place),
            (SessionChange::State(state), Some(fence)) => match self.fenced(found, fence) {
                Some(id) => self.apply_state(id, state, fence.by, world, place.now),
                None => Consequences::void(),
            },
            (SessionChange::End { .. }, Some(fence)) => match self.fenced(found, fence) {
                Some(id) => self.end_replica(id, fence.by, world, place.now),
                None => Consequences::void(),
            },
            (_, None) => Consequences::void(),
        }
    }

    /// The row, if the condition of the change is met.
    fn fenced(&self, found: Option<u32>, fence: Fence) -> Option<u32> {
        let id = found?;
        let replica = self.replica(id)?;
        let is_holder = fence.by != ChangedBy::Steward;
        (replica.claim == fence.claim && replica.held.is_some() == is_holder).then_some(id)
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
        let (mut after, counts, now) = (Consequences::default(), &world.admission, place.now);
        let mut going_on = None;
        if let Some(id) = found {
            let expires_s = self.expires_s(id);
            let former = self.remove_replica(id);
            let ends = clean
                || match former.held {
                    Some(held) => held.expiry_s == 0,
                    None => expires_s <= now.unix_s,
                };
            let (kept, former_will, former_owner) = self.take_away(id, counts, now);
            after.fenced = former.holder;
            match former_will {
                Some(will) if ends || will.delay_s == 0 => after.will = Some(will),
                Some(will) => after.dropped_will = will.token,
                None => {}
            }
            let bytes = &kept.state.bytes;
            if ends {
                after.ended = token_of(bytes);
                after.needed = former.holder.is_none().then(|| bytes.clone());
                self.forget(id);
                counts.leave_session(former_owner);
            } else {
                after.needs = former.holder.is_some().then(|| bytes.clone());
                counts.move_session(former_owner, owner);
                going_on = Some((id, kept.state));
            }
        }
        let will = will.clone().map(|will| {
            Box::new(Delayed {
                will,
                due_s: FOREVER_S,
            })
        });
        let (row, state) = match going_on {
            Some((id, state)) => (Some(id), state),
            None => {
                let begun = StoredSession {
                    token,
                    ..StoredSession::default()
                };
                let mut state = begun.encode();
                set_epoch(&mut state.bytes, world.epoch);
                counts.move_session(Client::NOBODY, owner);
                (None, state)
            }
        };
        let away = Away {
            state_bytes: state.bytes.len() as u32,
            state: self.insert_state(state.bytes, counts),
            will,
            expires_s: FOREVER_S,
            owner,
        };
        let id = match row {
            Some(id) => {
                self.insert_away(id, away, state.payloads);
                id
            }
            None => self.insert_row(record.name, away, state.payloads, world),
        };
        self.charge(id, world);
        let held = Some(Held {
            writer: place.writer,
            expiry_s,
        });
        let replica = Replica {
            claim: place.offset,
            held,
            holder: None,
        };
        self.insert_replica(id, replica);
        after
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
            // All nodes find the same, and the client is told that there is no session any more.
            return self.end_replica(id, ChangedBy::Steward, world, now);
        };
        set_epoch(&mut session.bytes, world.epoch);
        let (mut after, counts) = (Consequences::default(), &world.admission);
        let (former, _, former_owner) = self.take_away(id, counts, now);
        let is_held = by == ChangedBy::Holder;
        if !self.has_holder_here(id) && !has_same_needs(&former, &session.bytes) {
            (after.needed, after.needs) = (Some(former.state.bytes), Some(session.bytes.clone()));
        }
        counts.move_session(former_owner, state.owner);
        let will = state.will.clone().map(|will| {
            let due_s = match (is_held, will.delay_s) {
                (true, _) => FOREVER_S,
                (false, delay_s) => due_s(now, delay_s),
            };
            Box::new(Delayed { will, due_s })
        });
        let away = Away {
            state_bytes: session.bytes.len() as u32,
            state: self.insert_state(session.bytes, counts),
            will,
            expires_s: match (is_held, state.expiry_s) {
                (true, _) | (_, FOREVER_S) => FOREVER_S,
                (false, expiry_s) => due_s(now, expiry_s),
            },
            owner: state.owner,
        };
        self.insert_away(id, away, session.payloads);
        self.charge(id, world);
        if let Some(replica) = self.replicas.as_mut().and_then(|it| it.rows.get_mut(&id)) {
            match &mut replica.held {
                Some(held) if is_held => held.expiry_s = state.expiry_s,
                held => (*held, replica.holder) = (None, None),
            }
        }
        after
    }

    fn end_replica(&mut self, id: u32, by: ChangedBy, world: &World, now: Now) -> Consequences {
        let former = self.remove_replica(id);
        let (kept, _, owner) = self.take_away(id, &world.admission, now);
        self.forget(id);
        world.admission.leave_session(owner);
        Consequences {
            ended: token_of(&kept.state.bytes),
            // A connection that ends has released what it needed.
            needed: former.holder.is_none().then_some(kept.state.bytes),
            fenced: former.holder.filter(|_| by != ChangedBy::Closing),
            ..Consequences::default()
        }
    }

    /// A node is dead: its connections hold no sessions any more, and what is due of them counts from this moment of the log.
    pub(super) fn release_writer(&mut self, writer: u64, now: Now) -> Vec<Consequences> {
        let Some(replicas) = &mut self.replicas else {
            return Vec::new();
        };
        let mut released = Vec::new();
        for (id, replica) in &mut replicas.rows {
            if let Some(held) = replica.held.filter(|held| held.writer == writer) {
                replica.held = None;
                released.push((*id, held.expiry_s, replica.holder.take()));
            }
        }
        let mut all = Vec::new();
        for (id, expiry_s, fenced) in released {
            self.reschedule(id, |away| {
                away.expires_s = match expiry_s {
                    FOREVER_S => FOREVER_S,
                    expiry_s => due_s(now, expiry_s),
                };
                if let Some(delayed) = &mut away.will {
                    delayed.due_s = due_s(now, delayed.will.delay_s);
                }
            });
            if fenced.is_some() {
                let needs = Some(self.state_of(id).into());
                all.push(Consequences {
                    fenced,
                    needs,
                    ..Consequences::default()
                });
            }
        }
        all
    }

    /// Gives the session with this name to a connection of this node, whose claim was just applied. Returns the session.
    pub(super) fn hold(
        &mut self,
        (hash, name): (u32, &[u8]),
        holder: (ShardId, ConnId),
    ) -> Option<(SessionId, SavedSession)> {
        let id = self.find(hash, name)?;
        let partition = self.partition as u8;
        let replica = self.replicas.as_mut()?.rows.get_mut(&id)?;
        replica.holder = Some(holder);
        let expiry_s = replica.held.map_or(0, |held| held.expiry_s);
        let row = self.rows.get_mut(id);
        row.serial = row.serial.wrapping_add(1);
        let (serial, life) = (row.serial, row.life);
        let state = self.copy_of_state(id);
        Some((
            SessionId {
                row: id,
                serial,
                life,
                partition,
            },
            SavedSession { expiry_s, state },
        ))
    }

    /// The condition for a change of this session by the connection that holds it; `None` if that connection holds it no more.
    pub(super) fn fence_of(&self, id: SessionId, by: ChangedBy) -> Option<Fence> {
        self.name_of(id)?;
        let claim = self.replica(id.row)?.claim;
        Some(Fence { claim, by })
    }

    /// Whether the session with this token goes on in the row of a former holder.
    pub(super) fn has_token(&self, id: SessionId, token: u64) -> bool {
        self.replica(id.row).is_some() && token_of(self.state_of(id.row)) == token
    }

    /// Becomes the steward of the partition, or is it no more.
    pub(super) fn set_steward(&mut self, is_steward: bool) {
        let Some(replicas) = &mut self.replicas else {
            return;
        };
        if core::mem::replace(&mut replicas.is_steward, is_steward) == is_steward || !is_steward {
            return;
        }
        // What this process had begun to end as a steward of before may not have been recorded.
        self.due.clear();
        for id in 0..self.rows.end() {
            if let Some(row) = self.away(id) {
                let due_s = self.states.rows.get(row.holder).due_s();
                if due_s != FOREVER_S {
                    self.due.insert((due_s, id));
                }
            }
        }
    }

    /// What the steward has to do next, of what is due now. It stays in the table until its record is applied.
    pub(super) fn next_due_in_log(&mut self, now: Now) -> Option<DueInLog> {
        let (_, id) = self.due.pop_first()?;
        let row = self.away(id)?;
        let (away, name) = (
            self.states.rows.get(row.holder),
            self.clients.get(row.client),
        );
        let will = away
            .will
            .as_ref()
            .filter(|delayed| delayed.due_s <= now.unix_s || away.expires_s <= now.unix_s);
        let is_evicted = self.evicted.has(id);
        Some(match will {
            Some(delayed) => DueInLog::Will(name.into(), delayed.will.clone()),
            None if is_evicted || away.expires_s <= now.unix_s => DueInLog::End(name.into()),
            None => return None,
        })
    }

    /// The change that the steward records for the session with this name, whose will with this token was published (0: it has none): its end if it has
    /// expired, and its state without the will otherwise. `None` if a connection holds the session, or if there is none with this will.
    pub(super) fn change_by_steward(
        &self,
        (hash, name): (u32, &[u8]),
        will: u64,
        now: Now,
    ) -> Option<(SessionChange<'_>, Fence)> {
        let id = self.find(hash, name)?;
        let of_session = self.states.rows.get(self.rows.get(id).holder).will.as_ref();
        if of_session.map_or(0, |delayed| delayed.will.token) != will {
            // Meanwhile another connection held the session.
            return None;
        }
        let replica = self.replica(id).filter(|replica| replica.held.is_none())?;
        let fence = Fence {
            claim: replica.claim,
            by: ChangedBy::Steward,
        };
        if self.expires_s(id) <= now.unix_s || self.evicted.has(id) {
            let token = token_of(self.state_of(id));
            return Some((SessionChange::End { token }, fence));
        }
        let state = self.recorded((hash, name), now)?;
        Some((
            SessionChange::State(RecordedState {
                will: None,
                ..state
            }),
            fence,
        ))
    }

    /// Whether a connection of some node holds the session in this row.
    pub(super) fn is_held_somewhere(&self, id: u32) -> bool {
        self.replica(id)
            .is_some_and(|replica| replica.held.is_some())
    }

    /// Whether a connection of this node of a cluster holds the session in this row.
    pub(super) fn has_holder_here(&self, id: u32) -> bool {
        self.replica(id)
            .is_some_and(|replica| replica.holder.is_some())
    }

    /// Whether this process may end the session in this row, which is away. In a cluster only the steward may.
    pub(super) fn may_end(&self, id: u32) -> bool {
        let replicas = self.replicas.as_ref();
        replicas.is_none_or(|all| all.is_steward && !self.is_held_somewhere(id))
    }

    /// A digest of what all nodes know alike.
    pub(super) fn digest(&self, seed: u64) -> u64 {
        let Some(replicas) = &self.replicas else {
            return 0;
        };
        replicas.rows.iter().fold(0, |digest, (id, replica)| {
            let name = xxh3_64_with_seed(self.clients.get(self.rows.get(*id).client), seed);
            let state = xxh3_64_with_seed(self.state_of(*id), name);
            let held = replica
                .held
                .map_or(0, |held| held.writer ^ u64::from(held.expiry_s));
            let told = [
                replica.claim.to_le_bytes(),
                held.to_le_bytes(),
                u64::from(self.expires_s(*id)).to_le_bytes(),
            ];
            digest ^ xxh3_64_with_seed(told.as_flattened(), state)
        })
    }

    pub(super) fn replica(&self, id: u32) -> Option<&Replica> {
        self.replicas.as_ref()?.rows.get(&id)
    }

    pub(super) fn insert_replica(&mut self, id: u32, replica: Replica) {
        if let Some(replicas) = &mut self.replicas {
            replicas.rows.insert(id, replica);
        }
    }

    fn remove_replica(&mut self, id: u32) -> Replica {
        let replica = self.replicas.as_mut().and_then(|it| it.rows.remove(&id));
        replica.unwrap_or(Replica {
            claim: 0,
            held: None,
            holder: None,
        })
    }

    fn expires_s(&self, id: u32) -> u32 {
        self.states.rows.get(self.rows.get(id).holder).expires_s
    }

    fn charge(&self, id: u32, world: &World) {
        let (party, bytes) = self.charged(id, &world.admission);
        world.admission.change_absent(party, 0, bytes);
    }
}

/// The second in which `seconds` have surely passed. No second has to pass for 0.
fn due_s(now: Now, seconds: u32) -> u32 {
    match seconds {
        0 => now.unix_s,
        seconds => end_s(now, seconds),
    }
}

/// Whether homes keep the same messages for two stored forms.
fn has_same_needs(one: &SavedSession, other: &[u8]) -> bool {
    let needs = |bytes| subscriptions(bytes).filter(StoredSubscription::needs_log);
    let (mut one, mut other) = (needs(&one.state.bytes), needs(other));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one.filter == other.filter => {}
            _ => return false,
        }
    }
}
