//! Formats answers of the admin API as text: the summary of `crore admin stats`, and other answers that do not fit into one table.

use std::cmp::Reverse;

use anyhow::Context as _;
use crore_broker::position::{self, Position};
use serde_json::{Value, json};

use super::super::tables::{align, key_value_text, table, value_text};
use crate::settings::numbers;

/// The number of limits in the summary. The summary shows the limits of which the largest share is used.
const NEAREST: usize = 3;
/// The last lines of the summary.
const MORE: &str = "\ncrore admin stats --all has every figure, crore admin limits every limit, crore admin memory every table\n";

/// The summary of `crore admin stats`.
pub fn text(stats: &Value) -> String {
    let n = |path: &str| numbers::format_count(whole(at(stats, path)));
    let bytes = |path: &str| numbers::format_bytes(whole(at(stats, path)));
    let mut lines = vec![["server".to_string(), server(stats)]];
    let mut row = |name: &str, text: String| lines.push([name.to_string(), text]);
    row(
        "connections",
        format!(
            "{}{}; {} opened/s, {} closed/s",
            n("connections.total"),
            by_transport(&stats["connections"]["by_transport"]),
            n("accepts_per_s"),
            n("closes_per_s")
        ),
    );
    for (name, way) in [("published", "in"), ("delivered", "out")] {
        let text = format!(
            "{}/s, {}/s of network; {} since the start",
            n(&format!("messages.{way}_per_s")),
            bytes(&format!("messages.{way}_bytes_per_s")),
            n(&format!("messages.{way}_total"))
        );
        row(name, text);
    }
    row("latency", latency(&stats["latency_us"]));
    row(
        "topics",
        format!(
            "{}; subscriptions {}, filters {}, MQTT sessions {}",
            n("topics"),
            n("subscriptions"),
            n("filters"),
            n("sessions")
        ),
    );
    row(
        "kept",
        format!("{} messages, {}", n("log.messages"), bytes("log.bytes")),
    );
    if let Some(disk) = disk(&stats["disk"]) {
        row("disk", disk);
    }
    row(
        "slow",
        format!(
            "{} consumers, {} waiting; {} gaps told",
            n("slow.consumers"),
            bytes("slow.outbox_bytes"),
            n("slow.gaps_total")
        ),
    );
    row("memory", bytes("memory.pss_bytes"));
    row("load", load(&stats["shards"]));
    row("refused", refused(&stats["refusals"]));
    let lines: Vec<Vec<String>> = lines.into_iter().map(Vec::from).collect();
    let nearest = limits(stats, NEAREST);
    align(&lines) + "\n" + &table(&nearest, &["nearest limits", "used", "limit", "share"]) + MORE
}

fn server(stats: &Value) -> String {
    let node = match stats["cluster"].is_null() {
        true => String::new(),
        false => format!(", of the cluster {}", value_text(&stats["cluster"])),
    };
    format!(
        "crore {} on {}, up {}, {}{node}",
        value_text(&stats["version"]),
        value_text(&stats["host"]),
        numbers::format_duration(whole(&stats["uptime_s"])),
        value_text(&stats["url"])
    )
}

fn latency(us: &Value) -> String {
    let n = |name: &str| numbers::format_count(whole(&us[name]));
    match us["p50"].is_null() {
        true => "nothing was delivered in the last second".to_string(),
        false => format!(
            "half within {} us, 99 % within {} us, all within {} us, from publish to write",
            n("p50"),
            n("p99"),
            n("max")
        ),
    }
}

