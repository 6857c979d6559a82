//! The MQTT sessions of a home (the part of a shard that keeps topics): a table for each of its partitions.
//!
//! Invariant: `due_s` and `held_bytes` are updated with each change, because every turn (a pass of the shard's loop) needs them and must not search
//! the tables.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use super::absent::{AbsentSession, AbsentView};
use super::{Claim, CloseOutcome, FOREVER_S, OpenOutcome, Sessions};
use crate::base::ids::{ConnId, ShardId};
use crate::base::placement::Placement;
use crate::base::snapshot::{Block, Damaged, FieldReader, Origin, kind};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Counts};
use crate::budget::stats::Accounts;
use crate::budget::world::World;
use crate::home::refused_wills::{RefusedWill, RefusedWills};
use crate::home::retired_tokens::RetiredTokens;
use crate::home::session_terms::{Consequences, DueInLog, LogPlace};
use crate::home::takeovers::{IsFirst, Takeovers};
use crate::mail::ClosingSession;
use crate::mail::session::record::{ChangeAtHome, ChangedBy, Fence, SessionRecord, Terms};
use crate::mail::session::{SavedSession, SessionId, SessionPatch, Will};

/// All sessions of a home. A shard without a home has none.
pub struct SessionsAtHome {
    placement: Placement,
    me: ShardId,
    partitions: Vec<Sessions>,
    /// The first second in which a will or an end is due, [`FOREVER_S`] if none is.
    due_s: u32,
    held_bytes: usize,
    /// By session name: the number of claims whose records are in flight to the log.
    claims_in_flight: BTreeMap<Box<[u8]>, u32>,
    takeovers: Takeovers,
    /// The number of partitions whose log lacks the record of this start.
    unrecorded_starts: usize,
    refused_wills: RefusedWills,
    /// Whether the log or a checkpoint of the cluster has sessions although this cluster's format has none.
    has_unread: bool,
}

impl SessionsAtHome {
    /// Empty tables for the home `me`. `is_replicated`: the server is a node of a cluster.
    pub fn new(placement: Placement, me: ShardId, is_replicated: bool) -> SessionsAtHome {
        let all = (me < placement.homes()).then(|| placement.of_home(me));
        let homes = placement.homes().into();
        let sessions = |partition| Sessions::new(partition, homes, is_replicated);
        SessionsAtHome {
            placement,
            me,
            partitions: all.into_iter().flatten().map(sessions).collect(),
            due_s: FOREVER_S,
            held_bytes: 0,
            claims_in_flight: BTreeMap::new(),
            takeovers: Takeovers::default(),
            unrecorded_starts: 0,
            refused_wills: RefusedWills::default(),
            has_unread: false,
        }
    }

    /// Called for each session in a checkpoint, and for each record of a session in the log. If the format of the cluster has no sessions, the caller
    /// skips the session, and a checkpoint of this home would lose it.
    pub(crate) fn note_read(&mut self, world: &World) {
        self.has_unread |= world.is_replicated() && !world.recovers_sessions();
    }

