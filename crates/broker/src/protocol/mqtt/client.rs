//! Functions for an MQTT client that all files of this module use: its state, its version, its packet ids, the largest packet that it accepts, sending
//! packets to it, and the reasons for which its received packets wait.

use alloc::vec::Vec;

use crore_wire::mqtt::{PACKET_BYTES_MAX, PacketId, Properties, ReasonCode, Version, encode};
use crore_wire::topic::TopicError;
use crore_wire::websocket::frame::Opcode;

use crate::base::access::Right;
use crate::base::ids::ShardId;
use crate::base::journal::EventKind;
use crate::base::notices::Notice;
use crate::base::planted::{self, Fault};
use crate::base::reason::Reason;
use crate::client::list::{has_many_pages, sub};
use crate::client::publishing::PublishRefusal;
use crate::client::row::{SUBSCRIPTION_LIST, State};
use crate::io::Io;
use crate::mail::session::SessionId;
use crate::protocol::encode::frame_from;
use crate::protocol::front::{Clients, Connections, Context, Meter, Work};
use crate::protocol::mqtt::options::{FRAMED, QOS_SHIFT, SMALL, V5, qos};
use crate::protocol::mqtt::state::{Answer, Mqtt, RESUMED};
use crate::store::slab::NONE;

/// Bytes that a packet may have in addition to the largest message: a topic, a content type, properties.
pub(crate) const PACKET_BESIDE_BYTES: usize = 80 << 10;
/// SUBSCRIBEs and UNSUBSCRIBEs that may wait for answers of homes. With more, the received packets wait.
const SUBACKS_MAX: usize = 64;
/// Messages in flight that are visited in one step: they are adjacent in memory.
pub(super) const SENT_PER_STEP: usize = 16;

/// The connection's MQTT state, if it has more than its rows.
pub(crate) fn mqtt(conns: &Connections, slot: u32) -> Option<&Mqtt> {
    conns.find_extra(slot)?.protocol_state.mqtt.as_deref()
}

/// The connection's MQTT state, made if there is none yet.
pub(crate) fn mqtt_state(conns: &mut Connections, slot: u32) -> &mut Mqtt {
    conns
        .extra(slot)
        .protocol_state
        .mqtt
        .get_or_insert_default()
}

/// Identifies the session as the publisher of its messages, for No Local (section 3.8.3.1). Equal for all its connections, and never 0. The token of a
/// recorded session is the same after a crash.
pub(super) fn origin(conns: &Connections, slot: u32) -> u64 {
    match mqtt(conns, slot).map_or(0, |mqtt| mqtt.token) {
        0 => conns.protocol_row(slot).origin(),
        token => 1 << 63 | token,
    }
}

pub(super) fn version(conns: &Connections, slot: u32) -> Version {
    match conns.get(slot).has_option(V5) {
        true => Version::V5,
        false => Version::V311,
    }
}

/// Whether the client has connected as a bridge of another broker, with 3.1.1.
pub(super) fn is_bridge(conns: &Connections, slot: u32) -> bool {
    mqtt(conns, slot).is_some_and(|mqtt| mqtt.bridge)
}

/// The largest packet that the client takes.
pub(super) fn packet_bytes_max(conns: &Connections, slot: u32) -> usize {
    let row = conns.get(slot);
    match row.has_option(SMALL) {
        true => conns.protocol_row(slot).packet_bytes_max as usize,
        false => PACKET_BYTES_MAX,
    }
}

pub(crate) fn packet_bytes_most(ctx: &Context) -> usize {
    ctx.world.settings.limits.message_bytes + PACKET_BESIDE_BYTES
}

pub(crate) fn receive_max(conns: &Connections, slot: u32) -> usize {
    usize::from(conns.protocol_row(slot).receive_max)
}

/// Whether a new QoS 1 or 2 message may be sent: there is room, and no message waits, since those are sent first.
pub(super) fn has_place(conns: &Connections, slot: u32) -> bool {
    let Some(mqtt) = mqtt(conns, slot) else {
        return true;
    };
    mqtt.waiting.is_empty()
        && (mqtt.inflight.len() < receive_max(conns, slot) || planted::is(Fault::NoQuota))
}

