//! Tests of the table of topics, with random joins and leaves, during walks over a topic's members and between walks. Each member
//! is at the place that it was told. A walk visits each member that stays exactly once. No row or set remains at the end.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::client::topics::*;

/// The last two names have the same hash.
const NAMES: [(u32, &[u8]); 4] = [(1, b"a"), (2, b"bc"), (77, b"d"), (77, b"e")];
const CONNS: u32 = 6;

#[derive(Clone, Debug)]
enum Step {
    Join(usize, u32),
    Part(usize, usize),
    /// The home (which keeps the topic) answers an attach (a subscribe request).
    Answer(usize),
    /// Begins a walk, or visits this many more places.
    Walk(usize, usize),
    EndWalk(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    let step = prop_oneof![
        8 => (name.clone(), 0..CONNS).prop_map(|(name, conn)| Step::Join(name, conn)),
        6 => (name.clone(), 0..9_usize).prop_map(|(name, which)| Step::Part(name, which)),
        4 => name.clone().prop_map(Step::Answer),
        3 => (name.clone(), 0..4_usize).prop_map(|(name, places)| Step::Walk(name, places)),
        2 => name.prop_map(Step::EndWalk),
    ];
    prop::collection::vec(step, 0..150)
}

/// A walk over the members: the next place, the visited members, and the members that were there all the time.
struct Walk {
    place: u32,
    visited: Vec<u32>,
    stayed: BTreeSet<u32>,
}

#[derive(Default)]
struct Topic {
    id: Option<u32>,
    /// Each member's place.
    members: BTreeMap<u32, u32>,
    waiting: u32,
    walk: Option<Walk>,
}

#[derive(Default)]
struct World {
    topics: Topics,
    model: [Topic; NAMES.len()],
    /// Rows and serials of uses that have ended.
    former: Vec<(u32, u16)>,
}

impl World {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Join(name, conn) => self.join(name, conn),
            Step::Part(name, which) => self.part(name, which),
            Step::Answer(name) => {
                let topic = &mut self.model[name];
                if topic.waiting > 0 {
                    topic.waiting -= 1;
                    let id = topic.id.expect("it waits");
                    self.topics.get_mut(id).pending_attaches -= 1;
                    self.close(name);
                }
            }
            Step::Walk(name, places) => self.walk(name, places),
            Step::EndWalk(name) => self.end_walk(name),
        }
    }

    fn join(&mut self, name: usize, conn: u32) {
        let (hash, text) = NAMES[name];
        let topic = &mut self.model[name];
        if topic.members.contains_key(&conn) {
            return;
        }
        let id = self.topics.find_or_create(hash, text);
        assert_eq!(*topic.id.get_or_insert(id), id, "one row for a name");
        let place = self.topics.add_member(id, conn);
        self.topics.get_mut(id).pending_attaches += 1;
        topic.waiting += 1;
        topic.members.insert(conn, place);
    }

    fn part(&mut self, name: usize, which: usize) {
        let topic = &mut self.model[name];
        let Some((&conn, &place)) = topic.members.iter().nth(which) else {
            return;
        };
        topic.members.remove(&conn);
        if let Some(walk) = &mut topic.walk {
            walk.stayed.remove(&conn);
        }
        let id = topic.id.expect("it has members");
        if let Some(moved) = self.topics.remove_member(id, place) {
            assert!(topic.walk.is_none(), "nobody moves during a walk");
            *topic.members.get_mut(&moved.slot).expect("a member moves") = moved.index;
        }
        self.close(name);
    }

    /// Frees a row that is not needed.
    fn close(&mut self, name: usize) {
        let topic = &mut self.model[name];
        let Some(id) = topic.id else { return };
        let serial = self.topics.get(id).serial;
        self.topics.free_if_unused(id);
        if topic.members.is_empty() && topic.waiting == 0 && topic.walk.is_none() {
            topic.id = None;
            self.former.push((id, serial));
        }
    }

    fn walk(&mut self, name: usize, places: usize) {
        let topic = &mut self.model[name];
        let Some(id) = topic.id else { return };
        if topic.walk.is_none() {
            if self.topics.place_count(id) < 2 {
                return;
            }
            self.topics.begin_walk(id);
            topic.walk = Some(Walk {
                place: 0,
                visited: Vec::new(),
                stayed: topic.members.keys().copied().collect(),
            });
        }
        let walk = topic.walk.as_mut().expect("it has begun");
        for _ in 0..places {
            if walk.place < self.topics.place_count(id) {
                walk.visited.extend(self.topics.member(id, walk.place));
                walk.place += 1;
            }
        }
    }

    fn end_walk(&mut self, name: usize) {
        self.walk(name, usize::from(u8::MAX));
        let topic = &mut self.model[name];
        let Some(walk) = topic.walk.take() else {
            return;
        };
        let visited: BTreeSet<u32> = walk.visited.iter().copied().collect();
        assert!(visited.is_superset(&walk.stayed), "who stays is visited");
        for conn in &walk.stayed {
            let times = walk.visited.iter().filter(|other| *other == conn).count();
            assert_eq!(times, 1, "once");
        }
        let members = &mut topic.members;
        let id = topic.id.expect("tombstones hold it");
        self.topics.end_walk(id, |moved| {
            *members.get_mut(&moved.slot).expect("a member moves") = moved.index;
        });
        self.close(name);
    }

    fn check(&self) {
        let mut sets_max = 0;
        for (topic, (_, text)) in self.model.iter().zip(NAMES) {
            let Some(id) = topic.id else { continue };
            assert_eq!(self.topics.name(id), text);
            let serial = self.topics.get(id).serial;
            assert!(self.topics.is_current(id, serial));
            let places = self.topics.place_count(id);
            for (conn, place) in &topic.members {
                assert_eq!(self.topics.member(id, *place), Some(*conn));
            }
            let there = (0..places).filter(|place| self.topics.member(id, *place).is_some());
            assert_eq!(there.count(), topic.members.len());
            if topic.walk.is_none() {
                assert_eq!(places as usize, topic.members.len());
            }
            sets_max += u32::from(places > 0);
        }
        for (id, serial) in &self.former {
            assert!(!self.topics.is_current(*id, *serial), "its life is over");
        }
        let mut accounts = Accounts::default();
        self.topics.add_to_accounts(&mut accounts);
        let open = self.model.iter().filter(|topic| topic.id.is_some()).count();
        assert_eq!(accounts.carrier_topics as usize, open);
        assert!(accounts.carrier_sets <= sets_max);
        assert_eq!(accounts.name_bytes > 0, open > 0);
    }
}

