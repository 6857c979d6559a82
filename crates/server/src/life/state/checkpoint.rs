//! Checkpoints on disk: the segments of the log that are written to no more are folded into a new base, partition by partition, and removed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crore_broker::batch::Header;
use crore_broker::{Now, Shadow, World};
use crore_disk::{Directory, End, Reader, State};

use super::files::{Base, Document, LOG, begin, discard_part, publish};
use super::index::Index;
use super::load::Documents;
use crate::life::checkpoint::document::head_now;
use crate::life::checkpoint::{self, Checkpoints, FAILED_AGAIN, Failed, Folding};
use crate::settings::state::State as Settings;
use crate::shard_loop::Durable;

/// On a full disk the next one comes after this time, when the last one had nothing to fold.
const FULL_AGAIN: Duration = Duration::from_secs(10);
/// Where the log is damaged the next one comes after this time, since bytes on a disk do not get well.
const DAMAGED_AGAIN: Duration = Duration::from_secs(3600);
/// Segments that make a checkpoint worth its work.
const SEGMENTS_LEAST: u64 = 2;

/// The server that checkpoints are made for; its settings name the directory.
type Server = checkpoint::Server<Settings, Durable>;

/// Starts the thread. To be called on the control thread.
///
/// # Errors
/// When it cannot be started.
pub fn start(server: Server) -> std::io::Result<Checkpoints> {
    Checkpoints::start(server.shards.clone(), move |folding| {
        Maker { server, folding }.run();
    })
}

struct Maker {
    server: Server,
    folding: Folding,
}

impl Maker {
    fn run(self) {
        let progress = &*self.server.progress;
        let mut not_before = Instant::now();
        while self.folding.waits() {
            let state = self.server.engine.state();
            let began = Instant::now();
            if began < not_before || !self.is_due(&state) {
                continue;
            }
            match self.make(&state) {
                Ok(()) => {
                    progress.was_made(began);
                    tracing::debug!(
                        bytes = progress.base_bytes.load(Relaxed),
                        took_ms = progress.took_ms.load(Relaxed),
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
                    let _ = discard_part(&self.server.settings.directory);
                    tracing::error!(
                        "state.directory: no checkpoint, so that the log only grows: {why}"
                    );
                    not_before = Instant::now() + FAILED_AGAIN;
                }
                Err(Failed::Damaged(why)) => {
                    progress.failed.fetch_add(1, Relaxed);
                    let _ = discard_part(&self.server.settings.directory);
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
        let directory = &self.server.settings.directory;
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
                self.folding.may_go_on()?;
                let batch = reader.batch(place).map_err(failed)?;
                let folded = Header::read(batch).and_then(|header| shadow.fold(&header, batch));
                folded.map_err(|why| why.to_string())?;
            }
            let mut document = Document::begin(directory, partition)?;
            let home = world.placement().home_of(partition);
            let write = |block: &[u8]| document.block(block);
            self.folding.end(&mut shadow, home, &head, write)?;
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
        self.server.engine.remove_before(end.segment, bytes);
        Ok(())
    }

    /// A partition as the former base has it.
    fn shadow(
        &self,
        world: &Arc<World>,
        documents: &Documents,
        partition: u16,
    ) -> Result<Shadow, Failed> {
        self.folding.may_go_on()?;
        let moment = Now {
            s: 1,
            unix_s: documents.head().unix_s,
        };
        let restored = Shadow::restored(world, partition, moment);
        let restored = documents.read(restored, world.placement(), partition)?;
        Ok(Shadow::new(restored))
    }
}

/// The bytes of the newest base in this directory.
pub fn base_bytes(directory: &Path) -> u64 {
    let newest = Base::all(directory).ok().and_then(|mut all| all.pop());
    newest
        .and_then(|base| base.bytes(directory).ok())
        .unwrap_or(0)
}
