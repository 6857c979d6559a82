//! `GET /api/v1/stats`: the server's statistics, as one object or as a stream of events with one object a second.
//!
//! The process's memory costs more to read than counters, so it is read only for a request or an open stream.

use std::convert::Infallible;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use crore_broker::account::MemoryPart;
use crore_broker::{COUNTERS, Closed, ShardId, Transport};
use crore_net::memory;
use crore_shard_loop::counters::{LatencyHistogram, ShardCounters};
use crore_wire::http::accept;
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use super::chart_history::Columns;
use super::disk::DiskStats;
use super::limits::{self, Limit};
use super::process;
use super::samples::{LastSamples, latency, per_s, round, sum, unix_ms};
use super::state::AdminState;

/// With fewer connections, memory per connection is not shown: it would be mostly the memory of the process itself.
const PER_CONNECTION_MIN: u64 = 1_000;

/// The state and the rates of the server.
#[derive(Serialize, ToSchema)]
pub struct Stats {
    /// The time of the newer sample, in Unix milliseconds.
    time_ms: u64,
    /// Seconds since the start of the process.
    uptime_s: u64,
    /// The version of the server.
    version: &'static str,
    /// The name of the host.
    host: String,
    /// The URL of the data port.
    url: String,
    /// The name of the cluster; null if the server is not a node of a cluster.
    cluster: Option<String>,
    /// The time between the two samples from which the rates are computed, in seconds.
    interval_s: f64,
    connections: Connections,
    accepts_per_s: f64,
    closes_per_s: f64,
    messages: Messages,
    latency_us: Percentiles,
    /// Number of topics.
    topics: u64,
    /// Number of subscriptions to topics.
    subscriptions: u64,
    /// Number of different filters with subscribers. A filter counts once for each shard that has subscribers.
    filters: u64,
    /// Number of MQTT sessions, with those of clients that are not connected.
    sessions: u64,
    slow: Slow,
    /// Clients that were refused, by reason.
    refusals: Vec<Refused>,
    log: Log,
    /// The disk of durable messages; null without one.
    disk: Option<DiskStats>,
    memory: Memory,
    shards: Vec<ShardStats>,
    limits: Vec<Limit>,
}

/// Connections.
#[derive(Serialize, ToSchema)]
pub struct Connections {
    total: u64,
    by_transport: ByTransport,
}

/// The number of connections by transport. It is up to two seconds old.
#[derive(Serialize, ToSchema)]
pub struct ByTransport {
    http: u64,
    longpoll: u64,
    sse: u64,
    websocket: u64,
    mqtt: u64,
    mqtt_websocket: u64,
    centrifugo: u64,
    http2: u64,
    closing: u64,
}

/// Published messages (`in`) and deliveries to subscribers (`out`).
#[derive(Serialize, ToSchema)]
pub struct Messages {
    in_per_s: f64,
    out_per_s: f64,
    /// Bytes that were read from sockets.
    in_bytes_per_s: f64,
    /// Bytes that were written to sockets.
    out_bytes_per_s: f64,
    in_total: u64,
    out_total: u64,
}

/// The latency of deliveries in the last interval, in microseconds: from the turn of the shard that read a message until the message was written.
#[derive(Serialize, ToSchema)]
pub struct Percentiles {
    /// Number of deliveries.
    count: u64,
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
    p999: Option<u64>,
    max: Option<u64>,
}

/// Connections whose clients read too slowly.
#[derive(Serialize, ToSchema)]
pub struct Slow {
    /// Number of connections with bytes that wait for the socket.
    consumers: u64,
    outbox_bytes: u64,
    /// Subscriptions that were too slow and continue from the log, per second.
    fallbacks_per_s: f64,
    gaps_per_s: f64,
    gaps_total: u64,
}

/// Refusals for one reason.
#[derive(Serialize, ToSchema)]
pub struct Refused {
    /// The reason in a few words.
    reason: &'static str,
    /// Number of refusals since the start of the process.
    total: u64,
    per_s: f64,
}

/// Reads a count of a shard.
type ReadCount = fn(&ShardCounters) -> u64;

