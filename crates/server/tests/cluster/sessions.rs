//! Tests MQTT sessions in a cluster. A client finds its session at any node, also after the death of the node that it was connected to. In a cluster
//! without durable sessions they end with their connections.

use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{PropertyWriter, ReasonCode, Version};

use crate::jetstream::JetStream;
use crate::join::refusal;
use crate::servers::Servers;
use crate::support::mqtt::{Conn, VERSIONS, message, plain_connect, will};
use crate::support::{Server, port, until};
use crate::{node, settings};

/// A cluster of two nodes.
fn two_durable_nodes() -> Option<(Servers, Server, Server)> {
    let servers = Servers::start(1)?;
    let (node_a, node_b) = (node(&servers), node(&servers));
    Some((servers, node_a, node_b))
}

/// The settings of a node whose cluster, if it makes one, has no durable sessions.
fn settings_without_sessions(servers: &Servers) -> String {
    let settings = settings(servers);
    let (cluster, rules) = settings.split_once("[[rule]]").expect("a rule");
    format!("{cluster}durable_sessions = false\n[[rule]]{rules}")
}

/// Connects with the session of this client at a node. Also returns whether the session was present.
fn resume(server: &Server, version: Version, client: &str) -> (Conn, bool) {
    let mut conn = Conn::to_server(server, version);
    let present = conn.resume(client);
    (conn, present)
}

fn publish(server: &Server, qos: u8, topic: &str, texts: &[&str]) {
    let mut from = Conn::to_server(server, Version::V5);
    from.connect(&plain_connect(Version::V5, ""));
    for text in texts {
        from.deliver(&message(topic, qos, 1, text.as_bytes()));
    }
}

/// Receives the next message, which must have this text, and acknowledges it.
fn receive(conn: &mut Conn, text: &str) {
    let received = conn.packet();
    let publish = received.publish();
    assert_eq!(String::from_utf8_lossy(publish.payload), text);
    if let Some(id) = publish.packet_id {
        conn.acknowledge(PubAck, id.get());
    }
}

#[test]
fn session_continues_at_another_node() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    for version in VERSIONS {
        let (mut conn, present) = resume(&node_a, version, "it");
        assert!(!present);
        for filter in ["a/+/c", "t"] {
            conn.subscribe(filter, 1);
        }
        publish(&node_b, 1, "t", &["seen"]);
        receive(&mut conn, "seen");
        assert!(conn.is_served());
        conn.leave();
        publish(&node_a, 1, "t", &["missed"]);
        publish(&node_b, 1, "a/b/c", &["this too"]);
        let (mut conn, present) = resume(&node_b, version, "it");
        assert!(present);
        let mut texts = [(); 2].map(|()| {
            let received = conn.packet();
            let publish = received.publish();
            conn.acknowledge(PubAck, publish.packet_id.expect("a packet id").get());
            String::from_utf8_lossy(publish.payload).into_owned()
        });
        texts.sort();
        assert_eq!(texts, ["missed", "this too"]);
        publish(&node_a, 1, "t", &["live"]);
        receive(&mut conn, "live");
        // A clean start ends the session at both nodes.
        let mut clean = Conn::to_server(&node_a, version);
        assert!(!clean.connect(&plain_connect(version, "it")));
        assert_eq!(conn.end().is_some(), version == Version::V5);
        clean.leave();
        let (conn, present) = resume(&node_b, version, "it");
        assert!(!present, "it has ended");
        drop(conn);
        let mut clean = Conn::to_server(&node_a, version);
        clean.connect(&plain_connect(version, "it"));
        clean.leave();
    }
}

#[test]
fn connect_at_another_node_ends_the_first_connection() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let (mut first, _) = resume(&node_a, Version::V5, "it");
    first.subscribe("t", 1);
    let (mut second, present) = resume(&node_b, Version::V5, "it");
    assert!(present);
    assert_eq!(first.end(), Some(ReasonCode::SESSION_TAKEN_OVER));
    publish(&node_a, 1, "t", &["to the second"]);
    receive(&mut second, "to the second");
    // Also a client whose session ends with its connection.
    let mut passing = Conn::to_server(&node_a, Version::V5);
    passing.connect(&plain_connect(Version::V5, "passing"));
    Conn::to_server(&node_b, Version::V5).connect(&plain_connect(Version::V5, "passing"));
    assert_eq!(passing.end(), Some(ReasonCode::SESSION_TAKEN_OVER));
}

