//! What a connection does, by protocol. Each file is a part of the shard's turn: `http` reads
//! requests, `judge` says what their heads decide, `publish` and `subscribe` carry them out, `answer` writes the
//! responses, `access` asks whose requests they are, `filtered` is for subscribers by filter, `admission` turns away, `interest` tells who is
//! watched, `websocket` reads frames, `deadlines` watches the clock, `progress` what comes too slowly or has no room, `review` ends what settings that were read again grant no more.

pub(crate) mod access;
mod admission;
mod answer;
mod credit;
mod deadlines;
pub(crate) mod filtered;
mod http;
mod interest;
mod judge;
pub(crate) mod mqtt;
mod names;
pub(crate) mod progress;
mod publish;
mod review;
mod subscribe;
mod websocket;

pub use admission::shed;
pub use publish::check_fields;
pub use review::Review;

/// WebSocket close codes, as `docs/PROTOCOLS.md` lists them.
pub mod close_code {
    use crate::stats::Reason;

    /// The peer closed without a code.
    pub const NORMAL: u16 = 1000;
    /// A frame did not come to its end.
    pub const GOING_AWAY: u16 = 1001;
    /// The server stops, and another or its successor goes on.
    pub const RESTART: u16 = 1012;
    /// No room for a topic, or more publishes than there may be; try again later.
    pub const TRY_AGAIN: u16 = 1013;
    /// What the client came with is over: a new token, and it may connect again.
    pub const EXPIRED: u16 = 4401;
    /// The operator ended the connection.
    pub const OPERATOR: u16 = 4403;
    /// The topic was deleted.
    pub const DELETED: u16 = 4410;
    /// Messages since the client's position are lost.
    pub const GAP: u16 = 4412;
    /// A follower of interest read too slowly: what happened since is lost, and it may come for a new snapshot.
    pub const SLOW: u16 = 4413;

    /// What such an end is counted as.
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
