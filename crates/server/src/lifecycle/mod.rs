//! The lifecycle of the server: start, reload of the settings (SIGHUP), drain and stop (SIGTERM, SIGINT), and
//! notifications of the supervisor (systemd).
//!
//! Everything here runs on the control thread and sends orders to the shards. Invariants:
//! * Settings change as a whole or not at all.
//! * At most one change runs at a time, and none while the server stops.
//! * A second SIGINT ends the process at once.

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
use crate::config::{EffectiveSettings, ServeArgs};
use crate::engine::{Durable, Engine, Member};
use crate::tls;
use checkpoint::{CheckpointContext, CheckpointStats, Checkpoints, node};
use shards::Shards;
use signals::SignalQueue;

/// The restored state of a server that starts, and the engine (the log) to which its messages are appended.
pub struct RestoredServer {
    /// The data that all shards share.
    pub world: Arc<World>,
    /// The restored shards, by number.
    pub shards: VecDeque<Shard>,
    /// The engine, if the messages are logged.
    pub engine: Option<Engine>,
    /// The changes of files that complete the start. They must be committed before any client is served.
    pub start_commit: Option<state::StartCommit>,
    /// How long restoring took.
    pub restore_time: Duration,
}

/// The arguments of [`Lifecycle::new`].
pub struct LifecycleArgs {
    /// The command line. Its flags override the settings file, also at a reload.
    pub args: ServeArgs,
    pub effective: EffectiveSettings,
    /// The data that all shards share.
    pub world: Arc<World>,
    /// Verifies credentials for the shards.
    pub verifier: Verifier,
    /// The engine that appends messages to a log, if there is one.
    pub engine: Option<Engine>,
    /// How long the restoring of the last server's state took.
    pub restore_time: Duration,
    /// TLS, if it is on.
    pub tls: Option<tls::Shared>,
}

/// A handle to the lifecycle of this server, for all tasks of the control thread.
#[derive(Clone)]
pub struct Lifecycle(Arc<Inner>);

struct Inner {
    args: ServeArgs,
    shards: Shards,
    verifier: Verifier,
    engine: Option<Engine>,
    checkpoints: Arc<CheckpointStats>,
    restore_time: Duration,
    running: Mutex<Running>,
    tls: Option<tls::Shared>,
    /// Locked during a reload, and during a change of revocations.
    settings_lock: tokio::sync::Mutex<()>,
    /// Notified by the admin API. The server then stops as after SIGTERM.
    drain_requested: Notify,
}

/// The mutable state.
struct Running {
    effective: EffectiveSettings,
    world: Arc<World>,
    is_stopping: bool,
    reloads: Reloads,
}

/// Counts of reloads since the process began.
#[derive(Clone, Copy, Debug)]
pub struct Reloads {
    /// Reloads that took effect.
    pub applied: u64,
    /// Reloads that changed nothing, because of an error.
    pub refused: u64,
    /// Unix second in which the current settings were read: at the start or by the last successful reload.
    pub applied_unix_s: u64,
}

impl Lifecycle {
    pub fn new(args: LifecycleArgs, shards: Shards) -> Self {
        let checkpoints = CheckpointStats::default();
        if let (Some(_), Some(directory)) = (&args.engine, args.effective.file.state.directory()) {
            let base_bytes = state::base_bytes(directory);
            checkpoints.base_bytes.store(base_bytes, Relaxed);
        }
        Lifecycle(Arc::new(Inner {
            args: args.args,
            shards,
            verifier: args.verifier,
            engine: args.engine,
            checkpoints: Arc::new(checkpoints),
            restore_time: args.restore_time,
            running: Mutex::new(Running {
                effective: args.effective,
                world: args.world,
                is_stopping: false,
                reloads: Reloads {
                    applied: 0,
                    refused: 0,
                    applied_unix_s: clock::unix_s(),
                },
            }),
            tls: args.tls,
            settings_lock: tokio::sync::Mutex::default(),
            drain_requested: Notify::new(),
        }))
    }

    /// The current settings.
    pub fn effective_settings(&self) -> EffectiveSettings {
        self.running().effective.clone()
    }

    /// The data that all shards share.
    pub fn world(&self) -> Arc<World> {
        self.running().world.clone()
    }

    /// Whether the server drains: it moves its clients to other servers and admits no new ones.
    pub fn is_stopping(&self) -> bool {
        self.running().is_stopping
    }

    pub fn reloads(&self) -> Reloads {
        self.running().reloads
    }

    /// The state of the log on disk, if there is one.
    pub fn log_state(&self) -> Option<crore_disk::EngineState> {
        self.disk().map(|log| log.state())
    }

