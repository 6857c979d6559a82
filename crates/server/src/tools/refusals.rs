//! Turns error responses of servers into error messages for the terminal.

use crore_broker::SEND_A_TOKEN;
use serde_json::Value;

use super::tables::value_text;
use crate::http_client::http::Head;
use crate::http_client::server::TOKEN_VARIABLE;

/// Maximum length of a reason that is shown, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The error message for a request that a data port refused: the status, the reason, and how to give a token if the port asks for one.
pub fn refusal(head: &Head, body: &[u8]) -> String {
    let tip = match head.status {
        401 => format!("; give a token with --token or in {TOKEN_VARIABLE} (crore token mint)"),
        _ => String::new(),
    };
    let text = reason(body);
    // The server's advice to send a header does not help a user of this tool.
    let text = text.split(SEND_A_TOKEN).next().unwrap_or_default();
    format!("{}{text}{tip}", head.status_text())
}

/// The reason in the body of an error, as one line that begins with `: ` and has no control characters. Empty if the body gives no reason.
pub fn reason(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(body) {
        // The admin port uses `error`, a data port `detail` (RFC 9457).
        Ok(Value::Object(members)) => {
            let named = ["error", "detail"]
                .iter()
                .find_map(|name| members.get(*name));
            named.map_or_else(|| String::from_utf8_lossy(body).into_owned(), value_text)
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
