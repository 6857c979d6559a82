//! `crore pub`: publishes an argument, or files, or stdin. Each of them is one message, or each line is a message.
//!
//! Messages may be any bytes. An input that is longer than the largest message that a server can permit ([`MAX_MESSAGE_BYTES`]) is not read
//! to its end, since an endless input would fill the memory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use crore_settings::MAX_MESSAGE_BYTES;
use serde_json::Value;

use super::flags::Connect;
use super::refusals::refusal;
use super::values;
use crate::http_client::http::Connection;
use crate::http_client::server::Server;
use crate::http_client::servers::Servers;
use crate::settings::problems::size_text;
use crate::settings::units::parse_seconds;
use crate::stdout::print;

/// Maximum size of the answer to a publish, in bytes. The answer describes the topic in a few lines.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The heading of the flags for a message, in the help.
const MESSAGE: &str = "Message";

/// Arguments of `crore pub`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
TIME is seconds, or has a unit: 90s, 15m, 8h, 30d.

Examples:
  crore pub news 'Hello.'
  crore pub config/limits --retain 'on'              new subscribers get it at once
  crore pub config/limits --retain ''                take that message away again
  date | crore pub clock                             all of stdin is one message
  crore pub photos @cat.jpg --content-type image/jpeg
  tail -f access.log | crore pub logs/web --lines    each line is a message
  crore pub scores '{\"home\":1}' --content-type application/json --json
  crore pub prices 41.90 --key ACME --ttl 60s        the newest for its key, for a minute
  crore pub orders -lf new.txt --idempotency-key 7   repeated, it publishes only what is missing
  crore pub news hi --server https://a.example:443   by TLS; --ca names roots of your own")]
pub struct PubArgs {
    /// Topic, such as chat/lobby
    #[arg(value_parser = values::topic)]
    pub topic: String,

    /// The message ('' for an empty one), @FILE for that of a file, - for stdin; without it, that of --file, or stdin
    #[arg(conflicts_with_all = ["lines", "file"])]
    pub data: Option<OsString>,

    /// Publish this file; - is stdin (repeatable: each is a message)
    #[arg(short, long, value_name = "FILE", help_heading = MESSAGE)]
    pub file: Vec<PathBuf>,

    /// Publish each line as a message of its own
    #[arg(short, long, help_heading = MESSAGE)]
    pub lines: bool,

    /// Print the server's answers, a JSON object for each message
    #[arg(short, long)]
    pub json: bool,

    /// Content type of the message
    #[arg(long, value_name = "TYPE", default_value = "text/plain; charset=utf-8", value_parser = values::content_type, help_heading = MESSAGE)]
    pub content_type: String,

    /// Event name for Server-Sent Events
    #[arg(short, long, value_name = "NAME", value_parser = values::header_value, help_heading = MESSAGE)]
    pub event: Option<String>,

    /// Key of the message: where a rule keeps the latest only, it takes the place of the one before with this key
    #[arg(short, long, value_name = "KEY", value_parser = values::header_value, help_heading = MESSAGE)]
    pub key: Option<String>,

    /// Keep it as the topic's retained message, for later subscribers
    #[arg(short, long, help_heading = MESSAGE)]
    pub retain: bool,

    /// Publish once for this key; several messages add -1, -2, ... to it
    #[arg(long, value_name = "KEY", value_parser = values::header_value, help_heading = MESSAGE)]
    pub idempotency_key: Option<String>,

    /// How long the message lives; then it is not sent any more
    #[arg(long, value_name = "TIME", value_parser = parse_seconds::<u32>, help_heading = MESSAGE)]
    pub ttl: Option<u32>,

    #[command(flatten)]
    pub connect: Connect,
}

/// Runs `crore pub`.
///
/// # Errors
/// The input cannot be read, the server cannot be reached, or it refuses a message (with its reason).
pub fn publish(args: &PubArgs) -> anyhow::Result<()> {
    for hint in values::hints(&args.topic) {
        tracing::warn!("{hint}");
    }
    let mut publisher = Publisher {
        args,
        servers: args.connect.servers()?,
        connection: None,
        published: 0,
        number: 0,
    };
    if let Some(data) = &args.data {
        return publisher.publish(&message_of(data)?);
    }
    let stdin = [PathBuf::from(STDIN)];
    let sources = match &args.file[..] {
        [] => &stdin[..],
        files => files,
    };
    for source in sources {
        let name = source_name(source);
        match args.lines {
            true => publisher.publish_lines(source)?,
            false => {
                let data = read_whole(source)?;
                match sources.len() {
                    1 => publisher.publish(&data)?,
                    _ => publisher.publish(&data).with_context(|| name.clone())?,
                }
            }
        }
    }
    Ok(())
}

/// The message that an argument gives: its text, the content of the file for `@FILE`, or stdin for `-`.
pub fn message_of(argument: &OsStr) -> anyhow::Result<Vec<u8>> {
    match argument.as_bytes() {
        b"-" => read_stdin(),
        [b'@', file @ ..] => read_whole(Path::new(OsStr::from_bytes(file))).context(
            "a message that begins with @ names a file; to publish the text itself: printf %s '@...' | crore pub TOPIC -",
        ),
        data => Ok(data.to_vec()),
    }
}

