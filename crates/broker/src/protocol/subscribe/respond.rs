//! Responses to subscribers: pages and ends of streams, and the answers to long-polls.

use super::*;
use crate::budget::admission::Client;
use crate::budget::stats::Reason;
use crate::mail::properties;
use crate::protocol::encode::Encoding;
use crate::protocol::encode::Message;

impl Front {
    pub(super) fn stream_page<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        part: u32,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        if row.wants(MULTI) && !matches!(row.state, State::Sse | State::WebSocket) {
            return self.first_page_of_set(slot, part, page, frames, io);
        }
        let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
        let begun = matches!(row.state, State::Sse | State::WebSocket);
        let mut bytes = Rope::default();
        if page.gap {
            let from = records.first().map_or(page.head, |record| record.previous);
            self.saw(slot, part, from, page.epoch);
            if !self.tell_gap(slot, topic, from, page.again, &mut bytes.own) {
                self.begin_stream(slot, io);
                self.end_for_gap(slot, from, io);
                return;
            }
            if begun {
                self.put(slot, &bytes.own, io);
                bytes.clear();
            }
        }
        let mut ends = Vec::with_capacity(records.len());
        for record in records {
            self.saw(slot, part, record.offset, page.epoch);
            self.encode_for(slot, topic, record, frames, &mut bytes);
            ends.push(bytes.len());
        }
        let (mut head, mut at_head) = (page.head, page.at_head);
        if begun && records.iter().any(|record| record.latest) {
            let taken = self.offer(slot, &bytes, &ends, io);
            if let Some(left) = records.get(taken) {
                (head, at_head) = (left.previous, false);
            }
        } else {
            self.stats.sent(records.len(), bytes.len());
            if begun {
                self.put_rope(slot, &bytes, io);
            }
        }
        self.saw(slot, part, head, page.epoch);
        if at_head {
            *self.flags_of(slot, part) |= LIVE;
        } else {
            let behind = Behind {
                part,
                offset: head,
                epoch: page.epoch,
            };
            self.conns.extra(slot).behind.push(behind);
        }
        if !begun {
            let silent = records.is_empty() && self.conns.get(slot).wants(EVENTS);
            let extra = self.conns.extra(slot);
            let attaching = extra
                .attaching
                .as_mut()
                .expect("a stream that is not begun is attaching");
            attaching.body.append(&bytes, 0, bytes.len());
            if silent {
                self.tell_position(slot, page.head);
            }
            self.begin_stream(slot, io);
        }
        let row = self.conns.get(slot);
        if row.outbox == NONE && row.extra != NONE && !planted::is(Fault::LostWake) {
            // The next page is asked for when the frames of this one are released.
            self.resume_later(self.conns.id_of(slot));
        }
    }

    /// The position in a message of a set names all its topics, so nothing is encoded before the
    /// last of them has answered.
    fn first_page_of_set<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
        let from = records.first().map_or(page.head, |record| record.previous);
        if !page.gap {
            self.saw(slot, part, from, page.epoch);
        }
        if page.at_head {
            *self.flags_of(slot, part) |= LIVE;
        }
        let extra = self.conns.extra(slot);
        if !page.at_head {
            extra.behind.push(Behind {
                part,
                offset: page.head,
                epoch: page.epoch,
            });
        }
        let attaching = extra
            .attaching
            .as_mut()
            .expect("a stream that is not begun is attaching");
        if page.gap {
            attaching.held.push(Held::Gap(part, from));
        }
        for record in records {
            let record = attaching.frames.copy(record, frames);
            attaching.held.push(Held::Message(part, record));
        }
        attaching.waiting -= 1;
        if attaching.waiting == 0 {
            self.begin_set(slot, io);
        }
    }

    /// All topics of the set have answered.
    fn begin_set<I: Io>(&mut self, slot: u32, io: &mut I) {
        let attaching = self.conns.extra(slot).attaching.as_mut();
        let attaching = attaching.expect("a stream that is not begun is attaching");
        let gone = attaching.gone;
        let held = core::mem::take(&mut attaching.held);
        let frames = core::mem::take(&mut attaching.frames);
        let mut bytes = Rope::default();
        let mut later: Vec<u32> = Vec::new();
        for item in &held {
            match *item {
                Held::Message(part, _) if later.contains(&part) => {}
                Held::Message(part, ref record)
                    if !bytes.is_empty() && {
                        let more = bytes.len() + frames.frame(record).len();
                        more > self.world.settings.limits.outbox_bytes
                    } =>
                {
                    // The rest is in the log, and is read when the socket has taken an outbox's worth.
                    later.push(part);
                    self.read_later(slot, part, record.previous);
                }
                Held::Message(part, ref record) => {
                    self.saw(slot, part, record.offset, self.world.epoch);
                    let (topic, start) = (self.topic_of(slot, part), bytes.len());
                    self.encode_for(slot, topic, record, &frames, &mut bytes);
                    self.stats.sent(1, bytes.len() - start);
                }
                Held::Gap(part, from) => {
                    self.saw(slot, part, from, self.world.epoch);
                    let topic = self.topic_of(slot, part);
                    if !self.tell_gap(slot, topic, from, false, &mut bytes.own) {
                        self.begin_with(slot, &bytes, io);
                        self.end_for_gap(slot, from, io);
                        return;
                    }
                }
            }
        }
        if held.is_empty() && self.conns.get(slot).wants(EVENTS) {
            self.tell_position(slot, 0);
        }
        self.begin_with(slot, &bytes, io);
        if gone {
            self.end_for(slot, Why::Deleted, io);
            return;
        }
        if self.conns.get(slot).outbox == NONE {
            self.resume_later(self.conns.id_of(slot));
        }
    }

    /// A topic of a set is read on from the log, after this offset.
    fn read_later(&mut self, slot: u32, part: u32, offset: u64) {
        let epoch = self.world.epoch;
        self.saw(slot, part, offset, epoch);
        *self.flags_of(slot, part) &= !LIVE;
        let behind = &mut self.conns.extra(slot).behind;
        behind.retain(|behind| behind.part != part);
        behind.push(Behind {
            part,
            offset,
            epoch,
        });
    }

    pub(in crate::protocol) fn begin_with<I: Io>(&mut self, slot: u32, body: &Rope, io: &mut I) {
        if let Some(attaching) = &mut self.conns.extra(slot).attaching {
            attaching.body.append(body, 0, body.len());
        }
        self.begin_stream(slot, io);
    }

    /// An event without data: a browser remembers the position before the first message.
    pub(in crate::protocol) fn tell_position(&mut self, slot: u32, offset: u64) {
        let mut text = Vec::with_capacity(48);
        text.extend_from_slice(b"id: ");
        self.write_id(slot, offset, &mut text);
        text.extend_from_slice(b"\n\n");
        let before = self.scratch.take_reply();
        self.append_events(slot, &text);
        let bytes = core::mem::replace(self.scratch.reply(), before);
        let attaching = self
            .conns
            .extra(slot)
            .attaching
            .as_mut()
            .expect("the stream is not begun");
        attaching.body.own.extend_from_slice(&bytes);
    }

    /// Sends the response's head with what came in so far.
    pub(crate) fn begin_stream<I: Io>(&mut self, slot: u32, io: &mut I) {
        let Some(attaching) = self.conns.extra(slot).attaching.take() else {
            return;
        };
        let row = self.conns.get_mut(slot);
        row.state = if row.wants(UPGRADE) {
            State::WebSocket
        } else {
            State::Sse
        };
        row.deadline_s = 0;
        let plain = row.options & (MULTI | PUBLISHES | FOLLOWS | FILTERS) == 0;
        let mut body = attaching.body;
        body.put_before(&attaching.head);
        self.put_rope(slot, &body, io);
        self.drop_spill_of_stream(slot, io);
        if plain && self.conns.get(slot).extra != NONE && self.conns.extra(slot).behind.is_empty() {
            self.conns.drop_extra(slot);
        }
    }

    /// Bytes received behind an upgrade are frames; behind an event stream they have no meaning.
    pub(super) fn drop_spill_of_stream<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        if row.flags & crate::conn::PAUSED != 0 {
            row.flags &= !crate::conn::PAUSED;
            self.conns.update_interest(slot, io);
        }
        let conn = self.conns.id_of(slot);
        let row = self.conns.get(slot);
        if row.spill == NONE {
            return;
        }
        if row.state == State::WebSocket {
            // Only later: a delivery is under way, and a frame may publish.
            self.resume_later(conn);
            return;
        }
        self.conns.take_spill(slot);
    }

    /// Ends a stream properly: with a close frame, or the last chunk.
    pub(crate) fn end_stream<I: Io>(&mut self, slot: u32, code: u16, reason: &str, io: &mut I) {
        let row = self.conns.get(slot);
        if row.state == State::Draining {
            self.ending.forget_reason();
            return;
        }
        self.because(close_code::reason(code));
        let row = self.conns.get(slot);
        let mut bytes = Vec::new();
        if self.has_frames(slot) {
            frame::write_close(&mut bytes, code, reason);
        } else if !row.wants(HTTP10) {
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        self.put(slot, &bytes, io);
        self.shut(slot, io);
    }

    /// Keeps the first message that any topic of the set had; later ones stay unseen for the next poll.
    pub(crate) fn first_of_set(
        &mut self,
        slot: u32,
        unseen: Behind,
        record: &Record,
        frames: &Frames,
    ) {
        let attaching = self.conns.extra(slot).attaching.as_mut();
        let Some(attaching) = attaching.filter(|a| a.held.is_empty()) else {
            self.saw(slot, unseen.part, unseen.offset, unseen.epoch);
            return;
        };
        let record = attaching.frames.copy(record, frames);
        attaching.held.push(Held::Message(unseen.part, record));
    }

    pub(super) fn answer_first_of_set<I: Io>(&mut self, slot: u32, io: &mut I) {
        let attaching = self.conns.extra(slot).attaching.take();
        let attaching = attaching.expect("it holds the message");
        let [Held::Message(part, record)] = &attaching.held[..] else {
            unreachable!("a long-poll holds one message")
        };
        let topic = self.topic_of(slot, *part);
        self.answer_poll(slot, topic, record, &attaching.frames, false, io);
    }

    /// Answers a long-poll with a message.
    pub(crate) fn answer_poll<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        record: &Record,
        frames: &Frames,
        gap: bool,
        io: &mut I,
    ) {
        let mut id = core::mem::take(self.scratch.id());
        id.clear();
        self.write_id(slot, record.offset, &mut id);
        // For a single topic in plain form the client knows its name, so none is allocated.
        let is_named = self.conns.get(slot).options & (MULTI | FILTERS | ENVELOPE) != 0;
        let name = if is_named {
            self.topics.name(topic).to_vec()
        } else {
            Vec::new()
        };
        self.answer_poll_with(slot, &name, &id, record, frames, gap, io);
        *self.scratch.id() = id;
    }

    /// The same, for a message of this topic, at this position.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol) fn answer_poll_with<I: Io>(
        &mut self,
        slot: u32,
        name: &[u8],
        id: &[u8],
        record: &Record,
        frames: &Frames,
        gap: bool,
        io: &mut I,
    ) {
        self.stats.sent(1, frames.data(record).len());
        let row = self.conns.get(slot);
        let (options, gap) = (row.options, gap || row.wants(GAP));
        let names_topic = options & (MULTI | FILTERS) != 0;
        let left_s = properties::left_s(record, self.now.unix_s);
        let mut content_type = frames.content_type(record);
        let message = Message {
            topic: name,
            id,
            frames,
            record,
            now_s: self.now.unix_s,
        };
        let mut body = Rope::default();
        if options & ENVELOPE != 0 {
            message.envelope(&mut self.forms, &mut body);
            content_type = b"application/json";
        } else if content_type.is_empty() {
            content_type = if record.binary {
                b"application/octet-stream"
            } else {
                b"text/plain; charset=utf-8"
            };
        }
        // Small data is copied into the answer from where it lies.
        let data = match body.is_empty() && frames.large(record).is_none() {
            true => frames.data(record),
            false => b"",
        };
        if options & ENVELOPE == 0 && data.is_empty() {
            message.data(&mut body);
        }
        let mut head = self
            .head(slot, 200)
            .header("Content-Type", content_type)
            .header_parts("ETag", &[b"\"", id, b"\""])
            .date("Last-Modified", u64::from(record.time_s))
            .header("Cache-Control", b"private, no-cache")
            .header("Vary", VARY);
        if names_topic {
            head = head.header("Crore-Topic", name);
        }
        if !frames.event(record).is_empty() {
            head = head.header("Crore-Event", frames.event(record));
        }
        if !frames.key(record).is_empty() {
            head = head.header("Crore-Key", frames.key(record));
        }
        for property in properties::to_headers(frames, record) {
            head = head.header(properties::HEADER, &property);
        }
        if let Some(left_s) = left_s {
            head = head.number("Crore-TTL", u64::from(left_s));
        }
        if gap {
            head = head.header("Crore-Gap", b"messages before this one are lost");
        }
        let bytes = data.len() + body.len();
        head.number("Content-Length", bytes as u64).end();
        if options & HEAD == 0 {
            self.scratch.reply().extend_from_slice(data);
        } else {
            body.clear();
        }
        self.unsubscribe(slot);
        self.conns.drop_extra(slot);
        if !body.is_empty() {
            body.put_before(&self.scratch.take_reply());
            self.put_rope(slot, &body, io);
        }
        self.answer_waiting(slot, io);
    }

    /// A long-poll has timed out without a message: the answer gives its position. For a single topic only the home
    /// knows that. A message that comes before the home has said it is the answer instead.
    pub(crate) fn end_poll<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        row.deadline_s = 0;
        if row.options & (MULTI | FILTERS) != 0 {
            return self.answer_nothing(slot, None, io);
        }
        let topic = row.topic;
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        let to = self.conns.reply_to(slot, 0);
        self.attach(Attach {
            hash,
            topic,
            serial,
            to,
            since: Since::Live,
            poll: true,
            most: 1,
            deflate: false,
            again: true,
            retained: false,
            client: Client::NOBODY,
            party: self.party(slot),
        });
    }

    /// The position after all messages that a long-poll was promised: `page` is the state of its only topic.
    fn position_of_poll(&self, slot: u32, page: Option<&Page>) -> Vec<u8> {
        let mut id = Vec::with_capacity(48);
        match page {
            Some(page) if !self.conns.get(slot).wants(MULTI) => {
                let (epoch, offset) = (page.epoch, page.head);
                position::write(&mut id, Position { epoch, offset });
            }
            _ => self.write_id(slot, 0, &mut id),
        }
        id
    }

    /// Answers a long-poll that got no message.
    pub(in crate::protocol) fn answer_nothing<I: Io>(
        &mut self,
        slot: u32,
        page: Option<&Page>,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        let options = row.options;
        let rule = if options & FILTERS != 0 {
            self.filter_rule(slot)
        } else {
            self.poll_rule(self.topic_of(slot, 0))
        };
        let status = match rule.poll_timeout_status {
            408 => 408,
            _ if options & (CONDITIONAL | GAP) == CONDITIONAL => 304,
            _ => 204,
        };
        let tag = [b"\"", &self.position_of_poll(slot, page)[..], b"\""].concat();
        // RFC 9110 section 15.4.5: a 304 that has a tag needs no date.
        let newest_s = page
            .filter(|_| options & MULTI == 0 && status != 304)
            .and_then(|page| page.newest_s);
        let retry_after_s = u64::from(self.retry_after_s(slot));
        let drains = self.drains();
        if drains && options & KEEP == 0 {
            self.because(Reason::Operator);
        }
        let mut head = self.head(slot, status).header("ETag", &tag);
        if let Some(newest_s) = newest_s {
            head = head.date("Last-Modified", u64::from(newest_s));
        }
        head = head
            .header("Cache-Control", b"private, no-cache")
            .header("Vary", VARY);
        if drains {
            head = head.number("Retry-After", retry_after_s);
        }
        if options & GAP != 0 {
            head = head.header("Crore-Gap", b"messages before this position are lost");
        }
        if status == 408 {
            head.number("Content-Length", 0).end()
        } else {
            head.end()
        }
        self.unsubscribe(slot);
        self.conns.drop_extra(slot);
        self.answer_waiting(slot, io);
    }
}

