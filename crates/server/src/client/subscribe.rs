//! `crore sub`: prints what is published, one line for each message, and holds on.
//!
//! Whatever ends a connection, the next one begins at the position of the last message that was
//! printed, so that stdout gets each message once and in order. A refusal that another attempt
//! cannot change (4xx, a deleted topic) ends the program with the server's reason. A server that
//! cannot be reached at the start ends it too; later it is tried until it answers.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, StdoutLock, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::envelope::Envelope;
use super::flags::TlsFlags;
use super::http::{Connection, Head};
use super::publish::reason;
use super::server::{DEFAULT_SERVER, Server};
use super::{poll, sse, websocket};

/// Longest message with its envelope, in bytes: base64 of the largest that a server may be set to take.
pub const MAX_ENVELOPE_BYTES: usize = 512 << 20;

/// Longest body of a refusal, in bytes; a line is usual.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Silence after which a connection is taken for dead, if there is a position to go on from. A
/// server's heartbeats come every 50 s by default.
const DEAD_AFTER: Duration = Duration::from_secs(180);

/// First wait before a new attempt; it doubles up to [`MAX_BACKOFF`]. Each wait is drawn at random
/// from its second half, so that clients of a server that returns do not return together.
const MIN_BACKOFF: Duration = Duration::from_millis(250);

/// Longest wait before a new attempt.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The notice that messages are lost.
pub const GAP: &str = "crore.gap";

/// Event names with this prefix are the server's own notices.
const NOTICE_PREFIX: &str = "crore.";

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
    #[arg(required = true, value_name = "TOPIC")]
    pub topics: Vec<String>,

    /// Print each message as a JSON object: id, topic, content_type, and data or data_base64
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
        allow_hyphen_values = true
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

/// Why a connection brings no more messages.
#[derive(Debug)]
pub enum Stop {
    /// All messages that were asked for are printed, or nobody reads them any more.
    Done,
    /// Another attempt would end the same way.
    Refused(String),
    /// Worth another attempt.
    Lost(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Stop::Lost("silence".to_string()),
            ErrorKind::UnexpectedEof => Stop::Lost("the server closed the connection".to_string()),
            _ => Stop::Lost(error.to_string()),
        }
    }
}

/// What lives across connections.
pub struct Session<'a> {
    pub args: &'a SubArgs,
    /// The id of the last message that was printed.
    position: Option<String>,
    /// Messages still to print.
    left: Option<u64>,
    /// The server has accepted the subscription at least once.
    ever_answered: bool,
    /// The current connection brought a message; reset by the loop.
    progressed: bool,
    out: StdoutLock<'static>,
}

/// Runs `crore sub`.
///
/// # Errors
/// The first connection fails, the server refuses (with its reason), or stdout cannot be written to.
pub fn subscribe(args: &SubArgs) -> anyhow::Result<()> {
    let server = args.server.with_token(args.token.as_ref());
    let args = &SubArgs {
        server: args.tls.apply(server).map_err(anyhow::Error::msg)?,
        ..args.clone()
    };
    let mut session = Session {
        args,
        position: None,
        left: args.count,
        ever_answered: false,
        progressed: false,
        out: io::stdout().lock(),
    };
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
                    .with_context(|| format!("{}: cannot subscribe", args.server));
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

impl Session<'_> {
    /// The request target of the next connection.
    pub fn target(&self) -> String {
        let since = self.position.as_deref().unwrap_or(&self.args.since);
        self.args
            .server
            .subscribe_target(&self.args.topics, Some(since))
    }

    /// How long a connection may be silent. Without a position a reconnect could lose what is
    /// published meanwhile, so the wait has no end.
    pub fn patience(&self) -> Option<Duration> {
        self.position.as_ref().map(|_| DEAD_AFTER)
    }

    /// The server accepted the subscription.
    pub fn answered(&mut self) {
        self.ever_answered = true;
    }

    /// Takes the position that an answer names, which may have had no message.
    pub fn stands_at(&mut self, position: &str) {
        self.position = Some(position.to_string());
    }

    /// Prints one message, given as its envelope.
    ///
    /// # Errors
    /// [`Stop`], when it was the last one wanted, the envelope makes no sense or stdout fails.
    pub fn deliver(&mut self, envelope: &[u8]) -> Result<(), Stop> {
        let envelope = Envelope::parse(envelope).map_err(|error| {
            Stop::Refused(format!(
                "the server's answer is not a message in a JSON envelope: {error}"
            ))
        })?;
        if envelope.gap.is_some() {
            self.notice(GAP, envelope.id.as_deref());
            return Ok(());
        }
        if envelope
            .event
            .as_deref()
            .is_some_and(|event| event.starts_with(NOTICE_PREFIX))
        {
            self.notice(
                envelope.event.as_deref().unwrap_or_default(),
                envelope.id.as_deref(),
            );
            return Ok(());
        }
        let line = envelope
            .line(self.args.json)
            .map_err(|error| Stop::Refused(error.to_string()))?;
        if let Err(error) = self.out.write_all(&line).and_then(|()| self.out.flush()) {
            return Err(match error.kind() {
                ErrorKind::BrokenPipe => Stop::Done,
                _ => Stop::Refused(format!("stdout: {error}")),
            });
        }
        if envelope.id.is_some() {
            self.position = envelope.id;
        }
        self.progressed = true;
        if let Some(left) = &mut self.left {
            *left -= 1;
            if *left == 0 {
                return Err(Stop::Done);
            }
        }
        Ok(())
    }

    /// Reports a notice of the server, such as a gap, and goes on from the position that it gives.
    pub fn notice(&mut self, name: &str, position: Option<&str>) {
        tracing::warn!("the server says {name}: messages may be missing before this point");
        if let Some(position) = position {
            self.position = Some(position.to_string());
        }
    }
}

/// What a response that is no subscription means. Reads its body for the reason.
pub fn refusal(connection: &mut Connection, head: &Head) -> Stop {
    let body = connection.whole_body(MAX_REFUSAL_BYTES).unwrap_or_default();
    let what = format!(
        "the server refused the subscription: {}{}",
        head.status_line(),
        reason(&body)
    );
    match head.status {
        408 | 429 | 500..=599 => Stop::Lost(what),
        _ => Stop::Refused(what),
    }
}

/// A random number of 64 bits, from the seed that the standard library draws for its maps.
pub fn random_u64() -> u64 {
    RandomState::new().hash_one(0)
}

fn random_fraction() -> f64 {
    (random_u64() >> 11) as f64 / (1u64 << 53) as f64
}
