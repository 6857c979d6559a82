//! Handles CONNECT, opens its session, and ends both (MQTT 5.0 sections 3.1, 3.2, 3.14).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use crore_wire::mqtt::{
    ConnAck, Connect, Disconnect, Error, PropertyWriter, ReasonCode, Version, encode,
};
use crore_wire::topic::TopicError;

use crate::base::ids::ConnId;
use crate::base::journal::EventKind;
use crate::base::notices::Notice;
use crate::base::reason::{Closed, Reason};
use crate::budget::admission::Party;
use crate::budget::in_flight::InFlightCharge;
use crate::client::list::move_to_row;
use crate::client::publishing::PublishRefusal;
use crate::client::row::{State, TURNED_AWAY};
use crate::home::sessions::FOREVER_S;
use crate::io::{CloseMode, Io};
use crate::mail::message::{Headers, is_binary};
use crate::mail::session::patch::Outline;
use crate::mail::session::stored::token_of;
use crate::mail::session::{EncodedSession, SavedSession, SessionId, SessionPatch, Will};
use crate::mail::{Ask, ClosingSession, NO_CLIENT, RecordedClaim, ReplyTo, SessionReply};
use crate::protocol::front::{Clients, Context, Front, Lanes, Queues, Subscriptions};
use crate::protocol::mqtt::access::{allowed_expiry_max_s, apply_verdict, session_name};
use crate::protocol::mqtt::client::{PACKET_OVERHEAD_BYTES, home_of_session, mqtt_state_mut};
use crate::protocol::mqtt::close::{mqtt_end, send_and_close};
use crate::protocol::mqtt::closing_sessions::{ask_retention_fences, return_session};
use crate::protocol::mqtt::options::{LIMITS_PACKETS, V5};
use crate::protocol::mqtt::publish::{MessageFields, RELEASE_ANSWER, is_bridge_state};
use crate::protocol::mqtt::resume::resume_session;
use crate::protocol::mqtt::retention::{release_logs, release_unplaced, session_ended};
use crate::protocol::mqtt::state::{MqttRow, PendingConnack, PublishAnswer};
use crate::protocol::mqtt::suspend::store_session;
use crate::protocol::mqtt::unsubscribe::{end_unanswered_subscriptions, leave_all_share_groups};
use crate::protocol::mqtt::{client, close};
use crate::protocol::shard_state::ShardState;
use crate::store::slab::NONE;

/// The longest accepted client id. MQTT requires only 23 bytes.
const CLIENT_ID_BYTES_MAX: usize = 256;
/// The first bytes of the body of an MQTT 5.0 CONNECT: the name and the version of the protocol (section 3.1.2).
const CONNECT_V5_PREFIX: &[u8] = b"\0\x04MQTT\x05";
/// The size of an MQTT 5.0 CONNACK that refuses the client: header, flags, reason, no properties.
const REFUSING_CONNACK_BYTES: u32 = 5;
/// The size of the same CONNACK with a reason string of at most 16 KiB, without the string itself: the property's identifier (1) and length (2), and
/// one more byte each for the longer lengths of the packet and of its properties.
const REASON_STRING_OVERHEAD_BYTES: usize = REFUSING_CONNACK_BYTES as usize + 5;

impl PendingConnack {
    /// The size of the CONNACK, with the server's limits and the values that it assigned.
    fn connack_bytes(&self) -> usize {
        let assigned_id_bytes = self.assigned_id.as_ref().map_or(0, |id| 3 + id.len());
        16 + assigned_id_bytes
            + 3 * usize::from(self.tells_keep_alive)
            + 5 * usize::from(self.tells_expiry)
            + 2 * usize::from(self.tells_no_groups)
    }
}

