//! Handles the messages that the client publishes (MQTT 5.0 sections 3.3 and 4.3).

use alloc::vec::Vec;

use crore_wire::mqtt::{
    Ack, PacketId, Properties, Property, Publish, Qos, ReasonCode, Version, encode,
};
use crore_wire::topic;

use crate::base::planted::{self, Fault};
use crate::base::reason::Reason;
use crate::budget::admission::Party;
use crate::client::asking;
use crate::client::list::collapse;
use crate::client::publishing::PublishRefusal;
use crate::client::row::{CLOSING, PAUSED};
use crate::home::Home;
use crate::io::Io;
use crate::mail::fields::check_fields;
use crate::mail::message::{
    self, DedupKey, Headers, SessionKey, SessionKeyBytes, is_binary, is_utf8,
};
use crate::mail::properties::{
    CLIENT_ATTRIBUTES_BYTES_MAX, CLIENT_PROPERTIES_MAX, EVENT, KEY, PUBLISHER,
};
use crate::mail::{self, Ask, Outcome, ReleaseAt, ReplyTo};
use crate::protocol::front::{Clients, Front, Lanes, Queues, Subscriptions};
use crate::protocol::mqtt::client::{self, SENT_PER_STEP, is_bridge, mqtt_state, next_answer};
use crate::protocol::mqtt::close::{mqtt_end_saying, mqtt_end_wrong};
use crate::protocol::mqtt::options::V5;
use crate::protocol::mqtt::receive_maximum::PastMaximum;
use crate::protocol::mqtt::state::{Answer, KeylessRelease, Releasing};
use crate::store::slab::NONE;

/// The properties of a message: those that other protocols have too, and as attributes those that MQTT subscribers get unaltered.
pub(super) struct Fields<'a> {
    pub content_type: &'a [u8],
    pub key: &'a [u8],
    pub event: &'a [u8],
    /// See [`Headers::attributes`].
    pub attributes: Vec<u8>,
}

impl<'a> Fields<'a> {
    /// Reads the properties of a publish. `attributes` is a buffer.
    ///
    /// # Errors
    /// A property that other protocols could not pass on, or a payload that is not UTF-8 although it says so.
    pub fn read(
        set: &Properties<'a>,
        payload: &[u8],
        origin: u64,
        mut attributes: Vec<u8>,
    ) -> Result<Fields<'a>, (ReasonCode, &'static str)> {
        attributes.clear();
        attributes.extend_from_slice(&origin.to_le_bytes());
        if set.is_empty() {
            return Ok(Fields {
                content_type: b"",
                key: b"",
                event: b"",
                attributes,
            });
        }
        let invalid = |words| (ReasonCode::PAYLOAD_FORMAT_INVALID, words);
        let user = |name| {
            let mut found = set.user_properties().filter(|(key, _)| *key == name);
            found.next().map_or(&b""[..], |(_, value)| value.as_bytes())
        };
        let content_type = set.content_type().unwrap_or_default().as_bytes();
        let (key, event) = (user(KEY), user(EVENT));
        check_fields(content_type, event, key).map_err(invalid)?;
        if set.payload_is_utf8() && !is_utf8(payload) {
            return Err(invalid(
                "the payload is not the UTF-8 that it is said to be",
            ));
        }
        let mut names = set.user_properties().map(|(name, _)| name);
        let mut count = 0;
        for (property, item) in set.iter() {
            if property == Property::UserProperty {
                // Only the server says who the publisher is.
                if names.next() == Some(PUBLISHER) {
                    continue;
                }
                count += 1;
            }
            let carried = match property {
                Property::PayloadFormatIndicator
                | Property::ResponseTopic
                | Property::CorrelationData
                | Property::UserProperty => true,
                // Other protocols do not distinguish an empty type from none.
                Property::ContentType => content_type.is_empty(),
                _ => false,
            };
            if carried {
                attributes.extend_from_slice(item);
            }
        }
        if attributes.len() > CLIENT_ATTRIBUTES_BYTES_MAX {
            return Err(invalid("the properties have more than 65,260 bytes"));
        }
        if count > CLIENT_PROPERTIES_MAX {
            return Err(invalid("there are more than 127 user properties"));
        }
        Ok(Fields {
            content_type,
            key,
            event,
            attributes,
        })
    }
}

