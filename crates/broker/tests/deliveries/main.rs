//! Tests deliveries to sockets: how many a turn (one run of the event loop) makes, and what happens to bytes that a socket refuses. A slow
//! reader gets the same bytes as a fast one, and the waiting bytes are bounded.

mod answers;
mod bounds;
mod broad;
mod closing;
mod ended;
mod fair;
mod filters;
mod order;
mod raised;
mod runs;
#[path = "../support/mod.rs"]
mod support;
mod test_server;
mod walk;

use proptest::prelude::*;

use crore_broker::TurnLimits;
use crore_broker::account::{MemoryLevel, MemoryPart};
use crore_broker::settings::{Rule, Settings};
use test_server::{KINDS, Kind, TestServer};

const TOPICS: [&str; 2] = ["a/1", "b/2"];
/// Length of each message's frame header.
const HEADER_BYTES: usize = 2;

fn frame(data: &str) -> Vec<u8> {
    let mut frame = vec![0x81, data.len() as u8];
    frame.extend_from_slice(data.as_bytes());
    frame
}

/// A log that keeps all messages of these tests.
fn rule() -> Rule {
    Rule {
        log_messages: 10_000,
        ..Rule::default()
    }
}

fn wide() -> TestServer {
    TestServer::new(rule(), |_| {}, TurnLimits::default())
}

fn pages_of(page_messages: usize) -> TurnLimits {
    TurnLimits {
        page_messages,
        ..TurnLimits::default()
    }
}

/// Messages on two alternating topics, so that no two messages of one topic are adjacent.
fn by_turns(count: usize) -> Vec<(&'static str, String)> {
    let message = |n: usize| (TOPICS[n % 2], "x".repeat(n % 7) + &n.to_string());
    (0..2 * count).map(message).collect()
}

/// A delivery has more parts than fit into one write, over a socket that may stop after any byte.
#[test]
fn write_of_many_parts_may_stop_and_continue_at_any_byte() {
    for count in [1, 2, 15, 16, 17, 33] {
        let messages = by_turns(count);
        let of_first = messages.iter().filter(|(topic, _)| *topic == TOPICS[0]);
        let all: Vec<u8> = of_first.flat_map(|(_, data)| frame(data)).collect();
        for window in 0..=all.len() {
            let mut server = wide();
            let link = server.subscribe(Kind::Plain, TOPICS[0]);
            server.subscribe(Kind::Plain, TOPICS[1]);
            server.set_window(link, Some(window));
            server.publish(messages.clone());
            server.settle();
            assert_eq!(server.received(link), &all[..window]);
            server.set_window(link, None);
            server.settle();
            assert_eq!(
                server.received(link),
                all,
                "{count} messages, {window} bytes"
            );
            assert_eq!(server.stats().fallbacks, 0, "there is room for all");
            assert_eq!(server.accounts().outboxes, 0);
        }
    }
}

#[test]
fn messages_of_a_turn_for_one_subscriber_need_few_writes() {
    let mut server = wide();
    let links: Vec<usize> = (0..70)
        .map(|n| server.subscribe(Kind::Plain, &format!("t/{n}")))
        .collect();
    server.io().sends = 0;
    server.publish((0..70).map(|n| (["t/1", "t/2"][n % 2], format!("{n}"))));
    server.settle();
    // The topics alternate, so no two messages are one part. Each of the two subscribers gets 35 parts in three writes of at most sixteen. The other
    // writes are answers to the publisher.
    let publisher = server.io().sends - 2 * 3;
    let all = (0..70).map(|n| (format!("t/{n}"), format!("{n}")));
    let all: Vec<_> = all.collect();
    let before = server.received(links[3]).len();
    server.io().sends = 0;
    server.publish(all.iter().map(|(topic, data)| (&topic[..], data.clone())));
    server.settle();
    assert_eq!(server.io().sends, 70 + publisher);
    for (n, link) in links.iter().enumerate().skip(3) {
        assert_eq!(server.received(*link)[before..], frame(&n.to_string()));
    }
}

/// A limited number of messages of one topic is combined into one write. The socket may stop between two writes.
#[test]
fn many_messages_of_one_topic_come_in_order() {
    let messages: Vec<_> = (0..700).map(|n| (TOPICS[0], n.to_string())).collect();
    let all: Vec<u8> = messages.iter().flat_map(|(_, data)| frame(data)).collect();
    for window in (0..all.len()).step_by(97) {
        let mut server = wide();
        let link = server.subscribe(Kind::Plain, TOPICS[0]);
        server.set_window(link, Some(window));
        server.publish(messages.clone());
        server.settle();
        assert_eq!(server.received(link), &all[..window]);
        server.set_window(link, None);
        server.settle();
        assert_eq!(server.received(link), all);
    }
}