impl Front {
    /// Returns the session of a connection that ends to its home. Must be called before the connection's subscriptions end.
    pub(crate) fn end_session(&mut self, slot: u32) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            census,
            ..
        } = self;
        let conn_bytes = clients.conns.held_bytes(slot);
        let row = clients.conns.take_protocol_row(slot);
        let (mut expiry_s, mut will, mut session_answer, mut answers_due) =
            (0, None, None, Vec::new());
        let (mut is_retention_unconfirmed, mut is_recorded, mut token) = (false, false, 0);
        if client::mqtt_state(&clients.conns, slot).is_some() {
            let state = mqtt_state_mut(&mut clients.conns, slot);
            (expiry_s, will) = (state.expiry_s, state.will.take());
            is_retention_unconfirmed = state.is_retention_unconfirmed;
            let refused_ids = state
                .pending_releases
                .iter()
                .filter(|it| it.refusal.is_some());
            let refused_ids: BTreeSet<u16> = refused_ids.map(|it| it.packet_id).collect();
            let is_refused =
                |it: &PublishAnswer| it.is_exactly_once && refused_ids.contains(&it.packet_id);
            let answers = state.answers.iter();
            let unanswered =
                answers.filter(|it| it.reason.is_none() && !it.is_repeat && !is_refused(it));
            answers_due.extend(unanswered.map(PublishAnswer::answer_number));
            session_answer = state
                .pending_connack
                .take()
                .and_then(|it| it.session_answer);
            // The log has the claim of a connection with a token even if the session was not opened.
            is_recorded = state.token != 0
                || state.recording.is_some()
                || matches!(session_answer, Some(Some(_)));
            // A session that the home gave but that was not opened still has the token of an earlier connection.
            let given_session = session_answer.as_ref().and_then(Option::as_ref);
            token = given_session.map_or(state.token, |it| token_of(&it.bytes));
            for release in &state.pending_releases {
                let number = RELEASE_ANSWER | u32::from(release.packet_id);
                answers_due.extend((0..release.unanswered_homes).map(|_| number));
            }
        }
        if !row.is_open() {
            // The home has not answered yet. When the answer comes, `take_session_answer` finds no connection and returns the session.
            return;
        }
        if expiry_s > 0 && !clients.has_memory_for(census, slot, conn_bytes) {
            // There is no memory for the session. The client learns that when it connects again.
            expiry_s = 0;
        }
        leave_all_share_groups(clients, &mut subs.lanes, slot, expiry_s == 0);
        // A session that was given but not opened goes back unchanged.
        let mut patch = None;
        let saved = match (expiry_s, session_answer.flatten()) {
            (0, Some(state)) => {
                session_ended(
                    &mut subs.lanes,
                    &clients.meter.work,
                    &clients.ctx,
                    Some(SavedSession { expiry_s, state }),
                );
                None
            }
            (0, None) => {
                release_logs(clients, subs, slot);
                release_unplaced(clients, &mut subs.lanes, slot);
                None
            }
            (_, Some(state)) => {
                patch = unchanged_patch(&clients.ctx, &state);
                Some(SavedSession { expiry_s, state })
            }
            (_, None) => {
                end_unanswered_subscriptions(clients, subs, queues, slot);
                let state;
                (state, patch) = store_session(clients, subs, &feed.deliveries, slot);
                Some(SavedSession { expiry_s, state })
            }
        };
        clients.leave_filters(subs, slot);
        if is_retention_unconfirmed && saved.is_some() {
            ask_retention_fences(clients, &mut subs.lanes, slot, &mut answers_due);
        }
        let owner = clients.conns.get(slot).consumer.client;
        let admission = &clients.ctx.world.admission;
        let recording = (is_recorded, token);
        let saved = (saved, patch);
        let session = ClosingSession::new(row.session, owner, saved, will, recording, admission);
        let conn = clients.conns.id_of(slot);
        return_session(clients, &mut subs.lanes, conn, session, answers_due);
    }
}

pub(super) fn handle_connect<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    connect: &Connect<'_>,
    io: &mut I,
) -> Result<(), ReasonCode> {
    if clients.conns.get(slot).consumer.protocol_row != NONE {
        // [MQTT-3.1.0-2].
        return Err(ReasonCode::PROTOCOL_ERROR);
    }
    if connect.version == Version::V5 {
        clients.conns.get_mut(slot).consumer.options |= V5;
    }
    if let Err(reason) = accept_connect(clients, lanes, slot, connect) {
        let packet_bytes_max = connect.properties.maximum_packet_size_bytes();
        let packet_bytes_max = packet_bytes_max.unwrap_or(u32::MAX);
        if packet_bytes_max < REFUSING_CONNACK_BYTES {
            // [MQTT-3.1.2-24]: no packet that tells the reason is small enough.
            clients.scratch.set_close_reason(close::closed_of(reason));
            send_and_close(clients, slot, io);
            return Ok(());
        }
        let is_anonymous = connect.user_name.is_none() && connect.password.is_none();
        let text = match reason {
            ReasonCode::NOT_AUTHORIZED if is_anonymous => Reason::ConnectNeedsCredentials.text(),
            _ => "",
        };
        // [MQTT-3.2.2-19]: the text is left out if it does not fit.
        let is_text_short = text.len() + REASON_STRING_OVERHEAD_BYTES <= packet_bytes_max as usize;
        send_refusing_connack(
            clients,
            slot,
            reason,
            if is_text_short { text } else { "" },
            io,
        );
    }
    Ok(())
}

