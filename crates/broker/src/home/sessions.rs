//! MQTT sessions in the partition of their client id (MQTT 5.0 section 4.1): the connection that holds a session now, or the
//! state that the session left behind when its client went away.
//!
//! A session is not a queue. While its client is away it is its subscriptions with their positions, and the messages
//! that were sent and not yet acknowledged, as the carrier of its connection wrote them down ([`Kept::state`]); the
//! messages that come meanwhile are in the logs.
//!
//! Invariants: a client id has one row at most, and a row one holder; a claimant of a session that another connection
//! holds gets it only after the holder gave it back. A serial names one holder: mail from a former one is ignored. The
//! home of sessions knows neither connections nor topics; the shard does what follows from an end (sends a will,
//! releases logs).

mod absent;
mod at_home;
mod snapshot;

pub use at_home::SessionsAtHome;

use crate::mail::session::Kept;
use crate::mail::session::{SessionId, Will};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::base::ids::{ConnId, PartitionId, ShardId};
use crate::base::planted::{self, Fault};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client};
use crate::budget::stats::Accounts;
use crate::mail::{Farewell, ReplyTo};
use crate::store::blobs::{Blob, Blobs, Names};
use crate::store::index::{Index, chained};
use crate::store::shared::Slice;
use crate::store::slab::{NONE, Side, Slab, Vacant};

/// A session that never expires by itself (section 3.1.2.11.2).
pub const FOREVER_S: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// By a connection.
    Connected,
    /// By nobody: it is away.
    Away,
    /// By a connection that was told to give it back to a claimant.
    Claimed,
}

struct Row {
    hash: u32,
    next: u32,
    client: Blob,
    /// The holder's connection, or what the session left behind.
    holder: u32,
    generation: u16,
    shard: ShardId,
    serial: u16,
    held: Hold,
    life: u8,
}

const _: () = assert!(size_of::<Row>() == 24);

