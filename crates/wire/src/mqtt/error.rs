//! The errors of a single packet, each with its reason code.

use super::base::PacketType;
use super::filter::FilterError;
use super::reason::ReasonCode;

/// Why a packet was refused. The server closes the connection. It sends [`reason`](Error::reason) first, if the version and the state of
/// the connection allow that (MQTT 5.0 section 4.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.words())]
pub enum Error {
    /// Packet type 0, or 15 in 3.1.1 (section 2.1.2).
    PacketType,
    /// Flag bits that the packet type does not allow [MQTT-2.1.3-1].
    HeaderFlags,
    /// A QoS of 3 in PUBLISH [MQTT-3.3.1-4].
    Qos,
    /// DUP with QoS 0 [MQTT-3.3.1-2].
    Dup,
    /// A remaining length that is impossible for this packet type, or has more than four bytes (section 2.1.4).
    RemainingLength,
    /// A packet over the limit [MQTT-3.2.2-15].
    #[display("{}: {bytes} bytes, at most {max}", self.words())]
    TooLarge {
        /// Length of the packet in bytes, fixed header included.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The body ends within a field.
    Truncated,
    /// The body is longer than its fields.
    TrailingBytes,
    /// A variable byte integer with more than four bytes, or with more bytes than its value needs [MQTT-1.5.5-1].
    VariableByteInteger,
    /// Text that is not UTF-8 [MQTT-1.5.4-1].
    NotUtf8,
    /// Text that contains U+0000 [MQTT-1.5.4-2].
    Nul,
    /// A protocol name other than `MQTT` and `MQIsdp` [MQTT-3.1.2-1].
    ProtocolName,
    /// An unsupported protocol version [MQTT-3.1.2-2]: not 4, not 5, and not the level of a 3.1.1 bridge. The protocol name `MQIsdp` makes
    /// every version unsupported.
    #[display("{}: {_0}", self.words())]
    ProtocolVersion(u8),
    /// CONNECT flags that are contradictory or reserved [MQTT-3.1.2-3, -11, -12, -13; 3.1.1: -22].
    ConnectFlags,
    /// Reserved bits in the flags of CONNACK [MQTT-3.2.2-1].
    ConnAckFlags,
    /// A refusing CONNACK with Session Present set [MQTT-3.2.2-6].
    SessionPresent,
    /// A packet identifier of zero [MQTT-2.2.1-3].
    PacketId,
    /// A topic name that is empty or contains a wildcard [MQTT-3.3.2-2, MQTT-3.3.2-14, MQTT-4.7.3-1].
    TopicName,
    /// PUBLISH without a topic name and without an alias (section 3.3.2.1).
    TopicNameMissing,
    /// Topic alias 0 [MQTT-3.3.2-8].
    TopicAlias,
    /// An invalid topic filter (section 4.7, section 4.8.2).
    Filter(FilterError),
    /// SUBSCRIBE or UNSUBSCRIBE without a filter [MQTT-3.8.3-2, MQTT-3.10.3-2], SUBACK without a code.
    NoFilters,
    /// More than [`FILTERS_MAX`](super::FILTERS_MAX) filters.
    TooManyFilters,
    /// Reserved bits in the options of a subscription [MQTT-3.8.3-5].
    SubscribeReserved,
    /// A maximum QoS or a retain handling of 3 (section 3.8.3.1).
    SubscribeOptions,
    /// No Local on a shared subscription [MQTT-3.8.3-4].
    NoLocalShared,
    /// A property that does not exist, or that this packet may not have (section 2.2.2.2). The number is its identifier.
    #[display("{}: 0x{_0:02X}", self.words())]
    Property(u8),
    /// A property that occurs twice but may occur only once.
    #[display("{}: 0x{_0:02X}", self.words())]
    DuplicateProperty(u8),
    /// A forbidden value of a property.
    #[display("{}: 0x{_0:02X}", self.words())]
    PropertyValue(u8),
    /// More than [`USER_PROPERTIES_MAX`](super::USER_PROPERTIES_MAX) user properties.
    TooManyUserProperties,
    /// Authentication data without a method, or AUTH without a method (sections 3.1.2.11.10, 3.15.2.2.2).
    AuthenticationMethod,
    /// A reason code that this packet may not have [MQTT-3.2.2-8, MQTT-3.4.2-1, MQTT-3.14.2-1 and similar].
    #[display("{}: 0x{_0:02X}", self.words())]
    ReasonCode(u8),
    /// A packet, or a field of a packet, that only servers may send (section 2.1.2, [MQTT-3.3.4-6, MQTT-3.14.2-2]).
    #[display("{}: {_0:?}", self.words())]
    NotFromClient(PacketType),
}

impl Error {
    /// The reason code for CONNACK or DISCONNECT. If the specification names none for the error, it is the nearest code.
    pub const fn reason(&self) -> ReasonCode {
        match self {
            Self::TooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
            Self::ProtocolName | Self::ProtocolVersion(_) => {
                ReasonCode::UNSUPPORTED_PROTOCOL_VERSION
            }
            Self::TopicName => ReasonCode::TOPIC_NAME_INVALID,
            Self::TopicAlias => ReasonCode::TOPIC_ALIAS_INVALID,
            Self::Filter(_) => ReasonCode::TOPIC_FILTER_INVALID,
            Self::TooManyFilters | Self::TooManyUserProperties => ReasonCode::QUOTA_EXCEEDED,
            Self::PacketType
            | Self::HeaderFlags
            | Self::Qos
            | Self::Dup
            | Self::RemainingLength
            | Self::Truncated
            | Self::TrailingBytes
            | Self::VariableByteInteger
            | Self::NotUtf8
            | Self::Nul
            | Self::ConnectFlags
            | Self::ConnAckFlags
            | Self::SubscribeReserved
            | Self::Property(_) => ReasonCode::MALFORMED_PACKET,
            Self::SessionPresent
            | Self::PacketId
            | Self::TopicNameMissing
            | Self::NoFilters
            | Self::SubscribeOptions
            | Self::NoLocalShared
            | Self::DuplicateProperty(_)
            | Self::PropertyValue(_)
            | Self::AuthenticationMethod
            | Self::ReasonCode(_)
            | Self::NotFromClient(_) => ReasonCode::PROTOCOL_ERROR,
        }
    }

