//! Fuzz targets for WebSocket frames with and without compression, and for compression alone.

use crore_wire::deflate::{Compressor, InflateError, inflate};
use crore_wire::websocket::frame::{Opcode, apply_mask, write_header, write_masked};
use crore_wire::websocket::receive::{Config, Event, Role, Violation, next};

use crate::Input;

/// Parts of frames, among them headers with a mask of zeros, which leaves the payload unchanged.
pub const WORDS: &[&str] = &[
    "\u{1}\0",
    "\0\0\0\0",
    "hello",
    "\u{3}\u{e8}",
    "\u{7f}",
    "~",
    "\u{e9}",
];

/// Choices for the longest message: small, so that inputs reach it.
const MESSAGE_LIMITS: [usize; 4] = [0, 5, 300, 70_000];

/// A copy of an event, which outlives the receive buffer.
#[derive(Clone, Debug, PartialEq)]
enum Got {
    Message(Opcode, Vec<u8>),
    Close(Option<u16>, Vec<u8>),
    Violation(Violation),
}

fn owned(event: Event<'_>) -> Got {
    match event {
        Event::Text(data) => Got::Message(Opcode::Text, data.to_vec()),
        Event::Binary(data) => Got::Message(Opcode::Binary, data.to_vec()),
        Event::Ping(data) => Got::Message(Opcode::Ping, data.to_vec()),
        Event::Pong(data) => Got::Message(Opcode::Pong, data.to_vec()),
        Event::Close { code, reason } => Got::Close(code, reason.to_vec()),
    }
}

/// All events that the receiver finds in these pieces, up to a close or a violation.
fn receive<'a>(pieces: impl Iterator<Item = &'a [u8]>, config: &Config) -> Vec<Got> {
    let (mut partial, mut got) = (None, Vec::new());
    for piece in pieces {
        let mut buf = piece.to_vec();
        let mut at = 0;
        loop {
            let left = buf.len() - at;
            match next(&mut partial, &mut buf[at..], config) {
                Ok(step) => {
                    assert!(step.consumed <= left);
                    let Some(event) = step.event else {
                        assert_eq!(step.consumed, left, "more is wanted with bytes left");
                        break;
                    };
                    got.push(owned(event));
                    if matches!(got.last(), Some(Got::Close(..))) {
                        return got;
                    }
                    at += step.consumed;
                }
                Err(violation) => {
                    assert!(partial.is_none(), "a failed connection holds nothing");
                    got.push(Got::Violation(violation));
                    return got;
                }
            }
        }
    }
    got
}

/// Receives frames as a server or a client. Checked: the events do not depend on the cuts (the places where the input is split into
/// pieces) and stay within the limits. Messages that are framed again give the same events.
pub fn frames(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let config = Config {
        role: [Role::Server, Role::Client][usize::from(input.options >> 2 & 1)],
        message_bytes: MESSAGE_LIMITS[usize::from(input.options & 3)],
        deflate: input.options & 8 == 0,
    };
    let whole = receive(std::iter::once(input.bytes), &config);
    assert_eq!(receive(input.pieces(), &config), whole);
    for got in &whole {
        match got {
            Got::Message(opcode, data) => {
                let most = if opcode.is_control() {
                    125
                } else {
                    config.message_bytes
                };
                assert!(data.len() <= most, "{opcode:?} of {} bytes", data.len());
                assert!(*opcode != Opcode::Text || std::str::from_utf8(data).is_ok());
            }
            Got::Close(_, reason) => assert!(std::str::from_utf8(reason).is_ok()),
            Got::Violation(_) => {}
        }
    }
    again(&whole, &input, &config);
}

/// Frames the received messages again (in one frame, in two, or compressed), and receives these frames.
fn again(whole: &[Got], input: &Input<'_>, config: &Config) {
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    let server = config.role == Role::Server;
    let mask = server.then_some([0xa5, input.options, 0x5a, 1]);
    let mut put = |opcode, fin, rsv1, payload: &[u8]| {
        write_header(&mut bytes, opcode, fin, rsv1, payload.len(), mask);
        let start = bytes.len();
        bytes.extend_from_slice(payload);
        if let Some(mask) = mask {
            apply_mask(&mut bytes[start..], mask, 0);
        }
    };
    for (n, got) in whole.iter().enumerate() {
        let (opcode, payload) = match got {
            Got::Message(opcode, data) => (*opcode, data.clone()),
            Got::Close(code, reason) => {
                let code = code.map_or(vec![], |code| code.to_be_bytes().to_vec());
                (Opcode::Close, [&code[..], reason].concat())
            }
            Got::Violation(_) => break,
        };
        expected.push(got.clone());
        let way = if opcode.is_control() { 0 } else { n % 3 };
        match way {
            1 => {
                let (one, two) = payload.split_at(payload.len() / 2);
                put(opcode, false, false, one);
                put(Opcode::Continuation, true, false, two);
            }
            2 if config.deflate => {
                let mut packed = Vec::new();
                Compressor::new().compress(&payload, 1, &mut packed);
                // An incompressible message may exceed the limit in transit.
                if packed.len() <= config.message_bytes {
                    put(opcode, true, true, &packed);
                } else {
                    put(opcode, true, false, &payload);
                }
            }
            _ => put(opcode, true, false, &payload),
        }
    }
    assert_eq!(receive(std::iter::once(&bytes[..]), config), expected);
    if server && let Some(Got::Message(opcode, data)) = expected.first() {
        let mut one = Vec::new();
        write_masked(&mut one, *opcode, data, [9, 8, 7, 6]);
        assert_eq!(receive(std::iter::once(&one[..]), config), expected[..1]);
    }
}

/// Inflates and compresses the input. Checked: inflated data stays within its limit whatever the input, and compressed data inflates to
/// the original.
pub fn deflate(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let limit = MESSAGE_LIMITS[usize::from(input.options & 3)];
    let mut out = b"before".to_vec();
    let verdict = inflate(input.bytes, limit, &mut out);
    if verdict.is_ok() {
        assert!(out.starts_with(b"before") && out.len() - 6 <= limit);
        let len = out.len() - 6;
        let mut exact = Vec::new();
        assert_eq!(inflate(input.bytes, len, &mut exact), Ok(()));
        assert_eq!(exact, out[6..], "another limit, another message");
        if len > 0 {
            let less = inflate(input.bytes, len - 1, &mut Vec::new());
            assert_eq!(less, Err(InflateError::TooBig));
        }
    }
    let level = 1 + input.options % 9;
    let mut packed = Vec::new();
    Compressor::new().compress(input.bytes, level, &mut packed);
    let mut back = Vec::new();
    assert_eq!(inflate(&packed, input.bytes.len(), &mut back), Ok(()));
    assert_eq!(back, input.bytes);
}
