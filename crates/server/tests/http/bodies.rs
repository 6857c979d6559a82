//! Tests decisions before a request's body arrives. A refused client is answered at once and not asked for the body, and no byte of the
//! body is read as a request.

use crate::support::Server;
use crate::support::attempt;
use crate::support::http::{Conn, Response, once, publish};
use crate::support::ws::handshake;
use std::net::Shutdown;

const EXPECTS: (&str, &str) = ("Expect", "100-continue");
/// Settings under which nothing is permitted without a token.
const CLOSED: &str =
    "[[access.key]]\nalg = \"HS256\"\nsecret = \"0123456789abcdef0123456789abcdef\"\n";

/// A refused request: the server, the status, the method, the target and the header fields.
type Refused<'a> = (&'a Server, u16, &'a str, &'a str, &'a [(&'a str, &'a str)]);

/// The head of a request whose body comes later.
fn head(method: &str, target: &str, headers: &[(&str, &str)], length: usize) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text + &format!("Content-Length: {length}\r\n\r\n")
}

/// Sends the head of a request and returns the response to it. Then sends a body that looks like requests, and checks that the server
/// closes the connection without another response.
fn refused(server: &Server, method: &str, target: &str, headers: &[(&str, &str)]) -> Response {
    let mut conn = Conn::open(server);
    let smuggled = conn.request_bytes("POST", "/pub/smuggled", &[], b"x");
    let body = smuggled.repeat(100);
    conn.send(head(method, target, headers, body.len() + 1_000));
    let response = conn.response();
    conn.send(body);
    let _ = conn.stream().shutdown(Shutdown::Write);
    let following = conn.read_to_end();
    assert!(
        following.is_empty(),
        "{:?}",
        String::from_utf8_lossy(&following)
    );
    response
}

