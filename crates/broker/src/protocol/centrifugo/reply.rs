//! Writes replies and pushes, each in a frame, an event or a line of its own. All those of a turn are sent in one write.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Answer, ErrorReply, Format, Push, Reply, encode};
use crore_wire::websocket::frame::Opcode;

use crate::base::reason::Reason;
use crate::mail::backend::BackendError;
use crate::protocol::centrifugo::options::{ONE_WAY, format_of, pushes_of};
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::encode::{Encoding, frame_from};
use crate::protocol::front::Clients;
use crate::protocol::http::body::write_part;
use crate::protocol::http::options::AS_EVENTS;

/// Why a command is not carried out.
pub(super) enum CommandRefusal {
    /// The command gets an error with this text. The connection continues.
    Error(ErrorCode, Cow<'static, str>),
    /// The connection ends.
    End(Disconnect, Cow<'static, str>),
    /// The command gets this error of the backend. The connection continues.
    Backend(BackendError),
    /// The connection ends with this code and reason of the backend.
    Disconnect(u16, Box<str>),
}

impl CommandRefusal {
    /// The error with the text that Centrifugo documents.
    pub fn error(code: ErrorCode) -> CommandRefusal {
        CommandRefusal::Error(code, code.text.into())
    }

    /// The refusal of a command that a correct client does not send. The connection ends.
    pub fn bad_request(text: &'static str) -> CommandRefusal {
        CommandRefusal::End(Disconnect::BAD_REQUEST, text.into())
    }

    /// The error for a reason of this server, which is counted.
    pub fn for_reason(clients: &mut Clients, slot: u32, reason: Reason) -> CommandRefusal {
        clients.refused(slot, reason);
        let text = reason.text_with_limit(&clients.ctx.world.settings);
        CommandRefusal::Error(error_of(reason), text)
    }
}

/// Appends the reply to a command to the bytes that are sent next. A client that sends no commands gets the reply to its connect as a push.
pub(super) fn write_reply(clients: &mut Clients, slot: u32, id: u32, answer: Answer<'_>) {
    if clients.conns.get(slot).has_option(ONE_WAY) {
        if let Answer::Connect(result) = answer {
            write_push(clients, slot, &Push::Connect(result));
        }
        return;
    }
    write_item(clients, slot, |format, out| {
        let written = encode::reply(format, &Reply { id, answer }, out);
        written.expect("the data fits the format");
    });
}

/// Appends a push.
pub(super) fn write_push(clients: &mut Clients, slot: u32, push: &Push<'_>) {
    let is_one_way = clients.conns.get(slot).has_option(ONE_WAY);
    write_item(clients, slot, |format, out| {
        let written = match is_one_way {
            true => encode::bare_push(format, push, out),
            false => encode::push(format, push, out),
        };
        written.expect("the data fits the format");
    });
}

/// Appends a ping.
pub(super) fn write_ping(clients: &mut Clients, slot: u32) {
    write_item(clients, slot, encode::ping);
}

/// Appends the bytes that `write` writes, framed for the connection's transport.
fn write_item(clients: &mut Clients, slot: u32, write: impl FnOnce(Format, &mut Vec<u8>)) {
    let (row, out) = (clients.conns.get(slot), &mut clients.scratch.reply);
    let start = out.len();
    write(format_of(row), out);
    match pushes_of(row) {
        Encoding::PushProtobuf => frame_from(out, start, Opcode::Binary),
        Encoding::PushJson | Encoding::OneWayFrame => frame_from(out, start, Opcode::Text),
        Encoding::PushMessages | Encoding::PushMessagesToEnd => {
            let item = out.split_off(start);
            write_part(row, &item, out);
        }
        _ => {
            let item = out.split_off(start);
            let part = match row.has_option(AS_EVENTS) {
                true => [b"data: ", &item[..], b"\n\n"].concat(),
                false => [&item[..], b"\n"].concat(),
            };
            write_part(row, &part, out);
        }
    }
}

/// Appends an error of the backend for a command.
pub(super) fn write_backend_error(clients: &mut Clients, slot: u32, id: u32, error: &BackendError) {
    let error = ErrorReply {
        code: error.code,
        message: &error.message,
        temporary: error.is_temporary,
    };
    write_reply(clients, slot, id, Answer::Error(error));
}

/// Appends the error for a command.
pub(super) fn write_error(clients: &mut Clients, slot: u32, id: u32, code: ErrorCode, text: &str) {
    let error = ErrorReply {
        message: text,
        ..code.into()
    };
    write_reply(clients, slot, id, Answer::Error(error));
}
