//! The ranges of all settings, and the combinations that could never work.
//!
//! All problems are found, not only the first, so that one run shows them all.

use std::net::SocketAddr;

use crore_broker::rules::RULES_MAX;
use crore_broker::settings::{
    Deflate, Drain, Heartbeat, Http, Interest, Limits, Mqtt, Publishing, Rule, Timeouts,
};
use crore_broker::{PartitionId, SLOTS};

use crore_wire::http::origin::normal;
use crore_wire::topic::{check_filter, covers};

use super::forms::{overlap, path_prefix};
use crate::access::Checks;
use crate::settings::file::{File, RuleEntry};
use crate::settings::problems::{Check, Problem, ranges, size};

/// A topic hashes to one of 256 slots; more shards than that would share none of the work.
pub const MAX_SHARDS: usize = 256;

/// The largest thing that one client sends or is sent takes so small a share of what all together may make the server hold.
pub(super) const MEMORY_SHARES: usize = 4;

/// Rows are linked by 32-bit indices, one value of which means none.
const MAX_ROWS: usize = u32::MAX as usize - 1;

/// A heartbeat more often than this costs more than all else that an idle connection does.
const MIN_HEARTBEAT_S: u32 = 5;

/// A day: a peer that was silent for longer is not coming back.
const MAX_WAIT_S: u32 = 86_400;

/// One message must never take a shard's turn for long, and some of the work on it is done in one go: it is copied, and made into JSON or an
/// event. At this size the worst bytes (line ends, which become seven bytes of an event each) take some 50 ms; those of 64 MiB take 350 ms,
/// and half a gigabyte.
const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// A batch is held whole before its first line is published, and may be one line, which is parsed in one go: some 60 ms for the worst bytes
/// at this size.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// Every answer line of a batch waits until the last one is known.
const MAX_BATCH_LINES: usize = 100_000;

/// Below this no ordinary browser's request fits.
const MIN_HEAD_BYTES: usize = 1 << 10;

/// A head is parsed anew as its pieces arrive; a limit keeps that cheap.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// A name stands in every frame that carries its topic; the broker's settings fix this bound.
const MAX_TOPIC_BYTES: usize = 1_000;

/// Every position of a set of topics goes into one header line.
const MAX_TOPICS_PER_CONNECTION: usize = 1_000;

/// A smaller budget than this could not keep one message of the default limit.
const MIN_LOG_BYTES: usize = 1 << 20;

/// Below this the kernel's least would hold instead, and a message would take many turns.
const MIN_SEND_BUFFER_BYTES: usize = 4 << 10;

/// More than this is more than `net.ipv4.tcp_wmem` lets the kernel take by itself.
const MAX_SEND_BUFFER_BYTES: usize = 64 << 20;

/// The kernel keeps a queue's length in 16 bits on older releases.
const MAX_BACKLOG: u32 = 65_535;

/// An hour: a topic that has had no subscriber for so long has none.
const MAX_DEBOUNCE_S: u32 = 3_600;

/// Each change of each topic is compared with every follower's filter.
const MAX_FOLLOWERS: u32 = 65_536;

/// A whole snapshot is walked for a subscriber that reads a part of it.
const MAX_KEYS: u32 = 1_000_000;

/// It stands in a packet of its own to each client.
const MAX_REFERENCE_BYTES: usize = 1_000;

/// An hour: a browser that waits longer to reconnect looks broken.
const MAX_RETRY_MS: u32 = 3_600_000;

/// All that is wrong with `file`; `insecure` permits addresses besides the loopback.
pub fn problems(file: &File, insecure: bool) -> Vec<Problem> {
    let mut check = Check::default();
    listen(&mut check, &file.listen, insecure || file.access.is_some());
    check.zero_or("shards", file.shards, "one for each core", 1..=MAX_SHARDS);
    check.range("partitions", file.partitions, 1..=SLOTS as PartitionId);
    check.range("backlog", file.backlog, 1..=MAX_BACKLOG);
    http(&mut check, &file.http);
    limits(&mut check, &file.limits);
    timeouts(&mut check, &file.timeouts);
    heartbeat(&mut check, &file.heartbeat);
    deflate(&mut check, &file.deflate);
    publish(&mut check, &file.publish);
    interest(&mut check, &file.interest);
    mqtt(&mut check, &file.mqtt);
    access(&mut check, file);
    file.admin.check(&mut check, &file.listen);
    drain(&mut check, &file.drain);
    file.state.check(&mut check);
    cluster(&mut check, file);
    file.tls.check(&mut check);
    if file.rules.len() > RULES_MAX {
        let what = format!(
            "{} rules, with the one that --keep adds where none is for all topics; write at most {RULES_MAX}",
            file.rules.len()
        );
        check.fail("rule", what);
    }
    for (index, entry) in file.rules.iter().enumerate() {
        rule(&mut check, index + 1, &entry.0, &file.limits);
        if let Some(earlier) = file.rules[..index]
            .iter()
            .position(|other| other.0.filter == entry.0.filter)
        {
            let what = format!(
                "repeats the filter of rule[{}] and would never apply; remove one",
                earlier + 1
            );
            check.fail(format!("rule[{}].match", index + 1), what);
        }
    }
    check.problems
}

