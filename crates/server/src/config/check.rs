//! Checks settings for what the table of settings (`settings::schema`) cannot express: combinations that cannot work, and values that need
//! more than a range. One run finds all problems.

use std::iter;
use std::net::SocketAddr;

use crore_broker::pusher::with_presence_channels;
use crore_broker::rules::RULES_MAX;
use crore_broker::settings::{Drain, Limits, Rule};
use crore_settings::MAX_TOPIC_BYTES;
use crore_wire::http::origin::normalize;
use crore_wire::topic::{check_filter, covers, has_wildcard};

use super::path_prefix::{overlap, path_prefix};
use crate::access::CredentialVerifiers;
use crate::settings::file::File;
use crate::settings::problems::{Problem, Problems, foreign_wildcards, size_text};
use crate::settings::{backend, pusher, webhook};

/// `limits.memory_bytes` is at least this multiple of the largest message, batch and outbox, so that one client cannot fill the memory.
pub(super) const MEMORY_SHARES: usize = 4;

/// Limit of `drain.server_reference`, which is sent to each client in one packet.
const MAX_REFERENCE_BYTES: usize = 1_000;

/// Checks all settings. `insecure` permits addresses beyond the loopback without `[access]`.
pub fn all(problems: &mut Problems, file: &File, insecure: bool) {
    let anywhere = insecure || file.access.is_some();
    listen(problems, &file.listen, anywhere);
    file.xdp.check(problems, anywhere);
    http(problems, file);
    limits(problems, &file.limits);
    access(problems, file);
    file.admin.check(problems, &file.listen);
    drain(problems, &file.drain);
    cluster(problems, file);
    file.tls.check(problems);
    backend::check(&file.backends, problems);
    pusher::check(&file.pusher_apps, problems);
    webhook::check(&file.webhooks, problems);
    let app_ids = file.pusher_apps.iter().map(|app| &*app.id);
    let rules = with_presence_channels(app_ids, &file.rules).len();
    if rules > RULES_MAX {
        let message = format!(
            "{rules} rules, with the one that --keep adds where none is for all topics, and those for the presence channels of each pusher_app; write at most {RULES_MAX}"
        );
        problems.fail("rule", message);
    }
    for (index, entry) in file.rules.iter().enumerate() {
        rule(problems, index + 1, entry, &file.limits);
        if let Some(earlier) = file.rules[..index]
            .iter()
            .position(|other| other.filter == entry.filter)
        {
            let message = format!(
                "repeats the filter of rule[{}] and would never apply; remove one",
                earlier + 1
            );
            problems.fail(format!("rule[{}].match", index + 1), message);
        }
    }
}

/// Finds valid settings that are hardly intended: a rule after another one that matches all its topics, and filters with the wildcards of
/// other servers.
pub fn unintended(file: &File) -> Vec<Problem> {
    let mut problems = Problems::default();
    for (index, entry) in file.rules.iter().enumerate() {
        let filter = &entry.filter;
        let is_before = |other: &Rule| covers(other.filter.as_bytes(), filter.as_bytes());
        if let Some(earlier) = file.rules[..index].iter().position(is_before) {
            let (number, wider) = (earlier + 1, &file.rules[earlier].filter);
            let message = format!(
                "`{filter}` is never reached: rule[{number}] (`{wider}`) stands before it and matches all its topics; put it before that one, or remove it"
            );
            problems.fail(format!("rule[{}].match", index + 1), message);
        }
        foreign(&mut problems, format!("rule[{}].match", index + 1), filter);
    }
    if let Some(access) = &file.access {
        let everybody = ("access.anonymous".to_string(), &access.anonymous);
        let users = access.users.iter().enumerate();
        let users = users.map(|(index, it)| (format!("access.user[{}]", index + 1), &it.filters));
        for (path, filters) in iter::once(everybody).chain(users) {
            for (right, list) in filters.by_right() {
                for (index, filter) in list.iter().enumerate() {
                    let path = format!("{path}.{}[{}]", right.name(), index + 1);
                    foreign(&mut problems, path, filter);
                }
            }
        }
    }
    problems.list
}

/// Reports a filter with wildcards of another server. Here it matches only the topic of that name.
fn foreign(problems: &mut Problems, path: String, filter: &str) {
    // If the filter also has our wildcards, its author knows them.
    if let Some(message) = foreign_wildcards(filter).filter(|_| !has_wildcard(filter.as_bytes())) {
        problems.fail(path, message);
    }
}

