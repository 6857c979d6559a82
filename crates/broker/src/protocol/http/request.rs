//! Reads requests: their heads, their credentials, their bodies.
//!
//! Invariants: a body is waited for only when its head was judged and the request would be carried out; a client refused before
//! that gets no `100 Continue`, the answer says `Connection: close`, and the bytes that still come are discarded. So bytes that
//! may be a body are never read as a request, and the answers do not depend on how the bytes were cut.

use alloc::borrow::Cow;
use alloc::format;
use core::ops::Range;

use crore_wire::http::body::BodyError;
use crore_wire::http::head::{self, Body, Head, HeadError, MAX_HEADERS};
use crore_wire::http::{prior, proxy};

use crate::base::access::Identity;
use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::base::work::Steps;
use crate::client::admission::enter_proxied;
use crate::client::credit::{is_held, must_stall};
use crate::client::row::{CLOSING, EOF, FILTERS, SERVED, State, TURNED_AWAY};
use crate::client::words;
use crate::home::Home;
use crate::io::{Close, Io};
use crate::protocol::contract::is_upgraded;
use crate::protocol::contract::requests::begins_other_protocol;
use crate::protocol::front::{Context, Front};
use crate::protocol::http::credentials::knows_who;
use crate::protocol::http::filtered::catch_up_filters;
use crate::protocol::http::judge::{is_batch, judge};
use crate::protocol::http::options::UPGRADE;
use crate::protocol::http::pipelined::forget_pipelined;
use crate::protocol::http::state::HttpSpill;
use crate::protocol::http::task::{Answered, Flow};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// Bytes of a body in chunks that are decoded in the time of a step: a chunk may have one byte.
const CHUNKED_PER_STEP: usize = 64;

/// The request was refused, and its connection closes.
struct Refused;

impl Front {
    /// Bytes of a connection that speaks HTTP.
    pub(crate) fn http_received<I: Io>(
        &mut self,
        slot: u32,
        input: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let spill = self.clients.conns.take_spill(slot);
        let Some(spill) = spill else {
            if let Some((mut kept, rest)) = self.run(slot, input, HttpSpill::default(), home, io) {
                if is_upgraded(&self.clients.conns, slot) {
                    // The bytes are not HTTP, or follow an upgrade that attached to nothing.
                    return self.bytes_came(slot, &mut input[rest], home, io);
                }
                kept.data = input[rest].to_vec();
                self.keep(slot, kept, io);
            }
            return;
        };
        let Spill::Http(mut spill) = spill else {
            unreachable!("a connection without an upgrade has no frames")
        };
        spill.held = false;
        spill.append(input, self.clients.ctx.world.settings.limits.head_bytes);
        self.meter.work.steps.add_bytes(input.len());
        let mut data = core::mem::take(&mut spill.data);
        if let Some((mut kept, rest)) = self.run(slot, &mut data, spill, home, io) {
            if is_upgraded(&self.clients.conns, slot) {
                return self.bytes_came(slot, &mut data[rest], home, io);
            }
            kept.data = data;
            kept.narrow(rest);
            self.keep(slot, kept, io);
        }
    }

    /// Goes on with a request that waits.
    pub(crate) fn request_resume<I: Io>(&mut self, slot: u32, home: &mut Option<Home>, io: &mut I) {
        match self.clients.conns.get(slot).wants(FILTERS) {
            true => catch_up_filters(&mut self.clients, &mut self.subs, slot),
            false => self.go_on_with_batch(slot, home, io),
        }
    }

    /// Goes on with pipelined requests after an answer.
    pub(crate) fn http_resume<I: Io>(&mut self, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        if self.clients.conns.get(conn.slot).outbox != NONE {
            return;
        }
        self.queues.read_again(&mut self.clients.conns, conn, io);
        if self.clients.conns.get(conn.slot).spill != NONE {
            self.http_received(conn.slot, &mut [], home, io);
        }
        let at_end = self.clients.conns.is_current(conn) && {
            let row = self.clients.conns.get(conn.slot);
            let idle = row.state == State::Http && row.outbox == NONE;
            row.is(EOF) && idle && !is_held(&self.clients.conns, conn.slot)
        };
        if at_end {
            self.drop_conn(conn.slot, Close::Now, io);
        }
    }

