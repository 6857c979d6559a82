//! The topics of one subscriber: how far it has read each of them, and its position as text.
//!
//! A subscriber of one topic has it in its row; one of several has them in a list, and each place in the list is a part.

use alloc::vec::Vec;

use crate::base::position::{self, Position};
use crate::base::settings::Rule;
use crate::conn::{ENVELOPE, FILTERS, MULTI};
use crate::mail::{Frames, Record};
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::Front;
use crate::store::rope::Rope;
use crate::store::slab::NONE;

impl Front {
    /// The topic of a part, or `NONE`.
    pub(super) fn topic_of(&self, slot: u32, part: u32) -> u32 {
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

    /// The flags of a part.
    pub(super) fn flags_of(&mut self, slot: u32, part: u32) -> &mut u8 {
        if !self.conns.get(slot).wants(MULTI) {
            return &mut self.conns.get_mut(slot).flags;
        }
        &mut self.conns.extra_mut(slot).list[part as usize].flags
    }

    /// Notes the offset up to which a connection with several topics has seen one of them.
    pub(super) fn saw(&mut self, slot: u32, part: u32, offset: u64, epoch: u32) {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            let sub = &mut self.conns.extra_mut(slot).list[part as usize];
            (sub.offset, sub.epoch) = (offset, epoch);
        }
    }

    /// How many parts it has.
    pub(super) fn parts(&self, slot: u32) -> u32 {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            self.conns.extra_of(slot).list.len() as u32
        } else {
            1
        }
    }

    /// The rule of a topic.
    pub(super) fn poll_rule(&self, topic: u32) -> &Rule {
        let rules = &self.world.rules;
        rules.get(rules.number_for(self.topics.name(topic)))
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
            // Several topics in plain frames: only the envelope names the topic.
            Encoding::Packed if row.wants(MULTI) => Encoding::Frame,
            encoding => encoding,
        };
        debug_assert!(row.wants(ENVELOPE) || encoding != Encoding::FrameEnvelope);
        Message {
            topic: match encoding.names_topic() || row.wants(MULTI) {
                true => self.topics.name(topic),
                false => b"",
            },
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
            return self.write_matched_id(slot, &[], out);
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
