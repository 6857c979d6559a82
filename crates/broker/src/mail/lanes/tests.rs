//! Tests of the lanes: the mail that a flush sends, the credit, the valve that stops parties, pages of members, and the buffers that are reused.

use super::*;
use crate::base::ids::ConnId;
use crate::budget::admission::Party;
use crate::mail::ReplyTo;
use crate::mail::presence::{Member, MemberConn, PresenceChange};

const SHARDS: usize = 3;
const GONE: Tell = Tell::Gone {
    topic: 5,
    serial: 6,
};

const NOBODY: ReplyTo = ReplyTo {
    slot: 0,
    generation: 0,
    request: 0,
    part: 0,
};

fn lanes() -> Lanes {
    Lanes::new(1, SHARDS)
}

/// Flushes; returns the posted mail by target.
fn flush(lanes: &mut Lanes) -> Vec<(ShardId, Mail)> {
    let mut posted = Vec::new();
    lanes.flush(|to, mail| posted.push((to, mail)));
    posted
}

fn targets(posted: &[(ShardId, Mail)]) -> Vec<ShardId> {
    posted.iter().map(|(to, _)| *to).collect()
}

#[test]
fn pages_of_members_in_flight_are_counted_and_bounded() {
    let mut lanes = lanes();
    let before = lanes.own_bytes();
    let mut page = PresencePage::default();
    let member = Member {
        id: 1,
        at: MemberConn::here(
            0,
            ConnId {
                slot: 0,
                generation: 0,
            },
        ),
        process: 0,
        since_s: 0,
        user: b"",
        info: &[b'1'; 1_000],
    };
    while page.changes.len() < lanes.turn_limits.page_bytes {
        page.changes.push(&PresenceChange::Join(member));
    }
    let bytes = page.changes.len();
    lanes.tell_members(0, NOBODY, page.clone());
    let posted = flush(&mut lanes);
    assert!(lanes.own_bytes() >= before + bytes);
    drop(posted);
    flush(&mut lanes);
    assert!(lanes.own_bytes() < before + bytes);
    let mut posted = Vec::new();
    for _ in 0..2 * MEMBER_PAGES_MAX {
        if !lanes.may_tell_members() {
            break;
        }
        lanes.tell_members(0, NOBODY, page.clone());
        posted.extend(flush(&mut lanes));
    }
    assert!(posted.len() <= MEMBER_PAGES_MAX, "{}", posted.len());
    drop(posted);
    assert!(lanes.may_tell_members(), "they have arrived");
}

#[test]
fn flush_posts_one_mail_to_each_peer_that_has_mail() {
    let mut lanes = lanes();
    assert!(flush(&mut lanes).is_empty(), "nothing to say");
    lanes.tell(0, GONE);
    lanes.tell(0, GONE);
    lanes.to[2].bytes.extend_from_slice(b"ask");
    lanes.to[2].asks.push(Ask::Unfollow(NOBODY));
    let posted = flush(&mut lanes);
    assert_eq!(targets(&posted), [0, 2]);
    let (to_carrier, to_home) = (&posted[0].1, &posted[1].1);
    assert_eq!((to_carrier.from, to_home.from), (1, 1));
    assert_eq!((to_carrier.tells.len(), to_carrier.asks.len()), (2, 0));
    assert!(to_carrier.frames.is_some(), "tells come with their frames");
    assert_eq!((to_home.tells.len(), to_home.asks.len()), (0, 1));
    assert!(to_home.frames.is_none());
    assert_eq!(to_home.bytes, b"ask");
    assert_eq!(
        lanes.to[2].in_flight_bytes,
        lanes.weight(0, 3),
        "until credit comes back"
    );
    assert!(flush(&mut lanes).is_empty(), "it was said");
}

#[test]
fn weights_of_asks_under_way_add_up() {
    let mut lanes = lanes();
    for bytes in [10, 5] {
        lanes.to[0].bytes.resize(bytes, 0);
        lanes.to[0].asks.push(Ask::Unfollow(NOBODY));
        lanes.to[0].publishes += 1;
        assert_eq!(targets(&flush(&mut lanes)), [0]);
    }
    assert_eq!(lanes.to[0].in_flight_bytes, lanes.weight(2, 15));
}

#[test]
fn many_small_publishes_use_up_the_credit_like_few_large_ones() {
    let mut lanes = lanes();
    let limit = lanes.weight(3, 0);
    for _ in 0..3 {
        assert!(!lanes.exceeds_credit(limit));
        lanes.to[0].asks.push(Ask::Unfollow(NOBODY));
        lanes.to[0].publishes += 1;
        flush(&mut lanes);
    }
    assert!(!lanes.exceeds_credit(limit));
    lanes.to[0].asks.push(Ask::Unfollow(NOBODY));
    assert!(
        !lanes.exceeds_credit(limit),
        "only publishes wait for credit, and use it up"
    );
    lanes.to[0].publishes += 1;
    assert!(
        lanes.exceeds_credit(limit),
        "what is not yet sent counts too"
    );
    flush(&mut lanes);
    assert!(lanes.exceeds_credit(limit));
}

#[test]
fn credit_is_returned_once_by_the_next_flush() {
    let mut lanes = lanes();
    lanes.to[0].credit_bytes = 7;
    let posted = flush(&mut lanes);
    assert_eq!(targets(&posted), [0]);
    assert_eq!(posted[0].1.credit_bytes, 7);
    assert!(posted[0].1.frames.is_none(), "nothing was told");
    assert_eq!(lanes.to[0].credit_bytes, 0);
    assert!(flush(&mut lanes).is_empty());
}

