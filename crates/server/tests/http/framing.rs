//! Tests request smuggling: requests that two servers could delimit in different ways. The server answers 400 and closes the connection, so
//! that no byte after such a request is read as a request.

use crate::support::Server;
use crate::support::attempt;
use crate::support::http::{Conn, info};

/// Names and bytes of such requests. The test sends another request after each, which must never be answered.
const FORMS: &[(&str, &str)] = &[
    (
        "a length and a coding",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a coding and a length",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ),
    (
        "two lengths",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ),
    ("a list of two lengths", "Content-Length: 5, 6\r\n\r\nhello"),
    ("a length with a sign", "Content-Length: +5\r\n\r\nhello"),
    ("a negative length", "Content-Length: -5\r\n\r\nhello"),
    ("a hexadecimal length", "Content-Length: 0x5\r\n\r\nhello"),
    ("an empty length", "Content-Length: \r\n\r\nhello"),
    (
        "a length beyond 64 bits",
        "Content-Length: 18446744073709551621\r\n\r\nhello",
    ),
    (
        "a length with a blank in it",
        "Content-Length: 1 5\r\n\r\nhello",
    ),
    (
        "a blank before the colon",
        "Content-Length : 5\r\n\r\nhello",
    ),
    (
        "a coding with a blank before the colon",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked twice",
        "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked twice in two fields",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked not last",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "a folded line",
        "X-A: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "a line that ends in LF",
        "X-A: 1\nContent-Length: 5\r\n\r\nhello",
    ),
    ("a head that ends in LF LF", "Content-Length: 5\n\nhello"),
    (
        "a CR amid a value",
        "X-A: 1\rContent-Length: 50\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "a NUL in a value",
        "X-A: 1\0\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "a NUL in a name",
        "X\0A: 1\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "a field without a name",
        ": 1\r\nContent-Length: 5\r\n\r\nhello",
    ),
    ("a line without a colon", "Content-Length 5\r\n\r\nhello"),
    (
        "a second host",
        "Host: localhost\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "a chunk size that is none",
        "Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a chunk size with a sign",
        "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a chunk size with 0x",
        "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "an empty chunk size",
        "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a chunk size that ends in LF",
        "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    ),
    (
        "a chunk longer than its size",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
    ),
    (
        "a chunk extension with a bare LF",
        "Transfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    ),
];

#[test]
fn ambiguous_requests_are_400_and_close_the_connection() {
    let server = Server::start();
    let mut failures = Vec::new();
    for (name, bytes) in FORMS {
        let mut conn = Conn::open(&server);
        let head = "POST /pub/first HTTP/1.1\r\nHost: localhost\r\n";
        let smuggled =
            "POST /pub/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
        conn.send(format!("{head}{bytes}{smuggled}"));
        let outcome = attempt(|| (conn.response().status, conn.read_to_end()));
        if outcome != Some((400, Vec::new())) {
            failures.push(format!(
                "{name}: {outcome:?} (none: no answer, or it stays open)"
            ));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    for topic in ["first", "smuggled"] {
        let response = Conn::open(&server).get(&format!("/pub/{topic}"), &[]);
        assert_eq!(
            response.status, 404,
            "something was published: {response:?}"
        );
    }
}

#[test]
fn a_chunk_size_beyond_64_bits_is_refused() {
    let server = Server::start();
    for (size, status) in [
        ("ffffffffffffffff", 413),
        ("10000000000000000", 400),
        ("fffffffffffffffffffff", 400),
    ] {
        let mut conn = Conn::open(&server);
        conn.send(format!("POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\nx"));
        assert_eq!(conn.response().status, status, "{size}");
        assert!(conn.read_to_end().is_empty());
    }
}

#[test]
fn unknown_transfer_codings_are_refused() {
    let server = Server::start();
    // RFC 9112 section 6.1: 501 for a coding that the server does not know. Section 6.3: 400 is a MUST if `chunked` is not the last
    // coding, since then the end of the body is unknown.
    for (coding, status) in [
        ("gzip, chunked", 501),
        ("gzip", 400),
        ("identity", 400),
        ("xchunked", 400),
        ("\u{b}chunked", 400),
        ("\"chunked\"", 400),
    ] {
        let mut conn = Conn::open(&server);
        conn.send(format!("POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n"));
        assert_eq!(conn.response().status, status, "{coding:?}");
        assert!(conn.read_to_end().is_empty(), "{coding:?}");
    }
}

#[test]
fn malformed_request_lines_are_400_and_close_the_connection() {
    let server = Server::start();
    let mut failures = Vec::new();
    for line in [
        "GET  /pub/a HTTP/1.1",
        "GET /pub/a  HTTP/1.1",
        "GET\t/pub/a HTTP/1.1",
        "GET /pub/a HTTP/1.1 ",
        " GET /pub/a HTTP/1.1",
        "GET /pub/a",
        "GET",
        "GET /pub/a http/1.1",
        "GET /pub/a HTTP/1.1x",
        "GET /pub/a HTTP/11",
        "G(T /pub/a HTTP/1.1",
        "GET /pub/\u{1}a HTTP/1.1",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}",
        "GET pub/a HTTP/1.1",
        "GET /pub/a b HTTP/1.1",
    ] {
        let mut conn = Conn::open(&server);
        conn.send(format!(
            "{line}\r\nHost: localhost\r\n\r\nGET /pub/a HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ));
        let outcome = attempt(|| (conn.response().status, conn.read_to_end()));
        if outcome
            .as_ref()
            .is_none_or(|(status, following)| ![400, 505].contains(status) || !following.is_empty())
        {
            failures.push(format!(
                "{line:?}: {outcome:?} (none: no answer, or it stays open)"
            ));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn http_1_1_requires_exactly_one_host() {
    let server = Server::start();
    for head in [
        "GET /pub/a HTTP/1.1\r\n\r\n",
        "GET /pub/a HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET /pub/a HTTP/1.1\r\nHost: localhost\r\nhost: other\r\n\r\n",
        "GET /pub/a HTTP/1.1\r\nHost: local host\r\n\r\n",
    ] {
        let mut conn = Conn::open(&server);
        conn.send(head);
        assert_eq!(conn.response().status, 400, "{head:?}");
        assert!(conn.read_to_end().is_empty(), "{head:?}");
    }
}

#[test]
fn transfer_coding_in_http_1_0_is_400() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    // RFC 9112 section 6.1: such framing is faulty, and the connection must end.
    conn.send("POST /pub/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET /pub/a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(conn.response().status, 400);
    assert!(conn.read_to_end().is_empty());
}

#[test]
fn requests_in_one_segment_are_answered_in_order() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let mut bytes = Vec::new();
    for number in 0..50 {
        bytes.extend(conn.request_bytes("POST", "/pub/news", &[], number.to_string().as_bytes()));
        bytes.extend(conn.request_bytes("GET", "/sub/news?since=-1", &[], b""));
        bytes.extend(conn.request_bytes("GET", &format!("/pub/nothing/{number}"), &[], b""));
    }
    conn.send(bytes);
    for number in 0..50 {
        assert_eq!(conn.response().status, 202);
        assert_eq!(conn.response().text(), number.to_string());
        assert_eq!(conn.response().status, 404);
    }
    assert_eq!(info(&server, "news")["messages"], 50);
}
