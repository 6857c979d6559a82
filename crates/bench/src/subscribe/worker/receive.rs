//! How a worker receives: it reads, takes whole units out of the bytes, counts messages, and answers where the protocol
//! wants that.
//!
//! Invariant: an incomplete unit lies in the connection's spill and nowhere else. The next read puts
//! it back in front of the new bytes.

use std::fmt::Display;

use crore_wire::mqtt::PacketType;
use crore_wire::websocket::frame::Opcode;

use super::{RECEIVE_BYTES, Spill, Worker};
use crate::client::mqtt::Packet;
use crate::client::parse::{self, Response};
use crate::client::request;
use crate::measure::tally::{Gap, Tally};
use crate::subscribe::args::Protocol;
use crate::subscribe::connection::{NO_SPILL, Stage};
use crate::sys;

/// The tools send no larger unit.
const UNIT_BYTES_MAX: usize = 16 << 20;

/// The error says how the server violates its protocol.
type Result<T = ()> = std::result::Result<T, String>;

impl Worker {
    /// Reads once.
    pub(super) fn readable(&mut self, row: u32, tally: &mut Tally) {
        if self.rows[row as usize].stage == Stage::Closed {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let (held, decoded) = self.unspill(row, &mut buffer);
        match self.receive(row, &mut buffer[held..]) {
            Ok(Some(0)) => self.ended(row, "closed before it was open", tally),
            Ok(Some(count)) => {
                tally.life.bytes += count as u64;
                tally.life.chunks += 1;
                self.received(row, &mut buffer[..held + count], decoded, tally);
            }
            Ok(None) => self.spill(row, &buffer[..held], decoded),
            Err(error) => self.ended(row, &format!("receive: {error}"), tally),
        }
        self.buffer = buffer;
    }

    /// Copies the connection's spill to the start of the buffer; returns its bytes, and how many of them are decoded.
    fn unspill(&mut self, row: u32, buffer: &mut Vec<u8>) -> (usize, usize) {
        let place = std::mem::replace(&mut self.rows[row as usize].spill, NO_SPILL);
        if place == NO_SPILL {
            return (0, 0);
        }
        self.free_spills.push(place);
        let spill = &self.spills[place as usize];
        let held = spill.bytes.len();
        if buffer.len() < held + RECEIVE_BYTES {
            buffer.resize(held + RECEIVE_BYTES, 0);
        }
        buffer[..held].copy_from_slice(&spill.bytes);
        (held, spill.decoded)
    }

    fn spill(&mut self, row: u32, bytes: &[u8], decoded: usize) {
        if bytes.is_empty() {
            return;
        }
        let place = self.free_spills.pop().unwrap_or_else(|| {
            self.spills.push(Spill::default());
            self.spills.len() as u32 - 1
        });
        let spill = &mut self.spills[place as usize];
        spill.bytes.clear();
        spill.bytes.extend_from_slice(bytes);
        spill.decoded = decoded;
        self.rows[row as usize].spill = place;
    }

    /// Takes every whole unit of the bytes that have come, and spills the rest.
    fn received(&mut self, row: u32, bytes: &mut [u8], decoded: usize, tally: &mut Tally) {
        let now_ns = sys::now_ns();
        let result = match (self.plan.protocol, self.rows[row as usize].stage) {
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
            self.failed(row, &why, tally);
        }
    }

    /// Takes the head of a response whose body goes on; returns the bytes of the head, 0 when it is not whole.
    fn head(&mut self, row: u32, bytes: &[u8], tally: &mut Tally) -> Result<usize> {
        let Some(head) = parse::head(bytes).map_err(words)? else {
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
            self.rows[row as usize].stage = Stage::Greeting;
            self.say(row, &self.plan.greeting(self.first + row))?;
            return Ok(head.bytes);
        }
        self.rows[row as usize].stage = Stage::Open;
        self.rows[row as usize].chunked = head.chunked;
        self.opened(row, tally);
        Ok(head.bytes)
    }

    fn frames(&mut self, row: u32, bytes: &[u8], now: u64, tally: &mut Tally) -> Result {
        let mut used = 0;
        while let Some(frame) = parse::frame(&bytes[used..]).map_err(words)? {
            used += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => self.message(row, frame.payload, now, tally),
                Opcode::Close => {
                    self.ended(row, "closed", tally);
                    return Ok(());
                }
                Opcode::Ping => self.pong(row, frame.payload),
                Opcode::Continuation | Opcode::Pong => {}
            }
        }
        self.keep(row, &bytes[used..], 0)
    }

