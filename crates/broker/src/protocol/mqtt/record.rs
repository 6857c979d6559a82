//! Records the session of a connection in the log ([`records_sessions`](crate::budget::world::World::records_sessions)), so that the client finds it
//! again after a crash of the server.
//!
//! Invariants:
//! * A SUBACK waits until a record with its subscription is committed.
//! * At most one record of a connection is in flight. Changes that come meanwhile are in the next one.
//! * For a QoS 1 message that the client has not acknowledged, a record moves the subscription's position to before the message, so that the client gets it
//!   again after a crash. If the session also has QoS 2 messages, lower positions would deliver those twice. Then the record contains the
//!   unacknowledged messages themselves.
//! * A QoS 2 message is sent only when a record with the message and its packet id is committed. Its PUBREL is sent only when a record says that the client
//!   has received the message. So the delivery continues with the same packet id after a crash.

use alloc::vec::Vec;

use crore_wire::mqtt::PacketId;
use crore_wire::topic;

use crate::base::ids::ConnId;
use crate::base::planted::{self, Fault};
use crate::budget::in_flight::InFlightCharge;
use crate::client::row::{CLOSING, State};
use crate::io::Io;
use crate::mail::session::patch::Outline;
use crate::mail::session::record::Terms;
use crate::mail::session::stored::{StoredSession, StoredSubscription};
use crate::mail::{Ask, RecordSession, ReplyTo, SessionContent};
use crate::protocol::front::{Clients, Context, Front, Queues};
use crate::protocol::mqtt::client::{self, home_of_session, mqtt_state_mut};
use crate::protocol::mqtt::deliver::send_recorded;
use crate::protocol::mqtt::state::{DeliveryStep, Inflight, RecordWait};
use crate::protocol::mqtt::suspend::{stored_message, stored_subscriptions};

/// The number of the answer to a record. The answers to fences come the same way, and their numbers are packet ids, which are smaller.
pub(super) const RECORD_ANSWER: u32 = 1 << 16;
/// Acknowledgements are recorded after this many seconds at the latest.
const RECORD_INTERVAL_S: u32 = 5;
/// In a cluster: the session is recorded if its number of unreleased QoS 2 messages from the client differs by this much from the last record.
const UNRECORDED_IDS_MAX: usize = 64;

impl Clients {
    /// Whether the session of this connection is recorded.
    pub(super) fn records_session(&self, slot: u32) -> bool {
        self.ctx.world.records_sessions()
            && client::mqtt_state(&self.conns, slot).is_some_and(|mqtt| mqtt.expiry_s > 0)
    }

    /// Whether a message with this QoS must be recorded before it is sent to the client: all QoS 2 messages, and QoS 1 messages while another message waits for
    /// its record, so that each topic keeps its order.
    pub(super) fn must_record(&self, slot: u32, qos: u8) -> bool {
        let has_unsent = || {
            let mqtt = client::mqtt_state(&self.conns, slot);
            mqtt.and_then(|mqtt| mqtt.inflight.back())
                .is_some_and(Inflight::is_publish_unsent)
        };
        self.records_session(slot)
            && (qos == 2 && !planted::is(Fault::UnrecordedPublish) || qos == 1 && has_unsent())
    }

    /// Whether a message of this many bytes may be added to those in flight. One record may have to contain them all, so together they may not exceed the
    /// size limit of one message. A single message always may.
    pub(super) fn fits_record(&self, slot: u32, bytes: usize) -> bool {
        if !self.records_session(slot) {
            return true;
        }
        let inflight = client::mqtt_state(&self.conns, slot).map(|mqtt| &mqtt.inflight);
        let messages = inflight.into_iter().flatten();
        let bytes_max = self.ctx.world.settings.limits.message_bytes;
        let in_flight: usize = messages.map(Inflight::wire_bytes).sum();
        in_flight == 0 || in_flight + bytes <= bytes_max
    }

    /// Records the session in the next turn.
    pub(super) fn record_later(&mut self, slot: u32) {
        let conn = self.conns.id_of(slot);
        let recording = mqtt_state_mut(&mut self.conns, slot).recording();
        if !core::mem::replace(&mut recording.is_pending, true) && !recording.is_in_flight {
            self.protocol_state.unrecorded.push(conn);
        }
    }

