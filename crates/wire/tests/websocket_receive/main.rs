//! Tests the WebSocket receiver: it gives the same events and the same violation however the bytes are cut, holds no memory for bytes that
//! have not arrived, and enforces each rule of RFC 6455 §5 with its close code.

mod splits;
mod violations;

use crore_wire::deflate::Compressor;
use crore_wire::websocket::frame::{Opcode, write_frame, write_header, write_masked};
use crore_wire::websocket::receive::{
    Config, Event, Partial, Role, Violation, next as receive_next,
};

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];
const LIMIT: usize = 4096;

/// An event that outlives its input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OwnedEvent {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, Vec<u8>),
    Broken(Violation),
}

fn to_owned_event(event: Event<'_>) -> OwnedEvent {
    match event {
        Event::Text(bytes) => OwnedEvent::Text(bytes.to_vec()),
        Event::Binary(bytes) => OwnedEvent::Binary(bytes.to_vec()),
        Event::Ping(bytes) => OwnedEvent::Ping(bytes.to_vec()),
        Event::Pong(bytes) => OwnedEvent::Pong(bytes.to_vec()),
        Event::Close { code, reason } => OwnedEvent::Close(code, reason.to_vec()),
    }
}

fn config(role: Role, deflate: bool) -> Config {
    Config {
        role,
        message_bytes: LIMIT,
        deflate,
    }
}

/// Feeds one piece as a server would. False after a violation.
fn feed(
    partial: &mut Option<Box<Partial>>,
    piece: &[u8],
    config: &Config,
    events: &mut Vec<OwnedEvent>,
) -> bool {
    let mut piece = piece.to_vec();
    let mut offset = 0;
    loop {
        let unread = piece.len() - offset;
        match receive_next(partial, &mut piece[offset..], config) {
            Ok(step) => {
                assert!(step.consumed <= unread);
                offset += step.consumed;
                match step.event {
                    Some(event) => events.push(to_owned_event(event)),
                    None => {
                        assert_eq!(step.consumed, unread, "without an event all is consumed");
                        return true;
                    }
                }
            }
            Err(violation) => {
                assert!(partial.is_none());
                events.push(OwnedEvent::Broken(violation));
                return false;
            }
        }
    }
}

/// Everything that happens when `stream` arrives cut at `cuts`, and whether the receiver keeps state at the end.
fn run(stream: &[u8], cuts: &[usize], config: &Config) -> (Vec<OwnedEvent>, bool) {
    let mut partial = None;
    let mut events = Vec::new();
    let mut offset = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        if !feed(&mut partial, &stream[offset..cut], config, &mut events) {
            break;
        }
        offset = cut;
    }
    (events, partial.is_some())
}

