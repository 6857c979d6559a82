//! `crore pub`: one message from the command line or stdin, or one for each line of stdin.

use std::io::{self, BufRead, Read};

use anyhow::{Context, bail};
use clap::Args;

use super::flags::TlsFlags;
use super::{values, words::reason};
use crate::client::http::Connection;
use crate::client::server::{DEFAULT_SERVER, Server, TOKEN_VARIABLE};
use crate::stdout::print;

/// Longest answer to a publish, in bytes; the topic's info is a few lines.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Arguments of `crore pub`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  crore pub news 'Hello.'
  date | crore pub clock                             all of stdin is one message
  tail -f access.log | crore pub logs/web --lines    each line is a message
  crore pub scores '{\"home\":1}' --content-type application/json --json
  crore pub prices 41.90 --key ACME --ttl 60         the newest for its key, for a minute
  crore pub news hi --server https://a.example:443   by TLS; --ca names roots of your own")]
pub struct PubArgs {
    /// Topic, such as chat/lobby
    #[arg(value_parser = values::line)]
    pub topic: String,

    /// The message; without it, stdin
    #[arg(conflicts_with = "lines")]
    pub data: Option<String>,

    /// Publish each line of stdin as a message of its own
    #[arg(long)]
    pub lines: bool,

    /// Print the topic's info, as the server answers it, one JSON object for each message
    #[arg(long)]
    pub json: bool,

    /// Content type of the message
    #[arg(long, value_name = "TYPE", default_value = "text/plain; charset=utf-8", value_parser = values::content_type)]
    pub content_type: String,

    /// Event name for Server-Sent Events
    #[arg(long, value_name = "NAME", value_parser = values::field)]
    pub event: Option<String>,

    /// Key of the message: where a rule keeps the latest only, it takes the place of the one before with this key
    #[arg(long, value_name = "KEY", value_parser = values::field)]
    pub key: Option<String>,

    /// Seconds that the message lives; then it is not sent any more
    #[arg(long, value_name = "SECONDS")]
    pub ttl: Option<u32>,

    /// The server, on port 8800 unless the URL says another; https:// speaks TLS
    #[arg(long, value_name = "URL", default_value = DEFAULT_SERVER)]
    pub server: Server,

    #[command(flatten)]
    pub tls: TlsFlags,

    /// The token that says who you are [default: $CRORE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

/// Runs `crore pub`.
///
/// # Errors
/// Stdin cannot be read, the server cannot be reached, or it refuses a message (with its reason).
pub fn publish(args: &PubArgs) -> anyhow::Result<()> {
    let token = values::token(args.token.as_deref(), TOKEN_VARIABLE)?;
    let server = args.server.with_token(token);
    let args = &PubArgs {
        server: args.tls.apply(server).map_err(anyhow::Error::msg)?,
        ..args.clone()
    };
    let mut publisher = Publisher {
        args,
        connection: None,
    };
    if args.lines {
        return publish_lines(&mut publisher, io::stdin().lock());
    }
    match &args.data {
        Some(data) => publisher.publish(data.as_bytes()),
        None => {
            let mut data = Vec::new();
            io::stdin().lock().read_to_end(&mut data).context("stdin")?;
            publisher.publish(&data)
        }
    }
}

fn publish_lines(publisher: &mut Publisher<'_>, mut input: impl BufRead) -> anyhow::Result<()> {
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line).context("stdin")? > 0 {
        let data = line.strip_suffix(b"\n").unwrap_or(&line);
        publisher.publish(data.strip_suffix(b"\r").unwrap_or(data))?;
        line.clear();
    }
    Ok(())
}

struct Publisher<'a> {
    args: &'a PubArgs,
    connection: Option<Connection>,
}

impl Publisher<'_> {
    fn publish(&mut self, data: &[u8]) -> anyhow::Result<()> {
        let args = self.args;
        let unreachable = || format!("{}: cannot publish", args.server);
        let mut connection = match self.connection.take().and_then(Connection::reusable) {
            Some(connection) => connection,
            None => Connection::open(&args.server).with_context(unreachable)?,
        };
        let mut headers = vec![
            ("Accept", "application/json"),
            ("Content-Type", &args.content_type),
        ];
        if let Some(event) = &args.event {
            headers.push(("X-EventSource-Event", event));
        }
        if let Some(key) = &args.key {
            headers.push(("Crore-Key", key));
        }
        let ttl_s = args.ttl.map(|ttl_s| ttl_s.to_string());
        if let Some(ttl_s) = &ttl_s {
            headers.push(("Crore-TTL", ttl_s));
        }
        let target = args.server.publish_target(&args.topic);
        let head = connection
            .request(&args.server, "POST", &target, &headers, Some(data))
            .with_context(unreachable)?;
        let body = connection
            .whole_body(MAX_ANSWER_BYTES)
            .with_context(unreachable)?;
        if !(200..300).contains(&head.status) {
            bail!(
                "the server refused the message: {}{}",
                head.status_line(),
                reason(&body)
            );
        }
        self.connection = Some(connection);
        if args.json {
            let mut info = body.trim_ascii_end().to_vec();
            info.push(b'\n');
            print(&info)?;
        }
        Ok(())
    }
}
