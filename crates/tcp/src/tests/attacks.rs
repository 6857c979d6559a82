//! Attacks that the state machine decides. None ends a connection, grows memory past its limit or injects a byte.

use alloc::vec;
use alloc::vec::Vec;

use crore_rng::Rng;

use super::network::{Packets, too_big};
use super::peer::{Peer, packet};
use crate::{Checksums, Config, End, Head, Options, Part, Sent, State, flag};

/// A connection, and its numbers.
fn open() -> (Peer, u32, u32) {
    let peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    (peer, next, ack)
}

/// Checks that a connection still works, and that it has received nothing else.
fn works(peer: &mut Peer, next: u32, ack: u32) {
    assert_eq!(peer.endpoint_read(), b"");
    peer.deliver_segment(flag::ACK, next, ack, b"good");
    assert_eq!(peer.endpoint_read(), b"good");
    assert_eq!(peer.endpoint_send(b"answer")[0].1, b"answer");
    assert_eq!(peer.state(), State::Established);
}

#[test]
fn segment_that_anybody_can_send_is_told_from_that_of_the_peer() {
    let (mut peer, next, ack) = open();
    let head = |flags, sequence, acknowledged| Head {
        from: peer.peer_end,
        to: peer.endpoint_end,
        sequence,
        acknowledged,
        flags,
        window: 60_000,
        options: Options::default(),
    };
    let mut stranger = head(flag::ACK, 1, 1);
    stranger.from.port += 1;
    let mut wrong_checksum = packet(&head(flag::ACK, next, ack), b"x");
    *wrong_checksum.last_mut().expect("data") ^= 1;
    let of_anybody = [
        packet(&head(flag::SYN, next, 0), &[]),
        packet(&head(flag::RST, next + 1, 0), &[]),
        packet(&head(flag::ACK, next + 70_000, ack), b"x"),
        packet(&head(flag::ACK, next.wrapping_sub(9), ack), b"x"),
        packet(&head(flag::ACK, next, ack + 1), b"x"),
        packet(&stranger, b"x"),
        wrong_checksum,
    ];
    let of_the_peer = packet(&head(flag::ACK, next, ack), b"x");
    let mut device = Packets::default();
    for bytes in &of_anybody {
        let conn = peer.table.receive(bytes, peer.now_us, &mut device);
        assert_eq!(conn, None, "{bytes:?}");
    }
    let conn = peer.table.receive(&of_the_peer, peer.now_us, &mut device);
    assert_eq!(conn, Some(peer.conn));
    assert_eq!(peer.endpoint_read(), b"x");
}

#[test]
fn partial_checksum_is_right_only_where_packets_have_not_left_the_machine() {
    for (checksums, accepts_partial) in [
        (Checksums::Verified, false),
        (Checksums::VerifiedUnlessPartial, true),
        (Checksums::Ignored, true),
    ] {
        let fresh = || {
            Peer::connected(Config {
                checksums,
                ..Peer::config()
            })
        };
        let peer = fresh();
        let head = Head {
            from: peer.peer_end,
            to: peer.endpoint_end,
            sequence: peer.next_sequence,
            acknowledged: peer.expected_sequence,
            flags: flag::ACK,
            window: 60_000,
            options: Options::default(),
        };
        let right = packet(&head, b"data");
        let mut partial = right.clone();
        // The sum of the addresses, the protocol and the length of 24 bytes: 10.0.0.1 and 10.0.0.2.
        let sum: u16 = 0x0a00 + 1 + 0x0a00 + 2 + 6 + 24;
        partial[36..38].copy_from_slice(&sum.to_be_bytes());
        let mut wrong = right.clone();
        wrong[43] ^= 1;
        let mut wrong_partial = partial.clone();
        wrong_partial[36] ^= 1;
        let accepts = |bytes: &[u8]| {
            let (mut peer, mut device) = (fresh(), Packets::default());
            let conn = peer.table.receive(bytes, peer.now_us, &mut device);
            conn.is_some()
        };
        let is_ignored = checksums == Checksums::Ignored;
        assert_eq!(accepts(&wrong), is_ignored, "{checksums:?}");
        assert_eq!(accepts(&wrong_partial), is_ignored, "{checksums:?}");
        assert_eq!(accepts(&partial), accepts_partial, "{checksums:?}");
    }
}

