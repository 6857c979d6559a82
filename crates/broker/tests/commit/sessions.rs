//! Tests MQTT clients over a slow engine (the writer of the log).

use crore_broker::account::Part;
use crore_wire::mqtt::{PacketId, Properties, Publish, Qos, Version, encode};

use super::{TestServer, message, near_and_far, subscribe};

#[test]
fn a_publish_is_acknowledged_once_it_is_committed() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let client = server.mqtt("a", 0);
        server.0.say(client, message(&topic, "x", 1, false));
        server.settle();
        assert_eq!(server.told(client), [""; 0]);
        server.commit();
        assert_eq!(server.told(client), ["puback No matching subscribers"]);
        // A publish with an unknown outcome is not acknowledged. The client reconnects and sends it again.
        server.0.say(client, message(&topic, "x", 2, false));
        server.be_silent();
        assert_eq!(server.told(client), ["Disconnect"]);
    }
}

/// A client that sends many publishes at once is not read beyond `mqtt.receive_max` unanswered messages. It is still served when these are
/// committed.
#[test]
fn a_client_with_many_unanswered_messages_is_not_read_until_they_are_kept() {
    const MANY: u16 = 50;
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |settings| settings.mqtt.receive_max = 10);
        let client = server.mqtt("a", 0);
        let burst: Vec<Vec<u8>> = (1..=MANY)
            .map(|id| message(&topic, "x", id, false))
            .collect();
        server.0.say(client, burst.concat());
        server.settle();
        assert_eq!(server.told(client), [""; 0]);
        let under_way: usize = server.0.shards.iter().map(|it| it.accounts().asks).sum();
        assert!(under_way <= 11, "{under_way} publishes");
        assert!(!server.0.socket(client).is_read);
        for _ in 0..MANY {
            server.commit();
        }
        let told = server.told(client);
        assert_eq!(told, vec!["puback No matching subscribers"; MANY.into()]);
        assert!(server.0.socket(client).is_read);
    }
}

#[test]
fn a_subscription_behind_a_retained_message_gets_it_as_retained() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let client = server.mqtt("a", 0);
        server.0.say(client, message(&topic, "kept", 0, true));
        server.0.say(client, subscribe(&topic));
        server.settle();
        assert_eq!(server.told(client), [""; 0]);
        server.commit();
        let told = server.told(client);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told.contains(&format!("{topic} retained 0 kept")),
            "{told:?}"
        );
    }
}

#[test]
fn publishes_under_way_weigh_their_bytes() {
    for (bytes, most) in [(9_000, 2), (10, 5)] {
        for topic in near_and_far() {
            let mut server =
                TestServer::new(2, |settings| settings.limits.publish_credit_bytes = 20_000);
            let client = server.mqtt("a", 0);
            let data = "x".repeat(bytes);
            for id in 1..=8 {
                server.0.say(client, message(&topic, &data, id, false));
                server.settle();
            }
            let under_way: usize = server.0.shards.iter().map(|it| it.accounts().asks).sum();
            assert_eq!(under_way, most);
            server.commit();
            assert_eq!(server.told(client).len(), 8);
        }
    }
}

/// Homes know the QoS 2 messages of a recorded session that its client has not released, until the session ends.
#[test]
fn keys_of_qos_2_messages_end_with_their_session() {
    let keys = |server: &TestServer| -> usize {
        let shards = server.0.shards.iter();
        shards
            .map(|shard| shard.accounts().parts[Part::Answers as usize])
            .sum()
    };
    let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
    let client = server.mqtt("a", 10);
    for (id, topic) in (1..).zip(near_and_far()) {
        let mut out = Vec::new();
        let publish = Publish {
            dup: false,
            qos: Qos::ExactlyOnce,
            retain: false,
            topic: &topic,
            packet_id: PacketId::new(id),
            properties: Properties::NONE,
            payload: b"x",
        };
        encode::publish(&mut out, Version::V5, &publish);
        server.0.say(client, out);
        server.commit();
    }
    assert_eq!(server.told(client), ["PubRec", "PubRec"]);
    server.0.cut(client);
    server.commit();
    assert!(
        keys(&server) > 0,
        "the session goes on without a connection"
    );
    server.0.tick_s(20);
    server.commit();
    server.0.tick_s(1);
    server.commit();
    assert_eq!(keys(&server), 0);
}
