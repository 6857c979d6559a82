//! Tests an engine (the writer of the log) that takes longer than an idempotency window, or longer for one partition than for another.

use crore_broker::{Input, TurnLimits};
use crore_wire::topic;

use super::support::committed;
use super::{Town, message, subscribe, topic_at};

#[test]
fn a_retry_that_waited_longer_than_the_window_is_recognised() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |settings| settings.publish.idempotency_window_s = 3);
    let (line, key) = (format!("POST /pub/{topic}"), "Idempotency-Key: \"k\"\r\n");
    let first = town.ask(&line, key, "once");
    town.settle();
    town.0.tick_s(2);
    let again = town.ask(&line, key, "once");
    town.settle();
    // The engine has received only the first batch, and commits it late.
    town.0.tick_s(6);
    assert!(town.0.decide(|| true));
    town.settle();
    town.0.tick_s(1);
    town.commit();
    assert_eq!(
        (town.statuses(first), town.statuses(again)),
        (vec![202], vec![202])
    );
    let asker = town.ask(&format!("GET /pub/{topic}"), "", "");
    town.commit();
    assert!(town.text(asker).contains("\"messages\": 1"));
    // After the window, with nothing in flight, a publish with this key is a new message.
    town.0.tick_s(30);
    let late = town.ask(&line, key, "once");
    town.commit();
    assert!(town.text(late).contains("\"messages\": 2"));
}

#[test]
fn a_home_whose_engine_is_silent_is_not_idle() {
    let topic = topic_at(1, 0);
    let mut town = Town::new(2, |_| {});
    // In the first second the server publishes its own topics. A later one frees the buffers of their marks in the log.
    let mut idles = || {
        town.0.tick_s(1);
        town.commit();
        town.0.shards[1].is_idle()
    };
    assert!((0..4).any(|_| idles()));
    let publisher = town.post(&topic, "x");
    town.settle();
    town.0.tick_s(1);
    assert!(!town.0.shards[1].is_idle());
    town.commit();
    assert_eq!(town.statuses(publisher), [202]);
}

/// A client that subscribes to a filter and then publishes must receive its own message, even if one partition is slower.
#[test]
fn a_filter_begins_before_what_was_published_behind_it() {
    let [slow, quick] = [0, 1].map(|partition| {
        let at = |name: &String| topic::slot(name.as_bytes()) % 2 == partition;
        let mut names = (0..).map(|n| format!("t{n}")).filter(at);
        names.next().expect("there are many")
    });
    let mut town = Town::new(1, |_| {});
    let client = town.mqtt("a", 0);
    let publisher = town.post(&slow, "x");
    town.settle();
    let held = town.0.io[0].batches.pop_front().expect("a batch");
    town.0.say(client, subscribe("#"));
    town.0.say(client, message(&quick, "behind", 1, false));
    town.settle();
    while town.0.decide(|| true) {
        town.settle();
    }
    assert_eq!(town.told(client), [""; 0]);
    town.0.handle(0, Input::Committed(committed(&held)));
    town.commit();
    assert_eq!(town.statuses(publisher).len(), 1);
    let told = town.told(client);
    assert!(told.iter().any(|it| it.ends_with("behind")), "{told:?}");
    assert!(!told.iter().any(|it| it.starts_with(&slow)), "{told:?}");
    // The answer counts the subscriber by filter as one subscriber.
    let publisher = town.post(&slow, "y");
    town.commit();
    assert_eq!(town.statuses(publisher), [201]);
    assert!(town.text(publisher).contains("\"subscribers\": 1"));
}

#[test]
fn a_topic_has_room_reserved_until_it_is_made() {
    let [first, second, third] = [0, 1, 2].map(|n| topic_at(0, n));
    let mut town = Town::new(1, |settings| settings.limits.topics_per_shard = 2);
    let one = town.post(&first, "x");
    town.settle();
    // The second message of the topic is in another batch. So the topic is committed, and a record of it is still in flight.
    let again = town.post(&first, "y");
    town.settle();
    assert!(town.0.decide(|| true));
    town.settle();
    assert_eq!(town.statuses(one), [202]);
    let two = town.post(&second, "x");
    let three = town.post(&third, "x");
    town.settle();
    assert_eq!(town.text(two), "");
    assert_eq!(town.statuses(three), [503]);
    town.commit();
    assert_eq!(
        (town.statuses(again), town.statuses(two)),
        (vec![202], vec![202])
    );
}

#[test]
fn request_without_a_record_is_answered_at_once_when_nothing_is_in_flight() {
    let mut town = Town::new(1, |_| {});
    let asker = town.ask(&format!("GET /pub/{}", topic_at(0, 0)), "", "");
    town.settle();
    assert_eq!(town.statuses(asker), [404]);
    assert!(town.0.io[0].batches.is_empty());
}

#[test]
fn a_topic_that_was_under_way_is_forgotten_once_it_is_idle() {
    let mut town = Town::new(1, |settings| {
        settings.rules[0].log_messages = 0;
        settings.rules[0].position_age_s = 5;
    });
    let publisher = town.post(&topic_at(0, 0), "x");
    town.settle();
    town.0.tick_s(9);
    assert_eq!(town.0.shards[0].accounts().home_topics, 0);
    town.commit();
    assert_eq!(town.statuses(publisher), [202]);
    assert_eq!(town.0.shards[0].accounts().home_topics, 1);
    for _ in 0..3 {
        town.0.tick_s(10);
        town.settle();
    }
    assert_eq!(town.0.shards[0].accounts().home_topics, 0);
}

