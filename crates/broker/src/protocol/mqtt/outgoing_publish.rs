//! Delivers one message to one MQTT client: combines the options of the client's subscriptions, and writes the PUBLISH.

use crore_wire::mqtt::{PacketId, Publish, Qos, Version, encode};
use crore_wire::websocket::frame::Opcode;

use crate::base::ids::PartitionId;
use crate::client::codec::{Message, OfferOutcome};
use crate::client::outbox::Packets;
use crate::client::{list, send};
use crate::io::Io;
use crate::mail::properties::remaining_ttl_s;
use crate::protocol::encode::frame_rope;
use crate::protocol::front::{Clients, Connections};
use crate::protocol::mqtt::client::{
    self, client_packet_bytes_max, has_inflight_room, has_waiting, mqtt_state_mut, take_packet_id,
};
use crate::protocol::mqtt::options::{IN_FRAMES, NO_LOCAL, RETAIN_AS_PUBLISHED, qos};
use crate::protocol::mqtt::plain::write_properties;
use crate::protocol::mqtt::state::{
    DeliveryStep, Inflight, NO_END_S, RecordWait, packet_without_payload,
};
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// How a message is delivered: the combined options of the subscriptions that match it.
#[derive(Clone, Copy, Default)]
pub(super) struct DeliveryOptions<'a> {
    /// The highest QoS of the subscriptions, and the flags, in one byte.
    pub options: u8,
    /// The subscription identifiers; 0 stands for none.
    pub identifiers: &'a [u32],
    /// The index of the subscription in whose state the topic's alias is stored, or will be.
    pub alias_subscription: Option<u32>,
    /// For a message of a shared subscription: the subscription's index and the partition of the topic.
    pub group: Option<(u16, PartitionId)>,
    /// The message is in no log. It cannot be read again later, so it is sent even if other messages wait or the outbox has no room. It waits only if
    /// the client must acknowledge it and may get no further message.
    pub is_in_no_log: bool,
}

/// The result of a delivery.
pub(super) enum DeliveryResult {
    /// The packet was written to `out`, or will be sent when the session's record is in the log. With the packet id, if the client must acknowledge
    /// the packet.
    Sent(Option<PacketId>),
    /// The client does not get the message.
    Skipped,
    /// There is no room now, or the message would overtake others.
    Later,
}

impl DeliveryResult {
    pub(super) fn into_offer_outcome(self) -> OfferOutcome {
        match self {
            DeliveryResult::Sent(_) | DeliveryResult::Skipped => OfferOutcome::Done,
            DeliveryResult::Later => OfferOutcome::Full,
        }
    }
}

