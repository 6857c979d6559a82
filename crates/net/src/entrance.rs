//! The way into a shard: its listeners, how fast it takes connections, and what happens when it has no room.
//!
//! Three things may hold up those who arrive, and none of them those who are in:
//!
//! * Past the rate nobody is accepted for some milliseconds; who arrives waits in the queue.
//! * A shard that is nearly full gets no new connections while others have more room ([`steering`](crate::steering)).
//!   What is in its queue still comes in, and past the last place it is answered and closed ([`Reserve`]).
//! * When not even that is possible (the whole machine is out of descriptors), the listeners are not looked at until a
//!   connection has ended or `STUCK_PAUSE_MS` have passed. Level-triggered, they would be ready for ever.
//!
//! Invariant: whoever pauses says until when, and [`Entrance::settle`] is called at least then.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::listener::Shed;
use crate::steering::{Group, Level, Member};
use crate::{Accepted, Driver, Fd, Listener, Reserve, SocketOptions, fd_table};

/// How long listeners that can neither accept nor shed are left alone.
const STUCK_PAUSE_MS: u64 = 100;
/// How long listeners are left alone when the rate is used up, or after a failure that may stay: the smallest time
/// that a coarse clock tells apart.
const SHORT_PAUSE_MS: u64 = 10;
/// What a rate allows at once after a quiet time, in milliseconds' worth. More would be a storm.
const RATE_BURST_MS: u64 = 50;
/// The part of a shard that is left when it is nearly full; half of it is for those in its queue.
const QUEUE_PART: u32 = 16;

/// Descriptors of a shard that are for those who are turned away, so that they are heard before: a part, and at most.
const TURNED_AWAY_PART: u64 = 64;
const TURNED_AWAY_MAX: u64 = 256;

/// What a shard lets in.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Length of each listener's queue, in connections.
    pub backlog: u32,
    /// Connections of this shard; its descriptors may bind first.
    pub connections_max: u32,
    /// Connections taken in a second; 0: as many as come.
    pub accepts_per_s: u32,
    /// What the sockets of all that come in are like.
    pub sockets: SocketOptions,
}

/// Connections that a shard takes in with so many free descriptors: nearly all, and the others are for those who are
/// turned away.
pub fn room(descriptors: u64) -> u64 {
    descriptors.saturating_sub((descriptors / TURNED_AWAY_PART).clamp(1, TURNED_AWAY_MAX))
}

/// What came of a look at a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A connection, and the address of its peer.
    Connection(Fd, SocketAddr),
    /// One was turned away for want of a descriptor or memory (`errno`); the next one may wait.
    Shed(i32),
    /// Nobody waits, or nobody is let in now.
    Nobody,
    /// Nobody is let in for a while: there is no descriptor or memory (`errno`) even to turn somebody away.
    Stuck(i32),
    /// The waiting connection is broken, or the listener is (`errno`).
    Failed(i32),
}

/// Nobody is let in for a while.
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
    tokens: Vec<u64>,
    reserve: Reserve,
    member: Member,
    limits: Limits,
    room: u32,
    /// Connections at the end of the last turn.
    connections: u32,
    out_of_descriptors: bool,
    pause: Option<Pause>,
    /// What the driver knows: whether the listeners are looked at.
    listens: bool,
    rate: Rate,
}

impl Entrance {
    /// Listens on all addresses, as a member of the group, in this thread's table; `token` gives the driver's token of
    /// each listener. To be made last, when all else that needs a descriptor is there.
    ///
    /// # Errors
    /// Those of [`Listener::bind`], which name the address, of [`Driver::add`] and [`Reserve::new`].
    pub fn open(
        listen: &[SocketAddr],
        limits: Limits,
        group: &Arc<Group>,
        driver: &mut Driver,
        token: impl Fn(usize) -> u64,
    ) -> io::Result<Entrance> {
        let bind = |addr: &SocketAddr| {
            Listener::bind(*addr, limits.backlog, &limits.sockets).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"))
            })
        };
        let (member, listeners) = group.join(|| listen.iter().map(bind).collect())?;
        let tokens: Vec<u64> = (0..listeners.len()).map(token).collect();
        for (listener, token) in listeners.iter().zip(&tokens) {
            driver.add(listener.fd(), *token, true, false)?;
        }
        let reserve = Reserve::new()?;
        let descriptors = fd_table::limit().saturating_sub(fd_table::open_count());
        let room = u32::try_from(room(descriptors)).unwrap_or(u32::MAX);
        Ok(Entrance {
            listeners,
            tokens,
            reserve,
            member,
            room: room.min(limits.connections_max),
            connections: 0,
            out_of_descriptors: false,
            pause: None,
            listens: true,
            rate: Rate::new(limits.accepts_per_s),
            limits,
        })
    }

    /// The listeners, in the order of their addresses.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Lets nobody come into the queues any more; those who wait there can still be [accepted](Entrance::accept), however
    /// many in a second. Then [`close`](Entrance::close).
    pub fn bar(&mut self) {
        for listener in &self.listeners {
            // Without the filter whoever comes between the last accept and the close is reset: no reason to stop.
            let _ = listener.bar();
        }
        self.rate = Rate::new(0);
        self.pause = None;
    }

    /// Closes the listeners, which resets what is left in their queues.
    pub fn close(&mut self) {
        self.listeners.clear();
        self.tokens.clear();
    }

    /// Connections that the shard has room for; a few more have descriptors, to be told that there is none.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// How much room the shard has, as it last told the others.
    pub fn level(&self) -> Level {
        self.member.level()
    }

    /// Takes a connection from the listener, or turns one away with what `answer` makes of the bytes that it has sent
    /// until now.
    pub fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Arrival {
        if self.pause.is_some() {
            return Arrival::Nobody;
        }
        if !self.rate.has(now_ms) {
            self.pause(now_ms + SHORT_PAUSE_MS, false);
            return Arrival::Nobody;
        }
        match self.listeners[listener].accept() {
            Accepted::Connection(fd, peer) => {
                self.rate.take();
                Arrival::Connection(fd, peer)
            }
            Accepted::Again => Arrival::Nobody,
            Accepted::Failed(errno) => {
                self.pause(now_ms + SHORT_PAUSE_MS, false);
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

    /// To be called at the end of each turn: tells driver and group what follows from the turn. `connections` are
    /// those that are open.
    ///
    /// # Errors
    /// When the kernel takes no program for the group; everything else is done.
    pub fn settle(&mut self, driver: &mut Driver, connections: u32, now_ms: u64) -> io::Result<()> {
        let freed = connections < self.connections;
        self.connections = connections;
        if std::mem::take(&mut self.out_of_descriptors) {
            // What we counted on was not there.
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
            for (listener, token) in self.listeners.iter().zip(&self.tokens) {
                driver.modify(listener.fd(), *token, listens, false)?;
            }
        }
        self.member
            .set_level(self.level_with(connections), &self.listeners)
    }

    /// The greatest wait after which [`settle`](Entrance::settle) must be called, in milliseconds.
    pub fn wait_ms(&self, now_ms: u64) -> Option<u32> {
        let pause = self.pause.as_ref()?;
        Some(pause.until_ms.saturating_sub(now_ms).max(1) as u32)
    }

    fn pause(&mut self, until_ms: u64, stuck: bool) {
        self.pause = Some(Pause { until_ms, stuck });
    }

    /// Up at once, down only with some room to spare: the group is not told of each connection at the brink.
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

/// What one connection takes from the bucket.
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
}
