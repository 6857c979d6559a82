//! The wills of recorded MQTT sessions whose messages are in flight to the log (see `wills.rs`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
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
    pub in_flight: BTreeMap<u32, PublishedWill>,
    /// Claims to sessions that wait for these wills, by the name of the session.
    pub claims: BTreeMap<Box<[u8]>, WaitingClaims>,
}
