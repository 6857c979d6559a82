//! Tests clients that fill the memory: they ask for large messages that they neither read nor acknowledge, or leave large sessions behind.
//! A message is stored once, and a session is charged to its address.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, id, message, plain_connect, will};
use crore_wire::mqtt::{
    Connect, Packet, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions, Version, encode,
};

const LARGE: usize = (1 << 20) - 100;

#[test]
fn large_retained_message_is_stored_once_for_six_thousand_subscriptions() {
    let Some(broker) = Broker::crore("") else {
        return;
    };
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let payload = vec![b'x'; LARGE];
    let mut retained = message("kept", 1, 1, &payload);
    retained.retain = true;
    publisher.deliver(&retained);
    let before = broker.server().pss_bytes();
    let mut hostile = Conn::connected(&broker, Version::V311, "hostile");
    // Each SUBSCRIBE to `kept`, with QoS 0 or 1, takes 12 bytes.
    let mut bytes = Vec::new();
    for n in 1..=6_000_u16 {
        let [high, low] = n.to_be_bytes();
        bytes.extend_from_slice(&[0x82, 9, high, low, 0, 4]);
        bytes.extend_from_slice(b"kept");
        bytes.push((n % 2) as u8);
    }
    hostile.send(&bytes);
    broker.server().assert_growth_below(before, 64 << 20);
    publisher.deliver(&message("other", 1, 2, b"served"));
}

#[test]
fn message_unacknowledged_by_ten_sessions_is_stored_once() {
    let Some(broker) = Broker::crore("") else {
        return;
    };
    let before = broker.server().pss_bytes();
    let mut sessions: Vec<Conn> = (0..10)
        .map(|n| {
            let mut conn = Conn::open(&broker, Version::V311);
            conn.resume(&format!("session-{n}"));
            conn.subscribe("big/#", 1);
            conn
        })
        .collect();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let payload = vec![b'x'; LARGE];
    for n in 0..60_u16 {
        let mut packet = Vec::new();
        let topic = format!("big/{n}");
        encode::publish(
            &mut packet,
            Version::V5,
            &message(&topic, 1, n + 1, &payload),
        );
        publisher.send(&packet);
        // Each client receives each message, and none acknowledges it.
        for conn in &mut sessions {
            assert_eq!(conn.packet().publish().payload.len(), LARGE);
        }
    }
    broker.server().assert_growth_below(before, 128 << 20);
    drop(sessions);
    broker.server().assert_growth_below(before, 128 << 20);
    // Unacknowledged messages are sent again.
    let mut resumed = Conn::open(&broker, Version::V311);
    assert!(resumed.resume("session-3"), "the session is there");
    for _ in 0..60 {
        let sent_again = resumed.packet();
        assert!(sent_again.publish().dup && sent_again.publish().payload.len() == LARGE);
    }
}

/// Settings for a small machine.
const SMALL: &str = "[limits]\nmemory_bytes = \"24 MiB\"\nlog_bytes = \"4 MiB\"\nbatch_bytes = \"1 MiB\"\n\
    outbox_bytes = \"1 MiB\"\n[[rule]]\nmatch = \"#\"\nlog_bytes = \"64 KiB\"\n";
/// The memory that the clients of such a server may use: both limits, and half as much again that the allocator has not returned.
const SMALL_BYTES: u64 = 42 << 20;
/// Session expiry in seconds.
const EXPIRY_S: u32 = 3600;

/// Connects from another address than the other clients, with a lasting session. Returns the reason of the CONNACK.
fn lasting(broker: &Broker, client_id: &str, will_bytes: usize) -> (Conn, ReasonCode) {
    let (mut set, mut of_will) = (PropertyWriter::new(), PropertyWriter::new());
    set.session_expiry_interval_s(EXPIRY_S);
    of_will.will_delay_interval_s(EXPIRY_S);
    let payload = vec![b'w'; will_bytes];
    let mut will = will("wills");
    (will.properties, will.payload) = (of_will.properties(), &payload);
    let connect = Connect {
        properties: set.properties(),
        will: (will_bytes > 0).then_some(will),
        ..plain_connect(Version::V5, client_id)
    };
    let mut conn = Conn::open_from(9, broker, Version::V5);
    conn.write(|out| encode::connect(out, &connect));
    // While memory is short, a packet that is not complete may end its connection without an answer.
    let Some(received) = conn.packet_or_end() else {
        return (conn, ReasonCode::QUOTA_EXCEEDED);
    };
    let Packet::ConnAck(ack) = received.packet() else {
        panic!("{:?} instead of a CONNACK", received.packet());
    };
    let reason = ack.reason;
    assert!(
        [ReasonCode::SUCCESS, ReasonCode::QUOTA_EXCEEDED].contains(&reason),
        "{reason:?}"
    );
    (conn, reason)
}

