//! Finds the credential of an HTTP request, has it verified, and tells which rights the request needs.
//!
//! Over HTTP each request is authenticated, since one connection of a proxy carries requests of many clients. The credential is
//! read when the head of the request has arrived, before the body. The shard looks for its verdict (accepted with an identity, or
//! refused) in a cache, and else asks the verifier. Until the verdict arrives, the request is held as received, with all bytes
//! after it on the connection. A stream, a waiting poll and an MQTT client keep their verdict while they last, and end when it
//! expires.
//!
//! Invariants: a request is processed only after the verdict on its credential. While access control is on, a request with an
//! invalid credential is refused, even if the request needs no credential. A verdict applies to one request and is forgotten before
//! the next.

use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crore_wire::form;
use crore_wire::http::cookie;
use crore_wire::http::head::{Head, Method};

use crate::base::access::{Credential, Right};
use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::rights::{look_up_credential, pause_for_verdict};
use crate::client::row::{State, TURNED_AWAY};
use crate::io::Io;
use crate::mail::TopicRequest;
use crate::protocol::front::{Census, Clients, Context, Gate, Queues};
use crate::protocol::http::origins::sends_cookies;
use crate::protocol::http::state::HttpSpill;
use crate::protocol::http::task::{Answered, Endpoint};
use crate::protocol::side::Spill;

/// The credential of a request, parsed.
enum ParsedCredential {
    Token(Vec<u8>),
    Password { user: Vec<u8>, password: Vec<u8> },
}

impl ParsedCredential {
    fn credential(&self) -> Credential<'_> {
        match self {
            ParsedCredential::Token(token) => Credential::Token(token),
            ParsedCredential::Password { user, password } => {
                Credential::Password { user, password }
            }
        }
    }
}

/// Finds out which client sent this request. False while the verdict is awaited; the request then waits.
pub(crate) fn authenticate<I: Io>(
    clients: &mut Clients,
    census: &Census,
    gate: &mut Gate,
    slot: u32,
    head: &Head<'_>,
    spill: &mut HttpSpill,
    io: &mut I,
) -> bool {
    let is_closed = clients.ctx.world.settings.access.closed;
    // Every client gets the same answer to OPTIONS and to unknown methods, so no credential is checked. A browser sends OPTIONS
    // with the query of the request to come, which may contain a token.
    let needs_none = !is_closed || matches!(head.method, Method::Options | Method::Other);
    if needs_none || spill.verdict.is_some() || clients.conns.get(slot).link.has(TURNED_AWAY) {
        return true;
    }
    spill.verdict = match credential(&clients.ctx, head) {
        Err(refusal) => Some(Err(refusal)),
        Ok(None) => Some(Ok(None)),
        Ok(Some(parsed)) => {
            look_up_credential(clients, census, gate, slot, parsed.credential(), io)
        }
    };
    if spill.verdict.is_none() {
        spill.awaits_verdict = true;
        clients.conns.get_mut(slot).consumer.state = State::Waiting;
        // No body is read before the verdict, because the client may be refused.
        pause_for_verdict(&mut clients.conns, slot, io);
    }
    spill.verdict.is_some()
}

/// Takes the verdict on a request's credential, and queues the request to continue.
pub(crate) fn http_verdict(
    clients: &mut Clients,
    queues: &mut Queues,
    conn: ConnId,
    verdict: Identity,
) {
    let Some(Spill::Http(spill)) = clients.conns.unprocessed_input_mut(conn.slot) else {
        return;
    };
    if core::mem::take(&mut spill.awaits_verdict) {
        spill.verdict = Some(verdict);
        clients.conns.get_mut(conn.slot).consumer.state = State::Http;
        queues.resume_later(clients, conn);
    }
}

/// Refuses a request for which the client lacks a right.
pub(crate) fn deny(clients: &mut Clients, slot: u32, denied: Reason, path: &[u8]) -> Answered {
    clients.report_denied(slot, denied, path);
    clients.respond_reason(slot, denied);
    Answered
}

/// Whether the credential of a request is a token of this kind.
pub(crate) fn is_token(ctx: &Context, head: &Head<'_>, is: impl FnOnce(&str) -> bool) -> bool {
    match credential(ctx, head) {
        Ok(Some(ParsedCredential::Token(token))) => core::str::from_utf8(&token).is_ok_and(is),
        _ => false,
    }
}

