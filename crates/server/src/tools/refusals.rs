//! A server's words about a failure, as they are shown.

use crore_broker::SEND_A_TOKEN;
use serde_json::Value;

use super::tables::plain;
use crate::http_client::http::Head;
use crate::http_client::server::TOKEN_VARIABLE;

/// How much of a server's reason is shown, in characters.
const MAX_REASON_CHARS: usize = 300;

/// Why a data port refuses: its status and words, and where a token goes if it wants one.
pub fn refusal(head: &Head, body: &[u8]) -> String {
    let tip = match head.status {
        401 => format!("; give a token with --token or in {TOKEN_VARIABLE} (crore token mint)"),
        _ => String::new(),
    };
    let why = reason(body);
    // A user of this program writes no header.
    let why = why.split(SEND_A_TOKEN).next().unwrap_or_default();
    format!("{}{why}{tip}", head.status_line())
}

/// A server's words about a failure, fit for a terminal: one line, no control characters.
pub fn reason(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(body) {
        // An admin port says it in `error`, a data port in `detail` (RFC 9457).
        Ok(Value::Object(said)) => {
            let named = ["error", "detail"].iter().find_map(|name| said.get(*name));
            named.map_or_else(|| String::from_utf8_lossy(body).into_owned(), plain)
        }
        _ => String::from_utf8_lossy(body).into_owned(),
    };
    let line = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    let line: String = line.take(MAX_REASON_CHARS).collect();
    if line.is_empty() {
        line
    } else {
        format!(": {line}")
    }
}
