//! The options of a connection of Centrifugo's protocol, as bits of its row. The bits between them belong to MQTT's subscriptions, and every list of
//! subscriptions uses them.

use crore_wire::centrifugo::Format;

use crate::client::row::{PROTOCOL_OPTIONS_SHIFT, Row};
use crate::protocol::encode::Encoding;
use crate::protocol::http::options::{AS_EVENTS, UNCHUNKED, UPGRADE};

/// The client sends nothing after its connect command, which comes with the request or in the first frame. A bit that no request uses.
pub(super) const ONE_WAY: u32 = 1 << 20;
/// A subscription gets deltas, so that its messages are written for it alone. A bit that no request uses.
pub(super) const DELTA: u32 = 1 << 21;
/// The frames are protobuf, and not JSON.
pub(super) const PROTOBUF: u32 = 1 << PROTOCOL_OPTIONS_SHIFT;
/// The connect command has been carried out.
pub(super) const CONNECTED: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 5);
/// The client has not answered the last ping.
pub(super) const AWAITS_PONG: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 6);
/// Whether the last ping was sent in an odd interval.
pub(super) const ODD_PING: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 7);

/// The second by which the connect command must come. It is stored in the row's field for a subscription, since a client that has not connected has none.
pub(super) fn connect_until_s(row: &Row) -> u32 {
    row.consumer.member_place
}

/// The version of the server that clients are told.
pub(super) const VERSION: &str = concat!("crore ", env!("CARGO_PKG_VERSION"));

/// The format of the connection's frames.
#[inline]
pub(crate) fn format_of(row: &Row) -> Format {
    match row.has_option(PROTOBUF) {
        true => Format::Protobuf,
        false => Format::Json,
    }
}

/// The encoding of the messages that the connection gets.
#[inline]
pub(crate) fn pushes_of(row: &Row) -> Encoding {
    if row.has_option(ONE_WAY) {
        return match (
            row.has_option(UPGRADE),
            row.has_option(AS_EVENTS),
            row.has_option(UNCHUNKED),
        ) {
            (true, ..) => Encoding::OneWayFrame,
            (_, true, false) => Encoding::OneWayEvents,
            (_, true, true) => Encoding::OneWayEventsToEnd,
            (_, false, false) => Encoding::OneWayLines,
            (_, false, true) => Encoding::OneWayLinesToEnd,
        };
    }
    match (row.has_option(UPGRADE), row.has_option(PROTOBUF)) {
        (true, true) => Encoding::PushProtobuf,
        (true, false) => Encoding::PushJson,
        (false, is_protobuf) => match (
            is_protobuf,
            row.has_option(AS_EVENTS),
            row.has_option(UNCHUNKED),
        ) {
            (true, _, false) => Encoding::PushMessages,
            (true, _, true) => Encoding::PushMessagesToEnd,
            (false, true, false) => Encoding::PushEvents,
            (false, true, true) => Encoding::PushEventsToEnd,
            (false, false, false) => Encoding::PushLines,
            (false, false, true) => Encoding::PushLinesToEnd,
        },
    }
}

/// Whether the client posts its commands, because the server sends to it in the body of an answer.
pub(super) fn posts_commands(row: &Row) -> bool {
    !row.has_option(UPGRADE | ONE_WAY)
}
