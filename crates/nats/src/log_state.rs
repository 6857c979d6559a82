//! The state and health of the log, which all tasks of this crate share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use smart_default::SmartDefault;
use tokio::sync::Notify;

use crate::checkpoint::Checkpoint;
use crate::events::{LogEvent, SharedListener};

/// The shortest time between two logged errors.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of remembered errors about missing permissions. A node needs fewer permissions than that.
const DENIED_MAX: usize = 32;
/// One part in `FOR_NOTES` of a stream is reserved for notes of nodes and for batches in flight. With a note a node shows that it is alive,
/// or reports a death. When messages find no space, notes must still find some: without them no node would be chosen to free space.
const FOR_NOTES: u64 = 4;
/// If NATS has not reported a partition for this time, the state of the partition is unknown.
const STALE: Duration = Duration::from_secs(5);

/// Whether a NATS server syncs each batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncInterval {
    /// The URL of the server's monitoring port.
    pub url: String,
    /// Whether the server has `sync_interval: always`, or why that is unknown.
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

/// The state of the log.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether NATS reported each partition within the last five seconds.
    pub fresh: bool,
    /// Whether everything that the log had at the start was read.
    pub caught_up: bool,
    /// The state of each partition, by number.
    pub partitions: Vec<PartitionStatus>,
    /// Number of batches published since the start.
    pub appended: u64,
    /// Number of batches that could not be published or that NATS refused.
    pub append_errors: u64,
    /// How often the connection was lost.
    pub disconnects: u64,
    /// The last error, and how many seconds ago it was.
    pub last_error: Option<(String, u64)>,
    /// What each monitored server answered about `sync_interval`; empty if no monitoring ports are configured.
    pub sync: Vec<SyncInterval>,
}

/// The state of a partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionStatus {
    /// The last sequence that was read.
    pub read: u64,
    /// The last sequence of the stream.
    pub last: u64,
    /// The first sequence of the stream.
    pub first: u64,
    /// Bytes of the stream.
    pub bytes: u64,
    /// The size at which the stream accepts nothing more, in bytes; 0 means no limit.
    pub bytes_max: u64,
    /// Whether the rest of the stream is reserved for notes of nodes.
    pub is_full: bool,
    /// Number of servers that store the partition and are up to date, including the leader. 0 if NATS has not answered for some seconds.
    pub replicas_current: usize,
    /// Number of servers that store the partition.
    pub replicas: usize,
    /// The names of the servers that are not up to date.
    pub away: Vec<String>,
    /// The server that leads the partition; empty if there is none, or if NATS has not answered for some seconds.
    pub leader: String,
    /// When NATS reported the stream's state.
    pub told_at: Option<Instant>,
    /// The newest known checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Bytes of the batches read after that checkpoint. Without a checkpoint, bytes read since the start of this node.
    pub behind_bytes: u64,
}

/// The shared state of one partition.
#[derive(Default)]
pub(crate) struct Partition {
    /// The sequence after which reading began.
    pub after: u64,
    /// The next sequence to read.
    pub next: AtomicU64,
    pub caught_up: AtomicBool,
    /// Whether the stream has another batch at a sequence that was read. Nothing is read then, until all nodes begin a new epoch.
    pub has_gone_back: AtomicBool,
    /// When NATS last reported the partition or delivered a batch of it, in milliseconds since the start.
    heard_ms: AtomicU64,
    /// Bytes of all batches read.
    pub read_bytes: AtomicU64,
    /// The value of `read_bytes` when the newest checkpoint was made.
    pub checkpoint_bytes: AtomicU64,
    /// Bytes of the stream: as NATS last reported, plus what was read since.
    bytes: AtomicU64,
    /// The size from which messages are refused, because the rest is reserved for notes; 0 means no limit.
    bytes_max: AtomicU64,
    /// The last batch that `bytes` includes.
    counted: AtomicU64,
    /// Notified when a new consumer should replace the current one.
    pub restart: Notify,
    pub status: Mutex<PartitionStatus>,
}

impl Partition {
    /// Records a report of NATS: the stream has `bytes` bytes up to the batch `last`, and accepts at most `most` bytes; 0 means no limit.
    pub fn set_bytes(&self, bytes: u64, last: u64, most: u64) {
        self.bytes.store(bytes, Relaxed);
        self.counted.store(last, Relaxed);
        self.bytes_max.store(most - most / FOR_NOTES, Relaxed);
    }

