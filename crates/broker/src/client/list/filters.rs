//! Subscriptions with wildcards in a list. Each one is a group of its own among the connection's filters (`filters/matching.rs`), with a position for each
//! partition. A second group of a subscription only sends retained messages again, and is never live.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::position::{Position, Since};
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::front::Front;
use crate::client::joining::{
    GroupPageRequest, filter_subscriptions, filter_subscriptions_mut, join_filters,
    request_group_page,
};
use crate::client::list::{count_asked_pages, end_filter_groups, group_serial, index_of_group};
use crate::client::matches::seen_offset;
use crate::client::outbox::Packets;
use crate::client::parts::{Clients, Connections, Deliveries, Matching, Queues, Subscriptions};
use crate::client::types::{ProtocolTypes, SlotAndSerial};
use crate::filters::matching::{FilterPart, Group, GroupPosition, RETAINED_SENT};
use crate::io::Io;
use crate::mail::{AttachOutcome, FilterPage, Frames};

/// Handles a home's page for a subscription with wildcards.
pub(crate) fn handle_filter_page<C: SubscriptionHandler<P>, P: ProtocolTypes, I: Io>(
    front: &mut Front<P>,
    (slot, serial): SlotAndSerial,
    (page, frames): (&FilterPage, &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, queues) = front.parts();
    let deliveries = &feed.deliveries;
    let Some(sub_index) = index_of_group(&clients.conns, slot, serial) else {
        return;
    };
    let subscription = (slot, sub_index);
    let only_retained = group_serial(&clients.conns, slot, sub_index) != Some(serial);
    if page.attached != AttachOutcome::Yes {
        return match only_retained {
            true => clients.leave_group(subs, slot, serial),
            false => C::refused(
                clients,
                subs,
                queues,
                subscription,
                page.attached.refusal(),
                io,
            ),
        };
    }
    if page.gap && !only_retained {
        let first = page.records(frames).next();
        let from = first.map_or(page.head, |(_, record)| record.offset - 1);
        let from = Position::new(page.epoch, from);
        C::gap(clients, subs, subscription, (page.partition, from), io);
    }
    let is_first =
        !only_retained && awaits_first_page(&clients.conns, slot, serial, page.partition);
    if is_first && (!page.at_head || page.head > page.snapshot_end) {
        let begin = (page.partition, page.snapshot_end);
        C::note_beginning_behind(clients, &subs.topics, subscription, begin);
    }
    let mut out = Packets::default();
    let mut unsent_after = None;
    let mut seen = seen_offset_in(&clients.conns, slot, serial, page.partition);
    for (name, record) in page.records(frames) {
        let retained = record.offset <= page.snapshot_end;
        if only_retained && !retained {
            break;
        }
        let message = Message {
            name: frames.name(name),
            record,
            frames,
            retained,
        };
        if C::message(clients, subs, deliveries, subscription, &message, &mut out)
            == OfferOutcome::Full
        {
            unsent_after = Some(seen);
            break;
        }
        seen = record.offset;
    }
    if !out.bytes.is_empty() {
        clients.send_messages(slot, &out.bytes, &out.ends, io);
    }
    let (offset, live) = unsent_after.map_or((page.head, page.at_head), |offset| (offset, false));
    if only_retained {
        let ends = unsent_after.is_none() && (live || offset >= page.snapshot_end);
        record_retained_page(clients, subs, queues, slot, serial, page, (offset, ends));
        return;
    }
    clients.record_page(slot, serial, page, offset, live);
    if live {
        C::note_live(clients, subscription, page.partition, offset);
    }
    if is_answered(&clients.conns, slot, serial) {
        C::tell_granted(clients, slot, sub_index, io);
    }
    resume_if_behind(clients, queues, slot, serial);
}

/// Handles a page up to `offset` of a group that only sends retained messages again. Such a group is never live, since the subscription's own group sends
/// the live messages. It ends when the retained messages of all partitions were sent.
fn record_retained_page<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    serial: u32,
    page: &FilterPage,
    (offset, ends): (u64, bool),
) {
    clients.record_page(slot, serial, page, offset, false);
    if !ends {
        return queues.resume_later(clients, clients.conns.id_of(slot));
    }
    let Some(subscriptions) = filter_subscriptions_mut(&mut clients.conns, slot) else {
        return clients.end_as_broken(slot);
    };
    if let Some(at) = subscriptions.position_mut(serial, page.partition) {
        (at.offset, at.is_requested) = (RETAINED_SENT, true);
    }
    let group = subscriptions.group(serial);
    if group.is_some_and(|group| {
        group
            .positions()
            .iter()
            .all(|at| at.offset == RETAINED_SENT)
    }) {
        clients.leave_group(subs, slot, serial);
    }
    resume_if_behind(clients, queues, slot, serial);
}

