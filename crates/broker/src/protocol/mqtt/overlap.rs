//! Decides which of a client's overlapping subscriptions sends a message while some of them read from the log, so that the message is sent once, with the
//! highest QoS and all identifiers (MQTT 5.0 section 3.3.4).
//!
//! While all subscriptions are live, a message reaches all of them at once, and none of this state exists. The state begins when a subscription falls behind,
//! when a new one is not live at once, or when a session is resumed. From then on each subscription has a [`ReadStart`] in each partition, and gets every
//! message after that offset. Among the subscriptions that match a message, those with the earliest start are the senders: the first of them that reaches
//! the message sends it. All others skip messages that a sender has passed, and wait at messages that no sender has reached. So a topic keeps its order, and
//! no position is ahead of the client.
//!
//! Only QoS 1 and 2 take part. QoS 0 never waits, since its log may not keep the messages.
//!
//! Not here: retained messages, which each new subscription gets, and shared subscriptions.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::work::FILTERS_PER_STEP;
use crate::client::codec::Message;
use crate::client::joining::filter_subscriptions;
use crate::client::list::{self, subscription_list};
use crate::client::matches::seen_offset;
use crate::client::outbox::Packets;
use crate::client::row::LIVE;
use crate::filters::matching::Group;
use crate::protocol::front::{
    Clients, Connections, Context, Deliveries, Matching, Sub, Subscriptions, Topics,
};
use crate::protocol::mqtt::client::{self, mqtt_state_mut};
use crate::protocol::mqtt::options::{NO_LOCAL, qos};
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, DeliveryResult, write_publish};
use crate::protocol::mqtt::read_positions::{ReadStart, ReadStarts};
use crate::protocol::mqtt::subscription::find_subscription;
use crate::store::slab::NONE;

/// New subscriptions of a client with more subscriptions than this may send a message that another one has sent, until all are live. With more, the time
/// of each SUBSCRIBE would be long.
const COMPARED_MAX: usize = 256;

/// The subscriptions that match a message, and what those that have reached it do.
pub(super) struct Overlap {
    pub subscriptions: Vec<u32>,
    pub turn: Turn,
}

/// What a subscription that has reached a message does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It sends the message.
    Send,
    /// Another subscription has sent the message.
    Skip,
    /// Another subscription will send the message.
    Wait,
}

/// Sends a message that a subscription has reached, with the options of all subscriptions that match it. If another subscription sends it, skips the
/// message if that one has sent it, and else waits.
pub(super) fn write_in_turn(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    (slot, sub_index): (u32, u32),
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
    out: &mut Packets,
) -> DeliveryResult {
    let found = find_overlap(clients, subs, deliveries, slot, &[sub_index], message);
    let Some(found) = found.filter(|found| found.subscriptions.contains(&sub_index)) else {
        return write_publish(clients, slot, delivery, message, out);
    };
    match found.turn {
        Turn::Send => {}
        Turn::Skip => return DeliveryResult::Skipped,
        Turn::Wait => return DeliveryResult::Later,
    }
    let mut identifiers = Vec::new();
    let options = combined_options(
        &clients.conns,
        slot,
        &found.subscriptions,
        message,
        &mut identifiers,
    );
    let delivery = DeliveryOptions {
        // The subscription with the earliest start sends it.
        options: options.unwrap_or(delivery.options),
        identifiers: &identifiers,
        ..*delivery
    };
    write_publish(clients, slot, &delivery, message, out)
}

/// Sets the starts of a resumed subscription: one offset for its topic, or one for each partition. [`sort_starts`] must follow when those of all
/// subscriptions are set.
pub(super) fn set_starts(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    filter: &[u8],
    seen: &[u64],
) {
    let Some(sub_index) = find_subscription(clients, subs, slot, filter) else {
        return;
    };
    let partition = clients.ctx.partition_of(filter);
    let has_wildcard =
        list::sub(&clients.conns, slot, sub_index).is_some_and(|sub| sub.filter != 0);
    if has_wildcard && seen.len() != usize::from(clients.ctx.world.partitions) {
        // The positions come from a server with another number of partitions, so they are not valid here.
        return;
    }
    let first_partition = if has_wildcard { 0 } else { partition };
    let starts = &mut mqtt_state_mut(&mut clients.conns, slot).starts;
    starts.append(sub_index, (first_partition..).zip(seen.iter().copied()));
}

