//! How connections that speak HTTP, and the streams that began as requests, end for a reason. `Front::end_for` calls these; each says
//! whether the connection ends by that.

use crate::base::reason::{Closed, Reason};
use crate::client::row::{FILTERS, MULTI, SERVED, State};
use crate::io::{Close, Io};
use crate::protocol::front::{Clients, Connections, Front};
use crate::protocol::http::body::write_part;
use crate::protocol::http::options::{EVENTS, FOLLOWS, KEEP, UPGRADE};
use crate::protocol::http::retry;
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// A kept-alive connection that was silent for so many seconds is not about to send a request.
const QUIET_S: u32 = 2;

impl Front {
    /// Ends a connection of which no request is known: a PROXY header is due.
    pub(crate) fn proxy_end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
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
    pub(crate) fn http_end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        match reason {
            Reason::TooSlow | Reason::InputsFull | Reason::MemoryFull => {
                self.refuse(slot, reason, io);
            }
            Reason::Operator => self.drop_conn(slot, Close::Now, io),
            Reason::Restart => {
                let row = self.clients.conns.get(slot);
                let idle = row.is(SERVED) && row.spill == NONE && row.outbox == NONE;
                if !idle || self.clients.ctx.now.s.saturating_sub(row.sent_s) < QUIET_S {
                    return false;
                }
                self.clients.scratch.because(Closed::Operator);
                self.shut(slot, io);
            }
            // Nothing was granted to it, and it has subscribed to nothing.
            _ => return false,
        }
        true
    }

    /// Ends a connection whose request waits for another shard.
    pub(crate) fn waiting_end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        match reason {
            Reason::TooSlow => self.refuse(slot, reason, io),
            Reason::InputsFull | Reason::MemoryFull => {
                self.request_without_room(slot, reason, io);
            }
            Reason::Operator => self.drop_conn(slot, Close::Now, io),
            Reason::Restart => {
                // It ends with its answer, which comes soon.
                self.clients.conns.get_mut(slot).options &= !KEEP;
                return false;
            }
            // Its credential is looked at again after the answer; the answer to its attach tells the rest.
            Reason::Expired | Reason::Deleted | Reason::Displaced => return false,
            // New settings do not grant it.
            _ => {
                self.clients.scratch.because(reason.row().closed);
                self.drop_conn(slot, Close::Now, io);
            }
        }
        true
    }

    /// Ends an event stream or a WebSocket.
    pub(crate) fn stream_end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        if reason.row().close.is_none() {
            return false;
        }
        if reason == Reason::Restart && self.clients.conns.get(slot).state == State::Sse {
            tell_when_to_come_back(&mut self.clients, slot, io);
        }
        self.end_stream(slot, reason, io);
        true
    }

    /// A connection that was sent its last bytes ends by itself; only where memory is short it ends at once.
    pub(crate) fn draining_end_for<I: Io>(
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
                self.clients.scratch.forget_reason();
                false
            }
            _ => false,
        }
    }

    /// A request that waits ends to make room: a subscription is answered, any other request refused.
    pub(crate) fn request_without_room<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) {
        if !is_subscribing(&self.clients.conns, slot) {
            return self.refuse(slot, reason, io);
        }
        let row = self.clients.conns.get_mut(slot);
        row.options &= !(KEEP | UPGRADE | EVENTS);
        let conn = self.clients.conns.id_of(slot);
        self.answer_reason(slot, reason, io);
        if self.clients.conns.is_current(conn) {
            self.clients.conns.drop_extra(slot);
        }
    }
}

/// Tells the client of an event stream after which time it should connect again.
fn tell_when_to_come_back<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    clients.scratch.because(Closed::Operator);
    let text = retry::events(clients.ctx.spread(slot));
    let mut bytes = clients.scratch.take_reply();
    bytes.clear();
    write_part(clients.conns.get(slot), &text, &mut bytes);
    clients.put(slot, &bytes, io);
    clients.scratch.reply_sent(bytes);
}

/// Whether the waiting request is a subscription.
pub(crate) fn is_subscribing(conns: &Connections, slot: u32) -> bool {
    let row = conns.get(slot);
    row.topic != NONE || row.options & (MULTI | FILTERS | FOLLOWS) != 0
}

/// Whether the verdict on the request's credential is awaited.
pub(crate) fn is_judged(conns: &Connections, slot: u32) -> bool {
    matches!(conns.spill(slot), Some(Spill::Http(it)) if it.asked)
}
