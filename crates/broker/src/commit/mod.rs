//! Commits the writes of homes through an engine: an ordered log on disk or in a cluster. A *home* is the part of a shard that keeps topics.
//!
//! A write is admitted, committed and applied:
//! 1. The home admits the write. Only this step can refuse the write: for lack of rights, by limits, or because this process has no room.
//! 2. The home encodes the write as a record (`record`) and adds the record to the open batch of its partition (`batches`). At the end of the turn the
//!    batch goes to the engine ([`Io::append`](crate::Io::append)). The request waits in the queue of its partition (`queue`) until
//!    [`Input::Committed`](crate::Input::Committed) reports that the log contains the batch.
//! 3. The home applies the write: assigns the offset, answers the client and delivers the message.
//!
//! Without an engine a write is applied in the call that admits it, and no record is encoded ([`World::appends`](crate::World::appends)).
//!
//! The engine may lose batches and store a batch twice. But its log must be ordered, and if a batch is appended again and again, the engine must finally
//! store it. The batches of a writer in a partition have consecutive numbers. A batch whose number was stored before is void (skipped by every reader).
//! A batch that comes after a missing number is void too, and its writer appends it again.
//!
//! A replicated log ([`World::is_replicated`](crate::World::is_replicated): a cluster) has several writers. The batches of all writers are
//! applied in the order of the log. The log assigns a timestamp and an offset to each record: `sequence << 12 | index in the batch`
//! ([`OFFSET_BITS`](crate::OFFSET_BITS)).
//!
//! Invariants: the records of a partition are applied in the order of the log, and no valid record is refused. The requests of a shard to a
//! partition take effect in the order in which they were made, so that a subscription sees all earlier publishes.
//!
//! Words: a *writer* is a process that writes to the log, and has a number; a *turn* is a pass of the shard's loop.

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
    /// The decoded header.
    pub header: Header,
    /// The encoded header and records.
    pub bytes: Arc<[u8]>,
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An engine's report that the log of a partition contains a batch. The reports of a partition come in the order of its log.
#[derive(Debug)]
pub struct Committed {
    /// The header of the batch. If the log assigns the offsets, `first_offset` is the first of them, and `unix_s` is the time by the log's
    /// clock at which the log stored the batch, so that no process depends on the clock of another.
    pub header: Header,
    /// The batch, if the log has other writers. Ignored if this process wrote the batch.
    pub batch: Option<ForeignBatch>,
}

/// A checked batch that another process may have written. Its bytes are counted in a [`Backlog`] until this value is dropped.
#[derive(Debug)]
pub struct ForeignBatch {
    bytes: Arc<[u8]>,
    backlog: Backlog,
}

impl ForeignBatch {
    /// Checks a batch of the log ([`batch::check`]), and adds its bytes to `backlog`.
    ///
    /// # Errors
    /// Why the batch is void.
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

/// The bytes of batches that the engine has reported and that are not applied yet. While there are many such bytes, the engine reads no further batches.
#[derive(Clone, Debug, Default)]
pub struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}
