//! Reads requests, checks where they come from, and routes them.

use core::ops::Range;

use crore_wire::form;
use crore_wire::http::accept::Accept;
use crore_wire::http::head::{self, Body, Head, Method};
use crore_wire::http::{origin, proxy};

use super::access::{Who, rights};
use super::answer::ANY_ORIGIN;
use super::mqtt::speaks_mqtt;
use crate::conn::{
    ConnId, EOF, FILTERS, FRAMED, HEAD, HTTP10, HttpSpill, JSON, KEEP, ORIGIN_SHIFT, SERVED, Spill,
    State, TURNED_AWAY,
};
use crate::io::{Close, Io};
use crate::mail::Verb;
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

/// The first byte of an MQTT connection, which no request begins with (MQTT 5.0 section 3.1.1).
const MQTT_CONNECT: u8 = 0x10;

/// What a request did to its connection.
pub(super) enum Flow {
    /// Answered in `reply`; the next request may follow.
    Next,
    /// The answer comes later, or the connection is no longer HTTP.
    Wait,
}

/// The request was refused, and its connection closes.
struct Refused;

/// What a path means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Publish,
    Subscribe,
    PubSub,
    Interest,
}

impl Shard {
    /// Bytes of a connection that speaks HTTP.
    pub(crate) fn http_received<I: Io>(&mut self, slot: u32, input: &mut [u8], io: &mut I) {
        let row = self.conns.get_mut(slot);
        if row.spill == NONE {
            if let Some((mut kept, rest)) = self.run(slot, input, HttpSpill::default(), io) {
                if matches!(self.conns.get(slot).state, State::WebSocket | State::Mqtt) {
                    // What came is not HTTP, or stands behind an upgrade that nothing had to be attached for.
                    return self.upgraded(slot, &mut input[rest], io);
                }
                kept.data = input[rest].to_vec();
                self.keep(slot, kept, io);
            }
            return;
        }
        let Spill::Http(mut spill) = self.spills.remove(row.spill) else {
            unreachable!("a connection without an upgrade has no frames")
        };
        row.spill = NONE;
        spill.held = false;
        self.receive_bytes -= spill.data.len();
        let mut data = core::mem::take(&mut spill.data);
        data.extend_from_slice(input);
        if let Some((mut kept, rest)) = self.run(slot, &mut data, spill, io) {
            if matches!(self.conns.get(slot).state, State::WebSocket | State::Mqtt) {
                return self.upgraded(slot, &mut data[rest], io);
            }
            data.truncate(rest.end);
            data.drain(..rest.start);
            kept.data = data;
            self.keep(slot, kept, io);
        }
    }

    /// Bytes of a connection that is not HTTP any more.
    fn upgraded<I: Io>(&mut self, slot: u32, bytes: &mut [u8], io: &mut I) {
        let row = self.conns.get(slot);
        if row.state == State::Mqtt && !row.wants(FRAMED) {
            self.mqtt_received(slot, bytes, io);
        } else {
            self.frames_received(slot, bytes, io);
        }
    }

