//! The receiving part of a worker: reads bytes, splits them into units (responses, frames, events, packets), counts messages, and sends the
//! answers that a protocol requires.
//!
//! The bytes of an incomplete unit are kept, and the next read puts them before the new bytes.

use crore_wire::mqtt::PacketType;
use crore_wire::websocket::frame::Opcode;

use super::{RECEIVE_BYTES, Worker};
use crate::client::mqtt::Packet;
use crate::client::parse::{self, Response};
use crate::client::request;
use crate::measure::tally::{GapReason, Tally};
use crate::subscribe::args::Protocol;
use crate::subscribe::connection::{ConnectionRow, Stage};
use crate::subscribe::connections::Connections;
use crate::sys;

/// The maximum size of a unit, in bytes. A larger unit is an error.
const UNIT_BYTES_MAX: usize = 16 << 20;

/// The error says how the server violated its protocol.
type Result<T = ()> = std::result::Result<T, String>;

impl Worker {
    /// Reads once.
    pub(super) fn readable(&mut self, row: u32, tally: &mut Tally) {
        if self.conns.rows[row as usize].stage == Stage::Closed {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let Connections { rows, spills, .. } = &mut self.conns;
        let (held, decoded) = spills.take(&mut rows[row as usize], &mut buffer, RECEIVE_BYTES);
        match self.conns.receive(row, &mut buffer[held..]) {
            Ok(Some(0)) => self.server_closed(row, "closed before it was open", tally),
            Ok(Some(count)) => {
                tally.life.bytes += count as u64;
                tally.life.chunks += 1;
                self.received(row, &mut buffer[..held + count], decoded, tally);
            }
            Ok(None) => self.spill(row, &buffer[..held], decoded),
            Err(error) => self.server_closed(row, &format!("receive: {error}"), tally),
        }
        self.buffer = buffer;
    }

    fn spill(&mut self, row: u32, bytes: &[u8], decoded: usize) {
        let Connections { rows, spills, .. } = &mut self.conns;
        spills.keep(&mut rows[row as usize], bytes, decoded);
    }

    /// Handles every complete unit of the received bytes, and keeps the rest in the connection's spill.
    fn received(&mut self, row: u32, bytes: &mut [u8], decoded: usize, tally: &mut Tally) {
        let now_ns = sys::now_ns();
        let result = match (self.plan.protocol, self.conns.rows[row as usize].stage) {
            (Protocol::Poll, _) => self.polled(row, bytes, now_ns, tally),
            (Protocol::Mqtt, _) => self
                .packets(row, bytes, now_ns, tally)
                .and_then(|used| self.keep(row, &bytes[used..], 0)),
            (_, Stage::Head) => match self.head(row, bytes, tally) {
                Ok(0) => {
                    self.spill(row, bytes, 0);
                    return;
                }
                Ok(used) => return self.received(row, &mut bytes[used..], 0, tally),
                Err(why) => Err(why),
            },
            (Protocol::Ws, _) => self.frames(row, bytes, now_ns, tally),
            (Protocol::MqttWs, _) => self.framed(row, bytes, decoded, now_ns, tally),
            (Protocol::Sse, _) => self.events(row, bytes, decoded, now_ns, tally),
        };
        if let Err(why) = result {
            self.open_failed(row, &why, tally);
        }
    }

    /// Handles the head of a streaming response. Returns its length, or 0 if it is incomplete.
    fn head(&mut self, row: u32, bytes: &[u8], tally: &mut Tally) -> Result<usize> {
        let Some(head) = parse::head(bytes)? else {
            return Ok(0);
        };
        let upgrades = matches!(self.plan.protocol, Protocol::Ws | Protocol::MqttWs);
        let wanted = if upgrades { 101 } else { 200 };
        if head.status != wanted {
            return Err(format!("the server answered {}", head.status));
        }
        if upgrades && !self.plan.floor && !head.accepted {
            return Err("Sec-WebSocket-Accept does not answer the key".into());
        }
        if self.plan.protocol == Protocol::MqttWs {
            self.conns.rows[row as usize].stage = Stage::Greeting;
            self.send_bytes(row, &self.plan.mqtt_connect(self.first + row))?;
            return Ok(head.bytes);
        }
        self.conns.rows[row as usize].stage = Stage::Open;
        self.conns.rows[row as usize].chunked = head.chunked;
        self.opened(row, tally);
        Ok(head.bytes)
    }

    fn frames(&mut self, row: u32, bytes: &[u8], now: u64, tally: &mut Tally) -> Result {
        let mut used = 0;
        while let Some(frame) = parse::frame(&bytes[used..])? {
            used += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => self.message(row, frame.payload, now, tally),
                Opcode::Close => {
                    self.server_closed(row, "closed", tally);
                    return Ok(());
                }
                Opcode::Ping => self.pong(row, frame.payload),
                Opcode::Continuation | Opcode::Pong => {}
            }
        }
        self.keep(row, &bytes[used..], 0)
    }

