//! Tests settings through the real binary: what `crore serve --check` prints, what it refuses and with which error text, and that the
//! documents say the same as the code.

mod documents;
mod refusals;
mod variables;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use toml::{Table, Value};

/// A directory for one run, which is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("config-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `crore serve --check` with `text` as `./crore.toml`, if given.
fn check(text: Option<&str>, flags: &[&str]) -> Output {
    let dir = Dir::new();
    if let Some(text) = text {
        std::fs::write(dir.0.join("crore.toml"), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command
        .args(["serve", "--check"])
        .args(flags)
        .current_dir(&dir.0)
        .output()
        .unwrap()
}

/// The effective settings; the run must succeed.
fn effective(text: Option<&str>, flags: &[&str]) -> Table {
    let output = check(text, flags);
    assert!(
        output.status.success(),
        "{text:?} {flags:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

#[test]
fn flags_win_over_the_file_and_the_file_over_the_defaults() {
    let file = "shards = 3\nbacklog = 7\n[limits]\nmessage_bytes = '2 MiB'\n[[rule]]\nmatch = 'a'\nlog_messages = 4";
    let flags = [
        "--shards",
        "5",
        "--keep",
        "0",
        "--listen",
        "[::1]:99",
        "--allowed-origin",
        "https://a.example",
    ];
    let table = effective(Some(file), &flags);
    assert_eq!(table["shards"].as_integer(), Some(5));
    assert_eq!(table["backlog"].as_integer(), Some(7));
    assert_eq!(table["limits"]["message_bytes"].as_str(), Some("2 MiB"));
    assert_eq!(table["limits"]["head_bytes"].as_str(), Some("8 KiB"));
    assert_eq!(table["listen"][0].as_str(), Some("[::1]:99"));
    assert_eq!(
        table["http"]["allowed_origins"][0].as_str(),
        Some("https://a.example")
    );
    let rules = table["rule"].as_array().unwrap();
    let remaining_rules: Vec<_> = rules
        .iter()
        .map(|rule| {
            (
                rule["match"].as_str().unwrap(),
                rule["log_messages"].as_integer().unwrap(),
            )
        })
        .collect();
    assert_eq!(remaining_rules, [("a", 4), ("#", 0)]);
}

#[test]
fn output_of_check_is_read_back_as_the_same() {
    let file = "[[rule]]\nmatch = 'x/+'\nfirst = -7\nslow = 'skip'\nconcurrency = 'last'\n[http]\ntrusted_proxies = ['10.0.0.0/8', '::1']";
    let printed = effective(
        Some(file),
        &["--log-bytes", "123456789", "--deflate", "false"],
    );
    assert_eq!(
        printed["limits"]["log_bytes"].as_integer(),
        Some(123_456_789)
    );
    assert_eq!(printed["rule"][0]["first"].as_integer(), Some(-7));
    let quoted = effective(Some(&file.replace("-7", "'-7'")), &[]);
    assert_eq!(quoted["rule"], printed["rule"]);
    assert_eq!(
        printed["http"]["trusted_proxies"][1].as_str(),
        Some("::1/128")
    );
    assert_eq!(printed["deflate"]["enabled"].as_bool(), Some(false));
    assert_eq!(effective(Some(&printed.to_string()), &[]), printed);
}

#[test]
fn settings_left_to_the_host_are_resolved() {
    let table = effective(None, &[]);
    assert!(table["shards"].as_integer().unwrap() >= 1);
    let logs = table["limits"]["log_bytes"].clone();
    assert_ne!(logs, Value::Integer(0));
    assert!(!effective(Some("listen = ['0.0.0.0:1']"), &["--insecure"]).is_empty());
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    let output = check(None, &["--config", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nowhere.toml: cannot be read"), "{error}");
}

/// The result does not depend on the directory in which the server is started.
#[test]
fn a_relative_path_begins_at_the_folder_of_the_settings_file() {
    let (dir, elsewhere) = (Dir::new(), Dir::new());
    std::fs::create_dir(dir.0.join("state")).unwrap();
    std::fs::write(dir.0.join("key"), "0123456789abcdef0123456789abcdef").unwrap();
    let text = "[state]\ndirectory = 'state'\n[[access.key]]\nalg = 'HS256'\nfile = 'key'\n";
    std::fs::write(dir.0.join("crore.toml"), text).unwrap();
    let file = dir.0.join("crore.toml");
    for (folder, flags) in [
        (&dir.0, vec![]),
        (&elsewhere.0, vec!["--config", file.to_str().unwrap()]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
        let command = command.args(["serve", "--check"]).args(flags);
        let output = command.current_dir(folder).output().unwrap();
        let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error_text}");
        let table: Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
        let path = |value: &Value| PathBuf::from(value.as_str().unwrap());
        assert_eq!(path(&table["state"]["directory"]), dir.0.join("state"));
        assert_eq!(path(&table["access"]["key"][0]["file"]), dir.0.join("key"));
    }
}

#[test]
fn a_filter_with_a_wildcard_of_another_server_is_warned_of() {
    let settings =
        "[[rule]]\nmatch = 'scores/*'\n[access.anonymous]\nsubscribe = ['news', 'chat.>']\n";
    let output = check(Some(settings), &[]);
    assert!(output.status.success());
    let error_text = String::from_utf8(output.stderr).unwrap();
    for words in [
        "crore.toml:2:9: rule[1].match: `*` and `>` are no wildcards in 'scores/*'; topics match 'scores/+' (any one level) or 'scores/#'",
        "crore.toml:4:22: access.anonymous.subscribe[2]: `*` and `>` are no wildcards in 'chat.>'; topics match 'chat/#'",
    ] {
        assert!(error_text.contains(words), "{error_text}");
    }
}

#[test]
fn unclosed_list_is_reported_at_the_line_where_it_begins() {
    for (text, words) in [
        (
            "shards = 2\nlisten = [\n  '127.0.0.1:8800',\n[limits]\n",
            "crore.toml:4:2: ",
        ),
        (
            "shards = 2\nlisten = ['127.0.0.1:8800'\nbacklog = 2",
            "crore.toml:3:1: ",
        ),
    ] {
        let output = check(Some(text), &[]);
        let error_text = String::from_utf8(output.stderr).unwrap();
        let line = "; or the list that begins in line 2 is not closed";
        assert!(
            error_text.contains(words) && error_text.contains(line),
            "{error_text}"
        );
    }
}