/// A turn visits (delivers to) at most `visits_per_turn` subscribers: of one topic, of separate topics, or new ones. The next turn goes on.
#[test]
fn turn_visits_a_limited_number_of_subscribers_and_the_next_one_goes_on() {
    let visits = 3;
    let turn_limits = TurnLimits {
        visits_per_turn: visits,
        ..TurnLimits::default()
    };
    let of_one = |_| "t".to_string();
    let of_own = |n: usize| format!("t/{n}");
    for topic in [of_one as fn(usize) -> String, of_own] {
        let mut server = TestServer::new(rule(), |_| {}, turn_limits);
        let links: Vec<usize> = (0..10)
            .map(|n| server.ask(Kind::Plain, &topic(n)))
            .collect();
        let served = |server: &TestServer, at_least: &[usize]| {
            let more = links.iter().zip(at_least);
            more.filter(|(link, before)| server.received(**link).len() > **before)
                .count()
        };
        for turn in 1..=4 {
            server.end_turn();
            assert_eq!(served(&server, &[0; 10]), (3 * turn).min(10), "begun");
        }
        server.settle();
        let before: Vec<usize> = links
            .iter()
            .map(|link| server.received(*link).len())
            .collect();
        match topic(1) == topic(2) {
            true => server.publish([("t", "x".into())]),
            false => {
                let names: Vec<String> = (0..10).map(topic).collect();
                server.publish(names.iter().map(|name| (&name[..], "x".into())));
            }
        }
        for turn in 1..=4 {
            server.end_turn();
            assert_eq!(served(&server, &before), (3 * turn).min(10), "told");
        }
    }
}

/// An outbox keeps complete messages up to the limit of the connection. Those that do not fit are read from the log later.
#[test]
fn outbox_holds_complete_messages_up_to_its_limit() {
    let frame_bytes = HEADER_BYTES + 8;
    let limits = [(0, 0), (9, 0), (10, 1), (39, 3), (40, 4), (41, 4)];
    for topics in ["t", "t&topic=u"] {
        for ((limit, fits), at_once) in limits.iter().flat_map(|l| [(*l, false), (*l, true)]) {
            let mut server =
                TestServer::new(rule(), |limits| limits.outbox_bytes = limit, pages_of(2));
            let link = server.subscribe(Kind::Plain, topics);
            server.set_window(link, Some(0));
            let messages: Vec<_> = (0..6).map(|n| ("t", format!("message{n}"))).collect();
            if at_once {
                server.publish(messages.clone());
                server.settle();
            } else {
                for message in &messages {
                    server.publish([message.clone()]);
                    server.settle();
                }
            }
            assert_eq!(
                server.accounts().outbox_bytes,
                fits * frame_bytes,
                "{limit}"
            );
            assert_eq!(server.stats().fallbacks, 1);
            server.set_window(link, None);
            server.settle();
            let all: Vec<u8> = messages.iter().flat_map(|(_, data)| frame(data)).collect();
            assert_eq!(server.received(link), all);
            assert_eq!(server.accounts().outbox_bytes, 0);
            // The subscriber receives live messages again.
            server.publish([("t", "newest".into())]);
            server.settle();
            assert!(server.received(link).ends_with(b"newest"));
        }
    }
}

/// The rest of a partly written message always waits, whatever the limits are.
#[test]
fn rest_of_a_partly_written_message_is_always_kept() {
    let mut server = TestServer::new(
        rule(),
        |limits| limits.outbox_bytes = 0,
        TurnLimits::default(),
    );
    let link = server.subscribe(Kind::Plain, "t");
    server.set_window(link, Some(3));
    server.publish([("t", "first".into()), ("t", "second".into())]);
    server.settle();
    assert_eq!(server.accounts().outbox_bytes, HEADER_BYTES + 5 - 3);
    assert_eq!(server.stats().fallbacks, 1);
    server.set_window(link, None);
    server.settle();
    assert_eq!(
        server.received(link),
        [frame("first"), frame("second")].concat()
    );
}

