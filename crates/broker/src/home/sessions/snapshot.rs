//! Sessions in a snapshot. All of them are away: a process that writes a snapshot has no connections, or has closed them.
//!
//! For subscribers with No Local, a message names its publisher by the row and the life of its session. So a snapshot keeps the rows of sessions, and
//! the lives of rows without a session.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::recorded::ENDED_S;
use super::{AwaySession, DelayedWill, FOREVER_S, HoldState, SessionRow, Sessions};
use crate::base::snapshot::{Block, Damaged, FieldReader, FieldWriter, kind};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client};
use crate::budget::world::World;
use crate::home::session_terms::{HolderTerms, Replica};
use crate::mail::session::patch::apply_patch;
use crate::mail::session::record::RecordedPatch;
use crate::mail::session::stored::{StoredSession, move_positions, set_epoch};
use crate::mail::session::{EncodedSession, Will};
use crate::store::blobs::Blob;
use crate::store::shared::{Shared, Slice};
use crate::store::slab::{NONE, SlabRow as _};

/// Flags of a session's record.
const IS_ENDLESS: u8 = 1;
const HAS_WILL: u8 = 2;
const HAS_PAYLOADS: u8 = 4;
/// A connection held the session when the log was written. The seconds until the end and the will count from the time at which no connection holds the
/// session any more.
const IS_HELD: u8 = 8;
/// The session belongs to a cluster: its last claim follows. The times of its end and its will are seconds of the log's clock, so that all nodes restore
/// the same state.
const HAS_CLAIM: u8 = 16;
/// The maximum number of bytes of a session's record, besides its client id, state and will.
const SESSION_BYTES: usize = 64;

/// A session as read from a snapshot.
pub(super) struct SnapshotSession<'a> {
    serial: u16,
    life: u8,
    pub client: &'a [u8],
    owner: Client,
    /// Seconds until the session expires; `None` if it never does.
    remaining_s: Option<u32>,
    state: &'a [u8],
    payloads: Vec<&'a [u8]>,
    /// The will, and the seconds until it is due.
    will: Option<(u32, Will)>,
    /// Whether a connection held the session.
    is_held: bool,
    /// In a cluster: the last claim.
    claim: Option<SnapshotClaim>,
}

/// The last claim of a session of a cluster.
struct SnapshotClaim {
    offset: u64,
    /// The process whose connection holds the session; 0 if none does.
    writer: u64,
}

impl Sessions {
    /// The maximum number of bytes of the sessions' records, without wills.
    pub(crate) fn saved_bytes(&self) -> usize {
        self.clients.bytes() + self.states.state_bytes + self.rows.end() as usize * SESSION_BYTES
    }

    /// Writes the sessions from row `from` on. Seconds count from `head_s`, the second in the snapshot's head. That second is long ago if a part of a
    /// snapshot is replaced in place. Returns the row to continue with, if sessions are left.
    pub(crate) fn save(&self, from: u64, head_s: u32, block: &mut Block<'_>) -> Option<u64> {
        for id in from as u32..self.rows.end() {
            if block.is_full() {
                return Some(u64::from(id));
            }
            let row = self.rows.get(id);
            let is_away = row.client != Blob::NONE && row.hold_state == HoldState::Away;
            let kind = match is_away {
                true => kind::SESSION,
                false => kind::NO_SESSION,
            };
            let mut out = block.record(kind);
            out.number(u64::from(row.serial));
            out.byte(row.life);
            if is_away {
                let client = self.clients.get(row.client);
                self.save_away(client, id, head_s, &mut out);
            }
        }
        None
    }

