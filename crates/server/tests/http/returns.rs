//! Tests how a subscriber resumes: with the position as the server sent it, as a proxy or a polyfill changed it, or with an invalid one. A
//! subscriber never receives the same messages in a loop.

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::{Conn, Response, once, publish};
use crate::support::stream::Stream;
use crate::support::ws::{Ws, handshake};

/// Forms in which a client may send the entity tag `"x"` back.
const TAG_FORMS: &[&str] = &[
    "\"x\"",
    "x",
    "W/\"x\"",
    "W/x",
    "'x'",
    "\"x",
    "\\\"x\\\"",
    "\"x-gzip\"",
    "x-gzip",
    "\"x\"-gzip",
    "\"x;gzip\"",
    "\"x-br\"",
    "\"x--gzip\"",
    "\"x-zstd\"",
    "\"x-deflate\"",
    "\"x:gzip\"",
    "\"x_gzip\"",
    "W/\"x-gzip\"",
    "\"x-gzip-br\"",
    "\"x;;;\"",
    "\"y\", \"x-gzip\"",
    "*, \"x\"",
];

fn poll(server: &Server, target: &str, header: &str, value: &str) -> Response {
    once(server, "GET", target, &[(header, value)], "")
}

#[test]
fn position_changed_by_a_proxy_is_accepted() {
    let server = Server::start();
    for target in ["/sub/a", "/sub?topic=a&topic=b", "/sub?filter=%23"] {
        for text in ["one", "two"] {
            publish(&server, "a", text);
        }
        let position = once(&server, "GET", target, &[], "").position();
        for spelling in TAG_FORMS {
            let tag = spelling.replace('x', &position);
            for header in ["If-None-Match", "Last-Event-ID"] {
                let answer = poll(&server, target, header, &tag);
                let received = (answer.status, answer.text());
                assert_eq!(received, (200, "two"), "{target} {header}: {tag}");
                assert_eq!(answer.header("crore-gap"), None, "{target} {header}: {tag}");
            }
        }
        let mut stream = Stream::open(
            &server,
            target,
            &[("Last-Event-ID", &format!("{position}-br"))],
        );
        assert_eq!(stream.event().expect("an event").data, "two", "{target}");
        once(&server, "DELETE", "/pub/a?purge", &[], "");
    }
}

#[test]
fn newest_of_several_tags_is_used() {
    let server = Server::start();
    let mut tags = Vec::new();
    for text in ["one", "two", "three"] {
        publish(&server, "a", text);
    }
    let mut conn = Conn::open(&server);
    tags.push(conn.get("/sub/a", &[]).header("etag").expect("a tag"));
    for n in 0..1 {
        let response = conn.get("/sub/a", &[("If-None-Match", &tags[n])]);
        tags.push(response.header("etag").expect("a tag"));
    }
    for list in [tags.join(", "), format!("{}, {}", tags[1], tags[0])] {
        assert_eq!(
            poll(&server, "/sub/a", "If-None-Match", &list).text(),
            "three"
        );
    }
    let two_tags = [
        ("If-None-Match", &tags[0][..]),
        ("If-None-Match", &tags[1][..]),
    ];
    assert_eq!(
        once(&server, "GET", "/sub/a", &two_tags, "").text(),
        "three"
    );
}

#[test]
fn poll_with_an_unreadable_tag_gets_a_gap_and_no_message_twice() {
    let server = Server::with("[[rule]]\nmatch = '#'\nlog_messages = 100\n");
    for text in ["one", "two"] {
        publish(&server, "a", text);
    }
    for (n, tag) in [
        "\"altered\"",
        "*",
        "\"1zz-1\"",
        "urn:uuid:1b4e28ba",
        "W/\"*\"",
    ]
    .iter()
    .enumerate()
    {
        let mut conn = Conn::open(&server);
        for round in 0..2 {
            // The client may receive the answer before the server has counted the end of the previous poll.
            server.await_subscribers("a", 0);
            conn.ask("GET", "/sub/a", &[("If-None-Match", tag)], "");
            server.await_subscribers("a", 1);
            let text = format!("new {n} {round}");
            publish(&server, "a", &text);
            let answer = conn.response();
            assert_eq!((answer.status, answer.text()), (200, &text[..]), "{tag}");
            assert!(answer.header("crore-gap").is_some(), "{tag}: {answer:?}");
        }
    }
    // A stream is told the gap (that it missed messages) once, and then receives all messages that are kept.
    let mut stream = Stream::open(&server, "/sub/a", &[("Last-Event-ID", "urn:uuid:7")]);
    assert_eq!(stream.event().expect("a gap").kind, GAP_EVENT);
    assert_eq!(stream.data(2), ["one", "two"]);
}

#[test]
fn last_event_id_in_the_query_has_several_names_and_precedes_since() {
    let server = Server::start();
    for text in ["one", "two"] {
        publish(&server, "a", text);
    }
    let position = once(&server, "GET", "/sub/a", &[], "").position();
    for name in [
        "last_event_id",
        "lastEventId",
        "lastEventID",
        "LastEventId",
        "Last-Event-ID",
        "last-event-id",
        "evs_last_event_id",
    ] {
        // A polyfill appends the position to the query of its first URL, and appends it again at each reconnect.
        for query in [
            format!("{name}={position}"),
            format!("since=oldest&{name}={position}"),
            format!("since=live&{name}={position}"),
            format!("{name}=&{name}=1a-0&{name}={position}"),
            format!("{name}=%22{position}-gzip%22"),
        ] {
            let target = format!("/sub/a?{query}");
            assert_eq!(
                once(&server, "GET", &target, &[], "").text(),
                "two",
                "{query}"
            );
            let mut stream = Stream::open(&server, &target, &[]);
            assert_eq!(stream.data(1), ["two"], "{query}");
            let mut ws = Ws::open(&server, &target, &[]);
            assert_eq!(ws.texts(1), ["two"], "{query}");
        }
        // An empty value counts as absent. If the header is there too, the header counts, since it is newer.
        let oldest = once(&server, "GET", &format!("/sub/a?{name}="), &[], "");
        assert_eq!(oldest.text(), "one");
        let mut newer = Stream::open(
            &server,
            &format!("/sub/a?{name}=1a-0"),
            &[("Last-Event-ID", &position)],
        );
        assert_eq!(newer.data(1), ["two"], "{name}");
    }
}

#[test]
fn invalid_last_event_id_is_400_for_a_program_and_a_gap_for_an_event_source() {
    let server = Server::start();
    publish(&server, "a", "one");
    for query in ["since=bogus", "lastEventId=bogus", "last_event_id=%zz"] {
        let target = format!("/sub/a?{query}");
        let refused = once(&server, "GET", &target, &[], "");
        assert_eq!(refused.status, 400, "{query}");
        let mut conn = Conn::open(&server);
        conn.ask("GET", &target, &handshake(&[]), "");
        assert_eq!(conn.head().status, 400, "{query}");
        let events = [("Accept", "text/event-stream")];
        let status = once(&server, "HEAD", &target, &events, "").status;
        assert_eq!(status, if query.starts_with("since") { 400 } else { 200 });
    }
    // An EventSource gives up for good after another status than 200, so even a meaningless position gets 200 and a gap.
    let mut stream = Stream::open(&server, "/sub/a?lastEventId=bogus", &[]);
    assert_eq!(stream.event().expect("a gap").kind, GAP_EVENT);
    assert_eq!(stream.data(1), ["one"]);
}
