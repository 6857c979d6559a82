//! Tests statements of the specifications about CONNECT, CONNACK, DISCONNECT and AUTH.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect, will};
use crore_wire::mqtt::PacketType::{PubAck, PubRec};
use crore_wire::mqtt::{
    Auth, Packet, PacketType, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions,
    Version, encode,
};

/// Receives the CONNACK. Returns its reason code.
fn connack_reason(conn: &mut Conn) -> ReasonCode {
    match conn.packet().packet() {
        Packet::ConnAck(connack) => connack.reason,
        other => panic!("a CONNACK is due, {other:?} came"),
    }
}

#[test]
fn client_ids_of_every_kind_are_taken_up_to_a_length() {
    let broker = Broker::start();
    let letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let long = "x".repeat(256);
    for version in VERSIONS {
        for name in [
            "a",
            &letters[..23],
            &letters[20..43],
            &letters[39..],
            "\u{fc}/#+$ ",
            &long,
        ] {
            Conn::connected(&broker, version, name);
        }
        if broker.is_crore() {
            let mut conn = Conn::open(&broker, version);
            conn.write(|out| encode::connect(out, &plain_connect(version, &format!("{long}x"))));
            assert_eq!(
                connack_reason(&mut conn),
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID
            );
            assert_eq!(conn.read_to_end(), b"");
        }
    }
}

#[test]
fn ids_that_are_given_out_differ_and_name_their_sessions() {
    let broker = Broker::start();
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(60);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut connect = plain_connect(Version::V5, "");
        connect.properties = properties.properties();
        let mut conn = Conn::open(&broker, Version::V5);
        conn.write(|out| encode::connect(out, &connect));
        let received = conn.packet();
        let Packet::ConnAck(connack) = received.packet() else {
            panic!("no CONNACK");
        };
        let name = connack.properties.assigned_client_identifier();
        ids.push(name.expect("an id").to_string());
        conn.leave();
    }
    for name in &ids {
        assert!(Conn::open(&broker, Version::V5).resume(name));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    // MQTT 3.1.1 cannot tell the client its assigned id; the client is served nevertheless.
    assert!(Conn::connected(&broker, Version::V311, "").is_served());
}

#[test]
fn behind_a_refusal_nothing_is_read() {
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("t", 0);
    for version in VERSIONS {
        let mut connect = plain_connect(version, "");
        connect.clean_start = version == Version::V5;
        connect.will = Some(will("t"));
        let mut properties = PropertyWriter::new();
        properties
            .authentication_method("unknown")
            .expect("it is short");
        if version == Version::V5 {
            connect.properties = properties.properties();
        }
        let mut conn = Conn::open(&broker, version);
        conn.write(|out| {
            encode::connect(out, &connect);
            encode::publish(out, version, &message("t", 0, 0, b"behind"));
        });
        let wanted = match version {
            Version::V5 => ReasonCode::BAD_AUTHENTICATION_METHOD,
            Version::V311 => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
        };
        assert_eq!(connack_reason(&mut conn), wanted);
        assert_eq!(conn.read_to_end(), b"");
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    watcher.expect_only_from(&mut publisher, "t");
}

#[test]
fn optional_properties_are_not_sent_unasked() {
    let broker = Broker::start();
    for wants in [None, Some(false), Some(true)] {
        let mut properties = PropertyWriter::new();
        if let Some(wants) = wants {
            properties.request_response_information(wants);
            properties.request_problem_information(wants);
        }
        let mut connect = plain_connect(Version::V5, "it");
        connect.properties = properties.properties();
        let mut conn = Conn::open(&broker, Version::V5);
        conn.write(|out| encode::connect(out, &connect));
        let received = conn.packet();
        let Packet::ConnAck(connack) = received.packet() else {
            panic!("no CONNACK");
        };
        assert_eq!(connack.properties.response_information(), None);
        assert_eq!(connack.properties.reason_string(), None);
        conn.write(|out| {
            let filters = std::iter::once(("t", SubscribeOptions::of(Qos::AtLeastOnce)));
            encode::subscribe(out, Version::V5, id(1), &Properties::default(), filters);
            encode::publish(out, Version::V5, &message("$x", 1, 2, b"not allowed"));
            let filters = std::iter::once("never");
            encode::unsubscribe(out, Version::V5, id(3), &Properties::default(), filters);
        });
        for _ in 0..3 {
            let received = conn.packet();
            let properties = match received.packet() {
                Packet::SubAck(suback) => suback.properties,
                Packet::PubAck(ack) => ack.properties,
                Packet::UnsubAck(unsuback) => unsuback.properties,
                other => panic!("{other:?}"),
            };
            assert!(properties.is_empty(), "{properties:?}");
        }
    }
}

#[test]
fn a_farewell_is_no_larger_than_the_client_takes() {
    let broker = Broker::start();
    for most in [64u32, 20] {
        let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
            set.maximum_packet_size_bytes(most);
        });
        // The packet uses an unknown alias.
        conn.send(b"\x30\x06\0\0\x03\x23\0\x01");
        let bytes = conn.read_to_end();
        assert!(bytes.len() <= most as usize, "{} of {most}", bytes.len());
        assert_eq!((bytes[0], bytes[2]), (0xe0, 0x82));
    }
}