    /// Notes that the client has acknowledged a message.
    pub(super) fn note_acknowledged(&mut self, slot: u32) {
        if self.records_session(slot) {
            mqtt_state_mut(&mut self.conns, slot)
                .recording()
                .has_new_acks = true;
        }
    }

    /// Notes that the client has sent or released a QoS 2 message. In a cluster all nodes keep a key for each unreleased message, and charge the session for the
    /// keys in its record. So the session of a client that only publishes is recorded too, when enough of its keys have changed.
    pub(super) fn note_unreleased(&mut self, slot: u32) {
        if !self.ctx.world.replicates_sessions() || !self.records_session(slot) {
            return;
        }
        let mqtt = mqtt_state_mut(&mut self.conns, slot);
        let recorded_count = mqtt.recording.as_ref().and_then(|it| it.outline.as_ref());
        let recorded_count = recorded_count.map_or(0, Outline::unreleased);
        let count = mqtt.received_ids.len() + mqtt.earlier_received_ids.len();
        if count.abs_diff(recorded_count) >= UNRECORDED_IDS_MAX {
            self.record_later(slot);
        }
    }

    /// Called once a second: records acknowledgements.
    pub(super) fn record_if_due(&mut self, slot: u32) {
        if !self.records_session(slot) {
            return;
        }
        let recording = mqtt_state_mut(&mut self.conns, slot).recording();
        let is_due = self.ctx.now.s >= recording.recorded_at_s + RECORD_INTERVAL_S;
        if recording.has_new_acks && is_due {
            self.record_later(slot);
        }
    }
}

impl Front {
    /// Sends the records of sessions that have changed since the last turn to their homes.
    pub(crate) fn record_sessions(&mut self) {
        for conn in core::mem::take(&mut self.clients.protocol_state.unrecorded) {
            let conns = &self.clients.conns;
            if conns.is_current(conn)
                && conns.get(conn.slot).consumer.state == State::Mqtt
                && !conns.get(conn.slot).link.has(CLOSING)
            {
                self.record_session(conn);
            }
        }
    }

    fn record_session(&mut self, conn: ConnId) {
        let (clients, subs, feed, _) = self.parts();
        let slot = conn.slot;
        if !clients.records_session(slot) {
            return;
        }
        let mut subscriptions = stored_subscriptions(clients, subs, &feed.deliveries, slot);
        clients.meter.work.steps.add(subscriptions.len());
        let ctx = &clients.ctx;
        let id = clients.conns.protocol_row(slot).session;
        let owner = clients.conns.get(slot).consumer.client;
        let to = ReplyTo {
            part: RECORD_ANSWER,
            ..clients.conns.reply_to(slot, 0)
        };
        let now_s = ctx.now.s;
        let mqtt = mqtt_state_mut(&mut clients.conns, slot);
        let mut recording = mqtt.recording.take().unwrap_or_default();
        // Lower positions would deliver QoS 2 messages twice, also those of a subscription that has a lower QoS by now.
        let is_exactly_once = subscriptions.iter().any(|it| it.qos() == 2)
            || mqtt.inflight.iter().any(Inflight::is_exactly_once)
            || recording.has_exactly_once && !mqtt.inflight.is_empty();
        let is_resent: Vec<bool> = mqtt
            .inflight
            .iter()
            .map(|message| !is_exactly_once && lower_positions(ctx, &mut subscriptions, message))
            .collect();
        let inflight = mqtt.inflight.iter().zip(&is_resent);
        let session = StoredSession {
            epoch: ctx.world.epoch,
            subscriptions,
            inflight: inflight
                .filter(|(_, is_repeated)| !**is_repeated)
                .map(|(message, _)| stored_message(message))
                .collect(),
            waiting: mqtt.waiting.iter().map(stored_message).collect(),
            received: mqtt.unreleased().collect(),
            keyless: recording.keyless_ids(),
            token: mqtt.token,
        };
        let after = Outline::from_session(&session);
        let is_whole = recording.is_whole_due();
        let (change, bytes) = match recording.outline.take().filter(|_| !is_whole) {
            Some(before) => {
                let patch = before.patch(&session, &after);
                let bytes = patch.changes.bytes.len();
                recording.add_patch_bytes(bytes);
                (SessionContent::Patch(patch), bytes)
            }
            None => {
                let terms = Terms {
                    owner,
                    is_held: true,
                    expiry_s: mqtt.expiry_s,
                    will: mqtt.will.clone(),
                };
                let (state, will) = (session.encode(), terms.will.as_ref());
                let bytes = state.bytes.len() + will.map_or(0, |will| will.bytes());
                (recording.whole_bytes, recording.patch_bytes) = (bytes as u32, 0);
                (SessionContent::Whole(state, terms), bytes)
            }
        };
        let bytes = size_of::<RecordSession>() + bytes;
        let charge = InFlightCharge::new(&ctx.world.admission, bytes);
        clients.meter.work.steps.add_bytes(bytes);
        let home = home_of_session(ctx, id);
        let record = alloc::boxed::Box::new(RecordSession {
            id,
            owner,
            to,
            content: change,
            charge,
        });
        subs.lanes.ask(home, |_| Ask::SessionRecord(record));
        recording.outline = Some(after);
        if let Some(keyless) = &mut recording.keyless {
            (keyless.released.iter_mut()).for_each(|it| it.is_record_in_flight = true);
        }
        recording.has_exactly_once = is_exactly_once;
        recording.is_in_flight = true;
        recording.recorded_at_s = now_s;
        (recording.is_pending, recording.has_new_acks) = (false, false);
        let mqtt = mqtt_state_mut(&mut clients.conns, slot);
        mqtt.recording = Some(recording);
        for suback in &mut mqtt.subacks {
            suback.is_record_in_flight |= suback.unanswered_homes == 0;
        }
        for message in &mut mqtt.inflight {
            if message.record_wait == RecordWait::NextRecord {
                message.record_wait = RecordWait::RecordInFlight;
            }
        }
    }
}

