//! Moves clients' connections into the table of `crore-tcp` and out of it, and handles their segments, ends and failures.
//!
//! Invariant: at the end of a turn an idle connection is *parked*: it is in the row of its client and not in the table.

use crore_tcp::{
    Checksums, Conn, End, Failure, Packet, Part, Received, Sent, State as TcpState, parse,
};

use super::{SLOW_BYTES_LOG2, TimerKind, Worker};
use crate::swarm::client_row::{Link, State, flag};
use crate::sys;
use crate::sys::tun::PREFIX_BYTES;

impl Worker {
    /// Handles a packet of the device. Ignores a packet that is for no client: for example, an interface that comes up asks for IPv6 routers.
    pub(super) fn receive_packet(&mut self, packet: &[u8]) {
        let now_ns = sys::now_ns();
        let Some(Ok(Packet::Segment(segment))) = packet
            .get(PREFIX_BYTES..)
            .map(|packet| parse(packet, Checksums::Ignored))
        else {
            return;
        };
        let index = self.clients.addresses.index_of(segment.head.to);
        let Some(index) = index.filter(|_| segment.head.from == self.plan.server) else {
            return;
        };
        let conn = self.activate(index, now_ns);
        let resets_before = self.table.counters.resets_sent;
        self.table
            .receive_segment(conn, &segment, now_ns / 1_000, &mut self.wire);
        match conn {
            Some(_) => self.handle_connection(index, now_ns),
            None => self.counts.resets += self.table.counters.resets_sent - resets_before,
        }
    }

    /// Sends the segments that are due, handles the connections that have ended, and parks those that are idle.
    pub(super) fn end_turn(&mut self, now_ns: u64) {
        self.table.poll(now_ns / 1_000, &mut self.wire);
        let mut ended_clients = std::mem::take(&mut self.ended_clients);
        self.table.events(usize::MAX, |_, ready| {
            if ready.hangup {
                ended_clients.push(ready.token as u32);
            }
        });
        for index in ended_clients.drain(..) {
            self.handle_connection(index, now_ns);
        }
        self.ended_clients = ended_clients;
        self.active_max = self.active_max.max(self.table.len());
        let mut park_candidates = std::mem::take(&mut self.park_candidates);
        for index in park_candidates.drain(..) {
            self.park(index);
        }
        self.park_candidates = park_candidates;
        self.wire.flush();
    }

    /// The endpoints of a client's connection: the client's and the server's.
    fn endpoints(&self, index: u32) -> (End, End) {
        (self.clients.addresses.endpoint(index), self.plan.server)
    }

    /// Parks a client's connection if it is idle.
    fn park(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        row.set_flag(flag::IN_PARK_LIST, false);
        let Link::Active(conn) = row.link else { return };
        if row.state == State::Open
            && let Some(parked) = self.table.park(conn)
        {
            row.link = Link::Parked(parked);
        }
    }

    /// The connection of a client in the table. A parked connection is moved into the table first.
    fn activate(&mut self, index: u32, now_ns: u64) -> Option<Conn> {
        let row = &self.clients.rows[index as usize];
        let parked = match row.link {
            Link::None => return None,
            Link::Active(conn) => return Some(conn),
            Link::Parked(parked) => parked,
        };
        let (client_endpoint, server) = self.endpoints(index);
        let now_us = now_ns / 1_000;
        let conn = self
            .table
            .unpark(client_endpoint, server, &parked, index.into(), now_us)?;
        self.attach(index, conn);
        Some(conn)
    }

    /// Assigns a connection of the table to a client.
    fn attach(&mut self, index: u32, conn: Conn) {
        let row = &mut self.clients.rows[index as usize];
        row.link = Link::Active(conn);
        if row.has(flag::SLOW) {
            // A timer reads instead.
            self.table.interest(conn, index.into(), false, false);
        }
    }

    /// Removes a client's connection and incomplete unit from its row. The caller removes the connection from the table.
    fn detach(&mut self, index: u32) -> Option<Conn> {
        let row = &mut self.clients.rows[index as usize];
        self.clients.incomplete_units.discard(row);
        match std::mem::replace(&mut row.link, Link::None) {
            Link::Active(conn) => Some(conn),
            Link::None | Link::Parked(_) => None,
        }
    }

    /// Starts to connect a client.
    pub(super) fn connect(&mut self, index: u32, now_ns: u64) {
        // The last connection may not have ended completely.
        self.reset(index, now_ns);
        let (client_endpoint, server) = self.endpoints(index);
        let now_us = now_ns / 1_000;
        let Some(conn) = self
            .table
            .connect(client_endpoint, server, index.into(), now_us)
        else {
            return self.record_failed_connect(index, "no room for the connection", now_ns);
        };
        self.attach(index, conn);
        let row = &mut self.clients.rows[index as usize];
        row.dialed_us = now_us as u32;
        row.chunk_left = 0;
        row.state = State::Dialing;
        if row.has(flag::SLOW) {
            self.table.receive_buffer(conn, SLOW_BYTES_LOG2);
        }
    }

    /// Closes a client's connection with a FIN.
    pub(super) fn close(&mut self, index: u32, now_ns: u64) {
        self.mark_closed(index);
        self.counts.dropped += 1;
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Closing;
        self.timers
            .set(TimerKind::Close, index, row.dialed_us, now_ns);
        if let Some(conn) = self.activate(index, now_ns) {
            self.table.shut_down(conn, now_ns / 1_000);
            // A slow reader may have bytes that it has not read, and the server waits for room.
            self.handle_connection(index, now_ns);
        }
    }

