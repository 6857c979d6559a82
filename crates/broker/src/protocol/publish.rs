//! Publishing over HTTP: one message, a batch, and verbs on a topic as a whole.

use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::{form, json, ndjson, topic};

use super::task::Flow;
use crate::base::access::Right;
use crate::base::ids::ShardId;
use crate::base::pace::WARMED;
use crate::base::position::{self, Position};
use crate::budget::admission::Reached;
use crate::conn::io::Io;
use crate::conn::{REPLAYED, State};
use crate::home::{Home, Publish, Retry};
use crate::mail::properties;
use crate::mail::{Answer, Ask, Outcome, ReplyTo, Verb};
use crate::protocol::front::Front;
use crate::protocol::side::{Batch, Pending};
use crate::store::slab::NONE;

/// Content types, event names and keys are kept with a one-byte length.
const FIELD_BYTES_MAX: usize = 255;

/// The answer to a publish to one of the server's own topics.
pub(super) const RESERVED: &str = "topics that begin with $ are the server's own";

/// Names of events that only the server uses.
const RESERVED_EVENTS: &[u8] = b"crore.";

/// The answer to a key that was used before for another message.
const OTHER_MESSAGE: &str = "this idempotency key was used for another message";

/// The faults that a field may have: its length, its coding, its characters.
macro_rules! faults {
    ($field:literal) => {
        [
            concat!("the ", $field, " is longer than 255 bytes; shorten it"),
            concat!("the ", $field, " is not UTF-8; send it as UTF-8"),
            concat!("the ", $field, " holds a control character; leave it out"),
        ]
    };
}

/// Checks the fields of a message besides its topic and data. Each of them becomes a header, a line of an event or of a
/// text frame, or a string of MQTT somewhere: so it must be UTF-8 without control characters; that excludes the tab, although a
/// header could hold it.
///
/// # Errors
/// Why it is not published.
pub fn check_fields(content_type: &[u8], event: &[u8], key: &[u8]) -> Result<(), &'static str> {
    for (field, [long, coding, control]) in [
        (content_type, faults!("content type")),
        (event, faults!("event name")),
        (key, faults!("key")),
    ] {
        if field.len() > FIELD_BYTES_MAX {
            return Err(long);
        }
        let text = core::str::from_utf8(field).map_err(|_| coding)?;
        if text.chars().any(char::is_control) {
            return Err(control);
        }
    }
    if event.starts_with(RESERVED_EVENTS) {
        return Err("event names that begin with crore. are the server's own");
    }
    Ok(())
}

