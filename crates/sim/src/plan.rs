//! The plan of a seed: the properties of its world (`draw`), that is of the servers, clients and log of one run, and its list of steps
//! (`steps`). Every step has its own seed for its random choices. So if the list is shortened, the other steps make the same choices as
//! before.

mod draw;
mod steps;

pub use draw::{
    CENTRIFUGO_FROM, CLUSTER_SESSIONS_FROM, CLUSTERS_FROM, COPIES_FROM, DURABLE_SESSIONS_FROM,
    STEADY_SUBSCRIPTIONS_FROM, TCP_FROM, has_centrifugo_clients, has_cluster_sessions, is_over_tcp,
};

use crate::engine::EngineBehavior;
use crore_broker::TurnLimits;
use crore_broker::settings::Settings;
use crore_wire::topic;

/// An event of a run. The number is that of the shard or client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Lets a shard handle some of its waiting inputs.
    Turn(u8),
    /// Lets this many seconds pass.
    Clock(u16),
    /// A subscriber connects, or sends its next long-poll.
    Request(u8),
    /// A subscriber reads some of the received bytes.
    ReadSubscriber(u8),
    /// A subscriber's connection is cut.
    CutSubscriber(u8),
    /// Gives a subscriber's socket another window: the number of unread bytes that the socket holds.
    ResizeWindow(u8),
    /// A publisher sends something.
    Publish(u8, PublisherAction),
    /// A publisher reads some of the received bytes.
    ReadPublisher(u8),
    /// A publisher's connection is cut.
    CutPublisher(u8),
    /// A follower (a client that watches which topics have subscribers) connects.
    Follow(u8),
    /// A follower reads some of the received bytes.
    ReadFollower(u8),
    /// A follower's connection is cut.
    CutFollower(u8),
    /// An MQTT client does something.
    Mqtt(u8, MqttAction),
    /// A client of Centrifugo's protocol does something.
    Centrifugo(u8, CentrifugoAction),
}

/// An action of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublisherAction {
    /// Sends this many messages, each in its own request, without waiting for answers.
    Pipeline(u8),
    /// Sends this many messages in one request.
    Batch(u8),
    /// Deletes a topic.
    Delete,
    /// Creates a topic.
    Create,
    /// Asks for the info of a topic.
    Info,
}

/// An action of an MQTT client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttAction {
    /// Connects, if it has no connection.
    Connect,
    /// Connects although the server still has its old, dead connection.
    TakeOver,
    /// Reads some of the received bytes.
    Read,
    /// Acknowledges some of the messages that it has read.
    Acknowledge,
    /// Subscribes or unsubscribes.
    ChangeSubscriptions,
    /// Publishes this many messages.
    Publish(u8),
    /// Sends a PINGREQ.
    Ping,
    /// Sends DISCONNECT and closes.
    Leave,
    /// Loses its connection.
    Cut,
    /// Gives the client's socket another window: the number of unread bytes that the socket holds.
    ResizeWindow,
}

/// An action of a client of Centrifugo's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CentrifugoAction {
    /// Connects, if it has no connection.
    Connect,
    /// Reads some of the received bytes.
    Read,
    /// Subscribes to a topic, or unsubscribes from it.
    ChangeSubscription,
    /// Subscribes to all its topics.
    SubscribeMissing,
    /// Loses its connection.
    Cut,
    /// Gives the client's socket another window: the number of unread bytes that the socket holds.
    ResizeWindow,
}

/// An event of a run, with the seed of its random choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The event.
    pub op: Op,
    /// The seed of the event's random choices.
    pub dice: u64,
}

