//! Segments of the server: handshake, acknowledgements, data in order, and the end (RFC 9293 §3.10.7).
//!
//! Data that comes before earlier data is not kept: the server sends it again. Connections are few bytes each way, and
//! only the weather of the tool itself reorders packets.

use super::Worker;
use crate::swarm::packet::{self, Segment, flag};
use crate::swarm::row::{State, mark};
use crate::sys;

/// Whether number `a` comes after `b` (RFC 9293 §3.4).
fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

impl Worker {
    /// Takes a packet of the device. Some are not for a client: an interface that comes up asks for IPv6 routers.
    pub(super) fn packet(&mut self, packet: &[u8]) {
        let now_ns = sys::now_ns();
        if let Some(segment) = packet::read(packet)
            && segment.from == self.plan.server
            && let Some(index) = self.clients.places.index(segment.to)
        {
            self.segment(index, &segment, now_ns);
        }
    }

    fn segment(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        match self.clients.rows[index as usize].state {
            State::Closed | State::GivenUp => self.refuse(index, segment, now_ns),
            State::Dialing => self.dialing(index, segment, now_ns),
            _ if segment.has(flag::RST) => self.was_reset(index, segment, now_ns),
            // The server has not seen our acknowledgement of its SYN.
            _ if segment.has(flag::SYN) => {
                self.counts.repeated += 1;
                self.owes_ack(index);
            }
            _ => {
                self.acknowledged(index, segment.acknowledged);
                self.data(index, segment, now_ns);
            }
        }
    }

    /// Answers a segment of no connection with a reset (§3.5.2).
    fn refuse(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        if segment.has(flag::RST) || !segment.has(flag::ACK) {
            return;
        }
        self.counts.resets += 1;
        self.emit(index, flag::RST, segment.acknowledged, &[], now_ns);
    }

    fn dialing(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        if segment.has(flag::ACK) && segment.acknowledged != row.send_next {
            return self.refuse(index, segment, now_ns);
        }
        if segment.has(flag::RST | flag::ACK) {
            return self.failed(index, "connection refused", now_ns);
        }
        if !segment.has(flag::SYN | flag::ACK) {
            return;
        }
        row.receive_next = segment.sequence.wrapping_add(1);
        row.send_first = row.send_next;
        row.state = State::Asked;
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        self.plan.request(self.clients.first + index, &mut request);
        self.say(index, request.as_bytes(), now_ns);
        self.request = request;
    }

    /// The server has reset the connection. A reset with another number than the next one is not believed (§3.10.7.4).
    fn was_reset(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        if segment.sequence != row.receive_next {
            return self.owes_ack(index);
        }
        match row.state {
            State::Asked => self.failed(index, "reset before it was open", now_ns),
            State::Closing => self.forget(index, None),
            _ => self.ended(index, now_ns),
        }
    }

    /// The server has ended an open connection, which it must not do.
    pub(super) fn ended(&mut self, index: u32, now_ns: u64) {
        self.counts.tally.life.closed += 1;
        self.left(index);
        self.forget(index, Some(now_ns));
    }

    /// Forgets the bytes that have arrived.
    fn acknowledged(&mut self, index: u32, acknowledged: u32) {
        let row = &mut self.clients.rows[index as usize];
        if !is_after(acknowledged, row.send_first) || is_after(acknowledged, row.send_next) {
            return;
        }
        let count = acknowledged.wrapping_sub(row.send_first) as usize;
        row.send_first = acknowledged;
        if let Some(side) = self.clients.sides.get(row) {
            // A FIN has a number and no byte.
            let count = count.min(side.unacknowledged.len());
            side.unacknowledged.drain(..count);
            self.clients.sides.tidy(row);
        }
    }

    /// Takes the data that comes next, and the server's FIN.
    fn data(&mut self, index: u32, segment: &Segment<'_>, now_ns: u64) {
        let row = &mut self.clients.rows[index as usize];
        let mut data = segment.data;
        let is_end = segment.has(flag::FIN);
        if data.is_empty() && !is_end && segment.sequence == row.receive_next {
            return;
        }
        if is_after(segment.sequence, row.receive_next) {
            self.counts.out_of_order += 1;
            return self.owes_ack(index);
        }
        let known = row.receive_next.wrapping_sub(segment.sequence) as usize;
        if known > data.len() || (known == data.len() && !is_end) {
            // Sent again, or a probe of a closed window or a silent connection.
            self.counts.repeated += u64::from(!segment.data.is_empty());
            return self.owes_ack(index);
        }
        data = &data[known..];
        if row.is(mark::SLOW) {
            if data.len() > row.window.into() {
                return self.owes_ack(index);
            }
            row.window -= data.len() as u16;
        }
        row.receive_next = row
            .receive_next
            .wrapping_add(data.len() as u32 + u32::from(is_end));
        self.owes_ack(index);
        if !data.is_empty() && self.clients.rows[index as usize].state != State::Closing {
            self.received(index, data, now_ns);
        }
        if is_end {
            self.finished(index, now_ns);
        }
    }

    /// The server has sent its FIN.
    fn finished(&mut self, index: u32, now_ns: u64) {
        let row = self.clients.rows[index as usize];
        match row.state {
            State::Closing => {
                self.emit(index, flag::ACK, row.send_next, &[], now_ns);
                self.forget(index, None);
            }
            State::Asked => {
                self.emit(index, flag::FIN | flag::ACK, row.send_next, &[], now_ns);
                self.failed(index, "closed before it was open", now_ns);
            }
            State::Open => {
                self.emit(index, flag::FIN | flag::ACK, row.send_next, &[], now_ns);
                self.ended(index, now_ns);
            }
            // A violation has closed it meanwhile.
            State::Closed | State::GivenUp | State::Dialing => {}
        }
    }
}
