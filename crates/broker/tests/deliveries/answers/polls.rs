//! Tests long-polls: where they begin, their messages, and their ends without a message.

use super::*;

/// The position of a poll of the topics `empty` and `void` that ended without a message.
const SET: &str = "21b8172d1-AQcAAAAA";
/// The position of a poll by filter that ended without a message.
const FILTERS: &str = "31-DQcAAAA";

#[test]
fn long_poll_begins_at_the_requested_position() {
    let got = |target: &str, fields: &str| {
        let text = answer(target, &format!("{GET}{fields}"));
        let (head, data) = text.split_once("\n\n").expect("a head");
        assert!(!head.contains("Crore-Gap"), "{head}");
        data.to_owned()
    };
    for (query, data) in [
        ("", "one"),
        ("?since=", "one"),
        ("?since=oldest", "one"),
        ("?since=-1", "two"),
        ("?since=17-1", "two"),
        ("?last_event_id=17-1", "two"),
        ("?x=1&since=%31%37-1", "two"),
    ] {
        assert_eq!(got(&format!("/sub/full{query}"), ""), data, "{query}");
    }
    for (field, data) in [
        ("Last-Event-ID: 17-1", "two"),
        ("Last-Event-ID:", "one"),
        ("If-None-Match: \"17-1\"", "two"),
        ("If-None-Match: W/\"17-1\"", "two"),
        ("If-Modified-Since: Fri, 15 Jan 2027 07:59:59 GMT", "one"),
        ("If-Modified-Since: nonsense", "one"),
    ] {
        assert_eq!(got("/sub/full", &format!("{field}\r\n")), data, "{field}");
    }
    // The Last-Event-ID of a browser has priority over an ETag, and both over the query, which does not change.
    let field = "Last-Event-ID: 17-1\r\nIf-None-Match: \"17-2\"\r\n";
    assert_eq!(got("/sub/full", field), "two");
    for query in ["since=oldest", "since=live", "last_event_id=17-2"] {
        let target = format!("/sub/full?{query}");
        assert_eq!(got(&target, field), "two", "{query}");
        assert_eq!(
            got(&target, "If-None-Match: \"17-1\"\r\n"),
            "two",
            "{query}"
        );
        let since = "If-Modified-Since: Fri, 15 Jan 2027 07:59:59 GMT\r\n";
        assert_eq!(got(&target, since), "one", "{query}");
    }
}

/// A client that is up to date waits, and finally gets an answer without a message, with its position.
#[test]
fn long_poll_without_a_message_ends_at_its_timeout_with_its_position() {
    let ok = format!("204 No Content\nETag: \"17-2\"\n{TIME}");
    let same = "304 Not Modified\nETag: \"17-2\"\n".to_owned();
    let nothing = "204 No Content\nETag: \"17-0\"\n".to_owned();
    let [empty, void] = [SET, FILTERS].map(|id| format!("204 No Content\nETag: \"{id}\"\n"));
    for (target, field, answer) in [
        ("/sub/full?since=live", "", &ok),
        ("/sub/full", "If-None-Match: \"17-2\"\r\n", &same),
        (
            "/sub/full?since=oldest",
            "If-None-Match: \"17-2\"\r\n",
            &same,
        ),
        ("/sub/full", "Last-Event-ID: 17-2\r\n", &ok),
        (
            "/sub/full",
            "If-Modified-Since: Fri, 15 Jan 2027 08:00:00 GMT\r\n",
            &same,
        ),
        ("/sub/empty", "", &nothing),
        ("/sub?topic=empty&topic=void", "", &empty),
        ("/sub?filter=empty/%2B", "", &void),
    ] {
        let mut server = server();
        let link = asks(&mut server, target, &format!("{GET}{field}"));
        server.advance_and_tick_s(5);
        assert_eq!(take(&mut server, link), "", "{target} waits");
        server.advance_and_tick_s(1);
        assert_eq!(
            take(&mut server, link),
            format!("HTTP/1.1 {answer}{CACHING}\n"),
            "{target}"
        );
        assert!(server.is_open(link));
        // The connection can be used for the next poll.
        server.send(
            link,
            format!("GET /sub/full?since=oldest HTTP/1.1\r\n{GET}\r\n"),
        );
        server.settle();
        assert!(take(&mut server, link).ends_with("one"));
    }
    let mut server = server();
    let link = asks(&mut server, "/sub/old/1", GET);
    server.advance_and_tick_s(6);
    let timeout =
        format!("HTTP/1.1 408 Request Timeout\nETag: \"17-0\"\n{CACHING}Content-Length: 0\n\n");
    assert_eq!(take(&mut server, link), timeout);
    let link = asks(&mut server, "/sub/patient/1", GET);
    server.advance_and_tick_s(10_000);
    assert_eq!(take(&mut server, link), "", "it waits for ever");
}

