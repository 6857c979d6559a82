//! The requests of connections to homes, and the short way when the home is on this shard.

use crate::base::ids::ShardId;
use crate::home::{Around, Home};
use crate::mail::message::{Publish, Retry};
use crate::mail::{Answer, Ask, Attach, Fact, Outcome, ReplyTo, Span, Verb};
use crate::protocol::front::Front;

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

impl Front {
    /// Whether this home is here and carries out at once what it is asked.
    pub(super) fn is_at_hand(&self, home: ShardId) -> bool {
        home == self.lanes.me && !self.world.appends()
    }

    /// Publishes a client's message; the outcome comes at once when the home is at hand, else as a tell.
    pub(crate) fn publish(
        &mut self,
        to: ShardId,
        message: &Publish<'_>,
        answer: Answer,
    ) -> Option<Outcome> {
        self.stats.published += 1;
        self.stats.published_bytes += message.data.len() as u64;
        self.hand_on(to, message, answer)
    }

    /// The same for a message that is not counted.
    #[inline]
    pub(crate) fn hand_on(
        &mut self,
        to: ShardId,
        message: &Publish<'_>,
        answer: Answer,
    ) -> Option<Outcome> {
        if self.is_at_hand(to) {
            return Some(self.change_here(&Fact::Publish(message)));
        }
        self.work.steps.add(1);
        self.work.steps.add_bytes(message.data.len());
        self.lanes.to[to as usize].publishes += 1;
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
        None
    }

    /// The home of this shard, and what it is given with a fact.
    #[inline]
    pub(crate) fn home_here(&mut self) -> (&mut Home, Around<'_>) {
        let home = self.home.as_mut().expect("only homes are asked");
        let around = Around {
            settings: &self.world.settings,
            rules: &self.world.rules,
            here: &self.matching,
            now: self.now,
            lanes: &mut self.lanes,
        };
        (home, around)
    }

    /// Admits a fact at the home of this shard and applies it, at once.
    #[inline]
    pub(crate) fn change_here(&mut self, fact: &Fact<'_>) -> Outcome {
        let (home, mut around) = self.home_here();
        home.apply_now(fact, &mut around)
    }

    /// Makes a change that stands in no log, and was admitted before.
    pub(crate) fn pass_here(&mut self, fact: &Fact<'_>) -> Outcome {
        let (home, mut around) = self.home_here();
        home.pass(fact, &mut around)
    }

    /// Describes or changes a topic; the outcome comes as with [`Front::publish`].
    pub(crate) fn topic_verb(&mut self, verb: Verb, name: &[u8], to: ReplyTo) -> Option<Outcome> {
        let (hash, home) = self.place_of(name);
        let client = self.conns.get(to.slot).client;
        if !self.is_at_hand(home) {
            self.ask(home, |bytes| Ask::Topic {
                verb,
                hash,
                name: Span::of(bytes, name),
                answer: Answer::Full(to),
                client,
            });
            return None;
        }
        Some(match verb {
            Verb::Info => {
                let (here, around) = self.home_here();
                here.describe(hash, name, around.rules, around.now)
            }
            Verb::Change(change) => self.change_here(&Fact::Topic {
                change,
                hash,
                name,
                client,
            }),
        })
    }

    /// Asks the topic's home for messages from the log and a place among its subscribers.
    pub(crate) fn attach(&mut self, attach: Attach) {
        let name = self.topics.name(attach.topic);
        let (_, home) = self.place_of(name);
        if self.is_at_hand(home) {
            let here = self.home.as_mut().expect("a home has one");
            here.attach(
                home,
                &attach,
                name,
                &self.world.rules,
                self.now,
                &mut self.lanes,
            );
            return;
        }
        let lane = &mut self.lanes.to[home as usize];
        let span = Span::of(&mut lane.bytes, name);
        lane.asks.push(Ask::Attach(attach, span));
    }

    /// Gives a counted subscription back.
    pub(crate) fn leave(&mut self, topic: u32) {
        let (_, home) = self.place_of(self.topics.name(topic));
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        if home == self.lanes.me {
            self.home
                .as_mut()
                .expect("a home has one")
                .leave(home, hash, topic, serial, self.now);
        } else {
            self.ask(home, |_| Ask::Leave {
                hash,
                topic,
                serial,
            });
        }
    }

    /// Passes a follower's request to a home.
    pub(crate) fn ask_interest(&mut self, at: ShardId, to: ReplyTo, what: Following<'_>) {
        if at == self.lanes.me {
            let home = self.home.as_mut().expect("a home has one");
            return match what {
                Following::Begin(filter) => home.follow(at, to, filter),
                Following::On => home.follow_on(at, to),
                Following::End => home.unfollow(at, to),
            };
        }
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
