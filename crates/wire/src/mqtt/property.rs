//! Properties (MQTT 5.0 section 2.2.2): which exist, where each may stand, and a checked view of a set.
//!
//! Invariant: a [`Properties`] holds only what passed the checks of its packet, so that its getters cannot
//! fail. It knows which properties it has; asking for an absent one reads nothing.

use super::read::Reader;
use super::{Error, PacketType, USER_PROPERTIES_MAX};
use Kind::{Binary, Byte, Four, Pair, Text, Two, Variable};
use Property as P;

/// A property's identifier (section 2.2.2.2, table 2-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the specification's
pub enum Property {
    PayloadFormatIndicator = 0x01,
    MessageExpiryInterval = 0x02,
    ContentType = 0x03,
    ResponseTopic = 0x08,
    CorrelationData = 0x09,
    SubscriptionIdentifier = 0x0B,
    SessionExpiryInterval = 0x11,
    AssignedClientIdentifier = 0x12,
    ServerKeepAlive = 0x13,
    AuthenticationMethod = 0x15,
    AuthenticationData = 0x16,
    RequestProblemInformation = 0x17,
    WillDelayInterval = 0x18,
    RequestResponseInformation = 0x19,
    ResponseInformation = 0x1A,
    ServerReference = 0x1C,
    ReasonString = 0x1F,
    ReceiveMaximum = 0x21,
    TopicAliasMaximum = 0x22,
    TopicAlias = 0x23,
    MaximumQos = 0x24,
    RetainAvailable = 0x25,
    UserProperty = 0x26,
    MaximumPacketSize = 0x27,
    WildcardSubscriptionAvailable = 0x28,
    SubscriptionIdentifierAvailable = 0x29,
    SharedSubscriptionAvailable = 0x2A,
}

/// The form of a value (section 1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Byte,
    Two,
    Four,
    Variable,
    Text,
    Binary,
    Pair,
}

impl Property {
    /// From its identifier. `None`: there is none such.
    pub const fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            0x01 => P::PayloadFormatIndicator,
            0x02 => P::MessageExpiryInterval,
            0x03 => P::ContentType,
            0x08 => P::ResponseTopic,
            0x09 => P::CorrelationData,
            0x0B => P::SubscriptionIdentifier,
            0x11 => P::SessionExpiryInterval,
            0x12 => P::AssignedClientIdentifier,
            0x13 => P::ServerKeepAlive,
            0x15 => P::AuthenticationMethod,
            0x16 => P::AuthenticationData,
            0x17 => P::RequestProblemInformation,
            0x18 => P::WillDelayInterval,
            0x19 => P::RequestResponseInformation,
            0x1A => P::ResponseInformation,
            0x1C => P::ServerReference,
            0x1F => P::ReasonString,
            0x21 => P::ReceiveMaximum,
            0x22 => P::TopicAliasMaximum,
            0x23 => P::TopicAlias,
            0x24 => P::MaximumQos,
            0x25 => P::RetainAvailable,
            0x26 => P::UserProperty,
            0x27 => P::MaximumPacketSize,
            0x28 => P::WildcardSubscriptionAvailable,
            0x29 => P::SubscriptionIdentifierAvailable,
            0x2A => P::SharedSubscriptionAvailable,
            _ => return None,
        })
    }

    /// Its identifier.
    pub const fn id(self) -> u8 {
        self as u8
    }

    pub(super) const fn bit(self) -> u64 {
        1 << self as u8
    }

    const fn kind(self) -> Kind {
        match self {
            P::PayloadFormatIndicator
            | P::RequestProblemInformation
            | P::RequestResponseInformation
            | P::MaximumQos
            | P::RetainAvailable
            | P::WildcardSubscriptionAvailable
            | P::SubscriptionIdentifierAvailable
            | P::SharedSubscriptionAvailable => Byte,
            P::ServerKeepAlive | P::ReceiveMaximum | P::TopicAliasMaximum | P::TopicAlias => Two,
            P::MessageExpiryInterval
            | P::SessionExpiryInterval
            | P::WillDelayInterval
            | P::MaximumPacketSize => Four,
            P::SubscriptionIdentifier => Variable,
            P::ContentType
            | P::ResponseTopic
            | P::AssignedClientIdentifier
            | P::AuthenticationMethod
            | P::ResponseInformation
            | P::ServerReference
            | P::ReasonString => Text,
            P::CorrelationData | P::AuthenticationData => Binary,
            P::UserProperty => Pair,
        }
    }
}