/// A message published between two polls is in the second, or its loss is reported.
#[test]
fn message_between_two_polls_is_delivered_or_reported_as_lost() {
    for (target, topic, kept) in [
        ("/sub/full?since=live", "full", true),
        ("/sub/empty", "empty", true),
        ("/sub/none/1?since=live", "none/1", false),
        ("/sub/none/1", "none/1", false),
        ("/sub?topic=empty&topic=full&since=live", "full", true),
        ("/sub?filter=e/%23", "e/1", true),
    ] {
        let mut server = server();
        let link = asks(&mut server, target, GET);
        server.advance_and_tick_s(6);
        let received = take(&mut server, link);
        assert!(
            received.starts_with("HTTP/1.1 204 "),
            "{target}: {received}"
        );
        let (_, rest) = received.split_once("ETag: ").expect("a position");
        let tag = rest.lines().next().expect("its line").to_owned();
        server.publish([(topic, "between".into())]);
        server.settle();
        let next = asks(
            &mut server,
            target,
            &format!("{GET}If-None-Match: {tag}\r\n"),
        );
        server.advance_and_tick_s(6);
        let received = take(&mut server, next);
        let expected = match kept {
            true => received.ends_with("\n\nbetween") && !received.contains("Crore-Gap"),
            false => received.starts_with("HTTP/1.1 204 ") && received.contains("\nCrore-Gap: "),
        };
        assert!(expected, "{target}: {received}");
    }
}

/// A poll that ends asks the home (the part of a shard that keeps the topic) for its position. If a message arrives before the home's
/// answer, the message is the poll's answer.
#[test]
fn message_that_arrives_while_a_poll_times_out_becomes_its_answer() {
    let mut server = server();
    let link = asks(&mut server, "/sub/full?since=live", GET);
    server.advance_and_tick_s(5);
    server.publish([("full", "late".into())]);
    server.advance_and_tick_s(1);
    let received = take(&mut server, link);
    assert!(received.ends_with("\n\nlate"), "{received}");
    assert_eq!(received.matches("HTTP/1.1").count(), 1, "{received}");
}

