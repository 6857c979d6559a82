//! How the response to a subscriber begins that gets a stream: the upgrade to WebSocket, or the head of an event stream.

use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::sse;
use crore_wire::websocket::handshake;

use crate::base::reason::Reason;
use crate::conn::{DEFLATE, FOLLOWS, HEAD, HTTP10, KEEP, META, UPGRADE};
use crate::protocol::encode::chunk;
use crate::protocol::front::Front;
use crate::protocol::mqtt::packets;

/// Nchan's subprotocol: each message begins with its id, topic and content type.
const META_PROTOCOL: &str = "ws+meta.nchan";

impl Front {
    /// Writes the 101 into `reply`.
    pub(in crate::protocol) fn accept_upgrade(
        &mut self,
        slot: u32,
        head: &Head<'_>,
    ) -> Result<(), Reason> {
        if head.header("sec-websocket-version") != Some(b"13") {
            return Err(Reason::WebSocketVersion);
        }
        let key = head
            .header("sec-websocket-key")
            .and_then(handshake::accept_key);
        let key = key.ok_or(Reason::WebSocketKey)?;
        let offered = [packets::SUBPROTOCOL, META_PROTOCOL];
        let chosen =
            handshake::choose_subprotocol(head.headers("sec-websocket-protocol"), &offered)
                .filter(|_| !self.conns.get(slot).wants(FOLLOWS));
        let packets = chosen == Some(packets::SUBPROTOCOL);
        let deflate = self
            .world
            .settings
            .deflate
            .enabled
            .then_some(())
            .filter(|()| !packets)
            .and_then(|()| handshake::negotiate_deflate(head.headers("sec-websocket-extensions")));
        let row = self.conns.get_mut(slot);
        row.options |= UPGRADE;
        if chosen.is_some() && !packets {
            row.options |= META;
        }
        if deflate.is_some() {
            row.options |= DEFLATE;
        }
        let mut answer = self
            .head(slot, 101)
            .header("Upgrade", b"websocket")
            .header("Connection", b"Upgrade")
            .header("Sec-WebSocket-Accept", &key);
        if let Some(protocol) = chosen {
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

    /// Writes the head of an event stream and its first comment into `reply`.
    pub(in crate::protocol) fn events_head(&mut self, slot: u32, name: &[u8]) {
        let rules = &self.world.rules;
        let retry_ms = rules.get(rules.number_for(name)).sse_retry_ms;
        let http10 = self.conns.get(slot).wants(HTTP10);
        if http10 {
            self.conns.get_mut(slot).options &= !KEEP;
        }
        let mut answer = self
            .head(slot, 200)
            .header("Content-Type", b"text/event-stream")
            .header("Cache-Control", b"no-cache, no-transform")
            .header("X-Accel-Buffering", b"no");
        if !http10 {
            answer = answer.header("Transfer-Encoding", b"chunked");
        }
        answer.end();
        if self.conns.get(slot).wants(HEAD) {
            return;
        }
        let mut text = Vec::with_capacity(32);
        sse::write_comment(&mut text, "");
        sse::write_retry(&mut text, retry_ms);
        self.append_events(slot, &text);
    }

    /// Appends event stream bytes to `reply` in the connection's framing.
    pub(super) fn append_events(&mut self, slot: u32, text: &[u8]) {
        if self.conns.get(slot).wants(HTTP10) {
            self.scratch.reply().extend_from_slice(text);
        } else {
            chunk(self.scratch.reply(), text);
        }
    }
}
