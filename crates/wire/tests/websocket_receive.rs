//! The receiver: the same events and the same violation however the bytes are cut, no memory for bytes that did not arrive,
//! and each rule of RFC 6455 §5 with its close code.

use crore_wire::deflate::Compressor;
use crore_wire::websocket::frame::{Opcode, write_frame, write_header, write_masked};
use crore_wire::websocket::receive::{Config, Event, Partial, Role, Violation, next};
use proptest::prelude::*;

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];
const LIMIT: usize = 4096;

/// An event that outlives its input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, Vec<u8>),
    Broken(Violation),
}

fn seen(event: Event<'_>) -> Seen {
    match event {
        Event::Text(bytes) => Seen::Text(bytes.to_vec()),
        Event::Binary(bytes) => Seen::Binary(bytes.to_vec()),
        Event::Ping(bytes) => Seen::Ping(bytes.to_vec()),
        Event::Pong(bytes) => Seen::Pong(bytes.to_vec()),
        Event::Close { code, reason } => Seen::Close(code, reason.to_vec()),
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
    all: &mut Vec<Seen>,
) -> bool {
    let mut piece = piece.to_vec();
    let mut at = 0;
    loop {
        let left = piece.len() - at;
        match next(partial, &mut piece[at..], config) {
            Ok(step) => {
                assert!(step.consumed <= left);
                at += step.consumed;
                match step.event {
                    Some(event) => all.push(seen(event)),
                    None => {
                        assert_eq!(step.consumed, left, "without an event all is consumed");
                        return true;
                    }
                }
            }
            Err(violation) => {
                assert!(partial.is_none());
                all.push(Seen::Broken(violation));
                return false;
            }
        }
    }
}

/// Everything that happens when `stream` arrives in the pieces that `cuts` make of it, and whether state is left.
fn run(stream: &[u8], cuts: &[usize], config: &Config) -> (Vec<Seen>, bool) {
    let mut partial = None;
    let mut all = Vec::new();
    let mut at = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        if !feed(&mut partial, &stream[at..cut], config, &mut all) {
            break;
        }
        at = cut;
    }
    (all, partial.is_some())
}

/// Asserts that every single cut, and single bytes, give the same as the whole stream.
fn assert_same_for_every_split(stream: &[u8], config: &Config) -> Vec<Seen> {
    let whole = run(stream, &[], config);
    for cut in 0..=stream.len() {
        assert_eq!(run(stream, &[cut], config), whole, "cut at {cut}");
    }
    let every: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(run(stream, &every, config), whole, "cut at every byte");
    whole.0
}

/// A message from the sender's side: the pieces that it goes out in, with control frames after them.
#[derive(Clone, Debug)]
struct Sent {
    text: bool,
    body: Vec<u8>,
    deflated: bool,
    cuts: Vec<prop::sample::Index>,
    controls: Vec<(bool, Vec<u8>)>,
    mask: [u8; 4],
}

fn sent() -> impl Strategy<Value = Sent> {
    let body = prop_oneof![
        "\\PC{0,40}".prop_map(|text| (true, text.into_bytes())),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| (false, bytes)),
        (120_usize..140).prop_map(|size| (false, vec![7; size])),
        "[a-z\u{e9}\u{10348}]{60,130}".prop_map(|text| (true, text.into_bytes())),
    ];
    let control = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..8));
    (
        body,
        any::<bool>(),
        prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        prop::collection::vec(control, 0..3),
        any::<[u8; 4]>(),
    )
        .prop_map(|((text, body), deflated, cuts, controls, mask)| Sent {
            text,
            body,
            deflated,
            cuts,
            controls,
            mask,
        })
}

