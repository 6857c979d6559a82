//! Tests that a page of an allowed origin can read each refusal: the status, the text, and when to try again. If a refusal lacks
//! `Access-Control-Allow-Origin`, the browser gives the page a network error instead (Fetch standard, CORS check).

use crate::support::Server;
use crate::support::http::{Conn, Response, once};

const PAGE: (&str, &str) = ("Origin", "https://app.example");

fn server(limits: &str) -> Server {
    Server::with(&format!(
        "[http]\nallowed_origins = ['https://app.example', 'https://other.example']\n\
         [limits]\nmessage_bytes = 1000\nbatch_bytes = 2000\n{limits}\n\
         [timeouts]\nhead_s = 1\nbody_s = 1\n\
         [[rule]]\nmatch = 'made/#'\npublisher_creates = true\n\
         [[rule]]\nmatch = 'slow/#'\npoll_timeout_s = 1\npoll_timeout_status = 408\n\
         [access.anonymous]\npublish = ['t/#', 'gone']\nsubscribe = ['t/#', 'gone', 'made/#', 'slow/#']\ninfo = ['#']\nmanage = ['gone']\n\
         [[access.key]]\nalg = 'HS256'\nsecret = '0123456789abcdef0123456789abcdef'\n"
    ))
}

fn assert_readable(answer: &Response, status: u16, case: &str) {
    assert_eq!(answer.status, status, "{case}: {answer:?}");
    let origin = answer.header("access-control-allow-origin");
    assert_eq!(origin.as_deref(), Some(PAGE.1), "{case}: {answer:?}");
    assert!(
        answer.lists("access-control-expose-headers", "retry-after"),
        "{case}: {answer:?}"
    );
}

/// Sends `bytes` over a new connection. Returns the response.
fn response_to(server: &Server, bytes: impl AsRef<[u8]>) -> Response {
    let mut conn = Conn::open(server);
    conn.send(bytes);
    conn.response()
}

#[test]
fn a_page_of_a_listed_origin_reads_each_refusal() {
    let server = server("");
    for (method, target, extra, status) in [
        ("GET", "/sub/t/a%2Fb", &[][..], 400),
        ("GET", "/sub/t/a?since=yesterday", &[], 400),
        ("GET", "/sub/secret", &[], 401),
        ("GET", "/sub/t/a", &[("Authorization", "Bearer x.y.z")], 401),
        ("GET", "/sub/made/x", &[], 403),
        ("GET", "/nowhere", &[], 404),
        ("GET", "/pub/unknown", &[], 404),
        ("PATCH", "/pub/t/a", &[], 405),
        ("GET", "/sub/slow/a?since=live", &[], 408),
        ("GET", "/pubsub/t/a", &[], 426),
        ("POST", "/pub/t/a", &[("Content-Encoding", "gzip")], 415),
        ("GET", "/sub/t/a", &[("Host", "rebound.example")], 403),
        ("GET", "/sub/t/a", &[("Sec-Fetch-Dest", "script")], 403),
    ] {
        let headers = [&[PAGE][..], extra].concat();
        let answer = once(&server, method, target, &headers, "");
        assert_readable(&answer, status, target);
    }
}

#[test]
fn a_page_of_a_listed_origin_reads_refusals_of_heads_and_bodies() {
    let server = server("");
    let long = "x".repeat(1_500);
    let post = "POST /pub/t/a HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\n";
    for (case, bytes, status) in [
        (
            "a length",
            format!("{post}Content-Length: 1500\r\n\r\n"),
            413,
        ),
        (
            "a body",
            format!("{post}Content-Length: 1500\r\n\r\n{long}"),
            413,
        ),
        (
            "chunks",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n5dc\r\n{long}\r\n0\r\n\r\n"),
            413,
        ),
        (
            "a batch",
            format!(
                "{}Content-Type: application/x-ndjson\r\nContent-Length: 3000\r\n\r\n",
                post.replace("/t/a", "")
            ),
            413,
        ),
        (
            "a bad chunk",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            400,
        ),
        (
            "two lengths",
            format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\nx"),
            400,
        ),
        (
            "a coding",
            format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n"),
            501,
        ),
        ("an expectation", format!("{post}Expect: more\r\n\r\n"), 417),
        (
            "a slow body",
            format!("{post}Content-Length: 900\r\n\r\nxx"),
            408,
        ),
        ("a slow head", post.to_string(), 408),
        ("a bad line", format!("{post}no field\r\n\r\n"), 400),
        (
            "a target that is no path",
            post.replace("/pub/t/a", "/pub/\u{e9}") + "\r\n",
            400,
        ),
        (
            "a long head",
            format!("{post}X-Long: {}\r\n\r\n", "x".repeat(40_000)),
            431,
        ),
        (
            "many fields",
            format!("{post}{}\r\n", "X: y\r\n".repeat(80)),
            431,
        ),
    ] {
        assert_readable(&response_to(&server, bytes), status, case);
    }
}

#[test]
fn page_of_a_listed_origin_reads_refusals_by_limits() {
    let server = server("publishes_per_address_per_s = 1");
    let post = || once(&server, "POST", "/pub/t/a", &[PAGE], "x");
    let refused = std::iter::repeat_with(post).find(|answer| answer.status != 202);
    let refused = refused.expect("it has no end");
    assert_readable(&refused, 429, "publishes of an address");
    assert!(refused.header("retry-after").is_some());
}

#[test]
fn a_page_of_a_listed_origin_reads_that_the_server_is_full() {
    let server = Server::with(
        "[http]\nallowed_origins = ['https://app.example']\n[limits]\nconnections_max = 1\n",
    );
    let _held = crate::support::stream::Stream::open(&server, "/sub/a", &[]);
    for target in ["/sub/a", "/pub/a"] {
        let refused = once(&server, "GET", target, &[PAGE], "");
        assert_readable(&refused, 503, target);
    }
}

#[test]
fn refusal_has_no_headers_of_the_previous_request() {
    let server = server("");
    let first = format!(
        "HEAD /pub/none HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nOrigin: {}\r\n\r\n",
        PAGE.1
    );
    for (next_request, status) in [
        ("nonsense\r\n\r\n", 400),
        (
            "GET /sub/t/a HTTP/1.1\r\nHost: localhost\r\nno field\r\n\r\n",
            400,
        ),
        (
            "POST /pub/t/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
            413,
        ),
        ("GET /sub/t/a HTTP/1.1\r\n", 408),
    ] {
        let mut conn = Conn::open(&server);
        conn.send(&first);
        assert_eq!(conn.response_to("HEAD").status, 404);
        conn.send(next_request);
        let answer = conn.response();
        assert_eq!(answer.status, status, "{next_request}");
        assert_eq!(
            answer.header("access-control-allow-origin"),
            None,
            "{next_request}"
        );
        let content_type = answer.header("content-type");
        assert_eq!(
            content_type.as_deref(),
            Some("text/plain; charset=utf-8"),
            "{next_request}"
        );
        assert!(!answer.body.is_empty(), "{next_request}");
    }
}

#[test]
fn the_refusal_of_a_head_request_has_no_body() {
    let server = server("");
    let mut conn = Conn::open(&server);
    conn.send("HEAD /pub/t/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n");
    let answer = conn.response_to("HEAD");
    assert_eq!(answer.status, 413);
    assert_eq!(conn.read_to_end(), b"");
}
