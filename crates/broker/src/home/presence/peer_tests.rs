//! Tests of presence at several nodes: random worlds with moves, deaths, cuts and lost answers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::*;
use crate::base::ids::ConnId;
use crate::mail::peer_presence::{PeerAnswer, PolledNode};
use crate::mail::presence::PresenceChange;

const TOPIC: &[u8] = b"chat/1";
const MAX: u32 = 1_000;
const LEAVE_S: u32 = 8;
/// A node is dead for the others after so many seconds.
const DEAD_AFTER_S: u32 = 5;

/// What a watcher knows: by id, the user of each member.
type Known = BTreeMap<u64, String>;

struct Node {
    table: Presence,
    /// The writer number of its process. A node that has died, or was declared dead, has another one.
    writer: u64,
    others: BTreeMap<u64, PolledNode>,
    known: Known,
    /// The second from which on it does not reach the others; `None`: it does.
    cut_s: Option<u32>,
    /// The second in which its process was killed; `None`: it runs.
    killed_s: Option<u32>,
}

/// Where a user is: connected to a node, or away since a second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum User {
    At(usize, u32),
    Away(u32),
    /// The user has left on purpose, or long ago.
    Gone,
}

struct World {
    seed: u64,
    nodes: Vec<Node>,
    users: Vec<User>,
    /// The second in which each user last left on purpose. Other nodes may hear of it when the user is back.
    closed_s: Vec<u32>,
    s: u32,
    state: u64,
    next: u32,
    /// Whether nodes are cut off in this world. Then members may be told to leave although they have come back: their node could not tell.
    has_cuts: bool,
    loses_answers: bool,
}

fn new_node(writer: u64, s: u32) -> Node {
    let mut table = Presence::new(writer, now(s));
    let to = ReplyTo {
        slot: 0,
        generation: 0,
        request: 0,
        part: 0,
    };
    table.add_watcher(TOPIC, (0, to), None, 0);
    Node {
        table,
        writer,
        others: BTreeMap::new(),
        known: Known::new(),
        cut_s: None,
        killed_s: None,
    }
}

fn now(s: u32) -> Now {
    Now {
        s,
        unix_s: 1_000_000 + s,
    }
}

fn conn(slot: u32) -> MemberConn {
    let conn = ConnId {
        slot,
        generation: 0,
    };
    MemberConn::here(0, conn)
}