/// Writes the message's frames; returns what the receiver must see.
fn write(sent: &Sent, config: &Config, out: &mut Vec<u8>) -> Vec<Seen> {
    let mask = (config.role == Role::Server).then_some(sent.mask);
    let deflated = sent.deflated && config.deflate;
    let mut payload = sent.body.clone();
    if deflated {
        payload.clear();
        Compressor::new().compress(&sent.body, 6, &mut payload);
    }
    let mut cuts: Vec<usize> = sent
        .cuts
        .iter()
        .map(|i| i.index(payload.len() + 1))
        .collect();
    cuts.sort_unstable();
    cuts.push(payload.len());
    let mut events = Vec::new();
    let mut controls = sent.controls.iter();
    let mut at = 0;
    for (number, &cut) in cuts.iter().enumerate() {
        let opcode = match (number, sent.text) {
            (0, true) => Opcode::Text,
            (0, false) => Opcode::Binary,
            _ => Opcode::Continuation,
        };
        let fin = number + 1 == cuts.len();
        put(
            out,
            opcode,
            fin,
            deflated && number == 0,
            &payload[at..cut],
            mask,
        );
        at = cut;
        if !fin && let Some((ping, bytes)) = controls.next() {
            let opcode = if *ping { Opcode::Ping } else { Opcode::Pong };
            put(out, opcode, true, false, bytes, mask);
            events.push(match ping {
                true => Seen::Ping(bytes.clone()),
                false => Seen::Pong(bytes.clone()),
            });
        }
    }
    events.push(match sent.text {
        true => Seen::Text(sent.body.clone()),
        false => Seen::Binary(sent.body.clone()),
    });
    events
}

