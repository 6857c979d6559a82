//! Tests an engine (the writer of the log) that takes longer than an idempotency window, or longer for one partition than for another.

use crore_broker::{Input, TurnLimits};
use crore_wire::topic;

use super::support::committed;
use super::{TestServer, message, subscribe, topic_at};

#[test]
fn retry_that_waited_longer_than_the_idempotency_window_is_recognised() {
    let topic = topic_at(0, 0);
    let mut server = TestServer::new(1, |settings| settings.publish.idempotency_window_s = 3);
    let (line, key) = (format!("POST /pub/{topic}"), "Idempotency-Key: \"k\"\r\n");
    let first = server.ask(&line, key, "once");
    server.settle();
    server.0.advance_and_tick_s(2);
    let again = server.ask(&line, key, "once");
    server.settle();
    // The engine has received only the first batch, and commits it late.
    server.0.advance_and_tick_s(6);
    assert!(server.0.commit_batches(|| true));
    server.settle();
    server.0.advance_and_tick_s(1);
    server.commit();
    assert_eq!(
        (server.statuses(first), server.statuses(again)),
        (vec![202], vec![202])
    );
    let asker = server.ask(&format!("GET /pub/{topic}"), "", "");
    server.commit();
    assert!(server.text(asker).contains("\"messages\": 1"));
    // After the window, with nothing in flight, a publish with this key is a new message.
    server.0.advance_and_tick_s(30);
    let late = server.ask(&line, key, "once");
    server.commit();
    assert!(server.text(late).contains("\"messages\": 2"));
}

#[test]
fn home_with_an_unanswered_batch_is_not_idle() {
    let topic = topic_at(1, 0);
    let mut server = TestServer::new(2, |_| {});
    // In the first second the server publishes its own topics. The next call releases the buffers of their marks in the log.
    let mut idles = || {
        server.0.advance_and_tick_s(1);
        server.commit();
        server.0.shards[1].is_idle()
    };
    assert!((0..4).any(|_| idles()));
    let publisher = server.post(&topic, "x");
    server.settle();
    server.0.advance_and_tick_s(1);
    assert!(!server.0.shards[1].is_idle());
    server.commit();
    assert_eq!(server.statuses(publisher), [202]);
}

/// A client that subscribes to a filter and then publishes must receive its own message, even if one partition is slower.
#[test]
fn subscription_by_filter_begins_before_the_clients_next_publish() {
    let [slow, quick] = [0, 1].map(|partition| {
        let at = |name: &String| topic::slot(name.as_bytes()) % 2 == partition;
        let mut names = (0..).map(|n| format!("t{n}")).filter(at);
        names.next().expect("there are many")
    });
    let mut server = TestServer::new(1, |_| {});
    let client = server.mqtt("a", 0);
    let publisher = server.post(&slow, "x");
    server.settle();
    let held = server.0.io[0].batches.pop_front().expect("a batch");
    server.0.send(client, subscribe("#"));
    server.0.send(client, message(&quick, "behind", 1, false));
    server.settle();
    while server.0.commit_batches(|| true) {
        server.settle();
    }
    assert_eq!(server.told(client), [""; 0]);
    server.0.handle(0, Input::Committed(committed(&held)));
    server.commit();
    assert_eq!(server.statuses(publisher).len(), 1);
    let answers = server.told(client);
    assert!(
        answers.iter().any(|it| it.ends_with("behind")),
        "{answers:?}"
    );
    assert!(
        !answers.iter().any(|it| it.starts_with(&slow)),
        "{answers:?}"
    );
    // The count of subscribers in the answer includes the one by filter.
    let publisher = server.post(&slow, "y");
    server.commit();
    assert_eq!(server.statuses(publisher), [201]);
    assert!(server.text(publisher).contains("\"subscribers\": 1"));
}

