//! Sends the latest values of a topic to a new subscription to the topic's name. If the topic's rule keeps only latest values, these are its retained
//! messages (MQTT 5.0 section 3.8.4).
//!
//! The subscription itself begins with the next message. The values are read separately, in pages: the next page is requested when the client has room
//! for it, and topics take turns. Subscriptions that overlap with this one are not affected. A value that is published meanwhile is sent only by the
//! subscription.
//!
//! Deliberately elsewhere: a single retained message (`page.rs`), and the values of topics that match a filter with wildcards (`filters.rs`).

use crate::base::position::{Position, Since};
use crate::client::codec::Message;
use crate::client::list::{self, collapse};
use crate::client::outbox::Packets;
use crate::client::subscribing::page_of;
use crate::io::Io;
use crate::mail::{Attach, Frames, Page, Record};
use crate::protocol::front::{Clients, Connections, Queues, Subscriptions, Topics};
use crate::protocol::mqtt::client::{self, has_place, mqtt_state, places};
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, DeliveryResult, write_publish};
use crate::protocol::mqtt::reading::LatestShown;

/// Sends a page of values that the home has answered with.
pub(super) fn send_latest_values<I: Io>(
    clients: &mut Clients,
    topics: &Topics,
    queues: &mut Queues,
    (slot, part): (u32, u32),
    page: &Page,
    (records, frames): (&[Record], &Frames),
    io: &mut I,
) {
    let shows = client::mqtt(&clients.conns, slot).map_or(&[][..], |mqtt| &mqtt.retained_latest);
    let asked = |show: &&LatestShown| show.part == part && show.asked;
    let Some((mut offset, until)) = shows
        .iter()
        .find(asked)
        .map(|show| (show.offset, show.until))
    else {
        return;
    };
    let Some(sub) = list::sub(&clients.conns, slot, part) else {
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
    for record in records.iter().filter(|record| record.offset <= until) {
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
    let ends = !is_full && (page.at_head || page.head >= until);
    let shows = &mut mqtt_state(&mut clients.conns, slot).retained_latest;
    if let Some(at) = shows.iter().position(|show| show.part == part) {
        let show = &mut shows[at];
        show.asked = false;
        match (core::mem::take(&mut show.anew), ends) {
            (true, _) => {}
            (false, true) => drop(shows.remove(at)),
            (false, false) => show.offset = offset,
        }
    }
    if !out.bytes.is_empty() {
        clients.put_messages(slot, &out.bytes, &out.ends, io);
    }
    match client::mqtt(&clients.conns, slot).is_some_and(|mqtt| !mqtt.retained_latest.is_empty()) {
        true => queues.resume_later(clients, clients.conns.id_of(slot)),
        false => collapse(&mut clients.conns, slot),
    }
}

/// Begins to send all latest values of a subscription's topic up to the offset `until`.
pub(super) fn begin_latest_values(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    part: u32,
    until: u64,
) {
    let shows = &mut mqtt_state(&mut clients.conns, slot).retained_latest;
    match shows.iter_mut().find(|show| show.part == part) {
        Some(show) => (show.offset, show.until, show.anew) = (0, until, show.asked),
        None => shows.push(LatestShown {
            part,
            offset: 0,
            until,
            asked: false,
            anew: false,
        }),
    }
    queues.resume_later(clients, clients.conns.id_of(slot));
}

/// Whether a subscription has not yet been sent all values.
pub(super) fn is_shown_values(conns: &Connections, slot: u32, part: u32) -> bool {
    let shows = client::mqtt(conns, slot).map_or(&[][..], |mqtt| &mqtt.retained_latest);
    shows.iter().any(|show| show.part == part)
}

/// Stops sending values to a subscription. Returns whether some were left.
pub(super) fn end_latest_values(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    part: u32,
) -> bool {
    if !is_shown_values(&clients.conns, slot, part) {
        return false;
    }
    mqtt_state(&mut clients.conns, slot)
        .retained_latest
        .retain(|show| show.part != part);
    // The next one may be asked for.
    queues.resume_later(clients, clients.conns.id_of(slot));
    true
}

/// Requests the next page of the first topic, if the client has room for it.
pub(super) fn ask_latest_values(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    let show = client::mqtt(&clients.conns, slot).and_then(|mqtt| mqtt.retained_latest.first());
    let Some((part, offset)) = show
        .filter(|show| !show.asked)
        .map(|show| (show.part, show.offset))
    else {
        return;
    };
    let most = places(&clients.conns, slot, part);
    let Some(sub) = list::sub(&clients.conns, slot, part) else {
        return clients.end_as_broken(slot);
    };
    let (topic, epoch) = (sub.topic, sub.epoch);
    if most == 0 || most < u32::MAX && !has_place(&clients.conns, slot) {
        return;
    }
    let since = match offset {
        0 => Since::Oldest,
        offset => Since::At(Position { epoch, offset }),
    };
    let ask = Attach {
        most,
        is_next_page: true,
        retained: true,
        ..page_of(clients, &subs.topics, slot, part, topic, since)
    };
    subs.attach(&clients.ctx, ask);
    if let Some(show) = mqtt_state(&mut clients.conns, slot)
        .retained_latest
        .first_mut()
    {
        show.asked = true;
    }
}