/// Requests a subscription's retained messages once more, beside its other messages.
pub(crate) fn resend_retained<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
    filter: &[u8],
) {
    let own_serial = group_serial(&clients.conns, slot, sub_index);
    end_filter_groups(clients, subs, slot, sub_index, own_serial);
    let partitions = clients.ctx.world.partitions;
    let since = alloc::vec![Since::Default; usize::from(partitions)];
    // If there is no room for that, the subscription continues without them.
    if join_filters(clients, subs, slot, &[(filter, sub_index)], &since, false).is_ok() {
        count_asked_pages(&mut clients.conns, slot, partitions.into());
    }
}

/// Requests the next pages of subscriptions with wildcards that have fallen behind, as far as there is room.
pub(super) fn request_next_filter_pages<C: SubscriptionHandler<P>, P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
) {
    let conns = &clients.conns;
    let Some(subscriptions) = filter_subscriptions(conns, slot) else {
        return;
    };
    let is_bounded = !C::can_take_more(conns, slot);
    let mut behind = Vec::new();
    for group in subscriptions.waiting_groups() {
        let mut parts = subscriptions.parts_of(group.serial);
        // Without a bound there is always room.
        let is_held_back = |(_, part): (u32, &FilterPart)| {
            is_bounded && C::page_messages_max(conns, slot, part.id) != u32::MAX
        };
        if !parts.any(is_held_back) {
            behind.push(group.serial);
        }
    }
    for serial in behind.into_iter().rev() {
        let subscriptions = filter_subscriptions_mut(&mut clients.conns, slot);
        if let Some(partition) = subscriptions.and_then(|all| all.next_behind(serial)) {
            let asking = GroupPageRequest {
                slot,
                serial,
                is_poll: false,
            };
            let asked = request_group_page(clients, subs, asking, partition);
            count_asked_pages(&mut clients.conns, slot, asked.into());
        }
    }
}

/// The positions of a subscription with wildcards, one for each partition. Empty until homes have answered for all partitions. While retained messages are
/// sent, it is where the subscription began: otherwise the next connection would get all older messages.
pub(crate) fn seen_by_group<P: ProtocolTypes>(
    clients: &Clients<P>,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    serial: u32,
) -> Vec<u64> {
    let group = filter_subscriptions(&clients.conns, slot).and_then(|all| all.group(serial));
    let Some(group) = group else {
        return Vec::new();
    };
    let seen = |partition| seen_offset(matching, deliveries, &clients.ctx, slot, partition);
    let offset_in = |partition: PartitionId| match group.positions().get(usize::from(partition)) {
        None => Some(seen(partition)),
        Some(at) if at.is_live => Some(at.offset.max(seen(partition))),
        Some(at) if at.awaits_first_page => None,
        Some(at) => Some(at.offset.max(at.snapshot_end)),
    };
    let partitions = 0..clients.ctx.world.partitions;
    partitions
        .map(offset_in)
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// Whether a subscription with wildcards has not yet been sent all retained messages that it asked for by subscribing.
pub(crate) fn lacks_retained<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    part: u32,
) -> bool {
    let own_serial = group_serial(conns, slot, part);
    let (Some(serial), Some(all)) = (own_serial, filter_subscriptions(conns, slot)) else {
        return false;
    };
    let reads = |at: &GroupPosition| !at.is_live && at.offset < at.snapshot_end;
    let is_resent = |(_, it): (u32, &FilterPart)| it.id == part && Some(it.group) != own_serial;
    let group = all.group(serial);
    group.is_some_and(|group| group.positions().iter().any(reads)) || all.parts().any(is_resent)
}

/// A page of a group was handled: requests its next one if necessary. Other groups are not looked at, since there may be thousands: each is resumed after
/// its own pages, or when the client makes room.
fn resume_if_behind<P: ProtocolTypes>(
    clients: &Clients<P>,
    queues: &mut Queues,
    slot: u32,
    serial: u32,
) {
    let group = filter_subscriptions(&clients.conns, slot).and_then(|all| all.group(serial));
    if group.is_some_and(Group::is_waiting) {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Whether homes have answered for all partitions.
fn is_answered<P: ProtocolTypes>(conns: &Connections<P>, slot: u32, serial: u32) -> bool {
    let group = filter_subscriptions(conns, slot).and_then(|all| all.group(serial));
    group.is_some_and(|group| group.positions().iter().all(|at| !at.is_requested))
}

/// Whether the group waits for its first page of a partition, and has named no position there.
fn awaits_first_page<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    serial: u32,
    partition: PartitionId,
) -> bool {
    let group = filter_subscriptions(conns, slot).and_then(|all| all.group(serial));
    let at = group.and_then(|group| group.positions().get(usize::from(partition)));
    at.is_some_and(|at| at.awaits_first_page)
}

/// The offset up to which a group of filters has seen a partition.
fn seen_offset_in<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    serial: u32,
    partition: PartitionId,
) -> u64 {
    let group = filter_subscriptions(conns, slot).and_then(|all| all.group(serial));
    let at = group.and_then(|group| group.positions().get(usize::from(partition)));
    at.map_or(0, |at| at.offset)
}
