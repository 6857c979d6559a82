//! `crore sub`: subscribes, and prints messages, one line for each.
//!
//! After a lost connection, the next connection continues at the position of the last printed message, so that stdout gets each message
//! once and in order. A refusal that a retry cannot change (4xx, a deleted topic) ends the program with the server's reason. If none of the
//! servers can be reached at the start, the program ends too. Later, connections are retried until `--timeout`.

pub(super) mod envelope;
pub(super) mod format;
mod poll;
mod session;
mod sse;
mod websocket;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use crore_net::memory::random_u64;

use super::flags::Connect;
use super::values;
use crate::http_client::server::is_filter;
use format::Format;
use session::{Session, Stop};

/// The first backoff. The backoff doubles with each retry, up to [`MAX_BACKOFF`]. The wait before a retry is random, between half the
/// backoff and all of it, so that the clients of a restarted server do not return at the same moment.
const MIN_BACKOFF: Duration = Duration::from_millis(250);

/// The maximum backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// How to subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Server-Sent Events
    Sse,
    /// WebSocket
    Ws,
    /// Long-poll
    Poll,
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match &*text.to_ascii_lowercase() {
        "sse" | "eventsource" | "events" => Ok(Protocol::Sse),
        "ws" | "websocket" | "websockets" => Ok(Protocol::Ws),
        "poll" | "longpoll" | "long-poll" => Ok(Protocol::Poll),
        "mqtt" => Err("crore sub does not speak MQTT (mosquitto_sub does); write sse, ws or poll, which give the same messages".to_string()),
        // The flag is `-p`, which means the port in other tools.
        port if port.parse::<u16>().is_ok() => Err(format!(
            "-p is the protocol: sse, ws or poll; the port is part of the URL: --server http://127.0.0.1:{port}"
        )),
        _ => Err("write sse, ws or poll".to_string()),
    }
}

/// Arguments of `crore sub`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each message ends with a line break. A message with line breaks takes several lines;
--json keeps each message on one.
TIME is seconds, or has a unit: 90s, 15m, 8h, 30d.

Examples:
  crore sub news
  crore sub 'scores/#'                               all topics below scores
  crore sub chat/lobby chat/help --json
  crore sub 'sensors/+/temperature' --format '%t;%p' topic and data
  crore sub jobs --since oldest --count 1            take the oldest message that is kept
  crore sub prices --since -5 --protocol ws          the newest five, then live
  crore sub news --timeout 60s                       end after a minute

Exit codes: 0 done (also when --timeout ends it), 1 failed, or fewer than --count came in time,
2 wrong usage.")]
pub struct SubArgs {
    /// Topics, such as chat/lobby, or filters, such as 'chat/+' (any one level) and 'chat/#' (all that follow)
    #[arg(required = true, value_name = "TOPIC", value_parser = values::filter)]
    pub topics: Vec<String>,

    /// Print each message as JSON, with its id, topic, time and content type
    #[arg(short, long, help_heading = OUTPUT)]
    pub json: bool,

    /// Print the topic before each message; default for several or a filter
    #[arg(short, long, conflicts_with_all = ["json", "format"], help_heading = OUTPUT)]
    pub verbose: bool,

    /// Print this line for each message: %t topic, %p data, %i id, %k key, %e event, %c content type, %%, \n, \t
    #[arg(short = 'F', long, value_name = "FORMAT", conflicts_with = "json", help_heading = OUTPUT)]
    pub format: Option<Format>,

    /// Exit after N messages
    #[arg(short, short_aliases = ['C', 'n'], long, alias = "limit", value_name = "N", value_parser = values::positive_count)]
    pub count: Option<u64>,

    /// Exit after this time
    #[arg(short = 'W', long, value_name = "TIME", value_parser = values::positive_time)]
    pub timeout: Option<u64>,

