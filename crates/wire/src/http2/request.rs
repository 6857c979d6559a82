//! Checks the fields of a request and writes them as a request head of HTTP/1.1 (RFC 9113 section 8.3).
//!
//! So [`crate::http::head::parse`] reads the requests of both versions, and the same code checks them. A request that waits for its body is
//! stored as the bytes of its head in both versions. Differences of HTTP/2 are translated:
//!
//! * `:authority` becomes the Host field. If there is a Host field too, it must name the same host.
//! * A body without `content-length` gets the field `transfer-encoding: chunked`. The DATA frames correspond to the chunks.
//! * CONNECT with the protocol `websocket` (RFC 8441) becomes the upgrade request of HTTP/1.1: GET with `upgrade: websocket`, but without a
//!   key.
//! * Adjacent Cookie fields become one field (RFC 9113 section 8.2.3).
//!
//! Invariants: no client can write these lines directly, because connection-specific fields are refused. No name or value can begin another
//! line. A request that a proxy could read in another way is refused, here or by the parser of heads.

use alloc::vec::Vec;

use super::hpack::FIELD_OVERHEAD;
use super::streams::UNKNOWN_LENGTH;
use super::violation::Violation;
use crate::http::{is_field_value, is_tchar, read_decimal, trim_ows};

/// Why a request is not passed to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The fields exceed the limit of the field list.
    TooLarge,
    Malformed(Violation),
}

impl From<Violation> for Refusal {
    fn from(violation: Violation) -> Refusal {
        Refusal::Malformed(violation)
    }
}

/// What the state of a stream records about its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The length of the body, or [`UNKNOWN_LENGTH`]. A length above 32 bits is not checked, because no server accepts such a body.
    pub body_left: u32,
    pub is_tunnel: bool,
}

/// The pseudo-header fields of requests.
#[derive(Clone, Copy)]
enum Pseudo {
    Method,
    Scheme,
    Authority,
    Path,
    Protocol,
}

/// Writes the head of one request. After a refusal, all further fields are ignored.
pub(super) struct RequestWriter<'s> {
    head: &'s mut Vec<u8>,
    /// The values of the pseudo-header fields. They are stored because their order differs from that of a request line.
    pseudo: &'s mut Vec<u8>,
    /// The ranges of these values, by [`Pseudo`].
    places: [Option<(usize, usize)>; 5],
    /// The number of bytes left of the limit.
    bytes_left: usize,
    verdict: Result<(), Refusal>,
    /// The request line is written, because a regular field has come.
    has_line: bool,
    is_tunnel: bool,
    length: Option<u64>,
    /// The last line written is a Cookie field.
    in_cookie: bool,
}

