//! `GET /metrics`: the board in the words of Prometheus (OpenMetrics text).
//!
//! Every name, with its labels and its unit, is in docs/OPERATIONS.md; a test holds that page, and the dashboard in
//! examples/grafana, against what is answered here. Counters are totals since the process began.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use crore_broker::{Reason, Transport};
use crore_net::stream::Trouble;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::limits::{self, Limit};
use super::stats::{self, Table};
use super::{Plane, process};
use crate::board::{Latency, Snapshot, bucket_end_us};
use crate::life::Reloads;

/// What OpenMetrics calls itself.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The histogram's buckets end at powers of two of a microsecond: from 16 us to 16 s.
const LATENCY_BITS: std::ops::RangeInclusive<u32> = 4..=24;

/// Metrics
///
/// Prometheus' text format; not part of the API's version.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses((status = 200, content_type = "application/openmetrics-text", body = String))
)]
pub async fn metrics(State(plane): State<Plane>) -> Response {
    let shards = plane.board().read_all();
    let mut registry = Registry::with_prefix("crore");
    registry.register_collector(Box::new(Exposed {
        limits: limits::all(&plane, &shards, None),
        tables: stats::tables(&shards),
        latency: stats::latency(&shards),
        uptime_s: plane.uptime().as_secs_f64(),
        reloads: plane.life().reloads(),
        admin: [
            plane.port().refused(),
            plane.port().slow(),
            plane.gate().refused(),
        ],
        shards: shards.into(),
    }));
    let mut text = String::new();
    match text::encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// What one scrape shows.
struct Exposed {
    shards: Arc<[Snapshot]>,
    limits: Vec<Limit>,
    tables: Vec<Table>,
    latency: Latency,
    uptime_s: f64,
    reloads: Reloads,
    /// Connections of the admin port that were refused, and that were slow.
    admin: [u64; 3],
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shards", self.shards.len())
    }
}

/// A number of one shard.
type Of = fn(&Snapshot) -> u64;

/// Counters over all shards: name, unit, help.
const COUNTERS: &[(&str, Option<Unit>, &str, Of)] = &[
    (
        "accepted_connections",
        None,
        "Connections that came in",
        |s| s.stats.accepted,
    ),
    (
        "turned_away_connections",
        None,
        "Connections for which there was no room, or no descriptor",
        |s| s.stats.turned_away + s.turns.shed,
    ),
    (
        "untrusted_connections",
        None,
        "Connections from peers that may not say who their clients are",
        |s| s.stats.untrusted,
    ),
    (
        "refused_credentials",
        None,
        "Requests and connections whose credentials were worth nothing",
        |s| s.stats.refused,
    ),
    (
        "oversized_credentials",
        None,
        "Those of them that were longer than access.token_bytes",
        |s| s.stats.oversized,
    ),
    (
        "denied_requests",
        None,
        "Requests, subscriptions and messages without a grant",
        |s| s.stats.denied,
    ),
    (
        "lapsed_connections",
        None,
        "Connections and polls that ended with their token, or since the settings grant less",
        |s| s.stats.lapsed,
    ),
    (
        "published_messages",
        None,
        "Messages that were published",
        |s| s.stats.published,
    ),
    (
        "published",
        Some(Unit::Bytes),
        "Data of the published messages",
        |s| s.stats.published_bytes,
    ),
    (
        "delivered_messages",
        None,
        "Messages that were given to connections, each as often as it was",
        |s| s.stats.delivered,
    ),
    (
        "received",
        Some(Unit::Bytes),
        "Bytes that came from sockets",
        |s| s.turns.received_bytes,
    ),
    ("sent", Some(Unit::Bytes), "Bytes that sockets took", |s| {
        s.turns.sent_bytes
    }),
    (
        "resumed_subscriptions",
        None,
        "Subscriptions that began at a position and missed nothing",
        |s| s.stats.resumes,
    ),
    (
        "gaps",
        None,
        "Subscriptions that were told that messages are lost",
        |s| s.stats.gaps,
    ),
    (
        "fallbacks",
        None,
        "Subscriptions that fell behind their socket and went on from the log",
        |s| s.stats.fallbacks,
    ),
    (
        "credit_waits",
        None,
        "Publishers that waited for another shard",
        |s| s.stats.credit_waits,
    ),
    (
        "superseded_messages",
        None,
        "Kept messages that a newer one of their key took the place of",
        |s| s.stats.superseded,
    ),
    (
        "expired_messages",
        None,
        "Kept messages whose time to live passed",
        |s| s.stats.expired,
    ),
];

