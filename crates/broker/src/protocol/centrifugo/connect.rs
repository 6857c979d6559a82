//! Carries out the connect command, which tells who the client is.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Connect, Scratch};

use crate::base::access::VerifiedClient;
use crate::base::call_kind::CallKind;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::grants_of;
use crate::mail::backend::ConnectGrant;
use crate::protocol::centrifugo::claims::{apply_connect_claims, claims_of, read_connect_claims};
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::centrifugo::reply::CommandRefusal;
use crate::protocol::centrifugo::server_side::{WantedChannel, begin_by_token, begin_channels};
use crate::protocol::centrifugo::state::backend_mut;
use crate::protocol::centrifugo::tokens::{names_channel, renewal_of};
use crate::protocol::centrifugo::welcome::finish_connect;
use crate::protocol::front::{Clients, Subscriptions};

/// Carries out the connect command. Without a token in it, the client is who the backend says (`granted`, if it was asked), or keeps the identity of the HTTP
/// request that began the connection.
pub(super) fn handle_connect(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, connect): (u32, &Connect<'_>),
    (verdict, granted): (Option<Identity>, Option<ConnectGrant>),
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
    if let Some(granted) = &granted {
        take_identity(clients, slot, granted)?;
    }
    if !may_connect(clients, slot) {
        let reason = Reason::ConnectNeedsCredentials;
        clients.report_denied(slot, reason, b"a connection");
        clients.refused(slot, reason);
        let code = Disconnect::PERMISSION_DENIED;
        return Err(CommandRefusal::End(code, code.text.into()));
    }
    match granted {
        Some(granted) => {
            let names = channel_names(&clients.ctx.world);
            let topics = granted
                .subs
                .iter()
                .map(|(channel, sub)| (names.exchange(channel), sub));
            let topics: Vec<_> = topics.collect();
            let wanted = topics.iter().map(|(topic, sub)| WantedChannel {
                channel: topic,
                data: &sub.data,
                until_unix_s: sub.until_unix_s,
                join_leave: false,
            });
            let wanted: Vec<_> = wanted.collect();
            begin_channels(clients, subs, slot, (id, connect), (&wanted, &granted.data))
        }
        None if has_verdict => {
            let claims = claims_of(connect.token);
            let mut scratch = Scratch::new(channel_names(&clients.ctx.world));
            let claims = read_connect_claims(clients, &claims, &mut scratch)?;
            apply_connect_claims(clients, slot, &claims)
                .map_err(|reason| refusal_of_token(clients, slot, reason))?;
            begin_by_token(clients, subs, slot, (id, connect), &claims)
        }
        None => {
            finish_connect(clients, slot, (id, b""), &[]);
            Ok(())
        }
    }
}

/// The client is who the backend says, until then.
fn take_identity(
    clients: &mut Clients,
    slot: u32,
    granted: &ConnectGrant,
) -> Result<(), CommandRefusal> {
    let until_unix_s = granted.until_unix_s;
    if until_unix_s <= clients.ctx.wall_s() {
        let code = Disconnect::EXPIRED;
        return Err(CommandRefusal::End(code, code.text.into()));
    }
    let known = VerifiedClient {
        grants: Arc::new(granted.grants.clone()),
        until_unix_s,
    };
    if let Err(reason) = clients.check_identity(Ok(Some(known.clone()))) {
        return Err(refusal_of_token(clients, slot, reason));
    }
    clients.conns.grants.set(slot, known);
    let renewal = renewal_of(clients, CallKind::Refresh, until_unix_s);
    if renewal.is_some() || !granted.meta.is_empty() {
        let backend = backend_mut(&mut clients.conns, slot);
        (backend.renewal, backend.meta) = (renewal, granted.meta.clone());
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