/// What is right and has no effect: rules behind one that matches all their topics.
pub fn idle(file: &File) -> Vec<Problem> {
    let mut check = Check::default();
    for (index, entry) in file.rules.iter().enumerate() {
        let filter = &entry.0.filter;
        let is_before = |other: &RuleEntry| covers(other.0.filter.as_bytes(), filter.as_bytes());
        if let Some(earlier) = file.rules[..index].iter().position(is_before) {
            let (number, wider) = (earlier + 1, &file.rules[earlier].0.filter);
            let what = format!(
                "`{filter}` is never reached: rule[{number}] (`{wider}`) stands before it and matches all its topics; put it before that one, or remove it"
            );
            check.fail(format!("rule[{}].match", index + 1), what);
        }
    }
    check.problems
}

/// A node of a cluster keeps nothing, and all its topics stand in the log.
fn cluster(check: &mut Check, file: &File) {
    file.cluster.check(check);
    if !file.cluster.is_on() {
        return;
    }
    if file.state.directory().is_some() {
        let what = "stands beside [cluster], whose log is in NATS: a node keeps nothing on disk; remove it, or cluster.urls";
        check.fail("state.directory", what);
    }
    if !file.state.durable {
        let what = "is off, and in a cluster every message stands in the log; remove it";
        check.fail("state.durable", what);
    }
    for (index, entry) in file.rules.iter().enumerate() {
        if !entry.0.durable {
            let what = "is off, and in a cluster every topic stands in the log, since other nodes learn of it there; remove it";
            check.fail(format!("rule[{}].durable", index + 1), what);
        }
    }
}

/// Checks the rights with the files that they name, and the rules that open topics to everybody.
fn access(check: &mut Check, file: &File) {
    let Some(access) = &file.access else {
        for (index, entry) in file.rules.iter().enumerate() {
            if !entry.0.open.is_empty() {
                let what = format!(
                    "opens {} to everybody, which without [access] is open to everybody everywhere; write a table [access], or remove the key",
                    entry.0.filter
                );
                check.fail(format!("rule[{}].open", index + 1), what);
            }
        }
        return;
    };
    access.check(check);
    if let Err(errors) = Checks::new(access) {
        for (path, what) in errors {
            check.fail(path, what);
        }
    }
}

/// Whether others than this machine's own processes may reach it: then the settings must say what clients may do.
pub(super) fn is_exposed(address: &SocketAddr) -> bool {
    !address.ip().is_loopback()
}

fn listen(check: &mut Check, addresses: &[SocketAddr], anywhere: bool) {
    if addresses.is_empty() {
        check.fail(
            "listen",
            "is empty; write at least one address, such as [\"127.0.0.1:8800\"]",
        );
    }
    for (index, address) in addresses.iter().enumerate() {
        let path = format!("listen[{}]", index + 1);
        if addresses[..index].contains(address) {
            check.fail(path, format!("{address} stands there twice; remove one"));
        } else if is_exposed(address) && !anywhere {
            let what = format!(
                "{address} is not a loopback address, and everyone who reaches it may publish and subscribe; \
                 say who may in a table [access] (docs/ACCESS.md), listen on 127.0.0.1 behind a proxy, or add the flag --insecure to accept that"
            );
            check.fail(path, what);
        }
    }
}

