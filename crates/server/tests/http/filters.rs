//! Tests subscriptions by filter, over all three transports and several shards. Each message is received once and names its topic, and the
//! messages of a topic keep their order, live and from the log.

use crore_wire::sse::GAP_EVENT;

use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;
use crate::support::ws::{Ws, line};
use crate::support::{Server, until};

/// Number of topics: enough that several shards keep some of them.
const TOPICS: usize = 24;

fn topic(n: usize) -> String {
    format!("a/{n}/c")
}

/// Checks that every message was received once, and the messages of each topic in order.
fn assert_each_once_in_order(mut received: Vec<String>, rounds: std::ops::Range<usize>) {
    for n in 0..TOPICS {
        let of_topic: Vec<_> = received
            .iter()
            .filter(|text| text.starts_with(&format!("{n}:")))
            .collect();
        let expected: Vec<String> = rounds.clone().map(|round| format!("{n}:{round}")).collect();
        assert_eq!(of_topic, expected.iter().collect::<Vec<_>>(), "topic {n}");
    }
    received.sort();
    received.dedup();
    assert_eq!(received.len(), TOPICS * rounds.len(), "each once");
}

fn publish_all(server: &Server, rounds: std::ops::Range<usize>) {
    for round in rounds {
        for n in 0..TOPICS {
            publish(server, &topic(n), format!("{n}:{round}"));
            publish(server, &format!("b/{n}"), "of another topic");
        }
    }
}

#[test]
fn stream_by_filter_gets_all_matching_messages_live_and_after_a_reconnect() {
    let server = Server::with_shards(3, "");
    let target = "/sub?filter=a/%2B/c";
    let mut stream = Stream::open(&server, target, &[]);
    publish_all(&server, 0..2);
    let mut received = stream.data(TOPICS * 2 - 1);
    let last = stream.event().expect("an event");
    received.push(last.data);
    assert_each_once_in_order(received, 0..2);
    drop(stream);
    publish_all(&server, 2..5);
    let mut resumed = Stream::open(&server, target, &[("Last-Event-ID", &last.id)]);
    assert_each_once_in_order(resumed.data(TOPICS * 3), 2..5);
    publish_all(&server, 5..6);
    assert_each_once_in_order(resumed.data(TOPICS), 5..6);
}

#[test]
fn every_received_position_resumes_without_loss_or_duplicates() {
    let server = Server::with_shards(3, "");
    let target = "/sub?filter=a/%23";
    let mut stream = Stream::open(&server, target, &[]);
    publish_all(&server, 0..1);
    let events: Vec<_> = (0..TOPICS)
        .map(|_| stream.event().expect("an event"))
        .collect();
    for last_seen in 0..TOPICS {
        let mut resumed =
            Stream::open(&server, target, &[("Last-Event-ID", &events[last_seen].id)]);
        let mut received: Vec<_> = events[..=last_seen]
            .iter()
            .map(|event| event.data.clone())
            .collect();
        received.extend(resumed.data(TOPICS - 1 - last_seen));
        assert_each_once_in_order(received, 0..1);
    }
}

#[test]
fn log_is_read_in_pages_from_the_oldest_message() {
    let server = Server::with_shards(3, "");
    publish_all(&server, 0..8);
    let mut stream = Stream::open(&server, "/sub?filter=%2B/%2B/c&since=oldest", &[]);
    assert_each_once_in_order(stream.data(TOPICS * 8), 0..8);
}

#[test]
fn overlapping_filters_and_topics_give_one_message() {
    let server = Server::with_shards(3, "");
    let target = "/sub?filter=a/%2B/c&filter=%23&filter=a/1/%23&topic=a/1/c";
    let mut ws = Ws::meta(&server, target);
    for n in 0..10 {
        publish(&server, "a/1/c", format!("{n}"));
        let (lines, data) = ws.meta_message();
        assert_eq!(
            (line(&lines, "topic"), data),
            ("a/1/c", n.to_string().into_bytes())
        );
    }
}

#[test]
fn exact_subscribers_beside_filters_receive_messages_in_order() {
    let server = Server::with_shards(3, "");
    let mut exact = Stream::open(&server, "/sub/a/1/c", &[]);
    let mut wild = Stream::open(&server, "/sub?filter=a/%23", &[]);
    for n in 0..50 {
        let answer = publish(&server, "a/1/c", format!("{n}"));
        assert_eq!(answer.status, 201);
        if n == 25 {
            drop(std::mem::replace(
                &mut wild,
                Stream::open(&server, "/sub?filter=a/%2B/%2B", &[]),
            ));
        }
    }
    let expected: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(exact.data(50), expected);
    assert_eq!(wild.data(24), expected[26..]);
}

