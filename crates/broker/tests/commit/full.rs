//! Tests an engine (the writer of the log) whose disk is full: new publishes are refused, and everything else continues.

use std::net::IpAddr;

use crore_broker::ControlRecord;
use crore_broker::batch::{self, LogRecord};
use crore_wire::mqtt::{
    Ack, Connect, PacketId, Properties, Publish, Qos, ReasonCode, Version, encode,
};

use super::{TestServer, message, near_and_far, subscribe};

/// If the server refused the copy, the publisher would believe that its message is not in the log, although it is.
#[test]
fn copy_of_a_message_in_the_log_is_recognised_while_the_disk_is_full() {
    for topic in near_and_far() {
        let world = TestServer::world(2, |_| {});
        let mut server = TestServer::of(&world);
        let post = |server: &mut TestServer, key: &str| {
            let key = format!("Idempotency-Key: \"{key}\"\r\n");
            let conn = server.ask(&format!("POST /pub/{topic}"), &key, "x");
            server.commit();
            server.statuses(conn)
        };
        assert_eq!(post(&mut server, "known"), [202]);
        world.admission.set_disk_full(true);
        assert_eq!(post(&mut server, "known"), [202]);
        assert_eq!(post(&mut server, "unknown"), [503]);
    }
}

#[test]
fn publishes_are_refused_while_the_disk_is_full() {
    for topic in near_and_far() {
        let world = TestServer::world(2, |_| {});
        let mut server = TestServer::of(&world);
        let subscriber = server.subscribe(&topic);
        let client = server.mqtt("client", 0);
        let before = server.post(&topic, "before");
        server.settle();
        world.admission.set_disk_full(true);
        // The server admitted this publish before the disk was full.
        server.commit();
        assert_eq!(server.statuses(before), [201]);
        assert!(server.text(subscriber).contains("before"));
        let refused = server.post(&topic, "refused");
        let made = server.ask("PUT /pub/made", "", "");
        let batch = server.ask(
            "POST /pub",
            "Content-Type: application/x-ndjson\r\n",
            &format!("{{\"topic\":\"{topic}\",\"data\":\"refused\"}}\n"),
        );
        server.0.send(client, message(&topic, "refused", 7, true));
        server.commit();
        for conn in [refused, made] {
            assert_eq!(server.statuses(conn), [503]);
            let text = server.text(conn);
            assert!(
                text.contains("Retry-After: ") && text.contains("state.bytes_max"),
                "{text}"
            );
        }
        assert!(
            server.text(batch).contains("state.bytes_max"),
            "{}",
            server.text(batch)
        );
        assert_eq!(server.told(client), ["puback Quota exceeded"]);
        // Reading and deleting need hardly any disk space, so they are allowed.
        let late = server.ask(&format!("GET /sub/{topic}?since=oldest"), "", "");
        server.commit();
        assert!(server.text(late).contains("before"));
        let deleted = server.ask(&format!("DELETE /pub/{topic}"), "", "");
        server.commit();
        assert_eq!(server.statuses(deleted), [200]);
        world.admission.set_disk_full(false);
        let after = server.post(&topic, "after");
        server
            .0
            .send(client, message(&topic, "after, too", 8, false));
        server.commit();
        assert_eq!(server.statuses(after), [202]);
        assert_eq!(server.told(client), ["puback No matching subscribers"]);
        assert!(!server.text(subscriber).contains("refused"));
    }
}

#[test]
fn mqtt_3_client_is_disconnected_without_an_acknowledgement() {
    let world = TestServer::world(1, |_| {});
    let mut server = TestServer::of(&world);
    let client = server.open();
    let mut bytes = Vec::new();
    let connect = Connect {
        version: Version::V311,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        properties: Properties::NONE,
        client_id: "client",
        will: None,
        user_name: None,
        password: None,
    };
    encode::connect(&mut bytes, &connect);
    server.0.send(client, &bytes);
    server.commit();
    server.0.socket(client).received.clear();
    world.admission.set_disk_full(true);
    bytes.clear();
    let publish = Publish {
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: false,
        topic: "t",
        packet_id: PacketId::new(7),
        properties: Properties::NONE,
        payload: b"refused",
    };
    encode::publish(&mut bytes, Version::V311, &publish);
    server.0.send(client, &bytes);
    server.commit();
    assert!(!server.0.is_open(client));
    assert_eq!(server.text(client), "");
}

