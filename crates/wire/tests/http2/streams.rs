//! The preface, the states of streams and of the connection, and the frames that belong to none.

use crore_wire::http2::frame::{ACK, END_HEADERS, END_STREAM, Kind, MAX_31, PADDED};
use crore_wire::http2::{Connection, ErrorCode, Limits, NO_SLOT, Violation};

use crate::peer::{
    OwnedEvent, Peer, block, frame, get, headers, post, preface, request, settings, u32_at,
};

fn data(stream: u32, data: &[u8], ends_stream: bool) -> OwnedEvent {
    let data = data.to_vec();
    OwnedEvent::Data {
        stream,
        data,
        ends_stream,
    }
}

fn error_of(bytes: &[u8]) -> (Violation, u32) {
    Peer::new().violation(bytes)
}

#[test]
fn the_server_announces_its_limits() {
    let mut peer = Peer::before_preface(Limits::default());
    let take_written = peer.take_written_frames();
    let settings: Vec<(u16, u32)> = take_written[0]
        .1
        .chunks(6)
        .map(|setting| {
            (
                u16::from_be_bytes([setting[0], setting[1]]),
                u32_at(setting, 2),
            )
        })
        .collect();
    assert_eq!(
        settings,
        [(1, 0), (3, 128), (4, 65_535), (6, 16_384), (8, 1), (9, 1)]
    );
    let (update, increment) = &take_written[1];
    assert_eq!((update.kind, update.stream), (Kind::WindowUpdate as u8, 0));
    assert_eq!(u32_at(increment, 0), 256 * 1024 - 65_535);
    assert_eq!(take_written.len(), 2);
    peer.feed(&preface());
    assert!(!peer.connection.is_acknowledged());
    let (ack, _) = &peer.take_written_frames()[0];
    assert_eq!(
        (ack.kind, ack.flags, ack.len),
        (Kind::Settings as u8, ACK, 0)
    );
}

#[test]
fn a_connection_begins_with_the_preface_and_settings() {
    for begin in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSX",
        b"\0",
    ] {
        let events = Peer::before_preface(Limits::default()).violation(begin);
        assert_eq!(events, (Violation::Preface, 1));
    }
    let preface = &preface()[..24];
    for first in [
        frame(Kind::Settings, ACK, 0, &[]),
        frame(Kind::Ping, 0, 0, &[0; 8]),
        request(1, true, &get()),
        frame(Kind::GoAway, 0, 0, &[0; 8]),
    ] {
        let bytes = [preface, &first].concat();
        let events = Peer::before_preface(Limits::default()).violation(&bytes);
        assert_eq!(events, (Violation::FirstFrame, 1));
    }
}

#[test]
fn a_stream_goes_through_its_states() {
    let mut peer = Peer::new();
    peer.post(1);
    peer.connection.attach(1, 77);
    assert_eq!(peer.connection.slots().collect::<Vec<_>>(), [(1, 77)]);
    assert_eq!(peer.send(Kind::Data, 0, 1, b"ab"), [data(1, b"ab", false)]);
    assert_eq!(
        peer.send(Kind::Data, END_STREAM, 1, b"c"),
        [data(1, b"c", true)]
    );
    assert_eq!(
        peer.violation(&frame(Kind::Data, 0, 1, b"d")),
        (Violation::StreamClosed, 5)
    );
    assert_eq!(peer.connection.streams(), 0);
    // Numbers may be left out; those are closed then.
    peer.get(7);
    assert_eq!(
        peer.violation(&request(5, true, &get())),
        (Violation::StreamReused, 5)
    );
}

#[test]
fn stream_number_is_used_only_once() {
    let mut peer = Peer::new();
    peer.get(1);
    assert_eq!(
        peer.violation(&request(1, true, &get())),
        (Violation::StreamClosed, 5)
    );
    let mut peer = Peer::new();
    peer.get(1);
    assert_eq!(
        peer.send(Kind::ResetStream, 0, 1, &[0, 0, 0, 8]),
        [OwnedEvent::Reset(1, 8)]
    );
    assert_eq!(
        peer.violation(&request(1, true, &get())),
        (Violation::StreamReused, 5)
    );
    assert_eq!(
        error_of(&request(2, true, &get())),
        (Violation::ServerStream, 1)
    );
    assert_eq!(
        error_of(&request(0, true, &get())),
        (Violation::WrongStream, 1)
    );
}

