//! Answers of homes (the parts of shards that keep topics) to subscriptions of a list: grants, refusals, and pages (bounded runs of past messages). Requests
//! the next pages of subscriptions that have fallen behind.
//!
//! Order of a subscription's messages: retained messages first, then pages of the log up to the page marked `at_head`, then live messages.

use crate::base::planted::{self, Fault};
use crate::base::position::Position;
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::front::Front;
use crate::client::list::filters::request_next_filter_pages;
use crate::client::list::{count_asked_pages, index_with_serial, move_to_row, subscription_at_mut};
use crate::client::outbox::Packets;
use crate::client::parts::{Clients, Connections, Deliveries, Queues, Subscriptions};
use crate::client::row::{COUNTED, LIVE};
use crate::client::side::BehindSubscription;
use crate::client::subscriptions::{flags_of, request_next_page, topic_of};
use crate::client::types::{ProtocolTypes, SlotAndIndex};
use crate::io::Io;
use crate::mail::{AttachOutcome, Frames, LatestValues, Page, Record};
use crate::store::slab::NONE;

/// Handles a home's answer for a subscription to a topic: a page, or a refusal.
pub(crate) fn handle_topic_page<C: SubscriptionHandler<P>, P: ProtocolTypes, I: Io>(
    front: &mut Front<P>,
    subscription: SlotAndIndex,
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, queues) = front.parts();
    let deliveries = &feed.deliveries;
    if page.attached != AttachOutcome::Yes {
        return handle_refused_attach::<C, P, I>(clients, subs, queues, subscription, page, io);
    }
    let (slot, sub_index) = subscription;
    // If the client's only subscription is in its row, the row has a flag for a subscription that has fallen behind.
    clients.move_to_list(slot);
    let topic = topic_of(&clients.conns, slot, sub_index);
    if topic == NONE {
        return clients.end_as_broken(slot);
    }
    C::tell_granted(clients, slot, sub_index, io);
    let (first, count) = (page.first as usize, page.count as usize);
    let records = frames.pages.get(first..first + count).unwrap_or_default();
    let is_beside = page.values == LatestValues::InThisPage;
    let retained = match is_beside {
        true => records.len(),
        false => records.len().min(page.retained as usize),
    };
    let (retained, records) = records.split_at(retained);
    C::take_retained(
        clients,
        subs,
        queues,
        subscription,
        page,
        (retained, frames),
        io,
    );
    if is_beside || page.only_retained {
        return;
    }
    let partition = clients.ctx.partition_of(subs.topics.name(topic));
    if page.gap {
        let from = records.first().map_or(page.head, |record| record.previous);
        let from = Position::new(page.epoch, from);
        C::gap(clients, subs, subscription, (partition, from), io);
        if topic_of(&clients.conns, slot, sub_index) == NONE {
            return;
        }
    }
    let (mut head, mut at_head) = (page.head, page.at_head);
    let bytes = records.iter().map(Record::frame_bytes).sum();
    clients.meter.work.steps.add_bytes(bytes);
    let first_unsent = match C::send_first_page(clients, subscription, page, (records, frames), io)
    {
        true => None,
        false => {
            send_in_order::<C, P, I>(clients, subs, deliveries, subscription, records, frames, io)
        }
    };
    if let Some(left) = first_unsent {
        (head, at_head) = (left.previous, false);
    }
    let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
        return clients.end_as_broken(slot);
    };
    (sub.offset, sub.epoch) = (head, page.epoch);
    if at_head {
        sub.flags |= LIVE;
        C::note_live(clients, subscription, partition, head);
        move_to_row(&mut clients.conns, slot);
    } else {
        let seen = BehindSubscription::new(sub_index, head, page.epoch);
        clients.conns.ensure_side_row(slot).behind.push(seen);
        if !planted::is(Fault::LostWake) {
            queues.resume_later(clients, clients.conns.id_of(slot));
        }
    }
}

