//! Collects the *interest* of all nodes of a cluster: which topics have subscribers. A *follower* is a client that is told when a topic
//! gets its first subscriber or loses its last one. A node with followers polls every other node twice a second for changes of interest
//! there, and passes the changes to its own homes, the parts of its shards that keep topics.
//!
//! The polled node answers with a *stream* of numbered answers: first all topics with subscribers, then changes. If an answer is missing,
//! or the polled node has lost changes, a new stream begins. The topics of the old stream stay valid until the new stream has listed all
//! topics. A node without followers does not poll, and other nodes keep no state for it.
//!
//! Bounds: an answer has at most [`CHANGES_BYTES_MAX`] bytes of names, plus one page. A node sends answers only on request, so the polling
//! node sets the pace. If the followers of a node have more than [`FILTERS_MAX`] different filters, the node asks for all topics. A home
//! stores at most as many topics of other nodes as of its own node.

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
/// The stream of a node that has not polled for this time ends.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream is at least this old before a change of the filters begins a new stream. Otherwise each follower that comes and goes would
/// cause another list of all topics.
const STREAM_AGE_MIN: Duration = Duration::from_secs(5);
/// The maximum number of different filters in a question.
const FILTERS_MAX: usize = 64;
/// The maximum number of nodes that poll this one. A node keeps the heartbeats of equally many nodes.
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

/// What a node with followers sends to another node in a poll. `polling_node` is the name of the polling node.
#[derive(Serialize, Deserialize)]
struct FollowQuestion {
    #[serde(rename = "by")]
    polling_node: String,
    /// The polling node's number for the stream, and the count of answers that the polling node has received in this stream. A question
    /// with 0 answers begins a new stream.
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
    more: bool,
}

/// What the polling side and the answering side share.
#[derive(Clone)]
pub struct Interest {
    lifecycle: Lifecycle,
    shards: Shards,
    peer_nodes: PeerNodes,
}

impl Interest {
    /// Spawns the tasks of both sides, if this is a node of a cluster.
    pub fn begin(lifecycle: Lifecycle, shards: Shards, peer_nodes: PeerNodes) {
        if lifecycle.member().is_some() {
            let this = Interest {
                lifecycle,
                shards,
                peer_nodes,
            };
            tokio::spawn(this.clone().serve());
            tokio::spawn(this.poll());
        }
    }

    async fn ask(&self, home: ShardId, order: Order) -> Option<InterestReply> {
        let order = Control::Interest(order);
        self.shards.ask(home, order).await.ok()
    }

    fn homes(&self) -> ShardId {
        self.lifecycle.world().homes
    }

    /// Answers the other nodes. Never returns.
    async fn serve(self) {
        let mut server = FollowServer {
            node: self.clone(),
            following: HashMap::new(),
            streams: 0,
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
                    server.end_silent().await;
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
            slots: AtomicU64::new(0),
            undropped: AtomicU64::new(0),
            streams: AtomicU64::new(0),
        };
        let mut every = interval(POLL_INTERVAL);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
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
    begun_homes: BTreeSet<ShardId>,
    /// The home to ask next.
    home: ShardId,
    asked_at: Instant,
}

/// The answering side: answers the nodes that poll this one.
struct FollowServer {
    node: Interest,
    following: HashMap<String, FollowingNode>,
    streams: u64,
}

impl FollowServer {
    async fn answer(&mut self, question: Question) {
        let Ok(asked) = serde_json::from_slice::<FollowQuestion>(question.bytes()) else {
            return;
        };
        let polling_node = asked.polling_node.clone();
        let answer = self.next(asked).await;
        if answer.is_none() {
            self.end(&polling_node).await;
        }
        question.answer(json(&answer)).await;
    }

    /// The next answer for a node. None if the polling node must begin a new stream.
    async fn next(&mut self, asked: FollowQuestion) -> Option<FollowAnswer> {
        if asked.answers == 0 {
            self.end(&asked.polling_node).await;
            let is_valid = |it: &String| check_filter(it.as_bytes(), MAX_TOPIC_BYTES).is_ok();
            if self.following.len() >= NODES_MAX
                || asked.filters.len() > FILTERS_MAX
                || !asked.filters.iter().all(is_valid)
            {
                return None;
            }
            self.streams += 1;
            let begins = FollowingNode {
                stream: asked.stream,
                answers: 0,
                filters: asked.filters,
                stream_at_homes: self.streams,
                begun_homes: BTreeSet::new(),
                home: 0,
                asked_at: Instant::now(),
            };
            self.following.insert(asked.polling_node.clone(), begins);
        }
        let of = self.following.get_mut(&asked.polling_node)?;
        if (of.stream, of.answers) != (asked.stream, asked.answers) {
            return None;
        }
        of.answers += 1;
        of.asked_at = Instant::now();
        of.collect(&self.node).await
    }

    /// Ends the stream of the node `polling_node`.
    async fn end(&mut self, polling_node: &str) {
        if let Some(of) = self.following.remove(polling_node) {
            for home in of.begun_homes {
                let _ = self.node.ask(home, Order::End(of.stream_at_homes)).await;
            }
        }
    }

