//! What all shards count together, for those who want to know how the server is: each adds once a second what has
//! changed, so that no message costs anything for it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::io::Moved;
use crate::stats::{Accounts, Stats};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Connections, whatever they speak.
    Connections,
    /// Connections that came in.
    Accepted,
    /// Bytes that came from sockets.
    ReceivedBytes,
    /// Bytes that sockets took.
    SentBytes,
    /// MQTT clients with a connection.
    ClientsConnected,
    /// CONNECT packets of MQTT.
    Connects,
    /// MQTT sessions, connected or away.
    Sessions,
    /// Those whose time was over.
    SessionsExpired,
    /// MQTT packets that came, but for messages.
    PacketsReceived,
    /// MQTT packets that were sent, but for messages.
    PacketsSent,
    /// Messages that were published, through any door.
    Published,
    /// Their bytes.
    PublishedBytes,
    /// Messages that were sent to subscribers, over any transport.
    Delivered,
    /// Their bytes.
    DeliveredBytes,
    /// Messages that a client did not get, or nobody.
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
    /// Bytes that they occupy.
    KeptBytes,
    /// Subscribers who have missed messages that were not kept long enough.
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

    /// The most MQTT clients that were connected at once, of the moments at which a shard added something.
    pub fn clients_max(&self) -> u64 {
        self.clients_max.load(Relaxed)
    }
}

/// What one shard has added.
#[derive(Debug, Default)]
pub struct Added([u64; COUNT]);

impl Added {
    /// Adds what has changed since the last time.
    pub fn update(&mut self, totals: &Totals, stats: &Stats, accounts: &Accounts, moved: Moved) {
        let now = counted(stats, accounts, moved);
        for ((sum, last), now) in totals.sums.iter().zip(&mut self.0).zip(now) {
            if now != *last {
                // What became less is added as its complement.
                sum.fetch_add(now.wrapping_sub(*last), Relaxed);
                *last = now;
            }
        }
        let clients = totals.get(Total::ClientsConnected);
        totals.clients_max.fetch_max(clients, Relaxed);
    }

    /// Whether nothing has changed but bytes, without which nothing else does.
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
        stats.accepted,
        moved.received_bytes,
        moved.sent_bytes,
        u64::from(accounts.mqtt_connections),
        stats.connects,
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
