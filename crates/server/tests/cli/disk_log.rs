//! Tests `crore log`, which shows and verifies what a real server left on disk after `kill -9`. Damage is reported with its place.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::support::Server;
use crate::support::http::{Conn, publish};
use crate::support::state::State;
use crate::{run, text};

/// The state directory of a server that was killed.
fn stopped_log() -> State {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "chat/a", "first");
    publish(&server, "chat/b", "the needle");
    let headers = [
        ("Content-Type", "application/octet-stream"),
        ("Idempotency-Key", "\"once\""),
    ];
    let mut conn = Conn::open(&server);
    let answer = conn.request("POST", "/pub/chat/a", &headers, [0xff, 0x00]);
    assert!(matches!(answer.status, 201 | 202), "{}", answer.status);
    publish(&server, "news", "last");
    let emptied = conn.request("DELETE", "/pub/chat/b?purge", &[], b"");
    assert_eq!(emptied.status, 200);
    assert_eq!(conn.request("DELETE", "/pub/news", &[], b"").status, 200);
    server.kill();
    state
}

fn log(order: &str, directory: &Path, extra_arguments: &[&str]) -> Output {
    let mut args = vec!["log", order, directory.to_str().expect("text")];
    args.extend(extra_arguments);
    run(&args)
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn lines(output: &Output) -> Vec<Value> {
    let lines = text(&output.stdout).lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn segment(state: &State) -> PathBuf {
    state.directory.join("log/segment-0000000001.log")
}

/// The place of these bytes in the segment.
fn find(state: &State, needle: &[u8]) -> usize {
    let bytes = std::fs::read(segment(state)).expect("the segment");
    let position = bytes.windows(needle.len()).position(|it| it == needle);
    position.expect("they are in the log")
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("a file");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("a file");
}

/// All paths below a directory, with the sizes of the files.
fn listing(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let meta = path.metadata().expect("metadata");
        if meta.is_dir() {
            files.extend(listing(&path));
        }
        files.push((path, meta.len()));
    }
    files.sort();
    files
}

#[test]
fn every_record_is_dumped_with_its_message() {
    let state = stopped_log();
    let files_before = listing(&state.directory);
    let output = log("dump", &state.directory, &["--json", "--topic", "chat/#"]);
    assert_eq!(output.status.code(), Some(0));
    let rows = lines(&output);
    let field = |name: &str| -> Vec<Value> { rows.iter().map(|row| row[name].clone()).collect() };
    let mut kinds: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["kind"].as_str(),
                row["topic"].as_str(),
                row["data"].as_str(),
            )
        })
        .collect();
    kinds.sort_unstable();
    let publish = |topic, data| (Some("publish"), Some(topic), data);
    assert!(
        kinds.contains(&publish("chat/a", Some("first"))),
        "{kinds:?}"
    );
    assert!(
        kinds.contains(&publish("chat/b", Some("the needle"))),
        "{kinds:?}"
    );
    assert!(kinds.contains(&publish("chat/a", None)), "{kinds:?}");
    assert!(
        kinds.contains(&(Some("purge"), Some("chat/b"), None)),
        "{kinds:?}"
    );
    assert!(!field("topic").contains(&"news".into()));
    let binary = rows.iter().find(|row| !row["data_base64"].is_null());
    let binary = binary.expect("a message that is no text");
    assert_eq!(binary["data_base64"], "/wA=");
    assert_eq!(binary["bytes"], 2);
    assert_eq!(binary["content_type"], "application/octet-stream");
    assert!(
        binary["idempotency_key"]
            .as_str()
            .expect("a key")
            .contains("once")
    );
    // The path of the log itself works like that of the state directory.
    let records = log("dump", &state.directory.join("log"), &["--json"]);
    assert!(
        lines(&records)
            .iter()
            .any(|row| row["kind"] == "delete" && row["topic"] == "news")
    );
    let partition = rows[0]["partition"].to_string();
    let of_one = log("dump", &state.directory, &["--partition", &partition]);
    let report = text(&of_one.stdout);
    let expected = lines(&records)
        .iter()
        .filter(|row| row["partition"] == rows[0]["partition"])
        .count();
    assert_eq!(report.lines().count(), expected);
    assert!(
        report
            .lines()
            .all(|line| line.starts_with("segment=1 group=")),
        "{report}"
    );
    assert!(report.contains(" kind=publish topic=\"chat/"), "{report}");
    assert_eq!(
        listing(&state.directory),
        files_before,
        "nothing is changed"
    );
}

