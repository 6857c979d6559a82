//! Reads lists of the admin API page by page, for the commands of `crore admin` that show a list.

use std::cmp::Reverse;
use std::fmt::Write as _;

use anyhow::bail;
use serde_json::{Value, json};

use super::super::tables::value_text;
use super::{AdminPort, Command, Limit, SortBy};
use crate::http_client::server::escape;

/// Maximum number of entries in a page.
const PAGE: usize = 1_000;

/// The columns of each list, which are fields of its entries.
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
    "connected_unix_s",
];
const SESSION_COLUMNS: &[&str] = &["client_id", "user", "expires_in_s", "bytes"];

/// A list of the API.
pub struct List {
    path: &'static str,
    /// The field of the answer that has the entries.
    rows: &'static str,
    /// The query parameter that says where the next page begins.
    cursor: &'static str,
    /// The value of the parameter `cursor` for the first page.
    begin: Value,
    /// Further query parameters, each with a leading `&`.
    query: String,
    /// Whether only the newest entries are read, newest first.
    newest: bool,
    /// The number to sort by, largest first. Without it topics are sorted by name.
    sort: Option<SortBy>,
    limit: usize,
    pub columns: &'static [&'static str],
}

impl List {
    /// The list that a command shows. `None` if the command shows no list.
    pub(super) fn of(command: &Command) -> Option<List> {
        let list = match command {
            Command::Topics {
                filter,
                sort,
                limit,
            } => List {
                path: "topics",
                rows: "topics",
                cursor: "cursor",
                begin: Value::Null,
                query: format!("&filter={}", escape(filter)),
                newest: false,
                sort: *sort,
                limit: entries(limit),
                columns: TOPIC_COLUMNS,
            },
            Command::Messages {
                name,
                after,
                newest,
                limit,
            } => List {
                path: "topic/messages",
                rows: "messages",
                cursor: "after",
                begin: json!(after),
                query: format!("&name={}", escape(name)),
                newest: *newest,
                sort: None,
                limit: entries(limit),
                columns: MESSAGE_COLUMNS,
            },
            Command::Connections { which, limit } => List {
                path: "connections",
                rows: "connections",
                cursor: "cursor",
                begin: Value::Null,
                query: which.query(),
                newest: false,
                sort: None,
                limit: entries(limit),
                columns: CONNECTION_COLUMNS,
            },
            Command::Sessions {
                client_id: None,
                limit,
                ..
            } => List {
                path: "sessions",
                rows: "sessions",
                cursor: "cursor",
                begin: Value::Null,
                query: String::new(),
                newest: false,
                sort: None,
                limit: entries(limit),
                columns: SESSION_COLUMNS,
            },
            _ => return None,
        };
        Some(list)
    }
}

fn entries(limit: &Limit) -> usize {
    usize::try_from(limit.limit).unwrap_or(usize::MAX)
}

impl AdminPort<'_> {
    /// Reads pages until there are `limit` entries or no more pages. A list that is sorted by a number needs all pages.
    pub fn list(&self, list: &List) -> anyhow::Result<Value> {
        let (mut all, mut next) = (Vec::new(), list.begin.clone());
        let mut newest = if list.newest { "&newest=true" } else { "" };
        if list.newest && list.limit > PAGE {
            bail!("--limit is at most {PAGE} with --newest");
        }
        let mut is_cut = false;
        while all.len() < list.limit || list.sort.is_some() {
            let left = match list.sort {
                Some(_) => PAGE,
                None => PAGE.min(list.limit - all.len()),
            };
            let mut target = format!("{}?limit={left}{}{newest}", list.path, list.query);
            newest = "";
            if !next.is_null() {
                let _ = write!(target, "&{}={}", list.cursor, escape(&value_text(&next)));
            }
            let mut page = self.ask("GET", &target, None)?;
            if let Some(Value::Array(more)) = page.get_mut(list.rows).map(Value::take) {
                all.extend(more);
            }
            if let Some(by) = list.sort {
                let by: &str = by.into();
                all.sort_by_key(|row: &Value| Reverse(row[by].as_u64()));
                is_cut |= all.len() > list.limit;
                all.truncate(list.limit);
            }
            next = page.get_mut("next").map(Value::take).unwrap_or_default();
            if next.is_null() {
                break;
            }
        }
        match list.sort {
            Some(_) if is_cut => next = json!(true),
            None if list.rows == "topics" => all.sort_by_key(|row| value_text(&row["name"])),
            _ => {}
        }
        if list.newest {
            // The server's answer begins with the oldest message.
            all.reverse();
            next = Value::Null;
        }
        Ok(json!({ list.rows: all, "next": next }))
    }
}