/// Checks the settings of a cluster. A node keeps nothing on disk, and all its topics are in the cluster's log.
fn cluster(problems: &mut Problems, file: &File) {
    file.cluster.check(problems);
    if !file.cluster.is_on() {
        return;
    }
    if file.state.directory().is_some() {
        let message = "stands beside [cluster], whose log is in NATS: a node keeps nothing on disk; remove it, or cluster.urls";
        problems.fail("state.directory", message);
    }
    if !file.state.durable {
        let message = "is off, and in a cluster every message stands in the log; remove it";
        problems.fail("state.durable", message);
    }
    for (index, entry) in file.rules.iter().enumerate() {
        if !entry.durable {
            let message = "is off, and in a cluster every topic stands in the log, since other nodes learn of it there; remove it";
            problems.fail(format!("rule[{}].durable", index + 1), message);
        }
    }
}

/// Checks `[access]` with the files that it names, and the rules that open topics to everybody.
fn access(problems: &mut Problems, file: &File) {
    let Some(access) = &file.access else {
        for (index, entry) in file.rules.iter().enumerate() {
            if !entry.open.is_empty() {
                let message = format!(
                    "opens {} to everybody, which without [access] is open to everybody everywhere; write a table [access], or remove the key",
                    entry.filter
                );
                problems.fail(format!("rule[{}].open", index + 1), message);
            }
        }
        return;
    };
    access.check(problems);
    if let Err(errors) = CredentialVerifiers::new(access) {
        for (path, message) in errors {
            problems.fail(path, message);
        }
    }
}

