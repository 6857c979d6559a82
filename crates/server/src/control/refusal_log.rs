//! Logs for the operator that clients are refused or lose messages, with the remedy, at a limited rate.
//!
//! It reads the shards' counters, which costs the shards nothing, and logs one line for all of them. Only when a counter has grown does it
//! ask the shards for the name of a client or topic as an example. A line is logged once a minute, or earlier if it has a new name: an
//! operator who corrects one setting sees at once why the next attempt fails.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::{COUNTERS, Control, Notice, Reason, Stats};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::field::display;

use crate::lifecycle::shards::Shards;
use crore_shard_loop::counters::Counters;

/// Between two reads of the counters.
const EVERY: Duration = Duration::from_secs(1);
/// Least time between two lines of one kind, unless the name of the client or topic is new.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Most different names in that time, since clients choose the names.
const NAMES_MAX: usize = 4;

/// Watches the counters of all shards. Never returns.
pub async fn watch(counters: Arc<Counters>, shards: Shards) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lines = lines();
    loop {
        let now = every.tick().await;
        let read = counters.read_all();
        for line in &mut lines {
            let all = read.iter().map(|shard| (line.of)(&shard.stats)).sum();
            let due = line.growth.is_due(all, now);
            let asks = line.growth.look(all) && line.names.has_room();
            let names = match line.example {
                Some(kind) if due || asks => names(&shards, kind).await,
                _ => Vec::new(),
            };
            let example = line.names.news(names, due);
            if due || example.is_some() {
                let count = line.growth.told(all, due.then_some(now));
                let example = example.map(display);
                tracing::warn!(count, example, "{}", line.words);
            }
        }
    }
}

/// A kind of line: its counter, the kind of example that it names, and its text with the remedy.
struct Line {
    of: fn(&Stats) -> u64,
    example: Option<Notice>,
    words: String,
    growth: Growth,
    names: Names,
}

fn line(metric: &str, example: Option<Notice>, words: &str) -> Line {
    let counter = COUNTERS.iter().find(|counter| counter.metric == metric);
    Line {
        of: counter.expect("a metric of that table").of,
        example,
        words: words.into(),
        growth: Growth::default(),
        names: Names::default(),
    }
}

/// A counter's metric, the kind of its example, and the text.
type Row = (&'static str, Option<Notice>, &'static str);

#[rustfmt::skip]
const LINES: &[Row] = &[
    ("crore_refused_credentials_total", None,
        "clients came with worthless credentials; `crore token inspect --config FILE` shows what is wrong with a token (docs/ACCESS.md)"),
    ("crore_denied_requests_total", Some(Notice::Denied),
        "clients asked for something without a grant, such as this; `crore token inspect --config FILE` shows what a token grants (docs/ACCESS.md)"),
    ("crore_refused_hosts_total", Some(Notice::Host),
        "requests with a Host that is not the loopback, such as this one, were answered 403, as the server listens there only; list it in \
         http.hosts if it is a proxy's, or have the proxy send Host: localhost"),
    ("crore_refused_origins_total", Some(Notice::Origin),
        "web pages of other origins, such as this one, were answered 403; if it is yours, list it in http.allowed_origins"),
    ("crore_hidden_answers_total", Some(Notice::Reader),
        "web pages of other origins, such as this one, asked to read; they were answered, but browsers hide the answers from them; if it is \
         yours, list it in http.allowed_origins"),
    ("crore_stray_upgrades_total", Some(Notice::Upgrade),
        "WebSockets at a path that has none, such as this one, were answered 404: topics are at /sub/TOPIC and /pubsub/TOPIC, and a client \
         of MQTT must offer the subprotocol mqtt"),
    ("crore_refused_rates_total", None,
        "publishes were refused (429, 503): limits.publishes_per_address_per_s or limits.publishes_per_s was reached; raise it, or have the \
         clients publish less often"),
    ("crore_refused_streams_total", Some(Notice::Stream),
        "event streams and WebSockets were answered 400; browsers hide the reason from the page, so one is shown here"),
    ("crore_refused_packets_total", Some(Notice::Mqtt),
        "packets of MQTT clients, such as this one, were refused (docs/MQTT.md)"),
    ("crore_short_logs_total", Some(Notice::ShortLog),
        "subscribers that came back, or read slowly, were told that messages are lost: their topic's log had them no more. One topic is \
         named, with what shortened its log: if they should have got them, raise a setting that stands there"),
    ("crore_refused_keys_total", Some(Notice::Keys),
        "publishes with an Idempotency-Key, such as to this topic, were refused (503): publish.idempotency_keys, or their publisher's share \
         of it, is used up; raise it, or shorten publish.idempotency_window_s (`crore admin limits` shows how much is used)"),
    ("crore_short_sessions_total", Some(Notice::ShortSession),
        "MQTT clients, such as this one, asked for a session that outlives their connection (clean session 0, or an expiry); in a cluster it \
         ends with the connection: what comes while they are away is lost to them, a QoS 2 publish that they repeat comes twice, and a will \
         is lost with its node (docs/CLUSTER.md)"),
];