/// Refuses a CONNECT: sends a CONNACK with the reason and this text, if there is one, and closes the connection.
fn send_refusing_connack<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: ReasonCode,
    text: &str,
    io: &mut I,
) {
    if close::counts_as_refused_packet(reason) {
        clients
            .meter
            .count_refused_packet("CONNECT: ", reason.name().as_bytes());
    }
    clients.scratch.set_close_reason(close::closed_of(reason));
    clients.note_refused(slot, "CONNECT", text.as_bytes(), reason.name());
    let version = client::version_of(&clients.conns, slot);
    let mut properties = PropertyWriter::new();
    if !text.is_empty() {
        let _ = properties.reason_string(text);
    }
    let connack = ConnAck {
        session_present: false,
        reason,
        properties: properties.properties(),
    };
    clients.write_packet(slot, |out| encode::connack(out, version, &connack));
    send_and_close(clients, slot, io);
}

/// Refuses a CONNECT that cannot be parsed. If its bytes name MQTT 5.0, the CONNACK has the format of 5.0. For a protocol level that is not supported
/// it has the format of 3.1.1 [MQTT-3.1.2-2], which clients of all versions understand. 3.1.1 has no code for any other fault, so the connection is
/// closed without a CONNACK [MQTT-3.1.4-1 of 3.1.1].
pub(super) fn refuse_unreadable_connect<I: Io>(
    clients: &mut Clients,
    slot: u32,
    bytes: &[u8],
    error: Error,
    io: &mut I,
) {
    let length_bytes = bytes.iter().skip(1).take_while(|byte| *byte & 0x80 != 0);
    let body = bytes
        .get(1 + length_bytes.count() + 1..)
        .unwrap_or_default();
    if body.starts_with(CONNECT_V5_PREFIX) {
        clients.conns.get_mut(slot).consumer.options |= V5;
    } else if !matches!(error, Error::ProtocolVersion(_)) {
        clients
            .meter
            .count_refused_packet("CONNECT: ", error.words().as_bytes());
        clients.scratch.set_close_reason(Closed::Refused);
        return clients.drop_connection(slot, CloseMode::Now);
    }
    send_refusing_connack(clients, slot, error.reason(), "", io);
}

/// Takes the answer of the session's home to a CONNECT. This runs in the middle of a delivery, so the session is opened later, when the connection is
/// resumed. If the connection has ended meanwhile, returns the session to its home.
pub(crate) fn take_session_answer<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    to: ReplyTo,
    reply: &SessionReply,
    io: &mut I,
) {
    let is_current = clients.conns.is_waiting_for(to)
        && clients.conns.get(to.slot).consumer.protocol_row != NONE;
    match (is_current, reply) {
        (true, SessionReply::Refused(reason)) => {
            send_refusing_connack(clients, to.slot, *reason, "", io)
        }
        (
            true,
            &SessionReply::Yes {
                id,
                kept: ref saved,
                claim,
                ..
            },
        ) => {
            clients.conns.protocol_row_mut(to.slot).session = id;
            let state = saved.as_ref().map(|saved| saved.state.clone());
            let mqtt = mqtt_state_mut(&mut clients.conns, to.slot);
            let Some(connecting) = &mut mqtt.pending_connack else {
                return clients.end_as_broken(to.slot);
            };
            connecting.session_answer = Some(state);
            mqtt.claim_offset = claim;
            queues.resume_later(clients, clients.conns.id_of(to.slot));
        }
        (
            false,
            SessionReply::Yes {
                id,
                owner,
                kept: saved,
                ..
            },
        ) => {
            let admission = &clients.ctx.world.admission;
            let recording = (clients.ctx.world.records_sessions(), 0);
            let state = saved.as_ref().map(|saved| &saved.state);
            let patch = state.and_then(|state| unchanged_patch(&clients.ctx, state));
            let saved = (saved.clone(), patch);
            let session = ClosingSession::new(*id, *owner, saved, None, recording, admission);
            let home = home_of_session(&clients.ctx, *id);
            lanes.ask(home, |_| Ask::SessionClose(session));
        }
        (false, SessionReply::Refused(_)) => {}
    }
}

