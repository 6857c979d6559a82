//! The handle of the running log: appends batches, and reports the state of the log.

use std::sync::{Arc, mpsc};
use std::thread;

use crate::append::{self, Append};
use crate::connect::Connection;
use crate::driver::Driver;
use crate::error::Error;
use crate::events::{Listener, SharedListener};
use crate::log_state::{LogState, Status};
use crate::peers::Peers;
use crate::reader;
use crate::streams::Stream;
use crate::watch;

/// The handle of the running log. When the last clone is dropped, reading and appending stop.
#[derive(Clone)]
pub struct Cluster {
    log: Arc<LogState>,
    appends: mpsc::Sender<Vec<Append>>,
    _driver: Driver,
    peers: Peers,
}

impl Cluster {
    /// Appends batches; those of one partition keep their order. A batch that is already in flight is skipped. Any thread may call this
    /// function, and it never blocks.
    pub fn append_all(&self, batches: Vec<Append>) {
        // An error means that the log has ended.
        let _ = self.appends.send(batches);
    }

    /// The messages to and from other nodes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The state of the log.
    pub fn status(&self) -> Status {
        self.log.status()
    }

    /// Whether NATS reported each partition within the last five seconds, and everything stored before the start was read.
    pub fn is_ready(&self) -> bool {
        self.log.has_caught_up() && self.log.is_fresh()
    }
}

impl Connection {
    /// Starts to read and to append. `after` has one sequence for each stream. The listener gets every batch after these sequences: first
    /// the stored ones, then new ones as they arrive.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        self,
        streams: Vec<Stream>,
        after: &[u64],
        listener: impl Listener,
    ) -> Result<Cluster, Error> {
        let Connection {
            driver,
            client,
            context,
            settings,
            log,
        } = self;
        let events: SharedListener = Arc::new(listener);
        log.set_start(after);
        let peers = Peers::new(client.clone(), &settings);
        let (appends, from_shards) = mpsc::channel();
        let (to_runtime, in_runtime) = tokio::sync::mpsc::unbounded_channel();
        // The threads of shards have their own descriptor tables, so they cannot wake the runtime. This thread wakes it.
        let forward = move || {
            for batches in from_shards {
                if to_runtime.send(batches).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("nats-append".to_string());
        thread.spawn(forward).map_err(|error| {
            Error::lasting(format!("cannot start the thread nats-append: {error}"))
        })?;
        for (partition, stream) in (0..).zip(&streams) {
            driver.spawn(reader::run_reader(
                stream.clone(),
                partition,
                settings.clone(),
                log.clone(),
                events.clone(),
            ));
        }
        driver.spawn(watch::run_checks(
            context,
            settings.clone(),
            streams,
            log.clone(),
            events,
        ));
        driver.spawn(watch::query_monitoring(
            settings.monitoring.clone(),
            log.clone(),
        ));
        let cluster_log = log.clone();
        driver.spawn(async move { append::publish(client, &settings, log, in_runtime).await });
        Ok(Cluster {
            log: cluster_log,
            appends,
            _driver: driver,
            peers,
        })
    }
}
