//! Restores the sessions of a single node from the records of the log. While a log is read, all sessions are away, even those that a connection held
//! when the log was written: the connection ended with the process that wrote the log.
//!
//! Invariant: a session outlives its connection for a limited time. If a connection held the session, this time begins when the next process begins
//! to serve, which that process records ([`ControlRecord::Start`](crate::ControlRecord::Start)). Otherwise it begins at the time of the record.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::snapshot::{checked_session, patched_session};
use super::{AwaySession, DelayedWill, FOREVER_S, SessionRow, Sessions, absent, second_after};
use crate::base::time::Now;
use crate::budget::admission::Admission;
use crate::budget::world::World;
use crate::mail::session::record::{RecordedState, SessionChange, SessionRecord, Terms};
use crate::mail::session::stored::{StoredSession, set_epoch, token_of};
use crate::mail::session::{SessionPatch, Will};
use crate::store::shared::Slice;
use crate::store::slab::{NONE, SlabRow as _};

/// If the records of a partition that wait exceed this many bytes, all of them are applied.
const UNAPPLIED_BYTES_MAX: usize = 4 << 20;

/// The second in which a session that has ended with its connection expires. Every clock has passed it.
pub(super) const ENDED_S: u32 = 0;

/// A record that is not applied yet.
struct UnappliedRecord {
    /// The second in which the record was written.
    unix_s: u32,
    bytes: Box<[u8]>,
}

/// The records that are not applied yet, by the row of their session.
#[derive(Default)]
pub(super) struct Unapplied {
    rows: BTreeMap<u32, Vec<UnappliedRecord>>,
    bytes: usize,
}

impl Unapplied {
    fn push(&mut self, id: u32, unix_s: u32, record: &[u8]) {
        self.rows.entry(id).or_default().push(UnappliedRecord {
            unix_s,
            bytes: record.into(),
        });
        self.bytes += size_of::<UnappliedRecord>() + record.len();
    }

    fn take(&mut self, id: u32) -> Vec<UnappliedRecord> {
        let all = self.rows.remove(&id).unwrap_or_default();
        for record in &all {
            self.bytes -= size_of::<UnappliedRecord>() + record.bytes.len();
        }
        all
    }
}

impl Sessions {
    /// Replays a record of the log, which was written at `now` and has these bytes. Returns whether the record was valid. A state that cannot be decoded
    /// ends its session, so that the client is told that it has no session.
    ///
    /// A patch costs time in proportion to the length of the session. So patches, and the claims between them, [wait](Self::replay_waiting). Most of them
    /// are never applied, because a whole state follows: connections record their whole state now and then (`Recording` in `protocol/mqtt/state.rs`).
    pub(super) fn replay(
        &mut self,
        record: &SessionRecord<'_>,
        bytes: &[u8],
        world: &World,
        now: Now,
    ) -> bool {
        let hash = world.hash_of(record.name);
        let found = self.find(hash, record.name);
        let waiting_row = match &record.change {
            SessionChange::Claim { clean: false, .. } => found.filter(|id| !self.has_ended(*id)),
            SessionChange::Patch(patch) => found.filter(|id| self.token_of_row(*id) == patch.token),
            _ => None,
        };
        let Some(id) = waiting_row else {
            return self.replay_now(record, world, now);
        };
        self.unapplied.push(id, now.unix_s, bytes);
        self.unapplied.bytes <= UNAPPLIED_BYTES_MAX || self.replay_waiting(world, now) == 0
    }

    /// Replays the records that wait. Called after the log was read. Returns the number of sessions with an invalid record.
    pub(super) fn replay_waiting(&mut self, world: &World, now: Now) -> u32 {
        let mut invalid = 0;
        while let Some((id, _)) = self.unapplied.rows.first_key_value() {
            let mut are_valid = true;
            for waiting in self.unapplied.take(*id) {
                // The record was decoded when it came, so this succeeds.
                if let Ok(Some((_, record))) = SessionRecord::decode(&waiting.bytes) {
                    let unix_s = waiting.unix_s;
                    are_valid &= self.replay_now(&record, world, Now { unix_s, ..now });
                }
            }
            invalid += u32::from(!are_valid);
        }
        invalid
    }

