//! Sessions that are away: their stored forms, their wills, their ends, the bytes that are charged for them, and their eviction when memory is short.
//!
//! The bytes are counted twice. The memory account of the process counts the tables of this home ([`Sessions::held_bytes`]). The counters by party
//! ([`Counts::change_absent`](crate::budget::admission::Counts::change_absent)) tell all shards which party holds most. They also count what all
//! homes need for the session's subscriptions, as if no other session shared them.
//!
//! Invariant: a session counts for its party exactly while it is away. In a cluster, all sessions count as away here.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crore_wire::mqtt::split_shared;
use crore_wire::topic;

use super::{FOREVER_S, HoldState, SessionRow, Sessions};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client, Party};
use crate::home;
use crate::home::session_terms::{BegunWork, DelayedWill};
use crate::home::unreleased::ENTRY_BYTES;
use crate::mail::session::stored::{StoredSubscription, subscriptions, unreleased};
use crate::mail::session::{EncodedSession, SavedSession, SessionId, Will};
use crate::store::blobs::{Blob, BlobOwner, Blobs, occupied_blob_bytes};
use crate::store::shared::{SHARED_OVERHEAD_BYTES, Shared, Slice};
use crate::store::slab::{SideRow, SideTable};

/// States of at least this length have their own allocation, so that their memory is freed when the session ends.
const OWN_ALLOCATION_MIN: usize = 512;
/// Bytes of a session's row and of its bucket in the index.
pub(super) const ROW_BYTES: usize = size_of::<SessionRow>() + 4;
/// Bytes of each session that is away, besides its client id and state: its row, its [`AwaySession`], and its entry in [`Sessions::due_rows`]. That is a
/// tree whose leaves may be half full.
const AWAY_BYTES: usize = ROW_BYTES + size_of::<SideRow<AwaySession>>() + 16;
/// Bytes of a list of payloads, without the payloads.
const PAYLOADS_BYTES: usize = 128;
/// Empty tables are freed only if they are larger than this. Otherwise the tables would be freed and allocated for each of a few sessions that come and go.
const EMPTY_TABLE_BYTES_MAX: usize = 1 << 20;
/// The second in which an evicted session ends. Every clock has passed it.
pub(super) const EVICTED_S: u32 = 0;

/// Bytes that a home needs to keep the messages of a topic for a session, without the topic's name: the topic's row, the place of its name, and the
/// count of subscriptions.
const KEPT_TOPIC_BYTES: usize = 96;

/// A session that is away.
pub struct AbsentSession {
    /// The party that is charged for the session.
    pub party: Party,
    /// Identifies the session for [`Sessions::evict`].
    pub id: SessionId,
    /// Bytes that the end of the session frees at this home. Of a large message that several sessions keep, it counts an equal part.
    pub bytes: usize,
}

/// A session that is away, as an operator sees it.
pub struct AbsentView<'s> {
    /// The session's name: the client id, and the user if there is one.
    pub name: &'s [u8],
    /// The Unix second in which the session expires, or [`FOREVER_S`].
    pub expires_s: u32,
    /// Bytes of the session, without those of large messages.
    pub bytes: usize,
    /// The [stored form](crate::mail::session::stored) of the session.
    pub state: &'s [u8],
}

/// A session that is away.
#[derive(Default)]
pub(super) struct AwaySession {
    pub state: Blob,
    pub state_bytes: u32,
    pub will: Option<Box<DelayedWill>>,
    pub expires_s: u32,
    /// The client for which the session counts.
    pub owner: Client,
}

const _: () = assert!(size_of::<AwaySession>() == 24);

impl AwaySession {
    pub fn will_bytes(&self) -> usize {
        let will = self.will.as_ref();
        will.map_or(0, |delayed| delayed.bytes())
    }

    /// The second in which the will is due or the session expires, whichever is first.
    pub fn due_s(&self) -> u32 {
        let will_s = self.will.as_ref().map_or(FOREVER_S, |will| will.due_s);
        self.expires_s.min(will_s)
    }
}

