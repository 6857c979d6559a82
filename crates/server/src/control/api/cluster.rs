//! `GET /api/v1/cluster`: the cluster, as this node sees it.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use crore_broker::Control;
use crore_broker::orders::{ClusterState, NodeState};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Answer, ApiError};
use crate::control::peer_nodes::{self, ReceivedReport};
use crate::control::samples::round;
use crate::control::state::AdminState;
use crate::lifecycle::checkpoint::node;
use crate::lifecycle::cluster::CLOCK_AHEAD_S;
use crate::settings::cluster::Cluster as Settings;

/// The state of the cluster, as known to the node that answers.
#[derive(Serialize, ToSchema)]
pub struct ClusterStatus {
    /// The name of the cluster (`cluster.name`).
    name: String,
    /// Whether the node that answers is ready for clients.
    ready: bool,
    /// The epoch of the log. A client with a position of another epoch gets a gap.
    epoch: u32,
    /// Problems of the cluster; empty if there are none.
    problems: Vec<String>,
    /// The sums of the counts of all nodes.
    sum: ClusterTotals,
    nodes: Vec<NodeStatus>,
    partitions: Vec<PartitionStatus>,
    engine: EngineStatus,
}

/// A node whose last heartbeat is this many seconds old, or older, is shown as silent.
const SILENT_S: u32 = 5;

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeLiveness {
    /// Its last heartbeat is less than five seconds old.
    Live,
    /// Its last heartbeat is at least five seconds old.
    Silent,
    /// The other nodes have declared it dead. It is listed for an hour, or until another node takes its name.
    Dead,
}

/// A node, as of its last heartbeat.
#[derive(Serialize, ToSchema)]
pub struct NodeStatus {
    /// The number by which the log identifies the node as a writer.
    pub writer: String,
    /// Its host and port.
    pub name: String,
    /// The address of its admin port; empty if it has none.
    admin: String,
    /// Whether this is the node that answers.
    pub this: bool,
    /// Whether the node is live, silent or dead.
    pub state: NodeLiveness,
    /// Seconds since its last heartbeat.
    pub age_s: u32,
    /// The time of its last heartbeat, in seconds since 1970.
    last_seen_unix_s: u32,
    /// Number of connections.
    pub clients: u64,
    /// The report that the node sends to the others once a second; null if no report has arrived for a minute.
    pub told: Option<NodeDetail>,
    /// Seconds by which its clock is ahead of the clock of NATS; negative if it is behind.
    clock_ahead_s: i64,
}

/// The report of a node about itself.
#[derive(Serialize, ToSchema)]
pub struct NodeDetail {
    /// Age of the report in seconds.
    age_s: f64,
    /// Whether the node is ready for clients.
    pub ready: bool,
    /// Number of batches of the log that the node has not read yet.
    pub lag: u64,
    /// Number of subscriptions to topics.
    pub subscriptions: u64,
    /// Number of different filters with subscribers. A filter counts once for each shard that has subscribers.
    filters: u64,
    /// Number of topics. Each node has all topics of the cluster.
    pub topics: u64,
    /// A hash of its rules. Nodes with the same rules have the same hash.
    rules: String,
}

/// The sums of the counts of all nodes.
#[derive(Default, Serialize, ToSchema)]
pub struct ClusterTotals {
    /// Number of connections.
    clients: u64,
    /// Number of subscriptions to topics.
    subscriptions: u64,
    /// Number of different filters with subscribers. A filter counts once for each shard that has subscribers.
    filters: u64,
    /// The age of the oldest of these counts, in seconds.
    age_s: f64,
    /// The names of nodes from which no report has arrived for a minute. Their subscriptions and filters are not in the sums.
    silent: Vec<String>,
}

/// The subscribers of a topic in the whole cluster. All nodes were asked for this answer.
#[derive(Serialize, ToSchema)]
pub struct Subscribers {
    /// Number of subscribers at this node and at all nodes that answered.
    subscribers: u64,
    /// The names of the nodes that did not answer within half a second.
    unanswered: Vec<String>,
}

impl Subscribers {
    /// Asks the other nodes for their subscribers of the topic. `own` is the count at this node. None if this is not a node of a cluster.
    pub async fn of(state: &AdminState, topic: &str, own: u32) -> Option<Subscribers> {
        let remote = state.peer_nodes.subscribers(topic).await?;
        Some(Subscribers {
            subscribers: u64::from(own) + remote.subscribers,
            unanswered: remote.unanswered,
        })
    }
}

