//! The meaning of a seed: the settings of its world (`draw`) and its list of steps (`steps`). Every step carries its own
//! random numbers, so that in a shorter list the remaining steps run as before.

mod draw;
mod steps;

pub use draw::{CLUSTERS_FROM, COPIES_FROM};

use crate::engine::Manner;
use crore_broker::Pace;
use crore_broker::settings::Settings;
use crore_wire::topic;

/// One kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A shard takes some of the inputs that wait for it.
    Turn(u8),
    /// Time passes, in seconds.
    Clock(u16),
    /// A subscriber connects, or sends its next long-poll.
    Ask(u8),
    /// A subscriber reads some of the received bytes.
    Read(u8),
    /// A subscriber's connection is cut.
    Cut(u8),
    /// A subscriber's window changes.
    Window(u8),
    /// A publisher sends something.
    Publish(u8, Deed),
    /// A publisher reads some of the received bytes.
    ReadAnswer(u8),
    /// A publisher's connection is cut.
    CutPublisher(u8),
    /// A follower of interest connects.
    Follow(u8),
    /// A follower reads some of the received bytes.
    ReadNews(u8),
    /// A follower's connection is cut.
    CutFollower(u8),
    /// An MQTT client does something.
    Mqtt(u8, MqttDeed),
}

/// An action of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// So many messages, each with a request of its own, without waiting between them.
    Pipeline(u8),
    /// So many messages in one request.
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
pub enum MqttDeed {
    /// Connects, if it has no connection.
    Connect,
    /// Connects although it has one: the server has not noticed that it is dead.
    TakeOver,
    /// Reads some of the received bytes.
    Read,
    /// Acknowledges some of the messages that it has read.
    Acknowledge,
    /// Subscribes or unsubscribes.
    Change,
    /// Publishes so many messages.
    Publish(u8),
    /// Sends a PINGREQ.
    Ping,
    /// Sends DISCONNECT and closes.
    Leave,
    /// Loses its connection.
    Cut,
    /// Its window changes.
    Window,
}

/// An event, with its random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The event.
    pub op: Op,
    /// The seed of its random choices.
    pub dice: u64,
}

/// The world of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many shards.
    pub shards: usize,
    /// How many of them keep topics.
    pub homes: usize,
    /// How many of them keep topics after a restart.
    pub homes_after: usize,
    /// How many partitions the topics have.
    pub partitions: usize,
    /// How many nodes share a log; each has so many shards.
    pub nodes: usize,
    /// The steps before which something happens to a node, in thousandths of all steps.
    pub node_events_at: Vec<usize>,
    /// The steps before which a steward writes checkpoints and purges the log, likewise.
    pub purges_at: Vec<usize>,
    /// The server's settings.
    pub settings: Settings,
    /// How much a turn does.
    pub pace: Pace,
    /// How many bytes of its outbox a socket gets at once.
    pub part_bytes: usize,
    /// The topics' names.
    pub topics: Vec<String>,
    /// How many subscribers.
    pub subscribers: usize,
    /// How many publishers.
    pub publishers: usize,
    /// How many followers of interest.
    pub followers: usize,
    /// How many of a hundred subscribers subscribe by filter.
    pub filtered_percent: u32,
    /// Whether the WebSockets that learn positions get envelopes instead of `ws+meta.nchan`.
    pub envelopes: bool,
    /// How many MQTT clients.
    pub mqtt_clients: usize,
    /// How many of a hundred of them also subscribe by a filter that covers all their topics.
    pub covered_percent: u32,
    /// Whether they retain messages.
    pub retains: bool,
    /// Seconds that pass while sockets are stalled at the end, so that messages expire there.
    pub stalled_s: u32,
    /// The largest message, in bytes.
    pub message_bytes: usize,
    /// How many of a hundred messages bring a time to live.
    pub mortal_percent: u32,
    /// Windows that sockets may have, in bytes.
    pub windows: Vec<usize>,
    /// How many of a hundred sends are cut although there is room.
    pub tear_percent: u32,
    /// How many of a hundred mails that could arrive do, in a turn.
    pub mail_percent: u32,
    /// Neither the budget of all logs nor the count of topics is ever reached.
    pub budgets_are_wide: bool,
    /// How the engine behaves, if what homes write goes through one.
    pub engine: Option<Manner>,
    /// The step before which the server restarts, in thousandths of all steps, if it does.
    pub restarts_at: Option<usize>,
    /// The steps before which the server crashes, likewise.
    pub crashes_at: Vec<usize>,
    /// Whether a crash may harm the disk.
    pub damages: bool,
    /// Whether the log may be put back from an older copy behind a crash.
    pub puts_back: bool,
    /// Those of its checkpoints.
    pub checkpoints_at: Vec<usize>,
    /// Bytes of a segment of the log, if the engine is a disk.
    pub segment_bytes: Option<u64>,
    /// Batches that are published before all else, so that the logs are long where a turn is short.
    pub hoard: usize,
    /// The wall clock steps, ahead and back.
    pub wall_steps: bool,
    /// A shard that seldom gets a turn.
    lazy: Option<usize>,
    weights: [u32; 9],
}

/// The longest batch.
pub const BATCH_LINES_MAX: usize = 8;
/// Lines of the batches that make logs long: each is more than a turn may do where it may do little.
pub const HOARD_LINES: usize = 240;
/// More than all clients of a world ever make the server hold.
pub const MEMORY_BYTES: usize = 1 << 26;

impl Plan {
    /// The longest batch that a client sends.
    pub fn batch_lines_max(&self) -> usize {
        match self.hoard {
            0 => BATCH_LINES_MAX,
            _ => HOARD_LINES,
        }
    }

    /// The filters of the rules whose topics stand in no log.
    pub fn unlogged(&self) -> Vec<String> {
        let rules = self.settings.rules.iter();
        let passing = rules.filter(|rule| !rule.durable);
        passing.map(|rule| rule.filter.clone()).collect()
    }

    /// The most messages that wait for one connection, if that is bounded: an MQTT client gets all messages of a turn.
    pub fn waiting_max(&self) -> Option<usize> {
        let rule_of = |name: &String| {
            let mut rules = self.settings.rules.iter();
            rules.find(|rule| topic::matches(rule.filter.as_bytes(), name.as_bytes()))
        };
        let most = |name| rule_of(name).filter(|rule| rule.outbox_messages > 0);
        let bounds = self
            .topics
            .iter()
            .map(|name| Some(most(name)?.outbox_messages));
        let bounds: Option<Vec<u32>> = bounds.collect();
        let most = bounds.filter(|_| self.mqtt_clients == 0)?.into_iter().max();
        Some(most? as usize)
    }
}
