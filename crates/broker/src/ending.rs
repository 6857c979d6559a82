//! Tells that end what the members of a topic have: it was deleted, or a later long-poll takes the place of those that wait.
//!
//! Invariant: a walk over the members is a cursor as every fan-out is, so that a topic with a million of them ends in as many turns
//! as it takes; who joins meanwhile has no page yet, and is not ended.

use crate::conn::{COUNTED, MULTI, State, Sub};
use crate::deliver::Delivery;
use crate::io::Io;
use crate::shard::Shard;

impl Shard {
    /// Tells all members of a topic that it was deleted, or those that wait for a message that a later one has their place;
    /// false when the budget was spent first. Walks as [`Shard::fan_out`] does.
    pub(crate) fn end_members<I: Io>(
        &mut self,
        d: &mut Delivery,
        topic: u32,
        serial: u16,
        gone: bool,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        if !d.walking {
            self.topics.begin_walk(topic);
            (d.walking, d.place) = (true, 0);
        }
        while self.topics.is_current(topic, serial) && d.place < self.topics.places(topic) {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let place = d.place;
            d.place += 1;
            let Some(slot) = self.topics.member(topic, place) else {
                continue;
            };
            if !gone {
                if self.conns.get(slot).state == State::Poll {
                    self.answer_status(slot, 409, "a later subscriber took this place", io);
                }
            } else if !self.gone_early(slot, topic) {
                self.end_of_topic(slot, io);
            }
        }
        d.walking = false;
        if self.topics.is_current(topic, serial) {
            self.end_walk(topic);
            self.topics.close_if_unused(topic);
        }
        true
    }

    /// Remembers that a topic was deleted which has answered, where others have not; says whether that is so.
    fn gone_early(&mut self, slot: u32, topic: u32) -> bool {
        let row = self.conns.get(slot);
        if row.state != State::Waiting || !row.wants(MULTI) {
            return false;
        }
        let extra = self.extras.get_mut(row.extra);
        let answered = |sub: &Sub| sub.topic == topic && sub.flags & COUNTED != 0;
        let early = extra.list.iter().any(answered);
        if let Some(attaching) = extra.attaching.as_mut().filter(|_| early) {
            attaching.gone = true;
        }
        early
    }
}
