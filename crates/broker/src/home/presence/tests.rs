//! A model of members and watchers, and the bytes of a member.

use alloc::string::String;
use alloc::vec::Vec;

use super::*;
use crate::base::ids::ConnId;
use crate::mail::hooks::SelectedTopics;
use crate::mail::presence::{MEMBER_BYTES, PresenceChange, PresenceCounts};

const TOPIC: &[u8] = b"chat/1";
const MAX: u32 = 1_000;

fn now(s: u32) -> Now {
    Now {
        s,
        unix_s: 1_000_000 + s,
    }
}

fn at(slot: u32) -> MemberConn {
    let conn = ConnId {
        slot,
        generation: 0,
    };
    MemberConn::here(0, conn)
}

fn to(slot: u32) -> ReplyTo {
    ReplyTo {
        slot,
        generation: 0,
        request: 0,
        part: 0,
    }
}

fn begun() -> Presence {
    Presence::new(7, 0, now(0))
}

/// What a watcher knows of a topic: by id, the user of each member.
#[derive(Default)]
struct Known {
    members: BTreeMap<u64, String>,
    is_whole: bool,
    position: PresencePosition,
    counts: PresenceCounts,
    pages: u32,
    changes: u32,
    snapshots: u32,
}

impl Known {
    fn take(&mut self, page: &PresencePage) {
        if page.resets {
            self.members.clear();
            self.is_whole = false;
            self.snapshots += 1;
        }
        for change in page.changes.iter() {
            self.changes += 1;
            match change {
                PresenceChange::Join(member) => {
                    let user = String::from_utf8(member.user.to_vec()).unwrap();
                    let former = self.members.insert(member.id, user);
                    assert_eq!(former, None, "a member joins once");
                }
                PresenceChange::Leave(member) => {
                    let former = self.members.remove(&member.id);
                    assert!(former.is_some(), "only a member that joined leaves");
                }
            }
        }
        self.is_whole |= page.completes;
        self.counts = page.counts;
        self.position = page.position;
        self.pages += 1;
    }
}

/// Sends each watcher at most one page.
fn tell(presence: &mut Presence, known: &mut BTreeMap<u32, Known>) -> usize {
    let mut pages = Vec::new();
    while presence.send_news(0, 3, |_, to, page| pages.push((to, page))) > 0 {}
    for (to, page) in &pages {
        known.entry(to.slot).or_default().take(page);
    }
    pages.len()
}

fn counts(presence: &Presence) -> PresenceCounts {
    presence.read(TOPIC, u64::MAX, 1).counts
}

fn watch(presence: &mut Presence, slot: u32, from: Option<PresencePosition>) {
    presence.add_watcher(TOPIC, (0, to(slot)), from, 0);
}

/// The number of changes in the watcher's next page; `None` if it gets no page.
fn next_changes(presence: &mut Presence, slot: u32) -> Option<usize> {
    presence.set_ready(TOPIC, 0, to(slot), 0);
    let mut changes = None;
    presence.send_news(0, 99, |_, _, page| {
        changes = Some(page.changes.iter().count())
    });
    changes
}

