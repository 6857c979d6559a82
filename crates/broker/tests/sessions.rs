//! Tests a client that reconnects quickly: its new connection begins before the home on another shard (the part of a shard that keeps
//! topics) has handled the mail about the former connection.

use crore_broker::TurnLimits;
use crore_broker::settings::Settings;
use crore_wire::mqtt::{
    self, Ack, Packet, PacketId, Properties, Publish, Qos, ReasonCode, SubscribeOptions, Version,
    encode,
};
use crore_wire::topic;
use support::{NOW, TestServer};

mod support;

/// Session expiry of the clients in seconds.
const EXPIRY_S: u32 = 3600;
const ID: PacketId = PacketId::new(7).unwrap();

/// Two shards. All clients are connected to the first one.
struct Pair(TestServer);

impl Pair {
    fn new(settings: Settings) -> Pair {
        Pair::with_turn_limits(settings, TurnLimits::default())
    }

    fn with_turn_limits(settings: Settings, turn_limits: TurnLimits) -> Pair {
        let world = support::world(settings, 2, 2);
        Pair(TestServer::new(&world, turn_limits, NOW))
    }

    fn open(&mut self) -> usize {
        self.0.open(0)
    }

    fn send(&mut self, conn: usize, bytes: Vec<u8>) {
        self.0.send(conn, bytes);
    }

    fn cut(&mut self, conn: usize) {
        self.0.cut(conn);
    }

    /// The first shard works until it has nothing to do. Its mail (messages to the other shard) is not delivered.
    fn settle_first_shard(&mut self) {
        self.0.settle_one(0);
    }

    fn settle(&mut self) {
        self.0.settle();
        for conn in 0..self.0.io[0].sockets.len() {
            if self.0.is_open(conn * 2) && self.0.report_writable(conn * 2, usize::MAX) {
                self.0.settle();
            }
        }
    }

    /// The packets that a client has received so far.
    fn received_packets(&self, link: usize) -> Vec<String> {
        let mut bytes = self.0.received(link);
        let mut packets = Vec::new();
        while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
            let end = len + header.body_bytes();
            let packet = mqtt::decode(Version::V5, header, &bytes[len..end]).expect("a packet");
            packets.push(match packet {
                Packet::ConnAck(ack) => format!("connack {}", ack.session_present),
                Packet::PubRec(ack) => format!("pubrec {} {:?}", ack.packet_id.get(), ack.reason),
                other => format!("{:?}", other.kind()),
            });
            bytes = &bytes[end..];
        }
        packets
    }

    /// A topic's number of messages, from its information.
    fn messages(&mut self, topic: &str) -> String {
        let link = self.open();
        let request = format!("GET /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.send(link, request.into_bytes());
        self.settle();
        let answer = std::str::from_utf8(self.0.received(link)).expect("text");
        let count = answer.lines().find(|line| line.contains("messages:"));
        count.unwrap_or("no such topic").trim().to_string()
    }
}

fn publish(topic: &str, dup: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let publish = Publish {
        dup,
        qos: Qos::ExactlyOnce,
        retain: false,
        topic,
        packet_id: Some(ID),
        properties: Properties::NONE,
        payload: b"once",
    };
    encode::publish(&mut out, Version::V5, &publish);
    out
}

fn publish_retained(topic: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: true,
        topic,
        packet_id: None,
        properties: Properties::NONE,
        payload: b"retained",
    };
    encode::publish(&mut out, Version::V5, &publish);
    out
}

fn subscribe(filter: &str) -> Vec<u8> {
    subscribe_by(filter, Qos::AtLeastOnce)
}

fn subscribe_by(filter: &str, qos: Qos) -> Vec<u8> {
    let mut out = Vec::new();
    let filters = [(filter, SubscribeOptions::of(qos))];
    encode::subscribe(
        &mut out,
        Version::V5,
        ID,
        &Properties::NONE,
        filters.into_iter(),
    );
    out
}

fn release() -> Vec<u8> {
    let mut out = Vec::new();
    let ack = Ack {
        packet_id: ID,
        reason: ReasonCode::SUCCESS,
        properties: Properties::NONE,
    };
    encode::pubrel(&mut out, Version::V5, &ack);
    out
}

