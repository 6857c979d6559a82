//! Handles the outcomes of publishes and topic requests, which homes (the parts of shards that keep topics) send, and answers the
//! client.

use crate::base::reason::Reason;
use crate::io::Io;
use crate::mail::{Change, Outcome, RemoteSubscribers, ReplyTo, TopicInfo, TopicRequest};
use crate::protocol::front::{Clients, Front, Queues};
use crate::protocol::http::answer::answer_waiting;
use crate::protocol::http::options::REPLAYED;
use crate::protocol::http::publish::batch::abandon_batch;
use crate::protocol::http::state::PendingAnswer;

/// Handles the outcome for a request that waits for it.
pub(crate) fn request_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
    let (clients, subs, _, queues) = front.parts();
    let side_row = clients.conns.ensure_side_row(to.slot);
    match &mut side_row.protocol_state.pending_answer {
        Some(PendingAnswer::Batch(batch)) => {
            let settings = &clients.ctx.world.settings;
            batch.note_outcome_of_line(to.part, outcome, &mut clients.meter, settings);
            if outcome == Outcome::Unknown {
                abandon_batch(clients, &mut subs.lanes, queues, to.slot, io);
            }
        }
        Some(_) => {
            let pending = side_row
                .protocol_state
                .pending_answer
                .take()
                .expect("it was just seen");
            if let (PendingAnswer::Info(name), Outcome::Done(info)) = (&pending, outcome)
                && io.request_subscriber_count(to, name)
            {
                side_row.protocol_state.pending_answer = Some(PendingAnswer::Counted(info));
                return;
            }
            respond_outcome(clients, to.slot, &pending, outcome);
            answer_waiting(clients, queues, to.slot, io);
        }
        // The row was used so often that it has the same generation again.
        None => {}
    }
}

/// Handles the number of subscribers that the other nodes of the cluster have for the topic of an info request.
pub(crate) fn info_counted<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    elsewhere: RemoteSubscribers,
    io: &mut I,
) {
    if !clients.conns.is_waiting_for(to) {
        return;
    }
    let pending = &mut clients
        .conns
        .ensure_side_row(to.slot)
        .protocol_state
        .pending_answer;
    if let Some(PendingAnswer::Counted(info)) = pending {
        let info = TopicInfo {
            subscribers: info.subscribers.saturating_add(elsewhere.subscribers),
            ..*info
        };
        *pending = None;
        clients.respond_info(to.slot, 200, &info, Some(elsewhere.unanswered));
        answer_waiting(clients, queues, to.slot, io);
    }
}

pub(super) fn respond_outcome(
    clients: &mut Clients,
    slot: u32,
    pending: &PendingAnswer,
    outcome: Outcome,
) {
    if matches!(outcome, Outcome::Replayed(_)) {
        clients.conns.get_mut(slot).consumer.options |= REPLAYED;
    }
    match (pending, outcome) {
        (PendingAnswer::Publish, Outcome::Done(info) | Outcome::Replayed(info)) => {
            clients.respond_info(
                slot,
                if info.subscribers > 0 { 201 } else { 202 },
                &info,
                None,
            );
        }
        (PendingAnswer::Verb(TopicRequest::Change(Change::Create)), Outcome::Done(info)) => {
            clients.respond_info(slot, 201, &info, None)
        }
        (_, Outcome::Done(info) | Outcome::Existed(info) | Outcome::Replayed(info)) => {
            clients.respond_info(slot, 200, &info, None)
        }
        (_, Outcome::Missing) => clients.respond_reason(slot, Reason::NoTopic),
        (_, outcome) => {
            let reason = outcome.refusal().unwrap_or(Reason::OutcomeUnknown);
            clients.respond_reason(slot, reason);
        }
    }
}
