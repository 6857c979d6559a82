//! Sends the requests of connections to homes (the parts of shards that keep topics).
//!
//! A request goes into the lane (the ordered queue of mail) to the home, even if the home is on the same shard. The shard processes
//! such requests after the input, by the same code as requests of other shards. The exception is a publish to the shard's own home:
//! it is applied at once, so that its bytes need no copy. It waits in the lane if an engine (a durable log) must store it first, or
//! if earlier requests wait.

use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::turn_limits::PREFETCH_ROWS;
use crate::client::parts::{Clients, Context, Lanes, Matching, Subscriptions, Work};
use crate::client::types::ProtocolTypes;
use crate::home::{Home, HomeContext};
use crate::mail::message::{DedupKey, Headers, Publish};
use crate::mail::{
    Ask, Attach, Fact, Outcome, ReplyTo, Span, TopicRequest, WantedAnswer, properties,
};

impl Lanes {
    /// Puts a request into the lane to a home.
    pub(crate) fn ask(&mut self, to: ShardId, ask: impl FnOnce(&mut Vec<u8>) -> Ask) {
        let lane = &mut self.to[usize::from(to)];
        let ask = ask(&mut lane.bytes);
        lane.asks.push(ask);
    }

    /// Sends a publish to a home, without counting it in the shard's statistics.
    pub(crate) fn push_publish(
        &mut self,
        work: &Work,
        to: ShardId,
        message: &Publish<'_>,
        answer: WantedAnswer,
    ) {
        work.steps.add(1);
        work.steps.add_bytes(message.data.len());
        self.to[usize::from(to)].publishes += 1;
        self.ask(to, |bytes| Ask::Publish {
            hash: message.hash,
            name: Span::append(bytes, message.name),
            data: Span::append(bytes, message.data),
            headers: message.headers.map(|field| Span::append(bytes, field)),
            dedup: message.dedup.map(|dedup| DedupKey {
                key: Span::append(bytes, dedup.key),
                publisher: dedup.publisher,
            }),
            answer,
            client: message.client,
        });
    }
}

/// Publishes a message of this connection's client, with the user's name if the topic's rule demands it. See [`publish`].
pub(crate) fn publish_as<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    home: &mut Option<Home>,
    slot: u32,
    to: ShardId,
    message: &Publish<'_>,
    answer: WantedAnswer,
) -> Option<Outcome> {
    let attributes = message.headers.attributes;
    let Some(attributes) = clients.with_publisher(slot, message.name, attributes) else {
        return publish(clients, subs, home, to, message, answer);
    };
    let headers = Headers {
        attributes: &attributes[..],
        ..message.headers
    };
    let named = Publish {
        headers,
        ..*message
    };
    publish(clients, subs, home, to, &named, answer)
}

/// Publishes a message. Returns the outcome if `home`, on this shard, can apply the message at once. Else the outcome comes later,
/// as mail from the home.
pub(crate) fn publish<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    home: &mut Option<Home>,
    to: ShardId,
    message: &Publish<'_>,
    answer: WantedAnswer,
) -> Option<Outcome> {
    clients.meter.stats.published += 1;
    clients.meter.stats.published_bytes += message.data.len() as u64;
    let ctx = &clients.ctx;
    let at_once = to == ctx.own_shard && !ctx.world.appends() && !subs.lanes.has_own_asks();
    // While the logs exceed their budget because of the last message, this message waits in its lane.
    let home = home.as_mut().filter(|home| !home.logs.is_past_budget());
    if at_once && let Some(home) = home {
        return Some(home.admit_and_apply(&Fact::Publish(message), &mut home_context(subs, ctx)));
    }
    subs.lanes
        .push_publish(&clients.meter.work, to, message, answer);
    None
}

/// The state of this shard that its home needs to apply a fact (a publish or a change of a topic) or a request.
#[inline]
pub(crate) fn home_context<'a>(subs: &'a mut Subscriptions, ctx: &'a Context) -> HomeContext<'a> {
    HomeContext {
        settings: &ctx.world.settings,
        rules: &ctx.world.rules,
        local_filters: &subs.matching,
        now: ctx.now,
        lanes: &mut subs.lanes,
    }
}

