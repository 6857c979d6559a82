//! Authentication of MQTT connections: by the CONNECT's user and password, a token in the place of the password, or the
//! credential of the upgrade to WebSocket.
//!
//! Invariants: a session belongs to one user: no client takes over another user's session, or reads its messages. For this, the session's
//! name at the home is the client id, a NUL and the user's name. No client id has a NUL [MQTT-1.5.4-2]. On a server where users are known,
//! the name for an anonymous client is the client id and the NUL. An anonymous client's session ends with its connection.

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
use crate::protocol::mqtt::client::{self, awaits_verdict, mqtt_state};
use crate::protocol::mqtt::close::mqtt_end;
use crate::protocol::mqtt::state::{Asked, Inflight};
use crate::store::slab::NONE;

/// The first characters of a JWT: `{"` in base64 (RFC 7519 section 3.1, RFC 7515 section 7.1).
const JWT_BEGINS: &[u8] = b"eyJ";

/// Ends the client if it has something that it would not be granted now; false when it stays. An anonymous client's session is
/// not kept, and a will that is not granted is not published.
pub(crate) fn mqtt_review<I: Io>(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    io: &mut I,
) -> bool {
    let Some(reason) = mqtt_loses(clients, subs, slot) else {
        return false;
    };
    let (known, may_will) = (
        grants_of(&clients.conns, slot).is_some(),
        may_will(clients, slot).is_ok(),
    );
    if client::mqtt(&clients.conns, slot).is_some() {
        let mqtt = mqtt_state(&mut clients.conns, slot);
        mqtt.expiry_s = if known { mqtt.expiry_s } else { 0 };
        mqtt.will = mqtt.will.take().filter(|_| may_will);
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
    let known = client::mqtt(&clients.conns, slot).is_some_and(|mqtt| mqtt.asked.is_some());
    let closed = clients.ctx.world.settings.access.closed;
    if !closed || known || clients.conns.get(slot).link.has(TURNED_AWAY) {
        return false;
    }
    let who = match credential(connect) {
        None => Some(Ok(None)),
        Some(credential) => look_up_credential(clients, census, gate, slot, credential, io),
    };
    let asked = who.map_or(Asked::Pending, Asked::Answered);
    let waits = matches!(asked, Asked::Pending);
    mqtt_state(&mut clients.conns, slot).asked = Some(Box::new(asked));
    if waits {
        pause_for_verdict(&mut clients.conns, slot, io);
    }
    waits
}

/// The verdict on the client's credential has come.
pub(crate) fn mqtt_verdict(
    clients: &mut Clients,
    queues: &mut Queues,
    conn: ConnId,
    who: Identity,
) {
    if awaits_verdict(&clients.conns, conn.slot) {
        mqtt_state(&mut clients.conns, conn.slot).asked = Some(Box::new(Asked::Answered(who)));
        queues.resume_later(clients, conn);
    }
}

/// From here on the connection is this client's.
pub(super) fn connect_as(clients: &mut Clients, slot: u32) -> Result<(), ReasonCode> {
    if client::mqtt(&clients.conns, slot).is_none() {
        return Ok(());
    }
    match mqtt_state(&mut clients.conns, slot)
        .asked
        .take()
        .map(|asked| *asked)
    {
        None => Ok(()),
        // The CONNECT waits for the verdict.
        Some(Asked::Pending) => Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR),
        Some(Asked::Answered(who)) => clients.set_identity(slot, Some(who)).map_err(|reason| {
            clients.scratch.note_close_reason(reason.row().closed);
            clients.refuse_packet(slot, reason)
        }),
    }
}

/// How many seconds the client's session may outlive its connection: none for an anonymous client, who could fill the
/// table of sessions with names that mean nothing.
///
/// # Errors
/// The client is anonymous, and nothing that MQTT could ask for is open to everybody.
pub(super) fn session_expiry_most_s(clients: &mut Clients, slot: u32) -> Result<u32, ReasonCode> {
    let most_s = session_may_last_s(clients, slot);
    most_s.ok_or_else(|| {
        let reason = Reason::ConnectNeedsCredentials;
        clients.meter.notices.note_with_reason(
            Notice::Denied,
            "an MQTT client came without credentials, and nothing is open to everybody: ",
            reason.text().as_bytes(),
        );
        clients.refuse_packet(slot, reason)
    })
}

