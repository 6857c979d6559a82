//! Frame headers, and all frames that a server sends except those of responses (RFC 9113 sections 4 and 6).

use alloc::vec::Vec;

use super::violation::ErrorCode;

/// The first bytes of every client (RFC 9113 section 3.4). They look like a request head of version 2.0.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame header.
pub const HEADER_BYTES: usize = 9;
/// The longest payload, in both directions: the initial value of SETTINGS_MAX_FRAME_SIZE, below which no peer may set it.
pub const PAYLOAD_MAX: usize = 16_384;
/// The largest stream number, and the largest window (RFC 9113 sections 5.1.1 and 6.9.1).
pub const MAX_31: u32 = (1 << 31) - 1;

/// The frame is the sender's last one on the stream (DATA, HEADERS).
pub const END_STREAM: u8 = 0x1;
/// The frame acknowledges a frame of the peer (SETTINGS, PING).
pub const ACK: u8 = 0x1;
/// The frame is the last one of a field block (HEADERS, CONTINUATION).
pub const END_HEADERS: u8 = 0x4;
/// The payload contains a padding length and padding (DATA, HEADERS).
pub const PADDED: u8 = 0x8;
/// The payload contains priority fields (HEADERS).
pub const PRIORITY: u8 = 0x20;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum Kind {
    /// A piece of a body.
    Data = 0,
    /// The first fragment of a field block.
    Headers = 1,
    /// The priority of a stream (deprecated).
    Priority = 2,
    /// Ends a stream at once.
    ResetStream = 3,
    /// Parameters of the connection.
    Settings = 4,
    /// Announces a pushed stream; only servers may send it.
    PushPromise = 5,
    /// Measures the round trip, or checks that the peer is alive.
    Ping = 6,
    /// Ends the connection, immediately or after the open streams.
    GoAway = 7,
    /// Lets the peer send more data.
    WindowUpdate = 8,
    /// Another fragment of a field block.
    Continuation = 9,
}

/// A parameter of SETTINGS (RFC 9113 section 6.5.2, RFC 8441 section 3, RFC 9218 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u16)]
pub enum Setting {
    /// The size of the dynamic table in the decoder.
    HeaderTableSize = 1,
    /// Whether the server may push.
    EnablePush = 2,
    /// The maximum number of concurrent streams that the peer may open.
    MaxConcurrentStreams = 3,
    /// The initial window of each stream.
    InitialWindowSize = 4,
    /// The longest payload.
    MaxFrameSize = 5,
    /// The maximum size of a list of header fields, in bytes.
    MaxHeaderListSize = 6,
    /// Whether CONNECT may name a protocol, such as `websocket`.
    EnableConnectProtocol = 8,
    /// Whether the priorities of RFC 7540 are ignored.
    NoRfc7540Priorities = 9,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The length of the payload; 24 bits on the wire.
    pub len: u32,
    /// The type, see [`Kind`]. Frames of unknown types must be ignored.
    pub kind: u8,
    /// The flags; their meaning depends on the type.
    pub flags: u8,
    /// The stream number; 0 for the connection.
    pub stream: u32,
}

impl Header {
    /// The offset of the flags in a frame.
    pub(super) const FLAGS_AT: usize = 4;

    /// A header for a payload of `len` bytes.
    pub const fn new(kind: Kind, flags: u8, stream: u32, len: usize) -> Header {
        Header {
            len: len as u32,
            kind: kind as u8,
            flags,
            stream,
        }
    }

    /// Reads the header at the start of `bytes`. `None` if it is incomplete. The reserved bit is ignored.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let &[a, b, c, kind, flags, d, e, f, g] = bytes.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            len: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes([d, e, f, g]) & MAX_31,
        })
    }

    /// The header as bytes on the wire.
    #[inline]
    pub const fn bytes(&self) -> [u8; HEADER_BYTES] {
        let [_, a, b, c] = self.len.to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    /// The length of the payload.
    pub const fn payload_bytes(&self) -> usize {
        self.len as usize
    }

    /// Whether the frame has this flag.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a frame whose payload is the concatenation of `parts`.
fn write(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, parts: &[&[u8]]) {
    let len = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&Header::new(kind, flags, stream, len).bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a SETTINGS frame.
pub fn write_settings(out: &mut Vec<u8>, settings: &[(Setting, u32)]) {
    let header = Header::new(Kind::Settings, 0, 0, 6 * settings.len());
    out.extend_from_slice(&header.bytes());
    for &(setting, value) in settings {
        out.extend_from_slice(&(setting as u16).to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's SETTINGS.
pub fn write_settings_ack(out: &mut Vec<u8>) {
    write(out, Kind::Settings, ACK, 0, &[]);
}

/// Appends the answer to a PING frame, which has the same bytes.
pub fn write_ping_ack(out: &mut Vec<u8>, opaque: [u8; 8]) {
    write(out, Kind::Ping, ACK, 0, &[&opaque]);
}

/// Appends a RST_STREAM frame.
pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    let code = (code as u32).to_be_bytes();
    write(out, Kind::ResetStream, 0, stream, &[&code]);
}

/// Appends a GOAWAY frame. Requests on streams above `last_stream` are not processed. `reason` is for human readers.
pub fn write_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, reason: &str) {
    let (last_stream, code) = (last_stream.to_be_bytes(), (code as u32).to_be_bytes());
    let parts = [&last_stream[..], &code, reason.as_bytes()];
    write(out, Kind::GoAway, 0, 0, &parts);
}

/// Appends a WINDOW_UPDATE frame for a stream, or for the connection (0).
pub fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    let increment = increment.to_be_bytes();
    write(out, Kind::WindowUpdate, 0, stream, &[&increment]);
}

/// The number in the first four bytes, which must exist.
pub(super) fn read_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("its length was checked"))
}
