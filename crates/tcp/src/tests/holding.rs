//! How long a peer can make an endpoint hold bytes, or a connection, by answers that bring nothing forward.

use alloc::vec::Vec;

use super::network::{Packets, Shared};
use super::peer::{Peer, parse_segments};
use crate::scoreboard::SentSegment;
use crate::transfer::Transfer;
use crate::{Config, Conn, End, KeepAlive, Part, Received, Sent, State, flag};

/// The longest time that a byte is held, in milliseconds.
fn longest_ms() -> u64 {
    2 * u64::from(Config::default().hold_ms)
}

#[test]
fn orphan_whose_peer_acknowledges_a_byte_a_minute_ends() {
    let mut peer = Peer::connected(Peer::config());
    peer.endpoint_send(&[1; 1_000]);
    let mut device = Packets::default();
    peer.table.close(peer.conn, peer.now_us, &mut device);
    let (next, ack, begun_us) = (peer.next_sequence, peer.expected_sequence, peer.now_us);
    for byte in 1.. {
        peer.advance_ms(59_000);
        if peer.table.is_empty() {
            break;
        }
        assert!(peer.now_us - begun_us < longest_ms() * 1_000);
        peer.deliver_segment(flag::ACK, next, ack + byte, &[]);
    }
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn end_that_a_closed_window_holds_back_is_not_held_for_ever() {
    let mut peer = Peer::connected(Peer::config());
    peer.close_window();
    peer.table.shut_down(peer.conn, peer.now_us);
    let begun_us = peer.now_us;
    while peer.state() != State::Closed {
        assert!(peer.now_us - begun_us < longest_ms() * 1_000);
        peer.advance_ms(1_000);
        let (next, ack) = (peer.next_sequence, peer.expected_sequence);
        peer.deliver_segment(flag::ACK, next, ack, &[]);
    }
}

#[test]
fn window_of_a_byte_takes_few_packets_and_ends() {
    let mut peer = Peer::connected(Peer::config());
    peer.close_window();
    peer.window = 1;
    let (next, mut ack, begun_us) = (peer.next_sequence, peer.expected_sequence, peer.now_us);
    peer.deliver_segment(flag::ACK, next, ack, &[]);
    peer.endpoint_send(&[1; 10_000]);
    let mut sent = 0;
    loop {
        let mut answers = peer.advance_ms(10);
        if peer.state() == State::Closed {
            break;
        }
        let passed_ms = (peer.now_us - begun_us) / 1_000;
        assert!(passed_ms < longest_ms());
        while let Some((_, data)) = answers.pop() {
            sent += data.len() as u64;
            assert!(sent <= passed_ms / 200 + 1, "{sent} in {passed_ms} ms");
            ack = ack.wrapping_add(data.len() as u32);
            if !data.is_empty() {
                answers.extend(peer.deliver_segment(flag::ACK, next, ack, &[]));
            }
        }
    }
    assert!(sent > 100, "a window of a byte is used: {sent}");
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn closed_window_is_not_asked_for_ever() {
    let mut peer = Peer::connected(Peer::config());
    peer.close_window();
    peer.endpoint_send(b"held");
    let begun_us = peer.now_us;
    while peer.state() != State::Closed {
        assert!(peer.now_us - begun_us < longest_ms() * 1_000);
        peer.advance_ms(1_000);
        let (next, ack) = (peer.next_sequence, peer.expected_sequence);
        peer.deliver_segment(flag::ACK, next, ack, &[]);
    }
    assert!(peer.now_us - begun_us >= longest_ms() / 2 * 1_000);
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn peer_that_takes_all_bytes_in_time_is_never_ended() {
    let mut peer = Peer::connected(Peer::config());
    let (next, mut ack) = (peer.next_sequence, peer.expected_sequence);
    peer.endpoint_send(&[1; 100]);
    for _ in 0..100 {
        // There is always something that is not acknowledged.
        peer.endpoint_send(&[1; 100]);
        peer.advance_ms(longest_ms() / 8);
        ack += 100;
        peer.deliver_segment(flag::ACK, next, ack, &[]);
    }
    assert_eq!(peer.state(), State::Established);
}

#[test]
fn acknowledgement_in_the_turn_of_the_deadline_counts() {
    let mut peer = Peer::connected(Peer::config());
    peer.endpoint_send(b"x");
    peer.now_us += longest_ms() / 2 * 1_000;
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack + 1, &[]);
    assert_eq!(peer.state(), State::Established);
}

#[test]
fn bytes_out_of_order_are_dropped_if_those_before_them_do_not_come() {
    let mut peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next + 3, ack, b"def");
    assert_eq!(peer.table.account.total, 3);
    for _ in 0..longest_ms() / 2_000 {
        // The peer lives, and says nothing new.
        peer.advance_ms(1_000);
        peer.deliver_segment(flag::ACK, next, ack, &[]);
    }
    peer.advance_ms(1_000);
    assert_eq!(
        (peer.table.account.total, peer.table.transfer_count()),
        (0, 0)
    );
    // It may send all again.
    peer.deliver_segment(flag::ACK, next + 3, ack, b"def");
    peer.deliver_segment(flag::ACK, next, ack, b"abc");
    assert_eq!(peer.endpoint_read(), b"abcdef");
}

#[test]
fn silent_peer_is_probed_whatever_the_endpoint_holds_of_it() {
    for (offset, data) in [(0, &b"unread"[..]), (10, b"out of order")] {
        let mut peer = Peer::connected(Config {
            keep_alive: Some(KeepAlive {
                idle_ms: 30_000,
                interval_ms: 10_000,
                probes: 3,
            }),
            hold_ms: 0,
            ..Peer::config()
        });
        let (next, ack) = (peer.next_sequence, peer.expected_sequence);
        peer.deliver_segment(flag::ACK, next + offset, ack, data);
        for _ in 0..100 {
            peer.advance_ms(1_000);
        }
        let read = peer.table.read(peer.conn, &mut [0; 100]);
        assert_eq!(read, Received::Failed(crate::Failure::TimedOut));
        assert_eq!(peer.table.account.total, 0);
    }
}

#[test]
fn cookie_is_good_once_whatever_the_time_in_time_wait() {
    for time_wait_ms in [0, 1_000] {
        let mut peer = Peer::new(Config {
            time_wait_ms,
            ..Peer::config()
        });
        let answers = peer.deliver_segment(flag::SYN, 5_000, 0, &[]);
        let ack = answers[0].0.sequence.wrapping_add(1);
        peer.deliver_segment(flag::ACK, 5_001, ack, b"once");
        peer.conn = peer.table.accept(0, 0).expect("a connection");
        let mut device = Packets::default();
        peer.table.reset(peer.conn, peer.now_us, &mut device);
        for _ in 0..70 {
            // A copy of the third packet.
            peer.deliver_segment(flag::ACK, 5_001, ack, b"once");
            assert_eq!(peer.table.waiting(0), 0, "{time_wait_ms}");
            peer.advance_ms(1_000);
        }
        assert!(peer.table.is_empty());
    }
}

#[test]
fn burst_leaves_no_memory_behind_and_no_connection_alone() {
    let mut peer = Peer::connected(Peer::config());
    let remote = End {
        port: 9,
        ..peer.peer_end
    };
    let mut connect = |port| {
        let local = End {
            port,
            ..peer.endpoint_end
        };
        let now_us = peer.now_us;
        peer.table.connect(local, remote, 0, now_us).unwrap()
    };
    let burst: Vec<_> = (10_000..20_000).map(&mut connect).collect();
    // Behind the others in the side table.
    peer.endpoint_send(b"kept");
    assert_eq!(peer.table.transfers.len(), 10_001);
    let mut device = Packets::default();
    for conn in burst {
        peer.table.reset(conn, peer.now_us, &mut device);
    }
    peer.advance_ms(0);
    assert_eq!(
        (peer.table.transfers.capacity(), peer.table.transfer_count()),
        (1, 1)
    );
    let again = peer.advance_ms(2_000);
    assert_eq!(again[0].1, b"kept", "its timer still runs");
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack + 4, b"answer");
    assert_eq!(peer.endpoint_read(), b"answer");
    assert!(peer.table.is_idle(peer.conn));
    assert_eq!(peer.advance_ms(100_000).len(), 0);
}