    fn save_away(&self, client: &[u8], id: u32, head_s: u32, out: &mut FieldWriter<'_>) {
        let holder = self.rows.get(id).holder;
        let (away, replica) = (self.states.rows.get(holder), self.replica(id));
        let held = match replica {
            Some(replica) => replica.holder_terms.map(|held| held.expiry_s),
            None => self.held_in_log.get(&id).copied(),
        };
        let payloads = self.states.payloads.get(&holder);
        let left_s = |s: u32| match replica {
            Some(_) => u64::from(s),
            None => u64::from(s.saturating_sub(head_s)),
        };
        let is_endless = held.unwrap_or(away.expires_s) == FOREVER_S;
        let flag = |set, flag| if set { flag } else { 0 };
        out.byte(
            flag(is_endless, IS_ENDLESS)
                | flag(away.will.is_some(), HAS_WILL)
                | flag(payloads.is_some(), HAS_PAYLOADS)
                | flag(held.is_some(), IS_HELD)
                | flag(replica.is_some(), HAS_CLAIM),
        );
        if let Some(replica) = replica {
            out.number(replica.claim);
            out.word(replica.holder_terms.map_or(0, |held| held.writer));
        }
        out.field(client);
        out.number(u64::from(away.owner.number()));
        out.number(held.map_or_else(|| left_s(away.expires_s), u64::from));
        out.field(&self.states.blobs.get(away.state)[..away.state_bytes as usize]);
        if let Some(payloads) = payloads {
            out.number(payloads.len() as u64);
            for payload in payloads {
                out.field(payload);
            }
        }
        let Some(delayed) = &away.will else { return };
        out.number(match held {
            Some(_) => delayed.will.delay_s.into(),
            None => left_s(delayed.due_s),
        });
        delayed.will.write(out);
    }