/// Three subscribers read nothing, while more is published than the memory account allows. Never more than the account waits in
/// outboxes, and in the end all subscribers get everything.
#[test]
fn outboxes_together_stay_within_the_memory_account() {
    let limit = 1 << 20;
    for topics in ["topic=t", "topic=t&topic=u", "filter=%23"] {
        let many = Rule {
            log_messages: 10_000,
            log_bytes: 10 << 20,
            ..rule()
        };
        let mut server = TestServer::new(
            many,
            |limits| limits.memory_bytes = limit,
            TurnLimits::default(),
        );
        let links: Vec<usize> = (0..3)
            .map(|_| server.subscribe_to(Kind::Plain, topics))
            .collect();
        for link in &links {
            server.set_window(*link, Some(0));
        }
        let mut all = Vec::new();
        for n in 0..8000 {
            let data = format!("{n:0100}");
            all.extend(frame(&data));
            server.publish([("t", data)]);
            server.settle();
            let (waiting, parts) = (server.accounts().outbox_bytes, server.accounts().parts);
            assert!(waiting <= limit, "{topics}: {waiting} {parts:?}");
        }
        assert_eq!(server.stats().fallbacks, 3, "{topics}");
        assert_eq!(server.stats().relieved, 0, "{topics}");
        for link in links {
            server.set_window(link, None);
            server.settle();
            let received = server.received(link);
            assert!(
                received == all,
                "{topics}: {} of {} bytes",
                received.len(),
                all.len()
            );
        }
        assert_eq!(server.accounts().outbox_bytes, 0);
    }
}

/// Other shards use up the memory account, and this shard's answers exceed its reserved part. The shard's only client holds a few bytes.
/// It is not closed, since that would not help.
#[test]
fn client_that_holds_little_is_not_closed_when_memory_is_short() {
    let limit = 256 << 10;
    let mut server = TestServer::new(
        rule(),
        |limits| limits.memory_bytes = limit,
        TurnLimits::default(),
    );
    let post = |key: usize| {
        format!(
            "POST /pub/t HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key:0200}\r\n\
             Content-Length: 1\r\n\r\nx"
        )
    };
    let publisher = server.connect_and_send("");
    for key in 0..2000 {
        server.send(publisher, post(key));
        server.settle();
    }
    assert!(server.accounts().parts[MemoryPart::Answers as usize] > limit / 4);
    let link = server.subscribe(Kind::Plain, "t");
    server.set_window(link, Some(0));
    server.publish([("t", "late".into())]);
    server.settle();
    server.account().charge_unowned(limit);
    for _ in 0..3 {
        server.publish([("u", "more".into())]);
        server.settle();
    }
    assert_eq!(server.account().level(), MemoryLevel::Over);
    assert_eq!(server.stats().relieved, 0);
    server.set_window(link, None);
    server.settle();
    assert_eq!(server.received(link), frame("late"));
    server.account().release_unowned(limit);
}

/// A stream of two topics begins when both homes (the parts of shards that keep topics) have answered. Meanwhile messages of the local
/// home wait, up to the limit of an outbox.
#[test]
fn messages_held_for_a_remote_home_are_bounded() {
    let home = |topic: &str| crore_wire::topic::slot(topic.as_bytes()) % 2;
    let names = || (0..).map(|n: u32| n.to_string());
    let near = names().find(|name| home(name) == 0).expect("one is near");
    let far = names().find(|name| home(name) == 1).expect("one is far");
    for (limit, falls_back) in [(0, true), (9, true), (39, true), (40, false), (41, false)] {
        let mut settings = Settings {
            rules: vec![rule()],
            ..Settings::default()
        };
        settings.limits.outbox_bytes = limit;
        let mut server = TestServer::with(settings, TurnLimits::default(), 2);
        let link = server.ask(Kind::Meta, &format!("{near}&topic={far}"));
        server.settle();
        for n in 0..4 {
            server.publish([(&near[..], format!("message{n}"))]);
            server.settle();
        }
        assert_eq!(server.received(link), b"", "the far home has not answered");
        assert_eq!(server.stats().fallbacks, u64::from(falls_back), "{limit}");
        server.run_remote_shard();
        let text = server.take_received(link);
        let places: Vec<usize> = (0..4)
            .map(|n| text.find(&format!("message{n}")).expect("it came"))
            .collect();
        assert!(places.is_sorted());
        assert_eq!(text.matches("message").count(), 4);
    }
}

