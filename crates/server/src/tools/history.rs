//! `crore history`: prints the kept messages of a topic, one line for each.

use std::io::{self, Write as _};

use anyhow::{Context, bail};
use clap::Args;

use super::flags::Connect;
use super::refusals::refusal;
use super::subscribe::envelope::Envelope;
use super::subscribe::format::Format;
use super::values;
use crate::http_client::http::Connection;
use crate::http_client::server::Server;
use crate::stdout;

/// Maximum size of an answer, in bytes. An answer is a page of messages. The page may be a single message of the largest size that a server
/// can permit, and base64 or escapes make the message longer.
const MAX_BYTES: usize = 64 << 20;

/// The value of `since` for the position before all kept messages.
const OLDEST: &str = "oldest";

/// Arguments of `crore history`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A topic that keeps nothing is no error. It needs the right to subscribe.
How much a topic keeps is a setting (rule.log_bytes, rule.log_age_s, rule.log_messages).

Examples:
  crore history chat/lobby                           all that is kept
  crore history chat/lobby --limit 20                the newest twenty
  crore history chat/lobby --since oldest --limit 20     the oldest twenty
  crore history chat/lobby --json                    with id, time and content type")]
pub struct HistoryArgs {
    /// The topic, such as chat/lobby
    #[arg(value_name = "TOPIC", value_parser = values::topic)]
    pub topic: String,

    /// Print each message as JSON, with its id, topic, time and content type
    #[arg(short, long)]
    pub json: bool,

    /// Print the newest N messages, oldest of these first; with --since the first N from there on
    #[arg(short = 'n', long, alias = "count", short_alias = 'c', value_name = "N", allow_negative_numbers = true, value_parser = values::positive_count)]
    pub limit: Option<u64>,

    /// Where to begin: oldest, -N for the newest N, or the id of a message to begin after [default: oldest]
    #[arg(
        short = 'S',
        long,
        value_name = "POSITION",
        allow_hyphen_values = true,
        value_parser = begin
    )]
    pub since: Option<String>,

    #[command(flatten)]
    pub connect: Connect,
}

fn begin(text: &str) -> Result<String, String> {
    match text {
        "live" => Err("nothing that is kept is behind it; write oldest, -N for the newest N, or the id of a message".to_string()),
        text => values::position(text),
    }
}

/// Runs `crore history`.
///
/// # Errors
/// The server cannot be reached, or refuses (with its reason), or stdout cannot be written to.
pub fn history(args: &HistoryArgs) -> anyhow::Result<()> {
    let mut servers = args.connect.servers()?;
    for hint in values::hints(&args.topic) {
        tracing::warn!("{hint}");
    }
    let format = (!args.json).then(Format::data);
    let failed = |server: &Server| format!("{server}: cannot read the history of {}", args.topic);
    let limit = args.limit.unwrap_or(u64::MAX);
    let begin = match (&args.since, args.limit) {
        (Some(since), _) => since.clone(),
        (None, Some(newest)) => format!("-{newest}"),
        (None, None) => OLDEST.to_string(),
    };
    let (mut since, mut left) = (begin, limit);
    loop {
        let mut connection =
            servers.try_each(|server| Connection::open(server).with_context(|| failed(server)))?;
        let server = servers.current();
        let target = server.history_target(&args.topic, &since, left);
        let page = page(&mut connection, server, &target).with_context(|| failed(server))?;
        if page.lost {
            tracing::warn!("messages before the next one are lost");
        }
        let messages: Vec<Envelope<'_>> = serde_json::from_slice(&page.body)
            .context("the answer is not a JSON array of messages")
            .with_context(|| failed(server))?;
        for message in &messages {
            stdout::print(&message.line(format.as_ref())?)?;
        }
        left = left.saturating_sub(messages.len() as u64);
        match messages.last().and_then(|last| last.id.clone()) {
            Some(last) if page.more && left > 0 => since = last,
            None if left == limit => {
                // An empty history is no error. If stderr is closed, nobody reads this notice, and that is no error either.
                let behind = match args.since.as_deref() {
                    None | Some(OLDEST) => String::new(),
                    Some(since) => format!(" from {since} on"),
                };
                let topic = &args.topic;
                let _ = writeln!(
                    io::stderr(),
                    "crore: no messages of `{topic}` are kept{behind}"
                );
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

/// An answer to a request for messages.
struct Page {
    body: Vec<u8>,
    /// Whether more messages follow.
    more: bool,
    /// Whether messages before the first one are lost.
    lost: bool,
}

fn page(connection: &mut Connection, server: &Server, target: &str) -> anyhow::Result<Page> {
    let head = connection.request(server, "GET", target, &[], None)?;
    let body = connection.read_whole_body(MAX_BYTES)?;
    if head.status != 200 {
        bail!("{}", refusal(&head, &body));
    }
    Ok(Page {
        body,
        more: head.header("crore-more").is_some(),
        lost: head.header("crore-gap").is_some(),
    })
}
