//! Records the session of a connection in the log ([`records_sessions`](crate::budget::world::World::records_sessions)), so that the client finds it
//! again after a crash of the server.
//!
//! Invariants:
//! * A SUBACK waits until a record with its subscription is committed.
//! * At most one record of a connection is in flight. Changes that come meanwhile are in the next one.
//! * A record has a position before each QoS 1 message that the client has not acknowledged. After a crash the client gets these messages once more. If
//!   the session also has QoS 2 messages in flight, the record has the messages themselves: from lower positions QoS 2 messages would come twice.
//! * A QoS 2 message is sent only after a record has it with its packet id, and its PUBREL only after a record says that the client has received it. After
//!   a crash the delivery goes on with the same packet id.

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
use crate::mail::{Ask, RecordSession, ReplyTo, SessionNews};
use crate::protocol::front::{Clients, Context, Front, Queues};
use crate::protocol::mqtt::client::{self, home_of_session, mqtt_state};
use crate::protocol::mqtt::deliver::send_recorded;
use crate::protocol::mqtt::state::{Inflight, Step, Unsent};
use crate::protocol::mqtt::suspend::{stored, stored_subscriptions};

/// Stands for the answer to a record among those to fences: no packet id is as large.
pub(super) const RECORDED: u32 = 1 << 16;
/// Seconds after which acknowledgements are recorded at the latest.
const RECORD_INTERVAL_S: u32 = 5;
/// In a cluster: the session is recorded if its number of unreleased QoS 2 messages from the client differs by this much from the last record.
const UNRECORDED_IDS_MAX: usize = 64;

impl Clients {
    /// Whether the session of this connection is recorded.
    pub(super) fn records_session(&self, slot: u32) -> bool {
        self.ctx.world.records_sessions()
            && client::mqtt(&self.conns, slot).is_some_and(|mqtt| mqtt.expiry_s > 0)
    }

    /// Whether a packet of a message with this QoS to the client waits for a record of the session. A QoS 1 message waits behind the QoS 2 messages that
    /// do, so that each topic keeps its order.
    pub(super) fn must_record(&self, slot: u32, qos: u8) -> bool {
        let has_unsent = || {
            let mqtt = client::mqtt(&self.conns, slot);
            mqtt.and_then(|mqtt| mqtt.inflight.back())
                .is_some_and(Inflight::is_first_unsent)
        };
        self.records_session(slot) && (qos == 2 || qos == 1 && has_unsent())
    }

    /// Whether a message of so many bytes to the client may be in flight besides the others. A record can have all of them, so that they have the size of
    /// one message in all.
    pub(super) fn fits_record(&self, slot: u32, bytes: usize) -> bool {
        if !self.records_session(slot) {
            return true;
        }
        let inflight = client::mqtt(&self.conns, slot).map(|mqtt| &mqtt.inflight);
        let sent = inflight.into_iter().flatten();
        let bytes_max = self.ctx.world.settings.limits.message_bytes;
        let in_flight: usize = sent.map(Inflight::wire_bytes).sum();
        in_flight == 0 || in_flight + bytes <= bytes_max
    }

    /// Records the session in the next turn.
    pub(super) fn record_later(&mut self, slot: u32) {
        let conn = self.conns.id_of(slot);
        let recording = mqtt_state(&mut self.conns, slot).recording();
        if !core::mem::replace(&mut recording.is_wanted, true) && !recording.is_asked {
            self.protocol_state.unrecorded.push(conn);
        }
    }

    /// The client has acknowledged a message.
    pub(super) fn note_acknowledged(&mut self, slot: u32) {
        if self.records_session(slot) {
            mqtt_state(&mut self.conns, slot).recording().has_news = true;
        }
    }

    /// The client has sent or released a QoS 2 message. In a cluster all nodes keep a key for each message that is not released, and charge the keys that
    /// the session's record has. So a client that only publishes is recorded, too.
    pub(super) fn note_unreleased(&mut self, slot: u32) {
        if !self.ctx.world.replicates_sessions() || !self.records_session(slot) {
            return;
        }
        let mqtt = mqtt_state(&mut self.conns, slot);
        let recorded = mqtt.recording.as_ref().and_then(|it| it.outline.as_ref());
        let recorded = recorded.map_or(0, Outline::unreleased);
        let count = mqtt.received.len() + mqtt.received_before.len();
        if count.abs_diff(recorded) >= UNRECORDED_IDS_MAX {
            self.record_later(slot);
        }
    }

