//! Sends messages to the client, and handles its acknowledgements (MQTT 5.0 sections 3.3, 4.3, 4.4 and 4.9).
//!
//! The connection keeps a copy of a QoS 1 or 2 message until it is acknowledged. When the client connects again, the message is sent again with its packet
//! id, before newer messages. When the client's Receive Maximum is reached, the subscription falls back to its position, and reads from the log as
//! acknowledgements arrive. QoS 0 messages do not count there. But a QoS 0 message for a subscription of QoS 1 or 2
//! waits behind the messages that must be sent again.

use alloc::collections::VecDeque;

use crore_wire::mqtt::{
    Ack, PacketId, PacketType, Properties, PropertyWriter, Publish, ReasonCode, Version, encode,
};

use crore_wire::websocket::frame::Opcode;

use crate::io::Io;
use crate::protocol::encode::frame_rope;
use crate::protocol::front::{Clients, Connections, Lanes, Queues, Work};
use crate::protocol::mqtt::client::{
    self, INFLIGHT_PER_STEP, mqtt_state_mut, receive_max, take_packet_id,
};
use crate::protocol::mqtt::options::IN_FRAMES;
use crate::protocol::mqtt::shared::give_credit;
use crate::protocol::mqtt::state::{
    DeliveryStep, Inflight, NO_END_S, RecordWait, packet_without_payload,
};
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// When a session is resumed, about this many bytes of messages are sent again at once. The rest waits.
const RESEND_BYTES_MAX: usize = 256 << 10;

/// Sends messages that waited for room: first those that are sent again, then retained messages and messages of shared subscriptions.
pub(super) fn send_waiting<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    let mut sent_count = 0;
    loop {
        let Some(mqtt) = client::mqtt_state(&clients.conns, slot) else {
            return;
        };
        let Some(first) = mqtt.waiting.front() else {
            return;
        };
        let is_full = mqtt.inflight.len() >= receive_max(&clients.conns, slot)
            || !clients.fits_record(slot, first.wire_bytes());
        if is_full || clients.conns.get(slot).link.outbox != NONE {
            return;
        }
        if sent_count > 0 && clients.meter.work.is_spent() {
            return queues.resume_later(clients, clients.conns.id_of(slot));
        }
        sent_count += 1;
        let now_s = clients.ctx.now.unix_s;
        let mqtt = mqtt_state_mut(&mut clients.conns, slot);
        let Some(mut message) = mqtt.waiting.pop_front() else {
            return;
        };
        let was_sent = message.was_sent();
        if !was_sent && message.end_s <= u64::from(now_s) {
            // [MQTT-3.3.2-5]: it has expired before its delivery began.
            if let Some((sub_index, partition)) = message.group {
                let position = (partition, message.offset);
                give_credit(clients, lanes, slot, u32::from(sub_index), position);
            }
            continue;
        }
        if !was_sent {
            message.packet_id = take_packet_id(&mut clients.conns, &clients.meter.work, slot).get();
        }
        let bytes = message.wire_bytes();
        let waits_for_record = !was_sent && clients.must_record(slot, message.qos());
        if waits_for_record {
            message.record_wait = RecordWait::NextRecord;
            clients.record_later(slot);
        }
        let index = mqtt_state_mut(&mut clients.conns, slot).add_inflight(message);
        clients.meter.work.steps.add(1);
        clients.meter.work.steps.add_bytes(bytes);
        if !waits_for_record {
            resend(clients, slot, index, was_sent, io);
            clients.send_reply(slot, io);
        }
    }
}

/// Handles PUBACK or PUBCOMP: the message is no longer in flight.
pub(super) fn handle_acknowledgement(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    (packet, id): (PacketType, PacketId),
) -> Result<(), ReasonCode> {
    let index = find_acknowledged(&mut clients.conns, &clients.meter.work, slot, id, packet)?;
    drop_inflight(clients, lanes, queues, slot, index);
    clients.note_acknowledged(slot);
    Ok(())
}

