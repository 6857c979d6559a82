//! Tests that an answered publish is in the log, and that a retry with the same idempotency key publishes nothing. The tests use many
//! topics: each of the two homes (the part of a shard that keeps topics) has some of them, and some are on another shard than the
//! connection.

use crate::support::http::{Conn, Response, info, publish};
use crate::support::port::{await_metric, get};
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::{Server, eventually, until};

const REPLAYED: &str = "idempotency-replayed";
const JSON: (&str, &str) = ("Accept", "application/json");
const NDJSON: (&str, &str) = ("Content-Type", "application/x-ndjson");

fn post(conn: &mut Conn, topic: &str, key: &str, body: &str) -> Response {
    let target = format!("/pub/{topic}");
    conn.request("POST", &target, &[("Idempotency-Key", key), JSON], body)
}

fn batch(conn: &mut Conn, lines: &[String]) -> serde_json::Value {
    let response = conn.request("POST", "/pub", &[NDJSON], lines.join("\n"));
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

/// All messages in the topic's log.
fn log(server: &Server, topic: &str, messages: usize) -> Vec<String> {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    stream.data(messages)
}

#[test]
fn answered_message_is_in_the_log() {
    let server = Server::start();
    let mut publishers: Vec<Conn> = (0..4).map(|_| Conn::open(&server)).collect();
    let mut readers: Vec<Conn> = (0..4).map(|_| Conn::open(&server)).collect();
    for n in 0..80 {
        let topic = format!("t/{n}");
        let target = format!("/pub/{topic}");
        let answer = publishers[n % 4].request("POST", &target, &[JSON], topic.as_bytes());
        let position = answer.json()["last_message_id"]
            .as_str()
            .unwrap()
            .to_string();
        // A reader on any shard that asks after the answer finds the message.
        let answer = readers[n / 4 % 4].get(&format!("/sub/{topic}"), &[]);
        assert_eq!(
            (answer.status, answer.text()),
            (200, topic.as_str()),
            "{answer:?}"
        );
        assert_eq!(answer.position(), position);
    }
}

#[test]
fn answer_to_a_batch_means_that_all_its_lines_are_in_the_log() {
    let server = Server::start();
    let mut readers: Vec<Conn> = (0..4).map(|_| Conn::open(&server)).collect();
    for round in 0..6 {
        let mut publisher = Conn::open(&server);
        let lines: Vec<String> = (0..40)
            .map(|n| format!(r#"{{"topic":"b/{round}/{n}","data":"{n}"}}"#))
            .collect();
        assert_eq!(batch(&mut publisher, &lines)["published"], 40);
        for n in (0..40).rev() {
            let answer = readers[n % 4].get(&format!("/sub/b/{round}/{n}"), &[]);
            assert_eq!(
                (answer.status, answer.text()),
                (200, n.to_string().as_str())
            );
        }
    }
}

fn a_retry_gets_the_first_answer(shards: u32) {
    let server = Server::with_shards(shards, "");
    for n in 0..16 {
        let topic = format!("t/{n}");
        let mut conn = Conn::open(&server);
        let first = post(&mut conn, &topic, "key-1", "one");
        assert_eq!(
            (first.status, first.header(REPLAYED)),
            (202, None),
            "{first:?}"
        );
        // A subscriber connects, so that a new publish would be answered with 201 from now on.
        let mut stream = Stream::open(&server, &format!("/sub/{topic}"), &[]);
        server.await_subscribers(&topic, 1);
        for (key, mut retry) in [
            ("key-1", conn),
            ("\"key-1\"", Conn::open(&server)),
            ("key-1", Conn::open(&server)),
        ] {
            let repeated = post(&mut retry, &topic, key, "one");
            assert_eq!(
                repeated.header(REPLAYED).as_deref(),
                Some("true"),
                "{repeated:?}"
            );
            assert_eq!(
                (repeated.status, &repeated.body),
                (first.status, &first.body)
            );
            // The header marks only the replayed answer, not later answers on the connection.
            assert_eq!(publish(&server, "other", "x").header(REPLAYED), None);
        }
        let second = post(&mut Conn::open(&server), &topic, "key-2", "one");
        assert_eq!((second.status, second.header(REPLAYED)), (201, None));
        assert_eq!(stream.data(1), ["one"], "of the second key only");
        assert_eq!(info(&server, &topic)["messages"], 2);
    }
}

#[test]
fn a_retry_gets_the_first_answer_and_publishes_nothing() {
    for shards in [1, 2, 5] {
        a_retry_gets_the_first_answer(shards);
    }
}

#[test]
fn idempotency_key_belongs_to_its_topic_and_message() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    assert_eq!(post(&mut conn, "a", "k", "x").status, 202);
    assert_eq!(
        post(&mut conn, "b", "k", "other").status,
        202,
        "another topic"
    );
    for n in 0..8 {
        let topic = format!("t/{n}");
        assert_eq!(post(&mut conn, &topic, "k", "x").status, 202);
        let refused = post(&mut Conn::open(&server), &topic, "k", "y");
        assert_eq!(
            (refused.status, refused.header(REPLAYED)),
            (422, None),
            "{refused:?}"
        );
        let target = format!("/pub/{topic}");
        for field in [
            ("Content-Type", "text/html"),
            ("X-EventSource-Event", "e"),
            ("Crore-Key", "c"),
            ("Crore-TTL", "9"),
        ] {
            let refused = conn.request("POST", &target, &[("Idempotency-Key", "k"), field], "x");
            assert_eq!(refused.status, 422, "{field:?}");
        }
        // The key still stands for the first message.
        assert_eq!(
            post(&mut conn, &topic, "k", "x")
                .header(REPLAYED)
                .as_deref(),
            Some("true")
        );
        assert_eq!(info(&server, &topic)["messages"], 1);
    }
}

#[test]
fn invalid_key_is_refused() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    for key in ["", "\"\"", &"k".repeat(256)] {
        assert_eq!(post(&mut conn, "a", key, "x").status, 400, "{key}");
    }
    assert_eq!(post(&mut conn, "a", &"k".repeat(255), "x").status, 202);
    // One key for all lines is refused, since it would be unclear what a retry of some of the lines means.
    let headers = [NDJSON, ("Idempotency-Key", "k")];
    let refused = conn.request("POST", "/pub", &headers, r#"{"topic":"a","data":1}"#);
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(info(&server, "a")["messages"], 1);
}

#[test]
fn each_line_of_a_batch_has_its_own_idempotency_key() {
    let server = Server::start();
    let line = |n: usize, data: &str| {
        format!(r#"{{"topic":"t/{n}","data":"{data}","idempotency_key":"key-{n}"}}"#)
    };
    let mut lines: Vec<String> = (0..20).map(|n| line(n, "one")).collect();
    let mut conn = Conn::open(&server);
    let first = batch(&mut conn, &lines);
    assert_eq!(
        (&first["published"], first.get("replayed")),
        (&20.into(), None)
    );
    for conn in [
        &mut conn,
        &mut Conn::open(&server),
        &mut Conn::open(&server),
    ] {
        let repeated = batch(conn, &lines);
        assert_eq!(
            (&repeated["published"], &repeated["replayed"]),
            (&20.into(), &20.into())
        );
    }
    // Half of the lines are new, and some are changed. A line without a key is published each time.
    lines.extend((20..30).map(|n| line(n, "one")));
    lines[3] = line(3, "two");
    lines[4] = line(4, "two");
    lines.push(r#"{"topic":"t/30","data":1}"#.into());
    lines.push(r#"{"topic":"t/31","data":1,"idempotency_key":""}"#.into());
    let mixed = batch(&mut conn, &lines);
    assert_eq!(
        (&mixed["published"], &mixed["replayed"]),
        (&29.into(), &18.into()),
        "{mixed}"
    );
    let failed = mixed["failed"].as_array().unwrap();
    let numbers: Vec<_> = failed
        .iter()
        .map(|line| line["line"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [4, 5, 32]);
    assert!(
        failed[0]["reason"]
            .as_str()
            .unwrap()
            .contains("another message"),
        "{mixed}"
    );
    for n in 0..30 {
        assert_eq!(log(&server, &format!("t/{n}"), 1), ["one"]);
        assert_eq!(info(&server, &format!("t/{n}"))["messages"], 1, "t/{n}");
    }
    // A line and a single request with the same key, topic and content are the same publish.
    let request = post(&mut conn, "t/0", "key-0", "one");
    assert_eq!(
        request.header(REPLAYED).as_deref(),
        Some("true"),
        "{request:?}"
    );
}

#[test]
fn first_answers_are_kept_for_the_idempotency_window() {
    let server = Server::with("[publish]\nidempotency_window_s = 2\n");
    let mut conn = Conn::open(&server);
    post(&mut conn, "a", "k", "x");
    let after_window = eventually("the end of the window", || {
        Some(post(&mut conn, "a", "k", "y")).filter(|answer| answer.status != 422)
    });
    assert_eq!(
        (after_window.status, after_window.header(REPLAYED)),
        (202, None),
        "it may be used again"
    );
    assert_eq!(log(&server, "a", 2), ["x", "y"]);
}

#[test]
fn kept_answers_have_a_limit() {
    let server = Server::with("[publish]\nidempotency_keys = 8\n");
    let mut conn = Conn::open(&server);
    // All keys are of one topic, so of one home, which keeps four of the eight.
    for n in 0..6 {
        post(&mut conn, "a", &format!("k{n}"), "x");
    }
    for (n, replayed) in [
        (2, true),
        (3, true),
        (4, true),
        (5, true),
        (1, false),
        (5, true),
    ] {
        let repeated = post(&mut conn, "a", &format!("k{n}"), "x");
        assert_eq!(repeated.header(REPLAYED).is_some(), replayed, "k{n}");
    }
    assert_eq!(info(&server, "a")["messages"], 7);
}

/// With durable messages no key is dropped before its time, so the room for keys can be used up. One topic may use the room of all homes.
#[test]
fn one_publisher_to_one_topic_may_use_the_key_room_of_all_homes() {
    let state = State::new();
    let settings = format!("[publish]\nidempotency_keys = 20\n{}", state.settings());
    let server = Server::with_admin(&settings);
    let mut conn = Conn::open(&server);
    let answers = (0..30).take_while(|n| post(&mut conn, "a", &format!("k{n}"), "x").status != 503);
    // Four fifths of all keys, although one of the two homes keeps all of them.
    assert_eq!(answers.count(), 16);
    assert_eq!(
        post(&mut conn, "a", "k0", "x").header(REPLAYED).as_deref(),
        Some("true")
    );
    server.await_log("publish.idempotency_keys, or their publisher's share of it, is used up");
    assert!(server.log().contains("example=a"), "{}", server.log());
    await_metric(server.admin(), "crore_refused_keys_total", 1.0);
    let used_and_limit = |name: &str| {
        let limits = get(server.admin(), "stats")["limits"].clone();
        let mut rows = limits.as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == name).unwrap();
        (row["used"].as_u64(), row["limit"].as_u64())
    };
    let largest = "publish.idempotency_keys (largest publisher)";
    for (name, limit) in [("publish.idempotency_keys", 20), (largest, 16)] {
        until(name, || used_and_limit(name) == (Some(16), Some(limit)));
    }
}
