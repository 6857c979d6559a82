//! Which properties exist, the forms of their values, and where each may stand (MQTT 5.0 section 2.2.2).
//! Sets of them are [`Properties`](super::Properties).

use super::base::PacketType;
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
pub(super) enum Kind {
    Byte,
    Two,
    Four,
    Variable,
    Text,
    Binary,
    Pair,
}

impl Property {
    /// From its identifier. `None`: there is no such property.
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

    pub(super) const fn kind(self) -> Kind {
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

pub(super) const fn set(properties: &[Property]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < properties.len() {
        bits |= properties[at].bit();
        at += 1;
    }
    bits
}

/// The properties that the will of a CONNECT may have (section 3.1.3.2).
pub(super) const WILL: u64 = set(&[
    P::WillDelayInterval,
    P::PayloadFormatIndicator,
    P::MessageExpiryInterval,
    P::ContentType,
    P::ResponseTopic,
    P::CorrelationData,
    P::UserProperty,
]);

/// The properties that a packet of this type may have (table 2-4).
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

/// The properties that may come more than once in a packet of this type: user properties, and in PUBLISH the identifiers of
/// the subscriptions that match (section 3.3.2.3.8).
pub(super) const fn repeatable(kind: PacketType) -> u64 {
    match kind {
        PacketType::Publish => set(&[P::UserProperty, P::SubscriptionIdentifier]),
        _ => P::UserProperty.bit(),
    }
}
