//! Functions that all files of this folder use: a client's state, version, packet ids and limits, packets to it, refusals, and the reasons for which its
//! received packets wait.

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
use crate::protocol::mqtt::options::{IN_FRAMES, LIMITS_PACKETS, QOS_SHIFT, V5, qos};
use crate::protocol::mqtt::state::{MqttState, PublishAnswer, SubackEntry};
use crate::store::slab::NONE;

/// A packet may have this many bytes more than the largest message: for a topic, a content type, properties.
pub(crate) const PACKET_OVERHEAD_BYTES: usize = 80 << 10;
/// The number of SUBSCRIBEs and UNSUBSCRIBEs that may wait for answers of homes. With more, the client's next packets wait.
const SUBACKS_MAX: usize = 64;
/// The number of messages in flight that are visited in one step. They are adjacent in memory.
pub(super) const INFLIGHT_PER_STEP: usize = 16;

/// The connection's MQTT state beyond its rows, if there is any.
pub(crate) fn mqtt_state(conns: &Connections, slot: u32) -> Option<&MqttState> {
    conns.find_side_row(slot)?.protocol_state.mqtt.as_deref()
}

/// The connection's MQTT state, made if there is none yet.
pub(crate) fn mqtt_state_mut(conns: &mut Connections, slot: u32) -> &mut MqttState {
    conns
        .ensure_side_row(slot)
        .protocol_state
        .mqtt
        .get_or_insert_default()
}

/// Identifies the session as the publisher of its messages, for No Local (section 3.8.3.1). Equal for all connections of the session, and never 0. For a
/// recorded session it comes from the token, so it stays the same after a crash.
pub(super) fn origin_of(conns: &Connections, slot: u32) -> u64 {
    match mqtt_state(conns, slot).map_or(0, |mqtt| mqtt.token) {
        0 => conns.protocol_row(slot).origin(),
        token => 1 << 63 | token,
    }
}

pub(super) fn version_of(conns: &Connections, slot: u32) -> Version {
    match conns.get(slot).has_option(V5) {
        true => Version::V5,
        false => Version::V311,
    }
}

/// Whether the client has connected as a bridge of another broker, with 3.1.1.
pub(super) fn is_bridge(conns: &Connections, slot: u32) -> bool {
    mqtt_state(conns, slot).is_some_and(|mqtt| mqtt.is_bridge)
}

/// The largest packet that the client takes.
pub(super) fn client_packet_bytes_max(conns: &Connections, slot: u32) -> usize {
    let row = conns.get(slot);
    match row.has_option(LIMITS_PACKETS) {
        true => conns.protocol_row(slot).packet_bytes_max as usize,
        false => PACKET_BYTES_MAX,
    }
}

pub(crate) fn server_packet_bytes_max(ctx: &Context) -> usize {
    ctx.world.settings.limits.message_bytes + PACKET_OVERHEAD_BYTES
}

pub(crate) fn receive_max(conns: &Connections, slot: u32) -> usize {
    usize::from(conns.protocol_row(slot).receive_max)
}

/// Whether a new QoS 1 or 2 message may be sent: the Receive Maximum has room, and no message waits that must be sent first.
pub(super) fn has_inflight_room(conns: &Connections, slot: u32) -> bool {
    let Some(state) = mqtt_state(conns, slot) else {
        return true;
    };
    state.waiting.is_empty()
        && (state.inflight.len() < receive_max(conns, slot) || planted::is(Fault::NoQuota))
}

/// The number of messages that a subscription may be sent now. The Receive Maximum limits subscriptions of QoS 1 and 2, others have no limit.
pub(super) fn inflight_room(conns: &Connections, slot: u32, sub_index: u32) -> u32 {
    let row = conns.get(slot);
    // The only subscription is in the row, which has only its QoS.
    let options = match row.has_option(SUBSCRIPTION_LIST) {
        true => sub(conns, slot, sub_index).map_or(0, |sub| sub.protocol_state.options),
        false => (row.consumer.options >> QOS_SHIFT & 3) as u8,
    };
    let is_limited =
        row.consumer.state == State::Mqtt && row.consumer.protocol_row != NONE && qos(options) > 0;
    if !is_limited {
        return u32::MAX;
    }
    let inflight = mqtt_state(conns, slot).map_or(0, |mqtt| mqtt.inflight.len());
    u32::from(conns.protocol_row(slot).receive_max).saturating_sub(inflight as u32)
}

