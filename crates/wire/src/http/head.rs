//! Parses the head of a request: request line and header fields (RFC 9112 sections 2 to 7).
//!
//! Invariants: a head is parsed only when it is complete, and the result does not depend on how the stream is split into reads. Only CRLF
//! ends a line. All slices point into the caller's buffer. `httparse` splits the fields into names and values; this module decides which of
//! them are acceptable.
//!
//! Deliberately not here: decoding of the path ([`crate::topic`]) and of the query ([`crate::form`]).

use alloc::vec;

use httparse::{EMPTY_HEADER, Header, Status};
use smallvec::SmallVec;

pub use super::accept::Accept;
pub use super::refusal::{HeadError, MAX_HEADERS};
pub use super::request_line::Method;
use super::request_line::{self, RequestLine};
use super::{accept, is_tchar, list, read_decimal, trim_ows};

/// Number of fields that a [`Head`] stores without heap memory. It is small because a head is copied when it is returned. Nearly all heads
/// have fewer fields; a head with more fields is parsed a second time.
const INLINE_HEADERS: usize = 24;

/// How the body after a head is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// No body: the next request follows at once.
    None,
    /// Exactly this many bytes, perhaps 0.
    Length(u64),
    /// Chunks, see [`super::body::ChunkedDecoder`].
    Chunked,
}

/// A request head, borrowed from the receive buffer.
#[derive(Clone, Debug)]
pub struct Head<'b> {
    /// The method.
    pub method: Method,
    /// The method as it was written.
    pub method_name: &'b [u8],
    /// The path before the `?`, not decoded; `*` only for `OPTIONS *`.
    pub path: &'b [u8],
    /// The query after the `?`, not decoded; empty if there is none.
    pub query: &'b [u8],
    /// Minor version: 0 for HTTP/1.0, 1 for HTTP/1.1 and higher.
    pub minor: u8,
    /// Length in bytes from the start of the buffer, including the blank lines before and after the head.
    pub len: usize,
    /// The authority of an absolute-form target, else the Host field.
    host: Option<&'b [u8]>,
    fields: SmallVec<[Header<'b>; INLINE_HEADERS]>,
}

/// Parses the head at the start of `buf`. `None` if the head is incomplete and can still fit into `limit` bytes.
///
/// Blank lines before the request line are skipped and counted (RFC 9112 section 2.2). A call with an incomplete head is cheap, because it
/// only searches for line ends. Callers must also call [`Head::body`] for every method, because only that call refuses conflicting lengths.
///
/// # Errors
/// [`HeadError::TooLarge`], [`HeadError::Malformed`] or [`HeadError::Version`], as early as the bytes allow.
pub fn parse(buf: &[u8], limit: usize) -> Result<Option<Head<'_>>, HeadError> {
    let Some(lines) = find_end(buf, limit)? else {
        return Ok(None);
    };
    let RequestLine {
        method,
        method_name,
        authority,
        path,
        query,
        minor,
    } = request_line::parse(&buf[lines.start..lines.request_line_end])?;

    let block = &buf[lines.request_line_end + 2..lines.end];
    let mut inline_fields = [EMPTY_HEADER; INLINE_HEADERS];
    let mut all_fields;
    let parsed = match httparse::parse_headers(block, &mut inline_fields) {
        Err(httparse::Error::TooManyHeaders) => {
            all_fields = vec![EMPTY_HEADER; MAX_HEADERS];
            httparse::parse_headers(block, &mut all_fields)
        }
        parsed => parsed,
    };
    let fields = match parsed {
        Ok(Status::Complete((length, fields))) if length == block.len() => fields,
        Ok(_) => return Err(HeadError::Malformed("the header fields end early")),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(httparse::Error::HeaderName) => {
            return Err(HeadError::Malformed("bad header field name"));
        }
        Err(_) => return Err(HeadError::Malformed("bad header field value")),
    };
    Ok(Some(Head {
        method,
        method_name,
        path,
        query,
        minor,
        len: lines.end,
        host: check_host(fields, minor, authority)?,
        fields: SmallVec::from_slice(fields),
    }))
}

