//! The command line of `crore`.
//!
//! Exit codes: 0 done, 1 failed (with the reason on stderr), 2 wrong usage (clap detects most of it). `crore log` differs: 1 is damage, 2
//! any other failure.

use std::path::PathBuf;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::ServeArgs;
use crate::doctor;
use crate::foreign_flags;
use crate::tools::{
    AdminArgs, ClusterArgs, HistoryArgs, LogArgs, PresenceArgs, PubArgs, SubArgs, TokenArgs, admin,
    cluster, log,
};

/// The exit code for wrong usage, the same as clap's.
pub const WRONG_USAGE: u8 = 2;

/// A publish/subscribe push server over WebSocket, Server-Sent Events, long-poll and MQTT.
#[derive(Parser)]
#[command(
    name = "crore",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  crore serve                        serve on 127.0.0.1:8800
  crore sub news                     print what is published to the topic `news`
  crore pub news 'Hello.'            publish to it
  curl -d 'Hello.' http://127.0.0.1:8800/pub/news"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Log level, to stderr: error, warn, info, debug, trace, or a filter such as info,rustls=debug
    /// [default: $RUST_LOG, or info for serve, else warn]
    #[arg(long, global = true, value_name = "FILTER", value_parser = log_filter)]
    pub log: Option<String>,
}

impl Cli {
    /// The program with all commands. Flags are sorted within their headings, and every command has examples.
    pub fn program() -> clap::Command {
        fn sorted(command: clap::Command) -> clap::Command {
            let names: Vec<_> = (command
                .get_subcommands()
                .map(|it| it.get_name().to_string()))
            .collect();
            let parent = command.get_name().to_string();
            let below = command.get_after_help().map(ToString::to_string);
            let examples = below.unwrap_or_default();
            let command = match shortened(&examples, &parent) {
                Some(fewer) if !names.is_empty() => command.after_help(fewer),
                _ => command,
            };
            let command = command.mut_args(|arg| match arg.is_positional() {
                true => arg,
                false => arg.display_order(0),
            });
            names.into_iter().fold(command, |command, name| {
                let of_it = format!("{parent} {name} ");
                let is_of_it = |line: &&str| format!("{line} ").contains(&of_it);
                let own: Vec<&str> = examples.lines().filter(is_of_it).collect();
                command.mut_subcommand(name, |it| {
                    // A command without examples gets the examples of its parent that are about this command.
                    let it = match it.get_after_help() {
                        None if !own.is_empty() => {
                            it.after_help(format!("Examples:\n{}", own.join("\n")))
                        }
                        _ => it,
                    };
                    sorted(it)
                })
            })
        }
        sorted(Cli::command())
    }

    /// Parses the command line of this process. Ends the process if it is wrong or asks for help.
    pub fn read() -> Cli {
        if foreign_flags::refuse_h_with_host(std::env::args_os()) {
            std::process::exit(WRONG_USAGE.into());
        }
        let matches = foreign_flags::add_to(Cli::program()).try_get_matches();
        let read = matches.and_then(|matches| Cli::from_arg_matches(&matches));
        read.unwrap_or_else(|error| foreign_flags::with_better_tip(error, &Cli::program()).exit())
    }
}

/// Maximum number of examples in the help of a command that has subcommands. The help of each subcommand shows more.
const EXAMPLES_MAX: usize = 5;

/// The first examples, and a line that says where the others are. None if there are at most [`EXAMPLES_MAX`].
fn shortened(examples: &str, command: &str) -> Option<String> {
    let (last, _) = examples.match_indices('\n').nth(EXAMPLES_MAX)?;
    let more = format!("crore {command} COMMAND --help");
    Some(format!(
        "{}\n  {more:48}  examples of each command",
        &examples[..last]
    ))
}

const COMPLETIONS_EXAMPLES: &str = "\
Install them where the shell looks for them, and begin a new shell. Packages do this.

Examples:
  crore completions bash > ~/.local/share/bash-completion/completions/crore
  crore completions zsh > ~/.zfunc/_crore      with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  crore completions fish > ~/.config/fish/completions/crore.fish
  source <(crore completions bash)             in this shell only";

const MAN_EXAMPLES: &str = "\
Examples:
  crore man ~/.local/share/man/man1            then: man crore-sub";

/// The subcommand.
#[derive(Subcommand)]
pub enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// Publish to a topic
    Pub(PubArgs),
    /// Subscribe to topics and print what is published
    Sub(SubArgs),
    /// Print the kept messages of a topic
    History(HistoryArgs),
    /// Print who is present in a topic
    Presence(PresenceArgs),
    /// Manage a running server: topics, connections, limits, settings
    #[command(after_help = admin::EXAMPLES)]
    Admin(AdminArgs),
    /// Make and inspect tokens, and hash passwords
    Token(TokenArgs),
    /// Estimate how many connections this host can hold, and what to change for more
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Inspect and verify the log of durable messages on disk
    #[command(after_help = log::EXAMPLES)]
    Log(LogArgs),
    /// Show the state of a cluster: nodes, partitions, the log in NATS
    #[command(after_help = cluster::EXAMPLES)]
    Cluster(ClusterArgs),
    /// Print completions for a shell: bash, zsh, fish and others
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The directory for the pages
        directory: PathBuf,
    },
}

