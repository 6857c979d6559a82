//! Checkpoints on disk. A checkpoint combines the last base (the snapshot that the log continues) and the sealed segments of the log into a
//! new base, partition by partition. Then it removes these segments.
//!
//! If there is no room for two bases, the documents (each a snapshot of one partition) are replaced one by one in the last base. This needs
//! room for one document, and a reserve file keeps that room ([`keep_reserve`]). So a checkpoint is possible on a disk that is full. The
//! next document of a partition is written into the reserve file. Then the reserve file takes the place of the last document, and the file
//! of the last document becomes the reserve file. The largest document is replaced first, so that the reserve file has room for each of
//! the others from then on. The name of a base tells the end of the log that the base contains. Until all documents are replaced, some of
//! them are newer than that end. A start replays the log from that end, and skips the batches that a document contains already: those with
//! offsets up to the last offset of the document's partition.
//!
//! A *shadow* is a home without clients that writes a checkpoint.

use std::cell::Cell;
use std::cmp::Reverse;
use std::mem;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crore_broker::batch::Header;
use crore_broker::snapshot::Head;
use crore_broker::totals::Total;
use crore_broker::{Now, Shadow, ShardId, World};
use crore_disk::{Directory, EngineState, FileSystem, LogEnd, Reader};
use crore_net::clock;

use super::files::{
    Base, Document, ERASED, LOG, begin, keep_reserve, publish, read_note, reserve_bytes,
    return_room_of_incomplete_base, write_note,
};
use super::index::{Index, checksum_after};
use super::load::Documents;
use super::room::{BaseShape, BaseWrite, CheckpointRoom, next_reserve, room_of_log, with_margin};
use crate::engine::Durable;
use crate::lifecycle::checkpoint::document::new_head;
use crate::lifecycle::checkpoint::{
    self, CheckpointError, CheckpointWorker, Checkpoints, RETRY_DELAY,
};
use crate::settings::state::State as Settings;

/// On a full disk, the delay after a checkpoint that found no sealed segments to replace. Also the delay after a checkpoint before one for a client that was refused
/// for its share of the disk.
const FULL_DISK_DELAY: Duration = Duration::from_secs(10);
/// Part of the base that a checkpoint should free when a client was refused for its share of the disk: the base divided by this. So a client that is refused again
/// and again makes no checkpoint that frees little. A client may hold eight times the free bytes.
const SHARE_DIVISOR: u64 = 8;
/// On a full disk, the delay before a checkpoint for which there is probably no room, or which probably frees nothing. The checkpoint is
/// attempted all the same, because both are estimates.
const NO_ROOM_DELAY: Duration = Duration::from_secs(60);
/// On a full disk a checkpoint is made at once only if it probably frees 1/64 of the base.
const WORTHWHILE_DIVISOR: u64 = 64;
/// Delay after a checkpoint that found the log damaged: an attempt soon after would find the same damage.
const DAMAGED_DELAY: Duration = Duration::from_secs(3600);
/// While the log has fewer sealed segments, its growth makes no checkpoint due.
const SEGMENTS_MIN: u64 = 2;

/// The context of a checkpoint, with the types of the disk engine.
type CheckpointContext = checkpoint::CheckpointContext<Settings, Durable>;

/// Starts the thread. Must be called on the control thread.
///
/// # Errors
/// The thread cannot be started.
pub fn start(context: CheckpointContext) -> std::io::Result<Checkpoints> {
    Checkpoints::start(context.shards.clone(), move |worker| {
        let directory = &context.settings.directory;
        let last = LastCheckpoint::load(directory);
        let shares_disk = is_on_one_disk(directory, &directory.join(LOG));
        let reserve_file = Cell::new(reserve_bytes(directory));
        CheckpointMaker {
            context,
            shares_disk,
            worker,
            last,
            is_shortage_logged: false,
            last_attempt: None,
            reserved_at: Cell::new(0),
            reserve_file,
            is_reserve_used: true,
            base_shape: None,
            has_failed: false,
        }
        .run();
    })
}

