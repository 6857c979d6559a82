//! Messages to the client, and what it says of them (MQTT 5.0 sections 3.3, 4.3, 4.4 and 4.9).
//!
//! A QoS 1 or 2 message is copied for as long as it is not acknowledged: it is sent again, with its id and before newer
//! ones, when the client comes back. When as many are under way as the client takes, the subscription falls back to its
//! position and reads on from the log as acknowledgements come. QoS 0 is not held back by that, but by messages of the
//! session that wait to be sent again, where its log is kept.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::mqtt::{Ack, PacketId, PropertyBuf, Publish, ReasonCode, Version, encode};

use super::give::{Offered, Wants};
use super::state::Step;
use super::subscribe::qos;
use super::{Mqtt, NOTHING};
use crate::conn::{Behind, LIVE, MULTI, QOS_SHIFT, State};
use crate::io::Io;
use crate::mail::{Frames, Record};
use crate::outbox::Packets;
use crate::planted::{self, Fault};
use crate::sessions::FOREVER_S;
use crate::shard::Shard;
use crate::slab::NONE;

/// Bytes of messages that are sent again at once when a session goes on.
const AGAIN_BYTES: usize = 256 << 10;
/// DUP in the first byte of a PUBLISH; in one that waits it says that it was sent before (section 3.3.1.1).
const DUP: u8 = 0b1000;

