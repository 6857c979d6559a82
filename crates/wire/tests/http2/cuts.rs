//! Properties: however the bytes are cut, the events are the same; any bytes and damaged ones survive.

use crore_wire::http2::frame::{ACK, END_HEADERS, END_STREAM, Kind, PADDED};
use crore_wire::http2::{ErrorCode, Limits};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::peer::{OwnedEvent, Peer, block, frame, get, headers, post, preface, request, settings};

/// A conversation with every type of frame.
fn conversation() -> Vec<u8> {
    let mut fields = post();
    fields.extend([
        ("content-length", "6"),
        ("cookie", "a=b"),
        ("cookie", "c=d"),
    ]);
    let long = block(&fields);
    [
        preface(),
        settings(&[(4, 100_000), (5, 20_000), (0xaaaa, 1)]),
        request(1, true, &get()),
        frame(Kind::Settings, ACK, 0, &[]),
        frame(Kind::Headers, 0, 3, &long[..7]),
        frame(Kind::Continuation, 0, 3, &long[7..30]),
        frame(Kind::Continuation, END_HEADERS, 3, &long[30..]),
        frame(Kind::Ping, 0, 0, b"12345678"),
        frame(Kind::Data, PADDED, 3, b"\x03abc\0\0\0"),
        frame(Kind::Priority, 0, 7, &[0, 0, 0, 3, 1]),
        frame(Kind::Data, 0, 3, b""),
        frame(Kind::Data, PADDED | END_STREAM, 3, b"\x01def\0"),
        frame(Kind::WindowUpdate, 0, 0, &[0, 0, 1, 0]),
        [&[0, 0, 5, 0x77, 1, 0, 0, 0, 3][..], b"other"].concat(),
        request(5, false, &post()),
        headers(5, true, &block(&[("checksum", "x")])),
        request(7, true, &[]),
        request(9, false, &post()),
        frame(Kind::ResetStream, 0, 9, &[0, 0, 0, 8]),
        frame(Kind::GoAway, 0, 0, b"\0\0\0\0\0\0\0\0bye"),
    ]
    .concat()
}

/// The events and the bytes written, when the input comes in pieces of these lengths.
fn run(bytes: &[u8], mut pieces: impl Iterator<Item = usize>) -> (Vec<OwnedEvent>, Vec<u8>) {
    let mut peer = Peer::before_preface(Limits::default());
    let mut events: Vec<OwnedEvent> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() && !matches!(events.last(), Some(OwnedEvent::Ended(_))) {
        let len = pieces.next().expect("endless").clamp(1, rest.len());
        let (piece, remaining) = rest.split_at(len);
        rest = remaining;
        for new in peer.feed(piece) {
            join(&mut events, new);
        }
    }
    (events, peer.out)
}

/// Adds an event; the pieces of a body are joined.
fn join(events: &mut Vec<OwnedEvent>, new: OwnedEvent) {
    match (events.last_mut(), new) {
        (
            Some(OwnedEvent::Data {
                stream,
                data,
                ends_stream,
            }),
            OwnedEvent::Data {
                stream: of,
                data: more,
                ends_stream: end,
            },
        ) if *stream == of && !*ends_stream => {
            data.extend(more);
            *ends_stream = end;
        }
        (_, new) => events.push(new),
    }
}

#[test]
fn a_conversation_may_be_cut_at_every_byte() {
    let bytes = conversation();
    let uncut = run(&bytes, std::iter::repeat(usize::MAX));
    assert_eq!(uncut.0.len(), 9, "{:#?}", uncut.0);
    assert_eq!(run(&bytes, std::iter::repeat(1)), uncut);
    for cut in 1..bytes.len() {
        let events = run(
            &bytes,
            std::iter::once(cut).chain(std::iter::repeat(usize::MAX)),
        );
        assert_eq!(events, uncut, "cut at {cut}");
    }
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let kinds = select(vec![
        Kind::Data,
        Kind::Headers,
        Kind::Priority,
        Kind::ResetStream,
        Kind::Settings,
        Kind::PushPromise,
        Kind::Ping,
        Kind::GoAway,
        Kind::WindowUpdate,
        Kind::Continuation,
    ]);
    let raw = (kinds, any::<u8>(), 0_u32..8, vec(any::<u8>(), 0..20));
    let lists = select(vec![get(), post(), vec![(":method", "GET")]]);
    prop_oneof![
        raw.prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload)),
        (0_u32..6, any::<bool>(), lists).prop_map(|(n, ends_stream, fields)| request(
            2 * n + 1,
            ends_stream,
            &fields
        )),
        (0_u32..6, any::<bool>(), vec(any::<u8>(), 0..100)).prop_map(|(n, ends_stream, data)| {
            frame(Kind::Data, u8::from(ends_stream), 2 * n + 1, &data)
        }),
    ]
}

proptest! {
    #[test]
    fn any_frames_may_be_cut_anywhere(
        sent in vec(frames(), 0..12),
        pieces in vec(1_usize..40, 1..20),
    ) {
        let bytes = [preface(), sent.concat()].concat();
        let uncut = run(&bytes, std::iter::repeat(usize::MAX));
        prop_assert_eq!(run(&bytes, pieces.into_iter().cycle()), uncut);
    }

    #[test]
    fn damaged_conversations_survive(
        damage in vec((any::<Index>(), any::<u8>()), 1..6),
        answers in vec(0_u32..10, 0..10),
    ) {
        let mut bytes = conversation();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let uncut = run(&bytes, std::iter::repeat(usize::MAX));
        prop_assert_eq!(run(&bytes, std::iter::repeat(3)), uncut);
        let mut peer = Peer::before_preface(Limits::default());
        peer.feed(&bytes);
        for stream in answers {
            peer.connection.release(stream, 100, &mut peer.out);
            peer.connection.respond(stream, b"HTTP/1.1 200 OK\r\na: b\r\n\r\n", false, &mut peer.out);
            peer.connection.send_data(stream, b"data", stream & 1 == 0, &mut peer.out);
            peer.connection.reset(stream, ErrorCode::Cancel, &mut peer.out);
        }
        peer.take_written_frames();
    }
}
