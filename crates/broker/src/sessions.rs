//! MQTT sessions at the home of their client id (MQTT 5.0 section 4.1): who holds one now, or what it left behind
//! when it went away.
//!
//! A session is not a queue. Away it is its subscriptions with their positions, and what was sent and not yet
//! acknowledged, as the carrier of its connection wrote it down ([`Kept::state`]); the messages that come meanwhile
//! are in the logs.
//!
//! Invariants: a client id has one row at most, and a row one holder; who claims a session that somebody holds gets
//! it only after the holder gave it back. A serial names one holder: what a former one says is not heard.
//! It knows neither connections nor topics; what follows from an end (a will, logs that nobody needs any more) is
//! the shard's to do.

mod snapshot;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::admission::{Admission, Client};
use crate::blobs::{Blob, Blobs, Names};
use crate::index::{Chained, Index};
use crate::mail::{Farewell, ReplyTo, ShardId};
use crate::planted::{self, Fault};
use crate::shared::Slice;
use crate::slab::{NONE, Side, Slab, Vacant};
use crate::stats::Accounts;
use crate::time::Now;

/// A session that never expires by itself (section 3.1.2.11.2).
pub const FOREVER_S: u32 = u32::MAX;

/// Bytes of a list of payloads, without the payloads.
const PAYLOADS_BYTES: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// By a connection.
    Yes,
    /// By nobody: it is away.
    No,
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
    held: Held,
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
            held: Held::No,
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

impl Chained for Row {
    fn hash(&self) -> u32 {
        self.hash
    }
    fn next(&self) -> u32 {
        self.next
    }
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

/// Who has a session: its row at the home, and which of its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The row.
    pub row: u32,
    /// Counts the holders.
    pub serial: u16,
    /// Counts the sessions that had this row before.
    pub life: u8,
}

/// A message that the server publishes when a client is gone (section 3.1.2.5).
#[derive(Clone, Debug, Default)]
pub struct Will {
    /// Seconds that it waits for the client to come back.
    pub delay_s: u32,
    /// Where to.
    pub topic: Box<[u8]>,
    /// The message.
    pub data: Box<[u8]>,
    /// Its content type.
    pub content_type: Box<[u8]>,
    /// Its key.
    pub key: Box<[u8]>,
    /// Its event name.
    pub event: Box<[u8]>,
    /// What else was said of it.
    pub attributes: Box<[u8]>,
    /// Seconds that it lives.
    pub ttl_s: Option<u32>,
    /// Quality of service.
    pub qos: u8,
    /// To be retained.
    pub retain: bool,
    /// For whom its topic is made, if it does not exist; nobody after a restart.
    pub client: Client,
}

impl Will {
    /// Bytes of heap that it occupies, itself included.
    pub fn bytes(&self) -> usize {
        let Will {
            topic,
            data,
            content_type,
            key,
            event,
            attributes,
            ..
        } = self;
        let parts = [topic, data, content_type, key, event, attributes];
        size_of::<Will>() + parts.iter().map(|part| part.len()).sum::<usize>()
    }
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct Kept {
    /// Seconds until it is forgotten.
    pub expiry_s: u32,
    /// What its carrier wrote down.
    pub state: Written,
}

/// A session as its carrier wrote it down.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// All but what follows.
    pub bytes: Box<[u8]>,
    /// The payloads of large messages that are not acknowledged, in their order.
    pub payloads: Vec<Slice>,
}

#[derive(Default)]
struct Away {
    state: Blob,
    state_bytes: u32,
    will: Option<Box<Delayed>>,
    expires_s: u32,
    /// Whom it counts for.
    owner: Client,
}

const _: () = assert!(size_of::<Away>() == 24);

/// A will that waits for its client to come back.
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

/// Who wants a session that another holds.
pub struct Claim {
    /// The carrier.
    pub shard: ShardId,
    /// The connection.
    pub to: ReplyTo,
    /// It begins anew.
    pub clean: bool,
    /// Whom the session will count for.
    pub owner: Client,
}

/// What becomes of a claim.
pub enum Opening {
    /// The session is the claimant's, with what it left behind. Ended first: what another one left behind, and its
    /// will, which is due.
    Opened {
        /// Its name from now on.
        id: SessionId,
        /// What it left behind.
        kept: Option<Kept>,
        /// What a session that ends here left behind.
        ended: Option<Kept>,
        /// The will that is due.
        will: Option<Box<Will>>,
    },
    /// This connection holds it and is told to give it back; a former claimant goes without.
    Claimed {
        /// The holder, when it has not been told yet.
        holder: Option<(ShardId, ConnOf)>,
        /// The former claimant.
        superseded: Option<Claim>,
    },
    /// No room for another session.
    Full,
}

/// A connection of some carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnOf {
    /// Its row.
    pub slot: u32,
    /// The row's life.
    pub generation: u16,
}

/// All sessions of a home.
#[derive(Default)]
pub struct Sessions {
    rows: Slab<Row>,
    index: Index,
    clients: Names,
    away: Side<Away>,
    states: Blobs,
    /// Payloads of large messages that those have not acknowledged who are away.
    payloads: BTreeMap<u32, Vec<Slice>>,
    away_bytes: usize,
    will_bytes: usize,
    /// Sessions that are away, by the second in which something is due.
    due: BTreeSet<(u32, u32)>,
    claims: BTreeMap<u32, Claim>,
}

