//! Messages of the client (MQTT 5.0 sections 3.3 and 4.3).

use alloc::vec::Vec;

use crore_wire::mqtt::{
    self, Ack, PacketId, PacketType, Properties, Property, PropertyBuf, Publish, Qos, ReasonCode,
    Version, encode,
};
use crore_wire::topic;

use super::super::publish::{check_fields, is_binary};
use super::NOTHING;
use super::state::Answer;
use crate::access::Right;
use crate::conn::V5;
use crate::home;
use crate::io::Io;
use crate::mail::{self, Outcome};
use crate::planted::{self, Fault};
use crate::shard::Shard;

/// The user property that stands for a message's key.
pub(super) const KEY: &str = "crore-key";
/// The user property that stands for a message's event name.
pub(super) const EVENT: &str = "crore-event";

/// What of a message's properties other doors know too, and the rest as attributes.
pub(super) struct Fields<'a> {
    pub content_type: &'a [u8],
    pub key: &'a [u8],
    pub event: &'a [u8],
    /// See [`home::Publish::attributes`].
    pub attributes: Vec<u8>,
}

impl<'a> Fields<'a> {
    /// Reads them.
    ///
    /// # Errors
    /// What no other door could pass on, or a payload that is not the text that it is said to be.
    pub fn of(
        set: &Properties<'a>,
        payload: &[u8],
        origin: u64,
    ) -> Result<Fields<'a>, &'static str> {
        let user = |name| {
            let mut found = set.user_properties().filter(|(key, _)| *key == name);
            found.next().map_or(&b""[..], |(_, value)| value.as_bytes())
        };
        let content_type = set.content_type().unwrap_or_default().as_bytes();
        let (key, event) = (user(KEY), user(EVENT));
        check_fields(content_type, event, key)?;
        if set.payload_is_utf8() && core::str::from_utf8(payload).is_err() {
            return Err("the payload is not the UTF-8 that it is said to be");
        }
        let mut attributes = Vec::from(origin.to_le_bytes());
        for (property, item) in set.iter() {
            let carried = match property {
                Property::PayloadFormatIndicator
                | Property::ResponseTopic
                | Property::CorrelationData => true,
                Property::UserProperty => !is_named(item, KEY) && !is_named(item, EVENT),
                _ => false,
            };
            if carried {
                attributes.extend_from_slice(item);
            }
        }
        if attributes.len() > usize::from(u16::MAX) {
            return Err("the properties have more than 65,535 bytes");
        }
        Ok(Fields {
            content_type,
            key,
            event,
            attributes,
        })
    }
}

/// Whether these are the bytes of a user property of this name.
fn is_named(item: &[u8], name: &str) -> bool {
    item[3..].starts_with(name.as_bytes()) && item[1..3] == (name.len() as u16).to_be_bytes()
}

impl Shard {
    /// Touches what the publishes among the next packets need; returns where the first packet begins that was not looked
    /// at.
    pub(super) fn warm_publishes(&self, bytes: &[u8], mut at: usize, most: usize) -> usize {
        self.warm_topics(|| {
            let (header, len) = mqtt::fixed_header(&bytes[at..], most).ok()??;
            let body = &bytes[at + len..];
            at = (at + len + header.body_bytes()).min(bytes.len());
            let is_publish = header.kind() == PacketType::Publish;
            let topic = body.split_first_chunk().filter(|_| is_publish);
            let name = topic.and_then(|(len, rest)| rest.get(..u16::from_be_bytes(*len).into()));
            Some(name.unwrap_or_default())
        });
        at
    }

