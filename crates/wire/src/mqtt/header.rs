//! Reads the fixed header: packet type, flags and remaining length (MQTT 5.0 section 2.1).
//!
//! Invariant: a packet with a wrong fixed header is refused before its body arrives. No state is kept: after too few bytes, the caller
//! calls again with the packet from its first byte on.

use super::base::{PacketType, Qos};
use super::error::Error;

/// A fixed header that passed [`fixed_header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: PacketType,
    flags: u8,
    /// The remaining length has more bytes than it needs, which 3.1.1 allows.
    pub(super) is_length_padded: bool,
    body_bytes: u32,
}

impl Header {
    /// The type of the packet.
    pub const fn kind(&self) -> PacketType {
        self.kind
    }

    /// The remaining length: the length of the body in bytes.
    pub const fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }

    pub(super) const fn dup(&self) -> bool {
        self.flags & DUP != 0
    }

    pub(super) const fn retain(&self) -> bool {
        self.flags & RETAIN != 0
    }

    pub(super) const fn qos(&self) -> Qos {
        match self.flags >> 1 & 3 {
            0 => Qos::AtMostOnce,
            1 => Qos::AtLeastOnce,
            _ => Qos::ExactlyOnce, // `check_flags` refused 3
        }
    }
}

/// DUP in the flags of PUBLISH (section 3.3.1.1).
pub(super) const DUP: u8 = 0b1000;
/// RETAIN in the flags of PUBLISH (section 3.3.1.3).
pub(super) const RETAIN: u8 = 0b0001;

/// Reads the fixed header at the beginning of `bytes`. Returns the header and its length in bytes. `None` if more bytes are needed.
///
/// `max_packet_bytes` limits the whole packet, including the fixed header, like Maximum Packet Size (section 3.1.2.11.4).
///
/// # Errors
/// The type or the flags are wrong (the first byte is enough to find that), the remaining length is malformed, or the packet is too large.
/// A remaining length with unnecessary bytes is not an error here: [`decode`](super::decode()) refuses it in 5.0 [MQTT-1.5.5-1].
pub fn fixed_header(
    bytes: &[u8],
    max_packet_bytes: usize,
) -> Result<Option<(Header, usize)>, Error> {
    let [first, rest @ ..] = bytes else {
        return Ok(None);
    };
    let kind = PacketType::from_repr(first >> 4).ok_or(Error::PacketType)?;
    let flags = first & 0x0F;
    check_flags(kind, flags)?;
    let Some((body_bytes, length_bytes)) = read_remaining_length(rest)? else {
        return Ok(None);
    };
    if matches!(kind, PacketType::PingReq | PacketType::PingResp) && body_bytes != 0 {
        return Err(Error::RemainingLength);
    }
    let header_bytes = 1 + length_bytes;
    let packet_bytes = header_bytes + body_bytes as usize;
    if packet_bytes > max_packet_bytes {
        return Err(Error::TooLarge {
            bytes: packet_bytes,
            max: max_packet_bytes,
        });
    }
    let header = Header {
        kind,
        flags,
        is_length_padded: length_bytes > 1 && rest[length_bytes - 1] == 0,
        body_bytes,
    };
    Ok(Some((header, header_bytes)))
}

fn check_flags(kind: PacketType, flags: u8) -> Result<(), Error> {
    if kind != PacketType::Publish {
        return match flags == kind.flags() {
            true => Ok(()),
            false => Err(Error::HeaderFlags),
        };
    }
    match flags >> 1 & 3 {
        3 => Err(Error::Qos),
        0 if flags & DUP != 0 => Err(Error::Dup),
        _ => Ok(()),
    }
}

/// Reads the remaining length, and the number of bytes that encode it (section 2.1.4).
fn read_remaining_length(bytes: &[u8]) -> Result<Option<(u32, usize)>, Error> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    match bytes.len() < 4 {
        true => Ok(None),
        false => Err(Error::RemainingLength),
    }
}
