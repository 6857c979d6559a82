//! Reads HTTP requests: heads, credentials and bodies.
//!
//! Invariants: the server waits for a body only after its head was judged and the request would be processed. A client that is
//! refused before that gets no `100 Continue`. Its answer says `Connection: close`, and its further bytes are discarded. So bytes
//! that may be a body are never read as a request, and answers do not depend on how the bytes were split.

use alloc::borrow::Cow;
use alloc::format;
use core::ops::Range;

use crore_wire::http::body::BodyError;
use crore_wire::http::head::{self, Body, Head, HeadError, MAX_HEADERS};
use crore_wire::http::proxy;
use crore_wire::http2;

use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::base::verdict::Identity;
use crate::base::work::Steps;
use crate::client::admission::admit_proxied;
use crate::client::credit::must_stall;
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::protocols::protocol_of;
use crate::client::row::{CLOSING, EOF, SERVED, State, TURNED_AWAY};
use crate::client::types::UnprocessedInput;
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::protocol::front::{
    AllProtocols, Clients, Connections, Context, Front, Gate, Lanes, Queues,
};
use crate::protocol::http::answer::{finish_request, refuse, refuse_with_text};
use crate::protocol::http::credentials::authenticate;
use crate::protocol::http::judge::{is_batch, judge, note_reader, note_reader_of_part};
use crate::protocol::http::options::UPGRADE;
use crate::protocol::http::pipelined::drop_pipelined_bytes;
use crate::protocol::http::state::HttpSpill;
use crate::protocol::http::task::{Answered, Flow, Requests as _};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// The bytes of a chunked body that are decoded in the time of a step. A chunk may have one byte.
const CHUNKED_PER_STEP: usize = 64;

/// The request was refused, and its connection closes.
struct Refused;

impl Front {
    /// Processes received bytes of an HTTP connection.
    pub(crate) fn receive_http<I: Io>(
        &mut self,
        slot: u32,
        input: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let spill = self.clients.conns.take_unprocessed_input(slot);
        let Some(spill) = spill else {
            if let Some((mut unfinished, rest)) =
                self.handle_requests(slot, input, HttpSpill::default(), home, io)
            {
                if let Some(state) = state_of_other_protocol(&self.clients.conns, slot) {
                    let rest = &mut input[rest];
                    return protocol_of!(AllProtocols, state, received(self, slot, rest, home, io));
                }
                unfinished.data = input[rest].to_vec();
                hold_request(self, slot, unfinished, io);
            }
            return;
        };
        let Spill::Http(mut spill) = spill else {
            unreachable!("a connection without an upgrade has no frames")
        };
        spill.is_held = false;
        spill.append(input, self.clients.ctx.world.settings.limits.head_bytes);
        self.clients.meter.work.steps.add_bytes(input.len());
        let mut data = core::mem::take(&mut spill.data);
        if let Some((mut unfinished, rest)) = self.handle_requests(slot, &mut data, spill, home, io)
        {
            if let Some(state) = state_of_other_protocol(&self.clients.conns, slot) {
                let rest = &mut data[rest];
                return protocol_of!(AllProtocols, state, received(self, slot, rest, home, io));
            }
            unfinished.data = data;
            unfinished.keep_range(rest);
            hold_request(self, slot, unfinished, io);
        }
    }

    /// Continues with pipelined requests after an answer.
    pub(crate) fn http_resume<I: Io>(&mut self, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        if self.clients.conns.get(conn.slot).link.outbox != NONE {
            return;
        }
        self.queues
            .resume_reading(&mut self.clients.conns, conn, io);
        if self.clients.conns.get(conn.slot).link.unprocessed_input != NONE {
            self.receive_http(conn.slot, &mut [], home, io);
        }
        let row = self.clients.conns.get(conn.slot);
        let is_idle = row.consumer.state == State::Http && row.link.outbox == NONE;
        if row.link.has(EOF) && is_idle && !is_held(&self.clients.conns, conn.slot) {
            self.clients.drop_connection(conn.slot, CloseMode::Now);
        }
    }

