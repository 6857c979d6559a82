//! The records of homes, on their way through an engine.
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
//! A log that several processes write (a cluster: [`World::is_shared`](crate::World::is_shared)) also brings the batches of other writers, which are
//! applied in the order of the log with those of this process. Such a log gives records their offsets and their second:
//! `sequence << 12 | place in the batch` ([`OFFSET_BITS`](crate::OFFSET_BITS)).
//!
//! Invariants: the records of a partition are applied in the order of the log, and none is refused then; what a shard asks of a partition
//! takes effect in the order in which it asked, so that a subscription sees what was published before it.

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

/// A batch of records of one partition, for its engine.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The header in its bytes. The numbers of its writer and partition are 1, 2, 3, ...
    pub header: Header,
    /// The header and the records.
    pub bytes: Arc<[u8]>,
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A batch stands in the log of its partition. The engine says so in the order of the log.
#[derive(Debug)]
pub struct Committed {
    /// Its header. Where the log gives offsets, `first` is the one that the log gives, and `unix_s` the second in which the log has stored it, by
    /// the log's clock. So no process's clock decides anything for others.
    pub header: Header,
    /// Its bytes, where the log has other writers. Those of a batch of this process are not looked at.
    pub batch: Option<ForeignBatch>,
}

/// A batch that may be another process's, checked. Its bytes count in a backlog until it is applied.
#[derive(Debug)]
pub struct ForeignBatch {
    bytes: Arc<[u8]>,
    backlog: Backlog,
}

impl ForeignBatch {
    /// Checks a batch of the log ([`batch::check`]), which counts in this backlog from now on.
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

/// The bytes of batches that the engine has told, and that are not applied. An engine that finds many reads no further in its log.
#[derive(Clone, Debug, Default)]
pub struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// So many bytes.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}