#[test]
fn publishers_wait_for_room_in_the_log_and_are_refused_when_none_comes() {
    for topic in near_and_far() {
        let world = TestServer::world(2, |_| {});
        let mut server = TestServer::of(&world);
        let client = server.mqtt("client", 0);
        let subscriber = server.subscribe(&topic);
        server.commit();
        let full = |is_full: bool, server: &TestServer| {
            let since_s = if is_full { server.0.now.unix_s } else { 0 };
            world.admission.set_log_full(since_s);
        };
        full(true, &server);
        let waits = server.post(&topic, "waits");
        server
            .0
            .send(client, message(&topic, "waits, too", 7, false));
        server.commit();
        assert_eq!(server.statuses(waits), [0; 0]);
        // A checkpoint makes room within some seconds.
        server.0.advance_and_tick_s(4);
        server.commit();
        assert_eq!(server.statuses(waits), [0; 0]);
        assert_eq!(server.told(client), [""; 0]);
        full(false, &server);
        server.commit();
        assert_eq!(server.statuses(waits), [201]);
        assert_eq!(server.told(client), ["puback Success"]);
        // This time the checkpoint makes no room.
        full(true, &server);
        let waits = server.post(&topic, "refused");
        server
            .0
            .send(client, message(&topic, "refused, too", 8, false));
        server.commit();
        server.0.advance_and_tick_s(5);
        server.commit();
        let refused = server.post(&topic, "refused at once");
        server.commit();
        for conn in [waits, refused] {
            assert_eq!(server.statuses(conn), [503]);
            let text = server.text(conn);
            assert!(
                text.contains("Retry-After: ") && text.contains("checkpoints"),
                "{text}"
            );
        }
        assert_eq!(server.told(client), ["puback Quota exceeded"]);
        assert!(!server.text(subscriber).contains("refused"));
    }
}

#[test]
fn full_disk_refuses_new_sessions_and_existing_ones_continue() {
    let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
    let mut server = TestServer::of(&world);
    let away = server.mqtt("away", 600);
    let here = server.mqtt("here", 600);
    server.0.cut(away);
    server.commit();
    world.admission.set_disk_full(true);
    let connect = |server: &mut TestServer, client: &str, expiry_s| {
        let conn = server.open();
        server.0.send(conn, super::connect(client, expiry_s));
        server.commit();
        server.told(conn)
    };
    assert_eq!(
        connect(&mut server, "new", 600),
        ["connack Quota exceeded false"]
    );
    // This session has no record, because it expires with its connection.
    assert_eq!(connect(&mut server, "short", 0), ["connack Success false"]);
    assert_eq!(connect(&mut server, "away", 600), ["connack Success true"]);
    server.0.send(here, subscribe("t"));
    server.commit();
    assert_eq!(server.told(here), ["SubAck"]);
    world.admission.set_disk_full(false);
    assert_eq!(connect(&mut server, "new", 600), ["connack Success false"]);
}

/// Each client has a share of the room for records. Without shares, one client that connects or subscribes again and again would use up the room for all
/// sessions.
#[test]
fn full_disk_gives_each_client_a_part_of_the_room_for_records_of_its_sessions() {
    let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
    let mut server = TestServer::of(&world);
    let connects = |server: &mut TestServer, peer: u8, client: &str| {
        let conn = server.0.open_from(0, IpAddr::from([192, 0, 2, peer]));
        server.0.send(conn, super::connect(client, 600));
        server.commit();
        (conn, server.told(conn))
    };
    let clients = [(1, "one"), (1, "another"), (2, "other")];
    for (peer, client) in clients {
        connects(&mut server, peer, client);
    }
    world.admission.set_disk_room(0, 256 * 2000);
    world.admission.set_disk_full(true);
    let (here, packets) = connects(&mut server, 1, "one");
    assert_eq!(packets, ["connack Success true"]);
    let mut subscribed = 0;
    while server.0.is_open(here) && subscribed < 1000 {
        server.0.send(here, subscribe("t"));
        server.commit();
        subscribed += 1;
    }
    // The client's share has room for some records.
    assert!((5..100).contains(&subscribed), "{subscribed}");
    assert_eq!(server.told(here).pop().as_deref(), Some("Disconnect"));
    for (peer, client) in clients {
        let reason = if peer == 1 {
            "Quota exceeded false"
        } else {
            "Success true"
        };
        let (_, packets) = connects(&mut server, peer, client);
        assert_eq!(packets, [format!("connack {reason}")], "{client}");
    }
    // A checkpoint has freed space.
    world.admission.set_disk_room(1 << 20, 256 * 2000);
    world.admission.set_disk_full(false);
    let (_, packets) = connects(&mut server, 1, "one");
    assert_eq!(packets, ["connack Success true"]);
}

const NOTHING: [Option<u64>; 0] = [];

