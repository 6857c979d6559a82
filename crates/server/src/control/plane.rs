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
use crate::board::Board;
use crate::config::Effective;
use crate::life::Life;
use crate::life::shards::Shards;

/// The state that every handler shares.
#[derive(Clone)]
pub struct Plane(Arc<Inner>);

/// The parts of a [`Plane`].
pub struct Inner {
    pub shards: Shards,
    pub gate: Arc<Gate>,
    pub door: Door,
    pub port: Arc<Counts>,
    pub life: Life,
    pub neighbours: Neighbours,
    pub board: Arc<Board>,
    /// Where the data ports are.
    pub listen: Vec<SocketAddr>,
    pub moments: watch::Receiver<Moments>,
    pub recent: Recent,
    pub began: Instant,
}

impl Plane {
    /// With these.
    pub fn new(inner: Inner) -> Self {
        Plane(Arc::new(inner))
    }

    /// The shards.
    pub fn shards(&self) -> &Shards {
        &self.0.shards
    }

    /// The server's life.
    pub fn life(&self) -> &Life {
        &self.0.life
    }

    /// The other nodes of a cluster.
    pub fn neighbours(&self) -> &Neighbours {
        &self.0.neighbours
    }

    /// The way to the data port.
    pub fn door(&self) -> &Door {
        &self.0.door
    }

    /// Their counters.
    pub fn board(&self) -> &Arc<Board> {
        &self.0.board
    }

    /// The settings that hold, with the ports that the data has.
    pub fn effective(&self) -> Effective {
        let mut effective = self.life().effective();
        effective.file.listen.clone_from(&self.0.listen);
        effective
    }

    /// The checks of requests.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }

    /// The admin port's counters.
    pub fn port(&self) -> &Arc<Counts> {
        &self.0.port
    }

    /// Since the server began.
    pub fn uptime(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Samples of the moments of the last minutes.
    pub fn recent(&self) -> &Recent {
        &self.0.recent
    }

    /// The newest two moments of the board, each second.
    pub fn moments(&self) -> &watch::Receiver<Moments> {
        &self.0.moments
    }
}