    /// Whether sessions were skipped, as [`note_read`](Self::note_read) says.
    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread
    }

    fn sum_of<N: core::iter::Sum>(&self, value_of: impl Fn(&Sessions) -> N) -> N {
        self.partitions.iter().map(value_of).sum()
    }

    /// The number of sessions, held or away.
    pub fn len(&self) -> u32 {
        self.sum_of(Sessions::len)
    }

    /// Adds the counts and bytes of the sessions.
    pub fn account(&self, accounts: &mut Accounts) {
        for sessions in &self.partitions {
            sessions.account(accounts);
        }
    }

    /// Bytes of the sessions that are away, of the table of takeovers, and of refused wills.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes + self.takeovers.bytes() + self.refused_wills.bytes()
    }

    /// Keeps a will that a limit has refused, to publish it again: in its session if the session is away, otherwise in a list if there is memory for it.
    /// Returns whether the will is kept.
    pub(crate) fn keep_refused(
        &mut self,
        hash: u32,
        refused: RefusedWill,
        (is_away, has_memory): (bool, bool),
        counts: &Admission,
        now: Now,
    ) -> bool {
        let token = refused.will.token;
        let Some(again_s) = self.refused_wills.next_try_s(token, now) else {
            return false;
        };
        let RefusedWill {
            name,
            session,
            will,
        } = refused;
        let at = self.partition_index_here(&name).filter(|_| is_away);
        let rest = match at {
            Some(at) => self.change_sessions(at, |it| {
                it.put_back_will((hash, &name), (will, again_s), counts)
            }),
            None => Some(will),
        };
        let is_kept = rest.is_none() || has_memory;
        if let Some(will) = rest.filter(|_| has_memory) {
            let refused = RefusedWill {
                name,
                session,
                will,
            };
            self.refused_wills.add(again_s, refused, counts);
        }
        is_kept
    }

    /// Forgets the will with this token, because it was published or is given up.
    pub(crate) fn forget_refused_will(&mut self, token: u64) {
        self.refused_wills.forget(token);
    }

    /// Takes a refused will that is to be published again now.
    pub(crate) fn next_refused_will(
        &mut self,
        counts: &Admission,
        now: Now,
    ) -> Option<RefusedWill> {
        self.refused_wills.next_due(counts, now)
    }

    /// Counts a takeover of this session by a connection. `per_minute` takeovers are allowed in a minute.
    pub(crate) fn count_takeover(&mut self, hash: u32, now: Now, per_minute: u32) {
        self.takeovers.count(hash, now.s, per_minute);
    }

    /// Refuses a claim that would be a takeover of this session, if the session was taken over too often.
    pub(crate) fn refuses_takeover(
        &mut self,
        (hash, client): (u32, &[u8]),
        now: Now,
        per_minute: u32,
    ) -> Option<IsFirst> {
        let refusal = self.takeovers.check_refusal(hash, now.s, per_minute)?;
        let partition_index = self.partition_index_here(client)?;
        self.partitions[partition_index]
            .has_holder(hash, client)
            .then_some(refusal)
    }

    /// Forgets takeovers that are long ago. Called once a second.
    pub(crate) fn forget_takeovers(&mut self, now: Now, per_minute: u32) {
        self.takeovers.forget_old(now.s, per_minute);
    }

    /// Calls `change` for the sessions of a partition, and updates `due_s` and `held_bytes`.
    fn change_sessions<T>(
        &mut self,
        partition_index: usize,
        change: impl FnOnce(&mut Sessions) -> T,
    ) -> T {
        let sessions = &mut self.partitions[partition_index];
        let old_bytes = sessions.held_bytes();
        let returned = change(sessions);
        self.held_bytes = self.held_bytes - old_bytes + sessions.held_bytes();
        self.update_due();
        returned
    }

    fn update_due(&mut self) {
        let due_s = self.partitions.iter().map(Sessions::next_due_s);
        self.due_s = due_s.min().unwrap_or(FOREVER_S);
    }

    /// Bytes of the rows and their indexes.
    pub fn bytes(&self) -> usize {
        self.sum_of(Sessions::bytes)
    }

    /// The maximum number of bytes that the sessions take in a snapshot, without wills.
    pub(crate) fn saved_bytes(&self) -> usize {
        self.sum_of(Sessions::saved_bytes)
    }

    /// The index of this session's partition, if the partition belongs to this home.
    fn partition_index_of(&self, id: SessionId) -> Option<usize> {
        let partition = id.partition.into();
        let is_here = self.placement.home_of(partition) == self.me;
        is_here.then(|| self.placement.index_at_home(partition))
    }

    /// See [`Sessions::name_of`].
    pub fn name_of(&self, id: SessionId) -> Option<&[u8]> {
        self.partitions
            .get(self.partition_index_of(id)?)?
            .name_of(id)
    }

    /// The connection that waits for the session of this holder.
    pub fn claim_to(&self, id: SessionId) -> Option<&Claim> {
        self.partitions
            .get(self.partition_index_of(id)?)?
            .waiting_claim(id)
    }

    /// Counts a claim to the session with this name, whose record is in flight to the log.
    pub fn add_claim_in_flight(&mut self, name: &[u8]) {
        *self.claims_in_flight.entry(name.into()).or_default() += 1;
    }

    /// Undoes [`add_claim_in_flight`](Self::add_claim_in_flight), because the claim is in the log now.
    pub fn remove_claim_in_flight(&mut self, name: &[u8]) {
        if let Some(count) = self.claims_in_flight.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.claims_in_flight.remove(name);
            }
        }
    }

    /// The number of claims to the session with this name whose records are in flight to the log. A further record of the session would come after these
    /// claims in the log, so it must not contain the state that the session had before them.
    pub fn claims_in_flight(&self, name: &[u8]) -> u32 {
        self.claims_in_flight.get(name).copied().unwrap_or_default()
    }

    /// See [`Sessions::is_held`].
    pub fn is_held(&self, hash: u32, client: &[u8]) -> bool {
        self.partitions[self.partition_index_of_client(client)].is_held(hash, client)
    }

    /// See [`Sessions::replay`].
    pub(crate) fn replay(
        &mut self,
        record: &SessionRecord<'_>,
        bytes: &[u8],
        world: &World,
        now: Now,
    ) -> bool {
        let Some(partition_index) = self.partition_index_here(record.name) else {
            return true;
        };
        let old_count = self.len();
        let is_valid =
            self.change_sessions(partition_index, |it| it.replay(record, bytes, world, now));
        world.admission.count_sessions(old_count, self.len());
        is_valid
    }

    /// See [`Sessions::replay_waiting`].
    pub(crate) fn replay_waiting(&mut self, world: &World, now: Now) -> u32 {
        let old_count = self.len();
        let all = 0..self.partitions.len();
        let invalid = all
            .map(|at| self.change_sessions(at, |it| it.replay_waiting(world, now)))
            .sum();
        world.admission.count_sessions(old_count, self.len());
        invalid
    }

    /// Called after the log was read: from `now` on, no connection holds any session.
    pub(crate) fn release_held(&mut self, now: Now) {
        for partition_index in 0..self.partitions.len() {
            let has_released =
                self.change_sessions(partition_index, |it| it.release_held_in_log(now));
            self.unrecorded_starts += usize::from(has_released);
        }
    }

    /// Called while the log of this partition is read: from `now` on, no connection holds any of its sessions. Returns the number of sessions with an
    /// invalid record.
    pub(crate) fn release_held_of_partition(
        &mut self,
        partition_index: usize,
        world: &World,
        now: Now,
    ) -> u32 {
        let old_count = self.len();
        let invalid = self.change_sessions(partition_index, |it| {
            let invalid = it.replay_waiting(world, now);
            it.release_held_in_log(now);
            it.take_unrecorded_start();
            invalid
        });
        world.admission.count_sessions(old_count, self.len());
        invalid
    }

    /// Whether the log of this partition lacks the record of this start. From now on it has the record.
    pub(crate) fn take_unrecorded_start(&mut self, partition_index: usize) -> bool {
        // Almost always all starts are recorded, so the count is checked first.
        let is_unrecorded =
            self.unrecorded_starts > 0 && self.partitions[partition_index].take_unrecorded_start();
        self.unrecorded_starts -= usize::from(is_unrecorded);
        is_unrecorded
    }

    /// The indexes of the partitions whose logs may lack the record of this start.
    pub(crate) fn partitions_with_unrecorded_start(&self) -> Range<usize> {
        match self.unrecorded_starts {
            0 => 0..0,
            _ => 0..self.partitions.len(),
        }
    }

    /// Ends all sessions and drops their wills, because the log that was read does not describe their present state. Returns the number of sessions.
    pub(crate) fn end_all(&mut self, world: &World, now: Now) -> u32 {
        let old_count = self.len();
        for partition_index in 0..self.partitions.len() {
            self.change_sessions(partition_index, |it| it.end_all(world, now));
        }
        world.admission.count_sessions(old_count, self.len());
        old_count
    }

    /// The stored forms of the sessions that are away.
    pub(crate) fn stored_states(&self) -> impl Iterator<Item = &[u8]> {
        let of_partition = |sessions: &'_ Sessions| 0..sessions.row_end();
        let rows = self.partitions.iter().map(move |it| (it, of_partition(it)));
        rows.flat_map(|(sessions, rows)| {
            let away = rows.filter(|row| sessions.away_row(*row).is_some());
            away.map(|row| sessions.state_of(row))
        })
    }

    /// See [`Sessions::apply`].
    pub(crate) fn apply(
        &mut self,
        record: &SessionRecord<'_>,
        world: &World,
        place: LogPlace,
    ) -> (Option<Consequences>, Consequences) {
        let Some(partition_index) = self.partition_index_here(record.name) else {
            return (None, Consequences::default());
        };
        let old_count = self.len();
        let consequences =
            self.change_sessions(partition_index, |it| it.apply(record, world, place));
        world.admission.count_sessions(old_count, self.len());
        consequences
    }

    /// Called if a record of this partition says that a node of the cluster is dead, so that its connections hold no sessions any more. Later turns
    /// release these sessions in pieces ([`DueInLog::Released`]). With `at_once` this call releases all of them.
    pub(crate) fn release_writer(
        &mut self,
        partition_index: usize,
        writer: u64,
        now: Now,
        at_once: bool,
    ) {
        self.change_sessions(partition_index, |it| {
            it.release_writer(writer, now, at_once)
        });
    }

    /// See [`Sessions::give_to_holder`].
    pub(crate) fn give_to_holder(
        &mut self,
        (hash, name): (u32, &[u8]),
        holder: (ShardId, ConnId),
    ) -> Option<(SessionId, SavedSession, u64)> {
        let partition_index = self.partition_index_here(name)?;
        self.partitions[partition_index].give_to_holder((hash, name), holder)
    }

    /// See [`Sessions::fence_of`].
    pub(crate) fn fence_of(&self, id: SessionId, by: ChangedBy) -> Option<Fence> {
        self.partitions
            .get(self.partition_index_of(id)?)?
            .fence_of(id, by)
    }

    /// Sets whether this node is the steward of this partition.
    pub(crate) fn set_steward(&mut self, partition_index: usize, is_steward: bool) {
        self.change_sessions(partition_index, |it| it.set_steward(is_steward));
    }

    /// From now on this process releases the keys of retired tokens. Called when the node has read the log of its cluster.
    pub(crate) fn begin_releases(&mut self) {
        let all = self.partitions.iter_mut();
        all.for_each(Sessions::begin_releases);
    }

    /// Makes the steward begin all its work again. Called if a will that this node has published as the steward is not in the log. Wills that are in
    /// the log are not published twice: homes know their keys.
    pub(crate) fn restart_steward_work(&mut self) {
        for partition_index in 0..self.partitions.len() {
            self.change_sessions(partition_index, Sessions::restart_steward_work);
        }
    }

    /// The next work that is due in this partition.
    pub(crate) fn next_due_in_log(
        &mut self,
        partition_index: usize,
        now: Now,
        counts: &Counts,
    ) -> Option<DueInLog> {
        self.change_sessions(partition_index, |it| it.next_due_in_log(now, counts))
    }

    /// See [`Sessions::keep_refused_will`].
    pub(crate) fn keep_refused_will(
        &mut self,
        (hash, name): (u32, &[u8]),
        will: u64,
        now: Now,
    ) -> bool {
        let partition_index = self.partition_index_here(name);
        partition_index.is_some_and(|at| {
            self.change_sessions(at, |it| it.keep_refused_will((hash, name), will, now))
        })
    }

    /// See [`Sessions::publish_retired_will_later`].
    pub(crate) fn publish_retired_will_later(
        &mut self,
        partition_index: usize,
        number: u64,
        now: Now,
    ) {
        self.change_sessions(partition_index, |it| {
            it.publish_retired_will_later(number, now)
        });
    }

    /// See [`Sessions::change_by_steward`].
    pub(crate) fn change_by_steward(
        &self,
        (hash, name): (u32, &[u8]),
        will: u64,
        now: Now,
    ) -> Option<(ChangeAtHome, Fence)> {
        let partition_index = self.partition_index_here(name)?;
        self.partitions[partition_index].change_by_steward((hash, name), will, now)
    }

    /// See [`Sessions::change_by_operator`].
    pub(crate) fn change_by_operator(
        &self,
        (hash, name): (u32, &[u8]),
    ) -> Option<(ChangeAtHome, Fence)> {
        let partition_index = self.partition_index_here(name)?;
        self.partitions[partition_index].change_by_operator((hash, name))
    }

    /// A digest of the state that is the same at all nodes of a cluster.
    pub(crate) fn digest(&self, seed: u64) -> u64 {
        let all = self.partitions.iter();
        all.fold(0, |digest, sessions| digest ^ sessions.digest(seed))
    }

    /// The tokens of the wills of sessions that are away.
    pub(crate) fn will_tokens(&self) -> impl Iterator<Item = u64> {
        self.partitions.iter().flat_map(Sessions::will_tokens)
    }

    fn partition_index_of_client(&self, client: &[u8]) -> usize {
        let partition = self.placement.partition_of(client);
        self.placement.index_at_home(partition)
    }

    /// Whether this client id has a session.
    pub fn has(&self, hash: u32, client: &[u8]) -> bool {
        self.partitions[self.partition_index_of_client(client)].has(hash, client)
    }

    /// See [`Sessions::would_continue`].
    pub fn would_continue(&self, hash: u32, client: &[u8], now: Now) -> bool {
        self.partitions[self.partition_index_of_client(client)].would_continue(hash, client, now)
    }

    /// See [`Sessions::take_will`].
    pub(crate) fn take_will(
        &mut self,
        client: (u32, &[u8]),
        clean: bool,
        counts: &Admission,
        now: Now,
    ) -> Option<Box<Will>> {
        let partition_index = self.partition_index_here(client.1)?;
        self.change_sessions(partition_index, |it| {
            it.take_will(client, clean, counts, now)
        })
    }

    /// See [`Sessions::open`].
    pub fn open(
        &mut self,
        client: (u32, &[u8]),
        claim: Claim,
        counts: &Admission,
        now: Now,
    ) -> OpenOutcome {
        let partition_index = self.partition_index_of_client(client.1);
        self.change_sessions(partition_index, |it| it.open(client, claim, counts, now))
    }

    /// See [`Sessions::close`].
    pub fn close(&mut self, session: ClosingSession, counts: &Admission, now: Now) -> CloseOutcome {
        match self.partition_index_of(session.id) {
            Some(at) => self.change_sessions(at, |it| it.close(session, counts, now)),
            None => CloseOutcome::Stale,
        }
    }

    /// The number of rows of all partitions.
    pub fn row_count(&self) -> u32 {
        self.sum_of(Sessions::row_end)
    }

    /// Calls `visit` with the sessions in these rows that are away and that this process may end. Rows are numbered over all partitions.
    pub fn for_each_absent(
        &self,
        rows: Range<u32>,
        counts: &Admission,
        mut visit: impl FnMut(AbsentSession),
    ) {
        self.for_each_row(rows, |sessions, row| {
            sessions
                .evictable(row, counts)
                .into_iter()
                .for_each(&mut visit);
        });
    }

    /// Calls `visit` with the sessions in these rows that are away, as an operator sees them.
    pub fn for_each_absent_view(&self, rows: Range<u32>, mut visit: impl FnMut(AbsentView<'_>)) {
        self.for_each_row(rows, |sessions, row| {
            sessions.absent_view(row).into_iter().for_each(&mut visit);
        });
    }

    fn for_each_row(&self, mut rows: Range<u32>, mut visit: impl FnMut(&Sessions, u32)) {
        let mut first_row = 0;
        for sessions in &self.partitions {
            let end = first_row + sessions.row_end();
            while rows.start < end.min(rows.end) {
                visit(sessions, rows.start - first_row);
                rows.start += 1;
            }
            first_row = end;
        }
    }

    /// See [`Sessions::evict`].
    pub fn evict(&mut self, id: SessionId, counts: &Admission) -> bool {
        let partition_index = self.partition_index_of(id);
        partition_index.is_some_and(|at| self.change_sessions(at, |it| it.evict(id, counts)))
    }

    /// The session with this name, if it belongs to this home and its client is away.
    pub fn find_absent(&self, hash: u32, client: &[u8]) -> Option<AbsentView<'_>> {
        let partition_index = self.partition_index_here(client)?;
        self.partitions[partition_index].find_absent(hash, client)
    }

    /// See [`Sessions::evict_named`].
    pub fn evict_named(&mut self, hash: u32, client: &[u8], counts: &Admission) -> bool {
        let partition_index = self.partition_index_here(client);
        partition_index
            .is_some_and(|at| self.change_sessions(at, |it| it.evict_named(hash, client, counts)))
    }

    /// The index of this client's partition, if the partition belongs to this home.
    fn partition_index_here(&self, client: &[u8]) -> Option<usize> {
        let partition = self.placement.partition_of(client);
        let is_here = self.placement.home_of(partition) == self.me;
        is_here.then(|| self.placement.index_at_home(partition))
    }

    /// Bytes of evicted sessions that have not ended yet.
    pub fn evicted_bytes(&self) -> usize {
        self.sum_of(Sessions::evicted_bytes)
    }

    /// Whether a will or the end of a session is due.
    pub fn is_due(&self, now: Now) -> bool {
        self.due_s <= now.unix_s
    }

    /// The index of the partition in which a will or an end is due first, if it is due now.
    pub fn due_partition(&self, now: Now) -> Option<usize> {
        if !self.is_due(now) {
            return None;
        }
        let mut all = self.partitions.iter();
        all.position(|sessions| sessions.next_due_s() == self.due_s)
    }

    /// See [`Sessions::next_due_name`].
    pub fn next_due_name(&self, partition_index: usize) -> Option<&[u8]> {
        self.partitions[partition_index].next_due_name()
    }

    /// See [`Sessions::record_of_terms`].
    pub(crate) fn record_of_terms(
        &self,
        (hash, name): (u32, &[u8]),
        now: Now,
    ) -> Option<(SessionPatch, Terms)> {
        let partition_index = self.partition_index_here(name)?;
        self.partitions[partition_index].record_of_terms((hash, name), now)
    }

    /// See [`Sessions::take_due`]. `None` if nothing is due now in this partition.
    pub fn take_due(
        &mut self,
        partition_index: usize,
        counts: &Admission,
        now: Now,
    ) -> Option<(Option<Box<Will>>, Option<SavedSession>)> {
        let is_due = self.partitions[partition_index].next_due_s() <= now.unix_s;
        is_due.then(|| {
            self.change_sessions(partition_index, |sessions| sessions.take_due(counts, now))
        })?
    }

    /// Counts the sessions that were restored from a snapshot, each for its client and its party.
    pub(crate) fn count_restored(&self, counts: &Admission) {
        counts.count_sessions(0, self.len());
        self.partitions
            .iter()
            .for_each(|it| it.count_restored(counts));
    }

    /// Writes the sessions from this partition and this row on. `head_s` is the second of the snapshot's head. Returns the partition and the row to
    /// continue with, if sessions are left.
    pub(crate) fn save(
        &self,
        (first, mut row): (usize, u64),
        head_s: u32,
        block: &mut Block<'_>,
    ) -> Option<(usize, u64)> {
        let partitions = self.placement.of_home(self.me);
        for (partition_index, partition) in partitions.enumerate().skip(first) {
            if row == 0 {
                block.record(kind::SESSIONS).number(u64::from(partition));
            }
            if let Some(next) =
                self.partitions[partition_index].save(core::mem::take(&mut row), head_s, block)
            {
                // If the block was full before the first row, the next block begins with the partition again.
                return Some((partition_index, next));
            }
        }
        None
    }

    /// Writes the retired tokens of a cluster, from this partition and this token on. Returns the partition and the token to continue with, if tokens
    /// are left.
    pub(crate) fn save_retired(
        &self,
        (first, mut from): (usize, usize),
        block: &mut Block<'_>,
    ) -> Option<(usize, usize)> {
        for (partition_index, sessions) in self.partitions.iter().enumerate().skip(first) {
            if let Some(next) = sessions.save_retired(core::mem::take(&mut from), block) {
                return Some((partition_index, next));
            }
        }
        None
    }

    /// Restores a retired token from a snapshot.
    pub(crate) fn restore_retired(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        world: &World,
    ) -> Result<(), Damaged> {
        let partition = from.number16()?;
        let saved = RetiredTokens::read(from)?;
        if partition >= world.partitions || origin.placement.home_of(partition) != origin.home {
            return Err(Damaged("a token belongs elsewhere"));
        }
        if self.placement.home_of(partition) == self.me {
            let partition_index = self.placement.index_at_home(partition);
            self.change_sessions(partition_index, |it| it.restore_retired(saved, world));
        }
        Ok(())
    }

    /// Restores a session into the next row of its client's partition. The snapshot was written `snapshot_age_s` ago.
    pub(crate) fn restore(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        world: &World,
        now: Now,
        snapshot_age_s: u32,
    ) -> Result<(), Damaged> {
        let saved = Sessions::read(from)?;
        self.note_read(world);
        let is_restored = origin.restores_local || world.recovers_sessions();
        if origin.takes_over(saved.client, self.placement, self.me)? && is_restored {
            let partition = self.placement.partition_of(saved.client);
            let partition_index = self.placement.index_at_home(partition);
            let life = (origin.epoch, world.epoch);
            self.change_sessions(partition_index, |it| {
                it.restore(saved, world, life, now, snapshot_age_s)
            })?;
        }
        Ok(())
    }

    /// Restores a row without a session in this partition.
    pub(crate) fn restore_empty_row(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        partition: u16,
    ) -> Result<(), Damaged> {
        let (serial, life) = (from.number16()?, from.byte()?);
        if self.placement.home_of(partition) == self.me && origin.restores_local {
            let partition_index = self.placement.index_at_home(partition);
            self.partitions[partition_index].restore_empty_row(serial, life);
        }
        Ok(())
    }

    /// Called after all records were read: frees the rows without a session.
    pub(crate) fn free_empty_rows(&mut self) {
        self.partitions
            .iter_mut()
            .for_each(Sessions::free_empty_rows);
    }
}
