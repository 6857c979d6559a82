//! Streams of events for the operator's webhooks: which topics have subscribers, who is present, and which clients connect. The server requests the
//! events of each shard by orders, so a shard never waits for the receiver of a webhook.
//!
//! A stream first contains a snapshot, then the changes. A shard keeps a bounded number of changes until the server requests them. If there are more, the
//! stream is lost, and the server begins another stream.
//!
//! In a cluster, a stream of topics reports the subscribers and members at all nodes, for the topics of one partition.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::ids::PartitionId;
use crate::base::journal::ClientEvent;
use crate::base::placement::Placement;
use crate::mail::InterestChanges;
use crate::mail::presence::MemberConn;

/// The maximum bytes of unrequested changes that a stream keeps of each kind: some thousand changes.
pub const PENDING_CHANGES_BYTES_MAX: usize = 256 << 10;

/// An order about a stream.
#[derive(Debug)]
pub enum Hooks {
    /// Report the next events of a stream.
    Next {
        /// The number of the stream.
        number: u64,
        /// The kinds of its events, the same in all orders.
        kinds: HookKinds,
        /// Its topics. With them, a new stream begins, under a number that no other stream has.
        begins: Option<SelectedTopics>,
    },
    /// End the stream with this number.
    End(u64),
}

/// Which topics a stream reports.
#[derive(Clone, Debug, Default)]
pub struct SelectedTopics {
    /// One of these filters matches the topic.
    pub filters: Vec<Box<[u8]>>,
    /// The topic is in this partition; `None`: in any.
    pub partition: Option<(Placement, PartitionId)>,
}

impl SelectedTopics {
    /// Whether the topic with this name is one of them.
    pub fn has(&self, name: &[u8]) -> bool {
        let is_in = |(placement, it): (Placement, PartitionId)| placement.partition_of(name) == it;
        self.partition.is_none_or(is_in)
            && (self.filters.iter()).any(|filter| topic::matches(filter, name))
    }
}

/// The kinds of events that a stream reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookKinds {
    /// Whether it reports the topics that have subscribers.
    pub subscribers: bool,
    /// Whether it reports the members of topics.
    pub members: bool,
    /// Whether it reports clients that connect and disconnect. Of these there is no snapshot.
    pub clients: bool,
}

/// Events of a stream.
#[derive(Debug, Default)]
pub struct HookNews {
    /// Topics that have got their first subscriber, or have lost their last one.
    pub subscribers: InterestChanges,
    /// Members that have joined or left.
    pub members: Vec<MemberChange>,
    /// Clients that have connected or disconnected.
    pub clients: Vec<ClientEvent>,
    /// Whether more events are ready.
    pub more: bool,
}

/// A member that has joined or left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// Whether the member has joined, or is in the snapshot.
    pub joins: bool,
    /// Whether the user has become present with this member, or is no longer present without it: the member is the first of its user in the topic, or was
    /// the last. True for each member in a snapshot.
    pub is_of_user: bool,
    /// The topic.
    pub topic: Box<[u8]>,
    /// Identifies the member in its topic.
    pub id: u64,
    /// The connection.
    pub at: MemberConn,
    /// The user's name; empty for an anonymous client.
    pub user: Box<[u8]>,
    /// What the member's token tells others, as JSON; empty if there is nothing.
    pub info: Box<[u8]>,
}

impl MemberChange {
    /// The bytes in memory.
    pub fn bytes(&self) -> usize {
        size_of::<MemberChange>() + self.topic.len() + self.user.len() + self.info.len()
    }
}
