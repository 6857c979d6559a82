//! Flow control in both directions.

use crore_wire::http2::frame::{END_STREAM, Header, Kind, MAX_31, PADDED};
use crore_wire::http2::{ErrorCode, Limits, Violation};

use crate::peer::{OwnedEvent, Peer, frame, request, settings, u32_at};

/// The increments of the window updates among the frames that were written, by stream.
fn updates(peer: &mut Peer) -> Vec<(u32, u32)> {
    let take_written = peer.take_written_frames().into_iter();
    let updates = take_written.filter(|(header, _)| header.kind == Kind::WindowUpdate as u8);
    updates
        .map(|(header, payload)| (header.stream, u32_at(&payload, 0)))
        .collect()
}

fn update(stream: u32, increment: u32) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &increment.to_be_bytes())
}

/// A connection with one stream whose answer has begun.
fn answering() -> Peer {
    let mut peer = Peer::new();
    peer.get(1);
    let head = b"HTTP/1.1 200 OK\r\n\r\n";
    let len = peer.connection.respond(1, head, false, &mut peer.out);
    assert_eq!(len, Some(head.len()));
    peer.out.clear();
    peer
}

/// Sends a body, and returns how much was taken and the frames.
fn send(peer: &mut Peer, stream: u32, len: usize, ends_stream: bool) -> (usize, Vec<Header>) {
    let body = vec![b'x'; len];
    let accepted = peer
        .connection
        .send_data(stream, &body, ends_stream, &mut peer.out);
    let frames = peer
        .take_written_frames()
        .into_iter()
        .map(|(header, _)| header)
        .collect();
    (accepted, frames)
}

#[test]
fn a_body_is_cut_by_frames_and_windows() {
    let mut peer = answering();
    let (accepted, frames) = send(&mut peer, 1, 70_000, true);
    assert_eq!(accepted, 65_535);
    let lens: Vec<u32> = frames.iter().map(|header| header.len).collect();
    assert_eq!(lens, [16_384, 16_384, 16_384, 16_383]);
    assert!(frames.iter().all(|header| !header.has(END_STREAM)));
    assert_eq!(send(&mut peer, 1, 1, true), (0, vec![]));
    // Each window alone is not enough.
    assert_eq!(peer.feed(&update(1, 5_000)), [OwnedEvent::Writable(1)]);
    assert_eq!(peer.connection.capacity(1), 0);
    assert_eq!(peer.feed(&update(0, 4_465)), [OwnedEvent::Writable(0)]);
    assert_eq!(peer.connection.capacity(1), 4_465);
    assert_eq!(peer.feed(&update(0, 1)), []);
    let (accepted, frames) = send(&mut peer, 1, 4_465, true);
    assert_eq!((accepted, frames.len()), (4_465, 1));
    assert!(frames[0].has(END_STREAM));
    assert_eq!(peer.connection.streams(), 0);
    assert_eq!(send(&mut peer, 1, 1, true), (0, vec![]));
}

#[test]
fn end_of_a_body_needs_no_window() {
    let mut peer = answering();
    send(&mut peer, 1, 65_535, false);
    let (accepted, frames) = send(&mut peer, 1, 0, true);
    assert_eq!((accepted, frames.len(), frames[0].len), (0, 1, 0));
    assert!(frames[0].has(END_STREAM));
}

#[test]
fn a_lowered_initial_window_can_be_negative() {
    let mut peer = answering();
    send(&mut peer, 1, 60_000, false);
    assert_eq!(peer.feed(&settings(&[(4, 10)])), []);
    assert_eq!(peer.connection.capacity(1), 0);
    // -59,990
    assert_eq!(peer.feed(&update(1, 59_990)), []);
    assert_eq!(peer.connection.capacity(1), 0);
    assert_eq!(peer.feed(&update(1, 1)), [OwnedEvent::Writable(1)]);
    assert_eq!(peer.connection.capacity(1), 1);
    // Raised again, it opens by the difference.
    send(&mut peer, 1, 1, false);
    assert_eq!(peer.feed(&settings(&[(4, 30)])), [OwnedEvent::Writable(0)]);
    assert_eq!(peer.connection.capacity(1), 20);
    peer.get(3);
    assert_eq!(peer.connection.capacity(3), 30);
    // Nobody waited.
    assert_eq!(peer.feed(&settings(&[(4, 40)])), []);
}

