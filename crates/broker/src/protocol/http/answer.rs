//! Writes HTTP responses: their heads, refusals, and the info about a topic in Nchan's format.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::http::date::write_date;
use crore_wire::http::response::{ResponseHead, status_text};
use crore_wire::json;

use crate::base::journal::EventKind;
use crate::base::notices::Notice;
use crate::base::position::{self, Position};
use crate::base::reason::{Reason, SEND_A_TOKEN, Section};
use crate::client::row::{CLOSING, EOF, FILTERS, PAUSED, SERVED, SUBSCRIPTION_LIST, State};
use crate::client::subscriptions::unsubscribe_from_all;
use crate::io::Io;
use crate::mail::TopicInfo;
use crate::protocol::front::{Clients, Front, Queues};
use crate::protocol::http::headers::EXPOSED;
use crate::protocol::http::options::{
    FOLLOWS, HEAD_REQUEST, KEEP_ALIVE, ORIGIN, ORIGIN_SHIFT, PREFERS_JSON, REPLAYED, STREAMS,
    UNCHUNKED,
};
use crate::protocol::http::retry;
use crate::store::slab::NONE;

/// The status for a reason that has none: a fault of the server.
pub(crate) const INTERNAL: u16 = 500;
/// The status for an invalid request.
const BAD_REQUEST: u16 = 400;
/// The status for an unknown client.
const UNAUTHORIZED: u16 = 401;
/// The header that tells an unknown client which credentials it can send, and its value if the client sent no token.
const CHALLENGE: &str = "WWW-Authenticate";
const PLAIN_CHALLENGE: &[u8] = b"Bearer realm=\"crore\"";
/// Headers of every response: no sniffing and no scripts, since publishers choose content types.
pub(crate) const SAFETY: &[u8] =
    b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox; default-src 'none'\r\n";
/// The header that tells caches what to do with a response. Without it a cache stores 200, 204, 404, 405, 410 and others for as
/// long as it likes (RFC 9110 section 15.1).
pub(crate) const CACHE_CONTROL: &str = "Cache-Control";
/// The header line for a response that the next request may change.
pub(crate) const NO_STORE: &[u8] = b"Cache-Control: no-store\r\n";
/// The request headers that a conditional response depends on.
pub(crate) const VARY: &[u8] = b"If-None-Match, If-Modified-Since, Accept, Origin";
/// The number in `options` that stands for any origin.
pub(crate) const ANY_ORIGIN: u32 = 255;

/// Ends a request that was answered: prepares for the next request, or closes the connection.
pub(crate) fn finish_request<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let keep_alive_s = clients.ctx.world.settings.timeouts.keep_alive_s;
    let now_s = clients.ctx.now.s;
    clients.conns.grants.remove(slot);
    let row = clients.conns.get_mut(slot);
    row.consumer.request = row.consumer.request.wrapping_add(1);
    row.consumer.state = State::Http;
    row.link.flags |= SERVED;
    if row.has_option(KEEP_ALIVE) && !row.link.has(CLOSING) {
        row.link.deadline_s = now_s + keep_alive_s;
        // The next request may be refused before it is judged, so these options must not stay.
        row.consumer.options &= !(HEAD_REQUEST | PREFERS_JSON | STREAMS | ORIGIN);
        // The state of the request is not needed any more. If the connection closes, the state is dropped when the connection ends.
        clients.conns.drop_side_row(slot);
        return;
    }
    clients.send_reply(slot, io);
    clients.close_after_output(slot, io);
}

/// Sends the answer to a request that waited, and continues with the requests after it.
pub(crate) fn answer_waiting<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    clients.send_reply(slot, io);
    finish_request(clients, slot, io);
    let row = clients.conns.get(slot);
    if row.consumer.state == State::Http
        && (row.link.unprocessed_input != NONE || row.link.has(PAUSED) || row.link.has(EOF))
    {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Refuses a request that waited.
pub(crate) fn refuse_waiting_request<I: Io>(
    front: &mut Front,
    slot: u32,
    reason: Reason,
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    unsubscribe_from_all(clients, subs, slot);
    clients.respond_reason(slot, reason);
    answer_waiting(clients, queues, slot, io);
}

/// Refuses a request, and closes.
pub(crate) fn refuse<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    let words = reason.text_with_limit(&clients.ctx.world.settings);
    refuse_with_text(clients, slot, reason, &words, io);
}

