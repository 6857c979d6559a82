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
use crate::client::list::move_to_row;
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
use crate::protocol::mqtt::client::{
    self, INFLIGHT_PER_STEP, is_bridge, mqtt_state_mut, take_next_answer,
};
use crate::protocol::mqtt::close::{mqtt_end_with_code, mqtt_end_wrong_packet};
use crate::protocol::mqtt::options::V5;
use crate::protocol::mqtt::receive_maximum::PastMaximum;
use crate::protocol::mqtt::state::{KeylessRelease, PendingRelease, PublishAnswer};
use crate::store::slab::NONE;

/// The properties of a published message: those that other protocols have too, and, as attributes, those that MQTT subscribers get unaltered.
pub(super) struct MessageFields<'a> {
    pub content_type: &'a [u8],
    pub key: &'a [u8],
    pub event: &'a [u8],
    /// See [`Headers::attributes`].
    pub attributes: Vec<u8>,
}

impl<'a> MessageFields<'a> {
    /// Reads the properties of a publish. `attributes` is a buffer.
    ///
    /// # Errors
    /// A property that other protocols could not pass on, or a payload that is not UTF-8 although the packet says so.
    pub fn read(
        properties: &Properties<'a>,
        payload: &[u8],
        origin: u64,
        mut attributes: Vec<u8>,
    ) -> Result<MessageFields<'a>, (ReasonCode, &'static str)> {
        attributes.clear();
        attributes.extend_from_slice(&origin.to_le_bytes());
        if properties.is_empty() {
            return Ok(MessageFields {
                content_type: b"",
                key: b"",
                event: b"",
                attributes,
            });
        }
        let invalid = |text| (ReasonCode::PAYLOAD_FORMAT_INVALID, text);
        let user_property = |name| {
            let mut found = properties.user_properties().filter(|(key, _)| *key == name);
            found.next().map_or(&b""[..], |(_, value)| value.as_bytes())
        };
        let content_type = properties.content_type().unwrap_or_default().as_bytes();
        let (key, event) = (user_property(KEY), user_property(EVENT));
        check_fields(content_type, event, key).map_err(invalid)?;
        if properties.payload_is_utf8() && !is_utf8(payload) {
            return Err(invalid(
                "the payload is not the UTF-8 that it is said to be",
            ));
        }
        let mut property_names = properties.user_properties().map(|(name, _)| name);
        let mut user_property_count = 0;
        for (property, encoded) in properties.iter() {
            if property == Property::UserProperty {
                // Only the server says who the publisher is.
                if property_names.next() == Some(PUBLISHER) {
                    continue;
                }
                user_property_count += 1;
            }
            let is_passed_on = match property {
                Property::PayloadFormatIndicator
                | Property::ResponseTopic
                | Property::CorrelationData
                | Property::UserProperty => true,
                // Other protocols do not distinguish an empty type from none.
                Property::ContentType => content_type.is_empty(),
                _ => false,
            };
            if is_passed_on {
                attributes.extend_from_slice(encoded);
            }
        }
        if attributes.len() > CLIENT_ATTRIBUTES_BYTES_MAX {
            return Err(invalid("the properties have more than 65,260 bytes"));
        }
        if user_property_count > CLIENT_PROPERTIES_MAX {
            return Err(invalid("there are more than 127 user properties"));
        }
        Ok(MessageFields {
            content_type,
            key,
            event,
            attributes,
        })
    }
}

/// Matches the topics in which bridges announce whether they are connected (mosquitto.conf(5), `notifications`). They are the only names with `$` that
/// clients may publish to.
const BRIDGE_STATE_FILTER: &[u8] = b"$SYS/broker/connection/+/state";

/// Whether bridges announce their state in this topic.
pub(super) fn is_bridge_state(name: &[u8]) -> bool {
    topic::matches(BRIDGE_STATE_FILTER, name)
}