    /// Ends a client's connection with a reset, if there is one.
    pub(super) fn reset(&mut self, index: u32, now_ns: u64) {
        self.activate(index, now_ns);
        if let Some(conn) = self.detach(index) {
            self.table.reset(conn, now_ns / 1_000, &mut self.wire);
        }
    }

    /// Sends bytes of a client.
    pub(super) fn send(&mut self, index: u32, bytes: &[u8], now_ns: u64) {
        let Link::Active(conn) = self.clients.rows[index as usize].link else {
            return;
        };
        let sent = self.table.send(conn, Part::Copied(bytes), now_ns / 1_000);
        if sent != Sent::Bytes(bytes.len()) {
            self.counts
                .record_violation("the server acknowledges too little of what a client sends");
        }
    }

    /// Handles the news of an active connection: it is established, has bytes, has ended, or has failed.
    fn handle_connection(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let Link::Active(conn) = row.link else { return };
        if !row.has(flag::IN_PARK_LIST) {
            row.set_flag(flag::IN_PARK_LIST, true);
            self.park_candidates.push(index);
        }
        let tcp = self.table.state(conn);
        if row.state == State::Dialing && tcp.is_synchronized() {
            row.state = State::Requested;
            let mut request = std::mem::take(&mut self.request);
            request.clear();
            self.plan
                .write_request(self.clients.first + index, &mut request);
            self.send(index, request.as_bytes(), now_ns);
            self.request = request;
        }
        loop {
            let row = &self.clients.rows[index as usize];
            let is_paused =
                row.state == State::Open && row.has(flag::SLOW) && tcp != TcpState::Closed;
            if row.link != Link::Active(conn) || is_paused {
                return;
            }
            if !self.read_some(index, conn, usize::MAX, now_ns) {
                break;
            }
        }
    }

    /// Reads at most `bytes_max` bytes of a client. Returns whether there may be more.
    fn read_some(&mut self, index: u32, conn: Conn, bytes_max: usize, now_ns: u64) -> bool {
        match self.receive_bytes(index, conn, bytes_max, now_ns) {
            Received::Bytes(_) => return true,
            Received::Again => {}
            Received::End => self.handle_stream_end(index, conn, now_ns),
            Received::Failed(failure) => {
                // Removes the connection from the table.
                self.reset(index, now_ns);
                self.handle_failure(index, failure, now_ns);
            }
        }
        false
    }

    /// Lets a slow reader read, which it does once a second.
    pub(super) fn read_slowly(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        row.set_flag(flag::HAS_TIMER, false);
        if row.state != State::Open {
            return;
        }
        row.set_flag(flag::HAS_TIMER, true);
        self.timers.set(TimerKind::SlowRead, index, 0, now_ns);
        if let Link::Active(conn) = row.link {
            if !row.has(flag::IN_PARK_LIST) {
                row.set_flag(flag::IN_PARK_LIST, true);
                self.park_candidates.push(index);
            }
            self.read_some(index, conn, 1 << SLOW_BYTES_LOG2, now_ns);
        }
    }

    /// Counts that the server has closed an open connection, which is a fault. The client reconnects.
    pub(super) fn record_server_close(&mut self, index: u32, now_ns: u64) {
        self.counts.tally.connections.closed += 1;
        self.mark_closed(index);
        self.schedule_reconnect(index, Some(now_ns));
    }

    /// Handles the server's FIN. The connection stays in the table until the client's FIN is acknowledged, or until the client connects again.
    fn handle_stream_end(&mut self, index: u32, conn: Conn, now_ns: u64) {
        self.table.shut_down(conn, now_ns / 1_000);
        match self.clients.rows[index as usize].state {
            State::Closing => self.schedule_reconnect(index, None),
            State::Requested => {
                self.record_failed_connect(index, "closed before it was open", now_ns)
            }
            State::Open => self.record_server_close(index, now_ns),
            State::Closed | State::GivenUp | State::Dialing => {}
        }
        if self.table.state(conn) == TcpState::Closed {
            self.reset(index, now_ns);
        }
    }

    fn handle_failure(&mut self, index: u32, failure: Failure, now_ns: u64) {
        let state = self.clients.rows[index as usize].state;
        let reason = match (state, failure) {
            (State::Dialing, Failure::Refused | Failure::Reset) => "connection refused",
            (_, Failure::Refused | Failure::Reset) => "reset before it was open",
            (_, Failure::TimedOut) => "no answer for half a minute",
        };
        match (state, failure) {
            (State::Dialing | State::Requested, _) => {
                self.record_failed_connect(index, reason, now_ns)
            }
            (State::Open, Failure::TimedOut) => {
                self.counts
                    .record_violation("nothing was acknowledged for half a minute");
                self.mark_closed(index);
                self.schedule_reconnect(index, None);
            }
            (State::Open, _) => self.record_server_close(index, now_ns),
            (State::Closing, _) => {
                self.counts.late_closes += u64::from(failure == Failure::TimedOut);
                self.schedule_reconnect(index, None);
            }
            (State::Closed | State::GivenUp, _) => {}
        }
    }
}