/// Refuses a request, and closes, with a more exact text than `refuse`.
pub(crate) fn refuse_with_text<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: Reason,
    words: &str,
    io: &mut I,
) {
    clients.count_refusal(slot, reason, words);
    clients.scratch.set_close_reason(reason.row().closed);
    clients.conns.take_unprocessed_input(slot);
    let row = clients.conns.get_mut(slot);
    // These options are kept: those of the subscriptions, which end later, the form of the answer, and the page that may read it.
    row.consumer.options &=
        SUBSCRIPTION_LIST | FILTERS | FOLLOWS | HEAD_REQUEST | PREFERS_JSON | ORIGIN;
    let status = reason.row().status.unwrap_or(INTERNAL);
    clients.respond_line(slot, status, words, None);
    clients.send_reply(slot, io);
    clients.close_after_output(slot, io);
}

/// Writes the lines that all responses of this second begin with.
fn write_common(unix_s: u32, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(b"Date: ");
    write_date(out, u64::from(unix_s));
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(SAFETY);
}

/// The content type and body of a refusal: one line of text, or JSON.
pub(crate) fn refusal(status: u16, words: &str, as_json: bool) -> (&'static str, Vec<u8>) {
    let mut body = Vec::with_capacity(words.len() + 128);
    let content_type = match as_json {
        true => {
            write_problem(status, words, &mut body);
            "application/problem+json"
        }
        false => {
            body.extend_from_slice(words.as_bytes());
            "text/plain; charset=utf-8"
        }
    };
    body.push(b'\n');
    (content_type, body)
}

/// Writes a problem (RFC 9457) without a type, whose title is therefore that of the status.
fn write_problem(status: u16, detail: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\": \"about:blank\", \"title\": ");
    json::write_string(out, status_text(status).as_bytes());
    out.extend_from_slice(b", \"status\": ");
    position::write_decimal(out, u64::from(status));
    out.extend_from_slice(b", \"detail\": ");
    json::write_string(out, detail.as_bytes());
    out.push(b'}');
}

/// The challenge for a client that is refused for its credentials (RFC 6750 section 3), with an error code if it sent a token.
fn challenge(reason: Reason) -> Option<(&'static str, &'static [u8])> {
    let challenge: &[u8] = match reason {
        Reason::WrongPassword => PLAIN_CHALLENGE,
        _ if reason.row().section == Section::NoCredentials => PLAIN_CHALLENGE,
        _ if reason.row().section == Section::NotGranted => {
            b"Bearer realm=\"crore\", error=\"insufficient_scope\""
        }
        _ if reason.row().status == Some(UNAUTHORIZED) => {
            b"Bearer realm=\"crore\", error=\"invalid_token\""
        }
        _ => return None,
    };
    Some((CHALLENGE, challenge))
}

