//! The start of a node of a cluster. Before the node serves clients, it restores its homes (the shards that keep topics): from the newest
//! checkpoint of each partition, and from the log after that checkpoint.
//!
//! A node stores nothing on disk. It uses the epoch, the seed and the number of partitions of the cluster, so that a position from one node
//! is valid at all nodes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crore_broker::batch::Header;
use crore_broker::log_retention::LogExtent;
use crore_broker::{Committed, Now, PartitionId, Restored, Shard, ShardId, World};
use crore_nats::{Checkpoint, Connection, Status, Store};
use crore_net::{Sender, clock, memory};
use crore_shard_loop::Letter;

use super::checkpoint::document::Unusable;
use super::checkpoint::node;
use super::supervisor;
use crate::engine::{Engine, Listener, Member};
use crate::lifecycle::RestoredServer;
use crate::lifecycle::state::{StateIdentity, restore_needs_of_sessions};
use crate::settings::file::File;

/// The formats of a cluster, 1, 2, 3, and so on. Each is a pair: the format of batches with their records, and the format of checkpoints.
///
/// Every node writes in the cluster's format ([`crore_nats::ClusterIdentity`]), even if the node knows a newer one. So nodes of two successive
/// versions work together, and no node finds data that it cannot read. When all nodes know a newer format, the operator raises the
/// cluster's format. A node that does not know that format then ends. A version that adds a row here must be able to write the formats of both rows.
///
/// In the fourth format the nodes record MQTT sessions. A node that did not would write checkpoints without sessions, so the format says it, and not a
/// setting of each node. Nodes of this version record no sessions in the second and third format, which had such records behind a setting. All else is as
/// in the first one.
const FORMATS: [(u8, u16); 4] = [(1, 9); 4];
/// The first format in which all nodes record MQTT sessions.
const SESSIONS_FORMAT: u32 = 4;
const _: () = assert!(FORMATS[FORMATS.len() - 1].0 == crore_broker::batch::FORMAT);
const _: () = assert!(FORMATS[FORMATS.len() - 1].1 == crore_broker::snapshot::FORMAT);
/// Maximum bytes of records in a batch; a single record may be longer. `max_payload` of NATS must have room for both cases.
const BATCH_BYTES: usize = 640 << 10;
/// If this machine's clock differs from that of NATS by more seconds than this, the clock is reported as wrong.
pub const CLOCK_AHEAD_S: u32 = 60;
/// Time between two checks whether the readers have finished, and between two log lines about their progress.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Number of attempts to read a checkpoint that NATS does not deliver, and the delay before each.
const READ_ATTEMPTS_MAX: u32 = 10;
const READ_RETRY_DELAY: Duration = Duration::from_secs(2);
/// If a log is shorter than its checkpoints say in this many checks, it has lost its end. The delay is that between two checks.
const SHORT_ATTEMPTS: u32 = 10;
const SHORT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Joins the cluster, or founds it as its first node.
///
/// # Errors
/// NATS cannot be used, or a checkpoint or batch cannot be read.
pub fn join(
    file: &File,
    new_world: impl Fn(StateIdentity) -> Arc<World>,
    shards: &[Sender<Letter>],
) -> anyhow::Result<RestoredServer> {
    let (began, settings) = (Instant::now(), &file.cluster);
    tracing::info!(name = %settings.name, urls = %settings.urls.join(", "), "joining the cluster");
    if settings.replicas < 3 {
        tracing::warn!(
            "cluster.replicas = {}: the death of a server of NATS may lose answered messages, and stops this cluster; three servers and replicas = 3 survive it",
            settings.replicas
        );
    }
    let connected = crore_nats::connect(settings.nats())?;
    check_message_bytes(&connected, file.limits.message_bytes)?;
    let (identity, streams, store) = loop {
        let new = new_identity(file.partitions, settings.durable_sessions);
        let identity = connected.read_or_create_identity(new, FORMATS.len() as u32)?;
        let streams = connected.open_streams(identity)?;
        let store = connected.open_store(&streams, identity)?;
        let Some(reason) = why_gone_back(&store)? else {
            break (identity, streams, store);
        };
        tracing::error!(
            "cluster: the log has gone back: {reason}; a new epoch begins, and clients are told a gap"
        );
        connected.renew_epoch(identity.epoch)?;
    };
    let has_sessions = identity.format >= SESSIONS_FORMAT;
    if has_sessions != settings.durable_sessions {
        log_other_sessions(identity.format, &settings.name);
    }
    let world = new_world(StateIdentity {
        epoch: identity.epoch,
        seed: identity.seed,
        partitions: identity.partitions,
        has_durable_sessions: has_sessions,
    });
    if settings.history_bytes > 0 {
        // While the log is full, clients share its room for records of sessions. Their parts depend on its size.
        let history_bytes = settings.history_bytes as u64;
        world.admission.set_disk_room(u64::MAX, history_bytes);
    }
    follow_clock(&connected)?;
    let revoked = connected.open_table("revoked")?;
    let now = Now {
        s: 1,
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
    };
    let (begun, after) = read_checkpoints(&store, &world, now)?;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..world.homes).map(|_| mpsc::channel()).unzip();
    let writer = world.writer.expect("a node writes");
    let admission = world.admission.clone();
    let listener = Listener::new(
        writer,
        world.placement(),
        senders,
        shards.to_vec(),
        admission,
    );
    let member = Member {
        backlog: listener.backlog.clone(),
        invalid_messages: listener.invalid_messages.clone(),
        cluster: connected.start(streams, &after, listener)?,
        store,
        revoked,
    };
    let mut homes = VecDeque::new();
    thread::scope(|scope| {
        let begin = |(shard, batches): (Shard, mpsc::Receiver<Committed>)| {
            scope.spawn(move || replay_home(shard, now, &batches))
        };
        let threads: Vec<_> = begun.into_iter().zip(receivers).map(begin).collect();
        let progress = || progress(&member.cluster.status());
        wait_with_progress(progress, || threads.iter().all(|it| it.is_finished()));
        for thread in threads {
            let read = thread.join();
            homes.push_back(read.unwrap_or_else(|_| bail!("the reader failed"))?);
        }
        anyhow::Ok(())
    })?;
    if homes.iter().any(Shard::has_unread_sessions) {
        bail!(
            "the log of the cluster has MQTT sessions, but the cluster writes format {}, in which this version keeps none; stop all nodes, raise the format ({}), \
             and start them with this version",
            identity.format,
            command_to_raise(identity.format, &settings.name)
        );
    }
    restore_needs_of_sessions(homes.make_contiguous(), now);
    // The log has just answered. From now on this node's heartbeats in the log show whether it still answers.
    world
        .admission
        .note_heartbeat(u32::try_from(clock::counted_s()).unwrap_or(u32::MAX));
    let restore_time = began.elapsed();
    let partitions = member.cluster.status().partitions;
    let places = partitions.iter().zip(&after);
    let batches: u64 = places
        .map(|(it, after)| it.read.saturating_sub(*after))
        .sum();
    tracing::info!(
        batches,
        partitions = world.partitions,
        "read the log of the cluster in {:.1} s",
        restore_time.as_secs_f64()
    );
    Ok(RestoredServer {
        world,
        shards: homes,
        engine: Some(Engine::Nats(Box::new(member))),
        start_commit: None,
        restore_time,
    })
}

