//! What connections cost, and the table around them.

use alloc::vec::Vec;

use super::network::{App, CALM, World, endpoint, ends};
use super::peer::Peer;
use crate::{Config, End, Part, Sent, State, flag};

#[test]
fn idle_connection_is_one_row() {
    assert!(size_of::<crate::row::Row>() <= 96);
    let mut peer = Peer::connected(Config::default());
    assert!(peer.table.is_idle(peer.conn));
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack, b"request");
    assert!(!peer.table.is_idle(peer.conn), "bytes to read");
    peer.endpoint_read();
    peer.advance_ms(100);
    assert!(peer.table.is_idle(peer.conn), "read and acknowledged");
    peer.endpoint_send(b"message");
    assert!(!peer.table.is_idle(peer.conn), "bytes on their way");
    peer.deliver_segment(flag::ACK, next + 7, ack + 7, &[]);
    assert!(peer.table.is_idle(peer.conn), "acknowledged");
    assert_eq!(
        (peer.table.transfer_count(), peer.table.account.total),
        (0, 0)
    );
    peer.advance_ms(10_000);
    assert_eq!(peer.table.next_us(), None, "no timer of an idle connection");
}

#[test]
fn large_parts_are_shared_and_small_ones_copied() {
    let mut peer = Peer::connected(Config {
        share_bytes: 1_000,
        ..Peer::config()
    });
    let large = super::network::Shared::from(&[1; 1_000][..]);
    let small = super::network::Shared::from(&[2; 999][..]);
    for part in [&large, &small] {
        let sent = peer.table.send(peer.conn, Part::Shared(part), peer.now_us);
        assert_eq!(sent, Sent::Bytes(part.len()));
    }
    let count = |part: &super::network::Shared| alloc::sync::Arc::strong_count(part);
    assert_eq!((count(&large), count(&small)), (2, 1));
    let bytes: Vec<u8> = peer
        .advance_ms(0)
        .into_iter()
        .flat_map(|(_, data)| data)
        .collect();
    assert_eq!(bytes, [&large[..], &small[..]].concat());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack + 1_999, &[]);
    assert_eq!(count(&large), 1, "freed when it is acknowledged");
}

#[test]
fn send_takes_what_the_buffer_and_the_account_have_room_for() {
    let mut peer = Peer::connected(Config {
        send_bytes: 100,
        ..Peer::config()
    });
    assert_eq!(
        peer.table.send(peer.conn, Part::Copied(&[1; 150]), 0),
        Sent::Bytes(100)
    );
    assert_eq!(
        peer.table.send(peer.conn, Part::Copied(&[1; 1]), 0),
        Sent::Again
    );
    peer.advance_ms(0);
    peer.table.interest(peer.conn, 9, true, true);
    let events = |peer: &mut Peer| {
        let mut all = Vec::new();
        peer.table
            .events(usize::MAX, |conn, ready| all.push((conn, ready)));
        all
    };
    assert!(events(&mut peer).is_empty());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack + 50, &[]);
    let ready = events(&mut peer);
    assert!(ready.len() == 1 && ready[0].1.writable && ready[0].1.token == 9);
    assert_eq!(events(&mut peer).len(), 1, "it stays ready");
    peer.table.account.limit = 60;
    assert_eq!(
        peer.table.send(peer.conn, Part::Copied(&[1; 11]), 0),
        Sent::Again
    );
    assert_eq!(
        peer.table.send(peer.conn, Part::Copied(&[1; 10]), 0),
        Sent::Bytes(10)
    );
}

#[test]
fn thousands_of_connections_find_their_rows() {
    let (client, server) = ends(true);
    let mut table = endpoint(
        Config {
            connections: 3_000,
            ..Config::default()
        },
        client,
        1,
    );
    let conns: Vec<_> = (0..3_000)
        .map(|n| {
            let local = End {
                port: 1_000 + n,
                ..client
            };
            (local, table.connect(local, server, 0, 1).expect("room"))
        })
        .collect();
    let more = End {
        port: 9_000,
        ..client
    };
    assert!(
        table.connect(more, server, 0, 1).is_none(),
        "no more than the setting allows"
    );
    let mut device = super::network::Packets::default();
    for (n, (local, conn)) in conns.iter().enumerate() {
        assert_eq!(table.find(local, &server), Some(conn.0));
        if n % 3 == 0 {
            table.close(*conn, 2, &mut device);
        }
    }
    for (n, (local, conn)) in conns.iter().enumerate() {
        let found = table.find(local, &server);
        assert_eq!(found, (n % 3 != 0).then_some(conn.0));
    }
    assert_eq!(table.len(), 2_000);
}