    /// Words for a reason string and the log.
    pub const fn words(&self) -> &'static str {
        match self {
            Self::PacketType => "the packet type does not exist",
            Self::HeaderFlags => "the flags are not those of the packet type",
            Self::Qos => "the QoS is 3",
            Self::Dup => "DUP is set with QoS 0",
            Self::RemainingLength => "the remaining length is invalid",
            Self::TooLarge { .. } => "the packet is too large",
            Self::Truncated => "the packet ends within a field",
            Self::TrailingBytes => "the packet goes on after its last field",
            Self::VariableByteInteger => "a variable byte integer is too long",
            Self::NotUtf8 => "text is not UTF-8",
            Self::Nul => "text has a null character",
            Self::ProtocolName => "the protocol name is not MQTT",
            Self::ProtocolVersion(_) => "the protocol version is neither 4 nor 5",
            Self::ConnectFlags => "the connect flags are invalid",
            Self::ConnAckFlags => "reserved acknowledge flags are set",
            Self::SessionPresent => "a refusal says that a session is present",
            Self::PacketId => "the packet identifier is zero",
            Self::TopicName => "the topic name is empty or has a wildcard",
            Self::TopicNameMissing => "there is neither a topic name nor an alias",
            Self::TopicAlias => "the topic alias is zero",
            Self::Filter(error) => error.words(),
            Self::NoFilters => "there is no topic filter or code",
            Self::TooManyFilters => "there are too many topic filters",
            Self::SubscribeReserved => "reserved subscription options are set",
            Self::SubscribeOptions => "a subscription option has the value 3",
            Self::NoLocalShared => "No Local is set on a shared subscription",
            Self::Property(_) => "a property does not belong into the packet",
            Self::DuplicateProperty(_) => "a property came twice",
            Self::PropertyValue(_) => "a property has an invalid value",
            Self::TooManyUserProperties => "there are too many user properties",
            Self::AuthenticationMethod => "the authentication method is missing",
            Self::ReasonCode(_) => "the reason code does not belong into the packet",
            Self::NotFromClient(_) => "only servers may send this",
        }
    }
}

impl core::error::Error for Error {}
