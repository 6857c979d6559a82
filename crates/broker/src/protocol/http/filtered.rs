//! Subscribers by filter over HTTP: event streams, WebSockets and long-polls. All filters of a request are one group,
//! and its positions name one offset for each partition.
//!
//! Invariants: a response begins when every home has answered, with the messages that the logs held; an answer to a long-poll
//! has one message, and the messages of other partitions stay unseen for the next poll.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::position::Since;
use crate::base::reason::Reason;
use crate::base::settings::Rule;
use crate::client::delivery::{Addressee, Matched};
use crate::client::joining::{self, Asking, ask_matches, filtered_mut, join_filters};
use crate::client::push::{Parcel, push_picks, put_picks};
use crate::client::row::State;
use crate::io::Io;
use crate::mail::{Attached, Frames, MatchPage, Record};
use crate::protocol::contract::run::encode_run;
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::{
    Clients, Connections, Deliveries, Feed, Front, Matching, Subscriptions,
};
use crate::protocol::http::opening::{Most, Opening};
use crate::protocol::http::state::Gap;
use crate::protocol::http::subscribe::gap::tell_gap_at;
use crate::protocol::http::subscribe::stream::is_stream;
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// The offsets that a connection has reached with the last of these messages of a run, by partition.
pub(crate) fn just_seen(messages: &[Matched]) -> Vec<(PartitionId, u64)> {
    let mut just: Vec<(PartitionId, u64)> = Vec::new();
    for message in messages.iter().rev() {
        if just
            .iter()
            .all(|(partition, _)| *partition != message.partition)
        {
            just.push((message.partition, message.record.offset));
        }
    }
    just
}

