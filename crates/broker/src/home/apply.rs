//! Applies facts (publishes, and changes of topics) at a home, the part of a shard that keeps topics. The logged state of topics changes only here:
//! their messages, and which topics exist.
//!
//! A fact is applied at one of three moments: without an engine (the writer of the log) as soon as it is admitted; with an engine, when the engine
//! has committed it; and at a start, when the log is replayed. No limit refuses a fact here, since admission has checked all limits (`admit.rs`). One
//! check is made again: whether the message is a retry. Between the admission of a message and this moment, another message with its idempotency key may
//! have been applied. Then the message changes nothing.
//!
//! Words: a fact of a topic that is not durable is *unlogged*: it has an offset, but no record in the log. A *life* of the log is the time from one start
//! of a server with this log to the next start. The *mark* of a partition is the highest offset that an unlogged fact may have. A *gap* is the notice to
//! a subscriber that messages are lost.

use alloc::sync::Arc;

use crore_wire::topic;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Home;
use super::answers::IdempotencyKey;
use super::context::{Admitted, HomeContext};
use super::logs::Logs;
use super::partition::Partition;
use super::topic_row::{CREATED, DELETED};
use crate::base::ids::PartitionId;
use crate::base::lives::Lives;
use crate::base::loss_detector::LastBatch;
use crate::base::placement::{SLOTS, SlottedOffset};
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::lanes::Lanes;
use crate::mail::{Change, Fact, FactTopic, Outcome, Tell};
use crate::store::blobs::Blob;
use crate::store::slab::NONE;

/// A message may be this many seconds older than the newest message applied: a start replays the logs of the partitions one after another.
const TIME_DISORDER_MAX_S: u32 = 600;
/// A new epoch starts this many offsets after the last known offset. Damage cannot have lost that many records, so no offset is used twice.
const OFFSETS_BEFORE_NEW_EPOCH: u64 = 1 << 40;

impl Home {
    /// Admits and applies a fact at once, without an engine.
    #[inline]
    pub(crate) fn admit_and_apply(
        &mut self,
        fact: &Fact<'_>,
        context: &mut HomeContext<'_>,
    ) -> Outcome {
        match self.admit(fact, context) {
            Ok(admitted) => {
                let partition_index = self.fact_partition_index(admitted.topic_id, fact);
                let offset = self.logs.partitions[partition_index].sequence + 1;
                self.apply_new(partition_index, fact, offset, admitted, context)
            }
            Err(outcome) => outcome,
        }
    }

    /// Sets the lives of the logs (`base/lives.rs`). Called at a start, after the logs are replayed. New offsets begin at the first offset of the present
    /// life.
    pub(crate) fn follow_lives(&mut self, lives: Arc<Lives>) {
        self.logs.follow_lives(lives);
        self.reset_published_count();
    }

    /// Sets the number of messages published in this turn (a pass of the shard's loop) to 0. Called before the first turn, since replayed messages
    /// do not count.
    fn reset_published_count(&mut self) {
        self.topics.idle_topics.published_in_turn = 0;
    }

    /// Records that a crash has lost all unlogged facts. Their offsets are at most the partition's mark, so the partition gives the offsets after the
    /// mark from now on. A subscriber of an unlogged topic whose position is at the mark or before it gets a gap.
    pub(crate) fn record_unlogged_loss(&mut self, rules: &Rules) {
        for partition in &mut self.logs.partitions {
            partition.sequence = partition.sequence.max(partition.mark);
            for rule in rules.unlogged_numbers() {
                partition
                    .forgotten
                    .add_for_rule(rule, partition.sequence, 0);
            }
        }
        self.reset_published_count();
    }

