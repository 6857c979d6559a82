//! Tests followers of interest: clients that are told which topics have subscribers, by a snapshot and the events after it. The snapshot
//! and the events together are exact, even if subscribers connect and leave meanwhile.

use crate::support::http::{Conn, once, publish};
use crate::support::interest::{Event, Follower, subscriber, topic_set};
use crate::support::stream::Stream;
use crate::support::ws::{Ws, handshake};
use crate::support::{Server, until};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// With this setting changes are reported without delay.
const AT_ONCE: &str = "[interest]\ndebounce_s = 0\n";

#[test]
fn follower_gets_the_snapshot_before_the_changes() {
    let server = Server::with(AT_ONCE);
    let subscribers = [subscriber(&server, "a"), subscriber(&server, "b/c")];
    publish(&server, "nobody", "x");
    let mut follower = Follower::open(&server, "/interest");
    assert_eq!(
        follower.stream.head.header("content-type").as_deref(),
        Some("text/event-stream")
    );
    assert_eq!(*follower.read_snapshot(), topic_set(["a", "b/c"]));
    let third = subscriber(&server, "nobody");
    assert_eq!(follower.next(), Event::First("nobody".into()));
    let second = subscriber(&server, "nobody");
    server.await_subscribers("nobody", 2);
    drop(third);
    server.await_subscribers("nobody", 1);
    drop(second);
    assert_eq!(
        follower.next(),
        Event::Last("nobody".into()),
        "only the last of them"
    );
    drop(subscribers);
    let last_events = BTreeSet::from([
        format!("{:?}", follower.next()),
        format!("{:?}", follower.next()),
    ]);
    let expected = ["a", "b/c"].map(|topic| format!("{:?}", Event::Last(topic.into())));
    assert_eq!(last_events, BTreeSet::from(expected));
}

