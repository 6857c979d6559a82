//! Runs the handshakes: manages the connections whose handshake is not finished, and gives handshakes a share of each turn (round of the
//! shard's loop).
//!
//! A step of a handshake may take as much time as a hundred deliveries, so it is not done when bytes arrive. Instead, a connection that has
//! received bytes is queued, and each turn takes connections from the queue until the time for handshakes is used up. A connection that is
//! still queued at the end of the turn is not read until its step is done.

use std::net::{IpAddr, Ipv4Addr};

use super::handshake::Handshake;
use super::messages::message;
use super::ready::QueuedLink;
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
/// When `ready` or `start_order` has more than `2 * (handshakes_max + STALE_ENTRIES_MAX)` entries, finished handshakes are removed from it.
const STALE_ENTRIES_MAX: usize = 64;
/// With this many simultaneous handshakes, the memory that they free amounts to megabytes. It is returned to the kernel when the last
/// handshake has ended.
const TRIM_HANDSHAKES_MIN: usize = 128;
/// The address of a peer that has disconnected.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl TlsStreams {
    /// Begins a handshake with its first bytes.
    pub(super) fn begin_handshake<T: Transport>(
        &mut self,
        transport: &T,
        link: Link,
        token: u64,
        bytes: &[u8],
    ) {
        let mut unfinished = UnfinishedHandshake {
            token,
            // If the peer has disconnected, it has no address; the first step notices that.
            peer: transport.peer(link).unwrap_or(NO_ADDRESS),
            handshake: None,
            held_bytes: 0,
            is_queued: false,
            is_paused: false,
        };
        match Handshake::new(self.settings.get()) {
            Ok(mut handshake) if bytes.len() <= handshake.room() => {
                handshake.add_received(bytes);
                unfinished.handshake = Some(Box::new(handshake));
            }
            // No client sends this much before it gets an answer.
            Ok(_) => self.report_refusal(token, TlsFailure::TooLong, TOO_LONG),
            Err(error) => self.report_refusal(token, TlsFailure::Internal, &message(&error)),
        }
        self.table.set(link.0, Entry::UnfinishedHandshake);
        if unfinished.handshake.is_some() {
            self.make_room();
            self.handshakes.unfinished_count += 1;
            self.handshakes.start_order.push_back(QueuedLink {
                link: link.0,
                token,
            });
        }
        self.handshakes.by_link.insert(link.0, unfinished);
        self.update_held_bytes(link);
        self.queue_step(link);
    }

    /// Updates the number of bytes that a handshake holds.
    fn update_held_bytes(&mut self, link: Link) {
        let Some(unfinished) = self.handshakes.by_link.get_mut(&link.0) else {
            return;
        };
        let handshake = unfinished.handshake.as_ref();
        let held_bytes = handshake.map_or(0, |handshake| handshake.held_bytes());
        self.handshakes.held_bytes =
            self.handshakes.held_bytes - unfinished.held_bytes + held_bytes;
        unfinished.held_bytes = held_bytes;
    }

    /// Removes a connection that is established or closed.
    pub(super) fn remove_handshake(&mut self, link: Link) {
        if let Some(unfinished) = self.handshakes.by_link.remove(&link.0) {
            self.handshakes.held_bytes -= unfinished.held_bytes;
        }
    }

    /// Ends the oldest handshakes while there are too many. An honest handshake is soon finished; an old one that still waits for its
    /// client may be an attack.
    fn make_room(&mut self) {
        if self.handshakes.ready.len() > 2 * (self.limits.handshakes_max + STALE_ENTRIES_MAX) {
            let unfinished = &self.handshakes.by_link;
            let is_unfinished = |queued: &QueuedLink| {
                let handshake = unfinished.get(&queued.link);
                handshake.is_some_and(|it| it.is_unfinished(queued.token))
            };
            self.handshakes.ready.retain(is_unfinished);
        }
        if self.handshakes.start_order.len() > 2 * (self.limits.handshakes_max + STALE_ENTRIES_MAX)
        {
            let unfinished = &self.handshakes.by_link;
            let is_unfinished = |queued: &QueuedLink| {
                let handshake = unfinished.get(&queued.link);
                handshake.is_some_and(|it| it.is_unfinished(queued.token))
            };
            self.handshakes.start_order.retain(is_unfinished);
        }
        while let Some(&QueuedLink { link, token }) = self.handshakes.start_order.front() {
            let is_unfinished = self
                .handshakes
                .by_link
                .get(&link)
                .is_some_and(|unfinished| unfinished.is_unfinished(token));
            if is_unfinished && self.handshakes.unfinished_count < self.limits.handshakes_max {
                return;
            }
            self.handshakes.start_order.pop_front();
            if is_unfinished {
                self.count_failure(
                    TlsFailure::Evicted,
                    "tls.handshakes_max is reached, and this is the oldest",
                );
                self.give_up(Link(link));
                self.ended_tokens.push(token);
            }
        }
    }

    /// Ends an unfinished handshake. Returns whether there was one. The connection itself remains until the caller closes it.
    pub(super) fn give_up(&mut self, link: Link) -> bool {
        let unfinished = self.handshakes.by_link.get_mut(&link.0);
        let was_unfinished =
            unfinished.is_some_and(|unfinished| unfinished.handshake.take().is_some());
        self.handshakes.unfinished_count -= usize::from(was_unfinished);
        self.update_held_bytes(link);
        was_unfinished
    }

    /// Ends an unfinished handshake because its deadline has passed or the server stops, and counts it as slow.
    pub(super) fn end_as_slow(&mut self, link: Link) {
        if self.give_up(link) {
            self.count_failure(TlsFailure::Slow, "its handshake was not over in time");
        }
    }

    /// Reports a connection as ended because of its handshake.
    fn report_refusal(&mut self, token: u64, failure: TlsFailure, message: &str) {
        self.count_failure(failure, message);
        self.ended_tokens.push(token);
    }

    /// Queues the next step of a handshake.
    fn queue_step(&mut self, link: Link) {
        let unfinished = self
            .handshakes
            .by_link
            .get_mut(&link.0)
            .expect("its handshake is not finished");
        if unfinished.handshake.is_some() && !unfinished.is_queued {
            unfinished.is_queued = true;
            self.handshakes.ready.push(
                unfinished.peer,
                QueuedLink {
                    link: link.0,
                    token: unfinished.token,
                },
            );
        }
    }

    /// Receives bytes of a handshake, and queues its next step.
    pub(super) fn receive_handshake<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        buffer: &mut [u8],
    ) -> PlainReceived {
        let unfinished = self
            .handshakes
            .by_link
            .get(&link.0)
            .expect("its handshake is not finished");
        debug_assert_eq!(
            unfinished.token, token,
            "an entry is that of its connection"
        );
        let handshake = unfinished.handshake.as_ref();
        let room = handshake.map_or(buffer.len(), |handshake| handshake.room());
        if room == 0 {
            // A queued step will make room. If no step is queued, the last step has seen all these bytes, and the next message of the
            // client is longer than the room.
            if unfinished.is_queued {
                return PlainReceived::NOTHING;
            }
            self.give_up(link);
            self.count_failure(TlsFailure::TooLong, TOO_LONG);
            return PlainReceived::CLOSED;
        }
        let received = transport.receive(link, &mut buffer[..room]);
        let Received::Bytes(len) = received else {
            if received != Received::Again && self.give_up(link) {
                self.count_failure(TlsFailure::Gone, DISCONNECTED);
            }
            return PlainReceived::from_transport(received);
        };
        if let Some(handshake) = &mut self.unfinished_mut(link).handshake {
            handshake.add_received(&buffer[..len]);
            self.update_held_bytes(link);
            self.queue_step(link);
        }
        PlainReceived::NOTHING
    }

    /// Continues handshakes until this turn's time for them is used up, or until one has something for the caller. Returns the token of
    /// that connection, and either its first plain bytes, which are at the beginning of `buffer`, or its end.
    pub fn next_handshake<T: Transport>(
        &mut self,
        transport: &mut T,
        buffer: &mut [u8],
    ) -> Option<(u64, PlainReceived)> {
        while self.handshakes.turn_ns < TURN_NS {
            let QueuedLink { link, token } = self.handshakes.ready.pop()?;
            let unfinished = self.handshakes.by_link.get_mut(&link);
            let Some(unfinished) = unfinished.filter(|unfinished| unfinished.token == token) else {
                continue;
            };
            unfinished.is_queued = false;
            let Some(handshake) = unfinished.handshake.take() else {
                continue;
            };
            let is_paused = std::mem::take(&mut unfinished.is_paused);
            let start_ns = clock::monotonic_ns();
            let received = self.run_step(transport, Link(link), token, handshake, buffer);
            self.update_held_bytes(Link(link));
            self.handshakes.turn_ns += clock::monotonic_ns() - start_ns;
            if is_paused
                && received.state == StreamState::Open
                && self.resume_reading(transport, Link(link), token).is_err()
            {
                return Some((token, PlainReceived::CLOSED));
            }
            if received != PlainReceived::NOTHING {
                return Some((token, received));
            }
        }
        None
    }

    /// Does one step of a handshake. The caller has taken the handshake out of its entry in `by_link`.
    fn run_step<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        mut handshake: Box<Handshake>,
        buffer: &mut [u8],
    ) -> PlainReceived {
        let is_finished = handshake.advance();
        let is_open = send(transport, link, &mut handshake.outgoing);
        match is_finished {
            Ok(false) if handshake.has_too_many_records() => {
                self.handshakes.unfinished_count -= 1;
                self.count_failure(TlsFailure::TooLong, TOO_LONG);
                PlainReceived::CLOSED
            }
            Ok(false) if is_open => {
                let wants_write = !handshake.outgoing.is_empty();
                self.unfinished_mut(link).handshake = Some(handshake);
                if wants_write && transport.set_interest(link, token, true, true).is_err() {
                    return PlainReceived::CLOSED;
                }
                PlainReceived::NOTHING
            }
            Ok(true) if is_open => {
                self.handshakes.unfinished_count -= 1;
                self.establish(transport, link, token, *handshake, buffer)
            }
            Ok(_) => {
                self.handshakes.unfinished_count -= 1;
                self.count_failure(TlsFailure::Gone, DISCONNECTED);
                PlainReceived::CLOSED
            }
            Err(error) => {
                self.handshakes.unfinished_count -= 1;
                self.count_failure(TlsFailure::from_error(&error), &message(&error));
                PlainReceived::CLOSED
            }
        }
    }

    fn unfinished_mut(&mut self, link: Link) -> &mut UnfinishedHandshake {
        self.handshakes
            .by_link
            .get_mut(&link.0)
            .expect("its handshake is not finished")
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
                self.count_failure(TlsFailure::Internal, &message(&error));
                return PlainReceived::CLOSED;
            }
        };
        match keys.is_resumed {
            true => self.failures.stats.resumed += 1,
            false => self.failures.stats.handshakes += 1,
        }
        let place = self
            .crypto
            .keys
            .insert(keys.cipher, &keys.sending, &keys.receiving);
        self.table.set(link.0, Entry::Sealed(place));
        self.remove_handshake(link);
        if !unsent.is_empty() {
            self.keep_sealed(link, place, unsent);
            if transport.set_interest(link, token, true, true).is_err() {
                return PlainReceived::CLOSED;
            }
        }
        if rest.is_empty() {
            return PlainReceived::NOTHING;
        }
        let bytes = &mut buffer[..rest.len()];
        bytes.copy_from_slice(&rest);
        self.open_records(transport, link, place, bytes)
    }

    /// Restores the interest in reading after a pause.
    fn resume_reading<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
    ) -> std::io::Result<()> {
        let wants_write = match self.table.get(link.0) {
            Entry::Sealed(_) => self
                .records
                .by_link
                .get(&link.0)
                .is_some_and(|records| !records.sealed.is_empty()),
            _ => self
                .handshakes
                .by_link
                .get(&link.0)
                .and_then(|unfinished| unfinished.handshake.as_ref())
                .is_some_and(|handshake| !handshake.outgoing.is_empty()),
        };
        transport.set_interest(link, token, true, wants_write)
    }

    /// Sends outgoing bytes of the handshake that the socket did not take before.
    pub(super) fn send_outgoing<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
    ) {
        let Some(unfinished) = self.handshakes.by_link.get_mut(&link.0) else {
            return;
        };
        let Some(handshake) = &mut unfinished.handshake else {
            return;
        };
        send(transport, link, &mut handshake.outgoing);
        if handshake.outgoing.is_empty() && !unfinished.is_paused {
            let _ = transport.set_interest(link, token, true, false);
        }
    }

    /// Must be called at the end of the turn: stops reading the connections that are still queued, until their step is done. Returns
    /// whether any connections are queued.
    pub fn end_turn<T: Transport>(&mut self, transport: &mut T) -> bool {
        self.handshakes.turn_ns = 0;
        self.handshakes.unfinished_count_max = self
            .handshakes
            .unfinished_count_max
            .max(self.handshakes.unfinished_count);
        if self.handshakes.unfinished_count_max >= TRIM_HANDSHAKES_MIN
            && self.handshakes.unfinished_count == 0
        {
            self.handshakes.unfinished_count_max = 0;
            memory::trim();
        }
        for QueuedLink { link, token } in self.handshakes.ready.take_newly_queued() {
            let unfinished = self.handshakes.by_link.get_mut(&link);
            let queued =
                unfinished.filter(|unfinished| unfinished.token == token && unfinished.is_queued);
            let Some(unfinished) = queued.filter(|unfinished| !unfinished.is_paused) else {
                continue;
            };
            unfinished.is_paused = true;
            if unfinished.handshake.is_some() {
                // Without interest in reading, the poller does not report the end of the peer's stream. It is read after the step.
                let _ = transport.set_interest(Link(link), token, false, false);
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
