//! Transports whose client sends only a connect command: an event stream, a stream of lines, and a WebSocket. The connect command comes with the request, or in
//! the first frame, and has no id. Everything that the server sends is a push. The server begins all subscriptions.
//!
//! The command is carried out as that of any other client, so it waits for verdicts and credit in the same way.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::Disconnect;
use crore_wire::json::is_json;

use crate::home::Home;
use crate::io::Io;
use crate::protocol::centrifugo::close::end_with_text;
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::server_side::is_connecting;
use crate::protocol::centrifugo::state::state;
use crate::protocol::front::Front;

/// Handles a frame: the first one connects the client, others are ignored. Returns false if the connection takes no more frames.
pub(super) fn handle_one_way_frame<I: Io>(
    front: &mut Front,
    slot: u32,
    data: &[u8],
    home: &mut Option<Home>,
    io: &mut I,
) -> bool {
    let conns = &front.clients.conns;
    let is_held = state(conns, slot).is_some_and(|it| !it.held_commands.is_empty());
    if conns.get(slot).has_option(CONNECTED) || is_held || is_connecting(&front.clients, slot) {
        return true;
    }
    connect_as(front, slot, data, home, io)
}

/// Carries out this connect command, which has no id. Returns false if the connection takes no more frames.
pub(super) fn connect_as<I: Io>(
    front: &mut Front,
    slot: u32,
    connect: &[u8],
    home: &mut Option<Home>,
    io: &mut I,
) -> bool {
    let connect = match connect {
        b"" => b"{}",
        connect => connect,
    };
    if !is_json(connect) {
        let words = "the connect command is not valid JSON";
        end_with_text(&mut front.clients, slot, Disconnect::BAD_REQUEST, words, io);
        return false;
    }
    // In valid JSON, line ends are between values only. In a frame of commands they are between commands.
    let one_line = connect.iter().map(|byte| match byte {
        b'\n' | b'\r' => b' ',
        byte => *byte,
    });
    let command: Vec<u8> = b"{\"id\":1,\"connect\":"
        .iter()
        .copied()
        .chain(one_line)
        .chain(*b"}")
        .collect();
    front.handle_centrifugo_frame(slot, &command, home, io)
}