/// The (empty) patch of a recorded session that goes back unchanged. `None` for a session without a token: in the log, the claim may have given it a token,
/// so it must be recorded as a whole.
fn unchanged_patch(ctx: &Context, state: &EncodedSession) -> Option<SessionPatch> {
    let is_recorded = ctx.world.records_sessions() && token_of(&state.bytes) != 0;
    is_recorded
        .then(|| SessionPatch::without_changes(state))
        .flatten()
}

/// Opens the session and writes the CONNACK. If the client has an earlier session, the CONNACK waits until its subscriptions are in force.
pub(super) fn open_session<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    io: &mut I,
) {
    let settings = clients.ctx.world.settings.mqtt.clone();
    let packet_bytes = clients.ctx.world.settings.limits.message_bytes + PACKET_OVERHEAD_BYTES;
    let version = client::version_of(&clients.conns, slot);
    let row = clients.conns.protocol_row(slot);
    let keep_alive_s = row.keep_alive_s;
    let records_sessions = clients.ctx.world.records_sessions();
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let expiry_s = mqtt.expiry_s;
    let Some(connecting) = mqtt.pending_connack.take() else {
        return clients.end_as_broken(slot);
    };
    let Some(state) = connecting.session_answer else {
        return clients.end_as_broken(slot);
    };
    // Even if this connection asked for an expiry of 0, the session that it got may be recorded.
    if mqtt.token != 0 || state.is_some() && records_sessions {
        let outline = state
            .is_none()
            .then(|| Outline::for_new_session(mqtt.token));
        mqtt.recording().outline = outline;
    }
    let mut properties = PropertyWriter::new();
    if version == Version::V5 {
        properties.receive_maximum(settings.receive_max);
        properties.maximum_packet_size_bytes(packet_bytes as u32);
        if settings.topic_aliases_max > 0 {
            properties.topic_alias_maximum(settings.topic_aliases_max);
        }
        if connecting.tells_expiry {
            properties.session_expiry_interval_s(expiry_s);
        }
        if connecting.tells_keep_alive {
            properties.server_keep_alive_s(keep_alive_s);
        }
        if connecting.tells_no_groups {
            properties.shared_subscription_available(false);
        }
        if let Some(id) = &connecting.assigned_id {
            // Cannot fail: the server has made the id, and it is short.
            let _ = properties.assigned_client_identifier(id);
        }
    }
    let connack = ConnAck {
        session_present: state.is_some(),
        reason: ReasonCode::SUCCESS,
        properties: properties.properties(),
    };
    clients.write_packet(slot, |out| encode::connack(out, version, &connack));
    match state {
        Some(state) => {
            resume_session(clients, subs, slot, &state, io);
        }
        None => {
            clients.send_reply(slot, io);
            move_to_row(&mut clients.conns, slot);
        }
    }
    let deadline_s = clients.keep_alive_end_s(slot);
    let row = clients.conns.get_mut(slot);
    if row.link.outbox == NONE && row.consumer.state == State::Mqtt {
        row.link.deadline_s = deadline_s;
    }
}

/// Ends the connection that holds a session, for example because another one has taken the session [MQTT-3.1.4-3].
pub(crate) fn end_holder<I: Io>(clients: &mut Clients, holder: ConnId, reason: Reason, io: &mut I) {
    let slot = holder.slot;
    if clients.conns.is_current(holder) && clients.conns.get(slot).consumer.state == State::Mqtt {
        mqtt_end(clients, slot, reason, io);
    }
}

/// Handles a DISCONNECT from the client (section 3.14).
pub(super) fn handle_disconnect<I: Io>(
    clients: &mut Clients,
    slot: u32,
    disconnect: &Disconnect<'_>,
    io: &mut I,
) -> Result<(), ReasonCode> {
    // If the server keeps no sessions, it has set the expiry to zero, and the client may not know that.
    let requested_s = disconnect.properties.session_expiry_interval_s();
    if let Some(requested_s) = requested_s.filter(|_| clients.ctx.world.keeps_sessions()) {
        let max_s = clients.ctx.world.settings.mqtt.session_expiry_max_s;
        let mqtt = mqtt_state_mut(&mut clients.conns, slot);
        if mqtt.expiry_s == 0 && requested_s != 0 {
            // [MQTT-3.14.2.2.2]: an expiry of zero in the CONNECT cannot be changed at the end.
            return Err(ReasonCode::PROTOCOL_ERROR);
        }
        mqtt.expiry_s = requested_s.min(max_s);
    }
    if disconnect.reason == ReasonCode::NORMAL_DISCONNECTION
        && client::mqtt_state(&clients.conns, slot).is_some()
    {
        // [MQTT-3.14.4-3].
        mqtt_state_mut(&mut clients.conns, slot).will = None;
    }
    clients.scratch.set_close_reason(Closed::Peer);
    clients.scratch.is_closed_by_client = true;
    send_and_close(clients, slot, io);
    Ok(())
}