/// The refusals that are not rows of [`COUNTERS`]: the description and the count of each.
const REFUSALS: [(&str, ReadCount); 3] = [
    ("no room for the connection", |s| {
        s.stats.turned_away + s.loop_stats.shed
    }),
    ("a limit was reached", |s| {
        s.stats.closed[Closed::Full as usize]
    }),
    ("the protocol was broken", |s| {
        s.stats.closed[Closed::Refused as usize]
    }),
];

/// The kept messages.
#[derive(Serialize, ToSchema)]
pub struct Log {
    messages: u64,
    bytes: u64,
}

/// Memory of the process.
#[derive(Serialize, ToSchema)]
pub struct Memory {
    /// The proportional share of the process (PSS); null if `/proc` cannot be read.
    pss_bytes: Option<u64>,
    per_connection_bytes: Option<u64>,
    tables: Vec<Table>,
}

/// The memory of one kind of row, in all shards.
#[derive(Serialize, ToSchema)]
pub struct Table {
    pub name: &'static str,
    /// The purpose of the memory.
    pub what: &'static str,
    pub bytes: u64,
}

/// One shard.
#[derive(Serialize, ToSchema)]
pub struct ShardStats {
    id: ShardId,
    connections: u64,
    in_per_s: f64,
    out_per_s: f64,
    /// The share of time in which the shard did not wait for events, from 0 to 1.
    load: f64,
    turns_per_s: f64,
    turn_us_mean: f64,
    turn_us_max: u64,
    topics: u64,
    log_bytes: u64,
    outbox_bytes: u64,
    slow_consumers: u64,
}

/// The memory that the tables of all shards occupy, and the freed memory of messages that is kept for new ones.
pub fn tables(shards: &[ShardCounters]) -> Vec<Table> {
    let table = |name, what, bytes: fn(&ShardCounters) -> usize| Table {
        name,
        what,
        bytes: sum(shards, |shard| bytes(shard) as u64),
    };
    let table_of_part = |part: MemoryPart| Table {
        name: part.name(),
        what: purpose(part),
        bytes: sum(shards, |shard| shard.accounts.parts[part as usize] as u64),
    };
    let mut tables = vec![
        table("connections", "connections", |s| s.tables.connections),
        table("mqtt", "MQTT connections", |s| s.tables.mqtt),
        table("sides", "details of some connections", |s| s.tables.sides),
        table("carrier_topics", "subscribed topics", |s| {
            s.tables.carrier_topics
        }),
        table("home_topics", "topics", |s| s.tables.home_topics),
        table("names", "names of topics", |s| s.accounts.name_bytes),
        table("sessions", "MQTT sessions", |s| s.tables.sessions),
        table("log", "room for kept messages", |s| s.tables.log),
        table("tls_keys", "keys of TLS connections", |s| {
            s.tls_usage.key_bytes
        }),
        table("tls_descriptors", "TLS connections", |s| {
            s.tls_usage.descriptor_bytes
        }),
    ];
    tables.extend(MemoryPart::ALL.map(table_of_part));
    tables.push(Table {
        name: "freed_pieces",
        what: "freed room that waits for new messages",
        bytes: memory::kept_bytes() as u64,
    });
    tables
}

/// The purpose of memory that clients make the server hold, in a few words.
fn purpose(part: MemoryPart) -> &'static str {
    match part {
        MemoryPart::Received => "requests and packets that have come in part",
        MemoryPart::Outboxes => "messages that wait for slow clients",
        MemoryPart::KernelBuffers => "the kernel's buffers of clients that read nothing",
        MemoryPart::Messages => "large messages that are still being sent",
        MemoryPart::Turns => "messages between the server's threads",
        MemoryPart::Connections => "unanswered requests, and state of connections",
        MemoryPart::Sessions => "MQTT sessions whose clients are away",
        MemoryPart::Subscriptions => "filters, groups and details of subscriptions",
        MemoryPart::Deltas => "latest messages of topics with delta subscriptions",
        MemoryPart::Presence => "who is present in topics, and who watches that",
        MemoryPart::Answers => "idempotency keys",
        MemoryPart::Credentials => {
            "credentials that wait to be verified, and calls that wait for a backend"
        }
        MemoryPart::ClientLog => "addresses and client ids for the log of clients",
        MemoryPart::Tls => "TLS handshakes and incomplete records",
    }
}

