//! Live messages of a topic for a stream: encoded once for all that get the same bytes, and one by one for a connection with several
//! topics.

use crate::base::position::{self, Position};
use crate::conn::io::Io;
use crate::conn::{COUNTED, EVENTS, LIVE, State, UPGRADE};
use crate::mail::{Frames, Record};
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::Front;
use crate::protocol::side::{Behind, Held};
use crate::store::rope::Rope;

impl Front {
    /// Encodes the run, unless another subscriber has needed that before.
    pub(super) fn encode_once(&mut self, encoding: Encoding, topic: u32, frames: &Frames) {
        if !self.run.encoded(encoding).is_empty() {
            return;
        }
        for n in 0..self.run.records().len() {
            let record = self.run.records()[n];
            let id = self.scratch.id();
            id.clear();
            position::write(
                id,
                Position {
                    epoch: self.world.epoch,
                    offset: record.offset,
                },
            );
            let message = Message {
                // The name is one more cold line for each delivery: it is read only where it is written.
                topic: if encoding.names_topic() {
                    self.topics.name(topic)
                } else {
                    b""
                },
                id,
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
    pub(super) fn live_of_list<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        frames: &Frames,
        io: &mut I,
    ) {
        let list = &self.conns.extra_of(slot).list;
        let part = list
            .iter()
            .position(|sub| sub.topic == topic)
            .expect("a member has the topic in its list");
        if list[part].flags & (COUNTED | LIVE) != COUNTED | LIVE {
            let first = self.run.records()[0];
            self.deliver_early(slot, part as u32, &first, frames);
            return;
        }
        self.live_of_part(slot, (topic, part as u32), frames, io);
    }

    /// Live messages of one of the topics of a stream.
    pub(super) fn stream_live_of_part<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        frames: &Frames,
        io: &mut I,
    ) {
        if self.conns.extra_of(slot).attaching.is_some() {
            self.hold_of_set(slot, part, topic, frames);
            return;
        }
        for n in 0..self.run.records().len() {
            let record = &self.run.records()[n].clone();
            let extra_row = self.conns.extra_mut(slot);
            extra_row.list[part as usize].offset = record.offset;
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
            return self.fall_back(slot, part, record.previous);
        }
    }

    /// A stream on several topics that has not begun: its messages wait for the other homes, within the limits of an
    /// outbox, unless they may be superseded meanwhile.
    fn hold_of_set(&mut self, slot: u32, part: u32, topic: u32, frames: &Frames) {
        let bounds = self.bounds_of(self.topics.name(topic));
        let extra = self.conns.extra(slot);
        let attaching = extra.attaching.as_mut().expect("it is not begun");
        for record in self.run.records() {
            let full = attaching.frames.len() + frames.frame(record).len() > bounds.bytes
                || attaching.held.len() >= bounds.messages;
            if record.latest || full {
                let offset = record.previous;
                return self.fall_back_unsent(slot, part, offset);
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
        let extra = self.conns.extra_mut(slot);
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
}
