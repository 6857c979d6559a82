//! Decides which batches of a partition's log may be removed because checkpoints contain them, and where a node begins to read the log when
//! it starts.
//!
//! Invariant: each batch is in the log or in a checkpoint, so every node can restore all acknowledged messages.

use crate::base::planted::{self, Fault};

/// The number of checkpoints that are kept of each partition: if the newest checkpoint is damaged, a node can start from the older one.
pub const CHECKPOINTS_KEPT: usize = 2;

/// The stored batches and checkpoints of a partition.
#[derive(Clone, Copy, Debug)]
pub struct LogExtent<'a> {
    /// The number of the first batch in the log. All writers' batches are numbered together: 1, 2, 3, and so on.
    pub first_batch: u64,
    /// For each checkpoint, the newest first: the number of the last batch that the checkpoint contains.
    pub checkpoint_ends: &'a [u64],
}

/// Some batches are neither in the log nor in the newest checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The number of the last missing batch.
    pub last_missing: u64,
}

impl LogExtent<'_> {
    /// The number of the first batch that must stay in the log. `first_wanted` is the first batch to keep by the log's limits of bytes and age. A batch
    /// before it may be removed only if the older checkpoint contains the batch. If this rule frees nothing and the log is full, it is enough that the
    /// newest checkpoint contains the batch: then the caller must verify that the newest checkpoint is intact.
    ///
    /// The last batch of a checkpoint stays in the log, so that a node that starts can verify that the checkpoint belongs to this log.
    pub fn first_to_keep(&self, first_wanted: u64, is_full: bool) -> u64 {
        if planted::is(Fault::EarlyPurge) {
            return first_wanted;
        }
        let older_checkpoint = self.checkpoint_ends.get(CHECKPOINTS_KEPT - 1);
        let newest_checkpoint = self.checkpoint_ends.first().filter(|_| is_full);
        let up_to_end_of =
            |checkpoint: Option<&u64>| checkpoint.map_or(0, |it| first_wanted.min(*it));
        match up_to_end_of(older_checkpoint) {
            before if before > self.first_batch => before,
            _ => up_to_end_of(newest_checkpoint),
        }
    }

    /// The last batch of the newest checkpoint; 0 without a checkpoint. A node begins with this checkpoint and reads the log after this batch.
    ///
    /// # Errors
    /// Batches between the checkpoint and the log are missing, so the node would lack acknowledged messages.
    pub fn replay_after(&self) -> Result<u64, Hole> {
        let contained = self.checkpoint_ends.first().copied().unwrap_or(0);
        match contained + 1 < self.first_batch {
            true => Err(Hole {
                last_missing: self.first_batch - 1,
            }),
            false => Ok(contained),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_removed_only_if_the_kept_checkpoints_contain_it() {
        for (first_batch, checkpoint_ends, first_wanted, is_full, first_kept) in [
            (1, &[][..], 50, false, 0),
            (1, &[], 50, true, 0),
            // The only checkpoint may be damaged, so nothing is removed.
            (1, &[40], 50, false, 0),
            (1, &[40, 20], 50, false, 20),
            (1, &[40, 20], 10, false, 10),
            (1, &[40, 20], 50, true, 20),
            // Nobody can publish while the log is full, so the newest checkpoint is enough.
            (1, &[40], 50, true, 40),
            (20, &[40, 20], 50, true, 40),
            (20, &[40, 20], 50, false, 0),
            (20, &[40, 20], 30, true, 30),
        ] {
            let extent = LogExtent {
                first_batch,
                checkpoint_ends,
            };
            let found = extent.first_to_keep(first_wanted, is_full);
            assert_eq!(found, first_kept, "{extent:?}, {first_wanted}, {is_full}");
        }
    }

    #[test]
    fn node_starts_from_a_checkpoint_only_if_the_log_continues_where_it_ends() {
        for (first_batch, checkpoint_ends, expected) in [
            (1, &[][..], Ok(0)),
            (2, &[], Err(Hole { last_missing: 1 })),
            (1, &[40], Ok(40)),
            (41, &[40, 20], Ok(40)),
            (42, &[40, 20], Err(Hole { last_missing: 41 })),
        ] {
            let extent = LogExtent {
                first_batch,
                checkpoint_ends,
            };
            assert_eq!(extent.replay_after(), expected, "{extent:?}");
        }
    }
}
