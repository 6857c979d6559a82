//! Overlapping subscriptions of a client, while some of them read from the log: decides which of them sends a message, so that it is sent once, with the
//! highest QoS and all identifiers (MQTT 5.0 section 3.3.4).
//!
//! While all subscriptions are live, a message finds all of them at once, and none of this state exists. It begins when a subscription falls behind or a
//! session is resumed. Then each subscription has a [`Start`] in each partition: after that offset it misses nothing. Among the subscriptions that match a
//! message, the one with the earliest start sends it. The others skip the messages that it has passed, and wait before those that it has not, so a topic
//! keeps its order, and no position is ahead of the client.
//!
//! Only QoS 1 and 2 take part. QoS 0 never waits, since its log may not keep the messages.
//!
//! Deliberately not here: retained messages, which each new subscription gets, and shared subscriptions.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::client::codec::Message;
use crate::client::joining::filter_subscriptions;
use crate::client::list::{self, list_of};
use crate::client::matches::seen_by;
use crate::client::outbox::Packets;
use crate::client::row::LIVE;
use crate::filters::matching::Group;
use crate::protocol::front::{
    Clients, Connections, Context, Deliveries, Matching, Sub, Subscriptions, Topics,
};
use crate::protocol::mqtt::client::{self, mqtt_state};
use crate::protocol::mqtt::options::{NO_LOCAL, qos};
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, DeliveryResult, write_publish};
use crate::protocol::mqtt::reading::Start;
use crate::protocol::mqtt::subscription::part_of;
use crate::store::slab::NONE;

/// The subscriptions that match a message.
pub(super) struct Overlap {
    pub parts: Vec<u32>,
    /// The one of them that sends the message.
    pub sender: u32,
    pub is_sent: bool,
}

/// Sends a message that a subscription has reached, for all subscriptions that match it. If another one sends it, skips it or waits for that.
pub(super) fn write_in_turn(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    (slot, part): (u32, u32),
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
    out: &mut Packets,
) -> DeliveryResult {
    let overlap = find_overlap(clients, subs, deliveries, slot, message);
    let Some(all) = overlap.filter(|all| all.parts.contains(&part)) else {
        return write_publish(clients, slot, delivery, message, out);
    };
    if all.sender != part {
        return match all.is_sent {
            true => DeliveryResult::Skipped,
            false => DeliveryResult::Later,
        };
    }
    let mut identifiers = Vec::new();
    let options = combined_options(&clients.conns, slot, &all.parts, message, &mut identifiers);
    let delivery = DeliveryOptions {
        // The subscription with the earliest start sends it.
        options: options.unwrap_or(delivery.options),
        identifiers: &identifiers,
        ..*delivery
    };
    write_publish(clients, slot, &delivery, message, out)
}

/// Sets the starts of a resumed subscription: one offset for its topic, or one for each partition.
pub(super) fn set_starts(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    filter: &[u8],
    seen: &[u64],
) {
    let Some(part) = part_of(clients, subs, slot, filter) else {
        return;
    };
    let partition = clients.ctx.partition_of(filter);
    let wildcard = list::sub(&clients.conns, slot, part).is_some_and(|sub| sub.filter != 0);
    if wildcard && seen.len() != usize::from(clients.ctx.world.partitions) {
        // The positions are of a server with another number of partitions, and are not valid.
        return;
    }
    let first = if wildcard { 0 } else { partition };
    let start = |(partition, offset): (PartitionId, &u64)| Start {
        part,
        partition,
        offset: *offset,
    };
    let starts = (first..).zip(seen).map(start);
    mqtt_state(&mut clients.conns, slot).starts.extend(starts);
}

