//! Tests streams of random messages, valid and damaged, cut at every place.

use crore_wire::deflate::Compressor;
use crore_wire::websocket::frame::Opcode;
use crore_wire::websocket::receive::{Config, Role};
use proptest::prelude::*;

use crate::{OwnedEvent, assert_same_for_every_split, config, run, write_frame_with_bits};

/// A message to send: where it is cut into fragments, and the control frames between them.
#[derive(Clone, Debug)]
struct SentMessage {
    is_text: bool,
    body: Vec<u8>,
    is_deflated: bool,
    cuts: Vec<prop::sample::Index>,
    /// Each is a ping if true, otherwise a pong; and its payload.
    controls: Vec<(bool, Vec<u8>)>,
    mask: [u8; 4],
}

fn any_message() -> impl Strategy<Value = SentMessage> {
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
        .prop_map(
            |((is_text, body), is_deflated, cuts, controls, mask)| SentMessage {
                is_text,
                body,
                is_deflated,
                cuts,
                controls,
                mask,
            },
        )
}

/// Writes the frames of a message. Returns the events that the receiver must report.
fn write_message(message: &SentMessage, config: &Config, out: &mut Vec<u8>) -> Vec<OwnedEvent> {
    let mask = (config.role == Role::Server).then_some(message.mask);
    let is_deflated = message.is_deflated && config.deflate;
    let mut payload = message.body.clone();
    if is_deflated {
        payload.clear();
        Compressor::new().compress(&message.body, 6, &mut payload);
    }
    let mut cuts: Vec<usize> = message
        .cuts
        .iter()
        .map(|i| i.index(payload.len() + 1))
        .collect();
    cuts.sort_unstable();
    cuts.push(payload.len());
    let mut events = Vec::new();
    let mut controls = message.controls.iter();
    let mut offset = 0;
    for (number, &cut) in cuts.iter().enumerate() {
        let opcode = match (number, message.is_text) {
            (0, true) => Opcode::Text,
            (0, false) => Opcode::Binary,
            _ => Opcode::Continuation,
        };
        let fin = number + 1 == cuts.len();
        write_frame_with_bits(
            out,
            opcode,
            fin,
            is_deflated && number == 0,
            &payload[offset..cut],
            mask,
        );
        offset = cut;
        if !fin && let Some((ping, bytes)) = controls.next() {
            let opcode = if *ping { Opcode::Ping } else { Opcode::Pong };
            write_frame_with_bits(out, opcode, true, false, bytes, mask);
            events.push(match ping {
                true => OwnedEvent::Ping(bytes.clone()),
                false => OwnedEvent::Pong(bytes.clone()),
            });
        }
    }
    events.push(match message.is_text {
        true => OwnedEvent::Text(message.body.clone()),
        false => OwnedEvent::Binary(message.body.clone()),
    });
    events
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
        messages in prop::collection::vec(any_message(), 1..4),
        config in any_config(),
    ) {
        let mut stream = Vec::new();
        let expected: Vec<OwnedEvent> =
            messages.iter().flat_map(|message| write_message(message, &config, &mut stream)).collect();
        prop_assert_eq!(assert_same_for_every_split(&stream, &config), expected);
        prop_assert!(!run(&stream, &[], &config).1, "no state is left behind");
        prop_assert!(!run(&stream, &[stream.len() / 2], &config).1, "no state is left behind");
    }

    #[test]
    fn a_damaged_stream_breaks_alike_for_every_split(
        messages in prop::collection::vec(any_message(), 1..3),
        config in any_config(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            write_message(message, &config, &mut stream);
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
