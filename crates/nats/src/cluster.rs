//! The thread of the log, and the way to it.

use std::sync::{Arc, mpsc};
use std::thread;

use crate::append::{self, Append};
use crate::connect::Connected;
use crate::driver::Driver;
use crate::error::Error;
use crate::neighbours::Neighbours;
use crate::news::{Listener, Listening};
use crate::reader;
use crate::shared::{Shared, Status};
use crate::streams::Stream;
use crate::watch;

/// The log that runs. When the last of these is dropped it ends.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
    appends: mpsc::Sender<Vec<Append>>,
    _driver: Driver,
    neighbours: Neighbours,
}

impl Cluster {
    /// Appends batches, those of a partition in this order. A batch that is on its way already is left out. May be called by any thread,
    /// and never waits.
    pub fn append_all(&self, batches: Vec<Append>) {
        // After its end nothing is appended.
        let _ = self.appends.send(batches);
    }

    /// The way to the other nodes.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// How the log is.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Whether there was news of each partition within five seconds, and all was read that stood there at the start.
    pub fn is_ready(&self) -> bool {
        self.shared.caught_up() && self.shared.fresh()
    }
}

impl Connected {
    /// Starts to read and to append. All that stands in the streams behind the sequences `after`, one for each, is told, then new batches as they come.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        self,
        streams: Vec<Stream>,
        after: &[u64],
        listener: impl Listener,
    ) -> Result<Cluster, Error> {
        let Connected {
            driver,
            client,
            context,
            settings,
            shared,
        } = self;
        let news: Listening = Arc::new(listener);
        shared.begin(after);
        let neighbours = Neighbours::new(client.clone(), &settings);
        let (appends, handed_over) = mpsc::channel();
        let (forward, forwarded) = tokio::sync::mpsc::unbounded_channel();
        // The shards' threads have descriptor tables of their own, and must not wake the runtime: this thread does.
        let hand_over = move || {
            for batches in handed_over {
                if forward.send(batches).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("nats-append".to_string());
        thread.spawn(hand_over).map_err(|error| {
            Error::lasting(format!("cannot start the thread nats-append: {error}"))
        })?;
        for (partition, stream) in (0..).zip(&streams) {
            driver.spawn(reader::read(
                stream.clone(),
                partition,
                settings.clone(),
                shared.clone(),
                news.clone(),
            ));
        }
        driver.spawn(watch::watch(
            context,
            settings.clone(),
            streams,
            shared.clone(),
            news,
        ));
        driver.spawn(watch::monitor(settings.monitoring.clone(), shared.clone()));
        let told = shared.clone();
        driver.spawn(async move { append::publish(client, &settings, shared, forwarded).await });
        Ok(Cluster {
            shared: told,
            appends,
            _driver: driver,
            neighbours,
        })
    }
}