    fn disk(&self) -> Option<&Durable> {
        match self.0.engine.as_ref()? {
            Engine::Disk(log) => Some(log),
            Engine::Nats(_) => None,
        }
    }

    /// The membership in a cluster, if this server is a node of one.
    pub fn member(&self) -> Option<&Member> {
        match self.0.engine.as_ref()? {
            Engine::Disk(_) => None,
            Engine::Nats(member) => Some(member),
        }
    }

    /// The name of the cluster, if this server is a node of one.
    pub fn cluster(&self) -> Option<String> {
        let name = |_: &Member| self.running().effective.file.cluster.name.clone();
        self.member().map(name)
    }

    /// Whether this node of a cluster cannot reach the log: NATS does not answer, or the node's own heartbeats do not come back from the
    /// log.
    pub fn is_cut_off(&self) -> bool {
        let Some(member) = self.member() else {
            return false;
        };
        let now_s = u32::try_from(clock::counted_s()).unwrap_or(u32::MAX);
        !member.cluster.is_ready() || self.world().admission.is_cut_off(now_s)
    }

    /// Statistics of the checkpoints.
    pub fn checkpoints(&self) -> &CheckpointStats {
        &self.0.checkpoints
    }

    /// How long the restoring of the last server's state took.
    pub fn recovery(&self) -> Duration {
        self.0.restore_time
    }

    /// Makes the server drain and stop, as SIGTERM does.
    pub fn drain(&self) {
        self.0.drain_requested.notify_one();
    }

    /// Handles signals until the server has stopped. When this returns, the process may end.
    ///
    /// # Errors
    /// The state could not be saved for the next server.
    pub async fn run(self, mut signals: SignalQueue) -> anyhow::Result<()> {
        supervisor::report_ready(&self.effective_settings().file.listen);
        supervisor::start_watchdog(self.0.shards.clone());
        memory::release_code_pages();
        self.follow_revocations();
        let checkpoints = self.start_checkpoints();
        loop {
            let signal = tokio::select! {
                signal = signals.next() => signal,
                () = self.0.drain_requested.notified() => {
                    tracing::info!("told to drain at the admin port: stopping");
                    break;
                }
            };
            match signal {
                // A reload that fails changes nothing, and its error has been logged already.
                Signal::Hangup => drop(self.reload().await),
                Signal::Terminate => tracing::info!("SIGTERM: stopping"),
                Signal::Interrupt => tracing::info!("SIGINT: stopping; again ends at once"),
            }
            if signal != Signal::Hangup {
                break;
            }
        }
        self.running().is_stopping = true;
        tokio::select! {
            result = self.stop(checkpoints) => result,
            () = second_interrupt(&mut signals) => {
                tracing::warn!("SIGINT: ended at once");
                Ok(())
            }
        }
    }

    fn start_checkpoints(&self) -> Option<Checkpoints> {
        let settings = self.effective_settings().file;
        let started = match self.0.engine.as_ref()? {
            Engine::Disk(log) => state::start(self.checkpoint_context(settings.state, log.clone())),
            Engine::Nats(member) => {
                node::start(self.checkpoint_context(settings.cluster, member.as_ref().clone()))
            }
        };
        let log_error = |error: &std::io::Error| {
            tracing::error!(
                "cannot start the thread of checkpoints, so that the log only grows: {error}"
            );
        };
        started.inspect_err(log_error).ok()
    }

    fn checkpoint_context<S, E>(&self, settings: S, engine: E) -> CheckpointContext<S, E> {
        let lifecycle = self.clone();
        CheckpointContext {
            settings,
            engine,
            shards: self.0.shards.clone(),
            world: Box::new(move || lifecycle.world()),
            stats: self.0.checkpoints.clone(),
        }
    }

    /// Moves all clients to other servers. Then saves the state for the next start, if the settings ask for it.
    async fn stop(&self, checkpoints: Option<Checkpoints>) -> anyhow::Result<()> {
        let shards = &self.0.shards;
        stop::move_clients_off(shards, &self.effective_settings().file.drain).await;
        if let Some(checkpoints) = checkpoints {
            checkpoints.stop().await;
        }
        let log_end = || {
            let log = self.disk()?;
            // Removes the spare segment files of the log: on a full disk the saved state needs their space.
            log.remove_spares();
            Some(log.end())
        };
        stop::save_state(
            shards,
            &self.effective_settings().file.state,
            &self.world(),
            log_end,
        )
        .await
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        let running = self.0.running.lock();
        running.expect("nothing panics while it holds this")
    }
}

async fn second_interrupt(signals: &mut SignalQueue) {
    while signals.next().await != Signal::Interrupt {}
}
