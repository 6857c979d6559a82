//! The way into a shard: its listeners, when they are ignored, and the refusal when the shard has no room.
//!
//! Three mechanisms may hold up new connections, and none of them affects established ones:
//!
//! * The layer above lets nobody in for a while, since the rate is used up ([`Entrance::pause`]): new connections wait in the accept queue.
//! * A shard that is nearly full gets no new connections while others have more room ([`steering`](super::steering)).
//!   Connections in its queue are still accepted, and when the last place is taken they are answered and closed
//!   ([`Reserve`]).
//! * When not even that is possible (the whole machine is out of descriptors), the listeners are ignored until a connection
//!   has ended or `STUCK_PAUSE_MS` have passed. Level-triggered, they would be ready for ever.
//!
//! Deliberately elsewhere: how fast connections are let in, and which is next.
//!
//! Invariant: a pause always has an end, and [`Entrance::settle`] is called then at the latest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::driver::{self, Driver};
use super::fd_table;
use super::listener::{Accepted, Listener, Reserve, Shed, SocketOptions};
use super::steering::{Group, Level, Member};
use crate::transport::{Arrival, Link};

/// How long listeners that can neither accept nor shed are left alone.
const STUCK_PAUSE_MS: u64 = 100;
/// How long listeners are left alone after a failure that may stay: the smallest time that a coarse clock tells apart.
const FAILED_PAUSE_MS: u64 = 10;
/// The part of a shard that is left when it is nearly full; half of it is for connections in its accept queue.
const QUEUE_PART: u32 = 16;

/// Descriptors of a shard that are reserved for connections to be turned away, so that their requests are read first: a
/// part, and a maximum.
const TURNED_AWAY_PART: u64 = 64;
const TURNED_AWAY_MAX: u64 = 256;

/// How many connections a shard accepts, and with which socket options.
#[derive(Clone, Default, Debug)]
pub struct Limits {
    /// Length of each listener's queue, in connections.
    pub backlog: u32,
    /// Connections of this shard; its descriptors may bind first.
    pub connections_max: u32,
    /// Options of all accepted sockets.
    pub sockets: SocketOptions,
}

/// Connections that a shard accepts with so many free descriptors: nearly all, and the rest is for connections that are
/// turned away.
pub fn room(descriptors: u64) -> u64 {
    descriptors.saturating_sub((descriptors / TURNED_AWAY_PART).clamp(1, TURNED_AWAY_MAX))
}

/// Nothing is accepted until this time.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until_ms: u64,
    /// For want of a descriptor: over as soon as a connection has ended.
    stuck: bool,
}

/// The listeners of one shard.
#[derive(Debug)]
pub struct Entrance {
    listeners: Vec<Listener>,
    reserve: Reserve,
    member: Member,
    limits: Limits,
    room: u32,
    /// Connections at the end of the last turn.
    connections: u32,
    out_of_descriptors: bool,
    pause: Option<Pause>,
    /// Whether the listeners are registered for reading with the driver.
    listens: bool,
}