#[test]
fn room_for_a_new_topic_is_reserved_until_its_commit() {
    let [first, second, third] = [0, 1, 2].map(|n| topic_at(0, n));
    let mut server = TestServer::new(1, |settings| settings.limits.topics_per_shard = 2);
    let one = server.post(&first, "x");
    server.settle();
    // The topic's second message is in another batch. So the topic is committed while one of its records is in flight.
    let again = server.post(&first, "y");
    server.settle();
    assert!(server.0.commit_batches(|| true));
    server.settle();
    assert_eq!(server.statuses(one), [202]);
    let two = server.post(&second, "x");
    let three = server.post(&third, "x");
    server.settle();
    assert_eq!(server.text(two), "");
    assert_eq!(server.statuses(three), [503]);
    server.commit();
    assert_eq!(
        (server.statuses(again), server.statuses(two)),
        (vec![202], vec![202])
    );
}

#[test]
fn request_without_a_record_is_answered_at_once_when_nothing_is_in_flight() {
    let mut server = TestServer::new(1, |_| {});
    let asker = server.ask(&format!("GET /pub/{}", topic_at(0, 0)), "", "");
    server.settle();
    assert_eq!(server.statuses(asker), [404]);
    assert!(server.0.io[0].batches.is_empty());
}

#[test]
fn topic_created_in_flight_is_forgotten_when_it_is_idle() {
    let mut server = TestServer::new(1, |settings| {
        settings.rules[0].log_messages = 0;
        settings.rules[0].position_age_s = 5;
    });
    let publisher = server.post(&topic_at(0, 0), "x");
    server.settle();
    server.0.advance_and_tick_s(9);
    assert_eq!(server.0.shards[0].accounts().home_topics, 0);
    server.commit();
    assert_eq!(server.statuses(publisher), [202]);
    assert_eq!(server.0.shards[0].accounts().home_topics, 1);
    for _ in 0..3 {
        server.0.advance_and_tick_s(10);
        server.settle();
    }
    assert_eq!(server.0.shards[0].accounts().home_topics, 0);
}

/// No client may wait for the engine for ever: every kind of request is answered after a time, like a publish.
#[test]
fn every_request_is_answered_although_the_engine_is_silent() {
    let mut server = TestServer::new(2, |_| {});
    let [here, there] = [topic_at(0, 0), topic_at(1, 0)];
    let line = |topic: &str| format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n");
    let lines = [line(&here), line(&there)].concat();
    let fields = "Content-Type: application/x-ndjson\r\n";
    let batch = server.ask("POST /pub", fields, &lines);
    let info = server.ask(&format!("GET /pub/{here}"), "", "");
    server.settle();
    server.0.advance_and_tick_s(9);
    server.settle();
    assert_eq!((server.text(batch), server.text(info)), Default::default());
    server.be_silent();
    let answers = server.text(batch);
    assert!(answers.contains("\"published\": 0"), "{answers}");
    for line in 1..=2 {
        let reason = format!("{{\"line\": {line}, \"reason\": \"the outcome is not known");
        assert!(answers.contains(&reason), "{answers}");
    }
    assert_eq!(server.statuses(info), [503]);
    // Nothing is answered twice.
    server.commit();
    assert_eq!(
        (server.statuses(batch), server.statuses(info)),
        (vec![503], vec![503])
    );
    let info = server.ask(&format!("GET /pub/{here}"), "", "");
    server.commit();
    assert!(server.text(info).contains("\"messages\": 1"));
}

