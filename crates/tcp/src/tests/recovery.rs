//! How losses are found and repaired, and how fast connections send.

use alloc::vec::Vec;

use super::network::too_big;
use super::peer::{Peer, SegmentAndData, packet};
use crate::{Config, flag};

fn data(segments: &[SegmentAndData]) -> Vec<(u32, usize)> {
    let all = segments.iter().filter(|(_, data)| !data.is_empty());
    all.map(|(head, data)| (head.sequence, data.len()))
        .collect()
}

/// A connection with timestamps and selective acknowledgements, whose round trip of 100 ms is known.
fn warm() -> (Peer, u32) {
    let mut peer = Peer::new(Peer::config()).connect(true);
    let ack = peer.expected_sequence;
    peer.endpoint_send(b"x");
    peer.advance_ms(100);
    peer.expected_sequence += 1;
    let (next, ack) = (peer.next_sequence, ack + 1);
    peer.deliver_segment(flag::ACK, next, ack, &[]);
    (peer, ack)
}

/// An acknowledgement with a range of bytes that arrived out of order.
fn sack(peer: &mut Peer, ack: u32, range: (u32, u32)) -> Vec<SegmentAndData> {
    let next = peer.next_sequence;
    peer.deliver_segment_with(flag::ACK, next, ack, &[], 0, |head| {
        assert!(head.options.add_sack(range));
    })
}

#[test]
fn window_begins_with_ten_segments_and_grows_by_bytes() {
    let (mut peer, ack) = warm();
    let sent = data(&peer.endpoint_send(&[1; 100_000]));
    assert_eq!(sent.len(), 10);
    let bytes = sent[0].1 as u32;
    let next = peer.next_sequence;
    peer.now_us += 50_000;
    // An acknowledgement of two segments lets four more go.
    assert_eq!(
        data(&peer.deliver_segment(flag::ACK, next, ack + 2 * bytes, &[])).len(),
        4
    );
}

#[test]
fn window_begins_anew_for_the_answer_to_a_request_after_a_pause() {
    for pause_ms in [0, 10_000] {
        let (mut peer, mut ack) = warm();
        let mut next = peer.next_sequence;
        peer.endpoint_send(&[1; 100_000]);
        while peer.table.unacknowledged(peer.conn) > 0 {
            peer.now_us += 100_000;
            ack = ack
                .wrapping_add(1_448)
                .min(peer.expected_sequence + 100_000);
            peer.deliver_segment(flag::ACK, next, ack, &[]);
        }
        peer.advance_ms(pause_ms);
        peer.deliver_segment(flag::ACK, next, ack, b"request");
        next += 7;
        peer.endpoint_read();
        let sent = data(&peer.endpoint_send(&[1; 100_000])).len();
        peer.deliver_segment(flag::ACK, next, ack, &[]);
        assert_eq!(sent == 10, pause_ms > 0, "{sent} after {pause_ms} ms");
    }
}

#[test]
fn one_lost_segment_is_repaired_without_a_timeout() {
    let (mut peer, ack) = warm();
    let sent = data(&peer.endpoint_send(&[1; 10 * 1_448]));
    let bytes = sent[0].1 as u32;
    peer.now_us += 100_000;
    let mut again = Vec::new();
    for n in 1..5 {
        again.extend(data(&sack(
            &mut peer,
            ack,
            (ack + bytes, ack + (n + 1) * bytes),
        )));
    }
    assert_eq!(again, [(ack, bytes as usize)], "once, after the third");
    assert_eq!(peer.table.counters.timeouts, 0);
}

#[test]
fn reordered_segments_are_not_retransmitted() {
    let (mut peer, ack) = warm();
    let sent = data(&peer.endpoint_send(&[1; 4 * 1_448]));
    let bytes = sent[0].1 as u32;
    peer.now_us += 100_000;
    // The first two change places.
    assert!(data(&sack(&mut peer, ack, (ack + bytes, ack + 2 * bytes))).is_empty());
    peer.now_us += 5_000;
    let next = peer.next_sequence;
    peer.deliver_segment(flag::ACK, next, ack + 4 * bytes, &[]);
    assert_eq!(peer.table.counters.retransmitted, 0);
}

