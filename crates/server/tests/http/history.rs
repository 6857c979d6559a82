//! Tests `GET /history`, which returns the messages that a topic keeps, page by page.

use serde_json::Value;

use crate::support::http::{Conn, Response, once};
use crate::support::state::State;
use crate::support::{Server, until};

fn publish(server: &Server, topic: &str, data: &str) {
    assert_eq!(
        once(server, "POST", &format!("/pub/{topic}"), &[], data).status,
        202
    );
}

fn messages(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{response:?}");
    let array: Value = serde_json::from_slice(&response.body).expect("JSON");
    array.as_array().expect("an array").clone()
}

fn data(messages: &[Value]) -> Vec<&str> {
    let data = messages.iter().map(|message| message["data"].as_str());
    data.map(|data| data.expect("text")).collect()
}

fn get(server: &Server, target: &str) -> Response {
    once(server, "GET", target, &[], "")
}

#[test]
fn a_topics_history_is_an_array_with_positions_and_times() {
    let server = Server::start();
    let empty = get(&server, "/history/chat");
    assert_eq!(messages(&empty).len(), 0);
    for data in ["one", "two", "three"] {
        publish(&server, "chat", data);
    }
    let history = get(&server, "/history/chat");
    let history = messages(&history);
    assert_eq!(data(&history), ["one", "two", "three"]);
    for message in &history {
        assert_eq!(message["topic"], "chat");
        assert!(
            message["time"]
                .as_u64()
                .is_some_and(|time| time > 1_600_000_000),
            "{message}"
        );
    }
    // Positions are the same for every transport.
    let second = history[1]["id"].as_str().expect("a position");
    let later = get(&server, &format!("/history/chat?since={second}"));
    assert_eq!(data(&messages(&later)), ["three"]);
    let poll = get(&server, &format!("/sub/chat?since={second}"));
    assert_eq!(poll.text().trim(), "three");
    let newest = get(&server, "/history?topic=chat&since=-2");
    assert_eq!(data(&messages(&newest)), ["two", "three"]);
    // A request for the history does not count as a subscription.
    let info = once(
        &server,
        "GET",
        "/pub/chat",
        &[("Accept", "application/json")],
        "",
    );
    assert!(
        info.text().contains("\"subscribers\": 0"),
        "{}",
        info.text()
    );
    // Reading the history of a topic does not create the topic.
    assert_eq!(messages(&get(&server, "/history/other")).len(), 0);
    assert_eq!(get(&server, "/pub/other").status, 404);
}

#[test]
fn unchanged_history_is_304() {
    let server = Server::start();
    publish(&server, "chat", "one");
    publish(&server, "chat", "two");
    let target = "/history/chat?since=-5";
    let first = get(&server, target);
    let tag = first.header("etag").expect("a tag");
    for tag in [
        &tag,
        &format!("W/{tag}"),
        &format!("\"x\", {tag}"),
        &tag.replace("\"", ""),
    ] {
        let unchanged = once(&server, "GET", target, &[("If-None-Match", tag)], "");
        assert_eq!((unchanged.status, unchanged.body.len()), (304, 0), "{tag}");
        assert_eq!(unchanged.header("etag"), first.header("etag"));
    }
    // Each parameter that changes the answer changes the ETag.
    for target in ["/history/chat?since=-1", "/history/chat?since=-5&limit=1"] {
        let target = once(&server, "GET", target, &[("If-None-Match", &tag)], "");
        assert_eq!(messages(&target).len(), 1);
    }
    publish(&server, "chat", "three");
    let changed = once(&server, "GET", target, &[("If-None-Match", &tag)], "");
    assert_eq!(data(&messages(&changed)), ["one", "two", "three"]);
    let head = once(&server, "HEAD", target, &[], "");
    assert_eq!((head.status, head.body.len()), (200, 0), "{head:?}");
    assert_eq!(head.header("etag"), changed.header("etag"));
}

