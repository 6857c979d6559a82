//! MQTT 3.1.1 and 5.0 (OASIS, 2014 and 2019): every control packet, from bytes and to bytes.
//!
//! * [`sniff()`] says from the first bytes whether a connection speaks MQTT.
//! * [`fixed_header`] gives the length of the next packet, [`decode()`] its content. Nothing is copied or allocated: text,
//!   payload, properties and lists are borrowed from the bytes and checked when decoded.
//! * [`encode`] appends packets of both directions, [`PropertyBuf`] makes their properties.
//! * [`Filter`] takes a topic filter apart, `$share` included.
//!
//! Numbers in brackets are those of the normative statements, of 5.0 unless 3.1.1 is named.
//!
//! Invariants: no input panics; each refusal is an [`Error`] with the reason code to answer with; a decoded packet obeys
//! every rule that can be checked on the packet alone; an encoded packet decodes to the same again. Deliberately absent:
//! all that needs a memory of earlier packets (the first packet is CONNECT, packet ids in use, quotas, which aliases exist,
//! what the server offers), and limits on topics, see [`crate::topic`].

mod decode;
pub mod encode;
mod error;
mod filter;
mod header;
mod lists;
mod packet;
mod properties;
mod property;
mod property_buf;
mod property_get;
mod read;
mod reason;
mod sniff;
mod write;

pub use decode::decode;
pub use error::Error;
pub use filter::{Filter, FilterError};
pub use header::{FIXED_HEADER_MAX, Header, PacketType, fixed_header};
pub use lists::{Filters, ReasonCodes, TopicFilters};
pub use packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketId, Publish, RetainHandling, SubAck,
    Subscribe, SubscribeOptions, UnsubAck, Unsubscribe, Will,
};
pub use properties::Properties;
pub use property::Property;
pub use property_buf::{PropertyBuf, Unfit};
pub use property_get::{SubscriptionIdentifiers, UserProperties};
pub use reason::ReasonCode;
pub use sniff::{Sniff, sniff};

/// The longest remaining length that four bytes can encode, in bytes (section 2.1.4).
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;

/// The longest packet in bytes, its fixed header included.
pub const PACKET_BYTES_MAX: usize = FIXED_HEADER_MAX + REMAINING_LENGTH_MAX;

/// The longest text or binary field in bytes: its length has two bytes (sections 1.5.4 and 1.5.6).
pub const FIELD_MAX: usize = u16::MAX as usize;

/// User properties of one set. Each takes five bytes or more, so that the packet's limit alone would
/// let hundreds of thousands through, and every one becomes a header line for subscribers over HTTP.
pub const USER_PROPERTIES_MAX: usize = 128;

/// Topic filters of one SUBSCRIBE or UNSUBSCRIBE. The server handles a packet's subscriptions in one turn, which this
/// bounds; clients with more send several packets.
pub const FILTERS_MAX: usize = 1024;

/// Which specification a connection follows, by the protocol version of its CONNECT (section 3.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol version 5.
    V5,
}

impl Version {
    /// The byte in CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }
}

/// How surely a message is delivered (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// From its number. `None` for 3, which must not be used [MQTT-3.3.1-4], and above.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }

    /// Its number.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}
