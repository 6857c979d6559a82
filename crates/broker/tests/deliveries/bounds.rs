//! Tests a rule's limits of bytes and messages in an outbox: for one topic, for several topics, by filter, and over MQTT.

use super::*;

use crore_broker::settings::SlowConsumerPolicy;
use crore_wire::sse::GAP_EVENT;

const FRAME_BYTES: usize = HEADER_BYTES + 8;

/// Rules for all topics with this prefix, with these limits of bytes and messages.
fn by_rules(rules: &[(&str, usize, u32)]) -> Settings {
    let rule = |&(filter, outbox_bytes, outbox_messages): &(&str, usize, u32)| Rule {
        filter: filter.into(),
        outbox_bytes,
        outbox_messages,
        ..rule()
    };
    Settings {
        rules: rules.iter().map(rule).collect(),
        ..Settings::default()
    }
}

fn flood(server: &mut TestServer, topics: &[&'static str], at_once: bool) {
    let message = |n: usize| (topics[n % topics.len()], format!("message{n}"));
    let all: Vec<_> = (0..6 * topics.len()).map(message).collect();
    for messages in all.chunks(if at_once { all.len() } else { 1 }) {
        server.publish(messages.iter().cloned());
        server.settle();
    }
}

/// Checks that the subscriber, once its socket accepts bytes, receives the rest of six messages and a new one, without a hole.
fn reads_on(server: &mut TestServer, link: usize, case: &str) {
    server.set_window(link, None);
    server.settle();
    server.publish([("t/1", "newest".into())]);
    server.settle();
    let all: Vec<u8> = (0..6).flat_map(|n| frame(&format!("message{n}"))).collect();
    let all = [all, frame("newest")].concat();
    assert_eq!(server.received(link), all, "{case}");
    assert_eq!(server.accounts().outboxes, 0, "{case}");
}

#[test]
fn outbox_holds_as_many_messages_as_the_rule_allows() {
    for (topics, least) in [("t/1", 0), ("t/1&topic=u", 1), ("filter=t/%23", 0)] {
        for (most, window) in [(1, 0), (2, 0), (2, 3), (3, 13), (5, 0)] {
            for at_once in [false, true] {
                let case = format!("{topics}: {most} messages, window {window}, {at_once}");
                let mut server = TestServer::with(by_rules(&[("t/#", 0, most)]), pages_of(2), 1);
                let link = match topics.starts_with("filter") {
                    true => server.subscribe_to(Kind::Plain, topics),
                    false => server.subscribe(Kind::Plain, topics),
                };
                server.set_window(link, Some(window));
                flood(&mut server, &["t/1"], at_once);
                // The rest of a partly sent message counts as one of them.
                let waits = least.max(most as usize) * FRAME_BYTES - window % FRAME_BYTES;
                assert_eq!(server.accounts().outbox_bytes, waits, "{case}");
                assert_eq!(server.stats().fallbacks, 1, "{case}");
                reads_on(&mut server, link, &case);
            }
        }
    }
}

/// The broker reports the number of waiting messages of the slowest subscriber. The simulator compares that number with the rules.
#[test]
fn highest_number_of_waiting_messages_is_that_of_the_slowest_subscriber() {
    let mut server = TestServer::with(by_rules(&[("t/#", 0, 5)]), TurnLimits::default(), 1);
    let mut most_with = |windows: &[Option<usize>]| {
        let links: Vec<_> = windows
            .iter()
            .map(|window| {
                let link = server.subscribe(Kind::Plain, "t/1");
                server.set_window(link, *window);
                link
            })
            .collect();
        for n in 0..4 {
            server.publish([("t/1", format!("message{n}"))]);
            server.settle();
        }
        let most = server.most_waiting();
        for link in links {
            server.set_window(link, None);
        }
        server.settle();
        assert_eq!(server.most_waiting(), 0, "all have gone");
        most
    };
    let sent = |messages: usize| Some(messages * FRAME_BYTES);
    assert_eq!(most_with(&[]), 0);
    assert_eq!(most_with(&[None]), 0);
    assert_eq!(most_with(&[sent(3)]), 1);
    assert_eq!(most_with(&[sent(3), sent(1), None, sent(2)]), 3);
    assert_eq!(most_with(&[sent(0), sent(3)]), 4);
}

#[test]
fn written_message_makes_room_for_another() {
    for topics in ["t/1", "t/1&topic=u"] {
        let mut server = TestServer::with(by_rules(&[("t/#", 0, 2)]), TurnLimits::default(), 1);
        let link = server.subscribe(Kind::Plain, topics);
        server.set_window(link, Some(0));
        for n in 0..6 {
            server.publish([("t/1", format!("message{n}"))]);
            server.settle();
            if n > 0 {
                // One of the two waiting messages is written, so the outbox is never empty.
                server.set_window(link, Some(FRAME_BYTES));
                server.settle();
            }
        }
        assert_eq!(server.stats().fallbacks, 0, "{topics}");
        reads_on(&mut server, link, topics);
    }
}

#[test]
fn outbox_limit_of_a_rule_may_be_below_or_above_the_general_limit() {
    let mut settings = by_rules(&[
        ("less/#", 2 * FRAME_BYTES, 0),
        ("more/#", 5 * FRAME_BYTES, 0),
    ]);
    settings.limits.outbox_bytes = 3 * FRAME_BYTES;
    for (topic, fits) in [("less/1", 2), ("more/1", 5), ("other", 3)] {
        for by_filter in [false, true] {
            let mut server = TestServer::with(settings.clone(), TurnLimits::default(), 1);
            let link = match by_filter {
                true => server.subscribe_to(Kind::Plain, "filter=%23"),
                false => server.subscribe(Kind::Plain, topic),
            };
            server.set_window(link, Some(0));
            flood(&mut server, &[topic], false);
            assert_eq!(
                server.accounts().outbox_bytes,
                fits * FRAME_BYTES,
                "{topic}"
            );
            assert_eq!(server.stats().fallbacks, 1, "{topic}");
            server.set_window(link, None);
            server.settle();
            assert!(server.received(link).ends_with(b"message5"), "{topic}");
        }
    }
}

/// The limits for a message are those of its topic's rule. Waiting messages of all topics count together.
#[test]
fn each_message_has_the_outbox_limit_of_its_topics_rule() {
    let settings = by_rules(&[("few/#", 0, 2), ("many/#", 0, 4)]);
    let mut server = TestServer::with(settings, TurnLimits::default(), 1);
    let link = server.subscribe(Kind::Plain, "few/1&topic=many/1");
    server.set_window(link, Some(0));
    flood(&mut server, &["few/1", "many/1"], false);
    assert_eq!(server.accounts().outbox_bytes, 4 * FRAME_BYTES);
    assert_eq!(server.stats().fallbacks, 2, "one for each topic");
    server.set_window(link, None);
    server.settle();
    let text = server.take_received(link);
    let position_of = |n: usize| text.find(&format!("message{n}")).expect("it came");
    for first in [0, 1] {
        let places: Vec<usize> = (first..12).step_by(2).map(position_of).collect();
        assert!(places.is_sorted(), "{text}");
    }
    assert_eq!(text.matches("message").count(), 12);
}

/// A stream of two topics waits until the remote home (the part of another shard that keeps topics) has answered. Meanwhile messages are
/// held, up to the limit.
#[test]
fn messages_held_for_a_remote_home_are_bounded_by_rule() {
    let home = |topic: &str| crore_wire::topic::slot(topic.as_bytes()) % 2;
    let names = || (0..).map(|n: u32| format!("t/{n}"));
    let near = names().find(|name| home(name) == 0).expect("one is near");
    let far = names().find(|name| home(name) == 1).expect("one is far");
    for (query, begun) in [
        (format!("topic={near}&topic={far}"), 4),
        ("filter=t/%23".into(), 4),
    ] {
        for (most, falls_back) in [(1, true), (3, true), (4, false), (0, false)] {
            let mut server =
                TestServer::with(by_rules(&[("t/#", 0, most)]), TurnLimits::default(), 2);
            let link = server.ask_for(Kind::Meta, &query);
            server.settle();
            for n in 0..begun {
                server.publish([(&near[..], format!("message{n}"))]);
                server.settle();
            }
            assert_eq!(server.received(link), b"", "the far home has not answered");
            server.run_remote_shard();
            server.settle();
            server.run_remote_shard();
            let text = server.take_received(link);
            let position_of = |n: usize| text.find(&format!("message{n}")).expect("it came");
            assert!((0..begun).map(position_of).is_sorted(), "{query} {most}");
            assert_eq!(text.matches("message").count(), begun, "{query} {most}");
            assert_eq!(
                server.stats().fallbacks > 0,
                falls_back && !query.starts_with("filter")
            );
        }
    }
}

/// A client is disconnected right after a gap (the notice of missed messages) of one topic. It has received nothing of another topic, whose messages wait
/// for the remote home. After a reconnect these messages must come, even if there were too many to hold.
#[test]
fn messages_held_for_a_remote_home_come_again_after_a_reconnect_at_a_gap() {
    const EVENTS: &str = "Host: localhost\r\nAccept: text/event-stream\r\n";
    let home = |topic: &str| crore_wire::topic::slot(topic.as_bytes()) % 2;
    let mut near = (0..).map(|n: u32| format!("t/{n}"));
    let mut near = || near.find(|name| home(name) == 0).expect("one is near");
    let (short, other) = (near(), near());
    let mut far = (0..).map(|n: u32| format!("t/{n}"));
    let far = far.find(|name| home(name) == 1).expect("one is far");
    let mut settings = by_rules(&[(&short, 0, 0), ("t/#", 0, 4)]);
    settings.rules[0].log_messages = 1;
    settings.rules[0].slow = SlowConsumerPolicy::Skip;
    let mut server = TestServer::with(settings, TurnLimits::default(), 2);
    for n in 0..3 {
        server.publish([(&short[..], format!("old{n}"))]);
        server.settle();
    }
    let target = format!("/sub?topic={short}&topic={other}&topic={far}");
    let begin = format!("GET {target}&since=17-0 HTTP/1.1\r\n{EVENTS}\r\n");
    let link = server.connect_and_send(begin);
    server.settle();
    for n in 0..4 {
        server.publish([(&other[..], format!("message{n}"))]);
        server.settle();
    }
    assert_eq!(server.stats().fallbacks, 1, "they are too many to wait");
    server.run_remote_shard();
    let received = server.take_received(link);
    let gap = received
        .find(&format!("event: {GAP_EVENT}"))
        .expect("one is told");
    let event = received[..gap].rfind("\n\n").map_or(0, |end| end + 2);
    let end = event + received[event..].find("\n\n").expect("it ends");
    let id = received[event..end]
        .split_once("id: ")
        .expect("it has an id")
        .1;
    let id = id.lines().next().expect("a line");
    let link = server.connect_and_send(format!(
        "GET {target} HTTP/1.1\r\n{EVENTS}Last-Event-ID: {id}\r\n\r\n"
    ));
    server.settle();
    server.run_remote_shard();
    let again = server.take_received(link);
    assert_eq!(again.matches("message").count(), 4, "{again}");
}

/// Over MQTT: QoS 0 and 1, by topic and by filter.
#[test]
fn outbox_of_an_mqtt_client_holds_as_many_messages_as_the_rule_allows() {
    const CONNECT: &[u8] = b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0";
    for filter in ["t/1", "t/#"] {
        for qos in [0, 1] {
            for (most, fits) in [(0, 6), (1, 1), (3, 3)] {
                let case = format!("{filter} with QoS {qos}: {most}");
                let mut server =
                    TestServer::with(by_rules(&[("t/#", 0, most)]), TurnLimits::default(), 1);
                let subscribe = [b"\x82\x08\0\x01\0\x03", filter.as_bytes(), &[qos]].concat();
                let link = server.connect_and_send([CONNECT, &subscribe].concat());
                server.settle();
                let granted = server.received(link).len();
                server.set_window(link, Some(0));
                flood(&mut server, &["t/1"], false);
                let packet_bytes = 2 + 2 + 3 + 8 + 2 * usize::from(qos);
                let waits = server.accounts().outbox_bytes / packet_bytes;
                assert_eq!(waits, fits, "{case}");
                server.set_window(link, None);
                server.settle();
                let bytes = server.received(link)[granted..].to_vec();
                let text = String::from_utf8_lossy(&bytes);
                let position_of = |n: usize| text.find(&format!("message{n}")).expect("it came");
                assert!((0..6).map(position_of).is_sorted(), "{case}");
                assert_eq!(text.matches("message").count(), 6, "{case}");
            }
        }
    }
}

/// A subscriber begins live and waits for a remote home. Meanwhile messages in the log of the local home become too old. The subscriber
/// gets a gap for them, even if they are not removed yet.
#[test]
fn loss_before_a_remote_home_has_answered_is_reported() {
    let home = |topic: &str| crore_wire::topic::slot(topic.as_bytes()) % 2;
    let mut names = (0..)
        .map(|n: u32| format!("t/{n}"))
        .filter(|name| home(name) == 0);
    let (near, other) = (names.next().expect("one"), names.next().expect("another"));
    let mut settings = by_rules(&[("t/#", 0, 2)]);
    settings.rules[0].log_age_s = 3;
    settings.rules[0].slow = SlowConsumerPolicy::Skip;
    let turn_limits = TurnLimits {
        page_entries: 1,
        ..TurnLimits::default()
    };
    let mut server = TestServer::with(settings, turn_limits, 2);
    let link = server.ask_for(Kind::Meta, &format!("filter={near}"));
    server.settle();
    // Expired messages are removed one by one. These go first.
    server.publish((0..40).map(|_| (&other[..], "older".into())));
    for n in 0..5 {
        server.publish([(&near[..], format!("message{n}"))]);
        server.settle();
    }
    server.advance_s(4);
    server.run_remote_shard();
    server.settle();
    server.publish([(&near[..], "newest".into())]);
    server.settle();
    let text = server.take_received(link);
    let places = ["message0", "message1", "gap: ", "newest"].map(|part| text.find(part));
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{text}"
    );
}