    /// Begins a new epoch of this partition, whose log is damaged and may have lost records before its end. All messages that are left get new
    /// offsets, above every offset that was given before. So a subscriber that has received some of these messages gets a gap, and then receives them
    /// again.
    ///
    /// `ended_life_start` is the first offset of the life that has just ended. The new offsets are above it, so that they belong to that life. In an
    /// earlier life they would be above the last offset: a position that a client gets with such an offset would be invalid, and the client would get a
    /// gap each time that it connects.
    pub(crate) fn begin_epoch(
        &mut self,
        partition_index: usize,
        ended_life_start: u64,
        rules: &Rules,
    ) {
        let Partition { sequence, mark, .. } = self.logs.partitions[partition_index];
        let until = sequence.max(mark).max(ended_life_start) + OFFSETS_BEFORE_NEW_EPOCH;
        self.record_loss_until(partition_index, until, rules);
        let partition = &mut self.logs.partitions[partition_index];
        partition.sequence = partition.log.begin_epoch(until);
        for id in 0..self.topics.rows.end() {
            let row = self.topics.rows.get(id);
            if row.name == Blob::NONE || self.logs.partition_index_of(row) != partition_index {
                continue;
            }
            let log = &self.logs.partitions[partition_index].log;
            let retained_chain = self.logs.retained_chains.get(&id).copied().unwrap_or(NONE);
            let last = log
                .last_offset(row.chain)
                .max(log.last_offset(retained_chain));
            self.topics
                .rows
                .get_mut(id)
                .set_last_offset(last.max(until));
        }
    }

    /// Records that the log of this partition has lost its records up to offset `until`. New offsets come after `until`.
    pub(crate) fn record_loss_until(&mut self, partition_index: usize, until: u64, rules: &Rules) {
        let partition = &mut self.logs.partitions[partition_index];
        partition.advance_to(until);
        partition.applied_to = until;
        partition.writer_set.set_beginning_lost();
        for rule in rules.logged_numbers() {
            partition.forgotten.add_for_rule(rule, until, 0);
        }
        for slot in 0..SLOTS {
            if usize::from(self.logs.partition_index_by_slot[slot]) == partition_index {
                self.logs.forgotten_max_by_slot[slot] =
                    self.logs.forgotten_max_by_slot[slot].max(until);
            }
        }
    }

    /// Applies a fact that was admitted before. `logged_offset` is the offset of the fact's record in the log, or `None` for an unlogged fact.
    /// `context.now` is the time of the record.
    pub(crate) fn apply_admitted(
        &mut self,
        fact: &Fact<'_>,
        logged_offset: Option<u64>,
        context: &mut HomeContext<'_>,
    ) -> Outcome {
        let topic = fact.topic();
        let topic_id = self.topics.find(topic.hash, topic.name);
        let partition_index = self.fact_partition_index(topic_id, fact);
        let is_replicated = self.logs.is_replicated();
        let partition = &mut self.logs.partitions[partition_index];
        let offset = logged_offset.unwrap_or(partition.sequence + 1);
        if logged_offset.is_none() && offset > partition.unlogged_max {
            // The partition has no free offset left before the next batch, so the fact cannot be applied.
            return Outcome::Unknown;
        }
        if is_replicated {
            // All nodes must apply the record alike, so the time is that of the log and not that of this process.
            context.now.unix_s = match logged_offset {
                Some(_) => partition.effective_time(context.now).unix_s,
                None => partition.newest_time_s,
            };
        }
        let outcome = self.apply_unless_retry(fact, partition_index, topic_id, offset, context);
        let partition = &mut self.logs.partitions[partition_index];
        // The offset is used up, even if the fact was a retry and has changed nothing.
        match logged_offset {
            Some(offset) => partition.advance_to(offset),
            None => partition.sequence = offset,
        }
        outcome
    }

    /// Applies a fact of this partition, unless it is a retry of a message that was applied before.
    #[inline]
    fn apply_unless_retry(
        &mut self,
        fact: &Fact<'_>,
        partition_index: usize,
        topic_id: Option<u32>,
        offset: u64,
        context: &mut HomeContext<'_>,
    ) -> Outcome {
        let key = match fact {
            Fact::Publish(message) => {
                self.check_retry(message, context.settings, context.now, TIME_DISORDER_MAX_S)
            }
            Fact::Topic { .. } => Ok(None),
        };
        if let (Fact::Publish(message), Ok(_) | Err(Outcome::Replayed(_))) = (fact, &key) {
            self.note_claim(message, partition_index);
        }
        match key {
            Ok(key) => {
                // Admission has reserved room for the key, so there is no limit here.
                let key = key.map(|key| IdempotencyKey {
                    answers_max: u32::MAX,
                    ..key
                });
                self.apply_new(
                    partition_index,
                    fact,
                    offset,
                    Admitted { topic_id, key },
                    context,
                )
            }
            Err(_) if planted::is(Fault::KeyTwice) => self.apply_new(
                partition_index,
                fact,
                offset,
                Admitted {
                    topic_id,
                    key: None,
                },
                context,
            ),
            Err(first_answer) => first_answer,
        }
    }

