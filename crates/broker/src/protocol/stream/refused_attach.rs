//! Handles a refused attach (a subscribe request to a home, the part of a shard that keeps the topic).

use crate::base::reason::Reason;
use crate::client::row::State;
use crate::client::subscriptions::unsubscribe_from_all;
use crate::io::Io;
use crate::mail::AttachOutcome;
use crate::protocol::front::Front;
use crate::protocol::http::answer::{answer_waiting, refuse_waiting_request};
use crate::protocol::http::options::{AS_EVENTS, UPGRADE};
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::stream::stream_pages::begin_stream;

/// Answers the request with the reason, or ends the stream.
pub(crate) fn handle_refused_attach<I: Io>(
    front: &mut Front,
    slot: u32,
    attached: AttachOutcome,
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    let row = clients.conns.get(slot);
    if matches!(row.consumer.state, State::Sse | State::WebSocket) {
        end_stream(clients, slot, Reason::Deleted, io);
        return;
    }
    let is_stream = row.has_option(UPGRADE) || row.has_option(AS_EVENTS);
    match attached {
        AttachOutcome::Gone if row.has_option(UPGRADE) => {
            begin_stream(clients, queues, slot, io);
            end_stream(clients, slot, Reason::Deleted, io);
            return;
        }
        AttachOutcome::Gone if row.has_option(AS_EVENTS) => {
            unsubscribe_from_all(clients, subs, slot);
            clients.response_head(slot, 204).end();
            answer_waiting(clients, queues, slot, io);
            return;
        }
        AttachOutcome::NoRoom(reason) if row.has_option(AS_EVENTS) => {
            unsubscribe_from_all(clients, subs, slot);
            clients.shed_events(slot, reason);
            answer_waiting(clients, queues, slot, io);
            return;
        }
        _ => {}
    }
    if is_stream {
        clients.conns.get_mut(slot).consumer.options &= !(UPGRADE | AS_EVENTS);
    }
    refuse_waiting_request(front, slot, attached.refusal(), io);
}
