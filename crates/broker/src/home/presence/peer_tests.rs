//! Tests of presence at several nodes: random worlds with moves, deaths, cuts and lost answers.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::tests::topics;
use super::*;
use crate::base::ids::ConnId;
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::{Rule, Settings};
use crate::budget::admission::Admission;
use crate::home::Home;
use crate::mail::peer_presence::{
    PeerAnswer, PeerChange, PeerChanges, PeerPresence, PeerPresenceReply, PeerQuestion, PolledNode,
};
use crate::mail::presence::PresenceChange;

const TOPIC: &[u8] = b"chat/1";
const MAX: u32 = 1_000;
const LEAVE_S: u32 = 8;
/// The connection of a watcher.
const WATCHER: ReplyTo = ReplyTo {
    slot: 0,
    generation: 0,
    request: 0,
    part: 0,
};
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
    /// What the stream for webhooks has told.
    hooked: Known,
    /// The second from which on it does not reach the others; `None`: it does.
    cut_s: Option<u32>,
    /// The second in which its process was killed; `None`: it runs.
    killed_s: Option<u32>,
    /// Whether the topic's rule has presence.
    has_presence: bool,
}

/// Where a user is. Users with odd numbers have at most two connections, the others one.
#[derive(Clone, Debug, Default, PartialEq)]
struct User {
    /// The node and the number of each connection.
    connections: Vec<(usize, u32)>,
    /// The second in which the last connection broke; `None`: the user is connected, has left on purpose, or long ago.
    away_s: Option<u32>,
    /// The second in which the user last left on purpose. Other nodes may hear of it when the user is back.
    closed_s: u32,
}

struct World {
    seed: u64,
    nodes: Vec<Node>,
    users: Vec<User>,
    s: u32,
    state: u64,
    next: u32,
    /// Whether nodes are cut off in this world. Then members may be told to leave although they have come back: their node could not tell.
    has_cuts: bool,
    loses_answers: bool,
    /// Whether the rules change in this world. Then members may be told to leave too.
    has_reloads: bool,
}

