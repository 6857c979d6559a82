//! Tests bridges of other brokers. They connect with protocol level 4 and the bit that Mosquitto's bridges set (its option `try_private`,
//! which is on by default).

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message, plain_connect, will};
use crore_wire::mqtt::PacketType::{PubAck, PubRec};
use crore_wire::mqtt::{Connect, ReasonCode, Version, encode};

/// A CONNECT as a bridge sends it.
fn bridge_connect<'a>(client_id: &'a str) -> Connect<'a> {
    let mut connect = plain_connect(Version::V311, client_id);
    connect.bridge = true;
    connect
}

fn bridge(broker: &Broker, client_id: &str) -> Conn {
    let mut conn = Conn::open(broker, Version::V311);
    assert!(!conn.connect(&bridge_connect(client_id)));
    conn
}

#[test]
fn the_bytes_of_a_bridge_s_connect_are_answered_in_3_1_1() {
    let broker = Broker::start();
    let mut conn = Conn::open(&broker, Version::V311);
    conn.send(b"\x10\x0e\0\x04MQTT\x84\x02\0\x3c\0\x02it");
    conn.disconnect();
    assert_eq!(conn.read_to_end(), b"\x20\x02\0\0");
    // Bridges may use WebSocket as well.
    let (mut conn, _) = Conn::websocket(&broker, Version::V311, "/mqtt", "mqtt");
    conn.connect(&bridge_connect("it"));
    assert!(conn.is_served());
}

#[test]
fn bridge_does_not_get_its_own_messages_back_and_retain_is_kept() {
    let broker = Broker::start();
    let mut client = Conn::connected(&broker, Version::V5, "other");
    client.subscribe("b/#", 1);
    for filter in ["b/x", "b/+", "#"] {
        for qos in 0..=2 {
            let mut conn = bridge(&broker, "bridge");
            conn.subscribe(filter, qos);
            conn.deliver(&message("b/x", 1, 1, b"own"));
            assert_eq!(client.packet().publish().payload, b"own", "others get it");
            client.acknowledge(PubAck, 1);
            for retain in [true, false] {
                let mut publish = message("b/x", 0, 0, b"theirs");
                publish.retain = retain;
                let mut publisher = Conn::connected(&broker, Version::V311, "publisher");
                publisher.publish(&publish);
                let (received, received_by_client) = (conn.packet(), client.packet());
                assert_eq!(received.publish().payload, b"theirs", "{filter} {qos}");
                assert_eq!(received.publish().retain, retain, "{filter} {qos}");
                assert!(
                    !received_by_client.publish().retain,
                    "for others it is a new message"
                );
                publish.payload = b"";
                publish.retain = true;
                publisher.publish(&publish);
                assert!(conn.packet().publish().payload.is_empty());
                assert!(client.packet().publish().payload.is_empty());
                publisher.leave();
            }
            conn.leave();
        }
    }
}

#[test]
fn resumed_session_of_a_bridge_stays_one_of_a_bridge() {
    let broker = Broker::start();
    let mut connect = bridge_connect("bridge");
    connect.clean_start = false;
    let mut conn = Conn::open(&broker, Version::V311);
    conn.connect(&connect);
    conn.subscribe("b/#", 1);
    conn.leave();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publisher.deliver(&message("b/x", 1, 1, b"missed"));
    let mut conn = Conn::open(&broker, Version::V311);
    assert!(conn.connect(&connect));
    let received = conn.packet();
    assert_eq!(received.publish().payload, b"missed");
    conn.acknowledge(PubAck, received.publish().packet_id.expect("an id").get());
    conn.deliver(&message("b/x", 1, 1, b"own"));
    conn.expect_only_from(&mut publisher, "b/x");
}

#[test]
fn a_bridge_may_share_a_subscription() {
    let broker = Broker::start();
    let mut conn = bridge(&broker, "bridge");
    assert_eq!(
        conn.subscribe("$share/g/b/#", 0),
        ReasonCode::granted(crore_wire::mqtt::Qos::AtMostOnce)
    );
    // For shared subscriptions the option No Local does not exist, so the bridge gets its own message.
    conn.publish(&message("b/x", 0, 0, b"own"));
    assert_eq!(conn.packet().publish().payload, b"own");
}

#[test]
fn only_a_bridge_publishes_its_connection_state() {
    const STATE: &str = "$SYS/broker/connection/it/state";
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("$SYS/broker/connection/#", 0);
    let mut connect = bridge_connect("bridge");
    let mut state = will(STATE);
    (state.payload, state.retain) = (b"0", true);
    connect.will = Some(state);
    let mut conn = Conn::open(&broker, Version::V311);
    conn.connect(&connect);
    let mut up = message(STATE, 1, 1, b"1");
    up.retain = true;
    conn.deliver(&up);
    assert_eq!(watcher.packet().publish().payload, b"1");
    conn.cut();
    assert_eq!(watcher.packet().publish().payload, b"0");
    // A bridge may not publish to other topics that begin with $. A client that is no bridge may publish to none of them.
    let mut conn = bridge(&broker, "bridge");
    conn.publish(&message("$SYS/broker/version", 1, 1, b"x"));
    assert_eq!(conn.end(), None);
    let mut five = Conn::connected(&broker, Version::V5, "five");
    five.publish(&up);
    let refused = five.packet().ack(PubAck);
    assert_eq!(refused, (1, ReasonCode::NOT_AUTHORIZED));
    five.publish(&message(STATE, 2, 2, b"1"));
    assert_eq!(five.packet().ack(PubRec).1, ReasonCode::NOT_AUTHORIZED);
    let mut connect = plain_connect(Version::V311, "four");
    connect.will = Some(state);
    let mut conn = Conn::open(&broker, Version::V311);
    conn.write(|out| encode::connect(out, &connect));
    assert_eq!(conn.read_to_end(), b"");
}
