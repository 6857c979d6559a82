//! Responses: their heads, the topic's info in Nchan's form, refusals.

use alloc::vec::Vec;

use crore_wire::http::response::ResponseHead;
use crore_wire::json;

use crate::conn::{
    CLOSING, HEAD, HTTP10, JSON, KEEP, ORIGIN_SHIFT, REPLAYED, SERVED, Spill, State,
};
use crate::io::Io;
use crate::mail::Info;
use crate::position::{self, Position};
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

/// What every response says: no sniffing and no scripts, since publishers choose content types.
const SAFETY: &[u8] =
    b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox; default-src 'none'\r\n";
/// What scripts of other origins may read.
const EXPOSED: &[u8] =
    b"ETag, Last-Modified, Crore-Topic, Crore-Event, Crore-Key, Crore-TTL, Crore-Property, Crore-Gap, Retry-After, Idempotency-Replayed";
/// What a conditional response depends on.
pub(super) const VARY: &[u8] = b"If-None-Match, If-Modified-Since, Accept, Origin";
/// The number in `options` that stands for any origin.
pub(super) const ANY_ORIGIN: u32 = 255;

impl Shard {
    /// Begins a response in `self.reply` with what all of them have. No origin is ever named with
    /// `Access-Control-Allow-Credentials`: what a visitor's cookie opened no page of another origin reads.
    pub(super) fn head(&mut self, slot: u32, status: u16) -> ResponseHead<'_> {
        let row = self.conns.get(slot);
        let (options, unix_s) = (row.options, self.now.unix_s);
        let origins = &self.world.settings.http.allowed_origins;
        let mut head = ResponseHead::new(&mut self.reply, status)
            .date("Date", u64::from(unix_s))
            .lines(SAFETY);
        match options >> ORIGIN_SHIFT {
            0 => {}
            ANY_ORIGIN => head = head.header("Access-Control-Allow-Origin", b"*"),
            n => {
                // The settings may have changed since the request came.
                if let Some(origin) = origins.get(n as usize - 1) {
                    head = head.header("Access-Control-Allow-Origin", origin.as_bytes());
                }
            }
        }
        if options >> ORIGIN_SHIFT != 0 {
            head = head.header("Access-Control-Expose-Headers", EXPOSED);
        }
        if options & REPLAYED != 0 {
            head = head.header("Idempotency-Replayed", b"true");
        }
        if status == 101 {
            return head;
        }
        match (options & KEEP != 0, options & HTTP10 != 0) {
            (false, _) => head.header("Connection", b"close"),
            (true, true) => head.header("Connection", b"keep-alive"),
            (true, false) => head,
        }
    }

    /// A whole response with a body of ours.
    pub(super) fn respond(&mut self, slot: u32, status: u16, content_type: &str, body: &[u8]) {
        let no_body = self.conns.get(slot).wants(HEAD);
        let head = self
            .head(slot, status)
            .header("Content-Type", content_type.as_bytes());
        if no_body {
            head.number("Content-Length", body.len() as u64).end();
        } else {
            head.content(body);
        }
    }

    /// A status with its reason in one line.
    pub(super) fn respond_reason(&mut self, slot: u32, status: u16, reason: &str) {
        let no_body = self.conns.get(slot).wants(HEAD);
        let retry_after_s = u64::from(self.retry_after_s(slot));
        let mut head = self
            .head(slot, status)
            .header("Content-Type", b"text/plain; charset=utf-8");
        if status == 401 {
            head = head.header("WWW-Authenticate", b"Bearer realm=\"crore\"");
        }
        if matches!(status, 429 | 503) {
            head = head.number("Retry-After", retry_after_s);
        }
        if status == 426 {
            // RFC 9110 section 15.5.22 and RFC 6455 section 4.4.
            head = head
                .header("Upgrade", b"websocket")
                .header("Sec-WebSocket-Version", b"13");
        }
        let head = head.number("Content-Length", reason.len() as u64 + 1);
        head.end();
        if !no_body {
            self.reply.extend_from_slice(reason.as_bytes());
            self.reply.push(b'\n');
        }
    }

    /// The topic's info, field for field Nchan's.
    pub(super) fn respond_info(&mut self, slot: u32, status: u16, info: &Info) {
        let mut id = Vec::with_capacity(32);
        position::write(
            &mut id,
            Position {
                epoch: info.epoch,
                offset: info.offset,
            },
        );
        let as_json = self.conns.get(slot).wants(JSON);
        let mut body = Vec::with_capacity(160);
        let number = |body: &mut Vec<u8>, value: Option<u32>| match value {
            Some(value) => position::write_decimal(body, u64::from(value)),
            None => body.extend_from_slice(b"-1"),
        };
        let fields: [(&[u8], &[u8], Option<u32>); 3] = if as_json {
            [
                (b"{\"messages\": ", b"", Some(info.messages)),
                (b", \"requested\": ", b"", info.requested_s),
                (b", \"subscribers\": ", b"", Some(info.subscribers)),
            ]
        } else {
            [
                (b"queued messages: ", b"\r\n", Some(info.messages)),
                (b"last requested: ", b" sec. ago\r\n", info.requested_s),
                (b"active subscribers: ", b"\r\n", Some(info.subscribers)),
            ]
        };
        for (name, end, value) in fields {
            body.extend_from_slice(name);
            number(&mut body, value);
            body.extend_from_slice(end);
        }
        if as_json {
            body.extend_from_slice(b", \"last_message_id\": ");
            json::write_string(&mut body, &id);
            body.extend_from_slice(b"}\n");
        } else {
            body.extend_from_slice(b"last message id: ");
            body.extend_from_slice(&id);
            // Nchan's clients take all of the last line for the id, so that no CR may stand there.
            body.push(b'\n');
        }
        let content_type = if as_json {
            "application/json"
        } else {
            // Without a charset, as Nchan's clients compare it.
            "text/plain"
        };
        self.respond(slot, status, content_type, &body);
    }

    /// Sends what stands in `self.reply`.
    pub(super) fn send_reply<I: Io>(&mut self, slot: u32, io: &mut I) {
        if self.reply.is_empty() {
            return;
        }
        let reply = core::mem::take(&mut self.reply);
        self.put(slot, &reply, io);
        self.reply = reply;
        self.reply.clear();
        if self.reply.capacity() > 1 << 16 {
            self.reply = Vec::new();
        }
    }

    /// The request is answered: ready for the next one, or the end.
    pub(super) fn request_done<I: Io>(&mut self, slot: u32, io: &mut I) {
        let keep_alive_s = self.world.settings.timeouts.keep_alive_s;
        let now_s = self.now.s;
        self.passes.remove(slot);
        let row = self.conns.get_mut(slot);
        row.request = row.request.wrapping_add(1);
        row.state = State::Http;
        row.flags |= SERVED;
        if row.wants(KEEP) && !row.is(CLOSING) {
            row.deadline_s = now_s + keep_alive_s;
            return;
        }
        self.send_reply(slot, io);
        self.shut(slot, io);
    }

    /// Answers a request that waited, and lets the pipelined ones behind it go on.
    pub(crate) fn answer_waiting<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.send_reply(slot, io);
        self.request_done(slot, io);
        if self.conns.get(slot).state == State::Http {
            self.resumed.push_back(self.id_of(slot));
        }
    }

    /// Answers a request that waited with a status.
    pub(crate) fn answer_status<I: Io>(
        &mut self,
        slot: u32,
        status: u16,
        reason: &str,
        io: &mut I,
    ) {
        self.unsubscribe(slot);
        self.respond_reason(slot, status, reason);
        self.answer_waiting(slot, io);
    }

    /// Refuses what cannot be a request and closes.
    pub(crate) fn refuse<I: Io>(&mut self, slot: u32, status: u16, reason: &str, io: &mut I) {
        self.because(Reason::Refused);
        // No body follows a HEAD request's answer, also where only that much of it came.
        let spill = self.conns.get(slot).spill;
        let is_head = spill != NONE
            && matches!(self.spills.get(spill), Spill::Http(it) if it.data.starts_with(b"HEAD "));
        self.drop_spill(slot);
        // The options say what it subscribes to.
        self.unsubscribe(slot);
        self.conns.get_mut(slot).options = if is_head { HEAD } else { 0 };
        self.respond_reason(slot, status, reason);
        self.send_reply(slot, io);
        self.shut(slot, io);
    }
}
