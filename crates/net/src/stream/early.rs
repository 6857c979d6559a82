//! Connections whose handshake is not over: how they wait for their share of a turn, and for their peers.
//!
//! A step of a handshake may cost as much as a hundred deliveries, so that steps are not done as bytes come: who has some is put in
//! a queue, from which each turn takes as many as its share of time allows. Whoever is still in it when the turn ends is not
//! read until its step is done.

use std::time::Instant;

use super::handshake::Handshake;
use super::table::Entry;
use super::{Streams, Taken, Then, Trouble};
use crate::{Driver, Fd, Received, Sent, memory, socket};

/// The time that handshakes have of a turn, in nanoseconds: a few with an ECDSA key, and one at least with any. It is how
/// much longer a delivery may wait while a storm goes on.
const TURN_NS: u64 = 500_000;

/// What is said of a flight for which there is no room.
const TOO_LONG: &str = "its handshake is too long";
/// And of one that stopped.
const GONE: &str = "it ended before its handshake";
/// Handshakes that are over and still stand in the order of those that began, where the limit is small.
const STALE: usize = 64;
/// So many handshakes at once leave megabytes of freed memory behind, which is given back when none is under way.
const RUSH: usize = 128;

/// A connection whose handshake is not over.
pub struct Early {
    token: u64,
    /// None when it has failed, or was given up: what comes is not looked at.
    handshake: Option<Box<Handshake>>,
    /// What of it is counted.
    held: usize,
    queued: bool,
    parked: bool,
}

impl Early {
    /// Whether it is the handshake of this connection, and not over.
    fn is(&self, token: u64) -> bool {
        self.token == token && self.handshake.is_some()
    }
}

impl Streams {
    /// A handshake begins with these bytes.
    pub(super) fn begin(&mut self, fd: Fd, token: u64, bytes: &[u8]) {
        let mut early = Early {
            token,
            handshake: None,
            held: 0,
            queued: false,
            parked: false,
        };
        let (config, incoming_max) = self.current.get();
        match Handshake::new(config, incoming_max) {
            Ok(mut handshake) if bytes.len() <= handshake.room() => {
                handshake.take(bytes);
                early.handshake = Some(Box::new(handshake));
            }
            // No client says so much before it has an answer.
            Ok(_) => self.refuse_early(token, Trouble::TooLong, TOO_LONG),
            Err(error) => self.refuse_early(token, Trouble::Internal, &error.to_string()),
        }
        self.table.set(fd.0, Entry::Early);
        if early.handshake.is_some() {
            self.make_room();
            self.under_way += 1;
            self.begun.push_back((fd.0, token));
        }
        self.early.insert(fd.0, early);
        self.weigh(fd);
        self.queue(fd);
    }

    /// Counts what a handshake holds now, in place of what it held.
    fn weigh(&mut self, fd: Fd) {
        let Some(early) = self.early.get_mut(&fd.0) else {
            return;
        };
        let handshake = early.handshake.as_ref();
        let held = handshake.map_or(0, |handshake| handshake.held_bytes());
        self.early_bytes = self.early_bytes - early.held + held;
        early.held = held;
    }

    /// Forgets a connection that is established, or closed.
    pub(super) fn forget_early(&mut self, fd: Fd) {
        if let Some(early) = self.early.remove(&fd.0) {
            self.early_bytes -= early.held;
        }
    }

    /// Ends the oldest handshake when there are too many: an honest one is soon over, one that waits for its peer was
    /// perhaps made to wait.
    fn make_room(&mut self) {
        if self.begun.len() > 2 * (self.limits.handshakes_max + STALE) {
            let early = &self.early;
            let alive = |(fd, token): &(u32, u64)| early.get(fd).is_some_and(|e| e.is(*token));
            self.begun.retain(alive);
        }
        while let Some(&(fd, token)) = self.begun.front() {
            let alive = self.early.get(&fd).is_some_and(|early| early.is(token));
            if alive && self.under_way < self.limits.handshakes_max {
                return;
            }
            self.begun.pop_front();
            if alive {
                self.met(
                    Trouble::Evicted,
                    "tls.handshakes_max is reached, and this is the oldest",
                );
                self.give_up(Fd(fd));
                self.ended.push(token);
            }
        }
    }

