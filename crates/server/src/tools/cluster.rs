//! `crore cluster`: the state of a cluster, as one of its nodes sees it.
//!
//! The exit code is 0 if the cluster has no problems, and 1 if it has any or the node does not answer.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::admin::{AdminFlags, AdminPort};
use super::tables::table;
use crate::stdout::print;

const NODE_COLUMNS: &[&str] = &[
    "name",
    "admin",
    "this",
    "state",
    "clients",
    "subscriptions",
    "lag",
    "ready",
    "age_s",
    "last_seen_unix_s",
    "clock_ahead_s",
    "writer",
];
const PARTITION_COLUMNS: &[&str] = &[
    "partition",
    "leader",
    "replicas",
    "replicas_current",
    "read",
    "last",
    "lag",
    "bytes",
    "bytes_max",
    "checkpoint",
    "checkpoint_age_s",
    "checkpoint_bytes",
];

/// Examples of `crore cluster --help`.
pub const EXAMPLES: &str = "\
Examples:
  crore cluster status                               nodes, partitions, the log in NATS
  crore cluster status --json                        the same for programs
  crore cluster status --url http://10.0.0.5:8801    by another node's admin port";

/// Flags of `crore cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(flatten)]
    admin: AdminFlags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show nodes, partitions and the log; fails when something is wrong
    Status,
}

/// Runs `crore cluster`.
pub fn run(args: &ClusterArgs) -> anyhow::Result<ExitCode> {
    let Command::Status = args.command;
    let server = args.admin.server()?;
    let status = AdminPort { server: &server }.ask("GET", "cluster", None)?;
    let text = match args.admin.json {
        true => serde_json::to_string_pretty(&status)? + "\n",
        false => status_text(&status),
    };
    print(text.as_bytes())?;
    let is_well = status["problems"].as_array().is_some_and(Vec::is_empty);
    Ok(match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn status_text(status: &Value) -> String {
    let engine = &status["engine"];
    let mut nodes = status["nodes"].clone();
    for node in nodes.as_array_mut().into_iter().flatten() {
        for column in ["subscriptions", "lag", "ready"] {
            node[column] = node["told"][column].clone();
        }
    }
    let plain = |value: &Value| value.to_string().replace(['"', '\n'], "");
    let sync = match engine["sync"].as_array() {
        Some(all) if !all.is_empty() => {
            let always = all.iter().filter(|it| it["always"] == true).count();
            format!("always at {always} of {} servers", all.len())
        }
        _ => "not checked (cluster.monitoring names no server)".to_string(),
    };
    let mut text = format!(
        "cluster {}, epoch {}\n\n{}\n{}\nNATS: connected {}, fresh {}, appended {}, append errors {}, disconnects {}\nsync_interval: {sync}\n",
        plain(&status["name"]),
        plain(&status["epoch"]),
        table(&json!({ "nodes": nodes }), NODE_COLUMNS),
        table(
            &json!({ "partitions": status["partitions"] }),
            PARTITION_COLUMNS
        ),
        plain(&engine["connected"]),
        plain(&engine["fresh"]),
        plain(&engine["appended"]),
        plain(&engine["append_errors"]),
        plain(&engine["disconnects"]),
    );
    let problems = status["problems"].as_array().into_iter().flatten();
    for problem in problems.filter_map(Value::as_str) {
        // Control characters in the text of other nodes must not reach the terminal.
        let problem = problem.replace(char::is_control, " ");
        text += &format!("PROBLEM: {problem}\n");
    }
    text
}
