//! Checkpoints: a thread of low priority folds the segments of the log that are written to no more into a new base, partition by partition,
//! and has them removed. So disk and start take as much as what is kept, not as what was ever published.
//!
//! No home stands still for it: a [`Shadow`] of one partition at a time has the former base and the log behind it, and the home is
//! asked which of its topics there are still, and what they have lost. Invariants: a base counts once it is whole and on disk, and only then are segments
//! removed; one that fails leaves everything as it was.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crore_broker::batch::Header;
use crore_broker::{Control, Now, Report, Shadow, ShardId, World};
use crore_disk::{Directory, End, Reader, State};
use crore_net::{affinity, clock};
use tokio::runtime::Handle;

use super::files::{Base, Document, LOG, begin, discard_part, publish};
use super::index::Index;
use super::load::{Documents, Unusable};
use super::store::head_now;
use crate::life::shards::Shards;
use crate::settings::state::State as Settings;
use crate::shard_loop::Durable;

/// How often it is looked at whether a checkpoint is due.
const LOOK: Duration = Duration::from_secs(1);
/// On a full disk the next one comes after this time, when the last one had nothing to fold.
const FULL_AGAIN: Duration = Duration::from_secs(10);
/// The next one comes after this time when one has failed; where the log is damaged after a longer one, since bytes on a disk do not get well.
const FAILED_AGAIN: Duration = Duration::from_secs(30);
const DAMAGED_AGAIN: Duration = Duration::from_secs(3600);
/// Segments that make a checkpoint worth its work.
const SEGMENTS_LEAST: u64 = 2;
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
    /// Bytes of the base.
    pub base_bytes: AtomicU64,
    /// The last one failed because what it was to fold is damaged.
    pub damaged: AtomicBool,
}