#[test]
fn watchers_end_at_the_true_members_whatever_happens() {
    for seed in 0..100u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut presence = begun();
        let max = [3, 30, MAX][random(3) as usize];
        // The members that are subscribed, and those that linger: by slot, with user and end.
        let mut open: BTreeMap<u32, String> = BTreeMap::new();
        let mut away: BTreeMap<u32, (String, u32)> = BTreeMap::new();
        let mut unlisted: Vec<u32> = Vec::new();
        let mut known: BTreeMap<u32, Known> = BTreeMap::new();
        let (mut s, mut next) = (1, 0);
        let steps = 60 + random(1_500);
        for _ in 0..steps {
            match random(12) {
                0..4 => {
                    next += 1;
                    let user = alloc::format!("user{}", random(6));
                    let user = if random(4) == 0 { String::new() } else { user };
                    let texts = (user.as_bytes(), &b"{}"[..]);
                    presence.join(TOPIC, at(next), texts, max, now(s));
                    let mut same = away.iter().filter(|(_, (of, _))| *of == user);
                    let same = same.next().filter(|_| !user.is_empty());
                    if let Some(slot) = same.map(|(slot, _)| *slot) {
                        // Any member of this user may have continued.
                        let still = |slot: &u32| presence.find_member(0, at(*slot)).is_some();
                        let gone = away.keys().copied().find(|slot| !still(slot));
                        away.remove(&gone.unwrap_or(slot));
                        open.insert(next, user);
                    } else if open.len() + away.len() < max as usize {
                        open.insert(next, user);
                    } else if open.len() < max as usize {
                        // The member that would have left first has made room.
                        let still = |slot: &u32| presence.find_member(0, at(*slot)).is_some();
                        let gone: Vec<u32> = away.keys().copied().filter(|it| !still(it)).collect();
                        assert_eq!(gone.len(), 1, "seed {seed}");
                        let (_, end) = away.remove(&gone[0]).unwrap();
                        assert!(away.values().all(|(_, other)| *other >= end), "seed {seed}");
                        open.insert(next, user);
                    } else {
                        unlisted.push(next);
                    }
                }
                4..6 if !open.is_empty() => {
                    let slot = *open.keys().nth(random(open.len() as u64) as usize).unwrap();
                    presence.leave(TOPIC, at(slot), 0, now(s));
                    open.remove(&slot);
                }
                6..8 if !open.is_empty() => {
                    let slot = *open.keys().nth(random(open.len() as u64) as usize).unwrap();
                    presence.leave(TOPIC, at(slot), 5, now(s));
                    let user = open.remove(&slot).unwrap();
                    if !user.is_empty() {
                        away.insert(slot, (user, s + 6));
                    }
                }
                8 if !unlisted.is_empty() => {
                    let slot = unlisted.swap_remove(random(unlisted.len() as u64) as usize);
                    presence.leave(TOPIC, at(slot), random(2) as u32, now(s));
                }
                9 => {
                    s += random(4) as u32;
                    while presence.remove_absent(now(s), 1 + random(3) as usize) {}
                    away.retain(|_, (_, end)| *end > s);
                    while presence.forget_unwatched(now(s), 1) {}
                }
                10 => {
                    let slot = 900_000 + random(4) as u32;
                    match known.contains_key(&slot) {
                        true => {
                            // It comes back, with its position or without one.
                            presence.remove_watcher(TOPIC, 0, to(slot), now(s));
                            let known = known.get_mut(&slot).unwrap();
                            let from = (known.is_whole && random(4) > 0).then_some(known.position);
                            watch(&mut presence, slot, from);
                        }
                        false => watch(&mut presence, slot, None),
                    }
                    tell(&mut presence, &mut known);
                }
                _ => {
                    let some = known.keys().copied().filter(|_| random(2) == 0);
                    some.for_each(|slot| presence.set_ready(TOPIC, 0, to(slot), 0));
                    tell(&mut presence, &mut known);
                }
            }
        }
        let counts = counts(&presence);
        let listed = open.len() + away.len();
        assert_eq!(counts.listed as usize, listed, "seed {seed}");
        assert_eq!(
            counts.clients as usize,
            listed + unlisted.len(),
            "seed {seed}"
        );
        let mut users: Vec<&String> = open.values().chain(away.values().map(|it| &it.0)).collect();
        users.sort();
        let all: Vec<String> = users.iter().map(|user| (*user).clone()).collect();
        users.dedup();
        assert_eq!(counts.users as usize, users.len(), "seed {seed}");
        loop {
            let slots: Vec<u32> = known.keys().copied().collect();
            slots
                .iter()
                .for_each(|slot| presence.set_ready(TOPIC, 0, to(*slot), 0));
            if tell(&mut presence, &mut known) == 0 {
                break;
            }
        }
        for (slot, known) in &known {
            let mut users: Vec<String> = known.members.values().cloned().collect();
            users.sort();
            assert_eq!(users, all, "seed {seed}, watcher {slot}");
            assert!(known.is_whole && known.counts == counts, "seed {seed}");
            presence.remove_watcher(TOPIC, 0, to(*slot), now(s));
        }
        for slot in open.into_keys().chain(unlisted) {
            presence.leave(TOPIC, at(slot), 0, now(s));
        }
        while presence.remove_absent(now(s + 99), 9) {}
        while presence.forget_unwatched(now(s + 99), 1) {}
        let Presence {
            topics,
            members,
            members_by_user: users,
            leaving,
            leaving_users,
            leaving_topics,
            watched_topics: watched,
            due_topics: due,
            unwatched_topics: unwatched,
            ..
        } = &presence;
        assert_eq!((topics.len(), members.len(), watched.len()), (0, 0, 0));
        assert!(users.is_empty() && leaving.is_empty() && leaving_users.is_empty());
        assert!(leaving_topics.is_empty() && due.is_empty() && unwatched.is_empty());
        assert_eq!(presence.watcher_count, 0);
        let bytes = (
            presence.text_bytes,
            presence.member_list_bytes,
            presence.leave_bytes,
        );
        assert_eq!(bytes, (0, 0, 0), "seed {seed}");
    }
}

