//! Live messages for subscribers by filter: matched here again, and each connection gets all of a run with one write,
//! once, however many of its filters match.
//!
//! A run is some messages that a home told one behind the other. First the exact subscribers of each message's topic
//! get it, as they would without filters; then the connections with filters. A connection that has both (MQTT) is
//! left to the second part, see [`Shard::has_match`].
//!
//! The connections of a run are collected before the first is visited: a turn's visits and a little more. A message that
//! matches more than those is a run of its own and is *broad*: its filters' members are gone through as they stand, within
//! the budget, while some leave and others join; a bit for each row of the table says who was visited.
//!
//! Invariants: messages are not reordered; a connection is visited once in a run; the position that a message carries
//! is the home's offset of it, beside what was seen of the other homes. Who joins in the middle of a run is not live at its
//! home before it ends, and gets nothing of it.

use alloc::vec::Vec;

use crate::conn::State;
use crate::deliver::{Delivery, WARMED};
use crate::encode::{Encoding, Message};
use crate::io::Io;
use crate::mail::{Frames, Record, ShardId, Tell};
use crate::matching::{Filtered, Member, Part};
use crate::position::{self, Position};
use crate::run::cost_of_bytes;
use crate::shard::Shard;
use crate::slab::NONE;

/// Messages of a run.
const RUN_MAX: usize = 64;

/// A message for a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    slot: u32,
    /// The number of the message in the run.
    pub message: u32,
    /// Which of the connection's filters.
    pub part: u32,
}

impl Due {
    fn of(member: &Member, message: u32) -> Due {
        Due {
            slot: member.slot,
            message,
            part: member.part,
        }
    }
}

/// How far the run at the cursor is.
#[derive(Default)]
pub(crate) struct Run {
    /// Messages; 0 when there is no run.
    len: usize,
    /// Those whose exact subscribers are done.
    exact: usize,
    due: Vec<Due>,
    /// The next of them.
    at: usize,
    /// Of a broad run, which has one message.
    broad: Option<Broad>,
}

/// How far a message is that very many connections get.
struct Broad {
    /// The rows of the filters that match it, sorted.
    rows: Vec<u32>,
    /// The connections that were visited, a bit each.
    visited: Vec<u64>,
}

impl Broad {
    fn is_visited(&self, slot: u32) -> bool {
        let word = self.visited.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// A connection is visited; says whether that is the first time.
    fn visit(&mut self, slot: u32) -> bool {
        let first = !self.is_visited(slot);
        let word = slot as usize / 64;
        if word >= self.visited.len() {
            self.visited.resize(word + 1, 0);
        }
        self.visited[word] |= 1 << (slot % 64);
        first
    }
}

impl Run {
    /// The last message that this connection was visited for; nothing while its turn is still to come.
    fn visited(&self, slot: u32) -> Option<usize> {
        if let Some(broad) = &self.broad {
            return broad.is_visited(slot).then_some(0);
        }
        let last = self.due[..self.at].last()?;
        (self.len > 0 && last.slot >= slot).then(|| self.len - 1)
    }

    /// Ends it; returns how long it was.
    pub fn end(&mut self) -> usize {
        self.broad = None;
        core::mem::take(&mut self.len)
    }
}

/// A message of a run.
#[derive(Clone, Copy)]
pub(crate) struct Matched {
    /// Where its topic's name lies.
    pub name: u32,
    /// The carrier's topic row, or `NONE`.
    pub topic: u32,
    /// The message.
    pub record: Record,
}

impl Shard {
    /// Goes on with the run at the cursor; false when the budget was spent first.
    pub(crate) fn match_run<I: Io>(
        &mut self,
        d: &mut Delivery,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        if d.run.len == 0 {
            self.begin_run(d, frames);
        }
        while d.run.exact < d.run.len {
            if *budget == 0 {
                return false;
            }
            let Tell::Match {
                topic,
                serial,
                record,
                ..
            } = *d.tell(d.run.exact)
            else {
                // A run is of matches.
                d.run.exact += 1;
                continue;
            };
            if topic != NONE && self.topics.is_current(topic, serial) {
                self.run.begin(core::iter::once(record));
                if !self.fan_out(d, topic, serial, frames, budget, io) {
                    return false;
                }
            }
            d.run.exact += 1;
        }
        let messages: Vec<Matched> = (0..d.run.len).map(|n| d.matched(n)).collect();
        let home = d.home;
        self.run
            .begin(messages.iter().map(|message| message.record));
        self.run.home = home;
        self.run
            .names
            .extend(messages.iter().map(|message| message.name));
        if let Some(mut broad) = d.run.broad.take() {
            let done = self.go_through(home, &mut broad, &messages, frames, budget, io);
            d.run.broad = Some(broad);
            if !done {
                return false;
            }
        }
        let message_bytes = self.run.bytes / messages.len().max(1);
        let mut warmed = d.run.at;
        while let Some(first) = d.run.due.get(d.run.at) {
            if *budget == 0 {
                return false;
            }
            if d.run.at >= warmed {
                let ahead = &d.run.due[d.run.at..];
                let ahead = &ahead[..ahead.len().min(WARMED)];
                self.warm_due(ahead);
                warmed = d.run.at + ahead.len();
            }
            let rest = &d.run.due[d.run.at..];
            let same = rest.iter().take_while(|due| due.slot == first.slot);
            let (slot, len) = (first.slot, same.count());
            *budget = budget.saturating_sub(cost_of_bytes(len * message_bytes));
            d.run.at += len;
            let all = &d.run.due[d.run.at - len..d.run.at];
            self.matched(slot, home, all, &messages, frames, io);
        }
        if let Some(last) = messages.last() {
            self.all_saw(home, last.record.offset);
        }
        d.end_run();
        true
    }

