//! Deliveries: what homes tell this shard, on its way to the connections.
//!
//! Tells of one topic are taken in order and together, so that a subscriber gets all that came in a
//! turn with one write. A fan-out is a cursor: when the turn's budget is spent it stays where it is,
//! and everything behind it waits its turn.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::conn::{Behind, COUNTED, ENVELOPE, EVENTS, FILTERS, Held, LIVE, MULTI, State, UPGRADE};
use crate::connection::mqtt;
use crate::encode::{Encoding, Message};
use crate::io::Io;
use crate::mail::{Frames, Record, ShardId, Tell};
use crate::matched::{Matched, Run};
use crate::planted::{self, Fault};
use crate::position::{self, Position};
use crate::rope::Rope;
use crate::run::cost_of_bytes;
use crate::shard::Shard;
use crate::slab::NONE;
use crate::work::STEP_BYTES;

/// Messages of one topic that are taken together.
const TOGETHER_MAX: usize = 256;
/// Bytes of them, but for the last: more in one write brings nothing, and a visit is not to take long.
const TOGETHER_BYTES: usize = 256 << 10;
/// Deliveries whose rows are touched ahead: about as many cache misses as a core has under way at once.
pub(crate) const WARMED: usize = 16;

/// What one peer told in one turn.
pub struct Delivery {
    tells: Vec<Tell>,
    frames: Arc<Frames>,
    /// Topic and index of each tell that concerns a topic, in order of both.
    keys: Vec<u64>,
    at: usize,
    pub(crate) place: u32,
    pub(crate) walking: bool,
    /// Who told it.
    pub(crate) home: ShardId,
    pub(crate) run: Run,
}

/// What a tell to one connection costs, in visits.
fn cost_of(tell: &Tell) -> u32 {
    match tell {
        Tell::Page { page, .. } => 1 + page.count / TOLD_PER_VISIT,
        Tell::Matches { page, .. } => 1 + page.count / TOLD_PER_VISIT,
        Tell::Interest { news, .. } => 1 + (news.len() / STEP_BYTES) as u32,
        _ => 1,
    }
}

/// Messages of a page that are written in the time of a visit, which is a write.
const TOLD_PER_VISIT: u32 = 8;

/// Stands for the topic of all tells that keep the order in which they were told.
const IN_ORDER: u32 = NONE - 1;

/// Messages for filters keep their order, and with them all that concerns one of their topics.
fn keep_order(tells: &[Tell], keys: &mut [u64]) {
    let of = |tell: &Tell| match tell {
        Tell::Match { topic, .. } => Some(*topic),
        _ => None,
    };
    let mut mixed: Vec<u32> = tells
        .iter()
        .filter_map(of)
        .filter(|topic| *topic != NONE)
        .collect();
    mixed.sort_unstable();
    for (n, (key, tell)) in keys.iter_mut().zip(tells).enumerate() {
        let is_mixed = |topic: u32| topic != NONE && mixed.binary_search(&topic).is_ok();
        let in_order = matches!(tell, Tell::Match { .. } | Tell::Matches { .. })
            || tell.topic().is_some_and(is_mixed);
        if in_order {
            *key = u64::from(IN_ORDER) << 32 | n as u64;
        }
    }
}

impl Delivery {
    /// The tell that stands so far behind the cursor.
    pub(crate) fn try_tell(&self, behind: usize) -> Option<&Tell> {
        let key = self.keys.get(self.at + behind)?;
        self.tells.get(*key as u32 as usize)
    }

    /// The tell that stands so far behind the cursor; there is one.
    pub(crate) fn tell(&self, behind: usize) -> &Tell {
        self.try_tell(behind).expect("the run is that long")
    }

    /// The message that stands so far behind the cursor.
    pub(crate) fn matched(&self, behind: usize) -> Matched {
        match *self.tell(behind) {
            Tell::Match {
                topic,
                name,
                record,
                ..
            } => Matched {
                name,
                topic,
                record,
            },
            _ => unreachable!("a run is of matches"),
        }
    }

    /// The run at the cursor is done.
    pub(crate) fn end_run(&mut self) {
        self.at += self.run.end();
    }
}