/// Whether messages wait for room. They are sent before any message from the logs.
pub(super) fn has_waiting(conns: &Connections, slot: u32) -> bool {
    mqtt_state(conns, slot).is_some_and(|mqtt| !mqtt.waiting.is_empty())
}

pub(super) fn take_packet_id(conns: &mut Connections, work: &Work, slot: u32) -> PacketId {
    let last_id = conns.protocol_row(slot).packet_id;
    let mqtt = mqtt_state_mut(conns, slot);
    let id = mqtt.next_packet_id(last_id);
    let visited = mqtt.inflight.len() + mqtt.waiting.len();
    work.steps.add(visited / INFLIGHT_PER_STEP);
    conns.protocol_row_mut(slot).packet_id = id;
    PacketId::new(id).unwrap_or(PacketId::MAX)
}

impl Meter {
    /// Counts a refusal that is not for a missing right. The server's log names one of them now and then, since 3.1.1 has no code for most reasons, and
    /// users do not see the codes of 5.0.
    pub(crate) fn count_refused_packet(&mut self, reason: &str, name: &[u8]) {
        self.stats.mqtt_refused += 1;
        self.notices.note_with_reason(Notice::Mqtt, reason, name);
    }
}

impl Clients {
    /// Counts the refusal of a packet for its topic or filter (`what` says which).
    pub(super) fn refuse_name(
        &mut self,
        slot: u32,
        packet: &str,
        what: &str,
        name: &[u8],
        error: &TopicError,
    ) {
        self.refused(slot, Reason::BadName);
        let reason = alloc::format!("{packet}: the {what} {error}: ");
        self.meter.count_refused_packet(&reason, name);
    }

    /// Refuses a message because of its properties or encoding, and returns the code.
    pub(super) fn refuse_fields(
        &mut self,
        slot: u32,
        packet: &str,
        (code, words): (ReasonCode, &str),
        name: &[u8],
    ) -> ReasonCode {
        self.refused(slot, Reason::BadField);
        self.meter
            .count_refused_packet(&alloc::format!("{packet}: {words}: "), name);
        code
    }

    /// Sets the reason code of a filter in its SUBACK, and sends the SUBACK if this was the last code. A resumed subscription has no SUBACK: then the CONNACK
    /// waits for one answer less.
    pub(super) fn note_suback_code(&mut self, slot: u32, entry: SubackEntry, reason: ReasonCode) {
        if entry == SubackEntry::RESUMED {
            let mqtt = mqtt_state_mut(&mut self.conns, slot);
            mqtt.unconfirmed_subscriptions = mqtt.unconfirmed_subscriptions.saturating_sub(1);
            return;
        }
        let SubackEntry {
            packet_id,
            code_index,
        } = entry;
        let repeated = &mut mqtt_state_mut(&mut self.conns, slot).repeated_entries;
        if let Some(pair_index) = repeated.iter().position(|(later, _)| *later == entry) {
            let (_, earlier) = repeated.swap_remove(pair_index);
            self.note_suback_code(slot, earlier, reason);
        }
        let subacks = &mut mqtt_state_mut(&mut self.conns, slot).subacks;
        let index = subacks
            .iter()
            .position(|suback| suback.packet_id == packet_id);
        let suback = index.and_then(|index| subacks.get_mut(index));
        let code_slot = suback.and_then(|it| {
            it.reasons
                .get_mut(usize::from(code_index))
                .zip(Some(&mut it.unanswered_homes))
        });
        let (Some((code_slot, waiting)), Some(id)) = (code_slot, PacketId::new(packet_id)) else {
            // Cannot happen: each entry belongs to a SUBACK that waits.
            return self.end_as_broken(slot);
        };
        *code_slot = reason;
        *waiting = waiting.saturating_sub(1);
        if *waiting == 0 {
            self.suback_when_recorded(slot, id);
        }
    }

