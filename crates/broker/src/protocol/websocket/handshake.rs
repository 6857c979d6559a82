//! The upgrade of a request to WebSocket (RFC 6455 section 4.2.2).

use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::websocket::handshake;

use crate::base::reason::Reason;
use crate::protocol::front::Clients;
use crate::protocol::http::options::{DEFLATE, ENVELOPE, FOLLOWS, META_FRAMES, UPGRADE};

/// Nchan's subprotocol: each message begins with its id, topic and content type.
const META_PROTOCOL: &str = "ws+meta.nchan";

/// What the frames of a WebSocket carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameContent {
    /// Messages.
    Messages,
    /// Another protocol, with its subprotocol if the client has offered one.
    Protocol(Option<&'static str>),
}

/// Writes the 101 response into `reply`.
pub(crate) fn accept_upgrade(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    content: FrameContent,
) -> Result<(), Reason> {
    // Neither header may occur twice (RFC 6455 sections 11.3.1 and 11.3.5).
    let single_header = |name| {
        let mut all = head.headers(name);
        all.next().filter(|_| all.next().is_none())
    };
    if single_header("sec-websocket-version") != Some(b"13") {
        return Err(Reason::WebSocketVersion);
    }
    // On a stream of HTTP/2 there is no key (RFC 8441 section 5).
    let key = match clients.conns.is_http2_request(slot) {
        true => None,
        false => {
            let key = single_header("sec-websocket-key").and_then(handshake::accept_key);
            Some(key.ok_or(Reason::WebSocketKey)?)
        }
    };
    let meta_protocol = head.headers("sec-websocket-protocol");
    let meta_protocol =
        handshake::choose_subprotocol(meta_protocol, &[META_PROTOCOL]).filter(|_| {
            content == FrameContent::Messages && !clients.conns.get(slot).has_option(FOLLOWS)
        });
    if meta_protocol.is_some() && clients.conns.get(slot).has_option(ENVELOPE) {
        return Err(Reason::TwoForms);
    }
    let deflate = clients
        .ctx
        .world
        .settings
        .deflate
        .enabled
        .then_some(())
        .filter(|()| content == FrameContent::Messages)
        .and_then(|()| handshake::negotiate_deflate(head.headers("sec-websocket-extensions")));
    let row = clients.conns.get_mut(slot);
    row.consumer.options |= UPGRADE;
    if meta_protocol.is_some() {
        row.consumer.options |= META_FRAMES;
    }
    if deflate.is_some() {
        row.consumer.options |= DEFLATE;
    }
    let mut answer = clients
        .head_without_cache_rule(slot, 101)
        .header("Upgrade", b"websocket")
        .header("Connection", b"Upgrade");
    if let Some(key) = key {
        answer = answer.header("Sec-WebSocket-Accept", &key);
    }
    let subprotocol = match content {
        FrameContent::Messages => meta_protocol,
        FrameContent::Protocol(subprotocol) => subprotocol,
    };
    if let Some(protocol) = subprotocol {
        answer = answer.header("Sec-WebSocket-Protocol", protocol.as_bytes());
    }
    if let Some(deflate) = deflate {
        let mut value = Vec::with_capacity(96);
        deflate.write(&mut value);
        answer = answer.header("Sec-WebSocket-Extensions", &value);
    }
    answer.end();
    Ok(())
}
