//! Draws the world of a seed. Kinds of worlds that were added later draw from random numbers of their own, so that all other
//! seeds keep their meaning.

use crore_broker::Pace;
use crore_broker::settings::{First, Keep, Rule, Settings, Slow};

use super::{MEMORY_BYTES, Plan};
use crate::engine::Manner;
use crate::rng::Rng;

/// Salt of the random choices of worlds that are short of credit.
const PRESSED: u64 = 0xC4ED_1750;
/// How many of a hundred worlds are.
const PRESSED_PERCENT: u32 = 15;
/// Salt of the random choices of followers and expiry: with this one, the seeds kept for what they found have neither.
const MORE: u64 = 37;
/// How many of a hundred worlds have followers of interest.
const FOLLOWED_PERCENT: u32 = 40;
/// Salt of the random choices of subscribers by filter.
const FILTERED: u64 = 0xF117_E250;
/// How many of a hundred worlds have some.
const FILTERED_PERCENT: u32 = 40;
/// How many of a hundred worlds let messages expire before stalled sockets.
const EXPIRING_PERCENT: u32 = 15;
/// Longer than most times to live, shorter than a stalled connection is kept.
const EXPIRY_S: u32 = 4;
/// Salt of the random choices of MQTT clients, likewise.
const PACKETS: u64 = 7;
/// How many of a hundred worlds have MQTT clients.
const PACKETS_PERCENT: u32 = 40;
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
/// Salt of the random choice of how much of an outbox goes out at once.
const WRITES: u64 = 0x0A7B_0C5E;
/// Salt of the random choices of partitions and of the homes of a restart, likewise.
const PARTITIONS: u64 = 0x9A27_1710;
/// Salt of the random choices of an engine, likewise.
const ENGINES: u64 = 0xE261_3E50;
/// How many of a hundred worlds have one.
const ENGINES_PERCENT: u32 = 35;
/// Salt of the random choices of crashes, likewise.
const CRASHES: u64 = 0xC4A5_4E55;
/// How many of a hundred worlds with an engine have them.
const CRASHES_PERCENT: u32 = 40;
/// Salt of the random choices of clusters, likewise.
const CLUSTERS: u64 = 0xC105_7E25;
/// Seeds from this one on have them.
pub const CLUSTERS_FROM: u64 = 1 << 61;
/// Seeds from this one on have logs that are put back from a copy, too. They are apart, since what the readers of such a log may be told is not told exactly yet: some of these worlds fail where the
/// server is right.
pub const COPIES_FROM: u64 = 1 << 62;
/// How many of a hundred worlds with wide budgets are clusters.
const CLUSTERS_PERCENT: u32 = 12;
/// Salt of the random choice whether crashes harm the disk, likewise.
const DAMAGES: u64 = 0xDA3A_6E50;
/// How many of a hundred worlds with crashes have such.
const DAMAGES_PERCENT: u32 = 60;
/// Salt of the random choice whether a log is put back from a copy, likewise.
const COPIES: u64 = 0xBAC4_0BEE;
/// How many of a hundred worlds with crashes, and none that harms the disk, have such.
const COPIES_PERCENT: u32 = 80;
/// The events of the nodes of a world, at most.
const NODE_EVENTS_MAX: usize = 12;
/// Salt of the random choices of purges, likewise.
const PURGES: u64 = 0x9026_E5ED;
/// How many of a hundred clusters have them, and how many of them at most.
const PURGES_PERCENT: u32 = 50;
const PURGES_MAX: usize = 8;
/// Longer than a run: a node forgets topics whose subscribers are at other nodes.
const REMEMBERS_S: u32 = 50_000;
/// Crashes of a world, and checkpoints.
const CRASHES_MAX: usize = 3;
/// Bytes of the header of a segment of the log.
const SEGMENT_HEADER: u64 = 4096;
/// Salt of the random choices of limits of topics and of logs by address, likewise.
const MAKERS: u64 = 361;
/// How many of a hundred worlds with narrow budgets have them.
const MAKERS_PERCENT: u32 = 30;
/// Salt of the random choice whether the wall clock steps, likewise.
const WALL: u64 = 0x3A11_C10C;
/// How many of a hundred worlds have a wall clock that does.
const WALL_PERCENT: u32 = 40;
/// Salt of the random choices of turns that may do little, likewise.
const SHORT_TURNS: u64 = 0x57E9_5101;
/// How many of a hundred worlds have such turns.
const SHORT_TURNS_PERCENT: u32 = 35;
/// How many of a hundred worlds with such turns have long logs from the beginning.
const HOARDS_PERCENT: u32 = 15;
/// Connections that one tick looks at: a sweep is several turns.
const ROWS_PER_TICK: u32 = 3;
/// More than the steps of a run take, less than its end.
const IDEMPOTENCY_WINDOW_S: u32 = 86_400;
/// The largest messages that plans may have: none makes a log's byte budget meaningless.
const MESSAGE_BYTES: [usize; 4] = [8, 60, 400, 3000];

