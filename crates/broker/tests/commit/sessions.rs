//! MQTT clients over an engine that takes time.

use super::{Town, connect, message, near_and_far, subscribe, topic_at};

#[test]
fn a_publish_is_acknowledged_once_it_is_kept() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |_| {});
        let client = town.mqtt("a", 0);
        town.0.say(client, message(&topic, "x", 1, false));
        town.settle();
        assert_eq!(town.told(client), [""; 0]);
        town.fail();
        assert_eq!(town.told(client), ["puback Unspecified error"]);
        town.0.say(client, message(&topic, "x", 1, false));
        town.commit();
        assert_eq!(town.told(client), ["puback No matching subscribers"]);
    }
}

/// A client may send at once what its user publishes: past `mqtt.receive_max` messages without an answer it is not read, and served all the same.
#[test]
fn a_client_with_many_unanswered_messages_is_not_read_until_they_are_kept() {
    const MANY: u16 = 50;
    for topic in near_and_far() {
        let mut town = Town::new(2, |settings| settings.mqtt.receive_max = 10);
        let client = town.mqtt("a", 0);
        let burst: Vec<Vec<u8>> = (1..=MANY)
            .map(|id| message(&topic, "x", id, false))
            .collect();
        town.0.say(client, burst.concat());
        town.settle();
        assert_eq!(town.told(client), [""; 0]);
        let under_way: usize = town.0.shards.iter().map(|it| it.accounts().asks).sum();
        assert!(under_way <= 11, "{under_way} publishes");
        assert!(!town.0.socket(client).is_read);
        for _ in 0..MANY {
            town.commit();
        }
        let told = town.told(client);
        assert_eq!(told, vec!["puback No matching subscribers"; MANY.into()]);
        assert!(town.0.socket(client).is_read);
    }
}

/// A message that nobody hears about is counted where it is lost, and is not where it is kept.
#[test]
fn what_is_lost_unanswered_is_counted() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |_| {});
    let client = town.mqtt("a", 0);
    town.0.say(client, message(&topic, "x", 0, false));
    town.commit();
    assert_eq!(town.0.shards[0].stats().dropped, 0);
    for lost in 1..3 {
        town.0.say(client, message(&topic, "x", 0, false));
        town.fail();
        assert_eq!(town.0.shards[0].stats().dropped, lost);
    }
    assert_eq!(town.told(client), [""; 0]);
}

#[test]
fn who_subscribes_behind_its_retained_message_gets_it_as_retained() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |_| {});
        let client = town.mqtt("a", 0);
        town.0.say(client, message(&topic, "kept", 0, true));
        town.0.say(client, subscribe(&topic));
        town.settle();
        assert_eq!(town.told(client), [""; 0]);
        town.commit();
        let told = town.told(client);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told.contains(&format!("{topic} retained 0 kept")),
            "{told:?}"
        );
    }
}

#[test]
fn a_session_that_is_not_kept_is_refused() {
    let mut town = Town::new(1, |settings| settings.mqtt.sessions_max = 1);
    let client = town.open();
    town.0.say(client, connect("a", 100));
    let other = town.open();
    town.0.say(other, connect("b", 100));
    town.settle();
    // The room is reserved.
    assert_eq!(town.told(other), ["connack Quota exceeded false"]);
    town.fail();
    assert_eq!(town.told(client), ["connack Server unavailable false"]);
    assert_eq!(town.0.shards[0].accounts().sessions, 0);
    town.mqtt("b", 100);
    assert_eq!(town.0.shards[0].accounts().sessions, 1);
}

/// The need of a subscription, and the session that its connection gives back, are appended until they are kept.
#[test]
fn a_session_survives_an_engine_that_fails() {
    for filter in ["t0", "#"] {
        let mut town = Town::new(1, |settings| settings.rules[0].log_messages = 0);
        let client = town.mqtt("a", 1000);
        town.0.say(client, subscribe(filter));
        for _ in 0..3 {
            town.fail();
        }
        assert_eq!(town.told(client), ["SubAck"]);
        town.0.cut(client);
        let again = town.open();
        town.0.say(again, connect("a", 1000));
        for _ in 0..3 {
            town.fail();
        }
        // The claim was refused; what its former connection gave back was not.
        assert_eq!(town.told(again), ["connack Server unavailable false"]);
        town.commit();
        let publisher = town.mqtt("p", 0);
        town.0.say(publisher, message("t0", "meanwhile", 1, false));
        town.commit();
        let again = town.open();
        town.0.say(again, connect("a", 1000));
        town.commit();
        let told = town.told(again);
        assert_eq!(told, ["connack Success true", "t0 1 meanwhile"]);
    }
}

#[test]
fn a_session_that_has_expired_ends_once_its_end_is_kept() {
    let mut town = Town::new(1, |settings| settings.rules[0].log_messages = 0);
    let client = town.mqtt("a", 10);
    town.0.say(client, subscribe("#"));
    town.commit();
    town.0.cut(client);
    town.commit();
    town.0.tick_s(20);
    town.settle();
    let accounts = town.0.shards[0].accounts();
    assert_eq!((accounts.sessions, accounts.keepers), (1, 1));
    town.fail();
    town.0.tick_s(1);
    town.commit();
    let accounts = town.0.shards[0].accounts();
    assert_eq!(
        (accounts.sessions, accounts.keepers, accounts.asks),
        (0, 0, 0)
    );
}

#[test]
fn a_need_that_is_given_up_is_forgotten_though_the_engine_fails() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |_| {});
    let client = town.mqtt("a", 0);
    for filter in [&topic, "x/#"] {
        town.0.say(client, subscribe(filter));
        town.commit();
    }
    assert_eq!(town.0.shards[0].accounts().keepers, 2);
    town.0.cut(client);
    town.fail();
    town.fail();
    town.commit();
    assert_eq!(town.0.shards[0].accounts().keepers, 0);
}

/// A claim of a session that exists already is not counted for its address, and so is not given back when it is not kept.
#[test]
fn a_claim_that_is_not_kept_gives_back_what_it_was_counted_for() {
    let mut town = Town::new(1, |settings| settings.mqtt.sessions_per_address_max = 1);
    for lost in [true, false] {
        let client = town.open();
        town.0.say(client, connect("a", 100));
        match lost {
            true => town.fail(),
            false => town.commit(),
        }
        assert_eq!(town.told(client).len(), 1);
        town.0.cut(client);
        town.commit();
    }
    let again = town.open();
    town.0.say(again, connect("a", 100));
    town.fail();
    assert_eq!(town.told(again), ["connack Server unavailable false"]);
    let other = town.open();
    town.0.say(other, connect("b", 100));
    town.commit();
    assert_eq!(town.told(other), ["connack Quota exceeded false"]);
}

#[test]
fn publishes_under_way_weigh_their_bytes() {
    for (bytes, most) in [(9_000, 2), (10, 5)] {
        for topic in near_and_far() {
            let mut town = Town::new(2, |settings| settings.limits.publish_credit_bytes = 20_000);
            let client = town.mqtt("a", 0);
            let data = "x".repeat(bytes);
            for id in 1..=8 {
                town.0.say(client, message(&topic, &data, id, false));
                town.settle();
            }
            let under_way: usize = town.0.shards.iter().map(|it| it.accounts().asks).sum();
            assert_eq!(under_way, most);
            town.commit();
            assert_eq!(town.told(client).len(), 8);
        }
    }
}
