//! Tests long-polling: one message in each response, with the position in its validators (ETag, Last-Modified).

use crate::support::Server;
use crate::support::http::{Conn, info, once, publish};

fn is_date(text: &str) -> bool {
    // A date has this form: Sun, 06 Nov 1994 08:49:37 GMT
    text.len() == 29
        && text.ends_with(" GMT")
        && text.as_bytes()[3] == b','
        && text.as_bytes()[16] == b' '
}

#[test]
fn long_poll_answer_has_validators_and_must_be_revalidated() {
    let server = Server::start();
    publish(&server, "news", "one");
    let response = once(&server, "GET", "/sub/news", &[], "");
    assert_eq!((response.status, response.text()), (200, "one"));
    assert!(!response.position().is_empty());
    assert!(
        is_date(&response.header("last-modified").expect("a Last-Modified")),
        "{response:?}"
    );
    assert_eq!(
        response.header("content-type").as_deref(),
        Some("text/plain")
    );
    assert_eq!(
        response.header("cache-control").as_deref(),
        Some("private, no-cache")
    );
    for name in ["If-None-Match", "If-Modified-Since", "Accept", "Origin"] {
        assert!(
            response.lists("vary", name),
            "Vary names {name}: {response:?}"
        );
    }
}

#[test]
fn polls_with_the_validators_get_each_message_once_in_order() {
    let server = Server::start();
    for number in 0..6 {
        publish(&server, "news", number.to_string());
    }
    for has_both in [true, false] {
        let mut conn = Conn::open(&server);
        let mut response = conn.get("/sub/news", &[]);
        for number in 0..6 {
            assert_eq!(response.text(), number.to_string());
            let tag = response.header("etag").expect("an ETag");
            let date = response.header("last-modified").expect("a date");
            let headers = [
                ("If-None-Match", tag.as_str()),
                ("If-Modified-Since", date.as_str()),
            ];
            conn.ask(
                "GET",
                "/sub/news",
                &headers[..if has_both { 2 } else { 1 }],
                "",
            );
            if number < 5 {
                response = conn.response();
            }
        }
        // There is no newer message, so the poll waits.
        server.await_subscribers("news", 1);
        publish(&server, "news", "live");
        assert_eq!(conn.response().text(), "live");
        once(&server, "DELETE", "/pub/news", &[], "");
        for number in 0..6 {
            publish(&server, "news", number.to_string());
        }
    }
}

#[test]
fn every_spelling_of_a_position_is_accepted() {
    let server = Server::start();
    publish(&server, "news", "one");
    let position = once(&server, "GET", "/sub/news", &[], "").position();
    publish(&server, "news", "two");
    for tag in [
        format!("\"{position}\""),
        format!("W/\"{position}\""),
        position.clone(),
    ] {
        let response = once(&server, "GET", "/sub/news", &[("If-None-Match", &tag)], "");
        assert_eq!(
            (response.status, response.text()),
            (200, "two"),
            "If-None-Match: {tag}"
        );
    }
    for query in ["last_event_id", "since"] {
        let response = once(
            &server,
            "GET",
            &format!("/sub/news?{query}={position}"),
            &[],
            "",
        );
        assert_eq!(
            (response.status, response.text()),
            (200, "two"),
            "?{query}={position}"
        );
    }
    assert!(
        !position.contains(['&', '+', '%', '#', ' ', '"', ',']),
        "{position} needs no escapes in a query or a header"
    );
}

#[test]
fn since_names_the_first_message() {
    let server = Server::start();
    for text in ["one", "two", "three"] {
        publish(&server, "news", text);
    }
    for (since, first) in [
        ("oldest", "one"),
        ("-1", "three"),
        ("-2", "two"),
        ("-9", "one"),
    ] {
        let response = once(&server, "GET", &format!("/sub/news?since={since}"), &[], "");
        assert_eq!(
            (response.status, response.text()),
            (200, first),
            "since={since}"
        );
    }
    let mut live_poll = Conn::open(&server);
    live_poll.ask("GET", "/sub/news?since=live", &[], "");
    server.await_subscribers("news", 1);
    publish(&server, "news", "four");
    assert_eq!(live_poll.response().text(), "four");
}