/// Whether both directories are on one file system. True if that is unknown.
fn is_on_one_disk(one: &Path, other: &Path) -> bool {
    let device = |path| std::fs::metadata(path).map(|it| it.dev());
    match (device(one), device(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => true,
    }
}

struct CheckpointMaker {
    context: CheckpointContext,
    /// Whether the log and the bases share a file system. Then the growth of the log leaves less room for bases.
    shares_disk: bool,
    worker: CheckpointWorker,
    last: LastCheckpoint,
    /// Whether it has been logged that the next checkpoint lacks room.
    is_shortage_logged: bool,
    /// Start of the last attempt.
    last_attempt: Option<Instant>,
    /// The value of `usage.written_bytes` when the reserve was last set.
    reserved_at: Cell<u64>,
    /// Bytes of the file that keeps room for the next checkpoint.
    reserve_file: Cell<u64>,
    /// Whether the reserve file may contain a replaced document.
    is_reserve_used: bool,
    /// The documents of the last base; None if they cannot be listed.
    base_shape: Option<BaseShape>,
    /// Whether the last checkpoint failed. It may have needed more room than was estimated.
    has_failed: bool,
}

/// Results of the last completed checkpoints.
struct LastCheckpoint {
    /// When the last checkpoint began that has erased all messages deleted until then. `None` if that time is not known, or is earlier than
    /// `Instant` can express: then an erasure is due.
    erased: Option<Instant>,
    /// Two sizes after the last checkpoint: the bytes of the base and the open segment, and the memory of the messages in them. None if
    /// another process wrote the base.
    size: Option<(u64, u64)>,
}

impl LastCheckpoint {
    /// Reads the time of the last erasure from the note in this directory, so that even a server that restarts often erases in time. The
    /// first start writes the note.
    fn load(directory: &Path) -> LastCheckpoint {
        let now_s = clock::unix_s();
        let before = read_note(directory, ERASED).ok().flatten();
        let erased_s = before.and_then(|text| text.parse().ok());
        if erased_s.is_none() {
            write_erased(directory, now_s);
        }
        // The wall clock may have been set back since the note was written. Then the age is unknown, and an erasure is due.
        let age_s = now_s.checked_sub(erased_s.unwrap_or(now_s));
        let erased = age_s.and_then(|s| Instant::now().checked_sub(Duration::from_secs(s)));
        LastCheckpoint { erased, size: None }
    }
}

/// Writes the note of the last erasure: messages deleted before this Unix second are no longer in the files.
fn write_erased(directory: &Path, unix_s: u64) {
    if let Err(error) = write_note(directory, ERASED, &unix_s.to_string()) {
        tracing::debug!("state.directory: {ERASED} cannot be written: {error}");
    }
}

/// The reason why a checkpoint is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The log has grown.
    Grown,
    /// Messages that were removed from memory take most bytes of the files, or have been in the files for too long.
    Garbage,
}

