//! Authentication of MQTT connections: by the CONNECT's user and password, a token in the place of the password, or the
//! credential of the upgrade to WebSocket.
//!
//! Invariants: a session belongs to one user. No client takes over another user's session, or reads its messages. For this, the session's
//! name at the home is the client id, a NUL and the user's name. No client id has a NUL [MQTT-1.5.4-2]. While access control is on,
//! the name for an anonymous client is the client id and the NUL. An anonymous client's session then ends with its connection.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::mqtt::{Connect, ReasonCode, split_shared};

use crate::base::access::{Credential, Right};
use crate::base::ids::ConnId;
use crate::base::notices::Notice;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::{grants_of, look_up_credential, pause_for_verdict};
use crate::client::row::TURNED_AWAY;
use crate::io::Io;
use crate::protocol::front::{Census, Clients, Gate, Queues, Subscriptions};
use crate::protocol::mqtt::client::{self, awaits_verdict, mqtt_state_mut};
use crate::protocol::mqtt::close::mqtt_end;
use crate::protocol::mqtt::state::{CredentialCheck, Inflight};
use crate::store::slab::NONE;

/// The first characters of a JWT: `{"` in base64 (RFC 7519 section 3.1, RFC 7515 section 7.1).
const JWT_PREFIX: &[u8] = b"eyJ";

/// Ends the connection if the client has something that new settings would not grant: its session, will or a subscription. Returns whether it
/// ends. Then an anonymous client's session is not kept, and a will without the right to publish it is not published.
pub(crate) fn end_if_right_lost<I: Io>(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    io: &mut I,
) -> bool {
    let Some(reason) = find_lost_right(clients, subs, slot) else {
        return false;
    };
    let (is_user, may_publish_will) = (
        grants_of(&clients.conns, slot).is_some(),
        may_publish_will(clients, slot).is_ok(),
    );
    if client::mqtt_state(&clients.conns, slot).is_some() {
        let mqtt = mqtt_state_mut(&mut clients.conns, slot);
        mqtt.expiry_s = if is_user { mqtt.expiry_s } else { 0 };
        mqtt.will = mqtt.will.take().filter(|_| may_publish_will);
    }
    mqtt_end(clients, slot, reason, io);
    true
}

/// Whether the CONNECT must wait for the verdict on its credential.
pub(super) fn waits_for_verdict<I: Io>(
    clients: &mut Clients,
    census: &Census,
    gate: &mut Gate,
    slot: u32,
    connect: &Connect<'_>,
    io: &mut I,
) -> bool {
    let is_checked = client::mqtt_state(&clients.conns, slot)
        .is_some_and(|mqtt| mqtt.credential_check.is_some());
    let is_closed = clients.ctx.world.settings.access.closed;
    if !is_closed || is_checked || clients.conns.get(slot).link.has(TURNED_AWAY) {
        return false;
    }
    let verdict = match credential(connect) {
        None => Some(Ok(None)),
        Some(credential) => look_up_credential(clients, census, gate, slot, credential, io),
    };
    let check = verdict.map_or(CredentialCheck::Pending, CredentialCheck::Answered);
    let is_pending = matches!(check, CredentialCheck::Pending);
    mqtt_state_mut(&mut clients.conns, slot).credential_check = Some(Box::new(check));
    if is_pending {
        pause_for_verdict(&mut clients.conns, slot, io);
    }
    is_pending
}

/// Takes the verdict on the client's credential, and continues with the CONNECT.
pub(crate) fn mqtt_handle_verdict(
    clients: &mut Clients,
    queues: &mut Queues,
    conn: ConnId,
    verdict: Identity,
) {
    if awaits_verdict(&clients.conns, conn.slot) {
        mqtt_state_mut(&mut clients.conns, conn.slot).credential_check =
            Some(Box::new(CredentialCheck::Answered(verdict)));
        queues.resume_later(clients, conn);
    }
}

/// Gives the connection the identity in the verdict, if there is one.
pub(super) fn apply_verdict(clients: &mut Clients, slot: u32) -> Result<(), ReasonCode> {
    if client::mqtt_state(&clients.conns, slot).is_none() {
        return Ok(());
    }
    match mqtt_state_mut(&mut clients.conns, slot)
        .credential_check
        .take()
        .map(|asked| *asked)
    {
        None => Ok(()),
        // Cannot happen: the CONNECT waits for the verdict.
        Some(CredentialCheck::Pending) => Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR),
        Some(CredentialCheck::Answered(identity)) => clients
            .set_identity(slot, Some(identity))
            .map_err(|reason| {
                clients.scratch.set_close_reason(reason.row().closed);
                clients.refuse_packet(slot, reason)
            }),
    }
}

/// How many seconds the client's session may outlive its connection. 0 for an anonymous client while access control is on: it could fill the table of
/// sessions with invented names.
///
/// # Errors
/// The client is anonymous, and nothing that MQTT could ask for is open to everybody.
pub(super) fn allowed_expiry_max_s(clients: &mut Clients, slot: u32) -> Result<u32, ReasonCode> {
    let max_s = expiry_max_s(clients, slot);
    max_s.ok_or_else(|| {
        let reason = Reason::ConnectNeedsCredentials;
        clients.meter.notices.note_with_reason(
            Notice::Denied,
            "an MQTT client came without credentials, and nothing is open to everybody: ",
            reason.text().as_bytes(),
        );
        clients.refuse_packet(slot, reason)
    })
}

