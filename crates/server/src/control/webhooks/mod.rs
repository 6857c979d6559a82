//! Webhooks: tell endpoints of the operator which topics have subscribers, who is present, and which clients connect.
//!
//! A webhook has a lane for the events of topics, and one for those of clients, or several of each that take the shards in turn (`concurrency`). In a
//! cluster it has a lane of topics for each partition, see below. A lane requests the events of its shards by orders ([`Hooks`]), and sends them in requests
//! of bounded size. It asks the shards for more only after the endpoint has answered. So a slow endpoint delays nobody else: meanwhile its events wait at
//! the shards, which keep a bounded number.
//!
//! If a shard has dropped events, or a request had no good answer for `retry_s`, the lane begins new streams. It sends the event `resync`, then an event
//! for each topic that has subscribers and for each member, and then `resync_end`. It does the same after each start of the server. The lanes of topics
//! begin new streams independently of those of clients: any client can connect so often that events of clients are dropped.
//!
//! In a cluster, each node tells of its own clients. For the topics of a partition, the steward tells of the subscribers and members at all nodes. After
//! each change of the steward, the new one begins new streams. `resync_end` waits until it knows the subscribers and members at all other nodes
//! (`other_nodes.rs`). A node that is cut off from the log may not be the steward any more, so it sends nothing. A request that such a node has sent just
//! before can arrive after those of the new steward, so each request has a *term*: a number that is greater for each further steward of the partition.
//!
//! Invariants: the events of a topic and a kind are sent in their order, since a topic has one shard. A request is repeated with the same id, events and
//! body until it gets a good answer, so each event arrives at least once, or is followed by a `resync`.

mod body;
mod endpoint;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crore_broker::mail::hooks::{HookKinds, HookNews, Hooks, SelectedTopics};
use crore_broker::orders::ClusterState;
use crore_broker::{Control, PartitionId, Placement, ShardId};
use crore_net::memory::random_u64;
use tokio::sync::Semaphore;

use self::body::{Event, EventIds, Part, Request, Subject};
use self::endpoint::WebhookEndpoint;
use super::other_nodes::OtherNodes;
use crate::http_client::http::Connection;
use crate::lifecycle::shards::Shards;
use crate::settings::webhook::{Webhook, WebhookEvent};

/// A lane that has this many events sends them before it asks another shard for more.
const EVENTS_HELD: usize = 1_000;
/// The number of pages of events that a lane requests from one shard before it asks the next one.
const PAGES_PER_SHARD: usize = 16;
/// The first and the longest time before a request is repeated.
const REPEAT_AFTER: Duration = Duration::from_millis(500);
const REPEAT_AFTER_MAX: Duration = Duration::from_secs(30);
/// The first and the longest time before new streams begin. A snapshot of many topics is much work. If the changes come faster than the endpoint takes
/// them, the snapshot does not end, and the time doubles.
const RESYNC_AFTER: Duration = Duration::from_secs(1);
const RESYNC_AFTER_MAX: Duration = Duration::from_secs(60);
/// The time between two checks whether this node has become the steward of a partition, or is connected to the log again.
const STEWARD_CHECK: Duration = Duration::from_secs(1);

/// Checks the settings of webhooks, and reads the files that they name.
///
/// # Errors
/// All faults, each with the path of the settings key and the remedy.
pub fn check(webhooks: &[Webhook]) -> Result<(), Vec<(String, String)>> {
    let numbered = webhooks.iter().enumerate();
    let faults: Vec<_> = numbered
        .filter_map(|(index, entry)| WebhookEndpoint::new(index + 1, entry).err())
        .collect();
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults),
    }
}

/// What a webhook has done, for the operator.
#[derive(Clone, Default)]
pub struct WebhookCounts {
    /// Events that wait for an answer.
    pub waiting: u64,
    /// When the first of the waiting events was requested from a shard.
    pub waiting_since: Option<Instant>,
    /// Events that the endpoint has taken.
    pub delivered: u64,
    /// Requests without a good answer.
    pub failed: u64,
    /// How often a `resync` was sent.
    pub resyncs: u64,
    /// The last answer, or why there was none.
    pub last_answer: Option<(String, Instant)>,
}

