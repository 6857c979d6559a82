//! The state that every handler of the admin port shares.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::door::Door;
use super::gate::Gate;
use super::moments::Moments;
use super::neighbours::Neighbours;
use super::port::Counts;
use super::recent::Recent;
use crate::config::Effective;
use crate::counters::Counters;
use crate::life::Life;
use crate::life::shards::Shards;

/// The state that every handler shares.
pub type Plane = Arc<Inner>;

/// The parts of a [`Plane`].
pub struct Inner {
    pub shards: Shards,
    pub gate: Arc<Gate>,
    pub door: Door,
    pub port: Arc<Counts>,
    pub life: Life,
    pub neighbours: Neighbours,
    pub counters: Arc<Counters>,
    /// Where the data ports are.
    pub listen: Vec<SocketAddr>,
    pub moments: watch::Receiver<Moments>,
    pub recent: Recent,
    pub began: Instant,
}

impl Inner {
    /// The settings that hold, with the ports that the data has.
    pub fn effective(&self) -> Effective {
        let mut effective = self.life.effective();
        effective.file.listen.clone_from(&self.listen);
        effective
    }

    /// Since the server began.
    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }
}
