//! Learns from the other nodes of a cluster who is present at which topic: asks each node several times a second, and answers the questions of others
//! (`broker/src/mail/peer_presence.rs` has the protocol, and what each side concludes). Nothing of it is in the log.
//!
//! A node is dead only when the log says so. Until then, its members stay as they were when the node last answered.
//!
//! Bounds: a node asks one question at a time of each other node, and waits for the answer at most [`ANSWER_TIMEOUT`]. A node answers one question at a
//! time, and sends one order to one shard for each answer. A node asks only if some rule has presence.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crore_broker::mail::peer_presence::{
    PEERS_MAX, PeerAnswer, PeerChange, PeerChanges, PeerPresence as Order, PeerPresenceReply,
    PeerQuestion, PolledNode,
};
use crore_broker::{Control, ShardId, World};
use crore_nats::Question;
use crore_net::clock;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use serde::de::IgnoredAny;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::peer_nodes::{PeerNodes, writer_text};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// Time between two polls of another node.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Delay before a lost NATS subscription is renewed. This node's name for questions may change, which is checked as often.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The maximum number of answers that are read from one node in one poll, so that the list of nodes is soon read again.
const ANSWERS_PER_POLL_MAX: usize = 64;
/// The maximum number of changes in one order to a home. So many changes take a home some hundred microseconds.
const CHANGES_PER_ORDER_MAX: usize = 512;

/// What the asking side and the answering side share.
#[derive(Clone)]
pub struct PresenceSync {
    lifecycle: Lifecycle,
    shards: Shards,
    peer_nodes: PeerNodes,
}

/// The other nodes, by their writer numbers.
type PolledNodes = BTreeMap<u64, PolledNode>;

impl PresenceSync {
    /// Spawns the tasks of both sides, if this is a node of a cluster.
    pub fn spawn_tasks(lifecycle: Lifecycle, shards: Shards, peer_nodes: PeerNodes) {
        if lifecycle.member().is_some() {
            let this = PresenceSync {
                lifecycle,
                shards,
                peer_nodes,
            };
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
                // A node that others have declared dead gets a new name, and questions are then sent to the new name.
                while self.peer_nodes.own_writer().await.as_ref() == Some(&name) {
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
        let mut nodes = PolledNodes::new();
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.poll_all(&mut nodes).await;
        }
    }

    async fn poll_all(&self, nodes: &mut PolledNodes) {
        let has_presence = self.world().rules.has_presence();
        if !has_presence && nodes.is_empty() {
            return;
        }
        let Some(state) = self.peer_nodes.nodes_in_log().await else {
            return;
        };
        let Some(own) = state.nodes.iter().find(|node| node.is_self) else {
            return;
        };
        let others = state.nodes.iter().filter(|node| !node.is_self);
        let living: Vec<u64> = others.map(|node| node.writer).collect();
        let gone = nodes.keys().filter(|writer| !living.contains(writer));
        for writer in gone.copied().collect::<Vec<u64>>() {
            let slot = nodes[&writer].slot();
            // A shard that does not answer is asked again in the next poll.
            if self
                .remove_members(|from| Order::Drop(slot, from))
                .await
                .is_some()
            {
                nodes.remove(&writer);
            }
        }
        for writer in &living {
            let is_free = |slot: &u8| nodes.values().all(|it| it.slot() != *slot);
            if !nodes.contains_key(writer)
                && let Some(slot) = (1..=PEERS_MAX as u8).find(is_free)
            {
                nodes.insert(*writer, PolledNode::new(slot, now_s()));
            }
        }
        let asked = nodes
            .iter_mut()
            .filter(|(writer, _)| living.contains(writer));
        let polls = asked.map(|(writer, node)| self.poll_node(own.writer, *writer, node));
        join_all(polls).await;
        let heard_s = nodes.values().map(PolledNode::heard_s).min();
        match heard_s {
            Some(heard_s) => self.world().admission.note_presence(heard_s),
            // A node that is cut off may not know all nodes, so an empty list does not prove that it knows all members.
            None if state.is_cut_off => {}
            None => self.world().admission.note_presence(now_s()),
        }
    }

    /// Polls a node until it has no more changes, but for at most `ANSWERS_PER_POLL_MAX` answers.
    async fn poll_node(&self, own: u64, writer: u64, node: &mut PolledNode) {
        let slot = node.slot();
        node.begin_round();
        for _ in 0..ANSWERS_PER_POLL_MAX {
            let Some(question) = node.next_question(own) else {
                return;
            };
            let answer = self.ask_node(writer, &question).await;
            let Some(news) = node.note_answer(&question, answer, now_s()) else {
                for home in 0..self.world().homes {
                    self.ask_home(home, Order::Silent(slot)).await;
                }
                return;
            };
            if let Some(process) = news.begins {
                for home in 0..self.world().homes {
                    let order = Order::BeginSnapshot(slot, process);
                    if self.ask_home(home, order).await.is_none() {
                        return node.begin_again();
                    }
                }
            }
            if self.apply(slot, &news.changes).await.is_none() {
                return node.begin_again();
            }
            if news.ends_snapshot
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
        let answer = PeerAnswer::parse(&answer.ok()??)?;
        let is_valid = answer.changes.iter().all(|it| has_valid_info(&it));
        is_valid.then_some(answer)
    }

    /// Passes changes to the homes. None if a home does not answer.
    async fn apply(&self, slot: u8, changes: &PeerChanges) -> Option<()> {
        let placement = self.world().placement();
        let all: Vec<PeerChange<'_>> = changes.iter().collect();
        for some in all.chunks(CHANGES_PER_ORDER_MAX) {
            let mut by_home: BTreeMap<ShardId, PeerChanges> = BTreeMap::new();
            for change in some {
                let home = placement.home_of_name(change.topic());
                by_home.entry(home).or_default().push(change);
            }
            for (home, changes) in by_home {
                self.ask_home(home, Order::Apply(slot, changes)).await?;
            }
        }
        Some(())
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
