//! Collects the *interest* of all nodes of a cluster: which topics have subscribers. A *follower* is told when a topic gets its first subscriber or loses
//! its last one. It is a client, or a webhook in a partition whose steward is this node. A node with followers polls every other node twice a second for
//! changes of interest there, and passes the changes to its own homes, the parts of its shards that keep topics.
//!
//! The polled node answers with a *stream* of numbered answers: first all topics with subscribers, then changes. If an answer is missing,
//! or the polled node has lost changes, a new stream begins. If the old stream had listed all topics, its topics stay valid until the new stream has
//! listed all topics; otherwise they are dropped at once. A node without followers does not poll, and other nodes keep no state for it.
//!
//! Bounds: an answer has at most [`CHANGES_BYTES_MAX`] bytes of names, plus one page. A node sends answers only on request, so the polling
//! node sets the pace. If the followers of a node have more than [`FILTERS_MAX`] different filters, the node asks for all topics. The limit
//! on the number of a home's own topics is also its limit on the number of topics of other nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crore_broker::mail::InterestChanges;
use crore_broker::mail::fields::check_stored_name;
use crore_broker::orders::{Interest as Order, InterestReply};
use crore_broker::{Control, STREAMS, ShardId};
use crore_nats::Question;
use crore_settings::MAX_TOPIC_BYTES;
use crore_wire::topic::check_filter;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::peer_nodes::{PeerNodes, json, writer_text};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// Time between two polls of another node.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// If a node has not polled for this time, its stream ends.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// If followers add filters that a stream does not cover, a new stream begins. The old stream must be complete and at least this old: otherwise each
/// follower that comes and goes would cause another list of all topics.
const STREAM_AGE_MIN: Duration = Duration::from_secs(5);
/// The maximum number of different filters in a question.
const FILTERS_MAX: usize = 64;
/// The maximum number of nodes that poll this one. It is also the maximum number of nodes whose heartbeats a node remembers.
const NODES_MAX: usize = 256;
/// Approximate limit of the names in an answer, in bytes. JSON may double their size. A NATS message has room for at least eight times as
/// much.
const CHANGES_BYTES_MAX: usize = 256 << 10;
/// The maximum number of pages from a home for one answer. A page may be empty, since it also covers topics without interest.
const PAGES_MAX: usize = 64;
/// The maximum number of answers from one node in one poll. The next poll reads the list of nodes and the filters again.
const ANSWERS_PER_POLL_MAX: usize = 64;
/// The maximum number of changes in one order to a home. They take some hundred microseconds of its time.
const CHANGES_PER_ORDER_MAX: usize = 512;
/// Delay before a lost NATS subscription is renewed, and time between two checks whether this node has a new name.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A poll: a node with followers (the polling node) sends it to another node.
#[derive(Serialize, Deserialize)]
struct FollowQuestion {
    #[serde(rename = "by")]
    polling_node: String,
    /// The polling node's number for the stream.
    stream: u64,
    answers: u64,
    /// The filters of the stream's topics. Set in the first question of a stream only.
    filters: BTreeSet<String>,
}

/// The answer to a [`FollowQuestion`].
#[derive(Default, Serialize, Deserialize)]
struct FollowAnswer {
    /// Topics, each with the prefix `+` if it got its first subscriber, or `-` if it lost its last one.
    changes: Vec<String>,
    /// The polled node has more changes, so the next question can follow at once.
    #[serde(rename = "more")]
    has_more: bool,
}

/// What the polling side and the answering side share.
#[derive(Clone)]
pub struct InterestSync {
    lifecycle: Lifecycle,
    shards: Shards,
    peer_nodes: PeerNodes,
}

impl InterestSync {
    /// Spawns the tasks of both sides, if this is a node of a cluster.
    pub fn spawn_tasks(lifecycle: Lifecycle, shards: Shards, peer_nodes: PeerNodes) {
        if lifecycle.member().is_some() {
            let this = InterestSync {
                lifecycle,
                shards,
                peer_nodes,
            };
            tokio::spawn(this.clone().serve());
            tokio::spawn(this.poll());
        }
    }

