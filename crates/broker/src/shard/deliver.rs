//! Deliveries: the tells of homes on their way to this shard's connections.
//!
//! Tells of one topic are taken in order and together, so that a subscriber gets all that came in a
//! turn with one write. A fan-out is a cursor: when the turn's budget is spent it stays where it is,
//! and everything behind it waits its turn.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::pace::WARMED;
use crate::base::work::STEP_BYTES;
use crate::conn::io::Io;
use crate::mail::{Frames, Tell};
use crate::protocol::delivery::{Delivery, Run};
use crate::protocol::run::cost_of_bytes;
use crate::shard::Shard;
use crate::store::slab::NONE;

/// Messages of one topic that are taken together.
const TOGETHER_MAX: usize = 256;
/// Bytes of them, without the last: more in one write brings nothing, and a visit must be short.
const TOGETHER_BYTES: usize = 256 << 10;

/// The cost of a tell to one connection, in visits.
fn cost_of(tell: &Tell) -> u32 {
    match tell {
        Tell::Page { page, .. } => 1 + page.count / TOLD_PER_VISIT,
        Tell::Matches { page, .. } => 1 + page.count / TOLD_PER_VISIT,
        Tell::Interest { news, .. } => 1 + (news.len() / STEP_BYTES) as u32,
        _ => 1,
    }
}

/// Messages of a page that are written in the time of a visit, which is a write.
const TOLD_PER_VISIT: u32 = 8;

/// Stands for the topic of all tells that keep the order in which they were told.
const IN_ORDER: u32 = NONE - 1;

/// Messages and pages for filters keep their order, and so does every tell about one of their topics. A page for a filter may be of
/// any topic, so it keeps its place among all pages for its connection: which of two subscriptions of one client sends a message
/// depends on how far the other one has come.
fn keep_order(tells: &[Tell], keys: &mut [u64]) {
    let mut filtered: Vec<u32> = tells
        .iter()
        .filter_map(|tell| match tell {
            Tell::Matches { to, .. } => Some(to.slot),
            _ => None,
        })
        .collect();
    filtered.sort_unstable();
    let of = |tell: &Tell| match tell {
        Tell::Match { topic, .. } => Some(*topic),
        Tell::Page { topic, to, .. } if filtered.binary_search(&to.slot).is_ok() => Some(*topic),
        _ => None,
    };
    let mut mixed: Vec<u32> = tells
        .iter()
        .filter_map(of)
        .filter(|topic| *topic != NONE)
        .collect();
    mixed.sort_unstable();
    for (n, (key, tell)) in keys.iter_mut().zip(tells).enumerate() {
        let is_mixed = |topic: u32| topic != NONE && mixed.binary_search(&topic).is_ok();
        let in_order = matches!(tell, Tell::Match { .. } | Tell::Matches { .. })
            || tell.topic().is_some_and(is_mixed);
        if in_order {
            *key = u64::from(IN_ORDER) << 32 | n as u64;
        }
    }
}

impl Shard {
    /// Takes tells in as a delivery, which goes through them topic by topic.
    pub(crate) fn enqueue(&mut self, home: ShardId, tells: Vec<Tell>, frames: Arc<Frames>) {
        let mut keys = Vec::with_capacity(tells.len());
        let mut matches = false;
        for (n, tell) in tells.iter().enumerate() {
            // Tells about no topic are sorted to the end.
            keys.push(u64::from(tell.topic().unwrap_or(NONE)) << 32 | n as u64);
            matches |= matches!(tell, Tell::Match { .. } | Tell::Matches { .. });
        }
        if matches {
            keep_order(&tells, &mut keys);
        }
        keys.sort_unstable();
        self.front.deliveries.push_back(Delivery {
            tells,
            frames,
            keys,
            at: 0,
            place: 0,
            walking: false,
            home,
            run: Run::default(),
        });
    }

    /// Works through the deliveries; false when the budget of visits was spent first.
    pub(crate) fn deliver<I: Io>(&mut self, budget: &mut u32, io: &mut I) -> bool {
        while let Some(mut delivery) = self.front.deliveries.pop_front() {
            let before = *budget;
            let done = self.deliver_one(&mut delivery, budget, io);
            self.front.work.steps.add((before - *budget) as usize);
            if !done {
                let made = self.front.forms.take_made_bytes();
                self.front.work.steps.add_bytes(made);
                self.front.deliveries.push_front(delivery);
                return false;
            }
            let Delivery {
                tells,
                frames,
                home,
                ..
            } = delivery;
            drop(frames);
            if home == self.front.lanes.me {
                self.front.lanes.recycle(tells);
            }
        }
        true
    }

