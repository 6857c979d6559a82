//! Tests requests with a header, parameter or field that belongs to another path or another product. The server must not ignore silently what the client
//! asks for: the refusal says how to write it on this path.

use crate::parameters::assert_answer;
use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::ws::handshake;

const ACCEPT_EVENT_STREAM: (&str, &str) = ("Accept", "text/event-stream");

#[test]
fn message_header_is_refused_unless_the_request_publishes_one_message() {
    let server = Server::start();
    for (method, target) in [
        ("PUT", "/pub/a"),
        ("DELETE", "/pub/a"),
        ("GET", "/sub/a"),
        ("GET", "/history/a"),
    ] {
        for name in ["Crore-TTL", "crore-key", "Crore-Retain", "Crore-Property"] {
            let answer = once(&server, method, target, &[(name, "1")], "");
            assert_answer(&answer, 400, &[name, "POST /pub/{topic}"], target);
        }
    }
    for name in ["Crore-TTL", "X-EventSource-Event", "Idempotency-Key"] {
        for target in ["/pub/a", "/pubsub/a"] {
            let upgrade = Conn::open(&server).get(target, &handshake(&[(name, "5")]));
            assert_answer(&upgrade, 400, &[name, "POST /pub/{topic}"], target);
        }
    }
    let ndjson = ("Content-Type", "application/x-ndjson");
    for (name, words) in [
        ("Crore-TTL", "each line has its own ttl_s"),
        ("Crore-Key", "each line has its own key"),
        ("X-EventSource-Event", "each line has its own event"),
        ("Idempotency-Key", "each line has its own idempotency_key"),
        ("Crore-Retain", "published by itself, by POST /pub/{topic}"),
        (
            "Crore-Property",
            "published by itself, by POST /pub/{topic}",
        ),
    ] {
        let line = "{\"topic\":\"a\",\"data\":1}";
        let answer = once(&server, "POST", "/pub", &[ndjson, (name, "true")], line);
        assert_answer(&answer, 400, &[name, words], name);
    }
    assert_eq!(once(&server, "GET", "/pub/a", &[], "").status, 404);
}

#[test]
fn parameter_of_another_server_is_refused_with_the_name_here() {
    let server = Server::start();
    publish(&server, "a", "kept");
    for (target, words) in [
        ("/sub/a?from=0", ["`from`", "since= with oldest"]),
        ("/sub/a?offset=3", ["`offset`", "since= with oldest"]),
        ("/sub/a?start-seq=3", ["`start-seq`", "since= with oldest"]),
        ("/sub/a?count=5", ["`count`", "since=-N"]),
        ("/sub/a?limit=5", ["`limit`", "since=-N"]),
        ("/sub/a?format=json", ["`format`", "envelope=json"]),
        ("/sub?topic=a&pattern=b", ["`pattern`", "filter="]),
        ("/sub/a?timeout=5", ["`timeout`", "rule.poll_timeout_s"]),
        ("/history/a?count=5", ["`count`", "limit=N"]),
        ("/history/a?offset=5", ["`offset`", "since= with oldest"]),
        ("/history?filter=a/%23", ["`filter`", "/sub?filter="]),
        ("/interest?topic=a", ["`topic`", "match="]),
    ] {
        for headers in [&[][..], &[ACCEPT_EVENT_STREAM]] {
            let answer = once(&server, "GET", target, headers, "");
            assert_answer(&answer, 400, &words, target);
        }
    }
}

#[test]
fn request_for_two_envelopes_is_refused() {
    let server = Server::start();
    let meta = handshake(&[("Sec-WebSocket-Protocol", "ws+meta.nchan")]);
    for target in ["/sub/a?envelope=json", "/pubsub/a?envelope=json"] {
        let answer = Conn::open(&server).get(target, &meta);
        let words = ["envelope=json", "ws+meta.nchan", "leave one of them out"];
        assert_answer(&answer, 400, &words, target);
    }
    // A connection that only publishes receives no messages, so envelopes mean nothing for it.
    for target in ["/pub/a?envelope=json", "/sub/a?envelope=", "/sub/a"] {
        let answer = Conn::open(&server).get(target, &meta);
        assert_eq!(answer.status, 101, "{target}: {answer:?}");
    }
}

#[test]
fn unknown_field_of_a_batch_line_is_refused_with_the_right_name() {
    let server = Server::start();
    let fields = [
        (
            "\"retain\":true",
            "the header Crore-Retain (true) of a message that is published by itself",
        ),
        ("\"ttl\":5", "write it as ttl_s"),
        ("\"ttls\":5", "did you mean ttl_s?"),
        ("\"evnet\":\"x\"", "did you mean event?"),
        ("\"payload\":1", "write it as data"),
        ("\"id\":\"7\"", "write it as idempotency_key"),
    ];
    let lines = fields.map(|(field, _)| format!("{{\"topic\":\"a\",\"data\":1,{field}}}"));
    let ndjson = ("Content-Type", "application/x-ndjson");
    let answer = once(&server, "POST", "/pub", &[ndjson], &lines.join("\n"));
    assert_eq!(answer.status, 400);
    for (failed, (field, words)) in answer.json()["failed"]
        .as_array()
        .unwrap()
        .iter()
        .zip(fields)
    {
        let reason = failed["reason"].as_str().unwrap();
        assert!(reason.contains(words), "{field}: {reason}");
    }
    // curl's `-d` removes the line breaks, so all lines become one.
    let joined = "{\"topic\":\"a\",\"data\":1}{\"topic\":\"a\",\"data\":2}";
    let answer = once(&server, "POST", "/pub", &[ndjson], joined);
    assert_answer(
        &answer,
        400,
        &["a line of its own", "--data-binary"],
        "joined lines",
    );
}

#[test]
fn html_form_is_refused_as_a_message() {
    let server = Server::start();
    let form_type = "application/x-www-form-urlencoded";
    let answer = once(
        &server,
        "POST",
        "/pub",
        &[("Content-Type", form_type)],
        "topic=a&data=x",
    );
    assert_answer(
        &answer,
        400,
        &["fields are not read", "/pub/news"],
        "a form",
    );
    let parts = "multipart/form-data; boundary=x";
    let body = "--x\r\nContent-Disposition: form-data; name=\"data\"\r\n\r\nhello\r\n--x--\r\n";
    let answer = once(&server, "POST", "/pub/a", &[("Content-Type", parts)], body);
    assert_answer(
        &answer,
        400,
        &["multipart/form-data", "--data-binary"],
        "parts",
    );
    assert_eq!(once(&server, "GET", "/pub/a", &[], "").status, 404);
}
