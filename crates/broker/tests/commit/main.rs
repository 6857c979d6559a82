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
struct TestServer(support::TestServer);

impl TestServer {
    fn new(shards: u16, change: impl FnOnce(&mut Settings)) -> TestServer {
        TestServer::of(&TestServer::world(shards, change))
    }

    fn of(world: &Arc<World>) -> TestServer {
        TestServer(support::TestServer::new(world, TurnLimits::default(), NOW))
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

    /// Runs everything, and lets the engine commit all batches.
    fn commit(&mut self) {
        self.commit_batches(|| true);
    }

    fn commit_batches(&mut self, mut keeps: impl FnMut() -> bool) {
        self.settle();
        loop {
            while self.0.commit_batches(&mut keeps) {
                self.settle();
            }
            if !self.rests() {
                return;
            }
        }
    }

    /// Makes the engine lose the batches that wait for it.
    fn lose(&mut self) {
        self.settle();
        self.0.commit_batches(|| false);
    }

    /// Lets time pass until lost batches are appended again. Returns whether there were any.
    fn rests(&mut self) -> bool {
        if self.0.shards.iter().all(|shard| shard.accounts().asks == 0) {
            return false;
        }
        self.0.advance_and_tick_s(2);
        self.settle();
        self.0.io.iter().any(|io| !io.batches.is_empty())
    }

    /// Makes the engine lose all batches until publishers get the answer "outcome unknown".
    fn be_silent(&mut self) {
        for _ in 0..6 {
            self.lose();
            self.0.advance_and_tick_s(2);
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
        self.0.send(
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
            let offset = line.find("HTTP/1.1 ")?;
            line.get(offset + 9..offset + 12)?.parse().ok()
        });
        lines.collect()
    }

    fn order(&mut self, shard: usize, ticket: u64, control: Control) {
        self.0
            .handle(shard, Input::Control(Ticket(ticket), control));
    }

    /// The reports about the operator's orders so far.
    fn reports(&mut self) -> Vec<String> {
        let reports = self.0.io.iter_mut().flat_map(|io| io.reports.drain(..));
        let answers = reports.map(|(Ticket(ticket), report)| match report {
            Report::Outcome(outcome) => {
                let outcome = format!("{outcome:?}");
                let end = outcome.find('(').unwrap_or(outcome.len());
                format!("{ticket} {}", &outcome[..end])
            }
            other => format!("{ticket} {other:?}"),
        });
        answers.collect()
    }

    /// The MQTT packets of a client since the last call.
    fn told(&mut self, conn: usize) -> Vec<String> {
        let received = std::mem::take(&mut self.0.socket(conn).received);
        let mut bytes = &received[..];
        let mut answers = Vec::new();
        while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
            let end = len + header.body_bytes();
            let packet = mqtt::decode(Version::V5, header, &bytes[len..end]).expect("a packet");
            answers.push(match packet {
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
        answers
    }

    fn mqtt(&mut self, client: &str, expiry_s: u32) -> usize {
        let conn = self.open();
        self.0.send(conn, connect(client, expiry_s));
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

/// The `n`th topic whose home is on this one of two shards.
fn topic_at(home: u16, n: usize) -> String {
    let names = (0..).map(|n| format!("t{n}"));
    let mut names_of_home =
        names.filter(|name| u16::from(topic::slot(name.as_bytes())) % 2 == home);
    names_of_home.nth(n).expect("there are many")
}

/// A topic whose home is on the clients' shard, and one whose home is on the other shard.
fn near_and_far() -> [String; 2] {
    [topic_at(0, 0), topic_at(1, 0)]
}

#[test]
fn no_client_learns_of_a_message_before_its_commit() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let subscriber = server.subscribe(&topic);
        let publisher = server.post(&topic, "hello");
        let asker = server.ask(&format!("GET /pub/{topic}"), "", "");
        let late = server.ask(&format!("GET /sub/{topic}?since=oldest"), "", "");
        server.settle();
        for conn in [subscriber, publisher, asker, late] {
            assert_eq!(server.text(conn), "");
        }
        let stats = server.0.shards[0].stats();
        assert_eq!((stats.published, stats.published_bytes), (1, 5));
        server.commit();
        assert_eq!(
            server.text(subscriber),
            "\u{81}\u{5}hello".replace('\u{81}', "\u{fffd}")
        );
        assert_eq!(server.statuses(publisher), [201]);
        // A query that was sent after the publish sees its result.
        assert!(server.text(asker).contains("\"messages\": 1"));
        assert!(server.text(late).ends_with("hello"));
    }
}

#[test]
fn a_late_publish_has_an_unknown_outcome_and_takes_effect_once() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let subscriber = server.subscribe(&topic);
        let publisher = server.post(&topic, "late");
        server.be_silent();
        assert_eq!(server.statuses(publisher), [503]);
        assert!(server.text(publisher).contains("outcome is not known"));
        assert_eq!(server.text(subscriber), "");
        server.ask_on(publisher, &format!("POST /pub/{topic}"), "", "next");
        server.commit();
        assert_eq!(server.statuses(publisher), [503, 201]);
        let text = server.text(subscriber);
        assert!(
            text.ends_with("next") && text.matches("late").count() == 1,
            "{text}"
        );
    }
}

#[test]
fn message_with_an_unknown_outcome_precedes_later_requests_of_other_clients() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let subscriber = server.subscribe(&topic);
        let old = server.post(&topic, "old");
        server.be_silent();
        assert_eq!(server.statuses(old), [503]);
        let new = server.post(&topic, "new");
        let newest = server.ask(&format!("GET /sub/{topic}?since=-1"), "", "");
        let again = server.post(&topic, "old");
        server.settle();
        for conn in [subscriber, new, newest, again] {
            assert_eq!(server.text(conn), "", "nobody passes it");
        }
        server.commit();
        assert_eq!([new, again].map(|it| server.statuses(it)), [[201], [201]]);
        assert!(server.text(newest).ends_with("new"));
        let all = server.text(subscriber);
        let places = ["old", "new"].map(|it| all.find(it).expect("it came"));
        assert!(places.is_sorted() && all.ends_with("old"), "{all}");
    }
}

