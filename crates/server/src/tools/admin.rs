//! `crore admin`: the admin API on the command line.
//!
//! The command prints tables for people, or with `--json` the JSON of the API (for `limits` and `memory`, a part of it). The exit code is 0 if the server
//! carried out the request.

mod list;
mod overview;
mod port;

use std::ffi::OsString;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use crore_net::clock;
use serde_json::{Value, json};

use super::flags::{TlsFlags, server_of};
use super::profile::ProfileFlag;
use super::publish::{message_of, read_stdin};
use super::tables::{key_value_text, table};
use super::values;
use crate::http_client::server::{Server, escape};
use crate::settings::units::parse_seconds;
use crate::stdout::print;
use list::List;
pub use port::AdminPort;

/// The default of the flag `--url`.
const DEFAULT_URL: &str = "http://127.0.0.1:8801";
/// The port that is used if a URL has none.
const DEFAULT_PORT: u16 = 8801;
/// The environment variable that can replace `--url`.
const URL_VARIABLE: &str = "CRORE_ADMIN_URL";
/// The environment variable for the token. The variable is safer than the flag `--token`, which other users of the host can see.
const TOKEN_VARIABLE: &str = "CRORE_ADMIN_TOKEN";
const LIMIT_COLUMNS: &[&str] = &["name", "used", "limit", "unit", "share", "shard"];
const WEBHOOK_COLUMNS: &[&str] = &[
    "url",
    "waiting",
    "waiting_s",
    "last_answer",
    "last_answer_s",
    "delivered",
    "failed",
    "resyncs",
];
const REVOCATION_COLUMNS: &[&str] = &["id", "issued_before", "expires"];
/// The keys of a rule that operators set most often. `crore admin config` shows all keys.
const RULE_COLUMNS: &[&str] = &[
    "match",
    "keep",
    "log_messages",
    "log_bytes",
    "log_age_s",
    "ttl_s",
    "durable",
    "slow",
];

/// Examples of `crore admin --help`.
pub const EXAMPLES: &str = "\
Examples:
  crore admin stats                                 what the server is doing
  crore admin topics 'chat/#'                       topics, with their messages and subscribers
  crore admin messages chat/room1 --newest --limit 5    the five newest messages that are kept
  crore admin connections --slow                    clients that do not read fast enough
  crore admin disconnect --user ann                 close all connections of a user
  crore admin revoke --user ann --issued-before now    refuse the tokens that she has, not new ones
  crore admin limits                                how much of each limit is used
  crore admin reload                                apply the changed settings file
  crore admin drain                                 move clients away and exit, before a restart
  crore admin stats --url http://10.0.0.5:8801      another server; $CRORE_ADMIN_URL does the same
  crore admin stats --json | jq .connections        one figure, for programs
  crore admin topics --sort messages --limit 10     the ten topics with the most messages
  crore admin topic chat/room1                      one topic: its messages, rule and subscribers
  crore admin publish chat/room1 'Hello.'           publish without a right to the topic
  crore admin presence chat/room1                   who is present there
  crore admin purge chat/room1                      delete its messages
  crore admin delete chat/room1                     delete the topic
  crore admin connection 0-17-3                     one connection, by its id
  crore admin sessions                              sessions whose MQTT clients are not connected
  crore admin sessions sensor-7 --end               end one session
  crore admin webhooks                              webhooks: their queues and last answers
  crore admin memory                                what uses the server's memory
  crore admin rules                                 the rules in use, with the built-in one
  crore admin config                                the settings in use";

/// The heading of the flags for the connection.
const CONNECTION_HEADING: &str = "Connection";

/// Flags for the connection to an admin port, and for the output.
#[derive(Debug, Args)]
pub struct AdminFlags {
    /// Print the server's answer as JSON
    #[arg(short, long, global = true)]
    pub json: bool,

    /// URL of the admin port [default: $CRORE_ADMIN_URL, or http://127.0.0.1:8801]
    #[arg(short, long, alias = "server", short_alias = 's', value_name = "URL", value_parser = parse_admin_url, global = true, help_heading = CONNECTION_HEADING)]
    url: Option<Server>,