#[test]
fn websocket_follower_gets_the_events_as_text_frames() {
    let server = Server::with(AT_ONCE);
    let subscriber_of_a = subscriber(&server, "a");
    // The subprotocol for messages has no meaning here, so the server does not select it.
    let mut ws = Ws::open(
        &server,
        "/interest",
        &[("Sec-WebSocket-Protocol", "ws+meta.nchan")],
    );
    assert_eq!(ws.head.header("sec-websocket-protocol"), None);
    assert_eq!(ws.message().text(), r#"{"event":"first","topic":"a"}"#);
    assert_eq!(ws.message().text(), r#"{"event":"whole","topics":1}"#);
    ws.send(
        crate::support::ws::FIN | crate::support::ws::TEXT,
        "is thrown away",
    );
    drop(subscriber_of_a);
    assert_eq!(ws.message().text(), r#"{"event":"last","topic":"a"}"#);
}

#[test]
fn a_filter_chooses_the_topics() {
    let server = Server::with(AT_ONCE);
    let _here = ["a", "a/b", "a/b/c", "d", "quo\"te"].map(|topic| {
        let topic = topic.replace('"', "%22");
        subscriber(&server, &topic)
    });
    for (filter, topics) in [
        ("", topic_set(["a", "a/b", "a/b/c", "d", "quo\"te"])),
        (
            "?match=%23",
            topic_set(["a", "a/b", "a/b/c", "d", "quo\"te"]),
        ),
        ("?match=a/%23", topic_set(["a", "a/b", "a/b/c"])),
        ("?match=a/+", topic_set(["a/b"])),
        ("?match=d", topic_set(["d"])),
        ("?match=nothing", topic_set([])),
    ] {
        let mut follower = Follower::open(&server, &format!("/interest{filter}"));
        assert_eq!(*follower.read_snapshot(), topics, "{filter}");
    }
    let mut follower = Follower::open(&server, "/interest?match=a/%23");
    follower.read_snapshot();
    let _more = [subscriber(&server, "x"), subscriber(&server, "a/x")];
    assert_eq!(follower.next(), Event::First("a/x".into()));
}

#[test]
fn invalid_filter_of_interest_is_refused() {
    let server = Server::start();
    for target in [
        "/interest?match=a%23",
        "/interest?match=%23/a",
        "/interest?match=%",
        "/interest?match=a&match=b",
    ] {
        assert_eq!(
            once(&server, "GET", target, &[], "").status,
            400,
            "{target}"
        );
    }
    assert_eq!(once(&server, "POST", "/interest", &[], "").status, 405);
    assert_eq!(once(&server, "HEAD", "/interest", &[], "").status, 200);
    assert_eq!(once(&server, "GET", "/interest/a", &[], "").status, 404);
    let options = once(&server, "OPTIONS", "/interest", &[], "");
    assert_eq!(
        options.header("allow").as_deref(),
        Some("GET, HEAD, OPTIONS")
    );
}

#[test]
fn long_polls_and_websockets_are_subscribers_too() {
    let server = Server::with(AT_ONCE);
    let mut follower = Follower::open(&server, "/interest");
    follower.read_snapshot();
    let ws = Ws::open(&server, "/sub/a", &[]);
    assert_eq!(follower.next(), Event::First("a".into()));
    drop(ws);
    assert_eq!(follower.next(), Event::Last("a".into()));
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/b", &[], "");
    assert_eq!(follower.next(), Event::First("b".into()));
    publish(&server, "b", "x");
    assert_eq!(poll.response().text(), "x");
    assert_eq!(follower.next(), Event::Last("b".into()));
    let set_subscriber = Stream::open(&server, "/sub?topic=c&topic=d", &[]);
    let first_events = [follower.next(), follower.next()];
    assert!(
        first_events.contains(&Event::First("c".into()))
            && first_events.contains(&Event::First("d".into()))
    );
    assert_eq!(once(&server, "DELETE", "/pub/c", &[], "").status, 200);
    let last_events = [follower.next(), follower.next()];
    assert!(
        last_events.contains(&Event::Last("c".into()))
            && last_events.contains(&Event::Last("d".into()))
    );
    drop(set_subscriber);
}

#[test]
fn return_within_the_debounce_is_no_change_of_interest() {
    let server = Server::with("[interest]\ndebounce_s = 3600\n");
    let mut follower = Follower::open(&server, "/interest");
    follower.read_snapshot();
    for _ in 0..3 {
        drop(subscriber(&server, "a"));
        server.await_subscribers("a", 0);
    }
    assert_eq!(follower.next(), Event::First("a".into()));
    // The topic is still in a new snapshot, since its interest has not ended yet.
    let mut second_follower = Follower::open(&server, "/interest");
    assert_eq!(*second_follower.read_snapshot(), topic_set(["a"]));
    let _last = subscriber(&server, "b");
    let next = follower.next();
    assert_eq!(next, Event::First("b".into()), "and nothing in between");
}

#[test]
fn interest_ends_after_the_debounce() {
    let server = Server::with("[interest]\ndebounce_s = 1\n");
    let mut follower = Follower::open(&server, "/interest");
    follower.read_snapshot();
    drop(subscriber(&server, "a"));
    assert_eq!(follower.next(), Event::First("a".into()));
    assert_eq!(follower.next(), Event::Last("a".into()));
}

/// Followers that connect at different times, while subscribers come and go, must end with exactly the topics that have subscribers.
/// `Follower` checks that no event repeats.
fn assert_replay_is_exact(shards: u32, settings: &str) {
    const TOPICS: usize = 300;
    let server = Server::with_shards(shards, settings);
    let lasting: Vec<Stream> = (0..TOPICS)
        .step_by(3)
        .map(|n| subscriber(&server, &format!("t/{n}")))
        .collect();
    let (stop, connected) = (AtomicBool::new(false), AtomicU32::new(0));
    let followers = std::thread::scope(|scope| {
        for seed in 0..3_usize {
            let (server, stop, connected) = (&server, &stop, &connected);
            scope.spawn(move || {
                let mut present = Vec::new();
                let mut n = seed * 7919;
                while !stop.load(Relaxed) {
                    n = (n * 1_103_515_245 + 12_345) & 0x7fff_ffff;
                    present.push(subscriber(server, &format!("t/{}", n / 7 % TOPICS)));
                    connected.fetch_add(1, Relaxed);
                    if present.len() > 20 {
                        present.remove(n / 11 % 20);
                    }
                }
            });
        }
        let mut followers = Vec::new();
        for _ in 0..8 {
            let mut follower = Follower::open(&server, "/interest?match=t/%23");
            follower.read_snapshot();
            followers.push(follower);
            let connected_before = connected.load(Relaxed);
            until("changes", || {
                connected.load(Relaxed) >= connected_before + 30
            });
        }
        stop.store(true, Relaxed);
        followers
    });
    let expected: BTreeSet<String> = (0..TOPICS).step_by(3).map(|n| format!("t/{n}")).collect();
    for mut follower in followers {
        // The set may be right by chance while more events are on their way. It must be right when no more are received.
        let silence = Duration::from_millis(200);
        while follower.topics != expected || !follower.stream.conn.is_silent_for(silence) {
            follower.next();
        }
    }
    drop(lasting);
}

#[test]
fn snapshot_and_events_are_exact_without_a_debounce() {
    for shards in [1, 2, 5] {
        assert_replay_is_exact(shards, AT_ONCE);
    }
}

#[test]
fn snapshot_and_events_are_exact_with_a_debounce() {
    assert_replay_is_exact(2, "[interest]\ndebounce_s = 1\n");
}

#[test]
fn large_snapshot_is_complete() {
    let server =
        Server::with("[interest]\ndebounce_s = 0\n[limits]\ntopics_per_connection = 1000\n");
    let connections: Vec<Conn> = (0..20)
        .map(|n| {
            let topics: String = (0..100)
                .map(|m| {
                    format!("topic=a-rather-long-name-so-that-there-are-several-pages/{n}/{m}&")
                })
                .collect();
            let mut conn = Conn::open(&server);
            conn.ask(
                "GET",
                &format!("/sub?{topics}"),
                &[("Accept", "text/event-stream")],
                "",
            );
            assert_eq!(conn.head().status, 200);
            conn
        })
        .collect();
    assert_eq!(
        Follower::open(&server, "/interest").read_snapshot().len(),
        2000
    );
    drop(connections);
}

#[test]
fn followers_have_a_limit() {
    let server = Server::with("[interest]\nfollowers_max = 2\n");
    let mut follower = Follower::open(&server, "/interest");
    follower.read_snapshot();
    let second_follower = Ws::open(&server, "/interest", &[]);
    let refused = once(&server, "GET", "/interest", &[], "");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    assert!(refused.text().contains("interest.followers_max"));
    let shed = once(
        &server,
        "GET",
        "/interest",
        &[("Accept", "text/event-stream")],
        "",
    );
    assert_eq!(shed.status, 200, "{shed:?}");
    assert!(shed.text().starts_with("retry: "), "{shed:?}");
    drop(second_follower);
    until("room again", || {
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/interest", &[], "");
        conn.head().status == 200
    });
}

#[test]
fn page_of_another_site_may_not_follow_interest() {
    let server = Server::start();
    let origin = ("Origin", "https://evil.example");
    let mut conn = Conn::open(&server);
    conn.ask("GET", "/interest", &handshake(&[origin]), "");
    assert_eq!(conn.head().status, 403);
    let events = [origin, ("Accept", "text/event-stream")];
    let refused = once(&server, "GET", "/interest", &events, "");
    assert_eq!(refused.status, 403, "{refused:?}");
    let server = Server::with(
        "[http]\nallowed_origins = ['https://evil.example']\ninterest_paths = ['/who']\n",
    );
    let stream = Stream::open(&server, "/who", &[origin]);
    let allowed = stream.head.header("access-control-allow-origin");
    assert_eq!(allowed.as_deref(), Some("https://evil.example"));
    assert_eq!(once(&server, "GET", "/interest", &[], "").status, 404);
}

#[test]
fn slow_follower_is_disconnected_with_the_reason() {
    /// The length of a topic name. The events of all rounds are larger than the socket buffers of both ends and the outbox.
    const NAME_BYTES: usize = 900;
    const TOPICS: usize = 60;
    const ROUNDS: usize = 300;
    // The deadlines are long, so that the ends of the slow followers' streams can still be read after the rounds.
    let server = Server::with(
        "[interest]\ndebounce_s = 0\n\
         [limits]\noutbox_bytes = 100000\ntopic_bytes = 1000\nhead_bytes = 65536\ntopics_per_connection = 60\n\
         [timeouts]\ndrain_s = 600\nbody_s = 600\n",
    );
    let mut slow = Ws::open(&server, "/interest", &[]);
    let mut stalled = Follower::open(&server, "/interest");
    assert_eq!(slow.message().text(), r#"{"event":"whole","topics":0}"#);
    stalled.read_snapshot();
    let topics: String = (0..TOPICS)
        .map(|n| format!("topic={n}{}&", "x".repeat(NAME_BYTES)))
        .collect();
    for _ in 0..ROUNDS {
        drop(Stream::open(&server, &format!("/sub?{topics}"), &[]));
    }
    assert_eq!(slow.closed(), Some(4413));
    let mut last = String::new();
    while let Some(event) = stalled.stream.event() {
        last = event.kind;
    }
    assert_eq!(last, "crore.slow");
    // The ended followers made room, and a new follower gets a right snapshot.
    server.await_subscribers(&format!("0{}", "x".repeat(NAME_BYTES)), 0);
    assert!(
        Follower::open(&server, "/interest")
            .read_snapshot()
            .is_empty()
    );
}
