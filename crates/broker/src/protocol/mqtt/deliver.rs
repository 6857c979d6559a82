//! Messages to the client, and its acknowledgements (MQTT 5.0 sections 3.3, 4.3, 4.4 and 4.9).
//!
//! A QoS 1 or 2 message is copied for as long as it is not acknowledged: it is sent again, with its id and before newer
//! ones, when the client comes back. When as many are under way as the client takes, the subscription falls back to its
//! position and reads on from the log as acknowledgements come. QoS 0 is not held back by that, but where a log is kept for
//! the subscription it waits behind messages that are to be sent again.

use alloc::collections::VecDeque;

use crore_wire::mqtt::{
    Ack, PacketId, PacketType, Properties, PropertyBuf, Publish, ReasonCode, Version, encode,
};

use crore_wire::websocket::frame::Opcode;

use super::give::{Offered, Wants};
use super::options::qos;
use super::state::{Inflight, NO_END_S, Step, without_payload};
use crate::base::planted::{self, Fault};
use crate::client::outbox::Packets;
use crate::client::row::{MULTI, State};
use crate::client::side::Behind;
use crate::io::Io;
use crate::mail::{Frames, Record};
use crate::protocol::encode::frame_rope;
use crate::protocol::front::Extra;
use crate::protocol::front::Front;
use crate::protocol::mqtt::options::{FRAMED, QOS_SHIFT};
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// Messages under way that are looked at in the time of a step: they lie side by side.
pub(super) const SENT_PER_STEP: usize = 16;
/// Bytes of messages that are sent again at once when a session is resumed.
const AGAIN_BYTES: usize = 256 << 10;

