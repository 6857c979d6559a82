//! What all shards count together, for those who want to know how the server is: each adds once a second what has
//! changed, so that no message costs anything for it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::stats::{Accounts, Stats};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// MQTT clients with a connection.
    ClientsConnected,
    /// MQTT sessions, connected or away.
    Sessions,
    /// Messages that were published, through any door.
    Published,
    /// Their bytes.
    PublishedBytes,
    /// Messages that were sent to subscribers, over any transport.
    Delivered,
    /// Subscriptions to topics, over any transport.
    Subscriptions,
    /// Subscriptions to filters.
    Filters,
    /// Shared subscriptions, once for each home.
    Groups,
    /// Topics with a retained message.
    Retained,
    /// Messages that are kept.
    Kept,
    /// Bytes that they occupy.
    KeptBytes,
    /// Subscribers who have missed messages that were not kept long enough.
    Gaps,
}

const COUNT: usize = Total::Gaps as usize + 1;

/// The sums. Every method may be called from any shard.
#[derive(Debug, Default)]
pub struct Totals([AtomicU64; COUNT]);

impl Totals {
    /// The sum over all shards.
    pub fn get(&self, total: Total) -> u64 {
        self.0[total as usize].load(Relaxed)
    }
}

/// What one shard has added.
#[derive(Debug, Default)]
pub struct Added([u64; COUNT]);

impl Added {
    /// Adds what has changed since the last time.
    pub fn update(&mut self, totals: &Totals, stats: &Stats, accounts: &Accounts) {
        let now = [
            u64::from(accounts.mqtt_connections),
            u64::from(accounts.sessions),
            stats.published,
            stats.published_bytes,
            stats.delivered,
            stats.attaches - stats.detaches,
            u64::from(accounts.carrier_filters),
            u64::from(accounts.groups),
            u64::from(accounts.retained),
            u64::from(accounts.log_messages),
            accounts.log_bytes as u64,
            stats.gaps,
        ];
        for ((sum, last), now) in totals.0.iter().zip(&mut self.0).zip(now) {
            if now != *last {
                // What became less is added as its complement.
                sum.fetch_add(now.wrapping_sub(*last), Relaxed);
                *last = now;
            }
        }
    }
}