impl Front {
    /// A home's answer to a request or stream by filter.
    pub(crate) fn request_match_page<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        if page.attached != Attached::Yes {
            let row = self.clients.conns.get(slot);
            if matches!(row.state, State::Sse | State::WebSocket) {
                self.end_stream(slot, Reason::TopicsFull, io);
            } else {
                self.not_attached(slot, page.attached, io);
            }
            return;
        }
        if self.clients.conns.extra(slot).own.opening.is_some() {
            self.opening_page(slot, serial, page, frames, io);
        } else {
            self.further_page(slot, serial, page, frames, io);
        }
    }

    fn opening_page<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let most = match is_stream(&self.clients.conns, slot) {
            true => Most::Bytes(self.clients.ctx.bounds().bytes),
            false => Most::OneMessage,
        };
        let opening = self.clients.conns.extra(slot).own.opening.as_deref_mut();
        let records = page.records(frames);
        let taken = opening.and_then(|opening| {
            let taken = opening.take_page(page, records, frames, most)?;
            Some((taken, opening.is_whole()))
        });
        let Some((taken, whole)) = taken else {
            return self.clients.broken(slot);
        };
        self.clients
            .took_page(slot, serial, page, taken.end, taken.live);
        if taken.searching {
            // Only later: a delivery is under way.
            self.queues
                .resume_later(&self.clients, self.clients.conns.id_of(slot));
        } else if whole && let Some(opening) = self.clients.conns.extra(slot).own.opening.take() {
            self.opened(slot, opening, io);
        }
    }

    /// The homes have answered for all partitions: the stream begins.
    pub(crate) fn open_stream<I: Io>(&mut self, slot: u32, mut opening: Box<Opening>, io: &mut I) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            meter,
            ..
        } = self;
        clients.set_positions(slot, &opening, false);
        let mut bytes = Rope::default();
        if opening.has_gap()
            && !tell_gap_of_filters(
                clients,
                &subs.matching,
                &feed.deliveries,
                slot,
                false,
                &mut bytes.own,
            )
        {
            clients.begin_with(queues, slot, &bytes, io);
            return self.end_for_gap_of_filters(slot, io);
        }
        let told = bytes.len();
        let (held, frames) = opening.held();
        for held in held {
            clients.saw_of_partition(slot, held.partition, held.record.offset);
            let name = frames.name(held.name);
            encode_matched(
                clients,
                &subs.matching,
                feed,
                slot,
                &[],
                (name, &held.record, frames),
                &mut bytes,
            );
        }
        meter.stats.sent(held.len(), bytes.len() - told);
        opening.sent_held();
        clients.set_positions(slot, &opening, true);
        if opening.may_tell_position() {
            clients.tell_position(&subs.matching, &feed.deliveries, slot, 0);
        }
        clients.begin_with(queues, slot, &bytes, io);
        if clients.conns.get(slot).outbox == NONE {
            queues.resume_later(clients, clients.conns.id_of(slot));
        }
    }

    /// A page for a stream that has begun.
    fn further_page<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            meter,
            ..
        } = self;
        let records = page.records(frames);
        let first = records.clone().next();
        if page.gap {
            let from = first.map_or(page.head, |(_, record)| record.offset - 1);
            clients.saw_of_partition(slot, page.partition, from);
            let mut bytes = Vec::new();
            if !tell_gap_of_filters(
                clients,
                &subs.matching,
                &feed.deliveries,
                slot,
                true,
                &mut bytes,
            ) {
                return self.end_for_gap_of_filters(slot, io);
            }
            clients.put(slot, &bytes, io);
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for (name, record) in records.clone() {
            clients.saw_of_partition(slot, page.partition, record.offset);
            encode_matched(
                clients,
                &subs.matching,
                feed,
                slot,
                &[],
                (frames.name(name), record, frames),
                &mut bytes,
            );
            ends.push(bytes.len());
        }
        let (mut head, mut live) = (page.head, page.at_head);
        if records.clone().any(|(_, record)| record.latest) {
            let taken = clients.offer(&mut meter.stats, slot, &bytes, &ends, io);
            if let Some((_, left)) = records.clone().nth(taken) {
                (head, live) = (left.offset - 1, false);
            }
        } else if !bytes.is_empty() {
            meter.stats.sent(page.count as usize, bytes.len());
            clients.put_rope(slot, &bytes, io);
        }
        clients.took_page(slot, serial, page, head, live);
        if clients.conns.get(slot).outbox == NONE {
            queues.resume_later(clients, clients.conns.id_of(slot));
        }
    }

    /// Live messages of a run for a request or stream: those of its filters that are live in its partition, each once.
    pub(crate) fn request_matched<I: Io>(
        &mut self,
        slot: u32,
        all: &[Addressee],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let Some(filtered) = joining::filtered(&self.clients.conns, slot) else {
            return;
        };
        let live = |due: &&Addressee| {
            let message = messages.get(due.message as usize);
            message.is_some_and(|it| filtered.is_live(due.part, it.partition))
        };
        let mut picks: Vec<u32> = all.iter().filter(live).map(|due| due.message).collect();
        picks.dedup();
        if !picks.is_empty() {
            self.matched(slot, &picks, messages, frames, io);
        }
    }

    /// The same for a stream that has begun.
    pub(crate) fn stream_matched<I: Io>(
        &mut self,
        slot: u32,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let Front {
            clients,
            subs,
            feed,
            meter,
            ..
        } = self;
        let row = clients.conns.get(slot);
        let encoding = Encoding::of(row);
        let group = joining::filtered(&clients.conns, slot).and_then(|all| all.groups().first());
        let Some(group) = group else {
            return clients.broken(slot);
        };
        let parcel = Parcel::of_picks(slot, encoding, picks, frames);
        // While a run of another home is under way some connections have seen its messages and others have not.
        let alike = !feed.deliveries.has_runs(clients.ctx.world.homes);
        if alike && group.positions().is_empty() {
            encode_run(
                &subs.matching,
                feed,
                &clients.ctx,
                encoding,
                messages,
                frames,
            );
            return push_picks(
                clients,
                subs,
                &feed.run,
                &mut meter.stats,
                &parcel,
                picks,
                io,
            );
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for n in picks {
            let message = &messages[*n as usize];
            let (seen, name) = (&messages[..=*n as usize], frames.name(message.name));
            encode_matched(
                clients,
                &subs.matching,
                feed,
                slot,
                &just_seen(seen),
                (name, &message.record, frames),
                &mut bytes,
            );
            ends.push(bytes.len());
        }
        put_picks(
            clients,
            subs,
            &feed.run,
            &mut meter.stats,
            &parcel,
            (&bytes, &ends, picks),
            io,
        );
    }

    fn end_for_gap_of_filters<I: Io>(&mut self, slot: u32, io: &mut I) {
        let mut id = Vec::with_capacity(48);
        self.clients.write_matched_id(
            &self.subs.matching,
            &self.feed.deliveries,
            slot,
            &[],
            &mut id,
        );
        self.end_for_gap_at(slot, &id, io);
    }
}

/// Subscribes a request to filters; the response begins when the homes have answered.
pub(crate) fn join_over_http(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    filters: &[Vec<u8>],
    since: &[Since],
    poll: bool,
) -> Result<(), &'static str> {
    clients.conns.extra(slot).own.opening = Some(Box::new(Opening::of(since.len())));
    let filters: Vec<(&[u8], u32)> = filters.iter().map(|filter| (&filter[..], 0)).collect();
    join_filters(clients, subs, slot, &filters, since, poll).map(|_| ())
}

