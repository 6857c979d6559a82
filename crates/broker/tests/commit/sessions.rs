//! Tests MQTT clients with a slow engine (the writer of the log).

use crore_broker::account::MemoryPart;
use crore_broker::batch::{self, LogRecord};
use crore_broker::mail::session_record::{RecordedPatch, RecordedState, SessionChange};
use crore_broker::{ControlRecord, Shard};
use crore_wire::mqtt::{
    Ack, Connect, Disconnect, PacketId, Properties, PropertyWriter, Publish, Qos, ReasonCode,
    SubscribeOptions, Version, Will, encode,
};

use super::support::{connect, connect_clean};
use super::{TestServer, message, near_and_far, subscribe};

#[test]
fn publish_is_acknowledged_only_after_its_commit() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let client = server.mqtt("a", 0);
        server.0.send(client, message(&topic, "x", 1, false));
        server.settle();
        assert_eq!(server.told(client), [""; 0]);
        server.commit();
        assert_eq!(server.told(client), ["puback No matching subscribers"]);
        // A publish with an unknown outcome is not acknowledged. The client reconnects and sends it again.
        server.0.send(client, message(&topic, "x", 2, false));
        server.be_silent();
        assert_eq!(server.told(client), ["Disconnect"]);
    }
}

/// After `mqtt.receive_max` unanswered publishes, the server stops reading from the client. It reads again when these publishes are committed.
#[test]
fn client_with_many_unanswered_messages_is_not_read_until_they_are_committed() {
    const MANY: u16 = 50;
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |settings| settings.mqtt.receive_max = 10);
        let client = server.mqtt("a", 0);
        let burst: Vec<Vec<u8>> = (1..=MANY)
            .map(|id| message(&topic, "x", id, false))
            .collect();
        server.0.send(client, burst.concat());
        server.settle();
        assert_eq!(server.told(client), [""; 0]);
        let under_way: usize = server.0.shards.iter().map(|it| it.accounts().asks).sum();
        assert!(under_way <= 11, "{under_way} publishes");
        assert!(!server.0.socket(client).is_read);
        for _ in 0..MANY {
            server.commit();
        }
        let packets = server.told(client);
        assert_eq!(packets, vec!["puback No matching subscribers"; MANY.into()]);
        assert!(server.0.socket(client).is_read);
    }
}

#[test]
fn subscription_that_follows_a_retained_message_gets_it_as_retained() {
    for topic in near_and_far() {
        let mut server = TestServer::new(2, |_| {});
        let client = server.mqtt("a", 0);
        server.0.send(client, message(&topic, "kept", 0, true));
        server.0.send(client, subscribe(&topic));
        server.settle();
        assert_eq!(server.told(client), [""; 0]);
        server.commit();
        let packets = server.told(client);
        assert_eq!(packets.len(), 2, "{packets:?}");
        assert!(
            packets.contains(&format!("{topic} retained 0 kept")),
            "{packets:?}"
        );
    }
}

#[test]
fn publishes_in_flight_are_charged_by_their_bytes() {
    for (bytes, most) in [(9_000, 2), (10, 5)] {
        for topic in near_and_far() {
            let mut server =
                TestServer::new(2, |settings| settings.limits.publish_credit_bytes = 20_000);
            let client = server.mqtt("a", 0);
            let data = "x".repeat(bytes);
            for id in 1..=8 {
                server.0.send(client, message(&topic, &data, id, false));
                server.settle();
            }
            let under_way: usize = server.0.shards.iter().map(|it| it.accounts().asks).sum();
            assert_eq!(under_way, most);
            server.commit();
            assert_eq!(server.told(client).len(), 8);
        }
    }
}

/// For each recorded session, the homes keep the QoS 2 messages that its client has not released. They drop them when the session ends.
#[test]
fn qos_2_keys_are_released_with_their_session() {
    let keys = |server: &TestServer| -> usize {
        let shards = server.0.shards.iter();
        shards
            .map(|shard| shard.accounts().parts[MemoryPart::Answers as usize])
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
        server.0.send(client, out);
        server.commit();
    }
    assert_eq!(server.told(client), ["PubRec", "PubRec"]);
    server.0.cut(client);
    server.commit();
    assert!(
        keys(&server) > 0,
        "the session goes on without a connection"
    );
    server.0.advance_and_tick_s(20);
    server.commit();
    server.0.advance_and_tick_s(1);
    server.commit();
    assert_eq!(keys(&server), 0);
}