fn name(user: usize) -> String {
    alloc::format!("u{user}")
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            seed,
            nodes: Vec::new(),
            users: Vec::new(),
            closed_s: Vec::new(),
            s: 10,
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            next: 0,
            has_cuts: seed.is_multiple_of(3),
            loses_answers: seed % 3 == 1,
        };
        let nodes = 2 + world.random(2);
        for at in 0..nodes {
            world.nodes.push(new_node(1 + at as u64, 10));
        }
        world.users = alloc::vec![User::Gone; 1 + world.random(12)];
        world.closed_s = alloc::vec![0; world.users.len()];
        for _ in 0..2 {
            world.poll_all(false);
        }
        world
    }

    fn random(&mut self, below: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % below as u64) as usize
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        let is_there = |at: usize| {
            let node = &self.nodes[at];
            node.cut_s.is_none() && node.killed_s.is_none()
        };
        is_there(from) && is_there(to)
    }

    /// Whether the log says that the node is dead.
    fn is_dead(&self, at: usize) -> bool {
        let since = self.nodes[at].cut_s.or(self.nodes[at].killed_s);
        since.is_some_and(|since| self.s >= since + DEAD_AFTER_S)
    }

    /// One node polls the others.
    fn poll(&mut self, from: usize, may_lose: bool) {
        if self.nodes[from].killed_s.is_some() {
            return;
        }
        if self.nodes[from].cut_s.is_none() {
            let all = (0..self.nodes.len()).filter(|at| *at != from && !self.is_dead(*at));
            let living: Vec<u64> = all.map(|at| self.nodes[at].writer).collect();
            let node = &mut self.nodes[from];
            let gone = node.others.keys().filter(|it| !living.contains(it));
            for writer in gone.copied().collect::<Vec<u64>>() {
                let slot = node.others.remove(&writer).unwrap().slot();
                let next = node
                    .table
                    .remove_gone_members((slot, true), 0, LEAVE_S, now(self.s));
                assert_eq!(next, None);
            }
            for writer in living {
                let is_free = |slot: &u8| node.others.values().all(|it| it.slot() != *slot);
                let slot = (1..9).find(is_free).unwrap();
                let new = || PolledNode::new(slot, self.s);
                node.others.entry(writer).or_insert_with(new);
            }
        }
        let writers: Vec<u64> = self.nodes[from].others.keys().copied().collect();
        for writer in writers {
            self.poll_one(from, writer, may_lose);
        }
    }

    fn poll_one(&mut self, from: usize, writer: u64, may_lose: bool) {
        let mut polled = self.nodes[from].others.remove(&writer).unwrap();
        let to = self.nodes.iter().position(|node| node.writer == writer);
        let to = to.filter(|to| self.reaches(from, *to));
        polled.begin_round();
        while let Some(question) = polled.next_question(self.nodes[from].writer) {
            let rows_max = 1 + self.random(4) as u32;
            let time = now(self.s);
            let mut answer = to.and_then(|to| {
                let other = &mut self.nodes[to];
                let changes = other.table.next_peer_changes(&question, rows_max, time);
                let (changes, more) = changes?;
                let answer = PeerAnswer {
                    process: writer,
                    homes: 1,
                    more,
                    changes,
                };
                PeerAnswer::parse(&PeerAnswer::encode(Some(&answer)))
            });
            if may_lose && self.random(4) == 0 {
                answer = None;
            }
            let news = polled.note_answer(&question, answer, self.s);
            let table = &mut self.nodes[from].table;
            let Some(news) = news else {
                table.note_silent_peer(polled.slot());
                break;
            };
            if let Some(process) = news.begins {
                table.begin_peer_snapshot(polled.slot(), process);
            }
            for change in news.changes.iter() {
                table.apply_peer_change(polled.slot(), &change, MAX, time);
            }
            if news.ends_snapshot {
                let next = table.remove_gone_members((polled.slot(), false), 0, LEAVE_S, time);
                assert_eq!(next, None);
            }
        }
        self.nodes[from].others.insert(writer, polled);
        self.tell(from);
    }

    fn poll_all(&mut self, may_lose: bool) {
        for from in 0..self.nodes.len() {
            self.poll(from, may_lose);
        }
    }

    /// Tells the watcher of a node its news, and checks them.
    fn tell(&mut self, at: usize) {
        let (users, s, has_cuts) = (self.users.clone(), self.s, self.has_cuts);
        let (seed, closed_s) = (self.seed, self.closed_s.clone());
        let node = &mut self.nodes[at];
        let (known, mut ready) = (&mut node.known, true);
        while core::mem::take(&mut ready) {
            node.table.send_news(0, 9, |_, _, page| {
                ready = true;
                if page.resets {
                    known.clear();
                }
                for change in page.changes.iter() {
                    match change {
                        PresenceChange::Join(member) => {
                            let user = String::from_utf8(member.user.to_vec()).unwrap();
                            assert_eq!(
                                known.insert(member.id, user),
                                None,
                                "seed {seed}: joins twice"
                            );
                        }
                        PresenceChange::Leave(member) => {
                            let user = known.remove(&member.id);
                            let user = user.expect("only a member that joined leaves");
                            let user: usize = user[1..].parse().unwrap();
                            let may_leave = match users[user] {
                                User::At(..) => false,
                                User::Away(since_s) => s >= since_s + LEAVE_S,
                                User::Gone => true,
                            };
                            let may_leave = may_leave || has_cuts || s <= closed_s[user] + 2;
                            let is = users[user];
                            assert!(may_leave, "seed {seed}: {user} leaves: {is:?}");
                        }
                    }
                }
            });
            let to = ReplyTo {
                slot: 0,
                generation: 0,
                request: 0,
                part: 0,
            };
            node.table.note_ready(TOPIC, 0, to, 0);
        }
    }

    fn second(&mut self) {
        self.s += 1;
        for user in &mut self.users {
            // From now on a leave is due at some nodes, and one that comes is a new member.
            if matches!(user, User::Away(since_s) if self.s >= *since_s + LEAVE_S + 4 * DEAD_AFTER_S)
            {
                *user = User::Gone;
            }
        }
        for at in 0..self.nodes.len() {
            if self.nodes[at].killed_s.is_none() {
                self.nodes[at].table.remove_absent(now(self.s), 1_000);
                self.tell(at);
            }
        }
        let may_lose = self.loses_answers;
        self.poll_all(may_lose);
        self.poll_all(false);
    }

    fn join(&mut self, user: usize) {
        let running = (0..self.nodes.len()).filter(|at| self.nodes[*at].killed_s.is_none());
        let running: Vec<usize> = running.collect();
        let at = running[self.random(running.len())];
        self.next += 1;
        let (texts, time) = (name(user), now(self.s));
        let texts = (texts.as_bytes(), &b"{}"[..]);
        self.nodes[at]
            .table
            .join(TOPIC, conn(self.next), texts, MAX, time);
        self.users[user] = User::At(at, self.next);
        self.tell(at);
    }

    fn leave(&mut self, user: usize, linger_s: u32) {
        let User::At(at, slot) = self.users[user] else {
            return;
        };
        self.users[user] = match linger_s {
            0 => {
                self.closed_s[user] = self.s;
                User::Gone
            }
            _ => User::Away(self.s),
        };
        let table = &mut self.nodes[at].table;
        table.leave(TOPIC, conn(slot), linger_s, now(self.s));
        self.tell(at);
    }

    fn step(&mut self) {
        let user = self.random(self.users.len());
        let at = self.random(self.nodes.len());
        match self.random(20) {
            0..4 => self.second(),
            4..8 if self.users[user] == User::Gone => self.join(user),
            8..10 => self.leave(user, LEAVE_S),
            10 => self.leave(user, 0),
            // A reload, or a move to another node.
            11..14 if matches!(self.users[user], User::At(..)) => {
                self.leave(user, LEAVE_S);
                self.join(user);
            }
            // The user comes back in time, or after it.
            14..16 => match self.users[user] {
                User::Away(since_s) if self.s < since_s + LEAVE_S / 2 => self.join(user),
                _ => {}
            },
            16 => self.poll(at, false),
            17 if self.running() > 1 && self.nodes[at].killed_s.is_none() => self.kill(at),
            18 if self.nodes[at].killed_s.is_some() => self.start(at),
            19 if self.has_cuts && self.nodes[at].killed_s.is_none() => self.cut_or_heal(at),
            _ => {}
        }
    }

    fn running(&self) -> usize {
        let all = self.nodes.iter();
        all.filter(|node| node.killed_s.is_none()).count()
    }

    fn kill(&mut self, at: usize) {
        // No node dies while the death of another is not known: its members could be known to nobody.
        if self.nodes.iter().any(|node| node.killed_s.is_some()) {
            return;
        }
        // What only this node knew would be lost with it, and a member that it continued would leave elsewhere.
        self.poll_all(false);
        (self.nodes[at].killed_s, self.nodes[at].cut_s) = (Some(self.s), None);
        for user in &mut self.users {
            if matches!(user, User::At(of, _) if *of == at) {
                *user = User::Away(self.s);
            }
        }
    }

    fn start(&mut self, at: usize) {
        if !self.is_dead(at) {
            return;
        }
        self.poll_all(false);
        let writer = self.nodes[at].writer + 10;
        self.nodes[at] = new_node(writer, self.s);
        self.poll_all(false);
    }

    fn cut_or_heal(&mut self, at: usize) {
        match self.nodes[at].cut_s {
            None => self.nodes[at].cut_s = Some(self.s),
            Some(_) => {
                if self.is_dead(at) {
                    self.poll_all(false);
                    self.nodes[at].writer += 10;
                }
                self.nodes[at].cut_s = None;
            }
        }
    }

    /// Lets everything settle, and checks that every node knows the true members: before nodes that were killed start again, and after.
    fn end(&mut self) {
        self.loses_answers = false;
        for at in 0..self.nodes.len() {
            if self.nodes[at].cut_s.is_some() {
                self.cut_or_heal(at);
            }
        }
        self.settle();
        for at in 0..self.nodes.len() {
            if self.nodes[at].killed_s.is_some() {
                self.start(at);
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..LEAVE_S + 3 * DEAD_AFTER_S {
            self.second();
        }
        let present = self.users.iter().enumerate();
        let present = present.filter(|(_, user)| matches!(user, User::At(..)));
        let present: BTreeSet<String> = present.map(|(user, _)| name(user)).collect();
        for node in self.nodes.iter().filter(|node| node.killed_s.is_none()) {
            let known: Vec<String> = node.known.values().cloned().collect();
            let seed = self.seed;
            assert_eq!(
                known.len(),
                present.len(),
                "seed {seed}: {known:?}, true: {present:?}"
            );
            assert_eq!(known.into_iter().collect::<BTreeSet<_>>(), present);
            let counts = node.table.read(TOPIC, u64::MAX, 1).counts;
            assert_eq!(counts.clients as usize, present.len());
            assert_eq!(counts.listed, counts.users);
        }
    }
}

#[test]
fn every_node_ends_at_the_true_members_and_tells_no_leave_of_one_who_moves() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..200 {
            world.step();
        }
        world.end();
    }
}