/// Reads a file or stdin as one message. Empty input is an error, because it usually is a mistake, such as a failed command before the
/// pipe. An empty message is published with the argument `''`.
fn read_whole(source: &Path) -> anyhow::Result<Vec<u8>> {
    let (mut data, name) = (Vec::new(), source_name(source));
    let read = open(source).and_then(|input| input.take(READ_MAX).read_to_end(&mut data));
    read.with_context(|| name.clone())?;
    if data.is_empty() {
        bail!(
            "{name} is empty, so nothing is published; write '' behind the topic for an empty message"
        );
    }
    if data.len() > MAX_MESSAGE_BYTES {
        bail!(
            "{name} has more than {}, which no server takes as one message, so nothing is published; --lines makes a message of each line",
            size_text(MAX_MESSAGE_BYTES)
        );
    }
    Ok(data)
}

/// The maximum number of bytes to read: one byte more than the largest message has, so that a larger input is noticed.
const READ_MAX: u64 = MAX_MESSAGE_BYTES as u64 + 1;

/// The file name for stdin.
const STDIN: &str = "-";

/// Reads stdin as one message.
pub fn read_stdin() -> anyhow::Result<Vec<u8>> {
    read_whole(Path::new(STDIN))
}

/// The name of a source in error messages.
fn source_name(source: &Path) -> String {
    match source == Path::new(STDIN) {
        true => "stdin".to_string(),
        false => format!("--file {}", source.display()),
    }
}

fn open(source: &Path) -> io::Result<Box<dyn BufRead>> {
    if source != Path::new(STDIN) {
        return Ok(Box::new(BufReader::new(File::open(source)?)));
    }
    if io::stdin().is_terminal() {
        // Without this message the command would seem to hang.
        let _ = writeln!(
            io::stderr(),
            "the message comes from the terminal; Ctrl-D ends it"
        );
    }
    Ok(Box::new(io::stdin().lock()))
}

struct Publisher<'a> {
    args: &'a PubArgs,
    servers: Servers,
    connection: Option<Connection>,
    published: u64,
    /// The number of the current message. The first message has number 1.
    number: u64,
}

impl Publisher<'_> {
    fn publish_lines(&mut self, source: &Path) -> anyhow::Result<()> {
        let name = source_name(source);
        let mut input = open(source).with_context(|| name.clone())?;
        let (mut line, mut number) = (Vec::new(), 0u64);
        // A line end has up to two bytes, and `READ_MAX` has room for one of them already.
        while (&mut input)
            .take(READ_MAX + 1)
            .read_until(b'\n', &mut line)
            .with_context(|| name.clone())?
            > 0
        {
            number += 1;
            let published = self.published;
            let place = || format!("{name}, line {number}, after {published} that were published");
            let data = line.strip_suffix(b"\n").unwrap_or(&line);
            let data = data.strip_suffix(b"\r").unwrap_or(data);
            if data.len() > MAX_MESSAGE_BYTES {
                let most = size_text(MAX_MESSAGE_BYTES);
                bail!(
                    "{}: it has more than {most}, which no server takes",
                    place()
                );
            }
            self.publish(data).with_context(place)?;
            line.clear();
        }
        Ok(())
    }

    fn publish(&mut self, data: &[u8]) -> anyhow::Result<()> {
        self.number += 1;
        let args = self.args;
        let unreachable = |server: &Server| format!("{server}: cannot publish");
        let mut connection = match self.connection.take().and_then(Connection::into_reusable) {
            Some(connection) => connection,
            None => self
                .servers
                .try_each(|server| Connection::open(server).with_context(|| unreachable(server)))?,
        };
        let server = self.servers.current();
        let unreachable = || unreachable(server);
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
        if args.retain {
            headers.push(("Crore-Retain", "true"));
        }
        let ttl_s = args.ttl.map(|ttl_s| ttl_s.to_string());
        if let Some(ttl_s) = &ttl_s {
            headers.push(("Crore-TTL", ttl_s));
        }
        let is_one_of_many = args.lines || args.file.len() > 1;
        let retry = args
            .idempotency_key
            .as_ref()
            .map(|key| match is_one_of_many {
                true => format!("{key}-{}", self.number),
                false => key.clone(),
            });
        if let Some(retry) = &retry {
            headers.push(("Idempotency-Key", retry));
        }
        let target = server.publish_target(&args.topic);
        let head = connection
            .request(server, "POST", &target, &headers, Some(data))
            .with_context(unreachable)?;
        let body = connection
            .read_whole_body(MAX_ANSWER_BYTES)
            .with_context(unreachable)?;
        if !(200..300).contains(&head.status) {
            bail!("the server refused the message: {}", refusal(&head, &body));
        }
        self.connection = Some(connection);
        self.published += 1;
        if args.json {
            let mut info = body.trim_ascii_end().to_vec();
            info.push(b'\n');
            print(&info)?;
        } else if !args.lines && io::stderr().is_terminal() {
            self.print_outcome(&body, head.header("idempotency-replayed").is_some());
        }
        Ok(())
    }

    /// Prints the outcome of the message for a user at the terminal.
    fn print_outcome(&self, info: &[u8], is_replayed: bool) {
        let info: Value = serde_json::from_slice(info).unwrap_or_default();
        let (topic, subscribers) = (&self.args.topic, info["subscribers"].as_u64());
        let received = match subscribers {
            _ if is_replayed => {
                "it had been published before, with this --idempotency-key".to_string()
            }
            Some(1) => "1 subscriber receives it".to_string(),
            Some(subscribers) => format!("{subscribers} subscribers receive it"),
            None => "the server has it".to_string(),
        };
        let published = if is_replayed {
            "not published again"
        } else {
            "published"
        };
        // A closed stderr is no reason to fail.
        let _ = writeln!(io::stderr(), "crore: {published} to `{topic}`: {received}");
    }
}
