//! `crore presence`: prints who is present in a topic, one line for each connection.

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use super::flags::Connect;
use super::refusals::refusal;
use super::tables::table;
use super::values;
use crate::http_client::http::Connection;
use crate::http_client::server::Server;
use crate::stdout;

/// Maximum size of an answer, in bytes. An answer has at most 64 KiB of members and one member more, in JSON.
const MAX_BYTES: usize = 1 << 20;
const COLUMNS: &[&str] = &["id", "user", "client", "since", "info"];

/// Arguments of `crore presence`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A connection is present in the topics that it subscribes to, if their rule has
presence = true. Reading that needs the right `presence`.

Examples:
  crore presence chat/lobby               who is there
  crore presence chat/lobby --stats       how many
  crore presence chat/lobby --json        a line of JSON for each, for programs")]
pub struct PresenceArgs {
    /// The topic, such as chat/lobby
    #[arg(value_name = "TOPIC", value_parser = values::topic)]
    pub topic: String,

    /// Print each member as JSON
    #[arg(short, long)]
    pub json: bool,

    /// Print only how many are present
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub connect: Connect,
}

/// Runs `crore presence`.
///
/// # Errors
/// The server cannot be reached, or refuses (with its reason), or stdout cannot be written to.
pub fn presence(args: &PresenceArgs) -> anyhow::Result<()> {
    let mut servers = args.connect.servers()?;
    for hint in values::hints(&args.topic) {
        tracing::warn!("{hint}");
    }
    let failed =
        |server: &Server| format!("{server}: cannot read who is present in {}", args.topic);
    let mut after = String::from("0");
    loop {
        let mut connection =
            servers.try_each(|server| Connection::open(server).with_context(|| failed(server)))?;
        let server = servers.current();
        let target = server.presence_target(&args.topic, &after, args.stats);
        let (page, more) =
            page(&mut connection, server, &target).with_context(|| failed(server))?;
        if args.stats {
            let line = match args.json {
                true => format!("{page}\n"),
                false => format!("{} connections, {} users\n", page["clients"], page["users"]),
            };
            return stdout::print(line.as_bytes());
        }
        let members = page["members"].as_array().map_or(&[][..], |all| all);
        match args.json {
            true => {
                for member in members {
                    stdout::print(format!("{member}\n").as_bytes())?;
                }
            }
            false => stdout::print(table(&page, COLUMNS).as_bytes())?,
        }
        match members.last().and_then(|last| last["id"].as_str()) {
            Some(last) if more => after = last.to_string(),
            _ => {
                if page["listed"] != page["clients"] {
                    let (clients, listed) = (&page["clients"], &page["listed"]);
                    tracing::warn!(
                        "{clients} are present; rule.presence_max lets {listed} be listed"
                    );
                }
                return Ok(());
            }
        }
    }
}

/// An answer, and whether more members follow.
fn page(
    connection: &mut Connection,
    server: &Server,
    target: &str,
) -> anyhow::Result<(Value, bool)> {
    let head = connection.request(server, "GET", target, &[], None)?;
    let body = connection.read_whole_body(MAX_BYTES)?;
    if head.status != 200 {
        bail!("{}", refusal(&head, &body));
    }
    let page = serde_json::from_slice(&body).context("the answer is not JSON")?;
    Ok((page, head.header("crore-more").is_some()))
}
