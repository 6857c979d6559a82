//! Tests runs of deliveries. A run matches several messages with the subscribers by filter in advance; its size is bounded.

use super::*;

/// More members than are matched in advance (4,096), so that a run ends before the messages do. The messages match all of the members, a
/// part of them, or none.
#[test]
fn each_subscriber_by_filter_gets_all_its_messages_in_order() {
    let filters = ["a/%2B", "%23", "%2B/1", "a/1/%23"];
    let names = ["a/1", "a/2", "b/1", "b", "a/1/x/y"];
    let wanted = |filter: usize, name: &str| match filter {
        0 => ["a/1", "a/2"].contains(&name),
        1 => true,
        2 => name.ends_with("/1"),
        _ => name.starts_with("a/1"),
    };
    for clients in [2, 900, 4100] {
        let turn_limits = TurnLimits {
            prefetch_from_rows: 0,
            ..TurnLimits::default()
        };
        let mut server = TestServer::new(rule(), |_| {}, turn_limits);
        let links: Vec<usize> = (0..clients)
            .map(|n| server.ask_for(Kind::Plain, &format!("filter={}", filters[n % 4])))
            .collect();
        server.settle();
        let begun: Vec<usize> = links
            .iter()
            .map(|link| server.received(*link).len())
            .collect();
        let messages: Vec<_> = (0..150)
            .map(|n| (names[(3 * n + n / 7) % 5], n.to_string()))
            .collect();
        server.publish(messages.clone());
        server.settle();
        for ((n, link), begun) in links.iter().enumerate().zip(begun) {
            let own = messages.iter().filter(|(name, _)| wanted(n % 4, name));
            let all: Vec<u8> = own.flat_map(|(_, data)| frame(data)).collect();
            assert_eq!(
                server.received(*link)[begun..],
                all,
                "{clients} clients, {}",
                filters[n % 4]
            );
        }
    }
}

/// The position of a subscription by filter covers all topics, so each subscription needs its own position with each message. One write must still send all
/// messages of the run.
#[test]
fn stream_of_several_topics_gets_the_messages_of_a_run_in_one_write() {
    const MESSAGES: usize = 100;
    let mut server = TestServer::new(rule(), |_| {}, TurnLimits::default());
    let links: Vec<usize> = [Kind::Plain, Kind::Envelope]
        .into_iter()
        .map(|kind| server.ask_for(kind, "topic=a&topic=b"))
        .collect();
    server.settle();
    server.io().sends = 0;
    server.publish((0..MESSAGES).map(|n| ("a", n.to_string())));
    server.settle();
    let writes = server.io().sends;
    assert!(writes <= links.len() + 2, "{writes} writes");
    for link in links {
        let received = server.received(link);
        assert!(received.len() >= MESSAGES, "{} bytes", received.len());
    }
}