    /// The token that admin.token sets [default: $CRORE_ADMIN_TOKEN]
    #[arg(long, value_name = "TOKEN", global = true, help_heading = CONNECTION_HEADING)]
    token: Option<String>,

    #[command(flatten)]
    profile: ProfileFlag,

    #[command(flatten)]
    tls: TlsFlags,
}

/// Parses the URL of an admin port.
fn parse_admin_url(url: &str) -> Result<Server, String> {
    Server::parse(url, |_secure| DEFAULT_PORT)
}

impl AdminFlags {
    /// The server that the flags, the profile or the environment variables name.
    pub fn server(&self) -> anyhow::Result<Server> {
        let profile = self.profile.read()?;
        let token = profile.token(
            self.token.as_deref(),
            TOKEN_VARIABLE,
            URL_VARIABLE,
            self.url.is_some(),
        )?;
        let server = server_of(self.url.as_ref(), &profile, URL_VARIABLE, parse_admin_url)?;
        let server = server.unwrap_or_else(|| parse_admin_url(DEFAULT_URL).expect("a literal URL"));
        let server = self.tls.apply(server.with_token(token), &profile);
        server.map_err(anyhow::Error::msg)
    }
}

/// Flags of `crore admin`.
#[derive(Debug, Args)]
pub struct AdminArgs {
    #[command(flatten)]
    flags: AdminFlags,