#[test]
fn retry_of_a_publish_in_flight_gets_the_same_answer() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let line = format!("POST /pub/{topic}");
        let key = "Idempotency-Key: \"k\"\r\n";
        let first = server.ask(&line, key, "once");
        let again = server.ask(&line, key, "once");
        let other = server.ask(&line, key, "other");
        server.commit();
        assert_eq!(server.statuses(first), [202]);
        assert_eq!(server.statuses(again), [202]);
        assert!(
            server
                .text(again)
                .to_lowercase()
                .contains("idempotency-replayed")
        );
        let body = |conn| server.text(conn).split("\r\n\r\n").nth(1).map(String::from);
        assert_eq!(body(again), body(first));
        assert_eq!(server.statuses(other), [422]);
        let asker = server.ask(&format!("GET /pub/{topic}"), "", "");
        server.commit();
        assert!(server.text(asker).contains("\"messages\": 1"));
    }
}

#[test]
fn a_retry_of_an_unknown_outcome_gets_the_first_answer() {
    let topic = topic_at(0, 0);
    let mut server = TestServer::new(2, |_| {});
    let (line, key) = (format!("POST /pub/{topic}"), "Idempotency-Key: \"k\"\r\n");
    let first = server.ask(&line, key, "once");
    server.be_silent();
    let again = server.ask(&line, key, "once");
    server.commit();
    let statuses = (server.statuses(first), server.statuses(again));
    assert_eq!(statuses, (vec![503], vec![202]));
    let answer = server.text(again).to_lowercase();
    assert!(answer.contains("idempotency-replayed"), "{answer}");
}

