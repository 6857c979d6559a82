//! How far subscriptions of a client have read, where some of them have not come to the newest message.

use crate::base::ids::PartitionId;

/// The offset from which on a subscription sends all that it matches in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its place in the list.
    pub part: u32,
    /// The partition.
    pub partition: PartitionId,
    /// It sends the messages after this offset.
    pub offset: u64,
}

/// A subscription that is shown the latest values of its topic.
pub struct LatestShown {
    /// Its place in the list.
    pub part: u32,
    /// The values up to this offset were shown.
    pub offset: u64,
    /// The last offset that counts: messages behind it come by the subscription.
    pub until: u64,
    /// A page was asked for and has not come.
    pub asked: bool,
    /// The client has asked for all values again since then.
    pub anew: bool,
}