/// The same; `None` for a client that may have no session at all.
fn session_may_last_s(clients: &Clients, slot: u32) -> Option<u32> {
    let settings = &clients.ctx.world.settings;
    if !settings.access.closed || grants_of(&clients.conns, slot).is_some() {
        let lasts = clients.ctx.world.keeps_sessions();
        return Some(if lasts {
            settings.mqtt.session_expiry_max_s
        } else {
            0
        });
    }
    clients.is_something_open().then_some(0)
}

/// The name of this client's session at its home.
pub(super) fn session_name(clients: &Clients, slot: u32, client: &str) -> Box<str> {
    let closed = clients.ctx.world.settings.access.closed;
    match grants_of(&clients.conns, slot).map(|grants| grants.user()) {
        None if !closed => client.into(),
        Some("") => client.into(),
        nobody_or_user => {
            let user = nobody_or_user.unwrap_or_default();
            let mut name = String::with_capacity(client.len() + 1 + user.len());
            name.push_str(client);
            name.push('\0');
            name.push_str(user);
            name.into()
        }
    }
}

/// The same of a client that is not here; one without a user has none of its own where users are known.
pub(crate) fn session_named(client_id: &[u8], user: &[u8]) -> Vec<u8> {
    match user {
        [] => client_id.into(),
        user => [client_id, user].join(&0),
    }
}

/// The client id in what [`session_name`] made of it; MQTT's strings hold no zero.
pub(crate) fn client_id_in(session_name: &[u8]) -> &[u8] {
    let end = session_name.iter().position(|byte| *byte == 0);
    &session_name[..end.unwrap_or(session_name.len())]
}

/// The user in it, or empty.
pub(crate) fn user_in(session_name: &[u8]) -> &[u8] {
    let begin = client_id_in(session_name).len() + 1;
    session_name.get(begin..).unwrap_or_default()
}

/// Why the client would not be granted now what it has: its session, its will, its subscriptions.
fn mqtt_loses(clients: &Clients, subs: &Subscriptions, slot: u32) -> Option<Reason> {
    let row = clients.conns.get(slot);
    if row.consumer.protocol_row == NONE {
        return None;
    }
    let extra = (row.extra() != NONE).then(|| clients.conns.extra_of(slot));
    let list = extra.into_iter().flat_map(|extra| &extra.list);
    let groups = list.filter_map(|sub| sub.protocol_state.group.as_deref());
    let mut judged = groups.map(|shared| unshared(&shared.text));
    let judged = judged.try_for_each(|filter| clients.check_right(slot, Right::Subscribe, filter));
    let judged = judged.and_then(|()| may_will(clients, slot));
    if let Err(denied) = judged.and_then(|()| clients.check_subscriptions(subs, slot)) {
        return Some(denied);
    }
    if grants_of(&clients.conns, slot).is_some() {
        return None;
    }
    let expiry_s = client::mqtt(&clients.conns, slot).map_or(0, |mqtt| mqtt.expiry_s);
    match session_may_last_s(clients, slot) {
        None => Some(Reason::ConnectNeedsCredentials),
        Some(most_s) => (expiry_s > most_s).then_some(Reason::SessionNeedsCredentials),
    }
}

fn may_will(clients: &Clients, slot: u32) -> Result<(), Reason> {
    let will = client::mqtt(&clients.conns, slot).and_then(|mqtt| mqtt.will.as_deref());
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

/// The messages among these that the client may still have.
pub(super) fn permitted_messages(
    clients: &Clients,
    slot: u32,
    mut sent: VecDeque<Inflight>,
) -> VecDeque<Inflight> {
    if clients.ctx.world.settings.access.closed {
        sent.retain(|sent| {
            let topic = sent.topic();
            topic.is_empty() || clients.check_right(slot, Right::Subscribe, topic).is_ok()
        });
    }
    sent
}

/// The credential of a CONNECT.
fn credential<'a>(connect: &Connect<'a>) -> Option<Credential<'a>> {
    let password = connect.password.unwrap_or_default();
    // A token that was read from a file ends in a line end; of a password it would be a part.
    let token = password.trim_ascii();
    if token.starts_with(JWT_BEGINS) && token.iter().filter(|b| **b == b'.').count() == 2 {
        return Some(Credential::Token(token));
    }
    let user = connect.user_name.unwrap_or_default().as_bytes();
    let came = connect.user_name.is_some() || connect.password.is_some();
    came.then_some(Credential::Password { user, password })
}
