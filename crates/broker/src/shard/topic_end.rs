//! Ends the subscriptions of a topic's members: the topic was deleted, or a later long-poll displaces the waiting ones.
//!
//! Invariant: a walk over the members is a cursor, like every fan-out, so that a topic with a million members ends over many turns. A
//! connection that joins meanwhile has no page yet and is not ended.

use crate::base::reason::Reason;
use crate::client::delivery::Delivery;
use crate::client::protocols::Protocols;
use crate::client::row::{COUNTED, MULTI, State};
use crate::io::Io;
use crate::protocol::front::{AllProtocols, Connections, Front, Sub};
use crate::shard::flows::end_walk;

impl Front {
    /// Ends all members of a topic (`gone`: it was deleted), or its waiting long-polls; false if the budget is spent first. It walks as
    /// [`Front::fan_out`] does.
    pub(crate) fn end_members<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        topic: u32,
        serial: u16,
        gone: bool,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        if !delivery.walking {
            self.subs.topics.begin_walk(topic);
            (delivery.walking, delivery.place) = (true, 0);
        }
        while self.subs.topics.is_current(topic, serial)
            && delivery.place < self.subs.topics.places(topic)
        {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let place = delivery.place;
            delivery.place += 1;
            let Some(slot) = self.subs.topics.member(topic, place) else {
                continue;
            };
            if self.clients.conns.get(slot).waits_for_history() {
                // This connection's page is on the way and tells it what became of the topic.
                continue;
            }
            let reason = match gone {
                true if note_early_deletion(&mut self.clients.conns, slot, topic) => continue,
                true => Reason::Deleted,
                false => Reason::Displaced,
            };
            let (clients, subs, queues) = (&mut self.clients, &mut self.subs, &mut self.queues);
            AllProtocols::try_end(clients, subs, queues, slot, reason, io);
            self.carry_out_ends(io);
        }
        delivery.walking = false;
        if self.subs.topics.is_current(topic, serial) {
            end_walk(&mut self.clients.conns, &mut self.subs.topics, topic);
            self.subs.topics.close_if_unused(topic);
        }
        true
    }
}

/// For a request on several topics that waits for some homes: notes that this topic was deleted after its home had answered. Returns
/// whether that is the case.
fn note_early_deletion(conns: &mut Connections, slot: u32, topic: u32) -> bool {
    let row = conns.get(slot);
    if row.state != State::Waiting || !row.wants(MULTI) {
        return false;
    }
    let extra = conns.extra_mut(slot);
    let answered = |sub: &Sub| sub.topic == topic && sub.flags & COUNTED != 0;
    let early = extra.list.iter().any(answered);
    if let Some(attaching) = extra.own.attaching.as_mut().filter(|_| early) {
        attaching.gone = true;
    }
    early
}
