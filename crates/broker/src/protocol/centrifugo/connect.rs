//! Carries out the connect command, which tells who the client is.

use crore_wire::centrifugo::Connect;
use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};

use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::grants_of;
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::centrifugo::reply::CommandRefusal;
use crate::protocol::centrifugo::server_side::begin_by_token;
use crate::protocol::centrifugo::tokens::names_channel;
use crate::protocol::centrifugo::welcome::finish_connect;
use crate::protocol::front::{Clients, Subscriptions};

/// Carries out the connect command. Without a token in it, the client keeps the identity of the HTTP request that began the connection.
pub(super) fn handle_connect(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, connect): (u32, &Connect<'_>),
    verdict: Option<Identity>,
) -> Result<(), CommandRefusal> {
    if clients.conns.get(slot).has_option(CONNECTED) {
        return Err(CommandRefusal::bad_request("there was a connect before"));
    }
    let has_verdict = verdict.is_some();
    if let Some(identity) = verdict {
        if identity.is_ok() && names_channel(connect.token) {
            return Err(CommandRefusal::End(
                Disconnect::INVALID_TOKEN,
                Reason::TokenOfSubscription.text().into(),
            ));
        }
        let identified = clients.set_identity(slot, Some(identity));
        identified.map_err(|reason| refusal_of_token(clients, slot, reason))?;
    }
    if !may_connect(clients, slot) {
        let reason = Reason::ConnectNeedsCredentials;
        clients.report_denied(slot, reason, b"a connection");
        clients.refused(slot, reason);
        let code = Disconnect::PERMISSION_DENIED;
        return Err(CommandRefusal::End(code, code.text.into()));
    }
    if !has_verdict || !begin_by_token(clients, subs, slot, (id, connect))? {
        finish_connect(clients, slot, id, &[]);
    }
    Ok(())
}

/// The refusal of a token. An expired one gets an error, so that the client asks for a new token and connects again. Others end the connection.
fn refusal_of_token(clients: &mut Clients, slot: u32, reason: Reason) -> CommandRefusal {
    match error_of(reason) {
        ErrorCode::TOKEN_EXPIRED | ErrorCode::INTERNAL => {
            CommandRefusal::for_reason(clients, slot, reason)
        }
        _ => {
            clients.refused(slot, reason);
            CommandRefusal::End(Disconnect::INVALID_TOKEN, reason.text().into())
        }
    }
}

/// Whether the client may connect. Without credentials it may if something is open to everybody.
fn may_connect(clients: &Clients, slot: u32) -> bool {
    !clients.ctx.world.settings.access.closed
        || grants_of(&clients.conns, slot).is_some()
        || clients.is_something_open()
}
