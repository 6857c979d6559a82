//! The subscriptions of one connection to topics: the position in each topic, its text, the requests for older messages, and the
//! end.
//!
//! A connection with one topic has the subscription in its row, with the index 0. A connection with several topics has a list of
//! subscriptions. Subscriptions by filter are in `joining`.

use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::base::position::{self, Position, Since};
use crate::base::reason::Reason;
use crate::base::settings::{Limits, Rule};
use crate::budget::admission::Client;
use crate::client::parts::{
    Clients, Connections, Context, Deliveries, Matching, Subscriptions, Topics,
};
use crate::client::presence::{join_presence, leave_presence};
use crate::client::row::{COUNTED, FILTERS, MEMBER, SUBSCRIPTION_LIST};
use crate::client::side::BehindSubscription;
use crate::client::types::ProtocolTypes;
use crate::mail::{Attach, ReplyTo};
use crate::store::slab::NONE;

/// Whether a connection may subscribe to `count` topics and filters, with names of `name_bytes` bytes in all.
///
/// # Errors
/// The limit that was reached.
pub(crate) fn check_subscription_limits(
    limits: &Limits,
    count: usize,
    name_bytes: usize,
) -> Result<(), Reason> {
    if count > limits.subscriptions_max() {
        return Err(Reason::TooManyNames);
    }
    match limits.has_room_for_names(count, name_bytes) {
        true => Ok(()),
        false => Err(Reason::NamesTooLong),
    }
}

/// Removes the connection from all its topics and filters.
pub(crate) fn unsubscribe_from_all<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
) {
    let row = clients.conns.get_mut(slot);
    if row.has_option(SUBSCRIPTION_LIST) {
        row.consumer.options &= !SUBSCRIPTION_LIST;
        let side_row = clients.conns.ensure_side_row(slot);
        side_row.share_entry_bytes = 0;
        for sub in core::mem::take(&mut side_row.list) {
            if sub.topic != NONE {
                end_topic_subscription(
                    clients,
                    subs,
                    slot,
                    (sub.topic, sub.member_place),
                    sub.flags,
                );
            }
        }
        return;
    }
    if row.has_option(FILTERS) {
        row.consumer.options &= !FILTERS;
        return clients.leave_filters(subs, slot);
    }
    if row.consumer.topic == NONE {
        return;
    }
    let topic_and_place = (row.consumer.topic, row.consumer.member_place);
    row.consumer.topic = NONE;
    let flags = core::mem::take(&mut row.consumer.flags);
    end_topic_subscription(clients, subs, slot, topic_and_place, flags);
}

/// The topic of a subscription, or `NONE`.
pub(crate) fn topic_of<P: ProtocolTypes>(conns: &Connections<P>, slot: u32, sub_index: u32) -> u32 {
    let row = conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        return row.consumer.topic;
    }
    conns
        .side_row(slot)
        .list
        .get(sub_index as usize)
        .map_or(NONE, |sub| sub.topic)
}

/// The topics of all subscriptions that have a topic.
pub(crate) fn topics_of<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
) -> impl Iterator<Item = u32> {
    let row = conns.get(slot);
    let has_list = row.has_option(SUBSCRIPTION_LIST) && row.side_row() != NONE;
    let list = has_list.then(|| conns.side_row(slot).list.iter().map(|sub| sub.topic));
    let only_topic = (!row.has_option(SUBSCRIPTION_LIST)).then_some(row.consumer.topic);
    let topics = list.into_iter().flatten().chain(only_topic);
    topics.filter(|topic| *topic != NONE)
}

/// The flags of a subscription.
pub(crate) fn flags_of<P: ProtocolTypes>(
    conns: &mut Connections<P>,
    slot: u32,
    sub_index: u32,
) -> &mut u8 {
    if !conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        return &mut conns.get_mut(slot).consumer.flags;
    }
    &mut conns.side_row_mut(slot).list[sub_index as usize].flags
}

/// Records the offset up to which a connection with several topics has seen one of them.
pub(crate) fn record_seen<P: ProtocolTypes>(
    conns: &mut Connections<P>,
    slot: u32,
    sub_index: u32,
    offset: u64,
    epoch: u32,
) {
    let row = conns.get(slot);
    if row.has_option(SUBSCRIPTION_LIST) {
        let sub = &mut conns.side_row_mut(slot).list[sub_index as usize];
        (sub.offset, sub.epoch) = (offset, epoch);
    }
}

