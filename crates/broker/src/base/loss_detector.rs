//! Finds the partitions that may have lost batches in a damaged log.
//!
//! The batches of a writer in a partition are numbered without gaps. For a damaged place of the log, the number of lost batches may be known. A partition
//! has certainly lost a batch if a number is missing around a damaged place. It may have lost one if no batch of the same writer after that place proves
//! the opposite. It has lost none if the missing numbers of all partitions account for all lost batches.
//!
//! Invariant: a partition that has lost a batch is always reported.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;

#[derive(Clone, Copy, Default)]
struct Batch {
    writer: u64,
    number: u64,
    /// How many damaged places of the log precede the batch.
    damages_before: u64,
}

#[derive(Clone, Copy, Default)]
struct PartitionBatches {
    first: Option<Batch>,
    last: Batch,
    /// The number of missing batch numbers: batches that are certainly lost.
    missing: u64,
    /// More batches may be lost.
    may_miss_more: bool,
}

/// Detects lost batches while the part of the log after the checkpoints is replayed.
pub struct LossDetector {
    partitions: Vec<PartitionBatches>,
    damages: u64,
    /// The number of batches that are lost at all damaged places together, if it is known for each place.
    lost: Option<u64>,
}

impl LossDetector {
    /// A detector for a log with `partitions` partitions. It has recorded nothing.
    pub fn new(partitions: PartitionId) -> LossDetector {
        LossDetector {
            partitions: alloc::vec![PartitionBatches::default(); partitions.into()],
            damages: 0,
            lost: Some(0),
        }
    }

    /// Records a damaged place at this point of the log. `batches` is the number of batches that are lost there, if known.
    pub fn record_damage(&mut self, batches: Option<u64>) {
        self.damages += 1;
        self.lost = self.lost.zip(batches).map(|(all, more)| all + more);
    }

    /// Whether a damaged place was recorded.
    pub fn is_damaged(&self) -> bool {
        self.damages > 0
    }

    /// Records the next batch of the log. The caller skips batches that a checkpoint contains.
    pub fn record_batch(&mut self, partition: PartitionId, writer: u64, number: u64) {
        let batch = Batch {
            writer,
            number,
            damages_before: self.damages,
        };
        let Some(known) = self.partitions.get_mut(usize::from(partition)) else {
            return;
        };
        match known.first {
            None => known.first = Some(batch),
            Some(_) => known.follow(known.last, batch),
        }
        known.last = batch;
    }

    /// The partitions that may have lost a batch. Called after the last batch. `checkpoints` has, for each partition, the writer and the
    /// number of the last batch in its checkpoint.
    pub fn partitions_with_loss(
        mut self,
        checkpoints: impl IntoIterator<Item = (PartitionId, (u64, u64))>,
    ) -> Vec<PartitionId> {
        let mut contained = alloc::vec![Batch::default(); self.partitions.len()];
        for (partition, (writer, number)) in checkpoints {
            if let Some(last) = contained.get_mut(usize::from(partition)) {
                (last.writer, last.number) = (writer, number);
            }
        }
        for (known, contained) in self.partitions.iter_mut().zip(contained) {
            if let Some(first) = known.first {
                known.follow(contained, first);
            }
            known.may_miss_more |= known.last.damages_before < self.damages;
        }
        let missing = self.partitions.iter().map(|known| known.missing).sum();
        let all_are_known = self.lost == Some(missing);
        let may_have_lost =
            |known: &PartitionBatches| known.missing > 0 || known.may_miss_more && !all_are_known;
        let all = (0..).zip(&self.partitions);
        all.filter(|(_, known)| may_have_lost(known))
            .map(|(partition, _)| partition)
            .collect()
    }
}

impl PartitionBatches {
    /// Counts the missing numbers between a batch and the one before it in the partition, if the log is damaged there.
    fn follow(&mut self, before: Batch, batch: Batch) {
        if batch.damages_before > before.damages_before {
            let is_same_writer = before.writer == batch.writer;
            // Each writer numbers from 1.
            let last = if is_same_writer { before.number } else { 0 };
            self.missing += batch.number.saturating_sub(last + 1);
            self.may_miss_more |= !is_same_writer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The partitions that are reported if these of four batches are `lost`. `counts`: whether the number of lost batches is known.
    fn touched(
        lost: &[usize],
        counts: bool,
        checkpoints: &[(PartitionId, (u64, u64))],
    ) -> Vec<u16> {
        let all = [(0, 1), (1, 1), (0, 2), (1, 2)];
        let mut it = LossDetector::new(3);
        for (at, (partition, number)) in all.into_iter().enumerate() {
            match lost.contains(&at) {
                true => it.record_damage(counts.then_some(1)),
                false => it.record_batch(partition, 7, number),
            }
        }
        it.partitions_with_loss(checkpoints.iter().copied())
    }

    #[test]
    fn partitions_that_have_lost_nothing_are_not_touched() {
        assert!(touched(&[], true, &[]).is_empty());
        // A number of partition 1 is missing, which accounts for the lost batch.
        assert_eq!(touched(&[1], true, &[(1, (7, 0))]), [1]);
        // Partitions 0 and 2 have no batch after the damage, so the lost batch may be of either.
        assert_eq!(touched(&[2], true, &[]), [0, 2]);
        // The number of lost batches is unknown.
        assert_eq!(touched(&[1], false, &[]), [1, 2]);
    }

    #[test]
    fn checkpoints_say_which_batch_is_the_next() {
        let mut it = LossDetector::new(2);
        it.record_damage(Some(2));
        it.record_batch(0, 7, 6);
        it.record_batch(1, 7, 3);
        assert_eq!(it.partitions_with_loss([(0, (7, 5)), (1, (7, 0))]), [1]);
    }

    proptest! {
        /// Writers change, batches are lost, and checkpoints contain the first batches.
        #[test]
        fn no_loss_is_silent(
            all in prop::collection::vec((0..3_u16, any::<bool>()), 1..40),
            writers in prop::collection::btree_set(1..40_usize, 0..3),
            contained in 0..10_usize,
            counts: bool,
        ) {
            let (mut numbers, mut writer) = ([0; 3], 1);
            let (mut it, mut checkpoints) = (LossDetector::new(3), [(0, 0); 3]);
            let (mut really, mut run) = ([false; 3], 0);
            for (at, (partition, is_lost)) in all.iter().enumerate() {
                if writers.contains(&at) {
                    (numbers, writer) = ([0; 3], writer + 1);
                }
                let place = usize::from(*partition);
                numbers[place] += 1;
                if at < contained {
                    checkpoints[place] = (writer, numbers[place]);
                } else if *is_lost {
                    really[place] = true;
                    run += 1;
                } else {
                    if run > 0 {
                        it.record_damage(counts.then_some(run));
                    }
                    run = 0;
                    it.record_batch(*partition, writer, numbers[place]);
                }
            }
            if run > 0 {
                it.record_damage(None);
            }
            let is_damaged = it.is_damaged();
            let touched = it.partitions_with_loss((0..).zip(checkpoints));
            for partition in 0..3 {
                prop_assert!(!really[usize::from(partition)] || touched.contains(&partition));
            }
            prop_assert!(is_damaged || touched.is_empty());
        }
    }
}
