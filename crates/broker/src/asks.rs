//! The home side of the shard: what carriers ask for, and the short way when the home is here.

use alloc::vec::Vec;

use crate::deliver::WARMED;
use crate::home::{Home, Publish};
use crate::lanes::{Asked, Lanes};
use crate::mail::{Answer, Ask, Attach, Outcome, ReplyTo, ShardId, Span, Tell, Verb};
use crate::sessions::Claim;
use crate::shard::Shard;

/// Asks of one lane that are done before it is the next one's turn.
const ASKS_TOGETHER: usize = 4 * WARMED;

impl Shard {
    /// Takes in what another shard asks. It is done in order, now as far as the turn goes and what is left in the next ones.
    pub(crate) fn take_asks(&mut self, from: ShardId, asks: Vec<Ask>, bytes: Vec<u8>, stamp: u64) {
        // Whoever has asked nothing waits for nothing.
        let spent = !asks.is_empty() && self.is_spent();
        let asked = Asked {
            asks: asks.into_iter(),
            bytes,
            stamp,
        };
        let lane = &mut self.lanes.to[from as usize];
        if !lane.waiting.is_empty() || spent {
            return lane.waiting.push_back(asked);
        }
        self.all_asked(from, asked, usize::MAX);
    }

    /// Goes on with asks that wait, some of one lane; says whether there were any.
    pub(crate) fn go_on_with_asks(&mut self) -> bool {
        let Some((from, asked)) = self.lanes.next_asked() else {
            return false;
        };
        self.all_asked(from, asked, ASKS_TOGETHER);
        true
    }

    /// Does what another shard asks, in order, about so many of them at most; the rest waits, first of its lane.
    fn all_asked(&mut self, from: ShardId, mut asked: Asked, most: usize) {
        self.lanes.read_at = asked.stamp;
        let mut done = 0;
        while !asked.asks.as_slice().is_empty() && done < most && (done == 0 || !self.is_spent()) {
            self.warm_asks(asked.asks.as_slice(), &asked.bytes);
            for ask in asked.asks.by_ref().take(WARMED) {
                self.work.steps.add(1);
                self.asked(from, ask, &asked.bytes);
                done += 1;
                if self.is_spent() {
                    break;
                }
            }
        }
        self.lanes.read_at = self.lanes.stamp;
        let lane = &mut self.lanes.to[from as usize];
        if asked.asks.as_slice().is_empty() {
            lane.credit_bytes += asked.bytes.len();
        } else {
            lane.waiting.push_front(asked);
        }
    }

    /// Touches what the publishes among the next asks read: of [`WARMED`] asks.
    fn warm_asks(&self, asks: &[Ask], bytes: &[u8]) {
        let large = |home: &&Home| home.is_large(&self.matching);
        let Some(home) = self.home.as_ref().filter(large) else {
            return;
        };
        let mut topics = [(0, &b""[..]); WARMED];
        let mut count = 0;
        for ask in asks.iter().take(WARMED) {
            if let Ask::Publish { hash, name, .. } = ask {
                topics[count] = (*hash, name.in_bytes(bytes));
                count += 1;
            }
        }
        if count > 1 {
            home.warm(&topics[..count], &self.matching);
        }
    }

    /// Does what another shard asks.
    pub(crate) fn asked(&mut self, from: ShardId, ask: Ask, bytes: &[u8]) {
        match ask {
            Ask::SessionOpen {
                to,
                hash,
                client,
                clean,
                owner,
            } => {
                let claim = Claim {
                    shard: from,
                    to,
                    clean,
                    owner,
                };
                self.session_open(claim, hash, &client);
            }
            Ask::SessionClose(farewell) => self.session_close(*farewell),
            ask => self.home_asked(from, &ask, bytes),
        }
    }

