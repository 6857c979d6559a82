//! Tests durable sessions (`state.durable_sessions`): the state of a session after `kill -9` of the server.

use std::fs;

use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{
    Packet, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions, Version, encode,
};

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect, will};
use crate::support::state::State;
use crate::support::until;

pub fn start(state: &State) -> Option<Broker> {
    start_with(state, true)
}

pub fn start_with(state: &State, durable_sessions: bool) -> Option<Broker> {
    start_with_limit(state, durable_sessions, 8192)
}

/// Starts a server whose limit of a message is `message_bytes`.
pub fn start_with_limit(
    state: &State,
    durable_sessions: bool,
    message_bytes: usize,
) -> Option<Broker> {
    let settings = state.settings();
    // A checkpoint is written soon, although the log is short.
    Broker::crore(&format!(
        "{settings}\nerase_within_s = 1\ndurable_sessions = {durable_sessions}\n[limits]\nmessage_bytes = {message_bytes}\nbatch_bytes = 8192\n\n[[rule]]\nmatch = \"none/#\"\nlog_messages = 0\n\n[[rule]]\nmatch = \"two/#\"\nlog_messages = 2\n"
    ))
}

/// Kills the server and starts another one.
pub fn crash(state: &State, broker: Broker) -> Broker {
    broker.kill();
    start(state).expect("a server of ours")
}

/// Connects with the session of this client. Also returns whether the session was present.
fn connect(broker: &Broker, version: Version, client: &str) -> (Conn, bool) {
    let mut conn = Conn::open(broker, version);
    let present = conn.resume(client);
    (conn, present)
}

/// Disconnects when the acknowledgements of the client are in the log. Otherwise a crash may let the server send a message again.
fn leave_after_record(broker: &Broker, version: Version, client: &str, mut conn: Conn) {
    conn.leave();
    // CONNACK waits for a record of the whole session.
    let (mut conn, present) = connect(broker, version, client);
    assert!(present, "{version:?}");
    conn.leave();
}

fn publish(broker: &Broker, topic: &str, texts: &[&str]) {
    let mut from = Conn::connected(broker, Version::V5, "");
    for text in texts {
        from.deliver(&message(topic, 1, 1, text.as_bytes()));
    }
}

/// Receives the next message and acknowledges it. Returns its text and its topic.
fn receive(conn: &mut Conn) -> (String, String) {
    let received = conn.packet();
    let publish = received.publish();
    let text = String::from_utf8_lossy(publish.payload).into_owned();
    if let Some(id) = publish.packet_id {
        conn.acknowledge(PubAck, id.get());
    }
    (text, publish.topic.to_string())
}

fn receive_text(conn: &mut Conn) -> String {
    receive(conn).0
}

fn receive_topic(conn: &mut Conn) -> String {
    receive(conn).1
}

#[test]
fn client_that_was_away_at_a_crash_finds_its_session_and_what_it_missed() {
    for version in VERSIONS {
        let state = State::new();
        let Some(broker) = start(&state) else { return };
        let (mut conn, present) = connect(&broker, version, "it");
        assert!(!present);
        for filter in ["a/+/c", "t", "none/#"] {
            conn.subscribe(filter, 1);
        }
        publish(&broker, "t", &["seen"]);
        assert_eq!(receive_text(&mut conn), "seen");
        leave_after_record(&broker, version, "it", conn);
        publish(&broker, "a/x/c", &["one"]);
        let broker = crash(&state, broker);
        publish(&broker, "none/x", &["two"]);
        // After the second crash, the server reads the records of both servers before it.
        let broker = crash(&state, broker);
        publish(&broker, "t", &["three"]);

        let (mut conn, present) = connect(&broker, version, "it");
        assert!(present, "{version:?}");
        let mut received = [(); 3].map(|()| receive_text(&mut conn));
        received.sort();
        assert_eq!(received, ["one", "three", "two"], "{version:?}");
        publish(&broker, "t", &["live"]);
        assert_eq!(receive_text(&mut conn), "live");
    }
}

#[test]
fn client_that_was_connected_at_a_crash_gets_what_it_has_not_acknowledged() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut conn, _) = connect(&broker, Version::V5, "it");
    conn.subscribe("t", 1);
    publish(&broker, "t", &["one", "two", "three"]);
    for text in ["one", "two", "three"] {
        let received = conn.packet();
        assert_eq!(received.publish().payload, text.as_bytes());
    }
    // The record for this SUBACK comes after the messages in the log.
    conn.subscribe("other", 1);
    let broker = crash(&state, broker);
    let (mut conn, present) = connect(&broker, Version::V5, "it");
    assert!(present);
    for text in ["one", "two", "three"] {
        assert_eq!(receive_text(&mut conn), text);
    }
}