fn put(
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

fn any_config() -> impl Strategy<Value = Config> {
    (
        prop_oneof![Just(Role::Server), Just(Role::Client)],
        any::<bool>(),
    )
        .prop_map(|(role, deflate)| config(role, deflate))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_split_gives_what_was_sent(
        messages in prop::collection::vec(sent(), 1..4),
        config in any_config(),
    ) {
        let mut stream = Vec::new();
        let expected: Vec<Seen> =
            messages.iter().flat_map(|sent| write(sent, &config, &mut stream)).collect();
        prop_assert_eq!(assert_same_for_every_split(&stream, &config), expected);
        prop_assert!(!run(&stream, &[], &config).1, "no state is left behind");
        prop_assert!(!run(&stream, &[stream.len() / 2], &config).1, "no state is left behind");
    }

    #[test]
    fn a_damaged_stream_breaks_alike_for_every_split(
        messages in prop::collection::vec(sent(), 1..3),
        config in any_config(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut stream = Vec::new();
        for sent in &messages {
            write(sent, &config, &mut stream);
        }
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        assert_same_for_every_split(&stream, &config);
    }

    #[test]
    fn arbitrary_bytes_break_alike_for_every_split(
        stream in prop::collection::vec(any::<u8>(), 0..60),
        config in any_config(),
    ) {
        assert_same_for_every_split(&stream, &config);
    }
}

fn server(bytes: &[u8]) -> Vec<Seen> {
    assert_same_for_every_split(bytes, &config(Role::Server, false))
}

fn masked(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked(&mut out, opcode, payload, MASK);
    out
}

fn fragment(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, opcode, fin, false, payload, Some(MASK));
    out
}

#[test]
fn the_examples_of_the_rfc_are_read() {
    // RFC 6455 §5.7
    let client = config(Role::Client, false);
    let hello = |bytes: &[u8]| assert_same_for_every_split(bytes, &client);
    let text = vec![Seen::Text(b"Hello".to_vec())];
    assert_eq!(hello(b"\x81\x05Hello"), text);
    assert_eq!(hello(b"\x01\x03Hel\x80\x02lo"), text);
    assert_eq!(hello(b"\x89\x05Hello"), [Seen::Ping(b"Hello".to_vec())]);
    assert_eq!(
        server(b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        text
    );
    assert_eq!(
        server(b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        [Seen::Pong(b"Hello".to_vec())]
    );
}

#[test]
fn a_whole_frame_is_a_slice_of_the_input_and_leaves_no_state() {
    for payload in [&b""[..], b"x", &[b'y'; 126], &[b'z'; 3000]] {
        let mut input = masked(Opcode::Text, payload);
        input.extend(masked(Opcode::Ping, b"p"));
        let range = input.as_ptr_range();
        let mut partial = None;
        let step = next(&mut partial, &mut input, &config(Role::Server, false)).unwrap();
        let Some(Event::Text(text)) = step.event else {
            panic!("{step:?}")
        };
        assert_eq!(text, payload);
        assert!(range.start <= text.as_ptr() && text.as_ptr() <= range.end);
        assert!(partial.is_none());
    }
}

#[test]
fn memory_grows_with_what_arrived_not_with_what_was_announced() {
    let config = Config {
        role: Role::Client,
        message_bytes: 1 << 30,
        deflate: false,
    };
    let mut out = Vec::new();
    write_header(&mut out, Opcode::Binary, true, false, 1 << 29, None);
    out.extend([1; 100]);
    let mut partial = None;
    assert_eq!(next(&mut partial, &mut out, &config).unwrap().event, None);
    let held = partial.as_ref().unwrap().buffered_bytes();
    assert!((100..1000).contains(&held), "{held}");
    for _ in 0..1000 {
        next(&mut partial, &mut [2; 100], &config).unwrap();
    }
    let held = partial.as_ref().unwrap().buffered_bytes();
    assert!((100_100..300_000).contains(&held), "{held}");
}

#[test]
fn state_is_freed_by_the_call_after_a_message() {
    let config = config(Role::Server, false);
    let mut stream = masked(Opcode::Binary, b"abc");
    let (first, second) = stream.split_at_mut(8);
    let mut partial = None;
    assert_eq!(next(&mut partial, first, &config).unwrap().event, None);
    assert!(partial.is_some());
    let step = next(&mut partial, second, &config).unwrap();
    assert_eq!(step.event, Some(Event::Binary(b"abc")));
    let step = next(&mut partial, &mut [], &config).unwrap();
    assert_eq!((step.consumed, step.event), (0, None));
    assert!(partial.is_none());
}

#[test]
fn every_violation_has_its_code() {
    use Violation::*;
    let open = fragment(Opcode::Text, false, b"a");
    let after_open = |more: &[u8]| [&open[..], more].concat();
    let close = |payload: &[u8]| masked(Opcode::Close, payload);
    let table: Vec<(Vec<u8>, Violation, u16)> = vec![
        (vec![0xC1], ReservedBits, 1002),
        (vec![0xA1], ReservedBits, 1002),
        (vec![0x91], ReservedBits, 1002),
        (vec![0xC9], ReservedBits, 1002),
        (vec![0x83], ReservedOpcode, 1002),
        (vec![0x87], ReservedOpcode, 1002),
        (vec![0x8B], ReservedOpcode, 1002),
        (vec![0x8F], ReservedOpcode, 1002),
        (vec![0x81, 0x05], Unmasked, 1002),
        (vec![0x89, 0xFE], ControlTooLong, 1002),
        (vec![0x88, 0xFF], ControlTooLong, 1002),
        (vec![0x09], ControlFragmented, 1002),
        (vec![0x08], ControlFragmented, 1002),
        (vec![0x81, 0xFE, 0, 125], LengthNotMinimal, 1002),
        (
            vec![0x81, 0xFF, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF],
            LengthNotMinimal,
            1002,
        ),
        (
            vec![0x81, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0],
            LengthTopBit,
            1002,
        ),
        (vec![0x80], NothingToContinue, 1002),
        (vec![0x00], NothingToContinue, 1002),
        (after_open(&[0x81]), MessageInMessage, 1002),
        (after_open(&[0x02]), MessageInMessage, 1002),
        (after_open(&[0xC0]), ReservedBits, 1002),
        (close(&[3]), CloseTooShort, 1002),
        (close(b"\x03\xE8\xFF"), BadUtf8, 1007),
        (masked(Opcode::Text, b"\xFF"), BadUtf8, 1007),
        (masked(Opcode::Text, b"cut \xE2\x82"), BadUtf8, 1007),
        (vec![0x82, 0xFE, 0x10, 0x01], TooBig, 1009),
        (
            vec![0x82, 0xFF, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
            TooBig,
            1009,
        ),
        (after_open(&[0x80, 0xFE, 0x10, 0x00]), TooBig, 1009),
    ];
    for (stream, violation, code) in table {
        assert_eq!(
            server(&stream).last(),
            Some(&Seen::Broken(violation)),
            "{stream:x?}"
        );
        assert_eq!(violation.code(), code);
        assert!(!violation.reason().is_empty() && violation.reason().len() <= 123);
    }
    let client = config(Role::Client, true);
    let broken = |bytes: &[u8]| assert_same_for_every_split(bytes, &client);
    assert_eq!(broken(&[0x81, 0x80]), [Seen::Broken(Masked)]);
    assert_eq!(broken(&[0xC1, 0x01, 0xFF]), [Seen::Broken(BadDeflate)]);
    assert_eq!(BadDeflate.code(), 1007);
    // RSV1 only on a message's first frame, and never on control frames.
    assert_eq!(broken(&[0xC9]), [Seen::Broken(ReservedBits)]);
    assert_eq!(broken(&[0x41, 0x00, 0xC0]), [Seen::Broken(ReservedBits)]);
    assert_eq!(broken(&[0x01, 0x00, 0xC0]), [Seen::Broken(ReservedBits)]);
}

#[test]
fn a_message_of_exactly_the_limit_passes() {
    let body = vec![0; LIMIT];
    assert_eq!(
        server(&masked(Opcode::Binary, &body)),
        [Seen::Binary(body.clone())]
    );
    let halves = [
        fragment(Opcode::Binary, false, &body[..LIMIT / 2]),
        fragment(Opcode::Continuation, true, &body[LIMIT / 2..]),
    ];
    assert_eq!(server(&halves.concat()), [Seen::Binary(body)]);
}

#[test]
fn close_codes_are_those_that_may_be_sent() {
    let valid = |code: u16| matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    let config = config(Role::Server, false);
    for code in 0..=u16::MAX {
        let frame = masked(Opcode::Close, &code.to_be_bytes());
        let (events, _) = run(&frame, &[], &config);
        let expected = match valid(code) {
            true => Seen::Close(Some(code), Vec::new()),
            false => Seen::Broken(Violation::CloseCode),
        };
        assert_eq!(events, [expected]);
    }
    assert_eq!(
        server(&masked(Opcode::Close, b"")),
        [Seen::Close(None, Vec::new())]
    );
    let mut long = 1000_u16.to_be_bytes().to_vec();
    long.extend([b'r'; 123]);
    let expected = Seen::Close(Some(1000), long[2..].to_vec());
    assert_eq!(server(&masked(Opcode::Close, &long)), [expected]);
}

/// How many bytes of a text frame's payload are taken before it is refused, one byte at a time; the frame announces one
/// byte more than there is, so that only an early check can refuse it.
fn refused_after(text: &[u8]) -> Option<usize> {
    let config = config(Role::Server, false);
    let mut head = Vec::new();
    write_header(
        &mut head,
        Opcode::Text,
        true,
        false,
        text.len() + 1,
        Some([0; 4]),
    );
    let mut partial = None;
    let mut all = Vec::new();
    assert!(feed(&mut partial, &head, &config, &mut all));
    (0..text.len()).find(|&at| !feed(&mut partial, &text[at..=at], &config, &mut all))
}

#[test]
fn bad_utf8_is_refused_at_the_first_byte_that_can_not_be_right() {
    // As in the Autobahn suite's cases 6.3 to 6.21.
    let prefix = "\u{3ba}\u{1f79}\u{3c3}\u{3bc}\u{3b5}".as_bytes();
    let table: &[(&[u8], Option<usize>)] = &[
        (b"\xF4\x90\x80\x80", Some(1)),
        (b"\xF5", Some(0)),
        (b"\xED\xA0\x80", Some(1)),
        (b"\xED\xBF\xBF", Some(1)),
        (b"\xC0\xAF", Some(0)),
        (b"\xC1\xBF", Some(0)),
        (b"\xE0\x80\xAF", Some(1)),
        (b"\xE0\x9F\xBF", Some(1)),
        (b"\xF0\x80\x80\xAF", Some(1)),
        (b"\xF0\x8F\xBF\xBF", Some(1)),
        (b"\xF8\x88\x80\x80\x80", Some(0)),
        (b"\xFC", Some(0)),
        (b"\xFE", Some(0)),
        (b"\xFF", Some(0)),
        (b"\x80", Some(0)),
        (b"\xBF", Some(0)),
        (b"\xE2\x82a", Some(2)),
        (b"\xF0\x90\x8D\xC3", Some(3)),
        (b"\xF4\x8F\xBF\xBF", None),
        (b"\xED\x9F\xBF", None),
        (b"\xEE\x80\x80", None),
        (b"\xEF\xBF\xBF", None),
        (b"\xEF\xBB\xBF", None),
        (b"\x00\x7F", None),
    ];
    for (bytes, refused) in table {
        assert_eq!(refused_after(bytes), *refused, "{bytes:x?}");
        let after = [prefix, bytes].concat();
        assert_eq!(
            refused_after(&after),
            refused.map(|at| at + prefix.len()),
            "{after:x?}"
        );
    }
}

#[test]
fn bad_utf8_is_refused_across_fragments_before_the_message_ends() {
    let stream = [
        fragment(Opcode::Text, false, b"\xF4"),
        fragment(Opcode::Ping, true, b""),
        fragment(Opcode::Continuation, false, b"\x90"),
    ];
    let expected = [Seen::Ping(Vec::new()), Seen::Broken(Violation::BadUtf8)];
    assert_eq!(server(&stream.concat()), expected);
    // Binary messages are not looked at.
    let binary = masked(Opcode::Binary, b"\xFF\xFE");
    assert_eq!(server(&binary), [Seen::Binary(b"\xFF\xFE".to_vec())]);
}

#[test]
fn compressed_messages_are_limited_and_checked_as_inflated() {
    let config = config(Role::Client, true);
    let compressed = |body: &[u8], opcode| {
        let (mut payload, mut out) = (Vec::new(), Vec::new());
        Compressor::new().compress(body, 9, &mut payload);
        put(&mut out, opcode, true, true, &payload, None);
        assert_same_for_every_split(&out, &config)
    };
    let fits = vec![b'a'; LIMIT];
    assert_eq!(compressed(&fits, Opcode::Text), [Seen::Text(fits)]);
    let bomb = vec![b'a'; LIMIT + 1];
    assert_eq!(
        compressed(&bomb, Opcode::Text),
        [Seen::Broken(Violation::TooBig)]
    );
    assert_eq!(
        compressed(b"\xFF", Opcode::Text),
        [Seen::Broken(Violation::BadUtf8)]
    );
    assert_eq!(
        compressed(b"\xFF", Opcode::Binary),
        [Seen::Binary(vec![0xFF])]
    );
    // Random bytes at the limit grow by packing and still pass, whole and in fragments.
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
    put(&mut fragments, Opcode::Binary, false, true, head, None);
    put(
        &mut fragments,
        Opcode::Continuation,
        true,
        false,
        tail,
        None,
    );
    let expected = [Seen::Binary(noise.clone())];
    assert_eq!(compressed(&noise, Opcode::Binary), expected);
    assert_eq!(assert_same_for_every_split(&fragments, &config), expected);
    // Uncompressed messages may still come on the same connection.
    let mut plain = Vec::new();
    write_frame(&mut plain, Opcode::Text, b"plain");
    assert_eq!(
        assert_same_for_every_split(&plain, &config),
        [Seen::Text(b"plain".to_vec())]
    );
}