#[test]
fn reload_shows_no_leave_and_no_join() {
    let mut presence = begun();
    let ann = (&b"ann"[..], &b"{\"n\":1}"[..]);
    presence.join(TOPIC, at(1), ann, MAX, now(1));
    watch(&mut presence, 9, None);
    assert_eq!(next_changes(&mut presence, 9), Some(1));
    presence.leave(TOPIC, at(1), 15, now(2));
    presence.join(TOPIC, at(2), ann, MAX, now(10));
    assert!(!presence.remove_absent(now(100), 9));
    assert_eq!(next_changes(&mut presence, 9), None);
    assert_eq!(counts(&presence).clients, 1);
    // The new connection is the member now.
    presence.leave(TOPIC, at(2), 0, now(100));
    assert_eq!(next_changes(&mut presence, 9), Some(1));
    assert_eq!(counts(&presence).clients, 0);
}

#[test]
fn another_user_or_info_is_another_member() {
    for other in [(&b"bob"[..], &b"1"[..]), (b"ann", b"2"), (b"", b"1")] {
        let mut presence = begun();
        presence.join(TOPIC, at(1), (b"ann", b"1"), MAX, now(1));
        presence.leave(TOPIC, at(1), 15, now(2));
        presence.join(TOPIC, at(2), other, MAX, now(3));
        assert_eq!(counts(&presence).clients, 2);
        assert!(!presence.remove_absent(now(17), 9));
        assert_eq!(counts(&presence).clients, 2, "15 s are not over");
        presence.remove_absent(now(18), 9);
        assert_eq!(counts(&presence).clients, 1);
    }
}

#[test]
fn position_of_another_table_or_of_forgotten_changes_gets_a_snapshot() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    watch(&mut presence, 9, None);
    presence.join(TOPIC, at(1), (b"ann", b""), MAX, now(1));
    tell(&mut presence, &mut known);
    let position = known[&9].position;
    let snapshots = |presence: &mut Presence, from| {
        let mut known = BTreeMap::new();
        watch(presence, 10, Some(from));
        tell(presence, &mut known);
        presence.remove_watcher(TOPIC, 0, to(10), now(1));
        known[&10].snapshots
    };
    assert_eq!(snapshots(&mut presence, position), 0);
    let other = |table, change| PresencePosition {
        table: position.table + table,
        change: position.change + change,
    };
    assert_eq!(snapshots(&mut presence, other(1, 0)), 1, "another table");
    assert_eq!(snapshots(&mut presence, other(0, 1)), 1, "the future");
    for slot in 2..2_000 {
        presence.join(TOPIC, at(slot), (b"", b""), 9_999, now(1));
    }
    // Another watcher knows all members when they leave.
    watch(&mut presence, 11, None);
    let mut others = BTreeMap::new();
    while tell(&mut presence, &mut others) > 0 {
        presence.set_ready(TOPIC, 0, to(11), 0);
    }
    for slot in 2..2_000 {
        presence.leave(TOPIC, at(slot), 0, now(1));
    }
    assert_eq!(snapshots(&mut presence, position), 1, "forgotten");
    // The slow watcher gets a new snapshot too, since not all its missed changes are remembered.
    presence.set_ready(TOPIC, 0, to(9), 0);
    let known = known.get_mut(&9).unwrap();
    presence.send_news(0, 9, |_, to, page| {
        if to.slot == 9 {
            known.take(&page);
        }
    });
    assert_eq!((known.snapshots, known.members.len()), (2, 1));
}

