//! Attackers over HTTP/2: streams that are opened and reset, field blocks that do not end, frames that each need an answer, closed windows,
//! and bodies in pieces of one byte.

use std::sync::Arc;

use crore_wire::http2::frame::{
    ACK, END_HEADERS, END_STREAM, Header, Kind, PREFACE, write_settings_ack,
};

use crate::http::{ask, random_topic};
use crate::random::Random;
use crate::script::{Protocol, Script, Send, Step};

/// The parameter SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;
/// The error code CANCEL.
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// Streams that a connection may have at a time.
const STREAMS: u32 = 128;

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header::new(kind, flags, stream, payload.len());
    [&header.bytes()[..], payload].concat()
}

/// A literal field without indexing and without Huffman. The value may have up to 16,000 bytes.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.bytes());
    match value.len() {
        len @ 0..127 => bytes.push(len as u8),
        len => {
            let rest = len - 127;
            bytes.extend([127, 0x80 | (rest & 0x7f) as u8, (rest >> 7) as u8]);
        }
    }
    bytes.extend(value.bytes());
    bytes
}

fn field_block(method: &str, path: &str, extra: &[(&str, &str)]) -> Vec<u8> {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ];
    let fields = fields.iter().chain(extra);
    fields
        .flat_map(|(name, value)| field(name, value))
        .collect()
}

/// A request without a body that waits: an event stream or a long-poll.
fn subscribe(random: &mut Random, stream: u32) -> Vec<u8> {
    let accept = [("accept", random.pick(&["text/event-stream", "*/*"]))];
    let since = random.pick(&["", "?since=oldest"]);
    let path = format!("/sub/{}{since}", random_topic(random));
    let block = field_block("GET", &path, &accept);
    frame(Kind::Headers, END_HEADERS | END_STREAM, stream, &block)
}

/// The number of the `n`th stream.
const fn stream_id(n: usize) -> u32 {
    2 * n as u32 + 1
}

/// The client's preface, with the initial window of its streams.
fn preface(window: u32) -> Step {
    let payload = [&INITIAL_WINDOW.to_be_bytes()[..], &window.to_be_bytes()].concat();
    let mut bytes = [PREFACE.to_vec(), frame(Kind::Settings, 0, 0, &payload)].concat();
    write_settings_ack(&mut bytes);
    Step::Send(Send::new(
        format!("the preface, windows of {window}"),
        bytes,
    ))
}

fn script(random: &mut Random, steps: Vec<Step>) -> Script {
    Script {
        sockets: random.pick(&[1, 4, 20]),
        ..Script::new("", Protocol::Http2, steps)
    }
}

/// Streams that are opened and reset at once: as many as are allowed, or far more.
pub fn rapid_reset(random: &mut Random) -> Script {
    let count = random.pick(&[100, 450, 3_000]);
    let mut bytes = Vec::new();
    for n in 0..count {
        bytes.extend(subscribe(random, stream_id(n)));
        bytes.extend(frame(Kind::ResetStream, 0, stream_id(n), &CANCEL));
    }
    let send = Send::new(format!("{count} streams with their resets"), bytes);
    let steps = vec![
        preface(65_535),
        Step::Send(send.in_pieces(random.pick(&[0, 0, 1_000]), 0)),
        Step::Wait(random.between(10, 500) as u64),
    ];
    script(random, steps)
}

/// A field block that goes on and on, or blocks whose few bytes stand for large fields.
pub fn continuations(random: &mut Random) -> Script {
    let first = field_block("GET", "/history/evil/1", &[]);
    let (label, bytes) = match random.below(3) {
        0 => {
            let extra = frame(Kind::Continuation, 0, 1, &field("a", "b"));
            let bytes = [frame(Kind::Headers, 0, 1, &first), extra.repeat(1_000)].concat();
            ("a block without end", bytes)
        }
        1 => {
            let part = frame(Kind::Continuation, 0, 1, &field("a", &"b".repeat(2_000)));
            let bytes = [frame(Kind::Headers, 0, 1, &first), part.repeat(7)].concat();
            ("a long block whose end does not come", bytes)
        }
        _ => {
            // An entry of the dynamic table, and indexes of one byte that name it.
            let mut bomb = [&first[..], b"\x40\x01a\x7f\xa1\x1e", &[b'x'; 4_000]].concat();
            bomb.resize(16_000, 0xbe);
            let flags = END_HEADERS | END_STREAM;
            let bytes = (0..10).flat_map(|n| frame(Kind::Headers, flags, stream_id(n), &bomb));
            ("blocks of indexes", bytes.collect())
        }
    };
    let steps = vec![
        preface(65_535),
        Step::Send(Send::new(label, bytes)),
        Step::Wait(random.between(100, 3_000) as u64),
    ];
    script(random, steps)
}