/// Adds the headers that tell the client of a refused request how to continue.
fn with_remedy(head: ResponseHead<'_>, status: u16, retry_after_s: u32) -> ResponseHead<'_> {
    match status {
        UNAUTHORIZED => head.header(CHALLENGE, PLAIN_CHALLENGE),
        // RFC 9110 section 15.5.16.
        415 => head.header("Accept-Encoding", b"identity"),
        // RFC 9110 section 15.5.22 and RFC 6455 section 4.4.
        426 => head
            .header("Upgrade", b"websocket")
            .header("Sec-WebSocket-Version", b"13"),
        429 | 503 => head.number("Retry-After", u64::from(retry_after_s)),
        _ => head,
    }
}

impl Clients {
    /// Begins a response that caches must not store.
    pub(crate) fn response_head(&mut self, slot: u32, status: u16) -> ResponseHead<'_> {
        let for_origins = !self.ctx.world.settings.http.allowed_origins.is_empty();
        let head = self.head_without_cache_rule(slot, status);
        let head = head.lines(NO_STORE);
        // What a page may read depends on its origin (Fetch standard, "CORS protocol and HTTP caches").
        match for_origins {
            true => head.header("Vary", b"Origin"),
            false => head,
        }
    }

    /// Begins a response with the headers that all responses have. The caller adds the rule for caches, which a 101 does not need.
    /// `Access-Control-Allow-Credentials` is never sent, so a page of another origin cannot read a response that was given for a
    /// visitor's cookie.
    pub(crate) fn head_without_cache_rule(&mut self, slot: u32, status: u16) -> ResponseHead<'_> {
        let row = self.conns.get(slot);
        let (options, unix_s) = (row.consumer.options, self.ctx.wall_s());
        let origins = &self.ctx.world.settings.http.allowed_origins;
        let (of_s, common) = &mut self.scratch.common_headers;
        if *of_s != unix_s || common.is_empty() {
            *of_s = unix_s;
            write_common(unix_s, common);
        }
        let mut head = ResponseHead::new(&mut self.scratch.reply, status).lines(common);
        match options >> ORIGIN_SHIFT {
            0 => {}
            ANY_ORIGIN => head = head.header("Access-Control-Allow-Origin", b"*"),
            n => {
                // The settings may have changed since the request was judged.
                if let Some(origin) = origins.get(n as usize - 1) {
                    head = head.header("Access-Control-Allow-Origin", origin.as_bytes());
                }
            }
        }
        if options >> ORIGIN_SHIFT != 0 {
            head = head.header("Access-Control-Expose-Headers", EXPOSED.as_bytes());
        }
        if options & REPLAYED != 0 {
            head = head.header("Idempotency-Replayed", b"true");
        }
        if status == 101 {
            return head;
        }
        match (options & KEEP_ALIVE != 0, options & UNCHUNKED != 0) {
            (false, _) => head.header("Connection", b"close"),
            (true, true) => head.header("Connection", b"keep-alive"),
            (true, false) => head,
        }
    }

    /// Writes a complete response with a body that the server made. `header` replaces the headers that belong to the status.
    pub(crate) fn respond(
        &mut self,
        slot: u32,
        status: u16,
        (content_type, body): (&str, &[u8]),
        header: Option<(&str, &[u8])>,
    ) {
        let is_head_request = self.conns.get(slot).has_option(HEAD_REQUEST);
        let retry_after_s = retry::after_s(self.ctx.retry_spread(slot));
        let head = self
            .response_head(slot, status)
            .header("Content-Type", content_type.as_bytes());
        let head = match header {
            Some((name, value)) => head.header(name, value),
            None => with_remedy(head, status, retry_after_s),
        };
        if is_head_request {
            head.number("Content-Length", body.len() as u64).end();
        } else {
            head.content(body);
        }
    }

    /// Refuses a request.
    pub(crate) fn respond_reason(&mut self, slot: u32, reason: Reason) {
        let words = reason.text_with_limit(&self.ctx.world.settings);
        self.respond_with_text(slot, reason, &words);
    }

    /// Refuses a request, with a more exact text than `respond_reason`.
    pub(crate) fn respond_with_text(&mut self, slot: u32, reason: Reason, words: &str) {
        self.count_refusal(slot, reason, words);
        let status = reason.row().status.unwrap_or(INTERNAL);
        let challenge = challenge(reason);
        if reason.row().section == Section::NoCredentials {
            let words = [words, &self.how_to_send_a_token()].concat();
            return self.respond_line(slot, status, &words, challenge);
        }
        self.respond_line(slot, status, words, challenge);
    }

    /// The end of a refusal: how to send a token.
    fn how_to_send_a_token(&self) -> String {
        let in_url = match &self.ctx.world.settings.access.query {
            query if query.is_empty() => String::new(),
            query => format!(", or in the URL as ?{query}=TOKEN"),
        };
        format!("{SEND_A_TOKEN}Authorization: Bearer TOKEN{in_url} (docs/ACCESS.md)")
    }

    /// Counts a refused request. Browsers hide the text from pages of streams, so it goes to the operator's log.
    fn count_refusal(&mut self, slot: u32, reason: Reason, words: &str) {
        self.refused(slot, reason);
        self.record_event(slot, EventKind::Refused, words.as_bytes());
        if reason.row().status == Some(BAD_REQUEST) && self.conns.get(slot).has_option(STREAMS) {
            self.meter.stats.refused_streams += 1;
            self.meter.notices.note_refusal(Notice::Stream, words);
        }
    }

    /// Refuses the method of a request, and names the `allowed` methods.
    pub(crate) fn respond_method(&mut self, slot: u32, words: &str, allowed: &str) {
        self.count_refusal(slot, Reason::Method, words);
        let status = Reason::Method.row().status.unwrap_or(INTERNAL);
        let allowed = ("Allow", allowed.as_bytes());
        self.respond_line(slot, status, words, Some(allowed));
    }

    /// Writes a status with its reason: one line, or JSON (RFC 9457) for a client that prefers JSON.
    fn respond_line(
        &mut self,
        slot: u32,
        status: u16,
        reason: &str,
        header: Option<(&str, &[u8])>,
    ) {
        let as_json = self.conns.get(slot).has_option(PREFERS_JSON);
        let (content_type, body) = refusal(status, reason, as_json);
        self.respond(slot, status, (content_type, &body), header);
    }

    /// Writes the info about a topic, field by field as Nchan does. In a cluster, also the number of nodes that have not reported
    /// their subscribers.
    pub(crate) fn respond_info(
        &mut self,
        slot: u32,
        status: u16,
        info: &TopicInfo,
        unanswered: Option<u32>,
    ) {
        let mut id = core::mem::take(&mut self.scratch.position);
        id.clear();
        position::write(&mut id, Position::new(info.epoch, info.offset));
        let as_json = self.conns.get(slot).has_option(PREFERS_JSON);
        let mut body = Vec::with_capacity(160);
        let write_number = |body: &mut Vec<u8>, value: Option<u32>| match value {
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
            write_number(&mut body, value);
            body.extend_from_slice(end);
        }
        if as_json {
            body.extend_from_slice(b", \"last_message_id\": ");
            json::write_string(&mut body, &id);
            if unanswered.is_some() {
                body.extend_from_slice(b", \"nodes_unanswered\": ");
                write_number(&mut body, unanswered);
            }
            body.extend_from_slice(b"}\n");
        } else {
            body.extend_from_slice(b"last message id: ");
            body.extend_from_slice(&id);
            // Nchan's clients take the whole last line as the id, so it must not contain a CR.
            body.push(b'\n');
        }
        let content_type = if as_json {
            "application/json"
        } else {
            // Without a charset, because Nchan's clients compare the value.
            "text/plain"
        };
        self.respond(slot, status, (content_type, &body), None);
        self.scratch.position = id;
    }
}

