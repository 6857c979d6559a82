//! Tests sessions in a cluster whose client moves to another node before that node has read what the former node wrote to the log.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crore_broker::admission::Party;
use crore_broker::batch::Header;
use crore_broker::settings::Settings;
use crore_broker::{OFFSET_BITS, PartitionId, SessionNeeds, Shadow};
use crore_wire::mqtt::{
    self, Ack, Connect, Packet, PacketId, Properties, PropertyWriter, Publish, Qos, Version, Will,
    encode,
};

use super::support::NOW;
use super::{Nodes, PARTITIONS, world};

/// The partition of the client's session. The topics of the tests are in other partitions.
const SESSION_PARTITION: PartitionId = 0;
const ID: PacketId = PacketId::new(5).expect("not 0");

/// A name that belongs to this partition.
fn name_in(partition: PartitionId, prefix: &str) -> String {
    let placement = world(0).placement();
    let mut all = (0..100).map(|n| format!("{prefix}{n}"));
    all.find(|name| placement.partition_of(name.as_bytes()) == partition)
        .expect("a name")
}

/// Nodes with durable sessions.
fn nodes(count: usize) -> Nodes {
    nodes_with(count, Settings::default())
}

fn nodes_with(count: usize, mut settings: Settings) -> Nodes {
    settings.mqtt.durable_sessions = true;
    let mut nodes = Nodes::with(count, &settings);
    for node in &mut nodes.nodes {
        // The log is empty, so the nodes have read it.
        for shard in &mut node.server.shards {
            shard.finish_recovery(&SessionNeeds::default(), NOW);
        }
    }
    nodes
}

/// A client's connection to a node.
struct Client {
    node: usize,
    conn: usize,
}

impl Client {
    /// Connects, and resumes the session.
    fn connect(nodes: &mut Nodes, node: usize) -> Client {
        Client::connect_with(nodes, node, None)
    }

    /// Connects with this will, and begins a new session if there is one.
    fn connect_with(nodes: &mut Nodes, node: usize, will: Option<&[u8]>) -> Client {
        let will = will.map(|payload| ("last/words", payload));
        Client::connect_as(nodes, node, &name_in(SESSION_PARTITION, "client"), will)
    }

    /// Connects with this client id and a will with this topic.
    fn connect_as(
        nodes: &mut Nodes,
        node: usize,
        client_id: &str,
        will: Option<(&str, &[u8])>,
    ) -> Client {
        let mut set = PropertyWriter::new();
        set.session_expiry_interval_s(60);
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: will.is_some(),
            keep_alive_s: 0,
            properties: set.properties(),
            client_id,
            will: will.map(|(topic, payload)| Will {
                topic,
                payload,
                qos: Qos::AtMostOnce,
                retain: false,
                properties: Properties::NONE,
            }),
            user_name: None,
            password: None,
        };
        let conn = nodes.nodes[node].server.open(0);
        let client = Client { node, conn };
        client.send(nodes, |out| encode::connect(out, &connect));
        client
    }

    fn send(&self, nodes: &mut Nodes, packet: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        packet(&mut out);
        let server = &mut nodes.nodes[self.node].server;
        server.send(self.conn, out);
        server.settle();
        let all: Vec<usize> = (0..nodes.nodes.len()).collect();
        nodes.run(&all);
    }

    fn publish(&self, nodes: &mut Nodes, topic: &str, payload: &str) {
        self.publish_as(nodes, ID, topic, payload);
    }

    fn publish_as(&self, nodes: &mut Nodes, id: PacketId, topic: &str, payload: &str) {
        let publish = Publish {
            dup: false,
            qos: Qos::ExactlyOnce,
            retain: false,
            topic,
            packet_id: Some(id),
            properties: Properties::NONE,
            payload: payload.as_bytes(),
        };
        self.send(nodes, |out| encode::publish(out, Version::V5, &publish));
    }

    fn release(&self, nodes: &mut Nodes) {
        let ack = Ack {
            packet_id: ID,
            reason: mqtt::ReasonCode::SUCCESS,
            properties: Properties::NONE,
        };
        self.send(nodes, |out| encode::pubrel(out, Version::V5, &ack));
    }

    /// The packets that the client has received since the last call.
    fn received(&self, nodes: &mut Nodes) -> Vec<String> {
        let server = &mut nodes.nodes[self.node].server;
        let received = std::mem::take(&mut server.socket(self.conn).received);
        let (mut bytes, mut all) = (&received[..], Vec::new());
        while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
            let end = len + header.body_bytes();
            let packet = mqtt::decode(Version::V5, header, &bytes[len..end]).expect("a packet");
            all.push(match packet {
                Packet::ConnAck(ack) => {
                    format!("connack {} {:#x}", ack.session_present, ack.reason.value())
                }
                Packet::PubRec(ack) => format!("pubrec {:#x}", ack.reason.value()),
                Packet::PubComp(ack) => format!("pubcomp {:#x}", ack.reason.value()),
                other => format!("{:?}", other.kind()),
            });
            bytes = &bytes[end..];
        }
        all
    }
}