impl Shard {
    /// Takes tells in; answers to publishers are passed on at once.
    pub(crate) fn enqueue(&mut self, home: ShardId, tells: Vec<Tell>, frames: Arc<Frames>) {
        let mut keys = Vec::with_capacity(tells.len());
        let mut matches = false;
        for (n, tell) in tells.iter().enumerate() {
            // What concerns no topic sorts to the end.
            keys.push(u64::from(tell.topic().unwrap_or(NONE)) << 32 | n as u64);
            matches |= matches!(tell, Tell::Match { .. } | Tell::Matches { .. });
        }
        if matches {
            keep_order(&tells, &mut keys);
        }
        keys.sort_unstable();
        self.deliveries.push_back(Delivery {
            tells,
            frames,
            keys,
            at: 0,
            place: 0,
            walking: false,
            home,
            run: Run::default(),
        });
    }

    /// Works through the deliveries; false when the budget of visits was spent first.
    pub(crate) fn deliver<I: Io>(&mut self, budget: &mut u32, io: &mut I) -> bool {
        while let Some(mut delivery) = self.deliveries.pop_front() {
            let before = *budget;
            let done = self.deliver_one(&mut delivery, budget, io);
            self.work.steps.add((before - *budget) as usize);
            if !done {
                self.deliveries.push_front(delivery);
                return false;
            }
            let Delivery {
                tells,
                frames,
                home,
                ..
            } = delivery;
            drop(frames);
            if home == self.lanes.me {
                self.lanes.recycle(tells);
            }
        }
        true
    }

    fn deliver_one<I: Io>(&mut self, d: &mut Delivery, budget: &mut u32, io: &mut I) -> bool {
        let frames = d.frames.clone();
        let before = self.stats.delivered;
        let done = loop {
            if d.at == d.keys.len() {
                break true;
            }
            if *budget == 0 {
                break false;
            }
            if d.at.is_multiple_of(WARMED) {
                self.warm(&d.keys[d.at..d.keys.len().min(d.at + WARMED)]);
            }
            let tell = &d.tells[d.keys[d.at] as u32 as usize];
            if let Tell::Live { topic, serial, .. } = *tell {
                let end = self.gather(d, topic);
                // Between the parts of a walk its topic cannot be freed: the tombstones hold it.
                if self.topics.is_current(topic, serial)
                    && !self.fan_out(d, topic, serial, &frames, budget, io)
                {
                    break false;
                }
                d.at = end;
                continue;
            }
            if matches!(tell, Tell::Match { .. }) {
                if !self.match_run(d, &frames, budget, io) {
                    break false;
                }
                continue;
            }
            if let Tell::Gone { topic, serial } | Tell::Displaced { topic, serial } = *tell {
                let gone = matches!(tell, Tell::Gone { .. });
                if self.topics.is_current(topic, serial)
                    && !self.end_members(d, topic, serial, gone, budget, io)
                {
                    break false;
                }
                d.at += 1;
                continue;
            }
            *budget = budget.saturating_sub(cost_of(tell));
            self.tell(d.home, tell, &frames, io);
            d.at += 1;
        };
        let deliveries = self.stats.delivered.wrapping_sub(before);
        if frames.stamp != 0 && deliveries > 0 {
            io.written(frames.stamp, deliveries);
        }
        done
    }

    /// Touches the rows that the next deliveries need. They are cold, and each leads to the next; side by
    /// side the processor waits for several at once.
    fn warm(&self, keys: &[u64]) {
        let mut members = [NONE; WARMED];
        for (member, key) in members.iter_mut().zip(keys) {
            let topic = (key >> 32) as u32;
            if topic < IN_ORDER {
                *member = self.topics.only_member(topic).unwrap_or(NONE);
            }
        }
        let touch = |sum, slot: &u32| {
            self.conns
                .try_get(*slot)
                .map_or(sum, |row| sum ^ row.link.0 ^ u32::from(row.flags))
        };
        core::hint::black_box(members.iter().fold(0, touch));
    }

