//! Tests parameters of requests. The server refuses an unknown parameter by its name, but ignores those that clients, caches and proxies
//! add. A refusal because of a limit names the limit, its value and its setting.

use serde_json::Value;

use crate::support::Server;
use crate::support::http::{Conn, Response, once, publish};
use crate::support::ws::{Ws, handshake};

const ACCEPT_EVENT_STREAM: (&str, &str) = ("Accept", "text/event-stream");

/// Checks the status of a response, and that its text contains all of `words`. The message of a failure names the `case`.
pub fn assert_answer(response: &Response, status: u16, expected_parts: &[&str], case: &str) {
    let text = response.text();
    assert_eq!(response.status, status, "{case}: {text}");
    for word in expected_parts {
        assert!(text.contains(word), "{case}: {word} in {text}");
    }
}

#[test]
fn misspelt_parameter_is_refused_with_the_right_name() {
    let server = Server::start();
    for (method, target, misspelt, suggested) in [
        ("GET", "/sub/a?envelop=json", "`envelop`", "envelope=?"),
        ("GET", "/sub/a?sine=oldest", "`sine`", "since=?"),
        ("GET", "/sub/a?Since=oldest", "`Since`", "since=?"),
        ("GET", "/sub?topics=a", "`topics`", "topic=?"),
        ("GET", "/sub?topic=a&filtre=b/%23", "`filtre`", "filter=?"),
        (
            "GET",
            "/sub/a?last_event_di=x",
            "`last_event_di`",
            "last_event_id=?",
        ),
        ("GET", "/history/a?limits=5", "`limits`", "limit=?"),
        ("GET", "/interest?mach=a", "`mach`", "match=?"),
        ("DELETE", "/pub/a?purg", "`purg`", "purge=?"),
        (
            "POST",
            "/pub?topc=a",
            "`topc`",
            "reads topic and channel; did you mean topic=?",
        ),
        (
            "GET",
            "/pub?topc=a",
            "`topc`",
            "reads topic and channel; did you mean topic=?",
        ),
    ] {
        let answer = once(&server, method, target, &[], "");
        assert_answer(&answer, 400, &[misspelt, suggested], target);
        let stream = once(&server, method, target, &[ACCEPT_EVENT_STREAM], "");
        assert_eq!(stream.status, 400, "{target} as an event stream");
    }
    let upgrade = Conn::open(&server).get("/pubsub/a?envelop=json", &handshake(&[]));
    assert_answer(&upgrade, 400, &["`envelop`", "envelope=?"], "an upgrade");
}

#[test]
fn a_parameter_that_another_path_reads_is_refused() {
    let server = Server::start();
    for (method, target, name) in [
        ("GET", "/sub/a?limit=5", "`limit`"),
        ("GET", "/sub/a?match=b", "`match`"),
        ("GET", "/history/a?filter=b/%23", "`filter`"),
        ("GET", "/interest?filter=b", "`filter`"),
        ("POST", "/pub/a?purge", "`purge`"),
        ("GET", "/pub/a?since=oldest", "`since`"),
        ("POST", "/pub/a?envelope=json", "`envelope`"),
    ] {
        let answer = once(&server, method, target, &[], "");
        assert_answer(
            &answer,
            400,
            &[name, "means nothing here: this request reads"],
            target,
        );
    }
}