    /// MQTT: takes whole packets, acknowledges them in one write, and returns the bytes that they take.
    /// Messages may come before the SUBACK (§3.8.4).
    fn packets(&mut self, row: u32, bytes: &[u8], now: u64, tally: &mut Tally) -> Result<usize> {
        let dialect = self.plan.dialect;
        let mut answers = std::mem::take(&mut self.answers);
        answers.clear();
        let mut used = 0;
        while let Some((packet, length)) = dialect.packet(&bytes[used..]).map_err(words)? {
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
                    if !matches!(self.rows[row as usize].stage, Stage::Open) =>
                {
                    self.rows[row as usize].stage = Stage::Open;
                    self.opened(row, tally);
                }
                other => return Err(format!("the server answered {other:?}")),
            }
        }
        let said = self.say(row, &answers);
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
        let (end, rest) = parse::unframe(bytes, decoded, control).map_err(words)?;
        if is_closed {
            self.ended(row, "closed", tally);
            return Ok(());
        }
        let used = self.packets(row, &bytes[..end], now, tally)?;
        let raw = bytes.len() - rest;
        bytes.copy_within(rest.., end);
        self.keep(row, &bytes[used..end + raw], end - used)
    }

    /// Sends a few bytes. The socket of a client that keeps up has room for them.
    fn say(&mut self, row: u32, bytes: &[u8]) -> Result {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.send(row, bytes) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err("the socket did not take the acknowledgements".into()),
            Err(error) => Err(format!("send: {error}")),
        }
    }

    /// Answers a ping (RFC 6455 §5.5.3).
    fn pong(&mut self, row: u32, payload: &[u8]) {
        let mut frame = Vec::new();
        request::pong(payload, &mut frame);
        // The server's heartbeat will close a connection that cannot take these few bytes.
        let _ = self.send(row, &frame);
    }

    fn events(
        &mut self,
        row: u32,
        bytes: &mut [u8],
        decoded: usize,
        now: u64,
        tally: &mut Tally,
    ) -> Result {
        let state = &mut self.rows[row as usize];
        let (end, rest) = if state.chunked {
            match parse::unchunk(bytes, decoded, &mut state.chunk_left).map_err(words)? {
                Some(split) => split,
                None => {
                    self.ended(row, "closed", tally);
                    return Ok(());
                }
            }
        } else {
            (bytes.len(), bytes.len())
        };
        let mut used = 0;
        while let Some((data, length)) = parse::event(&bytes[used..end]) {
            if let Some(data) = data {
                self.message(row, data, now, tally);
            }
            used += length;
        }
        // What is left of the content is kept, and right behind it the bytes that are not decoded.
        let raw = bytes.len() - rest;
        bytes.copy_within(rest.., end);
        self.keep(row, &bytes[used..end + raw], end - used)
    }

    fn keep(&mut self, row: u32, bytes: &[u8], decoded: usize) -> Result {
        if bytes.len() > UNIT_BYTES_MAX {
            return Err(format!("a unit of more than {UNIT_BYTES_MAX} bytes"));
        }
        self.spill(row, bytes, decoded);
        Ok(())
    }

    /// Long-poll: a whole response is a message (200) or none (204, 304, 408). The client will ask again.
    fn polled(&mut self, row: u32, bytes: &[u8], now: u64, tally: &mut Tally) -> Result {
        let Some(Response { head, body, .. }) = parse::response(bytes).map_err(words)? else {
            return self.keep(row, bytes, 0);
        };
        if head.length.is_none() && !matches!(head.status, 204 | 304) {
            return Err("a response without Content-Length".into());
        }
        self.rows[row as usize].told |= head.gap;
        match head.status {
            200 => {
                self.positions[row as usize] = position(&head);
                self.message(row, body, now, tally);
            }
            204 | 304 | 408 => {
                // The next poll goes on from here, so that nothing is lost between the two.
                if let Some(position) = position(&head) {
                    self.positions[row as usize] = Some(position);
                }
            }
            status => return Err(format!("the server answered {status}")),
        }
        tally.life.completed += 1;
        if head.close {
            self.close(row, sys::close);
            self.queue(row);
        } else {
            self.answered.push(row);
        }
        Ok(())
    }

    fn message(&mut self, row: u32, payload: &[u8], now: u64, tally: &mut Tally) {
        let Some(header) = tally.arrived(payload, now) else {
            return;
        };
        let assignment = &self.plan.assignment;
        let Some(place) = assignment.place(self.first + row, header.topic) else {
            tally.misdelivered += 1;
            return;
        };
        let state = &mut self.rows[row as usize];
        let why = match (state.told, state.returned) {
            (true, _) => Gap::Told,
            (_, true) => Gap::Away,
            _ => Gap::Unexplained,
        };
        (state.told, state.returned) = (false, false);
        if let Some(talk) = &mut self.talk {
            match talk.last(row, header.run) {
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
                self.sequences[row as usize * several..][..several].fill(0);
            }
        }
        let last = match several {
            1 => &mut state.sequence,
            _ => &mut self.sequences[row as usize * several + place as usize],
        };
        tally.in_sequence(last, header.sequence, why);
    }
}

/// An error in words.
fn words(error: impl Display) -> String {
    error.to_string()
}

/// The header lines of a request for what follows this response.
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
