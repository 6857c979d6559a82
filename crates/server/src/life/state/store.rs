//! The stop: when no work is under way any more, every home hands over its snapshot, which is written to disk as it comes.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crore_broker::snapshot::{Head, preamble, seal};
use crore_broker::{Control, Report, Settled, ShardId, World};
use crore_net::{clock, memory};
use futures_util::future::join_all;

use super::files::{Name, prepare, sync};
use crate::life::shards::Shards;
use crate::settings::state::State;

/// Between two looks at whether anything is under way.
const LOOK: Duration = Duration::from_millis(2);

/// Leaves everything in `directory`, within the budget of bytes and time. No client is connected any more.
///
/// # Errors
/// Why nothing is left there.
pub async fn store(
    directory: &Path,
    state: &State,
    world: &World,
    shards: &Shards,
) -> Result<(), String> {
    let began = Instant::now();
    let budget = Duration::from_secs(u64::from(state.deadline_s));
    let stored = tokio::time::timeout(budget, write(directory, state, world, shards, began));
    let too_late = || Err("state.deadline_s has passed".to_string());
    let stored = stored.await.unwrap_or_else(|_| too_late());
    match stored {
        Ok(bytes) => {
            tracing::info!(
                "{bytes} bytes of state left in {} in {:.1} s",
                directory.display(),
                began.elapsed().as_secs_f64()
            );
            Ok(())
        }
        Err(why) => {
            for name in Name::ALL {
                for path in name.all(directory).unwrap_or_default() {
                    let _ = fs::remove_file(path);
                }
            }
            Err(why)
        }
    }
}

async fn write(
    directory: &Path,
    state: &State,
    world: &World,
    shards: &Shards,
    began: Instant,
) -> Result<u64, String> {
    prepare(directory).map_err(|error| format!("{error:#}"))?;
    settle(shards).await?;
    let head = Head {
        set: memory::random_u64(),
        epoch: world.epoch,
        seed: world.seed,
        partitions: world.partitions,
        homes: world.homes,
        home: 0,
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
        wall_s: u32::try_from(clock::unix_s()).unwrap_or(u32::MAX),
    };
    let homes = (0..world.homes).map(|home| {
        let head = Head { home, ..head };
        write_home(directory, head, state, shards, began)
    });
    let mut bytes = 0;
    for written in join_all(homes).await {
        bytes += written?;
    }
    let visible = || {
        for home in 0..usize::from(world.homes) {
            let part = Name::Part.of(directory, home);
            fs::rename(part, Name::State.of(directory, home))?;
        }
        sync(directory)
    };
    visible().map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(bytes)
}

/// Waits until nothing is under way at any shard or between two.
async fn settle(shards: &Shards) -> Result<(), String> {
    let mut former = Vec::new();
    loop {
        let reports = shards.ask_all(|_| Control::Settle).await;
        let reports = reports.map_err(|silent| format!("shard {} does not answer", silent.0))?;
        let settled = |report: &Report| match report {
            Report::Settled(settled) => *settled,
            _ => Settled::default(),
        };
        let now: Vec<Settled> = reports.iter().map(settled).collect();
        let posted: u64 = now.iter().map(|shard| shard.posted).sum();
        let received: u64 = now.iter().map(|shard| shard.received).sum();
        let rests = |shard: &Settled| !shard.busy && shard.connections == 0;
        if now == former && posted == received && now.iter().all(rests) {
            return Ok(());
        }
        former = now;
        tokio::time::sleep(LOOK).await;
    }
}

async fn write_home(
    directory: &Path,
    head: Head,
    state: &State,
    shards: &Shards,
    began: Instant,
) -> Result<u64, String> {
    let path = Name::Part.of(directory, usize::from(head.home));
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let mut file = BufWriter::new(file);
    file.write_all(&preamble()).map_err(failed)?;
    let most = state.bytes_max / usize::from(head.homes);
    let (mut number, mut bytes) = (0, 0);
    loop {
        let block = next_block(shards, head, most).await?;
        if block.is_empty() {
            break;
        }
        bytes += block.len() as u64;
        if bytes > most as u64 {
            return Err(format!(
                "topics and sessions alone take more than state.bytes_max ({}); raise it",
                state.bytes_max
            ));
        }
        // Writing does not yield, so that the timer alone would come too late.
        if began.elapsed() > Duration::from_secs(u64::from(state.deadline_s)) {
            return Err("state.deadline_s has passed".to_string());
        }
        file.write_all(&seal(number, &block)).map_err(failed)?;
        file.write_all(&block).map_err(failed)?;
        number += 1;
    }
    let file: File = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    Ok(bytes)
}

async fn next_block(shards: &Shards, head: Head, most: usize) -> Result<Vec<u8>, String> {
    let home: ShardId = head.home;
    match shards.ask(home, Control::Save(head, most)).await {
        Ok(Report::Block(block)) => Ok(block),
        Ok(_) => unreachable!("each order has its report"),
        Err(silent) => Err(format!("shard {} does not answer", silent.0)),
    }
}
