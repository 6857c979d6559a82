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
const DENIALS_MAX: usize = 32;
/// One part in `NOTES_DIVISOR` of a stream is reserved for notes of nodes and for batches in flight. With notes, nodes show that they are alive and report
/// deaths of other nodes. Notes must find space when messages find none: without notes no node would be chosen to free space.
const NOTES_DIVISOR: u64 = 4;
/// If NATS has not reported a partition for this time, the state of the partition is unknown.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// Whether a NATS server syncs each batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncInterval {
    /// The URL of the server's monitoring port.
    pub url: String,
    /// Whether the server has `sync_interval: always`, or why that is unknown.
    pub is_always: Result<bool, String>,
}

impl SyncInterval {
    pub(crate) fn log(&self) {
        let url = &self.url;
        match &self.is_always {
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
    pub is_connected: bool,
    /// Whether NATS reported each partition within the last five seconds.
    pub is_fresh: bool,
    /// Whether everything that the log had at the start was read.
    pub has_caught_up: bool,
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
    pub sync_intervals: Vec<SyncInterval>,
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
    /// Whether messages are refused, because the rest of the stream is reserved for notes of nodes.
    pub is_full: bool,
    /// Number of servers that store the partition and are up to date, including the leader. 0 if NATS has not answered for some seconds.
    pub replicas_current: usize,
    /// Number of servers that store the partition.
    pub replicas: usize,
    /// The names of the servers that are not up to date.
    pub outdated_replicas: Vec<String>,
    /// The server that leads the partition; empty if there is none, or if NATS has not answered for some seconds.
    pub leader: String,
    /// When NATS reported the stream's state.
    pub reported_at: Option<Instant>,
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
    pub has_caught_up: AtomicBool,
    /// Whether the stream has another batch at a sequence that was already read. If so, nothing more is read until all nodes begin a new epoch.
    pub has_gone_back: AtomicBool,
    /// When NATS last reported the partition or delivered a batch of it, in milliseconds since the start.
    contact_ms: AtomicU64,
    /// Bytes of all batches read.
    pub read_bytes: AtomicU64,
    /// The value of `read_bytes` when the newest checkpoint was made.
    pub checkpoint_bytes: AtomicU64,
    /// Bytes of the stream: as NATS last reported, plus what was read since.
    bytes: AtomicU64,
    /// The size from which messages are refused, because the rest is reserved for notes; 0 means no limit.
    bytes_max: AtomicU64,
    /// The last batch that `bytes` includes.
    counted_sequence: AtomicU64,
    /// Notified when a new consumer should replace the current one.
    pub restart: Notify,
    pub status: Mutex<PartitionStatus>,
}

impl Partition {
    /// Records a report of NATS: the stream has `bytes` bytes up to the batch `last`, and accepts at most `bytes_max` bytes; 0 means no
    /// limit.
    pub fn set_bytes(&self, bytes: u64, last: u64, bytes_max: u64) {
        self.bytes.store(bytes, Relaxed);
        self.counted_sequence.store(last, Relaxed);
        self.bytes_max
            .store(bytes_max - bytes_max / NOTES_DIVISOR, Relaxed);
    }

    /// Counts a batch that was read. Adds its size to the stream's bytes only if the last report of NATS does not include the batch. After
    /// a start the node reads old batches, which the report includes.
    pub fn count_read(&self, sequence: u64, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Relaxed);
        if sequence > self.counted_sequence.load(Relaxed) {
            self.bytes.fetch_add(bytes, Relaxed);
        }
    }

    fn is_full(&self) -> bool {
        let bytes_max = self.bytes_max.load(Relaxed);
        bytes_max > 0 && self.bytes.load(Relaxed) >= bytes_max
    }
}

/// The state of the log.
#[derive(SmartDefault)]
pub(crate) struct LogState {
    #[default(Instant::now())]
    start: Instant,
    is_connected: AtomicBool,
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
    logged_at: Mutex<Option<Instant>>,
    sync_intervals: Mutex<Vec<SyncInterval>>,
    denials: Mutex<Vec<String>>,
}

impl LogState {
    /// Sets the sequences after which reading begins, one for each partition.
    pub fn set_start(&self, after: &[u64]) {
        let partition = |after: &u64| Partition {
            after: *after,
            next: AtomicU64::new(after + 1),
            ..Partition::default()
        };
        let partitions = after.iter().map(partition).collect();
        let is_first_call = self.partitions.set(partitions).is_ok();
        debug_assert!(is_first_call, "the log is started once");
    }