/// Writes the head of a stream of this content type into `reply`.
pub(crate) fn stream_head(clients: &mut Clients, slot: u32, content_type: &[u8]) {
    let is_unchunked = clients.conns.get(slot).has_option(UNCHUNKED);
    if is_unchunked {
        clients.conns.get_mut(slot).consumer.options &= !KEEP_ALIVE;
    }
    let mut answer = clients
        .head_without_cache_rule(slot, 200)
        .header("Content-Type", content_type)
        .header(CACHE_CONTROL, b"no-cache, no-transform")
        .header("X-Accel-Buffering", b"no");
    if !is_unchunked {
        answer = answer.header("Transfer-Encoding", b"chunked");
    }
    answer.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SocketId;
    use crate::io::RecordingIo;
    use crate::settings::Settings;
    use crate::shard::Shard;
    use crate::{Input, Now, World};

    #[test]
    fn request_that_expects_continue_is_refused_without_a_body() {
        let world = World::for_tests(Settings::default(), 2);
        let now = Now { s: 1, unix_s: 9 };
        let mut io = RecordingIo::default();
        let mut shard = Shard::new(0, world, now);
        shard.handle(
            Input::Accepted(SocketId(5), [127, 0, 0, 1].into()),
            now,
            &mut io,
        );
        // The other shard is the home of some topic (keeps it), and does not answer here. A POST is pipelined after that request.
        let conn = shard.front().clients.conns.id_of(0);
        let mut tried = 0;
        while shard.front().clients.conns.get(0).consumer.state != State::Waiting {
            assert!(tried < 64, "no topic has its home elsewhere");
            let request = format!("HEAD /pub/t{tried} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            shard.handle(
                Input::Received(conn, &mut request.into_bytes()),
                now,
                &mut io,
            );
            tried += 1;
        }
        shard.handle(
            Input::Received(conn, &mut b"POST /pub/".to_vec()),
            now,
            &mut io,
        );
        io.sent.clear();
        refuse(&mut shard.front().clients, 0, Reason::InputsFull, &mut io);
        let text = String::from_utf8(io.sent).expect("text");
        assert!(
            text.starts_with("HTTP/1.1 503 ") && text.ends_with("\r\n\r\n"),
            "{text}"
        );
    }
}