/// Asserts that the stream gives the same events whole, cut in two at any place, and cut into single bytes.
fn assert_same_for_every_split(stream: &[u8], config: &Config) -> Vec<OwnedEvent> {
    let uncut = run(stream, &[], config);
    for cut in 0..=stream.len() {
        assert_eq!(run(stream, &[cut], config), uncut, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(run(stream, &every_byte, config), uncut, "cut at every byte");
    uncut.0
}

fn write_frame_with_bits(
    out: &mut Vec<u8>,
    opcode: Opcode,
    fin: bool,
    rsv1: bool,
    payload: &[u8],
    mask: Option<[u8; 4]>,
) {
    write_header(out, opcode, fin, rsv1, payload.len(), mask);
    let key = mask.unwrap_or([0; 4]);
    out.extend(
        payload
            .iter()
            .enumerate()
            .map(|(at, byte)| byte ^ key[at % 4]),
    );
}

fn receive_as_server(bytes: &[u8]) -> Vec<OwnedEvent> {
    assert_same_for_every_split(bytes, &config(Role::Server, false))
}

fn masked(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked(&mut out, opcode, payload, MASK);
    out
}

fn fragment(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame_with_bits(&mut out, opcode, fin, false, payload, Some(MASK));
    out
}

#[test]
fn examples_of_the_rfc_are_read() {
    // The examples of RFC 6455 §5.7.
    let client = config(Role::Client, false);
    let receive_as_client = |bytes: &[u8]| assert_same_for_every_split(bytes, &client);
    let text = vec![OwnedEvent::Text(b"Hello".to_vec())];
    assert_eq!(receive_as_client(b"\x81\x05Hello"), text);
    assert_eq!(receive_as_client(b"\x01\x03Hel\x80\x02lo"), text);
    assert_eq!(
        receive_as_client(b"\x89\x05Hello"),
        [OwnedEvent::Ping(b"Hello".to_vec())]
    );
    assert_eq!(
        receive_as_server(b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        text
    );
    assert_eq!(
        receive_as_server(b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        [OwnedEvent::Pong(b"Hello".to_vec())]
    );
}

#[test]
fn a_whole_frame_is_a_slice_of_the_input_and_leaves_no_state() {
    for payload in [&b""[..], b"x", &[b'y'; 126], &[b'z'; 3000]] {
        let mut input = masked(Opcode::Text, payload);
        input.extend(masked(Opcode::Ping, b"p"));
        let range = input.as_ptr_range();
        let mut partial = None;
        let step = receive_next(&mut partial, &mut input, &config(Role::Server, false)).unwrap();
        let Some(Event::Text(text)) = step.event else {
            panic!("{step:?}")
        };
        assert_eq!(text, payload);
        assert!(range.start <= text.as_ptr() && text.as_ptr() <= range.end);
        assert!(partial.is_none());
    }
}

#[test]
fn memory_grows_with_received_bytes_not_with_the_announced_length() {
    let config = Config {
        role: Role::Client,
        message_bytes: 1 << 30,
        deflate: false,
    };
    let mut out = Vec::new();
    write_header(&mut out, Opcode::Binary, true, false, 1 << 29, None);
    out.extend([1; 100]);
    let mut partial = None;
    assert_eq!(
        receive_next(&mut partial, &mut out, &config).unwrap().event,
        None
    );
    let buffered_bytes = partial.as_ref().unwrap().buffered_bytes();
    assert!((100..1000).contains(&buffered_bytes), "{buffered_bytes}");
    for _ in 0..1000 {
        receive_next(&mut partial, &mut [2; 100], &config).unwrap();
    }
    let buffered_bytes = partial.as_ref().unwrap().buffered_bytes();
    assert!(
        (100_100..300_000).contains(&buffered_bytes),
        "{buffered_bytes}"
    );
}

#[test]
fn state_is_freed_by_the_call_after_a_message() {
    let config = config(Role::Server, false);
    let mut stream = masked(Opcode::Binary, b"abc");
    let (first, second) = stream.split_at_mut(8);
    let mut partial = None;
    assert_eq!(
        receive_next(&mut partial, first, &config).unwrap().event,
        None
    );
    assert!(partial.is_some());
    let step = receive_next(&mut partial, second, &config).unwrap();
    assert_eq!(step.event, Some(Event::Binary(b"abc")));
    let step = receive_next(&mut partial, &mut [], &config).unwrap();
    assert_eq!((step.consumed, step.event), (0, None));
    assert!(partial.is_none());
}

#[test]
fn message_of_exactly_the_limit_is_accepted() {
    let body = vec![0; LIMIT];
    assert_eq!(
        receive_as_server(&masked(Opcode::Binary, &body)),
        [OwnedEvent::Binary(body.clone())]
    );
    let halves = [
        fragment(Opcode::Binary, false, &body[..LIMIT / 2]),
        fragment(Opcode::Continuation, true, &body[LIMIT / 2..]),
    ];
    assert_eq!(
        receive_as_server(&halves.concat()),
        [OwnedEvent::Binary(body)]
    );
}

#[test]
fn compressed_messages_are_limited_and_checked_after_inflation() {
    let config = config(Role::Client, true);
    let receive_compressed = |body: &[u8], opcode| {
        let (mut payload, mut out) = (Vec::new(), Vec::new());
        Compressor::new().compress(body, 9, &mut payload);
        write_frame_with_bits(&mut out, opcode, true, true, &payload, None);
        assert_same_for_every_split(&out, &config)
    };
    let largest = vec![b'a'; LIMIT];
    assert_eq!(
        receive_compressed(&largest, Opcode::Text),
        [OwnedEvent::Text(largest)]
    );
    let bomb = vec![b'a'; LIMIT + 1];
    assert_eq!(
        receive_compressed(&bomb, Opcode::Text),
        [OwnedEvent::Broken(Violation::TooBig)]
    );
    assert_eq!(
        receive_compressed(b"\xFF", Opcode::Text),
        [OwnedEvent::Broken(Violation::BadUtf8)]
    );
    assert_eq!(
        receive_compressed(b"\xFF", Opcode::Binary),
        [OwnedEvent::Binary(vec![0xFF])]
    );
    // Random bytes of the maximum size grow when compressed, and are still accepted, whole and in fragments.
    let mut word = 1_u32;
    let noise: Vec<u8> = (0..LIMIT)
        .map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8
        })
        .collect();
    let (mut payload, mut fragments) = (Vec::new(), Vec::new());
    Compressor::new().compress(&noise, 9, &mut payload);
    assert!(payload.len() > LIMIT);
    let (head, tail) = payload.split_at(10);
    write_frame_with_bits(&mut fragments, Opcode::Binary, false, true, head, None);
    write_frame_with_bits(
        &mut fragments,
        Opcode::Continuation,
        true,
        false,
        tail,
        None,
    );
    let expected = [OwnedEvent::Binary(noise.clone())];
    assert_eq!(receive_compressed(&noise, Opcode::Binary), expected);
    assert_eq!(assert_same_for_every_split(&fragments, &config), expected);
    // Uncompressed messages may follow on the same connection.
    let mut plain = Vec::new();
    write_frame(&mut plain, Opcode::Text, b"plain");
    assert_eq!(
        assert_same_for_every_split(&plain, &config),
        [OwnedEvent::Text(b"plain".to_vec())]
    );
}
