//! The state of a subscription of `crore sub` across its connections: the position, the number of messages left to print, and whether to
//! retry.
//!
//! A *gap* is the notice that messages are lost.

use crore_wire::sse::{GAP_EVENT, OWN_EVENTS};
use std::io::{self, ErrorKind, IsTerminal as _, StdoutLock, Write};
use std::time::{Duration, Instant};

use super::envelope::Envelope;
use super::format::Format;
use crate::http_client::http::{Connection, Head};
use crate::http_client::server::Server;
use crate::http_client::servers::Servers;
use crate::tools::refusals;

/// Maximum size of a message in its envelope, in bytes. It has room for the largest message that a server can permit, in base64.
pub const MAX_ENVELOPE_BYTES: usize = 512 << 20;

/// Maximum size of the body of a refusal, in bytes. The body is usually one line.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// A connection without bytes for this time counts as dead, if there is a position to continue from. The server's heartbeats are 50 s apart
/// by default.
const DEAD_AFTER: Duration = Duration::from_secs(180);

/// Why a connection ended.
#[derive(Debug)]
pub enum Stop {
    /// All `--count` messages are printed, or the reader of stdout is gone.
    Done,
    /// A retry would end the same way.
    Refused(String),
    /// A retry may succeed.
    Lost(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Stop::Lost("the server was silent for too long".to_string())
            }
            ErrorKind::UnexpectedEof => Stop::Lost("the server closed the connection".to_string()),
            _ => Stop::Lost(error.to_string()),
        }
    }
}

/// The state of a subscription across its connections.
pub struct Session<'a> {
    servers: Servers,
    topics: &'a [String],
    /// The position to begin at. None for the server's default.
    since: Option<&'a str>,
    /// The format of a message's line. None if messages are printed as JSON.
    format: Option<Format>,
    /// The position to continue from, usually the id of the last printed message.
    position: Option<String>,
    /// The number of messages that are still to be printed. None without `--count`.
    pub remaining: Option<u64>,
    /// The time at which `--timeout` is over.
    pub end: Option<Instant>,
    /// Whether the server has accepted the subscription at least once.
    pub ever_answered: bool,
    /// Whether the current connection has delivered a message. The loop over connections resets this flag.
    pub progressed: bool,
    out: StdoutLock<'static>,
}

