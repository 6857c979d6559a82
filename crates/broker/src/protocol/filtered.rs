//! Subscribers by filter over HTTP: event streams, WebSockets and long-polls. All filters of a request are one group,
//! and its positions name one offset for each home.
//!
//! Invariants: a response begins when every home has answered, with the messages that the logs held; an answer to a long-poll
//! has one message, and the messages of other homes stay unseen for the next poll.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::subscribe::Gap;
use crate::base::ids::ShardId;
use crate::base::position::Since;
use crate::base::settings::Rule;
use crate::budget::admission::Reached;
use crate::conn::io::{Close, Io};
use crate::conn::{ENVELOPE, EOF, EVENTS, GAP, HEAD, State};
use crate::filters::matching::At;
use crate::mail::{Attached, Frames, MatchPage, Record, ReplyTo};
use crate::protocol::delivery::Matched;
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::Front;
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// A response that waits for the homes.
#[derive(Default)]
pub struct Opening {
    /// The answers of the homes so far.
    homes: Vec<Answered>,
    /// The messages received, in order.
    held: Vec<Held>,
    frames: Frames,
    /// Messages before those received are lost.
    gap: bool,
}

#[derive(Clone, Copy, Default)]
struct Answered {
    yes: bool,
    /// Where its first page begins, and up to where the subscriber has its messages.
    start: u64,
    end: u64,
    live: bool,
    from: u64,
    base: u64,
}

struct Held {
    home: ShardId,
    /// Where the topic's name lies in the opening's frames.
    name: u32,
    record: Record,
}

impl Opening {
    /// Its share of the large messages that it holds.
    pub fn large_weight(&self) -> usize {
        self.frames.large_weight()
    }

    /// Bytes that it holds, without large messages.
    pub fn own_bytes(&self) -> usize {
        size_of::<Opening>()
            + self.homes.capacity() * size_of::<Answered>()
            + self.held.capacity() * size_of::<Held>()
            + self.frames.own_bytes()
    }

    fn is_whole(&self) -> bool {
        self.homes.iter().all(|home| home.yes)
    }

    fn hold(&mut self, home: ShardId, name: &[u8], record: &Record, frames: &Frames) {
        let name = self.frames.push_name(name);
        let record = self.frames.copy(record, frames);
        self.held.push(Held { home, name, record });
    }
}