#[test]
fn lost_tail_is_probed_before_the_timeout() {
    let (mut peer, ack) = warm();
    let sent = data(&peer.endpoint_send(&[1; 3 * 1_448]));
    let (last, bytes) = sent[2];
    // Twice the round trip.
    assert!(peer.advance_ms(199).is_empty());
    assert_eq!(data(&peer.advance_ms(2)), [(last, bytes)]);
    assert_eq!(
        (peer.table.counters.probes, peer.table.counters.timeouts),
        (1, 0)
    );
    peer.now_us += 100_000;
    // The probe has arrived, so the two before it are lost.
    let bytes = bytes as u32;
    let again = data(&sack(&mut peer, ack, (ack + 2 * bytes, ack + 3 * bytes)));
    let more = data(&peer.advance_ms(100));
    let starts: Vec<u32> = again.iter().chain(&more).map(|(start, _)| *start).collect();
    assert_eq!(starts, [ack, ack + bytes]);
    assert_eq!(peer.table.counters.timeouts, 0);
}

#[test]
fn timeouts_double_and_end_the_connection() {
    let mut peer = Peer::connected(Config {
        retries: 4,
        ..Peer::config()
    });
    let began_us = peer.now_us;
    peer.endpoint_send(b"never acknowledged");
    let mut times = Vec::new();
    for _ in 0..40_000 {
        if peer.advance_ms(1).iter().any(|(_, data)| !data.is_empty()) {
            times.push((peer.now_us - began_us) / 1_000);
        }
    }
    assert_eq!(times, [1_000, 3_000, 7_000, 15_000]);
    assert_eq!(peer.table.counters.timed_out, 1);
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn three_duplicates_repair_without_selective_acknowledgements() {
    let mut peer = Peer::connected(Peer::config());
    let ack = peer.expected_sequence;
    let sent = data(&peer.endpoint_send(&[1; 10 * 1_460]));
    let bytes = sent[0].1 as u32;
    let next = peer.next_sequence;
    let mut again = Vec::new();
    for _ in 0..4 {
        again.push(data(&peer.deliver_segment(flag::ACK, next, ack, &[])).len());
    }
    assert_eq!(again, [0, 0, 1, 0]);
    // The acknowledgement of a part shows the next loss.
    assert_eq!(
        data(&peer.deliver_segment(flag::ACK, next, ack + bytes, &[]))[0].0,
        ack + bytes
    );
}

#[test]
fn smaller_link_splits_what_is_in_flight() {
    let (mut peer, ack) = warm();
    let segments = peer.endpoint_send(&[1; 2 * 1_448]);
    let (head, bytes) = &segments[0];
    let message = too_big(&packet(head, bytes), 1_000);
    let again = data(&peer.deliver_packet(&message));
    assert!(!again.is_empty() && again.iter().all(|(_, bytes)| *bytes <= 1_000 - 52));
    assert_eq!(again[0], (ack, 948));
    // A message about what is not in flight changes nothing.
    let mut forged = *head;
    forged.sequence = forged.sequence.wrapping_sub(5_000);
    peer.deliver_packet(&too_big(&packet(&forged, bytes), 600));
    assert_eq!(
        data(&peer.endpoint_send(&[1; 3_000]))
            .first()
            .map_or(948, |first| first.1),
        948
    );
}

#[test]
fn receiver_reports_ranges_the_latest_first() {
    let mut peer = Peer::new(Peer::config()).connect(true);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    let say = |peer: &mut Peer, at: u32| {
        let answers = peer.deliver_segment(flag::ACK, next + at, ack, &[1; 100]);
        answers[0].0.options.sacks.list().to_vec()
    };
    assert_eq!(say(&mut peer, 100), [(next + 100, next + 200)]);
    assert_eq!(
        say(&mut peer, 500),
        [(next + 500, next + 600), (next + 100, next + 200)]
    );
    assert_eq!(
        say(&mut peer, 200),
        [(next + 100, next + 300), (next + 500, next + 600)]
    );
    // What came twice is reported before all others.
    assert_eq!(say(&mut peer, 200)[0], (next + 200, next + 300));
}