/// A partition of the log.
#[derive(Serialize, ToSchema)]
pub struct PartitionStatus {
    partition: usize,
    /// The NATS server that leads the partition's stream.
    leader: String,
    /// Number of NATS servers that store the stream.
    replicas: usize,
    /// Number of these servers that are up to date.
    replicas_current: usize,
    /// The names of the servers that are not up to date.
    away: Vec<String>,
    /// The sequence number of the last batch that this node has read.
    read: u64,
    /// The sequence number of the last batch of the stream.
    last: u64,
    /// Number of batches that this node has not read yet.
    lag: u64,
    /// The size of the stream in bytes.
    bytes: u64,
    /// The largest size of the stream in bytes; 0 if there is no limit.
    bytes_max: u64,
    /// The sequence number of the last batch that the newest checkpoint contains; null before the first checkpoint.
    checkpoint: Option<u64>,
    /// The age of the newest checkpoint, in seconds; null before the first checkpoint.
    checkpoint_age_s: Option<u64>,
    /// The size of the newest checkpoint in bytes; null before the first checkpoint.
    checkpoint_bytes: Option<u64>,
    /// Bytes of the batches that this node has read and that are newer than the checkpoint.
    behind_bytes: u64,
}

/// The connection of this node to NATS, where the log is.
#[derive(Serialize, ToSchema)]
pub struct EngineStatus {
    /// Whether this node is connected to NATS.
    connected: bool,
    /// Whether NATS has reported the state of each partition within the last five seconds.
    fresh: bool,
    /// Number of batches that this node has sent to NATS.
    appended: u64,
    /// Number of batches that NATS refused or did not acknowledge.
    append_errors: u64,
    /// How often the connection was lost.
    disconnects: u64,
    /// Bytes of the batches that this node has read and not applied yet.
    backlog_bytes: usize,
    /// The last error; null if there was none.
    last_error: Option<String>,
    /// Seconds since the last error; null if there was none.
    last_error_age_s: Option<u64>,
    /// Whether each NATS server of `cluster.monitoring` syncs every batch to its disk; empty without this setting.
    sync: Vec<SyncStatus>,
}

/// Whether a NATS server syncs every batch to its disk.
#[derive(Serialize, ToSchema)]
pub struct SyncStatus {
    /// The URL of the server's monitoring port.
    url: String,
    /// Whether the server has `sync_interval: always`; null if it could not be asked.
    always: Option<bool>,
    /// Why the server could not be asked; null if it answered.
    error: Option<String>,
}

/// State of the cluster
///
/// 404 if the server is not a node of a cluster.
#[utoipa::path(
    get,
    path = "/api/v1/cluster",
    tag = "server",
    responses((status = 200, body = ClusterStatus), (status = 404, description = "The server is not a node of a cluster"))
)]
pub async fn cluster(State(state): State<AdminState>) -> Answer<ClusterStatus> {
    let lifecycle = &state.lifecycle;
    let Some(member) = lifecycle.member() else {
        let reason =
            "this server is no node of a cluster; one is started with --cluster or cluster.urls";
        return Err(ApiError::new(StatusCode::NOT_FOUND, reason));
    };
    let status = member.cluster.status();
    let world = lifecycle.world();
    let mut homes = Vec::new();
    for home in 0..world.homes {
        let state: Option<Box<ClusterState>> = state.shards.ask(home, Control::Cluster).await?;
        homes.extend(state.map(|state| *state));
    }
    let mut reports = state.peer_nodes.reports();
    let living = homes.iter().flat_map(|home| nodes(home, &mut reports));
    let mut nodes: Vec<_> = living.collect();
    let sum = sum(&nodes);
    nodes.extend(homes.iter().flat_map(dead_nodes));
    let sync = status.sync_intervals.iter().map(|sync| SyncStatus {
        url: sync.url.clone(),
        always: sync.is_always.as_ref().ok().copied(),
        error: sync.is_always.as_ref().err().cloned(),
    });
    Ok(Json(ClusterStatus {
        name: lifecycle.effective_settings().file.cluster.name,
        ready: !lifecycle.is_cut_off() && !lifecycle.is_stopping(),
        epoch: world.epoch,
        problems: problems(
            &status,
            &homes,
            &nodes,
            &lifecycle.effective_settings().file.cluster,
        ),
        sum,
        partitions: status
            .partitions
            .iter()
            .enumerate()
            .map(partition)
            .collect(),
        engine: EngineStatus {
            connected: status.is_connected,
            fresh: status.is_fresh,
            appended: status.appended,
            append_errors: status.append_errors,
            disconnects: status.disconnects,
            backlog_bytes: member.backlog.bytes(),
            last_error: status.last_error.as_ref().map(|(reason, _)| reason.clone()),
            last_error_age_s: status.last_error.as_ref().map(|(_, age_s)| *age_s),
            sync: sync.collect(),
        },
        nodes,
    }))
}