    fn tell<I: Io>(&mut self, home: ShardId, tell: &Tell, frames: &Frames, io: &mut I) {
        match *tell {
            Tell::Live { .. } | Tell::Match { .. } | Tell::Gone { .. } | Tell::Displaced { .. } => {
                unreachable!("what concerns all members walks over them")
            }
            Tell::Matches {
                to,
                serial,
                ref page,
            } => self.match_page(home, to, serial, page, frames, io),
            Tell::Page {
                topic,
                to,
                ref page,
                ..
            } => self.page(topic, to, page, frames, io),
            Tell::Outcome(to, outcome) => self.outcome(to, outcome, io),
            Tell::Fenced(to) => self.fenced(to, io),
            Tell::GroupJoined { to, group, counts } => {
                self.group_joined(home, to, group, counts, io);
            }
            Tell::Shared {
                to,
                group,
                name,
                ref record,
            } => self.shared_message(home, to, group, name, record, frames, io),
            Tell::Session(to, ref given) => self.session_given(to, given, io),
            Tell::SessionTaken(holder) => self.session_taken(holder, io),
            Tell::Interest { to, ref news, part } => self.interest(to, news, part, io),
        }
    }

    /// Takes the run of live messages at the cursor; returns where it ends.
    fn gather(&mut self, d: &Delivery, of: u32) -> usize {
        let mut bytes = 0;
        let run = d.keys[d.at..].iter().take(TOGETHER_MAX).map_while(|key| {
            match &d.tells[*key as u32 as usize] {
                Tell::Live { topic, record, .. } if *topic == of && bytes < TOGETHER_BYTES => {
                    bytes += record.frame_bytes();
                    Some(*record)
                }
                _ => None,
            }
        });
        self.run.begin(run);
        d.at + self.run.records().len()
    }

