//! Tests pages of other origins that are refused, or that may not read an answer. The answer says why, and so does the log for the
//! operator.

use crate::support::http::{once, publish};
use crate::support::{Server, until};

const EVIL: (&str, &str) = ("Origin", "https://evil.example");

#[test]
fn page_that_cannot_read_the_answer_is_logged_with_the_setting() {
    let server = Server::with("[http]\nallowed_origins = [\"https://app.example\"]\n");
    publish(&server, "news", "one");
    let own_origin = format!("http://{}", server.address());
    for origin in ["https://app.example", &own_origin] {
        assert_eq!(
            once(&server, "GET", "/sub/news", &[("Origin", origin)], "").status,
            200
        );
    }
    for target in ["/history/news", "/history/news", "/pub/news", "/pub/news"] {
        let answer = once(&server, "GET", target, &[EVIL], "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("access-control-allow-origin"), None);
        assert!(answer.lists("vary", "origin"), "{answer:?}");
    }
    until("it is in the log", || server.log().contains("count=4"));
    let log = server.log();
    let line = log
        .lines()
        .find(|line| line.contains("count=4"))
        .expect("a line");
    for words in [EVIL.1, "http.allowed_origins", "hide the answers"] {
        assert!(line.contains(words), "{line}");
    }
}

/// Browsers tell a page only that its `EventSource` or `WebSocket` failed, so the reason must be in the log.
#[test]
fn refused_stream_is_logged_with_the_reason() {
    let server = Server::with("");
    let events = [("Accept", "text/event-stream")];
    for _ in 0..2 {
        let answer = once(&server, "GET", "/sub/news?from=oldest", &events, "");
        assert_eq!(answer.status, 400);
    }
    let without_accept = once(&server, "GET", "/sub/news?from=oldest", &[], "");
    assert_eq!(without_accept.status, 400);
    until("it is in the log", || server.log().contains("count=2"));
    let log = server.log();
    let line = log.lines().find(|line| line.contains("count=2"));
    let line = line.expect("a line");
    for words in ["answered 400", "since="] {
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn localhost_and_its_address_are_different_origins() {
    let server = Server::with("[http]\nallowed_origins = [\"http://127.0.0.1:3000\"]\n");
    let port = server.address().port();
    for (origin, advised_origin) in [
        (
            "http://localhost:3000".to_string(),
            "http://127.0.0.1:3000".to_string(),
        ),
        (
            format!("http://localhost:{port}"),
            format!("http://127.0.0.1:{port}"),
        ),
        (
            format!("http://[::1]:{port}"),
            format!("http://127.0.0.1:{port}"),
        ),
    ] {
        let refused = once(&server, "POST", "/pub/a", &[("Origin", &origin)], "x");
        let text = refused.text();
        assert_eq!(refused.status, 403, "{origin}");
        for words in [
            "localhost and 127.0.0.1 are two origins",
            &advised_origin,
            &format!("allowed_origins = [\"{origin}\"]"),
        ] {
            assert!(text.contains(words), "{origin}: {text}");
        }
    }
    let refused = once(
        &server,
        "POST",
        "/pub/a",
        &[("Origin", "http://localhost:3001")],
        "x",
    );
    assert!(
        !refused.text().contains("two origins"),
        "{}",
        refused.text()
    );
    let from = [("Origin", "http://localhost:3000")];
    assert_eq!(once(&server, "GET", "/pub/a", &from, "").status, 404);
    until("the log says why", || {
        let log = server.log();
        let logged = log.lines().find(|line| line.contains("hide the answers"));
        logged.is_some_and(|line| {
            line.contains("localhost and 127.0.0.1 are two origins: http://localhost:3000")
        })
    });
}