#[test]
fn windows_do_not_overflow() {
    let mut peer = answering();
    assert_eq!(peer.feed(&update(0, MAX_31 - 65_535)), []);
    assert_eq!(
        peer.violation(&update(0, 1)),
        (Violation::WindowOverflow, 3)
    );
    let mut peer = answering();
    assert_eq!(peer.feed(&update(1, MAX_31 - 65_535)), []);
    assert_eq!(
        peer.violation(&update(1, 1)),
        (Violation::StreamWindowOverflow, 3)
    );
    let mut peer = answering();
    peer.feed(&update(1, MAX_31 - 65_535));
    assert_eq!(
        peer.violation(&settings(&[(4, 65_536)])),
        (Violation::WindowOverflow, 3)
    );
    let mut peer = answering();
    assert_eq!(peer.violation(&update(0, 0)), (Violation::EmptyUpdate, 1));
    let mut peer = answering();
    assert_eq!(
        peer.violation(&update(1, 0)),
        (Violation::StreamEmptyUpdate, 1)
    );
    // The extremes, from one to the other and back.
    let mut peer = answering();
    peer.feed(&settings(&[(4, MAX_31)]));
    peer.feed(&update(0, MAX_31 - 65_535));
    assert_eq!(send(&mut peer, 1, 1_000_000, false).0, 1_000_000);
    peer.feed(&settings(&[(4, 0)]));
    assert_eq!(
        peer.feed(&settings(&[(4, MAX_31)])),
        [OwnedEvent::Writable(0)]
    );
    assert_eq!(peer.connection.capacity(1), MAX_31 as usize - 1_000_000);
}

#[test]
fn a_client_must_not_exceed_a_window() {
    let limits = Limits {
        stream_window: 70_000,
        connection_window: 140_000,
        ..Limits::default()
    };
    let mut peer = Peer::with_limits(limits);
    for stream in [1, 3, 5] {
        peer.post(stream);
    }
    let full = |peer: &mut Peer, stream| {
        for len in [16_384, 16_384, 16_384, 16_384, 4_464] {
            peer.send(Kind::Data, 0, stream, &vec![0; len]);
        }
    };
    full(&mut peer, 1);
    assert_eq!(
        peer.violation(&frame(Kind::Data, 0, 1, b"x")),
        (Violation::StreamWindowExceeded, 3)
    );
    // The stream has gone, and what it held is given back.
    full(&mut peer, 3);
    full(&mut peer, 5);
    peer.post(7);
    assert_eq!(
        peer.violation(&frame(Kind::Data, 0, 7, b"x")),
        (Violation::WindowExceeded, 3)
    );
}

#[test]
fn window_is_returned_when_the_server_has_read_the_data() {
    let mut peer = Peer::new();
    peer.post(1);
    peer.send(Kind::Data, 0, 1, &[0; 16_384]);
    peer.send(Kind::Data, 0, 1, &[0; 16_384]);
    assert_eq!(updates(&mut peer), []);
    peer.connection.release(1, 16_384, &mut peer.out);
    assert_eq!(updates(&mut peer), []);
    peer.connection.release(1, 16_384, &mut peer.out);
    assert_eq!(updates(&mut peer), [(1, 32_768)]);
    // A request that has ended needs no room.
    peer.post(3);
    peer.send(Kind::Data, 0, 3, &[0; 16_384]);
    peer.send(Kind::Data, 0, 3, &[0; 16_384]);
    peer.send(Kind::Data, END_STREAM, 3, &[0; 16_384]);
    peer.connection.release(3, 3 * 16_384, &mut peer.out);
    assert_eq!(updates(&mut peer), []);
    // More than was sent is not given back.
    peer.connection.release(1, 1_000_000, &mut peer.out);
    assert_eq!(updates(&mut peer), []);
    peer.post(5);
    peer.send(Kind::Data, 0, 5, &[0; 16_384]);
    peer.send(Kind::Data, 0, 5, &[0; 16_384]);
    peer.connection.release_all(5, &mut peer.out);
    assert_eq!(updates(&mut peer), [(5, 32_768)]);
}

