//! Deliveries that wait, and their order: answers first, then what the homes told, in turn. A fan-out that does not end within its share of a turn
//! leaves that queue: it goes on as a *flow*, in fair turns with other flows ([`FairQueue`]), while what was told behind it is delivered.
//!
//! A flow is of one topic; its party is that of the topic's subscribers if all that are looked at are of one party, else the topic itself.
//! The work is done for the subscribers, and often one program publishes everything: by publisher, all topics would be one party. So a
//! client that has many topics to itself has one share, and nobody can join a topic of others to have it wait with his own.
//!
//! Invariants: the tells of one home about one topic keep their order, since all that come while their topic has a flow join it (its live messages
//! go round the members together: see [`walk`](crate::client::walk)). Messages and
//! pages for filters are told in order: if they take long they are a flow of their own, and whatever the home tells meanwhile waits behind
//! it. Before they begin they wait for the flows of their topics, and of the other topics of a connection that gets a page; not for
//! those of other topics. So order holds among pages and messages that reach a connection by a filter and otherwise.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::base::fair_queue::FairQueue;
use crate::base::ids::ShardId;
use crate::client::delivery::{Delivery, IN_ORDER, OTHERS};
use crate::client::walk::Parked;

/// Tells to single connections that are not worth a flow.
const OTHERS_AT_ONCE: usize = 16;

/// Room for keys of a delivery that is kept for the next one.
const KEYS_KEPT: usize = 1 << 11;

/// Marks the party of a flow that is one of its own.
const OWN: u64 = 1 << 61;

/// A topic of a home, all that a home told in order, or what it told single connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow(u64);

impl Flow {
    /// Of a topic's row, told by this home.
    pub fn topic(home: ShardId, topic: u32) -> Flow {
        Flow(u64::from(home) << 32 | u64::from(topic))
    }

    /// Of all that this home told in order.
    pub fn ordered(home: ShardId) -> Flow {
        Flow::topic(home, IN_ORDER)
    }

    /// Of the messages that this home told to members of groups, and of news of interest.
    pub fn others(home: ShardId) -> Flow {
        Flow::topic(home, OTHERS)
    }

    /// The topic's row.
    pub fn row(self) -> Option<u32> {
        let row = self.0 as u32;
        (row < IN_ORDER).then_some(row)
    }

    fn home(self) -> ShardId {
        (self.0 >> 32) as ShardId
    }

    /// The number of a party that is only this flow.
    pub fn own_party(self) -> u64 {
        self.0 | OWN
    }
}

/// Deliveries that wait for their turn.
#[derive(Default)]
pub(crate) struct Deliveries {
    /// Those whose answers are not given yet.
    pub came: VecDeque<Delivery>,
    /// The others, in the order in which they came.
    pub queued: VecDeque<Delivery>,
    flows: BTreeMap<Flow, Parked>,
    turns: FairQueue<Flow>,
    /// Bytes of the walks of flows.
    walk_bytes: usize,
    /// By home: the topic's flow that its messages and pages for filters wait for.
    blocked: BTreeMap<ShardId, Flow>,
    /// Tells of the last turn wait still.
    pub late: bool,
    /// Of two turns, the one that has a visit more for flows.
    odd: bool,
    /// An empty list for the keys of the next delivery.
    pub keys: Vec<u64>,
}

