//! The start: the documents of the base are read home by home, all at once, and every batch of the log behind them is applied at its home.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use std::{mem, thread};

use anyhow::Context as _;
use crore_broker::batch::Header;
use crore_broker::{Now, Shard, ShardId, World};
use crore_disk::{Damage, Directory, Found, Identity, Log, Options, Recovered};

use super::load::{Documents, restore};
use crate::life::checkpoint::document::Unusable;
use crate::life::supervisor;

/// Batches go to a home together, about so many bytes, and so many of these runs are read ahead of it.
const RUN_BYTES: usize = 256 << 10;
const RUNS_AHEAD: usize = 16;
/// How often it is told how far it is.
const TELL: Duration = Duration::from_secs(2);

/// Everything that was read.
pub struct Replayed {
    /// The shards of all homes, by number.
    pub homes: Vec<Shard>,
    /// The log, ready to go on.
    pub log: Option<Log<Directory>>,
    /// What is missing of it, if anything is.
    pub lost: Option<String>,
    /// Something in it is damaged, which the documents have perhaps.
    pub is_damaged: bool,
    /// The highest second of a batch.
    pub last_unix_s: u32,
}

/// Why nothing was read.
pub enum Failed {
    /// The documents are damaged.
    Documents(String),
    /// The server cannot start.
    Start(anyhow::Error),
}

/// The log to read.
pub struct Source<'a> {
    pub directory: &'a Path,
    pub options: Options,
    /// That of a new one.
    pub new: Identity,
}

/// Reads documents and log into the homes of this world.
pub fn replay(
    world: &Arc<World>,
    documents: Option<&Documents>,
    source: Option<&Source<'_>>,
    now: Now,
) -> Result<Replayed, Failed> {
    thread::scope(|scope| {
        let begin = |home: ShardId| {
            let (batches, come) = sync_channel(RUNS_AHEAD);
            let read = move || read_home(home, documents, world, now, &come);
            (batches, scope.spawn(read))
        };
        let (batches, threads): (Vec<_>, Vec<_>) = (0..world.homes).map(begin).unzip();
        let contained = documents.map_or(0, |it| it.base.end.1);
        let read = source.map(|source| read_log(source, contained, world, batches));
        let (homes, lost) = join(threads)?;
        let (Some(read), Some(source)) = (read, source) else {
            return Ok(Replayed {
                homes,
                log: None,
                lost,
                is_damaged: false,
                last_unix_s: 0,
            });
        };
        let Read {
            log,
            found,
            lost: groups,
            last_unix_s,
        } = read.map_err(Failed::Start)?;
        if let (None, Some(why)) = (documents, &lost) {
            // What is damaged on disk has no checksum; so this is the other number that nothing else says.
            return Err(Failed::Start(anyhow::anyhow!(
                "partitions = {} does not go with the log in {}, whose documents are lost: {why}; set partitions to the number that the log was \
                 written with, or move the directory away to begin anew: clients with positions of before are then told a gap",
                world.partitions,
                source.directory.display()
            )));
        }
        if !found.foreign.is_empty() {
            tracing::warn!(
                "state.directory: {} are none of the log's files, and are left alone",
                found.foreign.join(", ")
            );
        }
        let ends = log.end().group;
        let short = (ends < contained).then(|| {
            format!("the log ends with group {ends}, before group {contained} of its documents")
        });
        tracing::info!(
            segments = found.segments,
            batches = found.batches,
            torn = found.torn.is_some(),
            damages = found.damages.len(),
            "read the log in {}",
            source.directory.display()
        );
        Ok(Replayed {
            homes,
            log: Some(log),
            lost: groups.map(|it| it.to_string()).or(short).or(lost),
            is_damaged: !found.damages.is_empty(),
            last_unix_s,
        })
    })
}

/// Waits for the readers of all homes; returns the shards, and why batches are damaged.
fn join(
    threads: Vec<ScopedJoinHandle<'_, Result<ReadHome, Unusable>>>,
) -> Result<(Vec<Shard>, Option<String>), Failed> {
    let (mut homes, mut lost, mut damaged) = (Vec::new(), None, None);
    for thread in threads {
        let read = thread.join();
        let failed = |_| Err(Unusable::Damaged("the reader failed".to_string()));
        match read.unwrap_or_else(failed) {
            Ok((shard, why)) => {
                homes.push(shard);
                lost = lost.or(why);
            }
            Err(Unusable::Damaged(why)) => damaged = damaged.or(Some(why)),
            Err(why) => return Err(Failed::Start(why.into())),
        }
    }
    match damaged {
        Some(why) => Err(Failed::Documents(why)),
        None => Ok((homes, lost)),
    }
}

/// The shard of a home, and why batches are damaged.
type ReadHome = (Shard, Option<String>);

/// Reads what belongs to a home: its documents, then the batches that come.
fn read_home(
    home: ShardId,
    documents: Option<&Documents>,
    world: &Arc<World>,
    now: Now,
    come: &Receiver<Run>,
) -> Result<ReadHome, Unusable> {
    let mut shard = restore(home, documents, world, now)?;
    let mut damaged = None;
    for run in come {
        for batch in run.each() {
            let folded =
                Header::read(batch).and_then(|header| shard.fold(batch, header.first, now));
            if let Err(why) = folded {
                damaged.get_or_insert(format!("a batch of the log cannot be read: {why}"));
            }
        }
    }
    if documents.is_none_or(|it| !it.clean) {
        shard.lose_what_passed();
    }
    Ok((shard, damaged))
}

/// The log that was read.
struct Read {
    log: Log<Directory>,
    found: Recovered,
    /// Where groups are missing that the documents do not contain.
    lost: Option<Damage>,
    last_unix_s: u32,
}

/// `contained` is the last group that the documents contain.
fn read_log(
    source: &Source<'_>,
    contained: u64,
    world: &World,
    homes: Vec<SyncSender<Run>>,
) -> anyhow::Result<Read> {
    let storage = Directory::lock(source.directory).context("state.directory")?;
    let mut runs: Vec<Run> = homes.iter().map(|_| Run::default()).collect();
    let (mut told_at, mut bytes, mut last_unix_s) = (Instant::now(), 0, 0);
    let placement = world.placement();
    let (mut lost, mut damaged, mut known) = (None, None, contained);
    let each = |found: Found<'_>| {
        let (place, batch) = match found {
            Found::Batch(place, batch) => (place, batch),
            Found::Damage(damage) => {
                damaged = Some(damage);
                return;
            }
        };
        if place.group > known + 1 {
            lost = lost.or(damaged);
        }
        damaged = None;
        known = known.max(place.group);
        bytes += batch.len();
        if told_at.elapsed() >= TELL {
            told_at = Instant::now();
            let text = format!("reading the log: {} MB", bytes / 1_000_000);
            tracing::info!("{text}");
            supervisor::status(&text);
        }
        // One that cannot be read is told by the first home.
        let header = Header::read(batch).ok();
        let partition = header.map_or(0, |it| it.partition % world.partitions);
        last_unix_s = last_unix_s.max(header.map_or(0, |it| it.unix_s));
        if place.group > contained {
            let home = usize::from(placement.home_of(partition));
            runs[home].push(batch);
            if runs[home].bytes.len() >= RUN_BYTES {
                // A home that has failed says so itself.
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
    Ok(Read {
        log,
        found,
        lost: lost.or(damaged),
        last_unix_s,
    })
}

/// Batches of a home that stand behind each other in the log.
#[derive(Default)]
struct Run {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Run {
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
