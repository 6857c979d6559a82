//! Messages to the client, and what it says of them (MQTT 5.0 sections 3.3, 4.3, 4.4 and 4.9).
//!
//! A QoS 1 or 2 message is copied for as long as it is not acknowledged: it is sent again, with its id and before newer
//! ones, when the client comes back. When as many are under way as the client takes, the subscription falls back to its
//! position and reads on from the log as acknowledgements come; QoS 0 is never held back by that.

use alloc::vec::Vec;

use crore_wire::mqtt::{
    self, Ack, PacketId, PropertyBuf, Publish, Qos, ReasonCode, SubscribeOptions, Version, encode,
};
use crore_wire::websocket::frame::{self, Opcode};

use super::state::{Inflight, Step};
use super::subscribe::qos;
use super::{Mqtt, NOTHING};
use crate::conn::{Behind, FRAMED, LIVE, SMALL};
use crate::encode::Message;
use crate::io::Io;
use crate::mail::{Frames, Record, ShardId};
use crate::sessions::FOREVER_S;
use crate::shard::Shard;
use crate::slab::NONE;

/// No Local and Retain As Published among the options of a subscription.
const NO_LOCAL: u8 = 0b100;
const RETAIN_AS_PUBLISHED: u8 = 0b1000;

/// How one message goes to one client.
struct Way {
    qos: Qos,
    retain: bool,
    packet_id: Option<PacketId>,
    identifier: u32,
    alias: u16,
    /// The client knows the alias: the name can be left out.
    known: bool,
}

