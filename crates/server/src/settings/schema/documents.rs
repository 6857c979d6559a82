//! Tests that write documents from the table of settings, or compare them with it: the tables of `docs/SETTINGS.md`, `docs/crore.example.toml`,
//! `docs/crore.schema.json`, and the table of shares in `docs/internals/MEMORY.md`.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::{SCHEMA, Setting, join_path};
use crate::settings::numbers::format_count;

const HEAD: &str = "\
#:schema ./crore.schema.json
# Every key of crore.toml with its default. A missing key has its default; an unknown key is an error.
# SETTINGS.md explains each key. `crore serve --check` prints the resulting settings.
";

/// Tables that are commented out in the example, and why.
const OFF: [(&str, &str); 5] = [
    (
        "access",
        "Rights of clients (docs/ACCESS.md, which also has the tables below this one). Without this table every client may do everything, on\n\
         # the loopback only. With it, clients have only granted rights. These are the defaults of its keys.",
    ),
    (
        "backend",
        "Endpoints that answer calls of clients (docs/CENTRIFUGO.md#calls-to-your-backend).",
    ),
    (
        "pusher_app",
        "Apps of Pusher's protocol (docs/PUSHER.md). Without such a table the protocol is off.",
    ),
    (
        "webhook",
        "Endpoints that are told of events (docs/PROTOCOLS.md#webhooks).",
    ),
    (
        "rule",
        "Rules by topic: the first that matches applies. The keys below `match` have the defaults for topics without a rule.",
    ),
];

/// Compares the page with the text that `make` returns. With `INSTA_UPDATE=always` it writes the page.
fn check_page(name: &str, make: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let made = make(&page);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&path, &made).unwrap();
    } else {
        assert!(
            page == made,
            "docs/{name} differs from the table of settings: INSTA_UPDATE=always writes it"
        );
    }
}

#[test]
fn the_documented_settings_are_those_of_the_table() {
    check_page("SETTINGS.md", |page| {
        let (mut made, mut table, mut is_made) = (String::new(), "", false);
        for line in page.lines() {
            if line.starts_with("## ") || line.starts_with("### ") {
                let name = line.split('`').nth(1).unwrap_or("");
                table = name.trim_start_matches('[').trim_end_matches(']');
            }
            let begins = match line {
                "| key | default | range | changes | meaning |" => Some(table_rows(table)),
                "| flag | key |" => Some(flags()),
                _ => None,
            };
            is_made = begins.is_some() || is_made && line.starts_with('|');
            made += &match begins {
                Some(begins) => begins,
                // Generated rows are replaced. The other rows of the table are written by hand.
                None if is_made && is_row(line) => String::new(),
                None if is_note(line) => String::new(),
                None => format!("{line}\n"),
            };
        }
        made.replace("\n\n\n", "\n\n")
    });
}

/// Whether the line is a generated note below a table.
fn is_note(line: &str) -> bool {
    let name = line.strip_prefix("* `").and_then(|it| it.split_once("`: "));
    name.is_some_and(|(name, _)| SCHEMA.setting(name).is_some())
}

/// Whether the line of a table is generated.
fn is_row(line: &str) -> bool {
    let first = line.split('`').nth(1).unwrap_or_default();
    let is_flag = |setting: &Setting| {
        setting
            .text_attribute("x-flag")
            .is_some_and(|flag| flag.ends_with(first))
    };
    line.starts_with("|---")
        || SCHEMA.setting(first).is_some()
        || SCHEMA.settings.iter().any(is_flag)
}

fn table_rows(table: &str) -> String {
    let mut made =
        "| key | default | range | changes | meaning |\n|---|---|---|---|---|\n".to_string();
    let mut notes = String::new();
    for setting in SCHEMA
        .settings
        .iter()
        .filter(|setting| setting.table() == table)
    {
        let default = match (setting.example(), setting.default_text()) {
            (Some(_), _) => "required".to_string(),
            (None, Some(text)) => format!("`{text}`"),
            (None, None) => String::new(),
        };
        let changes = if setting.needs_restart {
            "restart"
        } else {
            "at once"
        };
        made += &format!(
            "| `{}` | {default} | {} | {changes} | {} |\n",
            setting.path,
            setting.range_text(),
            setting.meaning()
        );
        if let Some(note) = setting.note() {
            notes += &format!("* `{}`: {note}\n", setting.path);
        }
    }
    if !notes.is_empty() {
        made += &format!("\n{notes}");
    }
    made
}

fn flags() -> String {
    let mut made = "| flag | key |\n|---|---|\n".to_string();
    for setting in &SCHEMA.settings {
        if let Some(flag) = setting.text_attribute("x-flag") {
            let again = if setting.is_list() {
                " (repeatable, or with commas between)"
            } else {
                ""
            };
            made += &format!("| `{flag}`{again} | `{}` |\n", setting.path);
        }
    }
    made
}

/// Suffixes of keys that limit a resource that clients can use up.
const BOUNDS: [&str; 14] = [
    "_max",
    "_bytes",
    "_per_s",
    "_burst",
    "_per_shard",
    "_per_connection",
    "_messages",
    "_lines",
    "_keys",
    "_entries",
    "_threads",
    "concurrency",
    "backlog",
    "bytes_max",
];

/// Settings with such a suffix that limit no such resource.
const NO_BOUNDS: [&str; 3] = ["deflate.min_bytes", "drain.rate_per_s", "rule.concurrency"];

