//! Formats JSON answers for people: rows in columns, and single values as lines with their names.
//!
//! Invariant: control characters in text from a client do not reach the terminal.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::settings::numbers;
use crate::settings::units::format_seconds;

/// The maximum number of columns of a table. If rows have more, each row is shown as a list of values.
const COLUMNS_MAX: usize = 12;
/// Columns that identify a row. They come first, in this order.
const NAMES: [&str; 4] = ["reason", "name", "id", "shard"];

/// A value as text.
pub fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_string(),
        Value::String(text) if text.is_empty() => "-".to_string(),
        Value::String(text) => text.replace(char::is_control, " "),
        Value::Array(list) if list.is_empty() => "-".to_string(),
        Value::Array(list) => list.iter().map(value_text).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

/// The value of a field as text: dates are formatted, bytes and times have a unit.
fn field_text(name: &str, value: &Value) -> String {
    if is_date(name) {
        return date(value).unwrap_or_else(|| value_text(value));
    }
    if name.ends_with(SECONDS) && !name.ends_with(PER_S) {
        return match (value.as_u64(), value.is_number()) {
            (Some(seconds), _) => format_seconds(seconds),
            // The number has a fraction, or is negative.
            (None, true) => format!("{value}s"),
            (None, false) => value_text(value),
        };
    }
    let is_of_bytes = name == "bytes" || name.ends_with(BYTES) || name.ends_with(BYTES_PER_S);
    match value.as_f64().filter(|_| is_of_bytes) {
        Some(bytes) => numbers::format_bytes(bytes.round() as u64),
        None => value_text(value),
    }
}

/// Suffixes of fields that count bytes.
const BYTES: &str = "_bytes";
const BYTES_PER_S: &str = "_bytes_per_s";

/// Suffixes of fields that count seconds, and of rates per second.
const SECONDS: &str = "_s";
const PER_S: &str = "_per_s";

/// The field with the Unix second of a publish.
const PUBLISHED: &str = "published_s";
/// Suffix of other fields with a Unix second.
const UNIX_S: &str = "unix_s";

/// Whether a field is a Unix second.
fn is_date(name: &str) -> bool {
    name == PUBLISHED || name.ends_with(UNIX_S)
}

/// A Unix second as `2026-11-26 06:10:43`.
fn date(unix_s: &Value) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp(unix_s.as_i64()?).ok()?;
    let (hour, minute, second) = at.to_hms();
    Some(format!("{} {hour:02}:{minute:02}:{second:02}", at.date()))
}

/// The rows of a list in columns.
pub fn table(answer: &Value, columns: &[&str]) -> String {
    let lists = answer.as_object().into_iter().flat_map(|map| map.values());
    let rows = lists.filter_map(Value::as_array).flatten();
    let cell = |row: &Value, name: &str| match (name, &row[name], &row["data_base64"]) {
        ("data", Value::Null, Value::String(data)) => format!("base64:{data}"),
        ("expires_in_s", Value::Null, _) => "never".to_string(),
        (name, value, _) => field_text(name, value),
    };
    let head = columns.iter().map(|name| match *name {
        PUBLISHED => "published (UTC)".to_string(),
        name => match name.strip_suffix(UNIX_S) {
            Some(what) => format!("{} (UTC)", what.trim_end_matches('_')),
            None => name.to_string(),
        },
    });
    let mut lines = vec![head.collect()];
    lines.extend(rows.map(|row| columns.iter().map(|name| cell(row, name)).collect()));
    let mut out = align(&lines);
    if !answer["next"].is_null() {
        out.push_str("... and more: raise --limit\n");
    }
    out
}

/// The values of an answer, each on a line with its name. Then the lists of the answer follow as tables.
pub fn key_value_text(answer: &Value) -> String {
    let (mut values, mut lists) = (Vec::new(), Vec::new());
    flatten(String::new(), answer, &mut values, &mut lists);
    let mut out = align(&values);
    for (name, rows) in lists {
        let between = if out.is_empty() { "" } else { "\n" };
        let _ = write!(out, "{between}{name}:\n{}", list(rows));
    }
    out
}

