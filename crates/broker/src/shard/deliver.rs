//! Delivers tells to this shard's connections. A tell is a message, page or answer that a home (the part of a shard that keeps topics)
//! sends to the shards with subscribers.
//!
//! The tells of one topic are delivered together, in order, so a subscriber gets all messages of a turn (a pass of the shard's loop) with
//! one write. A fan-out stops when the turn's budget is spent, and its cursor says where to continue. The rest of a long fan-out is a *flow*
//! (`client/deliveries.rs`), which other deliveries overtake. The budget counts visits: a visit is the work of a delivery to one connection.
//!
//! A *page* is a bounded run of past messages.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::turn_limits::PREFETCH_ROWS;
use crate::base::work::{STEP_BYTES, STEPS_PER_VISIT, page_visits};
use crate::client;
use crate::client::deliveries::Flow;
use crate::client::delivery::{Delivery, RunProgress, is_answer, key_of};
use crate::client::run::visits_for_bytes;
use crate::client::walk::{TOGETHER_BYTES, TOGETHER_MAX};
use crate::io::Io;
use crate::mail::{Frames, Tell};
use crate::protocol::front::{Clients, Connections, Deliveries, Front, Topics, Work};
use crate::shard::delivery_order::{flow_before, keep_order};
use crate::shard::flows::{charge_encoding, count_written, end_walk, park_topic};
use crate::store::slab::NONE;

/// The search for a tell's topic among this many flows costs as much as one visit.
const FLOWS_EXAMINED_PER_VISIT: usize = 64;
/// While other deliveries wait, a fan-out becomes a flow after this many visits. A flow costs about as much as these visits.
const CROWDED_VISITS: u32 = 16;
/// The cost of a tell to one connection, in visits.
fn visits_for_tell(tell: &Tell) -> u32 {
    match tell {
        Tell::Page { page, .. } => page_visits(page.count),
        Tell::Matches { page, .. } => page_visits(page.count),
        Tell::Interest { news, .. } => 1 + (news.len() / STEP_BYTES) as u32,
        Tell::Presence(_, page) => 1 + (page.changes.len() / STEP_BYTES) as u32,
        Tell::Commands(commands) => 1 + (commands.data.len() / STEP_BYTES) as u32,
        _ => 1,
    }
}

impl Deliveries {
    /// Queues tells as a delivery.
    pub(crate) fn enqueue(
        &mut self,
        conns: &Connections,
        home: ShardId,
        tells: Vec<Tell>,
        frames: Arc<Frames>,
    ) {
        let mut keys = core::mem::take(&mut self.spare_keys);
        keys.reserve(tells.len());
        let mut is_ordered = false;
        for (n, tell) in tells.iter().enumerate() {
            keys.push(key_of(tell, n));
            is_ordered |= matches!(tell, Tell::Match { .. } | Tell::Matches { .. });
        }
        if is_ordered {
            keep_order(conns, &tells, &mut keys);
        }
        keys.sort_unstable();
        let has_answers = keys.first().is_some_and(|key| is_answer(*key));
        let queue = match has_answers || !self.with_answers.is_empty() {
            true => &mut self.with_answers,
            false => &mut self.queued,
        };
        queue.push_back(Delivery {
            tells,
            frames,
            keys,
            cursor: 0,
            walk_place: 0,
            is_walking: false,
            home,
            is_ordered,
            run: RunProgress::default(),
            turn_frames: Vec::new(),
        });
    }
}

impl Front {
    /// Keeps the lists of a finished delivery for reuse.
    pub(super) fn recycle_delivery(&mut self, delivery: Delivery) {
        self.feed.deliveries.recycle(delivery.keys);
        if delivery.home == self.clients.ctx.own_shard {
            self.subs.lanes.recycle_tells(delivery.tells);
        }
    }

