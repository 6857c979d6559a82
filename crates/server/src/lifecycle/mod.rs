//! The life of a running server: it reads its settings again (SIGHUP), moves its clients off and stops (SIGTERM, SIGINT), and
//! says to its supervisor how it stands.
//!
//! Everything here runs on the control thread and speaks to the shards by orders. Invariants: settings change as a whole
//! or not at all; one change is under way at a time, and none while the server stops; a second SIGINT ends the process at once.

pub mod checkpoint;
pub mod cluster;
mod reload;
pub mod revoke;
pub mod shards;
pub mod signals;
pub mod state;
mod stop;
mod supervisor;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crore_broker::{Shard, World};
use crore_net::signal::Signal;
use crore_net::{clock, memory};
use tokio::sync::Notify;

use crate::access::Verifier;
use crate::config::{Effective, ServeArgs};
use crate::shard_loop::{Durable, Engine, Member};
use crate::tls;
use checkpoint::{Checkpoints, Progress, Server, node};
use shards::Shards;
use signals::SignalQueue;

/// The state with which the shards begin, and the engine that keeps it.
pub struct Begun {
    /// The world that they share.
    pub world: Arc<World>,
    /// The shards that have read the log, by number.
    pub shards: VecDeque<Shard>,
    /// The engine, where there is one.
    pub engine: Option<Engine>,
    /// To be used up before anybody is served.
    pub ticket: Option<state::Ticket>,
    /// How long it took to read.
    pub took: Duration,
}

/// The state that a life begins with.
pub struct Start {
    /// The command line: a file that is read again lies under the same flags.
    pub args: ServeArgs,
    /// The settings.
    pub effective: Effective,
    /// The state that the shards share.
    pub world: Arc<World>,
    /// The verifier that answers the shards about credentials.
    pub verifier: Verifier,
    /// The engine, where there is one.
    pub engine: Option<Engine>,
    /// How long it took to read what the last server left.
    pub recovery: Duration,
    /// The parts of TLS that the shards share, where TLS is on.
    pub tls: Option<tls::Shared>,
}

/// The life of this server, for everything on the control thread.
#[derive(Clone)]
pub struct Lifecycle(Arc<Inner>);

struct Inner {
    args: ServeArgs,
    shards: Shards,
    verifier: Verifier,
    engine: Option<Engine>,
    checkpoints: Arc<Progress>,
    recovery: Duration,
    running: Mutex<Running>,
    tls: Option<tls::Shared>,
    /// Held while settings are read again.
    reloading: tokio::sync::Mutex<()>,
    /// Asks the server to stop, as a signal does.
    leave: Notify,
}

/// The state that changes.
struct Running {
    effective: Effective,
    world: Arc<World>,
    stops: bool,
    reloads: Reloads,
}

/// How often settings were read again, since the process began.
#[derive(Clone, Copy, Debug)]
pub struct Reloads {
    /// And counted from then on.
    pub applied: u64,
    /// And changed nothing, since something was wrong.
    pub refused: u64,
    /// The Unix second in which those that hold were read: the start's, or the last that counted.
    pub applied_unix_s: u64,
}

impl Lifecycle {
    /// Begins.
    pub fn new(start: Start, shards: Shards) -> Self {
        let checkpoints = Progress::default();
        if let (Some(_), Some(directory)) = (&start.engine, start.effective.file.state.directory())
        {
            let base_bytes = state::base_bytes(directory);
            checkpoints.base_bytes.store(base_bytes, Relaxed);
        }
        Lifecycle(Arc::new(Inner {
            args: start.args,
            shards,
            verifier: start.verifier,
            engine: start.engine,
            checkpoints: Arc::new(checkpoints),
            recovery: start.recovery,
            running: Mutex::new(Running {
                effective: start.effective,
                world: start.world,
                stops: false,
                reloads: Reloads {
                    applied: 0,
                    refused: 0,
                    applied_unix_s: clock::unix_s(),
                },
            }),
            tls: start.tls,
            reloading: tokio::sync::Mutex::default(),
            leave: Notify::new(),
        }))
    }

    /// The settings by which the server runs.
    pub fn effective(&self) -> Effective {
        self.running().effective.clone()
    }

    /// The state that the shards share.
    pub fn world(&self) -> Arc<World> {
        self.running().world.clone()
    }

    /// Whether clients are being moved off and new ones are not let in.
    pub fn stops(&self) -> bool {
        self.running().stops
    }

    /// How often settings were read again.
    pub fn reloads(&self) -> Reloads {
        self.running().reloads
    }

