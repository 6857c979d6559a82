//! A server that stops tells its clients so in MQTT's words (MQTT 5.0 sections 3.14.2.1 and 3.14.2.2.5); 3.1.1 has none.

use crate::broker::Broker;
use crate::conn::{Conn, VERSIONS, plain, will};
use crate::support::Server;
use crore_wire::mqtt::{Packet, PropertyBuf, ReasonCode, Version};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Where clients are sent.
const ELSEWHERE: &str = "b.example:1883 c.example";

/// A server of ours with these settings; none where the tests run against another broker.
fn ours(settings: &str) -> Option<Broker> {
    Some(Broker::with(settings)).filter(Broker::is_ours)
}

/// Asks it to stop.
fn terminate(broker: &Broker) {
    if let Broker::Crore(server) = broker {
        server.signal("TERM");
    }
}

/// What a client is told at the end: the reason and where to go, or nothing.
fn told(conn: &mut Conn) -> Option<(ReasonCode, Option<String>)> {
    let got = conn.packet_or_end()?;
    let said = match got.packet() {
        Packet::Disconnect(it) => {
            let reference = it.properties.server_reference().map(str::to_string);
            (it.reason, reference)
        }
        other => panic!("{other:?} is no farewell"),
    };
    assert!(conn.packet_or_end().is_none(), "more behind a DISCONNECT");
    Some(said)
}

/// Clients of each version and door, with a subscription and without.
fn clients(broker: &Broker) -> Vec<Conn> {
    let mut all = Vec::new();
    for version in VERSIONS {
        for subscribes in [true, false] {
            for framed in [true, false] {
                let mut conn = match framed {
                    true => Conn::websocket(broker, version, "/mqtt", "mqtt").0,
                    false => Conn::open(broker, version),
                };
                conn.connect(&plain(version, ""));
                if subscribes {
                    conn.subscribe("a/#", 1);
                }
                all.push(conn);
            }
        }
    }
    all
}

#[test]
fn version_5_is_told_that_the_server_shuts_down_or_which_to_use_and_3_1_1_is_closed() {
    for (settings, reason, reference) in [
        ("", ReasonCode::SERVER_SHUTTING_DOWN, None),
        (
            &format!("[drain]\nserver_reference = '{ELSEWHERE}'\n"),
            ReasonCode::USE_ANOTHER_SERVER,
            Some(ELSEWHERE.to_string()),
        ),
    ] {
        let Some(broker) = ours(settings) else { return };
        let mut all = clients(&broker);
        terminate(&broker);
        for conn in &mut all {
            let expected = (conn.version == Version::V5).then(|| (reason, reference.clone()));
            assert_eq!(told(conn), expected, "{:?}", conn.version);
        }
    }
}

#[test]
fn a_client_that_takes_small_packets_only_is_told_the_reason_alone() {
    let settings = format!("[drain]\nserver_reference = '{ELSEWHERE}'\n");
    let Some(broker) = ours(&settings) else {
        return;
    };
    let mut conn = Conn::open(&broker, Version::V5);
    let mut properties = PropertyBuf::new();
    properties.maximum_packet_size_bytes(20);
    let mut connect = plain(Version::V5, "it");
    connect.properties = properties.properties();
    conn.connect(&connect);
    terminate(&broker);
    let expected = (ReasonCode::USE_ANOTHER_SERVER, None);
    assert_eq!(told(&mut conn), Some(expected));
}

#[test]
fn who_has_not_said_connect_is_closed_without_a_word() {
    let Some(broker) = ours("") else { return };
    let mut conn = Conn::open(&broker, Version::V5);
    conn.send([0x10]); // the beginning of a CONNECT
    Conn::connected(&broker, Version::V5, "other").is_served();
    terminate(&broker);
    assert_eq!(conn.rest(), b"");
}

#[test]
fn a_will_is_published_when_its_client_is_moved_off() {
    let name = format!("crore-test-drain-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let settings = format!("[state]\ndirectory = {directory:?}\n");
    let Some(broker) = ours(&settings) else {
        return;
    };
    let clients = VERSIONS.map(|version| {
        let topic = format!("wills/{}", version.level());
        let mut conn = Conn::open(&broker, version);
        let mut connect = plain(version, "");
        connect.will = Some(will(&topic));
        conn.connect(&connect);
        conn
    });
    terminate(&broker);
    let Broker::Crore(server) = broker else {
        return;
    };
    server.ended();
    drop(clients);
    // What was published then is in the log of the next server.
    let server = Server::with(&settings);
    for version in VERSIONS {
        let request = format!(
            "GET /sub/wills/{}?since=oldest HTTP/1.0\r\nHost: {}\r\n\r\n",
            version.level(),
            server.address()
        );
        let mut stream = TcpStream::connect(server.address()).expect("a connection");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("\r\n\r\ngone"), "{version:?}: {answer}");
    }
    drop(server);
    let _ = std::fs::remove_dir_all(&directory);
}