/// Handles a home's refusal of a subscription, or the deletion of its topic.
fn handle_refused_attach<C: SubscriptionHandler<P>, P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    subscription: SlotAndIndex,
    page: &Page,
    io: &mut I,
) {
    let (slot, sub_index) = subscription;
    clients.move_to_list(slot);
    if C::take_retained_deletion(clients, queues, subscription, page) {
        // Only the request for latest values ends. The subscription itself continues, and will learn of the deletion.
        return;
    }
    if page.attached != AttachOutcome::Gone {
        return C::refused(
            clients,
            subs,
            queues,
            subscription,
            page.attached.refusal(),
            io,
        );
    }
    let topic = topic_of(&clients.conns, slot, sub_index);
    let Some(sub) =
        subscription_at_mut(&mut clients.conns, slot, sub_index).filter(|_| topic != NONE)
    else {
        return clients.end_as_broken(slot);
    };
    // The kept messages were deleted. It continues after the deletion.
    (sub.offset, sub.epoch) = (page.head, page.epoch);
    let behind = &mut clients.conns.ensure_side_row(slot).behind;
    behind.retain(|behind| behind.sub_index != sub_index);
    behind.push(BehindSubscription::new(sub_index, page.head, page.epoch));
    let partition = clients.ctx.partition_of(subs.topics.name(topic));
    C::ended(clients, subs, subscription, (partition, page.head), io);
    queues.resume_later(clients, clients.conns.id_of(slot));
}

/// Sends messages of a topic in their order. Returns the first one for which there was no room. If the bounds of an outbox allow no more in one write, sends
/// the rest in further writes as long as the socket takes all.
pub(super) fn send_in_order<'r, C: SubscriptionHandler<P>, P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    subscription: SlotAndIndex,
    records: &'r [Record],
    frames: &Frames,
    io: &mut I,
) -> Option<&'r Record> {
    let mut out = Packets::default();
    let name = subs
        .topics
        .name(topic_of(&clients.conns, subscription.0, subscription.1));
    let first_unsent = records.iter().find(|record| {
        let message = Message {
            name,
            record,
            frames,
            retained: false,
        };
        let outcome = C::message(clients, subs, deliveries, subscription, &message, &mut out);
        let may_have_room = clients.ctx.world.rules.any_bounds_outboxes() && !out.bytes.is_empty();
        if outcome != OfferOutcome::Full || !may_have_room {
            return outcome == OfferOutcome::Full;
        }
        let full = core::mem::take(&mut out);
        clients.send_messages(subscription.0, &full.bytes, &full.ends, io);
        C::message(clients, subs, deliveries, subscription, &message, &mut out)
            == OfferOutcome::Full
    });
    if !out.bytes.is_empty() {
        clients.send_messages(subscription.0, &out.bytes, &out.ends, io);
    }
    first_unsent
}

/// Requests the next pages of subscriptions that have fallen behind, as far as there is room for their messages. While bytes wait in the outbox, requests
/// only pages of subscriptions that no home counts yet: the bytes may be held until these subscriptions are granted.
pub(crate) fn request_next_pages<C: SubscriptionHandler<P>, P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
) {
    if clients.conns.find_side_row(slot).is_none() {
        return;
    }
    let has_outbox = clients.conns.get(slot).link.outbox != NONE;
    if !has_outbox {
        request_next_filter_pages::<C, P>(clients, subs, slot);
    }
    let may_read = !has_outbox && has_room::<C, P>(&clients.conns, slot);
    let behind = core::mem::take(&mut clients.conns.ensure_side_row(slot).behind);
    for seen in behind {
        let is_counted = *flags_of(&mut clients.conns, slot, seen.sub_index) & COUNTED != 0;
        let messages_max = match is_counted {
            false => u32::MAX,
            true if may_read => C::page_messages_max(&clients.conns, slot, seen.sub_index),
            true => 0,
        };
        if messages_max == 0 {
            clients.conns.ensure_side_row(slot).behind.push(seen);
            continue;
        }
        count_asked_pages(&mut clients.conns, slot, 1);
        let name = index_with_serial(&clients.conns, slot, seen.sub_index);
        request_next_page(clients, subs, slot, &seen, name, messages_max, false);
    }
}

/// Whether a subscription that has fallen behind may read on.
fn has_room<C: SubscriptionHandler<P>, P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
) -> bool {
    let mut behind = conns.side_row(slot).behind.iter();
    C::can_take_more(conns, slot)
        || behind.any(|behind| C::page_messages_max(conns, slot, behind.sub_index) == u32::MAX)
}