/// The topics in which bridges announce whether they are connected: the only names with `$` that clients may publish to (mosquitto.conf(5),
/// `notifications`).
const BRIDGE_STATES: &[u8] = b"$SYS/broker/connection/+/state";

/// Whether this is such a topic.
pub(super) fn is_bridge_state(name: &[u8]) -> bool {
    topic::matches(BRIDGE_STATES, name)
}

pub(super) fn client_published(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    publish: &Publish<'_>,
    home: &mut Option<Home>,
) -> Result<(), ReasonCode> {
    let name = named(clients, slot, publish)?;
    let id = publish.packet_id.map_or(0, PacketId::get);
    if publish.qos != Qos::AtMostOnce {
        expect_answer(clients, slot, id, publish.qos);
        if came_before(clients, slot, id, publish.qos) {
            return Ok(());
        }
    }
    let part = part_of(id, publish.qos);
    match publish_named(clients, subs, slot, publish, &name, part, home) {
        Ok(None) if id != 0 && planted::is(Fault::EarlyAck) => {
            answer_publish(clients, slot, part, ReasonCode::SUCCESS)?;
        }
        Ok(None) => {}
        Ok(Some(outcome)) => {
            let reason = reason_code_of(clients, slot, outcome);
            answer_publish(clients, slot, part, reason)?;
        }
        Err(reason) => match clients.session_party(slot) {
            // A client that does not wait for the PUBCOMP before it uses an id again gets the refusal itself.
            Some(sender) if publish.qos == Qos::ExactlyOnce && !is_releasing(clients, slot, id) => {
                clients.refuse_unless_known(&mut subs.lanes, slot, sender, id, reason);
            }
            _ => answer_publish(clients, slot, part, reason)?,
        },
    }
    clients.protocol_state.name = name;
    Ok(())
}

/// Called once a second: disconnects a client that has exceeded the Receive Maximum and sends no PUBREL.
pub(crate) fn mqtt_second<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    if does_not_release(clients, slot) {
        let reason = ReasonCode::RECEIVE_MAXIMUM_EXCEEDED;
        clients.scratch.reply.clear();
        return mqtt_end_wrong(clients, slot, reason, reason.name(), io);
    }
    clients.record_if_due(slot);
    collapse(&mut clients.conns, slot);
}

fn publish_named(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    publish: &Publish<'_>,
    name: &[u8],
    part: u32,
    home: &mut Option<Home>,
) -> Result<Option<Outcome>, ReasonCode> {
    let states = || is_bridge(&clients.conns, slot) && is_bridge_state(name);
    let bytes = publish.payload.len();
    if let Err(refused) = clients.check_publish(slot, name, bytes, states) {
        if refused == PublishRefusal::Other(Reason::MessageTooLong) {
            let words = Reason::MessageTooLong.words(&clients.ctx.world.settings);
            let words = alloc::format!("PUBLISH: {words}: ");
            clients.meter.refused_packet(&words, name);
        }
        return Err(clients.refuse_message(slot, ("PUBLISH", "topic"), name, refused));
    }
    let origin = client::origin(&clients.conns, slot);
    let set = &publish.properties;
    let buffer = core::mem::take(&mut clients.protocol_state.attributes);
    let fields = Fields::read(set, publish.payload, origin, buffer)
        .map_err(|fault| clients.refused_fields(slot, "PUBLISH", fault, name))?;
    let admitted = clients.check_publish_rate(slot);
    admitted.map_err(|reason| clients.refuse_packet(slot, reason))?;
    let (hash, at) = clients.ctx.hash_and_home_of(name);
    let party = match publish.qos {
        Qos::ExactlyOnce => clients.session_party(slot),
        _ => None,
    };
    let packet_id = publish.packet_id.map_or(0, PacketId::get);
    let key = SessionKeyBytes::new(packet_id, party.map_or(0, |(_, claim)| claim));
    let dedup = party.map(|(publisher, _)| DedupKey {
        key: key.as_slice(),
        publisher,
    });
    let message = message::Publish {
        hash,
        name,
        data: publish.payload,
        headers: Headers {
            content_type: fields.content_type,
            event: fields.event,
            key: fields.key,
            attributes: &fields.attributes,
            ttl_s: set.message_expiry_interval_s(),
            qos: publish.qos.bits(),
            retain: publish.retain,
            binary: is_binary(fields.content_type, publish.payload),
        },
        dedup,
        client: clients.conns.get(slot).consumer.client,
    };
    let answer = match publish.qos {
        Qos::AtMostOnce => mail::WantedAnswer::None,
        _ => mail::WantedAnswer::OutcomeAndInfo(clients.conns.reply_to(slot, part)),
    };
    let outcome = asking::publish_as(clients, subs, home, slot, at, &message, answer);
    clients.protocol_state.attributes = fields.attributes;
    Ok(outcome)
}