/// Asks for a next page: before the response begins, of each partition that no home has answered for yet; of a stream that has
/// begun, of one partition in which it is behind.
pub(crate) fn catch_up_filters(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    let group = joining::filtered(&clients.conns, slot).and_then(|all| all.groups().first());
    let Some((serial, partitions)) = group.map(|it| (it.serial, it.positions().len())) else {
        return;
    };
    let poll = !is_stream(&clients.conns, slot);
    if clients.conns.extra(slot).own.opening.is_none() {
        let filtered = filtered_mut(&mut clients.conns, slot);
        if let Some(partition) = filtered.and_then(|all| all.next_behind(serial)) {
            ask_matches(clients, subs, Asking { slot, serial, poll }, partition);
        }
        return;
    }
    for partition in (0..).take(partitions) {
        let opening = clients.conns.extra(slot).own.opening.as_deref();
        if opening.is_some_and(|opening| !opening.has_answered(partition)) {
            ask_matches(clients, subs, Asking { slot, serial, poll }, partition);
        }
    }
}

/// Encodes one message for one connection, with the connection's own position; for a message of a run, `just` are the offsets
/// that the run has reached with it.
fn encode_matched(
    clients: &Clients,
    matching: &Matching,
    feed: &mut Feed,
    slot: u32,
    just: &[(PartitionId, u64)],
    (topic, record, frames): (&[u8], &Record, &Frames),
    out: &mut Rope,
) {
    let mut id = Vec::with_capacity(48);
    clients.write_matched_id(matching, &feed.deliveries, slot, just, &mut id);
    Message {
        topic,
        id: &id,
        frames,
        record,
        now_s: clients.ctx.now.unix_s,
    }
    .encode(Encoding::of(clients.conns.get(slot)), &mut feed.forms, out);
}

/// Keeps live messages for a response that has not begun.
pub(crate) fn hold_matches(
    clients: &mut Clients,
    slot: u32,
    picks: &[u32],
    messages: &[Matched],
    frames: &Frames,
) {
    let poll = !is_stream(&clients.conns, slot);
    for n in picks {
        let message = &messages[*n as usize];
        let bounds = clients.ctx.bounds_of(frames.name(message.name));
        let opening = clients.conns.extra(slot).own.opening.as_deref_mut();
        let partition = message.partition;
        let message = (frames.name(message.name), &message.record, frames);
        let held = opening.and_then(|it| it.hold_live(partition, message, bounds, poll));
        if held.is_none() {
            return clients.broken(slot);
        }
    }
}

impl Clients {
    pub(crate) fn saw_of_partition(&mut self, slot: u32, partition: PartitionId, offset: u64) {
        let Some(filtered) = filtered_mut(&mut self.conns, slot) else {
            return self.broken(slot);
        };
        let serial = filtered.groups().first().map(|group| group.serial);
        if let Some(at) = serial.and_then(|serial| filtered.at_mut(serial, partition)) {
            at.offset = offset;
        }
    }

    /// Sets the positions by partition: to where the first pages begin, or to where the subscriber has them (`at_end`).
    pub(crate) fn set_positions(&mut self, slot: u32, opening: &Opening, at_end: bool) {
        let positions = opening.positions(self.ctx.world.epoch, at_end);
        let Some(filtered) = filtered_mut(&mut self.conns, slot) else {
            return self.broken(slot);
        };
        if let Some(serial) = filtered.groups().first().map(|group| group.serial) {
            filtered.set_positions(serial, positions);
        }
    }

    /// The rule that governs a response by filter: that of a topic with the first filter's text.
    pub(crate) fn filter_rule<'a>(&'a self, matching: &Matching, slot: u32) -> &'a Rule {
        let rules = &self.ctx.world.rules;
        rules.get(rules.number_for(&filters_of(&self.conns, matching, slot)))
    }
}

/// The first filter.
fn filters_of(conns: &Connections, matching: &Matching, slot: u32) -> Vec<u8> {
    let part = joining::filtered(conns, slot).and_then(|all| all.part(0));
    part.map_or(Vec::new(), |part| matching.name(part.row))
}

fn tell_gap_of_filters(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    again: bool,
    out: &mut Vec<u8>,
) -> bool {
    let name = filters_of(&clients.conns, matching, slot);
    let mut id = Vec::with_capacity(48);
    clients.write_matched_id(matching, deliveries, slot, &[], &mut id);
    let slow = clients.filter_rule(matching, slot).slow;
    tell_gap_at(
        &clients.conns,
        slot,
        Gap {
            name: &name,
            id: &id,
            slow,
            again,
        },
        out,
    )
}