/// The forms of `--log`.
const LOG_FORMS: &str = "write error, warn, info, debug, trace or off (or 0 to 5), TARGET=LEVEL for lines of one module, such as crore=debug or \
    rustls=trace, or several with commas between, such as info,rustls=debug";

fn log_filter(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    // Any other word would count as the name of a module that does not exist, and nothing would be logged.
    let is_other = |word: &&str| {
        let is_level = word.parse::<LevelFilter>().is_ok();
        word.is_empty() || !is_level && !word.contains('=') && !word.starts_with("crore")
    };
    let filter = words.join(",");
    match EnvFilter::builder().parse(&filter) {
        Ok(_) if !words.iter().any(is_other) => Ok(filter),
        _ => Err(LOG_FORMS.to_string()),
    }
}

/// The filter of `RUST_LOG`, or `default` if the variable is unset, empty or invalid. The second value is a message if the variable is
/// invalid. An invalid value is no error, since other programs read this variable too.
pub fn log_of_environment(default: &str) -> (String, Option<String>) {
    let text = std::env::var_os(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let text = text.to_string_lossy();
    if text.trim().is_empty() {
        return (default.to_string(), None);
    }
    match log_filter(&text) {
        Ok(filter) => (filter, None),
        Err(forms) => {
            let variable = EnvFilter::DEFAULT_ENV;
            let ignored = format!(
                "{variable} is {text:?}, which is no log filter, so that {default} holds; {forms}"
            );
            (default.to_string(), Some(ignored))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        foreign_flags::add_to(Cli::program()).debug_assert();
    }

    /// The words of a shell line up to the first pipe, redirection or comment. Quotes are honoured.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote, mut is_begun) = (vec![String::new()], None, false);
        for letter in line.chars() {
            match (letter, quote) {
                (letter, Some(end)) if letter == end => quote = None,
                ('\'' | '"', None) => (quote, is_begun) = (Some(letter), true),
                ('|' | '>' | '<' | '#' | '&' | ';' | ')' | ',', None) => break,
                (' ', None) if is_begun || !words[words.len() - 1].is_empty() => {
                    words.push(String::new());
                    is_begun = false;
                }
                (' ', None) => {}
                (letter, _) => words.last_mut().expect("a word").push(letter),
            }
        }
        if !is_begun && words[words.len() - 1].is_empty() {
            words.pop();
        }
        words
    }

    /// The `crore` commands in the docs, in inline code and after a shell prompt. Each comes with its page.
    fn commands_of_pages() -> Vec<(String, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = std::fs::read_dir(root.join("docs"))
            .expect("the pages")
            .map(|it| it.expect("a page").path());
        let pages = pages.filter(|path| path.extension().is_some_and(|it| it == "md"));
        let mut found = Vec::new();
        for page in pages.chain([root.join("README.md")]) {
            let text = std::fs::read_to_string(&page).expect("a page");
            let code = text
                .lines()
                .filter(|line| !line.starts_with('$'))
                .flat_map(|line| line.split('`').skip(1).step_by(2));
            let shell = text
                .lines()
                .filter_map(|line| line.trim_start().strip_prefix("$ "));
            for command in code.chain(shell).filter_map(|it| it.strip_prefix("crore ")) {
                found.push((page.display().to_string(), format!("crore {command}")));
            }
        }
        found
    }

    #[test]
    fn commands_in_pages_and_examples_have_the_flags_that_they_name() {
        fn examples(command: &clap::Command, found: &mut Vec<(String, String)>) {
            let below = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let (_, lines) = below.split_once("Examples:\n").unwrap_or_default();
            let commands = lines
                .lines()
                .filter_map(|line| line.find("crore ").map(|at| &line[at..]));
            // Two spaces separate an example from its description.
            let commands = commands.map(|it| it.split("  ").next().unwrap_or_default().to_string());
            found.extend(commands.map(|it| (format!("{} --help", command.get_name()), it)));
            command.get_subcommands().for_each(|it| examples(it, found));
        }
        let mut all = commands_of_pages();
        examples(&Cli::program(), &mut all);
        assert!(all.len() > 100, "{}", all.len());
        let mut wrong = Vec::new();
        let is_pattern = |command: &str| command.contains(['…']) || command.contains("COMMAND");
        for (place, command) in all.into_iter().filter(|(_, command)| !is_pattern(command)) {
            let read = foreign_flags::add_to(Cli::program()).try_get_matches_from(words(&command));
            use clap::error::ErrorKind::{InvalidSubcommand, UnknownArgument};
            if let Err(error) = read
                && matches!(error.kind(), UnknownArgument | InvalidSubcommand)
            {
                wrong.push(format!("{place}: {command}: {error}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn each_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let below = command.get_after_help().map(ToString::to_string);
            let below = below.unwrap_or_default();
            assert!(below.contains("Examples:\n"), "{}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::program());
    }
}
