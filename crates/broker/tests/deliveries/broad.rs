//! Tests a message whose delivery takes more than four turns (runs of the event loop), because it has many subscribers by filter.
//! Subscribers that connect or leave meanwhile cause neither loss nor duplicates.

use super::*;

const VISITS: u32 = 4;
/// Subscriptions that all match the topic; the second one has two matching filters.
const QUERIES: [&str; 3] = [
    "filter=a/%23",
    "filter=a/%23&filter=a/%2B",
    "filter=%23&filter=b",
];
const SUBSCRIBERS: usize = 60;

fn server() -> TestServer {
    let turn_limits = TurnLimits {
        visits_per_turn: VISITS,
        ..TurnLimits::default()
    };
    TestServer::new(rule(), |_| {}, turn_limits)
}

fn subscribers(server: &mut TestServer) -> Vec<usize> {
    let queries = QUERIES.iter().cycle().take(SUBSCRIBERS);
    queries
        .map(|query| server.subscribe_to(Kind::Plain, query))
        .collect()
}

fn publish(server: &mut TestServer) {
    server.publish(["one", "two"].map(|data| ("a/1", data.into())));
}

#[test]
fn turn_visits_a_limited_number_of_subscribers_by_filter() {
    let mut server = server();
    subscribers(&mut server);
    publish(&mut server);
    let (mut turns, mut before) = (0, server.io().sends);
    loop {
        server.end_turn();
        let now = server.io().sends;
        // The shard writes both messages to a subscriber at once, so the writes do not exceed the visited subscribers.
        assert!(now - before <= VISITS as usize, "{}", now - before);
        (turns, before) = (turns + 1, now);
        if server.accounts().deliveries == 0 {
            break;
        }
    }
    assert_eq!(server.stats().delivered, 2 * SUBSCRIBERS as u64);
    assert!(turns >= SUBSCRIBERS / VISITS as usize);
}

proptest! {
    /// In each turn some connections open, and some close, before or after they are served.
    #[test]
    fn subscriber_gets_each_message_once_while_others_come_and_go(
        moves in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8), 0..40),
    ) {
        let mut server = server();
        let mut links = subscribers(&mut server);
        let mut newcomers = Vec::new();
        publish(&mut server);
        server.end_turn();
        for (who, what) in moves {
            match what {
                0 if !links.is_empty() => server.cut(links.swap_remove(who.index(links.len()))),
                1 if !newcomers.is_empty() => {
                    let at = who.index(newcomers.len());
                    server.cut(newcomers.swap_remove(at));
                }
                2 => newcomers.push(server.ask_for(Kind::Plain, QUERIES[who.index(QUERIES.len())])),
                _ => server.end_turn(),
            }
        }
        server.settle();
        let two_frames = [frame("one"), frame("two")].concat();
        for link in &links {
            prop_assert_eq!(server.received(*link), &two_frames[..]);
        }
        for link in &newcomers {
            server.take_received(*link);
        }
        server.publish([("a/2", "three".into())]);
        server.settle();
        for link in newcomers {
            prop_assert_eq!(server.received(link), &frame("three")[..], "and nothing before it");
        }
        prop_assert!(links.iter().all(|link| server.received(*link).ends_with(b"three")));
    }
}
