//! The row of a topic at its home, the part of a shard that keeps the topic. A carrier is a shard with subscribers of the topic.

use crate::base::ids::ShardId;
use crate::base::placement::SlottedOffset;
use crate::store::blobs::{Blob, BlobOwner};
use crate::store::index::chained;
use crate::store::slab::{NONE, SlabRow};

/// Flag: a publisher has created the topic or published to it.
pub(super) const CREATED: u8 = 1;
/// Flag: the topic was deleted. The row stays, since it contains the topic's last offset.
pub(super) const DELETED: u8 = 2;
/// Flag: `carrier` is the number of a set of carriers.
pub(super) const HAS_CARRIER_SET: u8 = 4;
/// Flag: the topic may have a subscriber that takes compressed messages.
pub(super) const WANTS_DEFLATE: u8 = 8;
/// Flag: the topic is in the queue of idle topics.
pub(super) const IN_IDLE_QUEUE: u8 = 16;
/// Flag: a subscriber has asked for the topic.
pub(super) const REQUESTED: u8 = 32;
/// Flag: the topic has a retained message.
pub(super) const HAS_RETAINED: u8 = 64;
/// Flag: the topic has a subscription of QoS 1 or 2, for which its messages are kept.
pub(super) const HAS_QOS_SUBSCRIPTION: u8 = 128;

/// A topic at its home.
pub(super) struct TopicRow {
    pub hash: u32,
    /// The next row with the same place in the index, or the next vacant row.
    next: u32,
    pub name: Blob,
    /// The topic's last offset, and its slot.
    last: SlottedOffset,
    /// The chain (list) of the topic's kept messages.
    pub chain: u32,
    /// The only carrier's row for the topic, or the number of a set of carriers ([`HAS_CARRIER_SET`]).
    pub carrier: u32,
    pub last_used_s: u32,
    /// The shard of the only carrier.
    pub shard: ShardId,
    /// The serial of the only carrier's row.
    pub serial: u16,
    /// The number of subscribers at the only carrier.
    pub subscribers: u16,
    /// The number of the rule that governs the topic.
    pub rule: u8,
    pub flags: u8,
}

const _: () = assert!(size_of::<TopicRow>() == 40);

impl SlabRow for TopicRow {
    fn vacant(next: u32) -> Self {
        TopicRow {
            hash: 0,
            next,
            name: Blob::NONE,
            last: SlottedOffset::default(),
            chain: NONE,
            carrier: NONE,
            last_used_s: 0,
            shard: 0,
            serial: 0,
            subscribers: 0,
            rule: 0,
            flags: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl BlobOwner for TopicRow {
    fn blob_mut(&mut self) -> Option<&mut Blob> {
        Some(&mut self.name)
    }
}

chained!(TopicRow);

impl TopicRow {
    /// The offset of the topic's last message or deletion; before the first message, the floor of its slot.
    pub fn last_offset(&self) -> u64 {
        self.last.offset()
    }
    pub fn set_last_offset(&mut self, offset: u64) {
        self.last = SlottedOffset::new(self.slot(), offset);
    }
    pub fn slot(&self) -> u8 {
        self.last.slot()
    }
    pub fn set_slot(&mut self, slot: u8) {
        self.last = SlottedOffset::new(slot, self.last_offset());
    }
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A topic of a snapshot.
pub(crate) struct RestoredTopic {
    pub row_in_snapshot: u32,
    /// The topic's row at the home that reads the snapshot; [`NONE`] if the topic belongs to another home now.
    pub row_here: u32,
}
