//! Live messages (sent when they are published) for a connection with a list of subscriptions. Each is sent once, however many subscriptions match it.

use alloc::vec::Vec;

use crate::client::codec::{Message, SubscriptionHandler};
use crate::client::delivery::{Addressee, FilterMessage};
use crate::client::front::Front;
use crate::client::joining::filter_subscriptions;
use crate::client::list::page::send_in_order;
use crate::client::list::{group_serial, subscription_at_mut, subscription_list};
use crate::client::outbox::Packets;
use crate::client::parts::{Clients, Connections, Deliveries, Matching, Subscriptions};
use crate::client::row::LIVE;
use crate::client::side::ListedSubscription;
use crate::client::subscriptions::topic_of;
use crate::client::types::{ProtocolTypes, SlotAndIndex};
use crate::io::Io;
use crate::mail::Frames;
use crate::store::slab::NONE;

/// Sends the messages of the current run to a subscription to their topic. If a live filter of the client matches the topic too, that filter sends them
/// instead.
pub(crate) fn deliver_live_messages<C: SubscriptionHandler<P>, P: ProtocolTypes, I: Io>(
    front: &mut Front<P>,
    (slot, sub_index): SlotAndIndex,
    frames: &Frames,
    io: &mut I,
) {
    let (clients, subs, feed, _) = front.parts();
    let topic = topic_of(&clients.conns, slot, sub_index);
    if topic == NONE {
        return clients.end_as_broken(slot);
    }
    if filter_subscriptions(&clients.conns, slot).is_some()
        && clients.has_live_match(&subs.matching, slot, subs.topics.name(topic))
    {
        return;
    }
    let (records, deliveries) = (feed.run.records(), &feed.deliveries);
    clients.meter.work.steps.add(records.len());
    let subscription = (slot, sub_index);
    let first_unsent =
        send_in_order::<C, P, I>(clients, subs, deliveries, subscription, records, frames, io);
    let seen = first_unsent.map(|left| left.previous);
    let seen = seen.or(records.last().map(|last| last.offset));
    if let (Some(sub), Some(seen)) = (
        subscription_at_mut(&mut clients.conns, slot, sub_index),
        seen,
    ) {
        sub.offset = seen;
    }
    if let Some(left) = first_unsent {
        let partition = clients.ctx.partition_of(subs.topics.name(topic));
        C::note_falling_behind(clients, &subs.topics, slot, partition, left.offset);
        clients.fall_back(slot, sub_index, left.previous);
    }
}

/// Sends the messages of a run that match filters of the client, each once.
pub(crate) fn deliver_live_matches<C: SubscriptionHandler<P>, P: ProtocolTypes, I: Io>(
    front: &mut Front<P>,
    slot: u32,
    (all, messages, frames): (&[Addressee], &[FilterMessage], &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, _) = front.parts();
    let deliveries = &feed.deliveries;
    let mut out = Packets::default();
    for due in all.chunk_by(|a, b| a.message == b.message) {
        let message = due
            .first()
            .and_then(|due| messages.get(due.message as usize));
        let Some(message) = message else {
            return clients.end_as_broken(slot);
        };
        let offered = (due, message, frames);
        deliver_live_match::<C, P>(clients, subs, deliveries, slot, offered, &mut out);
    }
    if !out.bytes.is_empty() {
        clients.send_messages(slot, &out.bytes, &out.ends, io);
    }
}

fn deliver_live_match<C: SubscriptionHandler<P>, P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
    (due, message, frames): (&[Addressee], &FilterMessage, &Frames),
    out: &mut Packets,
) {
    let (mut sub_indexes, exact) = live_subscriptions(&clients.conns, slot, due, message);
    if sub_indexes.is_empty() {
        return;
    }
    let record = &message.record;
    let offered = Message {
        name: frames.name(message.name),
        record,
        frames,
        retained: false,
    };
    C::append_message_to_several(
        clients,
        subs,
        deliveries,
        slot,
        &mut sub_indexes,
        &offered,
        out,
    );
    if let Some(sub_index) = exact {
        let epoch = clients.ctx.world.epoch;
        if let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) {
            (sub.offset, sub.epoch) = (record.offset, epoch);
        }
    }
    if sub_indexes.is_empty() {
        return;
    }
    let (partition, offset) = (message.partition, record.offset);
    C::note_falling_behind(clients, &subs.topics, slot, partition, offset);
    for sub_index in sub_indexes {
        fall_back_before(clients, &subs.matching, slot, sub_index, message);
    }
}

/// The subscriptions that a message reaches by a live filter, and the subscription to its topic, which the second part of the result repeats.
fn live_subscriptions<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    due: &[Addressee],
    message: &FilterMessage,
) -> (Vec<u32>, Option<u32>) {
    let Some(subscriptions) = filter_subscriptions(conns, slot) else {
        return (Vec::new(), None);
    };
    let live = due
        .iter()
        .filter(|due| subscriptions.is_live(due.filter_index, message.partition));
    let mut sub_indexes: Vec<u32> = live
        .filter_map(|due| subscriptions.part(due.filter_index).map(|part| part.id))
        .collect();
    // Most messages have no exact subscriber here, and a list may be long. An exact subscription that leaves its messages to a
    // filter gets this one here even if the filter fell behind with an earlier message of the run.
    let is_exact_subscription = |sub: &ListedSubscription<P::SubscriptionState>| {
        sub.topic == message.topic && sub.flags & LIVE != 0 && sub.offset < message.record.offset
    };
    let exact = match message.topic {
        NONE => None,
        _ => subscription_list(conns, slot)
            .iter()
            .position(is_exact_subscription),
    };
    let exact = exact.map(|index| index as u32);
    sub_indexes.extend(exact);
    (sub_indexes, exact)
}

/// Makes a live subscription that has no room for this message read from the log from now on.
fn fall_back_before<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    matching: &Matching,
    slot: u32,
    sub_index: u32,
    message: &FilterMessage,
) {
    let record = &message.record;
    match group_serial(&clients.conns, slot, sub_index) {
        Some(serial) => {
            let seen = (message.partition, record.offset - 1);
            clients.fall_back_in_partition(matching, slot, serial, seen);
        }
        None => clients.fall_back(slot, sub_index, record.previous),
    }
}