    /// Ends the stream of a node that has not polled for [`STREAM_TIMEOUT`].
    async fn end_silent(&mut self) {
        let silent = |of: &FollowingNode| of.asked_at.elapsed() >= STREAM_TIMEOUT;
        let mut all = self.following.iter();
        let found = all.find_map(|(polling_node, of)| silent(of).then(|| polling_node.clone()));
        if let Some(polling_node) = found {
            self.end(&polling_node).await;
        }
    }
}

impl FollowingNode {
    /// Collects changes from the homes. None if a home has lost changes, or does not answer.
    async fn collect(&mut self, node: &Interest) -> Option<FollowAnswer> {
        let (homes, mut bytes) = (node.homes(), 0);
        let mut answer = FollowAnswer::default();
        for _ in 0..homes {
            let mut more = true;
            for _ in 0..PAGES_MAX {
                if bytes >= CHANGES_BYTES_MAX {
                    answer.more = true;
                    return Some(answer);
                }
                let filters = self.filters.iter();
                let filters = filters.map(|it| it.as_bytes().into()).collect();
                let begins = self.begun_homes.insert(self.home).then_some(filters);
                let order = Order::Next(self.stream_at_homes, begins);
                let Some(InterestReply::Changes(news)) = node.ask(self.home, order).await else {
                    return None;
                };
                let (news, is_more) = news?;
                bytes += news.len();
                answer.changes.extend(news.iter().map(|(begins, name)| {
                    let sign = if begins { '+' } else { '-' };
                    format!("{sign}{}", String::from_utf8_lossy(name))
                }));
                more = is_more;
                if !more {
                    break;
                }
            }
            answer.more |= more;
            self.home = (self.home + 1) % homes;
        }
        Some(answer)
    }
}

/// Parses a change from another node: whether the topic got its first subscriber, and the topic's name. None if the change is invalid:
/// whoever may publish to the nodes' NATS subjects can send anything.
fn parse_change(change: &str) -> Option<(bool, &[u8])> {
    let (sign, name) = change.split_at_checked(1)?;
    let begins = match sign {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    check_stored_name(name.as_bytes()).ok()?;
    Some((begins, name.as_bytes()))
}

/// A stream of answers from another node.
struct Stream {
    number: u64,
    answers: u64,
    filters: BTreeSet<String>,
    /// The number by which the homes know this stream, set with the first answer.
    slot: Option<u8>,
    is_complete: bool,
    begun_at: Instant,
}

/// Another node, which this one polls.
#[derive(Default)]
struct FollowedNode {
    stream: Option<Stream>,
    /// The slot of the previous stream, until the current one is complete.
    previous_slot: Option<u8>,
    /// Whether this node had no room for all topics of the other node, and has logged that.
    is_refused: bool,
}

/// The polling side: asks all other nodes.
struct FollowPoller {
    node: Interest,
    others: BTreeMap<String, FollowedNode>,
    /// A bit mask of the slots in use.
    slots: AtomicU64,
    /// A bit mask of slots that no stream uses, but that still have topics, since a shard did not answer.
    undropped: AtomicU64,
    streams: AtomicU64,
}

impl FollowPoller {
    /// Polls all other nodes, if there is a follower at this node.
    async fn poll_all(&mut self) {
        let (Some(filters), Some(state)) = (
            self.filters().await,
            self.node.peer_nodes.nodes_in_log().await,
        ) else {
            return;
        };
        let undropped = self.undropped.swap(0, Relaxed);
        for slot in (0..u64::BITS as u8).filter(|slot| undropped & 1 << slot != 0) {
            self.drop_topics(slot).await;
        }
        let mut living: BTreeSet<String> = BTreeSet::new();
        let mut own = None;
        for node in &state.nodes {
            match node.is_self {
                true => own = Some(writer_text(node.writer)),
                false if filters.is_empty() => {}
                false => drop(living.insert(writer_text(node.writer))),
            }
        }
        let others = std::mem::take(&mut self.others);
        for (name, other) in others {
            match living.contains(&name) {
                true => drop(self.others.insert(name, other)),
                false => {
                    let slots = [other.stream.and_then(|it| it.slot), other.previous_slot];
                    for slot in slots.into_iter().flatten() {
                        self.drop_topics(slot).await;
                    }
                }
            }
        }
        let Some(own) = own else { return };
        let mut others = std::mem::take(&mut self.others);
        for name in living {
            others.entry(name).or_default();
        }
        let asked = others.iter_mut();
        let asked = asked.map(|(name, other)| self.poll_node(&own, name, other, &filters));
        join_all(asked).await;
        self.others = others;
    }

    /// The filters of all followers at this node. Home 0 knows all of them, since each follower sends its request to home 0 first. None if
    /// home 0 does not answer.
    async fn filters(&self) -> Option<BTreeSet<String>> {
        let Some(InterestReply::Filters(filters)) = self.node.ask(0, Order::Filters).await else {
            return None;
        };
        if filters.len() > FILTERS_MAX {
            // Topics that begin with `$` are not included: they are local to a node.
            return Some(BTreeSet::from(["#".to_string()]));
        }
        let text = filters
            .iter()
            .map(|filter| String::from_utf8_lossy(filter).into_owned());
        Some(text.collect())
    }

    /// Polls a node until it has no more changes, but for at most `ANSWERS_PER_POLL_MAX` answers.
    async fn poll_node(
        &self,
        own: &str,
        name: &str,
        other: &mut FollowedNode,
        filters: &BTreeSet<String>,
    ) {
        let is_other = |it: &Stream| {
            it.is_complete
                && it.begun_at.elapsed() >= STREAM_AGE_MIN
                && !filters.is_subset(&it.filters)
        };
        if other.stream.as_ref().is_some_and(is_other) {
            self.end(other).await;
        }
        for _ in 0..ANSWERS_PER_POLL_MAX {
            let stream = other.stream.get_or_insert_with(|| Stream {
                number: self.streams.fetch_add(1, Relaxed),
                answers: 0,
                filters: filters.clone(),
                slot: None,
                is_complete: false,
                begun_at: Instant::now(),
            });
            let asked = FollowQuestion {
                polling_node: own.to_string(),
                stream: stream.number,
                answers: stream.answers,
                filters: match stream.answers {
                    0 => stream.filters.clone(),
                    _ => BTreeSet::new(),
                },
            };
            let Some(answer) = self.answer_of(name, &asked).await else {
                return self.end(other).await;
            };
            stream.answers += 1;
            stream.slot = stream.slot.or_else(|| self.take_slot());
            let Some(slot) = stream.slot else {
                // All slots are taken.
                return self.end(other).await;
            };
            stream.is_complete |= !answer.more;
            let is_complete = stream.is_complete;
            self.apply_changes(slot, &answer.changes, other).await;
            if is_complete && let Some(previous_slot) = other.previous_slot.take() {
                self.drop_topics(previous_slot).await;
            }
            if !answer.more {
                return;
            }
        }
    }

    async fn answer_of(&self, name: &str, asked: &FollowQuestion) -> Option<FollowAnswer> {
        let peers = self.node.peer_nodes.peers()?;
        let answer = timeout(ANSWER_TIMEOUT, peers.ask_one(name, json(asked))).await;
        serde_json::from_slice::<Option<FollowAnswer>>(&answer.ok()??).ok()?
    }

    /// Ends the stream of a node. If the stream was complete, its topics stay until the next stream is complete.
    async fn end(&self, other: &mut FollowedNode) {
        let Some(stream) = other.stream.take() else {
            return;
        };
        match stream.slot {
            Some(slot) if stream.is_complete => other.previous_slot = Some(slot),
            Some(slot) => self.drop_topics(slot).await,
            None => {}
        }
    }

    fn take_slot(&self) -> Option<u8> {
        let taken = self.slots.load(Relaxed);
        let slot = (0..STREAMS).find(|slot| taken & 1 << slot == 0)?;
        self.slots.fetch_or(1 << slot, Relaxed);
        Some(slot)
    }

    /// Passes changes on to the homes.
    async fn apply_changes(&self, slot: u8, changes: &[String], other: &mut FollowedNode) {
        let placement = self.node.lifecycle.world().placement();
        let mut refused = 0;
        for changes in changes.chunks(CHANGES_PER_ORDER_MAX) {
            let mut of_homes: BTreeMap<ShardId, InterestChanges> = BTreeMap::new();
            for change in changes {
                let Some((begins, name)) = parse_change(change) else {
                    continue;
                };
                let news = of_homes.entry(placement.home_of_name(name)).or_default();
                news.push(begins, name);
            }
            for (home, news) in of_homes {
                let taken = self.node.ask(home, Order::ApplyRemote(slot, news)).await;
                if let Some(InterestReply::Refused(count)) = taken {
                    refused += count;
                }
            }
        }
        if refused > 0 && !std::mem::replace(&mut other.is_refused, true) {
            tracing::warn!(
                "cluster: followers of interest are not told of all topics: other nodes have more than limits.topics_max or limits.topics_per_shard lets this one know"
            );
        }
    }

    /// Removes the topics of a stream, and frees its slot.
    async fn drop_topics(&self, slot: u8) {
        for home in 0..self.node.homes() {
            let mut from: Box<[u8]> = Box::default();
            loop {
                match self.node.ask(home, Order::DropStream(slot, from)).await {
                    Some(InterestReply::Dropped(Some(next))) => from = next,
                    Some(_) => break,
                    // The shard may still hold topics of this slot, so the slot stays in use.
                    None => {
                        self.undropped.fetch_or(1 << slot, Relaxed);
                        return;
                    }
                }
            }
        }
        self.slots.fetch_and(!(1 << slot), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_topics_that_may_exist_are_taken_from_other_nodes() {
        assert_eq!(parse_change("+a/b"), Some((true, &b"a/b"[..])));
        assert_eq!(parse_change("-a"), Some((false, &b"a"[..])));
        let long = format!("+{}", "x".repeat(70_000));
        for wrong in ["", "+", "a", "+a\nb", "+#", &long] {
            assert_eq!(parse_change(wrong), None, "{wrong:.20}");
        }
    }
}