#[test]
fn long_poll_answer_has_the_publishers_content_type_and_event() {
    let ask = |fields: &str, target: &str| {
        let mut server = server();
        let text = format!(
            "POST /pub/x HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: 3\r\n\r\nabc"
        );
        server.connect_and_send(&text);
        server.settle();
        let link = asks(&mut server, target, GET);
        take(&mut server, link)
    };
    let fields = |content_type: &str| {
        format!("Content-Type: {content_type}\nETag: \"17-7\"\n{TIME}{CACHING}")
    };
    let all = "Content-Type: text/csv\r\nX-EventSource-Event: ev\r\nCrore-Key: k\r\n";
    assert_eq!(
        ask("", "/sub/x"),
        message(&fields("text/plain; charset=utf-8"), "abc")
    );
    assert_eq!(
        ask(all, "/sub/x"),
        message(
            &(fields("text/csv") + "Crore-Event: ev\nCrore-Key: k\n"),
            "abc"
        )
    );
    let binary = "Content-Type: application/octet-stream\r\n";
    assert_eq!(
        ask(binary, "/sub/x"),
        message(&fields("application/octet-stream"), "abc")
    );
    // The content type says that the bytes are not text.
    let mut server = server();
    let mut bytes =
        b"POST /pub/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n".to_vec();
    bytes.push(0xff);
    server.connect_and_send(bytes);
    server.settle();
    let link = asks(&mut server, "/sub/x", GET);
    assert!(take(&mut server, link).contains("Content-Type: application/octet-stream\n"));
    let envelope = ask(all, "/sub/x?envelope=json");
    let json = r#"{"topic":"x","id":"17-7","time":1800000000,"content_type":"text/csv","event":"ev","key":"k","data":"abc"}"#;
    assert_eq!(
        envelope,
        message(
            &(fields("application/json") + "Crore-Event: ev\nCrore-Key: k\n"),
            json
        )
    );
    // With several topics, the answer names the message's topic.
    let several = ask(all, "/sub?topic=x&topic=y");
    assert!(
        several.contains("\nCrore-Topic: x\nCrore-Event: ev\nCrore-Key: k\n"),
        "{several}"
    );
    assert!(several.ends_with("\n\nabc"));
    let several = ask(all, "/sub?topic=x&topic=y&envelope=json");
    assert!(several.contains(r#"{"topic":"x","id":"2"#), "{several}");
}

#[test]
fn a_head_request_is_answered_at_once_and_without_a_body() {
    let mut server = server();
    let link = asks_with(&mut server, "HEAD /sub/full HTTP/1.1", GET);
    let fields =
        format!("Content-Type: text/plain; charset=utf-8\nETag: \"17-1\"\n{TIME}{CACHING}");
    let whole = message(&fields, "one");
    assert_eq!(
        take(&mut server, link),
        whole.strip_suffix("one").expect("a body")
    );
    for (target, id) in [("/sub/empty", "17-0"), ("/sub?topic=empty&topic=void", SET)] {
        let link = asks_with(&mut server, &format!("HEAD {target} HTTP/1.1"), GET);
        assert_eq!(
            take(&mut server, link),
            format!("HTTP/1.1 204 No Content\nETag: \"{id}\"\n{CACHING}\n")
        );
    }
    let link = asks_with(&mut server, "HEAD /sub/full HTTP/1.1", EVENTS);
    let (head, _) = STREAM.split_once("\n\n").expect("a head");
    assert_eq!(take(&mut server, link), format!("{head}\n\n"));
    server.publish([("full", "three".into())]);
    server.settle();
    assert_eq!(take(&mut server, link), "", "no stream");
}

/// A client that disconnects before the topic's home has answered leaves no subscription there.
#[test]
fn poll_whose_client_has_left_leaves_no_subscription() {
    for target in [
        "/sub/empty",
        "/sub?topic=empty&topic=void",
        "/sub?filter=empty/%2B",
    ] {
        let mut server = server();
        let link = server.connect_and_send(format!("GET {target} HTTP/1.1\r\n{GET}\r\n"));
        server.end(link);
        server.settle();
        assert!(!server.is_open(link), "{target}");
        let accounts = server.accounts();
        let left = (accounts.carrier_topics, accounts.carrier_filters);
        assert_eq!(left, (0, 0), "{target}");
    }
}

/// A partition with a constant flow of messages must not delay messages of other partitions.
#[test]
fn a_long_poll_by_filter_takes_the_oldest_message_of_all_partitions() {
    let mut server = TestServer::partitioned(Settings::default(), 2);
    let of = |partition| {
        let mut names = (0..).map(|n| format!("p/{n}"));
        let is = |name: &String| crore_wire::topic::slot(name.as_bytes()) % 2 == partition;
        let name = names.find(is).expect("there are names without end");
        &*name.leak()
    };
    let (busy, quiet) = (of(0), of(1));
    server.publish([(quiet, "old".into())]);
    server.settle();
    server.advance_and_tick_s(1);
    let mut tag = String::new();
    for expected in ["old", "busy 0", "busy 1"] {
        for n in 0..2 {
            server.publish([(busy, format!("busy {n}"))]);
        }
        server.settle();
        let link = asks(
            &mut server,
            "/sub?filter=p/%2B&since=oldest",
            &format!("{GET}{tag}"),
        );
        let text = take(&mut server, link);
        assert!(text.ends_with(expected), "{expected}: {text}");
        let (_, rest) = text.split_once("ETag: ").expect("a position");
        let (position, _) = rest.split_once('\n').expect("a line");
        tag = format!("If-None-Match: {position}\r\n");
    }
}