/// The request's credential: from the header, else the query, else a cookie.
fn credential(ctx: &Context, head: &Head<'_>) -> Result<Option<ParsedCredential>, Reason> {
    let access = &ctx.world.settings.access;
    let mut fields = head.headers("authorization");
    if let Some(field) = fields.next() {
        return match fields.next() {
            Some(_) => Err(Reason::CredentialsMalformed),
            None => parse_authorization(field).map(Some),
        };
    }
    let mut tokens = form::pairs(head.query)
        .filter(|(key, _)| !access.query.is_empty() && *key == access.query.as_bytes());
    if let Some((_, value)) = tokens.next() {
        let mut token = Vec::with_capacity(value.len());
        form::decode(value, &mut token).map_err(|_| Reason::CredentialsMalformed)?;
        // A token that was read from a file often ends with a line break.
        let token = token.trim_ascii();
        return match (tokens.next(), token.is_empty()) {
            (None, false) => Ok(Some(ParsedCredential::Token(token.to_vec()))),
            _ => Err(Reason::CredentialsMalformed),
        };
    }
    if access.cookie.is_empty() || !sends_cookies(ctx, head) {
        return Ok(None);
    }
    let token = cookie::value(head.headers("cookie"), access.cookie.as_bytes());
    let token = token.filter(|token| !token.is_empty());
    Ok(token.map(|token| ParsedCredential::Token(token.to_vec())))
}

/// The rights that a request needs on each topic in it. The topics of an interest request and the lines of a batch are checked when
/// they are read.
pub(crate) fn needed_rights(
    endpoint: Endpoint,
    verb: Option<TopicRequest>,
    method: Method,
) -> &'static [Right] {
    match (endpoint, verb) {
        (Endpoint::Interest, _) => &[Right::Interest],
        (Endpoint::Presence, _) => &[Right::Presence],
        (Endpoint::Subscribe | Endpoint::History, _) => &[Right::Subscribe],
        (Endpoint::PubSub, _) => &[Right::Subscribe, Right::Publish],
        (Endpoint::Publish, None) => &[Right::Publish],
        (Endpoint::Publish, Some(_)) if method == Method::Post => &[Right::Publish],
        (Endpoint::Publish, Some(TopicRequest::Info)) => &[Right::Info],
        (Endpoint::Publish, Some(_)) => &[Right::Manage],
    }
}

/// The value of `Authorization` (RFC 6750 section 2.1, RFC 7617 section 2).
fn parse_authorization(field: &[u8]) -> Result<ParsedCredential, Reason> {
    let space = memchr::memchr(b' ', field).ok_or(Reason::CredentialsMalformed)?;
    let (scheme, value) = (&field[..space], field[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") && !value.is_empty() {
        return Ok(ParsedCredential::Token(value.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err(Reason::CredentialsMalformed);
    }
    let decoded = STANDARD
        .decode(value)
        .map_err(|_| Reason::CredentialsMalformed)?;
    let colon = memchr::memchr(b':', &decoded).ok_or(Reason::CredentialsMalformed)?;
    Ok(ParsedCredential::Password {
        user: decoded[..colon].to_vec(),
        password: decoded[colon + 1..].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_takes_one_token_or_a_password() {
        let token = |field: &[u8]| match parse_authorization(field) {
            Ok(ParsedCredential::Token(token)) => Some(token),
            _ => None,
        };
        assert_eq!(token(b"Bearer a.b.c").as_deref(), Some(&b"a.b.c"[..]));
        assert_eq!(token(b"bearer  a.b.c ").as_deref(), Some(&b"a.b.c"[..]));
        match parse_authorization(b"Basic YTpiOmM=") {
            Ok(ParsedCredential::Password { user, password }) => {
                assert_eq!((&user[..], &password[..]), (&b"a"[..], &b"b:c"[..]));
            }
            _ => panic!("a name and a password"),
        }
        for wrong in [
            &b"Bearer"[..],
            b"Bearer ",
            b"Digest a",
            b"Basic YQ==",
            b"Basic !",
            b"",
        ] {
            assert!(parse_authorization(wrong).is_err(), "{wrong:?}");
        }
    }
}
