//! A home's answer to an attach: a page for the request or the stream that waits for it, or a refusal.

use crate::base::reason::Reason;
use crate::client::row::State;
use crate::io::Io;
use crate::mail::Attached;
use crate::protocol::front::Front;
use crate::protocol::http::options::{EVENTS, UPGRADE};

impl Front {
    /// An attach was refused: the request is answered with the reason, or the stream ends.
    pub(crate) fn not_attached<I: Io>(&mut self, slot: u32, attached: Attached, io: &mut I) {
        let row = self.clients.conns.get(slot);
        if matches!(row.state, State::Sse | State::WebSocket) {
            self.end_for(slot, Reason::Deleted, io);
            return;
        }
        let stream = row.wants(UPGRADE) || row.wants(EVENTS);
        if row.waits_for_history() {
            self.clients.conns.drop_extra(slot);
        }
        let row = self.clients.conns.get(slot);
        match attached {
            Attached::Gone if row.wants(UPGRADE) => {
                self.clients.begin_stream(&mut self.queues, slot, io);
                self.end_for(slot, Reason::Deleted, io);
                return;
            }
            Attached::Gone if row.wants(EVENTS) => {
                self.unsubscribe(slot);
                self.clients.conns.drop_extra(slot);
                self.clients.head(slot, 204).end();
                self.answer_waiting(slot, io);
                return;
            }
            Attached::Full(_) if row.wants(EVENTS) => {
                self.unsubscribe(slot);
                self.clients.conns.drop_extra(slot);
                self.clients.shed_events(slot);
                self.answer_waiting(slot, io);
                return;
            }
            _ => {}
        }
        let reason = match attached {
            Attached::Gone => Reason::Deleted,
            Attached::Forbidden => Reason::NotCreated,
            Attached::Conflict => Reason::Occupied,
            Attached::Full(reason) => reason,
            Attached::Yes => unreachable!("this is for the others"),
        };
        if stream {
            self.clients.conns.get_mut(slot).options &= !(UPGRADE | EVENTS);
        }
        self.answer_reason(slot, reason, io);
    }
}
