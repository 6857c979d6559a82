//! Sends the latest values of a topic to a new subscription to the topic's name. If the topic's rule keeps only latest values, these are its retained
//! messages (MQTT 5.0 section 3.8.4).
//!
//! The subscription itself begins with the next message that is published. The values before that are read in pages, one subscription after another: the next page is
//! requested when the client has room for it. A value that is published meanwhile is sent only by the subscription. Subscriptions that overlap with this
//! one are not affected.
//!
//! Not here: a single retained message (`client/list/page.rs`), and the values of topics that match a filter with wildcards (`client/list/filters.rs`).

use crate::base::position::{Position, Since};
use crate::client::codec::Message;
use crate::client::list::{self, move_to_row};
use crate::client::outbox::Packets;
use crate::client::subscribing::counted_page_request;
use crate::io::Io;
use crate::mail::{Attach, Frames, Page, Record};
use crate::protocol::front::{Clients, Connections, Queues, Subscriptions, Topics};
use crate::protocol::mqtt::client::{self, has_inflight_room, inflight_room, mqtt_state_mut};
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, DeliveryResult, write_publish};
use crate::protocol::mqtt::read_positions::LatestValuesRead;

/// Sends the values of a page from the home.
pub(super) fn send_latest_values<I: Io>(
    clients: &mut Clients,
    topics: &Topics,
    queues: &mut Queues,
    (slot, sub_index): (u32, u32),
    page: &Page,
    (records, frames): (&[Record], &Frames),
    io: &mut I,
) {
    let reads =
        client::mqtt_state(&clients.conns, slot).map_or(&[][..], |mqtt| &mqtt.retained_latest);
    let is_answered = |read: &&LatestValuesRead| read.sub_index == sub_index && read.is_requested;
    let Some((mut offset, last_offset)) = reads
        .iter()
        .find(is_answered)
        .map(|read| (read.sent_offset, read.last_offset))
    else {
        return;
    };
    let Some(sub) = list::sub(&clients.conns, slot, sub_index) else {
        return clients.end_as_broken(slot);
    };
    let name = topics.name(sub.topic);
    let delivery = DeliveryOptions {
        options: sub.protocol_state.options,
        identifiers: &[sub.protocol_state.identifier],
        ..DeliveryOptions::default()
    };
    let mut out = Packets::default();
    let mut is_full = false;
    for record in records.iter().filter(|record| record.offset <= last_offset) {
        let message = Message {
            name,
            record,
            frames,
            retained: true,
        };
        if let DeliveryResult::Later = write_publish(clients, slot, &delivery, &message, &mut out) {
            is_full = true;
            break;
        }
        offset = record.offset;
    }
    let is_finished = !is_full && (page.at_head || page.head >= last_offset);
    let reads = &mut mqtt_state_mut(&mut clients.conns, slot).retained_latest;
    if let Some(index) = reads.iter().position(|read| read.sub_index == sub_index) {
        let read = &mut reads[index];
        read.is_requested = false;
        match (core::mem::take(&mut read.must_restart), is_finished) {
            (true, _) => {}
            (false, true) => drop(reads.remove(index)),
            (false, false) => read.sent_offset = offset,
        }
    }
    if !out.bytes.is_empty() {
        clients.send_messages(slot, &out.bytes, &out.ends, io);
    }
    match client::mqtt_state(&clients.conns, slot)
        .is_some_and(|mqtt| !mqtt.retained_latest.is_empty())
    {
        true => queues.resume_later(clients, clients.conns.id_of(slot)),
        false => move_to_row(&mut clients.conns, slot),
    }
}

/// Begins to send all latest values of a subscription's topic up to `last_offset`.
pub(super) fn begin_latest_values(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    sub_index: u32,
    last_offset: u64,
) {
    let reads = &mut mqtt_state_mut(&mut clients.conns, slot).retained_latest;
    match reads.iter_mut().find(|read| read.sub_index == sub_index) {
        Some(read) => {
            (read.sent_offset, read.last_offset, read.must_restart) =
                (0, last_offset, read.is_requested)
        }
        None => reads.push(LatestValuesRead {
            sub_index,
            sent_offset: 0,
            last_offset,
            is_requested: false,
            must_restart: false,
        }),
    }
    queues.resume_later(clients, clients.conns.id_of(slot));
}

/// Whether a subscription still has latest values to send.
pub(super) fn is_sent_latest_values(conns: &Connections, slot: u32, sub_index: u32) -> bool {
    let reads = client::mqtt_state(conns, slot).map_or(&[][..], |mqtt| &mqtt.retained_latest);
    reads.iter().any(|read| read.sub_index == sub_index)
}

/// Stops sending values to a subscription. Returns false if it had none left.
pub(super) fn end_latest_values(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    sub_index: u32,
) -> bool {
    if !is_sent_latest_values(&clients.conns, slot, sub_index) {
        return false;
    }
    mqtt_state_mut(&mut clients.conns, slot)
        .retained_latest
        .retain(|read| read.sub_index != sub_index);
    // Then the next subscription in the list is served.
    queues.resume_later(clients, clients.conns.id_of(slot));
    true
}

/// Requests the next page for the first subscription in the list, if the client has room for it.
pub(super) fn ask_latest_values(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    let read =
        client::mqtt_state(&clients.conns, slot).and_then(|mqtt| mqtt.retained_latest.first());
    let Some((sub_index, offset)) = read
        .filter(|read| !read.is_requested)
        .map(|read| (read.sub_index, read.sent_offset))
    else {
        return;
    };
    let room = inflight_room(&clients.conns, slot, sub_index);
    let Some(sub) = list::sub(&clients.conns, slot, sub_index) else {
        return clients.end_as_broken(slot);
    };
    let (topic, epoch) = (sub.topic, sub.epoch);
    if room == 0 || room < u32::MAX && !has_inflight_room(&clients.conns, slot) {
        return;
    }
    let since = match offset {
        0 => Since::Oldest,
        offset => Since::At(Position { epoch, offset }),
    };
    let ask = Attach {
        messages_max: room,
        is_next_page: true,
        retained: true,
        ..counted_page_request(clients, &subs.topics, slot, sub_index, topic, since)
    };
    subs.attach(&clients.ctx, ask);
    if let Some(read) = mqtt_state_mut(&mut clients.conns, slot)
        .retained_latest
        .first_mut()
    {
        read.is_requested = true;
    }
}