    /// MQTT: handles complete packets, acknowledges them in one write, and returns their length.
    /// Messages may arrive before the SUBACK (§3.8.4).
    fn packets(&mut self, row: u32, bytes: &[u8], now: u64, tally: &mut Tally) -> Result<usize> {
        let dialect = self.plan.dialect;
        let mut answers = std::mem::take(&mut self.answers);
        answers.clear();
        let mut used = 0;
        while let Some((packet, length)) = dialect.packet(&bytes[used..])? {
            used += length;
            match packet {
                Packet::Publish(answer, payload) => {
                    self.message(row, payload, now, tally);
                    if let Some((kind, id)) = answer {
                        dialect.acknowledge(kind, id, &mut answers);
                    }
                }
                Packet::Ack(PacketType::PubRel, id, _) => {
                    dialect.acknowledge(PacketType::PubComp, id, &mut answers);
                }
                Packet::Connack { .. } if self.plan.assignment.per_connection > 0 => {}
                Packet::Connack { .. } | Packet::Suback { refused: 0, .. }
                    if !matches!(self.conns.rows[row as usize].stage, Stage::Open) =>
                {
                    self.conns.rows[row as usize].stage = Stage::Open;
                    self.opened(row, tally);
                }
                other => return Err(format!("the server answered {other:?}")),
            }
        }
        let said = self.send_bytes(row, &answers);
        self.answers = answers;
        said.map(|()| used)
    }

    /// MQTT over WebSocket: a packet may begin and end anywhere in a frame.
    fn framed(
        &mut self,
        row: u32,
        bytes: &mut [u8],
        decoded: usize,
        now: u64,
        tally: &mut Tally,
    ) -> Result {
        let mut is_closed = false;
        let control = |opcode, payload: &[u8]| match opcode {
            Opcode::Ping if !is_closed => self.pong(row, payload),
            opcode => is_closed |= opcode == Opcode::Close,
        };
        let (end, rest) = parse::unframe(bytes, decoded, control)?;
        if is_closed {
            self.server_closed(row, "closed", tally);
            return Ok(());
        }
        let used = self.packets(row, &bytes[..end], now, tally)?;
        let raw = bytes.len() - rest;
        bytes.copy_within(rest.., end);
        self.keep(row, &bytes[used..end + raw], end - used)
    }