#[test]
fn rule_sets_where_a_subscriber_begins() {
    let server = Server::with(
        "[[rule]]\nmatch = \"live\"\nfirst = \"live\"\n[[rule]]\nmatch = \"new\"\nfirst = \"-1\"\n",
    );
    for topic in ["live", "new", "other"] {
        publish(&server, topic, "one");
        publish(&server, topic, "two");
    }
    assert_eq!(once(&server, "GET", "/sub/other", &[], "").text(), "one");
    assert_eq!(once(&server, "GET", "/sub/new", &[], "").text(), "two");
    let mut live_poll = Conn::open(&server);
    live_poll.ask("GET", "/sub/live", &[], "");
    server.await_subscribers("live", 1);
    publish(&server, "live", "three");
    assert_eq!(live_poll.response().text(), "three");
}

#[test]
fn poll_with_a_malformed_position_is_answered_at_once() {
    let server = Server::start();
    publish(&server, "news", "one");
    for query in [
        "since=yesterday",
        "since=-",
        "since=-0x1",
        "since=-99999999999999999999",
        "last_event_id=!!",
    ] {
        let response = once(&server, "GET", &format!("/sub/news?{query}"), &[], "");
        assert_eq!(response.status, 400, "{query}: {response:?}");
    }
}

#[test]
fn timeout_is_304_for_a_conditional_request_and_otherwise_204() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\n");
    let mut conn = Conn::open(&server);
    assert_eq!(conn.get("/sub/empty", &[]).status, 204);
    publish(&server, "news", "one");
    let tag = conn.get("/sub/news", &[]).header("etag").expect("an ETag");
    let response = conn.get("/sub/news", &[("If-None-Match", &tag)]);
    assert_eq!(response.status, 304);
    assert_eq!(
        response.header("etag"),
        Some(tag),
        "it stands where it stood"
    );
    assert!(response.lists("vary", "If-None-Match"), "{response:?}");
    // The connection can be used after either answer.
    assert_eq!(conn.get("/sub/news", &[]).text(), "one");
}

/// Each poll continues from the ETag of the last timeout, however the first request was positioned.
#[test]
fn message_between_a_timeout_and_the_next_poll_is_delivered_or_reported_as_lost() {
    let server = Server::with(
        "[[rule]]\nmatch = \"none/#\"\nlog_messages = 0\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"old/#\"\npoll_timeout_status = 408\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\n",
    );
    let mut polls = Vec::new();
    for (target, topic, status) in [
        ("/sub/news?since=live", "news", 204),
        ("/sub/old/1?since=live", "old/1", 408),
        ("/sub?topic=a&topic=b&since=live", "b", 204),
        ("/sub?filter=f/%23", "f/1", 204),
        ("/sub/none/1", "none/1", 204),
    ] {
        let mut conn = Conn::open(&server);
        conn.ask("GET", target, &[], "");
        polls.push((conn, target, topic, status));
    }
    for (mut conn, target, topic, status) in polls {
        let timeout = conn.response();
        assert_eq!(timeout.status, status, "{target}: {timeout:?}");
        let tag = timeout.header("etag").expect("where it stands");
        publish(&server, topic, "between");
        let response = conn.get(target, &[("If-None-Match", &tag)]);
        if topic == "none/1" {
            assert_eq!(
                (response.status, response.text()),
                (204, ""),
                "nobody kept it"
            );
            assert!(response.header("crore-gap").is_some(), "{response:?}");
        } else {
            assert_eq!(
                (response.status, response.text()),
                (200, "between"),
                "{target}"
            );
            assert_eq!(response.header("crore-gap"), None, "{target}");
        }
    }
}

#[test]
fn rule_may_set_the_status_of_a_timeout_to_408() {
    let server =
        Server::with("[[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\npoll_timeout_status = 408\n");
    assert_eq!(once(&server, "GET", "/sub/empty", &[], "").status, 408);
}