/// The bytes that the log gets from a client with a durable session and `subscriptions` subscriptions of QoS 2: for one more SUBSCRIBE, for a QoS 2 message
/// to the client with its handshake, and for the end of the connection.
fn bytes_of_records(subscriptions: usize, filter: impl Fn(usize) -> String) -> [usize; 3] {
    const MESSAGES: u16 = 10;
    let mut server = TestServer::new(8, |settings| settings.mqtt.durable_sessions = true);
    let (client, publisher) = (server.mqtt("it", 600), server.mqtt("publisher", 0));
    let subscribe = |id: usize, filters: &[String]| {
        let mut out = Vec::new();
        let options = SubscribeOptions::of(Qos::ExactlyOnce);
        let filters = filters.iter().map(|filter| (&filter[..], options));
        let id = PacketId::new(id as u16).expect("not 0");
        encode::subscribe(&mut out, Version::V5, id, &Properties::NONE, filters);
        out
    };
    let all: Vec<String> = (0..subscriptions).map(&filter).collect();
    server.0.send(client, subscribe(1, &all));
    server.commit();
    let bytes =
        |server: &TestServer| -> usize { server.0.io.iter().map(|io| io.batch_bytes).sum() };
    let mut before = bytes(&server);
    server
        .0
        .send(client, subscribe(2, &[filter(subscriptions)]));
    server.commit();
    assert_eq!(server.told(client), ["SubAck", "SubAck"]);
    let mut since = |server: &TestServer| {
        let now = bytes(server);
        now - std::mem::replace(&mut before, now)
    };
    let subscribed = since(&server);
    for id in 1..=MESSAGES {
        let topic = filter(0).replace('+', "x");
        let publish = Publish {
            dup: false,
            qos: Qos::ExactlyOnce,
            retain: false,
            topic: &topic,
            packet_id: PacketId::new(id),
            properties: Properties::NONE,
            payload: b"0123456789",
        };
        let mut out = Vec::new();
        encode::publish(&mut out, Version::V5, &publish);
        server.0.send(publisher, out);
        server.commit();
        assert_eq!(server.told(client), [format!("{topic} {id} 0123456789")]);
        let ack = |encode: fn(&mut Vec<u8>, Version, &Ack<'_>)| {
            let ack = Ack {
                packet_id: PacketId::new(id).expect("not 0"),
                reason: ReasonCode::SUCCESS,
                properties: Properties::NONE,
            };
            let mut out = Vec::new();
            encode(&mut out, Version::V5, &ack);
            out
        };
        server.0.send(client, ack(encode::pubrec));
        server.commit();
        assert_eq!(server.told(client), ["PubRel"]);
        server.0.send(client, ack(encode::pubcomp));
        server.0.send(publisher, ack(encode::pubrel));
        server.commit();
    }
    let delivered = since(&server) / usize::from(MESSAGES);
    server.0.cut(client);
    server.commit();
    [subscribed, delivered, since(&server)]
}

/// From time to time the whole session must be recorded. Otherwise the number of records that a start must read would grow as long as the client stays
/// connected.
#[test]
fn session_is_recorded_completely_again_when_its_changes_are_as_long() {
    let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
    let client = server.mqtt("it", 600);
    let (mut parts, mut whole) = (0, 0);
    for n in 0..200 {
        server.0.send(client, subscribe(&format!("sensors/{n:04}")));
        server.settle();
        for waiting in server.0.io.iter().flat_map(|io| &io.batches) {
            let read = batch::for_each_record(&waiting.bytes, |_, entry| {
                if let LogRecord::Session(session) = entry {
                    match session.change {
                        SessionChange::Patch(_) => parts += 1,
                        SessionChange::State(_) => whole += 1,
                        _ => {}
                    }
                }
            });
            assert!(read.is_ok());
        }
        server.commit();
        server.told(client);
    }
    assert!(
        (2..=4).contains(&whole) && parts > 190,
        "{whole} and {parts}"
    );
}

