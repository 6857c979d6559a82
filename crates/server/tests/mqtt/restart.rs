//! Tests a planned restart, as MQTT clients see it. Sessions with wildcards, groups, messages in flight in both directions, retained
//! messages and delayed wills are the same after it.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message, plain, will};
use crate::support::state::State;
use crate::support::until;
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{Packet, PropertyWriter, ReasonCode, Version};
use std::collections::HashSet;

/// A server that continues with this state. `None` if the tests run against another broker.
fn start(state: &State) -> Option<Broker> {
    Broker::ours(&state.settings())
}

/// Stops the server with SIGTERM and starts another one.
fn restart(state: &State, broker: Broker) -> Broker {
    broker.stop();
    start(state).expect("a server of ours")
}

/// Connects to a session, which must be present.
fn again(broker: &Broker, version: Version, client: &str) -> Conn {
    let mut conn = Conn::open(broker, version);
    assert!(conn.resume(client), "the session of {client} has gone");
    conn
}

/// A publisher, connected to this server until its restart.
fn publisher(broker: &Broker) -> Conn {
    Conn::connected(broker, Version::V5, "")
}

/// Takes the next packet, a message with this payload and this DUP flag. Returns its packet id.
fn take(conn: &mut Conn, payload: &str, dup: bool) -> u16 {
    let got = conn.packet();
    let publish = got.publish();
    let came = std::str::from_utf8(publish.payload).expect("text");
    assert_eq!((came, publish.dup), (payload, dup));
    publish.packet_id.expect("an id").get()
}

/// Sends PUBREC and PUBCOMP for a message of QoS 2.
fn complete(conn: &mut Conn, id: u16) {
    conn.acknowledge(PubRec, id);
    assert_eq!(conn.packet().ack(PubRel).0, id);
    conn.acknowledge(PubComp, id);
}

#[test]
fn a_session_goes_on_after_a_restart_with_wildcards_and_what_was_under_way() {
    for version in VERSIONS {
        for stays in [false, true] {
            let state = State::new();
            let Some(broker) = start(&state) else { return };
            let mut conn = Conn::open(&broker, version);
            conn.resume("it");
            for (filter, qos) in [("a/+/c", 1), ("b/#", 2), ("left/+", 1)] {
                conn.subscribe(filter, qos);
            }
            let mut from = publisher(&broker);
            from.deliver(&message("a/x/c", 1, 1, b"one"));
            let one = take(&mut conn, "one", false);
            from.deliver(&message("b/y/z", 2, 2, b"two"));
            let two = take(&mut conn, "two", false);
            from.deliver(&message("b", 2, 3, b"three"));
            let three = take(&mut conn, "three", false);
            conn.acknowledge(PubRec, three);
            assert_eq!(conn.packet().ack(PubRel).0, three);
            if !stays {
                conn.leave();
                from.deliver(&message("a/away/c", 1, 4, b"away"));
            }
            let broker = restart(&state, broker);
            let mut from = publisher(&broker);
            from.deliver(&message("a/late/c", 1, 5, b"late"));

            let mut conn = again(&broker, version, "it");
            assert_eq!(take(&mut conn, "one", true), one, "with its packet id");
            assert_eq!(take(&mut conn, "two", true), two, "with its packet id");
            // The message was received before the stop, so it never comes again.
            assert_eq!(conn.packet().ack(PubRel).0, three);
            // A message that came meanwhile may already be behind the PUBREL. Between topics there is no order.
            let missed = if stays {
                &["late"][..]
            } else {
                &["away", "late"]
            };
            let mut came: Vec<_> = missed
                .iter()
                .map(|_| {
                    let got = conn.packet();
                    let publish = got.publish();
                    let id = publish.packet_id.expect("an id").get();
                    conn.acknowledge(PubAck, id);
                    String::from_utf8(publish.payload.to_vec()).expect("text")
                })
                .collect();
            came.sort_unstable();
            assert_eq!(came, missed);
            conn.acknowledge(PubAck, one);
            complete(&mut conn, two);
            conn.acknowledge(PubComp, three);
            from.deliver(&message("b/new", 2, 6, b"new"));
            let new = take(&mut conn, "new", false);
            complete(&mut conn, new);
            for topic in ["a/new/c", "b/new", "left/new"] {
                conn.expect_only_from(&mut from, topic);
            }
        }
    }
}

