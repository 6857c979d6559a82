//! Tests MQTT through third-party libraries: Eclipse Paho and mqtt.js over TCP and WebSocket in both versions, and `mosquitto_pub` and
//! `mosquitto_sub`.
//!
//! A scenario expects what the specification says. It runs once for each way (a library with a transport and a version), all on one new
//! broker. If the environment has `CRORE_MQTT_REFERENCE=/usr/sbin/mosquitto`, the same scenarios run against that broker. Malformed input
//! is tested elsewhere, since these libraries cannot send it.

mod access;
mod commands;
mod crash;
mod delivery;
mod doors;
mod five;
mod peer;
mod properties;
mod sessions;
mod shared;
mod wills;

use crate::support::broker::Broker;
use peer::{Library, Peer, Way};
use std::sync::Arc;

/// Runs a scenario with every way, in both versions.
fn each(scenario: fn(&mut Peer)) {
    over(&[4, 5], scenario);
}

/// Runs a scenario of MQTT 5 with every way.
fn each_five(scenario: fn(&mut Peer)) {
    over(&[5], scenario);
}

/// Runs a scenario with every way in parallel, since most of a scenario is waiting.
fn over(versions: &[u8], scenario: fn(&mut Peer)) {
    on(Broker::start(), versions, scenario);
}

/// Runs a scenario with every way in parallel, on this broker.
fn on(broker: Broker, versions: &[u8], scenario: fn(&mut Peer)) {
    let broker = &Arc::new(broker);
    side_by_side(versions, |way| scenario(&mut Peer::start(way, broker)));
}

/// Runs this for every way in parallel.
fn side_by_side(versions: &[u8], run: impl Fn(Way) + Sync) {
    let mut ways = Vec::new();
    for library in [Library::Paho, Library::MqttJs] {
        for door in ["tcp", "ws"] {
            ways.extend(versions.iter().map(|version| Way {
                library,
                door,
                version: *version,
            }));
        }
    }
    let failed: Vec<Way> = std::thread::scope(|scope| {
        let run = &run;
        let run = |way| scope.spawn(move || run(way));
        let runs: Vec<_> = ways.iter().map(|way| (*way, run(*way))).collect();
        runs.into_iter()
            .filter_map(|(way, run)| run.join().is_err().then_some(way))
            .collect()
    });
    assert!(failed.is_empty(), "failed: {failed:#?}");
}
