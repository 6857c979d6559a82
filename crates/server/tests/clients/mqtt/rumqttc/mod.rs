//! `rumqttc`, Rust's client, inside the test program: both versions, over TCP and WebSocket.

mod framed;
mod peer;

use crate::support::broker::Broker;
use peer::{CLEAN, How, KEPT, Peer, Way};
use rumqttc::v5::mqttbytes::v5::{DisconnectReasonCode, PublishProperties};

/// A run of a scenario: a way to the broker, and names that no other run uses.
struct Run<'a> {
    way: Way,
    broker: &'a Broker,
}

impl Run<'_> {
    fn is_five(&self) -> bool {
        self.way.version == 5
    }

    /// A topic or client id of this run.
    fn own(&self, name: &str) -> String {
        format!("{}-{}/{name}", self.way.door, self.way.version)
    }

    fn connect(&self, name: &str, how: How<'_>) -> Peer {
        self.connect_or_resume(name, how).0
    }

    /// Connects to a session that is there.
    fn resume(&self, name: &str, how: How<'_>) -> Peer {
        let (peer, present) = self.connect_or_resume(name, how);
        assert!(present, "{name}'s session has gone");
        peer
    }

    fn connect_or_resume(&self, name: &str, how: How<'_>) -> (Peer, bool) {
        Peer::connect(self.way, self.broker, &self.own(name), how)
    }
}