pub(super) fn handle_publish(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    publish: &Publish<'_>,
    home: &mut Option<Home>,
) -> Result<(), ReasonCode> {
    let name = read_topic(clients, slot, publish)?;
    let packet_id = publish.packet_id.map_or(0, PacketId::get);
    if publish.qos != Qos::AtMostOnce {
        expect_answer(clients, slot, packet_id, publish.qos);
        if is_repeated_message(clients, slot, packet_id, publish.qos) {
            return Ok(());
        }
    }
    let answer_number = answer_number_of(packet_id, publish.qos);
    match publish_to_topic(clients, subs, slot, publish, &name, answer_number, home) {
        Ok(None) if packet_id != 0 && planted::is(Fault::EarlyAck) => {
            answer_publish(clients, slot, answer_number, ReasonCode::SUCCESS)?;
        }
        Ok(None) => {}
        Ok(Some(outcome)) => {
            let reason = count_outcome(clients, slot, outcome);
            answer_publish(clients, slot, answer_number, reason)?;
        }
        Err(reason) => match clients.session_party(slot) {
            // While the release of this id is pending, the homes cannot be asked about it, so the client gets the refusal.
            Some(sender)
                if publish.qos == Qos::ExactlyOnce
                    && !is_release_pending(clients, slot, packet_id) =>
            {
                clients.refuse_unless_known(&mut subs.lanes, slot, sender, packet_id, reason);
            }
            _ => answer_publish(clients, slot, answer_number, reason)?,
        },
    }
    clients.protocol_state.topic_buffer = name;
    Ok(())
}

/// Called once a second: disconnects a client that has exceeded the Receive Maximum and sends no PUBREL.
pub(crate) fn mqtt_each_second<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    if is_withholding_pubrel(clients, slot) {
        let reason = ReasonCode::RECEIVE_MAXIMUM_EXCEEDED;
        clients.scratch.reply.clear();
        return mqtt_end_wrong_packet(clients, slot, reason, reason.name(), io);
    }
    clients.record_if_due(slot);
    move_to_row(&mut clients.conns, slot);
}

fn publish_to_topic(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    publish: &Publish<'_>,
    name: &[u8],
    answer_number: u32,
    home: &mut Option<Home>,
) -> Result<Option<Outcome>, ReasonCode> {
    let may_use_reserved = || is_bridge(&clients.conns, slot) && is_bridge_state(name);
    let payload_bytes = publish.payload.len();
    if let Err(refusal) = clients.check_publish(slot, name, payload_bytes, may_use_reserved) {
        if refusal == PublishRefusal::Other(Reason::MessageTooLong) {
            let text = Reason::MessageTooLong.text_with_limit(&clients.ctx.world.settings);
            let text = alloc::format!("PUBLISH: {text}: ");
            clients.meter.count_refused_packet(&text, name);
        }
        return Err(clients.refuse_message(slot, ("PUBLISH", "topic"), name, refusal));
    }
    let origin = client::origin_of(&clients.conns, slot);
    let properties = &publish.properties;
    let buffer = core::mem::take(&mut clients.protocol_state.attributes_buffer);
    let fields = MessageFields::read(properties, publish.payload, origin, buffer)
        .map_err(|fault| clients.refuse_fields(slot, "PUBLISH", fault, name))?;
    let admitted = clients.check_publish_rate(slot);
    admitted.map_err(|reason| clients.refuse_packet(slot, reason))?;
    let (hash, home_shard) = clients.ctx.hash_and_home_of(name);
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
            ttl_s: properties.message_expiry_interval_s(),
            qos: publish.qos.bits(),
            retain: publish.retain,
            binary: is_binary(fields.content_type, publish.payload),
        },
        dedup,
        client: clients.conns.get(slot).consumer.client,
    };
    let answer = match publish.qos {
        Qos::AtMostOnce => mail::WantedAnswer::None,
        _ => mail::WantedAnswer::OutcomeAndInfo(clients.conns.reply_to(slot, answer_number)),
    };
    let outcome = asking::publish_as(clients, subs, home, slot, home_shard, &message, answer);
    clients.protocol_state.attributes_buffer = fields.attributes;
    Ok(outcome)
}