#[test]
fn batch_larger_than_the_credit_is_answered_although_the_engine_is_silent() {
    let topic = topic_at(0, 0);
    let mut server = TestServer::new(1, |settings| {
        settings.limits.publish_credit_bytes = 64 << 10
    });
    let line = format!(
        "{{\"topic\":\"{topic}\",\"data\":\"{}\"}}\n",
        "x".repeat(1000)
    );
    let fields = "Content-Type: application/x-ndjson\r\n";
    server.0.shards[0].set_turn_limits(TurnLimits {
        steps_per_turn: 64,
        ..TurnLimits::default()
    });
    let batch = server.ask("POST /pub", fields, &line.repeat(500));
    server.settle();
    assert_eq!(server.text(batch), "");
    server.be_silent();
    server.be_silent();
    let answers = server.text(batch);
    assert!(
        answers.contains("and the rest were not published"),
        "{answers}"
    );
    let done = answers.matches("the outcome is not known").count();
    assert!(done > 0 && done < 500, "{done}");
    server.commit();
    let info = server.ask(&format!("GET /pub/{topic}"), "", "");
    server.commit();
    assert_eq!(server.statuses(batch), [503]);
    assert_eq!(server.statuses(info), [200]);
}

/// A retry is recognised if it is sent within the window, even if its record reaches the engine after the window.
#[test]
fn a_retry_that_waits_for_its_batch_is_recognised() {
    let topic = topic_at(0, 0);
    let mut server = TestServer::new(1, |settings| settings.publish.idempotency_window_s = 3);
    let (line, key) = (format!("POST /pub/{topic}"), "Idempotency-Key: \"k\"\r\n");
    let first = server.ask(&line, key, "once");
    server.settle();
    // Fills the engine: more batches than may be in flight.
    for _ in 0..40 {
        server.post(&topic, "other");
        server.settle();
    }
    let held: Vec<_> = server.0.io[0].batches.drain(..).collect();
    server.0.advance_and_tick_s(2);
    let again = server.ask(&line, key, "once");
    server.settle();
    server.0.advance_and_tick_s(7);
    for batch in held {
        server.0.handle(0, Input::Committed(committed(&batch)));
    }
    server.commit();
    assert_eq!(
        (server.statuses(first), server.statuses(again)),
        (vec![202], vec![202])
    );
    let asker = server.ask(&format!("GET /pub/{topic}"), "", "");
    server.commit();
    assert!(
        server.text(asker).contains("\"messages\": 41"),
        "{}",
        server.text(asker)
    );
}

/// A key must be kept until the end of its window. Otherwise the effect of a record would depend on the number of keys that this process can keep.
#[test]
fn idempotency_key_is_kept_until_the_end_of_its_window() {
    let topic = topic_at(0, 0);
    let mut server = TestServer::new(1, |settings| {
        settings.publish.idempotency_keys = 20;
        settings.publish.idempotency_window_s = 60;
    });
    let publish = |server: &mut TestServer, key: u32| {
        let field = format!("Idempotency-Key: \"{key}\"\r\n");
        server.ask(&format!("POST /pub/{topic}"), &field, &key.to_string())
    };
    // Two batches of publishes, both in flight, then committed one after the other.
    let some: Vec<_> = (0..10).map(|key| publish(&mut server, key)).collect();
    server.commit();
    assert!(some.iter().all(|asker| server.statuses(*asker) == [202]));
    let more: Vec<_> = (10..30).map(|key| publish(&mut server, key)).collect();
    server.commit();
    let answers: Vec<_> = more
        .iter()
        .flat_map(|asker| server.statuses(*asker))
        .collect();
    // One publisher may use at most four fifths of all keys.
    let expected = [[202; 6].as_slice(), &[503; 14]].concat();
    assert_eq!(answers, expected);
    assert!(server.text(more[19]).contains("publish.idempotency_keys"));
    let again = publish(&mut server, 0);
    let plain = server.post(&topic, "x");
    server.commit();
    assert!(
        server.text(again).contains("Idempotency-Replayed"),
        "{}",
        server.text(again)
    );
    assert_eq!(
        (server.statuses(again), server.statuses(plain)),
        (vec![202], vec![202])
    );
    // After the window of the keys there is room again.
    server.0.advance_and_tick_s(61);
    let new = publish(&mut server, 30);
    server.commit();
    assert_eq!(server.statuses(new), [202]);
}
