//! Tests environment variables for settings: every setting has one; it takes precedence over the file, and flags take precedence over it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output};

use toml::{Table, Value};

use super::{Dir, effective};

/// Runs `crore serve --check` with this file, these flags and these variables.
fn check(file: Option<&str>, flags: &[&str], variables: &[(&str, &OsStr)]) -> Output {
    let dir = Dir::new();
    if let Some(text) = file {
        std::fs::write(dir.0.join("crore.toml"), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command
        .args(["serve", "--check"])
        .args(flags)
        .envs(variables.iter().copied())
        .current_dir(&dir.0);
    command.output().unwrap()
}

fn check_with(file: Option<&str>, flags: &[&str], variables: &[(&str, &str)]) -> (Table, String) {
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, OsStr::new(*value)))
        .collect();
    let output = check(file, flags, &variables);
    let error_text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{variables:?}: {error_text}");
    let printed = String::from_utf8(output.stdout).unwrap();
    (printed.parse().unwrap(), error_text)
}

/// The error about a variable that the server cannot use. The server does not start with it.
fn refused(name: &str, value: &OsStr) -> String {
    let output = check(None, &[], &[(name, value)]);
    let error_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{name}: {error_text}");
    error_text
}

#[test]
fn variable_wins_over_the_file_and_a_flag_over_the_variable() {
    let file = "shards = 3\nbacklog = 7\n[limits]\ntopic_bytes = 99\n";
    let (table, error_text) = check_with(
        Some(file),
        &["--backlog", "9"],
        &[
            ("CRORE_LIMITS_TOPIC_BYTES", "100"),
            ("CRORE_BACKLOG", "8"),
            ("CRORE_LISTEN", "127.0.0.1:99, [::1]:99"),
            ("CRORE_TIMEOUTS_KEEP_ALIVE_S", "2m"),
            ("CRORE_LIMITS_MESSAGE_BYTES", "2 MiB"),
            ("CRORE_DEFLATE_ENABLED", "false"),
            ("CRORE_ACCESS_ANONYMOUS_SUBSCRIBE", "news/#,chat/+"),
            ("CRORE_ADMIN_TOKEN", "0123456789abcdef"),
            // An empty value means that the variable is not set. Docker Compose passes an empty value for a name without one.
            ("CRORE_SHARDS", ""),
        ],
    );
    assert_eq!(error_text, "");
    assert_eq!(table["shards"].as_integer(), Some(3), "the file");
    assert_eq!(table["backlog"].as_integer(), Some(9), "the flag");
    let limits = &table["limits"];
    assert_eq!(limits["topic_bytes"].as_integer(), Some(100));
    assert_eq!(limits["message_bytes"].as_str(), Some("2 MiB"));
    let listen: Vec<_> = table["listen"].as_array().unwrap().iter().collect();
    assert_eq!(listen[0].as_str(), Some("127.0.0.1:99"));
    assert_eq!(listen[1].as_str(), Some("[::1]:99"));
    assert_eq!(table["timeouts"]["keep_alive_s"].as_integer(), Some(120));
    assert_eq!(table["deflate"]["enabled"].as_bool(), Some(false));
    let anonymous = &table["access"]["anonymous"]["subscribe"];
    assert_eq!(anonymous[1].as_str(), Some("chat/+"));
}

#[test]
fn printed_settings_name_the_variables_that_they_came_from() {
    let variables = [("CRORE_BACKLOG", OsStr::new("8"))];
    let printed = check(None, &[], &variables).stdout;
    let printed = String::from_utf8(printed).unwrap();
    let first = printed.lines().next().unwrap();
    assert!(
        first.ends_with("from built-in defaults, CRORE_BACKLOG and flags"),
        "{first}"
    );
}

#[test]
fn each_setting_is_taken_from_its_variable() {
    let example = include_str!("../../../../docs/crore.example.toml");
    let example: Table = example.parse().unwrap();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut variables = Vec::new();
    let mut set_variable = |path: &str, value: &Value| {
        let list = value
            .as_array()
            .map(|list| list.iter().map(text).collect::<Vec<_>>());
        let value = list.map_or_else(|| text(value), |list| list.join(","));
        let name = format!("CRORE_{}", path.replace('.', "_").to_uppercase());
        variables.push((name, value));
    };
    for (key, value) in &example {
        match value.as_table() {
            None => set_variable(key, value),
            Some(table) => table
                .iter()
                .for_each(|(inner, value)| set_variable(&format!("{key}.{inner}"), value)),
        }
    }
    assert!(variables.len() > 90, "{}", variables.len());
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (&name[..], &value[..]))
        .collect();
    let (table, error_text) = check_with(None, &[], &variables);
    assert_eq!(error_text, "", "a setting of the example has no variable");
    assert_eq!(table, effective(None, &[]));
}

#[test]
fn fault_of_a_value_names_the_variable() {
    for (name, value, words) in [
        (
            "CRORE_LISTEN",
            "everywhere",
            &["CRORE_LISTEN: listen[1]: "][..],
        ),
        (
            "CRORE_LISTEN",
            "0.0.0.0:8800",
            &["CRORE_LISTEN: listen", "access"],
        ),
        (
            "CRORE_SHARDS",
            "many",
            &["CRORE_SHARDS: shards: ", "1 to 256"],
        ),
        (
            "CRORE_SHARDS",
            "999",
            &["CRORE_SHARDS: shards: ", "out of range"],
        ),
        (
            "CRORE_LIMITS_TOPIC_BYTES",
            "1 XB",
            &["CRORE_LIMITS_TOPIC_BYTES: limits.topic_bytes: "],
        ),
        ("CRORE_PIN", "yes", &["CRORE_PIN: pin: ", "true or false"]),
        (
            "CRORE_LOG_FORMAT",
            "jsn",
            &["CRORE_LOG_FORMAT: log.format: ", "json"],
        ),
    ] {
        let error_text = refused(name, OsStr::new(value));
        for word in words {
            assert!(
                error_text.contains(word),
                "{name}={value}: {word}: {error_text}"
            );
        }
    }
    let error_text = refused("CRORE_STATE_DIRECTORY", OsStr::from_bytes(b"/tmp/\xff"));
    assert!(
        error_text.contains("CRORE_STATE_DIRECTORY") && error_text.contains("not UTF-8"),
        "{error_text}"
    );
}

#[test]
fn unknown_variable_gets_a_suggestion() {
    for (name, suggested) in [
        ("CRORE_LISTN", "did you mean CRORE_LISTEN?"),
        (
            "CRORE_LIMITS_TOPICS_BYTES",
            "did you mean CRORE_LIMITS_TOPIC_BYTES?",
        ),
        ("CRORE_PORTS", "docs/SETTINGS.md"),
    ] {
        let (_, error_text) = check_with(None, &[], &[(name, "1")]);
        assert!(
            error_text.contains(&format!("{name}: no setting")) && error_text.contains(suggested),
            "{error_text}"
        );
    }
    // Variables that the server ignores although they begin with `CRORE_`: Kubernetes sets some of them in every pod if a Service is
    // called `crore`, and the others belong to Crore's own tools.
    let foreign_variables = [
        ("CRORE_SERVICE_HOST", "10.0.0.1"),
        ("CRORE_PORT", "tcp://10.0.0.1:8800"),
        ("CRORE_PORT_8800_TCP_PROTO", "tcp"),
        ("CRORE_SERVER", "http://127.0.0.1:8800"),
    ];
    assert_eq!(check_with(None, &[], &foreign_variables).1, "");
}
