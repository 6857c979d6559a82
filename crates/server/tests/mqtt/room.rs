//! Tests subscriptions for which a limit leaves no room. A new subscription is refused. If a resumed session loses one, the client is told.

use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message};
use crore_wire::mqtt::{
    Packet, PacketType::PubAck, Properties, Qos, ReasonCode, RetainHandling, SubscribeOptions,
    Version, encode,
};
use std::collections::BTreeSet;

/// A Crore server with one shard, so that a limit for each shard is the limit of the server.
fn small(settings: &str) -> Broker {
    Broker::Crore(Server::with_shards(1, settings))
}

/// Resumes a session that is present, and waits until the server ends the connection. Returns the reason code and the text of its
/// DISCONNECT.
fn end_of_resumed_session(
    broker: &Broker,
    version: Version,
    client: &str,
) -> Option<(ReasonCode, String)> {
    let mut conn = Conn::open(broker, version);
    assert!(conn.resume(client), "the session is there");
    let mut reason_and_text = None;
    while let Some(received) = conn.packet_or_end() {
        let Packet::Disconnect(disconnect) = received.packet() else {
            panic!("{:?} instead of an end", received.packet());
        };
        let words = disconnect.properties.reason_string().unwrap_or_default();
        reason_and_text = Some((disconnect.reason, words.to_string()));
    }
    reason_and_text
}

fn assert_names_filter(
    reason_and_text: Option<(ReasonCode, String)>,
    version: Version,
    filter: &str,
) {
    match version {
        Version::V311 => assert_eq!(reason_and_text, None, "it has no word for it"),
        Version::V5 => {
            let (reason, words) = reason_and_text.expect("a DISCONNECT");
            assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
            assert!(
                words.ends_with(&format!("subscription to {filter}")),
                "{words}"
            );
        }
    }
}

#[test]
fn session_with_a_refused_filter_is_told_and_resumes_it_when_there_is_room() {
    for version in VERSIONS {
        let broker = small("[limits]\nfilters_per_shard = 2\n");
        let mut away = Conn::open(&broker, version);
        away.resume("away");
        away.subscribe("plain", 1);
        away.subscribe("kept/+", 1);
        away.subscribe("other/+", 1);
        away.cut();
        let mut filler = Conn::open(&broker, version);
        filler.resume("filler");
        filler.subscribe("a/+", 0);
        filler.subscribe("b/+", 0);
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        for (n, topic) in (1..).zip(["kept/1", "other/1", "plain"]) {
            publisher.deliver(&message(topic, 1, n, b"missed"));
        }
        for _ in 0..3 {
            let reason_and_text = end_of_resumed_session(&broker, version, "away");
            assert_names_filter(reason_and_text, version, "other/+");
        }
        filler.cut();
        let mut resumed = Conn::open(&broker, version);
        assert!(resumed.resume("away"));
        let mut topics = Vec::new();
        for _ in 0..3 {
            let received = resumed.packet();
            let publish = received.publish();
            topics.push(publish.topic.to_string());
            resumed.acknowledge(PubAck, publish.packet_id.expect("it has QoS 1").get());
        }
        topics.sort();
        assert_eq!(topics, ["kept/1", "other/1", "plain"]);
        assert!(resumed.is_served(), "and nothing else");
    }
}

#[test]
fn session_with_a_refused_topic_is_told_and_resumes_it_when_there_is_room() {
    for version in VERSIONS {
        let rule = "[[rule]]\nmatch = \"#\"\nposition_age_s = 1\nlog_messages = 0\n";
        let broker = small(&format!("[limits]\ntopics_per_shard = 2\n{rule}"));
        let mut away = Conn::open(&broker, version);
        away.resume("away");
        away.subscribe("plain", 0);
        away.cut();
        let mut filler = Conn::connected(&broker, version, "filler");
        filler.subscribe("a", 0);
        filler.subscribe("b", 0);
        assert_names_filter(
            end_of_resumed_session(&broker, version, "away"),
            version,
            "plain",
        );
        filler.leave();
        let mut resumed = Conn::open(&broker, version);
        assert!(resumed.resume("away"));
        assert!(resumed.is_served());
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publisher.deliver(&message("plain", 1, 1, b"x"));
        assert_eq!(resumed.packet().publish().payload, b"x");
    }
}