    /// Sends the CONNACK of a resumed session, if all resumed subscriptions are in force.
    pub(super) fn connack_when_confirmed<I: Io>(&mut self, slot: u32, io: &mut I) {
        let is_waiting =
            mqtt_state(&self.conns, slot).is_some_and(|mqtt| mqtt.unconfirmed_subscriptions > 0);
        if !is_waiting {
            self.release_held_output(slot, io);
        }
    }

    /// Called when a home keeps the messages for a subscription of this SUBSCRIBE: the SUBACK waits for one answer less.
    pub(super) fn count_home_confirmation(&mut self, slot: u32, packet_id: u32) {
        let subacks = &mut mqtt_state_mut(&mut self.conns, slot).subacks;
        let mut subacks = subacks.iter_mut();
        let suback_found = subacks.find(|suback| u32::from(suback.packet_id) == packet_id);
        let Some(suback) = suback_found else {
            // Cannot happen: the SUBACK waits for it.
            return self.end_as_broken(slot);
        };
        suback.unanswered_homes = suback.unanswered_homes.saturating_sub(1);
        if let (0, Some(id)) = (suback.unanswered_homes, PacketId::new(suback.packet_id)) {
            self.suback_when_recorded(slot, id);
        }
    }

    /// Sends the SUBACK of a SUBSCRIBE to which all homes have answered. If the session is recorded, the SUBACK waits for the next record.
    fn suback_when_recorded(&mut self, slot: u32, id: PacketId) {
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
        let version = version_of(&self.conns, slot);
        let subacks = &mut mqtt_state_mut(&mut self.conns, slot).subacks;
        let index = subacks.iter().position(|it| it.packet_id == id.get());
        let Some(suback) = index.map(|at| subacks.remove(at)) else {
            return;
        };
        let reasons = suback.reasons.iter().copied();
        self.write_packet(slot, |out| match suback.is_unsuback {
            false => encode::suback(out, version, id, &Properties::NONE, reasons),
            true => encode::unsuback(out, version, id, &Properties::NONE, reasons),
        });
    }

    /// Checks that the client has this right. If not, counts and logs that.
    pub(super) fn require_right(
        &mut self,
        slot: u32,
        right: Right,
        filter: &[u8],
    ) -> Result<(), ReasonCode> {
        self.check_right(slot, right, filter).map_err(|reason| {
            self.report_denied(slot, reason, filter);
            self.refuse_packet(slot, reason)
        })
    }

