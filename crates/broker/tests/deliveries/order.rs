//! Tests the deliveries of a turn (one run of the event loop): their order, the number of writes, and the counts that are reported for
//! measurements.

use super::*;

use crore_broker::settings::RetentionMode;

/// Messages for subscribers by filter and by topic are delivered in the order of their publishes.
#[test]
fn subscribers_by_filter_and_by_name_get_messages_in_order() {
    for exact in ["a/1", "a/2"] {
        let mut server = wide();
        let by_name = server.subscribe(Kind::Plain, exact);
        let by_filter = server.subscribe_to(Kind::Plain, "filter=a/%23");
        let topic_of = |n: usize| ["a/1", "a/2", "b"][n % 3];
        server.publish((0..9).map(|n| (topic_of(n), n.to_string())));
        server.settle();
        let bytes = |wanted: &dyn Fn(&str) -> bool| -> Vec<u8> {
            let all = (0..9).filter(|n| wanted(topic_of(*n)));
            all.flat_map(|n| frame(&n.to_string())).collect()
        };
        assert_eq!(server.received(by_name), bytes(&|topic| topic == exact));
        assert_eq!(server.received(by_filter), bytes(&|topic| topic != "b"));
    }
}

#[test]
fn messages_of_a_topic_keep_their_order_while_filters_come_and_go_within_a_turn() {
    let mut server = wide();
    let by_name = server.subscribe(Kind::Plain, "a/1");
    let mut filters = Vec::new();
    for n in 0..8 {
        match n % 2 {
            0 => filters.push(server.ask_for(Kind::Plain, "filter=a/%2B")),
            _ => server.cut(filters[n / 2]),
        }
        for more in 0..2 {
            server.publish([("a/1", format!("{n}{more}"))]);
        }
    }
    server.settle();
    let all = (0..8).flat_map(|n| [format!("{n}0"), format!("{n}1")]);
    let all: Vec<u8> = all.flat_map(|data| frame(&data)).collect();
    assert_eq!(server.received(by_name), all);
}

/// Bytes that are adjacent in memory make one part of a write, and sixteen parts make one write. Filters that match other topics change
/// nothing.
#[test]
fn adjacent_bytes_are_one_part_and_sixteen_parts_are_one_write() {
    // Two adjacent messages, then one of another topic.
    for (pairs, writes) in [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)] {
        for filter in [false, true] {
            let mut server = wide();
            let link = server.subscribe(Kind::Plain, "t");
            server.subscribe(Kind::Plain, "u");
            if filter {
                server.subscribe_to(Kind::Plain, "filter=other/%23");
            }
            let of_pair = |n: usize| [("t", n), ("t", n), ("u", n)];
            let messages = (0..pairs).flat_map(of_pair);
            server.io().sends = 0;
            server.publish(messages.map(|(topic, n)| (topic, n.to_string())));
            server.settle();
            // The other writes: one for the answer to the publisher, and those of the other subscriber, whose messages are one part each.
            let others = 1 + usize::div_ceil(pairs, 16);
            assert_eq!(server.io().sends, others + writes, "{pairs} {filter}");
            let twice = (0..pairs).flat_map(|n| [n, n]);
            let all: Vec<u8> = twice.flat_map(|n| frame(&n.to_string())).collect();
            assert_eq!(server.received(link), all);
        }
    }
}

/// Messages of a topic that no filter matches go out together, although a filter matches messages between them.
#[test]
fn messages_of_a_topic_that_no_filter_matches_need_one_write() {
    let mut server = wide();
    let link = server.subscribe(Kind::Plain, "t");
    server.subscribe_to(Kind::Plain, "filter=a/%23");
    server.io().sends = 0;
    server.publish([("t", "1".into()), ("a/1", "2".into()), ("t", "3".into())]);
    server.settle();
    // One write for the publisher, and one for each subscriber.
    assert_eq!(server.io().sends, 3);
    assert_eq!(server.received(link), [frame("1"), frame("3")].concat());
}