fn unsubscribe(filter: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode::unsubscribe(
        &mut out,
        Version::V5,
        ID,
        &Properties::NONE,
        [filter].into_iter(),
    );
    out
}

fn acknowledge(packet_id: PacketId) -> Vec<u8> {
    let mut out = Vec::new();
    let ack = Ack {
        packet_id,
        reason: ReasonCode::SUCCESS,
        properties: Properties::NONE,
    };
    encode::puback(&mut out, Version::V5, &ack);
    out
}

/// A topic whose home is at this shard.
fn topic_at(home: u16, prefix: &str) -> String {
    let names = (0..).map(|n| format!("{prefix}{n}"));
    let mut names_of_home =
        names.filter(|name| u16::from(topic::slot(name.as_bytes())) % 2 == home);
    names_of_home.next().expect("there are many")
}

/// A client of the first shard whose session is kept there, and its connection.
fn client(pair: &mut Pair) -> (String, usize) {
    for n in 0.. {
        let (client, link) = (format!("client{n}"), pair.open());
        pair.send(link, support::connect(&client, EXPIRY_S));
        pair.settle_first_shard();
        let is_near = pair.received_packets(link) == ["connack false"];
        pair.settle();
        if is_near {
            return (client, link);
        }
    }
    unreachable!("about every second one is")
}

#[test]
fn client_that_returns_during_its_publish_gets_its_session_after_the_commit() {
    let mut pair = Pair::new(Settings::default());
    let topic = topic_at(1, "t");
    let (client, first) = client(&mut pair);
    pair.send(first, publish(&topic, false));
    pair.settle_first_shard();
    let second = pair.open();
    pair.send(second, support::connect(&client, EXPIRY_S));
    pair.send(second, publish(&topic, true));
    pair.settle_first_shard();
    assert!(
        pair.received_packets(second).is_empty(),
        "the first is still under way"
    );
    pair.settle();
    assert_eq!(
        pair.received_packets(first),
        ["connack false", "Disconnect"]
    );
    assert_eq!(
        pair.received_packets(second),
        ["connack true", "pubrec 7 0x00 Success"]
    );
    assert_eq!(pair.messages(&topic), "queued messages: 1");
}