impl Front {
    /// Encodes one message for one connection, with the connection's own position.
    pub(crate) fn encode_for(
        &mut self,
        slot: u32,
        topic: u32,
        record: &Record,
        frames: &Frames,
        out: &mut Rope,
    ) {
        let row = self.conns.get(slot);
        let mut id = Vec::with_capacity(32);
        self.write_id(slot, record.offset, &mut id);
        let encoding = match Encoding::of(row) {
            // Several topics in plain frames: only the envelope names the topic.
            Encoding::Packed if row.wants(MULTI) => Encoding::Frame,
            encoding => encoding,
        };
        debug_assert!(row.wants(ENVELOPE) || encoding != Encoding::FrameEnvelope);
        Message {
            topic: self.topics.name(topic),
            id: &id,
            frames,
            record,
            now_s: self.now.unix_s,
        }
        .encode(encoding, &mut self.forms, out);
    }

    /// The position of a connection that has just seen `offset`.
    pub(crate) fn write_id(&self, slot: u32, offset: u64, out: &mut Vec<u8>) {
        let row = self.conns.get(slot);
        if row.wants(FILTERS) {
            return self.write_matched_id(slot, None, out);
        }
        if !row.wants(MULTI) {
            position::write(
                out,
                Position {
                    epoch: self.world.epoch,
                    offset,
                },
            );
            return;
        }
        let extra = self.conns.extra_of(slot);
        let seen = extra.list.iter().map(|sub| Position {
            epoch: sub.epoch,
            offset: sub.offset,
        });
        position::write_set(out, extra.set, seen);
    }
}