    /// Applies a fact that is no retry. `offset` is the fact's offset in this partition.
    #[inline(always)] // most facts are messages
    fn apply_new(
        &mut self,
        partition_index: usize,
        fact: &Fact<'_>,
        offset: u64,
        admitted: Admitted,
        context: &mut HomeContext<'_>,
    ) -> Outcome {
        context.now = self.logs.partitions[partition_index].effective_time(context.now);
        match fact {
            Fact::Publish(message) => {
                self.topics.idle_topics.published_in_turn += 1;
                let info =
                    self.publish(message, admitted.topic_id, partition_index, offset, context);
                self.keep_answer(admitted.key, message, &info);
                Outcome::Done(info)
            }
            Fact::Topic { change, .. } => {
                self.change_topic(*change, fact, admitted.topic_id, offset, context)
            }
        }
    }

    fn change_topic(
        &mut self,
        change: Change,
        fact: &Fact<'_>,
        topic_id: Option<u32>,
        offset: u64,
        context: &mut HomeContext<'_>,
    ) -> Outcome {
        let now = context.now;
        if change == Change::Create {
            return self.create_topic(fact, topic_id, context.rules, now);
        }
        let Some(id) = topic_id.filter(|id| !self.topics.rows.get(*id).has(DELETED)) else {
            return Outcome::Missing;
        };
        match change {
            Change::Create => {}
            Change::Delete => {
                return self.delete_topic(id, offset, now, context.lanes);
            }
            Change::Purge => _ = self.purge_topic(id, u64::MAX, u32::MAX, now),
            Change::PurgeSome(until, messages_max) => {
                return Outcome::Purged(self.purge_topic(id, until, messages_max, now));
            }
            Change::ForgetLatest => self.forget_latest(id, now),
        }
        Outcome::Done(self.topic_info(id, now))
    }

    /// A digest of the state that all nodes of a cluster must have alike: the writer sets, the names and last offsets of the durable topics that publishers
    /// have created, and the tables by which retries are told.
    pub(crate) fn digest(&self, rules: &Rules) -> u64 {
        let rows = (0..self.topics.rows.end()).filter_map(|id| self.topics.rows.try_get(id));
        let rows = rows.filter(|row| row.has(CREATED) && rules.get(row.rule).durable);
        rows.fold(self.digest_of_cluster(), |digest, row| {
            let name = xxh3_64_with_seed(self.topics.names.get(row.name), self.topics.seed);
            digest ^ xxh3_64_with_seed(&row.last_offset().to_le_bytes(), name)
        })
    }

    /// The index of the partition of a fact's topic. `topic_id` is the topic's row; `None` if the topic does not exist.
    #[inline]
    fn fact_partition_index(&self, topic_id: Option<u32>, fact: &Fact<'_>) -> usize {
        match topic_id {
            Some(id) => self.topic_partition_index(id),
            None => {
                let slot = topic::slot(fact.topic().name);
                self.logs.partition_index_by_slot[usize::from(slot)].into()
            }
        }
    }

    /// Creates a topic; `Existed` if a publisher has created it before.
    fn create_topic(
        &mut self,
        fact: &Fact<'_>,
        topic_id: Option<u32>,
        rules: &Rules,
        now: Now,
    ) -> Outcome {
        let FactTopic { hash, name, client } = fact.topic();
        let id = topic_id.unwrap_or_else(|| self.insert_topic(hash, name, client, rules, now));
        let row = self.topics.rows.get_mut(id);
        let existed = row.has(CREATED) && !row.has(DELETED);
        row.flags = (row.flags | CREATED) & !DELETED;
        row.last_used_s = now.unix_s;
        self.queue_if_idle(id, now);
        let info = self.topic_info(id, now);
        match existed {
            true => Outcome::Existed(info),
            false => Outcome::Done(info),
        }
    }