    /// Visits who gets a broad message; false when the budget was spent first.
    fn go_through<I: Io>(
        &mut self,
        home: ShardId,
        broad: &mut Broad,
        messages: &[Matched],
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let (mut next, mut due, mut all) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            if *budget == 0 {
                return false;
            }
            self.matching.walk(WARMED.min(*budget as usize), &mut next);
            if next.is_empty() {
                return true;
            }
            // Who was visited already costs a visit too: it had to be looked at.
            *budget = budget.saturating_sub(next.len() as u32 * cost_of_bytes(self.run.bytes));
            due.clear();
            due.extend(next.iter().map(|member| Due::of(member, 0)));
            self.warm_due(&due);
            for Due { slot, .. } in &due {
                if !broad.visit(*slot) {
                    continue;
                }
                all.clear();
                let parts = self.filtered(*slot).into_iter().flat_map(Filtered::parts);
                let matching =
                    parts.filter(|(_, part)| broad.rows.binary_search(&part.row).is_ok());
                all.extend(matching.map(|(part, _)| Due {
                    slot: *slot,
                    message: 0,
                    part,
                }));
                if !all.is_empty() {
                    self.matched(*slot, home, &all, messages, frames, io);
                }
            }
        }
    }

    fn begin_run(&mut self, d: &mut Delivery, frames: &Frames) {
        let mut run = core::mem::take(&mut d.run);
        run.due.clear();
        (run.exact, run.at) = (0, 0);
        let enough = self.pace.visits_per_turn as usize;
        while run.len < RUN_MAX && run.broad.is_none() && run.due.len() < enough {
            let most = WARMED.min(RUN_MAX - run.len);
            if self.extend_run(&mut run, most, d, frames) == 0 {
                break;
            }
        }
        run.due.sort_unstable();
        d.run = run;
    }

    /// Begins a run of one message, which goes to very many.
    fn begin_broad(&mut self, name: &[u8]) -> Broad {
        let mut sets = Vec::new();
        self.matching.sets(name, |set| sets.push(set));
        self.matching.begin_walk(sets.into_iter());
        let mut rows = self.matching.rows(name);
        rows.sort_unstable();
        Broad {
            rows,
            visited: alloc::vec![0; self.conns.end().div_ceil(64) as usize],
        }
    }

    /// Adds so many messages to a run at most, and their members; returns how many there were. Filters come before
    /// members, so that the processor waits for several rows at once.
    fn extend_run(&mut self, run: &mut Run, most: usize, d: &Delivery, frames: &Frames) -> usize {
        let first = run.len;
        let of = |n| match d.try_tell(first + n) {
            Some(Tell::Match { name, .. }) => Some(frames.name(*name)),
            _ => None,
        };
        if d.home != self.lanes.me {
            // A home on this shard has just looked.
            self.matching.warm((0..most).map_while(of));
        }
        let mut sets = Vec::with_capacity(most);
        for (message, name) in (first as u32..).zip((0..most).map_while(of)) {
            self.matching.sets(name, |set| sets.push((message, set)));
            run.len += 1;
        }
        let enough = self.pace.visits_per_turn as usize;
        for all in sets.chunk_by(|a, b| a.0 == b.0) {
            let message = all[0].0;
            let members = all.iter().map(|(_, set)| self.matching.members(*set));
            let broad = members.clone().map(<[Member]>::len).sum::<usize>() > enough;
            if broad
                && message == 0
                && let Some(name) = of(0)
            {
                (run.len, run.broad) = (1, Some(self.begin_broad(name)));
                break;
            }
            if broad || run.due.len() >= enough {
                run.len = message as usize;
                break;
            }
            let due = members.flatten().map(|member| Due::of(member, message));
            run.due.extend(due);
        }
        run.len - first
    }