    /// Where to begin: oldest, live, -N for the newest N, or the id of a message to go on after
    /// [default: retained messages and latest values, then live]
    #[arg(
        short = 'S',
        long,
        value_name = "POSITION",
        allow_hyphen_values = true,
        value_parser = values::position
    )]
    pub since: Option<String>,

    /// sse (Server-Sent Events), ws (WebSocket) or poll
    #[arg(short, long, default_value = "sse", value_parser = protocol, help_heading = "Connection")]
    pub protocol: Protocol,

    #[command(flatten)]
    pub connect: Connect,
}

/// The heading of the flags that say how a message is printed.
const OUTPUT: &str = "Output";

impl SubArgs {
    /// The format of a message's line. None if messages are printed as JSON.
    fn line_format(&self) -> Option<Format> {
        let several = self.topics.len() > 1 || self.topics.iter().any(|name| is_filter(name));
        match &self.format {
            _ if self.json => None,
            Some(format) => Some(format.clone()),
            None if self.verbose || several => Some(Format::with_topic()),
            None => Some(Format::data()),
        }
    }
}

/// Runs `crore sub`.
///
/// # Errors
/// The first connection fails, the server refuses (with its reason), stdout cannot be written to, or fewer than `--count` messages arrived
/// before `--timeout`.
pub fn subscribe(args: &SubArgs) -> anyhow::Result<()> {
    let servers = args.connect.servers()?;
    for hint in args.topics.iter().flat_map(|it| values::hints(it)) {
        tracing::warn!("{hint}");
    }
    // A long-poll without `since` would begin with the oldest kept message.
    let default = (args.protocol == Protocol::Poll).then_some("live");
    let since = args.since.as_deref().or(default);
    let mut session = Session::new(servers, &args.topics, since, args.line_format());
    session.remaining = args.count;
    session.end = (args.timeout).map(|time| Instant::now() + Duration::from_secs(time));
    let mut backoff = MIN_BACKOFF;
    let mut untried = session.servers();
    loop {
        session.progressed = false;
        let started = Instant::now();
        let Err(stop) = match args.protocol {
            Protocol::Sse => sse::receive(&mut session),
            Protocol::Ws => websocket::receive(&mut session),
            Protocol::Poll => poll::receive(&mut session),
        };
        if session.progressed || started.elapsed() > MAX_BACKOFF {
            backoff = MIN_BACKOFF;
        }
        match stop {
            Stop::Done => return Ok(()),
            Stop::Refused(reason) => bail!("{reason}"),
            // A long-poll gets its first answer only with the first message, so its timeout without an answer is no failure.
            Stop::Lost(_)
                if session.is_over()
                    && (session.ever_answered || args.protocol == Protocol::Poll) =>
            {
                return outcome_at_timeout(&session, args);
            }
            Stop::Lost(reason) if !session.ever_answered => {
                let failed = format!("{}: cannot subscribe", session.server());
                untried -= 1;
                if untried == 0 {
                    return Err(anyhow::anyhow!(reason)).context(failed);
                }
                tracing::warn!("{failed}: {reason}; trying the next server");
                session.move_on();
            }
            Stop::Lost(reason) => {
                let mut wait = backoff.mul_f64(0.5 + 0.5 * random_fraction());
                wait = session.time_left().map_or(wait, |left| wait.min(left));
                tracing::warn!(
                    wait_ms = wait.as_millis(),
                    "connection lost, trying again: {reason}"
                );
                session.warn_without_position();
                thread::sleep(wait);
                session.move_on();
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}

/// The outcome when `--timeout` is over: an error if `--count` messages have not come.
fn outcome_at_timeout(session: &Session<'_>, args: &SubArgs) -> anyhow::Result<()> {
    match (args.count, session.remaining) {
        (Some(count), Some(remaining)) => {
            bail!(
                "--timeout: {} of {count} messages came in time",
                count - remaining
            )
        }
        _ => Ok(()),
    }
}

fn random_fraction() -> f64 {
    (random_u64() >> 11) as f64 / (1u64 << 53) as f64
}
