//! Tests an engine (the writer of the log) whose disk is full: publishes are refused before they are admitted, and everything else
//! continues.

use crore_wire::mqtt::{Connect, Properties, Publish, Qos, Version, encode};

use super::{Town, message, near_and_far};

#[test]
fn a_full_disk_refuses_publishes_until_there_is_room() {
    for topic in near_and_far() {
        let world = Town::world(2, |_| {});
        let mut town = Town::of(&world);
        let subscriber = town.subscribe(&topic);
        let client = town.mqtt("client", 0);
        let before = town.post(&topic, "before");
        town.settle();
        world.admission.set_disk_full(true);
        // This publish was admitted before the disk was full.
        town.commit();
        assert_eq!(town.statuses(before), [201]);
        assert!(town.text(subscriber).contains("before"));
        let refused = town.post(&topic, "refused");
        let made = town.ask("PUT /pub/made", "", "");
        let batch = town.ask(
            "POST /pub",
            "Content-Type: application/x-ndjson\r\n",
            &format!("{{\"topic\":\"{topic}\",\"data\":\"refused\"}}\n"),
        );
        town.0.say(client, message(&topic, "refused", 7, true));
        town.commit();
        for conn in [refused, made] {
            assert_eq!(town.statuses(conn), [503]);
            let text = town.text(conn);
            assert!(
                text.contains("Retry-After: ") && text.contains("state.bytes_max"),
                "{text}"
            );
        }
        assert!(
            town.text(batch).contains("state.bytes_max"),
            "{}",
            town.text(batch)
        );
        assert_eq!(town.told(client), ["puback Quota exceeded"]);
        // Reading and deleting need hardly any disk space, so they are allowed.
        let late = town.ask(&format!("GET /sub/{topic}?since=oldest"), "", "");
        town.commit();
        assert!(town.text(late).contains("before"));
        let deleted = town.ask(&format!("DELETE /pub/{topic}"), "", "");
        town.commit();
        assert_eq!(town.statuses(deleted), [200]);
        world.admission.set_disk_full(false);
        let after = town.post(&topic, "after");
        town.0.say(client, message(&topic, "after, too", 8, false));
        town.commit();
        assert_eq!(town.statuses(after), [202]);
        assert_eq!(town.told(client), ["puback No matching subscribers"]);
        assert!(!town.text(subscriber).contains("refused"));
    }
}

#[test]
fn a_client_of_mqtt_3_is_closed_without_an_acknowledgement() {
    let world = Town::world(1, |_| {});
    let mut town = Town::of(&world);
    let client = town.open();
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
    town.0.say(client, &bytes);
    town.commit();
    town.0.socket(client).received.clear();
    world.admission.set_disk_full(true);
    bytes.clear();
    let publish = Publish {
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: false,
        topic: "t",
        packet_id: crore_wire::mqtt::PacketId::new(7),
        properties: Properties::NONE,
        payload: b"refused",
    };
    encode::publish(&mut bytes, Version::V311, &publish);
    town.0.say(client, &bytes);
    town.commit();
    assert!(!town.0.is_open(client));
    assert_eq!(town.text(client), "");
}

#[test]
fn publishers_wait_for_room_in_the_log_and_are_refused_when_none_comes() {
    for topic in near_and_far() {
        let world = Town::world(2, |_| {});
        let mut town = Town::of(&world);
        let client = town.mqtt("client", 0);
        let subscriber = town.subscribe(&topic);
        town.commit();
        let full = |is_full: bool, town: &Town| {
            let since_s = if is_full { town.0.now.unix_s } else { 0 };
            world.admission.set_log_full(since_s);
        };
        full(true, &town);
        let waits = town.post(&topic, "waits");
        town.0.say(client, message(&topic, "waits, too", 7, false));
        town.commit();
        assert_eq!(town.statuses(waits), [0; 0]);
        // A checkpoint makes room within some seconds.
        town.0.tick_s(4);
        town.commit();
        assert_eq!(town.statuses(waits), [0; 0]);
        assert_eq!(town.told(client), [""; 0]);
        full(false, &town);
        town.commit();
        assert_eq!(town.statuses(waits), [201]);
        assert_eq!(town.told(client), ["puback Success"]);
        // This time the checkpoint does not make room.
        full(true, &town);
        let waits = town.post(&topic, "refused");
        town.0
            .say(client, message(&topic, "refused, too", 8, false));
        town.commit();
        town.0.tick_s(5);
        town.commit();
        let refused = town.post(&topic, "refused at once");
        town.commit();
        for conn in [waits, refused] {
            assert_eq!(town.statuses(conn), [503]);
            let text = town.text(conn);
            assert!(
                text.contains("Retry-After: ") && text.contains("checkpoints"),
                "{text}"
            );
        }
        assert_eq!(town.told(client), ["puback Quota exceeded"]);
        assert!(!town.text(subscriber).contains("refused"));
    }
}