/// Gauges over all shards.
const GAUGES: &[(&str, Option<Unit>, &str, Of)] = &[
    ("subscriptions", None, "Subscriptions to topics", |s| {
        s.stats.attaches.wrapping_sub(s.stats.detaches)
    }),
    (
        "filters",
        None,
        "Filters that are subscribed to, once for each shard",
        |s| u64::from(s.accounts.carrier_filters),
    ),
    ("sessions", None, "MQTT sessions, connected or away", |s| {
        u64::from(s.accounts.sessions)
    }),
    (
        "retained_messages",
        None,
        "Topics with a retained message",
        |s| u64::from(s.accounts.retained),
    ),
    (
        "followers",
        None,
        "Followers of interest, once for each home",
        |s| u64::from(s.accounts.followers),
    ),
    ("log_messages", None, "Messages that are kept", |s| {
        u64::from(s.accounts.log_messages)
    }),
    (
        "tls_connections",
        None,
        "Connections with TLS whose handshake is over",
        |s| u64::from(s.tls_usage.connections),
    ),
    (
        "tls_handshakes_under_way",
        None,
        "Handshakes that are not over",
        |s| u64::from(s.tls_usage.under_way),
    ),
    (
        "credit",
        Some(Unit::Bytes),
        "Publishes under way between shards",
        |s| s.accounts.under_way_bytes as u64,
    ),
];

/// Counters by shard.
const SHARD_COUNTERS: &[(&str, Option<Unit>, &str, Of)] = &[
    ("shard_turns", None, "Turns of the shard's loop", |s| {
        s.turns.turns
    }),
    (
        "shard_published_messages",
        None,
        "Messages that its connections published",
        |s| s.stats.published,
    ),
    (
        "shard_delivered_messages",
        None,
        "Messages that its connections were given",
        |s| s.stats.delivered,
    ),
];

/// Gauges by shard.
const SHARD_GAUGES: &[(&str, Option<Unit>, &str, Of)] = &[
    ("shard_connections", None, "Connections", |s| {
        u64::from(s.accounts.connections)
    }),
    (
        "shard_connections_room",
        None,
        "Connections that the shard has room for",
        |s| s.turns.room,
    ),
    ("topics", None, "Topics whose home the shard is", |s| {
        u64::from(s.accounts.home_topics)
    }),
    (
        "log",
        Some(Unit::Bytes),
        "What the kept messages occupy",
        |s| s.accounts.log_bytes as u64,
    ),
    (
        "outbox",
        Some(Unit::Bytes),
        "What waits for sockets that refused it",
        |s| s.accounts.outbox_bytes as u64,
    ),
    (
        "slow_consumers",
        None,
        "Connections for which something waits",
        |s| u64::from(s.accounts.outboxes),
    ),
    (
        "receive_buffer",
        Some(Unit::Bytes),
        "Requests and frames that have arrived in part",
        |s| s.accounts.receive_bytes as u64,
    ),
];

type Named = [(&'static str, Option<Unit>, &'static str, Of)];

impl Exposed {
    /// The sum of each.
    fn sums(&self, out: &mut DescriptorEncoder<'_>, of: &Named, kind: MetricType) -> fmt::Result {
        for (name, unit, help, value) in of {
            let mut metric = out.encode_descriptor(name, help, unit.as_ref(), kind)?;
            number(&mut metric, kind, self.shards.iter().map(value).sum())?;
        }
        Ok(())
    }

