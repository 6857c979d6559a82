//! WebSocket close codes, as `docs/PROTOCOLS.md` lists them.

use crate::budget::stats::Reason;

/// The peer closed without a code.
pub const NORMAL: u16 = 1000;
/// A frame was not completed in time.
pub const GOING_AWAY: u16 = 1001;
/// The server stops; the client may connect to another server or to its successor.
pub const RESTART: u16 = 1012;
/// No room for a topic, or the rate limit for publishes is reached; try again later.
pub const TRY_AGAIN: u16 = 1013;
/// The client's credential has expired: it may connect again with a new one.
pub const EXPIRED: u16 = 4401;
/// The operator ended the connection.
pub const OPERATOR: u16 = 4403;
/// The topic was deleted.
pub const DELETED: u16 = 4410;
/// Messages since the client's position are lost.
pub const GAP: u16 = 4412;
/// A follower of interest read too slowly: events are lost, and it may connect again for a new snapshot.
pub const SLOW: u16 = 4413;

/// The reason that such an end is counted under.
pub(crate) fn reason(code: u16) -> Reason {
    match code {
        NORMAL => Reason::Peer,
        GOING_AWAY => Reason::Timeout,
        TRY_AGAIN => Reason::Full,
        DELETED => Reason::Deleted,
        OPERATOR | RESTART => Reason::Operator,
        GAP | SLOW => Reason::Slow,
        _ => Reason::Refused,
    }
}
