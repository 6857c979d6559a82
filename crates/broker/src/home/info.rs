//! Describes the state of a topic to clients. A client that asks for it also gets expired messages removed, so that they are not counted.

use super::Home;
use super::topic_row::{DELETED, HAS_QOS_SUBSCRIPTION, REQUESTED};
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::{Outcome, TopicInfo};

impl Home {
    /// The index of the partition of the topic in this row.
    #[inline]
    pub(super) fn topic_partition_index(&self, id: u32) -> usize {
        self.logs.partition_index_of(self.topics.rows.get(id))
    }

    pub(super) fn topic_info(&self, id: u32, now: Now) -> TopicInfo {
        let row = self.topics.rows.get(id);
        TopicInfo {
            messages: self.logs.message_count(row),
            requested_s: row
                .has(REQUESTED)
                .then(|| now.unix_s.saturating_sub(row.last_used_s)),
            subscribers: self.topics.subscriber_count(id),
            needs_log: row.has(HAS_QOS_SUBSCRIPTION),
            offset: row.last_offset(),
            epoch: self.logs.lives.epoch_of(row.last_offset()),
        }
    }

    /// Answers a client that asks for the state of a topic; `Missing` if there is none.
    pub(crate) fn answer_topic_info(
        &mut self,
        hash: u32,
        name: &[u8],
        rules: &Rules,
        now: Now,
    ) -> Outcome {
        let Some(id) = self
            .topics
            .find(hash, name)
            .filter(|id| !self.topics.rows.get(*id).has(DELETED))
        else {
            return Outcome::Missing;
        };
        let partition_index = self.topic_partition_index(id);
        let (row, log) = (
            self.topics.rows.get_mut(id),
            &mut self.logs.partitions[partition_index].log,
        );
        if log.count(row.chain) > 0 {
            // If more messages have expired than this call may remove, later turns of the shard's loop remove them.
            (row.chain, _) = log.remove_expired(
                row.chain,
                rules.get(row.rule).log_age_s,
                now.unix_s,
                self.turn_limits.removals_per_turn,
            );
            if log.count(row.chain) == 0 {
                self.begin_idle_time(id, now);
            }
        }
        Outcome::Done(self.topic_info(id, now))
    }
}
