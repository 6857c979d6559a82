//! Writes a response body whose length is not known at the start: in chunks, or for HTTP/1.0 and HTTP/2 plain until the connection or the
//! stream is closed.

use alloc::vec::Vec;

use crate::base::position::write_hex;
use crate::client::row::Row;
use crate::protocol::http::options::UNCHUNKED;

/// Appends one chunk (RFC 9112 section 7.1).
pub(crate) fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    write_hex(out, data.len() as u32);
    for part in [b"\r\n", data, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Appends a part of the body of the response to this connection.
pub(crate) fn write_part(row: &Row, data: &[u8], out: &mut Vec<u8>) {
    match row.has_option(UNCHUNKED) {
        true => out.extend_from_slice(data),
        false => chunk(out, data),
    }
}

/// Appends the end of the body, if the body is in chunks.
pub(crate) fn write_end(row: &Row, out: &mut Vec<u8>) {
    if !row.has_option(UNCHUNKED) {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}