/// Sorts the starts of all resumed subscriptions.
pub(super) fn sort_starts(clients: &mut Clients, slot: u32) {
    let count = mqtt_state_mut(&mut clients.conns, slot).starts.sort();
    clients.meter.work.steps.add(count / FILTERS_PER_STEP);
}

/// The starts of a subscription whose positions are `seen`: one for its topic, or one for each partition. Empty if the subscription has none, so that
/// its positions serve as starts.
pub(super) fn starts_of(conns: &Connections, slot: u32, sub_index: u32, seen: &[u64]) -> Vec<u64> {
    let mqtt = client::mqtt_state(conns, slot).into_iter();
    let starts_here: Vec<&ReadStart> = mqtt
        .flat_map(|mqtt| mqtt.starts.of_subscription(sub_index))
        .collect();
    let Some(first) = starts_here.first().filter(|_| !seen.is_empty()) else {
        return Vec::new();
    };
    if list::sub(conns, slot, sub_index).is_none_or(|sub| sub.filter == 0) {
        return alloc::vec![first.offset];
    }
    let start_offset = |(partition, seen): (PartitionId, &u64)| {
        let start = starts_here.iter().find(|it| it.partition == partition);
        start.map_or(*seen, |it| it.offset)
    };
    (0..).zip(seen).map(start_offset).collect()
}

/// Called when a subscription falls behind in this partition before the message with this offset. Gives the live subscriptions of the partition a start before that
/// message.
pub(super) fn start_live_subscriptions(
    clients: &mut Clients,
    topics: &Topics,
    slot: u32,
    partition: PartitionId,
    offset: u64,
) {
    for sub_index in live_subscriptions_in(clients, topics, slot, partition) {
        let start = start_or_insert(&mut clients.conns, slot, sub_index, partition, offset - 1);
        // A later message of the same run may have added the start already. Then it moves back.
        *start = (*start).min(offset - 1);
    }
}

/// The live subscriptions of a partition.
pub(crate) fn live_subscriptions_in(
    clients: &Clients,
    topics: &Topics,
    slot: u32,
    partition: PartitionId,
) -> Vec<u32> {
    let group =
        |serial| filter_subscriptions(&clients.conns, slot).and_then(|all| all.group(serial));
    let is_live = |sub: &Sub| match sub.filter.checked_sub(1) {
        Some(serial) => group(serial).is_some_and(|group| group.is_live(partition)),
        None => {
            sub.topic != NONE
                && sub.flags & LIVE != 0
                && topic_partition(topics, &clients.ctx, sub) == partition
        }
    };
    let sub_indexes = (0..)
        .zip(subscription_list(&clients.conns, slot))
        .filter(|(_, sub)| is_live(sub));
    sub_indexes.map(|(sub_index, _)| sub_index).collect()
}

/// Called when the first page of a new subscription to filters has come, with messages after its begin. Until then the other subscriptions have sent what
/// they match, and have not waited for this one. So it starts before none of
/// them. Otherwise the client would get messages twice, or in a wrong order.
///
/// If another subscription began after this one, this one does not send the messages between the two begins that the other matches too. The client has
/// no SUBACK for this one yet.
pub(super) fn start_behind(
    clients: &mut Clients,
    topics: &Topics,
    slot: u32,
    sub_index: u32,
    (partition, offset): (PartitionId, u64),
) {
    if !may_overlap(&clients.conns, slot) {
        return;
    }
    let count = subscription_list(&clients.conns, slot).len();
    clients.meter.work.steps.add(count);
    for live in live_subscriptions_in(clients, topics, slot, partition) {
        start_or_insert(&mut clients.conns, slot, live, partition, 0);
    }
    let starts = &mqtt_state_mut(&mut clients.conns, slot).starts;
    let starts_here = starts.in_partition(partition).iter();
    let latest = starts_here.map(|it| it.offset).max().unwrap_or(0);
    start_or_insert(
        &mut clients.conns,
        slot,
        sub_index,
        partition,
        latest.max(offset),
    );
}

/// Whether the client has several subscriptions, one of them with wildcards, and few enough to compare them.
fn may_overlap(conns: &Connections, slot: u32) -> bool {
    let count = subscription_list(conns, slot).len();
    (2..=COMPARED_MAX).contains(&count) && filter_subscriptions(conns, slot).is_some()
}