    /// Goes on with pipelined requests after an answer.
    pub(crate) fn resume<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let row = self.conns.get(conn.slot);
        if row.state == State::Waiting {
            return match row.wants(FILTERS) {
                true => self.catch_up_filters(conn.slot),
                false => self.go_on_with_batch(conn.slot, io),
            };
        }
        if row.state == State::Mqtt {
            return self.mqtt_resume(conn.slot, io);
        }
        if matches!(row.state, State::Sse | State::WebSocket) {
            if row.state == State::WebSocket {
                self.read_again(conn, io);
                self.frames_received(conn.slot, &mut [], io);
            }
            if self.is_current(conn) {
                // A frame may have ended it.
                let row = self.conns.get(conn.slot);
                let streams = matches!(row.state, State::Sse | State::WebSocket);
                if streams && row.outbox == NONE {
                    self.catch_up(conn.slot);
                }
            }
            return;
        }
        if row.state != State::Http || row.outbox != NONE {
            return;
        }
        self.read_again(conn, io);
        if self.conns.get(conn.slot).spill != NONE {
            self.http_received(conn.slot, &mut [], io);
        }
        let at_end = self.is_current(conn) && {
            let row = self.conns.get(conn.slot);
            let idle = row.state == State::Http && row.outbox == NONE;
            row.is(EOF) && idle && !self.is_held(conn.slot)
        };
        if at_end {
            self.drop_conn(conn.slot, Close::Now, io);
        }
    }

    /// Carries out all whole requests of `buf`; returns what is left, if the connection still is.
    fn run<I: Io>(
        &mut self,
        slot: u32,
        buf: &mut [u8],
        mut kept: HttpSpill,
        io: &mut I,
    ) -> Option<(HttpSpill, Range<usize>)> {
        let conn = self.id_of(slot);
        let (mut at, mut end) = (0, buf.len());
        if self.conns.get(slot).state == State::Proxy {
            match proxy::parse_v2(buf) {
                Ok(Some((client, len))) => {
                    at = len;
                    self.conns.get_mut(slot).state = State::Http;
                    if let Some(client) = client {
                        self.enter_proxied(slot, client.ip());
                    }
                }
                Ok(None) => return Some((kept, 0..end)),
                Err(_) => {
                    self.because(Reason::Refused);
                    self.drop_conn(slot, Close::Reset, io);
                    return None;
                }
            }
        }
        loop {
            let row = self.conns.get(slot);
            if at == end || row.state != State::Http || row.outbox != NONE {
                break;
            }
            if self.is_spent() {
                kept.held = true;
                self.pause(slot, io);
                break;
            }
            let row = self.conns.get(slot);
            if !row.is(SERVED) && buf[at] == MQTT_CONNECT {
                self.conns.get_mut(slot).state = State::Mqtt;
                break;
            }
            if !row.is(TURNED_AWAY) && is_post(&buf[at..end]) && self.must_stall() {
                kept.held = true;
                self.stall(slot, io);
                break;
            }
            self.work.steps.add(1);
            let head_bytes = self.world.settings.limits.head_bytes;
            let mut head = match head::parse(&buf[at..end], head_bytes) {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(error) => {
                    self.refuse(slot, error.status(), error.reason(), io);
                    return None;
                }
            };
            if !self.knows_who(slot, &head, &mut kept, io) {
                break;
            }
            let (body, limit) = self.body(slot, &head, io).ok()?;
            let start = at + head.len;
            self.work.steps.add_bytes(head.len);
            let found = match body {
                Body::None => Some((0, 0)),
                Body::Length(len) => {
                    (start + len as usize <= end).then_some((len as usize, len as usize))
                }
                Body::Chunked => {
                    let bytes = &mut buf[start..end];
                    let found = self.dechunk(slot, bytes, &mut kept, limit, io).ok()?;
                    // It borrowed from what was just written.
                    let again = head::parse(&buf[at..start], head_bytes);
                    head = again.ok().flatten().expect("the head was read before");
                    found
                }
            };
            let Some((body_bytes, taken)) = found else {
                if let Some((_, decoded)) = kept.chunked {
                    end = start + decoded;
                }
                if head.expects_continue() && !kept.continued {
                    kept.continued = true;
                    self.reply
                        .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                break;
            };
            let who = core::mem::take(&mut kept).who;
            let flow = self.request(slot, &head, &buf[start..start + body_bytes], who, io);
            at = start + taken;
            match flow {
                Flow::Next => self.request_done(slot, io),
                Flow::Wait => {}
            }
            if !self.is_current(conn) || self.conns.get(slot).state == State::Draining {
                return None;
            }
        }
        self.send_reply(slot, io);
        (at < end).then_some((kept, at..end))
    }

    fn keep<I: Io>(&mut self, slot: u32, kept: HttpSpill, io: &mut I) {
        let rest = &kept.data;
        let (limits, timeouts) = (&self.world.settings.limits, &self.world.settings.timeouts);
        if self.receive_bytes + rest.len() > limits.receive_bytes_per_shard {
            self.refuse(slot, 503, "too many requests are under way", io);
            return;
        }
        let row = self.conns.get_mut(slot);
        if row.state == State::Http {
            let in_body = kept.chunked.is_some() || find_head_end(rest);
            let first = row.flags & SERVED != 0 && row.deadline_s > self.now.s + timeouts.head_s;
            // Who was held has no deadline yet.
            let first = first || row.deadline_s == 0;
            if kept.held {
                // It waits for us. What the socket refused keeps its time.
                if row.outbox == NONE {
                    row.deadline_s = 0;
                }
            } else if in_body {
                row.deadline_s = self.now.s + timeouts.body_s;
            } else if first {
                row.deadline_s = self.now.s + timeouts.head_s;
            }
        }
        self.receive_bytes += rest.len();
        row.spill = self.spills.insert(Spill::Http(kept));
    }

    /// How the body of a request is delimited and the most that it may have.
    fn body<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        io: &mut I,
    ) -> Result<(Body, usize), Refused> {
        let limits = &self.world.settings.limits;
        let (limit, reason) = match is_batch(head) {
            true => (
                limits.batch_bytes,
                "the batch is longer than limits.batch_bytes allows",
            ),
            false => (
                limits.message_bytes,
                "the body is longer than limits.message_bytes allows",
            ),
        };
        // Who is turned away is answered all the same, and waited for no longer.
        if self.conns.get(slot).is(TURNED_AWAY) {
            return Ok((Body::None, limit));
        }
        match head.body() {
            Ok(Body::Length(len)) if len > limit as u64 => self.refuse(slot, 413, reason, io),
            Ok(body) => return Ok((body, limit)),
            Err(error) => self.refuse(slot, error.status(), error.reason(), io),
        }
        Err(Refused)
    }

    /// Decodes a body in chunks in place, as far as it has come. Says how many bytes it has and of how many it was made
    /// once it is whole.
    fn dechunk<I: Io>(
        &mut self,
        slot: u32,
        bytes: &mut [u8],
        kept: &mut HttpSpill,
        limit: usize,
        io: &mut I,
    ) -> Result<Option<(usize, usize)>, Refused> {
        let (mut chunked, decoded) = kept.chunked.unwrap_or_default();
        match chunked.decode(&mut bytes[decoded..], limit) {
            Err(error) => {
                self.refuse(slot, error.status(), error.reason(), io);
                Err(Refused)
            }
            Ok(progress) if progress.done => {
                Ok(Some((decoded + progress.written, decoded + progress.read)))
            }
            Ok(progress) => {
                kept.chunked = Some((chunked, decoded + progress.written));
                Ok(None)
            }
        }
    }

    fn request<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        body: &[u8],
        who: Option<Who>,
        io: &mut I,
    ) -> Flow {
        let keeps = head.keep_alive() && !self.drains();
        let row = self.conns.get_mut(slot);
        row.deadline_s = 0;
        row.options = 0;
        for (option, holds) in [
            (HTTP10, head.minor == 0),
            (KEEP, keeps),
            (HEAD, head.method == Method::Head),
            (JSON, head.accept() == Accept::Json),
        ] {
            if holds {
                row.options |= option;
            }
        }
        let upgrade = head.is_websocket_upgrade();
        if let Err(reason) = self.admit(slot, head, upgrade) {
            self.respond_reason(slot, 403, reason);
            return Flow::Next;
        }
        if let Err(reached) = self.admitted(slot, head) {
            return self.turn_away(slot, head, reached);
        }
        if let Err(refusal) = self.enter_as(slot, who) {
            return self.refuse_credentials(slot, refusal);
        }
        if upgrade && speaks_mqtt(head) {
            return self.upgrade_to_mqtt(slot, head, io);
        }
        let routed = self.route(head.path);
        let routed = routed.filter(|(door, rest)| *door != Door::Interest || rest.is_empty());
        let Some((door, rest)) = routed else {
            self.respond_reason(
                slot,
                404,
                "no such path; topics are published at /pub/{topic} and read at /sub/{topic}",
            );
            return Flow::Next;
        };
        let allowed = match door {
            Door::Publish => "GET, HEAD, POST, PUT, DELETE, OPTIONS",
            Door::Subscribe => "GET, HEAD, OPTIONS",
            Door::PubSub => "GET, OPTIONS",
            Door::Interest => "GET, HEAD, OPTIONS",
        };
        if head.method == Method::Options {
            self.preflight(slot, allowed);
            return Flow::Next;
        }
        let get = matches!(head.method, Method::Get | Method::Head);
        let verb = match head.method {
            _ if get && upgrade => None,
            Method::Put => Some(Verb::Create),
            Method::Delete => Some(Verb::Delete),
            _ => Some(Verb::Info),
        };
        let fits = match door {
            Door::Publish => head.method != Method::Other,
            Door::Subscribe | Door::Interest => get,
            Door::PubSub => head.method == Method::Get,
        };
        if !fits {
            self.method_not_allowed(slot, allowed);
            return Flow::Next;
        }
        if door == Door::Interest {
            return self.follow(slot, head, upgrade);
        }
        if door == Door::PubSub && !upgrade {
            self.respond_reason(slot, 426, "this path takes WebSocket clients only");
            return Flow::Next;
        }
        if door == Door::Publish
            && head.method == Method::Post
            && is_batch(head)
            && rest.is_empty()
            && !names_topic(head)
        {
            if head.header("idempotency-key").is_some() {
                let reason = "in a batch each line has its own idempotency_key";
                self.respond_reason(slot, 400, reason);
                return Flow::Next;
            }
            return self.batch(slot, body, io);
        }
        if door == Door::PubSub && names_filter(head) {
            self.respond_reason(slot, 400, "filters are read at a subscribe path");
            return Flow::Next;
        }
        let filtered = door == Door::Subscribe && names_filter(head);
        let names = match self.topic_names(head, rest, filtered) {
            Ok(names) => names,
            Err(reason) => {
                self.respond_reason(slot, 400, reason);
                return Flow::Next;
            }
        };
        if let Err(denied) = self.may_all(slot, rights(door, verb, head.method), &names) {
            return self.deny(slot, denied);
        }
        match (door, verb) {
            (Door::Interest, _) => unreachable!("followed above"),
            (Door::Subscribe, _) | (Door::PubSub, _) => {
                if filtered {
                    self.conns.get_mut(slot).options |= FILTERS;
                }
                self.subscribe(slot, head, names, door == Door::PubSub, upgrade, io)
            }
            _ if names.len() != 1 => {
                self.respond_reason(slot, 400, "exactly one topic can be named here");
                Flow::Next
            }
            (Door::Publish, None) => self.upgrade_to_publish(slot, head, &names[0], io),
            (Door::Publish, Some(_)) if head.method == Method::Post => {
                let flow = self.publish_one(slot, head, &names[0], body);
                self.stall_if_needed(slot, io);
                flow
            }
            (Door::Publish, Some(verb)) => self.verb(slot, head, verb, &names[0]),
        }
    }

    /// Whether a page of another site sent this, and what scripts may read of the answer.
    fn admit(&mut self, slot: u32, head: &Head<'_>, upgrade: bool) -> Result<(), &'static str> {
        let http = &self.world.settings.http;
        let host = head.host().unwrap_or_default();
        if http.loopback_hosts_only
            && head
                .host()
                .is_some_and(|host| !origin::is_loopback_host(host))
        {
            return Err("this server listens on loopback only and answers only loopback hosts");
        }
        let Some(from) = head.header("origin") else {
            return Ok(());
        };
        let listed = http
            .allowed_origins
            .iter()
            .position(|allowed| allowed == "*" || allowed.as_bytes() == from);
        let safe = matches!(head.method, Method::Get | Method::Head | Method::Options) && !upgrade;
        match listed {
            Some(n) => {
                let any = http.allowed_origins[n] == "*";
                let number = if any { ANY_ORIGIN } else { n as u32 + 1 };
                self.conns.get_mut(slot).options |= number << ORIGIN_SHIFT;
                Ok(())
            }
            None if safe || origin::same_origin(from, host) => Ok(()),
            None => Err("this origin is not allowed; add it to http.allowed_origins"),
        }
    }

    fn route<'p>(&self, path: &'p [u8]) -> Option<(Door, &'p [u8])> {
        let http = &self.world.settings.http;
        for (door, prefixes) in [
            (Door::Publish, &http.publish_paths),
            (Door::Subscribe, &http.subscribe_paths),
            (Door::PubSub, &http.pubsub_paths),
            (Door::Interest, &http.interest_paths),
        ] {
            for prefix in prefixes {
                match path.strip_prefix(prefix.as_bytes()) {
                    Some(b"") => return Some((door, b"")),
                    Some(rest) if rest[0] == b'/' => return Some((door, &rest[1..])),
                    _ => {}
                }
            }
        }
        None
    }

    fn preflight(&mut self, slot: u32, allowed: &str) {
        let head = self.head(slot, 204).header("Allow", allowed.as_bytes());
        head.header("Access-Control-Allow-Methods", allowed.as_bytes())
            .header(
                "Access-Control-Allow-Headers",
                b"Authorization, Content-Type, Accept, If-None-Match, If-Modified-Since, Last-Event-ID, X-EventSource-Event, Crore-Key, Crore-TTL, Crore-Property, Crore-Retain, Idempotency-Key",
            )
            .header("Access-Control-Max-Age", b"600")
            .end();
    }

    fn method_not_allowed(&mut self, slot: u32, allowed: &str) {
        self.head(slot, 405)
            .header("Allow", allowed.as_bytes())
            .content(b"");
    }
}

/// Whether the request that begins here publishes, as far as its method says so: only publishes are made with it.
fn is_post(bytes: &[u8]) -> bool {
    let blank = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n'));
    bytes[blank.count()..].starts_with(b"POST ")
}

fn is_batch(head: &Head<'_>) -> bool {
    head.header("content-type").is_some_and(|value| {
        let name = value.split(|b| *b == b';').next().unwrap_or_default();
        name.trim_ascii()
            .eq_ignore_ascii_case(b"application/x-ndjson")
    })
}

fn names_topic(head: &Head<'_>) -> bool {
    form::pairs(head.query).any(|(key, _)| matches!(key, b"topic" | b"channel"))
}

fn names_filter(head: &Head<'_>) -> bool {
    form::pairs(head.query).any(|(key, _)| key == b"filter")
}

fn find_head_end(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, b"\r\n\r\n").is_some()
}
