//! Tests durable sessions (`state.durable_sessions`) over `kill -9` of the server: of a client that was away, and of one that reconnects by
//! itself.

use super::peer::{Peer, Variant};
use super::side_by_side;
use crate::servers::Servers;
use crate::support::broker::Broker;
use crate::support::hold_port;
use crate::support::state::State;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// A session expiry that is longer than any test takes.
const LONG_S: u32 = 600;
/// The number of messages before the crash, and after it.
const MESSAGES: usize = 10;

/// A server at this address whose sessions survive a crash. `None` if the tests run against the reference.
pub fn start(state: &State, address: SocketAddr) -> Option<Broker> {
    let settings = state.settings();
    Broker::crore_at(&settings, address)
}

/// A node of a cluster at this address, whose sessions survive it. `None` if the tests run against the reference.
pub fn start_node(servers: &Servers, address: SocketAddr) -> Option<Broker> {
    let settings = format!(
        "[cluster]\nurls = {:?}\nname = \"test\"\nreplicas = 1\n",
        servers.urls()
    );
    Broker::crore_at(&settings, address)
}

/// Publishes these numbers, the even ones to a topic with QoS 1 and the odd ones to another topic with QoS 2.
fn publish(peer: &mut Peer, numbers: Range<usize>) {
    peer.connect("publisher", json!({}));
    for number in numbers {
        let (topic, qos) = [("a", 1), ("b/c", 2)][number % 2];
        let reason = peer.publish("publisher", topic, &number.to_string(), qos);
        assert_eq!(reason, 0);
    }
    peer.disconnect("publisher");
}

/// Receives all numbers. They must come in order in each topic. Those of QoS 1 may come again if `repeats`.
fn receive_all(peer: &Peer, client: &str, repeats: bool) {
    let mut received: [BTreeSet<usize>; 2] = Default::default();
    while received[0].len() + received[1].len() < 2 * MESSAGES {
        let message = peer.message(client);
        let number: usize = message.data.parse().expect("a number");
        let of_topic = &mut received[number % 2];
        let newest = of_topic.last().copied();
        let is_new = of_topic.insert(number);
        let case = format!("{:?} {client}: {message:?} after {newest:?}", peer.variant);
        assert!(is_new || repeats && message.qos == 1, "{case}");
        assert!(!is_new || newest.is_none_or(|it| number > it), "{case}");
    }
    peer.expect_quiet(client);
}

/// Kills the server while one client is connected and another is away. Both resume their sessions at the server that `restart_broker` starts.
fn go_on_after_a_kill(variant: Variant, restart_broker: impl Fn() -> Option<Broker>) {
    let Some(broker) = restart_broker() else {
        return;
    };
    let mut peer = Peer::start(variant, &Arc::new(broker));
    for client in ["stays", "away"] {
        let properties = json!({ "session_expiry_s": LONG_S });
        let reconnect = client == "stays";
        let options = json!({ "clean": false, "reconnect": reconnect, "properties": properties });
        peer.connect(client, options);
        peer.subscribe(client, &[("a", 1), ("b/+", 2)]);
    }
    peer.disconnect("away");
    publish(&mut peer, 0..MESSAGES);
    peer.crash_server(|| restart_broker().expect("a server of ours"));
    publish(&mut peer, MESSAGES..2 * MESSAGES);
    assert!(peer.connect_session("away", false, LONG_S), "{variant:?}");
    receive_all(&peer, "away", false);
    let connack = peer.next_event("stays", "connack");
    assert_eq!(connack["session_present"], true, "{variant:?}: {connack}");
    receive_all(&peer, "stays", true);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn sessions_go_on_after_the_server_was_killed() {
    side_by_side(&[4, 5], |variant| {
        let (state, port) = (State::new(), hold_port());
        go_on_after_a_kill(variant, || start(&state, port.addr()));
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn sessions_go_on_at_another_node_after_theirs_was_killed() {
    side_by_side(&[4, 5], |variant| {
        let Some(servers) = Servers::start(1) else {
            return;
        };
        let port = hold_port();
        // The other node has the address of the first, where the clients reconnect.
        go_on_after_a_kill(variant, || start_node(&servers, port.addr()));
    });
}