/// At most `most` limits with formatted values. The limit of which the largest share is used comes first.
pub fn limits(stats: &Value, most: usize) -> Value {
    let mut all: Vec<&Value> = stats["limits"].as_array().into_iter().flatten().collect();
    all.sort_by(|a, b| share(b).total_cmp(&share(a)));
    let rows = all.into_iter().take(most).map(|limit| {
        let shown = |field: &str| match limit["unit"].as_str() {
            Some("bytes") => numbers::format_bytes(whole(&limit[field])),
            _ => numbers::format_count(whole(&limit[field])),
        };
        json!({
            "name": limit["name"],
            "nearest limits": limit["name"],
            "used": shown("used"),
            "limit": shown("limit"),
            "unit": limit["unit"],
            "share": format!("{:.1} %", share(limit) * 100.0),
            "shard": limit["shard"],
        })
    });
    json!({ "limits": rows.collect::<Vec<_>>() })
}

/// The use of memory: the process, the parts with a limit, and the tables that are not empty.
pub fn memory(answer: &Value) -> String {
    let rows = || answer["memory"].as_array().into_iter().flatten();
    let bytes = |value: &Value| numbers::format_bytes(whole(value));
    let mut limited = vec![["memory", "used", "limit", "setting"].map(str::to_string)];
    for row in rows().filter(|row| !row["limit"].is_null()) {
        let (what, setting) = match row["name"].as_str().unwrap_or_default() {
            "memory" => ("the whole process", "-"),
            "limits.log_bytes" => ("kept messages", "limits.log_bytes"),
            "limits.memory_bytes" => ("what clients make it hold", "limits.memory_bytes"),
            other => (other, other),
        };
        let (used, limit) = (bytes(&row["bytes"]), bytes(&row["limit"]));
        limited.push([what.to_string(), used, limit, setting.to_string()]);
    }
    let mut tables: Vec<&Value> = rows().filter(|row| row["limit"].is_null()).collect();
    let all = tables.len();
    tables.retain(|row| whole(&row["bytes"]) > 0);
    tables.sort_by_key(|row| Reverse(whole(&row["bytes"])));
    let mut parts = vec![["of the process", "used", "name in /metrics"].map(str::to_string)];
    for row in &tables {
        let what = row["what"].as_str().unwrap_or_default();
        parts.push([
            what.to_string(),
            bytes(&row["bytes"]),
            value_text(&row["name"]),
        ]);
    }
    let lines = |rows: Vec<Vec<String>>| align(&rows);
    format!(
        "{}\n{}... and {} that are empty\n",
        lines(limited.into_iter().map(Vec::from).collect()),
        lines(parts.into_iter().map(Vec::from).collect()),
        all - tables.len()
    )
}

/// A topic as text.
pub fn topic(topic: &Value) -> String {
    let requested = match &topic["requested_s"] {
        Value::Null => "never".to_string(),
        ago => format!("{} ago", numbers::format_duration(whole(ago))),
    };
    let lines = [
        ("name", value_text(&topic["name"])),
        (
            "messages",
            format!(
                "{} kept, {}",
                numbers::format_count(whole(&topic["messages"])),
                numbers::format_bytes(whole(&topic["bytes"]))
            ),
        ),
        ("newest id", id(topic)),
        (
            "subscribers",
            numbers::format_count(whole(&topic["subscribers"])),
        ),
        ("last asked for", requested),
        ("rule", rule_of(topic)),
        ("shard", value_text(&topic["home"])),
    ];
    let lines: Vec<_> = lines
        .map(|(name, text)| vec![name.to_string(), text])
        .into();
    let of_cluster = match &topic["cluster"] {
        Value::Null => String::new(),
        cluster => "\nin the cluster:\n".to_string() + &key_value_text(cluster),
    };
    align(&lines) + &of_cluster
}

/// The position of the newest message, in the form that clients use.
fn id(topic: &Value) -> String {
    let number = |name: &str| topic[name].as_u64().unwrap_or_default();
    let epoch = u32::try_from(number("epoch")).unwrap_or_default();
    let offset = number("offset");
    position::text(Position { epoch, offset })
}