    /// Deletes a topic: removes its messages and ends its subscriptions. Keeps the row with the last offset, so that a client that comes back with an old
    /// position gets a gap.
    fn delete_topic(&mut self, id: u32, offset: u64, now: Now, lanes: &mut Lanes) -> Outcome {
        let info = self.topic_info(id, now);
        let partition_index = self.topic_partition_index(id);
        let (row, partition) = (
            self.topics.rows.get_mut(id),
            &mut self.logs.partitions[partition_index],
        );
        partition.sequence = offset;
        let log = &mut partition.log;
        let lost = log.last_lost_offset(row.chain).unwrap_or(row.last_offset());
        log.losses.forget_topic(id, lost);
        row.set_last_offset(offset);
        row.flags = (row.flags | DELETED) & !CREATED;
        row.last_used_s = now.unix_s;
        log.clear(core::mem::replace(&mut row.chain, NONE));
        self.remove_retained(id);
        self.topics.for_each_carrier(id, |carrier| {
            lanes.tell(
                carrier.shard,
                Tell::Gone {
                    topic: carrier.carrier_row,
                    serial: carrier.serial,
                },
            );
        });
        self.queue_if_idle(id, now);
        Outcome::Done(info)
    }

    /// Removes at most `messages_max` messages of a topic up to offset `until`, oldest first, and the retained message if its offset is at most `until`.
    /// Subscribers stay. A subscriber that has not received the removed messages gets a gap. Returns how many messages were removed from
    /// the log.
    fn purge_topic(&mut self, id: u32, until: u64, messages_max: u32, now: Now) -> u32 {
        let partition_index = self.topic_partition_index(id);
        let (row, log) = (
            self.topics.rows.get_mut(id),
            &mut self.logs.partitions[partition_index].log,
        );
        let purged;
        (row.chain, purged) = log.drop_until(row.chain, until, messages_max, now.unix_s);
        let mut has_removed = purged > 0;
        if let Some(chain) = self.logs.retained_chains.get(&id).copied() {
            let (chain_left, dropped) = log.drop_until(chain, until, 1, now.unix_s);
            if dropped > 0 {
                self.logs.retained_chains.insert(id, chain_left);
                self.remove_retained(id);
                has_removed = true;
            }
        }
        if has_removed && self.logs.message_count(self.topics.rows.get(id)) == 0 {
            self.begin_idle_time(id, now);
        }
        purged
    }
}

impl Logs {
    /// Advances the partition past a record that changes no topic: to its offset and time. Raises the partition's mark to at least `mark`.
    pub(crate) fn skip_record(
        &mut self,
        partition_index: usize,
        offset: u64,
        unix_s: u32,
        mark: u64,
    ) {
        let is_replicated = self.is_replicated();
        let partition = &mut self.partitions[partition_index];
        partition.advance_to(offset);
        partition.mark = partition.mark.max(mark.min(SlottedOffset::OFFSET_MAX));
        if is_replicated {
            partition.newest_time_s = partition.newest_time_s.max(unix_s);
        }
    }

    /// Stores which batch was read last from the log of this partition.
    pub(crate) fn set_last_batch(&mut self, partition_index: usize, batch: LastBatch) {
        self.partitions[partition_index].last_batch = batch;
    }

    /// The last batch that was read, by partition.
    pub(crate) fn last_batches(&self) -> impl Iterator<Item = (PartitionId, LastBatch)> {
        let all = self.placement.of_home(self.me);
        all.zip(self.partitions.iter().map(|it| it.last_batch))
    }

    /// In a cluster, the newest time in the log of this partition; 0 on one machine.
    pub(crate) fn time_s(&self, partition_index: usize) -> u32 {
        self.partitions[partition_index].newest_time_s
    }

    /// The last offset of this partition.
    pub(crate) fn sequence(&self, partition_index: usize) -> u64 {
        self.partitions[partition_index].sequence
    }
}
