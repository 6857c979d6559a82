//! Topics that have interest at other nodes of a cluster, as these nodes tell it.
//!
//! Each node tells it in a *stream*: what it has first, then every change. A topic is here while at least one stream has it. A node that
//! begins anew does so in another stream; the former one is forgotten when the new one is whole, so that nothing seems to end between.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Bound::{Excluded, Unbounded};

/// Streams at a time, a bit of each topic for each.
pub const STREAMS: u8 = 64;
/// Bytes of a topic beside its name: its part of a node of the tree, and what an allocation rounds up.
const TOPIC_BYTES: usize = 56;

/// All of them.
#[derive(Default)]
pub(super) struct RemoteInterest {
    topics: BTreeMap<Box<[u8]>, u64>,
    name_bytes: usize,
}

impl RemoteInterest {
    /// Whether the topic has interest at another node.
    pub fn has(&self, name: &[u8]) -> bool {
        !self.topics.is_empty() && self.topics.contains_key(name)
    }

    /// The next topic by name.
    pub fn behind(&self, name: &[u8]) -> Option<&[u8]> {
        let behind = (Excluded(name), Unbounded);
        let next = self.topics.range::<[u8], _>(behind).next();
        next.map(|(name, _)| &name[..])
    }

    /// A stream has this topic. Says whether none had it before; `None`: there are `most` topics already.
    pub fn begin(&mut self, stream: u8, name: &[u8], most: usize) -> Option<bool> {
        if let Some(streams) = self.topics.get_mut(name) {
            *streams |= 1 << stream;
            return Some(false);
        }
        if self.topics.len() >= most {
            return None;
        }
        self.name_bytes += name.len();
        self.topics.insert(name.into(), 1 << stream);
        Some(true)
    }

    /// A stream has this topic no more. Says whether that was the last one.
    pub fn end(&mut self, stream: u8, name: &[u8]) -> bool {
        let Some(streams) = self.topics.get_mut(name) else {
            return false;
        };
        *streams &= !(1 << stream);
        let is_last = *streams == 0;
        if is_last {
            self.name_bytes -= name.len();
            self.topics.remove(name);
        }
        is_last
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.name_bytes + self.topics.len() * TOPIC_BYTES
    }
}