    /// Carries out all whole requests of `buf`; returns the range that is left, if the connection still exists.
    fn run<I: Io>(
        &mut self,
        slot: u32,
        buf: &mut [u8],
        mut kept: HttpSpill,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<(HttpSpill, Range<usize>)> {
        let conn = self.clients.conns.id_of(slot);
        let (mut at, mut end) = (0, buf.len());
        if self.clients.conns.get(slot).state == State::Proxy {
            match self.proxy_header(slot, buf, io).ok()? {
                Some(len) => at = len,
                None => return Some((kept, 0..end)),
            }
        }
        while self.may_read_request(slot, &buf[at..end], &mut kept, io) {
            self.meter.work.steps.add(1);
            let head_bytes = self.clients.ctx.world.settings.limits.head_bytes;
            // A head has kilobytes: it stays where it is.
            let again;
            let parsed = head::parse(&buf[at..end], head_bytes);
            let mut head = match &parsed {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(error) => {
                    self.refuse_head(slot, *error, &buf[at..end], io);
                    return None;
                }
            };
            if !knows_who(&mut self.clients, &mut self.gate, slot, head, &mut kept, io) {
                break;
            }
            let (body, limit) = self.body(slot, head, io).ok()?;
            let start = at + head.len;
            self.meter.work.steps.add_bytes(head.len);
            let found = match body {
                Body::None => Some((0, 0)),
                Body::Length(len) => {
                    (start + len as usize <= end).then_some((len as usize, len as usize))
                }
                Body::Chunked => {
                    let bytes = &mut buf[start..end];
                    let found = dechunk(bytes, &mut kept, limit, &self.meter.work.steps);
                    // `head` borrowed from bytes that were just overwritten.
                    again = head::parse(&buf[at..start], head_bytes).ok().flatten();
                    head = again.as_ref().expect("the head was read before");
                    match found {
                        Ok(found) => found,
                        Err(error) => {
                            self.refuse_body(slot, (head, body), kept, error, io);
                            return None;
                        }
                    }
                }
            };
            let Some((body_bytes, taken)) = found else {
                if let Some((_, decoded)) = kept.chunked {
                    end = start + decoded;
                }
                let most = match body {
                    Body::Length(len) => len as usize,
                    _ => limit,
                };
                kept.whole = head.len + most;
                self.wait_for_body(slot, (head, body), &mut kept, io).ok()?;
                break;
            };
            let who = core::mem::take(&mut kept).who;
            let data = &buf[start..start + body_bytes];
            self.request_came(slot, (head, body), who, data, home, io);
            at = start + taken;
            if !self.clients.conns.is_current(conn) || self.clients.conns.get(slot).is(CLOSING) {
                return None;
            }
        }
        self.clients.send_reply(slot, io);
        (at < end).then_some((kept, at..end))
    }

    /// Reads the header with which a proxy names its client; returns its length, once it is whole.
    fn proxy_header<I: Io>(
        &mut self,
        slot: u32,
        buf: &[u8],
        io: &mut I,
    ) -> Result<Option<usize>, Refused> {
        match proxy::parse_v2(buf) {
            Ok(Some((client, len))) => {
                self.clients.conns.get_mut(slot).state = State::Http;
                if let Some(client) = client {
                    enter_proxied(
                        &mut self.clients,
                        &mut self.gate,
                        &mut self.meter.stats,
                        slot,
                        client.ip(),
                    );
                }
                Ok(Some(len))
            }
            Ok(None) => Ok(None),
            Err(_) => {
                self.clients.scratch.because(Closed::Refused);
                self.drop_conn(slot, Close::Reset, io);
                Err(Refused)
            }
        }
    }

    /// Whether a request is read from these bytes now. If not, they wait, or are no HTTP.
    fn may_read_request<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        kept: &mut HttpSpill,
        io: &mut I,
    ) -> bool {
        let Some(first) = bytes.first() else {
            return false;
        };
        let row = self.clients.conns.get(slot);
        if row.state != State::Http || row.outbox != NONE {
            return false;
        }
        if self.meter.work.is_spent() {
            kept.held = true;
            self.queues.pause(&mut self.clients, slot, io);
            return false;
        }
        if !self.clients.conns.get(slot).is(SERVED)
            && begins_other_protocol(&mut self.clients.conns, slot, *first)
        {
            return false;
        }
        if !self.clients.conns.get(slot).is(TURNED_AWAY)
            && is_post(bytes)
            && must_stall(&mut self.subs.lanes, &self.clients.ctx)
        {
            kept.held = true;
            self.queues
                .stall(&mut self.clients.conns, &mut self.meter.stats, slot, io);
            return false;
        }
        true
    }

