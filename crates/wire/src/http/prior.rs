//! Clients that speak HTTP/2 by prior knowledge (RFC 9113 section 3.3): they are told in HTTP/2 that HTTP/1.1 is spoken here, since
//! none of them reads an answer of HTTP/1.1. Deliberately absent: everything else of HTTP/2.

use alloc::vec::Vec;

/// The first half of the first bytes of an HTTP/2 connection (RFC 9113 section 3.4): a whole head of version 2.0.
const HEAD: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";
/// An empty SETTINGS frame (section 6.5): the server's preface is a frame of this type.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The error code HTTP_1_1_REQUIRED (section 7).
const HTTP_1_1_REQUIRED: u32 = 0xd;
/// The reason for human readers.
const REASON: &[u8] = b"only HTTP/1.1 is spoken here";

/// Whether a connection that begins like this speaks HTTP/2.
pub fn is_http2(bytes: &[u8]) -> bool {
    bytes.starts_with(HEAD)
}

/// Appends the server's preface and a GOAWAY that sends the client to HTTP/1.1: nothing was or will be processed (section 6.8).
pub fn refuse(out: &mut Vec<u8>) {
    out.extend_from_slice(&SETTINGS);
    let length = 8 + REASON.len() as u8;
    out.extend_from_slice(&[0, 0, length, 7, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&0u32.to_be_bytes());
    out.extend_from_slice(&HTTP_1_1_REQUIRED.to_be_bytes());
    out.extend_from_slice(REASON);
}
