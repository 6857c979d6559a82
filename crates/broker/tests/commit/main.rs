//! Tests homes (the parts of shards that keep topics) with a slow engine (the writer of the log) that may lose batches: nothing is
//! answered or delivered before its commit, and each write takes effect once.

mod full;
mod groups;
mod sessions;
mod silence;
#[path = "../support/mod.rs"]
mod support;
mod unlogged;

use std::sync::Arc;

use crore_broker::mail::message::Headers;
use crore_broker::orders::AdminPublish;
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Control, Input, Report, Ticket, TurnLimits, World};
use crore_wire::mqtt::{self, Packet, PacketId, Publish, Qos, SubscribeOptions, Version, encode};
use crore_wire::topic;
use support::{NOW, connect};

/// Shards over an engine. Each shard is the home of two partitions. All clients are connected to the first shard.
struct Town(support::Town);

impl Town {
    fn new(shards: u16, change: impl FnOnce(&mut Settings)) -> Town {
        Town::of(&Town::world(shards, change))
    }

    fn of(world: &Arc<World>) -> Town {
        Town(support::Town::new(world, TurnLimits::default(), NOW))
    }

    fn world(shards: u16, change: impl FnOnce(&mut Settings)) -> Arc<World> {
        let mut settings = Settings {
            rules: vec![Rule {
                log_messages: 100,
                ..Rule::default()
            }],
            ..Settings::default()
        };
        change(&mut settings);
        let world = support::partitioned(settings, shards, shards, 2 * shards);
        let world = Arc::into_inner(world).expect("nobody else has it");
        Arc::new(World {
            writer: Some(1),
            ..world
        })
    }

    /// Runs everything that is possible until the engine answers.
    fn settle(&mut self) {
        self.0.settle();
    }

    /// Runs everything, and the engine commits all batches.
    fn commit(&mut self) {
        self.decide(|| true);
    }

    fn decide(&mut self, mut keeps: impl FnMut() -> bool) {
        self.settle();
        loop {
            while self.0.decide(&mut keeps) {
                self.settle();
            }
            if !self.rests() {
                return;
            }
        }
    }

    /// The engine loses the batches that wait for it.
    fn lose(&mut self) {
        self.settle();
        self.0.decide(|| false);
    }

    /// Lets time pass until lost batches are appended again. Returns whether there were any.
    fn rests(&mut self) -> bool {
        if self.0.shards.iter().all(|shard| shard.accounts().asks == 0) {
            return false;
        }
        self.0.tick_s(2);
        self.settle();
        self.0.io.iter().any(|io| !io.batches.is_empty())
    }

    /// The engine loses all batches for so long that publishers are told "outcome unknown".
    fn be_silent(&mut self) {
        for _ in 0..6 {
            self.lose();
            self.0.tick_s(2);
        }
        self.lose();
    }

    fn open(&mut self) -> usize {
        self.0.open(0)
    }

    /// Connects a client that sends this request.
    fn ask(&mut self, line: &str, fields: &str, body: &str) -> usize {
        let conn = self.open();
        self.ask_on(conn, line, fields, body);
        conn
    }

    fn ask_on(&mut self, conn: usize, line: &str, fields: &str, body: &str) {
        let len = body.len();
        self.0.say(
            conn,
            format!(
                "{line} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n{fields}Content-Length: {len}\r\n\r\n{body}"
            ),
        );
    }

    fn post(&mut self, topic: &str, data: &str) -> usize {
        self.ask(&format!("POST /pub/{topic}"), "", data)
    }

    /// A WebSocket that receives each message as a frame.
    fn subscribe(&mut self, topic: &str) -> usize {
        let fields = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
        let conn = self.ask(&format!("GET /sub/{topic}"), fields, "");
        self.commit();
        self.0.socket(conn).received.clear();
        conn
    }

    fn text(&self, conn: usize) -> String {
        String::from_utf8_lossy(self.0.received(conn)).into_owned()
    }

