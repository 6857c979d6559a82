//! The table of states and transitions (RFC 9293 §3.3.2 and §3.10.7), row by row, and the states that two real endpoints pass through.

use alloc::string::String;
use alloc::vec::Vec;

use super::network::{App, CALM, World};
use super::peer::Peer;
use crate::State::{self, *};
use crate::{Config, Failure, Received, flag};

/// What arrives, or what the caller does.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// An acknowledgement of all that was sent.
    Ack,
    /// An acknowledgement of all but our FIN.
    OldAck,
    /// A FIN that acknowledges all.
    Fin,
    /// A FIN that does not acknowledge our FIN.
    OldFin,
    /// A SYN that acknowledges our SYN.
    SynAck,
    /// A SYN with the next sequence number.
    Syn,
    /// A byte of data.
    Data,
    /// A reset with the expected number.
    Reset,
    /// A reset within the window.
    BlindReset,
    /// The caller closes its sending side.
    ShutDown,
    /// The caller closes.
    Close,
    /// The time of TIME-WAIT passes.
    Time,
}

use Event::*;

/// A state, an event, the next state, and the flags of the answer.
const TABLE: &[(State, Event, State, &str)] = &[
    (SynSent, SynAck, Established, "A"),
    (SynSent, Syn, SynReceived, "SA"),
    (SynSent, Reset, Closed, ""),
    (SynSent, BlindReset, SynSent, ""),
    (SynSent, Data, SynSent, ""),
    (SynReceived, Ack, Established, ""),
    (SynReceived, SynAck, Established, ""),
    (SynReceived, Reset, Closed, ""),
    (SynReceived, BlindReset, SynReceived, "A"),
    (SynReceived, Fin, CloseWait, "A"),
    (SynReceived, Data, Established, "A"),
    (Established, Ack, Established, ""),
    (Established, Data, Established, "A"),
    (Established, Fin, CloseWait, "A"),
    (Established, Syn, Established, "A"),
    (Established, Reset, Closed, ""),
    (Established, BlindReset, Established, "A"),
    (Established, ShutDown, FinWait1, "FA"),
    (Established, Close, FinWait1, "FA"),
    (FinWait1, OldAck, FinWait1, ""),
    (FinWait1, Ack, FinWait2, ""),
    (FinWait1, Data, FinWait2, "A"),
    (FinWait1, OldFin, Closing, "A"),
    (FinWait1, Fin, TimeWait, "A"),
    (FinWait1, Reset, Closed, ""),
    (FinWait1, Syn, FinWait1, "A"),
    (FinWait2, Data, FinWait2, "A"),
    (FinWait2, Fin, TimeWait, "A"),
    (FinWait2, Reset, Closed, ""),
    (FinWait2, Syn, FinWait2, "A"),
    (CloseWait, Ack, CloseWait, ""),
    (CloseWait, Data, CloseWait, "A"),
    (CloseWait, ShutDown, LastAck, "FA"),
    (CloseWait, Close, LastAck, "FA"),
    (CloseWait, Reset, Closed, ""),
    (CloseWait, Syn, CloseWait, "A"),
    (Closing, OldAck, Closing, ""),
    (Closing, Ack, TimeWait, ""),
    (Closing, Reset, Closed, ""),
    (LastAck, OldAck, LastAck, ""),
    (LastAck, Ack, Closed, ""),
    (LastAck, Reset, Closed, ""),
    (LastAck, Syn, LastAck, "A"),
    (TimeWait, Ack, TimeWait, ""),
    (TimeWait, OldFin, TimeWait, "A"),
    (TimeWait, Reset, TimeWait, ""),
    (TimeWait, BlindReset, TimeWait, "A"),
    // A SYN that is newer begins a new connection, of which nothing is kept yet. Until its third packet the old one is remembered.
    (TimeWait, Syn, TimeWait, "SA"),
    (TimeWait, Time, Closed, ""),
    (Closed, Ack, Closed, "R"),
    (Closed, Reset, Closed, ""),
    (Closed, Syn, Closed, "SA"),
];

fn letters(flags: u8) -> String {
    let all = [
        (flag::SYN, 'S'),
        (flag::FIN, 'F'),
        (flag::RST, 'R'),
        (flag::ACK, 'A'),
    ];
    let set = all.iter().filter(|(bit, _)| flags & bit != 0);
    set.map(|(_, letter)| *letter).collect()
}

#[test]
fn every_transition_of_the_table_happens() {
    for &(state, event, next_state, answer) in TABLE {
        let mut peer = Peer::reach(state);
        let (next, ack, now_us) = (peer.next_sequence, peer.expected_sequence, peer.now_us);
        // Our FIN is acknowledged by what acknowledges all.
        let all = ack + u32::from(matches!(state, FinWait1 | Closing | LastAck));
        let answers = match event {
            Ack => peer.deliver_segment(flag::ACK, next, all, &[]),
            OldAck => peer.deliver_segment(flag::ACK, next, ack, &[]),
            Fin => peer.deliver_segment(flag::FIN | flag::ACK, next, all, &[]),
            OldFin => {
                let again = u32::from(state == TimeWait);
                peer.deliver_segment(flag::FIN | flag::ACK, next - again, ack, &[])
            }
            SynAck => {
                let again = u32::from(state == SynReceived);
                peer.deliver_segment(flag::SYN | flag::ACK, next - again, ack, &[])
            }
            Syn => peer.deliver_segment(flag::SYN, next, 0, &[]),
            Data => peer.deliver_segment(flag::ACK, next, all, b"x"),
            Reset => peer.deliver_segment(flag::RST | flag::ACK, next, ack, &[]),
            BlindReset if state == SynSent => peer.deliver_segment(flag::RST, next, 0, &[]),
            BlindReset => peer.deliver_segment(flag::RST, next + 9, 0, &[]),
            ShutDown => {
                peer.table.shut_down(peer.conn, now_us);
                peer.advance_ms(0)
            }
            Close => {
                let mut device = super::network::Packets::default();
                peer.table.close(peer.conn, now_us, &mut device);
                assert!(device.list.is_empty());
                peer.advance_ms(0)
            }
            Time => peer.advance_ms(60_000),
        };
        let flags: Vec<String> = answers
            .iter()
            .map(|(head, _)| letters(head.flags))
            .collect();
        let wanted: Vec<&str> = if answer.is_empty() {
            Vec::new()
        } else {
            [answer].into()
        };
        assert_eq!(
            (peer.state(), flags),
            (
                next_state,
                wanted.iter().map(|f| String::from(*f)).collect()
            ),
            "{state:?} {event:?}"
        );
    }
}