#[test]
fn session_that_ended_before_a_crash_is_not_there_after_it() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    for client in ["cleans", "unsubscribes"] {
        let (mut conn, _) = connect(&broker, Version::V5, client);
        conn.subscribe("t", 1);
        conn.leave();
    }
    // Clean Start ends the former session.
    let mut conn = Conn::open(&broker, Version::V5);
    assert!(!conn.connect(&plain_connect(Version::V5, "cleans")));
    let (mut unsubscribed, present) = connect(&broker, Version::V5, "unsubscribes");
    assert!(present);
    unsubscribed.unsubscribe("t");
    unsubscribed.leave();
    // The record of the last connection's end is in the log before this message.
    publish(&broker, "t", &["late"]);
    let broker = crash(&state, broker);
    let (_, present) = connect(&broker, Version::V5, "cleans");
    assert!(!present);
    let (mut conn, present) = connect(&broker, Version::V5, "unsubscribes");
    assert!(present);
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    conn.expect_nothing_from(&mut publisher);
}

#[test]
fn session_is_not_restored_after_a_crash_of_a_server_that_did_not_record_it() {
    for recorded in [true, false] {
        let state = State::new();
        let Some(broker) = start_with(&state, recorded) else {
            return;
        };
        for client in ["it", "other"] {
            connect(&broker, Version::V311, client).0.leave();
        }
        broker.stop();
        // This server does not record sessions, so a crash loses their changes.
        let broker = start_with(&state, false).expect("a server of ours");
        let (mut conn, present) = connect(&broker, Version::V311, "it");
        assert!(present, "{recorded}");
        conn.subscribe("t", 1);
        broker.kill();
        let broker = start(&state).expect("a server of ours");
        let (conn, present) = connect(&broker, Version::V311, "it");
        assert!(!present, "{recorded}");
        // The new session is recorded, and the outdated one does not come back.
        let broker = crash(&state, broker);
        drop(conn);
        for (client, expected) in [("it", true), ("other", false)] {
            let (_, present) = connect(&broker, Version::V311, client);
            assert_eq!(present, expected, "{recorded} {client}");
        }
    }
}

#[test]
fn session_of_a_clean_stop_survives_a_crash_of_the_next_server() {
    for recorded in [true, false] {
        let state = State::new();
        let Some(broker) = start_with(&state, recorded) else {
            return;
        };
        let (mut conn, _) = connect(&broker, Version::V311, "it");
        conn.subscribe("t", 1);
        conn.leave();
        broker.stop();
        let broker = start(&state).expect("a server of ours");
        publish(&broker, "t", &["one"]);
        let broker = crash(&state, crash(&state, broker));
        let (mut conn, present) = connect(&broker, Version::V311, "it");
        assert!(present, "{recorded}");
        assert_eq!(receive_text(&mut conn), "one");
    }
}

#[test]
fn session_without_an_expiry_ends_with_a_crash() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (conn, _) = connect(&broker, Version::V5, "it");
    conn.cut();
    let mut conn = Conn::open(&broker, Version::V5);
    let mut without_expiry = plain_connect(Version::V5, "it");
    without_expiry.clean_start = false;
    assert!(conn.connect(&without_expiry));
    let broker = crash(&state, broker);
    let (_, present) = connect(&broker, Version::V5, "it");
    assert!(!present);
}

#[test]
fn session_that_came_back_with_a_will_before_a_crash_is_there_after_it() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut conn, _) = connect(&broker, Version::V311, "it");
    conn.subscribe("t", 1);
    conn.leave();
    let mut conn = Conn::open(&broker, Version::V311);
    let mut again = plain_connect(Version::V311, "it");
    again.clean_start = false;
    again.will = Some(will("gone"));
    assert!(conn.connect(&again));
    let broker = crash(&state, broker);
    let (mut conn, present) = connect(&broker, Version::V311, "it");
    assert!(present);
    publish(&broker, "t", &["live"]);
    assert_eq!(receive_text(&mut conn), "live");
}

