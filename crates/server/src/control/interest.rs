//! Interest at all nodes of a cluster: the topics that have subscribers. A node with followers (clients that are told of interest) polls each
//! other node twice a second for topics that gained or lost their last subscriber there, and tells its homes.
//!
//! A node answers another with a *stream* of numbered answers: first all topics with interest, then changes. If an answer is missing, or the
//! answering node has lost changes, a new stream begins; the topics of the old stream stay until the new one is complete. A node without
//! followers asks nothing, and other nodes keep no state for it.
//!
//! Bounds: an answer has at most [`NEWS_BYTES_MAX`] bytes of names and one page more. Answers come only on request, so the asking node sets the
//! pace. With more than [`FILTERS_MAX`] different filters a node asks for all topics. A home stores at most as many topics of other nodes as
//! of its own.

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

use super::neighbours::{Neighbours, json, writer};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// Between two polls of another node.
const EVERY: Duration = Duration::from_millis(500);
/// Timeout of an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The stream of a node that has not asked for this time ends.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Least age of a stream before a change of filters begins a new one, so that followers that come and go do not cause a snapshot each.
const STREAM_MIN: Duration = Duration::from_secs(5);
/// Most different filters in a question.
const FILTERS_MAX: usize = 64;
/// Most nodes that follow this one: as many as the log has heartbeats of.
const NODES_MAX: usize = 256;
/// Approximate limit of names in an answer, in bytes. JSON may double it; a message of NATS may have at least eight times as many.
const NEWS_BYTES_MAX: usize = 256 << 10;
/// Most pages from a home for one answer. A page may be empty, since it covers topics without interest.
const PAGES_MAX: usize = 64;
/// Most answers in a row from one node before the nodes and filters are determined again.
const ANSWERS_MAX: usize = 64;
/// Changes in one order to a home: some hundred microseconds of its time.
const CHANGES_MAX: usize = 512;
/// Delay before a lost subscription (of NATS) is renewed, and between two checks whether this node has a new name.
const AGAIN: Duration = Duration::from_secs(1);

/// A question of a node with followers.
#[derive(Serialize, Deserialize)]
struct FollowQuestion {
    by: String,
    /// The asking node's number of the stream, and the count of answers received. A stream begins with the first question.
    stream: u64,
    answers: u64,
    /// Used in the first question of a stream.
    filters: BTreeSet<String>,
}

/// The answer to a [`FollowQuestion`].
#[derive(Default, Serialize, Deserialize)]
struct FollowAnswer {
    /// Topics, each with the prefix `+` if its interest begins, or `-` if it ends.
    changes: Vec<String>,
    /// More changes can be asked for at once.
    more: bool,
}

/// The shared parts of both sides: the one that asks, and the one that answers.
#[derive(Clone)]
pub struct Interest {
    lifecycle: Lifecycle,
    shards: Shards,
    neighbours: Neighbours,
}

impl Interest {
    /// Spawns the tasks of both sides, if this is a node of a cluster.
    pub fn begin(lifecycle: Lifecycle, shards: Shards, neighbours: Neighbours) {
        if lifecycle.member().is_some() {
            let this = Interest {
                lifecycle,
                shards,
                neighbours,
            };
            tokio::spawn(this.clone().tell());
            tokio::spawn(this.follow());
        }
    }

    async fn ask(&self, home: ShardId, order: Order) -> Option<InterestReply> {
        let order = Control::Interest(order);
        self.shards.ask(home, order).await.ok()
    }

    fn homes(&self) -> ShardId {
        self.lifecycle.world().homes
    }

    async fn tell(self) {
        let mut teller = Teller {
            node: self.clone(),
            following: HashMap::new(),
            streams: 0,
        };
        loop {
            if let Some(name) = self.neighbours.own_writer().await
                && let Some(peers) = self.neighbours.peers()
                && let Some(questions) = peers.questions_to(&name).await
            {
                let mut questions = pin!(questions);
                // A node that others declared dead continues with a new name.
                while self.neighbours.own_writer().await.as_ref() == Some(&name) {
                    match timeout(AGAIN, questions.next()).await {
                        Ok(Some(question)) => teller.answer(question).await,
                        Ok(None) => break,
                        Err(_) => {}
                    }
                    teller.forget_silent().await;
                }
            }
            sleep(AGAIN).await;
        }
    }

    async fn follow(self) {
        let mut follower = Follower {
            node: self,
            others: BTreeMap::new(),
            slots: AtomicU64::new(0),
            streams: AtomicU64::new(0),
        };
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            follower.look().await;
        }
    }
}

/// A node that follows this one.
struct Following {
    stream: u64,
    answers: u64,
    filters: BTreeSet<String>,
    /// The homes' number of the stream, and the homes at which it has begun.
    own: u64,
    begun: BTreeSet<ShardId>,
    /// The home to ask next.
    home: ShardId,
    asked_at: Instant,
}

