//! Tests Server-Sent Events, with a reader that follows the HTML standard.

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::stream::{Event, Stream};

#[test]
fn a_stream_begins_at_once_with_a_comment_and_a_retry() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nsse_retry_ms = 1234\n");
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    let head = &stream.head;
    assert!(
        head.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream")),
        "{head:?}"
    );
    assert!(
        head.lists("cache-control", "no-cache") && head.lists("cache-control", "no-transform"),
        "{head:?}"
    );
    assert_eq!(head.header("x-accel-buffering").as_deref(), Some("no"));
    assert_eq!(stream.conn.chunk(), b":\nretry: 1234\n");
}

#[test]
fn only_a_request_that_accepts_event_streams_gets_one() {
    let server = Server::start();
    publish(&server, "news", "x");
    for (fields, streams) in [
        (&["text/event-stream"][..], true),
        // The Accept headers of clients of the Model Context Protocol.
        (&["application/json, text/event-stream"], true),
        (&["application/json", "text/event-stream"], true),
        (&["TEXT/Event-Stream;q=0.1, text/html"], true),
        (&["text/event-stream;q=0, */*"], false),
        (&[r#"text/plain; x="a, text/event-stream""#], false),
        (&["*/*"], false),
        (&[], false),
    ] {
        let accept: Vec<_> = fields.iter().map(|field| ("Accept", *field)).collect();
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/sub/news?since=oldest", &accept, "");
        let kind = conn.head().header("content-type").unwrap_or_default();
        assert_eq!(kind == "text/event-stream", streams, "{fields:?}: {kind}");
    }
    // The topic's info cannot be an event stream, so it has the other accepted form.
    let accept = [("Accept", "text/event-stream, application/json")];
    let info = once(&server, "GET", "/pub/news", &accept, "");
    assert_eq!(info.json()["messages"], 1);
}

/// Libraries such as fetch-event-source and httpx-sse end an event at every empty line.
#[test]
fn only_events_end_with_an_empty_line() {
    let server = Server::with("[heartbeat]\ninterval_s = 5\njitter_percent = 0\n");
    for target in [
        "/sub/news",
        "/sub?topic=news&topic=b",
        "/sub?filter=news/%23",
        "/sub/news?envelope=json",
    ] {
        let mut stream = Stream::open(&server, target, &[]);
        let beginning = String::from_utf8([stream.conn.chunk(), stream.conn.chunk()].concat());
        let beginning = beginning.expect("text");
        let id = beginning
            .strip_prefix(":\nretry: 2000\nid: ")
            .expect("an id");
        assert!(id.ends_with('\n') && !id.contains("\n\n"), "{beginning:?}");
        publish(&server, "news", "x");
        let block = stream.block().expect("an event");
        let event = block.event.expect("no block came before it");
        assert!(
            event.data.contains('x') && !event.id.is_empty(),
            "{event:?}"
        );
        // A heartbeat has no empty line either.
        assert_eq!(stream.conn.chunk(), b":\n", "{target}");
        once(&server, "DELETE", "/pub/news?purge", &[], "");
    }
}

/// An `EventSource` sends `Cache-Control: no-cache`. An id without data sets its position at once, without an event.
#[test]
fn an_event_source_has_a_position_before_the_first_message() {
    let server = Server::start();
    for header in [("Cache-Control", "no-cache"), ("Pragma", "no-cache")] {
        for target in [
            "/sub/news",
            "/sub?topic=news&topic=b",
            "/sub?filter=news/%23",
        ] {
            let mut stream = Stream::open(&server, target, &[header]);
            let beginning = [stream.conn.chunk(), stream.conn.chunk()].concat();
            let beginning = String::from_utf8(beginning).expect("text");
            let id = beginning
                .strip_prefix(":\nretry: 2000\nid: ")
                .expect("an id");
            let id = id.strip_suffix("\n\n").expect("a block");
            drop(stream);
            publish(&server, "news", "missed");
            let mut resumed = Stream::open(&server, target, &[header, ("Last-Event-ID", id)]);
            assert_eq!(resumed.data(1), ["missed"], "{target}");
        }
    }
}

#[test]
fn stream_without_a_position_is_live() {
    let server = Server::start();
    publish(&server, "news", "one");
    publish(&server, "news", "two");
    let mut live_only = Stream::open(&server, "/sub/news", &[]);
    let mut oldest = Stream::open(&server, "/sub/news?since=oldest", &[]);
    let mut newest = Stream::open(&server, "/sub/news?since=-1", &[]);
    server.await_subscribers("news", 3);
    publish(&server, "news", "three");
    assert_eq!(live_only.data(1), ["three"]);
    assert_eq!(oldest.data(3), ["one", "two", "three"]);
    assert_eq!(newest.data(2), ["two", "three"]);
}

#[test]
fn last_event_id_resumes_after_its_message() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    for number in 0..5 {
        publish(&server, "news", number.to_string());
    }
    let events: Vec<Event> = (0..5).map(|_| stream.event().expect("an event")).collect();
    drop(stream);
    publish(&server, "news", "5");
    for (number, event) in events.iter().enumerate() {
        assert!(!event.id.is_empty());
        let expected: Vec<String> = (number + 1..6).map(|number| number.to_string()).collect();
        let mut by_header = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &event.id)]);
        assert_eq!(
            by_header.data(expected.len()),
            expected,
            "Last-Event-ID of {number}"
        );
        // An event source that reconnects sends its URL again.
        for query in ["since=oldest", "since=live", "since=-1"] {
            let target = format!("/sub/news?{query}");
            let mut resumed = Stream::open(&server, &target, &[("Last-Event-ID", &event.id)]);
            assert_eq!(resumed.data(expected.len()), expected, "{query}");
        }
        let mut by_query = Stream::open(
            &server,
            &format!("/sub/news?last_event_id={}", event.id),
            &[],
        );
        assert_eq!(
            by_query.data(expected.len()),
            expected,
            "last_event_id of {number}"
        );
    }
}

