//! `crore`: one binary that serves, publishes and subscribes. Load tools are another one, `crore-bench` (`crates/bench`).
//!
//! Starts with [`main`], which reads the command line ([`cli`]) and hands over: the server's settings
//! come from [`config`], its threads from [`boot`], the small tools are in [`tools`], [`doctor`] looks at the host. Errors end here,
//! on stderr and in the exit code; nothing else in the program exits.

mod access;
mod boot;
mod cli;
mod config;
mod control;
mod counters;
mod doctor;
mod foreign_flags;
mod http_client;
mod life;
mod log;
mod manual;
mod settings;
mod shard_loop;
mod stdout;
mod tls;
mod tools;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use cli::{Cli, Command};
use config::ServeArgs;
use crore_net::signal::Signals;
use settings::log::Format;

#[global_allocator]
static ALLOCATOR: crore_net::memory::Pieces = crore_net::memory::Pieces;

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    let cli = Cli::read();
    // A server says what it does, a tool only what goes wrong.
    let usual = match cli.command {
        Command::Serve(_) => "info",
        _ => "warn",
    };
    let (filter, ignored) = match cli.log {
        Some(filter) => (filter, None),
        None => cli::log_of_environment(usual),
    };
    // A server's threads begin behind its first step, which is to block signals in all of them.
    match &cli.command {
        Command::Serve(args) if !args.check => {}
        Command::Serve(_) => log::to_stderr(&filter),
        _ => log::for_a_person(&filter),
    }
    if !matches!(&cli.command, Command::Serve(args) if !args.check) {
        say_ignored(ignored.as_deref());
    }
    let success = |()| ExitCode::SUCCESS;
    let done = match cli.command {
        Command::Serve(args) => serve(&args, &filter, ignored.as_deref()).map(success),
        // 1 says that the connections do not fit.
        Command::Doctor(args) => {
            doctor::run(&args).map_err(|error| tools::Usage::new(format!("{error:#}")).into())
        }
        Command::Token(args) => tools::token::run(&args).map(success),
        Command::Pub(args) => tools::publish(&args).map(success),
        Command::Sub(args) => tools::subscribe(&args).map(success),
        Command::History(args) => tools::history(&args).map(success),
        Command::Admin(args) => tools::admin(&args).map(success),
        Command::Cluster(args) => tools::cluster::run(&args),
        Command::Log(args) => tools::log::run(&args),
        Command::Completions { shell } => manual::completions(shell).map(success),
        Command::Man { directory } => manual::pages(&directory).map(success),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // A closed stderr is no reason to fail in another way.
            let text = format!("{error:#}").replace('\n', "\ncrore: ");
            let _ = writeln!(io::stderr(), "crore: {text}");
            match error.is::<tools::Usage>() {
                true => ExitCode::from(cli::WRONG_USAGE),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// A panic of any thread ends the process, as in a release build. A debug build unwinds otherwise, since the harness of the tests does:
/// with one way for both, the libraries are compiled once.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Warns of a variable that does not count. A server's log begins later than that of a tool.
fn say_ignored(what: Option<&str>) {
    if let Some(what) = what {
        tracing::warn!("{what}");
    }
}

fn serve(args: &ServeArgs, filter: &str, ignored: Option<&str>) -> anyhow::Result<()> {
    crore_net::memory::map_large();
    if args.check {
        let effective = config::load(args)?;
        boot::check(&effective.file)?;
        effective.warn();
        return stdout::print(effective.to_toml().as_bytes());
    }
    let signals = Signals::block().context("cannot block signals")?;
    let effective = config::load(args)?;
    let as_json = effective.file.log.format == Format::Json;
    let _written_at_the_end = log::through_thread(filter, as_json);
    say_ignored(ignored);
    effective.warn();
    boot::serve(args, effective, signals)
}