    /// How the log of durable messages is, where there is one.
    pub fn log_state(&self) -> Option<crore_disk::State> {
        self.disk().map(|log| log.state())
    }

    fn disk(&self) -> Option<&Durable> {
        match self.0.engine.as_ref()? {
            Engine::Disk(log) => Some(log),
            Engine::Nats(_) => None,
        }
    }

    /// The log of the cluster, where this server is a node of one.
    pub fn member(&self) -> Option<&Member> {
        match self.0.engine.as_ref()? {
            Engine::Disk(_) => None,
            Engine::Nats(member) => Some(member),
        }
    }

    /// The name of the cluster, where this server is a node of one.
    pub fn cluster(&self) -> Option<String> {
        let name = |_: &Member| self.running().effective.file.cluster.name.clone();
        self.member().map(name)
    }

    /// Whether this is a node of a cluster that does not hear of its log, or whose own signs of life do not come back.
    pub fn is_cut_off(&self) -> bool {
        let Some(member) = self.member() else {
            return false;
        };
        let now_s = u32::try_from(clock::counted_s()).unwrap_or(u32::MAX);
        !member.cluster.is_ready() || self.world().admission.is_cut_off(now_s)
    }

    /// Figures of its checkpoints.
    pub fn checkpoints(&self) -> &Progress {
        &self.0.checkpoints
    }

    /// How long it took to read what the last server left.
    pub fn recovery(&self) -> Duration {
        self.0.recovery
    }

    /// Moves the clients off and stops, as SIGTERM does.
    pub fn drain(&self) {
        self.0.leave.notify_one();
    }

    /// Lives until the end: returns when the process may end.
    ///
    /// # Errors
    /// When the stop could not leave to the next server what the settings ask for.
    pub async fn run(self, mut signals: SignalQueue) -> anyhow::Result<()> {
        supervisor::ready(&self.effective().file.listen);
        supervisor::watch(self.0.shards.clone());
        memory::let_go_of_text();
        self.follow_revocations();
        let checkpoints = self.begin_checkpoints();
        loop {
            let signal = tokio::select! {
                signal = signals.next() => signal,
                () = self.0.leave.notified() => {
                    tracing::info!("told to drain at the admin port: stopping");
                    break;
                }
            };
            match signal {
                // A failed reload is logged, and changes nothing.
                Signal::Hangup => drop(self.reload().await),
                Signal::Terminate => tracing::info!("SIGTERM: stopping"),
                Signal::Interrupt => tracing::info!("SIGINT: stopping; again ends at once"),
            }
            if signal != Signal::Hangup {
                break;
            }
        }
        self.running().stops = true;
        tokio::select! {
            stopped = self.stop(checkpoints) => stopped,
            () = interrupted(&mut signals) => {
                tracing::warn!("SIGINT: ended at once");
                Ok(())
            }
        }
    }

    fn begin_checkpoints(&self) -> Option<Checkpoints> {
        let settings = self.effective().file;
        let started = match self.0.engine.as_ref()? {
            Engine::Disk(log) => state::start(self.to_checkpoint(settings.state, log.clone())),
            Engine::Nats(member) => {
                node::start(self.to_checkpoint(settings.cluster, member.as_ref().clone()))
            }
        };
        let failed = |error: &std::io::Error| {
            tracing::error!(
                "cannot start the thread of checkpoints, so that the log only grows: {error}"
            );
        };
        started.inspect_err(failed).ok()
    }

    fn to_checkpoint<S, E>(&self, settings: S, engine: E) -> Server<S, E> {
        let lifecycle = self.clone();
        Server {
            settings,
            engine,
            shards: self.0.shards.clone(),
            world: Box::new(move || lifecycle.world()),
            progress: self.0.checkpoints.clone(),
        }
    }

    /// Moves the clients off, and leaves the state to the next server that the settings ask for.
    async fn stop(&self, checkpoints: Option<Checkpoints>) -> anyhow::Result<()> {
        let shards = &self.0.shards;
        stop::move_off(shards, &self.effective().file.drain).await;
        if let Some(checkpoints) = checkpoints {
            checkpoints.stop().await;
        }
        let log_end = || {
            let log = self.disk()?;
            // On a full disk the state has the room of the files that wait as segments.
            log.release();
            Some(log.end())
        };
        stop::leave(shards, &self.effective().file.state, &self.world(), log_end).await
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        let running = self.0.running.lock();
        running.expect("nothing panics while it holds this")
    }
}

async fn interrupted(signals: &mut SignalQueue) {
    while signals.next().await != Signal::Interrupt {}
}
