//! Types and limits that all packets share: versions, packet types, packet ids, QoS, and maximum lengths.

use core::num::NonZeroU16;

/// The longest fixed header in bytes.
pub const FIXED_HEADER_MAX: usize = 5;

/// The largest remaining length in bytes, which has four bytes on the wire (section 2.1.4).
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;

/// The longest packet in bytes, including its fixed header.
pub const PACKET_BYTES_MAX: usize = FIXED_HEADER_MAX + REMAINING_LENGTH_MAX;

/// The longest text or binary field in bytes: a field has a length of two bytes (sections 1.5.4 and 1.5.6).
pub const FIELD_MAX: usize = u16::MAX as usize;

/// The maximum number of user properties of a packet. Each of them becomes a header line for subscribers over HTTP. The limit of the packet
/// size would allow hundreds of thousands, because a user property can be as short as five bytes.
pub const USER_PROPERTIES_MAX: usize = 128;

/// The maximum number of topic filters of a SUBSCRIBE or UNSUBSCRIBE. The server handles all filters of a packet at once, so this limit
/// bounds the work of one turn. A client with more filters sends several packets.
pub const FILTERS_MAX: usize = 1024;

/// The protocol level of a 3.1.1 bridge between brokers: level 4 with the top bit set. This bit is in no specification; bridges of
/// Mosquitto set it. A 5.0 bridge uses the options of its subscriptions instead.
pub(super) const V311_BRIDGE: u8 = 0x80 | Version::V311.level();

/// The MQTT version of a connection. Its CONNECT names the version (section 3.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol version 5.
    V5,
}

impl Version {
    /// The protocol level in CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }
}

/// The quality of service of a delivery (section 4.3). The value 3 is forbidden [MQTT-3.3.1-4].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum Qos {
    /// QoS 0.
    AtMostOnce = 0,
    /// QoS 1.
    AtLeastOnce = 1,
    /// QoS 2.
    ExactlyOnce = 2,
}

impl Qos {
    /// The number of this QoS.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// The kinds of control packets (section 2.1.2). 0 is forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum PacketType {
    /// Connection request, from the client.
    Connect = 1,
    /// Connect acknowledgment, from the server.
    ConnAck = 2,
    /// A message, in both directions.
    Publish = 3,
    /// Publish acknowledgment (QoS 1), in both directions.
    PubAck = 4,
    /// Publish received (QoS 2, step 1), in both directions.
    PubRec = 5,
    /// Publish release (QoS 2, step 2), in both directions.
    PubRel = 6,
    /// Publish complete (QoS 2, step 3), in both directions.
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
    /// Disconnect notification, from the client; in 5.0 in both directions.
    Disconnect = 14,
    /// Authentication exchange, in both directions, only in 5.0.
    Auth = 15,
}

impl PacketType {
    /// The fixed flags of this packet type (section 2.1.3). Only a PUBLISH has variable flags.
    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        }
    }
}

/// The identifier that links an acknowledgement to its packet (section 2.2.1).
pub type PacketId = NonZeroU16;
