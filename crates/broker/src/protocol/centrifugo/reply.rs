//! Writes replies and pushes, each in a frame of its own. Those of a turn are one write.

use alloc::borrow::Cow;

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Answer, ErrorReply, Push, Reply, encode};
use crore_wire::websocket::frame::Opcode;

use crate::base::reason::Reason;
use crate::protocol::centrifugo::options::{PROTOBUF, format_of};
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::encode::frame_from;
use crate::protocol::front::Clients;

/// Why a command is not carried out.
pub(super) enum Refused {
    /// It gets an error, in these words. The connection goes on.
    Error(ErrorCode, Cow<'static, str>),
    /// The connection ends.
    End(Disconnect, Cow<'static, str>),
}

impl Refused {
    /// The documented error.
    pub fn error(code: ErrorCode) -> Refused {
        Refused::Error(code, code.text.into())
    }

    /// A command that only a client with a fault sends.
    pub fn bad(words: &'static str) -> Refused {
        Refused::End(Disconnect::BAD_REQUEST, words.into())
    }

    /// The error for a reason of this server, which is counted.
    pub fn for_reason(clients: &mut Clients, slot: u32, reason: Reason) -> Refused {
        clients.refused(slot, reason);
        let words = reason.words(&clients.ctx.world.settings);
        Refused::Error(error_of(reason), words)
    }
}

/// Appends the reply to a command to the bytes that are sent next.
pub(super) fn write_reply(clients: &mut Clients, slot: u32, id: u32, answer: Answer<'_>) {
    let row = clients.conns.get(slot);
    let (format, opcode) = (format_of(row), opcode_of(row.wants(PROTOBUF)));
    let out = &mut clients.scratch.reply;
    let start = out.len();
    let written = encode::reply(format, &Reply { id, answer }, out);
    written.expect("the data is what the form can have");
    frame_from(out, start, opcode);
}

/// Appends a push.
pub(super) fn write_push(clients: &mut Clients, slot: u32, push: &Push<'_>) {
    let row = clients.conns.get(slot);
    let (format, opcode) = (format_of(row), opcode_of(row.wants(PROTOBUF)));
    let out = &mut clients.scratch.reply;
    let start = out.len();
    encode::push(format, push, out).expect("the data is what the form can have");
    frame_from(out, start, opcode);
}

/// Appends a ping.
pub(super) fn write_ping(clients: &mut Clients, slot: u32) {
    let row = clients.conns.get(slot);
    let (format, opcode) = (format_of(row), opcode_of(row.wants(PROTOBUF)));
    let out = &mut clients.scratch.reply;
    let start = out.len();
    encode::ping(format, out);
    frame_from(out, start, opcode);
}

/// Appends the error for a command.
pub(super) fn write_error(clients: &mut Clients, slot: u32, id: u32, code: ErrorCode, words: &str) {
    let error = ErrorReply {
        message: words,
        ..code.into()
    };
    write_reply(clients, slot, id, Answer::Error(error));
}

fn opcode_of(is_protobuf: bool) -> Opcode {
    match is_protobuf {
        true => Opcode::Binary,
        false => Opcode::Text,
    }
}