#[test]
fn client_with_too_many_topics_is_refused_new_ones_and_keeps_the_others() {
    const LIMITS: &str = "[limits]\ntopics_per_address_per_s = 1\ntopics_per_address_burst = 4\n";
    for qos in [0, 1] {
        let broker = small(LIMITS);
        let mut conn = Conn::open(&broker, Version::V5);
        conn.resume("it");
        let granted = ReasonCode::granted(Qos::from_repr(qos).expect("0 or 1"));
        let mut names = (0..60).map(|n| format!("t/{n}"));
        let mut taken = Vec::new();
        let end_of_resumed_session = names.find_map(|name| match conn.subscribe(&name, qos) {
            reason if reason == granted => {
                taken.push(name);
                None
            }
            reason => Some(reason),
        });
        assert_eq!(end_of_resumed_session, Some(ReasonCode::QUOTA_EXCEEDED));
        assert!(taken.len() >= 4, "{taken:?}");
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        let end_of_resumed_session = (0..60).find_map(|n| {
            publisher.publish(&message(&format!("new/{n}"), 1, n + 1, b"x"));
            let (_, reason) = publisher.packet().ack(PubAck);
            reason.is_error().then_some(reason)
        });
        assert_eq!(end_of_resumed_session, Some(ReasonCode::QUOTA_EXCEEDED));
        // The session resumes all its topics at once.
        conn.cut();
        let mut resumed = Conn::open(&broker, Version::V5);
        assert!(resumed.resume("it"));
        assert!(resumed.is_served());
        for (n, name) in (100..).zip(&taken) {
            publisher.deliver(&message(name, 1, n, b"x"));
            let received = resumed.packet();
            assert_eq!(received.publish().topic, name);
            if qos > 0 {
                resumed.acknowledge(PubAck, received.publish().packet_id.expect("QoS 1").get());
            }
        }
    }
}

#[test]
fn repeated_filters_of_one_subscribe_are_each_granted() {
    let broker = Broker::start();
    let several = [Qos::AtLeastOnce; 2];
    for version in VERSIONS {
        for filter in ["$share/group/t", "t", "+"] {
            let mut conn = Conn::connected(&broker, version, "it");
            // In the second round the subscription exists already.
            for _ in 0..2 {
                let mut packets = Vec::new();
                for number in 1..=3 {
                    let filters = [true, false].map(|shows| {
                        let mut options = SubscribeOptions::of(Qos::AtLeastOnce);
                        if !shows && version == Version::V5 {
                            options.retain_handling = RetainHandling::SendIfNew;
                        }
                        (filter, options)
                    });
                    let (id, nothing) = (id(number), Properties::default());
                    encode::subscribe(&mut packets, version, id, &nothing, filters.into_iter());
                }
                conn.send(packets);
                let mut ids = BTreeSet::new();
                for _ in 1..=3 {
                    let received = conn.packet();
                    let Packet::SubAck(suback) = received.packet() else {
                        panic!("a SUBACK is due, {:?} came", received.packet());
                    };
                    assert!(ids.insert(suback.packet_id), "{filter}");
                    let reasons: Vec<_> = suback.reasons.iter().collect();
                    assert_eq!(reasons, several.map(ReasonCode::granted), "{filter}");
                }
                assert!(conn.is_served(), "{filter}");
            }
            let mut publisher = Conn::connected(&broker, version, "publisher");
            publisher.deliver(&message("t", 1, 1, b"x"));
            let received = conn.packet();
            assert_eq!(received.publish().payload, b"x", "{filter}");
            conn.acknowledge(PubAck, received.publish().packet_id.expect("QoS 1").get());
            assert!(conn.is_served(), "{filter}: and nothing else");
            conn.leave();
        }
    }
}

