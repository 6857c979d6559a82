//! Writes events and errors, each in a frame of its own. All those of a turn are sent in one write.

use alloc::format;
use alloc::vec::Vec;

use crore_wire::json::write_string;
use crore_wire::pusher::{self, ErrorCode, EventData};
use crore_wire::websocket::frame::Opcode;

use crate::base::reason::Reason;
use crate::protocol::encode::frame_from;
use crate::protocol::front::Clients;
use crate::protocol::pusher::reasons::code_of_refusal;

/// Appends an event to the bytes that are sent next.
pub(super) fn write_event(
    clients: &mut Clients,
    event: &[u8],
    channel: Option<&str>,
    data: EventData<'_>,
) {
    let out = &mut clients.scratch.reply;
    let start = out.len();
    pusher::write_event(event, channel.map(str::as_bytes), data, b"", out);
    frame_from(out, start, Opcode::Text);
}

/// Appends `pusher:error`. An error without a code has the code `null`, as Pusher sends it.
pub(super) fn write_error(clients: &mut Clients, code: Option<ErrorCode>, text: &str) {
    let number = code.map_or("null".into(), |code| format!("{}", code.code));
    let mut data = Vec::from(format!("{{\"code\":{number},\"message\":"));
    write_string(&mut data, text.as_bytes());
    data.push(b'}');
    write_event(clients, b"pusher:error", None, EventData::Value(&data));
}

/// Refuses an event of a client. The connection continues.
pub(super) fn refuse(clients: &mut Clients, slot: u32, reason: Reason, text: &str) {
    clients.refused(slot, reason);
    write_error(clients, code_of_refusal(reason), text);
}

/// Refuses a subscription: an event of the channel, whose handlers libraries call, and the error.
pub(super) fn refuse_subscription(
    clients: &mut Clients,
    slot: u32,
    channel: &str,
    reason: Reason,
    text: &str,
) {
    let (kind, default_status) = match reason {
        Reason::PusherSignature => ("AuthError", 401),
        _ => ("SubscriptionError", 400),
    };
    let status = reason.row().status.unwrap_or(default_status);
    let mut data = Vec::from(format!(
        "{{\"type\":\"{kind}\",\"status\":{status},\"error\":"
    ));
    write_string(&mut data, text.as_bytes());
    data.push(b'}');
    let data = EventData::Value(&data);
    write_event(clients, b"pusher:subscription_error", Some(channel), data);
    refuse(clients, slot, reason, text);
}
