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
use crate::client::row::State;
use crate::io::Io;
use crate::mail::{Attached, Frames, MatchPage, Record};
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::Front;
use crate::protocol::http::opening::{Most, Opening};
use crate::protocol::http::subscribe::Gap;
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// The offsets that a connection has reached with the last of these messages of a run, by partition.
pub(in crate::protocol) fn just_seen(messages: &[Matched]) -> Vec<(PartitionId, u64)> {
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
    /// Subscribes a request to filters; the response begins when the homes have answered.
    pub(in crate::protocol) fn join_over_http(
        &mut self,
        slot: u32,
        filters: &[Vec<u8>],
        since: &[Since],
        poll: bool,
    ) -> Result<(), &'static str> {
        self.conns.extra(slot).own.opening = Some(Box::new(Opening::of(since.len())));
        let filters: Vec<(&[u8], u32)> = filters.iter().map(|filter| (&filter[..], 0)).collect();
        self.join_filters(slot, &filters, since, poll).map(|_| ())
    }

    /// A home's answer to a request or stream by filter.
    pub(in crate::protocol) fn request_match_page<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        if page.attached != Attached::Yes {
            let row = self.conns.get(slot);
            if matches!(row.state, State::Sse | State::WebSocket) {
                self.end_stream(slot, Reason::TopicsFull, io);
            } else {
                self.not_attached(slot, page.attached, io);
            }
            return;
        }
        if self.conns.extra(slot).own.opening.is_some() {
            self.opening_page(slot, serial, page, frames, io);
        } else {
            self.further_page(slot, serial, page, frames, io);
        }
    }

    pub(in crate::protocol) fn records<'a>(
        page: &MatchPage,
        frames: &'a Frames,
    ) -> impl Iterator<Item = (u32, &'a Record)> + Clone {
        let (first, names) = (page.first as usize, page.names as usize);
        let names = &frames.names[names..names + page.count as usize];
        let records = &frames.pages[first..first + page.count as usize];
        names.iter().copied().zip(records)
    }

    fn opening_page<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let most = match self.is_stream(slot) {
            true => Most::Bytes(self.bounds().bytes),
            false => Most::OneMessage,
        };
        let opening = self.conns.extra(slot).own.opening.as_deref_mut();
        let records = Self::records(page, frames);
        let taken = opening.and_then(|opening| {
            let taken = opening.take_page(page, records, frames, most)?;
            Some((taken, opening.is_whole()))
        });
        let Some((taken, whole)) = taken else {
            return self.broken(slot);
        };
        self.took_page(slot, serial, page, taken.end, taken.live);
        if taken.searching {
            // Only later: a delivery is under way.
            self.resume_later(self.conns.id_of(slot));
        } else if whole && let Some(opening) = self.conns.extra(slot).own.opening.take() {
            self.opened(slot, opening, io);
        }
    }

    /// Sets the positions by partition: to where the first pages begin, or to where the subscriber has them (`at_end`).
    pub(in crate::protocol) fn set_positions(
        &mut self,
        slot: u32,
        opening: &Opening,
        at_end: bool,
    ) {
        let positions = opening.positions(self.world.epoch, at_end);
        let Some(filtered) = self.filtered_mut(slot) else {
            return self.broken(slot);
        };
        if let Some(serial) = filtered.groups().first().map(|group| group.serial) {
            filtered.set_positions(serial, positions);
        }
    }

    /// The homes have answered for all partitions: the stream begins.
    pub(in crate::protocol) fn open_stream<I: Io>(
        &mut self,
        slot: u32,
        mut opening: Box<Opening>,
        io: &mut I,
    ) {
        self.set_positions(slot, &opening, false);
        let mut bytes = Rope::default();
        if opening.has_gap() && !self.tell_gap_of_filters(slot, false, &mut bytes.own) {
            self.begin_with(slot, &bytes, io);
            return self.end_for_gap_of_filters(slot, io);
        }
        let told = bytes.len();
        let (held, frames) = opening.held();
        for held in held {
            self.saw_of_partition(slot, held.partition, held.record.offset);
            let name = frames.name(held.name);
            self.encode_matched(slot, &[], name, &held.record, frames, &mut bytes);
        }
        self.stats.sent(held.len(), bytes.len() - told);
        opening.sent_held();
        self.set_positions(slot, &opening, true);
        if opening.may_tell_position() {
            self.tell_position(slot, 0);
        }
        self.begin_with(slot, &bytes, io);
        if self.conns.get(slot).outbox == NONE {
            self.resume_later(self.conns.id_of(slot));
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
        let records = Self::records(page, frames);
        let first = records.clone().next();
        if page.gap {
            let from = first.map_or(page.head, |(_, record)| record.offset - 1);
            self.saw_of_partition(slot, page.partition, from);
            let mut bytes = Vec::new();
            if !self.tell_gap_of_filters(slot, true, &mut bytes) {
                return self.end_for_gap_of_filters(slot, io);
            }
            self.put(slot, &bytes, io);
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for (name, record) in records.clone() {
            self.saw_of_partition(slot, page.partition, record.offset);
            self.encode_matched(slot, &[], frames.name(name), record, frames, &mut bytes);
            ends.push(bytes.len());
        }
        let (mut head, mut live) = (page.head, page.at_head);
        if records.clone().any(|(_, record)| record.latest) {
            let taken = self.offer(slot, &bytes, &ends, io);
            if let Some((_, left)) = records.clone().nth(taken) {
                (head, live) = (left.offset - 1, false);
            }
        } else if !bytes.is_empty() {
            self.stats.sent(page.count as usize, bytes.len());
            self.put_rope(slot, &bytes, io);
        }
        self.took_page(slot, serial, page, head, live);
        if self.conns.get(slot).outbox == NONE {
            self.resume_later(self.conns.id_of(slot));
        }
    }

    /// Asks for a next page: before the response begins, of each partition that no home has answered for yet; of a stream that has
    /// begun, of one partition in which it is behind.
    pub(in crate::protocol) fn catch_up_filters(&mut self, slot: u32) {
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let Some((serial, partitions)) = group.map(|it| (it.serial, it.positions().len())) else {
            return;
        };
        let poll = !self.is_stream(slot);
        if self.conns.extra(slot).own.opening.is_none() {
            let filtered = self.filtered_mut(slot);
            if let Some(partition) = filtered.and_then(|all| all.next_behind(serial)) {
                self.ask_matches(slot, serial, partition, poll);
            }
            return;
        }
        for partition in (0..).take(partitions) {
            let opening = self.conns.extra(slot).own.opening.as_deref();
            if opening.is_some_and(|opening| !opening.has_answered(partition)) {
                self.ask_matches(slot, serial, partition, poll);
            }
        }
    }

    /// Live messages of a run for a request or stream: those of its filters that are live in its partition, each once.
    pub(in crate::protocol) fn request_matched<I: Io>(
        &mut self,
        slot: u32,
        all: &[Addressee],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let Some(filtered) = self.filtered(slot) else {
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
    pub(in crate::protocol) fn stream_matched<I: Io>(
        &mut self,
        slot: u32,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        let encoding = Encoding::of(row);
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let Some(group) = group else {
            return self.broken(slot);
        };
        // While a run of another home is under way some connections have seen its messages and others have not.
        let alike = !self.deliveries.has_runs(self.world.homes);
        if alike && group.positions().is_empty() {
            self.encode_run(encoding, messages, frames);
            return self.push_picks(slot, encoding, picks, frames, io);
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for n in picks {
            let message = &messages[*n as usize];
            let (seen, name) = (&messages[..=*n as usize], frames.name(message.name));
            self.encode_matched(
                slot,
                &just_seen(seen),
                name,
                &message.record,
                frames,
                &mut bytes,
            );
            ends.push(bytes.len());
        }
        self.put_picks(slot, (&bytes, &ends), picks, frames, io);
    }

    /// Keeps live messages for a response that has not begun.
    pub(in crate::protocol) fn hold_matches(
        &mut self,
        slot: u32,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
    ) {
        let poll = !self.is_stream(slot);
        for n in picks {
            let message = &messages[*n as usize];
            let bounds = self.bounds_of(frames.name(message.name));
            let opening = self.conns.extra(slot).own.opening.as_deref_mut();
            let partition = message.partition;
            let message = (frames.name(message.name), &message.record, frames);
            let held = opening.and_then(|it| it.hold_live(partition, message, bounds, poll));
            if held.is_none() {
                return self.broken(slot);
            }
        }
    }

    pub(in crate::protocol) fn saw_of_partition(
        &mut self,
        slot: u32,
        partition: PartitionId,
        offset: u64,
    ) {
        let Some(filtered) = self.filtered_mut(slot) else {
            return self.broken(slot);
        };
        let serial = filtered.groups().first().map(|group| group.serial);
        if let Some(at) = serial.and_then(|serial| filtered.at_mut(serial, partition)) {
            at.offset = offset;
        }
    }

    /// Encodes one message for one connection, with the connection's own position; for a message of a run, `just` are the offsets
    /// that the run has reached with it.
    fn encode_matched(
        &mut self,
        slot: u32,
        just: &[(PartitionId, u64)],
        topic: &[u8],
        record: &Record,
        frames: &Frames,
        out: &mut Rope,
    ) {
        let mut id = Vec::with_capacity(48);
        self.write_matched_id(slot, just, &mut id);
        Message {
            topic,
            id: &id,
            frames,
            record,
            now_s: self.now.unix_s,
        }
        .encode(Encoding::of(self.conns.get(slot)), &mut self.forms, out);
    }

    /// The rule that governs a response by filter: that of a topic with the first filter's text.
    pub(in crate::protocol) fn filter_rule(&self, slot: u32) -> &Rule {
        let rules = &self.world.rules;
        rules.get(rules.number_for(&self.filters_of(slot)))
    }

    /// The first filter.
    fn filters_of(&self, slot: u32) -> Vec<u8> {
        let part = self.filtered(slot).and_then(|all| all.part(0));
        part.map_or(Vec::new(), |part| self.matching.name(part.row))
    }

    fn tell_gap_of_filters(&mut self, slot: u32, again: bool, out: &mut Vec<u8>) -> bool {
        let name = self.filters_of(slot);
        let mut id = Vec::with_capacity(48);
        self.write_matched_id(slot, &[], &mut id);
        let slow = self.filter_rule(slot).slow;
        self.tell_gap_at(
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

    fn end_for_gap_of_filters<I: Io>(&mut self, slot: u32, io: &mut I) {
        let mut id = Vec::with_capacity(48);
        self.write_matched_id(slot, &[], &mut id);
        self.end_for_gap_at(slot, &id, io);
    }
}
