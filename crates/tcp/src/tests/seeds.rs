//! Seeds: streams of any length both ways over a network with any faults arrive byte for byte.

use alloc::vec::Vec;

use crore_rng::Rng;

use super::network::{App, CALM, Faults, World};
use crate::Config;

/// The settings of an endpoint of this seed.
fn config(rng: &mut Rng) -> Config {
    Config {
        receive_log2: rng.pick(&[10, 14, 16, 18, 20]),
        send_bytes: rng.pick(&[2_000, 64 << 10, 1 << 20]),
        share_bytes: rng.pick(&[1, 500, 5_000]),
        ranges: rng.pick(&[1, 4, 32]),
        ack_delay_us: rng.pick(&[0, 10_000, 40_000]),
        packet_bytes: rng.pick(&[1_280, 1_500, 1_500, 9_000]),
        // So that a network which loses 30 % of all packets does not end a connection.
        retries: 40,
        syn_retries: 40,
        rto_max_us: 8_000_000,
        hold_ms: 3_600_000,
        ..Config::default()
    }
}

fn app(rng: &mut Rng) -> App {
    let bytes = rng.pick(&[0, 1, 100, 1_460, 10_000, 60_000, 200_000]);
    let salt = rng.draw();
    let stream = (0..bytes)
        .map(|n: u64| ((n.wrapping_mul(salt | 1)) >> 13) as u8)
        .collect::<Vec<u8>>();
    App {
        read_bytes: rng.pick(&[300, 5_000, 100_000]),
        read_chance: rng.pick(&[30, 100, 100]),
        shares: rng.pick(&[0, 50, 100]),
        ..App::new(stream)
    }
}

/// The world of a seed.
pub fn world(seed: u64) -> World {
    let mut rng = Rng::new(seed);
    let faults = Faults {
        loss: rng.pick(&[0, 1, 5, 30]),
        double: rng.pick(&[0, 2, 20]),
        corrupt: rng.pick(&[0, 0, 2]),
        late: rng.pick(&[0, 5, 30]),
        delay_us: rng.pick(&[50, 1_000, 20_000]),
        mtu: rng.pick(&[0, 0, 3]),
        full: rng.pick(&[0, 0, 20]),
        dark_s: rng.pick(&[0, 0, 20]),
    };
    let is_v6 = rng.chance(30);
    let configs = [config(&mut rng), config(&mut rng)];
    let mut apps = [app(&mut rng), app(&mut rng)];
    // A server that speaks first would wait for a third packet that was lost.
    if apps[0].sends.is_empty() {
        apps[0].sends.push(7);
    }
    let (limited, limit) = (rng.below(2), rng.pick(&[usize::MAX, usize::MAX, 40_000]));
    if limit < usize::MAX {
        // An account that is full of bytes to send has no room for those that arrive.
        apps[limited].sends.truncate(10_000);
    }
    let mut world = World::new(rng.draw(), is_v6, configs, apps, faults);
    world.sides[limited].account.limit = limit;
    world
}

/// Runs a seed.
pub fn run(seed: u64) -> Result<(), &'static str> {
    let mut world = world(seed);
    if !world.run(3_600) {
        return world.verdict().and(Err("the streams have not ended"));
    }
    world.verdict()?;
    // After the last packets all memory is given back.
    world.network.faults = CALM;
    for side in 0..2 {
        if let Some(conn) = world.apps[side].conn.take() {
            let mut device = super::network::Packets::default();
            world.sides[side].close(conn, world.now_us, &mut device);
            for packet in device.list {
                world.post(side, packet);
            }
        }
    }
    world.pass(400);
    for side in &world.sides {
        if side.account.total != 0 {
            return Err("bytes stay charged");
        }
        if !side.is_empty() || side.transfer_count() != 0 {
            return Err("a connection is never over");
        }
    }
    world.verdict()
}

#[test]
fn streams_arrive_byte_for_byte_over_any_network() {
    for seed in 0..1_500 {
        if let Err(why) = run(seed) {
            let world = world(seed);
            panic!("seed {seed}: {why}; {:?}", world.network.faults);
        }
    }
}
