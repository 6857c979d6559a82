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

const SUBSCRIBE_EXAMPLES: &str = "\
Examples:
  crore-bench subscribe --connections 1000          hold connections to a server that runs here
  crore-bench subscribe --protocol mqtt --qos 1 --duration 60s --json result.json";

const PUBLISH_EXAMPLES: &str = "\
Examples:
  crore-bench publish --duration 10s                100 messages a second
  crore-bench publish --saturate --connections 4    as fast as the server accepts";

const SWARM_EXAMPLES: &str = "\
Examples:
  crore-bench swarm --connections 1000000           a million WebSockets, with a server of its own
  crore-bench swarm --protocol sse --tsunami 5000   half of the clients reconnect at once";

const PROBE_EXAMPLES: &str = "\
Examples:
  crore-bench probe http://127.0.0.1:8800/news      until Ctrl-C
  crore-bench probe --duration 60s --p99-max 20ms   fail if messages take longer";

const FLOOR_EXAMPLES: &str = "\
Examples:
  crore-bench floor --listen 127.0.0.1:8900         then: subscribe --floor --server 127.0.0.1:8900";

const REPORT_EXAMPLES: &str = "\
Examples:
  crore-bench report                                results in docs/benchmarks, to report.html
  crore-bench report result.json --out page.html    other results";

const RUN_EXAMPLES: &str = "\
Examples:
  crore-bench run million --connections 10000       the highest rate for 10,000 subscribers
  crore-bench run crash --kills 20 --json -         no acknowledged message may be lost
  crore-bench run pair --peer mosquitto             compare with another server";

/// Measure a server: hold connections, publish, run scenarios
#[derive(clap::Parser)]
#[command(name = "crore-bench", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(clap::Subcommand)]
enum Tool {
    /// Open connections, subscribe, and check every message that arrives
    #[command(after_help = SUBSCRIBE_EXAMPLES)]
    Subscribe(Box<subscribe::SubscribeArgs>),
    /// Publish messages at a rate, or as fast as the server accepts
    #[command(after_help = PUBLISH_EXAMPLES)]
    Publish(publish::PublishArgs),
    /// Simulate many clients without kernel sockets, and start their server in its own network namespace
    #[command(after_help = SWARM_EXAMPLES)]
    Swarm(Box<swarm::SwarmArgs>),
    /// Measure the latency of a running server, and report it every second
    #[command(after_help = PROBE_EXAMPLES)]
    Probe(probe::ProbeArgs),
    /// Run the floor, a minimal reference server that only moves bytes
    #[command(after_help = FLOOR_EXAMPLES)]
    Floor(floor::FloorArgs),
    /// Write an HTML page with plots of recorded results
    #[command(after_help = REPORT_EXAMPLES)]
    Report(page::ReportArgs),
    /// Run a scenario: start a server and the load tools, and print the result
    #[command(after_help = RUN_EXAMPLES)]
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::Cli;

    #[test]
    fn each_tool_shows_examples_that_its_flags_allow() {
        for tool in Cli::command().get_subcommands() {
            let below = tool.get_after_help().expect("examples").to_string();
            let examples = below.lines().filter(|line| line.contains("crore-bench "));
            // Two spaces separate an example from its description.
            let commands = examples.map(|line| line.trim_start().split("  ").next());
            for command in commands.flatten() {
                let read = Cli::try_parse_from(command.split(' '));
                assert!(read.is_ok(), "{command}: {}", read.err().expect("an error"));
            }
        }
    }
}
