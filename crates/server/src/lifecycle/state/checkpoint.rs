//! Checkpoints on disk: sealed segments of the log are combined with the last base into a new base, partition by partition, and removed.

use std::cell::Cell;
use std::mem;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crore_broker::batch::Header;
use crore_broker::totals::Total;
use crore_broker::{Now, Shadow, World};
use crore_disk::{Directory, End, FileSystem, Reader, State};
use crore_net::clock;

use super::files::{Base, Document, ERASED, LOG, begin, discard_part, note, note_before, publish};
use super::index::Index;
use super::load::Documents;
use crate::engine::Durable;
use crate::lifecycle::checkpoint::document::head_now;
use crate::lifecycle::checkpoint::{self, Checkpoints, FAILED_AGAIN, Failed, Folding};
use crate::settings::state::State as Settings;

/// On a full disk, the delay after a checkpoint that had no sealed segments.
const FULL_AGAIN: Duration = Duration::from_secs(10);
/// On a full disk, the delay before a checkpoint that seems to free nothing, or for which there seems to be no room. It is tried all the same, since
/// both are estimates.
const NO_ROOM_AGAIN: Duration = Duration::from_secs(60);
/// On a full disk a checkpoint is worth its work if it frees 1/64 of the base.
const LITTLE_PART: u64 = 64;
/// The next base may exceed its estimate by 1/8 and a segment.
const RESERVE_PART: u64 = 8;
/// Delay after a checkpoint that found the log damaged: another attempt soon would find the same.
const DAMAGED_AGAIN: Duration = Duration::from_secs(3600);
/// Least number of segments for which a checkpoint is worth its work.
const SEGMENTS_LEAST: u64 = 2;

/// The server, with the settings that name the directory.
type Server = checkpoint::Server<Settings, Durable>;

/// Starts the thread. Must be called on the control thread.
///
/// # Errors
/// The thread cannot be started.
pub fn start(server: Server) -> std::io::Result<Checkpoints> {
    Checkpoints::start(server.shards.clone(), move |folding| {
        let directory = &server.settings.directory;
        let last = Last::of(directory);
        let shares_disk = is_on_one_disk(directory, &directory.join(LOG));
        Maker {
            server,
            shares_disk,
            folding,
            last,
            lacks_room: false,
            tried: None,
            seen: Cell::new(0),
        }
        .run();
    })
}

/// Whether both directories are on one file system. True if that is not known.
fn is_on_one_disk(one: &Path, other: &Path) -> bool {
    let device = |path| std::fs::metadata(path).map(|it| it.dev());
    match (device(one), device(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => true,
    }
}

struct Maker {
    server: Server,
    /// The log and the bases share a file system, so that the log's growth takes their room.
    shares_disk: bool,
    folding: Folding,
    last: Last,
    /// The lack of room for the next checkpoint has been logged.
    lacks_room: bool,
    /// Start of the last attempt.
    tried: Option<Instant>,
    /// The log's written bytes when the reserve was last set.
    seen: Cell<u64>,
}

/// Results of the last checkpoints.
struct Last {
    /// Start of the last checkpoint that erased all messages deleted before it. None if that is earlier than `Instant` can express.
    erased: Option<Instant>,
    /// After the last checkpoint: bytes of base and open segment, and bytes of memory of their messages. None if another process has written the
    /// base.
    size: Option<(u64, u64)>,
}

impl Last {
    /// Reads the time of the last erasure from the note in this directory, so that a server that restarts often still erases in time. The first
    /// start writes the note.
    fn of(directory: &Path) -> Last {
        let now_s = clock::unix_s();
        let before = note_before(directory, ERASED).ok().flatten();
        let erased_s = before.and_then(|text| text.parse().ok());
        if erased_s.is_none() {
            note_erased(directory, now_s);
        }
        let age = Duration::from_secs(now_s.saturating_sub(erased_s.unwrap_or(now_s)));
        Last {
            erased: Instant::now().checked_sub(age),
            size: None,
        }
    }
}

/// Writes the note: messages deleted before this time are erased.
fn note_erased(directory: &Path, unix_s: u64) {
    if let Err(error) = note(directory, ERASED, &unix_s.to_string()) {
        tracing::debug!("state.directory: {ERASED} cannot be written: {error}");
    }
}

/// The reason why a checkpoint is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The log has grown.
    Grown,
    /// Most of the files' bytes are of removed messages, or removed messages have been in the files for too long.
    Gone,
}

