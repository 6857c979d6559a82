//! Ends the subscriptions of a topic's members (the connections that subscribe to it), because the topic was deleted, or because a later
//! long-poll displaces the waiting ones.
//!
//! Invariant: the walk over the members has a cursor, like every fan-out, so that the end of a topic with a million members is spread over
//! many turns (passes of the shard's loop). The subscription of a connection that joins during the walk does not end.

use crate::base::reason::Reason;
use crate::client::delivery::Delivery;
use crate::client::protocols::protocol_of;
use crate::client::row::{COUNTED, SUBSCRIPTION_LIST, State};
use crate::io::Io;
use crate::protocol::front::{AllProtocols, Connections, Front, Sub};
use crate::protocol::http::options::HISTORY;
use crate::shard::flows::end_walk;

impl Front {
    /// Ends the subscriptions of all members of a topic that was deleted (`is_deleted`), or the waiting long-polls. Returns false if the budget
    /// is spent first. Walks over the members as [`Front::fan_out`] does.
    pub(crate) fn end_members<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        topic: u32,
        serial: u16,
        is_deleted: bool,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        if !delivery.is_walking {
            self.subs.topics.begin_walk(topic);
            (delivery.is_walking, delivery.walk_place) = (true, 0);
        }
        while self.subs.topics.is_current(topic, serial)
            && delivery.walk_place < self.subs.topics.place_count(topic)
        {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let place = delivery.walk_place;
            delivery.walk_place += 1;
            let Some(slot) = self.subs.topics.member(topic, place) else {
                continue;
            };
            let row = self.clients.conns.get(slot);
            let state = row.consumer.state;
            if state == State::Waiting && row.has_option(HISTORY) {
                // A page for this connection is in flight, and will report the end of the topic.
                continue;
            }
            let reason = match is_deleted {
                true if store_early_deletion(&mut self.clients.conns, slot, topic) => continue,
                true => Reason::Deleted,
                false => Reason::Displaced,
            };
            protocol_of!(AllProtocols, state, end_for_reason(self, slot, reason, io));
            self.carry_out_ends(io);
        }
        delivery.is_walking = false;
        if self.subs.topics.is_current(topic, serial) {
            end_walk(&mut self.clients.conns, &mut self.subs.topics, topic);
            self.subs.topics.free_if_unused(topic);
        }
        true
    }
}

/// If the connection's request has several topics, has got the answer of this topic and waits for others: stores that this topic was deleted, and returns
/// true.
fn store_early_deletion(conns: &mut Connections, slot: u32, topic: u32) -> bool {
    let row = conns.get(slot);
    if row.consumer.state != State::Waiting || !row.has_option(SUBSCRIPTION_LIST) {
        return false;
    }
    let side_row = conns.side_row_mut(slot);
    let answered = |sub: &Sub| sub.topic == topic && sub.flags & COUNTED != 0;
    let early = side_row.list.iter().any(answered);
    if let Some(pending_response) = side_row
        .protocol_state
        .pending_response
        .as_mut()
        .filter(|_| early)
    {
        pending_response.is_topic_deleted = true;
    }
    early
}