/// Runs a scenario over both doors in both versions.
fn each(scenario: fn(&Run<'_>)) {
    over(&[4, 5], scenario);
}

/// Runs a scenario of MQTT 5 over both doors.
fn each_five(scenario: fn(&Run<'_>)) {
    over(&[5], scenario);
}

fn over(versions: &[u8], scenario: fn(&Run<'_>)) {
    let broker = &Broker::start();
    let way = |version: &u8| ["tcp", "ws"].map(|door| (*version, door));
    std::thread::scope(|scope| {
        for (version, door) in versions.iter().flat_map(way) {
            let way = Way { version, door };
            std::thread::Builder::new()
                .name(format!("{way:?}"))
                .spawn_scoped(scope, move || scenario(&Run { way, broker }))
                .expect("a thread");
        }
    });
}

fn expiring(seconds: u32) -> PublishProperties {
    PublishProperties {
        message_expiry_interval: Some(seconds),
        ..PublishProperties::default()
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn every_quality_comes_as_it_was_sent() {
    each(|run| {
        let mut it = run.connect("it", CLEAN);
        let topic = run.own("t");
        it.subscribe(&topic, 2);
        for qos in 0..=2 {
            let text = format!("of {qos}");
            it.publish(&topic, qos, false, &text);
            let came = it.message();
            assert_eq!((came.text, came.qos, came.retain), (text, qos, false));
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_retained_message_is_set_read_and_removed() {
    each(|run| {
        let mut it = run.connect("it", CLEAN);
        let topic = run.own("t");
        it.publish(&topic, 1, true, "kept");
        for filter in ["t", "+"] {
            let mut late = run.connect(filter, CLEAN);
            late.subscribe(&run.own(filter), 1);
            let came = late.message();
            assert_eq!(
                (came.text.as_str(), came.qos, came.retain),
                ("kept", 1, true)
            );
            late.disconnect();
        }
        it.publish(&topic, 1, true, "");
        it.subscribe(&topic, 1);
        assert_eq!(it.rest(), [""; 0]);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_will_comes_when_the_client_is_killed_and_not_when_it_takes_leave() {
    each(|run| {
        let topic = run.own("t");
        let mut watcher = run.connect("watcher", CLEAN);
        watcher.subscribe(&topic, 1);
        let mortal = How {
            will: Some(&topic),
            will_retain: true,
            ..CLEAN
        };
        run.connect("mortal", mortal).disconnect();
        assert_eq!(watcher.rest(), [""; 0]);
        run.connect("mortal", mortal).kill();
        assert_eq!(watcher.text(), "gone");
        let mut late = run.connect("late", CLEAN);
        late.subscribe(&topic, 1);
        assert!(late.message().retain, "it was to be retained");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_will_waits_for_its_delay_and_not_past_the_session() {
    each_five(|run| {
        for (session_expiry_s, will_delay_s) in [(600, 2), (1, 1000)] {
            let (topic, at_once) = (run.own("t"), run.own("at-once"));
            let mut watcher = run.connect("watcher", CLEAN);
            watcher.subscribe(&topic, 1);
            watcher.subscribe(&at_once, 1);
            let mortal = How {
                session_expiry_s,
                will: Some(&topic),
                will_delay_s,
                ..KEPT
            };
            run.connect("mortal", mortal).kill();
            // One without a delay comes before it.
            let other = How {
                will: Some(&at_once),
                ..CLEAN
            };
            run.connect("other", other).kill();
            assert_eq!(watcher.message().topic, at_once);
            assert_eq!(watcher.message().topic, topic);
            watcher.disconnect();
            run.connect("mortal", CLEAN).disconnect();
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_after_its_client_was_killed() {
    each(|run| {
        let mut it = run.connect("it", KEPT);
        for (filter, qos) in [("a", 1), ("b/+", 2)] {
            it.subscribe(&run.own(filter), qos);
        }
        let mut publisher = run.connect("publisher", CLEAN);
        publisher.publish(&run.own("a"), 1, false, "before");
        assert_eq!(it.text(), "before");
        // It acknowledges when it is asked what came next.
        assert_eq!(it.rest(), [""; 0]);
        it.kill();
        let wanted: Vec<String> = (0..20).map(|n| format!("away {n:02}")).collect();
        for (topic, texts) in [("a", &wanted[..10]), ("b/c", &wanted[10..])] {
            for (number, text) in texts.iter().enumerate() {
                let qos = 1 + number as u8 % 2;
                publisher.publish(&run.own(topic), qos, false, text);
            }
        }
        let mut it = run.resume("it", KEPT);
        let came: Vec<String> = wanted.iter().map(|_| it.text()).collect();
        // Order holds within a topic.
        let (first, second): (Vec<_>, Vec<_>) =
            came.into_iter().partition(|text| *text < wanted[10]);
        assert_eq!([first, second].concat(), wanted);
        publisher.publish(&run.own("a"), 1, false, "after");
        assert_eq!(it.text(), "after");
        assert_eq!(it.rest(), [""; 0]);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_clean_start_forgets() {
    each(|run| {
        let mut it = run.connect("it", KEPT);
        it.subscribe(&run.own("t"), 1);
        it.disconnect();
        let (it, present) = run.connect_or_resume("it", CLEAN);
        assert!(!present);
        it.disconnect();
        let (mut it, present) = run.connect_or_resume("it", KEPT);
        assert!(!present, "it ended with its connection");
        it.publish(&run.own("t"), 1, false, "x");
        assert_eq!(it.rest(), [""; 0]);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_second_connection_takes_the_session_over() {
    each(|run| {
        let mut first = run.connect("it", KEPT);
        first.subscribe(&run.own("t"), 1);
        let mut second = run.resume("it", KEPT);
        let reason = first.ended();
        // Mosquitto 2.0 leaves the reason out.
        if run.is_five() && run.broker.is_ours() {
            assert_eq!(reason, Some(DisconnectReasonCode::SessionTakenOver));
        }
        // It would connect again.
        first.kill();
        second.publish(&run.own("t"), 1, false, "to the second");
        assert_eq!(second.text(), "to the second");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn members_of_a_group_share_messages() {
    each(|run| {
        let filter = format!("$share/g/{}", run.own("t/+"));
        let mut members = ["a", "b"].map(|name| {
            let mut member = run.connect(name, CLEAN);
            member.subscribe(&filter, 1);
            member
        });
        let mut publisher = run.connect("publisher", CLEAN);
        let wanted: Vec<String> = (0..40).map(|n| format!("{n:02}")).collect();
        for text in &wanted {
            publisher.publish(&run.own(&format!("t/{text}")), 1, false, text);
        }
        let mut shares = [Vec::new(), Vec::new()];
        loop {
            let before = shares.concat().len();
            for (share, member) in shares.iter_mut().zip(&mut members) {
                share.extend(member.rest());
            }
            if shares.concat().len() == before {
                break;
            }
        }
        assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
        let mut came = shares.concat();
        came.sort_unstable();
        assert_eq!(came, wanted);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn messages_expire() {
    each_five(|run| {
        let topic = run.own("t");
        let mut it = run.connect("it", KEPT);
        it.subscribe(&topic, 1);
        it.kill();
        let mut publisher = run.connect("publisher", CLEAN);
        publisher.publish_with(&topic, 1, false, "long", expiring(100));
        publisher.publish_with(&topic, 1, false, "short", expiring(1));
        publisher.publish_with(&run.own("kept"), 1, true, "short", expiring(1));
        run.broker.await_kept(&topic, 1);
        run.broker.await_kept(&run.own("kept"), 0);
        let mut it = run.resume("it", KEPT);
        let came = it.message();
        assert_eq!(came.text, "long");
        // The message tells the rest of its expiry: the time in the server counts.
        let left = came.properties.and_then(|it| it.message_expiry_interval);
        assert!((1..100).contains(&left.expect("an expiry")), "{left:?}");
        it.subscribe(&run.own("kept"), 1);
        assert_eq!(it.rest(), [""; 0]);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn properties_come_through() {
    each_five(|run| {
        let topic = run.own("t");
        let mut it = run.connect("it", CLEAN);
        it.subscribe(&topic, 2);
        let properties = PublishProperties {
            payload_format_indicator: Some(1),
            content_type: Some("text/x".into()),
            response_topic: Some("answers".into()),
            correlation_data: Some("7".into()),
            user_properties: vec![("a".into(), "1".into()), ("a".into(), "2".into())],
            ..PublishProperties::default()
        };
        for qos in 0..=2 {
            it.publish_with(&topic, qos, false, "x", properties.clone());
            let came = it.message();
            assert_eq!((came.text.as_str(), came.qos), ("x", qos));
            assert_eq!(came.properties, Some(properties.clone()));
        }
    });
}
