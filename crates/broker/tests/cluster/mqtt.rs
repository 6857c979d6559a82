//! Tests MQTT at a node of a cluster: sessions end with their connection, and shared subscriptions are not supported.

use crore_wire::mqtt::{
    self, Connect, Packet, PacketId, PropertyWriter, Publish, Qos, ReasonCode, SubscribeOptions,
    Version, Will, encode,
};

use super::Nodes;

fn connect(nodes: &mut Nodes, version: Version) -> usize {
    connect_with(nodes, version, None)
}

fn connect_with(nodes: &mut Nodes, version: Version, will: Option<Will<'_>>) -> usize {
    let mut set = PropertyWriter::new();
    set.session_expiry_interval_s(60);
    let mut out = Vec::new();
    let properties = match version {
        Version::V5 => set.properties(),
        _ => mqtt::Properties::NONE,
    };
    let connect = Connect {
        version,
        bridge: false,
        clean_start: false,
        keep_alive_s: 0,
        properties,
        client_id: "client",
        will,
        user_name: None,
        password: None,
    };
    encode::connect(&mut out, &connect);
    let server = &mut nodes.nodes[0].server;
    let conn = server.open(0);
    server.send(conn, out);
    server.settle();
    conn
}

/// Calls `see` with each packet that a client has received.
fn each(nodes: &mut Nodes, conn: usize, version: Version, mut see: impl FnMut(Packet<'_>)) {
    let received = std::mem::take(&mut nodes.nodes[0].server.socket(conn).received);
    let mut bytes = &received[..];
    while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
        let end = len + header.body_bytes();
        see(mqtt::decode(version, header, &bytes[len..end]).expect("a packet"));
        bytes = &bytes[end..];
    }
}

#[test]
fn a_session_ends_with_its_connection_and_shared_subscriptions_are_refused() {
    for version in [Version::V5, Version::V311] {
        let mut nodes = Nodes::new(1);
        for _ in 0..2 {
            let conn = connect(&mut nodes, version);
            let mut acks = 0;
            each(&mut nodes, conn, version, |packet| {
                let Packet::ConnAck(ack) = packet else {
                    panic!("no CONNACK");
                };
                acks += 1;
                assert!(!ack.session_present);
                assert_eq!(ack.reason, ReasonCode::SUCCESS);
                if version == Version::V5 {
                    assert_eq!(ack.properties.session_expiry_interval_s(), Some(0));
                    assert!(!ack.properties.shared_subscription_available());
                }
            });
            assert_eq!(acks, 1);
            let mut out = Vec::new();
            let filters = ["$share/g/a", "a"];
            let filters = filters.map(|filter| (filter, SubscribeOptions::of(Qos::AtLeastOnce)));
            let id = PacketId::new(7).expect("not 0");
            encode::subscribe(
                &mut out,
                version,
                id,
                &mqtt::Properties::NONE,
                filters.into_iter(),
            );
            nodes.nodes[0].server.send(conn, out);
            nodes.nodes[0].server.settle();
            let mut given = Vec::new();
            each(&mut nodes, conn, version, |packet| {
                if let Packet::SubAck(ack) = packet {
                    given.extend(ack.reasons.iter().map(|it| it.value()));
                }
            });
            let refused = if version == Version::V5 { 0x9E } else { 0x80 };
            assert_eq!(given, [refused, 1]);
            nodes.nodes[0].server.cut(conn);
            nodes.nodes[0].server.settle();
        }
    }
}

#[test]
fn node_that_is_cut_off_disconnects_its_clients() {
    let mut nodes = Nodes::new(1);
    let conn = connect(&mut nodes, Version::V5);
    each(&mut nodes, conn, Version::V5, |_| ());
    for _ in 0..7 {
        nodes.nodes[0].server.advance_and_tick_s(1);
        nodes.nodes[0].server.settle();
    }
    let mut reasons = Vec::new();
    each(&mut nodes, conn, Version::V5, |packet| match packet {
        Packet::Disconnect(it) => reasons.push(it.reason),
        _ => panic!("no DISCONNECT"),
    });
    // DISCONNECT has no reason code for an unavailable server.
    assert_eq!(reasons, [ReasonCode::SERVER_BUSY]);
    for refused in [true, false] {
        let conn = connect(&mut nodes, Version::V5);
        let mut reasons = Vec::new();
        each(&mut nodes, conn, Version::V5, |packet| match packet {
            Packet::ConnAck(it) => reasons.push(it.reason),
            _ => panic!("no CONNACK"),
        });
        let expected = match refused {
            true => ReasonCode::SERVER_UNAVAILABLE,
            false => ReasonCode::SUCCESS,
        };
        assert_eq!(reasons, [expected]);
        nodes.run(&[0]);
        nodes.run_second();
    }
}

/// The session ends with its connection. So the client does not send the publish again to this node, which could acknowledge the copy while the first is in
/// flight.
#[test]
fn client_with_unanswered_publishes_is_disconnected_when_they_can_no_longer_take_effect() {
    for qos in [Qos::AtLeastOnce, Qos::ExactlyOnce] {
        let mut nodes = Nodes::new(1);
        let conn = connect(&mut nodes, Version::V5);
        let mut out = Vec::new();
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: "a",
            packet_id: PacketId::new(1),
            properties: mqtt::Properties::NONE,
            payload: b"x",
        };
        encode::publish(&mut out, Version::V5, &publish);
        nodes.nodes[0].server.send(conn, out);
        nodes.nodes[0].server.settle();
        each(&mut nodes, conn, Version::V5, |_| ());
        let mut ends_after_s = None;
        for second in 1..60 {
            nodes.nodes[0].server.advance_and_tick_s(1);
            nodes.nodes[0].server.settle();
            each(&mut nodes, conn, Version::V5, |packet| {
                if let Packet::Disconnect(_) = packet {
                    ends_after_s = Some(second);
                }
            });
        }
        let range = 9..=12;
        assert!(
            ends_after_s.is_some_and(|second| range.contains(&second)),
            "{qos:?}: {ends_after_s:?}"
        );
    }
}

#[test]
fn will_of_a_client_that_was_sent_away_is_not_written_behind_newer_messages() {
    let mut nodes = Nodes::new(2);
    for _ in 0..3 {
        nodes.run_second();
    }
    let reader = nodes.events(1, "sub/state", "");
    let will = Will {
        qos: Qos::AtLeastOnce,
        retain: true,
        properties: mqtt::Properties::NONE,
        topic: "state",
        payload: b"gone",
    };
    let data = |nodes: &Nodes| {
        let got = nodes.received_events(1, reader).into_iter();
        got.map(|(_, data)| data).collect::<Vec<_>>()
    };
    // While the node reaches the log, the will is published.
    let conn = connect_with(&mut nodes, Version::V5, Some(will));
    nodes.nodes[0].server.cut(conn);
    nodes.run(&[0, 1]);
    assert_eq!(data(&nodes), ["gone"]);
    connect_with(&mut nodes, Version::V5, Some(will));
    // The node is cut off and closes the client's connection. The client then reports at another node that it is online, which the will
    // must not overwrite.
    for _ in 0..20 {
        nodes.nodes[0].server.advance_and_tick_s(1);
        nodes.nodes[0].server.settle();
        nodes.run_second_at(&[1]);
    }
    nodes.post(1, "state", "here");
    nodes.run(&[1]);
    for _ in 0..4 {
        nodes.run_second();
    }
    assert_eq!(data(&nodes), ["gone", "here"]);
}