impl BlobOwner for SideRow<AwaySession> {
    fn blob_mut(&mut self) -> Option<&mut Blob> {
        match self {
            SideRow::InUse(away) => Some(&mut away.state),
            SideRow::Free(_) => None,
        }
    }
}

/// All sessions that are away.
#[derive(Default)]
pub(super) struct AbsentStates {
    pub rows: SideTable<AwaySession>,
    pub blobs: Blobs,
    /// Payloads of large messages that the clients have not acknowledged, by the row in `rows`.
    pub payloads: BTreeMap<u32, Vec<Slice>>,
    pub state_bytes: usize,
    pub will_bytes: usize,
    /// Bytes of the sessions' client ids.
    pub name_bytes: usize,
}

/// Evicted sessions that have not ended yet.
#[derive(Default)]
pub(super) struct Evicted {
    /// By row: the bytes that the end of the session frees.
    sessions: BTreeMap<u32, usize>,
    /// The sum of these bytes. It is kept, because each eviction needs it.
    bytes: usize,
}

impl Evicted {
    pub(super) fn has(&self, id: u32) -> bool {
        self.sessions.contains_key(&id)
    }
}

impl Sessions {
    pub(super) fn insert_state(&mut self, state: Box<[u8]>, counts: &Admission) -> Blob {
        self.states.blobs.compact(self.states.rows.slab_mut());
        match state.len() < OWN_ALLOCATION_MIN || self.states.blobs.is_full() {
            true => self.states.blobs.insert(&[&state], counts),
            false => self.states.blobs.insert_shared(Shared::new(state, counts)),
        }
    }

    /// Stores the session of this row as away.
    pub(super) fn store_away(&mut self, row: u32, away: AwaySession, payloads: Vec<Slice>) {
        self.states.state_bytes += away.state_bytes as usize;
        self.states.will_bytes += away.will_bytes();
        let due_s = away.due_s();
        if due_s != FOREVER_S {
            self.due_rows.insert((due_s, row));
        }
        let id = self.states.rows.insert(away);
        if !payloads.is_empty() {
            self.states.payloads.insert(id, payloads);
        }
        let session_row = self.rows.get_mut(row);
        (session_row.hold_state, session_row.holder) = (HoldState::Away, id);
        self.states.name_bytes += self.clients.get(session_row.client).len();
    }

    /// Replaces the stored form of the session in this row, which is away.
    pub(super) fn replace_state(&mut self, id: u32, session: EncodedSession, counts: &Admission) {
        let (party, before) = self.party_and_bytes(id, counts);
        let holder = self.rows.get(id).holder;
        let len = session.bytes.len() as u32;
        let state = self.insert_state(session.bytes, counts);
        let away = self.states.rows.get_mut(holder);
        let old_state = core::mem::replace(&mut away.state, state);
        let old_len = core::mem::replace(&mut away.state_bytes, len);
        self.states.blobs.remove(old_state);
        self.states.state_bytes += len as usize;
        self.states.state_bytes -= old_len as usize;
        match session.payloads.is_empty() {
            true => self.states.payloads.remove(&holder),
            false => self.states.payloads.insert(holder, session.payloads),
        };
        let (_, after) = self.party_and_bytes(id, counts);
        counts.change_absent(party, before, after);
    }

    /// Removes what is stored for the session of this row, which is away. Returns its state, will and owner.
    pub(super) fn take_stored(
        &mut self,
        id: u32,
        counts: &Admission,
        now: Now,
    ) -> (SavedSession, Option<Box<Will>>, Client) {
        let (party, bytes) = self.party_and_bytes(id, counts);
        counts.change_absent(party, bytes, 0);
        let row = self.rows.get(id);
        let holder = row.holder;
        self.states.name_bytes -= self.clients.get(row.client).len();
        if let Some(bytes) = self.evicted.sessions.remove(&id) {
            self.evicted.bytes -= bytes;
            self.due_rows.remove(&(EVICTED_S, id));
        }
        let away = self.states.rows.remove(holder);
        self.due_rows.remove(&(away.due_s(), id));
        if let Some(replicas) = &mut self.replicas {
            replicas.begun_work.remove(&BegunWork {
                stewardship: replicas.stewardship,
                row: id,
            });
        }
        let len = away.state_bytes as usize;
        self.states.state_bytes -= len;
        self.states.will_bytes -= away.will_bytes();
        let state = EncodedSession {
            bytes: self.states.blobs.get(away.state)[..len].into(),
            payloads: self.states.payloads.remove(&holder).unwrap_or_default(),
        };
        self.states.blobs.remove(away.state);
        self.free_empty_tables();
        let expiry_s = remaining_s(away.expires_s, now);
        let will = away.will.map(|delayed| delayed.will);
        (SavedSession { expiry_s, state }, will, away.owner)
    }