    pub(super) fn client_published(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Result<(), ReasonCode> {
        let name = self.named(slot, publish)?;
        let id = publish.packet_id.map_or(0, PacketId::get);
        if publish.qos != Qos::AtMostOnce {
            self.expect_answer(slot, id, publish.qos)?;
            if self.came_before(slot, id, publish.qos) {
                return Ok(());
            }
        }
        match self.publish_named(slot, publish, &name, id) {
            Ok(None) if id != 0 && planted::is(Fault::EarlyAck) => {
                self.answer_publish(slot, id, ReasonCode::SUCCESS)?;
            }
            Ok(None) => {}
            Ok(Some(outcome)) => self.answer_publish(slot, id, reason_of(outcome))?,
            Err(reason) => self.answer_publish(slot, id, reason)?,
        }
        if publish.properties.topic_alias().is_none() {
            self.named_scratch = name;
        }
        Ok(())
    }

    /// The topic, by name or by alias (section 3.3.2.3.4).
    fn named(&mut self, slot: u32, publish: &Publish<'_>) -> Result<Vec<u8>, ReasonCode> {
        let mut name = core::mem::take(&mut self.named_scratch);
        name.clear();
        let Some(alias) = publish.properties.topic_alias() else {
            name.extend_from_slice(publish.topic.as_bytes());
            return Ok(name);
        };
        let most = self.world.settings.mqtt.topic_aliases_max;
        if alias > most {
            return Err(ReasonCode::TOPIC_ALIAS_INVALID);
        }
        let aliases = &mut self.mqtt_state(slot).aliases;
        if aliases.len() < usize::from(alias) {
            aliases.resize(usize::from(alias), Vec::new());
        }
        let known = &mut aliases[usize::from(alias) - 1];
        if !publish.topic.is_empty() {
            *known = publish.topic.as_bytes().to_vec();
        } else if known.is_empty() {
            // [MQTT-3.3.2-7]: nothing was said of this alias on this connection.
            return Err(ReasonCode::PROTOCOL_ERROR);
        }
        Ok(known.clone())
    }

    /// Takes a place among the answers, which keep the order of the publishes.
    fn expect_answer(&mut self, slot: u32, id: u16, qos: Qos) -> Result<(), ReasonCode> {
        let v5 = self.conns.get(slot).wants(V5);
        let most = usize::from(self.world.settings.mqtt.receive_max);
        let mqtt = self.mqtt_state(slot);
        let known = mqtt.received.contains(&id);
        let under_way = mqtt.received.len()
            + mqtt
                .answers
                .iter()
                .filter(|answer| !answer.exactly_once)
                .count();
        // A client of 3.1.1 is told no limit: it waits for its answers, and has 65,535 ids.
        if v5 && under_way >= most && !known {
            return Err(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED);
        }
        mqtt.answers.push_back(Answer {
            packet_id: id,
            exactly_once: qos == Qos::ExactlyOnce,
            reason: None,
        });
        Ok(())
    }

    /// Whether a QoS 2 message came before and was not released: then it is only acknowledged again.
    fn came_before(&mut self, slot: u32, id: u16, qos: Qos) -> bool {
        if qos != Qos::ExactlyOnce {
            return false;
        }
        let mqtt = self.mqtt_state(slot);
        if !mqtt.received.contains(&id) {
            mqtt.received.insert(id);
            return false;
        }
        // When the first one's answer is under way, it answers both.
        let pending = mqtt
            .answers
            .iter()
            .filter(|a| a.packet_id == id && a.reason.is_none());
        if pending.count() > 1 {
            mqtt.answers.pop_back();
        } else if self.answer_publish(slot, id, ReasonCode::SUCCESS).is_err() {
            unreachable!("success is no failure");
        }
        true
    }

    fn publish_named(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        name: &[u8],
        id: u16,
    ) -> Result<Option<Outcome>, ReasonCode> {
        let limits = &self.world.settings.limits;
        if topic::check_name(name, limits.topic_bytes).is_err() {
            return Err(ReasonCode::TOPIC_NAME_INVALID);
        }
        if topic::is_reserved(name) {
            return Err(ReasonCode::NOT_AUTHORIZED);
        }
        let message_bytes = limits.message_bytes;
        self.grants(slot, Right::Publish, name)?;
        if publish.payload.len() > message_bytes {
            return Err(ReasonCode::QUOTA_EXCEEDED);
        }
        let origin = self.mqtts.get(self.conns.get(slot).mqtt).origin();
        let set = &publish.properties;
        let fields = Fields::of(set, publish.payload, origin)
            .map_err(|_| ReasonCode::PAYLOAD_FORMAT_INVALID)?;
        if self.may_publish(slot).is_err() {
            return Err(ReasonCode::QUOTA_EXCEEDED);
        }
        let (hash, home) = self.place_of(name);
        let message = home::Publish {
            hash,
            name,
            data: publish.payload,
            content_type: fields.content_type,
            event: fields.event,
            key: fields.key,
            attributes: &fields.attributes,
            qos: publish.qos.bits(),
            retain: publish.retain,
            ttl_s: set.message_expiry_interval_s(),
            binary: is_binary(fields.content_type, publish.payload),
            idempotency_key: b"",
            client: self.conns.get(slot).client,
        };
        let answer = match publish.qos {
            Qos::AtMostOnce => mail::Answer::None,
            _ => mail::Answer::Full(self.reply_to(slot, u32::from(id))),
        };
        Ok(self.publish(home, &message, answer))
    }

    /// What became of a publish. QoS 0 has no answer; 3.1.1 has no word for a failure, so that the connection
    /// ends with it [MQTT-3.3.5-2 of 3.1.1].
    fn answer_publish(&mut self, slot: u32, id: u16, reason: ReasonCode) -> Result<(), ReasonCode> {
        let version = self.version(slot);
        if id == 0 {
            if reason == ReasonCode::QUOTA_EXCEEDED {
                self.stats.dropped += 1;
                return Ok(());
            }
            return if reason.is_error() {
                Err(reason)
            } else {
                Ok(())
            };
        }
        let mqtt = self.mqtt_state(slot);
        if reason.is_error() {
            // Refused: its id is free again [MQTT-4.3.3-9], also for a session that goes on elsewhere.
            mqtt.received.remove(&id);
        }
        let mut answers = mqtt.answers.iter();
        let at = answers.position(|answer| answer.packet_id == id && answer.reason.is_none());
        let at = at.expect("each publish has its place");
        if reason.is_error() && version == Version::V311 {
            mqtt.answers.remove(at);
            return Err(reason);
        }
        mqtt.answers[at].reason = Some(reason);
        while let Some(answer) = self.next_answer(slot) {
            let ack = Ack {
                packet_id: PacketId::new(answer.packet_id).expect("ids are not 0"),
                reason: answer.reason.expect("it is answered"),
                properties: NOTHING,
            };
            let write = if answer.exactly_once {
                encode::pubrec
            } else {
                encode::puback
            };
            self.write(slot, |out| write(out, version, &ack));
        }
        Ok(())
    }

    fn next_answer(&mut self, slot: u32) -> Option<Answer> {
        let answers = &mut self.mqtt_state(slot).answers;
        answers.front().filter(|answer| answer.reason.is_some())?;
        answers.pop_front()
    }

    /// Another shard's answer to a publish.
    pub(crate) fn mqtt_outcome<I: Io>(&mut self, slot: u32, id: u32, outcome: Outcome, io: &mut I) {
        let most = usize::from(self.world.settings.mqtt.receive_max);
        if planted::is(Fault::EarlyAck) {
            return;
        }
        let waited = self.mqtt_state(slot).answers.len() > most;
        if let Err(reason) = self.answer_publish(slot, id as u16, reason_of(outcome)) {
            self.reply.clear();
            return self.mqtt_end(slot, reason, io);
        }
        self.send_reply(slot, io);
        if waited {
            self.resumed.push_back(self.id_of(slot));
        }
    }

    /// PUBREL: the id of a QoS 2 message is free again.
    pub(super) fn client_released(&mut self, slot: u32, id: PacketId) -> Result<(), ReasonCode> {
        let version = self.version(slot);
        let received = &mut self.mqtt_state(slot).received;
        let known = received.remove(&id.get());
        let ack = Ack {
            packet_id: id,
            reason: match known {
                true => ReasonCode::SUCCESS,
                false => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
            },
            properties: NOTHING,
        };
        self.write(slot, |out| encode::pubcomp(out, version, &ack));
        Ok(())
    }

    /// Appends the properties that a message has from other doors, and those that came with it.
    pub(super) fn message_properties(
        set: &mut PropertyBuf,
        frames: &mail::Frames,
        record: &mail::Record,
    ) {
        let stored = Properties::stored(frames.properties(record));
        set.forward(&stored);
        let text = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
        if frames.origin(record) == 0
            && !stored.has(Property::PayloadFormatIndicator)
            && !record.binary
        {
            set.payload_is_utf8(true);
        }
        let content_type = text(frames.content_type(record));
        if !content_type.is_empty() {
            set.content_type(content_type)
                .expect("it is checked and short");
        }
        for (name, value) in [(KEY, frames.key(record)), (EVENT, frames.event(record))] {
            if !value.is_empty() {
                // Only one whose 128 places are taken has no room for these two.
                let _ = set.user_property(name, text(value));
            }
        }
    }
}

pub(super) fn reason_of(outcome: Outcome) -> ReasonCode {
    match outcome {
        Outcome::Done(info) if info.subscribers == 0 && !info.wanted => {
            ReasonCode::NO_MATCHING_SUBSCRIBERS
        }
        Outcome::Done(_) | Outcome::Existed(_) | Outcome::Replayed(_) => ReasonCode::SUCCESS,
        Outcome::Full(_) | Outcome::Missing | Outcome::OtherMessage => ReasonCode::QUOTA_EXCEEDED,
    }
}