    /// The statuses of the answers so far.
    fn statuses(&self, conn: usize) -> Vec<u16> {
        let text = self.text(conn);
        let lines = text.lines().filter_map(|line| {
            let at = line.find("HTTP/1.1 ")?;
            line.get(at + 9..at + 12)?.parse().ok()
        });
        lines.collect()
    }

    fn order(&mut self, at: usize, ticket: u64, control: Control) {
        self.0.handle(at, Input::Control(Ticket(ticket), control));
    }

    /// The reports about the operator's orders so far.
    fn reports(&mut self) -> Vec<String> {
        let reports = self.0.io.iter_mut().flat_map(|io| io.reports.drain(..));
        let told = reports.map(|(Ticket(ticket), report)| match report {
            Report::Outcome(outcome) => {
                let outcome = format!("{outcome:?}");
                let end = outcome.find('(').unwrap_or(outcome.len());
                format!("{ticket} {}", &outcome[..end])
            }
            other => format!("{ticket} {other:?}"),
        });
        told.collect()
    }

    /// The MQTT packets of a client since the last call.
    fn told(&mut self, conn: usize) -> Vec<String> {
        let received = std::mem::take(&mut self.0.socket(conn).received);
        let mut bytes = &received[..];
        let mut told = Vec::new();
        while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
            let end = len + header.body_bytes();
            let packet = mqtt::decode(Version::V5, header, &bytes[len..end]).expect("a packet");
            told.push(match packet {
                Packet::ConnAck(ack) => format!("connack {} {}", ack.reason, ack.session_present),
                Packet::PubAck(ack) => format!("puback {}", ack.reason),
                Packet::Publish(message) => format!(
                    "{}{} {} {}",
                    message.topic,
                    if message.retain { " retained" } else { "" },
                    message.packet_id.map_or(0, PacketId::get),
                    String::from_utf8_lossy(message.payload)
                ),
                other => format!("{:?}", other.kind()),
            });
            bytes = &bytes[end..];
        }
        told
    }

    fn mqtt(&mut self, client: &str, expiry_s: u32) -> usize {
        let conn = self.open();
        self.0.say(conn, connect(client, expiry_s));
        self.commit();
        assert_eq!(self.told(conn).len(), 1);
        conn
    }
}

fn subscribe(filter: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let filters = [(filter, SubscribeOptions::of(Qos::AtLeastOnce))];
    let id = PacketId::new(7).expect("not 0");
    let none = mqtt::Properties::NONE;
    encode::subscribe(&mut out, Version::V5, id, &none, filters.into_iter());
    out
}

/// A PUBLISH packet, of QoS 1, or of QoS 0 if the id is 0.
fn message(topic: &str, data: &str, id: u16, retain: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let packet_id = PacketId::new(id);
    let publish = Publish {
        dup: false,
        qos: match packet_id {
            Some(_) => Qos::AtLeastOnce,
            None => Qos::AtMostOnce,
        },
        retain,
        topic,
        packet_id,
        properties: mqtt::Properties::NONE,
        payload: data.as_bytes(),
    };
    encode::publish(&mut out, Version::V5, &publish);
    out
}

/// The `n`th topic whose home is at this one of two shards.
fn topic_at(home: u16, n: usize) -> String {
    let names = (0..).map(|n| format!("t{n}"));
    let mut there = names.filter(|name| u16::from(topic::slot(name.as_bytes())) % 2 == home);
    there.nth(n).expect("there are many")
}

/// A topic of a home on the clients' own shard, and one of a home on the other shard.
fn near_and_far() -> [String; 2] {
    [topic_at(0, 0), topic_at(1, 0)]
}