/// Handles PUBREC: the client has received the message. Answers with PUBREL. If the session is recorded, the PUBREL waits until the log has this step.
pub(super) fn handle_pubrec(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    ack: &Ack<'_>,
) -> Result<(), ReasonCode> {
    let index = find_acknowledged(
        &mut clients.conns,
        &clients.meter.work,
        slot,
        ack.packet_id,
        PacketType::PubRec,
    )?;
    if ack.reason.is_error() {
        // [MQTT-4.3.3-4]: the client refuses it.
        drop_inflight(clients, lanes, queues, slot, index);
        return Ok(());
    }
    let must_record = clients.must_record(slot, 2);
    let message = index.and_then(|index| {
        mqtt_state_mut(&mut clients.conns, slot)
            .inflight
            .get_mut(index)
    });
    let reason = match message {
        Some(message)
            if must_record
                && (message.step, message.record_wait)
                    != (DeliveryStep::Released, RecordWait::None) =>
        {
            message.step = DeliveryStep::Released;
            message.drop_packet();
            message.record_wait = RecordWait::NextRecord;
            clients.record_later(slot);
            return Ok(());
        }
        Some(message) => {
            message.step = DeliveryStep::Released;
            message.drop_packet();
            ReasonCode::SUCCESS
        }
        None => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
    };
    let version = client::version_of(&clients.conns, slot);
    let release = Ack {
        packet_id: ack.packet_id,
        reason,
        properties: Properties::NONE,
    };
    clients.write_packet(slot, |out| encode::pubrel(out, version, &release));
    Ok(())
}

/// Finds the acknowledged message in flight. An unknown packet id is ignored, since acknowledgements may be sent twice.
///
/// # Errors
/// The message waits for another kind of acknowledgement: it has another QoS [MQTT-4.3.2-3, MQTT-4.3.3-3], or an earlier acknowledgement is missing
/// [MQTT-4.3.3-5]. The message stays unchanged.
fn find_acknowledged(
    conns: &mut Connections,
    work: &Work,
    slot: u32,
    id: PacketId,
    kind: PacketType,
) -> Result<Option<usize>, ReasonCode> {
    if client::mqtt_state(conns, slot).is_none() {
        return Ok(None);
    }
    let mqtt = mqtt_state_mut(conns, slot);
    // Messages in `waiting` that have DUP were sent on an earlier connection.
    let was_resent_before =
        |message: &Inflight| message.packet_id == id.get() && message.was_sent();
    let queued_index = mqtt.waiting.iter().position(was_resent_before);
    if let Some(message) = queued_index.and_then(|index| mqtt.waiting.remove(index)) {
        mqtt.add_inflight(message);
    }
    let has_id = |message: &Inflight| message.packet_id == id.get();
    let inflight_index = mqtt.inflight.iter().position(has_id);
    let visited =
        queued_index.unwrap_or(mqtt.waiting.len()) + inflight_index.unwrap_or(mqtt.inflight.len());
    work.steps.add(visited / INFLIGHT_PER_STEP);
    let Some(index) = inflight_index else {
        return Ok(None);
    };
    let message = &mqtt_state_mut(conns, slot).inflight[index];
    let is_due = match (message.step, message.qos()) {
        (DeliveryStep::Released, _) => matches!(kind, PacketType::PubRec | PacketType::PubComp),
        (DeliveryStep::Published, 1) => kind == PacketType::PubAck,
        (DeliveryStep::Published, _) => kind == PacketType::PubRec,
    };
    match is_due {
        true => Ok(Some(index)),
        false => Err(ReasonCode::PROTOCOL_ERROR),
    }
}

