//! Refuses clients that begin with HTTP/2 (RFC 9113 section 3.3, "prior knowledge") where only HTTP/1.1 is spoken. The refusal is in
//! HTTP/2, since such a client would not understand a response of HTTP/1.1.

use alloc::vec::Vec;

use super::frame::{self, PREFACE};
use super::violation::ErrorCode;

/// Whether a connection that begins with these bytes speaks HTTP/2: they contain what looks like a request head of version 2.0.
pub fn is_preface(bytes: &[u8]) -> bool {
    let head = PREFACE.strip_suffix(b"SM\r\n\r\n");
    head.is_some_and(|head| bytes.starts_with(head))
}

/// Appends the server's preface and a GOAWAY frame that demands HTTP/1.1. The last stream id of the frame is 0, which means that no request
/// is processed (section 6.8).
pub fn refuse(out: &mut Vec<u8>) {
    frame::write_settings(out, &[]);
    let code = ErrorCode::Http11Required;
    frame::write_go_away(out, 0, code, "only HTTP/1.1 is spoken here");
}
