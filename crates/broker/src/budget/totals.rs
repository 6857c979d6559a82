//! Sums over all shards, for reports about the server's state. Each shard adds its changes once a second, so that a message needs no shared counter.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::budget::stats::{Accounts, SocketBytes, Stats};

/// Defines the sums. A row is one line: the name, a function that reads the count of a shard, and the meaning.
macro_rules! totals {
    ($($name:ident, $of:expr, $text:literal;)*) => {
        /// A sum over all shards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Total {
            $(#[doc = $text] $name,)*
        }

        const COUNT: usize = [$(Total::$name),*].len();

        /// For each sum, the function that reads the count of one shard.
        const READERS: [fn(&Stats, &Accounts, &SocketBytes) -> u64; COUNT] = [$($of),*];
    };
}

#[rustfmt::skip]
totals! {
    Connections, |_, accounts, _| u64::from(accounts.connections), "Connections of all protocols";
    ReceivedBytes, |_, _, socket_bytes| socket_bytes.received_bytes, "Bytes received from sockets";
    SentBytes, |_, _, socket_bytes| socket_bytes.sent_bytes, "Bytes that sockets accepted";
    ClientsConnected, |_, accounts, _| u64::from(accounts.mqtt_connections), "MQTT clients with a connection";
    Sessions, |_, accounts, _| u64::from(accounts.sessions), "MQTT sessions, connected or away";
    SessionsExpired, |stats, _, _| stats.sessions_expired, "MQTT sessions that expired";
    PacketsReceived, |stats, _, _| stats.packets_received, "MQTT packets received, but for messages";
    PacketsSent, |stats, _, _| stats.packets_sent, "MQTT packets sent, but for messages";
    Published, |stats, _, _| stats.published, "Messages that were published, over all protocols";
    PublishedBytes, |stats, _, _| stats.published_bytes, "Bytes of those";
    Delivered, |stats, _, _| stats.delivered, "Messages that were sent to subscribers, over any transport";
    DeliveredBytes, |stats, _, _| stats.delivered_bytes, "Bytes of those";
    Dropped, |stats, _, _| stats.dropped, "Messages that did not reach a client";
    Subscriptions, |stats, _, _| stats.attaches - stats.detaches, "Subscriptions to topics, over any transport";
    Filters, |_, accounts, _| u64::from(accounts.carrier_filters), "Subscriptions to filters";
    Groups, |_, accounts, _| u64::from(accounts.groups), "Shared subscriptions, once for each home";
    Retained, |_, accounts, _| u64::from(accounts.retained), "Topics with a retained message";
    Kept, |_, accounts, _| u64::from(accounts.log_messages), "Messages that are kept";
    KeptBytes, |_, accounts, _| accounts.log_bytes as u64, "Bytes of those";
    Gaps, |stats, _, _| stats.gaps, "Subscriptions that missed messages which were not kept long enough";
}

/// The sums over all shards. All methods may be called from any shard.
#[derive(Debug, Default)]
pub struct Totals {
    sums: [AtomicU64; COUNT],
    clients_max: AtomicU64,
}

impl Totals {
    /// The value of a sum.
    pub fn get(&self, total: Total) -> u64 {
        self.sums[total as usize].load(Relaxed)
    }

    /// The highest number of connected MQTT clients so far. It is sampled whenever a shard adds its changes.
    pub fn clients_max(&self) -> u64 {
        self.clients_max.load(Relaxed)
    }
}

/// The counts of one shard, as it has last added them to the sums.
#[derive(Debug, Default)]
pub struct AddedCounts([u64; COUNT]);

impl AddedCounts {
    /// Adds the changes since the last call.
    pub fn update(
        &mut self,
        totals: &Totals,
        stats: &Stats,
        accounts: &Accounts,
        socket_bytes: SocketBytes,
    ) {
        let now = counts_of(stats, accounts, socket_bytes);
        for ((sum, last), now) in totals.sums.iter().zip(&mut self.0).zip(now) {
            if now != *last {
                // For a decrease, both operations wrap around.
                sum.fetch_add(now.wrapping_sub(*last), Relaxed);
                *last = now;
            }
        }
        let clients = totals.get(Total::ClientsConnected);
        totals.clients_max.fetch_max(clients, Relaxed);
    }

    /// Whether no count has changed since the last update. Ignores the bytes of sockets.
    pub fn is_up_to_date(&self, stats: &Stats, accounts: &Accounts) -> bool {
        let socket_bytes = SocketBytes {
            received_bytes: self.0[Total::ReceivedBytes as usize],
            sent_bytes: self.0[Total::SentBytes as usize],
        };
        self.0 == counts_of(stats, accounts, socket_bytes)
    }
}

/// The counts of one shard.
fn counts_of(stats: &Stats, accounts: &Accounts, socket_bytes: SocketBytes) -> [u64; COUNT] {
    READERS.map(|read| read(stats, accounts, &socket_bytes))
}
