//! The MQTT sessions of a partition (MQTT 5.0 section 4.1). A client id belongs to a partition in the same way as a topic name. A session is *held*
//! by a connection, or it is *away*: its client is disconnected, and this table keeps the session's [stored form](crate::mail::session::stored).
//!
//! A session is not a queue: it contains positions in the logs of topics. The logs keep the messages that are published while the session is away.
//!
//! Invariants:
//! * A client id has at most one row. A row has at most one holder.
//! * If a connection claims a session that another connection holds, the claimant waits until the holder has given the session back.
//! * Each holder has another serial number than the holder before. A request with an earlier serial number is ignored.
//!
//! In a cluster this table keeps the stored form of every session, held or not, and treats all rows as away. The log says which connection holds a
//! session (`replicated.rs`).
//!
//! Deliberately not here: the consequences of a session's end. The shard publishes the will and releases the logs (`shard/sessions.rs`).
//!
//! A *home* is the part of a shard that keeps topics.

mod absent;
mod at_home;
mod recorded;
mod replicated;
mod snapshot;

use super::session_terms::{DelayedWill, Replicas, second_after};
use absent::{AbsentStates, AwaySession, Evicted};
use recorded::Unapplied;

pub use absent::AbsentView;
pub use at_home::SessionsAtHome;

use crate::mail::session::{SavedSession, SessionId, Will};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

use crate::base::ids::{ConnId, PartitionId, ShardId};
use crate::base::planted::{self, Fault};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client};
use crate::budget::stats::Accounts;
use crate::mail::{ClosingSession, RecordedClaim, ReplyTo};
use crate::store::blobs::{Blob, BlobOwner};
use crate::store::index::{Index, chained};
use crate::store::names::Names;
use crate::store::slab::{NONE, Slab, SlabRow};

/// A session that never expires by itself (section 3.1.2.11.2).
pub const FOREVER_S: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldState {
    /// A connection holds the session.
    Connected,
    /// No connection holds the session. In a cluster all rows say this, see [`Replica`](super::session_terms::Replica).
    Away,
    /// A connection holds the session, and must give it back to a claimant.
    Claimed,
}

struct SessionRow {
    /// The keyed hash of the client id.
    hash: u32,
    /// The next row with the same bucket of the index.
    next: u32,
    client: Blob,
    /// The slot of the holder's connection. If the session is away, its row in [`AbsentStates::rows`].
    holder: u32,
    /// The generation of the holder's connection.
    generation: u16,
    /// The shard of the holder's connection.
    shard: ShardId,
    /// Changes with each holder and with each use of the row, and wraps.
    serial: u16,
    hold_state: HoldState,
    /// Changes with each session that uses the row, and wraps.
    life: u8,
}

const _: () = assert!(size_of::<SessionRow>() == 24);