impl Shard {
    /// Live messages of the run, for a subscription of a list. What a filter of the client matches too comes by that
    /// filter.
    pub(crate) fn mqtt_deliver<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        frames: &Frames,
        io: &mut I,
    ) {
        let topic = self.extra(slot).list[part as usize].topic;
        if self.filtered(slot).is_some() && self.has_match(slot, self.topics.name(topic)) {
            return;
        }
        let records = self.run.records().to_vec();
        let left = self.give_all(slot, part, &records, frames, io).copied();
        let last = records.last().expect("a run has messages").offset;
        let sub = &mut self.extra(slot).list[part as usize];
        sub.offset = left.map_or(last, |left| left.previous);
        if let Some(left) = left {
            let (_, home) = self.place_of(self.topics.name(topic));
            self.start_all(slot, home, left.offset);
            self.fall_back(slot, part, left.previous);
        }
    }

    /// A subscription to a topic has seen it up to `offset` and reads on from there.
    pub(super) fn fall_back(&mut self, slot: u32, part: u32, offset: u64) {
        let epoch = self.world.epoch;
        let extra = self.extra(slot);
        let sub = &mut extra.list[part as usize];
        sub.flags &= !LIVE;
        (sub.offset, sub.epoch) = (offset, epoch);
        extra.behind.push(Behind {
            part,
            offset,
            epoch,
        });
        self.stats.fallbacks += 1;
    }

    /// Sends messages of a topic in their order; returns the first one that there is no room for.
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
        let sub = &self.extra(slot).list[part as usize];
        let identifiers = [sub.identifier];
        let wants = Wants {
            options: sub.options,
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

    /// A message that is in no log of the client's own: a retained one, or a group's. It waits where others fall back.
    /// Says whether an acknowledgement will come.
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

    /// A retained message of QoS 0 overtakes what waits: an older one must not come behind it.
    fn drop_outdated(&mut self, slot: u32, topic: &[u8], offset: u64) {
        let waiting = &mut self.mqtt_state(slot).waiting;
        waiting.retain(|old| {
            let was_sent = old.packet[0] & DUP != 0;
            was_sent || old.group.is_some() || old.offset >= offset || old.topic() != topic
        });
    }

    /// What waited for room: messages of the session that were sent before, then retained ones and those of groups.
    pub(super) fn give_waiting<I: Io>(&mut self, slot: u32, io: &mut I) {
        let mut given = 0;
        loop {
            let Some(mqtt) = self.mqtt(slot) else { return };
            let full = mqtt.inflight.len() >= self.receive_max(slot);
            if mqtt.waiting.is_empty() || full || self.conns.get(slot).outbox != NONE {
                return;
            }
            if given > 0 && self.is_spent() {
                return self.resumed.push_back(self.id_of(slot));
            }
            given += 1;
            let now_s = self.now.unix_s;
            let mqtt = self.mqtt_state(slot);
            let mut next = mqtt.waiting.pop_front().expect("it was just seen");
            let again = next.packet[0] & DUP != 0;
            if !again && next.end_s <= now_s {
                // [MQTT-3.3.2-5]: its delivery had not begun.
                if let Some((part, home)) = next.group {
                    self.give_credit(slot, u32::from(part), home);
                }
                continue;
            }
            if !again {
                next.packet_id = self.take_packet_id(slot).get();
            }
            self.mqtt_state(slot).inflight.push_back(next);
            let bytes = self.mqtt_state(slot).inflight.back();
            let bytes = bytes.map_or(0, |sent| sent.packet.len());
            self.work.steps.add(1);
            self.work.steps.add_bytes(bytes);
            self.send_again(slot, mqtt_last(self.mqtt(slot)), again);
            self.send_reply(slot, io);
        }
    }

    /// Whether a QoS 1 or 2 message may be sent: what waits goes first.
    pub(super) fn has_place(&self, slot: u32) -> bool {
        let Some(mqtt) = self.mqtt(slot) else {
            return true;
        };
        mqtt.waiting.is_empty()
            && (mqtt.inflight.len() < self.receive_max(slot) || planted::is(Fault::NoQuota))
    }

    /// Whether messages wait for room that go before all that the logs have.
    pub(super) fn has_waiting(&self, slot: u32) -> bool {
        self.mqtt(slot).is_some_and(|mqtt| !mqtt.waiting.is_empty())
    }

    fn receive_max(&self, slot: u32) -> usize {
        usize::from(self.mqtts.get(self.conns.get(slot).mqtt).receive_max)
    }

    /// Messages that a subscription may be given.
    pub(crate) fn places(&self, slot: u32, part: u32) -> u32 {
        let row = self.conns.get(slot);
        // The only subscription stands in the row, with nothing but its QoS.
        let options = |list: &[crate::conn::Sub]| match row.wants(MULTI) {
            true => list[part as usize].options,
            false => (row.options >> QOS_SHIFT & 3) as u8,
        };
        let bound = row.state == State::Mqtt && qos(options(&self.extras.get(row.extra).list)) > 0;
        if !bound {
            return u32::MAX;
        }
        let under_way = self.mqtt(slot).map_or(0, |mqtt| mqtt.inflight.len());
        u32::from(self.mqtts.get(row.mqtt).receive_max).saturating_sub(under_way as u32)
    }

    /// Whether any subscription that fell behind may go on.
    pub(super) fn has_room(&self, slot: u32) -> bool {
        let behind = &self.extras.get(self.conns.get(slot).extra).behind;
        let unbound = |behind: &Behind| self.places(slot, behind.part) == u32::MAX;
        self.has_place(slot) || behind.iter().any(unbound)
    }

    pub(super) fn take_packet_id(&mut self, slot: u32) -> PacketId {
        let row = self.conns.get(slot).mqtt;
        let mut id = self.mqtts.get(row).packet_id;
        let mqtt = self.mqtt_state(slot);
        loop {
            id = mqtt.next_packet_id(id);
            // What waits to be sent again keeps its own.
            if mqtt.waiting.iter().all(|next| next.packet_id != id) {
                break;
            }
        }
        self.mqtts.get_mut(row).packet_id = id;
        PacketId::new(id).expect("never 0")
    }

    /// PUBACK.
    pub(super) fn acknowledged(&mut self, slot: u32, id: PacketId) -> Result<(), ReasonCode> {
        self.drop_inflight(slot, id.get(), Step::Published);
        Ok(())
    }

    /// PUBREC: the client has the message; its id is released.
    pub(super) fn was_received(&mut self, slot: u32, ack: &Ack<'_>) -> Result<(), ReasonCode> {
        if ack.reason.is_error() {
            // [MQTT-4.3.3-4]: it does not want it.
            self.drop_inflight(slot, ack.packet_id.get(), Step::Published);
            return Ok(());
        }
        let version = self.version(slot);
        let inflight = &mut self.mqtt_state(slot).inflight;
        let sent = inflight
            .iter_mut()
            .find(|sent| sent.packet_id == ack.packet_id.get());
        let reason = match sent {
            Some(sent) => {
                sent.step = Step::Released;
                sent.packet = [].into();
                ReasonCode::SUCCESS
            }
            None => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
        };
        let release = Ack {
            packet_id: ack.packet_id,
            reason,
            properties: NOTHING,
        };
        self.write(slot, |out| encode::pubrel(out, version, &release));
        Ok(())
    }

    /// PUBCOMP.
    pub(super) fn completed(&mut self, slot: u32, id: PacketId) -> Result<(), ReasonCode> {
        self.drop_inflight(slot, id.get(), Step::Released);
        Ok(())
    }

    /// A message is done with. An id that is not under way is nobody's: acknowledgements may come twice.
    fn drop_inflight(&mut self, slot: u32, id: u16, step: Step) {
        if self.mqtt(slot).is_none() {
            return;
        }
        let inflight = &mut self.mqtt_state(slot).inflight;
        let found = inflight
            .iter()
            .position(|sent| sent.packet_id == id && sent.step == step);
        let Some(at) = found else { return };
        let done = inflight.remove(at).expect("it was just found");
        if let Some((part, home)) = done.group {
            self.give_credit(slot, u32::from(part), home);
        }
        let extra = self.extra(slot);
        let waits = extra
            .mqtt
            .as_ref()
            .is_some_and(|mqtt| !mqtt.waiting.is_empty());
        let filters = extra.filters.as_ref();
        let behind = !extra.behind.is_empty() || filters.is_some_and(|all| all.is_behind());
        if waits || behind {
            self.resumed.push_back(self.id_of(slot));
        }
    }

    /// After a session was found again: what was not acknowledged, in its order [MQTT-4.4.0-1]. What is more than this
    /// connection takes at once [MQTT-3.3.4-9] waits before all else.
    pub(super) fn send_inflight<I: Io>(&mut self, slot: u32, io: &mut I) {
        let most = self.receive_max(slot);
        let mqtt = self.mqtt_state(slot);
        let mut later = VecDeque::new();
        let mut bytes = 0;
        for mut sent in core::mem::take(&mut mqtt.inflight) {
            // What is too much for one turn waits as what is too much for the client does, and so keeps the order.
            let fits = bytes < AGAIN_BYTES && mqtt.inflight.len() < most;
            bytes += sent.packet.len();
            if sent.step == Step::Released || fits {
                mqtt.inflight.push_back(sent);
            } else {
                sent.packet[0] |= DUP;
                later.push_back(sent);
            }
        }
        later.append(&mut mqtt.waiting);
        mqtt.waiting = later;
        let count = mqtt.inflight.len();
        for at in 0..count {
            self.send_again(slot, at, true);
        }
        self.send_reply(slot, io);
    }

    /// Writes one message that is under way; its expiry is what is left of it.
    fn send_again(&mut self, slot: u32, at: usize, dup: bool) {
        let (version, now_s) = (self.version(slot), self.now.unix_s);
        let inflight = &mut self.mqtt_state(slot).inflight;
        let sent = &mut inflight[at];
        let id = PacketId::new(sent.packet_id).expect("ids are not 0");
        if sent.step == Step::Released {
            let release = Ack {
                packet_id: id,
                reason: ReasonCode::SUCCESS,
                properties: NOTHING,
            };
            return self.write(slot, |out| encode::pubrel(out, version, &release));
        }
        let publish = sent.publish().expect("it was not received yet");
        let mut set = PropertyBuf::new();
        if version == Version::V5 {
            set.forward(&publish.properties);
            for identifier in publish.properties.subscription_identifiers() {
                set.subscription_identifier(identifier);
            }
            if sent.end_s != FOREVER_S {
                set.message_expiry_interval_s(sent.end_s.saturating_sub(now_s));
            }
        }
        let publish = Publish {
            dup,
            packet_id: Some(id),
            properties: set.properties(),
            ..publish
        };
        let mut again = Vec::with_capacity(sent.packet.len());
        encode::publish(&mut again, version, &publish);
        (sent.version, sent.packet) = (version, again.into_boxed_slice());
        let again = sent.packet.clone();
        self.write(slot, |out| out.extend_from_slice(&again));
    }
}

/// The place of the message that was added last.
fn mqtt_last(mqtt: Option<&Mqtt>) -> usize {
    mqtt.expect("it was just written").inflight.len() - 1
}
