//! Reads frame headers and enforces all rules of RFC 6455 for headers. [`receive`](super::receive) checks the payloads.
//!
//! Invariant: the fields of a header are checked in order, each as soon as it is complete. So the violation does not depend on how the
//! stream is split into reads.

use super::frame::{CONTROL_MAX, FIN, LENGTH_16, LENGTH_64, MASKED, Opcode, RSV1, RSV23};
use super::violation::Violation;

/// The side of the connection that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The server receives: frames must be masked (RFC 6455 §5.1).
    Server,
    /// The client receives: frames must not be masked.
    Client,
}

/// The settings of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The side that receives.
    pub role: Role,
    /// The longest message in bytes, after it is inflated.
    pub message_bytes: usize,
    /// Whether permessage-deflate was negotiated, so that RSV1 may mark a compressed message.
    pub deflate: bool,
}

/// A frame whose header is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) opcode: Opcode,
    pub(super) fin: bool,
    pub(super) deflated: bool,
    pub(super) mask: Option<[u8; 4]>,
    /// Length of the payload in bytes.
    pub(super) len: usize,
    /// Payload bytes that have arrived.
    pub(super) received: usize,
}

/// A message whose first frame has arrived and whose last frame has not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragmented {
    /// Payload bytes of all frames of the message so far.
    pub(super) bytes: usize,
    pub(super) deflated: bool,
}

/// Reads the header at the beginning of `bytes`. Returns the frame and the header's length. `None` if the header is incomplete and correct
/// so far.
pub(super) fn parse(
    bytes: &[u8],
    unfinished: Option<Fragmented>,
    config: &Config,
) -> Result<Option<(Frame, usize)>, Violation> {
    let Some(&first) = bytes.first() else {
        return Ok(None);
    };
    let (opcode, fin, deflated) = check_first_byte(first, unfinished.is_some(), config)?;
    let Some(&second) = bytes.get(1) else {
        return Ok(None);
    };
    let is_masked = second & MASKED != 0;
    match (config.role, is_masked) {
        (Role::Server, false) => return Err(Violation::Unmasked),
        (Role::Client, true) => return Err(Violation::Masked),
        _ => {}
    }
    let length_code = second & !MASKED;
    if opcode.is_control() && usize::from(length_code) > CONTROL_MAX {
        return Err(Violation::ControlTooLong);
    }
    let Some((len, extra_bytes)) = read_payload_length(length_code, &bytes[2..])? else {
        return Ok(None);
    };
    if !opcode.is_control() {
        let message_bytes = unfinished.map_or(0, |message| message.bytes);
        let limit = wire_limit(
            config,
            deflated || unfinished.is_some_and(|message| message.deflated),
        );
        if len > limit.saturating_sub(message_bytes) as u64 {
            return Err(Violation::TooBig);
        }
    }
    let mask = if is_masked {
        match bytes.get(2 + extra_bytes..2 + extra_bytes + 4) {
            Some(mask) => Some([mask[0], mask[1], mask[2], mask[3]]),
            None => return Ok(None),
        }
    } else {
        None
    };
    let frame = Frame {
        opcode,
        fin,
        deflated,
        mask,
        len: len as usize,
        received: 0,
    };
    Ok(Some((
        frame,
        2 + extra_bytes + if is_masked { 4 } else { 0 },
    )))
}

fn check_first_byte(
    byte: u8,
    is_in_message: bool,
    config: &Config,
) -> Result<(Opcode, bool, bool), Violation> {
    if byte & RSV23 != 0 {
        return Err(Violation::ReservedBits);
    }
    let opcode = Opcode::from_repr(byte & 0x0F).ok_or(Violation::ReservedOpcode)?;
    let fin = byte & FIN != 0;
    let rsv1 = byte & RSV1 != 0;
    let begins_message = matches!(opcode, Opcode::Text | Opcode::Binary);
    if rsv1 && !(config.deflate && begins_message) {
        return Err(Violation::ReservedBits);
    }
    if opcode.is_control() && !fin {
        return Err(Violation::ControlFragmented);
    }
    if opcode == Opcode::Continuation && !is_in_message {
        return Err(Violation::NothingToContinue);
    }
    if begins_message && is_in_message {
        return Err(Violation::MessageInMessage);
    }
    Ok((opcode, fin, rsv1))
}

/// Reads the payload length, and the number of extra bytes that encode it. RFC 6455 §5.2 requires the shortest encoding and a clear top
/// bit.
fn read_payload_length(length_code: u8, bytes: &[u8]) -> Result<Option<(u64, usize)>, Violation> {
    let (len, extra_bytes, len_min) = match length_code {
        LENGTH_16 => match bytes.first_chunk::<2>() {
            Some(bytes) => (
                u64::from(u16::from_be_bytes(*bytes)),
                2,
                u64::from(LENGTH_16),
            ),
            None => return Ok(None),
        },
        LENGTH_64 => match bytes.first_chunk::<8>() {
            Some(bytes) => (u64::from_be_bytes(*bytes), 8, 1 << 16),
            None => return Ok(None),
        },
        short => (u64::from(short), 0, 0),
    };
    if len >> 63 != 0 {
        return Err(Violation::LengthTopBit);
    }
    if len < len_min {
        return Err(Violation::LengthNotMinimal);
    }
    Ok(Some((len, extra_bytes)))
}

/// Limit of a message's payload bytes on the wire. Compression makes random bytes longer, by at most an eighth (zlib with its smallest
/// memory). So a compressed message may exceed the message limit by an eighth. The inflated message is limited separately.
fn wire_limit(config: &Config, deflated: bool) -> usize {
    /// Allowance for the block headers of very small messages.
    const BLOCK_HEADER_BYTES: usize = 64;
    match deflated {
        true => config
            .message_bytes
            .saturating_add(config.message_bytes / 8 + BLOCK_HEADER_BYTES),
        false => config.message_bytes,
    }
}