#[test]
fn frames_of_idle_streams_end_the_connection() {
    for bytes in [
        frame(Kind::Data, 0, 1, b"x"),
        frame(Kind::ResetStream, 0, 1, &[0; 4]),
        frame(Kind::WindowUpdate, 0, 1, &[0, 0, 0, 1]),
    ] {
        assert_eq!(error_of(&bytes), (Violation::IdleStream, 1));
    }
}

#[test]
fn frames_belong_to_a_stream_or_to_the_connection() {
    for bytes in [
        frame(Kind::Data, 0, 0, b"x"),
        frame(Kind::ResetStream, 0, 0, &[0; 4]),
        frame(Kind::Priority, 0, 0, &[0; 5]),
        frame(Kind::Continuation, 0, 0, &[]),
        frame(Kind::Settings, 0, 1, &[]),
        frame(Kind::Ping, 0, 1, &[0; 8]),
        frame(Kind::GoAway, 0, 1, &[0; 8]),
    ] {
        assert_eq!(error_of(&bytes), (Violation::WrongStream, 1));
    }
    let push = frame(Kind::PushPromise, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]);
    assert_eq!(error_of(&push), (Violation::PushPromise, 1));
}

#[test]
fn frames_have_the_length_of_their_type() {
    for (kind, flags, stream, len) in [
        (Kind::ResetStream, 0, 1, 3),
        (Kind::ResetStream, 0, 1, 5),
        (Kind::Priority, 0, 1, 4),
        (Kind::WindowUpdate, 0, 0, 3),
        (Kind::Ping, 0, 0, 7),
        (Kind::GoAway, 0, 0, 7),
        (Kind::Settings, 0, 0, 5),
        (Kind::Settings, ACK, 0, 6),
    ] {
        let bytes = frame(kind, flags, stream, &vec![0; len]);
        assert_eq!(
            error_of(&bytes),
            (Violation::FrameLength, 6),
            "{kind:?} {len}"
        );
    }
    // The header alone is enough.
    assert_eq!(
        error_of(&[0, 0x40, 1, 0, 0, 0, 0, 0, 1]),
        (Violation::FrameTooLong, 6)
    );
    for payload in [&[][..], &[1], &[3, 0, 0]] {
        let mut peer = Peer::new();
        peer.post(1);
        let bytes = frame(Kind::Data, PADDED, 1, payload);
        assert_eq!(peer.violation(&bytes), (Violation::Padding, 1));
    }
}

#[test]
fn frames_without_a_meaning_are_ignored() {
    let mut peer = Peer::new();
    peer.get(1);
    for bytes in [
        [&[0, 0, 3, 0xfa, 0xff, 0, 0, 0, 0][..], b"abc"].concat(),
        [&[0, 0, 3, 0x10, 0, 0x80, 0, 0, 9][..], b"u=1"].concat(),
        frame(Kind::Priority, 0, 9, &[0, 0, 0, 11, 3]),
        frame(Kind::Priority, 0, 2, &[0x80, 0, 0, 0, 3]),
        settings(&[(0xf0f0, 7), (1, 0), (3, 0), (6, 1), (9, 1)]),
    ] {
        assert_eq!(peer.feed(&bytes), []);
    }
    let loops = frame(Kind::Priority, 0, 9, &[0, 0, 0, 9, 3]);
    assert_eq!(peer.violation(&loops), (Violation::SelfDependency, 1));
}

#[test]
fn settings_are_checked() {
    for (setting, violation, code) in [
        ((2, 2), Violation::SettingValue, 1),
        ((8, 2), Violation::SettingValue, 1),
        ((5, 16_383), Violation::SettingValue, 1),
        ((5, 1 << 24), Violation::SettingValue, 1),
        ((4, MAX_31 + 1), Violation::InitialWindow, 3),
    ] {
        assert_eq!(
            error_of(&settings(&[setting])),
            (violation, code),
            "{setting:?}"
        );
    }
    let many_settings = settings(&[(0xf0f0, 0); 65]);
    assert_eq!(error_of(&many_settings), (Violation::ManySettings, 11));
    let mut peer = Peer::new();
    assert_eq!(
        peer.feed(&settings(&[(2, 0), (5, (1 << 24) - 1), (4, MAX_31)])),
        []
    );
    assert_eq!(peer.take_written_frames().len(), 1);
}