#[test]
fn a_message_that_a_client_sent_halfway_is_published_once_across_a_restart() {
    let state = State::new();
    let Some(mut broker) = start(&state) else {
        return;
    };
    for version in VERSIONS {
        let client = format!("{version:?}");
        let mut conn = Conn::open(&broker, version);
        conn.resume(&client);
        let mut subscriber = Conn::open(&broker, version);
        subscriber.resume("subscriber");
        subscriber.subscribe("t", 1);
        let mut publish = message("t", 2, 9, b"once");
        conn.publish(&publish);
        assert_eq!(conn.packet().ack(PubRec).0, 9);
        let id = take(&mut subscriber, "once", false);
        subscriber.acknowledge(PubAck, id);
        assert!(subscriber.is_served());

        broker = restart(&state, broker);
        let mut subscriber = again(&broker, version, "subscriber");
        let mut conn = again(&broker, version, &client);
        publish.dup = true;
        conn.publish(&publish);
        assert_eq!(conn.packet().ack(PubRec).0, 9);
        conn.acknowledge(PubRel, 9);
        assert_eq!(conn.packet().ack(PubComp), (9, ReasonCode::SUCCESS));
        // After the release the id may be used for a new message. The subscriber receives nothing before that message.
        conn.deliver(&message("t", 2, 9, b"twice"));
        let id = take(&mut subscriber, "twice", false);
        subscriber.acknowledge(PubAck, id);
        subscriber.leave();
    }
}

#[test]
fn a_session_that_ends_with_its_connection_is_not_there_after_a_restart() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let mut clients = VERSIONS.map(|version| {
        let mut conn = Conn::connected(&broker, version, &format!("{version:?}"));
        conn.subscribe("t", 1);
        conn
    });
    let broker = restart(&state, broker);
    for conn in &mut clients {
        let wanted = (conn.version == Version::V5).then_some(ReasonCode::SERVER_SHUTTING_DOWN);
        assert_eq!(conn.end(), wanted);
        let mut next = Conn::open(&broker, conn.version);
        assert!(!next.resume(&format!("{:?}", conn.version)));
    }
}

/// A message of a group as a member received it: its number, its packet id, and its DUP flag.
type Share = (u16, u16, bool);

/// Takes this many messages of a group, whichever members receive them. Each is handed to `came` with its member.
fn shares(members: &mut [Conn], count: usize, mut came: impl FnMut(&mut Conn, Share)) {
    let mut left = count;
    until("each message of the group", || {
        for conn in &mut *members {
            while conn.is_coming() {
                let got = conn.packet();
                let publish = got.publish();
                let text = std::str::from_utf8(publish.payload).expect("text");
                let id = publish.packet_id.expect("an id").get();
                came(conn, (text.parse().expect("a number"), id, publish.dup));
                left = left.checked_sub(1).expect("no message comes twice");
            }
        }
        left == 0
    });
    for conn in members {
        assert!(conn.is_served(), "no message comes twice");
    }
}