#[test]
fn no_client_hears_of_a_message_before_it_is_committed() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |_| {});
        let subscriber = town.subscribe(&topic);
        let publisher = town.post(&topic, "hello");
        let asker = town.ask(&format!("GET /pub/{topic}"), "", "");
        let late = town.ask(&format!("GET /sub/{topic}?since=oldest"), "", "");
        town.settle();
        for conn in [subscriber, publisher, asker, late] {
            assert_eq!(town.text(conn), "");
        }
        let stats = town.0.shards[0].stats();
        assert_eq!((stats.published, stats.published_bytes), (1, 5));
        town.commit();
        assert_eq!(
            town.text(subscriber),
            "\u{81}\u{5}hello".replace('\u{81}', "\u{fffd}")
        );
        assert_eq!(town.statuses(publisher), [201]);
        // A query that was sent after the publish sees its result.
        assert!(town.text(asker).contains("\"messages\": 1"));
        assert!(town.text(late).ends_with("hello"));
    }
}

#[test]
fn a_late_publish_has_an_unknown_outcome_and_takes_effect_once() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |_| {});
        let subscriber = town.subscribe(&topic);
        let publisher = town.post(&topic, "late");
        town.be_silent();
        assert_eq!(town.statuses(publisher), [503]);
        assert!(town.text(publisher).contains("outcome is not known"));
        assert_eq!(town.text(subscriber), "");
        town.ask_on(publisher, &format!("POST /pub/{topic}"), "", "next");
        town.commit();
        assert_eq!(town.statuses(publisher), [503, 201]);
        let text = town.text(subscriber);
        assert!(
            text.ends_with("next") && text.matches("late").count() == 1,
            "{text}"
        );
    }
}

#[test]
fn message_that_was_told_not_known_stands_before_all_that_other_clients_ask_for_later() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |_| {});
        let subscriber = town.subscribe(&topic);
        let old = town.post(&topic, "old");
        town.be_silent();
        assert_eq!(town.statuses(old), [503]);
        let new = town.post(&topic, "new");
        let newest = town.ask(&format!("GET /sub/{topic}?since=-1"), "", "");
        let again = town.post(&topic, "old");
        town.settle();
        for conn in [subscriber, new, newest, again] {
            assert_eq!(town.text(conn), "", "nobody passes it");
        }
        town.commit();
        assert_eq!([new, again].map(|it| town.statuses(it)), [[201], [201]]);
        assert!(town.text(newest).ends_with("new"));
        let all = town.text(subscriber);
        let places = ["old", "new"].map(|it| all.find(it).expect("it came"));
        assert!(places.is_sorted() && all.ends_with("old"), "{all}");
    }
}

#[test]
fn a_retry_of_what_is_under_way_is_answered_like_the_first() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |_| {});
        let line = format!("POST /pub/{topic}");
        let key = "Idempotency-Key: \"k\"\r\n";
        let first = town.ask(&line, key, "once");
        let again = town.ask(&line, key, "once");
        let other = town.ask(&line, key, "other");
        town.commit();
        assert_eq!(town.statuses(first), [202]);
        assert_eq!(town.statuses(again), [202]);
        assert!(
            town.text(again)
                .to_lowercase()
                .contains("idempotency-replayed")
        );
        let body = |conn| town.text(conn).split("\r\n\r\n").nth(1).map(String::from);
        assert_eq!(body(again), body(first));
        assert_eq!(town.statuses(other), [422]);
        let asker = town.ask(&format!("GET /pub/{topic}"), "", "");
        town.commit();
        assert!(town.text(asker).contains("\"messages\": 1"));
    }
}

#[test]
fn a_retry_of_an_unknown_outcome_gets_the_first_answer() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(2, |_| {});
    let (line, key) = (format!("POST /pub/{topic}"), "Idempotency-Key: \"k\"\r\n");
    let first = town.ask(&line, key, "once");
    town.be_silent();
    let again = town.ask(&line, key, "once");
    town.commit();
    let statuses = (town.statuses(first), town.statuses(again));
    assert_eq!(statuses, (vec![503], vec![202]));
    let answer = town.text(again).to_lowercase();
    assert!(answer.contains("idempotency-replayed"), "{answer}");
}

