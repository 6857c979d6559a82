//! Tests flow control: the Receive Maximum of both sides, topic aliases of the server, and clients with a small maximum packet size.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{
    Packet, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions, Version, encode,
};
use std::collections::HashMap;

/// A number of unreleased messages that no peer allows.
const UNRELEASED_MAX: u16 = 20_000;

fn subscriber(broker: &Broker, properties: &PropertyWriter, filter: &str) -> Conn {
    let mut connect = plain_connect(Version::V5, "subscriber");
    connect.properties = properties.properties();
    let mut conn = Conn::open(broker, Version::V5);
    conn.connect(&connect);
    conn.subscribe(filter, 2);
    conn
}

#[test]
fn a_client_that_releases_nothing_past_the_receive_maximum_is_ended() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // the reference was started without a maximum
    }
    let mut conn = Conn::open(&broker, Version::V5);
    conn.write(|out| encode::connect(out, &plain_connect(Version::V5, "it")));
    let received = conn.packet();
    let Packet::ConnAck(connack) = received.packet() else {
        panic!("no CONNACK");
    };
    let most = connack.properties.receive_maximum();
    assert!(most < UNRELEASED_MAX, "{most} messages of QoS 2 may wait");
    for id in 1..=most {
        conn.publish(&message("t", 2, id, b"x"));
        assert_eq!(conn.packet().ack(PubRec).0, id);
    }
    // When one message is completed, one more may be sent.
    conn.acknowledge(PubRel, 1);
    conn.packet().ack(PubComp);
    conn.publish(&message("t", 2, 1, b"x"));
    conn.packet().ack(PubRec);
    conn.publish(&message("t", 2, most + 1, b"x"));
    conn.packet().ack(PubRec);
    assert_eq!(conn.end(), Some(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED));
}

#[test]
fn messages_that_are_not_released_count_however_they_came() {
    let broker = Broker::with("[mqtt]\nreceive_max = 10\n");
    if !broker.is_crore() {
        return;
    }
    // One write with more messages than the maximum is accepted. Further messages in writes of their own are not, while none is released.
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    conn.write(|out| {
        for id in 1..=20 {
            encode::publish(out, Version::V5, &message("t", 2, id, b"x"));
        }
    });
    for id in 1..=20 {
        assert_eq!(conn.packet().ack(PubRec).0, id);
    }
    for _ in 0..10 {
        assert!(conn.is_served());
    }
    conn.publish(&message("t", 1, 21, b"x"));
    assert_eq!(conn.packet().ack(PubAck).0, 21);
    assert_eq!(conn.end(), Some(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED));
}

#[test]
fn a_burst_waits_for_our_answers_and_not_the_client_for_a_disconnect() {
    const MANY: u16 = 1_000;
    let broker = Broker::with("[mqtt]\nreceive_max = 10\n");
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("#", 0);
    let doors = [Conn::connected(&broker, Version::V5, "tcp"), {
        let (mut conn, _) = Conn::websocket(&broker, Version::V5, "/mqtt", "mqtt");
        conn.connect(&plain_connect(Version::V5, "ws"));
        conn
    }];
    for mut conn in doors {
        // QoS 1, QoS 2, and both. The topics belong to different homes (the parts of shards that keep topics).
        for qualities in [[1, 1], [2, 2], [1, 2]] {
            let qos = |id: u16| qualities[usize::from(id % 2)];
            conn.write(|out| {
                for id in 1..=MANY {
                    let topic = format!("t/{}", id % 7);
                    encode::publish(out, Version::V5, &message(&topic, qos(id), id, b"x"));
                }
            });
            for id in 1..=MANY {
                let kind = [PubAck, PubRec][usize::from(qos(id) == 2)];
                assert_eq!(conn.packet().ack(kind), (id, ReasonCode::SUCCESS));
            }
            for id in (1..=MANY).filter(|id| qos(*id) == 2) {
                conn.acknowledge(PubRel, id);
                assert_eq!(conn.packet().ack(PubComp), (id, ReasonCode::SUCCESS));
            }
            for _ in 1..=MANY {
                subscriber.packet().publish();
            }
        }
    }
}