/// The bounds are the figures of `docs/internals/COMMIT.md`, plus a few bytes.
#[test]
fn records_of_a_session_have_what_has_changed_whatever_it_has_besides() {
    for subscriptions in [1, 100, 1000] {
        let topics = bytes_of_records(subscriptions, |n| format!("sensors/{n:04}"));
        let filters = bytes_of_records(subscriptions, |n| format!("sensors/{n:04}/+"));
        for (bytes, most) in [(topics, [90, 265, 80]), (filters, [125, 285, 80])] {
            assert!(
                bytes.iter().zip(most).all(|(bytes, most)| *bytes <= most),
                "{subscriptions} subscriptions: {bytes:?} bytes, expected at most {most:?}"
            );
        }
    }
}

/// A second claim must not begin a session. Otherwise the log would have a different session than the first connection, and would ignore that connection's
/// records.
#[test]
fn second_claim_in_flight_begins_no_session() {
    let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
    for _ in 0..2 {
        let client = server.open();
        server.0.send(client, connect("it", 600));
        server.settle();
    }
    let mut claims = Vec::new();
    for waiting in server.0.io.iter().flat_map(|io| &io.batches) {
        let read = batch::for_each_record(&waiting.bytes, |_, entry| {
            if let LogRecord::Session(session) = entry
                && let SessionChange::Claim { clean, .. } = session.change
            {
                claims.push(clean);
            }
        });
        assert!(read.is_ok());
    }
    assert_eq!(claims, [true, false]);
}

/// Runs the server until it waits for nothing. Returns the records of sessions, wills and releases that the engine has got, in order.
fn appended(server: &mut TestServer) -> Vec<String> {
    let mut all = Vec::new();
    server.settle();
    while server.0.io.iter().any(|io| !io.batches.is_empty()) {
        for waiting in server.0.io.iter().flat_map(|io| &io.batches) {
            let read = batch::for_each_record(&waiting.bytes, |_, entry| {
                all.push(match entry {
                    LogRecord::Fact(_) => "message".to_string(),
                    LogRecord::Session(session) => match &session.change {
                        SessionChange::Claim { clean, .. } => format!("claim {clean}"),
                        SessionChange::End { .. } => "end".to_string(),
                        SessionChange::State(RecordedState { terms, .. })
                        | SessionChange::Patch(RecordedPatch {
                            terms: Some(terms), ..
                        }) => format!("{} {}", terms.expiry_s, terms.will.is_some()),
                        SessionChange::Patch(_) => "parts".to_string(),
                    },
                    LogRecord::Control(ControlRecord::Release(_)) => "release".to_string(),
                    LogRecord::Control(_) => return,
                });
            });
            assert!(read.is_ok());
        }
        server.0.commit_batches(&mut || true);
        server.settle();
    }
    all
}

/// A client with a durable session, and a will with this delay.
fn with_will(server: &mut TestServer, delay_s: u32) -> usize {
    let mut lasting = PropertyWriter::new();
    lasting.session_expiry_interval_s(600);
    let mut delayed = PropertyWriter::new();
    delayed.will_delay_interval_s(delay_s);
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: false,
        keep_alive_s: 0,
        client_id: "it",
        properties: lasting.properties(),
        will: Some(Will {
            qos: Qos::AtLeastOnce,
            retain: false,
            topic: "gone",
            properties: delayed.properties(),
            payload: b"x",
        }),
        user_name: None,
        password: None,
    };
    let mut out = Vec::new();
    encode::connect(&mut out, &connect);
    let conn = server.open();
    server.0.send(conn, out);
    server.commit();
    assert_eq!(server.told(conn).len(), 1);
    conn
}

/// If the session ended before the will is in the log, a crash would lose the will.
#[test]
fn session_that_ends_stays_in_the_log_until_its_will_is_there() {
    let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
    let client = with_will(&mut server, 0);
    let mut out = Vec::new();
    let mut ends = PropertyWriter::new();
    ends.session_expiry_interval_s(0);
    let disconnect = Disconnect {
        reason: ReasonCode::DISCONNECT_WITH_WILL,
        properties: ends.properties(),
    };
    encode::disconnect(&mut out, Version::V5, &disconnect);
    server.0.send(client, out);
    let all = appended(&mut server);
    assert_eq!(all[..3], ["0 true", "message", "end"], "{all:?}");
}

