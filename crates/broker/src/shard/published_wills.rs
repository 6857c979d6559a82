//! The wills of recorded MQTT sessions whose messages are in flight to the log (see `wills.rs`), and the claims that wait for these wills. The client is
//! charged for the wills that this table keeps, as for the bytes of an absent session.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};

use crate::base::ids::ShardId;
use crate::budget::admission::{Admission, Party};
use crate::budget::in_flight::PartyCharge;
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
    /// In a cluster, if the will is that of a [retired token](crate::home::retired_tokens): the index of the token's partition at this home, and the
    /// token's number.
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

/// The maximum number of claims to one session that wait. While the log does not commit, a client that connects again and again leaves a claim each time.
const WAITING_CLAIMS_MAX: usize = 8;

/// A claim to a session that waits until a will is published.
pub(super) struct WaitingClaim {
    /// The shard of the connection.
    pub from: ShardId,
    /// The claim.
    pub ask: Ask,
    _charge: PartyCharge,
}

impl WaitingClaim {
    /// Charges the claim to this party, except its recorded fields, which are charged already.
    pub fn new(from: ShardId, ask: Ask, counts: &Admission, party: Party) -> WaitingClaim {
        let bytes = claim_bytes(&ask);
        WaitingClaim {
            from,
            ask,
            _charge: PartyCharge::new(counts, party, bytes),
        }
    }
}

/// The bytes of a claim that waits, except its recorded fields.
fn claim_bytes(ask: &Ask) -> usize {
    let name_bytes = match ask {
        Ask::SessionOpen { client, .. } => client.len(),
        _ => 0,
    };
    size_of::<WaitingClaim>() + name_bytes
}

/// The claims to one session that wait until a will is published, in their order.
struct WaitingClaims {
    /// The token of the will.
    will: u64,
    claims: VecDeque<WaitingClaim>,
}

/// The wills whose messages are not in the log yet, by number.
#[derive(Default)]
pub(super) struct PublishedWills {
    pub last_number: u32,
    in_flight: BTreeMap<u32, PublishedWill>,
    /// Bytes of the wills in flight that this table keeps, and of the claims that wait.
    bytes: usize,
    /// Claims to sessions that wait for these wills, by the name of the session.
    claims: BTreeMap<Box<[u8]>, WaitingClaims>,
    /// By the name of a session: the token of a will whose only copy in the log is in the record of the session. The message of the will is in flight, or
    /// will be when the record of the connection's end is committed.
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

    /// Stores that the only copy of this will in the log is in the record of the session with this name.
    pub fn insert_unpublished(&mut self, name: &[u8], will: u64) {
        self.unpublished.insert(name.into(), will);
    }

    /// The token that [`insert_unpublished`](Self::insert_unpublished) has stored for this session. A claim to the session must wait for this will.
    pub fn unpublished(&self, name: &[u8]) -> Option<u64> {
        self.unpublished.get(name).copied()
    }

    /// The token of the will for which earlier claims to this session wait already.
    pub fn awaited(&self, name: &[u8]) -> Option<u64> {
        self.claims.get(name).map(|waiting| waiting.will)
    }

    /// Lets a claim to this session wait for this will. Returns the oldest claim if too many wait: the client has probably given up its connection.
    pub fn wait(&mut self, name: &[u8], will: u64, claim: WaitingClaim) -> Option<WaitingClaim> {
        self.bytes += claim_bytes(&claim.ask);
        let waiting = self
            .claims
            .entry(name.into())
            .or_insert_with(|| WaitingClaims {
                will,
                claims: VecDeque::new(),
            });
        waiting.claims.push_back(claim);
        let has_too_many = waiting.claims.len() > WAITING_CLAIMS_MAX;
        let oldest = has_too_many.then(|| waiting.claims.pop_front()).flatten()?;
        self.bytes -= claim_bytes(&oldest.ask);
        Some(oldest)
    }

    /// Removes the claims to this session that wait for this will, and returns them. Later claims need not wait for the will.
    pub fn take_claims(&mut self, name: &[u8], will: u64) -> VecDeque<WaitingClaim> {
        if self.unpublished(name) == Some(will) {
            self.unpublished.remove(name);
        }
        if self.awaited(name) != Some(will) {
            return VecDeque::new();
        }
        let claims = self
            .claims
            .remove(name)
            .map_or_else(VecDeque::new, |waiting| waiting.claims);
        let asks = claims.iter().map(|claim| &claim.ask);
        self.bytes -= asks.map(claim_bytes).sum::<usize>();
        claims
    }

    /// The will that was inserted last, if it is still in flight.
    pub fn newest_mut(&mut self) -> Option<&mut PublishedWill> {
        self.in_flight.get_mut(&self.last_number)
    }

    /// Bytes of the wills in flight that this table keeps, and of the claims that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