#[test]
fn flood_of_syns_keeps_nothing() {
    let (mut peer, next, ack) = open();
    let mut rng = Rng::new(1);
    for _ in 0..10_000 {
        let mut head = Head {
            from: peer.peer_end,
            to: peer.endpoint_end,
            sequence: rng.draw() as u32,
            acknowledged: 0,
            flags: flag::SYN,
            window: 1_000,
            options: Options::default(),
        };
        head.from.port = rng.range(1, 39_999) as u16;
        let answers = peer.deliver_packet(&packet(&head, &[]));
        assert!(answers.len() == 1 && answers[0].0.has(flag::SYN | flag::ACK));
    }
    assert_eq!((peer.table.len(), peer.table.transfer_count()), (1, 0));
    works(&mut peer, next, ack);
}

#[test]
pub fn flood_of_acknowledgements_opens_nothing() {
    let (mut peer, next, ack) = open();
    let mut rng = Rng::new(2);
    for _ in 0..20_000 {
        let from = End {
            port: rng.range(1, 39_999) as u16,
            ..peer.peer_end
        };
        let (sequence, guess) = (rng.draw() as u32, rng.draw() as u32);
        peer.deliver_segment_with(flag::ACK, sequence, guess, b"evil", 0, |head| {
            head.from = from
        });
    }
    assert_eq!((peer.table.len(), peer.table.waiting(0)), (1, 0));
    works(&mut peer, next, ack);
}

#[test]
fn cookie_is_good_for_its_ends_and_its_time_and_once() {
    let answer_to = |peer: &mut Peer, sequence: u32| {
        let answers = peer.deliver_segment(flag::SYN, sequence, 0, &[]);
        answers[0].0.sequence.wrapping_add(1)
    };
    let answer = |peer: &mut Peer| answer_to(peer, 5_000);
    let mut peer = Peer::new(Peer::config());
    let ack = answer(&mut peer);
    let other = End {
        port: 5,
        ..peer.peer_end
    };
    peer.deliver_segment_with(flag::ACK, 5_001, ack, &[], 0, |head| head.from = other);
    assert_eq!(peer.table.waiting(0), 0, "another end");
    peer.deliver_segment(flag::ACK, 5_002, ack, &[]);
    assert_eq!(peer.table.waiting(0), 0, "not the third packet");
    peer.advance_ms(61_000);
    let resets = peer.deliver_segment(flag::ACK, 5_001, ack, &[]);
    assert!(resets[0].0.has(flag::RST), "too late");
    let ack = answer(&mut peer);
    peer.advance_ms(29_000);
    peer.deliver_segment(flag::ACK, 5_001, ack, b"once");
    let conn = peer.table.accept(0, 0).expect("in time");
    peer.conn = conn;
    assert_eq!(peer.endpoint_read(), b"once");
    peer.deliver_segment(flag::RST, 5_005, 0, &[]);
    assert_eq!(peer.state(), State::Closed);
    peer.table.discard(conn.0);
    // A copy of the third packet, which arrives after the connection is over.
    let resets = peer.deliver_segment(flag::ACK, 5_001, ack, b"once");
    assert!(resets[0].0.has(flag::RST));
    assert_eq!(peer.table.waiting(0), 0);
    // The same end may begin anew.
    let ack = answer_to(&mut peer, 6_000);
    peer.deliver_segment(flag::ACK, 6_001, ack, &[]);
    assert_eq!(peer.table.waiting(0), 1);
}

