//! Subscriptions with wildcards (MQTT 5.0 section 4.7.1). Each one is a group of its own among the connection's filters (`matching.rs`), with a position
//! for each partition. If a message matches several live subscriptions, it is sent once, with their highest QoS and all their identifiers. A
//! subscription that has fallen behind reads its messages from the log; then `overlap.rs` decides which subscription sends a message.

use alloc::vec::Vec;

use crore_wire::mqtt::{Qos, ReasonCode, RetainHandling};

use crate::base::ids::PartitionId;
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::client::joining::{self, Asking, ask_matches, filter_subscriptions_mut, join_filters};
use crate::client::matches::seen_by;
use crate::client::outbox::Packets;
use crate::filters::matching::{GroupPosition, Part, RETAINED_SENT};
use crate::io::Io;
use crate::mail::{Attached, FilterPage, Frames};
use crate::protocol::front::{
    Clients, Connections, Deliveries, Matching, Queues, Sub, Subscriptions,
};
use crate::protocol::mqtt::client::{count_asked_pages, has_place, mqtt_state};
use crate::protocol::mqtt::give::{Offered, Wants, offer_packet};
use crate::protocol::mqtt::list;
use crate::protocol::mqtt::list::{
    Wanted, add_sub, list_of, part_of_group, serial_of, sub_mut, wildcard_at,
};
use crate::protocol::mqtt::options::{qos, qos_of};
use crate::protocol::mqtt::overlap::{give_in_turn, start_live};
use crate::protocol::mqtt::retention::{await_retention, count_qos_subscription_of};
use crate::protocol::mqtt::state::Subscribed;
use crate::store::slab::NONE;

/// Handles a home's page for a subscription with wildcards. Returns the subscription's index if the home has no room for it.
pub(crate) fn mqtt_match_page<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    deliveries: &Deliveries,
    queues: &mut Queues,
    (slot, serial): (u32, u32),
    (page, frames): (&FilterPage, &Frames),
    io: &mut I,
) -> Option<u32> {
    let part = part_of_group(&clients.conns, slot, serial)?;
    let shows = serial_of(&clients.conns, slot, part) != Some(serial);
    if page.attached != Attached::Yes {
        if !shows {
            return Some(part);
        }
        clients.leave_group(subs, slot, serial);
        return None;
    }
    let mut out = Packets::default();
    let mut full = None;
    let before = wildcard_at(&clients.conns, slot, serial, page.partition);
    let mut seen = before;
    for (name, record) in page.records(frames) {
        let retained = record.offset <= page.snapshot_end;
        if shows && !retained {
            break;
        }
        let Some(sub) = list::sub(&clients.conns, slot, part) else {
            clients.broken(slot);
            return None;
        };
        let identifiers = [sub.own.identifier];
        let wants = Wants {
            options: sub.own.options,
            identifiers: &identifiers,
            retained,
            ..Wants::default()
        };
        let message = (frames.name(name), record, frames);
        let offered = match retained {
            true => offer_packet(clients, slot, &wants, message, &mut out),
            false => give_in_turn(
                clients,
                subs,
                deliveries,
                (slot, part),
                &wants,
                message,
                &mut out,
            ),
        };
        if let Offered::Full = offered {
            full = Some(seen);
            break;
        }
        seen = record.offset;
    }
    if !out.bytes.is_empty() {
        clients.put_messages(slot, &out.bytes, &out.ends, io);
    }
    let (offset, live) = full.map_or((page.head, page.at_head), |offset| (offset, false));
    if shows {
        let ends = full.is_none() && (live || offset >= page.snapshot_end);
        record_retained_page(clients, subs, queues, slot, serial, page, (offset, ends));
        return None;
    }
    clients.record_page(slot, serial, page, offset, live);
    if live {
        start_live(&mut clients.conns, slot, part, page.partition, offset);
    }
    if is_answered(&clients.conns, slot, serial) {
        grant_asked(clients, slot, part);
        clients.send_reply(slot, io);
        clients.confirm_resumed(slot, io);
    }
    resume_if_behind(clients, queues, slot);
    None
}