fn two_tables() -> [Presence; 2] {
    [1, 2].map(|seed| Presence::new(seed, now(0)))
}

/// Passes all changes of `from` to `to`, which knows it as node 1.
fn pass(from: &mut Presence, to: &mut Presence, polled: &mut PolledNode, max: u32) {
    polled.begin_round();
    while let Some(question) = polled.next_question(7) {
        let (changes, more) = from.next_peer_changes(&question, 9, now(1)).unwrap();
        let answer = PeerAnswer {
            process: 5,
            homes: 1,
            more,
            changes,
        };
        let news = polled.note_answer(&question, Some(answer), 1).unwrap();
        if news.begins.is_some() {
            to.begin_peer_snapshot(1, 5);
        }
        for change in news.changes.iter() {
            to.apply_peer_change(1, &change, max, now(1));
        }
        if news.ends_snapshot {
            to.remove_gone_members((1, false), 0, 0, now(1));
        }
    }
}

#[test]
fn connections_that_other_nodes_only_count_are_in_the_sum_until_they_leave() {
    let [mut one, mut other] = two_tables();
    let mut polled = PolledNode::new(1, 0);
    let user = |n: u32| alloc::format!("u{n}");
    // At its node two of five are listed, and here one of these two.
    for n in 0..5 {
        one.join(TOPIC, conn(n), (user(n).as_bytes(), b""), 2, now(1));
        if n == 3 {
            pass(&mut one, &mut other, &mut polled, 1);
        }
    }
    pass(&mut one, &mut other, &mut polled, 1);
    let counts = |table: &Presence| {
        let counts = table.read(TOPIC, u64::MAX, 1).counts;
        [counts.clients, counts.listed]
    };
    assert_eq!((counts(&one), counts(&other)), ([5, 2], [5, 1]));
    // A new snapshot counts nobody twice.
    polled.begin_again();
    pass(&mut one, &mut other, &mut polled, 1);
    assert_eq!(counts(&other), [5, 1]);
    for n in 0..4 {
        one.leave(TOPIC, conn(n), 0, now(1));
        pass(&mut one, &mut other, &mut polled, 1);
        assert_eq!(counts(&other)[0], 4 - n);
    }
    // The node dies.
    assert_eq!(other.remove_gone_members((1, true), 0, 0, now(1)), None);
    assert_eq!((counts(&other), other.is_empty()), ([0, 0], true));
}

