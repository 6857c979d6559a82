//! What each attack costs: the connection, after a bounded number of frames. An honest client may do as much again after a while.

use crore_wire::http2::frame::{ACK, END_HEADERS, END_STREAM, Kind};
use crore_wire::http2::{ErrorCode, Limits, PERIOD_S, Violation};

use crate::peer::{OwnedEvent, Peer, block, frame, get, headers, post, request, settings};

/// Sends the `n`th part of an attack until the connection ends. Returns the number of parts before, and the violation.
fn send_until_violation(peer: &mut Peer, frames: impl Fn(u32) -> Vec<u8>) -> (u32, Violation) {
    for n in 0..100_000 {
        if let Some(OwnedEvent::Ended(violation)) = peer.feed(&frames(n)).last() {
            assert_eq!(violation.code() as u32, 11, "ENHANCE_YOUR_CALM");
            return (n, *violation);
        }
    }
    panic!("the attack goes on");
}

#[test]
fn rapid_resets_end_the_connection() {
    let (count, violation) = send_until_violation(&mut Peer::new(), |n| {
        let reset = frame(Kind::ResetStream, 0, 2 * n + 1, &[0, 0, 0, 8]);
        [request(2 * n + 1, true, &get()), reset].concat()
    });
    assert_eq!((count, violation), (250, Violation::ResetFlood));
}

#[test]
fn streams_that_make_the_server_reset_them_end_the_connection() {
    let malformed = send_until_violation(&mut Peer::new(), |n| request(2 * n + 1, true, &[]));
    assert_eq!(malformed, (250, Violation::ResetFlood));
    let overflow = send_until_violation(&mut Peer::new(), |n| {
        let update = frame(Kind::WindowUpdate, 0, 2 * n + 1, &[0; 4]);
        [request(2 * n + 1, true, &get()), update].concat()
    });
    assert_eq!(overflow, (250, Violation::ResetFlood));
    let mut full = Peer::with_limits(Limits {
        streams: 1,
        ..Limits::default()
    });
    let refused = send_until_violation(&mut full, |n| request(2 * n + 1, true, &get()));
    assert_eq!(refused, (251, Violation::ResetFlood));
}

#[test]
fn small_frames_that_cost_an_answer_end_the_connection() {
    let settings_flood = send_until_violation(&mut Peer::new(), |_| settings(&[]));
    assert_eq!(settings_flood, (48, Violation::SettingsFlood));
    let acks = send_until_violation(&mut Peer::new(), |_| frame(Kind::Settings, ACK, 0, &[]));
    assert_eq!(acks, (48, Violation::SettingsFlood));
    let pings = send_until_violation(&mut Peer::new(), |_| frame(Kind::Ping, 0, 0, &[0; 8]));
    assert_eq!(pings, (200, Violation::PingFlood));
}

#[test]
fn frames_that_do_nothing_end_the_connection() {
    let empty_data = |_| frame(Kind::Data, 0, 1, &[]);
    let padding = |_| frame(Kind::Data, 8, 1, &[3, 0, 0, 0]);
    let priorities = |n: u32| frame(Kind::Priority, 0, 2 * n + 3, &[0, 0, 0, 1, 9]);
    let unknown = |_| [&[0, 0, 1, 0xee, 0, 0, 0, 0, 0][..], b"x"].concat();
    let goodbyes = |_| frame(Kind::GoAway, 0, 0, &[0; 8]);
    let parts: [&dyn Fn(u32) -> Vec<u8>; 5] =
        [&empty_data, &padding, &priorities, &unknown, &goodbyes];
    for part in parts {
        let mut peer = Peer::new();
        peer.post(1);
        assert_eq!(
            send_until_violation(&mut peer, part),
            (500, Violation::EmptyFlood)
        );
    }
    // Streams after GOAWAY, and data of a stream that was reset.
    let mut peer = Peer::new();
    peer.connection
        .go_away(ErrorCode::NoError, "", &mut peer.out);
    let violation = send_until_violation(&mut peer, |n| request(2 * n + 1, true, &get()));
    assert_eq!(violation, (500, Violation::EmptyFlood));
    let mut peer = Peer::new();
    peer.post(1);
    peer.connection.reset(1, ErrorCode::Cancel, &mut peer.out);
    let violation = send_until_violation(&mut peer, |_| frame(Kind::Data, 0, 1, &[0; 100]));
    assert_eq!(violation, (500, Violation::EmptyFlood));
}

#[test]
fn window_updates_are_free_only_for_data() {
    let update = |_| frame(Kind::WindowUpdate, 0, 0, &[0, 0, 0, 1]);
    assert_eq!(
        send_until_violation(&mut Peer::new(), update),
        (1_000, Violation::UpdateFlood)
    );
    let mut peer = Peer::new();
    peer.get(1);
    peer.connection
        .respond(1, b"HTTP/1.1 200 OK\r\n\r\n", false, &mut peer.out);
    for _ in 0..10_000 {
        assert_eq!(peer.connection.send_data(1, b"x", false, &mut peer.out), 1);
        let updates = [0, 1].map(|stream| frame(Kind::WindowUpdate, 0, stream, &[0, 0, 0, 1]));
        assert_eq!(peer.feed(&updates.concat()), []);
    }
}

#[test]
fn frames_at_a_low_rate_never_end_the_connection() {
    let mut peer = Peer::new();
    let resets = u32::from(peer.limits.resets);
    for period in 0..20 {
        for n in 0..resets {
            let stream = 2 * (period * resets + n) + 1;
            peer.get(stream);
            let events = peer.send(Kind::ResetStream, 0, stream, &[0; 4]);
            assert_eq!(events, [OwnedEvent::Reset(stream, 0)]);
        }
        peer.now_s += PERIOD_S;
    }
    // Half a period gives half of it.
    for n in 0..200 {
        assert_eq!(peer.send(Kind::Ping, 0, 0, &[n; 8]), []);
    }
    peer.now_s += PERIOD_S / 2;
    let pings = send_until_violation(&mut peer, |_| frame(Kind::Ping, 0, 0, &[0; 8]));
    assert_eq!(pings, (100, Violation::PingFlood));
}

