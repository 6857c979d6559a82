//! Writes and restores the part of a snapshot that belongs to one home (the part of a shard that keeps topics): topics, the filters whose
//! messages are kept, losses, and messages (`messages.rs`). Idempotency keys and groups are written and restored in `idempotence.rs` and
//! `share_groups.rs`.
//!
//! In a restored home, topics have other rows than in the snapshot, and rules have other numbers. The present rules apply.
//!
//! An *epoch* is a number in each position, which changes with each start on the log.

mod messages;

use crore_wire::topic;

use super::Home;
use super::forgotten_topics::NamedLoss;
use super::logs::Logs;
use super::partition::Partition;
use super::subscriptions::Subscriptions;
use super::topic_row::{
    CREATED, DELETED, HAS_QOS_SUBSCRIPTION, HAS_RETAINED, REQUESTED, RestoredTopic, TopicRow,
};
use crate::base::ids::PartitionId;
use crate::base::loss_detector::LastBatch;
use crate::base::placement::SlottedOffset;
use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;
use crate::base::snapshot::{Block, Damaged, FieldReader, NO_TOPIC, Origin, kind};
use crate::base::time::Now;
use crate::log::snapshot::ChainState;
use crate::mail::fields::check_stored_name;
use crate::store::blobs::Blob;
use crate::store::slab::{NONE, SlabRow as _};

/// The flags of a topic's row that a snapshot keeps.
const SAVED_FLAGS: u8 = CREATED | DELETED | REQUESTED;
/// Flag of a topic's record: the topic has no messages, and some were lost.
const LOST: u8 = 1;
/// Flag of a topic's record: the topic has messages.
const HAS_MESSAGES: u8 = 2;
/// Flag of a topic's record: the topic's newest messages were removed without a loss.
const NEWEST_REMOVED: u8 = 4;
/// The maximum number of bytes of a topic's record, besides its name.
const TOPIC_BYTES: usize = 48;

impl Home {
    /// Removes the oldest messages until the snapshot has about `bytes_max` bytes at most.
    pub(crate) fn shrink_for_snapshot(&mut self, bytes_max: usize, rules: &Rules, now: Now) {
        let other_bytes = self.topics.names.bytes() + self.topics.rows.len() as usize * TOPIC_BYTES;
        let budget = &mut self.logs.budget.bytes_max;
        *budget = (*budget).min(bytes_max.saturating_sub(other_bytes));
        self.drop_for_snapshot(rules, now);
    }

    /// Completes the home, after the last record. `newest_removed` are the rows of the topics whose newest messages were removed without a loss.
    pub(crate) fn finish_restore(&mut self, newest_removed: &[u32], rules: &Rules, now: Now) {
        for id in newest_removed {
            let row = self.topics.rows.get(*id);
            let partition_index = self.logs.partition_index_of(row);
            self.logs.partitions[partition_index]
                .log
                .note_newest_removed(row.chain);
        }
        for id in 0..self.topics.rows.end() {
            let last_used_s = self.topics.rows.get(id).last_used_s;
            self.queue_if_idle(id, now);
            self.topics.rows.get_mut(id).last_used_s = last_used_s;
        }
        self.enforce_budget(rules, now, usize::MAX);
        debug_assert!((0..self.topics.rows.end()).all(|id| {
            self.topics.rows.get(id).has(HAS_RETAINED)
                == self.logs.retained_chains.contains_key(&id)
        }));
    }

    /// Writes topics from row `from` on. Before the first topic it writes the record of the home. Returns the row to continue with, if any
    /// are left.
    pub(crate) fn save_topics(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        if from == 0 {
            let mut out = block.record(kind::HOME);
            out.number(u64::from(self.topics.rows.end()));
            for partition in &self.logs.partitions {
                out.number(partition.sequence);
                out.number(partition.mark);
                out.word(partition.last_batch.writer);
                out.number(partition.last_batch.number);
            }
            for slot in self.logs.origin().slots(self.logs.placement, self.logs.me) {
                out.number(self.logs.forgotten_max_by_slot[usize::from(slot)]);
            }
            for log in self.logs.iter() {
                match log.losses.count_if_watched() {
                    None => out.byte(0),
                    Some(count) => {
                        out.byte(1);
                        out.number(count);
                    }
                }
            }
        }
        for id in from as u32..self.topics.rows.end() {
            if block.is_full() {
                return Some(u64::from(id));
            }
            let row = self.topics.rows.get(id);
            if row.name == Blob::NONE {
                continue;
            }
            let chain_state = self.logs.partitions[self.logs.partition_index_of(row)]
                .log
                .chain_state(row.chain);
            let (chain_flags, lost) = match chain_state {
                ChainState::None => (0, 0),
                ChainState::Empty {
                    last_lost_offset: lost,
                    newest_removed,
                } => (LOST | if newest_removed { NEWEST_REMOVED } else { 0 }, lost),
                ChainState::Filled { newest_removed } => (
                    HAS_MESSAGES | if newest_removed { NEWEST_REMOVED } else { 0 },
                    0,
                ),
            };
            let mut out = block.record(kind::TOPIC);
            out.number(u64::from(id));
            out.byte(row.flags & SAVED_FLAGS);
            out.byte(chain_flags);
            out.number(row.last_offset());
            out.number(lost);
            out.number(u64::from(row.last_used_s));
            out.number(u64::from(self.subscriptions.qos.count_of_topic(id)));
            out.field(self.topics.names.get(row.name));
        }
        None
    }

