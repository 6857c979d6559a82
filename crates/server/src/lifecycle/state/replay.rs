//! Restores the homes (the shards that keep topics) at the start. One thread for each home reads the documents of the base (the snapshot
//! that the log continues), then applies the batches of the log that follow.
//!
//! A *writer* is a process that writes to the log, under one number.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use std::{mem, thread};

use anyhow::Context as _;
use crore_broker::batch::Header;
use crore_broker::loss_detector::{LastBatch, LossDetector};
use crore_broker::{Now, PartitionId, SessionNeeds, Shard, ShardId, World};
use crore_disk::{Damage, Directory, Identity, Log, Options, ScanEvent, ScanSummary};

use super::load::{Documents, restore};
use crate::lifecycle::checkpoint::document::Unusable;
use crate::lifecycle::supervisor;

/// Batches are sent to a home in runs of about this many bytes.
const RUN_BYTES: usize = 256 << 10;
/// Maximum number of runs that are read ahead of a home.
const RUNS_AHEAD: usize = 16;
/// Time between two log lines about the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The restored homes and the log.
#[derive(Default)]
pub struct Replayed {
    /// The shards of all homes, by number.
    pub homes: Vec<Shard>,
    /// The log, ready for appends.
    pub log: Option<Log<Directory>>,
    /// Set if the log ends before the point that the documents cover. Then no position of a client can be trusted; the text says why.
    pub lost: Option<String>,
    /// Why batches are missing in the log, and the partitions that may be affected; `None` if no batch is missing.
    pub damage: Option<(String, Vec<PartitionId>)>,
    /// Whether a part of the log is damaged. The documents may contain the lost batches.
    pub is_damaged: bool,
    /// The number of restored MQTT sessions that were ended, since they are out of date.
    pub outdated_sessions: u32,
    /// The latest time of any batch, in Unix seconds.
    pub last_unix_s: u32,
}

/// The reason why nothing was restored.
pub enum ReplayError {
    /// The documents are damaged.
    Documents(String),
    /// The server cannot start.
    Start(anyhow::Error),
}

/// The log to read, if there is one.
pub struct Source<'a> {
    pub directory: &'a Path,
    pub options: Options,
    /// The identity of a new log, if there is none yet.
    pub new: Identity,
}

/// Restores the homes from the documents and the log. `has_sessions`: the MQTT sessions in them are valid, since the last server recorded all changes.
pub fn replay(
    world: &Arc<World>,
    documents: Option<&Documents>,
    source: Option<&Source<'_>>,
    has_sessions: bool,
    now: Now,
) -> Result<Replayed, ReplayError> {
    thread::scope(|scope| {
        let begin = |home: ShardId| {
            let (batches, runs) = sync_channel(RUNS_AHEAD);
            let read = move || read_home(home, documents, world, now, &runs);
            (batches, scope.spawn(read))
        };
        let (batches, threads): (Vec<_>, Vec<_>) = (0..world.homes).map(begin).unzip();
        let checkpoint_group = documents.map_or(0, |it| it.base.end.1);
        let read = source.map(|source| read_log(source, checkpoint_group, world, batches));
        let (mut homes, mut outdated_sessions) = (join(threads)?, 0);
        if documents.is_none_or(|it| !it.clean) {
            if !has_sessions {
                let all = homes.homes.iter_mut();
                outdated_sessions = all.map(|home| home.end_restored_sessions(now)).sum();
            }
            restore_needs_of_sessions(&mut homes.homes, now);
        }
        match (read, source) {
            (Some(read), Some(source)) => {
                let read = read.map_err(ReplayError::Start)?;
                let replayed = combine(homes, read, documents, source, world)?;
                Ok(Replayed {
                    outdated_sessions,
                    ..replayed
                })
            }
            _ => Ok(Replayed {
                homes: homes.homes,
                ..Replayed::default()
            }),
        }
    })
}