#[test]
fn subscriber_by_filter_counts_as_a_live_subscriber() {
    let server = Server::with_shards(3, "");
    let stream = Stream::open(&server, "/sub?filter=x/%23", &[]);
    assert_eq!(publish(&server, "x/y", "1").status, 201);
    assert_eq!(publish(&server, "y", "1").status, 202);
    drop(stream);
    until("its end", || publish(&server, "x/y", "1").status == 202);
}

#[test]
fn long_polls_read_the_log_and_then_wait() {
    let server = Server::with_shards(3, "");
    publish_all(&server, 0..1);
    let target = "/sub?filter=a/%2B/c";
    let mut conn = Conn::open(&server);
    let mut response = conn.get(target, &[]);
    let mut received = Vec::new();
    loop {
        let number: usize = response.text().split(':').next().unwrap().parse().unwrap();
        assert_eq!(response.header("crore-topic"), Some(topic(number)));
        received.push(response.text().to_string());
        let tag = response.header("etag").expect("an ETag");
        conn.ask("GET", target, &[("If-None-Match", &tag)], "");
        if received.len() == TOPICS {
            break;
        }
        response = conn.response();
    }
    assert_each_once_in_order(received, 0..1);
    publish(&server, "a/2/c", "live");
    assert_eq!(conn.response().text(), "live");
}

#[test]
fn envelope_names_the_topic_of_each_message() {
    let server = Server::with_shards(3, "");
    let mut ws = Ws::open(&server, "/sub?filter=%2B&envelope=json", &[]);
    let mut object =
        || -> serde_json::Value { serde_json::from_str(&ws.message().text()).expect("JSON") };
    // The first object is the position before the first message.
    assert!(
        object()["id"]
            .as_str()
            .is_some_and(|id| id.starts_with('3'))
    );
    publish(&server, "one", "1");
    let message = object();
    assert_eq!(
        (&message["topic"], &message["data"]),
        (&"one".into(), &"1".into())
    );
}

#[test]
fn gap_is_reported_only_if_a_matching_topic_lost_messages() {
    let rules = "[[rule]]\nmatch = \"short/#\"\nlog_messages = 2\n[[rule]]\nmatch = \"none/#\"\nlog_messages = 0\n";
    let server = Server::with_shards(3, rules);
    let open = |filter: &str, id: &str| {
        Stream::open(
            &server,
            &format!("/sub?filter={filter}"),
            &[("Last-Event-ID", id)],
        )
    };
    let mut stream = Stream::open(&server, "/sub?filter=%23", &[]);
    publish(&server, "long/1", "first");
    let id = stream.event().expect("an event").id;
    for n in 0..4 {
        publish(&server, "long/2", format!("{n}"));
        publish(&server, "short/1", format!("{n}"));
    }
    publish(&server, "none/1", "lost");
    publish(&server, "short/quiet", "kept");
    assert_eq!(open("long/%23", &id).data(4), ["0", "1", "2", "3"]);
    assert_eq!(open("short/quiet", &id).data(1), ["kept"]);
    for (filter, gap) in [
        ("none/x/%23", false),
        ("short/%23", true),
        ("none/%2B", true),
        ("%2B/1", true),
        ("%2B/quiet", false),
    ] {
        let mut stream = open(filter, &id);
        publish(&server, "none/x/y", "end");
        publish(&server, "a/quiet", "end");
        publish(&server, "short/1", "end");
        let first = stream.event().expect("an event");
        assert_eq!(first.kind == GAP_EVENT, gap, "{filter}: {first:?}");
    }
}

#[test]
fn new_subscriber_by_filter_gets_only_the_matching_latest_values() {
    let rules = "[[rule]]\nmatch = \"state/#\"\nkeep = \"latest\"\n";
    let server = Server::with_shards(3, rules);
    for n in 0..300 {
        publish(&server, &format!("state/{n}"), "old");
        publish(&server, &format!("state/{n}"), format!("{n}"));
        publish(&server, &format!("other/{n}"), "of the past");
    }
    let mut stream = Stream::open(&server, "/sub?filter=%2B/%2B", &[]);
    let mut received: Vec<usize> = stream
        .data(300)
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    received.sort_unstable();
    assert_eq!(received, (0..300).collect::<Vec<_>>());
    publish(&server, "other/1", "live");
    assert_eq!(stream.data(1), ["live"]);
}