    /// Bytes of the sessions that are away, with their rows and names.
    pub fn held_bytes(&self) -> usize {
        self.states.blobs.bytes()
            + self.states.blobs.shared_count() as usize * SHARED_OVERHEAD_BYTES
            + self.states.will_bytes
            + self.states.name_bytes
            + self.states.rows.len() as usize * AWAY_BYTES
            + self.states.payloads.len() * PAYLOADS_BYTES
            + self.replicas.as_ref().map_or(0, |it| it.retired_bytes())
    }

    /// Bytes of a session that is away, without those of its large messages.
    fn bytes_of(&self, row: &SessionRow) -> usize {
        let away = self.states.rows.get(row.holder);
        let name = self.clients.get(row.client).len();
        AWAY_BYTES + name + occupied_blob_bytes(away.state_bytes as usize) + away.will_bytes()
    }

    /// The party that is charged for the session in this row, which is away, and the bytes.
    pub(super) fn party_and_bytes(&self, id: u32, counts: &Admission) -> (Party, usize) {
        let row = self.rows.get(id);
        let away = self.states.rows.get(row.holder);
        let party = counts.party_of_session(self.clients.get(row.client), away.owner);
        let state = &self.states.blobs.get(away.state)[..away.state_bytes as usize];
        (
            party,
            self.bytes_of(row) + retention_bytes(state, self.home_count),
        )
    }

    /// One past the highest row that was ever used.
    pub fn row_end(&self) -> u32 {
        self.rows.end()
    }

    /// The row, if it has a session that is away.
    pub(super) fn away_row(&self, id: u32) -> Option<&SessionRow> {
        let row = self.rows.get(id);
        (row.client != Blob::NONE && row.hold_state == HoldState::Away).then_some(row)
    }

    /// The stored form of the session in this row, without the payloads of large messages.
    pub(super) fn state_of(&self, id: u32) -> &[u8] {
        let away = self.states.rows.get(self.rows.get(id).holder);
        &self.states.blobs.get(away.state)[..away.state_bytes as usize]
    }

    /// A copy of the stored form of the session in this row.
    pub(super) fn copy_of_state(&self, id: u32) -> EncodedSession {
        let payloads = self.states.payloads.get(&self.rows.get(id).holder);
        EncodedSession {
            bytes: self.state_of(id).into(),
            payloads: payloads.cloned().unwrap_or_default(),
        }
    }