/// Whether the last publish has taken the home's logs over their budget, or its topic over its limits. Then messages must be
/// removed before the next request.
pub(crate) fn is_past_budget(home: &Option<Home>) -> bool {
    (home.as_ref()).is_some_and(|home| home.logs.is_past_budget())
}

/// Removes some messages if the last publish has exceeded a limit. Returns whether more must be removed: then requests wait.
#[inline]
pub(crate) fn remove_excess_messages(home: &mut Option<Home>, ctx: &Context) -> bool {
    (home.as_mut()).is_some_and(|home| home.make_some_room(&ctx.world.rules, ctx.now))
}

/// Prefetches the rows of the next topics to be published whose home is on this shard. An empty name stands for a line without a
/// topic.
pub(crate) fn prefetch_topics<'a>(
    matching: &Matching,
    ctx: &Context,
    home: &Option<Home>,
    next: impl FnMut() -> Option<&'a [u8]>,
) {
    let large = |home: &&Home| home.is_large(matching);
    let Some(home) = home.as_ref().filter(large) else {
        return;
    };
    let mut topics = [(0, &b""[..]); PREFETCH_ROWS];
    let mut count = 0;
    for name in core::iter::from_fn(next)
        .take(PREFETCH_ROWS)
        .filter(|name| !name.is_empty())
    {
        let (hash, to) = ctx.hash_and_home_of(name);
        if to == ctx.own_shard {
            topics[count] = (hash, name);
            count += 1;
        }
    }
    // Prefetching saves time only if the cache misses of several topics overlap.
    if count > 1 {
        home.prefetch(&topics[..count], matching);
    }
}

/// Sends a request about a topic (info, creation, deletion) to its home.
pub(crate) fn send_topic_request<P: ProtocolTypes>(
    clients: &Clients<P>,
    lanes: &mut Lanes,
    request: TopicRequest,
    name: &[u8],
    to: ReplyTo,
) {
    let (hash, home) = clients.ctx.hash_and_home_of(name);
    let client = clients.conns.get(to.slot).consumer.client;
    lanes.ask(home, |bytes| Ask::Topic {
        request,
        hash,
        name: Span::append(bytes, name),
        answer: WantedAnswer::OutcomeAndInfo(to),
        client,
    });
}

impl<P: ProtocolTypes> Clients<P> {
    /// The message's attributes with the name of the client's user. `None` if the topic's rule does not demand the name, or the
    /// client is anonymous.
    #[inline]
    pub(crate) fn with_publisher(
        &self,
        slot: u32,
        name: &[u8],
        attributes: &[u8],
    ) -> Option<Vec<u8>> {
        match self.ctx.world.rules.any_names_publisher() {
            true => self.add_publisher(slot, name, attributes),
            false => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn add_publisher(&self, slot: u32, name: &[u8], attributes: &[u8]) -> Option<Vec<u8>> {
        let (grants, _) = self.conns.grants.get(slot)?;
        let user = Some(grants.user()).filter(|user| !user.is_empty())?;
        let is_named = (self.ctx.world.rules).names_publisher(name, &self.meter.work.steps);
        is_named.then(|| properties::with_publisher(attributes, user))
    }
}

impl Subscriptions {
    /// Subscribes at the topic's home, and requests messages from the log.
    pub(crate) fn attach(&mut self, ctx: &Context, attach: Attach) {
        let name = self.topics.name(attach.topic);
        let (_, home) = ctx.hash_and_home_of(name);
        let lane = &mut self.lanes.to[usize::from(home)];
        let span = Span::append(&mut lane.bytes, name);
        lane.asks.push(Ask::Attach(attach, span));
    }

    /// Ends a subscription that the topic's home counts.
    pub(crate) fn detach(&mut self, ctx: &Context, topic: u32) {
        let (_, home) = ctx.hash_and_home_of(self.topics.name(topic));
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        self.lanes.ask(home, |_| Ask::Leave {
            hash,
            topic,
            serial,
        });
    }
}
