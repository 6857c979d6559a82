//! The order of waiting deliveries. A *tell* is mail from a home, the part of a shard that keeps topics. Answers come first, then the
//! other tells in order of arrival. A fan-out (a message to all its subscribers) that does not end within its part of a turn leaves that
//! queue. It then continues as a *flow*, in fair turns with other flows ([`FairQueue`]), while later deliveries overtake it.
//!
//! A flow has one topic. It is charged to the party (address or user) of the topic's subscribers if all examined ones are of one
//! party, else to the topic. Therefore a client with many topics of its own has one share, and nobody can slow the topic of another client
//! by subscribing to it. The publisher is not charged: the work is done for the subscribers, and often one program publishes everything,
//! so all topics would be one party.
//!
//! Invariants: the tells of one home about one topic keep their order. Tells that arrive while their topic has a flow join the flow
//! (its live messages are walked to the members together: see [`walk`](crate::client::walk)). Messages and pages (bounded runs of
//! past messages) for filters are delivered in order. If they take long, they become a flow, and all later tells of the home wait
//! behind it. Before they begin, two kinds of flows must end: those of their own topics, and those of the other topics of each connection that
//! gets a page. In this way a connection gets messages in order, whether they come by a filter, in a page or by topic.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::base::fair_queue::FairQueue;
use crate::base::ids::ShardId;
use crate::client::delivery::{Delivery, IN_ORDER, TO_SINGLE_CONNECTIONS};
use crate::client::walk::ParkedFlow;

/// The number of tells to single connections that may be delivered without a flow.
const OTHERS_AT_ONCE: usize = 16;

/// The capacity of a list of keys up to which the list is reused.
const KEYS_KEPT: usize = 1 << 11;

/// Marks a party that consists of one flow.
const SOLO_PARTY: u64 = 1 << 61;

/// The name of a flow: a topic of a home, the ordered tells of a home, or the tells of a home to single connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow(u64);

impl Flow {
    /// The flow of a topic's row, told by this home.
    pub fn topic(home: ShardId, topic: u32) -> Flow {
        Flow(u64::from(home) << 32 | u64::from(topic))
    }

    /// The flow of all ordered tells of this home.
    pub fn ordered(home: ShardId) -> Flow {
        Flow::topic(home, IN_ORDER)
    }

    /// The flow of this home's messages to members of groups, and of its news for followers of interest (which topics have
    /// subscribers).
    pub fn to_single_connections(home: ShardId) -> Flow {
        Flow::topic(home, TO_SINGLE_CONNECTIONS)
    }

    /// The topic's row, if the flow is of a topic.
    pub fn row(self) -> Option<u32> {
        let row = self.0 as u32;
        (row < IN_ORDER).then_some(row)
    }

    fn home(self) -> ShardId {
        (self.0 >> 32) as ShardId
    }

    /// The number of the party that is only this flow.
    pub fn solo_party(self) -> u64 {
        self.0 | SOLO_PARTY
    }
}

/// The waiting deliveries.
#[derive(Default)]
pub(crate) struct Deliveries {
    /// Deliveries whose answers were not delivered yet.
    pub with_answers: VecDeque<Delivery>,
    /// The other deliveries, in order of arrival.
    pub queued: VecDeque<Delivery>,
    flows: BTreeMap<Flow, ParkedFlow>,
    flow_queue: FairQueue<Flow>,
    /// The bytes of the walks of all flows.
    walk_bytes: usize,
    /// By home: the topic's flow for which the home's messages and pages for filters wait.
    blocking_flows: BTreeMap<ShardId, Flow>,
    /// Tells of the last turn still wait.
    pub has_leftovers: bool,
    /// Flips each turn: every second turn has one visit more for flows, if the number of visits is odd.
    is_odd_turn: bool,
    /// An empty list for the keys of the next delivery.
    pub spare_keys: Vec<u64>,
}

