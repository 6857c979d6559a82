//! Handles CONNECT, opens its session, and ends both (MQTT 5.0 sections 3.1, 3.2, 3.14).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use xxhash_rust::xxh3::xxh3_64_with_seed;

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
use crate::client::list::collapse;
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
use crate::protocol::mqtt::access::{connect_as, session_expiry_most_s, session_name};
use crate::protocol::mqtt::client::{PACKET_BESIDE_BYTES, home_of_session, mqtt_state};
use crate::protocol::mqtt::close::{mqtt_end, mqtt_shut};
use crate::protocol::mqtt::closing_sessions::{fence_retention, give_back};
use crate::protocol::mqtt::options::{SMALL, V5};
use crate::protocol::mqtt::publish::{Fields, RELEASED, is_bridge_state};
use crate::protocol::mqtt::resume::resume_session;
use crate::protocol::mqtt::retention::{release_logs, release_unplaced, session_ended};
use crate::protocol::mqtt::state::{Answer, Connecting, MqttRow};
use crate::protocol::mqtt::suspend::suspend_session;
use crate::protocol::mqtt::unsubscribe::{leave_unanswered, part_groups};
use crate::protocol::mqtt::{client, close};
use crate::protocol::shard_state::ShardState;
use crate::store::slab::NONE;

/// The longest accepted client id. MQTT requires only 23 bytes.
const CLIENT_ID_BYTES_MAX: usize = 256;
/// The body of a CONNECT of MQTT 5: the name and the version of the protocol (section 3.1.2).
const BEGINS_V5: &[u8] = b"\0\x04MQTT\x05";
/// A CONNACK of MQTT 5 that refuses: header, flags, reason, no properties.
const REFUSAL_BYTES: u32 = 5;
/// The size of the same CONNACK with a reason string of at most 16 KiB, without the string itself: the property's identifier (1) and length (2), and
/// one more byte each for the longer lengths of the packet and of its properties.
const WORDS_BESIDE_BYTES: usize = REFUSAL_BYTES as usize + 5;

impl Connecting {
    /// The size of the CONNACK, with the server's limits and the values that it assigned.
    fn connack_bytes(&self) -> usize {
        let assigned = self.assigned.as_ref().map_or(0, |id| 3 + id.len());
        16 + assigned
            + 3 * usize::from(self.server_keep_alive)
            + 5 * usize::from(self.server_expiry)
            + 2 * usize::from(self.no_groups)
    }
}

impl Front {
    /// The connection ends: its session goes back to its home. Called before its subscriptions end.
    pub(crate) fn end_session(&mut self, slot: u32) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            census,
            ..
        } = self;
        let held_bytes = clients.conns.held_bytes(slot);
        let mqtt = clients.conns.take_protocol_row(slot);
        let (mut expiry_s, mut will, mut given, mut due) = (0, None, None, Vec::new());
        let (mut needs_told, mut is_recorded, mut token) = (false, false, 0);
        if client::mqtt(&clients.conns, slot).is_some() {
            let state = mqtt_state(&mut clients.conns, slot);
            (expiry_s, will) = (state.expiry_s, state.will.take());
            needs_told = state.needs_told;
            let refused = state.releasing.iter().filter(|it| it.refused.is_some());
            let refused: BTreeSet<u16> = refused.map(|it| it.packet_id).collect();
            let is_refused = |it: &Answer| it.exactly_once && refused.contains(&it.packet_id);
            let answers = state.answers.iter();
            let asked = answers.filter(|it| it.reason.is_none() && !it.again && !is_refused(it));
            due.extend(asked.map(Answer::part));
            given = state.connecting.take().and_then(|it| it.given);
            // The claim of a connection with a token is in the log, also before its session is opened.
            is_recorded =
                state.token != 0 || state.recording.is_some() || matches!(given, Some(Some(_)));
            // A session that was given but not opened has the token of an earlier connection.
            let earlier = given.as_ref().and_then(Option::as_ref);
            token = earlier.map_or(state.token, |it| token_of(&it.bytes));
            for release in &state.releasing {
                let answer = RELEASED | u32::from(release.packet_id);
                due.extend((0..release.waiting).map(|_| answer));
            }
        }
        if !mqtt.is_open() {
            // The home has not answered yet. When it does, `session_given` finds no connection, and returns the session.
            return;
        }
        if expiry_s > 0 && !clients.has_memory_for(census, slot, held_bytes) {
            // When the client comes back it is told that there is no session any more.
            expiry_s = 0;
        }
        part_groups(clients, &mut subs.lanes, slot, expiry_s == 0);
        // State that was given but not opened goes back unchanged.
        let mut patch = None;
        let kept = match (expiry_s, given.flatten()) {
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
                patch = unchanged(&clients.ctx, &state);
                Some(SavedSession { expiry_s, state })
            }
            (_, None) => {
                leave_unanswered(clients, subs, queues, slot);
                let state;
                (state, patch) = suspend_session(clients, subs, &feed.deliveries, slot);
                Some(SavedSession { expiry_s, state })
            }
        };
        clients.leave_filters(subs, slot);
        if needs_told && kept.is_some() {
            fence_retention(clients, &mut subs.lanes, slot, &mut due);
        }
        let owner = clients.conns.get(slot).consumer.client;
        let admission = &clients.ctx.world.admission;
        let recorded = (is_recorded, token);
        let kept = (kept, patch);
        let session = ClosingSession::new(mqtt.session, owner, kept, will, recorded, admission);
        let from = clients.conns.id_of(slot);
        give_back(clients, &mut subs.lanes, from, session, due);
    }
}