/// Appends the packet of a message to `out`, if there is room for it. A packet that must not be sent before the session's record is in the log is
/// only put into the list of messages in flight.
pub(super) fn write_publish(
    clients: &mut Clients,
    slot: u32,
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
    out: &mut Packets,
) -> DeliveryResult {
    let (record, frames) = (message.record, message.frames);
    let own_origin = client::origin_of(&clients.conns, slot);
    if delivery.options & NO_LOCAL != 0 && frames.origin(record) == own_origin {
        return DeliveryResult::Skipped;
    }
    let has_outbox = clients.conns.get(slot).link.outbox != NONE;
    let needs_ack = record.qos.min(qos(delivery.options)) > 0;
    let bytes = out.bytes.len() + frames.frame(record).len();
    let bounds = || {
        clients
            .ctx
            .bounds_for_topic(message.name)
            .reserving(out.ends.len())
    };
    // While messages wait for a place, a message for a subscription of QoS 1 or 2 must wait too, so that the order stays.
    let would_overtake = qos(delivery.options) > 0 && has_waiting(&clients.conns, slot);
    if needs_ack
        && (!has_inflight_room(&clients.conns, slot)
            || !clients.fits_record(slot, frames.frame(record).len()))
        || !delivery.is_in_no_log
            && (would_overtake
                || record.latest && has_outbox
                || !send::fits(&clients.conns, slot, bytes, bounds))
    {
        return DeliveryResult::Later;
    }
    let id = needs_ack.then(|| take_packet_id(&mut clients.conns, &clients.meter.work, slot));
    let start = out.bytes.end();
    let Some(packet) = encode_publish(clients, slot, delivery, message, id) else {
        return DeliveryResult::Skipped;
    };
    clients.meter.stats.sent(1, packet.len());
    let waits_for_record =
        needs_ack && clients.must_record(slot, record.qos.min(qos(delivery.options)));
    if !waits_for_record {
        out.bytes.append(&packet, 0, packet.len());
        if clients.conns.get(slot).has_option(IN_FRAMES) {
            frame_rope(&mut out.bytes, start, Opcode::Binary);
        }
        if clients.ctx.world.rules.any_counts_outbox_messages() {
            out.ends.push(out.bytes.len());
        }
    }
    if let Some(id) = id {
        let mut entry = inflight_entry(&clients.conns, slot, id, delivery, message, packet);
        if waits_for_record {
            entry.record_wait = RecordWait::NextRecord;
            clients.record_later(slot);
        }
        mqtt_state_mut(&mut clients.conns, slot).add_inflight(entry);
    }
    DeliveryResult::Sent(id)
}

/// Queues a message until there is room for it. Returns false if the client does not get it.
pub(super) fn queue_packet(
    clients: &mut Clients,
    slot: u32,
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
) -> bool {
    // A placeholder: the message gets its packet id when it is sent.
    let id = PacketId::MAX;
    let Some(packet) = encode_publish(clients, slot, delivery, message, Some(id)) else {
        return false;
    };
    let entry = inflight_entry(&clients.conns, slot, id, delivery, message, packet);
    mqtt_state_mut(&mut clients.conns, slot)
        .waiting
        .push_back(entry);
    true
}

/// Encodes the PUBLISH, and assigns a topic alias if there is a free one. `None` if the message has expired, is larger than the client takes
/// [MQTT-3.1.2-25], or cannot be encoded.
fn encode_publish(
    clients: &mut Clients,
    slot: u32,
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
    packet_id: Option<PacketId>,
) -> Option<Rope> {
    let (record, frames) = (message.record, message.frames);
    let version = client::version_of(&clients.conns, slot);
    let left_s = remaining_ttl_s(record, clients.ctx.now.unix_s);
    let subscription = delivery.alias_subscription.filter(|_| packet_id.is_none());
    let (is_alias_known, alias) = subscription.map_or((false, 0), |sub_index| {
        alias_for(&clients.conns, slot, sub_index)
    });
    let mut properties = core::mem::take(&mut clients.protocol_state.properties_buffer);
    properties.clear();
    if version == Version::V5 {
        write_properties(&mut properties, frames, record, left_s);
        for identifier in delivery.identifiers.iter().filter(|n| **n != 0) {
            properties.subscription_identifier(*identifier);
        }
        if alias != 0 {
            properties.topic_alias(alias);
        }
    }
    // Topics are UTF-8.
    let name = core::str::from_utf8(message.name).unwrap_or_default();
    let qos = record.qos.min(qos(delivery.options));
    let publish = Publish {
        dup: false,
        qos: Qos::from_repr(qos).unwrap_or(Qos::AtMostOnce),
        retain: message.retained || record.retain && delivery.options & RETAIN_AS_PUBLISHED != 0,
        topic: if is_alias_known { "" } else { name },
        packet_id,
        properties: properties.properties(),
        payload: frames.data(record),
    };
    let bytes = encode::publish_bytes(version, &publish, publish.payload.len());
    let is_small_enough = bytes <= client_packet_bytes_max(&clients.conns, slot);
    // An expiry of 0 means: only for the clients that are connected now, as this one is.
    let is_unexpired = left_s != Some(0) || record.ttl_s() == Some(0);
    let mut out = Rope::default();
    if is_small_enough && is_unexpired && !name.is_empty() {
        let payload_bytes = publish.payload.len();
        if encode::publish_head(&mut out.own, version, &publish, payload_bytes) {
            match frames.large_data(record) {
                Some(payload) => out.push_slice(payload),
                None => out.own.extend_from_slice(publish.payload),
            }
        }
    }
    let is_written = !out.is_empty();
    clients.meter.stats.dropped += u64::from(is_unexpired && !is_written);
    clients.protocol_state.properties_buffer = properties;
    if let Some(sub_index) = subscription.filter(|_| is_written && alias != 0 && !is_alias_known) {
        let side_row = clients.conns.ensure_side_row(slot);
        if let (Some(sub), Some(mqtt)) = (
            side_row.list.get_mut(sub_index as usize),
            &mut side_row.protocol_state.mqtt,
        ) {
            (sub.protocol_state.alias, mqtt.aliases_assigned) = (alias, alias);
        }
    }
    is_written.then_some(out)
}

