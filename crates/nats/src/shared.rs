//! The state that the tasks of the log share, and the health of the log.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use smart_default::SmartDefault;
use tokio::sync::Notify;

use crate::checkpoint::Checkpoint;
use crate::news::{Listening, News};

/// Errors are told no more often than this.
const TELL: Duration = Duration::from_secs(5);
/// Rights that are missing of which it is remembered what NATS said: more than a node needs.
const DENIED_MAX: usize = 32;
/// One part in so many of a stream is for what nodes write of themselves, and for batches under way: signs of life and deaths must find room when messages
/// do not, so that there is a steward that makes room.
const FOR_NOTES: u64 = 4;
/// Without news of a partition for so long it is not in use.
const STALE: Duration = Duration::from_secs(5);

/// Whether a server of NATS syncs each batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncInterval {
    /// The URL at which it was asked.
    pub url: String,
    /// The answer, or why there is none.
    pub always: Result<bool, String>,
}

impl SyncInterval {
    pub(crate) fn tell(&self) {
        let url = &self.url;
        match &self.always {
            Ok(true) => tracing::info!("cluster: NATS at {url} has sync_interval: always"),
            Ok(false) => tracing::warn!(
                "cluster: NATS at {url} does not have `sync_interval: always`: a power cut of several servers at once may lose answered messages; write it in its `jetstream` section"
            ),
            Err(why) => tracing::warn!("cluster: sync_interval of {url} was not checked: {why}"),
        }
    }
}

/// How the log is.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether there was news of each partition within five seconds.
    pub fresh: bool,
    /// Whether all that stood in the log at the start was read.
    pub caught_up: bool,
    /// Of the partitions, by number.
    pub partitions: Vec<PartitionStatus>,
    /// Batches that were appended since the start, and those that NATS refused or did not answer.
    pub appended: u64,
    /// See `appended`.
    pub append_errors: u64,
    /// How often the connection was lost.
    pub disconnects: u64,
    /// The last thing that went wrong, and how many seconds ago.
    pub last_error: Option<(String, u64)>,
    /// The finding about `sync_interval`; empty where nothing was asked.
    pub sync: Vec<SyncInterval>,
}

/// How a partition is.
#[derive(Clone, Debug, Default)]
pub struct PartitionStatus {
    /// The last sequence that was read.
    pub read: u64,
    /// The last one that NATS told of.
    pub last: u64,
    /// The first sequence of the stream.
    pub first: u64,
    /// Bytes of the stream, and how many it takes at most; 0: no limit.
    pub bytes: u64,
    /// See `bytes`.
    pub bytes_max: u64,
    /// Whether it has room for notes of nodes only.
    pub is_full: bool,
    /// Servers that keep it and are up to date, the leader included, and all of them.
    pub replicas_current: usize,
    /// See `replicas_current`.
    pub replicas: usize,
    /// The names of those that are not.
    pub away: Vec<String>,
    /// The server that leads it. Nobody does, and no server is up to date, where NATS has not answered for some seconds.
    pub leader: String,
    /// When NATS has told this.
    pub told_at: Option<Instant>,
    /// The newest checkpoint, as far as it was looked for.
    pub checkpoint: Option<Checkpoint>,
    /// Bytes that this node has read behind it, or since its own start.
    pub behind_bytes: u64,
}

/// The state of one partition.
#[derive(Default)]
pub(crate) struct Partition {
    /// Reading began behind this place.
    pub after: u64,
    /// The next sequence to come.
    pub next: AtomicU64,
    pub caught_up: AtomicBool,
    /// The milliseconds since the start at which it was heard of.
    heard_ms: AtomicU64,
    /// Bytes of batches that were read, and how many of them when the newest checkpoint was made.
    pub read_bytes: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
    /// Bytes of the stream, and of those how many it takes for messages; 0: no limit.
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    /// The last batch that these bytes contain.
    counted: AtomicU64,
    /// Told when its consumer is to be made anew.
    pub kick: Notify,
    pub told: Mutex<PartitionStatus>,
}

impl Partition {
    /// NATS tells that the stream has so many bytes up to this batch, and takes no more than `most`; 0: no limit.
    pub fn set_bytes(&self, bytes: u64, last: u64, most: u64) {
        self.bytes.store(bytes, Relaxed);
        self.counted.store(last, Relaxed);
        self.bytes_max.store(most - most / FOR_NOTES, Relaxed);
    }

    /// The batch at this place, of so many bytes, was read. A node that starts reads batches that NATS has told of already.
    pub fn was_read(&self, place: u64, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Relaxed);
        if place > self.counted.load(Relaxed) {
            self.bytes.fetch_add(bytes, Relaxed);
        }
    }

    fn is_full(&self) -> bool {
        let most = self.bytes_max.load(Relaxed);
        most > 0 && self.bytes.load(Relaxed) >= most
    }
}

