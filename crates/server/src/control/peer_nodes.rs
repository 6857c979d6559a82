//! Messages between the nodes of a cluster. Each node reports its state to the others once a second, and answers their questions about the
//! number of a topic's subscribers.
//!
//! Bounds: the newest report of at most [`NODES_MAX`] nodes is kept, for at most [`REPORT_LIFETIME`]; reports longer than [`REPORT_BYTES_MAX`] are ignored.
//! A node answers one question at a time, each with one order to one shard. A node that asks waits at most [`ANSWER_TIMEOUT`].
//!
//! Reports and counts are information for operators and clients only. They do not influence the delivery of messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crore_broker::orders::{ClusterState, Topic};
use crore_broker::settings::Rule;
use crore_broker::{Control, mail};
use crore_nats::Question;
use crore_net::clock;
use futures_util::{StreamExt as _, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;
use xxhash_rust::xxh3::xxh3_64;

use super::other_nodes::OtherNodes;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::{RemoteCountRequest, Shards};
use crore_shard_loop::counters::Counters;

/// The maximum number of nodes whose reports are kept. A node keeps the heartbeats of equally many nodes.
const NODES_MAX: usize = 256;
/// The maximum size of a report or a question, in bytes. A topic has at most 1,000 bytes, each of which may need six bytes in JSON.
const REPORT_BYTES_MAX: usize = 8 << 10;
/// Time between two reports of a node.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// A report older than this is dropped.
const REPORT_LIFETIME: Duration = Duration::from_secs(60);
/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum number of client requests for which other nodes are asked at the same time. Further requests wait. Each takes at most
/// [`ANSWER_TIMEOUT`].
const CONCURRENT_COUNTS_MAX: usize = 256;
/// Delay before a lost NATS subscription is renewed.
const RESUBSCRIBE_DELAY: Duration = Duration::from_secs(1);
/// The partition with the heartbeats of the nodes. The shard that keeps this partition knows which nodes are alive.
const HEARTBEAT_PARTITION: u16 = 0;

/// The state that a node reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's writer number in the log.
    pub writer: String,
    /// Open connections.
    pub clients: u64,
    /// Subscriptions to topics, and different subscribed filters.
    pub subscriptions: u64,
    pub filters: u64,
    pub topics: u64,
    /// Batches of the log that the node has not read yet.
    pub lag: u64,
    /// Whether the node is ready for clients.
    pub ready: bool,
    /// Seconds by which the node's clock was ahead of the clock of NATS when the node started.
    #[serde(default)]
    pub clock_ahead_s: i32,
    /// A digest of the node's rules. Nodes of the same version with the same rules have the same digest. Empty if the node does not report
    /// one.
    #[serde(default)]
    pub rules: String,
}

/// A question about a topic.
#[derive(Serialize, Deserialize)]
struct CountQuestion {
    topic: String,
}

/// The answer of a node.
#[derive(Serialize, Deserialize)]
struct CountAnswer {
    writer: String,
    subscribers: u64,
}

/// Subscribers of a topic at the other nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RemoteCount {
    /// The subscribers at all nodes that answered.
    pub subscribers: u64,
    /// The names of nodes that did not answer.
    pub unanswered: Vec<String>,
}

/// The last report of a node, and its time of arrival.
pub type ReceivedReport = (NodeReport, Instant);

/// A handle to the reports of the nodes. There are none if the server is not a node of a cluster.
#[derive(Clone)]
pub struct PeerNodes(Arc<Inner>);

struct Inner {
    lifecycle: Lifecycle,
    shards: Shards,
    counters: Arc<Counters>,
    reports: Mutex<BTreeMap<String, ReceivedReport>>,
    other_nodes: OtherNodes,
}

impl PeerNodes {
    /// Spawns the tasks that send reports, receive them, and answer questions, if this is a node of a cluster.
    pub fn begin(
        lifecycle: Lifecycle,
        shards: Shards,
        counters: Arc<Counters>,
        requests: UnboundedReceiver<RemoteCountRequest>,
    ) -> PeerNodes {
        let this = PeerNodes(Arc::new(Inner {
            lifecycle,
            shards,
            counters,
            reports: Mutex::default(),
            other_nodes: OtherNodes::default(),
        }));
        if this.peers().is_some() {
            tokio::spawn(this.clone().send_reports());
            tokio::spawn(this.clone().receive_reports());
            tokio::spawn(this.clone().answer_nodes());
            tokio::spawn(this.clone().answer_shards(requests));
        }
        this
    }

    /// The connection to the other nodes. None if this is not a node of a cluster.
    pub fn peers(&self) -> Option<&crore_nats::Peers> {
        Some(self.0.lifecycle.member()?.cluster.peers())
    }

    /// What this node knows of the subscribers and members at the other nodes.
    pub fn other_nodes(&self) -> &OtherNodes {
        &self.0.other_nodes
    }

