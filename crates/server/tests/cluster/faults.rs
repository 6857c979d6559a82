//! Tests faults of a cluster: a node dies, a server of NATS dies, all of them die.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;
use crate::support::{Server, port, until};
use crate::{node, two_nodes};

fn ready(server: &Server) -> u16 {
    port::ask(server.admin(), "GET /readyz", None).status
}

/// Publishes with a key, and tries again until the answer says that the message is in the log.
pub fn publish_surely(server: &Server, topic: &str, text: &str) {
    until("an answer", || {
        let key = [("Idempotency-Key", text)];
        let mut conn = Conn::open(server);
        let stream = conn.stream();
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(15)))
            .expect("a timeout");
        let answer = conn.request("POST", &format!("/pub/{topic}"), &key, text);
        if answer.status == 503 {
            return false;
        }
        assert!([201, 202].contains(&answer.status), "{answer:?}");
        true
    });
}

/// The first `count` messages of a topic, in the order of the log.
pub fn log(server: &Server, topic: &str, count: usize) -> Vec<(String, String)> {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    let events = (0..count).map(|_| stream.event().expect("an event"));
    events.map(|event| (event.id, event.data)).collect()
}

#[test]
fn clients_of_a_killed_node_resume_at_the_other() {
    let Some((servers, one, other)) = two_nodes() else {
        return;
    };
    for n in 0..5 {
        publish(&one, "a", n.to_string());
    }
    let mut stream = Stream::open(&one, "/sub/a?since=oldest", &[]);
    let last = (0..3).map(|_| stream.event().expect("an event").id).last();
    let last = last.expect("an event");
    one.kill();
    publish(&other, "a", "5");
    let resumed = [("Last-Event-ID", last.as_str())];
    let mut stream = Stream::open(&other, "/sub/a", &resumed);
    assert_eq!(stream.data(3), ["3", "4", "5"]);
    // A new node reads all of the log.
    let third = node(&servers);
    assert_eq!(
        Stream::open(&third, "/sub/a", &resumed).data(3),
        ["3", "4", "5"]
    );
    publish(&third, "a", "6");
    assert_eq!(stream.data(1), ["6"]);
}

#[test]
fn a_killed_server_of_nats_loses_nothing_that_was_answered() {
    let Some((mut servers, one, other)) = two_nodes() else {
        return;
    };
    let mut live = Stream::open(&other, "/sub/a", &[]);
    other.await_subscribers("a", 1);
    let killed = AtomicBool::new(false);
    let writes = |server: &Server, name: &str| {
        for n in 0..60 {
            if n == 20 {
                until("the kill", || killed.load(Ordering::Relaxed));
            }
            publish_surely(server, "a", &format!("{name}{n}"));
        }
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| writes(&one, "x"));
        let second = scope.spawn(|| writes(&other, "y"));
        servers.kill(0);
        killed.store(true, Ordering::Relaxed);
        first.join().expect("it has written");
        second.join().expect("it has written");
    });
    let all = log(&one, "a", 120);
    assert_eq!(log(&other, "a", 120), all);
    let events = (0..120).map(|_| live.event().expect("an event"));
    let came: Vec<_> = events.map(|event| (event.id, event.data)).collect();
    assert_eq!(came, all, "a live subscriber has seen the same");
    for name in ["x", "y"] {
        let of = all.iter().filter(|(_, data)| data.starts_with(name));
        let of: Vec<&str> = of.map(|(_, data)| data.as_str()).collect();
        let expected: Vec<String> = (0..60).map(|n| format!("{name}{n}")).collect();
        assert_eq!(of, expected, "each once, in the order of its publisher");
    }
}

#[test]
fn nodes_go_on_by_themselves_after_all_servers_of_nats_were_gone() {
    let Some((mut servers, one, other)) = two_nodes() else {
        return;
    };
    publish(&one, "a", "before");
    let mut stream = Stream::open(&other, "/sub/a?since=oldest", &[]);
    assert_eq!(stream.data(1), ["before"]);
    assert_eq!(ready(&one), 200);
    for at in 0..3 {
        servers.kill(at);
    }
    until("not ready", || ready(&one) == 503 && ready(&other) == 503);
    // The outcome of this publish is unknown, since it is in flight.
    let mut conn = Conn::open(&one);
    let stream_of = conn.stream();
    stream_of
        .set_read_timeout(Some(crate::support::PATIENCE))
        .expect("a timeout");
    let key = [("Idempotency-Key", "\"during\"")];
    let answer = conn.request("POST", "/pub/a", &key, "during");
    assert_eq!(answer.status, 503, "{answer:?}");
    for at in 0..3 {
        servers.run(at);
    }
    publish_surely(&other, "a", "after");
    until("ready", || ready(&one) == 200 && ready(&other) == 200);
    let again = once(&other, "POST", "/pub/a", &key, "during");
    assert!([201, 202].contains(&again.status), "{again:?}");
    let mut came = stream.data(2);
    came.sort();
    assert_eq!(came, ["after", "during"]);
    assert_eq!(log(&one, "a", 3), log(&other, "a", 3));
}
