//! Commits the writes of homes through an engine: an ordered log on disk or in a cluster.
//!
//! A write is admitted, committed and applied:
//! 1. The home admits it. Rights, limits and room of this process can refuse it only here.
//! 2. The home encodes it as a record (`record`) into the open batch of its partition (`batch`). At the end of the turn the batch is handed to the
//!    engine ([`Io::append`](crate::Io::append)). The request waits in the queue of its partition (`queue`) until
//!    [`Input::Committed`](crate::Input::Committed) reports that the log has the batch.
//! 3. The home applies it: only now it has an offset, an answer and deliveries.
//!
//! Without an engine a write is applied in the call that admits it, and no record is encoded ([`World::appends`](crate::World::appends)).
//!
//! The engine need not be reliable: its log must be ordered, and a batch that is appended again and again must be in it at some time. Batches
//! have consecutive numbers for each writer, and are valid in that order. A duplicate is void; so is a batch after a gap, which its writer appends
//! again.
//!
//! A replicated log ([`World::is_shared`](crate::World::is_shared): a cluster) has several writers. Batches of other writers are applied in the
//! order of the log, with those of this process. The log gives each record its offset, `sequence << 12 | place in the batch`
//! ([`OFFSET_BITS`](crate::OFFSET_BITS)), and its second.
//!
//! Invariants: the records of a partition are applied in the order of the log, and applying refuses none. The requests of a shard to a partition
//! take effect in the order in which they were made, so that a subscription sees all earlier publishes.

pub mod batch;
mod batches;
pub mod log_retention;
pub(crate) mod queue;
pub(crate) mod record;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use batch::Header;

use crate::base::placement::Placement;
use crate::base::snapshot::Damaged;

/// A batch of records of one partition, to be appended to the log.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The decoded header. The numbers of a writer's batches in a partition are 1, 2, 3, ...
    pub header: Header,
    /// The encoded header and records.
    pub bytes: Arc<[u8]>,
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The report of an engine that the log of a partition has a batch. Reports are in the order of the log.
#[derive(Debug)]
pub struct Committed {
    /// The batch's header. If the log gives offsets, `first` is the offset that it gave, and `unix_s` the second in which it stored the batch, by its
    /// own clock. So no process's clock decides for others.
    pub header: Header,
    /// The batch, if the log has other writers. It is ignored if this process wrote it.
    pub batch: Option<ForeignBatch>,
}

/// A checked batch that another process may have written. Its bytes count in a backlog until it is applied.
#[derive(Debug)]
pub struct ForeignBatch {
    bytes: Arc<[u8]>,
    backlog: Backlog,
}

impl ForeignBatch {
    /// Checks a batch of the log ([`batch::check`]), and counts it in this backlog.
    ///
    /// # Errors
    /// Why it is void.
    pub fn checked(
        bytes: Arc<[u8]>,
        placement: Placement,
        backlog: &Backlog,
    ) -> Result<(Header, ForeignBatch), Damaged> {
        let header = batch::check(&bytes, placement, true)?;
        backlog.0.fetch_add(bytes.len(), Relaxed);
        let backlog = backlog.clone();
        Ok((header, ForeignBatch { bytes, backlog }))
    }

    /// The header and the records.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl Drop for ForeignBatch {
    fn drop(&mut self) {
        self.backlog.0.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// The bytes of batches that the engine has reported and that are not applied yet. An engine stops reading its log while they are many.
#[derive(Clone, Debug, Default)]
pub struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}
