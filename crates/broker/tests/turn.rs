//! What bounds a turn: past its share of publishing a shard asks to read no more until it has flushed.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};
use proptest::prelude::*;

/// One socket that takes everything.
#[derive(Default)]
struct Socket(Option<ConnId>);

impl Io for Socket {
    fn open(&mut self, _: Link, conn: ConnId) {
        self.0 = Some(conn);
    }
    fn send(&mut self, _: Link, parts: &[&[u8]]) -> usize {
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, _: Close) {}
    fn post(&mut self, _: ShardId, _: Mail) {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_turn_is_spent_by_what_is_published_and_begins_anew(share in 1u32..30, batches in prop::collection::vec(1u32..20, 1..6)) {
        let settings = Settings::default();
        let world = World {
            rules: Rules::new(&settings.rules),
            admission: Admission::new(&settings, 9),
            settings,
            shards: 1,
            homes: 1,
            epoch: 7,
            seed: 42,
        };
        let now = Now { s: 1, unix_s: 1_800_000_000 };
        let mut shard = Shard::new(0, Arc::new(world), now);
        shard.set_pace(crore_broker::pace::Pace { publishes_per_turn: share, ..Default::default() });
        let mut socket = Socket::default();
        shard.handle(Input::Accepted(Link(1), [127, 0, 0, 1].into()), now, &mut socket);
        let conn = socket.0.expect("there is room");
        let mut published = 0;
        for lines in batches {
            let body = "{\"topic\":\"t\",\"data\":\"x\"}\n".repeat(lines as usize);
            let request = format!(
                "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            shard.handle(Input::Received(conn, &mut request.into_bytes()), now, &mut socket);
            published += lines;
            prop_assert_eq!(shard.is_spent(), published >= share);
            if shard.is_spent() {
                shard.flush(now, &mut socket);
                prop_assert!(!shard.is_spent());
                published = 0;
            }
        }
    }
}