impl Entrance {
    /// Listens on all addresses, as a member of the group, in this thread's table. To be made last, when all else that
    /// needs a descriptor is there.
    ///
    /// # Errors
    /// Those of [`Listener::bind`], which name the address, of [`Driver::add`] and [`Reserve::new`].
    pub fn open(
        listen: &[SocketAddr],
        limits: Limits,
        group: &Arc<Group>,
        driver: &mut Driver,
    ) -> io::Result<Entrance> {
        let bind = |addr: &SocketAddr| {
            Listener::bind(*addr, limits.backlog, &limits.sockets).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"))
            })
        };
        let (member, listeners) = group.join(|| listen.iter().map(bind).collect())?;
        for (n, listener) in listeners.iter().enumerate() {
            driver.add(listener.fd(), driver::listener(n))?;
        }
        let reserve = Reserve::new()?;
        let descriptors = fd_table::limit().saturating_sub(fd_table::open_count());
        let room = u32::try_from(room(descriptors)).unwrap_or(u32::MAX);
        Ok(Entrance {
            listeners,
            reserve,
            member,
            room: room.min(limits.connections_max),
            connections: 0,
            out_of_descriptors: false,
            pause: None,
            listens: true,
            limits,
        })
    }

    /// The listeners, in the order of their addresses.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Lets no more connections into the queues; those already queued can still be [accepted](Entrance::accept), also
    /// during a pause. Then [`close`](Entrance::close).
    pub fn bar(&mut self) {
        for listener in &self.listeners {
            // Without the filter a connection that arrives between the last accept and the close is reset: no reason to
            // stop.
            let _ = listener.bar();
        }
        self.pause = None;
    }

    /// Closes the listeners, which resets the connections in their queues.
    pub fn close(&mut self) {
        self.listeners.clear();
    }

    /// Connections that the shard has room for; a few more have descriptors, only to be answered that the shard is full.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// How much room the shard has, as last reported to the group.
    pub fn level(&self) -> Level {
        self.member.level()
    }

    /// Accepts a connection that waits at the listener; or turns one away with the answer that `answer` makes of the bytes received so far.
    pub fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Arrival {
        if self.pause.is_some() {
            return Arrival::Nobody;
        }
        match self.listeners[listener].accept() {
            Accepted::Connection(fd, peer) => Arrival::Connection(Link(fd.0), peer.ip()),
            Accepted::Again => Arrival::Nobody,
            Accepted::Failed(errno) => {
                self.begin_pause(now_ms + FAILED_PAUSE_MS, false);
                Arrival::Failed(errno)
            }
            Accepted::Full(errno) => self.shed(listener, errno, now_ms, answer),
        }
    }

    fn shed(
        &mut self,
        listener: usize,
        errno: i32,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Arrival {
        self.out_of_descriptors |= errno == libc::EMFILE;
        match self.reserve.shed(&self.listeners[listener], answer) {
            Shed::Done => Arrival::Shed(errno),
            Shed::Nobody => Arrival::Nobody,
            Shed::Unable => {
                self.begin_pause(now_ms + STUCK_PAUSE_MS, true);
                Arrival::Stuck(errno)
            }
        }
    }

    /// To be called at the end of each turn: updates the driver and the group. `connections` is the number of those accepted that are still open.
    ///
    /// # Errors
    /// When the kernel refuses the group's program; everything else is done.
    pub fn settle(&mut self, driver: &mut Driver, connections: u32, now_ms: u64) -> io::Result<()> {
        let freed = connections < self.connections;
        self.connections = connections;
        if std::mem::take(&mut self.out_of_descriptors) {
            // The descriptors that `room` counted on were not there.
            self.room = self.room.min(connections);
        }
        if let Some(pause) = &self.pause
            && (now_ms >= pause.until_ms || (pause.stuck && freed))
        {
            self.pause = None;
        }
        let listens = self.pause.is_none();
        if listens != self.listens {
            self.listens = listens;
            for (n, listener) in self.listeners.iter().enumerate() {
                driver.modify(listener.fd(), driver::listener(n), listens, false)?;
            }
        }
        self.member
            .set_level(self.level_with(connections), &self.listeners)
    }

    /// When [`settle`](Entrance::settle) must be called at the latest, while a pause lasts.
    pub fn paused_until_ms(&self) -> Option<u64> {
        self.pause.as_ref().map(|pause| pause.until_ms)
    }

    /// Accepts nothing until this time, or until the end of a longer pause.
    pub fn pause(&mut self, until_ms: u64) {
        self.begin_pause(until_ms, false);
    }

    fn begin_pause(&mut self, until_ms: u64, stuck: bool) {
        if self.paused_until_ms().is_none_or(|until| until < until_ms) {
            self.pause = Some(Pause { until_ms, stuck });
        }
    }

    /// Rises at once, falls only with some room to spare, so that the group is not told of each connection at the brink.
    fn level_with(&self, connections: u32) -> Level {
        let queue = (self.room / QUEUE_PART).min(self.limits.backlog).max(1);
        let level = |connections: u32| match connections {
            n if n >= self.room => Level::Full,
            n if n >= self.room.saturating_sub(queue / 2) => Level::Last,
            n if n >= self.room.saturating_sub(queue) => Level::Near,
            _ => Level::Open,
        };
        let spared = level(connections.saturating_add(queue / 4 + 1));
        level(connections).max(spared.min(self.member.level()))
    }
}
