//! The topics under `$SYS/broker`: each is there, says what it should, and moves with what it counts.

use crate::broker::Broker;
use crate::conn::{Conn, message};
use crore_wire::mqtt::{Packet, PacketType::PubAck, Version};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Topics whose message is a number, below `$SYS/broker/`.
const NUMBERS: [&str; 12] = [
    "clients/connected",
    "clients/disconnected",
    "clients/total",
    "publish/messages/received",
    "publish/messages/sent",
    "publish/bytes/received",
    "subscriptions/count",
    "shared_subscriptions/count",
    "retained messages/count",
    "store/messages/count",
    "store/messages/bytes",
    "crore/gaps",
];

struct Sys {
    conn: Conn,
    last: HashMap<String, String>,
}

impl Sys {
    /// Takes what comes until it is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&HashMap<String, String>) -> bool) {
        let started = Instant::now();
        while !wanted(&self.last) {
            let late = started.elapsed() > Duration::from_secs(20);
            assert!(!late, "{what}: {:?}", self.last);
            let got = self.conn.packet();
            if let Packet::Publish(publish) = got.packet() {
                let name = publish
                    .topic
                    .strip_prefix("$SYS/broker/")
                    .expect("it begins so");
                let text = String::from_utf8(publish.payload.to_vec()).expect("text");
                self.last.insert(name.into(), text);
            }
        }
    }

    fn number(&self, name: &str) -> u64 {
        number(&self.last, name)
    }

    /// Until a number has grown by this much or more.
    fn until_more(&mut self, name: &str, before: &HashMap<String, String>, by: u64) {
        let wanted = number(before, name) + by;
        self.until(name, |last| number(last, name) >= wanted);
    }
}

fn number(said: &HashMap<String, String>, name: &str) -> u64 {
    let text = said.get(name).unwrap_or_else(|| panic!("no {name}"));
    text.parse()
        .unwrap_or_else(|_| panic!("{name}: {text:?} is no number"))
}

#[test]
fn every_topic_is_there_and_moves_with_what_it_counts() {
    let broker = Broker::with("[mqtt]\nsys_interval_s = 1\n");
    if !broker.is_ours() {
        return; // its set is another one
    }
    let mut conn = Conn::connected(&broker, Version::V311, "watcher");
    conn.subscribe("$SYS/#", 0);
    let mut sys = Sys {
        conn,
        last: HashMap::new(),
    };
    sys.until("all", |last| last.len() == NUMBERS.len() + 2);
    for name in NUMBERS {
        sys.number(name);
    }
    assert!(
        sys.last["version"].starts_with("crore version "),
        "{:?}",
        sys.last
    );
    let uptime = |last: &HashMap<String, String>| {
        let text = last["uptime"]
            .strip_suffix(" seconds")
            .expect("seconds")
            .to_string();
        text.parse::<u64>().expect("a number")
    };
    let began = uptime(&sys.last);
    sys.until("uptime", |last| uptime(last) > began);

    let before = sys.last.clone();
    let mut away = Conn::open(&broker, Version::V5);
    away.resume("away");
    away.subscribe("kept/+", 1);
    away.cut();
    let mut other = Conn::connected(&broker, Version::V5, "other");
    other.subscribe("t", 0);
    other.subscribe("$share/group/t", 0);
    for id in 1..=5 {
        let mut message = message("kept/t", 1, id, b"0123456789");
        message.retain = true;
        other.publish(&message);
        other.packet().ack(PubAck);
    }
    other.publish(&message("t", 0, 0, b"x"));
    other.packet();
    sys.until_more("clients/connected", &before, 1);
    sys.until_more("clients/total", &before, 2);
    sys.until_more("clients/disconnected", &before, 1);
    sys.until_more("publish/messages/received", &before, 6);
    sys.until_more("publish/bytes/received", &before, 51);
    sys.until_more("publish/messages/sent", &before, 1);
    sys.until_more("subscriptions/count", &before, 1);
    sys.until_more("shared_subscriptions/count", &before, 1);
    sys.until_more("retained messages/count", &before, 1);
    sys.until_more("store/messages/count", &before, 5);
    sys.until_more("store/messages/bytes", &before, 50);
    // And back.
    let there = sys.number("clients/connected");
    other.disconnect();
    sys.until("clients/connected", |last| {
        number(last, "clients/connected") < there
    });
}

#[test]
fn messages_that_a_session_missed_are_told_as_a_gap() {
    let broker = Broker::with(
        "[mqtt]\nsys_interval_s = 1\nsession_messages = 2\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 0\n",
    );
    if !broker.is_ours() {
        return;
    }
    let mut conn = Conn::connected(&broker, Version::V311, "watcher");
    conn.subscribe("$SYS/broker/crore/gaps", 0);
    let mut sys = Sys {
        conn,
        last: HashMap::new(),
    };
    sys.until("gaps", |last| last.len() == 1);
    let before = sys.last.clone();
    let mut away = Conn::open(&broker, Version::V5);
    away.resume("away");
    away.subscribe("t", 1);
    away.cut();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for id in 1..=5 {
        publisher.publish(&message("t", 1, id, b"x"));
        publisher.packet().ack(PubAck);
    }
    assert!(
        Conn::open(&broker, Version::V5).resume("away"),
        "it was kept"
    );
    sys.until_more("crore/gaps", &before, 1);
}