impl Front {
    /// Subscribes a request to filters; the response begins when the homes have answered.
    pub(super) fn join_over_http(
        &mut self,
        slot: u32,
        filters: &[Vec<u8>],
        since: &[Since],
        poll: bool,
    ) -> Result<(), &'static str> {
        let homes = since.len();
        self.extra(slot).opening = Some(Box::new(Opening {
            homes: alloc::vec![Answered::default(); homes],
            ..Opening::default()
        }));
        let filters: Vec<(&[u8], u32)> = filters.iter().map(|filter| (&filter[..], 0)).collect();
        self.join_filters(slot, &filters, since, poll).map(|_| ())
    }

    /// A home's answer to an attach by filter.
    pub(crate) fn match_page<I: Io>(
        &mut self,
        home: ShardId,
        to: ReplyTo,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        if page.attached == Attached::Yes && page.at_head {
            // The page came by the same lane as live messages: a connection that is live there already has all before it.
            self.all_saw(home, page.head);
        }
        if self.is_asked(to) {
            self.took_page_of(to.slot);
        }
        if !self.awaits(to, serial) {
            return;
        }
        let slot = to.slot;
        if self.conns.get(slot).state == State::Mqtt {
            return self.mqtt_match_page(slot, home, serial, page, frames, io);
        }
        if page.attached != Attached::Yes {
            let row = self.conns.get(slot);
            if matches!(row.state, State::Sse | State::WebSocket) {
                let reason = Reached::Topics.reason();
                self.end_stream(slot, super::close_code::TRY_AGAIN, reason, io);
            } else {
                self.not_attached(slot, page.attached, io);
            }
            return;
        }
        if self.extra(slot).opening.is_some() {
            self.opening_page(slot, home, serial, page, frames, io);
        } else {
            self.further_page(slot, home, serial, page, frames, io);
        }
    }

    pub(super) fn records<'a>(
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
        home: ShardId,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let poll = !self.is_stream(slot);
        let row = self.conns.get(slot);
        let opening = self.extras.get_mut(row.extra).opening.as_deref_mut();
        let Some(opening) = opening.filter(|it| it.homes.len() > usize::from(home)) else {
            return self.broken(slot);
        };
        opening.gap |= page.gap;
        let mut records = Self::records(page, frames);
        let start = records
            .clone()
            .next()
            .map_or(page.head, |(_, first)| first.offset - 1);
        let mut end = page.head;
        if poll && page.count > 0 {
            // The answer takes one message; the others count as unseen.
            end = start;
            if opening.held.is_empty()
                && let Some((name, record)) = records.next()
            {
                opening.hold(home, frames.name(name), record, frames);
            }
        } else {
            for (name, record) in records {
                opening.hold(home, frames.name(name), record, frames);
            }
        }
        let searching = poll && page.count == 0 && !page.at_head && opening.held.is_empty();
        opening.homes[home as usize] = Answered {
            yes: !searching,
            start,
            end,
            live: page.at_head && (!poll || page.count == 0),
            from: page.from,
            base: page.base,
        };
        let (whole, live) = (opening.is_whole(), opening.homes[home as usize].live);
        self.took_page(slot, serial, home, page, end, live);
        if searching {
            // Only later: a delivery is under way.
            self.resume_later(self.id_of(slot));
        } else if whole {
            self.open(slot, io);
        }
    }

    /// Sets the homes' positions: to where their first pages begin, or to where the subscriber has them (`at_end`).
    fn set_homes(&mut self, slot: u32, opening: &Opening, at_end: bool) {
        let epoch = self.world.epoch;
        let at = |home: &Answered| At {
            offset: if at_end { home.end } else { home.start },
            from: home.from,
            base: home.base,
            epoch,
            live: at_end && home.live,
            ..At::default()
        };
        let homes: Vec<At> = opening.homes.iter().map(at).collect();
        let Some(filtered) = self.filtered_mut(slot) else {
            return self.broken(slot);
        };
        if let Some(serial) = filtered.groups().first().map(|group| group.serial) {
            filtered.set_homes(serial, homes);
        }
    }

    /// All homes have answered.
    fn open<I: Io>(&mut self, slot: u32, io: &mut I) {
        let Some(mut opening) = self.extra(slot).opening.take() else {
            return self.broken(slot);
        };
        self.set_homes(slot, &opening, false);
        if !self.is_stream(slot) {
            return self.open_poll(slot, opening, io);
        }
        let mut bytes = Rope::default();
        if opening.gap && !self.tell_gap_of_filters(slot, false, &mut bytes.own) {
            self.begin_with(slot, &bytes, io);
            return self.end_for_gap_of_filters(slot, io);
        }
        let told = bytes.len();
        for held in &opening.held {
            self.saw_of_home(slot, held.home, held.record.offset);
            let name = opening.frames.name(held.name);
            self.encode_matched(
                slot,
                held.home,
                name,
                &held.record,
                &opening.frames,
                &mut bytes,
            );
            let end = &mut opening.homes[held.home as usize].end;
            *end = held.record.offset.max(*end);
        }
        self.stats.sent(opening.held.len(), bytes.len() - told);
        self.set_homes(slot, &opening, true);
        // A client that came without a position gets none while a home still reads its log: it would promise more than was asked.
        let begun = opening.homes.iter().all(|home| home.live || home.base == 0);
        if begun && !opening.gap && opening.held.is_empty() && self.conns.get(slot).wants(EVENTS) {
            self.tell_position(slot, 0);
        }
        self.begin_with(slot, &bytes, io);
        if self.conns.get(slot).outbox == NONE {
            self.resume_later(self.id_of(slot));
        }
    }

    fn open_poll<I: Io>(&mut self, slot: u32, opening: Box<Opening>, io: &mut I) {
        if opening.gap {
            self.conns.get_mut(slot).options |= GAP;
        }
        self.set_homes(slot, &opening, true);
        if let Some(held) = opening.held.first() {
            let name = opening.frames.name(held.name).to_vec();
            let (home, record) = (held.home, held.record);
            return self.answer_match(slot, home, &name, &record, &opening.frames, io);
        }
        if self.conns.get(slot).wants(HEAD) {
            return self.answer_nothing(slot, None, io);
        }
        if self.conns.get(slot).is(EOF) {
            return self.drop_conn(slot, Close::Now, io);
        }
        let wait_s = self.filter_rule(slot).poll_timeout_s;
        self.polls_from_now(slot, io);
        let row = self.conns.get_mut(slot);
        row.deadline_s = if wait_s == 0 { 0 } else { self.now.s + wait_s };
    }

    /// A page for a stream that has begun.
    fn further_page<I: Io>(
        &mut self,
        slot: u32,
        home: ShardId,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let records = Self::records(page, frames);
        let first = records.clone().next();
        if page.gap {
            let from = first.map_or(page.head, |(_, record)| record.offset - 1);
            self.saw_of_home(slot, home, from);
            let mut bytes = Vec::new();
            if !self.tell_gap_of_filters(slot, true, &mut bytes) {
                return self.end_for_gap_of_filters(slot, io);
            }
            self.put(slot, &bytes, io);
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for (name, record) in records.clone() {
            self.saw_of_home(slot, home, record.offset);
            self.encode_matched(slot, home, frames.name(name), record, frames, &mut bytes);
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
        self.took_page(slot, serial, home, page, head, live);
        if self.conns.get(slot).outbox == NONE {
            self.resume_later(self.id_of(slot));
        }
    }

    /// Asks for the next page at each home where the group is not live.
    pub(super) fn catch_up_filters(&mut self, slot: u32) {
        let Some(filtered) = self.filtered(slot) else {
            return;
        };
        let group = &filtered.groups()[0];
        let (serial, homes) = (group.serial, group.homes().len());
        let poll = !self.is_stream(slot);
        for home in 0..homes {
            let opening = self.extra(slot).opening.as_deref();
            // Before the response begins, only those homes that have not answered yet.
            if opening.is_none_or(|opening| !opening.homes[home].yes) {
                self.ask_matches(slot, serial, home as ShardId, poll);
            }
        }
    }

    /// Live messages of a run for one connection.
    pub(crate) fn matched_http<I: Io>(
        &mut self,
        slot: u32,
        home: ShardId,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        if self.extra(slot).opening.is_some() {
            return self.hold_matches(slot, home, picks, messages, frames);
        }
        let row = self.conns.get(slot);
        if row.state == State::Poll {
            let first = messages[picks[0] as usize];
            let name = frames.name(first.name).to_vec();
            return self.answer_match(slot, home, &name, &first.record, frames, io);
        }
        let encoding = Encoding::of(row);
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let Some(group) = group else {
            return self.broken(slot);
        };
        if group.homes().is_empty() {
            self.encode_run(encoding, home, messages, frames);
            return self.push_picks(slot, encoding, picks, frames, io);
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for n in picks {
            let message = &messages[*n as usize];
            let name = frames.name(message.name);
            self.encode_matched(slot, home, name, &message.record, frames, &mut bytes);
            ends.push(bytes.len());
        }
        self.put_picks(slot, (&bytes, &ends), picks, frames, io);
    }

    /// Keeps live messages for a response that has not begun, from homes whose log it has read to the end: for a poll one; for a
    /// stream as many as an outbox may hold, and none that a newer one may supersede meanwhile.
    fn hold_matches(
        &mut self,
        slot: u32,
        home: ShardId,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
    ) {
        let poll = !self.is_stream(slot);
        for n in picks {
            let message = &messages[*n as usize];
            let bounds = self.bounds_of(frames.name(message.name));
            let opening = self.extra(slot).opening.as_deref_mut();
            let Some(opening) = opening else {
                return self.broken(slot);
            };
            let Some(answered) = opening.homes.get_mut(home as usize) else {
                return self.broken(slot);
            };
            if !answered.live {
                return;
            }
            let more = frames.frame(&message.record).len();
            let full = message.record.latest
                || opening.frames.len() + more > bounds.bytes
                || opening.held.len() >= bounds.messages;
            if poll && !opening.held.is_empty() || !poll && full {
                // Not seen: it is read from the log later.
                (answered.end, answered.live) = (message.record.offset - 1, false);
                answered.end = answered.end.max(answered.start);
                // The group was live here: from now on a loss must be reported, as for any subscriber that falls behind.
                (answered.from, answered.base) = (0, 0);
                return;
            }
            let name = frames.name(message.name).to_vec();
            opening.hold(home, &name, &message.record, frames);
        }
    }

    fn saw_of_home(&mut self, slot: u32, home: ShardId, offset: u64) {
        let Some(filtered) = self.filtered_mut(slot) else {
            return self.broken(slot);
        };
        let serial = filtered.groups().first().map(|group| group.serial);
        if let Some(at) = serial.and_then(|serial| filtered.at_mut(serial, home)) {
            at.offset = offset;
        }
    }

    /// Encodes one message for one connection, with the connection's own position.
    fn encode_matched(
        &mut self,
        slot: u32,
        home: ShardId,
        topic: &[u8],
        record: &Record,
        frames: &Frames,
        out: &mut Rope,
    ) {
        let mut id = Vec::with_capacity(48);
        self.write_matched_id(slot, Some((home, record.offset)), &mut id);
        Message {
            topic,
            id: &id,
            frames,
            record,
            now_s: self.now.unix_s,
        }
        .encode(Encoding::of(self.conns.get(slot)), &mut self.forms, out);
    }

    fn answer_match<I: Io>(
        &mut self,
        slot: u32,
        home: ShardId,
        topic: &[u8],
        record: &Record,
        frames: &Frames,
        io: &mut I,
    ) {
        let mut id = Vec::with_capacity(48);
        self.write_matched_id(slot, Some((home, record.offset)), &mut id);
        debug_assert!(self.conns.get(slot).options & ENVELOPE == 0 || !topic.is_empty());
        self.answer_poll_with(slot, topic, &id, record, frames, false, io);
    }

    /// The rule that governs a response by filter: that of a topic with the first filter's text.
    pub(super) fn filter_rule(&self, slot: u32) -> &Rule {
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
        self.write_matched_id(slot, None, &mut id);
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
        self.write_matched_id(slot, None, &mut id);
        self.end_for_gap_at(slot, &id, io);
    }
}
