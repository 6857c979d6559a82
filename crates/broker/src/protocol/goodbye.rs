//! How connections that speak HTTP, and the streams that began as requests, end for a reason. `Front::end_for` calls these; each says
//! whether the connection ends by that.

use crate::budget::stats::Reason;
use crate::conn::io::{Close, Io};
use crate::conn::{EVENTS, HTTP10, KEEP, SERVED, State, UPGRADE};
use crate::protocol::encode::chunk;
use crate::protocol::front::Front;
use crate::protocol::why::Why;
use crate::store::slab::NONE;

/// A kept-alive connection that was silent for so many seconds is not about to send a request.
const QUIET_S: u32 = 2;

impl Front {
    /// Ends a connection of which no request is known: a PROXY header is due.
    pub(super) fn proxy_end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        match why {
            Why::TooSlow | Why::NoRoom(_) | Why::Operator | Why::Restart => {
                self.drop_conn(slot, Close::Now, io);
                true
            }
            Why::Expired | Why::Denied(_) | Why::Deleted | Why::Displaced => false,
        }
    }

    /// Ends a connection between two requests, or with a part of one.
    pub(super) fn http_end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        match why {
            Why::TooSlow | Why::NoRoom(_) => self.refuse_for(slot, why, io),
            Why::Operator => self.drop_conn(slot, Close::Now, io),
            Why::Restart => {
                let row = self.conns.get(slot);
                let idle = row.is(SERVED) && row.spill == NONE && row.outbox == NONE;
                if !idle || self.now.s.saturating_sub(row.sent_s) < QUIET_S {
                    return false;
                }
                self.because(Reason::Operator);
                self.shut(slot, io);
            }
            // Nothing was granted to it, and it has subscribed to nothing.
            Why::Expired | Why::Denied(_) | Why::Deleted | Why::Displaced => return false,
        }
        true
    }

    /// Ends a connection whose request waits for another shard.
    pub(super) fn waiting_end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        match why {
            Why::TooSlow => self.refuse_for(slot, why, io),
            Why::NoRoom(_) => self.request_without_room(slot, why, io),
            Why::Denied(_) => {
                self.because(Reason::Refused);
                self.drop_conn(slot, Close::Now, io);
            }
            Why::Operator => self.drop_conn(slot, Close::Now, io),
            Why::Restart => {
                // It ends with its answer, which comes soon.
                self.conns.get_mut(slot).options &= !KEEP;
                return false;
            }
            // Its credential is looked at again after the answer; the answer to its attach tells the rest.
            Why::Expired | Why::Deleted | Why::Displaced => return false,
        }
        true
    }

    /// Ends a long-poll that waits for a message, with an answer. After a topic's end the connection may go on.
    pub(super) fn poll_end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        match why {
            Why::TooSlow => self.refuse_for(slot, why, io),
            Why::NoRoom(_) => self.request_without_room(slot, why, io),
            Why::Expired | Why::Denied(_) | Why::Deleted | Why::Displaced => {
                self.answer_for(slot, why, io);
            }
            Why::Operator => self.drop_conn(slot, Close::Now, io),
            Why::Restart => {
                self.conns.get_mut(slot).options &= !KEEP;
                self.end_poll(slot, io);
            }
        }
        true
    }

    /// Ends an event stream or a WebSocket.
    pub(super) fn stream_end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        let Some((code, words)) = why.close() else {
            return false;
        };
        if matches!(why, Why::Restart) && self.conns.get(slot).state == State::Sse {
            self.tell_when_to_come_back(slot, io);
        }
        self.end_stream(slot, code, words, io);
        true
    }

    /// A connection that was sent its last bytes ends by itself; only where memory is short it ends at once.
    pub(super) fn draining_end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        match why {
            Why::TooSlow | Why::NoRoom(_) => {
                self.drop_conn(slot, Close::Now, io);
                true
            }
            Why::Operator => {
                self.not_ending();
                false
            }
            Why::Expired | Why::Denied(_) | Why::Deleted | Why::Displaced | Why::Restart => false,
        }
    }

    fn refuse_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) {
        if let Some((status, words)) = why.answer() {
            self.refuse(slot, status, words, io);
        }
    }

    fn answer_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) {
        if let Some((status, words)) = why.answer() {
            self.answer_status(slot, status, words, io);
        }
    }

    /// A request that waits ends to make room: a subscription is answered, any other request refused.
    fn request_without_room<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) {
        if !self.is_subscribing(slot) {
            return self.refuse_for(slot, why, io);
        }
        let row = self.conns.get_mut(slot);
        row.options &= !(KEEP | UPGRADE | EVENTS);
        let conn = self.conns.id_of(slot);
        self.answer_for(slot, why, io);
        if self.conns.is_current(conn) {
            self.conns.drop_extra(slot);
        }
    }

    /// Tells the client of an event stream after which time it should connect again.
    fn tell_when_to_come_back<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.because(Reason::Operator);
        let http10 = self.conns.get(slot).wants(HTTP10);
        let text = self.come_back(slot);
        let mut bytes = self.scratch.take_reply();
        bytes.clear();
        match http10 {
            true => bytes.extend_from_slice(&text),
            false => chunk(&mut bytes, &text),
        }
        self.put(slot, &bytes, io);
        self.scratch.reply_sent(bytes);
    }
}
