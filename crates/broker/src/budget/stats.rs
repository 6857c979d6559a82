//! The statistics of a shard: counters of events ([`Stats`]), and gauges of what the shard holds ([`Accounts`]).
//!
//! A new counter, with or without a label, is a row of `counters!`. A new gauge is a row in [`Accounts`]. A refusal needs no row: the
//! code that tells a client the reason counts it by reason and transport ([`Refusals`]). A metric for several reasons is a row in the
//! third part of `counters!`. The metrics and docs/OPERATIONS.md are generated from these tables. `crore admin stats` lists the rows
//! that have a `refusal` text.
//!
//! Invariant: when the last connection is closed, the last mail has arrived and the last topic is removed, all gauges are zero. The simulator checks
//! this.

use alloc::vec::Vec;
use core::ops::AddAssign;

use crate::base::go_away::GoAway;
use crate::base::labels::labels;
use crate::base::reason::{Closed, Reason, Section};
use crate::budget::part::MemoryPart;

labels! {
    /// The protocol of a connection. For some connections, its state.
    pub enum Transport {
        Http, "http", "requests; a publisher, or not known yet";
        LongPoll, "longpoll", "a long-poll that waits";
        Sse, "sse", "an event stream";
        WebSocket, "websocket", "a WebSocket";
        Mqtt, "mqtt", "MQTT over TCP";
        MqttWebSocket, "mqtt_websocket", "MQTT within a WebSocket";
        Centrifugo, "centrifugo", "Centrifugo's client protocol";
        Pusher, "pusher", "Pusher's protocol";
        Http2, "http2", "HTTP/2; its streams count as connections of their own";
        Closing, "closing", "it has been sent its last bytes";
    }
}

/// A counter as reports see it.
pub struct Counter {
    /// The name of the metric; empty if it has none.
    pub metric: &'static str,
    /// What is counted, in Markdown.
    pub help: &'static str,
    /// The text for the list of refusals of `crore admin stats`; empty if the counter counts no refusals.
    pub refusal: &'static str,
    /// Reads the value.
    pub of: fn(&Stats) -> u64,
}

/// The number of refusals, by reason and transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusals([[u64; Transport::ALL.len()]; Reason::ALL.len()]);

impl Refusals {
    /// The number of refusals for this reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.0[reason as usize].iter().sum()
    }

    /// The number of refusals for this reason on connections of this transport.
    pub fn of_transport(&self, reason: Reason, transport: Transport) -> u64 {
        self.0[reason as usize][transport as usize]
    }

    /// The number of refusals for all reasons of a section.
    pub fn of_section(&self, section: Section) -> u64 {
        let all = Reason::ALL.iter();
        let reasons_of_section = all.filter(|reason| reason.row().section == section);
        reasons_of_section.map(|reason| self.count(*reason)).sum()
    }

    /// Counts a refusal. Code that has a connection calls `Clients::refused`.
    #[inline]
    pub(crate) fn add(&mut self, reason: Reason, transport: Transport) {
        self.0[reason as usize][transport as usize] += 1;
    }
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals([[0; Transport::ALL.len()]; Reason::ALL.len()])
    }
}

impl AddAssign for Refusals {
    fn add_assign(&mut self, other: Refusals) {
        let sums = self.0.as_flattened_mut().iter_mut();
        for (sum, more) in sums.zip(other.0.as_flattened()) {
            *sum += more;
        }
    }
}

