//! How much a home holds of everything.

use super::answers::Answers;
use super::partition::Partition;
use super::{Home, groups, keepers};
use crate::budget::stats::Accounts;
use crate::log::Log;

impl Home {
    /// Adds its counts and bytes.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.home_topics = self.rows.len();
        accounts.home_sets = self.carriers.sets();
        accounts.home_filters = self.filters.len();
        accounts.home_losses = self.logs().map(|log| log.losses.topics() as u32).sum();
        accounts.followers = self.followers.len();
        accounts.groups = self.groups.len();
        accounts.keepers = self.keepers.len();
        accounts.retained = self.retained.len() as u32;
        accounts.pages = self.readings();
        accounts.answers = self.answers.as_ref().map_or(0, Answers::len);
        accounts.log_messages = self.logs().map(Log::len).sum();
        accounts.log_bytes = self.log_bytes();
        accounts.log_chains = self.logs().map(Log::chains).sum();
        accounts.log_keys = self.logs().map(Log::keys).sum();
        accounts.name_bytes += self.names.bytes();
    }

    /// Bytes that its logs have for messages, used or not.
    pub fn log_reserved_bytes(&self) -> usize {
        self.logs().map(Log::reserved_bytes).sum()
    }

    /// Bytes of the first answers that are kept for retries.
    pub fn answers_bytes(&self) -> usize {
        self.answers.as_ref().map_or(0, Answers::bytes)
    }

    /// Bytes of what it remembers of subscriptions, beside the rows of topics.
    pub fn subscriptions_bytes(&self) -> usize {
        let losses: usize = self.logs().map(|log| log.losses.bytes()).sum();
        let filters = self.keepers.bytes() + self.filters.bytes();
        self.groups.bytes() + filters + losses + self.elsewhere.bytes()
    }

    /// Bytes that a group of shared subscriptions needs, if no other has its filter.
    pub fn group_bytes_alone(name: &[u8], filter: &[u8]) -> usize {
        groups::bytes_alone(name, filter)
    }

    /// Bytes that a filter whose messages are kept needs, if no other subscription has it.
    pub fn filter_bytes_alone(filter: &[u8]) -> usize {
        keepers::bytes_alone(filter)
    }

    /// Remembers the losses of so many topics at most. Of those that lost messages longest ago the rules are noted instead.
    pub fn trim_losses(&mut self, most: usize) {
        let most = most / self.partitions.len().max(1);
        for Partition { log, forgotten, .. } in &mut self.partitions {
            while log.losses.topics() > most
                && let Some((offset, topic, number)) = log.losses.pop()
            {
                self.steps.add(1);
                forgotten.note(self.rows.get(topic).rule, offset, number);
            }
        }
    }

    /// Bytes of the rows and their index.
    pub fn table_bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + self.carriers.bytes()
    }
}
