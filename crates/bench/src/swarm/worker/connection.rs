//! The connections of the clients: which of them are in the table, and what their segments, ends and failures mean to a client.
//!
//! Invariant: an idle connection is parked at the end of a turn, in the row of its client.

use crore_tcp::{Conn, End, Failure, Packet, Part, Received, Sent, State as TcpState, parse};

use super::{Kind, SLOW_LOG2, Worker};
use crate::swarm::client_row::{Link, State, mark};
use crate::sys;
use crate::sys::tun::PREFIX_BYTES;

impl Worker {
    /// Handles a packet of the device. A packet that is for no client is ignored: for example, an interface that comes up asks for IPv6
    /// routers.
    pub(super) fn receive_packet(&mut self, packet: &[u8]) {
        let now_ns = sys::now_ns();
        let Some(Ok(Packet::Segment(segment))) = packet
            .get(PREFIX_BYTES..)
            .map(|packet| parse(packet, false))
        else {
            return;
        };
        let index = self.clients.addresses.index(segment.head.to);
        let Some(index) = index.filter(|_| segment.head.from == self.plan.server) else {
            return;
        };
        let conn = self.activate(index, now_ns);
        let resets = self.table.counters.resets_sent;
        self.table
            .receive_segment(conn, &segment, now_ns / 1_000, &mut self.wire);
        match conn {
            Some(_) => self.settle(index, now_ns),
            None => self.counts.resets += self.table.counters.resets_sent - resets,
        }
    }

    /// Sends what is to be sent, handles the connections whose time is over, and parks those that are idle.
    pub(super) fn end_turn(&mut self, now_ns: u64) {
        self.table.poll(now_ns / 1_000, &mut self.wire);
        let mut over = std::mem::take(&mut self.over);
        self.table.events(|_, ready| {
            if ready.hangup {
                over.push(ready.token as u32);
            }
        });
        for index in over.drain(..) {
            self.settle(index, now_ns);
        }
        self.over = over;
        self.active_max = self.active_max.max(self.table.len());
        let mut to_park = std::mem::take(&mut self.to_park);
        for index in to_park.drain(..) {
            self.park(index);
        }
        self.to_park = to_park;
    }

    /// The ends of a client's connection.
    fn ends(&self, index: u32) -> (End, End) {
        (self.clients.addresses.end(index), self.plan.server)
    }

    /// Parks a client's connection if it is idle.
    fn park(&mut self, index: u32) {
        let row = &mut self.clients.rows[index as usize];
        row.mark(mark::LISTED, false);
        let Link::Active(conn) = row.link else { return };
        if row.state == State::Open
            && let Some(parked) = self.table.park(conn)
        {
            row.link = Link::Parked(parked);
        }
    }

    /// The connection of a client, in the table.
    fn activate(&mut self, index: u32, now_ns: u64) -> Option<Conn> {
        let row = &self.clients.rows[index as usize];
        let parked = match row.link {
            Link::None => return None,
            Link::Active(conn) => return Some(conn),
            Link::Parked(parked) => parked,
        };
        let (own, server) = self.ends(index);
        let now_us = now_ns / 1_000;
        let conn = self
            .table
            .unpark(own, server, &parked, index.into(), now_us)?;
        self.attach(index, conn);
        Some(conn)
    }

    /// Makes a connection of the table that of a client.
    fn attach(&mut self, index: u32, conn: Conn) {
        let row = &mut self.clients.rows[index as usize];
        row.link = Link::Active(conn);
        if row.is(mark::SLOW) {
            // A timer reads.
            self.table.interest(conn, index.into(), false, false);
        }
    }

    /// Forgets a client's connection, and the rest of a unit in it. The table has forgotten it, or will.
    fn detach(&mut self, index: u32) -> Option<Conn> {
        let row = &mut self.clients.rows[index as usize];
        self.clients.incomplete.forget(row);
        match std::mem::replace(&mut row.link, Link::None) {
            Link::Active(conn) => Some(conn),
            Link::None | Link::Parked(_) => None,
        }
    }

    /// Begins a client's connection.
    pub(super) fn connect(&mut self, index: u32, now_ns: u64) {
        // The end of the last connection may still be on its way.
        self.reset(index, now_ns);
        let (own, server) = self.ends(index);
        let now_us = now_ns / 1_000;
        let Some(conn) = self.table.connect(own, server, index.into(), now_us) else {
            return self.connect_failed(index, "no room for the connection", now_ns);
        };
        self.attach(index, conn);
        let row = &mut self.clients.rows[index as usize];
        row.dialed_us = now_us as u32;
        row.chunk_left = 0;
        row.state = State::Dialing;
        if row.is(mark::SLOW) {
            self.table.receive_buffer(conn, SLOW_LOG2);
        }
    }