#[test]
fn changes_within_the_interval_come_together() {
    let mut presence = begun();
    let mut known = Known::default();
    watch(&mut presence, 9, None);
    let ms = 1_000_000;
    presence.send_news(5_000 * ms, 9, |_, _, page| known.take(&page));
    let mut slot = 0;
    for at_ms in 5_000..6_000 {
        slot += 1;
        presence.join(TOPIC, at(slot), (b"u", b""), MAX, now(5));
        if slot % 2 == 0 {
            presence.leave(TOPIC, at(slot), 0, now(5));
        }
        presence.set_ready(TOPIC, 0, to(9), at_ms * ms);
        presence.send_news(at_ms * ms, 9, |_, _, page| known.take(&page));
        assert!(known.members.len() == slot as usize / 2 + 1 || presence.next_news_ns().is_some());
    }
    assert_eq!(known.pages, 10, "one each 100 ms");
    presence.send_news(6_200 * ms, 9, |_, _, page| known.take(&page));
    assert_eq!(known.members.len(), 500);
    assert_eq!(
        known.changes, 500,
        "who came and left within the interval is not told"
    );
    assert!(presence.next_news_ns().is_none());
}

#[test]
fn member_needs_at_most_120_bytes_beside_its_texts() {
    let mut presence = begun();
    let members = 100_000;
    for slot in 0..members {
        let user = alloc::format!("{slot:08}");
        presence.join(TOPIC, at(slot), (user.as_bytes(), b""), members, now(1));
    }
    let texts = members as usize * 8;
    let bytes = (presence.bytes() - texts) / members as usize;
    assert!(bytes <= MEMBER_BYTES, "{bytes}");
    for slot in 0..members {
        presence.leave(TOPIC, at(slot), 0, now(1));
    }
    assert!(presence.bytes() < 200 << 10, "{}", presence.bytes());
}

const MS: u64 = 1_000_000;

/// Sends watchers the pages that they may get at this time. Each watcher is ready for its next page at once.
fn tell_at(presence: &mut Presence, at_ms: u64, known: &mut BTreeMap<u32, Known>) {
    for _ in 0..9 {
        let mut slots = Vec::new();
        presence.send_news(at_ms * MS, 999, |_, to, page| {
            known.entry(to.slot).or_default().take(&page);
            slots.push(to.slot);
        });
        for slot in slots {
            presence.set_ready(TOPIC, 0, to(slot), at_ms * MS);
        }
    }
}

fn join_all(presence: &mut Presence, slots: core::ops::Range<u32>) {
    for slot in slots {
        presence.join(TOPIC, at(slot), (b"u", b""), 100_000, now(1));
    }
}

#[test]
fn watcher_that_lacks_more_than_a_page_is_told_the_rest_though_nothing_changes() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    watch(&mut presence, 9, None);
    tell_at(&mut presence, 1_000, &mut known);
    join_all(&mut presence, 100..1_000);
    tell_at(&mut presence, 1_101, &mut known);
    assert_eq!(known[&9].members.len(), 900);
    assert_eq!(known[&9].position.change, presence.last_change);
    // A watcher that comes back after as many leaves is told of all of them.
    presence.remove_watcher(TOPIC, 0, to(9), now(1));
    join_all(&mut presence, 1_000..2_000);
    watch(&mut presence, 9, Some(known[&9].position));
    tell_at(&mut presence, 1_102, &mut known);
    assert_eq!((known[&9].members.len(), known[&9].snapshots), (1_900, 1));
}

#[test]
fn ten_watchers_of_ten_thousand_who_join_in_ten_seconds_get_a_page_each_tenth_of_a_second() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    for slot in 0..10 {
        watch(&mut presence, slot, None);
    }
    // The members come in every millisecond, and the watchers could take pages as often.
    for ms in 0..10_000 {
        join_all(&mut presence, 100 + ms..101 + ms);
        if presence.has_due((1_000 + u64::from(ms)) * MS) {
            tell_at(&mut presence, 1_000 + u64::from(ms), &mut known);
        }
    }
    tell_at(&mut presence, 12_000, &mut known);
    for known in known.values() {
        assert_eq!((known.members.len(), known.changes), (10_000, 10_000));
        assert!(known.pages <= 102, "{}", known.pages);
    }
    assert_eq!(known.len(), 10);
}

