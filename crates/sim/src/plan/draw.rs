//! Chooses the properties of a simulated world at random from its seed. A world is the servers, network, clients, log and clock of one run.
//!
//! Features that were added later have their own random generators. The seed of such a generator combines the seed of the world and the
//! feature's salt, so a new feature does not change the other properties of old seeds. A percentage is the share of all worlds, unless its
//! comment names a subset.

use crore_broker::TurnLimits;
use crore_broker::settings::{
    Limits, RetentionMode, Rule, Settings, SlowConsumerPolicy, StartPosition,
};
use crore_rng::Rng;

use super::{MEMORY_BYTES, Plan};
use crate::engine::EngineBehavior;

/// The salt of worlds in which publishers soon use up their credit.
const SALT_LOW_CREDIT: u64 = 0xC4ED_1750;
const LOW_CREDIT_PERCENT: u32 = 15;
/// The salt of two features: followers of interest, which are clients that receive the list of topics with subscribers, and messages that
/// expire while sockets are stalled. The older seeds of `tests/seeds.rs` have neither.
const SALT_FOLLOWERS: u64 = 37;
const FOLLOWED_PERCENT: u32 = 40;
/// The salt of subscribers by filter.
const SALT_FILTERED: u64 = 0xF117_E250;
const FILTERED_PERCENT: u32 = 40;
const EXPIRING_PERCENT: u32 = 15;
/// The time for which sockets are stalled, in seconds. It is longer than most times to live, so that messages expire meanwhile. It is
/// shorter than the time after which the server closes a stalled connection.
const EXPIRY_S: u32 = 4;
/// The salt of MQTT clients.
const SALT_MQTT: u64 = 7;
const MQTT_PERCENT: u32 = 40;
/// The salt of MQTT clients that also subscribe to `#`.
const SALT_WILDCARDS: u64 = 0xC07E_4503;
const WILDCARDS_PERCENT: u32 = 50;
/// The salt of planned restarts.
const SALT_RESTARTS: u64 = 11;
const RESTARTS_PERCENT: u32 = 30;
/// The salt of WebSockets whose messages come in envelopes.
const SALT_ENVELOPES: u64 = 46;
const ENVELOPES_PERCENT: u32 = 30;
/// The salt of rules that limit outboxes.
const SALT_BOUNDS: u64 = 314;
const BOUNDS_PERCENT: u32 = 30;
/// The salt of the number of messages and idle topics that a home forgets in a turn.
const SALT_FORGETS: u64 = 733;
/// The salt of the number of bytes that an outbox sends at once.
const SALT_WRITES: u64 = 0x0A7B_0C5E;
/// The salt of the number of partitions, and of the number of homes after a restart.
const SALT_PARTITIONS: u64 = 0x9A27_1710;
/// The salt of engines. An engine stores the log of a server; a world without an engine keeps everything in memory.
const SALT_ENGINES: u64 = 0xE261_3E50;
const ENGINES_PERCENT: u32 = 35;
/// The salt of crashes.
const SALT_CRASHES: u64 = 0xC4A5_4E55;
/// Of the worlds with an engine, the percentage in which the server crashes.
const CRASHES_PERCENT: u32 = 40;
/// The salt of MQTT sessions that survive a crash.
const SALT_DURABLE_SESSIONS: u64 = 0xD02A_5E55;
/// The salt of the subscriptions in worlds with such sessions.
const SALT_SUBSCRIPTIONS: u64 = 0x5AB5_0905;
/// Of the worlds of the seeds from [`CLUSTERS_FROM`] on that have MQTT clients and a log on disk, the percentage in which MQTT sessions survive a crash.
const DURABLE_SESSIONS_PERCENT: u32 = 50;
/// The salt of clusters with MQTT sessions.
const SALT_CLUSTER_SESSIONS: u64 = 0xC15E_5510;
/// The salt of packet ids.
const SALT_PACKET_IDS: u64 = 0x1D50_0123;
/// The salt of clusters.
const SALT_CLUSTERS: u64 = 0xC105_7E25;
/// The salt of clients of Centrifugo's protocol.
const SALT_CENTRIFUGO: u64 = 0xCE27_21F0;
/// The salt of connections over TCP.
const SALT_TCP: u64 = 0x7C90_0057;
/// The first seed of those whose worlds all have connections over the product's own TCP, up to [`CENTRIFUGO_FROM`].
pub const TCP_FROM: u64 = 1 << 57;
/// The first seed of those whose worlds all have clients of Centrifugo's protocol, up to [`CLUSTER_SESSIONS_FROM`].
pub const CENTRIFUGO_FROM: u64 = 1 << 58;
/// The first seed of those whose worlds are all clusters with MQTT sessions, up to [`DURABLE_SESSIONS_FROM`].
pub const CLUSTER_SESSIONS_FROM: u64 = 1 << 59;
/// The first seed of those in whose worlds MQTT clients may use few packet ids, up to [`DURABLE_SESSIONS_FROM`].
pub const FEW_PACKET_IDS_FROM: u64 = CLUSTER_SESSIONS_FROM + (1 << 58);
/// The first seed of those whose worlds all have MQTT sessions that survive a crash, up to [`CLUSTERS_FROM`].
pub const DURABLE_SESSIONS_FROM: u64 = 1 << 60;
/// The first seed of those in whose worlds with durable sessions the subscriptions may be steadier. `seeds.rs` has earlier seeds, whose worlds stay as they
/// are.
pub const STEADY_SUBSCRIPTIONS_FROM: u64 = DURABLE_SESSIONS_FROM + (1 << 59);
/// The first seed whose world may be a cluster or have a damaged disk.
pub const CLUSTERS_FROM: u64 = 1 << 61;
/// The first seed in whose world an older copy may replace the log. These seeds are separate, because some of their runs fail although the
/// server is right: the simulator does not know exactly which gaps (notices that messages are lost) the server may report to readers of
/// such a log.
pub const COPIES_FROM: u64 = 1 << 62;
/// Of the worlds with wide budgets, the percentage that are clusters.
const CLUSTERS_PERCENT: u32 = 12;
/// The salt of damaged disks.
const SALT_DAMAGES: u64 = 0xDA3A_6E50;
/// Of the worlds with crashes, the percentage in which crashes damage the disk.
const DAMAGES_PERCENT: u32 = 60;
/// The salt of compactions that replace the documents of a base one by one.
const SALT_IN_PLACE: u64 = 0x1291_ACE0;
const IN_PLACE_PERCENT: u32 = 50;
/// The salt of older copies that replace the log.
const SALT_COPIES: u64 = 0xBAC4_0BEE;
/// Of the worlds with crashes and without damaged disks, the percentage in which an older copy replaces the log.
const COPIES_PERCENT: u32 = 80;
/// The maximum number of events of nodes in a world: pauses, cuts and losses.
const NODE_EVENTS_MAX: usize = 12;
/// The salt of purges of a cluster's log.
const SALT_PURGES: u64 = 0x9026_E5ED;
/// Of the clusters, the percentage in which the log is purged.
const PURGES_PERCENT: u32 = 50;
/// The maximum number of purges in a world.
const PURGES_MAX: usize = 8;
/// The position age of all topics of a cluster. It is longer than the steps of a run take, so that no node forgets a topic that has
/// subscribers only at other nodes.
const POSITION_AGE_S: u32 = 50_000;
/// The maximum number of crashes in a world, and of compactions.
const CRASHES_MAX: usize = 3;
/// Bytes of a segment's header.
const SEGMENT_HEADER: u64 = 4096;
/// The salt of limits of topics and log bytes for each client address.
const SALT_TOPIC_LIMITS: u64 = 361;
/// Of the worlds with narrow budgets and without RETAIN, the percentage that have these limits.
const TOPIC_LIMITS_PERCENT: u32 = 30;
/// The salt of wall clocks that jump.
const SALT_WALL: u64 = 0x3A11_C10C;
const WALL_PERCENT: u32 = 40;
/// The salt of short turns.
const SALT_SHORT_TURNS: u64 = 0x57E9_5101;
const SHORT_TURNS_PERCENT: u32 = 35;
/// Of the worlds with short turns, the percentage in which logs are long from the beginning.
const LONG_LOGS_PERCENT: u32 = 15;
/// The number of connections that a tick examines. It is small, so that the examination of all connections takes several turns.
const ROWS_PER_TICK: u32 = 3;
/// The idempotency window. It is longer than the steps of a run take, so that the server recognizes every retry. It is shorter than the
/// time that passes at the end of a run, so that the server then forgets all keys.
const IDEMPOTENCY_WINDOW_S: u32 = 86_400;
/// Choices for the largest message in bytes. With a larger message the byte budget of a log would have no effect.
const MESSAGE_BYTES: [usize; 4] = [8, 60, 400, 3000];

