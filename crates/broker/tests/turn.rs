//! Tests the limits of a turn (one run of a shard's event loop): after a limited number of publishes a shard reads no more until it has
//! flushed, and expired messages are removed over several turns.

use crore_broker::settings::{Rule, Settings};
use crore_broker::turn_limits::TurnLimits;
use crore_broker::{Input, Now};
use proptest::prelude::*;
use support::{NOW, TestServer};

mod support;

/// A shard that is also the only home (keeps all topics), and one connection.
fn connected(settings: Settings, turn_limits: TurnLimits) -> (TestServer, usize) {
    let mut server = TestServer::new(&support::world(settings, 1, 1), turn_limits, NOW);
    let conn = server.open(0);
    (server, conn)
}

/// Publishes to each of these topics, in one batch.
fn publish<N: std::fmt::Display>(server: &mut TestServer, conn: usize, topics: &[N]) {
    let line = |name: &N| format!("{{\"topic\":\"{name}\",\"data\":\"x\"}}\n");
    let body: String = topics.iter().map(line).collect();
    let request = format!(
        "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    server.send(conn, request);
}

/// Each turn removes a few expired messages, and at least as many as it publishes. When all are removed, the topics are removed too.
#[test]
fn expired_messages_are_removed_over_several_turns() {
    const COUNT: u32 = 100;
    let mut settings = Settings::default();
    settings.rules.push(Rule {
        log_age_s: 3,
        position_age_s: 5,
        ..Rule::default()
    });
    let turn_limits = TurnLimits {
        removals_per_turn: 7,
        ..TurnLimits::default()
    };
    let (mut server, conn) = connected(settings, turn_limits);
    let names = |from| (from..from + COUNT).collect::<Vec<u32>>();
    publish(&mut server, conn, &names(0));
    assert!(!server.flush(0), "nothing is old");
    let at = |passed_s| Now {
        s: NOW.s + passed_s,
        unix_s: NOW.unix_s + passed_s,
    };
    let kept = |server: &TestServer| server.shards[0].accounts().log_messages;

    // More messages are removed than are published.
    server.now = at(3);
    publish(&mut server, conn, &names(COUNT)[..20]);
    server.handle(0, Input::Tick);
    assert!(server.flush(0), "more is old");
    assert_eq!(kept(&server), COUNT - 7);
    let turns = (1..).find(|_| !server.flush(0));
    assert_eq!(turns, Some((COUNT - 27) / 7 + 1));
    assert_eq!(kept(&server), 20);

    // A topic is removed when no client can resume there any more.
    for (passed_s, topics) in [(7, COUNT + 20), (8, 20), (20, 0)] {
        server.now = at(passed_s);
        server.handle(0, Input::Tick);
        server.settle();
        assert_eq!(server.shards[0].accounts().home_topics, topics);
    }
}

/// The steps (units of work) that one request takes. The request is answered within the turn.
fn request(server: &mut TestServer, conn: usize, line: &str) -> u64 {
    let before = server.shards[0].steps();
    server.send(conn, format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    server.shards[0].steps() - before
}

/// A client that seeks in a long log, or deletes it, must hardly delay others. A seek uses marks in the log, and deleted messages are removed over several
/// turns.
#[test]
fn seek_and_delete_in_a_long_log_take_bounded_steps() {
    const COUNT: usize = 20_000;
    const FEW: u64 = 500;
    let mut settings = Settings::default();
    settings.rules.push(Rule {
        log_messages: u32::MAX,
        log_bytes: 1 << 30,
        ..Rule::default()
    });
    let (mut server, conn) = connected(settings, TurnLimits::default());
    for _ in 0..COUNT / 5_000 {
        publish(&mut server, conn, &["t"; 5_000]);
        server.settle();
    }
    assert_eq!(server.shards[0].accounts().log_messages as usize, COUNT);
    for query in ["since=-1", "since=-3", "since=oldest"] {
        let steps = request(&mut server, conn, &format!("GET /sub/t?{query}"));
        assert!(steps < FEW, "{query}: {steps} steps");
        server.settle();
    }
    let steps = request(&mut server, conn, "DELETE /pub/t");
    assert!(steps < FEW, "{steps} steps");
    // The topic is deleted, and its messages are removed in small steps.
    let (mut before, mut turns) = (COUNT as u32, 0);
    while server.flush(0) {
        let left = server.shards[0].accounts().log_messages;
        // The delete counts like a publish.
        assert!(
            left < before && before - left <= TurnLimits::default().removals_per_turn as u32 + 1
        );
        (before, turns) = (left, turns + 1);
    }
    assert!(turns > 50);
    let accounts = server.shards[0].accounts();
    assert_eq!((accounts.log_messages, accounts.log_bytes), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A batch stops when the turn's budget is spent, and continues in the next turns.
    #[test]
    fn batch_stops_when_the_budget_of_a_turn_is_spent_and_continues_in_the_next(share in 1u32..60, lines in 1u32..60) {
        let settings = Settings::default();
        let turn_limits = TurnLimits { steps_per_turn: share, ..TurnLimits::default() };
        let (mut server, conn) = connected(settings, turn_limits);
        let (mut turns, mut published) = (0, 0);
        publish(&mut server, conn, &vec!["t"; lines as usize]);
        loop {
            // A line takes at most four steps, and one more message may be removed for it. The end of a turn may use half of the budget
            // and three units more.
            let now = server.shards[0].stats().published;
            prop_assert!(now > published, "some go on in each turn");
            prop_assert!(now - published <= u64::from(share) + 8);
            published = now;
            if published == u64::from(lines) {
                break;
            }
            turns += 1;
            let has_more = server.flush(0);
            let shard = &server.shards[0];
            prop_assert!(has_more || shard.stats().published == u64::from(lines));
            prop_assert!(!shard.is_spent());
        }
        prop_assert!(turns <= lines);
        server.settle();
        let accounts = server.shards[0].accounts();
        prop_assert_eq!((accounts.waiting, accounts.receive_bytes), (0, 0));
    }
}
