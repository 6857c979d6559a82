//! Tests the topics under `$SYS/broker`. Each exists, has the right form, and changes when the value that it reports changes.

use crate::support::PATIENCE;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message};
use crore_wire::mqtt::{Packet, PacketType::PubAck, Version};
use std::collections::HashMap;
use std::time::Instant;

/// Topics whose message is a number, below `$SYS/broker/`.
const NUMBERS: [&str; 24] = [
    "bytes/received",
    "bytes/sent",
    "clients/connected",
    "clients/active",
    "clients/disconnected",
    "clients/inactive",
    "clients/total",
    "clients/maximum",
    "clients/expired",
    "messages/received",
    "messages/sent",
    "messages/stored",
    "publish/messages/received",
    "publish/messages/sent",
    "publish/messages/dropped",
    "publish/bytes/received",
    "publish/bytes/sent",
    "subscriptions/count",
    "shared_subscriptions/count",
    "retained messages/count",
    "store/messages/count",
    "store/messages/bytes",
    "crore/connections",
    "crore/gaps",
];
/// Number of all `$SYS` topics.
const COUNT: usize = 2 + NUMBERS.len();

pub struct Sys {
    conn: Conn,
    pub last: HashMap<String, String>,
}

impl Sys {
    /// Subscribes to these topics.
    pub fn watch(broker: &Broker, filter: &str) -> Sys {
        let mut conn = Conn::connected(broker, Version::V311, "watcher");
        // Retained messages of one home (the part of a shard that keeps topics) may come before another home has answered.
        conn.send_subscribe(filter, 0);
        let last = HashMap::new();
        Sys { conn, last }
    }

