//! Restores sessions from the records of the log. While a log is read, all sessions are away, also those that a connection held when the log was
//! written: their connections have ended with that process.
//!
//! Invariant: the time for which a session outlives its connection begins with the process that serves next, if a connection held the session, and
//! with the record otherwise.

use alloc::boxed::Box;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::snapshot::checked_session;
use super::{Away, Delayed, FOREVER_S, Row, Sessions, end_s};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client};
use crate::budget::world::World;
use crate::mail::session::Will;
use crate::mail::session::record::{RecordedState, SessionChange, SessionRecord};
use crate::mail::session::stored::{StoredSession, set_epoch, token_of};
use crate::store::shared::Slice;
use crate::store::slab::{NONE, Vacant as _};

impl Sessions {
    /// Applies a record, written at `now`. Returns whether it was valid: a state that cannot be decoded ends its session, so that the client is told to
    /// begin anew.
    pub(super) fn fold(&mut self, record: &SessionRecord<'_>, world: &World, now: Now) -> bool {
        let hash = xxh3_64_with_seed(record.name, world.seed) as u32;
        let found = self.find(hash, record.name);
        match &record.change {
            &SessionChange::Claim {
                clean,
                expiry_s,
                owner,
                token,
                ref will,
            } => {
                match found {
                    Some(id) if !clean => {
                        self.set_held(id, expiry_s, will.clone(), &world.admission);
                        return true;
                    }
                    Some(id) => self.end_recorded(id, world, now),
                    None => {}
                }
                if expiry_s == 0 {
                    return true;
                }
                let session = StoredSession {
                    token,
                    ..StoredSession::default()
                };
                let session = session.encode();
                let begun = RecordedState::of(&session, expiry_s, true, will.clone(), owner);
                self.insert_recorded(record.name, &begun, world, now)
            }
            SessionChange::End { token } => {
                if let Some(id) = found.filter(|id| *token == 0 || self.token(*id) == *token) {
                    self.end_recorded(id, world, now);
                }
                true
            }
            SessionChange::State(state) => {
                if let Some(id) = found {
                    self.end_recorded(id, world, now);
                }
                self.insert_recorded(record.name, state, world, now)
            }
        }
    }