#[test]
fn parameters_added_by_clients_caches_and_proxies_are_ignored() {
    let server = Server::start();
    publish(&server, "a", "kept");
    for added in [
        "_=1700000000000",
        "t=OaBcD",
        "ts=1700000000",
        "cb=1&v=2&r=0.5",
        "nonce=x&once=y",
        "token=x&access_token=y&jwt=z&auth=w&key=v&apikey=u",
        "lastEventId=&evs_last_event_id=",
        "evs_preamble=2056&evs_request_headers=%7B%7D",
        "EIO=4&transport=polling&sid=1",
        "cf_connect=%7B%7D",
        "utm_source=a&fbclid=b&gclid=c",
        "sinc%65=oldest",
        "&&=&=x",
    ] {
        let target = format!("/sub/a?{added}");
        let answer = once(&server, "GET", &target, &[], "");
        assert_answer(&answer, 200, &["kept"], &target);
        for path in ["/history/a", "/pub/a"] {
            let target = format!("{path}?{added}");
            let answer = once(&server, "GET", &target, &[], "");
            assert_eq!(answer.status, 200, "{target}: {answer:?}");
        }
    }
    // A client may open all its sockets with the same query, so parameters for subscribers are accepted here.
    let target = "/pub/a?since=live&envelope=json";
    let upgrade = Conn::open(&server).get(target, &handshake(&[]));
    assert_eq!(upgrade.status, 101, "{upgrade:?}");
    // A polyfill of EventSource appends the last event id to any path.
    let mut follower = Conn::open(&server);
    follower.ask(
        "GET",
        "/interest?lastEventId=1&_=2",
        &[ACCEPT_EVENT_STREAM],
        "",
    );
    assert_eq!(follower.head().status, 200);
    // A target with as many parameters as fit into the head of a request.
    let many_parameters = format!("/sub/a?{}", "abcd=1&".repeat(1_000));
    assert_eq!(once(&server, "GET", &many_parameters, &[], "").status, 200);
}

/// No client library or proxy adds parameters to requests that change something. So each parameter is meant, and an unknown one is refused.
#[test]
fn unknown_parameter_of_a_request_that_changes_something_is_refused() {
    let server = Server::start();
    for (method, target, words) in [
        (
            "POST",
            "/pub/a?retain=true",
            &["`retain`", "the header Crore-Retain"][..],
        ),
        (
            "POST",
            "/pub/a?ttl=5",
            &["`ttl`", "the header Crore-TTL (whole seconds)"],
        ),
        (
            "POST",
            "/pub/a?Message-TTL=5",
            &["`Message-TTL`", "the header Crore-TTL"],
        ),
        ("POST", "/pub/a?key=k", &["`key`", "the header Crore-Key"]),
        (
            "POST",
            "/pub/a?event=x",
            &["`event`", "the header X-EventSource-Event"],
        ),
        (
            "POST",
            "/pub/a?message=hello",
            &["`message`", "the body of the request"],
        ),
        (
            "POST",
            "/pub/a?access_token=t",
            &["`access_token`", "the header Authorization"],
        ),
        (
            "POST",
            "/pub/a?_=1",
            &["`_`", "this request reads topic and channel"],
        ),
        (
            "POST",
            "/pub?topic=a&x=1",
            &["`x`", "this request reads topic and channel"],
        ),
        ("PUT", "/pub/a?ttl=5", &["`ttl`", "Crore-TTL"]),
        (
            "DELETE",
            "/pub/a?dry_run=1",
            &["`dry_run`", "reads topic, channel and purge"],
        ),
    ] {
        let body = if method == "POST" { "x" } else { "" };
        let answer = once(&server, method, target, &[], body);
        assert_answer(&answer, 400, words, target);
        assert!(!answer.text().contains("last_event_id"), "{answer:?}");
    }
    assert_eq!(
        once(&server, "GET", "/pub/a", &[], "").status,
        404,
        "nothing is published"
    );
    // The settings name the parameter `token` as the place of the token.
    assert_eq!(
        once(&server, "POST", "/pub/a?token=t", &[], "x").status,
        202
    );
}

