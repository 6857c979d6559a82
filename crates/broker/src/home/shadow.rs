//! Keeps a [`Shadow`](crate::Shadow) equal to the serving home. A shadow is a second home (the part of a shard that keeps topics) of a partition, without
//! clients, which makes checkpoints. The serving home reports which messages it still has, and the shadow removes the others.
//!
//! The report is needed for the messages that the serving home has removed for lack of room, or because no subscription needs them. All other removals
//! follow from the log, and the shadow makes them itself: a newer message with the same key, expiry, a deletion.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Home;
use super::topics::TopicTable;
use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::store::blobs::Blob;

/// The maximum number of expired messages that are dropped in one step.
const EXPIRED_PER_CALL: usize = 4096;

impl Home {
    /// The *floor* of each of these topics: the last offset that the topic's log has lost, or `None` if there is no such topic. Returns `None` if the
    /// home has not applied the partition's log up to `offset` yet.
    pub(crate) fn floors_of(
        &self,
        partition: PartitionId,
        offset: u64,
        names: &[Box<[u8]>],
    ) -> Option<Vec<Option<u64>>> {
        let partition_index = self.logs.partition_index_here(partition)?;
        (self.logs.partitions[partition_index].sequence >= offset).then(|| {
            let floor = |name: &[u8]| {
                let id = self.topics.find(self.topics.hash_of(name), name)?;
                let row = self.topics.rows.get(id);
                let log = &self.logs.partitions[self.logs.partition_index_of(row)].log;
                Some(log.last_lost_offset(row.chain).unwrap_or(row.last_offset()))
            };
            names.iter().map(|name| floor(name)).collect()
        })
    }

    /// Removes a topic's messages up to its [floor](Self::floors_of), or the topic if the floor is `None`.
    pub(crate) fn drop_below_floor(&mut self, id: u32, floor: Option<u64>, now: Now) {
        let Some(floor) = floor else {
            self.remove_retained(id);
            return self.forget_topic(id);
        };
        let partition_index = self.topic_partition_index(id);
        let (row, log) = (
            self.topics.rows.get_mut(id),
            &mut self.logs.partitions[partition_index].log,
        );
        (row.chain, _) = log.drop_until(row.chain, floor, u32::MAX, now.unix_s);
        if planted::is(Fault::DroppedLive) {
            (row.chain, _) = log.drop_until(row.chain, row.last_offset(), 1, now.unix_s);
        }
    }

    /// Removes all messages that have expired at `now`, and all answers to idempotency keys that have expired at second `answers_s`.
    pub(crate) fn expire_all(&mut self, rules: &Rules, now: Now, answers_s: u32) {
        for partition_index in 0..self.logs.partitions.len() {
            for number in 0..rules.count() as u8 {
                while self.expire_rule(partition_index, number, rules, now, EXPIRED_PER_CALL)
                    == EXPIRED_PER_CALL
                {}
            }
            while self.logs.partitions[partition_index]
                .log
                .clear_orphans(EXPIRED_PER_CALL)
                == EXPIRED_PER_CALL
            {}
        }
        // Messages with a time to live may expire before older messages of their topic, which `expire_rule` does not see. A serving home removes them when
        // it reads the topic or must make room in it.
        for id in 0..self.topics.rows.end() {
            self.expire_topic(id, rules, now);
        }
        let answer_count = |home: &Home| {
            home.retries
                .answers
                .as_ref()
                .map_or(0, |answers| answers.len())
        };
        loop {
            let old_count = answer_count(self);
            self.retries.expire_answers(answers_s);
            if answer_count(self) == old_count {
                return;
            }
        }
    }

    /// Removes a topic's expired messages, and its retained message if that has expired.
    fn expire_topic(&mut self, id: u32, rules: &Rules, now: Now) {
        let row = self.topics.rows.get(id);
        if row.name == Blob::NONE {
            return;
        }
        let (chain, age_s) = (row.chain, rules.get(row.rule).log_age_s);
        let partition_index = self.logs.partition_index_of(row);
        let log = &mut self.logs.partitions[partition_index].log;
        if log.count(chain) > 0 {
            let (rest_of_chain, _) = log.remove_expired(chain, age_s, now.unix_s, usize::MAX);
            let is_empty = log.count(rest_of_chain) == 0;
            self.topics.rows.get_mut(id).chain = rest_of_chain;
            if is_empty {
                self.begin_idle_time(id, now);
            }
        }
        let log = &mut self.logs.partitions[partition_index].log;
        if let Some(chain) = self.logs.retained_chains.get_mut(&id) {
            (*chain, _) = log.remove_expired(*chain, u32::MAX, now.unix_s, usize::MAX);
            if log.count(*chain) == 0 {
                self.remove_retained(id);
            }
        }
    }
}

impl TopicTable {
    /// The rows and names of at most `limit` topics, from row `from` on. Also returns the row to continue with.
    pub(crate) fn topics_from(&self, from: u32, limit: usize) -> (Vec<(u32, &[u8])>, u32) {
        let mut topics = Vec::new();
        let mut id = from;
        while id < self.rows.end() && topics.len() < limit {
            let row = self.rows.get(id);
            if row.name != Blob::NONE {
                topics.push((id, self.names.get(row.name)));
            }
            id += 1;
        }
        (topics, id)
    }
}