pub(super) fn client_connects<I: Io>(
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
        let most = connect.properties.maximum_packet_size_bytes();
        let most = most.unwrap_or(u32::MAX);
        if most < REFUSAL_BYTES {
            // [MQTT-3.1.2-24]: no packet could say so.
            clients.scratch.note_close_reason(close::ended(reason));
            mqtt_shut(clients, slot, io);
            return Ok(());
        }
        let is_anonymous = connect.user_name.is_none() && connect.password.is_none();
        let words = match reason {
            ReasonCode::NOT_AUTHORIZED if is_anonymous => Reason::ConnectNeedsCredentials.text(),
            _ => "",
        };
        // [MQTT-3.2.2-19]: without the words where they would not fit.
        let fits = words.len() + WORDS_BESIDE_BYTES <= most as usize;
        refuse_client(clients, slot, reason, if fits { words } else { "" }, io);
    }
    Ok(())
}

/// Refuses a CONNECT: a CONNACK with the reason, perhaps in words, and the end.
fn refuse_client<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: ReasonCode,
    words: &str,
    io: &mut I,
) {
    if close::is_refused_packet(reason) {
        clients
            .meter
            .refused_packet("CONNECT: ", reason.name().as_bytes());
    }
    clients.scratch.note_close_reason(close::ended(reason));
    clients.note_refused(slot, "CONNECT", words.as_bytes(), reason.name());
    let version = client::version(&clients.conns, slot);
    let mut properties = PropertyWriter::new();
    if !words.is_empty() {
        let _ = properties.reason_string(words);
    }
    let connack = ConnAck {
        session_present: false,
        reason,
        properties: properties.properties(),
    };
    clients.write_packet(slot, |out| encode::connack(out, version, &connack));
    mqtt_shut(clients, slot, io);
}

/// Refuses a CONNECT that cannot be parsed. If its bytes name MQTT 5.0, the CONNACK has the format of 5.0. For a protocol level that is not supported
/// it has the format of 3.1.1 [MQTT-3.1.2-2], which clients of all versions understand. 3.1.1 has no code for any other fault, so the connection is
/// closed without a CONNACK [MQTT-3.1.4-1 of 3.1.1].
pub(super) fn refuse_connect<I: Io>(
    clients: &mut Clients,
    slot: u32,
    bytes: &[u8],
    error: Error,
    io: &mut I,
) {
    let more = bytes.iter().skip(1).take_while(|byte| *byte & 0x80 != 0);
    let body = bytes.get(1 + more.count() + 1..).unwrap_or_default();
    if body.starts_with(BEGINS_V5) {
        clients.conns.get_mut(slot).consumer.options |= V5;
    } else if !matches!(error, Error::ProtocolVersion(_)) {
        clients
            .meter
            .refused_packet("CONNECT: ", error.words().as_bytes());
        clients.scratch.note_close_reason(Closed::Refused);
        return clients.drop_connection(slot, CloseMode::Now);
    }
    refuse_client(clients, slot, error.reason(), "", io);
}

