//! Translates a response head from the form of HTTP/1.1 into HEADERS frames.
//!
//! [`crate::http::response::ResponseHead`] writes the responses of both HTTP versions, and its bytes are the input here.
//! Connection-specific lines are omitted (RFC 9113 section 8.2.2). The status 101, with which HTTP/1.1 accepts a WebSocket, becomes 200
//! (RFC 8441 section 5).

use alloc::vec::Vec;

use super::frame::{END_HEADERS, END_STREAM, HEADER_BYTES, Header, Kind, PAYLOAD_MAX};
use super::hpack::encode;
use crate::http::trim_ows;

/// Fields that HTTP/2 forbids, and the accept key, which has no meaning without a key in the request.
const LEFT_OUT: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "sec-websocket-accept",
];

/// The head at the start of a response in the form of HTTP/1.1.
pub(super) struct AnswerHead<'a> {
    /// The status in HTTP/2.
    pub status: u16,
    /// The response, and the length of its status line.
    answer: &'a [u8],
    first: usize,
}

impl<'a> AnswerHead<'a> {
    /// Reads the status line that [`ResponseHead`](crate::http::response::ResponseHead) wrote.
    ///
    /// # Panics
    /// If there is no complete status line.
    pub fn read(answer: &'a [u8]) -> AnswerHead<'a> {
        let line = b"HTTP/1.1 200".len();
        let digits = answer[..line].last_chunk::<3>().expect("a status");
        let status = digits
            .iter()
            .fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
        AnswerHead {
            status: if status == 101 { 200 } else { status },
            answer,
            first: end_of_line(answer),
        }
    }

    /// Appends the frames of the head. Returns the length of the head in the response, including the blank line.
    ///
    /// # Panics
    /// If the head is not complete.
    pub fn write(&self, stream: u32, ends: bool, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        encode::status(out, self.status);
        let mut at = self.first;
        loop {
            let rest = &self.answer[at..];
            let end = end_of_line(rest);
            at += end;
            let line = rest[..end].strip_suffix(b"\r\n").unwrap_or_default();
            if line.is_empty() {
                break;
            }
            let Some(colon) = memchr::memchr(b':', line) else {
                continue;
            };
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            let is_left_out = |known: &&str| known.as_bytes().eq_ignore_ascii_case(name);
            if !LEFT_OUT.iter().any(is_left_out) {
                encode::field(out, name, trim_ows(value));
            }
        }
        write_headers(stream, ends, start, out);
        at
    }
}

/// The length of the first line, including its end.
fn end_of_line(bytes: &[u8]) -> usize {
    memchr::memchr(b'\n', bytes).expect("an answer has a head") + 1
}

/// Writes the frame headers of a block after the 9 bytes left free at `start`. A block that is too long for one frame continues in
/// CONTINUATION frames.
fn write_headers(stream: u32, ends: bool, start: usize, out: &mut Vec<u8>) {
    let mut at = start + HEADER_BYTES;
    let mut left = out.len() - at;
    let mut flags = if ends { END_STREAM } else { 0 };
    let mut part = left.min(PAYLOAD_MAX);
    if part == left {
        flags |= END_HEADERS;
    }
    let header = Header::new(Kind::Headers, flags, stream, part);
    out[start..at].copy_from_slice(&header.bytes());
    while left > part {
        (at, left) = (at + part, left - part);
        part = left.min(PAYLOAD_MAX);
        let flags = if part == left { END_HEADERS } else { 0 };
        let header = Header::new(Kind::Continuation, flags, stream, part);
        out.splice(at..at, header.bytes());
        at += HEADER_BYTES;
    }
}
