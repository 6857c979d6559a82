//! The world of one run: shards, clients, network, log and clock. It executes the steps of a seed, lets the shards take turns (rounds of
//! their loops), and checks the limits after every turn.
//!
//! A *writer* is a process that writes to the log, under one number.

mod centrifugo;
mod clients;
mod crash;
pub mod limits;
mod mqtt;
mod nodes;
mod population;
mod restart;
mod turns;

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::lives::Lives;
use crore_broker::rules::Rules;
use crore_broker::{Now, Offsets, PartitionId, Shard, ShardId};
use crore_rng::Rng;

use crate::checkpoint::{Checkpoint, PartitionCheckpoint};
use crate::client::mqtt::Client;
use crate::coverage::Coverage;
use crate::engine::{ClusterLog, DiskLog};
use crate::net::Net;
use crate::plan::{Op, PRELOAD_LINES, Plan, PublisherAction, Step};
use crate::truth::{Allowances, Topic, Truth, Violation};
use population::Clients;

/// Each process of a cluster has a range of this many writer numbers. When it becomes a new writer, it takes the next number of its range.
const WRITER_GAP: u64 = 1000;

/// The Unix time at which every world begins.
const EPOCH_S: u32 = 1_700_000_000;
/// The epoch of the first server, an arbitrary number. Each start uses the next number.
const LOG_EPOCH: u32 = 0x5EED;
/// The maximum number of bytes that a shard reads from a socket at once.
const RECEIVE_BYTES: usize = 2048;
/// Turns (rounds of a shard's loop) for each preloaded batch.
const PRELOAD_TURNS: usize = 12;
/// Choices for the offset of the wall clock in seconds.
const WALL_OFFSETS_S: [i32; 8] = [0, 0, 3600, -3600, 86_400, -86_400, -1, 1_000_000_000];
/// The maximum number of unanswered requests of a publisher. At this number the publisher sends no new request until some are answered.
const PENDING_MAX: usize = 12;

/// The state of a shard's loop between two turns.
#[derive(Default)]
struct ShardLoop {
    /// The links that are open, or wait to be accepted.
    links: Vec<u32>,
    /// The second of the last tick.
    ticked_s: u32,
    /// Whether work was left at the end of the last turn.
    is_busy: bool,
}

impl ShardLoop {
    /// Resets the loop for a new shard, which replaces the former one. The links stay.
    fn reset(&mut self) {
        (self.ticked_s, self.is_busy) = (0, false);
    }
}

/// The nodes of a cluster. A world without a cluster has one node.
pub struct Nodes {
    /// For each node the state that its shards share.
    pub servers: Vec<Arc<crore_broker::World>>,
    /// The highest writer number that was given to a node at its start.
    last_writer: u64,
    /// For each node, whether it is paused, so that it takes no turns.
    paused: Vec<bool>,
    /// For each node, whether it has read the log and then told its homes which messages the sessions need.
    recovered: Vec<bool>,
    /// The checkpoints of each partition, the newest first.
    checkpoints: Vec<Vec<PartitionCheckpoint>>,
}

/// The world.
pub struct Simulation {
    /// The properties of this world.
    pub plan: Plan,
    /// The shards of all nodes, node by node.
    pub shards: Vec<Shard>,
    loops: Vec<ShardLoop>,
    /// The sockets, the mail between shards, and the engine (the log that commits batches).
    pub net: Net,
    /// The clients.
    pub clients: Clients,
    /// The messages that the clients have sent, and the answers.
    pub truth: Truth,
    /// Counts of the events that the run has exercised.
    pub coverage: Coverage,
    /// The state that the shards of the first node share.
    pub server: Arc<crore_broker::World>,
    /// The nodes.
    pub nodes: Nodes,
    /// The newest checkpoint of the engine's log.
    checkpoint: Checkpoint,
    /// The base of the log on disk: the snapshot of each home (shard that owns topics), in blocks. A new process replays the batches after
    /// it.
    base_snapshots: Vec<Vec<Vec<u8>>>,
    /// The lives of the log: each lasts from one start to the next and has an epoch.
    lives: Lives,
    /// The offset of the wall clock in seconds.
    wall_offset_s: i32,
}