/// Whether the world of this seed has connections over the product's own TCP.
pub fn is_over_tcp(seed: u64) -> bool {
    (TCP_FROM..CENTRIFUGO_FROM).contains(&seed)
}

/// Whether the world of this seed has clients of Centrifugo's protocol.
pub fn has_centrifugo_clients(seed: u64) -> bool {
    (CENTRIFUGO_FROM..CLUSTER_SESSIONS_FROM).contains(&seed)
}

/// Whether the world of this seed is a cluster with MQTT sessions.
pub fn has_cluster_sessions(seed: u64) -> bool {
    (CLUSTER_SESSIONS_FROM..DURABLE_SESSIONS_FROM).contains(&seed)
}

impl Plan {
    /// Chooses the properties of this seed's world.
    pub fn new(seed: u64) -> Plan {
        let rng_of = |salt: u64| Rng::new(seed ^ salt);
        let are_sessions_durable = (DURABLE_SESSIONS_FROM..CLUSTERS_FROM).contains(&seed);
        let has_cluster_sessions = has_cluster_sessions(seed);
        let percent = |usual| match are_sessions_durable {
            true => 100,
            false => usual,
        };
        let mut plan = basic_world(&mut rng_of(0x5EED_0F51));
        lower_credit(&mut plan, &mut rng_of(SALT_LOW_CREDIT));
        let mut followers_rng = rng_of(SALT_FOLLOWERS);
        add_followers(&mut plan, &mut followers_rng);
        add_stalled_sockets(&mut plan, &mut followers_rng);
        add_filters(&mut plan, &mut rng_of(SALT_FILTERED));
        add_mqtt_clients(&mut plan, percent(MQTT_PERCENT), &mut rng_of(SALT_MQTT));
        add_wildcards(&mut plan, &mut rng_of(SALT_WILDCARDS));
        add_restart(&mut plan, &mut rng_of(SALT_RESTARTS));
        shorten_turns(&mut plan, &mut rng_of(SALT_SHORT_TURNS));
        plan.envelopes = rng_of(SALT_ENVELOPES).chance(ENVELOPES_PERCENT);
        plan.turn_limits.removals_per_turn = rng_of(SALT_FORGETS).pick(&[1, 1, 256]);
        plan.part_bytes = rng_of(SALT_WRITES).pick(&[100, 3_000, 64 << 10]);
        bound_outboxes(&mut plan, &mut rng_of(SALT_BOUNDS));
        limit_topic_creation(&mut plan, &mut rng_of(SALT_TOPIC_LIMITS));
        choose_partitions(&mut plan, &mut rng_of(SALT_PARTITIONS));
        add_engine(
            &mut plan,
            percent(ENGINES_PERCENT),
            &mut rng_of(SALT_ENGINES),
        );
        add_crashes(
            &mut plan,
            percent(CRASHES_PERCENT),
            &mut rng_of(SALT_CRASHES),
        );
        if seed >= CLUSTERS_FROM {
            add_nodes(&mut plan, CLUSTERS_PERCENT, &mut rng_of(SALT_CLUSTERS));
            add_disk_damage(&mut plan, &mut rng_of(SALT_DAMAGES));
            add_purges(&mut plan, &mut rng_of(SALT_PURGES));
            plan.replaces_in_place = rng_of(SALT_IN_PLACE).chance(IN_PLACE_PERCENT);
        }
        if has_cluster_sessions {
            add_cluster_sessions(&mut plan, &mut rng_of(SALT_CLUSTER_SESSIONS));
            if seed >= FEW_PACKET_IDS_FROM {
                use_few_packet_ids(&mut plan, &mut rng_of(SALT_PACKET_IDS));
            }
        }
        if is_over_tcp(seed) {
            plan.tcp_percent = rng_of(SALT_TCP).pick(&[30, 100]);
        }
        if has_centrifugo_clients(seed) {
            add_centrifugo_clients(&mut plan, &mut rng_of(SALT_CENTRIFUGO));
        }
        if seed >= COPIES_FROM {
            add_log_restore(&mut plan, &mut rng_of(SALT_COPIES));
        }
        plan.wall_clock_jumps = rng_of(SALT_WALL).chance(WALL_PERCENT);
        let durable_percent = match seed {
            0..DURABLE_SESSIONS_FROM => 0,
            DURABLE_SESSIONS_FROM..CLUSTERS_FROM => 100,
            CLUSTERS_FROM.. => DURABLE_SESSIONS_PERCENT,
        };
        make_sessions_durable(
            &mut plan,
            durable_percent,
            &mut rng_of(SALT_DURABLE_SESSIONS),
        );
        if seed >= STEADY_SUBSCRIPTIONS_FROM && plan.settings.mqtt.durable_sessions {
            keep_subscriptions(&mut plan, &mut rng_of(SALT_SUBSCRIPTIONS));
        }
        plan
    }
}

