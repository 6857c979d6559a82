//! Live messages for a stream on several topics: each is encoded for it.

use crate::io::Io;
use crate::mail::Frames;
use crate::protocol::front::Front;
use crate::protocol::http::state::Held;
use crate::store::rope::Rope;

impl Front {
    /// Live messages of one of the topics of a stream.
    pub(in crate::protocol) fn stream_live_of_part<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        frames: &Frames,
        io: &mut I,
    ) {
        if self.conns.extra_of(slot).own.attaching.is_some() {
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
        let attaching = extra.own.attaching.as_mut().expect("it is not begun");
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
}