#[test]
fn link_without_room_loses_nothing() {
    let mut peer = Peer::connected(Peer::config());
    peer.table
        .send(peer.conn, Part::Copied(&[3; 5_000]), peer.now_us);
    let mut device = super::network::Packets {
        room: 2,
        ..Default::default()
    };
    peer.table.poll(peer.now_us, &mut device);
    assert_eq!(device.list.len(), 2);
    let rest = peer.advance_ms(0);
    let bytes: usize = rest.iter().map(|(_, data)| data.len()).sum();
    assert_eq!(bytes, 5_000 - 2 * 1_460);
    assert_eq!(peer.table.counters.retransmitted, 0);
}

#[test]
fn ring_that_is_not_served_for_seconds_delays_and_loses_nothing() {
    let config = Config::default();
    let apps = [App::new([1; 50_000].into()), App::new([2; 50_000].into())];
    let mut world = World::new(8, false, [config.clone(), config], apps, CALM);
    world.run(0);
    for _ in 0..10 {
        let end_us = world.now_us + 20_000;
        world.step(end_us);
    }
    // Nothing of the server's is served.
    world.now_us += 5_000_000;
    assert!(world.run(60));
    assert_eq!(world.verdict(), Ok(()));
}

#[test]
fn closing_with_unread_bytes_resets() {
    let mut peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack, b"unread");
    let mut device = super::network::Packets::default();
    peer.table.close(peer.conn, peer.now_us, &mut device);
    let segments = super::peer::parse_segments(&device.list);
    assert!(segments[0].0.has(flag::RST));
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn orphans_do_not_stay_for_ever() {
    // The peer never closes its side.
    let mut peer = Peer::reach(State::FinWait2);
    let mut device = super::network::Packets::default();
    peer.table.close(peer.conn, peer.now_us, &mut device);
    peer.advance_ms(59_000);
    assert_eq!(peer.table.len(), 1);
    for _ in 0..200 {
        peer.advance_ms(1_000);
    }
    assert_eq!(peer.table.len(), 0);
    // The peer keeps its window closed and answers every probe.
    let mut peer = Peer::connected(Peer::config());
    peer.close_window();
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.endpoint_send(b"never taken");
    peer.table.close(peer.conn, peer.now_us, &mut device);
    for _ in 0..400 {
        if !peer.advance_ms(1_000).is_empty() {
            peer.deliver_segment(flag::ACK, next, ack, &[]);
        }
    }
    assert_eq!((peer.table.len(), peer.table.account.total), (0, 0));
}

#[test]
fn older_window_does_not_replace_a_newer_one() {
    let mut peer = Peer::connected(Peer::config());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.window = 1_000;
    // It was sent before the third packet, and has been overtaken.
    peer.deliver_segment(flag::ACK, next, ack, &[]);
    let sent: usize = peer
        .endpoint_send(&[1; 5_000])
        .iter()
        .map(|(_, data)| data.len())
        .sum();
    assert_eq!(sent, 5_000);
}

#[test]
fn closed_listener_resets_those_that_wait() {
    let mut peer = Peer::new(Peer::config());
    let answers = peer.deliver_segment(flag::SYN, 5_000, 0, &[]);
    let ack = answers[0].0.sequence.wrapping_add(1);
    peer.deliver_segment(flag::ACK, 5_001, ack, b"request");
    let mut device = super::network::Packets::default();
    peer.table.close_listeners(peer.now_us, &mut device);
    let segments = super::peer::parse_segments(&device.list);
    assert!(segments.len() == 1 && segments[0].0.has(flag::RST));
    assert!(
        peer.deliver_segment(flag::SYN, 9_000, 0, &[])[0]
            .0
            .has(flag::RST)
    );
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn full_table_forgets_what_it_remembers_first() {
    let mut peer = Peer::new(Config {
        connections: 2,
        ..Peer::config()
    });
    for port in 1..10 {
        let from = End {
            port,
            ..peer.peer_end
        };
        let change = |head: &mut crate::Head| head.from = from;
        let answers = peer.deliver_segment_with(flag::SYN, 100, 0, &[], 0, change);
        let ack = answers[0].0.sequence.wrapping_add(1);
        peer.deliver_segment_with(flag::ACK, 101, ack, &[], 0, change);
        let conn = peer.table.accept(0, 0).expect("room");
        let mut device = super::network::Packets::default();
        peer.table.reset(conn, peer.now_us, &mut device);
    }
    assert_eq!(peer.table.len(), 2);
}
