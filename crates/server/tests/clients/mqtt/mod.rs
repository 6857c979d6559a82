//! Tests MQTT through third-party libraries: Eclipse Paho and mqtt.js over TCP and WebSocket in both versions, and `mosquitto_pub` and
//! `mosquitto_sub`.
//!
//! A scenario expects what the specification says. It runs once for each variant (a library with a transport and a version), all on one new
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
use peer::{Library, Peer, Variant};
use std::sync::Arc;

/// Runs a scenario with every variant, in both versions.
fn for_each_variant(scenario: fn(&mut Peer)) {
    for_each_variant_of(&[4, 5], scenario);
}

/// Runs a scenario of MQTT 5 with every variant.
fn for_each_v5_variant(scenario: fn(&mut Peer)) {
    for_each_variant_of(&[5], scenario);
}

/// Runs a scenario with every variant in parallel, since most of a scenario is waiting.
fn for_each_variant_of(versions: &[u8], scenario: fn(&mut Peer)) {
    for_each_variant_on(Broker::start(), versions, scenario);
}

/// Runs a scenario with every variant in parallel, on this broker.
fn for_each_variant_on(broker: Broker, versions: &[u8], scenario: fn(&mut Peer)) {
    let broker = &Arc::new(broker);
    side_by_side(versions, |variant| {
        scenario(&mut Peer::start(variant, broker))
    });
}

/// Runs this for every variant in parallel.
fn side_by_side(versions: &[u8], run: impl Fn(Variant) + Sync) {
    let mut variants = Vec::new();
    for library in [Library::Paho, Library::MqttJs] {
        for transport in ["tcp", "ws"] {
            variants.extend(versions.iter().map(|version| Variant {
                library,
                transport,
                version: *version,
            }));
        }
    }
    let failed: Vec<Variant> = std::thread::scope(|scope| {
        let run = &run;
        let run = |variant| scope.spawn(move || run(variant));
        let runs: Vec<_> = variants
            .iter()
            .map(|variant| (*variant, run(*variant)))
            .collect();
        runs.into_iter()
            .filter_map(|(variant, run)| run.join().is_err().then_some(variant))
            .collect()
    });
    assert!(failed.is_empty(), "failed: {failed:#?}");
}
