//! The thread of the log, and the way to it.

use std::sync::{Arc, mpsc};
use std::thread;

use async_nats::Client;
use async_nats::jetstream::Context;
use tokio::runtime::Runtime;

use crate::append::{self, Append};
use crate::error::Error;
use crate::news::Listening;
use crate::reader;
use crate::settings::Settings;
use crate::shared::{Shared, Status};
use crate::streams::Stream;
use crate::watch;

/// The log that runs. When the last of these is dropped it ends.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
    appends: mpsc::Sender<Vec<Append>>,
}

impl Cluster {
    /// Appends batches, those of a partition in this order. A batch that is on its way already is left out. May be called by any thread,
    /// and never waits.
    pub fn append_all(&self, batches: Vec<Append>) {
        // After its end nothing is appended.
        let _ = self.appends.send(batches);
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

/// A connection to NATS, and what drives it.
pub(crate) struct Link {
    pub runtime: Runtime,
    pub client: Client,
    pub context: Context,
    pub settings: Settings,
    pub shared: Arc<Shared>,
}

pub(crate) fn start(link: Link, streams: Vec<Stream>, news: Listening) -> Result<Cluster, Error> {
    let Link {
        runtime,
        client,
        context,
        settings,
        shared,
    } = link;
    shared.begin(streams.len());
    let (appends, handed_over) = mpsc::channel();
    let (forward, forwarded) = tokio::sync::mpsc::unbounded_channel();
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.to_string());
        thread
            .spawn(run)
            .map(drop)
            .map_err(|error| Error::lasting(format!("cannot start the thread {name}: {error}")))
    };
    // The shards' threads have descriptor tables of their own, and must not wake the runtime: this thread does.
    let hand_over = move || {
        for batches in handed_over {
            if forward.send(batches).is_err() {
                return;
            }
        }
    };
    spawn("nats-append", Box::new(hand_over))?;
    let told = shared.clone();
    let run = async move {
        for (partition, stream) in (0..).zip(&streams) {
            let one = reader::read(
                stream.clone(),
                partition,
                settings.clone(),
                shared.clone(),
                news.clone(),
            );
            tokio::spawn(one);
        }
        tokio::spawn(watch::watch(
            context,
            settings.clone(),
            streams,
            shared.clone(),
            news,
        ));
        append::publish(client, &settings, shared, forwarded).await;
    };
    spawn("nats", Box::new(move || runtime.block_on(run)))?;
    Ok(Cluster {
        shared: told,
        appends,
    })
}
