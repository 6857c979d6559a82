//! The project's own commands: `cargo xtask COMMAND`.
//!
//! Each command runs ordinary programs (`cargo`, `npm`, `apt-get`) and prints their command lines, so that a reader of the output can repeat them by hand.
//! No command is part of the server, and none starts a server: the tests do that themselves.
#![allow(clippy::print_stderr)] // a command-line tool: standard error is where it reports

mod adversary;
mod compare;
mod console;
mod fuzz;
mod rolling;
mod run;
mod sim;
mod tools;

use anyhow::{Context, Result, bail};
use run::{Program, together, workspace_root};
use std::path::Path;
use std::time::Instant;

const USAGE: &str = "\
cargo xtask COMMAND

  test [--release]  all tests, the model of the mailbox, those with third-party clients, ten thousand
                    stalled subscribers and 14,000 fresh seeds too; installs what they need
  lint              formatting, clippy and the documentation build; warnings are errors
  ci                lint, then test
  compare [--quick] [ARGS]
                    the rows of `crore-bench run pair` with Nchan and Mosquitto beside the server,
                    a core each; installs both from Debian's packages and keeps the result in
                    docs/benchmarks; --quick is one short round; ARGS are the pair's own
  sim [--seeds N] [--steps M] [--from SEED] [--seconds S] [--planted] [--fault NAME] [--trace]
                    runs the seeded world on all cores: prints what it met, or the first seed that
                    fails with a short trace; --planted breaks the broker in each known way and must
                    find it
  adversary [--minutes N | --each ROUNDS [--json FILE]] [--seed S] [--release] [--server PATH] [--only KIND,...]
                    plays attackers of every door beside honest clients against a server with small limits,
                    a round a minute, each with the next seed; --server names another build of the server
  conformance http2 h2spec over TLS and without it, and other people's clients of HTTP/2
  conformance centrifugo
                    the test suites of Centrifugo's clients for JavaScript, Go and Python against the server, and
                    clients in Go and Java; centrifuge-js comes from its git repository, or from the copy of it that
                    CRORE_CENTRIFUGE_JS names
  conformance pusher
                    the integration specs of pusher-js, and Pusher's server library for PHP, against the server, from
                    their git repositories, or the copies of them that CRORE_PUSHER_JS and CRORE_PUSHER_PHP name
  rolling COMMIT    builds the server as of this commit, and has nodes of it and of this one in one cluster: an upgrade
                    node by node, and the way back
  fuzz [--seconds N] [--seed S] [TARGET...]
                    feeds the kept inputs of fuzz/corpus and mutations of them to each target, or to
                    those named; fuzz --replay TARGET FILE tries one input again
  console [--check] builds the console's bundle from console/ (TypeScript) into the server's sources; --check
                    compares what is committed with a new build; --measure [--connections N] measures first
                    paint and the console's cost to a server, into docs/benchmarks/console.json; --pictures takes
                    those of docs/console
  deny              licences, advisories and sources of the dependencies (installs cargo-deny)
";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    std::env::set_current_dir(workspace_root()).context("entering the workspace")?;
    let started = Instant::now();
    match args.as_slice() {
        ["test"] => test(false)?,
        ["test", "--release"] => test(true)?,
        ["lint"] => lint()?,
        ["ci"] => {
            lint()?;
            test(false)?;
        }
        ["deny"] => deny()?,
        ["compare", args @ ..] => compare::run(args)?,
        ["sim", args @ ..] => sim::run(args)?,
        ["adversary", args @ ..] => adversary::run(args)?,
        ["conformance", "http2"] => clients(&tools::prepare()?, &[], &["http2::"])?,
        ["conformance", "centrifugo"] => centrifugo()?,
        ["conformance", "pusher"] => suites(&[tools::PUSHER_JS, tools::PUSHER_PHP])?,
        ["rolling", commit] => rolling::run(commit)?,
        ["console"] => console::build()?,
        ["console", "--check"] => console::check()?,
        ["console", "--measure", args @ ..] => console::measure(args)?,
        ["console", "--pictures", args @ ..] => console::pictures(args)?,
        ["fuzz", args @ ..] => fuzz::run(args)?,
        ["help" | "-h" | "--help"] => {
            eprint!("{USAGE}");
            return Ok(());
        }
        _ => bail!("unknown command {args:?}\n\n{USAGE}"),
    }
    eprintln!(
        "xtask: `{}` passed in {} s",
        args.join(" "),
        started.elapsed().as_secs()
    );
    Ok(())
}

/// The environment variable for the number of test threads. Tests mostly wait for their servers, so two threads for each core halve the time.
const THREADS: &str = "RUST_TEST_THREADS";

fn threads() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).to_string()
}

