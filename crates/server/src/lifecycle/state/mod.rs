//! The state that outlives the process, in `state.directory`: the log of durable messages, and a *base*, the snapshot that the log
//! continues.
//!
//! A base consists of documents: snapshots of the broker's homes (the shards that keep topics), in blocks. Invariants:
//! * A complete base becomes visible by one rename, after all of its files are on disk. An incomplete base is ignored.
//! * If there is no room for another base, a checkpoint replaces each document of the base by one rename. Until all are replaced, the base
//!   keeps its name, and the log after it stays.
//! * State outside of the log (MQTT sessions, shared subscriptions) is restored only from a base that a stop has written, and only once.
//!   The next server marks the base as used before it serves a client, so that a start after a later crash does not restore old sessions.
//!   Without a log the whole base is used only once.
//! * Unusable files are moved to another directory, and that is logged.
//!
//! Words: a *gap* is the notice that messages are lost; an *epoch* is a number in each position, which changes with each start on the log.

mod checkpoint;
mod files;
mod index;
mod lives;
mod load;
mod replay;
mod room;
mod sessions;
mod store;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crore_broker::lives::Lives;
use crore_broker::{Now, PartitionId, Shard, World};
use crore_disk::{Directory, Identity, Log, Options};
use crore_net::{clock, memory};

use crate::settings::state::State;
use files::{
    RULES, prepare, read_note, release_reserve, remove_bases, return_room_of_incomplete_base, sync,
    write_note,
};
use replay::{ReplayError, Replayed, Source, replay};

pub use checkpoint::{base_bytes, start};
pub use files::{Base, LOG};
pub use load::{Documents, verify};
pub(in crate::lifecycle) use replay::restore_needs_of_sessions;
pub use store::store;

/// Checks whether a server could store its state in the directory, without changing anything.
///
/// # Errors
/// The server could not store its state. The error names the remedy.
pub fn check(state: &State) -> anyhow::Result<()> {
    state.directory().map_or(Ok(()), files::check_can_prepare)
}

/// The restored state of a server that starts.
pub struct RestoredState {
    /// The data that all shards share, with the numbers of the last server or new ones.
    pub world: Arc<World>,
    /// The shards by number, homes first. Empty without a directory.
    pub shards: VecDeque<Shard>,
    /// The log to append to, if messages are durable.
    pub log: Option<Log<Directory>>,
    /// The changes of files that complete the start; to be committed before any client is served.
    pub start_commit: Option<StartCommit>,
    /// How long restoring took.
    pub restore_time: Duration,
}

/// The numbers that identify the state and must outlive the process.
#[derive(Clone, Copy)]
pub struct StateIdentity {
    /// The epoch of the logs.
    pub epoch: u32,
    /// The seed of the hashes.
    pub seed: u64,
    /// The number of partitions of topics and sessions.
    pub partitions: PartitionId,
    /// Whether MQTT sessions are recorded in the log.
    pub has_durable_sessions: bool,
}