#[test]
fn log_report_has_segments_base_partitions_and_totals() {
    let state = stopped_log();
    let found = json(&log("inspect", &state.directory, &["--json"]));
    assert_eq!(found["identity"].as_str().map(str::len), Some(16));
    assert_eq!(found["segments"][0]["segment"], 1);
    assert_eq!(found["segments"][0]["first_group"], 1);
    assert_eq!(found["base"]["homes"], 2);
    assert_eq!(found["base"]["partitions"], 16);
    assert_eq!(found["base"]["clean"], false);
    assert_eq!(found["damages"], serde_json::json!([]));
    let rows = lines(&log("dump", &state.directory, &["--json"]));
    assert_eq!(found["totals"]["records"], rows.len());
    let partitions = found["partitions"].as_array().expect("a list");
    for partition in partitions {
        let offsets = rows
            .iter()
            .filter(|row| row["partition"] == partition["partition"]);
        let offsets: Vec<_> = offsets.map(|row| row["offset"].as_u64()).collect();
        assert_eq!(partition["records"], offsets.len());
        assert_eq!(partition["first_offset"].as_u64(), offsets[0]);
        assert_eq!(
            partition["last_offset"].as_u64(),
            offsets[offsets.len() - 1]
        );
        assert_eq!(partition["writers"].as_array().map(Vec::len), Some(1));
    }
    let output = log("inspect", &state.directory, &[]);
    let report = text(&output.stdout);
    let identity = found["identity"].as_str().expect("text");
    for words in [
        identity,
        "2 homes, 16 partitions",
        "not clean",
        "first_offset",
        "good: 1 segments",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    // The log after a planned stop.
    Server::with(&state.settings()).stop();
    let found = json(&log("inspect", &state.directory, &["--json"]));
    assert_eq!(found["base"]["clean"], true);
    assert_eq!(found["base"]["group"], found["totals"]["last_group"]);
    assert_eq!(log("verify", &state.directory, &[]).status.code(), Some(0));
}

#[test]
fn one_changed_byte_is_found_with_its_segment_and_byte() {
    let state = stopped_log();
    assert_eq!(log("verify", &state.directory, &[]).status.code(), Some(0));
    let offset = find(&state, b"needle");
    change(&segment(&state), |bytes| bytes[offset] ^= 1);
    let output = log("verify", &state.directory, &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(
        report.contains("damage: segment 1 of the log is damaged, at byte "),
        "{report}"
    );
    let found = json(&log("verify", &state.directory, &["--json"]));
    assert_eq!(found["good"], false);
    let damage = &found["damages"][0];
    assert_eq!(damage["segment"], 1);
    let byte = damage["byte"].as_u64().expect("a byte");
    // The reported byte is the start of the group (the records of one commit) that contains the damage.
    assert!(
        byte < offset as u64 && offset as u64 - byte < 512,
        "{byte}, {offset}"
    );
    // The other messages are dumped nevertheless, and the damage is reported.
    let output = log("dump", &state.directory, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("damage: segment 1"));
    let rows = lines(&output);
    assert!(rows.iter().any(|row| row["data"] == "last"));
    assert!(!rows.iter().any(|row| row["data"] == "the needle"));
}

#[test]
fn torn_end_is_reported_and_is_no_damage() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "kept");
    publish(&server, "a", "torn: needle");
    server.kill();
    let offset = find(&state, b"needle");
    change(&segment(&state), |bytes| bytes[offset..].fill(0));
    let output = log("verify", &state.directory, &[]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report.contains("torn: segment 1 at byte "), "{report}");
    assert_eq!(
        json(&log("verify", &state.directory, &["--json"]))["torn"]["segment"],
        1
    );
}

