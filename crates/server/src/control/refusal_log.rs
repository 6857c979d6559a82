//! Tells the operator that clients are refused, or miss what they asked for: once in a while, with what to do, however many there are.
//!
//! It reads the shards' counters, so that it tells once for all of them, and costs them nothing. Only when it tells does it ask
//! them for the name of a client or topic.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::Reason;
use crore_broker::{Control, Notice, Report, Stats};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::field::display;

use crate::board::{Board, Snapshot};
use crate::life::shards::Shards;

/// How often one looks.
const EVERY: Duration = Duration::from_secs(1);
/// How often it is said, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Tells of all shards, for ever.
pub async fn watch(board: Arc<Board>, shards: Shards) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = RefusalLog::default();
    loop {
        let now = every.tick().await;
        let read = board.read_all();
        told.credentials(&read, now);
        told.strangers(&read, now, &shards).await;
        told.others(&read, now, &shards).await;
    }
}

/// What the log has told of each kind.
#[derive(Default)]
struct RefusalLog {
    credentials: Counter<2>,
    lengths: Counter<1>,
    hosts: Counter<1>,
    origins: Counter<1>,
    readers: Counter<1>,
    upgrades: Counter<1>,
    packets: Counter<1>,
    logs: Counter<1>,
    keys: Counter<1>,
    rates: Counter<1>,
}

/// The sum of a count of all shards.
fn sum(read: &[Snapshot], of: fn(&Stats) -> u64) -> u64 {
    read.iter().map(|shard| of(&shard.stats)).sum()
}

impl RefusalLog {
    fn credentials(&mut self, read: &[Snapshot], now: Instant) {
        let all = [sum(read, |it| it.refused), sum(read, |it| it.denied)];
        if let Some([refused, denied]) = self.credentials.news(all, now) {
            tracing::warn!(
                refused,
                denied,
                "clients came with worthless credentials, or without a grant for what they asked for; \
                 `crore token inspect --config FILE` shows what a token grants (docs/ACCESS.md)"
            );
        }
        // The one refusal that happens in the shard alone, so that no other thread tells of it.
        if let Some([refused]) = (self.lengths).news([sum(read, |it| it.oversized)], now) {
            let (reason, remedy) = (
                Reason::TokenTooLong.text(),
                Reason::TokenTooLong.row().remedy,
            );
            tracing::warn!(refused, "credentials refused: {reason}; {remedy}");
        }
    }

    /// Requests for other hosts, of pages of other origins, and for paths that are none.
    async fn strangers(&mut self, read: &[Snapshot], now: Instant, shards: &Shards) {
        if let Some([refused]) = (self.hosts).news([sum(read, |it| it.foreign_hosts)], now) {
            let host = name(shards, Notice::Host).await.map(display);
            tracing::warn!(
                refused,
                host,
                "requests with a Host that is not the loopback, such as this one, were answered 403, as the server listens there only; \
                 set [access] (docs/ACCESS.md), or have the proxy send Host: localhost"
            );
        }
        if let Some([refused]) = (self.origins).news([sum(read, |it| it.foreign_origins)], now) {
            let origin = name(shards, Notice::Origin).await.map(display);
            tracing::warn!(
                refused,
                origin,
                "web pages of other origins, such as this one, were answered 403; if it is yours, list it in http.allowed_origins"
            );
        }
        if let Some([refused]) = (self.upgrades).news([sum(read, |it| it.stray_upgrades)], now) {
            let path = name(shards, Notice::Upgrade).await.map(display);
            tracing::warn!(
                refused,
                path,
                "WebSockets at a path that has none, such as this one, were answered 404: topics are at /sub/TOPIC and /pubsub/TOPIC, and a client of \
                 MQTT must offer the subprotocol mqtt"
            );
        }
        if let Some([hidden]) = (self.readers).news([sum(read, |it| it.hidden_answers)], now) {
            let origin = name(shards, Notice::Reader).await.map(display);
            tracing::warn!(
                hidden,
                origin,
                "web pages of other origins, such as this one, asked to read; they were answered, but browsers hide the answers from them; \
                 if it is yours, list it in http.allowed_origins"
            );
        }
    }

    /// Packets of MQTT clients, and logs that were too short.
    async fn others(&mut self, read: &[Snapshot], now: Instant, shards: &Shards) {
        if let Some([refused]) = (self.rates).news([sum(read, |it| it.rates_refused)], now) {
            tracing::warn!(
                refused,
                "publishes were refused (429, 503): limits.publishes_per_address_per_s or limits.publishes_per_s was reached; raise it, or have \
                 the clients publish less often"
            );
        }
        if let Some([refused]) = (self.packets).news([sum(read, |it| it.mqtt_refused)], now) {
            let one = name(shards, Notice::Mqtt).await.map(display);
            tracing::warn!(
                refused,
                one,
                "packets of MQTT clients, such as this one, were refused (docs/MQTT.md)"
            );
        }
        if let Some([told]) = (self.logs).news([sum(read, |it| it.short_logs)], now) {
            let log = name(shards, Notice::ShortLog).await.map(display);
            tracing::warn!(
                told,
                log,
                "subscribers that came back, or read slowly, were told that messages are lost: their topic's log had them no more. One topic \
                 is named, with what shortened its log: if they should have got them, raise a setting that stands there"
            );
        }
        if let Some([refused]) = (self.keys).news([sum(read, |it| it.keys_refused)], now) {
            let topic = name(shards, Notice::Keys).await.map(display);
            tracing::warn!(
                refused,
                topic,
                "publishes with an Idempotency-Key, such as to this topic, were refused (503): publish.idempotency_keys, or their publisher's share \
                 of it, is used up; raise it, or shorten publish.idempotency_window_s (`crore admin limits` shows how much is used)"
            );
        }
    }
}

/// The first of those since the last time.
async fn name(shards: &Shards, kind: Notice) -> Option<String> {
    let reports = shards.ask_all(|_| Control::Notice(kind)).await.ok()?;
    reports.into_iter().find_map(|report| match report {
        Report::Notice(name) => name,
        _ => None,
    })
}

/// Counts as the log last told them, and until when it stays quiet.
struct Counter<const N: usize> {
    all: [u64; N],
    quiet_until: Option<Instant>,
}

impl<const N: usize> Default for Counter<N> {
    fn default() -> Self {
        Counter {
            all: [0; N],
            quiet_until: None,
        }
    }
}

impl<const N: usize> Counter<N> {
    /// How much each count has grown since the log last told them, where `all` is now; none while there is nothing to tell.
    fn news(&mut self, all: [u64; N], now: Instant) -> Option<[u64; N]> {
        if all == self.all || self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        let before = std::mem::replace(&mut self.all, all);
        self.quiet_until = Some(now + TELL_EVERY);
        Some(std::array::from_fn(|n| all[n] - before[n]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_between_two_log_lines_are_logged_together() {
        let mut told = Counter::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(told.news([0], at(0)), None);
        assert_eq!(told.news([2], at(1)), Some([2]));
        assert_eq!(told.news([3], at(2)), None);
        assert_eq!(told.news([9], at(60)), None);
        assert_eq!(told.news([9], at(61)), Some([7]));
        assert_eq!(told.news([9], at(200)), None);
    }
}