    /// The nodes according to the log. None if this is not a node of a cluster, or the shard does not answer.
    pub async fn nodes_in_log(&self) -> Option<Box<ClusterState>> {
        self.peers()?;
        let home = self
            .0
            .lifecycle
            .world()
            .placement()
            .home_of(HEARTBEAT_PARTITION);
        self.0.shards.ask(home, Control::Cluster).await.ok()?
    }

    /// The newest report of each node, this one included, by the node's writer number.
    pub fn reports(&self) -> BTreeMap<String, ReceivedReport> {
        let mut reports = self.0.reports.lock().expect("no holder panics");
        reports.retain(|_, (_, at)| at.elapsed() < REPORT_LIFETIME);
        reports.clone()
    }

    /// Asks all other nodes for their number of subscribers of a topic. None if this is not a node of a cluster.
    pub async fn subscribers(&self, topic: &str) -> Option<RemoteCount> {
        let asked = CountQuestion {
            topic: topic.to_string(),
        };
        let counted = self.ask_others(json(&asked), ANSWER_TIMEOUT, |answer: CountAnswer| {
            (answer.writer, answer.subscribers)
        });
        let (counts, unanswered) = counted.await?;
        let add = |sum: u64, count| sum.saturating_add(count);
        Some(RemoteCount {
            subscribers: counts.into_iter().fold(0, add),
            unanswered,
        })
    }

    /// Asks all other nodes. `parts` divides an answer into the writer number of the node and its content. Returns the contents, and the names of the nodes
    /// that have not answered in time. None if this is not a node of a cluster.
    pub async fn ask_others<A: DeserializeOwned, T>(
        &self,
        question: Vec<u8>,
        within: Duration,
        parts: impl Fn(A) -> (String, T),
    ) -> Option<(Vec<T>, Vec<String>)> {
        let state = self.nodes_in_log().await?;
        let others = state.nodes.iter().filter(|node| !node.is_self);
        let mut missing: BTreeMap<String, String> = others
            .map(|node| {
                (
                    writer_text(node.writer),
                    String::from_utf8_lossy(&node.name).into(),
                )
            })
            .collect();
        let mut found = Vec::new();
        if !missing.is_empty()
            && let Some(answers) = self.peers()?.ask_all(question).await
        {
            let mut answers = std::pin::pin!(answers);
            let collect = async {
                while !missing.is_empty() {
                    let Some(answer) = answers.next().await else {
                        return;
                    };
                    // Answers to other questions arrive here, too: they have another form. This node's own answer also arrives.
                    if let Ok(answer) = serde_json::from_slice::<A>(&answer)
                        && let (writer, rest) = parts(answer)
                        && missing.remove(&writer).is_some()
                    {
                        found.push(rest);
                    }
                }
            };
            // Nodes that do not answer in time are named in the result.
            let _ = tokio::time::timeout(within, collect).await;
        }
        Some((found, missing.into_values().collect()))
    }

    /// Answers requests of the shards for the number of subscribers at other nodes, at most [`CONCURRENT_COUNTS_MAX`] at a time.
    async fn answer_shards(self, requests: UnboundedReceiver<RemoteCountRequest>) {
        let requests = stream::unfold(requests, async |mut requests| {
            let request = requests.recv().await?;
            Some((request, requests))
        });
        let answer = async |request: RemoteCountRequest| {
            let topic = String::from_utf8_lossy(&request.topic);
            let found = self.subscribers(&topic).await.unwrap_or_default();
            let count = mail::RemoteSubscribers {
                subscribers: u32::try_from(found.subscribers).unwrap_or(u32::MAX),
                unanswered: found.unanswered.len() as u32,
            };
            self.0
                .shards
                .send_remote_count(request.shard, request.reply_to, count);
        };
        requests
            .for_each_concurrent(CONCURRENT_COUNTS_MAX, answer)
            .await;
    }

    /// This node's name: its writer number.
    pub async fn own_writer(&self) -> Option<String> {
        let state = self.nodes_in_log().await?;
        let this = state.nodes.iter().find(|node| node.is_self)?;
        Some(writer_text(this.writer))
    }

    /// Sends this node's report to the others once a second. Never returns.
    async fn send_reports(self) {
        let mut every = tokio::time::interval(REPORT_INTERVAL);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut differing = BTreeMap::new();
        loop {
            every.tick().await;
            if let (Some(report), Some(peers)) = (self.own_report().await, self.peers()) {
                differing = self.compare_rules(&report, differing).await;
                peers.broadcast(json(&report)).await;
            }
        }
    }

    /// Logs nodes whose rules differ from this node's rules, unless they are in `before`. Returns all nodes that differ now.
    async fn compare_rules(&self, own: &NodeReport, before: DifferingRules) -> DifferingRules {
        let reports = self.reports().into_values().map(|(report, _)| report);
        let others = reports.filter(|it| rules_differ(&own.rules, &it.rules));
        let others = others.map(|it| (it.writer, (it.rules, own.rules.clone())));
        let now: DifferingRules = others.collect();
        let is_new = |it: &(&String, &(String, String))| before.get(it.0) != Some(it.1);
        let new: Vec<_> = now.iter().filter(is_new).map(|it| it.0).collect();
        if new.is_empty() {
            return now;
        }
        let state = self.nodes_in_log().await.unwrap_or_default();
        let name = |of: &str| {
            let mut all = state.nodes.iter();
            let found = all.find(|it| writer_text(it.writer) == of);
            found.map_or(of.to_string(), |it| {
                String::from_utf8_lossy(&it.name).into()
            })
        };
        for other in new {
            tracing::warn!(
                "cluster: the nodes {} and {} have different rules, so they answer `since` differently and keep different messages: give all nodes the same [[rule]] tables, in the same order",
                name(&own.writer),
                name(other)
            );
        }
        now
    }

