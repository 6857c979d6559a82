//! Writes response heads into a byte vector (RFC 9112 section 4). The callers choose the fields of a response.
//!
//! Invariants: only the growth of the vector allocates memory. A field whose value has a control character is omitted, and the rest of the
//! head is written.

use alloc::vec::Vec;

use super::{date, is_field_value, is_tchar};

/// The reason phrase of a status code; empty for codes that the server never sends.
pub const fn status_text(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

/// Writes a response head. Each method appends one line; [`end`](Self::end) or [`content`](Self::content) closes the head.
#[derive(Debug)]
#[must_use = "a head without its blank line is not one"]
pub struct ResponseHead<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> ResponseHead<'o> {
    /// Begins a head with its status line. Every response says HTTP/1.1, also to a client of HTTP/1.0, because this is the version of the
    /// server (RFC 9110 section 6.2).
    ///
    /// # Panics
    /// If `status` does not have three digits.
    pub fn new(out: &'o mut Vec<u8>, status: u16) -> Self {
        assert!(
            (100..1000).contains(&status),
            "status codes have three digits"
        );
        out.extend_from_slice(b"HTTP/1.1 ");
        write_decimal(out, u64::from(status));
        out.push(b' ');
        out.extend_from_slice(status_text(status).as_bytes());
        out.extend_from_slice(b"\r\n");
        Self { out }
    }

    /// Appends a field. Callers must refuse a value with a control character ([`is_field_value`]). If a caller does not, the field is
    /// omitted, so that the value cannot add a line to the head and does not crash the server.
    ///
    /// # Panics
    /// If the name is not a token.
    #[inline]
    pub fn header(self, name: &str, value: &[u8]) -> Self {
        self.header_parts(name, &[value])
    }

    /// Like [`header`](Self::header), with a value that is the concatenation of `parts`.
    ///
    /// # Panics
    /// If the name is not a token.
    pub fn header_parts(mut self, name: &str, parts: &[&[u8]]) -> Self {
        if !parts.iter().all(|part| is_field_value(part)) {
            return self;
        }
        self.push_name(name);
        for part in parts {
            self.out.extend_from_slice(part);
        }
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Appends a field with a number in decimal digits.
    ///
    /// # Panics
    /// If the name is not a token.
    pub fn number(mut self, name: &str, value: u64) -> Self {
        self.push_name(name);
        write_decimal(self.out, value);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Appends a field with a date (RFC 9110 section 5.6.7), given in seconds since 1970.
    ///
    /// # Panics
    /// If the name is not a token.
    pub fn date(mut self, name: &str, unix_s: u64) -> Self {
        self.push_name(name);
        date::write_date(self.out, unix_s);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Appends complete header lines, each with its CRLF. `lines` may be empty.
    ///
    /// # Panics
    /// If `lines` does not end in CRLF.
    #[inline]
    pub fn lines(self, lines: &[u8]) -> Self {
        assert!(
            lines.is_empty() || lines.ends_with(b"\r\n"),
            "prepared header lines end in CRLF"
        );
        self.out.extend_from_slice(lines);
        self
    }

    /// Closes the head.
    pub fn end(self) {
        self.out.extend_from_slice(b"\r\n");
    }

    /// Appends Content-Length, closes the head and appends the body.
    #[inline]
    pub fn content(self, body: &[u8]) {
        let head = self.number("Content-Length", body.len() as u64);
        head.out.extend_from_slice(b"\r\n");
        head.out.extend_from_slice(body);
    }

    fn push_name(&mut self, name: &str) {
        assert!(
            !name.is_empty() && name.bytes().all(is_tchar),
            "a header name is a token"
        );
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
    }
}

/// Appends `value` in decimal digits.
pub fn write_decimal(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = value;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}
