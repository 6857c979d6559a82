//! A home's answer to an attach: a page for the request or the stream that waits for it, or a refusal.

use crate::base::reason::Reason;
use crate::conn::io::Io;
use crate::conn::{COUNTED, EVENTS, State, UPGRADE};
use crate::mail::{Attached, Frames, Page, ReplyTo};
use crate::protocol::front::Front;

impl Front {
    /// A home's answer to an attach.
    pub(crate) fn page<I: Io>(
        &mut self,
        topic: u32,
        to: ReplyTo,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let counted = page.counted;
        if !page.again {
            self.topics.get_mut(topic).waiting -= 1;
        }
        if self.is_asked(to) {
            self.took_page_of(to.slot);
        }
        let part = self
            .is_asked(to)
            .then(|| self.part_named(to.slot, to.part))
            .flatten()
            .filter(|part| self.topic_of(to.slot, *part) == topic);
        let Some(part) = part else {
            // The connection that asked is gone.
            if counted {
                self.leave(topic);
            }
            if !page.again {
                self.topics.close_if_unused(topic);
            }
            return;
        };
        let slot = to.slot;
        if page.attached != Attached::Yes {
            return self.page_refused(slot, part, page, io);
        }
        if counted {
            *self.flags_of(slot, part) |= COUNTED;
        }
        self.page_came(slot, (topic, part), page, frames, io);
    }

    /// A page for a request or a stream.
    pub(in crate::protocol) fn request_page<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        if self.conns.get(slot).waits_for_history() {
            self.history_page(slot, topic, page, frames, io);
        } else if self.conns.get(slot).options & (UPGRADE | EVENTS) == 0 {
            self.poll_page(slot, topic, part, page, frames, io);
        } else {
            self.stream_page(slot, topic, part, page, frames, io);
        }
    }

    /// An attach was refused: the request is answered with the reason, or the stream ends.
    pub(in crate::protocol) fn not_attached<I: Io>(
        &mut self,
        slot: u32,
        attached: Attached,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        if matches!(row.state, State::Sse | State::WebSocket) {
            self.end_for(slot, Reason::Deleted, io);
            return;
        }
        let stream = row.wants(UPGRADE) || row.wants(EVENTS);
        if row.waits_for_history() {
            self.conns.drop_extra(slot);
        }
        let row = self.conns.get(slot);
        match attached {
            Attached::Gone if row.wants(UPGRADE) => {
                self.begin_stream(slot, io);
                self.end_for(slot, Reason::Deleted, io);
                return;
            }
            Attached::Gone if row.wants(EVENTS) => {
                self.unsubscribe(slot);
                self.conns.drop_extra(slot);
                self.head(slot, 204).end();
                self.answer_waiting(slot, io);
                return;
            }
            Attached::Full(_) if row.wants(EVENTS) => {
                self.unsubscribe(slot);
                self.conns.drop_extra(slot);
                self.shed_events(slot);
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
            self.conns.get_mut(slot).options &= !(UPGRADE | EVENTS);
        }
        self.answer_reason(slot, reason, io);
    }
}