#[test]
fn batch_is_answered_after_the_outcome_of_all_its_lines() {
    let [near, far] = near_and_far();
    let mut server = TestServer::new(2, |_| {});
    let lines = format!(
        "{{\"topic\":\"{near}\",\"data\":\"1\"}}\n{{\"topic\":\"{far}\",\"data\":\"2\"}}\n"
    );
    let fields = "Content-Type: application/x-ndjson\r\n";
    let publisher = server.ask("POST /pub", fields, &lines);
    server.settle();
    assert_eq!(server.text(publisher), "");
    let mut first = true;
    assert!(server.0.commit_batches(|| std::mem::take(&mut first)));
    server.settle();
    assert_eq!(server.text(publisher), "");
    server.commit();
    let text = server.text(publisher);
    assert!(text.contains("\"published\": 2"), "{text}");
}

#[test]
fn orders_of_the_operator_take_effect_in_order_after_their_commit() {
    let topic = topic_at(0, 0);
    let name: Box<[u8]> = topic.as_bytes().into();
    let publishing = || {
        Box::new(AdminPublish {
            idempotency_key: None,
            name: name.clone(),
            data: b"ordered".to_vec(),
            headers: Headers::default(),
        })
    };
    let mut server = TestServer::new(1, |_| {});
    let give = |server: &mut TestServer| {
        server.order(0, 1, Control::Publish(publishing()));
        server.order(0, 2, Control::Publish(publishing()));
        server.order(0, 3, Control::Purge(name.clone(), 1));
        server.order(0, 4, Control::Delete(name.clone()));
        server.order(0, 5, Control::Delete(name.clone()));
        server.settle();
        assert_eq!(server.reports(), [""; 0]);
    };
    give(&mut server);
    server.commit();
    let done = ["1 Done", "2 Done", "3 Purged", "4 Done", "5 Missing"];
    assert_eq!(server.reports(), done);
    give(&mut server);
    server.be_silent();
    let unknown = [1, 2, 3, 4, 5].map(|ticket| format!("{ticket} Unknown"));
    assert_eq!(server.reports(), unknown);
    server.commit();
    assert_eq!(server.reports(), [""; 0]);
}

#[test]
fn room_in_the_log_is_reserved_for_records_in_flight() {
    let [first, second] = [0, 1].map(|n| topic_at(0, n));
    let mut server = TestServer::new(1, |settings| settings.limits.topics_per_shard = 1);
    let one = server.post(&first, "x");
    let two = server.post(&second, "x");
    let again = server.post(&first, "y");
    server.settle();
    assert_eq!(server.statuses(two), [503]);
    assert_eq!(
        (server.text(one), server.text(again)),
        (String::new(), String::new())
    );
    server.commit();
    let statuses = (server.statuses(one), server.statuses(again));
    assert_eq!(statuses, (vec![202], vec![202]));
}

#[test]
fn lost_batch_is_appended_again() {
    let topic = topic_at(0, 0);
    let mut server = TestServer::new(1, |_| {});
    let publisher = server.post(&topic, "x");
    server.settle();
    let lost = server.0.io[0].batches.pop_front().expect("a batch");
    server.settle();
    assert!(server.0.io[0].batches.is_empty());
    server.0.advance_and_tick_s(2);
    server.settle();
    let again = server.0.io[0]
        .batches
        .front()
        .expect("it was appended again");
    assert_eq!((again.header, &again.bytes), (lost.header, &lost.bytes));
    server.commit();
    assert_eq!(server.statuses(publisher), [202]);
}

#[test]
fn publishers_wait_for_credit_until_messages_in_flight_are_committed() {
    for topic in near_and_far() {
        let mut server =
            TestServer::new(2, |settings| settings.limits.publish_credit_bytes = 20_000);
        let publisher = server.open();
        let body = "x".repeat(9_000);
        for _ in 0..8 {
            server.ask_on(publisher, &format!("POST /pub/{topic}"), "", &body);
        }
        server.settle();
        let under_way: usize = server.0.shards.iter().map(|it| it.accounts().asks).sum();
        assert!((1..=2).contains(&under_way), "{under_way} publishes");
        let stopped = !server.0.socket(publisher).is_read;
        assert!(stopped, "it is not read");
        server.commit();
        assert_eq!(server.statuses(publisher), [202; 8]);
        for shard in &server.0.shards {
            assert_eq!(shard.accounts().in_flight_bytes, 0);
        }
    }
}
