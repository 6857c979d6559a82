//! Attackers over MQTT: packets of both versions in any order, and state that a client can make the server keep.

use crore_wire::mqtt::{
    Ack, Connect, PacketId, Properties, PropertyWriter, Publish, Qos, ReasonCode, RetainHandling,
    SubscribeOptions, Version, Will, encode,
};
use crore_wire::websocket::frame::Opcode;

use crate::http::{LARGE, random_ending, random_readable_topic, random_topic};
use crate::random::Random;
use crate::script::{Protocol, Script, Send, Step};
use crate::websocket::{frame, upgrade};

/// Number of the attackers' client ids: few, so that attackers take over each other's sessions.
const CLIENTS: usize = 48;

pub fn version(random: &mut Random) -> Version {
    random.pick(&[Version::V311, Version::V5])
}

pub fn encoded(label: impl Into<String>, encode: impl FnOnce(&mut Vec<u8>)) -> Send {
    let mut out = Vec::new();
    encode(&mut out);
    Send::new(label, out)
}

fn packet_id(number: usize) -> PacketId {
    PacketId::new(number as u16).unwrap_or(PacketId::MIN)
}

/// A CONNECT with a session that may outlive the connection, and perhaps a will.
pub fn connect_as(random: &mut Random, version: Version, client_id: &str) -> Send {
    let mut properties = PropertyWriter::new();
    if version == Version::V5 {
        properties.session_expiry_interval_s(random.pick(&[0, 1, 600, u32::MAX]));
        properties.receive_maximum(random.pick(&[1, 20, 65_535]));
        properties.topic_alias_maximum(random.pick(&[0, 10, 65_535]));
        if random.one_in(5) {
            properties.maximum_packet_size_bytes(random.pick(&[50, 5_000]));
        }
    }
    let payload = vec![b'w'; random.pick(&[0, 10, 50_000])];
    let topic = random_topic(random);
    let will = random.one_in(4).then(|| Will {
        qos: random.pick(&[Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]),
        retain: random.one_in(3),
        properties: Properties::default(),
        topic: &topic,
        payload: &payload,
    });
    let connect = Connect {
        version,
        bridge: version == Version::V311 && random.one_in(4),
        clean_start: random.one_in(2) || client_id.is_empty(),
        keep_alive_s: random.pick(&[0, 0, 1, 60]),
        properties: properties.properties(),
        client_id,
        will,
        user_name: None,
        password: None,
    };
    let label = format!(
        "CONNECT {version:?} {client_id:?} clean {}",
        connect.clean_start
    );
    encoded(label, |out| encode::connect(out, &connect))
}

fn connect(random: &mut Random, version: Version) -> Send {
    let number = random.below(CLIENTS + 1);
    let client_id = match number {
        0 => String::new(),
        number => format!("evil-{number}"),
    };
    connect_as(random, version, &client_id)
}

pub fn publish_to(
    version: Version,
    topic: &str,
    qos: u8,
    id: usize,
    retain: bool,
    payload: &[u8],
) -> Send {
    let label = format!(
        "PUBLISH {topic:.40} QoS {qos} id {id} retain {retain} of {}",
        payload.len()
    );
    let publish = Publish {
        dup: false,
        qos: Qos::from_repr(qos).expect("a QoS"),
        retain,
        topic,
        packet_id: (qos > 0).then(|| packet_id(id)),
        properties: Properties::default(),
        payload,
    };
    encoded(label, |out| encode::publish(out, version, &publish))
}

