//! Webhooks: tell endpoints of the operator which topics have subscribers, who is present, and which clients connect.
//!
//! A webhook has a lane for the events of topics, and one for those of clients, or several of each that take the shards in turn (`concurrency`). A lane
//! requests the events of its shards by orders ([`Hooks`]), and sends them in requests of bounded size. It asks the shards for more only after the
//! endpoint has answered. So a slow endpoint delays nobody else: meanwhile its events wait at the shards, which keep a bounded number.
//!
//! If a shard has dropped events, or a request had no good answer for `retry_s`, the lane begins new streams. It sends the event `resync`, then an event
//! for each topic that has subscribers and for each member, and then `resync_end`. It does the same after each start of the server. The lanes of topics
//! begin new streams independently of those of clients: any client can connect so often that events of clients are dropped.
//!
//! Invariants: the events of a topic and a kind are sent in their order, since a topic has one shard. A request is repeated with the same id, events and
//! body until it gets a good answer, so each event arrives at least once, or is followed by a `resync`.

mod body;
mod endpoint;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crore_broker::mail::hooks::{HookKinds, HookNews, Hooks};
use crore_broker::{Control, ShardId};
use crore_net::memory::random_u64;

use self::body::{Event, EventIds, Part, Request, Subject};
use self::endpoint::WebhookEndpoint;
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
/// The first number of a webhook's stream. Streams for other nodes of a cluster have smaller numbers.
const FIRST_STREAM: u64 = 1 << 63;

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

fn locked(counts: &Mutex<WebhookCounts>) -> MutexGuard<'_, WebhookCounts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts all webhooks. In a cluster, `node` is the name of this node.
///
/// # Errors
/// As [`check`].
pub fn start(
    webhooks: &[Webhook],
    shards: &Shards,
    node: Option<&Arc<str>>,
) -> anyhow::Result<Arc<[RunningWebhook]>> {
    // This number is another one after each start, so that no two events have the same id.
    let run = random_u64() as u32;
    let streams = Arc::new(AtomicU64::new(FIRST_STREAM));
    let mut running = Vec::new();
    for (index, entry) in webhooks.iter().enumerate() {
        let number = index + 1;
        let endpoint = WebhookEndpoint::new(number, entry)
            .map_err(|(key, what)| anyhow::anyhow!("{key}: {what}"))?;
        let endpoint = Arc::new(endpoint);
        let parts = entry.concurrency.min(shards.count().into());
        let mut lanes = Vec::new();
        let subjects = [Subject::Topics, Subject::Clients];
        let subjects = subjects.into_iter().filter(|it| it.is_wanted(entry));
        for (subject, part) in subjects.flat_map(|it| (0..parts).map(move |part| (it, part))) {
            let counts = Arc::<Mutex<WebhookCounts>>::default();
            lanes.push(counts.clone());
            let lane = Lane {
                entry: entry.clone(),
                endpoint: endpoint.clone(),
                shards: shards.clone(),
                sources: (part as ShardId..shards.count()).step_by(parts).collect(),
                part: Part {
                    node: node.cloned(),
                    subject,
                    part,
                    parts,
                },
                ids: EventIds::new(format!("{run:08x}-{number}-{}{part}", subject.letter())),
                streams_at: BTreeMap::new(),
                streams: streams.clone(),
                connection: None,
                counts,
            };
            tokio::spawn(lane.run());
        }
        running.push(RunningWebhook {
            entry: entry.clone(),
            lanes,
        });
    }
    Ok(running.into())
}

/// Sends the events of some shards.
struct Lane {
    entry: Webhook,
    endpoint: Arc<WebhookEndpoint>,
    shards: Shards,
    /// The shards whose events it sends.
    sources: Vec<ShardId>,
    part: Part,
    ids: EventIds,
    /// The stream that has begun at each shard, and has not been ended.
    streams_at: BTreeMap<ShardId, u64>,
    /// The number of the next stream of all lanes.
    streams: Arc<AtomicU64>,
    /// The connection of the last request, if it is still open.
    connection: Option<Connection>,
    counts: Arc<Mutex<WebhookCounts>>,
}

