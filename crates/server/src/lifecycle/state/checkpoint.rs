//! Checkpoints on disk: the segments of the log that are written to no more are folded into a new base, partition by partition, and removed.

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
use crate::lifecycle::checkpoint::document::head_now;
use crate::lifecycle::checkpoint::{self, Checkpoints, FAILED_AGAIN, Failed, Folding};
use crate::settings::state::State as Settings;
use crate::shard_loop::Durable;

/// On a full disk the next one comes after this time, when the last one had nothing to fold.
const FULL_AGAIN: Duration = Duration::from_secs(10);
/// On a full disk one that seems to free nothing, or for which there seems to be no room, is tried after this time all the same: these are estimates.
const NO_ROOM_AGAIN: Duration = Duration::from_secs(60);
/// On a full disk a checkpoint is made for this part of the base.
const LITTLE_PART: u64 = 64;
/// The next base may have so much more than its estimate, and a segment: a part of it.
const RESERVE_PART: u64 = 8;
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

/// Whether both directories are on one file system, as far as they tell.
fn is_on_one_disk(one: &Path, other: &Path) -> bool {
    let device = |path| std::fs::metadata(path).map(|it| it.dev());
    match (device(one), device(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => true,
    }
}

struct Maker {
    server: Server,
    /// The log is on the file system of the bases: what it writes takes their room.
    shares_disk: bool,
    folding: Folding,
    last: Last,
    /// It was said that the file system has no room for the next one.
    lacks_room: bool,
    /// When the last one was begun.
    tried: Option<Instant>,
    /// What the log had written when the reserve was told last.
    seen: Cell<u64>,
}

/// What the last checkpoints have left.
struct Last {
    /// When the last one began that had all that was deleted before removed; none where that is before all that the clock of this machine knows.
    erased: Option<Instant>,
    /// What base and open segment had then, in bytes, and what the messages in them take up in memory; none where another process has written the base.
    size: Option<(u64, u64)>,
}

impl Last {
    /// As a note in this directory says, so that a server which is restarted again and again erases in time. The first start writes it.
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

/// Notes when what was deleted is gone.
fn note_erased(directory: &Path, unix_s: u64) {
    if let Err(error) = note(directory, ERASED, &unix_s.to_string()) {
        tracing::debug!("state.directory: {ERASED} cannot be written: {error}");
    }
}

/// Why a checkpoint is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The log has grown.
    Grown,
    /// Most of the files is of messages that have gone, or they have been there for long.
    Gone,
}

impl Maker {
    fn run(mut self) {
        let progress = Arc::clone(&self.server.progress);
        let mut not_before = Instant::now();
        // The figures that the reserve is of.
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
                    // On a full disk another one helps only when messages have gone.
                    if state.figures.sealed_bytes == 0 {
                        not_before = Instant::now() + FULL_AGAIN;
                    }
                    // The segment that is written to could not be sealed, so that what was deleted is there still.
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

    /// Whether a checkpoint is worth its work, and why. It rewrites what is kept. So it waits until the segments have as many bytes as the base, or
    /// half of what that leaves them, or until the files have as many bytes of messages that have gone: then it frees as much as it writes.
    fn due(&self, state: &State) -> Option<Due> {
        let settings = &self.server.settings;
        let base = self.server.progress.base_bytes.load(Relaxed);
        let sealed = state.figures.sealed_bytes;
        let half = (settings.bytes_max as u64).saturating_sub(base) / 2;
        let least = SEGMENTS_LEAST * settings.segment_bytes();
        // On a full disk one that frees little is worth its work too.
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
        // The shards are asked only when the sum says so.
        let is_worth_it = has_gone(self.kept()) && self.folding.kept_bytes().is_some_and(has_gone);
        (is_worth_it || self.last.erased.is_none_or(is_old)).then_some(Due::Gone)
    }

    /// Whether one was begun in the last so many seconds.
    fn tried_within(&self, time: Duration) -> bool {
        self.tried.is_some_and(|tried| tried.elapsed() < time)
    }

    /// Bytes that the kept messages take up in memory: a sum that the shards bring up to date once a second.
    fn kept(&self) -> u64 {
        (self.server.world)().admission.totals.get(Total::KeptBytes)
    }

    /// About as many bytes as a base of now would have, reckoned from what the last one has. Kept messages take up so many bytes in memory.
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

    /// About as many bytes as the next base needs. Before this process has written one, no less than the last one has: the sum of kept messages says nothing of
    /// topics and keys.
    fn needed_bytes(&self, state: &State, kept: u64) -> u64 {
        let least = match self.last.size {
            Some(_) => 0,
            None => self.server.progress.base_bytes.load(Relaxed),
        };
        self.live_bytes(state, kept).max(least)
    }

    /// Has publishes refused before the file system has no room for the next checkpoint: nothing else makes room again. So many bytes of it are
    /// written already.
    fn reserve(&self, kept: u64, written: u64) {
        let state = &self.server.engine.state();
        // The shards tell what they keep a little later: what was written since the time before counts besides.
        let from = self.seen.replace(state.figures.written);
        let needed = self.needed_bytes(state, kept);
        let reserve = needed + needed / RESERVE_PART + self.server.settings.segment_bytes();
        let (reserve, from) = match self.shares_disk {
            true => (reserve.saturating_sub(written), from),
            // Nor does what the log writes add to it.
            false => (0, u64::MAX),
        };
        self.server.engine.reserve(reserve, from);
    }

    /// Why the file system has no room for a checkpoint now, if it has none.
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
