//! The ranges of all settings, and the combinations that could never work.
//!
//! All problems are found, not only the first, so that one run shows them all.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use crore_broker::rules::RULES_MAX;
use crore_broker::settings::{
    Deflate, Drain, Heartbeat, Http, Interest, Limits, Mqtt, Publishing, Rule, Timeouts,
};

use crore_wire::topic::check_filter;

use super::File;
use super::forms::{is_origin, overlap, path_prefix};

/// A topic hashes to one of 256 partitions; more shards than that would share none of the work.
pub const MAX_SHARDS: usize = 256;

/// The largest thing that one client sends or is sent takes so small a share of what all together may make the server hold.
pub(super) const MEMORY_SHARES: usize = 4;

/// Rows are linked by 32-bit indices, one value of which means none.
const MAX_ROWS: usize = u32::MAX as usize - 1;

/// A heartbeat more often than this costs more than all else that an idle connection does.
const MIN_HEARTBEAT_S: u32 = 5;

/// A day: a peer that was silent for longer is not coming back.
const MAX_WAIT_S: u32 = 86_400;

/// Every encoding of it must have a length that its protocol can say: an MQTT packet, with topic and properties, 28 bits; a JSON
/// object, where a control character takes six bytes, 32 bits among its turn's. And one message must never take a shard's
/// turn for long.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A batch is held whole before its first line is published, and its messages lie side by side in a turn whose spans have 32 bits.
const MAX_BATCH_BYTES: usize = 64 << 20;

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

/// An hour: whom nobody watches for longer than that, nobody watches.
const MAX_DEBOUNCE_S: u32 = 3_600;

/// Each change of each topic is compared with every follower's filter.
const MAX_FOLLOWERS: u32 = 65_536;

/// A whole snapshot is walked for whoever reads a part of it.
const MAX_KEYS: u32 = 1_000_000;

/// It stands in a packet of its own to each client.
const MAX_REFERENCE_BYTES: usize = 1_000;

/// An hour: a browser that waits longer to reconnect looks broken.
const MAX_RETRY_MS: u32 = 3_600_000;

/// A value that is out of its range.
#[derive(Debug)]
pub struct Problem {
    /// Where, as `limits.topic_bytes` or `rule[2].match` (counted from 1).
    pub path: String,
    /// What is wrong and what to write instead.
    pub what: String,
}

/// Collects problems.
pub(super) struct Check {
    problems: Vec<Problem>,
}

impl Check {
    pub(super) fn fail(&mut self, path: impl Into<String>, what: impl Into<String>) {
        self.problems.push(Problem {
            path: path.into(),
            what: what.into(),
        });
    }

    pub(super) fn range<T: PartialOrd + Display>(
        &mut self,
        path: &str,
        value: T,
        range: RangeInclusive<T>,
    ) {
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            self.fail(
                path,
                format!("{value} is out of range; write a value from {low} to {high}"),
            );
        }
    }

    /// Zero switches it off (or leaves it to the host); otherwise the range holds.
    fn zero_or<T: PartialOrd + Display + Default>(
        &mut self,
        path: &str,
        value: T,
        zero_means: &str,
        range: RangeInclusive<T>,
    ) {
        if value != T::default() && !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            self.fail(
                path,
                format!("{value} is out of range; write 0 ({zero_means}) or a value from {low} to {high}"),
            );
        }
    }

    fn at_least(&mut self, path: &str, value: usize, other: &str, least: usize) {
        if value < least {
            self.fail(
                path,
                format!("{value} is less than {other} ({least}); raise this or lower {other}"),
            );
        }
    }
}

/// All that is wrong with `file`; `insecure` permits addresses besides the loopback.
pub fn problems(file: &File, insecure: bool) -> Vec<Problem> {
    let mut check = Check {
        problems: Vec::new(),
    };
    listen(&mut check, &file.listen, insecure || file.access.is_some());
    check.zero_or("shards", file.shards, "one for each core", 1..=MAX_SHARDS);
    check.range("backlog", file.backlog, 1..=MAX_BACKLOG);
    http(&mut check, &file.http);
    limits(&mut check, &file.limits);
    timeouts(&mut check, &file.timeouts);
    heartbeat(&mut check, &file.heartbeat);
    deflate(&mut check, &file.deflate);
    publish(&mut check, &file.publish);
    interest(&mut check, &file.interest);
    mqtt(&mut check, &file.mqtt);
    let rules: Vec<&Rule> = file.rules.iter().map(|entry| &entry.0).collect();
    let access = super::access::problems(file.access.as_ref(), &rules);
    check.problems.extend(access);
    let admin = super::admin::problems(&file.admin, &file.listen);
    check.problems.extend(admin);
    drain(&mut check, &file.drain);
    file.state.check(&mut check);
    check.problems.extend(super::tls::problems(&file.tls));
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

/// Whether others than this machine's own processes may reach it: then something must say who may do what.
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
        if !is_origin(origin) {
            let what = format!(
                "`{origin}` is not an origin; write scheme, host and perhaps port in lower case without a path, \
                 such as \"https://app.example.com\", \"null\" for pages from files, or \"*\" for all"
            );
            check.fail(format!("http.allowed_origins[{}]", index + 1), what);
        }
    }
}