/// Restores the state that the last server left in the directory. If there is none, begins with an empty state and this number of
/// partitions.
///
/// # Errors
/// The directory cannot be used.
pub fn resume(
    state: &State,
    partitions: PartitionId,
    new_world: impl Fn(StateIdentity) -> Arc<World>,
) -> anyhow::Result<RestoredState> {
    let began = Instant::now();
    let new = StateIdentity {
        // 0 stands for no epoch, so the lowest bit is set.
        epoch: memory::random_u64() as u32 | 1,
        seed: memory::random_u64(),
        partitions,
        has_durable_sessions: state.has_durable_sessions(),
    };
    let Some(directory) = state.directory() else {
        return Ok(RestoredState {
            world: new_world(new),
            shards: VecDeque::new(),
            log: None,
            start_commit: None,
            restore_time: Duration::ZERO,
        });
    };
    prepare(directory)?;
    // The lock is taken before anything is changed. It is held until the process ends.
    let lock = Directory::lock(directory).context("state.directory")?;
    std::mem::forget(lock);
    // A server that was killed while it wrote a base may have used the reserve. This comes before anything else frees room.
    return_room_of_incomplete_base(directory).context("state.directory")?;
    let (mut documents, mut partitions_before) = load::newest(directory)?;
    let path = directory.join(LOG);
    let reads_log = state.is_durable() || path.exists();
    loop {
        let before = documents.as_ref().map(|it| it.head().partitions);
        let partitions = effective_partitions(partitions, before.or(partitions_before));
        let new = StateIdentity { partitions, ..new };
        let identity = identity(new, documents.as_ref(), &path)?;
        let world = new_world(identity);
        let source = reads_log.then(|| Source {
            directory: &path,
            options: Options {
                segment_bytes: state.segment_bytes(),
                bytes_max: state.bytes_max as u64,
                first_segment: documents.as_ref().map_or(0, |it| it.base.end.0).max(1),
                checkpoint_group: documents.as_ref().map_or(0, |it| it.base.end.1),
            },
            new: Identity {
                log: memory::random_u64(),
                seed: identity.seed,
            },
        });
        let now = start_time(documents.as_ref());
        let last = documents.as_ref();
        let last = last.map(|it| lives::read(directory, it)).transpose();
        let last = last.context("state.directory")?;
        let last_epoch = last
            .as_ref()
            .and_then(|it| it.as_ref().ok())
            .map(Lives::epoch);
        let has_sessions = sessions::are_recorded(directory, last_epoch)?;
        match replay(
            &world,
            documents.as_ref(),
            source.as_ref(),
            has_sessions,
            now,
        ) {
            Ok(mut replayed) => {
                let rules_changed = || unlogged_topics_lost(directory, documents.as_ref(), &world);
                replayed.lost = replayed.lost.or_else(rules_changed);
                let before =
                    last.filter(|_| documents.as_ref().is_some_and(|it| !it.voids_positions));
                let before = match before.transpose() {
                    Ok(before) => before,
                    Err(reason) => {
                        replayed.lost.get_or_insert(reason);
                        None
                    }
                };
                if let Some(documents) = documents.as_mut().filter(|it| !it.voids_positions) {
                    if let Some(lost) = &replayed.lost {
                        tracing::error!(
                            "state.directory: {lost}; all clients with positions of before are told a gap"
                        );
                        documents.voids_positions = true;
                        continue;
                    }
                    let first_offset = before.as_ref().map_or(0, Lives::first_offset);
                    begin_epochs(&mut replayed, &world, first_offset);
                }
                let base_epoch = documents.as_ref().map_or(0, |it| it.head().epoch);
                let lives = lives::begin(before, &replayed.homes, &world, base_epoch);
                let lives = Arc::new(lives);
                let mut resumed =
                    build_restored_state(directory, state, world, documents, replayed, now, lives)?;
                resumed.restore_time = began.elapsed();
                if let Some(commit) = &mut resumed.start_commit {
                    commit.last_epoch = last_epoch;
                }
                return Ok(resumed);
            }
            Err(ReplayError::Documents(reason)) => {
                let damaged = documents.take().expect("they were read");
                partitions_before = before;
                load::set_aside(directory, damaged.base, &reason)?;
            }
            Err(ReplayError::Start(error)) => return Err(error),
        }
    }
}

/// The numbers of this server. The seed is that of these documents or of this log. The epoch is always new, because each start begins a new
/// life (a new numbering) of the log.
fn identity(
    new: StateIdentity,
    documents: Option<&Documents>,
    log: &Path,
) -> anyhow::Result<StateIdentity> {
    let Some(documents) = documents else {
        let identity = match log.exists() {
            true => crore_disk::read_identity(&Directory::read_only(log)?)?,
            false => None,
        };
        let seed = identity.map_or(new.seed, |identity| identity.seed);
        return Ok(StateIdentity { seed, ..new });
    };
    Ok(StateIdentity {
        seed: documents.head().seed,
        ..new
    })
}

/// The number of partitions: that of the stored state if it is known, otherwise that of the settings.
fn effective_partitions(asked: PartitionId, before: Option<PartitionId>) -> PartitionId {
    let before = before.unwrap_or(asked);
    if before != asked {
        tracing::warn!(
            "partitions = {asked} does not apply to the state in state.directory, which was made with {before}: it keeps them"
        );
    }
    before
}

/// Begins a new epoch in the partitions that the damage may have affected, so that clients with older positions are told of a gap. `base`
/// is the first offset of the log's last life (the time since its last start).
fn begin_epochs(replayed: &mut Replayed, world: &World, base: u64) {
    let Some((reason, touched)) = &replayed.damage else {
        return;
    };
    tracing::error!(
        "state.directory: {reason}; clients with positions of before in partitions {touched:?} of {} are told a gap",
        world.partitions
    );
    let placement = world.placement();
    for partition in touched {
        replayed.homes[usize::from(placement.home_of(*partition))].begin_epoch(*partition, base);
    }
}

/// The reason to tell all clients of a gap, because topics outside of the log may have been lost unnoticed. After a crash, the topics that
/// were only in the last server's memory are lost. If the rules have changed since then and make such a topic durable now, the topic's
/// clients would not learn of the loss otherwise.
fn unlogged_topics_lost(
    directory: &Path,
    documents: Option<&Documents>,
    world: &World,
) -> Option<String> {
    let before = read_note(directory, RULES).ok()??;
    let is_lost = !documents?.clean && !before.is_empty() && before != world.rules.durability();
    let reason = "rule.durable is another one than at the last start, after which the server did not stop in order";
    is_lost.then(|| reason.to_string())
}

