//! Tests the DISCONNECT that an MQTT client receives when the server stops (MQTT 5.0 sections 3.14.2.1 and 3.14.2.2.5). MQTT 3.1.1 has no
//! such packet.

use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::once;
use crate::support::mqtt::{Conn, VERSIONS, plain_connect, will};
use crate::support::state::State;
use crore_wire::mqtt::{Packet, ReasonCode, Version};

/// The Server Reference: other servers that clients should use.
const SERVER_REFERENCE: &str = "b.example:1883 c.example";

/// Receives a DISCONNECT. Returns its reason and its Server Reference; `None` if the connection ends without one.
fn disconnect_of(conn: &mut Conn) -> Option<(ReasonCode, Option<String>)> {
    let received = conn.packet_or_end()?;
    let reason_and_reference = match received.packet() {
        Packet::Disconnect(disconnect) => {
            let reference = disconnect.properties.server_reference().map(str::to_string);
            (disconnect.reason, reference)
        }
        other => panic!("{other:?} is no farewell"),
    };
    assert!(conn.packet_or_end().is_none(), "more behind a DISCONNECT");
    Some(reason_and_reference)
}

/// Clients of each version over TCP and WebSocket, with a subscription and without.
fn clients(broker: &Broker) -> Vec<Conn> {
    let mut connections = Vec::new();
    for version in VERSIONS {
        for subscribes in [true, false] {
            for framed in [true, false] {
                let mut conn = match framed {
                    true => Conn::websocket(broker, version, "/mqtt", "mqtt").0,
                    false => Conn::open(broker, version),
                };
                conn.connect(&plain_connect(version, ""));
                if subscribes {
                    conn.subscribe("a/#", 1);
                }
                connections.push(conn);
            }
        }
    }
    connections
}

#[test]
fn mqtt_5_clients_get_the_reason_of_a_shutdown_and_3_1_1_is_closed() {
    for (settings, reason, reference) in [
        ("", ReasonCode::SERVER_SHUTTING_DOWN, None),
        (
            &format!("[drain]\nserver_reference = '{SERVER_REFERENCE}'\n"),
            ReasonCode::USE_ANOTHER_SERVER,
            Some(SERVER_REFERENCE.to_string()),
        ),
    ] {
        let Some(broker) = Broker::crore(settings) else {
            return;
        };
        let mut connections = clients(&broker);
        broker.server().signal("TERM");
        for conn in &mut connections {
            let expected = (conn.version == Version::V5).then(|| (reason, reference.clone()));
            assert_eq!(disconnect_of(conn), expected, "{:?}", conn.version);
        }
    }
}

#[test]
fn client_with_a_small_packet_limit_gets_only_the_reason_code() {
    let settings = format!("[drain]\nserver_reference = '{SERVER_REFERENCE}'\n");
    let Some(broker) = Broker::crore(&settings) else {
        return;
    };
    let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
        set.maximum_packet_size_bytes(20);
    });
    broker.server().signal("TERM");
    let expected = (ReasonCode::USE_ANOTHER_SERVER, None);
    assert_eq!(disconnect_of(&mut conn), Some(expected));
}

#[test]
fn connection_without_connect_is_closed_without_a_packet() {
    let Some(broker) = Broker::crore("") else {
        return;
    };
    let mut conn = Conn::open(&broker, Version::V5);
    conn.send([0x10]); // the beginning of a CONNECT
    Conn::connected(&broker, Version::V5, "other").is_served();
    broker.server().signal("TERM");
    assert_eq!(conn.read_to_end(), b"");
}

#[test]
fn will_is_published_when_a_drain_ends_its_client() {
    let state = State::new();
    let settings = state.settings();
    let Some(broker) = Broker::crore(&settings) else {
        return;
    };
    let clients = VERSIONS.map(|version| {
        let topic = format!("wills/{}", version.level());
        let mut conn = Conn::open(&broker, version);
        let mut connect = plain_connect(version, "");
        connect.will = Some(will(&topic));
        conn.connect(&connect);
        conn
    });
    broker.stop();
    drop(clients);
    // The wills that were published at the stop are in the log of the next server.
    let server = Server::with(&settings);
    for version in VERSIONS {
        let target = format!("/sub/wills/{}?since=oldest", version.level());
        let answer = once(&server, "GET", &target, &[], "");
        assert_eq!(answer.text(), "gone", "{version:?}");
    }
}