impl Lane {
    /// Never returns.
    async fn run(mut self) {
        let mut resync_after = RESYNC_AFTER;
        loop {
            let number = self.streams.fetch_add(1, Relaxed);
            resync_after = match self.send_stream(number).await {
                true => RESYNC_AFTER,
                false => (resync_after * 2).min(RESYNC_AFTER_MAX),
            };
            tokio::time::sleep(resync_after).await;
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
        let begins = (before != Some(number)).then(|| self.filters());
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

    /// Sends the events of new streams, until a shard has dropped events or a request is given up. Returns whether the snapshot was sent to its end.
    async fn send_stream(&mut self, number: u64) -> bool {
        let mut events = vec![Event::Resync(self.part.subject)];
        locked(&self.counts).resyncs += 1;
        let mut is_snapshot = true;
        loop {
            let mut more = false;
            for (index, shard) in self.sources.clone().into_iter().enumerate() {
                for _ in 0..PAGES_PER_SHARD {
                    let Some(news) = self.next_events(shard, number).await else {
                        return !is_snapshot;
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
            let completes_snapshot = is_snapshot && !more;
            if completes_snapshot {
                events.push(Event::ResyncEnd(self.part.subject));
            }
            // A shard that is too busy for the next page of a snapshot sends no event, and says that there are more.
            let waits = !more || events.is_empty();
            let wanted = std::mem::take(&mut events);
            if !self.deliver(wanted).await {
                return !is_snapshot;
            }
            is_snapshot &= !completes_snapshot;
            if waits {
                tokio::time::sleep(self.batch_time()).await;
            }
        }
    }

    fn filters(&self) -> Vec<Box<[u8]>> {
        let filters = self.entry.filters.iter();
        filters.map(|filter| filter.as_bytes().into()).collect()
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

    /// Sends events until the endpoint has taken them. Returns false if they are given up.
    async fn deliver(&mut self, mut events: Vec<Event>) -> bool {
        events.retain(|event| event.is_wanted(&self.entry));
        let requests = body::requests(self.entry.format, &self.part, &events, &mut self.ids);
        drop(events);
        let mut waiting: u64 = requests.iter().map(|request| request.events).sum();
        let requested_at = Instant::now();
        let mut are_taken = true;
        for request in requests {
            {
                let mut counts = locked(&self.counts);
                (counts.waiting, counts.waiting_since) = (waiting, Some(requested_at));
            }
            let count = request.events;
            are_taken = self.send_until_taken(Arc::new(request)).await;
            if !are_taken {
                break;
            }
            waiting -= count;
            locked(&self.counts).delivered += count;
        }
        let mut counts = locked(&self.counts);
        (counts.waiting, counts.waiting_since) = (0, None);
        are_taken
    }

    /// Sends a request until the endpoint has taken it. Returns false if it is given up.
    async fn send_until_taken(&mut self, request: Arc<Request>) -> bool {
        let began = Instant::now();
        let mut repeat_after = REPEAT_AFTER;
        loop {
            if self.send(&request).await {
                return true;
            }
            if began.elapsed() + repeat_after >= Duration::from_secs(self.entry.retry_s.into()) {
                self.endpoint.log_given_up(request.events);
                return false;
            }
            tokio::time::sleep(repeat_after).await;
            repeat_after = (repeat_after * 2).min(REPEAT_AFTER_MAX);
        }
    }

    /// Sends a request once. Returns whether the endpoint has taken it.
    async fn send(&mut self, request: &Arc<Request>) -> bool {
        let (endpoint, request) = (self.endpoint.clone(), request.clone());
        let mut connection = self.connection.take();
        let sent = tokio::task::spawn_blocking(move || {
            let answer = endpoint.send(&request.id, request.body.as_bytes(), &mut connection);
            (answer, connection)
        });
        let Ok((answer, connection)) = sent.await else {
            return false;
        };
        self.connection = connection;
        let mut counts = locked(&self.counts);
        let is_taken = answer.is_ok();
        counts.failed += u64::from(!is_taken);
        let (Ok(text) | Err(text)) = answer;
        counts.last_answer = Some((text, Instant::now()));
        is_taken
    }
}
