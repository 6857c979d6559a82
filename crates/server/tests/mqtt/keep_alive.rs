//! Silence, and what ends it.

use crate::broker::Broker;
use crate::conn::{Conn, VERSIONS, plain, will};
use crore_wire::mqtt::{Packet, ReasonCode, Version};
use std::time::{Duration, Instant};

/// Connected with a keep alive of one second and a will.
fn mortal(broker: &Broker, version: Version, client_id: &str) -> Conn {
    let mut connect = plain(version, client_id);
    connect.keep_alive_s = 1;
    connect.will = Some(will("w"));
    let mut conn = Conn::open(broker, version);
    conn.connect(&connect);
    conn
}

#[test]
fn who_is_silent_for_one_and_a_half_times_is_ended() {
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("w", 0);
    for version in VERSIONS {
        let mut conn = mortal(&broker, version, "it");
        let started = Instant::now();
        let wanted = (version == Version::V5).then_some(ReasonCode::KEEP_ALIVE_TIMEOUT);
        assert_eq!(conn.end(), wanted);
        let after = started.elapsed();
        assert!(after > Duration::from_millis(1400), "too early: {after:?}");
        assert!(after < Duration::from_secs(5), "too late: {after:?}");
        assert_eq!(
            watcher.packet().publish().payload,
            b"gone",
            "it leaves its will"
        );
    }
}

#[test]
fn who_pings_stays() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = mortal(&broker, version, "it");
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(700));
            assert!(conn.is_served());
        }
    }
}

#[test]
fn what_the_server_sends_does_not_keep_the_client_alive() {
    let broker = Broker::start();
    let mut conn = mortal(&broker, Version::V5, "it");
    conn.subscribe("t", 0);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        publisher.publish(&crate::conn::message("t", 0, 0, b"x"));
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(conn.end(), Some(ReasonCode::KEEP_ALIVE_TIMEOUT));
}

#[test]
fn a_packet_that_does_not_go_on_does_not_keep_its_client_alive() {
    let broker = Broker::start();
    let mut conn = mortal(&broker, Version::V311, "it");
    let started = Instant::now();
    // Bytes of a PUBLISH that never ends.
    conn.send(b"\x30\x7f\0\x01a");
    while started.elapsed() < Duration::from_secs(1) {
        conn.send(b"x");
        std::thread::sleep(Duration::from_millis(200));
    }
    conn.end();
    assert!(started.elapsed() < Duration::from_secs(8));
}

#[test]
fn without_a_keep_alive_nobody_is_ended() {
    let broker = Broker::start();
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    std::thread::sleep(Duration::from_secs(3));
    conn.ping();
    assert!(matches!(conn.packet().packet(), Packet::PingResp));
}
