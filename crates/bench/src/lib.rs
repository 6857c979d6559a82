//! `crore-bench`: load tools, scenarios that use them, and a reference server to compare with.
//!
//! * [`subscribe`] holds connections and checks every message; [`publish`] publishes. Both use the server's HTTP paths, which Nchan
//!   has, too, and MQTT 3.1.1 and 5.
//! * [`probe`] publishes and subscribes on a running server, and measures the latency of the messages.
//! * [`floor`] is a reference server that only moves bytes.
//! * [`swarm`] holds millions of connections without kernel sockets, to a server that it starts.
//! * [`page`] writes HTML with plots of recorded results.
//! * [`scenario`] starts a server and both tools as child processes, and writes one result.
//!
//! The modules are layered. Each imports only those before it in this list: `sys` (system calls);
//! `measure` (messages, statistics, `/proc`); `client` (requests and answers); `report`; `page` (results as HTML); `floor`; `publish`;
//! `subscribe`; `probe`; `rig` (flags, processes and samples for scenarios); `swarm`; `scenario`.
//!
//! The tools parse the server's answers with a parser of their own: with the server's code they would share its errors. Only requests,
//! WebSocket frames of a client and MQTT packets use the server's codecs, which third-party clients and another implementation check
//! against the specifications. Only `sys` has `unsafe` code, and only `report` writes to the terminal.

mod client;
pub mod floor;
pub mod measure;
pub mod page;
pub mod probe;
pub mod publish;
mod report;
mod rig;
pub mod scenario;
pub mod subscribe;
pub mod swarm;
mod sys;

use std::process::ExitCode;

const EXAMPLES: &str = "\
Scenarios start their own server: the `crore` in the directory of this program or in PATH, or --server-binary.

Examples:
  crore-bench subscribe --connections 1000          hold connections and check every message
  crore-bench publish --duration 10s                publish to them
  crore-bench run million --connections 10000       both with a server of their own
  crore-bench swarm --connections 1000000           clients without kernel sockets
  crore-bench probe http://127.0.0.1:8800/news      how long messages take on a server that runs
  crore-bench report                                a page with plots of recorded results
  crore-bench floor --listen 127.0.0.1:8900         a bare server to compare with";

/// Measure a server: hold connections, publish, run scenarios
#[derive(clap::Parser)]
#[command(name = "crore-bench", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(clap::Subcommand)]
enum Tool {
    /// Hold connections and check every message
    Subscribe(Box<subscribe::SubscribeArgs>),
    /// Publish messages
    Publish(publish::PublishArgs),
    /// Simulate many clients without kernel sockets, and start their server in its own network namespace
    Swarm(Box<swarm::SwarmArgs>),
    /// Measure the latency of a running server, again and again
    Probe(probe::ProbeArgs),
    /// Run the floor: a minimal reference server that only moves bytes
    Floor(floor::FloorArgs),
    /// Write a page with plots of recorded results
    Report(page::ReportArgs),
    /// Run a scenario: start a server and the load tools, and write one result
    Run(Box<scenario::RunArgs>),
}

/// Runs a tool. The exit code says whether the tool succeeded. An error is printed to standard error.
pub fn run(cli: &Cli) -> ExitCode {
    let done = match &cli.tool {
        Tool::Subscribe(args) => subscribe::run(args),
        Tool::Publish(args) => publish::run(args),
        Tool::Swarm(args) => swarm::run(args),
        Tool::Probe(args) => probe::run(args),
        Tool::Floor(args) => floor::run(args),
        Tool::Report(args) => page::run(args),
        Tool::Run(args) => scenario::run(args),
    };
    done.unwrap_or_else(|error| {
        report::note(&format!("crore-bench: {error:#}"));
        ExitCode::FAILURE
    })
}