    /// Judges a whole request and carries it out.
    fn request_came<I: Io>(
        &mut self,
        slot: u32,
        (head, body): (&Head<'_>, Body),
        who: Option<Identity>,
        data: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let flow = match judge(
            &mut self.clients,
            &mut self.gate,
            &mut self.meter,
            slot,
            head,
            body,
            who,
        ) {
            Ok(task) => self.carry_out(slot, head, task, data, home, io),
            Err(Answered) => Flow::Next,
        };
        match flow {
            Flow::Next => self.request_done(slot, io),
            Flow::Wait => {}
        }
    }

    /// Refuses bytes that do not begin with a head.
    fn refuse_head<I: Io>(&mut self, slot: u32, error: HeadError, bytes: &[u8], io: &mut I) {
        if error == HeadError::Version && prior::is_http2(bytes) {
            self.clients.scratch.because(Closed::Refused);
            prior::refuse(self.clients.scratch.reply());
            self.clients.send_reply(slot, io);
            self.shut(slot, io);
            return;
        }
        let words: Cow<'_, str> = match error {
            HeadError::TooLarge => format!(
                "{}: limits.head_bytes allows {} bytes, and {MAX_HEADERS} fields are taken",
                error.reason(),
                self.clients.ctx.world.settings.limits.head_bytes
            )
            .into(),
            error => error.reason().into(),
        };
        self.refuse_line(slot, error.status(), &words, io);
    }