/// Checks that HTTP/1.1 has one Host field and HTTP/1.0 at most one (RFC 9112 section 3.2). The authority of the target overrides the field
/// (section 3.2.2). Without an authority, an empty Host field makes the URI invalid (RFC 9110 section 4.2.1), and the request is refused,
/// as RFC 9112 section 3.3 allows.
fn check_host<'b>(
    fields: &[Header<'b>],
    minor: u8,
    authority: Option<&'b [u8]>,
) -> Result<Option<&'b [u8]>, HeadError> {
    let mut hosts = values(fields, "host");
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(HeadError::Malformed("several Host fields"));
    }
    if host.is_none() && minor == 1 {
        return Err(HeadError::Malformed("no Host field"));
    }
    if host.is_some_and(|host| !request_line::is_authority(host)) {
        return Err(HeadError::Malformed("bad Host field"));
    }
    if authority.is_none() && host.is_some_and(<[u8]>::is_empty) {
        return Err(HeadError::Malformed("an empty Host field"));
    }
    Ok(authority.or(host))
}

fn values<'a, 'b>(fields: &'a [Header<'b>], name: &'a str) -> impl Iterator<Item = &'b [u8]> + 'a {
    let matching = fields
        .iter()
        .filter(move |f| f.name.eq_ignore_ascii_case(name));
    matching.map(|f| f.value)
}

/// The number of bytes of blank lines (CRLF) at the start of `buf`. A robust server ignores blank lines before a request (RFC 9112 section
/// 2.2). If `buf` contains nothing else, no head has begun and the connection is idle.
pub fn blank_lines(buf: &[u8]) -> usize {
    2 * buf
        .chunks_exact(2)
        .take_while(|pair| pair == b"\r\n")
        .count()
}

/// The value of a field in a head that was refused or is incomplete, for the error response. Only complete lines are read. `None` if the
/// field is missing or occurs several times.
pub fn field_in<'b>(bytes: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let bytes = &bytes[blank_lines(bytes)..];
    let end = memchr::memmem::find(bytes, b"\r\n\r\n");
    let lines = bytes[..end.map_or(bytes.len(), |end| end + 2)].split_inclusive(|b| *b == b'\n');
    let mut values = lines.filter_map(|line| {
        let line = line.strip_suffix(b"\r\n")?;
        let colon = memchr::memchr(b':', line)?;
        let is_named = line[..colon].eq_ignore_ascii_case(name.as_bytes());
        is_named.then(|| trim_ows(&line[colon + 1..]))
    });
    let value = values.next();
    value.filter(|_| values.next().is_none())
}

/// The representations that the client accepts, from a head that was refused or is incomplete; see [`field_in`].
pub fn accept_in(bytes: &[u8]) -> Accept {
    accept::read(field_in(bytes, "accept").into_iter())
}

/// The offsets of a complete head in the buffer.
struct Offsets {
    /// Start of the request line.
    start: usize,
    /// End of the request line: the offset of its CR.
    request_line_end: usize,
    /// The offset after the blank line at the end.
    end: usize,
}

/// Searches for the blank line at the end of the head. An error is reported at the first wrong byte, so it does not depend on how the
/// stream is split into reads.
fn find_end(buf: &[u8], limit: usize) -> Result<Option<Offsets>, HeadError> {
    let window = &buf[..buf.len().min(limit)];
    let start = blank_lines(window);
    if let Some(&b) = window.get(start)
        && !is_tchar(b)
        && !matches!(b, b'\r' | b'\n')
    {
        // This is not HTTP but perhaps a TLS hello, so no line end will come.
        return Err(HeadError::Malformed("this is not an HTTP request"));
    }
    let mut line_start = start;
    let mut request_line_end = None;
    while let Some(i) = memchr::memchr2(b'\r', b'\n', &window[line_start..]) {
        let line_end = line_start + i;
        if window[line_end] == b'\n' {
            return Err(HeadError::Malformed("a line of the head ends in a bare LF"));
        }
        match window.get(line_end + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(HeadError::Malformed("a bare CR in the head")),
            None => break,
        }
        if line_end == line_start
            && let Some(request_line_end) = request_line_end
        {
            return Ok(Some(Offsets {
                start,
                request_line_end,
                end: line_end + 2,
            }));
        }
        request_line_end.get_or_insert(line_end);
        line_start = line_end + 2;
    }
    if buf.len() >= limit {
        Err(HeadError::TooLarge)
    } else {
        Ok(None)
    }
}

