//! Durable sessions (`mqtt.durable_sessions`): what a client finds again after `kill -9` of the server.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message, plain};
use crate::support::state::State;
use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::Version;

fn start(state: &State) -> Option<Broker> {
    let settings = state.settings();
    Broker::ours(&format!(
        "{settings}\n[mqtt]\ndurable_sessions = true\n\n[[rule]]\nmatch = \"none/#\"\nlog_messages = 0\n"
    ))
}

/// Kills the server and starts another one.
fn crash(state: &State, broker: Broker) -> Broker {
    broker.kill();
    start(state).expect("a server of ours")
}

/// Connects to the session of this client; whether it was there.
fn connect(broker: &Broker, version: Version, client: &str) -> (Conn, bool) {
    let mut conn = Conn::open(broker, version);
    let present = conn.resume(client);
    (conn, present)
}

fn publish(broker: &Broker, topic: &str, texts: &[&str]) {
    let mut from = Conn::connected(broker, Version::V5, "");
    for text in texts {
        from.deliver(&message(topic, 1, 1, text.as_bytes()));
    }
}

/// The next message, which is acknowledged.
fn take(conn: &mut Conn) -> String {
    let got = conn.packet();
    let publish = got.publish();
    let text = String::from_utf8_lossy(publish.payload).into_owned();
    if let Some(id) = publish.packet_id {
        conn.acknowledge(PubAck, id.get());
    }
    text
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
        assert_eq!(take(&mut conn), "seen");
        assert!(conn.is_served());
        conn.leave();
        publish(&broker, "a/x/c", &["one"]);
        let broker = crash(&state, broker);
        publish(&broker, "none/x", &["two"]);
        // The second crash reads the records of both servers.
        let broker = crash(&state, broker);
        publish(&broker, "t", &["three"]);

        let (mut conn, present) = connect(&broker, version, "it");
        assert!(present, "{version:?}");
        let mut got = [(); 3].map(|()| take(&mut conn));
        got.sort();
        assert_eq!(got, ["one", "three", "two"], "{version:?}");
        publish(&broker, "t", &["live"]);
        assert_eq!(take(&mut conn), "live");
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
        let got = conn.packet();
        assert_eq!(got.publish().payload, text.as_bytes());
    }
    let broker = crash(&state, broker);
    let (mut conn, present) = connect(&broker, Version::V5, "it");
    assert!(present);
    for text in ["one", "two", "three"] {
        assert_eq!(take(&mut conn), text);
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
    // Clean Start ends the session of before.
    let mut conn = Conn::open(&broker, Version::V5);
    assert!(!conn.connect(&plain(Version::V5, "cleans")));
    let (mut unsubscribed, present) = connect(&broker, Version::V5, "unsubscribes");
    assert!(present);
    unsubscribed.unsubscribe("t");
    unsubscribed.leave();
    // The record of the last connection's end is before this message.
    publish(&broker, "t", &["late"]);
    let broker = crash(&state, broker);
    let (_, present) = connect(&broker, Version::V5, "cleans");
    assert!(!present);
    let (mut conn, present) = connect(&broker, Version::V5, "unsubscribes");
    assert!(present);
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    conn.expect_nothing_from(&mut publisher);
}
