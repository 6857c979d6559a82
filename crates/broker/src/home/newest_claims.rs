//! The newest claims of MQTT sessions in a cluster: a *claim* is the record by which a connection takes a session. The table contains the claims that a
//! partition has seen named in the records of QoS 2 messages and of their releases.
//!
//! A client that gets no PUBREC sends its message again, perhaps to another node. The first node's copy of the message may reach the log late: after
//! the second copy was released, so that the message's key is forgotten. But the first copy names an older claim, so it is void. A late copy of a PUBREL
//! is void for the same reason: otherwise it could release the next message with the same packet id.
//!
//! The table is derived from the records of the partition and from the log's clock, so all nodes decide alike. Snapshots contain it.
//!
//! Why 60 seconds are enough: when the log has stored a claim, the node of the session's former connection applies the claim within five seconds, and
//! ends that connection. Otherwise the node is cut off, and admits no more of these messages. A message that was admitted before is stored within
//! `STORE_WITHIN_S` (`commit/batch.rs`), or it is void. So a record of an older claim comes at most some 12 seconds after the first record of a newer
//! claim. The other seconds allow for clocks that differ.
//!
//! No message is lost with a void copy, since the client has got no PUBREC for that copy. Either the client sends the message again on the connection of
//! the newer claim, or it has begun another session, or it is a second client with the same id, which has lost its session to the first client.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Block, kind};
use crate::budget::admission::Party;

/// A claim is remembered for this many seconds of the log.
const CLAIM_KEPT_S: u32 = 60;
/// The maximum number of claims that are forgotten in one call.
const FORGOTTEN_PER_CALL: usize = 4096;
/// Memory of an entry: leaves of a `BTreeMap` have eleven slots, are two thirds full, and have a header.
const ENTRY_BYTES: usize = 48;

/// The newest claims in the records of each partition of a home.
pub(crate) struct NewestClaims {
    /// By index of the partition.
    partitions: Vec<PartitionClaims>,
    bytes: usize,
}

impl NewestClaims {
    /// No claims, for this many partitions.
    pub fn new(partitions: usize) -> Self {
        Self {
            partitions: (0..partitions)
                .map(|_| PartitionClaims::default())
                .collect(),
            bytes: 0,
        }
    }

    /// Heap bytes of all entries. The memory account asks in each turn, so this is a counter.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The claims of a partition.
    pub fn claims_of(&self, partition_index: usize) -> &PartitionClaims {
        &self.partitions[partition_index]
    }

    /// Changes the claims of a partition.
    pub fn change_claims(
        &mut self,
        partition_index: usize,
        change: impl FnOnce(&mut PartitionClaims),
    ) {
        let claims = &mut self.partitions[partition_index];
        self.bytes -= claims.bytes();
        change(claims);
        self.bytes += claims.bytes();
    }
}

/// The newest claim of a session.
struct NewestClaim {
    /// The offset of the claim's record.
    claim: u64,
    /// The second of the log in which the partition had the first record that names the claim.
    since_s: u32,
}

/// The newest claims in the records of a partition.
#[derive(Default)]
pub(crate) struct PartitionClaims {
    by_session: BTreeMap<Party, NewestClaim>,
    /// Each `since_s` with its session, in ascending order. Also contains claims that newer claims have replaced.
    sessions_by_age: VecDeque<(u32, Party)>,
}

impl PartitionClaims {
    /// Heap bytes.
    fn bytes(&self) -> usize {
        self.by_session.len() * ENTRY_BYTES
            + self.sessions_by_age.capacity() * size_of::<(u32, Party)>()
    }

    /// Whether a record of this claim is void, because the partition has shown a newer claim of the session. `now_s` is the time of the log.
    pub fn is_outdated(&self, session: Party, claim: u64, now_s: u32) -> bool {
        let newest = self.by_session.get(&session);
        newest.is_some_and(|it| claim < it.claim && !it.is_forgotten(now_s))
    }

    /// Called for each record that names a claim of the session. `claim` is 0 for a record that was written on one machine.
    pub fn note(&mut self, session: Party, claim: u64, now_s: u32) {
        let newest = self.by_session.get(&session);
        let is_known = newest.is_some_and(|it| claim <= it.claim && !it.is_forgotten(now_s));
        if claim != 0 && !is_known {
            self.insert(session, claim, now_s);
        }
    }

    /// Adds a newest claim. A snapshot may add claims in another order than that of `since_s`: such a claim is forgotten later than others.
    pub fn insert(&mut self, session: Party, claim: u64, since_s: u32) {
        self.by_session
            .insert(session, NewestClaim { claim, since_s });
        self.sessions_by_age.push_back((since_s, session));
    }

    /// Forgets old claims, by the time of the log. Called once a second.
    pub fn forget_old(&mut self, now_s: u32) {
        for _ in 0..FORGOTTEN_PER_CALL {
            let Some(&(since_s, session)) = self.sessions_by_age.front() else {
                self.sessions_by_age = VecDeque::new();
                return;
            };
            if !is_over(since_s, now_s) {
                return;
            }
            self.sessions_by_age.pop_front();
            let newest = self.by_session.get(&session);
            if newest.is_some_and(|it| it.since_s == since_s) {
                self.by_session.remove(&session);
            }
        }
    }

    /// Writes the claims of the sessions after `after` (`None`: of all) that this partition remembers at `now_s`. Returns where to continue, if any are
    /// left.
    pub fn save(
        &self,
        partition: PartitionId,
        after: Option<Party>,
        now_s: u32,
        block: &mut Block<'_>,
    ) -> Option<Option<Party>> {
        let mut last_saved = after;
        let is_left = |session: &Party| after.is_none_or(|after| *session > after);
        for (session, newest) in self.by_session.iter().filter(|(it, _)| is_left(it)) {
            if block.is_full() {
                return Some(last_saved);
            }
            last_saved = Some(*session);
            if newest.is_forgotten(now_s) {
                continue;
            }
            let mut out = block.record(kind::NEWEST_CLAIM);
            out.number(partition.into());
            out.word(session.number());
            out.number(newest.claim);
            out.number(newest.since_s.into());
        }
        None
    }
}

impl NewestClaim {
    fn is_forgotten(&self, now_s: u32) -> bool {
        is_over(self.since_s, now_s)
    }
}

/// Whether a claim that the partition has had since `since_s` is forgotten at `now_s`.
fn is_over(since_s: u32, now_s: u32) -> bool {
    since_s.saturating_add(CLAIM_KEPT_S) <= now_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_claim_is_void_for_a_minute_of_the_log() {
        let (mut claims, session) = (PartitionClaims::default(), Party::qos2_publisher(1));
        claims.note(session, 0, 100);
        assert!(claims.bytes() == 0, "there is no claim outside a cluster");
        claims.note(session, 20, 100);
        claims.note(session, 10, 110);
        assert!(claims.is_outdated(session, 19, 159) && claims.is_outdated(session, 0, 100));
        assert!(!claims.is_outdated(session, 20, 100) && !claims.is_outdated(session, 21, 100));
        assert!(!claims.is_outdated(Party::qos2_publisher(2), 1, 100));
        assert!(!claims.is_outdated(session, 19, 160));
        claims.note(session, 30, 150);
        claims.forget_old(209);
        assert!(
            claims.is_outdated(session, 29, 209),
            "the newer entry stays"
        );
        claims.forget_old(210);
        assert_eq!((claims.bytes(), claims.by_session.len()), (0, 0));
    }
}