#[test]
fn position_is_valid_on_every_transport() {
    let server = Server::start();
    publish(&server, "news", "one");
    let position = once(&server, "GET", "/sub/news", &[], "").position();
    publish(&server, "news", "two");
    let mut stream = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &position)]);
    assert_eq!(stream.data(1), ["two"]);
}

#[test]
fn line_breaks_of_data_are_delivered_as_line_feeds() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    // CR, LF and CRLF all end a line for a reader, which turns them into LF.
    let table = [
        ("plain", "plain"),
        ("two\nlines", "two\nlines"),
        ("crlf\r\ncr\rend", "crlf\ncr\nend"),
        (" leading space", " leading space"),
        ("id: 7\nevent: x\nretry: 1", "id: 7\nevent: x\nretry: 1"),
        (":comment", ":comment"),
        ("trailing\n", "trailing\n"),
        ("\n\n\n", "\n\n\n"),
        ("caf\u{e9} \u{1f600}", "caf\u{e9} \u{1f600}"),
    ];
    for (sent, _) in table {
        publish(&server, "news", sent);
    }
    for (sent, expected) in table {
        assert_eq!(stream.event().expect("an event").data, expected, "{sent:?}");
    }
}

#[test]
fn event_has_the_name_given_by_its_publisher() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    assert_eq!(
        once(
            &server,
            "POST",
            "/pub/news",
            &[("X-EventSource-Event", "tick")],
            "1"
        )
        .status,
        201
    );
    publish(&server, "news", "2");
    let events = [
        stream.event().expect("an event"),
        stream.event().expect("an event"),
    ];
    assert_eq!(
        events.map(|event| (event.kind, event.data)),
        [("tick", "1"), ("message", "2")]
            .map(|(kind, data)| { (kind.to_string(), data.to_string()) })
    );
    for name in [GAP_EVENT, "crore.x"] {
        let response = once(
            &server,
            "POST",
            "/pub/news",
            &[("X-EventSource-Event", name)],
            "x",
        );
        assert_eq!(response.status, 400, "{name} is ours");
    }
}