#[test]
fn a_log_that_was_longer_is_damaged() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "kept");
    publish(&server, "a", "cut: needle");
    server.kill();
    assert_eq!(log("verify", &state.directory, &[]).status.code(), Some(0));
    let offset = find(&state, b"needle");
    let undamaged = std::fs::read(segment(&state)).expect("the segment");
    std::fs::write(segment(&state), &undamaged[..offset]).expect("the segment");
    let cut = log("verify", &state.directory, &[]);
    std::fs::remove_file(segment(&state)).expect("the segment");
    let deleted = log("verify", &state.directory, &[]);
    let (where_it_ends, nothing) = (
        "segment 1 of the log is where the log ends now",
        "the log has none of the segments",
    );
    for (output, finding) in [(cut, where_it_ends), (deleted, nothing)] {
        assert_eq!(output.status.code(), Some(1));
        let report = text(&output.stdout);
        let damage = format!("damage: {finding}");
        assert!(
            report.contains(&damage) && report.contains("damaged: "),
            "{report}"
        );
    }
}

#[test]
fn damage_in_the_base_and_a_log_that_ends_before_it_are_found() {
    let state = stopped_log();
    Server::with(&state.settings()).stop();
    let document = state.base().join("home-1.state");
    let original = std::fs::read(&document).expect("a document");
    for offset in [0, original.len() / 2, original.len() - 1] {
        change(&document, |bytes| bytes[offset] ^= 1);
        let output = log("verify", &state.directory, &[]);
        assert_eq!(output.status.code(), Some(1), "byte {offset}");
        assert!(
            text(&output.stdout).contains("home-1.state"),
            "byte {offset}"
        );
        std::fs::write(&document, &original).expect("a document");
    }
    std::fs::remove_file(&document).expect("a document");
    assert_eq!(log("verify", &state.directory, &[]).status.code(), Some(1));
    std::fs::write(&document, &original).expect("a document");
    std::fs::remove_file(segment(&state)).expect("the segment");
    let output = log("verify", &state.directory, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("before group"));
}

#[test]
fn missing_newer_and_linked_segments_are_reported() {
    let state = stopped_log();
    let other = state.directory.join("log/segment-0000000003.log");
    std::fs::copy(segment(&state), &other).expect("a copy");
    let output = log("verify", &state.directory, &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(
        report.contains("segment 3 of the log comes after segments that are missing"),
        "{report}"
    );
    std::fs::remove_file(&other).expect("the copy");
    let link = state.directory.join("log/segment-0000000002.log");
    std::os::unix::fs::symlink(segment(&state), &link).expect("a link");
    for order in ["inspect", "verify", "dump"] {
        let output = log(order, &state.directory, &[]);
        assert_eq!(output.status.code(), Some(2), "{order}");
        let error_text = text(&output.stderr);
        assert!(
            error_text.starts_with("crore: ") && error_text.contains("is no ordinary file"),
            "{error_text}"
        );
    }
    std::fs::remove_file(&link).expect("the link");
    std::fs::write(state.directory.join("log/notes.txt"), "of the operator").expect("a file");
    let output = log("verify", &state.directory, &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("left alone: notes.txt"));
}

#[test]
fn a_directory_without_a_log_ends_with_2() {
    let empty = State::new();
    for exists in [false, true] {
        if exists {
            std::fs::create_dir(&empty.directory).expect("a directory");
        }
        for order in ["inspect", "verify", "dump"] {
            let output = log(order, &empty.directory, &[]);
            assert_eq!(output.status.code(), Some(2), "{order}");
            assert!(output.stdout.is_empty());
            let error_text = text(&output.stderr);
            assert!(
                error_text.contains(empty.directory.to_str().expect("text")),
                "{error_text}"
            );
        }
    }
}

#[test]
fn running_server_continues_while_its_log_is_read() {
    let state = State::new();
    let server = Server::with(&state.settings());
    for n in 0..20 {
        publish(&server, "a", n.to_string());
        let output = log("verify", &state.directory, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    }
    let rows = lines(&log("dump", &state.directory, &["--json", "--topic", "a"]));
    let data: Vec<_> = rows.iter().filter_map(|row| row["data"].as_str()).collect();
    let expected: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(data, expected);
}
