//! Tests packets written by hand from the specifications' figures: they decode to the expected values, and these values encode to the same
//! bytes.

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, FIELD_MAX, Packet, PacketId, Properties,
    PropertyWriter, Publish, Qos, REMAINING_LENGTH_MAX, ReasonCode, RetainHandling,
    SubscribeOptions, Version, Will, decode, encode, fixed_header,
};

fn id(value: u16) -> PacketId {
    PacketId::new(value).unwrap()
}

/// Decodes one packet, which must use all of `bytes`.
fn decode_complete(version: Version, bytes: &[u8]) -> Packet<'_> {
    let (header, at) = fixed_header(bytes, 1 << 20).unwrap().unwrap();
    assert_eq!(at + header.body_bytes(), bytes.len());
    decode(version, header, &bytes[at..]).unwrap()
}

/// Asserts that `bytes` decode to `packet`, and that `packet` is encoded to `bytes`.
#[track_caller]
fn assert_round_trip(version: Version, bytes: &[u8], packet: Packet<'_>) {
    assert_eq!(decode_complete(version, bytes), packet);
    let mut out = Vec::new();
    encode::packet(&mut out, version, &packet);
    assert_eq!(out, bytes);
}

fn ack(packet_id: u16, reason: ReasonCode, properties: Properties<'_>) -> Ack<'_> {
    Ack {
        packet_id: id(packet_id),
        reason,
        properties,
    }
}

#[test]
fn a_connect_with_everything_in_both_versions() {
    let connect = Connect {
        version: V311,
        bridge: false,
        clean_start: true,
        keep_alive_s: 10,
        properties: Properties::NONE,
        client_id: "me",
        will: Some(Will {
            qos: Qos::AtLeastOnce,
            retain: true,
            properties: Properties::NONE,
            topic: "w",
            payload: b"\0\xFF",
        }),
        user_name: Some("u"),
        password: Some(b"\xFE"),
    };
    assert_round_trip(
        V311,
        b"\x10\x1B\0\x04MQTT\x04\xEE\0\x0A\0\x02me\0\x01w\0\x02\0\xFF\0\x01u\0\x01\xFE",
        Packet::Connect(connect),
    );
    let (mut properties, mut will_properties) = (PropertyWriter::new(), PropertyWriter::new());
    properties
        .receive_maximum(10)
        .session_expiry_interval_s(u32::MAX);
    will_properties.will_delay_interval_s(5);
    let connect = Connect {
        version: V5,
        properties: properties.properties(),
        will: connect.will.map(|will| Will {
            properties: will_properties.properties(),
            ..will
        }),
        ..connect
    };
    assert_round_trip(
        V5,
        b"\x10\x2A\0\x04MQTT\x05\xEE\0\x0A\x08\x21\0\x0A\x11\xFF\xFF\xFF\xFF\0\x02me\
          \x05\x18\0\0\0\x05\0\x01w\0\x02\0\xFF\0\x01u\0\x01\xFE",
        Packet::Connect(connect),
    );
}

#[test]
fn a_connack_in_both_versions() {
    let connack = ConnAck {
        session_present: true,
        reason: ReasonCode::SUCCESS,
        properties: Properties::NONE,
    };
    assert_round_trip(V311, b"\x20\x02\x01\0", Packet::ConnAck(connack));
    let refused = ConnAck {
        session_present: false,
        reason: ReasonCode::NOT_AUTHORIZED,
        ..connack
    };
    assert_round_trip(V311, b"\x20\x02\0\x05", Packet::ConnAck(refused));
    let mut properties = PropertyWriter::new();
    properties
        .assigned_client_identifier("x")
        .unwrap()
        .maximum_qos(Qos::AtLeastOnce)
        .maximum_qos(Qos::ExactlyOnce);
    let refused = ConnAck {
        properties: properties.properties(),
        ..refused
    };
    assert_round_trip(
        V5,
        b"\x20\x09\0\x87\x06\x12\0\x01x\x24\x01",
        Packet::ConnAck(refused),
    );
}

#[test]
fn a_connack_that_3_1_1_cannot_say_is_not_written() {
    let connack = ConnAck {
        session_present: false,
        reason: ReasonCode::MALFORMED_PACKET,
        properties: Properties::NONE,
    };
    let mut out = Vec::new();
    encode::connack(&mut out, V311, &connack);
    assert_eq!(out, b"");
}

#[test]
fn publishes_of_every_qos() {
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: true,
        topic: "a/b",
        packet_id: None,
        properties: Properties::NONE,
        payload: b"hi",
    };
    assert_round_trip(V311, b"\x31\x07\0\x03a/bhi", Packet::Publish(publish));
    assert_round_trip(V5, b"\x31\x08\0\x03a/b\0hi", Packet::Publish(publish));
    let mut properties = PropertyWriter::new();
    properties.topic_alias(7);
    let publish = Publish {
        dup: true,
        qos: Qos::ExactlyOnce,
        retain: false,
        topic: "",
        packet_id: Some(id(258)),
        properties: properties.properties(),
        payload: b"",
    };
    assert_round_trip(
        V5,
        b"\x3C\x08\0\0\x01\x02\x03\x23\0\x07",
        Packet::Publish(publish),
    );
}

