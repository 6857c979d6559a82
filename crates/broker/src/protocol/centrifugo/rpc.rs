//! The command rpc: a call of a method of the operator's backend (`[[backend]]`).
//!
//! A connection may have several calls in flight. Further commands wait for an answer when they are [`CALLS_MAX`]. Answers come in any order.

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{Answer, ErrorReply, Format, Payload};

use crate::base::ids::ConnId;
use crate::client::rights::user_of;
use crate::client::row::State;
use crate::io::Io;
use crate::mail::backend::{
    BackendAnswer, BackendCall, BackendCaller, BackendRefusal, BackendResult,
};
use crate::protocol::centrifugo::close::end_for_order;
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_reply};
use crate::protocol::centrifugo::state::{client_id, state, state_mut};
use crate::protocol::front::{Clients, Front, Queues};
use crate::protocol::http::options::{AS_EVENTS, UPGRADE};

/// The calls of one connection that wait for the backend.
const CALLS_MAX: u32 = 16;

/// Whether the next call of the connection must wait for the answer to another.
pub(super) fn awaits_backend(clients: &Clients, slot: u32) -> bool {
    state(&clients.conns, slot).is_some_and(|it| it.pending_calls >= CALLS_MAX)
}

/// Sends a call to the backend.
pub(super) fn handle_rpc<I: Io>(
    front: &mut Front,
    slot: u32,
    id: u32,
    (method, data): (&str, &[u8]),
    io: &mut I,
) -> Result<(), CommandRefusal> {
    let Front {
        clients,
        gate,
        census,
        ..
    } = front;
    if !clients.has_memory_for(census, slot, BackendCall::bytes(method, data)) {
        return Err(CommandRefusal::error(ErrorCode::TOO_MANY_REQUESTS));
    }
    let (row, conn) = (clients.conns.get(slot), clients.conns.id_of(slot));
    let caller = BackendCaller {
        asker: clients.party(slot),
        payer: clients.payer(slot),
        client: client_id(clients, slot),
        user: user_of(&clients.conns, conn),
        transport: match (row.has_option(UPGRADE), row.has_option(AS_EVENTS)) {
            (true, _) => "websocket",
            (false, true) => "sse",
            (false, false) => "http_stream",
        },
        is_protobuf: format_of(row) == Format::Protobuf,
    };
    let (held, admission) = (gate.question_bytes(), &clients.ctx.world.admission);
    let call = BackendCall::new(id, caller, method, data, held, admission);
    match io.ask_backend(conn, call) {
        Ok(()) => {
            state_mut(&mut clients.conns, slot).pending_calls += 1;
            Ok(())
        }
        Err(BackendRefusal::Absent) => Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE)),
        Err(BackendRefusal::Busy) => Err(CommandRefusal::error(ErrorCode::TOO_MANY_REQUESTS)),
    }
}

/// The backend has answered a call.
pub(crate) fn backend_answered<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    conn: ConnId,
    answer: &BackendAnswer,
    io: &mut I,
) {
    let slot = conn.slot;
    if !clients.conns.is_current(conn)
        || clients.conns.get(slot).consumer.state != State::Centrifugo
    {
        return;
    }
    let pending_calls = &mut state_mut(&mut clients.conns, slot).pending_calls;
    *pending_calls = pending_calls.saturating_sub(1);
    match &answer.result {
        BackendResult::Data(data) => {
            write_reply(
                clients,
                slot,
                answer.command,
                Answer::Rpc(Payload::Value(data)),
            );
        }
        BackendResult::Error {
            code,
            message,
            is_temporary,
        } => {
            let error = ErrorReply {
                code: *code,
                message,
                temporary: *is_temporary,
            };
            write_reply(clients, slot, answer.command, Answer::Error(error));
        }
        BackendResult::Disconnect { code, reason } => {
            return end_for_order(clients, slot, *code, reason, io);
        }
    }
    clients.send_reply(slot, io);
    // Commands may wait for this answer.
    queues.resume_later(clients, conn);
}
