//! Tests faults of a cluster: a node dies, a server of NATS dies, and all servers of NATS die.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;
use crate::support::{Server, port, until};
use crate::{node, two_nodes};

fn readiness(server: &Server) -> u16 {
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
pub fn log_of(server: &Server, topic: &str, count: usize) -> Vec<(String, String)> {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    let events = (0..count).map(|_| stream.event().expect("an event"));
    events.map(|event| (event.id, event.data)).collect()
}

#[test]
fn clients_of_a_killed_node_resume_at_the_other() {
    let Some((servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    for n in 0..5 {
        publish(&node_a, "a", n.to_string());
    }
    let mut stream = Stream::open(&node_a, "/sub/a?since=oldest", &[]);
    let last = (0..3).map(|_| stream.event().expect("an event").id).last();
    let last = last.expect("an event");
    node_a.kill();
    publish(&node_b, "a", "5");
    let resumed = [("Last-Event-ID", last.as_str())];
    let mut stream = Stream::open(&node_b, "/sub/a", &resumed);
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
fn kill_of_a_nats_server_loses_no_answered_message() {
    let Some((mut servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    let mut live_stream = Stream::open(&node_b, "/sub/a", &[]);
    node_b.await_subscribers("a", 1);
    let killed = AtomicBool::new(false);
    let publish_repeatedly = |server: &Server, name: &str| {
        for n in 0..60 {
            if n == 20 {
                until("the kill", || killed.load(Ordering::Relaxed));
            }
            publish_surely(server, "a", &format!("{name}{n}"));
        }
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| publish_repeatedly(&node_a, "x"));
        let second = scope.spawn(|| publish_repeatedly(&node_b, "y"));
        servers.kill(0);
        killed.store(true, Ordering::Relaxed);
        first.join().expect("it has written");
        second.join().expect("it has written");
    });
    let log = log_of(&node_a, "a", 120);
    assert_eq!(log_of(&node_b, "a", 120), log);
    let events = (0..120).map(|_| live_stream.event().expect("an event"));
    let received: Vec<_> = events.map(|event| (event.id, event.data)).collect();
    assert_eq!(received, log, "a live subscriber has seen the same");
    for name in ["x", "y"] {
        let texts = log.iter().filter(|(_, data)| data.starts_with(name));
        let texts: Vec<&str> = texts.map(|(_, data)| data.as_str()).collect();
        let expected: Vec<String> = (0..60).map(|n| format!("{name}{n}")).collect();
        assert_eq!(texts, expected, "each once, in the order of its publisher");
    }
}

#[test]
fn nodes_recover_by_themselves_after_all_nats_servers_were_down() {
    let Some((mut servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    publish(&node_a, "a", "before");
    let mut stream = Stream::open(&node_b, "/sub/a?since=oldest", &[]);
    assert_eq!(stream.data(1), ["before"]);
    assert_eq!(readiness(&node_a), 200);
    for server in 0..3 {
        servers.kill(server);
    }
    until("not ready", || {
        readiness(&node_a) == 503 && readiness(&node_b) == 503
    });
    // The outcome of this publish is unknown, since it is in flight.
    let mut conn = Conn::open(&node_a);
    let stream_of = conn.stream();
    stream_of
        .set_read_timeout(Some(crate::support::PATIENCE))
        .expect("a timeout");
    let key = [("Idempotency-Key", "\"during\"")];
    let answer = conn.request("POST", "/pub/a", &key, "during");
    assert_eq!(answer.status, 503, "{answer:?}");
    for server in 0..3 {
        servers.run(server);
    }
    publish_surely(&node_b, "a", "after");
    until("ready", || {
        readiness(&node_a) == 200 && readiness(&node_b) == 200
    });
    let retry = once(&node_b, "POST", "/pub/a", &key, "during");
    assert!([201, 202].contains(&retry.status), "{retry:?}");
    let mut received = stream.data(2);
    received.sort();
    assert_eq!(received, ["after", "during"]);
    assert_eq!(log_of(&node_a, "a", 3), log_of(&node_b, "a", 3));
}