    /// Works through the deliveries. Returns false if the budget of visits is spent first.
    pub(crate) fn deliver<I: Io>(&mut self, budget: &mut u32, io: &mut I) -> bool {
        let visits_at_start = *budget;
        let reserved = self.feed.deliveries.reserve_visits(visits_at_start);
        *budget -= reserved;
        self.deliver_answers(budget, io);
        self.deliver_queued(budget, io);
        *budget += reserved;
        self.deliver_flows(budget, io);
        self.clients
            .meter
            .work
            .steps
            .add((visits_at_start - *budget) as usize);
        let is_done = self.feed.deliveries.is_empty();
        if !is_done {
            let made = self.clients.encodings.take_encoded_bytes();
            self.clients.meter.work.steps.add_bytes(made);
        }
        self.feed.deliveries.has_leftovers = !self.feed.deliveries.queued.is_empty();
        is_done
    }

    /// Delivers the answers among the new tells, before all other tells.
    fn deliver_answers<I: Io>(&mut self, budget: &mut u32, io: &mut I) {
        while *budget > 0
            && let Some(mut delivery) = self.feed.deliveries.with_answers.pop_front()
        {
            let frames = delivery.frames.clone();
            while *budget > 0 && delivery.next_is_answer() {
                self.carry_out_next_tell(&mut delivery, &frames, budget, io);
            }
            match delivery.next_is_answer() {
                true => self.feed.deliveries.with_answers.push_front(delivery),
                false => self.feed.deliveries.queued.push_back(delivery),
            }
        }
    }

    /// Works through the queued deliveries in order. Long fan-outs become flows.
    fn deliver_queued<I: Io>(&mut self, budget: &mut u32, io: &mut I) {
        while *budget > 0
            && let Some(mut delivery) = self.feed.deliveries.queued.pop_front()
        {
            let deliveries = &mut self.feed.deliveries;
            let ordered = Flow::ordered(delivery.home);
            if deliveries.has(ordered) {
                deliveries.park(ordered, ordered.solo_party(), delivery);
                continue;
            }
            if delivery.is_ordered {
                deliveries.join_next_deliveries(&mut delivery);
            }
            if delivery.is_ordered && deliveries.has_flows() {
                let looks =
                    ((delivery.keys.len() - delivery.cursor) / FLOWS_EXAMINED_PER_VISIT) as u32;
                // The budget keeps at least one visit, so that even the longest delivery begins.
                *budget = budget.saturating_sub(looks).max(1);
                if let Some(topic) = flow_before(&self.clients.conns, deliveries, &delivery) {
                    deliveries.park_behind(topic, delivery);
                    continue;
                }
            }
            if self.deliver_tells(&mut delivery, budget, io) {
                self.recycle_delivery(delivery);
            } else if delivery.is_at_single_tells() {
                let others = Flow::to_single_connections(delivery.home);
                let deliveries = &mut self.feed.deliveries;
                deliveries.park(others, others.solo_party(), delivery);
            } else if delivery.is_ordered && (delivery.run.len > 0 || delivery.is_walking) {
                let deliveries = &mut self.feed.deliveries;
                deliveries.park(ordered, ordered.solo_party(), delivery);
            } else {
                self.feed.deliveries.queued.push_front(delivery);
            }
        }
    }