/// No client waits for the engine for ever: every kind of request gets an answer, like a publish.
#[test]
fn requests_end_though_the_engine_is_silent() {
    let mut town = Town::new(2, |_| {});
    let [here, there] = [topic_at(0, 0), topic_at(1, 0)];
    let line = |topic: &str| format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n");
    let lines = [line(&here), line(&there)].concat();
    let fields = "Content-Type: application/x-ndjson\r\n";
    let batch = town.ask("POST /pub", fields, &lines);
    let info = town.ask(&format!("GET /pub/{here}"), "", "");
    town.settle();
    town.0.tick_s(9);
    town.settle();
    assert_eq!((town.text(batch), town.text(info)), Default::default());
    town.be_silent();
    let told = town.text(batch);
    assert!(told.contains("\"published\": 0"), "{told}");
    for line in 1..=2 {
        let reason = format!("{{\"line\": {line}, \"reason\": \"the outcome is not known");
        assert!(told.contains(&reason), "{told}");
    }
    assert_eq!(town.statuses(info), [503]);
    // Nothing is answered twice.
    town.commit();
    assert_eq!(
        (town.statuses(batch), town.statuses(info)),
        (vec![503], vec![503])
    );
    let info = town.ask(&format!("GET /pub/{here}"), "", "");
    town.commit();
    assert!(town.text(info).contains("\"messages\": 1"));
}

#[test]
fn a_batch_of_more_than_the_credit_ends_though_the_engine_is_silent() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |settings| {
        settings.limits.publish_credit_bytes = 64 << 10
    });
    let line = format!(
        "{{\"topic\":\"{topic}\",\"data\":\"{}\"}}\n",
        "x".repeat(1000)
    );
    let fields = "Content-Type: application/x-ndjson\r\n";
    town.0.shards[0].set_turn_limits(TurnLimits {
        steps_per_turn: 64,
        ..TurnLimits::default()
    });
    let batch = town.ask("POST /pub", fields, &line.repeat(500));
    town.settle();
    assert_eq!(town.text(batch), "");
    town.be_silent();
    town.be_silent();
    let told = town.text(batch);
    assert!(told.contains("and the rest were not published"), "{told}");
    let done = told.matches("the outcome is not known").count();
    assert!(done > 0 && done < 500, "{done}");
    town.commit();
    let info = town.ask(&format!("GET /pub/{topic}"), "", "");
    town.commit();
    assert_eq!(town.statuses(batch), [503]);
    assert_eq!(town.statuses(info), [200]);
}

/// A retry counts as one if it is sent within the window, even if its record reaches the engine later.
#[test]
fn a_retry_that_waits_for_its_batch_is_recognised() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |settings| settings.publish.idempotency_window_s = 3);
    let (line, key) = (format!("POST /pub/{topic}"), "Idempotency-Key: \"k\"\r\n");
    let first = town.ask(&line, key, "once");
    town.settle();
    // Fills the engine: more batches than may be in flight.
    for _ in 0..40 {
        town.post(&topic, "other");
        town.settle();
    }
    let held: Vec<_> = town.0.io[0].batches.drain(..).collect();
    town.0.tick_s(2);
    let again = town.ask(&line, key, "once");
    town.settle();
    town.0.tick_s(7);
    for batch in held {
        town.0.handle(0, Input::Committed(committed(&batch)));
    }
    town.commit();
    assert_eq!(
        (town.statuses(first), town.statuses(again)),
        (vec![202], vec![202])
    );
    let asker = town.ask(&format!("GET /pub/{topic}"), "", "");
    town.commit();
    assert!(
        town.text(asker).contains("\"messages\": 41"),
        "{}",
        town.text(asker)
    );
}

/// A key must not be forgotten before the end of its window. Whether a record takes effect must not depend on how many keys this process
/// can keep.
#[test]
fn no_key_goes_before_its_time() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |settings| {
        settings.publish.idempotency_keys = 20;
        settings.publish.idempotency_window_s = 60;
    });
    let publish = |town: &mut Town, key: u32| {
        let field = format!("Idempotency-Key: \"{key}\"\r\n");
        town.ask(&format!("POST /pub/{topic}"), &field, &key.to_string())
    };
    // Two batches of publishes, both in flight, then committed one after the other.
    let some: Vec<_> = (0..10).map(|key| publish(&mut town, key)).collect();
    town.commit();
    assert!(some.iter().all(|asker| town.statuses(*asker) == [202]));
    let more: Vec<_> = (10..30).map(|key| publish(&mut town, key)).collect();
    town.commit();
    let told: Vec<_> = more
        .iter()
        .flat_map(|asker| town.statuses(*asker))
        .collect();
    // One publisher may use at most four fifths of all keys.
    let expected = [[202; 6].as_slice(), &[503; 14]].concat();
    assert_eq!(told, expected);
    assert!(town.text(more[19]).contains("publish.idempotency_keys"));
    let again = publish(&mut town, 0);
    let plain = town.post(&topic, "x");
    town.commit();
    assert!(
        town.text(again).contains("Idempotency-Replayed"),
        "{}",
        town.text(again)
    );
    assert_eq!(
        (town.statuses(again), town.statuses(plain)),
        (vec![202], vec![202])
    );
    // After the window of the keys there is room again.
    town.0.tick_s(61);
    let new = publish(&mut town, 30);
    town.commit();
    assert_eq!(town.statuses(new), [202]);
}