/// Combines the results of the homes and of the reader of the log.
fn combine(
    of_homes: RestoredHomes,
    read: ReadLog,
    documents: Option<&Documents>,
    source: &Source<'_>,
    world: &World,
) -> Result<Replayed, ReplayError> {
    let RestoredHomes {
        homes,
        last_batches,
        damaged,
        reason,
    } = of_homes;
    let ReadLog { log, found, .. } = read;
    if let (None, Some(reason)) = (documents, &reason) {
        // A batch with a valid checksum cannot be read, so the number of partitions was changed. The documents, which name the former number,
        // are lost.
        return Err(ReplayError::Start(anyhow::anyhow!(
            "partitions = {} does not go with the log in {}, whose documents are lost: {reason}; set partitions to the number that the log was \
             written with, or move the directory away to begin anew: clients with positions of before are then told a gap",
            world.partitions,
            source.directory.display()
        )));
    }
    if !found.foreign_files.is_empty() {
        tracing::warn!(
            "state.directory: {} are none of the log's files, and are left alone",
            found.foreign_files.join(", ")
        );
    }
    let (checkpoint_group, ends) = (documents.map_or(0, |it| it.base.end.1), log.end().group);
    let short = (ends < checkpoint_group).then(|| {
        format!("the log ends with group {ends}, before group {checkpoint_group} of its documents")
    });
    if found.batches > 0 || found.torn_group.is_some() {
        let torn = match found.torn_group {
            Some(_) => "; its end was being written, as in a crash",
            None => "",
        };
        tracing::info!(
            "read {} batches of messages from the log in {}{torn}",
            found.batches,
            source.directory.display()
        );
    }
    let mut touched = read.loss_detector.partitions_with_loss(last_batches);
    touched.extend(damaged.into_iter().filter(|it| *it < world.partitions));
    touched.sort_unstable();
    touched.dedup();
    let reason = read.lost.map(|it| it.to_string()).or(reason);
    Ok(Replayed {
        homes,
        log: Some(log),
        lost: short,
        damage: reason.map(|reason| (reason, touched)),
        is_damaged: !found.damages.is_empty(),
        outdated_sessions: 0,
        last_unix_s: read.last_unix_s,
    })
}

/// Tells all homes which messages the restored sessions need. The homes keep these messages.
pub(in crate::lifecycle) fn restore_needs_of_sessions(homes: &mut [Shard], now: Now) {
    let mut needs = SessionNeeds::default();
    homes
        .iter_mut()
        .for_each(|home| home.add_session_needs(&mut needs));
    for home in homes {
        home.finish_recovery(&needs, now);
    }
}

/// Waits for the threads of all homes.
fn join(
    threads: Vec<ScopedJoinHandle<'_, Result<RestoredHomes, Unusable>>>,
) -> Result<RestoredHomes, ReplayError> {
    let (mut all, mut documents) = (RestoredHomes::default(), None);
    for thread in threads {
        let read = thread.join();
        let failed = |_| Err(Unusable::Damaged("the reader failed".to_string()));
        match read.unwrap_or_else(failed) {
            Ok(home) => {
                all.homes.extend(home.homes);
                all.last_batches.extend(home.last_batches);
                all.damaged.extend(home.damaged);
                all.reason = all.reason.or(home.reason);
            }
            Err(Unusable::Damaged(reason)) => documents = documents.or(Some(reason)),
            Err(reason) => return Err(ReplayError::Start(reason.into())),
        }
    }
    match documents {
        Some(reason) => Err(ReplayError::Documents(reason)),
        None => Ok(all),
    }
}

/// The restored homes, and facts about their documents and batches.
#[derive(Default)]
struct RestoredHomes {
    /// The shards of the homes, by number.
    homes: Vec<Shard>,
    /// The last batch of each partition in the documents.
    last_batches: Vec<(PartitionId, LastBatch)>,
    /// Partitions with unreadable batches, and the reason why the first such batch is unreadable.
    damaged: Vec<PartitionId>,
    reason: Option<String>,
}

