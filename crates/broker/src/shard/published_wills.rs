//! The wills of recorded MQTT sessions whose messages are in flight to the log (see `wills.rs`). The bytes of those that this table keeps count for the
//! client like those of an absent session.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::{Admission, Party};
use crate::home::session_terms::LeftSession;
use crate::mail::Ask;
use crate::mail::session::Will;

/// A will whose message was sent to the home of its topic.
pub(super) struct PublishedWill {
    /// The name of the session.
    pub name: Box<[u8]>,
    /// The session, unless another connection holds it now.
    pub session: Option<LeftSession>,
    /// The token of the will.
    pub will: u64,
    /// The will, which is published again if a limit refuses it. `None` in a cluster, where it is in the table of sessions.
    pub again: Option<Box<Will>>,
    /// In a cluster, if the will is that of a [retired token](crate::home::retired_tokens): its partition at this home, and its number.
    pub retired: Option<(usize, u64)>,
}

impl PublishedWill {
    /// The party that is charged for the will, and its bytes; `None` if another table has the will.
    fn charge(&self, counts: &Admission) -> Option<(Party, usize)> {
        let will = self.again.as_ref()?;
        let party = counts.party_of_session(&self.name, will.client);
        let bytes = size_of::<(u32, PublishedWill)>() + self.name.len() + will.bytes();
        Some((party, bytes))
    }
}

/// Claims to a session that wait until a will is published, in their order.
pub(super) struct WaitingClaims {
    /// The token of the will.
    pub will: u64,
    /// The claims.
    pub claims: Vec<(ShardId, Ask)>,
}

/// The wills whose messages are not in the log yet, by number.
#[derive(Default)]
pub(super) struct PublishedWills {
    pub last_number: u32,
    in_flight: BTreeMap<u32, PublishedWill>,
    /// Bytes of the wills in flight that this table keeps.
    bytes: usize,
    /// Claims to sessions that wait for these wills, by the name of the session.
    pub claims: BTreeMap<Box<[u8]>, WaitingClaims>,
    /// By the name of a session: the token of a will that the log has only with the session. The will is in flight, or is published when the
    /// record of its connection's end is committed.
    unpublished: BTreeMap<Box<[u8]>, u64>,
}

impl PublishedWills {
    pub fn insert(&mut self, number: u32, published: PublishedWill, counts: &Admission) {
        if let Some((party, bytes)) = published.charge(counts) {
            self.bytes += bytes;
            counts.change_absent(party, 0, bytes);
        }
        self.in_flight.insert(number, published);
    }

    pub fn remove(&mut self, number: u32, counts: &Admission) -> Option<PublishedWill> {
        let published = self.in_flight.remove(&number)?;
        if let Some((party, bytes)) = published.charge(counts) {
            self.bytes -= bytes;
            counts.change_absent(party, bytes, 0);
        }
        Some(published)
    }

    /// The log has this will only with its session, until the will is in the log of its topic.
    pub fn note_unpublished(&mut self, name: &[u8], will: u64) {
        self.unpublished.insert(name.into(), will);
    }

    /// The token of the will for which a claim to this session must wait.
    pub fn unpublished(&self, name: &[u8]) -> Option<u64> {
        self.unpublished.get(name).copied()
    }

    /// Claims to this session need not wait for this will any longer. Returns those that have waited.
    pub fn take_claims(&mut self, name: &[u8], will: u64) -> Vec<(ShardId, Ask)> {
        if self.unpublished(name) == Some(will) {
            self.unpublished.remove(name);
        }
        let is_waiting = |waiting: &&WaitingClaims| waiting.will == will;
        if self.claims.get(name).filter(is_waiting).is_none() {
            return Vec::new();
        }
        let waiting = self.claims.remove(name);
        waiting.map_or_else(Vec::new, |waiting| waiting.claims)
    }

    /// The will that was inserted last, if it is still in flight.
    pub fn newest_mut(&mut self) -> Option<&mut PublishedWill> {
        self.in_flight.get_mut(&self.last_number)
    }

    /// Bytes of the wills in flight that this table keeps.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
