//! `crore admin`: the admin API from a shell.
//!
//! Tables for people; with `--json` the API's own JSON. The exit code is 0 when the server did what was asked.
//! Tokens are better in the environment than on the command line, where others see them.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use super::flags::{TlsFlags, named};
use super::tables::{plain, sheet, table};
use super::values;
use super::words::reason;
use crate::client::http::Connection;
use crate::client::server::{Server, escape};
use crate::settings::units::parse_seconds;
use crate::stdout::print;

/// Where the admin port is unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8801";
/// The port of a URL that names none.
const DEFAULT_PORT: u16 = 8801;
/// Where its URL may stand instead of `--url`.
const URL_VARIABLE: &str = "CRORE_ADMIN_URL";
/// Where the token is looked for when no flag names one.
const TOKEN_VARIABLE: &str = "CRORE_ADMIN_TOKEN";
/// Longest answer, in bytes: a page of a thousand entries, or messages.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Entries of one page; the tool asks for as many as it needs.
const PAGE: usize = 1_000;

/// The columns of each table: fields of its entries.
const TOPIC_COLUMNS: &[&str] = &["name", "messages", "bytes", "subscribers", "offset", "rule"];
const MESSAGE_COLUMNS: &[&str] = &[
    "offset",
    "published_s",
    "content_type",
    "event",
    "key",
    "data",
];
const CONNECTION_COLUMNS: &[&str] = &[
    "id",
    "transport",
    "state",
    "address",
    "user",
    "client_id",
    "topics",
    "filters",
    "outbox_bytes",
    "silent_s",
];

const MEMORY_COLUMNS: &[&str] = &["name", "bytes", "limit"];

/// Examples of `crore admin --help`.
pub const EXAMPLES: &str = "\
Examples:
  crore admin stats                                 what the server is doing
  crore admin stats --json | jq .connections        the same, for programs
  crore admin topics 'chat/#'                       topics, with their messages and subscribers
  crore admin topic chat/room1                      one of them
  crore admin messages chat/room1 --limit 5         the oldest messages that are kept
  crore admin publish chat/room1 'Hello.'
  crore admin purge chat/room1                      take its messages away
  crore admin delete chat/room1
  crore admin connections --slow                    who does not read fast enough
  crore admin connection 0-17-3                     one of them, by its id
  crore admin disconnect --user ann                 end all connections of a user
  crore admin memory                                what memory is for
  crore admin rules                                 the rules that hold
  crore admin config                                the settings that hold
  crore admin reload                                after a change of the settings file
  crore admin drain                                 before a restart: clients move off
  crore admin stats --url http://10.0.0.5:8801      or CRORE_ADMIN_URL, CRORE_ADMIN_TOKEN";

/// The heading of the flags that say which port is asked.
const CONNECTION: &str = "Connection";

/// Where an admin port is, and how it is asked.
#[derive(Debug, Args)]
pub struct AdminFlags {
    /// Print what the server answers, as JSON, for programs
    #[arg(short, long, global = true)]
    pub json: bool,

    /// The admin port; https:// where a proxy before it speaks TLS [default: $CRORE_ADMIN_URL, or
    /// http://127.0.0.1:8801]
    #[arg(short, long, alias = "server", short_alias = 's', value_name = "URL", value_parser = admin_port, global = true, help_heading = CONNECTION)]
    url: Option<Server>,

    /// The token of admin.token [default: $CRORE_ADMIN_TOKEN]
    #[arg(long, value_name = "TOKEN", global = true, help_heading = CONNECTION)]
    token: Option<String>,

    #[command(flatten)]
    tls: TlsFlags,
}

/// The URL of an admin port; without a port in it, it is on the default one.
fn admin_port(url: &str) -> Result<Server, String> {
    Server::parse(url, |_secure| DEFAULT_PORT)
}

impl AdminFlags {
    /// The server that they name.
    ///
    /// # Errors
    /// A flag that cannot be used.
    pub fn server(&self) -> anyhow::Result<Server> {
        let token = values::token(self.token.as_deref(), TOKEN_VARIABLE)?;
        let server = named(self.url.as_ref(), URL_VARIABLE, admin_port)?;
        let server = server.unwrap_or_else(|| admin_port(DEFAULT_URL).expect("a literal URL"));
        let server = self.tls.apply(server.with_token(token));
        server.map_err(anyhow::Error::msg)
    }
}

/// Flags of `crore admin`.
#[derive(Debug, Args)]
pub struct AdminArgs {
    #[command(flatten)]
    flags: AdminFlags,

    #[command(subcommand)]
    order: Order,
}