#[test]
fn a_head_without_its_payload_counts_it() {
    let publish = Publish {
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: false,
        topic: "t",
        packet_id: Some(id(1)),
        properties: Properties::NONE,
        payload: b"",
    };
    let mut out = Vec::new();
    encode::publish_head(&mut out, V5, &publish, 200);
    assert_eq!(out, b"\x32\xCE\x01\0\x01t\0\x01\0");
    assert_eq!(encode::publish_bytes(V5, &publish, 200), out.len() + 200);
}

#[test]
fn acknowledgements_omit_optional_fields() {
    use ReasonCode as R;
    let plain = ack(3, R::SUCCESS, Properties::NONE);
    assert_round_trip(V311, b"\x40\x02\0\x03", Packet::PubAck(plain));
    assert_round_trip(V5, b"\x40\x02\0\x03", Packet::PubAck(plain));
    assert_round_trip(V5, b"\x50\x02\0\x03", Packet::PubRec(plain));
    assert_round_trip(V5, b"\x62\x02\0\x03", Packet::PubRel(plain));
    assert_round_trip(V5, b"\x70\x02\0\x03", Packet::PubComp(plain));
    let nobody = ack(3, R::NO_MATCHING_SUBSCRIBERS, Properties::NONE);
    assert_round_trip(V5, b"\x40\x03\0\x03\x10", Packet::PubAck(nobody));
    let unknown = ack(3, R::PACKET_IDENTIFIER_NOT_FOUND, Properties::NONE);
    assert_round_trip(V5, b"\x62\x03\0\x03\x92", Packet::PubRel(unknown));
    let mut properties = PropertyWriter::new();
    properties.reason_string("no").unwrap();
    let ack_with_properties = ack(3, R::SUCCESS, properties.properties());
    assert_round_trip(
        V5,
        b"\x50\x09\0\x03\0\x05\x1F\0\x02no",
        Packet::PubRec(ack_with_properties),
    );
    // A form that is longer than necessary, which the sender may choose (section 3.4.2.1).
    assert_eq!(
        decode_complete(V5, b"\x40\x03\0\x03\0"),
        Packet::PubAck(plain)
    );
    assert_eq!(
        decode_complete(V5, b"\x40\x04\0\x03\0\0"),
        Packet::PubAck(plain)
    );
    // In 3.1.1 the packet has only the identifier.
    let mut out = Vec::new();
    encode::puback(&mut out, V311, &nobody);
    assert_eq!(out, b"\x40\x02\0\x03");
}

#[test]
fn a_subscribe_and_its_answer() {
    let bytes = b"\x82\x18\0\x01\x02\x0B\x64\0\x03a/#\x1D\0\x0A$share/g/+\x02";
    let Packet::Subscribe(subscribe) = decode_complete(V5, bytes) else {
        panic!("a SUBSCRIBE")
    };
    let all_options = SubscribeOptions {
        max_qos: Qos::AtLeastOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::SendIfNew,
    };
    let filters: Vec<_> = subscribe.filters.iter().collect();
    let second = SubscribeOptions::of(Qos::ExactlyOnce);
    assert_eq!(filters, [("a/#", all_options), ("$share/g/+", second)]);
    assert_eq!(subscribe.filters.len(), 2);
    assert_eq!(subscribe.properties.subscription_identifier(), Some(100));
    let mut out = Vec::new();
    let filters = filters.into_iter();
    encode::subscribe(&mut out, V5, id(1), &subscribe.properties, filters.clone());
    assert_eq!(out, bytes);
    out.clear();
    encode::subscribe(&mut out, V311, id(1), &Properties::NONE, filters);
    assert_eq!(out, b"\x82\x15\0\x01\0\x03a/#\x01\0\x0A$share/g/+\x02");

    let reasons = [ReasonCode::GRANTED_QOS_1, ReasonCode::TOPIC_FILTER_INVALID];
    out.clear();
    encode::suback(
        &mut out,
        V311,
        id(9),
        &Properties::NONE,
        reasons.into_iter(),
    );
    assert_eq!(out, b"\x90\x04\0\x09\x01\x80");
    out.clear();
    encode::suback(&mut out, V5, id(9), &Properties::NONE, reasons.into_iter());
    assert_eq!(out, b"\x90\x05\0\x09\0\x01\x8F");
    let Packet::SubAck(suback) = decode_complete(V5, &out) else {
        panic!("a SUBACK")
    };
    assert!(suback.reasons.iter().eq(reasons));
}