fn accept_connect(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    connect: &Connect<'_>,
) -> Result<(), ReasonCode> {
    if clients.conns.get(slot).link.has(TURNED_AWAY) {
        return Err(ReasonCode::SERVER_BUSY);
    }
    if clients.ctx.is_cut_off() {
        return Err(ReasonCode::SERVER_UNAVAILABLE);
    }
    if connect.properties.authentication_method().is_some() {
        return Err(ReasonCode::BAD_AUTHENTICATION_METHOD);
    }
    apply_verdict(clients, slot)?;
    let expiry_max_s = allowed_expiry_max_s(clients, slot)?;
    let client_id = choose_client_id(&mut clients.protocol_state, &clients.ctx, slot, connect)?;
    let will = read_will(clients, slot, connect)?;
    let session = session_name(clients, slot, &client_id);
    let (properties, is_v5) = (&connect.properties, connect.version == Version::V5);
    let requested_s = match (is_v5, connect.clean_start) {
        (true, _) => properties.session_expiry_interval_s().unwrap_or(0),
        (false, true) => 0,
        (false, false) => FOREVER_S,
    };
    let expiry_s = requested_s.min(expiry_max_s);
    if requested_s > 0 && !clients.ctx.world.keeps_sessions() && !connect.client_id.is_empty() {
        report_short_session(clients, &client_id);
    }
    let settings = &clients.ctx.world.settings.mqtt;
    let keep_alive_max_s = settings.keep_alive_max_s;
    let is_keep_alive_allowed =
        keep_alive_max_s == 0 || (1..=keep_alive_max_s).contains(&connect.keep_alive_s);
    let keep_alive_s = if is_keep_alive_allowed || !is_v5 {
        connect.keep_alive_s
    } else {
        keep_alive_max_s
    };
    let (receive_max, packet_bytes_max) = (
        properties.receive_maximum(),
        properties.maximum_packet_size_bytes(),
    );
    let partition = clients.ctx.partition_of(session.as_bytes());
    let row = MqttRow {
        session: SessionId::none(partition),
        keep_alive_s,
        packet_id: 0,
        receive_max: receive_max.min(settings.inflight_max),
        packet_bytes_max: packet_bytes_max.unwrap_or(u32::MAX),
    };
    let home = clients.ctx.world.placement().home_of(partition);
    let assigned_id = (is_v5 && connect.client_id.is_empty()).then(|| client_id.clone());
    let aliases_max = properties
        .topic_alias_maximum()
        .min(settings.topic_aliases_max);
    let connecting = PendingConnack {
        assigned_id,
        tells_keep_alive: is_v5 && !is_keep_alive_allowed,
        tells_expiry: is_v5 && expiry_s != requested_s,
        tells_no_groups: is_v5 && clients.ctx.world.is_replicated(),
        session_answer: None,
    };
    if connecting.connack_bytes() > packet_bytes_max.unwrap_or(u32::MAX) as usize {
        // [MQTT-3.1.2-24]: the CONNACK does not fit.
        return Err(ReasonCode::PACKET_TOO_LARGE);
    }
    let world = clients.ctx.world.clone();
    let is_recorded = expiry_s > 0 && world.records_sessions();
    let mut will = will;
    // In a cluster a session that ends with its connection is claimed too, so that a client with the same id at another node is disconnected.
    let is_claimed = is_recorded || world.replicates_sessions() && world.appends();
    let claim = is_claimed.then(|| new_claim(clients, will.as_deref_mut()));
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    (mqtt.expiry_s, mqtt.will, mqtt.aliases_max) = (expiry_s, will, aliases_max);
    mqtt.token = (claim.as_ref().filter(|_| is_recorded)).map_or(0, |claim| claim.token);
    mqtt.is_bridge = connect.bridge;
    mqtt.pending_connack = Some(Box::new(connecting));
    clients.conns.set_protocol_row(slot, row);
    clients.conns.get_mut(slot).consumer.options |= if packet_bytes_max.is_some() {
        LIMITS_PACKETS
    } else {
        0
    };
    clients.record_event(slot, EventKind::SessionOpened, client_id.as_bytes());
    let hash = clients.ctx.world.hash_of(session.as_bytes());
    let ask = Ask::SessionOpen {
        to: clients.conns.reply_to(slot, 0),
        hash,
        client: session.into(),
        clean: connect.clean_start,
        expiry_s,
        owner: clients.conns.get(slot).consumer.client,
        recorded: claim,
        begins: None,
    };
    lanes.ask(home, |_| ask);
    Ok(())
}

