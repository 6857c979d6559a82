//! The positions at which a client's subscriptions read, while some of them have not reached the newest message.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;

/// The offset in one partition after which a subscription sends all messages that match it. Overlapping subscriptions send earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadStart {
    /// The subscription's index in the connection's list.
    pub sub_index: u32,
    /// The partition.
    pub partition: PartitionId,
    /// The offset before the first message that it sends.
    pub offset: u64,
}

/// The starts of a client's subscriptions, sorted by partition and subscription. There may be one for each subscription in each partition, so a
/// start is found by binary search.
#[derive(Default)]
pub struct ReadStarts(Vec<ReadStart>);

impl ReadStarts {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The starts in this partition.
    pub fn in_partition(&self, partition: PartitionId) -> &[ReadStart] {
        let first = self.0.partition_point(|it| it.partition < partition);
        let here = &self.0[first..];
        &here[..here.partition_point(|it| it.partition == partition)]
    }

    /// The starts of this subscription, by partition.
    pub fn of_subscription(&self, sub_index: u32) -> impl Iterator<Item = &ReadStart> {
        self.0.iter().filter(move |it| it.sub_index == sub_index)
    }

    /// The offset of this subscription's start. If there is none, adds one with `offset`.
    pub fn offset_or_insert(
        &mut self,
        sub_index: u32,
        partition: PartitionId,
        offset: u64,
    ) -> &mut u64 {
        let found = self
            .0
            .binary_search_by_key(&(partition, sub_index), |it| (it.partition, it.sub_index));
        let index = found.unwrap_or_else(|index| {
            let start = ReadStart {
                sub_index,
                partition,
                offset,
            };
            self.0.insert(index, start);
            index
        });
        &mut self.0[index].offset
    }

    /// Adds the starts of a subscription that has none. They are found only after [`ReadStarts::sort`]: if each were put into its place, the time would
    /// grow with the square of their number.
    pub fn append(&mut self, sub_index: u32, starts: impl Iterator<Item = (PartitionId, u64)>) {
        self.0.extend(starts.map(|(partition, offset)| ReadStart {
            sub_index,
            partition,
            offset,
        }));
    }

    /// Sorts the starts, and returns their number.
    pub fn sort(&mut self) -> usize {
        self.0
            .sort_unstable_by_key(|it| (it.partition, it.sub_index));
        self.0.len()
    }

    pub fn remove_subscription(&mut self, sub_index: u32) {
        self.0.retain(|it| it.sub_index != sub_index);
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<ReadStart>()
    }
}

/// The progress of sending the latest values of a topic to a new subscription.
pub struct LatestValuesRead {
    /// The subscription's index in the connection's list.
    pub sub_index: u32,
    /// The client was sent the values up to this offset.
    pub sent_offset: u64,
    /// The subscription itself sends the messages after this offset.
    pub last_offset: u64,
    /// A page was requested, and the home has not answered.
    pub is_requested: bool,
    /// The client has subscribed again since that request, so all values are sent once more.
    pub must_restart: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subscription_has_one_start_in_a_partition_in_whatever_order_they_begin() {
        let mut starts = ReadStarts::default();
        for (sub_index, partition) in [(7, 1), (2, 0), (2, 1), (7, 0), (3, 1), (2, 1)] {
            *starts.offset_or_insert(sub_index, partition, 0) += 1;
        }
        let in_partition = |partition| -> Vec<(u32, u64)> {
            let here = starts.in_partition(partition).iter();
            here.map(|it| (it.sub_index, it.offset)).collect()
        };
        assert_eq!(in_partition(0), [(2, 1), (7, 1)]);
        assert_eq!(in_partition(1), [(2, 2), (3, 1), (7, 1)]);
        assert_eq!(in_partition(2), []);
        starts.append(4, [(0, 8), (1, 9)].into_iter());
        assert_eq!(starts.sort(), 7);
        assert_eq!(*starts.offset_or_insert(4, 1, 0), 9);
        starts.remove_subscription(2);
        assert_eq!(starts.of_subscription(2).count(), 0);
        assert_eq!(starts.of_subscription(7).count(), 2);
    }
}