#[test]
fn watchers_that_wait_for_their_interval_are_not_looked_at() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    for slot in 0..1_000 {
        watch(&mut presence, slot, None);
    }
    tell_at(&mut presence, 1_000, &mut known);
    let mut look = |at_ms: u64| presence.send_news(at_ms * MS, 2_000, |_, _, _| {});
    assert_eq!(look(1_001), 0);
    for slot in 5_000..5_050 {
        presence.join(TOPIC, at(slot), (b"u", b""), MAX, now(1));
        assert_eq!(presence.send_news(1_050 * MS, 2_000, |_, _, _| {}), 0);
        assert!(!presence.has_due(1_050 * MS) && presence.next_news_ns().is_some());
    }
    assert_eq!(presence.send_news(1_101 * MS, 600, |_, _, _| {}), 600);
    assert_eq!(presence.send_news(1_101 * MS, 600, |_, _, _| {}), 400);
    assert!(presence.next_news_ns().is_none());
}

#[test]
fn watcher_that_waits_longest_is_told_first_whatever_its_topic() {
    let mut presence = begun();
    for (at_ms, name) in [(5, b"b"), (3, b"c"), (4, b"a")] {
        presence.add_watcher(name, (0, to(at_ms as u32)), None, at_ms * MS);
    }
    let mut told = Vec::new();
    while presence.send_news(9 * MS, 1, |_, to, _| told.push(to.slot)) > 0 {}
    assert_eq!(told, [3, 4, 5]);
}

#[test]
fn those_who_come_and_go_between_two_pages_cost_no_watcher_its_position() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    watch(&mut presence, 9, None);
    join_all(&mut presence, 0..100);
    tell_at(&mut presence, 1_000, &mut known);
    for slot in 100..5_000 {
        join_all(&mut presence, slot..slot + 1);
        presence.leave(TOPIC, at(slot), 0, now(1));
    }
    assert_eq!(presence.leave_bytes, 0, "nobody knew them");
    presence.leave(TOPIC, at(7), 0, now(1));
    tell_at(&mut presence, 2_000, &mut known);
    let known = &known[&9];
    assert_eq!((known.snapshots, known.members.len()), (1, 99));
}

#[test]
fn half_of_a_large_topic_leaves_without_a_new_snapshot() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    watch(&mut presence, 9, None);
    join_all(&mut presence, 0..10_000);
    for page in 0..9 {
        tell_at(&mut presence, 1_000 + page, &mut known);
    }
    assert_eq!(known[&9].members.len(), 10_000);
    for slot in 0..5_000 {
        presence.leave(TOPIC, at(slot), 0, now(1));
    }
    for page in 0..9 {
        tell_at(&mut presence, 2_000 + page, &mut known);
    }
    assert_eq!((known[&9].snapshots, known[&9].members.len()), (1, 5_000));
}

#[test]
fn watcher_gets_at_most_one_new_snapshot_in_a_second() {
    let mut presence = begun();
    let mut known = BTreeMap::new();
    watch(&mut presence, 9, None);
    tell_at(&mut presence, 10_000, &mut known);
    let mut slot = 0;
    for round in 0..30 {
        join_all(&mut presence, slot..slot + 3_000);
        // Another watcher knows these members, so their leaves are remembered, until there are too many.
        watch(&mut presence, 100 + round, None);
        let at_ms = 10_000 + u64::from(round) * 100;
        let mut pages = 0;
        while presence.send_news(at_ms * MS, 9, |_, to, page| match to.slot {
            9 => known.get_mut(&9).unwrap().take(&page),
            _ => pages += 1,
        }) > 0
        {
            presence.set_ready(TOPIC, 0, to(100 + round), at_ms * MS);
        }
        assert!(pages > 9);
        for slot in slot..slot + 3_000 {
            presence.leave(TOPIC, at(slot), 0, now(1));
        }
        presence.remove_watcher(TOPIC, 0, to(100 + round), now(1));
        presence.set_ready(TOPIC, 0, to(9), at_ms * MS);
        slot += 3_000;
    }
    let snapshots = known[&9].snapshots;
    assert!((2..=4).contains(&snapshots), "{snapshots} in 3 s");
}

