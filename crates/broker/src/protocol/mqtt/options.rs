//! Option bits of MQTT: of a connection, in [`Consumer::options`](crate::client::row::Consumer::options), and of a subscription, encoded as in the SUBSCRIBE
//! packet (MQTT 5.0 section 3.8.3).

use crore_wire::mqtt::{Qos, RetainHandling, SubscribeOptions};

use crate::client::row::{PROTOCOL_OPTIONS_SHIFT, Row};
use crate::protocol::encode::Encoding;

/// The connection uses MQTT 5.0, and not 3.1.1.
pub(crate) const V5: u32 = 1 << PROTOCOL_OPTIONS_SHIFT;
/// The packets are in the frames of a WebSocket.
pub(crate) const IN_FRAMES: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 1);
/// The first of the two bits with the QoS of the only subscription.
pub(crate) const QOS_SHIFT: u32 = PROTOCOL_OPTIONS_SHIFT + 2;
/// The client limits the size of packets.
pub(crate) const LIMITS_PACKETS: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 4);

/// No Local and Retain As Published among the options of a subscription.
pub(super) const NO_LOCAL: u8 = 0b100;
pub(super) const RETAIN_AS_PUBLISHED: u8 = 0b1000;
/// Retain Handling among the options of a subscription. It matters only when the subscription is made.
pub(super) const RETAIN_HANDLING: u8 = 0b11_0000;

/// The QoS among the options.
pub(super) fn qos(options: u8) -> u8 {
    options & 3
}

/// The QoS among the options, as an enum. No packet has a QoS of three [MQTT-3.8.3-5].
pub(super) fn qos_of(options: u8) -> Qos {
    Qos::from_repr(qos(options)).unwrap_or(Qos::AtMostOnce)
}

/// Decodes the options of a stored subscription.
pub(super) fn options_of(options: u8) -> SubscribeOptions {
    SubscribeOptions {
        max_qos: qos_of(options),
        no_local: options & NO_LOCAL != 0,
        retain_as_published: options & RETAIN_AS_PUBLISHED != 0,
        retain_handling: RetainHandling::DoNotSend,
    }
}

/// Whether the client can share its packets with others: QoS 0, and no limit for the size of packets.
pub(crate) fn is_plain(options: u32) -> bool {
    options >> QOS_SHIFT & 3 == 0 && options & LIMITS_PACKETS == 0
}

/// The encoding that all plain subscribers like this one share.
#[inline]
pub(crate) fn plain_encoding(row: &Row) -> Encoding {
    match (row.has_option(V5), row.has_option(IN_FRAMES)) {
        (false, false) => Encoding::MqttPacket,
        (true, false) => Encoding::Mqtt5Packet,
        (false, true) => Encoding::MqttFrame,
        (true, true) => Encoding::Mqtt5Frame,
    }
}