/// Begins another connection of the peer, from another port.
fn another(peer: &mut Peer, port: u16) -> Conn {
    peer.peer_end.port = port;
    let answers = peer.deliver_segment(flag::SYN, 1_000, 0, &[]);
    let ack = answers[0].0.sequence.wrapping_add(1);
    peer.deliver_segment(flag::ACK, 1_001, ack, &[]);
    (peer.next_sequence, peer.expected_sequence) = (1_001, ack);
    peer.table.accept(0, port.into()).expect("a connection")
}

#[test]
fn short_memory_ends_a_peer_that_acknowledges_nothing_and_spares_the_others() {
    let mut peer = Peer::connected(Peer::config());
    let silent = peer.conn;
    peer.endpoint_send(&[1; 1_000]);
    let other = another(&mut peer, 50_000);
    peer.conn = other;
    peer.advance_ms(u64::from(Config::default().short_hold_ms));
    assert_eq!(peer.table.state(silent), State::Established);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.endpoint_send(&[2; 100]);
    // Bytes behind a gap.
    peer.deliver_segment(flag::ACK, next + 1_000, ack, &[3; 200]);
    assert_eq!(peer.table.account.total, 1_300);
    peer.table.account.is_short = true;
    peer.advance_ms(1);
    assert_eq!(peer.table.state(silent), State::Closed);
    assert_eq!(peer.table.account.total, 100, "what was sent a moment ago");
    peer.deliver_segment(flag::ACK, next, ack + 100, &[3; 200]);
    assert_eq!(peer.endpoint_read(), [3; 200]);
}

