//! How much a home holds of everything.

use super::Home;
use super::answers::Answers;
use crate::budget::stats::Accounts;
use crate::log::Log;

impl Home {
    /// Adds its counts and bytes.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.home_topics = self.rows.len();
        accounts.home_sets = self.carriers.sets();
        accounts.home_filters = self.filters.len();
        accounts.home_losses = self.logs().map(|log| log.losses.topics() as u32).sum();
        accounts.name_bytes += self.filters.bytes();
        accounts.followers = self.followers.len();
        accounts.groups = self.groups.len();
        accounts.keepers = self.keepers.len();
        accounts.retained = self.retained.len() as u32;
        accounts.owed = self.readings();
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

    /// Bytes of the groups of shared subscriptions.
    pub fn groups_bytes(&self) -> usize {
        self.groups.bytes()
    }

    /// Bytes of the rows and their index.
    pub fn table_bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + self.carriers.bytes()
    }
}
