//! The requests of connections to homes.
//!
//! A connection asks by putting its request into the lane to the home, also where that is the home of its own shard: the shard carries
//! those out behind the input, by the code that carries out the requests of other shards. Only a publish is done at once where its home is
//! here, so that its bytes stay where they were received; not where an engine must keep it first, and not before what was asked earlier.

use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::pace::WARMED;
use crate::client::front::Front;
use crate::client::protocols::Protocols;
use crate::home::{FactContext, Home};
use crate::mail::message::{Publish, Retry};
use crate::mail::{Answer, Ask, Attach, Fact, Outcome, ReplyTo, Span, Verb};

/// A follower's request to a home.
#[derive(Clone, Copy)]
pub(crate) enum Following<'a> {
    /// To begin with this filter.
    Begin(&'a [u8]),
    /// The next page.
    On,
    /// No more.
    End,
}

impl<P: Protocols> Front<P> {
    /// Puts a request into the lane to a home.
    pub(crate) fn ask(&mut self, to: ShardId, ask: impl FnOnce(&mut Vec<u8>) -> Ask) {
        let lane = &mut self.lanes.to[usize::from(to)];
        let ask = ask(&mut lane.bytes);
        lane.asks.push(ask);
    }

    /// Publishes a client's message. The outcome comes at once where `home`, that of this shard, can publish it at once, else as a tell.
    pub(crate) fn publish(
        &mut self,
        home: &mut Option<Home>,
        to: ShardId,
        message: &Publish<'_>,
        answer: Answer,
    ) -> Option<Outcome> {
        self.stats.published += 1;
        self.stats.published_bytes += message.data.len() as u64;
        let at_once = to == self.lanes.me && !self.world.appends() && !self.lanes.has_own_asks();
        if at_once && let Some(home) = home {
            return Some(home.apply_now(&Fact::Publish(message), &mut self.fact_context()));
        }
        self.ask_publish(to, message, answer);
        None
    }

    /// Has a home publish a message that is not counted.
    pub(crate) fn ask_publish(&mut self, to: ShardId, message: &Publish<'_>, answer: Answer) {
        self.work.steps.add(1);
        self.work.steps.add_bytes(message.data.len());
        self.lanes.to[usize::from(to)].publishes += 1;
        self.ask(to, |bytes| Ask::Publish {
            hash: message.hash,
            name: Span::of(bytes, message.name),
            data: Span::of(bytes, message.data),
            headers: message.headers.map(|field| Span::of(bytes, field)),
            retry: message.retry.map(|retry| Retry {
                key: Span::of(bytes, retry.key),
                publisher: retry.publisher,
            }),
            answer,
            client: message.client,
        });
    }

    /// What the home of this shard is given with a fact.
    #[inline]
    pub(crate) fn fact_context(&mut self) -> FactContext<'_> {
        FactContext {
            settings: &self.world.settings,
            rules: &self.world.rules,
            here: &self.matching,
            now: self.now,
            lanes: &mut self.lanes,
        }
    }

    /// Prefetches what publishing to the next topics reads, for those whose home is here. A line without a topic gives an empty name.
    pub(crate) fn warm_topics<'a>(
        &self,
        home: &Option<Home>,
        next: impl FnMut() -> Option<&'a [u8]>,
    ) {
        let large = |home: &&Home| home.is_large(&self.matching);
        let Some(home) = home.as_ref().filter(large) else {
            return;
        };
        let mut topics = [(0, &b""[..]); WARMED];
        let mut count = 0;
        for name in core::iter::from_fn(next)
            .take(WARMED)
            .filter(|name| !name.is_empty())
        {
            let (hash, to) = self.place_of(name);
            if to == self.lanes.me {
                topics[count] = (hash, name);
                count += 1;
            }
        }
        // A single prefetch would have nothing to overlap with.
        if count > 1 {
            home.warm(&topics[..count], &self.matching);
        }
    }

    /// Describes or changes a topic.
    pub(crate) fn ask_verb(&mut self, verb: Verb, name: &[u8], to: ReplyTo) {
        let (hash, home) = self.place_of(name);
        let client = self.conns.get(to.slot).client;
        self.ask(home, |bytes| Ask::Topic {
            verb,
            hash,
            name: Span::of(bytes, name),
            answer: Answer::Full(to),
            client,
        });
    }

    /// Asks the topic's home for messages from the log and a place among its subscribers.
    pub(crate) fn attach(&mut self, attach: Attach) {
        let name = self.topics.name(attach.topic);
        let (_, home) = self.place_of(name);
        let lane = &mut self.lanes.to[usize::from(home)];
        let span = Span::of(&mut lane.bytes, name);
        lane.asks.push(Ask::Attach(attach, span));
    }

    /// Gives a counted subscription back.
    pub(crate) fn leave(&mut self, topic: u32) {
        let (_, home) = self.place_of(self.topics.name(topic));
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        self.ask(home, |_| Ask::Leave {
            hash,
            topic,
            serial,
        });
    }

    /// Passes a follower's request to a home.
    pub(crate) fn ask_interest(&mut self, at: ShardId, to: ReplyTo, what: Following<'_>) {
        self.ask(at, |bytes| match what {
            Following::Begin(filter) => Ask::Follow {
                to,
                filter: Span::of(bytes, filter),
            },
            Following::On => Ask::FollowOn(to),
            Following::End => Ask::Unfollow(to),
        });
    }
}