#[test]
fn a_ping_is_answered() {
    let mut peer = Peer::new();
    assert_eq!(peer.send(Kind::Ping, 0, 0, b"12345678"), []);
    let (header, payload) = &peer.take_written_frames()[0];
    assert_eq!(
        (header.kind, header.flags, &payload[..]),
        (6, ACK, &b"12345678"[..])
    );
    assert_eq!(peer.send(Kind::Ping, ACK, 0, b"abcdefgh"), []);
    assert_eq!(peer.take_written_frames(), []);
}

#[test]
fn the_server_resets_a_stream() {
    let mut peer = Peer::new();
    peer.post(1);
    peer.connection.reset(1, ErrorCode::Cancel, &mut peer.out);
    peer.connection.reset(1, ErrorCode::Cancel, &mut peer.out);
    let take_written = peer.take_written_frames();
    assert_eq!(
        (
            take_written.len(),
            take_written[0].0.kind,
            u32_at(&take_written[0].1, 0)
        ),
        (1, 3, 8)
    );
    // What was on its way is ignored.
    for bytes in [
        frame(Kind::Data, 0, 1, b"abc"),
        frame(Kind::WindowUpdate, 0, 1, &[0, 0, 0, 1]),
        headers(1, true, &[0x40, 1, b'a', 1, b'b']),
        frame(Kind::ResetStream, 0, 1, &[0; 4]),
    ] {
        assert_eq!(peer.feed(&bytes), []);
        assert_eq!(peer.take_written_frames(), []);
    }
    // But its fields are in the table.
    let events = peer.feed(&headers(3, true, &[&block(&get())[..], &[0xbe]].concat()));
    assert!(
        matches!(events[..], [OwnedEvent::Request { .. }]),
        "{events:?}"
    );
}

#[test]
fn only_streams_that_the_server_ended_are_excused() {
    let mut peer = Peer::new();
    peer.get(1);
    peer.post(3);
    peer.connection.reset(3, ErrorCode::Cancel, &mut peer.out);
    let late_data = frame(Kind::Data, 0, 1, b"abc");
    assert_eq!(peer.violation(&late_data), (Violation::StreamClosed, 5));
}

#[test]
fn the_rest_of_a_frame_is_skipped_after_a_reset() {
    let mut peer = Peer::new();
    peer.post(1);
    let frame = frame(Kind::Data, 0, 1, b"abcdef");
    assert_eq!(peer.feed(&frame[..12]), [data(1, b"abc", false)]);
    peer.connection.reset(1, ErrorCode::NoError, &mut peer.out);
    assert_eq!(peer.feed(&frame[12..]), []);
    peer.get(3);
}