/// How the checkpoints show that the log has lost batches while no node was running; `None` if they do not show that. The answer must be the
/// same for some time, because a newly elected leader of NATS does not know the end of the log at once.
fn why_gone_back(store: &Store) -> anyhow::Result<Option<String>> {
    let mut found = None;
    for attempt in 0..SHORT_ATTEMPTS {
        if attempt > 0 {
            thread::sleep(SHORT_RETRY_DELAY);
        }
        found = store.why_gone_back()?;
        if found.is_none() {
            break;
        }
    }
    Ok(found)
}

/// The numbers of a new cluster.
fn new_identity(partitions: PartitionId, has_sessions: bool) -> crore_nats::ClusterIdentity {
    crore_nats::ClusterIdentity {
        id: memory::random_u64(),
        // 0 stands for no epoch, so the lowest bit is set.
        epoch: memory::random_u64() as u32 | 1,
        seed: memory::random_u64(),
        partitions,
        format: match has_sessions {
            true => FORMATS.len() as u32,
            false => SESSIONS_FORMAT - 1,
        },
    }
}

/// Logs that the cluster has MQTT sessions against this node's setting, or has none.
fn log_other_sessions(format: u32, name: &str) {
    if format >= SESSIONS_FORMAT {
        tracing::warn!(
            "cluster.durable_sessions = false has no effect: this cluster has MQTT sessions"
        );
        return;
    }
    let command = command_to_raise(format, name);
    tracing::warn!(
        "cluster.durable_sessions: MQTT sessions end with their connections, since the cluster writes format {format}, and sessions need format {SESSIONS_FORMAT}. \
         When all nodes have this version, raise it: {command}; all nodes then end, to be started again with sessions"
    );
}

