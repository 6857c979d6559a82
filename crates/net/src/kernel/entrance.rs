//! The way into a shard: its listeners, how fast it takes connections, and what happens when it has no room.
//!
//! Three mechanisms may hold up new connections, and none of them affects established ones:
//!
//! * Past the rate nobody is let in for some milliseconds; new connections wait in a [`Line`], in fair turns by address, and in the accept
//!   queue once that is full. Those that are turned away count a quarter, so that a crowd of them holds up the others less.
//! * A shard that is nearly full gets no new connections while others have more room ([`steering`](super::steering)).
//!   Connections in its queue are still accepted, and when the last place is taken they are answered and closed
//!   ([`Reserve`]).
//! * When not even that is possible (the whole machine is out of descriptors), the listeners are ignored until a connection
//!   has ended or `STUCK_PAUSE_MS` have passed. Level-triggered, they would be ready for ever.
//!
//! Invariant: a pause always has an end, and [`Entrance::settle`] is called then at the latest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::driver::{self, Driver};
use super::fd_table;
use super::line::Line;
use super::listener::{Accepted, Listener, Reserve, Shed, SocketOptions};
use super::steering::{Group, Level, Member};
use crate::transport::{Arrival, Link};

/// How long listeners that can neither accept nor shed are left alone.
const STUCK_PAUSE_MS: u64 = 100;
/// How long listeners are left alone when the rate is used up, or after a failure that may stay: the smallest time
/// that a coarse clock tells apart.
const SHORT_PAUSE_MS: u64 = 10;
/// How large a burst the rate allows after a quiet time, in milliseconds of the rate. More would be a storm.
const RATE_BURST_MS: u64 = 50;
/// Connections that may wait in the line, as far as there is room for them; and how many come from a queue into the line before one is let in.
const LINE_MAX: usize = 512;
const LINE_UP: usize = 16;
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
    /// Connections accepted per second; 0: no limit.
    pub accepts_per_s: u32,
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
    rate: Rate,
    line: Line,
    /// The listener whose queue was found empty, until the line is, or the turn ends.
    empty: Option<usize>,
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
            rate: Rate::new(limits.accepts_per_s),
            line: Line::default(),
            empty: None,
            limits,
        })
    }

    /// The listeners, in the order of their addresses.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Lets no more connections into the queues; those already queued can still be [accepted](Entrance::accept), without
    /// regard to the rate. Then [`close`](Entrance::close).
    pub fn bar(&mut self) {
        for listener in &self.listeners {
            // Without the filter a connection that arrives between the last accept and the close is reset: no reason to
            // stop.
            let _ = listener.bar();
        }
        self.rate = Rate::new(0);
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

    /// Lets in the connection that is next, after it has asked the listener for those that wait there; or turns one of them away with the
    /// answer that `answer` makes of the bytes received so far.
    pub fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Arrival {
        if self.pause.is_some() {
            return Arrival::Nobody;
        }
        let last = self.line_up(listener);
        if !self.rate.has(now_ms) {
            self.pause(now_ms + SHORT_PAUSE_MS, false);
            return Arrival::Nobody;
        }
        if let Some((fd, peer)) = self.line.pop() {
            self.rate.take();
            return Arrival::Connection(Link(fd.0), peer);
        }
        self.empty = None;
        match last {
            Accepted::Connection(..) | Accepted::Again => Arrival::Nobody,
            Accepted::Failed(errno) => {
                self.pause(now_ms + SHORT_PAUSE_MS, false);
                Arrival::Failed(errno)
            }
            Accepted::Full(errno) => self.shed(listener, errno, now_ms, answer),
        }
    }

    /// Takes some connections from a listener's queue into the line, and returns why there are no more.
    fn line_up(&mut self, listener: usize) -> Accepted {
        let places = LINE_MAX.min((self.room / QUEUE_PART) as usize).max(1);
        for _ in 0..LINE_UP {
            if self.empty == Some(listener) || self.line.len() >= places {
                break;
            }
            match self.listeners[listener].accept() {
                Accepted::Connection(fd, peer) => self.line.push(fd, peer.ip()),
                Accepted::Again => self.empty = Some(listener),
                other => return other,
            }
        }
        Accepted::Again
    }

    /// Whether somebody may be let in, though no listener says so.
    pub fn is_due(&self) -> bool {
        self.pause.is_none() && !self.line.is_empty()
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
            Shed::Done => {
                self.rate.take();
                Arrival::Shed(errno)
            }
            Shed::Nobody => Arrival::Nobody,
            Shed::Unable => {
                self.pause(now_ms + STUCK_PAUSE_MS, true);
                Arrival::Stuck(errno)
            }
        }
    }

    /// To be called at the end of each turn: updates the driver and the group. `connections` is the number of open ones.
    ///
    /// # Errors
    /// When the kernel refuses the group's program; everything else is done.
    pub fn settle(&mut self, driver: &mut Driver, connections: u32, now_ms: u64) -> io::Result<()> {
        self.empty = None;
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
        self.member.set_level(
            self.level_with(connections + self.line.len() as u32),
            &self.listeners,
        )
    }

    /// The connection that was accepted last counts a quarter against the rate.
    pub fn was_turned_away(&mut self) {
        self.rate.give_back(TOKEN / 4 * 3);
    }

    /// When [`settle`](Entrance::settle) must be called at the latest, while a pause lasts.
    pub fn paused_until_ms(&self) -> Option<u64> {
        self.pause.as_ref().map(|pause| pause.until_ms)
    }

    fn pause(&mut self, until_ms: u64, stuck: bool) {
        self.pause = Some(Pause { until_ms, stuck });
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

/// A bucket of thousandths of connections.
#[derive(Debug)]
struct Rate {
    per_s: u64,
    filled: u64,
    at_ms: u64,
}

/// The cost of one connection, in units of the bucket.
const TOKEN: u64 = 1_000;

impl Rate {
    fn new(per_s: u32) -> Rate {
        let per_s = u64::from(per_s);
        Rate {
            per_s,
            filled: Rate::room(per_s),
            at_ms: 0,
        }
    }

    fn room(per_s: u64) -> u64 {
        TOKEN + per_s * RATE_BURST_MS
    }

    fn has(&mut self, now_ms: u64) -> bool {
        if self.per_s == 0 {
            return true;
        }
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        self.at_ms = now_ms;
        let filled = self
            .filled
            .saturating_add(passed_ms.saturating_mul(self.per_s));
        self.filled = filled.min(Rate::room(self.per_s));
        self.filled >= TOKEN
    }

    fn take(&mut self) {
        self.filled = self.filled.saturating_sub(TOKEN);
    }

    fn give_back(&mut self, part: u64) {
        self.filled = (self.filled + part).min(Rate::room(self.per_s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_holds_over_time_and_a_quiet_time_saves_little() {
        for (per_s, step_ms) in [(1, 10), (7, 10), (1_000, 1), (30_000, 4), (30_000, 100)] {
            let mut rate = Rate::new(per_s);
            let mut taken = 0;
            for ms in (50_000..60_000).step_by(step_ms) {
                while rate.has(ms) {
                    rate.take();
                    taken += 1;
                }
            }
            let burst = per_s / 20 + 1;
            let most = u32::try_from(10_000 / step_ms).unwrap() * burst;
            let due = (per_s * 10).min(most);
            assert!(
                (due - due / 50..=due + burst + 1).contains(&taken),
                "{taken} at {per_s}/s by {step_ms} ms"
            );
        }
        let mut free = Rate::new(0);
        assert!((0..1_000).all(|_| free.has(1)));
    }

    #[test]
    fn what_is_given_back_may_be_taken_again_and_no_more() {
        let mut rate = Rate::new(1_000);
        for _ in 0..1_000 {
            assert!(rate.has(1));
            rate.take();
            rate.give_back(TOKEN);
        }
        let mut taken = 0;
        while rate.has(1) {
            rate.take();
            taken += 1;
        }
        assert_eq!(taken, 1_000 * RATE_BURST_MS / 1_000 + 1);
    }
}
