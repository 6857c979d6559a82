//! The connect command: who the client is.

use crore_wire::centrifugo::Connect;
use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};

use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::grants_of;
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::centrifugo::reply::Refused;
use crate::protocol::centrifugo::server_side::begin_by_token;
use crate::protocol::centrifugo::tokens::names_channel;
use crate::protocol::centrifugo::welcome::finish_connect;
use crate::protocol::front::{Clients, Subscriptions};

/// Carries out the connect command. Without a token, the client is the one of the upgrade.
pub(super) fn client_connects(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, connect): (u32, &Connect<'_>),
    verdict: Option<Identity>,
) -> Result<(), Refused> {
    if clients.conns.get(slot).has_option(CONNECTED) {
        return Err(Refused::bad("there was a connect before"));
    }
    let has_verdict = verdict.is_some();
    if let Some(who) = verdict {
        if who.is_ok() && names_channel(connect.token) {
            return Err(Refused::End(
                Disconnect::INVALID_TOKEN,
                Reason::TokenOfSubscription.text().into(),
            ));
        }
        let entered = clients.set_identity(slot, Some(who));
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