/// The command that raises the format of a cluster of this name, so that it has sessions.
fn command_to_raise(format: u32, name: &str) -> String {
    let name = name.to_uppercase();
    format!(
        "nats kv get CRORE_{name} numbers --raw | sed 's/\"format\":{format}/\"format\":{SESSIONS_FORMAT}/' | nats kv put CRORE_{name} numbers"
    )
}

/// Makes all expiry times follow the clock of NATS, as they do at the other nodes. This machine's clock is used only to show dates.
fn follow_clock(connected: &Connection) -> anyhow::Result<()> {
    clock::resume_count(connected.unix_s()?, clock::unix_s());
    let ahead_s = clock::wall_offset_s();
    if ahead_s.unsigned_abs() > CLOCK_AHEAD_S {
        tracing::warn!(
            "the clock of this machine is {ahead_s} s ahead of that of NATS: dates in answers and logs are wrong by that, and tokens expire early or late; set it right, with NTP"
        );
    }
    Ok(())
}

fn check_message_bytes(connected: &Connection, message_bytes: usize) -> anyhow::Result<()> {
    let (needed, max) = (message_bytes + BATCH_BYTES, connected.max_payload());
    if needed <= max {
        return Ok(());
    }
    bail!(
        "limits.message_bytes = {message_bytes} needs `max_payload` of NATS to be at least {needed}, and it is {max}: raise it in the configuration of each nats-server, or lower limits.message_bytes"
    );
}

/// Reads the newest usable checkpoint of each partition. Returns the shards of the homes, and for each partition the sequence after which
/// its log must be read.
fn read_checkpoints(
    store: &Store,
    world: &Arc<World>,
    now: Now,
) -> anyhow::Result<(Vec<Shard>, Vec<u64>)> {
    let all = store.list_and_update_status()?;
    let usable: Vec<Vec<Checkpoint>> = (0..world.partitions)
        .map(|partition| node::usable(store, &all, partition))
        .collect::<anyhow::Result<_>>()?;
    let newest = usable.iter().filter_map(|it| it.first());
    let total: u64 = newest.clone().map(|it| it.bytes).sum();
    tracing::info!(
        checkpoints = newest.count(),
        bytes = total,
        "reading the checkpoints of the cluster"
    );
    let (read_bytes, usable) = (AtomicU64::new(0), &usable);
    let (mut shards, mut after) = (Vec::new(), vec![0; usize::from(world.partitions)]);
    thread::scope(|scope| {
        let begin = |home: ShardId| {
            let all = world.placement().of_home(home);
            let of_home = all.map(|it| usable[usize::from(it)].clone()).collect();
            let read = &read_bytes;
            scope.spawn(move || restore_home(home, store, of_home, world, now, read))
        };
        let threads: Vec<_> = (0..world.homes).map(begin).collect();
        let progress = || {
            let read = read_bytes.load(Relaxed) / 1_000_000;
            format!("reading checkpoints: {read} of {} MB", total / 1_000_000)
        };
        wait_with_progress(progress, || threads.iter().all(|it| it.is_finished()));
        for thread in threads {
            let begun = thread.join();
            let (shard, used) = begun.unwrap_or_else(|_| bail!("the reader failed"))?;
            shards.push(shard);
            for checkpoint in used {
                after[usize::from(checkpoint.partition)] = checkpoint.sequence;
            }
        }
        anyhow::Ok(())
    })?;
    Ok((shards, after))
}

