//! The state that a drained server leaves on disk for its successor: one file for each home in `state.directory`.
//!
//! A file is the broker's snapshot, block by block. Invariants: a set of files is whole or counts for nothing; it
//! becomes visible by renames after everything is on disk; it is used once: before the successor serves anybody the files are
//! gone, so that a crash later never brings back an old state. Files that cannot be used are set aside, and the log says so.

mod files;
mod load;
mod store;

use std::path::Path;
use std::sync::Arc;

use crore_broker::{PartitionId, World};
use crore_net::{clock, memory};

use crate::shard_loop::now;

pub use load::Used;
pub use store::store;

/// The world of this start: as the last server left it in `directory`, or a new one with so many partitions. `new_world` makes one
/// of an epoch, a seed and a number of partitions.
///
/// # Errors
/// When the directory cannot be used.
pub fn resume(
    directory: Option<&Path>,
    partitions: PartitionId,
    new_world: impl Fn(u32, u64, PartitionId) -> Arc<World>,
) -> anyhow::Result<(Arc<World>, Option<Used>)> {
    let found = directory.map(load::load);
    if let Some(found) = found.transpose()?.flatten() {
        let head = *found.head();
        if head.partitions != partitions {
            tracing::warn!(
                "partitions = {partitions} does not apply to the state in state.directory, which was made with {}: it keeps them",
                head.partitions
            );
        }
        clock::go_on_from(head.unix_s.into(), head.wall_s.into());
        let world = new_world(head.epoch, head.seed, head.partitions);
        if let Some(used) = found.restore(&world, now(0))? {
            return Ok((world, Some(used)));
        }
    }
    // An epoch of nought would look like none.
    let epoch = memory::random_u64() as u32 | 1;
    Ok((new_world(epoch, memory::random_u64(), partitions), None))
}