/// The properties that every world has: shards, settings, turn limits, network, topics, and subscribers and publishers over HTTP.
fn basic_world(rng: &mut Rng) -> Plan {
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
        turn_limits: TurnLimits {
            visits_per_turn: rng.pick(&[1, 3, 4096]),
            page_messages: rng.pick(&[1, 3, 128]),
            page_bytes: rng.pick(&[100, 64 << 10]),
            backpressure_turns: rng.pick(&[1, 8, 64]),
            // A real server counts some KiB for each publish in flight, besides the message. These KiB would exceed the small credit of a
            // world.
            publish_credit_bytes: 0,
            // With 0 the run also tests prefetching, which a real home does only if its tables are large.
            prefetch_from_rows: 0,
            rows_per_tick: ROWS_PER_TICK,
            ends_per_tick: 2,
            ..TurnLimits::default()
        },
        part_bytes: usize::MAX,
        subscribers: rng.range(1, 14),
        publishers: rng.range(1, 4),
        followers: 0,
        filtered_percent: 0,
        envelopes: false,
        centrifugo_clients: 0,
        mqtt_clients: 0,
        wildcard_percent: 0,
        retains: false,
        subscription_qos_max: 2,
        subscriptions_stay: false,
        packet_ids_max: u16::MAX,
        stalled_s: 0,
        message_bytes: rng.pick(&MESSAGE_BYTES),
        ttl_percent: rng.pick(&[0, 0, 30]),
        partial_send_percent: rng.pick(&[0, 5, 40]),
        tcp_percent: 0,
        mail_percent: rng.pick(&[20, 60, 95]),
        budgets_are_wide,
        engine: None,
        restarts_at: None,
        crashes_at: Vec::new(),
        compactions_at: Vec::new(),
        replaces_in_place: false,
        disk_damage: false,
        restores_old_log: false,
        segment_bytes: None,
        preload: 0,
        wall_clock_jumps: false,
        starved_shard: rng.chance(30).then(|| rng.below(shards)),
    }
}

