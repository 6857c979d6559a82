//! The bytes of sessions whose clients are away: the charge for them, its party, and the sessions that end when memory is short.
//!
//! Two sums. The account of the process has what a home's tables hold ([`Sessions::held_bytes`]). The counters by party
//! ([`Counts::change_absent`](crate::budget::admission::Counts::change_absent)) have besides what all homes need for a session's subscriptions, as if nobody shared them: they say who
//! holds much, and are at once the same for all shards.
//!
//! Invariant: a session counts for its party exactly while it is away.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::wills::Delayed;
use super::{FOREVER_S, Hold, Row, Sessions};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client, Party};
use crate::mail::session::{EncodedSession, SavedSession, SessionId, Will};
use crate::store::blobs::{Blob, Blobs, Placed, occupied};
use crate::store::shared::{SHARED_BESIDE, Shared, Slice};
use crate::store::slab::{Side, Slot};

/// States from this length on have an allocation of their own, so that their bytes are free again when the session goes.
const OWN_MIN: usize = 512;
/// A session's row and its bucket.
pub(super) const ROW_BYTES: usize = size_of::<Row>() + 4;
/// Of each session with a client that is away: these, its state, and an entry in the order of ends, a tree with leaves that are half full.
const ROWS_BYTES: usize = ROW_BYTES + size_of::<Slot<Away>>() + 16;
/// Bytes of a list of payloads, without the payloads.
const PAYLOADS_BYTES: usize = 128;
/// An arena that has become empty is given back when it is larger than this: a few sessions come and go without it.
const EMPTY_MAX: usize = 1 << 20;
/// The end of a session that is evicted: no clock is there any more.
const EVICTED_S: u32 = 0;

/// A session that is away.
pub struct Absent {
    /// The party that is charged for it.
    pub party: Party,
    /// Its name for [`Sessions::evict`].
    pub id: SessionId,
    /// Bytes that its end sets free at this home; of shared messages its part.
    pub bytes: usize,
}

/// A session that is away, as an operator sees it.
pub struct Left<'s> {
    /// The name of the session: the client id, and the user where there is one.
    pub name: &'s [u8],
    /// When it ends, in counted seconds; [`FOREVER_S`]: never.
    pub expires_s: u32,
    /// Bytes that it occupies, without those of large messages.
    pub bytes: usize,
    /// Its subscriptions and messages, in their stored form.
    pub state: &'s [u8],
}

/// The state that a session left behind when its client went away.
#[derive(Default)]
pub(super) struct Away {
    pub state: Blob,
    pub state_bytes: u32,
    pub will: Option<Box<Delayed>>,
    pub expires_s: u32,
    /// The client that it is counted for.
    pub owner: Client,
}

const _: () = assert!(size_of::<Away>() == 24);

impl Away {
    pub fn will_bytes(&self) -> usize {
        let will = self.will.as_ref();
        will.map_or(0, |delayed| delayed.bytes())
    }

    /// When the will is due or the session is forgotten, whichever is first.
    pub fn due_s(&self) -> u32 {
        let will_s = self.will.as_ref().map_or(FOREVER_S, |will| will.due_s);
        self.expires_s.min(will_s)
    }
}

impl Placed for Slot<Away> {
    fn place(&mut self) -> Option<&mut Blob> {
        match self {
            Slot::Used(away) => Some(&mut away.state),
            Slot::Free(_) => None,
        }
    }
}

/// The states of sessions that are away.
#[derive(Default)]
pub(super) struct AbsentStates {
    pub rows: Side<Away>,
    pub blobs: Blobs,
    /// Payloads of large messages that clients who are away have not acknowledged.
    pub payloads: BTreeMap<u32, Vec<Slice>>,
    pub state_bytes: usize,
    pub will_bytes: usize,
    /// Of their client ids.
    pub name_bytes: usize,
}

/// Sessions that are evicted and have not ended yet, with the bytes that their ends set free.
#[derive(Default)]
pub(super) struct Evicted {
    sessions: BTreeMap<u32, usize>,
    /// The sum of these: it is asked for before each eviction.
    bytes: usize,
}

impl Sessions {
    pub(super) fn insert_state(&mut self, state: Box<[u8]>, counts: &Admission) -> Blob {
        self.states.blobs.compact(self.states.rows.rows_mut());
        match state.len() < OWN_MIN || self.states.blobs.is_full() {
            true => self.states.blobs.insert(&[&state], counts),
            false => self.states.blobs.insert_shared(Shared::new(state, counts)),
        }
    }

    /// Keeps what the session in this row left behind.
    pub(super) fn insert_away(&mut self, row: u32, away: Away, payloads: Vec<Slice>) {
        self.states.state_bytes += away.state_bytes as usize;
        self.states.will_bytes += away.will_bytes();
        let due_s = away.due_s();
        if due_s != FOREVER_S {
            self.due.insert((due_s, row));
        }
        let id = self.states.rows.insert(away);
        if !payloads.is_empty() {
            self.states.payloads.insert(id, payloads);
        }
        let left = self.rows.get_mut(row);
        (left.held, left.holder) = (Hold::Away, id);
        self.states.name_bytes += self.clients.get(left.client).len();
    }

