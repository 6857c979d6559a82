//! Maps the reasons of this server to the codes of Pusher's protocol.

use crore_wire::pusher::ErrorCode;

use crate::base::reason::{Closed, Reason, Section};

/// The code of the error for an event that is refused for this reason. `None` if Pusher has no code for it.
pub(super) fn code_of_refusal(reason: Reason) -> Option<ErrorCode> {
    match reason {
        Reason::PusherSignature => Some(ErrorCode::UNAUTHORIZED),
        Reason::ClientEvent => Some(ErrorCode::CLIENT_EVENT),
        reason => match reason.row().section {
            Section::PublishRates => Some(ErrorCode::CLIENT_EVENT),
            Section::Limits | Section::Shares => Some(ErrorCode::OVER_CAPACITY),
            _ => None,
        },
    }
}

/// The code with which a connection ends for this reason; `None` if the connection stays.
pub(super) fn close_code_of(reason: Reason) -> Option<ErrorCode> {
    Some(match reason {
        // A subscription outlives its topic.
        Reason::Deleted | Reason::NotCreated | Reason::Displaced | Reason::Occupied => return None,
        Reason::Restart | Reason::Moved => ErrorCode::RECONNECT,
        Reason::Operator => ErrorCode::UNAUTHORIZED,
        reason => match reason.row().closed {
            Closed::Slow | Closed::Timeout => ErrorCode::RECONNECT,
            Closed::Refused => ErrorCode::UNAUTHORIZED,
            _ => ErrorCode::OVER_CAPACITY,
        },
    })
}
