//! Settings, through the real binary: what `crore serve --check` prints, what it refuses and in which
//! words, and that the documents say the same as the code.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use toml::{Table, Value};

/// A directory of its own for one run, removed at the end.
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
fn refusals_name_the_place_the_key_and_the_remedy() {
    let table: &[(&str, &[&str])] = &[
        // Not TOML, unknown keys, wrong types.
        ("listen = [", &["crore.toml:1:11: ", "array"]),
        (
            "shards = 2\nshard = 2",
            &[
                "crore.toml:2:1: shard: unknown field",
                "`shards`",
                "remove the key",
            ],
        ),
        (
            "[limits]\n\ntopic_byte = 3",
            &[
                "crore.toml:3:1: limits.topic_byte: unknown field",
                "`topic_bytes`",
            ],
        ),
        (
            "[http]\nloopback_hosts_only = false",
            &["crore.toml:2:1: http.loopback_hosts_only: unknown field"],
        ),
        (
            "[[rule]]\nmatch = 'a'\n[[rule]]\nmatch = 'b'\nkeeps = 1",
            &["crore.toml:5:1: rule[2].keeps: unknown field"],
        ),
        (
            "[limit]\nx = 1",
            &["crore.toml:1:2: limit: unknown field", "`limits`"],
        ),
        (
            "shards = -1",
            &[
                "crore.toml:1:10: shards: ",
                "`-1`",
                "a whole number, 0 upwards",
            ],
        ),
        (
            "shards = 'all'",
            &["crore.toml:1:10: shards: ", "\"all\"", "a whole number"],
        ),
        (
            "limits = 3",
            &["crore.toml:1:10: limits: ", "expected a table"],
        ),
        (
            "[deflate]\nlevel = 300",
            &["crore.toml:2:9: deflate.level: ", "`300`", "0 to 255"],
        ),
        (
            "[timeouts]\nhead_s = '5s'",
            &[
                "crore.toml:2:10: timeouts.head_s: ",
                "\"5s\"",
                "a whole number",
            ],
        ),
        (
            "backlog = 99999999999",
            &[
                "crore.toml:1:11: backlog: ",
                "`99999999999`",
                "0 to 4294967295",
            ],
        ),
        ("pin = 1", &["crore.toml:1:7: pin: ", "`1`", "boolean"]),
        // Values with a form of their own.
        (
            "[limits]\nlog_bytes = '3 KB'",
            &["crore.toml:2:13: limits.log_bytes: `3 KB`", "64 KiB", "kB"],
        ),
        (
            "[limits]\nlog_bytes = 'lots'",
            &["crore.toml:2:13: limits.log_bytes: `lots`", "64 KiB"],
        ),
        (
            "[limits]\nlog_bytes = -1",
            &["crore.toml:2:13: limits.log_bytes: `-1`", "64 KiB"],
        ),
        (
            "[limits]\nlog_bytes = '99999999999999 GiB'",
            &["limits.log_bytes: `99999999999999 GiB`", "more than"],
        ),
        (
            "listen = ['[::1]:1', '127.0.0.1']",
            &["crore.toml:1:22: listen[2]: `127.0.0.1`", "127.0.0.1:8800"],
        ),
        (
            "[http]\ntrusted_proxies = ['10.0.0.1/8']",
            &["crore.toml:2:20: http.trusted_proxies[1]", "\"10.0.0.0/8\""],
        ),
        (
            "[http]\ntrusted_proxies = ['10.0.0.0/33']",
            &["http.trusted_proxies[1]", "at most 32"],
        ),
        (
            "[http]\ntrusted_proxies = ['lan']",
            &["http.trusted_proxies[1]: `lan`", "10.0.0.0/8"],
        ),
        (
            "[[rule]]\nmatch = '#'\nfirst = 5",
            &["crore.toml:3:9: rule[1].first: `5`", "by-transport", "-N"],
        ),
        (
            "[[rule]]\nmatch = '#'\nfirst = 'newest'",
            &["rule[1].first: `newest`", "oldest", "-5"],
        ),
        (
            "[[rule]]\nmatch = '#'\nslow = 'drop'",
            &["rule[1].slow: ", "`drop`", "`disconnect` or `skip`"],
        ),
        (
            "[[rule]]\nmatch = '#'\nconcurrency = 'all'",
            &["rule[1].concurrency: ", "`broadcast`", "`last`"],
        ),
        // Ranges.
        (
            "listen = []",
            &["crore.toml:1:10: listen: ", "at least one"],
        ),
        (
            "listen = ['127.0.0.1:1', '127.0.0.1:1']",
            &["crore.toml:1:26: listen[2]: 127.0.0.1:1", "twice"],
        ),
        (
            "listen = ['0.0.0.0:1']",
            &["crore.toml:1:11: listen[1]: 0.0.0.0:1", "--insecure"],
        ),
        (
            "shards = 257",
            &[
                "crore.toml:1:10: shards: 257",
                "0 (one for each core)",
                "256",
            ],
        ),
        (
            "backlog = 0",
            &["crore.toml:1:11: backlog: 0", "from 1 to 65535"],
        ),
        (
            "[limits]\ntopic_bytes = 1001",
            &[
                "crore.toml:2:15: limits.topic_bytes: 1001",
                "from 1 to 1000",
            ],
        ),
        (
            "[limits]\nmessage_bytes = 0",
            &["limits.message_bytes: 0", "from 1"],
        ),
        (
            "[limits]\nmessage_bytes = '65 MiB'\nbatch_bytes = '64 MiB'",
            &["limits.message_bytes: 68157440", "from 1 to 67108864"],
        ),
        (
            "[limits]\nmessage_bytes = '8 MiB'",
            &[
                "crore.toml:1:1: limits.publish_credit_bytes",
                "limits.message_bytes (8388608)",
            ],
        ),
        (
            "[limits]\nmemory_bytes = '16 MiB'",
            &[
                "crore.toml:2:16: limits.memory_bytes: 16777216",
                "4 times limits.batch_bytes (8388608)",
            ],
        ),
        (
            "[limits]\npublishes_per_s = 10\npublishes_burst = 9",
            &[
                "limits.publishes_burst: 9 is less than limits.publishes_per_s (10)",
                "0 (one second",
            ],
        ),
        (
            "[limits]\nlog_bytes = 5",
            &["limits.log_bytes: 5", "0 (an eighth of the memory)"],
        ),
        (
            "[http]\nproxy_protocol = true",
            &[
                "crore.toml:2:18: http.proxy_protocol: ",
                "http.trusted_proxies is empty",
            ],
        ),
        (
            "[timeouts]\ndrain_s = 0",
            &["timeouts.drain_s: 0", "from 1"],
        ),
        (
            "[heartbeat]\ninterval_s = 4",
            &[
                "crore.toml:2:14: heartbeat.interval_s: 4",
                "0 (off)",
                "from 5",
            ],
        ),
        (
            "[heartbeat]\njitter_percent = 100",
            &["heartbeat.jitter_percent: 100", "from 0 to 90"],
        ),
        (
            "deflate.level = 0",
            &["crore.toml:1:17: deflate.level: 0", "from 1 to 9"],
        ),
        (
            "deflate = { level = 10 }",
            &["crore.toml:1:21: deflate.level: 10", "from 1 to 9"],
        ),
        (
            "[[rule]]\nfirst = 'live'",
            &["crore.toml:1:1: rule[1].match: ", "missing", "chat/#"],
        ),
        (
            "[[rule]]\nmatch = 'a/#/b'",
            &["crore.toml:2:9: rule[1].match: `a/#/b`", "chat/+/room"],
        ),
        (
            "[[rule]]\nmatch = 'a'\n[[rule]]\nmatch = 'a'",
            &["crore.toml:4:9: rule[2].match", "rule[1]", "remove one"],
        ),
        (
            "[[rule]]\nmatch = 'a'\npoll_timeout_status = 200",
            &["rule[1].poll_timeout_status: 200", "204 or 408"],
        ),
        (
            "[[rule]]\nmatch = 'a'\nkeep = 'all'",
            &[
                "crore.toml:3:8: rule[1].keep: ",
                "`all`",
                "`log`",
                "`latest`",
            ],
        ),
        (
            "[limits]\nmemory_bytes = '64 MiB'\n[[rule]]\nmatch = 'a'\noutbox_bytes = '17 MiB'",
            &[
                "crore.toml:5:16: rule[1].outbox_bytes: 17825792",
                "more than a quarter of limits.memory_bytes (16777216)",
            ],
        ),
        (
            "[[rule]]\nmatch = 'a'\nkeys_max = 0",
            &["rule[1].keys_max: 0", "from 1 to 1000000"],
        ),
        (
            "[http]\npublish_paths = ['pub']",
            &["crore.toml:2:18: http.publish_paths[1]: `pub`", "\"/pub\""],
        ),
        (
            "[http]\npublish_paths = ['/sub/x']",
            &["http.subscribe_paths[1]: `/sub`", "overlap"],
        ),
        (
            "[http]\nallowed_origins = ['https://a/b']",
            &[
                "http.allowed_origins[1]: `https://a/b`",
                "https://app.example.com",
            ],
        ),
        (
            "[admin]\nconnections_max = 0",
            &["admin.connections_max: 0", "from 1 to 10000"],
        ),
        (
            "[admin]\nhead_s = 3601",
            &["admin.head_s: 3601", "from 1 to 3600"],
        ),
        (
            "[admin]\nbody_s = 0",
            &["admin.body_s: 0", "from 1 to 3600"],
        ),
    ];
    for (text, parts) in table {
        let output = check(Some(text), &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}\n{error}");
        assert!(output.stdout.is_empty(), "{text}");
        for part in *parts {
            assert!(error.contains(part), "{text}\n{error}\nlacks {part}");
        }
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let output = check(
        Some("shards = 999\n[deflate]\nlevel = 0"),
        &["--heartbeat", "1"],
    );
    let error = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    for (line, place) in lines.iter().zip([
        "crore.toml:1:10: ",
        "--heartbeat: heartbeat.interval_s: ",
        "crore.toml:3:9: ",
    ]) {
        assert!(line.starts_with(&format!("crore: {place}")), "{error}");
    }
}

#[test]
fn more_rules_than_a_topic_can_name_are_refused_and_the_one_that_keep_adds_counts() {
    let code = |count: usize, flags: &[&str]| {
        let rule = |n| format!("[[rule]]\nmatch = 'r/{n}'\n");
        let rules: String = (0..count).map(rule).collect();
        check(Some(&rules), flags).status.code()
    };
    assert_eq!((code(253, &[]), code(254, &[])), (Some(0), Some(1)));
    let keep = ["--keep", "5"];
    assert_eq!((code(252, &keep), code(253, &keep)), (Some(0), Some(1)));
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
    let kept: Vec<_> = rules
        .iter()
        .map(|rule| {
            (
                rule["match"].as_str().unwrap(),
                rule["log_messages"].as_integer().unwrap(),
            )
        })
        .collect();
    assert_eq!(kept, [("a", 4), ("#", 0)]);
}

#[test]
fn what_check_prints_gives_the_same_again() {
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
fn what_is_left_to_the_host_is_resolved() {
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
