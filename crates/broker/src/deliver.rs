//! Deliveries: what homes tell this shard, on its way to the connections.
//!
//! Tells of one topic are taken in order and together, so that a subscriber gets all that came in a
//! turn with one write. A fan-out is a cursor: when the turn's budget is spent it stays where it is,
//! and everything behind it waits its turn.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::conn::{Behind, COUNTED, ENVELOPE, LIVE, MULTI, State};
use crate::encode::{Encoding, Message};
use crate::io::{Close, Io};
use crate::mail::{Frames, Record, Tell};
use crate::planted::{self, Fault};
use crate::position::{self, Position};
use crate::shard::Shard;
use crate::slab::NONE;

/// Messages of one topic that are taken together.
const TOGETHER_MAX: usize = 256;
/// Parts of one write; past them the parts are copied side by side first.
const PARTS_MAX: usize = 16;

/// What one peer told in one turn.
pub struct Delivery {
    tells: Vec<Tell>,
    frames: Arc<Frames>,
    /// Topic and index of each tell that concerns a topic, in order of both.
    keys: Vec<u64>,
    at: usize,
    place: u32,
    walking: bool,
    own: bool,
}

impl Shard {
    /// Takes tells in; answers to publishers are passed on at once.
    pub(crate) fn enqueue(&mut self, tells: Vec<Tell>, frames: Arc<Frames>, own: bool) {
        let mut keys = Vec::with_capacity(tells.len());
        for (n, tell) in tells.iter().enumerate() {
            // What concerns no topic sorts to the end.
            keys.push(u64::from(tell.topic().unwrap_or(NONE)) << 32 | n as u64);
        }
        keys.sort_unstable();
        self.deliveries.push_back(Delivery {
            tells,
            frames,
            keys,
            at: 0,
            place: 0,
            walking: false,
            own,
        });
    }

    /// Works through the deliveries; false when the budget was spent first.
    pub(crate) fn deliver<I: Io>(&mut self, io: &mut I) -> bool {
        let mut budget = self.pace.visits_per_turn;
        while let Some(mut delivery) = self.deliveries.pop_front() {
            if !self.deliver_one(&mut delivery, &mut budget, io) {
                self.deliveries.push_front(delivery);
                return false;
            }
            let Delivery {
                tells, frames, own, ..
            } = delivery;
            drop(frames);
            if own {
                self.lanes.recycle(tells);
            }
        }
        true
    }

    fn deliver_one<I: Io>(&mut self, d: &mut Delivery, budget: &mut u32, io: &mut I) -> bool {
        while d.at < d.keys.len() {
            if *budget == 0 {
                return false;
            }
            let tell = &d.tells[d.keys[d.at] as u32 as usize];
            match *tell {
                Tell::Live { topic, serial, .. } => {
                    let end = self.gather(d, topic);
                    // Between the parts of a walk its topic cannot be freed: the tombstones hold it.
                    if self.topics.is_current(topic, serial)
                        && !self.fan_out(d, topic, serial, budget, io)
                    {
                        return false;
                    }
                    d.at = end;
                    continue;
                }
                Tell::Page {
                    topic,
                    to,
                    ref page,
                    ..
                } => self.page(topic, to, page, &d.frames, io),
                Tell::Gone { topic, serial } => {
                    if self.topics.is_current(topic, serial) {
                        self.topic_gone(topic, serial, io);
                    }
                }
                Tell::Displaced { topic, serial } => {
                    if self.topics.is_current(topic, serial) {
                        self.displaced(topic, serial, io);
                    }
                }
                Tell::Outcome(to, outcome) => self.outcome(to, outcome, io),
                Tell::Fenced(to) => self.fenced(to, io),
            }
            *budget -= 1;
            d.at += 1;
        }
        true
    }

    /// Collects the run of live messages at the cursor; returns where it ends.
    fn gather(&mut self, d: &Delivery, of: u32) -> usize {
        self.records.clear();
        let mut at = d.at;
        while at < d.keys.len() && self.records.len() < TOGETHER_MAX {
            match &d.tells[d.keys[at] as u32 as usize] {
                Tell::Live { topic, record, .. } if *topic == of => self.records.push(*record),
                _ => break,
            }
            at += 1;
        }
        at
    }

    fn fan_out<I: Io>(
        &mut self,
        d: &mut Delivery,
        topic: u32,
        serial: u16,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let frames = d.frames.clone();
        let records = core::mem::take(&mut self.records);
        if !d.walking {
            for encoded in &mut self.encoded {
                encoded.clear();
            }
        }
        let mut done = true;
        let places = self.topics.places(topic);
        if places == 1 && !d.walking {
            *budget -= 1;
            if let Some(conn) = self.topics.member(topic, 0) {
                self.deliver_to(conn, topic, &records, &frames, io);
            }
        } else {
            if !d.walking {
                self.topics.begin_walk(topic);
                (d.walking, d.place) = (true, 0);
            } else {
                // Other topics were encoded since.
                self.encoded.iter_mut().for_each(|encoded| encoded.clear());
            }
            while d.place < self.topics.places(topic) {
                if *budget == 0 {
                    done = false;
                    break;
                }
                *budget -= 1;
                let place = d.place;
                d.place += 1;
                if let Some(conn) = self.topics.member(topic, place) {
                    self.deliver_to(conn, topic, &records, &frames, io);
                }
            }
            if done {
                d.walking = false;
                self.end_walk(topic);
            }
        }
        if done && self.topics.is_current(topic, serial) {
            self.topics.close_if_unused(topic);
        }
        self.records = records;
        done
    }

