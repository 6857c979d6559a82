//! How publishes and verbs end: the outcomes that homes give, and what the publisher is told of them.

use alloc::vec::Vec;

use crore_wire::websocket::frame::{self, Opcode};

use crate::base::position::{self, Position};
use crate::base::reason::Reason;
use crate::conn::io::Io;
use crate::conn::{REPLAYED, State};
use crate::mail::{Change, Elsewhere, Info, Outcome, ReplyTo, Verb};
use crate::protocol::front::Front;
use crate::protocol::side::Pending;

impl Front {
    /// Another shard's answer to a publish or a verb.
    pub(crate) fn outcome<I: Io>(&mut self, to: ReplyTo, outcome: Outcome, io: &mut I) {
        if !self.is_asked(to) {
            return self.late_outcome(to, outcome);
        }
        self.publish_ended(to, outcome, io);
    }

    /// The answer to a request that waits for it.
    pub(in crate::protocol) fn request_outcome<I: Io>(
        &mut self,
        to: ReplyTo,
        outcome: Outcome,
        io: &mut I,
    ) {
        let extra = self.conns.extra(to.slot);
        match &mut extra.pending {
            Some(Pending::Batch(batch)) => {
                batch.line_ended(to.part, outcome);
                if outcome == Outcome::Unknown {
                    self.cut_batch(to.slot, io);
                }
            }
            Some(_) => {
                let pending = extra.pending.take().expect("it was just seen");
                if let (Pending::Info(name), Outcome::Done(info)) = (&pending, outcome)
                    && io.count(to, name)
                {
                    extra.pending = Some(Pending::Counted(info));
                    return;
                }
                self.respond_outcome(to.slot, &pending, outcome);
                self.answer_waiting(to.slot, io);
            }
            // The row was used so often meanwhile that its generation is the same again.
            None => {}
        }
    }

    /// The other nodes of the cluster have said how many subscribers the topic of an info has there.
    pub(crate) fn counted<I: Io>(&mut self, to: ReplyTo, elsewhere: Elsewhere, io: &mut I) {
        if !self.is_asked(to) {
            return;
        }
        let pending = &mut self.conns.extra(to.slot).pending;
        if let Some(Pending::Counted(info)) = pending {
            let info = Info {
                subscribers: info.subscribers.saturating_add(elsewhere.subscribers),
                ..*info
            };
            *pending = None;
            self.respond_info(to.slot, 200, &info, Some(elsewhere.unanswered));
            self.answer_waiting(to.slot, io);
        }
    }

    /// One home has dealt with its part of a batch.
    pub(crate) fn fenced<I: Io>(&mut self, to: ReplyTo, io: &mut I) {
        if !self.is_asked(to) {
            return self.late_answer(to, false);
        }
        self.fence_passed(to, io);
    }

    /// Whether the connection still waits for this answer; a closing one does not.
    pub(crate) fn is_asked(&self, to: ReplyTo) -> bool {
        self.conns.try_get(to.slot).is_some_and(|row| {
            row.is_open()
                && row.state != State::Draining
                && row.generation == to.generation
                && row.request == to.request
        })
    }

    pub(super) fn respond_outcome(&mut self, slot: u32, pending: &Pending, outcome: Outcome) {
        if matches!(outcome, Outcome::Replayed(_)) {
            self.conns.get_mut(slot).options |= REPLAYED;
        }
        match (pending, outcome) {
            (Pending::Publish, Outcome::Done(info) | Outcome::Replayed(info)) => {
                self.respond_info(
                    slot,
                    if info.subscribers > 0 { 201 } else { 202 },
                    &info,
                    None,
                );
            }
            (Pending::Verb(Verb::Change(Change::Create)), Outcome::Done(info)) => {
                self.respond_info(slot, 201, &info, None)
            }
            (_, Outcome::Done(info) | Outcome::Existed(info) | Outcome::Replayed(info)) => {
                self.respond_info(slot, 200, &info, None)
            }
            (_, Outcome::Missing) => self.respond_reason(slot, Reason::NoTopic),
            (_, Outcome::Full(reason)) => self.respond_reason(slot, reason),
            (_, Outcome::OtherMessage) => self.respond_reason(slot, Reason::OtherMessage),
            (_, Outcome::Unknown | Outcome::Purged(_)) => {
                self.respond_reason(slot, Reason::OutcomeUnknown);
            }
        }
    }

    /// The answer to a frame that was published, in the meta subprotocol.
    pub(in crate::protocol) fn acknowledge<I: Io>(
        &mut self,
        slot: u32,
        number: u32,
        outcome: Result<Outcome, Reason>,
        io: &mut I,
    ) {
        let mut text = Vec::with_capacity(64);
        text.extend_from_slice(b"ack: ");
        position::write_decimal(&mut text, u64::from(number));
        match outcome {
            Ok(Outcome::Done(info) | Outcome::Existed(info) | Outcome::Replayed(info)) => {
                text.extend_from_slice(if info.subscribers > 0 {
                    b"\nstatus: 201\nid: "
                } else {
                    b"\nstatus: 202\nid: "
                });
                position::write(
                    &mut text,
                    Position {
                        epoch: info.epoch,
                        offset: info.offset,
                    },
                );
            }
            Ok(
                Outcome::Missing | Outcome::OtherMessage | Outcome::Unknown | Outcome::Purged(_),
            ) => text.extend_from_slice(b"\nstatus: 503"),
            Ok(Outcome::Full(reason)) | Err(reason) => {
                text.extend_from_slice(b"\nstatus: ");
                let status = reason.row().status.unwrap_or_default();
                position::write_decimal(&mut text, u64::from(status));
            }
        }
        text.extend_from_slice(b"\n\n");
        let mut bytes = Vec::with_capacity(text.len() + 4);
        frame::write_frame(&mut bytes, Opcode::Text, &text);
        self.put(slot, &bytes, io);
    }
}
