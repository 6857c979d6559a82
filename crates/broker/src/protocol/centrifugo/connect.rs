//! The connect command: who the client is, and what it is told of the server.

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Answer, Connect, ConnectResult, Payload, SubscribeResult};

use crate::base::journal::EventKind;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::grants_of;
use crate::protocol::centrifugo::options::{CONNECTED, VERSION};
use crate::protocol::centrifugo::ping::begin_pings;
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::centrifugo::reply::{Refused, write_reply};
use crate::protocol::centrifugo::server_side::begin_by_token;
use crate::protocol::centrifugo::state::client_id;
use crate::protocol::centrifugo::tokens::ttl_of_connection;
use crate::protocol::front::{Clients, Subscriptions};

/// Carries out the connect command. Without a token, the client is the one of the upgrade.
pub(super) fn client_connects(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, connect): (u32, &Connect<'_>),
    verdict: Option<Identity>,
) -> Result<(), Refused> {
    if clients.conns.get(slot).wants(CONNECTED) {
        return Err(Refused::bad("there was a connect before"));
    }
    let has_verdict = verdict.is_some();
    if let Some(who) = verdict {
        let entered = clients.enter_as(slot, Some(who));
        entered.map_err(|reason| refuse_token(clients, slot, reason))?;
    }
    if !may_connect(clients, slot) {
        let reason = Reason::ConnectNeedsCredentials;
        clients.note_denied(slot, reason, b"a connection");
        clients.refused(slot, reason);
        let code = Disconnect::PERMISSION_DENIED;
        return Err(Refused::End(code, code.text.into()));
    }
    if !has_verdict || !begin_by_token(clients, subs, slot, (id, connect))? {
        finish_connect(clients, slot, id, &[]);
    }
    Ok(())
}

/// The client is connected, with these subscriptions of the server.
pub(super) fn finish_connect(
    clients: &mut Clients,
    slot: u32,
    id: u32,
    subs: &[(&str, SubscribeResult<'_>)],
) {
    let row = clients.conns.get_mut(slot);
    row.consumer.options |= CONNECTED;
    begin_pings(clients, slot);
    let client = client_id(clients, slot);
    clients.note(slot, EventKind::SessionOpened, client.as_bytes());
    let ping_s = clients.ctx.world.settings.centrifugo.ping_interval_s;
    let result = ConnectResult {
        client: &client,
        version: VERSION,
        ttl: ttl_of_connection(clients, slot),
        data: Payload::Value(b""),
        subs,
        ping: ping_s,
        pong: ping_s > 0,
        session: "",
        node: "",
    };
    write_reply(clients, slot, id, Answer::Connect(result));
}

/// An expired token gets an error, so that the client asks for a new one and connects again.
fn refuse_token(clients: &mut Clients, slot: u32, reason: Reason) -> Refused {
    match error_of(reason) {
        ErrorCode::TOKEN_EXPIRED | ErrorCode::INTERNAL => {
            Refused::for_reason(clients, slot, reason)
        }
        _ => {
            clients.refused(slot, reason);
            Refused::End(Disconnect::INVALID_TOKEN, reason.text().into())
        }
    }
}

/// A client without credentials may connect where something is open to everybody.
fn may_connect(clients: &Clients, slot: u32) -> bool {
    !clients.ctx.world.settings.access.closed
        || grants_of(&clients.conns, slot).is_some()
        || clients.is_something_open()
}