#[test]
fn a_burst_in_small_writes_is_served_if_its_client_releases_in_the_end() {
    const MANY: u16 = 200;
    let broker = Broker::start();
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("#", 0);
    let mut other = Conn::connected(&broker, Version::V5, "other");
    let mut conn = Conn::connected(&broker, Version::V5, "burst");
    for round in 0..2 {
        for id in 1..=MANY {
            conn.publish(&message("t", 2, id, b"x"));
            // Ensures that the server has read each message separately. In the second round the client has read each answer, too.
            match round {
                0 => assert!(other.is_served()),
                _ => assert_eq!(conn.packet().ack(PubRec).0, id),
            }
        }
        if round == 0 {
            for id in 1..=MANY {
                assert_eq!(conn.packet().ack(PubRec), (id, ReasonCode::SUCCESS));
            }
        }
        for id in 1..=MANY {
            conn.acknowledge(PubRel, id);
            assert_eq!(conn.packet().ack(PubComp), (id, ReasonCode::SUCCESS));
            subscriber.packet().publish();
        }
    }
    assert!(conn.is_served());
}

#[test]
fn mqtt_3_client_may_have_many_messages_in_flight() {
    // MQTT 3.1.1 has no Receive Maximum, so clients send whatever their users publish.
    let broker = Broker::start();
    let mut conn = Conn::connected(&broker, Version::V311, "it");
    for id in 1..=300 {
        conn.publish(&message("t", 2, id, b"x"));
    }
    for id in 1..=300 {
        assert_eq!(conn.packet().ack(PubRec).0, id);
    }
    for id in 1..=300 {
        conn.acknowledge(PubRel, id);
        assert_eq!(conn.packet().ack(PubComp).0, id);
    }
}

#[test]
fn the_server_keeps_to_the_client_s_receive_maximum() {
    assert_receive_maximum("q/t");
}

#[test]
fn subscription_with_wildcards_obeys_the_receive_maximum() {
    assert_receive_maximum("q/+");
}

fn assert_receive_maximum(filter: &str) {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto 2.0 sends more after the first acknowledgement
    }
    let mut properties = PropertyWriter::new();
    properties.receive_maximum(3);
    let mut conn = subscriber(&broker, &properties, filter);
    conn.subscribe("other", 2);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for number in 1..=8u16 {
        let payload = number.to_string();
        publisher.deliver(&message(
            "q/t",
            1 + number as u8 % 2,
            number,
            payload.as_bytes(),
        ));
    }
    let mut open = Vec::new();
    for number in 1..=3 {
        open.push(take(&mut conn, number));
    }
    // Each completed acknowledgement lets the server send one more message.
    for number in 4..=11 {
        assert_no_waiting_message(&mut conn, &mut publisher);
        let (id, qos) = open.remove(0);
        if qos == 2 {
            conn.acknowledge(PubRec, id);
            assert_eq!(conn.packet().ack(PubRel).0, id);
            // A PUBREC does not make room yet.
            assert_no_waiting_message(&mut conn, &mut publisher);
        }
        conn.acknowledge([PubAck, PubComp][usize::from(qos == 2)], id);
        if number <= 8 {
            open.push(take(&mut conn, number));
        }
    }
    assert_no_waiting_message(&mut conn, &mut publisher);
}

/// Publishes messages of QoS 0 on another topic, which do not wait for the quota. Checks that the client receives them, and no waiting
/// message before them.
fn assert_no_waiting_message(conn: &mut Conn, publisher: &mut Conn) {
    for payload in [b"one", b"two", b"thr"] {
        publisher.publish(&message("other", 0, 0, payload));
        assert_eq!(conn.packet().publish().payload, payload);
    }
}

/// Takes the next message, which must have this number. Returns its packet id and QoS.
fn take(conn: &mut Conn, number: u16) -> (u16, u8) {
    let received = conn.packet();
    let publish = received.publish();
    assert_eq!(publish.payload, number.to_string().as_bytes());
    (publish.packet_id.expect("an id").get(), publish.qos.bits())
}

#[test]
fn a_refusing_pubrec_gives_room() {
    let broker = Broker::start();
    let mut properties = PropertyWriter::new();
    properties.receive_maximum(1);
    let mut conn = subscriber(&broker, &properties, "t");
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for number in 1..=2 {
        publisher.deliver(&message("t", 2, number, number.to_string().as_bytes()));
    }
    let (id, _) = take(&mut conn, 1);
    // A PUBREC with 0x80: the client refuses the message, so no further packet is due for it.
    conn.send([0x50, 3, (id >> 8) as u8, id as u8, 0x80]);
    take(&mut conn, 2);
}