    /// Restores a topic, if it belongs to this home now. Also returns whether its newest messages were removed without a loss.
    pub(crate) fn restore_topic(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        rules: &Rules,
    ) -> Result<(RestoredTopic, bool), Damaged> {
        let row_in_snapshot = from.number32()?;
        let flags = from.byte()? & SAVED_FLAGS;
        let chain_flags = from.byte()?;
        let last = from.number()?;
        let lost = from.number()?;
        let last_used_s = from.number32()?;
        let qos_count = match from.number32()? {
            count if origin.restores_local => count,
            _ => 0,
        };
        let name = from.field()?;
        check_stored_name(name).map_err(Damaged)?;
        let rule = rules.number_for(name);
        let is_kept = origin.restores_local || rules.get(rule).durable;
        if !origin.takes_over(name, self.logs.placement, self.logs.me)? || !is_kept {
            let elsewhere = RestoredTopic {
                row_in_snapshot,
                row_here: NONE,
            };
            return Ok((elsewhere, false));
        }
        let mut row = TopicRow::vacant(NONE);
        row.set_slot(topic::slot(name));
        let partition_index = self.logs.partition_index_of(&row);
        if last > self.logs.partitions[partition_index].sequence
            || chain_flags & LOST != 0 && lost > last
        {
            return Err(Damaged("a topic is ahead of its partition"));
        }
        row.hash = self.topics.hash_of(name);
        row.name = self.topics.names.insert(name);
        row.rule = rule;
        row.last_used_s = last_used_s;
        row.flags = flags
            | if qos_count > 0 {
                HAS_QOS_SUBSCRIPTION
            } else {
                0
            };
        row.set_last_offset(last);
        let rule_number = row.rule;
        let id = self.topics.rows.insert(row);
        self.topics.index.insert(&mut self.topics.rows, id);
        if qos_count > 0 {
            self.subscriptions.qos.add_topic(id, qos_count);
        }
        if chain_flags & LOST != 0 {
            let keeps_latest = rules.get(rule_number).keep == RetentionMode::Latest;
            let log = &mut self.logs.partitions[partition_index].log;
            self.topics.rows.get_mut(id).chain =
                log.empty_chain(id, rule_number, keeps_latest, lost);
        }
        let restored = RestoredTopic {
            row_in_snapshot,
            row_here: id,
        };
        Ok((restored, chain_flags & NEWEST_REMOVED != 0))
    }

    pub(crate) fn restore_loss(
        &mut self,
        from: &mut FieldReader<'_>,
        topics: &[RestoredTopic],
    ) -> Result<(), Damaged> {
        let offset = from.number()?;
        let topic = row_here(from.number32()?, topics)?;
        let number = from.number()?;
        if topic == NONE {
            return Ok(());
        }
        let partition_index = self.topic_partition_index(topic);
        self.logs.partitions[partition_index]
            .log
            .losses
            .restore(offset, topic, number);
        Ok(())
    }

    pub(crate) fn restore_filter(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
    ) -> Result<(), Damaged> {
        let (count, filter) = (from.number32()?, from.field()?);
        // A name without wildcards is that of a topic that could not be created.
        let is_here =
            topic::has_wildcard(filter) || self.logs.placement.home_of_name(filter) == self.logs.me;
        if is_here && origin.restores_local {
            self.subscriptions.qos.restore_filter(filter, count);
        }
        Ok(())
    }
}

impl Logs {
    /// The facts about this home that a reader of its records needs: its number, its placement and its epoch.
    fn origin(&self) -> Origin {
        Origin {
            placement: self.placement,
            home: self.me,
            epoch: self.epoch,
            restores_local: true,
        }
    }

    /// The index of a partition, if this is its home.
    pub(crate) fn partition_index_here(&self, partition: PartitionId) -> Option<usize> {
        let is_here = self.placement.home_of(partition) == self.me;
        is_here.then(|| self.placement.index_at_home(partition))
    }

