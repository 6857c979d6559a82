//! Tests rare cases of MQTT 5: small limits of one side, wills with a delay, the remaining expiry of a message, and members of a shared
//! subscription that leave with messages in flight.

use crate::support::broker::Broker;
use crate::support::eventually;
use crate::support::mqtt::{Conn, id, message, plain_connect, will};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{
    Packet, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions, Version, encode,
};

#[test]
fn retained_message_too_large_for_the_client_is_left_out() {
    let broker = Broker::start();
    for qos in 0..3 {
        for filter in ["r/large", "r/+", "#"] {
            let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
            for (n, (topic, bytes)) in [("r/large", 100), ("r/small", 3)].iter().enumerate() {
                let data = vec![b'x'; *bytes];
                let mut retained = message(topic, 1, n as u16 + 1, &data);
                retained.retain = true;
                publisher.deliver(&retained);
            }
            let (mut conn, _) = Conn::with_properties(&broker, "small", true, |set| {
                set.maximum_packet_size_bytes(60);
            });
            conn.send_subscribe(filter, qos);
            let (mut granted, mut topics) = (false, Vec::new());
            let expected = usize::from(filter != "r/large");
            while !granted || topics.len() < expected {
                let got = conn.packet();
                match got.packet() {
                    Packet::SubAck(_) => granted = true,
                    Packet::Publish(publish) => topics.push(publish.topic.to_string()),
                    other => panic!("{other:?}"),
                }
            }
            assert!(topics.iter().all(|topic| topic == "r/small"), "{topics:?}");
            // The live message arrives, since the retained one that was too large does not count for the Receive Maximum.
            publisher.deliver(&message("r/large", qos, 7, b"y"));
            let got = conn.packet();
            assert_eq!(got.publish().payload, b"y", "{filter} {qos}");
            publisher.disconnect();
            conn.cut();
        }
    }
}

#[test]
fn one_qos_2_message_at_a_time_passes_in_both_directions() {
    let broker = Broker::with("[mqtt]\nreceive_max = 1\n");
    if !broker.is_crore() {
        return;
    }
    let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
        set.receive_maximum(1);
    });
    conn.subscribe("t", 2);
    for number in 1..=3_u16 {
        // The client is its own subscriber, so its messages come back.
        conn.publish(&message("t", 2, number, &number.to_be_bytes()));
        let mut received_id = None;
        let mut received = false;
        while received_id.is_none() || !received {
            let got = conn.packet();
            match got.packet() {
                Packet::PubRec(ack) => {
                    assert_eq!(ack.packet_id.get(), number);
                    received = true;
                }
                Packet::Publish(publish) => {
                    assert_eq!(publish.payload, number.to_be_bytes());
                    received_id = publish.packet_id;
                }
                other => panic!("{other:?}"),
            }
        }
        conn.acknowledge(PubRel, number);
        assert_eq!(conn.packet().ack(PubComp).0, number);
        let received_id = received_id.expect("QoS 2").get();
        conn.acknowledge(PubRec, received_id);
        assert_eq!(conn.packet().ack(PubRel).0, received_id);
        conn.acknowledge(PubComp, received_id);
        assert!(conn.is_served());
    }
    // A message that is not released uses up the Receive Maximum of one.
    conn.publish(&message("u", 2, 8, b"x"));
    conn.packet().ack(PubRec);
    conn.publish(&message("u", 2, 8, b"x"));
    assert_eq!(
        conn.packet().ack(PubRec).0,
        8,
        "the same again is no second one"
    );
    conn.publish(&message("u", 1, 9, b"x"));
    assert_eq!(conn.packet().ack(PubAck).0, 9);
    assert_eq!(conn.end(), Some(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED));
}

