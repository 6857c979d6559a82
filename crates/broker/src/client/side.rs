//! The side row of a connection: state that few connections need, whatever their protocol. It exists only while it is needed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::client::row::StartSecond;
use crate::client::types::{ProtocolTypes, SideState};
use crate::filters::matching::FilterSubscriptions;

/// One of several topics of a connection.
#[derive(Default)]
pub(crate) struct ListedSubscription<S> {
    /// The row of the topic in the shard's table of topics.
    pub topic: u32,
    /// The connection's place among the topic's members.
    pub member_place: u32,
    /// `COUNTED`, `LIVE` and `MEMBER`.
    pub flags: u8,
    /// Counts the subscriptions that have had this index of the list.
    pub serial: u16,
    /// For a filter with wildcards: the serial of its group among the connection's filters, plus 1. Otherwise 0.
    pub filter: u32,
    /// The offset up to which the connection has seen the topic.
    pub offset: u64,
    /// The epoch of that offset.
    pub epoch: u32,
    /// State that only the connection's protocol reads.
    pub protocol_state: S,
}

/// A subscription that must read from the log before it gets live messages (sent when they are published) again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BehindSubscription {
    /// The index of the subscription among the connection's topics.
    pub sub_index: u32,
    /// The offset up to which the connection has seen the topic.
    pub offset: u64,
    /// The epoch of that offset.
    pub epoch: u32,
}

impl BehindSubscription {
    pub fn new(sub_index: u32, offset: u64, epoch: u32) -> BehindSubscription {
        BehindSubscription {
            sub_index,
            offset,
            epoch,
        }
    }
}

/// What is known of the bytes of the names of all subscriptions of a connection. To count them takes a look-up of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NamesBytes {
    /// A subscription has ended, or they were never counted.
    #[default]
    Unknown,
    /// A subscription that was counted may have been refused.
    AtMost(u32),
    Exactly(u32),
}

/// State that few connections need.
pub(crate) struct SideRow<P: ProtocolTypes> {
    /// The topics, if the connection has several.
    pub list: Vec<ListedSubscription<P::SubscriptionState>>,
    /// The pages that were requested for the list and are not answered.
    pub pending_pages: u32,
    /// The bytes of the list's entries for shared subscriptions (one member of a group gets each message). A sum, since the list
    /// may be long.
    pub share_entry_bytes: u32,
    pub names_bytes: NamesBytes,
    /// The hash of the names of the topics in `list`.
    pub name_set_hash: u32,
    /// The subscriptions that fell behind, and the offsets that they have seen.
    pub behind: Vec<BehindSubscription>,
    /// The subscriptions by filter.
    pub filters: Option<Box<FilterSubscriptions>>,
    /// State of the connection's protocol.
    pub protocol_state: P::SideState,
    /// When the connection began. It is stored here while there is a side row.
    pub start_second: StartSecond,
    /// The bytes of the side row that are charged to the account.
    charged_bytes: usize,
}

impl<P: ProtocolTypes> Default for SideRow<P> {
    fn default() -> Self {
        SideRow {
            list: Vec::new(),
            pending_pages: 0,
            share_entry_bytes: 0,
            names_bytes: NamesBytes::default(),
            name_set_hash: 0,
            behind: Vec::new(),
            filters: None,
            protocol_state: P::SideState::default(),
            start_second: StartSecond::default(),
            charged_bytes: 0,
        }
    }
}

impl<P: ProtocolTypes> SideRow<P> {
    /// The bytes of the side row and its heap, with its part of shared messages.
    pub fn weight(&self) -> usize {
        self.unshared_bytes() + self.protocol_state.shared_weight()
    }

    /// The same bytes without large messages.
    fn unshared_bytes(&self) -> usize {
        size_of::<SideRow<P>>()
            + self.list.capacity() * size_of::<ListedSubscription<P::SubscriptionState>>()
            + self.share_entry_bytes as usize
            + self.behind.capacity() * size_of::<BehindSubscription>()
            + self.filters.as_ref().map_or(0, |filters| filters.bytes())
            + self.protocol_state.bytes()
    }

    /// Whether no subscription is behind, no page is in flight, and the connection's protocol needs no state here.
    pub fn is_idle(&self) -> bool {
        self.behind.is_empty() && self.pending_pages == 0 && self.protocol_state.is_idle()
    }

    /// Updates the charge. Returns the charged bytes before and now.
    pub fn weigh(&mut self) -> (usize, usize) {
        let now = self.unshared_bytes();
        (core::mem::replace(&mut self.charged_bytes, now), now)
    }
}