impl Vacant for Row {
    fn vacant(next: u32) -> Self {
        Row {
            hash: 0,
            next,
            client: Blob::NONE,
            holder: NONE,
            generation: 0,
            shard: 0,
            serial: 0,
            held: Hold::Away,
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

chained!(Row);

#[derive(Default)]
struct Away {
    state: Blob,
    state_bytes: u32,
    will: Option<Box<Delayed>>,
    expires_s: u32,
    /// The client that it is counted for.
    owner: Client,
}

const _: () = assert!(size_of::<Away>() == 24);

/// A will that is sent when its delay is over, unless its client comes back before.
struct Delayed {
    will: Box<Will>,
    due_s: u32,
}

impl Away {
    fn will_bytes(&self) -> usize {
        let will = self.will.as_ref();
        will.map_or(0, |delayed| size_of::<Delayed>() + delayed.will.bytes())
    }

    /// When the will is due or the session is forgotten, whichever is first.
    fn due_s(&self) -> u32 {
        let will_s = self.will.as_ref().map_or(FOREVER_S, |will| will.due_s);
        self.expires_s.min(will_s)
    }
}

/// A connection's claim to a session, which another may hold.
pub struct Claim {
    /// The carrier.
    pub shard: ShardId,
    /// The connection.
    pub to: ReplyTo,
    /// Whether the session begins anew.
    pub clean: bool,
    /// The client that the session will be counted for.
    pub owner: Client,
}

/// Takes room for another session of this client, if there is some.
fn room_for_session(owner: Client, counts: &Admission) -> bool {
    counts.has_room_for_session() && counts.enter_session(owner).is_ok()
}

/// The outcome of a claim.
pub enum Opening {
    /// The claimant has the session: the former one with what it left behind, or a new one, for which the former ends.
    /// Before that the end is dealt with, and the will that is due is sent.
    Opened {
        /// Names the session and its holder from now on.
        id: SessionId,
        /// State that the session left behind, if it goes on.
        kept: Option<Kept>,
        /// State left behind by the session that ends.
        ended: Option<Kept>,
        /// The will that is due.
        will: Option<Box<Will>>,
    },
    /// Another connection holds it and is told to give it back; a former claimant does not get it.
    Claimed {
        /// The holder, when it has not been told yet.
        holder: Option<(ShardId, ConnId)>,
        /// The former claimant.
        superseded: Option<Claim>,
    },
    /// No room for another session.
    Full,
}

/// Bytes that so many homes need for the subscriptions in a stored state, if no other session has the same.
pub type Weigh = fn(state: &[u8], homes: usize) -> usize;

/// All sessions of a partition.
pub struct Sessions {
    /// The partition.
    partition: PartitionId,
    weigh: Weigh,
    homes: usize,
    rows: Slab<Row>,
    index: Index,
    clients: Names,
    away: Side<Away>,
    states: Blobs,
    /// Payloads of large messages that clients who are away have not acknowledged.
    payloads: BTreeMap<u32, Vec<Slice>>,
    away_bytes: usize,
    will_bytes: usize,
    /// Of the client ids of sessions that are away.
    away_name_bytes: usize,
    /// Sessions that are away, by the second in which something is due.
    due: BTreeSet<(u32, u32)>,
    /// Those of them that are evicted, with the bytes that this sets free.
    evicted: BTreeMap<u32, usize>,
    /// The sum of these: it is asked for before each eviction.
    evicted_bytes: usize,
    claims: BTreeMap<u32, Claim>,
}

impl Sessions {
    /// None yet, in this partition.
    pub fn new(partition: PartitionId, weigh: Weigh, homes: usize) -> Sessions {
        Sessions {
            partition,
            weigh,
            homes,
            rows: Slab::new(),
            index: Index::new(),
            clients: Names::default(),
            away: Side::new(),
            states: Blobs::new(),
            payloads: BTreeMap::new(),
            away_bytes: 0,
            will_bytes: 0,
            away_name_bytes: 0,
            due: BTreeSet::new(),
            evicted: BTreeMap::new(),
            evicted_bytes: 0,
            claims: BTreeMap::new(),
        }
    }

    /// Sessions, held or away.
    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    /// Adds the counts and bytes of its sessions.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.sessions += self.rows.len();
        accounts.session_bytes += self.away_bytes;
        accounts.name_bytes += self.clients.bytes().saturating_sub(self.away_name_bytes);
    }

    /// Bytes of the rows and their index, without those that are charged for sessions that are away.
    pub fn bytes(&self) -> usize {
        let all = self.rows.bytes() + self.index.bytes();
        all.saturating_sub(self.away.len() as usize * absent::ROW_BYTES)
    }

    fn find(&self, hash: u32, client: &[u8]) -> Option<u32> {
        let is = |row: &Row| self.clients.get(row.client) == client;
        self.index.find(&self.rows, hash, is)
    }

    /// The client id of this holder's session, unless the session has another holder by now.
    pub fn name_of(&self, id: SessionId) -> Option<&[u8]> {
        let row = self.rows.try_get(id.row)?;
        let holds = row.held != Hold::Away && (row.serial, row.life) == (id.serial, id.life);
        holds.then(|| self.clients.get(row.client))
    }

    /// Whether this client id has a session.
    pub fn has(&self, hash: u32, client: &[u8]) -> bool {
        self.find(hash, client).is_some()
    }

    /// A client connects. `counts` says whether there may be another session.
    pub fn open(
        &mut self,
        (hash, client): (u32, &[u8]),
        claim: Claim,
        counts: &Admission,
        now: Now,
    ) -> Opening {
        let Some(id) = self.find(hash, client) else {
            if !room_for_session(claim.owner, counts) {
                return Opening::Full;
            }
            let mut row = Row::vacant(NONE);
            row.hash = hash;
            row.client = self.clients.insert(client);
            let id = self.rows.insert(row);
            self.index.insert(&mut self.rows, id);
            return self.hand_over(id, &claim, None, None);
        };
        let row = self.rows.get_mut(id);
        if row.held == Hold::Away {
            let (kept, will, owner) = self.take_away(id, counts, now);
            counts.move_session(owner, claim.owner);
            return self.hand_over(id, &claim, Some(kept), will);
        }
        if planted::is(Fault::HastyTakeover) {
            return self.hand_over(id, &claim, None, None);
        }
        let told = row.held == Hold::Claimed;
        row.held = Hold::Claimed;
        let holder = ConnId {
            slot: row.holder,
            generation: row.generation,
        };
        let holder = (!told).then_some((row.shard, holder));
        let superseded = self.claims.insert(id, claim);
        Opening::Claimed { holder, superseded }
    }

    /// Gives the session to the claimant. A will whose delay is not over is not sent, unless the session ends.
    fn hand_over(
        &mut self,
        id: u32,
        claim: &Claim,
        kept: Option<Kept>,
        will: Option<Box<Will>>,
    ) -> Opening {
        let row = self.rows.get_mut(id);
        row.held = Hold::Connected;
        (row.shard, row.holder, row.generation) = (claim.shard, claim.to.slot, claim.to.generation);
        row.serial = row.serial.wrapping_add(1);
        let id = SessionId {
            row: id,
            serial: row.serial,
            life: row.life,
            partition: self.partition as u8,
        };
        let (kept, ended) = if claim.clean {
            (None, kept)
        } else {
            (kept, None)
        };
        let will = will.filter(|will| claim.clean || will.delay_s == 0);
        Opening::Opened {
            id,
            kept,
            ended,
            will,
        }
    }

    /// The holder gives a session back. Returns the claimant that gets it next, and the will that is due.
    pub fn close(&mut self, farewell: Farewell, counts: &Admission, now: Now) -> Closing {
        let Farewell {
            id,
            owner,
            kept,
            will,
            ..
        } = farewell;
        let holds = |row: &Row| row.serial == id.serial && row.held != Hold::Away;
        if !self.rows.try_get(id.row).is_some_and(holds) {
            return Closing::Stale;
        }
        let row = self.rows.get_mut(id.row);
        // A claimed session has a claimant.
        if row.held == Hold::Claimed
            && let Some(claim) = self.claims.remove(&id.row)
        {
            counts.move_session(owner, claim.owner);
            let opening = self.hand_over(id.row, &claim, kept, will);
            return Closing::Next(claim, opening);
        }
        let Some(kept) = kept else {
            self.forget(id.row);
            counts.leave_session(owner);
            return Closing::Done(will);
        };
        let (due, will) = match will {
            Some(will) if will.delay_s == 0 => (Some(will), None),
            will => (None, will),
        };
        let expires_s = if kept.expiry_s == FOREVER_S {
            FOREVER_S
        } else {
            end_s(now, kept.expiry_s)
        };
        let delayed = |will: Box<Will>| {
            let due_s = end_s(now, will.delay_s);
            Box::new(Delayed { will, due_s })
        };
        let away = Away {
            state_bytes: kept.state.bytes.len() as u32,
            state: self.insert_state(kept.state.bytes, counts),
            will: will.map(delayed),
            expires_s,
            owner,
        };
        self.insert_away(id.row, away, kept.state.payloads);
        let (party, bytes) = self.charged(id.row, counts);
        counts.change_absent(party, 0, bytes);
        Closing::Done(due)
    }

    fn forget(&mut self, id: u32) {
        self.index.remove(&mut self.rows, id);
        let row = self.rows.remove(id);
        self.clients.remove(row.client);
    }

    /// The first second in which a session has something due, [`FOREVER_S`] if none has.
    pub fn next_due_s(&self) -> u32 {
        self.due.first().map_or(FOREVER_S, |(due_s, _)| *due_s)
    }

    /// The session in which something is due first, and is due now: its will, and its state if it has expired.
    pub fn next_due(
        &mut self,
        counts: &Admission,
        now: Now,
    ) -> Option<(Option<Box<Will>>, Option<Kept>)> {
        let (_, id) = self.due.pop_first()?;
        let holder = self.rows.get(id).holder;
        let (party, before) = self.charged(id, counts);
        let away = self.away.get_mut(holder);
        self.will_bytes -= away.will_bytes();
        let will = away.will.take().map(|delayed| delayed.will);
        let (_, after) = self.charged(id, counts);
        counts.change_absent(party, before, after);
        let away = self.away.get_mut(holder);
        if away.expires_s > now.unix_s {
            if away.expires_s != FOREVER_S {
                self.due.insert((away.expires_s, id));
            }
            return Some((will, None));
        }
        let (kept, _, owner) = self.take_away(id, counts, now);
        self.forget(id);
        counts.leave_session(owner);
        Some((will, Some(kept)))
    }
}

/// The second in which so many seconds have passed for certain: the current one has begun already.
fn end_s(now: Now, seconds: u32) -> u32 {
    now.unix_s.saturating_add(seconds).saturating_add(1)
}

/// The outcome of giving a session back.
pub enum Closing {
    /// It is away or over; this will is due.
    Done(Option<Box<Will>>),
    /// A claimant waited for it.
    Next(Claim, Opening),
    /// Nothing: the connection that gave it back did not hold it, which is a bug.
    Stale,
}
