//! Delivers new messages to the connections of this shard that subscribe by filter. The home of a topic (the part of a shard that keeps the topic) knows
//! which shards have a matching filter, but not which connections. So this shard matches the filters again.
//!
//! Words:
//! * A *run* is a sequence of messages from one home that are delivered together.
//! * A *visit* writes all messages of the run that match a connection's filters to that connection, with one write. A message that matches
//!   several filters of the connection is written once.
//! * A *turn* is one pass of the shard's loop, with a limited number of visits (the budget). A run that exceeds it continues in the next turn.
//! * A connection is *live* in a partition when it has received the older messages that it asked for. Only a live connection gets new messages.
//! * The *exact subscribers* of a topic subscribe to the topic by name.
//!
//! A run has two phases. The first sends each message to the exact subscribers of its topic. The second sends the messages to the connections
//! with filters. An MQTT connection may subscribe to a topic by name and by filter. The first phase skips this connection
//! (`Clients::has_live_match`), so that it gets the message once, in the second phase.
//!
//! Before the first visit of the second phase, the pairs of message and connection are collected and sorted by connection. The list has
//! about as many pairs as four turns can visit. If the messages of a single topic have more pairs, these messages become a *broad run*. A
//! broad run has no list of pairs: it walks over the members of the matching filters, and a bitmap marks the visited connections. Members
//! may leave and join meanwhile.
//!
//! Messages that arrive during a run wait, and are delivered together afterwards (`client/together.rs`). So a busy topic needs fewer writes for
//! each message.
//!
//! Invariants:
//! * Messages are not reordered. The second phase of a run visits a connection once.
//! * After a visit, the position of the connection has the message's offset for the message's partition. For every other partition, the
//!   position has the last offset that the connection has seen.
//! * A connection that joins during a run gets none of the run's messages, and becomes live in their partitions only after the run.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::turn_limits::PREFETCH_ROWS;
use crate::client;
use crate::client::delivery::{Addressee, BroadVisits, Delivery, FilterMessage, RunProgress};
use crate::client::joining::filter_subscriptions;
use crate::client::run::visits_for_bytes;
use crate::client::walk::TOGETHER_BYTES;
use crate::filters::matching::{FilterSubscriptions, MatchedFilter, Member};
use crate::io::Io;
use crate::mail::{Frames, Tell};
use crate::protocol::front::{Clients, Connections, Front, Matching, Topics};
use crate::shard::deliver::{Visit, charge_steps};
use crate::store::slab::NONE;

/// The maximum number of messages of a run.
const RUN_MAX: usize = 64;
/// Collecting and sorting this many pairs, or skipping this many, costs as much as one visit.
const PAIRS_PER_VISIT: usize = 16;
/// A run collects as many pairs as this many turns can visit. A longer run has more messages for each connection, and so needs fewer writes.
const TURNS_OF_RUN: usize = 4;