#[test]
fn connections_that_memory_refuses_hide_no_other_and_are_reported_when_there_is_room() {
    let mut peer = Peer::connected(Peer::config());
    let refused: Vec<Conn> = (50_000..50_008)
        .map(|port| another(&mut peer, port))
        .collect();
    peer.conn = another(&mut peer, 60_000);
    peer.table.interest(peer.conn, 99, true, false);
    peer.table.account.limit = 100;
    for (token, conn) in (1..).zip(&refused) {
        let sent = peer.table.send(*conn, Part::Copied(&[1; 1_000]), 0);
        assert_eq!(sent, Sent::Again);
        peer.table.interest(*conn, token, true, true);
    }
    let events = |peer: &mut Peer, max| {
        let mut tokens = Vec::new();
        peer.table.events(max, |_, ready| tokens.push(ready.token));
        tokens
    };
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack, b"read");
    assert_eq!(events(&mut peer, 4), [99], "writing would fail again");
    assert_eq!(peer.endpoint_read(), b"read");
    peer.table.unblock();
    let mut tokens = events(&mut peer, 4);
    tokens.extend(events(&mut peer, 4));
    tokens.sort_unstable();
    assert!(tokens.iter().copied().eq(1..=8), "{tokens:?}");
}

#[test]
fn events_of_a_connection_that_is_not_wanted_yet_are_kept_for_later() {
    let mut peer = Peer::connected(Peer::config());
    peer.table.withhold_events(peer.conn);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack, b"early");
    peer.table.events(1, |_, ready| panic!("{ready:?}"));
    peer.table.interest(peer.conn, 7, true, false);
    let mut tokens = Vec::new();
    peer.table.events(1, |_, ready| tokens.push(ready.token));
    assert_eq!(tokens, [7]);
    assert_eq!(peer.endpoint_read(), b"early");
}

#[test]
fn short_memory_soon_ends_what_the_caller_has_closed_and_makes_no_progress() {
    let mut peer = Peer::connected(Peer::config());
    peer.endpoint_send(&[1; 1_000]);
    let mut device = Packets::default();
    peer.table.close(peer.conn, peer.now_us, &mut device);
    peer.table.account.is_short = true;
    peer.advance_ms(900);
    assert_eq!(peer.table.account.total, 1_000);
    peer.advance_ms(200);
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn connection_that_was_closed_first_gives_way_when_too_many_wait_for_their_peers() {
    let mut peer = Peer::connected(Config {
        orphans: 2,
        ..Peer::config()
    });
    let conns: Vec<Conn> = (50_000..50_004)
        .map(|port| another(&mut peer, port))
        .collect();
    let mut device = Packets::default();
    let mut close = |peer: &mut Peer, conn| {
        peer.table.close(conn, peer.now_us, &mut device);
        peer.table.poll(peer.now_us, &mut device);
        let packets = core::mem::take(&mut device.list);
        let segments = parse_segments(&packets).into_iter();
        segments
            .map(|(head, _)| (head.to.port, head.has(flag::RST)))
            .collect::<Vec<_>>()
    };
    assert_eq!(close(&mut peer, conns[0]), [(50_000, false)]);
    assert_eq!(close(&mut peer, conns[1]), [(50_001, false)]);
    let resets_the_first = [(50_000, true), (50_002, false)];
    assert_eq!(close(&mut peer, conns[2]), resets_the_first);
    assert_eq!(peer.table.orphans(), 2);
    // The second is over, so its place is free.
    peer.peer_end.port = 50_001;
    let (_, ack) = (
        peer.next_sequence,
        peer.table.rows[conns[1].0 as usize].send_next,
    );
    peer.deliver_segment(flag::FIN | flag::ACK, 1_001, ack, &[]);
    assert_eq!(peer.table.orphans(), 1);
    assert_eq!(close(&mut peer, conns[3]), [(50_003, false)]);
}

#[test]
fn busy_connections_are_charged_for_more_than_their_bytes() {
    let mut peer = Peer::connected(Peer::config());
    assert_eq!(peer.table.account.entries, 0);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    // A byte out of order costs an entry, and many small segments a place each.
    peer.deliver_segment(flag::ACK, next + 10, ack, b"x");
    let of_entry = peer.table.account.entries;
    assert!(of_entry >= size_of::<Transfer<Shared>>(), "{of_entry}");
    for _ in 0..100 {
        peer.endpoint_send(b"y");
    }
    let of_segments = peer.table.account.entries - of_entry;
    assert!(of_segments >= 100 * size_of::<SentSegment>() - of_entry);
    peer.deliver_segment(flag::ACK, next, ack + 100, &[]);
    // While memory is short it goes, even if there is only an end of stream out of order.
    peer.deliver_segment(flag::ACK | flag::FIN, next + 20, ack + 100, &[]);
    assert!(peer.table.account.entries >= of_entry);
    peer.table.account.is_short = true;
    peer.advance_ms(1);
    assert_eq!(
        (peer.table.account.entries, peer.table.transfer_count()),
        (0, 0)
    );
}
