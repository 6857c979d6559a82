//! The meaning of a seed: the settings of its world and its list of steps. Every step carries its own random numbers, so
//! that in a shorter list the remaining steps run as before.

use crore_broker::Pace;
use crore_broker::settings::{First, Keep, Rule, Settings, Slow};
use crore_wire::topic;

use crate::client::mqtt;
use crate::client::publisher::Deed;
use crate::rng::Rng;

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
    Mqtt(u8, mqtt::Deed),
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
    /// The server's settings.
    pub settings: Settings,
    /// How much a turn does.
    pub pace: Pace,
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
    /// The step before which the server restarts, in thousandths of all steps, if it does.
    pub restarts_at: Option<usize>,
    /// Batches that are published before all else, so that the logs are long where a turn is short.
    pub hoard: usize,
    /// A shard that seldom gets a turn.
    lazy: Option<usize>,
    weights: [u32; 9],
}

/// The longest batch.
pub const BATCH_LINES_MAX: usize = 8;
/// How many of a hundred worlds are short of credit.
const PRESSED_PERCENT: u32 = 15;
/// Salt of the random choices of followers and expiry: with this one, the seeds kept for what they found have neither.
const MORE: u64 = 37;
/// How many of a hundred worlds have followers of interest.
const FOLLOWED_PERCENT: u32 = 40;
/// How many of a hundred worlds have subscribers by filter.
const FILTERED_PERCENT: u32 = 40;
/// How many of a hundred worlds let messages expire before stalled sockets.
const EXPIRING_PERCENT: u32 = 15;
/// Longer than most times to live, shorter than a stalled connection is kept.
const EXPIRY_S: u32 = 4;
/// How many of a hundred steps are a follower's, where there are any.
const FOLLOWERS_STEPS_PERCENT: u32 = 12;
/// Salt of the random choices of MQTT clients, likewise.
const PACKETS: u64 = 7;
/// How many of a hundred worlds have MQTT clients.
const PACKETS_PERCENT: u32 = 40;
/// How many of a hundred steps are an MQTT client's, where there are any.
const PACKETS_STEPS_PERCENT: u32 = 40;
/// Salt of the random choices of overlapping subscriptions of MQTT clients, likewise.
const COVERS: u64 = 0xC07E_4503;
/// How many of a hundred worlds have some.
const COVERS_PERCENT: u32 = 50;
/// Salt of the random choices of a planned restart, likewise.
const RESTARTS: u64 = 11;
/// How many of a hundred worlds have one.
const RESTARTS_PERCENT: u32 = 30;
/// Salt of the random choices of envelopes, likewise.
const ENVELOPES: u64 = 46;
/// How many of a hundred worlds have them.
const ENVELOPES_PERCENT: u32 = 30;
/// Salt of the random choices of rules that bound the bytes waiting for a socket, likewise.
const BOUNDS: u64 = 314;
/// How many of a hundred worlds have them.
const BOUNDS_PERCENT: u32 = 30;
/// Salt of the random choice of how slowly a home forgets.
const FORGETS: u64 = 733;
/// Salt of the random choices of limits of topics and of logs by address, likewise.
const MAKERS: u64 = 361;
/// How many of a hundred worlds with narrow budgets have them.
const MAKERS_PERCENT: u32 = 30;
/// Lines of the batches that make logs long: each is more than a turn may do where it may do little.
pub const HOARD_LINES: usize = 240;
/// How many of a hundred worlds with such turns have such logs.
const HOARDS_PERCENT: u32 = 15;
/// Salt of the random choices of turns that may do little, likewise.
const SHORT_TURNS: u64 = 0x57E9_5101;
/// How many of a hundred worlds have such turns.
const SHORT_TURNS_PERCENT: u32 = 35;
/// How many of a hundred turns a lazy shard does not get.
const LAZY_PERCENT: u32 = 95;
/// Connections that one tick looks at: a sweep is several turns.
const ROWS_PER_TICK: u32 = 3;
/// More than the steps of a run take, less than its end.
const IDEMPOTENCY_WINDOW_S: u32 = 86_400;
/// The largest messages that plans may have: none makes a log's byte budget meaningless.
const MESSAGE_BYTES: [usize; 4] = [8, 60, 400, 3000];

/// More than all clients of a world ever make the server hold.
pub const MEMORY_BYTES: usize = 1 << 26;

