//! One thread of clients: sockets, reconnections and clocks around the [`Client`]s.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;

use super::client::{Client, Met};
use super::world::World;
use crate::client::subscription::Next;
use crate::measure::payload::Random;
use crate::sys::{self, Dial, Epoll, Interest};

/// Bytes of one read.
const RECEIVE_BYTES: usize = 64 << 10;
/// Events of one wait.
const EVENTS: usize = 512;
/// Longest sleep.
const TURN: Duration = Duration::from_millis(20);
/// Longest time that a client stays away after a cut, while the network fails and afterwards.
const AWAY_NS: (u64, u64) = (3_000_000_000, 300_000_000);
/// The times grow up to this one, twice as long after each connection that was not answered: thousands of clients that knock at servers which are
/// gone would take the processors that these need to come back.
const AWAY_MAX_NS: u64 = 5_000_000_000;
/// First connections a second, of one thread.
const OPENING_PER_S: u64 = 2_000;
/// Time between two looks at which clients have everything.
const LOOK_NS: u64 = 100_000_000;
/// Reasons that are kept in words.
const REASONS_MAX: usize = 10;

/// The results of a thread of clients.
#[derive(Default)]
pub struct CrowdResult {
    /// All clients together.
    pub met: Met,
    /// Connections that ended before their time.
    pub lost_connections: u64,
    /// Answers that the server must not give, in words; the first few.
    pub violations: Vec<String>,
}

impl CrowdResult {
    /// Adds the results of another thread.
    pub fn merge(&mut self, other: CrowdResult) {
        self.met.merge(&other.met);
        self.lost_connections += other.lost_connections;
        self.violations.extend(other.violations);
    }
}

struct Seat {
    client: Client,
    /// How often it has connected: each time to the next address.
    dials: usize,
    /// Connections that were not answered, in a row.
    unanswered: u32,
    fd: RawFd,
    watched: Interest,
    connecting: bool,
    open: bool,
}

/// A share of the clients.
pub struct Crowd<'a> {
    world: &'a World,
    addresses: &'a [SocketAddr],
    first: u32,
    seats: Vec<Seat>,
    returns: BinaryHeap<Reverse<(u64, u32)>>,
    random: Random,
    epoll: Epoll,
    buffer: Vec<u8>,
    seen: CrowdResult,
    looked_ns: u64,
    complete: u32,
    /// When a client was due last to go to another address.
    moved_ns: u64,
}

