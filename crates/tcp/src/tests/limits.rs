//! What one peer, or a stranger, can make an endpoint keep, forget or leave undone.

use alloc::vec::Vec;

use super::network::Packets;
use super::peer::{Peer, SegmentAndData};
use crate::{Config, State, flag};

/// The timestamp that the endpoint has sent.
fn clock(segments: &[SegmentAndData]) -> u32 {
    segments[0]
        .0
        .options
        .timestamps
        .map_or(0, |(value, _)| value)
}

#[test]
fn spent_challenges_leave_probes_their_answers() {
    let mut peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    while !peer.deliver_segment(flag::RST, next + 1, 0, &[]).is_empty() {}
    // Another end's question whether the connection is alive, or the window open.
    let answers = peer.deliver_segment(flag::ACK, next - 1, ack, &[]);
    assert_eq!((answers.len(), answers[0].0.acknowledged), (1, next));
    // What only looks like it has no answer, so that two ends which disagree become silent.
    for (sequence, ack) in [(next - 1, ack - 1), (next - 2, ack)] {
        assert!(
            peer.deliver_segment(flag::ACK, sequence, ack, &[])
                .is_empty()
        );
    }
}

#[test]
fn forged_clock_needs_a_valid_acknowledgement() {
    for wrong in [1u32, 1 << 30, 1 << 31, u32::MAX - (1 << 20)] {
        let mut peer = Peer::new(Peer::config()).connect(true);
        let (next, ack) = (peer.next_sequence, peer.expected_sequence);
        let guess = ack.wrapping_add(wrong);
        peer.deliver_segment_with(flag::ACK, next, guess, b"evil", 0, |head| {
            head.options.timestamps = Some((1 << 30, 0));
        });
        peer.deliver_segment(flag::ACK, next, ack, b"good");
        assert_eq!(peer.endpoint_read(), b"good", "{wrong}");
    }
}

#[test]
fn large_window_makes_no_guess_easier() {
    let mut peer = Peer::new(Peer::config());
    peer.timestamps = true;
    let wide = |head: &mut crate::Head| head.options.window_shift = Some(14);
    let answers = peer.deliver_segment_with(flag::SYN, 5_000, 0, &[], 0, wide);
    let ack = answers[0].0.sequence.wrapping_add(1);
    peer.window = u16::MAX;
    peer.deliver_segment_with(flag::ACK, 5_001, ack, &[], clock(&answers), |_| {});
    peer.conn = peer.table.accept(0, 0).expect("a connection");
    // As much of the buffer for sending has never been in flight.
    peer.deliver_segment(flag::ACK, 5_001, ack.wrapping_sub(1 << 20), b"evil");
    peer.deliver_segment(flag::ACK, 5_001, ack.wrapping_sub(100), b"good");
    assert_eq!(peer.endpoint_read(), b"good");
}

/// Begins a connection with a request in its third packet, and ends it by a reset. Returns the number that the third packet acknowledges.
fn spent(peer: &mut Peer, timestamps: bool) -> (u32, u32) {
    peer.timestamps = timestamps;
    let answers = peer.deliver_segment(flag::SYN, 5_000, 0, &[]);
    let (ack, echo) = (answers[0].0.sequence.wrapping_add(1), clock(&answers));
    peer.deliver_segment_with(flag::ACK, 5_001, ack, b"once", echo, |_| {});
    peer.conn = peer.table.accept(0, 0).expect("a connection");
    let mut device = Packets::default();
    peer.table.reset(peer.conn, peer.now_us, &mut device);
    (ack, echo)
}

#[test]
fn no_syn_makes_a_spent_cookie_good_again() {
    for timestamps in [false, true] {
        // A copy of the old SYN, a forged one, and that of the next connection.
        for sequence in [5_000, 1 << 30, 6_000] {
            let mut peer = Peer::new(Peer::config());
            let (ack, echo) = spent(&mut peer, timestamps);
            let began = (peer.now_us / 1_000) as u32;
            peer.advance_ms(10);
            peer.deliver_segment(flag::SYN, sequence, 0, &[]);
            // A copy of the third packet, and a retransmission of it.
            for clock in [began, began + 20] {
                peer.deliver_segment_with(flag::ACK, 5_001, ack, b"once", echo, |head| {
                    head.options.timestamps = timestamps.then_some((clock, echo));
                });
                assert_eq!(peer.table.waiting(0), 0, "{timestamps} {sequence} {clock}");
            }
        }
    }
}

