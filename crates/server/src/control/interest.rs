//! Interest at all nodes of a cluster: a node with followers asks each other node twice a second which topics have begun or ceased to have
//! interest there, and tells its homes.
//!
//! A node tells another in a *stream* of numbered answers: all topics that have interest, then changes. Where an answer is missing, or the other
//! node has lost changes, a new stream begins; the topics of the former count until the new one is whole. A node without followers asks
//! nothing, and nobody keeps anything for it.
//!
//! Bounds: an answer has [`NEWS_BYTES_MAX`] bytes of names and one page more, and each is asked for; so a node that tells much waits for the one that
//! asks. Past [`FILTERS_MAX`] different filters a node asks for all topics. A home has no more topics of other nodes than it may have
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

/// How often another node is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(2);
/// A node that has not asked for so long follows no more.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// A stream lasts so long before other filters begin another: followers that come and go ask for no snapshot each.
const STREAM_MIN: Duration = Duration::from_secs(5);
/// Different filters that a node asks for.
const FILTERS_MAX: usize = 64;
/// Nodes that follow at a time: as many as the log's signs of life know.
const NODES_MAX: usize = 256;
/// Bytes of names in an answer, about: JSON may write twice as many, and a message of NATS has at least eight times as many.
const NEWS_BYTES_MAX: usize = 256 << 10;
/// Pages that a home is asked for at most before it is answered: some have no news, since they had no topic with interest.
const PAGES_MAX: usize = 64;
/// Answers that are asked for one after the other before it is looked again whom to ask for what.
const ANSWERS_MAX: usize = 64;
/// Changes that a home takes at once: some hundred microseconds.
const CHANGES_MAX: usize = 512;
/// How long a lost subscription waits for the next, and how often it is looked whether this node has another name.
const AGAIN: Duration = Duration::from_secs(1);

/// A question of a node with followers.
#[derive(Serialize, Deserialize)]
struct FollowQuestion {
    by: String,
    /// Its number of the stream, and how many answers it has had. A stream begins with the first question.
    stream: u64,
    answers: u64,
    /// For the first question.
    filters: BTreeSet<String>,
}

/// The answer.
#[derive(Default, Serialize, Deserialize)]
struct FollowAnswer {
    /// Topics, each behind `+` where its interest begins, and `-` where it ends.
    changes: Vec<String>,
    /// There is more to tell at once.
    more: bool,
}

/// Both sides of it.
#[derive(Clone)]
pub struct Interest {
    lifecycle: Lifecycle,
    shards: Shards,
    neighbours: Neighbours,
}

impl Interest {
    /// Begins to tell and to follow, where this is a node of a cluster.
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
                && let Some(way) = self.neighbours.way()
                && let Some(questions) = way.questions_to(&name).await
            {
                let mut questions = pin!(questions);
                // A node that others took for dead goes on with another name.
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
    /// The number of its stream at the homes, and those at which it has begun.
    own: u64,
    begun: BTreeSet<ShardId>,
    /// The home to go on with.
    home: ShardId,
    asked_at: Instant,
}

/// The nodes that follow this one.
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

    /// The next answer for a node; none where it must begin anew.
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
    /// Collects the news of the homes. None where one has lost some.
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

/// A change as another node tells it: whether the topic's interest begins, and the name. None for what no node tells, since who may publish to the
/// subjects of the nodes may tell anything.
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

/// A stream of answers of another node.
struct Stream {
    number: u64,
    answers: u64,
    filters: BTreeSet<String>,
    /// Its number at the homes, from its first answer on.
    slot: Option<u8>,
    is_whole: bool,
    begun_at: Instant,
}

/// Another node.
#[derive(Default)]
struct Other {
    stream: Option<Stream>,
    /// The slot of the stream before, until this one is whole.
    former: Option<u8>,
    /// It was told that not all of it finds room here.
    is_refused: bool,
}

/// The nodes that this one follows.
struct Follower {
    node: Interest,
    others: BTreeMap<String, Other>,
    /// Slots that are taken, a bit each.
    slots: AtomicU64,
    streams: AtomicU64,
}

impl Follower {
    /// Asks all other nodes, if anybody follows.
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

    /// The filters of all who follow here. A follower asks home 0 first.
    async fn filters(&self) -> Option<BTreeSet<String>> {
        let Some(InterestReply::Filters(filters)) = self.node.ask(0, Order::Filters).await else {
            return None;
        };
        if filters.len() > FILTERS_MAX {
            // But those of topics that begin with `$`, which are of one node.
            return Some(BTreeSet::from(["#".to_string()]));
        }
        let text = filters
            .iter()
            .map(|filter| String::from_utf8_lossy(filter).into_owned());
        Some(text.collect())
    }

    /// Asks a node until it has no more to tell.
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
                // More nodes than can be told apart.
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
        let way = self.node.neighbours.way()?;
        let answer = timeout(ANSWER, way.ask_one(name, json(asked))).await;
        serde_json::from_slice::<Option<FollowAnswer>>(&answer.ok()??).ok()?
    }

    /// The stream of a node has ended. The topics that a whole one has told still count.
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

    /// Tells the homes.
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

    /// Forgets the events that a stream has told, and frees its slot.
    async fn forget(&self, slot: u8) {
        for home in 0..self.node.homes() {
            let mut from: Box<[u8]> = Box::default();
            loop {
                match self.node.ask(home, Order::Forget(slot, from)).await {
                    Some(InterestReply::Forgot(Some(next))) => from = next,
                    Some(_) => break,
                    // A shard is stuck; the slot stays taken.
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