    /// Each of each shard.
    fn by_shard(
        &self,
        out: &mut DescriptorEncoder<'_>,
        of: &Named,
        kind: MetricType,
    ) -> fmt::Result {
        for (name, unit, help, value) in of {
            let mut metric = out.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (id, shard) in self.shards.iter().enumerate() {
                let labels = [("shard", id.to_string())];
                number(&mut metric.encode_family(&labels)?, kind, value(shard))?;
            }
        }
        Ok(())
    }

    fn connections(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Connections, a second or two ago";
        let mut metric = out.encode_descriptor("connections", help, None, MetricType::Gauge)?;
        for transport in Transport::ALL {
            let labels = [("transport", transport.name())];
            let of = |s: &Snapshot| u64::from(s.accounts.transports[transport as usize]);
            let count = self.shards.iter().map(of).sum();
            number(
                &mut metric.encode_family(&labels)?,
                MetricType::Gauge,
                count,
            )?;
        }
        let (name, help) = ("closed_connections", "Connections that ended, by why");
        let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        for reason in Reason::ALL {
            let labels = [("reason", reason.name())];
            let of = |s: &Snapshot| s.stats.closed[reason as usize];
            let count = self.shards.iter().map(of).sum();
            number(
                &mut metric.encode_family(&labels)?,
                MetricType::Counter,
                count,
            )?;
        }
        Ok(())
    }

    fn tls(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counter = MetricType::Counter;
        let help = "Handshakes that succeeded";
        let mut metric = out.encode_descriptor("tls_handshakes", help, None, counter)?;
        let kinds: [(&str, Of); 2] = [
            ("full", |s| s.tls.handshakes),
            ("resumed", |s| s.tls.resumed),
        ];
        for (kind, of) in kinds {
            let (labels, count) = ([("kind", kind)], self.shards.iter().map(of).sum());
            number(&mut metric.encode_family(&labels)?, counter, count)?;
        }
        let help = "Connections that TLS ended, by why";
        let mut metric = out.encode_descriptor("tls_ended_connections", help, None, counter)?;
        for trouble in Trouble::ALL {
            let labels = [("reason", trouble.name())];
            let count = self.shards.iter().map(|s| s.tls.of(trouble)).sum();
            number(&mut metric.encode_family(&labels)?, counter, count)?;
        }
        Ok(())
    }

    fn latency(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("delivery", "From the turn that read a message to its write");
        let kind = MetricType::Histogram;
        let mut metric = out.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        let (mut buckets, mut from) = (Vec::new(), 0);
        for bits in LATENCY_BITS {
            let to = self.latency.counts[from..]
                .iter()
                .enumerate()
                .take_while(|(n, _)| bucket_end_us(from + n) <= 1 << bits)
                .count()
                + from;
            let count = self.latency.counts[from..to].iter().sum();
            buckets.push((f64::from(1 << bits) / 1e6, count));
            from = to;
        }
        buckets.push((f64::INFINITY, self.latency.counts[from..].iter().sum()));
        let sum = self.latency.sum_us as f64 / 1e6;
        metric.encode_histogram::<NoLabelSet>(sum, self.latency.count(), &buckets, None)
    }

    fn loops(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let seconds = Some(&Unit::Seconds);
        let help = "Time in which the shard's loop did not wait";
        let mut metric = out.encode_descriptor("shard_busy", help, seconds, MetricType::Counter)?;
        for (id, shard) in self.shards.iter().enumerate() {
            let busy_s = shard.turns.busy_ns as f64 / 1e9;
            metric
                .encode_family(&[("shard", id.to_string())])?
                .encode_counter::<NoLabelSet, _, f64>(&busy_s, None)?;
        }
        let help = "The longest turn of the last one to two seconds";
        let mut metric =
            out.encode_descriptor("shard_longest_turn", help, seconds, MetricType::Gauge)?;
        for (id, shard) in self.shards.iter().enumerate() {
            let longest_s = shard.turns.longest_ns as f64 / 1e9;
            metric
                .encode_family(&[("shard", id.to_string())])?
                .encode_gauge(&longest_s)?;
        }
        Ok(())
    }