/// The starts of a subscription whose positions are `seen`: one for its topic, or one for each partition. Empty if no other subscription of the client
/// depends on them.
pub(super) fn starts_of(conns: &Connections, slot: u32, part: u32, seen: &[u64]) -> Vec<u64> {
    let starts = client::mqtt(conns, slot).map_or(&[][..], |mqtt| &mqtt.starts);
    let own: Vec<&Start> = starts.iter().filter(|it| it.part == part).collect();
    let Some(first) = own.first().filter(|_| !seen.is_empty()) else {
        return Vec::new();
    };
    if list::sub(conns, slot, part).is_none_or(|sub| sub.filter == 0) {
        return alloc::vec![first.offset];
    }
    let at = |(partition, seen): (PartitionId, &u64)| {
        let start = own.iter().find(|it| it.partition == partition);
        start.map_or(*seen, |it| it.offset)
    };
    (0..).zip(seen).map(at).collect()
}

/// Called when a subscription falls behind in this partition before the message with this offset. The live subscriptions there start with that
/// message.
pub(super) fn start_live_subscriptions(
    clients: &mut Clients,
    topics: &Topics,
    slot: u32,
    partition: PartitionId,
    offset: u64,
) {
    for part in live_in(clients, topics, slot, partition) {
        let start = add_start(&mut clients.conns, slot, part, partition, offset - 1);
        // The start was added for a later message of the same run, so it moves back.
        start.offset = start.offset.min(offset - 1);
    }
}

/// The live subscriptions of a partition.
pub(crate) fn live_in(
    clients: &Clients,
    topics: &Topics,
    slot: u32,
    partition: PartitionId,
) -> Vec<u32> {
    let group =
        |serial| filter_subscriptions(&clients.conns, slot).and_then(|all| all.group(serial));
    let live = |sub: &Sub| match sub.filter.checked_sub(1) {
        Some(serial) => group(serial).is_some_and(|group| group.is_live(partition)),
        None => {
            sub.topic != NONE
                && sub.flags & LIVE != 0
                && topic_partition(topics, &clients.ctx, sub) == partition
        }
    };
    let parts = (0..)
        .zip(list_of(&clients.conns, slot))
        .filter(|(_, sub)| live(sub));
    parts.map(|(part, _)| part).collect()
}

/// A subscription has become live in this partition, at `offset`. When all are live, the starts are dropped.
pub(super) fn start_live(
    conns: &mut Connections,
    slot: u32,
    part: u32,
    partition: PartitionId,
    offset: u64,
) {
    if client::mqtt(conns, slot).is_none_or(|mqtt| mqtt.starts.is_empty()) {
        return;
    }
    add_start(conns, slot, part, partition, offset);
    end_starts(conns, slot);
}

/// The start of a subscription in a partition. If there is none, adds one with this offset.
pub(crate) fn add_start(
    conns: &mut Connections,
    slot: u32,
    part: u32,
    partition: PartitionId,
    offset: u64,
) -> &mut Start {
    let starts = &mut mqtt_state(conns, slot).starts;
    let is = |it: &Start| (it.part, it.partition) == (part, partition);
    let at = starts.iter().position(is).unwrap_or(starts.len());
    if at == starts.len() {
        starts.push(Start {
            part,
            partition,
            offset,
        });
    }
    &mut starts[at]
}

/// Called when the topic of a subscription was deleted at this offset. The subscription reads on from there. A live subscription without a start starts
/// there too, since it misses nothing of the topic. One with a start keeps it: it may have become live later, and then it has not sent earlier messages of
/// other topics.
pub(super) fn restart_after_deletion(
    clients: &mut Clients,
    topics: &Topics,
    slot: u32,
    part: u32,
    partition: PartitionId,
    offset: u64,
) {
    for live in live_in(clients, topics, slot, partition) {
        add_start(&mut clients.conns, slot, live, partition, offset);
    }
    add_start(&mut clients.conns, slot, part, partition, offset).offset = offset;
}

/// Called when a subscription ends. The others send the messages that it has not sent.
pub(super) fn forget_starts(conns: &mut Connections, slot: u32, part: u32) {
    if client::mqtt(conns, slot).is_some_and(|mqtt| !mqtt.starts.is_empty()) {
        mqtt_state(conns, slot).starts.retain(|it| it.part != part);
    }
}