/// The number of messages that a subscription may be sent now: the Receive Maximum bounds those of QoS 1 and 2.
pub(super) fn places(conns: &Connections, slot: u32, part: u32) -> u32 {
    let row = conns.get(slot);
    // The only subscription is in the row, which has only its QoS.
    let options = match row.has_option(SUBSCRIPTION_LIST) {
        true => sub(conns, slot, part).map_or(0, |sub| sub.protocol_state.options),
        false => (row.consumer.options >> QOS_SHIFT & 3) as u8,
    };
    let bound =
        row.consumer.state == State::Mqtt && row.consumer.protocol_row != NONE && qos(options) > 0;
    if !bound {
        return u32::MAX;
    }
    let under_way = mqtt(conns, slot).map_or(0, |mqtt| mqtt.inflight.len());
    u32::from(conns.protocol_row(slot).receive_max).saturating_sub(under_way as u32)
}

/// Whether messages wait for room, which are sent before any from the logs.
pub(super) fn has_waiting(conns: &Connections, slot: u32) -> bool {
    mqtt(conns, slot).is_some_and(|mqtt| !mqtt.waiting.is_empty())
}

pub(super) fn take_packet_id(conns: &mut Connections, work: &Work, slot: u32) -> PacketId {
    let last = conns.protocol_row(slot).packet_id;
    let mqtt = mqtt_state(conns, slot);
    let id = mqtt.next_packet_id(last);
    let seen = mqtt.inflight.len() + mqtt.waiting.len();
    work.steps.add(seen / SENT_PER_STEP);
    conns.protocol_row_mut(slot).packet_id = id;
    PacketId::new(id).unwrap_or(PacketId::MAX)
}

impl Meter {
    /// Counts a refusal that is not for a missing right. The server's log names one of them now and then, since 3.1.1 has no code for most reasons, and
    /// users do not see the codes of 5.0.
    pub(crate) fn refused_packet(&mut self, reason: &str, name: &[u8]) {
        self.stats.mqtt_refused += 1;
        self.notices.note_with_reason(Notice::Mqtt, reason, name);
    }
}

impl Clients {
    /// Refuses a packet because of its topic or filter, and returns the code.
    pub(super) fn refused_name(
        &mut self,
        slot: u32,
        packet: &str,
        named: &str,
        name: &[u8],
        error: &TopicError,
    ) {
        self.refused(slot, Reason::BadName);
        let reason = alloc::format!("{packet}: the {named} {error}: ");
        self.meter.refused_packet(&reason, name);
    }

    /// Refuses a message because of its properties or encoding, and returns the code.
    pub(super) fn refused_fields(
        &mut self,
        slot: u32,
        packet: &str,
        (code, words): (ReasonCode, &str),
        name: &[u8],
    ) -> ReasonCode {
        self.refused(slot, Reason::BadField);
        self.meter
            .refused_packet(&alloc::format!("{packet}: {words}: "), name);
        code
    }

    /// Notes the reason code of a filter; with the last one of its SUBSCRIBE, writes the SUBACK. For a resumed subscription, the CONNACK waits in the
    /// outbox instead.
    pub(super) fn grant(&mut self, slot: u32, (packet_id, n): (u16, u16), reason: ReasonCode) {
        if (packet_id, n) == RESUMED {
            let mqtt = mqtt_state(&mut self.conns, slot);
            mqtt.unconfirmed = mqtt.unconfirmed.saturating_sub(1);
            return;
        }
        let behind = &mut mqtt_state(&mut self.conns, slot).grants_behind;
        if let Some(at) = behind
            .iter()
            .position(|(first, _)| *first == (packet_id, n))
        {
            let (_, earlier) = behind.swap_remove(at);
            self.grant(slot, earlier, reason);
        }
        let subacks = &mut mqtt_state(&mut self.conns, slot).subacks;
        let found = subacks
            .iter()
            .position(|suback| suback.packet_id == packet_id);
        let suback = found.and_then(|at| subacks.get_mut(at));
        let place = suback.and_then(|it| {
            it.reasons
                .get_mut(usize::from(n))
                .zip(Some(&mut it.waiting))
        });
        let (Some((place, waiting)), Some(id)) = (place, PacketId::new(packet_id)) else {
            // Cannot happen: each grant has a SUBACK that waits for it.
            return self.end_as_broken(slot);
        };
        *place = reason;
        *waiting = waiting.saturating_sub(1);
        if *waiting == 0 {
            self.acknowledge_subscribe(slot, id);
        }
    }