    /// Works through a delivery until it is done or the budget is spent. Also stops if too many tells to single connections are left: these must become
    /// a flow. A fan-out that takes too many visits becomes a flow. Tells about a topic that has a flow join that flow.
    fn deliver_tells<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let frames = delivery.frames.clone();
        let before = self.clients.meter.stats.delivered;
        let is_done = loop {
            charge_encoding(&mut self.clients.encodings, budget);
            let Some(key) = delivery.keys.get(delivery.cursor) else {
                break true;
            };
            if *budget == 0 || self.feed.deliveries.must_park_rest(delivery) {
                break false;
            }
            let is_crowded = self.feed.deliveries.has_flows();
            if is_crowded
                && let Some(topic) = Delivery::topic_of(*key)
                && self.feed.deliveries.has(Flow::topic(delivery.home, topic))
            {
                park_topic(
                    &self.clients,
                    &self.subs.topics,
                    &mut self.feed.deliveries,
                    delivery,
                    topic,
                );
                continue;
            }
            let next = &delivery.keys
                [delivery.cursor..delivery.keys.len().min(delivery.cursor + PREFETCH_ROWS)];
            // Prefetching a single row saves nothing.
            if delivery.cursor.is_multiple_of(PREFETCH_ROWS) && next.len() > 1 {
                prefetch(&self.clients.conns, &self.subs.topics, next);
            }
            let topic = Delivery::topic_of(*key);
            let share = match is_crowded || self.feed.deliveries.has_leftovers {
                true => CROWDED_VISITS.min(*budget),
                false => *budget,
            };
            let mut share_left = share;
            let is_done = self.carry_out_next_tell(delivery, &frames, &mut share_left, io);
            *budget -= share - share_left;
            match topic {
                _ if is_done => {}
                Some(topic) => park_topic(
                    &self.clients,
                    &self.subs.topics,
                    &mut self.feed.deliveries,
                    delivery,
                    topic,
                ),
                None => break false,
            }
        };
        count_written(&self.clients.meter.stats, &frames, before, io);
        is_done
    }

    /// Carries out the tell at the cursor, or a run of tells. Returns false if the budget is spent first.
    pub(super) fn carry_out_next_tell<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let tell = &delivery.tells[delivery.keys[delivery.cursor] as u32 as usize];
        if let Tell::Live { topic, serial, .. } = *tell {
            let end = collect_run(&mut self.feed.run, delivery, topic);
            // The topic's row may have been freed since the tell was sent. It is not freed in the middle of a walk, because members that leave keep their
            // places until the walk ends.
            if self.subs.topics.is_current(topic, serial)
                && !self.fan_out(delivery, topic, serial, frames, budget, io)
            {
                return false;
            }
            delivery.cursor = end;
            return true;
        }
        if matches!(tell, Tell::Match { .. }) {
            return self.deliver_filter_run(delivery, frames, budget, io);
        }
        if let Tell::Gone { topic, serial } | Tell::Displaced { topic, serial } = *tell {
            let gone = matches!(tell, Tell::Gone { .. });
            if self.subs.topics.is_current(topic, serial)
                && !self.end_members(delivery, topic, serial, gone, budget, io)
            {
                return false;
            }
            delivery.cursor += 1;
            return true;
        }
        *budget = budget.saturating_sub(visits_for_tell(tell));
        let steps = self.clients.meter.work.count();
        self.handle_reply(delivery.home, tell, frames, io);
        if matches!(tell, Tell::Page { .. }) {
            charge_steps(&self.clients.meter.work, steps, budget);
        }
        self.carry_out_ends(io);
        delivery.cursor += 1;
        true
    }

    pub(crate) fn fan_out<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        topic: u32,
        serial: u16,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let (mut is_done, cost) = (true, visits_for_bytes(self.feed.run.bytes));
        if self.subs.topics.place_count(topic) == 1 && !delivery.is_walking {
            match self.subs.topics.member(topic, 0) {
                Some(conn) => self.visit_member(conn, cost, topic, frames, budget, io),
                None => *budget = budget.saturating_sub(1),
            }
        } else {
            if !delivery.is_walking {
                self.subs.topics.begin_walk(topic);
                (delivery.is_walking, delivery.walk_place) = (true, 0);
            }
            while let Some(conn) = self.subs.topics.member_or_gap(topic, delivery.walk_place) {
                if *budget == 0 {
                    is_done = false;
                    break;
                }
                delivery.walk_place += 1;
                match conn {
                    NONE => *budget = budget.saturating_sub(1),
                    conn => self.visit_member(conn, cost, topic, frames, budget, io),
                }
            }
            if is_done {
                delivery.is_walking = false;
                end_walk(&mut self.clients.conns, &mut self.subs.topics, topic);
            }
        }
        if is_done && self.subs.topics.is_current(topic, serial) {
            self.subs.topics.free_if_unused(topic);
        }
        is_done
    }

    /// Sends the run to a member; a write costs `cost` visits.
    #[inline]
    pub(super) fn visit_member<I: Io>(
        &mut self,
        slot: u32,
        cost: u32,
        topic: u32,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) {
        let visit = Visit::begin(&self.clients, slot);
        self.deliver_live_run(slot, topic, frames, io);
        self.carry_out_ends(io);
        visit.charge(&self.clients, cost, budget);
    }
}