#[test]
fn crash_brings_no_messages_back_that_neither_the_rule_nor_a_session_keeps() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut conn, _) = connect(&broker, Version::V5, "it");
    conn.subscribe("none/kept", 1);
    conn.leave();
    for topic in ["none/kept", "none/passing", "two/x"] {
        publish(&broker, topic, &["one", "two", "three", "four"]);
    }
    let kept = |broker: &Broker| {
        ["none/kept", "none/passing", "two/x"].map(|topic| {
            let info = broker.server().info(topic);
            info.and_then(|info| info["messages"].as_u64()).unwrap_or(0)
        })
    };
    assert_eq!(kept(&broker), [4, 0, 2]);
    let broker = crash(&state, broker);
    assert_eq!(kept(&broker), [4, 0, 2]);
}

/// Whether a file of the log contains these bytes.
pub fn is_in_the_log(state: &State, bytes: &[u8]) -> bool {
    let files = fs::read_dir(state.directory.join("log")).expect("the log");
    let mut files = files.map(|file| fs::read(file.expect("a file").path()).unwrap_or_default());
    files.any(|file| file.windows(bytes.len()).any(|it| it == bytes))
}

#[test]
fn session_is_in_the_checkpoint_when_the_log_has_it_no_more() {
    for stays in [false, true] {
        let state = State::new();
        let Some(broker) = start(&state) else { return };
        let (mut conn, _) = connect(&broker, Version::V5, "sensor-in-a-checkpoint");
        conn.subscribe("none/#", 1);
        let conn = match stays {
            true => Some(conn),
            false => {
                conn.leave();
                None
            }
        };
        publish(&broker, "none/x", &["one"]);
        until("the checkpoint", || {
            !is_in_the_log(&state, b"sensor-in-a-checkpoint")
        });
        let broker = crash(&state, broker);
        drop(conn);
        publish(&broker, "none/y", &["two"]);
        let (mut conn, present) = connect(&broker, Version::V5, "sensor-in-a-checkpoint");
        assert!(present, "{stays}");
        let mut received = [(); 2].map(|()| receive_text(&mut conn));
        received.sort();
        assert_eq!(received, ["one", "two"], "{stays}");
    }
}

#[test]
fn will_of_a_client_that_is_cut_off_as_the_server_crashes_is_published_once() {
    let state = State::new();
    let Some(mut broker) = start(&state) else {
        return;
    };
    let (mut watcher, _) = connect(&broker, Version::V5, "watcher");
    watcher.subscribe("gone/+", 1);
    watcher.leave();
    for round in 0..6 {
        let mut conn = Conn::open(&broker, Version::V5);
        let topic = format!("gone/{round}");
        let mut properties = PropertyWriter::new();
        properties.session_expiry_interval_s(600);
        let client = format!("client-{round}");
        let mut connect = plain_connect(Version::V5, &client);
        connect.properties = properties.properties();
        connect.will = Some(will(&topic));
        conn.connect(&connect);
        conn.cut();
        // In each round the server has more time to publish the will.
        std::thread::sleep(std::time::Duration::from_millis(round)); // the pace of the load
        if round == 5 {
            // The will is in a checkpoint, or in the log.
            until("a checkpoint", || !is_in_the_log(&state, b"client-0"));
        }
        broker = crash(&state, broker);
    }
    let (mut watcher, present) = connect(&broker, Version::V5, "watcher");
    assert!(present);
    let mut topics = [(); 6].map(|()| receive_topic(&mut watcher));
    topics.sort();
    let expected = [0, 1, 2, 3, 4, 5].map(|round| format!("gone/{round}"));
    assert_eq!(topics, expected);
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    watcher.expect_nothing_from(&mut publisher);
}

#[test]
fn client_does_not_get_its_own_messages_after_a_crash() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut conn, _) = connect(&broker, Version::V5, "it");
    let options = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::of(Qos::AtLeastOnce)
    };
    conn.write(|out| {
        let filters = std::iter::once(("t", options));
        encode::subscribe(out, Version::V5, id(1), &Properties::default(), filters);
    });
    assert!(matches!(conn.packet().packet(), Packet::SubAck(_)));
    conn.deliver(&message("t", 1, 2, b"mine"));
    publish(&broker, "t", &["theirs"]);
    // The client has not acknowledged it, so after the crash the server sends from before both messages.
    assert_eq!(conn.packet().publish().payload, b"theirs");
    let broker = crash(&state, broker);
    drop(conn);
    let (mut conn, present) = connect(&broker, Version::V5, "it");
    assert!(present);
    assert_eq!(receive_text(&mut conn), "theirs");
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    conn.expect_only_from(&mut publisher, "t");
}