#[test]
fn session_survives_the_death_of_its_node_and_of_all_nodes() {
    let Some((servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let (mut conn, _) = resume(&node_a, Version::V5, "it");
    conn.subscribe("t", 1);
    publish(&node_b, 1, "t", &["not acknowledged"]);
    assert_eq!(conn.packet().publish().payload, b"not acknowledged");
    node_a.kill();
    let (mut conn, present) = resume(&node_b, Version::V5, "it");
    assert!(present);
    receive(&mut conn, "not acknowledged");
    node_b.kill();
    let third = node(&servers);
    publish(&third, 1, "t", &["missed"]);
    let (mut conn, present) = resume(&third, Version::V5, "it");
    assert!(present);
    // The acknowledgement was not recorded before the second node died.
    receive(&mut conn, "not acknowledged");
    receive(&mut conn, "missed");
}

#[test]
fn qos_2_delivery_over_changing_nodes_arrives_once() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let (mut conn, _) = resume(&node_a, Version::V5, "it");
    conn.subscribe("t", 2);
    publish(&node_b, 2, "t", &["once"]);
    let received = conn.packet();
    let number = received.publish().packet_id.expect("a packet id").get();
    node_a.kill();
    let (mut conn, _) = resume(&node_b, Version::V5, "it");
    let again = conn.packet();
    assert!(again.publish().dup, "the same delivery goes on");
    assert_eq!(
        again.publish().packet_id.expect("a packet id").get(),
        number
    );
    conn.acknowledge(PubRec, number);
    assert_eq!(conn.packet().ack(PubRel).0, number);
    // The client has released it, and the PUBCOMP is lost with the connection.
    let (mut conn, _) = resume(&node_b, Version::V5, "it");
    assert_eq!(conn.packet().ack(PubRel).0, number);
    conn.acknowledge(PubComp, number);
    assert!(conn.is_served(), "nothing else comes");
}

#[test]
fn qos_2_publish_repeated_at_another_node_is_one_message() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let (mut reader, _) = resume(&node_b, Version::V5, "reader");
    reader.subscribe("t", 1);
    let (mut publisher, _) = resume(&node_a, Version::V5, "it");
    publisher.publish(&message("t", 2, 7, b"once"));
    assert_eq!(publisher.packet().ack(PubRec).0, 7);
    node_a.kill();
    let (mut publisher, present) = resume(&node_b, Version::V5, "it");
    assert!(present);
    let mut repeated = message("t", 2, 7, b"once");
    repeated.dup = true;
    publisher.deliver(&repeated);
    publisher.deliver(&message("t", 1, 8, b"end"));
    receive(&mut reader, "once");
    receive(&mut reader, "end");
}

#[test]
fn will_of_a_client_of_a_dead_node_is_published_once() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let (mut reader, _) = resume(&node_b, Version::V5, "reader");
    reader.subscribe("w/#", 1);
    let with_will = |server: &Server, client: &str, topic: &str, delay_s: u32| {
        let (mut set, mut of_will) = (PropertyWriter::new(), PropertyWriter::new());
        set.session_expiry_interval_s(600);
        of_will.will_delay_interval_s(delay_s);
        let mut connect = plain_connect(Version::V5, client);
        connect.properties = set.properties();
        let mut will = will(topic);
        will.properties = of_will.properties();
        connect.will = Some(will);
        let mut conn = Conn::to_server(server, Version::V5);
        conn.connect(&connect);
        conn
    };
    // A connection that is cut off at a living node.
    with_will(&node_a, "cut", "w/cut", 0).cut();
    receive_of_topic(&mut reader, "w/cut");
    let _stays = with_will(&node_a, "stays", "w/stays", 1);
    let _back = with_will(&node_a, "back", "w/back", 600);
    node_a.kill();
    until("the other node finds the first dead", || {
        reader.has_received()
    });
    receive_of_topic(&mut reader, "w/stays");
    let (mut returning, present) = resume(&node_b, Version::V5, "back");
    assert!(present);
    assert!(
        returning.is_served() && reader.is_served(),
        "no other will comes"
    );
}