#[test]
fn misspelt_header_of_a_publish_is_refused_with_the_right_name() {
    let server = Server::start();
    for (name, words) in [
        ("Idempotency-Kye", "did you mean Idempotency-Key?"),
        ("X-Idempotency-Key", "did you mean Idempotency-Key?"),
        ("Core-Key", "did you mean Crore-Key?"),
        ("X-EventSource-Events", "did you mean X-EventSource-Event?"),
        ("TTL", "write it as the header Crore-TTL"),
        ("Retain", "write it as the header Crore-Retain"),
        ("Event", "write it as the header X-EventSource-Event"),
        ("X-Event-Name", "write it as the header X-EventSource-Event"),
        ("Key", "write it as the header Crore-Key"),
        ("X-Key", "write it as the header Crore-Key"),
        ("Nats-Msg-Id", "write it as the header Idempotency-Key"),
        ("Crore-Expiry", "write it as the header Crore-TTL"),
    ] {
        let answer = once(&server, "POST", "/pub/a", &[(name, "5")], "x");
        assert_answer(&answer, 400, &[&format!("`{name}`"), words], name);
    }
    assert_eq!(
        once(&server, "GET", "/pub/a", &[], "").status,
        404,
        "nothing is published"
    );
    let response = once(
        &server,
        "GET",
        "/sub/a",
        &[("LastEventId", "1-1"), ACCEPT_EVENT_STREAM],
        "",
    );
    assert_answer(
        &response,
        400,
        &["`LastEventId`", "did you mean Last-Event-ID?"],
        "a position",
    );
    // A request that only reads ignores these headers.
    let read = once(&server, "GET", "/history/a", &[("TTL", "5")], "");
    assert_eq!(read.status, 200);
    let foreign_headers = [
        ("X-Request-Id", "r"),
        ("X-GitHub-Event", "push"),
        ("X-Event-Key", "repo:push"),
        ("Topic", "t"),
        ("Urgency", "high"),
        ("Traceparent", "x"),
    ];
    assert_eq!(
        once(&server, "POST", "/pub/a", &foreign_headers, "x").status,
        202
    );
}

#[test]
fn unknown_header_that_begins_with_crore_is_refused() {
    let server = Server::start();
    for (name, value) in [
        ("Crore-Event", "score"),
        ("crore-keys", "k"),
        ("Crore-Time-To-Live", "5"),
    ] {
        for (method, target) in [("POST", "/pub/a"), ("GET", "/sub/a")] {
            let answer = once(&server, method, target, &[(name, value)], "");
            assert_answer(
                &answer,
                400,
                &[name, "Crore-TTL", "X-EventSource-Event"],
                name,
            );
        }
    }
    let known_headers = [
        ("Crore-Key", "k"),
        ("crore-ttl", "60"),
        ("CRORE-RETAIN", "false"),
        ("Crore-Property", "a=b"),
        ("Crored", "x"),
    ];
    assert_eq!(
        once(&server, "POST", "/pub/a", &known_headers, "x").status,
        202
    );
}

#[test]
fn invalid_value_of_a_parameter_is_refused_and_named() {
    let server = Server::start();
    for (target, value, allowed) in [
        ("/sub/a?envelope=yes", "`yes`", "json"),
        ("/sub/a?since=yesterday", "`yesterday`", "oldest"),
        (
            "/sub/a?since=2026-11-26T10:00:00Z",
            "`2026-11-26T10:00:00Z`",
            "If-Modified-Since",
        ),
        (
            "/sub/a?since=1795714297",
            "`1795714297`",
            "If-Modified-Since",
        ),
        ("/sub/a?since=5m", "`5m`", "If-Modified-Since"),
        ("/history/a?since=x", "`x`", "oldest"),
        ("/history/a?limit=all", "`all`", "from 1 on"),
        ("/history/a?envelope=xml", "`xml`", "json"),
    ] {
        let answer = once(&server, "GET", target, &[], "");
        assert_answer(&answer, 400, &[value, allowed], target);
    }
    for (header, value, allowed) in [
        ("Crore-TTL", "5m", "whole number of seconds"),
        ("Crore-Retain", "yes", "true or false"),
    ] {
        let answer = once(&server, "POST", "/pub/a", &[(header, value)], "x");
        assert_answer(
            &answer,
            400,
            &[header, &format!("`{value}`"), allowed],
            header,
        );
    }
    // A template without a value produces an empty parameter, which counts as absent.
    publish(&server, "a", "kept");
    assert_eq!(
        once(&server, "GET", "/sub/a?envelope=&since=", &[], "").text(),
        "kept"
    );
}

/// Small limits, which a request can exceed by a few bytes.
const SMALL_LIMITS: &str = "[limits]\nmessage_bytes = 1000\nbatch_bytes = 2000\nbatch_lines = 2\ntopic_bytes = 20\n\
    topics_per_connection = 2\nhead_bytes = 4096\ntopics_per_address_per_s = 7\ntopics_per_address_burst = 7\n";

