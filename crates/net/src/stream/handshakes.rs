//! Runs the handshakes: manages the connections whose handshake is not finished, and gives handshakes a share of each turn (round of the
//! shard's loop).
//!
//! A step of a handshake may take as much time as a hundred deliveries, so it is not done when bytes arrive. Instead, a connection that has
//! received bytes is queued, and each turn takes connections from the queue until the time for handshakes is used up. A connection that is
//! still queued at the end of the turn is not read until its step is done.

use std::net::{IpAddr, Ipv4Addr};

use super::handshake::Handshake;
use super::messages::message;
use super::state::{PlainReceived, StreamState, TlsStreams, UnfinishedHandshake};
use super::stats::TlsFailure;
use super::table::Entry;
use crate::transport::{Link, Received, Sent, Transport};
use crate::{clock, memory};

/// The time for handshakes in a turn, in nanoseconds. It is enough for a few handshakes with an ECDSA key. At least one step is done in
/// each turn. While many clients connect, deliveries are delayed by this time.
const TURN_NS: u64 = 300_000;

/// The message when a client sends more bytes or records than a handshake needs.
const TOO_LONG: &str = "its handshake is too long";
/// The message when a client disconnects.
const DISCONNECTED: &str = "it ended before its handshake";
/// When `ready` or `begun` has more than `2 * (handshakes_max + STALE)` entries, finished handshakes are removed from it.
const STALE: usize = 64;
/// With this many simultaneous handshakes, the memory that they free amounts to megabytes. It is returned to the kernel when the last
/// handshake has ended.
const TRIM_AFTER: usize = 128;
/// The address of a peer that has disconnected.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl TlsStreams {
    /// Begins a handshake with its first bytes.
    pub(super) fn begin<T: Transport>(
        &mut self,
        transport: &T,
        link: Link,
        token: u64,
        bytes: &[u8],
    ) {
        let mut early = UnfinishedHandshake {
            token,
            // If the peer has disconnected, it has no address; the first step notices that.
            peer: transport.peer(link).unwrap_or(NO_ADDRESS),
            handshake: None,
            held: 0,
            queued: false,
            parked: false,
        };
        match Handshake::new(self.current.get()) {
            Ok(mut handshake) if bytes.len() <= handshake.room() => {
                handshake.take(bytes);
                early.handshake = Some(Box::new(handshake));
            }
            // No client sends this much before it gets an answer.
            Ok(_) => self.refuse_early(token, TlsFailure::TooLong, TOO_LONG),
            Err(error) => self.refuse_early(token, TlsFailure::Internal, &message(&error)),
        }
        self.table.set(link.0, Entry::UnfinishedHandshake);
        if early.handshake.is_some() {
            self.make_room();
            self.handshakes.under_way += 1;
            self.handshakes.begun.push_back((link.0, token));
        }
        self.handshakes.early.insert(link.0, early);
        self.update_held(link);
        self.queue(link);
    }

    /// Updates the number of bytes that a handshake holds.
    fn update_held(&mut self, link: Link) {
        let Some(early) = self.handshakes.early.get_mut(&link.0) else {
            return;
        };
        let handshake = early.handshake.as_ref();
        let held = handshake.map_or(0, |handshake| handshake.held_bytes());
        self.handshakes.early_bytes = self.handshakes.early_bytes - early.held + held;
        early.held = held;
    }

    /// Removes a connection that is established or closed.
    pub(super) fn forget_early(&mut self, link: Link) {
        if let Some(early) = self.handshakes.early.remove(&link.0) {
            self.handshakes.early_bytes -= early.held;
        }
    }

    /// Ends the oldest handshakes while there are too many. An honest handshake is soon finished; an old one that still waits for its
    /// client may be an attack.
    fn make_room(&mut self) {
        if self.handshakes.ready.len() > 2 * (self.limits.handshakes_max + STALE) {
            let early = &self.handshakes.early;
            let alive = |(link, token): &(u32, u64)| {
                early.get(link).is_some_and(|e| e.is_unfinished(*token))
            };
            self.handshakes.ready.retain(alive);
        }
        if self.handshakes.begun.len() > 2 * (self.limits.handshakes_max + STALE) {
            let early = &self.handshakes.early;
            let alive = |(link, token): &(u32, u64)| {
                early.get(link).is_some_and(|e| e.is_unfinished(*token))
            };
            self.handshakes.begun.retain(alive);
        }
        while let Some(&(link, token)) = self.handshakes.begun.front() {
            let alive = self
                .handshakes
                .early
                .get(&link)
                .is_some_and(|early| early.is_unfinished(token));
            if alive && self.handshakes.under_way < self.limits.handshakes_max {
                return;
            }
            self.handshakes.begun.pop_front();
            if alive {
                self.count_trouble(
                    TlsFailure::Evicted,
                    "tls.handshakes_max is reached, and this is the oldest",
                );
                self.give_up(Link(link));
                self.ended.push(token);
            }
        }
    }

    /// Ends an unfinished handshake. Returns whether there was one. The connection itself remains until the caller closes it.
    pub(super) fn give_up(&mut self, link: Link) -> bool {
        let early = self.handshakes.early.get_mut(&link.0);
        let alive = early.is_some_and(|early| early.handshake.take().is_some());
        self.handshakes.under_way -= usize::from(alive);
        self.update_held(link);
        alive
    }

    /// Ends an unfinished handshake because its deadline has passed or the server stops, and counts it as slow.
    pub(super) fn abandon(&mut self, link: Link) {
        if self.give_up(link) {
            self.count_trouble(TlsFailure::Slow, "its handshake was not over in time");
        }
    }

    /// Reports a connection as ended because of its handshake.
    fn refuse_early(&mut self, token: u64, trouble: TlsFailure, why: &str) {
        self.count_trouble(trouble, why);
        self.ended.push(token);
    }

    /// Queues the next step of a handshake.
    fn queue(&mut self, link: Link) {
        let early = self.handshakes.early.get_mut(&link.0).expect("it is early");
        if early.handshake.is_some() && !early.queued {
            early.queued = true;
            self.handshakes
                .ready
                .push(early.peer, (link.0, early.token));
        }
    }

    /// Receives bytes of a handshake, and queues its next step.
    pub(super) fn receive_early<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        buffer: &mut [u8],
    ) -> PlainReceived {
        let early = self.handshakes.early.get(&link.0).expect("it is early");
        debug_assert_eq!(early.token, token, "an entry is that of its connection");
        let handshake = early.handshake.as_ref();
        let room = handshake.map_or(buffer.len(), |handshake| handshake.room());
        if room == 0 {
            // If a step is queued, it will make room. If none is queued, the last step has seen all these bytes, and the next message of
            // the client is longer than the room.
            if early.queued {
                return PlainReceived::NOTHING;
            }
            self.give_up(link);
            self.count_trouble(TlsFailure::TooLong, TOO_LONG);
            return PlainReceived::CLOSED;
        }
        let received = transport.receive(link, &mut buffer[..room]);
        let Received::Bytes(len) = received else {
            if received != Received::Again && self.give_up(link) {
                self.count_trouble(TlsFailure::Gone, DISCONNECTED);
            }
            return PlainReceived::of(received);
        };
        if let Some(handshake) = &mut self.early_mut(link).handshake {
            handshake.take(&buffer[..len]);
            self.update_held(link);
            self.queue(link);
        }
        PlainReceived::NOTHING
    }

    /// Continues handshakes until this turn's time for them is used up, or until one has a result. The result is the token of the
    /// connection, and either its first plain bytes, at the beginning of `buffer`, or its end.
    pub fn next_handshake<T: Transport>(
        &mut self,
        transport: &mut T,
        buffer: &mut [u8],
    ) -> Option<(u64, PlainReceived)> {
        while self.handshakes.turn_ns < TURN_NS {
            let (link, token) = self.handshakes.ready.pop()?;
            let early = self.handshakes.early.get_mut(&link);
            let Some(early) = early.filter(|early| early.token == token) else {
                continue;
            };
            early.queued = false;
            let Some(handshake) = early.handshake.take() else {
                continue;
            };
            let parked = std::mem::take(&mut early.parked);
            let began_ns = clock::monotonic_ns();
            let taken = self.step(transport, Link(link), token, handshake, buffer);
            self.update_held(Link(link));
            self.handshakes.turn_ns += clock::monotonic_ns() - began_ns;
            if parked
                && taken.state == StreamState::Open
                && self.read_again(transport, Link(link), token).is_err()
            {
                return Some((token, PlainReceived::CLOSED));
            }
            if taken != PlainReceived::NOTHING {
                return Some((token, taken));
            }
        }
        None
    }

    /// Does one step of a handshake. The caller has taken the handshake out of its `early` entry.
    fn step<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        mut handshake: Box<Handshake>,
        buffer: &mut [u8],
    ) -> PlainReceived {
        let finished = handshake.advance();
        let is_open = send(transport, link, &mut handshake.outgoing);
        match finished {
            Ok(false) if handshake.has_too_many_records() => {
                self.handshakes.under_way -= 1;
                self.count_trouble(TlsFailure::TooLong, TOO_LONG);
                PlainReceived::CLOSED
            }
            Ok(false) if is_open => {
                let waits = !handshake.outgoing.is_empty();
                self.early_mut(link).handshake = Some(handshake);
                if waits && transport.interest(link, token, true, true).is_err() {
                    return PlainReceived::CLOSED;
                }
                PlainReceived::NOTHING
            }
            Ok(true) if is_open => {
                self.handshakes.under_way -= 1;
                self.establish(transport, link, token, *handshake, buffer)
            }
            Ok(_) => {
                self.handshakes.under_way -= 1;
                self.count_trouble(TlsFailure::Gone, DISCONNECTED);
                PlainReceived::CLOSED
            }
            Err(error) => {
                self.handshakes.under_way -= 1;
                self.count_trouble(TlsFailure::of(&error), &message(&error));
                PlainReceived::CLOSED
            }
        }
    }

    fn early_mut(&mut self, link: Link) -> &mut UnfinishedHandshake {
        self.handshakes.early.get_mut(&link.0).expect("it is early")
    }

    /// Completes a finished handshake: stores its keys, and opens the records that arrived after it.
    fn establish<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        mut handshake: Handshake,
        buffer: &mut [u8],
    ) -> PlainReceived {
        let unsent = std::mem::take(&mut handshake.outgoing);
        let (keys, rest) = match handshake.establish() {
            Ok(established) => established,
            Err(error) => {
                self.count_trouble(TlsFailure::Internal, &message(&error));
                return PlainReceived::CLOSED;
            }
        };
        match keys.resumed {
            true => self.ends.stats.resumed += 1,
            false => self.ends.stats.handshakes += 1,
        }
        let place = self.crypt.keys.insert(keys.cipher, &keys.to, &keys.from);
        self.table.set(link.0, Entry::Sealed(place));
        self.forget_early(link);
        if !unsent.is_empty() {
            self.keep(link, place, unsent);
            if transport.interest(link, token, true, true).is_err() {
                return PlainReceived::CLOSED;
            }
        }
        if rest.is_empty() {
            return PlainReceived::NOTHING;
        }
        let bytes = &mut buffer[..rest.len()];
        bytes.copy_from_slice(&rest);
        self.open(transport, link, place, bytes)
    }

    /// Restores the interest in reading after a pause.
    fn read_again<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
    ) -> std::io::Result<()> {
        let waits = match self.table.get(link.0) {
            Entry::Sealed(_) => self
                .records
                .by_link
                .get(&link.0)
                .is_some_and(|busy| !busy.sealed.is_empty()),
            _ => self
                .handshakes
                .early
                .get(&link.0)
                .and_then(|early| early.handshake.as_ref())
                .is_some_and(|handshake| !handshake.outgoing.is_empty()),
        };
        transport.interest(link, token, true, waits)
    }

    /// Sends outgoing bytes of the handshake that the socket did not take before.
    pub(super) fn flush_early<T: Transport>(&mut self, transport: &mut T, link: Link, token: u64) {
        let Some(early) = self.handshakes.early.get_mut(&link.0) else {
            return;
        };
        let Some(handshake) = &mut early.handshake else {
            return;
        };
        send(transport, link, &mut handshake.outgoing);
        if handshake.outgoing.is_empty() && !early.parked {
            let _ = transport.interest(link, token, true, false);
        }
    }

    /// Must be called at the end of the turn: stops reading the connections that are still queued, until their step is done. Returns
    /// whether any connections are queued.
    pub fn end_turn<T: Transport>(&mut self, transport: &mut T) -> bool {
        self.handshakes.turn_ns = 0;
        self.handshakes.under_way_max =
            self.handshakes.under_way_max.max(self.handshakes.under_way);
        if self.handshakes.under_way_max >= TRIM_AFTER && self.handshakes.under_way == 0 {
            self.handshakes.under_way_max = 0;
            memory::trim();
        }
        for (link, token) in self.handshakes.ready.take_fresh() {
            let early = self.handshakes.early.get_mut(&link);
            let waits = early.filter(|early| early.token == token && early.queued);
            let Some(early) = waits.filter(|early| !early.parked) else {
                continue;
            };
            early.parked = true;
            if early.handshake.is_some() {
                // Without interest in reading, the poller does not report the end of the peer's stream. It is read after the step.
                let _ = transport.interest(Link(link), token, false, false);
            }
        }
        !self.handshakes.ready.is_empty()
    }
}

/// Sends as much of these bytes as the socket takes; returns false if the connection has failed.
fn send<T: Transport>(transport: &mut T, link: Link, bytes: &mut Vec<u8>) -> bool {
    if bytes.is_empty() {
        return true;
    }
    match transport.send(link, &[bytes.as_slice()]) {
        Sent::Bytes(sent) => {
            bytes.drain(..sent);
            true
        }
        Sent::Again => true,
        Sent::Failed(_) => false,
    }
}