/// All of it.
#[derive(SmartDefault)]
pub(crate) struct Shared {
    #[default(Instant::now())]
    began: Instant,
    connected: AtomicBool,
    epoch: AtomicU32,
    /// The newest format that this version reads.
    format: AtomicU32,
    partitions: std::sync::OnceLock<Box<[Partition]>>,
    /// A partition was full when it was looked at last.
    is_full: AtomicBool,
    pub appended: AtomicU64,
    append_errors: AtomicU64,
    disconnects: AtomicU64,
    last_error: Mutex<Option<(String, Instant)>>,
    told_at: Mutex<Option<Instant>>,
    sync: Mutex<Vec<SyncInterval>>,
    denied: Mutex<Vec<String>>,
}

impl Shared {
    /// Reading begins behind these places, one of each partition.
    pub fn begin(&self, after: &[u64]) {
        let partition = |after: &u64| Partition {
            after: *after,
            next: AtomicU64::new(after + 1),
            ..Partition::default()
        };
        let made = after.iter().map(partition).collect();
        let first = self.partitions.set(made).is_ok();
        debug_assert!(first, "it is started once");
    }

    pub fn partitions(&self) -> &[Partition] {
        self.partitions.get().map_or(&[], |all| all)
    }

    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Readers begin again when the connection is lost: the batches on their way on it may be, too.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
        if !connected {
            self.disconnects.fetch_add(1, Relaxed);
            for partition in self.partitions() {
                partition.kick.notify_one();
            }
        }
    }

    pub fn disconnects(&self) -> u64 {
        self.disconnects.load(Relaxed)
    }

    pub fn epoch(&self) -> u32 {
        self.epoch.load(Relaxed)
    }

    pub fn format(&self) -> u32 {
        self.format.load(Relaxed)
    }

    /// The epoch of the log, and the newest format that this version reads.
    pub fn begin_with(&self, epoch: u32, format: u32) {
        self.epoch.store(epoch, Relaxed);
        self.format.store(format, Relaxed);
    }

    /// These are the findings now; those that are not the same as before are told.
    pub fn set_sync(&self, found: Vec<SyncInterval>) {
        let mut sync = self.sync.lock().expect("no holder panics");
        let new = found.iter().filter(|it| !sync.contains(it));
        new.for_each(SyncInterval::tell);
        *sync = found;
    }

    /// A partition was heard of.
    pub fn heard(&self, partition: u16) {
        let ms = self.began.elapsed().as_millis() as u64;
        self.partitions()[usize::from(partition)]
            .heard_ms
            .store(ms, Relaxed);
    }

    /// Something went wrong that passes; it is told now and then.
    pub fn fail(&self, why: &str) {
        let now = Instant::now();
        *self.last_error.lock().expect("no holder panics") = Some((why.to_string(), now));
        let mut told_at = self.told_at.lock().expect("no holder panics");
        if told_at.is_none_or(|at| now - at >= TELL) {
            *told_at = Some(now);
            tracing::warn!("cluster: {why}");
        }
    }

    /// NATS says that our user lacks a right.
    pub fn deny(&self, text: String) {
        let mut denied = self.denied.lock().expect("no holder panics");
        if denied.len() < DENIED_MAX {
            denied.push(text);
        }
    }

    /// What NATS has said of rights that our user lacks.
    pub fn denied(&self) -> Vec<String> {
        self.denied.lock().expect("no holder panics").clone()
    }

    /// A batch was not taken.
    pub fn append_failed(&self, why: &str) {
        self.append_errors.fetch_add(1, Relaxed);
        self.fail(why);
    }

    /// Tells when a partition becomes full, and when none is any more.
    pub fn look_for_room(&self, news: &Listening) {
        let is_full = self.partitions().iter().any(Partition::is_full);
        if self.is_full.swap(is_full, Relaxed) != is_full {
            news.tell(News::Full(is_full));
        }
    }

    pub fn caught_up(&self) -> bool {
        self.partitions()
            .iter()
            .all(|partition| partition.caught_up.load(Relaxed))
    }

    /// Whether each partition was heard of lately.
    pub fn fresh(&self) -> bool {
        let now_ms = self.began.elapsed().as_millis() as u64;
        let is_fresh = |partition: &Partition| {
            now_ms.saturating_sub(partition.heard_ms.load(Relaxed)) < STALE.as_millis() as u64
        };
        self.partitions().iter().all(is_fresh)
    }

    pub fn status(&self) -> Status {
        let told = |partition: &Partition| {
            let mut told = partition.told.lock().expect("no holder panics").clone();
            if told.told_at.is_none_or(|at| at.elapsed() >= STALE) {
                told.replicas_current = 0;
                told.leader.clear();
            }
            PartitionStatus {
                read: partition.next.load(Relaxed).saturating_sub(1),
                is_full: partition.is_full(),
                behind_bytes: (partition.read_bytes.load(Relaxed))
                    .saturating_sub(partition.checkpoint_bytes.load(Relaxed)),
                ..told
            }
        };
        let error = self.last_error.lock().expect("no holder panics").clone();
        Status {
            connected: self.is_connected(),
            fresh: self.fresh(),
            caught_up: self.caught_up(),
            partitions: self.partitions().iter().map(told).collect(),
            appended: self.appended.load(Relaxed),
            append_errors: self.append_errors.load(Relaxed),
            disconnects: self.disconnects(),
            last_error: error.map(|(why, at)| (why, at.elapsed().as_secs())),
            sync: self.sync.lock().expect("no holder panics").clone(),
        }
    }
}