fn new_node(writer: u64, s: u32) -> Node {
    let mut table = Presence::new(writer, writer, now(s));
    table.add_watcher(TOPIC, (0, WATCHER), None, 0);
    table.begin_stream(1, topics("#"));
    Node {
        table,
        writer,
        others: BTreeMap::new(),
        known: Known::new(),
        hooked: Known::new(),
        cut_s: None,
        killed_s: None,
        has_presence: true,
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
            s: 10,
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            next: 0,
            has_cuts: seed.is_multiple_of(3),
            loses_answers: seed % 3 == 1,
            has_reloads: seed % 4 == 3,
        };
        let nodes = 2 + world.random(2);
        for at in 0..nodes {
            world.nodes.push(new_node(1 + at as u64, 10));
        }
        world.users = alloc::vec![User::default(); 1 + world.random(12)];
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
                    .remove_gone_members(slot, true, 0, LEAVE_S, now(self.s));
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
            let news = polled.take_answer(&question, answer, self.s);
            let members_max = self.nodes[from].has_presence.then_some(MAX);
            let table = &mut self.nodes[from].table;
            let Some(news) = news else {
                table.set_peer_silent(polled.slot());
                break;
            };
            if let Some(process) = news.begins {
                table.begin_peer_snapshot(polled.slot(), process);
            }
            for change in news.changes.iter() {
                table.apply_peer_change(polled.slot(), &change, members_max, time);
            }
            if news.ends_snapshot {
                let next = table.remove_gone_members(polled.slot(), false, 0, LEAVE_S, time);
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
        let (users, s, seed) = (self.users.clone(), self.s, self.seed);
        let may_tell_leaves = self.has_cuts || self.has_reloads;
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
                            let has_other = known.values().any(|it| *it == user);
                            let number: usize = user[1..].parse().unwrap();
                            let user = &users[number];
                            let may_leave = match user.away_s {
                                None if user.connections.is_empty() => true,
                                // Another connection of the user has left.
                                None => number % 2 == 1 && has_other,
                                Some(since_s) => s >= since_s + LEAVE_S || has_other,
                            };
                            // A node that heard late of a former connection keeps the member as long as if only that one had broken.
                            let closed_until_s = user.closed_s + LEAVE_S + DEAD_AFTER_S;
                            let may_leave = may_leave || may_tell_leaves || s <= closed_until_s;
                            assert!(
                                may_leave,
                                "seed {seed}: u{number} leaves in second {s}: {user:?}"
                            );
                        }
                    }
                }
            });
            node.table.set_ready(TOPIC, 0, WATCHER, 0);
        }
        let changes = node.table.take_changes(1, 3);
        for change in changes.expect("it is read often").0 {
            let user = String::from_utf8(change.user.to_vec()).unwrap();
            let is_new = match change.joins {
                true => node.hooked.insert(change.id, user).is_none(),
                // The last leave of a user is told although the stream may not know the member.
                false => node.hooked.remove(&change.id).is_some() || change.is_of_user,
            };
            assert!(is_new, "seed {seed}: {change:?}");
        }
    }

    fn second(&mut self) {
        self.s += 1;
        for user in &mut self.users {
            // From now on a leave is due at some nodes, and one that comes is a new member.
            let is_long_ago = |since_s: u32| self.s >= since_s + LEAVE_S + 4 * DEAD_AFTER_S;
            if user.away_s.is_some_and(is_long_ago) {
                user.away_s = None;
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
        let connection = (at, self.next);
        self.users[user].connections.push(connection);
        self.users[user].away_s = None;
        self.subscribe(user, connection);
    }

    /// A connection becomes a member at its node, if the rule has presence there.
    fn subscribe(&mut self, user: usize, (at, number): (usize, u32)) {
        let (texts, time) = (name(user), now(self.s));
        let texts = (texts.as_bytes(), &b"{}"[..]);
        let node = &mut self.nodes[at];
        if node.has_presence {
            node.table.join(TOPIC, conn(number), texts, MAX, time);
        }
        self.tell(at);
    }

    fn leave(&mut self, user: usize, linger_s: u32) {
        let connections = self.users[user].connections.len();
        if connections == 0 {
            return;
        }
        let which = self.random(connections);
        let user = &mut self.users[user];
        let (at, number) = user.connections.swap_remove(which);
        if linger_s == 0 {
            user.closed_s = self.s;
        } else if connections == 1 {
            user.away_s = Some(self.s);
        }
        let table = &mut self.nodes[at].table;
        table.leave(TOPIC, conn(number), linger_s, now(self.s));
        self.tell(at);
    }

    fn step(&mut self) {
        let user = self.random(self.users.len());
        let at = self.random(self.nodes.len());
        let is = self.users[user].clone();
        let has_room = is.connections.len() < 1 + user % 2;
        match self.random(21) {
            0..4 => self.second(),
            4..8 if has_room && is.away_s.is_none() => self.join(user),
            8..10 => self.leave(user, LEAVE_S),
            10 => self.leave(user, 0),
            // A reload, or a move to another node.
            11..14 if !is.connections.is_empty() => {
                self.leave(user, LEAVE_S);
                self.join(user);
            }
            // The user comes back in time, or after it.
            14..16 => match is.away_s {
                Some(since_s) if self.s < since_s + LEAVE_S / 2 => self.join(user),
                _ => {}
            },
            16 => self.poll(at, false),
            17 if self.running() > 1 && self.nodes[at].killed_s.is_none() => self.kill(at),
            18 if self.nodes[at].killed_s.is_some() => self.start(at),
            19 if self.has_cuts && self.nodes[at].killed_s.is_none() => self.cut_or_heal(at),
            20 if self.has_reloads && self.nodes[at].killed_s.is_none() => self.reload(at),
            _ => {}
        }
    }

    /// Turns presence on or off in the rules of a node.
    fn reload(&mut self, at: usize) {
        self.nodes[at].has_presence ^= true;
        let has_presence = self.nodes[at].has_presence;
        self.nodes[at]
            .others
            .values_mut()
            .for_each(PolledNode::begin_again);
        for user in 0..self.users.len() {
            let connections = self.users[user].connections.clone();
            for connection in connections.into_iter().filter(|(of, _)| *of == at) {
                match has_presence {
                    true => self.subscribe(user, connection),
                    false => {
                        let table = &mut self.nodes[at].table;
                        table.leave(TOPIC, conn(connection.1), 0, now(self.s));
                        self.tell(at);
                    }
                }
            }
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
            let had_any = !user.connections.is_empty();
            user.connections.retain(|(of, _)| *of != at);
            if had_any && user.connections.is_empty() {
                user.away_s = Some(self.s);
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
            if !self.nodes[at].has_presence {
                self.reload(at);
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
        let users = self.users.iter().enumerate();
        let present =
            users.flat_map(|(number, user)| user.connections.iter().map(move |_| name(number)));
        let mut present: Vec<String> = present.collect();
        present.sort();
        for node in self.nodes.iter().filter(|node| node.killed_s.is_none()) {
            let mut known: Vec<String> = node.known.values().cloned().collect();
            known.sort();
            let seed = self.seed;
            assert_eq!(known, present, "seed {seed}");
            assert_eq!(node.hooked, node.known, "seed {seed}");
            let counts = node.table.read(TOPIC, u64::MAX, 1).counts;
            present.dedup();
            assert_eq!(counts.clients as usize, known.len(), "seed {seed}");
            assert_eq!(counts.users as usize, present.len(), "seed {seed}");
            present = known;
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
    [1, 2].map(|seed| Presence::new(seed, seed, now(0)))
}

/// Passes all changes of `from` to `to`, which knows it as node 1.
fn pass(from: &mut Presence, to: &mut Presence, polled: &mut PolledNode, max: u32) {
    pass_with(from, to, polled, max, |_| {});
}

/// The same. `check` is called after each change.
fn pass_with(
    from: &mut Presence,
    to: &mut Presence,
    polled: &mut PolledNode,
    max: u32,
    check: impl Fn(&Presence),
) {
    polled.begin_round();
    while let Some(question) = polled.next_question(7) {
        let (changes, more) = from.next_peer_changes(&question, 9, now(1)).unwrap();
        let answer = PeerAnswer {
            process: 5,
            homes: 1,
            more,
            changes,
        };
        let news = polled.take_answer(&question, Some(answer), 1).unwrap();
        if news.begins.is_some() {
            to.begin_peer_snapshot(1, 5);
        }
        for change in news.changes.iter() {
            to.apply_peer_change(1, &change, Some(max), now(1));
            check(to);
        }
        if news.ends_snapshot {
            to.remove_gone_members(1, false, 0, 0, now(1));
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
    // A new snapshot counts nobody twice, not even before it is complete.
    polled.begin_again();
    pass_with(&mut one, &mut other, &mut polled, 1, |other| {
        assert_eq!(counts(other), [5, 1])
    });
    assert_eq!(counts(&other), [5, 1]);
    for n in 0..4 {
        one.leave(TOPIC, conn(n), 0, now(1));
        pass(&mut one, &mut other, &mut polled, 1);
        assert_eq!(counts(&other)[0], 4 - n);
    }
    // The node dies.
    assert_eq!(other.remove_gone_members(1, true, 0, 0, now(1)), None);
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

/// A table that knows this member of node 1, whose process began with writer number 5.
fn table_with_member_of_peer(user: &[u8], members: u32) -> Presence {
    let [mut one, mut other] = two_tables();
    for n in 0..members {
        one.join(TOPIC, conn(n), (user, b""), MAX, now(1));
    }
    pass(&mut one, &mut other, &mut PolledNode::new(1, 0), MAX);
    other
}

fn peer_join(slot: u32, leaves_in_s: u32, user: &[u8]) -> PeerChange<'_> {
    PeerChange::Join {
        topic: TOPIC,
        conn: conn(slot),
        since_s: 1,
        leaves_in_s,
        user,
        info: b"",
    }
}

#[test]
fn leave_of_a_member_names_the_process_of_its_connection_after_its_node_has_gone() {
    let mut table = table_with_member_of_peer(b"ann", 1);
    let mut seen = Vec::new();
    let mut tell = |table: &mut Presence| {
        table.send_news(0, 9, |_, _, page| {
            seen.extend(page.changes.iter().map(|change| match change {
                PresenceChange::Join(member) => (true, member.process),
                PresenceChange::Leave(member) => (false, member.process),
            }));
        });
    };
    table.add_watcher(TOPIC, (0, WATCHER), None, 0);
    tell(&mut table);
    assert_eq!(table.remove_gone_members(1, true, 0, 5, now(2)), None);
    table.remove_absent(now(20), 1_000);
    // Before the watcher is told, another node gets the number.
    table.begin_peer_snapshot(1, 6);
    table.set_ready(TOPIC, 0, WATCHER, 0);
    tell(&mut table);
    assert_eq!(seen, [(true, 5), (false, 5)]);
}

#[test]
fn counts_of_a_hostile_node_harm_nothing() {
    let mut table = table_with_member_of_peer(b"ann", 1);
    let count = |table: &mut Presence, node: u8, count: u32| {
        let change = PeerChange::Unlisted {
            topic: TOPIC,
            count,
        };
        table.apply_peer_change(node, &change, Some(0), now(1));
        table.read(TOPIC, 0, 1).counts.clients
    };
    table.begin_peer_snapshot(2, 6);
    for node in [1, 2] {
        assert_eq!(count(&mut table, node, u32::MAX), u32::MAX);
        table.apply_peer_change(node, &peer_join(9, 0, b"bob"), Some(0), now(1));
        table.begin_peer_snapshot(node, 7);
        assert_eq!(count(&mut table, node, u32::MAX - 1), u32::MAX);
    }
    for node in [1, 2] {
        assert_eq!(table.remove_gone_members(node, true, 0, 0, now(1)), None);
    }
    assert!(table.is_empty());
}

#[test]
fn members_of_a_node_that_has_gone_leave_in_bounded_steps() {
    let [mut one, mut other] = two_tables();
    let members = 50_000;
    for n in 0..members {
        one.join(TOPIC, conn(n), (b"", b""), members, now(1));
    }
    // Their rows are in the order in which rows are reused, so they leave from the middle of the list.
    pass(&mut one, &mut other, &mut PolledNode::new(1, 0), members);
    for n in 0..members {
        other.join(TOPIC, conn(n), (b"", b""), 3 * members, now(1));
    }
    other.take_moved_bytes();
    let (mut next, mut calls) = (Some(0), 0);
    while let Some(from) = next {
        next = other.remove_gone_members(1, true, from, 0, now(2));
        let moved = other.take_moved_bytes();
        let longest_move = 4 * members as usize;
        let bound = 1_024 * STEP_BYTES + longest_move;
        assert!(moved <= bound, "{moved} bytes in one call");
        calls += 1;
    }
    assert_eq!(other.read(TOPIC, 0, 1).counts.clients, members);
    assert!(calls > 40, "{calls}");
}

#[test]
fn connection_that_subscribes_again_before_its_member_has_left_stays_at_all_nodes() {
    let [mut one, mut other] = two_tables();
    let mut polled = PolledNode::new(1, 0);
    one.join(TOPIC, conn(1), (b"ann", b""), MAX, now(1));
    pass(&mut one, &mut other, &mut polled, MAX);
    one.leave(TOPIC, conn(1), 5, now(1));
    pass(&mut one, &mut other, &mut polled, MAX);
    one.join(TOPIC, conn(1), (b"ann", b""), MAX, now(2));
    pass(&mut one, &mut other, &mut polled, MAX);
    for table in [&mut one, &mut other] {
        table.remove_absent(now(99), 1_000);
        assert_eq!(table.read(TOPIC, 0, 1).counts.clients, 1);
    }
}

#[test]
fn watcher_of_connections_sees_no_member_continue_with_a_connection_that_has_ended() {
    let mut table = table_with_member_of_peer(b"ann", 1);
    table.add_change_watcher(TOPIC, (0, WATCHER), 0);
    let leave = PeerChange::Leave {
        topic: TOPIC,
        conn: conn(0),
        linger_s: 5,
    };
    table.apply_peer_change(1, &leave, Some(MAX), now(1));
    table.apply_peer_change(1, &peer_join(9, 8, b"ann"), Some(MAX), now(1));
    let page = table.read(TOPIC, 0, 9);
    let slots = page.changes.iter().map(|change| match change {
        PresenceChange::Join(member) | PresenceChange::Leave(member) => member.at.conn.slot,
    });
    assert!(slots.eq([0]));
}

#[test]
fn stream_for_webhooks_tells_the_members_at_all_nodes_and_no_move_between_nodes() {
    let mut table = table_with_member_of_peer(b"ann", 1);
    table.begin_stream(1, topics("#"));
    let expect = |table: &mut Presence, wanted: &[(bool, &[u8])]| {
        let (changes, more) = table.take_changes(1, 9).expect("nothing is lost");
        let told: Vec<_> = changes.iter().map(|it| (it.joins, &*it.user)).collect();
        assert_eq!((told, more), (wanted.to_vec(), false));
        assert!(changes.iter().all(|it| it.is_of_user));
    };
    expect(&mut table, &[(true, b"ann")]);
    let leave = PeerChange::Leave {
        topic: TOPIC,
        conn: conn(0),
        linger_s: 5,
    };
    table.apply_peer_change(1, &leave, Some(MAX), now(1));
    table.join(TOPIC, conn(9), (b"ann", b""), MAX, now(1));
    expect(&mut table, &[]);
    table.apply_peer_change(1, &peer_join(2, 0, b"bob"), Some(MAX), now(1));
    expect(&mut table, &[(true, b"bob")]);
    table.remove_gone_members(1, true, 0, 0, now(1));
    expect(&mut table, &[(false, b"bob")]);
}

/// The next answer of a table's stream for node 7, of one row, passed on as from node 1. Returns whether the snapshot goes on.
fn pass_row(from: &mut Presence, to: &mut Presence, answers: u32) -> bool {
    let question = PeerQuestion {
        poller: 7,
        stream: 1,
        answers,
        home: 0,
    };
    let (changes, more) = from.next_peer_changes(&question, 1, now(1)).unwrap();
    if answers == 0 {
        to.begin_peer_snapshot(1, 5);
    }
    for change in changes.iter() {
        to.apply_peer_change(1, &change, Some(MAX), now(1));
    }
    more
}

#[test]
fn connection_with_which_a_member_continues_during_a_snapshot_is_known_to_the_others_until_it_ends()
{
    for (waits_before, ends) in [(true, true), (true, false), (false, true), (false, false)] {
        let [mut one, mut other] = two_tables();
        one.begin_peer_snapshot(9, 9);
        one.join(TOPIC, conn(0), (b"bob", b""), MAX, now(1));
        if waits_before {
            one.join(TOPIC, conn(1), (b"ann", b""), MAX, now(1));
            one.leave(TOPIC, conn(0), 0, now(1));
        } else {
            one.leave(TOPIC, conn(0), 0, now(1));
            one.join(TOPIC, conn(1), (b"ann", b""), MAX, now(1));
        }
        // It waits in the row before the member, or behind it. The snapshot has told of the first row.
        one.join(TOPIC, conn(2), (b"ann", b""), MAX, now(1));
        assert!(pass_row(&mut one, &mut other, 0));
        one.leave(TOPIC, conn(1), 0, now(1));
        if ends {
            one.leave(TOPIC, conn(2), 0, now(1));
        }
        let mut answers = 1;
        while pass_row(&mut one, &mut other, answers) {
            answers += 1;
        }
        other.remove_gone_members(1, false, 0, 0, now(1));
        other.remove_absent(now(99), 1_000);
        for table in [&one, &other] {
            let clients = table.read(TOPIC, 0, 1).counts.clients;
            assert_eq!(clients, u32::from(!ends), "{waits_before} {ends}");
        }
    }
}

#[test]
fn member_that_continues_with_a_connection_that_has_gone_leaves_with_the_end_of_the_snapshot() {
    let mut table = Presence::new(1, 1, now(0));
    table.begin_peer_snapshot(1, 5);
    table.join(TOPIC, conn(1), (b"ann", b""), MAX, now(1));
    table.apply_peer_change(1, &peer_join(2, 0, b"ann"), Some(MAX), now(1));
    // The next snapshot does not name the connection that waits.
    table.begin_peer_snapshot(1, 5);
    table.leave(TOPIC, conn(1), 0, now(1));
    assert_eq!(table.read(TOPIC, 0, 1).counts.clients, 1);
    assert_eq!(table.remove_gone_members(1, false, 0, 0, now(1)), None);
    assert!(table.is_empty());
}

#[test]
fn connection_that_waits_and_that_a_snapshot_names_as_ended_never_becomes_a_member() {
    let mut table = Presence::new(1, 1, now(0));
    table.begin_peer_snapshot(1, 5);
    table.join(TOPIC, conn(1), (b"ann", b""), MAX, now(1));
    table.apply_peer_change(1, &peer_join(2, 0, b"ann"), Some(MAX), now(1));
    table.apply_peer_change(1, &peer_join(2, 5, b"ann"), Some(MAX), now(1));
    table.remove_absent(now(4), 1_000);
    assert_eq!(table.read(TOPIC, 0, 1).counts.clients, 1);
}

/// Applies changes of node 1 at a home. Returns whether all of them were taken.
fn apply(home: &mut Home, rules: &Rules, has_room: bool, changes: &[PeerChange<'_>]) -> bool {
    let mut all = PeerChanges::default();
    changes.iter().for_each(|change| all.push(change));
    let order = PeerPresence::Apply(1, all);
    match home.handle_peer_presence(order, (rules, 0), has_room, now(1)) {
        PeerPresenceReply::Applied { has_room } => has_room,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn members_leave_whatever_the_rules_and_the_memory_are_and_nothing_is_added_without_them() {
    let rules = |presence: bool| {
        Rules::new(&[Rule {
            filter: "#".into(),
            presence,
            ..Rule::default()
        }])
    };
    let settings = Settings::default();
    let admission = Admission::new(&settings, 42);
    let (with, without) = (rules(true), rules(false));
    let mut home = Home::new(&settings, &with, admission, 7, Placement::new(1, 1), 0, 42);
    let clients = |home: &Home| home.read_members(TOPIC, 0, 9).counts.clients;
    // A node that asks makes no table here.
    let mut polled = PolledNode::new(1, 0);
    polled.begin_round();
    let order = PeerPresence::Next(polled.next_question(7).expect("a question"));
    let reply = home.handle_peer_presence(order, (&with, 0), true, now(1));
    let is_empty = |reply| matches!(reply, PeerPresenceReply::Changes(Some((changes, false))) if changes.is_empty());
    assert!(is_empty(reply) && home.presence_bytes() == 0);
    home.handle_peer_presence(PeerPresence::BeginSnapshot(1, 5), (&with, 0), true, now(1));
    // Without room, topics get no rows, and the node must be asked again.
    let empty_bytes = home.presence_bytes();
    let unlisted = PeerChange::Unlisted {
        topic: TOPIC,
        count: 3,
    };
    let all = [peer_join(1, 0, b"ann"), unlisted];
    assert!(!apply(&mut home, &with, false, &all));
    assert_eq!((home.presence_bytes(), clients(&home)), (empty_bytes, 0));
    assert!(apply(&mut home, &with, true, &all));
    assert_eq!(clients(&home), 4);
    // In a topic that is known, a further member is only counted.
    assert!(!apply(&mut home, &with, false, &[peer_join(2, 0, b"bob")]));
    assert_eq!(home.read_members(TOPIC, 0, 9).counts.listed, 1);
    assert_eq!(clients(&home), 5);
    // The rule has no presence any more.
    assert!(apply(&mut home, &without, true, &[peer_join(3, 0, b"cid")]));
    assert_eq!(clients(&home), 5);
    let leave = |slot| PeerChange::Leave {
        topic: TOPIC,
        conn: conn(slot),
        linger_s: 0,
    };
    assert!(apply(
        &mut home,
        &without,
        true,
        &[leave(1), leave(2), unlisted]
    ));
    assert_eq!(clients(&home), 0);
}