    fn memory(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (bytes, gauge) = (Some(&Unit::Bytes), MetricType::Gauge);
        let help = "What the tables of all shards occupy";
        let mut metric = out.encode_descriptor("table_memory", help, bytes, gauge)?;
        for table in &self.tables {
            let labels = [("table", table.name)];
            number(&mut metric.encode_family(&labels)?, gauge, table.bytes)?;
        }
        if let Some(resident) = process::resident_bytes() {
            let help = "Resident memory of the process";
            let mut metric = out.encode_descriptor("resident_memory", help, bytes, gauge)?;
            number(&mut metric, gauge, resident)?;
        }
        Ok(())
    }

    fn admin(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counter = MetricType::Counter;
        let [refused, slow, denied] = self.admin;
        for (name, help, count) in [
            (
                "admin_refused_connections",
                "Connections to the admin port past its limit",
                refused,
            ),
            (
                "admin_slow_connections",
                "Connections to the admin port that did not ask, or send a body, in time",
                slow,
            ),
            (
                "admin_refused_requests",
                "Requests to the admin port by another Host or Origin, or without its token",
                denied,
            ),
        ] {
            let mut metric = out.encode_descriptor(name, help, None, counter)?;
            number(&mut metric, counter, count)?;
        }
        Ok(())
    }

    fn limits(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = MetricType::Gauge;
        for (name, help, of) in [
            (
                "limit",
                "What the limit is; of the fullest shard where each has one",
                (|limit| limit.limit) as fn(&Limit) -> u64,
            ),
            ("limit_used", "What of it is used", |limit| limit.used),
        ] {
            let mut metric = out.encode_descriptor(name, help, None, gauge)?;
            for limit in &self.limits {
                let labels = [("name", limit.name), ("unit", limit.unit)];
                number(&mut metric.encode_family(&labels)?, gauge, of(limit))?;
            }
        }
        Ok(())
    }

    fn process(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "The server's version";
        let mut metric = out.encode_descriptor("build", help, None, MetricType::Info)?;
        metric.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let help = "Time since the process began";
        let mut metric =
            out.encode_descriptor("uptime", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        metric.encode_gauge(&self.uptime_s)
    }

    fn reloads(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
        let help = "Readings of the settings while the server runs, by what came of them";
        let mut metric = out.encode_descriptor("reloads", help, None, counter)?;
        let Reloads {
            applied, refused, ..
        } = self.reloads;
        for (result, count) in [("applied", applied), ("refused", refused)] {
            let labels = [("result", result)];
            number(&mut metric.encode_family(&labels)?, counter, count)?;
        }
        let (name, help) = (
            "reload_success_timestamp",
            "When the settings that hold were read, in Unix time",
        );
        let mut metric = out.encode_descriptor(name, help, Some(&Unit::Seconds), gauge)?;
        number(&mut metric, gauge, self.reloads.applied_unix_s)
    }
}

fn number(metric: &mut MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        // A gauge is a floating-point number in the format anyway.
        _ => metric.encode_gauge(&(value as f64)),
    }
}

impl Collector for Exposed {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut out;
        self.process(out)?;
        self.reloads(out)?;
        self.connections(out)?;
        self.sums(out, COUNTERS, MetricType::Counter)?;
        self.sums(out, GAUGES, MetricType::Gauge)?;
        self.tls(out)?;
        self.latency(out)?;
        self.by_shard(out, SHARD_COUNTERS, MetricType::Counter)?;
        self.by_shard(out, SHARD_GAUGES, MetricType::Gauge)?;
        self.loops(out)?;
        self.memory(out)?;
        self.admin(out)?;
        self.limits(out)
    }
}
