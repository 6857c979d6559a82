//! The flags of `crore serve`, and how they lie over the settings file. A flag exists for what people change often; everything
//! else is a key of the file.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use crore_broker::settings::Rule;

use crate::settings::file::{File, RuleEntry};
use crate::settings::listen::Listen;
use crate::settings::units::{parse_seconds, parse_size};

/// The filter that matches every topic.
pub const ALL_TOPICS: &str = "#";

/// The headings of flags.
const ADDRESSES: &str = "Addresses";
const MESSAGES: &str = "Messages";

/// Flags of `crore serve`; each wins over the file.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Settings come from the built-in defaults, then from the file, then from flags.
docs/SETTINGS.md lists every key. SIZE is bytes, or has a unit: 64KiB, 1MiB.
TIME is seconds, or has a unit: 90s, 15m, 8h.

Examples:
  crore serve
  crore serve --listen 127.0.0.1:8800 --listen '[::1]:8800' --shards 2
  crore serve --config crore.toml --check       print what would hold, and exit
  crore serve --allowed-origin null             let pages from files in
  crore serve --allowed-origin http://127.0.0.1:3000
  crore serve --listen 0.0.0.0:8800 --insecure  whoever reaches it may publish")]
pub struct ServeArgs {
    /// Listen here instead of on 127.0.0.1:8800 (repeatable)
    #[arg(short, long, value_name = "ADDR:PORT", action = ArgAction::Append, help_heading = ADDRESSES)]
    pub listen: Vec<Listen>,

    /// Shard threads; 0 = one for each core
    #[arg(long, value_name = "N")]
    pub shards: Option<usize>,

    /// Read settings from this file instead of ./crore.toml
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the effective settings as TOML and exit
    #[arg(long)]
    pub check: bool,

    /// Permit addresses that are not loopback: everyone who reaches them may publish and subscribe
    #[arg(long, help_heading = ADDRESSES)]
    pub insecure: bool,

    /// Pin each shard to a core (for a machine of its own)
    #[arg(long)]
    pub pin: bool,

    /// Length of each listening socket's queue
    #[arg(long, value_name = "N", help_heading = ADDRESSES)]
    pub backlog: Option<u32>,

    /// Messages kept per topic where no rule of the file says otherwise; 0 turns logs off
    #[arg(long, value_name = "N", help_heading = MESSAGES)]
    pub keep: Option<u32>,

    /// Memory for all logs together; 0 = an eighth of the memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = MESSAGES)]
    pub log_bytes: Option<usize>,

    /// Largest message
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = MESSAGES)]
    pub message_bytes: Option<usize>,

    /// Silence before a heartbeat is sent; 0 = never
    #[arg(long, value_name = "TIME", value_parser = parse_seconds::<u32>, help_heading = MESSAGES)]
    pub heartbeat: Option<u32>,

    /// Offer permessage-deflate to WebSocket clients
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, help_heading = MESSAGES)]
    pub deflate: Option<bool>,

    /// Listen here for operators (metrics, API, console) instead of on 127.0.0.1:8801
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "no_admin", help_heading = ADDRESSES)]
    pub admin_listen: Option<Listen>,

    /// Be a node of the cluster whose log these servers of NATS keep (nats://host:4222, commas between)
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub cluster: Vec<String>,

    /// Do without the admin port
    #[arg(long, help_heading = ADDRESSES)]
    pub no_admin: bool,

    /// Origin of web pages that may publish, upgrade and read; null for pages from files, * for all (repeatable)
    #[arg(long, value_name = "ORIGIN", action = ArgAction::Append, help_heading = ADDRESSES)]
    pub allowed_origin: Vec<String>,
}

impl ServeArgs {
    /// Replaces in `file` what flags name, and says which keys those are.
    pub fn lay_over(&self, file: &mut File) -> Vec<(&'static str, &'static str)> {
        let mut set = Vec::new();
        if !self.listen.is_empty() {
            file.listen = Listen::all(&self.listen);
            set.push(("listen", "--listen"));
        }
        if !self.allowed_origin.is_empty() {
            file.http.allowed_origins.clone_from(&self.allowed_origin);
            set.push(("http.allowed_origins", "--allowed-origin"));
        }
        if self.pin {
            file.pin = true;
            set.push(("pin", "--pin"));
        }
        if self.admin_listen.is_some() || self.no_admin {
            file.admin.listen = self.admin_listen.as_ref().map(Listen::first);
            let flag = if self.no_admin {
                "--no-admin"
            } else {
                "--admin-listen"
            };
            set.push(("admin.listen", flag));
        }
        let mut lay = |key, flag, value: Option<usize>, target: &mut usize| {
            if let Some(value) = value {
                *target = value;
                set.push((key, flag));
            }
        };
        lay("shards", "--shards", self.shards, &mut file.shards);
        lay(
            "limits.log_bytes",
            "--log-bytes",
            self.log_bytes,
            &mut file.limits.log_bytes,
        );
        lay(
            "limits.message_bytes",
            "--message-bytes",
            self.message_bytes,
            &mut file.limits.message_bytes,
        );
        if !self.cluster.is_empty() {
            file.cluster.urls.clone_from(&self.cluster);
            set.push(("cluster.urls", "--cluster"));
        }
        if let Some(backlog) = self.backlog {
            file.backlog = backlog;
            set.push(("backlog", "--backlog"));
        }
        if let Some(interval_s) = self.heartbeat {
            file.heartbeat.interval_s = interval_s;
            set.push(("heartbeat.interval_s", "--heartbeat"));
        }
        if let Some(enabled) = self.deflate {
            file.deflate.enabled = enabled;
            set.push(("deflate.enabled", "--deflate"));
        }
        if let Some(keep) = self.keep {
            keep_by_default(file, keep);
        }
        set
    }
}

/// Lets the rule for all topics keep `messages`, and writes one after the others when there is none.
fn keep_by_default(file: &mut File, messages: u32) {
    match file
        .rules
        .iter_mut()
        .find(|entry| entry.0.filter == ALL_TOPICS)
    {
        Some(entry) => entry.0.log_messages = messages,
        None => file.rules.push(RuleEntry(Rule {
            filter: ALL_TOPICS.to_string(),
            log_messages: messages,
            ..Rule::default()
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_changes_the_rule_for_all_topics_and_no_other() {
        let mut file = File::default();
        keep_by_default(&mut file, 1);
        keep_by_default(&mut file, 2);
        assert_eq!(file.rules.len(), 1);
        assert_eq!(
            file.rules[0].0,
            Rule {
                log_messages: 2,
                ..Rule::default()
            }
        );
    }
}
