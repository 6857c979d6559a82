//! The client side of WebSocket. Reads frames that arrive whole or in parts.

use crore_broker::{Closed, Reason};
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::receive::{self, Config, Event, Partial, Role};

use crate::truth::Violation;

/// Passes each event in these bytes to `take` until it returns false. An incomplete event stays in `partial`.
pub fn read(
    partial: &mut Option<Box<Partial>>,
    mut input: Vec<u8>,
    message_bytes: usize,
    deflate: bool,
    mut take: impl FnMut(Event<'_>) -> Result<bool, Violation>,
) -> Result<(), Violation> {
    let config = Config {
        role: Role::Client,
        message_bytes,
        deflate,
    };
    let mut at = 0;
    loop {
        let step = receive::next(partial, &mut input[at..], &config)
            .map_err(|violation| format!("frames: {}", violation.reason()))?;
        at += step.consumed;
        match step.event {
            Some(event) if take(event)? => {}
            _ => return Ok(()),
        }
    }
}

/// Answers a ping.
pub fn pong(out: &mut Vec<u8>, data: &[u8]) {
    frame::write_masked(out, Opcode::Pong, data, [1, 2, 3, 4]);
}

/// Whether the server may close a connection with this code at any time: because the client closed it, was too slow, or the server
/// was full.
pub fn is_for_room(code: u16) -> bool {
    let closed = [Closed::Peer, Closed::Timeout, Closed::Full];
    let mut rows = Reason::ALL.iter().map(|reason| reason.row());
    rows.any(|row| row.close == Some(code) && closed.contains(&row.closed))
}
