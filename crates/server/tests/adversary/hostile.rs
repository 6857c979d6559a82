//! Attackers with single requests and connections that cause much work or memory.

use std::fmt::Write as _;

use crate::http::{LARGE, TOPICS, ask, random_ending, random_request, random_topic, request};
use crate::random::Random;
use crate::script::{Ask, Protocol, Script, Send, Step, TlsStart};
use crate::websocket::upgrade;

/// Large messages whose JSON is six times as long, and one request for all of them. The client reads nothing.
pub fn pages(random: &mut Random) -> Script {
    large_pages(random, |count| {
        (0..count).fold(String::new(), |mut text, number| {
            let _ = write!(text, "topic=evil/{number}&");
            text
        })
    })
}

/// The same request by a filter.
pub fn filter_pages(random: &mut Random) -> Script {
    large_pages(random, |_| "filter=evil/%23&".to_string())
}

fn large_pages(random: &mut Random, query_for: impl Fn(usize) -> String) -> Script {
    let count = random.between(24, TOPICS);
    let byte = random.pick(b"\x01\x01\xff");
    let mut steps = Vec::new();
    for number in 0..count {
        let target = format!("/pub/evil/{number}");
        steps.push(Step::Send(ask("POST", &target, &[], &vec![byte; LARGE])));
    }
    steps.push(Step::Await(count, 6_000));
    let target = format!("/sub?{}since=oldest&envelope=json", query_for(count));
    steps.push(Step::StopReading(true));
    steps.push(Step::Send(match random.below(3) {
        0 => ask("GET", &target, &[], b""),
        1 => ask("GET", &target, &[("Accept", "text/event-stream")], b""),
        _ => upgrade(&target, &[]),
    }));
    steps.push(Step::Wait(random.between(2_000, 5_000) as u64));
    Script {
        linger_ms: 0,
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Requests that read the whole log. The server reads many messages for them and sends few.
pub fn whole_log_reads(random: &mut Random) -> Script {
    let read = |random: &mut Random| {
        let filter = random.pick(&["zz/%23", "%23", "%2B/%2B/x", "evil/%23"]);
        match random.below(4) {
            0 => {
                let condition = [("If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT")];
                ask("GET", &format!("/sub?filter={filter}"), &condition, b"")
            }
            _ => ask(
                "GET",
                &format!("/sub?filter={filter}&since=oldest"),
                &[],
                b"",
            ),
        }
    };
    let mut steps = Vec::new();
    let count = random.between(100, 600);
    let mut lines = String::new();
    for number in 0..count {
        let _ = writeln!(lines, "{{\"topic\":\"evil/past/{number}\",\"data\":\"x\"}}");
    }
    let content_type = [("Content-Type", "application/x-ndjson")];
    steps.push(Step::Send(ask(
        "POST",
        "/pub",
        &content_type,
        lines.as_bytes(),
    )));
    for _ in 0..random.between(1, 12) {
        steps.push(Step::Send(read(random)));
    }
    steps.push(Step::Wait(random.between(10, 1_000) as u64));
    steps.extend(random_ending(random));
    Script {
        sockets: random.pick(&[1, 4, 16]),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Requests that announce a body (`Expect`) which does not come, or which the server must not read.
pub fn expect(random: &mut Random) -> Script {
    let path = random.pick(&[
        "/pub/evil/1",
        "/nowhere",
        "/sub/evil/1",
        "/pub/$SYS/x",
        "/pub/a%2fb",
    ]);
    let size = random.pick(&[1, 500, 900_000, 3_000_000]);
    let mut bytes = request(
        random.pick(&["POST", "PUT", "GET"]),
        path,
        &[("Expect", random.pick(&["100-continue", "200-ok"]))],
        b"",
    );
    // Replace a `Content-Length: 0`, if there is one, by the announced length.
    let text = String::from_utf8(bytes)
        .expect("a head")
        .replace("Content-Length: 0\r\n", "");
    let announced = format!("\r\nContent-Length: {size}\r\n\r\n");
    bytes = text.replacen("\r\n\r\n", &announced, 1).into_bytes();
    let mut steps = vec![
        Step::Send(
            Send::new(
                format!("a head for {path} with `Expect`, which announces {size} bytes"),
                bytes,
            )
            .asking(Ask::Plain),
        ),
        Step::Await(1, random.pick(&[0, 200])),
    ];
    if random.one_in(2) {
        let part = size.min(random.pick(&[1, 400, 300_000]));
        steps.push(Step::Send(Send::new("some of the body", vec![b'e'; part])));
    }
    steps.extend(random_ending(random));
    Script {
        sockets: random.pick(&[1, 1, 10]),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// ClientHellos in one-byte records, endless key updates, and bytes that are no records.
pub fn tls_games(random: &mut Random) -> Script {
    if random.one_in(3) {
        let mut bytes = vec![random.pick(&[20, 21, 22, 23]), 3, random.below(5) as u8];
        bytes.extend_from_slice(&(random.below(20_000) as u16).to_be_bytes());
        let count = random.below(2_000);
        bytes.extend(random.bytes(count));
        let send = Send::new("something like a record", bytes).in_pieces(random.pick(&[0, 1]), 0);
        let steps = vec![
            Step::Send(send),
            Step::Wait(random.between(1, 1_000) as u64),
        ];
        return Script::new("", Protocol::Noise, steps);
    }
    let mut steps = Vec::new();
    for _ in 0..random.between(1, 4) {
        steps.push(Step::Send(random_request(random)));
        steps.push(Step::KeyUpdates(random.pick(&[1, 5, 100])));
    }
    let name = random_topic(random);
    steps.push(Step::Send(ask(
        "GET",
        &format!("/sub/{name}?since=oldest"),
        &[],
        b"",
    )));
    steps.push(Step::Wait(random.between(1, 300) as u64));
    steps.extend(random_ending(random));
    Script {
        sockets: random.pick(&[1, 1, 3, 12]),
        tls: Some(TlsStart {
            hello_piece: random.pick(&[1, 1, 20, 0]),
            old_version: random.one_in(5),
        }),
        ..Script::new("", Protocol::Http, steps)
    }
}
