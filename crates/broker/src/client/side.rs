//! The side row of a connection: what few connections need, whatever their protocol. It exists only while something needs it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::client::row::Began;
use crate::client::types::{Held, ProtocolTypes};
use crate::filters::matching::FilterSubscriptions;

/// One of several topics of a connection.
#[derive(Default)]
pub(crate) struct Sub<S> {
    /// The carrier's topic.
    pub topic: u32,
    /// The place among its members.
    pub place: u32,
    /// `COUNTED` and `LIVE`.
    pub flags: u8,
    /// The offset up to which it has seen the topic.
    pub offset: u64,
    /// The life of the log.
    pub epoch: u32,
    /// State of the connection's protocol; only that protocol looks at it.
    pub own: S,
}

/// A subscription that must read on from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Which of the connection's topics.
    pub part: u32,
    /// The offset up to which it has seen the topic.
    pub offset: u64,
    /// The life of the log.
    pub epoch: u32,
}

impl Behind {
    pub fn at(part: u32, offset: u64, epoch: u32) -> Behind {
        Behind {
            part,
            offset,
            epoch,
        }
    }
}

/// State that few connections need.
pub(crate) struct Extra<P: ProtocolTypes> {
    /// Several topics.
    pub list: Vec<Sub<P::Subscribed>>,
    /// Bytes of those of them that are parts in shared subscriptions: a sum, since the list may be long.
    pub shared_bytes: usize,
    /// The hash of their names.
    pub set: u32,
    /// Subscriptions that fell behind, with the offsets that they have seen.
    pub behind: Vec<Behind>,
    /// Its filters.
    pub filters: Option<Box<FilterSubscriptions>>,
    /// State that its protocol needs.
    pub own: P::Held,
    /// When the connection began: the row has no room for that while it has a side row.
    pub began: Began,
    /// Bytes of it that the account was charged.
    charged_bytes: usize,
}

impl<P: ProtocolTypes> Default for Extra<P> {
    fn default() -> Self {
        Extra {
            list: Vec::new(),
            shared_bytes: 0,
            set: 0,
            behind: Vec::new(),
            filters: None,
            own: P::Held::default(),
            began: Began::default(),
            charged_bytes: 0,
        }
    }
}

impl<P: ProtocolTypes> Extra<P> {
    /// Bytes of the row and of all that it holds; of shared messages its part.
    pub fn weight(&self) -> usize {
        self.own_bytes() + self.own.shared_weight()
    }

    /// The same without large messages.
    fn own_bytes(&self) -> usize {
        size_of::<Extra<P>>()
            + self.list.capacity() * size_of::<Sub<P::Subscribed>>()
            + self.shared_bytes
            + self.behind.capacity() * size_of::<Behind>()
            + self.filters.as_ref().map_or(0, |filters| filters.bytes())
            + self.own.bytes()
    }

    /// Whether no subscription is behind, and the connection's protocol needs nothing of its own state any more.
    pub fn is_idle(&self) -> bool {
        self.behind.is_empty() && self.own.is_idle()
    }

    /// Bytes charged to the account for it so far, and those charged from now on.
    pub fn weigh(&mut self) -> (usize, usize) {
        let now = self.own_bytes();
        (core::mem::replace(&mut self.charged_bytes, now), now)
    }
}