#[test]
fn members_that_are_away_give_way_when_the_list_is_full() {
    let mut presence = begun();
    for slot in 0..3 {
        let user = alloc::format!("user{slot}");
        presence.join(TOPIC, at(slot), (user.as_bytes(), b""), 3, now(1));
    }
    presence.leave(TOPIC, at(2), 15, now(2));
    presence.leave(TOPIC, at(0), 15, now(3));
    for slot in 3..5 {
        presence.join(TOPIC, at(slot), (b"new", b""), 3, now(4));
    }
    let here = |slot: &u32| presence.find_member(0, at(*slot)).is_some();
    assert_eq!((0..5).filter(here).collect::<Vec<u32>>(), [1, 3, 4]);
    presence.join(TOPIC, at(5), (b"more", b""), 3, now(4));
    let PresenceCounts {
        clients, listed, ..
    } = counts(&presence);
    assert_eq!((clients, listed), (4, 3));
}

#[test]
fn unlisted_connection_takes_no_place_of_a_member() {
    let mut presence = begun();
    for slot in 0..3 {
        let user = alloc::format!("user{slot}");
        presence.join(TOPIC, at(slot), (user.as_bytes(), b""), 3, now(1));
    }
    presence.leave(TOPIC, at(1), 15, now(2));
    // The limit is 0 while memory is short, and 2 after a change of the rule.
    for (slot, most) in [(3, 0), (4, 2)] {
        presence.join(TOPIC, at(slot), (b"new", b""), most, now(3));
        assert!(presence.find_member(0, at(1)).is_some(), "limit {most}");
    }
    assert_eq!(
        (counts(&presence).clients, counts(&presence).listed),
        (5, 3)
    );
}

#[test]
fn member_without_a_name_leaves_at_once() {
    let mut presence = begun();
    presence.join(TOPIC, at(1), (b"", b"1"), MAX, now(1));
    presence.leave(TOPIC, at(1), 15, now(2));
    assert!(presence.is_empty());
}

#[test]
fn topic_where_nobody_was_is_forgotten_with_its_last_watcher_and_others_in_time() {
    let mut presence = begun();
    for slot in 0..5_000 {
        let name = alloc::format!("new/{slot}");
        presence.add_watcher(name.as_bytes(), (0, to(slot)), None, 0);
        presence.remove_watcher(name.as_bytes(), 0, to(slot), now(1));
    }
    assert!(presence.is_empty(), "{}", presence.topics.len());
    for slot in 0..5_000 {
        let name = alloc::format!("new/{slot}");
        let name = name.as_bytes();
        presence.add_watcher(name, (0, to(slot)), None, 0);
        presence.send_news(0, 9, |_, _, _| {});
        presence.join(name, at(slot), (b"u", b""), MAX, now(1));
        presence.set_ready(name, 0, to(slot), 0);
        presence.send_news(0, 9, |_, _, _| {});
        presence.leave(name, at(slot), 0, now(1));
        presence.remove_watcher(name, 0, to(slot), now(1));
    }
    assert_eq!(presence.topics.len(), 5_000);
    assert!(!presence.forget_unwatched(now(60), 9_999));
    assert!(presence.forget_unwatched(now(61), 4_000), "more are due");
    assert!(!presence.forget_unwatched(now(61), 4_000));
    assert!(presence.is_empty());
}

#[test]
fn many_leaves_are_forgotten_in_bounded_steps() {
    const LEAVES: u32 = 1_000;
    let mut presence = begun();
    watch(&mut presence, 1, None);
    let mut known = BTreeMap::new();
    for slot in 0..LEAVES {
        presence.join(TOPIC, at(slot), (b"u", b""), LEAVES, now(1));
    }
    while next_changes(&mut presence, 1).is_some() {}
    tell(&mut presence, &mut known);
    let position = presence.read(TOPIC, 0, 1).position;
    for slot in 0..LEAVES {
        presence.leave(TOPIC, at(slot), 0, now(1));
    }
    presence.remove_watcher(TOPIC, 0, to(1), now(1));
    presence.take_moved_bytes();
    assert!(presence.forget_unwatched(now(99), 100), "more are due");
    assert_eq!(presence.take_moved_bytes(), 100 * STEP_BYTES);
    // A watcher that resumes does not miss those that are forgotten.
    watch(&mut presence, 2, Some(position));
    tell(&mut presence, &mut known);
    assert_eq!(known[&2].snapshots, 1);
    assert!(!presence.forget_unwatched(now(99), 100), "it is watched");
    presence.remove_watcher(TOPIC, 0, to(2), now(99));
    let mut calls = 1;
    while presence.forget_unwatched(now(999), 100) {
        calls += 1;
    }
    assert_eq!((calls, presence.leave_bytes), (9, 0));
    assert!(presence.is_empty());
}

