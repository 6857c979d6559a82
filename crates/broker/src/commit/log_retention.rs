//! Which batches of a partition's log may be removed, since checkpoints contain them, and where a node begins to read at its start.
//!
//! Invariant: the log has a batch, or a checkpoint contains it. So every node can restore the state of all acknowledged messages.

use crate::base::planted::{self, Fault};

/// How many checkpoints of each partition are kept: if the newest one is damaged, a node can begin with the one before.
pub const CHECKPOINTS_KEPT: usize = 2;

/// What exists of a partition's log: its first batch, and the checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct LogExtent<'a> {
    /// The number of the first batch in the log; batches have the numbers 1, 2, 3, and so on.
    pub first: u64,
    /// The last batch of each checkpoint, the newest checkpoint first.
    pub contained: &'a [u64],
}

/// Batches are missing: neither the log nor a checkpoint has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The last missing batch.
    pub until: u64,
}

impl LogExtent<'_> {
    /// All batches before the returned one may be removed. `wanted` is the first batch that is still wanted. The older checkpoint must contain what
    /// is removed. If the log is full and that removes nothing, the newest checkpoint suffices; the caller must verify that it is intact.
    ///
    /// The last batch of a checkpoint stays, since it identifies the checkpoint as one of this log.
    pub fn removable_before(&self, wanted: u64, is_full: bool) -> u64 {
        if planted::is(Fault::EarlyPurge) {
            return wanted;
        }
        let older = self.contained.get(CHECKPOINTS_KEPT - 1);
        let newest = self.contained.first().filter(|_| is_full);
        let until = |checkpoint: Option<&u64>| checkpoint.map_or(0, |it| wanted.min(*it));
        match until(older) {
            before if before > self.first => before,
            _ => until(newest),
        }
    }

    /// The last batch of the newest checkpoint: a node begins with that checkpoint and reads the log after this batch.
    ///
    /// # Errors
    /// Batches are missing between them: without these the node would lack acknowledged messages.
    pub fn replay_after(&self) -> Result<u64, Hole> {
        let contained = self.contained.first().copied().unwrap_or(0);
        match contained + 1 < self.first {
            true => Err(Hole {
                until: self.first - 1,
            }),
            false => Ok(contained),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_is_needless_that_the_kept_checkpoints_do_not_contain() {
        for (first, contained, wanted, is_full, before) in [
            (1, &[][..], 50, false, 0),
            (1, &[], 50, true, 0),
            // The only checkpoint may be damaged.
            (1, &[40], 50, false, 0),
            (1, &[40, 20], 50, false, 20),
            (1, &[40, 20], 10, false, 10),
            (1, &[40, 20], 50, true, 20),
            // Nobody can publish until there is room.
            (1, &[40], 50, true, 40),
            (20, &[40, 20], 50, true, 40),
            (20, &[40, 20], 50, false, 0),
            (20, &[40, 20], 30, true, 30),
        ] {
            let history = LogExtent { first, contained };
            let found = history.removable_before(wanted, is_full);
            assert_eq!(found, before, "{history:?}, {wanted}, {is_full}");
        }
    }

    #[test]
    fn a_node_begins_behind_a_checkpoint_that_the_log_goes_on_from() {
        for (first, contained, expected) in [
            (1, &[][..], Ok(0)),
            (2, &[], Err(Hole { until: 1 })),
            (1, &[40], Ok(40)),
            (41, &[40, 20], Ok(40)),
            (42, &[40, 20], Err(Hole { until: 41 })),
        ] {
            let history = LogExtent { first, contained };
            assert_eq!(history.replay_after(), expected, "{history:?}");
        }
    }
}
