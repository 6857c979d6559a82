//! Random runs of nodes that exchange presence: real shards with event streams, cut connections, dead nodes and reloaded pages. In the end every node must
//! list the true members, and no watcher may have seen a leave of a user who came back in time. The endpoint of a webhook must also end with the true
//! members, although the node that sends to it may die with unanswered changes. The test must notice faults that are planted into the messages to nodes and
//! to the endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use crore_broker::mail::hooks::{HookKinds, Hooks, MemberChange, SelectedTopics};
use crore_broker::mail::peer_presence::{
    PeerAnswer, PeerChange, PeerChanges, PeerPresence, PeerPresenceReply, PolledNode,
};
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Control, Input, Report, ShardId, Ticket, TurnLimits, World};
use support::{NOW, TestServer, stream};

mod support;

const TOPICS: usize = 3;
const USERS: usize = 6;
const STEPS: usize = 80;
const LEAVE_S: u32 = 8;
/// The log declares a node dead when it has been dead or cut off for this many seconds.
const DEAD_AFTER_S: u32 = 3;

/// A planted fault.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The homes (the parts of shards that keep topics) do not learn that a node has died.
    MemberOfDeadNodeStays,
    /// The changes in an answer are in the wrong order.
    LeaveBeforeJoin,
    /// Other nodes see a leave as soon as a member's connection breaks.
    LeaveWithoutDelay,
    /// The next node that sends to the webhook's endpoint sends only later changes, and not all members first.
    WebhookLostAtCrash,
}

/// The endpoint of a webhook, and the node that sends to it (in a real cluster the steward).
#[derive(Default)]
struct Endpoint {
    /// The writer number of the node.
    sender: u64,
    /// The number of the node's stream.
    stream: u64,
    /// Changes that the node has taken from its homes and the endpoint has not answered. They are lost if the node dies.
    unanswered: Vec<MemberChange>,
    /// The user of each member, by topic and member number.
    members: BTreeMap<(Vec<u8>, u64), String>,
}

impl Endpoint {
    /// The endpoint applies and answers the changes.
    fn answer(&mut self) -> Result<(), String> {
        for change in self.unanswered.drain(..) {
            let key = (change.topic.to_vec(), change.id);
            let user = String::from_utf8_lossy(&change.user).into_owned();
            let is_new = match change.joins {
                true => self.members.insert(key, user).is_none(),
                // The node sends a user's last leave even if the stream may not contain the member.
                false => self.members.remove(&key).is_some() || change.is_of_user,
            };
            if !is_new {
                return Err(format!("the endpoint is told twice: {change:?}"));
            }
        }
        Ok(())
    }

    /// The users of a topic's members.
    fn users(&self, topic: usize) -> Vec<String> {
        let name = self::topic(topic).into_bytes();
        let members = self.members.iter().filter(|((topic, _), _)| *topic == name);
        let mut users: Vec<String> = members.map(|(_, user)| user.clone()).collect();
        users.sort();
        users
    }
}

struct Node {
    server: TestServer,
    writer: u64,
    others: BTreeMap<u64, PolledNode>,
    /// The watcher's connection for each topic, and the users that it knows, by id.
    watchers: Vec<(usize, BTreeMap<String, String>)>,
    /// The second in which the node was cut off or killed.
    gone_s: Option<u32>,
    is_killed: bool,
}

#[derive(Clone, Default)]
struct User {
    /// The node to which the user is connected, and the connection.
    at: Option<(usize, usize)>,
    /// The second in which the user's last connection broke.
    left_s: u32,
}

struct Nodes {
    world: Arc<World>,
    nodes: Vec<Node>,
    users: Vec<User>,
    state: u64,
    s: u32,
    next_writer: u64,
    has_cuts: bool,
    endpoint: Endpoint,
    fault: Fault,
}

fn topic(user: usize) -> String {
    format!("chat/{}", user % TOPICS)
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.rules.push(Rule {
        filter: "chat/#".into(),
        presence: true,
        ..Rule::default()
    });
    settings.access.closed = true;
    settings.presence.leave_s = LEAVE_S;
    settings
}