    /// Receives messages until `wanted` accepts the values. `what` names the condition in the message of a panic.
    pub fn receive_until(&mut self, what: &str, wanted: impl Fn(&HashMap<String, String>) -> bool) {
        let started = Instant::now();
        while !wanted(&self.last) {
            let late = started.elapsed() > PATIENCE;
            assert!(!late, "{what}: {:?}", self.last);
            let received = self.conn.packet();
            if let Packet::Publish(publish) = received.packet() {
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

    /// Receives messages until a number has grown by at least `by`.
    pub fn receive_until_grown(&mut self, name: &str, before: &HashMap<String, String>, by: u64) {
        let wanted = number(before, name) + by;
        self.receive_until(name, |last| number(last, name) >= wanted);
    }
}

fn number(said: &HashMap<String, String>, name: &str) -> u64 {
    let text = said.get(name).unwrap_or_else(|| panic!("no {name}"));
    text.parse()
        .unwrap_or_else(|_| panic!("{name}: {text:?} is no number"))
}

/// Makes traffic: one client leaves a session behind, and another subscribes and publishes. Returns the second one, which stays connected.
fn make_traffic(broker: &Broker) -> Conn {
    let mut away = Conn::open(broker, Version::V5);
    away.resume("away");
    away.subscribe("kept/+", 1);
    away.cut();
    let mut other = Conn::connected(broker, Version::V5, "other");
    other.subscribe("t", 0);
    other.subscribe("$share/group/t", 0);
    for id in 1..=5 {
        let mut message = message("kept/t", 1, id, b"0123456789");
        message.retain = true;
        other.publish(&message);
        other.packet().ack(PubAck);
    }
    other.publish(&message("t", 0, 0, b"x"));
    assert_eq!(other.packet().publish().payload, b"x");
    other
}

#[test]
fn every_sys_topic_exists_and_follows_its_value() {
    let broker = Broker::with("[mqtt]\nsys_interval_s = 1\n");
    if !broker.is_crore() {
        return; // Mosquitto has other topics
    }
    let mut sys = Sys::watch(&broker, "$SYS/#");
    sys.receive_until("all", |last| last.len() == COUNT);
    for name in NUMBERS {
        sys.number(name);
    }
    assert!(
        sys.last["version"].starts_with("crore version "),
        "{:?}",
        sys.last
    );
    let uptime = |last: &HashMap<String, String>| seconds(&last["uptime"]);
    let began = uptime(&sys.last);
    sys.receive_until("uptime", |last| uptime(last) > began);

    let before = sys.last.clone();
    let mut client = make_traffic(&broker);
    sys.receive_until_grown("clients/connected", &before, 1);
    sys.receive_until_grown("clients/total", &before, 2);
    sys.receive_until_grown("clients/disconnected", &before, 1);
    sys.receive_until_grown("publish/messages/received", &before, 6);
    sys.receive_until_grown("publish/bytes/received", &before, 51);
    sys.receive_until_grown("publish/messages/sent", &before, 1);
    sys.receive_until_grown("subscriptions/count", &before, 1);
    sys.receive_until_grown("shared_subscriptions/count", &before, 1);
    sys.receive_until_grown("retained messages/count", &before, 1);
    sys.receive_until_grown("store/messages/count", &before, 5);
    sys.receive_until_grown("store/messages/bytes", &before, 50);
    sys.receive_until_grown("messages/stored", &before, 5);
    sys.receive_until_grown("clients/maximum", &before, 1);
    // Received: a CONNECT, two SUBSCRIBEs, and messages. Sent: the answers to them.
    sys.receive_until_grown("messages/received", &before, 9);
    sys.receive_until_grown("messages/sent", &before, 9);
    sys.receive_until_grown("bytes/received", &before, 51);
    sys.receive_until_grown("bytes/sent", &before, 51);
    sys.receive_until_grown("publish/bytes/sent", &before, 1);
    sys.receive_until_grown("crore/connections", &before, 1);
    // The count goes down again.
    let connected = sys.number("clients/connected");
    client.disconnect();
    sys.receive_until("clients/connected", |last| {
        number(last, "clients/connected") < connected
    });
}

#[test]
fn missed_messages_of_a_session_are_counted_as_a_gap() {
    let broker = Broker::with(
        "[mqtt]\nsys_interval_s = 1\nsession_messages = 2\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 0\n",
    );
    if !broker.is_crore() {
        return;
    }
    let mut sys = Sys::watch(&broker, "$SYS/broker/crore/gaps");
    sys.receive_until("gaps", |last| last.len() == 1);
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
    sys.receive_until_grown("crore/gaps", &before, 1);
}

#[test]
fn sessions_that_expire_and_messages_that_nobody_gets_are_counted() {
    let broker = Broker::with(
        "[mqtt]\nsys_interval_s = 1\n[limits]\npublishes_per_address_per_s = 1\npublishes_per_address_burst = 2\n",
    );
    if !broker.is_crore() {
        return;
    }
    let mut sys = Sys::watch(&broker, "$SYS/broker/+/#");
    sys.receive_until("all", |last| last.contains_key("clients/expired"));
    sys.receive_until("all", |last| last.contains_key("publish/messages/dropped"));
    let before = sys.last.clone();
    let (brief, _) = Conn::with_properties(&broker, "brief", true, |set| {
        set.session_expiry_interval_s(1);
    });
    brief.cut();
    sys.receive_until_grown("clients/expired", &before, 1);

    let (mut small, _) = Conn::with_properties(&broker, "small", true, |set| {
        set.maximum_packet_size_bytes(40);
    });
    small.subscribe("t", 0);
    let mut publisher = Conn::connected(&broker, Version::V311, "publisher");
    publisher.deliver(&message("t", 1, 1, &[b'x'; 64]));
    sys.receive_until_grown("publish/messages/dropped", &before, 1);
    assert!(small.is_served(), "it was not disconnected");
    for _ in 0..20 {
        publisher.publish(&message("t", 0, 0, b"x"));
    }
    sys.receive_until_grown("publish/messages/dropped", &before, 11);
    assert!(publisher.is_served(), "QoS 0 is dropped in silence");
}

#[test]
fn sys_topic_keeps_only_its_newest_message_and_counts_as_no_publish() {
    for rule in [
        "log_messages = 100",
        "log_messages = 0",
        "keep = \"latest\"",
    ] {
        let broker = Broker::with(&format!(
            "[mqtt]\nsys_interval_s = 1\n[[rule]]\nmatch = \"$SYS/#\"\n{rule}\n[[rule]]\nmatch = \"#\"\n{rule}\n"
        ));
        if !broker.is_crore() {
            return;
        }
        let mut away = Conn::open(&broker, Version::V5);
        away.resume("away");
        away.subscribe("$SYS/broker/uptime", 1);
        assert!(away.packet().publish().topic.ends_with("uptime"));
        away.cut();
        let mut sys = Sys::watch(&broker, "$SYS/#");
        sys.receive_until("all", |last| last.len() == COUNT);
        for _ in 0..4 {
            let before = sys.last["uptime"].clone();
            sys.receive_until("a second", |last| last["uptime"] != before);
        }
        assert_eq!(sys.number("store/messages/count"), COUNT as u64, "{rule}");
        assert_eq!(sys.number("publish/messages/received"), 0, "{rule}");
        // An absent client gets the newest value only, and no loss is counted.
        let mut resumed = Conn::open(&broker, Version::V5);
        assert!(resumed.resume("away"));
        let (message, newest) = (resumed.packet(), sys.last["uptime"].clone());
        let uptime = std::str::from_utf8(message.publish().payload).expect("text");
        assert!(
            seconds(uptime) >= seconds(&newest),
            "{uptime}, not {newest}"
        );
        let before = sys.last["uptime"].clone();
        sys.receive_until("a second", |last| last["uptime"] != before);
        assert_eq!(sys.number("crore/gaps"), 0, "{rule}");
    }
}

fn seconds(uptime: &str) -> u64 {
    let text = uptime.strip_suffix(" seconds").expect("seconds");
    text.parse().expect("a number")
}