/// Refusals by reason. `rate` computes the growth of a count per second.
fn refusals(
    now: &[ShardCounters],
    rate: impl Fn(&dyn Fn(&ShardCounters) -> u64) -> f64,
) -> Vec<Refused> {
    let refused = |reason, counter: &dyn Fn(&ShardCounters) -> u64| Refused {
        reason,
        total: sum(now, counter),
        per_s: rate(counter),
    };
    let counted = COUNTERS.iter().filter(|it| !it.refusal.is_empty());
    let counted = counted.map(|it| refused(it.refusal, &|s| (it.of)(&s.stats)));
    let others = REFUSALS
        .iter()
        .map(|(reason, counter)| refused(reason, counter));
    others.chain(counted).collect()
}

impl Stats {
    /// The statistics of the interval between the last two samples, and the state at the newer one.
    fn of(state: &AdminState, samples: &LastSamples, pss_bytes: Option<u64>) -> Stats {
        let (before, now) = (&samples.previous.shards, &samples.newest.shards);
        let passed = samples
            .newest
            .taken_at
            .duration_since(samples.previous.taken_at)
            .as_secs_f64();
        let rate = |counter: &dyn Fn(&ShardCounters) -> u64| {
            let growth = sum(now, counter).saturating_sub(sum(before, counter));
            per_s(growth, passed)
        };
        let total = |counter: fn(&ShardCounters) -> u64| sum(now, counter);
        let connections = total(|s| u64::from(s.accounts.connections));
        let pairs = before.iter().zip(now).enumerate();
        Stats {
            time_ms: unix_ms(),
            uptime_s: state.uptime().as_secs(),
            version: env!("CARGO_PKG_VERSION"),
            host: process::host(),
            url: state.data_port.url(),
            cluster: state.lifecycle.cluster(),
            interval_s: round(passed),
            connections: Connections {
                total: connections,
                by_transport: ByTransport::of(now),
            },
            accepts_per_s: rate(&|s| s.stats.accepted),
            closes_per_s: rate(&|s| s.stats.closed.iter().sum()),
            messages: Messages {
                in_per_s: rate(&|s| s.stats.published),
                out_per_s: rate(&|s| s.stats.delivered),
                in_bytes_per_s: rate(&|s| s.loop_stats.received_bytes),
                out_bytes_per_s: rate(&|s| s.loop_stats.sent_bytes),
                in_total: total(|s| s.stats.published),
                out_total: total(|s| s.stats.delivered),
            },
            latency_us: Percentiles::of(&latency(now).since(&latency(before))),
            topics: total(|s| u64::from(s.accounts.home_topics)),
            subscriptions: total(|s| s.stats.attaches.wrapping_sub(s.stats.detaches)),
            filters: total(|s| u64::from(s.accounts.carrier_filters)),
            sessions: total(|s| u64::from(s.accounts.sessions)),
            slow: Slow {
                consumers: total(|s| u64::from(s.accounts.outboxes)),
                outbox_bytes: total(|s| s.accounts.outbox_bytes as u64),
                fallbacks_per_s: rate(&|s| s.stats.fallbacks),
                gaps_per_s: rate(&|s| s.stats.gaps),
                gaps_total: total(|s| s.stats.gaps),
            },
            refusals: refusals(now, rate),
            log: Log {
                messages: total(|s| u64::from(s.accounts.log_messages)),
                bytes: total(|s| s.accounts.log_bytes as u64),
            },
            disk: DiskStats::of(
                &state.lifecycle,
                samples.previous.log,
                samples.newest.log,
                passed,
            ),
            memory: Memory {
                pss_bytes,
                per_connection_bytes: pss_bytes
                    .filter(|_| connections >= PER_CONNECTION_MIN)
                    .map(|bytes| bytes / connections),
                tables: tables(now),
            },
            shards: pairs
                .map(|(id, (before, now))| ShardStats::of(id as ShardId, before, now, passed))
                .collect(),
            limits: limits::all(state, now, pss_bytes),
        }
    }
}

impl ByTransport {
    fn of(shards: &[ShardCounters]) -> ByTransport {
        let connections = |s: &ShardCounters, transport: Transport| {
            u64::from(s.accounts.transports[transport as usize])
        };
        let by = |transport: Transport| sum(shards, |s| connections(s, transport));
        ByTransport {
            http: by(Transport::Http),
            longpoll: by(Transport::LongPoll),
            sse: by(Transport::Sse),
            websocket: by(Transport::WebSocket),
            mqtt: by(Transport::Mqtt),
            mqtt_websocket: by(Transport::MqttWebSocket),
            centrifugo: by(Transport::Centrifugo),
            http2: by(Transport::Http2),
            closing: by(Transport::Closing),
        }
    }
}