impl<'a> Session<'a> {
    /// A session without a limit of messages or time.
    pub fn new(
        servers: Servers,
        topics: &'a [String],
        since: Option<&'a str>,
        format: Option<Format>,
    ) -> Session<'a> {
        Session {
            servers,
            topics,
            since,
            format,
            position: None,
            remaining: None,
            end: None,
            ever_answered: false,
            progressed: false,
            out: io::stdout().lock(),
        }
    }

    /// The server in use.
    pub fn server(&self) -> &Server {
        self.servers.current()
    }

    /// The number of servers.
    pub fn servers(&self) -> usize {
        self.servers.count()
    }

    /// Changes to the next server.
    pub fn move_on(&mut self) {
        self.servers.move_on();
    }

    /// Connects to the server in use. The connection fails when `--timeout` is over.
    pub fn open(&self) -> io::Result<Connection> {
        match self.end {
            None => Connection::open(self.server()),
            Some(end) => Connection::open_with_deadline(self.server(), end),
        }
    }

    /// Whether `--timeout` is over.
    pub fn is_over(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// The time that is left of `--timeout`.
    pub fn time_left(&self) -> Option<Duration> {
        let now = Instant::now();
        self.end.map(|end| end.saturating_duration_since(now))
    }

    /// The request target of the next connection.
    pub fn target(&self) -> String {
        let since = self.position.as_deref().or(self.since);
        self.server().subscribe_target(self.topics, since)
    }

    /// The timeout of reads. `None` if there is no position to continue from: then messages between two connections would be lost, so the
    /// connection is kept as long as possible.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.position.as_ref().map(|_| DEAD_AFTER)
    }

    /// Warns that messages until the next connection may be missing, if there is no position to continue from.
    pub fn warn_without_position(&self) {
        let begins_live = self.since.is_none_or(|since| since == "live");
        if self.position.is_none() && begins_live {
            tracing::warn!(
                "no message has come yet, so no position is known: messages that are published until the connection is back may be missing"
            );
        }
    }

    /// Notes that the server has accepted the subscription. Says so once on a terminal, because the first message may take long.
    pub fn answered(&mut self) {
        if !self.ever_answered && io::stderr().is_terminal() {
            let topics = self.topics.join("`, `");
            // A closed stderr is no reason to fail.
            let _ = writeln!(
                io::stderr(),
                "crore: subscribed to `{topics}` at {}; Ctrl-C ends it",
                self.server()
            );
        }
        self.ever_answered = true;
    }

    /// Sets the position to continue from.
    pub fn set_position(&mut self, position: &str) {
        self.position = Some(position.to_string());
    }

    /// Prints the message in an envelope.
    ///
    /// # Errors
    /// `Stop::Done` after the last message to print; otherwise the envelope is malformed, or stdout fails.
    pub fn deliver(&mut self, envelope: &[u8]) -> Result<(), Stop> {
        let envelope = Envelope::parse(envelope).map_err(|error| {
            Stop::Refused(format!(
                "the server's answer is not a message in a JSON envelope: {error}"
            ))
        })?;
        if envelope.gap.is_some() {
            self.notice(GAP_EVENT, envelope.id.as_deref());
            return Ok(());
        }
        if envelope
            .event
            .as_deref()
            .is_some_and(|event| event.starts_with(OWN_EVENTS))
        {
            self.notice(
                envelope.event.as_deref().unwrap_or_default(),
                envelope.id.as_deref(),
            );
            return Ok(());
        }
        if let (true, Some(position)) = (envelope.is_position(), &envelope.id) {
            self.set_position(position);
            return Ok(());
        }
        let line = envelope
            .line(self.format.as_ref())
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
        if let Some(remaining) = &mut self.remaining {
            *remaining -= 1;
            if *remaining == 0 {
                return Err(Stop::Done);
            }
        }
        Ok(())
    }

    /// Warns that messages before the server's `position` are lost, and why.
    pub fn report_gap(&self, position: Option<&str>) {
        let seen = self.position.as_deref().or(self.since).and_then(epoch);
        let lives = seen.zip(position.and_then(epoch));
        let reason = match lives.is_some_and(|(seen, now)| seen != now) {
            true => {
                "the server has begun anew since then, and its log does not have them (state.directory keeps them on disk; a restored backup lacks the newest)"
            }
            false => {
                "the log no longer has them (rule.log_bytes, rule.log_age_s, rule.log_messages)"
            }
        };
        tracing::warn!("messages before the next one are lost: {reason} ({GAP_EVENT})");
    }

    /// Warns of a notice of the server, such as a gap, and continues from the notice's position.
    pub fn notice(&mut self, name: &str, position: Option<&str>) {
        match name {
            GAP_EVENT => self.report_gap(position),
            _ => {
                tracing::warn!("the server says {name}: messages may be missing before this point")
            }
        }
        if let Some(position) = position {
            self.position = Some(position.to_string());
        }
    }
}

/// The epoch in a position of a single topic. None for positions in several topics or in filters.
fn epoch(position: &str) -> Option<&str> {
    let (epoch, _) = position.split_once('-')?;
    epoch.strip_prefix('1')
}

/// The outcome of a response that refuses the subscription: whether a retry may succeed, with the reason in the response's body.
pub fn refusal(connection: &mut Connection, head: &Head) -> Stop {
    let body = connection
        .read_whole_body(MAX_REFUSAL_BYTES)
        .unwrap_or_default();
    let reason = refusals::refusal(head, &body);
    let message = format!("the server refused the subscription: {reason}");
    match head.status {
        408 | 429 | 500..=599 => Stop::Lost(message),
        _ => Stop::Refused(message),
    }
}
