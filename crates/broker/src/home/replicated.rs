//! The home (the part of a shard that keeps topics) at a cluster node: its log has other writers, and its subscribers may come from other
//! nodes.
//!
//! Invariants:
//! * State that is derived from the log is the same at all nodes that have applied the same records. The exception is state that a process drops for
//!   lack of room.
//! * A client that was connected to another node may have a position which this node has not reached, because the other node has applied more of the
//!   log. The client gets no gap (the notice that messages are lost): its subscription begins when this node has reached the position.
//!
//! A *writer* is a process that writes to the log, under a number of its own.

use alloc::boxed::Box;

use super::Home;
use super::logs::Logs;
use super::page_queue::PendingPage;
use crate::base::ids::OFFSETS_PER_BATCH;
use crate::base::placement::SlottedOffset;
use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::snapshot::{Block, Damaged, FieldReader, kind};
use crate::base::writer_set::WriterSet;
use crate::budget::admission::Client;

/// The maximum number of positions that are given up in one call.
const GIVEN_UP_MAX: usize = 4096;

impl Home {
    /// Prepares the home for a log to which other processes write, too. Called once, before any record is applied.
    pub(crate) fn set_replicated(&mut self) {
        self.logs.future_pages = Some(Box::default());
        for partition in &mut self.logs.partitions {
            partition.set_replicated();
            // Subscribers by filter may come from other nodes, so losses are remembered from the beginning.
            partition.log.losses.watch();
        }
    }

    /// Called after each applied record. At the end of a batch, queues the pages that have waited for the log to get this far. `is_batch_end`: the record
    /// is the last one of its batch.
    pub(crate) fn after_record(&mut self, partition_index: usize, offset: u64, is_batch_end: bool) {
        let Some(future_pages) = &mut self.logs.future_pages else {
            return;
        };
        if !is_batch_end {
            return;
        }
        let applied_to = offset | (OFFSETS_PER_BATCH - 1);
        self.logs.partitions[partition_index].applied_to = applied_to;
        while let Some(key) = future_pages.first_key_until(partition_index, applied_to) {
            if let Some(page) = future_pages.take(&key) {
                self.page_queue.push(page);
            }
        }
    }

    /// The number of the newest page (a run of past messages for a subscriber) that waits for the log, if any waits for this partition.
    pub(crate) fn newest_future_page(&self, partition_index: usize) -> Option<u64> {
        self.logs
            .future_pages
            .as_ref()?
            .newest_number(partition_index)
    }

    /// Gives up the positions of the pages up to page `number` that still wait for the log of this partition, so that their subscribers get a gap. The
    /// log does not contain these positions: this node has appended a record after those pages came, and has read that record before them.
    pub(crate) fn give_up_positions(&mut self, partition_index: usize, number: u64) {
        let Some(future_pages) = &self.logs.future_pages else {
            return;
        };
        let keys = future_pages.keys_up_to(partition_index, number, GIVEN_UP_MAX);
        self.steps.add(keys.len());
        for key in keys {
            let future_pages = self.logs.future_pages.as_mut();
            let Some(mut page) = future_pages.and_then(|it| it.take(&key)) else {
                return;
            };
            match &mut page {
                PendingPage::Topic { ask, .. } => ask.since = Since::Unknown,
                PendingPage::Filters { ask, reader, .. } => {
                    ask.since = Since::Unknown;
                    *reader = self.logs.new_reader(ask, reader.partition);
                }
                PendingPage::Group(..) | PendingPage::LateGroups | PendingPage::Interest(..) => {}
            }
            self.page_queue.push(page);
        }
    }

    /// Forgets an idle topic if there are too many topics. Needed because other nodes create topics without a check of this node's limits.
    pub(crate) fn evict_excess_topic(&mut self) {
        if self.topics.rows.len() as usize > self.topics.topics_max {
            self.evict_idle_topic(Client::NOBODY, u32::MAX);
        }
    }

