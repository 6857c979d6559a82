//! Why the server ends a connection, and what HTTP and streams say then. `mqtt/ending.rs` has MQTT's reason codes.

use super::close_code;
use crate::base::access::Denied;

/// Why the server ends a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// A part of a request, frame or packet has come, and the rest comes too slowly.
    TooSlow,
    /// What the connection holds is needed for others. HTTP and streams say these words, MQTT the name of its reason code.
    NoRoom(&'static str),
    /// The client's credential has expired.
    Expired,
    /// New settings do not grant what the client has.
    Denied(Denied),
    /// The topic was deleted.
    Deleted,
    /// A later subscriber has taken the place of this long-poll.
    Displaced,
    /// The operator ended it.
    Operator,
    /// Clients are moved off this server.
    Restart,
}

impl Why {
    /// The status and the reason in the answer to a request; none where the protocols have answers of their own.
    pub(super) fn answer(self) -> Option<(u16, &'static str)> {
        match self {
            Why::TooSlow => Some((408, "the request took too long")),
            Why::NoRoom(words) => Some((503, words)),
            Why::Expired => Some((Denied::Expired.status(), Denied::Expired.reason())),
            Why::Denied(denied) => Some((denied.status(), denied.reason())),
            Why::Deleted => Some((410, "the topic was deleted")),
            Why::Displaced => Some((409, "a later subscriber took this place")),
            Why::Operator | Why::Restart => None,
        }
    }

    /// The close code and the reason at the end of a stream; none for what ends no stream.
    pub(super) fn close(self) -> Option<(u16, &'static str)> {
        match self {
            Why::TooSlow => Some((close_code::GOING_AWAY, "a frame took too long")),
            Why::NoRoom(words) => Some((close_code::TRY_AGAIN, words)),
            Why::Expired => Some((close_code::EXPIRED, Denied::Expired.reason())),
            Why::Denied(denied) => Some((close_code::EXPIRED, denied.reason())),
            Why::Deleted => Some((close_code::DELETED, "the topic was deleted")),
            Why::Displaced => None,
            Why::Operator => Some((close_code::OPERATOR, "the operator ended it")),
            Why::Restart => Some((close_code::RESTART, "the server restarts")),
        }
    }
}