/// Lets a node read all partitions again.
fn read_on(nodes: &mut Nodes, node: usize) {
    nodes.nodes[node].unread.clear();
    let all: Vec<usize> = (0..nodes.nodes.len()).collect();
    nodes.read_stored(&all);
    nodes.run(&all);
}

fn data(nodes: &Nodes, node: usize, reader: usize) -> Vec<String> {
    let received = nodes.received_events(node, reader).into_iter();
    received.map(|(_, data)| data).collect()
}

#[test]
fn packet_id_is_free_after_a_release_at_a_node_that_has_not_read_the_message() {
    let mut nodes = nodes(2);
    let topic = name_in(1, "topic");
    let readers = [0, 1].map(|node| nodes.events(node, &format!("sub/{topic}"), ""));
    let first = Client::connect(&mut nodes, 0);
    nodes.nodes[1].unread = vec![1];
    first.publish(&mut nodes, &topic, "one");
    assert_eq!(
        first.received(&mut nodes),
        ["connack false 0x0", "pubrec 0x0"]
    );
    let second = Client::connect(&mut nodes, 1);
    second.release(&mut nodes);
    assert_eq!(
        second.received(&mut nodes),
        ["connack true 0x0"],
        "the message could be released after its packet id was used again"
    );
    read_on(&mut nodes, 1);
    second.publish(&mut nodes, &topic, "two");
    assert_eq!(second.received(&mut nodes), ["pubcomp 0x0", "pubrec 0x0"]);
    for (node, reader) in readers.into_iter().enumerate() {
        assert_eq!(data(&nodes, node, reader), ["one", "two"]);
    }
    assert_eq!(nodes.digest(0), nodes.digest(1));
}

#[test]
fn next_message_with_a_packet_id_at_a_node_that_has_not_read_the_release_is_published() {
    let mut nodes = nodes(2);
    let topic = name_in(1, "topic");
    let readers = [0, 1].map(|node| nodes.events(node, &format!("sub/{topic}"), ""));
    let first = Client::connect(&mut nodes, 0);
    first.publish(&mut nodes, &topic, "one");
    nodes.nodes[1].unread = vec![1];
    first.release(&mut nodes);
    let second = Client::connect(&mut nodes, 1);
    second.publish(&mut nodes, &topic, "two");
    read_on(&mut nodes, 1);
    assert_eq!(
        second.received(&mut nodes),
        ["connack true 0x0", "pubrec 0x0"]
    );
    for (node, reader) in readers.into_iter().enumerate() {
        assert_eq!(data(&nodes, node, reader), ["one", "two"]);
    }
    assert_eq!(nodes.digest(0), nodes.digest(1));
}

#[test]
fn message_is_no_duplicate_of_one_whose_release_in_another_partition_is_unread() {
    let mut nodes = nodes(2);
    let topics = [name_in(1, "topic"), name_in(3, "topic")];
    assert_eq!(PARTITIONS, 4, "both topics are at one home");
    let reader = nodes.events(1, &format!("sub/{}", topics[1]), "");
    let client = Client::connect(&mut nodes, 0);
    client.publish(&mut nodes, &topics[0], "one");
    nodes.nodes[1].unread = vec![1];
    client.release(&mut nodes);
    client.publish(&mut nodes, &topics[1], "two");
    assert_eq!(data(&nodes, 1, reader), ["two"]);
    read_on(&mut nodes, 1);
    assert_eq!(nodes.digest(0), nodes.digest(1));
}

#[test]
fn release_of_an_unknown_packet_id_in_a_new_session_writes_nothing() {
    let mut nodes = nodes(1);
    let client = Client::connect(&mut nodes, 0);
    let before = nodes.log.len();
    client.release(&mut nodes);
    assert_eq!(
        client.received(&mut nodes),
        ["connack false 0x0", "pubcomp 0x92"]
    );
    assert_eq!(nodes.log.len(), before);
}

