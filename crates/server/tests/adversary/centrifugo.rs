//! Attackers over Centrifugo's protocol: valid and invalid commands, frames of thousands of them, and clients that subscribe to much and read nothing.

use crore_wire::websocket::frame::Opcode;

use crate::http::{random_ending, random_readable_topic, random_topic};
use crate::random::Random;
use crate::script::{Protocol, Script, Send, Step};
use crate::websocket::{frame, upgrade};

/// The path of the protocol's WebSocket.
const PATH: &str = "/connection/websocket";

/// A command, in which something may be wrong.
fn random_command(random: &mut Random, id: usize) -> String {
    let (read, written) = (random_readable_topic(random), random_topic(random));
    let offset = random.pick(&["0", "3", "18446744073709551615", "-1", "\"7\""]);
    let epoch = random.pick(&["", "00000000", "ffffffff", "no epoch"]);
    let body = match random.below(14) {
        0..3 => format!("\"subscribe\":{{\"channel\":\"{read}\"}}"),
        3 => format!(
            "\"subscribe\":{{\"channel\":\"{read}\",\"delta\":\"fossil\",\"join_leave\":true}}"
        ),
        4 => format!(
            "\"subscribe\":{{\"channel\":\"{read}\",\"recover\":true,\"offset\":{offset},\"epoch\":\"{epoch}\"}}"
        ),
        5..7 => format!("\"unsubscribe\":{{\"channel\":\"{read}\"}}"),
        7..9 => {
            let data = "x".repeat(random.pick(&[0, 10, 3_000, 60_000]));
            format!("\"publish\":{{\"channel\":\"{written}\",\"data\":\"{data}\"}}")
        }
        9 => format!("\"history\":{{\"channel\":\"{read}\",\"limit\":{offset}}}"),
        10 => format!("\"presence\":{{\"channel\":\"{read}\"}}"),
        11 => random
            .pick(&[
                "\"rpc\":{\"method\":\"m\"}",
                "\"send\":{}",
                "\"refresh\":{\"token\":\"t\"}",
            ])
            .to_string(),
        12 => format!("\"connect\":{{\"token\":\"{epoch}\"}}"),
        _ => random
            .pick(&[
                "\"ping\":{}",
                "\"dance\":{}",
                "\"subscribe\":5",
                "\"subscribe\":{",
            ])
            .to_string(),
    };
    format!("{{\"id\":{id},{body}}}")
}

fn random_batch(random: &mut Random) -> Send {
    let count = random.pick(&[1, 1, 3, 30, 2_500]);
    let mut lines: Vec<String> = (0..count.min(30))
        .map(|id| random_command(random, id + 2))
        .collect();
    let history = "{\"id\":9,\"history\":{\"channel\":\"evil/1\",\"limit\":100}}".to_string();
    lines.resize(count, history);
    let text = lines.join("\n");
    let send = Send::new(
        format!("{count} commands"),
        frame(Opcode::Text, text.as_bytes()),
    );
    match random.one_in(8) {
        true => send.in_pieces(random.pick(&[1_000, 7_000]), 1),
        false => send,
    }
}

/// A WebSocket with a connect command, in most cases.
fn open_and_connect(random: &mut Random) -> Vec<Step> {
    let connect = frame(Opcode::Text, b"{\"id\":1,\"connect\":{}}");
    let mut steps = vec![Step::Send(upgrade(PATH, &[])), Step::Await(1, 300)];
    if !random.one_in(8) {
        steps.push(Step::Send(Send::new("a connect command", connect)));
    }
    steps
}

/// Valid and invalid commands, and the end of the connection in the middle of them.
pub fn random_commands(random: &mut Random) -> Script {
    let mut steps = open_and_connect(random);
    for _ in 0..random.between(1, 12) {
        steps.push(Step::Send(random_batch(random)));
        if random.one_in(3) {
            steps.push(Step::Wait(random.between(1, 200) as u64));
        }
    }
    steps.extend(random_ending(random));
    Script::new("", Protocol::Http, steps)
}

/// Many clients that subscribe to many channels, publish large messages to each other, and read nothing.
pub fn many_channels_without_reading(random: &mut Random) -> Script {
    let subscribes = (0..40).map(|n| {
        let recovers = random.pick(&[
            "",
            ",\"recover\":true,\"offset\":0",
            ",\"delta\":\"fossil\"",
        ]);
        format!(
            "{{\"id\":{},\"subscribe\":{{\"channel\":\"evil/{n}\"{recovers}}}}}",
            n + 2
        )
    });
    let subscribes = subscribes.collect::<Vec<String>>().join("\n");
    let data = "x".repeat(random.pick(&[200, 20_000, 300_000]));
    let publish = format!(
        "{{\"id\":99,\"publish\":{{\"channel\":\"evil/{}\",\"data\":\"{data}\"}}}}",
        random.below(40)
    );
    let publish = Send::new("a publish", frame(Opcode::Text, publish.as_bytes()));
    let mut steps = open_and_connect(random);
    steps.extend([
        Step::Send(Send::new(
            "40 subscribes",
            frame(Opcode::Text, subscribes.as_bytes()),
        )),
        Step::StopReading(true),
        Step::Send(publish.times(5)),
        Step::Wait(random.between(100, 2_000) as u64),
    ]);
    Script {
        sockets: random.pick(&[1, 30, 100]),
        receive_buffer: random.pick(&[None, Some(4_096)]),
        linger_ms: 0,
        ..Script::new("", Protocol::Http, steps)
    }
}
