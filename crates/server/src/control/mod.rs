//! The control plane: one thread beside the shards, with a small async runtime. It serves the admin port (HTTP) and handles the process's
//! signals.
//!
//! Invariants: this thread reaches the shards only by messages ([`Shards`]), and by the counters that the shards publish. Nothing on the
//! data path waits for this thread. The descriptors of this thread's files, certificates and admin port are in the process's main
//! descriptor table. Each shard has a descriptor table of its own. Either that table was made before this thread opened anything, or the
//! shard closes the descriptors that it inherits.
//!
//! Deliberately not here: decisions about connections or topics. The broker makes them.

mod admin_port;
mod api;
mod body;
mod chart_history;
mod cluster;
mod connection_slots;
mod console;
mod data_port;
mod disk;
mod interest;
mod limits;
mod metrics;
mod other_nodes;
mod peer_nodes;
mod peer_presence;
mod process;
mod refusal_log;
mod request_guard;
mod samples;
mod starting;
mod state;
mod stats;
mod trim;
mod webhooks;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use crore_net::signal::Signals;
use crore_net::{Inbox, Sender};
use tokio::sync::mpsc;

use crate::http_client::port_in_use;
use crate::lifecycle::shards::{self, Shards};
use crate::lifecycle::{self, Lifecycle, signals};
use crate::settings::admin::Admin;
use crate::settings::webhook::Webhook;
use crore_shard_loop::counters::Counters;
use crore_shard_loop::{ControlLetter, Letter};
pub use data_port::DataPortClient;
use interest::InterestSync;
use peer_nodes::PeerNodes;
use peer_presence::PresenceSync;
pub use starting::Starting;
use state::{AdminContext, AdminState};
pub use webhooks::check as check_webhooks;

/// The arguments of [`run`].
pub struct ControlArgs {
    /// The admin port, if there is one.
    pub listener: Option<TcpListener>,
    /// The settings of the admin port.
    pub admin: Admin,
    /// The addresses of the data ports.
    pub data_addresses: Vec<SocketAddr>,
    /// The shards' counters.
    pub counters: Arc<Counters>,
    /// The shards' inboxes, by number.
    pub senders: Vec<Sender<Letter>>,
    /// The inbox for the shards' reports.
    pub reports: Inbox<ControlLetter>,
    /// Opens connections to the data port, for the console's pages that follow a topic live.
    pub data_port: DataPortClient,
    /// The signals that all threads block. Only one thread may wait for them.
    pub signals: Signals,
    pub lifecycle: lifecycle::LifecycleArgs,
    pub webhooks: Vec<Webhook>,
}

/// Opens the admin port.
///
/// # Errors
/// The address cannot be bound. The error says what to do.
pub fn open_admin_port(admin: &Admin) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = admin.listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).map_err(|error| {
        let remedy = port_in_use::remedy(address, &error, "--admin-listen");
        anyhow!("cannot listen on {address} for the admin port: {remedy}, or turn it off with --no-admin")
    });
    listener.map(Some)
}

/// Runs the control plane on this thread until the process may end.
///
/// # Errors
/// The runtime cannot be made, the signals cannot be received, or the state cannot be saved when the server stops.
pub fn run(args: ControlArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make the control thread's runtime")?;
    let result = runtime.block_on(serve(args));
    // A request of a webhook may take seconds, and the end does not wait for its answer.
    runtime.shutdown_background();
    result
}

async fn serve(args: ControlArgs) -> anyhow::Result<()> {
    let shards = Shards::new(args.senders);
    let (count_requests, pending_counts) = mpsc::unbounded_channel();
    tokio::spawn(shards::forward_reports(
        shards.clone(),
        args.reports,
        count_requests,
    ));
    tokio::spawn(trim::run(args.counters.clone()));
    tokio::spawn(refusal_log::run(args.counters.clone(), shards.clone()));
    let signals = signals::listen(args.signals)?;
    let api_key = args.admin.key().map_err(anyhow::Error::msg)?;
    let lifecycle = Lifecycle::new(args.lifecycle, shards.clone());
    let peer_nodes = PeerNodes::begin(
        lifecycle.clone(),
        shards.clone(),
        args.counters.clone(),
        pending_counts,
    );
    InterestSync::spawn_tasks(lifecycle.clone(), shards.clone(), peer_nodes.clone());
    PresenceSync::spawn_tasks(lifecycle.clone(), shards.clone(), peer_nodes.clone());
    if peer_nodes.peers().is_some() {
        let calls = api::answer_calls(lifecycle.clone(), shards.clone(), peer_nodes.clone());
        tokio::spawn(calls);
    }
    let node = peer_nodes.peers().map(|_| webhooks::ThisNode {
        name: lifecycle.world().settings.node.name.as_str().into(),
        placement: lifecycle.world().placement(),
        other_nodes: peer_nodes.other_nodes().clone(),
    });
    let webhooks = webhooks::start(&args.webhooks, &shards, node.as_ref())?;
    if let Some(listener) = args.listener {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let samples = samples::spawn(args.counters.clone(), lifecycle.clone());
        let state = AdminState::new(AdminContext {
            shards,
            lifecycle: lifecycle.clone(),
            peer_nodes,
            webhooks,
            request_guard: Arc::new(request_guard::RequestGuard::new(
                &args.admin,
                api_key,
                address,
            )),
            data_port: args.data_port,
            port_counters: admin_port::PortCounters::new(&args.admin),
            chart_history: chart_history::ChartHistory::spawn(samples.clone()),
            samples,
            counters: args.counters,
            data_addresses: args.data_addresses,
            started_at: Instant::now(),
        });
        let overflow = overflow_routes(state.clone(), &args.admin);
        let counters = state.port_counters.clone();
        let port = admin_port::AdminPort::new(&args.admin, counters, routes(state), overflow);
        tokio::spawn(port.serve(listener));
    }
    lifecycle.run(signals).await
}

/// All routes of the admin port.
fn routes(state: AdminState) -> Router {
    let guard = axum::middleware::from_fn_with_state(
        state.request_guard.clone(),
        request_guard::check_request,
    );
    admin_port::probe_routes(get(answer_ready))
        .merge(api::routes(&state))
        .merge(console::routes())
        .fallback(api::not_found)
        .layer(guard)
        .with_state(state)
}

/// The routes for connections that exceed `admin.connections_max`.
fn overflow_routes(state: AdminState, admin: &Admin) -> Router {
    let guard = axum::middleware::from_fn_with_state(
        state.request_guard.clone(),
        request_guard::check_request,
    );
    admin_port::probe_routes(get(answer_ready))
        .fallback(admin_port::refuse_overflow(admin))
        .layer(guard)
        .with_state(state)
}

/// `/readyz`: ready if all shards answer, the server is not stopping, and a node of a cluster can read the log.
async fn answer_ready(State(state): State<AdminState>) -> (StatusCode, String) {
    if state.lifecycle.is_stopping() {
        let reason = "the server stops\n".to_string();
        return (StatusCode::SERVICE_UNAVAILABLE, reason);
    }
    if state.lifecycle.is_cut_off() {
        let reason = "this node cannot read the log of the cluster\n".to_string();
        return (StatusCode::SERVICE_UNAVAILABLE, reason);
    }
    match state.shards.accounts().await {
        Ok(_) => (StatusCode::OK, "ready\n".to_string()),
        Err(silent) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silent}\n")),
    }
}
