//! Tests starts, reloads of the settings, drains of clients, and restarts after which positions stay valid.

use std::net::TcpListener;

use crore_wire::sse::GAP_EVENT;

use crate::support::http::{Conn, once, publish};
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::ws::Ws;
use crate::support::{Server, until};

/// The log of a server that must not start with these settings. `name` must be unique among the tests.
pub fn does_not_start(listen: &str, name: &str, settings: &str) -> String {
    let file = std::env::temp_dir().join(format!("crore-test-{name}-{}", std::process::id()));
    std::fs::write(&file, settings).expect("settings");
    // `timeout` ends the server if it does start.
    let output = std::process::Command::new("timeout")
        .arg("30")
        .arg(crate::support::program())
        .args(["serve", "--no-admin"])
        .args(["--listen", listen, "--config"])
        .arg(&file)
        .output()
        .expect("it starts");
    let _ = std::fs::remove_file(file);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{log}");
    log
}

#[test]
fn second_server_at_the_same_address_does_not_start_and_leaves_the_state() {
    let state = State::new();
    let server = Server::start();
    let log = does_not_start(&server.address().to_string(), "second", &state.settings());
    let reason = format!(
        "cannot listen on {}: the port is taken, and a Crore answers there",
        server.address()
    );
    assert!(
        log.contains(&reason) && log.contains("--listen 127.0.0.1:"),
        "{log}"
    );
    assert!(
        !state.directory.exists(),
        "nothing of the other's is touched"
    );
    // All new clients still reach the first server.
    for _ in 0..20 {
        publish(&server, "a", "here");
    }
}

#[test]
fn address_that_cannot_be_bound_is_named_with_the_remedy() {
    // Another program listens at the address, and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let log = does_not_start(&address.to_string(), "taken", "");
    assert!(log.contains("by another program"), "{log}");
    // An address for documentation, which no machine has (RFC 5737).
    let log = does_not_start("192.0.2.1:8800", "foreign", "[access]");
    assert!(log.contains("this machine has no such address"), "{log}");
}

#[test]
fn owners_of_messages_survive_a_restart() {
    let state = State::new();
    let settings = format!(
        "[limits]\nmessage_bytes = 2048\nlog_bytes_per_address_max = 2048\n{}",
        state.settings()
    );
    let body = "x".repeat(1_200);
    let status = |server: &Server| once(server, "POST", "/pub/a", &[], &body).status;
    let server = Server::with(&settings);
    assert_eq!((status(&server), status(&server)), (202, 429));
    server.stop();
    let server = Server::with(&settings);
    assert_eq!(status(&server), 429);
    assert_eq!(once(&server, "DELETE", "/pub/a", &[], "").status, 200);
    assert_eq!(status(&server), 202);
}

