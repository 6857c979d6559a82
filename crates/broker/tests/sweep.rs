//! Tests the sweep: each second the shard checks all connections for deadlines that have passed. The check is spread over the ticks of the
//! second, and each tick checks a bounded number of connections.

use crore_broker::settings::Settings;
use crore_broker::{Input, Now, TurnLimits};
use proptest::prelude::*;
use support::TestServer;

mod support;

fn moment(ms: u32) -> Now {
    Now {
        s: ms / 1000 + 1,
        unix_s: 1_800_000_000 + ms / 1000,
    }
}

/// A shard with a number of connections.
fn server(rows_per_tick: u32, head_s: u32, count: u32) -> TestServer {
    let mut settings = Settings::default();
    settings.timeouts.head_s = head_s;
    let turn_limits = TurnLimits {
        rows_per_tick,
        ..TurnLimits::default()
    };
    let mut server = TestServer::new(&support::world(settings, 1, 1), turn_limits, moment(0));
    for _ in 0..count {
        server.open(0);
    }
    server
}

/// Runs a tick at this time. Returns the connections that were answered.
fn tick(server: &mut TestServer, ms: u32) -> Vec<usize> {
    server.now = moment(ms);
    server.handle(0, Input::Tick);
    let sockets = server.io[0].sockets.iter_mut().enumerate();
    let answered = sockets.filter_map(|(link, socket)| {
        let answer = std::mem::take(&mut socket.received);
        (!answer.is_empty()).then_some(link)
    });
    answered.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Connections never complete their request head. Each must be answered once, within two seconds of its deadline. A tick answers few
    /// of them, and the ticks of a sweep fit into its second.
    #[test]
    fn deadlines_are_met_a_few_at_a_time(count in 1u32..200, rows_per_tick in 1u32..40, head_s in 1u32..4) {
        let mut server = server(rows_per_tick, head_s, count);
        let (mut ms, mut answered) = (0, Vec::new());
        while ms < (head_s + 2) * 1000 {
            let news = tick(&mut server, ms);
            prop_assert!(news.len() <= rows_per_tick as usize);
            prop_assert!(news.is_empty() || ms >= head_s * 1000 - 1000);
            answered.extend(news);
            let second = ms / 1000;
            let wait_ms = server.shards[0].ms_until_tick();
            ms = wait_ms.map_or((second + 1) * 1000, |wait| ms + wait);
            prop_assert!(ms / 1000 == second || wait_ms.is_none(), "a sweep takes longer than its second");
        }
        answered.sort_unstable();
        prop_assert_eq!(answered, (0..count as usize).collect::<Vec<_>>());
    }
}

#[test]
fn finished_sweep_wakes_the_shard_only_in_the_next_second() {
    let mut server = server(2, 9, 5);
    assert_eq!(server.shards[0].ms_until_tick(), None);
    for wait in [Some(250), Some(250), None, None] {
        tick(&mut server, 1000);
        assert_eq!(server.shards[0].ms_until_tick(), wait);
    }
}

/// Connections whose end is expensive (a session, subscriptions, a will): a tick ends a bounded number of them, and the next tick is due
/// soon.
#[test]
fn connections_that_fail_together_are_ended_over_the_ticks_of_a_second() {
    const CROWD: usize = 1_000;
    let most = TurnLimits::default().ends_per_tick;
    let mut server = server(2_048, 3, CROWD as u32);
    let (mut ms, mut answered) = (4_000, 0);
    while answered < CROWD {
        let news = tick(&mut server, ms).len();
        assert!(news <= most, "{news} in a tick");
        answered += news;
        assert!(ms < 5_000, "{answered} have ended");
        ms += server.shards[0].ms_until_tick().unwrap_or(1_000);
    }
}