/// Some readers store an id when its line arrives, even if the rest of the event is lost. So the id must be the last line of its event.
#[test]
fn id_is_the_last_line_of_its_event() {
    let server = Server::with(
        "[[rule]]\nmatch = 'short'\nlog_messages = 1\n[[rule]]\nmatch = '#'\nlog_bytes = '2 MiB'\n",
    );
    let long = "line\n".repeat(50_000);
    let binary = ("Content-Type", "application/octet-stream");
    let with_name = ("X-EventSource-Event", "tick");
    for (headers, body) in [
        (&[][..], &b"one"[..]),
        (&[with_name], b"two\nlines"),
        (&[binary], &[0xff; 9]),
        (&[with_name], long.as_bytes()),
        (&[binary], &[0xfe; 200_000]),
    ] {
        for topic in ["/pub/news", "/pub/short"] {
            let mut conn = Conn::open(&server);
            assert!(conn.request("POST", topic, headers, body).status < 300);
        }
    }
    for (target, count) in [
        ("/sub/news?since=oldest", 5),
        ("/sub/news?since=oldest&envelope=json", 5),
        ("/sub?topic=news&topic=none&since=oldest", 5),
        ("/sub?filter=news&since=oldest", 5),
        // A gap (the notice of missed messages), and the message after it.
        ("/sub/short?last_event_id=lost", 2),
    ] {
        let mut conn = Conn::open(&server);
        conn.send(format!(
            "GET {target} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n"
        ));
        assert_eq!(conn.head().status, 200, "{target}");
        let mut text = Vec::new();
        let count_events =
            |text: &[u8]| text.windows(2).filter(|window| *window == b"\n\n").count();
        while count_events(&text) < count {
            text.extend(conn.exactly(1));
            text.extend(conn.take());
        }
        let text = String::from_utf8(text).expect("an event stream is UTF-8");
        for event in text.split_terminator("\n\n") {
            let last = event.lines().next_back().expect("a line");
            assert!(last.starts_with("id: "), "{target}: {last:.40}");
            // Only the position before the first message has an id without data.
            let beginning = event.find("data: ").expect("data");
            assert_eq!(event[beginning..].matches("\nid: ").count(), 1, "{target}");
        }
    }
}

#[test]
fn http_1_0_gets_a_stream_that_ends_with_the_connection() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    conn.send("GET /sub/news HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n");
    let head = conn.head();
    assert_eq!((head.status, head.header("transfer-encoding")), (200, None));
    let mut stream = Stream::from_response(conn, head);
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    assert_eq!(stream.data(1), ["one"]);
    once(&server, "DELETE", "/pub/news", &[], "");
    assert_eq!(stream.event(), None);
}

#[test]
fn gap_is_an_event_with_a_new_id() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nlog_messages = 2\n");
    publish(&server, "news", "0");
    let position = once(&server, "GET", "/sub/news", &[], "").position();
    for number in 1..6 {
        publish(&server, "news", number.to_string());
    }
    let mut stream = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &position)]);
    let gap = stream.event().expect("a gap");
    assert_eq!((&*gap.kind, &*gap.data), ("crore.gap", "news"));
    assert!(!gap.id.is_empty() && gap.id != position, "{gap:?}");
    assert_eq!(stream.data(2), ["4", "5"]);
    let mut from_gap = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &gap.id)]);
    assert_eq!(from_gap.data(2), ["4", "5"], "the gap is told once");
}

#[test]
fn silent_stream_gets_comments() {
    let server = Server::with("[heartbeat]\ninterval_s = 5\njitter_percent = 0\n");
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    // The first lines of a stream, and the comment that is due as a heartbeat.
    for begins in [":\nretry: ", "id: ", ":\n"] {
        let chunk = String::from_utf8(stream.conn.chunk()).expect("text");
        assert!(chunk.starts_with(begins), "{chunk:?}");
    }
}

/// A page whose connection breaks while an answer is streamed to it (many small messages in a short time) still receives the whole answer.
#[test]
fn streamed_answer_survives_a_lost_connection_with_default_settings() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "/sub/answer", &[]);
    let mut conn = Conn::open(&server);
    let mut publish_tokens = |range: std::ops::Range<u32>| {
        for n in range {
            conn.request("POST", "/pub/answer", &[], format!("token {n}"));
        }
    };
    publish_tokens(0..5);
    let first_part = stream.data(4);
    let last = stream.event().expect("an event");
    drop(stream);
    publish_tokens(5..1_500);
    let mut resumed = Stream::open(&server, "/sub/answer", &[("Last-Event-ID", &last.id)]);
    let second_part = resumed.data(1_495);
    let expected: Vec<String> = (0..1_500).map(|n| format!("token {n}")).collect();
    assert_eq!(
        [first_part, vec![last.data], second_part].concat(),
        expected
    );
}
