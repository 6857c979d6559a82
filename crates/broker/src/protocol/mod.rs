//! The protocols of connections. Each file is a part of the shard's turn: `http` reads
//! requests, `judge` decides by their heads, `publish` and `subscribe` carry them out, `answer` writes the
//! responses, `access` checks credentials and rights, `filtered` serves subscribers by filter, `admission` turns clients away,
//! `interest` serves followers of interest, `websocket` reads frames, `deadlines` watches the clock, `progress` ends inputs that
//! are too slow or have no room, `review` ends connections that new settings grant less to.

pub(crate) mod asking;
pub(crate) mod delivery;
pub(crate) mod encode;
pub(crate) mod ends;
pub(crate) mod front;
pub(crate) mod joining;
pub(crate) mod matches;
pub(crate) mod outbox;
pub(crate) mod relief;

pub(crate) mod access;
pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod credit;
pub(crate) mod deadlines;
pub(crate) mod filtered;
pub(crate) mod http;
pub(crate) mod interest;
pub(crate) mod judge;
pub(crate) mod mqtt;
pub(crate) mod names;
pub(crate) mod progress;
pub(crate) mod publish;
pub(crate) mod review;
pub(crate) mod run;
pub(crate) mod side;
pub(crate) mod subscribe;
pub(crate) mod websocket;

pub use admission::shed;

pub use publish::check_fields;
pub use review::Review;

/// WebSocket close codes, as `docs/PROTOCOLS.md` lists them.
pub mod close_code {
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
}