/// One client makes `many` sessions, and `leave` fills each of them. Checks that the session of another client stays and is served, and
/// that memory is bounded.
fn assert_sessions_left_behind_are_bounded(
    many: usize,
    will_bytes: usize,
    leave: impl Fn(&mut Conn, usize),
) {
    let Some(broker) = Broker::crore(SMALL) else {
        return;
    };
    let mut honest = Conn::open(&broker, Version::V311);
    assert!(!honest.resume("honest"));
    honest.subscribe("news/+", 1);
    honest.cut();
    let before = broker.server().pss_bytes();
    for n in 0..many {
        let (mut conn, reason) = lasting(&broker, &format!("left-{n}"), will_bytes);
        if reason == ReasonCode::SUCCESS {
            leave(&mut conn, n);
            conn.cut();
        }
    }
    let grown = broker.server().pss_bytes().saturating_sub(before);
    assert!(grown < SMALL_BYTES, "it has grown by {} MiB", grown >> 20);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publisher.deliver(&message("news/1", 1, 1, b"served"));
    for version in [Version::V311, Version::V5] {
        let mut fresh = Conn::open(&broker, version);
        assert!(
            !fresh.resume("fresh"),
            "a new session of one that holds little"
        );
        let options = ReasonCode::granted(Qos::AtLeastOnce);
        assert_eq!(fresh.subscribe("fresh/+", 1), options);
        publisher.deliver(&message("fresh/1", 1, 2, b"new"));
        assert_eq!(fresh.packet().publish().payload, b"new");
        fresh.leave();
        let mut gone = Conn::connected(&broker, version, "fresh");
        gone.leave();
    }
    let mut honest = Conn::open(&broker, Version::V311);
    assert!(honest.resume("honest"), "it has its session still");
    assert_eq!(honest.packet().publish().payload, b"served");
}

#[test]
fn large_wills_that_one_client_leaves_behind_take_no_more_than_the_limit() {
    assert_sessions_left_behind_are_bounded(1_200, 60_000, |_, _| {});
}

/// Subscribes to filters that no other client uses, with the maximum of levels.
fn subscribe_all(conn: &mut Conn, n: usize, group: &str) {
    let filters: Vec<String> = (0..60)
        .map(|part| {
            let levels: Vec<_> = (0..14)
                .map(|level| format!("{n:x}.{part:x}.{level:x}"))
                .collect();
            format!(
                "{}{}/+",
                group.replace('#', &format!("{n}.{part}")),
                levels.join("/")
            )
        })
        .collect();
    let options = SubscribeOptions::of(Qos::AtLeastOnce);
    let filters = filters.iter().map(|filter| (&filter[..], options));
    conn.write(|out| {
        encode::subscribe(out, Version::V5, id(1), &Properties::NONE, filters);
    });
    let received = conn.packet_or_end().expect("a SUBACK");
    assert!(
        matches!(received.packet(), Packet::SubAck(_)),
        "{:?}",
        received.packet()
    );
}

#[test]
fn long_filters_that_one_client_leaves_behind_take_no_more_than_the_limit() {
    assert_sessions_left_behind_are_bounded(1_800, 0, |conn, n| subscribe_all(conn, n, ""));
}

#[test]
fn groups_that_one_client_leaves_behind_take_no_more_than_the_limit() {
    assert_sessions_left_behind_are_bounded(800, 0, |conn, n| subscribe_all(conn, n, "$share/#/"));
}