/// Simulates a turn in which this party causes `visits` visits at a carrier. Returns the mail. The carrier has not handled it as long as the caller keeps it.
fn simulate_turn(
    lanes: &mut Lanes,
    party: Party,
    visits: u32,
    valve: &Valve,
) -> Vec<(ShardId, Mail)> {
    lanes.frames().visits_by_group.add(party, visits);
    lanes.tell(0, GONE);
    let posted = flush(lanes);
    lanes.update_valve(valve);
    posted
}

#[test]
fn party_with_much_under_way_waits_while_carriers_hold_too_many_turns() {
    let (mut lanes, valve) = (lanes(), Valve::default());
    lanes.turn_limits.backpressure_turns = 2;
    let [much, little] = ["much", "little"].map(|name| Party::user(name, 1));
    let mut held = simulate_turn(&mut lanes, little, 1, &valve);
    assert_eq!(lanes.turns_held(), 1);
    assert!(valve.is_open() && !lanes.is_behind());
    held.extend(simulate_turn(&mut lanes, much, 100, &valve));
    assert_eq!(lanes.turns_held(), 2);
    assert!(lanes.is_behind());
    assert!(valve.must_wait(much) && !valve.must_wait(little));

    lanes.to[2].credit_bytes = 9;
    assert_eq!(flush(&mut lanes)[0].1.credit_bytes, 9, "others go on");
    held.clear();
    lanes.update_valve(&valve);
    assert_eq!(lanes.turns_held(), 0);
    assert!(valve.is_open() && !lanes.is_behind());
}

/// Tests that the memory of messages in flight is bounded, even with many publishers: at some point all parties wait.
#[test]
fn all_wait_while_carriers_hold_many_more_turns() {
    let (mut lanes, valve) = (lanes(), Valve::default());
    lanes.turn_limits.backpressure_turns = 2;
    let [much, other] = ["much", "other"].map(|name| Party::user(name, 1));
    let mut held = Vec::new();
    for turns in 1..=2 * ALL_WAIT_FACTOR {
        held.extend(simulate_turn(&mut lanes, much, 100, &valve));
        assert_eq!(
            valve.must_wait(other),
            turns == 2 * ALL_WAIT_FACTOR,
            "with {turns} turns"
        );
    }
    held.truncate(2);
    lanes.update_valve(&valve);
    assert!(valve.must_wait(much) && !valve.must_wait(other));
}

/// Tests that a turn in flight is counted although the turns before it in the list are finished.
#[test]
fn mail_that_the_carrier_has_dropped_is_not_counted() {
    let mut lanes = lanes();
    lanes.turn_limits.backpressure_turns = 2;
    let mut held = Vec::new();
    for _ in 0..3 {
        lanes.tell(0, GONE);
        held.push(flush(&mut lanes));
    }
    held.drain(..2);
    assert_eq!(lanes.turns_held(), 1);
    let valve = Valve::default();
    lanes.update_valve(&valve);
    assert!(valve.is_open());
}

#[test]
fn frames_are_reused_when_all_receivers_have_dropped_them() {
    let mut lanes = lanes();
    let frames_address = |lanes: &mut Lanes| core::ptr::from_ref(lanes.frames());
    let first = frames_address(&mut lanes);
    assert!(flush(&mut lanes).is_empty());
    assert_eq!(frames_address(&mut lanes), first, "nobody has them");
    // The buffers keep the capacity to which they have grown.
    lanes.frames().pages.reserve(100);

    lanes.tell(0, GONE);
    let posted = flush(&mut lanes);
    let second = frames_address(&mut lanes);
    assert_ne!(second, first, "a carrier reads them");
    lanes.tell(0, GONE);
    let more = flush(&mut lanes);
    assert_ne!(frames_address(&mut lanes), first);
    assert_eq!(lanes.turns_held(), 2);
    drop(posted);
    lanes.tell(0, GONE);
    let last = flush(&mut lanes);
    assert_eq!(frames_address(&mut lanes), first);
    assert!(lanes.frames().is_empty());
    assert!(lanes.frames().pages.capacity() >= 100, "the same memory");
    drop((more, last));
}

#[test]
fn tell_to_the_same_shard_keeps_its_frames_beyond_the_turn() {
    let mut lanes = lanes();
    assert!(!lanes.has_own_tells() && lanes.take_own_tells().is_none());
    lanes.tell(1, GONE);
    assert!(lanes.has_own_tells());
    lanes.frames().push_frame(b"head", b"data");
    let (tells, frames) = lanes.take_own_tells().expect("it told itself something");
    assert_eq!(tells.len(), 1);
    assert!(!lanes.has_own_tells());
    assert!(flush(&mut lanes).is_empty(), "not by mail");
    assert!(
        lanes.frames().is_empty(),
        "a new turn has frames of its own"
    );
    assert_eq!(frames.len(), 8);
}

#[test]
fn emptied_list_of_tells_is_reused_unless_it_is_large_or_another_is_in_use() {
    let mut lanes = lanes();
    let list = |capacity| {
        let mut tells = Vec::with_capacity(capacity);
        tells.push(GONE);
        tells
    };
    lanes.recycle_tells(list(1 << 15));
    assert_eq!(lanes.to[1].tells.capacity(), 0, "a large one is freed");
    lanes.recycle_tells(list(1 << 14));
    assert_eq!(lanes.to[1].tells.capacity(), 1 << 14);
    assert!(!lanes.has_own_tells(), "it is empty");
    lanes.tell(1, GONE);
    lanes.recycle_tells(Vec::with_capacity(10));
    assert!(lanes.has_own_tells(), "what was told meanwhile stays");
}
