//! The state of a subscription across its connections: the position, the messages left to print, and the meaning of a refusal.

use crore_wire::sse::{GAP_EVENT, OWN_EVENTS};
use std::io::{self, ErrorKind, IsTerminal as _, StdoutLock, Write};
use std::time::{Duration, Instant};

use super::envelope::Envelope;
use super::format::Format;
use crate::http_client::http::{Connection, Head};
use crate::http_client::server::Server;
use crate::http_client::servers::Servers;
use crate::tools::refusals;

/// Longest message with its envelope, in bytes: base64 of the largest that a server may be set to take.
pub const MAX_ENVELOPE_BYTES: usize = 512 << 20;

/// Longest body of a refusal, in bytes; a line is usual.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Silence after which a connection is taken for dead, if there is a position to go on from. A
/// server's heartbeats come every 50 s by default.
const DEAD_AFTER: Duration = Duration::from_secs(180);

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
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Stop::Lost("the server was silent for too long".to_string())
            }
            ErrorKind::UnexpectedEof => Stop::Lost("the server closed the connection".to_string()),
            _ => Stop::Lost(error.to_string()),
        }
    }
}

/// The state that lives across connections.
pub struct Session<'a> {
    servers: Servers,
    topics: &'a [String],
    /// Where to begin; none: where the topic's rule says.
    since: Option<&'a str>,
    /// How a message is printed; none: as JSON.
    format: Option<Format>,
    /// The id of the last message that was printed.
    position: Option<String>,
    /// Messages still to print.
    pub left: Option<u64>,
    /// When it ends in any case.
    pub end: Option<Instant>,
    /// The server has accepted the subscription at least once.
    pub ever_answered: bool,
    /// The current connection brought a message; reset by the loop.
    pub progressed: bool,
    out: StdoutLock<'static>,
}

impl<'a> Session<'a> {
    /// Nothing has come yet, and nothing ends it.
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
            left: None,
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

    /// How many servers there are to try.
    pub fn servers(&self) -> usize {
        self.servers.count()
    }

    /// The next connection goes to the next server.
    pub fn move_on(&mut self) {
        self.servers.move_on();
    }

    /// A connection to the server, which ends when the subscription does.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub fn open(&self) -> io::Result<Connection> {
        match self.end {
            None => Connection::open(self.server()),
            Some(end) => Connection::open_until(self.server(), end),
        }
    }

    /// Whether its time is over.
    pub fn is_over(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// The time that is left, where it is bounded.
    pub fn time_left(&self) -> Option<Duration> {
        let now = Instant::now();
        self.end.map(|end| end.saturating_duration_since(now))
    }

    /// The request target of the next connection.
    pub fn target(&self) -> String {
        let since = self.position.as_deref().or(self.since);
        self.server().subscribe_target(self.topics, since)
    }

    /// How long a connection may be silent. Without a position a reconnect could lose what is
    /// published meanwhile, so the wait has no end.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.position.as_ref().map(|_| DEAD_AFTER)
    }

    /// Says that messages until the next connection may be missing, where no position is known to go on from.
    pub fn warn_without_position(&self) {
        let begins_live = self.since.is_none_or(|since| since == "live");
        if self.position.is_none() && begins_live {
            tracing::warn!(
                "no message has come yet, so no position is known: messages that are published until the connection is back may be missing"
            );
        }
    }

    /// The server accepted the subscription. A user at a terminal is told so, once: nothing may come for long.
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
            self.stands_at(position);
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
        if let Some(left) = &mut self.left {
            *left -= 1;
            if *left == 0 {
                return Err(Stop::Done);
            }
        }
        Ok(())
    }

    /// Reports that messages are lost, and why: the server named this position then.
    pub fn gap(&self, position: Option<&str>) {
        let seen = self.position.as_deref().or(self.since).and_then(epoch);
        let lives = seen.zip(position.and_then(epoch));
        let why = match lives.is_some_and(|(seen, now)| seen != now) {
            true => {
                "the server has begun anew since then, and its log does not have them (state.directory keeps them on disk; a restored backup lacks the newest)"
            }
            false => {
                "the log no longer has them (rule.log_bytes, rule.log_age_s, rule.log_messages)"
            }
        };
        tracing::warn!("messages before the next one are lost: {why} ({GAP_EVENT})");
    }

    /// Reports a notice of the server, such as a gap, and goes on from the position that it gives.
    pub fn notice(&mut self, name: &str, position: Option<&str>) {
        match name {
            GAP_EVENT => self.gap(position),
            _ => {
                tracing::warn!("the server says {name}: messages may be missing before this point")
            }
        }
        if let Some(position) = position {
            self.position = Some(position.to_string());
        }
    }
}

/// The life of the logs that a position of one topic belongs to; of other positions nothing is known.
fn epoch(position: &str) -> Option<&str> {
    let (epoch, _) = position.split_once('-')?;
    epoch.strip_prefix('1')
}

/// The meaning of a response that is no subscription. Reads its body for the reason.
pub fn refusal(connection: &mut Connection, head: &Head) -> Stop {
    let body = connection.whole_body(MAX_REFUSAL_BYTES).unwrap_or_default();
    let why = refusals::refusal(head, &body);
    let what = format!("the server refused the subscription: {why}");
    match head.status {
        408 | 429 | 500..=599 => Stop::Lost(what),
        _ => Stop::Refused(what),
    }
}