/// The time of the start, in the seconds counted by the server that wrote these documents.
fn start_time(documents: Option<&Documents>) -> Now {
    let wall_s = u32::try_from(clock::unix_s()).unwrap_or(u32::MAX);
    let counted = |documents: &Documents| {
        let head = documents.head();
        head.unix_s
            .saturating_add(wall_s.saturating_sub(head.wall_s))
    };
    Now {
        s: 1,
        unix_s: documents.map_or(wall_s, counted),
    }
}

/// Builds the shards and the log from the restored parts.
fn build_restored_state(
    directory: &Path,
    state: &State,
    world: Arc<World>,
    documents: Option<Documents>,
    replayed: Replayed,
    now: Now,
    lives: Arc<Lives>,
) -> anyhow::Result<RestoredState> {
    let Replayed {
        mut homes,
        log,
        lost: _,
        damage,
        is_damaged,
        outdated_sessions,
        last_unix_s,
    } = replayed;
    clock::resume_count(now.unix_s.max(last_unix_s).into(), clock::unix_s());
    if let Some(documents) = &documents {
        tracing::info!(
            "going on with what the last server left in {}",
            directory.display()
        );
        tracing::debug!(
            homes = homes.len(),
            homes_before = documents.homes(),
            partitions = world.partitions,
            "of that server"
        );
    }
    if outdated_sessions > 0 {
        tracing::warn!(
            "state.directory: {outdated_sessions} MQTT sessions have ended: the last server did not stop in order, and did not record sessions (state.durable_sessions = false, or an earlier version)"
        );
    }
    let voids_positions = documents.as_ref().is_some_and(|it| it.voids_positions);
    let mut base = documents.map(|documents| documents.base);
    let mut log = log.filter(|_| state.is_durable());
    if let Some(log) = &mut log
        && (base.is_none()
            || voids_positions
            || damage.is_some()
            || is_damaged
            || outdated_sessions > 0)
    {
        // The new base will contain what is left of the log. So no later start reads the damaged part, or the outdated sessions, again.
        log.seal();
        // The lives are written before the base, because the base belongs to the life that begins now.
        lives::write(directory, &lives, world.partitions)?;
        let written = store::write_first(directory, &world, &mut homes, log.end());
        base = Some(written.map_err(anyhow::Error::msg)?);
    }
    if let (Some(log), Some(base)) = (&mut log, &base) {
        log.set_other_bytes(base.bytes(directory)?);
        log.remove_before(base.end.0)?;
    }
    let mut shards = VecDeque::from(homes);
    shards.extend((world.homes..world.shards).map(|id| Shard::new(id, world.clone(), now)));
    for shard in &mut shards {
        shard.set_lives(&lives);
    }
    Ok(RestoredState {
        shards,
        start_commit: Some(StartCommit {
            directory: directory.to_path_buf(),
            base: base.filter(|_| log.is_some()),
            rules: world.rules.durability(),
            records_sessions: world.recovers_sessions(),
            last_epoch: None,
            lives,
            partitions: world.partitions,
        }),
        world,
        restore_time: Duration::ZERO,
        log,
    })
}

/// The changes of files that complete a start.
pub struct StartCommit {
    directory: PathBuf,
    /// The base that the log continues; none without a log.
    base: Option<Base>,
    /// The rules that decide which topics are in the log.
    rules: String,
    /// Whether the log will have records of MQTT sessions.
    records_sessions: bool,
    /// The epoch of the last server, if it is known.
    last_epoch: Option<u32>,
    lives: Arc<Lives>,
    partitions: PartitionId,
}

impl StartCommit {
    /// Marks the restored state as used. To be called when the start has succeeded, and before any client is served.
    ///
    /// # Errors
    /// A file cannot be changed or removed.
    pub fn commit(self) -> anyhow::Result<()> {
        let records_sessions = self.records_sessions && self.base.is_some();
        let epochs = sessions::Epochs {
            own: self.lives.epoch(),
            previous: self.last_epoch,
        };
        sessions::set_recorded(&self.directory, records_sessions.then_some(epochs))?;
        if self.base.is_none() && self.lives.is_first() {
            lives::remove(&self.directory)?;
        } else {
            lives::write(&self.directory, &self.lives, self.partitions)?;
        }
        match self.base {
            Some(base) => {
                // This is written before the clean mark is removed: only a clean base proves that a change of these rules has lost nothing.
                write_note(&self.directory, RULES, &self.rules)?;
                base.clear_clean_mark(&self.directory)?;
            }
            None => {
                remove_bases(&self.directory, None)?;
                release_reserve(&self.directory);
                let log = self.directory.join(LOG);
                if log.exists() {
                    fs::remove_dir_all(log)?;
                    sync(&self.directory)?;
                }
            }
        }
        Ok(())
    }
}