#[test]
fn the_server_s_aliases_stay_below_the_maximum_and_stand_for_one_topic() {
    let broker = Broker::start();
    for most in [0u16, 1, 4] {
        let mut properties = PropertyWriter::new();
        properties.topic_alias_maximum(most);
        let mut conn = subscriber(&broker, &properties, "a/0");
        for number in 1..6 {
            conn.subscribe(&format!("a/{number}"), 0);
        }
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        let mut known: HashMap<u16, String> = HashMap::new();
        for number in 0..30 {
            let topic = format!("a/{}", number % 6);
            publisher.publish(&message(&topic, 0, 0, topic.as_bytes()));
            let received = conn.packet();
            let publish = received.publish();
            let named = match publish.properties.topic_alias() {
                Some(alias) => {
                    assert!((1..=most).contains(&alias), "alias {alias} of {most}");
                    if !publish.topic.is_empty() {
                        known.insert(alias, publish.topic.to_string());
                    }
                    known[&alias].clone()
                }
                None => publish.topic.to_string(),
            };
            assert_eq!(named, topic);
            assert_eq!(publish.payload, topic.as_bytes());
        }
    }
}

#[test]
fn aliases_belong_to_a_connection() {
    let broker = Broker::start();
    let mut properties = PropertyWriter::new();
    properties.topic_alias(1);
    let mut aliased = message("t", 1, 1, b"x");
    aliased.properties = properties.properties();
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("it");
    conn.publish(&aliased);
    conn.packet().ack(PubAck);
    aliased.topic = "";
    conn.publish(&aliased);
    conn.packet().ack(PubAck);
    conn.cut();
    let mut conn = Conn::open(&broker, Version::V5);
    assert!(conn.resume("it"));
    conn.publish(&aliased);
    assert_eq!(conn.end(), Some(ReasonCode::PROTOCOL_ERROR));
}

#[test]
fn an_alias_may_be_given_to_another_topic() {
    let broker = Broker::start();
    let mut subscriber = Conn::connected(&broker, Version::V311, "subscriber");
    for topic in ["a", "b"] {
        subscriber.subscribe(topic, 0);
    }
    let mut properties = PropertyWriter::new();
    properties.topic_alias(1);
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    for (topic, stands_for) in [("a", "a"), ("", "a"), ("b", "b"), ("", "b"), ("", "b")] {
        let mut publish = message(topic, 0, 0, b"x");
        publish.properties = properties.properties();
        conn.publish(&publish);
        assert_eq!(subscriber.packet().publish().topic, stands_for);
    }
}

#[test]
fn message_of_mqtt_5_reaches_3_1_1_without_its_properties() {
    let broker = Broker::start();
    let mut properties = PropertyWriter::new();
    properties.content_type("text/x").expect("it fits");
    properties.user_property("a", "b").expect("it fits");
    properties.message_expiry_interval_s(100);
    for version in VERSIONS {
        let mut subscriber = Conn::connected(&broker, version, "subscriber");
        subscriber.subscribe("t", 0);
        let mut publish = message("t", 0, 0, b"x");
        publish.properties = properties.properties();
        Conn::connected(&broker, Version::V5, "it").publish(&publish);
        let received = subscriber.packet();
        let content_type = received.publish().properties.content_type();
        assert_eq!(content_type, (version == Version::V5).then_some("text/x"));
        assert_eq!(received.publish().payload, b"x");
    }
}

#[test]
fn subscription_that_fell_behind_gets_retained_messages_again_when_repeated() {
    let broker = Broker::start();
    let mut properties = PropertyWriter::new();
    properties.receive_maximum(1);
    for filter in ["q/t", "q/+"] {
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        let mut conn = subscriber(&broker, &properties, filter);
        let mut retained = message("q/t", 1, 9, b"0");
        retained.retain = true;
        publisher.deliver(&retained);
        let (open, qos) = take(&mut conn, 0);
        for number in 1..=3 {
            publisher.deliver(&message("q/t", 1, number, number.to_string().as_bytes()));
        }
        conn.write(|out| {
            let filters = std::iter::once((filter, SubscribeOptions::of(Qos::AtLeastOnce)));
            encode::subscribe(out, Version::V5, id(7), &Properties::default(), filters);
        });
        conn.acknowledge(PubAck, open);
        assert_eq!(qos, 1);
        let (mut live, mut retained_again, mut granted) = (Vec::new(), 0, false);
        while live.len() < 3 || retained_again == 0 || !granted {
            let received = conn.packet();
            let Packet::Publish(publish) = received.packet() else {
                granted = true;
                continue;
            };
            match publish.retain {
                true => retained_again += 1,
                false => live.push(publish.payload.to_vec()),
            }
            let id = publish.packet_id.expect("an id").get();
            conn.acknowledge(PubAck, id);
        }
        conn.expect_only_from(&mut publisher, "q/t");
        assert_eq!(
            (live.concat(), retained_again),
            (b"123".to_vec(), 1),
            "{filter}"
        );
        // Deletes the retained message for the next round.
        retained.payload = b"";
        publisher.deliver(&retained);
        publisher.disconnect();
        conn.cut();
    }
}
