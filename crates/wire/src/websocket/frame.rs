//! Writes WebSocket frames (RFC 6455 §5.2) and masks payloads (§5.3). [`receive`](super::receive) reads frames.
//!
//! Invariant: written frames are well-formed, and their lengths have the shortest encoding.

use alloc::vec::Vec;

/// The longest frame header in bytes: 2 bytes, an 8-byte length and a 4-byte masking key.
pub const HEADER_MAX: usize = 14;

/// The longest payload of a control frame, in bytes (RFC 6455 §5.5).
pub const CONTROL_MAX: usize = 125;
/// The longest reason of a close frame, in bytes.
pub const REASON_MAX: usize = CONTROL_MAX - 2;

/// In the second header byte: a 2-byte length follows.
pub(super) const LENGTH_16: u8 = 126;
/// In the second header byte: an 8-byte length follows.
pub(super) const LENGTH_64: u8 = 127;
pub(super) const FIN: u8 = 0x80;
pub(super) const RSV1: u8 = 0x40;
pub(super) const RSV23: u8 = 0x30;
pub(super) const MASKED: u8 = 0x80;

/// The kind of a frame (RFC 6455 §5.2, §11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation = 0x0,
    /// The first or only frame of a text message.
    Text = 0x1,
    /// The first or only frame of a binary message.
    Binary = 0x2,
    /// The closing handshake.
    Close = 0x8,
    /// Asks for a pong.
    Ping = 0x9,
    /// Answers a ping, or is a heartbeat.
    Pong = 0xA,
}

impl Opcode {
    /// The four bits on the wire.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Whether this is Close, Ping or Pong. Such a frame has at most [`CONTROL_MAX`] bytes and is never fragmented (RFC 6455 §5.5).
    pub const fn is_control(self) -> bool {
        self.bits() & 0x8 != 0
    }
}

/// Appends a frame header for a payload of `len` bytes. `rsv1` marks the first frame of a compressed message (RFC 7692
/// §6).
pub fn write_header(
    out: &mut Vec<u8>,
    opcode: Opcode,
    fin: bool,
    rsv1: bool,
    len: usize,
    mask: Option<[u8; 4]>,
) {
    let (mut bytes, size) = header(opcode, rsv1, len);
    if !fin {
        bytes[0] &= !FIN;
    }
    if mask.is_some() {
        bytes[1] |= MASKED;
    }
    out.extend_from_slice(&bytes[..size]);
    if let Some(mask) = mask {
        out.extend_from_slice(&mask);
    }
}

/// The header of an unmasked, unfragmented frame: an array, and the header's length in the array. Most frames of a server are like this,
/// and their headers then need no buffer.
#[inline]
pub fn header(opcode: Opcode, rsv1: bool, len: usize) -> ([u8; 10], usize) {
    debug_assert!(!opcode.is_control() || (len <= CONTROL_MAX && !rsv1));
    let mut bytes = [0; 10];
    bytes[0] = FIN | if rsv1 { RSV1 } else { 0 } | opcode.bits();
    if len < LENGTH_16 as usize {
        bytes[1] = len as u8;
        (bytes, 2)
    } else if let Ok(len) = u16::try_from(len) {
        bytes[1] = LENGTH_16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        (bytes, 4)
    } else {
        bytes[1] = LENGTH_64;
        bytes[2..].copy_from_slice(&(len as u64).to_be_bytes());
        (bytes, 10)
    }
}

/// The length of the header at the beginning of an unmasked frame, which follows from the second byte (RFC 6455 §5.2).
#[inline]
pub fn header_len(frame: &[u8]) -> usize {
    match frame[1] {
        LENGTH_64 => 10,
        LENGTH_16 => 4,
        _ => 2,
    }
}

/// The payload of a whole frame that [`write_frame`] wrote with this opcode. `None` for other bytes.
pub fn payload(frame: &[u8], opcode: Opcode) -> Option<&[u8]> {
    let payload = frame.get(1).and_then(|_| frame.get(header_len(frame)..))?;
    let (header, len) = header(opcode, false, payload.len());
    (frame.len() == len + payload.len() && frame.starts_with(&header[..len])).then_some(payload)
}

/// Appends a whole server frame: unmasked, unfragmented, uncompressed.
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    let (bytes, size) = header(opcode, false, payload.len());
    out.reserve(size + payload.len());
    out.extend_from_slice(&bytes[..size]);
    out.extend_from_slice(payload);
}

/// Appends a whole client frame, masked with `mask`, which must be unpredictable (RFC 6455 §5.3).
pub fn write_masked(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: [u8; 4]) {
    out.reserve(HEADER_MAX + payload.len());
    write_header(out, opcode, true, false, payload.len(), Some(mask));
    let start = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[start..], mask, 0);
}

/// Appends a server's close frame. A reason longer than [`REASON_MAX`] is cut at a character boundary.
pub fn write_close(out: &mut Vec<u8>, code: u16, reason: &str) {
    let mut end = reason.len().min(REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let reason = &reason[..end];
    let (bytes, size) = header(Opcode::Close, false, 2 + reason.len());
    out.extend_from_slice(&bytes[..size]);
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// Masks or unmasks `buf` in place (RFC 6455 §5.3). `offset` is the position of `buf` in the payload.
pub fn apply_mask(buf: &mut [u8], mask: [u8; 4], offset: usize) {
    let mut repeated_mask = [0; 8];
    for (index, byte) in repeated_mask.iter_mut().enumerate() {
        *byte = mask[(index + offset) & 3];
    }
    let word = u64::from_ne_bytes(repeated_mask);
    let (words, rest) = buf.as_chunks_mut::<8>();
    for chunk in words {
        *chunk = (u64::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
    }
    for (byte, mask_byte) in rest.iter_mut().zip(repeated_mask) {
        *byte ^= mask_byte;
    }
}