/// Takes the home's answer to CONNECT. This runs in the middle of a delivery, so the session is opened later, when the connection is resumed.
pub(crate) fn session_given<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    to: ReplyTo,
    given: &SessionReply,
    io: &mut I,
) {
    let current = clients.conns.is_waiting_for(to)
        && clients.conns.get(to.slot).consumer.protocol_row != NONE;
    match (current, given) {
        (true, SessionReply::Refused(reason)) => refuse_client(clients, to.slot, *reason, "", io),
        (
            true,
            &SessionReply::Yes {
                id,
                ref kept,
                claim,
                ..
            },
        ) => {
            clients.conns.protocol_row_mut(to.slot).session = id;
            let state = kept.as_ref().map(|kept| kept.state.clone());
            let mqtt = mqtt_state(&mut clients.conns, to.slot);
            let Some(connecting) = &mut mqtt.connecting else {
                return clients.end_as_broken(to.slot);
            };
            connecting.given = Some(state);
            mqtt.claim = claim;
            queues.resume_later(clients, clients.conns.id_of(to.slot));
        }
        (
            false,
            SessionReply::Yes {
                id, owner, kept, ..
            },
        ) => {
            let admission = &clients.ctx.world.admission;
            let recorded = (clients.ctx.world.records_sessions(), 0);
            let state = kept.as_ref().map(|kept| &kept.state);
            let patch = state.and_then(|state| unchanged(&clients.ctx, state));
            let kept = (kept.clone(), patch);
            let session = ClosingSession::new(*id, *owner, kept, None, recorded, admission);
            let home = home_of_session(&clients.ctx, *id);
            lanes.ask(home, |_| Ask::SessionClose(session));
        }
        (false, SessionReply::Refused(_)) => {}
    }
}

/// The patch of a session that goes back as it was given, if it is recorded. In the log, the claim may have given a token to a session without one. So
/// that session is recorded as a whole.
fn unchanged(ctx: &Context, state: &EncodedSession) -> Option<SessionPatch> {
    let is_recorded = ctx.world.records_sessions() && token_of(&state.bytes) != 0;
    is_recorded.then(|| SessionPatch::nothing(state)).flatten()
}