impl Sessions {
    /// Sessions, held or away.
    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    /// Adds what it holds.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.sessions = self.rows.len();
        accounts.session_bytes = self.away_bytes;
        accounts.name_bytes += self.clients.bytes();
    }

    /// Bytes of what those left behind that are away.
    pub fn held_bytes(&self) -> usize {
        self.states.bytes() + self.will_bytes + self.payloads.len() * PAYLOADS_BYTES
    }

    /// Bytes of the rows and their index.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + self.away.bytes()
    }

    fn find(&self, hash: u32, client: &[u8]) -> Option<u32> {
        let is = |row: &Row| self.clients.get(row.client) == client;
        self.index.find(&self.rows, hash, is)
    }

    /// What the session of this holder is called, unless it has another by now.
    pub fn name_of(&self, id: SessionId) -> Option<&[u8]> {
        let row = self.rows.try_get(id.row)?;
        let holds = row.held != Held::No && (row.serial, row.life) == (id.serial, id.life);
        holds.then(|| self.clients.get(row.client))
    }

    /// A client connects. `counts` says whether there may be another session.
    pub fn open(
        &mut self,
        hash: u32,
        client: &[u8],
        claim: Claim,
        counts: &Admission,
        now: Now,
    ) -> Opening {
        let Some(id) = self.find(hash, client) else {
            if !counts.has_room_for_session() || counts.enter_session(claim.owner).is_err() {
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
        if row.held == Held::No {
            let (kept, will, owner) = self.take_away(id, now);
            counts.move_session(owner, claim.owner);
            return self.hand_over(id, &claim, Some(kept), will);
        }
        if planted::is(Fault::HastyTakeover) {
            return self.hand_over(id, &claim, None, None);
        }
        let told = row.held == Held::Claimed;
        row.held = Held::Claimed;
        let holder = ConnOf {
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
        row.held = Held::Yes;
        (row.shard, row.holder, row.generation) = (claim.shard, claim.to.slot, claim.to.generation);
        row.serial = row.serial.wrapping_add(1);
        let id = SessionId {
            row: id,
            serial: row.serial,
            life: row.life,
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

    /// Its holder gives a session back. Says who gets it next, and whose will is due.
    pub fn close(&mut self, farewell: Farewell, counts: &Admission, now: Now) -> Closing {
        let Farewell {
            id,
            owner,
            kept,
            will,
        } = farewell;
        let holds = |row: &Row| row.serial == id.serial && row.held != Held::No;
        if !self.rows.try_get(id.row).is_some_and(holds) {
            return Closing::Stale;
        }
        let row = self.rows.get_mut(id.row);
        // Claimed, there is who claims it.
        if row.held == Held::Claimed
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
            state: self.states.insert(&[&kept.state.bytes], counts),
            state_bytes: kept.state.bytes.len() as u32,
            will: will.map(delayed),
            expires_s,
            owner,
        };
        let due_s = away.due_s();
        let away = self.insert_away(away, kept.state.payloads);
        let row = self.rows.get_mut(id.row);
        (row.held, row.holder) = (Held::No, away);
        if due_s != FOREVER_S {
            self.due.insert((due_s, id.row));
        }
        Closing::Done(due)
    }

    /// Keeps what a session left behind.
    fn insert_away(&mut self, away: Away, payloads: Vec<Slice>) -> u32 {
        self.away_bytes += away.state_bytes as usize;
        self.will_bytes += away.will_bytes();
        let id = self.away.insert(away);
        if !payloads.is_empty() {
            self.payloads.insert(id, payloads);
        }
        id
    }

    fn take_away(&mut self, id: u32, now: Now) -> (Kept, Option<Box<Will>>, Client) {
        let holder = self.rows.get(id).holder;
        let away = self.away.remove(holder);
        self.due.remove(&(away.due_s(), id));
        let len = away.state_bytes as usize;
        self.away_bytes -= len;
        self.will_bytes -= away.will_bytes();
        let state = Written {
            bytes: self.states.get(away.state)[..len].into(),
            payloads: self.payloads.remove(&holder).unwrap_or_default(),
        };
        self.states.remove(away.state);
        let expiry_s = match away.expires_s {
            FOREVER_S => FOREVER_S,
            expires_s => expires_s.saturating_sub(now.s + 1),
        };
        let will = away.will.map(|delayed| delayed.will);
        (Kept { expiry_s, state }, will, away.owner)
    }

    fn forget(&mut self, id: u32) {
        self.index.remove(&mut self.rows, id);
        let row = self.rows.remove(id);
        self.clients.remove(row.client);
    }

    /// The next session of which something is due: its will, and what it left behind if it is over.
    pub fn next_due(
        &mut self,
        counts: &Admission,
        now: Now,
    ) -> Option<(Option<Box<Will>>, Option<Kept>)> {
        let (due_s, id) = *self.due.first()?;
        if due_s > now.s {
            return None;
        }
        self.due.pop_first();
        let holder = self.rows.get(id).holder;
        let away = self.away.get_mut(holder);
        self.will_bytes -= away.will_bytes();
        let will = away.will.take().map(|delayed| delayed.will);
        if away.expires_s > now.s {
            if away.expires_s != FOREVER_S {
                self.due.insert((away.expires_s, id));
            }
            return Some((will, None));
        }
        let (kept, _, owner) = self.take_away(id, now);
        self.forget(id);
        counts.leave_session(owner);
        Some((will, Some(kept)))
    }
}

/// When so many seconds have passed for certain: the second that runs has begun.
fn end_s(now: Now, seconds: u32) -> u32 {
    now.s.saturating_add(seconds).saturating_add(1)
}

/// What follows from a session that was given back.
pub enum Closing {
    /// It is away or over; this will is due.
    Done(Option<Box<Will>>),
    /// Somebody waited for it.
    Next(Claim, Opening),
    /// Nothing: who gave it back did not hold it, which is a fault of ours.
    Stale,
}
