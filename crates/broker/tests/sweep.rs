//! The sweep for deadlines: spread over the second, in steps of a bounded number of connections.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Pace, Shard, ShardId, World};
use proptest::prelude::*;

/// Sockets that take everything; what is remembered is who was answered.
#[derive(Default)]
struct Sockets(Vec<u32>);

impl Io for Sockets {
    fn open(&mut self, _: Link, _: ConnId) {}
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        self.0.push(link.0);
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, _: Close) {}
    fn post(&mut self, _: ShardId, _: Mail) {}
}

fn moment(ms: u32) -> Now {
    Now {
        s: ms / 1000 + 1,
        unix_s: 1_800_000_000 + ms / 1000,
    }
}

fn shard(rows_per_tick: u32, head_s: u32) -> Shard {
    let mut settings = Settings::default();
    settings.timeouts.head_s = head_s;
    let world = World {
        rules: Rules::new(&settings.rules),
        admission: Admission::new(&settings, 9),
        settings,
        shards: 1,
        homes: 1,
        epoch: 7,
        seed: 42,
    };
    let mut shard = Shard::new(0, Arc::new(world), moment(0));
    shard.set_pace(Pace {
        rows_per_tick,
        ..Pace::default()
    });
    shard
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Connections that never finish their head: each is answered once, within two seconds of its deadline, few in
    /// one tick, and the ticks of a sweep fit into its second.
    #[test]
    fn deadlines_are_met_a_few_at_a_time(count in 1u32..200, rows_per_tick in 1u32..40, head_s in 1u32..4) {
        let mut shard = shard(rows_per_tick, head_s);
        let mut sockets = Sockets::default();
        for link in 0..count {
            shard.handle(Input::Accepted(Link(link), [127, 0, 0, 1].into()), moment(0), &mut sockets);
        }
        let (mut ms, mut answered) = (0, Vec::new());
        while ms < (head_s + 2) * 1000 {
            shard.handle(Input::Tick, moment(ms), &mut sockets);
            let news = std::mem::take(&mut sockets.0);
            prop_assert!(news.len() <= rows_per_tick as usize);
            prop_assert!(news.is_empty() || ms >= head_s * 1000 - 1000);
            answered.extend(news);
            let second = ms / 1000;
            ms = shard.tick_in_ms().map_or((second + 1) * 1000, |wait| ms + wait);
            prop_assert!(ms / 1000 == second || shard.tick_in_ms().is_none(), "a sweep takes longer than its second");
        }
        answered.sort_unstable();
        prop_assert_eq!(answered, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_sweep_that_is_over_asks_for_nothing_until_the_next_second() {
    let mut shard = shard(2, 9);
    let mut sockets = Sockets::default();
    for link in 0..5 {
        shard.handle(
            Input::Accepted(Link(link), [127, 0, 0, 1].into()),
            moment(0),
            &mut sockets,
        );
    }
    assert_eq!(shard.tick_in_ms(), None);
    for wait in [Some(250), Some(250), None, None] {
        shard.handle(Input::Tick, moment(1000), &mut sockets);
        assert_eq!(shard.tick_in_ms(), wait);
    }
}
