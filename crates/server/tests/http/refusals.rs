//! Tests the body of a refusal: a line of text, or a problem document (RFC 9457) if the client prefers JSON.

use crate::support::Server;
use crate::support::http::{Conn, Response, once};
use crate::support::ws::handshake;

const JSON: (&str, &str) = ("Accept", "application/json");

/// Checks the status of a response, and that its body is a problem document whose detail contains `words`. `case` names the case in the
/// message of a failure.
fn assert_problem(answer: &Response, status: u16, words: &str, case: &str) {
    assert_eq!(answer.status, status, "{case}: {answer:?}");
    let content_type = answer.header("content-type");
    assert_eq!(
        content_type.as_deref(),
        Some("application/problem+json"),
        "{case}"
    );
    let problem = answer.json();
    assert_eq!(problem["type"], "about:blank", "{case}");
    assert_eq!(problem["status"], status, "{case}");
    assert!(
        problem["title"]
            .as_str()
            .is_some_and(|title| !title.is_empty()),
        "{case}"
    );
    let detail = problem["detail"].as_str().expect("words");
    assert!(detail.contains(words), "{case}: {detail}");
}

#[test]
fn a_client_that_prefers_json_gets_each_refusal_as_a_problem() {
    let server = Server::with(
        "[limits]\nmessage_bytes = 1000\n[[rule]]\nmatch = 'shut/#'\npublisher_creates = true\n",
    );
    for (method, target, status, words) in [
        ("GET", "/sub/a?since=yesterday", 400, "`yesterday`"),
        ("GET", "/sub/a%2Fb", 400, "encoded slash"),
        ("GET", "/nowhere", 404, "no such path"),
        ("GET", "/pub/nothing", 404, "no such topic"),
        ("POST", "/sub/a", 405, "GET, HEAD, OPTIONS"),
        ("TRACE", "/nowhere", 405, "does nothing anywhere"),
        ("POST", "/pub/$SYS", 403, "begin with $"),
        ("GET", "/sub/shut/a", 403, "only publishers create topics"),
        ("GET", "/pubsub/a", 426, "WebSocket"),
    ] {
        let answer = once(&server, method, target, &[JSON], "");
        assert_problem(&answer, status, words, target);
        assert_eq!(answer.header("allow").is_some(), status == 405, "{target}");
    }
    // The Accept header that axios sends.
    let axios = [("Accept", "application/json, text/plain, */*")];
    assert_problem(
        &once(&server, "GET", "/nowhere", &axios, ""),
        404,
        "no such path",
        "axios",
    );
    let problem = [("Accept", "application/problem+json")];
    assert_problem(
        &once(&server, "GET", "/nowhere", &problem, ""),
        404,
        "no such path",
        "by name",
    );
    let headers = [handshake(&[("Sec-WebSocket-Version", "8")]), vec![JSON]].concat();
    let upgrade = Conn::open(&server).get("/nowhere", &headers);
    assert_problem(&upgrade, 404, "no such path", "an upgrade");
}

#[test]
fn problem_has_its_content_type_however_the_body_is_sent() {
    let server = Server::with("[limits]\nmessage_bytes = 1000\n");
    let long = "x".repeat(1_500);
    let by_length = once(&server, "POST", "/pub/a", &[JSON], &long);
    assert_problem(&by_length, 413, "limits.message_bytes", "a length");
    let mut conn = Conn::open(&server);
    conn.send(format!(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n{long}\r\n0\r\n\r\n"
    ));
    assert_problem(&conn.response(), 413, "limits.message_bytes", "chunks");
    let mut conn = Conn::open(&server);
    conn.send("POST /pub/a HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
    assert_problem(&conn.response(), 501, "", "a coding");
}

#[test]
fn other_clients_get_a_line_of_text() {
    let server = Server::start();
    for accept in [
        &[][..],
        &[("Accept", "*/*")],
        &[("Accept", "text/event-stream")],
    ] {
        let answer = once(&server, "GET", "/sub/a?since=yesterday", accept, "");
        assert_eq!(answer.status, 400);
        let content_type = answer.header("content-type");
        assert_eq!(content_type.as_deref(), Some("text/plain; charset=utf-8"));
        let text = answer.text();
        assert!(
            text.ends_with("`yesterday`\n") && text.lines().count() == 1,
            "{text}"
        );
    }
    // One connection of a proxy carries requests of many clients, so each answer has the form for its own request.
    let mut conn = Conn::open(&server);
    assert!(conn.get("/nowhere", &[JSON]).text().starts_with('{'));
    assert!(conn.get("/nowhere", &[]).text().starts_with("no such path"));
    let head = conn.request("HEAD", "/nowhere", &[JSON], "");
    assert_eq!((head.status, head.body.len()), (404, 0));
}
