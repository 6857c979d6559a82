//! The stop of the server: its clients are moved to other servers, then its state is saved.

use std::time::{Duration, Instant};

use crore_broker::settings::Drain;
use crore_broker::{Control, World};
use crore_disk::LogEnd;

use super::shards::Shards;
use super::{state, supervisor};
use crate::settings::state::State;

/// Time between two counts of the remaining connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Time for the shards to close the connections that remain at the deadline.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// What a stop loses if it cannot write a base (the snapshot that the log continues), with a log.
const LOSS_WITH_LOG: &str = "the next start has all acknowledged messages, from the log, and neither MQTT sessions, shared subscriptions nor messages of \
     topics with durable = false, as after a crash";
/// What a stop loses if it cannot write a base, without a log.
const LOSS_WITHOUT_LOG: &str =
    "the next start has no messages, and clients with earlier positions are told of a gap";

/// Asks all clients to reconnect elsewhere, and closes the connections that remain at the deadline of the settings.
pub async fn move_clients_off(shards: &Shards, drain: &Drain) {
    supervisor::report_stopping();
    let began = Instant::now();
    if let Err(silent) = shards.ask_all::<()>(|| Control::Drain).await {
        tracing::error!(shard = silent.0, "a shard does not answer");
    }
    let connections_at_start = connections(shards).await;
    let time_max = Duration::from_secs(u64::from(drain.deadline_s)) + CLOSE_TIME;
    if connections_at_start > 0 {
        let (rate, deadline_s) = (drain.rate_per_s, drain.deadline_s);
        tracing::info!(
            "moving clients off: {connections_at_start}, at most {rate} a second, for at most {deadline_s} s"
        );
        report_progress(connections_at_start, connections_at_start);
    }
    let mut reported_at = began;
    loop {
        let remaining = connections(shards).await;
        if remaining == 0 || began.elapsed() > time_max {
            break;
        }
        if reported_at.elapsed() >= PROGRESS_INTERVAL {
            reported_at = Instant::now();
            let total = connections_at_start.max(remaining);
            tracing::info!("{remaining} of {total} clients are still here");
            report_progress(remaining, total);
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    if connections_at_start > 0 {
        tracing::info!(
            "clients moved off: {connections_at_start}, in {:.1} s",
            began.elapsed().as_secs_f64()
        );
    }
}

/// Saves the state for the next start, if the settings name a directory. `log_end` returns the end of the log. All clients must have
/// disconnected.
///
/// # Errors
/// The state cannot be written. The error says what is lost. It has been logged already.
pub async fn save_state(
    shards: &Shards,
    settings: &State,
    world: &World,
    log_end: impl FnOnce() -> Option<LogEnd>,
) -> anyhow::Result<()> {
    let Some(directory) = settings.directory() else {
        return Ok(());
    };
    supervisor::report_writing(settings.deadline_s);
    let stored = state::store(directory, settings, world, shards, log_end).await;
    let lost = match settings.is_durable() {
        true => LOSS_WITH_LOG,
        false => LOSS_WITHOUT_LOG,
    };
    stored.map_err(|reason| {
        tracing::error!("state.directory: the stop could not save the state: {reason}; {lost}");
        anyhow::anyhow!("the stop could not save the state: {lost}")
    })
}

/// Tells the supervisor the progress of the drain.
fn report_progress(left: u64, of: u64) {
    supervisor::report_progress(&format!(
        "moving clients off: {left} of {of} are still here"
    ));
}

async fn connections(shards: &Shards) -> u64 {
    let all = shards.accounts().await.into_iter().flatten();
    all.map(|account| u64::from(account.1.connections)).sum()
}
