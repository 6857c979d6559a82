//! The command rpc: a call of a method of the operator's backend (`[[backend]]`).
//!
//! A connection may have several calls in flight (`centrifugo.calls_in_flight_max`). At the limit, the next call and the commands behind it wait for an answer.
//! Answers come in any order.

use crore_wire::centrifugo::{Answer, Payload};

use crate::base::ids::ConnId;
use crate::io::Io;
use crate::mail::backend::{BackendAnswer, BackendResult, CallSubject};
use crate::protocol::centrifugo::calls::ask;
use crate::protocol::centrifugo::close::end_for_order;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_backend_error, write_reply};
use crate::protocol::centrifugo::state::{state, state_mut};
use crate::protocol::front::{Clients, Front, Queues};

/// Whether the next call of the connection must wait for the answer to another.
pub(super) fn awaits_answer(clients: &Clients, slot: u32) -> bool {
    let calls_max = clients.ctx.world.settings.centrifugo.calls_in_flight_max;
    state(&clients.conns, slot).is_some_and(|it| it.pending_calls >= calls_max)
}

/// Sends a call to the backend.
pub(super) fn handle_rpc<I: Io>(
    front: &mut Front,
    slot: u32,
    id: u32,
    (method, data): (&str, &[u8]),
    io: &mut I,
) -> Result<(), CommandRefusal> {
    ask(front, slot, id, &CallSubject::Rpc { method, data }, io)?;
    state_mut(&mut front.clients.conns, slot).pending_calls += 1;
    Ok(())
}

/// The backend has answered a call.
pub(super) fn answer_rpc<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    conn: ConnId,
    answer: &BackendAnswer,
    io: &mut I,
) {
    let slot = conn.slot;
    let pending_calls = &mut state_mut(&mut clients.conns, slot).pending_calls;
    *pending_calls = pending_calls.saturating_sub(1);
    let id = answer.number;
    match &answer.result {
        BackendResult::Data(data) => {
            write_reply(clients, slot, id, Answer::Rpc(Payload::Value(data)))
        }
        BackendResult::Error(error) => write_backend_error(clients, slot, id, error),
        BackendResult::Disconnect { code, reason } => {
            return end_for_order(clients, slot, *code, reason, io);
        }
        _ => debug_assert!(false, "a grant is of the kind of its call"),
    }
    clients.send_reply(slot, io);
    // Commands may wait for this answer.
    queues.resume_later(clients, conn);
}