/// A counter with a value for each variant of an enum, which is the metric's label.
pub struct LabelledCounter {
    /// The name of the metric.
    pub metric: &'static str,
    /// The name of the label.
    pub label: &'static str,
    /// The values of the label with their descriptions, in Markdown.
    pub label_values: &'static str,
    /// What is counted, in Markdown.
    pub help: &'static str,
    /// Reads each value of the label and its count.
    pub of: fn(&Stats) -> Vec<(&'static str, u64)>,
}

/// Defines the counters. A row is one line: the field, optionally its metric, optionally its text in the list of refusals, and the help. A row of the
/// second part has a count for each variant of an enum (`labels!`), which is the label of its metric. A row of the third part has a sum of refusals in
/// place of a field.
macro_rules! counters {
    ($($name:ident $(metric $metric:literal)? $(refusal $refusal:literal)?: $help:literal;)*
     $(($by_name:ident by $kind:ident $label:literal) metric $by_metric:literal: $by_help:literal;)*
     $([$of:expr] metric $sum:literal $(refusal $sum_refusal:literal)?: $sum_help:literal;)*) => {
        /// Counters of events since the shard began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $(#[doc = $help] pub $name: u64,)*
            $(#[doc = $by_help] pub $by_name: [u64; $kind::ALL.len()],)*
            /// Refused requests, messages and packets, and ended connections, by [`Reason`].
            pub refusals: Refusals,
        }

        /// All counters, in the order of the table.
        pub const COUNTERS: &[Counter] = &[$(Counter {
            metric: concat!("" $(, $metric)?),
            help: $help,
            refusal: concat!("" $(, $refusal)?),
            of: |stats| stats.$name,
        },)* $(Counter {
            metric: $sum,
            help: $sum_help,
            refusal: concat!("" $(, $sum_refusal)?),
            of: |stats| ($of as fn(&Refusals) -> u64)(&stats.refusals),
        },)*];

        /// All counters with a label, in the order of the table.
        pub const LABELLED_COUNTERS: &[LabelledCounter] = &[$(LabelledCounter {
            metric: $by_metric,
            label: $label,
            label_values: $kind::LABELS,
            help: $by_help,
            of: |stats| $kind::ALL.iter().map(|it| (it.name(), stats.$by_name[*it as usize])).collect(),
        },)*];

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Stats) {
                $(self.$name += other.$name;)*
                $(for (sum, more) in self.$by_name.iter_mut().zip(other.$by_name) {
                    *sum += more;
                })*
                self.refusals += other.refusals;
            }
        }
    };
}