#[test]
fn later_packet_of_a_handshake_is_neither_accepted_nor_reset() {
    for timestamps in [false, true] {
        let mut peer = Peer::new(Peer::config());
        peer.timestamps = timestamps;
        let answers = peer.deliver_segment(flag::SYN, 5_000, 0, &[]);
        let head = answers[0].0;
        let ack = head.sequence.wrapping_add(1);
        let echo = head.options.timestamps.map_or(0, |(value, _)| value);
        for at in 1..3_000 {
            let answers =
                peer.deliver_segment_with(flag::ACK, 5_001 + at, ack, b"second", echo, |_| {});
            assert!(answers.is_empty());
        }
        assert_eq!(peer.table.waiting(0), 0);
        peer.deliver_segment_with(flag::ACK, 5_001, ack, b"first", echo, |_| {});
        assert_eq!(peer.table.waiting(0), 1);
    }
}

#[test]
fn full_backlog_drops_and_the_peer_may_try_again() {
    let mut peer = Peer::new(Config {
        backlog: 1,
        ..Peer::config()
    });
    let mut acks = Vec::new();
    for port in [1, 2] {
        let from = End {
            port,
            ..peer.peer_end
        };
        let answers = peer.deliver_segment_with(flag::SYN, 100, 0, &[], 0, |head| head.from = from);
        acks.push((from, answers[0].0.sequence.wrapping_add(1)));
    }
    for (from, ack) in &acks {
        peer.deliver_segment_with(flag::ACK, 101, *ack, b"x", 0, |head| head.from = *from);
    }
    assert_eq!(
        (peer.table.waiting(0), peer.table.counters.overflows),
        (1, 1)
    );
    peer.table.accept(0, 0);
    let (from, ack) = acks[1];
    peer.deliver_segment_with(flag::ACK, 101, ack, b"x", 0, |head| head.from = from);
    assert_eq!(peer.table.waiting(0), 1);
}

#[test]
pub fn blind_reset_ends_nothing() {
    let (mut peer, next, ack) = open();
    for at in [1, 2, 1_000, 60_000, 65_534] {
        let answers = peer.deliver_segment(flag::RST, next + at, 0, &[]);
        assert_eq!(answers[0].0.acknowledged, next, "a challenge");
    }
    for at in [65_536, 1 << 20, 1 << 31, u32::MAX] {
        assert!(
            peer.deliver_segment(flag::RST, next.wrapping_add(at), 0, &[])
                .is_empty()
        );
    }
    works(&mut peer, next, ack);
}

#[test]
fn syn_within_a_connection_is_challenged() {
    let (mut peer, next, ack) = open();
    for at in [0, 1, 5_000, 1 << 30] {
        let answers = peer.deliver_segment(flag::SYN, next.wrapping_add(at), 0, &[]);
        assert!(answers.len() == 1 && answers[0].0.flags == flag::ACK);
    }
    works(&mut peer, next, ack);
}

#[test]
fn challenges_are_limited() {
    let (mut peer, next, ack) = open();
    let answers = (0..5_000)
        .filter(|_| !peer.deliver_segment(flag::RST, next + 1, 0, &[]).is_empty())
        .count();
    assert!((500..=1_000).contains(&answers), "{answers}");
    peer.advance_ms(1_000);
    works(&mut peer, next, ack);
}

#[test]
fn data_outside_the_window_is_dropped() {
    let (mut peer, next, ack) = open();
    for at in [65_536u32, 70_000, 1 << 20, 1 << 31, u32::MAX - 100] {
        peer.deliver_segment(flag::ACK, next.wrapping_add(at), ack, b"evil");
    }
    assert_eq!(peer.table.account.total, 0);
    // Of a segment across the end of the window only the part within is kept.
    peer.deliver_segment(flag::ACK, next + 65_530, ack, &[9; 100]);
    assert_eq!(peer.table.account.total, 5);
    works(&mut peer, next, ack);
}

