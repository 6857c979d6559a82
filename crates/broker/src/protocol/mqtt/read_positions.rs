//! The positions at which a client's subscriptions read, while some of them have not reached the newest message.

use crate::base::ids::PartitionId;

/// The offset in one partition after which a subscription sends all messages that match it. Overlapping subscriptions send earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadStart {
    /// The subscription's index in the connection's list.
    pub sub_index: u32,
    /// The partition.
    pub partition: PartitionId,
    /// The offset before the first message that it sends.
    pub offset: u64,
}

/// The progress of sending the latest values of a topic to a new subscription.
pub struct LatestValuesRead {
    /// The subscription's index in the connection's list.
    pub sub_index: u32,
    /// The client was sent the values up to this offset.
    pub sent_offset: u64,
    /// The subscription itself sends the messages after this offset.
    pub last_offset: u64,
    /// A page was requested, and the home has not answered.
    pub is_requested: bool,
    /// The client has subscribed again since that request, so all values are sent once more.
    pub must_restart: bool,
}