fn http(check: &mut Check, http: &Http) {
    if http.proxy_protocol && http.trusted_proxies.is_empty() {
        let what = "is on, but http.trusted_proxies is empty, so that nobody may connect; name the proxy's network there, such as [\"10.0.0.0/8\"]";
        check.fail("http.proxy_protocol", what);
    }
    let groups = [
        ("http.publish_paths", &http.publish_paths),
        ("http.subscribe_paths", &http.subscribe_paths),
        ("http.pubsub_paths", &http.pubsub_paths),
        ("http.interest_paths", &http.interest_paths),
        ("http.history_paths", &http.history_paths),
    ];
    let mut seen: Vec<(String, &str)> = Vec::new();
    for (key, paths) in groups {
        for (index, path) in paths.iter().enumerate() {
            let place = format!("{key}[{}]", index + 1);
            if let Err(what) = path_prefix(path) {
                check.fail(place, what);
                continue;
            }
            match seen.iter().find(|(_, other)| overlap(path, other)) {
                Some((place_of_other, other)) => {
                    let what = format!(
                        "`{path}` and `{other}` ({place_of_other}) overlap; choose separate prefixes"
                    );
                    check.fail(place, what);
                }
                None => seen.push((place, path)),
            }
        }
    }
    for (index, origin) in http.allowed_origins.iter().enumerate() {
        if origin != "*" && normal(origin.as_bytes()).is_none() {
            let what = format!(
                "`{origin}` is not an origin; write scheme, host and perhaps port without a path, \
                 such as \"https://app.example.com\", \"null\" for pages from files, or \"*\" for all"
            );
            check.fail(format!("http.allowed_origins[{}]", index + 1), what);
        }
    }
}

fn drain(check: &mut Check, drain: &Drain) {
    ranges! { check, "drain", drain;
        rate_per_s: 1..=u32::MAX;
        deadline_s: 0..=MAX_WAIT_S;
    }
    let reference = &drain.server_reference;
    if reference.len() > MAX_REFERENCE_BYTES || reference.chars().any(char::is_control) {
        let what = format!(
            "is not a reference to another server; write its host and port in at most {MAX_REFERENCE_BYTES} bytes, such as \"b.example.com:8800\", or nothing"
        );
        check.fail("drain.server_reference", what);
    }
}

fn limits(check: &mut Check, limits: &Limits) {
    ranges! { check, "limits", limits;
        send_buffer_bytes ["as much as the kernel likes"]: MIN_SEND_BUFFER_BYTES..=MAX_SEND_BUFFER_BYTES;
        head_bytes: MIN_HEAD_BYTES..=MAX_HEAD_BYTES;
        message_bytes: 1..=MAX_MESSAGE_BYTES;
        batch_bytes: 1..=MAX_BATCH_BYTES;
        batch_lines: 1..=MAX_BATCH_LINES;
        topic_bytes: 1..=MAX_TOPIC_BYTES;
        topics_per_connection: 1..=MAX_TOPICS_PER_CONNECTION;
        topics_per_shard: 1..=MAX_ROWS;
        filters_per_shard: 1..=MAX_ROWS;
        topics_max ["only topics_per_shard"]: 1..=MAX_ROWS;
        connections_max ["by the memory"]: 1..=MAX_ROWS;
        connections_per_shard: 1..=MAX_ROWS;
        log_bytes ["an eighth of the memory"]: MIN_LOG_BYTES..=isize::MAX as usize;
        outbox_bytes: 1..=u32::MAX as usize;
    }
    bursts(check, limits);
    let largest = ("limits.message_bytes", limits.message_bytes);
    if !(1..=MAX_MESSAGE_BYTES).contains(&largest.1) {
        // To follow a value that cannot stay would be of no use.
        return;
    }
    if limits.log_bytes_per_address_max != 0 {
        check.at_least(
            "limits.log_bytes_per_address_max",
            limits.log_bytes_per_address_max,
            largest.0,
            largest.1,
        );
    }
    // One client that sends or takes the largest thing there is must not fill the sum.
    for (of, bytes) in [
        largest,
        ("limits.batch_bytes", limits.batch_bytes),
        ("limits.outbox_bytes", limits.outbox_bytes),
    ] {
        let least = bytes.saturating_mul(MEMORY_SHARES);
        if limits.memory_bytes != 0 && limits.memory_bytes < least {
            check.fail(
                "limits.memory_bytes".to_string(),
                format!(
                    "{} is less than {MEMORY_SHARES} times {of} ({}); raise this or lower that",
                    size(limits.memory_bytes),
                    size(bytes)
                ),
            );
        }
    }
    check.at_least(
        "limits.publish_credit_bytes",
        limits.publish_credit_bytes,
        largest.0,
        largest.1,
    );
}