    #[command(subcommand)]
    command: Command,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
enum Command {
    /// List topics; '$SYS/#' lists the server's own
    Topics {
        /// List the topics that match this filter
        #[arg(default_value = "#", value_parser = values::filter)]
        filter: String,
        /// Sort by this number, largest first [default: sort by name]
        #[arg(long, value_enum, value_name = "BY", ignore_case = true)]
        sort: Option<SortBy>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one topic
    Topic {
        /// The topic, such as chat/lobby
        #[arg(value_parser = values::topic)]
        name: String,
    },
    /// Show who is present in a topic, if its rule has presence
    Presence {
        /// The topic, such as chat/lobby
        #[arg(value_parser = values::topic)]
        name: String,
        /// Only members after the one with this id
        #[arg(long, value_name = "ID", value_parser = values::number::<u64>)]
        after: Option<u64>,
    },
    /// Print the kept messages of a topic, oldest first
    Messages {
        /// The topic, such as chat/lobby
        #[arg(value_parser = values::topic)]
        name: String,
        /// Only messages after this offset
        #[arg(long, value_name = "OFFSET", value_parser = values::number::<u64>)]
        after: Option<u64>,
        /// Print the newest message first
        #[arg(short, long, conflicts_with = "after")]
        newest: bool,
        #[command(flatten)]
        limit: Limit,
    },
    /// Delete all messages of a topic; its subscribers stay connected
    Purge {
        /// The topic, such as chat/lobby
        #[arg(value_parser = values::topic)]
        name: String,
    },
    /// Delete a topic, and end its subscriptions
    Delete {
        /// The topic, such as chat/lobby
        #[arg(value_parser = values::topic)]
        name: String,
    },
    /// List connections
    Connections {
        #[command(flatten)]
        which: ConnectionFilter,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one connection
    Connection {
        /// Id of a connection, as `crore admin connections` prints it, such as 0-17-3
        #[arg(value_parser = values::text)]
        id: String,
    },
    /// List MQTT sessions whose clients are not connected; show or end one of them
    Sessions {
        /// Show only the session of this MQTT client id
        #[arg(value_parser = values::text)]
        client_id: Option<String>,
        /// User of the session, if the list shows one
        #[arg(long, value_name = "NAME", requires = "client_id", value_parser = values::text)]
        user: Option<String>,
        /// End the session, as if it had expired
        #[arg(long, requires = "client_id")]
        end: bool,
        #[command(flatten)]
        limit: Limit,
    },
    /// Close one connection, or all connections that match the flags
    #[command(group = ArgGroup::new("whom").args(["id", "user", "address", "filter", "transport", "slow"]).required(true).multiple(true))]
    Disconnect {
        /// Id of a connection, as `crore admin connections` prints it, such as 0-17-3
        #[arg(conflicts_with_all = ["user", "address", "filter", "transport", "slow"], value_parser = values::text)]
        id: Option<String>,
        #[command(flatten)]
        which: ConnectionFilter,
    },
    /// Revoke a token or a user; without flags, list what is revoked
    Revoke {
        #[command(flatten)]
        what: RevocationTarget,
        /// Revoke only tokens of the user that were issued before this time: a Unix second, or `now` [default: all credentials of the user]
        #[arg(long, value_name = "SECOND", requires = "user", value_parser = parse_time)]
        issued_before: Option<u32>,
        /// How long the revocation lasts, such as 8h [default: a token until it expires, a user until --undo]
        #[arg(long = "for", value_name = "TIME", conflicts_with = "undo", value_parser = parse_seconds::<u32>)]
        time_s: Option<u32>,
    },
    /// Publish a message
    Publish {
        /// The topic, such as chat/lobby
        #[arg(value_parser = values::topic)]
        topic: String,
        /// The message; @FILE reads it from a file, - from stdin ('' is an empty message) [default: -]
        data: Option<OsString>,
        /// Content type of the message
        #[arg(long, value_name = "TYPE", value_parser = values::content_type)]
        content_type: Option<String>,
        /// Event name of the message, for Server-Sent Events
        #[arg(long, value_name = "NAME", value_parser = values::header_value)]
        event: Option<String>,
        /// Key of the message. In a topic with `keep = "latest"`, the message replaces the earlier message with the same key
        #[arg(long, value_parser = values::header_value)]
        key: Option<String>,
        /// How long the message is kept and sent, such as 90s or 8h
        #[arg(long, value_name = "TIME", value_parser = parse_seconds::<u32>)]
        ttl: Option<u32>,
        /// Also keep it as the topic's retained message, for later subscribers
        #[arg(short, long)]
        retain: bool,
    },
    /// Show what the server is doing: connections, messages, memory
    Stats {
        /// Show every figure
        #[arg(short, long)]
        all: bool,
    },
    /// Show how much of each limit is used, the fullest first
    Limits,
    /// List webhooks, with their queues and last answers
    Webhooks,
    /// Show what uses the server's memory, and how limits.memory_bytes is divided
    Memory,
    /// Show the rules in use, with the built-in rule for topics that match no other
    Rules,
    /// Show the settings in use, without secrets
    Config,
    /// Read the settings file again, and apply it
    Reload,
    /// Stop gracefully: refuse new connections, move clients away, and exit
    Drain,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct RevocationTarget {
    /// Revoke this user: the claim `sub` of the tokens, or the user name that belongs to the password
    #[arg(long, value_name = "NAME", value_parser = values::text)]
    user: Option<String>,
    /// Revoke the token with this claim `jti`
    #[arg(long, value_name = "ID", value_parser = values::text)]
    jti: Option<String>,
    /// Revoke the token that is read from stdin
    #[arg(long)]
    token_stdin: bool,
    /// Remove this entry from the list, such as user:ann
    #[arg(long, value_name = "ENTRY", value_parser = values::text)]
    undo: Option<String>,
}

impl RevocationTarget {
    /// Whether there is nothing to revoke. Then (without `--undo`, which the caller checks first) the command shows the list of revocations.
    fn lists_only(&self) -> bool {
        self.user.is_none() && self.jti.is_none() && !self.token_stdin
    }
}

/// Parses a Unix second, or `now`.
fn parse_time(text: &str) -> Result<u32, String> {
    match text {
        "now" => Ok(u32::try_from(clock::unix_s()).unwrap_or(u32::MAX)),
        text => values::number(text),
    }
}

#[derive(Debug, Args)]
struct Limit {
    /// Show at most this many entries
    #[arg(long, alias = "count", value_name = "N", default_value_t = 100, value_parser = values::positive_count)]
    limit: u64,
}

/// The number by which topics are sorted, largest first.
#[derive(Clone, Copy, Debug, ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
enum SortBy {
    Messages,
    Bytes,
    Subscribers,
}

#[derive(Debug, Args)]
struct ConnectionFilter {
    /// Only connections of this user
    #[arg(long, value_parser = values::text)]
    user: Option<String>,
    /// Only connections from this address
    #[arg(long, aliases = ["ip", "addr"], value_name = "IP")]
    address: Option<std::net::IpAddr>,
    /// Only connections that subscribe to this topic, or to a topic that matches this filter
    #[arg(short, long, aliases = ["topic", "subscribed"], short_alias = 't', value_name = "TOPIC", value_parser = values::filter)]
    filter: Option<String>,
    /// Only connections of this transport: http, longpoll, sse, websocket, mqtt, mqtt_websocket, centrifugo, http2 or closing
    #[arg(long, alias = "protocol", value_parser = parse_transport)]
    transport: Option<String>,
    /// Only connections whose client has not read all that was sent
    #[arg(long)]
    slow: bool,
}

/// Parses the name of a transport, as the API or the tools write it.
fn parse_transport(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase().replace('-', "_");
    let name = match &*name {
        "ws" | "websockets" => "websocket",
        "eventsource" | "events" => "sse",
        "poll" | "long_poll" => "longpoll",
        "mqtt_ws" => "mqtt_websocket",
        name => name,
    };
    values::text(name)
}

impl ConnectionFilter {
    /// The given flags as query parameters, each with a leading `&`.
    fn query(&self) -> String {
        let pairs = self.pairs().into_iter();
        pairs
            .map(|(name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), escape);
                format!("&{name}={value}")
            })
            .collect()
    }

    /// The given flags as pairs of a parameter's name and its value.
    fn pairs(&self) -> Vec<(&'static str, Value)> {
        let text = |name, value: &Option<String>| Some((name, json!(value.as_ref()?)));
        [
            text("user", &self.user),
            text("address", &self.address.map(|it| it.to_string())),
            text("filter", &self.filter),
            text("transport", &self.transport),
            self.slow.then_some(("slow", json!(true))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Runs `crore admin`.
pub fn admin(args: &AdminArgs) -> anyhow::Result<()> {
    let server = args.flags.server()?;
    let port = AdminPort { server: &server };
    let (answer, columns) = send_command(&port, &args.command)?;
    let text = match (&args.command, columns) {
        _ if args.flags.json => serde_json::to_string_pretty(&answer)? + "\n",
        (Command::Stats { all: false }, _) => overview::text(&answer),
        (Command::Limits, _) => table(&overview::limits(&answer, usize::MAX), LIMIT_COLUMNS),
        (Command::Memory, _) => overview::memory(&answer),
        (Command::Topic { .. }, _) => overview::topic(&answer),
        (Command::Config, _) => overview::config(&answer)?,
        (Command::Reload, _) => overview::reload(&answer),
        (Command::Drain, _) => overview::drain(&answer),
        (Command::Publish { .. }, _) => overview::published(&answer),
        (Command::Rules, _) => table(&with_default_rule(&answer), columns),
        (_, []) => key_value_text(&answer),
        (_, columns) => table(&answer, columns),
    };
    if let (Command::Topics { filter, .. }, Some([])) = (&args.command, rows(&answer, "topics")) {
        tracing::warn!(
            "no topic matches '{filter}'{}",
            values::tip_for_none(filter)
        );
    }
    print(text.as_bytes())
}

/// The list `name` in an answer.
fn rows<'a>(answer: &'a Value, name: &str) -> Option<&'a [Value]> {
    answer[name].as_array().map(Vec::as_slice)
}

/// The rules, followed by the built-in rule for topics that no other rule matches.
fn with_default_rule(answer: &Value) -> Value {
    let mut rules = answer["rules"].as_array().cloned().unwrap_or_default();
    let mut default_rule = answer["default"].clone();
    default_rule["match"] = json!("(all others)");
    rules.push(default_rule);
    json!({ "rules": rules })
}

/// Sends the requests of a command. Returns the answer, and the columns to show if the answer is a list.
fn send_command(
    port: &AdminPort<'_>,
    command: &Command,
) -> anyhow::Result<(Value, &'static [&'static str])> {
    if let Some(list) = List::of(command) {
        return Ok((port.list(&list)?, list.columns));
    }
    let stats = || port.ask("GET", "stats", None);
    let with_name = |path: &str, name: &str| format!("{path}?name={}", escape(name));
    let answer = match command {
        Command::Topic { name } => port.ask("GET", &with_name("topic", name), None)?,
        Command::Presence { name, after } => {
            let after = after.map_or_else(String::new, |after| format!("&after={after}"));
            let target = format!("{}{after}&limit=1000", with_name("topic/presence", name));
            port.ask("GET", &target, None)?
        }
        Command::Purge { name } => port.ask("DELETE", &with_name("topic/messages", name), None)?,
        Command::Delete { name } => port.ask("DELETE", &with_name("topic", name), None)?,
        Command::Connection { id } => {
            port.ask("GET", &format!("connections/{}", escape(id)), None)?
        }
        Command::Sessions {
            client_id: Some(id),
            user,
            end,
            ..
        } => {
            let user = user
                .as_deref()
                .map(|user| format!("&user={}", escape(user)));
            let user = user.unwrap_or_default();
            let method = if *end { "DELETE" } else { "GET" };
            port.ask(
                method,
                &format!("session?client_id={}{user}", escape(id)),
                None,
            )?
        }
        Command::Disconnect { id: Some(id), .. } => {
            port.ask("DELETE", &format!("connections/{}", escape(id)), None)?
        }
        Command::Disconnect { id: None, which } => {
            let body = which.pairs().into_iter();
            let body = Value::Object(body.map(|(name, value)| (name.into(), value)).collect());
            port.ask("POST", "connections/disconnect", Some(&body))?
        }
        Command::Revoke { what, .. } if what.undo.is_some() => {
            let entry = escape(what.undo.as_deref().unwrap_or_default());
            port.ask("DELETE", &format!("revocations/{entry}"), None)?
        }
        Command::Revoke { what, .. } if what.lists_only() => {
            let list = port.ask("GET", "revocations", None)?;
            return Ok((list, REVOCATION_COLUMNS));
        }
        Command::Revoke {
            what,
            issued_before,
            time_s,
        } => {
            let token = match what.token_stdin {
                true => Some(String::from_utf8(read_stdin()?)?.trim().to_string()),
                false => None,
            };
            let expires_at = |time_s: u32| clock::unix_s().saturating_add(time_s.into());
            let body = json!({
                "user": what.user,
                "jti": what.jti,
                "token": token,
                "issued_before": issued_before,
                "expires": time_s.map(expires_at),
            });
            port.ask("POST", "revocations", Some(&body))?
        }
        Command::Publish {
            topic,
            data,
            content_type,
            event,
            key,
            ttl,
            retain,
        } => {
            let data = match data {
                Some(data) => message_of(data)?,
                None => read_stdin()?,
            };
            let (text, encoded) = match String::from_utf8(data) {
                Ok(text) => (Some(text), None),
                Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
            };
            let body = json!({
                "topic": topic,
                "data": text,
                "data_base64": encoded,
                "content_type": content_type.as_deref().unwrap_or_default(),
                "event": event.as_deref().unwrap_or_default(),
                "key": key.as_deref().unwrap_or_default(),
                "ttl_s": ttl,
                "retain": retain,
            });
            port.ask("POST", "publish", Some(&body))?
        }
        Command::Stats { .. } => stats()?,
        Command::Limits => json!({ "limits": stats()?["limits"] }),
        Command::Webhooks => return Ok((port.ask("GET", "webhooks", None)?, WEBHOOK_COLUMNS)),
        Command::Memory => memory(stats()?),
        Command::Rules => return Ok((port.ask("GET", "rules", None)?, RULE_COLUMNS)),
        Command::Config => port.ask("GET", "config", None)?,
        Command::Reload => port.ask("POST", "reload", None)?,
        Command::Drain => port.ask("POST", "drain", None)?,
        Command::Topics { .. }
        | Command::Messages { .. }
        | Command::Connections { .. }
        | Command::Sessions { .. } => unreachable!("they are lists"),
    };
    Ok((answer, &[]))
}

/// The memory tables of the statistics, and the limits that are counted in bytes, as one list.
fn memory(mut stats: Value) -> Value {
    let mut rows = Vec::new();
    if let Value::Array(tables) = stats["memory"]["tables"].take() {
        rows.extend(tables);
    }
    let limits = stats["limits"].as_array().into_iter().flatten();
    let of_bytes = limits.filter(|limit| limit["unit"] == "bytes");
    rows.extend(of_bytes.map(
        |limit| json!({ "name": limit["name"], "bytes": limit["used"], "limit": limit["limit"] }),
    ));
    json!({ "memory": rows })
}
