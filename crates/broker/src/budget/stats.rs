//! What a shard counts: events, which only add up, and holdings, which return to zero.
//!
//! Invariant: when the last connection is gone, the last mail has arrived and the last topic is
//! forgotten, every account is zero again; the simulator checks that.

use core::ops::AddAssign;

use crate::base::reason::Closed;

/// The protocol of a connection, or its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Requests; a publisher, or not known yet.
    Http,
    /// A long-poll that waits.
    LongPoll,
    /// An event stream.
    Sse,
    /// A WebSocket.
    WebSocket,
    /// MQTT over TCP.
    Mqtt,
    /// MQTT within a WebSocket.
    MqttWebSocket,
    /// It has been sent its last bytes.
    Closing,
}

impl Transport {
    /// All of them, in order.
    pub const ALL: [Transport; 7] = [
        Transport::Http,
        Transport::LongPoll,
        Transport::Sse,
        Transport::WebSocket,
        Transport::Mqtt,
        Transport::MqttWebSocket,
        Transport::Closing,
    ];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Http => "http",
            Transport::LongPoll => "longpoll",
            Transport::Sse => "sse",
            Transport::WebSocket => "websocket",
            Transport::Mqtt => "mqtt",
            Transport::MqttWebSocket => "mqtt_websocket",
            Transport::Closing => "closing",
        }
    }
}

/// How often something happened since the shard began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Subscriptions that began at a position of their own and missed nothing.
    pub resumes: u64,
    /// Subscriptions that were told that messages are lost.
    pub gaps: u64,
    /// Those of them whose topic's log no longer had the messages.
    pub short_logs: u64,
    /// Publishes that were refused for want of room for their idempotency key.
    pub keys_refused: u64,
    /// Publishes that were refused since `limits.publishes_per_s` or `limits.publishes_per_address_per_s` was reached.
    pub rates_refused: u64,
    /// Counted subscriptions.
    pub attaches: u64,
    /// Counted subscriptions that were given back.
    pub detaches: u64,
    /// Messages published by the shard's connections.
    pub published: u64,
    /// Bytes of those.
    pub published_bytes: u64,
    /// Messages sent to the shard's connections.
    pub delivered: u64,
    /// Bytes of those, as their transports carry them.
    pub delivered_bytes: u64,
    /// Messages that did not reach a client: too large for it, or without QoS and past a limit.
    pub dropped: u64,
    /// MQTT packets received, but for messages.
    pub packets_received: u64,
    /// MQTT packets sent, but for messages.
    pub packets_sent: u64,
    /// MQTT sessions that expired.
    pub sessions_expired: u64,
    /// MQTT sessions that ended, or were not kept, because `limits.memory_bytes` was near and their party held much.
    pub sessions_evicted: u64,
    /// Subscriptions that fell behind their socket and went on from the log.
    pub fallbacks: u64,
    /// Publishers that had to wait for credit.
    pub credit_waits: u64,
    /// Pages that had to wait for others or for another turn.
    pub pages_waited: u64,
    /// Connections refused for want of room.
    pub turned_away: u64,
    /// Connections that were closed because their peers may not name clients, as a proxy does.
    pub untrusted: u64,
    /// Connections that were ended, or whose pipelined requests were dropped, to make room for others.
    pub relieved: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that ended, for each [`Closed`].
    pub closed: [u64; Closed::ALL.len()],
    /// Credentials that were refused.
    pub refused: u64,
    /// Refused credentials that were longer than `access.token_bytes`.
    pub oversized: u64,
    /// Requests for another host than the loopback, where only that is answered.
    pub foreign_hosts: u64,
    /// Requests of pages whose origin may not do what they asked for.
    pub foreign_origins: u64,
    /// Requests of web pages that were answered and whose browsers hide the answer from them.
    pub hidden_answers: u64,
    /// Upgrades to WebSocket at a path that has none.
    pub stray_upgrades: u64,
    /// What MQTT clients asked for and were refused, but for want of a grant.
    pub mqtt_refused: u64,
    /// Actions that were refused for want of a grant.
    pub denied: u64,
    /// Connections and subscriptions that ended because their grants did.
    pub lapsed: u64,
    /// Kept messages that a newer one of their key replaced.
    pub superseded: u64,
    /// Kept messages that expired.
    pub expired: u64,
}

