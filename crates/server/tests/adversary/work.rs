//! Attackers whose small input causes much work: compressed blocks without data or with far more data than bytes, filters of many levels,
//! many groups of one topic, lines that are compared with many grants, and filters that come and go.

use crore_wire::deflate::Compressor;
use crore_wire::mqtt::Version;
use crore_wire::websocket::frame::Opcode;

use crate::http::{LARGE, ask, random_topic};
use crate::mqtt::{connect_as, publish_to, subscribe_to, unsubscribe_from};
use crate::random::Random;
use crate::script::{Protocol, Script, Send, Step};
use crate::websocket::{frame, upgrade};

const DEFLATE: [(&str, &str); 1] = [("Sec-WebSocket-Extensions", "permessage-deflate")];
/// The topic of the groups and filters, with as many levels as a filter may have.
const DEEP: &str = "evil/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a";
/// Filters or groups of a connection: as many as it may have.
const FILTERS: usize = 32;

fn compressed(payload: &[u8]) -> Vec<u8> {
    const RSV1: u8 = 0x40;
    let mut out = frame(Opcode::Text, payload);
    out[0] |= RSV1;
    out
}

/// Compressed messages of empty blocks: ten bits each.
pub fn empty_blocks(random: &mut Random) -> Script {
    let repeats = random.pick(&[200, 2_000]);
    let mut blocks = [0x02, 0x08, 0x20, 0x80, 0x00].repeat(repeats);
    blocks.push(0);
    let send = Send::new(format!("{} empty blocks", 4 * repeats), compressed(&blocks));
    let path = random.pick(&["/sub", "/pub"]);
    let steps = vec![
        Step::Send(upgrade(
            &format!("{path}/{}", random_topic(random)),
            &DEFLATE,
        )),
        Step::Await(1, 300),
        Step::Send(send.times(random.between(1, 2))),
        Step::Wait(random.between(500, 3_000) as u64),
    ];
    Script {
        sockets: random.pick(&[1, 8]),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Small messages that inflate to the largest permitted size.
pub fn inflating(random: &mut Random) -> Script {
    let mut small = Vec::new();
    Compressor::new().compress(&vec![random.pick(b"x\x01"); LARGE], 9, &mut small);
    let send = Send::new(
        format!("a message that inflates to {LARGE}"),
        compressed(&small),
    );
    // A subscriber's messages are inflated too, and then dropped.
    let path = random.pick(&["/sub", "/sub", "/pub"]);
    let steps = vec![
        Step::Send(upgrade(
            &format!("{path}/{}", random_topic(random)),
            &DEFLATE,
        )),
        Step::Await(1, 300),
        Step::Send(send.times(random.pick(&[1, 5, 15]))),
        Step::Wait(random.between(500, 3_000) as u64),
    ];
    Script {
        sockets: random.pick(&[1, 8]),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Subscribes to these filters, and publishes messages that match all of them, in one write.
fn subscribe_and_publish(random: &mut Random, filters: &[String], topic: &str) -> Script {
    let version = Version::V5;
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    let publish = publish_to(version, topic, 0, 0, false, b"");
    let steps = vec![
        Step::Send(connect_as(random, version, "")),
        Step::Send(subscribe_to(version, 1, &filters, 0)),
        Step::Await(2, 1_000),
        Step::Send(publish.times(random.pick(&[10, 50, 150]))),
        Step::Wait(random.between(1_000, 8_000) as u64),
    ];
    Script::new("", Protocol::Mqtt(version), steps)
}

/// Filters of many levels, with `+` at different levels.
pub fn deep_filters(random: &mut Random) -> Script {
    let filter = |random: &mut Random| {
        let level = |level: &'static str| match random.one_in(3) && level != "evil" {
            true => "+",
            false => level,
        };
        DEEP.split('/').map(level).collect::<Vec<_>>().join("/")
    };
    let filters: Vec<String> = (0..FILTERS).map(|_| filter(random)).collect();
    subscribe_and_publish(random, &filters, DEEP)
}

/// Groups of one topic, with names that no other client uses.
pub fn groups(random: &mut Random) -> Script {
    let names = random.below(1 << 30);
    let filter = |n| format!("$share/{names:x}-{n}/evil/groups");
    let filters: Vec<String> = (0..FILTERS).map(filter).collect();
    subscribe_and_publish(random, &filters, "evil/groups")
}

/// Filters that are subscribed and unsubscribed, hundreds of times in one write.
pub fn filter_churn(random: &mut Random) -> Script {
    let version = Version::V5;
    let stem = random.below(1 << 30);
    let filters: Vec<String> = (0..FILTERS)
        .map(|n| format!("evil/{stem:x}/{n}/+"))
        .collect();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    let mut packets = subscribe_to(version, 1, &filters, 0).bytes.to_vec();
    packets.extend_from_slice(&unsubscribe_from(version, 2, &filters).bytes);
    let label = format!("SUBSCRIBE and UNSUBSCRIBE of {FILTERS} filters");
    let churn = Send::new(label, packets).times(random.pick(&[10, 100]));
    let steps = vec![
        Step::Send(connect_as(random, version, "")),
        Step::Await(1, 1_000),
        Step::Send(churn),
        Step::Wait(random.between(1_000, 8_000) as u64),
    ];
    Script {
        sockets: random.pick(&[1, 20, 60]),
        ..Script::new("", Protocol::Mqtt(version), steps)
    }
}

/// Lines of batches. The server compares each line with all grants of anonymous clients, and refuses it.
pub fn refused_lines(random: &mut Random) -> Script {
    let lines = "{\"topic\":\"refused/to/all\",\"data\":\"\"}\n".repeat(random.pick(&[10, 1_000]));
    let content_type = [("Content-Type", "application/x-ndjson")];
    let batch = ask("POST", "/pub", &content_type, lines.as_bytes());
    let count = random.between(1, 2);
    let steps = vec![Step::Send(batch.times(count)), Step::Await(count, 5_000)];
    Script {
        sockets: random.pick(&[1, 4, 16]),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Origins as long as a head may be, of letters that punycode sorts. The server compares each with all allowed origins.
pub fn long_origins(random: &mut Random) -> Script {
    let first = random.pick(&['a', '\u{e9}', '\u{4e00}']);
    let letters = random.pick(&[60, 250, 2_600]);
    let letter = |n: u32| char::from_u32(u32::from(first) + n * 7 % 20).unwrap_or(first);
    let host: String = (0..letters).map(letter).collect();
    let origin = format!("http://{host}.example");
    let (method, body) = random.pick(&[("GET", ""), ("POST", "x"), ("OPTIONS", "")]);
    let target = format!("/pub/{}", random_topic(random));
    let request = ask(method, &target, &[("Origin", &origin)], body.as_bytes());
    let count = random.pick(&[1, 10, 100]);
    let steps = vec![Step::Send(request.times(count)), Step::Await(count, 5_000)];
    Script {
        sockets: random.pick(&[1, 8, 40]),
        ..Script::new("", Protocol::Http, steps)
    }
}