impl Node {
    fn new(world: &Arc<World>, writer: u64, s: u32) -> Node {
        let mut server = TestServer::new(world, TurnLimits::default(), NOW);
        server.advance_s(s);
        let watch = |server: &mut TestServer, topic: usize| {
            let path = format!("/presence/chat/{topic}");
            (stream(server, 0, &path, ("watcher", "")), BTreeMap::new())
        };
        let watchers = (0..TOPICS).map(|it| watch(&mut server, it)).collect();
        server.settle();
        Node {
            server,
            writer,
            others: BTreeMap::new(),
            watchers,
            gone_s: None,
            is_killed: false,
        }
    }

    fn ask(&mut self, home: ShardId, order: PeerPresence) -> PeerPresenceReply {
        let home = usize::from(home);
        let input = Input::Control(Ticket(9), Control::PeerPresence(order));
        self.server.handle(home, input);
        match self.server.io[home].reports.pop() {
            Some((Ticket(9), Report::PeerPresence(reply))) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn remove_members(&mut self, homes: ShardId, order: impl Fn(u32) -> PeerPresence) {
        for home in 0..homes {
            let mut next = Some(0);
            while let Some(from) = next {
                let PeerPresenceReply::Next(row) = self.ask(home, order(from)) else {
                    panic!("a row");
                };
                next = row;
            }
        }
    }

    /// Takes the next changes of a stream for the endpoint from all homes. The first call for a stream has `begins` set.
    fn take_changes(&mut self, homes: ShardId, number: u64, begins: bool) -> Vec<MemberChange> {
        let mut changes = Vec::new();
        for home in 0..homes {
            let topics = SelectedTopics {
                filters: [b"#"[..].into()].into(),
                partition: None,
            };
            let mut begins = begins.then_some(topics);
            let mut more = true;
            while more {
                let order = Hooks::Next {
                    number,
                    kinds: HookKinds {
                        members: true,
                        ..HookKinds::default()
                    },
                    begins: begins.take(),
                };
                let input = Input::Control(Ticket(9), Control::Hooks(order));
                self.server.handle(home.into(), input);
                match self.server.io[usize::from(home)].reports.pop() {
                    Some((Ticket(9), Report::Hooks(Some(news)))) => {
                        changes.extend(news.members);
                        more = news.more;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        changes
    }

    /// The users that the node lists for a topic.
    fn listed(&mut self, topic: usize) -> Vec<String> {
        let conn = self.server.open(0);
        let head = format!(
            "GET /presence/chat/{topic} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer watcher\r\n\r\n"
        );
        self.server.send(conn, head);
        self.server.settle();
        let answer = String::from_utf8_lossy(self.server.received(conn)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let users = answer.split("\"user\":\"").skip(1);
        let user = |it: &str| it.split('"').next().unwrap_or_default().to_string();
        let mut users: Vec<String> = users.map(user).collect();
        users.sort();
        users
    }
}

impl Nodes {
    fn new(seed: u64, fault: Fault) -> Nodes {
        let world = support::world(settings(), 2, 2);
        let nodes = (1..=3).map(|writer| Node::new(&world, writer, 0)).collect();
        let mut nodes = Nodes {
            world,
            nodes,
            users: vec![User::default(); USERS],
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            s: 0,
            next_writer: 4,
            has_cuts: seed % 2 == 1,
            endpoint: Endpoint::default(),
            fault,
        };
        for _ in 0..2 {
            nodes.poll_all().expect("no member, no fault");
        }
        nodes
    }

    fn random(&mut self, below: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % below as u64) as usize
    }

    fn is_dead(&self, at: usize) -> bool {
        let since_s = self.nodes[at].gone_s;
        since_s.is_some_and(|since_s| self.s >= since_s + DEAD_AFTER_S)
    }

    /// The node that sends to the endpoint sends its changes, unless it is cut off. If it is dead, another node takes its place: it sends all members, and
    /// then the changes.
    fn tell_endpoint(&mut self, is_answered: bool) -> Result<(), String> {
        let homes = self.world.homes;
        let is_sender = |at: &usize| self.nodes[*at].writer == self.endpoint.sender;
        let sender = (0..self.nodes.len()).find(is_sender);
        let sender = sender.filter(|at| !self.is_dead(*at));
        let (at, begins) = match sender {
            Some(at) => (at, false),
            None => {
                let living = (0..self.nodes.len()).filter(|at| self.nodes[*at].gone_s.is_none());
                let Some(at) = living.min_by_key(|at| self.nodes[*at].writer) else {
                    return Ok(());
                };
                (at, true)
            }
        };
        let node = &mut self.nodes[at];
        if node.gone_s.is_some() {
            return Ok(());
        }
        let endpoint = &mut self.endpoint;
        if begins {
            (endpoint.sender, endpoint.stream) = (node.writer, endpoint.stream + 1);
            endpoint.unanswered.clear();
        }
        let changes = node.take_changes(homes, endpoint.stream, begins);
        match begins {
            true if self.fault == Fault::WebhookLostAtCrash => return Ok(()),
            true => endpoint.members.clear(),
            false => {}
        }
        endpoint.unanswered.extend(changes);
        if is_answered {
            endpoint.answer()?;
        }
        Ok(())
    }

    fn poll_all(&mut self) -> Result<(), String> {
        for from in 0..self.nodes.len() {
            if !self.nodes[from].is_killed {
                self.poll(from);
                self.tell(from)?;
            }
        }
        Ok(())
    }

    fn poll(&mut self, from: usize) {
        let homes = self.world.homes;
        if self.nodes[from].gone_s.is_none() {
            let all = (0..self.nodes.len()).filter(|at| *at != from && !self.is_dead(*at));
            let living: Vec<u64> = all.map(|at| self.nodes[at].writer).collect();
            let node = &mut self.nodes[from];
            let gone = node.others.keys().filter(|it| !living.contains(it));
            for writer in gone.copied().collect::<Vec<u64>>() {
                let slot = node.others.remove(&writer).expect("it is there").slot();
                if self.fault != Fault::MemberOfDeadNodeStays {
                    node.remove_members(homes, |row| PeerPresence::Drop(slot, row));
                }
            }
            for writer in living {
                let slot = writer as u8;
                let new = || PolledNode::new(slot, self.s);
                node.others.entry(writer).or_insert_with(new);
            }
        }
        let writers: Vec<u64> = self.nodes[from].others.keys().copied().collect();
        for writer in writers {
            self.poll_one(from, writer);
        }
    }

    fn poll_one(&mut self, from: usize, writer: u64) {
        let homes = self.world.homes;
        let mut polled = self.nodes[from].others.remove(&writer).expect("a node");
        let is_there = |node: &Node| node.gone_s.is_none();
        let to = self.nodes.iter().position(|node| node.writer == writer);
        let to = to.filter(|to| is_there(&self.nodes[*to]) && is_there(&self.nodes[from]));
        polled.begin_round();
        while let Some(question) = polled.next_question(self.nodes[from].writer) {
            let answer = to.and_then(|to| {
                let reply = self.nodes[to].ask(question.home, PeerPresence::Next(question));
                let PeerPresenceReply::Changes(Some((changes, more))) = reply else {
                    return None;
                };
                let answer = PeerAnswer {
                    process: writer,
                    homes,
                    more,
                    changes: self.with_fault(changes),
                };
                PeerAnswer::parse(&PeerAnswer::encode(Some(&answer)))
            });
            let slot = polled.slot();
            let node = &mut self.nodes[from];
            let Some(news) = polled.take_answer(&question, answer, self.s) else {
                for home in 0..homes {
                    node.ask(home, PeerPresence::Silent(slot));
                }
                break;
            };
            if let Some(process) = news.begins {
                for home in 0..homes {
                    node.ask(home, PeerPresence::BeginSnapshot(slot, process));
                }
            }
            for change in news.changes.iter() {
                let mut one = PeerChanges::default();
                one.push(&change);
                let home = self.world.placement().home_of_name(change.topic());
                let reply = node.ask(home, PeerPresence::Apply(slot, one));
                let has_room = matches!(reply, PeerPresenceReply::Applied { has_room: true });
                assert!(has_room, "{reply:?}");
            }
            if news.ends_snapshot {
                node.remove_members(homes, |row| PeerPresence::EndSnapshot(slot, row));
            }
        }
        self.nodes[from].others.insert(writer, polled);
    }

    /// Applies the planted fault to the changes of an answer.
    fn with_fault(&self, changes: PeerChanges) -> PeerChanges {
        let mut all: Vec<PeerChange<'_>> = changes.iter().collect();
        if self.fault == Fault::LeaveBeforeJoin {
            all.reverse();
        }
        let mut out = PeerChanges::default();
        for change in all {
            let change = match change {
                PeerChange::Leave { topic, conn, .. } if self.fault == Fault::LeaveWithoutDelay => {
                    let linger_s = 0;
                    PeerChange::Leave {
                        topic,
                        conn,
                        linger_s,
                    }
                }
                change => change,
            };
            out.push(&change);
        }
        out
    }

    /// Reads the events that a node's watchers have received, and checks them.
    fn tell(&mut self, at: usize) -> Result<(), String> {
        let node = &mut self.nodes[at];
        node.server.settle();
        for topic in 0..TOPICS {
            let conn = node.watchers[topic].0;
            let bytes = std::mem::take(&mut node.server.socket(conn).received);
            let known = &mut node.watchers[topic].1;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let field = |event: &str, name: &str| {
                let value = event.split(&format!("\"{name}\":\"")).nth(1)?;
                Some(value.split('"').next()?.to_string())
            };
            for event in text.split("event: ").skip(1) {
                let (id, user) = (field(event, "id"), field(event, "user"));
                let (id, user) = (id.unwrap_or_default(), user.unwrap_or_default());
                if event.starts_with("reset") {
                    known.clear();
                } else if event.starts_with("join") {
                    if known.insert(id, user.clone()).is_some() {
                        return Err(format!("{user} joins twice"));
                    }
                } else if event.starts_with("leave") {
                    if known.remove(&id).is_none() {
                        return Err(format!("{user} leaves before the join"));
                    }
                    let number: usize = user[1..].parse().expect("a user");
                    let is = &self.users[number];
                    let may_leave = is.at.is_none() && self.s >= is.left_s + LEAVE_S;
                    if !may_leave && !self.has_cuts {
                        return Err(format!("{user} leaves within the delay"));
                    }
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, user: usize) {
        let running: Vec<usize> = (0..self.nodes.len())
            .filter(|at| !self.nodes[*at].is_killed)
            .collect();
        let at = running[self.random(running.len())];
        let shard = self.random(2);
        let path = format!("/sub/{}", topic(user));
        let server = &mut self.nodes[at].server;
        let conn = stream(server, shard, &path, (&format!("u{user}"), ""));
        server.settle();
        self.users[user].at = Some((at, conn));
    }

    fn cut_user(&mut self, user: usize) {
        if let Some((at, conn)) = self.users[user].at.take() {
            self.users[user].left_s = self.s;
            self.nodes[at].server.cut(conn);
            self.nodes[at].server.settle();
        }
    }

    fn second(&mut self) -> Result<(), String> {
        self.s += 1;
        for at in 0..self.nodes.len() {
            if !self.nodes[at].is_killed {
                self.nodes[at].server.advance_and_tick_s(1);
                self.tell(at)?;
            }
        }
        self.poll_all()?;
        self.poll_all()?;
        let is_answered = self.random(3) == 0;
        self.tell_endpoint(is_answered)
    }

    fn step(&mut self) -> Result<(), String> {
        let user = self.random(USERS);
        let at = self.random(self.nodes.len());
        let away_s = self.s - self.users[user].left_s.min(self.s);
        let is_here = self.users[user].at.is_some();
        match self.random(16) {
            0..4 => self.second()?,
            // The user connects for the first time, soon enough after the last connection broke, or long after the leave.
            4..8 if !is_here && !(LEAVE_S / 2..=3 * LEAVE_S).contains(&away_s) => self.join(user),
            8..10 => self.cut_user(user),
            10..13 if is_here => {
                self.cut_user(user);
                self.join(user);
            }
            13 if self.nodes.iter().all(|node| node.gone_s.is_none()) => {
                // Otherwise the changes that only this node knows would be lost.
                self.poll_all()?;
                self.lose(at);
            }
            14 => self.bring_back(at)?,
            _ => {}
        }
        Ok(())
    }

    /// Kills a node, or cuts it off.
    fn lose(&mut self, at: usize) {
        self.nodes[at].gone_s = Some(self.s);
        self.nodes[at].is_killed = !self.has_cuts || self.random(2) == 0;
        if self.nodes[at].is_killed {
            for user in &mut self.users {
                if user.at.is_some_and(|(of, _)| of == at) {
                    (user.at, user.left_s) = (None, self.s);
                }
            }
        }
    }

    /// Reconnects a node that is cut off, or replaces a node that the log has declared dead by a new process.
    fn bring_back(&mut self, at: usize) -> Result<(), String> {
        let is_dead = self.is_dead(at);
        if self.nodes[at].gone_s.is_none() || self.nodes[at].is_killed && !is_dead {
            return Ok(());
        }
        self.poll_all()?;
        if self.nodes[at].is_killed {
            self.nodes[at] = Node::new(&self.world, 0, self.s);
        }
        if is_dead {
            self.nodes[at].writer = self.next_writer;
            self.next_writer += 1;
        }
        self.nodes[at].gone_s = None;
        self.poll_all()
    }

    fn check(&mut self) -> Result<(), String> {
        for _ in 0..2 * LEAVE_S {
            self.second()?;
        }
        self.tell_endpoint(true)?;
        for at in 0..self.nodes.len() {
            for topic in 0..TOPICS {
                if self.nodes[at].is_killed {
                    continue;
                }
                let users = self.users.iter().enumerate();
                let users = users.filter(|(user, is)| user % TOPICS == topic && is.at.is_some());
                let users: Vec<String> = users.map(|(user, _)| format!("u{user}")).collect();
                let listed = self.nodes[at].listed(topic);
                let known = self.nodes[at].watchers[topic].1.values();
                let mut known: Vec<String> = known.cloned().collect();
                known.sort();
                if listed != users || known != users {
                    return Err(format!(
                        "{users:?} are there, {listed:?} are listed, {known:?} were told"
                    ));
                }
                let of_endpoint = self.endpoint.users(topic);
                if of_endpoint != users {
                    return Err(format!(
                        "{users:?} are there, the endpoint knows {of_endpoint:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn run(seed: u64, fault: Fault) -> Result<(), String> {
    let mut nodes = Nodes::new(seed, fault);
    for _ in 0..STEPS {
        nodes.step()?;
    }
    // First the nodes that are cut off come back, and then the killed ones, too.
    for brings_back_killed in [false, true] {
        for at in 0..nodes.nodes.len() {
            if brings_back_killed || !nodes.nodes[at].is_killed {
                nodes.bring_back(at)?;
            }
        }
        nodes.check()?;
    }
    Ok(())
}

#[test]
fn every_node_and_endpoint_end_at_the_true_members_after_cuts_and_deaths_and_reloads_show_no_leave()
{
    for seed in 0..40 {
        if let Err(error) = run(seed, Fault::None) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn faults_that_are_planted_into_what_nodes_and_endpoints_hear_are_noticed() {
    for (fault, error) in [
        (Fault::MemberOfDeadNodeStays, "are listed"),
        (Fault::LeaveBeforeJoin, "are listed"),
        (Fault::LeaveWithoutDelay, "leaves within the delay"),
        (Fault::WebhookLostAtCrash, "the endpoint knows"),
    ] {
        let errors: Vec<String> = (0..20).filter_map(|seed| run(seed, fault).err()).collect();
        let is_noticed = errors.iter().any(|it| it.contains(error));
        assert!(is_noticed, "{error}: {errors:?}");
    }
}
