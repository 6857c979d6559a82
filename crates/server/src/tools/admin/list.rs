//! Listings of the admin API, a page after the other.

use std::cmp::Reverse;
use std::fmt::Write as _;

use anyhow::bail;
use serde_json::{Value, json};

use super::super::tables::plain;
use super::{Limit, Order, Port, SortBy};
use crate::http_client::server::escape;

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
const SESSION_COLUMNS: &[&str] = &["client_id", "user", "expires_in_s", "bytes"];

/// A listing of the API.
pub struct List {
    path: &'static str,
    /// Where its entries stand in the answer.
    rows: &'static str,
    /// The parameter that asks for the next page.
    behind: &'static str,
    /// The value of that parameter for the first page.
    begin: Value,
    /// Further parameters, each behind a `&`.
    query: String,
    /// Only the newest entries, and those first.
    newest: bool,
    /// The entries with the most of this first; else by name.
    most: Option<SortBy>,
    limit: usize,
    pub columns: &'static [&'static str],
}

impl List {
    pub(super) fn of(order: &Order) -> Option<List> {
        let list = match order {
            Order::Topics {
                filter,
                sort,
                limit,
            } => List {
                path: "topics",
                rows: "topics",
                behind: "cursor",
                begin: Value::Null,
                query: format!("&filter={}", escape(filter)),
                newest: false,
                most: *sort,
                limit: entries(limit),
                columns: TOPIC_COLUMNS,
            },
            Order::Messages {
                name,
                after,
                newest,
                limit,
            } => List {
                path: "topic/messages",
                rows: "messages",
                behind: "after",
                begin: json!(after),
                query: format!("&name={}", escape(name)),
                newest: *newest,
                most: None,
                limit: entries(limit),
                columns: MESSAGE_COLUMNS,
            },
            Order::Connections { which, limit } => List {
                path: "connections",
                rows: "connections",
                behind: "cursor",
                begin: Value::Null,
                query: which.query(),
                newest: false,
                most: None,
                limit: entries(limit),
                columns: CONNECTION_COLUMNS,
            },
            Order::Sessions {
                client_id: None,
                limit,
                ..
            } => List {
                path: "sessions",
                rows: "sessions",
                behind: "cursor",
                begin: Value::Null,
                query: String::new(),
                newest: false,
                most: None,
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

impl Port<'_> {
    /// Pages of a list, until there are as many entries as wanted or no more.
    pub fn list(&self, list: &List) -> anyhow::Result<Value> {
        let (mut all, mut next) = (Vec::new(), list.begin.clone());
        let mut newest = if list.newest { "&newest=true" } else { "" };
        if list.newest && list.limit > PAGE {
            bail!("--limit is at most {PAGE} with --newest");
        }
        let mut is_cut = false;
        while all.len() < list.limit || list.most.is_some() {
            let left = match list.most {
                // Those with the most may stand on any page.
                Some(_) => PAGE,
                None => PAGE.min(list.limit - all.len()),
            };
            let mut target = format!("{}?limit={left}{}{newest}", list.path, list.query);
            newest = "";
            if !next.is_null() {
                let _ = write!(target, "&{}={}", list.behind, escape(&plain(&next)));
            }
            let mut page = self.ask("GET", &target, None)?;
            if let Some(Value::Array(more)) = page.get_mut(list.rows).map(Value::take) {
                all.extend(more);
            }
            if let Some(by) = list.most {
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
        match list.most {
            Some(_) if is_cut => next = json!(true),
            None if list.rows == "topics" => all.sort_by_key(|row| plain(&row["name"])),
            _ => {}
        }
        if list.newest {
            // The server tells them from the oldest on.
            all.reverse();
            next = Value::Null;
        }
        Ok(json!({ list.rows: all, "next": next }))
    }
}