    /// Closes a client's connection with a FIN.
    pub(super) fn close(&mut self, index: u32, now_ns: u64) {
        self.no_longer_open(index);
        self.counts.dropped += 1;
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Closing;
        self.timers.set(Kind::Close, index, row.dialed_us, now_ns);
        if let Some(conn) = self.activate(index, now_ns) {
            self.table.shut_down(conn, now_ns / 1_000);
            // A slow reader may have bytes that it has not read, and the server waits for room.
            self.settle(index, now_ns);
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
                .violated("the server acknowledges too little of what a client sends");
        }
    }

    /// Handles what an active connection has for its client: that it is open, bytes, its end, or its failure.
    fn settle(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let Link::Active(conn) = row.link else { return };
        if !row.is(mark::LISTED) {
            row.mark(mark::LISTED, true);
            self.to_park.push(index);
        }
        let tcp = self.table.state(conn);
        if row.state == State::Dialing && tcp.is_synchronized() {
            row.state = State::Requested;
            let mut request = std::mem::take(&mut self.request);
            request.clear();
            self.plan.request(self.clients.first + index, &mut request);
            self.send(index, request.as_bytes(), now_ns);
            self.request = request;
        }
        loop {
            let row = &self.clients.rows[index as usize];
            let waits = row.state == State::Open && row.is(mark::SLOW) && tcp != TcpState::Closed;
            if row.link != Link::Active(conn) || waits {
                return;
            }
            if !self.read_some(index, conn, usize::MAX, now_ns) {
                break;
            }
        }
    }

    /// Reads some bytes of a client, at most `most`. Returns whether there may be more.
    fn read_some(&mut self, index: u32, conn: Conn, most: usize, now_ns: u64) -> bool {
        match self.receive_bytes(index, conn, most, now_ns) {
            Received::Bytes(_) => return true,
            Received::Again => {}
            Received::End => self.received_end(index, conn, now_ns),
            Received::Failed(failure) => {
                // The table forgets it.
                self.reset(index, now_ns);
                self.connection_failed(index, failure, now_ns);
            }
        }
        false
    }

    /// A slow reader reads once in a second.
    pub(super) fn slow_read(&mut self, index: u32, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        row.mark(mark::HAS_TIMER, false);
        if row.state != State::Open {
            return;
        }
        row.mark(mark::HAS_TIMER, true);
        self.timers.set(Kind::SlowRead, index, 0, now_ns);
        if let Link::Active(conn) = row.link {
            if !row.is(mark::LISTED) {
                row.mark(mark::LISTED, true);
                self.to_park.push(index);
            }
            self.read_some(index, conn, 1 << SLOW_LOG2, now_ns);
        }
    }

    /// Counts that the server has ended an open connection, which is a fault.
    pub(super) fn server_closed(&mut self, index: u32, now_ns: u64) {
        self.counts.tally.life.closed += 1;
        self.no_longer_open(index);
        self.schedule_reconnect(index, Some(now_ns));
    }

    /// Handles the end of the server's stream. The connection stays in the table until our end is acknowledged, or until the client connects
    /// again.
    fn received_end(&mut self, index: u32, conn: Conn, now_ns: u64) {
        self.table.shut_down(conn, now_ns / 1_000);
        match self.clients.rows[index as usize].state {
            State::Closing => self.schedule_reconnect(index, None),
            State::Requested => self.connect_failed(index, "closed before it was open", now_ns),
            State::Open => self.server_closed(index, now_ns),
            State::Closed | State::GivenUp | State::Dialing => {}
        }
        if self.table.state(conn) == TcpState::Closed {
            self.reset(index, now_ns);
        }
    }

    fn connection_failed(&mut self, index: u32, failure: Failure, now_ns: u64) {
        let state = self.clients.rows[index as usize].state;
        let why = match (state, failure) {
            (State::Dialing, Failure::Refused | Failure::Reset) => "connection refused",
            (_, Failure::Refused | Failure::Reset) => "reset before it was open",
            (_, Failure::TimedOut) => "no answer for half a minute",
        };
        match (state, failure) {
            (State::Dialing | State::Requested, _) => self.connect_failed(index, why, now_ns),
            (State::Open, Failure::TimedOut) => {
                self.counts
                    .violated("nothing was acknowledged for half a minute");
                self.no_longer_open(index);
                self.schedule_reconnect(index, None);
            }
            (State::Open, _) => self.server_closed(index, now_ns),
            (State::Closing, _) => {
                self.counts.late_closes += u64::from(failure == Failure::TimedOut);
                self.schedule_reconnect(index, None);
            }
            (State::Closed | State::GivenUp, _) => {}
        }
    }
}