#[test]
fn shared_subscription_continues_after_a_crash() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut conn, _) = connect(&broker, Version::V5, "worker");
    for filter in [
        "$share/workers/t",
        "$share/workers/a/+/c",
        "$share/workers/none/#",
    ] {
        conn.subscribe(filter, 1);
    }
    publish(&broker, "t", &["done"]);
    assert_eq!(receive_text(&mut conn), "done");
    publish(&broker, "t", &["unacknowledged"]);
    let received = conn.packet();
    assert_eq!(received.publish().payload, b"unacknowledged");
    let broker = crash(&state, broker);
    drop(conn);
    publish(&broker, "a/x/c", &["one"]);
    publish(&broker, "none/x", &["two"]);
    // The second crash reads the records of both servers.
    let broker = crash(&state, broker);
    publish(&broker, "t", &["three"]);
    let (mut conn, present) = connect(&broker, Version::V5, "worker");
    assert!(present);
    let mut received = std::collections::BTreeSet::new();
    // The last acknowledgements before the crash may be lost, so their messages may come again.
    while received.len() < 4 {
        let text = receive_text(&mut conn);
        if text != "done" {
            received.insert(text);
        }
    }
    let expected = ["one", "three", "two", "unacknowledged"];
    assert!(received.iter().eq(expected.iter()), "{received:?}");
    // The group ends with its last subscription, and so does its position.
    for filter in [
        "$share/workers/t",
        "$share/workers/a/+/c",
        "$share/workers/none/#",
    ] {
        conn.unsubscribe(filter);
    }
    let broker = crash(&state, broker);
    publish(&broker, "t", &["four"]);
    let (mut conn, present) = connect(&broker, Version::V5, "worker");
    assert!(present);
    conn.subscribe("$share/workers/t", 1);
    publish(&broker, "t", &["five"]);
    assert_eq!(receive_text(&mut conn), "five");
}

#[test]
fn will_of_a_client_that_was_connected_at_a_crash_is_published_once() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut watcher, _) = connect(&broker, Version::V5, "watcher");
    watcher.subscribe("gone/+", 1);
    watcher.leave();
    let with_will = |broker: &Broker, client: &str| {
        let mut conn = Conn::open(broker, Version::V5);
        let mut properties = PropertyWriter::new();
        properties.session_expiry_interval_s(600);
        let topic = format!("gone/{client}");
        let mut connect = plain_connect(Version::V5, client);
        connect.properties = properties.properties();
        connect.will = Some(will(&topic));
        conn.connect(&connect);
        // The SUBACK waits until the session's record is in the log.
        conn.subscribe("t", 1);
        conn
    };
    let first = with_will(&broker, "first");
    let broker = crash(&state, broker);
    drop(first);
    let (mut watcher, present) = connect(&broker, Version::V5, "watcher");
    assert!(present);
    assert_eq!(receive_topic(&mut watcher), "gone/first");
    leave_after_record(&broker, Version::V5, "watcher", watcher);
    let second = with_will(&broker, "second");
    let broker = crash(&state, broker);
    drop(second);
    // If the first client's will were published again, it would come with that of the second client.
    let (mut watcher, _) = connect(&broker, Version::V5, "watcher");
    assert_eq!(receive_topic(&mut watcher), "gone/second");
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    watcher.expect_nothing_from(&mut publisher);
}

/// An operator may have lowered the limit. No session may end for that.
#[test]
fn start_with_more_sessions_than_the_limit_keeps_all_and_refuses_new_ones() {
    let state = State::new();
    let Some(mut broker) = start(&state) else {
        return;
    };
    let clients = ["a", "b", "c"];
    for client in clients {
        connect(&broker, Version::V5, client).0.leave();
    }
    let begins = |broker: &Broker| Conn::open(broker, Version::V5).try_to_resume("new");
    for is_crash in [true, false] {
        match is_crash {
            true => broker.kill(),
            false => broker.stop(),
        }
        let settings = format!("{}\n[mqtt]\nsessions_max = 2\n", state.settings());
        broker = Broker::crore(&settings).expect("a server of ours");
        for client in clients {
            let (mut conn, present) = connect(&broker, Version::V5, client);
            assert!(present, "{client}");
            conn.leave();
        }
        assert_eq!(begins(&broker), ReasonCode::QUOTA_EXCEEDED);
    }
    for client in &clients[..2] {
        let mut conn = Conn::open(&broker, Version::V5);
        conn.connect(&plain_connect(Version::V5, client));
        conn.leave();
    }
    until("their sessions have ended", || {
        begins(&broker) == ReasonCode::SUCCESS
    });
}
