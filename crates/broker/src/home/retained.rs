//! The retained message of a topic (MQTT 5.0 section 3.3.1.3). It is stored as a log of one message, apart from the topic's log, so that
//! neither the count limit nor the age limit of the topic's rule removes it. If the rule keeps only the latest messages, the topic's log itself is the
//! retained state, and there is no second copy.
//!
//! Invariants: a topic is in `Logs::retained_chains` exactly while it has a retained message, and is not forgotten meanwhile. If the logs exceed their
//! byte budget, retained messages are removed last.

use super::Home;
use super::topic_row::HAS_RETAINED;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::Record;
use crate::mail::lanes::Lanes;
use crate::mail::message::NewMessage;
use crate::store::slab::NONE;

impl Home {
    /// Keeps a message as the topic's retained message. An empty message removes the retained one.
    pub(super) fn set_retained(
        &mut self,
        id: u32,
        message: &NewMessage<'_>,
        is_empty: bool,
        rules: &Rules,
    ) {
        let partition_index = self.topic_partition_index(id);
        if message.latest {
            // The topic's log is the retained state.
            if is_empty {
                self.logs.partitions[partition_index]
                    .log
                    .remove_key(self.topics.rows.get(id).chain, message.headers.key);
            }
            return;
        }
        if is_empty {
            return self.remove_retained(id);
        }
        let rule_number = rules.retained();
        let chain = self.logs.retained_chains.get(&id).copied().unwrap_or(NONE);
        let log = &mut self.logs.partitions[partition_index].log;
        let chain = log
            .append(
                chain,
                rule_number,
                rules.get(rule_number),
                1,
                usize::MAX,
                message,
            )
            .0;
        self.logs.retained_chains.insert(id, chain);
        self.topics.rows.get_mut(id).flags |= HAS_RETAINED;
    }

    /// Removes the message without a key from a topic that keeps latest values. This does not count as a loss.
    pub(super) fn forget_latest(&mut self, id: u32, now: Now) {
        let row = self.topics.rows.get(id);
        let partition_index = self.logs.partition_index_of(row);
        self.logs.partitions[partition_index]
            .log
            .remove_key(row.chain, b"");
        self.queue_if_idle(id, now);
    }

    /// Removes the retained message.
    pub(super) fn remove_retained(&mut self, id: u32) {
        if let Some(chain) = self.logs.retained_chains.remove(&id) {
            let partition_index = self.topic_partition_index(id);
            self.logs.partitions[partition_index].log.clear(chain);
            self.topics.rows.get_mut(id).flags &= !HAS_RETAINED;
        }
    }

    /// The retained message for a subscriber that begins after offset `start`. The returned record gets the offset `start`, so that the message does
    /// not move the subscriber's position.
    pub(super) fn read_retained(
        &mut self,
        id: u32,
        start: u64,
        now: Now,
        lanes: &mut Lanes,
    ) -> Option<Record> {
        let chain = *self.logs.retained_chains.get(&id)?;
        let partition_index = self.topic_partition_index(id);
        let log = &mut self.logs.partitions[partition_index].log;
        // The chain has one message.
        let (chain, _) = log.remove_expired(chain, u32::MAX, now.unix_s, usize::MAX);
        if log.count(chain) == 0 {
            self.remove_retained(id);
            self.queue_if_idle(id, now);
            return None;
        }
        let frames = lanes.frames();
        log.read_oldest(chain, 1, usize::MAX, frames);
        let mut record = frames.pages.pop().expect("there is one");
        // A retained message after `start` is also in the topic's log, which the subscriber reads from `start` on.
        let is_due = record.offset <= start;
        (record.offset, record.previous, record.latest) = (start, start, false);
        is_due.then_some(record)
    }
}
