//! Handles the tokens in commands: those of the connection, and those of single subscriptions. The verifier checks them like the tokens of every protocol.
//!
//! A subscription token must be of the connection's user. It either names the channel in its claim `channel`, as Centrifugo's tokens do, or grants the right to
//! subscribe to it. Invariant: what a token grants ends with the token, or at its claim `expire_at`. A client is told to renew the token some seconds earlier.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Answer, Request, Scratch, Ttl, decode};

use crate::base::access::{Credential, Grants, Right, VerifiedClient};
use crate::base::call_kind::CallKind;
use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::{grants_of, look_up_credential, pause_for_verdict};
use crate::io::Io;
use crate::protocol::centrifugo::claims::{
    apply_connect_claims, claims_of, data_of, end_of, read_connect_claims,
};
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::VERSION;
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_reply};
use crate::protocol::centrifugo::state::{
    Renewal, TokenCheck, backend_mut, client_id, renewal_of_connection, state, state_mut,
};
use crate::protocol::front::{Clients, Front, Queues};

/// What has an end is renewed this many seconds before, or after half of the time that is left, if that is later. The backend may be asked earlier.
const RENEWS_EARLY_S: u32 = 10;

/// The token of a command; empty without one.
fn token_of<'a>(request: &Request<'a>) -> &'a str {
    match request {
        Request::Connect(connect) => connect.token,
        Request::Subscribe(subscribe) => subscribe.token,
        Request::Refresh(token) => token,
        Request::SubRefresh(refresh) => refresh.token,
        _ => "",
    }
}

/// Whether a command must wait for the verdict on its token. Asks for the verdict if nobody has.
pub(super) fn waits_for_verdict<I: Io>(
    front: &mut Front,
    slot: u32,
    request: &Request<'_>,
    io: &mut I,
) -> bool {
    let Front {
        clients,
        census,
        gate,
        ..
    } = front;
    let token = token_of(request);
    let is_known = state(&clients.conns, slot).is_some_and(|it| it.token_check.is_some());
    if is_known || token.is_empty() || !clients.ctx.world.settings.access.closed {
        return false;
    }
    let credential = Credential::Token(token.as_bytes());
    let verdict = look_up_credential(clients, census, gate, slot, credential, io);
    let is_pending = verdict.is_none();
    let check = verdict.map_or(TokenCheck::Pending, TokenCheck::Answered);
    state_mut(&mut clients.conns, slot).token_check = Some(Box::new(check));
    if is_pending {
        pause_for_verdict(&mut clients.conns, slot, io);
    }
    is_pending
}

/// Whether the connection waits for a verdict.
pub(super) fn awaits_verdict_on_token(clients: &Clients, slot: u32) -> bool {
    let check = state(&clients.conns, slot).and_then(|it| it.token_check.as_deref());
    matches!(check, Some(TokenCheck::Pending))
}

/// Whether the connection has a command with a token that is not carried out yet.
pub(super) fn has_token_check(clients: &Clients, slot: u32) -> bool {
    state(&clients.conns, slot).is_some_and(|it| it.token_check.is_some())
}

/// Takes the verdict on the token of a command, and continues with the command.
pub(super) fn centrifugo_handle_verdict(
    clients: &mut Clients,
    queues: &mut Queues,
    conn: ConnId,
    verdict: Identity,
) {
    if awaits_verdict_on_token(clients, conn.slot) {
        state_mut(&mut clients.conns, conn.slot).token_check =
            Some(Box::new(TokenCheck::Answered(verdict)));
        queues.resume_later(clients, conn);
    }
}

/// Takes the verdict on the token of the command that is carried out now, so that no other command uses it. `None` if the command has no token, or access
/// control is off.
pub(super) fn take_verdict(clients: &mut Clients, slot: u32) -> Option<Identity> {
    state(&clients.conns, slot)?.token_check.as_ref()?;
    let check = state_mut(&mut clients.conns, slot).token_check.take();
    match check.map(|check| *check) {
        Some(TokenCheck::Answered(verdict)) => Some(verdict),
        _ => None,
    }
}