impl Plan {
    /// The world of this seed.
    pub fn new(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5EED_0F51);
        let rng = &mut rng;
        let shards = rng.range(1, 4);
        let homes = rng.range(1, shards);
        let budgets_are_wide = rng.chance(75);
        let mut settings = Settings::default();
        let limits = &mut settings.limits;
        limits.outbox_bytes = rng.pick(&[0, 100, 500, 4000, 1 << 20]);
        limits.memory_bytes = MEMORY_BYTES;
        limits.publish_credit_bytes = rng.pick(&[0, 300, 3000, 1 << 20]);
        if !budgets_are_wide {
            limits.memory_bytes = rng.pick(&[128 << 10, 1 << 20, MEMORY_BYTES]);
            limits.log_bytes = homes * rng.pick(&[600, 4000, 1 << 20]);
            limits.topics_per_shard = rng.pick(&[2, 1000, 1000, 1000]);
            limits.connections_max = rng.pick(&[4, 1000, 1000, 1000]);
            limits.connections_per_address_max = rng.pick(&[0, 0, 0, 2]);
            limits.connections_per_shard = rng.pick(&[3, 1000, 1000, 1000]);
            limits.publishes_per_s = rng.pick(&[0, 0, 0, 5]);
            limits.publishes_per_address_per_s = rng.pick(&[0, 0, 0, 3]);
        }
        settings.deflate.min_bytes = rng.pick(&[1, 64]);
        // A retry comes within the window, however far the clock goes.
        settings.publish.idempotency_window_s = IDEMPOTENCY_WINDOW_S;
        settings.heartbeat.interval_s = rng.pick(&[0, 2, 50]);
        settings.rules = ["a/#", "b/#", "c/#"]
            .map(|filter| Self::rule(filter, rng))
            .to_vec();
        let count = rng.range(1, 6);
        let name = |n: usize| format!("{}/{n}", ["a", "b", "c", "d"][rng.below(4)]);
        let topics = (0..count).map(name).collect();
        let mut weights = [0; 9];
        for (weight, most) in weights.iter_mut().zip([60, 6, 20, 30, 6, 6, 20, 20, 2]) {
            *weight = rng.range(most / 4, most) as u32;
        }
        weights[0] = weights[0].max(20);
        let windows = rng.pick(&[
            &[30, 300][..],
            &[100, 2000, 1 << 20],
            &[0, 1 << 20],
            &[1 << 20],
        ]);
        let mut plan = Plan {
            shards,
            homes,
            settings,
            pace: Pace {
                visits_per_turn: rng.pick(&[1, 3, 4096]),
                page_messages: rng.pick(&[1, 3, 128]),
                page_bytes: rng.pick(&[100, 64 << 10]),
                turns_under_way: rng.pick(&[1, 8, 64]),
                // As if the tables were large.
                cold_rows: 0,
                rows_per_tick: ROWS_PER_TICK,
                ..Pace::default()
            },
            topics,
            subscribers: rng.range(1, 14),
            publishers: rng.range(1, 4),
            followers: 0,
            filtered_percent: 0,
            envelopes: false,
            mqtt_clients: 0,
            covered_percent: 0,
            retains: false,
            stalled_s: 0,
            message_bytes: rng.pick(&MESSAGE_BYTES),
            mortal_percent: rng.pick(&[0, 0, 30]),
            windows: windows.to_vec(),
            tear_percent: rng.pick(&[0, 5, 40]),
            mail_percent: rng.pick(&[20, 60, 95]),
            budgets_are_wide,
            restarts_at: None,
            hoard: 0,
            lazy: rng.chance(30).then(|| rng.below(shards)),
            weights,
        };
        // With random numbers of its own, so that all other seeds keep their meaning.
        let mut own = Rng::new(seed ^ 0xC4ED_1750);
        if own.chance(PRESSED_PERCENT) {
            plan.press(&mut own);
        }
        let mut own = Rng::new(seed ^ MORE);
        if own.chance(FOLLOWED_PERCENT) {
            plan.followers = own.range(1, 4);
            plan.settings.interest.debounce_s = own.pick(&[0, 0, 1, 5]);
            plan.settings.interest.followers_max = own.pick(&[1, 64, 64]);
            plan.pace.interest_rows = own.pick(&[1, 3, 4096]);
        }
        if own.chance(EXPIRING_PERCENT) {
            plan.expire(&mut own);
        }
        let mut own = Rng::new(seed ^ 0xF117_E250);
        if own.chance(FILTERED_PERCENT) {
            plan.filtered_percent = own.pick(&[30, 60, 100]);
            plan.pace.page_visits = own.pick(&[1, 3, 4096]);
            let more = own.range(0, 6);
            let name = |n| format!("{}/{}", own.pick(&["a", "b", "c"]), 6 + n);
            plan.topics.extend((0..more).map(name));
        }
        let mut own = Rng::new(seed ^ PACKETS);
        if own.chance(PACKETS_PERCENT) {
            plan.speak_mqtt(&mut own);
        }
        let mut own = Rng::new(seed ^ COVERS);
        if own.chance(COVERS_PERCENT) {
            plan.covered_percent = own.pick(&[50, 100]);
        }
        let mut own = Rng::new(seed ^ RESTARTS);
        if own.chance(RESTARTS_PERCENT) {
            plan.restarts_at = Some(own.below(1000));
            // The clients are not told: they find their connections closed.
            plan.settings.drain.deadline_s = 0;
        }
        let mut own = Rng::new(seed ^ SHORT_TURNS);
        if own.chance(SHORT_TURNS_PERCENT) {
            plan.pace.steps_per_turn = own.pick(&[1, 4, 30, 200]);
            plan.pace.page_visits = own.pick(&[1, 3, 20]);
            if own.chance(HOARDS_PERCENT) {
                plan.hoard(&mut own);
            }
        }
        plan.envelopes = Rng::new(seed ^ ENVELOPES).chance(ENVELOPES_PERCENT);
        plan.pace.forgets_per_turn = Rng::new(seed ^ FORGETS).pick(&[1, 1, 256]);
        let mut own = Rng::new(seed ^ BOUNDS);
        // Where messages expire before stalled sockets next to nothing waits.
        if own.chance(BOUNDS_PERCENT) && plan.stalled_s == 0 {
            for rule in &mut plan.settings.rules {
                rule.outbox_bytes = own.pick(&[0, 0, 60, 300, 4000]);
                rule.outbox_messages = own.pick(&[0, 1, 2, 5]);
            }
        }
        let mut own = Rng::new(seed ^ MAKERS);
        if own.chance(MAKERS_PERCENT) && !plan.budgets_are_wide && !plan.retains {
            plan.settings.limits.topics_per_address_per_s = own.pick(&[1, 2]);
            plan.settings.limits.topics_per_address_burst = own.pick(&[0, 3]);
            plan.settings.limits.log_bytes_per_address_max = own.pick(&[0, 300, 3000]);
        }
        plan
    }

    /// Many publishers, which often reconnect, at one home that handles little at a time.
    fn press(&mut self, rng: &mut Rng) {
        self.shards = rng.range(2, 4);
        self.homes = 1;
        self.lazy = rng.chance(60).then_some(0);
        self.mail_percent = 20;
        self.pace.turns_under_way = rng.pick(&[1, 8]);
        self.settings.limits.publish_credit_bytes = rng.pick(&[0, 300, 3000]);
        self.pace.steps_per_turn = rng.pick(&[2, 20, 16_384]);
        self.publishers = rng.range(4, 8);
        (self.weights[6], self.weights[8]) = (40, 10);
    }

    /// The longest batch that a client sends.
    pub fn batch_lines_max(&self) -> usize {
        match self.hoard {
            0 => BATCH_LINES_MAX,
            _ => HOARD_LINES,
        }
    }

    /// Logs that are long from the beginning, of small messages that stay.
    fn hoard(&mut self, rng: &mut Rng) {
        self.hoard = rng.range(10, 20);
        // A turn with steps for one message or visit only would not finish so much work within a run.
        self.pace.steps_per_turn = rng.pick(&[30, 200]);
        (self.pace.page_visits, self.pace.page_messages) = (20, 128);
        (self.pace.page_bytes, self.pace.visits_per_turn) = (64 << 10, 4096);
        self.message_bytes = MESSAGE_BYTES[0];
        self.mortal_percent = 0;
        for rule in &mut self.settings.rules {
            (rule.log_messages, rule.log_bytes) = (10_000, 1 << 20);
            (rule.log_age_s, rule.ttl_s) = (3600, 0);
        }
    }

    /// Messages live for a short time, and next to nothing waits for a stalled socket.
    fn expire(&mut self, rng: &mut Rng) {
        self.stalled_s = EXPIRY_S;
        self.mortal_percent = 60;
        self.settings.limits.outbox_bytes = 0;
        self.pace.page_messages = rng.pick(&[1, 3]);
        for rule in &mut self.settings.rules {
            rule.log_messages = rng.pick(&[20, 1000]);
            rule.log_bytes = 1 << 20;
        }
    }

    /// Some of the clients speak MQTT.
    fn speak_mqtt(&mut self, rng: &mut Rng) {
        self.mqtt_clients = rng.range(1, 6);
        let settings = &mut self.settings.mqtt;
        settings.receive_max = rng.pick(&[1, 3, 100, 100]);
        settings.inflight_max = rng.pick(&[2, 10, 100]);
        settings.session_messages = rng.pick(&[1, 5, 1000, 1000]);
        settings.session_expiry_max_s = rng.pick(&[30, 86_400]);
        settings.topic_aliases_max = rng.pick(&[0, 16]);
        if !self.budgets_are_wide {
            settings.sessions_max = rng.pick(&[1, 1000, 1000]);
        }
        let (sessions_max, limits) = (settings.sessions_max, &self.settings.limits);
        // Where connections are few by address, sessions are too.
        settings.sessions_per_address_max = limits.connections_per_address_max;
        let rates = limits.publishes_per_s + limits.publishes_per_address_per_s;
        let wide = limits.connections_max >= 1000 && limits.connections_per_shard >= 1000;
        // The client that removes all retained messages in the end must not be turned away.
        self.retains =
            rates == 0 && wide && limits.connections_per_address_max == 0 && sessions_max >= 1000;
        // The other worlds test how shortened logs affect subscribers.
        for rule in &mut self.settings.rules {
            if rng.chance(60) {
                (rule.log_bytes, rule.log_age_s, rule.ttl_s) = (1 << 20, 3600, 0);
            }
        }
    }

    fn rule(filter: &str, rng: &mut Rng) -> Rule {
        Rule {
            filter: filter.into(),
            keep: rng.pick(&[Keep::Log, Keep::Log, Keep::Latest]),
            keys_max: rng.pick(&[1, 3, 1000, 1000]),
            ttl_s: rng.pick(&[0, 0, 0, 0, 3, 30]),
            log_messages: rng.pick(&[0, 1, 3, 20, 20, 1000]),
            log_bytes: rng.pick(&[300, 4000, 1 << 20, 1 << 20]),
            log_age_s: rng.pick(&[3, 20, 3600, 3600]),
            position_age_s: rng.pick(&[2, 3600, 3600]),
            first: rng.pick(&[
                First::ByTransport,
                First::ByTransport,
                First::Oldest,
                First::Live,
                First::Newest(2),
            ]),
            poll_timeout_s: rng.pick(&[0, 2, 30]),
            poll_timeout_status: rng.pick(&[204, 408]),
            slow: rng.pick(&[Slow::Disconnect, Slow::Skip]),
            ..Rule::default()
        }
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

    /// The steps of this seed.
    pub fn steps(&self, seed: u64, count: usize) -> Vec<Step> {
        let mut rng = Rng::new(seed);
        let mut own = Rng::new(seed ^ 0xF011_0135);
        let mut packets = Rng::new(seed ^ 0x3477_0311);
        let step = |_| {
            let mut step = self.step(&mut rng);
            if self.followers > 0 && own.chance(FOLLOWERS_STEPS_PERCENT) {
                let follower = own.below(self.followers) as u8;
                step.op = match own.below(10) {
                    0..3 => Op::Follow(follower),
                    3..9 => Op::ReadNews(follower),
                    _ => Op::CutFollower(follower),
                };
            }
            if self.mqtt_clients > 0 && packets.chance(PACKETS_STEPS_PERCENT) {
                let client = packets.below(self.mqtt_clients) as u8;
                step.op = Op::Mqtt(client, Self::packets(&mut packets));
            }
            step
        };
        (0..count).map(step).collect()
    }

    fn step(&self, rng: &mut Rng) -> Step {
        let sum: u32 = self.weights.iter().sum();
        let mut at = rng.below(sum as usize) as u32;
        let kind = self.weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let subscriber = rng.below(self.subscribers) as u8;
        let publisher = rng.below(self.publishers) as u8;
        let op = match kind.expect("the weights are summed") {
            0 => {
                let shard = rng.below(self.shards);
                let skips = self.lazy == Some(shard) && rng.chance(LAZY_PERCENT);
                Op::Turn(if skips { rng.below(self.shards) } else { shard } as u8)
            }
            1 => Op::Clock(rng.pick(&[1, 1, 1, 1, 2, 5, 25])),
            2 => Op::Ask(subscriber),
            3 => Op::Read(subscriber),
            4 => Op::Cut(subscriber),
            5 => Op::Window(subscriber),
            6 => Op::Publish(publisher, Self::deed(rng)),
            7 => Op::ReadAnswer(publisher),
            _ => Op::CutPublisher(publisher),
        };
        Step {
            op,
            dice: rng.next(),
        }
    }

    fn packets(rng: &mut Rng) -> mqtt::Deed {
        match rng.below(100) {
            0..12 => mqtt::Deed::Connect,
            12..15 => mqtt::Deed::TakeOver,
            15..45 => mqtt::Deed::Read,
            45..60 => mqtt::Deed::Acknowledge,
            60..68 => mqtt::Deed::Change,
            68..88 => mqtt::Deed::Publish(rng.pick(&[1, 1, 3])),
            88..92 => mqtt::Deed::Ping,
            92..94 => mqtt::Deed::Leave,
            94..97 => mqtt::Deed::Cut,
            _ => mqtt::Deed::Window,
        }
    }

    fn deed(rng: &mut Rng) -> Deed {
        match rng.below(100) {
            0..50 => Deed::Pipeline(1),
            50..75 => Deed::Pipeline(rng.range(2, 6) as u8),
            75..92 => Deed::Batch(rng.range(1, BATCH_LINES_MAX) as u8),
            92..95 => Deed::Delete,
            95..98 => Deed::Create,
            _ => Deed::Info,
        }
    }
}