/// Restores a home: reads the documents, then applies the batches that it receives.
fn read_home(
    home: ShardId,
    documents: Option<&Documents>,
    world: &Arc<World>,
    now: Now,
    runs: &Receiver<BatchRun>,
) -> Result<RestoredHomes, Unusable> {
    let mut shard = restore(home, documents, world, now)?;
    let last_batches = shard.last_batches();
    let (mut damaged, mut reason) = (Vec::new(), None);
    for run in runs {
        for batch in run.each() {
            let header = Header::read(batch);
            let folded = header.and_then(|header| shard.apply_logged_batch(&header, batch, now));
            if let Err(error) = folded {
                damaged.extend(header.map(|header| header.partition));
                reason.get_or_insert(format!("a batch of the log cannot be read: {error}"));
            }
        }
    }
    if documents.is_none_or(|it| !it.clean) {
        shard.lose_unlogged();
    }
    Ok(RestoredHomes {
        homes: vec![shard],
        last_batches,
        damaged,
        reason,
    })
}

/// The result of reading the log.
struct ReadLog {
    log: Log<Directory>,
    found: ScanSummary,
    /// The first place where groups are missing from both the log and the documents.
    lost: Option<Damage>,
    loss_detector: LossDetector,
    last_unix_s: u32,
}

/// Reads the log and sends the batches to the homes. The documents contain the groups up to `checkpoint_group`.
fn read_log(
    source: &Source<'_>,
    checkpoint_group: u64,
    world: &World,
    homes: Vec<SyncSender<BatchRun>>,
) -> anyhow::Result<ReadLog> {
    let storage = Directory::lock(source.directory).context("state.directory")?;
    let mut runs: Vec<BatchRun> = homes.iter().map(|_| BatchRun::default()).collect();
    let (mut reported_at, mut bytes, mut last_unix_s) = (Instant::now(), 0, 0);
    let placement = world.placement();
    let (mut lost, mut damaged, mut known) = (None, None::<Damage>, checkpoint_group);
    let mut loss_detector = LossDetector::new(world.partitions);
    let each = |found: ScanEvent<'_>| {
        let (place, batch) = match found {
            ScanEvent::Batch(place, batch) => (place, batch),
            ScanEvent::Damage(damage) => {
                damaged = Some(damage);
                return;
            }
        };
        if let Some(damage) = damaged.take().filter(|_| place.group > known + 1) {
            lost.get_or_insert(damage);
            loss_detector.record_damage(damage.batches);
        }
        known = known.max(place.group);
        bytes += batch.len();
        if reported_at.elapsed() >= PROGRESS_INTERVAL {
            reported_at = Instant::now();
            let text = format!("reading the log: {} MB", bytes / 1_000_000);
            tracing::info!("{text}");
            supervisor::report_progress(&text);
        }
        // A batch whose partition is unreadable goes to the first home, which reports it.
        let header = Header::read(batch).ok();
        let partition = header.map_or(0, |it| it.partition % world.partitions);
        last_unix_s = last_unix_s.max(header.map_or(0, |it| it.unix_s));
        if place.group > checkpoint_group {
            match header.filter(|it| it.partition < world.partitions) {
                Some(it) => loss_detector.record_batch(it.partition, it.writer, it.number),
                None => loss_detector.record_damage(Some(1)),
            }
            let home = usize::from(placement.home_of(partition));
            runs[home].push(batch);
            if runs[home].bytes.len() >= RUN_BYTES {
                // A failed home reports its error itself.
                let _ = homes[home].send(mem::take(&mut runs[home]));
            }
        }
    };
    let opened = Log::open(storage, source.options, source.new, each);
    let failed = || format!("state.directory: {}", source.directory.display());
    let (log, found) = opened.with_context(failed)?;
    for (home, run) in homes.iter().zip(runs) {
        let _ = home.send(run);
    }
    if let Some(damage) = damaged {
        lost.get_or_insert(damage);
        loss_detector.record_damage(damage.batches);
    }
    Ok(ReadLog {
        log,
        found,
        lost,
        loss_detector,
        last_unix_s,
    })
}

/// Several batches of one home, in the order of the log.
#[derive(Default)]
struct BatchRun {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl BatchRun {
    fn push(&mut self, batch: &[u8]) {
        self.bytes.extend_from_slice(batch);
        self.ends.push(self.bytes.len());
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let batch = &self.bytes[from..*end];
            from = *end;
            batch
        })
    }
}
