//! Fuzz targets for HTTP request heads, chunked bodies, and the grammars of header fields.

use crore_wire::http::body::{BodyError, ChunkedDecoder};
use crore_wire::http::date::{self, MAX_UNIX_S};
use crore_wire::http::head::{self, Body, Head, HeadError};
use crore_wire::http::{etag, forwarded, origin, proxy};
use crore_wire::websocket::handshake;
use std::net::{IpAddr, Ipv4Addr};

use crate::Input;

pub const WORDS: &[&str] = &[
    "GET ",
    "POST /pub/a HTTP/1.1\r\n",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "Host: x\r\n",
    "Host: [::1]:80\r\n",
    "\r\n",
    "\r\n\r\n",
    "\n",
    "\r",
    "http://a.b/c?d",
    "* ",
    "Content-Length: 5\r\n",
    "Content-Length: 18446744073709551615\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Connection: close, upgrade\r\n",
    "Upgrade: websocket\r\n",
    "Expect: 100-continue\r\n",
    "Accept: text/event-stream;q=0.5, */*\r\n",
    ": ",
    " \t",
    "%2f",
    "?",
];

pub const CHUNK_WORDS: &[&str] = &[
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "\r\n",
    ";ext=\"x\"",
    "ffffffffffffffff\r\n",
    "00000000000000001\r\n",
    "Trailer: x\r\n",
    "A\r\n",
    "\r",
    "\n",
];

pub const FIELD_WORDS: &[&str] = &[
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "Sun Nov  6 08:49:37 1994",
    "29 Feb 2000",
    "W/\"1a-5\"",
    "\"x\"",
    "192.0.2.1:80",
    "[2001:db8::1]:443",
    "::ffff:10.0.0.1",
    ", ",
    "https://example.com",
    "localhost:8800",
    "permessage-deflate; server_max_window_bits=15",
    "client_max_window_bits",
    "dGhlIHNhbXBsZSBub25jZQ==",
    "\r\n\r\n\0\r\nQUIT\n",
    "\x21\x11\0\x0c",
    "ws+meta.nchan",
    "\n",
];

/// Choices for the limit of a head: from one that is too small for any head to the server's own.
const HEAD_LIMITS: [usize; 4] = [16, 64, 256, 8192];
/// Choices for the limit of a body's data.
const BODY_LIMITS: [usize; 4] = [0, 10, 1000, 1 << 20];

/// The parts of a parsed head that are compared.
#[derive(Debug, PartialEq)]
struct Seen<'b> {
    len: usize,
    line: (head::Method, &'b [u8], &'b [u8], u8),
    host: Option<&'b [u8]>,
    body: Result<Body, HeadError>,
    keep_alive: bool,
    is_upgrade: bool,
}

fn look<'b>(bytes: &'b [u8], limit: usize) -> Result<Option<Seen<'b>>, HeadError> {
    Ok(head::parse(bytes, limit)?.map(|head| Seen {
        len: head.len,
        line: (head.method, head.path, head.query, head.minor),
        host: head.host(),
        body: head.body(),
        keep_alive: head.keep_alive(),
        is_upgrade: head.is_websocket_upgrade(),
    }))
}

/// Parses a request head. Checked: the verdict does not depend on the cuts (the places where the input is split into pieces) or on what
/// follows the head. The body's length is the one that a strict reader finds.
pub fn head(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let limit = HEAD_LIMITS[usize::from(input.options & 3)];
    let whole = look(input.bytes, limit);
    let mut end = 0;
    let mut first = Ok(None);
    for piece in input.pieces() {
        end += piece.len();
        first = look(&input.bytes[..end], limit);
        if first != Ok(None) {
            break;
        }
    }
    assert_eq!(first, whole, "the verdict depends on the cuts");
    let Ok(Some(head)) = head::parse(input.bytes, limit) else {
        return;
    };
    assert!(head.len <= limit && head.len <= input.bytes.len());
    assert_eq!(
        look(&input.bytes[..head.len], limit),
        whole,
        "what follows a head changes it"
    );
    assert!(head.minor == 0 || head.host().is_some());
    framing(&head);
    head.accept();
    assert!(
        !head.expects_continue() || matches!(head.body(), Ok(Body::Chunked | Body::Length(1..)))
    );
}