/// Subscribes to a filter. `since` has a position for each partition, or is empty.
///
/// # Errors
/// There is no room for it.
pub(super) fn join_wildcard(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    wanted: &Wanted<'_>,
    since: &[Since],
) -> Result<(), Reason> {
    let sub = Sub {
        topic: NONE,
        own: Subscribed {
            options: wanted.options.bits(),
            identifier: wanted.identifier,
            granted: wanted.granted,
            filter: u32::MAX,
            ..Subscribed::default()
        },
        ..Sub::default()
    };
    let part = add_sub(&mut clients.conns, slot, sub);
    let first = if wanted.retained {
        Since::Default
    } else {
        Since::Live
    };
    let partitions = usize::from(clients.ctx.world.partitions);
    let live = alloc::vec![first; partitions];
    let since = if since.len() == partitions {
        since
    } else {
        &live[..]
    };
    match join_filters(clients, subs, slot, &[(wanted.filter, part)], since, false) {
        Ok(serial) => {
            count_asked_pages(
                &mut clients.conns,
                slot,
                clients.ctx.world.partitions.into(),
            );
            if let Some(sub) = sub_mut(&mut clients.conns, slot, part) {
                sub.own.filter = serial + 1;
            }
            if wanted.options.max_qos != Qos::AtMostOnce {
                count_qos_subscription_of(&mut subs.lanes, &clients.ctx, 0, wanted.filter, true);
                mqtt_state(&mut clients.conns, slot).needs_told = true;
            }
            Ok(())
        }
        Err(reason) => {
            if let Some(sub) = sub_mut(&mut clients.conns, slot, part) {
                sub.own.filter = 0;
            }
            Err(reason)
        }
    }
}

/// Notes that a page of a group that only sends retained messages again was sent up to `offset`. Such a group is never live, since live messages are sent
/// by the subscription's own group. It ends when the retained messages of all partitions were sent.
fn record_retained_page(
    clients: &mut Clients,
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
        return clients.broken(slot);
    };
    if let Some(at) = subscriptions.at_mut(serial, page.partition) {
        (at.offset, at.asked) = (RETAINED_SENT, true);
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
    resume_if_behind(clients, queues, slot);
}

/// Requests a subscription's retained messages once more, beside its other messages.
pub(super) fn resend_retained(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    part: u32,
    filter: &[u8],
) {
    end_retained_resend(clients, subs, slot, part);
    let since = alloc::vec![Since::Default; usize::from(clients.ctx.world.partitions)];
    // If there is no room for that, the subscription continues without them.
    if join_filters(clients, subs, slot, &[(filter, part)], &since, false).is_ok() {
        count_asked_pages(
            &mut clients.conns,
            slot,
            clients.ctx.world.partitions.into(),
        );
    }
}

/// Requests the next pages of subscriptions with wildcards that have fallen behind, as far as there is room.
pub(super) fn catch_up_wildcards(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    let Some(subscriptions) =
        joining::filter_subscriptions(&clients.conns, slot).filter(|all| all.is_behind())
    else {
        return;
    };
    let bound = !has_place(&clients.conns, slot);
    let list = list_of(&clients.conns, slot);
    let mut behind = Vec::new();
    for group in subscriptions.groups() {
        let mut parts = subscriptions.parts_of(group.serial);
        // Messages in flight never hold back QoS 0.
        let held = |(_, part): (u32, &Part)| {
            bound
                && list
                    .get(part.id as usize)
                    .is_some_and(|sub| qos(sub.own.options) > 0)
        };
        if !parts.any(held) {
            behind.push(group.serial);
        }
    }
    for serial in behind {
        let subscriptions = filter_subscriptions_mut(&mut clients.conns, slot);
        if let Some(partition) = subscriptions.and_then(|all| all.next_behind(serial)) {
            let asked = ask_matches(
                clients,
                subs,
                Asking {
                    slot,
                    serial,
                    poll: false,
                },
                partition,
            );
            count_asked_pages(&mut clients.conns, slot, asked.into());
        }
    }
}

/// Gives a subscription with wildcards new options.
pub(super) fn resubscribe_wildcard(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    part: u32,
    wanted: &Wanted<'_>,
) -> Result<(), ReasonCode> {
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let former = qos(sub.own.options);
    (sub.own.options, sub.own.identifier) = (wanted.options.bits(), wanted.identifier);
    let waits = sub.own.granted != (0, 0);
    if waits {
        // Homes have not answered the earlier SUBSCRIBE. Their last answer grants both.
        let former = core::mem::replace(&mut sub.own.granted, wanted.granted);
        let behind = &mut mqtt_state(&mut clients.conns, slot).grants_behind;
        behind.push((wanted.granted, former));
    }
    let needs_log = wanted.options.max_qos != Qos::AtMostOnce;
    if (former > 0) != needs_log {
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, 0, wanted.filter, needs_log);
        await_retention(clients, &mut subs.lanes, slot, wanted);
    }
    if !waits {
        let reason = ReasonCode::granted(wanted.options.max_qos);
        clients.grant(slot, wanted.granted, reason);
    }
    if wanted.options.retain_handling == RetainHandling::Send {
        // [MQTT-3.8.4-3]. Live messages continue.
        resend_retained(clients, subs, slot, part, wanted.filter);
    }
    Ok(())
}