impl CheckpointMaker {
    fn run(mut self) {
        let stats = Arc::clone(&self.context.stats);
        let mut not_before = Instant::now();
        // The bytes written to the log, and the kept bytes, when the reserve was last set.
        let mut reserved = (0, 0);
        self.keep_reserve_file();
        let kept = self.worker.kept_bytes().unwrap_or(u64::MAX);
        self.reserve(kept, 0);
        while self.worker.wait_for_next_check() {
            let state = self.context.engine.state();
            let began = Instant::now();
            let now = (state.usage.written_bytes, self.kept_bytes());
            let is_resized = self.keep_reserve_file();
            if mem::replace(&mut reserved, now) != now || is_resized {
                self.reserve(now.1, 0);
            }
            let due = self.due(&state).filter(|_| began >= not_before);
            let Some(due) = due else {
                continue;
            };
            let room = self.room(&state);
            let directory = &self.context.settings.directory;
            let shortage = room.shortage(directory, self.shares_disk);
            if self.attempted_within(NO_ROOM_DELAY) {
                if let Some(reason) = &shortage
                    && !mem::replace(&mut self.is_shortage_logged, true)
                {
                    tracing::error!("state.directory: {reason}");
                }
                if room.is_too_small {
                    continue;
                }
            }
            self.last_attempt = Some(began);
            let began_s = clock::unix_s();
            let erases = due == Due::Garbage && self.context.engine.seal();
            let state = self.context.engine.state();
            let kept = self.worker.kept_bytes();
            reserved = (0, 0);
            let made = self.make_checkpoint(&state, &room);
            self.base_shape = None;
            self.has_failed = matches!(made, Err(CheckpointError::Other(_)));
            if made.is_err() {
                let _ = return_room_of_incomplete_base(&self.context.settings.directory);
            }
            self.reserve_file
                .set(reserve_bytes(&self.context.settings.directory));
            self.is_reserve_used |= room.base_write == BaseWrite::InPlace;
            // The reserve file is restored at once, before another program takes the room that has become free.
            self.keep_reserve_file();
            match made {
                Ok(()) => {
                    stats.count_completed(began);
                    let bytes = stats.base_bytes.load(Relaxed) + state.usage.open_bytes;
                    self.last.size = kept.map(|kept| (bytes, kept));
                    self.is_shortage_logged &= shortage.is_some();
                    if erases {
                        self.last.erased = Some(began);
                        write_erased(&self.context.settings.directory, began_s);
                    }
                    tracing::debug!(
                        bytes = stats.base_bytes.load(Relaxed),
                        took_ms = stats.took_ms.load(Relaxed),
                        "checkpoint"
                    );
                    // On a full disk, another checkpoint helps only after more messages were removed.
                    if state.usage.sealed_bytes == 0 {
                        not_before = Instant::now() + FULL_DISK_DELAY;
                    }
                    // If the open segment could not be sealed, it still has deleted messages.
                    if due == Due::Garbage && !erases {
                        not_before = Instant::now() + NO_ROOM_DELAY;
                    }
                }
                Err(CheckpointError::Stops) => return,
                Err(CheckpointError::Other(reason)) => {
                    stats.failed.fetch_add(1, Relaxed);
                    tracing::error!(
                        "state.directory: no checkpoint was made, so the log only grows: {reason}"
                    );
                    let is_next_in_place = self.room(&state).base_write == BaseWrite::InPlace;
                    not_before = match room.base_write {
                        BaseWrite::Beside if is_next_in_place => Instant::now(),
                        _ => Instant::now() + RETRY_DELAY,
                    };
                }
                Err(CheckpointError::Damaged(reason)) => {
                    stats.failed.fetch_add(1, Relaxed);
                    // The damage is logged once, because it remains until the server starts again.
                    if !stats.damaged.swap(true, Relaxed) {
                        tracing::error!(
                            "state.directory: no checkpoint was made, so the log only grows: {reason}; memory still has all messages: stop the server in \
                             order (SIGTERM), which writes them all to disk again, and check the disk; after a crash the missing messages would be lost, and clients would be told of a gap"
                        );
                    }
                    not_before = Instant::now() + DAMAGED_DELAY;
                }
            }
        }
    }

    /// Why a checkpoint is due, or None. A checkpoint rewrites all kept messages, so it should free as much as it writes. It is due when
    /// the sealed segments are as large as the base, or take half of the bytes that `bytes_max` leaves beside the base. It is also due when
    /// removed messages take as many bytes of the files as kept ones, and when a client is refused for its share of the disk although the log has much that may go.
    fn due(&self, state: &EngineState) -> Option<Due> {
        let settings = &self.context.settings;
        let base = self.context.stats.base_bytes.load(Relaxed);
        let sealed = state.usage.sealed_bytes;
        let half = (settings.bytes_max as u64).saturating_sub(base) / 2;
        let least = SEGMENTS_MIN * settings.segment_bytes();
        // On a full disk, even a checkpoint that frees little is worth its work.
        let live = self.live_bytes(state, self.kept_bytes());
        let frees = sealed > 0 || live < base - base / WORTHWHILE_DIVISOR;
        let helps = state.is_full && (frees || !self.attempted_within(NO_ROOM_DELAY));
        let refused_share = (self.context.world)().admission.take_refused_share();
        let frees_share = sealed > base / SHARE_DIVISOR && !self.attempted_within(FULL_DISK_DELAY);
        if helps || refused_share && frees_share || sealed >= base.min(half).max(least) {
            return Some(Due::Grown);
        }
        let within = Duration::from_secs(u64::from(settings.erase_within_s));
        let is_old = |erased: Instant| erased.elapsed() >= within;
        let has_garbage = |kept| {
            let live = self.live_bytes(state, kept);
            (base + sealed).saturating_sub(live) >= live.max(least)
        };
        // The shards are asked for exact values only if the sum that they publish suggests that a checkpoint is due.
        let is_worth_it =
            has_garbage(self.kept_bytes()) && self.worker.kept_bytes().is_some_and(has_garbage);
        (is_worth_it || self.last.erased.is_none_or(is_old)).then_some(Due::Garbage)
    }