/// Runs everything. Returns the offsets in the group records that were written meanwhile; `None` for a group that has ended.
fn recorded_positions(server: &mut TestServer) -> Vec<Option<u64>> {
    let mut offsets = Vec::new();
    server.settle();
    while server.0.io.iter().any(|io| !io.batches.is_empty()) {
        for waiting in server.0.io.iter().flat_map(|io| &io.batches) {
            let read = batch::for_each_record(&waiting.bytes, |_, record| {
                if let LogRecord::Control(ControlRecord::Group(position)) = record {
                    offsets.push(position.offset);
                }
            });
            assert!(read.is_ok());
        }
        server.0.commit_batches(&mut || true);
        server.settle();
    }
    offsets
}

/// Otherwise a client without a durable session could fill the log with groups that are not restored after a crash.
#[test]
fn group_has_records_from_its_first_member_with_a_durable_session_until_it_ends() {
    let mut server = TestServer::new(2, |settings| settings.mqtt.durable_sessions = true);
    let (short, durable) = (server.mqtt("short", 0), server.mqtt("durable", 600));
    server.0.send(short, subscribe("$share/workers/#"));
    assert_eq!(recorded_positions(&mut server), NOTHING);
    server.0.send(durable, subscribe("$share/workers/#"));
    let recorded = recorded_positions(&mut server);
    assert!(
        recorded.len() == 4 && recorded.iter().all(Option::is_some),
        "{recorded:?}"
    );
    server.0.send(durable, subscribe("$share/workers/#"));
    assert_eq!(recorded_positions(&mut server), NOTHING);
    server.0.cut(short);
    let clean = server.open();
    server
        .0
        .send(clean, super::support::connect_clean("durable", 0));
    assert_eq!(recorded_positions(&mut server), [None; 4]);
}

/// Otherwise a client that begins and ends groups would use up the room for the records of all sessions.
#[test]
fn full_disk_refuses_groups_that_would_be_recorded_and_lets_existing_ones_go_on() {
    let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
    let mut server = TestServer::of(&world);
    let durable = ["one", "other"].map(|client| server.mqtt(client, 600));
    let short = server.mqtt("short", 0);
    let joins = |server: &mut TestServer, conn: usize, group: &str| {
        server.0.socket(conn).received.clear();
        let filter = format!("$share/{group}/#");
        server.0.send(conn, subscribe(&filter));
        let recorded = recorded_positions(server).len();
        (server.0.received(conn).last().copied(), recorded)
    };
    let [granted, refused] = [Some(1), Some(0x97)];
    assert_eq!(joins(&mut server, durable[0], "old"), (granted, 4));
    world.admission.set_disk_full(true);
    assert_eq!(joins(&mut server, durable[0], "new"), (refused, 0));
    assert_eq!(joins(&mut server, durable[1], "old"), (granted, 0));
    assert_eq!(joins(&mut server, short, "new"), (granted, 0));
    // With this member, the group would need records.
    assert_eq!(joins(&mut server, durable[0], "new"), (refused, 0));
    world.admission.set_disk_full(false);
    assert_eq!(joins(&mut server, durable[0], "new"), (granted, 4));
}

/// Runs for this many seconds. Returns the offsets in the group records that were written meanwhile.
fn recorded_positions_of_s(server: &mut TestServer, seconds: u32) -> Vec<Option<u64>> {
    let each = (0..seconds).flat_map(|_| {
        server.0.advance_and_tick_s(1);
        recorded_positions(server)
    });
    each.collect()
}

/// Otherwise acknowledgements by members, and groups that end, would use up the room for the records of all sessions.
#[test]
fn full_disk_keeps_the_recorded_positions_of_groups_until_there_is_room() {
    let world = TestServer::world(2, |settings| settings.mqtt.durable_sessions = true);
    let mut server = TestServer::of(&world);
    let topic = super::topic_at(0, 0);
    let member = server.mqtt("member", 600);
    server
        .0
        .send(member, subscribe(&format!("$share/workers/{topic}")));
    server.commit();
    let publisher = server.mqtt("publisher", 0);
    server.0.send(publisher, message(&topic, "x", 1, false));
    server.commit();
    let id = PacketId::new(1).expect("not 0");
    let mut out = Vec::new();
    let ack = Ack {
        packet_id: id,
        reason: ReasonCode::SUCCESS,
        properties: Properties::NONE,
    };
    encode::puback(&mut out, Version::V5, &ack);
    server.0.send(member, out);
    server.commit();
    world.admission.set_disk_room(0, 0);
    world.admission.set_disk_full(true);
    assert_eq!(recorded_positions_of_s(&mut server, 6), NOTHING);
    world.admission.set_disk_full(false);
    assert_eq!(recorded_positions_of_s(&mut server, 6).len(), 1);
    world.admission.set_disk_full(true);
    let clean = server.open();
    server
        .0
        .send(clean, super::support::connect_clean("member", 0));
    assert_eq!(recorded_positions_of_s(&mut server, 6), NOTHING);
    world.admission.set_disk_full(false);
    assert_eq!(recorded_positions_of_s(&mut server, 6), [None]);
}