const fn set(properties: &[Property]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < properties.len() {
        bits |= properties[at].bit();
        at += 1;
    }
    bits
}

/// What the will of a CONNECT may have (section 3.1.3.2).
pub(super) const WILL: u64 = set(&[
    P::WillDelayInterval,
    P::PayloadFormatIndicator,
    P::MessageExpiryInterval,
    P::ContentType,
    P::ResponseTopic,
    P::CorrelationData,
    P::UserProperty,
]);

/// What a packet of this type may have (table 2-4).
pub(super) const fn allowed(kind: PacketType) -> u64 {
    match kind {
        PacketType::Connect => set(&[
            P::SessionExpiryInterval,
            P::ReceiveMaximum,
            P::MaximumPacketSize,
            P::TopicAliasMaximum,
            P::RequestResponseInformation,
            P::RequestProblemInformation,
            P::UserProperty,
            P::AuthenticationMethod,
            P::AuthenticationData,
        ]),
        PacketType::ConnAck => set(&[
            P::SessionExpiryInterval,
            P::ReceiveMaximum,
            P::MaximumQos,
            P::RetainAvailable,
            P::MaximumPacketSize,
            P::AssignedClientIdentifier,
            P::TopicAliasMaximum,
            P::ReasonString,
            P::UserProperty,
            P::WildcardSubscriptionAvailable,
            P::SubscriptionIdentifierAvailable,
            P::SharedSubscriptionAvailable,
            P::ServerKeepAlive,
            P::ResponseInformation,
            P::ServerReference,
            P::AuthenticationMethod,
            P::AuthenticationData,
        ]),
        PacketType::Publish => set(&[
            P::PayloadFormatIndicator,
            P::MessageExpiryInterval,
            P::TopicAlias,
            P::ResponseTopic,
            P::CorrelationData,
            P::UserProperty,
            P::SubscriptionIdentifier,
            P::ContentType,
        ]),
        PacketType::PubAck
        | PacketType::PubRec
        | PacketType::PubRel
        | PacketType::PubComp
        | PacketType::SubAck
        | PacketType::UnsubAck => set(&[P::ReasonString, P::UserProperty]),
        PacketType::Subscribe => set(&[P::SubscriptionIdentifier, P::UserProperty]),
        PacketType::Unsubscribe => set(&[P::UserProperty]),
        PacketType::PingReq | PacketType::PingResp => 0,
        PacketType::Disconnect => set(&[
            P::SessionExpiryInterval,
            P::ReasonString,
            P::UserProperty,
            P::ServerReference,
        ]),
        PacketType::Auth => set(&[
            P::AuthenticationMethod,
            P::AuthenticationData,
            P::ReasonString,
            P::UserProperty,
        ]),
    }
}

/// What may come more than once in a packet of this type: user properties, and in PUBLISH the identifiers
/// of the subscriptions that match (section 3.3.2.3.8).
pub(super) const fn repeatable(kind: PacketType) -> u64 {
    match kind {
        PacketType::Publish => set(&[P::UserProperty, P::SubscriptionIdentifier]),
        _ => P::UserProperty.bit(),
    }
}

/// A checked set of properties. 3.1.1 has none: there it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    pub(super) bytes: &'a [u8],
    /// Which there are, as bits by identifier.
    pub(super) seen: u64,
}