impl<'b> Head<'b> {
    /// The value of the first field with this name, without the whitespace around it. The case of names does not matter.
    #[inline]
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers(name).next()
    }

    /// The values of all fields with this name, in order.
    #[inline]
    pub fn headers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'b [u8]> + 'a {
        values(&self.fields, name)
    }

    /// The names of all fields, in order, as written.
    #[inline]
    pub fn names(&self) -> impl Iterator<Item = &'b str> + '_ {
        self.fields.iter().map(|field| field.name)
    }

    /// Whether `token` is in the comma-separated list of the fields with this name. The case of the token does not matter.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.headers(name)
            .flat_map(list)
            .any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// The requested host: the authority of an absolute-form target, else the Host field (RFC 9112 section 3.2.2). Never empty;
    /// `None` only in HTTP/1.0.
    pub fn host(&self) -> Option<&'b [u8]> {
        self.host
    }

    /// How the body is delimited.
    ///
    /// # Errors
    /// If two servers could read the length in different ways (RFC 9112 sections 6.1 and 6.3): a length together with a transfer coding,
    /// several lengths, a malformed length, or a coding other than `chunked`. Also if there is an expectation other than `100-continue`.
    pub fn body(&self) -> Result<Body, HeadError> {
        let is_chunked = self.is_chunked()?;
        let length = self.content_length()?;
        let is_continue = |expected: &[u8]| expected.eq_ignore_ascii_case(b"100-continue");
        if !self.headers("expect").flat_map(list).all(is_continue) {
            return Err(HeadError::Expectation);
        }
        match (is_chunked, length) {
            (true, Some(_)) => Err(HeadError::Malformed(
                "both Content-Length and Transfer-Encoding",
            )),
            (true, None) => Ok(Body::Chunked),
            (false, Some(length)) => Ok(Body::Length(length)),
            (false, None) => Ok(Body::None),
        }
    }

    /// Whether the body has a content coding other than `identity` (RFC 9110 section 8.4).
    pub fn is_coded(&self) -> bool {
        self.headers("content-encoding")
            .flat_map(list)
            .any(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    }

    /// Whether the connection stays open after this request (RFC 9112 section 9.3).
    #[inline]
    pub fn keep_alive(&self) -> bool {
        !self.has_token("connection", "close")
            && (self.minor == 1 || self.has_token("connection", "keep-alive"))
    }

    /// Whether the client waits for `100 Continue` before it sends its body (RFC 9110 section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.minor == 1
            && self.has_token("expect", "100-continue")
            && matches!(self.body(), Ok(Body::Chunked | Body::Length(1..)))
    }

    /// Whether the request asks for an upgrade to WebSocket (RFC 6455 section 4.2.1). The version and the key are not checked.
    #[inline]
    pub fn is_websocket_upgrade(&self) -> bool {
        self.method == Method::Get
            && self.minor == 1
            && self.has_token("upgrade", "websocket")
            && self.has_token("connection", "upgrade")
    }

    /// The representations that the client accepts (RFC 9110 section 12.5.1).
    pub fn accept(&self) -> Accept {
        accept::read(self.headers("accept"))
    }

    fn is_chunked(&self) -> Result<bool, HeadError> {
        let mut codings = self.headers("transfer-encoding");
        let Some(first) = codings.next() else {
            return Ok(false);
        };
        if self.minor == 0 {
            return Err(HeadError::Malformed("Transfer-Encoding in HTTP/1.0"));
        }
        if codings.next().is_none() && first.eq_ignore_ascii_case(b"chunked") {
            return Ok(true);
        }
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let codings = || self.headers("transfer-encoding").flat_map(list);
        // If chunked is not the last coding, the end of the body is unknown (RFC 9112 section 6.3).
        if !codings().last().is_some_and(is_chunked) {
            return Err(HeadError::Malformed(
                "chunked is not the last transfer coding",
            ));
        }
        let is_repeated = codings().all(is_chunked);
        Err(if is_repeated {
            HeadError::Malformed("bad Transfer-Encoding")
        } else {
            HeadError::UnknownTransferCoding
        })
    }

    fn content_length(&self) -> Result<Option<u64>, HeadError> {
        let error = HeadError::Malformed("bad Content-Length");
        let mut lengths = self.headers("content-length");
        let Some(digits) = lengths.next() else {
            return Ok(None);
        };
        // Several lengths are refused even if they are equal, because a proxy in front of the server may read them differently.
        if lengths.next().is_some() {
            return Err(error);
        }
        read_decimal(digits).map(Some).ok_or(error)
    }
}
