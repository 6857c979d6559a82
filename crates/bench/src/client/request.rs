//! Writes the HTTP requests of the tools: upgrades, request targets with topics, and `POST /pub` with NDJSON. It also reads the answer to a
//! batch, and writes the WebSocket frames of a client.

use std::fmt::Write;

use crore_wire::json::write_string;
use crore_wire::websocket::frame::{Opcode, write_masked};
use crore_wire::websocket::handshake::write_client_request;

use crate::measure::payload::{Header, Payloads};

/// The key of every connection: the example of RFC 6455 §1.3.
const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
/// The `Sec-WebSocket-Accept` for that key.
pub const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A mask of zeros, which does not change the payload. RFC 6455 §5.3 leaves the choice of the mask to the client.
pub const NO_MASK: [u8; 4] = [0; 4];

/// The upgrade request of a WebSocket.
pub fn upgrade(host: &str, target: &str, subprotocol: Option<&str>) -> Vec<u8> {
    let subprotocol = subprotocol.map(|name| ("Sec-WebSocket-Protocol", name));
    let mut out = Vec::with_capacity(256);
    write_client_request(&mut out, host, target, KEY, subprotocol.as_slice());
    out
}

/// The upgrade request of a WebSocket for MQTT (MQTT 5 §6).
pub fn mqtt_upgrade(host: &str) -> Vec<u8> {
    upgrade(host, "/mqtt", Some("mqtt"))
}

/// Appends the answer to a ping.
pub fn pong(payload: &[u8], out: &mut Vec<u8>) {
    write_masked(out, Opcode::Pong, payload, NO_MASK);
}

/// Appends the request target for `topic`: `/sub/{topic}`, or `/sub?topic=` for names that a path
/// cannot contain (a leading `/`, empty levels).
pub fn target(path: &str, topic: &str, out: &mut String) {
    out.push_str(path);
    let plain = !topic
        .split('/')
        .any(|level| level.is_empty() || level == "." || level == "..");
    out.push_str(if plain { "/" } else { "?topic=" });
    escape(topic, out);
}

/// Appends the percent-encoded name of a topic.
pub fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/$:@!*".contains(&byte) {
            out.push(byte as char);
        } else {
            write!(out, "%{byte:02X}").expect("a String takes all");
        }
    }
}

/// Appends the line of a batch that publishes one message. Payloads need no JSON escapes.
pub fn line(topic: &str, header: Header, payloads: &mut Payloads, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"topic\":");
    write_string(out, topic.as_bytes());
    out.extend_from_slice(b",\"data\":\"");
    payloads.write(header, out);
    out.extend_from_slice(b"\"}\n");
}

/// The head of a batch request with a body of `bytes` bytes.
pub fn batch_head(host: &str, bytes: usize) -> String {
    format!(
        "POST /pub HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\n\
         Content-Length: {bytes}\r\n\r\n"
    )
}

/// The number of failed lines in the answer to a batch.
pub fn count_failed(body: &[u8]) -> u64 {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    match &answer["failed"] {
        serde_json::Value::Array(list) => list.len() as u64,
        serde_json::Value::Number(count) => count.as_u64().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_path_cannot_carry_go_in_the_query() {
        let target_of = |topic: &str| {
            let mut out = String::new();
            target("/sub", topic, &mut out);
            out
        };
        assert_eq!(target_of("scores/7"), "/sub/scores/7");
        assert_eq!(target_of("/p/s1/-"), "/sub?topic=/p/s1/-");
        assert_eq!(target_of("a//b"), "/sub?topic=a//b");
        assert_eq!(target_of("a/../b"), "/sub?topic=a/../b");
        assert_eq!(target_of("a b&c"), "/sub/a%20b%26c");
    }

    #[test]
    fn the_answer_belongs_to_the_key() {
        let accept = crore_wire::websocket::handshake::accept_key(KEY);
        assert_eq!(accept.unwrap(), ACCEPT);
    }
}