impl Stats {
    /// Messages with this many bytes in all were sent.
    #[inline]
    pub(crate) fn sent(&mut self, messages: usize, bytes: usize) {
        self.delivered += messages as u64;
        self.delivered_bytes += bytes as u64;
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Stats) {
        self.resumes += other.resumes;
        self.gaps += other.gaps;
        self.short_logs += other.short_logs;
        self.keys_refused += other.keys_refused;
        self.rates_refused += other.rates_refused;
        self.attaches += other.attaches;
        self.detaches += other.detaches;
        self.published += other.published;
        self.published_bytes += other.published_bytes;
        self.delivered += other.delivered;
        self.delivered_bytes += other.delivered_bytes;
        self.dropped += other.dropped;
        self.packets_received += other.packets_received;
        self.packets_sent += other.packets_sent;
        self.sessions_expired += other.sessions_expired;
        self.sessions_evicted += other.sessions_evicted;
        self.fallbacks += other.fallbacks;
        self.credit_waits += other.credit_waits;
        self.pages_waited += other.pages_waited;
        self.turned_away += other.turned_away;
        self.untrusted += other.untrusted;
        self.relieved += other.relieved;
        self.accepted += other.accepted;
        for (sum, more) in self.closed.iter_mut().zip(other.closed) {
            *sum += more;
        }
        self.refused += other.refused;
        self.oversized += other.oversized;
        self.foreign_hosts += other.foreign_hosts;
        self.foreign_origins += other.foreign_origins;
        self.hidden_answers += other.hidden_answers;
        self.stray_upgrades += other.stray_upgrades;
        self.mqtt_refused += other.mqtt_refused;
        self.denied += other.denied;
        self.lapsed += other.lapsed;
        self.superseded += other.superseded;
        self.expired += other.expired;
    }
}

/// The present holdings of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Connections.
    pub connections: u32,
    /// The same by [`Transport`], as the last sweep saw them.
    pub transports: [u32; Transport::ALL.len()],
    /// Side rows of spills: bytes received in part.
    pub spills: u32,
    /// Side rows of outboxes: bytes that a socket refused.
    pub outboxes: u32,
    /// Other side rows.
    pub extras: u32,
    /// Bytes that clients make the shard hold, by [`Part`](crate::budget::part::Part). Large messages are counted for the process as a
    /// whole, by the first shard.
    pub parts: [usize; crate::budget::part::Part::COUNT],
    /// Bytes in spills.
    pub receive_bytes: usize,
    /// Bytes in outboxes.
    pub outbox_bytes: usize,
    /// Topics that connections subscribe to.
    pub carrier_topics: u32,
    /// Connections with known grants.
    pub identities: u32,
    /// Connections of which a proxy has named the client.
    pub relayed: u32,
    /// MQTT connections.
    pub mqtt_connections: u32,
    /// MQTT sessions whose home this is.
    pub sessions: u32,
    /// Bytes of the sessions whose clients are away.
    pub session_bytes: usize,
    /// Shared subscriptions of MQTT clients, once for each home.
    pub groups: u32,
    /// Subscriptions of QoS 1 and 2, for which messages are kept; those by filter once for each home.
    pub keepers: u32,
    /// Topics with a retained message.
    pub retained: u32,
    /// Member sets of topics and filters with more than one subscriber.
    pub carrier_sets: u32,
    /// Topics of the shard as a home.
    pub home_topics: u32,
    /// Carrier sets of topics with more than one carrier.
    pub home_sets: u32,
    /// Filters that a home keeps for the shards with subscribers of them.
    pub home_filters: u32,
    /// Topics whose losses a home remembers for readers by filter.
    pub home_losses: u32,
    /// Filters that connections subscribe to.
    pub carrier_filters: u32,
    /// Asks of other shards that wait for their turn.
    pub asks: usize,
    /// Pages that a home owes.
    pub pages: usize,
    /// Idempotency keys with a first answer that is kept for retries.
    pub answers: u32,
    /// Followers of interest, once for each home that they follow.
    pub followers: u32,
    /// Messages in the log.
    pub log_messages: u32,
    /// Bytes of the log, its rows included.
    pub log_bytes: usize,
    /// Topics that have messages, or had some that expired.
    pub log_chains: u32,
    /// Keys of topics that keep the latest.
    pub log_keys: u32,
    /// Bytes of topic names.
    pub name_bytes: usize,
    /// Mails that are not yet delivered in full.
    pub deliveries: usize,
    /// Bytes of asks that other shards have not handled yet.
    pub under_way_bytes: usize,
    /// Turns whose frames other shards still hold.
    pub turns_held: usize,
    /// Connections that wait for credit or for their turn.
    pub waiting: usize,
}

impl Accounts {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        *self == Accounts::default()
    }
}

/// Bytes that a shard's sockets have moved since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Received from sockets.
    pub received_bytes: u64,
    /// Taken by sockets.
    pub sent_bytes: u64,
}