impl Front {
    /// Continues the run at the delivery's cursor, or begins a new run. Returns false if the budget is spent before the run ends.
    pub(crate) fn deliver_filter_run<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        if delivery.run.len == 0 {
            let before = self.clients.meter.work.count();
            begin_run(&self.clients, &mut self.subs.matching, delivery, frames);
            charge_steps(&self.clients.meter.work, before, budget);
            *budget = budget.saturating_sub((delivery.run.visits.len() / PAIRS_PER_VISIT) as u32);
        }
        if !self.deliver_to_exact_subscribers(delivery, frames, budget, io) {
            return false;
        }
        let messages: Vec<FilterMessage> = (0..delivery.run.len)
            .map(|n| current_message(&self.subs.topics, delivery, n))
            .collect();
        let run = &mut self.feed.run;
        run.begin(messages.iter().map(|message| message.record));
        let topics = messages.iter().map(|it| (it.partition, it.name));
        run.topics.extend(topics);
        if let Some(mut broad) = delivery.run.broad.take() {
            let done = self.deliver_broad(delivery.home, &mut broad, &messages, frames, budget, io);
            delivery.run.broad = Some(broad);
            if !done {
                return false;
            }
        }
        let message_bytes = self.feed.run.bytes / messages.len().max(1);
        let mut prefetched = delivery.run.next_visit;
        while let Some(first) = delivery.run.visits.get(delivery.run.next_visit) {
            if *budget == 0 {
                return false;
            }
            if delivery.run.next_visit >= prefetched {
                let ahead = &delivery.run.visits[delivery.run.next_visit..];
                let ahead = &ahead[..ahead.len().min(PREFETCH_ROWS)];
                prefetch_due(&self.clients.conns, ahead);
                prefetched = delivery.run.next_visit + ahead.len();
            }
            let rest = &delivery.run.visits[delivery.run.next_visit..];
            let same = rest.iter().take_while(|due| due.slot == first.slot);
            let (slot, len) = (first.slot, same.count());
            delivery.run.next_visit += len;
            let addressees =
                &delivery.run.visits[delivery.run.next_visit - len..delivery.run.next_visit];
            let visit = Visit::begin(&self.clients, slot);
            self.deliver_live_matches(slot, (addressees, &messages, frames), io);
            self.carry_out_ends(io);
            visit.charge(&self.clients, visits_for_bytes(len * message_bytes), budget);
        }
        let matching = &mut self.subs.matching;
        for message in &messages {
            matching.record_seen_by_all(message.partition, message.record.offset);
        }
        delivery.end_run();
        true
    }

    /// Does the first phase of a run: sends the messages to the exact subscribers of their topics. Returns false if the budget is spent
    /// before the phase ends.
    fn deliver_to_exact_subscribers<I: Io>(
        &mut self,
        delivery: &mut Delivery,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        while delivery.run.sent_by_topic < delivery.run.len {
            if *budget == 0 {
                return false;
            }
            let ExactRun {
                topic,
                serial,
                message_count,
            } = collect_exact_run(&mut self.feed.run, delivery);
            if topic != NONE
                && self.subs.topics.is_current(topic, serial)
                && !self.fan_out(delivery, topic, serial, frames, budget, io)
            {
                return false;
            }
            delivery.run.sent_by_topic += message_count;
        }
        true
    }

    /// Does the second phase of a broad run: visits the members of the matching filters. Returns false if the budget is spent before the
    /// phase ends.
    fn deliver_broad<I: Io>(
        &mut self,
        home: ShardId,
        broad: &mut BroadVisits,
        messages: &[FilterMessage],
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let (mut next, mut due, mut all) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            if *budget == 0 {
                return false;
            }
            self.subs
                .matching
                .next_members(home, PREFETCH_ROWS.min(*budget as usize), &mut next);
            if next.is_empty() {
                return true;
            }
            // A connection with several matching filters occurs several times. Only the first time is a visit, but skipping costs time too.
            *budget = budget.saturating_sub(next.len().div_ceil(PAIRS_PER_VISIT) as u32);
            next.retain(|member| broad.visit(member.slot));
            due.clear();
            due.extend(next.iter().map(|member| Addressee::new(member, 0)));
            prefetch_due(&self.clients.conns, &due);
            for Addressee { slot, .. } in &due {
                all.clear();
                let parts = filter_subscriptions(&self.clients.conns, *slot)
                    .into_iter()
                    .flat_map(FilterSubscriptions::parts);
                let matching =
                    parts.filter(|(_, part)| broad.rows.binary_search(&part.row).is_ok());
                all.extend(matching.map(|(filter_index, _)| Addressee {
                    slot: *slot,
                    message: 0,
                    filter_index,
                }));
                // All messages of a broad run have the same topic.
                let parts = all.len();
                for message in 1..messages.len() as u32 {
                    all.extend_from_within(..parts);
                    let last = all.len() - parts;
                    all[last..].iter_mut().for_each(|it| it.message = message);
                }
                let visit = Visit::begin(&self.clients, *slot);
                if !all.is_empty() {
                    self.deliver_live_matches(*slot, (&all, messages, frames), io);
                    self.carry_out_ends(io);
                }
                visit.charge(&self.clients, visits_for_bytes(self.feed.run.bytes), budget);
            }
        }
    }
}

/// Message `n` of the run. The home identifies the message's topic by the row that the topic had in this shard's table of topics. If another topic uses
/// the row now, the message's topic has no exact subscriber at this shard any more, and the row of the result is `NONE`.
fn current_message(topics: &Topics, delivery: &Delivery, n: usize) -> FilterMessage {
    let mut message = delivery.filter_message(n);
    if let Tell::Match { topic, serial, .. } = *delivery.tell(n)
        && topic != NONE
        && !topics.is_current(topic, serial)
    {
        message.topic = NONE;
    }
    message
}

/// A run that has this many pairs takes no more messages.
fn pairs_max(clients: &Clients) -> usize {
    TURNS_OF_RUN * clients.meter.work.turn_limits.visits_per_turn as usize
}

fn begin_run(clients: &Clients, matching: &mut Matching, delivery: &mut Delivery, frames: &Frames) {
    let mut run = core::mem::take(&mut delivery.run);
    run.visits.clear();
    (run.sent_by_topic, run.next_visit) = (0, 0);
    let enough = pairs_max(clients);
    while run.len < RUN_MAX && run.broad.is_none() && run.visits.len() < enough {
        let messages_max = PREFETCH_ROWS.min(RUN_MAX - run.len);
        if extend_run(clients, matching, &mut run, messages_max, delivery, frames) == 0 {
            break;
        }
    }
    run.visits.sort_unstable_by_key(Addressee::order);
    delivery.run = run;
}

/// The messages of one topic that its exact subscribers get with one write.
struct ExactRun {
    /// The topic's row at this shard.
    topic: u32,
    /// The serial of the row.
    serial: u16,
    message_count: usize,
}