    async fn ask(&self, next_home: ShardId, order: Order) -> Option<InterestReply> {
        let order = Control::Interest(order);
        self.shards.ask(next_home, order).await.ok()
    }

    fn homes(&self) -> ShardId {
        self.lifecycle.world().homes
    }

    /// Answers the other nodes. Never returns.
    async fn serve(self) {
        let mut server = FollowServer {
            node: self.clone(),
            following: HashMap::new(),
            stream_count: 0,
        };
        loop {
            if let Some(name) = self.peer_nodes.own_writer().await
                && let Some(peers) = self.peer_nodes.peers()
                && let Some(questions) = peers.questions_to(&name).await
            {
                let mut questions = pin!(questions);
                // A node that others have declared dead gets a new name, and questions are then sent to the new name.
                while self.peer_nodes.own_writer().await.as_ref() == Some(&name) {
                    match timeout(RETRY_DELAY, questions.next()).await {
                        Ok(Some(question)) => server.answer(question).await,
                        Ok(None) => break,
                        Err(_) => {}
                    }
                    server.end_one_silent_stream().await;
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Polls the other nodes. Never returns.
    async fn poll(self) {
        let mut poller = FollowPoller {
            node: self,
            others: BTreeMap::new(),
            used_slots: AtomicU64::new(0),
            slots_to_drop: AtomicU64::new(0),
            stream_count: AtomicU64::new(0),
        };
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            poller.poll_all().await;
        }
    }
}

/// A node that polls this one.
struct FollowingNode {
    stream: u64,
    answers: u64,
    filters: BTreeSet<String>,
    /// The number by which the homes know this stream, and the homes at which the stream has begun.
    stream_at_homes: u64,
    homes_with_stream: BTreeSet<ShardId>,
    /// The home to ask next.
    home: ShardId,
    last_question_at: Instant,
}

/// The answering side: answers the nodes that poll this one.
struct FollowServer {
    node: InterestSync,
    following: HashMap<String, FollowingNode>,
    stream_count: u64,
}

impl FollowServer {
    async fn answer(&mut self, question: Question) {
        let Ok(follow) = serde_json::from_slice::<FollowQuestion>(question.bytes()) else {
            return;
        };
        let polling_node = follow.polling_node.clone();
        let answer = self.next_answer(follow).await;
        if answer.is_none() {
            self.end_stream(&polling_node).await;
        }
        question.answer(json(&answer)).await;
    }

    /// The next answer for a node. None if the polling node must begin a new stream.
    async fn next_answer(&mut self, question: FollowQuestion) -> Option<FollowAnswer> {
        if question.answers == 0 {
            self.end_stream(&question.polling_node).await;
            let is_valid = |it: &String| check_filter(it.as_bytes(), MAX_TOPIC_BYTES).is_ok();
            if self.following.len() >= NODES_MAX
                || question.filters.len() > FILTERS_MAX
                || !question.filters.iter().all(is_valid)
            {
                return None;
            }
            self.stream_count += 1;
            let new_follower = FollowingNode {
                stream: question.stream,
                answers: 0,
                filters: question.filters,
                stream_at_homes: self.stream_count,
                homes_with_stream: BTreeSet::new(),
                home: 0,
                last_question_at: Instant::now(),
            };
            self.following
                .insert(question.polling_node.clone(), new_follower);
        }
        let follower = self.following.get_mut(&question.polling_node)?;
        if (follower.stream, follower.answers) != (question.stream, question.answers) {
            return None;
        }
        follower.answers += 1;
        follower.last_question_at = Instant::now();
        follower.collect_changes(&self.node).await
    }

    /// Ends the stream of the node `polling_node`.
    async fn end_stream(&mut self, polling_node: &str) {
        if let Some(follower) = self.following.remove(polling_node) {
            for home in follower.homes_with_stream {
                let _ = self
                    .node
                    .ask(home, Order::End(follower.stream_at_homes))
                    .await;
            }
        }
    }

    /// Ends the stream of a node that has not polled for [`STREAM_TIMEOUT`].
    async fn end_one_silent_stream(&mut self) {
        let is_silent =
            |follower: &FollowingNode| follower.last_question_at.elapsed() >= STREAM_TIMEOUT;
        let mut followers = self.following.iter();
        let silent_node = followers
            .find_map(|(polling_node, follower)| is_silent(follower).then(|| polling_node.clone()));
        if let Some(polling_node) = silent_node {
            self.end_stream(&polling_node).await;
        }
    }
}

impl FollowingNode {
    /// Collects changes from the homes. None if a home has lost changes, or does not answer.
    async fn collect_changes(&mut self, node: &InterestSync) -> Option<FollowAnswer> {
        let (homes, mut name_bytes) = (node.homes(), 0);
        let mut answer = FollowAnswer::default();
        for _ in 0..homes {
            let mut home_has_more = true;
            for _ in 0..PAGES_MAX {
                if name_bytes >= CHANGES_BYTES_MAX {
                    answer.has_more = true;
                    return Some(answer);
                }
                let filters = self.filters.iter();
                let filters = filters.map(|it| it.as_bytes().into()).collect();
                let first_filters = self.homes_with_stream.insert(self.home).then_some(filters);
                let order = Order::Next(self.stream_at_homes, first_filters);
                let Some(InterestReply::Changes(changes)) = node.ask(self.home, order).await else {
                    return None;
                };
                let (changes, has_more) = changes?;
                name_bytes += changes.len();
                answer
                    .changes
                    .extend(changes.iter().map(|(has_subscribers, name)| {
                        let sign = if has_subscribers { '+' } else { '-' };
                        format!("{sign}{}", String::from_utf8_lossy(name))
                    }));
                home_has_more = has_more;
                if !has_more {
                    break;
                }
            }
            answer.has_more |= home_has_more;
            self.home = (self.home + 1) % homes;
        }
        Some(answer)
    }
}

/// Parses a change from another node: whether the topic got its first subscriber, and the topic's name. None if the change is invalid:
/// whoever may publish to the nodes' NATS subjects can send anything.
fn parse_change(change: &str) -> Option<(bool, &[u8])> {
    let (sign, name) = change.split_at_checked(1)?;
    let has_subscribers = match sign {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    check_stored_name(name.as_bytes()).ok()?;
    Some((has_subscribers, name.as_bytes()))
}

/// A stream of answers from another node.
struct Stream {
    number: u64,
    answers: u64,
    filters: BTreeSet<String>,
    /// The number by which the homes know this stream, set with the first answer.
    stream_at_homes: Option<u8>,
    is_complete: bool,
    started_at: Instant,
}

impl Stream {
    /// Whether the homes know of all topics with subscribers that match one of these filters.
    fn has_told_all(&self, filters: &BTreeSet<String>) -> bool {
        self.is_complete && (self.filters.contains("#") || filters.is_subset(&self.filters))
    }
}

/// Another node, which this one polls.
#[derive(Default)]
struct FollowedNode {
    stream: Option<Stream>,
    /// The number of the previous stream at the homes, until the current one is complete.
    previous_at_homes: Option<u8>,
    /// Whether it was logged that this node has no space for all topics of the other node.
    overflow_logged: bool,
}

/// The polling side: asks all other nodes.
struct FollowPoller {
    node: InterestSync,
    others: BTreeMap<String, FollowedNode>,
    /// A bit mask of the slots in use. A *slot* is the number by which the homes know a stream.
    used_slots: AtomicU64,
    /// A bit mask of slots that no stream uses, but that still have topics, since a shard did not answer.
    slots_to_drop: AtomicU64,
    stream_count: AtomicU64,
}

impl FollowPoller {
    /// Polls all other nodes, if there is a follower at this node. Also forgets nodes that have gone, and frees the numbers of their streams.
    async fn poll_all(&mut self) {
        let webhooks = self.node.peer_nodes.other_nodes().filters();
        let (Some(filters), Some(state)) = (
            self.followed_filters(&webhooks).await,
            self.node.peer_nodes.nodes_in_log().await,
        ) else {
            return;
        };
        let slots_to_drop = self.slots_to_drop.swap(0, Relaxed);
        for slot in (0..u64::BITS as u8).filter(|slot| slots_to_drop & 1 << slot != 0) {
            self.drop_topics(slot).await;
        }
        let mut living: BTreeSet<String> = BTreeSet::new();
        let mut own_name = None;
        for node in &state.nodes {
            match node.is_self {
                true => own_name = Some(writer_text(node.writer)),
                false if filters.is_empty() => {}
                false => drop(living.insert(writer_text(node.writer))),
            }
        }
        let others = std::mem::take(&mut self.others);
        for (name, other) in others {
            match living.contains(&name) {
                true => drop(self.others.insert(name, other)),
                false => {
                    let slots = [
                        other.stream.and_then(|it| it.stream_at_homes),
                        other.previous_at_homes,
                    ];
                    for slot in slots.into_iter().flatten() {
                        self.drop_topics(slot).await;
                    }
                }
            }
        }
        let Some(own_name) = own_name else { return };
        let mut others = std::mem::take(&mut self.others);
        for name in living {
            others.entry(name).or_default();
        }
        let nodes = others.iter_mut();
        let polls = nodes.map(|(name, node)| self.poll_node(&own_name, name, node, &filters));
        join_all(polls).await;
        self.others = others;
        let streams = self.others.values().map(|it| it.stream.as_ref());
        for (number, wanted) in &webhooks {
            let has_told = |it: Option<&Stream>| it.is_some_and(|it| it.has_told_all(wanted));
            if streams.clone().all(has_told) {
                self.node.peer_nodes.other_nodes().note_subscribers(*number);
            }
        }
    }

    /// The filters of all followers at this node. Home 0 knows those of all connections, since each of these sends its request to home 0 first. None if
    /// home 0 does not answer.
    async fn followed_filters(
        &self,
        webhooks: &BTreeMap<u64, BTreeSet<String>>,
    ) -> Option<BTreeSet<String>> {
        let Some(InterestReply::Filters(filters)) = self.node.ask(0, Order::Filters).await else {
            return None;
        };
        let texts = filters
            .iter()
            .map(|filter| String::from_utf8_lossy(filter).into_owned());
        let all: BTreeSet<String> = texts.chain(webhooks.values().flatten().cloned()).collect();
        if all.len() > FILTERS_MAX {
            // `#` does not match topics that begin with `$`. That is right, because they are local to a node.
            return Some(BTreeSet::from(["#".to_string()]));
        }
        Some(all)
    }

    /// Polls a node until it has no more changes, but for at most `ANSWERS_PER_POLL_MAX` answers.
    async fn poll_node(
        &self,
        own_name: &str,
        node_name: &str,
        followed: &mut FollowedNode,
        filters: &BTreeSet<String>,
    ) {
        let needs_new_stream = |it: &Stream| {
            it.is_complete
                && it.started_at.elapsed() >= STREAM_AGE_MIN
                && !filters.is_subset(&it.filters)
        };
        if followed.stream.as_ref().is_some_and(needs_new_stream) {
            self.end_stream(followed).await;
        }
        for _ in 0..ANSWERS_PER_POLL_MAX {
            let stream = followed.stream.get_or_insert_with(|| Stream {
                number: self.stream_count.fetch_add(1, Relaxed),
                answers: 0,
                filters: filters.clone(),
                stream_at_homes: None,
                is_complete: false,
                started_at: Instant::now(),
            });
            let question = FollowQuestion {
                polling_node: own_name.to_string(),
                stream: stream.number,
                answers: stream.answers,
                filters: match stream.answers {
                    0 => stream.filters.clone(),
                    _ => BTreeSet::new(),
                },
            };
            let Some(answer) = self.ask_node(node_name, &question).await else {
                return self.end_stream(followed).await;
            };
            stream.answers += 1;
            stream.stream_at_homes = stream.stream_at_homes.or_else(|| self.take_slot());
            let Some(slot) = stream.stream_at_homes else {
                // All slots are taken.
                return self.end_stream(followed).await;
            };
            stream.is_complete |= !answer.has_more;
            let is_complete = stream.is_complete;
            self.apply_changes(slot, &answer.changes, followed).await;
            if is_complete && let Some(previous_slot) = followed.previous_at_homes.take() {
                self.drop_topics(previous_slot).await;
            }
            if !answer.has_more {
                return;
            }
        }
    }

    async fn ask_node(&self, name: &str, question: &FollowQuestion) -> Option<FollowAnswer> {
        let peers = self.node.peer_nodes.peers()?;
        let answer = timeout(ANSWER_TIMEOUT, peers.ask_one(name, json(question))).await;
        serde_json::from_slice::<Option<FollowAnswer>>(&answer.ok()??).ok()?
    }

    /// Ends the stream of a node. If the stream was complete, its topics stay until the next stream is complete.
    async fn end_stream(&self, other: &mut FollowedNode) {
        let Some(stream) = other.stream.take() else {
            return;
        };
        match stream.stream_at_homes {
            Some(slot) if stream.is_complete => other.previous_at_homes = Some(slot),
            Some(slot) => self.drop_topics(slot).await,
            None => {}
        }
    }

    fn take_slot(&self) -> Option<u8> {
        let used = self.used_slots.load(Relaxed);
        let slot = (0..STREAMS).find(|slot| used & 1 << slot == 0)?;
        self.used_slots.fetch_or(1 << slot, Relaxed);
        Some(slot)
    }

    /// Passes changes to the homes. If a home has no space for a topic, that is logged once for each node.
    async fn apply_changes(&self, slot: u8, changes: &[String], other: &mut FollowedNode) {
        let placement = self.node.lifecycle.world().placement();
        let mut refused_count = 0;
        for changes in changes.chunks(CHANGES_PER_ORDER_MAX) {
            let mut changes_by_home: BTreeMap<ShardId, InterestChanges> = BTreeMap::new();
            for change in changes {
                let Some((has_subscribers, name)) = parse_change(change) else {
                    continue;
                };
                let home = placement.home_of_name(name);
                let changes = changes_by_home.entry(home).or_default();
                changes.push(has_subscribers, name);
            }
            for (home, changes) in changes_by_home {
                let reply = self.node.ask(home, Order::ApplyRemote(slot, changes)).await;
                if let Some(InterestReply::Refused(count)) = reply {
                    refused_count += count;
                }
            }
        }
        if refused_count > 0 && !std::mem::replace(&mut other.overflow_logged, true) {
            tracing::warn!(
                "cluster: followers of interest do not learn of all topics: other nodes have more topics than this node may store (limits.topics_max, limits.topics_per_shard)"
            );
        }
    }

    /// Removes the topics of a stream, and frees its slot.
    async fn drop_topics(&self, slot: u8) {
        for home in 0..self.node.homes() {
            let mut after: Box<[u8]> = Box::default();
            loop {
                match self.node.ask(home, Order::DropStream(slot, after)).await {
                    Some(InterestReply::Dropped(Some(next))) => after = next,
                    Some(_) => break,
                    // The shard may still hold topics of this slot, so the slot stays in use.
                    None => {
                        self.slots_to_drop.fetch_or(1 << slot, Relaxed);
                        return;
                    }
                }
            }
        }
        self.used_slots.fetch_and(!(1 << slot), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_from_another_node_is_refused_if_its_topic_cannot_exist() {
        assert_eq!(parse_change("+a/b"), Some((true, &b"a/b"[..])));
        assert_eq!(parse_change("-a"), Some((false, &b"a"[..])));
        let long = format!("+{}", "x".repeat(70_000));
        for wrong in ["", "+", "a", "+a\nb", "+#", &long] {
            assert_eq!(parse_change(wrong), None, "{wrong:.20}");
        }
    }
}
