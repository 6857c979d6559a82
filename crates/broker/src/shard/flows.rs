//! Continues flows. A *flow* is the rest of a fan-out, or of a delivery of messages for filters, that takes more visits than one turn (a pass of the shard's
//! loop) gives it. The next flow is that of the party (user or address) that has received the least work.
//!
//! In a topic's flow, one walk over the members delivers several live messages together (`client/walk.rs`). A *tell* is what a home (the part of a
//! shard that keeps topics) sends. All other tells about the topic, such as a page for a new subscriber or the topic's deletion, wait until the walk has
//! ended, and so do the messages after these tells.
//!
//! A *page* is a bounded run of past messages.

use crate::base::work::STEP_BYTES;
use crate::client::deliveries::Flow;
use crate::client::delivery::Delivery;
use crate::client::run::visits_for_bytes;
use crate::client::walk::{ParkedFlow, Walk};
use crate::io::Io;
use crate::mail::Frames;
use crate::protocol::front::{
    Clients, Connections, Deliveries, EncodingCache, Front, Stats, Topics,
};
use crate::store::slab::NONE;

/// The visits (deliveries to one connection) that a flow gets before the next flow continues: as many as a whole turn has, because a flow
/// encodes its messages again each time that it continues.
const FLOW_VISITS: u32 = 256;

impl Front {
    /// Continues the flows, in fair turns.
    pub(super) fn deliver_flows<I: Io>(&mut self, budget: &mut u32, io: &mut I) {
        while *budget > 0
            && let Some((flow, mut parked)) = self.feed.deliveries.next()
        {
            let visits_max = match self.feed.deliveries.has_waiting_flow() {
                true => FLOW_VISITS.min(*budget),
                false => *budget,
            };
            let mut visits_left = visits_max;
            let is_done = match flow.row() {
                Some(topic) => self.continue_topic_flow(topic, &mut parked, &mut visits_left, io),
                None => self.continue_first_delivery(flow, &mut parked, &mut visits_left, io),
            };
            *budget -= visits_max - visits_left;
            let party = party_of_flow(&self.clients, &self.subs.topics, flow);
            let deliveries = &mut self.feed.deliveries;
            deliveries.return_flow(flow, party, visits_max - visits_left, parked, is_done);
        }
    }

    /// Continues a topic's flow. Returns false if the budget is spent before the flow is done.
    fn continue_topic_flow<I: Io>(
        &mut self,
        topic: u32,
        parked: &mut ParkedFlow,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        loop {
            charge_encoding(&mut self.clients.encodings, budget);
            if *budget == 0 {
                return false;
            }
            // If most members have left, no message joins the walk: the walk ends first, so that the next walk is shorter.
            if parked.walk.is_none() || !self.subs.topics.is_sparse(topic) {
                let serial = self.subs.topics.get(topic).serial;
                parked.join(topic, serial, |done| self.recycle_delivery(done));
            }
            if let Some(walk) = &mut parked.walk {
                if !self.continue_walk(walk, budget, io) {
                    return false;
                }
                parked.walk = None;
                continue;
            }
            let Some(first) = parked.waiting.front_mut() else {
                return true;
            };
            let frames = first.frames.clone();
            let before = self.clients.meter.stats.delivered;
            let is_done = self.carry_out_next_tell(first, &frames, budget, io);
            count_written(&self.clients.meter.stats, &frames, before, io);
            if !is_done {
                return false;
            }
            if first.cursor == first.keys.len()
                && let Some(first) = parked.waiting.pop_front()
            {
                self.recycle_delivery(first);
            }
        }
    }

    /// Continues the walk over a topic's members. Returns false if the budget is spent before all members have all messages.
    fn continue_walk<I: Io>(&mut self, walk: &mut Walk, budget: &mut u32, io: &mut I) -> bool {
        let topic = walk.topic;
        self.subs.topics.begin_walk(topic);
        self.feed.run.begin(walk.records());
        let mut cost = visits_for_bytes(self.feed.run.bytes);
        let mut before = self.clients.meter.stats.delivered;
        while *budget > 0 && !walk.is_empty() {
            match self.subs.topics.member_or_gap(topic, walk.place) {
                None | Some(NONE) => *budget = budget.saturating_sub(1),
                Some(conn) => self.visit_member(conn, cost, topic, &walk.frames, budget, io),
            }
            walk.advance(self.subs.topics.place_count(topic));
            let ending = walk.count_ending();
            if ending > 0 {
                self.count_walked(walk, &mut before, io);
                walk.end(ending);
                self.feed.run.skip(ending);
                cost = visits_for_bytes(self.feed.run.bytes);
            }
        }
        self.count_walked(walk, &mut before, io);
        if !walk.is_empty() {
            return false;
        }
        if self.subs.topics.is_current(topic, walk.serial) {
            end_walk(&mut self.clients.conns, &mut self.subs.topics, topic);
            self.subs.topics.free_if_unused(topic);
        }
        true
    }

