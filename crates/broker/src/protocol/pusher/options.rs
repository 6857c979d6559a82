//! The options of a connection of Pusher's protocol, as bits of its row.

use crate::client::row::{PROTOCOL_OPTIONS_SHIFT, Row};

/// The first of the six bits with the number of the app. No request uses the upper three, and the lower three have no meaning after the upgrade.
pub(super) const APP_SHIFT: u32 = 17;
/// The mask of that number.
pub(super) const APP: u32 = 0x3f << APP_SHIFT;
/// The client has not answered the last ping.
pub(super) const AWAITS_PONG: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 6);

/// The client has begun a subscription at a position, so it is told the position after each message.
pub(super) const POSITIONS: u32 = 1 << (PROTOCOL_OPTIONS_SHIFT + 7);

/// The number of the connection's app.
pub(super) fn app_number(row: &Row) -> usize {
    ((row.consumer.options & APP) >> APP_SHIFT) as usize
}