impl<'s> RequestWriter<'s> {
    /// A writer into two buffers, which are cleared first.
    pub fn new(head: &'s mut Vec<u8>, pseudo: &'s mut Vec<u8>, list_bytes: u32) -> Self {
        head.clear();
        pseudo.clear();
        RequestWriter {
            head,
            pseudo,
            places: [None; 5],
            bytes_left: list_bytes as usize,
            verdict: Ok(()),
            has_line: false,
            is_tunnel: false,
            length: None,
            in_cookie: false,
        }
    }

    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        if self.verdict.is_ok() {
            self.verdict = self.take(name, value);
        }
    }

    /// Completes the head. `ends`: the request has no body.
    ///
    /// # Errors
    /// The first refusal.
    pub fn finish(mut self, ends: bool) -> Result<Request, Refusal> {
        self.verdict?;
        if !self.has_line {
            self.write_line()?;
        }
        match self.length {
            Some(1..) if ends => return Err(Violation::BodyLength.into()),
            None if !ends && !self.is_tunnel => {
                self.head
                    .extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
            _ => {}
        }
        self.head.extend_from_slice(b"\r\n");
        let length = self.length.and_then(|length| u32::try_from(length).ok());
        Ok(Request {
            body_left: length.unwrap_or(UNKNOWN_LENGTH),
            is_tunnel: self.is_tunnel,
        })
    }

    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        let left = self.bytes_left.checked_sub(size);
        self.bytes_left = left.ok_or(Refusal::TooLarge)?;
        if !is_value(value) {
            return Err(Violation::FieldValue.into());
        }
        if let [b':', name @ ..] = name {
            return Ok(self.take_pseudo(name, value)?);
        }
        if !is_name(name) {
            return Err(Violation::FieldName.into());
        }
        if !self.has_line {
            self.write_line()?;
        }
        Ok(self.take_other(name, value)?)
    }

    fn take_pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        let pseudo = match name {
            b"method" => Pseudo::Method,
            b"scheme" => Pseudo::Scheme,
            b"authority" => Pseudo::Authority,
            b"path" => Pseudo::Path,
            b"protocol" => Pseudo::Protocol,
            _ => return Err(Violation::PseudoHeader),
        };
        let place = &mut self.places[pseudo as usize];
        if self.has_line || place.is_some() {
            return Err(Violation::PseudoHeader);
        }
        let start = self.pseudo.len();
        self.pseudo.extend_from_slice(value);
        *place = Some((start, self.pseudo.len()));
        Ok(())
    }

    fn take_other(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        let continues_cookie = self.in_cookie && name == b"cookie";
        self.in_cookie = name == b"cookie";
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => return Err(Violation::ConnectionField),
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => {
                return Err(Violation::ConnectionField);
            }
            b"host" => match value_of(self.pseudo, &self.places, Pseudo::Authority) {
                Some(authority) if authority.eq_ignore_ascii_case(value) => return Ok(()),
                Some(_) => return Err(Violation::Hosts),
                None => {}
            },
            b"content-length" => {
                if self.length.is_some() || self.is_tunnel {
                    return Err(Violation::ContentLength);
                }
                let length = read_decimal(value).ok_or(Violation::ContentLength)?;
                self.length = Some(length);
            }
            b"cookie" if continues_cookie => {
                self.head.truncate(self.head.len() - b"\r\n".len());
                for part in [b"; ", value, b"\r\n"] {
                    self.head.extend_from_slice(part);
                }
                return Ok(());
            }
            _ => {}
        }
        write_field(self.head, name, value);
        Ok(())
    }

    /// Writes the request line and the fields that come from pseudo-header fields.
    fn write_line(&mut self) -> Result<(), Violation> {
        let bad = Violation::PseudoHeader;
        self.has_line = true;
        let value = |pseudo| value_of(self.pseudo, &self.places, pseudo);
        let method = value(Pseudo::Method).ok_or(bad)?;
        if method.is_empty() || !method.iter().all(|&b| is_tchar(b)) {
            return Err(bad);
        }
        let (scheme, path) = (value(Pseudo::Scheme), value(Pseudo::Path));
        let (authority, protocol) = (value(Pseudo::Authority), value(Pseudo::Protocol));
        let is_connect = method == b"CONNECT";
        let is_plain_connect = is_connect && protocol.is_none();
        let (method, target) = if is_plain_connect {
            if scheme.is_some() || path.is_some() {
                return Err(bad);
            }
            (method, authority.ok_or(bad)?)
        } else {
            let is_known = |scheme: &[u8]| {
                scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
            };
            let path = path.ok_or(bad)?;
            let is_path = path.first() == Some(&b'/') || path == b"*" && method == b"OPTIONS";
            if !scheme.is_some_and(is_known) || !is_path {
                return Err(bad);
            }
            match protocol {
                Some(_) if !is_connect || authority.is_none() => return Err(bad),
                Some(b"websocket") => (&b"GET"[..], path),
                _ => (method, path),
            }
        };
        for part in [method, b" ", target, b" HTTP/1.1\r\n"] {
            self.head.extend_from_slice(part);
        }
        self.is_tunnel = is_connect;
        if let Some(authority) = authority {
            write_field(self.head, b"host", authority);
        }
        if protocol == Some(b"websocket") {
            write_field(self.head, b"connection", b"upgrade");
            write_field(self.head, b"upgrade", b"websocket");
        }
        Ok(())
    }
}

/// The value of a pseudo-header field, if it has come.
fn value_of<'a>(
    values: &'a [u8],
    places: &[Option<(usize, usize)>; 5],
    pseudo: Pseudo,
) -> Option<&'a [u8]> {
    let (start, end) = places[pseudo as usize]?;
    Some(&values[start..end])
}

fn write_field(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Checks a trailer field, which the server does not use.
pub(super) fn check_trailer(name: &[u8], value: &[u8]) -> Result<(), Violation> {
    match () {
        () if name.first() == Some(&b':') => Err(Violation::Trailers),
        () if !is_name(name) => Err(Violation::FieldName),
        () if !is_value(value) => Err(Violation::FieldValue),
        () => Ok(()),
    }
}

/// Whether the name is a token in lower case (RFC 9113 section 8.2.1).
fn is_name(name: &[u8]) -> bool {
    let is_allowed = |&b: &u8| is_tchar(b) && !b.is_ascii_uppercase();
    !name.is_empty() && name.iter().all(is_allowed)
}

/// Whether the value has no control character and no whitespace at either end (RFC 9113 section 8.2.1).
fn is_value(value: &[u8]) -> bool {
    is_field_value(value) && trim_ows(value).len() == value.len()
}