/// Another shard's answer to a publish.
pub(crate) fn mqtt_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
    let (clients, _, _, queues) = front.parts();
    let (slot, part) = (to.slot, to.part);
    if planted::is(Fault::EarlyAck) {
        return;
    }
    let most = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    // A node that was cut off may have stopped reading for this answer alone.
    let waited = mqtt_state(&mut clients.conns, slot).answers.len() > most
        || clients.ctx.world.is_replicated() && clients.conns.get(slot).link.has(PAUSED);
    let reason = reason_code_of(clients, slot, outcome);
    let answered = answer_publish(clients, slot, part, reason);
    // It is not acknowledged, so the client sends it again.
    let unknown = (outcome == Outcome::Unknown).then_some(ReasonCode::SERVER_BUSY);
    if let Some(reason) = answered.err().or(unknown) {
        clients.scratch.reply.clear();
        return mqtt_end_saying(clients, slot, reason, reason.name(), io);
    }
    clients.send_reply(slot, io);
    if waited {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// The topic, by name or by alias (section 3.3.2.3.4).
fn named(clients: &mut Clients, slot: u32, publish: &Publish<'_>) -> Result<Vec<u8>, ReasonCode> {
    let mut name = core::mem::take(&mut clients.protocol_state.name);
    name.clear();
    let Some(alias) = publish.properties.topic_alias() else {
        name.extend_from_slice(publish.topic.as_bytes());
        return Ok(name);
    };
    let most = clients.ctx.world.settings.mqtt.topic_aliases_max;
    if alias > most {
        return Err(ReasonCode::TOPIC_ALIAS_INVALID);
    }
    let topic_bytes = clients.ctx.world.settings.limits.topic_bytes;
    let aliases = &mut mqtt_state(&mut clients.conns, slot).aliases;
    if aliases.len() < usize::from(alias) {
        aliases.resize(usize::from(alias), Vec::new());
    }
    // The decoder refuses an alias of 0.
    let known = usize::from(alias).checked_sub(1);
    let Some(known) = known.and_then(|at| aliases.get_mut(at)) else {
        return Err(ReasonCode::TOPIC_ALIAS_INVALID);
    };
    if publish.topic.is_empty() {
        name.extend_from_slice(known);
        return match known.is_empty() {
            // [MQTT-3.3.2-7]: this alias was not set on this connection.
            true => Err(ReasonCode::PROTOCOL_ERROR),
            false => Ok(name),
        };
    }
    name.extend_from_slice(publish.topic.as_bytes());
    known.clear();
    // A name that is too long is refused, and not stored either.
    if name.len() <= topic_bytes {
        known.extend_from_slice(&name);
    }
    Ok(name)
}

/// Queues the answer to a message, since answers keep the order of the messages. Notes if a client of 5.0 exceeds the Receive Maximum
/// [MQTT-3.3.4-7]. 3.1.1 has no such limit, only its 65,535 packet ids.
fn expect_answer(clients: &mut Clients, slot: u32, id: u16, qos: Qos) {
    let v5 = clients.conns.get(slot).has_option(V5);
    let most = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    let now_s = clients.ctx.now.s;
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let known = mqtt.received.contains(&id);
    if v5 && !known && mqtt.received.len() >= most {
        mqtt.past_maximum = Some(PastMaximum::sent(mqtt.past_maximum, now_s));
    }
    mqtt.answers.push_back(Answer {
        packet_id: id,
        exactly_once: qos == Qos::ExactlyOnce,
        again: qos == Qos::ExactlyOnce && known,
        reason: None,
    });
}

fn does_not_release(clients: &mut Clients, slot: u32) -> bool {
    let row = clients.conns.get(slot);
    let closing = row.link.has(CLOSING);
    let waits_for_us =
        row.link.has(PAUSED) || row.link.unprocessed_input != NONE || row.link.outbox != NONE;
    let now_s = clients.ctx.now.s;
    if client::mqtt(&clients.conns, slot).is_none_or(|mqtt| mqtt.past_maximum.is_none()) {
        return false;
    }
    let mqtt = mqtt_state(&mut clients.conns, slot);
    if waits_for_us || !mqtt.answers.is_empty() {
        mqtt.past_maximum = Some(PastMaximum::released(now_s));
    }
    !closing && mqtt.past_maximum.is_some_and(|past| past.is_over(now_s))
}

/// Whether a QoS 2 message was received before and is not released. Then it is not published again, only acknowledged [MQTT-4.3.3-10]. If the
/// first one is not answered yet, this one waits for the same answer.
fn came_before(clients: &mut Clients, slot: u32, id: u16, qos: Qos) -> bool {
    if qos != Qos::ExactlyOnce {
        return false;
    }
    let mqtt = mqtt_state(&mut clients.conns, slot);
    if mqtt.received.insert(id) {
        mqtt.received_before.remove(&id);
        clients.note_unreleased(slot);
        return false;
    }
    if !mqtt.answers.iter().any(|answer| answer.is_due(id, true)) {
        mqtt.answer(id, true, ReasonCode::SUCCESS);
        clients.write_answers(slot);
    }
    true
}

/// Whether homes are asked to release this packet id.
fn is_releasing(clients: &Clients, slot: u32, id: u16) -> bool {
    let mqtt = client::mqtt(&clients.conns, slot);
    mqtt.is_some_and(|mqtt| mqtt.releasing.iter().any(|it| it.packet_id == id))
}

impl Clients {
    /// Writes the answers up to the first one that is not known yet.
    fn write_answers(&mut self, slot: u32) {
        let version = client::version(&self.conns, slot);
        while let Some((answer, reason)) = next_answer(&mut self.conns, slot) {
            let Some(packet_id) = PacketId::new(answer.packet_id) else {
                return self.end_as_broken(slot);
            };
            let ack = Ack {
                packet_id,
                reason,
                properties: Properties::NONE,
            };
            let write = if answer.exactly_once {
                encode::pubrec
            } else {
                encode::puback
            };
            self.write_packet(slot, |out| write(out, version, &ack));
        }
    }
}

/// PUBREL: the id of a QoS 2 message is free again. If the session is recorded, the PUBCOMP follows when homes have recorded that.
pub(super) fn client_released(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    id: PacketId,
) -> Result<(), ReasonCode> {
    let most = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    let now_s = clients.ctx.now.s;
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let seen = mqtt.answers.len();
    let mut answers = mqtt.answers.iter();
    if answers.any(|answer| answer.is_due(id.get(), true)) {
        // [MQTT-4.3.3-4]: PUBREL answers a PUBREC, and none was sent.
        return Err(ReasonCode::PROTOCOL_ERROR);
    }
    let known = mqtt.received.remove(&id.get());
    mqtt.received_before.remove(&id.get());
    let at = match !known && mqtt.releases_before > 0 {
        true => ReleaseAt::Everywhere,
        false => ReleaseAt::Known,
    };
    mqtt.releases_before -= u16::from(at == ReleaseAt::Everywhere);
    if known && mqtt.past_maximum.is_some() {
        let is_past = mqtt.received.len() >= most;
        mqtt.past_maximum = is_past.then(|| PastMaximum::released(now_s));
    }
    clients.note_unreleased(slot);
    clients.meter.work.steps.add(seen / SENT_PER_STEP);
    if known && clients.release_keyless(slot, id) {
        return Ok(());
    }
    match clients.session_party(slot) {
        Some(sender) => clients.release(lanes, slot, sender, (id, known), at),
        None => clients.write_pubcomp(slot, id, known),
    }
    Ok(())
}

impl Clients {
    /// The publisher of QoS 2 messages of a session that is recorded, and the claim of its connection.
    fn session_party(&self, slot: u32) -> Option<(Party, u64)> {
        let mqtt = client::mqtt(&self.conns, slot)?;
        (mqtt.token != 0).then(|| (Party::session(mqtt.token), mqtt.claim))
    }

    /// Asks all homes to record the release of a QoS 2 message. After a crash this connection does not know which home has the message.
    fn release(
        &mut self,
        lanes: &mut Lanes,
        slot: u32,
        (session, claim): (Party, u64),
        (id, is_known): (PacketId, bool),
        at: ReleaseAt,
    ) {
        let releasing = Releasing {
            packet_id: id.get(),
            waiting: self.ctx.world.homes,
            is_known,
            refused: None,
        };
        self.ask_for_release(lanes, slot, (session, claim), releasing, at);
    }

    /// A QoS 2 message is refused. It may be a copy of one that was published on a former connection, before a limit or a right changed: that one is
    /// acknowledged. Otherwise the client could use its packet id for another message, and homes would take that for a copy.
    fn refuse_unless_known(
        &mut self,
        lanes: &mut Lanes,
        slot: u32,
        sender: (Party, u64),
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let releasing = Releasing {
            packet_id,
            waiting: self.ctx.world.homes,
            is_known: false,
            refused: Some(reason),
        };
        self.ask_for_release(lanes, slot, sender, releasing, ReleaseAt::Nowhere);
    }

    fn ask_for_release(
        &mut self,
        lanes: &mut Lanes,
        slot: u32,
        (session, claim): (Party, u64),
        release: Releasing,
        at: ReleaseAt,
    ) {
        let packet_id = release.packet_id;
        let releasing = &mut mqtt_state(&mut self.conns, slot).releasing;
        if releasing.iter().any(|it| it.packet_id == packet_id) {
            // The client has sent the PUBREL twice. One PUBCOMP answers both.
            return;
        }
        releasing.push(release);
        self.meter.work.steps.add(releasing.len() / SENT_PER_STEP);
        let key = SessionKey { session, packet_id };
        let to = self.conns.reply_to(slot, RELEASED | u32::from(packet_id));
        let homes = self.ctx.world.homes;
        for home in 0..homes {
            let to = Some(to);
            lanes.ask(home, |_| Ask::Release { key, claim, at, to });
        }
    }

    /// Releases a QoS 2 message that no home knows, since it was published before the session had a token. Returns false if it is no such message.
    fn release_keyless(&mut self, slot: u32, packet_id: PacketId) -> bool {
        let mqtt = mqtt_state(&mut self.conns, slot);
        let recording = mqtt.recording.as_mut();
        let Some(keyless) = recording.and_then(|it| it.keyless.as_mut()) else {
            return false;
        };
        if !keyless.unreleased.remove(&packet_id.get()) || !self.records_session(slot) {
            return false;
        }
        let recording = mqtt_state(&mut self.conns, slot).recording();
        if let Some(keyless) = &mut recording.keyless {
            keyless.released.push(KeylessRelease {
                packet_id,
                is_asked: false,
            });
        }
        self.record_later(slot);
        true
    }

    pub(super) fn write_pubcomp(&mut self, slot: u32, packet_id: PacketId, is_known: bool) {
        let version = client::version(&self.conns, slot);
        let ack = Ack {
            packet_id,
            reason: match is_known {
                true => ReasonCode::SUCCESS,
                false => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
            },
            properties: Properties::NONE,
        };
        self.write_packet(slot, |out| encode::pubcomp(out, version, &ack));
    }
}

/// A home has recorded the release of a QoS 2 message, or did not know the message.
pub(crate) fn mqtt_released<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    is_known: bool,
    io: &mut I,
) {
    let (slot, packet_id) = (to.slot, to.part as u16);
    let most = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    let releasing = &mut mqtt_state(&mut clients.conns, slot).releasing;
    let waited = releasing.len() > most;
    let found = releasing.iter().position(|it| it.packet_id == packet_id);
    let Some((at, id)) = found.zip(PacketId::new(packet_id)) else {
        return clients.end_as_broken(slot);
    };
    let release = &mut releasing[at];
    release.waiting -= 1;
    release.is_known |= is_known;
    if release.waiting > 0 {
        return;
    }
    let Releasing {
        is_known, refused, ..
    } = releasing.remove(at);
    if clients.conns.get(slot).link.has(CLOSING) {
        return;
    }
    match refused {
        None => clients.write_pubcomp(slot, id, is_known),
        Some(reason) => {
            let reason = match is_known {
                true => ReasonCode::SUCCESS,
                false => reason,
            };
            let part = part_of(packet_id, Qos::ExactlyOnce);
            if let Err(reason) = answer_publish(clients, slot, part, reason) {
                clients.scratch.reply.clear();
                return mqtt_end_saying(clients, slot, reason, reason.name(), io);
            }
        }
    }
    clients.send_reply(slot, io);
    if waited {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Added to the packet id in the number of the answer to a release.
pub(super) const RELEASED: u32 = 1 << 17;
/// Added to the packet id of a QoS 2 message in the number of its answer, since a client may use one id for QoS 1 and QoS 2 at once.
const EXACTLY_ONCE: u32 = 1 << 16;

impl Answer {
    /// The number that identifies the home's answer.
    pub fn part(&self) -> u32 {
        let kind = if self.exactly_once { EXACTLY_ONCE } else { 0 };
        u32::from(self.packet_id) | kind
    }
}

/// The number that identifies the home's answer to this publish; 0 if it has none.
fn part_of(id: u16, qos: Qos) -> u32 {
    match qos {
        Qos::AtMostOnce => 0,
        Qos::AtLeastOnce => u32::from(id),
        Qos::ExactlyOnce => u32::from(id) | EXACTLY_ONCE,
    }
}

/// The packet id in a number made by [`part_of`], and whether its message is of QoS 2.
pub(super) fn answered(part: u32) -> (u16, bool) {
    (part as u16, part & EXACTLY_ONCE != 0)
}

pub(super) fn reason_of(outcome: Outcome) -> ReasonCode {
    match outcome {
        Outcome::Done(info) if info.subscribers == 0 && !info.needs_log => {
            ReasonCode::NO_MATCHING_SUBSCRIBERS
        }
        // Happens with QoS 1 only, and the client is not told (`mqtt_outcome`).
        Outcome::Unknown => ReasonCode::SUCCESS,
        outcome => outcome.refusal().map_or(ReasonCode::SUCCESS, Reason::mqtt),
    }
}

/// The reason code of an outcome.
fn reason_code_of(clients: &mut Clients, slot: u32, outcome: Outcome) -> ReasonCode {
    if let Some(reason) = outcome.refusal() {
        clients.refused(slot, reason);
    }
    reason_of(outcome)
}

/// Handles the outcome of a publish. QoS 0 has no answer. 3.1.1 has no code for a failure, so the connection ends
/// [MQTT-3.3.5-2 of 3.1.1].
fn answer_publish(
    clients: &mut Clients,
    slot: u32,
    part: u32,
    reason: ReasonCode,
) -> Result<(), ReasonCode> {
    let version = client::version(&clients.conns, slot);
    if part == 0 {
        if reason == ReasonCode::QUOTA_EXCEEDED {
            clients.meter.stats.dropped += 1;
            return Ok(());
        }
        return if reason.is_error() {
            Err(reason)
        } else {
            Ok(())
        };
    }
    let (id, exactly_once) = answered(part);
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let answers = mqtt.answers.len();
    if exactly_once && reason.is_error() {
        // It was refused, so its packet id is free again [MQTT-4.3.3-9], also on a later connection of the session.
        mqtt.received.remove(&id);
    }
    if reason.is_error() && version == Version::V311 {
        mqtt.answers
            .retain(|answer| !answer.is_due(id, exactly_once));
        return Err(reason);
    }
    if !mqtt.answer(id, exactly_once, reason) {
        // Cannot happen: each publish has exactly one answer.
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    }
    // Each was looked at.
    clients.meter.work.steps.add(answers / SENT_PER_STEP);
    clients.write_answers(slot);
    Ok(())
}