/// The settings that a reload has changed, and those that need a restart.
pub fn reload(answer: &Value) -> String {
    let keys = |field: &str| match value_text(&answer[field]) {
        none if none == "-" => None,
        keys => Some(keys.replace(',', ", ")),
    };
    let changed = match keys("changed") {
        Some(keys) => format!("changed: {keys}\n"),
        None => "nothing has changed\n".to_string(),
    };
    match keys("kept") {
        Some(keys) => format!("{changed}these change with a restart only: {keys}\n"),
        None => changed,
    }
}

/// The number of connections that a drain ends.
pub fn drain(answer: &Value) -> String {
    let connections = numbers::format_count(whole(&answer["connections"]));
    format!("the server moves its clients off and stops; connections: {connections}\n")
}

/// The id and the subscribers of a published message.
pub fn published(answer: &Value) -> String {
    let lines = [
        ("id", value_text(&answer["last_message_id"])),
        (
            "subscribers",
            numbers::format_count(whole(&answer["subscribers"])),
        ),
        (
            "messages",
            format!("{} kept", numbers::format_count(whole(&answer["messages"]))),
        ),
    ];
    align(&lines.map(|(name, text)| vec![name.to_string(), text]))
}

/// The filter of a topic's rule.
fn rule_of(topic: &Value) -> String {
    match topic["built_in_rule"].as_bool() {
        Some(true) => format!("{} (built-in)", value_text(&topic["rule"])),
        _ => value_text(&topic["rule"]),
    }
}

/// The settings in force, as a settings file.
pub fn config(answer: &Value) -> anyhow::Result<String> {
    let from = match &answer["source"] {
        Value::Null => "built-in defaults and flags".to_string(),
        source => format!("{} and flags", value_text(source)),
    };
    let settings = serde_json::from_value::<toml::Table>(answer["config"].clone());
    let settings = settings.context("the answer has no settings")?;
    Ok(format!(
        "# the settings that hold, from {from}; (secret) stands for each secret\n{settings}"
    ))
}

fn share(limit: &Value) -> f64 {
    limit["share"].as_f64().unwrap_or_default()
}

fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(value, |value, name| &value[name])
}

/// The number, rounded. 0 if the value is not a number.
fn whole(value: &Value) -> u64 {
    value.as_f64().unwrap_or_default().round() as u64
}

fn by_transport(by: &Value) -> String {
    let some = by.as_object().into_iter().flatten();
    let some = some.filter(|(_, count)| whole(count) > 0);
    let some: Vec<_> = some
        .map(|(name, count)| format!("{name} {}", numbers::format_count(whole(count))))
        .collect();
    match some.is_empty() {
        true => String::new(),
        false => format!(" ({})", some.join(", ")),
    }
}

fn disk(disk: &Value) -> Option<String> {
    disk.as_object()?;
    let held = whole(&disk["log_bytes"]) + whole(&disk["base_bytes"]);
    let full = match disk["full"].as_bool() {
        Some(true) => "; FULL: publishes are refused",
        _ => "",
    };
    Some(format!(
        "{}, {} syncs/s of {} us{full}",
        numbers::format_bytes(held),
        numbers::format_count(whole(&disk["syncs_per_s"])),
        numbers::format_count(whole(&disk["sync_us_mean"]))
    ))
}

fn load(shards: &Value) -> String {
    let loads = shards.as_array().into_iter().flatten();
    let loads: Vec<f64> = loads.filter_map(|shard| shard["load"].as_f64()).collect();
    let most = loads.iter().copied().fold(0.0, f64::max);
    let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    format!(
        "{:.0} % of {} shards, the busiest {:.0} %",
        mean * 100.0,
        loads.len(),
        most * 100.0
    )
}

fn refused(refusals: &Value) -> String {
    let some = refusals.as_array().into_iter().flatten();
    let some = some.filter(|row| whole(&row["total"]) > 0);
    let some: Vec<_> = some
        .map(|row| format!("{} {}", value_text(&row["reason"]), whole(&row["total"])))
        .collect();
    match some.is_empty() {
        true => "nobody".to_string(),
        false => some.join(", "),
    }
}
