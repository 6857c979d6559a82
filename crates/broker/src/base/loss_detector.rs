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
    damaged_places_before: u64,
}

#[derive(Clone, Copy, Default)]
struct PartitionBatches {
    first: Option<Batch>,
    last: Batch,
    /// The number of missing batch numbers: batches that are certainly lost.
    missing: u64,
    /// More batches may be lost.
    may_lack_more: bool,
}

/// The last batch that a checkpoint contains of a partition, or that was read from the partition's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastBatch {
    /// The writer of the batch.
    pub writer: u64,
    /// The batch's number; 0 if there is no batch.
    pub number: u64,
}

/// Detects lost batches while the part of the log after the checkpoints is replayed.
pub struct LossDetector {
    partitions: Vec<PartitionBatches>,
    damaged_places: u64,
    /// The number of batches that are lost at all damaged places together, if it is known for each place.
    lost_batches: Option<u64>,
}

impl LossDetector {
    /// A detector for a log with `partitions` partitions. It has recorded nothing.
    pub fn new(partitions: PartitionId) -> LossDetector {
        LossDetector {
            partitions: alloc::vec![PartitionBatches::default(); partitions.into()],
            damaged_places: 0,
            lost_batches: Some(0),
        }
    }

    /// Records a damaged place at this point of the log. `batches` is the number of batches that are lost there, if known.
    pub fn record_damage(&mut self, batches: Option<u64>) {
        self.damaged_places += 1;
        self.lost_batches = self.lost_batches.zip(batches).map(|(all, more)| all + more);
    }

    /// Whether a damaged place was recorded.
    pub fn is_damaged(&self) -> bool {
        self.damaged_places > 0
    }

    /// Records the next batch of the log. The caller skips batches that a checkpoint contains.
    pub fn record_batch(&mut self, partition: PartitionId, writer: u64, number: u64) {
        let batch = Batch {
            writer,
            number,
            damaged_places_before: self.damaged_places,
        };
        let Some(partition) = self.partitions.get_mut(usize::from(partition)) else {
            return;
        };
        match partition.first {
            None => partition.first = Some(batch),
            Some(_) => partition.count_missing(partition.last, batch),
        }
        partition.last = batch;
    }

    /// The partitions that may have lost a batch. Called after the last batch. `last_batches` has, for each partition, the last
    /// batch in its checkpoint.
    pub fn partitions_with_loss(
        mut self,
        last_batches: impl IntoIterator<Item = (PartitionId, LastBatch)>,
    ) -> Vec<PartitionId> {
        let mut contained = alloc::vec![Batch::default(); self.partitions.len()];
        for (partition, batch) in last_batches {
            if let Some(last) = contained.get_mut(usize::from(partition)) {
                (last.writer, last.number) = (batch.writer, batch.number);
            }
        }
        for (partition, contained) in self.partitions.iter_mut().zip(contained) {
            if let Some(first) = partition.first {
                partition.count_missing(contained, first);
            }
            partition.may_lack_more |= partition.last.damaged_places_before < self.damaged_places;
        }
        let missing = self
            .partitions
            .iter()
            .map(|partition| partition.missing)
            .sum();
        let all_are_found = self.lost_batches == Some(missing);
        let may_have_lost = |partition: &PartitionBatches| {
            partition.missing > 0 || partition.may_lack_more && !all_are_found
        };
        let all = (0..).zip(&self.partitions);
        all.filter(|(_, partition)| may_have_lost(partition))
            .map(|(number, _)| number)
            .collect()
    }
}

impl PartitionBatches {
    /// Counts the missing numbers between a batch and the one before it in the partition, if the log is damaged there.
    fn count_missing(&mut self, before: Batch, batch: Batch) {
        if batch.damaged_places_before > before.damaged_places_before {
            let is_same_writer = before.writer == batch.writer;
            // Each writer numbers from 1.
            let last = if is_same_writer { before.number } else { 0 };
            self.missing += batch.number.saturating_sub(last + 1);
            self.may_lack_more |= !is_same_writer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn last_batch(writer: u64, number: u64) -> LastBatch {
        LastBatch { writer, number }
    }

    /// The partitions that are reported if these of four batches are `lost`. `is_count_known`: whether the number of lost batches is known.
    fn reported_partitions(
        lost: &[usize],
        is_count_known: bool,
        last_batches: &[(PartitionId, LastBatch)],
    ) -> Vec<u16> {
        let all = [(0, 1), (1, 1), (0, 2), (1, 2)];
        let mut detector = LossDetector::new(3);
        for (index, (partition, number)) in all.into_iter().enumerate() {
            match lost.contains(&index) {
                true => detector.record_damage(is_count_known.then_some(1)),
                false => detector.record_batch(partition, 7, number),
            }
        }
        detector.partitions_with_loss(last_batches.iter().copied())
    }

    #[test]
    fn partitions_that_have_lost_nothing_are_not_reported() {
        assert!(reported_partitions(&[], true, &[]).is_empty());
        // A number of partition 1 is missing, which accounts for the lost batch.
        assert_eq!(
            reported_partitions(&[1], true, &[(1, last_batch(7, 0))]),
            [1]
        );
        // Partitions 0 and 2 have no batch after the damage, so the lost batch may be of either.
        assert_eq!(reported_partitions(&[2], true, &[]), [0, 2]);
        // The number of lost batches is unknown.
        assert_eq!(reported_partitions(&[1], false, &[]), [1, 2]);
    }

    #[test]
    fn last_batch_of_the_checkpoint_determines_the_next_one() {
        let mut detector = LossDetector::new(2);
        detector.record_damage(Some(2));
        detector.record_batch(0, 7, 6);
        detector.record_batch(1, 7, 3);
        assert_eq!(
            detector.partitions_with_loss([(0, last_batch(7, 5)), (1, last_batch(7, 0))]),
            [1]
        );
    }

    proptest! {
        /// Writers change, batches are lost, and checkpoints contain the first batches.
        #[test]
        fn no_loss_is_silent(
            all in prop::collection::vec((0..3_u16, any::<bool>()), 1..40),
            writer_changes in prop::collection::btree_set(1..40_usize, 0..3),
            contained in 0..10_usize,
            is_count_known: bool,
        ) {
            let (mut numbers, mut writer) = ([0; 3], 1);
            let (mut detector, mut last_batches) = (LossDetector::new(3), [last_batch(0, 0); 3]);
            let (mut has_lost, mut adjacent_lost) = ([false; 3], 0);
            for (index, (partition, is_lost)) in all.iter().enumerate() {
                if writer_changes.contains(&index) {
                    (numbers, writer) = ([0; 3], writer + 1);
                }
                let partition_index = usize::from(*partition);
                numbers[partition_index] += 1;
                if index < contained {
                    last_batches[partition_index] = last_batch(writer, numbers[partition_index]);
                } else if *is_lost {
                    has_lost[partition_index] = true;
                    adjacent_lost += 1;
                } else {
                    if adjacent_lost > 0 {
                        detector.record_damage(is_count_known.then_some(adjacent_lost));
                    }
                    adjacent_lost = 0;
                    detector.record_batch(*partition, writer, numbers[partition_index]);
                }
            }
            if adjacent_lost > 0 {
                detector.record_damage(None);
            }
            let is_damaged = detector.is_damaged();
            let reported = detector.partitions_with_loss((0..).zip(last_batches));
            for partition in 0..3 {
                prop_assert!(!has_lost[usize::from(partition)] || reported.contains(&partition));
            }
            prop_assert!(is_damaged || reported.is_empty());
        }
    }
}
