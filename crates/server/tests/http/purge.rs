//! Tests purged topics. The messages are removed; the topic and its subscribers stay. A client with an older position is told a gap (that
//! it missed messages).

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::{Conn, info, once, publish};
use crate::support::stream::Stream;
use crate::support::ws::Ws;

const PURGE: &str = "/pub/news?purge";

#[test]
fn purge_empties_the_topic_and_keeps_it() {
    let server = Server::with_shards(3, "");
    assert_eq!(once(&server, "DELETE", PURGE, &[], "").status, 404);
    for topic in ["news", "other"] {
        publish(&server, topic, "one");
        publish(&server, topic, "two");
    }
    let info_before = info(&server, "news");
    let json = [("Accept", "application/json")];
    let answer = once(&server, "DELETE", PURGE, &json, "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!(answer["messages"], 0);
    assert_eq!(answer["last_message_id"], info_before["last_message_id"]);
    assert_eq!(info(&server, "news"), answer);
    assert_eq!(info(&server, "other")["messages"], 2);
    // The first message is now the one published after the purge.
    publish(&server, "news", "three");
    let first = Conn::open(&server).get("/sub/news", &[]);
    assert_eq!(first.text(), "three");
    // A purge of an empty topic succeeds too.
    for _ in 0..2 {
        assert_eq!(once(&server, "DELETE", PURGE, &[], "").status, 200);
    }
    assert_eq!(once(&server, "DELETE", "/pub/news", &[], "").status, 200);
    assert_eq!(once(&server, "DELETE", PURGE, &[], "").status, 404);
}

#[test]
fn purge_is_a_gap_only_for_older_positions_and_keeps_subscribers() {
    let server = Server::with_shards(3, "");
    let mut live_only = Ws::open(&server, "/sub/news", &[]);
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    let mut wide = Stream::open(&server, "/sub?filter=news/%23", &[]);
    server.await_subscribers("news", 2);
    for text in ["one", "two"] {
        publish(&server, "news", text);
    }
    let next_event = |stream: &mut Stream| {
        let mut next_id = || stream.event().expect("an event").id;
        [next_id(), next_id()]
    };
    let (exact, wide) = (next_event(&mut stream), next_event(&mut wide));
    assert_eq!(live_only.texts(2), ["one", "two"]);
    assert_eq!(once(&server, "DELETE", PURGE, &[], "").status, 200);
    publish(&server, "news", "three");
    assert_eq!(live_only.texts(1), ["three"]);
    assert_eq!(stream.event().expect("an event").data, "three");
    for ([before_purge, after_purge], target) in
        [(exact.clone(), "/sub/news"), (wide, "/sub?filter=news/%23")]
    {
        let resume_from = |id: &str| Stream::open(&server, target, &[("Last-Event-ID", id)]);
        let mut resumed = resume_from(&before_purge);
        assert_eq!(resumed.event().expect("a gap").kind, GAP_EVENT, "{target}");
        assert_eq!(resumed.data(1), ["three"], "{target}");
        let first_event = resume_from(&after_purge).event().expect("an event");
        assert_eq!(
            (&*first_event.kind, &*first_event.data),
            ("message", "three"),
            "{target}"
        );
    }
    for (position, gap) in exact.iter().zip([true, false]) {
        let tag = format!("\"{position}\"");
        let poll = Conn::open(&server).get("/sub/news", &[("If-None-Match", &tag)]);
        assert_eq!(poll.text(), "three");
        assert_eq!(poll.header("crore-gap").is_some(), gap, "{poll:?}");
    }
}

#[test]
fn latest_values_are_purged_with_their_keys() {
    let server = Server::with("[[rule]]\nmatch = '#'\nkeep = 'latest'\n");
    for (key, text) in [("a", "a1"), ("b", "b1"), ("a", "a2")] {
        let headers = [("Crore-Key", key)];
        once(&server, "POST", "/pub/news", &headers, text);
    }
    assert_eq!(info(&server, "news")["messages"], 2);
    once(&server, "DELETE", PURGE, &[], "");
    assert_eq!(info(&server, "news")["messages"], 0);
    once(&server, "POST", "/pub/news", &[("Crore-Key", "b")], "b2");
    let mut stream = Stream::open(&server, "/sub/news?since=oldest", &[]);
    assert_eq!(stream.data(1), ["b2"]);
    assert_eq!(info(&server, "news")["messages"], 1);
}

#[test]
fn purge_with_a_value_or_another_method_is_refused() {
    let server = Server::start();
    publish(&server, "news", "one");
    for (method, target, status) in [
        ("DELETE", "/pub/news?purge=false", 400),
        ("DELETE", "/pub/news?purge=true", 400),
        ("DELETE", "/pub/$SYS?purge", 403),
        ("DELETE", "/pub?purge", 400),
        ("GET", PURGE, 400),
        ("PUT", PURGE, 400),
        ("POST", PURGE, 400),
    ] {
        let answer = once(&server, method, target, &[], "");
        assert_eq!(answer.status, status, "{method} {target}: {answer:?}");
    }
    assert_eq!(info(&server, "news")["messages"], 1);
    let foreign = [("Origin", "https://evil.example")];
    assert_eq!(once(&server, "DELETE", PURGE, &foreign, "").status, 403);
    assert_eq!(info(&server, "news")["messages"], 1);
    let by_query = once(&server, "DELETE", "/pub?topic=news&purge", &[], "");
    assert_eq!(by_query.status, 200);
    assert_eq!(info(&server, "news")["messages"], 0);
}