    /// The state of a session that is away, for a record that is written `now`.
    pub(super) fn recorded(
        &self,
        (hash, name): (u32, &[u8]),
        now: Now,
    ) -> Option<RecordedState<'_>> {
        let row = self.away(self.find(hash, name)?)?;
        let away = self.states.rows.get(row.holder);
        let left_s = |end_s: u32| end_s.saturating_sub(now.unix_s + 1);
        let will = away.will.as_ref().map(|delayed| {
            Box::new(Will {
                delay_s: left_s(delayed.due_s),
                ..(*delayed.will).clone()
            })
        });
        let payloads = self.states.payloads.get(&row.holder).into_iter().flatten();
        Some(RecordedState {
            owner: away.owner,
            is_held: false,
            expiry_s: match away.expires_s {
                FOREVER_S => FOREVER_S,
                expires_s => left_s(expires_s),
            },
            will,
            bytes: &self.states.blobs.get(away.state)[..away.state_bytes as usize],
            payloads: payloads.map(|payload| &payload[..]).collect(),
        })
    }

    /// The token of the session in this row, which is away; 0 if it has none.
    fn token(&self, id: u32) -> u64 {
        let away = self.states.rows.get(self.rows.get(id).holder);
        token_of(self.states.blobs.get(away.state))
    }

    /// The tokens of the wills of sessions that are away.
    pub(super) fn will_tokens(&self) -> impl Iterator<Item = u64> {
        let away = (0..self.rows.end()).filter_map(|id| self.away(id));
        let away = away.map(|row| self.states.rows.get(row.holder));
        away.filter_map(|away| Some(away.will.as_ref()?.will.token))
    }

    fn insert_recorded(
        &mut self,
        name: &[u8],
        state: &RecordedState<'_>,
        world: &World,
        now: Now,
    ) -> bool {
        let Ok(mut session) = checked_session(state.bytes, &state.payloads, world) else {
            return false;
        };
        set_epoch(&mut session.bytes, world.epoch);
        let expires_s = match (state.is_held, state.expiry_s) {
            (true, _) | (_, FOREVER_S) => FOREVER_S,
            (false, expiry_s) => end_s(now, expiry_s),
        };
        let will = state.will.clone().map(|will| match state.is_held {
            true => Box::new(Delayed {
                will,
                due_s: FOREVER_S,
            }),
            false => Delayed::new(will, now),
        });
        let away = Away {
            state: self.insert_state(session.bytes, &world.admission),
            state_bytes: state.bytes.len() as u32,
            will,
            expires_s,
            owner: state.owner,
        };
        let id = self.insert_row(name, away, session.payloads, world);
        if state.is_held {
            self.held.insert(id, state.expiry_s);
        }
        world.admission.move_session(Client::NOBODY, state.owner);
        let (party, bytes) = self.charged(id, &world.admission);
        world.admission.change_absent(party, 0, bytes);
        true
    }

    /// A session that is away begins, with this name.
    pub(super) fn insert_row(
        &mut self,
        name: &[u8],
        away: Away,
        payloads: Vec<Slice>,
        world: &World,
    ) -> u32 {
        let id = self.rows.insert(Row {
            hash: xxh3_64_with_seed(name, world.seed) as u32,
            client: self.clients.insert(name),
            ..Row::vacant(NONE)
        });
        self.index.insert(&mut self.rows, id);
        self.insert_away(id, away, payloads);
        id
    }

    fn end_recorded(&mut self, id: u32, world: &World, now: Now) {
        self.held.remove(&id);
        let (_, _, owner) = self.take_away(id, &world.admission, now);
        self.forget(id);
        world.admission.leave_session(owner);
    }

    /// A connection with this will holds the session in this row: it does not expire, and its will is not due.
    fn set_held(&mut self, id: u32, expiry_s: u32, will: Option<Box<Will>>, counts: &Admission) {
        let (party, before) = self.charged(id, counts);
        self.reschedule(id, |away| {
            away.expires_s = FOREVER_S;
            away.will = will.map(|will| {
                Box::new(Delayed {
                    will,
                    due_s: FOREVER_S,
                })
            });
        });
        let (_, after) = self.charged(id, counts);
        counts.change_absent(party, before, after);
        self.held.insert(id, expiry_s);
    }

    /// The log is read: from `now` on, no connection holds any session.
    pub(super) fn release_held(&mut self, now: Now) {
        for (id, expiry_s) in core::mem::take(&mut self.held) {
            self.reschedule(id, |away| {
                if expiry_s != FOREVER_S {
                    away.expires_s = end_s(now, expiry_s);
                }
                if let Some(delayed) = &mut away.will {
                    delayed.due_s = end_s(now, delayed.will.delay_s);
                }
            });
        }
    }

    /// Changes when the session in this row, which is away, has something due.
    pub(super) fn reschedule(&mut self, id: u32, change: impl FnOnce(&mut Away)) {
        let away = self.states.rows.get_mut(self.rows.get(id).holder);
        self.due.remove(&(away.due_s(), id));
        self.states.will_bytes -= away.will_bytes();
        change(away);
        self.states.will_bytes += away.will_bytes();
        let due_s = away.due_s();
        if due_s != FOREVER_S {
            self.due.insert((due_s, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rules::Rules;
    use crate::base::settings::Settings;
    use crate::budget::world::Offsets;

    #[test]
    fn state_that_cannot_be_decoded_ends_its_session_and_no_other() {
        let settings = Settings::default();
        let world = World {
            admission: Admission::new(&settings, 7),
            rules: Rules::new(&[]),
            settings,
            shards: 1,
            homes: 1,
            partitions: 1,
            epoch: 1,
            writer: Some(1),
            offsets: Offsets::ByWriter,
            seed: 7,
        };
        let mut sessions = Sessions::new(0, 1, false);
        let mut fold = |name, bytes| {
            let state = RecordedState {
                owner: Client::NOBODY,
                is_held: true,
                expiry_s: 60,
                will: None,
                bytes,
                payloads: Vec::new(),
            };
            let record = SessionRecord {
                name,
                change: SessionChange::State(state),
                fence: None,
            };
            let is_valid = sessions.fold(&record, &world, Now { s: 1, unix_s: 1 });
            (is_valid, sessions.len())
        };
        let session = StoredSession {
            token: 9,
            ..StoredSession::default()
        };
        let state = session.encode().bytes;
        assert_eq!(fold(b"it", &state), (true, 1));
        assert_eq!(fold(b"other", &state), (true, 2));
        assert_eq!(fold(b"it", &state[1..]), (false, 1));
        assert_eq!(fold(b"it", &state), (true, 2));
    }
}