    /// Takes what the session in this row left behind.
    pub(super) fn take_away(
        &mut self,
        id: u32,
        counts: &Admission,
        now: Now,
    ) -> (SavedSession, Option<Box<Will>>, Client) {
        let (party, bytes) = self.charged(id, counts);
        counts.change_absent(party, bytes, 0);
        let row = self.rows.get(id);
        let holder = row.holder;
        self.states.name_bytes -= self.clients.get(row.client).len();
        self.evicted.bytes -= self.evicted.sessions.remove(&id).unwrap_or_default();
        let away = self.states.rows.remove(holder);
        self.due.remove(&(away.due_s(), id));
        let len = away.state_bytes as usize;
        self.states.state_bytes -= len;
        self.states.will_bytes -= away.will_bytes();
        let state = EncodedSession {
            bytes: self.states.blobs.get(away.state)[..len].into(),
            payloads: self.states.payloads.remove(&holder).unwrap_or_default(),
        };
        self.states.blobs.remove(away.state);
        self.give_back();
        let expiry_s = match away.expires_s {
            FOREVER_S => FOREVER_S,
            expires_s => expires_s.saturating_sub(now.unix_s + 1),
        };
        let will = away.will.map(|delayed| delayed.will);
        (SavedSession { expiry_s, state }, will, away.owner)
    }

    /// Bytes of what the sessions that are away left behind, with their rows and names.
    pub fn held_bytes(&self) -> usize {
        self.states.blobs.bytes()
            + self.states.blobs.own() as usize * SHARED_BESIDE
            + self.states.will_bytes
            + self.states.name_bytes
            + self.states.rows.len() as usize * ROWS_BYTES
            + self.states.payloads.len() * PAYLOADS_BYTES
    }

    /// Bytes of a session that is away, without those of its large messages.
    fn bytes_of(&self, row: &Row) -> usize {
        let away = self.states.rows.get(row.holder);
        let name = self.clients.get(row.client).len();
        ROWS_BYTES + name + occupied(away.state_bytes as usize) + away.will_bytes()
    }

    /// The party that is charged for the session in this row, which is away, and for how many bytes.
    pub(super) fn charged(&self, id: u32, counts: &Admission) -> (Party, usize) {
        let row = self.rows.get(id);
        let away = self.states.rows.get(row.holder);
        let party = counts.party_of_session(self.clients.get(row.client), away.owner);
        let state = &self.states.blobs.get(away.state)[..away.state_bytes as usize];
        (party, self.bytes_of(row) + (self.weigh)(state, self.homes))
    }

    /// Rows of the table: all of them have lower numbers.
    pub fn end(&self) -> u32 {
        self.rows.end()
    }

    /// The session in this row, if there is one and it is away.
    fn away(&self, id: u32) -> Option<&Row> {
        let row = self.rows.get(id);
        (row.client != Blob::NONE && row.held == Hold::Away).then_some(row)
    }

    /// The session in this row as an operator sees it, if there is one and it is away.
    pub(super) fn left(&self, id: u32) -> Option<Left<'_>> {
        let row = self.away(id)?;
        let away = self.states.rows.get(row.holder);
        Some(Left {
            name: self.clients.get(row.client),
            expires_s: away.expires_s,
            bytes: self.bytes_of(row),
            state: &self.states.blobs.get(away.state)[..away.state_bytes as usize],
        })
    }

    /// The session with this name, if there is one and it is away.
    pub(super) fn left_named(&self, hash: u32, client: &[u8]) -> Option<Left<'_>> {
        self.left(self.find(hash, client)?)
    }

    /// The same session is due to end now. Says whether there was one.
    pub(super) fn evict_named(&mut self, hash: u32, client: &[u8], counts: &Admission) -> bool {
        let found = self.find(hash, client);
        let absent = found.and_then(|id| self.absent(id, counts));
        absent.is_some_and(|absent| self.evict(absent.id, counts))
    }

    /// The session in this row, if there is one and it is away.
    pub fn absent(&self, id: u32, counts: &Admission) -> Option<Absent> {
        let row = self.away(id)?;
        let owner = self.states.rows.get(row.holder).owner;
        let payloads = self.states.payloads.get(&row.holder);
        let payloads = payloads.into_iter().flatten().map(Slice::weight);
        Some(Absent {
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

    /// This session is due to end now, as if it had expired. Says whether it still was away.
    pub fn evict(&mut self, id: SessionId, counts: &Admission) -> bool {
        let is = |row: &&Row| (row.serial, row.life) == (id.serial, id.life);
        let there = self.rows.try_get(id.row).filter(is);
        let Some(holder) = there.map(|row| row.holder) else {
            return false;
        };
        let Some(Absent { bytes, .. }) = self.absent(id.row, counts) else {
            return false;
        };
        if self.evicted.sessions.contains_key(&id.row) {
            return false;
        }
        self.evicted.sessions.insert(id.row, bytes);
        self.evicted.bytes += bytes;
        let away = self.states.rows.get_mut(holder);
        self.due.remove(&(away.due_s(), id.row));
        away.expires_s = EVICTED_S;
        self.due.insert((EVICTED_S, id.row));
        true
    }

    /// Bytes of sessions that are evicted and have not ended yet.
    pub fn evicted_bytes(&self) -> usize {
        self.evicted.bytes
    }

    /// The last session that was away is gone: gives back tables that have grown large.
    fn give_back(&mut self) {
        if self.states.rows.len() == 0
            && self.states.blobs.reserved_bytes() + self.states.rows.bytes() > EMPTY_MAX
        {
            (self.states.blobs, self.states.rows) = (Blobs::default(), Side::default());
        }
    }
}