/// The nodes that are not dead, each with its last report from `reports`.
pub fn nodes(
    state: &ClusterState,
    reports: &mut BTreeMap<String, ReceivedReport>,
) -> Vec<NodeStatus> {
    let node = |node: &NodeState| {
        let report = reports.remove(&peer_nodes::writer_text(node.writer));
        NodeStatus {
            // The heartbeats in the log also have this count, but arrive later than reports.
            clients: report
                .as_ref()
                .map_or(node.connections, |(report, _)| report.clients),
            // At its start a node sets the clock of its heartbeats by the clock of NATS, so `ahead_s` is only the difference since then.
            // The report has the difference at the start.
            clock_ahead_s: node.ahead_s
                + report
                    .as_ref()
                    .map_or(0, |(report, _)| report.clock_ahead_s.into()),
            told: report.map(|(report, at)| NodeDetail {
                age_s: round(at.elapsed().as_secs_f64()),
                ready: report.ready,
                lag: report.lag,
                subscriptions: report.subscriptions,
                filters: report.filters,
                topics: report.topics,
                rules: report.rules,
            }),
            ..described(state, node)
        }
    };
    state.nodes.iter().map(node).collect()
}

/// The nodes that the log has declared dead.
fn dead_nodes(state: &ClusterState) -> impl Iterator<Item = NodeStatus> {
    state.dead_nodes.iter().map(|node| NodeStatus {
        state: NodeLiveness::Dead,
        clients: 0,
        ..described(state, node)
    })
}

/// A node according to its last heartbeat.
fn described(state: &ClusterState, node: &NodeState) -> NodeStatus {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_string();
    let age_s = state.unix_s.saturating_sub(node.beat_unix_s);
    NodeStatus {
        writer: peer_nodes::writer_text(node.writer),
        name: text(&node.name),
        admin: text(&node.admin_address),
        this: node.is_self,
        state: match age_s < SILENT_S {
            true => NodeLiveness::Live,
            false => NodeLiveness::Silent,
        },
        age_s,
        last_seen_unix_s: node.beat_unix_s,
        clients: node.connections,
        clock_ahead_s: node.ahead_s,
        told: None,
    }
}

fn sum(nodes: &[NodeStatus]) -> ClusterTotals {
    let mut sum = ClusterTotals::default();
    for node in nodes {
        sum.clients = sum.clients.saturating_add(node.clients);
        match &node.told {
            Some(report) => {
                sum.subscriptions = sum.subscriptions.saturating_add(report.subscriptions);
                sum.filters = sum.filters.saturating_add(report.filters);
                sum.age_s = sum.age_s.max(report.age_s);
            }
            None => {
                sum.age_s = sum.age_s.max(node.age_s.into());
                sum.silent.push(node.name.clone());
            }
        }
    }
    sum
}

fn partition((partition, status): (usize, &crore_nats::PartitionStatus)) -> PartitionStatus {
    PartitionStatus {
        partition,
        leader: status.leader.clone(),
        replicas: status.replicas,
        replicas_current: status.replicas_current,
        away: status.outdated_replicas.clone(),
        read: status.read,
        last: status.last,
        lag: status.last.saturating_sub(status.read),
        bytes: status.bytes,
        bytes_max: status.bytes_max,
        checkpoint: status.checkpoint.as_ref().map(|it| it.sequence),
        checkpoint_age_s: node::age_s(status),
        checkpoint_bytes: status.checkpoint.as_ref().map(|it| it.bytes),
        behind_bytes: status.behind_bytes,
    }
}

