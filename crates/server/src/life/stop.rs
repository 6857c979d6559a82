//! The end: clients are moved off, then nothing is under way any more, then the process may end.

use std::time::{Duration, Instant};

use crore_broker::{Control, Report};

use super::{Life, state, supervisor};

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is told how far it is.
const TELL: Duration = Duration::from_secs(2);
/// Past the deadline the shards close what is left; so long they may take for it.
const CLOSE: Duration = Duration::from_secs(10);

/// Moves all clients off, within the deadline.
pub async fn stop(life: &Life) {
    supervisor::stopping();
    let began = Instant::now();
    let drain = life.effective().settings.drain;
    if let Err(silent) = life.0.shards.ask_all(|_| Control::Drain).await {
        tracing::error!(shard = silent.0, "a shard does not answer");
    }
    let before = connections(life).await;
    let most = Duration::from_secs(u64::from(drain.deadline_s)) + CLOSE;
    if before > 0 {
        let (rate, most) = (drain.rate_per_s, drain.deadline_s);
        tracing::info!("moving {before} clients off: {rate} a second, for {most} s at most");
        tell(before, before);
    }
    let mut told = began;
    loop {
        let left = connections(life).await;
        if left == 0 || began.elapsed() > most {
            break;
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            let of = before.max(left);
            tracing::info!("{left} of {of} clients are still here");
            tell(left, of);
        }
        tokio::time::sleep(LOOK).await;
    }
    tracing::info!(
        "{before} clients moved off in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let settings = life.effective().state;
    if let Some(directory) = settings.directory() {
        supervisor::writing(settings.deadline_s);
        let world = life.world();
        let stored = state::store(directory, &settings, &world, &life.0.shards).await;
        if let Err(why) = stored {
            tracing::error!("nothing is left for the next server: {why}");
        }
    }
}

/// Tells the supervisor how far it is.
fn tell(left: u64, of: u64) {
    supervisor::status(&format!(
        "moving clients off: {left} of {of} are still here"
    ));
}

/// Connections of all shards.
async fn connections(life: &Life) -> u64 {
    let Ok(reports) = life.0.shards.ask_all(|_| Control::Accounts).await else {
        return 0;
    };
    let of = |report: &Report| match report {
        Report::Accounts(accounts) => u64::from(accounts.1.connections),
        _ => 0,
    };
    reports.iter().map(of).sum()
}
