//! The table of properties (MQTT 5.0 section 2.2.2): for each property the type and the bounds of its value, and the packets that may have
//! it. [`Properties`](super::Properties) are the properties of one packet.

use core::ops::RangeInclusive;

use super::base::{FIELD_MAX, PacketType};
use Property as P;

/// The type of a value (section 1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    Byte,
    Two,
    Four,
    Variable,
    Text,
    Binary,
    Pair,
}

/// Where a property may occur, as bits: the will of a CONNECT, and each packet type.
#[allow(dead_code)] // PINGREQ and PINGRESP have none
enum Place {
    Will = 1,
    Connect = 1 << PacketType::Connect as u8,
    ConnAck = 1 << PacketType::ConnAck as u8,
    Publish = 1 << PacketType::Publish as u8,
    PubAck = 1 << PacketType::PubAck as u8,
    PubRec = 1 << PacketType::PubRec as u8,
    PubRel = 1 << PacketType::PubRel as u8,
    PubComp = 1 << PacketType::PubComp as u8,
    Subscribe = 1 << PacketType::Subscribe as u8,
    SubAck = 1 << PacketType::SubAck as u8,
    Unsubscribe = 1 << PacketType::Unsubscribe as u8,
    UnsubAck = 1 << PacketType::UnsubAck as u8,
    Disconnect = 1 << PacketType::Disconnect as u8,
    Auth = 1 << PacketType::Auth as u8,
}

/// One property on each line: identifier, name, type, bounds (of a number's value, or of a field's length in bytes), and where it may
/// occur.
macro_rules! properties {
    ($($id:literal $name:ident: $value_type:ident $bounds:expr, $($place:ident)*;)*) => {
        /// A property's identifier (section 2.2.2.2, table 2-4).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)] // the specification has these names
        pub enum Property {
            $($name = $id,)*
        }

        impl Property {
            /// The property with this identifier, if there is one.
            pub const fn from_id(id: u8) -> Option<Self> {
                Some(match id {
                    $($id => P::$name,)*
                    _ => return None,
                })
            }

            pub(super) const fn value_type(self) -> ValueType {
                match self {
                    $(P::$name => ValueType::$value_type,)*
                }
            }

            /// The bounds of a number's value, or of a field's length in bytes.
            pub(super) const fn bounds(self) -> RangeInclusive<u32> {
                match self {
                    $(P::$name => $bounds,)*
                }
            }
        }

        /// The properties that may occur in one of these packets, one bit for each identifier.
        const fn properties_at(place: u32) -> u64 {
            let mut bits = 0;
            $(if (0 $(| Place::$place as u32)*) & place != 0 {
                bits |= P::$name.bit();
            })*
            bits
        }
    };
}

const FLAG: RangeInclusive<u32> = 0..=1;
const NUMBER: RangeInclusive<u32> = 0..=u32::MAX;
const FROM_1: RangeInclusive<u32> = 1..=u32::MAX;
const FIELD: RangeInclusive<u32> = 0..=FIELD_MAX as u32;
/// The bounds for a field that must not be empty.
const NONEMPTY_FIELD: RangeInclusive<u32> = 1..=FIELD_MAX as u32;

#[rustfmt::skip]
properties! {
    0x01 PayloadFormatIndicator: Byte FLAG, Will Publish;
    0x02 MessageExpiryInterval: Four NUMBER, Will Publish;
    0x03 ContentType: Text FIELD, Will Publish;
    0x08 ResponseTopic: Text NONEMPTY_FIELD, Will Publish;
    0x09 CorrelationData: Binary FIELD, Will Publish;
    0x0B SubscriptionIdentifier: Variable FROM_1, Publish Subscribe;
    0x11 SessionExpiryInterval: Four NUMBER, Connect ConnAck Disconnect;
    0x12 AssignedClientIdentifier: Text FIELD, ConnAck;
    0x13 ServerKeepAlive: Two NUMBER, ConnAck;
    0x15 AuthenticationMethod: Text FIELD, Connect ConnAck Auth;
    0x16 AuthenticationData: Binary FIELD, Connect ConnAck Auth;
    0x17 RequestProblemInformation: Byte FLAG, Connect;
    0x18 WillDelayInterval: Four NUMBER, Will;
    0x19 RequestResponseInformation: Byte FLAG, Connect;
    0x1A ResponseInformation: Text FIELD, ConnAck;
    0x1C ServerReference: Text FIELD, ConnAck Disconnect;
    0x1F ReasonString: Text FIELD, ConnAck PubAck PubRec PubRel PubComp SubAck UnsubAck Disconnect Auth;
    0x21 ReceiveMaximum: Two FROM_1, Connect ConnAck;
    0x22 TopicAliasMaximum: Two NUMBER, Connect ConnAck;
    0x23 TopicAlias: Two FROM_1, Publish;
    0x24 MaximumQos: Byte FLAG, ConnAck;
    0x25 RetainAvailable: Byte FLAG, ConnAck;
    0x26 UserProperty: Pair FIELD, Will Connect ConnAck Publish PubAck PubRec PubRel PubComp Subscribe SubAck Unsubscribe UnsubAck Disconnect Auth;
    0x27 MaximumPacketSize: Four FROM_1, Connect ConnAck;
    0x28 WildcardSubscriptionAvailable: Byte FLAG, ConnAck;
    0x29 SubscriptionIdentifierAvailable: Byte FLAG, ConnAck;
    0x2A SharedSubscriptionAvailable: Byte FLAG, ConnAck;
}

impl Property {
    /// The identifier of the property.
    pub const fn id(self) -> u8 {
        self as u8
    }

    pub(super) const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// The properties that the will of a CONNECT may have (section 3.1.3.2).
pub(super) const WILL: u64 = properties_at(Place::Will as u32);

/// [`allowed`] for each packet type.
const ALLOWED: [u64; 16] = {
    let mut allowed = [0; 16];
    let mut kind = 1;
    while kind < allowed.len() {
        allowed[kind] = properties_at(1 << kind);
        kind += 1;
    }
    allowed
};

/// The properties that a packet of this type may have (table 2-4).
pub(super) const fn allowed(kind: PacketType) -> u64 {
    ALLOWED[kind as usize]
}

/// The properties that may occur more than once in a packet of this type: user properties, and in a PUBLISH the identifiers of all matching
/// subscriptions (section 3.3.2.3.8).
pub(super) const fn repeatable(kind: PacketType) -> u64 {
    match kind {
        PacketType::Publish => P::UserProperty.bit() | P::SubscriptionIdentifier.bit(),
        _ => P::UserProperty.bit(),
    }
}
