//! Makes checkpoints. A thread of low priority combines the last checkpoint of a partition and the log after it into the next checkpoint.
//! Then it removes the part of the log that is no longer needed. So the size of the log and the duration of a start depend on the kept
//! messages, not on all messages that were ever published.
//!
//! The homes (shards that keep topics) continue to serve meanwhile. For one partition at a time, a [`Shadow`] (a home without clients) is
//! restored from the last checkpoint and the log after it. Then the thread asks the home which topics still exist, and which messages of
//! them it has dropped. Invariants: nothing of the log is removed before a checkpoint is complete and stored; a failed checkpoint loses
//! nothing.
//!
//! This file has what checkpoints on disk (`state/checkpoint.rs`) and in a cluster (`node.rs`) have in common.
//!
//! Words: a *base* is the snapshot that the log continues; a *document* is the snapshot of one home or partition.

pub mod document;
pub mod node;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crore_broker::snapshot::Head;
use crore_broker::{Control, Now, Report, Shadow, ShardId, World};
use crore_net::{affinity, clock};
use tokio::runtime::Handle;

use super::shards::Shards;
use document::Unusable;

/// Time between two checks whether a checkpoint is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before another attempt after a failed checkpoint.
pub const RETRY_DELAY: Duration = Duration::from_secs(30);
/// Number of topics in one order to a home, which takes the home some ten microseconds.
const TOPICS_PER_ORDER: usize = 256;
/// Maximum number of checks whether a home has applied the log. The next constant is the time between two checks.
const CATCH_UP_CHECKS_MAX: u32 = 1000;
const CATCH_UP_INTERVAL: Duration = Duration::from_millis(20);

/// Statistics of this process's checkpoints, for the control plane.
#[derive(Debug, Default)]
pub struct CheckpointStats {
    /// Completed checkpoints.
    pub made: AtomicU64,
    /// Unix second at which the last checkpoint was completed; 0 if none was yet.
    pub made_unix_s: AtomicU64,
    /// The duration of the last completed checkpoint, in milliseconds.
    pub took_ms: AtomicU64,
    /// Failed checkpoints.
    pub failed: AtomicU64,
    /// Size in bytes of the base on disk, which is the last checkpoint.
    pub base_bytes: AtomicU64,
    /// Whether the last checkpoint failed because its input is damaged.
    pub damaged: AtomicBool,
}

impl CheckpointStats {
    /// Counts a completed checkpoint that began at this time.
    pub fn count_completed(&self, began: Instant) {
        self.damaged.store(false, Relaxed);
        self.made.fetch_add(1, Relaxed);
        self.made_unix_s.store(clock::unix_s(), Relaxed);
        let took_ms = began.elapsed().as_millis() as u64;
        self.took_ms.store(took_ms, Relaxed);
    }
}

/// What checkpoints need of the server. `S` is the type of the settings, and `E` is the type of the engine that has the log.
pub struct CheckpointContext<S, E> {
    pub settings: S,
    pub engine: E,
    pub shards: Shards,
    /// Returns the data that all shards share at present.
    pub world: Box<dyn Fn() -> Arc<World> + Send>,
    /// The statistics to update.
    pub stats: Arc<CheckpointStats>,
}

/// A handle to the thread that makes checkpoints.
pub struct Checkpoints {
    /// Nothing is sent. The thread ends when this sender is dropped.
    ends: mpsc::Sender<()>,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Checkpoints {
    /// Starts the thread. Must be called on the control thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        shards: Shards,
        make: impl FnOnce(CheckpointWorker) + Send + 'static,
    ) -> std::io::Result<Checkpoints> {
        let (ends, ended) = mpsc::channel();
        let stops = Arc::new(AtomicBool::new(false));
        let worker = CheckpointWorker {
            shards,
            runtime: Handle::current(),
            stops: stops.clone(),
            ended,
        };
        let run = move || {
            if let Err(error) = affinity::lower_priority() {
                tracing::debug!("checkpoints have no lower priority: {error}");
            }
            make(worker);
        };
        let thread = thread::Builder::new().name("checkpoint".into());
        Ok(Checkpoints {
            ends,
            stops,
            thread: thread.spawn(run)?,
        })
    }

