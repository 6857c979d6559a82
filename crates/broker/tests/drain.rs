//! Tests that a drain closes connections at the rate in the settings. The shards share this rate.

use std::sync::Arc;

use crore_broker::settings::Settings;
use crore_broker::{Input, Now, Shard, World};
use proptest::prelude::*;
use support::TestServer;

mod support;

/// Number of clients of each shard: more than the test closes.
const CLIENTS: u32 = 60;
/// The first second in which all clients have been idle long enough to be closed.
const BEGIN_S: u32 = 10;

fn now(s: u32) -> Now {
    Now {
        s,
        unix_s: 1_800_000_000 + s,
    }
}

/// Shards with idle clients.
fn server(world: &Arc<World>) -> TestServer {
    let shards = (0..world.shards).map(|id| Shard::new(id, world.clone(), now(1)));
    let mut server = TestServer::from_shards(shards.collect(), now(1));
    for shard in 0..server.shards.len() {
        for _ in 0..CLIENTS {
            let conn = server.open(shard);
            server.send(conn, b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        server.flush(shard);
    }
    assert_eq!(ended(&server), 0, "they are kept alive");
    server
}

/// Number of closed clients.
fn ended(server: &TestServer) -> usize {
    let sockets = server.io.iter().flat_map(|io| &io.sockets);
    sockets.filter(|socket| socket.ended).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shards_share_the_rate_of_a_drain(rate in 1u32..20, shards in 1u16..20, seconds in 1u32..4) {
        let mut settings = Settings::default();
        settings.drain.rate_per_s = rate;
        let mut server = server(&support::world(settings, shards, 1));
        for shard in &mut server.shards {
            shard.drain(now(BEGIN_S));
        }
        let ticks = 1000 / server.shards[0].ms_until_tick().expect("it drains");
        for second in 0..seconds {
            server.now = now(BEGIN_S + second);
            for at in 0..usize::from(shards) {
                (0..ticks).for_each(|_| server.handle(at, Input::Tick));
            }
        }
        prop_assert_eq!(ended(&server), (rate * seconds) as usize);
    }
}