/// Seconds that the message lives, if the request says so; numbers beyond 32 bits count as the largest of 32 bits.
fn ttl_s(head: &Head<'_>) -> Result<Option<u32>, &'static str> {
    let Some(text) = head.header("crore-ttl") else {
        return Ok(None);
    };
    let seconds = position::parse_decimal(text)
        .ok_or("Crore-TTL takes a whole number of seconds, in digits")?;
    Ok(Some(u32::try_from(seconds).unwrap_or(u32::MAX)))
}

/// The verb of a DELETE: `?purge` keeps the topic. A value is refused, so that `purge=no` is never taken for a yes.
fn delete_or_purge(head: &Head<'_>) -> Result<Verb, &'static str> {
    match form::pairs(head.query).find(|(key, _)| *key == b"purge") {
        None => Ok(Verb::Delete),
        Some((_, b"")) => Ok(Verb::Purge),
        Some(_) => Err("purge in the query takes no value; leave it out to delete the topic"),
    }
}

/// Whether the message is to be the topic's retained one.
fn retain(head: &Head<'_>) -> Result<bool, &'static str> {
    match head.header("crore-retain") {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err("Crore-Retain takes true or false"),
    }
}

/// The request's idempotency key, if it has one. It is a string in quotes by the draft (section 2.1);
/// most clients leave them out.
fn idempotency_key<'h>(head: &'h Head<'_>) -> Result<Option<&'h [u8]>, &'static str> {
    let Some(text) = head.header("idempotency-key") else {
        return Ok(None);
    };
    let bare = text.strip_prefix(b"\"").and_then(|t| t.strip_suffix(b"\""));
    let key = bare.unwrap_or(text);
    check_idempotency_key(key).map(|()| Some(key))
}

fn check_idempotency_key(key: &[u8]) -> Result<(), &'static str> {
    if key.is_empty() || key.len() > FIELD_BYTES_MAX {
        return Err("an idempotency key has 1 to 255 bytes");
    }
    Ok(())
}

/// Whether WebSocket clients get the message in a binary frame.
pub(crate) fn is_binary(content_type: &[u8], data: &[u8]) -> bool {
    content_type.eq_ignore_ascii_case(b"application/octet-stream")
        || core::str::from_utf8(data).is_err()
}

impl Batch {
    /// Records the outcome of a line that was handed on, unless it was simply published.
    fn line_ended(&mut self, number: u32, outcome: Outcome) {
        let reason = match outcome {
            Outcome::Done(_) | Outcome::Existed(_) => return,
            Outcome::Replayed(_) => {
                self.replayed += 1;
                return;
            }
            Outcome::Full(reached) => reached.reason(),
            Outcome::Missing => Reached::Topics.reason(),
            Outcome::OtherMessage => OTHER_MESSAGE,
        };
        self.lines -= 1;
        self.failed.push((number, reason));
    }
}

impl Front {
    /// The key and publisher by which the home recognizes a retry, if the publish has a key.
    fn retry<'k>(&self, slot: u32, key: Option<&'k [u8]>) -> Option<Retry<'k>> {
        key.map(|key| Retry {
            key,
            publisher: self.party(slot),
        })
    }

    pub(super) fn publish_one(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        name: &[u8],
        data: &[u8],
    ) -> Flow {
        let content_type = head.header("content-type").unwrap_or_default();
        let event = head.header("x-eventsource-event").unwrap_or_default();
        let key = head.header("crore-key").unwrap_or_default();
        let checked = check_fields(content_type, event, key);
        let read = checked.and_then(|()| {
            let attributes = properties::from_headers(head.headers(properties::HEADER))?;
            Ok((
                ttl_s(head)?,
                idempotency_key(head)?,
                attributes,
                retain(head)?,
            ))
        });
        let (ttl_s, key_of_retry, attributes, retain) = match read {
            Ok(read) => read,
            Err(reason) => {
                self.respond_reason(slot, 400, reason);
                return Flow::Next;
            }
        };
        if let Err(reached) = self.may_publish(slot) {
            self.respond_reason(slot, reached.status(), reached.reason());
            return Flow::Next;
        }
        let (hash, home) = self.place_of(name);
        let binary = is_binary(content_type, data);
        let answer = Answer::Full(self.conns.reply_to(slot, 0));
        match self.publish(
            home,
            &Publish {
                hash,
                name,
                data,
                content_type,
                event,
                key,
                attributes: &attributes,
                qos: 1,
                retain,
                ttl_s,
                binary,
                retry: self.retry(slot, key_of_retry),
                client: self.conns.get(slot).client,
            },
            answer,
        ) {
            Some(outcome) => {
                self.respond_outcome(slot, &Pending::Publish, outcome);
                Flow::Next
            }
            None => self.wait(slot, Pending::Publish),
        }
    }

    pub(super) fn verb(&mut self, slot: u32, head: &Head<'_>, verb: Verb, name: &[u8]) -> Flow {
        if topic::is_reserved(name) && verb != Verb::Info {
            self.respond_reason(slot, 403, RESERVED);
            return Flow::Next;
        }
        let verb = match verb {
            Verb::Delete => delete_or_purge(head),
            other => Ok(other),
        };
        let verb = match verb {
            Ok(verb) => verb,
            Err(reason) => {
                self.respond_reason(slot, 400, reason);
                return Flow::Next;
            }
        };
        let to = self.conns.reply_to(slot, 0);
        match self.topic_verb(verb, name, to) {
            Some(outcome) => {
                self.respond_outcome(slot, &Pending::Verb(verb), outcome);
                Flow::Next
            }
            None => self.wait(slot, Pending::Verb(verb)),
        }
    }

    fn wait(&mut self, slot: u32, pending: Pending) -> Flow {
        self.conns.get_mut(slot).state = State::Waiting;
        self.conns.extra(slot).pending = Some(pending);
        Flow::Wait
    }

    fn respond_outcome(&mut self, slot: u32, pending: &Pending, outcome: Outcome) {
        if matches!(outcome, Outcome::Replayed(_)) {
            self.conns.get_mut(slot).options |= REPLAYED;
        }
        match (pending, outcome) {
            (Pending::Publish, Outcome::Done(info) | Outcome::Replayed(info)) => {
                self.respond_info(slot, if info.subscribers > 0 { 201 } else { 202 }, &info);
            }
            (Pending::Verb(Verb::Create), Outcome::Done(info)) => {
                self.respond_info(slot, 201, &info)
            }
            (_, Outcome::Done(info) | Outcome::Existed(info) | Outcome::Replayed(info)) => {
                self.respond_info(slot, 200, &info)
            }
            (_, Outcome::Missing) => self.respond_reason(slot, 404, "there is no such topic"),
            (_, Outcome::Full(reached)) => {
                self.respond_reason(slot, reached.status(), reached.reason());
            }
            (_, Outcome::OtherMessage) => self.respond_reason(slot, 422, OTHER_MESSAGE),
        }
    }

    /// A batch: each line is published by itself; the answer names those that failed.
    pub(super) fn batch<I: Io>(&mut self, slot: u32, body: &[u8], io: &mut I) -> Flow {
        let mut batch = Batch::default();
        let left = self.batch_lines(slot, body, &mut batch);
        if left < body.len() {
            batch.rest = body[left..].to_vec();
            self.conns.hold_bytes(batch.rest.capacity());
            self.resume_later(self.conns.id_of(slot));
            return self.wait(slot, Pending::Batch(batch));
        }
        match self.batch_is_read(slot, &mut batch) {
            true => Flow::Next,
            false => {
                self.stall_if_needed(slot, io);
                self.wait(slot, Pending::Batch(batch))
            }
        }
    }

    /// Goes on with a batch that ran out of its turn, when there is credit.
    pub(super) fn go_on_with_batch<I: Io>(&mut self, slot: u32, io: &mut I) {
        if self.has_batch(slot) && self.must_stall() {
            return self.stall(slot, io);
        }
        let Some(mut batch) = self.take_batch(slot) else {
            return;
        };
        let body = core::mem::take(&mut batch.rest);
        self.conns.let_go_bytes(body.capacity());
        let left = self.batch_lines(slot, &body, &mut batch);
        if left < body.len() {
            batch.rest = body;
            batch.rest.drain(..left);
            self.conns.hold_bytes(batch.rest.capacity());
            self.resume_later(self.conns.id_of(slot));
        } else if self.batch_is_read(slot, &mut batch) {
            return self.answer_waiting(slot, io);
        } else {
            self.stall_if_needed(slot, io);
        }
        self.conns.extra(slot).pending = Some(Pending::Batch(batch));
    }

    /// Whether lines of a batch are left.
    pub(super) fn has_batch(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        row.extra != NONE
            && matches!(&self.conns.extra_of(slot).pending, Some(Pending::Batch(batch)) if !batch.rest.is_empty())
    }

    /// Takes the rest of a batch.
    fn take_batch(&mut self, slot: u32) -> Option<Batch> {
        if !self.has_batch(slot) {
            return None;
        }
        match self.conns.extra(slot).pending.take() {
            Some(Pending::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    /// Drops the rest of a batch: its connection ends.
    pub(crate) fn drop_batch(&mut self, slot: u32) {
        if let Some(batch) = self.take_batch(slot) {
            self.conns.let_go_bytes(batch.rest.capacity());
        }
    }

    /// Publishes lines, as far as the turn's budget goes; returns how many bytes were read.
    fn batch_lines(&mut self, slot: u32, body: &[u8], batch: &mut Batch) -> usize {
        let mut scratch = core::mem::take(self.scratch.lines());
        let (mut rest, first) = (body, batch.number);
        while !rest.is_empty() {
            let done = batch.number - first;
            if done > 0 && self.is_spent() {
                break;
            }
            if (done as usize).is_multiple_of(WARMED) {
                self.warm_lines(rest);
            }
            let (line, after) = ndjson::split_line(rest);
            rest = after;
            batch.number += 1;
            let number = batch.number;
            self.work.steps.add(1);
            if line.is_empty() {
                continue;
            }
            if number as usize > self.world.settings.limits.batch_lines {
                batch.failed.push((
                    number,
                    "more lines than limits.batch_lines allows; this and the rest were not read",
                ));
                rest = b"";
                break;
            }
            match self.batch_line(slot, line, number, &mut scratch) {
                Ok((home, outcome)) => {
                    batch.lines += 1;
                    if let Some(outcome) = outcome {
                        batch.line_ended(number, outcome);
                    }
                    if home != self.lanes.me {
                        batch.remote[home as usize / 64 % 4] |= 1 << (home % 64);
                    }
                }
                Err(reason) => batch.failed.push((number, reason)),
            }
        }
        *self.scratch.lines() = scratch;
        body.len() - rest.len()
    }

    /// All lines were handed on: answers unless other homes still have to; says whether it did.
    fn batch_is_read(&mut self, slot: u32, batch: &mut Batch) -> bool {
        for home in 0..self.world.homes.min(256) {
            if batch.remote[home as usize / 64] & (1 << (home % 64)) != 0 {
                batch.homes += 1;
                let to = self.conns.reply_to(slot, 0);
                self.ask(home, |_| Ask::Fence(to));
            }
        }
        if batch.homes == 0 {
            self.respond_batch(slot, batch);
        }
        batch.homes == 0
    }

    /// Prefetches the rows of the next lines' topics.
    fn warm_lines(&self, mut rest: &[u8]) {
        self.warm_topics(|| {
            let (line, after) = ndjson::split_line(rest);
            let is_any = !core::mem::replace(&mut rest, after).is_empty();
            is_any.then(|| ndjson::leading_topic(line).unwrap_or_default())
        });
    }

    /// Prefetches what publishing to the next topics reads, for those whose home is here. A line without a topic gives an empty name.
    pub(super) fn warm_topics<'a>(&self, next: impl FnMut() -> Option<&'a [u8]>) {
        let large = |home: &&Home| home.is_large(&self.matching);
        let Some(home) = self.home.as_ref().filter(large) else {
            return;
        };
        let mut topics = [(0, &b""[..]); WARMED];
        let mut count = 0;
        for name in core::iter::from_fn(next)
            .take(WARMED)
            .filter(|name| !name.is_empty())
        {
            let (hash, to) = self.place_of(name);
            if to == self.lanes.me {
                topics[count] = (hash, name);
                count += 1;
            }
        }
        // A single prefetch would have nothing to overlap with.
        if count > 1 {
            home.warm(&topics[..count], &self.matching);
        }
    }

    fn batch_line(
        &mut self,
        slot: u32,
        line: &[u8],
        number: u32,
        scratch: &mut ndjson::Scratch,
    ) -> Result<(ShardId, Option<Outcome>), &'static str> {
        let line = ndjson::parse(line, scratch).map_err(|error| error.reason())?;
        let limits = &self.world.settings.limits;
        topic::check_name(line.topic, limits.topic_bytes).map_err(|error| error.reason())?;
        if topic::is_reserved(line.topic) {
            return Err(RESERVED);
        }
        if let Err(denied) = self.may(slot, Right::Publish, line.topic) {
            self.stats.denied += 1;
            return Err(denied.reason());
        }
        if line.data.len() > limits.message_bytes {
            return Err("the data is longer than limits.message_bytes allows");
        }
        if !(line.content_type.is_empty() && line.event.is_empty() && line.key.is_empty()) {
            check_fields(line.content_type, line.event, line.key)?;
        }
        line.idempotency_key.map_or(Ok(()), check_idempotency_key)?;
        self.may_publish(slot).map_err(|reached| reached.reason())?;
        let (hash, home) = self.place_of(line.topic);
        let message = Publish {
            hash,
            name: line.topic,
            data: line.data,
            content_type: line.content_type,
            event: line.event,
            key: line.key,
            attributes: b"",
            qos: 1,
            retain: false,
            ttl_s: line.ttl_s,
            binary: line.binary
                || line
                    .content_type
                    .eq_ignore_ascii_case(b"application/octet-stream"),
            retry: self.retry(slot, line.idempotency_key),
            client: self.conns.get(slot).client,
        };
        let answer = Answer::Failure(self.conns.reply_to(slot, number));
        Ok((home, self.publish(home, &message, answer)))
    }

    fn respond_batch(&mut self, slot: u32, batch: &mut Batch) {
        batch.failed.sort_unstable();
        let mut body = Vec::with_capacity(64);
        body.extend_from_slice(b"{\"published\": ");
        position::write_decimal(&mut body, u64::from(batch.lines));
        if batch.replayed > 0 {
            body.extend_from_slice(b", \"replayed\": ");
            position::write_decimal(&mut body, u64::from(batch.replayed));
        }
        body.extend_from_slice(b", \"failed\": [");
        for (n, (line, reason)) in batch.failed.iter().enumerate() {
            body.extend_from_slice(if n == 0 {
                b"{\"line\": "
            } else {
                b", {\"line\": "
            });
            position::write_decimal(&mut body, u64::from(*line));
            body.extend_from_slice(b", \"reason\": ");
            json::write_string(&mut body, reason.as_bytes());
            body.push(b'}');
        }
        body.extend_from_slice(b"]}\n");
        self.respond(slot, 200, "application/json", &body);
    }

    /// Another shard's answer to a publish or a verb.
    pub(crate) fn outcome<I: Io>(&mut self, to: ReplyTo, outcome: Outcome, io: &mut I) {
        if !self.is_asked(to) {
            return self.late_outcome(to, outcome);
        }
        self.publish_ended(to, outcome, io);
    }

    /// The answer to a request that waits for it.
    pub(super) fn request_outcome<I: Io>(&mut self, to: ReplyTo, outcome: Outcome, io: &mut I) {
        let extra = self.conns.extra(to.slot);
        match &mut extra.pending {
            Some(Pending::Batch(batch)) => batch.line_ended(to.part, outcome),
            Some(_) => {
                let pending = extra.pending.take().expect("it was just seen");
                self.respond_outcome(to.slot, &pending, outcome);
                self.answer_waiting(to.slot, io);
            }
            None => unreachable!("an outcome belongs to a request that waits"),
        }
    }

    /// One home has dealt with its part of a batch.
    pub(crate) fn fenced<I: Io>(&mut self, to: ReplyTo, io: &mut I) {
        if !self.is_asked(to) {
            return self.late_answer(to, false);
        }
        self.fence_passed(to, io);
    }

    /// The same, for a batch that waits.
    pub(super) fn batch_fenced<I: Io>(&mut self, to: ReplyTo, io: &mut I) {
        let extra = self.conns.extra(to.slot);
        let Some(Pending::Batch(batch)) = &mut extra.pending else {
            unreachable!("a fence belongs to a batch that waits")
        };
        batch.homes -= 1;
        if batch.homes > 0 {
            return;
        }
        let Some(Pending::Batch(mut batch)) = extra.pending.take() else {
            unreachable!("it was just seen")
        };
        self.respond_batch(to.slot, &mut batch);
        self.answer_waiting(to.slot, io);
    }

    /// Whether the connection still waits for this answer; a closing one does not.
    pub(crate) fn is_asked(&self, to: ReplyTo) -> bool {
        self.conns.try_get(to.slot).is_some_and(|row| {
            row.is_open()
                && row.state != State::Draining
                && row.generation == to.generation
                && row.request == to.request
        })
    }

    /// The answer to a frame that was published, in the meta subprotocol.
    pub(super) fn acknowledge<I: Io>(
        &mut self,
        slot: u32,
        number: u32,
        outcome: Result<Outcome, Reached>,
        io: &mut I,
    ) {
        let mut text = Vec::with_capacity(64);
        text.extend_from_slice(b"ack: ");
        position::write_decimal(&mut text, u64::from(number));
        match outcome {
            Ok(Outcome::Done(info) | Outcome::Existed(info) | Outcome::Replayed(info)) => {
                text.extend_from_slice(if info.subscribers > 0 {
                    b"\nstatus: 201\nid: "
                } else {
                    b"\nstatus: 202\nid: "
                });
                position::write(
                    &mut text,
                    Position {
                        epoch: info.epoch,
                        offset: info.offset,
                    },
                );
            }
            Ok(Outcome::Missing | Outcome::OtherMessage) => {
                text.extend_from_slice(b"\nstatus: 503")
            }
            Ok(Outcome::Full(reached)) | Err(reached) => {
                text.extend_from_slice(b"\nstatus: ");
                position::write_decimal(&mut text, u64::from(reached.status()));
            }
        }
        text.extend_from_slice(b"\n\n");
        let mut frame = Vec::with_capacity(text.len() + 4);
        crore_wire::websocket::frame::write_frame(
            &mut frame,
            crore_wire::websocket::frame::Opcode::Text,
            &text,
        );
        self.put(slot, &frame, io);
    }
}
