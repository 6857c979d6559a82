//! Tests that no cache between server and client reuses an answer: each answer says what a cache may do with it. RFC 9111 section 4.2.2
//! lets a cache keep answers that say nothing.

use crate::support::Server;
use crate::support::http::{Conn, Response, once};
use crate::support::port::raw;
use crate::support::stream::Stream;

/// Checks the Cache-Control of an answer: there is one field, and it forbids a cache to store the answer or to reuse it without asking.
fn assert_never_reused(answer: &Response, request: &str) {
    let fields = answer.headers.iter();
    let rules: Vec<&str> = fields
        .filter(|(name, _)| name == "cache-control")
        .map(|(_, value)| value.as_str())
        .collect();
    let [rule] = rules[..] else {
        panic!("{request}: {rules:?} in {answer:?}")
    };
    let mut rules = rule.split(", ");
    assert!(
        rules.any(|rule| ["no-store", "no-cache"].contains(&rule)),
        "{request}: {rule}"
    );
}

#[test]
fn no_cache_keeps_an_answer_that_the_next_message_changes() {
    let server = Server::with("[[rule]]\nmatch = '#'\npoll_timeout_s = 1\n");
    let assert_status = |method: &str, target: &str, headers: &[(&str, &str)], status: u16| {
        let body = if method == "POST" { "x" } else { "" };
        let answer = once(&server, method, target, headers, body);
        let request = format!("{method} {target} {headers:?}");
        assert_eq!(answer.status, status, "{request}");
        assert_never_reused(&answer, &request);
        answer
    };
    let json = ("Accept", "application/json");
    let events = ("Accept", "text/event-stream");
    assert_status("GET", "/pub/later", &[], 404);
    assert_status("GET", "/pub/later", &[json], 404);
    assert_status("HEAD", "/pub/later", &[], 404);
    assert_status("PUT", "/pub/later", &[], 201);
    assert_status("POST", "/pub/news", &[], 202);
    assert_status("GET", "/pub/news", &[], 200);
    assert_status("GET", "/pub/news", &[json], 200);
    assert_status("HEAD", "/pub/news", &[], 200);
    let message = assert_status("GET", "/sub/news", &[], 200);
    let tag = message.header("etag").expect("a position");
    let known = ("If-None-Match", tag.as_str());
    assert_status("GET", "/sub/news?since=live", &[], 204);
    assert_status("GET", "/sub/news", &[known], 304);
    let history = assert_status("GET", "/history/news", &[], 200);
    let history = history.header("etag").expect("a tag");
    assert_status("GET", "/history/news", &[("If-None-Match", &history)], 304);
    assert_status("HEAD", "/sub/news", &[events], 200);
    let stream = Stream::open(&server, "/sub/news", &[]);
    assert_never_reused(&stream.head, "an event stream");
    let stream = Stream::open(&server, "/interest", &[]);
    assert_never_reused(&stream.head, "interest");
    assert_status("DELETE", "/pub/news", &[], 200);
    assert_status("GET", "/sub/news", &[known], 410);
    assert_status("GET", "/history/news", &[], 410);
    let deleted = [events, ("Last-Event-ID", message.position().leak())];
    assert_status("GET", "/sub/news", &deleted, 204);
    assert_status("OPTIONS", "/pub/news", &[], 204);
    assert_status("GET", "/nowhere", &[], 404);
    assert_status("PATCH", "/pub/news", &[], 405);
    assert_status("GET", "/sub/a%2Fb", &[], 400);
    let mut conn = Conn::open(&server);
    conn.send("nonsense\r\n\r\n");
    assert_never_reused(&conn.response(), "no request");
}

#[test]
fn no_cache_keeps_an_answer_of_the_admin_port() {
    let server = Server::with_admin("");
    let admin = server.admin();
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/api/v1/stats",
        "/api/v1/topics/none",
        "/nowhere",
        "/",
    ] {
        for host in [admin.to_string(), "rebound.example".to_string()] {
            let answer = raw(
                admin,
                &format!("GET {path}"),
                &format!("Host: {host}\r\n"),
                None,
            );
            let head = answer.head.to_lowercase();
            let rules: Vec<&str> = head
                .lines()
                .filter(|line| line.starts_with("cache-control:"))
                .collect();
            assert!(
                matches!(
                    rules[..],
                    ["cache-control: no-store" | "cache-control: no-cache"]
                ),
                "{path} at {host}: {rules:?}"
            );
        }
    }
}
