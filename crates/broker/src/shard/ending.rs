//! Tells that end the subscriptions of a topic's members: it was deleted, or a later long-poll takes the place of those
//! that wait.
//!
//! Invariant: a walk over the members is a cursor as every fan-out is, so that a topic with a million of them ends in
//! as many turns as it takes; a connection that joins meanwhile has no page yet, and is not ended.

use crate::base::reason::Reason;
use crate::client::delivery::Delivery;
use crate::client::row::{COUNTED, MULTI, State};
use crate::io::Io;
use crate::protocol::front::Sub;
use crate::shard::Shard;

impl Shard {
    /// Tells all members of a topic that it was deleted, or those that wait for a message that a later poll has taken
    /// their place; false when the budget was spent first. Walks as [`Shard::fan_out`] does.
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
            self.front.subs.topics.begin_walk(topic);
            (d.walking, d.place) = (true, 0);
        }
        while self.front.subs.topics.is_current(topic, serial)
            && d.place < self.front.subs.topics.places(topic)
        {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let place = d.place;
            d.place += 1;
            let Some(slot) = self.front.subs.topics.member(topic, place) else {
                continue;
            };
            if self.front.clients.conns.get(slot).waits_for_history() {
                // Its page is on the way, and says what became of the topic.
                continue;
            }
            if !gone {
                self.front.end_for(slot, Reason::Displaced, io);
            } else if !self.gone_early(slot, topic) {
                self.front.end_for(slot, Reason::Deleted, io);
            }
        }
        d.walking = false;
        if self.front.subs.topics.is_current(topic, serial) {
            self.end_walk(topic);
            self.front.subs.topics.close_if_unused(topic);
        }
        true
    }

    /// For a request on several topics that waits for some homes: notes that this topic was deleted after its home had
    /// answered. Says whether that is so.
    fn gone_early(&mut self, slot: u32, topic: u32) -> bool {
        let row = self.front.clients.conns.get(slot);
        if row.state != State::Waiting || !row.wants(MULTI) {
            return false;
        }
        let extra = self.front.clients.conns.extra_mut(slot);
        let answered = |sub: &Sub| sub.topic == topic && sub.flags & COUNTED != 0;
        let early = extra.list.iter().any(answered);
        if let Some(attaching) = extra.own.attaching.as_mut().filter(|_| early) {
            attaching.gone = true;
        }
        early
    }
}