/// Messages that were in flight when a long-poll asked again are in its page (its first past messages). They are delivered once.
#[test]
fn second_subscription_gets_nothing_before_its_page() {
    let far = (0..)
        .map(|n: u32| n.to_string())
        .find(|name| crore_wire::topic::slot(name.as_bytes()) % 2 == 1)
        .expect("one is far");
    let mut server = TestServer::with(Settings::default(), TurnLimits::default(), 2);
    let stream = server.ask(Kind::Plain, &far);
    let ask = |position: &str| {
        format!("GET /sub/{far}?since={position} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    };
    let poll = server.connect_and_send(ask("live"));
    server.settle();
    server.run_remote_shard();
    server.take_received(stream);
    let mut position = String::from("live");
    for n in 0..3 {
        if n > 0 {
            // The message is in flight to the remote home, and the request follows it.
            server.publish([(&far[..], format!("early{n}"))]);
            server.end_turn();
            server.send(poll, ask(&position));
            server.settle();
            server.run_remote_shard();
            let received = server.take_received(poll);
            assert!(received.ends_with(&format!("early{n}")), "{received}");
            position = etag(&received);
            server.send(poll, ask(&position));
            server.settle();
            server.run_remote_shard();
        }
        server.publish([(&far[..], format!("late{n}"))]);
        server.settle();
        server.run_remote_shard();
        let received = server.take_received(poll);
        assert!(received.ends_with(&format!("late{n}")), "{received}");
        position = etag(&received);
    }
    let all = ["late0", "early1", "late1", "early2", "late2"].map(frame);
    assert_eq!(server.received(stream), all.concat());
}

/// The ETag of an answer, which is its position.
fn etag(received: &str) -> String {
    let (_, rest) = received.split_once("ETag: \"").expect("a position");
    rest.split('"').next().expect("its end").to_owned()
}

#[derive(Clone, Debug)]
enum Op {
    /// Publishes messages in one request: topic and length of each.
    Publish(Vec<(usize, usize)>),
    Turn,
    /// A socket accepts this many further bytes.
    Window(usize, Option<usize>),
}

/// Random operations for this number of pairs of subscribers and this number of topics.
fn ops(pairs: usize, topics: usize) -> impl Strategy<Value = Vec<Op>> {
    let message = (0..topics, 0..60_usize);
    let op = prop_oneof![
        4 => prop::collection::vec(message, 1..8).prop_map(Op::Publish),
        3 => Just(Op::Turn),
        4 => (0..pairs, prop_oneof![
            2 => (0..500_usize).prop_map(Some),
            1 => Just(None),
        ]).prop_map(|(n, bytes)| Op::Window(n, bytes)),
    ];
    prop::collection::vec(op, 1..40)
}

/// Of each pair, one subscriber reads at once and one has a slow socket. At the end both must have the same bytes. There is a pair of each
/// kind for each subscription; `hears` says whether a subscription includes a topic.
fn reads_the_same(
    server: &mut TestServer,
    pairs: &[(usize, usize)],
    ops: Vec<Op>,
    topics: &[&'static str],
    hears: impl Fn(usize, usize) -> bool,
) -> Result<(), TestCaseError> {
    let subscriptions = pairs.len() / KINDS.len();
    let mut published = vec![Vec::new(); subscriptions];
    let mut number = 0;
    for op in ops {
        match op {
            Op::Publish(messages) => {
                let mut lines = Vec::new();
                for (topic, len) in messages {
                    let data = format!("{number}{}", "x".repeat(len));
                    number += 1;
                    for (n, bytes) in published.iter_mut().enumerate() {
                        if hears(n, topic) {
                            bytes.extend(frame(&data));
                        }
                    }
                    lines.push((topics[topic], data));
                }
                server.publish(lines);
            }
            Op::Turn => server.settle(),
            Op::Window(n, bytes) => server.set_window(pairs[n].1, bytes),
        }
    }
    for (_, slow) in pairs {
        server.set_window(*slow, None);
    }
    server.settle();
    for (n, (quick, slow)) in pairs.iter().enumerate() {
        prop_assert!(server.is_open(*quick) && server.is_open(*slow));
        let kind = KINDS[n / subscriptions];
        prop_assert_eq!(
            String::from_utf8_lossy(server.received(*slow)),
            String::from_utf8_lossy(server.received(*quick)),
            "{:?}",
            kind
        );
        if kind == Kind::Plain {
            prop_assert_eq!(server.received(*quick), &published[n % subscriptions]);
        }
    }
    prop_assert_eq!(server.accounts().outboxes, 0);
    prop_assert_eq!(server.accounts().outbox_bytes, 0);
    Ok(())
}

proptest! {
    /// The pairs have one kind and one topic each.
    #[test]
    fn slow_reader_gets_the_same_bytes(
        ops in ops(KINDS.len() * TOPICS.len(), TOPICS.len()),
        outbox_bytes in prop_oneof![Just(0_usize), 20..300_usize, Just(1 << 20)],
        outbox_messages in prop_oneof![Just(0_u32), 1..5_u32],
        page_messages in prop_oneof![Just(1_usize), Just(3), Just(128)],
    ) {
        let mut server = TestServer::new(Rule { outbox_messages, ..rule() }, |limits| {
            limits.outbox_bytes = outbox_bytes;
        }, pages_of(page_messages));
        let mut pairs = Vec::new();
        for kind in KINDS {
            for topic in TOPICS {
                pairs.push((server.subscribe(kind, topic), server.subscribe(kind, topic)));
            }
        }
        reads_the_same(&mut server, &pairs, ops, &TOPICS, |own, topic| own == topic)?;
    }
}