fn settings(homes: usize, budgets_are_wide: bool, rng: &mut Rng) -> Settings {
    let mut settings = Settings::default();
    let limits = &mut settings.limits;
    limits.outbox_bytes = rng.pick(&[0, 100, 500, 4000, 1 << 20]);
    limits.memory_bytes = MEMORY_BYTES;
    limits.publish_credit_bytes = rng.pick(&[0, 300, 3000, 1 << 20]);
    if !budgets_are_wide {
        // Each home needs 32 KiB, because its table of idempotency keys takes 29 KiB from the first key on.
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

/// Chooses the number of partitions, and the number of homes after a planned restart.
fn choose_partitions(plan: &mut Plan, rng: &mut Rng) {
    plan.partitions = plan.homes + rng.pick(&[0, 1, 2, 5, 12]);
    plan.homes_after = rng.range(1, plan.shards.min(plan.partitions));
}

/// Makes some worlds in which publishers soon use up their credit: they are many, reconnect often, and overload the only home, which
/// handles little at a time.
fn lower_credit(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(LOW_CREDIT_PERCENT) {
        return;
    }
    plan.shards = rng.range(2, 4);
    plan.homes = 1;
    plan.starved_shard = rng.chance(60).then_some(0);
    plan.mail_percent = 20;
    plan.turn_limits.backpressure_turns = rng.pick(&[1, 8]);
    plan.settings.limits.publish_credit_bytes = rng.pick(&[0, 300, 3000]);
    plan.turn_limits.steps_per_turn = rng.pick(&[2, 20, 16_384]);
    plan.publishers = rng.range(4, 8);
    (plan.weights[6], plan.weights[8]) = (40, 10);
}

/// Makes logs long before the first step, with small messages that do not expire.
fn lengthen_logs(plan: &mut Plan, rng: &mut Rng) {
    plan.preload = rng.range(10, 20);
    // With turns of a single step, a run would not finish the work on such long logs.
    plan.turn_limits.steps_per_turn = rng.pick(&[30, 200]);
    (
        plan.turn_limits.page_entries,
        plan.turn_limits.page_messages,
    ) = (20, 128);
    plan.turn_limits.page_bytes = 64 << 10;
    plan.turn_limits.visits_per_turn = 4096;
    plan.message_bytes = MESSAGE_BYTES[0];
    plan.ttl_percent = 0;
    for rule in &mut plan.settings.rules {
        (rule.log_messages, rule.log_bytes) = (10_000, 1 << 20);
        (rule.log_age_s, rule.ttl_s) = (3600, 0);
    }
}

/// Makes some worlds in which sockets are stalled for a time at the end, and most messages expire within that time. Outboxes are small, so
/// that these messages wait in the log, where they expire.
fn add_stalled_sockets(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(EXPIRING_PERCENT) {
        return;
    }
    plan.stalled_s = EXPIRY_S;
    plan.ttl_percent = 60;
    plan.settings.limits.outbox_bytes = 0;
    plan.turn_limits.page_messages = rng.pick(&[1, 3]);
    for rule in &mut plan.settings.rules {
        rule.log_messages = rng.pick(&[20, 1000]);
        rule.log_bytes = 1 << 20;
    }
}

/// Some worlds have MQTT clients.
fn add_mqtt_clients(plan: &mut Plan, percent: u32, rng: &mut Rng) {
    if !rng.chance(percent) {
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
    // An address may have as many sessions as connections.
    settings.sessions_per_address_max = limits.connections_per_address_max;
    let rates = limits.publishes_per_s + limits.publishes_per_address_per_s;
    let wide = limits.connections_max >= 1000 && limits.connections_per_shard >= 1000;
    // At the end a client removes all retained messages, so messages are retained only in worlds whose limits cannot refuse this client.
    plan.retains =
        rates == 0 && wide && limits.connections_per_address_max == 0 && sessions_max >= 1000;
    // Most rules keep long logs here, because worlds without MQTT already test how short logs affect subscribers.
    for rule in &mut plan.settings.rules {
        if rng.chance(60) {
            (rule.log_bytes, rule.log_age_s, rule.ttl_s) = (1 << 20, 3600, 0);
        }
    }
}

/// Gives the world clients of Centrifugo's protocol. Most rules keep long logs, so that most subscriptions recover.
fn add_centrifugo_clients(plan: &mut Plan, rng: &mut Rng) {
    plan.centrifugo_clients = rng.range(1, 6);
    let settings = &mut plan.settings.centrifugo;
    settings.enabled = true;
    settings.ping_interval_s = rng.pick(&[0, 25]);
    for rule in &mut plan.settings.rules {
        if rng.chance(60) {
            (rule.log_bytes, rule.log_age_s, rule.ttl_s) = (1 << 20, 3600, 0);
        }
    }
}

/// Gives some worlds followers of interest: clients that receive the list of topics with subscribers.
fn add_followers(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(FOLLOWED_PERCENT) {
        plan.followers = rng.range(1, 4);
        plan.settings.interest.debounce_s = rng.pick(&[0, 0, 1, 5]);
        plan.settings.interest.followers_max = rng.pick(&[1, 64, 64]);
        plan.turn_limits.interest_page_topics = rng.pick(&[1, 3, 4096]);
    }
}

/// Gives some worlds subscribers by filter, and additional topics for them.
fn add_filters(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(FILTERED_PERCENT) {
        plan.filtered_percent = rng.pick(&[30, 60, 100]);
        plan.turn_limits.page_entries = rng.pick(&[1, 3, 4096]);
        let count = rng.range(0, 6);
        let name = |n| format!("{}/{}", rng.pick(&["a", "b", "c"]), 6 + n);
        plan.topics.extend((0..count).map(name));
    }
}

/// Lets MQTT clients of some worlds also subscribe to `#`, which overlaps their other subscriptions.
fn add_wildcards(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(WILDCARDS_PERCENT) {
        plan.wildcard_percent = rng.pick(&[50, 100]);
    }
}

/// Gives some worlds a planned restart of the server.
fn add_restart(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(RESTARTS_PERCENT) {
        plan.restarts_at = Some(rng.below(1000));
        // Clients get no notice of the restart: they find their connections closed.
        plan.settings.drain.deadline_s = 0;
    }
}

/// Makes turns short in some worlds. In some of these worlds, logs are also long from the beginning.
fn shorten_turns(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(SHORT_TURNS_PERCENT) {
        plan.turn_limits.steps_per_turn = rng.pick(&[1, 4, 30, 200]);
        plan.turn_limits.page_entries = rng.pick(&[1, 3, 20]);
        if rng.chance(LONG_LOGS_PERCENT) {
            lengthen_logs(plan, rng);
        }
    }
}

/// Limits outboxes by rules in some worlds. Worlds with stalled sockets have small outboxes already.
fn bound_outboxes(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(BOUNDS_PERCENT) && plan.stalled_s == 0 {
        for rule in &mut plan.settings.rules {
            rule.outbox_bytes = rng.pick(&[0, 0, 60, 300, 4000]);
            rule.outbox_messages = rng.pick(&[0, 1, 2, 5]);
        }
    }
}

/// In some worlds homes write their changes of topics (facts) to an engine.
fn add_engine(plan: &mut Plan, percent: u32, rng: &mut Rng) {
    if rng.chance(percent) {
        plan.engine = Some(EngineBehavior::draw(&[5, 30, 90], [0, 0, 5, 40], rng));
    }
}

/// Lets the server crash in some worlds with an engine, which is then a log on disk. In half of these worlds, the topics of one rule are
/// not durable.
fn add_crashes(plan: &mut Plan, percent: u32, rng: &mut Rng) {
    if plan.engine.is_none() || !rng.chance(percent) {
        return;
    }
    plan.segment_bytes = Some(SEGMENT_HEADER + rng.pick(&[500, 2000, 10_000]));
    let mut random_times = |least| {
        let count = rng.range(least, CRASHES_MAX);
        (0..count).map(|_| rng.below(1000)).collect()
    };
    plan.crashes_at = random_times(1);
    plan.compactions_at = random_times(0);
    if rng.chance(50) {
        let at = rng.below(plan.settings.rules.len());
        plan.settings.rules[at].durable = false;
    }
}

/// In some worlds with crashes the log has records of MQTT sessions, so that sessions survive a crash. The log is rarely slow there: clients would
/// give up before the server has answered.
fn make_sessions_durable(plan: &mut Plan, percent: u32, rng: &mut Rng) {
    let has_disk = plan.segment_bytes.is_some();
    let engine = plan.engine.as_mut().filter(|_| has_disk);
    if let Some(engine) = engine
        && plan.mqtt_clients > 0
        && rng.chance(percent)
    {
        plan.settings.mqtt.durable_sessions = true;
        engine.progress = rng.pick(&[5, 30, 90, 90]);
        if rng.chance(60) {
            // Nothing but a crash takes messages from a session.
            plan.ttl_percent = 0;
            plan.settings.mqtt.session_messages = 1000;
            for rule in &mut plan.settings.rules {
                (rule.log_bytes, rule.log_age_s, rule.ttl_s) = (1 << 20, 3600, 0);
            }
        }
    }
}

/// In half of the worlds with durable sessions no subscription has QoS 2: the record of a session with QoS 2 has the messages in flight, and only other
/// records have lower positions instead. In half of them no subscription changes, so that overlapping ones are checked to the end.
fn keep_subscriptions(plan: &mut Plan, rng: &mut Rng) {
    plan.subscription_qos_max = rng.pick(&[1, 2]);
    plan.subscriptions_stay = rng.chance(50);
}

/// In some worlds crashes damage the disk. These worlds have no MQTT clients, because MQTT cannot report a gap.
fn add_disk_damage(plan: &mut Plan, rng: &mut Rng) {
    if plan.segment_bytes.is_some() && rng.chance(DAMAGES_PERCENT) {
        plan.disk_damage = true;
        (plan.mqtt_clients, plan.retains) = (0, false);
    }
}

/// Lets an older copy replace the log after a crash in some worlds. These worlds have no MQTT clients, because MQTT cannot report a gap.
fn add_log_restore(plan: &mut Plan, rng: &mut Rng) {
    if plan.segment_bytes.is_some() && !plan.disk_damage && rng.chance(COPIES_PERCENT) {
        plan.restores_old_log = true;
        // The base of a copy contains nothing that the log of the copy lacks.
        plan.replaces_in_place = false;
        (plan.mqtt_clients, plan.retains) = (0, false);
    }
}

/// Makes some worlds clusters, in which several nodes share one log.
///
/// Nodes do not share interest, so a cluster has no followers. It has MQTT clients only with [`add_cluster_sessions`]. A node that lags does not know yet which
/// messages have expired or are superseded, so no message of a cluster expires or is superseded.
fn add_nodes(plan: &mut Plan, percent: u32, rng: &mut Rng) {
    if !plan.budgets_are_wide || !rng.chance(percent) {
        return;
    }
    plan.nodes = rng.range(2, 3);
    plan.shards = plan.shards.min(2);
    plan.homes = plan.homes.min(plan.shards);
    plan.starved_shard = plan.starved_shard.filter(|lazy| *lazy < plan.shards);
    plan.engine = Some(EngineBehavior::draw(&[10, 30, 90], [0, 0, 5, 20], rng));
    let count = rng.range(2, NODE_EVENTS_MAX);
    plan.node_events_at = (0..count).map(|_| rng.below(1000)).collect();
    (plan.restarts_at, plan.segment_bytes) = (None, None);
    (plan.crashes_at, plan.compactions_at) = (Vec::new(), Vec::new());
    (plan.followers, plan.mqtt_clients, plan.retains) = (0, 0, false);
    (plan.ttl_percent, plan.stalled_s, plan.preload) = (0, 0, 0);
    for rule in &mut plan.settings.rules {
        (rule.keep, rule.ttl_s, rule.durable) = (RetentionMode::Log, 0, true);
        rule.position_age_s = POSITION_AGE_S;
    }
}

/// Makes the world a cluster with MQTT clients, which find their sessions at every node.
fn add_cluster_sessions(plan: &mut Plan, rng: &mut Rng) {
    plan.budgets_are_wide = true;
    let limits = &plan.settings.limits;
    plan.settings.limits = Limits {
        memory_bytes: MEMORY_BYTES,
        outbox_bytes: limits.outbox_bytes,
        publish_credit_bytes: limits.publish_credit_bytes,
        ..Settings::default().limits
    };
    plan.mqtt_clients = 0;
    add_mqtt_clients(plan, 100, rng);
    let mqtt_clients = plan.mqtt_clients;
    add_nodes(plan, 100, rng);
    plan.mqtt_clients = mqtt_clients;
    let mqtt = &mut plan.settings.mqtt;
    mqtt.durable_sessions = true;
    // At the end of a run all sessions expire, and then their topics.
    mqtt.session_expiry_max_s = mqtt.session_expiry_max_s.min(3600);
    add_purges(plan, rng);
}

/// Lets MQTT clients of most clusters use the same packet ids again and again. Shards get more turns there, the log is faster, and less happens to nodes, so
/// that more handshakes of QoS 2 are completed.
fn use_few_packet_ids(plan: &mut Plan, rng: &mut Rng) {
    plan.packet_ids_max = rng.pick(&[1, 2, 3, 3, u16::MAX]);
    let [turns, seconds, ..] = &mut plan.weights;
    (*turns, *seconds) = (500, rng.pick(&[1, 3, 6]));
    (plan.mail_percent, plan.starved_shard) = (rng.pick(&[60, 95]), None);
    plan.turn_limits.steps_per_turn = plan.turn_limits.steps_per_turn.max(200);
    plan.node_events_at
        .truncate(rng.pick(&[2, 4, NODE_EVENTS_MAX]));
    if let Some(engine) = &mut plan.engine {
        engine.progress = rng.pick(&[30, 90, 90]);
    }
}

/// Lets the log be purged in some clusters. A steward (the node that writes checkpoints for a partition) purges the batches that
/// checkpoints contain.
fn add_purges(plan: &mut Plan, rng: &mut Rng) {
    if plan.nodes > 1 && rng.chance(PURGES_PERCENT) {
        let count = rng.range(1, PURGES_MAX);
        plan.purges_at = (0..count).map(|_| rng.below(1000)).collect();
    }
}

/// Limits new topics and log bytes for each client address in some worlds.
fn limit_topic_creation(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(TOPIC_LIMITS_PERCENT) && !plan.budgets_are_wide && !plan.retains {
        plan.settings.limits.topics_per_address_per_s = rng.pick(&[1, 2]);
        plan.settings.limits.topics_per_address_burst = rng.pick(&[0, 3]);
        plan.settings.limits.log_bytes_per_address_max = rng.pick(&[0, 300, 3000]);
    }
}

fn rule(filter: &str, rng: &mut Rng) -> Rule {
    Rule {
        filter: filter.into(),
        keep: rng.pick(&[
            RetentionMode::Log,
            RetentionMode::Log,
            RetentionMode::Latest,
        ]),
        keys_max: rng.pick(&[1, 3, 1000, 1000]),
        ttl_s: rng.pick(&[0, 0, 0, 0, 3, 30]),
        log_messages: rng.pick(&[0, 1, 3, 20, 20, 1000]),
        log_bytes: rng.pick(&[300, 4000, 1 << 20, 1 << 20]),
        log_age_s: rng.pick(&[3, 20, 3600, 3600]),
        position_age_s: rng.pick(&[2, 3600, 3600]),
        first: rng.pick(&[
            StartPosition::ByTransport,
            StartPosition::ByTransport,
            StartPosition::Oldest,
            StartPosition::Live,
            StartPosition::Newest(2),
        ]),
        poll_timeout_s: rng.pick(&[0, 2, 30]),
        poll_timeout_status: rng.pick(&[204, 408]),
        slow: rng.pick(&[SlowConsumerPolicy::Disconnect, SlowConsumerPolicy::Skip]),
        ..Rule::default()
    }
}