impl Deliveries {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.with_answers.is_empty() && self.queued.is_empty() && self.flows.is_empty()
    }

    /// The number of waiting deliveries.
    pub fn len(&self) -> usize {
        let flows = self.flows.values().map(ParkedFlow::turns).sum::<usize>();
        self.with_answers.len() + self.queued.len() + flows
    }

    /// Keeps the list of a finished delivery for the next one.
    pub fn recycle(&mut self, mut keys: Vec<u64>) {
        if keys.capacity() <= KEYS_KEPT {
            keys.clear();
            self.spare_keys = keys;
        }
    }

    /// Bytes of memory of unfinished fan-outs, without the frames of homes.
    pub fn walk_bytes(&self) -> usize {
        self.walk_bytes
    }

    /// Whether there is any flow.
    #[inline]
    pub fn has_flows(&self) -> bool {
        !self.flows.is_empty()
    }

    /// Whether this flow exists.
    pub fn has(&self, flow: Flow) -> bool {
        !self.flows.is_empty() && self.flows.contains_key(&flow)
    }

    /// Whether the rest of a delivery becomes a flow: it is for single connections, and it is long or the home has such a flow
    /// already.
    #[inline]
    pub fn must_park_rest(&self, d: &Delivery) -> bool {
        d.is_at_single_tells()
            && (d.keys.len() - d.cursor > OTHERS_AT_ONCE
                || self.has(Flow::to_single_connections(d.home)))
    }

    /// How many of these visits are reserved for flows.
    pub fn reserve_visits(&mut self, visits: u32) -> u32 {
        self.is_odd_turn = !self.is_odd_turn;
        match self.has_flows() {
            true => (visits + u32::from(self.is_odd_turn)) / 2,
            false => 0,
        }
    }

    /// Adds a delivery to this flow, which is created if needed, with this party.
    pub fn park(&mut self, flow: Flow, party: u64, delivery: Delivery) {
        let parked = self.flows.entry(flow).or_default();
        if parked.is_empty() {
            self.flow_queue.push(party, flow);
        }
        parked.waiting.push_back(delivery);
    }

    /// Parks a home's ordered delivery until `topic`, the flow of one of the delivery's topics, has ended.
    pub fn park_behind(&mut self, topic: Flow, delivery: Delivery) {
        self.blocking_flows.insert(delivery.home, topic);
        let ordered = self.flows.entry(Flow::ordered(delivery.home));
        ordered.or_default().waiting.push_back(delivery);
    }

    /// Puts a home's ordered deliveries that waited for a flow back to the head of the queue.
    fn requeue(&mut self, home: ShardId) {
        self.blocking_flows.remove(&home);
        let waited = self.flows.remove(&Flow::ordered(home));
        for delivery in waited.into_iter().flat_map(|it| it.waiting).rev() {
            self.queued.push_front(delivery);
        }
    }

    /// Takes the next flow with its deliveries. The caller returns it with [`Deliveries::return_flow`].
    pub fn next(&mut self) -> Option<(Flow, ParkedFlow)> {
        if self.flows.is_empty() {
            return None;
        }
        let flow = self.flow_queue.pop()?;
        let parked = core::mem::take(self.flows.get_mut(&flow)?);
        self.walk_bytes -= parked.walk_bytes();
        Some((flow, parked))
    }

    /// Whether another flow waits for its turn.
    pub fn has_waiting_flow(&self) -> bool {
        !self.flow_queue.is_empty()
    }

    /// Returns a flow that was taken, after `visits` visits, with its remaining deliveries. `is_done`: one of its deliveries has
    /// ended.
    pub fn return_flow(
        &mut self,
        flow: Flow,
        party: u64,
        visits: u32,
        rest: ParkedFlow,
        is_done: bool,
    ) {
        let home = flow.home();
        if is_done && flow == Flow::ordered(home) {
            self.flows.insert(flow, rest);
            self.requeue(home);
        } else if rest.is_empty() {
            self.flows.remove(&flow);
            if self.blocking_flows.get(&home) == Some(&flow) {
                self.requeue(home);
            }
        } else {
            self.walk_bytes += rest.walk_bytes();
            self.flows.insert(flow, rest);
            self.flow_queue.push(party, flow);
        }
        self.flow_queue.charge(visits.into());
    }

    /// Whether a message for filters, of one of the first `homes` homes, has reached some of its connections and not others.
    #[inline]
    pub fn has_partial_run(&self, homes: ShardId) -> bool {
        let has_run = |home| {
            self.ordered_under_way(home)
                .is_some_and(|it| it.run.len > 0)
        };
        self.has_flows() && (0..homes).any(has_run)
    }

    /// The home's unfinished delivery of messages for filters.
    pub fn ordered_under_way(&self, home: ShardId) -> Option<&Delivery> {
        if self.flows.is_empty() {
            return None;
        }
        self.flows.get(&Flow::ordered(home))?.waiting.front()
    }
}
