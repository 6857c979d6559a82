//! Tests that the example file and the pages of the documentation say the same as the code.

use std::path::Path;
use std::process::Command;

use crore_broker::Reason;
use crore_broker::protocol::PARAMETERS;
use crore_broker::protocol::headers::{OF_ANSWERS, OF_PUBLISH, Row};
use crore_wire::sse::{GAP_EVENT, OWN_EVENTS};

use crate::effective;

fn doc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_example_file_holds_the_defaults() {
    let example = doc("crore.example.toml");
    assert_eq!(effective(Some(&example), &[]), effective(None, &[]));
    // The tables that are commented out in the example file have the default values too.
    let switched_on = |table: &str| {
        let lines = example
            .lines()
            .skip_while(|line| *line != format!("#{table}"));
        let lines = lines.take_while(|line| !line.is_empty());
        let settings =
            lines.filter_map(|line| line.strip_prefix('#').filter(|it| !it.starts_with(' ')));
        effective(Some(&settings.collect::<Vec<_>>().join("\n")), &[])
    };
    assert_eq!(switched_on("[access]"), effective(Some("[access]"), &[]));
    assert_eq!(
        switched_on("[[rule]]"),
        effective(Some("[[rule]]\nmatch = 'chat/#'"), &[])
    );
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
        .filter(|line| line.starts_with("| `-"))
        .filter_map(flag)
        .collect();
    offered.sort();
    documented.sort();
    assert_eq!(documented, offered);
}

/// The text, with a link for each page that it names.
fn with_links(text: &str) -> String {
    let word = |word: &str| {
        let page = word.strip_prefix("docs/");
        let end = page.and_then(|page| page.find(".md")).map(|at| at + 3);
        page.zip(end).map_or(word.to_string(), |(page, end)| {
            let (page, rest) = page.split_at(end);
            format!("[{page}]({page}){rest}")
        })
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// `docs/REASONS.md` has the server's table of reasons. With `INSTA_UPDATE=always` the test writes the table to the page.
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
            let v3_code = row.mqtt.and_then(|code| code.connect_return_code());
            let v3_code = number(v3_code.map(u16::from));
            let (status, close) = (number(row.status), number(row.close));
            let (name, closed, text) = (row.name, row.closed.name(), row.text);
            let remedy = with_links(row.remedy);
            format!(
                "| `{name}` | {status} | {close} | {code} | {v3_code} | {closed} | {text} | {remedy} |\n"
            )
        })
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/REASONS.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let is_row = |line: &&str| line.starts_with("| `");
    let table: String = page.split_inclusive('\n').filter(is_row).collect();
    write_or_compare(&path, &page, &page.replace(&table, &rows));
}

/// The page, with the name of a gap's event wherever a program listens for an event of the server's own. (A gap: the client has missed
/// messages.)
fn with_gap(page: &str) -> String {
    let mut page = page.to_string();
    for listens in [
        "addEventListener(\"",
        "addEventListener('",
        "[\"message\", \"",
    ] {
        let own_events = format!("{listens}{OWN_EVENTS}");
        let mut parts = page.split(&own_events);
        let mut generated = parts.next().unwrap().to_string();
        for rest in parts {
            let end = rest.find(['"', '\'']).expect("the end of a name");
            generated = format!("{generated}{listens}{GAP_EVENT}{}", &rest[end..]);
        }
        page = generated;
    }
    page
}

/// Programs on the pages and in the tests listen for the server's event of a gap. With `INSTA_UPDATE=always` the test writes the event's
/// name into them.
#[test]
fn programs_listen_for_the_event_of_a_gap() {
    for name in [
        "../../docs/CLIENTS.md",
        "../../docs/RECIPES.md",
        "../../examples/quickstart/index.html",
        "tests/clients/browser.mjs",
        "tests/clients/eventsource_client.mjs",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let page = std::fs::read_to_string(&path).unwrap();
        let generated = with_gap(&page);
        assert!(generated.contains(GAP_EVENT), "{name}");
        write_or_compare(&path, &page, &generated);
    }
}

/// Checks that the file has the text `generated`. With `INSTA_UPDATE=always` it writes the text instead.
fn write_or_compare(path: &Path, page: &str, generated: &str) {
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        return std::fs::write(path, generated).unwrap();
    }
    let name = path.display();
    assert!(page == generated, "INSTA_UPDATE=always writes {name}");
}

/// The page, with new rows in the table that begins with `head`.
fn with_rows(page: &str, head: &str, rows: impl Iterator<Item = String>) -> String {
    let head = format!("{head}\n|---|---|\n");
    let (before, rest) = page.split_once(&head).expect(&head);
    let (_, after) = rest.split_once("\n\n").expect("an end of the table");
    let rows: String = rows.collect();
    format!("{before}{head}{rows}\n{after}")
}

/// The pages about the protocols have the server's tables of headers and parameters. With `INSTA_UPDATE=always` the test writes the
/// tables.
#[test]
fn the_documented_headers_and_parameters_are_those_of_the_server() {
    let header = |(name, meaning): &Row| format!("| `{name}` | {meaning} |\n");
    let path = |(path, names): &(&str, &[&str])| format!("| {path} | `{}` |\n", names.join("`, `"));
    for name in ["PROTOCOLS.md", "PROTOCOL-DETAILS.md"] {
        let page = doc(name);
        let generated = with_gap(&page);
        let generated = match name {
            "PROTOCOLS.md" => {
                let generated = with_rows(
                    &generated,
                    "| header | meaning |",
                    OF_PUBLISH.iter().map(header),
                );
                let answers = OF_ANSWERS.iter().map(header);
                with_rows(&generated, "| header of an answer | meaning |", answers)
            }
            _ => with_rows(&generated, "| path | reads |", PARAMETERS.iter().map(path)),
        };
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        write_or_compare(&docs.join(name), &page, &generated);
    }
}

/// The page has a row for each status of a refusal, so that a client finds what to do.
#[test]
fn each_status_of_a_reason_has_a_row() {
    let page = doc("PROTOCOLS.md");
    for status in Reason::ALL.iter().filter_map(|reason| reason.row().status) {
        let row = format!("\n| {status} | ");
        assert!(page.contains(&row), "docs/PROTOCOLS.md has no {status}");
    }
}

/// Each response header of Crore's own has a row in the table. The table also decides which headers scripts of other origins may read.
#[test]
fn headers_of_answers_that_are_ours_have_a_row() {
    let broker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../broker/src/protocol");
    let mut folders = vec![broker];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for call in [".header(\"Crore-", ".number(\"Crore-"] {
                for rest in text.split(call).skip(1) {
                    let name = format!("Crore-{}", rest.split('"').next().unwrap());
                    let known = OF_ANSWERS.iter().any(|(known, _)| *known == name);
                    assert!(known, "{name} of {} has no row", path.display());
                }
            }
        }
    }
}
