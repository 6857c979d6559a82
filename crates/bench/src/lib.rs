//! `crore-bench`: load tools and scenarios, and the floor that they measure against.
//!
//! * [`subscribe`] holds connections and checks every message; [`publish`] sends them; both speak
//!   the server's HTTP paths, which are Nchan's too, and MQTT 3.1.1 and 5.
//! * [`probe`] does both on a server that runs, and tells how long its messages take.
//! * [`floor`] is a reference server that does nothing but move the bytes.
//! * [`swarm`] holds millions of connections without a socket of the kernel for each, against a server that it starts.
//! * [`page`] makes HTML with plots of recorded results.
//! * [`scenario`] starts a server and both tools as processes of their own and keeps one result.
//!
//! The folders have floors, and an import goes only down, that is towards the beginning of this list: `sys` (system calls);
//! `measure` (messages, statistics, `/proc`); `client` (requests and answers); `report`; `page` (results as HTML); `floor`; `publish`;
//! `subscribe`; `probe`; `rig` (a scenario's flags, its processes and samples of them); `swarm`; `scenario`.
//!
//! Nothing here knows the server from inside: a tool that shared the server's code would share its errors. Therefore the
//! answers of the server are read by a parser of this crate. Only requests, the frames of a WebSocket client and MQTT packets
//! go through the codecs that the server uses too: third-party clients and another implementation check
//! those against the specifications.
//! Only `sys` holds `unsafe`; only `report` writes to the terminal.

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
The scenarios start a server of their own: `crore` beside this program or in PATH, or the one of --server-binary.

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
    /// Many clients without kernel sockets, beside a server in a namespace of its own
    Swarm(Box<swarm::SwarmArgs>),
    /// Measure the latency of a running server, again and again
    Probe(probe::ProbeArgs),
    /// A bare reference server
    Floor(floor::FloorArgs),
    /// A page with plots of recorded results
    Report(page::ReportArgs),
    /// Start a server and both tools, and keep one result
    Run(Box<scenario::RunArgs>),
}

/// Runs a tool. The exit code says whether all went well; an error names the step that failed, on standard error.
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