/// Drops a message in flight, whose delivery is complete.
fn drop_inflight(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    index: Option<usize>,
) {
    let message = index.and_then(|index| {
        mqtt_state_mut(&mut clients.conns, slot)
            .inflight
            .remove(index)
    });
    let Some(message) = message else { return };
    if let Some((sub_index, partition)) = message.group {
        let position = (partition, message.offset);
        give_credit(clients, lanes, slot, u32::from(sub_index), position);
    }
    let side_row = clients.conns.ensure_side_row(slot);
    let has_queued = side_row
        .protocol_state
        .mqtt
        .as_ref()
        .is_some_and(|mqtt| !mqtt.waiting.is_empty() || !mqtt.retained_latest.is_empty());
    let filters = side_row.filters.as_ref();
    let is_behind =
        !side_row.behind.is_empty() || filters.is_some_and(|all| all.has_waiting_group());
    if has_queued || is_behind {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Sends the unacknowledged messages of a resumed session again, in their order [MQTT-4.4.0-1]. Messages beyond the Receive Maximum of this
/// connection [MQTT-3.3.4-9] go to the front of the waiting messages.
pub(super) fn resend_inflight<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let inflight_max = receive_max(&clients.conns, slot);
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let mut queue = VecDeque::new();
    let mut bytes = 0;
    for mut message in core::mem::take(&mut mqtt.inflight) {
        // Messages beyond `RESEND_BYTES_MAX` wait too, in their order.
        let fits = bytes < RESEND_BYTES_MAX && mqtt.inflight.len() < inflight_max;
        bytes += message.wire_bytes();
        if message.step == DeliveryStep::Released || fits {
            mqtt.inflight.push_back(message);
        } else {
            message.mark_sent();
            queue.push_back(message);
        }
    }
    queue.append(&mut mqtt.waiting);
    mqtt.waiting = queue;
    let count = mqtt.inflight.len();
    for index in 0..count {
        resend(clients, slot, index, true, io);
    }
    clients.send_reply(slot, io);
}

/// Called when a record is committed: sends the next packet of each message that waited for it.
pub(super) fn send_recorded<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let mut index = 0;
    while let Some(message) = mqtt_state_mut(&mut clients.conns, slot)
        .inflight
        .get_mut(index)
    {
        if message.record_wait == RecordWait::RecordInFlight {
            message.record_wait = RecordWait::None;
            resend(clients, slot, index, false, io);
        }
        index += 1;
    }
    clients.meter.work.steps.add(index / INFLIGHT_PER_STEP);
}

/// Sends one message in flight, with the rest of its expiry. If the client has received the message already, writes a PUBREL into the reply instead.
fn resend<I: Io>(clients: &mut Clients, slot: u32, index: usize, is_dup: bool, io: &mut I) {
    let (version, now_s) = (
        client::version_of(&clients.conns, slot),
        clients.ctx.now.unix_s,
    );
    let inflight = &mut mqtt_state_mut(&mut clients.conns, slot).inflight;
    let message = inflight.get_mut(index);
    let Some((id, message)) =
        message.and_then(|message| PacketId::new(message.packet_id).zip(Some(message)))
    else {
        return clients.end_as_broken(slot);
    };
    if message.step == DeliveryStep::Released {
        let release = Ack {
            packet_id: id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::NONE,
        };
        // Sent together with the following packets, since a session may have many released messages.
        return clients.write_packet(slot, |out| encode::pubrel(out, version, &release));
    }
    let Some(publish) = message.publish() else {
        return clients.end_as_broken(slot);
    };
    let mut properties = PropertyWriter::new();
    if version == Version::V5 {
        properties.forward(&publish.properties);
        for identifier in publish.properties.subscription_identifiers() {
            properties.subscription_identifier(identifier);
        }
        if message.end_s != NO_END_S {
            let left_s = message.end_s.saturating_sub(u64::from(now_s));
            properties.message_expiry_interval_s(u32::try_from(left_s).unwrap_or(u32::MAX));
        }
    }
    let publish = Publish {
        dup: is_dup,
        packet_id: Some(id),
        properties: properties.properties(),
        ..publish
    };
    let mut packet_rope = Rope::default();
    encode::publish_head(
        &mut packet_rope.own,
        version,
        &publish,
        publish.payload.len(),
    );
    let packet = match message.payload.clone() {
        None => {
            packet_rope.own.extend_from_slice(publish.payload);
            packet_rope.own.as_slice().into()
        }
        Some(payload) => {
            let packet = packet_without_payload(&packet_rope.own).unwrap_or_default();
            packet_rope.push_slice(payload);
            packet
        }
    };
    (message.version, message.packet) = (version, packet);
    if clients.conns.get(slot).has_option(IN_FRAMES) {
        let start = Rope::default().end();
        frame_rope(&mut packet_rope, start, Opcode::Binary);
    }
    clients.send_reply(slot, io);
    clients.send_rope(slot, &packet_rope, io);
}