#[rustfmt::skip]
counters! {
    accepted metric "crore_accepted_connections_total": "Accepted connections";
    turned_away: "Connections for which there was no room";
    relieved metric "crore_relieved_connections_total": "Connections that ended, or lost their pipelined requests, because [`limits.memory_bytes`](SETTINGS.md#what-clients-make-the-server-hold) was used up";
    sessions_evicted metric "crore_evicted_sessions_total": "MQTT sessions that ended, or were not kept, because [`limits.memory_bytes`](SETTINGS.md#what-clients-make-the-server-hold) was nearly used up and their client held much of it";
    untrusted metric "crore_untrusted_connections_total": "Connections refused because their peer is not in `http.trusted_proxies`, with `http.proxy_protocol`";
    hidden_answers metric "crore_hidden_answers_total": "Answers that browsers hide from the page, because its Origin is not in `http.allowed_origins`";
    refused_streams metric "crore_refused_streams_total": "Event streams and WebSockets that were answered 400. Browsers hide the reason from the page; the log says so once a minute, and shows one reason";
    mqtt_refused metric "crore_refused_packets_total" refusal "an MQTT packet": "Packets of MQTT clients that were refused, or ended their connection, for another reason than rights: a subscription past `limits.topics_per_connection`, a topic with a control character. The log says so once a minute, and names one with the reason";
    lapsed metric "crore_lapsed_connections_total": "Connections and polls that ended because their token expired, or because the settings [grant less](ACCESS.md#when-the-settings-grant-less)";
    streams metric "crore_http2_opened_streams_total": "Streams of [HTTP/2](PROTOCOL-DETAILS.md#http2) that clients opened, one for each request";
    published metric "crore_published_messages_total": "Published messages";
    published_bytes metric "crore_published_bytes_total": "Bytes of data of the published messages";
    delivered metric "crore_delivered_messages_total": "Deliveries: a message counts once for each connection that gets it";
    delivered_bytes: "Bytes of the delivered messages, as their transports carry them";
    dropped: "Messages that did not reach a client: too large for it, or without QoS and past a limit";
    packets_received: "MQTT packets received, but for messages";
    packets_sent: "MQTT packets sent, but for messages";
    sessions_expired: "MQTT sessions that expired";
    short_sessions metric "crore_short_sessions_total": "MQTT clients of a [cluster](CLUSTER.md#upgrade) that asked for a session that outlives their connection, although the cluster has no durable sessions. A client counts again when it was not named in the log, or is forgotten";
    takeovers metric "crore_takeovers_total": "MQTT connections that ended because another connection with the same client id took over their session";
    refused_takeovers metric "crore_refused_takeovers_total" refusal "a session was taken over too often": "MQTT connections that were refused for a second (0x9F) because their session was taken over more often than `mqtt.takeovers_per_minute` allows: several clients use one client id";
    attaches: "Counted subscriptions";
    detaches: "Counted subscriptions that were given back";
    resumes metric "crore_resumed_subscriptions_total": "Subscriptions that resumed at a position without a gap";
    gaps metric "crore_gaps_total": "Gaps: times that a subscription lost messages because they were no longer kept. Clients of MQTT are not told, and of Pusher's protocol only those that resume. A subscription by filter counts a gap once for each partition and each page of messages with a loss";
    short_logs metric "crore_short_logs_total": "Gaps because the topic's log was too short, by its rule or by `limits.log_bytes`";
    fallbacks metric "crore_fallbacks_total": "Subscriptions of slow clients that continued from the log";
    credit_waits metric "crore_credit_waits_total": "Publishers that waited for another shard";
    pages_waited: "Pages that had to wait for others or for another turn";
    superseded metric "crore_superseded_messages_total": "Kept messages that were replaced by a newer one with the same key";
    expired metric "crore_expired_messages_total": "Kept messages that expired";

    (closed by Closed "reason") metric "crore_closed_connections_total": "Ended connections";
    (goaways by GoAway "reason") metric "crore_http2_goaways_total": "Connections of [HTTP/2](PROTOCOL-DETAILS.md#http2) that the server ended, or whose clients it asked for no more streams (GOAWAY)";

    [|it| it.of_section(Section::Credentials)] metric "crore_refused_credentials_total" refusal "credentials were not valid": "Requests and connections with invalid credentials";
    [|it| it.count(Reason::TokenTooLong)] metric "crore_oversized_credentials_total": "Refused credentials that were longer than `access.token_bytes`";
    [|it| it.of_section(Section::NoCredentials) + it.of_section(Section::NotGranted)] metric "crore_denied_requests_total" refusal "no right to do this": "Requests, subscriptions and messages without the right";
    [|it| it.count(Reason::ForeignHost)] metric "crore_refused_hosts_total" refusal "another Host than the loopback": "Requests with another `Host` than the loopback, while only that is accepted";
    [|it| it.count(Reason::ForeignOrigin)] metric "crore_refused_origins_total" refusal "another origin": "Requests of web pages with an `Origin` that is not in `http.allowed_origins`";
    [|it| it.count(Reason::NoSocketPath)] metric "crore_stray_upgrades_total" refusal "a WebSocket at a path that has none": "Upgrades to WebSocket that were answered 404: the path has no WebSocket, and the client did not offer the subprotocol `mqtt`";
    [|it| it.count(Reason::KeysFull)] metric "crore_refused_keys_total" refusal "no room for an idempotency key": "Publishes that were refused because `publish.idempotency_keys`, or the publisher's share of it, was used up";
    [|it| it.of_section(Section::PublishRates)] metric "crore_refused_rates_total" refusal "a rate of publishes was reached": "Publishes that were refused because `limits.publishes_per_address_per_s` or `limits.publishes_per_s` was reached; the lines of a batch count one by one";
}

impl Stats {
    /// Counts sent messages. `bytes` is the sum of their bytes.
    #[inline]
    pub(crate) fn sent(&mut self, messages: usize, bytes: usize) {
        self.delivered += messages as u64;
        self.delivered_bytes += bytes as u64;
    }
}

/// A gauge that has a metric, as reports see it.
pub struct Gauge {
    /// The name of the metric.
    pub metric: &'static str,
    /// The help, in Markdown.
    pub help: &'static str,
    /// Whether the metric has a value for each shard. If not, its value is the sum over all shards.
    pub by_shard: bool,
    /// Reads the value.
    pub of: fn(&Accounts) -> u64,
}