#[test]
fn a_packet_id_that_is_in_use_by_another_subscribe_harms_nobody() {
    let broker = Broker::start();
    let mut witness = Conn::connected(&broker, Version::V5, "witness");
    for version in VERSIONS {
        // The topics have different homes (the part of a shard that keeps topics), so their answers may arrive in another order.
        for round in 0..20 {
            let mut conn = Conn::connected(&broker, version, "it");
            let mut packets = Vec::new();
            for names in [&["a"][..], &["b", "c", "d"]] {
                let names: Vec<_> = names.iter().map(|name| format!("{name}/{round}")).collect();
                let options = SubscribeOptions::of(Qos::AtLeastOnce);
                let filters = names.iter().map(|name| (&name[..], options));
                let nothing = Properties::default();
                encode::subscribe(&mut packets, version, id(7), &nothing, filters);
            }
            conn.send(packets);
            let mut codes = 0;
            while codes < 4 {
                match conn.packet().packet() {
                    Packet::SubAck(suback) => codes += suback.reasons.iter().count(),
                    other => panic!("{other:?}"),
                }
            }
            assert!(codes == 4 && conn.is_served());
            assert!(witness.is_served());
        }
    }
}

#[test]
fn a_group_that_was_refused_is_not_subscribed_to() {
    let broker = Broker::with("[limits]\ntopics_per_connection = 400\n");
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("member");
    let mut shapes = (0_u32..1 << 16).filter(|bits| bits.count_ones() == 3);
    let mut filter = || {
        let bits = shapes.next().expect("there are 560");
        let levels = (0..16).map(|n| if bits >> n & 1 == 1 { "+" } else { "x" });
        format!("$share/g/{}", levels.collect::<Vec<_>>().join("/"))
    };
    let end_of_resumed_session = (0..257).find_map(|_| {
        let filter = filter();
        let reason = conn.subscribe(&filter, 1);
        reason.is_error().then_some((filter, reason))
    });
    let (end_of_resumed_session, reason) = end_of_resumed_session.expect("there are 256 shapes");
    assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
    for _ in 0..2 {
        conn.write(|out| {
            let filters = std::iter::once(&end_of_resumed_session[..]);
            encode::unsubscribe(out, Version::V5, id(9), &Properties::default(), filters);
        });
        let received = conn.packet();
        let Packet::UnsubAck(unsuback) = received.packet() else {
            panic!("an UNSUBACK is due, {:?} came", received.packet());
        };
        let reasons: Vec<_> = unsuback.reasons.iter().collect();
        assert_eq!(reasons, [ReasonCode::NO_SUBSCRIPTION_EXISTED]);
        // The session does not have the refused filter after a reconnect either.
        conn.cut();
        conn = Conn::open(&broker, Version::V5);
        assert!(conn.resume("member"));
        assert!(conn.is_served());
    }
}

/// The last byte of the greedy client's address. The other clients have the address 127.0.0.1.
const GREEDY: u8 = 2;

#[test]
fn absent_sessions_of_one_address_leave_room_for_another_s_topics() {
    let broker = small("[limits]\ntopics_per_shard = 100\n");
    for session in 0..8 {
        let mut greedy = Conn::open_from(GREEDY, &broker, Version::V5);
        greedy.resume(&format!("greedy-{session}"));
        for topic in 0..32 {
            let filter = format!("greedy/{session}/{topic}");
            greedy.subscribe(&filter, 1);
        }
        greedy.cut();
    }
    let mut modest = Conn::connected(&broker, Version::V5, "modest");
    assert_eq!(modest.subscribe("modest", 1), ReasonCode::GRANTED_QOS_1);
}

#[test]
fn sessions_of_one_address_leave_room_for_one_of_another() {
    let broker = small("[mqtt]\nsessions_max = 10\n");
    let mut end_of_resumed_session = 0;
    for session in 0..20 {
        let mut greedy = Conn::open_from(GREEDY, &broker, Version::V5);
        let client = format!("greedy-{session}");
        let mut properties = crore_wire::mqtt::PropertyWriter::new();
        properties.session_expiry_interval_s(1000);
        let mut connect = crate::support::mqtt::plain_connect(Version::V5, &client);
        connect.properties = properties.properties();
        greedy.write(|out| encode::connect(out, &connect));
        let received = greedy.packet();
        let Packet::ConnAck(connack) = received.packet() else {
            panic!("a CONNACK is due");
        };
        end_of_resumed_session += u32::from(connack.reason == ReasonCode::QUOTA_EXCEEDED);
    }
    assert!(
        (11..20).contains(&end_of_resumed_session),
        "{end_of_resumed_session}"
    );
    Conn::connected(&broker, Version::V5, "modest");
}
