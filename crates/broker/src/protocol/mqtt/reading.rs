//! The read positions of a client's subscriptions while some of them have not reached the newest message.

use crate::base::ids::PartitionId;

/// A subscription's start in one partition: it sends all matching messages after it. Earlier ones are left to overlapping subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The subscription's index in the connection's list.
    pub part: u32,
    /// The partition.
    pub partition: PartitionId,
    /// The offset before the first message that it sends.
    pub offset: u64,
}

/// A subscription that is being sent the latest values of its topic.
pub struct LatestShown {
    /// The subscription's index in the connection's list.
    pub part: u32,
    /// The values up to this offset were sent.
    pub offset: u64,
    /// The last offset to send. Later messages are sent by the subscription itself.
    pub until: u64,
    /// A page was requested, and the home has not answered.
    pub asked: bool,
    /// Since that request, the client has subscribed again and gets all values once more.
    pub anew: bool,
}
