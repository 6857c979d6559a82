//! Long-polls by filter.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::client::delivery::Matched;
use crate::client::row::EOF;
use crate::io::{Close, Io};
use crate::mail::{Frames, Record};
use crate::protocol::front::Front;
use crate::protocol::http::filtered::just_seen;
use crate::protocol::http::opening::Opening;
use crate::protocol::http::options::{ENVELOPE, GAP, HEAD};
use crate::protocol::http::pipelined::polls_from_now;

impl Front {
    /// Messages of a run for a poll that waits: the first one is its answer.
    pub(crate) fn poll_matched<I: Io>(
        &mut self,
        slot: u32,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let seen = &messages[..=picks[0] as usize];
        let first = messages[picks[0] as usize];
        let name = frames.name(first.name);
        self.answer_match(slot, &just_seen(seen), name, &first.record, frames, io);
    }

    pub(crate) fn open_poll<I: Io>(&mut self, slot: u32, opening: Box<Opening>, io: &mut I) {
        if opening.has_gap() {
            self.clients.conns.get_mut(slot).options |= GAP;
        }
        self.clients.set_positions(slot, &opening, true);
        let (held, frames) = opening.held();
        if let Some(held) = held.first() {
            let name = frames.name(held.name);
            let just = [(held.partition, held.record.offset)];
            self.clients
                .saw_of_partition(slot, held.partition, held.record.offset);
            return self.answer_match(slot, &just, name, &held.record, frames, io);
        }
        if self.clients.conns.get(slot).wants(HEAD) {
            return self.answer_nothing(slot, None, io);
        }
        if self.clients.conns.get(slot).is(EOF) {
            return self.drop_conn(slot, Close::Now, io);
        }
        let wait_s = self
            .clients
            .filter_rule(&self.subs.matching, slot)
            .poll_timeout_s;
        polls_from_now(&mut self.clients, &self.queues, slot, io);
        let row = self.clients.conns.get_mut(slot);
        row.deadline_s = if wait_s == 0 {
            0
        } else {
            self.clients.ctx.now.s + wait_s
        };
    }

    fn answer_match<I: Io>(
        &mut self,
        slot: u32,
        just: &[(PartitionId, u64)],
        topic: &[u8],
        record: &Record,
        frames: &Frames,
        io: &mut I,
    ) {
        let mut id = Vec::with_capacity(48);
        self.clients.write_matched_id(
            &self.subs.matching,
            &self.feed.deliveries,
            slot,
            just,
            &mut id,
        );
        debug_assert!(self.clients.conns.get(slot).options & ENVELOPE == 0 || !topic.is_empty());
        self.answer_poll_with(slot, topic, &id, record, frames, false, io);
    }
}
