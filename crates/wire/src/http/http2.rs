//! Refuses clients that begin with HTTP/2 (RFC 9113 section 3.3, "prior knowledge"). The refusal is in HTTP/2, since such a client
//! would not understand a response of HTTP/1.1. Nothing else of HTTP/2 is supported.

use alloc::vec::Vec;

/// The beginning of an HTTP/2 connection (RFC 9113 section 3.4), which looks like a request head of version 2.0.
const HEAD: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";
/// An empty SETTINGS frame (section 6.5), which is the server's preface.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The error code HTTP_1_1_REQUIRED (section 7).
const HTTP_1_1_REQUIRED: u32 = 0xd;
/// The reason for human readers.
const REASON: &[u8] = b"only HTTP/1.1 is spoken here";

/// Whether a connection that begins with these bytes speaks HTTP/2.
pub fn is_preface(bytes: &[u8]) -> bool {
    bytes.starts_with(HEAD)
}

/// Appends the server's preface and a GOAWAY frame that demands HTTP/1.1. The last stream id of the frame is 0, which means that no request
/// is processed (section 6.8).
pub fn refuse(out: &mut Vec<u8>) {
    out.extend_from_slice(&SETTINGS);
    let length = 8 + REASON.len() as u8;
    out.extend_from_slice(&[0, 0, length, 7, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&0u32.to_be_bytes());
    out.extend_from_slice(&HTTP_1_1_REQUIRED.to_be_bytes());
    out.extend_from_slice(REASON);
}
