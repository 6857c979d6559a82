//! Tests that side rows (rarely needed state of a connection) and memory charges are released with their connection.

use crate::base::ids::SocketId;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::admission::Admission;
use crate::client::connections::*;
use crate::client::row::State;
use crate::protocol::front::AllProtocols;
use crate::protocol::http::state::{HttpSpill, PublishTarget};
use crate::protocol::side::Spill;

type Connections = super::Connections<AllProtocols>;

/// Two new connections.
fn two() -> Connections {
    let admission = Admission::new(&Settings::default(), 9);
    let mut conns = Connections::new(ShardAccount::new(admission, 1));
    for link in [5, 6] {
        conns.insert(Row::new(SocketId(link), State::Http, Now::default(), 0));
    }
    conns
}

fn append(conns: &mut Connections, slot: u32, bytes: &[u8]) {
    conns.change_unprocessed_input(slot, |input| match input {
        Spill::Http(spill) => spill.append(bytes, 8_000),
        _ => panic!("a request"),
    });
}

fn charged(conns: &Connections, part: MemoryPart) -> usize {
    conns.account.part(part)
}

#[test]
fn address_behind_a_proxy_is_charged_until_the_connection_ends() {
    let mut conns = two();
    for last in [1, 2] {
        conns.set_relayed_address(0, Some([10, 0, 0, last].into()));
        let charged = charged(&conns, MemoryPart::Connections);
        assert!((21..64).contains(&charged), "{charged}");
    }
    conns.remove(0);
    assert_eq!(charged(&conns, MemoryPart::Connections), 0);
}

#[test]
fn received_bytes_count_while_they_are_held() {
    let mut conns = two();
    append(&mut conns, 0, &[7; 100]);
    append(&mut conns, 0, &[7; 50]);
    let held = conns
        .unprocessed_input(0)
        .map_or(0, UnprocessedInput::bytes);
    assert!(held >= 150 && conns.receive_bytes() == held);
    conns.charge_received();
    assert_eq!(charged(&conns, MemoryPart::Received), held);
    assert!(conns.take_unprocessed_input(0).is_some() && conns.take_unprocessed_input(0).is_none());
    assert_eq!(conns.receive_bytes(), 0);
    conns.set_unprocessed_input(1, Spill::Http(HttpSpill::default()));
    append(&mut conns, 1, &[7; 10]);
    conns.remove(1);
    assert_eq!(conns.receive_bytes(), 0);
}

#[test]
fn an_outbox_is_charged_until_it_is_dropped() {
    let mut conns = two();
    conns.create_outbox(0, |queue| queue.push(&[7; 1_000]));
    conns.add_to_outbox(0, |queue| queue.push(&[7; 500]));
    assert_eq!(conns.outbox_bytes, 1_500);
    assert!(charged(&conns, MemoryPart::Outboxes) >= 1_500);
    conns.drop_outbox(0);
    conns.drop_outbox(0);
    assert_eq!(
        (conns.outbox_bytes, charged(&conns, MemoryPart::Outboxes)),
        (0, 0)
    );
}

#[test]
fn a_side_row_is_weighed_at_the_end_of_the_turn_and_released_with_its_connection() {
    let mut conns = two();
    conns.ensure_side_row(0).protocol_state.publish_to = Some(PublishTarget {
        hash: 1,
        name: alloc::vec![0; 300].into(),
        frame_count: 0,
    });
    assert_eq!(charged(&conns, MemoryPart::Connections), 0);
    conns.weigh_changed_side_rows();
    assert!(charged(&conns, MemoryPart::Connections) >= 300);
    assert!(conns.find_side_row(0).is_some() && conns.find_side_row(1).is_none());
    conns.remove(0);
    assert_eq!(charged(&conns, MemoryPart::Connections), 0);
}

#[test]
fn time_of_connecting_is_known_with_and_without_a_side_row() {
    // Times with and without the highest bit. The highest bit is set from 2038 on.
    for unix_s in [0, 1_790_000_000, (1 << 31) - 1, 1 << 31, u32::MAX - 86_400] {
        let at = |age_s| Now {
            s: age_s,
            unix_s: unix_s + age_s,
        };
        let mut conns = two();
        let slot = conns.insert(Row::new(SocketId(7), State::Http, at(0), 0));
        for age_s in [0, 1, 86_400] {
            let began = |conns: &Connections| conns.start_second(slot).unix_s(at(age_s));
            assert_eq!(began(&conns), unix_s);
            conns.ensure_side_row(slot);
            assert_eq!(began(&conns), unix_s);
            conns.drop_side_row(slot);
            conns.drop_side_row(slot);
            assert_eq!((began(&conns), conns.side_rows.len()), (unix_s, 0));
        }
    }
}

#[test]
fn name_of_a_connection_survives_it_and_is_not_given_to_the_next() {
    let mut conns = two();
    let id = conns.id_of(0);
    assert!(conns.is_current(id));
    conns.remove(0);
    assert!(!conns.is_current(id));
    let next = Row::new(SocketId(7), State::Http, Now::default(), 0);
    assert_eq!(conns.insert(next), 0);
    assert!(!conns.is_current(id) && conns.is_current(conns.id_of(0)));
}

#[test]
fn the_walk_for_room_goes_round_the_table() {
    let mut conns = two();
    let walk: Vec<u32> = (0..5).map(|_| conns.next_row_to_search()).collect();
    assert_eq!(walk, [0, 1, 0, 1, 0]);
}
