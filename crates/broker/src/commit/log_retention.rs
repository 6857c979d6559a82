//! How much of the log of a partition checkpoints make needless, and where a node that knows nothing begins to read.
//!
//! Invariant: a batch stands in the log, or a checkpoint contains it. So every node can build the state of all answered messages.

use crate::base::planted::{self, Fault};

/// Checkpoints that are kept of each partition: if the newest one is damaged, a node can begin with the one before.
pub const CHECKPOINTS_KEPT: usize = 2;

/// The log of a partition: the batches that it has, and the checkpoints that it can be read on from.
#[derive(Clone, Copy, Debug)]
pub struct LogExtent<'a> {
    /// The number of its first batch; batches have the numbers 1, 2, 3, and so on.
    pub first: u64,
    /// The last batch that each checkpoint contains, the newest first.
    pub contained: &'a [u64],
}

/// Batches that no checkpoint contains are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The last one of them.
    pub until: u64,
}

impl LogExtent<'_> {
    /// The batch before which all may be removed, if those before `wanted` are not wanted any more. A log that is full is cut behind the newest
    /// checkpoint when the one before leaves nothing to remove: the checkpoint must be whole then.
    ///
    /// The last batch of a checkpoint stays: by it the checkpoint is known as one of this log.
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

    /// The batch behind which a node reads the log, which begins with the newest of the checkpoints.
    ///
    /// # Errors
    /// There is a hole between them: without its batches the node would serve less than was answered.
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
            // One checkpoint may be damaged.
            (1, &[40], 50, false, 0),
            (1, &[40, 20], 50, false, 20),
            (1, &[40, 20], 10, false, 10),
            (1, &[40, 20], 50, true, 20),
            // Nobody may publish until there is room.
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