impl Plan {
    /// The world of this seed.
    pub fn new(seed: u64) -> Plan {
        let own = |salt: u64| Rng::new(seed ^ salt);
        let mut plan = first(&mut own(0x5EED_0F51));
        press(&mut plan, &mut own(PRESSED));
        let mut more = own(MORE);
        follow(&mut plan, &mut more);
        expire(&mut plan, &mut more);
        filter(&mut plan, &mut own(FILTERED));
        speak_mqtt(&mut plan, &mut own(PACKETS));
        cover(&mut plan, &mut own(COVERS));
        restart(&mut plan, &mut own(RESTARTS));
        shorten_turns(&mut plan, &mut own(SHORT_TURNS));
        plan.envelopes = own(ENVELOPES).chance(ENVELOPES_PERCENT);
        plan.pace.forgets_per_turn = own(FORGETS).pick(&[1, 1, 256]);
        plan.part_bytes = own(WRITES).pick(&[100, 3_000, 64 << 10]);
        bound_outboxes(&mut plan, &mut own(BOUNDS));
        limit_makers(&mut plan, &mut own(MAKERS));
        divide(&mut plan, &mut own(PARTITIONS));
        commit(&mut plan, &mut own(ENGINES));
        crash(&mut plan, &mut own(CRASHES));
        if seed >= CLUSTERS_FROM {
            cluster(&mut plan, &mut own(CLUSTERS));
            damage(&mut plan, &mut own(DAMAGES));
            purge(&mut plan, &mut own(PURGES));
        }
        if seed >= COPIES_FROM {
            put_back(&mut plan, &mut own(COPIES));
        }
        plan.wall_steps = own(WALL).chance(WALL_PERCENT);
        plan
    }
}

/// Shards, settings, pace and network, with subscribers and publishers of a few topics.
fn first(rng: &mut Rng) -> Plan {
    let shards = rng.range(1, 4);
    let homes = rng.range(1, shards);
    let budgets_are_wide = rng.chance(75);
    Plan {
        shards,
        homes,
        homes_after: homes,
        partitions: homes,
        nodes: 1,
        node_events_at: Vec::new(),
        purges_at: Vec::new(),
        settings: settings(homes, budgets_are_wide, rng),
        topics: topics(rng),
        weights: weights(rng),
        windows: windows(rng),
        pace: Pace {
            visits_per_turn: rng.pick(&[1, 3, 4096]),
            page_messages: rng.pick(&[1, 3, 128]),
            page_bytes: rng.pick(&[100, 64 << 10]),
            turns_under_way: rng.pick(&[1, 8, 64]),
            // The limits of credit that are drawn are smaller than what asks weigh in a server.
            ask_bytes: 0,
            // As if the tables were large.
            cold_rows: 0,
            rows_per_tick: ROWS_PER_TICK,
            ends_per_tick: 2,
            ..Pace::default()
        },
        part_bytes: usize::MAX,
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
        tear_percent: rng.pick(&[0, 5, 40]),
        mail_percent: rng.pick(&[20, 60, 95]),
        budgets_are_wide,
        engine: None,
        restarts_at: None,
        crashes_at: Vec::new(),
        checkpoints_at: Vec::new(),
        damages: false,
        puts_back: false,
        segment_bytes: None,
        hoard: 0,
        wall_steps: false,
        lazy: rng.chance(30).then(|| rng.below(shards)),
    }
}