#[test]
fn aliases_of_the_server_hold_while_topics_alternate_and_subscriptions_come_and_go() {
    let broker = Broker::start();
    for most in 0..3_u16 {
        let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
            set.topic_alias_maximum(most);
        });
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        let mut known: [Option<String>; 3] = Default::default();
        for topic in ["a", "b", "c"] {
            conn.subscribe(topic, 0);
        }
        for round in 0..4 {
            for topic in ["a", "b", "a", "c", "b"] {
                // The message fits every subscriber, has an expiry, and a QoS that is lowered for this one.
                publisher.deliver(&message(topic, round % 3, 1, topic.as_bytes()));
                let got = conn.packet();
                let publish = got.publish();
                let alias = publish.properties.topic_alias().unwrap_or(0);
                assert!(alias <= most, "{alias} of {most}");
                if !publish.topic.is_empty() && alias > 0 {
                    known[usize::from(alias)] = Some(publish.topic.into());
                }
                let name = match publish.topic {
                    "" => known[usize::from(alias)].as_deref().expect("it was given"),
                    name => name,
                };
                assert_eq!(name.as_bytes(), publish.payload);
                assert_eq!(name, topic);
            }
            // After the client unsubscribes, another topic may get the alias.
            conn.write(|out| {
                let filters = ["a", "b"].into_iter();
                let nothing = Default::default();
                encode::unsubscribe(out, Version::V5, id(7), &nothing, filters);
            });
            conn.packet();
            conn.subscribe("b", 0);
            conn.subscribe("a", 0);
        }
    }
}

#[test]
fn will_is_published_at_the_end_of_its_delay_or_session() {
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("w/#", 0);
    // Connects with a will. Arguments: the will's name, its delay, the session's expiry, and Clean Start.
    let away = |name: &str, delay_s: u32, expiry_s: u32, clean: bool| {
        let (mut set, mut of_will) = (PropertyWriter::new(), PropertyWriter::new());
        set.session_expiry_interval_s(expiry_s);
        of_will.will_delay_interval_s(delay_s);
        let topic = format!("w/{name}");
        let mut last = will(&topic);
        last.properties = of_will.properties();
        let mut connect = plain_connect(Version::V5, name);
        connect.clean_start = clean;
        connect.properties = set.properties();
        connect.will = Some(last);
        let mut conn = Conn::open(&broker, Version::V5);
        conn.connect(&connect);
        conn
    };
    let expect_will = |watcher: &mut Conn, name: &str| {
        let got = watcher.packet();
        assert_eq!(got.publish().topic, format!("w/{name}"));
    };
    // A takeover ends the connection, but not the session. So the will waits for its delay, and the new connection cancels it.
    let first = away("kept", 1, 600, true);
    let second = away("kept", 600, 600, false);
    // The will of another client with a longer delay comes, and nothing before it.
    away("witness", 2, 600, true).cut();
    expect_will(&mut watcher, "witness");
    drop(first);
    // A takeover with a clean start ends the session, so the will comes at once, whatever its delay.
    let third = away("kept", 600, 600, true);
    expect_will(&mut watcher, "kept");
    drop(second);
    // A will without a delay comes at a takeover too.
    let fourth = away("at-once", 0, 600, true);
    let fifth = away("at-once", 600, 600, false);
    expect_will(&mut watcher, "at-once");
    drop((fourth, fifth, third));
    // A session that ends with its connection does not wait for the delay.
    away("brief", 600, 0, true).cut();
    expect_will(&mut watcher, "brief");
    // If the session expires before the delay ends, the will is published at the expiry. Before it, the will of another client without a
    // delay arrives.
    away("short", 600, 2, true).cut();
    away("now", 0, 600, true).cut();
    expect_will(&mut watcher, "now");
    expect_will(&mut watcher, "short");
    // No will comes twice.
    assert!(watcher.is_served());
    // A DISCONNECT that asks for the will (reason 4) keeps the delay; a plain one cancels the will.
    let mut asks = away("asks", 1, 600, true);
    asks.send([0xE0, 1, 4]);
    assert_eq!(asks.end(), None);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    watcher.expect_only_from(&mut publisher, "w/asks");
    expect_will(&mut watcher, "asks");
    // A DISCONNECT may set the session's expiry to 0, which also ends the delay.
    let mut ends = away("ends", 600, 600, true);
    ends.send([0xE0, 7, 4, 5, 0x11, 0, 0, 0, 0]);
    assert_eq!(ends.end(), None);
    expect_will(&mut watcher, "ends");
}