#[test]
fn long_history_is_read_in_pages() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let text = "x".repeat(1_000);
    for n in 0..300 {
        let status = conn
            .request("POST", "/pub/long", &[], format!("{n} {text}"))
            .status;
        assert_eq!(status, 202);
    }
    // 300 kB are more than a topic keeps by default.
    let (mut since, mut messages_so_far, mut pages) = ("oldest".to_string(), Vec::new(), 0);
    loop {
        let page = conn.request("GET", &format!("/history/long?since={since}"), &[], "");
        let read = messages(&page);
        assert!(page.body.len() < 80 << 10, "{}", page.body.len());
        pages += 1;
        since = read.last().expect("some")["id"]
            .as_str()
            .expect("a position")
            .into();
        messages_so_far.extend(read);
        if page.header("crore-more").is_none() {
            break;
        }
    }
    assert!(pages > 3, "{pages}");
    let numbers = messages_so_far.iter().map(|message| {
        let data = message["data"].as_str().expect("text");
        data.split(' ')
            .next()
            .expect("a number")
            .parse::<u32>()
            .expect("a number")
    });
    let numbers: Vec<u32> = numbers.collect();
    assert_eq!(
        numbers,
        (300 - numbers.len() as u32..300).collect::<Vec<_>>()
    );
    assert!((200..260).contains(&numbers.len()), "{}", numbers.len());
    let page = conn.request("GET", "/history/long?since=oldest&limit=2", &[], "");
    assert_eq!(messages(&page).len(), 2);
    assert_eq!(page.header("crore-more").as_deref(), Some("true"));
    let first_bytes = messages(&page)[0]["data"]
        .as_str()
        .expect("text")
        .to_string();
    assert!(
        first_bytes.starts_with(&format!("{} ", numbers[0])),
        "{first_bytes}"
    );
}

#[test]
fn limit_selects_the_newest_messages_or_those_after_a_position() {
    let server = Server::start();
    for data in ["1", "2", "3", "4", "5"] {
        publish(&server, "chat", data);
    }
    let messages_so_far = messages(&get(&server, "/history/chat"));
    let second = messages_so_far[1]["id"].as_str().expect("a position");
    for (query, expected) in [
        ("limit=2", &["4", "5"][..]),
        ("limit=1&since=", &["5"]),
        ("limit=9", &["1", "2", "3", "4", "5"]),
        ("limit=2&since=oldest", &["1", "2"]),
        ("limit=2&since=-4", &["2", "3"]),
        (&format!("limit=2&since={second}"), &["3", "4"]),
    ] {
        let page = get(&server, &format!("/history/chat?{query}"));
        assert_eq!(data(&messages(&page)), expected, "{query}");
        let has_more = expected.last() != Some(&"5");
        assert_eq!(page.header("crore-more").is_some(), has_more, "{query}");
    }
}

#[test]
fn limit_is_parsed_as_a_number() {
    let server = Server::start();
    for data in ["one", "two", "three"] {
        publish(&server, "chat", data);
    }
    for (query, kept) in [
        // An empty value counts as absent.
        ("limit=", 3),
        ("limit", 3),
        ("limit=&limit=2", 2),
        ("limit=%32", 2),
        ("limit=%30%31", 1),
        ("limit=007", 3),
        ("limit=4294967295", 3),
        ("limit=99999999999999999999999", 3),
        ("since=&limit=2", 2),
        ("envelope=%6Ason&limit=1", 1),
    ] {
        let answer = get(&server, &format!("/history/chat?{query}"));
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        let messages = messages(&answer);
        let newest = &["one", "two", "three"][3 - kept..];
        assert_eq!(data(&messages), newest, "{query}");
    }
}

