//! Subscribing: the request, the answers of the homes, and how a subscription ends. It works the same for all
//! transports: a response begins when every topic's home has answered, with the messages that the logs held.

mod gap;
mod leave;
mod respond;

pub(super) use gap::Gap;

use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64;

use crore_wire::http::accept::Accept;
use crore_wire::http::etag;
use crore_wire::http::head::Head;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::handshake;
use crore_wire::{form, sse, topic};

use super::answer::VARY;
use super::close_code;
use super::mqtt::packets;
use super::publish::RESERVED;
use super::task::Flow;
use crate::base::planted::{self, Fault};
use crate::base::position::{self, Position, Since};
use crate::conn::io::{Close, Io};
use crate::conn::{
    CONDITIONAL, COUNTED, DEFLATE, ENVELOPE, EOF, EVENTS, FILTERS, FOLLOWS, GAP, HEAD, HTTP10,
    JSON, KEEP, LIVE, META, MULTI, PUBLISHES, RECEIVES, State, UPGRADE,
};
use crate::mail::{Attach, Attached, Frames, Page, Record, ReplyTo};
use crate::protocol::encode::{chunk, meta_line};
use crate::protocol::front::Front;
use crate::protocol::side::{Attaching, Behind, Held, Sub};
use crate::protocol::why::Why;
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// Nchan's subprotocol: each message begins with its id, topic and content type.
const META_PROTOCOL: &str = "ws+meta.nchan";

