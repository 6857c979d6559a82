//! Sends calls to the operator's backend. `backend`, `renewal` and `rpc` say what is asked, and handle the answers.

use crore_wire::centrifugo::Format;
use crore_wire::centrifugo::codes::ErrorCode;

use crate::client::rights::user_of;
use crate::io::Io;
use crate::mail::backend::{BackendCall, BackendCaller, BackendRefusal, BorrowedSubject};
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::reply::CommandRefusal;
use crate::protocol::centrifugo::state::{client_id, state};
use crate::protocol::front::{Clients, Front};
use crate::protocol::http::options::{AS_EVENTS, UPGRADE};

/// The number of the next question to the backend. No other open question of the shard has it.
pub(super) fn next_call_number(clients: &mut Clients) -> u32 {
    let last = &mut clients.protocol_state.last_backend_call;
    *last = last.wrapping_add(1);
    *last
}

/// Sends a call to the backend.
pub(super) fn ask<I: Io>(
    front: &mut Front,
    slot: u32,
    number: u32,
    subject: &BorrowedSubject<'_>,
    io: &mut I,
) -> Result<(), CommandRefusal> {
    let Front {
        clients,
        gate,
        census,
        ..
    } = front;
    let names = channel_names(&clients.ctx.world);
    let channel = subject.channel().map(|channel| names.exchange(channel));
    let subject = &match &channel {
        Some(channel) => subject.with_channel(channel),
        None => *subject,
    };
    if !clients.has_memory_for(census, slot, subject.call_bytes()) {
        return Err(CommandRefusal::error(ErrorCode::TOO_MANY_REQUESTS));
    }
    let (row, conn) = (clients.conns.get(slot), clients.conns.id_of(slot));
    let caller = BackendCaller {
        asker: clients.party(slot),
        payer: clients.payer(slot),
        client: client_id(clients, slot),
        user: user_of(&clients.conns, conn),
        meta: state(&clients.conns, slot)
            .and_then(|it| it.backend.as_ref())
            .map_or(&[], |it| &it.meta),
        transport: match (row.has_option(UPGRADE), row.has_option(AS_EVENTS)) {
            (true, _) => "websocket",
            (false, true) => "sse",
            (false, false) => "http_stream",
        },
        is_protobuf: format_of(row) == Format::Protobuf,
    };
    let (held, admission) = (gate.question_bytes(), &clients.ctx.world.admission);
    let call = BackendCall::new(number, caller, subject, held, admission);
    io.ask_backend(conn, call).map_err(|refusal| {
        CommandRefusal::error(match refusal {
            BackendRefusal::Absent => ErrorCode::NOT_AVAILABLE,
            BackendRefusal::Busy => ErrorCode::TOO_MANY_REQUESTS,
        })
    })
}
