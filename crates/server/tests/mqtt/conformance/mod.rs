//! Tests statements of the specifications that no other test covers. docs/internals/MQTT-CONFORMANCE.md names these tests.

mod connections;
mod messages;
mod sessions;
mod subscriptions;

use crate::support::mqtt::{Conn, id};
use crore_wire::mqtt::{
    Packet, Properties, Qos, ReasonCode, RetainHandling, SubscribeOptions, encode,
};

/// Subscribes to several filters in one packet. Returns the reason codes.
fn subscribe_all(conn: &mut Conn, filters: &[(&str, u8)]) -> Vec<ReasonCode> {
    let version = conn.version;
    conn.write(|out| {
        let filters = filters.iter().map(|(filter, qos)| {
            let qos = Qos::from_repr(*qos).expect("a QoS");
            (*filter, SubscribeOptions::of(qos))
        });
        encode::subscribe(out, version, id(777), &Properties::default(), filters);
    });
    match conn.packet().packet() {
        Packet::SubAck(suback) => {
            assert_eq!(suback.packet_id, id(777));
            suback.reasons.iter().collect()
        }
        other => panic!("a SUBACK is due, {other:?} came"),
    }
}

/// Unsubscribes from several filters in one packet. Returns the reason codes, which 3.1.1 does not have.
fn unsubscribe_all(conn: &mut Conn, filters: &[&str]) -> Vec<ReasonCode> {
    let version = conn.version;
    conn.write(|out| {
        let filters = filters.iter().copied();
        encode::unsubscribe(out, version, id(778), &Properties::default(), filters);
    });
    match conn.packet().packet() {
        Packet::UnsubAck(unsuback) => {
            assert_eq!(unsuback.packet_id, id(778));
            unsuback.reasons.iter().collect()
        }
        other => panic!("an UNSUBACK is due, {other:?} came"),
    }
}

/// Subscribes without retained messages.
fn subscribe_without_retained(conn: &mut Conn, filter: &str, qos: u8) {
    let version = conn.version;
    let mut options = SubscribeOptions::of(Qos::from_repr(qos).expect("a QoS"));
    options.retain_handling = RetainHandling::DoNotSend;
    conn.write(|out| {
        let filters = std::iter::once((filter, options));
        encode::subscribe(out, version, id(779), &Properties::default(), filters);
    });
    assert!(matches!(conn.packet().packet(), Packet::SubAck(_)));
}

/// Receives the next packet, which must be a PUBLISH with this payload. Returns the packet id.
fn receive(conn: &mut Conn, payload: &[u8]) -> u16 {
    let received = conn.packet();
    let publish = received.publish();
    assert_eq!(
        publish.payload,
        payload,
        "{:?}",
        String::from_utf8_lossy(publish.payload)
    );
    publish.packet_id.map_or(0, |id| id.get())
}

/// The directories of the tests that the checklist names.
const TESTS: [&str; 7] = [
    "../wire/tests",
    "../wire/tests/mqtt_errors",
    "../wire/tests/mqtt_properties",
    "tests/mqtt",
    "tests/mqtt/conformance",
    "tests/clients/mqtt",
    "tests/access",
];

#[test]
fn the_checklist_names_tests_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let checklist = std::fs::read_to_string(root.join("../../docs/internals/MQTT-CONFORMANCE.md"))
        .expect("the checklist");
    let mut source = String::new();
    for directory in TESTS {
        for file in std::fs::read_dir(root.join(directory)).expect("a directory") {
            let path = file.expect("a file").path();
            if path.extension().is_some_and(|end| end == "rs") {
                let module_path = match path.ends_with("main.rs") {
                    true => path.parent().expect("a directory"),
                    false => &path,
                };
                let module = module_path.file_stem().expect("a name").to_string_lossy();
                let text = std::fs::read_to_string(&path).expect("text");
                let functions = text
                    .lines()
                    .filter_map(|line| line.trim_start().strip_prefix("fn "));
                for line in functions {
                    let name = line.split('(').next().expect("a name");
                    source.push_str(&format!("{module}::{name}\n"));
                }
            }
        }
    }
    let mut statements = 0;
    let mut wrong = Vec::new();
    for line in checklist
        .lines()
        .filter(|line| line.starts_with("| [MQTT-"))
    {
        statements += 1;
        let tests_column = line.trim_end_matches([' ', '|']).rsplit(" | ").next();
        let tests_column = tests_column.expect("a last column");
        if tests_column.is_empty() || tests_column.ends_with("open") {
            wrong.push(line.to_string());
        }
        for test in tests_column.split('`').skip(1).step_by(2) {
            let mut parts = test.rsplitn(3, "::");
            let (name, module) = (parts.next(), parts.next());
            if let (Some(name), Some(module)) = (name, module)
                && !source.contains(&format!("{module}::{name}\n"))
            {
                wrong.push(format!("{test} in {line}"));
            }
        }
    }
    assert_eq!(statements, 251 + 141);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