/// Frames that cost an answer each, or a change of all windows, from a client that may read nothing.
pub fn small_frames(random: &mut Random) -> Script {
    let window = |bytes: u32| {
        let payload = [&INITIAL_WINDOW.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
        frame(Kind::Settings, 0, 0, &payload)
    };
    let (label, frames) = match random.below(4) {
        0 => ("PING", frame(Kind::Ping, 0, 0, b"12345678")),
        1 => ("SETTINGS", frame(Kind::Settings, 0, 0, &[])),
        2 => ("windows", [window(0), window(1 << 20)].concat()),
        _ => ("SETTINGS ACK", frame(Kind::Settings, ACK, 0, &[])),
    };
    let streams: Vec<u8> = (0..random.pick(&[0, 100]))
        .flat_map(|n| subscribe(random, stream_id(n)))
        .collect();
    let steps = vec![
        preface(random.pick(&[0, 65_535])),
        Step::Send(Send::new("streams", streams)),
        Step::StopReading(random.one_in(2)),
        Step::Send(Send::new(label, frames).times(random.pick(&[20, 180, 5_000]))),
        Step::Wait(random.between(10, 2_000) as u64),
    ];
    script(random, steps)
}

/// The maximum number of streams, with windows of no byte or one byte, and large messages for them. All windows may open later.
pub fn shut_windows(random: &mut Random) -> Script {
    let topic = random_topic(random);
    let path = format!("/sub/{topic}?since=oldest");
    let accept = [("accept", "text/event-stream")];
    let block = field_block("GET", &path, &accept);
    let streams: Vec<u8> = (0..STREAMS as usize)
        .flat_map(|n| {
            frame(
                Kind::Headers,
                END_HEADERS | END_STREAM,
                stream_id(n),
                &block,
            )
        })
        .collect();
    let mut steps = vec![
        preface(random.pick(&[0, 0, 1])),
        Step::Send(Send::new(format!("{STREAMS} streams"), streams)),
        Step::Wait(random.between(1_000, 4_000) as u64),
    ];
    if random.one_in(2) {
        let payload = [0, 4, 0, 16, 0, 0];
        let settings = frame(Kind::Settings, 0, 0, &payload);
        let extra = (1_u32 << 30).to_be_bytes();
        let bytes = [settings, frame(Kind::WindowUpdate, 0, 0, &extra)].concat();
        steps.push(Step::Send(Send::new("open windows", bytes)));
        steps.push(Step::Wait(500));
    }
    let body = vec![b'x'; random.pick(&[1_000, 60_000])];
    let publish = ask("POST", &format!("/pub/{topic}"), &[], &body);
    let publishes = vec![Step::Wait(300), Step::Send(publish.times(10))];
    Script {
        beside: Some(Arc::new(Script::new("", Protocol::Http, publishes))),
        sockets: random.pick(&[1, 2]),
        ..Script::new("", Protocol::Http2, steps)
    }
}

/// Two requests with large heads, whose bodies come in turns, a byte in each frame.
pub fn small_data(random: &mut Random) -> Script {
    let long_value = "x".repeat(random.pick(&[100, 12_000]));
    let block = field_block(
        "POST",
        &format!("/pub/{}", random_topic(random)),
        &[("x-long", &long_value)],
    );
    let heads = [1, 3].map(|stream| frame(Kind::Headers, END_HEADERS, stream, &block));
    let turns = [1, 3].map(|stream| frame(Kind::Data, 0, stream, b"x"));
    let steps = vec![
        preface(65_535),
        Step::Send(Send::new("two heads", heads.concat())),
        Step::Send(Send::new("a byte for each", turns.concat()).times(random.pick(&[300, 5_000]))),
        Step::Wait(random.between(10, 2_000) as u64),
    ];
    script(random, steps)
}