#[test]
pub fn acknowledgement_of_what_was_never_sent_is_refused() {
    let (mut peer, next, ack) = open();
    peer.endpoint_send(b"12345");
    for beyond in [6, 1_000, 1 << 20, 1 << 30] {
        let answers = peer.deliver_segment(flag::ACK, next, ack.wrapping_add(beyond), b"evil");
        assert_eq!(
            answers[0].0.acknowledged, next,
            "the data is not taken either"
        );
    }
    // So is one that is older than anything that was sent.
    peer.deliver_segment(flag::ACK, next, ack.wrapping_sub(1 << 20), b"evil");
    assert_eq!(peer.table.unacknowledged(peer.conn), 5);
    works(&mut peer, next, ack + 5);
}

#[test]
pub fn segment_with_an_older_clock_is_dropped() {
    let mut peer = Peer::new(Peer::config()).connect(true);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    let mut say = |behind: u32, sequence: u32, data: &[u8]| {
        let clock = (peer.now_us / 1_000) as u32;
        let answers = peer.deliver_segment_with(flag::ACK, sequence, ack, data, 0, |head| {
            head.options.timestamps = Some((clock.wrapping_sub(behind), 0));
        });
        (answers, peer.endpoint_read())
    };
    assert_eq!(say(0, next, b"new").1, b"new");
    // Once around all numbers, old segments have the numbers that are expected.
    for behind in [1, 10_000, 1 << 30] {
        let (answers, read) = say(behind, next + 3, b"old");
        assert_eq!((answers[0].0.acknowledged, read), (next + 3, Vec::new()));
    }
    assert_eq!(say(0, next + 3, b"new").1, b"new");
}

#[test]
fn divided_acknowledgements_gain_nothing() {
    let sent = |parts: u32| {
        let (mut peer, next, ack) = open();
        let first: usize = peer
            .endpoint_send(&[1; 200_000])
            .iter()
            .map(|(_, data)| data.len())
            .sum();
        let mut more = 0;
        for part in 1..=parts {
            let answers = peer.deliver_segment(flag::ACK, next, ack + 1_460 * part / parts, &[]);
            more += answers.iter().map(|(_, data)| data.len()).sum::<usize>();
        }
        (first, more)
    };
    assert_eq!(sent(1), sent(1_460));
}

#[test]
fn optimistic_acknowledgements_are_limited_to_what_was_sent() {
    let (mut peer, next, mut ack) = open();
    let config = Config::default();
    let mut taken = 0;
    for _ in 0..200 {
        while let Sent::Bytes(count) =
            peer.table
                .send(peer.conn, Part::Copied(&[1; 50_000]), peer.now_us)
        {
            taken += count;
        }
        assert!(peer.table.account.total <= config.send_bytes as usize);
        let sent: u32 = peer
            .advance_ms(0)
            .iter()
            .map(|(_, data)| data.len() as u32)
            .sum();
        // It acknowledges everything before it can have arrived, and then some.
        ack = ack.wrapping_add(sent);
        peer.deliver_segment(flag::ACK, next, ack.wrapping_add(1), &[]);
        peer.deliver_segment(flag::ACK, next, ack, &[]);
    }
    assert!(taken > config.send_bytes as usize);
    assert_eq!(peer.state(), State::Established);
}

#[test]
fn shrinking_window_is_survived() {
    let (mut peer, next, ack) = open();
    let sent: usize = peer
        .endpoint_send(&[5; 10_000])
        .iter()
        .map(|(_, data)| data.len())
        .sum();
    assert_eq!(sent, 10_000);
    // The peer takes back the window of what is under way, and answers all that comes for minutes.
    peer.window = 0;
    peer.deliver_segment(flag::ACK, next, ack + 100, &[]);
    for _ in 0..300 {
        if !peer.advance_ms(1_000).is_empty() {
            peer.deliver_segment(flag::ACK, next, ack + 100, &[]);
        }
    }
    assert_eq!(peer.state(), State::Established);
    peer.window = 60_000;
    let mut at = ack + 100;
    for _ in 0..100 {
        for (head, data) in peer.deliver_segment(flag::ACK, next, at, &[]) {
            if head.sequence == at {
                at += data.len() as u32;
            }
        }
        for (head, data) in peer.advance_ms(500) {
            if head.sequence == at {
                at += data.len() as u32;
            }
        }
    }
    assert_eq!(at, ack + 10_000);
}