/// Called when a subscription has become live in this partition, at `offset`. When all subscriptions are live, drops the starts.
pub(super) fn note_live(
    clients: &mut Clients,
    slot: u32,
    sub_index: u32,
    partition: PartitionId,
    offset: u64,
) {
    let conns = &clients.conns;
    let Some(mqtt) = client::mqtt_state(conns, slot) else {
        return;
    };
    // While the subscription itself is behind in another partition, the others need not be looked at. There may be as many pages as subscriptions and
    // partitions.
    let is_own_behind = list::sub(conns, slot, sub_index)
        .and_then(|sub| sub.filter.checked_sub(1))
        .and_then(|serial| filter_subscriptions(conns, slot)?.group(serial))
        .is_some_and(|group| !group.positions().is_empty());
    let is_any_behind = || {
        let count = subscription_list(conns, slot).len();
        clients.meter.work.steps.add(count / FILTERS_PER_STEP);
        is_behind(conns, slot)
    };
    if mqtt.starts.is_empty() && !(may_overlap(conns, slot) && (is_own_behind || is_any_behind())) {
        return;
    }
    if is_own_behind || is_any_behind() {
        start_or_insert(&mut clients.conns, slot, sub_index, partition, offset);
    } else {
        mqtt_state_mut(&mut clients.conns, slot).starts = ReadStarts::default();
    }
}

/// The offset of a subscription's start in a partition. If there is none, adds one with this offset.
pub(crate) fn start_or_insert(
    conns: &mut Connections,
    slot: u32,
    sub_index: u32,
    partition: PartitionId,
    offset: u64,
) -> &mut u64 {
    let starts = &mut mqtt_state_mut(conns, slot).starts;
    starts.offset_or_insert(sub_index, partition, offset)
}

/// Called when the topic of a subscription was deleted at this offset. The subscription continues there. A live subscription without a start gets this offset as its start,
/// since it has missed nothing of the topic. One that has a start keeps it: it may have become live later, and has not sent earlier messages of other topics.
pub(super) fn restart_after_deletion(
    clients: &mut Clients,
    topics: &Topics,
    slot: u32,
    sub_index: u32,
    partition: PartitionId,
    offset: u64,
) {
    for live in live_subscriptions_in(clients, topics, slot, partition) {
        start_or_insert(&mut clients.conns, slot, live, partition, offset);
    }
    *start_or_insert(&mut clients.conns, slot, sub_index, partition, offset) = offset;
}

/// Removes the starts of a subscription that ends, so that the others send the messages that it has not sent.
pub(super) fn forget_starts(conns: &mut Connections, slot: u32, sub_index: u32) {
    if client::mqtt_state(conns, slot).is_some_and(|mqtt| !mqtt.starts.is_empty()) {
        mqtt_state_mut(conns, slot)
            .starts
            .remove_subscription(sub_index);
    }
}

/// Drops all starts if no subscription is behind.
pub(super) fn drop_starts_if_live(conns: &mut Connections, slot: u32) {
    if !is_behind(conns, slot) {
        mqtt_state_mut(conns, slot).starts = ReadStarts::default();
    }
}

/// Whether a subscription is not live everywhere.
fn is_behind(conns: &Connections, slot: u32) -> bool {
    let groups = filter_subscriptions(conns, slot).map_or(&[][..], |all| all.groups());
    let is_catching_up = |sub: &Sub| sub.topic != NONE && sub.flags & LIVE == 0;
    groups.iter().any(|group| !group.positions().is_empty())
        || subscription_list(conns, slot).iter().any(is_catching_up)
}

pub(crate) fn topic_partition(topics: &Topics, ctx: &Context, sub: &Sub) -> PartitionId {
    ctx.partition_of(topics.name(sub.topic))
}