    /// Ends a handshake, if it was not over; the connection stays until the caller closes it.
    pub(super) fn give_up(&mut self, fd: Fd) -> bool {
        let early = self.early.get_mut(&fd.0);
        let alive = early.is_some_and(|early| early.handshake.take().is_some());
        self.under_way -= usize::from(alive);
        self.weigh(fd);
        alive
    }

    /// The same, where nothing that came is the reason.
    pub(super) fn abandon(&mut self, fd: Fd) {
        if self.give_up(fd) {
            self.met(Trouble::Slow, "its handshake was not over in time");
        }
    }

    fn refuse_early(&mut self, token: u64, trouble: Trouble, why: &str) {
        self.met(trouble, why);
        self.ended.push(token);
    }

    fn queue(&mut self, fd: Fd) {
        let early = self.early.get_mut(&fd.0).expect("it is early");
        if early.handshake.is_some() && !early.queued {
            early.queued = true;
            self.due.push_back((fd.0, early.token));
        }
    }

    pub(super) fn receive_early(&mut self, fd: Fd, token: u64, buffer: &mut [u8]) -> Taken {
        let early = self.early.get(&fd.0).expect("it is early");
        debug_assert_eq!(early.token, token, "an entry is that of its connection");
        let handshake = early.handshake.as_ref();
        let room = handshake.map_or(buffer.len(), |handshake| handshake.room());
        if room == 0 {
            // A step is due, unless it has been done and was not enough.
            if early.queued {
                return Taken::NOTHING;
            }
            self.give_up(fd);
            self.met(Trouble::TooLong, TOO_LONG);
            return Taken::CLOSED;
        }
        let received = socket::recv(fd, &mut buffer[..room]);
        let Received::Bytes(len) = received else {
            if received != Received::Again && self.give_up(fd) {
                self.met(Trouble::Gone, GONE);
            }
            return Taken::of(received);
        };
        if let Some(handshake) = &mut self.early_mut(fd).handshake {
            handshake.take(&buffer[..len]);
            self.weigh(fd);
            self.queue(fd);
        }
        Taken::NOTHING
    }

    /// Goes on with handshakes, until this turn's share is used up or one has led to something: to bytes at the beginning of
    /// `buffer`, for the connection with this token, or to its end.
    pub fn next_handshake(
        &mut self,
        driver: &mut Driver,
        buffer: &mut [u8],
    ) -> Option<(u64, Taken)> {
        while self.turn_ns < TURN_NS {
            let (fd, token) = self.due.pop_front()?;
            let early = self.early.get_mut(&fd);
            let Some(early) = early.filter(|early| early.token == token) else {
                continue;
            };
            early.queued = false;
            let Some(handshake) = early.handshake.take() else {
                continue;
            };
            let parked = std::mem::take(&mut early.parked);
            let began = Instant::now();
            let taken = self.step(Fd(fd), token, handshake, buffer, driver);
            self.weigh(Fd(fd));
            self.turn_ns += began.elapsed().as_nanos() as u64;
            if parked && taken.then == Then::Open && self.read_again(Fd(fd), token, driver).is_err()
            {
                return Some((token, Taken::CLOSED));
            }
            if taken != Taken::NOTHING {
                return Some((token, taken));
            }
        }
        None
    }

    /// One step of a handshake, which is not among the early ones meanwhile.
    fn step(
        &mut self,
        fd: Fd,
        token: u64,
        mut handshake: Box<Handshake>,
        buffer: &mut [u8],
        driver: &mut Driver,
    ) -> Taken {
        let over = handshake.go_on();
        let open = send(fd, &mut handshake.outgoing);
        match over {
            Ok(false) if handshake.is_cut_up() => {
                self.under_way -= 1;
                self.met(Trouble::TooLong, TOO_LONG);
                Taken::CLOSED
            }
            Ok(false) if open => {
                let waits = !handshake.outgoing.is_empty();
                self.early_mut(fd).handshake = Some(handshake);
                if waits && driver.modify(fd, token, true, true).is_err() {
                    return Taken::CLOSED;
                }
                Taken::NOTHING
            }
            Ok(true) if open => {
                self.under_way -= 1;
                self.establish(fd, token, *handshake, buffer, driver)
            }
            Ok(_) => {
                self.under_way -= 1;
                self.met(Trouble::Gone, GONE);
                Taken::CLOSED
            }
            Err(error) => {
                self.under_way -= 1;
                self.met(Trouble::of(&error), &error.to_string());
                Taken::CLOSED
            }
        }
    }

