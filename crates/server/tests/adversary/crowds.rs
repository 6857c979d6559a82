//! Attackers with crowds: many connections, each of which makes the server hold a little more memory than it should.

use std::sync::Arc;

use crate::http::{LARGE, ask, random_topic, request};
use crate::random::Random;
use crate::script::{Ask, Protocol, Script, Send, Step};
use crate::server_under_attack::LimitSize;
use crate::websocket::upgrade;

/// The memory in bytes that one crowd with incomplete requests tries to fill.
const SHARE_BYTES: usize = LimitSize::Small.memory_bytes() as usize / 4;

/// Many readers that request one large kept message and read nothing.
pub fn crowd_without_reading(random: &mut Random) -> Script {
    let name = random_topic(random);
    let byte = random.pick(b"x\x01\xff");
    let publish = ask("POST", &format!("/pub/{name}"), &[], &vec![byte; LARGE]);
    let envelope = random.pick(&["", "&envelope=json"]);
    let target = format!("/sub/{name}?since=oldest{envelope}");
    let read = match random.below(3) {
        0 => ask("GET", &target, &[], b""),
        1 => ask("GET", &target, &[("Accept", "text/event-stream")], b""),
        _ => upgrade(&target, &[]),
    };
    let steps = vec![
        Step::StopReading(true),
        Step::Send(read),
        Step::Wait(random.between(2_000, 6_000) as u64),
    ];
    let crowd = Script {
        sockets: random.between(100, 220),
        receive_buffer: Some(4_096),
        linger_ms: 0,
        ..Script::new("", Protocol::Http, steps)
    };
    Script {
        then: Some(Arc::new(crowd)),
        ..Script::new(
            "",
            Protocol::Http,
            vec![Step::Send(publish), Step::Await(1, 2_000), Step::Close],
        )
    }
}

/// Connections that each send a POST without its last 100 bytes, and then a byte now and then. Large bodies of one size almost fill the
/// memory for incomplete requests, and small ones fill the rest.
pub fn half_posts(random: &mut Random) -> Script {
    let name = random_topic(random);
    let (connections, size_max) = match random.below(3) {
        0 => (60, random.between(1_000, 30_000)),
        _ => {
            let connections = random.pick(&[9, 10, 16]);
            (connections, SHARE_BYTES / connections)
        }
    };
    let size = size_max - random.between(0, 400);
    let headers = random.pick::<&[(&str, &str)]>(&[
        &[],
        &[],
        &[("Authorization", "Bearer nobody.knows.me")],
        &[("Expect", "100-continue")],
    ]);
    let mut bytes = request("POST", &format!("/pub/{name}"), headers, &vec![b'h'; size]);
    bytes.truncate(bytes.len() - 100);
    let prefix = Send::new(
        format!("a POST of {size} without its last 100 bytes"),
        bytes,
    );
    let rest = Send::new("some of the rest", vec![b'h'; random.between(5, 14)]);
    let steps = vec![
        Step::Send(prefix.asking(Ask::Plain)),
        Step::Send(rest.in_pieces(1, random.between(700, 1_500) as u64)),
    ];
    Script {
        sockets: connections * 3,
        linger_ms: 0,
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Long-polls that wait, each followed by bytes that the server may not read before it has answered the poll.
pub fn pipelined_junk(random: &mut Random) -> Script {
    let poll = ask(
        "GET",
        &format!("/sub/{}?since=live", random_topic(random)),
        &[],
        b"",
    );
    let size = random.pick(&[7_000, 60_000, 200_000]);
    let junk = Send::new(format!("{size} bytes behind it"), vec![b'j'; size]);
    let steps = vec![
        Step::Send(poll),
        Step::Send(junk.asking(Ask::Junk)),
        Step::Wait(random.between(1_000, 5_000) as u64),
    ];
    Script {
        sockets: random.between(60, 200),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// More connections than one address may have. Each sends a request with a body from another origin.
pub fn turned_away(random: &mut Random) -> Script {
    let headers = [("Origin", "http://elsewhere.example")];
    let body = match random.below(2) {
        0 => request("GET", "/pub/evil/1", &[], b""),
        _ => vec![b't'; random.pick(&[1, 3_000, 70_000])],
    };
    let post = ask(
        "POST",
        &format!("/pub/{}", random_topic(random)),
        &headers,
        &body,
    );
    let cut = post.bytes.len() - random.between(1, body.len()).min(100);
    let (first, rest) = post.bytes.split_at(cut);
    let steps = vec![
        Step::Wait(random.between(0, 100) as u64),
        Step::Send(
            Send::new("most of a POST from another site", first.to_vec()).asking(Ask::Plain),
        ),
        Step::Wait(random.between(0, 50) as u64),
        Step::Send(Send::new("its rest", rest.to_vec())),
        Step::Await(2, 800),
    ];
    Script {
        sockets: random.between(230, 260),
        ..Script::new("", Protocol::Http, steps)
    }
}