/// The seconds after which a client is told to renew what ends in this Unix second. `None` also where tokens are not read, since a client renews with a token.
pub(super) fn ttl_of(clients: &Clients, until_unix_s: u32) -> Ttl {
    match clients.ctx.world.settings.access.closed {
        true => {
            seconds_until(clients, until_unix_s).map(|left_s| (left_s - early_s(left_s)).max(1))
        }
        false => None,
    }
}

/// The seconds until something ends; `None` without an end.
fn seconds_until(clients: &Clients, until_unix_s: u32) -> Option<u32> {
    let left_s = until_unix_s.saturating_sub(clients.ctx.wall_s());
    (until_unix_s != u32::MAX).then_some(left_s)
}

/// How long before its end something is renewed at the latest, in seconds.
fn early_s(left_s: u32) -> u32 {
    RENEWS_EARLY_S.min(left_s / 2)
}

/// The renewal of a grant of the backend with this end; `None` if it has no end, or backends do not answer such calls.
///
/// Many grants may have one end. So that the backend is not asked about all of them at once, the questions are spread over a quarter of the time that is left.
pub(super) fn renewal_of(
    clients: &mut Clients,
    kind: CallKind,
    until_unix_s: u32,
) -> Option<Renewal> {
    if !clients.ctx.world.settings.backend_calls.has(kind) {
        return None;
    }
    let left_s = seconds_until(clients, until_unix_s)?;
    let early_s = early_s(left_s);
    let range_s = (left_s / 4).min(left_s / 2 - early_s);
    let count = &mut clients.protocol_state.renewal_count;
    *count = count.wrapping_add(1);
    // Multiples of the golden ratio, whose fractions are spread evenly however many there are.
    let fraction = count.wrapping_mul(0x9E37_79B9);
    let spread_s = (u64::from(fraction) * (u64::from(range_s) + 1)) >> u32::BITS;
    Some(Renewal {
        ask_unix_s: until_unix_s - early_s - spread_s as u32,
        pending: None,
    })
}

/// The seconds after which the client is told to renew its connection token.
pub(super) fn ttl_of_connection(clients: &Clients, slot: u32) -> Ttl {
    if renewal_of_connection(&clients.conns, slot).is_some() {
        // The server asks the backend.
        return None;
    }
    let (_, until_unix_s) = clients.conns.grants.get(slot)?;
    ttl_of(clients, until_unix_s)
}

/// Carries out a refresh of the connection.
pub(super) fn handle_refresh(
    clients: &mut Clients,
    slot: u32,
    id: u32,
    token: &str,
    verdict: Option<Identity>,
) -> Result<(), CommandRefusal> {
    if token.is_empty() {
        return Err(CommandRefusal::bad_request("a refresh without a token"));
    }
    let Some(identity) = verdict else {
        // Without access control, tokens have no meaning.
        return Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE));
    };
    if let Ok(Some(token_rights)) = &identity
        && grants_of(&clients.conns, slot).map(|grants| grants.user())
            != Some(token_rights.grants.user())
    {
        return Err(end_with(
            Disconnect::INVALID_TOKEN,
            "the token is of another user",
        ));
    }
    if identity.is_ok() && names_channel(token) {
        return Err(end_with(
            Disconnect::INVALID_TOKEN,
            Reason::TokenOfSubscription.text(),
        ));
    }
    let claims = claims_of(token);
    let mut scratch = Scratch::new(channel_names(&clients.ctx.world));
    let claims = read_connect_claims(clients, &claims, &mut scratch)?;
    clients
        .set_identity(slot, Some(identity))
        .and_then(|()| apply_connect_claims(clients, slot, &claims))
        .map_err(|reason| match error_of(reason) {
            ErrorCode::INTERNAL => CommandRefusal::for_reason(clients, slot, reason),
            ErrorCode::TOKEN_EXPIRED => end_with(Disconnect::EXPIRED, reason.text()),
            _ => end_with(Disconnect::INVALID_TOKEN, reason.text()),
        })?;
    if renewal_of_connection(&clients.conns, slot).is_some() {
        // From now on the client renews its token.
        backend_mut(&mut clients.conns, slot).renewal = None;
    }
    let (client, ttl) = (client_id(clients, slot), ttl_of_connection(clients, slot));
    let answer = Answer::Refresh {
        client: &client,
        version: VERSION,
        ttl,
    };
    write_reply(clients, slot, id, answer);
    Ok(())
}