    /// This node's report. None before its first heartbeat is in the log.
    async fn own_report(&self) -> Option<NodeReport> {
        let writer = self.own_writer().await?;
        let status = self.0.lifecycle.member()?.cluster.status();
        let shards = self.0.counters.read_all();
        let partitions = status.partitions.iter();
        let mut report = NodeReport {
            writer,
            lag: partitions.map(|it| it.last.saturating_sub(it.read)).sum(),
            ready: !self.0.lifecycle.is_cut_off() && !self.0.lifecycle.is_stopping(),
            clock_ahead_s: clock::wall_offset_s(),
            rules: digest_of_rules(&self.0.lifecycle.effective_settings().file.rules),
            ..NodeReport::default()
        };
        for shard in &shards {
            report.clients += u64::from(shard.accounts.connections);
            report.subscriptions += shard.stats.attaches.wrapping_sub(shard.stats.detaches);
            report.filters += u64::from(shard.accounts.carrier_filters);
            report.topics += u64::from(shard.accounts.home_topics);
        }
        Some(report)
    }

    /// Receives the reports of all nodes. Never returns.
    async fn receive_reports(self) {
        loop {
            if let Some(peers) = self.peers()
                && let Some(broadcasts) = peers.broadcasts().await
            {
                let mut broadcasts = std::pin::pin!(broadcasts);
                while let Some(bytes) = broadcasts.next().await {
                    self.store_report(&bytes);
                }
            }
            tokio::time::sleep(RESUBSCRIBE_DELAY).await;
        }
    }

    /// Stores a received report.
    fn store_report(&self, bytes: &[u8]) {
        if bytes.len() > REPORT_BYTES_MAX {
            return;
        }
        // A node of another version may send more fields. A report that lacks one is ignored.
        let Ok(report) = serde_json::from_slice::<NodeReport>(bytes) else {
            return;
        };
        let mut reports = self.0.reports.lock().expect("no holder panics");
        reports.retain(|_, (_, at)| at.elapsed() < REPORT_LIFETIME);
        if reports.len() < NODES_MAX || reports.contains_key(&report.writer) {
            reports.insert(report.writer.clone(), (report, Instant::now()));
        }
    }

    /// Answers the questions of other nodes, one after the other. Never returns.
    async fn answer_nodes(self) {
        loop {
            if let Some(peers) = self.peers()
                && let Some(questions) = peers.questions().await
            {
                let mut questions = std::pin::pin!(questions);
                while let Some(question) = questions.next().await {
                    self.answer_one(question).await;
                }
            }
            tokio::time::sleep(RESUBSCRIBE_DELAY).await;
        }
    }

    async fn answer_one(&self, question: Question) {
        if question.bytes().len() > REPORT_BYTES_MAX {
            return;
        }
        let Ok(asked) = serde_json::from_slice::<CountQuestion>(question.bytes()) else {
            return;
        };
        let Some(writer) = self.own_writer().await else {
            return;
        };
        let home = self
            .0
            .lifecycle
            .world()
            .placement()
            .home_of_name(asked.topic.as_bytes());
        let name = asked.topic.into_bytes().into_boxed_slice();
        let topic = self
            .0
            .shards
            .ask::<Option<Box<Topic>>>(home, Control::Topic(name));
        let Ok(topic) = topic.await else {
            return;
        };
        let subscribers = topic.map_or(0, |topic| u64::from(topic.info.subscribers));
        let counted = CountAnswer {
            writer,
            subscribers,
        };
        question.answer(json(&counted)).await;
    }
}

/// The nodes whose rules differ from this node's rules. By writer number: the digest of that node's rules, and the digest of this node's rules.
type DifferingRules = BTreeMap<String, (String, String)>;

/// Whether these digests prove that the rules differ. Digests of different versions cannot be compared.
pub fn rules_differ(one: &str, other: &str) -> bool {
    let version = |digest: &str| {
        digest
            .split_once(' ')
            .map(|(version, _)| version.to_string())
    };
    one != other && version(one).is_some() && version(one) == version(other)
}

/// The version of this program, and a digest of `rules`.
fn digest_of_rules(rules: &[Rule]) -> String {
    format!(
        "{} {:016x}",
        env!("CARGO_PKG_VERSION"),
        xxh3_64(&json(&rules))
    )
}

/// A writer number as text, as the API shows it.
pub fn writer_text(number: u64) -> String {
    format!("{number:016x}")
}

/// Encodes a message to other nodes.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("it is text and numbers")
}
