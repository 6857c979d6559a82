//! Topics with interest (with subscribers) at other nodes of the cluster, as those nodes report them.
//!
//! Each node reports in a *stream*: a snapshot first, then every change. A topic is listed while at least one stream contains it. A node that starts
//! over uses a new stream. Its old stream is forgotten when the new snapshot is complete, so followers see no interruption.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Bound::{Excluded, Unbounded};

/// The maximum number of streams at a time: each topic has a bit for each stream.
pub const STREAMS: u8 = 64;
/// Bytes of a topic besides its name: its share of a tree node, and the allocator's rounding.
const TOPIC_BYTES: usize = 56;

/// The topics with interest at other nodes.
#[derive(Default)]
pub(super) struct RemoteInterest {
    streams_by_topic: BTreeMap<Box<[u8]>, u64>,
    name_bytes: usize,
}

impl RemoteInterest {
    pub fn has(&self, name: &[u8]) -> bool {
        !self.streams_by_topic.is_empty() && self.streams_by_topic.contains_key(name)
    }

    /// The first topic after `name`, in the order of names.
    pub fn next_after(&self, name: &[u8]) -> Option<&[u8]> {
        let names_after = (Excluded(name), Unbounded);
        let next = self.streams_by_topic.range::<[u8], _>(names_after).next();
        next.map(|(name, _)| &name[..])
    }

    /// Adds a topic to a stream. Returns whether the topic was in no stream before; `None` if there are `topics_max` topics already.
    pub fn add(&mut self, stream: u8, name: &[u8], topics_max: usize) -> Option<bool> {
        if let Some(streams) = self.streams_by_topic.get_mut(name) {
            *streams |= 1 << stream;
            return Some(false);
        }
        if self.streams_by_topic.len() >= topics_max {
            return None;
        }
        self.name_bytes += name.len();
        self.streams_by_topic.insert(name.into(), 1 << stream);
        Some(true)
    }

    /// Removes a topic from a stream. Returns whether it is in no stream now.
    pub fn remove(&mut self, stream: u8, name: &[u8]) -> bool {
        let Some(streams) = self.streams_by_topic.get_mut(name) else {
            return false;
        };
        *streams &= !(1 << stream);
        let is_last = *streams == 0;
        if is_last {
            self.name_bytes -= name.len();
            self.streams_by_topic.remove(name);
        }
        is_last
    }

    pub fn bytes(&self) -> usize {
        self.name_bytes + self.streams_by_topic.len() * TOPIC_BYTES
    }
}
