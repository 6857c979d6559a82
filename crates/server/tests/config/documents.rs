//! The example file and the page about the settings say the same as the code.

use std::path::Path;
use std::process::Command;

use toml::{Table, Value};

use crore_broker::Reason;

use crate::effective;

fn doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

/// All leaves of the table as `a.b`, without the rules.
fn leaves(table: &Table) -> Vec<(String, Value)> {
    let mut leaves = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                leaves.extend(
                    inner
                        .iter()
                        .map(|(name, value)| (format!("{key}.{name}"), value.clone())),
                );
            }
            _ if key == "rule" => {}
            _ => leaves.push((key.clone(), value.clone())),
        }
    }
    leaves
}

#[test]
fn the_example_file_holds_exactly_the_defaults() {
    let example = doc("crore.example.toml");
    assert_eq!(effective(Some(&example), &[]), effective(None, &[]));
    // Every key is in it.
    let written = leaves(&example.parse().unwrap());
    let keys = |leaves: &[(String, Value)]| {
        leaves
            .iter()
            .map(|(key, _)| key.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&written), keys(&leaves(&effective(None, &[]))));
    // The rule that is shown as a comment holds the defaults of a rule, and all of them.
    let (_, shown) = example.split_once("#\n# [[rule]]").unwrap();
    let shown: String = format!("# [[rule]]{shown}")
        .lines()
        .map(|line| format!("{}\n", &line[2..]))
        .collect();
    let shown_rule = shown.parse::<Table>().unwrap()["rule"][0].clone();
    let (_, access) = example.split_once("#\n# [access]").unwrap();
    let access: String = format!("# [access]{access}")
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| format!("{}\n", &line[2..]))
        .collect();
    let shown_access = access.parse::<Table>().unwrap()["access"].clone();
    let default_access = effective(Some("[access]"), &[])["access"].clone();
    assert_eq!(shown_access, default_access);
    let default_rule = effective(Some("[[rule]]\nmatch = 'chat/#'"), &[])["rule"][0].clone();
    assert_eq!(shown_rule, default_rule);
}

#[test]
fn the_documented_settings_are_all_of_them_with_their_defaults() {
    let mut expected = leaves(&effective(None, &[]));
    for (key, value) in &mut expected {
        // These are resolved by the host; the document gives the value that says so.
        let resolved = [
            "shards",
            "limits.log_bytes",
            "limits.connections_max",
            "limits.accepts_per_s",
            "limits.memory_bytes",
            "publish.idempotency_keys",
        ];
        if resolved.contains(&key.as_str()) {
            *value = Value::Integer(0);
        }
    }
    let rule = effective(Some("[[rule]]\nmatch = 'x'"), &[])["rule"][0].clone();
    expected.extend(
        rule.as_table()
            .unwrap()
            .iter()
            .map(|(name, value)| (format!("rule.{name}"), value.clone())),
    );
    let access = effective(Some("[access]"), &[])["access"].clone();
    expected.extend(
        access
            .as_table()
            .unwrap()
            .iter()
            .map(|(name, value)| (format!("access.{name}"), value.clone())),
    );
    let mut expected: Vec<(String, String)> = expected
        .into_iter()
        .map(|(key, value)| {
            if key == "rule.match" {
                (key, "required".to_string())
            } else {
                (key, format!("`{value}`"))
            }
        })
        .collect();

    let text = doc("SETTINGS.md");
    let (settings, _) = text.split_once("## Flags").unwrap();
    let mut documented: Vec<(String, String)> = settings
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let key = cells.next()?.trim_end_matches('`');
            Some((key.to_string(), cells.next()?.to_string()))
        })
        .collect();
    expected.sort();
    documented.sort();
    assert_eq!(documented, expected);
}

#[test]
fn the_documented_flags_exist_and_all_flags_are_documented() {
    let help = Command::new(env!("CARGO_BIN_EXE_crore"))
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flag = |line: &str| {
        Some(
            line.split_once("--")?
                .1
                .split(|c: char| c != '-' && !c.is_ascii_lowercase())
                .next()?
                .to_string(),
        )
    };
    let (options, _) = help.split_once("Settings come from").unwrap();
    let (_, options) = options.split_once("Options:").unwrap();
    let mut offered: Vec<String> = options
        .lines()
        .filter(|line| line.trim_start().starts_with('-'))
        .filter_map(flag)
        .collect();
    offered.retain(|name| !["help", "check", "config"].contains(&name.as_str()));
    let text = doc("SETTINGS.md");
    let (_, flags) = text.split_once("## Flags").unwrap();
    let mut documented: Vec<String> = flags
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .filter_map(flag)
        .collect();
    offered.sort();
    documented.sort();
    assert_eq!(documented, offered);
}

/// `docs/REASONS.md` has the server's table of reasons; with `INSTA_UPDATE=always` it is written.
#[test]
fn the_documented_reasons_are_those_of_the_server() {
    let number = |code: Option<u16>| code.map_or(String::new(), |code| code.to_string());
    let rows: String = Reason::ALL
        .iter()
        .map(|reason| {
            let row = reason.row();
            let code = row.mqtt.map_or(String::new(), |code| {
                format!("0x{:02X} {}", code.value(), code.name())
            });
            let old = row.mqtt.and_then(|code| code.connect_return_code());
            let old = number(old.map(u16::from));
            let (status, close) = (number(row.status), number(row.close));
            let (name, closed, text) = (row.name, row.closed.name(), row.text);
            format!("| `{name}` | {status} | {close} | {code} | {old} | {closed} | {text} |\n")
        })
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/REASONS.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, table) = page.split_once("|---|---|---|---|---|---|---|\n").unwrap();
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        return std::fs::write(
            &path,
            format!("{head}|---|---|---|---|---|---|---|\n{rows}"),
        )
        .unwrap();
    }
    assert_eq!(table, rows, "INSTA_UPDATE=always writes docs/REASONS.md");
}
