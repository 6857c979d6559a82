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

    /// The will that was inserted last, if it is still in flight.
    pub fn newest_mut(&mut self) -> Option<&mut PublishedWill> {
        self.in_flight.get_mut(&self.last_number)
    }

    /// Bytes of the wills in flight that this table keeps.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
