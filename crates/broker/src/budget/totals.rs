//! Counts over all shards, for reports about the server's state: each shard adds its changes once a second, so that no
//! message costs anything for it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::budget::stats::Moved;
use crate::budget::stats::{Accounts, Stats};

/// The counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Connections, whatever they speak.
    Connections,
    /// Bytes received from sockets.
    ReceivedBytes,
    /// Bytes that sockets took.
    SentBytes,
    /// MQTT clients with a connection.
    ClientsConnected,
    /// MQTT sessions, connected or away.
    Sessions,
    /// MQTT sessions that expired.
    SessionsExpired,
    /// MQTT packets received, but for messages.
    PacketsReceived,
    /// MQTT packets sent, but for messages.
    PacketsSent,
    /// Messages that were published, through any door.
    Published,
    /// Bytes of those.
    PublishedBytes,
    /// Messages that were sent to subscribers, over any transport.
    Delivered,
    /// Bytes of those.
    DeliveredBytes,
    /// Messages that did not reach a client.
    Dropped,
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
    /// Bytes of those.
    KeptBytes,
    /// Subscriptions that missed messages which were not kept long enough.
    Gaps,
}

const COUNT: usize = Total::Gaps as usize + 1;

/// The sums. Every method may be called from any shard.
#[derive(Debug, Default)]
pub struct Totals {
    sums: [AtomicU64; COUNT],
    clients_max: AtomicU64,
}

impl Totals {
    /// The sum over all shards.
    pub fn get(&self, total: Total) -> u64 {
        self.sums[total as usize].load(Relaxed)
    }

    /// The most MQTT clients that were connected at once, as far as seen when a shard added its counts.
    pub fn clients_max(&self) -> u64 {
        self.clients_max.load(Relaxed)
    }
}

/// The counts that one shard has added.
#[derive(Debug, Default)]
pub struct Added([u64; COUNT]);

impl Added {
    /// Adds the changes since the last call.
    pub fn update(&mut self, totals: &Totals, stats: &Stats, accounts: &Accounts, moved: Moved) {
        let now = counted(stats, accounts, moved);
        for ((sum, last), now) in totals.sums.iter().zip(&mut self.0).zip(now) {
            if now != *last {
                // A decrease is added as its complement.
                sum.fetch_add(now.wrapping_sub(*last), Relaxed);
                *last = now;
            }
        }
        let clients = totals.get(Total::ClientsConnected);
        totals.clients_max.fetch_max(clients, Relaxed);
    }

    /// Whether nothing but the bytes has changed: nothing else changes without bytes.
    pub fn is_told(&self, stats: &Stats, accounts: &Accounts) -> bool {
        let moved = Moved {
            received_bytes: self.0[Total::ReceivedBytes as usize],
            sent_bytes: self.0[Total::SentBytes as usize],
        };
        self.0 == counted(stats, accounts, moved)
    }
}

/// The numbers of one shard, in the order of [`Total`].
fn counted(stats: &Stats, accounts: &Accounts, moved: Moved) -> [u64; COUNT] {
    [
        u64::from(accounts.connections),
        moved.received_bytes,
        moved.sent_bytes,
        u64::from(accounts.mqtt_connections),
        u64::from(accounts.sessions),
        stats.sessions_expired,
        stats.packets_received,
        stats.packets_sent,
        stats.published,
        stats.published_bytes,
        stats.delivered,
        stats.delivered_bytes,
        stats.dropped,
        stats.attaches - stats.detaches,
        u64::from(accounts.carrier_filters),
        u64::from(accounts.groups),
        u64::from(accounts.retained),
        u64::from(accounts.log_messages),
        accounts.log_bytes as u64,
        stats.gaps,
    ]
}