/// Whether other machines may reach the address. Then the settings must have access control.
fn is_exposed(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// An address of the data ports that other machines may reach.
pub(super) fn exposed_address(file: &File) -> Option<String> {
    let address = file.listen.iter().find(|address| is_exposed(address));
    let address = address.map(SocketAddr::to_string);
    address.or_else(|| Some(file.xdp.listen.clone()).filter(|listen| !listen.is_empty()))
}

fn listen(problems: &mut Problems, addresses: &[SocketAddr], anywhere: bool) {
    if addresses.is_empty() {
        problems.fail(
            "listen",
            "is empty; write at least one address, such as [\"127.0.0.1:8800\"]",
        );
    }
    for (index, address) in addresses.iter().enumerate() {
        let path = format!("listen[{}]", index + 1);
        if addresses[..index].contains(address) {
            problems.fail(path, format!("{address} stands there twice; remove one"));
        } else if is_exposed(address) && !anywhere {
            let message = format!(
                "{address} is not a loopback address, and everyone who reaches it may publish and subscribe; \
                 say who may in a table [access] (docs/ACCESS.md), listen on 127.0.0.1 behind a proxy, or add the flag --insecure to accept that"
            );
            problems.fail(path, message);
        }
    }
}

/// The setting with the prefix of Centrifugo's protocol. While the protocol is on, its paths overlap with no other prefix.
const CENTRIFUGO_PATH: &str = "centrifugo.path";
/// The setting with the other path of that protocol.
const EMULATION_PATH: &str = "centrifugo.emulation_path";

/// The table with the apps of Pusher's protocol. With an app, the protocol's path overlaps with no prefix.
const PUSHER_APPS: &str = "pusher_app";
/// That path, which client libraries add to their host.
const PUSHER_PATH: &str = "/app";

fn http(problems: &mut Problems, file: &File) {
    let File {
        http,
        centrifugo,
        pusher_apps,
        ..
    } = file;
    let pusher_path = PUSHER_PATH.to_string();
    problems.check_hosts("http.hosts", &http.hosts);
    if http.proxy_protocol && http.trusted_proxies.is_empty() {
        let message = "is on, but http.trusted_proxies is empty, so that nobody may connect; name the proxy's network there, such as [\"10.0.0.0/8\"]";
        problems.fail("http.proxy_protocol", message);
    }
    let groups = [
        ("http.publish_paths", &http.publish_paths[..]),
        ("http.subscribe_paths", &http.subscribe_paths),
        ("http.pubsub_paths", &http.pubsub_paths),
        ("http.interest_paths", &http.interest_paths),
        ("http.history_paths", &http.history_paths),
        ("http.presence_paths", &http.presence_paths),
        (CENTRIFUGO_PATH, core::slice::from_ref(&centrifugo.path)),
        (
            EMULATION_PATH,
            core::slice::from_ref(&centrifugo.emulation_path),
        ),
        (PUSHER_APPS, core::slice::from_ref(&pusher_path)),
    ];
    let is_of_centrifugo = |key: &str| matches!(key, CENTRIFUGO_PATH | EMULATION_PATH);
    let groups = groups.into_iter().filter(|(key, _)| match *key {
        PUSHER_APPS => !pusher_apps.is_empty(),
        key => !is_of_centrifugo(key) || centrifugo.enabled,
    });
    let mut seen: Vec<(String, &str)> = Vec::new();
    for (key, paths) in groups {
        for (index, path) in paths.iter().enumerate() {
            let place = match is_of_centrifugo(key) || key == PUSHER_APPS {
                true => key.to_string(),
                false => format!("{key}[{}]", index + 1),
            };
            if let Err(message) = path_prefix(path) {
                problems.fail(place, message);
                continue;
            }
            match seen.iter().find(|(_, other)| overlap(path, other)) {
                Some((place_of_other, other)) => {
                    let message = format!(
                        "`{path}` and `{other}` ({place_of_other}) overlap; choose separate prefixes"
                    );
                    problems.fail(place, message);
                }
                None => seen.push((place, path)),
            }
        }
    }
    for (index, origin) in http.allowed_origins.iter().enumerate() {
        if origin != "*" && normalize(origin.as_bytes()).is_none() {
            let message = format!(
                "`{origin}` is not an origin; write scheme, host and perhaps port without a path, \
                 such as \"https://app.example.com\", \"null\" for pages from files, or \"*\" for all"
            );
            problems.fail(format!("http.allowed_origins[{}]", index + 1), message);
        }
    }
}

fn drain(problems: &mut Problems, drain: &Drain) {
    let reference = &drain.server_reference;
    if reference.len() > MAX_REFERENCE_BYTES || reference.chars().any(char::is_control) {
        let message = format!(
            "is not a reference to another server; write its host and port in at most {MAX_REFERENCE_BYTES} bytes, such as \"b.example.com:8800\", or nothing"
        );
        problems.fail("drain.server_reference", message);
    }
}

fn limits(problems: &mut Problems, limits: &Limits) {
    bursts(problems, limits);
    let largest = ("limits.message_bytes", limits.message_bytes);
    let at_least = |problems: &mut Problems, key, bytes| {
        problems.check_at_least(key, bytes, largest.0, largest.1)
    };
    if limits.log_bytes_per_address_max != 0 {
        let bytes = limits.log_bytes_per_address_max;
        at_least(problems, "limits.log_bytes_per_address_max", bytes);
    }
    // The largest message, batch or outbox of one client must not fill the memory that all clients share.
    for (key, bytes) in [
        largest,
        ("limits.batch_bytes", limits.batch_bytes),
        ("limits.outbox_bytes", limits.outbox_bytes),
    ] {
        let least = bytes.saturating_mul(MEMORY_SHARES);
        if limits.memory_bytes != 0 && limits.memory_bytes < least {
            problems.fail(
                "limits.memory_bytes".to_string(),
                format!(
                    "{} is less than {MEMORY_SHARES} times {key} ({}); raise this or lower that",
                    size_text(limits.memory_bytes),
                    size_text(bytes)
                ),
            );
        }
    }
    let bytes = limits.publish_credit_bytes;
    at_least(problems, "limits.publish_credit_bytes", bytes);
}

/// Checks the bursts of rates. Rates are counted per second, so a burst below one second's worth would lower the rate.
fn bursts(problems: &mut Problems, limits: &Limits) {
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
            problems.fail(
                burst_key,
                format!("{burst} is less than {rate_key} ({per_s}); write 0 (one second's worth) or raise it"),
            );
        }
    }
}

fn rule(problems: &mut Problems, number: usize, rule: &Rule, limits: &Limits) {
    let key = |name: &str| format!("rule[{number}].{name}");
    if rule.filter.is_empty() {
        let message = "is missing or empty; write a topic filter, such as \"chat/#\", or \"#\" for all topics";
        problems.fail(key("match"), message);
    } else if let Err(error) = check_filter(rule.filter.as_bytes(), MAX_TOPIC_BYTES) {
        let filter = &rule.filter;
        let message = format!(
            "`{filter}` is not a topic filter: it {error}; write one such as \"chat/+/room\" or \"chat/#\""
        );
        problems.fail(key("match"), message);
    }
    let (outbox_bytes, bytes_max) = (rule.outbox_bytes, limits.memory_bytes / MEMORY_SHARES);
    if bytes_max > 0 && outbox_bytes > bytes_max {
        problems.fail(
            key("outbox_bytes"),
            format!(
                "{} is more than a quarter of limits.memory_bytes ({}); lower this or raise that",
                size_text(outbox_bytes),
                size_text(bytes_max)
            ),
        );
    }
}
