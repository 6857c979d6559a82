//! One message on its way to one client: the options of its subscriptions together, and the packet.

use alloc::vec::Vec;

use crore_wire::mqtt::{PacketId, Publish, Qos, Version, encode};
use crore_wire::websocket::frame::Opcode;

use super::options::{NO_LOCAL, RETAIN_AS_PUBLISHED, qos};
use super::plain::write_properties;
use super::state::{Inflight, NO_END_S, Step, without_payload};
use crate::base::ids::ShardId;
use crate::client::outbox::Packets;
use crate::mail::properties::left_s;
use crate::mail::{Frames, Record};
use crate::protocol::encode::frame_rope;
use crate::protocol::front::Front;
use crate::protocol::mqtt::options::FRAMED;
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// The combined options of the subscriptions that match a message.
#[derive(Clone, Copy, Default)]
pub(super) struct Wants<'a> {
    /// Their highest QoS, and the flags.
    pub options: u8,
    /// Their identifiers; 0 stands for none.
    pub identifiers: &'a [u32],
    /// The part whose topic it is, for an alias.
    pub alias: Option<u32>,
    /// It is the topic's retained message.
    pub retained: bool,
    /// The part and the home, when it is a group's message.
    pub group: Option<(u16, ShardId)>,
    /// It is in no log: it is sent whatever waits before it.
    pub unbound: bool,
}

/// The outcome of offering a message.
pub(super) enum Offered {
    /// It was sent or is on its way; with this packet id if it will be acknowledged.
    Sent(Option<PacketId>),
    /// The client does not get it.
    Skipped,
    /// There is no room.
    Full,
}

impl Front {
    /// Appends the packet of a message to `out`, if there is room for it.
    pub(super) fn offer_packet(
        &mut self,
        slot: u32,
        wants: &Wants<'_>,
        message: (&[u8], &Record, &Frames),
        out: &mut Packets,
    ) -> Offered {
        let (topic, record, frames) = message;
        let own = self.conns.own_row(slot).origin();
        if wants.options & NO_LOCAL != 0 && frames.origin(record) == own {
            return Offered::Skipped;
        }
        let waits = self.conns.get(slot).outbox != NONE;
        let acknowledged = record.qos.min(qos(wants.options)) > 0;
        let bytes = out.bytes.len() + frames.frame(record).len();
        let bounds = || self.bounds_of(topic).after(out.ends.len());
        // If the topic's log is kept for the subscription, no newer message overtakes those to be sent again.
        let overtakes = qos(wants.options) > 0 && self.has_waiting(slot);
        if acknowledged && !self.has_place(slot)
            || !wants.unbound
                && (overtakes || record.latest && waits || !self.fits(slot, bytes, bounds))
        {
            return Offered::Full;
        }
        let id = acknowledged.then(|| self.take_packet_id(slot));
        let start = out.bytes.mark();
        let mut packet = Rope::default();
        if !self.encode_publish(slot, wants, message, id, &mut packet) {
            return Offered::Skipped;
        }
        self.stats.sent(1, packet.len());
        out.bytes.append(&packet, 0, packet.len());
        if self.conns.get(slot).wants(FRAMED) {
            frame_rope(&mut out.bytes, start, Opcode::Binary);
        }
        if self.world.rules.count_waiting() {
            out.ends.push(out.bytes.len());
        }
        if let Some(id) = id {
            let sent = self.under_way(slot, id, wants, message, packet);
            self.mqtt_state(slot).inflight.push_back(sent);
        }
        Offered::Sent(id)
    }

    /// Keeps a message until there is room for it; false when the client does not get it.
    pub(super) fn wait_packet(
        &mut self,
        slot: u32,
        wants: &Wants<'_>,
        message: (&[u8], &Record, &Frames),
    ) -> bool {
        // A placeholder: the message gets its id when it is sent.
        let id = PacketId::MAX;
        let mut packet = Rope::default();
        if !self.encode_publish(slot, wants, message, Some(id), &mut packet) {
            return false;
        }
        let waiting = self.under_way(slot, id, wants, message, packet);
        self.mqtt_state(slot).waiting.push_back(waiting);
        true
    }

