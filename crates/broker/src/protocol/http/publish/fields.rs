//! Reads the fields of a message from the head of its request.

use alloc::borrow::Cow;
use alloc::format;

use crore_wire::http::head::Head;

use crate::base::position;
use crate::mail::fields::check_idempotency_key;
use crate::protocol::http::suggestions::quoted;

/// The content type of a form whose fields are parts of the body.
const PARTS: &[u8] = b"multipart/form-data";

/// The content type of the message. That of forms counts as none: `curl -d` sends it with any data, and this server reads no forms.
pub(super) fn content_type<'h>(head: &'h Head<'_>) -> Result<&'h [u8], &'static str> {
    let header_value = head.header("content-type").unwrap_or_default();
    let is_of_parts = |begin: &[u8]| begin.eq_ignore_ascii_case(PARTS);
    match header_value {
        // Subscribers would get the boundaries between the parts too, which nobody wants.
        header_value if header_value.get(..PARTS.len()).is_some_and(is_of_parts) => Err(
            "the parts of a form (multipart/form-data, curl -F) are not read: send the message alone (curl --data-binary @FILE)",
        ),
        header_value if header_value.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") => {
            Ok(b"")
        }
        header_value => Ok(header_value),
    }
}

/// The time to live of the message in seconds, if the request names one. Larger numbers count as the largest one of 32 bits.
pub(super) fn ttl_s(head: &Head<'_>) -> Result<Option<u32>, Cow<'static, str>> {
    let Some(text) = head.header("crore-ttl") else {
        return Ok(None);
    };
    let seconds = position::parse_decimal(text).ok_or_else(|| {
        let value = quoted(text);
        format!("Crore-TTL takes a whole number of seconds, in digits, and not {value}")
    })?;
    Ok(Some(u32::try_from(seconds).unwrap_or(u32::MAX)))
}

/// Whether the message is to be the topic's retained one.
pub(super) fn retain(head: &Head<'_>) -> Result<bool, Cow<'static, str>> {
    match head.header("crore-retain") {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(value) => {
            let value = quoted(value);
            Err(format!("Crore-Retain takes true or false, and not {value}").into())
        }
    }
}

/// The request's idempotency key, if it has one. In the draft (section 2.1) it is a string in quotes, but most clients send no
/// quotes.
pub(super) fn idempotency_key<'h>(head: &'h Head<'_>) -> Result<Option<&'h [u8]>, &'static str> {
    let Some(text) = head.header("idempotency-key") else {
        return Ok(None);
    };
    let bare = text.strip_prefix(b"\"").and_then(|t| t.strip_suffix(b"\""));
    let key = bare.unwrap_or(text);
    check_idempotency_key(key).map(|()| Some(key))
}