/// A webhook that runs.
pub struct RunningWebhook {
    pub entry: Webhook,
    lanes: Vec<Arc<Mutex<WebhookCounts>>>,
}

impl RunningWebhook {
    /// The sum over all lanes, with the newest answer and the oldest event.
    pub fn counts(&self) -> WebhookCounts {
        let lanes = self.lanes.iter().map(|lane| locked(lane).clone());
        lanes.fold(WebhookCounts::default(), |all, one| WebhookCounts {
            waiting: all.waiting + one.waiting,
            waiting_since: (all.waiting_since.into_iter())
                .chain(one.waiting_since)
                .min(),
            delivered: all.delivered + one.delivered,
            failed: all.failed + one.failed,
            resyncs: all.resyncs + one.resyncs,
            last_answer: (all.last_answer.into_iter())
                .chain(one.last_answer)
                .max_by_key(|(_, at)| *at),
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This node of a cluster.
pub struct ThisNode {
    pub name: Arc<str>,
    pub placement: Placement,
    pub other_nodes: OtherNodes,
}

/// Starts all webhooks. `node` is this node of a cluster, if it is one.
///
/// # Errors
/// As [`check`].
pub fn start(
    webhooks: &[Webhook],
    shards: &Shards,
    node: Option<&ThisNode>,
) -> anyhow::Result<Arc<[RunningWebhook]>> {
    // This number is another one after each start, so that no two events have the same id.
    let run = random_u64() as u32;
    let streams = Arc::new(AtomicU64::new(0));
    let mut running = Vec::new();
    for (index, entry) in webhooks.iter().enumerate() {
        let number = index + 1;
        let endpoint = WebhookEndpoint::new(number, entry)
            .map_err(|(key, message)| anyhow::anyhow!("{key}: {message}"))?;
        let endpoint = Arc::new(endpoint);
        let mut lanes = Vec::new();
        let subjects = [Subject::Topics, Subject::Clients];
        for subject in subjects.into_iter().filter(|it| it.is_wanted(entry)) {
            let requests = Arc::new(Requests {
                permits: Semaphore::new(entry.concurrency),
                idle: Mutex::default(),
            });
            // The node whose partitions are the parts.
            let cluster = node.filter(|_| subject == Subject::Topics);
            let parts = match cluster {
                Some(node) => node.placement.partitions().into(),
                None => entry.concurrency.min(shards.count().into()),
            };
            for part in 0..parts {
                let counts = Arc::<Mutex<WebhookCounts>>::default();
                lanes.push(counts.clone());
                let partition = cluster.map(|node| PartitionLane {
                    placement: node.placement,
                    partition: part as PartitionId,
                    other_nodes: node.other_nodes.clone(),
                    steward: None,
                });
                let sources = match &partition {
                    Some(it) => [it.home()].into(),
                    None => (part as ShardId..shards.count()).step_by(parts).collect(),
                };
                let lane = Lane {
                    number,
                    entry: entry.clone(),
                    endpoint: endpoint.clone(),
                    shards: shards.clone(),
                    sources,
                    partition,
                    part: Part {
                        node: node.map(|it| it.name.clone()),
                        term: None,
                        subject,
                        part,
                        parts,
                    },
                    ids: EventIds::new(format!("{run:08x}-{number}-{}{part}", subject.letter())),
                    streams_at: BTreeMap::new(),
                    streams: streams.clone(),
                    requests: requests.clone(),
                    counts,
                };
                tokio::spawn(lane.run());
            }
        }
        running.push(RunningWebhook {
            entry: entry.clone(),
            lanes,
        });
    }
    Ok(running.into())
}

/// The requests of a webhook about one subject at the same time.
struct Requests {
    permits: Semaphore,
    /// The connections of earlier requests that are still open.
    idle: Mutex<Vec<Connection>>,
}

/// What a lane has besides if it sends the events of a partition of a cluster.
struct PartitionLane {
    placement: Placement,
    partition: PartitionId,
    other_nodes: OtherNodes,
    /// This node as the steward; `None` until it has become one.
    steward: Option<Steward>,
}

/// This node as the steward of a partition.
#[derive(Clone, Copy)]
struct Steward {
    /// The node's number as a writer of the partition. A node that was declared dead meanwhile has another one.
    writer: u64,
    /// The offset of the last record of the partition that the node had applied when it became the steward. The record by which a node becomes the steward
    /// comes after all records that any earlier steward had applied as such, so this number orders the stewards.
    term: u64,
}

impl PartitionLane {
    fn home(&self) -> ShardId {
        self.placement.home_of(self.partition)
    }
}

/// Whether this node may send the events of a lane.
enum Stewardship {
    /// The lane's events are always this node's.
    NotNeeded,
    /// The node is the steward.
    Here(Steward),
    /// The node is cut off from the log, or its shard does not answer.
    Unknown,
    /// Another node is the steward, or none.
    Elsewhere,
}

/// Why a stream has ended.
enum StreamEnd {
    /// Events are lost before the snapshot was complete.
    LostInSnapshot,
    /// Events are lost after that.
    Lost,
    /// This node is not the steward any more.
    Elsewhere,
}

/// Sends the events of some shards, or of a partition of a cluster.
struct Lane {
    /// The number of the webhook.
    number: usize,
    entry: Webhook,
    endpoint: Arc<WebhookEndpoint>,
    shards: Shards,
    /// The shards whose events it sends.
    sources: Vec<ShardId>,
    partition: Option<PartitionLane>,
    part: Part,
    ids: EventIds,
    /// The stream that has begun at each shard, and has not been ended.
    streams_at: BTreeMap<ShardId, u64>,
    /// The number of the next stream of all lanes.
    streams: Arc<AtomicU64>,
    requests: Arc<Requests>,
    counts: Arc<Mutex<WebhookCounts>>,
}

impl Lane {
    /// Never returns.
    async fn run(mut self) {
        let mut resync_after = RESYNC_AFTER;
        loop {
            self.await_stewardship().await;
            let number = self.streams.fetch_add(1, Relaxed);
            if let Some(it) = self.partition.as_ref().filter(|_| self.kinds().subscribers) {
                it.other_nodes.begin_stream(number, &self.entry.filters);
            }
            resync_after = match self.send_stream(number).await {
                StreamEnd::LostInSnapshot => (resync_after * 2).min(RESYNC_AFTER_MAX),
                StreamEnd::Lost | StreamEnd::Elsewhere => RESYNC_AFTER,
            };
            if let Some(it) = &self.partition {
                it.other_nodes.end_stream(number);
                self.end_streams().await;
            }
            tokio::time::sleep(resync_after).await;
        }
    }

    /// Whether this node may send now.
    async fn stewardship(&self) -> Stewardship {
        let Some(lane) = &self.partition else {
            return Stewardship::NotNeeded;
        };
        let state: Result<Option<Box<ClusterState>>, _> =
            self.shards.ask(lane.home(), Control::Cluster).await;
        let Some(state) = state.ok().flatten().filter(|state| !state.is_cut_off) else {
            return Stewardship::Unknown;
        };
        let mut partitions = state.partitions.iter();
        let found =
            partitions.find(|it| it.partition == lane.partition && it.steward == Some(it.writer));
        found.map_or(Stewardship::Elsewhere, |it| {
            Stewardship::Here(Steward {
                writer: it.writer,
                term: it.offset,
            })
        })
    }

    /// Waits until this node may send, and lets the ids of events begin with the term.
    async fn await_stewardship(&mut self) {
        let steward = loop {
            match self.stewardship().await {
                Stewardship::NotNeeded => return,
                Stewardship::Here(steward) => break steward,
                Stewardship::Unknown | Stewardship::Elsewhere => {
                    tokio::time::sleep(STEWARD_CHECK).await;
                }
            }
        };
        let Some(lane) = &mut self.partition else {
            return;
        };
        let former = lane.steward.filter(|it| it.writer == steward.writer);
        let steward = former.unwrap_or(steward);
        lane.steward = Some(steward);
        self.part.term = Some(steward.term);
        let (number, part) = (self.number, self.part.part);
        self.ids
            .set_prefix(format!("{:x}-{number}-{part}", steward.term));
    }

    /// Waits while it is not known whether this node may still send. Breaks if it may not.
    async fn check_stewardship(&self) -> ControlFlow<StreamEnd> {
        let writer = self.partition.as_ref().and_then(|it| it.steward);
        let writer = writer.map(|it| it.writer);
        loop {
            match self.stewardship().await {
                Stewardship::NotNeeded => return ControlFlow::Continue(()),
                Stewardship::Here(now) if Some(now.writer) == writer => {
                    return ControlFlow::Continue(());
                }
                Stewardship::Unknown => tokio::time::sleep(STEWARD_CHECK).await,
                Stewardship::Here(_) | Stewardship::Elsewhere => {
                    return ControlFlow::Break(StreamEnd::Elsewhere);
                }
            }
        }
    }

    /// Whether the shards know all that other nodes have to tell of this stream.
    fn knows_other_nodes(&self, number: u64) -> bool {
        let lane = self.partition.as_ref();
        lane.is_none_or(|it| it.other_nodes.are_known(number, self.kinds()))
    }

    /// Ends the streams at all shards.
    async fn end_streams(&mut self) {
        for (shard, number) in std::mem::take(&mut self.streams_at) {
            let _ = self.ask(shard, Hooks::End(number)).await;
        }
    }

    fn batch_time(&self) -> Duration {
        Duration::from_millis(self.entry.batch_ms.into())
    }

    async fn ask(&self, shard: ShardId, order: Hooks) -> Option<Box<HookNews>> {
        self.shards.ask(shard, Control::Hooks(order)).await.ok()?
    }

    /// The next events of this stream at a shard. Begins the stream if it has not begun at this shard. `None` if events were dropped.
    async fn next_events(&mut self, shard: ShardId, number: u64) -> Option<Box<HookNews>> {
        let before = self.streams_at.insert(shard, number);
        let begins = (before != Some(number)).then(|| self.topics());
        let is_new = begins.is_some();
        let order = Hooks::Next {
            number,
            kinds: self.kinds(),
            begins,
        };
        let news = self.ask(shard, order).await;
        if let Some(before) = before.filter(|_| is_new) {
            // The former stream ends only now, so that the shard always has a stream of the webhook: a shard without one forgets the client ids of its
            // connections.
            let _ = self.ask(shard, Hooks::End(before)).await;
        }
        news
    }

    /// Sends the events of new streams, until a shard has dropped events, a request is given up, or this node is not the steward any more.
    async fn send_stream(&mut self, number: u64) -> StreamEnd {
        let mut events = vec![Event::Resync(self.part.subject)];
        locked(&self.counts).resyncs += 1;
        let mut is_snapshot = true;
        let lost = |is_snapshot: bool| match is_snapshot {
            true => StreamEnd::LostInSnapshot,
            false => StreamEnd::Lost,
        };
        loop {
            if let ControlFlow::Break(end) = self.check_stewardship().await {
                return end;
            }
            // What is known now is part of the next events.
            let knows_all = self.knows_other_nodes(number);
            let mut more = false;
            for (index, shard) in self.sources.clone().into_iter().enumerate() {
                for _ in 0..PAGES_PER_SHARD {
                    let Some(news) = self.next_events(shard, number).await else {
                        return lost(is_snapshot);
                    };
                    more = news.more;
                    events.extend(Event::all(*news));
                    if !more || events.len() >= EVENTS_HELD {
                        break;
                    }
                }
                if more || events.len() >= EVENTS_HELD {
                    more = true;
                    // The next round begins at the next shard, so that a busy shard does not starve the others.
                    self.sources.rotate_left(index + 1);
                    break;
                }
            }
            let completes_snapshot = is_snapshot && !more && knows_all;
            if completes_snapshot {
                events.push(Event::ResyncEnd(self.part.subject));
            }
            // A shard that is too busy for the next page of a snapshot sends no event, and says that there are more.
            let waits = !more || events.is_empty();
            let wanted = std::mem::take(&mut events);
            match self.deliver(wanted).await {
                ControlFlow::Continue(true) => {}
                ControlFlow::Continue(false) => return lost(is_snapshot),
                ControlFlow::Break(end) => return end,
            }
            is_snapshot &= !completes_snapshot;
            if waits {
                tokio::time::sleep(self.batch_time()).await;
            }
        }
    }

    fn topics(&self) -> SelectedTopics {
        let filters = self.entry.filters.iter();
        let partition = self.partition.as_ref();
        SelectedTopics {
            filters: filters.map(|filter| filter.as_bytes().into()).collect(),
            partition: partition.map(|it| (it.placement, it.partition)),
        }
    }

    fn kinds(&self) -> HookKinds {
        use WebhookEvent::{
            ChannelOccupied, ChannelVacated, ClientConnected, ClientDisconnected, MemberAdded,
            MemberRemoved,
        };
        let wants = |subject: Subject, any: [WebhookEvent; 2]| {
            self.part.subject == subject && any.iter().any(|it| self.entry.events.contains(it))
        };
        HookKinds {
            subscribers: wants(Subject::Topics, [ChannelOccupied, ChannelVacated]),
            members: wants(Subject::Topics, [MemberAdded, MemberRemoved]),
            clients: wants(Subject::Clients, [ClientConnected, ClientDisconnected]),
        }
    }

    /// Sends events until the endpoint has taken them. Returns false if they are given up, and breaks if this node may not send them any more.
    async fn deliver(&mut self, mut events: Vec<Event>) -> ControlFlow<StreamEnd, bool> {
        events.retain(|event| event.is_wanted(&self.entry));
        let requests = body::requests(self.entry.format, &self.part, &events, &mut self.ids);
        drop(events);
        let mut waiting: u64 = requests.iter().map(|request| request.events).sum();
        let requested_at = Instant::now();
        let mut taken = ControlFlow::Continue(true);
        for request in requests {
            {
                let mut counts = locked(&self.counts);
                (counts.waiting, counts.waiting_since) = (waiting, Some(requested_at));
            }
            let count = request.events;
            taken = self.send_until_taken(Arc::new(request)).await;
            if !matches!(taken, ControlFlow::Continue(true)) {
                break;
            }
            waiting -= count;
            locked(&self.counts).delivered += count;
        }
        let mut counts = locked(&self.counts);
        (counts.waiting, counts.waiting_since) = (0, None);
        taken
    }

    /// Sends a request until the endpoint has taken it. Returns false if it is given up, and breaks if this node may not send it any more.
    async fn send_until_taken(&self, request: Arc<Request>) -> ControlFlow<StreamEnd, bool> {
        let began = Instant::now();
        let mut repeat_after = REPEAT_AFTER;
        loop {
            self.check_stewardship().await?;
            if self.send(&request).await {
                return ControlFlow::Continue(true);
            }
            if began.elapsed() + repeat_after >= Duration::from_secs(self.entry.retry_s.into()) {
                self.endpoint.log_given_up(request.events);
                return ControlFlow::Continue(false);
            }
            tokio::time::sleep(repeat_after).await;
            repeat_after = (repeat_after * 2).min(REPEAT_AFTER_MAX);
        }
    }

    /// Sends a request once. Returns whether the endpoint has taken it.
    async fn send(&self, request: &Arc<Request>) -> bool {
        let _permit = self.requests.permits.acquire().await;
        let (endpoint, request) = (self.endpoint.clone(), request.clone());
        let mut connection = locked(&self.requests.idle).pop();
        let sent = tokio::task::spawn_blocking(move || {
            let answer = endpoint.send(&request.id, request.body.as_bytes(), &mut connection);
            (answer, connection)
        });
        let Ok((answer, connection)) = sent.await else {
            return false;
        };
        locked(&self.requests.idle).extend(connection);
        let mut counts = locked(&self.counts);
        let is_taken = answer.is_ok();
        counts.failed += u64::from(!is_taken);
        let (Ok(text) | Err(text)) = answer;
        counts.last_answer = Some((text, Instant::now()));
        is_taken
    }
}