#[test]
fn same_ends_begin_anew_with_a_later_number() {
    for timestamps in [false, true] {
        let mut peer = Peer::new(Peer::config());
        spent(&mut peer, timestamps);
        peer.advance_ms(10);
        let answers = peer.deliver_segment(flag::SYN, 6_000, 0, &[]);
        let ack = answers[0].0.sequence.wrapping_add(1);
        peer.deliver_segment_with(flag::ACK, 6_001, ack, b"two", clock(&answers), |_| {});
        peer.conn = peer.table.accept(0, 0).expect("a connection");
        assert_eq!(
            (peer.endpoint_read(), peer.table.len()),
            (b"two".to_vec(), 1)
        );
    }
}

#[test]
fn reset_of_a_failed_connection_leaves_the_bytes_of_its_successor() {
    let mut peer = Peer::connected(Peer::config());
    let (next, failed) = (peer.next_sequence, peer.conn);
    peer.deliver_segment(flag::ACK, next, peer.expected_sequence, b"first");
    peer.deliver_segment(flag::RST, next + 5, 0, &[]);
    assert_eq!((peer.state(), peer.table.account.total), (State::Closed, 0));
    // The caller has not closed it yet when the same ends begin anew.
    peer.advance_ms(10);
    let answers = peer.deliver_segment(flag::SYN, 6_000, 0, &[]);
    let ack = answers[0].0.sequence.wrapping_add(1);
    peer.deliver_segment(flag::ACK, 6_001, ack, b"second");
    let held = peer.table.account.total;
    let mut device = Packets::default();
    peer.table.reset(failed, peer.now_us, &mut device);
    assert_eq!((peer.table.account.total, device.list.len()), (held, 0));
    peer.conn = peer.table.accept(0, 0).expect("a connection");
    assert_eq!(peer.endpoint_read(), b"second");
    peer.table.reset(peer.conn, peer.now_us, &mut device);
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn peer_that_never_closes_does_not_hold_an_orphan() {
    let mut peer = Peer::reach(State::FinWait2);
    let mut device = Packets::default();
    peer.table.close(peer.conn, peer.now_us, &mut device);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    for _ in 0..200 {
        peer.advance_ms(1_000);
        peer.deliver_segment(flag::ACK, next, ack, &[]);
    }
    assert_eq!(peer.table.len(), 0);
}

#[test]
fn acknowledgement_of_every_second_full_segment_does_not_wait() {
    let mut peer = Peer::new(Config::default()).connect(true);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    assert!(
        peer.deliver_segment(flag::ACK, next, ack, &[1; 1_448])
            .is_empty()
    );
    let answers = peer.deliver_segment(flag::ACK, next + 1_448, ack, &[1; 1_448]);
    assert_eq!(answers[0].0.acknowledged, next + 2 * 1_448);
}

#[test]
fn small_segments_in_flight_are_limited_in_number() {
    let mut peer = Peer::connected(Peer::config());
    let limit = Config::default().small_segments;
    let sent: usize = (0..5_000).map(|_| peer.endpoint_send(b"x").len()).sum();
    let full = (5_000 - limit) / 1_460;
    assert_eq!(sent, limit + full);
    // The rest leaves together with the next acknowledgement.
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    let rest = peer.deliver_segment(flag::ACK, next, ack + 1, &[]);
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].1.len(), (5_000 - limit) % 1_460);
}

#[test]
fn timers_that_move_leave_few_entries() {
    let mut peer = Peer::connected(Config::default());
    let (mut next, ack) = (peer.next_sequence, peer.expected_sequence);
    // Bytes that the peer does not acknowledge have a late deadline, and those that it sends an early one.
    peer.endpoint_send(b"never acknowledged");
    peer.advance_ms(20_000);
    for _ in 0..1_000 {
        peer.deliver_segment(flag::ACK, next, ack, b"x");
        next = next.wrapping_add(1);
        peer.advance_ms(41);
        peer.endpoint_read();
    }
    assert!(peer.table.timers.len() < 100, "{}", peer.table.timers.len());
    assert_eq!(peer.state(), State::Established);
}

