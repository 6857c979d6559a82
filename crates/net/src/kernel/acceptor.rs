//! Accepts the connections of a shard: its listeners, the pauses in accepting, and the refusal of connections when the shard has no room.
//!
//! Three mechanisms delay or refuse new connections. None of them affects established ones:
//!
//! * The caller pauses accepting, because the connection rate is used up ([`Acceptor::pause`]). New connections wait in the accept
//!   queue.
//! * A shard that is nearly full gets no new connections while other shards have more room ([`steering`](super::steering)). It still
//!   accepts the connections in its queue. When the shard is full it answers and closes them ([`SpareDescriptor`]).
//! * If even that fails, because the machine is out of descriptors, the listeners are ignored until a connection has ended or
//!   `CANNOT_SHED_PAUSE_MS` have passed. Otherwise every wait would report them as ready.
//!
//! The caller decides how fast connections are accepted, and from which listener next.
//!
//! Invariant: every pause has an end, and the caller calls [`Acceptor::adjust_accepting`] no later than then.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::driver::{self, Driver};
use super::fd_table;
use super::listener::{Accepted, Listener, ShedOutcome, SocketOptions, SpareDescriptor};
use super::steering::{Group, Level, Member};
use crate::transport::{AcceptResult, Link};

/// The pause after an accept failed for lack of a descriptor or memory, and the refusal failed too.
const CANNOT_SHED_PAUSE_MS: u64 = 100;
/// The pause after another failure, which may be permanent. It is the smallest step of a coarse clock.
const FAILED_PAUSE_MS: u64 = 10;
/// A shard is nearly full if at most 1/16 of its room is left. The last half of that rest is kept for the connections in its accept queue.
const NEARLY_FULL_DIVISOR: u32 = 16;

/// A shard reserves 1/64 of its descriptors, but at most 256, for connections that it refuses: it needs a descriptor to read the request
/// and answer it.
const REFUSAL_DIVISOR: u64 = 64;
const REFUSAL_DESCRIPTORS_MAX: u64 = 256;

/// The limits of a shard's connections, and their socket options.
#[derive(Clone, Default, Debug)]
pub struct Limits {
    /// Length of each listener's accept queue, in connections.
    pub backlog: u32,
    /// The maximum number of connections of this shard. There may be fewer descriptors.
    pub connections_max: u32,
    /// Options of all accepted sockets.
    pub sockets: SocketOptions,
}

/// The number of connections that a shard with this many free descriptors accepts. The other descriptors are for refused connections.
pub fn room(descriptors: u64) -> u64 {
    descriptors.saturating_sub((descriptors / REFUSAL_DIVISOR).clamp(1, REFUSAL_DESCRIPTORS_MAX))
}

/// A pause in accepting.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until_ms: u64,
    /// There was no descriptor, so the pause also ends when a connection ends.
    ends_with_a_connection: bool,
}

/// The listeners of one shard.
#[derive(Debug)]
pub struct Acceptor {
    listeners: Vec<Listener>,
    spare_descriptor: SpareDescriptor,
    member: Member,
    limits: Limits,
    room: u32,
    /// Number of open connections at the last call of `adjust_accepting`.
    connections: u32,
    ran_out_of_descriptors: bool,
    pause: Option<Pause>,
    /// Whether the driver reports the arrival of connections at the listeners.
    reports_arrivals: bool,
}