/// Collects in `run` the next messages of one topic, as many as fit into one write, for the exact subscribers of the topic.
fn collect_exact_run(run: &mut client::run::Run, delivery: &Delivery) -> ExactRun {
    let match_at = |n: usize| match *delivery.tell(n) {
        Tell::Match {
            topic,
            serial,
            record,
            ..
        } => (topic, serial, record),
        _ => unreachable!("a run is of matches"),
    };
    let (topic, serial, _) = match_at(delivery.run.sent_by_topic);
    let mut bytes = 0;
    let messages = (delivery.run.sent_by_topic..delivery.run.len).map(match_at);
    run.begin(messages.map_while(|(next_topic, next_serial, record)| {
        let is_next = (next_topic, next_serial) == (topic, serial) && bytes < TOGETHER_BYTES;
        bytes += record.frame_bytes();
        is_next.then_some(record)
    }));
    ExactRun {
        topic,
        serial,
        message_count: run.records().len(),
    }
}

/// The number of messages from the cursor on that have the same topic and fit into one write.
fn count_same_topic(delivery: &Delivery, frames: &Frames) -> usize {
    let name_and_len = |n| match delivery.try_tell(n) {
        Some(Tell::Match { name, record, .. }) => Some((frames.name(*name), record.frame_bytes())),
        _ => None,
    };
    let first = name_and_len(0).map(|(name, _)| name);
    let mut bytes = 0;
    let same = (0..RUN_MAX)
        .map_while(name_and_len)
        .take_while(|(name, len)| {
            let is_next = Some(*name) == first && bytes < TOGETHER_BYTES;
            bytes += len;
            is_next
        });
    same.count()
}

/// Begins a broad run to the members of these filters.
fn begin_broad(
    conns: &Connections,
    matching: &mut Matching,
    home: ShardId,
    sets: impl Iterator<Item = MatchedFilter> + Clone,
) -> BroadVisits {
    let mut rows: Vec<u32> = sets.clone().map(|set| set.row).collect();
    rows.sort_unstable();
    matching.begin_walk(home, sets);
    BroadVisits {
        rows,
        visited: alloc::vec![0; conns.end().div_ceil(64) as usize],
    }
}

/// Adds up to `messages_max` messages to a run, with a pair for each member of a matching filter, or turns the run into a broad one.
/// Returns the number of messages added. All filters are read before the members, so that cache misses overlap.
fn extend_run(
    clients: &Clients,
    matching: &mut Matching,
    run: &mut RunProgress,
    messages_max: usize,
    delivery: &Delivery,
    frames: &Frames,
) -> usize {
    let first = run.len;
    let name_at = |n| match delivery.try_tell(first + n) {
        Some(Tell::Match { name, .. }) => Some(frames.name(*name)),
        _ => None,
    };
    if delivery.home != clients.ctx.own_shard {
        // A home on this shard has just read the same rows, so they are in the cache already.
        matching.prefetch((0..messages_max).map_while(name_at));
    }
    let mut sets = Vec::with_capacity(messages_max);
    let enough = pairs_max(clients);
    for (message, name) in (first as u32..).zip((0..messages_max).map_while(name_at)) {
        matching.for_each_match(name, |set| sets.push((message, set)));
        run.len += 1;
        // Each filter has at least one member, so the run has enough pairs without further messages.
        if sets.len() > enough {
            break;
        }
    }
    for all in sets.chunk_by(|a, b| a.0 == b.0) {
        let message = all[0].0;
        let members = all.iter().map(|(_, set)| matching.members(*set));
        let count = members.clone().map(<[Member]>::len).sum::<usize>();
        let broad = count > enough;
        if message == 0 && (broad || count * RUN_MAX > enough) {
            let messages = count_same_topic(delivery, frames);
            if broad || count * messages > enough {
                let sets = all.iter().map(|(_, set)| *set);
                let broad = begin_broad(&clients.conns, matching, delivery.home, sets);
                (run.len, run.broad) = (messages, Some(Box::new(broad)));
                break;
            }
        }
        if broad || run.visits.len() >= enough {
            run.len = message as usize;
            break;
        }
        let due = members
            .flatten()
            .map(|member| Addressee::new(member, message));
        run.visits.extend(due);
    }
    run.len - first
}

/// Prefetches the rows of the next connections, and each connection's subscription to the filter that matched.
fn prefetch_due(conns: &Connections, due: &[Addressee]) {
    let mut sides = [(NONE, NONE); PREFETCH_ROWS];
    for (side, due) in sides.iter_mut().zip(due) {
        if let Some(row) = conns.try_get(due.slot) {
            *side = (row.side_row(), row.consumer.protocol_row);
        }
    }
    let mut subs = [(NONE, NONE); PREFETCH_ROWS];
    for ((sub, (extra, _)), due) in subs.iter_mut().zip(sides).zip(due) {
        let part = filter_subscriptions(conns, due.slot).and_then(|all| all.part(due.filter_index));
        if let Some(part) = part {
            *sub = (extra, part.id);
        }
    }
    let mut read = 0;
    for (((extra, sub_index), (_, mqtt)), due) in subs.into_iter().zip(sides).zip(due) {
        if extra != NONE {
            let list = &conns.side_row(due.slot).list;
            read ^= list.get(sub_index as usize).map_or(0, |sub| sub.epoch);
        }
        if mqtt != NONE {
            read ^= conns.protocol_row(due.slot).packet_bytes_max;
        }
    }
    core::hint::black_box(read);
}
