//! A `POST /pub` of NDJSON: its lines, its head, and what its answer says.

use crate::payload::{Header, Payloads};

/// Appends the line that publishes one message.
pub fn line(topic: &str, header: Header, payloads: &mut Payloads, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"topic\":\"");
    escape(topic, out);
    out.extend_from_slice(b"\",\"data\":\"");
    payloads.write(header, out);
    out.extend_from_slice(b"\"}\n");
}

/// The head before so many bytes of lines.
pub fn head(host: &str, bytes: usize) -> String {
    format!(
        "POST /pub HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\n\
         Content-Length: {bytes}\r\n\r\n"
    )
}

/// How many lines failed, by the body of the answer.
pub fn failed(body: &[u8]) -> u64 {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    match &answer["failed"] {
        serde_json::Value::Array(list) => list.len() as u64,
        serde_json::Value::Number(count) => count.as_u64().unwrap_or(0),
        _ => 0,
    }
}

/// JSON's escapes for a topic's name; payloads need none.
fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
}