#[test]
fn invalid_filter_is_refused_with_the_reason() {
    let server = Server::start();
    let deep = format!("filter={}%2B", "a/".repeat(16));
    for (query, reason) in [
        (deep.as_str(), "more than 16 levels"),
        ("filter=a/%23/b", "whole levels"),
        ("filter=a%2B", "whole levels"),
        ("filter=", "empty"),
        ("filter=%zz", "percent"),
        ("filter=a%00", "control"),
        ("filter=%2B&since=-3", "event streams"),
    ] {
        let answer = once(&server, "GET", &format!("/sub?{query}"), &[], "");
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text().contains(reason), "{query}: {}", answer.text());
    }
    let many_filters: String = (0..400).map(|n| format!("filter={n}/%2B&")).collect();
    assert_eq!(
        once(&server, "GET", &format!("/sub?{many_filters}"), &[], "").status,
        400
    );
}

#[test]
fn limit_counts_different_filters_and_is_freed_with_their_subscribers() {
    let server = Server::with_shards(1, "[limits]\nfilters_per_shard = 2\n");
    let first = Stream::open(&server, "/sub?filter=a/%2B", &[]);
    let two_filters = Stream::open(&server, "/sub?filter=b/%2B&filter=a/%2B", &[]);
    assert_eq!(
        once(&server, "GET", "/sub?filter=c/%2B", &[], "").status,
        503
    );
    let mut waiting = Stream::open(&server, "/sub?filter=b/%2B", &[]);
    drop((first, two_filters));
    until("room for a third", || {
        let third = Stream::open(&server, "/sub?filter=c/%2B", &[]);
        third.head.lists("transfer-encoding", "chunked")
    });
    publish(&server, "b/1", "still");
    assert_eq!(waiting.data(1), ["still"]);
}

/// With `since=-N` a stream begins with the newest N messages of each topic, whichever shard has the topic, and however many messages of
/// other topics are newer. Then the stream is live.
#[test]
fn a_stream_begins_with_the_newest_of_each_topic() {
    let server = Server::with_shards(3, "");
    publish_all(&server, 0..5);
    for _ in 0..200 {
        publish(&server, &topic(0), "0:4");
    }
    for _ in 0..2 {
        publish(&server, &topic(0), "0:3");
    }
    publish(&server, &topic(0), "0:4");
    let target = "/sub?filter=a/%2B/c&since=-2";
    let mut stream = Stream::open(&server, target, &[]);
    assert_each_once_in_order(stream.data(TOPICS * 2), 3..5);
    publish_all(&server, 5..6);
    assert_each_once_in_order(stream.data(TOPICS), 5..6);
    let mut ws = Ws::open(&server, target, &[]);
    // The newest two are now the later ones.
    assert_each_once_in_order(ws.texts(TOPICS * 2), 4..6);
    let refused = once(
        &server,
        "GET",
        "/sub?filter=%23&since=-101",
        &[("Accept", "text/event-stream")],
        "",
    );
    assert_eq!(refused.status, 400);
}

#[test]
fn filter_that_a_url_cut_off_is_refused_with_the_reason() {
    let server = Server::start();
    // A client does not send the fragment of a URL. These are the targets that it sends for `?filter=scores/#`, `?filter=#` and
    // `/sub/scores/#`, and filters in a path.
    for target in [
        "/sub?filter=scores/",
        "/sub?filter=",
        "/sub/scores/",
        "/sub/scores/%23",
        "/sub/scores/+/x",
        "/interest?match=scores/",
    ] {
        let answer = once(&server, "GET", target, &[], "");
        assert_eq!(answer.status, 400, "{target}");
        assert!(answer.text().contains("%23"), "{target}: {}", answer.text());
    }
    // Shared subscriptions exist only in MQTT, and no topic has such a name.
    let answer = once(&server, "GET", "/sub?filter=$share/g/scores/%23", &[], "");
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("MQTT"), "{}", answer.text());
    // A filter may end with an empty level, if the slash is encoded.
    publish(&server, "scores/1", "no");
    once(&server, "POST", "/pub?topic=scores/", &[], "yes");
    let mut stream = Stream::open(&server, "/sub?filter=scores%2F&since=oldest", &[]);
    assert_eq!(stream.data(1), ["yes"]);
}