/// A session with an expiry of 0 ends at a takeover. So its will is published at once, whatever its delay (sections 3.1.2.11.2 and
/// 3.1.3.2.2). The expiry is 0 because the client asks for it, or by the server's limit.
#[test]
fn a_takeover_of_a_session_that_ends_with_its_connection_sends_the_will() {
    for (settings, expiry_s) in [("", 0), ("[mqtt]\nsession_expiry_max_s = 0\n", 600)] {
        let Some(broker) = Broker::crore(settings) else {
            return;
        };
        let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
        watcher.subscribe("w/#", 0);
        let (mut set, mut of_will) = (PropertyWriter::new(), PropertyWriter::new());
        set.session_expiry_interval_s(expiry_s);
        of_will.will_delay_interval_s(600);
        let mut holders = Vec::new();
        for n in 0..3 {
            let topic = format!("w/{n}");
            let mut last = will(&topic);
            last.properties = of_will.properties();
            let mut connect = plain_connect(Version::V5, "it");
            connect.clean_start = false;
            connect.properties = set.properties();
            connect.will = Some(last);
            let mut conn = Conn::open(&broker, Version::V5);
            assert!(!conn.connect(&connect), "the session ended");
            holders.push(conn);
            if n > 0 {
                let before = format!("w/{}", n - 1);
                assert_eq!(watcher.packet().publish().topic, before);
            }
        }
        assert!(watcher.is_served(), "each will is sent once");
    }
}

#[test]
fn remaining_expiry_is_sent_with_each_delivery() {
    let broker = Broker::start();
    for filter in ["e/t", "e/+", "$share/g/e/t"] {
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        let expires = |conn: &mut Conn, qos, id, retain| {
            let mut set = PropertyWriter::new();
            set.message_expiry_interval_s(100);
            let mut publish = message("e/t", qos, id, b"x");
            publish.properties = set.properties();
            publish.retain = retain;
            conn.deliver(&publish);
        };
        let keep = |set: &mut PropertyWriter| {
            set.session_expiry_interval_s(600).receive_maximum(1);
        };
        let (mut conn, _) = Conn::with_properties(&broker, "it", true, keep);
        conn.subscribe(filter, 1);
        expires(&mut publisher, 1, 1, false);
        expires(&mut publisher, 1, 2, false);
        let left = |conn: &mut Conn| {
            let got = conn.packet();
            let publish = got.publish();
            let left_s = publish.properties.message_expiry_interval_s().expect("one");
            (left_s, publish.dup, publish.packet_id.expect("QoS 1").get())
        };
        let (first_expiry, _, first) = left(&mut conn);
        assert!((1..=100).contains(&first_expiry), "{first_expiry}");
        conn.cut();
        // The client reconnects until the message that is sent again has a shorter expiry. Then the message that waited in the log arrives.
        let (mut conn, remaining, id) = eventually("a second less", || {
            let (mut conn, present) = Conn::with_properties(&broker, "it", false, keep);
            assert!(present);
            let (remaining, dup, id) = left(&mut conn);
            assert!(
                dup && id == first && remaining <= first_expiry,
                "{remaining}"
            );
            (remaining < first_expiry).then_some((conn, remaining, id))
        });
        conn.acknowledge(PubAck, id);
        let (later, dup, id) = left(&mut conn);
        assert!(!dup && later <= remaining, "{later}");
        conn.acknowledge(PubAck, id);
        assert!(conn.is_served());
        Conn::with_properties(&broker, "it", true, |_| {})
            .0
            .disconnect();
    }
}

#[test]
fn ended_group_member_returns_qos_1_messages_and_takes_qos_2_with_it() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto forgets both
    }
    for qos in 1..3_u8 {
        for (name, kept) in [("clean", false), ("kept", true)] {
            let topic = format!("s/{name}/{qos}");
            let filter = format!("$share/g/{topic}");
            let expiry_s = if kept { 600 } else { 0 };
            let (mut first_member, _) = Conn::with_properties(&broker, "one", true, |set| {
                set.session_expiry_interval_s(expiry_s);
            });
            first_member.subscribe(&filter, qos);
            let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
            publisher.deliver(&message(&topic, qos, 1, b"first"));
            let got = first_member.packet();
            let first = got.publish().packet_id.expect("an id").get();
            assert_eq!(got.publish().payload, b"first");
            let (mut second_member, _) = Conn::with_properties(&broker, "two", true, |_| {});
            second_member.subscribe(&filter, qos);
            first_member.cut();
            let finish = |conn: &mut Conn, id: u16| match qos {
                1 => conn.acknowledge(PubAck, id),
                _ => {
                    conn.acknowledge(PubRec, id);
                    assert_eq!(conn.packet().ack(PubRel).0, id);
                    conn.acknowledge(PubComp, id);
                }
            };
            if !kept && qos == 1 {
                let got = second_member.packet();
                assert_eq!(got.publish().payload, b"first");
                finish(
                    &mut second_member,
                    got.publish().packet_id.expect("an id").get(),
                );
            }
            publisher.deliver(&message(&topic, qos, 2, b"next"));
            let got = second_member.packet();
            assert_eq!(got.publish().payload, b"next", "{name} {qos}");
            finish(
                &mut second_member,
                got.publish().packet_id.expect("an id").get(),
            );
            assert!(second_member.is_served(), "and nothing else");
            if kept {
                let (mut returned, present) = Conn::with_properties(&broker, "one", false, |set| {
                    set.session_expiry_interval_s(expiry_s);
                });
                assert!(present);
                let got = returned.packet();
                assert!(got.publish().dup && got.publish().payload == b"first");
                assert_eq!(got.publish().packet_id.expect("an id").get(), first);
                finish(&mut returned, first);
                assert!(returned.is_served());
                // The returned client is a member of the group again.
                second_member.leave();
                publisher.deliver(&message(&topic, qos, 3, b"last"));
                assert_eq!(returned.packet().publish().payload, b"last");
            }
        }
    }
}