    /// Refuses a message to this topic in a packet of this kind, and returns the code.
    pub(super) fn refuse_message(
        &mut self,
        slot: u32,
        (packet, what): (&str, &str),
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
                self.refuse_name(slot, packet, what, name, &error);
                ReasonCode::TOPIC_NAME_INVALID
            }
            PublishRefusal::Denied(reason) => {
                self.report_denied(slot, reason, name);
                self.refuse_packet(slot, reason)
            }
            PublishRefusal::Other(reason) => self.refuse_packet(slot, reason),
        }
    }

    /// Notes in the operator's journal that a packet was refused, and why.
    pub(super) fn note_refused(&mut self, slot: u32, packet: &str, name: &[u8], refusal: &str) {
        if self.meter.journal.is_some() {
            let parts = [packet.as_bytes(), refusal.as_bytes(), name];
            let parts: Vec<&[u8]> = parts
                .into_iter()
                .filter(|sub_index| !sub_index.is_empty())
                .collect();
            self.record_event(slot, EventKind::Refused, &parts.join(&b": "[..]));
        }
    }

    /// Refuses a subscription, and returns the code. The server's log names the reason, since client libraries hide the codes of a SUBACK.
    pub(super) fn refuse_subscription(
        &mut self,
        slot: u32,
        reason: Reason,
        filter: &[u8],
    ) -> ReasonCode {
        let words = reason.text_with_limit(&self.ctx.world.settings);
        let words = alloc::format!("SUBSCRIBE: {words}: ");
        self.meter.count_refused_packet(&words, filter);
        self.refuse_packet(slot, reason)
    }

    /// Counts a refusal of a packet, and returns its code.
    pub(super) fn refuse_packet(&mut self, slot: u32, reason: Reason) -> ReasonCode {
        self.refused(slot, reason);
        reason.mqtt()
    }

    /// Appends a packet to `reply`; over WebSocket in a frame of its own.
    pub(super) fn write_packet(&mut self, slot: u32, encode_packet: impl FnOnce(&mut Vec<u8>)) {
        let start = self.scratch.reply.len();
        encode_packet(&mut self.scratch.reply);
        self.meter.stats.packets_sent += 1;
        if self.conns.get(slot).has_option(IN_FRAMES) && self.scratch.reply.len() > start {
            frame_from(&mut self.scratch.reply, start, Opcode::Binary);
        }
    }

    /// The second in which the connection ends if the client stays silent: after one and a half times its keep alive. One second is added because the
    /// current second is not a whole one. 0 for no limit.
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

    /// Whether received packets must wait: for the home of the session, for homes that owe many answers, or for a verdict. A node that is cut off from its
    /// cluster also lets the packets of a client wait that it will disconnect after its last answer.
    pub(crate) fn mqtt_must_wait(&self, slot: u32) -> bool {
        let receive_max = self.ctx.world.settings.mqtt.receive_max as usize;
        mqtt_state(&self.conns, slot).is_some_and(|mqtt| {
            let unanswered = mqtt.answers.len().max(mqtt.pending_releases.len());
            let is_full = unanswered > receive_max
                || mqtt.subacks.len() > SUBACKS_MAX
                || has_many_pages(&self.conns, slot);
            let is_about_to_end = !mqtt.answers.is_empty() && self.ctx.is_cut_off();
            mqtt.pending_connack.is_some() || is_full || mqtt.awaits_verdict() || is_about_to_end
        })
    }
}

/// Whether homes owe answers to publishes of the client.
pub(crate) fn owes_answers(conns: &Connections, slot: u32) -> bool {
    let answers = mqtt_state(conns, slot).map(|mqtt| &mqtt.answers);
    answers.is_some_and(|all| all.iter().any(|answer| answer.reason.is_none()))
}

/// Whether the connection waits for the verdict on its credential.
pub(super) fn awaits_verdict(conns: &Connections, slot: u32) -> bool {
    mqtt_state(conns, slot).is_some_and(MqttState::awaits_verdict)
}

/// Whether the home has answered with the session and the CONNACK is not written yet.
pub(super) fn has_session_to_open(conns: &Connections, slot: u32) -> bool {
    let connecting = mqtt_state(conns, slot).and_then(|mqtt| mqtt.pending_connack.as_ref());
    connecting.is_some_and(|connecting| connecting.session_answer.is_some())
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

/// Restarts the client's keep alive, because it has sent a packet [MQTT-3.1.2-22].
pub(crate) fn restart_keep_alive(clients: &mut Clients, slot: u32) {
    let row = clients.conns.get(slot);
    if row.consumer.protocol_row == NONE || row.link.outbox != NONE {
        return;
    }
    let deadline_s = clients.keep_alive_end_s(slot);
    clients.conns.get_mut(slot).link.deadline_s = deadline_s;
}

pub(super) fn take_next_answer(
    conns: &mut Connections,
    slot: u32,
) -> Option<(PublishAnswer, ReasonCode)> {
    let answers = &mut mqtt_state_mut(conns, slot).answers;
    let reason = answers.front()?.reason?;
    answers.pop_front().map(|answer| (answer, reason))
}