    fn under_way(
        &self,
        slot: u32,
        id: PacketId,
        wants: &Wants<'_>,
        (_, record, frames): (&[u8], &Record, &Frames),
        packet: Rope,
    ) -> Inflight {
        let payload = frames.large_data(record).filter(|_| packet.is_shared());
        let packet = match payload {
            Some(_) => without_payload(&packet.own).expect("it was just written"),
            None => packet.own.into_boxed_slice(),
        };
        let end_s = record.ttl_s().map_or(NO_END_S, |ttl_s| {
            u64::from(record.time_s) + u64::from(ttl_s)
        });
        Inflight {
            packet_id: id.get(),
            step: Step::Published,
            end_s,
            offset: record.offset,
            group: wants.group,
            version: self.version(slot),
            packet,
            payload,
        }
    }

    /// Appends the PUBLISH, unless it has expired or is larger than the client takes [MQTT-3.1.2-25].
    fn encode_publish(
        &mut self,
        slot: u32,
        wants: &Wants<'_>,
        (topic, record, frames): (&[u8], &Record, &Frames),
        packet_id: Option<PacketId>,
        out: &mut Rope,
    ) -> bool {
        let version = self.version(slot);
        let left_s = left_s(record, self.now.unix_s);
        let alias = wants.alias.filter(|_| packet_id.is_none());
        let (known, alias) = alias.map_or((false, 0), |part| self.alias_for(slot, part));
        let mut set = core::mem::take(&mut self.own.properties);
        set.clear();
        if version == Version::V5 {
            write_properties(&mut set, frames, record, left_s);
            for identifier in wants.identifiers.iter().filter(|n| **n != 0) {
                set.subscription_identifier(*identifier);
            }
            if alias != 0 {
                set.topic_alias(alias);
            }
        }
        // Topics are UTF-8.
        let name = core::str::from_utf8(topic).unwrap_or_default();
        let qos = record.qos.min(qos(wants.options));
        let publish = Publish {
            dup: false,
            qos: Qos::from_bits(qos).unwrap_or(Qos::AtMostOnce),
            retain: wants.retained || record.retain && wants.options & RETAIN_AS_PUBLISHED != 0,
            topic: if known { "" } else { name },
            packet_id,
            properties: set.properties(),
            payload: frames.data(record),
        };
        let bytes = encode::publish_bytes(version, &publish, publish.payload.len());
        let takes = bytes <= self.packet_bytes_max(slot);
        let lives = left_s != Some(0);
        let before = out.len();
        if takes && lives && !name.is_empty() {
            let payload_bytes = publish.payload.len();
            if encode::publish_head(&mut out.own, version, &publish, payload_bytes) {
                match frames.large_data(record) {
                    Some(payload) => out.share(payload),
                    None => out.own.extend_from_slice(publish.payload),
                }
            }
        }
        let fits = out.len() > before;
        self.stats.dropped += u64::from(lives && !fits);
        self.own.properties = set;
        if let Some(part) = wants.alias.filter(|_| fits && alias != 0 && !known) {
            let extra = self.conns.extra(slot);
            if let (Some(sub), Some(mqtt)) =
                (extra.list.get_mut(part as usize), &mut extra.own.mqtt)
            {
                (sub.own.alias, mqtt.aliases_given) = (alias, alias);
            }
        }
        fits
    }

    /// The alias of a subscription's topic, and whether the client knows it; 0 when the client allows no further alias.
    fn alias_for(&self, slot: u32, part: u32) -> (bool, u16) {
        let (Some(sub), Some(mqtt)) = (self.sub(slot, part), self.mqtt(slot)) else {
            return (false, 0);
        };
        let alias = sub.own.alias;
        match alias {
            0 if mqtt.aliases_given < mqtt.aliases_max => (false, mqtt.aliases_given + 1),
            _ => (alias != 0, alias),
        }
    }

    pub(super) fn topic_name(&self, slot: u32, part: u32) -> Vec<u8> {
        let topic = self.sub(slot, part).map(|sub| sub.topic);
        let topic = topic.filter(|topic| *topic != NONE);
        topic.map_or(Vec::new(), |topic| self.topics.name(topic).to_vec())
    }
}
