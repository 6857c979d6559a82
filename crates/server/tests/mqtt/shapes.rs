//! Tests filters with three or more `+` in absent sessions. The shape of a filter is the set of levels that have a `+`; the number of
//! shapes is limited. An address that uses many shapes must leave those that the sessions of another address need.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message};
use crate::support::state::State;
use crate::support::{Server, wildcard_filters};
use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{Qos, ReasonCode, Version};

/// The last byte of the address that has many sessions.
const GREEDY: u8 = 2;
/// Number of filters, each with its own shape: more than the limit.
const MANY: usize = 400;
/// The server keeps a message only for subscriptions that need it.
const RULE: &str = "[[rule]]\nmatch = \"#\"\nlog_messages = 0\n";

/// Makes sessions of the greedy address for all filters except the last. Returns the last filter and the number of refused subscriptions.
fn leave_sessions(broker: &Broker, share: &str) -> (String, usize) {
    let shapes = wildcard_filters("+", MANY + 1);
    let (last, first) = shapes.split_last().expect("they are many");
    let mut refused = 0;
    for (n, filters) in first.chunks(32).enumerate() {
        let mut conn = Conn::open_from(GREEDY, broker, Version::V5);
        conn.resume(&format!("greedy {n}"));
        for filter in filters {
            let reason = conn.subscribe(&format!("{share}{filter}"), 1);
            refused += usize::from(reason.is_error());
        }
        conn.leave();
    }
    (last.clone(), refused)
}

/// Publishes three messages that the filter matches.
fn publish(broker: &Broker, filter: &str) {
    let mut publisher = Conn::connected(broker, Version::V5, "publisher");
    for (n, level) in (1..).zip(["a", "b", "c"]) {
        let topic = filter.replace('+', level);
        publisher.deliver(&message(&topic, 1, n, level.as_bytes()));
    }
    publisher.leave();
}

/// Checks that the session is present, and receives the three messages and nothing else.
fn assert_missed_nothing(broker: &Broker, version: Version, client: &str) {
    let mut conn = Conn::open(broker, version);
    assert!(conn.resume(client), "the session is there");
    let mut payloads: Vec<_> = (0..3)
        .map(|_| {
            let received = conn.packet();
            let publish = received.publish();
            conn.acknowledge(PubAck, publish.packet_id.expect("it has QoS 1").get());
            publish.payload.to_vec()
        })
        .collect();
    payloads.sort();
    assert_eq!(payloads, [b"a", b"b", b"c"]);
    assert!(conn.is_served(), "and nothing else");
    conn.leave();
}

fn at_least_once() -> ReasonCode {
    ReasonCode::granted(Qos::AtLeastOnce)
}

#[test]
fn filter_shapes_of_one_address_do_not_cost_sessions_of_another_messages() {
    for (shards, version) in [(1, VERSIONS[0]), (2, VERSIONS[1])] {
        let broker = Broker::Crore(Server::with_shards(shards, RULE));
        let (filter, refused) = leave_sessions(&broker, "");
        assert_eq!(refused, 0, "each connection has few");
        let mut conn = Conn::open(&broker, version);
        conn.resume("modest");
        assert_eq!(conn.subscribe(&filter, 1), at_least_once());
        conn.leave();
        publish(&broker, &filter);
        assert_missed_nothing(&broker, version, "modest");
    }
}

#[test]
fn session_that_subscribes_later_misses_nothing() {
    let broker = Broker::Crore(Server::with_shards(1, RULE));
    let (filter, _) = leave_sessions(&broker, "");
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("modest");
    conn.subscribe(&filter, 0);
    assert_eq!(conn.subscribe(&filter, 1), at_least_once());
    conn.leave();
    publish(&broker, &filter);
    assert_missed_nothing(&broker, Version::V5, "modest");
}

#[test]
fn groups_of_the_sessions_of_one_address_leave_room_for_one_of_another() {
    for shards in [1, 2] {
        let broker = Broker::Crore(Server::with_shards(shards, RULE));
        let (filter, refused) = leave_sessions(&broker, "$share/g/");
        assert!(refused > 0, "it has its share");
        let mut conn = Conn::open(&broker, Version::V5);
        conn.resume("modest");
        let reason = conn.subscribe(&format!("$share/g/{filter}"), 1);
        assert_eq!(reason, at_least_once());
        conn.leave();
        publish(&broker, &filter);
        assert_missed_nothing(&broker, Version::V5, "modest");
    }
}

#[test]
fn sessions_miss_nothing_across_a_restart_however_many_shapes_there_are() {
    let state = State::new();
    let settings = state.settings() + RULE;
    let Some(broker) = Broker::crore(&settings) else {
        return;
    };
    let (filter, _) = leave_sessions(&broker, "");
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("modest");
    assert_eq!(conn.subscribe(&filter, 1), at_least_once());
    conn.leave();
    broker.stop();
    let broker = Broker::crore(&settings).expect("a server of ours");
    publish(&broker, &filter);
    assert_missed_nothing(&broker, Version::V5, "modest");
}