/// How many seconds the client's session may outlive its connection; `None` for a client that may have no session at all.
fn expiry_max_s(clients: &Clients, slot: u32) -> Option<u32> {
    let settings = &clients.ctx.world.settings;
    if !settings.access.closed || grants_of(&clients.conns, slot).is_some() {
        let keeps_sessions = clients.ctx.world.keeps_sessions();
        return Some(if keeps_sessions {
            settings.mqtt.session_expiry_max_s
        } else {
            0
        });
    }
    clients.is_something_open().then_some(0)
}

/// The name of this client's session at its home.
pub(super) fn session_name(clients: &Clients, slot: u32, client_id: &str) -> Box<str> {
    let is_closed = clients.ctx.world.settings.access.closed;
    match grants_of(&clients.conns, slot).map(|grants| grants.user()) {
        None if !is_closed => client_id.into(),
        Some("") => client_id.into(),
        nobody_or_user => {
            let user = nobody_or_user.unwrap_or_default();
            let mut name = String::with_capacity(client_id.len() + 1 + user.len());
            name.push_str(client_id);
            name.push('\0');
            name.push_str(user);
            name.into()
        }
    }
}

/// The name of the session of a client id and a user, who may be empty.
pub(crate) fn session_name_of(client_id: &[u8], user: &[u8]) -> Vec<u8> {
    match user {
        [] => client_id.into(),
        user => [client_id, user].join(&0),
    }
}

/// The client id in the name of a session. MQTT's strings contain no NUL.
pub(crate) fn client_id_of_session(session_name: &[u8]) -> &[u8] {
    let id_bytes = session_name.iter().position(|byte| *byte == 0);
    &session_name[..id_bytes.unwrap_or(session_name.len())]
}

/// The user in the name of a session, or empty.
pub(crate) fn user_of_session(session_name: &[u8]) -> &[u8] {
    let user_start = client_id_of_session(session_name).len() + 1;
    session_name.get(user_start..).unwrap_or_default()
}

/// The reason why the client would not be granted its session, its will or its subscriptions now.
fn find_lost_right(clients: &Clients, subs: &Subscriptions, slot: u32) -> Option<Reason> {
    let row = clients.conns.get(slot);
    if row.consumer.protocol_row == NONE {
        return None;
    }
    let side_row = (row.side_row() != NONE).then(|| clients.conns.side_row(slot));
    let list = side_row.into_iter().flat_map(|side_row| &side_row.list);
    let groups = list.filter_map(|sub| sub.protocol_state.group.as_deref());
    let mut checked = groups.map(|shared| unshared(&shared.name));
    let checked =
        checked.try_for_each(|filter| clients.check_right(slot, Right::Subscribe, filter));
    let checked = checked.and_then(|()| may_publish_will(clients, slot));
    if let Err(denied) = checked.and_then(|()| clients.check_subscriptions(subs, slot)) {
        return Some(denied);
    }
    if grants_of(&clients.conns, slot).is_some() {
        return None;
    }
    let expiry_s = client::mqtt_state(&clients.conns, slot).map_or(0, |mqtt| mqtt.expiry_s);
    match expiry_max_s(clients, slot) {
        None => Some(Reason::ConnectNeedsCredentials),
        Some(max_s) => (expiry_s > max_s).then_some(Reason::SessionNeedsCredentials),
    }
}

fn may_publish_will(clients: &Clients, slot: u32) -> Result<(), Reason> {
    let will = client::mqtt_state(&clients.conns, slot).and_then(|mqtt| mqtt.will.as_deref());
    will.map_or(Ok(()), |will| {
        clients.check_right(slot, Right::Publish, &will.topic)
    })
}

/// Whether the client may still have this subscription of its session.
pub(super) fn may_keep_subscription(clients: &Clients, slot: u32, name: &[u8]) -> bool {
    clients
        .check_right(slot, Right::Subscribe, unshared(name))
        .is_ok()
}

/// The filter without the share name of a shared subscription.
fn unshared(filter: &[u8]) -> &[u8] {
    split_shared(filter).map_or(filter, |(_, filter)| filter)
}

/// Keeps those of the messages that the client may still have.
pub(super) fn permitted_messages(
    clients: &Clients,
    slot: u32,
    mut messages: VecDeque<Inflight>,
) -> VecDeque<Inflight> {
    if clients.ctx.world.settings.access.closed {
        messages.retain(|messages| {
            let topic = messages.topic();
            topic.is_empty() || clients.check_right(slot, Right::Subscribe, topic).is_ok()
        });
    }
    messages
}

/// The credential of a CONNECT.
fn credential<'a>(connect: &Connect<'a>) -> Option<Credential<'a>> {
    let password = connect.password.unwrap_or_default();
    // A token that was read from a file often ends with a line break. In a password, a line break would be a part of it.
    let token = password.trim_ascii();
    if token.starts_with(JWT_PREFIX) && token.iter().filter(|b| **b == b'.').count() == 2 {
        return Some(Credential::Token(token));
    }
    let user = connect.user_name.unwrap_or_default().as_bytes();
    let is_given = connect.user_name.is_some() || connect.password.is_some();
    is_given.then_some(Credential::Password { user, password })
}
