//! The fixed header: packet type, flags and remaining length (MQTT 5.0 section 2.1).
//!
//! Invariant: a packet whose first bytes are wrong is refused then, before its body is awaited. There is no state: with too
//! few bytes the caller calls again from the packet's beginning.

use super::{Error, Qos};

/// The longest fixed header in bytes.
pub const FIXED_HEADER_MAX: usize = 5;

/// The kinds of control packets (section 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Connection request, from the client.
    Connect = 1,
    /// Connect acknowledgment, from the server.
    ConnAck = 2,
    /// A message, either way.
    Publish = 3,
    /// Publish acknowledgment (QoS 1), either way.
    PubAck = 4,
    /// Publish received (QoS 2, part 1), either way.
    PubRec = 5,
    /// Publish release (QoS 2, part 2), either way.
    PubRel = 6,
    /// Publish complete (QoS 2, part 3), either way.
    PubComp = 7,
    /// Subscribe request, from the client.
    Subscribe = 8,
    /// Subscribe acknowledgment, from the server.
    SubAck = 9,
    /// Unsubscribe request, from the client.
    Unsubscribe = 10,
    /// Unsubscribe acknowledgment, from the server.
    UnsubAck = 11,
    /// Ping request, from the client.
    PingReq = 12,
    /// Ping response, from the server.
    PingResp = 13,
    /// Disconnect notification: from the client, in 5.0 either way.
    Disconnect = 14,
    /// Authentication exchange, either way, in 5.0 only.
    Auth = 15,
}

impl PacketType {
    /// From the upper half of the first byte. `None` for 0, which is forbidden.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return None,
        })
    }

    /// The flags that every packet of this type has (section 2.1.3); PUBLISH chooses its own.
    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        }
    }
}

/// A fixed header that passed [`fixed_header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: PacketType,
    flags: u8,
    /// The remaining length has more bytes than it needs, which 3.1.1 does not forbid.
    pub(super) padded: bool,
    remaining: u32,
}

impl Header {
    /// The type of the packet.
    pub const fn kind(&self) -> PacketType {
        self.kind
    }

    /// The remaining length: bytes of the body.
    pub const fn body_bytes(&self) -> usize {
        self.remaining as usize
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
            _ => Qos::ExactlyOnce, // 3 was refused
        }
    }
}

/// DUP in the flags of PUBLISH (section 3.3.1.1).
pub(super) const DUP: u8 = 0b1000;
/// RETAIN in the flags of PUBLISH (section 3.3.1.3).
pub(super) const RETAIN: u8 = 0b0001;

/// Reads the fixed header at the beginning of `bytes`: the header and its own length in bytes.
/// `None`: more bytes are needed.
///
/// `max_packet_bytes` bounds the whole packet, fixed header included, as Maximum Packet Size does
/// (section 3.1.2.11.4).
///
/// # Errors
/// The type or the flags are wrong (from the first byte alone), the remaining length is malformed, or the packet is too
/// large. A remaining length in more bytes than it needs passes here: [`decode`](super::decode()) refuses it in 5.0
/// [MQTT-1.5.5-1].
pub fn fixed_header(
    bytes: &[u8],
    max_packet_bytes: usize,
) -> Result<Option<(Header, usize)>, Error> {
    let [first, rest @ ..] = bytes else {
        return Ok(None);
    };
    let kind = PacketType::from_bits(first >> 4).ok_or(Error::PacketType)?;
    let flags = first & 0x0F;
    check_flags(kind, flags)?;
    let Some((remaining, len)) = remaining_length(rest)? else {
        return Ok(None);
    };
    if matches!(kind, PacketType::PingReq | PacketType::PingResp) && remaining != 0 {
        return Err(Error::RemainingLength);
    }
    let size = 1 + len;
    let whole = size + remaining as usize;
    if whole > max_packet_bytes {
        return Err(Error::TooLarge {
            bytes: whole,
            max: max_packet_bytes,
        });
    }
    let header = Header {
        kind,
        flags,
        padded: len > 1 && rest[len - 1] == 0,
        remaining,
    };
    Ok(Some((header, size)))
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

/// The remaining length and the number of its bytes (section 2.1.4).
fn remaining_length(bytes: &[u8]) -> Result<Option<(u32, usize)>, Error> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    match bytes.len() < 4 {
        true => Ok(None),
        false => Err(Error::RemainingLength),
    }
}