/// A visit to a connection. The cost is known only after the visit.
pub(super) struct Visit {
    /// The shard's count of steps before the visit.
    steps: u64,
    /// The shard's count of delivered messages before the visit; `None` if bytes already wait for the socket, so that nothing will be written.
    delivered: Option<u64>,
    /// The bytes that all clients of the shard held before the visit.
    held_bytes: usize,
}

impl Visit {
    #[inline]
    pub(super) fn begin(clients: &Clients, slot: u32) -> Visit {
        let is_free = clients.conns.get(slot).link.outbox == NONE;
        Visit {
            steps: clients.meter.work.count(),
            delivered: is_free.then_some(clients.meter.stats.delivered),
            held_bytes: clients.conns.charged_bytes(),
        }
    }

    /// Charges the budget with `cost` if a message was delivered, otherwise with one visit. Also charges it with the steps of matching, and with the bytes that
    /// were copied into the outbox of a client that does not read. Otherwise the copies of one turn could exceed `limits.memory_bytes` by far.
    #[inline]
    pub(super) fn charge(self, clients: &Clients, cost: u32, budget: &mut u32) {
        let is_written = (self.delivered).is_some_and(|it| clients.meter.stats.delivered != it);
        *budget = budget.saturating_sub(if is_written { cost } else { 1 });
        let copied_bytes = (clients.conns.charged_bytes()).saturating_sub(self.held_bytes);
        clients.meter.work.steps.add_bytes(copied_bytes);
        charge_steps(&clients.meter.work, self.steps, budget);
    }
}

/// Prefetches the rows of the next tells: each topic's row, and the row of the member to which the topic's row refers. The cache misses of several tells
/// overlap if their rows are read together.
fn prefetch(conns: &Connections, topics: &Topics, keys: &[u64]) {
    let mut members = [NONE; PREFETCH_ROWS];
    for (member, key) in members.iter_mut().zip(keys) {
        if let Some(topic) = Delivery::topic_of(*key) {
            *member = topics.only_member(topic).unwrap_or(NONE);
        }
    }
    let touch = |sum, slot: &u32| {
        let row = conns.try_get(*slot);
        row.map_or(sum, |row| {
            sum ^ row.link.socket.0 ^ u32::from(row.consumer.flags)
        })
    };
    core::hint::black_box(members.iter().fold(0, touch));
}

/// Collects the run of live messages at the cursor. Returns the end of the run.
fn collect_run(messages: &mut client::run::Run, delivery: &Delivery, of: u32) -> usize {
    let mut bytes = 0;
    let run = delivery.keys[delivery.cursor..]
        .iter()
        .take(TOGETHER_MAX)
        .map_while(|key| match &delivery.tells[*key as u32 as usize] {
            Tell::Live { topic, record, .. } if *topic == of && bytes < TOGETHER_BYTES => {
                bytes += record.frame_bytes();
                Some(*record)
            }
            _ => None,
        });
    messages.begin(run);
    delivery.cursor + messages.records().len()
}

/// Charges the budget with the steps since the count was `before`: those of matching, even if nothing matched, and those of a page.
#[inline]
pub(super) fn charge_steps(work: &Work, before: u64, budget: &mut u32) {
    let visits = (work.count() - before) / STEPS_PER_VISIT as u64;
    if visits > 0 {
        let visits = u32::try_from(visits).unwrap_or(u32::MAX);
        *budget = budget.saturating_sub(visits);
    }
}