#[test]
fn drain_asks_each_client_to_reconnect_and_closes_the_port() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "/sub/a", &[]);
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/a", &[], "");
    let mut ws = Ws::open(&server, "/sub/a", &[]);
    server.await_subscribers("a", 3);
    let address = server.address();
    server.signal("TERM");
    let mut retries = Vec::new();
    while let Some(block) = stream.block() {
        retries.extend(block.retry);
    }
    let last: u32 = retries.pop().expect("a retry").parse().expect("a number");
    assert!((500..=2_000).contains(&last), "{last}");
    let answer = poll.response();
    assert_eq!(answer.status, 204);
    assert!(answer.lists("connection", "close"), "{answer:?}");
    let after_s: u32 = answer
        .header("retry-after")
        .expect("a time")
        .parse()
        .expect("a number");
    assert!((1..=2).contains(&after_s), "{after_s}");
    assert_eq!(ws.closed(), Some(1012));
    let log = server.await_end();
    assert!(log.contains("clients moved off: "), "{log}");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn drain_answers_each_poll_with_a_retry_time() {
    let server = Server::with("[[rule]]\nmatch = \"late\"\npoll_timeout_status = 408\n");
    publish(&server, "a", "x");
    let seen = Conn::open(&server).get("/sub/a", &[]);
    let tag = seen.header("etag").expect("a position");
    let conditional = [("If-None-Match", tag.as_str())];
    let mut polls = Vec::new();
    for (topic, headers, status) in [("a", &conditional[..], 304), ("late", &[], 408)] {
        let mut poll = Conn::open(&server);
        poll.ask("GET", &format!("/sub/{topic}"), headers, "");
        server.await_subscribers(topic, 1);
        polls.push((poll, status));
    }
    server.signal("TERM");
    for (poll, status) in &mut polls {
        let answer = poll.response();
        assert_eq!(answer.status, *status, "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        assert!(answer.lists("connection", "close"), "{answer:?}");
        assert!(poll.ends(), "{status}");
    }
}

#[test]
fn drain_answers_pending_requests_and_closes_idle_connections() {
    let server = Server::start();
    let mut silent = Conn::open(&server);
    assert_eq!(silent.request("POST", "/pub/a", &[], "x").status, 202);
    let mut halfway = Conn::open(&server);
    halfway.send("POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nx");
    server.signal("TERM");
    until("a closed port", || {
        std::net::TcpStream::connect(server.address()).is_err()
    });
    assert!(
        silent.ends(),
        "without a word, since it has asked for nothing"
    );
    halfway.send("y");
    let answer = halfway.response();
    assert_eq!(answer.status, 202, "{answer:?}");
    assert!(answer.lists("connection", "close"), "{answer:?}");
    assert!(halfway.ends());
    server.await_end();
}

#[test]
fn drain_closes_all_connections_at_its_deadline() {
    let server = Server::with("[drain]\nrate_per_s = 1\ndeadline_s = 1\n");
    let mut streams: Vec<_> = (0..20)
        .map(|_| Stream::open(&server, "/sub/a", &[]))
        .collect();
    server.await_subscribers("a", 20);
    server.stop();
    for stream in &mut streams {
        stream.conn.read_to_end();
    }
}

#[test]
fn planned_restart_keeps_positions_messages_and_answers() {
    for state in State::of_both_kinds() {
        assert_restart_keeps_positions_messages_and_answers(&state);
    }
}

fn assert_restart_keeps_positions_messages_and_answers(state: &State) {
    let server = Server::with(&state.settings());
    for n in 0..3 {
        publish(&server, "a", format!("a{n}"));
        publish(&server, "b/c", format!("b{n}"));
    }
    let key = [("Idempotency-Key", "\"k\"")];
    Conn::open(&server).request("POST", "/pub/i", &key, b"once");
    let mut stream = Stream::open(&server, "/sub/a?since=oldest", &[]);
    let seen = stream.event().expect("an event");
    assert_eq!(seen.data, "a0");
    server.stop();
    let base = state.base();
    assert!(base.join("clean").exists());

    let server = Server::with(&state.settings());
    assert!(!base.join("clean").exists(), "it is used once");
    publish(&server, "a", "new");
    let position = [("Last-Event-ID", seen.id.as_str())];
    let mut stream = Stream::open(&server, "/sub/a", &position);
    let messages: Vec<_> = (0..3).map(|_| stream.event().expect("an event")).collect();
    assert!(
        messages
            .iter()
            .all(|event| event.kind.is_empty() || event.kind == "message")
    );
    let data: Vec<_> = messages.iter().map(|event| event.data.as_str()).collect();
    assert_eq!(data, ["a1", "a2", "new"]);
    let mut stream_of_b = Stream::open(&server, "/sub?filter=b/%2B&since=oldest", &[]);
    assert_eq!(stream_of_b.data(3), ["b0", "b1", "b2"]);
    let retry = Conn::open(&server).request("POST", "/pub/i", &key, b"once");
    assert_eq!(
        retry.header("idempotency-replayed").as_deref(),
        Some("true")
    );
}

#[test]
fn damaged_state_is_set_aside_and_reported_as_a_gap() {
    let state = State::for_planned_restarts();
    let server = Server::with(&state.settings());
    publish(&server, "a", "old");
    let mut stream = Stream::open(&server, "/sub/a?since=oldest", &[]);
    let event = stream.event().expect("an event");
    server.stop();
    let file = state.base().join("home-1.state");
    let mut bytes = std::fs::read(&file).expect("the file");
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).expect("the file");

    let server = Server::with(&state.settings());
    assert_eq!(state.files(), ["set-aside"]);
    server.await_log("a checksum is wrong");
    let position = [("Last-Event-ID", event.id.as_str())];
    let mut stream = Stream::open(&server, "/sub/a", &position);
    assert_eq!(stream.event().expect("an event").kind, GAP_EVENT);
}