impl SlabRow for SessionRow {
    fn vacant(next: u32) -> Self {
        SessionRow {
            hash: 0,
            next,
            client: Blob::NONE,
            holder: NONE,
            generation: 0,
            shard: 0,
            serial: 0,
            hold_state: HoldState::Away,
            life: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
    fn inherit(&mut self, former: &Self) {
        self.serial = former.serial.wrapping_add(1);
        self.life = former.life.wrapping_add(1);
    }
}

impl BlobOwner for SessionRow {
    fn blob_mut(&mut self) -> Option<&mut Blob> {
        Some(&mut self.client)
    }
}

chained!(SessionRow);

/// A connection's claim to a session. Another connection may hold the session.
pub struct Claim {
    /// The shard of the connection.
    pub shard: ShardId,
    /// The connection.
    pub to: ReplyTo,
    /// Whether the client asks for Clean Start: the former session ends, and a new one begins.
    pub clean: bool,
    /// Seconds that the session outlives the connection.
    pub expiry_s: u32,
    /// The client that is charged for the session.
    pub owner: Client,
    /// The other fields of the claim's record, if the session is recorded.
    pub recorded: Option<Box<RecordedClaim>>,
}

/// Counts another session with this name for this client. Returns false if a limit of sessions is reached.
fn try_count_session(owner: Client, name: &[u8], counts: &Admission) -> bool {
    counts.has_room_for_session() && counts.enter_session(owner, name).is_ok()
}

/// The outcome of a claim.
pub enum OpenOutcome {
    /// The claimant holds a session now. The caller releases the logs of the session that has ended, answers the claimant, and publishes the will.
    Opened {
        /// The session and its new holder.
        id: SessionId,
        /// The state of the session that continues; `None` if a new session begins.
        kept: Option<SavedSession>,
        /// The state of the session that ends.
        ended: Option<SavedSession>,
        /// The will that is due.
        will: Option<Box<Will>>,
        /// The token of a delayed will that is dropped, since its client is back; 0 if there is none. The process before may have published this will
        /// and crashed before it recorded so.
        dropped_will: u64,
    },
    /// Another connection holds the session. The claimant waits until that connection gives it back.
    Claimed {
        /// The holder, if it must still be told to give the session back.
        holder: Option<(ShardId, ConnId)>,
        /// A claimant that has waited for the session. The new claim replaces it.
        superseded: Option<Claim>,
    },
    /// There is no room for another session.
    Full,
}

/// All sessions of a partition.
pub struct Sessions {
    partition: PartitionId,
    /// The number of homes of the server.
    home_count: usize,
    rows: Slab<SessionRow>,
    index: Index,
    clients: Names,
    states: AbsentStates,
    /// Sessions that are away, with the second in which their will or their end is due.
    due_rows: BTreeSet<(u32, u32)>,
    evicted: Evicted,
    waiting_claims: BTreeMap<u32, Claim>,
    /// While a log is read: by row, the sessions that a connection held when the log was written, with the seconds for which each of them outlives
    /// its connection.
    held_in_log: BTreeMap<u32, u32>,
    /// Whether the log must still get the record that this process has begun: connections of the process before held sessions until then.
    is_start_unrecorded: bool,
    /// While a log is read: records that are not applied yet.
    unapplied: Unapplied,
    /// The part of the state that only a node of a cluster has.
    replicas: Option<Box<Replicas>>,
}

impl Sessions {
    /// An empty table for this partition of a server with this number of homes. `is_replicated`: the server is a node of a cluster.
    pub fn new(partition: PartitionId, homes: usize, is_replicated: bool) -> Sessions {
        Sessions {
            partition,
            home_count: homes,
            replicas: is_replicated.then(Box::default),
            rows: Slab::default(),
            index: Index::default(),
            clients: Names::default(),
            states: AbsentStates::default(),
            due_rows: BTreeSet::new(),
            evicted: Evicted::default(),
            waiting_claims: BTreeMap::new(),
            held_in_log: BTreeMap::new(),
            is_start_unrecorded: false,
            unapplied: Unapplied::default(),
        }
    }

    /// The number of sessions, held or away.
    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    /// Adds the counts and bytes of the partition's sessions.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.sessions += self.rows.len();
        accounts.away_sessions += match &self.replicas {
            Some(replicas) => self.rows.len() - replicas.held_count,
            None => self.states.rows.len(),
        };
        accounts.session_bytes += self.states.state_bytes;
        accounts.name_bytes += self.clients.bytes().saturating_sub(self.states.name_bytes);
    }

    /// Bytes of the rows and their index, without the bytes that [`held_bytes`](Self::held_bytes) counts.
    pub fn bytes(&self) -> usize {
        let all = self.rows.bytes() + self.index.bytes();
        all.saturating_sub(self.states.rows.len() as usize * absent::ROW_BYTES)
    }

    fn find(&self, hash: u32, client: &[u8]) -> Option<u32> {
        let is_wanted = |row: &SessionRow| self.clients.get(row.client) == client;
        self.index.find(&self.rows, hash, is_wanted)
    }

    /// The client id of this holder's session; `None` if this holder does not hold the session any more.
    pub fn name_of(&self, id: SessionId) -> Option<&[u8]> {
        let row = self.rows.try_get(id.row)?;
        let is_held = row.hold_state != HoldState::Away || self.has_holder_here(id.row);
        let holds = is_held && (row.serial, row.life) == (id.serial, id.life);
        holds.then(|| self.clients.get(row.client))
    }

    /// The connection that waits for the session of this holder.
    pub fn waiting_claim(&self, id: SessionId) -> Option<&Claim> {
        self.waiting_claims.get(&id.row)
    }

    /// Whether this client id has a session.
    pub fn has(&self, hash: u32, client: &[u8]) -> bool {
        self.find(hash, client).is_some()
    }

    /// Whether a claim of this client id would continue a session. An expired session does not continue, even if it has not ended yet.
    pub fn would_continue(&self, hash: u32, client: &[u8], now: Now) -> bool {
        let found = self.find(hash, client);
        found.is_some_and(|id| !self.has_expired(id, now))
    }

    /// Whether the session in this row is away and has expired.
    fn has_expired(&self, id: u32, now: Now) -> bool {
        let away = self.away_row(id);
        away.is_some_and(|row| self.states.rows.get(row.holder).expires_s <= now.unix_s)
    }

    /// Whether a connection holds the session of this client id. Only for a single node; [`has_holder`](Self::has_holder) answers for clusters too.
    pub fn is_held(&self, hash: u32, client: &[u8]) -> bool {
        let found = self.find(hash, client);
        found.is_some_and(|id| self.rows.get(id).hold_state != HoldState::Away)
    }

    /// Whether a connection holds the session of this client id, at any node of a cluster.
    pub fn has_holder(&self, hash: u32, client: &[u8]) -> bool {
        let Some(id) = self.find(hash, client) else {
            return false;
        };
        match self.replica(id) {
            Some(replica) => replica.holder_terms.is_some(),
            None => self.rows.get(id).hold_state != HoldState::Away,
        }
    }

    /// Gives the session of this client id to the connection, or makes the connection wait for it. `counts` limits the number of sessions.
    pub fn open(
        &mut self,
        (hash, client): (u32, &[u8]),
        claim: Claim,
        counts: &Admission,
        now: Now,
    ) -> OpenOutcome {
        let Some(id) = self.find(hash, client) else {
            if !try_count_session(claim.owner, client, counts) {
                return OpenOutcome::Full;
            }
            let mut row = SessionRow::vacant(NONE);
            row.hash = hash;
            self.clients.compact(&mut self.rows);
            row.client = self.clients.insert(client);
            let id = self.rows.insert(row);
            self.index.insert(&mut self.rows, id);
            return self.hand_over(id, &claim, None, None);
        };
        let has_expired = self.has_expired(id, now);
        let row = self.rows.get_mut(id);
        if row.hold_state == HoldState::Away {
            let claim = Claim {
                clean: claim.clean || has_expired,
                ..claim
            };
            let is_due = self.is_will_due(id, now);
            let (kept, will, owner) = self.take_stored(id, counts, now);
            counts.move_session(owner, claim.owner);
            let will = will.map(|mut will| {
                if is_due {
                    will.delay_s = 0;
                }
                will
            });
            return self.hand_over(id, &claim, Some(kept), will);
        }
        if planted::is(Fault::HastyTakeover) {
            return self.hand_over(id, &claim, None, None);
        }
        let was_told = row.hold_state == HoldState::Claimed;
        row.hold_state = HoldState::Claimed;
        let holder = ConnId {
            slot: row.holder,
            generation: row.generation,
        };
        let holder = (!was_told).then_some((row.shard, holder));
        let superseded = self.waiting_claims.insert(id, claim);
        OpenOutcome::Claimed { holder, superseded }
    }

    /// Gives the session to the claimant. A will with a delay is due only if the former session ends now: it has no state, or the claimant asks for
    /// Clean Start (section 3.1.3.2.2).
    fn hand_over(
        &mut self,
        id: u32,
        claim: &Claim,
        kept: Option<SavedSession>,
        will: Option<Box<Will>>,
    ) -> OpenOutcome {
        let row = self.rows.get_mut(id);
        row.hold_state = HoldState::Connected;
        (row.shard, row.holder, row.generation) = (claim.shard, claim.to.slot, claim.to.generation);
        row.serial = row.serial.wrapping_add(1);
        let id = SessionId {
            row: id,
            serial: row.serial,
            life: row.life,
            partition: self.partition as u8,
        };
        let has_ended = claim.clean || kept.is_none();
        let (will, dropped_will) = match will {
            Some(will) if !has_ended && will.delay_s > 0 => (None, Some(will)),
            will => (will, None),
        };
        let (kept, ended) = if claim.clean {
            (None, kept)
        } else {
            (kept, None)
        };
        OpenOutcome::Opened {
            id,
            kept,
            ended,
            will,
            dropped_will: dropped_will.map_or(0, |will| will.token),
        }
    }

    /// Takes the session back from its holder.
    pub fn close(&mut self, session: ClosingSession, counts: &Admission, now: Now) -> CloseOutcome {
        let ClosingSession {
            id,
            owner,
            kept,
            will,
            ..
        } = session;
        let holds = |row: &SessionRow| row.serial == id.serial && row.hold_state != HoldState::Away;
        if !self.rows.try_get(id.row).is_some_and(holds) {
            return CloseOutcome::Stale;
        }
        let row = self.rows.get_mut(id.row);
        if row.hold_state == HoldState::Claimed
            && let Some(claim) = self.waiting_claims.remove(&id.row)
        {
            counts.move_session(owner, claim.owner);
            let opening = self.hand_over(id.row, &claim, kept, will);
            return CloseOutcome::Next(claim, opening);
        }
        let Some(kept) = kept else {
            self.remove_session(id.row, owner, counts);
            return CloseOutcome::Done(will);
        };
        let (due_will, will) = match will {
            Some(will) if will.delay_s == 0 => (Some(will), None),
            will => (None, will),
        };
        let expires_s = if kept.expiry_s == FOREVER_S {
            FOREVER_S
        } else {
            second_after(now, kept.expiry_s)
        };
        let away = AwaySession {
            state_bytes: kept.state.bytes.len() as u32,
            state: self.insert_state(kept.state.bytes, counts),
            will: will.map(|will| DelayedWill::new(will, now)),
            expires_s,
            owner,
        };
        self.store_away(id.row, away, kept.state.payloads);
        let (party, bytes) = self.party_and_bytes(id.row, counts);
        counts.change_absent(party, 0, bytes);
        CloseOutcome::Done(due_will)
    }

    /// Removes a session that has ended, and its count for `owner` and for its user.
    fn remove_session(&mut self, id: u32, owner: Client, counts: &Admission) {
        let name = self.clients.get(self.rows.get(id).client);
        counts.leave_session(owner, name);
        self.remove_row(id);
    }

    fn remove_row(&mut self, id: u32) {
        self.index.remove(&mut self.rows, id);
        let row = self.rows.remove(id);
        self.clients.remove(row.client);
    }
}

/// The outcome of giving a session back.
pub enum CloseOutcome {
    /// The session is away or has ended. The will is due, if there is one.
    Done(Option<Box<Will>>),
    /// A claimant has waited for the session, and holds the session now.
    Next(Claim, OpenOutcome),
    /// The connection does not hold the session. Nothing has changed. Only a bug causes this.
    Stale,
}
