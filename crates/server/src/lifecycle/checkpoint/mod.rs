//! Checkpoints: a thread of low priority folds the former checkpoint of a partition and the log behind it into the next one, and has what that makes
//! needless removed. So the log and a start take as much as what is kept, not as what was ever published.
//!
//! No home stands still for it: a [`Shadow`] of one partition at a time has the former checkpoint and the log behind it, and the home is asked
//! which of its topics there are still, and what they have lost. Invariants: a checkpoint counts once it is whole and kept, and only then is
//! anything removed; one that fails leaves everything as it was.
//!
//! Here is what is the same on disk (`state/checkpoint.rs`) and in a cluster (`node.rs`).

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

/// How often it is looked at whether a checkpoint is due.
const LOOK: Duration = Duration::from_secs(1);
/// The next one comes after this time when one has failed.
pub const FAILED_AGAIN: Duration = Duration::from_secs(30);
/// Topics that a home is asked about at once: some ten microseconds of its time.
const TOPICS_PER_ORDER: usize = 256;
/// How long a home may be behind the log, in looks of [`BEHIND`].
const BEHIND_MAX: u32 = 1000;
const BEHIND: Duration = Duration::from_millis(20);

/// Figures of the checkpoints of this process, for the control plane.
#[derive(Debug, Default)]
pub struct Progress {
    /// Checkpoints that were made.
    pub made: AtomicU64,
    /// When the last one was, in Unix time; 0: none yet.
    pub made_unix_s: AtomicU64,
    /// How long it took, in milliseconds.
    pub took_ms: AtomicU64,
    /// Those that failed.
    pub failed: AtomicU64,
    /// Bytes of the base on disk.
    pub base_bytes: AtomicU64,
    /// The last one failed because what it was to fold is damaged.
    pub damaged: AtomicBool,
}

impl Progress {
    /// One was made, which was begun at this moment.
    pub fn was_made(&self, began: Instant) {
        self.damaged.store(false, Relaxed);
        self.made.fetch_add(1, Relaxed);
        self.made_unix_s.store(clock::unix_s(), Relaxed);
        let took_ms = began.elapsed().as_millis() as u64;
        self.took_ms.store(took_ms, Relaxed);
    }
}

/// The server that checkpoints are made for: its settings about them, and the engine that has the log.
pub struct Server<S, E> {
    pub settings: S,
    pub engine: E,
    pub shards: Shards,
    /// The state that its shards share now.
    pub world: Box<dyn Fn() -> Arc<World> + Send>,
    /// Where the figures go.
    pub progress: Arc<Progress>,
}

/// The thread that makes checkpoints.
pub struct Checkpoints {
    /// Nothing is sent: it ends when this is dropped.
    ends: mpsc::Sender<()>,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Checkpoints {
    /// Starts it. To be called on the control thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        shards: Shards,
        make: impl FnOnce(Folding) + Send + 'static,
    ) -> std::io::Result<Checkpoints> {
        let (ends, ended) = mpsc::channel();
        let stops = Arc::new(AtomicBool::new(false));
        let folding = Folding {
            shards,
            runtime: Handle::current(),
            stops: stops.clone(),
            ended,
        };
        let run = move || {
            if let Err(error) = affinity::give_way() {
                tracing::debug!("checkpoints have no lower priority: {error}");
            }
            make(folding);
        };
        let thread = thread::Builder::new().name("checkpoint".into());
        Ok(Checkpoints {
            ends,
            stops,
            thread: thread.spawn(run)?,
        })
    }

    /// Ends it; one that is under way is given up.
    pub async fn stop(self) {
        self.stops.store(true, Relaxed);
        drop(self.ends);
        // A panic was reported by its hook.
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

/// Why there is no checkpoint.
pub enum Failed {
    /// The server stops.
    Stops,
    Why(String),
    /// The log that is to be folded is damaged.
    Damaged(String),
}

impl From<Unusable> for Failed {
    fn from(why: Unusable) -> Failed {
        match why {
            Unusable::Damaged(why) => Failed::Damaged(why),
            Unusable::Unreadable(..) => Failed::Why(why.to_string()),
        }
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Why(why)
    }
}

impl From<crore_nats::Error> for Failed {
    fn from(why: crore_nats::Error) -> Failed {
        Failed::Why(why.to_string())
    }
}

/// The thread's view of the server that it folds for.
pub struct Folding {
    shards: Shards,
    runtime: Handle,
    stops: Arc<AtomicBool>,
    ended: mpsc::Receiver<()>,
}

impl Folding {
    /// Waits until it is time to look again; false at the end.
    pub fn waits(&self) -> bool {
        self.ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout)
    }

    /// Whether the server does not stop.
    pub fn may_go_on(&self) -> Result<(), Failed> {
        match self.stops.load(Relaxed) {
            true => Err(Failed::Stops),
            false => Ok(()),
        }
    }

    /// Gives an order to a shard. None: it does not answer.
    pub fn ask<T: TryFrom<Report>>(&self, shard: ShardId, order: Control) -> Option<T> {
        self.runtime.block_on(self.shards.ask(shard, order)).ok()
    }

    /// Bytes that the kept messages of all homes take up in memory. None: a shard does not answer.
    pub fn kept_bytes(&self) -> Option<u64> {
        let accounts = self.runtime.block_on(self.shards.accounts()).ok()?;
        Some(accounts.iter().map(|it| it.1.log_bytes as u64).sum())
    }

    /// Ends the fold of a partition that has this home: what has run out is dropped, and what the home has dropped. The blocks of the document
    /// are handed to `write`.
    pub fn end(
        &self,
        shadow: &mut Shadow,
        home: ShardId,
        head: &Head,
        mut write: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), Failed> {
        shadow.settle(Now {
            s: 1,
            unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
        });
        while let Some(order) = shadow.ask(TOPICS_PER_ORDER) {
            let floors = self.floors(home, order)?;
            shadow.keep(&floors);
        }
        loop {
            self.may_go_on()?;
            let block = shadow.save(head);
            if block.is_empty() {
                return Ok(());
            }
            write(&block)?;
        }
    }

    /// Asks a home for the topics that it still has. It has perhaps not applied all that was committed.
    fn floors(&self, home: ShardId, order: Control) -> Result<Vec<Option<u64>>, Failed> {
        let Control::Floors(partition, offset, names) = order else {
            unreachable!("a shadow has no other questions");
        };
        for _ in 0..BEHIND_MAX {
            self.may_go_on()?;
            let order = Control::Floors(partition, offset, names.clone());
            if let Some(Some(floors)) = self.ask(home, order) {
                return Ok(floors);
            }
            thread::sleep(BEHIND);
        }
        Err(format!("shard {home} does not keep up with the log").into())
    }
}