/// The properties of the world of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of shards of a node.
    pub shards: usize,
    /// Number of shards that are homes, which own topics.
    pub homes: usize,
    /// Number of homes after a planned restart.
    pub homes_after: usize,
    /// Number of partitions.
    pub partitions: usize,
    /// Number of nodes that share a log.
    pub nodes: usize,
    /// The steps before which a node is paused, cut off or lost, in thousandths of all steps.
    pub node_events_at: Vec<usize>,
    /// The steps before which a steward writes checkpoints and purges the log, in thousandths of all steps. The steward of a partition is
    /// the node that does this for the partition.
    pub purges_at: Vec<usize>,
    /// The server's settings.
    pub settings: Settings,
    /// The limits of the work in a turn.
    pub turn_limits: TurnLimits,
    /// The maximum number of bytes of an outbox that are sent at once.
    pub part_bytes: usize,
    /// The topics' names.
    pub topics: Vec<String>,
    /// Number of subscribers over HTTP and WebSocket.
    pub subscribers: usize,
    /// Number of publishers over HTTP and WebSocket.
    pub publishers: usize,
    /// Number of followers.
    pub followers: usize,
    /// Percentage of subscribers that subscribe by filter.
    pub filtered_percent: u32,
    /// Whether WebSockets with positions ask for `envelope=json` instead of `ws+meta.nchan`.
    pub envelopes: bool,
    /// Number of clients of Centrifugo's protocol.
    pub centrifugo_clients: usize,
    /// Number of MQTT clients.
    pub mqtt_clients: usize,
    /// Percentage of MQTT clients that also subscribe to `#`.
    pub wildcard_percent: u32,
    /// Whether some MQTT clients publish with RETAIN.
    pub retains: bool,
    /// The highest QoS of a subscription of an MQTT client.
    pub subscription_qos_max: u8,
    /// Whether MQTT clients leave their subscriptions as they are.
    pub subscriptions_stay: bool,
    /// The highest packet id of an MQTT client's messages, which are as many in flight at most. Lower ones are used again sooner.
    pub packet_ids_max: u16,
    /// Seconds that pass at the end while sockets are stalled, so that messages expire in the server; 0 for none.
    pub stalled_s: u32,
    /// The largest message, in bytes.
    pub message_bytes: usize,
    /// Percentage of messages with a time to live of their own.
    pub ttl_percent: u32,
    /// Choices for the number of unread bytes that a client's socket holds.
    pub windows: Vec<usize>,
    /// Percentage of sends of which the socket takes only a part although there is room.
    pub partial_send_percent: u32,
    /// Percentage of connections over the product's own TCP, with a faulty network.
    pub tcp_percent: u32,
    /// Percentage of waiting mails that arrive in a turn.
    pub mail_percent: u32,
    /// Whether neither the byte budget of all logs nor the limit of topics is ever reached.
    pub budgets_are_wide: bool,
    /// The faults of the engine (the simulated log); `None` if the world has no engine.
    pub engine: Option<EngineBehavior>,
    /// The step before which the planned restart happens, in thousandths of all steps; `None` if there is no restart.
    pub restarts_at: Option<usize>,
    /// The steps before which the server crashes, in thousandths of all steps.
    pub crashes_at: Vec<usize>,
    /// Whether a crash may damage the disk.
    pub disk_damage: bool,
    /// Whether the log may be replaced by an older copy after a crash.
    pub restores_old_log: bool,
    /// The steps before which the log is compacted into a new base (a checkpoint on disk), in thousandths of all steps.
    pub compactions_at: Vec<usize>,
    /// Whether a compaction replaces the documents of the last base one by one, as on a full disk, and may not come to the end.
    pub replaces_in_place: bool,
    /// Bytes of a segment of the log; `None` if the log is not on disk.
    pub segment_bytes: Option<u64>,
    /// Number of batches published before the first step. They make the logs long in plans with short turns (rounds of a shard's loop).
    pub preload: usize,
    /// Whether the wall clock jumps, ahead and back.
    pub wall_clock_jumps: bool,
    /// The shard that rarely gets a turn, if there is one.
    starved_shard: Option<usize>,
    /// Relative frequency of each kind of step, in the order of `step` in `steps.rs`.
    weights: [u32; 9],
}

/// The maximum number of messages in a batch of a publisher.
pub const BATCH_LINES_MAX: usize = 8;
/// The number of messages in each preloaded batch. It is more than a short turn can handle.
pub const PRELOAD_LINES: usize = 240;
/// More memory than all clients of a world ever make the server use.
pub const MEMORY_BYTES: usize = 1 << 26;

impl Plan {
    /// The maximum number of messages in a batch that any client sends.
    pub fn batch_lines_max(&self) -> usize {
        match self.preload {
            0 => BATCH_LINES_MAX,
            _ => PRELOAD_LINES,
        }
    }

    /// The filters of rules whose topics are not durable.
    pub fn non_durable_filters(&self) -> Vec<String> {
        let rules = self.settings.rules.iter();
        let non_durable = rules.filter(|rule| !rule.durable);
        non_durable.map(|rule| rule.filter.clone()).collect()
    }

    /// The maximum number of messages that may wait for one connection. `None` if some topic has no such limit, or if there are MQTT
    /// clients, which receive all messages of a turn.
    pub fn waiting_max(&self) -> Option<usize> {
        let rule_of = |name: &String| {
            let mut rules = self.settings.rules.iter();
            rules.find(|rule| topic::matches(rule.filter.as_bytes(), name.as_bytes()))
        };
        let limit_of = |name| Some(rule_of(name)?.outbox_messages).filter(|limit| *limit > 0);
        let limits: Option<Vec<u32>> = self.topics.iter().map(limit_of).collect();
        let largest = limits.filter(|_| self.mqtt_clients == 0)?.into_iter().max();
        Some(largest? as usize)
    }
}
