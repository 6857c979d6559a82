//! What homes write, on its way through an engine.
//!
//! A write is admitted, committed and applied. A home admits it: what depends on this process (rights, limits, room) refuses it now
//! or never. Then the home encodes it as a record (`record`) and appends it to the log of its partition, which an engine keeps
//! ([`Io::append`](crate::Io::append)); it waits in the queue of its partition (`queue`) until the engine says that it is kept.
//! Only then is it applied: positions, answers and deliveries exist from then on. Without an engine a write is applied in the call
//! that admits it, and no record is encoded ([`World::appends`](crate::World::appends)).
//!
//! Invariants: the records of a partition are applied in the order in which they are kept; what a shard asks of a partition takes effect in the
//! order in which it asked, so that a subscription sees what was published before it.

pub(crate) mod queue;
pub(crate) mod record;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;

/// Records of a partition for its engine, at most one batch of each partition at a time.
///
/// The engine keeps a batch as a whole or not at all. It decides once, and answers with
/// [`Input::Committed`](crate::Input::Committed) or [`Input::Failed`](crate::Input::Failed). A batch whose answer does not come is
/// appended again; the engine knows it by its number, does not keep it twice, and repeats its answer.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The partition.
    pub partition: PartitionId,
    /// The number of the batch: each batch of a partition has a higher one than those before.
    pub number: u64,
    /// The records, in order.
    pub records: Vec<Arc<[u8]>>,
}
