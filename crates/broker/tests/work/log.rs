//! Tests that the work of a home (the part of a shard that keeps topics) on long logs is bounded in each turn: to seek, to remove messages,
//! and to record losses.

use crore_broker::orders::{LogPageRequest, Messages};
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Control, Input, Report, Ticket, TurnLimits};
use crore_wire::mqtt::Qos;

use crate::support::{self, NOW, TestServer};
use crate::{TURN_STEPS, UNIT_STEPS, batch, client, payloads, server, steps_of};

/// Number of messages that surround the sought ones: of the same topic before them, of another topic after them.
const SURROUNDING_MESSAGES: usize = 3_000;

fn settings() -> Settings {
    let rule = Rule {
        filter: "#".into(),
        log_messages: 2 * SURROUNDING_MESSAGES as u32,
        log_bytes: 1 << 20,
        ..Rule::default()
    };
    let mut settings = Settings {
        rules: vec![rule],
        ..Settings::default()
    };
    settings.mqtt.inflight_max = u16::MAX;
    settings
}

/// The lines of a batch with `count` equal messages.
fn lines(topic: &str, count: usize, fields: &str) -> String {
    format!("{{\"topic\":\"{topic}\",\"data\":\"x\"{fields}}}\n").repeat(count)
}

/// A message is found by its offset if it is still kept. The number of steps does not depend on the surrounding messages.
#[test]
fn messages_given_back_to_a_group_are_looked_for_in_bounded_steps() {
    // Fewer messages than a member may receive without an acknowledgement.
    const GIVEN_MESSAGES: usize = 15;
    for ttl in ["", ",\"ttl_s\":1"] {
        let mut server = server(settings());
        let publisher = server.open(0);
        server.send(publisher, batch(&lines("t", SURROUNDING_MESSAGES, "")));
        server.settle();
        let group = || ["$share/g/t".to_owned()].into_iter();
        let leaver = client(&mut server, group(), Qos::AtLeastOnce);
        server.send(publisher, batch(&lines("t", GIVEN_MESSAGES, ttl)));
        server.settle();
        assert_eq!(payloads(&server, leaver).len(), GIVEN_MESSAGES);
        let stayer = client(&mut server, group(), Qos::AtLeastOnce);
        // The sought messages are in the middle of the log. If they have a TTL, they expire before the search.
        server.send(publisher, batch(&lines("u", SURROUNDING_MESSAGES, "")));
        server.send(publisher, batch(&lines("t", 1, "")));
        server.settle();
        server.advance_and_tick_s(2);
        let reader = server.open(0);
        server.send(reader, "GET /history/t HTTP/1.1\r\nHost: localhost\r\n\r\n");
        server.settle();
        let count_before = payloads(&server, stayer).len();
        let before = server.shards[0].steps();
        server.cut(leaver);
        server.settle();
        let steps = server.shards[0].steps() - before;
        let is_kept = ttl.is_empty();
        let redelivered = payloads(&server, stayer).len() - count_before;
        assert!(
            redelivered >= if is_kept { GIVEN_MESSAGES } else { 0 },
            "{redelivered}"
        );
        assert!(
            redelivered <= if is_kept { GIVEN_MESSAGES + 1 } else { 1 },
            "{redelivered}"
        );
        assert!(steps <= 200 * GIVEN_MESSAGES as u64, "{steps} steps");
    }
}

/// The operator requests messages after an offset that belongs to another topic. Many messages of the topic precede that offset, and as many of the other
/// topic follow it, so the search is long in both directions.
#[test]
fn operators_search_for_a_page_is_continued_by_further_orders() {
    const SURROUNDING: usize = 20_000;
    const STEPS_MAX: u64 = 20_000;
    let mut settings = settings();
    settings.rules[0].log_messages = u32::MAX;
    settings.rules[0].log_bytes = 64 << 20;
    let mut server = server(settings);
    let publisher = server.open(0);
    for (topic, count) in [("t", SURROUNDING), ("u", SURROUNDING), ("t", 1)] {
        for _ in 0..count.div_ceil(1_000) {
            let line = lines(topic, count.min(1_000), "");
            server.send(publisher, batch(&line));
            server.settle();
        }
    }
    let mut page_after = |after| {
        let request = LogPageRequest {
            name: b"t".as_slice().into(),
            after,
            epoch: None,
            messages_max: 10,
            newest: false,
        };
        let before = server.shards[0].steps();
        server.handle(0, Input::Control(Ticket(1), Control::Log(request)));
        let steps = server.shards[0].steps() - before;
        assert!(steps <= STEPS_MAX, "{steps} steps");
        match server.io[0].reports.pop() {
            Some((_, Report::Messages(Some(page)))) => page,
            report => panic!("{report:?}"),
        }
    };
    let first_page = page_after(0);
    assert_eq!(first_page.messages.len(), 10);
    let first_offset = first_page.messages[0].offset;
    let mut page = page_after(first_offset + SURROUNDING as u64);
    assert!(page.messages.is_empty() && !page.lost);
    while let Messages {
        next: Some(next), ..
    } = page
    {
        page = page_after(next);
    }
    let offsets: Vec<_> = page.messages.iter().map(|it| it.offset).collect();
    assert_eq!(offsets, [first_offset + 2 * SURROUNDING as u64]);
}