fn settings(homes: usize, budgets_are_wide: bool, rng: &mut Rng) -> Settings {
    let mut settings = Settings::default();
    let limits = &mut settings.limits;
    limits.outbox_bytes = rng.pick(&[0, 100, 500, 4000, 1 << 20]);
    limits.memory_bytes = MEMORY_BYTES;
    limits.publish_credit_bytes = rng.pick(&[0, 300, 3000, 1 << 20]);
    if !budgets_are_wide {
        // The first idempotency key makes a home's table, of 29 KiB.
        let least = (128 + 32 * homes) << 10;
        limits.memory_bytes = rng.pick(&[least, 1 << 20, MEMORY_BYTES]);
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
        .map(|filter| rule(filter, rng))
        .to_vec();
    settings
}

fn topics(rng: &mut Rng) -> Vec<String> {
    let count = rng.range(1, 6);
    let name = |n: usize| format!("{}/{n}", ["a", "b", "c", "d"][rng.below(4)]);
    (0..count).map(name).collect()
}

fn weights(rng: &mut Rng) -> [u32; 9] {
    let mut weights = [0; 9];
    for (weight, most) in weights.iter_mut().zip([60, 6, 20, 30, 6, 6, 20, 20, 2]) {
        *weight = rng.range(most / 4, most) as u32;
    }
    weights[0] = weights[0].max(20);
    weights
}

fn windows(rng: &mut Rng) -> Vec<usize> {
    let windows = rng.pick(&[
        &[30, 300][..],
        &[100, 2000, 1 << 20],
        &[0, 1 << 20],
        &[1 << 20],
    ]);
    windows.to_vec()
}

/// The partitions, and the homes of a restart.
fn divide(plan: &mut Plan, rng: &mut Rng) {
    plan.partitions = plan.homes + rng.pick(&[0, 1, 2, 5, 12]);
    plan.homes_after = rng.range(1, plan.shards.min(plan.partitions));
}

/// In some worlds: many publishers, which often reconnect, at one home that handles little at a time.
fn press(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(PRESSED_PERCENT) {
        return;
    }
    plan.shards = rng.range(2, 4);
    plan.homes = 1;
    plan.lazy = rng.chance(60).then_some(0);
    plan.mail_percent = 20;
    plan.pace.turns_under_way = rng.pick(&[1, 8]);
    plan.settings.limits.publish_credit_bytes = rng.pick(&[0, 300, 3000]);
    plan.pace.steps_per_turn = rng.pick(&[2, 20, 16_384]);
    plan.publishers = rng.range(4, 8);
    (plan.weights[6], plan.weights[8]) = (40, 10);
}

/// Logs that are long from the beginning, of small messages that stay.
fn hoard(plan: &mut Plan, rng: &mut Rng) {
    plan.hoard = rng.range(10, 20);
    // A turn with steps for one message or visit only would not finish so much work within a run.
    plan.pace.steps_per_turn = rng.pick(&[30, 200]);
    (plan.pace.page_visits, plan.pace.page_messages) = (20, 128);
    (plan.pace.page_bytes, plan.pace.visits_per_turn) = (64 << 10, 4096);
    plan.message_bytes = MESSAGE_BYTES[0];
    plan.mortal_percent = 0;
    for rule in &mut plan.settings.rules {
        (rule.log_messages, rule.log_bytes) = (10_000, 1 << 20);
        (rule.log_age_s, rule.ttl_s) = (3600, 0);
    }
}

/// In some worlds messages live for a short time, and next to nothing waits for a stalled socket.
fn expire(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(EXPIRING_PERCENT) {
        return;
    }
    plan.stalled_s = EXPIRY_S;
    plan.mortal_percent = 60;
    plan.settings.limits.outbox_bytes = 0;
    plan.pace.page_messages = rng.pick(&[1, 3]);
    for rule in &mut plan.settings.rules {
        rule.log_messages = rng.pick(&[20, 1000]);
        rule.log_bytes = 1 << 20;
    }
}

/// In some worlds some of the clients speak MQTT.
fn speak_mqtt(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(PACKETS_PERCENT) {
        return;
    }
    plan.mqtt_clients = rng.range(1, 6);
    let settings = &mut plan.settings.mqtt;
    settings.receive_max = rng.pick(&[1, 3, 100, 100]);
    settings.inflight_max = rng.pick(&[2, 10, 100]);
    settings.session_messages = rng.pick(&[1, 5, 1000, 1000]);
    settings.session_expiry_max_s = rng.pick(&[30, 86_400]);
    settings.topic_aliases_max = rng.pick(&[0, 16]);
    if !plan.budgets_are_wide {
        settings.sessions_max = rng.pick(&[1, 1000, 1000]);
    }
    let (sessions_max, limits) = (settings.sessions_max, &plan.settings.limits);
    // Where connections are few by address, sessions are too.
    settings.sessions_per_address_max = limits.connections_per_address_max;
    let rates = limits.publishes_per_s + limits.publishes_per_address_per_s;
    let wide = limits.connections_max >= 1000 && limits.connections_per_shard >= 1000;
    // The client that removes all retained messages in the end must not be turned away.
    plan.retains =
        rates == 0 && wide && limits.connections_per_address_max == 0 && sessions_max >= 1000;
    // The other worlds test how shortened logs affect subscribers.
    for rule in &mut plan.settings.rules {
        if rng.chance(60) {
            (rule.log_bytes, rule.log_age_s, rule.ttl_s) = (1 << 20, 3600, 0);
        }
    }
}

/// Some worlds have followers of interest.
fn follow(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(FOLLOWED_PERCENT) {
        plan.followers = rng.range(1, 4);
        plan.settings.interest.debounce_s = rng.pick(&[0, 0, 1, 5]);
        plan.settings.interest.followers_max = rng.pick(&[1, 64, 64]);
        plan.pace.interest_rows = rng.pick(&[1, 3, 4096]);
    }
}

/// Some worlds have subscribers by filter, and more topics for them.
fn filter(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(FILTERED_PERCENT) {
        plan.filtered_percent = rng.pick(&[30, 60, 100]);
        plan.pace.page_visits = rng.pick(&[1, 3, 4096]);
        let more = rng.range(0, 6);
        let name = |n| format!("{}/{}", rng.pick(&["a", "b", "c"]), 6 + n);
        plan.topics.extend((0..more).map(name));
    }
}

/// In some worlds subscriptions of an MQTT client overlap.
fn cover(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(COVERS_PERCENT) {
        plan.covered_percent = rng.pick(&[50, 100]);
    }
}

/// Some servers restart.
fn restart(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(RESTARTS_PERCENT) {
        plan.restarts_at = Some(rng.below(1000));
        // The clients are not told: they find their connections closed.
        plan.settings.drain.deadline_s = 0;
    }
}

/// In some worlds a turn may do little, and logs may be long from the beginning.
fn shorten_turns(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(SHORT_TURNS_PERCENT) {
        plan.pace.steps_per_turn = rng.pick(&[1, 4, 30, 200]);
        plan.pace.page_visits = rng.pick(&[1, 3, 20]);
        if rng.chance(HOARDS_PERCENT) {
            hoard(plan, rng);
        }
    }
}

/// In some worlds rules bound the bytes that wait for a socket. Where messages expire before stalled sockets next to
/// nothing waits.
fn bound_outboxes(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(BOUNDS_PERCENT) && plan.stalled_s == 0 {
        for rule in &mut plan.settings.rules {
            rule.outbox_bytes = rng.pick(&[0, 0, 60, 300, 4000]);
            rule.outbox_messages = rng.pick(&[0, 1, 2, 5]);
        }
    }
}

/// In some worlds what homes write goes through an engine.
fn commit(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(ENGINES_PERCENT) {
        plan.engine = Some(Manner {
            goes_on: rng.pick(&[5, 30, 90]),
            loses: rng.pick(&[0, 0, 5, 40]),
            doubles: rng.pick(&[0, 0, 5, 40]),
            reorders: rng.pick(&[0, 0, 5, 40]),
        });
    }
}

/// Some engines are a disk, and their servers crash. Some of these have topics that stand in no log.
fn crash(plan: &mut Plan, rng: &mut Rng) {
    if plan.engine.is_none() || !rng.chance(CRASHES_PERCENT) {
        return;
    }
    plan.segment_bytes = Some(SEGMENT_HEADER + rng.pick(&[500, 2000, 10_000]));
    let mut some = |least| {
        let count = rng.range(least, CRASHES_MAX);
        (0..count).map(|_| rng.below(1000)).collect()
    };
    (plan.crashes_at, plan.checkpoints_at) = (some(1), some(0));
    if rng.chance(50) {
        let at = rng.below(plan.settings.rules.len());
        plan.settings.rules[at].durable = false;
    }
}

/// Some crashes harm the disk. MQTT has no word for a gap.
fn damage(plan: &mut Plan, rng: &mut Rng) {
    if plan.segment_bytes.is_some() && rng.chance(DAMAGES_PERCENT) {
        plan.damages = true;
        (plan.mqtt_clients, plan.retains) = (0, false);
    }
}

/// Some logs are put back from an older copy. MQTT has no word for a gap.
fn put_back(plan: &mut Plan, rng: &mut Rng) {
    if plan.segment_bytes.is_some() && !plan.damages && rng.chance(COPIES_PERCENT) {
        plan.puts_back = true;
        (plan.mqtt_clients, plan.retains) = (0, false);
    }
}

/// Some worlds have several nodes over one log. Other worlds have the state that a node keeps of its own (sessions, interest), and messages that
/// run out or are superseded: a node that is behind does not know of them.
fn cluster(plan: &mut Plan, rng: &mut Rng) {
    if !plan.budgets_are_wide || !rng.chance(CLUSTERS_PERCENT) {
        return;
    }
    plan.nodes = rng.range(2, 3);
    plan.shards = plan.shards.min(2);
    plan.homes = plan.homes.min(plan.shards);
    plan.lazy = plan.lazy.filter(|lazy| *lazy < plan.shards);
    plan.engine = Some(Manner {
        goes_on: rng.pick(&[10, 30, 90]),
        loses: rng.pick(&[0, 0, 5, 20]),
        doubles: rng.pick(&[0, 0, 5, 40]),
        reorders: rng.pick(&[0, 0, 5, 40]),
    });
    let count = rng.range(2, NODE_EVENTS_MAX);
    plan.node_events_at = (0..count).map(|_| rng.below(1000)).collect();
    (plan.restarts_at, plan.segment_bytes) = (None, None);
    (plan.crashes_at, plan.checkpoints_at) = (Vec::new(), Vec::new());
    (plan.followers, plan.mqtt_clients, plan.retains) = (0, 0, false);
    (plan.mortal_percent, plan.stalled_s, plan.hoard) = (0, 0, 0);
    for rule in &mut plan.settings.rules {
        (rule.keep, rule.ttl_s, rule.durable) = (Keep::Log, 0, true);
        rule.position_age_s = REMEMBERS_S;
    }
}

/// In some clusters a steward writes checkpoints and purges the log.
fn purge(plan: &mut Plan, rng: &mut Rng) {
    if plan.nodes > 1 && rng.chance(PURGES_PERCENT) {
        let count = rng.range(1, PURGES_MAX);
        plan.purges_at = (0..count).map(|_| rng.below(1000)).collect();
    }
}

/// In some worlds topics and logs have limits by address.
fn limit_makers(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(MAKERS_PERCENT) && !plan.budgets_are_wide && !plan.retains {
        plan.settings.limits.topics_per_address_per_s = rng.pick(&[1, 2]);
        plan.settings.limits.topics_per_address_burst = rng.pick(&[0, 3]);
        plan.settings.limits.log_bytes_per_address_max = rng.pick(&[0, 300, 3000]);
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