#[test]
fn window_that_shrinks_without_other_news_is_survived() {
    let (mut peer, next, ack) = open();
    peer.endpoint_send(&[5; 1_000]);
    // The peer has no memory: it drops what comes, and says so with the numbers that it has sent before.
    peer.window = 0;
    for _ in 0..500 {
        if !peer.advance_ms(1_000).is_empty() {
            peer.deliver_segment(flag::ACK, next, ack, &[]);
        }
        assert_eq!(peer.state(), State::Established);
    }
    peer.window = 60_000;
    let mut segments = peer.deliver_segment(flag::ACK, next, ack, &[]);
    segments.extend(peer.advance_ms(1_000));
    assert!(
        segments.iter().any(|(_, data)| *data == [5; 1_000]),
        "the window is used at once"
    );
}

#[test]
fn end_behind_a_full_buffer_opens_no_window() {
    let mut peer = Peer::connected(Config {
        receive_log2: 12,
        ..Peer::config()
    });
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    for at in [0, 1_024, 2_048, 3_072] {
        peer.deliver_segment(flag::ACK, next + at, ack, &[1; 1_024]);
    }
    let answers = peer.deliver_segment(flag::FIN | flag::ACK, next + 4_096, ack, &[]);
    assert_eq!(
        (answers[0].0.acknowledged, answers[0].0.window),
        (next + 4_097, 0)
    );
    assert_eq!(peer.endpoint_read().len(), 4_096);
}

#[test]
fn bytes_out_of_order_give_way_to_those_before_them() {
    let (mut peer, next, ack) = open();
    peer.table.account.limit = 1_000;
    peer.deliver_segment(flag::ACK, next + 10, ack, &[1; 1_000]);
    assert_eq!(peer.table.account.total, 1_000);
    let answers = peer.deliver_segment(flag::ACK, next, ack, &[2; 10]);
    assert_eq!(answers[0].0.acknowledged, next + 10);
    assert_eq!(peer.endpoint_read(), [2; 10]);
}

#[test]
pub fn later_contents_do_not_replace_earlier_ones() {
    let (mut peer, next, ack) = open();
    peer.deliver_segment(flag::ACK, next + 2, ack, b"cd");
    peer.deliver_segment(flag::ACK, next + 6, ack, b"gh");
    peer.deliver_segment(flag::ACK, next + 1, ack, b"WWWWWWW");
    peer.deliver_segment(flag::ACK, next + 3, ack, b"YYYYYY");
    peer.deliver_segment(flag::ACK, next, ack, b"abZZZZZZZ");
    let read = peer.endpoint_read();
    assert_eq!(&read[2..4], b"cd");
    assert_eq!(&read[6..8], b"gh");
    assert_eq!(read.len(), 9);
}

#[test]
fn holes_cost_no_more_than_their_limit() {
    let (mut peer, next, ack) = open();
    let config = Config::default();
    for at in 1..30_000 {
        peer.deliver_segment(flag::ACK, next + 2 * at, ack, b"x");
    }
    assert_eq!(peer.table.account.total, config.ranges);
    // The account may have room for less.
    let (mut peer, next, ack) = open();
    peer.table.account.limit = 3;
    for at in 1..100 {
        peer.deliver_segment(flag::ACK, next + 2 * at, ack, b"x");
    }
    assert_eq!(peer.table.account.total, 3);
}