impl Front {
    /// Live messages of the run, for a subscription of a list. If a live filter of the client matches the topic too, they come by
    /// that filter instead.
    pub(crate) fn mqtt_deliver<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        frames: &Frames,
        io: &mut I,
    ) {
        let Some(topic) = self.sub(slot, part).map(|sub| sub.topic) else {
            return self.broken(slot);
        };
        if self.filtered(slot).is_some() && self.has_match(slot, self.topics.name(topic)) {
            return;
        }
        let records = self.run.records().to_vec();
        let left = self.give_all(slot, part, &records, frames, io).copied();
        let last = records.last().map(|last| last.offset);
        if let (Some(sub), Some(seen)) = (
            self.sub_mut(slot, part),
            left.map(|left| left.previous).or(last),
        ) {
            sub.offset = seen;
        }
        if let Some(left) = left {
            let partition = self.partition_of(self.topics.name(topic));
            self.start_all(slot, partition, left.offset);
            self.fall_back(slot, part, left.previous);
        }
    }

    /// Sends messages of a topic in their order; returns the first one without room.
    pub(super) fn give_all<'r, I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        records: &'r [Record],
        frames: &Frames,
        io: &mut I,
    ) -> Option<&'r Record> {
        let mut out = Packets::default();
        let name = self.topic_name(slot, part);
        let Some(sub) = self.sub(slot, part) else {
            self.broken(slot);
            return records.first();
        };
        let identifiers = [sub.own.identifier];
        let wants = Wants {
            options: sub.own.options,
            identifiers: &identifiers,
            alias: Some(part),
            ..Wants::default()
        };
        let left = records.iter().find(|record| {
            let message = (&name[..], *record, frames);
            matches!(
                self.give_in_turn(slot, part, &wants, message, &mut out),
                Offered::Full
            )
        });
        if !out.bytes.is_empty() {
            self.put_messages(slot, &out.bytes, &out.ends, io);
        }
        left
    }

    /// Sends a message that the client cannot read from a log later: a retained one, or a group's. Without room it waits, where
    /// others fall back. Returns whether an acknowledgement will come.
    pub(super) fn give_once<I: Io>(
        &mut self,
        slot: u32,
        wants: &Wants<'_>,
        message: (&[u8], &Record, &Frames),
        io: &mut I,
    ) -> bool {
        let mut out = Packets::default();
        match self.offer_packet(slot, wants, message, &mut out) {
            Offered::Sent(id) => {
                self.put_messages(slot, &out.bytes, &out.ends, io);
                if wants.retained && self.has_waiting(slot) {
                    self.drop_outdated(slot, message.0, message.1.offset);
                }
                id.is_some()
            }
            Offered::Skipped => false,
            Offered::Full => self.wait_packet(slot, wants, message),
        }
    }

    /// A retained message of QoS 0 overtakes the messages that wait: older ones of its topic must not follow it.
    fn drop_outdated(&mut self, slot: u32, topic: &[u8], offset: u64) {
        let waiting = &mut self.mqtt_state(slot).waiting;
        waiting.retain(|old| {
            old.was_sent() || old.group.is_some() || old.offset >= offset || old.topic() != topic
        });
    }

    /// Sends messages that waited for room: messages of the session that were sent before, then retained ones and those of groups.
    pub(super) fn give_waiting<I: Io>(&mut self, slot: u32, io: &mut I) {
        let mut given = 0;
        loop {
            let Some(mqtt) = self.mqtt(slot) else { return };
            let full = mqtt.inflight.len() >= self.receive_max(slot);
            if mqtt.waiting.is_empty() || full || self.conns.get(slot).outbox != NONE {
                return;
            }
            if given > 0 && self.work.is_spent() {
                return self.resume_later(self.conns.id_of(slot));
            }
            given += 1;
            let now_s = self.now.unix_s;
            let mqtt = self.mqtt_state(slot);
            let Some(mut next) = mqtt.waiting.pop_front() else {
                return;
            };
            let again = next.was_sent();
            if !again && next.end_s <= u64::from(now_s) {
                // [MQTT-3.3.2-5]: its delivery had not begun.
                if let Some((part, home)) = next.group {
                    self.give_credit(slot, u32::from(part), home);
                }
                continue;
            }
            if !again {
                next.packet_id = self.take_packet_id(slot).get();
            }
            let bytes = next.wire_bytes();
            let inflight = &mut self.mqtt_state(slot).inflight;
            inflight.push_back(next);
            let last = inflight.len() - 1;
            self.work.steps.add(1);
            self.work.steps.add_bytes(bytes);
            self.send_again(slot, last, again, io);
        }
    }

    /// Whether a QoS 1 or 2 message may be sent: messages that wait go first.
    pub(super) fn has_place(&self, slot: u32) -> bool {
        let Some(mqtt) = self.mqtt(slot) else {
            return true;
        };
        mqtt.waiting.is_empty()
            && (mqtt.inflight.len() < self.receive_max(slot) || planted::is(Fault::NoQuota))
    }

    /// Whether messages wait for room, which are sent before any from the logs.
    pub(super) fn has_waiting(&self, slot: u32) -> bool {
        self.mqtt(slot).is_some_and(|mqtt| !mqtt.waiting.is_empty())
    }

    fn receive_max(&self, slot: u32) -> usize {
        usize::from(self.conns.own_row(slot).receive_max)
    }

    /// How many messages a subscription may be given.
    pub(crate) fn places(&self, slot: u32, part: u32) -> u32 {
        let row = self.conns.get(slot);
        // The only subscription stands in the row, with nothing but its QoS.
        let options = match row.wants(MULTI) {
            true => self.sub(slot, part).map_or(0, |sub| sub.own.options),
            false => (row.options >> QOS_SHIFT & 3) as u8,
        };
        let bound = row.state == State::Mqtt && row.own != NONE && qos(options) > 0;
        if !bound {
            return u32::MAX;
        }
        let under_way = self.mqtt(slot).map_or(0, |mqtt| mqtt.inflight.len());
        u32::from(self.conns.own_row(slot).receive_max).saturating_sub(under_way as u32)
    }

    /// Whether any subscription that fell behind may go on.
    pub(super) fn has_room(&self, slot: u32) -> bool {
        let unbound = |behind: &Behind| self.places(slot, behind.part) == u32::MAX;
        let behind = |extra: &Extra| extra.behind.iter().any(unbound);
        self.has_place(slot) || self.conns.find_extra(slot).is_some_and(behind)
    }

    pub(super) fn take_packet_id(&mut self, slot: u32) -> PacketId {
        let last = self.conns.own_row(slot).packet_id;
        let mqtt = self.mqtt_state(slot);
        let id = mqtt.next_packet_id(last);
        let seen = mqtt.inflight.len() + mqtt.waiting.len();
        self.work.steps.add(seen / SENT_PER_STEP);
        self.conns.own_row_mut(slot).packet_id = id;
        PacketId::new(id).unwrap_or(PacketId::MAX)
    }

    /// PUBACK.
    pub(super) fn acknowledged(&mut self, slot: u32, id: PacketId) -> Result<(), ReasonCode> {
        let found = self.acknowledges(slot, id, PacketType::PubAck)?;
        self.drop_inflight(slot, found);
        Ok(())
    }

    /// PUBREC: the client has the message; its id is released.
    pub(super) fn was_received(&mut self, slot: u32, ack: &Ack<'_>) -> Result<(), ReasonCode> {
        let found = self.acknowledges(slot, ack.packet_id, PacketType::PubRec)?;
        if ack.reason.is_error() {
            // [MQTT-4.3.3-4]: the client refuses it.
            self.drop_inflight(slot, found);
            return Ok(());
        }
        let sent = found.and_then(|at| self.mqtt_state(slot).inflight.get_mut(at));
        let reason = match sent {
            Some(sent) => {
                sent.step = Step::Released;
                sent.let_go();
                ReasonCode::SUCCESS
            }
            None => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
        };
        let version = self.version(slot);
        let release = Ack {
            packet_id: ack.packet_id,
            reason,
            properties: Properties::NONE,
        };
        self.write(slot, |out| encode::pubrel(out, version, &release));
        Ok(())
    }

    /// PUBCOMP.
    pub(super) fn completed(&mut self, slot: u32, id: PacketId) -> Result<(), ReasonCode> {
        let found = self.acknowledges(slot, id, PacketType::PubComp)?;
        self.drop_inflight(slot, found);
        Ok(())
    }

    /// Finds the message under way that is acknowledged. An id that is not under way is ignored: acknowledgements may
    /// come twice.
    ///
    /// # Errors
    /// The message waits for another kind of acknowledgement: that of its QoS [MQTT-4.3.2-3, MQTT-4.3.3-3], or an earlier one
    /// [MQTT-4.3.3-5]. It stays unchanged.
    fn acknowledges(
        &mut self,
        slot: u32,
        id: PacketId,
        kind: PacketType,
    ) -> Result<Option<usize>, ReasonCode> {
        if self.mqtt(slot).is_none() {
            return Ok(None);
        }
        let mqtt = self.mqtt_state(slot);
        // Messages that wait to be sent again were sent on a former connection.
        let is_old = |next: &Inflight| next.packet_id == id.get() && next.was_sent();
        let old = mqtt.waiting.iter().position(is_old);
        if let Some(at) = old {
            mqtt.inflight.extend(mqtt.waiting.remove(at));
        }
        let is = |sent: &Inflight| sent.packet_id == id.get();
        let found = mqtt.inflight.iter().position(is);
        let seen = old.unwrap_or(mqtt.waiting.len()) + found.unwrap_or(mqtt.inflight.len());
        self.work.steps.add(seen / SENT_PER_STEP);
        let Some(at) = found else { return Ok(None) };
        let sent = &self.mqtt_state(slot).inflight[at];
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

    /// Drops the message at this place: the client is done with it.
    fn drop_inflight(&mut self, slot: u32, found: Option<usize>) {
        let done = found.and_then(|at| self.mqtt_state(slot).inflight.remove(at));
        let Some(done) = done else { return };
        if let Some((part, home)) = done.group {
            self.give_credit(slot, u32::from(part), home);
        }
        let extra = self.conns.extra(slot);
        let waits = extra
            .own
            .mqtt
            .as_ref()
            .is_some_and(|mqtt| !mqtt.waiting.is_empty() || !mqtt.shows.is_empty());
        let filters = extra.filters.as_ref();
        let behind = !extra.behind.is_empty() || filters.is_some_and(|all| all.is_behind());
        if waits || behind {
            self.resume_later(self.conns.id_of(slot));
        }
    }

    /// When a session is resumed: sends its unacknowledged messages again, in their order [MQTT-4.4.0-1]. Messages beyond the number
    /// that this connection takes at once [MQTT-3.3.4-9] wait before all others.
    pub(super) fn send_inflight<I: Io>(&mut self, slot: u32, io: &mut I) {
        let most = self.receive_max(slot);
        let mqtt = self.mqtt_state(slot);
        let mut later = VecDeque::new();
        let mut bytes = 0;
        for mut sent in core::mem::take(&mut mqtt.inflight) {
            // Messages beyond one turn's bytes wait too, which keeps the order.
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
            self.send_again(slot, at, true, io);
        }
    }

    /// Sends one message that is under way, with the rest of its expiry.
    fn send_again<I: Io>(&mut self, slot: u32, at: usize, dup: bool, io: &mut I) {
        let (version, now_s) = (self.version(slot), self.now.unix_s);
        let inflight = &mut self.mqtt_state(slot).inflight;
        let sent = inflight.get_mut(at);
        let Some((id, sent)) = sent.and_then(|sent| PacketId::new(sent.packet_id).zip(Some(sent)))
        else {
            return self.broken(slot);
        };
        if sent.step == Step::Released {
            let release = Ack {
                packet_id: id,
                reason: ReasonCode::SUCCESS,
                properties: Properties::NONE,
            };
            self.write(slot, |out| encode::pubrel(out, version, &release));
            return self.send_reply(slot, io);
        }
        let Some(publish) = sent.publish() else {
            return self.broken(slot);
        };
        let mut set = PropertyBuf::new();
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
                again.share(payload);
                packet
            }
        };
        (sent.version, sent.packet) = (version, packet);
        if self.conns.get(slot).wants(FRAMED) {
            let start = Rope::default().mark();
            frame_rope(&mut again, start, Opcode::Binary);
        }
        self.send_reply(slot, io);
        self.put_rope(slot, &again, io);
    }
}
