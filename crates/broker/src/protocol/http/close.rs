//! How connections that speak HTTP, and the streams that began as requests, end for a reason. `Front::end_for` calls these; each says
//! whether the connection ends by that.

use crate::base::reason::{Closed, Reason};
use crate::client::row::{FILTERS, MULTI, SERVED, State};
use crate::io::{Close, Io};
use crate::protocol::front::Front;
use crate::protocol::http::body::write_part;
use crate::protocol::http::options::{EVENTS, FOLLOWS, KEEP, UPGRADE};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// A kept-alive connection that was silent for so many seconds is not about to send a request.
const QUIET_S: u32 = 2;

impl Front {
    /// Ends a connection of which no request is known: a PROXY header is due.
    pub(in crate::protocol) fn proxy_end_for<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool {
        match reason {
            Reason::TooSlow
            | Reason::InputsFull
            | Reason::MemoryFull
            | Reason::Operator
            | Reason::Restart => {
                self.drop_conn(slot, Close::Now, io);
                true
            }
            _ => false,
        }
    }

    /// Ends a connection between two requests, or with a part of one.
    pub(in crate::protocol) fn http_end_for<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool {
        match reason {
            Reason::TooSlow | Reason::InputsFull | Reason::MemoryFull => {
                self.refuse(slot, reason, io);
            }
            Reason::Operator => self.drop_conn(slot, Close::Now, io),
            Reason::Restart => {
                let row = self.conns.get(slot);
                let idle = row.is(SERVED) && row.spill == NONE && row.outbox == NONE;
                if !idle || self.now.s.saturating_sub(row.sent_s) < QUIET_S {
                    return false;
                }
                self.because(Closed::Operator);
                self.shut(slot, io);
            }
            // Nothing was granted to it, and it has subscribed to nothing.
            _ => return false,
        }
        true
    }

    /// Ends a connection whose request waits for another shard.
    pub(in crate::protocol) fn waiting_end_for<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool {
        match reason {
            Reason::TooSlow => self.refuse(slot, reason, io),
            Reason::InputsFull | Reason::MemoryFull => {
                self.request_without_room(slot, reason, io);
            }
            Reason::Operator => self.drop_conn(slot, Close::Now, io),
            Reason::Restart => {
                // It ends with its answer, which comes soon.
                self.conns.get_mut(slot).options &= !KEEP;
                return false;
            }
            // Its credential is looked at again after the answer; the answer to its attach tells the rest.
            Reason::Expired | Reason::Deleted | Reason::Displaced => return false,
            // New settings do not grant it.
            _ => {
                self.because(reason.row().closed);
                self.drop_conn(slot, Close::Now, io);
            }
        }
        true
    }

    /// Ends an event stream or a WebSocket.
    pub(in crate::protocol) fn stream_end_for<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool {
        if reason.row().close.is_none() {
            return false;
        }
        if reason == Reason::Restart && self.conns.get(slot).state == State::Sse {
            self.tell_when_to_come_back(slot, io);
        }
        self.end_stream(slot, reason, io);
        true
    }

    /// A connection that was sent its last bytes ends by itself; only where memory is short it ends at once.
    pub(in crate::protocol) fn draining_end_for<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool {
        match reason {
            Reason::TooSlow | Reason::InputsFull | Reason::MemoryFull => {
                self.drop_conn(slot, Close::Now, io);
                true
            }
            Reason::Operator => {
                self.not_ending();
                false
            }
            _ => false,
        }
    }

    /// A request that waits ends to make room: a subscription is answered, any other request refused.
    pub(in crate::protocol) fn request_without_room<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) {
        if !self.is_subscribing(slot) {
            return self.refuse(slot, reason, io);
        }
        let row = self.conns.get_mut(slot);
        row.options &= !(KEEP | UPGRADE | EVENTS);
        let conn = self.conns.id_of(slot);
        self.answer_reason(slot, reason, io);
        if self.conns.is_current(conn) {
            self.conns.drop_extra(slot);
        }
    }

    /// Tells the client of an event stream after which time it should connect again.
    fn tell_when_to_come_back<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.because(Closed::Operator);
        let text = self.come_back(slot);
        let mut bytes = self.scratch.take_reply();
        bytes.clear();
        write_part(self.conns.get(slot), &text, &mut bytes);
        self.put(slot, &bytes, io);
        self.scratch.reply_sent(bytes);
    }

    /// Whether the waiting request is a subscription.
    pub(in crate::protocol) fn is_subscribing(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        row.topic != NONE || row.options & (MULTI | FILTERS | FOLLOWS) != 0
    }

    /// Whether the verdict on the request's credential is awaited.
    pub(in crate::protocol) fn is_judged(&self, slot: u32) -> bool {
        matches!(self.conns.spill(slot), Some(Spill::Http(it)) if it.asked)
    }
}