    fn home_asked(&mut self, from: ShardId, ask: &Ask, bytes: &[u8]) {
        let home = self.home.as_mut().expect("only homes are asked");
        let (world, now, lanes) = (&self.world, self.now, &mut self.lanes);
        match ask {
            Ask::Publish {
                hash,
                name,
                data,
                content_type,
                event,
                key,
                attributes,
                ttl_s,
                qos,
                retain,
                binary,
                idempotency_key,
                answer,
                client,
            } => {
                let message = Publish {
                    hash: *hash,
                    name: name.in_bytes(bytes),
                    data: data.in_bytes(bytes),
                    content_type: content_type.in_bytes(bytes),
                    event: event.in_bytes(bytes),
                    key: key.in_bytes(bytes),
                    attributes: attributes.in_bytes(bytes),
                    qos: *qos,
                    retain: *retain,
                    ttl_s: *ttl_s,
                    binary: *binary,
                    idempotency_key: idempotency_key.in_bytes(bytes),
                    client: *client,
                };
                let outcome = home.publish_once(
                    &message,
                    &world.settings,
                    &world.rules,
                    &self.matching,
                    now,
                    lanes,
                );
                if matches!((answer, outcome), (Answer::None, Outcome::Full(_))) {
                    // Nobody else hears of it.
                    self.stats.dropped += 1;
                }
                reply(lanes, from, *answer, outcome);
            }
            Ask::Attach(attach, name) => {
                home.attach(from, attach, name.in_bytes(bytes), &world.rules, now, lanes);
            }
            Ask::AttachFilters(attach, names) => {
                let names = names.in_bytes(bytes);
                home.attach_filters(from, attach, names, &world.rules, now, lanes);
            }
            Ask::LeaveFilter(filter) => home.leave_filter(from, filter.in_bytes(bytes)),
            Ask::Leave {
                hash,
                topic,
                serial,
            } => home.leave(from, *hash, *topic, *serial, now),
            Ask::Topic {
                verb,
                hash,
                name,
                to,
                client,
            } => {
                let name = name.in_bytes(bytes);
                let outcome = home.verb(*verb, *hash, name, *client, &world.rules, now, lanes);
                lanes.tell(from, Tell::Outcome(*to, outcome));
            }
            Ask::KeepLog { hash, name, on } => {
                home.keep_log(*hash, name.in_bytes(bytes), *on, now);
            }
            Ask::JoinGroup {
                to,
                name,
                filter,
                credit,
                counts,
            } => {
                let of = (&filter[..], &name[..]);
                home.group_join(from, *to, of, *credit, *counts, lanes);
            }
            Ask::GroupCredit { group, to, count } => {
                home.group_credit(from, *group, *to, *count);
            }
            Ask::LeaveGroup(leave) => home.group_leave(from, leave),
            Ask::ReleaseGroup { name, filter } => home.group_release(filter, name),
            Ask::SessionOpen { .. } | Ask::SessionClose(_) => {
                unreachable!("sessions are no topics")
            }
            Ask::Fence(to) => lanes.tell(from, Tell::Fenced(*to)),
            Ask::Follow { to, filter } => home.follow(from, *to, filter.in_bytes(bytes)),
            Ask::FollowOn(to) => home.follow_on(from, *to),
            Ask::Unfollow(to) => home.unfollow(from, *to),
        }
    }

    /// Publishes; the outcome comes at once when the home is here, else as a tell.
    pub(crate) fn publish(
        &mut self,
        to: ShardId,
        message: &Publish<'_>,
        answer: Answer,
    ) -> Option<Outcome> {
        self.stats.published += 1;
        self.stats.published_bytes += message.data.len() as u64;
        if to == self.lanes.me {
            let home = self.home.as_mut().expect("a home has one");
            let world = &self.world;
            return Some(home.publish_once(
                message,
                &world.settings,
                &world.rules,
                &self.matching,
                self.now,
                &mut self.lanes,
            ));
        }
        self.work.steps.add(1);
        self.work.steps.add_bytes(message.data.len());
        self.ask(to, |bytes| Ask::Publish {
            hash: message.hash,
            name: Span::of(bytes, message.name),
            data: Span::of(bytes, message.data),
            content_type: Span::of(bytes, message.content_type),
            event: Span::of(bytes, message.event),
            key: Span::of(bytes, message.key),
            attributes: Span::of(bytes, message.attributes),
            qos: message.qos,
            retain: message.retain,
            ttl_s: message.ttl_s,
            binary: message.binary,
            idempotency_key: Span::of(bytes, message.idempotency_key),
            answer,
            client: message.client,
        });
        None
    }

    /// Creates, describes or deletes; the outcome comes as with [`Shard::publish`].
    pub(crate) fn topic_verb(&mut self, verb: Verb, name: &[u8], to: ReplyTo) -> Option<Outcome> {
        let (hash, home) = self.place_of(name);
        let client = self.conns.get(to.slot).client;
        if home != self.lanes.me {
            self.ask(home, |bytes| Ask::Topic {
                verb,
                hash,
                name: Span::of(bytes, name),
                to,
                client,
            });
            return None;
        }
        let here = self.home.as_mut().expect("a home has one");
        let (rules, now) = (&self.world.rules, self.now);
        Some(here.verb(verb, hash, name, client, rules, now, &mut self.lanes))
    }

    /// Asks the topic's home for the past and a place among its subscribers.
    pub(crate) fn attach(&mut self, attach: Attach) {
        let name = self.topics.name(attach.topic);
        let (_, home) = self.place_of(name);
        if home == self.lanes.me {
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
}

/// What a follower wants of a home.
#[derive(Clone, Copy)]
pub(crate) enum Following<'a> {
    /// To begin with this filter.
    Begin(&'a [u8]),
    /// The next page.
    On,
    /// No more.
    End,
}

impl Shard {
    /// Speaks to a home for a follower.
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

fn reply(lanes: &mut Lanes, from: ShardId, answer: Answer, outcome: Outcome) {
    match answer {
        Answer::Full(to) => lanes.tell(from, Tell::Outcome(to, outcome)),
        Answer::Failure(to) if !matches!(outcome, Outcome::Done(_)) => {
            lanes.tell(from, Tell::Outcome(to, outcome));
        }
        Answer::Failure(_) | Answer::None => {}
    }
}
