//! A WebSocket client for tests, written from RFC 6455. It sends any frame, valid or not, and panics if the server sends an invalid one.

use super::Server;
use super::http::{Conn, Response};

pub const CONTINUATION: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;
pub const FIN: u8 = 0x80;
pub const RSV1: u8 = 0x40;

/// The key of RFC 6455 section 1.3 and the answer to it.
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

pub struct Ws {
    pub conn: Conn,
    pub head: Response,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The first byte of the frame: FIN, the reserved bits and the opcode.
    pub first: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn opcode(&self) -> u8 {
        self.first & 0x0f
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.payload.clone()).expect("a text frame")
    }

    /// The code in this frame, which must be a Close frame. `None` if it has no payload.
    pub fn close_code(&self) -> Option<u16> {
        assert_eq!(self.opcode(), CLOSE, "{self:?} is no close frame");
        let code = self.payload.get(..2)?;
        Some(u16::from_be_bytes([code[0], code[1]]))
    }
}

/// The header fields of a valid opening handshake, followed by `extra_headers`.
pub fn handshake<'a>(extra_headers: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut headers = vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", KEY),
    ];
    headers.extend_from_slice(extra_headers);
    headers
}

impl Ws {
    /// Opens a WebSocket. Panics if the server refuses the handshake.
    pub fn open(server: &Server, target: &str, extra_headers: &[(&str, &str)]) -> Ws {
        Ws::upgrade(Conn::open(server), target, extra_headers)
    }

    /// Opens a WebSocket over an HTTP connection.
    pub fn upgrade(mut conn: Conn, target: &str, extra_headers: &[(&str, &str)]) -> Ws {
        conn.ask("GET", target, &handshake(extra_headers), "");
        let head = conn.head();
        assert_eq!(head.status, 101, "{head:?}");
        Ws { conn, head }
    }

    /// Opens a WebSocket with Nchan's subprotocol `ws+meta.nchan`, in which every message has header lines with its position.
    pub fn meta(server: &Server, target: &str) -> Ws {
        let ws = Ws::open(
            server,
            target,
            &[("Sec-WebSocket-Protocol", "ws+meta.nchan")],
        );
        assert_eq!(
            ws.head.header("sec-websocket-protocol").as_deref(),
            Some("ws+meta.nchan")
        );
        ws
    }

    /// Sends a frame. `first` is its first byte: FIN, the reserved bits and the opcode.
    pub fn send(&mut self, first: u8, payload: impl AsRef<[u8]>) {
        let bytes = masked(first, payload.as_ref());
        self.conn.send(bytes);
    }

    /// The next frame of any opcode.
    pub fn frame(&mut self) -> Frame {
        let head = self.conn.exactly(2);
        assert_eq!(head[1] & 0x80, 0, "a server never masks");
        let length = match head[1] & 0x7f {
            126 => u64::from(u16::from_be_bytes(
                self.conn.exactly(2).try_into().expect("2 bytes"),
            )),
            127 => u64::from_be_bytes(self.conn.exactly(8).try_into().expect("8 bytes")),
            short => u64::from(short),
        };
        let payload = self
            .conn
            .exactly(usize::try_from(length).expect("a length"));
        Frame {
            first: head[0],
            payload,
        }
    }

    /// The next data frame, which must be a complete message. Pings before it are answered.
    pub fn message(&mut self) -> Frame {
        loop {
            let frame = self.frame();
            match frame.opcode() {
                PING => self.send(FIN | PONG, &frame.payload),
                TEXT | BINARY => {
                    assert_ne!(frame.first & FIN, 0, "one message is one frame");
                    return frame;
                }
                _ => panic!("{frame:?} instead of a message"),
            }
        }
    }

    /// The texts of the next `count` messages.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.message().text()).collect()
    }

    /// The next message in the meta subprotocol: its header lines and its data.
    pub fn meta_message(&mut self) -> (Vec<(String, String)>, Vec<u8>) {
        let frame = self.message();
        let end = frame.payload.windows(2).position(|pair| pair == b"\n\n");
        let end = end.unwrap_or_else(|| {
            panic!(
                "an empty line in {:?}",
                String::from_utf8_lossy(&frame.payload)
            )
        });
        let head = std::str::from_utf8(&frame.payload[..end]).expect("header lines");
        let lines = head.lines().map(|line| {
            let (name, value) = line
                .split_once(": ")
                .unwrap_or_else(|| panic!("{line:?} is no header line"));
            (name.to_string(), value.to_string())
        });
        (lines.collect(), frame.payload[end + 2..].to_vec())
    }

    /// Skips all frames before the next Close frame, answers that, and expects the end of the connection. Returns the code.
    pub fn closed(&mut self) -> Option<u16> {
        loop {
            let frame = self.frame();
            if frame.opcode() == CLOSE {
                let code = frame.close_code();
                self.send(FIN | CLOSE, &frame.payload);
                assert!(
                    self.conn.ends(),
                    "the server closes after the closing handshake"
                );
                return code;
            }
        }
    }
}

/// The value of a header line of a message in the meta subprotocol. Panics if the message has no such line.
pub fn line<'a>(lines: &'a [(String, String)], name: &str) -> &'a str {
    let found = lines.iter().find(|(field, _)| field == name);
    found.map_or_else(|| panic!("no {name} in {lines:?}"), |(_, value)| value)
}

/// A client's frame: masked, with the shortest encoding of its length.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = head(first, payload.len() as u64, true);
    bytes.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

/// The header of a frame that announces `length` bytes of payload, with the masking key if `mask`. A test may send it without a payload.
pub fn head(first: u8, length: u64, mask: bool) -> Vec<u8> {
    let bit = if mask { 0x80 } else { 0 };
    let mut bytes = vec![first];
    match length {
        0..=125 => bytes.push(bit | length as u8),
        126..=0xffff => {
            bytes.push(bit | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(bit | 127);
            bytes.extend(length.to_be_bytes());
        }
    }
    if mask {
        bytes.extend(MASK);
    }
    bytes
}
