//! Going on from the log after falling behind, and how subscriptions end.

use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::budget::admission::Client;
use crate::conn::{COUNTED, DEFLATE, FILTERS, FOLLOWS, LIVE, MULTI, PUBLISHES, State};
use crate::mail::Attach;
use crate::protocol::front::Front;
use crate::store::slab::NONE;

impl Front {
    /// The outbox is empty: subscriptions that fell behind read on from the log.
    pub(crate) fn catch_up(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if row.extra == NONE {
            return;
        }
        let deflate = row.wants(DEFLATE);
        if row.wants(FOLLOWS) {
            return self.queues.page(self.conns.id_of(slot));
        }
        if row.wants(FILTERS) {
            return self.catch_up_filters(slot);
        }
        let streams = matches!(row.state, State::Sse | State::WebSocket);
        let mut behind = core::mem::take(&mut self.conns.extra(slot).behind);
        if behind.is_empty() {
            return;
        }
        if streams {
            // One page at a time: the next one is asked for when the socket has taken it.
            self.conns.extra(slot).behind = behind.split_off(1);
        }
        for seen in behind {
            let most = self.places(slot, seen.part);
            if most == 0 {
                self.conns.extra(slot).behind.push(seen);
                continue;
            }
            let topic = self.topic_of(slot, seen.part);
            let row = self.topics.get(topic);
            let (hash, serial) = (row.hash, row.serial);
            let since = Since::At(Position {
                epoch: seen.epoch,
                offset: seen.offset,
            });
            let to = self.conns.reply_to(slot, self.part_name(slot, seen.part));
            let attach = Attach {
                hash,
                topic,
                serial,
                to,
                since,
                poll: false,
                most,
                deflate,
                again: true,
                once: false,
                retained: false,
                client: Client::NOBODY,
                party: self.party(slot),
            };
            self.asked_pages(slot, 1);
            self.attach(attach);
            if planted::is(Fault::DoubleResume) {
                self.attach(attach);
            }
        }
        if self.conns.extra(slot).is_idle()
            && self.conns.get(slot).options & (MULTI | PUBLISHES) == 0
        {
            self.conns.drop_extra(slot);
        }
    }

    /// Takes the connection out of all its topics.
    pub(crate) fn unsubscribe(&mut self, slot: u32) {
        self.drop_batch(slot);
        if self.conns.get(slot).own != NONE {
            self.end_session(slot);
        }
        let row = self.conns.get_mut(slot);
        if row.wants(MULTI) {
            row.options &= !MULTI;
            let extra = self.conns.extra(slot);
            extra.shared_bytes = 0;
            for sub in core::mem::take(&mut extra.list) {
                if sub.topic == NONE {
                    continue;
                }
                self.part_one(sub.topic, sub.place, sub.flags & COUNTED != 0);
            }
            return;
        }
        if row.wants(FILTERS) {
            row.options &= !FILTERS;
            return self.leave_filters(slot);
        }
        if row.wants(FOLLOWS) {
            row.options &= !FOLLOWS;
            return self.unfollow(slot);
        }
        if row.topic == NONE {
            return;
        }
        let (topic, place, counted) = (row.topic, row.place, row.is(COUNTED));
        row.topic = NONE;
        row.flags &= !(COUNTED | LIVE);
        self.part_one(topic, place, counted);
    }

    pub(in crate::protocol) fn part_one(&mut self, topic: u32, place: u32, counted: bool) {
        if let Some(moved) = self.topics.part(topic, place) {
            self.conns.has_moved(topic, &moved);
        }
        if counted && !planted::is(Fault::NoDetach) {
            self.leave(topic);
        }
        self.topics.close_if_unused(topic);
    }
}