#[test]
fn limit_of_attack_frames_is_granted_again_after_its_period() {
    let mut peer = Peer::with_limits(Limits {
        pings: 3,
        ..Limits::default()
    });
    for _ in 0..100 {
        assert_eq!(peer.send(Kind::Ping, 0, 0, &[0; 8]), []);
        peer.now_s += PERIOD_S / 3;
    }
    peer.now_s = u32::MAX;
    assert_eq!(peer.send(Kind::Ping, 0, 0, &[0; 8]), []);
}

#[test]
fn continuations_are_limited() {
    let mut peer = Peer::new();
    let mut bytes = frame(Kind::Headers, 0, 1, &[]);
    for _ in 0..8 {
        assert_eq!(peer.feed(&bytes), []);
        bytes = frame(Kind::Continuation, 0, 1, &[]);
    }
    assert_eq!(peer.violation(&bytes), (Violation::Continuations, 11));
    // The bytes of a block, as soon as a header announces them.
    let mut peer = Peer::new();
    peer.feed(&frame(Kind::Headers, 0, 1, &[0; 16_000]));
    let header = &frame(Kind::Continuation, 0, 1, &[0; 385])[..9];
    assert_eq!(peer.violation(header), (Violation::BlockTooLong, 11));
    let limits = Limits {
        header_block_bytes: 1_000,
        ..Limits::default()
    };
    let header = &frame(Kind::Headers, END_HEADERS, 1, &[0; 1_001])[..9];
    assert_eq!(
        Peer::with_limits(limits).violation(header),
        (Violation::BlockTooLong, 11)
    );
    // A frame is not longer than it may be because the block may be.
    let limits = Limits {
        header_block_bytes: 100_000,
        ..Limits::default()
    };
    let mut peer = Peer::with_limits(limits);
    peer.feed(&frame(Kind::Headers, 0, 1, &[]));
    let header = &frame(Kind::Continuation, END_HEADERS, 1, &[0; 16_385])[..9];
    assert_eq!(peer.violation(header), (Violation::FrameTooLong, 6));
}

#[test]
fn hpack_bomb_is_refused() {
    // An entry of 4,000 bytes, named 12,000 times by one byte each: 48 MB of fields.
    let mut bomb = block(&get());
    bomb.extend_from_slice(&[0x40, 1, b'a', 127, 0xa1, 0x1e]);
    bomb.resize(bomb.len() + 4_000, b'x');
    bomb.resize(bomb.len() + 12_000, 0xbe);
    let mut peer = Peer::before_preface(Limits::default());
    peer.feed(&crate::peer::preface());
    let events = peer.feed(&headers(1, true, &bomb));
    assert_eq!(events, [OwnedEvent::Ended(Violation::BlockTooLong)]);
    assert!(peer.connection.heap_bytes() < 16 * 1024);
}

#[test]
fn body_in_frames_of_one_byte_is_accepted() {
    let mut peer = Peer::new();
    peer.post(1);
    let mut bytes = 0;
    for _ in 0..5_000 {
        let events = peer.send(Kind::Data, 0, 1, b"x");
        assert!(matches!(events[..], [OwnedEvent::Data { .. }]));
        peer.connection.release(1, 1, &mut peer.out);
        bytes += peer.take_written_frames().len();
    }
    assert_eq!(bytes, 0, "no answer for each byte");
}

#[test]
fn indexed_bytes_of_a_large_field_end_the_connection() {
    let mut peer = Peer::new();
    let entry = [b"\x40\x01a\x7f\xa1\x1e".to_vec(), vec![b'x'; 4_000]].concat();
    let events = peer.feed(&headers(1, false, &[block(&post()), entry].concat()));
    assert!(
        matches!(events[..], [OwnedEvent::Request { stream: 1, .. }]),
        "{events:?}"
    );
    // Each byte is a trailer field of 4,001 bytes.
    let events = peer.feed(&headers(1, true, &[0xbe; 16_000]));
    assert_eq!(events, [OwnedEvent::Ended(Violation::BlockTooLong)]);
}

#[test]
fn small_parts_of_one_body_after_another_end_the_connection() {
    let mut peer = Peer::new();
    peer.post(1);
    peer.post(3);
    let small = send_until_violation(&mut peer, |n| frame(Kind::Data, 0, 1 + 2 * (n % 2), b"x"));
    assert_eq!(small, (1_002, Violation::SmallFlood));
}

#[test]
fn small_bodies_of_many_requests_and_larger_parts_are_free() {
    let mut peer = Peer::new();
    for n in 0..2_000 {
        let streams = [4 * n + 1, 4 * n + 3];
        for stream in streams {
            peer.post(stream);
        }
        // As a proxy sends them that does not know yet where a body ends.
        for (flags, part) in [(0, &b"x"[..]), (0, &[b'x'; 64]), (END_STREAM, b"")] {
            for stream in streams {
                let events = peer.send(Kind::Data, flags, stream, part);
                assert!(
                    matches!(events[..], [OwnedEvent::Data { .. }]),
                    "{events:?}"
                );
                peer.connection.release_all(stream, &mut peer.out);
            }
        }
        for stream in streams {
            let answer = b"HTTP/1.1 202 Accepted\r\n\r\n";
            peer.connection.respond(stream, answer, true, &mut peer.out);
        }
    }
}