/// The subscriptions that may send a message, and what those of them in `reached` do, which have reached it. `None` if the client has no starts or no
/// filters, or if no other subscription takes part.
pub(super) fn find_overlap(
    clients: &Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
    reached: &[u32],
    message: &Message<'_>,
) -> Option<Overlap> {
    let Message {
        name: topic,
        record,
        frames,
        ..
    } = *message;
    let starts = &client::mqtt_state(&clients.conns, slot)?.starts;
    let has_no_overlap =
        filter_subscriptions(&clients.conns, slot).is_none() || planted::is(Fault::OwnCopies);
    if starts.is_empty() || has_no_overlap {
        return None;
    }
    let list = subscription_list(&clients.conns, slot);
    let is_own_message = frames.origin(record) == client::origin_of(&clients.conns, slot);
    let partition = clients.ctx.partition_of(topic);
    let rows = subs.matching.matching_rows(topic);
    let matches = |sub: &Sub| match sub.filter.checked_sub(1) {
        Some(serial) => filter_subscriptions(&clients.conns, slot).is_some_and(|all| {
            let mut filters = all.parts_of(serial);
            filters.any(|(_, filter)| rows.binary_search(&filter.row).is_ok())
        }),
        None => sub.topic != NONE && subs.topics.name(sub.topic) == topic,
    };
    let starts_here = starts.in_partition(partition);
    // For each start, a subscription is looked up in the client's list.
    clients.meter.work.steps.add(starts_here.len() / 4);
    let (mut sub_indexes, mut later) = (Vec::new(), Vec::new());
    let mut senders: Vec<u32> = Vec::new();
    let mut earliest = u64::MAX;
    for start in starts_here {
        let Some(sub) = list.get(start.sub_index as usize) else {
            continue;
        };
        let may_get = qos(sub.protocol_state.options) > 0
            && !(is_own_message && sub.protocol_state.options & NO_LOCAL != 0);
        if !may_get || !matches(sub) {
            continue;
        }
        if start.offset >= record.offset {
            later.push(start.sub_index);
            continue;
        }
        sub_indexes.push(start.sub_index);
        if start.offset < earliest {
            earliest = start.offset;
            senders.clear();
        }
        if start.offset == earliest {
            senders.push(start.sub_index);
        }
    }
    // A new subscription whose start is behind its begin: the others have sent the message, or began behind it.
    let starts_later = later.iter().any(|it| reached.contains(it));
    if starts_later && sub_indexes.len() + later.len() > 1 {
        return Some(Overlap {
            subscriptions: later,
            turn: Turn::Skip,
        });
    }
    if senders.is_empty() {
        return None;
    }
    let has_sent = |sender: &u32| {
        !reached.contains(sender)
            && list.get(*sender as usize).is_some_and(|sub| {
                position_in(clients, &subs.matching, deliveries, slot, sub, partition)
                    >= record.offset
            })
    };
    let turn = if senders.iter().any(has_sent) {
        Turn::Skip
    } else if senders.iter().any(|sender| reached.contains(sender)) {
        Turn::Send
    } else {
        Turn::Wait
    };
    Some(Overlap {
        subscriptions: sub_indexes,
        turn,
    })
}

/// The position of a subscription in this partition.
fn position_in(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    sub: &Sub,
    partition: PartitionId,
) -> u64 {
    let Some(serial) = sub.filter.checked_sub(1) else {
        return sub.offset;
    };
    let seen = seen_offset(matching, deliveries, &clients.ctx, slot, partition);
    let position = |group: &Group| group.positions().get(usize::from(partition)).copied();
    match filter_subscriptions(&clients.conns, slot)
        .and_then(|all| all.group(serial))
        .and_then(position)
    {
        Some(position) if position.is_live => position.offset.max(seen),
        Some(position) => position.offset,
        None => seen,
    }
}

/// The combined options of these subscriptions for a message; `None` if none of them gets the message. Adds their identifiers to the list.
pub(super) fn combined_options(
    conns: &Connections,
    slot: u32,
    sub_indexes: &[u32],
    message: &Message<'_>,
    identifiers: &mut Vec<u32>,
) -> Option<u8> {
    let list = subscription_list(conns, slot);
    let is_own_message = message.frames.origin(message.record) == client::origin_of(conns, slot);
    let mut options = None;
    for sub_index in sub_indexes {
        let Some(sub) = list.get(*sub_index as usize) else {
            continue;
        };
        if is_own_message && sub.protocol_state.options & NO_LOCAL != 0 {
            continue;
        }
        identifiers.push(sub.protocol_state.identifier);
        let combined: u8 = options.unwrap_or_default();
        let highest = qos(combined).max(qos(sub.protocol_state.options));
        options = Some((combined | sub.protocol_state.options) & !(3 | NO_LOCAL) | highest);
    }
    options
}