    /// Processes all complete requests in `buf`. Returns the range that is left. `None` if the connection ends.
    fn handle_requests<I: Io>(
        &mut self,
        slot: u32,
        buffer: &mut [u8],
        mut spill: HttpSpill,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<(HttpSpill, Range<usize>)> {
        let (mut offset, mut end) = (0, buffer.len());
        if self.clients.conns.get(slot).consumer.state == State::Proxy {
            match proxy_header(&mut self.clients, &mut self.gate, slot, buffer).ok()? {
                Some(len) => offset = len,
                None => return Some((spill, 0..end)),
            }
        }
        loop {
            let (lanes, queues) = (&self.subs.lanes, &mut self.queues);
            let rest = (&buffer[offset..end], &mut spill);
            if !may_read_request(&mut self.clients, lanes, queues, slot, rest, io) {
                break;
            }
            self.clients.meter.work.steps.add(1);
            let head_bytes = self.clients.ctx.world.settings.limits.head_bytes;
            // A parsed head takes a kilobyte, so it is borrowed and not moved.
            let mut parsed = head::parse(&buffer[offset..end], head_bytes);
            let mut head = match &parsed {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(HeadError::Version)
                    if AllProtocols::switch_if_http2(
                        &mut self.clients,
                        slot,
                        &buffer[offset..end],
                        io,
                    ) =>
                {
                    break;
                }
                Err(error) => {
                    refuse_head(&mut self.clients, slot, *error, &buffer[offset..end], io);
                    return None;
                }
            };
            self.clients.meter.work.steps.add_bytes(head.len);
            let (clients, gate) = (&mut self.clients, &mut self.gate);
            if !authenticate(clients, &self.census, gate, slot, head, &mut spill, io) {
                break;
            }
            let (body, limit) = body_of(&mut self.clients, slot, head, io).ok()?;
            let start = offset + head.len;
            let body_lengths = match body {
                Body::None => Some((0, 0)),
                Body::Length(len) => {
                    (start + len as usize <= end).then_some((len as usize, len as usize))
                }
                Body::Chunked => {
                    // The head borrows from the buffer, which is now changed.
                    drop(parsed);
                    let steps = &self.clients.meter.work.steps;
                    let body_lengths = dechunk(&mut buffer[start..end], &mut spill, limit, steps);
                    parsed = head::parse(&buffer[offset..start], head_bytes);
                    head = reparsed_head(&parsed);
                    match body_lengths {
                        Ok(body_lengths) => body_lengths,
                        Err(error) => {
                            refuse_body(&mut self.clients, slot, (head, body), spill, error, io);
                            return None;
                        }
                    }
                }
            };
            let Some((body_bytes, body_bytes_encoded)) = body_lengths else {
                if let Some((_, decoded)) = spill.chunked {
                    end = start + decoded;
                }
                let body = (body, limit);
                wait_for_body(&mut self.clients, slot, (head, body), &mut spill, io).ok()?;
                break;
            };
            let verdict = core::mem::take(&mut spill).verdict;
            let data = &buffer[start..start + body_bytes];
            let body = match body {
                Body::Chunked => Body::Length(body_bytes as u64),
                body => body,
            };
            self.handle_request(slot, (head, body), verdict, data, home, io);
            offset = start + body_bytes_encoded;
            if self.clients.conns.get(slot).link.has(CLOSING) {
                return None;
            }
        }
        self.clients.send_reply(slot, io);
        (offset < end).then_some((spill, offset..end))
    }

    /// Judges a complete request and processes it.
    fn handle_request<I: Io>(
        &mut self,
        slot: u32,
        (head, body): (&Head<'_>, Body),
        verdict: Option<Identity>,
        data: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let flow = match judge(&mut self.clients, slot, head, body, verdict) {
            Ok(task) => AllProtocols::carry_out(self, slot, head, task, data, home, io),
            Err(Answered) => Flow::Next,
        };
        match flow {
            Flow::Next => finish_request(&mut self.clients, slot, io),
            Flow::Wait => {}
        }
    }
}

/// The head that was just parsed again from the same bytes.
fn reparsed_head<'a, 'b>(parsed: &'a Result<Option<Head<'b>>, HeadError>) -> &'a Head<'b> {
    let head = parsed.as_ref().ok().and_then(Option::as_ref);
    head.expect("the head was read before")
}

/// Reads the header with which a proxy names its client. Returns its length, or `None` if it is incomplete.
fn proxy_header(
    clients: &mut Clients,
    gate: &mut Gate,
    slot: u32,
    buf: &[u8],
) -> Result<Option<usize>, Refused> {
    match proxy::parse_v2(buf) {
        Ok(Some((client, len))) => {
            clients.conns.get_mut(slot).consumer.state = State::Http;
            if let Some(client) = client {
                admit_proxied(clients, gate, slot, client.ip());
            }
            Ok(Some(len))
        }
        Ok(None) => Ok(None),
        Err(_) => {
            clients.scratch.set_close_reason(Closed::Refused);
            clients.drop_connection(slot, CloseMode::Reset);
            Err(Refused)
        }
    }
}

/// Whether received bytes wait to be processed.
pub(crate) fn is_held(conns: &Connections, slot: u32) -> bool {
    conns
        .unprocessed_input(slot)
        .is_some_and(UnprocessedInput::is_waiting)
}

/// The state of a connection that has changed to another protocol: its bytes are not HTTP, or they follow an upgrade without a subscription.
fn state_of_other_protocol(conns: &Connections, slot: u32) -> Option<State> {
    match conns.get(slot).consumer.state {
        State::Proxy | State::Http | State::Waiting | State::Poll => None,
        State::Sse | State::Draining => None,
        other => Some(other),
    }
}

/// Whether a request may be read from these bytes now. If not, they wait, or they are not HTTP.
fn may_read_request<I: Io>(
    clients: &mut Clients,
    lanes: &Lanes,
    queues: &mut Queues,
    slot: u32,
    (bytes, spill): (&[u8], &mut HttpSpill),
    io: &mut I,
) -> bool {
    let Some(first) = bytes.first() else {
        return false;
    };
    let row = clients.conns.get(slot);
    if row.consumer.state != State::Http || row.link.outbox != NONE {
        return false;
    }
    if clients.meter.work.is_spent() {
        spill.is_held = true;
        queues.pause_until_next_turn(clients, slot, io);
        return false;
    }
    if !clients.conns.get(slot).link.has(SERVED)
        && AllProtocols::switch_if_other(&mut clients.conns, slot, *first)
    {
        return false;
    }
    if !clients.conns.get(slot).link.has(TURNED_AWAY)
        && is_post(bytes)
        && must_stall(clients, lanes, slot)
    {
        spill.is_held = true;
        queues.stall(&mut clients.conns, &mut clients.meter.stats, slot, io);
        return false;
    }
    true
}

fn reason_of(error: HeadError) -> Reason {
    match error {
        HeadError::TooLarge => Reason::HeadTooLarge,
        HeadError::Malformed(_) => Reason::BadHead,
        HeadError::Version => Reason::HttpVersion,
        HeadError::UnknownTransferCoding => Reason::TransferCoding,
        HeadError::Expectation => Reason::Expectation,
    }
}

/// Refuses bytes that are not a valid head.
fn refuse_head<I: Io>(
    clients: &mut Clients,
    slot: u32,
    error: HeadError,
    bytes: &[u8],
    io: &mut I,
) {
    if error == HeadError::Version && http2::is_preface(bytes) {
        clients.scratch.set_close_reason(Closed::Refused);
        clients.refused(slot, Reason::HttpVersion);
        http2::refuse(&mut clients.scratch.reply);
        clients.send_reply(slot, io);
        clients.close_after_output(slot, io);
        return;
    }
    let words: Cow<'_, str> = match error {
        HeadError::TooLarge => format!(
            "{}: limits.head_bytes allows {} bytes, and {MAX_HEADERS} fields are taken",
            error.reason(),
            clients.ctx.world.settings.limits.head_bytes
        )
        .into(),
        error => error.reason().into(),
    };
    note_reader_of_part(clients, slot, bytes);
    refuse_with_text(clients, slot, reason_of(error), &words, io);
}

/// Refuses a request because of its body. The head is judged first.
fn refuse_body<I: Io>(
    clients: &mut Clients,
    slot: u32,
    (head, body): (&Head<'_>, Body),
    spill: HttpSpill,
    error: BodyError,
    io: &mut I,
) {
    let is_refused_by_head =
        !spill.is_judged && judge(clients, slot, head, body, spill.verdict).is_err();
    match is_refused_by_head {
        true => finish_request(clients, slot, io),
        false if error == BodyError::TooLarge => {
            let (_, reason) = body_limit(&clients.ctx, head);
            refuse(clients, slot, reason, io);
        }
        false => refuse_with_text(clients, slot, Reason::BadBody, error.reason(), io),
    }
}

/// Handles an incomplete body: judges the head once, and sends `100 Continue` if the client waits for it.
fn wait_for_body<I: Io>(
    clients: &mut Clients,
    slot: u32,
    (head, (body, limit)): (&Head<'_>, (Body, usize)),
    spill: &mut HttpSpill,
    io: &mut I,
) -> Result<(), Refused> {
    let body_bytes_max = match body {
        Body::Length(len) => len as usize,
        _ => limit,
    };
    spill.request_bytes = head.len + body_bytes_max;
    if spill.is_judged {
        return Ok(());
    }
    if judge(clients, slot, head, body, spill.verdict.clone()).is_err() {
        finish_request(clients, slot, io);
        return Err(Refused);
    }
    spill.is_judged = true;
    if head.expects_continue() {
        let reply = &mut clients.scratch.reply;
        reply.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    Ok(())
}

fn hold_request<I: Io>(front: &mut Front, slot: u32, spill: HttpSpill, io: &mut I) {
    let (clients, queues, census) = (&mut front.clients, &mut front.queues, &front.census);
    let bytes = spill.bytes();
    // An incomplete head is parsed again when more bytes arrive.
    let head_bytes = clients.ctx.world.settings.limits.head_bytes;
    clients.meter.work.steps.add_bytes(bytes.min(head_bytes));
    if !has_receive_room(clients, queues, census, slot, bytes, io) {
        let row = clients.conns.get(slot);
        let answer_due = matches!(row.consumer.state, State::Waiting | State::Poll);
        return match answer_due && !row.has_option(UPGRADE) && !spill.awaits_verdict {
            true => drop_pipelined_bytes(&mut clients.conns, queues, slot, io),
            // The bytes are part of a request, or frames after an upgrade.
            false => {
                clients
                    .conns
                    .set_unprocessed_input(slot, Spill::Http(spill));
                end_for_room(clients, slot, io)
            }
        };
    }
    let head_s = clients.ctx.world.settings.timeouts.head_s;
    let row = clients.conns.get_mut(slot);
    // A connection with bytes in its outbox keeps its deadline.
    if row.consumer.state == State::Http && row.link.outbox == NONE {
        let head_until_s = clients.ctx.now.s + head_s;
        if spill.is_held || spill.is_judged {
            // The client waits for the server, or the check of slow senders (`client/progress.rs`) limits the time.
            row.link.deadline_s = 0;
        } else if row.link.deadline_s == 0
            || row.link.has(SERVED) && row.link.deadline_s > head_until_s
        {
            row.link.deadline_s = head_until_s;
        }
    }
    clients
        .conns
        .set_unprocessed_input(slot, Spill::Http(spill));
}

/// How the body of a request is delimited, and its size limit.
fn body_of<I: Io>(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    io: &mut I,
) -> Result<(Body, usize), Refused> {
    let (limit, reason) = body_limit(&clients.ctx, head);
    // The server does not wait for the body of a client that is refused for a limit.
    if clients.conns.get(slot).link.has(TURNED_AWAY) {
        return Ok((Body::None, limit));
    }
    match head.body() {
        Ok(Body::Length(len)) if len > limit as u64 => {
            let words = reason.text_with_limit(&clients.ctx.world.settings);
            note_reader(clients, slot, head);
            refuse_with_text(clients, slot, reason, &format!("{words}: it has {len}"), io);
        }
        Ok(body) => return Ok((body, limit)),
        Err(error) => {
            note_reader(clients, slot, head);
            refuse_with_text(clients, slot, reason_of(error), error.reason(), io);
        }
    }
    Err(Refused)
}

/// Decodes the received part of a chunked body in place. If the body is complete, returns its decoded length and its encoded
/// length.
fn dechunk(
    bytes: &mut [u8],
    spill: &mut HttpSpill,
    limit: usize,
    steps: &Steps,
) -> Result<Option<(usize, usize)>, BodyError> {
    let (mut decoder, decoded) = spill.chunked.unwrap_or_default();
    steps.add((bytes.len() - decoded) / CHUNKED_PER_STEP);
    let progress = decoder.decode(&mut bytes[decoded..], limit)?;
    if progress.done {
        return Ok(Some((
            decoded + progress.written,
            decoded + progress.consumed,
        )));
    }
    spill.chunked = Some((decoder, decoded + progress.written));
    Ok(None)
}

/// Whether the request publishes, judged by its method: only publishes use POST.
fn is_post(bytes: &[u8]) -> bool {
    let blank = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n'));
    bytes[blank.count()..].starts_with(b"POST ")
}

/// The size limit of the body, and the reason to refuse a larger one.
fn body_limit(ctx: &Context, head: &Head<'_>) -> (usize, Reason) {
    let limits = &ctx.world.settings.limits;
    match is_batch(head) {
        true => (limits.batch_bytes, Reason::BatchTooLong),
        false if AllProtocols::is_command_path(ctx, head.path) => {
            let beside = ctx.world.settings.centrifugo.frame_beside_bytes;
            (limits.message_bytes + beside, Reason::MessageTooLong)
        }
        false => (limits.message_bytes, Reason::MessageTooLong),
    }
}