#[test]
fn clients_with_one_id_at_two_nodes_are_limited_to_some_takeovers_a_second() {
    let mut nodes = nodes(2);
    let connect = |nodes: &mut Nodes, node| {
        let client = Client::connect(nodes, node);
        let received = client.received(nodes);
        received.first().cloned().unwrap_or_default()
    };
    let mut answers = std::collections::BTreeMap::new();
    for turn in 0..1000 {
        *answers.entry(connect(&mut nodes, turn % 2)).or_insert(0) += 1;
    }
    let allowed = Settings::default().mqtt.takeovers_per_minute;
    let expected = [
        ("connack false 0x0", 1),
        ("connack false 0x9f", 1000 - 1 - allowed),
        ("connack true 0x0", allowed),
    ];
    assert_eq!(
        answers,
        expected.map(|(it, count)| (it.into(), count)).into()
    );
    for node in [1, 0] {
        nodes.run_second();
        nodes.run_second();
        assert_eq!(connect(&mut nodes, node), "connack true 0x0");
    }
    assert_eq!(nodes.digest(0), nodes.digest(1));
}

#[test]
fn client_with_many_wills_may_not_connect_with_another_while_memory_is_short() {
    let mut settings = Settings::default();
    settings.limits.memory_bytes = 8 << 20;
    settings.mqtt.takeovers_per_minute = 1000;
    let mut nodes = nodes_with(2, settings);
    let words = vec![b'x'; 60_000];
    let mut connect = |will: Option<&[u8]>| {
        let client = Client::connect_with(&mut nodes, 0, will);
        let received = client.received(&mut nodes);
        received.first().cloned().unwrap_or_default()
    };
    let answers: Vec<String> = (0..200).map(|_| connect(Some(&words))).collect();
    let taken = answers
        .iter()
        .take_while(|it| *it == "connack false 0x0")
        .count();
    assert!((10..190).contains(&taken), "{taken} {:?}", answers.last());
    assert!(answers[taken..].iter().all(|it| it == "connack false 0x97"));
    assert_eq!(connect(None), "connack true 0x0");
}

#[test]
fn qos_2_keys_are_charged_to_their_publisher_at_all_nodes_until_their_release() {
    let mut settings = Settings::default();
    // The server counts bytes by party (address or user) only if there is a limit.
    settings.limits.memory_bytes = 64 << 20;
    let mut nodes = nodes_with(2, settings);
    // The keys expire by the node's clock, which a real node keeps close to the log's clock.
    nodes.nodes[1].server.now = nodes.nodes[0].server.now;
    let topic = name_in(1, "topic");
    let charged = |nodes: &Nodes| {
        let bytes = nodes.nodes.iter().map(|node| {
            let counts = &node.world.admission;
            let client = counts.client(Ipv4Addr::LOCALHOST.into());
            counts.absent_bytes(Party::of_address(client))
        });
        bytes.collect::<Vec<_>>()
    };
    let client = Client::connect(&mut nodes, 0);
    let before = charged(&nodes);
    for id in (1..=1000).filter_map(PacketId::new) {
        client.publish_as(&mut nodes, id, &topic, "data");
    }
    // A key takes 48 bytes. The keys of up to 64 messages may not be recorded yet.
    let keys = 900 * 48;
    let grown = |nodes: &Nodes| -> Vec<bool> {
        let now = charged(nodes).into_iter().zip(&before);
        now.map(|(now, before)| now >= before + keys).collect()
    };
    assert_eq!(grown(&nodes), [true, true], "while it is connected");
    // The server keeps the keys for a minute after the session has ended.
    Client::connect_with(&mut nodes, 1, Some(b"gone"));
    assert_eq!(grown(&nodes), [true, true], "after its end");
}

#[test]
fn messages_kept_over_an_interruption_are_dropped_after_the_catch_up() {
    let mut nodes = nodes(2);
    nodes.run_second();
    let topics: Vec<String> = (0..100).map(|n| format!("topic{n}")).collect();
    for n in 0..250 {
        nodes.post(0, &topics[0], &n.to_string());
    }
    for topic in &topics[1..] {
        (0..102).for_each(|_| _ = nodes.post(0, topic, "one"));
    }
    nodes.run(&[0]);
    // Node 1 did nothing meanwhile.
    nodes.nodes[1].server.advance_and_tick_s(4);
    nodes.run(&[0, 1]);
    nodes.run_second();
    let kept = |nodes: &mut Nodes, topic: &str| {
        let reader = nodes.events(1, &format!("sub/{topic}?since=oldest"), "");
        nodes.received_events(1, reader).len()
    };
    // The rule keeps 100 messages.
    let all: Vec<usize> = topics.iter().map(|topic| kept(&mut nodes, topic)).collect();
    assert_eq!(all, [100; 100]);
}