#[test]
fn refusal_for_a_limit_names_its_value_and_its_setting() {
    let server = Server::with(SMALL_LIMITS);
    let ask = |method: &str, target: &str, headers: &[(&str, &str)], body: &str| {
        Conn::open(&server).request(method, target, headers, body)
    };
    let (long, ndjson) = ("x".repeat(30), ("Content-Type", "application/x-ndjson"));
    for (target, words) in [
        (
            format!("/sub/{long}"),
            ["30 bytes", "limits.topic_bytes", "(20)"],
        ),
        (
            format!("/sub?filter={long}/%23"),
            ["32 bytes", "limits.topic_bytes", "(20)"],
        ),
        (
            format!("/interest?match={long}"),
            ["30 bytes", "limits.topic_bytes", "(20)"],
        ),
        (
            "/sub?topic=a&topic=b&topic=c".into(),
            ["topics", "limits.topics_per_connection", "(2)"],
        ),
    ] {
        assert_answer(&ask("GET", &target, &[], ""), 400, &words, &target);
    }
    let body = "y".repeat(1_500);
    let answer = ask("POST", "/pub/a", &[], &body);
    assert_answer(
        &answer,
        413,
        &["limits.message_bytes", "(1000 bytes)", "1500"],
        "a length",
    );
    let mut chunked = Conn::open(&server);
    chunked.send(format!(
        "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n{body}\r\n0\r\n\r\n"
    ));
    assert_answer(
        &chunked.response(),
        413,
        &["limits.message_bytes", "(1000 bytes)"],
        "chunks",
    );
    let answer = ask("POST", "/pub", &[ndjson], &"z".repeat(2_500));
    assert_answer(
        &answer,
        413,
        &["limits.batch_bytes", "(2000 bytes)", "2500"],
        "a batch",
    );
    let answer = ask("GET", "/sub/a", &[("X-Long", &"x".repeat(5_000))], "");
    assert_answer(
        &answer,
        431,
        &["limits.head_bytes", "4096 bytes", "64 fields"],
        "a head",
    );
    let mut answers = (0..20).map(|n| ask("POST", &format!("/pub/t{n}"), &[], "x"));
    let refused = answers.find(|answer| answer.status == 429);
    let refused = refused.expect("20 new topics exceed the limit of 7 a second");
    assert_answer(
        &refused,
        429,
        &["limits.topics_per_address_per_s", "(7 a second)"],
        "topics",
    );
}

#[test]
fn refusal_of_a_batch_line_names_the_limit_that_it_exceeds() {
    let server = Server::with(SMALL_LIMITS);
    let long_data_line = format!("{{\"topic\":\"a\",\"data\":\"{}\"}}\n", "y".repeat(1_100));
    let long_topic_line = format!("{{\"topic\":\"{}\",\"data\":1}}\n", "x".repeat(30));
    let lines = [
        long_data_line,
        long_topic_line,
        "{\"topic\":\"a\",\"data\":1}\n".into(),
    ]
    .concat();
    let ndjson = ("Content-Type", "application/x-ndjson");
    let answer = once(&server, "POST", "/pub", &[ndjson], &lines).json();
    let failed: Vec<&Value> = answer["failed"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    let reason = |n: usize| failed[n]["reason"].as_str().expect("a reason");
    assert!(
        reason(0).contains("1100 bytes")
            && reason(0).contains("limits.message_bytes allows (1000)")
    );
    assert!(reason(1).contains("30 bytes") && reason(1).contains("limits.topic_bytes allows (20)"));
    assert!(
        reason(2).contains("limits.batch_lines allows (2)"),
        "{answer}"
    );
}

#[test]
fn close_frame_names_the_limit_that_a_frame_exceeds() {
    let server = Server::with(SMALL_LIMITS);
    let mut ws = Ws::open(&server, "/pub/a", &[]);
    ws.send(0x82, "y".repeat(1_500));
    let close = ws.frame();
    assert_eq!(close.close_code(), Some(1009));
    let words = String::from_utf8_lossy(&close.payload[2..]).into_owned();
    assert!(
        words.contains("limits.message_bytes allows (1000 bytes)"),
        "{words}"
    );
}
