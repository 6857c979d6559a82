//! Tests subscribers by filter that are served in runs (messages for many subscribers, matched in advance). Bytes that a socket refuses
//! wait within the limits or are read from the log later, and a slow reader gets the same bytes as a fast one.

use super::*;

use crore_broker::settings::RetentionMode;

/// Three topics that the filter matches.
const MATCHED: [&str; 3] = ["a/1", "a/2", "a/1/b"];
const FILTER: &str = "filter=a/%23";
const FRAME_BYTES: usize = HEADER_BYTES + 8;

/// Messages with eight bytes of data. If `mixed`, neighbouring messages are of different topics.
fn messages(count: usize, mixed: bool) -> Vec<(&'static str, String)> {
    let message = |n: usize| (MATCHED[n % 3], format!("message{n}"));
    let between = |n: usize| [message(n), ("b", "x".into())];
    match mixed {
        true => (0..count).flat_map(between).collect(),
        false => (0..count).map(message).collect(),
    }
}

fn publish(server: &mut TestServer, messages: &[(&'static str, String)], at_once: bool) {
    for message in messages.chunks(if at_once { messages.len() } else { 1 }) {
        server.publish(message.iter().cloned());
        server.settle();
    }
}

fn all_frames(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|n| frame(&format!("message{n}")))
        .collect()
}

#[test]
fn outbox_of_a_subscriber_by_filter_holds_complete_messages_up_to_its_limit() {
    let limits = [(0, 0), (9, 0), (10, 1), (39, 3), (40, 4), (41, 4)];
    for (limit, fits) in limits {
        for (mixed, at_once) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut server =
                TestServer::new(rule(), |limits| limits.outbox_bytes = limit, pages_of(2));
            let link = server.subscribe_to(Kind::Plain, FILTER);
            server.set_window(link, Some(0));
            publish(&mut server, &messages(6, mixed), at_once);
            let case = format!("limit {limit}, mixed {mixed}, at once {at_once}");
            assert_eq!(server.accounts().outbox_bytes, fits * FRAME_BYTES, "{case}");
            assert_eq!(server.stats().fallbacks, 1, "{case}");
            server.set_window(link, None);
            server.settle();
            assert_eq!(server.received(link), all_frames(6), "{case}");
            assert_eq!(server.accounts().outbox_bytes, 0, "{case}");
            let delivered = server.stats().delivered;
            publish(&mut server, &[("a/2", "newest".into())], true);
            assert!(
                server.received(link).ends_with(b"newest"),
                "it is live again"
            );
            assert_eq!(server.stats().delivered, delivered + 1);
        }
    }
}

/// Each message counts as delivered once: when it is written, or when it begins to wait in an outbox.
#[test]
fn delivery_cut_anywhere_is_counted_once() {
    let count = 5;
    for (query, lie_apart) in [("topic=a/1", true), (FILTER, true), (FILTER, false)] {
        for window in 0..=count * FRAME_BYTES {
            let mut server = wide();
            let link = server.subscribe_to(Kind::Plain, query);
            let other = server.subscribe_to(Kind::Plain, "filter=b");
            server.set_window(link, Some(window));
            let before = server.stats().delivered;
            let data = |n| format!("message{n}");
            let apart = |n| [("a/1", data(n)), ("b", "x".into())];
            let behind = || (0..count).map(|n| ("a/1", data(n)));
            match lie_apart {
                true => server.publish((0..count).flat_map(apart)),
                false => server.publish([("b", "x".into())].into_iter().chain(behind())),
            }
            server.settle();
            let of_other = frame("x").repeat(if lie_apart { count } else { 1 });
            assert_eq!(server.received(other), of_other);
            let all = (count + of_other.len() / frame("x").len()) as u64;
            assert_eq!(server.stats().delivered - before, all, "{window}");
            let waits = count * FRAME_BYTES - window;
            assert_eq!(server.accounts().outbox_bytes, waits, "{window}");
            server.set_window(link, None);
            server.settle();
            assert_eq!(server.received(link), all_frames(count), "{query} {window}");
            assert_eq!(server.stats().delivered - before, all, "{window}");
        }
    }
}

/// For a topic that keeps the latest message, no complete message waits in an outbox. When the socket is writable, the newest message is
/// sent.
#[test]
fn message_that_may_be_superseded_does_not_wait_in_an_outbox() {
    for query in ["topic=a/1", "topic=a/1&topic=a/2", FILTER] {
        for fields in 0..=FRAME_BYTES {
            let rule = Rule {
                keep: RetentionMode::Latest,
                ..rule()
            };
            let mut server = TestServer::new(rule, |_| {}, TurnLimits::default());
            let link = server.subscribe_to(Kind::Plain, query);
            server.set_window(link, Some(fields));
            for n in 0..3 {
                publish(&mut server, &[("a/1", format!("message{n}"))], true);
            }
            // Only the rest of the partly written message waits.
            let rest = if fields == 0 { 0 } else { FRAME_BYTES - fields };
            assert_eq!(server.accounts().outbox_bytes, rest, "{query}, {fields}");
            assert_eq!(server.stats().fallbacks, 1, "{query}, {fields}");
            server.set_window(link, None);
            server.settle();
            let began = if fields == 0 {
                vec![]
            } else {
                frame("message0")
            };
            let expected = [began, frame("message2")].concat();
            assert_eq!(server.received(link), expected, "{query}, {fields}");
        }
    }
}

const ALL: [&str; 4] = ["a/1", "a/2", "b/1", "b/2"];
/// The query of a subscriber by filter, and the topics that it matches.
const QUERIES: [(&str, [bool; 4]); 4] = [
    ("filter=a/%2B", [true, true, false, false]),
    ("filter=%2B/1&filter=a/%23", [true, true, true, false]),
    ("filter=%23", [true; 4]),
    ("topic=b/2&filter=a/1", [true, false, false, true]),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// For each kind and query, one subscriber reads at once and one has a slow socket.
    #[test]
    fn slow_reader_by_filter_gets_the_same_bytes(
        ops in ops(KINDS.len() * QUERIES.len(), ALL.len()),
        outbox_bytes in prop_oneof![Just(0_usize), 20..300_usize, Just(1 << 20)],
        outbox_messages in prop_oneof![Just(0_u32), 1..5_u32],
        page_messages in prop_oneof![Just(1_usize), Just(3), Just(128)],
        visits_per_turn in prop_oneof![1..6_u32, Just(4096)],
    ) {
        let mut server = TestServer::new(Rule { outbox_messages, ..rule() }, |limits| {
            limits.outbox_bytes = outbox_bytes;
        }, TurnLimits { visits_per_turn, ..pages_of(page_messages) });
        let mut pairs = Vec::new();
        for kind in KINDS {
            for (query, _) in QUERIES {
                pairs.push((server.subscribe_to(kind, query), server.subscribe_to(kind, query)));
            }
        }
        reads_the_same(&mut server, &pairs, ops, &ALL, |query, topic| QUERIES[query].1[topic])?;
    }
}