    /// Ends the thread. A checkpoint in progress is abandoned.
    pub async fn stop(self) {
        self.stops.store(true, Relaxed);
        drop(self.ends);
        // If the thread panicked, the panic hook has already reported it.
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

/// The reason why a checkpoint was not made.
pub enum CheckpointError {
    /// The server is stopping.
    Stops,
    Other(String),
    /// The log is damaged.
    Damaged(String),
}

impl From<Unusable> for CheckpointError {
    fn from(reason: Unusable) -> CheckpointError {
        match reason {
            Unusable::Damaged(reason) => CheckpointError::Damaged(reason),
            Unusable::Unreadable(..) => CheckpointError::Other(reason.to_string()),
        }
    }
}

impl From<String> for CheckpointError {
    fn from(reason: String) -> CheckpointError {
        CheckpointError::Other(reason)
    }
}

impl From<crore_nats::Error> for CheckpointError {
    fn from(reason: crore_nats::Error) -> CheckpointError {
        CheckpointError::Other(reason.to_string())
    }
}

/// Gives the checkpoint thread access to the shards, and tells it to stop.
pub struct CheckpointWorker {
    shards: Shards,
    runtime: Handle,
    stops: Arc<AtomicBool>,
    ended: mpsc::Receiver<()>,
}

impl CheckpointWorker {
    /// Waits until the next check is due. Returns false if the thread must end.
    pub fn wait_for_next_check(&self) -> bool {
        self.ended.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout)
    }

    /// Checks that the server is not stopping.
    ///
    /// # Errors
    /// [`CheckpointError::Stops`] if the server is stopping: the checkpoint must then be abandoned.
    pub fn check_not_stopping(&self) -> Result<(), CheckpointError> {
        match self.stops.load(Relaxed) {
            true => Err(CheckpointError::Stops),
            false => Ok(()),
        }
    }

    /// Sends an order to a shard. `None` if the shard does not answer.
    pub fn ask<T: TryFrom<Report>>(&self, shard: ShardId, order: Control) -> Option<T> {
        self.runtime.block_on(self.shards.ask(shard, order)).ok()
    }

    /// Memory of the kept messages of all homes, in bytes. None if a shard does not answer.
    pub fn kept_bytes(&self) -> Option<u64> {
        let accounts = self.runtime.block_on(self.shards.accounts()).ok()?;
        Some(accounts.iter().map(|it| it.1.log_bytes as u64).sum())
    }

    /// Completes the shadow of a partition of this home: removes the messages that have expired or that the home has dropped. Then passes
    /// the blocks of the partition's document to `write`.
    pub fn complete(
        &self,
        shadow: &mut Shadow,
        home: ShardId,
        head: &Head,
        mut write: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), CheckpointError> {
        shadow.drop_expired(Now {
            s: 1,
            unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
        });
        while let Some(order) = shadow.next_floors_order(TOPICS_PER_ORDER) {
            let floors = self.floors(home, order)?;
            shadow.apply_floors(&floors);
        }
        loop {
            self.check_not_stopping()?;
            let block = shadow.save(head);
            if block.is_empty() {
                return Ok(());
            }
            write(&block)?;
        }
    }

    /// Asks a home which topics still exist, and up to which offset it has removed the messages of each. Repeats the order until the home
    /// has applied all batches that the shadow contains.
    fn floors(&self, home: ShardId, order: Control) -> Result<Vec<Option<u64>>, CheckpointError> {
        let Control::Floors(partition, offset, names) = order else {
            unreachable!("a shadow has no other questions");
        };
        for _ in 0..CATCH_UP_CHECKS_MAX {
            self.check_not_stopping()?;
            let order = Control::Floors(partition, offset, names.clone());
            if let Some(Some(floors)) = self.ask(home, order) {
                return Ok(floors);
            }
            thread::sleep(CATCH_UP_INTERVAL);
        }
        Err(format!("shard {home} does not keep up with the log").into())
    }
}