fn problems(
    status: &crore_nats::Status,
    homes: &[ClusterState],
    nodes: &[NodeStatus],
    settings: &Settings,
) -> Vec<String> {
    /// Seconds: an error that is older does not describe the present state.
    const RECENT_S: u64 = 60;
    let mut found = Vec::new();
    if !status.is_connected {
        found.push("no connection to NATS".to_string());
    }
    if !status.is_fresh {
        found.push("NATS has not answered for each partition within 5 s".to_string());
    }
    let short = |it: &&crore_nats::PartitionStatus| it.replicas_current < it.replicas;
    let short: Vec<_> = status.partitions.iter().filter(short).collect();
    if !short.is_empty() {
        let away: BTreeSet<&str> = short
            .iter()
            .flat_map(|it| it.outdated_replicas.iter().map(String::as_str))
            .collect();
        let names: Vec<&str> = away.into_iter().collect();
        let names = match names.is_empty() {
            true => String::new(),
            false => format!(": {}", names.join(", ")),
        };
        found.push(format!(
            "{} partitions have a server of NATS that is away or behind{names}",
            short.len()
        ));
    }
    let leaderless = short
        .iter()
        .filter(|it| it.replicas_current * 2 <= it.replicas)
        .count();
    if leaderless > 0 {
        found.push(format!(
            "{leaderless} partitions take nothing: more than half of their servers of NATS are away or behind, or do not answer"
        ));
    }
    let late = node::late(settings, &status.partitions);
    if late > 0 {
        found.push(format!(
            "{late} partitions have no checkpoint, or one that is older than it should be; the log of their steward says why"
        ));
    }
    let full = status.partitions.iter().filter(|it| it.is_full).count();
    if full > 0 {
        found.push(format!(
            "the log of {full} partitions is full of batches that no checkpoint contains: publishes are refused until the steward has made one"
        ));
    }
    if homes.iter().any(|home| home.is_cut_off) {
        found.push("no sign of life of this node has come back for 5 s".to_string());
    }
    if !nodes.iter().any(|node| node.this) {
        found.push(
            "this node has not read a sign of its own life yet, so other nodes may be missing here"
                .to_string(),
        );
    }
    let rules_of = |node: &NodeStatus| node.told.as_ref().map(|it| it.rules.clone());
    if let Some(this) = nodes.iter().find(|it| it.this) {
        let own = rules_of(this).unwrap_or_default();
        let has_others = |it: &&NodeStatus| {
            let rules = rules_of(it).unwrap_or_default();
            peer_nodes::rules_differ(&own, &rules)
        };
        let others = nodes.iter().filter(has_others);
        found.extend(others.map(|other| {
            format!(
                "the nodes {} and {} have different rules; give all nodes the same [[rule]] tables, in the same order",
                this.name, other.name
            )
        }));
    }
    for node in nodes {
        let age_s = node.age_s;
        match node.state {
            NodeLiveness::Live => {}
            NodeLiveness::Silent => found.push(format!(
                "node {} has given no sign of life for {age_s} s",
                node.name
            )),
            NodeLiveness::Dead => found.push(format!(
                "node {} is dead: it was seen {age_s} s ago, and no other has its name since",
                node.name
            )),
        }
        if node.told.as_ref().is_some_and(|report| !report.ready) {
            found.push(format!("node {} is not ready for clients", node.name));
        }
        let ahead_s = node.clock_ahead_s;
        if ahead_s.unsigned_abs() > CLOCK_AHEAD_S.into() {
            found.push(format!(
                "the clock of node {} is {ahead_s} s ahead of that of NATS; set it right, with NTP",
                node.name
            ));
        }
    }
    if let Some((reason, age_s)) = status
        .last_error
        .as_ref()
        .filter(|(_, age_s)| *age_s < RECENT_S)
    {
        found.push(format!("{age_s} s ago: {reason}"));
    }
    for sync in &status.sync_intervals {
        match &sync.is_always {
            Ok(true) => {}
            Ok(false) => found.push(format!(
                "NATS at {} does not have `sync_interval: always`",
                sync.url
            )),
            Err(reason) => found.push(format!(
                "sync_interval of {} was not checked: {reason}",
                sync.url
            )),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_nodes_are_named_as_in_the_page_about_clusters() {
        let states = [NodeLiveness::Live, NodeLiveness::Silent, NodeLiveness::Dead];
        let words = serde_json::to_value(states).expect("JSON");
        assert_eq!(words, serde_json::json!(["live", "silent", "dead"]));
    }
}