#[test]
fn a_group_goes_on_after_a_restart_and_each_message_goes_to_one_member() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let mut members = VERSIONS.map(|version| {
        let mut conn = Conn::open(&broker, version);
        conn.resume(&format!("{version:?}"));
        conn.subscribe("$share/g/jobs/+", 1);
        conn
    });
    let publish = |from: &mut Conn, numbers: std::ops::Range<u16>| {
        for n in numbers {
            from.deliver(&message(
                &format!("jobs/{n}"),
                1,
                n + 1,
                n.to_string().as_bytes(),
            ));
        }
    };
    let mut from = publisher(&broker);
    publish(&mut from, 0..8);
    // No message is acknowledged, so each stays with the member that received it.
    let mut given = HashSet::new();
    shares(&mut members, 8, |conn, share| {
        given.insert((conn.version, share));
    });
    for mut conn in members {
        conn.leave();
    }
    publish(&mut from, 8..16);
    let broker = restart(&state, broker);
    publish(&mut publisher(&broker), 16..24);

    let mut members = VERSIONS.map(|version| again(&broker, version, &format!("{version:?}")));
    let mut came = Vec::new();
    shares(&mut members, 24, |conn, (number, id, dup)| {
        let known = given.contains(&(conn.version, (number, id, false)));
        assert_eq!(dup, known, "{number} with id {id} to {:?}", conn.version);
        conn.acknowledge(PubAck, id);
        came.push(number);
    });
    came.sort_unstable();
    assert_eq!(came, (0..24).collect::<Vec<u16>>());
}

#[test]
fn retained_messages_are_there_after_a_restart_with_their_properties() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let mut properties = PropertyWriter::new();
    properties.content_type("text/x").expect("it fits");
    properties.user_property("a", "b").expect("it fits");
    let mut from = publisher(&broker);
    for (topic, payload, id) in [("r/a", "kept", 1), ("r/b", "taken away", 2), ("r/b", "", 3)] {
        let mut retained = message(topic, 1, id, payload.as_bytes());
        retained.retain = true;
        retained.properties = properties.properties();
        from.deliver(&retained);
    }
    let broker = restart(&state, broker);
    let mut from = publisher(&broker);
    for version in VERSIONS {
        for filter in ["r/a", "r/+", "#"] {
            let mut conn = Conn::open(&broker, version);
            conn.connect(&plain(version, ""));
            // The retained message may come before the SUBACK of its filter.
            conn.ask_for(filter, 1);
            let mut granted = false;
            let mut came = 0;
            while !granted || came < 1 {
                match conn.packet().packet() {
                    Packet::SubAck(_) => granted = true,
                    Packet::Publish(publish) => {
                        came += 1;
                        assert_eq!((publish.topic, publish.payload), ("r/a", &b"kept"[..]));
                        assert!(publish.retain);
                        if version == Version::V5 {
                            assert_eq!(publish.properties.content_type(), Some("text/x"));
                            let user: Vec<_> = publish.properties.user_properties().collect();
                            assert_eq!(user, [("a", "b")]);
                        }
                    }
                    other => panic!("{other:?} came"),
                }
            }
            conn.expect_only_from(&mut from, "r/a");
        }
    }
}

#[test]
fn a_will_that_waits_is_published_after_a_restart() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let mut watcher = Conn::open(&broker, Version::V5);
    watcher.resume("watcher");
    watcher.subscribe("wills/+", 1);
    let mut later = PropertyWriter::new();
    // A delay longer than a stop takes, so that the next server publishes the wills.
    later.will_delay_interval_s(5);
    let mut lasting = PropertyWriter::new();
    lasting.session_expiry_interval_s(600);
    let mut mortals = ["wills/before", "wills/at-the-stop"].map(|topic| {
        let mut conn = Conn::open(&broker, Version::V5);
        let mut connect = plain(Version::V5, topic);
        connect.properties = lasting.properties();
        let mut will = will(topic);
        will.properties = later.properties();
        connect.will = Some(will);
        conn.connect(&connect);
        Some(conn)
    });
    mortals[0].take().expect("a client").cut();
    let broker = restart(&state, broker);
    let mut watcher = again(&broker, Version::V5, "watcher");
    let mut came: Vec<String> = (0..2)
        .map(|_| {
            let got = watcher.packet();
            let publish = got.publish();
            assert_eq!(publish.payload, b"gone");
            let id = publish.packet_id.expect("an id").get();
            watcher.acknowledge(PubAck, id);
            publish.topic.to_string()
        })
        .collect();
    came.sort_unstable();
    assert_eq!(came, ["wills/at-the-stop", "wills/before"]);
    watcher.expect_only_from(&mut publisher(&broker), "wills/before");
}