    /// Restores the record of the home that wrote the snapshot; returns that home's number of rows.
    pub(crate) fn restore_home(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
    ) -> Result<u32, Damaged> {
        let rows = from.number32()?;
        let old_placement = origin.placement;
        for partition in old_placement.of_home(origin.home) {
            let (sequence, mark) = (from.number()?, from.number()?);
            let batch = LastBatch {
                writer: from.word()?,
                number: from.number()?,
            };
            if sequence.max(mark) > SlottedOffset::OFFSET_MAX {
                return Err(Damaged("a sequence is too large"));
            }
            if let Some(partition_index) = self.partition_index_here(partition) {
                let partition = &mut self.partitions[partition_index];
                (partition.sequence, partition.mark) = (sequence, mark);
                partition.last_batch = batch;
            }
        }
        for slot in 0..=u8::MAX {
            let is_of_origin =
                old_placement.home_of(old_placement.partition_of_slot(slot)) == origin.home;
            let floor = if is_of_origin { from.number()? } else { 0 };
            if is_of_origin
                && let Some(partition_index) =
                    self.partition_index_here(old_placement.partition_of_slot(slot))
            {
                self.check_offset(partition_index, floor)?;
                self.forgotten_max_by_slot[usize::from(slot)] = floor;
            }
        }
        for partition in old_placement.of_home(origin.home) {
            let counted = read_counted(from)?;
            if let (Some(partition_index), Some(counted)) =
                (self.partition_index_here(partition), counted)
            {
                self.partitions[partition_index]
                    .log
                    .losses
                    .watch_from(counted);
            }
        }
        if !origin.restores_local {
            // Subscribers by filter may have come after the snapshot was written, so losses are remembered from now on.
            let logs = self.partitions.iter_mut().map(|it| &mut it.log);
            logs.for_each(|log| log.losses.watch());
        }
        Ok(rows)
    }

    /// Checks that this partition has assigned this offset. If a topic's last offset were higher, the topic's next message could get a lower offset than
    /// its last message.
    ///
    /// # Errors
    /// The partition has not assigned the offset.
    fn check_offset(&self, partition_index: usize, offset: u64) -> Result<(), Damaged> {
        let Partition { sequence, mark, .. } = self.partitions[partition_index];
        match offset <= sequence.max(mark) {
            true => Ok(()),
            false => Err(Damaged("an offset is ahead of its partition")),
        }
    }

    /// Writes the losses that topics remember, from this index of a partition and this offset on. Returns where to continue, if any are left.
    pub(crate) fn save_losses(
        &self,
        (first_index, mut first_offset): (usize, u64),
        block: &mut Block<'_>,
    ) -> Option<(usize, u64)> {
        for (partition_index, log) in self.iter().enumerate().skip(first_index) {
            let from = core::mem::take(&mut first_offset);
            for (offset, topic, number) in log.losses.last_losses_from(from) {
                if block.is_full() {
                    return Some((partition_index, offset));
                }
                let mut out = block.record(kind::LOSS);
                out.number(offset);
                out.number(u64::from(topic));
                out.number(number);
            }
        }
        None
    }

    /// Writes the losses of forgotten topics.
    pub(crate) fn save_forgotten(&self, rules: &Rules, block: &mut Block<'_>) {
        let all = self.placement.of_home(self.me);
        for (partition, Partition { forgotten, .. }) in all.zip(&self.partitions) {
            for NamedLoss { loss, name, .. } in forgotten.named_losses() {
                let mut out = block.record(kind::FORGOTTEN);
                out.number(loss.offset);
                out.number(loss.number);
                out.field(name);
            }
            for (rule, lost) in forgotten.losses_by_rule() {
                let mut out = block.record(kind::RULE_LOSS);
                out.number(u64::from(partition));
                out.number(lost);
                out.field(rules.get(rule).filter.as_bytes());
            }
        }
    }

    pub(crate) fn restore_forgotten(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        rules: &Rules,
    ) -> Result<(), Damaged> {
        let (lost, number, name) = (from.number()?, from.number()?, from.field()?);
        check_stored_name(name).map_err(Damaged)?;
        if !origin.takes_over(name, self.placement, self.me)? {
            return Ok(());
        }
        let mut row = TopicRow::vacant(NONE);
        row.set_slot(topic::slot(name));
        let partition_index = self.partition_index_of(&row);
        self.check_offset(partition_index, lost)?;
        let forgotten = &mut self.partitions[partition_index].forgotten;
        forgotten.add(rules.number_for(name), lost, number, name);
        Ok(())
    }

    pub(crate) fn restore_rule_loss(
        &mut self,
        from: &mut FieldReader<'_>,
        rules: &Rules,
    ) -> Result<(), Damaged> {
        let (partition, lost, filter) = (from.number16()?, from.number()?, from.field()?);
        if partition < self.placement.partitions()
            && let Some(partition_index) = self.partition_index_here(partition)
        {
            self.check_offset(partition_index, lost)?;
            self.partitions[partition_index]
                .forgotten
                .add_for_filter(filter, lost, rules);
        }
        Ok(())
    }
}

impl Subscriptions {
    pub(crate) fn save_filters(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        self.qos.save_filters(from, block)
    }
}

/// Reads the number of losses; `None` if losses were not counted.
fn read_counted(from: &mut FieldReader<'_>) -> Result<Option<u64>, Damaged> {
    match from.byte()? {
        1 => from.number().map(Some),
        _ => Ok(None),
    }
}

/// The row here of a topic of the snapshot. `topics` are in the order of their rows in the snapshot.
fn row_here(row_in_snapshot: u32, topics: &[RestoredTopic]) -> Result<u32, Damaged> {
    let found = topics.binary_search_by_key(&row_in_snapshot, |topic| topic.row_in_snapshot);
    found
        .map(|index| topics[index].row_here)
        .map_err(|_| NO_TOPIC)
}
