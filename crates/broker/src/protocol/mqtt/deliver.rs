//! Sends messages to the client, and handles its acknowledgements (MQTT 5.0 sections 3.3, 4.3, 4.4 and 4.9).
//!
//! The connection keeps a copy of a QoS 1 or 2 message until it is acknowledged. When the client connects again, the message is sent again with its packet
//! id, before newer messages. When the client's Receive Maximum is reached, the subscription falls back to its position, and reads from the log as
//! acknowledgements arrive. QoS 0 messages do not count there. But if the subscription has a log, they wait behind messages that must be sent again.

use alloc::collections::VecDeque;

use crore_wire::mqtt::{
    Ack, PacketId, PacketType, Properties, PropertyWriter, Publish, ReasonCode, Version, encode,
};

use crore_wire::websocket::frame::Opcode;

use crate::io::Io;
use crate::protocol::encode::frame_rope;
use crate::protocol::front::{Clients, Connections, Lanes, Queues, Work};
use crate::protocol::mqtt::client::{self, SENT_PER_STEP, mqtt_state, receive_max, take_packet_id};
use crate::protocol::mqtt::options::FRAMED;
use crate::protocol::mqtt::shared::give_credit;
use crate::protocol::mqtt::state::{Inflight, NO_END_S, Step, Unsent, without_payload};
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// The maximum number of bytes of messages that are sent again at once when a session is resumed.
const AGAIN_BYTES: usize = 256 << 10;

/// Sends messages that waited for room: first those that are sent again, then retained messages and messages of groups.
pub(super) fn send_waiting<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    let mut given = 0;
    loop {
        let Some(mqtt) = client::mqtt(&clients.conns, slot) else {
            return;
        };
        let Some(first) = mqtt.waiting.front() else {
            return;
        };
        let full = mqtt.inflight.len() >= receive_max(&clients.conns, slot)
            || !clients.fits_record(slot, first.wire_bytes());
        if full || clients.conns.get(slot).link.outbox != NONE {
            return;
        }
        if given > 0 && clients.meter.work.is_spent() {
            return queues.resume_later(clients, clients.conns.id_of(slot));
        }
        given += 1;
        let now_s = clients.ctx.now.unix_s;
        let mqtt = mqtt_state(&mut clients.conns, slot);
        let Some(mut next) = mqtt.waiting.pop_front() else {
            return;
        };
        let again = next.was_sent();
        if !again && next.end_s <= u64::from(now_s) {
            // [MQTT-3.3.2-5]: it has expired before its delivery began.
            if let Some((part, partition)) = next.group {
                let message = (partition, next.offset);
                give_credit(clients, lanes, slot, u32::from(part), message);
            }
            continue;
        }
        if !again {
            next.packet_id = take_packet_id(&mut clients.conns, &clients.meter.work, slot).get();
        }
        let bytes = next.wire_bytes();
        let is_unsent = !again && clients.must_record(slot, next.qos());
        if is_unsent {
            next.unsent = Unsent::Wanted;
            clients.record_later(slot);
        }
        let at = mqtt_state(&mut clients.conns, slot).add_inflight(next);
        clients.meter.work.steps.add(1);
        clients.meter.work.steps.add_bytes(bytes);
        if !is_unsent {
            send_again(clients, slot, at, again, io);
            clients.send_reply(slot, io);
        }
    }
}

/// PUBACK or PUBCOMP: the message is no longer in flight.
pub(super) fn acknowledged(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    (packet, id): (PacketType, PacketId),
) -> Result<(), ReasonCode> {
    let found = acknowledges(&mut clients.conns, &clients.meter.work, slot, id, packet)?;
    drop_inflight(clients, lanes, queues, slot, found);
    clients.note_acknowledged(slot);
    Ok(())
}