/// Receives the next message, which must be of this topic, and acknowledges it.
fn receive_of_topic(conn: &mut Conn, topic: &str) {
    let received = conn.packet();
    let publish = received.publish();
    assert_eq!(publish.topic, topic);
    conn.acknowledge(PubAck, publish.packet_id.expect("a packet id").get());
}

#[test]
fn session_ends_at_all_nodes_when_it_expires() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let mut set = PropertyWriter::new();
    set.session_expiry_interval_s(1);
    let mut connect = plain_connect(Version::V5, "it");
    connect.properties = set.properties();
    let mut conn = Conn::to_server(&node_a, Version::V5);
    conn.connect(&connect);
    conn.subscribe("t", 1);
    conn.leave();
    let sessions = |node: &Server| port::metric(node.admin(), "crore_sessions");
    for count in [1.0, 0.0] {
        for node in [&node_a, &node_b] {
            until("the session or its end", || sessions(node) == Some(count));
        }
    }
    let (_, present) = resume(&node_b, Version::V5, "it");
    assert!(!present);
}

#[test]
fn operator_lists_shows_and_ends_a_session_at_any_node() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let line = "DELETE /api/v1/session?client_id=it";
    let end_at = |node: &Server| port::ask(node.admin(), line, None).status;
    for ended_at in [&node_b, &node_a] {
        let (mut conn, present) = resume(&node_a, Version::V5, "it");
        assert!(!present);
        conn.subscribe("t", 1);
        until("the claim at the other node", || {
            port::metric(node_b.admin(), "crore_sessions") == Some(1.0)
        });
        assert_eq!(end_at(ended_at), 404, "its client is connected");
        conn.leave();
        for node in [&node_a, &node_b] {
            until("the session at each node", || {
                let page = port::get(node.admin(), "sessions");
                page["sessions"][0]["client_id"] == "it"
            });
            let shown = port::get(node.admin(), "session?client_id=it");
            assert_eq!(shown["subscriptions"][0]["filter"], "t", "{shown}");
        }
        assert_eq!(end_at(ended_at), 200);
        for node in [&node_a, &node_b] {
            port::await_metric(node.admin(), "crore_sessions", 0.0);
        }
    }
}

