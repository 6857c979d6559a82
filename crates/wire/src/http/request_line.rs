//! Parses the request line: method, target and version (RFC 9112 section 3).
//!
//! A proxy and the server must read the same request from a line. Invariant: an accepted line has exactly two spaces, and a target that all
//! servers split in the same way. The target is ASCII (RFC 3986 section 2). Some ASCII characters are accepted although URIs may not
//! contain them, because browsers send them, such as `|`.

use super::is_tchar;
use super::refusal::HeadError;

/// The method of the request (RFC 9110 section 9). Methods are case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// Any other token.
    Other,
}

/// A parsed request line.
pub(super) struct RequestLine<'b> {
    pub(super) method: Method,
    pub(super) method_name: &'b [u8],
    /// Present only if the target is in absolute-form or authority-form.
    pub(super) authority: Option<&'b [u8]>,
    pub(super) path: &'b [u8],
    pub(super) query: &'b [u8],
    pub(super) minor: u8,
}

/// Parses `method SP target SP HTTP/1.x`, without the line end.
///
/// # Errors
/// [`HeadError::Version`] for another major version, whatever the target is. Otherwise [`HeadError::Malformed`].
pub(super) fn parse(line: &[u8]) -> Result<RequestLine<'_>, HeadError> {
    let error = HeadError::Malformed("bad request line");
    let first_space = memchr::memchr(b' ', line).ok_or(error)?;
    let last_space = memchr::memrchr(b' ', line).ok_or(error)?;
    if first_space == last_space {
        return Err(error);
    }
    let minor = read_minor_version(&line[last_space + 1..])?;
    let method_name = &line[..first_space];
    if method_name.is_empty() || !method_name.iter().all(|&b| is_tchar(b)) {
        return Err(HeadError::Malformed("bad method"));
    }
    let method = method_of(method_name);
    let target = &line[first_space + 1..last_space];
    if target.iter().any(|&b| b <= b' ' || b == b'#' || b >= 0x7f) {
        return Err(HeadError::Malformed(match target.is_ascii() {
            true => "a space, a control character or a fragment in the target",
            false => "a byte in the target that is not ASCII; percent-encode it (%C3%A9)",
        }));
    }
    if target == b"*" && method == Method::Options {
        return Ok(RequestLine {
            method,
            method_name,
            authority: None,
            path: target,
            query: b"",
            minor,
        });
    }
    let (authority, path_and_query) = match method_name {
        // The target of CONNECT is an authority without a path (RFC 9112 section 3.2.3). The path becomes `/`.
        b"CONNECT" if target.is_empty() || !is_authority(target) => {
            return Err(HeadError::Malformed(
                "the target of CONNECT is no authority",
            ));
        }
        b"CONNECT" => (Some(target), &b""[..]),
        _ => split_authority(target)?,
    };
    let (path, query) = match memchr::memchr(b'?', path_and_query) {
        Some(at) => (&path_and_query[..at], &path_and_query[at + 1..]),
        None => (path_and_query, &b""[..]),
    };
    // An absolute-form target without a path means the root (RFC 9112 section 3.2.1).
    let path = if path.is_empty() { b"/" } else { path };
    Ok(RequestLine {
        method,
        method_name,
        authority,
        path,
        query,
        minor,
    })
}

fn read_minor_version(version: &[u8]) -> Result<u8, HeadError> {
    match version {
        // HTTP/1.2 to HTTP/1.9 are treated as HTTP/1.1, the highest minor version that we implement (RFC 9110 section 2.5).
        [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'1',
            b'.',
            minor @ b'0'..=b'9',
        ] => Ok(u8::from(*minor != b'0')),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => Err(HeadError::Version),
        _ => Err(HeadError::Malformed("bad request line")),
    }
}

fn method_of(name: &[u8]) -> Method {
    match name {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" => Method::Post,
        b"PUT" => Method::Put,
        b"DELETE" => Method::Delete,
        b"OPTIONS" => Method::Options,
        _ => Method::Other,
    }
}

/// Splits a target in absolute-form into the authority and the rest. A target in origin-form has no authority (RFC 9112 section 3.2).
fn split_authority(target: &[u8]) -> Result<(Option<&[u8]>, &[u8]), HeadError> {
    if target.first() == Some(&b'/') {
        return Ok((None, target));
    }
    let rest = after_scheme(target).ok_or(HeadError::Malformed("bad request target"))?;
    let end = rest
        .iter()
        .position(|&b| matches!(b, b'/' | b'?'))
        .unwrap_or(rest.len());
    let (authority, path_and_query) = rest.split_at(end);
    if authority.is_empty() || !is_authority(authority) {
        return Err(HeadError::Malformed("bad authority in the target"));
    }
    Ok((Some(authority), path_and_query))
}

/// The target after `scheme://`, for the schemes of this server.
fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    ["http://", "https://", "ws://", "wss://"]
        .iter()
        .find_map(|scheme| {
            let (start, rest) = target.split_at_checked(scheme.len())?;
            start
                .eq_ignore_ascii_case(scheme.as_bytes())
                .then_some(rest)
        })
}

/// Whether the value is empty, or is a host with or without a port (RFC 3986 section 3.2). Not allowed are a user before the host, a port
/// without a host (RFC 9110 section 4.2.1), and characters that separate the components of a URI or the members of a list.
pub(super) fn is_authority(value: &[u8]) -> bool {
    let (host, port) = match value.strip_prefix(b"[") {
        Some(inner) => {
            let Some(end) = memchr::memchr(b']', inner) else {
                return false;
            };
            let is_literal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'.');
            if end == 0 || !inner[..end].iter().all(is_literal) {
                return false;
            }
            (&inner[..end], &inner[end + 1..])
        }
        None => {
            let end = memchr::memchr(b':', value).unwrap_or(value.len());
            if !value[..end].iter().all(is_host_byte) {
                return false;
            }
            value.split_at(end)
        }
    };
    match port {
        [] => true,
        [b':', digits @ ..] => !host.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Whether a host name may contain the byte (RFC 3986 section 3.2.2). The comma is refused, because other servers read it as a list
/// separator.
fn is_host_byte(b: &u8) -> bool {
    let is_refused = matches!(
        b,
        b'@' | b'/'
            | b'\\'
            | b'?'
            | b'#'
            | b','
            | b'"'
            | b'<'
            | b'>'
            | b'{'
            | b'}'
            | b'|'
            | b'^'
            | b'`'
            | b'['
            | b']'
    );
    b.is_ascii_graphic() && !is_refused
}