#[test]
fn members_of_other_nodes_are_charged_and_need_at_most_120_bytes_beside_their_texts() {
    let [mut one, mut other] = two_tables();
    let mut polled = PolledNode::new(1, 0);
    let members = 20_000;
    for n in 0..members {
        let user = alloc::format!("{n:08}");
        one.join(TOPIC, conn(n), (user.as_bytes(), b""), members, now(1));
    }
    let before = other.bytes();
    pass(&mut one, &mut other, &mut polled, members);
    let bytes = (other.bytes() - before) / members as usize - 8;
    let max = crate::mail::presence::MEMBER_BYTES;
    assert!((50..=max).contains(&bytes), "{bytes}");
    // What waits for a node that does not ask is charged too, and bounded.
    let waiting = one.bytes();
    for n in 0..members {
        one.leave(TOPIC, conn(n), 0, now(1));
        one.join(
            TOPIC,
            conn(members + n),
            (b"x", &[b'1'; 900]),
            members,
            now(1),
        );
        one.leave(TOPIC, conn(members + n), 0, now(1));
    }
    let bound = crate::mail::peer_presence::PENDING_BYTES_MAX;
    assert!(one.bytes() < waiting + 2 * bound, "{}", one.bytes());
    polled.begin_round();
    let question = polled.next_question(7).unwrap();
    assert_eq!(one.next_peer_changes(&question, 9, now(1)), None);
}