impl Deliveries {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.came.is_empty() && self.queued.is_empty() && self.flows.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        let flows = self.flows.values().map(Parked::turns).sum::<usize>();
        self.came.len() + self.queued.len() + flows
    }

    /// Takes the list of a delivery that is done for the next one.
    pub fn recycle(&mut self, mut keys: Vec<u64>) {
        if keys.capacity() <= KEYS_KEPT {
            keys.clear();
            self.keys = keys;
        }
    }

    /// Bytes of memory that fan-outs under way occupy besides the frames of homes.
    pub fn walk_bytes(&self) -> usize {
        self.walk_bytes
    }

    /// Whether some fan-out is a flow.
    #[inline]
    pub fn has_flows(&self) -> bool {
        !self.flows.is_empty()
    }

    /// Whether this flow exists.
    pub fn has(&self, flow: Flow) -> bool {
        !self.flows.is_empty() && self.flows.contains_key(&flow)
    }

    /// Whether the rest of a delivery is to become a flow: it is for single connections, and others of the home wait already, or it is long.
    #[inline]
    pub fn parks(&self, d: &Delivery) -> bool {
        d.is_at_others() && (d.keys.len() - d.at > OTHERS_AT_ONCE || self.has(Flow::others(d.home)))
    }

    /// How many of these visits are for flows.
    pub fn reserved(&mut self, visits: u32) -> u32 {
        self.odd = !self.odd;
        match self.has_flows() {
            true => (visits + u32::from(self.odd)) / 2,
            false => 0,
        }
    }

    /// Adds to a flow of this party, or makes it.
    pub fn park(&mut self, flow: Flow, party: u64, delivery: Delivery) {
        let parked = self.flows.entry(flow).or_default();
        if parked.is_empty() {
            self.turns.push(party, flow);
        }
        parked.waiting.push_back(delivery);
    }

    /// Parks an ordered delivery of a home until this flow, of one of the delivery's topics, has ended.
    pub fn wait_for(&mut self, topic: Flow, delivery: Delivery) {
        self.blocked.insert(delivery.home, topic);
        let ordered = self.flows.entry(Flow::ordered(delivery.home));
        ordered.or_default().waiting.push_back(delivery);
    }

    /// Puts the ordered deliveries of a home, which waited for a flow, back at the head of the queue.
    fn requeue(&mut self, home: ShardId) {
        self.blocked.remove(&home);
        let waited = self.flows.remove(&Flow::ordered(home));
        for delivery in waited.into_iter().flat_map(|it| it.waiting).rev() {
            self.queued.push_front(delivery);
        }
    }

    /// Takes the flow whose turn it is, with its deliveries. It is to be given back with [`Deliveries::did`].
    pub fn next(&mut self) -> Option<(Flow, Parked)> {
        if self.flows.is_empty() {
            return None;
        }
        let flow = self.turns.pop()?;
        let parked = core::mem::take(self.flows.get_mut(&flow)?);
        self.walk_bytes -= parked.walk_bytes();
        Some((flow, parked))
    }

    /// Whether another flow waits for its turn.
    pub fn has_next(&self) -> bool {
        !self.turns.is_empty()
    }

    /// So much was done for the flow that was taken; `rest` is what is left of it. Whether a delivery of it `is_done`.
    pub fn did(&mut self, flow: Flow, party: u64, visits: u32, rest: Parked, is_done: bool) {
        let home = flow.home();
        if is_done && flow == Flow::ordered(home) {
            self.flows.insert(flow, rest);
            self.requeue(home);
        } else if rest.is_empty() {
            self.flows.remove(&flow);
            if self.blocked.get(&home) == Some(&flow) {
                self.requeue(home);
            }
        } else {
            self.walk_bytes += rest.walk_bytes();
            self.flows.insert(flow, rest);
            self.turns.push(party, flow);
        }
        self.turns.charge(visits.into());
    }

    /// Whether messages for filters of one of so many homes have reached some of their connections and not others.
    #[inline]
    pub fn has_runs(&self, homes: ShardId) -> bool {
        let has_run = |home| self.under_way(home).is_some_and(|it| it.run.len > 0);
        self.has_flows() && (0..homes).any(has_run)
    }

    /// The delivery of that home that is under way with messages for filters.
    pub fn under_way(&self, home: ShardId) -> Option<&Delivery> {
        if self.flows.is_empty() {
            return None;
        }
        self.flows.get(&Flow::ordered(home))?.waiting.front()
    }
}