impl Front {
    /// `GET` on a subscribe path: long-poll, event stream or WebSocket.
    pub(super) fn subscribe<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        names: Vec<Vec<u8>>,
        publishes: bool,
        upgrade: bool,
        io: &mut I,
    ) -> Flow {
        let filtered = self.conns.get(slot).wants(FILTERS);
        let (set, count) = if filtered {
            (self.set_of_homes(), self.world.homes as usize)
        } else {
            (set_hash(&names), names.len())
        };
        let since = match self.since(slot, head, set, count) {
            Ok(since) => since,
            Err(reason) => {
                self.respond_reason(slot, 400, reason);
                return Flow::Next;
            }
        };
        if filtered && since.iter().any(|since| matches!(since, Since::Newest(_))) {
            let reason =
                "with filters, since= takes oldest, live or a position that the server gave";
            self.respond_reason(slot, 400, reason);
            return Flow::Next;
        }
        if publishes && names.len() != 1 {
            self.respond_reason(slot, 400, "frames can be published to one topic only");
            return Flow::Next;
        }
        if publishes && topic::is_reserved(&names[0]) {
            self.respond_reason(slot, 403, RESERVED);
            return Flow::Next;
        }
        let before = self.scratch.reply().len();
        let envelope = form::pairs(head.query).any(|pair| pair == (b"envelope", b"json"));
        let events = !upgrade && head.accept() == Accept::EventStream;
        let row = self.conns.get_mut(slot);
        row.options &= !JSON;
        for (option, wanted) in [
            (ENVELOPE, envelope),
            (RECEIVES, true),
            (PUBLISHES, publishes),
        ] {
            row.options |= if wanted { option } else { 0 };
        }
        if upgrade {
            if let Err((status, reason)) = self.accept_upgrade(slot, head) {
                self.respond_reason(slot, status, reason);
                return Flow::Next;
            }
        } else if events {
            self.conns.get_mut(slot).options |= EVENTS;
            self.events_head(slot, &names[0]);
        }
        if (events || upgrade) && self.conns.get(slot).wants(HEAD) {
            return Flow::Next;
        }
        let begun = self.scratch.take_reply();
        let mut attaching = Attaching {
            waiting: names.len() as u32,
            ..Attaching::default()
        };
        if upgrade || events {
            // The bytes in `reply` before it are answers to pipelined requests.
            attaching.head = begun;
        } else {
            *self.scratch.reply() = begun;
            self.send_reply(slot, io);
        }
        if names.len() > 1 || upgrade || events || filtered {
            self.conns.extra(slot).attaching = Some(attaching);
        }
        if publishes {
            let (hash, _) = self.place_of(&names[0]);
            self.conns.extra(slot).publish_to = Some((hash, names[0].clone()));
        }
        self.conns.get_mut(slot).state = State::Waiting;
        let poll = !(upgrade || events);
        if !filtered {
            self.join_all(slot, &names, &since, poll);
        } else if let Err(reason) = self.join_over_http(slot, &names, &since, poll) {
            return self.not_joined(slot, before, reason);
        }
        Flow::Wait
    }

    /// Answers that the filters were refused; the first `before` bytes of `reply` belong to earlier requests.
    fn not_joined(&mut self, slot: u32, before: usize, reason: &'static str) -> Flow {
        let events = self.conns.get(slot).wants(EVENTS);
        self.unsubscribe(slot);
        if let Some(begun) = self.conns.extra(slot).attaching.take() {
            *self.scratch.reply() = begun.head;
            self.scratch.reply().truncate(before);
        }
        self.conns.drop_extra(slot);
        let row = self.conns.get_mut(slot);
        row.state = State::Http;
        row.options &= !(UPGRADE | EVENTS);
        if events {
            self.shed_events(slot);
        } else {
            self.respond_reason(slot, 503, reason);
        }
        Flow::Next
    }

    fn join_all(&mut self, slot: u32, names: &[Vec<u8>], since: &[Since], poll: bool) {
        if names.len() > 1 {
            self.conns.extra(slot).set = set_hash(names);
            // Only now: code that sees MULTI expects the list.
            self.conns.get_mut(slot).options |= MULTI;
        }
        let deflate = self.conns.get(slot).wants(DEFLATE);
        for (part, name) in names.iter().enumerate() {
            let (hash, _) = self.place_of(name);
            let topic = self.topics.open(hash, name);
            let place = self.topics.join(topic, slot);
            if names.len() > 1 {
                // Until a gap is told, the position is the one that the client came with.
                let seen = match since[part] {
                    Since::At(position) => position,
                    _ => Position {
                        epoch: !self.world.epoch,
                        offset: 0,
                    },
                };
                self.conns.extra(slot).list.push(Sub {
                    topic,
                    place,
                    offset: seen.offset,
                    epoch: seen.epoch,
                    ..Sub::default()
                });
            } else {
                let row = self.conns.get_mut(slot);
                (row.topic, row.place) = (topic, place);
            }
            let row = self.topics.get_mut(topic);
            row.waiting += 1;
            let (hash, serial) = (row.hash, row.serial);
            let to = self.conns.reply_to(slot, part as u32);
            self.attach(Attach {
                hash,
                topic,
                serial,
                to,
                since: since[part],
                poll,
                most: u32::MAX,
                deflate,
                again: false,
                retained: since[part] == Since::Default,
                client: self.conns.get(slot).client,
                party: self.party(slot),
            });
        }
    }

    /// Where to begin: as the headers say, else `since` or `last_event_id` in the query. A client that reconnects by itself, such
    /// as an event source or a cache, repeats the query of its first request, so its headers are newer.
    fn since(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        set: u32,
        count: usize,
    ) -> Result<Vec<Since>, &'static str> {
        let parse = match self.conns.get(slot).wants(FILTERS) {
            true => position::parse_of_homes,
            false => position::parse,
        };
        let tag = head
            .header("if-none-match")
            .and_then(etag::first_entity_tag);
        let time = head
            .header("if-modified-since")
            .and_then(crore_wire::http::date::parse_date);
        if tag.is_some() || time.is_some() {
            self.conns.get_mut(slot).options |= CONDITIONAL;
        }
        let id = head
            .header("last-event-id")
            .filter(|id| !id.is_empty())
            .or(tag);
        if let Some(id) = id {
            // A browser that got 400 here would give up for good, so it is told a gap instead.
            return Ok(parse(id, set, count).unwrap_or_else(|_| alloc::vec![Since::Unknown; count]));
        }
        if let Some(time) = time {
            return Ok(alloc::vec![Since::After(u32::try_from(time).unwrap_or(u32::MAX)); count]);
        }
        for (key, value) in form::pairs(head.query) {
            if matches!(key, b"since" | b"last_event_id") && !value.is_empty() {
                let mut text = Vec::new();
                form::decode(value, &mut text)
                    .map_err(|_| "a bad percent escape in the position")?;
                return parse(&text, set, count).map_err(
                    |_| "since= takes oldest, live, -N or a position that the server gave",
                );
            }
        }
        Ok(alloc::vec![Since::Default; count])
    }

    /// Writes the 101 into `reply`.
    pub(super) fn accept_upgrade(
        &mut self,
        slot: u32,
        head: &Head<'_>,
    ) -> Result<(), (u16, &'static str)> {
        if head.header("sec-websocket-version") != Some(b"13") {
            return Err((426, "Sec-WebSocket-Version must be 13"));
        }
        let key = head
            .header("sec-websocket-key")
            .and_then(handshake::accept_key);
        let key = key.ok_or((400, "Sec-WebSocket-Key must be 16 bytes in base64"))?;
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
    pub(super) fn events_head(&mut self, slot: u32, name: &[u8]) {
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
        text.push(b'\n');
        self.append_events(slot, &text);
    }

    /// Appends event stream bytes to `reply` in the connection's framing.
    fn append_events(&mut self, slot: u32, text: &[u8]) {
        if self.conns.get(slot).wants(HTTP10) {
            self.scratch.reply().extend_from_slice(text);
        } else {
            chunk(self.scratch.reply(), text);
        }
    }

    /// A home's answer to an attach.
    pub(crate) fn page<I: Io>(
        &mut self,
        topic: u32,
        to: ReplyTo,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let counted = page.counted;
        if !page.again {
            self.topics.get_mut(topic).waiting -= 1;
        }
        if self.is_asked(to) {
            self.took_page_of(to.slot);
        }
        let part = self
            .is_asked(to)
            .then(|| self.part_named(to.slot, to.part))
            .flatten()
            .filter(|part| self.topic_of(to.slot, *part) == topic);
        let Some(part) = part else {
            // The connection that asked is gone.
            if counted {
                self.leave(topic);
            }
            if !page.again {
                self.topics.close_if_unused(topic);
            }
            return;
        };
        let slot = to.slot;
        if page.attached != Attached::Yes {
            return self.page_refused(slot, part, page, io);
        }
        if counted {
            *self.flags_of(slot, part) |= COUNTED;
        }
        self.page_came(slot, (topic, part), page, frames, io);
    }

    /// A page for a request or a stream.
    pub(super) fn request_page<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        if self.conns.get(slot).options & (UPGRADE | EVENTS) == 0 {
            self.poll_page(slot, topic, part, page, frames, io);
        } else {
            self.stream_page(slot, topic, part, page, frames, io);
        }
    }

    fn topic_of(&self, slot: u32, part: u32) -> u32 {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return row.topic;
        }
        self.conns
            .extra_of(slot)
            .list
            .get(part as usize)
            .map_or(NONE, |sub| sub.topic)
    }

    fn flags_of(&mut self, slot: u32, part: u32) -> &mut u8 {
        if !self.conns.get(slot).wants(MULTI) {
            return &mut self.conns.get_mut(slot).flags;
        }
        &mut self.conns.extra_mut(slot).list[part as usize].flags
    }

    /// Notes the offset up to which a connection with several topics has seen one of them.
    fn saw(&mut self, slot: u32, part: u32, offset: u64, epoch: u32) {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            let sub = &mut self.conns.extra_mut(slot).list[part as usize];
            (sub.offset, sub.epoch) = (offset, epoch);
        }
    }

    fn poll_page<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        part: u32,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
        if page.gap {
            self.conns.get_mut(slot).options |= GAP;
        }
        self.saw(slot, part, page.head, page.epoch);
        if self.conns.get(slot).wants(MULTI) {
            // The answer names all positions, so all must be known.
            let attaching = self
                .conns
                .extra(slot)
                .attaching
                .as_mut()
                .expect("a set waits for all its topics");
            attaching.waiting -= 1;
            if let [record] = records {
                let seen = Behind {
                    part,
                    offset: record.previous,
                    epoch: page.epoch,
                };
                self.first_of_set(slot, seen, record, frames);
            }
            let attaching = self
                .conns
                .extra(slot)
                .attaching
                .as_mut()
                .expect("it was just seen");
            if attaching.waiting > 0 {
                return;
            }
            if !attaching.held.is_empty() {
                self.answer_first_of_set(slot, io);
                return;
            }
            let gone = attaching.gone;
            self.conns.extra(slot).attaching = None;
            if gone {
                return self.answer_status(slot, 410, "the topic was deleted", io);
            }
        } else if let [record] = records {
            self.answer_poll(slot, topic, record, frames, page.gap, io);
            return;
        }
        let row = self.conns.get(slot);
        if row.wants(HEAD) || row.state == State::Poll {
            return self.answer_nothing(slot, Some(page), io);
        }
        if self.conns.get(slot).is(EOF) {
            // The client hung up before the home had answered.
            return self.drop_conn(slot, Close::Now, io);
        }
        let wait_s = self.poll_rule(topic).poll_timeout_s;
        self.polls_from_now(slot, io);
        let row = self.conns.get_mut(slot);
        row.deadline_s = if wait_s == 0 { 0 } else { self.now.s + wait_s };
        for part in 0..self.parts(slot) {
            *self.flags_of(slot, part) |= LIVE;
        }
    }

    /// Whether messages come as a stream, not a single one as the answer.
    pub(super) fn is_stream(&self, slot: u32) -> bool {
        self.conns.get(slot).options & (UPGRADE | EVENTS) != 0
    }

    fn parts(&self, slot: u32) -> u32 {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            self.conns.extra_of(slot).list.len() as u32
        } else {
            1
        }
    }

    fn poll_rule(&self, topic: u32) -> &crate::base::settings::Rule {
        let rules = &self.world.rules;
        rules.get(rules.number_for(self.topics.name(topic)))
    }

    pub(super) fn not_attached<I: Io>(&mut self, slot: u32, attached: Attached, io: &mut I) {
        let row = self.conns.get(slot);
        if matches!(row.state, State::Sse | State::WebSocket) {
            self.end_for(slot, Why::Deleted, io);
            return;
        }
        let stream = row.wants(UPGRADE) || row.wants(EVENTS);
        match attached {
            Attached::Gone if row.wants(UPGRADE) => {
                self.begin_stream(slot, io);
                self.end_for(slot, Why::Deleted, io);
                return;
            }
            Attached::Gone if row.wants(EVENTS) => {
                self.unsubscribe(slot);
                self.conns.drop_extra(slot);
                self.head(slot, 204).end();
                self.answer_waiting(slot, io);
                return;
            }
            Attached::Full(_) if row.wants(EVENTS) => {
                self.unsubscribe(slot);
                self.conns.drop_extra(slot);
                self.shed_events(slot);
                self.answer_waiting(slot, io);
                return;
            }
            _ => {}
        }
        let (status, reason) = match attached {
            Attached::Gone => (410, "the topic was deleted"),
            Attached::Forbidden => (
                403,
                "publishers create topics here, and none has created this one",
            ),
            Attached::Conflict => (409, "another subscriber waits already"),
            Attached::Full(reached) => (reached.status(), reached.reason()),
            Attached::Yes => unreachable!("this is for the others"),
        };
        if stream {
            self.conns.get_mut(slot).options &= !(UPGRADE | EVENTS);
        }
        self.answer_status(slot, status, reason, io);
    }
}

/// Hash of a set of topics for its positions: another set, or another order, has another hash.
fn set_hash(names: &[Vec<u8>]) -> u32 {
    xxh3_64(&names.join(&b'\n')) as u32
}
