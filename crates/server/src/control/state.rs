//! The state that all handlers of the admin port share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crore_shard_loop::counters::Counters;
use tokio::sync::watch;

use super::data_port::DataPort;
use super::gate::Gate;
use super::neighbours::Neighbours;
use super::port::Counts;
use super::recent::Recent;
use super::samples::Samples;
use crate::config::Effective;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// The shared state, of which each handler gets a reference (axum's `State`).
pub type AdminState = Arc<Parts>;

pub struct Parts {
    pub shards: Shards,
    pub gate: Arc<Gate>,
    pub data_port: DataPort,
    pub port: Arc<Counts>,
    pub lifecycle: Lifecycle,
    pub neighbours: Neighbours,
    pub counters: Arc<Counters>,
    /// The addresses of the data ports.
    pub listen: Vec<SocketAddr>,
    pub samples: watch::Receiver<Samples>,
    pub recent: Recent,
    pub began: Instant,
}

impl Parts {
    /// The current settings, with the real addresses of the data ports in place of those in the file (which may have port 0).
    pub fn effective(&self) -> Effective {
        let mut effective = self.lifecycle.effective();
        effective.file.listen.clone_from(&self.listen);
        effective
    }

    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }
}
