//! Refuses connections and requests beyond the limits in [`admission`](crate::budget::admission).
//!
//! A connection beyond a limit is accepted, and its first request is read, because the right answer depends on the request. A
//! browser's `EventSource` stops for ever at any status but 200, so it gets 200, a `retry:` and the end. All others, including
//! upgrades to WebSocket, get 503 (the process is full) or 429 (the address has its share) with `Retry-After`. `retry` computes the
//! delay.
//!
//! Invariants: connections that wait to be refused count only in `client/gate.rs`, which bounds their number. An accepted
//! connection is never refused later, but a request of another client through the same proxy may be.

use alloc::vec::Vec;

use crore_wire::http::forwarded;
use crore_wire::http::head::{self, Head, Method};
use crore_wire::http::response::ResponseHead;

use crate::base::journal::EventKind;
use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::row::TURNED_AWAY;
use crate::protocol::front::Clients;
use crate::protocol::http::answer::{NO_STORE, SAFETY, refusal};
use crate::protocol::http::retry;
use crate::protocol::http::task::Answered;

/// The complete answer to a connection that has no row (entry in the shard's table). `request` is the received part of its request.
/// `spread` is any number that differs between connections.
pub fn shed(request: &[u8], spread: u32) -> Vec<u8> {
    // Pages of any site may read the answers, since they reveal nothing.
    const FOR_ALL: &[u8] = b"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: Retry-After\r\nConnection: close\r\n";
    let mut out = Vec::with_capacity(512);
    let accept = head::accept_in(request);
    if accept.events {
        let head = ResponseHead::new(&mut out, 200).lines(SAFETY);
        let head = head.lines(EVENT_STREAM).lines(FOR_ALL);
        head.content(&retry::retry_event(spread));
        return out;
    }
    let head = ResponseHead::new(&mut out, BUSY).lines(SAFETY);
    let head = head.lines(NO_STORE).lines(FOR_ALL);
    let head = head.number("Retry-After", u64::from(retry::after_s(spread)));
    let (content_type, body) = refusal(BUSY, NO_ROOM, accept.json);
    head.header("Content-Type", content_type.as_bytes())
        .content(&body);
    out
}

/// The status of a full server, and its text.
const BUSY: u16 = 503;
const NO_ROOM: &str = "no room for a connection";
const EVENT_STREAM: &[u8] =
    b"Content-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n";

/// Checks whether the request may be processed. Behind a trusted proxy, the connection counts for the client that the request
/// names, until another request names another client.
pub(crate) fn check_limits(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
) -> Result<(), Reason> {
    let world = &clients.ctx.world;
    let row = clients.conns.get_mut(slot);
    if row.link.has(TURNED_AWAY) {
        return Err(if row.consumer.client.is_known() {
            Reason::ConnectionsOfAddress
        } else {
            Reason::ConnectionsFull
        });
    }
    if !row.consumer.client.is_relayed() {
        return Ok(());
    }
    let trusted = &world.settings.http.trusted_proxies;
    let client_address = forwarded::client_behind(head.headers("x-forwarded-for"), trusted);
    clients.conns.set_relayed_address(slot, client_address);
    let world = &clients.ctx.world;
    let client = client_address.map_or(Client::RELAYED, |address| {
        world.admission.client(address).as_relayed()
    });
    let row = clients.conns.get_mut(slot);
    if client == row.consumer.client {
        return Ok(());
    }
    world.admission.leave_client(row.consumer.client);
    row.consumer.client = Client::RELAYED;
    world.admission.enter_client(client)?;
    row.consumer.client = client;
    Ok(())
}

impl Clients {
    /// Refuses an event stream: the response only tells when to try again.
    pub(crate) fn shed_events(&mut self, slot: u32, reason: Reason) {
        self.refused(slot, reason);
        self.record_event(slot, EventKind::Refused, reason.text().as_bytes());
        let text = retry::retry_event(self.ctx.retry_spread(slot));
        let head = self.head_without_cache_rule(slot, 200);
        head.lines(EVENT_STREAM).content(&text);
    }
}

/// Answers a request that is refused for a limit. If the connection was never admitted, this is its last answer.
pub(crate) fn turn_away(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    reached: Reason,
) -> Answered {
    let events = head.method == Method::Get && head.accept().events && !head.is_websocket_upgrade();
    if events {
        clients.shed_events(slot, reached);
    } else {
        clients.respond_reason(slot, reached);
    }
    Answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shed_connection_gets_the_answer_that_fits_its_first_bytes() {
        let text = |request: &[u8]| alloc::string::String::from_utf8(shed(request, 3)).unwrap();
        let plain = text(b"GET /sub/a HTTP/1.1\r\n");
        assert!(plain.starts_with("HTTP/1.1 503 ") && plain.contains("\r\nRetry-After: "));
        // The headers of every answer, and those that a page of another origin needs.
        for line in [
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Access-Control-Allow-Origin: *",
            "Access-Control-Expose-Headers: Retry-After",
        ] {
            assert!(plain.contains(&alloc::format!("\r\n{line}\r\n")), "{line}");
        }
        let json = text(b"GET /sub/a HTTP/1.1\r\nAccept: application/json\r\n");
        assert!(json.starts_with("HTTP/1.1 503 ") && json.contains("application/problem+json"));
        // These bytes are in the body, so they are no header field.
        let quoted = text(
            b"POST /pub/a HTTP/1.1\r\nContent-Length: 25\r\n\r\nAccept: text/event-stream\r\n",
        );
        assert!(quoted.starts_with("HTTP/1.1 503 "));
        let events =
            text(b"GET /sub/a HTTP/1.1\r\naccept: application/json, Text/Event-Stream\r\n");
        assert!(events.starts_with("HTTP/1.1 200 ") && events.contains("\r\n\r\nretry: "));
    }
}