#[test]
fn tiny_segment_size_is_raised() {
    let mut peer = Peer::new(Peer::config());
    let tiny = |head: &mut Head| head.options.segment_bytes = Some(1);
    let answers = peer.deliver_segment_with(flag::SYN, 5_000, 0, &[], 0, tiny);
    let ack = answers[0].0.sequence.wrapping_add(1);
    peer.deliver_segment(flag::ACK, 5_001, ack, &[]);
    peer.conn = peer.table.accept(0, 0).expect("a connection");
    let segments = peer.endpoint_send(&[1; 1_000]);
    assert!(
        segments.iter().all(|(_, data)| data.len() >= 232),
        "{}",
        segments.len()
    );
}

#[test]
fn small_link_of_a_forged_message_is_raised() {
    let (mut peer, _, _) = open();
    let segments = peer.endpoint_send(&[1; 1_460]);
    let again = peer.deliver_packet(&too_big(&packet(&segments[0].0, &segments[0].1), 68));
    assert!(
        again
            .iter()
            .all(|(_, data)| data.len() == 512 || data.len() == 1_460 - 1_024)
    );
}

#[test]
fn broken_packets_are_dropped() {
    let (mut peer, next, ack) = open();
    let head = Head {
        from: peer.peer_end,
        to: peer.endpoint_end,
        sequence: next,
        acknowledged: ack,
        flags: flag::ACK,
        window: 100,
        options: Options {
            timestamps: Some((1, 2)),
            ..Options::default()
        },
    };
    let good = packet(&head, b"evil");
    let mut rng = Rng::new(3);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << rng.below(8);
        assert!(peer.deliver_packet(&bad).is_empty(), "byte {at}");
    }
    for length in 0..good.len() {
        assert!(peer.deliver_packet(&good[..length]).is_empty());
    }
    works(&mut peer, next, ack);
}

/// A packet with a correct checksum of its IPv4 header and of its segment, after a change.
fn changed(good: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = good.to_vec();
    change(&mut out);
    let sum = |parts: &[&[u8]]| {
        let mut sum = 0u32;
        for pair in parts.concat().chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    };
    out[10..12].fill(0);
    let ip = sum(&[&out[..20]]);
    out[10..12].copy_from_slice(&ip.to_be_bytes());
    out[36..38].fill(0);
    let length = (out.len() as u16 - 20).to_be_bytes();
    let tcp = sum(&[&out[12..20], &[0, 6], &length, &out[20..]]);
    out[36..38].copy_from_slice(&tcp.to_be_bytes());
    out
}

#[test]
fn fragments_and_options_that_do_not_parse_are_dropped() {
    let (mut peer, next, ack) = open();
    let head = Head {
        from: peer.peer_end,
        to: peer.endpoint_end,
        sequence: next,
        acknowledged: ack,
        flags: flag::ACK,
        window: 100,
        options: Options {
            timestamps: Some((1, 2)),
            ..Options::default()
        },
    };
    let good = packet(&head, b"evil");
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 8] = [
        ("more fragments", |packet| packet[6] = 0x20),
        ("a later fragment", |packet| packet[7] = 1),
        ("an option of length 0", |packet| packet[43] = 0),
        ("an option of length 1", |packet| packet[43] = 1),
        ("an option beyond the header", |packet| packet[43] = 60),
        ("a timestamp of another length", |packet| packet[43] = 9),
        ("a header beyond the packet", |packet| packet[32] = 0xf0),
        ("a header shorter than any", |packet| packet[32] = 0x40),
    ];
    for (what, change) in changes {
        assert!(
            peer.deliver_packet(&changed(&good, change)).is_empty(),
            "{what}"
        );
    }
    assert_eq!(
        (peer.table.counters.fragments, peer.table.counters.malformed),
        (2, 6)
    );
    works(&mut peer, next, ack);
}