#[test]
fn shut_down_before_the_handshake_is_over_is_not_forgotten() {
    for state in [State::SynSent, State::SynReceived] {
        let mut peer = Peer::reach(state);
        peer.table.shut_down(peer.conn, peer.now_us);
        let (next, ack) = (peer.next_sequence, peer.expected_sequence);
        let again = u32::from(state == State::SynReceived);
        let answers = peer.deliver_segment(flag::SYN | flag::ACK, next - again, ack, &[]);
        assert!(
            answers.iter().any(|(head, _)| head.has(flag::FIN)),
            "{state:?}"
        );
        assert_eq!(peer.state(), State::FinWait1);
    }
}

/// A connection that the endpoint has begun, whose first numbers are these.
fn numbered(own: u32, other: u32) -> Peer {
    let mut peer = Peer::new(Peer::config());
    let (local, remote) = (peer.endpoint_end, peer.peer_end);
    // The first number grows with the time.
    let mut probe = Peer::new(Peer::config());
    probe.now_us = 0;
    let conn = probe.table.connect(local, remote, 0, 0).expect("room");
    let number = probe.table.rows[conn.0 as usize].unacknowledged;
    peer.now_us = u64::from(other.wrapping_sub(number)) * 4;
    peer.conn = peer
        .table
        .connect(local, remote, 0, peer.now_us)
        .expect("room");
    let syn = peer.advance_ms(0);
    assert_eq!(syn[0].0.sequence, other);
    (peer.next_sequence, peer.expected_sequence, peer.timestamps) =
        (own, other.wrapping_add(1), true);
    peer.deliver_segment_with(
        flag::SYN | flag::ACK,
        own,
        peer.expected_sequence,
        &[],
        clock(&syn),
        |head| {
            head.options.sack_permitted = true;
        },
    );
    peer.next_sequence = own.wrapping_add(1);
    assert_eq!(peer.state(), State::Established);
    peer
}

#[test]
fn streams_cross_the_borders_of_the_numbers() {
    let borders = [0u32, 1 << 31];
    for own in borders {
        for other in borders {
            for before in [1, 2, 1_448, 5_000, 14_479, 14_480, 14_481] {
                let mut peer = numbered(own.wrapping_sub(before), other.wrapping_sub(before));
                let (next, ack) = (peer.next_sequence, peer.expected_sequence);
                let bytes: Vec<u8> = (0..20_000u32).map(|n| (n / 7) as u8).collect();
                // All but every third part arrive first, and then all overlap.
                let parts = || bytes.chunks(1_000).enumerate();
                for (n, part) in parts().filter(|(n, _)| n % 3 != 0) {
                    peer.deliver_segment(flag::ACK, next.wrapping_add(1_000 * n as u32), ack, part);
                }
                for at in (0..19_000).step_by(900) {
                    let part = &bytes[at..at + 1_000];
                    peer.deliver_segment(flag::ACK, next.wrapping_add(at as u32), ack, part);
                }
                assert!(peer.endpoint_read() == bytes, "{own} {other} {before}");
                // Of what the endpoint sends the first and the sixth part are lost.
                let next = next.wrapping_add(20_000);
                let sent = peer.endpoint_send(&bytes[..14_480]);
                assert_eq!(sent.len(), 10);
                let at = |n: u32| ack.wrapping_add(1_448 * n);
                let again = peer.deliver_segment_with(flag::ACK, next, ack, &[], 0, |head| {
                    head.options.add_sack((at(6), at(10)));
                    head.options.add_sack((at(1), at(5)));
                });
                let starts: Vec<u32> = again.iter().map(|(head, _)| head.sequence).collect();
                assert_eq!(starts, [ack, at(5)], "{own} {other} {before}");
                peer.deliver_segment(flag::ACK, next, at(10), &[]);
                assert_eq!(peer.table.account.total, 0);
                // Far from the window nothing is taken.
                for far in [1 << 30, 1 << 31, 3 << 30] {
                    peer.deliver_segment(flag::ACK, next.wrapping_add(far), at(10), b"evil");
                    peer.deliver_segment(flag::ACK, next, at(10).wrapping_add(far), b"evil");
                }
                assert_eq!(peer.endpoint_read(), b"");
            }
        }
    }
}

#[test]
fn rest_does_not_widen_a_window_that_losses_made_small() {
    let mut peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.endpoint_send(b"lost");
    assert_eq!(peer.advance_ms(1_000).len(), 1, "the timeout");
    peer.deliver_segment(flag::ACK, next, ack + 4, &[]);
    assert!(peer.table.is_idle(peer.conn));
    peer.advance_ms(100_000);
    assert_eq!(peer.endpoint_send(&[1; 20_000]).len(), 1);
}

