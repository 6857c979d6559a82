//! Tests the limits of durable sessions. A client above a limit gets a clear answer, other clients are served, and a crash changes nothing.

use crore_wire::mqtt::PacketType::PubRec;
use crore_wire::mqtt::{Packet, PropertyWriter, ReasonCode, Version, Will, encode};

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message, plain_connect};
use crate::support::state::State;

/// Number of messages that are in flight at once.
const IN_FLIGHT: u16 = 5_000;

fn start(state: &State) -> Option<Broker> {
    Broker::crore(&format!(
        "{}\n[limits]\nmessage_bytes = 8192\nbatch_bytes = 8192\n[mqtt]\nreceive_max = {IN_FLIGHT}\n",
        state.settings()
    ))
}

/// Kills the server and starts another one.
fn crash(state: &State, broker: Broker) -> Broker {
    broker.kill();
    start(state).expect("a server of ours")
}

#[test]
fn client_id_of_64_kib_and_will_above_the_limit_are_refused() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let long = "x".repeat(usize::from(u16::MAX));
    let mut lasting = PropertyWriter::new();
    lasting.session_expiry_interval_s(600);
    for version in VERSIONS {
        let will = Will {
            payload: &[0; 9_000],
            ..crate::support::mqtt::will("w")
        };
        for (client_id, will, code) in [
            (&long[..], None, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID),
            ("it", Some(will), ReasonCode::QUOTA_EXCEEDED),
        ] {
            let mut connect = plain_connect(version, client_id);
            (connect.clean_start, connect.will) = (false, will);
            if version == Version::V5 {
                connect.properties = lasting.properties();
            }
            let mut conn = Conn::open(&broker, version);
            conn.write(|out| encode::connect(out, &connect));
            let received = conn.packet();
            let Packet::ConnAck(connack) = received.packet() else {
                panic!("no CONNACK");
            };
            assert!(connack.reason.is_error(), "{version:?} {client_id}");
            if version == Version::V5 {
                assert_eq!(connack.reason, code);
            }
            assert_eq!(conn.end(), None);
        }
    }
    // Neither has left a session.
    let broker = crash(&state, broker);
    let mut conn = Conn::open(&broker, Version::V5);
    assert!(!conn.resume("it"));
}

#[test]
fn packet_ids_of_65_535_messages_that_are_not_released_are_known_after_a_crash() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let mut conn = Conn::open(&broker, Version::V311);
    assert!(!conn.resume("it"));
    for first in (1..=u16::MAX).step_by(IN_FLIGHT.into()) {
        let ids = first..=first.saturating_add(IN_FLIGHT - 1);
        conn.write(|out| {
            for id in ids.clone() {
                encode::publish(out, Version::V311, &message("t", 2, id, b"x"));
            }
        });
        for id in ids {
            assert_eq!(conn.packet().ack(PubRec).0, id);
        }
    }
    let broker = crash(&state, broker);
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("t", 1);
    let mut conn = Conn::open(&broker, Version::V311);
    assert!(conn.resume("it"));
    for id in [1, u16::MAX] {
        let mut duplicate = message("t", 2, id, b"x");
        duplicate.dup = true;
        conn.publish(&duplicate);
        assert_eq!(conn.packet().ack(PubRec).0, id);
    }
    // Neither message was published again, and other clients are served.
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    subscriber.expect_only_from(&mut publisher, "t");
    // The end of the session releases all of them.
    conn.cut();
    let mut conn = Conn::open(&broker, Version::V311);
    assert!(!conn.connect(&plain_connect(Version::V311, "it")));
    conn.deliver(&message("t", 2, 1, b"new"));
    assert_eq!(subscriber.packet().publish().payload, b"new");
}
