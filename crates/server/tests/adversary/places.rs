//! Attackers that use up something that all clients share: topics, places for followers of interest (clients that are told which topics
//! have subscribers), logs, subscriptions, and the time of deliveries.

use std::fmt::Write as _;
use std::sync::Arc;

use crore_wire::websocket::frame::Opcode;

use crate::http::ask;
use crate::mqtt;
use crate::random::Random;
use crate::script::{Port, Protocol, Script, Send, Step};
use crate::websocket::{frame, upgrade};

/// Number of topics in one batch.
const BATCH: usize = 4_000;

/// Batches that each make thousands of topics.
pub fn topic_makers(random: &mut Random) -> Script {
    let first = random.below(1_000_000);
    let content_type = [("Content-Type", "application/x-ndjson")];
    let batches = random.between(2, 5);
    let mut steps: Vec<Step> = (0..batches)
        .map(|batch| {
            let topics = (0..BATCH).map(|n| first + batch * BATCH + n);
            let lines = topics.fold(String::new(), |mut lines, n| {
                let _ = writeln!(lines, "{{\"topic\":\"evil/made/{n}\",\"data\":\"x\"}}");
                lines
            });
            Step::Send(ask("POST", "/pub", &content_type, lines.as_bytes()))
        })
        .collect();
    steps.push(Step::Await(batches, 10_000));
    Script::new("", Protocol::Http, steps)
}