impl<'a> Crowd<'a> {
    /// Clients `first..first + count`, which connect to any of these addresses. To be made on its own thread.
    pub fn new(
        world: &'a World,
        addresses: &'a [SocketAddr],
        first: u32,
        count: u32,
    ) -> Result<Crowd<'a>> {
        sys::part_descriptor_table()?;
        let seat = |number| Seat {
            client: Client::new(world.part(number), world),
            dials: 0,
            unanswered: 0,
            fd: -1,
            watched: Interest::IN,
            connecting: false,
            open: false,
        };
        let now = sys::now_ns();
        let turn = |index: u32| {
            Reverse((
                now + u64::from(index) * 1_000_000_000 / OPENING_PER_S,
                index,
            ))
        };
        Ok(Crowd {
            world,
            addresses,
            first,
            seats: (first..first + count).map(seat).collect(),
            returns: (0..count).map(turn).collect(),
            random: Random::new(world.seed ^ u64::from(first) << 24 ^ 0xc0de),
            epoll: Epoll::new(EVENTS)?,
            buffer: vec![0; RECEIVE_BYTES],
            seen: CrowdResult::default(),
            looked_ns: 0,
            complete: 0,
            moved_ns: 0,
        })
    }

    /// Receives until the run is over, then judges.
    pub fn run(mut self) -> Result<CrowdResult> {
        while !self.world.stop.load(Relaxed) {
            let count = self.epoll.wait(TURN)?;
            for index in 0..count {
                let ready = self.epoll.ready(index);
                let seat = ready.key as usize;
                if self.seats[seat].connecting {
                    self.connected(seat);
                } else if ready.readable {
                    self.readable(seat);
                }
                if ready.writable {
                    self.flush(seat);
                }
            }
            self.open_due();
            self.move_some();
            self.look();
        }
        for seat in 0..self.seats.len() {
            self.leave(seat);
            self.seats[seat]
                .client
                .close(self.world, &mut self.seen.met);
        }
        Ok(self.seen)
    }

    fn open_due(&mut self) {
        let now = sys::now_ns();
        while self
            .returns
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            let Some(Reverse((_, seat))) = self.returns.pop() else {
                return;
            };
            self.dial(seat as usize);
        }
    }

    /// Has clients whose time is over leave by themselves.
    fn move_some(&mut self) {
        let (now, stays_s) = (sys::now_ns(), self.world.stays_s.load(Relaxed));
        let each_ns = u64::from(stays_s) * 1_000_000_000 / self.seats.len() as u64;
        if each_ns == 0 {
            self.moved_ns = now;
            return;
        }
        while self.moved_ns + each_ns <= now {
            self.moved_ns += each_ns;
            let seat = self.random.below(self.seats.len() as u32) as usize;
            if self.seats[seat].client.live {
                self.leave(seat);
                self.later(seat);
            }
        }
    }

    fn dial(&mut self, seat: usize) {
        let number = self.first as usize + seat;
        let turn = number + self.seats[seat].dials;
        self.seats[seat].dials += 1;
        let dial = Dial {
            remote: self.addresses[turn % self.addresses.len()],
            local: Some(([127, 0, 1, 1 + (number % 20) as u8], 0).into()),
            receive_buffer: None,
        };
        let Ok((fd, connected)) = sys::dial(&dial) else {
            return self.later(seat);
        };
        let row = &mut self.seats[seat];
        (row.fd, row.open, row.connecting) = (fd, true, true);
        row.watched = Interest::IN | Interest::OUT;
        if self.epoll.add(fd, row.watched, seat as u64).is_err() {
            return self.lost(seat);
        }
        if connected {
            self.connected(seat);
        }
    }

    fn connected(&mut self, seat: usize) {
        let row = &mut self.seats[seat];
        row.connecting = false;
        if sys::connect_result(row.fd).is_err() {
            return self.lost(seat);
        }
        row.client.connected();
        self.flush(seat);
    }

    fn flush(&mut self, seat: usize) {
        let row = &mut self.seats[seat];
        if !row.open || row.connecting {
            return;
        }
        while !row.client.subscription.out.is_empty() {
            match sys::send(row.fd, &row.client.subscription.out) {
                Ok(0) => break,
                Ok(count) => drop(row.client.subscription.out.drain(..count)),
                Err(_) => return self.lost(seat),
            }
        }
        let wanted = sys::reading(!row.client.subscription.out.is_empty());
        if wanted != row.watched {
            row.watched = wanted;
            if self.epoll.modify(row.fd, wanted, seat as u64).is_err() {
                self.lost(seat);
            }
        }
    }

    fn readable(&mut self, seat: usize) {
        let row = &mut self.seats[seat];
        if !row.open {
            return;
        }
        let count = match sys::receive(row.fd, &mut self.buffer) {
            Ok(None) => return,
            Ok(Some(0)) | Err(_) => return self.lost(seat),
            Ok(Some(count)) => count,
        };
        let was = row.client.live;
        let next = row
            .client
            .received(&self.buffer[..count], self.world, &mut self.seen.met);
        if row.client.live && !was {
            self.world.live.fetch_add(1, Relaxed);
        }
        match next {
            Ok(Next::Stay) => return self.flush(seat),
            Err(reason) if self.seen.violations.len() < REASONS_MAX => {
                let number = self.first as usize + seat;
                let violation = format!("client {number}: {reason}");
                self.seen.violations.push(violation);
            }
            Ok(Next::Return) | Err(_) => {}
        }
        self.leave(seat);
        self.later(seat);
    }

    /// Closes a connection that was cut, and has the client return later.
    fn lost(&mut self, seat: usize) {
        self.seen.lost_connections += 1;
        self.leave(seat);
        self.later(seat);
    }

    fn leave(&mut self, seat: usize) {
        let row = &mut self.seats[seat];
        if !row.open {
            return;
        }
        sys::close(row.fd);
        (row.open, row.connecting) = (false, false);
        row.unanswered += 1;
        if std::mem::take(&mut row.client.live) {
            row.unanswered = 0;
            self.world.live.fetch_sub(1, Relaxed);
        }
    }

    fn later(&mut self, seat: usize) {
        let most = match self.world.away_s.load(Relaxed) {
            0 if self.world.faults.load(Relaxed) => AWAY_NS.0,
            0 => AWAY_NS.1,
            seconds => u64::from(seconds) * 1_000_000_000,
        };
        let unanswered = self.seats[seat].unanswered;
        let grown = most.saturating_mul(1 << unanswered.min(16));
        let away = self.random.draw() % grown.min(most.max(AWAY_MAX_NS));
        self.returns
            .push(Reverse((sys::now_ns() + away, seat as u32)));
    }

    /// Tells how many have everything, once there is a last message.
    fn look(&mut self) {
        let now = sys::now_ns();
        if !self.world.closing.load(Relaxed) || now < self.looked_ns + LOOK_NS {
            return;
        }
        self.looked_ns = now;
        let complete = |seat: &&Seat| seat.client.is_complete(self.world);
        let count = self.seats.iter().filter(complete).count() as u32;
        self.world
            .complete
            .fetch_add(count.wrapping_sub(self.complete), Relaxed);
        self.complete = count;
    }
}