impl Maker {
    fn run(mut self) {
        let progress = Arc::clone(&self.server.progress);
        let mut not_before = Instant::now();
        // The inputs of the current reserve.
        let mut reserved = (0, 0);
        let kept = self.folding.kept_bytes().unwrap_or(u64::MAX);
        self.reserve(kept, 0);
        while self.folding.waits() {
            let state = self.server.engine.state();
            let began = Instant::now();
            let now = (state.figures.written, self.kept());
            if mem::replace(&mut reserved, now) != now {
                self.reserve(now.1, 0);
            }
            let due = self.due(&state).filter(|_| began >= not_before);
            let Some(due) = due else {
                continue;
            };
            if let Some(lacks) = self.lacks_room(&state)
                && self.tried_within(NO_ROOM_AGAIN)
            {
                if !mem::replace(&mut self.lacks_room, true) {
                    tracing::error!("state.directory: {lacks}");
                }
                continue;
            }
            self.tried = Some(began);
            let began_s = clock::unix_s();
            let erases = due == Due::Gone && self.server.engine.seal();
            let state = self.server.engine.state();
            let kept = self.folding.kept_bytes();
            reserved = (0, 0);
            match self.make(&state) {
                Ok(()) => {
                    progress.was_made(began);
                    let bytes = progress.base_bytes.load(Relaxed) + state.figures.open_bytes;
                    self.last.size = kept.map(|kept| (bytes, kept));
                    self.lacks_room = false;
                    if erases {
                        self.last.erased = Some(began);
                        note_erased(&self.server.settings.directory, began_s);
                    }
                    tracing::debug!(
                        bytes = progress.base_bytes.load(Relaxed),
                        took_ms = progress.took_ms.load(Relaxed),
                        "checkpoint"
                    );
                    // On a full disk, another checkpoint helps only after messages were removed.
                    if state.figures.sealed_bytes == 0 {
                        not_before = Instant::now() + FULL_AGAIN;
                    }
                    // The open segment could not be sealed, so that it still has deleted messages.
                    if due == Due::Gone && !erases {
                        not_before = Instant::now() + NO_ROOM_AGAIN;
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
                    // Logged once: the damage stays until the server starts again.
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

    /// Whether a checkpoint is worth its work, and why. A checkpoint rewrites all that is kept, so it should free as much as it writes. It waits until
    /// the sealed segments have as many bytes as the base, or half of the bytes that the base leaves them, or until the files have as many bytes of
    /// removed messages as of kept ones.
    fn due(&self, state: &State) -> Option<Due> {
        let settings = &self.server.settings;
        let base = self.server.progress.base_bytes.load(Relaxed);
        let sealed = state.figures.sealed_bytes;
        let half = (settings.bytes_max as u64).saturating_sub(base) / 2;
        let least = SEGMENTS_LEAST * settings.segment_bytes();
        // On a full disk, a checkpoint that frees little is worth its work too.
        let live = self.live_bytes(state, self.kept());
        let frees = sealed > 0 || live < base - base / LITTLE_PART;
        let helps = state.is_full && (frees || !self.tried_within(NO_ROOM_AGAIN));
        if helps || sealed >= base.min(half).max(least) {
            return Some(Due::Grown);
        }
        let within = Duration::from_secs(u64::from(settings.erase_within_s));
        let is_old = |erased: Instant| erased.elapsed() >= within;
        let has_gone = |kept| {
            let live = self.live_bytes(state, kept);
            (base + sealed).saturating_sub(live) >= live.max(least)
        };
        // The shards are asked for exact values only if the cheap sum suggests it.
        let is_worth_it = has_gone(self.kept()) && self.folding.kept_bytes().is_some_and(has_gone);
        (is_worth_it || self.last.erased.is_none_or(is_old)).then_some(Due::Gone)
    }

    /// Whether a checkpoint was attempted within this time.
    fn tried_within(&self, time: Duration) -> bool {
        self.tried.is_some_and(|tried| tried.elapsed() < time)
    }

    /// Bytes of memory of the kept messages: a sum that the shards update once a second.
    fn kept(&self) -> u64 {
        (self.server.world)().admission.totals.get(Total::KeptBytes)
    }

    /// Estimates the size of a base made now, from the size of the last one. `kept`: bytes of memory of the kept messages.
    fn live_bytes(&self, state: &State, kept: u64) -> u64 {
        let base = self.server.progress.base_bytes.load(Relaxed);
        let all = base + state.figures.sealed_bytes + state.figures.open_bytes;
        let live = match self.last.size {
            Some((bytes, before @ 1..)) => {
                let live = u128::from(bytes) * u128::from(kept) / u128::from(before);
                u64::try_from(live).unwrap_or(u64::MAX)
            }
            Some((bytes, 0)) => bytes.saturating_add(kept),
            None => kept,
        };
        live.min(all)
    }

    /// Estimates the size of the next base. Until this process has written a base, it is at least the size of the last one, since the sum of kept
    /// messages does not include topics and keys.
    fn needed_bytes(&self, state: &State, kept: u64) -> u64 {
        let least = match self.last.size {
            Some(_) => 0,
            None => self.server.progress.base_bytes.load(Relaxed),
        };
        self.live_bytes(state, kept).max(least)
    }

    /// Reserves room on the file system for the next checkpoint: publishes are refused before that is used, since only a checkpoint makes room
    /// again. `written` bytes of the next base exist already.
    fn reserve(&self, kept: u64, written: u64) {
        let state = &self.server.engine.state();
        // The sum of kept messages is a little late, so the bytes written since the last call count too.
        let from = self.seen.replace(state.figures.written);
        let needed = self.needed_bytes(state, kept);
        let reserve = needed + needed / RESERVE_PART + self.server.settings.segment_bytes();
        let (reserve, from) = match self.shares_disk {
            true => (reserve.saturating_sub(written), from),
            // On a file system of its own, the log's growth does not matter.
            false => (0, u64::MAX),
        };
        self.server.engine.reserve(reserve, from);
    }

    /// The text of the error, if the file system has no room for a checkpoint now.
    fn lacks_room(&self, state: &State) -> Option<String> {
        let free = FileSystem::of(&self.server.settings.directory)
            .ok()?
            .free_bytes;
        let needed = self.needed_bytes(state, self.kept());
        (free < needed).then(|| {
            format!(
                "the file system has {} MiB free, and the next checkpoint needs about {} MiB: publishes are refused until messages were deleted or have expired, or \
                 the file system has more room",
                free >> 20,
                (needed >> 20) + 1
            )
        })
    }

    /// Makes a checkpoint of all sealed segments.
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
            first,
            last,
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
        let mut written = 0;
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
            written += document.end()?;
            self.reserve(self.kept(), written);
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

    /// A shadow of a partition, restored from the last base.
    fn shadow(
        &self,
        world: &Arc<World>,
        documents: &Documents,
        partition: u16,
    ) -> Result<Shadow, Failed> {
        self.folding.may_go_on()?;
        let now = Now {
            s: 1,
            unix_s: documents.head().unix_s,
        };
        let restored = Shadow::restored(world, partition, now);
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
