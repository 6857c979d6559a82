//! Learns from the other nodes of a cluster which members their topics have: polls each node several times a second, and answers the questions of other
//! nodes. `broker/src/mail/peer_presence.rs` describes the protocol. None of this is in the log.
//!
//! A node is dead only when the log says so. Until then, its members stay as they were when the node last answered.
//!
//! Bounds: a node asks each other node one question at a time, and waits for the answer at most [`ANSWER_TIMEOUT`]. The poll of one node does not wait for
//! answers of other nodes. A node answers one question at a time, and sends one order to one shard for each answer. A node polls only if some rule has
//! presence.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crore_broker::account::MemoryLevel;
use crore_broker::mail::peer_presence::{
    PEERS_MAX, PeerAnswer, PeerChange, PeerChanges, PeerPresence as Order, PeerPresenceReply,
    PeerQuestion, PolledNode,
};
use crore_broker::{Control, ShardId, World};
use crore_nats::Question;
use crore_net::clock;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::de::IgnoredAny;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::peer_nodes::{PeerNodes, writer_text};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// Time between two polls of another node.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Delay before a lost NATS subscription is renewed. After the same time it is checked whether this node's name for questions has changed.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The maximum number of questions that a node is asked in one poll. The next poll continues with the next question.
const ANSWERS_PER_POLL_MAX: usize = 64;
/// After this time, a poll asks no further question, since a node that has died is forgotten only between two polls.
const POLL_MAX: Duration = Duration::from_secs(1);
/// The maximum number of changes in one order to a home. So many changes take a home some hundred microseconds.
const CHANGES_PER_ORDER_MAX: usize = 512;

/// The state of the asking side and of the answering side.
#[derive(Clone)]
pub struct PresenceSync {
    lifecycle: Lifecycle,
    shards: Shards,
    peer_nodes: PeerNodes,
}

/// The state that a poll of another node needs.
struct Polled {
    node: PolledNode,
    /// The number of changes of the rules at the time when the node was last asked for all members.
    rules_changes: u32,
    /// Whether members are missing here because memory was short.
    has_left_out: bool,
}

/// Another node.
struct KnownNode {
    /// The number by which the homes know the node.
    slot: u8,
    /// See [`PolledNode::heard_s`], as of the last poll that has ended.
    heard_s: u32,
    /// Whether all members of the node are known, as of the last poll that has ended.
    is_whole: bool,
    /// `None` while a poll of the node runs.
    polled: Option<Polled>,
}

/// The other nodes, by their writer numbers.
type KnownNodes = BTreeMap<u64, KnownNode>;

impl PresenceSync {
    /// Spawns the tasks of both sides, if this is a node of a cluster.
    pub fn spawn_tasks(lifecycle: Lifecycle, shards: Shards, peer_nodes: PeerNodes) {
        if lifecycle.member().is_some() {
            let this = PresenceSync {
                lifecycle,
                shards,
                peer_nodes,
            };
            // Until all nodes have answered, the age of this node's knowledge counts from here on.
            this.world().admission.note_presence(now_s());
            tokio::spawn(this.clone().serve());
            tokio::spawn(this.poll());
        }
    }

    fn world(&self) -> Arc<World> {
        self.lifecycle.world()
    }

    async fn ask_home(&self, home: ShardId, order: Order) -> Option<PeerPresenceReply> {
        self.shards
            .ask(home, Control::PeerPresence(order))
            .await
            .ok()
    }

