//! One row for each metric: its name, kind, labels, source and help. `/metrics` and the table of `docs/OPERATIONS.md` are generated from these rows
//! and from those of the broker's counters and gauges (`budget/stats.rs`).

use std::sync::atomic::Ordering::Relaxed;

use crore_broker::{COUNTERS, GAUGES, LABELLED_COUNTERS, Transport};
use crore_net::stream::TlsFailure;

use super::MetricSource::{self, Each, Histogram, One, Shard, Sum};
use super::text::Kind::{self, Counter, Gauge, Info};
use super::{Metric, bool_value, by_result, delivery_histogram, row};
use crate::control::disk::sync_histogram;
use crate::control::process;
use crate::log;

/// All metrics.
pub fn all() -> impl Iterator<Item = Metric> {
    let counters = COUNTERS.iter().filter(|it| !it.metric.is_empty());
    let counters = counters.map(|it| {
        row(
            Counter,
            it.metric,
            "",
            MetricSource::Counter(it.of),
            it.help,
        )
    });
    let gauges = GAUGES.iter().map(|it| match it.by_shard {
        true => row(
            Gauge,
            it.metric,
            "shard",
            MetricSource::ShardGauge(it.of),
            it.help,
        ),
        false => row(Gauge, it.metric, "", MetricSource::Gauge(it.of), it.help),
    });
    let labelled = LABELLED_COUNTERS.iter().map(|it| {
        row(
            Counter,
            it.metric,
            it.label,
            MetricSource::LabelledCounter(it.of),
            it.help,
        )
        .with_values(it.label_values)
    });
    let counters = counters.chain(labelled);
    METRICS.iter().copied().chain(counters).chain(gauges)
}