    pub fn partitions(&self) -> &[Partition] {
        self.partitions.get().map_or(&[], |partitions| partitions)
    }

    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Relaxed)
    }

    /// Records whether there is a connection. A lost connection may lose batches in flight, so all consumers are replaced then.
    pub fn set_connected(&self, connected: bool) {
        self.is_connected.store(connected, Relaxed);
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

    /// Sets the epoch of the log, and the format in which this node writes.
    pub fn set_epoch_and_format(&self, epoch: u32, format: u32) {
        self.epoch.store(epoch, Relaxed);
        self.format.store(format, Relaxed);
    }

    /// Sets what the servers answered about `sync_interval`, and logs the changes.
    pub fn set_sync_intervals(&self, reported: Vec<SyncInterval>) {
        let mut known = self.sync_intervals.lock().expect("no holder panics");
        let changed = reported.iter().filter(|it| !known.contains(it));
        changed.for_each(SyncInterval::log);
        *known = reported;
    }

    /// Records that NATS reported the partition or delivered a batch of it.
    pub fn record_contact(&self, partition: u16) {
        let ms = self.start.elapsed().as_millis() as u64;
        self.partitions()[usize::from(partition)]
            .contact_ms
            .store(ms, Relaxed);
    }

    /// Records an error that may pass by itself. At most one such error is logged in `LOG_INTERVAL`.
    pub fn record_error(&self, why: &str) {
        let now = Instant::now();
        *self.last_error.lock().expect("no holder panics") = Some((why.to_string(), now));
        let mut logged_at = self.logged_at.lock().expect("no holder panics");
        if logged_at.is_none_or(|at| now - at >= LOG_INTERVAL) {
            *logged_at = Some(now);
            tracing::warn!("cluster: {why}");
        }
    }

    /// Records an error of NATS about a missing permission.
    pub fn record_denial(&self, text: String) {
        let mut denials = self.denials.lock().expect("no holder panics");
        if denials.len() < DENIALS_MAX {
            denials.push(text);
        }
    }

    /// The errors of NATS about missing permissions.
    pub fn denials(&self) -> Vec<String> {
        self.denials.lock().expect("no holder panics").clone()
    }

    /// Records that a batch could not be published.
    pub fn record_append_error(&self, why: &str) {
        self.append_errors.fetch_add(1, Relaxed);
        self.record_error(why);
    }

    /// Tells the listener when a partition becomes full, and when no partition is full any more.
    pub fn report_fullness(&self, events: &SharedListener) {
        let is_full = self.partitions().iter().any(Partition::is_full);
        if self.is_full.swap(is_full, Relaxed) != is_full {
            events.on_event(LogEvent::Full(is_full));
        }
    }

    pub fn has_caught_up(&self) -> bool {
        self.partitions()
            .iter()
            .all(|partition| partition.has_caught_up.load(Relaxed))
    }

    /// Whether NATS reported or delivered something of each partition within `STALE_AFTER`.
    pub fn is_fresh(&self) -> bool {
        let now_ms = self.start.elapsed().as_millis() as u64;
        let is_fresh = |partition: &Partition| {
            now_ms.saturating_sub(partition.contact_ms.load(Relaxed))
                < STALE_AFTER.as_millis() as u64
        };
        self.partitions().iter().all(is_fresh)
    }

    pub fn status(&self) -> Status {
        let status = |partition: &Partition| {
            let mut status = partition.status.lock().expect("no holder panics").clone();
            if status
                .reported_at
                .is_none_or(|at| at.elapsed() >= STALE_AFTER)
            {
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
            is_connected: self.is_connected(),
            is_fresh: self.is_fresh(),
            has_caught_up: self.has_caught_up(),
            partitions: self.partitions().iter().map(status).collect(),
            appended: self.appended.load(Relaxed),
            append_errors: self.append_errors.load(Relaxed),
            disconnects: self.disconnects(),
            last_error: error.map(|(why, at)| (why, at.elapsed().as_secs())),
            sync_intervals: self
                .sync_intervals
                .lock()
                .expect("no holder panics")
                .clone(),
        }
    }
}
