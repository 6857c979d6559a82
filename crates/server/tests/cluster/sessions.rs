//! Tests MQTT sessions in a cluster: they end with their connections.

use crore_wire::mqtt::Version;

use crate::node;
use crate::servers::Servers;
use crate::support::mqtt::{self, Conn};
use crate::support::port;

#[test]
fn client_whose_session_ends_with_its_connection_is_named_in_the_log_once() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = node(&servers);
    let count = || port::metric(node.admin(), "crore_short_sessions_total");
    // This client asks for no lasting session.
    Conn::at(&node, Version::V311).connect(&mqtt::plain(Version::V311, "passing"));
    for name in ["lamp-1", "lamp-2"] {
        for _ in 0..3 {
            let present = Conn::at(&node, Version::V311).resume(name);
            assert!(!present, "it ended with its connection");
            node.await_log(name);
        }
    }
    assert_eq!(count(), Some(2.0));
    let log = node.log();
    let of: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("ends with the connection"))
        .collect();
    for name in ["lamp-1", "lamp-2"] {
        let lines = of.iter().filter(|it| it.contains(name));
        assert_eq!(lines.count(), 1, "{log}");
    }
    assert!(!log.contains("passing"), "{log}");
}