/// The record of a claim replaces the will. If the claim did not wait until the will is in the log, a crash would lose the will.
#[test]
fn claim_waits_until_the_will_of_the_connection_before_is_in_the_log() {
    for is_in_flight in [false, true] {
        let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
        let client = with_will(&mut server, 0);
        server.0.cut(client);
        server.settle();
        if is_in_flight {
            // Commits the record of the connection's end. The will is then in flight.
            server.0.commit_batches(&mut || true);
            server.settle();
        }
        let client = server.open();
        server.0.send(client, connect("it", 600));
        let all = appended(&mut server);
        let place = |wanted: &str| all.iter().position(|it| it == wanted);
        let (will, claim) = (place("message"), place("claim false"));
        assert!(will.is_some() && will < claim, "{all:?}");
        assert_eq!(server.told(client), ["connack Success true"]);
    }
}

#[test]
fn session_with_a_will_ends_with_a_clean_start_after_the_will_is_in_the_log() {
    let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
    let client = with_will(&mut server, 100);
    server.0.cut(client);
    server.commit();
    let [first, second] = [(); 2].map(|()| {
        let client = server.open();
        server.0.send(client, connect_clean("it", 600));
        client
    });
    let all = appended(&mut server);
    assert_eq!(all[..3], ["message", "600 false", "claim true"], "{all:?}");
    assert_eq!(all.iter().filter(|it| *it == "message").count(), 1);
    // The newer claim took over the session before the older one got its CONNACK.
    assert_eq!(server.told(first), [""; 0]);
    assert!(server.told(second)[0].starts_with("connack"));
}

#[test]
fn will_that_a_full_disk_refuses_is_published_when_there_is_room() {
    for comes_back in [false, true] {
        let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
        let mut server = TestServer::of(&world);
        let client = with_will(&mut server, 0);
        world.admission.set_disk_full(true);
        server.0.cut(client);
        assert_eq!(appended(&mut server), ["600 true"]);
        if comes_back {
            let client = server.mqtt("it", 600);
            assert!(
                server.0.is_open(client),
                "the client does not wait for the will"
            );
        }
        for _ in 0..2 {
            server.0.advance_and_tick_s(6);
            let all = appended(&mut server);
            assert!(!all.iter().any(|it| it == "message"), "{all:?}");
        }
        world.admission.set_disk_full(false);
        server.0.advance_and_tick_s(6);
        let all = appended(&mut server);
        assert_eq!(all[0], "message", "{all:?}");
        server.0.advance_and_tick_s(60);
        let all = appended(&mut server);
        assert!(!all.iter().any(|it| it == "message"), "{all:?}");
    }
}

/// If a will without a session were not charged, clients could fill the memory with such wills.
#[test]
fn will_that_waits_without_its_session_counts_for_its_client() {
    let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
    let mut server = TestServer::of(&world);
    let client = with_will(&mut server, 0);
    world.admission.set_disk_full(true);
    server.0.cut(client);
    server.commit();
    // The client reconnects, so it has no absent session.
    let _client = server.mqtt("it", 600);
    let charged = |server: &TestServer| -> usize {
        let accounts = server.0.shards.iter().map(Shard::accounts);
        accounts
            .map(|it| {
                it.parts[MemoryPart::Sessions as usize] + it.parts[MemoryPart::Turns as usize]
            })
            .sum()
    };
    let refused = charged(&server);
    assert!(
        !world.admission.has_no_absent(),
        "it waits to be published again"
    );
    world.admission.set_disk_full(false);
    server.0.advance_and_tick_s(6);
    server.settle();
    assert!(!world.admission.has_no_absent(), "it is in flight");
    let in_flight = charged(&server);
    appended(&mut server);
    assert!(world.admission.has_no_absent(), "it is in the log");
    server.0.advance_and_tick_s(2);
    let published = charged(&server);
    assert!(
        published < refused.min(in_flight),
        "{published}, {refused}, {in_flight}"
    );
}

