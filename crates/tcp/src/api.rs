//! What the caller does with connections.

use crate::account::{Account, Part};
use crate::config::RECEIVE_LOG2_MAX;
use crate::packet::End;
use crate::row::{Conn, Failure, NONE, State, flags};
use crate::sequence::is_after;
use crate::table::{Device, Listener, Table};

/// The readiness of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// What the caller knows the connection by.
    pub token: u64,
    /// There are bytes to read, or the end of the stream.
    pub readable: bool,
    /// The connection takes bytes to send.
    pub writable: bool,
    /// The peer has ended its stream, or the connection is over.
    pub hangup: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes, at least one.
    Bytes(usize),
    /// The peer has ended its stream.
    End,
    /// Nothing has arrived.
    Again,
    /// The connection has failed.
    Failed(Failure),
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// This many bytes were taken, at least one.
    Bytes(usize),
    /// There is no room for bytes now.
    Again,
    /// The connection has failed, or its sending side is closed.
    Failed(Failure),
}

impl<H: AsRef<[u8]> + Clone, A: Account> Table<H, A> {
    /// Listens at a port of all addresses of ours. Returns the number of the listener.
    pub fn listen(&mut self, port: u16) -> usize {
        self.listeners.push(Listener {
            port,
            queue: Default::default(),
            is_open: true,
        });
        self.listeners.len() - 1
    }

    /// Answers no more handshakes at any listener. Connections that wait can still be accepted. SYNs are answered with resets.
    pub fn block_new(&mut self) {
        for listener in &mut self.listeners {
            listener.is_open = false;
        }
    }

    /// Resets the connections that wait at the listeners.
    pub fn close_listeners<D: Device>(&mut self, now_us: u64, device: &mut D) {
        self.block_new();
        for listener in 0..self.listeners.len() {
            while let Some(conn) = self.accept(listener, 0) {
                self.reset(conn, now_us, device);
            }
        }
    }

    /// The number of connections that wait at a listener.
    pub fn waiting(&self, listener: usize) -> usize {
        self.listeners[listener].queue.len()
    }

    /// Accepts a connection that waits at a listener. Its first interest is in reading. [`Table::withhold_events`] makes it wait further.
    pub fn accept(&mut self, listener: usize, token: u64) -> Option<Conn> {
        while let Some(id) = self.listeners[listener].queue.pop_front() {
            let row = &mut self.rows[id as usize];
            row.clear(flags::QUEUED);
            if row.state == State::Closed {
                self.discard(id);
                continue;
            }
            row.token = token;
            row.set(flags::OPEN | flags::READ);
            self.queue_event(id);
            return Some(Conn(id));
        }
        None
    }

    /// The number of connections that are over and remembered. Some of them may be forgotten already.
    pub fn resting(&self) -> usize {
        self.time_waits.len()
    }

    /// Reports no events of a connection until the next call of [`Table::interest`].
    pub fn withhold_events(&mut self, conn: Conn) {
        self.rows[conn.0 as usize].clear(flags::OPEN);
    }

    /// Reports connections again whose bytes to send the account has refused. The caller calls this when the account has room.
    pub fn unblock(&mut self) {
        for id in core::mem::take(&mut self.blocked) {
            let row = &mut self.rows[id as usize];
            // The row may be another connection's by now.
            if row.is(flags::BLOCKED) {
                row.clear(flags::BLOCKED);
                self.queue_event(id);
            }
        }
    }

    /// The state of a connection.
    pub fn state(&self, conn: Conn) -> State {
        self.rows[conn.0 as usize].state
    }

    /// Our end and the peer's.
    pub fn addresses(&self, conn: Conn) -> (End, End) {
        self.ends(conn.0)
    }

    /// Bytes that were sent and are not acknowledged, or not sent yet.
    pub fn unacknowledged(&self, conn: Conn) -> u32 {
        let transfer = self
            .transfers
            .get(self.rows[conn.0 as usize].transfer as usize);
        transfer.map_or(0, |transfer| transfer.send.len())
    }

    /// Gives a connection that has not exchanged data a receive buffer of its own size, `1 << log2` bytes, of which `log2` is at most 30.
    pub fn receive_buffer(&mut self, conn: Conn, log2: u8) {
        self.rows[conn.0 as usize].receive_log2 = log2.min(RECEIVE_LOG2_MAX);
    }

    /// Replaces what a connection is known by, and which readiness is reported.
    pub fn interest(&mut self, conn: Conn, token: u64, read: bool, write: bool) {
        let row = &mut self.rows[conn.0 as usize];
        row.token = token;
        row.clear(flags::READ | flags::WRITE);
        row.set(flags::OPEN);
        row.set(if read { flags::READ } else { 0 } | if write { flags::WRITE } else { 0 });
        self.queue_event(conn.0);
    }

    /// The readiness of a connection.
    fn readiness(&self, id: u32) -> Readiness {
        let row = &self.rows[id as usize];
        let transfer = self.transfers.get(row.transfer as usize);
        let is_over = row.state == State::Closed;
        let is_end = row.is(flags::PEER_FIN);
        let unread = transfer.is_some_and(|transfer| transfer.receive.unread() > 0);
        // Not for every byte that becomes free.
        let room =
            transfer.is_none_or(|transfer| transfer.send.len() <= self.config.send_bytes / 3 * 2);
        let is_open = !matches!(row.state, State::SynSent | State::SynReceived);
        let reads = row.is(flags::READ);
        Readiness {
            token: row.token,
            readable: reads && (unread || is_end) || is_over,
            writable: row.is(flags::WRITE) && (is_open && room && !row.is(flags::BLOCKED))
                || is_over,
            hangup: reads && is_end || is_over,
        }
    }