    /// Called once a second: records acknowledgements.
    pub(super) fn record_if_due(&mut self, slot: u32) {
        if !self.records_session(slot) {
            return;
        }
        let recording = mqtt_state(&mut self.conns, slot).recording();
        let is_due = self.ctx.now.s >= recording.asked_s + RECORD_INTERVAL_S;
        if recording.has_news && is_due {
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
            part: RECORDED,
            ..clients.conns.reply_to(slot, 0)
        };
        let now_s = ctx.now.s;
        let mqtt = mqtt_state(&mut clients.conns, slot);
        let mut recording = mqtt.recording.take().unwrap_or_default();
        // With lower positions the client would get its QoS 2 messages twice. They may be of a subscription that has a lower QoS by now.
        let is_exactly_once = subscriptions.iter().any(|it| it.qos() == 2)
            || mqtt.inflight.iter().any(Inflight::is_exactly_once)
            || recording.is_exactly_once && !mqtt.inflight.is_empty();
        let repeated: Vec<bool> = mqtt
            .inflight
            .iter()
            .map(|sent| !is_exactly_once && lower_positions(ctx, &mut subscriptions, sent))
            .collect();
        let inflight = mqtt.inflight.iter().zip(&repeated);
        let session = StoredSession {
            epoch: ctx.world.epoch,
            subscriptions,
            inflight: inflight
                .filter(|(_, is_repeated)| !**is_repeated)
                .map(|(sent, _)| stored(sent))
                .collect(),
            waiting: mqtt.waiting.iter().map(stored).collect(),
            received: mqtt.unreleased().collect(),
            keyless: recording.keyless(),
            token: mqtt.token,
        };
        let after = Outline::from_session(&session);
        let is_whole = recording.is_whole_due();
        let (news, bytes) = match recording.outline.take().filter(|_| !is_whole) {
            Some(before) => {
                let patch = before.patch(&session, &after);
                let bytes = patch.changes.bytes.len();
                recording.add_parts(bytes);
                (SessionNews::Patch(patch), bytes)
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
                (recording.whole_bytes, recording.parts_bytes) = (bytes as u32, 0);
                (SessionNews::Whole(state, terms), bytes)
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
            news,
            charge,
        });
        subs.lanes.ask(home, |_| Ask::SessionRecord(record));
        recording.outline = Some(after);
        if let Some(keyless) = &mut recording.keyless {
            (keyless.released.iter_mut()).for_each(|it| it.is_asked = true);
        }
        recording.is_exactly_once = is_exactly_once;
        recording.is_asked = true;
        recording.asked_s = now_s;
        (recording.is_wanted, recording.has_news) = (false, false);
        let mqtt = mqtt_state(&mut clients.conns, slot);
        mqtt.recording = Some(recording);
        for suback in &mut mqtt.subacks {
            suback.is_asked |= suback.waiting == 0;
        }
        for sent in &mut mqtt.inflight {
            if sent.unsent == Unsent::Wanted {
                sent.unsent = Unsent::Asked;
            }
        }
    }
}

/// The log has the last record of the session: sends the packets that waited for it.
pub(super) fn session_recorded<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    if clients.mqtt_must_wait(slot) {
        // Received packets may wait for the packets that are sent now.
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let recording = mqtt.recording();
    recording.is_asked = false;
    let is_wanted = core::mem::take(&mut recording.is_wanted);
    if let Some(keyless) = &mut recording.keyless {
        let released = keyless.released.extract_if(.., |it| it.is_asked);
        let released: Vec<PacketId> = released.map(|it| it.packet_id).collect();
        for id in released {
            clients.write_pubcomp(slot, id, true);
        }
    }
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let asked = mqtt.subacks.iter().filter(|suback| suback.is_asked);
    let asked: Vec<u16> = asked.map(|suback| suback.packet_id).collect();
    for packet_id in asked {
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

/// Moves the positions of the subscriptions that brought this message before it. Returns false if there are none: then the message itself must be
/// recorded.
fn lower_positions(
    ctx: &Context,
    subscriptions: &mut [StoredSubscription<'_>],
    sent: &Inflight,
) -> bool {
    if sent.qos() != 1 || sent.step != Step::Published || sent.group.is_some() || sent.offset == 0 {
        return false;
    }
    if sent.has_retain() {
        // A subscription that asked for the retained message may have brought newer messages before.
        return false;
    }
    let (name, before) = (sent.topic(), sent.offset - 1);
    let partition = usize::from(ctx.partition_of(name));
    let mut is_found = false;
    for subscription in subscriptions {
        if subscription.is_shared() || !topic::matches(&subscription.filter, name) {
            continue;
        }
        let at = match topic::has_wildcard(&subscription.filter) {
            true => partition,
            false => 0,
        };
        if let Some(position) = subscription.positions.get_mut(at) {
            is_found = true;
            if planted::is(Fault::HighPosition) {
                continue;
            }
            *position = before.min(*position);
            if let Some(start) = subscription.starts.get_mut(at) {
                *start = before.min(*start);
            }
        }
    }
    is_found
}
