//! The subscriptions of one connection to topics: how far it has read each of them, its position as text, how it reads on, and how it leaves.
//!
//! A subscriber of one topic has it in its row; one of several has them in a list, and each place in the list is a part. Subscriptions by filter are
//! in `joining`.

use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::base::position::{self, Position, Since};
use crate::base::settings::Rule;
use crate::budget::admission::Client;
use crate::client::front::Front;
use crate::client::protocols::Protocols;
use crate::client::row::{COUNTED, FILTERS, LIVE, MULTI};
use crate::client::side::Behind;
use crate::mail::Attach;
use crate::store::slab::NONE;

impl<P: Protocols> Front<P> {
    /// The topic of a part, or `NONE`.
    pub(crate) fn topic_of(&self, slot: u32, part: u32) -> u32 {
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
    pub(crate) fn flags_of(&mut self, slot: u32, part: u32) -> &mut u8 {
        if !self.conns.get(slot).wants(MULTI) {
            return &mut self.conns.get_mut(slot).flags;
        }
        &mut self.conns.extra_mut(slot).list[part as usize].flags
    }

    /// Notes the offset up to which a connection with several topics has seen one of them.
    pub(crate) fn saw(&mut self, slot: u32, part: u32, offset: u64, epoch: u32) {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            let sub = &mut self.conns.extra_mut(slot).list[part as usize];
            (sub.offset, sub.epoch) = (offset, epoch);
        }
    }

    /// How many parts it has.
    pub(crate) fn parts(&self, slot: u32) -> u32 {
        let row = self.conns.get(slot);
        if row.wants(MULTI) {
            self.conns.extra_of(slot).list.len() as u32
        } else {
            1
        }
    }

    /// The rule of a topic.
    pub(crate) fn rule_of(&self, topic: u32) -> &Rule {
        let rules = &self.world.rules;
        rules.get(rules.number_for(self.topics.name(topic)))
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

    /// Asks for the next page of a topic, of so many messages at most, behind what the connection has seen of it; compressed if `deflate` says so. The answer comes for `part`, which
    /// is how the connection's protocol names the subscription.
    pub(crate) fn ask_behind(
        &mut self,
        slot: u32,
        seen: &Behind,
        (part, most): (u32, u32),
        deflate: bool,
    ) {
        let topic = self.topic_of(slot, seen.part);
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        let since = Since::At(Position {
            epoch: seen.epoch,
            offset: seen.offset,
        });
        let attach = Attach {
            hash,
            topic,
            serial,
            to: self.conns.reply_to(slot, part),
            since,
            poll: false,
            most,
            deflate,
            again: true,
            once: false,
            retained: false,
            client: Client::NOBODY,
            party: self.party(slot),
        };
        self.attach(attach);
        if planted::is(Fault::DoubleResume) {
            self.attach(attach);
        }
    }

    /// Takes the connection out of all its topics and filters.
    pub(crate) fn unsubscribe(&mut self, slot: u32) {
        P::leaves(self, slot);
        let row = self.conns.get_mut(slot);
        if row.wants(MULTI) {
            row.options &= !MULTI;
            let extra = self.conns.extra(slot);
            extra.shared_bytes = 0;
            for sub in core::mem::take(&mut extra.list) {
                if sub.topic == NONE {
                    continue;
                }
                self.part_one(sub.topic, sub.place, sub.flags & COUNTED != 0);
            }
            return;
        }
        if row.wants(FILTERS) {
            row.options &= !FILTERS;
            return self.leave_filters(slot);
        }
        if row.topic == NONE {
            return;
        }
        let (topic, place, counted) = (row.topic, row.place, row.is(COUNTED));
        row.topic = NONE;
        row.flags &= !(COUNTED | LIVE);
        self.part_one(topic, place, counted);
    }

    pub(crate) fn part_one(&mut self, topic: u32, place: u32, counted: bool) {
        if let Some(moved) = self.topics.part(topic, place) {
            self.conns.has_moved(topic, &moved);
        }
        if counted && !planted::is(Fault::NoDetach) {
            self.leave(topic);
        }
        self.topics.close_if_unused(topic);
    }
}