/// The memory account nears its limit in the middle of a turn (one run of the event loop). Then the records of losses are dropped over the
/// next turns.
#[test]
fn losses_of_many_topics_are_dropped_a_thousand_in_a_turn() {
    const TOPICS: usize = 5_000;
    let mut settings = settings();
    settings.rules[0].log_messages = 1;
    settings.limits.memory_bytes = 4 << 20;
    let world = support::world(settings, 1, 1);
    let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
    let reader = server.open(0);
    let stream = "Host: localhost\r\nAccept: text/event-stream";
    server.send(
        reader,
        format!("GET /sub?filter=none/%23 HTTP/1.1\r\n{stream}\r\n\r\n"),
    );
    server.settle();
    let publisher = server.open(0);
    for _ in 0..2 {
        let line = |n: usize| lines(&format!("t/{n}"), 1, "");
        server.send(publisher, batch(&(0..TOPICS).map(line).collect::<String>()));
        server.settle();
    }
    let mut losses = server.shards[0].accounts().home_losses;
    assert_eq!(losses, TOPICS as u32);
    world.admission.account.charge_unowned(3_200 << 10);
    loop {
        let has_more = server.flush(0);
        let remaining = server.shards[0].accounts().home_losses;
        assert!(losses - remaining <= 1 << 10, "{losses} {remaining}");
        losses = remaining;
        if !has_more {
            break;
        }
    }
    // The shard stops when its records are below its part of the memory.
    assert!(losses < 2 << 10, "too many losses are left: {losses}");
    world.admission.account.release_unowned(3_200 << 10);
}

/// The limit that the messages have reached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FullLimit {
    Log,
    Topic,
}

/// A server whose log is full of tiny messages of `topics` topics, each with its own rule; and the connection of a publisher.
fn full_log(topics: usize, log_bytes: usize, full: FullLimit) -> (TestServer, usize) {
    let rule = |n: usize| Rule {
        filter: format!("r{n}/#"),
        ..settings().rules[0].clone()
    };
    let mut settings = settings();
    settings.rules = (0..topics).map(rule).collect();
    let (log_limit, topic_limit) = match full {
        FullLimit::Log => (log_bytes, 1 << 30),
        FullLimit::Topic => (1 << 30, log_bytes),
    };
    for rule in &mut settings.rules {
        (rule.log_messages, rule.log_bytes) = (1 << 20, topic_limit);
    }
    settings.limits.log_bytes = log_limit;
    let mut server = server(settings);
    let publisher = server.open(0);
    // The topics alternate, so that each removal belongs to another rule than the one before.
    let publish_to_each_topic: String = (0..topics)
        .map(|n| lines(&format!("r{n}/t"), 1, ""))
        .collect();
    while server.shards[0].accounts().log_bytes < log_bytes - (1 << 12) {
        let count = 2_000 / topics;
        server.send(publisher, batch(&publish_to_each_topic.repeat(count)));
        server.settle();
    }
    (server, publisher)
}

/// A large message needs the room of many small ones. They are removed over several turns. The log, or the topic, never exceeds its limit
/// by more than the message, and later publishes wait.
#[test]
fn room_for_a_large_message_is_made_in_bounded_steps() {
    const LOG_BYTES: usize = 1 << 20;
    const BYTES: usize = 256 << 10;
    const MESSAGES: u64 = 3;
    for (topics, full) in [
        (1, FullLimit::Log),
        (3, FullLimit::Log),
        (200, FullLimit::Log),
        (1, FullLimit::Topic),
    ] {
        let (mut server, publisher) = full_log(topics, LOG_BYTES, full);
        let before = server.shards[0].stats().published;
        let data = "x".repeat(BYTES);
        let topic = match full {
            FullLimit::Log => "r0/large",
            FullLimit::Topic => "r0/t",
        };
        let head = format!("POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n");
        let request = format!("{head}Content-Length: {BYTES}\r\n\r\n{data}");
        let steps_for_the_data = 2 * BYTES as u64 / 256;
        for _ in 0..MESSAGES {
            let steps = steps_of(&mut server, publisher, &request);
            let steps_max = u64::from(TURN_STEPS) + 2 * UNIT_STEPS + steps_for_the_data;
            assert!(
                steps <= steps_max,
                "{topics} {full:?}: {steps} steps of an input"
            );
        }
        let mut turns = 0;
        while {
            let steps = server.shards[0].steps();
            let has_more = server.flush(0);
            let steps = server.shards[0].steps() - steps;
            let steps_max = u64::from(TURN_STEPS) + 4 * UNIT_STEPS + steps_for_the_data;
            assert!(
                steps <= steps_max,
                "{topics} {full:?}: {steps} steps of a turn"
            );
            let log_bytes = server.shards[0].accounts().log_bytes;
            assert!(
                log_bytes <= LOG_BYTES + BYTES + 100,
                "{topics} {full:?}: {log_bytes} bytes"
            );
            has_more
        } {
            turns += 1;
        }
        assert!(turns > 3, "{turns} turns");
        assert_eq!(server.shards[0].stats().published, before + MESSAGES);
        assert!(server.shards[0].accounts().log_bytes <= LOG_BYTES);
    }
}

/// The home compares the oldest messages of all rules to make room. This comparison counts as work.
#[test]
fn rules_whose_messages_are_compared_for_room_are_counted() {
    const RULES: usize = 200;
    let (mut server, publisher) = full_log(RULES, 1 << 20, FullLimit::Log);
    server.send(publisher, batch(&lines("r0/t", 100, "")));
    server.settle();
    let steps = steps_of(&mut server, publisher, batch(&lines("r0/t", 1, "")));
    assert!(steps >= RULES as u64, "{steps} steps");
}
