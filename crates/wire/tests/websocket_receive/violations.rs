//! Tests each rule that a stream can violate, with its close code, and how early invalid text is refused.

use crore_wire::websocket::frame::{Opcode, write_header};
use crore_wire::websocket::receive::{Role, Violation};

use crate::{
    OwnedEvent, assert_same_for_every_split, config, feed, fragment, masked, receive_as_server, run,
};

#[test]
fn every_violation_has_its_code() {
    use Violation::*;
    let open = fragment(Opcode::Text, false, b"a");
    let after_open = |bytes: &[u8]| [&open[..], bytes].concat();
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
            receive_as_server(&stream).last(),
            Some(&OwnedEvent::Broken(violation)),
            "{stream:x?}"
        );
        assert_eq!(violation.code(), code);
        assert!(!violation.reason().is_empty() && violation.reason().len() <= 123);
    }
    let client = config(Role::Client, true);
    let broken = |bytes: &[u8]| assert_same_for_every_split(bytes, &client);
    assert_eq!(broken(&[0x81, 0x80]), [OwnedEvent::Broken(Masked)]);
    assert_eq!(
        broken(&[0xC1, 0x01, 0xFF]),
        [OwnedEvent::Broken(BadDeflate)]
    );
    assert_eq!(BadDeflate.code(), 1007);
    // RSV1 is allowed only on a message's first frame, and never on control frames.
    assert_eq!(broken(&[0xC9]), [OwnedEvent::Broken(ReservedBits)]);
    assert_eq!(
        broken(&[0x41, 0x00, 0xC0]),
        [OwnedEvent::Broken(ReservedBits)]
    );
    assert_eq!(
        broken(&[0x01, 0x00, 0xC0]),
        [OwnedEvent::Broken(ReservedBits)]
    );
}

#[test]
fn close_codes_are_those_that_may_be_sent() {
    let valid = |code: u16| matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    let config = config(Role::Server, false);
    for code in 0..=u16::MAX {
        let frame = masked(Opcode::Close, &code.to_be_bytes());
        let (events, _) = run(&frame, &[], &config);
        let expected = match valid(code) {
            true => OwnedEvent::Close(Some(code), Vec::new()),
            false => OwnedEvent::Broken(Violation::CloseCode),
        };
        assert_eq!(events, [expected]);
    }
    assert_eq!(
        receive_as_server(&masked(Opcode::Close, b"")),
        [OwnedEvent::Close(None, Vec::new())]
    );
    let mut long = 1000_u16.to_be_bytes().to_vec();
    long.extend([b'r'; 123]);
    let expected = OwnedEvent::Close(Some(1000), long[2..].to_vec());
    assert_eq!(receive_as_server(&masked(Opcode::Close, &long)), [expected]);
}

/// The number of payload bytes of a text frame that are accepted before the refusal, fed one at a time. The frame announces one byte more
/// than there is, so only an early check can refuse it.
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
    let mut events = Vec::new();
    assert!(feed(&mut partial, &head, &config, &mut events));
    (0..text.len()).find(|&at| !feed(&mut partial, &text[at..=at], &config, &mut events))
}

#[test]
fn invalid_utf8_is_refused_at_its_first_byte() {
    // The texts of cases 6.3 to 6.21 of the Autobahn test suite.
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
        let stream = [prefix, bytes].concat();
        assert_eq!(
            refused_after(&stream),
            refused.map(|at| at + prefix.len()),
            "{stream:x?}"
        );
    }
}

#[test]
fn invalid_utf8_across_fragments_is_refused_before_the_message_ends() {
    let stream = [
        fragment(Opcode::Text, false, b"\xF4"),
        fragment(Opcode::Ping, true, b""),
        fragment(Opcode::Continuation, false, b"\x90"),
    ];
    let expected = [
        OwnedEvent::Ping(Vec::new()),
        OwnedEvent::Broken(Violation::BadUtf8),
    ];
    assert_eq!(receive_as_server(&stream.concat()), expected);
    // The content of binary messages is not checked.
    let binary = masked(Opcode::Binary, b"\xFF\xFE");
    assert_eq!(
        receive_as_server(&binary),
        [OwnedEvent::Binary(b"\xFF\xFE".to_vec())]
    );
}