/// Answers the nodes that follow this one.
struct Teller {
    node: Interest,
    following: HashMap<String, Following>,
    streams: u64,
}

impl Teller {
    async fn answer(&mut self, question: Question) {
        let Ok(asked) = serde_json::from_slice::<FollowQuestion>(question.bytes()) else {
            return;
        };
        let by = asked.by.clone();
        let told = self.next(asked).await;
        if told.is_none() {
            self.end(&by).await;
        }
        question.answer(json(&told)).await;
    }

    /// The next answer for a node. None if it must begin a new stream.
    async fn next(&mut self, asked: FollowQuestion) -> Option<FollowAnswer> {
        if asked.answers == 0 {
            self.end(&asked.by).await;
            let is_valid = |it: &String| check_filter(it.as_bytes(), MAX_TOPIC_BYTES).is_ok();
            if self.following.len() >= NODES_MAX
                || asked.filters.len() > FILTERS_MAX
                || !asked.filters.iter().all(is_valid)
            {
                return None;
            }
            self.streams += 1;
            let begins = Following {
                stream: asked.stream,
                answers: 0,
                filters: asked.filters,
                own: self.streams,
                begun: BTreeSet::new(),
                home: 0,
                asked_at: Instant::now(),
            };
            self.following.insert(asked.by.clone(), begins);
        }
        let of = self.following.get_mut(&asked.by)?;
        if (of.stream, of.answers) != (asked.stream, asked.answers) {
            return None;
        }
        of.answers += 1;
        of.asked_at = Instant::now();
        of.collect(&self.node).await
    }

    async fn end(&mut self, by: &str) {
        if let Some(of) = self.following.remove(by) {
            for home in of.begun {
                let _ = self.node.ask(home, Order::End(of.own)).await;
            }
        }
    }

    async fn forget_silent(&mut self) {
        let silent = |of: &Following| of.asked_at.elapsed() >= FORGOTTEN;
        let mut all = self.following.iter();
        let found = all.find_map(|(by, of)| silent(of).then(|| by.clone()));
        if let Some(by) = found {
            self.end(&by).await;
        }
    }
}

impl Following {
    /// Collects changes from the homes. None if a home has lost some.
    async fn collect(&mut self, node: &Interest) -> Option<FollowAnswer> {
        let (homes, mut bytes) = (node.homes(), 0);
        let mut told = FollowAnswer::default();
        for _ in 0..homes {
            let mut more = true;
            for _ in 0..PAGES_MAX {
                if bytes >= NEWS_BYTES_MAX {
                    told.more = true;
                    return Some(told);
                }
                let filters = self.filters.iter();
                let filters = filters.map(|it| it.as_bytes().into()).collect();
                let begins = self.begun.insert(self.home).then_some(filters);
                let order = Order::Next(self.own, begins);
                let Some(InterestReply::Changes(news)) = node.ask(self.home, order).await else {
                    return None;
                };
                let (news, is_more) = news?;
                bytes += news.len();
                told.changes.extend(news.iter().map(|(begins, name)| {
                    let sign = if begins { '+' } else { '-' };
                    format!("{sign}{}", String::from_utf8_lossy(name))
                }));
                more = is_more;
                if !more {
                    break;
                }
            }
            told.more |= more;
            self.home = (self.home + 1) % homes;
        }
        Some(told)
    }
}

/// Parses a change from another node: whether the topic's interest begins, and the name. None if it is invalid: anybody who may publish to the
/// nodes' subjects can send anything.
fn read_change(change: &str) -> Option<(bool, &[u8])> {
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
    /// The homes' number of the stream, set with the first answer.
    slot: Option<u8>,
    is_whole: bool,
    begun_at: Instant,
}

/// Another node.
#[derive(Default)]
struct Other {
    stream: Option<Stream>,
    /// The slot of the previous stream, until the current one is complete.
    former: Option<u8>,
    /// It has been logged that not all of the node's topics have room here.
    is_refused: bool,
}

/// Asks the nodes that this one follows.
struct Follower {
    node: Interest,
    others: BTreeMap<String, Other>,
    /// A bit for each slot in use.
    slots: AtomicU64,
    streams: AtomicU64,
}