    /// The session in this row as an operator sees it, if its client is away.
    pub(super) fn absent_view(&self, id: u32) -> Option<AbsentView<'_>> {
        let row = self.away_row(id).filter(|_| !self.is_held_somewhere(id))?;
        let away = self.states.rows.get(row.holder);
        Some(AbsentView {
            name: self.clients.get(row.client),
            expires_s: away.expires_s,
            bytes: self.bytes_of(row),
            state: self.state_of(id),
        })
    }

    /// The session with this name, if its client is away.
    pub(super) fn find_absent(&self, hash: u32, client: &[u8]) -> Option<AbsentView<'_>> {
        self.absent_view(self.find(hash, client)?)
    }

    /// Evicts the session with this name, see [`evict`](Self::evict).
    pub(super) fn evict_named(&mut self, hash: u32, client: &[u8], counts: &Admission) -> bool {
        let found = self.find(hash, client);
        let absent = found.and_then(|id| self.evictable(id, counts));
        absent.is_some_and(|absent| self.evict(absent.id, counts))
    }

    /// The session in this row, if it is away and this process may end it.
    pub fn evictable(&self, id: u32, counts: &Admission) -> Option<AbsentSession> {
        let row = self.away_row(id).filter(|_| self.may_end(id))?;
        let owner = self.states.rows.get(row.holder).owner;
        let payloads = self.states.payloads.get(&row.holder);
        let payloads = payloads.into_iter().flatten().map(Slice::weight);
        Some(AbsentSession {
            party: counts.party_of_session(self.clients.get(row.client), owner),
            id: SessionId {
                row: id,
                serial: row.serial,
                life: row.life,
                partition: self.partition as u8,
            },
            bytes: self.bytes_of(row) + payloads.sum::<usize>(),
        })
    }

    /// Makes this session due to end now, as if it had expired. Returns false if it is not away any more, or was evicted before.
    pub fn evict(&mut self, id: SessionId, counts: &Admission) -> bool {
        let is_same_session = |row: &&SessionRow| (row.serial, row.life) == (id.serial, id.life);
        let session_row = self.rows.try_get(id.row).filter(is_same_session);
        let Some(holder) = session_row.map(|row| row.holder) else {
            return false;
        };
        let Some(AbsentSession { bytes, .. }) = self.evictable(id.row, counts) else {
            return false;
        };
        if self.evicted.sessions.contains_key(&id.row) {
            return false;
        }
        self.evicted.sessions.insert(id.row, bytes);
        self.evicted.bytes += bytes;
        let away = self.states.rows.get_mut(holder);
        self.due_rows.remove(&(away.due_s(), id.row));
        if self.replicas.is_none() {
            away.expires_s = EVICTED_S;
        }
        self.due_rows.insert((EVICTED_S, id.row));
        true
    }

    /// Bytes of evicted sessions that have not ended yet.
    pub fn evicted_bytes(&self) -> usize {
        self.evicted.bytes
    }

    /// The first second in which this process has something to do for sessions, [`FOREVER_S`] if there is nothing. In a cluster only the steward
    /// publishes wills and ends sessions.
    pub fn next_due_s(&self) -> u32 {
        let first = self.due_rows.first().map_or(FOREVER_S, |(due_s, _)| *due_s);
        let Some(replicas) = &self.replicas else {
            return first;
        };
        if !replicas.dead_holders.is_empty() {
            return 0;
        }
        let retired = replicas.next_due_s();
        let begun = replicas.begun_work.first();
        match replicas.is_steward {
            true if begun.is_some_and(|it| it.stewardship < replicas.stewardship) => 0,
            true => first.min(retired),
            false => retired,
        }
    }

    /// The name of the session whose will or end is due first.
    pub fn next_due_name(&self) -> Option<&[u8]> {
        let (_, id) = self.due_rows.first()?;
        Some(self.clients.get(self.rows.get(*id).client))
    }

    /// Takes the will of this session, which is away, if a claim to the session makes the will due now. `clean` is as in the claim. A will that is not
    /// recorded, and so has no token, is not taken.
    pub(super) fn take_will(
        &mut self,
        (hash, client): (u32, &[u8]),
        clean: bool,
        counts: &Admission,
        now: Now,
    ) -> Option<Box<Will>> {
        let id = self.find(hash, client)?;
        let row = self.away_row(id).filter(|_| !self.evicted.has(id))?;
        let away = self.states.rows.get(row.holder);
        let will = &away.will.as_ref()?.will;
        // A will whose delay has passed is due, even if this home was too busy to publish it.
        let is_due =
            clean || will.delay_s == 0 || self.is_will_due(id, now) || away.expires_s <= now.unix_s;
        if !is_due || will.token == 0 {
            return None;
        }
        let (party, before) = self.party_and_bytes(id, counts);
        let mut will = None;
        self.reschedule(id, |away| will = away.will.take());
        let (_, after) = self.party_and_bytes(id, counts);
        counts.change_absent(party, before, after);
        will.map(|delayed| delayed.will)
    }

    /// Puts back the will of this session, because a limit has refused it. The will is due again in the second `again_s`, or at once if a claim comes
    /// before. Returns the will if the session is not away any more, or ends before that second.
    pub(super) fn put_back_will(
        &mut self,
        (hash, client): (u32, &[u8]),
        (mut will, again_s): (Box<Will>, u32),
        counts: &Admission,
    ) -> Option<Box<Will>> {
        let found = self.find(hash, client).filter(|id| {
            self.away_row(*id).is_some_and(|row| {
                let away = self.states.rows.get(row.holder);
                away.will.is_none() && away.expires_s > again_s && !self.evicted.has(*id)
            })
        });
        let Some(id) = found else {
            return Some(will);
        };
        will.delay_s = 0;
        let (party, before) = self.party_and_bytes(id, counts);
        self.reschedule(id, |away| {
            away.will = Some(Box::new(DelayedWill {
                will,
                due_s: again_s,
            }));
        });
        let (_, after) = self.party_and_bytes(id, counts);
        counts.change_absent(party, before, after);
        None
    }

    /// Takes the will and, if the session has expired, the state of the session that is due first. The caller has checked that it is due now.
    pub fn take_due(
        &mut self,
        counts: &Admission,
        now: Now,
    ) -> Option<(Option<Box<Will>>, Option<SavedSession>)> {
        let (_, id) = self.due_rows.pop_first()?;
        let holder = self.rows.get(id).holder;
        let (party, before) = self.party_and_bytes(id, counts);
        let away = self.states.rows.get_mut(holder);
        self.states.will_bytes -= away.will_bytes();
        let will = away.will.take().map(|delayed| delayed.will);
        let (_, after) = self.party_and_bytes(id, counts);
        counts.change_absent(party, before, after);
        let away = self.states.rows.get_mut(holder);
        if away.expires_s > now.unix_s {
            if away.expires_s != FOREVER_S {
                self.due_rows.insert((away.expires_s, id));
            }
            return Some((will, None));
        }
        let (kept, _, owner) = self.take_stored(id, counts, now);
        self.remove_session(id, owner, counts);
        Some((will, Some(kept)))
    }

    /// Frees large tables when no session is away any more.
    fn free_empty_tables(&mut self) {
        if self.states.rows.len() == 0
            && self.states.blobs.reserved_bytes() + self.states.rows.bytes() > EMPTY_TABLE_BYTES_MAX
        {
            (self.states.blobs, self.states.rows) = (Blobs::default(), SideTable::default());
        }
    }
}