#[test]
fn each_limit_has_its_share_or_the_reason_why_it_has_none() {
    for setting in &SCHEMA.settings {
        let ends = BOUNDS.iter().any(|end| setting.key().ends_with(end));
        let bounds =
            (ends || setting.table() == "limits") && !NO_BOUNDS.contains(&setting.path.as_str());
        assert_eq!(
            setting.text_attribute("x-share").is_some(),
            bounds,
            "{}: a limit of what clients can use up has x-share, and nothing else has",
            setting.path
        );
    }
}

#[test]
fn the_table_of_shares_is_made_from_the_table() {
    const BEGIN: &str = "| limit | default | share of one address, or why it has none |\n";
    check_page("internals/MEMORY.md", |page| {
        let (before, rest) = page.split_once(BEGIN).expect("the table of shares");
        let (_, after) = rest.split_once("\n\n").expect("its end");
        let mut made = format!("{before}{BEGIN}|---|---|---|\n");
        for setting in &SCHEMA.settings {
            if let Some(share) = setting.text_attribute("x-share") {
                let default = setting.default_text().unwrap_or_default();
                let default = match (default.as_str(), setting.text_attribute("x-zero")) {
                    ("0", Some(zero)) => zero.to_string(),
                    (default, _) => format!("`{default}`"),
                };
                made += &format!("| `{}` | {default} | {share} |\n", setting.path);
            }
        }
        format!("{made}\n{after}")
    });
}

#[test]
fn the_example_is_made_from_the_table() {
    check_page("crore.example.toml", |_| {
        let tables = SCHEMA
            .sections
            .iter()
            .map(|it| (it.path.as_str(), it.is_list));
        let mut made = HEAD.to_string();
        for (table, is_list) in std::iter::once(("", false)).chain(tables) {
            if table.contains('.') {
                continue;
            }
            made.push('\n');
            let off = OFF.iter().find(|(path, _)| *path == table);
            let sign = if off.is_some() { "#" } else { "" };
            made += &off.map_or(String::new(), |(_, reason)| format!("# {reason}\n"));
            made += &match (table, is_list) {
                ("", _) => String::new(),
                (table, true) => format!("{sign}[[{table}]]\n"),
                (table, false) => format!("{sign}[{table}]\n"),
            };
            for setting in SCHEMA
                .settings
                .iter()
                .filter(|setting| setting.table() == table)
            {
                let value = setting
                    .example()
                    .or_else(|| setting.default_text())
                    .unwrap();
                made += &commented(&setting.short_help());
                made += &format!("{sign}{} = {value}\n", setting.key());
            }
        }
        made
    });
}

#[test]
fn the_schema_for_editors_is_that_of_the_table() {
    check_page("crore.schema.json", |_| {
        let mut schema = SCHEMA.json.clone();
        schema["title"] = "crore.toml".into();
        for_editors(&mut schema, "");
        serde_json::to_string_pretty(&schema).unwrap() + "\n"
    });
}

/// The text as lines of a comment, wrapped at 130 columns.
fn commented(text: &str) -> String {
    let mut made = "#".to_string();
    let mut width = 0;
    for word in text.split(' ') {
        width += word.len() + 1;
        if width > 130 {
            made += "\n#";
            width = word.len() + 1;
        }
        made += " ";
        made += word;
    }
    made + "\n"
}

/// Replaces our attributes by standard JSON Schema, for a 0 outside the range and for values with units.
fn for_editors(schema: &mut Json, path: &str) {
    if let Some(setting) = SCHEMA.setting(path) {
        schema["description"] = setting.help().into();
        if setting.unit().is_some() {
            schema["type"] = json!(["integer", "string"]);
        }
        if setting.text_attribute("x-zero").is_some() {
            let least = schema["minimum"].take();
            schema.as_object_mut().unwrap().remove("minimum");
            schema["anyOf"] = json!([{ "const": 0 }, { "minimum": least }]);
        }
    } else if let Some(schema) = schema.as_object_mut() {
        schema.remove("default");
    }
    let inner = match schema
        .get("items")
        .and_then(|items| items.get("properties"))
    {
        Some(_) => &mut schema["items"],
        None => schema,
    };
    let properties = inner.get_mut("properties").and_then(Json::as_object_mut);
    for (key, schema) in properties.into_iter().flatten() {
        for_editors(schema, &join_path(path, key));
    }
}

impl Setting {
    /// The help after its first paragraph.
    fn note(&self) -> Option<String> {
        let (_, note) = self.text_attribute("description")?.split_once("\n\n")?;
        Some(note.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn help(&self) -> String {
        match self.note() {
            Some(note) => format!("{} {note}", self.meaning()),
            None => self.meaning(),
        }
    }

    /// An example value of a required setting.
    fn example(&self) -> Option<String> {
        let first = self.json.get("examples")?.get(0)?;
        Some(first.to_string())
    }

    fn range_text(&self) -> String {
        let choices = self.choices();
        if !choices.is_empty() {
            let choices: Vec<String> = choices.iter().map(|choice| format!("`{choice}`")).collect();
            return choices.join(", ");
        }
        if self.has_type("string") || !self.has_type("integer") {
            let format = self.json["format"].as_str();
            return format.unwrap_or_default().to_string();
        }
        let (low, high) = self.range();
        let zero = if self.text_attribute("x-zero").is_some() {
            "0, or "
        } else {
            ""
        };
        let text = |number: i64| match self.format_number(number) {
            text if text.contains(' ') => text,
            _ if self.path.contains("bytes") && self.unit().is_some() => format!("{number} B"),
            _ => format_count(number.unsigned_abs()),
        };
        match high >= i64::from(u32::MAX) - 1 {
            true => format!("{zero}from {}", text(low)),
            false => format!("{zero}{} to {}", text(low), text(high)),
        }
    }
}