impl Acceptor {
    /// Listens on all addresses, as a member of the group, in this thread's descriptor table. Must be called after everything else
    /// has its descriptors, since it counts the free ones.
    ///
    /// # Errors
    /// Those of [`Listener::bind`] (which name the address), [`Driver::add`] and [`SpareDescriptor::new`].
    pub fn open(
        listen: &[SocketAddr],
        limits: Limits,
        group: &Arc<Group>,
        driver: &mut Driver,
    ) -> io::Result<Acceptor> {
        let bind = |addr: &SocketAddr| {
            Listener::bind(*addr, limits.backlog, &limits.sockets).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"))
            })
        };
        let (member, listeners) = group.join(|| listen.iter().map(bind).collect())?;
        for (index, listener) in listeners.iter().enumerate() {
            driver.add(listener.fd(), driver::listener_token(index))?;
        }
        let spare_descriptor = SpareDescriptor::new()?;
        let descriptors = fd_table::raise_limit().saturating_sub(fd_table::open_count());
        let room = u32::try_from(room(descriptors)).unwrap_or(u32::MAX);
        Ok(Acceptor {
            listeners,
            spare_descriptor,
            member,
            room: room.min(limits.connections_max),
            connections: 0,
            ran_out_of_descriptors: false,
            pause: None,
            reports_arrivals: true,
            limits,
        })
    }

    /// The listeners, in the order of their addresses.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Keeps new connections out of the accept queues. Queued connections can still be [accepted](Acceptor::accept), also during a pause.
    /// Call [`close`](Acceptor::close) afterwards.
    pub fn block_new_connections(&mut self) {
        for listener in &self.listeners {
            // A failure is tolerable: only a connection that arrives between the last accept and the close is reset.
            let _ = listener.block_new_connections();
        }
        self.pause = None;
    }

    /// Closes the listeners, which resets the connections in their queues.
    pub fn close(&mut self) {
        self.listeners.clear();
    }

    /// The number of connections for which the shard has room. There are a few more descriptors, only to answer and close connections.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// The level of the shard that was last reported to the group.
    pub fn level(&self) -> Level {
        self.member.level()
    }

    /// Accepts a connection; see [`Transport::accept`](crate::Transport::accept).
    pub fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> AcceptResult {
        if self.pause.is_some() {
            return AcceptResult::NoConnection;
        }
        match self.listeners[listener].accept() {
            Accepted::Connection(fd, peer) => AcceptResult::Connection(Link(fd.0), peer.ip()),
            Accepted::Again => AcceptResult::NoConnection,
            Accepted::Failed(errno) => {
                self.begin_pause(now_ms + FAILED_PAUSE_MS, false);
                AcceptResult::Failed(errno)
            }
            Accepted::Full(errno) => self.shed(listener, errno, now_ms, answer),
        }
    }

    /// Refuses a waiting connection, because there is no descriptor or memory for it (`errno`).
    fn shed(
        &mut self,
        listener: usize,
        errno: i32,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> AcceptResult {
        self.ran_out_of_descriptors |= errno == libc::EMFILE;
        match self
            .spare_descriptor
            .shed(&self.listeners[listener], answer)
        {
            ShedOutcome::Shed => AcceptResult::Shed(errno),
            ShedOutcome::NoConnection => AcceptResult::NoConnection,
            ShedOutcome::NoDescriptor => {
                self.begin_pause(now_ms + CANNOT_SHED_PAUSE_MS, true);
                AcceptResult::CannotShed(errno)
            }
        }
    }

    /// Begins or ends a pause in the driver, and reports the level to the group. Must be called at the end of each round of the shard's
    /// loop. `connections` is the number of open connections.
    ///
    /// # Errors
    /// If the kernel refuses the group's program. All other updates are done even then.
    pub fn adjust_accepting(
        &mut self,
        driver: &mut Driver,
        connections: u32,
        now_ms: u64,
    ) -> io::Result<()> {
        let has_freed_room = connections < self.connections;
        self.connections = connections;
        if std::mem::take(&mut self.ran_out_of_descriptors) {
            // There are fewer descriptors than `room` assumed.
            self.room = self.room.min(connections);
        }
        if let Some(pause) = &self.pause
            && (now_ms >= pause.until_ms || (pause.ends_with_a_connection && has_freed_room))
        {
            self.pause = None;
        }
        let reports_arrivals = self.pause.is_none();
        if reports_arrivals != self.reports_arrivals {
            self.reports_arrivals = reports_arrivals;
            for (index, listener) in self.listeners.iter().enumerate() {
                driver.modify(
                    listener.fd(),
                    driver::listener_token(index),
                    reports_arrivals,
                    false,
                )?;
            }
        }
        self.member
            .set_level(self.level_at(connections), &self.listeners)
    }

    /// The end of the pause, if there is one. [`adjust_accepting`](Acceptor::adjust_accepting) must be called no later.
    pub fn paused_until_ms(&self) -> Option<u64> {
        self.pause.as_ref().map(|pause| pause.until_ms)
    }

    /// Accepts no connections until this time. A pause that lasts longer is not changed.
    pub fn pause(&mut self, until_ms: u64) {
        self.begin_pause(until_ms, false);
    }

    fn begin_pause(&mut self, until_ms: u64, ends_with_a_connection: bool) {
        if self.paused_until_ms().is_none_or(|until| until < until_ms) {
            self.pause = Some(Pause {
                until_ms,
                ends_with_a_connection,
            });
        }
    }

    /// The level with this number of connections. The level rises at once, but it falls only when some more room is free, so that it does
    /// not change with each connection around a threshold.
    fn level_at(&self, connections: u32) -> Level {
        let reserved_room = (self.room / NEARLY_FULL_DIVISOR)
            .min(self.limits.backlog)
            .max(1);
        let level = |connections: u32| match connections {
            count if count >= self.room => Level::Full,
            count if count >= self.room.saturating_sub(reserved_room / 2) => Level::QueueOnly,
            count if count >= self.room.saturating_sub(reserved_room) => Level::NearlyFull,
            _ => Level::Open,
        };
        let level_with_slack = level(connections.saturating_add(reserved_room / 4 + 1));
        level(connections).max(level_with_slack.min(self.member.level()))
    }
}
