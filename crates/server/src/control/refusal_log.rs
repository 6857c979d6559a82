//! Tells the operator in the log that clients are refused or lose messages, with the remedy, at a limited rate.
//!
//! A task reads the counters of all shards once a second, which costs the shards nothing. If a counter has grown, the task asks the shards
//! for the name of a client or topic as an example, and logs one line for all shards. Each kind of line is logged at most once a minute. A line with a new
//! name is logged earlier, so that an operator who corrects one setting sees at once why the next attempt fails.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::{COUNTERS, Control, Notice, Reason, Stats};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::field::display;

use crate::lifecycle::shards::Shards;
use crore_shard_loop::counters::Counters;

/// Time between two reads of the counters.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two lines of one kind, unless the name of the client or topic is new.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum number of different names of one kind logged in `LOG_INTERVAL`: clients choose the names, and could flood the log.
const NAMES_MAX: usize = 4;

/// Reads the counters of all shards and logs their growth. Never returns.
pub async fn run(counters: Arc<Counters>, shards: Shards) {
    let mut every = tokio::time::interval(READ_INTERVAL);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lines = lines();
    loop {
        let now = every.tick().await;
        let read = counters.read_all();
        for line in &mut lines {
            let count = read.iter().map(|shard| (line.counter)(&shard.stats)).sum();
            let due = line.growth.is_due(count, now);
            let may_name = line.growth.has_grown(count) && line.names.has_room();
            let names = match line.example {
                Some(kind) if due || may_name => new_examples(&shards, kind).await,
                _ => Vec::new(),
            };
            let example = line.names.new_names(names, due);
            if due || example.is_some() {
                let count = line.growth.mark_logged(count, due.then_some(now));
                let example = example.map(display);
                tracing::warn!(count, example, "{}", line.text);
            }
        }
    }
}

/// A kind of line: its counter, the kind of example in the line, and the text with the remedy.
struct RefusalLine {
    counter: fn(&Stats) -> u64,
    example: Option<Notice>,
    text: String,
    growth: CounterGrowth,
    names: LoggedNames,
}

fn line(metric: &str, example: Option<Notice>, text: &str) -> RefusalLine {
    let counter = COUNTERS.iter().find(|counter| counter.metric == metric);
    RefusalLine {
        counter: counter.expect("a metric of that table").of,
        example,
        text: text.into(),
        growth: CounterGrowth::default(),
        names: LoggedNames::default(),
    }
}

/// The name of a counter's metric, the kind of example in the line, and the text.
type LineRow = (&'static str, Option<Notice>, &'static str);

#[rustfmt::skip]
const LINES: &[LineRow] = &[
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
    ("crore_refused_takeovers_total", Some(Notice::Takeovers),
        "connections of MQTT clients with a client id such as this one were refused for a second: several clients use it, and end each other's \
         connections; give each client an id of its own (mqtt.takeovers_per_minute, docs/MQTT.md)"),
    ("crore_short_sessions_total", Some(Notice::ShortSession),
        "MQTT clients, such as this one, asked for a session that outlives their connection (clean session 0, or an expiry); in this cluster it \
         ends with the connection: what comes while they are away is lost to them, a QoS 2 publish that they repeat comes twice, and a will \
         is lost with its node (docs/CLUSTER.md, Upgrade)"),
];

/// All kinds of lines.
fn lines() -> Vec<RefusalLine> {
    // The only credentials that a shard itself refuses are too long ones. The verifier logs all other refusals.
    let too_long = Reason::TokenTooLong.row();
    let text = format!(
        "credentials refused: {}; {}",
        too_long.text, too_long.remedy
    );
    let all = LINES.iter().copied();
    let all = all.chain([("crore_oversized_credentials_total", None, &*text)]);
    all.map(|(metric, example, text)| line(metric, example, text))
        .collect()
}