    /// Gives every member that moved its new place.
    pub(crate) fn end_walk(&mut self, topic: u32) {
        let (topics, conns, extras) = (&mut self.topics, &mut self.conns, &mut self.extras);
        topics.end_walk(topic, |moved| {
            let row = conns.get_mut(moved.conn);
            if row.wants(MULTI) {
                let sub = extras
                    .get_mut(row.extra)
                    .list
                    .iter_mut()
                    .find(|sub| sub.topic == topic);
                sub.expect("a member has the topic in its list").place = moved.index;
            } else {
                row.place = moved.index;
            }
        });
    }

    fn deliver_to<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        records: &[Record],
        frames: &Frames,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            self.deliver_to_list(slot, topic, records, frames, io);
            return;
        }
        let begun = matches!(row.state, State::WebSocket | State::Sse);
        let live = row.is(LIVE) || begun && planted::is(Fault::LiveBeforeHead);
        if !live {
            return;
        }
        match row.state {
            State::Poll => self.answer_poll(slot, topic, &records[0], frames, false, io),
            State::WebSocket | State::Sse => match Encoding::of(row) {
                Encoding::Frame => self.push_frames(slot, records, frames, io),
                encoding => {
                    self.encode_once(encoding, topic, records, frames);
                    self.push_encoded(slot, encoding, records, io);
                }
            },
            _ => unreachable!("a live subscription is a poll or a stream"),
        }
    }

    fn encode_once(&mut self, encoding: Encoding, topic: u32, records: &[Record], frames: &Frames) {
        let encoded = &mut self.encoded[encoding as usize];
        if !encoded.is_empty() {
            return;
        }
        let mut id = Vec::with_capacity(32);
        for record in records {
            id.clear();
            position::write(
                &mut id,
                Position {
                    epoch: self.world.epoch,
                    offset: record.offset,
                },
            );
            encoded.push(
                &Message {
                    topic: self.topics.name(topic),
                    id: &id,
                    frames,
                    record,
                },
                encoding,
            );
        }
    }

    /// The hot path: the home's frames as they lie, in one write.
    fn push_frames<I: Io>(&mut self, slot: u32, records: &[Record], frames: &Frames, io: &mut I) {
        let row = self.conns.get_mut(slot);
        if row.outbox != NONE {
            self.queue(slot, 0, records, |n| frames.frame(&records[n]));
            return;
        }
        row.sent_s = self.now.s;
        let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let (mut used, mut first, mut total) = (0, 0, 0);
        let mut sent = 0;
        for n in 0..records.len() {
            if n + 1 < records.len() && records[n].touches(&records[n + 1]) {
                continue;
            }
            parts[used] = frames.joined(&records[first], &records[n]);
            total += parts[used].len();
            (used, first) = (used + 1, n + 1);
            if used == PARTS_MAX || first == records.len() {
                sent += io.send(row.link, &parts[..used]);
                used = 0;
                if sent < total {
                    break;
                }
            }
        }
        if sent < total {
            self.keep_rest(slot, sent, records, |n| frames.frame(&records[n]), io);
        }
    }

    fn push_encoded<I: Io>(
        &mut self,
        slot: u32,
        encoding: Encoding,
        records: &[Record],
        io: &mut I,
    ) {
        let encoded = core::mem::take(&mut self.encoded[encoding as usize]);
        let row = self.conns.get_mut(slot);
        if row.outbox != NONE {
            self.queue(slot, 0, records, |n| encoded.one(n));
        } else {
            row.sent_s = self.now.s;
            let sent = io.send(row.link, &[encoded.all()]);
            if sent < encoded.all().len() {
                self.keep_rest(slot, sent, records, |n| encoded.one(n), io);
            }
        }
        self.encoded[encoding as usize] = encoded;
    }

    /// Keeps what the socket refused: the rest of the message that was cut, and those behind it as
    /// far as the outbox allows.
    fn keep_rest<'f, I: Io>(
        &mut self,
        slot: u32,
        sent: usize,
        records: &[Record],
        bytes_of: impl Fn(usize) -> &'f [u8],
        io: &mut I,
    ) {
        let (mut n, mut before) = (0, 0);
        while before + bytes_of(n).len() <= sent {
            before += bytes_of(n).len();
            n += 1;
        }
        if sent > before && planted::is(Fault::HalfFrame) {
            self.refused(slot, &[], io);
            n += 1;
        } else if sent > before {
            self.refused(slot, &bytes_of(n)[sent - before..], io);
            n += 1;
        } else {
            self.refused(slot, &[], io);
        }
        self.queue(slot, n, records, bytes_of);
    }

    /// Puts whole messages behind what waits; past the limits the subscription falls back to its
    /// position and reads on from the log when the socket drains.
    fn queue<'f>(
        &mut self,
        slot: u32,
        from: usize,
        records: &[Record],
        bytes_of: impl Fn(usize) -> &'f [u8],
    ) {
        let limits = &self.world.settings.limits;
        let outbox = self.outboxes.get_mut(self.conns.get(slot).outbox);
        for (n, record) in records.iter().enumerate().skip(from) {
            let bytes = bytes_of(n);
            let fits = outbox.waiting_bytes() + bytes.len() <= limits.outbox_bytes
                && self.outbox_bytes + bytes.len() <= limits.outbox_bytes_per_shard;
            if !fits {
                self.conns.get_mut(slot).flags &= !LIVE;
                self.stats.fallbacks += 1;
                let behind = Behind {
                    part: 0,
                    offset: record.previous,
                    epoch: self.world.epoch,
                };
                self.extra(slot).behind.push(behind);
                return;
            }
            outbox.bytes.extend_from_slice(bytes);
            self.outbox_bytes += bytes.len();
        }
    }

    /// A connection with several topics: each message is encoded for it, since the position names
    /// all of them.
    fn deliver_to_list<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        records: &[Record],
        frames: &Frames,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        let (extra, state) = (row.extra, row.state);
        let list = &self.extras.get(extra).list;
        let part = list
            .iter()
            .position(|sub| sub.topic == topic)
            .expect("a member has the topic in its list");
        if list[part].flags & (COUNTED | LIVE) != COUNTED | LIVE {
            return;
        }
        if state == State::Poll {
            self.extras.get_mut(extra).list[part].offset = records[0].offset;
            self.answer_poll(slot, topic, &records[0], frames, false, io);
            return;
        }
        for record in records {
            let extra_row = self.extras.get_mut(extra);
            extra_row.list[part].offset = record.offset;
            let mut bytes = Vec::new();
            self.encode_for(slot, topic, record, frames, &mut bytes);
            let extra_row = self.extras.get_mut(extra);
            if let Some(attaching) = &mut extra_row.attaching {
                attaching.body.extend_from_slice(&bytes);
                continue;
            }
            let row = self.conns.get(slot);
            if row.outbox == NONE {
                self.put(slot, &bytes, io);
                continue;
            }
            let limits = &self.world.settings.limits;
            let fits = self.outboxes.get(row.outbox).waiting_bytes() + bytes.len()
                <= limits.outbox_bytes
                && self.outbox_bytes + bytes.len() <= limits.outbox_bytes_per_shard;
            if fits {
                self.put(slot, &bytes, io);
                continue;
            }
            self.stats.fallbacks += 1;
            extra_row.list[part].flags &= !LIVE;
            extra_row.list[part].offset = record.previous;
            let epoch = extra_row.list[part].epoch;
            extra_row.behind.push(Behind {
                part: part as u32,
                offset: record.previous,
                epoch,
            });
            return;
        }
    }

    /// Encodes one message for one connection, with the connection's own position.
    pub(crate) fn encode_for(
        &self,
        slot: u32,
        topic: u32,
        record: &Record,
        frames: &Frames,
        out: &mut Vec<u8>,
    ) {
        let row = self.conns.get(slot);
        let mut id = Vec::with_capacity(32);
        self.write_id(slot, record.offset, &mut id);
        let encoding = match Encoding::of(row) {
            // Several topics in plain frames: nothing names the topic but the envelope.
            Encoding::Packed if row.wants(MULTI) => Encoding::Frame,
            encoding => encoding,
        };
        debug_assert!(row.wants(ENVELOPE) || encoding != Encoding::FrameEnvelope);
        Message {
            topic: self.topics.name(topic),
            id: &id,
            frames,
            record,
        }
        .encode(encoding, out);
    }

    /// The position of a connection that has just seen `offset`.
    pub(crate) fn write_id(&self, slot: u32, offset: u64, out: &mut Vec<u8>) {
        let row = self.conns.get(slot);
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
        let extra = self.extras.get(row.extra);
        let seen = extra.list.iter().map(|sub| Position {
            epoch: sub.epoch,
            offset: sub.offset,
        });
        position::write_set(out, extra.set, seen);
    }

    /// The members of a topic, for those rare tells that concern them all.
    fn members(&self, topic: u32) -> Vec<u32> {
        (0..self.topics.places(topic))
            .filter_map(|place| self.topics.member(topic, place))
            .collect()
    }

    fn topic_gone<I: Io>(&mut self, topic: u32, serial: u16, io: &mut I) {
        for slot in self.members(topic) {
            if self.topics.is_current(topic, serial) {
                self.end_of_topic(slot, io);
            }
        }
    }

    fn displaced<I: Io>(&mut self, topic: u32, serial: u16, io: &mut I) {
        for slot in self.members(topic) {
            let is_poll = self.conns.get(slot).state == State::Poll;
            if self.topics.is_current(topic, serial) && is_poll {
                self.answer_status(slot, 409, "a later subscriber took this place", io);
            }
        }
    }

    /// Ends a connection that cannot be served further.
    pub(crate) fn reset<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.drop_conn(slot, Close::Reset, io);
    }
}