/// Runs all tests of the workspace in one profile, so that it is built once. Then runs those that the plain `cargo test` skips: the model of the mailbox,
/// tests with third-party clients, ten thousand subscribers that do not read, and new seeds of the simulator. Every command names the whole workspace, even
/// for one test: with `--package` Cargo would compile the libraries again with that package's features.
fn test(release: bool) -> Result<()> {
    let tools = tools::prepare()?;
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    // These tests mostly wait, so the checks beside them get the processor.
    let beside = std::thread::spawn(sim::beside);
    let all = Program::new("cargo")
        .args(["test", "--workspace", "--locked", "--no-fail-fast"])
        .args(profile)
        .env("CRORE_TOOLS", "required")
        .env("CRORE_NATS_SERVER", tools::nats_server()?)
        .env(THREADS, threads())
        .run_tests();
    // Only the command `conformance` fetches the suites.
    let suites = [tools::CENTRIFUGE_JS, tools::PUSHER_JS, tools::PUSHER_PHP];
    let skipped = suites.iter().flat_map(|suite| ["--skip", suite.tests]);
    let clients = clients(&tools, profile, &skipped.collect::<Vec<_>>());
    // This test runs alone, because it uses all memory that the kernel has for TCP.
    let stalled = Program::new("cargo")
        .args(["test", "--workspace", "--test", "http", "--locked"])
        .args(profile)
        .args(["--", "--ignored", "ten_thousand_do_not_read"])
        .run_tests();
    let model = model(profile);
    let console = console::check();
    let beside = beside
        .join()
        .unwrap_or_else(|_| bail!("the steps beside the tests ended with a panic, above"));
    // The fuzzer runs alone and last, because it has only a few seconds for all targets. Its program was built beside the tests.
    let fuzz = fuzz::short();
    // Every step has run before any error is returned, so that one run shows all failures.
    together([all, model, clients, stalled, console, fuzz, beside])
}

/// Runs the tests of libraries that are fetched as git repositories.
fn suites(suites: &[tools::Suite]) -> Result<()> {
    let tools = tools::prepare()?;
    for suite in suites {
        tools::fetch_suite(&tools, suite)?;
    }
    let tests: Vec<_> = suites.iter().map(|suite| suite.tests).collect();
    clients(&tools, &[], &tests)
}

/// Runs the tests that Centrifugo's client libraries contain, and all of our tests with these libraries.
fn centrifugo() -> Result<()> {
    let tools = tools::prepare()?;
    tools::fetch_suite(&tools, &tools::CENTRIFUGE_JS)?;
    tools::centrifugo_clients(&tools)?;
    clients(&tools, &[], &[tools::CENTRIFUGE_JS.tests, "centrifugo::"])
}

/// Runs the tests with third-party clients that these arguments select.
fn clients(tools: &Path, profile: &[&str], chosen: &[&str]) -> Result<()> {
    Program::new("cargo")
        .args(["test", "--workspace", "--locked"])
        .args(["--test", "clients", "--test", "xdp"])
        .args(profile)
        .args(["--", "--ignored"])
        .args(chosen)
        .env("CRORE_TOOLS", "required")
        .env("CRORE_NATS_SERVER", tools::nats_server()?)
        .env("CRORE_CLIENT_TESTS", tools)
        .env(THREADS, threads())
        .run_tests()
}

/// Runs the model checker on the mailbox: it tries every interleaving of the senders and the reader.
fn model(profile: &[&str]) -> Result<()> {
    Program::new("cargo")
        .args(["test", "--workspace", "--test", "loom", "--locked"])
        .args(["--features", "crore-net/loom"])
        .args(profile)
        .run_tests()
}

/// Runs all checks that execute none of our programs.
fn lint() -> Result<()> {
    ensure_component("fmt", "rustfmt")?;
    ensure_component("clippy", "clippy")?;
    Program::new("cargo")
        .args(["fmt", "--all", "--check"])
        .run()?;
    Program::new("cargo")
        .args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ])
        .run()?;
    Program::new("cargo")
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--locked",
        ])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()
}

/// Checks the dependencies. Not part of `ci`, because it needs the network (for the advisory database), and building the tool takes several minutes once.
/// The checks that need no database come first, so that they run even if the database cannot be fetched.
fn deny() -> Result<()> {
    if !Program::new("cargo").args(["deny", "--version"]).succeeds() {
        Program::new("cargo")
            .args(["install", "--locked", "cargo-deny"])
            .run()?;
    }
    let deny = |args: &[&str]| {
        Program::new("cargo")
            .args(["deny", "--all-features"])
            .args(args)
    };
    deny(&["check", "bans", "licenses", "sources"]).run()?;
    deny(&["fetch", "db"]).run().context(
        "bans, licences and sources are in order, and advisories were not checked: their database is out of reach; \
         run this again where git can clone https://github.com/RustSec/advisory-db",
    )?;
    deny(&["check", "advisories"]).run()
}

fn ensure_component(subcommand: &str, component: &str) -> Result<()> {
    if Program::new("cargo")
        .args([subcommand, "--version"])
        .succeeds()
    {
        return Ok(());
    }
    Program::new("rustup")
        .args(["component", "add", component])
        .run()
}