#[test]
fn refused_wills_of_a_dead_node_are_published_later_and_once() {
    let mut settings = Settings::default();
    settings.limits.topics_per_address_per_s = 1;
    settings.limits.topics_per_address_burst = 3;
    let mut nodes = nodes_with(2, settings);
    nodes.nodes[1].server.now = nodes.nodes[0].server.now;
    let reader = nodes.events(1, "sub?filter=wills/%2B", "");
    // Some clients reconnect at the other node before that node knows that their node is dead.
    let ids: Vec<String> = (0..20).map(|n| format!("client{n}")).collect();
    for id in &ids {
        let topic = format!("wills/{id}");
        Client::connect_as(&mut nodes, 0, id, Some((&topic, b"gone")));
    }
    for id in &ids[..10] {
        Client::connect_as(&mut nodes, 1, id, None);
    }
    for _ in 0..120 {
        nodes.run_second_at(&[1]);
    }
    let mut published = data(&nodes, 1, reader);
    assert_eq!(published.len(), 20);
    published.dedup();
    assert_eq!(published, ["gone"]);
}

/// Otherwise clients that connect again and again would use up the room for the notes with which nodes show that they are alive.
#[test]
fn full_log_refuses_new_sessions_and_gives_each_client_a_part_of_the_room_for_existing_ones() {
    let mut nodes = nodes(2);
    let connect = |nodes: &mut Nodes, name: &str, will: Option<&[u8]>| {
        let will = will.map(|payload| ("last/words", payload));
        let client = Client::connect_as(nodes, 0, name, will);
        let received = client.received(nodes);
        received.first().cloned().unwrap_or_default()
    };
    assert_eq!(connect(&mut nodes, "old", None), "connack false 0x0");
    let admission = nodes.nodes[0].world.admission.clone();
    admission.set_disk_room(u64::MAX, 256 * 2000);
    admission.set_log_full(nodes.nodes[0].server.now.unix_s);
    for _ in 0..6 {
        nodes.run_second();
    }
    assert_eq!(connect(&mut nodes, "new", None), "connack false 0x97");
    let words = [b'x'; 300];
    let mut answers = (0..50).map(|_| connect(&mut nodes, "old", Some(&words)));
    let taken = answers.by_ref().take_while(|it| it != "connack false 0x97");
    assert!((3..10).contains(&taken.count()));
    drop(answers);
    admission.set_log_full(0);
    assert_eq!(connect(&mut nodes, "old", None), "connack true 0x0");
    assert_eq!(connect(&mut nodes, "new", None), "connack false 0x0");
}

#[test]
fn log_that_has_just_become_full_gives_each_client_a_part_of_the_room_for_new_sessions() {
    let mut nodes = nodes(2);
    let admission = nodes.nodes[0].world.admission.clone();
    admission.set_disk_room(u64::MAX, 256 * 2000);
    admission.set_log_full(nodes.nodes[0].server.now.unix_s);
    let mut answers = (0..50).map(|n| {
        let (name, words) = (format!("new {n}"), [b'x'; 300]);
        let client = Client::connect_as(&mut nodes, 0, &name, Some(("last/words", &words[..])));
        let received = client.received(&mut nodes);
        received.first().cloned().unwrap_or_default()
    });
    let taken = answers.by_ref().take_while(|it| it != "connack false 0x97");
    assert!((3..10).contains(&taken.count()));
}

/// A steward that has not learned yet that the format was raised must not store a checkpoint behind a claim of another node.
#[test]
fn shadow_without_sessions_knows_that_the_log_has_some() {
    let mut nodes = nodes(1);
    nodes.post(0, "a", "before");
    nodes.run(&[0]);
    let before = nodes.log.len();
    Client::connect_as(&mut nodes, 0, "it", None);
    nodes.run(&[0]);
    let skips_sessions = |log: &[(Arc<[u8]>, u64, u32)]| {
        let shadows = Shadow::world(&world(0), world(0).epoch);
        (0..PARTITIONS).any(|partition| {
            let restored = Shadow::restored(&shadows, partition, NOW);
            let mut shadow = Shadow::new(restored.finish().expect("an empty home"));
            for (bytes, sequence, unix_s) in log {
                let mut header = Header::read(bytes).expect("a batch");
                if header.partition == partition {
                    (header.first_offset, header.unix_s) = (sequence << OFFSET_BITS, *unix_s);
                    shadow.apply_batch(&header, bytes).expect("a batch");
                }
            }
            shadow.has_unread_sessions()
        })
    };
    assert!(!skips_sessions(&nodes.log[..before]));
    assert!(skips_sessions(&nodes.log));
}
