//! Tells the operator that clients are refused, or miss what they asked for: once in a while, with what to do, however many there are.
//!
//! It reads the shards' counters, so that it tells once for all of them, and costs them nothing. Only when it tells does it ask
//! them for the name of a client or topic.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::{Control, Notice, Reason, Report, Stats};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::field::display;

use crate::board::Board;
use crate::life::shards::Shards;

/// How often one looks.
const EVERY: Duration = Duration::from_secs(1);
/// How often it is said, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Tells of all shards, for ever.
pub async fn watch(board: Arc<Board>, shards: Shards) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lines = lines();
    loop {
        let now = every.tick().await;
        let read = board.read_all();
        for line in &mut lines {
            let all = read.iter().map(|shard| (line.of)(&shard.stats)).sum();
            let Some(count) = line.growth.news(all, now) else {
                continue;
            };
            let example = match line.example {
                Some(kind) => name(&shards, kind).await.map(display),
                None => None,
            };
            tracing::warn!(count, example, "{}", line.words);
        }
    }
}

/// A line of the log: the counter that it tells of, the kind of the example that it names, and its words, with what the operator can do.
struct Line {
    of: fn(&Stats) -> u64,
    example: Option<Notice>,
    words: String,
    growth: Growth,
}

fn line(of: fn(&Stats) -> u64, example: Option<Notice>, words: &str) -> Line {
    Line {
        of,
        example,
        words: words.into(),
        growth: Growth::default(),
    }
}

/// A counter, the kind of its example, and the words.
type Row = (fn(&Stats) -> u64, Option<Notice>, &'static str);

#[rustfmt::skip]
const LINES: &[Row] = &[
    (|it| it.refusals.between(Reason::CredentialsMalformed, Reason::VerifierBusy), None,
        "clients came with worthless credentials; `crore token inspect --config FILE` shows what is wrong with a token (docs/ACCESS.md)"),
    (|it| it.refusals.between(Reason::PublishNeedsCredentials, Reason::InterestNotGranted), Some(Notice::Denied),
        "clients asked for something without a grant, such as this; `crore token inspect --config FILE` shows what a token grants (docs/ACCESS.md)"),
    (|it| it.refusals.between(Reason::ForeignHost, Reason::ForeignHost), Some(Notice::Host),
        "requests with a Host that is not the loopback, such as this one, were answered 403, as the server listens there only; set [access] \
         (docs/ACCESS.md), or have the proxy send Host: localhost"),
    (|it| it.refusals.between(Reason::ForeignOrigin, Reason::ForeignOrigin), Some(Notice::Origin),
        "web pages of other origins, such as this one, were answered 403; if it is yours, list it in http.allowed_origins"),
    (|it| it.hidden_answers, Some(Notice::Reader),
        "web pages of other origins, such as this one, asked to read; they were answered, but browsers hide the answers from them; if it is \
         yours, list it in http.allowed_origins"),
    (|it| it.refusals.between(Reason::NoSocketPath, Reason::NoSocketPath), Some(Notice::Upgrade),
        "WebSockets at a path that has none, such as this one, were answered 404: topics are at /sub/TOPIC and /pubsub/TOPIC, and a client \
         of MQTT must offer the subprotocol mqtt"),
    (|it| it.refusals.between(Reason::PublishRate, Reason::PublishRateOfAddress), None,
        "publishes were refused (429, 503): limits.publishes_per_address_per_s or limits.publishes_per_s was reached; raise it, or have the \
         clients publish less often"),
    (|it| it.refused_streams, Some(Notice::Stream),
        "event streams and WebSockets were answered 400; browsers hide the reason from the page, so one is shown here"),
    (|it| it.mqtt_refused, Some(Notice::Mqtt),
        "packets of MQTT clients, such as this one, were refused (docs/MQTT.md)"),
    (|it| it.short_logs, Some(Notice::ShortLog),
        "subscribers that came back, or read slowly, were told that messages are lost: their topic's log had them no more. One topic is \
         named, with what shortened its log: if they should have got them, raise a setting that stands there"),
    (|it| it.refusals.between(Reason::KeysFull, Reason::KeysFull), Some(Notice::Keys),
        "publishes with an Idempotency-Key, such as to this topic, were refused (503): publish.idempotency_keys, or their publisher's share \
         of it, is used up; raise it, or shorten publish.idempotency_window_s (`crore admin limits` shows how much is used)"),
];

/// All lines.
fn lines() -> Vec<Line> {
    // The one refusal of credentials that happens in the shard alone, so that no other thread tells of it.
    let too_long = Reason::TokenTooLong.row();
    let words = format!(
        "credentials refused: {}; {}",
        too_long.text, too_long.remedy
    );
    let of = |it: &Stats| {
        it.refusals
            .between(Reason::TokenTooLong, Reason::TokenTooLong)
    };
    let all = LINES
        .iter()
        .map(|(of, example, words)| line(*of, *example, words));
    all.chain([line(of, None, &words)]).collect()
}

/// The first of those since the last time.
async fn name(shards: &Shards, kind: Notice) -> Option<String> {
    let reports = shards.ask_all(|_| Control::Notice(kind)).await.ok()?;
    reports.into_iter().find_map(|report| match report {
        Report::Notice(name) => name,
        _ => None,
    })
}

/// A count as the log last told it, and until when the log is quiet about it.
#[derive(Default)]
struct Growth {
    all: u64,
    quiet_until: Option<Instant>,
}

impl Growth {
    /// How much the count has grown since the log last told it, where `all` is now; none while there is nothing to tell.
    fn news(&mut self, all: u64, now: Instant) -> Option<u64> {
        if all == self.all || self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        let before = std::mem::replace(&mut self.all, all);
        self.quiet_until = Some(now + TELL_EVERY);
        Some(all - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_between_two_log_lines_are_logged_together() {
        let mut told = Growth::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(told.news(0, at(0)), None);
        assert_eq!(told.news(2, at(1)), Some(2));
        assert_eq!(told.news(3, at(2)), None);
        assert_eq!(told.news(9, at(60)), None);
        assert_eq!(told.news(9, at(61)), Some(7));
        assert_eq!(told.news(9, at(200)), None);
    }
}
