//! Tests a planned restart from the view of MQTT clients. It preserves sessions with wildcards, groups, messages in flight in both
//! directions, retained messages and delayed wills.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message, plain_connect, will};
use crate::support::state::State;
use crate::support::until;
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{Packet, PropertyWriter, ReasonCode, Version};
use std::collections::HashSet;

/// A server that continues with this state. `None` if the tests run against another broker.
fn start(state: &State) -> Option<Broker> {
    Broker::crore(&state.settings())
}

/// Stops the server with SIGTERM and starts another one.
fn restart(state: &State, broker: Broker) -> Broker {
    broker.stop();
    start(state).expect("a server of ours")
}

/// Connects to a session, which must be present.
fn resume_present(broker: &Broker, version: Version, client: &str) -> Conn {
    let mut conn = Conn::open(broker, version);
    assert!(conn.resume(client), "the session of {client} has gone");
    conn
}

/// A publisher, connected to this server until its restart.
fn publisher(broker: &Broker) -> Conn {
    Conn::connected(broker, Version::V5, "")
}

/// Receives the next packet, which must be a message with this payload and this DUP flag. Returns its packet id.
fn receive(conn: &mut Conn, payload: &str, dup: bool) -> u16 {
    let received = conn.packet();
    let publish = received.publish();
    let payload_received = std::str::from_utf8(publish.payload).expect("text");
    assert_eq!((payload_received, publish.dup), (payload, dup));
    publish.packet_id.expect("an id").get()
}

/// Sends PUBREC and PUBCOMP for a message of QoS 2.
fn complete(conn: &mut Conn, id: u16) {
    conn.acknowledge(PubRec, id);
    assert_eq!(conn.packet().ack(PubRel).0, id);
    conn.acknowledge(PubComp, id);
}

#[test]
fn session_continues_after_a_restart_with_wildcards_and_messages_in_flight() {
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
            let id_of_one = receive(&mut conn, "one", false);
            from.deliver(&message("b/y/z", 2, 2, b"two"));
            let two = receive(&mut conn, "two", false);
            from.deliver(&message("b", 2, 3, b"three"));
            let three = receive(&mut conn, "three", false);
            conn.acknowledge(PubRec, three);
            assert_eq!(conn.packet().ack(PubRel).0, three);
            if !stays {
                conn.leave();
                from.deliver(&message("a/away/c", 1, 4, b"away"));
            }
            let broker = restart(&state, broker);
            let mut from = publisher(&broker);
            from.deliver(&message("a/late/c", 1, 5, b"late"));

            let mut conn = resume_present(&broker, version, "it");
            assert_eq!(
                receive(&mut conn, "one", true),
                id_of_one,
                "with its packet id"
            );
            assert_eq!(receive(&mut conn, "two", true), two, "with its packet id");
            // The message was received before the stop, so it never comes again.
            assert_eq!(conn.packet().ack(PubRel).0, three);
            // A message that came meanwhile may already be behind the PUBREL. Between topics there is no order.
            let missed = if stays {
                &["late"][..]
            } else {
                &["away", "late"]
            };
            let mut payloads: Vec<_> = missed
                .iter()
                .map(|_| {
                    let received = conn.packet();
                    let publish = received.publish();
                    let id = publish.packet_id.expect("an id").get();
                    conn.acknowledge(PubAck, id);
                    String::from_utf8(publish.payload.to_vec()).expect("text")
                })
                .collect();
            payloads.sort_unstable();
            assert_eq!(payloads, missed);
            conn.acknowledge(PubAck, id_of_one);
            complete(&mut conn, two);
            conn.acknowledge(PubComp, three);
            from.deliver(&message("b/new", 2, 6, b"new"));
            let new = receive(&mut conn, "new", false);
            complete(&mut conn, new);
            for topic in ["a/new/c", "b/new", "left/new"] {
                conn.expect_only_from(&mut from, topic);
            }
        }
    }
}

#[test]
fn unreleased_qos_2_message_is_published_once_across_a_restart() {
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
        let id = receive(&mut subscriber, "once", false);
        subscriber.acknowledge(PubAck, id);
        assert!(subscriber.is_served());

        broker = restart(&state, broker);
        let mut subscriber = resume_present(&broker, version, "subscriber");
        let mut conn = resume_present(&broker, version, &client);
        publish.dup = true;
        conn.publish(&publish);
        assert_eq!(conn.packet().ack(PubRec).0, 9);
        conn.acknowledge(PubRel, 9);
        assert_eq!(conn.packet().ack(PubComp), (9, ReasonCode::SUCCESS));
        // After the release the id may be used for a new message. The subscriber receives nothing before that message.
        conn.deliver(&message("t", 2, 9, b"twice"));
        let id = receive(&mut subscriber, "twice", false);
        subscriber.acknowledge(PubAck, id);
        subscriber.leave();
    }
}

#[test]
fn session_that_ends_with_its_connection_is_absent_after_a_restart() {
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

/// A message of a group that a member has received: its number, its packet id, and its DUP flag.
type GroupMessage = (u16, u16, bool);

/// Receives `count` messages of a group, whichever members get them. Calls `handle` with each message and its member.
fn receive_of_group(
    members: &mut [Conn],
    count: usize,
    mut handle: impl FnMut(&mut Conn, GroupMessage),
) {
    let mut left = count;
    until("each message of the group", || {
        for conn in &mut *members {
            while conn.has_received() {
                let received = conn.packet();
                let publish = received.publish();
                let text = std::str::from_utf8(publish.payload).expect("text");
                let id = publish.packet_id.expect("an id").get();
                handle(conn, (text.parse().expect("a number"), id, publish.dup));
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
fn group_continues_after_a_restart_and_each_message_goes_to_one_member() {
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
    receive_of_group(&mut members, 8, |conn, share| {
        given.insert((conn.version, share));
    });
    for mut conn in members {
        conn.leave();
    }
    publish(&mut from, 8..16);
    let broker = restart(&state, broker);
    publish(&mut publisher(&broker), 16..24);

    let mut members =
        VERSIONS.map(|version| resume_present(&broker, version, &format!("{version:?}")));
    let mut came = Vec::new();
    receive_of_group(&mut members, 24, |conn, (number, id, dup)| {
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
            conn.connect(&plain_connect(version, ""));
            // The retained message may come before the SUBACK of its filter.
            conn.send_subscribe(filter, 1);
            let mut granted = false;
            let mut count = 0;
            while !granted || count < 1 {
                match conn.packet().packet() {
                    Packet::SubAck(_) => granted = true,
                    Packet::Publish(publish) => {
                        count += 1;
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
fn delayed_will_is_published_after_a_restart() {
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
        let mut connect = plain_connect(Version::V5, topic);
        connect.properties = lasting.properties();
        let mut will = will(topic);
        will.properties = later.properties();
        connect.will = Some(will);
        conn.connect(&connect);
        Some(conn)
    });
    mortals[0].take().expect("a client").cut();
    let broker = restart(&state, broker);
    let mut watcher = resume_present(&broker, Version::V5, "watcher");
    let mut payloads: Vec<String> = (0..2)
        .map(|_| {
            let received = watcher.packet();
            let publish = received.publish();
            assert_eq!(publish.payload, b"gone");
            let id = publish.packet_id.expect("an id").get();
            watcher.acknowledge(PubAck, id);
            publish.topic.to_string()
        })
        .collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["wills/at-the-stop", "wills/before"]);
    watcher.expect_only_from(&mut publisher(&broker), "wills/before");
}