#[test]
fn answer_larger_than_the_client_takes_is_not_sent() {
    // The client's maximum is smaller than any CONNACK with the required properties.
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto sends it
    }
    let mut properties = PropertyWriter::new();
    properties.maximum_packet_size_bytes(6);
    let mut connect = plain_connect(Version::V5, "it");
    connect.properties = properties.properties();
    let mut conn = Conn::open(&broker, Version::V5);
    conn.write(|out| encode::connect(out, &connect));
    assert_eq!(connack_reason(&mut conn), ReasonCode::PACKET_TOO_LARGE);
    assert_eq!(conn.read_to_end(), b"");
    // A SUBACK for many filters is larger than this client accepts, so it is not sent either.
    let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
        set.maximum_packet_size_bytes(20);
    });
    conn.write(|out| {
        let filters = (0..30).map(|_| ("t", SubscribeOptions::of(Qos::AtMostOnce)));
        encode::subscribe(out, Version::V5, id(1), &Properties::default(), filters);
    });
    assert_eq!(conn.end(), Some(ReasonCode::PACKET_TOO_LARGE));
}

#[test]
fn there_is_no_authentication_to_go_on_with() {
    let broker = Broker::start();
    let mut properties = PropertyWriter::new();
    properties
        .authentication_method("unknown")
        .expect("it is short");
    for reason in [
        ReasonCode::CONTINUE_AUTHENTICATION,
        ReasonCode::RE_AUTHENTICATE,
    ] {
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        let auth = Auth {
            reason,
            properties: properties.properties(),
        };
        conn.write(|out| encode::auth(out, &auth));
        assert_eq!(conn.end(), Some(ReasonCode::PROTOCOL_ERROR));
    }
}

#[test]
fn user_and_password_are_taken() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut connect = plain_connect(version, "it");
        (connect.user_name, connect.password) = (Some("user"), Some(b"\0secret".as_slice()));
        let mut conn = Conn::open(&broker, version);
        conn.connect(&connect);
        assert!(conn.is_served());
    }
}

#[test]
fn a_publish_that_is_not_allowed_is_refused_and_counts_for_nobody() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto takes `$` topics
    }
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("$x/#", 0);
    let mut conn = Conn::connected(&broker, Version::V5, "new");
    conn.publish(&message("$x/a", 1, 1, b"x"));
    assert_eq!(conn.packet().ack(PubAck), (1, ReasonCode::NOT_AUTHORIZED));
    // The refused packet id is free again.
    conn.publish(&message("$x/a", 2, 1, b"x"));
    assert_eq!(conn.packet().ack(PubRec), (1, ReasonCode::NOT_AUTHORIZED));
    conn.subscribe("t", 0);
    conn.publish(&message("t", 2, 1, b"new"));
    let mut left = vec![PubRec, PacketType::Publish];
    while !left.is_empty() {
        let kind = conn.packet().packet().kind();
        left.retain(|due| *due != kind);
    }
    assert!(conn.is_served());
    conn.publish(&message("$x/a", 0, 0, b"x"));
    assert_eq!(conn.end(), Some(ReasonCode::NOT_AUTHORIZED));
    for qos in 0..3 {
        let mut conn = Conn::connected(&broker, Version::V311, "old");
        conn.publish(&message("$x/a", qos, 1, b"x"));
        assert_eq!(conn.read_to_end(), b"", "{qos}");
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    watcher.expect_nothing_from(&mut publisher);
}