    /// Whether a checkpoint was attempted within this time.
    fn attempted_within(&self, time: Duration) -> bool {
        self.last_attempt
            .is_some_and(|tried| tried.elapsed() < time)
    }

    /// Memory of the kept messages in bytes, from a sum that the shards update once a second.
    fn kept_bytes(&self) -> u64 {
        (self.context.world)()
            .admission
            .totals
            .get(Total::KeptBytes)
    }

    /// Estimates the size of a base written now, from the size of the last one. `kept` is the memory of the kept messages in bytes.
    fn live_bytes(&self, state: &EngineState, kept: u64) -> u64 {
        let base = self.context.stats.base_bytes.load(Relaxed);
        let all = base + state.usage.sealed_bytes + state.usage.open_bytes;
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

    /// Estimates the size of the next base. Until this process has written a base, the estimate is at least the size of the last base,
    /// because the sum of kept messages does not include topics and keys.
    fn needed_bytes(&self, state: &EngineState, kept: u64) -> u64 {
        let least = match self.last.size {
            Some(_) => 0,
            None => self.context.stats.base_bytes.load(Relaxed),
        };
        self.live_bytes(state, kept).max(least)
    }

    /// Reserves room on the file system for the next checkpoint. Publishes are refused before they use this room, because only a checkpoint
    /// can free space. `written` bytes of the next base are on disk already.
    fn reserve(&self, kept: u64, written: u64) {
        let state = &self.context.engine.state();
        // The sum of kept messages is up to a second old, so the bytes written since the last call count too.
        let from = self.reserved_at.replace(state.usage.written_bytes);
        let needed = self.needed_bytes(state, kept);
        let reserve = with_margin(needed) + self.context.settings.segment_bytes();
        let there = written + self.reserve_file.get();
        let (reserve, from) = match self.shares_disk {
            true => (reserve.saturating_sub(there), from),
            // The log is on another file system, so its growth does not matter.
            false => (0, u64::MAX),
        };
        self.context.engine.reserve(reserve, from);
    }

    /// Keeps room on the disk for the next document of a checkpoint: makes the reserve file larger or smaller, as far as the file system has
    /// room for that, and overwrites its content. Returns whether the size of the file may have changed.
    fn keep_reserve_file(&mut self) -> bool {
        let directory = &self.context.settings.directory;
        if self.base_shape.is_none() {
            self.base_shape = BaseShape::of(directory, (self.context.world)().partitions);
        }
        let Some(base) = &self.base_shape else {
            return false;
        };
        let wanted = with_margin(base.needed_bytes());
        let before = self.reserve_file.get();
        let free = FileSystem::of(directory).map_or(0, |it| it.free_bytes);
        let for_log = match self.shares_disk {
            true => room_of_log(self.context.settings.segment_bytes()),
            false => 0,
        };
        let bytes = next_reserve(before, wanted, free, for_log);
        if bytes == 0 || bytes == before && !self.is_reserve_used {
            return false;
        }
        match keep_reserve(directory, bytes, self.is_reserve_used) {
            Ok(()) => self.is_reserve_used = false,
            Err(error) => {
                tracing::debug!("state.directory: no reserve for the next checkpoint: {error}");
            }
        }
        self.reserve_file.set(reserve_bytes(directory));
        true
    }

    /// The room that a checkpoint would find now.
    fn room(&self, state: &EngineState) -> CheckpointRoom {
        let directory = &self.context.settings.directory;
        let free = FileSystem::of(directory).map_or(u64::MAX, |it| it.free_bytes);
        let needed = self.needed_bytes(state, self.kept_bytes());
        let (base, file) = (self.base_shape.as_ref(), self.reserve_file.get());
        CheckpointRoom::of(free, needed, self.has_failed, base, file)
    }

    /// Makes a checkpoint of all sealed segments.
    fn make_checkpoint(
        &self,
        state: &EngineState,
        room: &CheckpointRoom,
    ) -> Result<(), CheckpointError> {
        let world = (self.context.world)();
        let directory = &self.context.settings.directory;
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        let last_base = Base::all(directory).map_err(failed)?.pop();
        let last_base = last_base.ok_or_else(|| "there is no base".to_string())?;
        let documents = Documents::of(directory, last_base)?;
        let (first, checkpoint_group) = (last_base.end.0.max(1), last_base.end.1);
        let last = state.usage.last_sealed;
        let open = || {
            let opened = Directory::read_only(&directory.join(LOG));
            opened.map_err(|error| error.to_string())
        };
        let partition_of = |batch: &[u8]| match Header::read(batch) {
            Ok(header) => Ok(header.partition),
            Err(reason) => Err(format!("a batch of the log cannot be read: {reason}")),
        };
        let index = Index::new(
            &open()?,
            first,
            last,
            checkpoint_group,
            world.partitions,
            partition_of,
        )?;
        if let Some(reason) = index.damaged {
            return Err(CheckpointError::Damaged(reason));
        }
        let mut reader = Reader::new(open()?);
        let mut partitions: Vec<u16> = (0..world.partitions).collect();
        match room.base_write {
            // The largest document is replaced first, so that the file of each replaced document has room enough for the next one.
            BaseWrite::InPlace => {
                partitions.sort_by_key(|it| Reverse(last_base.document_bytes(directory, *it)))
            }
            BaseWrite::Beside => begin(directory).map_err(failed)?,
        }
        let is_in_place = room.base_write == BaseWrite::InPlace;
        // All documents of a base have the same head.
        let head = match is_in_place {
            true => *documents.head(),
            false => new_head(&world),
        };
        let shadows = Shadow::world(&world, head.epoch);
        let (mut written, mut not_replaced) = (0, None);
        for partition in partitions {
            let mut shadow = self.shadow(&shadows, &documents, partition)?;
            let mut checksum = 0;
            for place in index.of(partition) {
                self.worker.check_not_stopping()?;
                let batch = reader.read_batch(place).map_err(failed)?;
                checksum = checksum_after(checksum, batch);
                let folded =
                    Header::read(batch).and_then(|header| shadow.apply_batch(&header, batch));
                folded.map_err(|reason| reason.to_string())?;
            }
            if checksum != index.checksum(partition) {
                let reason = format!(
                    "partition {partition} of the log was read as other bytes than just before: its disk or memory is faulty"
                );
                return Err(reason.into());
            }
            let home = world.placement().home_of(partition);
            let document = match room.base_write {
                BaseWrite::InPlace => Document::begin_in_reserve(directory),
                BaseWrite::Beside => Document::begin(directory, partition),
            };
            match self.write_document(&mut shadow, home, &head, document) {
                Ok(_) if is_in_place => last_base
                    .replace_document(directory, partition)
                    .map_err(failed)?,
                Ok(bytes) => {
                    written += bytes;
                    self.reserve_file.set(reserve_bytes(directory));
                    self.reserve(self.kept_bytes(), written);
                }
                // The documents of other partitions may become smaller. Then this document has room at the next attempt.
                Err(CheckpointError::Other(reason)) if is_in_place => {
                    not_replaced = Some(reason);
                }
                Err(reason) => return Err(reason),
            }
        }
        if let Some(reason) = not_replaced {
            return Err(reason.into());
        }
        let end = LogEnd {
            segment: first.max(last + 1),
            group: index.last_group,
        };
        let base = Base::next(directory, end).map_err(failed)?;
        match room.base_write {
            BaseWrite::InPlace => last_base.rename(directory, base),
            BaseWrite::Beside => publish(directory, base, false),
        }
        .map_err(failed)?;
        let bytes = base.bytes(directory).map_err(failed)?;
        self.context.stats.base_bytes.store(bytes, Relaxed);
        self.context.engine.remove_before(end.segment, bytes);
        Ok(())
    }

    /// Completes a document, and returns its bytes.
    fn write_document(
        &self,
        shadow: &mut Shadow,
        home: ShardId,
        head: &Head,
        document: Result<Document, String>,
    ) -> Result<u64, CheckpointError> {
        let mut document = document?;
        let write = |block: &[u8]| document.block(block);
        self.worker.complete(shadow, home, head, write)?;
        Ok(document.end()?)
    }

    /// A shadow of a partition, restored from the documents of the last base.
    fn shadow(
        &self,
        world: &Arc<World>,
        documents: &Documents,
        partition: u16,
    ) -> Result<Shadow, CheckpointError> {
        self.worker.check_not_stopping()?;
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
