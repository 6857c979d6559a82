//! Clients that ask for large messages and neither read nor acknowledge them: what is there once is held once.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message};
use crore_wire::mqtt::{Version, encode};

const LARGE: usize = (1 << 20) - 100;

#[test]
fn six_thousand_subscriptions_to_a_large_retained_message_hold_it_once() {
    let Some(broker) = Broker::ours("") else {
        return;
    };
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let payload = vec![b'x'; LARGE];
    let mut retained = message("kept", 1, 1, &payload);
    retained.retain = true;
    publisher.deliver(&retained);
    let before = broker.server().pss_bytes();
    let mut hostile = Conn::connected(&broker, Version::V311, "hostile");
    // 12 bytes each: SUBSCRIBE to `kept` with QoS 0 or 1.
    let mut all = Vec::new();
    for n in 1..=6_000_u16 {
        let [high, low] = n.to_be_bytes();
        all.extend_from_slice(&[0x82, 9, high, low, 0, 4]);
        all.extend_from_slice(b"kept");
        all.push((n % 2) as u8);
    }
    hostile.send(&all);
    broker.server().never_grows(before, 64 << 20);
    publisher.deliver(&message("other", 1, 2, b"served"));
}

#[test]
fn what_ten_sessions_have_not_acknowledged_is_there_once_also_when_they_have_left() {
    let Some(broker) = Broker::ours("") else {
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
        // Each message comes to every client, and none acknowledges it.
        for conn in &mut sessions {
            assert_eq!(conn.packet().publish().payload.len(), LARGE);
        }
    }
    broker.server().never_grows(before, 128 << 20);
    drop(sessions);
    broker.server().never_grows(before, 128 << 20);
    // Messages that were sent and not acknowledged are sent again.
    let mut back = Conn::open(&broker, Version::V311);
    assert!(back.resume("session-3"), "the session is there");
    for _ in 0..60 {
        let again = back.packet();
        assert!(again.publish().dup && again.publish().payload.len() == LARGE);
    }
}
