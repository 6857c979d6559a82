//! Attackers over HTTP: verbs, targets, positions, headers and bodies in any combination, valid and invalid.

use crate::random::Random;
use crate::script::{Ask, Protocol, Script, Send, Step};
use crate::websocket::broken_upgrade;

/// Number of the attackers' topics. Attackers may only read the topics of the honest clients.
pub const TOPICS: usize = 32;
/// The largest message that the settings allow, less a little for the bytes around it.
pub const LARGE: usize = 1_000_000;

/// One of the attackers' topics.
pub fn random_topic(random: &mut Random) -> String {
    format!("evil/{}", random.below(TOPICS))
}

/// A topic that may have readers, among them topics of the honest clients.
pub fn random_readable_topic(random: &mut Random) -> String {
    match random.below(4) {
        0 => "shared/http".to_string(),
        1 => "shared/mqtt".to_string(),
        _ => random_topic(random),
    }
}

/// A request's bytes.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// A request as a step of a script.
pub fn ask(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Send {
    let texts: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value:.60}"))
        .collect();
    let label = format!("{method} {target:.120} [{}]", texts.join("; "));
    let expected = match method {
        "HEAD" => Ask::Head,
        _ => Ask::Plain,
    };
    Send::new(label, request(method, target, headers, body)).asking(expected)
}

/// The parameter of a query that says where a subscription begins.
pub fn random_since(random: &mut Random) -> &'static str {
    random.pick(&[
        "",
        "",
        "since=oldest",
        "since=oldest",
        "since=live",
        "since=-3",
        "since=-99999999999999999999",
        "since=1-1",
        "since=zz",
        "since=2ffffffff-AAAA",
        "last_event_id=1ffffffff-18446744073709551615",
    ])
}

/// A path with any number of `?topic=` and `?filter=`.
fn random_target(random: &mut Random, path: &str) -> String {
    if random.one_in(2) {
        return format!(
            "{path}/{}?{}",
            random_readable_topic(random),
            random_since(random)
        );
    }
    let mut pairs = Vec::new();
    for _ in 0..random.pick(&[1, 1, 2, 2, 3, 8, 32, 33]) {
        pairs.push(match random.below(5) {
            0 => format!(
                "filter={}",
                random.pick(&[
                    "evil/%23", "%23", "evil/+", "%2B/%2B", "a/%23/b", "$SYS/%23", ""
                ])
            ),
            1 => format!("channel={}", random_topic(random)),
            _ => format!("topic={}", random_readable_topic(random)),
        });
    }
    pairs.push(random_since(random).to_string());
    if random.one_in(3) {
        pairs.push("envelope=json".to_string());
    }
    format!("{path}?{}", pairs.join("&"))
}

/// Conditions, kinds of answers and other fields that change what a request means.
fn random_headers(random: &mut Random) -> Vec<(&'static str, &'static str)> {
    const FIELDS: &[(&str, &[&str])] = &[
        (
            "Accept",
            &[
                "text/event-stream",
                "application/json",
                "*/*",
                "text/event-stream;q=0",
            ],
        ),
        (
            "If-None-Match",
            &[
                "\"1-1\"",
                "W/\"zz\"",
                "*",
                "\"1ffffffff-99999999999\"",
                "\"",
            ],
        ),
        (
            "If-Modified-Since",
            &[
                "Thu, 01 Jan 1970 00:00:00 GMT",
                "Fri, 31 Dec 9999 23:59:59 GMT",
                "yesterday",
            ],
        ),
        ("Last-Event-ID", &["1-1", "oldest", "", "2zz-A"]),
        ("Origin", &["http://elsewhere.example", "null"]),
        ("Connection", &["close", "keep-alive", "upgrade"]),
        (
            "Content-Type",
            &[
                "text/plain",
                "application/octet-stream",
                "application/x-ndjson",
            ],
        ),
        ("Crore-Key", &["k", "a key that is somewhat longer"]),
        ("Crore-TTL", &["0", "1", "99999999999", "-1"]),
        ("Crore-Retain", &["true", "perhaps"]),
        ("Crore-Property", &["a=b", "no equals sign"]),
        ("Idempotency-Key", &["\"one\"", "two", ""]),
        ("X-Forwarded-For", &["10.0.0.1, 127.0.0.1"]),
        ("Authorization", &["Bearer zz.zz.zz", "Basic zz"]),
    ];
    let mut chosen = Vec::new();
    for _ in 0..random.pick(&[0, 0, 1, 1, 2, 3]) {
        let (name, values) = FIELDS[random.below(FIELDS.len())];
        if chosen.iter().all(|(other, _)| *other != name) {
            chosen.push((name, random.pick(values)));
        }
    }
    chosen
}