/// The remaining seconds of a session that expires in second `expires_s`. They are 0 only if the session has expired, since a 0 in the log ends it.
pub(super) fn remaining_s(expires_s: u32, now: Now) -> u32 {
    match expires_s {
        FOREVER_S => FOREVER_S,
        expires_s if expires_s <= now.unix_s => 0,
        expires_s => expires_s.saturating_sub(now.unix_s + 1).max(1),
    }
}

/// Bytes that `homes` homes need for a stored session: for its subscriptions, as if no other session shared them, and for its QoS 2 messages that are
/// not released.
fn retention_bytes(state: &[u8], homes: usize) -> usize {
    let bytes_of_subscription = |subscription: StoredSubscription<'_>| {
        let filter = &*subscription.filter;
        match split_shared(filter) {
            Some((name, filter)) => home::group_bytes_alone(name, filter) * homes,
            None if topic::has_wildcard(filter) => home::filter_bytes_alone(filter) * homes,
            None => KEPT_TOPIC_BYTES + filter.len(),
        }
    };
    let all = subscriptions(state);
    let all: usize = all
        .filter(StoredSubscription::needs_log)
        .map(bytes_of_subscription)
        .sum();
    all + key_bytes(state)
}

/// Bytes that homes need for the keys of a stored session's QoS 2 messages that are not released.
pub(super) fn key_bytes(state: &[u8]) -> usize {
    unreleased(state) * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::session::stored::StoredSession;

    #[test]
    fn packet_ids_that_homes_keep_are_charged_to_their_session() {
        let bytes = |token| {
            let session = StoredSession {
                received: (1..=1000).collect(),
                token,
                ..StoredSession::default()
            };
            retention_bytes(&session.encode().bytes, 2)
        };
        assert_eq!(
            bytes(0),
            0,
            "the ids of a session without a token are in its state"
        );
        assert_eq!(bytes(1), 1000 * ENTRY_BYTES);
    }
}
