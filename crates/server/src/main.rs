//! `crore`: the server and its command-line tools in one binary. The load tools are another binary, `crore-bench` (`crates/bench`).
//!
//! [`main`] reads the command line ([`cli`]) and calls the command. A server reads its settings ([`config`]) and starts its threads
//! ([`boot`]). The tools are in [`tools`], and [`doctor`] checks the host. `main` turns every error into a message on stderr and an exit
//! code.

mod access;
mod backend;
mod boot;
mod cli;
mod config;
mod control;
mod doctor;
mod engine;
mod foreign_flags;
mod http_client;
mod lifecycle;
mod log;
mod manual;
mod settings;
mod stdout;
mod tls;
mod tools;
mod xdp;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use cli::{Cli, Command};
use config::ServeArgs;
use crore_net::signal::Signals;
use settings::log::LogFormat;

#[global_allocator]
static ALLOCATOR: crore_net::memory::PoolAllocator = crore_net::memory::PoolAllocator;

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    let cli = Cli::read();
    // A server also logs what it does. A tool logs only what goes wrong.
    let default_level = match cli.command {
        Command::Serve(_) => "info",
        _ => "warn",
    };
    let (filter, ignored) = match cli.log {
        Some(filter) => (filter, None),
        None => cli::log_of_environment(default_level),
    };
    // `serve` must block the signals before any thread starts. The log of a server has a thread, so it starts later, in `serve`.
    match &cli.command {
        Command::Serve(args) if !args.check => {}
        Command::Serve(_) => log::to_stderr(&filter),
        _ => log::to_stderr_plain(&filter),
    }
    if !matches!(&cli.command, Command::Serve(args) if !args.check) {
        warn_of_ignored(ignored.as_deref());
    }
    let success = |()| ExitCode::SUCCESS;
    let done = match cli.command {
        Command::Serve(args) => serve(&args, &filter, ignored.as_deref()).map(success),
        // Exit code 1 of `crore doctor` means that the host cannot hold the connections, so an error has exit code 2.
        Command::Doctor(args) => {
            doctor::run(&args).map_err(|error| tools::Usage::new(format!("{error:#}")).into())
        }
        Command::Token(args) => tools::token::run(&args).map(success),
        Command::Pub(args) => tools::publish(&args).map(success),
        Command::Sub(args) => tools::subscribe(&args).map(success),
        Command::History(args) => tools::history(&args).map(success),
        Command::Presence(args) => tools::presence(&args).map(success),
        Command::Admin(args) => tools::admin(&args).map(success),
        Command::Cluster(args) => tools::cluster::run(&args),
        Command::Log(args) => tools::log::run(&args),
        Command::Completions { shell } => manual::completions(shell).map(success),
        Command::Man { directory } => manual::write_man_pages(&directory).map(success),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // If stderr is closed, the exit code must still be right.
            let text = format!("{error:#}").replace('\n', "\ncrore: ");
            let _ = writeln!(io::stderr(), "crore: {text}");
            match error.is::<tools::Usage>() {
                true => ExitCode::from(cli::WRONG_USAGE),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// Makes a panic of any thread end the process, as in a release build. The test harness needs unwinding, and debug builds
/// unwind too, so that the dependencies are compiled only once for both.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Logs why `RUST_LOG` is ignored.
fn warn_of_ignored(reason: Option<&str>) {
    if let Some(reason) = reason {
        tracing::warn!("{reason}");
    }
}

fn serve(args: &ServeArgs, filter: &str, ignored: Option<&str>) -> anyhow::Result<()> {
    crore_net::memory::set_malloc_thresholds();
    if args.check {
        let effective = config::load(args)?;
        boot::check_host(&effective.file)?;
        effective.log_warnings();
        return stdout::print(effective.to_toml().as_bytes());
    }
    let signals = Signals::block().context("cannot block signals")?;
    let effective = config::load(args)?;
    let as_json = effective.file.log.format == LogFormat::Json;
    let _flushes_at_the_end = log::through_thread(filter, as_json);
    warn_of_ignored(ignored);
    effective.log_warnings();
    boot::serve(args, effective, signals)
}