/// Drops the starts if no subscription is behind.
pub(super) fn end_starts(conns: &mut Connections, slot: u32) {
    let groups = filter_subscriptions(conns, slot).map_or(&[][..], |all| all.groups());
    let list = list_of(conns, slot);
    let reads = |sub: &Sub| sub.topic != NONE && sub.flags & LIVE == 0;
    let behind = groups.iter().any(|group| !group.positions().is_empty()) || list.iter().any(reads);
    if !behind {
        mqtt_state(conns, slot).starts = Vec::new();
    }
}

pub(crate) fn topic_partition(topics: &Topics, ctx: &Context, sub: &Sub) -> PartitionId {
    ctx.partition_of(topics.name(sub.topic))
}

/// The subscriptions that match a message; `None` if only one can send it.
pub(super) fn find_overlap(
    clients: &Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
    message: &Message<'_>,
) -> Option<Overlap> {
    let Message {
        name: topic,
        record,
        frames,
        ..
    } = *message;
    let starts = &client::mqtt(&clients.conns, slot)?.starts;
    let alone =
        filter_subscriptions(&clients.conns, slot).is_none() || planted::is(Fault::OwnCopies);
    if starts.is_empty() || alone {
        return None;
    }
    let list = list_of(&clients.conns, slot);
    let local = frames.origin(record) == client::origin(&clients.conns, slot);
    let partition = clients.ctx.partition_of(topic);
    let rows = subs.matching.rows(topic);
    let matches = |sub: &Sub| match sub.filter.checked_sub(1) {
        Some(serial) => filter_subscriptions(&clients.conns, slot).is_some_and(|all| {
            let mut parts = all.parts_of(serial);
            parts.any(|(_, part)| rows.binary_search(&part.row).is_ok())
        }),
        None => sub.topic != NONE && subs.topics.name(sub.topic) == topic,
    };
    // Each start is looked up in the client's list.
    clients.meter.work.steps.add(starts.len() / 4);
    let mut parts = Vec::new();
    let mut first: Option<(u64, u32)> = None;
    for start in starts {
        let Some(sub) = list.get(start.part as usize) else {
            continue;
        };
        let wants = qos(sub.protocol_state.options) > 0
            && !(local && sub.protocol_state.options & NO_LOCAL != 0);
        if start.partition == partition && start.offset < record.offset && wants && matches(sub) {
            parts.push(start.part);
            let key = (start.offset, start.part);
            first = Some(first.map_or(key, |first| first.min(key)));
        }
    }
    let (_, sender) = first?;
    let is_sent = position_in(
        clients,
        &subs.matching,
        deliveries,
        slot,
        list.get(sender as usize)?,
        partition,
    ) >= record.offset;
    Some(Overlap {
        parts,
        sender,
        is_sent,
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
    let seen = seen_by(matching, deliveries, &clients.ctx, slot, partition);
    let at = |group: &Group| group.positions().get(usize::from(partition)).copied();
    match filter_subscriptions(&clients.conns, slot)
        .and_then(|all| all.group(serial))
        .and_then(at)
    {
        Some(at) if at.live => at.offset.max(seen),
        Some(at) => at.offset,
        None => seen,
    }
}

/// The combined options of these subscriptions for a message; `None` if none of them gets it. Adds their identifiers to the list.
pub(super) fn combined_options(
    conns: &Connections,
    slot: u32,
    parts: &[u32],
    message: &Message<'_>,
    identifiers: &mut Vec<u32>,
) -> Option<u8> {
    let list = list_of(conns, slot);
    let local = message.frames.origin(message.record) == client::origin(conns, slot);
    let mut options = None;
    for part in parts {
        let Some(sub) = list.get(*part as usize) else {
            continue;
        };
        if local && sub.protocol_state.options & NO_LOCAL != 0 {
            continue;
        }
        identifiers.push(sub.protocol_state.identifier);
        let all: u8 = options.unwrap_or_default();
        let highest = qos(all).max(qos(sub.protocol_state.options));
        options = Some((all | sub.protocol_state.options) & !(3 | NO_LOCAL) | highest);
    }
    options
}
