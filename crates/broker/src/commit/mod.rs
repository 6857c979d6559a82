//! What homes write, on its way through an engine.
//!
//! A write is admitted, committed and applied. A home admits it: what depends on this process (rights, limits, room) refuses it now
//! or never. Then the home encodes it as a record (`record`) into the open batch of its partition (`batch`), which goes to the
//! engine at the end of the turn ([`Io::append`](crate::Io::append)); it waits in the queue of its partition (`queue`) until
//! [`Input::Committed`](crate::Input::Committed) says that the batch stands in the log. Only then is it applied: positions, answers and
//! deliveries exist from then on. Without an engine a write is applied in the call that admits it, and no record is encoded
//! ([`World::appends`](crate::World::appends)).
//!
//! The engine may be weak: its log is ordered, and has each batch at least once if it is appended until it is committed. Batches of a writer
//! count in the order of their numbers; a duplicate is void, and so is a batch behind a gap, which the writer appends again.
//!
//! Invariants: the records of a partition are applied in the order of the log, and none is refused then; what a shard asks of a partition
//! takes effect in the order in which it asked, so that a subscription sees what was published before it.

pub mod batch;
mod batches;
pub(crate) mod queue;
pub(crate) mod record;

use alloc::sync::Arc;

use crate::base::ids::PartitionId;

/// A batch of records of one partition, for its engine.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The partition.
    pub partition: PartitionId,
    /// 1, 2, 3, ... for each writer and partition.
    pub number: u64,
    /// The [header](batch::Header) and the records.
    pub bytes: Arc<[u8]>,
}

/// A batch stands in the log of its partition. The engine says so in the order of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The partition.
    pub partition: PartitionId,
    /// The process that wrote it ([`World::writer`](crate::World::writer)).
    pub writer: u64,
    /// Its number.
    pub number: u64,
    /// The offset of its first record.
    pub first: u64,
}
