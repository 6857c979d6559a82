//! Live messages that match a client's filters. Each is sent once, with the options of all subscriptions that match.
use crate::client::delivery::{Addressee, Matched};
use crate::client::joining;
use crate::client::outbox::Packets;
use crate::client::row::LIVE;
use crate::io::Io;
use crate::mail::Frames;
use crate::protocol::front::{Clients, Connections, Deliveries, Matching, Sub, Subscriptions};
use crate::protocol::mqtt::give::{Offered, Wants, offer_packet};
use crate::protocol::mqtt::list::{list_of, sub_mut};
use crate::protocol::mqtt::overlap::{start_all, wants_of};
use crate::protocol::mqtt::{list, overlap};
use crate::store::slab::NONE;
use alloc::vec::Vec;

/// Sends the live messages of a run to one client, each once.
pub(crate) fn mqtt_matched<I: Io>(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
    (all, messages, frames): (&[Addressee], &[Matched], &Frames),
    io: &mut I,
) {
    let mut out = Packets::default();
    for due in all.chunk_by(|a, b| a.message == b.message) {
        let message = due
            .first()
            .and_then(|due| messages.get(due.message as usize));
        let Some(message) = message else {
            return clients.broken(slot);
        };
        mqtt_matched_one(
            clients,
            subs,
            deliveries,
            slot,
            (due, message, frames),
            &mut out,
        );
    }
    if !out.bytes.is_empty() {
        clients.put_messages(slot, &out.bytes, &out.ends, io);
    }
}

fn mqtt_matched_one(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
    (due, message, frames): (&[Addressee], &Matched, &Frames),
    out: &mut Packets,
) {
    let (mut parts, exact) = live_parts(&clients.conns, slot, due, message);
    if parts.is_empty() {
        return;
    }
    let (name, record) = (frames.name(message.name), &message.record);
    let (mut all, mut waiting) = (parts.clone(), Vec::new());
    if let Some(sharers) = overlap::sharers(clients, subs, deliveries, slot, (name, record, frames))
    {
        let shares = |part: &u32| sharers.parts.contains(part);
        if parts.contains(&sharers.lead) {
            let others = sharers.parts.iter().filter(|part| !parts.contains(part));
            all.extend(others);
        } else {
            (waiting, parts) = parts.into_iter().partition(shares);
            all.clone_from(&parts);
        }
    }
    let mut identifiers = Vec::new();
    let options = wants_of(&clients.conns, slot, &all, record, frames, &mut identifiers);
    let wants = Wants {
        options: options.unwrap_or_default(),
        identifiers: &identifiers,
        ..Wants::default()
    };
    let message_bytes = (name, record, frames);
    let full = options.is_some() && {
        let offered = offer_packet(clients, slot, &wants, message_bytes, out);
        matches!(offered, Offered::Full)
    };
    if let Some(part) = exact {
        let epoch = clients.ctx.world.epoch;
        if let Some(sub) = sub_mut(&mut clients.conns, slot, part) {
            (sub.offset, sub.epoch) = (record.offset, epoch);
        }
    }
    if full {
        waiting.append(&mut parts);
    }
    if waiting.is_empty() {
        return;
    }
    let (partition, offset) = (message.partition, record.offset);
    start_all(clients, &subs.topics, slot, partition, offset);
    for part in waiting {
        fell_behind_with(clients, &subs.matching, slot, part, message);
    }
}

/// The subscriptions that a message comes to by a filter that is live, and the one to its topic, which the second place repeats.
fn live_parts(
    conns: &Connections,
    slot: u32,
    due: &[Addressee],
    message: &Matched,
) -> (Vec<u32>, Option<u32>) {
    let Some(subscriptions) = joining::filter_subscriptions(conns, slot) else {
        return (Vec::new(), None);
    };
    let live = due
        .iter()
        .filter(|due| subscriptions.is_live(due.part, message.partition));
    let mut parts: Vec<u32> = live
        .filter_map(|due| subscriptions.part(due.part).map(|part| part.id))
        .collect();
    // Most messages have no exact subscriber here, and a list may be long. An exact subscription that leaves its messages to a
    // filter gets this one here even if the filter fell behind with an earlier message of the run.
    let is = |sub: &Sub| {
        sub.topic == message.topic && sub.flags & LIVE != 0 && sub.offset < message.record.offset
    };
    let exact = match message.topic {
        NONE => None,
        _ => list_of(conns, slot).iter().position(is),
    };
    let exact = exact.map(|part| part as u32);
    parts.extend(exact);
    (parts, exact)
}

/// A live subscription has no room for this message: from now on it reads from the log.
fn fell_behind_with(
    clients: &mut Clients,
    matching: &Matching,
    slot: u32,
    part: u32,
    message: &Matched,
) {
    let record = &message.record;
    let filter = list::sub(&clients.conns, slot, part).map_or(0, |sub| sub.own.filter);
    match filter.checked_sub(1) {
        Some(serial) => {
            let seen = (message.partition, record.offset - 1);
            clients.fall_back_in(matching, slot, serial, seen);
        }
        None => clients.fall_back(slot, part, record.previous),
    }
}
