//! The start of a node of a cluster: it reads the whole log of the cluster into its homes before anybody is served, and takes part from then on.
//!
//! A node keeps nothing on disk. Its numbers (epoch, seed, partitions) are those of the cluster, so that a position of one node is one at each.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crore_broker::{Now, PartitionId, Shard, ShardId, World};
use crore_nats::{Connected, Status};
use crore_net::{Sender, clock, memory};

use super::supervisor;
use crate::life::state::Numbers;
use crate::settings::cluster::Cluster;
use crate::shard_loop::{Letter, Listener, Member, Told};

/// The format of the batches that this version writes. A node that reads up to this one refuses a cluster with a newer one.
const FORMAT: u32 = 1;
/// A batch has records for so many bytes, and at most one longer one: `max_payload` of NATS must have room for both.
const BATCH_BYTES: usize = 640 << 10;
/// How often it is looked how far the log is read, and how often it is told.
const LOOK: Duration = Duration::from_millis(100);
const TELL: Duration = Duration::from_secs(2);

/// A node that has read the log.
pub struct Joined {
    /// The world of the cluster.
    pub world: Arc<World>,
    /// The shards of the homes, by number.
    pub homes: VecDeque<Shard>,
    /// The log that goes on.
    pub member: Member,
    /// How long it took.
    pub took: Duration,
}

/// Joins the cluster, as its first node or as one more. `message_bytes` is the longest message that a client may publish.
///
/// # Errors
/// When NATS cannot be used, or a batch of the log cannot be read.
pub fn join(
    settings: &Cluster,
    partitions: PartitionId,
    message_bytes: usize,
    new_world: impl Fn(Numbers) -> Arc<World>,
    shards: &[Sender<Letter>],
) -> anyhow::Result<Joined> {
    let began = Instant::now();
    tracing::info!(name = %settings.name, urls = %settings.urls.join(", "), "joining the cluster");
    if settings.replicas < 3 {
        tracing::warn!(
            "cluster.replicas = {}: the death of a server of NATS may lose answered messages, and stops this cluster; three servers and replicas = 3 survive it",
            settings.replicas
        );
    }
    let connected = crore_nats::connect(settings.nats())?;
    check_message_bytes(&connected, message_bytes)?;
    let numbers = connected.numbers(crore_nats::Numbers {
        id: memory::random_u64(),
        // An epoch of nought would look like none.
        epoch: memory::random_u64() as u32 | 1,
        seed: memory::random_u64(),
        partitions,
        format: FORMAT,
    })?;
    let world = new_world(Numbers {
        epoch: numbers.epoch,
        seed: numbers.seed,
        partitions: numbers.partitions,
    });
    let streams = connected.streams(numbers)?;
    let (readers, come): (Vec<_>, Vec<_>) = (0..world.homes).map(|_| mpsc::channel()).unzip();
    let writer = world.writer.expect("a node writes");
    let listener = Listener::new(writer, world.placement(), readers, shards.to_vec());
    let backlog = listener.backlog();
    let member = Member::new(connected.start(streams, listener)?, backlog);
    let now = Now {
        s: 1,
        unix_s: u32::try_from(clock::unix_s()).unwrap_or(u32::MAX),
    };
    let mut homes = VecDeque::new();
    thread::scope(|scope| {
        let begin = |(home, told): (ShardId, mpsc::Receiver<Told>)| {
            let world = world.clone();
            scope.spawn(move || read_home(home, world, now, &told))
        };
        let threads: Vec<_> = (0..).zip(come).map(begin).collect();
        await_end(&member, || threads.iter().all(|it| it.is_finished()));
        for thread in threads {
            let read = thread.join();
            homes.push_back(read.unwrap_or_else(|_| bail!("the reader failed"))?);
        }
        anyhow::Ok(())
    })?;
    // The log was heard of right now; its signs of life come from here on.
    world
        .admission
        .beats(u32::try_from(clock::counted_s()).unwrap_or(u32::MAX));
    let took = began.elapsed();
    let batches: u64 = member.status().partitions.iter().map(|it| it.read).sum();
    tracing::info!(
        batches,
        partitions = world.partitions,
        "read the log of the cluster in {:.1} s",
        took.as_secs_f64()
    );
    Ok(Joined {
        world,
        homes,
        member,
        took,
    })
}

fn check_message_bytes(connected: &Connected, message_bytes: usize) -> anyhow::Result<()> {
    let (needed, max) = (message_bytes + BATCH_BYTES, connected.max_payload());
    if needed <= max {
        return Ok(());
    }
    bail!(
        "limits.message_bytes = {message_bytes} needs `max_payload` of NATS to be at least {needed}, and it is {max}: raise it in the configuration of each nats-server, or lower limits.message_bytes"
    );
}

/// Reads what belongs to a home, until all partitions are at their end.
fn read_home(
    home: ShardId,
    world: Arc<World>,
    now: Now,
    told: &mpsc::Receiver<Told>,
) -> anyhow::Result<Shard> {
    let mut shard = Shard::new(home, world, now);
    for told in told {
        match told {
            Told::Committed(committed) => {
                let batch = committed.batch.as_ref().expect("it is not ours yet");
                let moment = Now {
                    unix_s: committed.unix_s,
                    ..now
                };
                let folded = shard.fold(batch.bytes(), committed.first, moment);
                folded
                    .map_err(|why| anyhow::anyhow!("{why}"))
                    .with_context(|| {
                        format!(
                            "a batch of partition {} cannot be read",
                            committed.partition
                        )
                    })?;
            }
            Told::Lost(partition, until) => shard.lose(partition, until),
        }
    }
    Ok(shard)
}

/// Waits for the readers, and tells how far they are.
fn await_end(member: &Member, is_over: impl Fn() -> bool) {
    let mut told_at = Instant::now();
    while !is_over() {
        thread::sleep(LOOK);
        if told_at.elapsed() >= TELL {
            told_at = Instant::now();
            let text = progress(&member.status());
            tracing::info!("{text}");
            supervisor::status(&text);
        }
    }
}

fn progress(status: &Status) -> String {
    let sum = |of: fn(&crore_nats::PartitionStatus) -> u64| -> u64 {
        status.partitions.iter().map(of).sum()
    };
    let (read, last) = (sum(|it| it.read), sum(|it| it.last));
    let why = match status.fresh {
        true => "",
        false => "; NATS does not answer for all partitions",
    };
    format!("reading the log of the cluster: {read} of {last} batches{why}")
}
