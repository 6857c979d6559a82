//! Reads the claims of tokens that only this protocol has. The verifier has accepted the token, and has read its other claims.
//!
//! Invariant: these claims grant nothing but the channels that a connection token names (`server_side`), and move only the end of what a token grants.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use crore_wire::centrifugo::codes::Disconnect;
use crore_wire::centrifugo::decode::Scratch;
use crore_wire::centrifugo::{ClaimedData, ConnectClaims, Error, decode};

use crate::base::access::VerifiedClient;
use crate::base::reason::Reason;
use crate::protocol::centrifugo::reply::CommandRefusal;
use crate::protocol::centrifugo::state::backend_mut;
use crate::protocol::front::Clients;

/// The claims of a token, as JSON. A credential that is no JWT has none.
pub(super) fn claims_of(token: &str) -> Vec<u8> {
    let claims = token.split('.').nth(1);
    let claims = claims.and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
    claims.unwrap_or_else(|| b"{}".into())
}

/// Reads the claims of a connection token.
pub(super) fn read_connect_claims<'a>(
    clients: &Clients,
    claims: &'a [u8],
    scratch: &'a mut Scratch,
) -> Result<ConnectClaims<'a>, CommandRefusal> {
    let subscriptions_max = clients.ctx.world.settings.limits.subscriptions_max();
    decode::connect_claims(claims, scratch, subscriptions_max).map_err(|error| {
        let code = match error {
            Error::TooManySubs => Disconnect::CHANNEL_LIMIT,
            _ => Disconnect::INVALID_TOKEN,
        };
        CommandRefusal::End(code, alloc::format!("the token's claims: {error}").into())
    })
}

/// Applies what a connection token says of the connection: when it ends, and what calls to the backend repeat.
pub(super) fn apply_connect_claims(
    clients: &mut Clients,
    slot: u32,
    claims: &ConnectClaims<'_>,
) -> Result<(), Reason> {
    if let Some((grants, until_unix_s)) = clients.conns.grants.get(slot) {
        let (grants, until_unix_s) = (grants.clone(), end_of(claims.expire_at, until_unix_s));
        if until_unix_s <= clients.ctx.wall_s() {
            return Err(Reason::TokenExpired);
        }
        let known = VerifiedClient {
            grants,
            until_unix_s,
        };
        clients.conns.grants.set(slot, known);
    }
    // Without a backend nobody reads it, and each of a million connections may have its own.
    if !claims.meta.is_empty() && !clients.ctx.world.settings.backend_calls.is_empty() {
        backend_mut(&mut clients.conns, slot).meta = claims.meta.into();
    }
    Ok(())
}

/// The Unix second in which the grant of a token ends: that of its claim `expire_at`, or else that of the token itself.
pub(super) fn end_of(expire_at: Option<u64>, until_unix_s: u32) -> u32 {
    match expire_at {
        None => until_unix_s,
        Some(0) => u32::MAX,
        Some(unix_s) => u32::try_from(unix_s).unwrap_or(u32::MAX),
    }
}

/// The data of a token for the client; empty without any.
pub(super) fn data_of(data: ClaimedData<'_>) -> Result<Cow<'_, [u8]>, &'static str> {
    match data.base64 {
        "" => Ok(data.json.into()),
        base64 => {
            let decoded = STANDARD.decode(base64);
            decoded.map_or(Err("the token's b64data is not Base64"), |it| Ok(it.into()))
        }
    }
}
