//! `crore sub`: prints what is published, one line for each message, and holds on.
//!
//! Whatever ends a connection, the next one begins at the position of the last message that was
//! printed, so that stdout gets each message once and in order. A refusal that another attempt
//! cannot change (4xx, a deleted topic) ends the program with the server's reason. A server that
//! cannot be reached at the start ends it too; later it is tried until it answers.

pub(super) mod envelope;
mod poll;
mod session;
mod sse;
mod websocket;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use crore_net::memory::random_u64;

use super::flags::TlsFlags;
use super::values;
use crate::client::server::{DEFAULT_SERVER, Server, TOKEN_VARIABLE};
use session::{Session, Stop};

/// First wait before a new attempt; it doubles up to [`MAX_BACKOFF`]. Each wait is drawn at random
/// from its second half, so that clients of a server that returns do not return together.
const MIN_BACKOFF: Duration = Duration::from_millis(250);

/// Longest wait before a new attempt.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// How to subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Server-Sent Events
    Sse,
    /// WebSocket
    Ws,
    /// Long-poll
    Poll,
}

/// Arguments of `crore sub`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A message with line breaks takes several lines; --json keeps each message on one.

Examples:
  crore sub news
  crore sub 'scores/#'                               all topics below scores
  crore sub chat/lobby chat/help --json
  crore sub jobs --since oldest --count 1            take the oldest message that is kept
  crore sub prices --since -5 --protocol ws          the newest five, then live")]
pub struct SubArgs {
    /// Topics, such as chat/lobby, or filters, such as 'chat/+' (any one level) and 'chat/#' (all that follow)
    #[arg(required = true, value_name = "TOPIC", value_parser = values::line)]
    pub topics: Vec<String>,

    /// Print each message as a JSON object: id, topic, time, content_type, and data or data_base64
    #[arg(long)]
    pub json: bool,

    /// Exit after N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Where to begin: oldest, live, -N for the newest N, or the id of a message to go on after
    #[arg(
        long,
        value_name = "POSITION",
        default_value = "live",
        allow_hyphen_values = true,
        value_parser = values::line
    )]
    pub since: String,

    /// Transport
    #[arg(long, value_enum, default_value_t = Protocol::Sse)]
    pub protocol: Protocol,

    /// The server, on port 8800 unless the URL says another; https:// speaks TLS
    #[arg(long, value_name = "URL", default_value = DEFAULT_SERVER)]
    pub server: Server,

    #[command(flatten)]
    pub tls: TlsFlags,

    /// The token that says who you are [default: $CRORE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

/// Runs `crore sub`.
///
/// # Errors
/// The first connection fails, the server refuses (with its reason), or stdout cannot be written to.
pub fn subscribe(args: &SubArgs) -> anyhow::Result<()> {
    let token = values::token(args.token.as_deref(), TOKEN_VARIABLE)?;
    let server = args.server.with_token(token);
    let server = args.tls.apply(server).map_err(anyhow::Error::msg)?;
    let mut session = Session::new(&server, &args.topics, &args.since, args.json, args.count);
    let mut backoff = MIN_BACKOFF;
    loop {
        session.progressed = false;
        let started = Instant::now();
        let stop = match args.protocol {
            Protocol::Sse => sse::run(&mut session),
            Protocol::Ws => websocket::run(&mut session),
            Protocol::Poll => poll::run(&mut session),
        };
        if session.progressed || started.elapsed() > MAX_BACKOFF {
            backoff = MIN_BACKOFF;
        }
        match stop {
            Stop::Done => return Ok(()),
            Stop::Refused(why) => bail!("{why}"),
            Stop::Lost(why) if !session.ever_answered => {
                return Err(anyhow::anyhow!(why))
                    .with_context(|| format!("{}: cannot subscribe", server));
            }
            Stop::Lost(why) => {
                let wait = backoff.mul_f64(0.5 + 0.5 * random_fraction());
                tracing::warn!(
                    wait_ms = wait.as_millis(),
                    "connection lost, trying again: {why}"
                );
                thread::sleep(wait);
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}

fn random_fraction() -> f64 {
    (random_u64() >> 11) as f64 / (1u64 << 53) as f64
}
