//! Clients are moved off at the rate of the settings, however many shards share it.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};
use proptest::prelude::*;

/// Clients of each shard: more than are moved off here.
const CLIENTS: u32 = 60;
/// The first second in which nobody was heard for so long that a request is not to be expected.
const BEGIN_S: u32 = 10;

/// Sockets that take everything, and count those that are closed.
#[derive(Default)]
struct Sockets {
    last: Option<ConnId>,
    closed: usize,
}

impl Io for Sockets {
    fn open(&mut self, _: Link, conn: ConnId) {
        self.last = Some(conn);
    }
    fn send(&mut self, _: Link, parts: &[&[u8]]) -> usize {
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, how: Close) {
        // What follows is only the end of its socket.
        self.closed += usize::from(how == Close::Drain);
    }
    fn post(&mut self, _: ShardId, _: Mail) {}
}

fn now(s: u32) -> Now {
    Now {
        s,
        unix_s: 1_800_000_000 + s,
    }
}

/// A shard with clients that are connected and ask for nothing.
fn shard(id: ShardId, world: &Arc<World>) -> (Shard, Sockets) {
    let mut shard = Shard::new(id, world.clone(), now(1));
    let mut sockets = Sockets::default();
    for n in 0..CLIENTS {
        let accepted = Input::Accepted(Link(n), [127, 0, 0, 1].into());
        shard.handle(accepted, now(1), &mut sockets);
        let conn = sockets.last.expect("there is room");
        let mut request = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
        shard.handle(Input::Received(conn, &mut request), now(1), &mut sockets);
    }
    shard.flush(now(1), &mut sockets);
    assert_eq!(sockets.closed, 0, "they are kept alive");
    (shard, sockets)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_shards_together_move_off_no_more_than_the_rate(rate in 1u32..20, shards in 1u16..20, seconds in 1u32..4) {
        let mut settings = Settings::default();
        settings.drain.rate_per_s = rate;
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            admission: Admission::new(&settings, 9),
            settings,
            shards,
            homes: 1,
            epoch: 7,
            seed: 42,
        });
        let mut all: Vec<_> = (0..shards).map(|id| shard(id, &world)).collect();
        for (shard, _) in &mut all {
            shard.drain(now(BEGIN_S));
        }
        let ticks = 1000 / all[0].0.tick_in_ms().expect("it drains");
        for second in 0..seconds {
            for (shard, sockets) in &mut all {
                for _ in 0..ticks {
                    shard.handle(Input::Tick, now(BEGIN_S + second), sockets);
                }
            }
        }
        let moved: usize = all.iter().map(|(_, sockets)| sockets.closed).sum();
        prop_assert_eq!(moved, (rate * seconds) as usize);
    }
}
