//! Saves the state at a stop. When no work is in flight any more, each home (a shard that keeps topics) returns its document block by
//! block, and each block is written at once.
//!
//! Words: a *base* is the snapshot that the log continues; a *document* is the snapshot of one home or partition.

use std::path::Path;
use std::time::{Duration, Instant};

use crore_broker::snapshot::Head;
use crore_broker::{Control, PartitionId, Settled, Shard, World};
use crore_disk::{FileSystem, LogEnd};
use futures_util::future::join_all;

use super::files::{
    Base, Document, begin, keep_reserve, prepare, publish, return_room_of_incomplete_base,
};
use super::room::{BaseShape, next_reserve, room_of_log, with_margin};
use crate::lifecycle::checkpoint::document::new_head;
use crate::lifecycle::shards::Shards;
use crate::settings::state::State;

/// Time between two checks whether work is still in flight.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Saves the state in `directory`, within the limits of size and time. All clients must have disconnected. `log_end` returns the end of the
/// log, if there is a log.
///
/// # Errors
/// Nothing was saved.
pub async fn store(
    directory: &Path,
    state: &State,
    world: &World,
    shards: &Shards,
    log_end: impl FnOnce() -> Option<LogEnd>,
) -> Result<(), String> {
    let began = Instant::now();
    let budget = Duration::from_secs(u64::from(state.deadline_s));
    let written = write(directory, state, world, shards, log_end, began);
    let stored = tokio::time::timeout(budget, written);
    let too_late = || Err("state.deadline_s has passed".to_string());
    let stored = stored.await.unwrap_or_else(|_| too_late());
    match stored {
        Ok(bytes) => {
            tracing::info!(
                "state written to {} for the next start: {bytes} bytes in {:.1} s",
                directory.display(),
                began.elapsed().as_secs_f64()
            );
            Ok(())
        }
        Err(reason) => {
            let _ = return_room_of_incomplete_base(directory);
            Err(reason)
        }
    }
}

/// Writes a base at the start, from shards that serve no client yet.
///
/// # Errors
/// The base could not be written.
pub fn write_first(
    directory: &Path,
    world: &World,
    homes: &mut [Shard],
    end: LogEnd,
) -> Result<Base, String> {
    let written = write_homes(directory, world, homes, end);
    if written.is_err() {
        let _ = return_room_of_incomplete_base(directory);
    }
    written
}

fn write_homes(
    directory: &Path,
    world: &World,
    homes: &mut [Shard],
    end: LogEnd,
) -> Result<Base, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    begin(directory).map_err(failed)?;
    let head = new_head(world);
    for (home, shard) in (0..).zip(homes) {
        let head = Head { home, ..head };
        let mut document = Document::begin(directory, home)?;
        loop {
            let block = shard.save(&head, usize::MAX);
            if block.is_empty() {
                break;
            }
            document.block(&block)?;
        }
        document.end()?;
    }
    let base = Base::next(directory, end).map_err(failed)?;
    publish(directory, base, false).map_err(failed)?;
    Ok(base)
}

async fn write(
    directory: &Path,
    state: &State,
    world: &World,
    shards: &Shards,
    log_end: impl FnOnce() -> Option<LogEnd>,
    began: Instant,
) -> Result<u64, String> {
    prepare(directory).map_err(|error| format!("{error:#}"))?;
    wait_until_idle(shards).await?;
    // The end is read after all work is done. Batches that were in flight are in the documents, so the end must be after them.
    let log = log_end();
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    begin(directory).map_err(failed)?;
    let head = new_head(world);
    // With a log there is no limit, because the documents must contain all messages of the log.
    let bytes_max = match log {
        Some(_) => usize::MAX,
        None => state.bytes_max / usize::from(head.homes),
    };
    let homes = (0..world.homes).map(|home| {
        let head = Head { home, ..head };
        write_home(directory, head, state, bytes_max, shards, began)
    });
    let mut bytes = 0;
    for written in join_all(homes).await {
        bytes += written?;
    }
    let visible = Base::next(directory, log.unwrap_or_default())
        .and_then(|base| publish(directory, base, true));
    visible.map_err(failed)?;
    if log.is_some() {
        reserve_room(directory, state.segment_bytes(), world.partitions);
    }
    Ok(bytes)
}

/// Reserves room for the first checkpoint of the next process, so that no other program takes it before the next start. A failure is
/// ignored, since only that checkpoint may lack room.
fn reserve_room(directory: &Path, segment_bytes: u64, partitions: PartitionId) {
    let Some(base) = BaseShape::of(directory, partitions) else {
        return;
    };
    let free = FileSystem::of(directory).map_or(0, |it| it.free_bytes);
    let wanted = with_margin(base.needed_bytes());
    let bytes = next_reserve(0, wanted, free, room_of_log(segment_bytes));
    if let Err(error) = keep_reserve(directory, bytes, false) {
        tracing::debug!("state.directory: no reserve for the next checkpoint: {error}");
    }
}

/// Waits until no work is in flight at any shard or between shards.
async fn wait_until_idle(shards: &Shards) -> Result<(), String> {
    let mut former = Vec::new();
    loop {
        let now = shards.ask_all(|| Control::Settle).await;
        let now: Vec<Settled> = now.map_err(|silent| silent.to_string())?;
        let posted: u64 = now.iter().map(|shard| shard.posted).sum();
        let received: u64 = now.iter().map(|shard| shard.received).sum();
        let is_idle = |shard: &Settled| !shard.busy && shard.connections == 0;
        if now == former && posted == received && now.iter().all(is_idle) {
            return Ok(());
        }
        former = now;
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn write_home(
    directory: &Path,
    head: Head,
    state: &State,
    bytes_max: usize,
    shards: &Shards,
    began: Instant,
) -> Result<u64, String> {
    let mut document = Document::begin(directory, head.home)?;
    loop {
        let order = Control::Save(head, bytes_max);
        let block = shards.ask(head.home, order).await;
        let block: Vec<u8> = block.map_err(|silent| silent.to_string())?;
        if block.is_empty() {
            return document.end();
        }
        if document.bytes() + block.len() as u64 > bytes_max as u64 {
            return Err(format!(
                "topics and sessions alone take more than state.bytes_max ({}); raise it",
                state.bytes_max
            ));
        }
        // The timer does not run during writing, so the deadline is checked here too.
        if began.elapsed() > Duration::from_secs(u64::from(state.deadline_s)) {
            return Err("state.deadline_s has passed".to_string());
        }
        document.block(&block)?;
    }
}