    /// Queues a page once the log of this partition has reached this offset.
    pub(super) fn wait_for_log(&mut self, page: PendingPage, partition_index: usize, offset: u64) {
        self.page_queue.queued_count += 1;
        if let Some(future_pages) = &mut self.logs.future_pages {
            future_pages.push(page, partition_index, offset);
        }
    }
}

impl Logs {
    /// Whether the next batch in the log of this partition is valid: its writer is alive, and the batch number follows that of the writer's
    /// last batch. Stores the number of a valid batch as that of the writer's last batch.
    pub(crate) fn accept_batch(
        &mut self,
        partition_index: usize,
        writer: u64,
        number: u64,
    ) -> bool {
        self.partitions[partition_index]
            .writer_set
            .accept(writer, number)
    }

    /// The writers of this partition.
    pub(crate) fn writer_set(&mut self, partition_index: usize) -> &mut WriterSet {
        &mut self.partitions[partition_index].writer_set
    }

    /// The offset that this partition must reach before a subscription with this position begins; `None` if it has reached the offset.
    pub(super) fn offset_to_wait_for(&self, since: Since, partition_index: usize) -> Option<u64> {
        self.future_pages.as_ref()?;
        let partition = &self.partitions[partition_index];
        match since {
            Since::At(Position { epoch, offset }) if epoch == self.epoch => {
                (offset > partition.sequence.max(partition.applied_to)).then_some(offset)
            }
            _ => None,
        }
    }

    /// The time of the log's clock: no record that follows is older. `None` if the log is not replicated.
    pub(super) fn log_time_s(&self) -> Option<u32> {
        self.future_pages.as_ref()?;
        self.partitions.iter().map(|it| it.newest_time_s).min()
    }

    /// Writes the writer set of each partition, with the partition's time and applied offset.
    pub(crate) fn save_writer_sets(&self, block: &mut Block<'_>) {
        if !self.is_replicated() {
            return;
        }
        let all = self.placement.of_home(self.me);
        for (partition, it) in all.zip(&self.partitions) {
            let mut out = block.record(kind::WRITER_SET);
            out.number(partition.into());
            out.number(it.newest_time_s.into());
            out.number(it.applied_to);
            out.byte(it.writer_set.is_beginning_lost().into());
            it.writer_set.write(&mut out);
        }
    }

    /// Restores the writer set of a partition.
    pub(crate) fn restore_writer_set(&mut self, from: &mut FieldReader<'_>) -> Result<(), Damaged> {
        let (partition, time_s) = (from.number16()?, from.number32()?);
        let (applied_to, is_beginning_lost) = (from.number()?, from.byte()? != 0);
        let mut writer_set = WriterSet::read(from)?;
        if writer_set.last_offset.max(applied_to) > SlottedOffset::OFFSET_MAX {
            return Err(Damaged("an offset is too large"));
        }
        if is_beginning_lost {
            writer_set.set_beginning_lost();
        }
        if partition < self.placement.partitions()
            && let Some(partition_index) = self.partition_index_here(partition)
            && self.is_replicated()
            && !planted::is(Fault::ForgottenWriters)
        {
            let partition = &mut self.partitions[partition_index];
            (partition.newest_time_s, partition.applied_to) = (time_s, applied_to);
            partition.unlogged_max = writer_set.last_offset | (OFFSETS_PER_BATCH - 1);
            partition.writer_set = writer_set;
        }
        Ok(())
    }

    /// The digest of the writer sets.
    fn digest_of_writer_sets(&self) -> u64 {
        let all = self.placement.of_home(self.me);
        all.zip(&self.partitions)
            .fold(0, |digest, (partition, it)| {
                digest ^ it.writer_set.digest(partition, self.seed)
            })
    }
}

impl Home {
    /// A digest of the writer sets and of the keys of unreleased QoS 2 messages; 0 outside of a cluster.
    pub(super) fn digest_of_cluster(&self) -> u64 {
        if !self.logs.is_replicated() {
            return 0;
        }
        self.logs.digest_of_writer_sets() ^ self.retries.unreleased.digest(self.logs.seed)
    }
}