    fn deliver_one<I: Io>(&mut self, d: &mut Delivery, budget: &mut u32, io: &mut I) -> bool {
        let frames = d.frames.clone();
        let before = self.front.stats.delivered;
        let done = loop {
            // Megabytes that one message was turned into took as long as many visits.
            let made = self.front.forms.take_made_bytes() / STEP_BYTES;
            *budget = budget.saturating_sub(u32::try_from(made).unwrap_or(u32::MAX));
            if d.at == d.keys.len() {
                break true;
            }
            if *budget == 0 {
                break false;
            }
            if d.at.is_multiple_of(WARMED) {
                self.warm(&d.keys[d.at..d.keys.len().min(d.at + WARMED)]);
            }
            let tell = &d.tells[d.keys[d.at] as u32 as usize];
            if let Tell::Live { topic, serial, .. } = *tell {
                let end = self.gather(d, topic);
                // Between the parts of a walk its topic cannot be freed: the tombstones hold it.
                if self.front.topics.is_current(topic, serial)
                    && !self.fan_out(d, topic, serial, &frames, budget, io)
                {
                    break false;
                }
                d.at = end;
                continue;
            }
            if matches!(tell, Tell::Match { .. }) {
                if !self.match_run(d, &frames, budget, io) {
                    break false;
                }
                continue;
            }
            if let Tell::Gone { topic, serial } | Tell::Displaced { topic, serial } = *tell {
                let gone = matches!(tell, Tell::Gone { .. });
                if self.front.topics.is_current(topic, serial)
                    && !self.end_members(d, topic, serial, gone, budget, io)
                {
                    break false;
                }
                d.at += 1;
                continue;
            }
            *budget = budget.saturating_sub(cost_of(tell));
            self.tell(d.home, tell, &frames, io);
            d.at += 1;
        };
        let deliveries = self.front.stats.delivered.wrapping_sub(before);
        if frames.stamp != 0 && deliveries > 0 {
            io.written(frames.stamp, deliveries);
        }
        done
    }

    /// Touches the rows that the next deliveries need. They are cold, and each leads to the next; side by
    /// side the processor waits for several at once.
    fn warm(&self, keys: &[u64]) {
        let mut members = [NONE; WARMED];
        for (member, key) in members.iter_mut().zip(keys) {
            let topic = (key >> 32) as u32;
            if topic < IN_ORDER {
                *member = self.front.topics.only_member(topic).unwrap_or(NONE);
            }
        }
        let touch = |sum, slot: &u32| {
            self.front
                .conns
                .try_get(*slot)
                .map_or(sum, |row| sum ^ row.link.0 ^ u32::from(row.flags))
        };
        core::hint::black_box(members.iter().fold(0, touch));
    }

    fn tell<I: Io>(&mut self, home: ShardId, tell: &Tell, frames: &Frames, io: &mut I) {
        match *tell {
            Tell::Live { .. } | Tell::Match { .. } | Tell::Gone { .. } | Tell::Displaced { .. } => {
                unreachable!("what concerns all members walks over them")
            }
            Tell::Matches {
                to,
                serial,
                ref page,
            } => self.front.match_page(to, serial, page, frames, io),
            Tell::Page {
                topic,
                to,
                ref page,
                ..
            } => self.front.page(topic, to, page, frames, io),
            Tell::Outcome(to, outcome) => self.front.outcome(to, outcome, io),
            Tell::Fenced(to) => self.front.fenced(to, io),
            Tell::GroupJoined { to, group, counts } => {
                self.front.group_joined(home, to, group, counts, io);
            }
            Tell::Shared {
                to,
                group,
                name,
                ref record,
            } => self
                .front
                .shared_message(home, to, group, name, record, frames, io),
            Tell::Session(to, ref given) => self.front.session_given(to, given, io),
            Tell::SessionTaken(holder) => self.front.session_taken(holder, io),
            Tell::Interest { to, ref news, part } => self.front.interest(to, news, part, io),
        }
    }

    /// Takes the run of live messages at the cursor; returns where it ends.
    fn gather(&mut self, d: &Delivery, of: u32) -> usize {
        let mut bytes = 0;
        let run = d.keys[d.at..].iter().take(TOGETHER_MAX).map_while(|key| {
            match &d.tells[*key as u32 as usize] {
                Tell::Live { topic, record, .. } if *topic == of && bytes < TOGETHER_BYTES => {
                    bytes += record.frame_bytes();
                    Some(*record)
                }
                _ => None,
            }
        });
        self.front.run.begin(run);
        d.at + self.front.run.records().len()
    }

    pub(crate) fn fan_out<I: Io>(
        &mut self,
        d: &mut Delivery,
        topic: u32,
        serial: u16,
        frames: &Frames,
        budget: &mut u32,
        io: &mut I,
    ) -> bool {
        let (mut done, cost) = (true, cost_of_bytes(self.front.run.bytes));
        if self.front.topics.places(topic) == 1 && !d.walking {
            *budget = budget.saturating_sub(cost);
            if let Some(conn) = self.front.topics.member(topic, 0) {
                self.front.live(conn, topic, frames, io);
            }
        } else {
            if !d.walking {
                self.front.topics.begin_walk(topic);
                (d.walking, d.place) = (true, 0);
            }
            while d.place < self.front.topics.places(topic) {
                if *budget == 0 {
                    done = false;
                    break;
                }
                *budget = budget.saturating_sub(cost);
                let place = d.place;
                d.place += 1;
                if let Some(conn) = self.front.topics.member(topic, place) {
                    self.front.live(conn, topic, frames, io);
                }
            }
            if done {
                d.walking = false;
                self.end_walk(topic);
            }
        }
        if done && self.front.topics.is_current(topic, serial) {
            self.front.topics.close_if_unused(topic);
        }
        done
    }

    /// Gives every member that moved its new place.
    pub(crate) fn end_walk(&mut self, topic: u32) {
        let (topics, conns) = (&mut self.front.topics, &mut self.front.conns);
        topics.end_walk(topic, |moved| {
            assert!(
                conns.has_moved(topic, &moved),
                "a member has the topic in its list"
            );
        });
    }
}