impl Shard {
    /// Live messages of the burst, for a subscription of a list.
    pub(crate) fn mqtt_deliver<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        frames: &Frames,
        io: &mut I,
    ) {
        let records = self.burst.records().to_vec();
        let left = self.give_all(slot, part, &records, frames, io).copied();
        let last = records.last().expect("a burst has messages").offset;
        let epoch = self.world.epoch;
        let extra = self.extra(slot);
        let sub = &mut extra.list[part as usize];
        sub.epoch = epoch;
        sub.offset = left.map_or(last, |left| left.previous);
        if let Some(left) = left {
            sub.flags &= !LIVE;
            extra.behind.push(Behind {
                part,
                offset: left.previous,
                epoch,
            });
            self.stats.fallbacks += 1;
        }
    }

    /// Sends messages in their order; returns the first one that there is no room for.
    pub(super) fn give_all<'r, I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        records: &'r [Record],
        frames: &Frames,
        io: &mut I,
    ) -> Option<&'r Record> {
        let mut out = Vec::new();
        let left = records
            .iter()
            .find(|record| !self.give(slot, part, record, frames, &mut out));
        if !out.is_empty() {
            self.put(slot, &out, io);
        }
        left
    }

    /// Appends one message; false when there is no room for it.
    fn give(
        &mut self,
        slot: u32,
        part: u32,
        record: &Record,
        frames: &Frames,
        out: &mut Vec<u8>,
    ) -> bool {
        let extra = self.extras.get(self.conns.get(slot).extra);
        let sub = &extra.list[part as usize];
        let options = sub.options;
        let own = self.mqtts.get(self.conns.get(slot).mqtt).origin();
        if options & NO_LOCAL != 0 && frames.origin(record) == own {
            return true;
        }
        let mut way = Way {
            qos: Qos::from_bits(record.qos.min(qos(options))).expect("two bits, never three"),
            retain: record.retain && options & RETAIN_AS_PUBLISHED != 0,
            packet_id: None,
            identifier: sub.identifier,
            alias: sub.alias,
            known: sub.alias != 0,
        };
        let mqtt = extra.mqtt.as_deref().expect("a list has its state");
        let waits = self.conns.get(slot).outbox != NONE;
        if way.qos != Qos::AtMostOnce && !self.has_place(slot, mqtt)
            || record.latest && waits
            || !self.fits(slot, out.len() + frames.frame(record).len())
        {
            return false;
        }
        let mut packet = Vec::new();
        if way.qos == Qos::AtMostOnce {
            way.alias = self.alias_of(slot, part, way.alias);
        } else {
            (way.alias, way.known) = (0, false);
            way.packet_id = Some(self.take_packet_id(slot));
        }
        let topic = self.topic_name(slot, part);
        if !self.encode_publish(slot, &topic, record, frames, &way, &mut packet) {
            return true;
        }
        self.frame_packet(slot, &packet, out);
        if let Some(id) = way.packet_id {
            self.sent(slot, id, record, packet);
        }
        true
    }

    /// The retained message of a topic: it waits where others fall back, for it is in no log.
    pub(super) fn give_retained<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        record: &Record,
        frames: &Frames,
        io: &mut I,
    ) {
        let extra = self.extras.get(self.conns.get(slot).extra);
        let sub = &extra.list[part as usize];
        let mqtt = extra.mqtt.as_deref().expect("a list has its state");
        let way = Way {
            qos: Qos::from_bits(record.qos.min(qos(sub.options))).expect("never three"),
            retain: true,
            // A placeholder until it is sent.
            packet_id: None,
            identifier: sub.identifier,
            alias: 0,
            known: false,
        };
        let waits = way.qos != Qos::AtMostOnce && !self.has_place(slot, mqtt);
        let way = Way {
            packet_id: match way.qos {
                Qos::AtMostOnce => None,
                _ if waits => Some(PacketId::MAX),
                _ => Some(self.take_packet_id(slot)),
            },
            ..way
        };
        let mut packet = Vec::new();
        let topic = self.topic_name(slot, part);
        if !self.encode_publish(slot, &topic, record, frames, &way, &mut packet) {
            return;
        }
        if waits {
            let version = self.version(slot);
            let waiting = &mut self.mqtt_state(slot).waiting;
            return waiting.push_back(under_way(PacketId::MAX, record, version, packet));
        }
        let mut out = Vec::new();
        self.frame_packet(slot, &packet, &mut out);
        if let Some(id) = way.packet_id {
            self.sent(slot, id, record, packet);
        }
        self.put(slot, &out, io);
    }

    /// Retained messages that waited for room.
    pub(super) fn give_waiting<I: Io>(&mut self, slot: u32, io: &mut I) {
        loop {
            let Some(mqtt) = self.mqtt(slot) else { return };
            let waits = self.conns.get(slot).outbox != NONE || !self.has_place(slot, mqtt);
            if mqtt.waiting.is_empty() || waits {
                return;
            }
            let id = self.take_packet_id(slot);
            let mqtt = self.mqtt_state(slot);
            let mut next = mqtt.waiting.pop_front().expect("it was just seen");
            next.packet_id = id.get();
            mqtt.inflight.push_back(next);
            self.send_again(slot, mqtt_last(self.mqtt(slot)), false);
            self.send_reply(slot, io);
        }
    }

    fn has_place(&self, slot: u32, mqtt: &Mqtt) -> bool {
        let row = self.mqtts.get(self.conns.get(slot).mqtt);
        mqtt.inflight.len() < usize::from(row.receive_max)
    }

    /// Whether so many places are free that reading on from the log is worth its while.
    pub(super) fn has_room(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        let receive_max = usize::from(self.mqtts.get(row.mqtt).receive_max);
        let Some(mqtt) = self.mqtt(slot) else {
            return true;
        };
        let extra = self.extras.get(row.extra);
        let unbound = |behind: &Behind| qos(extra.list[behind.part as usize].options) == 0;
        mqtt.inflight.len() * 2 <= receive_max || extra.behind.iter().any(unbound)
    }

    fn take_packet_id(&mut self, slot: u32) -> PacketId {
        let row = self.conns.get(slot).mqtt;
        let last = self.mqtts.get(row).packet_id;
        let id = self.mqtt_state(slot).next_packet_id(last);
        self.mqtts.get_mut(row).packet_id = id;
        PacketId::new(id).expect("never 0")
    }

    /// The alias of a subscription's topic, given when the client allows another one.
    fn alias_of(&mut self, slot: u32, part: u32, alias: u16) -> u16 {
        let extra = self.extra(slot);
        let mqtt = extra.mqtt.as_mut().expect("a list has its state");
        if alias != 0 || mqtt.aliases_given == mqtt.aliases_max {
            return alias;
        }
        mqtt.aliases_given += 1;
        let alias = mqtt.aliases_given;
        extra.list[part as usize].alias = alias;
        alias
    }

    /// Appends the PUBLISH, unless it has expired or the client does not take so much [MQTT-3.1.2-25].
    fn encode_publish(
        &mut self,
        slot: u32,
        topic: &[u8],
        record: &Record,
        frames: &Frames,
        way: &Way,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut set = core::mem::take(&mut self.properties);
        set.clear();
        let version = self.version(slot);
        let left_s = left_s(record, self.now.unix_s);
        if version == Version::V5 {
            write_properties(&mut set, frames, record, left_s);
            if way.identifier != 0 {
                set.subscription_identifier(way.identifier);
            }
            if way.alias != 0 {
                set.topic_alias(way.alias);
            }
        }
        let name = core::str::from_utf8(topic).expect("topics are UTF-8");
        let publish = Publish {
            dup: false,
            qos: way.qos,
            retain: way.retain,
            topic: if way.known { "" } else { name },
            packet_id: way.packet_id,
            properties: set.properties(),
            payload: frames.data(record),
        };
        let row = self.conns.get(slot);
        let most = match row.wants(SMALL) {
            true => self.mqtts.get(row.mqtt).packet_bytes_max as usize,
            false => usize::MAX,
        };
        let bytes = encode::publish_bytes(version, &publish, publish.payload.len());
        let fits = bytes <= most && left_s != Some(0);
        if fits {
            encode::publish(out, version, &publish);
        }
        self.properties = set;
        fits
    }

    fn topic_name(&self, slot: u32, part: u32) -> Vec<u8> {
        let list = &self.extras.get(self.conns.get(slot).extra).list;
        self.topics.name(list[part as usize].topic).to_vec()
    }

    /// A message of a group; false when there is nothing to wait for: it was sent with QoS 0, or not at all.
    #[allow(clippy::too_many_arguments)] // a message of a group, and what a delivery is always given
    pub(super) fn give_shared<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        home: ShardId,
        topic: &[u8],
        record: &Record,
        frames: &Frames,
        io: &mut I,
    ) -> bool {
        let extra = self.extras.get(self.conns.get(slot).extra);
        let sub = &extra.list[part as usize];
        let qos = Qos::from_bits(record.qos.min(qos(sub.options))).expect("never three");
        let retain = record.retain && sub.options & RETAIN_AS_PUBLISHED != 0;
        let identifier = sub.identifier;
        let mqtt = extra.mqtt.as_deref().expect("a list has its state");
        let waits = qos != Qos::AtMostOnce && !self.has_place(slot, mqtt);
        let packet_id = match qos {
            Qos::AtMostOnce => None,
            _ if waits => Some(PacketId::MAX),
            _ => Some(self.take_packet_id(slot)),
        };
        let way = Way {
            qos,
            retain,
            packet_id,
            identifier,
            alias: 0,
            known: false,
        };
        let mut packet = Vec::new();
        if !self.encode_publish(slot, topic, record, frames, &way, &mut packet) {
            return false;
        }
        let mut out = Vec::new();
        if !waits {
            self.frame_packet(slot, &packet, &mut out);
        }
        if let Some(id) = packet_id {
            let mut sent = under_way(id, record, self.version(slot), packet);
            sent.group = Some((part as u16, home));
            let mqtt = self.mqtt_state(slot);
            let list = if waits {
                &mut mqtt.waiting
            } else {
                &mut mqtt.inflight
            };
            list.push_back(sent);
        }
        if !waits {
            self.put(slot, &out, io);
        }
        packet_id.is_some()
    }

    fn frame_packet(&self, slot: u32, packet: &[u8], out: &mut Vec<u8>) {
        if self.conns.get(slot).wants(FRAMED) {
            frame::write_frame(out, Opcode::Binary, packet);
        } else {
            out.extend_from_slice(packet);
        }
    }

    fn sent(&mut self, slot: u32, id: PacketId, record: &Record, packet: Vec<u8>) {
        let version = self.version(slot);
        let inflight = &mut self.mqtt_state(slot).inflight;
        inflight.push_back(under_way(id, record, version, packet));
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
        if waits || !extra.behind.is_empty() {
            self.resumed.push(self.id_of(slot));
        }
    }

    /// After a session was found again: what was not acknowledged, in its order [MQTT-4.4.0-1].
    pub(super) fn send_inflight<I: Io>(&mut self, slot: u32, io: &mut I) {
        let count = self.mqtt(slot).map_or(0, |mqtt| mqtt.inflight.len());
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

fn under_way(id: PacketId, record: &Record, version: Version, packet: Vec<u8>) -> Inflight {
    let end_s = record
        .ttl_s()
        .map_or(FOREVER_S, |ttl_s| record.time_s.saturating_add(ttl_s));
    Inflight {
        packet_id: id.get(),
        step: Step::Published,
        end_s,
        offset: record.offset,
        group: None,
        version,
        packet: packet.into_boxed_slice(),
    }
}

/// Seconds that are left of a message's life, if it has an end (section 3.3.2.3.3).
fn left_s(record: &Record, now_s: u32) -> Option<u32> {
    let ttl_s = record.ttl_s()?;
    Some(ttl_s.saturating_sub(now_s.saturating_sub(record.time_s)))
}

fn write_properties(set: &mut PropertyBuf, frames: &Frames, record: &Record, left_s: Option<u32>) {
    Shard::message_properties(set, frames, record);
    if let Some(left_s) = left_s {
        set.message_expiry_interval_s(left_s);
    }
}

/// A QoS 0 message as all plain subscribers of a version get it.
pub(crate) fn encode_plain(message: &Message<'_>, v5: bool, out: &mut Vec<u8>) {
    let (frames, record) = (message.frames, message.record);
    let version = if v5 { Version::V5 } else { Version::V311 };
    let mut set = PropertyBuf::new();
    if v5 {
        write_properties(&mut set, frames, record, left_s(record, message.now_s));
    }
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic: core::str::from_utf8(message.topic).expect("topics are UTF-8"),
        packet_id: None,
        properties: set.properties(),
        payload: frames.data(record),
    };
    encode::publish(out, version, &publish);
}

/// Whether a subscription with these options gets what all plain ones get.
pub(crate) fn is_plain(options: u32) -> bool {
    options >> crate::conn::QOS_SHIFT & 3 == 0 && options & SMALL == 0
}

/// The options of a subscription as they stand in a list.
pub(super) fn options_of(bits: u8) -> SubscribeOptions {
    SubscribeOptions {
        max_qos: Qos::from_bits(qos(bits)).expect("never three"),
        no_local: bits & NO_LOCAL != 0,
        retain_as_published: bits & RETAIN_AS_PUBLISHED != 0,
        retain_handling: mqtt::RetainHandling::DoNotSend,
    }
}