/// Checks the length of the body against the header fields, which are read as strictly as possible.
fn framing(head: &Head<'_>) {
    let lengths: Vec<&[u8]> = head.headers("content-length").collect();
    let codings: Vec<&[u8]> = head.headers("transfer-encoding").collect();
    match head.body() {
        Ok(Body::None) => assert!(lengths.is_empty() && codings.is_empty()),
        Ok(Body::Length(length)) => {
            assert!(codings.is_empty() && lengths.len() == 1, "{lengths:?}");
            let text = std::str::from_utf8(lengths[0]).expect("digits");
            assert!(text.bytes().all(|b| b.is_ascii_digit()), "{text}");
            assert_eq!(text.parse(), Ok(length));
        }
        Ok(Body::Chunked) => {
            assert!(lengths.is_empty() && codings.len() == 1 && head.minor == 1);
            assert!(codings[0].eq_ignore_ascii_case(b"chunked"));
        }
        Err(error) => assert!(matches!(error.status(), 400 | 417 | 501)),
    }
}

/// A body's data, and its end if it was reached.
type Decoded = Result<(Vec<u8>, Option<usize>), BodyError>;

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>, limit: usize) -> Decoded {
    let (mut chunked, mut data, mut before) = (ChunkedDecoder::default(), Vec::new(), 0);
    for piece in pieces {
        let mut buf = piece.to_vec();
        let progress = chunked.decode(&mut buf, limit)?;
        assert!(progress.written <= progress.consumed && progress.consumed <= piece.len());
        assert_eq!(buf[progress.consumed..], piece[progress.consumed..]);
        data.extend_from_slice(&buf[..progress.written]);
        if progress.done {
            return Ok((data, Some(before + progress.consumed)));
        }
        assert_eq!(progress.consumed, piece.len(), "bytes were left over");
        before += piece.len();
    }
    Ok((data, None))
}

/// Decodes a chunked body. Checked: the data does not depend on the cuts, stays within the limit, and is the same after it is chunked again.
pub fn body(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let limit = BODY_LIMITS[usize::from(input.options & 3)];
    let whole = decode(std::iter::once(input.bytes), limit);
    assert_eq!(decode(input.pieces(), limit), whole);
    let Ok((data, Some(_))) = whole else { return };
    assert!(data.len() <= limit);
    let mut again = Vec::new();
    for piece in data.chunks(7) {
        again.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        again.extend_from_slice(piece);
        again.extend_from_slice(b"\r\n");
    }
    again.extend_from_slice(b"0\r\n\r\n");
    let end = again.len();
    assert_eq!(
        decode(std::iter::once(&again[..]), limit),
        Ok((data, Some(end)))
    );
}

/// Parses values of header fields, and the PROXY header. Checked: parsed values can be written and parsed again.
pub fn fields(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let value = input.bytes;
    if let Some(unix_s) = date::parse_date(value) {
        assert!(unix_s <= MAX_UNIX_S);
        let mut text = Vec::new();
        date::write_date(&mut text, unix_s);
        assert_eq!(date::parse_date(&text), Some(unix_s));
    }
    for tag in etag::entity_tags(value) {
        let quoted = [b"W/\"", tag, b"\""].concat();
        assert_eq!(etag::opaque_tag(&quoted), etag::opaque_tag(tag));
    }
    if let Some(normal) = origin::normalize(value) {
        let again = origin::normalize(normal.as_bytes());
        assert_eq!(again.as_ref(), Some(&normal));
    }
    let (left, right) = halves(value);
    if origin::same_origin(left, right) {
        let scheme = left.to_ascii_lowercase();
        assert!(scheme.starts_with(b"http://") || scheme.starts_with(b"https://"));
        // The letter case of an origin does not matter.
        assert!(origin::same_origin(left, &right.to_ascii_uppercase()));
    }
    origin::is_loopback_host(value);
    let trusted = [(IpAddr::from([10, 0, 0, 0]), 8)];
    let peer = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let stranger = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
    let lists = || [left, right].into_iter();
    assert_eq!(
        forwarded::client_address(lists(), stranger, &trusted),
        stranger
    );
    let client = forwarded::client_address(lists(), peer, &trusted);
    assert_eq!(client, client.to_canonical());
    handshake::negotiate_deflate(lists());
    if let Some(name) = handshake::choose_subprotocol(lists(), &["ws+meta.nchan"]) {
        assert!(
            value
                .windows(name.len())
                .any(|part| part == name.as_bytes())
        );
    }
    assert!(handshake::accept_key(value).is_none() || value.len() == 24);
    proxied(&input);
}

/// Parses a PROXY header. Checked: the verdict does not depend on the cuts.
fn proxied(input: &Input<'_>) {
    let whole = proxy::parse_v2(input.bytes);
    let mut end = 0;
    let mut first = Ok(None);
    for piece in input.pieces() {
        end += piece.len();
        first = proxy::parse_v2(&input.bytes[..end]);
        if first != Ok(None) {
            break;
        }
    }
    assert_eq!(first, whole, "the verdict depends on the cuts");
    if let Ok(Some((_, len))) = whole {
        assert!(len <= input.bytes.len());
    }
}

/// The bytes before and after the first newline.
pub fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&b| b == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}