/// The thread that makes checkpoints.
pub struct Checkpoints {
    /// Nothing is sent: it ends when this is dropped.
    ends: mpsc::Sender<()>,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The server that checkpoints are made for.
pub struct Server {
    /// Its settings, which name the directory.
    pub settings: Settings,
    pub shards: Shards,
    pub durable: Durable,
    /// The state that its shards share now.
    pub world: Box<dyn Fn() -> Arc<World> + Send>,
    /// Where the figures go.
    pub progress: Arc<Progress>,
}

impl Checkpoints {
    /// Starts it. To be called on the control thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(server: Server) -> std::io::Result<Checkpoints> {
        let (ends, ended) = mpsc::channel();
        let stops = Arc::new(AtomicBool::new(false));
        let maker = Maker {
            directory: server.settings.directory.clone(),
            server,
            runtime: Handle::current(),
            stops: stops.clone(),
            ended,
        };
        let thread = thread::Builder::new().name("checkpoint".into());
        let thread = thread.spawn(move || maker.run())?;
        Ok(Checkpoints {
            ends,
            stops,
            thread,
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
enum Failed {
    /// The server stops.
    Stops,
    Why(String),
    /// The base or the log is damaged.
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

struct Maker {
    server: Server,
    directory: PathBuf,
    runtime: Handle,
    stops: Arc<AtomicBool>,
    ended: mpsc::Receiver<()>,
}

impl Maker {
    fn run(self) {
        if let Err(error) = affinity::give_way() {
            tracing::debug!("checkpoints have no lower priority: {error}");
        }
        let progress = &*self.server.progress;
        let mut not_before = Instant::now();
        while self.ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let state = self.server.durable.state();
            let began = Instant::now();
            if began < not_before || !self.is_due(&state) {
                continue;
            }
            match self.make(&state) {
                Ok(()) => {
                    progress.damaged.store(false, Relaxed);
                    progress.made.fetch_add(1, Relaxed);
                    progress.made_unix_s.store(clock::unix_s(), Relaxed);
                    let took_ms = began.elapsed().as_millis() as u64;
                    progress.took_ms.store(took_ms, Relaxed);
                    tracing::debug!(
                        bytes = progress.base_bytes.load(Relaxed),
                        took_ms,
                        "checkpoint"
                    );
                    // On a full disk another one helps only when messages have gone.
                    if state.figures.sealed_bytes == 0 {
                        not_before = Instant::now() + FULL_AGAIN;
                    }
                }
                Err(Failed::Stops) => return,
                Err(Failed::Why(why)) => {
                    progress.failed.fetch_add(1, Relaxed);
                    let _ = discard_part(&self.directory);
                    tracing::error!(
                        "state.directory: no checkpoint, so that the log only grows: {why}"
                    );
                    not_before = Instant::now() + FAILED_AGAIN;
                }
                Err(Failed::Damaged(why)) => {
                    progress.failed.fetch_add(1, Relaxed);
                    let _ = discard_part(&self.directory);
                    // Once: it stays so until the server starts again.
                    if !progress.damaged.swap(true, Relaxed) {
                        tracing::error!(
                            "state.directory: no checkpoint, so that the log only grows: {why}; what it says is in memory still: stop the server in \
                             order (SIGTERM), which writes all of it anew, and look after the disk; after a crash what is missing would be told as a gap"
                        );
                    }
                    not_before = Instant::now() + DAMAGED_AGAIN;
                }
            }
        }
    }

    /// Whether the segments are worth a checkpoint: they have as many bytes as the base, or half of what it leaves them.
    fn is_due(&self, state: &State) -> bool {
        let settings = &self.server.settings;
        let base = self.server.progress.base_bytes.load(Relaxed);
        let half = (settings.bytes_max as u64).saturating_sub(base) / 2;
        let least = SEGMENTS_LEAST * settings.segment_bytes();
        state.is_full || state.figures.sealed_bytes >= base.min(half).max(least)
    }

    /// Makes a checkpoint of all segments that are sealed.
    fn make(&self, state: &State) -> Result<(), Failed> {
        let world = (self.server.world)();
        let directory = &self.directory;
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        let former = Base::all(directory).map_err(failed)?.pop();
        let former = former.ok_or_else(|| "there is no base".to_string())?;
        let documents = Documents::of(directory, former)?;
        let (first, contained) = (former.end.0.max(1), former.end.1);
        let last = state.figures.sealed;
        let open = || {
            let opened = Directory::read_only(&directory.join(LOG));
            opened.map_err(|error| error.to_string())
        };
        let partition_of = |batch: &[u8]| match Header::read(batch) {
            Ok(header) => Ok(header.partition),
            Err(why) => Err(format!("a batch of the log cannot be read: {why}")),
        };
        let index = Index::new(
            &open()?,
            (first, last),
            contained,
            world.partitions,
            partition_of,
        )?;
        if let Some(why) = index.damaged {
            return Err(Failed::Damaged(why));
        }
        let mut reader = Reader::new(open()?);
        begin(directory).map_err(failed)?;
        let shadows = Shadow::world(&world);
        let head = head_now(&world);
        for partition in 0..world.partitions {
            let mut shadow = self.shadow(&shadows, &documents, partition)?;
            for place in index.of(partition) {
                self.may_go_on()?;
                let batch = reader.batch(place).map_err(failed)?;
                shadow.fold(batch).map_err(|why| why.to_string())?;
            }
            shadow.settle(Now {
                s: 1,
                unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
            });
            self.drop_the_dropped(&mut shadow, world.placement().home_of(partition))?;
            let mut document = Document::begin(directory, partition)?;
            loop {
                self.may_go_on()?;
                let block = shadow.save(&head);
                if block.is_empty() {
                    break;
                }
                document.block(&block)?;
            }
            document.end()?;
        }
        let end = End {
            segment: first.max(last + 1),
            group: index.last_group,
        };
        let base = Base::next(directory, end).map_err(failed)?;
        publish(directory, base, false).map_err(failed)?;
        let bytes = base.bytes(directory).map_err(failed)?;
        self.server.progress.base_bytes.store(bytes, Relaxed);
        self.server.durable.remove_before(end.segment, bytes);
        Ok(())
    }

    /// A partition as the former base has it.
    fn shadow(
        &self,
        world: &Arc<World>,
        documents: &Documents,
        partition: u16,
    ) -> Result<Shadow, Failed> {
        self.may_go_on()?;
        let moment = Now {
            s: 1,
            unix_s: documents.head().unix_s,
        };
        let restored = Shadow::restored(world, partition, moment);
        let restored = documents.read(restored, world.placement(), partition)?;
        Ok(Shadow::new(restored))
    }

    /// Drops what the home has dropped.
    fn drop_the_dropped(&self, shadow: &mut Shadow, home: ShardId) -> Result<(), Failed> {
        while let Some(order) = shadow.ask(TOPICS_PER_ORDER) {
            let floors = self.floors(home, order)?;
            shadow.keep(&floors);
        }
        Ok(())
    }

    /// Asks a home. What was committed is perhaps not applied there yet.
    fn floors(&self, home: ShardId, order: Control) -> Result<Vec<Option<u64>>, Failed> {
        let Control::Floors(partition, offset, names) = order else {
            unreachable!("a shadow has no other questions");
        };
        for _ in 0..BEHIND_MAX {
            self.may_go_on()?;
            let order = Control::Floors(partition, offset, names.clone());
            let asked = self.server.shards.ask(home, order);
            if let Ok(Report::Floors(Some(floors))) = self.runtime.block_on(asked) {
                return Ok(floors);
            }
            thread::sleep(BEHIND);
        }
        Err(format!("shard {home} does not keep up with the log").into())
    }

    fn may_go_on(&self) -> Result<(), Failed> {
        match self.stops.load(Relaxed) {
            true => Err(Failed::Stops),
            false => Ok(()),
        }
    }
}

/// The bytes of the newest base in this directory.
pub fn base_bytes(directory: &Path) -> u64 {
    let newest = Base::all(directory).ok().and_then(|mut all| all.pop());
    newest
        .and_then(|base| base.bytes(directory).ok())
        .unwrap_or(0)
}