    /// Touches the rows of the connections that come next, and what each has of the filter that matched.
    fn warm_due(&self, due: &[Due]) {
        let mut sides = [(NONE, NONE); WARMED];
        for (side, due) in sides.iter_mut().zip(due) {
            if let Some(row) = self.conns.try_get(due.slot) {
                *side = (row.extra, row.mqtt);
            }
        }
        let mut subs = [(NONE, NONE); WARMED];
        for ((sub, (extra, _)), due) in subs.iter_mut().zip(sides).zip(due) {
            let part = self.filtered(due.slot).and_then(|all| all.part(due.part));
            if let Some(part) = part {
                *sub = (extra, part.id);
            }
        }
        let mut read = 0;
        for ((extra, part), (_, mqtt)) in subs.into_iter().zip(sides) {
            if extra != NONE {
                let list = &self.extras.get(extra).list;
                read ^= list.get(part as usize).map_or(0, |sub| sub.identifier);
            }
            if mqtt != NONE {
                read ^= self.mqtts.get(mqtt).packet_bytes_max;
            }
        }
        core::hint::black_box(read);
    }

    /// Messages of a run for one connection, in order: those that are of a group which is live at this home.
    fn matched<I: Io>(
        &mut self,
        slot: u32,
        home: ShardId,
        all: &[Due],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let Some(filtered) = self.filtered(slot) else {
            return;
        };
        let live = |due: &&Due| filtered.is_live(due.part, home);
        match self.conns.get(slot).state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                let mut picks: Vec<u32> = all.iter().filter(live).map(|due| due.message).collect();
                picks.dedup();
                if !picks.is_empty() {
                    self.matched_http(slot, home, &picks, messages, frames, io);
                }
            }
            State::Mqtt => self.mqtt_matched(slot, home, all, messages, frames, io),
            _ => {}
        }
    }

    /// Whether a filter of the connection that is live at the topic's home matches the topic: then the message comes
    /// to it by that filter, and not a second time as a subscriber of the topic.
    pub(crate) fn has_match(&self, slot: u32, topic: &[u8]) -> bool {
        let (_, home) = self.place_of(topic);
        let Some(filtered) = self.filtered(slot) else {
            return false;
        };
        let rows = self.matching.rows(topic);
        let matches =
            |(at, part): (u32, &Part)| rows.contains(&part.row) && filtered.is_live(at, home);
        !rows.is_empty() && filtered.parts().any(matches)
    }

    /// All messages of the run in one encoding, with the position of who is live everywhere.
    pub(crate) fn encode_run(
        &mut self,
        encoding: Encoding,
        home: ShardId,
        messages: &[Matched],
        frames: &Frames,
    ) {
        if encoding == Encoding::Frame || !self.run.encoded(encoding).is_empty() {
            return;
        }
        for message in messages {
            let mut id = Vec::with_capacity(48);
            self.write_live_id(home, message.record.offset, &mut id);
            let message = Message {
                topic: frames.name(message.name),
                id: &id,
                frames,
                record: &message.record,
                now_s: self.now.unix_s,
            };
            self.run
                .encoded(encoding)
                .push(&message, encoding, &mut self.forms);
        }
    }

    /// Up to where a connection has seen a home at which it is live. Between two turns a run may have come to some and not
    /// to others.
    pub(crate) fn seen_by(&self, slot: u32, home: ShardId) -> u64 {
        let seen = self.matching.seen[home as usize];
        let front = self.deliveries.front().filter(|d| d.home == home);
        let visited = front.and_then(|d| Some(d.matched(d.run.visited(slot)?).record.offset));
        visited.map_or(seen, |offset| offset.max(seen))
    }

    /// The position of who is live at all homes and has just seen `offset` of one.
    fn write_live_id(&self, home: ShardId, offset: u64, out: &mut Vec<u8>) {
        let epoch = self.world.epoch;
        let seen = self.matching.seen.iter().enumerate().map(|(n, seen)| {
            let offset = if n == home as usize { offset } else { *seen };
            Position { epoch, offset }
        });
        position::write_set(out, self.set_of_homes(), seen);
    }

    /// The position of a connection's only group; of this home it has just seen `offset`.
    pub(crate) fn write_matched_id(
        &self,
        slot: u32,
        just: Option<(ShardId, u64)>,
        out: &mut Vec<u8>,
    ) {
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let homes = group.map_or(&[][..], |group| group.homes());
        let epoch = self.world.epoch;
        let at = |n: ShardId| match (just, homes.get(usize::from(n))) {
            (Some((home, offset)), at) if home == n => Position {
                epoch: at.map_or(epoch, |at| at.epoch),
                offset,
            },
            (_, Some(at)) => Position {
                epoch: at.epoch,
                offset: if at.live {
                    at.offset.max(self.seen_by(slot, n))
                } else {
                    at.offset
                },
            },
            (_, None) => Position {
                epoch,
                offset: self.seen_by(slot, n),
            },
        };
        position::write_set(out, self.set_of_homes(), (0..self.world.homes).map(at));
    }

    /// Names the positions of filters: they hold for any filters, but for this number of homes.
    pub(crate) fn set_of_homes(&self) -> u32 {
        u32::from_be_bytes(*b"fil\0") | u32::from(self.world.homes)
    }
}