/// The number of a connection's subscriptions, with the unused entries of its list.
pub(crate) fn subscription_count<P: ProtocolTypes>(conns: &Connections<P>, slot: u32) -> u32 {
    let row = conns.get(slot);
    if row.has_option(SUBSCRIPTION_LIST) {
        conns.side_row(slot).list.len() as u32
    } else {
        1
    }
}

/// The rule of a topic.
pub(crate) fn rule_of<'a>(topics: &Topics, ctx: &'a Context, topic: u32) -> &'a Rule {
    let rules = &ctx.world.rules;
    rules.get(rules.number_for(topics.name(topic)))
}

impl<P: ProtocolTypes> Clients<P> {
    /// Writes the position of a connection that has just seen `offset`.
    pub(crate) fn write_position(
        &self,
        matching: &Matching,
        deliveries: &Deliveries,
        slot: u32,
        offset: u64,
        out: &mut Vec<u8>,
    ) {
        let row = self.conns.get(slot);
        if row.has_option(FILTERS) {
            return self.write_filter_position(matching, deliveries, slot, &[], out);
        }
        if !row.has_option(SUBSCRIPTION_LIST) {
            position::write(out, self.ctx.position_at(offset));
            return;
        }
        let side_row = self.conns.side_row(slot);
        let seen = side_row.list.iter();
        let seen = seen.map(|sub| Position::new(sub.epoch, sub.offset));
        position::write_set(out, side_row.name_set_hash, seen);
    }
}

/// A request for all messages of a topic from `since` on, for a subscriber that the home (the shard that keeps the topic) does not
/// count. Callers change fields as needed.
pub(crate) fn page_request<P: ProtocolTypes>(
    clients: &Clients<P>,
    topics: &Topics,
    topic: u32,
    to: ReplyTo,
    since: Since,
) -> Attach {
    let row = topics.get(topic);
    Attach {
        hash: row.hash,
        topic,
        serial: row.serial,
        to,
        since,
        poll: false,
        messages_max: u32::MAX,
        deflate: false,
        is_next_page: false,
        read_only: false,
        retained: false,
        client: Client::NOBODY,
        party: clients.party(to.slot),
    }
}

/// Requests the next page (a bounded run of past messages) of a topic, after `seen`, of at most `messages_max` messages. `deflate`: the
/// page is to be compressed. The answer names `reply_part`, by which the connection's protocol finds the subscription. If the home does not
/// count the subscription, since its topic was deleted, this subscribes again.
pub(crate) fn request_next_page<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    seen: &BehindSubscription,
    reply_part: u32,
    messages_max: u32,
    deflate: bool,
) {
    let topic = topic_of(&clients.conns, slot, seen.sub_index);
    let since = Since::At(Position::new(seen.epoch, seen.offset));
    let to = clients.conns.reply_to(slot, reply_part);
    let is_next_page = *flags_of(&mut clients.conns, slot, seen.sub_index) & COUNTED != 0;
    subs.topics.get_mut(topic).pending_attaches += u32::from(!is_next_page);
    let attach = Attach {
        messages_max,
        deflate,
        is_next_page,
        ..page_request(clients, &subs.topics, topic, to, since)
    };
    subs.attach(&clients.ctx, attach);
    if planted::is(Fault::DoubleResume) {
        subs.attach(&clients.ctx, attach);
    }
}

/// A subscription that its topic's home counts becomes a member, or stops being one, as the rule of the topic says.
pub(crate) fn update_presence<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    (topic, sub_index): (u32, u32),
) {
    let wanted = rule_of(&subs.topics, &clients.ctx, topic).presence;
    let flags = flags_of(&mut clients.conns, slot, sub_index);
    match (wanted, *flags & MEMBER != 0) {
        (true, false) => {
            *flags |= MEMBER;
            join_presence(clients, subs, slot, topic);
        }
        (false, true) => {
            *flags &= !MEMBER;
            leave_presence(clients, subs, slot, topic);
        }
        _ => {}
    }
}

/// Ends a subscription to a topic, with the flags that it had. This is the only place where one ends.
pub(crate) fn end_topic_subscription<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    (topic, place): (u32, u32),
    flags: u8,
) {
    if let Some(moved) = subs.topics.remove_member(topic, place) {
        clients.conns.set_member_place(topic, &moved);
    }
    if flags & MEMBER != 0 {
        leave_presence(clients, subs, slot, topic);
    }
    if flags & COUNTED != 0 && !planted::is(Fault::NoDetach) {
        subs.detach(&clients.ctx, topic);
    }
    subs.topics.free_if_unused(topic);
}