/// The clock of the rates is the second: a burst below one second's worth would be the rate.
fn bursts(check: &mut Check, limits: &Limits) {
    for (rate_key, per_s, burst_key, burst) in [
        (
            "limits.publishes_per_s",
            limits.publishes_per_s,
            "limits.publishes_burst",
            limits.publishes_burst,
        ),
        (
            "limits.publishes_per_address_per_s",
            limits.publishes_per_address_per_s,
            "limits.publishes_per_address_burst",
            limits.publishes_per_address_burst,
        ),
        (
            "limits.topics_per_address_per_s",
            limits.topics_per_address_per_s,
            "limits.topics_per_address_burst",
            limits.topics_per_address_burst,
        ),
    ] {
        if burst != 0 && burst < per_s {
            check.fail(
                burst_key,
                format!("{burst} is less than {rate_key} ({per_s}); write 0 (one second's worth) or raise it"),
            );
        }
    }
}

fn timeouts(check: &mut Check, timeouts: &Timeouts) {
    ranges! { check, "timeouts", timeouts;
        head_s: 1..=MAX_WAIT_S;
        body_s: 1..=MAX_WAIT_S;
        progress_bytes_per_s: 1..=1 << 20;
        keep_alive_s: 1..=MAX_WAIT_S;
        drain_s: 1..=MAX_WAIT_S;
    }
}

fn heartbeat(check: &mut Check, heartbeat: &Heartbeat) {
    ranges! { check, "heartbeat", heartbeat;
        interval_s ["off"]: MIN_HEARTBEAT_S..=MAX_WAIT_S;
        jitter_percent: 0..=90;
    }
}

fn deflate(check: &mut Check, deflate: &Deflate) {
    ranges! { check, "deflate", deflate;
        min_bytes: 0..=MAX_MESSAGE_BYTES;
        level: 1..=9;
    }
}

fn publish(check: &mut Check, publish: &Publishing) {
    ranges! { check, "publish", publish;
        idempotency_window_s: 1..=MAX_WAIT_S;
        idempotency_keys ["by limits.memory_bytes"]: 1..=MAX_ROWS;
    }
}

fn interest(check: &mut Check, interest: &Interest) {
    ranges! { check, "interest", interest;
        debounce_s: 0..=MAX_DEBOUNCE_S;
        followers_max: 1..=MAX_FOLLOWERS;
    }
}

fn mqtt(check: &mut Check, mqtt: &Mqtt) {
    ranges! { check, "mqtt", mqtt;
        receive_max: 1..=u16::MAX;
        inflight_max: 1..=u16::MAX;
        session_messages: 1..=MAX_KEYS;
        sessions_max: 1..=u32::MAX;
    }
}

fn rule(check: &mut Check, number: usize, rule: &Rule, limits: &Limits) {
    let key = |name: &str| format!("rule[{number}].{name}");
    if rule.filter.is_empty() {
        let what = "is missing or empty; write a topic filter, such as \"chat/#\", or \"#\" for all topics";
        check.fail(key("match"), what);
    } else if let Err(error) = check_filter(rule.filter.as_bytes(), MAX_TOPIC_BYTES) {
        let filter = &rule.filter;
        let what = format!(
            "`{filter}` is not a topic filter: {error}; write one such as \"chat/+/room\" or \"chat/#\""
        );
        check.fail(key("match"), what);
    }
    check.range(&key("keys_max"), rule.keys_max, 1..=MAX_KEYS);
    check.range(&key("log_bytes"), rule.log_bytes, 0..=u32::MAX as usize);
    check.range(&key("poll_timeout_s"), rule.poll_timeout_s, 0..=MAX_WAIT_S);
    if ![204, 408].contains(&rule.poll_timeout_status) {
        check.fail(
            key("poll_timeout_status"),
            format!(
                "{} is not offered; write 204 or 408",
                rule.poll_timeout_status
            ),
        );
    }
    check.range(&key("sse_retry_ms"), rule.sse_retry_ms, 1..=MAX_RETRY_MS);
    let (outbox_bytes, most) = (rule.outbox_bytes, limits.memory_bytes / MEMORY_SHARES);
    if most > 0 && outbox_bytes > most {
        check.fail(
            key("outbox_bytes"),
            format!(
                "{} is more than a quarter of limits.memory_bytes ({}); lower this or raise that",
                size(outbox_bytes),
                size(most)
            ),
        );
    }
}