#[test]
fn an_unsubscribe_and_its_answer() {
    let bytes = b"\xA2\x09\0\x02\0\0\x01a\0\x01#";
    let Packet::Unsubscribe(unsubscribe) = decode_complete(V5, bytes) else {
        panic!("an UNSUBSCRIBE")
    };
    assert!(unsubscribe.filters.iter().eq(["a", "#"]));
    let mut out = Vec::new();
    encode::packet(&mut out, V5, &Packet::Unsubscribe(unsubscribe));
    assert_eq!(out, bytes);

    let reasons = [ReasonCode::SUCCESS, ReasonCode::NO_SUBSCRIPTION_EXISTED];
    out.clear();
    encode::unsuback(
        &mut out,
        V311,
        id(2),
        &Properties::NONE,
        reasons.into_iter(),
    );
    assert_eq!(out, b"\xB0\x02\0\x02");
    out.clear();
    encode::unsuback(&mut out, V5, id(2), &Properties::NONE, reasons.into_iter());
    assert_eq!(out, b"\xB0\x05\0\x02\0\0\x11");
}

#[test]
fn pings_and_disconnects() {
    for version in [V311, V5] {
        assert_round_trip(version, b"\xC0\0", Packet::PingReq);
        assert_round_trip(version, b"\xD0\0", Packet::PingResp);
        let disconnect = Disconnect {
            reason: ReasonCode::NORMAL_DISCONNECTION,
            properties: Properties::NONE,
        };
        assert_round_trip(version, b"\xE0\0", Packet::Disconnect(disconnect));
    }
    let disconnect = Disconnect {
        reason: ReasonCode::SESSION_TAKEN_OVER,
        properties: Properties::NONE,
    };
    assert_round_trip(V5, b"\xE0\x01\x8E", Packet::Disconnect(disconnect));
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(0);
    let disconnect = Disconnect {
        reason: ReasonCode::DISCONNECT_WITH_WILL,
        properties: properties.properties(),
    };
    assert_round_trip(
        V5,
        b"\xE0\x07\x04\x05\x11\0\0\0\0",
        Packet::Disconnect(disconnect),
    );
}

#[test]
fn an_authentication_exchange() {
    let mut properties = PropertyWriter::new();
    properties.authentication_method("m").unwrap();
    properties.authentication_data(b"\0").unwrap();
    let auth = Auth {
        reason: ReasonCode::CONTINUE_AUTHENTICATION,
        properties: properties.properties(),
    };
    assert_round_trip(
        V5,
        b"\xF0\x0A\x18\x08\x15\0\x01m\x16\0\x01\0",
        Packet::Auth(auth),
    );
    let auth = Auth {
        reason: ReasonCode::SUCCESS,
        properties: Properties::NONE,
    };
    assert_round_trip(V5, b"\xF0\0", Packet::Auth(auth));
}

/// A server forwards messages of other publishers. None of them may make the encoder panic.
#[test]
fn publish_that_fits_no_packet_is_not_written() {
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: Properties::NONE,
        payload: b"x",
    };
    let write = |publish: &Publish<'_>| {
        let mut out = Vec::new();
        encode::publish(&mut out, V5, publish);
        !out.is_empty()
    };
    assert!(write(&publish));
    let long = vec![0; REMAINING_LENGTH_MAX];
    assert!(!write(&Publish {
        payload: &long,
        ..publish
    }));
    let topic = "t".repeat(FIELD_MAX + 1);
    assert!(!write(&Publish {
        topic: &topic,
        ..publish
    }));
    assert!(!write(&Publish {
        qos: Qos::AtLeastOnce,
        ..publish
    }));
}
