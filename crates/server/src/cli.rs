//! The command line: what can be asked of `crore`.
//!
//! Exit codes: 0 done, 1 failed (with the reason on stderr), 2 wrong usage (most of it from clap). `crore log` has its own: 1 is damage, 2 all
//! that keeps it from looking.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::ServeArgs;
use crate::doctor;
use crate::tools::{AdminArgs, HistoryArgs, LogArgs, PubArgs, SubArgs, TokenArgs, admin, log};

/// The exit code for wrong usage, which is `clap`'s.
pub const WRONG_USAGE: u8 = 2;

/// A publish/subscribe push server over WebSocket, Server-Sent Events, long-poll and MQTT.
#[derive(Debug, Parser)]
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

    /// What to log, to stderr: error, warn, info, debug, trace, or a filter such as crore=debug
    /// [default: $RUST_LOG, or info for serve, else warn]
    #[arg(long, global = true, value_name = "FILTER", value_parser = log_filter)]
    pub log: Option<String>,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  crore bench subscribe --help       hold connections and check every message
  crore bench publish --help         publish to them";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// Measure a server: hold connections, publish, run scenarios
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(crore_bench::BenchArgs),
    /// Check whether this host holds so many connections, and say what to change
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Make tokens, look into them, and hash passwords
    Token(TokenArgs),
    /// Publish to a topic
    Pub(PubArgs),
    /// Subscribe to topics and print what is published
    Sub(SubArgs),
    /// Print what a topic keeps
    History(HistoryArgs),
    /// Ask a server's admin port: topics, connections, settings, drain
    #[command(after_help = admin::EXAMPLES)]
    Admin(AdminArgs),
    /// Look into the log of durable messages on disk: what it has, and whether it is whole
    #[command(after_help = log::EXAMPLES)]
    Log(LogArgs),
    /// Print completions for a shell: bash, zsh, fish and others
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    Man {
        /// Where to
        directory: PathBuf,
    },
}

impl Command {
    /// The log filter when nobody names one: a server says what it does, a tool only what goes wrong.
    pub fn default_log(&self) -> &'static str {
        match self {
            Command::Serve(_) => "info",
            Command::Bench(_)
            | Command::Doctor(_)
            | Command::Token(_)
            | Command::Pub(_)
            | Command::Sub(_)
            | Command::History(_)
            | Command::Admin(_)
            | Command::Log(_)
            | Command::Completions { .. }
            | Command::Man { .. } => "warn",
        }
    }
}

fn log_filter(text: &str) -> Result<String, String> {
    match EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