#[test]
fn duplicates_within_a_recovery_repeat_nothing() {
    let mut peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    assert_eq!(peer.endpoint_send(&[1; 14_600]).len(), 10);
    let mut again = Vec::new();
    let mut acks = |peer: &mut Peer, ack: u32, count: usize| {
        for _ in 0..count {
            again.extend(peer.deliver_segment(flag::ACK, next, ack, &[]));
        }
    };
    // The first and the ninth are lost; the others tell of themselves.
    acks(&mut peer, ack, 8);
    acks(&mut peer, ack + 8 * 1_460, 5);
    let starts: Vec<u32> = again.iter().map(|(head, _)| head.sequence).collect();
    assert_eq!(starts, [ack, ack + 8 * 1_460]);
}

#[test]
fn probes_without_number_never_end_a_connection() {
    let keep_alive = Some(crate::KeepAlive {
        idle_ms: 10_000,
        interval_ms: 10_000,
        probes: u32::MAX,
    });
    let mut peer = Peer::connected(Config {
        keep_alive,
        ..Peer::config()
    });
    let probes: usize = (0..100).map(|_| peer.advance_ms(1_000).len()).sum();
    assert!((8..=10).contains(&probes), "{probes}");
    assert_eq!(peer.state(), State::Established);
}

#[test]
fn settings_that_no_connection_could_work_with_are_raised_or_lowered() {
    let mut peer = Peer::new(Config {
        packet_bytes: 0,
        receive_log2: 63,
        segment_bytes_min: 0,
        ..Peer::config()
    });
    peer.timestamps = true;
    let tiny = |head: &mut crate::Head| head.options.segment_bytes = Some(1);
    let answers = peer.deliver_segment_with(flag::SYN, 5_000, 0, &[], 0, tiny);
    let ack = answers[0].0.sequence.wrapping_add(1);
    peer.deliver_segment_with(flag::ACK, 5_001, ack, b"request", clock(&answers), |_| {});
    peer.conn = peer.table.accept(0, 0).expect("a connection");
    assert_eq!(peer.endpoint_read(), b"request");
    assert_eq!(peer.endpoint_send(&[1; 100])[0].1, [1; 64 - 12]);
}

#[test]
fn client_behind_the_address_of_another_learns_at_once_that_its_port_is_taken() {
    for timestamps in [false, true] {
        for is_in_time_wait in [false, true] {
            let mut peer = Peer::new(Peer::config());
            if is_in_time_wait {
                peer = peer.connect(timestamps);
                peer.table.shut_down(peer.conn, peer.now_us);
                peer.advance_ms(0);
                peer.deliver_segment(
                    flag::FIN | flag::ACK,
                    peer.next_sequence,
                    peer.expected_sequence + 1,
                    &[],
                );
                assert_eq!(peer.state(), State::TimeWait);
            } else {
                spent(&mut peer, timestamps);
            }
            peer.advance_ms(10);
            // Its numbers and its clock are smaller than those of the first client.
            let answers = peer.deliver_segment_with(flag::SYN, 300, 0, &[], 0, |head| {
                head.options.timestamps = timestamps.then_some((5, 0));
            });
            let [(answer, _)] = &answers[..] else {
                panic!("{timestamps} {is_in_time_wait}: {answers:?}")
            };
            assert_eq!(answer.flags, flag::RST | flag::ACK);
            assert_eq!((answer.sequence, answer.acknowledged), (0, 301));
        }
    }
}

#[test]
fn all_clients_that_lost_their_connections_at_once_are_answered_at_once() {
    let mut peer = Peer::connected(Peer::config());
    let next = peer.next_sequence;
    // A SYN within the window, and one outside of it.
    for sequence in [next + 5, next - 500] {
        for _ in 0..2 * Config::default().challenges_per_s {
            let answers = peer.deliver_segment(flag::SYN, sequence, 0, &[]);
            let [(answer, _)] = &answers[..] else {
                panic!("{answers:?}")
            };
            assert_eq!((answer.flags, answer.acknowledged), (flag::ACK, next));
        }
    }
    peer.deliver_segment(flag::RST, next, 0, &[]);
    assert_eq!(peer.state(), State::Closed);
}