impl Follower {
    /// Asks all other nodes, if there is a follower here.
    async fn look(&mut self) {
        let (Some(filters), Some(state)) =
            (self.filters().await, self.node.neighbours.roster().await)
        else {
            return;
        };
        let mut living: BTreeSet<String> = BTreeSet::new();
        let mut own = None;
        for node in &state.nodes {
            match node.is_self {
                true => own = Some(writer(node.writer)),
                false if filters.is_empty() => {}
                false => drop(living.insert(writer(node.writer))),
            }
        }
        let others = std::mem::take(&mut self.others);
        for (name, other) in others {
            match living.contains(&name) {
                true => drop(self.others.insert(name, other)),
                false => {
                    let slots = [other.stream.and_then(|it| it.slot), other.former];
                    for slot in slots.into_iter().flatten() {
                        self.forget(slot).await;
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
        let asked = asked.map(|(name, other)| self.ask(&own, name, other, &filters));
        join_all(asked).await;
        self.others = others;
    }

    /// The filters of all followers here. Home 0 has all of them, since a follower asks it first.
    async fn filters(&self) -> Option<BTreeSet<String>> {
        let Some(InterestReply::Filters(filters)) = self.node.ask(0, Order::Filters).await else {
            return None;
        };
        if filters.len() > FILTERS_MAX {
            // Not those of topics that begin with `$`, which are local to a node.
            return Some(BTreeSet::from(["#".to_string()]));
        }
        let text = filters
            .iter()
            .map(|filter| String::from_utf8_lossy(filter).into_owned());
        Some(text.collect())
    }

    /// Asks a node until it has no more changes.
    async fn ask(&self, own: &str, name: &str, other: &mut Other, filters: &BTreeSet<String>) {
        let is_other = |it: &Stream| {
            it.is_whole && it.begun_at.elapsed() >= STREAM_MIN && !filters.is_subset(&it.filters)
        };
        if other.stream.as_ref().is_some_and(is_other) {
            self.end(other).await;
        }
        for _ in 0..ANSWERS_MAX {
            let stream = other.stream.get_or_insert_with(|| Stream {
                number: self.streams.fetch_add(1, Relaxed),
                answers: 0,
                filters: filters.clone(),
                slot: None,
                is_whole: false,
                begun_at: Instant::now(),
            });
            let asked = FollowQuestion {
                by: own.to_string(),
                stream: stream.number,
                answers: stream.answers,
                filters: match stream.answers {
                    0 => stream.filters.clone(),
                    _ => BTreeSet::new(),
                },
            };
            let Some(told) = self.answer_of(name, &asked).await else {
                return self.end(other).await;
            };
            stream.answers += 1;
            stream.slot = stream.slot.or_else(|| self.take_slot());
            let Some(slot) = stream.slot else {
                // All slots are taken.
                return self.end(other).await;
            };
            stream.is_whole |= !told.more;
            let is_whole = stream.is_whole;
            self.take(slot, &told.changes, other).await;
            if is_whole && let Some(former) = other.former.take() {
                self.forget(former).await;
            }
            if !told.more {
                return;
            }
        }
    }

    async fn answer_of(&self, name: &str, asked: &FollowQuestion) -> Option<FollowAnswer> {
        let peers = self.node.neighbours.peers()?;
        let answer = timeout(ANSWER, peers.ask_one(name, json(asked))).await;
        serde_json::from_slice::<Option<FollowAnswer>>(&answer.ok()??).ok()?
    }

    /// Ends the stream of a node. If it was complete, its topics stay until the next one is complete.
    async fn end(&self, other: &mut Other) {
        let Some(stream) = other.stream.take() else {
            return;
        };
        match stream.slot {
            Some(slot) if stream.is_whole => other.former = Some(slot),
            Some(slot) => self.forget(slot).await,
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
    async fn take(&self, slot: u8, changes: &[String], other: &mut Other) {
        let placement = self.node.lifecycle.world().placement();
        let mut refused = 0;
        for changes in changes.chunks(CHANGES_MAX) {
            let mut of_homes: BTreeMap<ShardId, InterestChanges> = BTreeMap::new();
            for change in changes {
                let Some((begins, name)) = read_change(change) else {
                    continue;
                };
                let news = of_homes.entry(placement.home_of_name(name)).or_default();
                news.push(begins, name);
            }
            for (home, news) in of_homes {
                let taken = self.node.ask(home, Order::Elsewhere(slot, news)).await;
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
    async fn forget(&self, slot: u8) {
        for home in 0..self.node.homes() {
            let mut from: Box<[u8]> = Box::default();
            loop {
                match self.node.ask(home, Order::Forget(slot, from)).await {
                    Some(InterestReply::Forgot(Some(next))) => from = next,
                    Some(_) => break,
                    // A shard does not answer; the slot stays in use.
                    None => return,
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
        assert_eq!(read_change("+a/b"), Some((true, &b"a/b"[..])));
        assert_eq!(read_change("-a"), Some((false, &b"a"[..])));
        let long = format!("+{}", "x".repeat(70_000));
        for wrong in ["", "+", "a", "+a\nb", "+#", &long] {
            assert_eq!(read_change(wrong), None, "{wrong:.20}");
        }
    }
}