    /// Sends a few bytes. A full socket is an error, since the socket of a client that reads in time is never full.
    fn send_bytes(&mut self, row: u32, bytes: &[u8]) -> Result {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.conns.send(row, bytes) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err("the socket did not take the acknowledgements".into()),
            Err(error) => Err(format!("send: {error}")),
        }
    }

    /// Answers a ping (RFC 6455 §5.5.3).
    fn pong(&mut self, row: u32, payload: &[u8]) {
        let mut frame = Vec::new();
        request::pong(payload, &mut frame);
        // If these bytes cannot be sent, the server's heartbeat will close the connection.
        let _ = self.conns.send(row, &frame);
    }

    fn events(
        &mut self,
        row: u32,
        bytes: &mut [u8],
        decoded: usize,
        now: u64,
        tally: &mut Tally,
    ) -> Result {
        let ConnectionRow {
            mut chunk_left,
            chunked,
            ..
        } = self.conns.rows[row as usize];
        let left = chunked.then_some(&mut chunk_left);
        let events = parse::events(bytes, decoded, left, |data| {
            self.message(row, data, now, tally);
        });
        let kept = events?;
        self.conns.rows[row as usize].chunk_left = chunk_left;
        match kept {
            Some((kept, decoded)) => self.keep(row, kept, decoded),
            None => {
                self.server_closed(row, "closed", tally);
                Ok(())
            }
        }
    }

    fn keep(&mut self, row: u32, bytes: &[u8], decoded: usize) -> Result {
        if bytes.len() > UNIT_BYTES_MAX {
            return Err(format!("a unit of more than {UNIT_BYTES_MAX} bytes"));
        }
        self.spill(row, bytes, decoded);
        Ok(())
    }

    /// Long-poll: a complete response has a message (200) or none (204, 304, 408). The client then sends its next request.
    fn polled(&mut self, row: u32, bytes: &[u8], now: u64, tally: &mut Tally) -> Result {
        let Some(Response { head, body, .. }) = parse::response(bytes)? else {
            return self.keep(row, bytes, 0);
        };
        if head.length.is_none() && !matches!(head.status, 204 | 304) {
            return Err("a response without Content-Length".into());
        }
        self.conns.rows[row as usize].gap_announced |= head.gap;
        match head.status {
            200 => {
                self.polls.positions[row as usize] = position(&head);
                self.message(row, body, now, tally);
            }
            204 | 304 | 408 => {
                // The next poll continues from this position, so that no message is lost between the two polls.
                if let Some(position) = position(&head) {
                    self.polls.positions[row as usize] = Some(position);
                }
            }
            status => return Err(format!("the server answered {status}")),
        }
        tally.life.completed += 1;
        if head.close {
            self.close(row, sys::close);
            self.enqueue(row);
        } else {
            self.polls.answered.push(row);
        }
        Ok(())
    }

    fn message(&mut self, row: u32, payload: &[u8], now: u64, tally: &mut Tally) {
        let Some(header) = tally.arrived(payload, now) else {
            return;
        };
        let assignment = &self.plan.assignment;
        let Some(place) = assignment.index_of(self.first + row, header.topic) else {
            tally.misdelivered += 1;
            return;
        };
        let state = &mut self.conns.rows[row as usize];
        let why = match (state.gap_announced, state.was_away) {
            (true, _) => GapReason::Told,
            (_, true) => GapReason::Away,
            _ => GapReason::Unexplained,
        };
        (state.gap_announced, state.was_away) = (false, false);
        if let Some(grid) = &mut self.grid {
            match grid.last(row, header.run) {
                Some(last) => tally.in_sequence(last, header.sequence, why),
                None => tally.misdelivered += 1,
            }
            return;
        }
        let several = assignment.per_connection as usize;
        if state.run != header.run {
            state.run = header.run;
            state.sequence = 0;
            if several > 1 {
                self.conns.sequences[row as usize * several..][..several].fill(0);
            }
        }
        let last = match several {
            1 => &mut state.sequence,
            _ => &mut self.conns.sequences[row as usize * several + place as usize],
        };
        tally.in_sequence(last, header.sequence, why);
    }
}

/// The header lines with which the next request continues after this response.
fn position(head: &parse::Head<'_>) -> Option<Box<str>> {
    let etag = std::str::from_utf8(head.etag?).ok()?;
    let mut lines = format!("If-None-Match: {etag}\r\n");
    if let Some(modified) = head
        .modified
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
    {
        lines.push_str(&format!("If-Modified-Since: {modified}\r\n"));
    }
    Some(lines.into())
}
