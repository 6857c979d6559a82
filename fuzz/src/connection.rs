//! Fuzz target for connections of every transport to a server with two shards: clients act in any order, and cut or stall a connection
//! anywhere.
//!
//! The input is a program: a list of operations. Every input is a valid program, so mutations are programs too.

use crore_wire::websocket::frame::{Opcode, write_masked};

use crate::requests;
use crate::shards::{SHARDS, Shards};

/// Clients connected at once: a few more than the limits of the shards allow, so that the server refuses some.
const CLIENTS: usize = 10;
/// A receive window of a client that is never exhausted.
const WIDE: usize = 1 << 20;
/// The maximum of operations in a program. More would only be slow.
const OPERATIONS_MAX: usize = 400;

/// The frames that a WebSocket client sends.
const FRAMES: &[&[u8]] = &[
    b"hello",
    b"",
    b"{\"topic\":\"a\",\"data\":\"x\"}",
    &[0x03, 0xe8],
    &[0xff, 0xfe],
    &[b'x'; 310],
];

/// Requests that keep their connection open.
const STREAMS: &[&str] = &[
    "GET /sub/a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    "GET /sub?topic=a&topic=latest/x&topic=skip/y&since=oldest HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    "GET /pubsub/latest/x?since=oldest HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
    "GET /pubsub/skip/y HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: ws+meta.nchan\r\n\r\n",
    "GET /sub?topic=a&topic=none/z HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "GET /interest?match=%23 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    "GET /sub/a HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \"17-3\"\r\n\r\n",
    "POST /pub/skip/y HTTP/1.1\r\nHost: localhost\r\nContent-Length: 290\r\n\r\n",
    "POST /pub/latest/x HTTP/1.1\r\nHost: localhost\r\nCrore-Key: one\r\nContent-Length: 5\r\n\r\n",
];

/// The remaining bytes of a program, followed by zeros.
struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    fn byte(&mut self) -> usize {
        let Some((byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        (*byte).into()
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Runs a program on a whole server. Checked: nothing panics, every limit holds after every turn (run of a shard's event loop), shards use
/// only their own open links, and nothing is held after all clients have left.
pub fn connection(data: &[u8]) {
    let mut program = Program(data);
    let mut shards = Shards::new();
    let mut links: Vec<usize> = (0..CLIENTS)
        .map(|n| shards.connect(n % SHARDS, if n < 2 { 64 } else { WIDE }))
        .collect();
    for _ in 0..OPERATIONS_MAX {
        if program.0.is_empty() {
            break;
        }
        operate(&mut program, &mut shards, &mut links);
    }
    shards.settle();
    shards.end();
}

fn operate(program: &mut Program<'_>, shards: &mut Shards, links: &mut [usize]) {
    let (operation, client) = (program.byte(), program.byte() % CLIENTS);
    let link = links[client];
    let pick = program.byte();
    match operation & 15 {
        0..=3 => shards.write(link, STREAMS[pick % STREAMS.len()].as_bytes()),
        4..=6 => {
            let words = requests::WORDS;
            shards.write(link, words[pick % words.len()].as_bytes());
        }
        7 | 8 => {
            let bytes = program.bytes(pick);
            shards.write(link, bytes);
        }
        9 | 10 => {
            let opcode = [Opcode::Text, Opcode::Binary, Opcode::Ping, Opcode::Close][pick & 3];
            let payload = FRAMES[(pick >> 2) % FRAMES.len()];
            let longest = if opcode.is_control() {
                125
            } else {
                payload.len()
            };
            let mut frame = Vec::new();
            write_masked(
                &mut frame,
                opcode,
                &payload[..payload.len().min(longest)],
                [1, 2, 3, 4],
            );
            shards.write(link, &frame);
        }
        11 => shards.widen(link, 4 * pick),
        12 => shards.pass(1 + pick as u32 % 64),
        13 => {
            shards.reset(link);
            links[client] =
                shards.connect(client % SHARDS, if pick < 128 { 8 * pick } else { WIDE });
        }
        14 => shards.finish(link),
        _ => {
            shards.turn(pick % SHARDS, pick, pick & 4 == 0);
        }
    }
    if operation & 0x80 != 0 {
        shards.settle();
    } else if operation & 0x40 != 0 {
        shards.turn(
            client % SHARDS,
            1 + (operation >> 4 & 3) * 50,
            operation & 0x10 != 0,
        );
    }
}
