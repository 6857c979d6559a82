//! Attackers over WebSocket: valid and invalid upgrades and frames, and clients that close while they do not read.

use crore_wire::websocket::frame::{Opcode, write_masked};

use crate::http::{ask, random_ending, random_readable_topic, random_since, random_topic};
use crate::random::Random;
use crate::script::{Ask, Protocol, Script, Send, Step};

/// The key of RFC 6455 section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// The header fields of a valid handshake.
const VALID_HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", KEY),
];

/// A valid upgrade request with more header fields.
pub fn upgrade(target: &str, extra_headers: &[(&'static str, &'static str)]) -> Send {
    ask(
        "GET",
        target,
        &[&VALID_HANDSHAKE, extra_headers].concat(),
        b"",
    )
}

/// A client's frame.
pub fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked(&mut out, opcode, payload, MASK);
    out
}

fn random_handshake_extras(random: &mut Random) -> &'static [(&'static str, &'static str)] {
    random.pick::<&[(&str, &str)]>(&[
        &[],
        &[("Sec-WebSocket-Protocol", "ws+meta.nchan")],
        &[("Sec-WebSocket-Extensions", "permessage-deflate")],
        &[(
            "Sec-WebSocket-Extensions",
            "permessage-deflate; client_max_window_bits=7",
        )],
    ])
}

fn random_target(random: &mut Random) -> String {
    let path = random.pick(&[
        "/sub",
        "/sub",
        "/sub",
        "/pub",
        "/pubsub",
        "/interest",
        "/nowhere",
    ]);
    if random.one_in(2) {
        return format!("{path}/{}?{}", random_topic(random), random_since(random));
    }
    let mut pairs: Vec<String> = (0..random.between(1, 4))
        .map(|_| match random.below(5) {
            0 => "filter=evil/%23".to_string(),
            _ if path == "/sub" => format!("topic={}", random_readable_topic(random)),
            _ => format!("topic={}", random_topic(random)),
        })
        .collect();
    pairs.push(random_since(random).to_string());
    if random.one_in(3) {
        pairs.push("envelope=json".to_string());
    }
    format!("{path}?{}", pairs.join("&"))
}

/// An upgrade request in which something is missing or wrong.
pub fn broken_upgrade(random: &mut Random, target: &str) -> Send {
    let mut fields = VALID_HANDSHAKE.to_vec();
    for _ in 0..random.between(1, 2) {
        let index = random.below(fields.len());
        match random.below(3) {
            0 if fields.len() > 1 => drop(fields.remove(index)),
            1 => fields[index].1 = random.pick(&["", "8", "h2c", "AAAA", "close, Upgrade"]),
            _ => fields.extend(random_handshake_extras(random)),
        }
    }
    let method = random.pick(&["GET", "GET", "GET", "HEAD", "POST"]);
    ask(method, target, &fields, b"")
}

/// Valid and invalid upgrades, and bytes that may follow them.
pub fn upgrades(random: &mut Random) -> Script {
    let random_target = random_target(random);
    let mut steps = vec![Step::Send(broken_upgrade(random, &random_target))];
    if random.one_in(2) {
        steps.push(Step::Await(1, 300));
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Http, steps)
}

fn any_frame(random: &mut Random) -> Send {
    let size = random.pick(&[0, 1, 30, 126, 5_000, 70_000]);
    let payload = vec![random.pick(b"a{\xff"); size];
    let opcode = random.pick(&[Opcode::Text, Opcode::Binary]);
    let (label, bytes) = match random.below(12) {
        0..=5 => ("a message", frame(opcode, &payload)),
        6 => {
            let begun = frame(Opcode::Text, b"frag");
            let begun = [&[begun[0] & 0x7f], &begun[1..]].concat();
            let ping = frame(Opcode::Ping, b"p");
            let last = frame(Opcode::Continuation, b"ment");
            ("a message in two frames", [begun, ping, last].concat())
        }
        7 => ("a ping", frame(Opcode::Ping, b"beat")),
        8 => ("a pong", frame(Opcode::Pong, b"")),
        9 => (
            "a Close frame",
            frame(Opcode::Close, &1000_u16.to_be_bytes()),
        ),
        10 => {
            let mut bytes = frame(opcode, &payload);
            bytes[0] = random.below(256) as u8;
            ("a frame with any first byte", bytes)
        }
        _ => (
            "a compressed frame",
            [
                &[0xc1, 0x87],
                &MASK[..],
                &[0xfd, 0xb2, 0xe8, 0xf4, 0xfe, 0xfd, 0x21],
            ]
            .concat(),
        ),
    };
    // If the upgrade is refused, the server reads these bytes as HTTP. They are not a valid request, so only an error may come.
    Send::new(format!("{label}, {size}"), bytes).asking(Ask::Junk)
}

/// A valid upgrade, and then frames.
pub fn frames_after_upgrade(random: &mut Random) -> Script {
    let mut steps = vec![Step::Send(upgrade(
        &random_target(random),
        random_handshake_extras(random),
    ))];
    if random.one_in(2) {
        steps.push(Step::Wait(50));
    }
    for _ in 0..random.between(0, 8) {
        let send = any_frame(random);
        let piece = random.pick(&[0, 0, 0, 1_000]);
        steps.push(Step::Send(send.in_pieces(piece, 0)));
        if random.one_in(4) {
            steps.push(Step::Wait(random.between(1, 200) as u64));
        }
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Http, steps)
}

/// Tests RFC 6455 section 5.5.1: an acknowledgement from another shard must not come after the Close frame. The client sends
/// pings without reading, until the server's pongs fill its socket or nearly do. Then it sends messages, pings and a Close frame in one write, and only then
/// reads.
pub fn answer_before_close(random: &mut Random) -> Script {
    let meta = [("Sec-WebSocket-Protocol", "ws+meta.nchan")];
    let ping = frame(Opcode::Ping, &[b'p'; 125]);
    let before = Send::new("a ping of 125 bytes", ping.clone()).times(random.between(1, 450));
    let mut last = frame(Opcode::Text, b"x").repeat(random.between(1, 30));
    last.extend(ping.repeat(random.between(1, 450)));
    last.extend(frame(Opcode::Close, &1000_u16.to_be_bytes()));
    let steps = vec![
        Step::Send(upgrade(&format!("/pub/{}", random_topic(random)), &meta)),
        Step::Await(1, 300),
        Step::StopReading(true),
        Step::Send(before.in_pieces(4_000, 1)),
        Step::Wait(random.between(20, 200) as u64),
        Step::Send(Send::new("messages, pings and a Close frame", last)),
        Step::Wait(random.between(50, 400) as u64),
        Step::StopReading(false),
    ];
    Script {
        receive_buffer: Some(4_096),
        linger_ms: 1_500,
        ..Script::new("", Protocol::Http, steps)
    }
}