    /// Answers the other nodes. Never returns.
    async fn serve(self) {
        loop {
            if let Some(name) = self.peer_nodes.own_writer().await
                && let Some(peers) = self.peer_nodes.peers()
                && let Some(questions) = peers.questions_to(&name_for_questions(&name)).await
            {
                let mut questions = pin!(questions);
                let mut checked = Instant::now();
                loop {
                    // A node that others have declared dead gets a new name, and questions are then sent to the new name.
                    if checked.elapsed() >= RETRY_DELAY {
                        if self.peer_nodes.own_writer().await.as_ref() != Some(&name) {
                            break;
                        }
                        checked = Instant::now();
                    }
                    match timeout(RETRY_DELAY, questions.next()).await {
                        Ok(Some(question)) => self.answer(question).await,
                        Ok(None) => break,
                        Err(_) => {}
                    }
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    async fn answer(&self, question: Question) {
        let Some(asked) = PeerQuestion::parse(question.bytes()) else {
            return;
        };
        let world = self.world();
        let reply = match asked.home < world.homes {
            true => self.ask_home(asked.home, Order::Next(asked)).await,
            false => None,
        };
        let answer = match reply {
            Some(PeerPresenceReply::Changes(Some((changes, more)))) => Some(PeerAnswer {
                process: world.writer.unwrap_or_default(),
                homes: world.homes,
                more,
                changes,
            }),
            _ => None,
        };
        question.answer(PeerAnswer::encode(answer.as_ref())).await;
    }

    /// Polls the other nodes. Never returns.
    async fn poll(self) {
        let (mut nodes, mut polls) = (KnownNodes::new(), FuturesUnordered::new());
        let (mut world, mut rules_changes) = (self.world(), 0);
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let former = std::mem::replace(&mut world, self.world());
                    // The former rules may have had no room for some members, which homes have left out.
                    if !former.rules.lists_same_members(&world.rules) {
                        rules_changes += 1;
                    }
                    let Some(own) = self.update_nodes(&mut nodes, rules_changes).await else {
                        continue;
                    };
                    let idle = nodes.iter_mut();
                    let idle = idle.filter_map(|(writer, it)| Some((*writer, it.polled.take()?)));
                    for (writer, polled) in idle {
                        polls.push(self.poll_node(own, writer, polled, rules_changes));
                    }
                }
                Some((writer, polled)) = polls.next() => {
                    if let Some(known) = nodes.get_mut(&writer) {
                        known.heard_s = polled.node.heard_s();
                        known.is_whole = polled.node.is_whole();
                        known.polled = Some(polled);
                    }
                }
            }
        }
    }

    /// Forgets nodes that have died, and adds new ones. Returns this node's writer number; `None` if nobody is to be polled.
    async fn update_nodes(&self, nodes: &mut KnownNodes, rules_changes: u32) -> Option<u64> {
        let world = self.world();
        if !world.rules.has_presence() {
            world.admission.note_presence(now_s());
            self.peer_nodes.other_nodes().note_members(true);
            self.drop_nodes(nodes, |_| true).await;
            return None;
        }
        let state = self.peer_nodes.nodes_in_log().await?;
        let own = state.nodes.iter().find(|node| node.is_self)?.writer;
        let others = state.nodes.iter().filter(|node| !node.is_self);
        let living: Vec<u64> = others.map(|node| node.writer).collect();
        self.drop_nodes(nodes, |writer| !living.contains(writer))
            .await;
        for writer in living {
            let is_free = |slot: &u8| nodes.values().all(|it| it.slot != *slot);
            if !nodes.contains_key(&writer)
                && let Some(slot) = (1..=PEERS_MAX as u8).find(is_free)
            {
                let polled = Polled {
                    node: PolledNode::new(slot, now_s()),
                    rules_changes,
                    has_left_out: false,
                };
                let known = KnownNode {
                    slot,
                    heard_s: now_s(),
                    is_whole: false,
                    polled: Some(polled),
                };
                nodes.insert(writer, known);
            }
        }
        match nodes.values().map(|it| it.heard_s).min() {
            Some(heard_s) => world.admission.note_presence(heard_s),
            // A node that is cut off may not know all nodes, so an empty list does not prove that it knows all members.
            None if state.is_cut_off => {}
            None => world.admission.note_presence(now_s()),
        }
        let are_known = nodes.values().all(|it| it.is_whole) && !state.is_cut_off;
        self.peer_nodes.other_nodes().note_members(are_known);
        Some(own)
    }

    /// Forgets these nodes, and makes their members leave. A node whose poll runs is forgotten later.
    async fn drop_nodes(&self, nodes: &mut KnownNodes, is_gone: impl Fn(&u64) -> bool) {
        let gone = nodes.iter();
        let gone = gone.filter(|(writer, it)| is_gone(writer) && it.polled.is_some());
        let gone: Vec<(u64, u8)> = gone.map(|(writer, it)| (*writer, it.slot)).collect();
        for (writer, slot) in gone {
            // If a shard does not answer, the next call tries again.
            if self
                .remove_members(|from| Order::Drop(slot, from))
                .await
                .is_some()
            {
                nodes.remove(&writer);
            }
        }
    }

    /// Polls a node until it has no more changes, within the limits of one poll.
    async fn poll_node(
        &self,
        own: u64,
        writer: u64,
        mut polled: Polled,
        rules_changes: u32,
    ) -> (u64, Polled) {
        let is_calm = self.world().admission.account.level() == MemoryLevel::Calm;
        if polled.rules_changes != rules_changes || polled.has_left_out && is_calm {
            (polled.rules_changes, polled.has_left_out) = (rules_changes, false);
            polled.node.begin_again();
        }
        self.continue_round(own, writer, &mut polled).await;
        (writer, polled)
    }

    async fn continue_round(&self, own: u64, writer: u64, polled: &mut Polled) {
        let node = &mut polled.node;
        let slot = node.slot();
        node.begin_round();
        let began = Instant::now();
        for _ in 0..ANSWERS_PER_POLL_MAX {
            if began.elapsed() >= POLL_MAX {
                return;
            }
            let Some(question) = node.next_question(own) else {
                return;
            };
            let answer = self.ask_node(writer, &question).await;
            let Some(steps) = node.take_answer(&question, answer, now_s()) else {
                for home in 0..self.world().homes {
                    self.ask_home(home, Order::Silent(slot)).await;
                }
                return;
            };
            if let Some(process) = steps.begins {
                for home in 0..self.world().homes {
                    let order = Order::BeginSnapshot(slot, process);
                    if self.ask_home(home, order).await.is_none() {
                        return node.begin_again();
                    }
                }
            }
            match self.apply(slot, &steps.changes).await {
                Some(has_room) => polled.has_left_out |= !has_room,
                None => return node.begin_again(),
            }
            if steps.ends_snapshot
                && self
                    .remove_members(|from| Order::EndSnapshot(slot, from))
                    .await
                    .is_none()
            {
                return node.begin_again();
            }
        }
    }

    async fn ask_node(&self, writer: u64, question: &PeerQuestion) -> Option<PeerAnswer> {
        let peers = self.peer_nodes.peers()?;
        let name = name_for_questions(&writer_text(writer));
        let answer = timeout(ANSWER_TIMEOUT, peers.ask_one(&name, question.encode())).await;
        PeerAnswer::parse(&answer.ok()??)
    }

    /// Passes changes to the homes, without members whose info is not valid. Returns whether there was room in memory for all changes; `None` if a home does
    /// not answer.
    async fn apply(&self, slot: u8, changes: &PeerChanges) -> Option<bool> {
        let mut had_room = true;
        let placement = self.world().placement();
        let mut valid = changes.iter().filter(has_valid_info).peekable();
        while valid.peek().is_some() {
            let mut by_home: BTreeMap<ShardId, PeerChanges> = BTreeMap::new();
            for change in valid.by_ref().take(CHANGES_PER_ORDER_MAX) {
                let home = placement.home_of_name(change.topic());
                by_home.entry(home).or_default().push(&change);
            }
            for (home, changes) in by_home {
                let reply = self.ask_home(home, Order::Apply(slot, changes)).await?;
                had_room &= matches!(reply, PeerPresenceReply::Applied { has_room: true });
            }
        }
        Some(had_room)
    }

    /// Removes members at every home, step by step. `order` makes the order for the step that begins at a row. `None` if a home does not answer.
    async fn remove_members(&self, order: impl Fn(u32) -> Order) -> Option<()> {
        for home in 0..self.world().homes {
            let mut next = Some(0);
            while let Some(from) = next {
                let PeerPresenceReply::Next(row) = self.ask_home(home, order(from)).await? else {
                    break;
                };
                next = row;
            }
        }
        Some(())
    }
}

/// The name to which questions about presence are sent, for the node with this writer number.
fn name_for_questions(writer: &str) -> String {
    format!("{writer}.presence")
}

/// The seconds that the process has counted since it began.
fn now_s() -> u32 {
    u32::try_from(clock::counted_s()).unwrap_or(u32::MAX)
}

/// Whether the info of a member can be written into JSON as it is.
fn has_valid_info(change: &PeerChange<'_>) -> bool {
    match change {
        PeerChange::Join { info, .. } if !info.is_empty() => {
            serde_json::from_slice::<IgnoredAny>(info).is_ok()
        }
        _ => true,
    }
}
