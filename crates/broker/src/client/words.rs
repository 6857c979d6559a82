//! The words of a refusal for a limit: the number that was met, the limit and its setting, so that they can stay within it.
//!
//! Numbers of limits on what all clients have together are the operator's to know, and are not told.

use alloc::borrow::Cow;
use alloc::format;

use crore_wire::topic::TopicError;

use crate::base::reason::Reason;
use crate::base::settings::Settings;

/// A reason, with the number of its limit where it limits what one client may do.
pub(crate) fn of_reason(reason: Reason, settings: &Settings) -> Cow<'static, str> {
    let limits = &settings.limits;
    let (number, unit) = match reason {
        Reason::TooManyNames => (limits.topics_per_connection, ""),
        Reason::MessageTooLong => (limits.message_bytes, " bytes"),
        Reason::BatchTooLong => (limits.batch_bytes, " bytes"),
        Reason::TokenTooLong => (settings.access.token_bytes, " bytes"),
        Reason::ConnectionsOfAddress => (limits.connections_per_address_max as usize, ""),
        Reason::SessionsOfAddress => (settings.mqtt.sessions_per_address_max as usize, ""),
        Reason::PublishRateOfAddress => (limits.publishes_per_address_per_s as usize, " a second"),
        Reason::TopicRateOfAddress => (limits.topics_per_address_per_s as usize, " a second"),
        Reason::LogOfAddress => (limits.log_bytes_per_address_max, " bytes"),
        _ => return reason.text().into(),
    };
    format!("{} ({number}{unit})", reason.text()).into()
}

/// Why a topic is refused.
pub(crate) fn of_topic(error: &TopicError) -> Cow<'static, str> {
    match error {
        TopicError::TooLong { len, max } => long_name("topic", *len, *max),
        other => other.reason().into(),
    }
}

/// A topic or a filter is too long.
pub(crate) fn long_name(what: &str, len: usize, max: usize) -> Cow<'static, str> {
    format!("the {what} has {len} bytes, more than limits.topic_bytes allows ({max})").into()
}

/// Data are too long for a message.
pub(crate) fn long_data(len: usize, max: usize) -> Cow<'static, str> {
    format!("the data has {len} bytes, more than limits.message_bytes allows ({max})").into()
}
