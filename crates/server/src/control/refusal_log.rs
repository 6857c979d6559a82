//! Tells the operator that clients are refused, or miss what they asked for: once in a while, with what to do, however many there are.
//!
//! It reads the shards' counters, so that it tells once for all of them, and costs them nothing. Only when a counter has grown does it ask
//! them for the name of a client or topic. A line stands in the log once a minute, and before that again for names that it did not have:
//! who mends one setting sees at once what the next attempt lacks.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::{COUNTERS, Control, Notice, Reason, Stats};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::field::display;

use crate::counters::Counters;
use crate::lifecycle::shards::Shards;

/// How often one looks.
const EVERY: Duration = Duration::from_secs(1);
/// How often it is said, at most, unless it is of another client or topic.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// So many different names stand in the log within that time. Clients choose the names.
const NAMES_MAX: usize = 4;

/// Tells of all shards, for ever.
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

/// A line of the log: the counter that it tells of, the kind of the example that it names, and its words, with what the operator can do.
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

/// A counter's metric, the kind of its example, and the words.
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

/// All lines.
fn lines() -> Vec<Line> {
    // The one refusal of credentials that happens in the shard alone, so that no other thread tells of it.
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

/// Of each shard the first that was met since the last time.
async fn names(shards: &Shards, kind: Notice) -> Vec<String> {
    let names = shards.ask_all::<Option<String>>(|| Control::Notice(kind));
    let names = names.await;
    names.into_iter().flatten().flatten().collect()
}

/// A count as the log last told it, and until when the log is quiet about it.
#[derive(Default)]
struct Growth {
    told: u64,
    seen: u64,
    quiet_until: Option<Instant>,
}

impl Growth {
    /// Whether it has grown since the log last told it, and the log may say so.
    fn is_due(&self, all: u64, now: Instant) -> bool {
        all != self.told && self.quiet_until.is_none_or(|until| now >= until)
    }

    /// Whether it has grown since the last look.
    fn look(&mut self, all: u64) -> bool {
        std::mem::replace(&mut self.seen, all) != all
    }

    /// The log tells it, from `quiet_from` on not for a while: how much it has grown.
    fn told(&mut self, all: u64, quiet_from: Option<Instant>) -> u64 {
        if let Some(now) = quiet_from {
            self.quiet_until = Some(now + TELL_EVERY);
        }
        all - std::mem::replace(&mut self.told, all)
    }
}

/// The names that the log has since it was last due.
#[derive(Default)]
struct Names {
    told: Vec<String>,
    /// One that came again, for the next time.
    again: Option<String>,
}

impl Names {
    fn has_room(&self) -> bool {
        self.told.len() < NAMES_MAX
    }

    /// The names for this line of the log: those of `came` that the log has not named yet, and at least one if the line is due.
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
        // Nobody came since the name was last taken from the shards.
        assert_eq!(news(&[], true).as_deref(), Some("a"));
        assert_eq!(news(&["f"], true).as_deref(), Some("f"));
        assert_eq!(news(&[], false), None);
    }
}