/// The positions of a subscription with wildcards, one for each partition. Empty until homes have answered for all partitions. While retained messages are
/// sent, it is where the subscription began: otherwise the next connection would get all older messages.
pub(super) fn wildcard_seen(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    serial: u32,
) -> Vec<u64> {
    let Some(group) =
        joining::filter_subscriptions(&clients.conns, slot).and_then(|all| all.group(serial))
    else {
        return Vec::new();
    };
    let at = |partition: PartitionId| match group.positions().get(usize::from(partition)) {
        None => Some(seen_by(matching, deliveries, &clients.ctx, slot, partition)),
        Some(at) if at.live => {
            Some(
                at.offset
                    .max(seen_by(matching, deliveries, &clients.ctx, slot, partition)),
            )
        }
        Some(at) if at.new => None,
        Some(at) => Some(at.offset.max(at.snapshot_end)),
    };
    let partitions = 0..clients.ctx.world.partitions;
    partitions
        .map(at)
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// Whether a subscription with wildcards has not yet been sent all retained messages that it asked for by subscribing.
pub(super) fn lacks_retained(conns: &Connections, slot: u32, part: u32) -> bool {
    let Some(serial) = serial_of(conns, slot, part) else {
        return false;
    };
    let group = joining::filter_subscriptions(conns, slot).and_then(|all| all.group(serial));
    let reads = |at: &GroupPosition| !at.live && at.offset < at.snapshot_end;
    group.is_some_and(|group| group.positions().iter().any(reads))
        || resend_group(conns, slot, part).is_some()
}

/// A page was handled: requests the next one if necessary.
fn resume_if_behind(clients: &Clients, queues: &mut Queues, slot: u32) {
    if joining::filter_subscriptions(&clients.conns, slot).is_some_and(|all| all.is_behind()) {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// The group that sends a subscription's retained messages again.
fn resend_group(conns: &Connections, slot: u32, part: u32) -> Option<u32> {
    let own = serial_of(conns, slot, part);
    let mut parts = joining::filter_subscriptions(conns, slot)?.parts();
    let is = |it: &Part| it.id == part && Some(it.group) != own;
    parts.find_map(|(_, it)| is(it).then_some(it.group))
}

/// Stops sending a subscription's retained messages again.
fn end_retained_resend(clients: &mut Clients, subs: &mut Subscriptions, slot: u32, part: u32) {
    if let Some(serial) = resend_group(&clients.conns, slot, part) {
        clients.leave_group(subs, slot, serial);
    }
}

/// Ends a subscription with wildcards.
pub(super) fn leave_wildcard(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    part: u32,
    serial: u32,
) {
    clients.leave_group(subs, slot, serial);
    end_retained_resend(clients, subs, slot, part);
}

fn grant_pending(clients: &mut Clients, slot: u32, part: u32, reason: ReasonCode) {
    let sub = sub_mut(&mut clients.conns, slot, part);
    let granted = sub.map_or((0, 0), |sub| core::mem::take(&mut sub.own.granted));
    if granted != (0, 0) {
        clients.grant(slot, granted, reason);
    }
}

/// The positions at which a resumed subscription continues.
pub(super) fn since_all(epoch: u32, seen: &[u64]) -> Vec<Since> {
    let at = |offset: &u64| Since::At(Position::new(epoch, *offset));
    seen.iter().map(at).collect()
}

/// Whether homes have answered for all partitions.
fn is_answered(conns: &Connections, slot: u32, serial: u32) -> bool {
    let group = joining::filter_subscriptions(conns, slot).and_then(|all| all.group(serial));
    group.is_some_and(|group| group.positions().iter().all(|at| !at.asked))
}

/// Grants the requested QoS of a subscription.
fn grant_asked(clients: &mut Clients, slot: u32, part: u32) {
    let options = list::sub(&clients.conns, slot, part).map_or(0, |sub| sub.own.options);
    let reason = ReasonCode::granted(qos_of(options));
    grant_pending(clients, slot, part, reason);
}
