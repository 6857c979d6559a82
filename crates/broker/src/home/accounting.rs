//! Counts the rows and bytes of a home (the part of a shard that keeps topics), and limits the losses that it remembers. A loss is a message that was
//! removed before every subscriber could get it.

use super::Home;
use super::answers::{Answers, Retries};
use super::logs::Logs;
use super::partition::Partition;
use super::topics::TopicTable;
use crate::budget::stats::Accounts;
use crate::log::{LOSS_BYTES, Log};

impl Home {
    /// Enters the counts and bytes of this home in `accounts`.
    pub fn fill_accounts(&self, accounts: &mut Accounts) {
        accounts.home_topics = self.topics.rows.len();
        accounts.home_sets = self.topics.carriers.set_count();
        accounts.home_filters = self.subscriptions.filters.len();
        accounts.home_losses = self.logs.counts.losses.get() as u32;
        accounts.followers = self.interest.followers.len();
        accounts.groups = self.subscriptions.groups.len();
        accounts.keepers = self.subscriptions.qos.len();
        accounts.retained = self.logs.retained_chains.len() as u32;
        accounts.pages = self.page_queue.len();
        accounts.answers = self.retries.answers.as_ref().map_or(0, Answers::len);
        accounts.log_messages = self.logs.iter().map(Log::len).sum();
        accounts.log_bytes = self.logs.log_bytes();
        accounts.log_chains = self.logs.iter().map(Log::chain_count).sum();
        accounts.log_keys = self.logs.iter().map(Log::key_count).sum();
        accounts.name_bytes += self.topics.names.bytes();
    }

    /// Bytes of the subscriptions that are kept outside the rows of topics.
    pub fn subscriptions_bytes(&self) -> usize {
        let filters = self.subscriptions.qos.bytes() + self.subscriptions.filters.bytes();
        self.subscriptions.groups.bytes() + filters + self.interest.remote.bytes()
    }

    /// Bytes of the losses that are remembered. Subscribers by filter get a gap (the notice that messages are lost) for them.
    pub fn losses_bytes(&self) -> usize {
        self.logs.counts.losses.get() * LOSS_BYTES
    }

    /// Limits the losses that are remembered by topic to `losses_max` topics. From now on, the oldest losses beyond this limit are remembered only by
    /// rule. One call handles at most `removals_left` topics. Returns whether there are still too many.
    pub(crate) fn trim_losses(&mut self, losses_max: usize, mut removals_left: usize) -> bool {
        let losses_max = losses_max / self.logs.partitions.len().max(1);
        // This function is called in each turn (a pass of the shard's loop). It returns early in the usual case, in which all partitions
        // together have no more losses than one partition may have.
        if self.logs.counts.losses.get() <= losses_max {
            return false;
        }
        for Partition { log, forgotten, .. } in &mut self.logs.partitions {
            while log.losses.topics() > losses_max {
                if removals_left == 0 {
                    return true;
                }
                let Some((offset, topic, number)) = log.losses.pop_first() else {
                    break;
                };
                removals_left -= 1;
                self.steps.add(1);
                forgotten.add_for_rule(self.topics.rows.get(topic).rule, offset, number);
            }
        }
        false
    }
}

impl Logs {
    /// Bytes allocated for messages, used or not.
    pub(crate) fn log_reserved_bytes(&self) -> usize {
        let held = self.iter().map(Log::bytes_by_kind);
        held.map(|held| held.chunks + held.chains).sum()
    }
}

impl Retries {
    /// Bytes of the tables by which retries are recognised.
    pub(crate) fn answers_bytes(&self) -> usize {
        let answers = self.answers.as_ref().map_or(0, Answers::bytes);
        answers + self.unreleased.bytes() + self.newest_claims.bytes()
    }
}

impl TopicTable {
    /// Bytes of the rows, the index and the sets of carriers (the shards with subscribers of a topic).
    pub(crate) fn table_bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + self.carriers.bytes()
    }
}