/// The first name that each shard has recorded since the last call.
async fn new_examples(shards: &Shards, kind: Notice) -> Vec<String> {
    let names = shards.ask_all::<Option<String>>(|| Control::Notice(kind));
    let names = names.await;
    names.into_iter().flatten().flatten().collect()
}

/// The growth of a counter since the last line.
#[derive(Default)]
struct CounterGrowth {
    /// The count at the last line.
    logged: u64,
    last_read: u64,
    /// The next line may not be logged before this time, unless a name is new.
    quiet_until: Option<Instant>,
}

impl CounterGrowth {
    /// Whether the count has grown since the last line, and a line is allowed now.
    fn is_due(&self, count: u64, now: Instant) -> bool {
        count != self.logged && self.quiet_until.is_none_or(|until| now >= until)
    }

    /// Whether the count has grown since the last read.
    fn has_grown(&mut self, count: u64) -> bool {
        std::mem::replace(&mut self.last_read, count) != count
    }

    /// Records that a line is logged. Returns the growth of the count since the last line. With `quiet_from`, no line is due for
    /// [`LOG_INTERVAL`] from then on.
    fn mark_logged(&mut self, count: u64, quiet_from: Option<Instant>) -> u64 {
        if let Some(now) = quiet_from {
            self.quiet_until = Some(now + LOG_INTERVAL);
        }
        count - std::mem::replace(&mut self.logged, count)
    }
}

/// The names logged since the line was last due.
#[derive(Default)]
struct LoggedNames {
    logged: Vec<String>,
    /// The last name that occurred again after it was logged. The next line that is due shows this name if no name is new.
    repeated: Option<String>,
}

impl LoggedNames {
    fn has_room(&self) -> bool {
        self.logged.len() < NAMES_MAX
    }

    /// The names for a line: those of `found` that were not logged yet. If there are none and the line is due, a logged name that has occurred again.
    fn new_names(&mut self, found: Vec<String>, due: bool) -> Option<String> {
        if due {
            self.logged.clear();
        }
        let mut new = Vec::new();
        for name in found {
            match self.logged.contains(&name) {
                true => self.repeated = Some(name),
                false if self.has_room() => {
                    self.logged.push(name.clone());
                    new.push(name);
                }
                false => {}
            }
        }
        let repeated = self.repeated.take_if(|_| due);
        match new.is_empty() {
            true => repeated,
            false => Some(new.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_between_two_log_lines_are_logged_together() {
        let mut growth = CounterGrowth::default();
        let start = Instant::now();
        let mut logged = |count, s| {
            let now = start + Duration::from_secs(s);
            let due = growth.is_due(count, now);
            due.then(|| growth.mark_logged(count, Some(now)))
        };
        assert_eq!(logged(0, 0), None);
        assert_eq!(logged(2, 1), Some(2));
        assert_eq!(logged(3, 2), None);
        assert_eq!(logged(9, 60), None);
        assert_eq!(logged(9, 61), Some(7));
        assert_eq!(logged(9, 200), None);
    }

    #[test]
    fn few_new_names_are_logged_at_once_and_a_known_name_later() {
        let mut names = LoggedNames::default();
        let mut new_names = |found: &[&str], due| {
            let found = found.iter().map(ToString::to_string).collect();
            names.new_names(found, due)
        };
        assert_eq!(new_names(&["a"], true).as_deref(), Some("a"));
        assert_eq!(new_names(&["a"], false), None);
        assert_eq!(new_names(&["b", "a"], false).as_deref(), Some("b"));
        assert_eq!(new_names(&["c", "d", "e"], false).as_deref(), Some("c, d"));
        assert_eq!(new_names(&["f"], false), None);
        // The shards have recorded no name since the last call, but "a" had occurred again.
        assert_eq!(new_names(&[], true).as_deref(), Some("a"));
        assert_eq!(new_names(&["f"], true).as_deref(), Some("f"));
        assert_eq!(new_names(&[], false), None);
    }
}