fn drain(check: &mut Check, drain: &Drain) {
    check.range("drain.rate_per_s", drain.rate_per_s, 1..=u32::MAX);
    check.range("drain.deadline_s", drain.deadline_s, 0..=MAX_WAIT_S);
    let reference = &drain.server_reference;
    if reference.len() > MAX_REFERENCE_BYTES || reference.chars().any(char::is_control) {
        let what = format!(
            "is not a reference to another server; write its host and port in at most {MAX_REFERENCE_BYTES} bytes, such as \"b.example.com:8800\", or nothing"
        );
        check.fail("drain.server_reference", what);
    }
}

fn limits(check: &mut Check, limits: &Limits) {
    check.zero_or(
        "limits.send_buffer_bytes",
        limits.send_buffer_bytes,
        "as much as the kernel likes",
        MIN_SEND_BUFFER_BYTES..=MAX_SEND_BUFFER_BYTES,
    );
    check.range(
        "limits.head_bytes",
        limits.head_bytes,
        MIN_HEAD_BYTES..=MAX_HEAD_BYTES,
    );
    check.range(
        "limits.message_bytes",
        limits.message_bytes,
        1..=MAX_MESSAGE_BYTES,
    );
    check.range(
        "limits.batch_bytes",
        limits.batch_bytes,
        1..=MAX_BATCH_BYTES,
    );
    check.range(
        "limits.batch_lines",
        limits.batch_lines,
        1..=MAX_BATCH_LINES,
    );
    check.range(
        "limits.topic_bytes",
        limits.topic_bytes,
        1..=MAX_TOPIC_BYTES,
    );
    check.range(
        "limits.topics_per_connection",
        limits.topics_per_connection,
        1..=MAX_TOPICS_PER_CONNECTION,
    );
    check.range(
        "limits.topics_per_shard",
        limits.topics_per_shard,
        1..=MAX_ROWS,
    );
    check.range(
        "limits.filters_per_shard",
        limits.filters_per_shard,
        1..=MAX_ROWS,
    );
    check.zero_or(
        "limits.topics_max",
        limits.topics_max,
        "only topics_per_shard",
        1..=MAX_ROWS,
    );
    check.zero_or(
        "limits.connections_max",
        limits.connections_max,
        "by the memory",
        1..=MAX_ROWS,
    );
    bursts(check, limits);
    check.range(
        "limits.connections_per_shard",
        limits.connections_per_shard,
        1..=MAX_ROWS,
    );
    check.zero_or(
        "limits.log_bytes",
        limits.log_bytes,
        "an eighth of the memory",
        MIN_LOG_BYTES..=isize::MAX as usize,
    );
    let largest = ("limits.message_bytes", limits.message_bytes);
    if limits.log_bytes_per_address_max != 0 {
        check.at_least(
            "limits.log_bytes_per_address_max",
            limits.log_bytes_per_address_max,
            largest.0,
            largest.1,
        );
    }
    check.range(
        "limits.outbox_bytes",
        limits.outbox_bytes,
        1..=u32::MAX as usize,
    );
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
                    "{} is less than {MEMORY_SHARES} times {of} ({bytes}); raise this or lower that",
                    limits.memory_bytes
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
    check.range("timeouts.head_s", timeouts.head_s, 1..=MAX_WAIT_S);
    check.range("timeouts.body_s", timeouts.body_s, 1..=MAX_WAIT_S);
    check.range(
        "timeouts.progress_bytes_per_s",
        timeouts.progress_bytes_per_s,
        1..=1 << 20,
    );
    check.range(
        "timeouts.keep_alive_s",
        timeouts.keep_alive_s,
        1..=MAX_WAIT_S,
    );
    check.range("timeouts.drain_s", timeouts.drain_s, 1..=MAX_WAIT_S);
}

fn heartbeat(check: &mut Check, heartbeat: &Heartbeat) {
    check.zero_or(
        "heartbeat.interval_s",
        heartbeat.interval_s,
        "off",
        MIN_HEARTBEAT_S..=MAX_WAIT_S,
    );
    check.range("heartbeat.jitter_percent", heartbeat.jitter_percent, 0..=90);
}

fn deflate(check: &mut Check, deflate: &Deflate) {
    check.range(
        "deflate.min_bytes",
        deflate.min_bytes,
        0..=MAX_MESSAGE_BYTES,
    );
    check.range("deflate.level", deflate.level, 1..=9);
}

fn publish(check: &mut Check, publish: &Publishing) {
    check.range(
        "publish.idempotency_window_s",
        publish.idempotency_window_s,
        1..=MAX_WAIT_S,
    );
    check.range(
        "publish.idempotency_keys",
        publish.idempotency_keys,
        1..=MAX_ROWS,
    );
}

fn interest(check: &mut Check, interest: &Interest) {
    check.range(
        "interest.debounce_s",
        interest.debounce_s,
        0..=MAX_DEBOUNCE_S,
    );
    check.range(
        "interest.followers_max",
        interest.followers_max,
        1..=MAX_FOLLOWERS,
    );
}

fn mqtt(check: &mut Check, mqtt: &Mqtt) {
    check.range("mqtt.receive_max", mqtt.receive_max, 1..=u16::MAX);
    check.range("mqtt.inflight_max", mqtt.inflight_max, 1..=u16::MAX);
    check.range("mqtt.session_messages", mqtt.session_messages, 1..=MAX_KEYS);
    check.range("mqtt.sessions_max", mqtt.sessions_max, 1..=u32::MAX);
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
            format!("{outbox_bytes} is more than a quarter of limits.memory_bytes ({most}); lower this or raise that"),
        );
    }
}