#[test]
fn bodies_continue_while_unread_data_fills_half_of_the_connection_window() {
    let mut peer = Peer::new();
    let window = peer.limits.connection_window;
    for stream in [1, 3, 5] {
        peer.post(stream);
    }
    for len in [16_384, 16_384, 16_384, 16_383] {
        peer.send(Kind::Data, 0, 1, &vec![0; len]);
        peer.send(Kind::Data, 0, 3, &vec![0; len]);
    }
    peer.send(Kind::Data, 0, 5, &[0; 10]);
    peer.post(7);
    // The client sends what its window allows.
    let (mut window_left, mut sent) = (window - 2 * 65_535 - 10, 0);
    while sent < 4 * window {
        let len = window_left.min(16_384);
        assert_ne!(len, 0, "the window is shut after {sent} bytes");
        peer.send(Kind::Data, 0, 7, &vec![0; len as usize]);
        peer.connection.release_all(7, &mut peer.out);
        let returned = updates(&mut peer).into_iter();
        window_left += returned
            .filter(|update| update.0 == 0)
            .map(|update| update.1)
            .sum::<u32>();
        window_left -= len;
        sent += len;
    }
}

#[test]
fn window_of_the_connection_gets_back_unread_data() {
    let mut peer = Peer::new();
    for n in 0..200 {
        let stream = 2 * n + 1;
        peer.post(stream);
        peer.send(
            Kind::Data,
            PADDED,
            stream,
            &[[9].as_slice(), &[0; 9_999]].concat(),
        );
        match n % 4 {
            0 => peer
                .connection
                .reset(stream, ErrorCode::Cancel, &mut peer.out),
            1 => drop(peer.send(Kind::ResetStream, 0, stream, &[0; 4])),
            2 => {
                peer.connection
                    .respond(stream, b"HTTP/1.1 413 x\r\n\r\n", true, &mut peer.out);
                // On its way.
                peer.send(Kind::Data, END_STREAM, stream, &[0; 1_000]);
            }
            _ => {
                peer.send(Kind::Data, END_STREAM, stream, &[]);
                peer.connection
                    .respond(stream, b"HTTP/1.1 202 x\r\n\r\n", true, &mut peer.out);
            }
        }
        peer.now_s += 1;
    }
    assert_eq!(peer.connection.streams(), 0);
    let returned: u32 = updates(&mut peer)
        .iter()
        .filter(|(stream, _)| *stream == 0)
        .map(|(_, increment)| increment)
        .sum();
    let sent = 200 * 10_000 + 50 * 1_000;
    assert!(
        returned <= sent && sent - returned < 256 * 1024 / 2,
        "{returned} of {sent}"
    );
}

#[test]
fn ended_tunnel_gives_back_its_unread_window() {
    let fields = [(":method", "CONNECT"), (":authority", "h")];
    let mut peer = Peer::new();
    for n in 0..100 {
        let stream = 2 * n + 1;
        peer.feed(&request(stream, false, &fields));
        let head = b"HTTP/1.1 200 OK\r\n\r\n";
        let begun = peer.connection.respond(stream, head, true, &mut peer.out);
        assert!(begun.is_some());
        let events = peer.send(Kind::Data, END_STREAM, stream, &[0; 10_000]);
        assert!(
            matches!(
                events[..],
                [OwnedEvent::Data {
                    ends_stream: true,
                    ..
                }]
            ),
            "{events:?}"
        );
    }
    assert_eq!(peer.connection.streams(), 0);
}

#[test]
fn window_of_ignored_data_is_returned() {
    let mut peer = Peer::new();
    peer.post(1);
    peer.connection.reset(1, ErrorCode::Cancel, &mut peer.out);
    for _ in 0..100 {
        assert_eq!(peer.send(Kind::Data, 0, 1, &[0; 16_384]), []);
    }
}

#[test]
fn window_of_padding_is_returned_at_once() {
    let mut peer = Peer::new();
    peer.post(1);
    for _ in 0..200 {
        let payload = [&[255][..], &[0; 255]].concat();
        assert_eq!(peer.send(Kind::Data, PADDED, 1, &payload), []);
    }
    let returned: u32 = updates(&mut peer)
        .iter()
        .filter(|(stream, _)| *stream == 1)
        .map(|(_, increment)| increment)
        .sum();
    assert!(returned >= 200 * 256 - 32_768, "{returned}");
}