#[test]
fn tables_of_two_nodes_that_begin_in_the_same_second_have_other_positions() {
    let tables = [1, 2].map(|process| Presence::new(7, process, now(0)));
    assert_ne!(tables[0].table_number, tables[1].table_number);
}

#[test]
fn reader_is_told_that_a_member_has_another_connection() {
    let mut presence = begun();
    presence.join(TOPIC, at(1), (b"ann", b""), MAX, now(1));
    let before = presence.read(TOPIC, 0, 9).position;
    presence.leave(TOPIC, at(1), 15, now(2));
    assert_eq!(presence.read(TOPIC, 0, 9).position, before, "it is away");
    presence.join(TOPIC, at(2), (b"ann", b""), MAX, now(3));
    assert!(presence.read(TOPIC, 0, 9).position.change > before.change);
}

#[test]
fn watcher_of_changes_is_told_each_connection_from_then_on() {
    let mut presence = begun();
    presence.join(TOPIC, at(1), (b"ann", b""), MAX, now(1));
    presence.add_change_watcher(TOPIC, (0, to(9)), MS);
    assert!(
        presence.next_news_ns().is_none(),
        "who was there before is not told"
    );
    let told = |presence: &mut Presence| {
        let mut changes = Vec::new();
        presence.send_news(0, 9, |_, _, page| {
            assert!(!page.resets && !page.more);
            changes.extend(page.changes.iter().map(|change| match change {
                PresenceChange::Join(member) => (true, member.at.conn.slot),
                PresenceChange::Leave(member) => (false, member.at.conn.slot),
            }));
        });
        presence.set_ready(TOPIC, 0, to(9), 0);
        changes
    };
    presence.join(TOPIC, at(2), (b"bob", b""), MAX, now(1));
    assert_eq!(told(&mut presence), [(true, 2)]);
    presence.leave(TOPIC, at(1), 15, now(2));
    assert_eq!(told(&mut presence), []);
    presence.join(TOPIC, at(3), (b"ann", b""), MAX, now(3));
    assert_eq!(told(&mut presence), [(false, 1), (true, 3)]);
    presence.remove_watcher(TOPIC, 0, to(9), now(4));
    // Without such a watcher, a member continues with its new connection.
    let before = counts(&presence);
    let changed = presence.read(TOPIC, 0, 9).changes.iter().count();
    presence.leave(TOPIC, at(3), 15, now(4));
    presence.join(TOPIC, at(4), (b"ann", b""), MAX, now(5));
    assert_eq!((counts(&presence), changed), (before, 2));
    assert!(presence.find_member(0, at(4)).is_some());
    assert!(presence.leaving.is_empty());
}

#[test]
fn many_members_leave_in_bounded_steps() {
    let mut presence = begun();
    for slot in 0..100_000 {
        presence.join(TOPIC, at(slot), (b"u", b""), 100_000, now(1));
    }
    presence.take_moved_bytes();
    // The worst order: from the middle of the list.
    for slot in 0..50_000 {
        presence.leave(TOPIC, at(50_000 + slot), 5, now(2 + slot / 25_000));
        presence.leave(TOPIC, at(49_999 - slot), 5, now(2 + slot / 25_000));
    }
    let mut calls = 0;
    while presence.remove_absent(now(99), 512) {
        let moved = presence.take_moved_bytes();
        assert!(moved <= (128 << 10) + 200_000, "{moved} bytes in one step");
        calls += 1;
    }
    assert!(presence.is_empty());
    assert!(calls > 97, "{calls}");
}

pub(super) fn topics(filter: &str) -> SelectedTopics {
    SelectedTopics {
        filters: [filter.as_bytes().into()].into(),
        partition: None,
    }
}

/// What the stream for webhooks has told.
#[derive(Default)]
struct Told {
    /// The members of each topic by connection.
    members: BTreeMap<(String, u32), u64>,
    /// The users of each topic, for a receiver that is told of users only.
    users: BTreeSet<(String, String)>,
}