/// An operator may give a node a lower limit than before. No session may end for that, since the other nodes go on with it.
#[test]
fn node_that_begins_with_more_sessions_than_its_limit_has_all_and_refuses_new_ones() {
    let Some((servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let clients = ["a", "b", "c"];
    for client in clients {
        resume(&node_a, Version::V5, client).0.leave();
    }
    node_a.kill();
    let limit = "[mqtt]\nsessions_max = 2\n";
    let node_a = Server::with_admin(&format!("{}{limit}", settings(&servers)));
    for client in clients {
        let (mut conn, present) = resume(&node_a, Version::V5, client);
        assert!(present, "{client}");
        conn.leave();
    }
    let begins = |node: &Server| Conn::to_server(node, Version::V5).try_to_resume("new");
    assert_eq!(begins(&node_a), ReasonCode::QUOTA_EXCEEDED);
    for client in &clients[..2] {
        let line = format!("DELETE /api/v1/session?client_id={client}");
        until("its client is away", || {
            port::ask(node_b.admin(), &line, None).status == 200
        });
    }
    port::await_metric(node_a.admin(), "crore_sessions", 1.0);
    assert_eq!(begins(&node_a), ReasonCode::SUCCESS);
}

#[test]
fn clients_with_one_id_at_two_nodes_are_limited_and_the_last_is_served() {
    let Some((_servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    let nodes = [&node_a, &node_b];
    let metric_of = |node: &Server, metric| port::metric(node.admin(), metric).unwrap_or_default();
    let mut fighters = Vec::new();
    let mut served = 0.0;
    for turn in 0..1000 {
        let version = VERSIONS[turn / 2 % VERSIONS.len()];
        let mut conn = Conn::to_server(nodes[turn % 2], version);
        match conn.try_to_resume("fought over") {
            ReasonCode::SUCCESS => served += 1.0,
            reason => assert_eq!(reason, too_many_takeovers(version)),
        }
        fighters.push(conn);
    }
    assert!(served < 1000.0);
    let sum = |metric| {
        nodes
            .map(|node| metric_of(node, metric))
            .iter()
            .sum::<f64>()
    };
    until("all refusals are counted", || {
        sum("crore_refused_takeovers_total") == 1000.0 - served
    });
    until("all but the last were told", || {
        sum("crore_takeovers_total") == served - 1.0
    });
    for node in nodes {
        node.await_log("fought over");
        let log = node.log();
        let lines = log.lines().filter(|line| line.contains("fought over"));
        assert_eq!(lines.count(), 1, "{log}");
    }
    let mut last = None;
    until("the last one is served", || {
        let mut conn = Conn::to_server(&node_b, Version::V5);
        let is_served = conn.try_to_resume("fought over") == ReasonCode::SUCCESS;
        last = is_served.then_some(conn);
        is_served
    });
    let mut last = last.expect("the last one");
    last.subscribe("t", 1);
    publish(&node_a, 1, "t", &["to the last one"]);
    receive(&mut last, "to the last one");
}

fn too_many_takeovers(version: Version) -> ReasonCode {
    match version {
        Version::V5 => ReasonCode::CONNECTION_RATE_EXCEEDED,
        // Return code 3.
        Version::V311 => ReasonCode::SERVER_UNAVAILABLE,
    }
}

#[test]
fn client_without_a_durable_session_is_logged_once() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Server::with_admin(&settings_without_sessions(&servers));
    let count = || port::metric(node.admin(), "crore_short_sessions_total");
    // This client asks for no lasting session.
    Conn::to_server(&node, Version::V311).connect(&plain_connect(Version::V311, "passing"));
    for name in ["lamp-1", "lamp-2"] {
        for _ in 0..3 {
            let present = Conn::to_server(&node, Version::V311).resume(name);
            assert!(!present, "it ended with its connection");
            node.await_log(name);
        }
    }
    assert_eq!(count(), Some(2.0));
    let log = node.log();
    let lines_about_sessions: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("ends with the connection"))
        .collect();
    for name in ["lamp-1", "lamp-2"] {
        let lines = lines_about_sessions.iter().filter(|it| it.contains(name));
        assert_eq!(lines.count(), 1, "{log}");
    }
    assert!(!log.contains("passing"), "{log}");
}

/// Otherwise nodes without sessions would write checkpoints that lack the sessions of the others.
#[test]
fn cluster_without_sessions_has_them_at_all_nodes_when_its_format_is_raised() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let nodes = [settings_without_sessions(&servers), settings(&servers)];
    let [node_a, node_b] = nodes.clone().map(|it| Server::with_admin(&it));
    node_b.await_log("all nodes then end, to be started again with sessions");
    for node in [&node_a, &node_b] {
        let mut conn = Conn::to_server(node, Version::V5);
        assert_eq!(conn.try_to_resume("it"), ReasonCode::SUCCESS);
        conn.leave();
        assert!(!resume(node, Version::V5, "it").1, "it has ended");
    }
    let jetstream = JetStream::of(&servers);
    let mut raised = jetstream.get("numbers");
    assert_eq!(raised["format"], 3);
    raised["format"] = 4.into();
    jetstream.put("numbers", &raised);
    for node in [node_a, node_b] {
        let (code, log) = node.await_exit();
        assert!(
            code == Some(1) && log.contains("write format 4 now"),
            "{log}"
        );
    }
    let [node_a, node_b] = nodes.map(|it| Server::with_admin(&it));
    node_a.await_log("cluster.durable_sessions = false has no effect");
    resume(&node_a, Version::V5, "it").0.leave();
    assert!(resume(&node_b, Version::V5, "it").1);
}

/// Otherwise the node would write checkpoints that lack the sessions. Formats before 4 had sessions in builds that are older than format 4.
#[test]
fn node_without_sessions_does_not_join_a_cluster_whose_log_has_some() {
    let Some((servers, node_a, node_b)) = two_durable_nodes() else {
        return;
    };
    resume(&node_a, Version::V5, "it").0.leave();
    drop((node_a, node_b));
    let jetstream = JetStream::of(&servers);
    let mut numbers = jetstream.get("numbers");
    numbers["format"] = 3.into();
    jetstream.put("numbers", &numbers);
    let log = refusal(&settings(&servers));
    assert!(log.contains("stop all nodes, raise the format"), "{log}");
    numbers["format"] = 4.into();
    jetstream.put("numbers", &numbers);
    assert!(resume(&node(&servers), Version::V5, "it").1);
}
