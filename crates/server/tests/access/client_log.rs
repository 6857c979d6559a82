//! Tests the log of clients. It has a line for each event of a client that the settings choose, if the log level is `debug`.

use std::net::Shutdown;

use crore_wire::mqtt::{Packet, ReasonCode, Version, encode};
use serde_json::Value;

use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::once;
use crate::support::mqtt::{self as packets, plain_connect};
use crate::support::stream::Stream;
use crate::users::{basic, entry};

const WANTED: [(&str, &str); 1] = [("RUST_LOG", "info,clients=debug")];

/// A server with a user `ann`, and some rights for anonymous clients.
fn start(log: &str, environment: &[(&str, &str)]) -> Broker {
    let everybody = "[access.anonymous]\nsubscribe = ['news']\n";
    let settings = format!("{log}[access]\n{everybody}{}", entry("ann", "right"));
    Broker::Crore(Server::with_environment(&settings, environment))
}

/// Lets clients do one operation of each kind and leave. Stops the server, and returns its log.
fn log_of_all_operations(broker: Broker) -> String {
    let server = broker.server();
    let ann = basic("ann", "right");
    let stream = Stream::open(server, "/sub/doors/a", &[("Authorization", &ann)]);
    let wrong_password = [("Authorization", &*basic("ann", "wrong"))];
    assert_eq!(
        once(server, "POST", "/pub/doors/a", &wrong_password, "x").status,
        401
    );
    let denied = once(
        server,
        "POST",
        "/pub/elsewhere",
        &[("Authorization", &ann)],
        "x",
    );
    assert_eq!(denied.status, 403);
    let mut client = packets::Conn::open(&broker, Version::V5);
    let mut connect = plain_connect(Version::V5, "sensor-7");
    (connect.user_name, connect.password) = (Some("ann"), Some(&b"right"[..]));
    assert!(!client.connect(&connect));
    assert_eq!(client.subscribe("doors/+", 1), ReasonCode::GRANTED_QOS_1);
    assert_eq!(client.subscribe("cellar", 0), ReasonCode::NOT_AUTHORIZED);
    let mut refused_client = packets::Conn::open(&broker, Version::V5);
    let mut connect = plain_connect(Version::V5, "sensor-8");
    (connect.user_name, connect.password) = (Some("ann"), Some(&b"wrong"[..]));
    refused_client.write(|out| encode::connect(out, &connect));
    assert!(matches!(
        refused_client.packet().packet(),
        Packet::ConnAck(_)
    ));
    let _ = stream.conn.stream().shutdown(Shutdown::Both);
    drop((stream, client, refused_client));
    // Waits until each subscriber has left.
    server.await_subscribers("doors/a", 0);
    let Broker::Crore(server) = broker else {
        unreachable!("it is ours");
    };
    server.stop()
}

/// The lines of the log of clients that contain all of these words.
fn lines<'l>(log: &'l str, words: &[&str]) -> Vec<&'l str> {
    log.lines()
        .filter(|line| line.contains("DEBUG") && words.iter().all(|word| line.contains(word)))
        .collect()
}

#[test]
fn each_event_of_a_client_is_a_line_that_names_the_client() {
    let log = log_of_all_operations(start("", &WANTED));
    for words in [
        &[
            "subscribed",
            "address=127.0.0.1",
            "user=ann",
            "topic=doors/a",
        ][..],
        &["refused", "reason=", "password"],
        &["refused", "user=ann", "reason=", "publish"],
        &[
            "MQTT session opened",
            "address=127.0.0.1",
            "user=ann",
            "client=sensor-7",
        ],
        &["subscribed", "user=ann", "client=sensor-7", "topic=doors/+"],
        &[
            "refused",
            "client=sensor-7",
            "reason=SUBSCRIBE: Not authorized: cellar",
        ],
        &["refused", "reason=CONNECT: Bad User Name or Password"],
        &["disconnected", "user=ann", "client=sensor-7", "reason="],
    ] {
        assert_eq!(lines(&log, words).len(), 1, "{words:?} in\n{log}");
    }
    assert!(
        lines(&log, &[])
            .iter()
            .all(|line| line.contains("address=127.0.0.1")),
        "{log}"
    );
    // The log has a line for the start and a line for the end of each connection.
    let (connected, disconnected) = (
        lines(&log, &[" connected "]),
        lines(&log, &[" disconnected "]),
    );
    assert!(connected.len() >= 5, "{log}");
    assert_eq!(connected.len(), disconnected.len(), "{log}");
}

#[test]
fn default_level_logs_no_single_clients() {
    let log = log_of_all_operations(start("", &[]));
    assert!(!log.contains("DEBUG") && !log.contains("sensor-7"), "{log}");
}

#[test]
fn settings_choose_the_clients_whose_lines_are_logged() {
    for (log_clients, present_parts, absent_parts) in [
        ("client=sensor-7", "topic=doors/+", "topic=doors/a"),
        ("user=ann", "topic=doors/a", " connected "),
        ("address=::ffff:127.0.0.1", " connected ", "user=bob"),
        ("address=127.0.0.9", "", " connected "),
    ] {
        let log = log_of_all_operations(start(
            &format!("[log]\nclients = ['{log_clients}']\n"),
            &WANTED,
        ));
        let logged = lines(&log, &[]);
        assert!(
            logged.iter().any(|line| line.contains(present_parts)) || present_parts.is_empty(),
            "{log_clients}: {log}"
        );
        assert!(
            !logged.iter().any(|line| line.contains(absent_parts)),
            "{log_clients}: {log}"
        );
    }
}

#[test]
fn lines_are_objects_for_programs() {
    let log = log_of_all_operations(start("[log]\nformat = 'json'\n", &WANTED));
    let each = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut logged =
        each.filter(|line| line["message"] == "subscribed" && line["client"] == "sensor-7");
    let line = logged.next().unwrap_or_else(|| panic!("{log}"));
    assert_eq!(
        (&line["level"], &line["topic"]),
        (&"DEBUG".into(), &"doors/+".into())
    );
    assert_eq!(
        (&line["user"], &line["address"]),
        (&"ann".into(), &"127.0.0.1".into())
    );
}