    fn replay_now(&mut self, record: &SessionRecord<'_>, world: &World, now: Now) -> bool {
        let hash = world.hash_of(record.name);
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
                    Some(id) if !clean && !self.has_ended(id) => {
                        if token != 0 && self.token_of_row(id) == 0 {
                            self.set_token(id, token, &world.admission);
                        }
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
                let terms = Terms {
                    owner,
                    is_held: true,
                    expiry_s,
                    will: will.clone(),
                };
                let new_state = RecordedState::new(&session, terms);
                self.insert_recorded(record.name, &new_state, world, now)
            }
            SessionChange::End { token } => {
                if let Some(id) = found.filter(|id| *token == 0 || self.token_of_row(*id) == *token)
                {
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
            SessionChange::Patch(patch) => {
                let Some(id) = found.filter(|id| self.token_of_row(*id) == patch.token) else {
                    // The session has ended, or a later claim has begun another one.
                    return true;
                };
                let session = patched_session(&self.copy_of_state(id), patch, world);
                match (session, &patch.terms) {
                    (Ok(session), None) => {
                        self.replace_state(id, session, &world.admission);
                        true
                    }
                    (session, terms) => {
                        self.end_recorded(id, world, now);
                        let (Ok(session), Some(terms)) = (session, terms) else {
                            return false;
                        };
                        let state = RecordedState::new(&session, terms.clone());
                        self.insert_recorded(record.name, &state, world, now)
                    }
                }
            }
        }
    }

    /// The contents of a record that only changes the terms of a session that is away: a patch that changes nothing, and the terms as of `now`.
    pub(super) fn record_of_terms(
        &self,
        (hash, name): (u32, &[u8]),
        now: Now,
    ) -> Option<(SessionPatch, Terms)> {
        let id = self.find(hash, name)?;
        let row = self.away_row(id)?;
        let away = self.states.rows.get(row.holder);
        let left_s = |end_s: u32| end_s.saturating_sub(now.unix_s + 1);
        let will = away.will.as_ref().map(|delayed| {
            Box::new(Will {
                delay_s: left_s(delayed.due_s),
                ..(*delayed.will).clone()
            })
        });
        let terms = Terms {
            owner: away.owner,
            is_held: false,
            expiry_s: absent::remaining_s(away.expires_s, now),
            will,
        };
        Some((
            SessionPatch::without_changes(&self.copy_of_state(id))?,
            terms,
        ))
    }

    /// Whether the log says that the session in this row has ended, and the row only stays until the will is published. No claim continues the session.
    fn has_ended(&self, id: u32) -> bool {
        let away = self.states.rows.get(self.rows.get(id).holder);
        away.expires_s == ENDED_S
    }

    /// The token of the session in this row, which is away; 0 if it has none.
    fn token_of_row(&self, id: u32) -> u64 {
        let away = self.states.rows.get(self.rows.get(id).holder);
        token_of(self.states.blobs.get(away.state))
    }

    /// The tokens of the wills of sessions that are away.
    pub(super) fn will_tokens(&self) -> impl Iterator<Item = u64> {
        let away = (0..self.rows.end()).filter_map(|id| self.away_row(id));
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
        let terms = &state.terms;
        let expires_s = match (terms.is_held, terms.expiry_s) {
            (true, _) => FOREVER_S,
            (false, expiry_s) => expires_s(now, expiry_s),
        };
        let will = terms.will.clone().map(|will| match terms.is_held {
            true => Box::new(DelayedWill {
                will,
                due_s: FOREVER_S,
            }),
            false => DelayedWill::new(will, now),
        });
        let away = AwaySession {
            state: self.insert_state(session.bytes, &world.admission),
            state_bytes: state.bytes.len() as u32,
            will,
            expires_s,
            owner: terms.owner,
        };
        let id = self.insert_row(name, away, session.payloads, world);
        if terms.is_held {
            self.held_in_log.insert(id, terms.expiry_s);
        }
        world.admission.begin_session(terms.owner, name);
        let (party, bytes) = self.party_and_bytes(id, &world.admission);
        world.admission.change_absent(party, 0, bytes);
        true
    }

    /// Adds a session with this name that is away.
    pub(super) fn insert_row(
        &mut self,
        name: &[u8],
        away: AwaySession,
        payloads: Vec<Slice>,
        world: &World,
    ) -> u32 {
        let id = self.rows.insert(SessionRow {
            hash: world.hash_of(name),
            client: self.clients.insert(name),
            ..SessionRow::vacant(NONE)
        });
        self.index.insert(&mut self.rows, id);
        self.store_away(id, away, payloads);
        id
    }

    /// Ends all sessions and drops their wills. Called after the log was read.
    pub(super) fn end_all(&mut self, world: &World, now: Now) {
        for id in 0..self.row_end() {
            if self.away_row(id).is_some() {
                self.end_recorded(id, world, now);
            }
        }
    }

    fn end_recorded(&mut self, id: u32, world: &World, now: Now) {
        self.held_in_log.remove(&id);
        self.unapplied.take(id);
        let (_, _, owner) = self.take_stored(id, &world.admission, now);
        self.remove_session(id, owner, &world.admission);
    }

    /// Gives a token to the session in this row, which has none because it began before sessions were recorded.
    fn set_token(&mut self, id: u32, token: u64, counts: &Admission) {
        let state = self.copy_of_state(id);
        // The state was checked when it was restored.
        if let Ok(mut session) = StoredSession::decode(&state) {
            session.set_token(token);
            self.replace_state(id, session.encode(), counts);
        }
    }

    /// Stores that a connection with this will holds the session in this row. So the session does not expire, and the will is not due.
    fn set_held(&mut self, id: u32, expiry_s: u32, will: Option<Box<Will>>, counts: &Admission) {
        let (party, before) = self.party_and_bytes(id, counts);
        self.reschedule(id, |away| {
            away.expires_s = FOREVER_S;
            away.will = will.map(|will| {
                Box::new(DelayedWill {
                    will,
                    due_s: FOREVER_S,
                })
            });
        });
        let (_, after) = self.party_and_bytes(id, counts);
        counts.change_absent(party, before, after);
        self.held_in_log.insert(id, expiry_s);
    }

    /// From `now` on, no connection holds any session. Called after the log was read, and at each record of a start in the log. Returns whether this
    /// start must be recorded, because connections held sessions: otherwise the expiry of these sessions would begin anew after another crash.
    pub(super) fn release_held_in_log(&mut self, now: Now) -> bool {
        self.is_start_unrecorded |= !self.held_in_log.is_empty();
        for (id, expiry_s) in core::mem::take(&mut self.held_in_log) {
            self.reschedule(id, |away| {
                away.expires_s = expires_s(now, expiry_s);
                if let Some(delayed) = &mut away.will {
                    delayed.due_s = second_after(now, delayed.will.delay_s);
                }
            });
        }
        self.is_start_unrecorded
    }

    /// Whether the log lacks the record of this start. From now on it counts as recorded.
    pub(super) fn take_unrecorded_start(&mut self) -> bool {
        core::mem::take(&mut self.is_start_unrecorded)
    }

    /// Changes the will of the session in this row, which is away, or the seconds in which the will or the end is due.
    pub(super) fn reschedule(&mut self, id: u32, change: impl FnOnce(&mut AwaySession)) {
        let away = self.states.rows.get_mut(self.rows.get(id).holder);
        self.due_rows.remove(&(away.due_s(), id));
        self.states.will_bytes -= away.will_bytes();
        change(away);
        self.states.will_bytes += away.will_bytes();
        let due_s = away.due_s();
        if due_s != FOREVER_S {
            self.due_rows.insert((due_s, id));
        }
    }
}

/// The second in which a session expires that is away from `now` on, and outlives its connection by `expiry_s` seconds.
fn expires_s(now: Now, expiry_s: u32) -> u32 {
    match expiry_s {
        0 => ENDED_S,
        FOREVER_S => FOREVER_S,
        expiry_s => second_after(now, expiry_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;
    use crate::budget::admission::Client;
    use crate::mail::session::patch::{DigestForm, Outline};
    use crate::mail::session::record::RecordedPatch;
    use crate::mail::session::stored::unreleased;

    /// The sessions of a partition, restored from records.
    struct Table(Sessions, alloc::sync::Arc<World>);

    impl Table {
        fn new() -> Table {
            let world = World::for_tests(Settings::default(), 1);
            Table(Sessions::new(0, 1, false), world)
        }

        /// Replays a record at once.
        fn replay(&mut self, name: &[u8], change: SessionChange<'_>) -> bool {
            let now = Now { s: 1, unix_s: 1 };
            self.push(name, change) && self.0.replay_waiting(&self.1, now) == 0
        }

        /// Replays a record, now or later.
        fn push(&mut self, name: &[u8], change: SessionChange<'_>) -> bool {
            let record = SessionRecord {
                name,
                change,
                fence: None,
            };
            let now = Now { s: 1, unix_s: 1 };
            let mut bytes = Vec::new();
            record.encode().write(&mut bytes, 0);
            self.0.replay(&record, &bytes, &self.1, now)
        }
    }

    fn terms() -> Terms {
        Terms {
            owner: Client::NOBODY,
            is_held: true,
            expiry_s: 60,
            will: None,
        }
    }

    #[test]
    fn session_that_was_to_end_with_its_connection_ends_with_the_process() {
        let mut table = Table::new();
        let claim = |clean, expiry_s, token| SessionChange::Claim {
            clean,
            expiry_s,
            owner: Client::NOBODY,
            token,
            will: None,
        };
        assert!(table.replay(b"it", claim(true, 60, 9)));
        assert!(table.replay(b"it", claim(false, 0, 0)));
        let now = Now { s: 1, unix_s: 1 };
        table.0.release_held_in_log(now);
        let hash = table.1.hash_of(b"it");
        assert!(table.0.has(hash, b"it") && !table.0.would_continue(hash, b"it", now));
        // For the next records of the log, too, the session has ended.
        assert!(table.replay(b"it", claim(false, 60, 8)));
        assert_eq!((table.0.len(), table.0.token_of_row(0)), (1, 8));
    }

    /// Otherwise homes would forget the messages that the client publishes until the whole session is recorded.
    #[test]
    fn claim_gives_its_token_to_a_session_from_before_the_records() {
        let mut table = Table::new();
        let begun = StoredSession {
            received: alloc::vec![7],
            ..StoredSession::default()
        };
        let begun = begun.encode();
        let state = SessionChange::State(RecordedState::new(&begun, terms()));
        assert!(table.replay(b"it", state));
        let claim = |token| SessionChange::Claim {
            clean: false,
            expiry_s: 60,
            owner: Client::NOBODY,
            token,
            will: None,
        };
        for token in [9, 8] {
            assert!(table.replay(b"it", claim(token)));
            let state = table.0.copy_of_state(0);
            let session = StoredSession::decode(&state).expect("it is whole");
            assert_eq!((session.token, &session.keyless[..]), (9, &[7][..]));
        }
    }

    /// Tests that this claim is replayed at once: otherwise the records of the new session would be applied before the claim.
    #[test]
    fn claim_behind_a_session_that_only_waits_for_its_will_begins_another_one() {
        let mut table = Table::new();
        let states = [9, 8].map(|token| StoredSession {
            token,
            ..StoredSession::default()
        });
        let ended = states[0].encode();
        let terms = Terms {
            is_held: false,
            expiry_s: 0,
            ..terms()
        };
        let ended = SessionChange::State(RecordedState::new(&ended, terms));
        assert!(table.push(b"it", ended));
        let claim = SessionChange::Claim {
            clean: false,
            expiry_s: 60,
            owner: Client::NOBODY,
            token: 8,
            will: None,
        };
        assert!(table.push(b"it", claim));
        let after = StoredSession {
            received: alloc::vec![1],
            ..states[1].clone()
        };
        let patch = Outline::from_session(&states[1]).patch(&after, &Outline::from_session(&after));
        let change = SessionChange::Patch(RecordedPatch::new(&patch, None));
        assert!(table.replay(b"it", change));
        assert_eq!(unreleased(table.0.state_of(0)), 1);
    }

    #[test]
    fn state_that_cannot_be_decoded_ends_its_session_and_no_other() {
        let mut table = Table::new();
        let mut replay = |name, bytes| {
            let state = SessionChange::State(RecordedState {
                terms: terms(),
                bytes,
                payloads: Vec::new(),
            });
            (table.replay(name, state), table.0.len())
        };
        let session = StoredSession {
            token: 9,
            ..StoredSession::default()
        };
        let state = session.encode().bytes;
        assert_eq!(replay(b"it", &state), (true, 1));
        assert_eq!(replay(b"other", &state), (true, 2));
        assert_eq!(replay(b"it", &state[1..]), (false, 1));
        assert_eq!(replay(b"it", &state), (true, 2));
    }

    #[test]
    fn patch_changes_the_session_of_its_token_and_ends_it_if_it_is_for_another_state() {
        let mut table = Table::new();
        let states = [0, 1, 2].map(|received| StoredSession {
            token: 9,
            received: (0..received).collect(),
            ..StoredSession::default()
        });
        let [begun, one, two] = &states;
        let claim = SessionChange::Claim {
            clean: true,
            expiry_s: 60,
            owner: Client::NOBODY,
            token: 9,
            will: None,
        };
        assert!(table.replay(b"it", claim));
        let mut replay = |token, before, after, terms| {
            let patch = SessionPatch {
                token,
                ..Outline::from_session(before).patch(after, &Outline::from_session(after))
            };
            let change = SessionChange::Patch(RecordedPatch::new(&patch, terms));
            let is_valid = table.replay(b"it", change);
            let ids = (table.0.len() > 0).then(|| unreleased(table.0.state_of(0)));
            (is_valid, ids)
        };
        assert_eq!(replay(9, begun, one, None), (true, Some(1)));
        assert_eq!(
            replay(8, begun, two, None),
            (true, Some(1)),
            "of another session"
        );
        assert_eq!(replay(9, one, two, Some(terms())), (true, Some(2)));
        assert_eq!(
            replay(9, one, two, None),
            (false, None),
            "a record is missing"
        );
        assert_eq!(replay(9, two, one, None), (true, None), "it has ended");
    }

    #[test]
    fn patches_before_a_whole_state_are_not_applied() {
        let session = StoredSession {
            token: 9,
            ..StoredSession::default()
        };
        let state = session.encode();
        let of = |terms| SessionChange::State(RecordedState::new(&state, terms));
        let mut table = Table::new();
        assert!(table.push(b"it", of(terms())));
        let unreadable = || {
            SessionChange::Patch(RecordedPatch {
                token: 9,
                digest_before: (1, DigestForm::NEWEST),
                changes: b"",
                payloads: Vec::new(),
                terms: None,
            })
        };
        assert!(table.push(b"it", unreadable()));
        assert!(table.replay(b"it", of(terms())));
        assert_eq!((table.0.len(), table.0.unapplied.bytes), (1, 0));
        assert!(!table.replay(b"it", unreadable()));
        assert_eq!(table.0.len(), 0);
    }
}
