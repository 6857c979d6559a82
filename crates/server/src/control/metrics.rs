//! `GET /metrics`: the board in the words of Prometheus (OpenMetrics text).
//!
//! Every name, with its labels and its unit, is in docs/OPERATIONS.md; a test compares that page, and the dashboard in
//! examples/grafana, with the answer of this handler. Counters are totals since the process began.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use crore_broker::{Closed, Transport};
use crore_net::stream::Trouble;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::cluster::Cluster;
use super::disk::Disk;
use super::limits::{self, Limit};
use super::plane::Plane;
use super::process;
use super::stats::{self, Table};
use crate::board::{Latency, Snapshot, bucket_end_us};
use crate::life::Reloads;
use crate::log;

/// The content type of OpenMetrics.
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
        disk: Disk::of(plane.life()),
        cluster: Cluster::of(plane.life(), plane.neighbours()).await,
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

/// The values that one scrape shows.
struct Exposed {
    shards: Arc<[Snapshot]>,
    limits: Vec<Limit>,
    tables: Vec<Table>,
    latency: Latency,
    uptime_s: f64,
    reloads: Reloads,
    disk: Disk,
    cluster: Cluster,
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

/// Numbers of a shard: name, unit, help, value.
type Named = [(&'static str, Option<Unit>, &'static str, Of)];

/// A table of them: `name [unit] = value, help;`.
macro_rules! numbers {
    ($s:ident; $($name:ident $([$unit:ident])? = $value:expr, $help:literal;)*) => {
        &[$((stringify!($name), numbers!(@unit $($unit)?), $help, |$s| $value)),*]
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(Unit::$unit) };
}

/// Counters over all shards.
const COUNTERS: &Named = numbers! { s;
    accepted_connections = s.stats.accepted, "Connections that came in";
    turned_away_connections = s.stats.turned_away + s.turns.shed, "Connections for which there was no room, or no descriptor";
    relieved_connections = s.stats.relieved, "Connections that were ended, or lost what they had pipelined, because limits.memory_bytes was passed";
    evicted_sessions = s.stats.sessions_evicted, "MQTT sessions that ended, or were not kept, because limits.memory_bytes was near and their client held much";
    untrusted_connections = s.stats.untrusted, "Connections from peers that may not say who their clients are";
    refused_credentials = s.stats.refused, "Requests and connections whose credentials were worth nothing";
    oversized_credentials = s.stats.oversized, "Those of them that were longer than access.token_bytes";
    denied_requests = s.stats.denied, "Requests, subscriptions and messages without a grant";
    refused_hosts = s.stats.foreign_hosts, "Requests for another Host than the loopback, where only that is answered";
    refused_origins = s.stats.foreign_origins, "Requests of web pages whose Origin is not allowed what they asked for";
    hidden_answers = s.stats.hidden_answers, "Answers that browsers hide from the page that asked, since its Origin is not in http.allowed_origins";
    refused_packets = s.stats.mqtt_refused, "Packets of MQTT clients that were refused, or ended their connection, for another reason than rights";
    lapsed_connections = s.stats.lapsed, "Connections and polls that ended with their token, or since the settings grant less";
    published_messages = s.stats.published, "Messages that were published";
    published [Bytes] = s.stats.published_bytes, "Data of the published messages";
    delivered_messages = s.stats.delivered, "Messages that were given to connections, each as often as it was";
    received [Bytes] = s.turns.received_bytes, "Bytes that came from sockets";
    sent [Bytes] = s.turns.sent_bytes, "Bytes that sockets took";
    resumed_subscriptions = s.stats.resumes, "Subscriptions that began at a position and missed nothing";
    gaps = s.stats.gaps, "Subscriptions that were told that messages are lost";
    short_logs = s.stats.short_logs, "Those of them whose topic's log no longer had the messages, by its rule or by limits.log_bytes";
    refused_keys = s.stats.keys_refused, "Publishes that were refused since publish.idempotency_keys, or their publisher's share of it, was used up";
    fallbacks = s.stats.fallbacks, "Subscriptions that fell behind their socket and went on from the log";
    credit_waits = s.stats.credit_waits, "Publishers that waited for another shard";
    superseded_messages = s.stats.superseded, "Kept messages that a newer one of their key took the place of";
    expired_messages = s.stats.expired, "Kept messages whose time to live passed";
};

/// Gauges over all shards.
const GAUGES: &Named = numbers! { s;
    subscriptions = s.stats.attaches.wrapping_sub(s.stats.detaches), "Subscriptions to topics";
    filters = u64::from(s.accounts.carrier_filters), "Filters that are subscribed to, once for each shard";
    sessions = u64::from(s.accounts.sessions), "MQTT sessions, connected or away";
    retained_messages = u64::from(s.accounts.retained), "Topics with a retained message";
    followers = u64::from(s.accounts.followers), "Followers of interest, once for each home";
    log_messages = u64::from(s.accounts.log_messages), "Messages that are kept";
    tls_connections = u64::from(s.tls_usage.connections), "Connections with TLS whose handshake is over";
    tls_handshakes_under_way = u64::from(s.tls_usage.under_way), "Handshakes that are not over";
    credit [Bytes] = s.accounts.under_way_bytes as u64, "Publishes under way between shards, each with 4 KiB besides its bytes";
};

/// Counters by shard.
const SHARD_COUNTERS: &Named = numbers! { s;
    shard_turns = s.turns.turns, "Turns of the shard's loop";
    shard_published_messages = s.stats.published, "Messages that its connections published";
    shard_delivered_messages = s.stats.delivered, "Messages that its connections were given";
};

/// Gauges by shard.
const SHARD_GAUGES: &Named = numbers! { s;
    shard_connections = u64::from(s.accounts.connections), "Connections";
    shard_connections_room = s.turns.room, "Connections that the shard has room for";
    topics = u64::from(s.accounts.home_topics), "Topics whose home the shard is";
    log [Bytes] = s.accounts.log_bytes as u64, "What the kept messages occupy";
    outbox [Bytes] = s.accounts.outbox_bytes as u64, "What waits for sockets that refused it";
    slow_consumers = u64::from(s.accounts.outboxes), "Connections for which something waits";
    receive_buffer [Bytes] = s.accounts.receive_bytes as u64, "Requests and frames that have arrived in part";
};

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
        for reason in Closed::ALL {
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
        metric.encode_gauge(&self.uptime_s)?;
        let (name, help) = (
            "dropped_log_lines",
            "Log lines that stderr did not take in time",
        );
        let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        number(&mut metric, MetricType::Counter, log::dropped_lines())
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
        self.disk.encode(out)?;
        self.cluster.encode(out)?;
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
