//! Reason codes (MQTT 5.0 section 2.4): their names, the packets in which they may occur, and the matching return codes of 3.1.1.

use super::base::{PacketType, Qos};
use core::fmt;

/// The outcome of a request, or why a connection ends. Codes from 0x80 on are failures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
#[display("{}", self.name())]
pub struct ReasonCode(pub(super) u8);

/// Defines a constant for each line of the table in section 2.4.
macro_rules! reason_codes {
    ($($name:ident = $value:literal, $words:literal;)*) => {
        impl ReasonCode {
            $(#[doc = concat!($words, ".")] pub const $name: Self = Self($value);)*

            /// The name in the specification.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $words,)*
                    _ => "unknown",
                }
            }
        }
    };
}

reason_codes! {
    SUCCESS = 0x00, "Success";
    GRANTED_QOS_1 = 0x01, "Granted QoS 1";
    GRANTED_QOS_2 = 0x02, "Granted QoS 2";
    DISCONNECT_WITH_WILL = 0x04, "Disconnect with Will Message";
    NO_MATCHING_SUBSCRIBERS = 0x10, "No matching subscribers";
    NO_SUBSCRIPTION_EXISTED = 0x11, "No subscription existed";
    CONTINUE_AUTHENTICATION = 0x18, "Continue authentication";
    RE_AUTHENTICATE = 0x19, "Re-authenticate";
    UNSPECIFIED_ERROR = 0x80, "Unspecified error";
    MALFORMED_PACKET = 0x81, "Malformed Packet";
    PROTOCOL_ERROR = 0x82, "Protocol Error";
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83, "Implementation specific error";
    UNSUPPORTED_PROTOCOL_VERSION = 0x84, "Unsupported Protocol Version";
    CLIENT_IDENTIFIER_NOT_VALID = 0x85, "Client Identifier not valid";
    BAD_USER_NAME_OR_PASSWORD = 0x86, "Bad User Name or Password";
    NOT_AUTHORIZED = 0x87, "Not authorized";
    SERVER_UNAVAILABLE = 0x88, "Server unavailable";
    SERVER_BUSY = 0x89, "Server busy";
    BANNED = 0x8A, "Banned";
    SERVER_SHUTTING_DOWN = 0x8B, "Server shutting down";
    BAD_AUTHENTICATION_METHOD = 0x8C, "Bad authentication method";
    KEEP_ALIVE_TIMEOUT = 0x8D, "Keep Alive timeout";
    SESSION_TAKEN_OVER = 0x8E, "Session taken over";
    TOPIC_FILTER_INVALID = 0x8F, "Topic Filter invalid";
    TOPIC_NAME_INVALID = 0x90, "Topic Name invalid";
    PACKET_IDENTIFIER_IN_USE = 0x91, "Packet Identifier in use";
    PACKET_IDENTIFIER_NOT_FOUND = 0x92, "Packet Identifier not found";
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, "Receive Maximum exceeded";
    TOPIC_ALIAS_INVALID = 0x94, "Topic Alias invalid";
    PACKET_TOO_LARGE = 0x95, "Packet too large";
    MESSAGE_RATE_TOO_HIGH = 0x96, "Message rate too high";
    QUOTA_EXCEEDED = 0x97, "Quota exceeded";
    ADMINISTRATIVE_ACTION = 0x98, "Administrative action";
    PAYLOAD_FORMAT_INVALID = 0x99, "Payload format invalid";
    RETAIN_NOT_SUPPORTED = 0x9A, "Retain not supported";
    QOS_NOT_SUPPORTED = 0x9B, "QoS not supported";
    USE_ANOTHER_SERVER = 0x9C, "Use another server";
    SERVER_MOVED = 0x9D, "Server moved";
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E, "Shared Subscriptions not supported";
    CONNECTION_RATE_EXCEEDED = 0x9F, "Connection rate exceeded";
    MAXIMUM_CONNECT_TIME = 0xA0, "Maximum connect time";
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1, "Subscription Identifiers not supported";
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2, "Wildcard Subscriptions not supported";
}

impl ReasonCode {
    /// Normal disconnection: how [`SUCCESS`](Self::SUCCESS) is called in a DISCONNECT.
    pub const NORMAL_DISCONNECTION: Self = Self::SUCCESS;

    /// The byte on the wire.
    pub const fn value(self) -> u8 {
        self.0
    }

    /// Whether the code is a failure (section 2.4).
    pub const fn is_error(self) -> bool {
        self.0 >= 0x80
    }

    /// The code that grants this QoS to a subscription (section 3.9.3).
    pub const fn granted(qos: Qos) -> Self {
        Self(qos.bits())
    }

    /// The code with this value, if the specification allows it in this packet type: sections 3.2.2.2,
    /// 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1, 3.15.2.1.
    ///
    /// 0x8C is also allowed in DISCONNECT, although only the table of section 2.4 says so.
    pub const fn for_packet(value: u8, kind: PacketType) -> Option<Self> {
        let is_allowed = match kind {
            PacketType::ConnAck => matches!(
                value,
                0x00 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F
            ),
            PacketType::PubAck | PacketType::PubRec => matches!(
                value,
                0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99
            ),
            PacketType::PubRel | PacketType::PubComp => matches!(value, 0x00 | 0x92),
            PacketType::SubAck => matches!(
                value,
                0x00..=0x02 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2
            ),
            PacketType::UnsubAck => {
                matches!(value, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91)
            }
            PacketType::Disconnect => matches!(
                value,
                0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B..=0x90 | 0x93..=0xA2
            ),
            PacketType::Auth => matches!(value, 0x00 | 0x18 | 0x19),
            _ => false,
        };
        match is_allowed {
            true => Some(Self(value)),
            false => None,
        }
    }

    /// Whether a client may send the code in a DISCONNECT (section 3.14.2.1).
    pub const fn disconnect_from_client(self) -> bool {
        matches!(self.0, 0x00 | 0x04 | 0x80..=0x83 | 0x90 | 0x93..=0x99)
    }

    /// The CONNACK return code of 3.1.1 (its section 3.2.2.3) with the same meaning. If there is none, the server closes the connection
    /// without a CONNACK [MQTT-3.2.2-6 of 3.1.1].
    pub const fn connect_return_code(self) -> Option<u8> {
        match self.0 {
            0x00 => Some(0),
            0x84 => Some(1),
            0x85 => Some(2),
            0x80 | 0x83 | 0x88 | 0x89 | 0x97 | 0x9C | 0x9D | 0x9F => Some(3),
            0x86 => Some(4),
            0x87 | 0x8A | 0x8C => Some(5),
            _ => None,
        }
    }

    /// The code with the same meaning as a CONNACK return code of 3.1.1. `None` for reserved return codes.
    pub const fn from_connect_return_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::SUCCESS),
            1 => Some(Self::UNSUPPORTED_PROTOCOL_VERSION),
            2 => Some(Self::CLIENT_IDENTIFIER_NOT_VALID),
            3 => Some(Self::SERVER_UNAVAILABLE),
            4 => Some(Self::BAD_USER_NAME_OR_PASSWORD),
            5 => Some(Self::NOT_AUTHORIZED),
            _ => None,
        }
    }
}

impl fmt::Debug for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02X} {}", self.0, self.name())
    }
}