    /// Sends the CONNACK of a resumed session, unless it still waits for a home.
    pub(super) fn confirm_resumed<I: Io>(&mut self, slot: u32, io: &mut I) {
        let waits = mqtt(&self.conns, slot).is_some_and(|mqtt| mqtt.unconfirmed > 0);
        if !waits {
            self.release_held_output(slot, io);
        }
    }

    /// A home keeps the messages for a subscription of this SUBSCRIBE from now on, so the SUBACK waits for one answer less.
    pub(super) fn granted_at_home(&mut self, slot: u32, packet_id: u32) {
        let subacks = &mut mqtt_state(&mut self.conns, slot).subacks;
        let mut subacks = subacks.iter_mut();
        let found = subacks.find(|suback| u32::from(suback.packet_id) == packet_id);
        let Some(suback) = found else {
            // Cannot happen: the SUBACK waits for it.
            return self.end_as_broken(slot);
        };
        suback.waiting = suback.waiting.saturating_sub(1);
        if let (0, Some(id)) = (suback.waiting, PacketId::new(suback.packet_id)) {
            self.acknowledge_subscribe(slot, id);
        }
    }

    /// Homes owe no more answers to a SUBSCRIBE. The SUBACK may have to wait until the session is recorded.
    fn acknowledge_subscribe(&mut self, slot: u32, id: PacketId) {
        if self.records_session(slot) {
            self.record_later(slot);
            if !planted::is(Fault::EarlySuback) {
                return;
            }
        }
        self.send_suback(slot, id);
    }

    /// Sends the SUBACK or UNSUBACK with this packet id.
    pub(super) fn send_suback(&mut self, slot: u32, id: PacketId) {
        let version = version(&self.conns, slot);
        let subacks = &mut mqtt_state(&mut self.conns, slot).subacks;
        let found = subacks.iter().position(|it| it.packet_id == id.get());
        let Some(suback) = found.map(|at| subacks.remove(at)) else {
            return;
        };
        let reasons = suback.reasons.iter().copied();
        self.write_packet(slot, |out| match suback.is_unsuback {
            false => encode::suback(out, version, id, &Properties::NONE, reasons),
            true => encode::unsuback(out, version, id, &Properties::NONE, reasons),
        });
    }

    /// Whether the client has this right.
    pub(super) fn grants(
        &mut self,
        slot: u32,
        right: Right,
        filter: &[u8],
    ) -> Result<(), ReasonCode> {
        self.check_right(slot, right, filter).map_err(|reason| {
            self.note_denied(slot, reason, filter);
            self.refuse_packet(slot, reason)
        })
    }

    /// Refuses a message to this topic in a packet of this kind, and returns the code.
    pub(super) fn refuse_message(
        &mut self,
        slot: u32,
        (packet, named): (&str, &str),
        name: &[u8],
        refused: PublishRefusal,
    ) -> ReasonCode {
        let words = match refused {
            PublishRefusal::Name(_) => "not a valid topic",
            PublishRefusal::Denied(reason) | PublishRefusal::Other(reason) => reason.text(),
        };
        self.note_refused(slot, packet, name, words);
        match refused {
            PublishRefusal::Name(error) => {
                self.refused_name(slot, packet, named, name, &error);
                ReasonCode::TOPIC_NAME_INVALID
            }
            PublishRefusal::Denied(reason) => {
                self.note_denied(slot, reason, name);
                self.refuse_packet(slot, reason)
            }
            PublishRefusal::Other(reason) => self.refuse_packet(slot, reason),
        }
    }

    /// Notes for the log that a packet's topic or filter was refused, and why.
    pub(super) fn note_refused(&mut self, slot: u32, packet: &str, name: &[u8], why: &str) {
        if self.meter.journal.is_some() {
            let parts = [packet.as_bytes(), why.as_bytes(), name];
            let parts: Vec<&[u8]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            self.note(slot, EventKind::Refused, &parts.join(&b": "[..]));
        }
    }

    /// Refuses a subscription, and returns the code. The server's log names the reason, since client libraries hide the codes of a SUBACK.
    pub(super) fn refuse_subscription(
        &mut self,
        slot: u32,
        reason: Reason,
        filter: &[u8],
    ) -> ReasonCode {
        let words = reason.words(&self.ctx.world.settings);
        let words = alloc::format!("SUBSCRIBE: {words}: ");
        self.meter.refused_packet(&words, filter);
        self.refuse_packet(slot, reason)
    }