    pub(crate) fn fan_out<I: Io>(
        &mut self,
        d: &mut Delivery,
        topic: u32,
        serial: u16,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let (mut done, cost) = (true, cost_of_bytes(self.run.bytes));
        if self.topics.places(topic) == 1 && !d.walking {
            *budget = budget.saturating_sub(cost);
            if let Some(conn) = self.topics.member(topic, 0) {
                self.deliver_to(conn, topic, frames, io);
            }
        } else {
            if !d.walking {
                self.topics.begin_walk(topic);
                (d.walking, d.place) = (true, 0);
            }
            while d.place < self.topics.places(topic) {
                if *budget == 0 {
                    done = false;
                    break;
                }
                *budget = budget.saturating_sub(cost);
                let place = d.place;
                d.place += 1;
                if let Some(conn) = self.topics.member(topic, place) {
                    self.deliver_to(conn, topic, frames, io);
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

    fn deliver_to<I: Io>(&mut self, slot: u32, topic: u32, frames: &Frames, io: &mut I) {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            self.deliver_to_list(slot, topic, frames, io);
            return;
        }
        let begun = matches!(row.state, State::WebSocket | State::Sse);
        let live = row.is(LIVE) || begun && planted::is(Fault::LiveBeforeHead);
        if !live {
            return;
        }
        match row.state {
            State::Poll => {
                let first = self.run.records()[0];
                self.answer_poll(slot, topic, &first, frames, false, io);
            }
            State::Mqtt if !mqtt::is_plain(row.options) => {
                self.expand(slot);
                self.mqtt_deliver(slot, 0, frames, io);
            }
            State::WebSocket | State::Sse | State::Mqtt => {
                let encoding = Encoding::of(row);
                if encoding != Encoding::Frame {
                    self.encode_once(encoding, topic, frames);
                }
                self.push(slot, encoding, frames, io);
            }
            _ => unreachable!("a live subscription is a poll or a stream"),
        }
    }

    fn encode_once(&mut self, encoding: Encoding, topic: u32, frames: &Frames) {
        if !self.run.encoded(encoding).is_empty() {
            return;
        }
        for n in 0..self.run.records().len() {
            let record = self.run.records()[n];
            self.id.clear();
            position::write(
                &mut self.id,
                Position {
                    epoch: self.world.epoch,
                    offset: record.offset,
                },
            );
            let message = Message {
                // The name is one more cold line for each delivery: it is not looked at in vain.
                topic: if encoding.names_topic() {
                    self.topics.name(topic)
                } else {
                    b""
                },
                id: &self.id,
                frames,
                record: &record,
                now_s: self.now.unix_s,
            };
            self.run
                .encoded(encoding)
                .push(&message, encoding, &mut self.forms);
        }
    }

    /// A connection with several topics: each message is encoded for it, since the position names
    /// all of them.
    fn deliver_to_list<I: Io>(&mut self, slot: u32, topic: u32, frames: &Frames, io: &mut I) {
        let row = self.conns.get(slot);
        let (extra, state) = (row.extra, row.state);
        let list = &self.extras.get(extra).list;
        let part = list
            .iter()
            .position(|sub| sub.topic == topic)
            .expect("a member has the topic in its list");
        if list[part].flags & (COUNTED | LIVE) != COUNTED | LIVE {
            let first = self.run.records()[0];
            self.deliver_early(slot, part as u32, &first, frames);
            return;
        }
        if state == State::Mqtt {
            return self.mqtt_deliver(slot, part as u32, frames, io);
        }
        if state == State::Poll {
            let first = self.run.records()[0];
            self.extras.get_mut(extra).list[part].offset = first.offset;
            self.answer_poll(slot, topic, &first, frames, false, io);
            return;
        }
        if self.extras.get(extra).attaching.is_some() {
            self.hold_of_set(slot, part as u32, topic, frames);
            return;
        }
        for n in 0..self.run.records().len() {
            let record = &self.run.records()[n].clone();
            let extra_row = self.extras.get_mut(extra);
            extra_row.list[part].offset = record.offset;
            let mut bytes = Rope::default();
            self.encode_for(slot, topic, record, frames, &mut bytes);
            if record.latest {
                if self.offer(slot, &bytes, &[bytes.len()], io) == 1 {
                    continue;
                }
            } else if self.fits(slot, bytes.len(), || {
                self.bounds_of(self.topics.name(topic))
            }) {
                self.put_messages(slot, &bytes, &[bytes.len()], io);
                self.stats.sent(1, bytes.len());
                continue;
            }
            let extra_row = self.extras.get_mut(extra);
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

    /// A stream on several topics that is not begun: what comes waits for the other homes, within
    /// the limits of an outbox, unless it may be superseded meanwhile.
    fn hold_of_set(&mut self, slot: u32, part: u32, topic: u32, frames: &Frames) {
        let bounds = self.bounds_of(self.topics.name(topic));
        let epoch = self.world.epoch;
        let extra = self.extras.get_mut(self.conns.get(slot).extra);
        let attaching = extra.attaching.as_mut().expect("it is not begun");
        for record in self.run.records() {
            let full = attaching.frames.len() + frames.frame(record).len() > bounds.bytes
                || attaching.held.len() >= bounds.messages;
            if record.latest || full {
                extra.list[part as usize].flags &= !LIVE;
                extra.behind.push(Behind {
                    part,
                    offset: record.previous,
                    epoch,
                });
                self.stats.fallbacks += 1;
                return;
            }
            let record = attaching.frames.copy(record, frames);
            attaching.held.push(Held::Message(part, record));
        }
    }

    /// A long-poll on several topics whose other homes have not answered: the message is its answer,
    /// or it stays unseen for the next poll.
    fn deliver_early(&mut self, slot: u32, part: u32, record: &Record, frames: &Frames) {
        let row = self.conns.get(slot);
        if row.state != State::Waiting || row.options & (UPGRADE | EVENTS) != 0 {
            return;
        }
        let extra = self.extras.get_mut(row.extra);
        let answered = extra.attaching.as_ref().is_none_or(|a| !a.held.is_empty());
        if extra.list[part as usize].flags & COUNTED == 0 || answered {
            return;
        }
        extra.list[part as usize].offset = record.offset;
        let unseen = Behind {
            part,
            offset: record.previous,
            epoch: self.world.epoch,
        };
        self.first_of_set(slot, unseen, record, frames);
    }

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
        let extra = self.extras.get(row.extra);
        let seen = extra.list.iter().map(|sub| Position {
            epoch: sub.epoch,
            offset: sub.offset,
        });
        position::write_set(out, extra.set, seen);
    }
}
