//! Tests the complete output of the command line against stored snapshots. `cargo insta review`, or `INSTA_UPDATE=always`, accepts a
//! change.

use std::path::Path;
use std::process::Command;

use crate::crore;
use crate::support::Server;
use crate::support::program::output;

/// The command, its exit code, and its output.
fn text_snapshot(command: &mut Command, replaced: &[(&str, &str)]) -> String {
    let args: Vec<_> = command
        .get_args()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let output = output(command);
    let code = output.status.code().expect("an exit code");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let mut out = format!("$ crore {}\n[{code}]\n", args.join(" "));
    for (name, stream_text) in [
        ("stdout", text(output.stdout)),
        ("stderr", text(output.stderr)),
    ] {
        if !stream_text.is_empty() {
            out.push_str(&format!("---- {name}\n{stream_text}"));
        }
    }
    replaced
        .iter()
        .fold(out, |out, (from, to)| out.replace(from, to))
}

#[test]
fn help_of_each_command_is_unchanged() {
    for args in [
        &["--help"][..],
        &["serve", "--help"],
        &["pub", "--help"],
        &["sub", "--help"],
        &["admin", "--help"],
        &["admin", "topics", "--help"],
        &["token", "--help"],
        &["token", "mint", "--help"],
        &["doctor", "--help"],
        &["completions", "--help"],
    ] {
        let name = args.join("_").replace("--", "");
        insta::assert_snapshot!(name, text_snapshot(&mut crore(args), &[]));
    }
}

#[test]
fn errors_about_a_settings_file_are_unchanged() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/misspelled.toml");
    let mut command = crore(&["serve", "--check", "--config", "misspelled.toml"]);
    command.current_dir(file.parent().expect("a directory"));
    insta::assert_snapshot!("settings", text_snapshot(&mut command, &[]));
}

#[test]
fn hints_for_mistyped_commands_are_unchanged() {
    let slips: Vec<String> = [
        &["version"][..],
        &["status"],
        &["subscribe", "news"],
        &["check", "crore.toml"],
        &["admin", "list"],
        &["admin", "kick", "0-1-2"],
        &["sub"],
        &["admin", "purge"],
        &["admin", "messages", "news", "--after", "now"],
        &["sub", "news", "--count=0"],
        &["history", "news", "--limit", "none"],
        &["pub", "news", "--file", "nowhere.txt"],
        &["token", "mint", "--key", "nowhere.txt", "--user", "ann"],
        &["serve", "--check", "--config", "nowhere.toml"],
        &["serve", "--check", "--config", "."],
        &["log", "inspect", "nowhere"],
    ]
    .map(|args| text_snapshot(&mut crore(args), &[]))
    .into();
    insta::assert_snapshot!("slips", slips.join("\n"));
}

/// All commands and subcommands of `crore`.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        at += 1;
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = output(&mut crore(&args)).stdout;
        let help = String::from_utf8(help).expect("text");
        let mut lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let lines_below = lines.by_ref().take_while(|line| !line.is_empty());
        let names = lines_below.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next());
        let other_commands = names.filter(|name| *name != "help");
        found.extend(other_commands.map(|name| [&path[..], &[name.to_string()]].concat()));
    }
    found
}

#[test]
fn each_help_fits_a_screen_and_has_an_example() {
    let commands = commands();
    assert!(commands.len() > 30, "{commands:?}");
    for path in commands {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = output(&mut crore(&args)).stdout;
        let help = String::from_utf8(help).expect("text");
        let lines = help.lines().count();
        assert!(
            lines <= 50 && help.contains("Examples:\n"),
            "{path:?}: {lines}\n{help}"
        );
    }
}

#[test]
fn output_of_a_session_with_a_server_is_unchanged() {
    let server = Server::with_admin("[admin]\ntoken = '0123456789abcdef'\n");
    let (data, admin) = (server.address().to_string(), server.admin().to_string());
    let hidden = [(&data[..], "DATA"), (&admin[..], "ADMIN")];
    let session: Vec<String> = [
        &["pub", "chat/a", "Hello."][..],
        &["pub", "chat/b", "on", "--retain"],
        &["sub", "chat/a", "--since", "oldest", "--count", "1"],
        &[
            "sub", "chat/a", "chat/b", "--since", "oldest", "--count", "2",
        ],
        &[
            "sub", "chat/a", "--since", "oldest", "--count", "1", "--format", "%t;%c;%p",
        ],
        &["sub", "chat/none", "--count", "1", "--timeout", "1s"],
        // A retained message comes first.
        &["sub", "chat/b", "--count", "1", "--timeout", "60s"],
        &["sub", "chat.>", "--timeout", "1s"],
        &["history", "chat/a"],
        &["history", "chat/none"],
        &["pub", "chat/+", "x"],
        &["admin", "topics"],
        &["admin", "topics", "chat"],
        &["sub", "chat/a,chat/b", "--timeout", "1s"],
        &["admin", "rules"],
        &["admin", "topic", "chat/#"],
        &["admin", "connections", "--filter", "a#"],
        &["admin", "purge", "chat/a"],
        &["admin", "purge", "chat/a", "--json"],
        &["admin", "topic", "chat/nowhere"],
        &["admin", "rules", "--token", "fedcba9876543210"],
        &["admin", "stats", "--url", "DATA"],
        &["pub", "chat/a", "x", "--server", "ADMIN"],
    ]
    .map(|args| {
        let args: Vec<_> = args
            .iter()
            .map(|arg| match *arg {
                "DATA" => format!("http://{data}"),
                "ADMIN" => format!("http://{admin}"),
                arg => arg.to_string(),
            })
            .collect();
        let is_set = args.contains(&"--url".to_string());
        let mut command = crore(&args.iter().map(String::as_str).collect::<Vec<_>>());
        if args[0] == "admin" && !is_set {
            command.args(["--url", &format!("http://{admin}")]);
        }
        if !args.contains(&"--token".to_string()) {
            command.env("CRORE_ADMIN_TOKEN", "0123456789abcdef");
        }
        command.env("CRORE_SERVER", format!("http://{data}"));
        text_snapshot(&mut command, &hidden)
    })
    .into();
    insta::assert_snapshot!("session", session.join("\n"));
}