/// Restores a home from the checkpoints of its partitions. Tries the newest checkpoint of each partition first. Also returns the
/// checkpoints that were used.
fn restore_home(
    home: ShardId,
    store: &Store,
    mut usable: Vec<Vec<Checkpoint>>,
    world: &Arc<World>,
    now: Now,
    bytes: &AtomicU64,
) -> anyhow::Result<(Shard, Vec<Checkpoint>)> {
    let mut tries = 0;
    let mut damaged = BTreeSet::new();
    'restart: loop {
        let mut restored = Restored::new(world.clone(), home, now).without_local_state();
        let mut used = Vec::new();
        for (of_partition, partition) in usable.iter_mut().zip(world.placement().of_home(home)) {
            if let Some(now) = check_log_continues(store, partition, of_partition, &damaged)? {
                *of_partition = now;
                continue 'restart;
            }
            let Some(checkpoint) = of_partition.first() else {
                continue;
            };
            match node::read(store, checkpoint, &mut restored, bytes) {
                Ok(()) => used.push(checkpoint.clone()),
                Err(Unusable::Damaged(reason)) => {
                    tracing::error!("cluster: {reason}: the previous checkpoint is used");
                    damaged.insert((partition, checkpoint.sequence));
                    of_partition.remove(0);
                    continue 'restart;
                }
                Err(reason) if tries < READ_ATTEMPTS_MAX => {
                    tries += 1;
                    tracing::warn!("cluster: {reason}; trying again");
                    thread::sleep(READ_RETRY_DELAY);
                    continue 'restart;
                }
                Err(reason) => bail!("cluster: {reason}"),
            }
        }
        let restored = restored.finish();
        let restored =
            restored.map_err(|reason| anyhow::anyhow!("cluster: a checkpoint: {reason}"))?;
        let mut shard = Shard::new(home, world.clone(), now);
        shard.adopt(restored);
        return Ok((shard, used));
    }
}

/// Checks that the log of a partition continues the newest of these checkpoints, or is complete from its beginning. If not, newer
/// checkpoints may have been stored meanwhile: returns these, without those in `damaged`. If there are none, fails, since this node would
/// lack batches that other nodes may have.
fn check_log_continues(
    store: &Store,
    partition: PartitionId,
    usable: &[Checkpoint],
    damaged: &BTreeSet<(PartitionId, u64)>,
) -> anyhow::Result<Option<Vec<Checkpoint>>> {
    let contained: Vec<u64> = usable.iter().map(|it| it.sequence).collect();
    let history = LogExtent {
        first_batch: store.first_sequence(partition)?,
        checkpoint_ends: &contained,
    };
    let Err(hole) = history.replay_after() else {
        return Ok(None);
    };
    let mut now = node::usable(store, &store.list_and_update_status()?, partition)?;
    now.retain(|it| !damaged.contains(&(partition, it.sequence)));
    if now.first().map(|it| it.sequence) > usable.first().map(|it| it.sequence) {
        return Ok(Some(now));
    }
    bail!(
        "cluster: {} This node would lack messages whose publishers got an answer, so it does not start. {}",
        node::describe_hole(hole, partition),
        node::HOLE_REMEDY
    );
}

/// Applies the log of a home until all partitions have caught up.
fn replay_home(
    mut shard: Shard,
    now: Now,
    batches: &mpsc::Receiver<Committed>,
) -> anyhow::Result<Shard> {
    for committed in batches {
        let batch = committed.batch.as_ref().expect("it is not ours yet");
        let Header {
            partition, unix_s, ..
        } = committed.header;
        let moment = Now { unix_s, ..now };
        let folded = shard.apply_logged_batch(&committed.header, batch.bytes(), moment);
        folded
            .map_err(|reason| anyhow::anyhow!("{reason}"))
            .with_context(|| format!("a batch of partition {partition} cannot be read"))?;
    }
    Ok(shard)
}

/// Waits until the readers have finished, and logs their progress.
fn wait_with_progress(progress: impl Fn() -> String, is_over: impl Fn() -> bool) {
    let mut reported_at = Instant::now();
    while !is_over() {
        thread::sleep(CHECK_INTERVAL);
        if reported_at.elapsed() >= PROGRESS_INTERVAL {
            reported_at = Instant::now();
            let text = progress();
            tracing::info!("{text}");
            supervisor::report_progress(&text);
        }
    }
}

fn progress(status: &Status) -> String {
    let sum = |of: fn(&crore_nats::PartitionStatus) -> u64| -> u64 {
        status.partitions.iter().map(of).sum()
    };
    let (read, last) = (sum(|it| it.read), sum(|it| it.last));
    let reason = match status.is_fresh {
        true => "",
        false => "; NATS does not answer for all partitions",
    };
    format!("reading the log of the cluster: {read} of {last} batches{reason}")
}