/// One complete request of any kind.
pub fn random_request(random: &mut Random) -> Send {
    let headers = random_headers(random);
    match random.below(10) {
        0..=3 => {
            let size = random.pick(&[0, 1, 50, 3_000, 70_000, 400_000]);
            let byte = random.pick(b"x\x01\xff");
            let target = format!("/pub/{}", random_topic(random));
            ask("POST", &target, &headers, &vec![byte; size])
        }
        4 => {
            let method = random.pick(&["PUT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH"]);
            let query = random.pick(&["", "", "?purge", "?purge=1"]);
            let target = format!("/pub/{}{query}", random_topic(random));
            ask(method, &target, &headers, b"")
        }
        5 => {
            let lines = format!(
                "{{\"topic\":\"{}\",\"data\":\"y\"}}\n{{\"topic\":\"{}\",\"data\":1,\"key\":\"k\"}}\nzzz\n",
                random_topic(random),
                random_topic(random)
            );
            let lines = lines.repeat(random.pick(&[1, 20, 2_000]));
            let content_type = [("Content-Type", "application/x-ndjson")];
            ask("POST", "/pub", &content_type, lines.as_bytes())
        }
        _ => {
            let method = random.pick(&["GET", "GET", "GET", "HEAD", "HEAD", "OPTIONS"]);
            ask(method, &random_target(random, "/sub"), &headers, b"")
        }
    }
}

/// The last steps of a script: an orderly close, a reset, or waiting for the server.
pub fn random_ending(random: &mut Random) -> Vec<Step> {
    match random.below(6) {
        0 => vec![Step::Close],
        1 => vec![Step::Reset],
        2 => vec![Step::HalfClose, Step::Wait(300)],
        3 => vec![
            Step::StopReading(true),
            Step::Wait(random.between(1, 2_000) as u64),
        ],
        4 => vec![
            Step::StopReading(true),
            Step::Wait(random.between(1, 1_500) as u64),
            Step::StopReading(false),
        ],
        _ => vec![],
    }
}

/// Several requests on one connection. Some wait for the answer to the one before.
pub fn random_requests(random: &mut Random) -> Script {
    let mut steps = Vec::new();
    if random.one_in(8) {
        steps.push(Step::StopReading(true));
    }
    for number in 1..=random.between(1, 5) {
        let mut send = random_request(random);
        if random.one_in(3) && send.bytes.len() < 5_000 {
            send = send.in_pieces(random.between(1, 40), random.pick(&[0, 0, 1]));
        }
        if random.one_in(10) {
            // The request is cut off, so nothing may follow.
            let keep = random.below(send.bytes.len());
            send.label = format!("the first {keep} bytes of {}", send.label);
            send.bytes = send.bytes[..keep].into();
            steps.push(Step::Send(send));
            break;
        }
        steps.push(Step::Send(send));
        if random.one_in(2) {
            steps.push(Step::Await(number, random.pick(&[20, 300, 1_000])));
        }
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Http, steps)
}

/// Requests for several topics: a HEAD (which does not wait), a poll, a stream or a broken upgrade. The client leaves soon.
pub fn several(random: &mut Random) -> Script {
    let method = random.pick(&["HEAD", "HEAD", "GET"]);
    let count = random.between(2, 6);
    let topics: Vec<String> = (0..count)
        .map(|_| format!("topic={}", random_readable_topic(random)))
        .collect();
    let target = format!("/sub?{}&{}", topics.join("&"), random_since(random));
    let accept = [("Accept", random.pick(&["text/event-stream", "*/*"]))];
    let mut steps = vec![Step::Send(match random.below(3) {
        0 => broken_upgrade(random, &target),
        _ => ask(method, &target, &accept, b""),
    })];
    if random.one_in(2) {
        steps.push(Step::Await(1, 500));
    }
    if random.one_in(3) {
        steps.push(Step::Send(random_request(random)));
    }
    steps.push(match random.below(3) {
        0 => Step::Close,
        1 => Step::Reset,
        _ => Step::HalfClose,
    });
    Script::new("", Protocol::Http, steps)
}

/// Clients that follow interest (are told which topics have subscribers).
pub fn interest(random: &mut Random) -> Script {
    let matched = random.pick(&[
        "",
        "?match=%23",
        "?match=evil/%23",
        "?match=%23/a",
        "?match=shared/%2B",
    ]);
    let accept = [("Accept", random.pick(&["text/event-stream", "*/*"]))];
    let method = random.pick(&["GET", "GET", "HEAD", "POST"]);
    let mut steps = vec![Step::Send(ask(
        method,
        &format!("/interest{matched}"),
        &accept,
        b"",
    ))];
    steps.push(Step::Wait(random.between(10, 1_500) as u64));
    steps.extend(random_ending(random));
    Script::new("", Protocol::Http, steps)
}

/// Bytes that are no protocol, or almost one.
pub fn noise(random: &mut Random) -> Script {
    let mut bytes = match random.below(4) {
        0 => Vec::new(),
        1 => vec![22, 3, 1, 0, random.between(1, 255) as u8, 1, 0, 0, 1],
        2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        _ => random_request(random).bytes.to_vec(),
    };
    let count = random.below(600);
    bytes.extend(random.bytes(count));
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len().max(1)).min(200);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
    }
    let send = Send::new("noise", bytes).in_pieces(random.pick(&[0, 0, 7]), 0);
    let mut steps = vec![Step::Send(send)];
    steps.extend(random_ending(random));
    Script::new("", Protocol::Noise, steps)
}