    /// Counts a batch that was read. Adds its size to the stream's bytes only if the last report of NATS does not include the batch. After
    /// a start the node reads old batches, which the report includes.
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

/// The state of the log.
#[derive(SmartDefault)]
pub(crate) struct LogState {
    #[default(Instant::now())]
    began: Instant,
    connected: AtomicBool,
    epoch: AtomicU32,
    /// The newest format that this version reads.
    format: AtomicU32,
    partitions: std::sync::OnceLock<Box<[Partition]>>,
    /// Whether any partition was full when the listener was last told.
    is_full: AtomicBool,
    pub appended: AtomicU64,
    append_errors: AtomicU64,
    disconnects: AtomicU64,
    last_error: Mutex<Option<(String, Instant)>>,
    told_at: Mutex<Option<Instant>>,
    sync: Mutex<Vec<SyncInterval>>,
    denied: Mutex<Vec<String>>,
}

impl LogState {
    /// Sets the sequences after which reading begins, one for each partition.
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

    /// Records whether there is a connection. A lost connection may lose batches in flight, so all consumers are replaced then.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
        if !connected {
            self.disconnects.fetch_add(1, Relaxed);
            for partition in self.partitions() {
                partition.restart.notify_one();
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

    /// Sets the epoch of the log, and the newest format that this version reads.
    pub fn begin_with(&self, epoch: u32, format: u32) {
        self.epoch.store(epoch, Relaxed);
        self.format.store(format, Relaxed);
    }

    /// Sets what the servers answered about `sync_interval`, and logs the changes.
    pub fn set_sync(&self, found: Vec<SyncInterval>) {
        let mut sync = self.sync.lock().expect("no holder panics");
        let new = found.iter().filter(|it| !sync.contains(it));
        new.for_each(SyncInterval::tell);
        *sync = found;
    }

    /// Records that NATS reported the partition or delivered a batch of it.
    pub fn heard(&self, partition: u16) {
        let ms = self.began.elapsed().as_millis() as u64;
        self.partitions()[usize::from(partition)]
            .heard_ms
            .store(ms, Relaxed);
    }

    /// Records an error that may pass by itself. At most one such error is logged in `LOG_INTERVAL`.
    pub fn fail(&self, why: &str) {
        let now = Instant::now();
        *self.last_error.lock().expect("no holder panics") = Some((why.to_string(), now));
        let mut told_at = self.told_at.lock().expect("no holder panics");
        if told_at.is_none_or(|at| now - at >= LOG_INTERVAL) {
            *told_at = Some(now);
            tracing::warn!("cluster: {why}");
        }
    }

    /// Records an error of NATS about a missing permission.
    pub fn deny(&self, text: String) {
        let mut denied = self.denied.lock().expect("no holder panics");
        if denied.len() < DENIED_MAX {
            denied.push(text);
        }
    }

    /// The errors of NATS about missing permissions.
    pub fn denied(&self) -> Vec<String> {
        self.denied.lock().expect("no holder panics").clone()
    }

    /// Records that a batch could not be published.
    pub fn append_failed(&self, why: &str) {
        self.append_errors.fetch_add(1, Relaxed);
        self.fail(why);
    }

    /// Tells the listener when a partition becomes full, and when no partition is full any more.
    pub fn look_for_room(&self, events: &SharedListener) {
        let is_full = self.partitions().iter().any(Partition::is_full);
        if self.is_full.swap(is_full, Relaxed) != is_full {
            events.on_event(LogEvent::Full(is_full));
        }
    }

    pub fn caught_up(&self) -> bool {
        self.partitions()
            .iter()
            .all(|partition| partition.caught_up.load(Relaxed))
    }

    /// Whether each partition was heard of within `STALE`.
    pub fn fresh(&self) -> bool {
        let now_ms = self.began.elapsed().as_millis() as u64;
        let is_fresh = |partition: &Partition| {
            now_ms.saturating_sub(partition.heard_ms.load(Relaxed)) < STALE.as_millis() as u64
        };
        self.partitions().iter().all(is_fresh)
    }

    pub fn status(&self) -> Status {
        let status = |partition: &Partition| {
            let mut status = partition.status.lock().expect("no holder panics").clone();
            if status.told_at.is_none_or(|at| at.elapsed() >= STALE) {
                status.replicas_current = 0;
                status.leader.clear();
            }
            PartitionStatus {
                read: partition.next.load(Relaxed).saturating_sub(1),
                is_full: partition.is_full(),
                behind_bytes: (partition.read_bytes.load(Relaxed))
                    .saturating_sub(partition.checkpoint_bytes.load(Relaxed)),
                ..status
            }
        };
        let error = self.last_error.lock().expect("no holder panics").clone();
        Status {
            connected: self.is_connected(),
            fresh: self.fresh(),
            caught_up: self.caught_up(),
            partitions: self.partitions().iter().map(status).collect(),
            appended: self.appended.load(Relaxed),
            append_errors: self.append_errors.load(Relaxed),
            disconnects: self.disconnects(),
            last_error: error.map(|(why, at)| (why, at.elapsed().as_secs())),
            sync: self.sync.lock().expect("no holder panics").clone(),
        }
    }
}
