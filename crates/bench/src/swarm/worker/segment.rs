//! Handles the server's segments: handshake, acknowledgements, data in order, FIN and RST (RFC 9293 §3.10.7).
//!
//! Data that arrives out of order is dropped, and the server retransmits it. This is enough, since only the simulated network faults
//! reorder packets, and connections carry few bytes.

use super::Worker;
use crate::swarm::client_row::{State, mark};
use crate::swarm::packet::{self, Segment, flag};
use crate::sys;

/// Whether sequence number `a` is after `b` (RFC 9293 §3.4).
fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

impl Worker {
    /// Handles a packet of the device. A packet that is for no client is ignored: for example, an interface that comes up asks for IPv6
    /// routers.
    pub(super) fn receive_packet(&mut self, packet: &[u8]) {
        let now_ns = sys::now_ns();
        if let Some(segment) = packet::read(packet)
            && segment.from == self.plan.server
            && let Some(index) = self.clients.addresses.index(segment.to)
        {
            self.handle_segment(index, &segment, now_ns);
        }
    }

    fn handle_segment(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        match self.clients.rows[index as usize].state {
            State::Closed | State::GivenUp => self.reject_segment(index, segment, now_ns),
            State::Dialing => self.handle_syn_ack(index, segment, now_ns),
            _ if segment.has(flag::RST) => self.received_reset(index, segment, now_ns),
            // The server has not seen our acknowledgement of its SYN.
            _ if segment.has(flag::SYN) => {
                self.counts.repeated += 1;
                self.queue_ack(index);
            }
            _ => {
                self.received_ack(index, segment.acknowledged);
                self.received_data(index, segment, now_ns);
            }
        }
    }

    /// Answers a segment that belongs to no connection with a reset (§3.5.2).
    fn reject_segment(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        if segment.has(flag::RST) || !segment.has(flag::ACK) {
            return;
        }
        self.counts.resets += 1;
        self.send_segment(index, flag::RST, segment.acknowledged, &[], now_ns);
    }

    fn handle_syn_ack(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        if segment.has(flag::ACK) && segment.acknowledged != row.send_next {
            return self.reject_segment(index, segment, now_ns);
        }
        if segment.has(flag::RST | flag::ACK) {
            return self.connect_failed(index, "connection refused", now_ns);
        }
        if !segment.has(flag::SYN | flag::ACK) {
            return;
        }
        row.receive_next = segment.sequence.wrapping_add(1);
        row.send_first = row.send_next;
        row.state = State::Requested;
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        self.plan.request(self.clients.first + index, &mut request);
        self.send_data(index, request.as_bytes(), now_ns);
        self.request = request;
    }

    /// Handles a reset. A reset whose sequence number is not the expected one does not end the connection, but is acknowledged (§3.10.7.4).
    fn received_reset(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        if segment.sequence != row.receive_next {
            return self.queue_ack(index);
        }
        match row.state {
            State::Requested => self.connect_failed(index, "reset before it was open", now_ns),
            State::Closing => self.schedule_reconnect(index, None),
            _ => self.server_closed(index, now_ns),
        }
    }

    /// Counts that the server has ended an open connection, which is a fault.
    pub(super) fn server_closed(&mut self, index: u32, now_ns: u64) {
        self.counts.tally.life.closed += 1;
        self.no_longer_open(index);
        self.schedule_reconnect(index, Some(now_ns));
    }

    /// Drops the bytes that are acknowledged.
    fn received_ack(&mut self, index: u32, acknowledged: u32) {
        let row = &mut self.clients.rows[index as usize];
        if !is_after(acknowledged, row.send_first) || is_after(acknowledged, row.send_next) {
            return;
        }
        let count = acknowledged.wrapping_sub(row.send_first) as usize;
        row.send_first = acknowledged;
        if let Some(buffers) = self.clients.buffers.get(row) {
            // A FIN takes a sequence number, but has no byte.
            let count = count.min(buffers.unacknowledged.len());
            buffers.unacknowledged.drain(..count);
            self.clients.buffers.tidy(row);
        }
    }

    /// Handles data and FIN, if they are next in order.
    fn received_data(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let mut data = segment.data;
        let is_end = segment.has(flag::FIN);
        if data.is_empty() && !is_end && segment.sequence == row.receive_next {
            return;
        }
        if is_after(segment.sequence, row.receive_next) {
            self.counts.out_of_order += 1;
            return self.queue_ack(index);
        }
        let known = row.receive_next.wrapping_sub(segment.sequence) as usize;
        if known > data.len() || (known == data.len() && !is_end) {
            // The segment is a retransmission, a window probe or a keep-alive probe.
            self.counts.repeated += u64::from(!segment.data.is_empty());
            return self.queue_ack(index);
        }
        data = &data[known..];
        if row.is(mark::SLOW) {
            if data.len() > row.window.into() {
                return self.queue_ack(index);
            }
            row.window -= data.len() as u16;
        }
        row.receive_next = row
            .receive_next
            .wrapping_add(data.len() as u32 + u32::from(is_end));
        self.queue_ack(index);
        if !data.is_empty() && self.clients.rows[index as usize].state != State::Closing {
            self.receive_bytes(index, data, now_ns);
        }
        if is_end {
            self.received_fin(index, now_ns);
        }
    }

    /// Handles the server's FIN.
    fn received_fin(&mut self, index: u32, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        match row.state {
            State::Closing => {
                self.send_segment(index, flag::ACK, row.send_next, &[], now_ns);
                self.schedule_reconnect(index, None);
            }
            State::Requested => {
                self.send_segment(index, flag::FIN | flag::ACK, row.send_next, &[], now_ns);
                self.connect_failed(index, "closed before it was open", now_ns);
            }
            State::Open => {
                self.send_segment(index, flag::FIN | flag::ACK, row.send_next, &[], now_ns);
                self.server_closed(index, now_ns);
            }
            // The client is closed already, because the data before the FIN violated the protocol.
            State::Closed | State::GivenUp | State::Dialing => {}
        }
    }
}
