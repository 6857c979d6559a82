//! Tells the operator that clients are refused, or miss what they asked for: once in a while, with what to do, however many there are.
//!
//! It reads the shards' counters, so that it tells once for all of them, and costs them nothing. Only when it tells does it ask
//! them for the name of a client or topic.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::access::Refusal;
use crore_broker::{Control, Notice, Report};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::field::display;

use crate::access::remedy;
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
    let (mut refusals, mut lengths) = (Told::default(), Told::default());
    let (mut hosts, mut origins, mut readers) = (Told::default(), Told::default(), Told::default());
    let (mut packets, mut logs) = (Told::default(), Told::default());
    loop {
        let now = every.tick().await;
        let read = board.read_all();
        let refused = read.iter().map(|shard| shard.stats.refused).sum();
        let denied = read.iter().map(|shard| shard.stats.denied).sum();
        if let Some([refused, denied]) = refusals.news([refused, denied], now) {
            tracing::warn!(
                refused,
                denied,
                "clients came with worthless credentials, or without a grant for what they asked for; \
                 `crore token inspect --config FILE` shows what a token grants (docs/ACCESS.md)"
            );
        }
        // The one refusal that happens in the shard alone, so that no other thread tells of it.
        let oversized = read.iter().map(|shard| shard.stats.oversized).sum();
        if let Some([refused]) = lengths.news([oversized], now) {
            let (reason, remedy) = (Refusal::TooLong.reason(), remedy(Refusal::TooLong));
            tracing::warn!(refused, "credentials refused: {reason}; {remedy}");
        }
        let foreign = read.iter().map(|shard| shard.stats.foreign_hosts).sum();
        if let Some([refused]) = hosts.news([foreign], now) {
            let host = name(&shards, Notice::Host).await.map(display);
            tracing::warn!(
                refused,
                host,
                "requests with a Host that is not the loopback, such as this one, were answered 403, as the server listens there only; \
                 set [access] (docs/ACCESS.md), or have the proxy send Host: localhost"
            );
        }
        let foreign = read.iter().map(|shard| shard.stats.foreign_origins).sum();
        if let Some([refused]) = origins.news([foreign], now) {
            let origin = name(&shards, Notice::Origin).await.map(display);
            tracing::warn!(
                refused,
                origin,
                "web pages of other origins, such as this one, were answered 403; if it is yours, list it in http.allowed_origins"
            );
        }
        let hidden = read.iter().map(|shard| shard.stats.hidden_answers).sum();
        if let Some([hidden]) = readers.news([hidden], now) {
            let origin = name(&shards, Notice::Reader).await.map(display);
            tracing::warn!(
                hidden,
                origin,
                "web pages of other origins, such as this one, asked to read; they were answered, but browsers hide the answers from them; \
                 if it is yours, list it in http.allowed_origins"
            );
        }
        let mqtt = read.iter().map(|shard| shard.stats.mqtt_refused).sum();
        if let Some([refused]) = packets.news([mqtt], now) {
            let one = name(&shards, Notice::Mqtt).await.map(display);
            tracing::warn!(
                refused,
                one,
                "packets of MQTT clients, such as this one, were refused (docs/MQTT.md)"
            );
        }
        let short = read.iter().map(|shard| shard.stats.short_logs).sum();
        if let Some([told]) = logs.news([short], now) {
            let log = name(&shards, Notice::ShortLog).await.map(display);
            tracing::warn!(
                told,
                log,
                "subscribers that came back, or read slowly, were told that messages are lost: their topic's log had them no more, as that \
                 of this one; raise the setting if they should have got them"
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
struct Told<const N: usize> {
    all: [u64; N],
    quiet_until: Option<Instant>,
}

impl<const N: usize> Default for Told<N> {
    fn default() -> Self {
        Told {
            all: [0; N],
            quiet_until: None,
        }
    }
}

impl<const N: usize> Told<N> {
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
    fn what_came_while_nothing_was_said_is_said_together() {
        let mut told = Told::default();
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