fn list(rows: &[Value]) -> String {
    let keys = |row: &Value| row.as_object().map_or(0, Map::len);
    let widest = rows.iter().max_by_key(|row| keys(row));
    let mut columns: Vec<&str> = widest
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|row| row.keys().map(String::as_str))
        .collect();
    let rank = |name: &str| NAMES.iter().position(|it| *it == name);
    columns.sort_by_key(|name| rank(name).unwrap_or(NAMES.len()));
    let nested = |row: &Value| {
        row.as_object()
            .is_some_and(|row| row.values().any(Value::is_object))
    };
    if columns.len() > COLUMNS_MAX || rows.iter().any(nested) {
        let each = rows.iter().map(key_value_text);
        return each.collect::<Vec<_>>().join("\n");
    }
    let mut lines = vec![columns.iter().map(ToString::to_string).collect()];
    lines.extend(rows.iter().map(|row| {
        columns
            .iter()
            .map(|name| field_text(name, &row[*name]))
            .collect()
    }));
    align(&lines)
}

/// Collects the values of an object with their paths, and the lists of objects in it.
fn flatten<'v>(
    path: String,
    value: &'v Value,
    values: &mut Vec<Vec<String>>,
    lists: &mut Vec<(String, &'v [Value])>,
) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = match path.is_empty() {
                    true => name.clone(),
                    false => format!("{path}.{name}"),
                };
                flatten(path, value, values, lists);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => lists.push((path, list)),
        value => {
            let name = path.rsplit('.').next().unwrap_or_default();
            let text = field_text(name, value);
            values.push(vec![path, text]);
        }
    }
}

/// Aligns cells in columns, without spaces at the end of a line.
pub fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|n| width(n).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_stand_in_columns_and_nothing_steers_the_terminal() {
        let answer = json!({
            "messages": [
                {"offset": 7, "key": "", "data": "a\u{1b}[2Jb"},
                {"offset": 12345, "key": "k", "data": null, "data_base64": "/w=="},
            ],
            "next": 12345,
        });
        let dated = json!({"messages": [{"published_s": 1_795_673_443, "data": "x"}]});
        assert_eq!(
            table(&dated, &["published_s", "data"]),
            "published (UTC)      data\n2026-11-26 06:10:43  x\n"
        );
        let connected = json!({"connections": [{"connected_unix_s": 1_795_673_443}]});
        assert_eq!(
            table(&connected, &["connected_unix_s"]),
            "connected (UTC)\n2026-11-26 06:10:43\n"
        );
        let text = table(&answer, &["offset", "key", "data"]);
        assert_eq!(
            text,
            "offset  key  data\n7       -    a [2Jb\n12345   k    base64:/w==\n... and more: raise --limit\n"
        );
    }

    #[test]
    fn an_answer_is_values_by_name_with_its_lists_below() {
        let answer = json!({
            "name": "a\u{7}b",
            "of": {"one": 1, "none": null, "in_bytes": 2048, "age_s": 5400, "sent_per_s": 7,
                "made_unix_s": 1_795_673_443, "took_s": 0.25, "ahead_s": -3},
            "shards": [{"shard": 0, "turns": 17}, {"shard": 1, "turns": 4}],
        });
        let text = key_value_text(&answer);
        let wanted = "name            a b\nof.one          1\nof.none         -\nof.in_bytes     2.0 KiB\n\
            of.age_s        90m\nof.sent_per_s   7\nof.made_unix_s  2026-11-26 06:10:43\nof.took_s       0.25s\nof.ahead_s      -3s\n\n\
            shards:\nshard  turns\n0      17\n1      4\n";
        assert_eq!(text, wanted);
        assert_eq!(key_value_text(&json!({"changed": []})), "changed  -\n");
    }
}
