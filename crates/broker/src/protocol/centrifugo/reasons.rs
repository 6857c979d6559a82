//! Maps the reasons of this server to Centrifugo's codes.

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};

use crate::base::reason::{Closed, Reason, Section};

/// The error code for a command that is refused for this reason.
pub fn error_of(reason: Reason) -> ErrorCode {
    match reason {
        Reason::Expired | Reason::TokenExpired => ErrorCode::TOKEN_EXPIRED,
        Reason::Reserved | Reason::NotCreated | Reason::Revoked => ErrorCode::PERMISSION_DENIED,
        Reason::NoTopic => ErrorCode::UNKNOWN_CHANNEL,
        Reason::VerifierUnreachable
        | Reason::VerifierBusy
        | Reason::OutcomeUnknown
        | Reason::Broken => ErrorCode::INTERNAL,
        Reason::TooManyNames
        | Reason::NamesTooLong
        | Reason::MessageTooLong
        | Reason::ChannelsOfUser => ErrorCode::LIMIT_EXCEEDED,
        // Such a shortage passes. The libraries try a temporary error again, and end the subscription after any other error.
        reason if matches!(reason.row().status, Some(429 | 503)) => ErrorCode::TOO_MANY_REQUESTS,
        reason => match reason.row().section {
            Section::Credentials | Section::Expiry => ErrorCode::UNAUTHORIZED,
            Section::NoCredentials | Section::NotGranted => ErrorCode::PERMISSION_DENIED,
            Section::Limits | Section::Shares => ErrorCode::LIMIT_EXCEEDED,
            _ => ErrorCode::BAD_REQUEST,
        },
    }
}

/// The code with which a connection ends for this reason; `None` if the connection stays.
pub(super) fn disconnect_of(reason: Reason) -> Option<Disconnect> {
    Some(match reason {
        // A subscription outlives its topic.
        Reason::Deleted | Reason::NotCreated | Reason::Displaced | Reason::Occupied => return None,
        Reason::Restart | Reason::Moved => Disconnect::SHUTDOWN,
        Reason::Silent | Reason::TooSlow => Disconnect::CONNECTION_CLOSED,
        Reason::Operator => Disconnect::FORCE_NO_RECONNECT,
        Reason::Expired | Reason::TokenExpired => Disconnect::EXPIRED,
        Reason::MemoryFull => Disconnect::SLOW,
        reason => match (reason.row().section, reason.row().closed) {
            (Section::Credentials | Section::Expiry, Closed::Refused) => Disconnect::INVALID_TOKEN,
            (Section::NoCredentials | Section::NotGranted, _) => Disconnect::PERMISSION_DENIED,
            (_, Closed::Refused) => Disconnect::BAD_REQUEST,
            (_, Closed::Full) => Disconnect::TOO_MANY_REQUESTS,
            (_, Closed::Slow) => Disconnect::SLOW,
            _ => Disconnect::SERVER_ERROR,
        },
    })
}