#[test]
fn publish_refused_while_its_client_was_away_is_accepted_when_sent_again() {
    let mut settings = Settings::default();
    settings.limits.topics_per_shard = 1;
    let mut pair = Pair::new(settings);
    let (taken, topic) = (topic_at(1, "taken"), topic_at(1, "t"));
    let (client, first) = client(&mut pair);
    pair.send(first, publish(&taken, false));
    pair.settle();
    pair.send(first, release());
    pair.send(first, publish(&topic, false));
    pair.settle_first_shard();
    let second = pair.open();
    pair.send(second, support::connect(&client, EXPIRY_S));
    pair.settle();
    assert_eq!(pair.received_packets(second), ["connack true"]);
    let link = pair.open();
    let request = format!("DELETE /pub/{taken} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    pair.send(link, request.into_bytes());
    pair.settle();
    pair.send(second, publish(&topic, true));
    pair.settle();
    let packets = &pair.received_packets(second)[1..];
    assert_eq!(packets, ["pubrec 7 0x10 No matching subscribers"]);
    assert_eq!(pair.messages(&topic), "queued messages: 1");
}

#[test]
fn filter_stays_known_at_an_empty_home_if_its_client_leaves_before_the_answer() {
    let mut pair = Pair::new(Settings::default());
    let topic = topic_at(1, "t");
    let (client, first) = client(&mut pair);
    pair.send(first, subscribe("#"));
    pair.settle();
    pair.cut(first);
    pair.settle();
    let publisher = pair.open();
    pair.send(publisher, support::connect("publisher", EXPIRY_S));
    pair.settle();
    pair.send(publisher, publish(&topic, false));
    pair.settle();
    let second = pair.open();
    pair.send(second, support::connect(&client, EXPIRY_S));
    pair.settle_first_shard();
    assert_eq!(pair.received_packets(second), ["connack true"]);
    pair.cut(second);
    pair.settle();
    let third = pair.open();
    pair.send(third, support::connect(&client, EXPIRY_S));
    pair.settle();
    assert_eq!(pair.received_packets(third), ["connack true", "Publish"]);
}

#[test]
fn session_gets_messages_of_a_topic_that_was_deleted_and_recreated_while_it_was_absent() {
    let mut pair = Pair::new(Settings::default());
    let topic = topic_at(1, "t");
    let (client, first) = client(&mut pair);
    pair.send(first, subscribe(&topic));
    pair.settle();
    pair.cut(first);
    pair.settle();
    let post =
        format!("POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1");
    let delete = format!("DELETE /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let publisher = pair.open();
    for request in [&post, &delete] {
        pair.send(publisher, request.clone().into_bytes());
        pair.settle();
    }
    let second = pair.open();
    pair.send(second, support::connect(&client, EXPIRY_S));
    pair.settle();
    assert_eq!(pair.received_packets(second), ["connack true"]);
    pair.send(publisher, post.into_bytes());
    pair.settle();
    assert_eq!(pair.received_packets(second), ["connack true", "Publish"]);
}

/// A subscription of QoS 0 has no position. If the server sent the CONNACK before the home of the topic knows the subscription, it would
/// lose the messages between them.
#[test]
fn connack_of_a_session_waits_until_its_subscriptions_of_qos_0_are_in_force() {
    for wildcard in [false, true] {
        let mut pair = Pair::new(Settings::default());
        let topic = topic_at(1, "t/");
        let filter = if wildcard { "t/+" } else { &topic };
        let (client, first) = client(&mut pair);
        pair.send(first, subscribe_by(filter, Qos::AtMostOnce));
        pair.settle();
        pair.cut(first);
        pair.settle();
        let second = pair.open();
        pair.send(second, support::connect(&client, EXPIRY_S));
        pair.settle_first_shard();
        assert!(
            pair.received_packets(second).is_empty(),
            "{filter}: the home has not heard"
        );
        // Messages published meanwhile arrive after the CONNACK.
        let publisher = pair.0.open(1);
        let request =
            format!("POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1");
        pair.0.deliver_mail(1);
        pair.0.send(publisher, request);
        pair.settle();
        assert_eq!(
            pair.received_packets(second),
            ["connack true", "Publish"],
            "{filter}"
        );
        // A client that leaves before its CONNACK has ended its connection, but not its session.
        let third = pair.open();
        pair.send(third, support::connect(&client, EXPIRY_S));
        pair.settle_first_shard();
        pair.cut(third);
        pair.settle();
        let fourth = pair.open();
        pair.send(fourth, support::connect(&client, EXPIRY_S));
        pair.settle();
        assert_eq!(pair.received_packets(fourth), ["connack true"], "{filter}");
    }
}

/// Two SUBSCRIBE packets for a filter that no home has answered yet: both SUBACKs wait for that answer.
#[test]
fn suback_of_a_repeated_subscription_waits_until_it_is_in_force() {
    for wildcard in [false, true] {
        for qos in [Qos::AtMostOnce, Qos::AtLeastOnce] {
            let mut pair = Pair::new(Settings::default());
            let topic = topic_at(1, "t/");
            let filter = if wildcard { "t/+" } else { &topic };
            let (_, link) = client(&mut pair);
            let mut again = subscribe_by(filter, qos);
            // The second SUBSCRIBE has another packet id.
            again[3] += 1;
            pair.send(
                link,
                [subscribe_by(filter, Qos::AtMostOnce), again].concat(),
            );
            pair.settle_first_shard();
            assert_eq!(
                pair.received_packets(link),
                ["connack false"],
                "{filter} {qos:?}"
            );
            pair.settle();
            let packets = pair.received_packets(link);
            assert_eq!(packets[1..], ["SubAck", "SubAck"], "{filter} {qos:?}");
        }
    }
}

#[test]
fn session_whose_filter_was_refused_leaves_no_log_retention_behind() {
    let mut settings = Settings::default();
    settings.limits.filters_per_shard = 1;
    let mut pair = Pair::new(settings);
    let (client, first) = client(&mut pair);
    pair.send(first, subscribe("kept/#"));
    pair.settle();
    pair.cut(first);
    pair.settle();
    let filler = pair.open();
    pair.send(filler, support::connect("filler", 0));
    pair.settle();
    pair.send(filler, subscribe("#"));
    pair.settle();
    let second = pair.open();
    pair.send(second, support::connect(&client, 0));
    pair.settle();
    assert_eq!(
        pair.received_packets(second),
        ["connack true", "Disconnect"]
    );
    pair.cut(filler);
    pair.settle();
    for shard in &pair.0.shards {
        assert_eq!(shard.accounts().keepers, 0);
    }
}

/// Packets of one write are handled in order, whether the topic's home is at the client's shard or at another one.
#[test]
fn client_receives_its_own_publish_that_follows_its_subscribe() {
    let mut pair = Pair::new(Settings::default());
    let (_, link) = client(&mut pair);
    for home in [0, 1] {
        let topic = topic_at(home, "t");
        pair.send(link, [subscribe(&topic), publish(&topic, false)].concat());
        pair.settle();
        pair.send(link, release());
        let mut packets = pair.received_packets(link);
        packets.retain(|packet| packet == "Publish");
        assert_eq!(packets.len(), usize::from(home) + 1, "home {home}");
    }
}

#[test]
fn clients_with_one_id_are_limited_to_some_takeovers_a_second() {
    let mut pair = Pair::new(Settings::default());
    let fight = |pair: &mut Pair, times| {
        let answers = (0..times).filter(|_| {
            let link = pair.open();
            pair.send(link, support::connect("fought over", EXPIRY_S));
            pair.settle();
            pair.received_packets(link).contains(&"connack true".into())
        });
        answers.count()
    };
    let allowed = Settings::default().mqtt.takeovers_per_minute as usize;
    // The first one begins the session.
    assert_eq!(fight(&mut pair, 1000), allowed);
    pair.0.advance_and_tick_s(2);
    pair.settle();
    assert!(fight(&mut pair, 1) == 1, "a second has passed");
}

/// The topic's home sends messages for a filter before it learns of the client's second subscription, to the topic itself. These messages are still in
/// flight when the second subscription begins.
#[test]
fn second_subscription_does_not_skip_messages_in_flight_for_a_filter() {
    let mut settings = Settings::default();
    settings.mqtt.inflight_max = 1;
    let mut pair = Pair::new(settings);
    let topic = topic_at(1, "t/");
    let (_, link) = client(&mut pair);
    // The second subscription gets the place of this one, before the filter.
    pair.send(link, subscribe("ended"));
    pair.settle();
    pair.send(link, subscribe("t/+"));
    pair.send(link, unsubscribe("ended"));
    pair.settle();
    pair.send(link, subscribe(&topic));
    pair.settle_first_shard();
    let publisher = pair.0.open(1);
    let post =
        format!("POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1");
    pair.0.send(publisher, post.repeat(2));
    pair.0.deliver_mail(1);
    pair.settle();
    let count = |pair: &Pair| {
        let mut packets = pair.received_packets(link);
        packets.retain(|packet| packet == "Publish");
        packets.len()
    };
    assert_eq!(count(&pair), 1, "the client acknowledges one at a time");
    // The first message of a connection has the packet id 1.
    pair.send(link, acknowledge(PacketId::new(1).expect("not 0")));
    pair.settle();
    assert_eq!(count(&pair), 2);
}

/// A publisher that has published three retained messages, to topics in the same slot as `topic`.
fn publisher_with_retained(pair: &mut Pair, topic: &str) -> usize {
    let same_slot = |name: &String| topic::slot(name.as_bytes()) == topic::slot(topic.as_bytes());
    let retained = (0..).map(|n| format!("t/retained{n}")).filter(same_slot);
    let publisher = pair.0.open(1);
    pair.send(publisher, support::connect("publisher", EXPIRY_S));
    for retained in retained.take(3) {
        pair.send(publisher, publish_retained(&retained));
        pair.settle();
    }
    publisher
}

/// A new subscription to a filter first reads the retained messages, page by page. Meanwhile the client gets a message by its subscription
/// to the topic.
#[test]
fn new_filter_does_not_repeat_a_message_of_a_live_subscription() {
    let turn_limits = TurnLimits {
        page_entries: 1,
        ..TurnLimits::default()
    };
    for qos in [Qos::AtLeastOnce, Qos::ExactlyOnce] {
        let mut pair = Pair::with_turn_limits(Settings::default(), turn_limits);
        let topic = topic_at(1, "t/");
        let publisher = publisher_with_retained(&mut pair, &topic);
        let (_, link) = client(&mut pair);
        pair.send(link, subscribe_by(&topic, qos));
        pair.settle();
        pair.send(link, subscribe_by("t/+", qos));
        pair.settle_first_shard();
        pair.0.deliver_mail(1);
        pair.0.flush(1);
        pair.0.deliver_mail(0);
        pair.send(publisher, publish(&topic, false));
        pair.settle();
        let mut packets = pair.received_packets(link);
        packets.retain(|packet| packet == "Publish");
        assert_eq!(
            packets.len(),
            3 + 1,
            "{qos:?}: three retained messages and one"
        );
    }
}

/// Two new filters in one SUBSCRIBE read retained messages page by page, while the client gets messages by an existing filter. Each message must arrive
/// once, in whatever order the shards work, and whatever places the subscriptions have in the client's list. (A new subscription takes the place of one
/// that has ended.)
#[test]
fn two_new_filters_do_not_repeat_messages_of_a_live_filter() {
    for seed in 0..150_u64 {
        let mut random = seed;
        let mut draw = |end: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1 + 2 * seed);
            (random >> 33) % end
        };
        let turn_limits = TurnLimits {
            page_entries: 1,
            // The retained messages of a page exceed this, so that the pages wait in a queue.
            page_bytes: 4,
            // A publish may come between the pages.
            steps_per_turn: 1 + draw(200) as u32,
            ..TurnLimits::default()
        };
        let mut pair = Pair::with_turn_limits(Settings::default(), turn_limits);
        let topic = topic_at(1, "t/");
        publisher_with_retained(&mut pair, &topic);
        let (_, link) = client(&mut pair);
        let ended: Vec<String> = (0..draw(3)).map(|n| format!("ended{n}")).collect();
        for filter in &ended {
            pair.send(link, subscribe(filter));
            pair.settle();
        }
        pair.send(link, subscribe("t/#"));
        pair.settle();
        for filter in &ended {
            pair.send(link, unsubscribe(filter));
            pair.settle();
        }
        let before = publishes(&pair, link);
        pair.send(link, subscribe_all(&["t/+", "+/#"]));
        let poster = pair.0.open(1);
        let post =
            format!("POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1");
        let mut published = 1;
        for _ in 0..30 {
            match draw(5) {
                0 => _ = pair.0.deliver_mail(0),
                1 => _ = pair.0.deliver_mail(1),
                2 => _ = pair.0.flush(0),
                3 => _ = pair.0.flush(1),
                _ => {
                    pair.send(poster, post.clone().into_bytes());
                    published += 1;
                }
            }
        }
        pair.settle();
        pair.send(poster, post.into_bytes());
        pair.settle();
        assert_eq!(
            publishes(&pair, link) - before,
            2 * 3 + published,
            "seed {seed}: three retained messages for each filter, and each other message once"
        );
    }
}

/// How many PUBLISH packets a client has received.
fn publishes(pair: &Pair, link: usize) -> usize {
    let packets = pair.received_packets(link);
    packets.iter().filter(|packet| *packet == "Publish").count()
}

fn subscribe_all(filters: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    let options = SubscribeOptions::of(Qos::AtLeastOnce);
    let filters = filters.iter().map(|it| (*it, options));
    encode::subscribe(&mut out, Version::V5, ID, &Properties::NONE, filters);
    out
}
