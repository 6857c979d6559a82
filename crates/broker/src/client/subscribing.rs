//! Subscribes a connection, for every protocol. This is the only place where a subscription begins: it is entered in the connection's row or list and in
//! the shard's tables, and the homes (the parts of shards that keep topics) are asked for their first page (a bounded run of past messages).
//!
//! Before this, the protocol has checked that the name is valid, that the client has the right, and that there is room. Afterwards it gets the pages and
//! the live messages (sent when they are published), or the refusal of a home.

use alloc::vec::Vec;

use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::joining::join_filters;
use crate::client::list::{
    add_to_list, count_asked_pages, free_index, index_with_serial, subscription_at_mut,
};
use crate::client::parts::{Clients, Subscriptions, Topics};
use crate::client::row::SUBSCRIPTION_LIST;
use crate::client::side::ListedSubscription;
use crate::client::subscriptions::page_request;
use crate::client::types::ProtocolTypes;
use crate::mail::Attach;
use crate::store::slab::NONE;

/// A subscription that begins.
#[derive(Clone, Copy)]
pub(crate) struct SubscribeRequest<'a> {
    pub target: SubscribeTarget<'a>,
    /// Where it begins: in the topic, or for filters in each partition.
    pub since: &'a [Since],
    /// What the home is asked for besides the subscription.
    pub first_page: FirstPage,
    /// Whether a home counts it, and who is charged.
    pub kind: SubscriptionKind,
}

/// What a subscription is to.
#[derive(Clone, Copy)]
pub(crate) enum SubscribeTarget<'a> {
    /// One topic.
    Topic(&'a [u8]),
    /// Filters that have one position together.
    Filters(&'a [&'a [u8]]),
}

/// How much of the log the first page of a subscription has.
#[derive(Clone, Copy)]
pub(crate) struct FirstPage {
    /// At most this number of messages.
    pub messages_max: u32,
    /// Only the first message, for a poll.
    pub is_poll: bool,
    /// Compressed.
    pub compress: bool,
    /// The topic's retained message or latest values too.
    pub with_retained: bool,
}

/// The kinds of subscriptions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscriptionKind {
    /// A new one. The topic's home charges the client if the topic begins with it.
    New,
    /// One that a session had before. It was charged when it was made.
    Resumed,
    /// Reads one page. The home does not count it.
    Once,
}

impl FirstPage {
    /// All messages, uncompressed.
    pub(crate) const ALL: FirstPage = FirstPage {
        messages_max: u32::MAX,
        is_poll: false,
        compress: false,
        with_retained: false,
    };
}

/// Subscribes a connection. The subscription is in the list if the connection has one ([`SUBSCRIPTION_LIST`]), else in the row. `protocol_state` is the protocol's state in the
/// list. Returns the index in the list.
///
/// # Errors
/// The shard has no room for a filter. Nothing is subscribed then.
pub(crate) fn subscribe<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    request: &SubscribeRequest<'_>,
    protocol_state: P::SubscriptionState,
) -> Result<u32, Reason> {
    match request.target {
        SubscribeTarget::Topic(name) => Ok(subscribe_to_topic(
            clients,
            subs,
            slot,
            name,
            request,
            protocol_state,
        )),
        SubscribeTarget::Filters(filters) => {
            subscribe_to_filters(clients, subs, slot, filters, request, protocol_state)
        }
    }
}

fn subscribe_to_topic<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    name: &[u8],
    request: &SubscribeRequest<'_>,
    protocol_state: P::SubscriptionState,
) -> u32 {
    let since = request.since.first().copied().unwrap_or(Since::Default);
    let (hash, _) = clients.ctx.hash_and_home_of(name);
    let topic = subs.topics.find_or_create(hash, name);
    let member_place = subs.topics.add_member(topic, slot);
    let sub_index = if clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        // Until a page comes, its position is the one that the client has named. Without one it has seen nothing.
        let seen = match since {
            Since::At(position) => position,
            _ => Position::new(!clients.ctx.world.epoch, 0),
        };
        let sub = ListedSubscription {
            topic,
            member_place,
            offset: seen.offset,
            epoch: seen.epoch,
            protocol_state,
            ..ListedSubscription::default()
        };
        add_to_list(&mut clients.conns, slot, sub)
    } else {
        let row = clients.conns.get_mut(slot);
        (row.consumer.topic, row.consumer.member_place) = (topic, member_place);
        0
    };
    let is_counted = request.kind != SubscriptionKind::Once;
    subs.topics.get_mut(topic).pending_attaches += u32::from(is_counted);
    let FirstPage {
        messages_max,
        is_poll,
        compress,
        with_retained,
    } = request.first_page;
    let client = match request.kind {
        SubscriptionKind::New | SubscriptionKind::Once => clients.conns.get(slot).consumer.client,
        SubscriptionKind::Resumed => Client::NOBODY,
    };
    let ask = Attach {
        messages_max,
        poll: is_poll,
        deflate: compress,
        retained: with_retained,
        client,
        is_next_page: !is_counted,
        read_only: !is_counted,
        ..counted_page_request(clients, &subs.topics, slot, sub_index, topic, since)
    };
    subs.attach(&clients.ctx, ask);
    sub_index
}

/// Filters of a connection with a list have an entry there, and are a group of their own. Otherwise they are the connection's only group.
fn subscribe_to_filters<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    filters: &[&[u8]],
    request: &SubscribeRequest<'_>,
    protocol_state: P::SubscriptionState,
) -> Result<u32, Reason> {
    let is_listed = clients.conns.get(slot).has_option(SUBSCRIPTION_LIST);
    let sub_index = match is_listed {
        true => {
            let sub = ListedSubscription {
                topic: NONE,
                // It has no group yet.
                filter: u32::MAX,
                protocol_state,
                ..ListedSubscription::default()
            };
            add_to_list(&mut clients.conns, slot, sub)
        }
        false => 0,
    };
    let filters: Vec<(&[u8], u32)> = filters.iter().map(|filter| (*filter, sub_index)).collect();
    let (since, poll) = (request.since, request.first_page.is_poll);
    let joined = join_filters(clients, subs, slot, &filters, since, poll);
    if is_listed && joined.is_err() {
        free_index(&mut clients.conns, slot, sub_index);
    }
    let serial = joined?;
    if is_listed && let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) {
        sub.filter = serial + 1;
    }
    let partitions = clients.ctx.world.partitions.into();
    count_asked_pages(&mut clients.conns, slot, partitions);
    Ok(sub_index)
}

/// The request for a page of a subscription's topic. Counts the page.
pub(crate) fn counted_page_request<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    topics: &Topics,
    slot: u32,
    sub_index: u32,
    topic: u32,
    since: Since,
) -> Attach {
    count_asked_pages(&mut clients.conns, slot, 1);
    let name = index_with_serial(&clients.conns, slot, sub_index);
    let to = clients.conns.reply_to(slot, name);
    page_request(clients, topics, topic, to, since)
}