    fn early_mut(&mut self, fd: Fd) -> &mut Early {
        self.early.get_mut(&fd.0).expect("it is early")
    }

    /// The handshake is over: its keys are kept, and what came behind it is opened.
    fn establish(
        &mut self,
        fd: Fd,
        token: u64,
        mut handshake: Handshake,
        buffer: &mut [u8],
        driver: &mut Driver,
    ) -> Taken {
        let unsent = std::mem::take(&mut handshake.outgoing);
        let (keys, rest) = match handshake.establish() {
            Ok(established) => established,
            Err(error) => {
                self.met(Trouble::Internal, &error.to_string());
                return Taken::CLOSED;
            }
        };
        match keys.resumed {
            true => self.stats.resumed += 1,
            false => self.stats.handshakes += 1,
        }
        let (to, from) = ((&keys.to.0, keys.to.1), (&keys.from.0, keys.from.1));
        let place = self.crypt.keys.insert(keys.cipher, to, from);
        self.table.set(fd.0, Entry::Sealed(place));
        self.forget_early(fd);
        if !unsent.is_empty() {
            self.keep(fd, place, unsent);
            if driver.modify(fd, token, true, true).is_err() {
                return Taken::CLOSED;
            }
        }
        if rest.is_empty() {
            return Taken::NOTHING;
        }
        let bytes = &mut buffer[..rest.len()];
        bytes.copy_from_slice(&rest);
        self.open(fd, place, bytes)
    }

    fn read_again(&mut self, fd: Fd, token: u64, driver: &mut Driver) -> std::io::Result<()> {
        let waits = match self.table.get(fd.0) {
            Entry::Sealed(_) => self
                .busy
                .get(&fd.0)
                .is_some_and(|busy| !busy.sealed.is_empty()),
            _ => self
                .early
                .get(&fd.0)
                .and_then(|early| early.handshake.as_ref())
                .is_some_and(|handshake| !handshake.outgoing.is_empty()),
        };
        driver.modify(fd, token, true, waits)
    }

    /// Sends what is left of a flight.
    pub(super) fn flush_early(&mut self, fd: Fd, token: u64, driver: &mut Driver) {
        let Some(early) = self.early.get_mut(&fd.0) else {
            return;
        };
        let Some(handshake) = &mut early.handshake else {
            return;
        };
        send(fd, &mut handshake.outgoing);
        if handshake.outgoing.is_empty() && !early.parked {
            let _ = driver.modify(fd, token, true, false);
        }
    }

    /// Ends the turn: who waits for a share of the next is not read until then. Says whether anybody does.
    pub fn end_turn(&mut self, driver: &mut Driver) -> bool {
        self.turn_ns = 0;
        self.rush = self.rush.max(self.under_way);
        if self.rush >= RUSH && self.under_way == 0 {
            self.rush = 0;
            memory::give_back();
        }
        for (fd, token) in self.due.iter().rev() {
            let early = self.early.get_mut(fd);
            let Some(early) = early.filter(|early| early.token == *token) else {
                continue;
            };
            if std::mem::replace(&mut early.parked, true) {
                // Who stands before it was there before.
                break;
            }
            if early.handshake.is_some() {
                // Whoever has sent all that it will is not over for that: it waits to be read.
                let _ = driver.modify_half_closed(Fd(*fd), *token, false, false);
            }
        }
        !self.due.is_empty()
    }
}

/// Sends what the socket takes of these bytes; false when it is over.
fn send(fd: Fd, bytes: &mut Vec<u8>) -> bool {
    if bytes.is_empty() {
        return true;
    }
    match socket::send(fd, bytes) {
        Sent::Bytes(sent) => {
            bytes.drain(..sent);
            true
        }
        Sent::Again => true,
        Sent::Failed(_) => false,
    }
}