#[test]
fn history_reports_lost_messages() {
    let server = Server::with("[[rule]]\nmatch = '#'\nlog_messages = 2\n");
    publish(&server, "chat", "0");
    let first = messages(&get(&server, "/history/chat"));
    let position = first[0]["id"].as_str().expect("a position").to_string();
    for n in 1..=3 {
        publish(&server, "chat", &n.to_string());
    }
    let target = format!("/history/chat?since={position}");
    let gap = get(&server, &target);
    assert!(gap.header("crore-gap").is_some(), "{gap:?}");
    assert_eq!(data(&messages(&gap)), ["2", "3"]);
    assert!(get(&server, "/history/chat").header("crore-gap").is_none());
    // The log tells the operator which setting caused the gap (messages that a reader has missed), once.
    get(&server, &target);
    until("it is in the log", || {
        server.log().matches("rule.log_messages = 2").count() == 1
    });
    assert_eq!(once(&server, "DELETE", "/pub/chat", &[], "").status, 200);
    assert_eq!(get(&server, "/history/chat").status, 410);
}

#[test]
fn history_refuses_invalid_parameters() {
    let server = Server::start();
    for (target, status, reason) in [
        ("/history/a?since=never", 400, "since="),
        ("/history/a?limit=0", 400, "limit="),
        ("/history/a?limit=x", 400, "limit="),
        ("/history/a?limit=+5", 400, "limit="),
        ("/history/a?limit=-5", 400, "limit="),
        ("/history/a?limit=%205", 400, "limit="),
        ("/history/a?limit=5%2", 400, "limit="),
        ("/history/a?envelope=%79es", 400, "envelope="),
        ("/history?filter=%23", 400, "`filter`"),
        ("/history?topic=a&topic=b", 400, "exactly one topic"),
        ("/history", 400, ""),
    ] {
        let refused = get(&server, target);
        assert_eq!(refused.status, status, "{target}: {refused:?}");
        assert!(
            refused.text().contains(reason),
            "{target}: {}",
            refused.text()
        );
    }
    let refused = once(&server, "POST", "/history/a", &[], "x");
    assert_eq!(refused.status, 405);
    assert!(refused.lists("allow", "GET"), "{refused:?}");
}

#[test]
fn a_history_needs_the_right_to_subscribe() {
    let server =
        Server::with("[access]\n[access.anonymous]\npublish = [\"#\"]\nsubscribe = [\"open/#\"]\n");
    for topic in ["open/a", "shut/a"] {
        publish(&server, topic, "x");
    }
    assert_eq!(messages(&get(&server, "/history/open/a")).len(), 1);
    let refused = get(&server, "/history/shut/a");
    assert!([401, 403].contains(&refused.status), "{refused:?}");
}

/// Later requests on the same connection are answered in order, whichever shards keep their topics.
#[test]
fn pipelined_histories_are_answered_in_order() {
    let server = Server::start();
    for n in 0..20 {
        publish(&server, &format!("t/{n}"), &n.to_string());
    }
    let mut conn = Conn::open(&server);
    for n in 0..20 {
        conn.ask("GET", &format!("/history/t/{n}"), &[], "");
    }
    for n in 0..20 {
        assert_eq!(data(&messages(&conn.response())), [n.to_string()]);
    }
}

/// After a crash and after a stop, positions and times are those in the log.
#[test]
fn a_history_is_the_same_after_a_crash_and_a_stop() {
    let state = State::new();
    let mut server = Server::with(&state.settings());
    publish(&server, "chat", "one");
    publish(&server, "chat", "two");
    let first = get(&server, "/history/chat");
    assert_eq!(data(&messages(&first)), ["one", "two"]);
    server.kill();
    server = Server::with_shards(3, &state.settings());
    assert_eq!(get(&server, "/history/chat").text(), first.text());
    server.stop();
    server = Server::with(&state.settings());
    let tag = first.header("etag").expect("a tag");
    let unchanged = once(
        &server,
        "GET",
        "/history/chat",
        &[("If-None-Match", &tag)],
        "",
    );
    assert_eq!(unchanged.status, 304, "{unchanged:?}");
    assert_eq!(get(&server, "/history/chat").text(), first.text());
}