/// All kinds of lines.
fn lines() -> Vec<Line> {
    // The only refusal of credentials by the shard itself. The verifier logs all others.
    let too_long = Reason::TokenTooLong.row();
    let words = format!(
        "credentials refused: {}; {}",
        too_long.text, too_long.remedy
    );
    let all = LINES.iter().copied();
    let all = all.chain([("crore_oversized_credentials_total", None, &*words)]);
    all.map(|(metric, example, words)| line(metric, example, words))
        .collect()
}

/// From each shard the first name that it has recorded since the last call.
async fn names(shards: &Shards, kind: Notice) -> Vec<String> {
    let names = shards.ask_all::<Option<String>>(|| Control::Notice(kind));
    let names = names.await;
    names.into_iter().flatten().flatten().collect()
}

/// The count in the last line, and the time before which no line follows.
#[derive(Default)]
struct Growth {
    told: u64,
    seen: u64,
    quiet_until: Option<Instant>,
}

impl Growth {
    /// Whether the count has grown since the last line, and a line is allowed now.
    fn is_due(&self, all: u64, now: Instant) -> bool {
        all != self.told && self.quiet_until.is_none_or(|until| now >= until)
    }

    /// Whether the count has grown since the last read.
    fn look(&mut self, all: u64) -> bool {
        std::mem::replace(&mut self.seen, all) != all
    }

    /// Notes that a line is logged, and returns how much the count has grown since the last line. With `quiet_from`, no line follows for
    /// [`TELL_EVERY`] from then on.
    fn told(&mut self, all: u64, quiet_from: Option<Instant>) -> u64 {
        if let Some(now) = quiet_from {
            self.quiet_until = Some(now + TELL_EVERY);
        }
        all - std::mem::replace(&mut self.told, all)
    }
}

/// The names logged since the line was last due.
#[derive(Default)]
struct Names {
    told: Vec<String>,
    /// A name that occurred again, for the next line that is due.
    again: Option<String>,
}

impl Names {
    fn has_room(&self) -> bool {
        self.told.len() < NAMES_MAX
    }

    /// The names for a line: those of `came` that were not logged yet, and at least one if the line is due.
    fn news(&mut self, came: Vec<String>, due: bool) -> Option<String> {
        if due {
            self.told.clear();
        }
        let mut news = Vec::new();
        for name in came {
            match self.told.contains(&name) {
                true => self.again = Some(name),
                false if self.has_room() => {
                    self.told.push(name.clone());
                    news.push(name);
                }
                false => {}
            }
        }
        let again = self.again.take_if(|_| due);
        match news.is_empty() {
            true => again,
            false => Some(news.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_between_two_log_lines_are_logged_together() {
        let mut growth = Growth::default();
        let start = Instant::now();
        let mut told = |all, s| {
            let now = start + Duration::from_secs(s);
            let due = growth.is_due(all, now);
            due.then(|| growth.told(all, Some(now)))
        };
        assert_eq!(told(0, 0), None);
        assert_eq!(told(2, 1), Some(2));
        assert_eq!(told(3, 2), None);
        assert_eq!(told(9, 60), None);
        assert_eq!(told(9, 61), Some(7));
        assert_eq!(told(9, 200), None);
    }

    #[test]
    fn a_few_other_names_are_logged_at_once_and_a_name_again_when_its_line_is_due() {
        let mut names = Names::default();
        let mut news = |came: &[&str], due| {
            let came = came.iter().map(ToString::to_string).collect();
            names.news(came, due)
        };
        assert_eq!(news(&["a"], true).as_deref(), Some("a"));
        assert_eq!(news(&["a"], false), None);
        assert_eq!(news(&["b", "a"], false).as_deref(), Some("b"));
        assert_eq!(news(&["c", "d", "e"], false).as_deref(), Some("c, d"));
        assert_eq!(news(&["f"], false), None);
        // The shards have recorded no name since they were last asked.
        assert_eq!(news(&[], true).as_deref(), Some("a"));
        assert_eq!(news(&["f"], true).as_deref(), Some("f"));
        assert_eq!(news(&[], false), None);
    }
}
