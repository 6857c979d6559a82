//! The options of subscriptions, as in the list of a connection and on the wire (MQTT 5.0 section 3.8.3).

use crore_wire::mqtt::{Qos, RetainHandling, SubscribeOptions};

use crate::client::row::{PROTOCOL_OPTIONS_SHIFT, Row};
use crate::protocol::encode::Encoding;

/// MQTT 5.0, not 3.1.1.
pub(crate) const V5: u32 = 1 << PROTOCOL_OPTIONS_SHIFT;
/// MQTT within a WebSocket.
pub(crate) const FRAMED: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 1);
/// Where the QoS of the only subscription begins: two bits.
pub(crate) const QOS_SHIFT: u32 = PROTOCOL_OPTIONS_SHIFT + 2;
/// The MQTT client limits the size of packets.
pub(crate) const SMALL: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 4);

/// No Local and Retain As Published among the options of a subscription.
pub(super) const NO_LOCAL: u8 = 0b100;
pub(super) const RETAIN_AS_PUBLISHED: u8 = 0b1000;
/// Retain Handling among the options: it matters only when the subscription is made.
pub(super) const RETAIN_HANDLING: u8 = 0b11_0000;

/// The QoS among the options.
pub(super) fn qos(options: u8) -> u8 {
    options & 3
}

/// The same as an enum: no packet has a QoS of three [MQTT-3.8.3-5].
pub(super) fn qos_of(options: u8) -> Qos {
    Qos::from_repr(qos(options)).unwrap_or(Qos::AtMostOnce)
}

/// The options of a subscription as they stand in a list.
pub(super) fn options_of(bits: u8) -> SubscribeOptions {
    SubscribeOptions {
        max_qos: qos_of(bits),
        no_local: bits & NO_LOCAL != 0,
        retain_as_published: bits & RETAIN_AS_PUBLISHED != 0,
        retain_handling: RetainHandling::DoNotSend,
    }
}

/// Whether a subscription with these options gets the same packets as all plain ones.
pub(crate) fn is_plain(options: u32) -> bool {
    options >> QOS_SHIFT & 3 == 0 && options & SMALL == 0
}

/// The encoding of packets that plain subscribers with these options get.
#[inline]
pub(crate) fn packets_of(row: &Row) -> Encoding {
    match (row.has_option(V5), row.has_option(FRAMED)) {
        (false, false) => Encoding::Packet,
        (true, false) => Encoding::Packet5,
        (false, true) => Encoding::FramedPacket,
        (true, true) => Encoding::FramedPacket5,
    }
}