/// Without this limit, a client that connects again and again while the log does not commit could fill the memory.
#[test]
fn claims_that_wait_for_a_will_are_bounded_and_count_for_their_client() {
    let world = TestServer::world(2, |settings| {
        settings.mqtt.durable_sessions = true;
        settings.mqtt.takeovers_per_minute = 0;
    });
    let mut server = TestServer::of(&world);
    let client = with_will(&mut server, 100);
    server.0.cut(client);
    server.commit();
    let waiting_bytes = |server: &TestServer| -> usize {
        let shards = server.0.shards.iter();
        shards
            .map(|shard| shard.accounts().parts[MemoryPart::Turns as usize])
            .sum()
    };
    let mut clients = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..40 {
        let client = server.open();
        server.0.send(client, connect_clean("it", 600));
        server.settle();
        bytes.push(waiting_bytes(&server));
        clients.push(client);
    }
    assert!(bytes[0] < bytes[4], "waiting claims are charged: {bytes:?}");
    assert_eq!(bytes[20], bytes[39], "no more of them wait");
    assert_eq!(server.told(clients[0]), ["connack Server busy false"]);
    server.commit();
    assert_eq!(server.told(clients[39]), ["connack Success false"]);
    for client in clients {
        server.0.cut(client);
    }
    appended(&mut server);
    server.0.advance_and_tick_s(601);
    appended(&mut server);
    assert!(world.admission.has_no_absent());
}

#[test]
fn will_that_is_refused_for_long_is_given_up() {
    let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
    let mut server = TestServer::of(&world);
    let client = with_will(&mut server, 0);
    world.admission.set_disk_full(true);
    server.0.cut(client);
    assert_eq!(appended(&mut server), ["600 true"]);
    server.0.advance_and_tick_s(599);
    assert_eq!(appended(&mut server), [""; 0]);
    server.0.advance_and_tick_s(6);
    let all = appended(&mut server);
    assert!(!all.iter().any(|it| it == "message"), "{all:?}");
    world.admission.set_disk_full(false);
    server.0.advance_and_tick_s(60);
    assert_eq!(appended(&mut server), [""; 0]);
}

/// A home may be too busy to publish a will in the second in which it is due. The client may come back in that time.
#[test]
fn will_that_is_due_is_published_although_its_client_comes_back() {
    for durable_sessions in [false, true] {
        let mut server = TestServer::new(2, |settings| {
            settings.mqtt.durable_sessions = durable_sessions
        });
        let client = with_will(&mut server, 1);
        server.0.cut(client);
        server.commit();
        server.0.advance_s(10);
        let client = server.open();
        server.0.send(client, connect("it", 600));
        let all = appended(&mut server);
        let count = all.iter().filter(|it| *it == "message").count();
        assert_eq!(count, 1, "{all:?}");
        assert_eq!(server.told(client), ["connack Success true"]);
    }
}

/// If the server forgot them earlier, a client whose session is restored after a crash could publish a message twice.
#[test]
fn qos_2_messages_of_a_session_are_forgotten_after_its_end_is_in_the_log() {
    for ends_by_expiry in [false, true] {
        let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
        let client = server.mqtt("it", 600);
        let mut out = Vec::new();
        let publish = Publish {
            dup: false,
            qos: Qos::ExactlyOnce,
            retain: false,
            topic: &near_and_far()[1],
            packet_id: PacketId::new(1),
            properties: Properties::NONE,
            payload: b"x",
        };
        encode::publish(&mut out, Version::V5, &publish);
        server.0.send(client, out);
        server.commit();
        if ends_by_expiry {
            server.0.cut(client);
            server.commit();
            server.0.advance_and_tick_s(700);
        } else {
            let mut out = Vec::new();
            let mut ends = PropertyWriter::new();
            ends.session_expiry_interval_s(0);
            let disconnect = Disconnect {
                reason: ReasonCode::SUCCESS,
                properties: ends.properties(),
            };
            encode::disconnect(&mut out, Version::V5, &disconnect);
            server.0.send(client, out);
        }
        assert_eq!(appended(&mut server), ["end", "release"]);
    }
}
