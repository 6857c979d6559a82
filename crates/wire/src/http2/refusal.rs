//! Refuses clients that begin with HTTP/2 (RFC 9113 section 3.3, "prior knowledge") on a port that supports only HTTP/1.1. The refusal is
//! in HTTP/2, because such a client would not understand an HTTP/1.1 response.

use alloc::vec::Vec;

use super::frame::{self, PREFACE};
use super::violation::ErrorCode;

/// Whether a connection that begins with these bytes uses HTTP/2. They must begin with the lines of the preface that look like a request
/// head.
pub fn is_preface(bytes: &[u8]) -> bool {
    let head = PREFACE.strip_suffix(b"SM\r\n\r\n");
    head.is_some_and(|head| bytes.starts_with(head))
}

/// Appends the server's preface and a GOAWAY frame that demands HTTP/1.1. The last stream id in this frame is 0: no request is processed
/// (section 6.8).
pub fn refuse(out: &mut Vec<u8>) {
    frame::write_settings(out, &[]);
    let code = ErrorCode::Http11Required;
    frame::write_go_away(out, 0, code, "only HTTP/1.1 is spoken here");
}