    /// Reads a session.
    pub(super) fn read<'a>(from: &mut FieldReader<'a>) -> Result<SnapshotSession<'a>, Damaged> {
        let serial = from.number16()?;
        let life = from.byte()?;
        let flags = from.byte()?;
        let claim = match flags & HAS_CLAIM != 0 {
            true => Some(SnapshotClaim {
                offset: from.number()?,
                writer: from.word()?,
            }),
            false => None,
        };
        let client = from.field()?;
        let owner = Client::from_number(from.number32()?);
        let left_s = from.number32()?;
        let state = from.field()?;
        let mut payloads = Vec::new();
        if flags & HAS_PAYLOADS != 0 {
            for _ in 0..from.number()? {
                payloads.push(from.field()?);
            }
        }
        let will = match flags & HAS_WILL != 0 {
            true => Some((from.number32()?, Will::read(from)?)),
            false => None,
        };
        Ok(SnapshotSession {
            serial,
            life,
            client,
            owner,
            remaining_s: (flags & IS_ENDLESS == 0).then_some(left_s),
            state,
            payloads,
            will,
            is_held: flags & IS_HELD != 0,
            claim,
        })
    }

    /// Restores a session in the next row. Its positions of the epoch `old_epoch` become positions of the epoch `epoch`. The snapshot was written
    /// `snapshot_age_s` ago.
    ///
    /// # Errors
    /// The state is not valid, or the session and this process are not both of a cluster or both of a single node.
    pub(super) fn restore(
        &mut self,
        saved: SnapshotSession<'_>,
        world: &World,
        (old_epoch, epoch): (u32, u32),
        now: Now,
        snapshot_age_s: u32,
    ) -> Result<(), Damaged> {
        if saved.claim.is_some() != self.replicas.is_some() {
            return Err(Damaged("a session of a cluster is in another place"));
        }
        let due_second = |left_s: u32| match saved.claim {
            Some(_) => left_s,
            None => (now.unix_s).saturating_add(left_s.saturating_sub(snapshot_age_s)),
        };
        let delayed = |(left_s, will)| {
            // A snapshot does not repeat the client: it is that of the session.
            let will = Will {
                client: saved.owner,
                ..will
            };
            Box::new(DelayedWill {
                will: Box::new(will),
                due_s: due_second(left_s),
            })
        };
        let mut state = checked_session(saved.state, &saved.payloads, world)?;
        move_positions(&mut state.bytes, old_epoch, epoch);
        let mut away = AwaySession {
            state: self.insert_state(state.bytes, &world.admission),
            state_bytes: saved.state.len() as u32,
            will: saved.will.map(delayed),
            expires_s: saved.remaining_s.map_or(FOREVER_S, due_second),
            owner: saved.owner,
        };
        if saved.claim.is_none() && saved.remaining_s == Some(0) {
            // The records after the snapshot must find that the session has ended.
            away.expires_s = ENDED_S;
        }
        if saved.is_held {
            away.expires_s = FOREVER_S;
            away.will.iter_mut().for_each(|will| will.due_s = FOREVER_S);
        }
        let id = self.rows.insert(SessionRow {
            hash: world.hash_of(saved.client),
            client: self.clients.insert(saved.client),
            serial: saved.serial,
            life: saved.life,
            ..SessionRow::vacant(NONE)
        });
        self.index.insert(&mut self.rows, id);
        self.store_away(id, away, state.payloads);
        let expiry_s = saved.remaining_s.unwrap_or(FOREVER_S);
        if let Some(SnapshotClaim { offset, writer }) = saved.claim {
            let held = saved.is_held.then_some(HolderTerms { writer, expiry_s });
            let replica = Replica {
                claim: offset,
                holder_terms: held,
                local_holder: None,
            };
            self.insert_replica(id, replica);
        } else if saved.is_held {
            self.held_in_log.insert(id, expiry_s);
        }
        Ok(())
    }

    /// Restores a row without a session.
    pub(super) fn restore_empty_row(&mut self, serial: u16, life: u8) {
        self.rows.insert(SessionRow {
            serial,
            life,
            ..SessionRow::vacant(NONE)
        });
    }

    /// Counts the restored sessions, each for its client and its party.
    pub(super) fn count_restored(&self, counts: &Admission) {
        for id in 0..self.rows.end() {
            let row = self.rows.get(id);
            if row.client != Blob::NONE && row.hold_state == HoldState::Away {
                let owner = self.states.rows.get(row.holder).owner;
                counts.begin_session(owner, self.clients.get(row.client));
                let (party, bytes) = self.party_and_bytes(id, counts);
                counts.change_absent(party, 0, bytes);
            }
        }
    }

    /// Called after all records were read: frees the rows without a session.
    pub(crate) fn free_empty_rows(&mut self) {
        for id in 0..self.rows.end() {
            if self.rows.get(id).client == Blob::NONE {
                self.rows.remove(id);
            }
        }
    }
}

/// A session from its bytes and the payloads of its large messages.
///
/// # Errors
/// The bytes are damaged: no server writes such a session.
pub(super) fn checked_session(
    bytes: &[u8],
    payloads: &[&[u8]],
    world: &World,
) -> Result<EncodedSession, Damaged> {
    let session = EncodedSession {
        bytes: bytes.into(),
        payloads: share_payloads(payloads, world),
    };
    StoredSession::decode(&session)?.check(world.partitions)?;
    Ok(session)
}

/// A session after the changes of a record, in the epoch of this process.
///
/// # Errors
/// The record does not fit the state of the session, or is damaged.
pub(super) fn patched_session(
    session: &EncodedSession,
    patch: &RecordedPatch<'_>,
    world: &World,
) -> Result<EncodedSession, Damaged> {
    let payloads = share_payloads(&patch.payloads, world);
    let mut session = apply_patch(
        session,
        patch.digest_before,
        patch.changes,
        payloads,
        world.partitions,
    )?;
    set_epoch(&mut session.bytes, world.epoch);
    Ok(session)
}

fn share_payloads(payloads: &[&[u8]], world: &World) -> Vec<Slice> {
    let payloads = payloads.iter().map(|payload| {
        let shared = Shared::new((*payload).into(), &world.admission);
        shared.slice(0..payload.len())
    });
    payloads.collect()
}