    /// Calls `event` with each connection that is ready, at most `events_max` of them: the next call begins with the others. A connection that
    /// stays ready is reported again.
    pub fn events(&mut self, events_max: usize, mut event: impl FnMut(Conn, Readiness)) {
        let mut count = 0;
        for _ in 0..self.listed.len() {
            if count == events_max {
                return;
            }
            if self.next_listed >= self.listed.len() {
                self.next_listed = 0;
            }
            let id = self.listed[self.next_listed];
            let ready = self.readiness(id);
            let is_open = self.rows[id as usize].is(flags::OPEN);
            if is_open && (ready.readable || ready.writable || ready.hangup) {
                event(Conn(id), ready);
                count += 1;
                self.next_listed += 1;
            } else {
                self.rows[id as usize].clear(flags::LISTED);
                self.listed.swap_remove(self.next_listed);
            }
        }
    }

    /// Reads bytes that have arrived, up to the length of `buffer`, which is not empty.
    pub fn read(&mut self, conn: Conn, buffer: &mut [u8]) -> Received {
        let id = conn.0;
        let row = &self.rows[id as usize];
        if let Some(failure) = row.failure {
            return Received::Failed(failure);
        }
        let (place, is_end) = (row.transfer as usize, row.is(flags::PEER_FIN));
        let is_over = row.state == State::Closed;
        let count = self
            .transfers
            .get_mut(place)
            .map_or(0, |transfer| transfer.receive.take(buffer));
        if count == 0 {
            return if is_end || is_over {
                Received::End
            } else {
                Received::Again
            };
        }
        self.account.release(conn, count);
        let edge = self.possible_edge(id);
        let row = &self.rows[id as usize];
        let step = (2 * u32::from(row.segment_bytes)).min(1 << row.receive_log2 >> 1);
        let gained = edge.wrapping_sub(row.receive_edge);
        if row.state.may_receive() && is_after(edge, row.receive_edge) && gained >= step {
            // The peer learns that there is room again.
            self.acknowledge(id);
        } else {
            self.release_if_idle(id);
        }
        Received::Bytes(count)
    }

    /// The number of bytes that can be read.
    pub fn readable(&self, conn: Conn) -> usize {
        let transfer = self
            .transfers
            .get(self.rows[conn.0 as usize].transfer as usize);
        transfer.map_or(0, |transfer| transfer.receive.unread())
    }

    /// Takes bytes to send, perhaps only some of them.
    pub fn send(&mut self, conn: Conn, part: Part<'_, H>, now_us: u64) -> Sent {
        let id = conn.0;
        let row = &self.rows[id as usize];
        if row.state == State::Closed || row.is(flags::FIN) {
            return Sent::Failed(row.failure.unwrap_or(Failure::Reset));
        }
        if matches!(row.state, State::SynSent | State::SynReceived) {
            return Sent::Again;
        }
        let bytes = part.bytes();
        let used = self.unacknowledged(conn);
        let room = self.config.send_bytes.saturating_sub(used) as usize;
        let count = bytes.len().min(room);
        if count == 0 {
            return Sent::Again;
        }
        if !self.account.charge(conn, count) {
            let row = &mut self.rows[id as usize];
            if !row.is(flags::BLOCKED) {
                row.set(flags::BLOCKED);
                self.blocked.push(id);
            }
            return Sent::Again;
        }
        let place = self.ensure_transfer(id, now_us) as usize;
        let is_shared = count >= self.config.share_bytes;
        match part {
            Part::Shared(handle) if is_shared => {
                self.transfers[place].send.share(handle.clone(), count)
            }
            _ => self.transfers[place].send.copy(&bytes[..count]),
        }
        self.queue_to_send(id);
        Sent::Bytes(count)
    }

    /// Closes our sending side: the peer reads an end after all bytes that were sent before. Does nothing if that was done already.
    pub fn shut_down(&mut self, conn: Conn, now_us: u64) {
        let id = conn.0;
        let row = &mut self.rows[id as usize];
        row.state = match row.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            // The FIN follows once the handshake is over.
            state @ (State::SynSent | State::SynReceived) => state,
            _ => return,
        };
        row.set(flags::FIN);
        self.ensure_transfer(id, now_us);
        self.queue_to_send(id);
    }

    /// Closes a connection. Bytes that were sent are still delivered, unless bytes of the peer were not read: then the peer is told so by a
    /// reset.
    pub fn close<D: Device>(&mut self, conn: Conn, now_us: u64, device: &mut D) {
        let id = conn.0;
        let row = &mut self.rows[id as usize];
        row.clear(flags::OPEN);
        let has_unread = self
            .transfers
            .get(row.transfer as usize)
            .is_some_and(|transfer| transfer.receive.held() > 0);
        match row.state {
            State::Closed => self.discard(id),
            State::SynSent => {
                self.end(id, None);
                self.discard(id);
            }
            _ if has_unread => self.reset(conn, now_us, device),
            _ => {
                self.shut_down(conn, now_us);
                self.abandon(id, now_us, device);
            }
        }
    }

    /// Closes a connection with a reset, and drops all bytes.
    pub fn reset<D: Device>(&mut self, conn: Conn, now_us: u64, device: &mut D) {
        let id = conn.0;
        let row = &mut self.rows[id as usize];
        row.clear(flags::OPEN);
        let state = row.state;
        if state == State::Closed {
            return self.discard(id);
        }
        if state != State::SynSent && state != State::TimeWait {
            self.send_reset(id, now_us, device);
        }
        self.end(id, None);
        self.discard(id);
    }

    /// Whether a connection is idle: it costs only its row.
    pub fn is_idle(&self, conn: Conn) -> bool {
        self.rows[conn.0 as usize].transfer == NONE
    }
}