#[test]
fn rule_may_let_only_publishers_create_topics() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\npublisher_creates = true\n");
    assert_eq!(once(&server, "GET", "/sub/news", &[], "").status, 403);
    assert_eq!(once(&server, "PUT", "/pub/news", &[], "").status, 201);
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/news", &[], "");
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    assert_eq!(poll.response().text(), "one");
}

fn two_polls(concurrency: &str) -> (Server, Conn, Conn) {
    let server = Server::with(&format!(
        "[[rule]]\nmatch = \"#\"\nconcurrency = \"{concurrency}\"\n"
    ));
    let mut first = Conn::open(&server);
    first.ask("GET", "/sub/news", &[], "");
    server.await_subscribers("news", 1);
    let mut second = Conn::open(&server);
    second.ask("GET", "/sub/news", &[], "");
    (server, first, second)
}

#[test]
fn concurrent_polls_both_receive_the_message_with_broadcast() {
    let (server, mut first, mut second) = two_polls("broadcast");
    server.await_subscribers("news", 2);
    publish(&server, "news", "one");
    assert_eq!(
        (first.response().text(), second.response().text()),
        ("one", "one")
    );
}

#[test]
fn later_concurrent_poll_is_refused_with_the_policy_first() {
    let (server, mut first, mut second) = two_polls("first");
    assert_eq!(second.response().status, 409);
    publish(&server, "news", "one");
    assert_eq!(first.response().text(), "one");
}

#[test]
fn earlier_concurrent_poll_is_ended_with_the_policy_last() {
    let (server, mut first, mut second) = two_polls("last");
    assert_eq!(first.response().status, 409);
    publish(&server, "news", "one");
    assert_eq!(second.response().text(), "one");
}

#[test]
fn head_request_never_waits() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    for (target, status) in [
        ("/sub/empty", 204),
        ("/sub/empty?since=live", 204),
        ("/pub/nothing", 404),
    ] {
        let response = conn.request("HEAD", target, &[], "");
        assert_eq!(response.status, status, "{target}: {response:?}");
    }
    publish(&server, "news", "one");
    assert_eq!(conn.request("HEAD", "/sub/news", &[], "").status, 200);
    assert_eq!(
        conn.get("/sub/news", &[]).text(),
        "one",
        "HEAD sent no body"
    );
    let stream = conn.request("HEAD", "/sub/news", &[("Accept", "text/event-stream")], "");
    assert_eq!(stream.status, 200, "{stream:?}");
    assert_eq!(conn.get("/sub/news", &[]).text(), "one");
}

#[test]
fn poll_that_hung_up_is_no_subscriber() {
    let server = Server::start();
    publish(&server, "news", "one");
    let mut polls: Vec<Conn> = (0..3).map(|_| Conn::open(&server)).collect();
    for poll in &mut polls {
        poll.ask("GET", "/sub/news?since=live", &[], "");
    }
    server.await_subscribers("news", 3);
    polls.pop();
    server.await_subscribers("news", 2);
    polls.clear();
    server.await_subscribers("news", 0);
    assert_eq!(publish(&server, "news", "two").status, 202);
    assert_eq!(info(&server, "news")["messages"], 2);
}

#[test]
fn pipelined_request_waits_for_the_poll_before_it() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    conn.ask("GET", "/sub/news", &[], "");
    conn.ask("GET", "/pub/other", &[], "");
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    assert_eq!(conn.response().text(), "one");
    assert_eq!(conn.response().status, 404);
}

#[test]
fn position_before_the_log_gets_a_gap_and_the_oldest_message() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nlog_messages = 2\n");
    publish(&server, "news", "0");
    let position = once(&server, "GET", "/sub/news", &[], "").position();
    for number in 1..6 {
        publish(&server, "news", number.to_string());
    }
    let response = once(
        &server,
        "GET",
        &format!("/sub/news?last_event_id={position}"),
        &[],
        "",
    );
    assert_eq!(
        (response.status, response.text()),
        (200, "4"),
        "the oldest that is left"
    );
    assert!(response.header("crore-gap").is_some(), "{response:?}");
}