#[test]
fn deliveries_of_each_turn_are_reported_once_with_the_time_of_the_turn() {
    for query in ["topic=t", "filter=%2B"] {
        let mut server = wide();
        for _ in 0..3 {
            server.subscribe_to(Kind::Plain, query);
        }
        let mut publish = |stamp, topic| {
            server.set_turn_time(stamp);
            server.publish([(topic, "x".into()), (topic, "y".into())]);
            server.settle();
            std::mem::take(&mut server.io().delivery_reports)
        };
        assert_eq!(publish(5, "t"), [(5, 6)], "{query}");
        assert_eq!(publish(6, "other/1"), [], "nobody got anything");
        assert_eq!(publish(0, "t"), [], "nobody measures");
        assert_eq!(publish(9, "t"), [(9, 6)]);
    }
    // A message that is read from the log later does not count as written in its turn.
    let mut server = TestServer::new(
        rule(),
        |limits| limits.outbox_bytes = 0,
        TurnLimits::default(),
    );
    let link = server.subscribe(Kind::Plain, "t");
    server.set_window(link, Some(0));
    server.set_turn_time(5);
    server.publish([("t", "x".into())]);
    server.settle();
    assert_eq!(
        (server.stats().fallbacks, &server.io().delivery_reports[..]),
        (1, &[][..])
    );
}

#[test]
fn messages_after_those_for_filters_are_delivered_in_the_same_turn() {
    let mut server = wide();
    let by_filter = server.subscribe_to(Kind::Plain, "filter=a/%23");
    let by_name = server.subscribe(Kind::Plain, "t");
    server.publish([("a/1", "1".into()), ("t", "2".into())]);
    server.publish([("a/2", "3".into())]);
    server.end_turn();
    assert_eq!(
        server.received(by_filter),
        [frame("1"), frame("3")].concat()
    );
    assert_eq!(server.received(by_name), frame("2"));
}

#[test]
fn each_delivery_is_counted_once() {
    for keep in [RetentionMode::Log, RetentionMode::Latest] {
        for query in ["topic=a", "topic=a&topic=b", "filter=%23"] {
            for kind in KINDS {
                let rule = Rule { keep, ..rule() };
                let mut server = TestServer::new(rule, |_| {}, TurnLimits::default());
                let link = server.subscribe_to(kind, query);
                let before = server.stats().delivered;
                let counted = |server: &TestServer| server.stats().delivered - before;
                for n in 1..=3 {
                    server.publish([("a", "one".into())]);
                    server.settle();
                    assert_eq!(counted(&server), n, "{keep:?} {query} {kind:?}");
                }
                // One message waits in the outbox or is read from the log later.
                server.set_window(link, Some(0));
                server.publish([("a", "two".into())]);
                server.settle();
                server.set_window(link, None);
                server.settle();
                assert_eq!(counted(&server), 4, "{keep:?} {query} {kind:?}");
            }
        }
    }
}

/// A large message is stored once, however many subscribers get it in whichever encoding, even if a transport keeps sent bytes until its
/// peers acknowledge them.
#[test]
fn large_message_is_stored_once_for_all_subscribers() {
    for kind in KINDS {
        let mut server = wide();
        for _ in 0..3 {
            server.subscribe(kind, "t");
        }
        let slow = server.subscribe(kind, "t");
        server.set_window(slow, Some(5000));
        server.io().unacknowledged = Some(Vec::new());
        server.publish([("t", "x".repeat(20_000))]);
        server.settle();
        server.set_window(slow, None);
        let kept = server.io().unacknowledged.take().expect("they are kept");
        let places: Vec<_> = kept.iter().map(|slice| slice.as_ptr_range()).collect();
        assert_eq!(places.len(), 5, "{kind:?}");
        assert_eq!(places[..4], [(); 4].map(|()| places[0].clone()), "{kind:?}");
        // The last part has the bytes that the slow subscriber's socket refused first.
        assert_eq!(places[4].end, places[0].end, "{kind:?}");
    }
}