#[test]
fn broken_packets_of_ipv6_are_dropped() {
    let (client, server) = super::network::ends(true);
    let mut table = super::network::endpoint(Config::default(), server, 1);
    table.listen(server.port);
    let syn = Head {
        from: client,
        to: server,
        sequence: 5,
        acknowledged: 0,
        flags: flag::SYN,
        window: 100,
        options: Options::default(),
    };
    let good = packet(&syn, &[]);
    let mut device = Packets::default();
    // Nothing protects the traffic class, the flow and the number of hops.
    let unprotected = |at: usize| (1..4).contains(&at) || at == 7;
    for at in (0..good.len()).filter(|at| !unprotected(*at)) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        table.receive(&bad, 1, &mut device);
    }
    for length in 0..good.len() {
        table.receive(&good[..length], 1, &mut device);
    }
    // A fragment, and another header before that of TCP.
    for next_header in [44, 0] {
        let mut bad = good.clone();
        bad[6] = next_header;
        table.receive(&bad, 1, &mut device);
    }
    // An address that would be taken for one of IPv4.
    let mapped = Head {
        from: End::new([10, 0, 0, 9], 7),
        ..syn
    };
    table.receive(&packet(&mapped, &[]), 1, &mut device);
    assert_eq!((device.list.len(), table.counters.fragments), (0, 1));
    table.receive(&good, 1, &mut device);
    assert_eq!(device.list.len(), 1);
}

#[test]
fn land_attack_and_impossible_sources_are_dropped() {
    let (mut peer, next, ack) = open();
    let other = peer.endpoint_end;
    for from in [
        other,
        End::new([224, 0, 0, 1], 7),
        End::new([255, 255, 255, 255], 7),
        End::new([0, 0, 0, 0], 7),
        End::new([0, 1, 2, 3], 7),
        End::new([127, 0, 0, 1], 7),
        End { port: 7, ..other },
        End {
            port: 0,
            ..peer.peer_end
        },
    ] {
        let answers = peer.deliver_segment_with(flag::SYN, 5, 0, &[], 0, |head| head.from = from);
        assert!(answers.is_empty(), "{from:?}");
    }
    // All but the one from another port of ours, which parses.
    assert_eq!(peer.table.counters.malformed, 7);
    works(&mut peer, next, ack);
}

#[test]
fn packets_to_other_addresses_are_not_answered() {
    let (mut peer, ..) = open();
    let to = End::new([10, 0, 0, 77], 80);
    for flags in [flag::SYN, flag::ACK, flag::FIN, flag::SYN | flag::ACK] {
        assert!(
            peer.deliver_segment_with(flags, 5, 5, b"x", 0, |head| head.to = to)
                .is_empty()
        );
    }
}

#[test]
fn random_segments_never_break_a_table() {
    let mut rng = Rng::new(9);
    for _ in 0..300 {
        let states = [
            State::SynSent,
            State::SynReceived,
            State::Established,
            State::FinWait1,
            State::FinWait2,
            State::CloseWait,
            State::Closing,
            State::LastAck,
            State::TimeWait,
        ];
        let mut peer = Peer::reach(rng.pick(&states));
        for _ in 0..60 {
            let near = |rng: &mut Rng, number: u32| match rng.below(4) {
                0 => number,
                1 => number.wrapping_add(rng.below(5) as u32).wrapping_sub(2),
                2 => number
                    .wrapping_add(rng.below(200_000) as u32)
                    .wrapping_sub(100_000),
                _ => rng.draw() as u32,
            };
            let (sequence, ack) = (
                near(&mut rng, peer.next_sequence),
                near(&mut rng, peer.expected_sequence),
            );
            let flags = rng.below(32) as u8;
            let data = vec![1; rng.pick(&[0, 1, 100, 1_400])];
            peer.window = rng.pick(&[0, 1, 60_000]);
            peer.deliver_segment(flags, sequence, ack, &data);
            if rng.chance(20) {
                peer.advance_ms(rng.range(0, 3_000) as u64);
            }
            if rng.chance(20) {
                peer.endpoint_send(&[1; 3_000]);
            }
            if rng.chance(10) {
                peer.endpoint_read();
            }
        }
        let mut device = Packets::default();
        peer.table.reset(peer.conn, peer.now_us, &mut device);
        assert_eq!(peer.table.account.held.get(&peer.conn.0), None);
    }
}