/// Opens the session and writes the CONNACK. If the client has an earlier session, the CONNACK waits until its subscriptions are in force.
pub(super) fn open_session<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    io: &mut I,
) {
    let settings = clients.ctx.world.settings.mqtt.clone();
    let packet_bytes = clients.ctx.world.settings.limits.message_bytes + PACKET_BESIDE_BYTES;
    let version = client::version(&clients.conns, slot);
    let row = clients.conns.protocol_row(slot);
    let keep_alive_s = row.keep_alive_s;
    let records_sessions = clients.ctx.world.records_sessions();
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let expiry_s = mqtt.expiry_s;
    let Some(connecting) = mqtt.connecting.take() else {
        return clients.end_as_broken(slot);
    };
    let Some(state) = connecting.given else {
        return clients.end_as_broken(slot);
    };
    // Also with an expiry of 0 the connection may have got a session that is recorded.
    if mqtt.token != 0 || state.is_some() && records_sessions {
        let outline = state.is_none().then(|| Outline::of_new(mqtt.token));
        mqtt.recording().outline = outline;
    }
    let mut set = PropertyWriter::new();
    if version == Version::V5 {
        set.receive_maximum(settings.receive_max);
        set.maximum_packet_size_bytes(packet_bytes as u32);
        if settings.topic_aliases_max > 0 {
            set.topic_alias_maximum(settings.topic_aliases_max);
        }
        if connecting.server_expiry {
            set.session_expiry_interval_s(expiry_s);
        }
        if connecting.server_keep_alive {
            set.server_keep_alive_s(keep_alive_s);
        }
        if connecting.no_groups {
            set.shared_subscription_available(false);
        }
        if let Some(id) = &connecting.assigned {
            // The id is the server's own, and short.
            let _ = set.assigned_client_identifier(id);
        }
    }
    let connack = ConnAck {
        session_present: state.is_some(),
        reason: ReasonCode::SUCCESS,
        properties: set.properties(),
    };
    clients.write_packet(slot, |out| encode::connack(out, version, &connack));
    match state {
        Some(state) => {
            resume_session(clients, subs, slot, &state, io);
        }
        None => {
            clients.send_reply(slot, io);
            collapse(&mut clients.conns, slot);
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

/// DISCONNECT from the client (section 3.14).
pub(super) fn client_leaves<I: Io>(
    clients: &mut Clients,
    slot: u32,
    disconnect: &Disconnect<'_>,
    io: &mut I,
) -> Result<(), ReasonCode> {
    // In a cluster the server has set it to zero, and the client may not know that.
    let asked_s = disconnect.properties.session_expiry_interval_s();
    if let Some(asked_s) = asked_s.filter(|_| clients.ctx.world.keeps_sessions()) {
        let most_s = clients.ctx.world.settings.mqtt.session_expiry_max_s;
        let mqtt = mqtt_state(&mut clients.conns, slot);
        if mqtt.expiry_s == 0 && asked_s != 0 {
            // [MQTT-3.14.2.2.2]: an expiry of zero in the CONNECT cannot be changed at the end.
            return Err(ReasonCode::PROTOCOL_ERROR);
        }
        mqtt.expiry_s = asked_s.min(most_s);
    }
    if disconnect.reason == ReasonCode::NORMAL_DISCONNECTION
        && client::mqtt(&clients.conns, slot).is_some()
    {
        // [MQTT-3.14.4-3].
        mqtt_state(&mut clients.conns, slot).will = None;
    }
    clients.scratch.note_close_reason(Closed::Peer);
    clients.scratch.is_closed = true;
    mqtt_shut(clients, slot, io);
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
    connect_as(clients, slot)?;
    let expiry_most_s = session_expiry_most_s(clients, slot)?;
    let client = client_id(&mut clients.protocol_state, &clients.ctx, slot, connect)?;
    let will = will(clients, slot, connect)?;
    let session = session_name(clients, slot, &client);
    let (set, v5) = (&connect.properties, connect.version == Version::V5);
    let asked_s = match (v5, connect.clean_start) {
        (true, _) => set.session_expiry_interval_s().unwrap_or(0),
        (false, true) => 0,
        (false, false) => FOREVER_S,
    };
    let expiry_s = asked_s.min(expiry_most_s);
    if asked_s > 0 && !clients.ctx.world.keeps_sessions() && !connect.client_id.is_empty() {
        name_short_session(clients, &client);
    }
    let settings = &clients.ctx.world.settings.mqtt;
    let most_s = settings.keep_alive_max_s;
    let keeps = most_s == 0 || (1..=most_s).contains(&connect.keep_alive_s);
    let keep_alive_s = if keeps || !v5 {
        connect.keep_alive_s
    } else {
        most_s
    };
    let (receive_max, packet_max) = (set.receive_maximum(), set.maximum_packet_size_bytes());
    let partition = clients.ctx.partition_of(session.as_bytes());
    let row = MqttRow {
        session: SessionId::none(partition),
        keep_alive_s,
        packet_id: 0,
        receive_max: receive_max.min(settings.inflight_max),
        packet_bytes_max: packet_max.unwrap_or(u32::MAX),
    };
    let home = clients.ctx.world.placement().home_of(partition);
    let assigned = (v5 && connect.client_id.is_empty()).then(|| client.clone());
    let aliases_max = set.topic_alias_maximum().min(settings.topic_aliases_max);
    let connecting = Connecting {
        assigned,
        server_keep_alive: v5 && !keeps,
        server_expiry: v5 && expiry_s != asked_s,
        no_groups: v5 && clients.ctx.world.is_replicated(),
        given: None,
    };
    if connecting.connack_bytes() > packet_max.unwrap_or(u32::MAX) as usize {
        // [MQTT-3.1.2-24]: the CONNACK does not fit.
        return Err(ReasonCode::PACKET_TOO_LARGE);
    }
    let world = clients.ctx.world.clone();
    let is_recorded = expiry_s > 0 && world.records_sessions();
    let mut will = will;
    // In a cluster a session that ends with its connection is claimed too, so that a client with the same id at another node is disconnected.
    let is_claimed = is_recorded || world.replicates_sessions() && world.appends();
    let recorded = is_claimed.then(|| claim_to_record(clients, will.as_deref_mut()));
    let mqtt = mqtt_state(&mut clients.conns, slot);
    (mqtt.expiry_s, mqtt.will, mqtt.aliases_max) = (expiry_s, will, aliases_max);
    mqtt.token = (recorded.as_ref().filter(|_| is_recorded)).map_or(0, |claim| claim.token);
    mqtt.bridge = connect.bridge;
    mqtt.connecting = Some(Box::new(connecting));
    clients.conns.set_protocol_row(slot, row);
    clients.conns.get_mut(slot).consumer.options |= if packet_max.is_some() { SMALL } else { 0 };
    clients.note(slot, EventKind::SessionOpened, client.as_bytes());
    let hash = xxh3_64_with_seed(session.as_bytes(), clients.ctx.world.seed) as u32;
    let ask = Ask::SessionOpen {
        to: clients.conns.reply_to(slot, 0),
        hash,
        client: session.into(),
        clean: connect.clean_start,
        expiry_s,
        owner: clients.conns.get(slot).consumer.client,
        recorded,
        begins: None,
    };
    lanes.ask(home, |_| ask);
    Ok(())
}

/// The client asked for a session that outlives its connection, and does not get one. A CONNACK of 3.1.1 cannot say so, therefore the operator is told,
/// once for each client.
fn name_short_session(clients: &mut Clients, client: &str) {
    let world = &clients.ctx.world;
    let hash = xxh3_64_with_seed(client.as_bytes(), world.seed) as u32;
    let named = &world.admission.short_sessions;
    if named.has(hash) {
        return;
    }
    clients.meter.stats.short_sessions += 1;
    let notices = &mut clients.meter.notices;
    // A client whose notice is not logged, because another one waits, is counted again when it reconnects.
    if !notices.has(Notice::ShortSession) {
        notices.note(Notice::ShortSession, client.as_bytes());
        named.add(hash);
    }
}

/// What the record of a claim needs. No other session or will has the same token.
fn claim_to_record(clients: &mut Clients, mut will: Option<&mut Will>) -> Box<RecordedClaim> {
    let (own, ctx) = (&mut clients.protocol_state, &clients.ctx);
    let mut next_token = || Party::session(own.next_number(ctx)).number();
    let token = next_token();
    if let Some(will) = &mut will {
        // Homes release all messages of a token at once, so the will must not have that of the session.
        will.token = next_token();
    }
    let bytes = size_of::<RecordedClaim>() + will.as_ref().map_or(0, |will| will.bytes());
    Box::new(RecordedClaim {
        token,
        will: will.map(|will| Box::new(will.clone())),
        charge: InFlightCharge::new(&ctx.world.admission, bytes),
    })
}

/// The client's id, or one that is made for it (section 3.1.3.1).
fn client_id(
    own: &mut ShardState,
    ctx: &Context,
    slot: u32,
    connect: &Connect<'_>,
) -> Result<Box<str>, ReasonCode> {
    let id = connect.client_id;
    let nameless = id.is_empty() && connect.version == Version::V311 && !connect.clean_start;
    if id.len() > CLIENT_ID_BYTES_MAX || nameless {
        return Err(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
    }
    if !id.is_empty() {
        return Ok(id.into());
    }
    let mut id = String::from("crore-");
    let name = own.next_number(ctx);
    // Writing to a string does not fail.
    let _ = write!(id, "{:08x}{name:016x}{slot:x}", ctx.world.epoch);
    Ok(id.into())
}

fn will(
    clients: &mut Clients,
    slot: u32,
    connect: &Connect<'_>,
) -> Result<Option<Box<Will>>, ReasonCode> {
    let Some(will) = &connect.will else {
        return Ok(None);
    };
    let name = will.topic.as_bytes();
    let states = || connect.bridge && is_bridge_state(name);
    let checked = clients.check_publish(slot, name, will.payload.len(), states);
    checked.map_err(|refused| {
        let refused = match refused {
            PublishRefusal::Other(Reason::Reserved) => PublishRefusal::Name(TopicError::Reserved),
            refused => refused,
        };
        clients.refuse_message(slot, ("CONNECT", "topic of the will"), name, refused)
    })?;
    let fields = Fields::read(&will.properties, will.payload, NO_CLIENT, Vec::new())
        .map_err(|fault| clients.refused_fields(slot, "CONNECT", fault, name))?;
    let named = clients.with_publisher(slot, name, &fields.attributes);
    Ok(Some(Box::new(Will {
        delay_s: will.properties.will_delay_interval_s(),
        topic: name.into(),
        data: will.payload.into(),
        headers: Headers {
            content_type: fields.content_type.into(),
            event: fields.event.into(),
            key: fields.key.into(),
            attributes: named.unwrap_or(fields.attributes).into(),
            ttl_s: will.properties.message_expiry_interval_s(),
            qos: will.qos.bits(),
            retain: will.retain,
            binary: is_binary(fields.content_type, will.payload),
        },
        client: clients.conns.get(slot).consumer.client,
        token: 0,
    })))
}