/// Defines the gauges. A row is one line: the field and its type, optionally its metric (`metric`: the sum, `by_shard`: a value for each shard), and the
/// help.
macro_rules! holdings {
    ($($name:ident: $type:ident $(, $scope:ident $metric:literal)?: $help:literal;)*) => {
        /// Gauges: what a shard holds now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Accounts {
            $(#[doc = $help] pub $name: $type,)*
            /// The number of connections by [`Transport`], as the last walk over all connections counted them.
            pub transports: [u32; Transport::ALL.len()],
            /// Bytes that clients make the shard hold, by [`MemoryPart`]. The first shard counts the large messages of the whole process.
            pub parts: [usize; MemoryPart::ALL.len()],
        }

        /// The gauges that have a metric, in the order of the table.
        pub const GAUGES: &[Gauge] = &[$($(Gauge {
            metric: $metric,
            help: $help,
            by_shard: holdings!($scope),
            of: |accounts| accounts.$name as u64,
        },)?)*];
    };
    (metric) => { false };
    (by_shard) => { true };
}

#[rustfmt::skip]
holdings! {
    connections: u32, by_shard "crore_shard_connections": "Connections";
    spills: u32: "Side rows of spills: bytes received in part";
    streams: u32, metric "crore_http2_streams": "Streams of [HTTP/2](PROTOCOL-DETAILS.md#http2). Each is also a connection, with the transport of its request";
    outboxes: u32, by_shard "crore_slow_consumers": "Connections for which something waits";
    extras: u32: "Other side rows";
    receive_bytes: usize, by_shard "crore_receive_buffer_bytes": "Requests and frames that have arrived in part";
    outbox_bytes: usize, by_shard "crore_outbox_bytes": "Bytes that wait for sockets that took no more";
    carrier_topics: u32: "Topics that connections subscribe to";
    identities: u32: "Connections with known grants";
    relayed: u32: "Connections of which a proxy has named the client";
    mqtt_connections: u32: "MQTT connections";
    sessions: u32, metric "crore_sessions": "MQTT sessions, connected or away";
    away_sessions: u32, metric "crore_away_sessions": "MQTT sessions whose client is away; in a cluster: of those that this node knows, the ones that no client of any node holds";
    session_bytes: usize: "Bytes of the sessions whose clients are away";
    groups: u32: "Shared subscriptions of MQTT clients, once for each home";
    keepers: u32: "Subscriptions of QoS 1 and 2, for which messages are kept; those by filter once for each home";
    retained: u32, metric "crore_retained_messages": "Topics with a retained message";
    carrier_sets: u32: "Member sets of topics and filters with more than one subscriber";
    home_topics: u32, by_shard "crore_topics": "Topics whose home the shard is";
    home_sets: u32: "Carrier sets of topics with more than one carrier";
    home_filters: u32: "Filters that a home keeps for the shards with subscribers of them";
    home_losses: u32: "Topics whose losses a home remembers for readers by filter";
    carrier_filters: u32, metric "crore_filters": "Filters that are subscribed to, once for each shard";
    asks: usize: "Asks of other shards that wait for their turn";
    pages: usize: "Pages that a home owes";
    answers: u32: "Idempotency keys with a first answer that is kept for retries";
    followers: u32, metric "crore_followers": "Followers of interest, once for each home";
    log_messages: u32, metric "crore_log_messages": "Messages that are kept";
    log_bytes: usize, by_shard "crore_log_bytes": "Bytes that the kept messages occupy";
    log_chains: u32: "Topics that have messages, or had some that expired";
    log_keys: u32: "Keys of topics that keep the latest";
    name_bytes: usize: "Bytes of topic names";
    deliveries: usize: "Mails that are not yet delivered in full";
    in_flight_bytes: usize, metric "crore_credit_bytes": "Publishes under way between shards, each with 4 KiB besides its bytes";
    turns_held: usize: "Turns whose frames other shards still hold";
    waiting: usize: "Connections that wait for credit or for their turn";
}

impl Accounts {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        *self == Accounts::default()
    }
}

/// Bytes that the sockets of a shard have received and sent since the shard began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBytes {
    /// Bytes received from sockets.
    pub received_bytes: u64,
    /// Bytes accepted by sockets.
    pub sent_bytes: u64,
}