fn end_with(code: Disconnect, words: &'static str) -> CommandRefusal {
    CommandRefusal::End(code, words.into())
}

/// What a subscription token grants.
pub(super) struct SubscriptionToken {
    /// The token's grants.
    pub grants: Arc<Grants>,
    /// The Unix second in which the subscription ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
    /// Data for the client; empty for none.
    pub data: Box<[u8]>,
    /// Whether the client is told of joins and leaves, if it asks for them or not.
    pub join_leave: bool,
}

/// Checks that the token of a subscribe or a sub_refresh, on which this is the verdict, is for this channel and this client. Returns what it grants.
pub(super) fn check_subscription_token(
    clients: &mut Clients,
    slot: u32,
    verdict: Identity,
    token: &str,
    channel: &str,
) -> Result<SubscriptionToken, CommandRefusal> {
    let token_rights = match clients.check_identity(verdict) {
        Ok(Some(token_rights)) => token_rights,
        Ok(None) => return Err(CommandRefusal::error(ErrorCode::PERMISSION_DENIED)),
        Err(reason) => {
            return Err(match error_of(reason) {
                ErrorCode::UNAUTHORIZED => {
                    clients.refused(slot, reason);
                    CommandRefusal::Error(ErrorCode::PERMISSION_DENIED, reason.text().into())
                }
                _ => CommandRefusal::for_reason(clients, slot, reason),
            });
        }
    };
    let user = grants_of(&clients.conns, slot).map_or("", |grants| grants.user());
    if user != token_rights.grants.user() || !is_for(clients, &token_rights, token, channel) {
        let reason = Reason::SubscribeNotGranted;
        clients.report_denied(slot, reason, channel.as_bytes());
        clients.refused(slot, reason);
        let text = "the subscription token is of another user or for another channel";
        return Err(CommandRefusal::Error(
            ErrorCode::PERMISSION_DENIED,
            text.into(),
        ));
    }
    let claims = claims_of(token);
    let mut scratch = Scratch::default();
    let malformed = |text| CommandRefusal::Error(ErrorCode::PERMISSION_DENIED, text);
    let claims = decode::subscription_claims(&claims, &mut scratch)
        .map_err(|error| malformed(alloc::format!("the token's claims: {error}").into()))?;
    let data = data_of(claims.data).map_err(|text| malformed(text.into()))?;
    let until_unix_s = end_of(claims.expire_at, token_rights.until_unix_s);
    if until_unix_s <= clients.ctx.wall_s() {
        return Err(CommandRefusal::for_reason(
            clients,
            slot,
            Reason::TokenExpired,
        ));
    }
    Ok(SubscriptionToken {
        grants: token_rights.grants,
        until_unix_s,
        data: data.into(),
        join_leave: claims.join_leave,
    })
}

fn is_for(clients: &Clients, token_rights: &VerifiedClient, token: &str, channel: &str) -> bool {
    let steps = &clients.meter.work.steps;
    if token_rights
        .grants
        .covers(Right::Subscribe, channel.as_bytes(), steps)
    {
        return true;
    }
    let channel = channel_names(&clients.ctx.world).exchange(channel);
    has_channel(token, |named| named == channel)
}

/// Whether this is the token of a subscription, which must not be used for a connection.
pub(crate) fn names_channel(token: &str) -> bool {
    has_channel(token, |named| !named.is_empty())
}

/// Whether a token has a claim `channel` with a wanted value.
fn has_channel(token: &str, is_wanted: impl FnOnce(&str) -> bool) -> bool {
    let mut scratch = Scratch::default();
    decode::channel_claim(&claims_of(token), &mut scratch).is_ok_and(is_wanted)
}
