//! A client that comes back while what it published is on its way: a home of another shard has not dealt with it yet.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};
use crore_wire::mqtt::{
    self, Ack, Connect, Packet, PacketId, Properties, PropertyBuf, Publish, Qos, ReasonCode,
    SubscribeOptions, Version, encode,
};
use crore_wire::topic;

const NOW: Now = Now {
    s: 1000,
    unix_s: 1_800_000_000,
};
const ID: PacketId = PacketId::new(7).unwrap();

/// Sockets that take everything, and mail that waits until it is fetched.
#[derive(Default)]
struct Sockets {
    conns: Vec<Option<ConnId>>,
    received: Vec<Vec<u8>>,
    mail: Vec<Mail>,
}

impl Io for Sockets {
    fn open(&mut self, link: Link, conn: ConnId) {
        self.conns[link.0 as usize] = Some(conn);
    }
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        let bytes = parts.concat();
        self.received[link.0 as usize].extend_from_slice(&bytes);
        bytes.len()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, _: Close) {}
    fn post(&mut self, _: ShardId, mail: Mail) {
        self.mail.push(mail);
    }
}

/// Two shards; all clients are at the first.
struct Pair {
    shards: [Shard; 2],
    io: [Sockets; 2],
}

impl Pair {
    fn new(settings: Settings) -> Pair {
        let world = Arc::new(World {
            admission: Admission::new(&settings, 42),
            rules: Rules::new(&settings.rules),
            settings,
            shards: 2,
            homes: 2,
            epoch: 7,
            seed: 42,
        });
        Pair {
            shards: [0, 1].map(|id| Shard::new(id, Arc::clone(&world), NOW)),
            io: Default::default(),
        }
    }

    fn open(&mut self) -> usize {
        let (shard, io) = (&mut self.shards[0], &mut self.io[0]);
        let link = io.conns.len();
        io.conns.push(None);
        io.received.push(Vec::new());
        let peer = Ipv4Addr::LOCALHOST.into();
        shard.handle(Input::Accepted(Link(link as u32), peer), NOW, io);
        link
    }

    fn say(&mut self, link: usize, mut bytes: Vec<u8>) {
        let (shard, io) = (&mut self.shards[0], &mut self.io[0]);
        let conn = io.conns[link].expect("it is open");
        shard.handle(Input::Received(conn, &mut bytes), NOW, io);
    }

    fn cut(&mut self, link: usize) {
        let (shard, io) = (&mut self.shards[0], &mut self.io[0]);
        let conn = io.conns[link].expect("it is open");
        shard.handle(Input::Closed(conn), NOW, io);
    }

    /// The first shard works until it has nothing to do; its mail stays where it is.
    fn near(&mut self) {
        while self.shards[0].flush(NOW, &mut self.io[0]) {}
    }

    /// Everything that is under way comes to its end.
    fn settle(&mut self) {
        loop {
            for (shard, io) in self.shards.iter_mut().zip(&mut self.io) {
                while shard.flush(NOW, io) {}
            }
            let mail = [0, 1].map(|n| std::mem::take(&mut self.io[n].mail));
            if mail.iter().all(Vec::is_empty) {
                return;
            }
            for (from, mail) in mail.into_iter().enumerate() {
                let to = 1 - from;
                for mail in mail {
                    self.shards[to].handle(Input::Mail(mail), NOW, &mut self.io[to]);
                }
            }
        }
    }

    /// What a client has been told, so far.
    fn told(&self, link: usize) -> Vec<String> {
        let mut bytes = &self.io[0].received[link][..];
        let mut told = Vec::new();
        while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
            let end = len + header.body_bytes();
            let packet = mqtt::decode(Version::V5, header, &bytes[len..end]).expect("a packet");
            told.push(match packet {
                Packet::ConnAck(ack) => format!("connack {}", ack.session_present),
                Packet::PubRec(ack) => format!("pubrec {} {:?}", ack.packet_id.get(), ack.reason),
                other => format!("{:?}", other.kind()),
            });
            bytes = &bytes[end..];
        }
        told
    }

    /// How many messages a topic has, by its info.
    fn messages(&mut self, topic: &str) -> String {
        let link = self.open();
        let request = format!("GET /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.say(link, request.into_bytes());
        self.settle();
        let answer = String::from_utf8(self.io[0].received[link].clone()).expect("text");
        let count = answer.lines().find(|line| line.contains("messages:"));
        count.unwrap_or("no such topic").trim().to_string()
    }
}

fn connect(client: &str) -> Vec<u8> {
    connect_for(client, 3600)
}