#[test]
fn too_many_streams_are_refused_and_may_be_tried_again() {
    let limits = Limits {
        streams: 2,
        ..Limits::default()
    };
    let mut peer = Peer::with_limits(limits);
    peer.get(1);
    peer.get(3);
    // The block is decoded nevertheless: it inserts a field into the table.
    let insert = [&block(&get())[..], &[0x40, 1, b'a', 1, b'b']].concat();
    assert_eq!(
        peer.violation(&headers(5, false, &insert)),
        (Violation::Streams, 7)
    );
    assert_eq!(peer.send(Kind::Data, 0, 5, b"on its way"), []);
    peer.send(Kind::ResetStream, 0, 1, &[0; 4]);
    let events = peer.feed(&headers(7, true, &[&block(&get())[..], &[0xbe]].concat()));
    let [OwnedEvent::Request { head, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(head.contains("a: b\r\n"), "{head}");
    // The client was told of two, so a lower limit is for other connections.
    peer.send(Kind::ResetStream, 0, 3, &[0; 4]);
    peer.limits.streams = 1;
    peer.get(9);
}

#[test]
fn no_stream_is_opened_after_goaway() {
    let mut peer = Peer::new();
    peer.post(1);
    peer.connection.drain(&mut peer.out);
    assert_eq!(u32_at(&peer.take_written_frames()[0].1, 0), MAX_31);
    peer.post(3);
    peer.connection
        .go_away(ErrorCode::NoError, "drain", &mut peer.out);
    let (_, payload) = &peer.take_written_frames()[0];
    assert_eq!(
        (u32_at(payload, 0), u32_at(payload, 4), &payload[8..]),
        (3, 0, &b"drain"[..])
    );
    // Later streams do nothing; their field blocks and windows count.
    let insert = [&block(&post())[..], &[0x40, 1, b'a', 1, b'b']].concat();
    assert_eq!(peer.feed(&headers(5, false, &insert)), []);
    assert_eq!(peer.send(Kind::Data, 0, 5, &[0; 100]), []);
    assert_eq!(peer.send(Kind::ResetStream, 0, 5, &[0; 4]), []);
    assert_eq!(peer.connection.streams(), 2);
    assert_eq!(peer.take_written_frames(), []);
    // Earlier ones go on.
    assert_eq!(
        peer.send(Kind::Data, END_STREAM, 1, b"x"),
        [data(1, b"x", true)]
    );
    let end = headers(3, true, &[0xbe]);
    assert_eq!(peer.feed(&end), [data(3, b"", true)]);
}

#[test]
fn goaway_of_the_client_is_handled() {
    let mut peer = Peer::new();
    let payload = [&[0, 0, 0, 0, 0, 0, 0, 2][..], &[b'x'; 1000]].concat();
    assert_eq!(
        peer.send(Kind::GoAway, 0, 0, &payload),
        [OwnedEvent::GoAway(2)]
    );
    peer.get(1);
}

#[test]
fn body_must_have_its_announced_length() {
    let send = |length: &'static str, frames: &[(&[u8], bool)]| {
        let mut peer = Peer::new();
        let mut fields = post();
        fields.push(("content-length", length));
        let mut events = peer.feed(&request(1, false, &fields));
        for (data, ends_stream) in frames {
            events = peer.send(Kind::Data, u8::from(*ends_stream), 1, data);
        }
        events
    };
    let refused = [OwnedEvent::Refused(1, Violation::BodyLength)];
    assert_eq!(
        send("3", &[(b"ab", false), (b"c", true)]),
        [data(1, b"c", true)]
    );
    assert_eq!(
        send("3", &[(b"abc", false), (b"", true)]),
        [data(1, b"", true)]
    );
    assert_eq!(send("3", &[(b"abcd", false)]), refused);
    assert_eq!(send("3", &[(b"ab", true)]), refused);
    assert_eq!(send("3", &[(b"ab", false), (b"", true)]), refused);
    assert_eq!(send("0", &[(b"a", false)]), refused);
    let mut peer = Peer::new();
    let mut fields = post();
    fields.push(("content-length", "3"));
    peer.feed(&request(1, false, &fields));
    peer.send(Kind::Data, 0, 1, b"ab");
    assert_eq!(peer.feed(&headers(1, true, &[])), refused);
    // What is on its way after a refusal is ignored.
    fields.truncate(4);
    fields.push(("content-length", "3"));
    peer.feed(&request(3, false, &fields));
    let refused = [OwnedEvent::Refused(3, Violation::BodyLength)];
    assert_eq!(peer.send(Kind::Data, 0, 3, b"abcd"), refused);
    assert_eq!(peer.send(Kind::Data, 0, 3, b"e"), []);
}

#[test]
fn an_idle_connection_and_an_idle_stream_are_small() {
    // The table of streams has a row for each stream; the server's own row is elsewhere.
    let mut peer = Peer::new();
    assert!(
        size_of::<Connection>() <= 160,
        "{}",
        size_of::<Connection>()
    );
    assert_eq!(peer.connection.heap_bytes(), 0);
    for n in 0..100 {
        peer.get(2 * n + 1);
    }
    let by_stream = peer.connection.heap_bytes() as f64 / 100.0;
    assert!(by_stream <= 32.0, "{by_stream}");
    for n in 0..100 {
        peer.send(Kind::ResetStream, 0, 2 * n + 1, &[0; 4]);
    }
    assert!(peer.connection.heap_bytes() <= 20 * 32);
}

#[test]
fn every_violation_has_a_name_and_a_code() {
    for violation in [
        Violation::Preface,
        Violation::ResetFlood,
        Violation::ContentLength,
    ] {
        assert!(
            violation
                .name()
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_')
        );
    }
    assert_eq!(Violation::ResetFlood.name(), "reset_flood");
    assert_eq!(NO_SLOT, u32::MAX);
}