/// What to ask.
#[derive(Debug, Subcommand)]
enum Order {
    /// List topics
    Topics {
        /// Topics that it matches
        #[arg(default_value = "#", value_parser = values::filter)]
        filter: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Tell of a topic
    Topic {
        /// Its name, such as chat/lobby
        #[arg(value_parser = values::line)]
        name: String,
    },
    /// Read the log of a topic, oldest first
    Messages {
        /// Its name, such as chat/lobby
        #[arg(value_parser = values::line)]
        name: String,
        /// Only messages behind this offset
        #[arg(long, value_name = "OFFSET")]
        after: Option<u64>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Take all messages of a topic away; subscribers stay
    Purge {
        /// Its name, such as chat/lobby
        #[arg(value_parser = values::line)]
        name: String,
    },
    /// Delete a topic; its subscribers are told
    Delete {
        /// Its name, such as chat/lobby
        #[arg(value_parser = values::line)]
        name: String,
    },
    /// List connections
    Connections {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        limit: Limit,
    },
    /// Tell of a connection
    Connection {
        /// As the list gives it, such as 0-17-3
        #[arg(value_parser = values::line)]
        id: String,
    },
    /// End a connection, or all of a user, of a transport, or that subscribe to a filter
    #[command(group = ArgGroup::new("whom").args(["id", "user", "address", "filter", "transport", "slow"]).required(true).multiple(true))]
    Disconnect {
        /// As the list gives it, such as 0-17-3
        #[arg(conflicts_with_all = ["user", "address", "filter", "transport", "slow"], value_parser = values::line)]
        id: Option<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Publish a message
    Publish {
        /// Its topic, such as chat/lobby
        #[arg(value_parser = values::line)]
        topic: String,
        /// The message
        data: String,
        /// Its content type
        #[arg(long, value_name = "TYPE", value_parser = values::content_type)]
        content_type: Option<String>,
        /// Its event name
        #[arg(long, value_name = "NAME", value_parser = values::field)]
        event: Option<String>,
        /// Its key
        #[arg(long, value_parser = values::field)]
        key: Option<String>,
        /// How long it lives, such as 90s or 8h
        #[arg(long, value_name = "TIME", value_parser = parse_seconds::<u32>)]
        ttl: Option<u32>,
        /// Keep it as the topic's retained message
        #[arg(short, long)]
        retain: bool,
    },
    /// Tell what the server is doing
    Stats,
    /// Tell what memory is for: tables, the parts of limits.memory_bytes, and limits in bytes
    Memory,
    /// Show the rules
    Rules,
    /// Show the settings that hold, without secrets
    Config,
    /// Read the settings again
    Reload,
    /// Let nobody in, move clients off, and stop
    Drain,
}

#[derive(Debug, Args)]
struct Limit {
    /// Entries to show at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Debug, Args)]
struct Which {
    /// Those of this user
    #[arg(long, value_parser = values::line)]
    user: Option<String>,
    /// Those from this address
    #[arg(long, value_name = "IP")]
    address: Option<std::net::IpAddr>,
    /// Those that subscribe to a topic that it matches
    #[arg(long, value_parser = values::line)]
    filter: Option<String>,
    /// Those that speak this: http, longpoll, sse, websocket, mqtt, mqtt_websocket or closing
    #[arg(long, value_parser = values::line)]
    transport: Option<String>,
    /// Those for which something waits
    #[arg(long)]
    slow: bool,
}

impl Which {
    /// The flags that were given, as parameters, each behind a `&`.
    fn query(&self) -> String {
        let pairs = self.pairs().into_iter();
        pairs
            .map(|(name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), escape);
                format!("&{name}={value}")
            })
            .collect()
    }

    /// The flags that were given, as pairs.
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

/// Carries out `crore admin`.
///
/// # Errors
/// The server cannot be reached, or refuses; with its words.
pub fn admin(args: &AdminArgs) -> anyhow::Result<()> {
    let server = args.flags.server()?;
    let port = Port { server: &server };
    let (answer, columns) = carry_out(&port, &args.order)?;
    if !columns.is_empty() && !args.flags.json {
        return print(table(&answer, columns).as_bytes());
    }
    let text = match args.flags.json {
        true => serde_json::to_string_pretty(&answer)? + "\n",
        false => sheet(&answer),
    };
    print(text.as_bytes())
}

/// The answer, and the columns of its rows where it has some.
fn carry_out(port: &Port<'_>, order: &Order) -> anyhow::Result<(Value, &'static [&'static str])> {
    if let Some(list) = List::of(order) {
        return Ok((port.list(&list)?, list.columns));
    }
    if matches!(order, Order::Memory) {
        return Ok((memory(port.ask("GET", "stats", None)?), MEMORY_COLUMNS));
    }
    let named = |path: &str, name: &str| format!("{path}?name={}", escape(name));
    let answer = match order {
        Order::Topic { name } => port.ask("GET", &named("topic", name), None)?,
        Order::Purge { name } => port.ask("DELETE", &named("topic/messages", name), None)?,
        Order::Delete { name } => port.ask("DELETE", &named("topic", name), None)?,
        Order::Connection { id } => {
            port.ask("GET", &format!("connections/{}", escape(id)), None)?
        }
        Order::Disconnect { id: Some(id), .. } => {
            port.ask("DELETE", &format!("connections/{}", escape(id)), None)?
        }
        Order::Disconnect { id: None, which } => {
            let body = which.pairs().into_iter();
            let body = Value::Object(body.map(|(name, value)| (name.into(), value)).collect());
            port.ask("POST", "connections/disconnect", Some(&body))?
        }
        Order::Publish {
            topic,
            data,
            content_type,
            event,
            key,
            ttl,
            retain,
        } => {
            let body = json!({
                "topic": topic,
                "data": data,
                "content_type": content_type.as_deref().unwrap_or_default(),
                "event": event.as_deref().unwrap_or_default(),
                "key": key.as_deref().unwrap_or_default(),
                "ttl_s": ttl,
                "retain": retain,
            });
            port.ask("POST", "publish", Some(&body))?
        }
        Order::Stats => port.ask("GET", "stats", None)?,
        Order::Rules => port.ask("GET", "rules", None)?,
        Order::Config => port.ask("GET", "config", None)?,
        Order::Reload => port.ask("POST", "reload", None)?,
        Order::Drain => port.ask("POST", "drain", None)?,
        Order::Topics { .. }
        | Order::Messages { .. }
        | Order::Connections { .. }
        | Order::Memory => {
            unreachable!("they are lists")
        }
    };
    Ok((answer, &[]))
}

/// Of the stats, what occupies memory now, and the limits that are counted in bytes.
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

/// A listing of the API.
struct List {
    path: &'static str,
    /// Where its entries stand in the answer.
    rows: &'static str,
    /// The parameter that asks for the next page.
    behind: &'static str,
    /// The value of that parameter for the first page.
    begin: Value,
    /// Further parameters, each behind a `&`.
    query: String,
    limit: usize,
    columns: &'static [&'static str],
}

impl List {
    fn of(order: &Order) -> Option<List> {
        let list = match order {
            Order::Topics { filter, limit } => List {
                path: "topics",
                rows: "topics",
                behind: "cursor",
                begin: Value::Null,
                query: format!("&filter={}", escape(filter)),
                limit: limit.limit,
                columns: TOPIC_COLUMNS,
            },
            Order::Messages { name, after, limit } => List {
                path: "topic/messages",
                rows: "messages",
                behind: "after",
                begin: json!(after),
                query: format!("&name={}", escape(name)),
                limit: limit.limit,
                columns: MESSAGE_COLUMNS,
            },
            Order::Connections { which, limit } => List {
                path: "connections",
                rows: "connections",
                behind: "cursor",
                begin: Value::Null,
                query: which.query(),
                limit: limit.limit,
                columns: CONNECTION_COLUMNS,
            },
            _ => return None,
        };
        Some(list)
    }
}

/// An admin port.
pub(super) struct Port<'a> {
    pub server: &'a Server,
}

impl Port<'_> {
    /// One request, and its answer.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let server = self.server;
        let unreachable = || format!("no admin port at {server}; name it with --url");
        let mut connection = Connection::open(server).with_context(unreachable)?;
        let mut headers = vec![("Connection", "close")];
        let body = body.map(Value::to_string);
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        let target = format!("{}/api/v1/{path}", server.target().trim_end_matches('/'));
        let body = match (&body, method) {
            (None, "POST") => Some(&b""[..]),
            (body, _) => body.as_ref().map(String::as_bytes),
        };
        let head = connection.request(server, method, &target, &headers, body)?;
        let answer = connection.whole_body(ANSWER_BYTES_MAX)?;
        let value = serde_json::from_slice::<Value>(&answer).ok();
        let said = value.as_ref().and_then(|value| value.get("error"));
        match (value.as_ref(), said, head.status) {
            (Some(_), _, 200..300) => Ok(value.unwrap_or_default()),
            (_, Some(why), 401) => {
                bail!(
                    "{}; give it with --token or in {TOKEN_VARIABLE}",
                    plain(why)
                )
            }
            (_, Some(why), _) => bail!("{} ({})", plain(why), head.status_line()),
            // A data port, or a server of another kind.
            _ => bail!(
                "{server} is no admin port: it answers {}{}; name the address of admin.listen with --url, by default {DEFAULT_URL}",
                head.status_line(),
                reason(&answer)
            ),
        }
    }

    /// Pages of a list, until there are as many entries as wanted or no more.
    fn list(&self, list: &List) -> anyhow::Result<Value> {
        let (mut all, mut next) = (Vec::new(), list.begin.clone());
        while all.len() < list.limit {
            let left = PAGE.min(list.limit - all.len());
            let mut target = format!("{}?limit={left}{}", list.path, list.query);
            if !next.is_null() {
                let _ = write!(target, "&{}={}", list.behind, escape(&plain(&next)));
            }
            let mut page = self.ask("GET", &target, None)?;
            if let Some(Value::Array(more)) = page.get_mut(list.rows).map(Value::take) {
                all.extend(more);
            }
            next = page.get_mut("next").map(Value::take).unwrap_or_default();
            if next.is_null() {
                break;
            }
        }
        Ok(json!({ list.rows: all, "next": next }))
    }
}