/// Handles another shard's answer to a publish.
pub(crate) fn handle_mqtt_outcome<I: Io>(
    front: &mut Front,
    to: ReplyTo,
    outcome: Outcome,
    io: &mut I,
) {
    let (clients, _, _, queues) = front.parts();
    let (slot, answer_number) = (to.slot, to.part);
    if planted::is(Fault::EarlyAck) {
        return;
    }
    let receive_max = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    // A node that is cut off from its cluster may have stopped reading only because of this answer.
    let was_full = mqtt_state_mut(&mut clients.conns, slot).answers.len() > receive_max
        || clients.ctx.world.is_replicated() && clients.conns.get(slot).link.has(PAUSED);
    let reason = count_outcome(clients, slot, outcome);
    let result = answer_publish(clients, slot, answer_number, reason);
    // The message is not acknowledged, so the client sends it again when it has reconnected.
    let unknown_reason = (outcome == Outcome::Unknown).then_some(ReasonCode::SERVER_BUSY);
    if let Some(reason) = result.err().or(unknown_reason) {
        clients.scratch.reply.clear();
        return mqtt_end_with_code(clients, slot, reason, reason.name(), io);
    }
    clients.send_reply(slot, io);
    if was_full {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Reads the topic of a publish: its name, or the name that belongs to its alias (section 3.3.2.3.4).
fn read_topic(
    clients: &mut Clients,
    slot: u32,
    publish: &Publish<'_>,
) -> Result<Vec<u8>, ReasonCode> {
    let mut name = core::mem::take(&mut clients.protocol_state.topic_buffer);
    name.clear();
    let Some(alias) = publish.properties.topic_alias() else {
        name.extend_from_slice(publish.topic.as_bytes());
        return Ok(name);
    };
    let alias_max = clients.ctx.world.settings.mqtt.topic_aliases_max;
    if alias > alias_max {
        return Err(ReasonCode::TOPIC_ALIAS_INVALID);
    }
    let topic_bytes = clients.ctx.world.settings.limits.topic_bytes;
    let aliases = &mut mqtt_state_mut(&mut clients.conns, slot).client_aliases;
    if aliases.len() < usize::from(alias) {
        aliases.resize(usize::from(alias), Vec::new());
    }
    // The decoder refuses an alias of 0.
    let stored_name = usize::from(alias).checked_sub(1);
    let Some(stored_name) = stored_name.and_then(|index| aliases.get_mut(index)) else {
        return Err(ReasonCode::TOPIC_ALIAS_INVALID);
    };
    if publish.topic.is_empty() {
        name.extend_from_slice(stored_name);
        return match stored_name.is_empty() {
            // [MQTT-3.3.2-7]: this alias was not set on this connection.
            true => Err(ReasonCode::PROTOCOL_ERROR),
            false => Ok(name),
        };
    }
    name.extend_from_slice(publish.topic.as_bytes());
    stored_name.clear();
    // A name that is too long is refused, and not stored either.
    if name.len() <= topic_bytes {
        stored_name.extend_from_slice(&name);
    }
    Ok(name)
}

/// Adds a place for the answer to a message, since answers keep the order of the messages. Also notes when a client of 5.0 exceeds the Receive Maximum
/// [MQTT-3.3.4-7]. 3.1.1 has no such limit, only 65,535 packet ids.
fn expect_answer(clients: &mut Clients, slot: u32, packet_id: u16, qos: Qos) {
    let v5 = clients.conns.get(slot).has_option(V5);
    let receive_max = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    let now_s = clients.ctx.now.s;
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let is_known = mqtt.received_ids.contains(&packet_id);
    if v5 && !is_known && mqtt.received_ids.len() >= receive_max {
        mqtt.past_maximum = Some(PastMaximum::after_message(mqtt.past_maximum, now_s));
    }
    mqtt.answers.push_back(PublishAnswer {
        packet_id,
        is_exactly_once: qos == Qos::ExactlyOnce,
        is_repeat: qos == Qos::ExactlyOnce && is_known,
        reason: None,
    });
}

fn is_withholding_pubrel(clients: &mut Clients, slot: u32) -> bool {
    let row = clients.conns.get(slot);
    let is_closing = row.link.has(CLOSING);
    let is_waiting_for_server =
        row.link.has(PAUSED) || row.link.unprocessed_input != NONE || row.link.outbox != NONE;
    let now_s = clients.ctx.now.s;
    if client::mqtt_state(&clients.conns, slot).is_none_or(|mqtt| mqtt.past_maximum.is_none()) {
        return false;
    }
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    if is_waiting_for_server || !mqtt.answers.is_empty() {
        mqtt.past_maximum = Some(PastMaximum::after_release(now_s));
    }
    !is_closing && mqtt.past_maximum.is_some_and(|past| past.is_over(now_s))
}

/// Whether the client has sent this QoS 2 message before and has not released it. Then it is not published again, only acknowledged [MQTT-4.3.3-10]: now, or
/// together with the first one if that is not answered yet.
fn is_repeated_message(clients: &mut Clients, slot: u32, packet_id: u16, qos: Qos) -> bool {
    if qos != Qos::ExactlyOnce {
        return false;
    }
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    if mqtt.received_ids.insert(packet_id) {
        mqtt.earlier_received_ids.remove(&packet_id);
        clients.note_unreleased(slot);
        return false;
    }
    if !mqtt
        .answers
        .iter()
        .any(|answer| answer.is_due_for(packet_id, true))
    {
        mqtt.set_outcome(packet_id, true, ReasonCode::SUCCESS);
        clients.write_answers(slot);
    }
    true
}

/// Whether homes still owe an answer about the release of this packet id.
fn is_release_pending(clients: &Clients, slot: u32, packet_id: u16) -> bool {
    let mqtt = client::mqtt_state(&clients.conns, slot);
    mqtt.is_some_and(|mqtt| {
        mqtt.pending_releases
            .iter()
            .any(|it| it.packet_id == packet_id)
    })
}

impl Clients {
    /// Writes the answers that are due, up to the first one whose reason is not known yet.
    fn write_answers(&mut self, slot: u32) {
        let version = client::version_of(&self.conns, slot);
        while let Some((answer, reason)) = take_next_answer(&mut self.conns, slot) {
            let Some(packet_id) = PacketId::new(answer.packet_id) else {
                return self.end_as_broken(slot);
            };
            let ack = Ack {
                packet_id,
                reason,
                properties: Properties::NONE,
            };
            let write = if answer.is_exactly_once {
                encode::pubrec
            } else {
                encode::puback
            };
            self.write_packet(slot, |out| write(out, version, &ack));
        }
    }
}

/// Handles PUBREL: the packet id of a QoS 2 message becomes free. If the session is recorded, the PUBCOMP follows when the homes have recorded the release.
pub(super) fn handle_pubrel(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    packet_id: PacketId,
) -> Result<(), ReasonCode> {
    let receive_max = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    let now_s = clients.ctx.now.s;
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let visited = mqtt.answers.len();
    let mut answers = mqtt.answers.iter();
    if answers.any(|answer| answer.is_due_for(packet_id.get(), true)) {
        // [MQTT-4.3.3-4]: PUBREL answers a PUBREC, and none was sent.
        return Err(ReasonCode::PROTOCOL_ERROR);
    }
    let is_known = mqtt.received_ids.remove(&packet_id.get());
    mqtt.earlier_received_ids.remove(&packet_id.get());
    let release_at = match !is_known && mqtt.earlier_releases_left > 0 {
        true => ReleaseAt::Everywhere,
        false => ReleaseAt::Known,
    };
    mqtt.earlier_releases_left -= u16::from(release_at == ReleaseAt::Everywhere);
    if is_known && mqtt.past_maximum.is_some() {
        let is_past = mqtt.received_ids.len() >= receive_max;
        mqtt.past_maximum = is_past.then(|| PastMaximum::after_release(now_s));
    }
    clients.note_unreleased(slot);
    clients.meter.work.steps.add(visited / INFLIGHT_PER_STEP);
    if is_known && clients.release_keyless(slot, packet_id) {
        return Ok(());
    }
    match clients.session_party(slot) {
        Some(sender) => {
            clients.ask_homes_to_release(lanes, slot, sender, (packet_id, is_known), release_at)
        }
        None => clients.write_pubcomp(slot, packet_id, is_known),
    }
    Ok(())
}

impl Clients {
    /// For a recorded session: the publisher of its QoS 2 messages, and the claim of its connection.
    fn session_party(&self, slot: u32) -> Option<(Party, u64)> {
        let mqtt = client::mqtt_state(&self.conns, slot)?;
        (mqtt.token != 0).then(|| (Party::qos2_publisher(mqtt.token), mqtt.claim_offset))
    }

    /// Asks all homes to record the release of a QoS 2 message. After a crash this connection does not know which home has the message.
    fn ask_homes_to_release(
        &mut self,
        lanes: &mut Lanes,
        slot: u32,
        (session, claim): (Party, u64),
        (packet_id, is_known): (PacketId, bool),
        at: ReleaseAt,
    ) {
        let releasing = PendingRelease {
            packet_id: packet_id.get(),
            unanswered_homes: self.ctx.world.homes,
            is_known,
            refusal: None,
        };
        self.ask_for_release(lanes, slot, (session, claim), releasing, at);
    }

    /// Refuses a QoS 2 message, unless it repeats one that was published on an earlier connection, before a limit or a right changed. In that case the message
    /// is acknowledged. If it were refused, the client could use the packet id for another message, and homes would take that for a copy of the old one.
    fn refuse_unless_known(
        &mut self,
        lanes: &mut Lanes,
        slot: u32,
        sender: (Party, u64),
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let releasing = PendingRelease {
            packet_id,
            unanswered_homes: self.ctx.world.homes,
            is_known: false,
            refusal: Some(reason),
        };
        self.ask_for_release(lanes, slot, sender, releasing, ReleaseAt::Nowhere);
    }

    fn ask_for_release(
        &mut self,
        lanes: &mut Lanes,
        slot: u32,
        (session, claim): (Party, u64),
        release: PendingRelease,
        at: ReleaseAt,
    ) {
        let packet_id = release.packet_id;
        let releasing = &mut mqtt_state_mut(&mut self.conns, slot).pending_releases;
        if releasing.iter().any(|it| it.packet_id == packet_id) {
            // The client has sent the PUBREL twice. One PUBCOMP answers both.
            return;
        }
        releasing.push(release);
        self.meter
            .work
            .steps
            .add(releasing.len() / INFLIGHT_PER_STEP);
        let key = SessionKey { session, packet_id };
        let to = self
            .conns
            .reply_to(slot, RELEASE_ANSWER | u32::from(packet_id));
        let homes = self.ctx.world.homes;
        for home in 0..homes {
            let to = Some(to);
            lanes.ask(home, |_| Ask::Release { key, claim, at, to });
        }
    }

    /// Releases a QoS 2 message that was published before the session had a token, so that no home knows it. Returns false for other messages.
    fn release_keyless(&mut self, slot: u32, packet_id: PacketId) -> bool {
        let mqtt = mqtt_state_mut(&mut self.conns, slot);
        let recording = mqtt.recording.as_mut();
        let Some(keyless) = recording.and_then(|it| it.keyless.as_mut()) else {
            return false;
        };
        if !keyless.unreleased.remove(&packet_id.get()) || !self.records_session(slot) {
            return false;
        }
        let recording = mqtt_state_mut(&mut self.conns, slot).recording();
        if let Some(keyless) = &mut recording.keyless {
            keyless.released.push(KeylessRelease {
                packet_id,
                is_record_in_flight: false,
            });
        }
        self.record_later(slot);
        true
    }

    pub(super) fn write_pubcomp(&mut self, slot: u32, packet_id: PacketId, is_known: bool) {
        let version = client::version_of(&self.conns, slot);
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

/// Handles a home's answer about the release of a QoS 2 message: the home has recorded it, or did not know the message.
pub(crate) fn handle_mqtt_release<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    is_known: bool,
    io: &mut I,
) {
    let (slot, packet_id) = (to.slot, to.part as u16);
    let receive_max = usize::from(clients.ctx.world.settings.mqtt.receive_max);
    let releasing = &mut mqtt_state_mut(&mut clients.conns, slot).pending_releases;
    let was_full = releasing.len() > receive_max;
    let index = releasing.iter().position(|it| it.packet_id == packet_id);
    let Some((index, checked_id)) = index.zip(PacketId::new(packet_id)) else {
        return clients.end_as_broken(slot);
    };
    let release = &mut releasing[index];
    release.unanswered_homes -= 1;
    release.is_known |= is_known;
    if release.unanswered_homes > 0 {
        return;
    }
    let PendingRelease {
        is_known,
        refusal: refused,
        ..
    } = releasing.remove(index);
    if clients.conns.get(slot).link.has(CLOSING) {
        return;
    }
    match refused {
        None => clients.write_pubcomp(slot, checked_id, is_known),
        Some(reason) => {
            let reason = match is_known {
                true => ReasonCode::SUCCESS,
                false => reason,
            };
            let answer_number = answer_number_of(packet_id, Qos::ExactlyOnce);
            if let Err(reason) = answer_publish(clients, slot, answer_number, reason) {
                clients.scratch.reply.clear();
                return mqtt_end_with_code(clients, slot, reason, reason.name(), io);
            }
        }
    }
    clients.send_reply(slot, io);
    if was_full {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Marks the number of an answer as that to a release. The other bits are the packet id.
pub(super) const RELEASE_ANSWER: u32 = 1 << 17;
/// Marks the number of an answer as that to a QoS 2 message, since a client may use one packet id for QoS 1 and QoS 2 at once.
const QOS2_ANSWER: u32 = 1 << 16;

impl PublishAnswer {
    /// The number that identifies the home's answer.
    pub fn answer_number(&self) -> u32 {
        let qos2_flag = if self.is_exactly_once { QOS2_ANSWER } else { 0 };
        u32::from(self.packet_id) | qos2_flag
    }
}

/// The number that identifies the home's answer to a publish; 0 if the publish gets no answer.
fn answer_number_of(packet_id: u16, qos: Qos) -> u32 {
    match qos {
        Qos::AtMostOnce => 0,
        Qos::AtLeastOnce => u32::from(packet_id),
        Qos::ExactlyOnce => u32::from(packet_id) | QOS2_ANSWER,
    }
}

/// The packet id in the number of an answer, and whether its message is of QoS 2.
pub(super) fn packet_of_answer(answer_number: u32) -> (u16, bool) {
    (answer_number as u16, answer_number & QOS2_ANSWER != 0)
}

pub(super) fn reason_code_of(outcome: Outcome) -> ReasonCode {
    match outcome {
        Outcome::Done(info) if info.subscribers == 0 && !info.needs_log => {
            ReasonCode::NO_MATCHING_SUBSCRIBERS
        }
        // Happens with QoS 1 only, and the client is not told (`handle_mqtt_outcome`).
        Outcome::Unknown => ReasonCode::SUCCESS,
        outcome => outcome.refusal().map_or(ReasonCode::SUCCESS, Reason::mqtt),
    }
}

/// The reason code of an outcome. Counts a refusal.
fn count_outcome(clients: &mut Clients, slot: u32, outcome: Outcome) -> ReasonCode {
    if let Some(reason) = outcome.refusal() {
        clients.refused(slot, reason);
    }
    reason_code_of(outcome)
}

/// Handles the outcome of a publish. QoS 0 has no answer. 3.1.1 has no code for a failure, so the connection ends
/// [MQTT-3.3.5-2 of 3.1.1].
fn answer_publish(
    clients: &mut Clients,
    slot: u32,
    answer_number: u32,
    reason: ReasonCode,
) -> Result<(), ReasonCode> {
    let version = client::version_of(&clients.conns, slot);
    if answer_number == 0 {
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
    let (packet_id, is_exactly_once) = packet_of_answer(answer_number);
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let visited = mqtt.answers.len();
    if is_exactly_once && reason.is_error() {
        // The message was refused, so its packet id is free again [MQTT-4.3.3-9], also on a later connection of the session.
        mqtt.received_ids.remove(&packet_id);
    }
    if reason.is_error() && version == Version::V311 {
        mqtt.answers
            .retain(|answer| !answer.is_due_for(packet_id, is_exactly_once));
        return Err(reason);
    }
    if !mqtt.set_outcome(packet_id, is_exactly_once, reason) {
        // Cannot happen: each publish gets exactly one answer.
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    }
    // All answers were searched.
    clients.meter.work.steps.add(visited / INFLIGHT_PER_STEP);
    clients.write_answers(slot);
    Ok(())
}