fn inflight_entry(
    conns: &Connections,
    slot: u32,
    id: PacketId,
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
    packet: Rope,
) -> Inflight {
    let (record, frames) = (message.record, message.frames);
    let payload = frames.large_data(record).filter(|_| packet.is_shared());
    let packet = match payload {
        Some(_) => packet_without_payload(&packet.own).expect("it was just written"),
        None => packet.own.into_boxed_slice(),
    };
    let end_s = record.ttl_s().map_or(NO_END_S, |ttl_s| {
        u64::from(record.time_s) + u64::from(ttl_s)
    });
    Inflight {
        packet_id: id.get(),
        step: DeliveryStep::Published,
        end_s,
        offset: record.offset,
        group: delivery.group,
        version: client::version_of(conns, slot),
        packet,
        payload,
        record_wait: RecordWait::None,
    }
}

/// Whether the client was already told the alias of a subscription's topic, and the alias. The alias is 0 if the topic has none and the client allows
/// no more.
fn alias_for(conns: &Connections, slot: u32, sub_index: u32) -> (bool, u16) {
    let (Some(sub), Some(mqtt)) = (
        list::sub(conns, slot, sub_index),
        client::mqtt_state(conns, slot),
    ) else {
        return (false, 0);
    };
    let alias = sub.protocol_state.alias;
    match alias {
        0 if mqtt.aliases_assigned < mqtt.aliases_max => (false, mqtt.aliases_assigned + 1),
        _ => (alias != 0, alias),
    }
}

/// Removes queued older messages of a topic: a retained message was just sent before them, so they are out of date.
fn drop_outdated(conns: &mut Connections, slot: u32, topic: &[u8], offset: u64) {
    let waiting = &mut mqtt_state_mut(conns, slot).waiting;
    waiting.retain(|old| {
        old.was_sent() || old.group.is_some() || old.offset >= offset || old.topic() != topic
    });
}

/// Sends a message that the client cannot read from a log later: a retained message, or one of a shared subscription. Queues the message if there is no
/// room. Returns whether the client must still acknowledge it.
pub(super) fn send_or_queue<I: Io>(
    clients: &mut Clients,
    slot: u32,
    delivery: &DeliveryOptions<'_>,
    message: &Message<'_>,
    io: &mut I,
) -> bool {
    let mut out = Packets::default();
    match write_publish(clients, slot, delivery, message, &mut out) {
        DeliveryResult::Sent(id) => {
            clients.send_messages(slot, &out.bytes, &out.ends, io);
            if message.retained && has_waiting(&clients.conns, slot) {
                drop_outdated(
                    &mut clients.conns,
                    slot,
                    message.name,
                    message.record.offset,
                );
            }
            id.is_some()
        }
        DeliveryResult::Skipped => false,
        DeliveryResult::Later => queue_packet(clients, slot, delivery, message),
    }
}