#[test]
fn a_batch_is_answered_when_all_its_lines_are_decided() {
    let [near, far] = near_and_far();
    let mut town = Town::new(2, |_| {});
    let lines = format!(
        "{{\"topic\":\"{near}\",\"data\":\"1\"}}\n{{\"topic\":\"{far}\",\"data\":\"2\"}}\n"
    );
    let fields = "Content-Type: application/x-ndjson\r\n";
    let publisher = town.ask("POST /pub", fields, &lines);
    town.settle();
    assert_eq!(town.text(publisher), "");
    let mut first = true;
    assert!(town.0.decide(|| std::mem::take(&mut first)));
    town.settle();
    assert_eq!(town.text(publisher), "");
    town.commit();
    let text = town.text(publisher);
    assert!(text.contains("\"published\": 2"), "{text}");
}

#[test]
fn orders_of_the_operator_are_carried_out_in_order_once_they_are_committed() {
    let topic = topic_at(0, 0);
    let name: Box<[u8]> = topic.as_bytes().into();
    let publishing = || {
        Box::new(AdminPublish {
            name: name.clone(),
            data: b"ordered".to_vec(),
            headers: Headers::default(),
        })
    };
    let mut town = Town::new(1, |_| {});
    let give = |town: &mut Town| {
        town.order(0, 1, Control::Publish(publishing()));
        town.order(0, 2, Control::Publish(publishing()));
        town.order(0, 3, Control::Purge(name.clone(), 1));
        town.order(0, 4, Control::Delete(name.clone()));
        town.order(0, 5, Control::Delete(name.clone()));
        town.settle();
        assert_eq!(town.reports(), [""; 0]);
    };
    give(&mut town);
    town.commit();
    let done = ["1 Done", "2 Done", "3 Purged", "4 Done", "5 Missing"];
    assert_eq!(town.reports(), done);
    give(&mut town);
    town.be_silent();
    let unknown = [1, 2, 3, 4, 5].map(|ticket| format!("{ticket} Unknown"));
    assert_eq!(town.reports(), unknown);
    town.commit();
    assert_eq!(town.reports(), [""; 0]);
}

#[test]
fn records_under_way_have_room_reserved() {
    let [first, second] = [0, 1].map(|n| topic_at(0, n));
    let mut town = Town::new(1, |settings| settings.limits.topics_per_shard = 1);
    let one = town.post(&first, "x");
    let two = town.post(&second, "x");
    let again = town.post(&first, "y");
    town.settle();
    assert_eq!(town.statuses(two), [503]);
    assert_eq!(
        (town.text(one), town.text(again)),
        (String::new(), String::new())
    );
    town.commit();
    let statuses = (town.statuses(one), town.statuses(again));
    assert_eq!(statuses, (vec![202], vec![202]));
}

#[test]
fn a_batch_that_was_lost_is_appended_again() {
    let topic = topic_at(0, 0);
    let mut town = Town::new(1, |_| {});
    let publisher = town.post(&topic, "x");
    town.settle();
    let lost = town.0.io[0].batches.pop_front().expect("a batch");
    town.settle();
    assert!(town.0.io[0].batches.is_empty());
    town.0.tick_s(2);
    town.settle();
    let again = town.0.io[0].batches.front().expect("it was appended again");
    assert_eq!((again.header, &again.bytes), (lost.header, &lost.bytes));
    town.commit();
    assert_eq!(town.statuses(publisher), [202]);
}

#[test]
fn publishers_wait_for_credit_until_what_is_under_way_is_kept() {
    for topic in near_and_far() {
        let mut town = Town::new(2, |settings| settings.limits.publish_credit_bytes = 20_000);
        let publisher = town.open();
        let body = "x".repeat(9_000);
        for _ in 0..8 {
            town.ask_on(publisher, &format!("POST /pub/{topic}"), "", &body);
        }
        town.settle();
        let under_way: usize = town.0.shards.iter().map(|it| it.accounts().asks).sum();
        assert!((1..=2).contains(&under_way), "{under_way} publishes");
        let stopped = !town.0.socket(publisher).is_read;
        assert!(stopped, "it is not read");
        town.commit();
        assert_eq!(town.statuses(publisher), [202; 8]);
        for shard in &town.0.shards {
            assert_eq!(shard.accounts().under_way_bytes, 0);
        }
    }
}
