//! A node that uses the log in tests: it records the events, and appends batches until they are in the log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crore_nats::{
    Append, Cluster, ClusterIdentity, Credentials, Error, Listener, LogEvent, Settings, Store,
    connect,
};

use crate::servers::{Servers, until};

pub const PARTITIONS: u16 = 4;

/// The recorded events, and the batches by partition, each with its sequence number.
#[derive(Default)]
pub struct Log {
    pub batches: BTreeMap<u16, Vec<(u64, Vec<u8>)>>,
    pub lost: Vec<(u16, u64, u64)>,
    pub caught_up: Vec<u16>,
    pub is_full: bool,
    pub ended: Option<String>,
}

/// Records the events.
#[derive(Default)]
pub struct Recorder {
    pub log: Mutex<Log>,
    pub backlog_bytes: AtomicUsize,
}

pub struct Node {
    pub cluster: Cluster,
    pub store: Store,
    pub recorder: Arc<Recorder>,
}

/// The listener of a node, which the thread of the log owns.
struct RecordingListener(Arc<Recorder>);

impl Listener for RecordingListener {
    fn on_event(&self, event: LogEvent) {
        let mut log = self.0.log.lock().expect("no holder panics");
        match event {
            LogEvent::Batch {
                partition,
                sequence,
                unix_s,
                bytes,
            } => {
                assert!(unix_s > 1_700_000_000, "the second of the log");
                self.0.backlog_bytes.fetch_add(bytes.len(), Relaxed);
                let all = log.batches.entry(partition).or_default();
                all.push((sequence, bytes.to_vec()));
            }
            LogEvent::Lost {
                partition,
                from,
                to,
            } => log.lost.push((partition, from, to)),
            LogEvent::CaughtUp { partition } => log.caught_up.push(partition),
            LogEvent::Full(is_full) => log.is_full = is_full,
            LogEvent::Ended { why } => log.ended = Some(why),
        }
    }

    fn backlog_bytes(&self) -> usize {
        self.0.backlog_bytes.load(Relaxed)
    }
}

pub fn settings(servers: &Servers) -> Settings {
    Settings {
        urls: servers.urls(),
        name: "test".to_string(),
        credentials: Credentials::None,
        replicas: servers.urls().len().min(3),
        backlog_bytes_max: 1 << 20,
        patience: Duration::from_secs(30),
        ..Settings::default()
    }
}

pub fn identity() -> ClusterIdentity {
    ClusterIdentity {
        id: 7,
        epoch: 1,
        seed: 3,
        partitions: PARTITIONS,
        format: 1,
    }
}

pub fn start_node(settings: Settings, identity: ClusterIdentity) -> Result<Node, Error> {
    let connected = connect(settings)?;
    let identity = connected.read_or_create_identity(identity, identity.format)?;
    let streams = connected.open_streams(identity)?;
    let recorder = Arc::new(Recorder::default());
    let store = connected.open_store(&streams, identity)?;
    let after = vec![0; streams.len()];
    let cluster = connected.start(streams, &after, RecordingListener(recorder.clone()))?;
    Ok(Node {
        cluster,
        store,
        recorder,
    })
}

/// Why a node refuses to start.
pub fn refusal(settings: Settings, identity: ClusterIdentity) -> String {
    match start_node(settings, identity) {
        Ok(_) => panic!("it begins"),
        Err(error) => error.to_string(),
    }
}

impl Node {
    pub fn start(servers: &Servers) -> Node {
        start_node(settings(servers), identity()).expect("it begins")
    }

    /// Counts all delivered batches as applied.
    pub fn apply(&self) {
        self.recorder.backlog_bytes.store(0, Relaxed);
    }

    pub fn backlog_bytes(&self) -> usize {
        self.recorder.backlog_bytes.load(Relaxed)
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.recorder.log.lock().expect("no holder panics")
    }

    /// The bytes of all batches of a partition, in order.
    pub fn batches(&self, partition: u16) -> Vec<Vec<u8>> {
        let log = self.log();
        let all = log.batches.get(&partition);
        all.into_iter()
            .flatten()
            .map(|(_, bytes)| bytes.clone())
            .collect()
    }

    pub fn count(&self, partition: u16) -> usize {
        self.log().batches.get(&partition).map_or(0, Vec::len)
    }

    pub fn sequences(&self, partition: u16) -> Vec<u64> {
        let log = self.log();
        let all = log.batches.get(&partition);
        all.into_iter()
            .flatten()
            .map(|(sequence, _)| *sequence)
            .collect()
    }

    pub fn await_caught_up(&self) {
        until("the end of the log", || {
            self.apply();
            self.cluster.status().has_caught_up
        });
    }

    /// Appends these batches of a writer to all partitions, and again until each is in the log, as the broker does.
    pub fn write(&self, writer: u8, numbers: std::ops::RangeInclusive<u64>) {
        let bytes =
            |number: u64| -> Arc<[u8]> { Arc::from(format!("{writer} {number}").as_bytes()) };
        let missing = |partition: u16| {
            let stored = self.batches(partition);
            numbers
                .clone()
                .find(|number| !stored.iter().any(|it| **it == *bytes(*number)))
        };
        let mut appended_at: Option<Instant> = None;
        until("all batches", || {
            self.apply();
            let first: Vec<_> = (0..PARTITIONS).map(missing).collect();
            if appended_at.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
                appended_at = Some(Instant::now());
                for (partition, first) in (0..).zip(&first) {
                    let rest = first.map_or(0..0, |first| first..numbers.end() + 1);
                    let batches = rest.map(|number| Append {
                        partition,
                        number,
                        bytes: bytes(number),
                    });
                    self.cluster.append_all(batches.collect());
                }
            }
            first.iter().all(Option::is_none)
        });
    }
}