/// PUBREC: the client has received the message. Answers with PUBREL; if the session is recorded, when the log has this step.
pub(super) fn was_received(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    ack: &Ack<'_>,
) -> Result<(), ReasonCode> {
    let found = acknowledges(
        &mut clients.conns,
        &clients.meter.work,
        slot,
        ack.packet_id,
        PacketType::PubRec,
    )?;
    if ack.reason.is_error() {
        // [MQTT-4.3.3-4]: the client refuses it.
        drop_inflight(clients, lanes, queues, slot, found);
        return Ok(());
    }
    let must_record = clients.must_record(slot, 2);
    let sent = found.and_then(|at| mqtt_state(&mut clients.conns, slot).inflight.get_mut(at));
    let reason = match sent {
        Some(sent) if must_record && (sent.step, sent.unsent) != (Step::Released, Unsent::No) => {
            sent.step = Step::Released;
            sent.let_go();
            sent.unsent = Unsent::Wanted;
            clients.record_later(slot);
            return Ok(());
        }
        Some(sent) => {
            sent.step = Step::Released;
            sent.let_go();
            ReasonCode::SUCCESS
        }
        None => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
    };
    let version = client::version(&clients.conns, slot);
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
/// The message waits for another kind of acknowledgement: that of its QoS [MQTT-4.3.2-3, MQTT-4.3.3-3], or an earlier one
/// [MQTT-4.3.3-5]. It stays unchanged.
fn acknowledges(
    conns: &mut Connections,
    work: &Work,
    slot: u32,
    id: PacketId,
    kind: PacketType,
) -> Result<Option<usize>, ReasonCode> {
    if client::mqtt(conns, slot).is_none() {
        return Ok(None);
    }
    let mqtt = mqtt_state(conns, slot);
    // Messages in `waiting` that have DUP were sent on an earlier connection.
    let is_old = |next: &Inflight| next.packet_id == id.get() && next.was_sent();
    let old = mqtt.waiting.iter().position(is_old);
    if let Some(sent) = old.and_then(|at| mqtt.waiting.remove(at)) {
        mqtt.add_inflight(sent);
    }
    let is = |sent: &Inflight| sent.packet_id == id.get();
    let found = mqtt.inflight.iter().position(is);
    let seen = old.unwrap_or(mqtt.waiting.len()) + found.unwrap_or(mqtt.inflight.len());
    work.steps.add(seen / SENT_PER_STEP);
    let Some(at) = found else { return Ok(None) };
    let sent = &mqtt_state(conns, slot).inflight[at];
    let is_due = match (sent.step, sent.qos()) {
        (Step::Released, _) => matches!(kind, PacketType::PubRec | PacketType::PubComp),
        (Step::Published, 1) => kind == PacketType::PubAck,
        (Step::Published, _) => kind == PacketType::PubRec,
    };
    match is_due {
        true => Ok(Some(at)),
        false => Err(ReasonCode::PROTOCOL_ERROR),
    }
}

/// Drops a message in flight, whose delivery is complete.
fn drop_inflight(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    found: Option<usize>,
) {
    let done = found.and_then(|at| mqtt_state(&mut clients.conns, slot).inflight.remove(at));
    let Some(done) = done else { return };
    if let Some((part, partition)) = done.group {
        let message = (partition, done.offset);
        give_credit(clients, lanes, slot, u32::from(part), message);
    }
    let extra = clients.conns.extra(slot);
    let waits = extra
        .protocol_state
        .mqtt
        .as_ref()
        .is_some_and(|mqtt| !mqtt.waiting.is_empty() || !mqtt.retained_latest.is_empty());
    let filters = extra.filters.as_ref();
    let behind = !extra.behind.is_empty() || filters.is_some_and(|all| all.is_behind());
    if waits || behind {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Sends the unacknowledged messages of a resumed session again, in their order [MQTT-4.4.0-1]. Messages beyond the Receive Maximum of this
/// connection [MQTT-3.3.4-9] wait, before all others.
pub(super) fn send_inflight<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let most = receive_max(&clients.conns, slot);
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let mut later = VecDeque::new();
    let mut bytes = 0;
    for mut sent in core::mem::take(&mut mqtt.inflight) {
        // Messages beyond the bytes of a turn wait too, in their order.
        let fits = bytes < AGAIN_BYTES && mqtt.inflight.len() < most;
        bytes += sent.wire_bytes();
        if sent.step == Step::Released || fits {
            mqtt.inflight.push_back(sent);
        } else {
            sent.mark_sent();
            later.push_back(sent);
        }
    }
    later.append(&mut mqtt.waiting);
    mqtt.waiting = later;
    let count = mqtt.inflight.len();
    for at in 0..count {
        send_again(clients, slot, at, true, io);
    }
    clients.send_reply(slot, io);
}

/// The log has the record that these messages waited for: sends the next packet of each.
pub(super) fn send_recorded<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let mut at = 0;
    while let Some(sent) = mqtt_state(&mut clients.conns, slot).inflight.get_mut(at) {
        if sent.unsent == Unsent::Asked {
            sent.unsent = Unsent::No;
            send_again(clients, slot, at, false, io);
        }
        at += 1;
    }
    clients.meter.work.steps.add(at / SENT_PER_STEP);
}

/// Sends one message in flight again, with the rest of its expiry; if the client has received it, writes PUBREL into the reply.
fn send_again<I: Io>(clients: &mut Clients, slot: u32, at: usize, dup: bool, io: &mut I) {
    let (version, now_s) = (
        client::version(&clients.conns, slot),
        clients.ctx.now.unix_s,
    );
    let inflight = &mut mqtt_state(&mut clients.conns, slot).inflight;
    let sent = inflight.get_mut(at);
    let Some((id, sent)) = sent.and_then(|sent| PacketId::new(sent.packet_id).zip(Some(sent)))
    else {
        return clients.end_as_broken(slot);
    };
    if sent.step == Step::Released {
        let release = Ack {
            packet_id: id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::NONE,
        };
        // Sent together with the following packets, since a session may have many released messages.
        return clients.write_packet(slot, |out| encode::pubrel(out, version, &release));
    }
    let Some(publish) = sent.publish() else {
        return clients.end_as_broken(slot);
    };
    let mut set = PropertyWriter::new();
    if version == Version::V5 {
        set.forward(&publish.properties);
        for identifier in publish.properties.subscription_identifiers() {
            set.subscription_identifier(identifier);
        }
        if sent.end_s != NO_END_S {
            let left_s = sent.end_s.saturating_sub(u64::from(now_s));
            set.message_expiry_interval_s(u32::try_from(left_s).unwrap_or(u32::MAX));
        }
    }
    let publish = Publish {
        dup,
        packet_id: Some(id),
        properties: set.properties(),
        ..publish
    };
    let mut again = Rope::default();
    encode::publish_head(&mut again.own, version, &publish, publish.payload.len());
    let packet = match sent.payload.clone() {
        None => {
            again.own.extend_from_slice(publish.payload);
            again.own.as_slice().into()
        }
        Some(payload) => {
            let packet = without_payload(&again.own).unwrap_or_default();
            again.push_slice(payload);
            packet
        }
    };
    (sent.version, sent.packet) = (version, packet);
    if clients.conns.get(slot).has_option(FRAMED) {
        let start = Rope::default().end();
        frame_rope(&mut again, start, Opcode::Binary);
    }
    clients.send_reply(slot, io);
    clients.put_rope(slot, &again, io);
}
