//! The control plane: one thread that is no shard. It runs a small runtime with the admin port (HTTP), and waits for the
//! signals of the process.
//!
//! Invariants: it speaks to shards by letters alone ([`Shards`]) and reads the counters that they publish; nothing on
//! the data path waits for it. It keeps the process's own descriptor table, in which files, certificates and the admin
//! port live; the shards have parted theirs before anything here is opened, or close what they inherit.
//!
//! Deliberately not here: anything that decides about connections or topics. That is the broker's.

mod api;
mod body;
mod console;
mod gate;
mod limits;
mod metrics;
mod pinned;
mod port;
mod process;
mod refusals;
mod rush;
mod shards;
mod signals;
mod stats;
mod tail;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use crore_broker::Control;
use crore_net::signal::Signals;
use crore_net::{Inbox, Sender};
use tokio::sync::watch;

use crate::board::Board;
use crate::config::{Admin, Effective};
use crate::life::{self, Life};
use crate::shard_loop::{Letter, Reported};
pub use shards::Shards;
pub use signals::Coming;
pub use tail::Door;

/// What the control thread needs to begin.
pub struct Start {
    /// The admin port, where there is one.
    pub listener: Option<TcpListener>,
    /// Its settings.
    pub admin: Admin,
    /// Where the data ports are.
    pub listen: Vec<SocketAddr>,
    /// The shards' counters.
    pub board: Arc<Board>,
    /// The shards' inboxes, by number.
    pub senders: Vec<Sender<Letter>>,
    /// Where their reports arrive.
    pub reports: Inbox<Reported>,
    /// The way to the data port, for tails.
    pub door: Door,
    /// The right to wait for signals.
    pub signals: Signals,
    /// What the server's life begins with.
    pub life: life::Start,
}

/// What every handler has.
#[derive(Clone)]
pub struct Plane(Arc<Inner>);

struct Inner {
    shards: Shards,
    gate: gate::Gate,
    door: Door,
    port: Arc<port::Counts>,
    life: Life,
    board: Arc<Board>,
    listen: Vec<SocketAddr>,
    moments: OnceLock<watch::Receiver<stats::Moments>>,
    began: Instant,
}

impl Plane {
    /// The shards.
    pub fn shards(&self) -> &Shards {
        &self.0.shards
    }

    /// The server's life.
    pub fn life(&self) -> &Life {
        &self.0.life
    }

    /// The way to the data port.
    fn door(&self) -> &Door {
        &self.0.door
    }

    /// Their counters.
    pub fn board(&self) -> &Arc<Board> {
        &self.0.board
    }

    /// The settings that hold, with the ports that the data has.
    pub fn effective(&self) -> Effective {
        Effective {
            listen: self.0.listen.clone(),
            ..self.life().effective()
        }
    }

    /// Who may ask.
    fn gate(&self) -> &gate::Gate {
        &self.0.gate
    }

    /// What the admin port has met.
    fn port(&self) -> &port::Counts {
        &self.0.port
    }

    /// Since the server began.
    fn uptime(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// The newest two moments of the board, each second.
    fn moments(&self) -> &watch::Receiver<stats::Moments> {
        self.0.moments.get_or_init(|| stats::watch(self))
    }
}

/// Opens the admin port.
///
/// # Errors
/// When the address cannot be had, with the remedy.
pub fn listen(admin: &Admin) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = admin.listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).with_context(|| {
        format!(
            "cannot listen on {address} for the admin port; name another address with --admin-listen, or turn it off with --no-admin"
        )
    })?;
    Ok(Some(listener))
}

/// Serves the admin port on this thread until the process may end.
///
/// # Errors
/// When the runtime cannot be made.
pub fn run(start: Start) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make the control thread's runtime")?;
    runtime.block_on(serve(start))
}

async fn serve(start: Start) -> anyhow::Result<()> {
    let shards = Shards::new(start.senders);
    tokio::spawn(shards::pump(shards.clone(), start.reports));
    tokio::spawn(rush::watch(start.board.clone()));
    tokio::spawn(refusals::watch(start.board.clone()));
    let signals = signals::listen(start.signals)?;
    let life = Life::new(start.life, shards.clone());
    if let Some(listener) = start.listener {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let plane = Plane(Arc::new(Inner {
            shards,
            life: life.clone(),
            gate: gate::Gate::new(&start.admin, address),
            door: start.door,
            port: port::Counts::new(&start.admin),
            board: start.board,
            listen: start.listen,
            moments: OnceLock::new(),
            began: Instant::now(),
        }));
        plane.moments();
        tracing::info!("admin port at http://{address}");
        let spare = spare_routes(plane.clone(), &start.admin);
        let counts = plane.0.port.clone();
        let port = port::Port::new(&start.admin, counts, routes(plane), spare);
        tokio::spawn(port.serve(listener));
    }
    life.run(signals).await;
    Ok(())
}

/// All that the admin port answers.
fn routes(plane: Plane) -> Router {
    let guarded = axum::middleware::from_fn_with_state(plane.clone(), gate::guard);
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics::metrics))
        .route("/api/v1/stats", get(stats::stats))
        .merge(api::routes(&plane))
        .merge(console::routes())
        .merge(tail::routes())
        .merge(life::api::routes())
        .layer(guarded)
        .with_state(plane)
}

/// What it answers past `admin.connections_max`.
fn spare_routes(plane: Plane, admin: &Admin) -> Router {
    let guarded = axum::middleware::from_fn_with_state(plane.clone(), gate::guard);
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .fallback(port::refusal(admin))
        .layer(guarded)
        .with_state(plane)
}

/// Whether all shards turn, and let clients in.
async fn ready(State(plane): State<Plane>) -> (StatusCode, String) {
    if plane.life().stops() {
        let stops = "the server stops\n".to_string();
        return (StatusCode::SERVICE_UNAVAILABLE, stops);
    }
    match plane.shards().ask_all(|_| Control::Accounts).await {
        Ok(_) => (StatusCode::OK, "ready\n".to_string()),
        Err(shards::Silent(shard)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("shard {shard} does not answer\n"),
        ),
    }
}