/// Called when the session's record is committed: sends the packets that waited for it.
pub(super) fn session_recorded<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    if clients.mqtt_must_wait(slot) {
        // After these packets the client may be read again.
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let recording = mqtt.recording();
    recording.is_in_flight = false;
    let is_wanted = core::mem::take(&mut recording.is_pending);
    if let Some(keyless) = &mut recording.keyless {
        let released = keyless.released.extract_if(.., |it| it.is_record_in_flight);
        let released: Vec<PacketId> = released.map(|it| it.packet_id).collect();
        for id in released {
            clients.write_pubcomp(slot, id, true);
        }
    }
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let answered = mqtt
        .subacks
        .iter()
        .filter(|suback| suback.is_record_in_flight);
    let answered: Vec<u16> = answered.map(|suback| suback.packet_id).collect();
    for packet_id in answered {
        if let Some(id) = PacketId::new(packet_id) {
            clients.send_suback(slot, id);
        }
    }
    if is_wanted {
        clients.record_later(slot);
    }
    clients.send_reply(slot, io);
    send_recorded(clients, slot, io);
    clients.send_reply(slot, io);
}

/// Moves the positions of the subscriptions that match this message to before the message. Returns false if this cannot bring the message back, so that the
/// message itself must be recorded.
fn lower_positions(
    ctx: &Context,
    subscriptions: &mut [StoredSubscription<'_>],
    message: &Inflight,
) -> bool {
    if message.qos() != 1
        || message.step != DeliveryStep::Published
        || message.group.is_some()
        || message.offset == 0
    {
        return false;
    }
    if message.has_retain() {
        // The client may have got newer messages of the topic before this retained one.
        return false;
    }
    let (name, offset_before) = (message.topic(), message.offset - 1);
    let partition = usize::from(ctx.partition_of(name));
    let mut has_lowered = false;
    for subscription in subscriptions {
        if subscription.is_shared() || !topic::matches(&subscription.filter, name) {
            continue;
        }
        let index = match topic::has_wildcard(&subscription.filter) {
            true => partition,
            false => 0,
        };
        if let Some(position) = subscription.positions.get_mut(index) {
            has_lowered = true;
            if planted::is(Fault::HighPosition) {
                continue;
            }
            *position = offset_before.min(*position);
            if let Some(start) = subscription.starts.get_mut(index) {
                *start = offset_before.min(*start);
            }
        }
    }
    has_lowered
}
