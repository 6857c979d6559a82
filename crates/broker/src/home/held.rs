//! How much a home holds of everything.

use super::Home;
use super::answers::Answers;
use crate::budget::stats::Accounts;

impl Home {
    /// Adds its counts and bytes.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.home_topics = self.rows.len();
        accounts.home_sets = self.carriers.sets();
        accounts.home_filters = self.filters.len();
        accounts.home_losses = self.log.losses.topics() as u32;
        accounts.name_bytes += self.filters.bytes();
        accounts.followers = self.followers.len();
        accounts.groups = self.groups.len();
        accounts.keepers = self.keepers.len();
        accounts.retained = self.retained.len() as u32;
        accounts.owed = self.readings();
        accounts.answers = self.answers.as_ref().map_or(0, Answers::len);
        accounts.log_messages = self.log.len();
        accounts.log_bytes = self.log.bytes();
        accounts.log_chains = self.log.chains();
        accounts.log_keys = self.log.keys();
        accounts.name_bytes += self.names.bytes();
    }

    /// Bytes that its log has for messages, used or not.
    pub fn log_reserved_bytes(&self) -> usize {
        self.log.reserved_bytes()
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
