//! Fuzz target for Pusher's protocol: the events of clients, and users.

use crore_wire::json::Fault;
use crore_wire::pusher::{Error, EventData, Request, User, write_event};
use serde_json::Value;

use crate::Input;

/// Events and parts of them.
pub const WORDS: &[&str] = &[
    "{\"event\":\"pusher:ping\",\"data\":{}}",
    "{\"event\":\"pusher:subscribe\",\"data\":{\"channel\":\"a\",\"auth\":\"k:0\"}}",
    "{\"event\":\"pusher:signin\",\"data\":{\"auth\":\"k:0\",\"user_data\":\"{}\"}}",
    "{\"event\":\"client-a\",\"channel\":\"a\",\"data\":1}",
    "\"event\"",
    "\"\\u0065vent\"",
    "\"channel\"",
    "\"data\"",
    "\"user_id\"",
    "\"user_info\"",
    "\"id\"",
    "null",
    ":",
    ",",
    "{",
    "}",
    "[",
    "\"\\ud83d\\ude00\"",
];

/// Reads an event. Checked: what is read is JSON to another parser, what is refused as not JSON is not, and an event with the texts that were read is
/// JSON with the same texts.
pub fn pusher(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let theirs = serde_json::from_slice::<Value>(input.bytes);
    match Request::read(input.bytes) {
        Ok(request) => {
            // The other parser rejects numbers that are too large for floating point, which JSON permits.
            let is_large = |error: &serde_json::Error| error.to_string().contains("out of range");
            assert!(theirs.as_ref().err().is_none_or(is_large));
            if let Request::ClientEvent {
                event,
                channel,
                data,
            } = request
            {
                let mut out = Vec::new();
                let text = EventData::Text(data.bytes());
                write_event(
                    event.as_bytes(),
                    Some(channel.as_bytes()),
                    text,
                    b"",
                    &mut out,
                );
                let written: Value = serde_json::from_slice(&out).expect("it is JSON");
                assert_eq!(written["event"], *event);
                assert_eq!(written["channel"], *channel);
                assert_eq!(
                    written["data"].as_str().map(str::as_bytes),
                    Some(data.bytes())
                );
            }
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let is_not_json = matches!(error, Error::Json(fault) if fault != Fault::TooDeep);
            // The data of an event may be JSON within a string. Then the string may be the part that is not JSON.
            let has_text = |theirs: &Value| theirs["data"].is_string();
            assert!(
                !is_not_json || theirs.as_ref().map_or(true, has_text),
                "{error} of what others read"
            );
        }
    }
    if let Ok(text) = std::str::from_utf8(input.bytes)
        && let Ok(user) = User::read_member(text)
    {
        assert!(!user.id.is_empty());
        assert!(user.info.is_empty() || crore_wire::json::is_json(user.info));
    }
}