impl<'a> Properties<'a> {
    /// None at all.
    pub const NONE: Properties<'static> = Properties {
        bytes: &[],
        seen: 0,
    };

    /// Reads the property length and checks what it holds.
    pub(super) fn read(
        reader: &mut Reader<'a>,
        allowed: u64,
        repeatable: u64,
    ) -> Result<Self, Error> {
        let len = reader.variable()?;
        let bytes = reader.take(len as usize)?;
        let mut seen = 0;
        let mut users = 0;
        let mut rest = Reader(bytes);
        while !rest.is_empty() {
            let id = rest.byte()?;
            let property = match Property::from_id(id) {
                Some(property) if allowed & property.bit() != 0 => property,
                _ => return Err(Error::Property(id)),
            };
            if seen & property.bit() & !repeatable != 0 {
                return Err(Error::DuplicateProperty(id));
            }
            seen |= property.bit();
            check_value(property, &mut rest)?;
            users += usize::from(property == P::UserProperty);
            if users > USER_PROPERTIES_MAX {
                return Err(Error::TooManyUserProperties);
            }
        }
        if seen & set(&[P::AuthenticationMethod, P::AuthenticationData])
            == P::AuthenticationData.bit()
        {
            return Err(Error::AuthenticationMethod);
        }
        Ok(Properties { bytes, seen })
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.seen == 0
    }

    /// Whether this one is there.
    pub const fn has(&self, property: Property) -> bool {
        self.seen & property.bit() != 0
    }

    /// The properties in their order, each with all of its bytes, identifier included.
    pub fn iter(&self) -> impl Iterator<Item = (Property, &'a [u8])> + Clone + use<'a> {
        let mut rest = self.bytes;
        core::iter::from_fn(move || {
            let &id = rest.first()?;
            let property = Property::from_id(id).expect("checked");
            let (item, after) = rest.split_at(1 + value_bytes(property, &rest[1..]));
            rest = after;
            Some((property, item))
        })
    }

    /// The value of the first `property`.
    fn find(&self, property: Property) -> Option<Reader<'a>> {
        if !self.has(property) {
            return None;
        }
        { *self }.advance(property)
    }

    /// Goes on after the next `property`, whose value it returns.
    pub(super) fn advance(&mut self, property: Property) -> Option<Reader<'a>> {
        loop {
            let &id = self.bytes.first()?;
            let found = Property::from_id(id).expect("checked");
            let (item, rest) = self
                .bytes
                .split_at(1 + value_bytes(found, &self.bytes[1..]));
            self.bytes = rest;
            if found == property {
                return Some(Reader(&item[1..]));
            }
        }
    }

    pub(super) fn byte(&self, property: Property) -> Option<u8> {
        Some(self.find(property)?.byte().expect("checked"))
    }

    pub(super) fn two(&self, property: Property) -> Option<u16> {
        Some(self.find(property)?.two().expect("checked"))
    }

    pub(super) fn four(&self, property: Property) -> Option<u32> {
        Some(self.find(property)?.four().expect("checked"))
    }

    pub(super) fn text(&self, property: Property) -> Option<&'a str> {
        Some(self.find(property)?.text().expect("checked"))
    }

    pub(super) fn binary(&self, property: Property) -> Option<&'a [u8]> {
        Some(self.find(property)?.binary().expect("checked"))
    }
}

/// Reads past a value and checks it.
fn check_value(property: Property, rest: &mut Reader<'_>) -> Result<(), Error> {
    let valid = match property.kind() {
        Byte => rest.byte()? <= 1,
        Two => {
            let value = rest.two()?;
            match property {
                P::TopicAlias if value == 0 => return Err(Error::TopicAlias),
                P::ReceiveMaximum => value != 0,
                _ => true,
            }
        }
        Four => rest.four()? != 0 || property != P::MaximumPacketSize,
        Variable => rest.variable()? != 0,
        Text => {
            let value = rest.text()?;
            if property == P::ResponseTopic && !is_topic_name(value) {
                return Err(Error::TopicName);
            }
            true
        }
        Binary => {
            rest.binary()?;
            true
        }
        Pair => {
            rest.text()?;
            rest.text()?;
            true
        }
    };
    match valid {
        true => Ok(()),
        false => Err(Error::PropertyValue(property.id())),
    }
}

/// Bytes of the value at the front of `rest`, which was checked.
fn value_bytes(property: Property, rest: &[u8]) -> usize {
    let field = |rest: &[u8]| 2 + usize::from(u16::from_be_bytes([rest[0], rest[1]]));
    match property.kind() {
        Byte => 1,
        Two => 2,
        Four => 4,
        Variable => 1 + rest.iter().take_while(|&byte| byte & 0x80 != 0).count(),
        Text | Binary => field(rest),
        Pair => {
            let name = field(rest);
            name + field(&rest[name..])
        }
    }
}

/// Whether text may name a topic (section 4.7): not empty, no wildcard.
pub(super) fn is_topic_name(text: &str) -> bool {
    !text.is_empty() && memchr::memchr2(b'+', b'#', text.as_bytes()).is_none()
}