#[test]
fn response_topic_is_kept_through_sessions_and_retained_messages() {
    let broker = Broker::start();
    let mut set = PropertyWriter::new();
    set.response_topic("answers/1").expect("a topic");
    set.correlation_data(&[0, 1, 0xFF]).expect("it fits");
    let mut request = message("ask/t", 1, 1, b"?");
    request.properties = set.properties();
    request.retain = true;
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let (mut away, _) = Conn::with_properties(&broker, "away", true, |set| {
        set.session_expiry_interval_s(600);
    });
    away.subscribe("ask/+", 1);
    away.cut();
    publisher.deliver(&request);
    let check = |conn: &mut Conn| loop {
        let got = conn.packet();
        let Packet::Publish(publish) = got.packet() else {
            continue;
        };
        let set = &publish.properties;
        assert_eq!(set.response_topic(), Some("answers/1"));
        assert_eq!(set.correlation_data(), Some(&[0, 1, 0xFF][..]));
        return;
    };
    let (mut away, present) = Conn::with_properties(&broker, "away", false, |_| {});
    assert!(present);
    check(&mut away);
    for filter in ["ask/t", "ask/#"] {
        let mut late = Conn::connected(&broker, Version::V5, "late");
        late.send_subscribe(filter, 0);
        check(&mut late);
    }
    // A response topic must be a topic name, without a wildcard [MQTT-3.3.2-14].
    for wrong in ["answers/+", "#"] {
        let mut conn = Conn::connected(&broker, Version::V5, "wrong");
        let len = wrong.len() as u8;
        conn.send(
            [
                &[0x30, len + 7, 0, 1, b't', len + 3, 8, 0, len],
                wrong.as_bytes(),
            ]
            .concat(),
        );
        assert_eq!(conn.end(), Some(ReasonCode::TOPIC_NAME_INVALID), "{wrong}");
    }
}

/// Topic names that the server stores for a session or a connection have the maximum length of topics.
#[test]
fn stored_topic_names_have_the_length_limit_of_topics() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // limits are left to servers
    }
    let long = "n".repeat(256);
    for name in [&long[1..], &long] {
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        let filter = format!("$share/{name}/t");
        conn.write(|out| {
            let options = SubscribeOptions::of(Qos::AtLeastOnce);
            let filters = std::iter::once((&filter[..], options));
            let nothing = Properties::default();
            encode::subscribe(out, Version::V5, id(1), &nothing, filters);
        });
        let got = conn.packet();
        let Packet::SubAck(suback) = got.packet() else {
            panic!("a SUBACK is due, {:?} came", got.packet());
        };
        let granted = match name.len() {
            255 => ReasonCode::GRANTED_QOS_1,
            _ => ReasonCode::TOPIC_FILTER_INVALID,
        };
        assert_eq!(suback.reasons.iter().collect::<Vec<_>>(), [granted]);

        // An alias may only stand for a topic that the server accepted.
        let mut properties = PropertyWriter::new();
        properties.topic_alias(1);
        for (n, topic) in [(1, name), (2, "")] {
            let mut publish = message(topic, 1, n, b"x");
            publish.properties = properties.properties();
            conn.publish(&publish);
        }
        if name.len() == 255 {
            for n in 1..=2 {
                let taken = (n, ReasonCode::NO_MATCHING_SUBSCRIBERS);
                assert_eq!(conn.packet().ack(PubAck), taken);
            }
        } else {
            let refused = (1, ReasonCode::TOPIC_NAME_INVALID);
            assert_eq!(conn.packet().ack(PubAck), refused);
            assert_eq!(conn.end(), Some(ReasonCode::PROTOCOL_ERROR));
        }
    }
}