/// The metrics that are not a single counter or gauge of the broker. `help` is Markdown for `docs/OPERATIONS.md`.
#[rustfmt::skip]
const METRICS: &[Metric] = &[
    row(Info, "crore_build_info", "version", Each(|_| vec![(vec![env!("CARGO_PKG_VERSION").into()], 1.0)]),
        "The server's version"),
    row(Gauge, "crore_uptime_seconds", "", One(|s| s.state.uptime().as_secs_f64()),
        "Time since the process began"),
    row(Counter, "crore_dropped_log_lines_total", "", One(|_| log::dropped_lines() as f64),
        "Log lines that were dropped because stderr did not take them and 4,096 lines were waiting"),
    row(Counter, "crore_reloads_total", "result", Each(|s| { let it = s.state.lifecycle.reloads(); by_result([("applied", it.applied), ("refused", it.refused)]) }),
        "Reloads of the settings: `applied`, or `refused` without a change"),
    row(Gauge, "crore_reload_success_timestamp_seconds", "", One(|s| s.state.lifecycle.reloads().applied_unix_s as f64),
        "When the present settings were read, in Unix time: at the start, or by the last reload that was applied"),
    row(Gauge, "crore_disk_log_bytes", "", One(|s| s.log.usage.bytes as f64),
        "Bytes of the log of [durable messages](DURABILITY.md), spare segments included. Without a log this and the following metrics are 0"),
    row(Gauge, "crore_disk_base_bytes", "", One(|s| s.checkpoints().base_bytes.load(Relaxed) as f64),
        "Bytes of the base, the files from which the log continues"),
    row(Gauge, "crore_disk_full", "", One(|s| bool_value(s.log.is_full)),
        "1 while publishes are refused because the disk has [no room](DURABILITY.md#a-full-disk)"),
    row(Gauge, "crore_disk_damaged", "", One(|s| bool_value(s.checkpoints().damaged.load(Relaxed))),
        "1 while files that a checkpoint must read are [damaged](DURABILITY.md#checkpoints): the log only grows until the server restarts"),
    row(Counter, "crore_disk_batches_total", "", One(|s| s.log.batches as f64),
        "Synced batches of messages. Divided by the number of syncs: batches in one sync"),
    row(Kind::Histogram, "crore_disk_sync_seconds", "", Histogram(|s| sync_histogram(&s.log)),
        "Time from the write of a group of batches to the end of its sync"),
    row(Counter, "crore_checkpoints_total", "result", Each(|s| by_result([("made", s.checkpoints().made.load(Relaxed)), ("failed", s.checkpoints().failed.load(Relaxed))])),
        "Checkpoints, [on disk](DURABILITY.md#checkpoints) or [of a cluster](CLUSTER.md#checkpoints) by this node: `made`, or `failed` without a change"),
    row(Gauge, "crore_checkpoint_timestamp_seconds", "", One(|s| s.checkpoints().made_unix_s.load(Relaxed) as f64),
        "When the last checkpoint was made, in Unix time; 0: none yet"),
    row(Gauge, "crore_checkpoint_seconds", "", One(|s| s.checkpoints().took_ms.load(Relaxed) as f64 / 1e3),
        "How long the last checkpoint took"),
    row(Gauge, "crore_recovery_seconds", "", One(|s| s.state.lifecycle.recovery().as_secs_f64()),
        "Time that the start took to read the state on disk"),
    row(Gauge, "crore_cluster_hears", "", One(|s| bool_value(s.cluster.reads_log)),
        "1 while this node of [a cluster](CLUSTER.md) is connected to the log in NATS, as `/readyz` says. Without a cluster this and the following metrics are 0"),
    row(Gauge, "crore_cluster_lag", "", One(|s| s.cluster.lag as f64),
        "Batches of the cluster's log that this node has not read yet"),
    row(Gauge, "crore_cluster_backlog_bytes", "", One(|s| s.cluster.backlog_bytes as f64),
        "Bytes of batches of the cluster's log that this node has read and not applied yet"),
    row(Gauge, "crore_cluster_short_partitions", "", One(|s| s.cluster.degraded_partitions as f64),
        "Partitions with a NATS server that is down or behind"),
    row(Gauge, "crore_cluster_nodes", "", One(|s| s.cluster.nodes.len() as f64),
        "Live nodes of the cluster, by the last signs of life in its log"),
    row(Gauge, "crore_cluster_checkpoints_bytes", "", One(|s| s.cluster.checkpoint_bytes as f64),
        "Bytes of the newest [checkpoints](CLUSTER.md#checkpoints) of all partitions"),
    row(Gauge, "crore_cluster_late_checkpoints", "", One(|s| s.cluster.overdue_checkpoints as f64),
        "Partitions with a newest checkpoint that is too old; the log of the steward has the reason"),
    row(Gauge, "crore_cluster_full_partitions", "", One(|s| s.cluster.full_partitions as f64),
        "Partitions whose log is full: publishes wait, and are refused, until [a checkpoint](CLUSTER.md#checkpoints) makes room"),
    row(Counter, "crore_cluster_batches_total", "", One(|s| s.cluster.published_batches as f64),
        "Batches that this node has published to the log"),
    row(Counter, "crore_cluster_refused_batches_total", "", One(|s| s.cluster.refused_batches as f64),
        "Batches that NATS refused or did not answer; they are published again"),
    row(Counter, "crore_cluster_void_messages_total", "", One(|s| s.cluster.void_messages as f64),
        "Messages in the log that are no valid batches and therefore void, as this node has read it: somebody else writes there"),
    row(Counter, "crore_cluster_disconnects_total", "", One(|s| s.cluster.disconnects as f64),
        "Lost connections to NATS"),
    row(Gauge, "crore_cluster_node_age_seconds", "node", Each(|s| s.cluster.by_node(|node| Some(node.age_s.into()))),
        "Seconds since the last sign of life of a node in the log. This metric and the next three exist for each node of [the cluster](CLUSTER.md#looking-at-it)"),
    row(Gauge, "crore_cluster_node_clients", "node", Each(|s| s.cluster.by_node(|node| Some(node.clients as f64))),
        "Its connections"),
    row(Gauge, "crore_cluster_node_lag", "node", Each(|s| s.cluster.by_node(|node| Some(node.told.as_ref()?.lag as f64))),
        "Batches of the log that it has not read yet, as it reports"),
    row(Gauge, "crore_cluster_node_ready", "node", Each(|s| s.cluster.by_node(|node| Some(bool_value(node.told.as_ref()?.ready)))),
        "1 while it is ready for clients, as it reports"),
    row(Gauge, "crore_connections", "transport", Each(|s| s.by_kind(Transport::ALL.map(|it| (it.name(), it as usize)), |shard, n| shard.accounts.transports[n].into())),
        "Connections, as of a second or two ago").with_values(Transport::LABELS),
    row(Counter, "crore_refusals_total", "reason, transport", Each(|s| s.refusals()),
        "Requests, messages and packets that were refused, and connections that the server ended, by [reason](REASONS.md) and transport (those of `crore_connections`). A pair that was never counted is left out"),
    row(Counter, "crore_turned_away_connections_total", "", Sum(|s| s.stats.turned_away + s.loop_stats.shed),
        "Connections that were refused for lack of room or descriptors"),
    row(Counter, "crore_received_bytes_total", "", Sum(|s| s.loop_stats.received_bytes),
        "Bytes received from sockets"),
    row(Counter, "crore_sent_bytes_total", "", Sum(|s| s.loop_stats.sent_bytes),
        "Bytes sent to sockets"),
    row(Gauge, "crore_subscriptions", "", Sum(|s| s.stats.attaches.wrapping_sub(s.stats.detaches)),
        "Subscriptions to topics"),
    row(Gauge, "crore_tls_connections", "", Sum(|s| u64::from(s.tls_usage.connections)),
        "TLS connections after their handshake"),
    row(Gauge, "crore_tls_handshakes_under_way", "", Sum(|s| u64::from(s.tls_usage.unfinished_handshakes)),
        "TLS handshakes in progress"),
    row(Counter, "crore_tls_handshakes_total", "kind", Each(|s| s.by_kind([("full", 0), ("resumed", 1)], |shard, n| [shard.tls.handshakes, shard.tls.resumed][n])),
        "Successful TLS handshakes: `full`, or `resumed` by a ticket"),
    row(Counter, "crore_tls_ended_connections_total", "reason", Each(|s| s.by_kind(TlsFailure::ALL.iter().map(|it| (it.name(), *it as usize)), |shard, n| shard.tls.count_of(TlsFailure::ALL[n]))),
        "Connections that ended by a fault of TLS, [by reason](TLS.md#refusals)"),
    row(Gauge, "crore_xdp_connections", "", Sum(|s| s.own_tcp.connections),
        "Connections over [AF_XDP](XDP.md)"),
    row(Gauge, "crore_xdp_busy_connections", "", Sum(|s| s.own_tcp.busy),
        "Those of them with bytes or acknowledgements on their way"),
    row(Gauge, "crore_xdp_buffered_bytes", "", Sum(|s| s.own_tcp.buffered_bytes),
        "Their bytes that are sent and not acknowledged, or received and not read (`xdp.buffer_bytes`)"),
    row(Counter, "crore_xdp_packets_total", "direction", Each(|s| s.by_kind([("received", 0), ("sent", 1)], |shard, n| shard.own_tcp.packets[n])),
        "Packets of TCP over AF_XDP"),
    row(Counter, "crore_xdp_refused_packets_total", "reason", Each(|s| s.by_kind([("checksum", 0), ("malformed", 1), ("fragment", 2)], |shard, n| shard.own_tcp.refused[n])),
        "Packets that were dropped"),
    row(Counter, "crore_xdp_retransmitted_segments_total", "", Sum(|s| s.own_tcp.retransmitted),
        "Segments that were sent again"),
    row(Counter, "crore_xdp_retransmission_timeouts_total", "", Sum(|s| s.own_tcp.timeouts),
        "Times that nothing was acknowledged within the retransmission timeout"),
    row(Counter, "crore_xdp_cookies_total", "kind", Each(|s| s.by_kind([("sent", 0), ("refused", 1)], |shard, n| shard.own_tcp.cookies[n])),
        "SYN cookies: `sent` in answer to a handshake, or `refused` because they were wrong or too old"),
    row(Counter, "crore_xdp_overflows_total", "", Sum(|s| s.own_tcp.overflows),
        "Connections that were dropped at the third packet of their handshake, since there was no room"),
    row(Counter, "crore_xdp_resets_total", "direction", Each(|s| s.by_kind([("received", 0), ("sent", 1)], |shard, n| shard.own_tcp.resets[n])),
        "Resets: `received` ones that ended a connection, or `sent`"),
    row(Counter, "crore_xdp_dropped_frames_total", "reason", Each(|s| s.by_kind([("too_large", 0), ("ring_full", 1), ("no_frame", 2)], |shard, n| shard.own_tcp.dropped_frames[n])),
        "Frames that the kernel has dropped: too large, or more than `xdp.frames` were waiting"),
    row(Kind::Histogram, "crore_delivery_seconds", "", Histogram(|s| delivery_histogram(&s.latency)),
        "From the turn that read a message to its write"),
    row(Counter, "crore_shard_turns_total", "shard", Shard(|s| s.loop_stats.turns as f64),
        "Turns of the shard's loop"),
    row(Counter, "crore_shard_published_messages_total", "shard", Shard(|s| s.stats.published as f64),
        "Messages published by its connections"),
    row(Counter, "crore_shard_delivered_messages_total", "shard", Shard(|s| s.stats.delivered as f64),
        "Messages delivered to its connections"),
    row(Gauge, "crore_shard_connections_room", "shard", Shard(|s| s.loop_stats.connections_max as f64),
        "Connections that the shard has room for"),
    row(Counter, "crore_shard_busy_seconds_total", "shard", Shard(|s| s.loop_stats.busy_ns as f64 / 1e9),
        "Time in which the shard's loop did not wait"),
    row(Gauge, "crore_shard_longest_turn_seconds", "shard", Shard(|s| s.loop_stats.longest_ns as f64 / 1e9),
        "The longest turn of the last one to two seconds"),
    row(Gauge, "crore_table_memory_bytes", "table", Each(|s| s.tables.iter().map(|it| (vec![it.name.into()], it.bytes as f64)).collect()),
        "Bytes of the tables of all shards, and of the buffers and states of clients ([parts](SETTINGS.md#what-clients-make-the-server-hold))"),
    row(Gauge, "crore_resident_memory_bytes", "", Each(|_| process::resident_bytes().map(|it| (vec![], it as f64)).into_iter().collect()),
        "Resident memory of the process"),
    row(Counter, "crore_admin_refused_connections_total", "", One(|s| s.state.port_counters.refused() as f64),
        "Connections to the admin port past `admin.connections_max`, and those without a right to ask that ended for another"),
    row(Counter, "crore_admin_slow_connections_total", "", One(|s| s.state.port_counters.slow() as f64),
        "Connections to the admin port without a request within `admin.head_s`, or with a body that took longer than `admin.body_s`"),
    row(Counter, "crore_admin_refused_requests_total", "", One(|s| s.state.request_guard.refused() as f64),
        "Requests to the admin port with a wrong Host or Origin, or without its token"),
    row(Gauge, "crore_limit", "name, unit", Each(|s| s.by_limit(|it| it.limit)),
        "The limit; if each shard has one, that of the fullest shard"),
    row(Gauge, "crore_limit_used", "name, unit", Each(|s| s.by_limit(|it| it.used)),
        "The used part of the limit"),
];
