//! The state that all handlers of the admin port share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crore_shard_loop::counters::Counters;
use tokio::sync::watch;

use super::admin_port::PortCounters;
use super::chart_history::ChartHistory;
use super::data_port::DataPortClient;
use super::peer_nodes::PeerNodes;
use super::request_guard::RequestGuard;
use super::samples::LastSamples;
use super::webhooks::RunningWebhook;
use crate::config::EffectiveSettings;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// A shared reference to the [`AdminContext`], which each handler gets as axum's `State`.
pub type AdminState = Arc<AdminContext>;

/// The shared state.
pub struct AdminContext {
    /// Sends orders to the shards.
    pub shards: Shards,
    /// Checks each request before a handler gets it, and counts the refused requests.
    pub request_guard: Arc<RequestGuard>,
    /// Opens connections to the data port, for the console's pages that follow a topic live.
    pub data_port: DataPortClient,
    /// Counters of the admin port's connections.
    pub port_counters: Arc<PortCounters>,
    /// Reads and reloads the settings, drains the server, and knows the checkpoints.
    pub lifecycle: Lifecycle,
    /// Knows the other nodes of the cluster, and sends requests to them.
    pub peer_nodes: PeerNodes,
    pub webhooks: Arc<[RunningWebhook]>,
    /// The newest counters of the shards.
    pub counters: Arc<Counters>,
    /// The addresses of the data ports.
    pub data_addresses: Vec<SocketAddr>,
    /// The last two samples of the counters, from which rates are computed.
    pub samples: watch::Receiver<LastSamples>,
    /// The samples of the last quarter of an hour, for the console's charts.
    pub chart_history: ChartHistory,
    /// The start of the process.
    pub started_at: Instant,
}

impl AdminContext {
    /// The current settings, with the real addresses of the data ports in place of those in the file (which may have port 0).
    pub fn effective_settings(&self) -> EffectiveSettings {
        let mut effective = self.lifecycle.effective_settings();
        effective.file.listen.clone_from(&self.data_addresses);
        effective
    }

    pub fn uptime(&self) -> Duration {
        self.started_at.elapsed()
    }
}
