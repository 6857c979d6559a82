//! Limits how often the session of an MQTT client is taken over. Two clients with the same client id end each other's connection, and each connects
//! again: without a limit they do nothing else. Therefore a session that is taken over too often is *contested*: a takeover is refused until a second
//! has passed since the last one. Then the next client gets the session as usual.
//!
//! The count of a session rises by one with each takeover. It falls evenly, in each minute by the number of takeovers that are allowed in a minute.
//! The clock is that of this home (the part of a shard that keeps topics). In a cluster each home counts the takeovers in the log, so a takeover at
//! any node counts at all nodes.
//!
//! Invariant: the table has at most [`SESSIONS_MAX`] sessions. Takeovers of further sessions are not counted.

use alloc::collections::BTreeMap;

/// The maximum number of sessions in the table.
const SESSIONS_MAX: usize = 1024;
/// Memory of an entry: leaves of a `BTreeMap` have eleven slots, are two thirds full, and have a header.
const ENTRY_BYTES: usize = 28;
/// The amount that a takeover adds to the level of a session.
const LEVEL_PER_TAKEOVER: u32 = 60;

/// Whether this takeover is the first that is refused since the session's entry was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IsFirst(pub bool);

/// The takeovers of a session.
struct RecentTakeovers {
    /// The count after the last takeover, in sixtieths of a takeover.
    level: u32,
    /// The second of the last takeover.
    last_s: u32,
    /// Whether a takeover was refused.
    was_refused: bool,
}

impl RecentTakeovers {
    /// The level in this second.
    fn level_at(&self, now_s: u32, per_minute: u32) -> u32 {
        let passed_s = now_s.saturating_sub(self.last_s);
        self.level
            .saturating_sub(passed_s.saturating_mul(per_minute))
    }
}

/// The sessions that were taken over a short time ago, by the keyed hash of their names. Sessions with the same hash are counted together.
#[derive(Default)]
pub(crate) struct Takeovers {
    sessions: BTreeMap<u32, RecentTakeovers>,
}

impl Takeovers {
    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.sessions.len() * ENTRY_BYTES
    }

    /// Counts a takeover of a session. `per_minute` takeovers are allowed in a minute; 0: any number.
    pub fn count(&mut self, session: u32, now_s: u32, per_minute: u32) {
        let is_known = self.sessions.contains_key(&session);
        if per_minute == 0 || !is_known && self.sessions.len() >= SESSIONS_MAX {
            return;
        }
        let recent = self.sessions.entry(session).or_insert(RecentTakeovers {
            level: 0,
            last_s: now_s,
            was_refused: false,
        });
        let limit_level = per_minute.saturating_mul(LEVEL_PER_TAKEOVER);
        let level = recent
            .level_at(now_s, per_minute)
            .saturating_add(LEVEL_PER_TAKEOVER);
        // The level is limited to one takeover more than the limit. Otherwise the session would stay contested long after the last takeover.
        recent.level = level.min(limit_level.saturating_add(LEVEL_PER_TAKEOVER));
        recent.last_s = now_s;
    }

    /// Whether a takeover of this session must be refused now.
    pub fn check_refusal(&mut self, session: u32, now_s: u32, per_minute: u32) -> Option<IsFirst> {
        let recent = self.sessions.get_mut(&session)?;
        let is_full = recent.level >= per_minute.saturating_mul(LEVEL_PER_TAKEOVER);
        let is_recent = now_s <= recent.last_s.saturating_add(1);
        let is_refused = per_minute > 0 && is_full && is_recent;
        is_refused.then(|| IsFirst(!core::mem::replace(&mut recent.was_refused, true)))
    }

    /// Forgets sessions whose count has fallen to 0. Called once a second.
    pub fn forget_old(&mut self, now_s: u32, per_minute: u32) {
        self.sessions
            .retain(|_, recent| per_minute > 0 && recent.level_at(now_s, per_minute) > 0);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const PER_MINUTE: u32 = 6;

    /// Tries to take the session over many times in each of these seconds. Returns how many takeovers were not refused.
    fn fight(table: &mut Takeovers, session: u32, seconds: core::ops::Range<u32>) -> u32 {
        let mut done = 0;
        for now_s in seconds {
            for _ in 0..100 {
                if table.check_refusal(session, now_s, PER_MINUTE).is_none() {
                    table.count(session, now_s, PER_MINUTE);
                    done += 1;
                }
            }
        }
        done
    }

    #[test]
    fn fight_is_slowed_down_to_a_takeover_in_two_seconds_and_another_session_is_not() {
        let mut table = Takeovers::default();
        assert_eq!(fight(&mut table, 1, 100..101), PER_MINUTE);
        assert!(table.check_refusal(1, 101, PER_MINUTE).is_some());
        assert_eq!(table.check_refusal(2, 101, PER_MINUTE), None);
        assert_eq!(
            table.check_refusal(1, 102, PER_MINUTE),
            None,
            "a second has passed"
        );
        let done = fight(&mut table, 1, 102..162);
        assert!((29..=31).contains(&done), "{done}");
    }

    #[test]
    fn takeovers_that_are_rare_enough_are_never_refused() {
        let mut table = Takeovers::default();
        for now_s in (0..6_000).step_by(10) {
            assert_eq!(table.check_refusal(1, now_s, PER_MINUTE), None);
            table.count(1, now_s, PER_MINUTE);
        }
        table.count(1, 6_000, 0);
        assert_eq!(table.check_refusal(1, 6_000, 0), None, "0 is no limit");
    }

    #[test]
    fn session_is_named_once_while_it_is_fought_over_and_forgotten_afterwards() {
        let mut table = Takeovers::default();
        fight(&mut table, 1, 100..101);
        let named = (101..131).filter_map(|now_s| {
            let refused = table.check_refusal(1, now_s, PER_MINUTE);
            table.count(1, now_s, PER_MINUTE);
            refused
        });
        let named: Vec<IsFirst> = named.collect();
        assert!(
            named.len() > 20 && !named.contains(&IsFirst(true)),
            "it was named by the fight"
        );
        table.forget_old(131, PER_MINUTE);
        assert!(table.bytes() > 0);
        table.forget_old(131 + 71, PER_MINUTE);
        assert_eq!(table.bytes(), 0);
        fight(&mut table, 1, 300..301);
        assert_eq!(
            table.check_refusal(1, 301, PER_MINUTE),
            Some(IsFirst(false))
        );
    }

    #[test]
    fn table_is_bounded() {
        let mut table = Takeovers::default();
        for session in 0..3_000 {
            table.count(session, 1, PER_MINUTE);
        }
        assert_eq!(table.bytes(), SESSIONS_MAX * ENTRY_BYTES);
    }
}