/// More followers of interest than there may be, for a while.
pub fn followers(random: &mut Random) -> Script {
    let steps = vec![
        Step::Send(upgrade("/interest?match=evil/none", &[])),
        Step::Wait(random.between(1_000, 4_000) as u64),
    ];
    Script {
        sockets: random.between(70, 120),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Number of topics that [`log_fillers`] publish to. Each topic keeps 256 KiB by default, so together they exceed the memory of all logs.
const FILLED_TOPICS: usize = 400;

/// Batches of messages to many topics, and retained messages beside them. Together they exceed the memory of all logs.
pub fn log_fillers(random: &mut Random) -> Script {
    let data = "x".repeat(random.pick(&[200, 900]));
    let content_type = [("Content-Type", "application/x-ndjson")];
    let batches = random.between(8, 14);
    let mut steps = Vec::new();
    for batch in 1..=batches {
        let lines = (0..1_500_000 / (data.len() + 60)).fold(String::new(), |mut lines, _| {
            let topic = random.below(FILLED_TOPICS);
            let _ = writeln!(
                lines,
                "{{\"topic\":\"evil/fill/{topic}\",\"data\":\"{data}\"}}"
            );
            lines
        });
        steps.push(Step::Send(ask(
            "POST",
            "/pub",
            &content_type,
            lines.as_bytes(),
        )));
        steps.push(Step::Await(batch, 10_000));
    }
    Script {
        beside: Some(Arc::new(retain_many(random))),
        ..Script::new("", Protocol::Http, steps)
    }
}

fn retain_many(random: &mut Random) -> Script {
    let version = mqtt::version(random);
    let mut steps = vec![
        Step::Send(mqtt::connect_as(random, version, "evil-7")),
        Step::Await(1, 2_000),
    ];
    let payload = vec![b'x'; 2_000];
    for n in 0..2_000 {
        let topic = format!("evil/state/{n}");
        steps.push(Step::Send(mqtt::publish_to(
            version, &topic, 0, 0, true, &payload,
        )));
    }
    Script::new("", Protocol::Mqtt(version), steps)
}

/// As many subscriptions as one connection may have, and more.
pub fn long_lists(random: &mut Random) -> Script {
    let version = mqtt::version(random);
    let mut steps = vec![
        Step::Send(mqtt::connect_as(random, version, "evil-7")),
        Step::Await(1, 2_000),
    ];
    let suffix = random.pick(&["", "/+"]);
    let packets = random.between(40, 70);
    for packet in 1..=packets {
        let names: Vec<String> = (0..60)
            .map(|n| format!("evil/list/{}{suffix}", packet * 60 + n))
            .collect();
        let filters: Vec<&str> = names.iter().map(String::as_str).collect();
        steps.push(Step::Send(mqtt::subscribe_to(version, packet, &filters, 0)));
    }
    steps.push(Step::Await(packets + 1, 10_000));
    Script {
        sockets: random.between(1, 6),
        ..Script::new("", Protocol::Mqtt(version), steps)
    }
}

/// WebSockets that read nothing, and large messages to all of them. One publisher beside them sends the messages, or each of them does.
pub fn deaf_publishers(random: &mut Random) -> Script {
    match random.below(2) {
        0 => silent_readers_and_one_publisher(random),
        _ => silent_readers_that_publish(random),
    }
}

/// Sends three messages: as much as the kernel buffers for a socket that is not read.
fn silent_readers_and_one_publisher(random: &mut Random) -> Script {
    let topic = format!("evil/deaf/{}", random.below(40));
    let wait_ms = random.between(500, 2_000) as u64;
    let large = ask(
        "POST",
        &format!("/pub/{topic}"),
        &[],
        &vec![b'x'; 1_000_000],
    );
    let publisher = Script::new(
        "",
        Protocol::Http,
        vec![
            Step::Wait(wait_ms),
            Step::Send(large.times(3)),
            Step::Await(3, 5_000),
        ],
    );
    let steps = vec![
        Step::Send(upgrade(&format!("/sub/{topic}?since=live"), &[])),
        Step::Await(1, 2_000),
        Step::StopReading(true),
        Step::Wait(wait_ms + 1_500),
    ];
    Script {
        sockets: random.pick(&[200, 400]),
        linger_ms: 0,
        beside: Some(Arc::new(publisher)),
        ..Script::new("", Protocol::Http, steps)
    }
}

fn silent_readers_that_publish(random: &mut Random) -> Script {
    let target = format!("/pubsub/evil/{}?since=live", random.below(40));
    let size = random.pick(&[300_000, 900_000]);
    let message = frame(Opcode::Text, &vec![b'x'; size]);
    let large = Send::new(format!("a message of {size}"), message).times(3);
    let steps = vec![
        Step::Send(upgrade(&target, &[])),
        Step::Await(1, 2_000),
        Step::StopReading(true),
        Step::Wait(random.between(0, 1_500) as u64),
        Step::Send(large),
        Step::Wait(random.between(1_000, 4_000) as u64),
    ];
    Script {
        sockets: random.between(150, 210),
        linger_ms: 0,
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Hundreds of connections that read nothing, and thousands of small messages to all of them, in batches that do not wait for one another.
pub fn wide_fan_out(random: &mut Random) -> Script {
    let topic = format!("evil/wide/{}", random.below(4));
    let wait_ms = random.between(500, 2_000) as u64;
    let line = format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n");
    let content_type = [("Content-Type", "application/x-ndjson")];
    let batch = ask(
        "POST",
        "/pub",
        &content_type,
        line.repeat(random.pick(&[1, 100])).as_bytes(),
    );
    let publishers = Script {
        sockets: random.pick(&[1, 20]),
        ..Script::new(
            "",
            Protocol::Http,
            vec![
                Step::Wait(wait_ms),
                Step::Send(batch.times(100)),
                Step::Await(100, 10_000),
            ],
        )
    };
    let steps = vec![
        Step::Send(upgrade(&format!("/sub/{topic}?since=live"), &[])),
        Step::Await(1, 2_000),
        Step::StopReading(true),
        Step::Wait(wait_ms + 8_000),
    ];
    Script {
        sockets: random.pick(&[200, 400]),
        linger_ms: 0,
        beside: Some(Arc::new(publishers)),
        ..Script::new("", Protocol::Http, steps)
    }
}

/// Tokens with false signatures. Each is as large as a token may be, and all differ.
pub fn made_up_tokens(random: &mut Random) -> Script {
    // The base64 of {"alg":"HS256"} and of {"sub":"eve"}.
    let head = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJldmUifQ.";
    let size = random.pick(&[100, 4_000, 60_000]);
    let steps = (0..random.between(10, 30)).map(|n| {
        let stem = random.below(1 << 30);
        let token = format!("{head}{stem:08x}{n:04}{}", "A".repeat(size));
        let headers = [("Authorization", &*format!("Bearer {token}"))];
        Step::Send(ask("GET", "/pub/evil/1", &headers, b""))
    });
    let steps: Vec<Step> = steps.collect();
    let count = steps.len();
    Script {
        sockets: random.pick(&[1, 20]),
        ..Script::new(
            "",
            Protocol::Http,
            steps
                .into_iter()
                .chain([Step::Await(count, 10_000)])
                .collect(),
        )
    }
}

/// Strangers that hold connections of the admin port: silent, with half a head, or with requests. The judge asks there too, as the operator
/// does, from an address of its own.
pub fn admin_strangers(random: &mut Random) -> Script {
    let request = ask(
        "GET",
        random.pick(&["/metrics", "/", "/api/v1/status", "/none"]),
        &[],
        b"",
    );
    let mut partial_request = request.clone();
    partial_request.bytes = partial_request.bytes[..partial_request.bytes.len() - 3].into();
    let steps = match random.below(3) {
        0 => vec![],
        1 => vec![Step::Send(partial_request)],
        _ => vec![Step::Send(request.times(random.pick(&[1, 20])))],
    };
    let wait = Step::Wait(random.between(1_000, 6_000) as u64);
    Script {
        sockets: random.between(60, 250),
        port: Port::Admin,
        ..Script::new("", Protocol::Http, [steps, vec![wait]].concat())
    }
}