    /// Counts a refusal of a packet, and returns its code.
    pub(super) fn refuse_packet(&mut self, slot: u32, reason: Reason) -> ReasonCode {
        self.refused(slot, reason);
        reason.mqtt()
    }

    /// Appends a packet to `reply`; over WebSocket in a frame of its own.
    pub(super) fn write_packet(&mut self, slot: u32, packet: impl FnOnce(&mut Vec<u8>)) {
        let start = self.scratch.reply.len();
        packet(&mut self.scratch.reply);
        self.meter.stats.packets_sent += 1;
        if self.conns.get(slot).has_option(FRAMED) && self.scratch.reply.len() > start {
            frame_from(&mut self.scratch.reply, start, Opcode::Binary);
        }
    }

    /// The second in which the connection ends if the client stays silent: after one and a half times its keep alive. One second is added since the
    /// current one has begun.
    pub(crate) fn keep_alive_end_s(&self, slot: u32) -> u32 {
        let row = self.conns.get(slot);
        if row.consumer.protocol_row == NONE {
            return self.ctx.now.s + self.ctx.world.settings.timeouts.head_s;
        }
        match u32::from(self.conns.protocol_row(slot).keep_alive_s) {
            0 => 0,
            keep_alive_s => self.ctx.now.s + keep_alive_s + keep_alive_s.div_ceil(2) + 1,
        }
    }

    /// Whether packets must wait for the home of the session, for homes that owe answers, or for a verdict. A node that is cut off takes no more
    /// publishes of a client that it is about to disconnect.
    pub(crate) fn mqtt_must_wait(&self, slot: u32) -> bool {
        let receive_max = self.ctx.world.settings.mqtt.receive_max as usize;
        mqtt(&self.conns, slot).is_some_and(|mqtt| {
            let answers = mqtt.answers.len().max(mqtt.releasing.len());
            let has_many = answers > receive_max
                || mqtt.subacks.len() > SUBACKS_MAX
                || has_many_pages(&self.conns, slot);
            let is_about_to_end = !mqtt.answers.is_empty() && self.ctx.is_cut_off();
            mqtt.connecting.is_some() || has_many || mqtt.awaits_verdict() || is_about_to_end
        })
    }
}

/// Whether homes owe answers to publishes of the client.
pub(crate) fn owes_answers(conns: &Connections, slot: u32) -> bool {
    let answers = mqtt(conns, slot).map(|mqtt| &mqtt.answers);
    answers.is_some_and(|all| all.iter().any(|answer| answer.reason.is_none()))
}

/// Whether the connection waits for the verdict on its credential.
pub(super) fn awaits_verdict(conns: &Connections, slot: u32) -> bool {
    mqtt(conns, slot).is_some_and(Mqtt::awaits_verdict)
}

/// Whether the home has answered with the session and the CONNACK is not written yet.
pub(super) fn opens_session(conns: &Connections, slot: u32) -> bool {
    let connecting = mqtt(conns, slot).and_then(|mqtt| mqtt.connecting.as_ref());
    connecting.is_some_and(|connecting| connecting.given.is_some())
}

/// The home of a session.
pub(super) fn home_of_session(ctx: &Context, id: SessionId) -> ShardId {
    ctx.world.placement().home_of(id.partition.into())
}

/// The session; `None` before the home has answered.
pub(crate) fn mqtt_session(clients: &Clients, slot: u32) -> Option<(ShardId, SessionId)> {
    let consumer = &clients.conns.get(slot).consumer;
    if consumer.state != State::Mqtt || consumer.protocol_row == NONE {
        return None;
    }
    let mqtt = clients.conns.protocol_row(slot);
    let home = home_of_session(&clients.ctx, mqtt.session);
    mqtt.is_open().then_some((home, mqtt.session))
}

/// The client has sent a packet: its keep alive begins anew [MQTT-3.1.2-22].
pub(crate) fn touch(clients: &mut Clients, slot: u32) {
    let row = clients.conns.get(slot);
    if row.consumer.protocol_row == NONE || row.link.outbox != NONE {
        return;
    }
    let deadline_s = clients.keep_alive_end_s(slot);
    clients.conns.get_mut(slot).link.deadline_s = deadline_s;
}

pub(super) fn next_answer(conns: &mut Connections, slot: u32) -> Option<(Answer, ReasonCode)> {
    let answers = &mut mqtt_state(conns, slot).answers;
    let reason = answers.front()?.reason?;
    answers.pop_front().map(|answer| (answer, reason))
}
