//! A server's words about a failure, as they are shown.

/// How much of a server's reason is shown, in characters.
const MAX_REASON_CHARS: usize = 300;

/// A server's words about a failure, fit for a terminal: one line, no control characters.
pub fn reason(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
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
