//! Tests the first steps of a new user: the help in any terminal, host names in addresses, and settings with small mistakes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use toml::Table;

fn crore(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    crore(args).output().expect("it runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Runs `crore serve --check` with these settings in a directory of its own.
fn check(settings: &str, flags: &[&str]) -> Output {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("newcomer-{}-{number}", std::process::id());
    let directory: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("crore.toml"), settings).expect("a file");
    let mut command = crore(&[&["serve", "--check"], flags].concat());
    let output = command.current_dir(&directory).output().expect("it runs");
    let _ = std::fs::remove_dir_all(&directory);
    output
}

fn effective(settings: &str, flags: &[&str]) -> Table {
    let output = check(settings, flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).parse().expect("TOML")
}

#[test]
fn names_of_the_loopback_may_stand_for_its_addresses() {
    let listed = |table: &Table| -> Vec<String> {
        let list = table["listen"].as_array().expect("a list").iter();
        list.map(|it| it.as_str().expect("an address").to_string())
            .collect()
    };
    let file = "listen = 'localhost:81'\n[admin]\nlisten = 'localhost:82'";
    let flags = ["--listen", "localhost:81", "--admin-listen", "localhost:82"];
    for table in [effective(file, &[]), effective("", &flags)] {
        let mut addresses = listed(&table);
        assert_eq!(addresses.remove(0), "127.0.0.1:81");
        // `localhost` is also an IPv6 address, if the host has IPv6.
        assert!(addresses.iter().all(|it| it == "[::1]:81"), "{addresses:?}");
        assert_eq!(table["admin"]["listen"].as_str(), Some("127.0.0.1:82"));
    }
    // A port without an address means the loopback.
    let ports = ["--listen", "81", "--admin-listen", "82"];
    for table in [
        effective("listen = 81\n[admin]\nlisten = 82", &[]),
        effective("listen = [81]\n[admin]\nlisten = '82'", &[]),
        effective("", &ports),
    ] {
        assert_eq!(listed(&table), ["127.0.0.1:81"]);
        assert_eq!(table["admin"]["listen"].as_str(), Some("127.0.0.1:82"));
    }
    let list = effective("listen = ['localhost:81', '127.0.0.2:81']", &[]);
    assert_eq!(listed(&list)[..2], ["127.0.0.1:81", "127.0.0.2:81"]);
}

#[test]
fn nearly_right_settings_get_a_suggestion() {
    let table: &[(&str, &[&str])] = &[
        (
            "listen = 'localhost'",
            &["crore.toml:1:10: listen: `localhost`", "localhost:8800"],
        ),
        (
            "listen = ':8800'",
            &[
                "crore.toml:1:10: listen: `:8800` has no address",
                "\"127.0.0.1:8800\" for this machine alone",
            ],
        ),
        (
            "listen = 70000",
            &["crore.toml:1:10: listen: `70000` is not an address"],
        ),
        (
            "[admin]\nlisten = '127.0.0.1'",
            &["admin.listen: `127.0.0.1` has no port"],
        ),
        (
            "listen = ['localhost:1', '0.0.0.0:1']",
            &["crore.toml:1:26: listen[2]: 0.0.0.0:1", "--insecure"],
        ),
        (
            "[rule]\nmatch = '#'",
            &["crore.toml:1:1: rule: ", "write [[rule]] instead of [rule]"],
        ),
        (
            "[access.user]\nname = 'ann'",
            &["crore.toml:1:1: access.user: ", "write [[access.user]]"],
        ),
        (
            "[http]\nallowed_origins = ['app.example.com']",
            &["crore.toml:2:20: http.allowed_origins[1]: `app.example.com`"],
        ),
        (
            "listen = [127.0.0.1:8800]",
            &["crore.toml:1:", "write a text in quotes"],
        ),
        (
            "[http]\nallowed_origins = '*'",
            &["http.allowed_origins: is a list; write [\"*\"]"],
        ),
        (
            "[limits]\nmessage_bytes = '100MiB'",
            &[
                "crore: crore.toml:2:17: limits.message_bytes: 100 MiB is out of range; write a value from 1 to 8 MiB",
            ],
        ),
    ];
    for (settings, parts) in table {
        let output = check(settings, &[]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{settings}\n{error}");
        for part in *parts {
            assert!(error.contains(part), "{settings}\n{error}\nlacks {part}");
        }
    }
    let listed = effective("[http]\nallowed_origins = ['null']", &[]);
    assert_eq!(listed["http"]["allowed_origins"][0].as_str(), Some("null"));
}

#[test]
fn unreachable_rule_is_a_warning_and_no_error() {
    let rules = ["chat/#", "news", "chat/+/room", "#", "$own/x"];
    let rules = rules.map(|filter| format!("[[rule]]\nmatch = '{filter}'\n"));
    let output = check(&rules.concat(), &[]);
    assert!(output.status.success(), "{output:?}");
    let error_text = text(&output.stderr);
    assert_eq!(
        error_text.matches("is never reached").count(),
        1,
        "{error_text}"
    );
    let line = "crore.toml:6:9: rule[3].match: `chat/+/room` is never reached: rule[1] (`chat/#`)";
    assert!(error_text.contains(line), "{error_text}");
}

#[test]
fn check_reads_the_files_that_the_settings_name_and_changes_nothing() {
    let parent =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{}", std::process::id()));
    std::fs::create_dir_all(&parent).expect("a directory");
    let file = parent.join("file");
    std::fs::write(&file, "x").expect("a file");
    let directory = |path: &Path| format!("[state]\ndirectory = '{}'\n", path.display());
    let new_directory = parent.join("some/where");
    let accepted = check(&directory(&new_directory), &[]);
    assert!(accepted.status.success(), "{}", text(&accepted.stderr));
    assert!(!parent.join("some").exists(), "it is not made");
    assert!(check(&directory(&parent), &[]).status.success());
    let files_before = std::fs::read_dir(&parent).expect("a directory").count();
    assert_eq!(files_before, 1, "nothing is left there");
    for (settings, words) in [
        (
            directory(&file),
            &["state.directory: ", "cannot be written", "a directory"][..],
        ),
        (
            directory(&file.join("below")),
            &["state.directory: ", "cannot be written", "not a directory"],
        ),
        (
            "[tls]\ncertificate = '/nowhere/c.pem'\nkey = '/nowhere/k.pem'\n".to_string(),
            &["tls.certificate: /nowhere/c.pem cannot be read"],
        ),
        (
            "[cluster]\nurls = ['nats://127.0.0.1:1']\ncredentials = '/nowhere/x.creds'\n"
                .to_string(),
            &["cluster.credentials: /nowhere/x.creds cannot be read"],
        ),
        (
            "[admin]\nlisten = '192.0.2.1:8801'\ntoken = '0123456789abcdef'\n".to_string(),
            &["admin.listen: 192.0.2.1 is no address of this host"],
        ),
    ] {
        let output = check(&settings, &[]);
        let error_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{settings}{error_text}");
        for words in words {
            assert!(error_text.contains(words), "{settings}{error_text}");
        }
    }
    // All errors are reported at once.
    let two_errors = format!(
        "{}[tls]\ncertificate = '/nowhere/c.pem'\nkey = '/nowhere/k.pem'\n",
        directory(&file)
    );
    let error_text = check(&two_errors, &[]);
    let error_text = text(&error_text.stderr);
    assert!(
        error_text.contains("state.directory: ") && error_text.contains("tls.certificate: "),
        "{error_text}"
    );
    let _ = std::fs::remove_dir_all(&parent);
}

/// Help text with line breaks keeps them, also in a narrow terminal.
#[test]
fn examples_in_the_help_are_not_wrapped() {
    for (command, columns) in [
        ("serve", 80),
        ("doctor", 100),
        ("pub", 100),
        ("sub", 100),
        ("admin", 100),
        ("history", 100),
        ("cluster", 100),
        ("token", 100),
        ("log", 100),
        ("completions", 100),
        ("man", 100),
    ] {
        // The paragraphs of the help that are not about an option.
        let help_at_width = |columns: u32| {
            let mut help = crore(&[command, "--help"]);
            let output = help.env("COLUMNS", columns.to_string()).output();
            let output = output.expect("it runs");
            let is_option = |line: &str| line.trim_start().starts_with('-');
            let paragraphs = text(&output.stdout).split("\n\n");
            let wrapped = paragraphs.filter(|it| {
                !it.lines().any(is_option)
                    && !it.starts_with("Commands:")
                    && !it.starts_with("Arguments:")
            });
            wrapped.map(str::to_string).collect::<Vec<_>>()
        };
        let paragraphs = help_at_width(1_000);
        assert!(
            paragraphs.iter().any(|it| it.starts_with("Examples:")),
            "{command}"
        );
        assert_eq!(help_at_width(columns), paragraphs, "{command}");
    }
}

#[test]
fn disconnect_command_needs_a_selection() {
    let output = run(&["admin", "disconnect", "--help"]);
    let usage = "admin disconnect [OPTIONS] <ID|--user <USER>|--address <IP>|--filter <TOPIC>|--transport <TRANSPORT>|--slow>\n";
    assert!(
        text(&output.stdout).contains(usage),
        "{}",
        text(&output.stdout)
    );
    for refused in [
        &["admin", "disconnect"][..],
        &["admin", "disconnect", "0-1-2", "--user", "ann"],
    ] {
        assert_eq!(run(refused).status.code(), Some(2), "{refused:?}");
    }
}

/// Command lines that people try, and words of the error.
#[rustfmt::skip]
const TRIED: &[(&[&str], &str)] = &[
    (&["sub", "-p", "19000", "news"], "--server http://127.0.0.1:19000"),
    (&["sub", "-h", "10.0.0.5", "-t", "news"], "--server http://10.0.0.5:8800"),
    (&["sub", "--host", "10.0.0.5", "news"], "--server http://10.0.0.5:8800"),
    (&["sub", "--filter", "a/#"], "crore sub 'a/#'"),
    (&["sub", "-u", "ann", "news"], "crore token mint --user ann"),
    (&["pub", "-p", "1883", "-t", "news"], "--server http://127.0.0.1:1883"),
    (&["admin", "topics", "--filter", "a/#"], "crore admin topics 'a/#'"),
    (&["admin", "messages", "a", "--since", "-5"], "--newest"),
    (&["serve", "--host", "127.0.0.1"], "--listen 127.0.0.1:8800"),
    (&["pub", "news", "two", "words"], "in quotes: 'two words'"),
    (&["pub", "-n", "news"], "crore pub TOPIC ''"),
    (&["sub", "-b", "10.0.0.5:8800", "news"], "--server http://10.0.0.5:8800"),
    (&["sub", "news", "--last", "5"], "--since -5"),
    (&["sub", "news", "--protocol", "mqtt"], "mosquitto_sub"),
    (&["history", "news", "--newest", "5"], "--limit N"),
    (&["admin", "disconnect", "--client-id", "x"], "crore admin connections"),
    (&["pub", "news", "x", "--count", "3"], "seq 3 | crore pub TOPIC --lines"),
    (&["doctor", "10000"], "--connections 10000"),
    (&["history", "news", "--limit", "-5"], "1 or more"),
    (&["serve", "--check", "--log", "verbose"], "write error, warn, info, debug"),
    (&["token", "mint", "--secret", "s3cret"], "--key secret.txt (openssl rand"),
    (&["token", "mint", "--key", "k", "--sub", "ann"], "--user ann"),
    (&["token", "mint", "--key", "k", "--name", "ann"], "--user ann"),
    (&["token", "mint", "--key", "k", "--topic", "a/#"], "--subscribe 'a/#', --publish 'a/#'"),
    (&["token", "mint", "--key", "k", "--expires", "8h"], "--ttl 8h"),
    (&["token", "create"], "crore token mint"),
    (&["token", "verify", "eyJ"], "crore token inspect --config FILE"),
    (&["admin", "clients"], "crore admin sessions"),
    // Flags that belong to another command, or to a subcommand.
    (&["-s", "10.0.0.5", "sub", "news"], "-s is a flag of `crore pub`, `crore sub`, `crore history` and `crore presence`"),
    (&["pub", "news", "x", "--since", "-1"], "--since is a flag of `crore sub` and `crore history`"),
    (&["sub", "news", "--retain"], "--retain is a flag of `crore pub`"),
    (&["admin", "topic", "news", "--newest"], "--newest is a flag of `crore admin messages`"),
];

#[test]
fn flags_of_other_tools_are_answered_with_what_to_write_here() {
    for (args, words) in TRIED {
        let output = run(args);
        let error_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error_text}");
        assert!(error_text.contains(words), "{args:?}: {error_text}");
    }
    // An argument after an unknown flag is not taken for the flag's value.
    let output = run(&["sub", "--nothing", "news"]);
    assert!(!text(&output.stderr).contains("as a value"), "{output:?}");
    assert!(text(&run(&["sub", "news", "-h"]).stdout).contains("Usage: crore sub"));
}

#[test]
fn suspicious_topics_are_refused_with_a_hint() {
    // Nobody listens on port 1. The error about the topic comes before a connection is tried.
    for (args, words) in [
        (
            &["sub", "http://a.example/sub/news"][..],
            "write the topic alone",
        ),
        (&["pub", "/news", "x"], "another topic than `news`"),
        (&["history", "/news"], "another topic than `news`"),
        (
            &["sub", "scores/*"],
            "crore: hint: `*` and `>` are no wildcards in 'scores/*'; topics match 'scores/+'",
        ),
        (
            &["sub", "a,b"],
            "crore: hint: `a,b` is the name of one topic",
        ),
        (&["pub", "news", "x"], "start a server (crore serve)"),
    ] {
        let output = run(&[args, &["--server", "127.0.0.1:1"]].concat());
        let error_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error_text}");
        assert!(error_text.contains(words), "{args:?}: {error_text}");
    }
}