/// Tells the operator, once for each client, that a client has asked for a session that outlives its connection and did not get one. A CONNACK of 3.1.1
/// cannot tell the client.
fn report_short_session(clients: &mut Clients, client: &str) {
    let world = &clients.ctx.world;
    let hash = world.hash_of(client.as_bytes());
    let reported = &world.admission.short_sessions;
    if reported.has(hash) {
        return;
    }
    clients.meter.stats.short_sessions += 1;
    let notices = &mut clients.meter.notices;
    // A client whose notice is not logged, because another one waits, is counted again when it reconnects.
    if !notices.has(Notice::ShortSession) {
        notices.note(Notice::ShortSession, client.as_bytes());
        reported.add(hash);
    }
}

/// The claim to be recorded when the connection takes its session, with new tokens for the session and the will. No other session or will has the same
/// token.
fn new_claim(clients: &mut Clients, mut will: Option<&mut Will>) -> Box<RecordedClaim> {
    let (own, ctx) = (&mut clients.protocol_state, &clients.ctx);
    let mut next_token = || Party::qos2_publisher(own.next_number(ctx)).number();
    let token = next_token();
    if let Some(will) = &mut will {
        // Homes forget all messages of a token at once, so the will needs a token of its own.
        will.token = next_token();
    }
    let bytes = size_of::<RecordedClaim>() + will.as_ref().map_or(0, |will| will.bytes());
    Box::new(RecordedClaim {
        token,
        will: will.map(|will| Box::new(will.clone())),
        charge: InFlightCharge::new(&ctx.world.admission, bytes),
    })
}

/// The client id of the CONNECT, or a new one if that is empty (section 3.1.3.1).
fn choose_client_id(
    own: &mut ShardState,
    ctx: &Context,
    slot: u32,
    connect: &Connect<'_>,
) -> Result<Box<str>, ReasonCode> {
    let id = connect.client_id;
    let needs_stored_id = id.is_empty() && connect.version == Version::V311 && !connect.clean_start;
    if id.len() > CLIENT_ID_BYTES_MAX || needs_stored_id {
        return Err(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
    }
    if !id.is_empty() {
        return Ok(id.into());
    }
    let mut id = String::from("crore-");
    let number = own.next_number(ctx);
    // Writing to a string does not fail.
    let _ = write!(id, "{:08x}{number:016x}{slot:x}", ctx.world.epoch);
    Ok(id.into())
}

fn read_will(
    clients: &mut Clients,
    slot: u32,
    connect: &Connect<'_>,
) -> Result<Option<Box<Will>>, ReasonCode> {
    let Some(will) = &connect.will else {
        return Ok(None);
    };
    let name = will.topic.as_bytes();
    let may_use_reserved = || connect.bridge && is_bridge_state(name);
    let checked_publish = clients.check_publish(slot, name, will.payload.len(), may_use_reserved);
    checked_publish.map_err(|refusal| {
        let refusal = match refusal {
            PublishRefusal::Other(Reason::Reserved) => PublishRefusal::Name(TopicError::Reserved),
            refusal => refusal,
        };
        clients.refuse_message(slot, ("CONNECT", "topic of the will"), name, refusal)
    })?;
    let fields = MessageFields::read(&will.properties, will.payload, NO_CLIENT, Vec::new())
        .map_err(|error| clients.refuse_fields(slot, "CONNECT", error, name))?;
    let with_publisher = clients.with_publisher(slot, name, &fields.attributes);
    Ok(Some(Box::new(Will {
        delay_s: will.properties.will_delay_interval_s(),
        topic: name.into(),
        data: will.payload.into(),
        headers: Headers {
            content_type: fields.content_type.into(),
            event: fields.event.into(),
            key: fields.key.into(),
            attributes: with_publisher.unwrap_or(fields.attributes).into(),
            ttl_s: will.properties.message_expiry_interval_s(),
            qos: will.qos.bits(),
            retain: will.retain,
            binary: is_binary(fields.content_type, will.payload),
        },
        client: clients.conns.get(slot).consumer.client,
        token: 0,
    })))
}