    /// Refuses a request for its body. What the head asks for is judged before what is wrong with the body.
    fn refuse_body<I: Io>(
        &mut self,
        slot: u32,
        (head, body): (&Head<'_>, Body),
        kept: HttpSpill,
        error: BodyError,
        io: &mut I,
    ) {
        let refused = !kept.judged
            && judge(
                &mut self.clients,
                &mut self.gate,
                &mut self.meter,
                slot,
                head,
                body,
                kept.who,
            )
            .is_err();
        match refused {
            true => self.request_done(slot, io),
            false if error == BodyError::TooLarge => {
                let (_, reason) = longest_body(&self.clients.ctx, head);
                self.refuse(slot, reason, io);
            }
            false => self.refuse_line(slot, error.status(), error.reason(), io),
        }
    }

    /// A body has not come whole: its head is judged, once, and the client asked for the rest if it waits for that.
    fn wait_for_body<I: Io>(
        &mut self,
        slot: u32,
        (head, body): (&Head<'_>, Body),
        kept: &mut HttpSpill,
        io: &mut I,
    ) -> Result<(), Refused> {
        if kept.judged {
            return Ok(());
        }
        if judge(
            &mut self.clients,
            &mut self.gate,
            &mut self.meter,
            slot,
            head,
            body,
            kept.who.clone(),
        )
        .is_err()
        {
            self.request_done(slot, io);
            return Err(Refused);
        }
        kept.judged = true;
        if head.expects_continue() {
            self.clients
                .scratch
                .reply()
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        Ok(())
    }

    fn keep<I: Io>(&mut self, slot: u32, kept: HttpSpill, io: &mut I) {
        let bytes = kept.bytes();
        // A head of which a part has come is parsed anew when more of it comes.
        let head_bytes = self.clients.ctx.world.settings.limits.head_bytes;
        self.meter.work.steps.add_bytes(bytes.min(head_bytes));
        if !self.has_receive_room(slot, bytes, io) {
            let row = self.clients.conns.get(slot);
            let answer_due = matches!(row.state, State::Waiting | State::Poll);
            return match answer_due && !row.wants(UPGRADE) && !kept.asked {
                true => forget_pipelined(&mut self.clients.conns, &self.queues, slot, io),
                // The bytes are part of a request, or frames behind one.
                false => {
                    self.clients.conns.set_spill(slot, Spill::Http(kept));
                    self.end_for_room(slot, io)
                }
            };
        }
        let head_s = self.clients.ctx.world.settings.timeouts.head_s;
        let row = self.clients.conns.get_mut(slot);
        // A connection with a full socket keeps its deadline.
        if row.state == State::Http && row.outbox == NONE {
            let head_until_s = self.clients.ctx.now.s + head_s;
            if kept.held || kept.judged {
                // It waits for us, or the sweep counts its seconds.
                row.deadline_s = 0;
            } else if row.deadline_s == 0 || row.is(SERVED) && row.deadline_s > head_until_s {
                row.deadline_s = head_until_s;
            }
        }
        self.clients.conns.set_spill(slot, Spill::Http(kept));
    }

    /// How the body of a request is delimited and the most that it may have.
    fn body<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        io: &mut I,
    ) -> Result<(Body, usize), Refused> {
        let (limit, reason) = longest_body(&self.clients.ctx, head);
        // A client that is turned away is answered all the same, but its body is not waited for.
        if self.clients.conns.get(slot).is(TURNED_AWAY) {
            return Ok((Body::None, limit));
        }
        match head.body() {
            Ok(Body::Length(len)) if len > limit as u64 => {
                let words = words::of_reason(reason, &self.clients.ctx.world.settings);
                self.refuse_saying(slot, reason, &format!("{words}: it has {len}"), io);
            }
            Ok(body) => return Ok((body, limit)),
            Err(error) => self.refuse_line(slot, error.status(), error.reason(), io),
        }
        Err(Refused)
    }
}

/// Decodes a body in chunks in place, as far as it was received. Once it is whole, returns how many bytes it has decoded and
/// how many it took encoded.
fn dechunk(
    bytes: &mut [u8],
    kept: &mut HttpSpill,
    limit: usize,
    steps: &Steps,
) -> Result<Option<(usize, usize)>, BodyError> {
    let (mut chunked, decoded) = kept.chunked.unwrap_or_default();
    steps.add((bytes.len() - decoded) / CHUNKED_PER_STEP);
    let progress = chunked.decode(&mut bytes[decoded..], limit)?;
    if progress.done {
        return Ok(Some((decoded + progress.written, decoded + progress.read)));
    }
    kept.chunked = Some((chunked, decoded + progress.written));
    Ok(None)
}

/// Whether the request that begins here publishes, judged by its method alone: only publishes use POST.
fn is_post(bytes: &[u8]) -> bool {
    let blank = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n'));
    bytes[blank.count()..].starts_with(b"POST ")
}

/// The most bytes that the body may have, and why it is refused past that.
fn longest_body(ctx: &Context, head: &Head<'_>) -> (usize, Reason) {
    let limits = &ctx.world.settings.limits;
    match is_batch(head) {
        true => (limits.batch_bytes, Reason::BatchTooLong),
        false => (limits.message_bytes, Reason::MessageTooLong),
    }
}