pub fn subscribe_to(version: Version, id: usize, filters: &[&str], qos: u8) -> Send {
    let options = SubscribeOptions {
        max_qos: Qos::from_repr(qos).expect("a QoS"),
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let label = format!("SUBSCRIBE {} x {:.60} QoS {qos}", filters.len(), filters[0]);
    encoded(label, |out| {
        let filters = filters.iter().map(|filter| (*filter, options));
        encode::subscribe(out, version, packet_id(id), &Properties::default(), filters);
    })
}

pub fn unsubscribe_from(version: Version, id: usize, filters: &[&str]) -> Send {
    let label = format!("UNSUBSCRIBE {} x {:.60}", filters.len(), filters[0]);
    encoded(label, |out| {
        let filters = filters.iter().copied();
        encode::unsubscribe(out, version, packet_id(id), &Properties::default(), filters);
    })
}

fn random_acknowledgement(random: &mut Random, version: Version, id: usize) -> Send {
    let ack = Ack {
        packet_id: packet_id(id),
        reason: ReasonCode::SUCCESS,
        properties: Properties::default(),
    };
    let kind = random.below(4);
    let label = format!("{} {id}", ["PUBACK", "PUBREC", "PUBREL", "PUBCOMP"][kind]);
    encoded(label, |out| match kind {
        0 => encode::puback(out, version, &ack),
        1 => encode::pubrec(out, version, &ack),
        2 => encode::pubrel(out, version, &ack),
        _ => encode::pubcomp(out, version, &ack),
    })
}

fn random_filter(random: &mut Random) -> String {
    match random.below(8) {
        0 => "#".to_string(),
        1 => "evil/+".to_string(),
        2 => "+/+".to_string(),
        3 => format!("$share/g{}/evil/+", random.below(3)),
        4 => random
            .pick(&["$share/g/#", "$SYS/#", "a/#/b", "", "+a", "$share//x"])
            .to_string(),
        _ => random_readable_topic(random),
    }
}

fn any_packet(random: &mut Random, version: Version) -> Send {
    let id = random.between(1, 12);
    match random.below(12) {
        0..=3 => {
            let size = random.pick(&[0, 1, 200, 5_000, 70_000]);
            let qos = random.below(3) as u8;
            let topic = random_topic(random);
            publish_to(
                version,
                &topic,
                qos,
                id,
                random.one_in(5),
                &vec![b'm'; size],
            )
        }
        4..=6 => {
            let filters: Vec<String> = (0..random.pick(&[1, 1, 2, 9]))
                .map(|_| random_filter(random))
                .collect();
            let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
            subscribe_to(version, id, &filters, random.below(3) as u8)
        }
        7 => {
            let filters = [random_filter(random)];
            encoded(format!("UNSUBSCRIBE {filters:?}"), |out| {
                let filters = filters.iter().map(String::as_str);
                encode::unsubscribe(out, version, packet_id(id), &Properties::default(), filters);
            })
        }
        8 | 9 => random_acknowledgement(random, version, id),
        10 => encoded("PINGREQ", encode::pingreq),
        _ => {
            let count = random.below(60);
            let noise = random.bytes(count);
            let first = random.below(256) as u8;
            let bytes = [&[first, noise.len() as u8], &noise[..]].concat();
            Send::new("a packet of noise", bytes)
        }
    }
}

/// A CONNECT and then any packets.
pub fn random_packets(random: &mut Random) -> Script {
    let version = version(random);
    let mut steps = vec![Step::Send(connect(random, version))];
    for number in 1..=random.between(1, 14) {
        if random.one_in(5) {
            steps.push(Step::Await(number, random.pick(&[5, 100])));
        }
        let mut send = any_packet(random, version);
        if random.one_in(5) && send.bytes.len() < 5_000 {
            send = send.in_pieces(random.pick(&[1, 3, 100]), 0);
        }
        steps.push(Step::Send(send));
    }
    if random.one_in(10) {
        steps.push(Step::Send(connect(random, version)));
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Mqtt(version), steps)
}

/// A walk over WebSocket, with packets cut anywhere into frames.
pub fn over_websocket(random: &mut Random) -> Script {
    let protocol = [("Sec-WebSocket-Protocol", "mqtt")];
    let mut steps = vec![Step::Send(upgrade("/mqtt", &protocol)), Step::Await(1, 300)];
    let mut bytes = connect(random, Version::V5).bytes.to_vec();
    for _ in 0..random.below(8) {
        bytes.extend_from_slice(&any_packet(random, Version::V5).bytes);
    }
    let piece = random.pick(&[7, 200, 20_000]);
    for part in bytes.chunks(piece).take(200) {
        let send = Send::new("packets in a frame", frame(Opcode::Binary, part));
        steps.push(Step::Send(send));
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Http, steps)
}

/// A large retained message, and the same SUBSCRIBE hundreds of times in one write, from a client that reads nothing.
pub fn retained(random: &mut Random) -> Script {
    let version = version(random);
    let name = format!("evil/{}", random.below(4));
    let publish = publish_to(version, &name, 0, 0, true, &vec![b'r'; LARGE]);
    let several: Vec<&str> = vec![&name; random.pick(&[1, 1, 8])];
    let filters: Vec<&str> = match random.one_in(4) {
        true => vec!["evil/+"],
        false => several,
    };
    let (count, qos) = (random.between(200, 600), random.below(3) as u8);
    let subscribes: Vec<Send> = (1..=count)
        .map(|id| subscribe_to(version, id, &filters, qos))
        .collect();
    let bytes = subscribes
        .iter()
        .flat_map(|ask| ask.bytes.to_vec())
        .collect();
    let subscribes = Send::new(format!("{count} x {}", subscribes[0].label), bytes);
    let steps = vec![
        Step::Send(connect_as(random, version, "")),
        Step::Send(publish),
        Step::StopReading(true),
        Step::Wait(100),
        Step::Send(subscribes),
        Step::Wait(random.between(2_000, 4_000) as u64),
    ];
    Script::new("", Protocol::Mqtt(version), steps)
}

/// As many topic aliases as the server grants, each for a long name.
pub fn aliases(random: &mut Random) -> Script {
    let version = Version::V5;
    let mut steps = vec![Step::Send(connect(random, version))];
    let size = random.pick(&[200, 900, 60_000]);
    for alias in 1..=16 {
        let name = format!("evil/{}", "n".repeat(size));
        let mut properties = PropertyWriter::new();
        properties.topic_alias(alias);
        let publish = Publish {
            dup: false,
            qos: Qos::AtMostOnce,
            retain: false,
            topic: &name,
            packet_id: None,
            properties: properties.properties(),
            payload: b"",
        };
        let label = format!("PUBLISH with alias {alias} for a name of {size}");
        steps.push(Step::Send(encoded(label, |out| {
            encode::publish(out, version, &publish)
        })));
    }
    steps.push(Step::Wait(random.between(500, 3_000) as u64));
    Script {
        sockets: random.pick(&[1, 10, 40]),
        ..Script::new("", Protocol::Mqtt(version), steps)
    }
}

/// A session that receives large messages and acknowledges none of them, and then leaves.
pub fn unacknowledged(random: &mut Random) -> Script {
    let version = version(random);
    let name = random_topic(random);
    let mut steps = vec![
        Step::Send(connect(random, version)),
        Step::Send(subscribe_to(
            version,
            1,
            &[&name],
            random.between(1, 2) as u8,
        )),
        Step::Await(2, 500),
    ];
    let size = random.pick(&[100_000, LARGE / 2, LARGE]);
    let qos = random.between(1, 2) as u8;
    for id in 1..=random.between(4, 12) {
        steps.push(Step::Send(publish_to(
            version,
            &name,
            qos,
            id,
            false,
            &vec![b'u'; size],
        )));
    }
    steps.push(Step::Wait(random.between(300, 2_000) as u64));
    steps.extend(random_ending(random));
    Script::new("", Protocol::Mqtt(version), steps)
}

/// Shared subscriptions with long names.
pub fn shares(random: &mut Random) -> Script {
    let version = version(random);
    let mut steps = vec![Step::Send(connect(random, version))];
    let size = random.pick(&[1_000, 65_000]);
    for number in 1..=random.between(4, 32) {
        let filter = format!("$share/{}{number}/evil/0", "s".repeat(size));
        steps.push(Step::Send(subscribe_to(version, number, &[&filter], 1)));
    }
    steps.push(Step::Wait(random.between(100, 1_500) as u64));
    steps.extend(random_ending(random));
    Script {
        sockets: random.pick(&[1, 1, 4]),
        ..Script::new("", Protocol::Mqtt(version), steps)
    }
}

/// Receives messages and acknowledges them with the packets of another QoS, or acknowledges messages that were never sent.
pub fn wrong_acks(random: &mut Random) -> Script {
    let version = version(random);
    let name = random_topic(random);
    let qos = random.between(1, 2) as u8;
    let mut steps = vec![
        Step::Send(connect(random, version)),
        Step::Send(subscribe_to(version, 1, &[&name], qos)),
        Step::Await(2, 500),
    ];
    for id in 1..=random.between(1, 5) {
        steps.push(Step::Send(publish_to(
            version, &name, qos, id, false, b"ack me",
        )));
        steps.push(Step::Wait(random.between(0, 30) as u64));
        for _ in 0..random.between(1, 3) {
            steps.push(Step::Send(random_acknowledgement(random, version, id)));
        }
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Mqtt(version), steps)
}

/// Many publishes with one packet id, in one write.
pub fn same_id(random: &mut Random) -> Script {
    let version = version(random);
    let name = random_topic(random);
    let qos = random.between(1, 2) as u8;
    let send = publish_to(version, &name, qos, 7, false, b"the same");
    let mut steps = vec![
        Step::Send(connect(random, version)),
        Step::Send(send.times(random.between(2, 40))),
        Step::Await(20, 500),
    ];
    steps.extend(random_ending(random));
    Script::new("", Protocol::Mqtt(version), steps)
}

/// A large PUBLISH, whose rest comes one byte at a time.
pub fn bytewise(random: &mut Random) -> Script {
    let version = version(random);
    let name = random_topic(random);
    let send = publish_to(
        version,
        &name,
        0,
        0,
        false,
        &vec![b'b'; random.pick(&[5_000, 300_000])],
    );
    let bytes = send.bytes.to_vec();
    let (prefix, rest) = bytes.split_at(bytes.len() - 2_000);
    let mut steps = vec![
        Step::Send(connect(random, version)),
        Step::Send(Send::new("most of a PUBLISH", prefix.to_vec())),
        Step::Send(Send::new("its rest", rest.to_vec()).in_pieces(1, random.pick(&[0, 0, 2]))),
    ];
    steps.extend(random_ending(random));
    Script {
        sockets: random.pick(&[1, 5, 15]),
        ..Script::new("", Protocol::Mqtt(version), steps)
    }
}