impl Percentiles {
    fn of(latency: &LatencyHistogram) -> Percentiles {
        Percentiles {
            count: latency.count(),
            p50: latency.quantile_us(0.5),
            p90: latency.quantile_us(0.9),
            p99: latency.quantile_us(0.99),
            p999: latency.quantile_us(0.999),
            max: latency.quantile_us(1.0),
        }
    }
}

impl ShardStats {
    fn of(id: ShardId, before: &ShardCounters, now: &ShardCounters, passed: f64) -> ShardStats {
        let growth =
            |counter: fn(&ShardCounters) -> u64| counter(now).saturating_sub(counter(before));
        let (turns, busy_ns) = (
            growth(|s| s.loop_stats.turns),
            growth(|s| s.loop_stats.busy_ns),
        );
        let turn_us_mean = round(busy_ns as f64 / 1e3 / turns.max(1) as f64);
        // `longest_ns` covers the last seconds only, and the interval may have begun earlier: so the maximum could be below the mean.
        let longest_us = now.loop_stats.longest_ns.div_ceil(1_000);
        ShardStats {
            id,
            connections: u64::from(now.accounts.connections),
            in_per_s: per_s(growth(|s| s.stats.published), passed),
            out_per_s: per_s(growth(|s| s.stats.delivered), passed),
            load: round(per_s(busy_ns, passed) / 1e9).min(1.0),
            turns_per_s: per_s(turns, passed),
            turn_us_mean,
            turn_us_max: longest_us.max(turn_us_mean.ceil() as u64),
            topics: u64::from(now.accounts.home_topics),
            log_bytes: now.accounts.log_bytes as u64,
            outbox_bytes: now.accounts.outbox_bytes as u64,
            slow_consumers: u64::from(now.accounts.outboxes),
        }
    }
}

/// The state and the rates of the server
///
/// As Server-Sent Events, one object a second, for those who accept `text/event-stream`; else the newest one.
#[utoipa::path(
    get,
    path = "/api/v1/stats",
    tag = "server",
    responses((status = 200, body = Stats, description = "The newest; or one a second, as events"))
)]
pub async fn stats(State(state): State<AdminState>, headers: HeaderMap) -> Response {
    let mut samples = state.samples.clone();
    let fields = headers.get_all(header::ACCEPT).iter();
    if !accept::read(fields.map(|field| field.as_bytes())).events {
        let newest = samples.borrow().clone();
        return axum::Json(Stats::of(&state, &newest, process::pss_bytes())).into_response();
    }
    // So the first event is sent at once.
    samples.mark_changed();
    let events = stream::unfold((state, samples), async |(state, mut samples)| {
        samples.changed().await.ok()?;
        let newest = samples.borrow_and_update().clone();
        let stats = Stats::of(&state, &newest, process::pss_bytes());
        let event = Event::default().json_data(stats).ok()?;
        Some((Ok::<_, Infallible>(event), (state, samples)))
    });
    Sse::new(events).into_response()
}

/// The last quarter of an hour, a sample each second
#[utoipa::path(
    get,
    path = "/api/v1/stats/recent",
    tag = "server",
    responses((status = 200, body = Columns))
)]
pub async fn recent(State(state): State<AdminState>) -> axum::Json<Columns> {
    axum::Json(state.chart_history.columns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_turn_is_at_least_the_mean() {
        let before = ShardCounters::default();
        for (turns, busy_ns, longest_ns) in [
            (1, 80_700, 80_700),
            (3, 300, 120),
            (2, 90_000, 1_000),
            (0, 0, 0),
        ] {
            let mut now = ShardCounters::default();
            now.loop_stats.turns = turns;
            now.loop_stats.busy_ns = busy_ns;
            now.loop_stats.longest_ns = longest_ns;
            let shard = ShardStats::of(0, &before, &now, 1.0);
            assert!(shard.turn_us_mean <= shard.turn_us_max as f64);
            assert!(shard.turn_us_max * 1_000 >= longest_ns);
        }
    }
}