proptest! {
    #[test]
    fn members_are_at_their_reported_places(steps in steps()) {
        let mut world = World::default();
        for step in &steps {
            world.step(step);
            world.check();
        }
        for name in 0..NAMES.len() {
            while !world.model[name].members.is_empty() {
                world.part(name, 0);
            }
            world.end_walk(name);
            while world.model[name].waiting > 0 {
                world.step(&Step::Answer(name));
            }
        }
        let mut accounts = Accounts::default();
        world.topics.add_to_accounts(&mut accounts);
        prop_assert!(accounts.is_empty(), "{accounts:?}");
    }
}

/// A free row takes no mail, whatever serial the mail has.
#[test]
fn mail_to_a_free_row_finds_nobody() {
    let mut topics = Topics::default();
    let id = topics.find_or_create(1, b"a");
    topics.free_if_unused(id);
    for serial in 0..4 {
        assert!(!topics.is_current(id, serial));
    }
}

/// A topic without members stays until the home has answered its attach, because the home may still send mail for the topic.
#[test]
fn a_walk_over_nobody_visits_nobody() {
    let mut topics = Topics::default();
    let id = topics.find_or_create(1, b"a");
    topics.get_mut(id).pending_attaches = 1;
    topics.begin_walk(id);
    assert_eq!(topics.place_count(id), 0);
    topics.end_walk(id, |_| panic!("nobody moves"));
    let serial = topics.get(id).serial;
    topics.free_if_unused(id);
    assert!(topics.is_current(id, serial), "somebody waits");
}

/// The topic's row stays when all members have left during a walk, because an attach is unanswered.
#[test]
fn a_topic_that_all_members_left_during_a_walk_takes_members_again() {
    let mut topics = Topics::default();
    let id = topics.find_or_create(1, b"a");
    topics.get_mut(id).pending_attaches = 1;
    for life in 0..2 {
        assert_eq!(
            (topics.add_member(id, 5), topics.add_member(id, 6)),
            (0, 1),
            "{life}"
        );
        topics.begin_walk(id);
        assert!(topics.remove_member(id, 0).is_none() && topics.remove_member(id, 1).is_none());
        assert_eq!((topics.place_count(id), topics.member(id, 1)), (2, None));
        topics.end_walk(id, |_| panic!("nobody is left"));
        assert_eq!(topics.place_count(id), 0);
    }
    assert_eq!(topics.add_member(id, 7), 0);
    assert_eq!(topics.only_member(id), Some(7));
}

/// A topic may have hundreds of thousands of members. To tell a member its place costs a cache miss, so only moved members are
/// told.
#[test]
fn only_members_that_moved_are_told_their_place_after_a_walk() {
    const MEMBERS: u32 = 1000;
    for (leave, expected) in [
        (&[3][..], &[(999, 3)][..]),
        (&[999], &[]),
        (&[0, 998, 999], &[(997, 0)]),
        (&[7, 8], &[(999, 7), (998, 8)]),
    ] {
        let mut topics = Topics::default();
        let id = topics.find_or_create(1, b"a");
        (0..MEMBERS).for_each(|conn| assert_eq!(topics.add_member(id, conn), conn));
        topics.begin_walk(id);
        for place in leave {
            assert!(topics.remove_member(id, *place).is_none());
        }
        let mut told = Vec::new();
        topics.end_walk(id, |moved| told.push((moved.slot, moved.index)));
        assert_eq!(told, expected, "{leave:?}");
        assert_eq!(topics.place_count(id), MEMBERS - leave.len() as u32);
    }
}

#[test]
fn the_bytes_of_topics_are_those_of_their_rows_and_sets() {
    let mut topics = Topics::default();
    let empty = topics.bytes();
    let (rows, each) = (4096, size_of::<CarrierTopic>());
    for n in 0..rows as u32 {
        topics.find_or_create(n, &n.to_le_bytes());
    }
    let without_sets = topics.bytes();
    let grown = without_sets - empty;
    assert!((rows * each..rows * each * 2).contains(&grown), "{grown}");
    for id in 0..rows as u32 {
        topics.add_member(id, 1);
    }
    assert_eq!(topics.bytes(), without_sets, "one member needs no set");
    for id in 0..rows as u32 {
        topics.add_member(id, 2);
    }
    let of_sets = topics.bytes() - without_sets;
    assert!(of_sets >= rows * size_of::<MemberSet>(), "{of_sets}");
    assert!(
        of_sets <= rows * size_of::<MemberSet>() * 2 + (1 << 16),
        "{of_sets}"
    );
}