impl Simulation {
    /// The world of this plan. The clients are drawn from `seed`.
    pub fn new(plan: &Plan, seed: u64, traced: bool) -> Simulation {
        let rules = Rules::new(&plan.settings.rules);
        let truth = initial_truth(plan, &rules, traced);
        let nodes: Vec<_> = (0..plan.nodes)
            .map(|node| server(plan, rules.clone(), seed, node))
            .collect();
        let shard = |n: usize| {
            let server = nodes[n / plan.shards].clone();
            let mut shard = Shard::new((n % plan.shards) as ShardId, server, now(1));
            shard.set_turn_limits(plan.turn_limits);
            if plan.nodes > 1 {
                shard.begin_recovery();
            }
            shard
        };
        let count = plan.nodes * plan.shards;
        Simulation {
            shards: (0..count).map(shard).collect(),
            loops: (0..count).map(|_| ShardLoop::default()).collect(),
            net: network(plan, seed),
            clients: Clients::new(plan, &truth, seed),
            truth,
            coverage: Coverage::default(),
            checkpoint: Checkpoint::default(),
            base_snapshots: Vec::new(),
            lives: Lives::first(LOG_EPOCH),
            wall_offset_s: 0,
            plan: plan.clone(),
            server: nodes[0].clone(),
            nodes: Nodes {
                last_writer: plan.nodes as u64 * WRITER_GAP,
                paused: vec![false; plan.nodes],
                recovered: vec![plan.nodes == 1; plan.nodes],
                checkpoints: (0..plan.partitions).map(|_| Vec::new()).collect(),
                servers: nodes,
            },
        }
    }

    /// Publishes batches before the first step, so that the logs are long from the beginning.
    pub fn preload(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        for _ in 0..self.plan.preload {
            self.truth.step += 1;
            let n = self.ready_publisher(0, rng);
            if self.clients.publishers[n].pending_requests() < PENDING_MAX {
                let batch = PublisherAction::Batch(PRELOAD_LINES as u8);
                self.clients.publishers[n].act(batch, &self.plan, &mut self.truth, rng);
            }
            self.flush_publisher(0);
            // A batch needs several turns: a shard reads and handles only a part of it in one turn.
            for _ in 0..PRELOAD_TURNS {
                for shard in 0..self.shards.len() {
                    self.turn(shard, true, rng)?;
                }
            }
            self.read_publisher(n, usize::MAX)?;
        }
        Ok(())
    }

    /// Executes one step.
    pub fn step(&mut self, step: Step) -> Result<(), Violation> {
        self.truth.step += 1;
        let mut rng = Rng::new(step.dice);
        let rng = &mut rng;
        match step.op {
            Op::Turn(shard) => self.turn_at_random_node(usize::from(shard), rng),
            Op::Clock(seconds) => {
                self.truth.now_s += u32::from(seconds);
                if self.plan.wall_clock_jumps {
                    self.wall_offset_s = rng.pick(&WALL_OFFSETS_S);
                }
                Ok(())
            }
            Op::Request(n) => {
                self.request(usize::from(n), rng);
                Ok(())
            }
            Op::ReadSubscriber(n) => {
                self.read_subscriber(usize::from(n), rng.pick(&[1, 20, 300, usize::MAX]))
            }
            Op::CutSubscriber(n) => {
                if let Some(link) = self.clients.subscribers[usize::from(n)].link
                    && self.cut(link, rng)
                {
                    self.clients.subscribers[usize::from(n)].connection_ended();
                }
                Ok(())
            }
            Op::ResizeWindow(n) => {
                if let Some(link) = self.clients.subscribers[usize::from(n)].link {
                    self.net.sockets[link as usize].window = rng.pick(&self.plan.windows);
                }
                Ok(())
            }
            Op::Publish(n, action) => {
                self.publish(usize::from(n), action, rng);
                Ok(())
            }
            Op::ReadPublisher(n) => {
                self.read_publisher(usize::from(n), rng.pick(&[1, 20, 300, usize::MAX]))
            }
            Op::Mqtt(n, action) => self.mqtt(usize::from(n), action, rng),
            Op::Centrifugo(n, action) => self.centrifugo(usize::from(n), action, rng),
            Op::Follow(n) => {
                self.follow(usize::from(n), rng);
                Ok(())
            }
            Op::ReadFollower(n) => {
                self.read_follower(usize::from(n), rng.pick(&[1, 20, 300, usize::MAX]))
            }
            Op::CutFollower(n) => {
                if let Some(link) = self.clients.followers[usize::from(n)].link {
                    self.cut(link, rng);
                    self.hang_up(link);
                    self.clients.followers[usize::from(n)].connection_ended();
                }
                Ok(())
            }
            Op::CutPublisher(n) => {
                if let Some(link) = self.clients.publishers[usize::from(n)].link {
                    self.cut(link, rng);
                    self.hang_up(link);
                    self.clients.publishers[usize::from(n)].connection_ended();
                }
                Ok(())
            }
        }
    }