#[test]
fn refused_request_is_answered_before_its_body_and_not_asked_for_it() {
    let open = Server::with("[limits]\nmessage_bytes = \"64 KiB\"\n");
    let closed = Server::with(CLOSED);
    let foreign = ("Origin", "https://evil.example");
    let worthless = ("Authorization", "Bearer a.b.c");
    let lines = ("Content-Type", "application/x-ndjson");
    let table: &[Refused<'_>] = &[
        (&closed, 401, "POST", "/pub/a", &[]),
        (&closed, 401, "POST", "/pub/a", &[worthless]),
        (&closed, 401, "POST", "/pub", &[lines]),
        (&open, 403, "POST", "/pub/a", &[foreign]),
        (&open, 403, "POST", "/pub/$SYS/a", &[]),
        (&open, 404, "POST", "/elsewhere", &[]),
        (&open, 405, "POST", "/sub/a", &[]),
        (&open, 405, "PATCH", "/pub/a", &[]),
        (&open, 426, "GET", "/pubsub/a", &[]),
        (&open, 400, "POST", "/pub/a%00", &[]),
        (&open, 400, "PUT", "/pub/a", &[]),
    ];
    let mut failures = Vec::new();
    for (server, status, method, target, extra) in table {
        for expects in [false, true] {
            let mut headers = extra.to_vec();
            headers.extend(expects.then_some(EXPECTS));
            let response = attempt(|| refused(server, method, target, &headers));
            let is_right = response.as_ref().is_some_and(|response| {
                response.status == *status && response.lists("connection", "close")
            });
            if !is_right {
                failures.push(format!("{method} {target} {headers:?}: {response:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(once(&open, "GET", "/pub/smuggled", &[], "").status, 404);
    let mut conn = Conn::open(&open);
    conn.send(head("POST", "/pub/a", &[EXPECTS], 65_537));
    assert_eq!(conn.response().status, 413);
    assert!(conn.ends());
}

#[test]
fn allowed_request_is_asked_for_its_body_once() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    conn.send(head("POST", "/pub/a", &[EXPECTS], 10));
    assert_eq!(conn.response().status, 100);
    conn.send("01234");
    conn.send("56789");
    assert_eq!(conn.response().status, 202);
    // The connection can be used for the next request.
    assert_eq!(conn.get("/sub/a", &[]).text(), "0123456789");
    // The body has arrived with the head, so the server does not answer 100 first.
    assert_eq!(
        conn.request("POST", "/pub/b", &[EXPECTS], "body").status,
        202
    );
    // After a refused request without a body the connection stays open. After one with a body it is closed, even if the body has arrived.
    let response = conn.request("GET", "/elsewhere", &[], "");
    assert_eq!(
        (response.status, response.header("connection")),
        (404, None)
    );
    let response = conn.request("POST", "/elsewhere", &[EXPECTS], "body");
    assert_eq!(response.status, 404);
    assert!(response.lists("connection", "close") && conn.ends());
}

#[test]
fn client_that_sends_its_body_before_it_reads_gets_the_answer() {
    let server = Server::with(CLOSED);
    for _ in 0..5 {
        let mut conn = Conn::open(&server);
        conn.send(head("POST", "/pub/a", &[], 1_000_000));
        for _ in 0..100 {
            conn.send([b'x'; 10_000]);
        }
        assert_eq!(conn.response().status, 401);
        assert!(conn.ends());
    }
}

#[test]
fn client_that_sends_an_unread_body_for_ever_is_disconnected() {
    let server = Server::with(
        "[limits]\nmessage_bytes = 10000\nbatch_bytes = 10000\n[timeouts]\ndrain_s = 600\n",
    );
    let mut conn = Conn::open(&server);
    conn.send(head("POST", "/elsewhere", &[], 9_000));
    assert_eq!(conn.response().status, 404);
    for _ in 0..1_000 {
        conn.send([b'x'; 10_000]);
    }
    assert!(conn.ends());
}

#[test]
fn refused_client_gets_one_answer_for_any_body() {
    let server = Server::with("[limits]\nconnections_max = 1\n");
    let mut only_client = Conn::open(&server);
    assert_eq!(only_client.request("POST", "/pub/a", &[], "x").status, 202);
    for (headers, status) in [(&[][..], 503), (&[("Origin", "https://evil.example")], 403)] {
        let mut conn = Conn::open(&server);
        let body = conn.request_bytes("GET", "/pub/a", &[], b"");
        let text = conn.request_bytes("POST", "/pub/a", headers, &body);
        conn.send(text);
        let response = conn.response();
        assert_eq!(response.status, status, "{response:?}");
        assert!(response.lists("connection", "close"), "{response:?}");
        let following = conn.read_to_end();
        assert!(
            following.is_empty(),
            "{:?}",
            String::from_utf8_lossy(&following)
        );
    }
}

#[test]
fn put_with_a_body_is_refused_with_a_remedy() {
    let server = Server::start();
    let response = once(&server, "PUT", "/pub/a", &[], "a file");
    assert_eq!(response.status, 400);
    assert!(response.text().contains("POST publishes"), "{response:?}");
    assert_eq!(once(&server, "GET", "/pub/a", &[], "").status, 404);
    assert_eq!(once(&server, "PUT", "/pub/a", &[], "").status, 201);
}

#[test]
fn requests_pipelined_after_a_poll_are_bounded_and_never_lost_silently() {
    let server = Server::with_shards(1, "[limits]\nhead_bytes = 4096\n");
    publish(&server, "news", "one");
    // A pipelined request that fits into the buffer is answered.
    let mut conn = Conn::open(&server);
    let mut text = conn.request_bytes("GET", "/sub/quiet", &[], b"");
    text.extend(conn.request_bytes("GET", "/sub/news", &[], b""));
    conn.send(text);
    server.await_subscribers("quiet", 1);
    publish(&server, "quiet", "answer");
    assert_eq!(conn.response().text(), "answer");
    assert_eq!(conn.response().text(), "one");
    // A pipelined request that does not fit is dropped, and the answer before it says that the connection ends.
    let mut conn = Conn::open(&server);
    let mut text = conn.request_bytes("GET", "/sub/silent", &[], b"");
    text.extend(conn.request_bytes("POST", "/pub/late", &[], &[b'x'; 10_000]));
    conn.send(text);
    server.await_subscribers("silent", 1);
    publish(&server, "silent", "answer");
    let response = conn.response();
    assert_eq!(response.text(), "answer");
    assert!(response.lists("connection", "close"), "{response:?}");
    assert!(conn.read_to_end().is_empty());
    assert_eq!(once(&server, "GET", "/pub/late", &[], "").status, 404);
    // Frames after a handshake are kept.
    let mut conn = Conn::open(&server);
    let mut text = conn.request_bytes("GET", "/pubsub/frames", &handshake(&[]), b"");
    text.extend(crate::support::ws::masked(
        crate::support::ws::FIN | crate::support::ws::TEXT,
        &[b'x'; 10_000],
    ));
    conn.send(text);
    assert_eq!(conn.head().status, 101);
    server.await_subscribers("frames", 1);
}

#[test]
fn content_coding_is_refused_with_415_and_the_accepted_codings() {
    let server = Server::start();
    let ndjson = ("Content-Type", "application/x-ndjson");
    let line = "{\"topic\":\"b\",\"data\":1}\n";
    for coding in [
        "gzip",
        "GZIP",
        "x-gzip",
        "deflate",
        "br",
        "zstd",
        "compress",
        "aes128gcm",
        "identity, gzip",
        "gzip, identity",
        "gz;q=1",
    ] {
        let coded = ("Content-Encoding", coding);
        for (target, headers, body) in [
            ("/pub/a", vec![coded], "x"),
            ("/pub?topic=a", vec![coded, ndjson], line),
            ("/pub", vec![ndjson, coded], line),
            ("/pub/a", vec![("Content-Encoding", "identity"), coded], "x"),
            ("/pub/a", vec![coded, ("Expect", "100-continue")], "x"),
        ] {
            let answer = once(&server, "POST", target, &headers, body);
            assert_eq!(answer.status, 415, "{target} {coding}");
            assert_eq!(
                answer.header("accept-encoding").as_deref(),
                Some("identity")
            );
            assert!(answer.text().contains("application/gzip"), "{answer:?}");
        }
    }
    assert_eq!(
        once(&server, "GET", "/pub/a", &[], "").status,
        404,
        "nothing was published"
    );
    for coding in ["identity", "Identity", "", "identity, identity"] {
        let headers = [("Content-Encoding", coding)];
        let answer = once(&server, "POST", "/pub/a", &headers, "x");
        assert!(answer.status < 300, "{coding:?}: {answer:?}");
        let batch = once(&server, "POST", "/pub", &[ndjson, headers[0]], line);
        assert_eq!(batch.status, 200, "{coding:?}");
    }
    // A transfer coding is not a content coding. The only transfer coding that the server accepts is `chunked`.
    let transfer = [("Transfer-Encoding", "gzip, chunked")];
    let mut conn = Conn::open(&server);
    conn.send(format!(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\n{}: {}\r\n\r\n",
        transfer[0].0, transfer[0].1
    ));
    assert_eq!(conn.response().status, 501);
}