impl Told {
    /// Reads the stream to its end, or a part of it. Returns false if the stream is lost.
    fn read(&mut self, presence: &mut Presence, rows_max: u32, calls: u32) -> bool {
        for _ in 0..calls {
            let Some((changes, more)) = presence.take_changes(1, rows_max) else {
                return false;
            };
            for change in changes {
                let topic = String::from_utf8(change.topic.to_vec()).unwrap();
                let key = (topic, change.at.conn.slot);
                let user = String::from_utf8(change.user.to_vec()).unwrap();
                let user = (key.0.clone(), user);
                match (change.joins, change.is_of_user) {
                    (true, true) => drop(self.users.insert(user)),
                    (false, true) => drop(self.users.remove(&user)),
                    (_, false) => {}
                }
                match change.joins {
                    true => {
                        let former = self.members.insert(key, change.id);
                        assert_eq!(former, None, "a member joins once");
                    }
                    // The last leave of a user is told although the stream may not know the member.
                    false => {
                        let known = self.members.remove(&key);
                        assert!(known == Some(change.id) || known.is_none() && change.is_of_user);
                    }
                }
            }
            if !more {
                break;
            }
        }
        true
    }
}

#[test]
fn stream_knows_the_members_whatever_happens_while_its_snapshot_is_read() {
    for seed in 1..50u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut presence = begun();
        let mut here = BTreeSet::new();
        let mut told = Told::default();
        let begins = random(300);
        for step in 0..600 {
            if step == begins {
                presence.begin_stream(1, topics("chat/#"));
            }
            let (slot, room) = (random(40) as u32, random(3));
            let topic = ["chat/1", "chat/2", "other"][room as usize];
            match here.remove(&(topic, slot)) {
                true => presence.leave(topic.as_bytes(), at(slot), 0, now(1)),
                false => {
                    here.insert((topic, slot));
                    let user = [b'a' + (slot % 13) as u8];
                    presence.join(topic.as_bytes(), at(slot), (&user, b""), MAX, now(1));
                }
            }
            if step >= begins && random(4) == 0 {
                assert!(told.read(&mut presence, 3, 1));
            }
        }
        assert!(told.read(&mut presence, 3, 999));
        here.retain(|(topic, _)| *topic != "other");
        let members: BTreeSet<_> = (told.members.keys())
            .map(|(topic, slot)| (&**topic, *slot))
            .collect();
        assert_eq!(members, here);
        let user = |slot: u32| String::from(char::from(b'a' + (slot % 13) as u8));
        let users: BTreeSet<_> = (here.iter())
            .map(|(topic, slot)| (String::from(*topic), user(*slot)))
            .collect();
        assert_eq!(told.users, users);
    }
}

#[test]
fn stream_tells_which_member_is_the_first_and_the_last_of_its_user() {
    let mut presence = begun();
    presence.begin_stream(1, topics("#"));
    presence.take_changes(1, 9);
    for slot in 1..3 {
        presence.join(TOPIC, at(slot), (b"ann", b"{}"), MAX, now(1));
    }
    for slot in 1..3 {
        presence.leave(TOPIC, at(slot), 0, now(1));
    }
    let (changes, more) = presence.take_changes(1, 9).unwrap();
    let flags: Vec<_> = changes.iter().map(|it| (it.joins, it.is_of_user)).collect();
    assert_eq!(
        flags,
        [(true, true), (true, false), (false, false), (false, true)]
    );
    assert_eq!(
        (&*changes[0].user, &*changes[0].info, more),
        (&b"ann"[..], &b"{}"[..], false)
    );
}

#[test]
fn stream_that_nobody_reads_is_lost_and_keeps_nothing() {
    let mut presence = begun();
    presence.begin_stream(1, topics("#"));
    assert!(presence.take_changes(1, 9).is_some());
    for round in 0..5_000 {
        presence.join(TOPIC, at(1), (b"ann", b""), MAX, now(round));
        presence.leave(TOPIC, at(1), 0, now(round));
        assert!(presence.streams[0].bytes() <= 256 << 10);
    }
    assert_eq!(presence.streams[0].bytes(), 0);
    assert!(presence.take_changes(1, 9).is_none());
    presence.end_stream(1);
    assert!(presence.take_changes(1, 9).is_none() && presence.streams.is_empty());
}