/// A CONNECT whose session outlives its connection by so much.
fn connect_for(client: &str, expiry_s: u32) -> Vec<u8> {
    let mut set = PropertyBuf::new();
    set.session_expiry_interval_s(expiry_s);
    let mut out = Vec::new();
    let connect = Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive_s: 0,
        properties: set.properties(),
        client_id: client,
        will: None,
        user_name: None,
        password: None,
    };
    encode::connect(&mut out, &connect);
    out
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

fn subscribe(filter: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let filters = [(filter, SubscribeOptions::of(Qos::AtLeastOnce))];
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

/// A topic whose home is this shard.
fn topic_at(home: u16, prefix: &str) -> String {
    let names = (0..).map(|n| format!("{prefix}{n}"));
    let mut there = names.filter(|name| u16::from(topic::partition(name.as_bytes())) % 2 == home);
    there.next().expect("there are many")
}

/// A client of the first shard with a session there, and its connection.
fn client(pair: &mut Pair) -> (String, usize) {
    for n in 0.. {
        let (client, link) = (format!("client{n}"), pair.open());
        pair.say(link, connect(&client));
        pair.near();
        let is_near = pair.told(link) == ["connack false"];
        pair.settle();
        if is_near {
            return (client, link);
        }
    }
    unreachable!("about every second one is")
}

#[test]
fn who_comes_back_while_its_publish_is_under_way_gets_the_session_once_that_stands_in_the_log() {
    let mut pair = Pair::new(Settings::default());
    let topic = topic_at(1, "t");
    let (client, first) = client(&mut pair);
    pair.say(first, publish(&topic, false));
    pair.near();
    let second = pair.open();
    pair.say(second, connect(&client));
    pair.say(second, publish(&topic, true));
    pair.near();
    assert!(pair.told(second).is_empty(), "the first is still under way");
    pair.settle();
    assert_eq!(pair.told(first), ["connack false", "Disconnect"]);
    assert_eq!(pair.told(second), ["connack true", "pubrec 7 0x00 Success"]);
    assert_eq!(pair.messages(&topic), "queued messages: 1");
}

#[test]
fn what_was_refused_while_its_client_was_away_is_published_when_it_is_sent_again() {
    let mut settings = Settings::default();
    settings.limits.topics_per_shard = 1;
    let mut pair = Pair::new(settings);
    let (taken, topic) = (topic_at(1, "taken"), topic_at(1, "t"));
    let (client, first) = client(&mut pair);
    pair.say(first, publish(&taken, false));
    pair.settle();
    pair.say(first, release());
    pair.say(first, publish(&topic, false));
    pair.near();
    let second = pair.open();
    pair.say(second, connect(&client));
    pair.settle();
    assert_eq!(pair.told(second), ["connack true"]);
    let link = pair.open();
    let request = format!("DELETE /pub/{taken} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    pair.say(link, request.into_bytes());
    pair.settle();
    pair.say(second, publish(&topic, true));
    pair.settle();
    let told = &pair.told(second)[1..];
    assert_eq!(told, ["pubrec 7 0x10 No matching subscribers"]);
    assert_eq!(pair.messages(&topic), "queued messages: 1");
}

#[test]
fn a_filter_keeps_its_place_at_an_empty_home_when_its_client_leaves_before_that_has_answered() {
    let mut pair = Pair::new(Settings::default());
    let topic = topic_at(1, "t");
    let (client, first) = client(&mut pair);
    pair.say(first, subscribe("#"));
    pair.settle();
    pair.cut(first);
    pair.settle();
    let publisher = pair.open();
    pair.say(publisher, connect("publisher"));
    pair.settle();
    pair.say(publisher, publish(&topic, false));
    pair.settle();
    let second = pair.open();
    pair.say(second, connect(&client));
    pair.near();
    assert_eq!(pair.told(second), ["connack true"]);
    pair.cut(second);
    pair.settle();
    let third = pair.open();
    pair.say(third, connect(&client));
    pair.settle();
    assert_eq!(pair.told(third), ["connack true", "Publish"]);
}

#[test]
fn a_session_that_ends_without_room_for_its_filter_leaves_no_need_for_logs_behind() {
    let mut settings = Settings::default();
    settings.limits.filters_per_shard = 1;
    let mut pair = Pair::new(settings);
    let (client, first) = client(&mut pair);
    pair.say(first, subscribe("kept/#"));
    pair.settle();
    pair.cut(first);
    pair.settle();
    let filler = pair.open();
    pair.say(filler, connect_for("filler", 0));
    pair.settle();
    pair.say(filler, subscribe("#"));
    pair.settle();
    let second = pair.open();
    pair.say(second, connect_for(&client, 0));
    pair.settle();
    assert_eq!(pair.told(second), ["connack true", "Disconnect"]);
    pair.cut(filler);
    pair.settle();
    let keepers = pair.shards.each_ref().map(|shard| shard.accounts().keepers);
    assert_eq!(keepers, [0, 0]);
}