#[test]
fn change_of_shards_and_homes_keeps_positions_messages_and_answers() {
    let state = State::new();
    let settings = format!("partitions = 5\n{}", state.settings());
    let mut server = Server::with_shards(1, &settings);
    let topics: Vec<_> = (0..20).map(|n| format!("a/{n}")).collect();
    let publish_all = |server: &Server, text: &str| {
        for topic in &topics {
            publish(server, topic, text);
        }
    };
    publish_all(&server, "seen");
    let key = [("Idempotency-Key", "\"k\"")];
    Conn::open(&server).request("POST", "/pub/i", &key, b"once");
    let mut stream = Stream::open(&server, "/sub?filter=a/%2B&since=oldest", &[]);
    let events: Vec<_> = (topics.iter())
        .map(|_| stream.event().expect("an event").id)
        .collect();
    let last_event = events.last().expect("there are topics");
    let mut stream = Stream::open(&server, "/sub/a/7?since=oldest", &[]);
    let seven = stream.event().expect("an event").id;
    publish_all(&server, "missed");
    for (round, shards) in [2, 3, 1].into_iter().enumerate() {
        server.stop();
        server = Server::with_shards(shards, &settings);
        let mut stream = Stream::open(
            &server,
            "/sub?filter=a/%2B",
            &[("Last-Event-ID", last_event)],
        );
        let received = stream.data(topics.len() + round);
        let missed = received.iter().filter(|data| *data == "missed");
        assert_eq!(missed.count(), topics.len(), "{received:?}");
        publish(&server, "a/new", "live");
        assert_eq!(stream.data(1), ["live"]);
        let mut stream = Stream::open(&server, "/sub/a/7", &[("Last-Event-ID", &seven)]);
        assert_eq!(stream.data(1), ["missed"]);
        let retry = Conn::open(&server).request("POST", "/pub/i", &key, b"once");
        let replayed = retry.header("idempotency-replayed");
        assert_eq!(replayed.as_deref(), Some("true"), "{shards} shards");
    }
}

#[test]
fn state_of_another_version_is_refused_with_the_remedy_and_unchanged() {
    for version in [4_u16, 5, u16::MAX] {
        let state = State::new();
        Server::with(&state.settings()).stop();
        let file = state.base().join("home-1.state");
        let mut bytes = std::fs::read(&file).expect("the file");
        bytes[b"crore state\n".len()..][..2].copy_from_slice(&version.to_le_bytes());
        std::fs::write(&file, bytes).expect("the file");
        let log = does_not_start("127.0.0.1:0", "version", &state.settings());
        let message = format!("{} has version {version}", file.display());
        for words in [
            message.as_str(),
            "and this crore reads version",
            "move the files away",
        ] {
            assert!(log.contains(words), "{words}: {log}");
        }
        assert!(state.base().join("clean").exists(), "it is left alone");
    }
}

#[test]
fn reload_applies_all_settings_or_none() {
    let rule = |log_messages: u32| {
        format!("shards = 2\n[[rule]]\nmatch = \"a\"\nlog_messages = {log_messages}\n")
    };
    let server = Server::with("[[rule]]\nmatch = \"a\"\nlog_messages = 1\n");
    let mut stream = Stream::open(&server, "/sub/a", &[]);
    server.await_subscribers("a", 1);
    let write = |text: String| std::fs::write(server.settings_file(), text).expect("the file");
    write(rule(7) + "oops = 1\n");
    server.signal("HUP");
    server.await_log("settings not changed");
    server.await_log("oops");
    let kept_after_publishing = |n: u32| {
        (0..n).for_each(|n| drop(publish(&server, "a", n.to_string())));
        crate::support::http::info(&server, "a")["messages"].clone()
    };
    assert_eq!(kept_after_publishing(5), 1);
    write("shards = 3\n".to_string() + &rule(3)["shards = 2\n".len()..]);
    server.signal("HUP");
    server.await_log("settings read again");
    server.await_log("these change only with a restart kept=shards");
    assert_eq!(kept_after_publishing(5), 3);
    assert_eq!(stream.data(10).len(), 10, "nobody was disconnected");
}