#[test]
fn half_closed_connections_still_carry_the_other_direction() {
    let mut peer = Peer::reach(CloseWait);
    assert_eq!(peer.table.read(peer.conn, &mut [0]), Received::End);
    let answers = peer.endpoint_send(b"hello");
    assert_eq!(answers[0].1, b"hello");
    let mut peer = Peer::reach(FinWait2);
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    peer.deliver_segment(flag::ACK, next, ack, b"hello");
    assert_eq!(peer.endpoint_read(), b"hello");
}

#[test]
fn two_ends_that_connect_and_close_at_once_have_one_connection() {
    let config = Config::default();
    let apps = [
        App::new(b"from the first".into()),
        App::new(b"from the second".into()),
    ];
    let mut world = World::new(3, false, [config.clone(), config], apps, CALM);
    let (client, server) = (world.ends[0], world.ends[1]);
    world.apps[1].conn = world.sides[1].connect(server, client, 1, world.now_us);
    assert!(world.run(20));
    assert_eq!(world.verdict(), Ok(()));
    assert_eq!(world.sides[1].counters.cookies_sent, 0);
    let states = |world: &World| {
        [0, 1].map(|side| world.sides[side].state(world.apps[side].conn.expect("a connection")))
    };
    world.pass(1);
    assert_eq!(states(&world), [TimeWait, TimeWait]);
    world.pass(70);
    assert_eq!(states(&world), [Closed, Closed]);
}

#[test]
fn closed_window_is_probed_until_it_opens() {
    let mut peer = Peer::connected(Config {
        retries: 3,
        ..Peer::config()
    });
    peer.close_window();
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    assert!(peer.endpoint_send(&[7; 100]).is_empty());
    let mut probes = 0;
    for _ in 0..40 {
        for (head, data) in peer.advance_ms(10_000) {
            assert!(data.is_empty() && head.sequence == ack.wrapping_sub(1));
            probes += 1;
            peer.deliver_segment(flag::ACK, next, ack, &[]);
        }
    }
    assert!(
        (10..40).contains(&probes),
        "{probes} probes, with growing gaps"
    );
    peer.window = 60_000;
    assert_eq!(
        peer.deliver_segment(flag::ACK, next, ack, &[])[0].1,
        [7; 100]
    );
}

#[test]
fn peer_that_answers_no_probe_is_given_up() {
    let mut peer = Peer::connected(Config {
        retries: 3,
        rto_max_us: 2_000_000,
        ..Peer::config()
    });
    peer.close_window();
    peer.endpoint_send(&[7; 100]);
    peer.advance_ms(60_000);
    assert_eq!(
        peer.table.read(peer.conn, &mut [0]),
        Received::Failed(Failure::TimedOut)
    );
    assert_eq!(peer.table.account.total, 0);
}

#[test]
fn acknowledgement_waits_for_data_but_not_long() {
    let mut peer = Peer::connected(Config::default());
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    assert!(
        peer.deliver_segment(flag::ACK, next, ack, b"one")
            .is_empty()
    );
    assert!(peer.advance_ms(39).is_empty());
    let answers = peer.advance_ms(1);
    assert_eq!(answers[0].0.acknowledged, next + 3);
    // Data takes it along.
    peer.deliver_segment(flag::ACK, next + 3, ack, b"two");
    assert_eq!(peer.endpoint_send(b"data")[0].0.acknowledged, next + 6);
    assert!(
        peer.advance_ms(100)
            .iter()
            .all(|(_, data)| !data.is_empty()),
        "no acknowledgement alone"
    );
    // Two full segments are acknowledged at once.
    assert!(
        peer.deliver_segment(flag::ACK, next + 6, ack + 4, &[1; 1_460])
            .is_empty()
    );
    assert_eq!(
        peer.deliver_segment(flag::ACK, next + 1_466, ack + 4, &[1; 1_460])
            .len(),
        1
    );
}

#[test]
fn silent_connections_are_probed_and_dead_ones_end() {
    let keep_alive = Some(crate::KeepAlive {
        idle_ms: 100_000,
        interval_ms: 10_000,
        probes: 3,
    });
    let mut peer = Peer::connected(Config {
        keep_alive,
        ..Peer::config()
    });
    let (next, ack) = (peer.next_sequence, peer.expected_sequence);
    let mut first = None;
    for second in 0..400 {
        for (head, _) in peer.advance_ms(1_000) {
            assert_eq!(head.sequence, ack.wrapping_sub(1));
            first.get_or_insert(second);
            if second < 300 {
                peer.deliver_segment(flag::ACK, next, ack, &[]);
            }
        }
    }
    assert!((99..112).contains(&first.expect("a probe")));
    assert_eq!(peer.state(), Established);
    for _ in 0..40 {
        peer.advance_ms(1_000);
    }
    assert_eq!(
        peer.table.read(peer.conn, &mut [0]),
        Received::Failed(Failure::TimedOut)
    );
}