    /// Lets this shard of a random node take a turn, unless the node is paused.
    fn turn_at_random_node(&mut self, shard: usize, rng: &mut Rng) -> Result<(), Violation> {
        let node = match self.plan.nodes {
            1 => 0,
            nodes => rng.below(nodes),
        };
        match self.nodes.paused[node] {
            true => Ok(()),
            false => self.turn(node * self.plan.shards + shard, false, rng),
        }
    }

    fn publish(&mut self, n: usize, action: PublisherAction, rng: &mut Rng) {
        // The checks of clusters do not cover deletes: a node that lags applies a delete at an unknown time after the acknowledgement.
        let action = match action {
            PublisherAction::Delete if self.plan.nodes > 1 => PublisherAction::Info,
            action => action,
        };
        let publisher = self.ready_publisher(n, rng);
        if self.clients.publishers[publisher].pending_requests() < PENDING_MAX {
            let publisher = &mut self.clients.publishers[publisher];
            publisher.act(action, &self.plan, &mut self.truth, rng);
        }
        self.flush_publisher(n);
    }

    /// Closes the connections of all clients, except the followers.
    pub fn close_clients(&mut self) {
        for link in 0..self.net.sockets.len() as u32 {
            if self.clients.followers.iter().any(|f| f.link == Some(link)) {
                continue;
            }
            // A client that has already closed its half sends nothing more. On a real network keep-alive ends such a connection; here a
            // reset does so.
            let socket = &mut self.net.sockets[link as usize];
            if socket.client_fin {
                socket.reset_both();
            }
            self.hang_up(link);
        }
        self.clients.http_connections_ended();
        self.clients
            .mqtt
            .iter_mut()
            .for_each(Client::connection_ended);
    }
}

fn now(s: u32) -> Now {
    Now {
        s,
        unix_s: EPOCH_S + s,
    }
}

/// The truth before the first step.
fn initial_truth(plan: &Plan, rules: &Rules, traced: bool) -> Truth {
    let topic = |name: &String| Topic {
        rule: rules.get(rules.number_for(name.as_bytes())).clone(),
        name: name.clone(),
        damage_step: None,
        deletes: Vec::new(),
        by_offset: Default::default(),
        by_key: Default::default(),
    };
    Truth {
        messages: Vec::new(),
        topics: plan.topics.iter().map(topic).collect(),
        mqtt_options: Default::default(),
        to_check_in_log: Vec::new(),
        allowed: Allowances {
            non_durable_filters: plan.non_durable_filters(),
            stalled_messages_max: None,
            budgets_are_wide: plan.budgets_are_wide,
            engine_is_late: plan.engine.is_some(),
            memory_is_tight: plan.settings.limits.memory_bytes < crate::plan::MEMORY_BYTES,
            session_messages: plan.settings.mqtt.session_messages,
            retains: plan.retains,
            sessions_are_durable: plan.settings.mqtt.durable_sessions,
        },
        step: 0,
        now_s: 1,
        last_stalled_step: None,
        crash_step: None,
        has_damaged_partition: false,
        trace: traced.then(Vec::new),
    }
}

/// The network, with the engine if the plan has one.
fn network(plan: &Plan, seed: u64) -> Net {
    let mut net = Net::new(
        plan.nodes,
        plan.shards,
        plan.partial_send_percent,
        plan.engine,
    );
    (net.tcp_percent, net.tcp_seed) = (plan.tcp_percent, seed ^ 0x007C_9000_07C9);
    if let Some(engine) = &mut net.engine {
        engine.cluster_log = (plan.nodes > 1).then(|| ClusterLog::new(plan.partitions, plan.nodes));
        engine.disk_log = plan
            .segment_bytes
            .map(|bytes| DiskLog::new(seed ^ 0xD15C, bytes));
    }
    net
}

/// The state that the shards of a node share.
fn server(plan: &Plan, rules: Rules, seed: u64, node: usize) -> Arc<crore_broker::World> {
    let writer = match plan.nodes {
        1 => 1,
        _ => (node as u64 + 1) * WRITER_GAP,
    };
    Arc::new(crore_broker::World {
        settings: plan.settings.clone(),
        rules,
        shards: plan.shards as ShardId,
        homes: plan.homes as ShardId,
        partitions: plan.partitions as PartitionId,
        epoch: LOG_EPOCH,
        writer: plan.engine.is_some().then_some(writer),
        offsets: match plan.nodes {
            1 => Offsets::ByWriter,
            _ => Offsets::ByLog,
        },
        seed,
        admission: Admission::new(&plan.settings, seed),
    })
}