    /// Counts the deliveries of the walk's messages since the shard's count was `before`.
    fn count_walked<I: Io>(&self, walk: &Walk, before: &mut u64, io: &mut I) {
        let now = self.clients.meter.stats.delivered;
        for (stamp, deliveries) in walk.split_deliveries(now.wrapping_sub(*before)) {
            if stamp != 0 && deliveries > 0 {
                io.report_deliveries(stamp, deliveries);
            }
        }
        *before = now;
    }

    /// Continues with the first delivery of a flow that does not belong to one topic. Returns false if the budget is spent before the
    /// delivery is done. If only tells to single connections are left, and these must join the flow of such tells, moves the delivery to
    /// that flow and returns true.
    fn continue_first_delivery<I: Io>(
        &mut self,
        flow: Flow,
        parked: &mut ParkedFlow,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let Some(mut delivery) = parked.waiting.pop_front() else {
            return true;
        };
        let others = Flow::to_single_connections(delivery.home);
        let frames = delivery.frames.clone();
        let before = self.clients.meter.stats.delivered;
        let mut parks = false;
        while delivery.cursor < delivery.keys.len() {
            charge_encoding(&mut self.clients.encodings, budget);
            parks = flow != others && self.feed.deliveries.must_park_rest(&delivery);
            if parks
                || *budget == 0
                || !self.carry_out_next_tell(&mut delivery, &frames, budget, io)
            {
                break;
            }
        }
        count_written(&self.clients.meter.stats, &frames, before, io);
        let is_done = delivery.cursor == delivery.keys.len();
        if is_done {
            self.recycle_delivery(delivery);
        } else if parks {
            let deliveries = &mut self.feed.deliveries;
            deliveries.park(others, others.solo_party(), delivery);
        } else {
            parked.waiting.push_front(delivery);
        }
        is_done || parks
    }
}

/// The party that is charged for a flow: that of the members, if the first, the middle and the last member have the same party; otherwise a party of this
/// flow alone.
fn party_of_flow(clients: &Clients, topics: &Topics, flow: Flow) -> u64 {
    let Some(row) = flow.row() else {
        return flow.solo_party();
    };
    let last = topics.place_count(row).saturating_sub(1);
    let party = |place| {
        let member = topics.member(row, place)?;
        Some(clients.party(member).number())
    };
    let first = match topics.place_count(row) {
        0 => None,
        _ => party(0),
    };
    let same = [last / 2, last].map(|place| first.is_some() && party(place) == first);
    match (first, same) {
        (Some(party), [true, true]) => party,
        _ => flow.solo_party(),
    }
}

/// Moves the tells of the topic at the cursor into the topic's flow.
pub(super) fn park_topic(
    clients: &Clients,
    topics: &Topics,
    deliveries: &mut Deliveries,
    delivery: &mut Delivery,
    topic: u32,
) {
    let flow = Flow::topic(delivery.home, topic);
    let party = party_of_flow(clients, topics, flow);
    deliveries.park(flow, party, delivery.take_topic());
}

/// Charges the budget with the encoded bytes, because encoding a message of megabytes costs as much as many visits.
pub(super) fn charge_encoding(encodings: &mut EncodingCache, budget: &mut u32) {
    let made = encodings.take_encoded_bytes() / STEP_BYTES;
    *budget = budget.saturating_sub(u32::try_from(made).unwrap_or(u32::MAX));
}

pub(super) fn count_written<I: Io>(stats: &Stats, frames: &Frames, before: u64, io: &mut I) {
    let deliveries = stats.delivered.wrapping_sub(before);
    if frames.stamp != 0 && deliveries > 0 {
        io.report_deliveries(frames.stamp, deliveries);
    }
}

/// Ends a walk, and stores the new place of each member that has moved.
pub(crate) fn end_walk(conns: &mut Connections, topics: &mut Topics, topic: u32) {
    topics.end_walk(topic, |moved| {
        assert!(
            conns.set_member_place(topic, &moved),
            "a member has the topic in its list"
        );
    });
}
