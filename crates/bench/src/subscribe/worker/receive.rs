//! Reads the bytes of a worker's connections, splits them into units (responses, frames, events, packets), checks messages, and sends the
//! acknowledgements and pongs that a protocol requires.
//!
//! The bytes of an incomplete unit are kept in a spill. The next read puts them before the new bytes.

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
    pub(super) fn read(&mut self, row: u32, tally: &mut Tally) {
        if self.connections.rows[row as usize].stage == Stage::Closed {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let Connections { rows, spills, .. } = &mut self.connections;
        let (kept_bytes, decoded) =
            spills.take(&mut rows[row as usize], &mut buffer, RECEIVE_BYTES);
        match self.connections.receive(row, &mut buffer[kept_bytes..]) {
            Ok(Some(0)) => self.record_server_close(row, "closed before it was open", tally),
            Ok(Some(count)) => {
                tally.connections.bytes += count as u64;
                tally.connections.chunks += 1;
                self.handle_bytes(row, &mut buffer[..kept_bytes + count], decoded, tally);
            }
            Ok(None) => self.spill(row, &buffer[..kept_bytes], decoded),
            Err(error) => self.record_server_close(row, &format!("receive: {error}"), tally),
        }
        self.buffer = buffer;
    }

    fn spill(&mut self, row: u32, bytes: &[u8], decoded: usize) {
        let Connections { rows, spills, .. } = &mut self.connections;
        spills.keep(&mut rows[row as usize], bytes, decoded);
    }

    /// Handles every complete unit of the received bytes, and keeps the rest in the connection's spill.
    fn handle_bytes(&mut self, row: u32, bytes: &mut [u8], decoded: usize, tally: &mut Tally) {
        let now_ns = sys::now_ns();
        let result = match (
            self.plan.protocol,
            self.connections.rows[row as usize].stage,
        ) {
            (Protocol::Poll, _) => self.handle_poll_response(row, bytes, now_ns, tally),
            (Protocol::Mqtt, _) => self
                .handle_packets(row, bytes, now_ns, tally)
                .and_then(|handled_bytes| self.keep_rest(row, &bytes[handled_bytes..], 0)),
            (_, Stage::Head) => match self.handle_head(row, bytes, tally) {
                Ok(0) => {
                    self.spill(row, bytes, 0);
                    return;
                }
                Ok(handled_bytes) => {
                    return self.handle_bytes(row, &mut bytes[handled_bytes..], 0, tally);
                }
                Err(reason) => Err(reason),
            },
            (Protocol::Ws, _) => self.handle_frames(row, bytes, now_ns, tally),
            (Protocol::MqttWs, _) => self.handle_framed_packets(row, bytes, decoded, now_ns, tally),
            (Protocol::Sse, _) => self.handle_events(row, bytes, decoded, now_ns, tally),
        };
        if let Err(reason) = result {
            self.record_failed_connect(row, &reason, tally);
        }
    }

    /// Handles the head of a streaming response. Returns its length, or 0 if it is incomplete.
    fn handle_head(&mut self, row: u32, bytes: &[u8], tally: &mut Tally) -> Result<usize> {
        let Some(head) = parse::head(bytes)? else {
            return Ok(0);
        };
        let is_upgrade = matches!(self.plan.protocol, Protocol::Ws | Protocol::MqttWs);
        let expected_status = if is_upgrade { 101 } else { 200 };
        if head.status != expected_status {
            return Err(format!("the server answered {}", head.status));
        }
        if is_upgrade && !self.plan.is_floor && !head.accepted {
            return Err("Sec-WebSocket-Accept does not answer the key".into());
        }
        if self.plan.protocol == Protocol::MqttWs {
            self.connections.rows[row as usize].stage = Stage::Greeting;
            self.send_bytes(row, &self.plan.mqtt_connect(self.first_connection + row))?;
            return Ok(head.bytes);
        }
        self.connections.rows[row as usize].stage = Stage::Open;
        self.connections.rows[row as usize].is_chunked = head.chunked;
        self.mark_open(row, tally);
        Ok(head.bytes)
    }

    fn handle_frames(&mut self, row: u32, bytes: &[u8], now_ns: u64, tally: &mut Tally) -> Result {
        let mut handled_bytes = 0;
        while let Some(frame) = parse::frame(&bytes[handled_bytes..])? {
            handled_bytes += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => {
                    self.check_message(row, frame.payload, now_ns, tally)
                }
                Opcode::Close => {
                    self.record_server_close(row, "closed", tally);
                    return Ok(());
                }
                Opcode::Ping => self.send_pong(row, frame.payload),
                Opcode::Continuation | Opcode::Pong => {}
            }
        }
        self.keep_rest(row, &bytes[handled_bytes..], 0)
    }

    /// MQTT: handles the complete packets, acknowledges them in one write, and returns their length. Messages may arrive before the SUBACK
    /// (§3.8.4).
    fn handle_packets(
        &mut self,
        row: u32,
        bytes: &[u8],
        now_ns: u64,
        tally: &mut Tally,
    ) -> Result<usize> {
        let dialect = self.plan.dialect;
        let mut acknowledgements = std::mem::take(&mut self.acknowledgements);
        acknowledgements.clear();
        let mut handled_bytes = 0;
        while let Some((packet, length)) = dialect.parse_packet(&bytes[handled_bytes..])? {
            handled_bytes += length;
            match packet {
                Packet::Publish(answer, payload) => {
                    self.check_message(row, payload, now_ns, tally);
                    if let Some((kind, id)) = answer {
                        dialect.write_acknowledgement(kind, id, &mut acknowledgements);
                    }
                }
                Packet::Ack(PacketType::PubRel, id, _) => {
                    dialect.write_acknowledgement(PacketType::PubComp, id, &mut acknowledgements);
                }
                Packet::Connack { .. } if self.plan.assignment.per_connection > 0 => {}
                Packet::Connack { .. } | Packet::Suback { refused: 0, .. }
                    if !matches!(self.connections.rows[row as usize].stage, Stage::Open) =>
                {
                    self.connections.rows[row as usize].stage = Stage::Open;
                    self.mark_open(row, tally);
                }
                other => return Err(format!("the server answered {other:?}")),
            }
        }
        let result = self.send_bytes(row, &acknowledgements);
        self.acknowledgements = acknowledgements;
        result.map(|()| handled_bytes)
    }

    /// MQTT over WebSocket: a packet may begin and end anywhere in a frame.
    fn handle_framed_packets(
        &mut self,
        row: u32,
        bytes: &mut [u8],
        decoded: usize,
        now_ns: u64,
        tally: &mut Tally,
    ) -> Result {
        let mut is_closed = false;
        let control = |opcode, payload: &[u8]| match opcode {
            Opcode::Ping if !is_closed => self.send_pong(row, payload),
            opcode => is_closed |= opcode == Opcode::Close,
        };
        let (end, raw_start) = parse::unframe(bytes, decoded, control)?;
        if is_closed {
            self.record_server_close(row, "closed", tally);
            return Ok(());
        }
        let handled_bytes = self.handle_packets(row, &bytes[..end], now_ns, tally)?;
        let raw = bytes.len() - raw_start;
        bytes.copy_within(raw_start.., end);
        self.keep_rest(row, &bytes[handled_bytes..end + raw], end - handled_bytes)
    }

    /// Sends a few bytes. A full socket is an error, since the socket of a client that reads in time is never full.
    fn send_bytes(&mut self, row: u32, bytes: &[u8]) -> Result {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.connections.send(row, bytes) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err("the socket did not take the acknowledgements".into()),
            Err(error) => Err(format!("send: {error}")),
        }
    }

    /// Answers a ping (RFC 6455 §5.5.3).
    fn send_pong(&mut self, row: u32, payload: &[u8]) {
        let mut frame = Vec::new();
        request::pong(payload, &mut frame);
        // If these bytes cannot be sent, the server's heartbeat will close the connection.
        let _ = self.connections.send(row, &frame);
    }

    fn handle_events(
        &mut self,
        row: u32,
        bytes: &mut [u8],
        decoded: usize,
        now_ns: u64,
        tally: &mut Tally,
    ) -> Result {
        let ConnectionRow {
            mut chunk_left,
            is_chunked,
            ..
        } = self.connections.rows[row as usize];
        let chunk_state = is_chunked.then_some(&mut chunk_left);
        let events = parse::events(bytes, decoded, chunk_state, |data| {
            self.check_message(row, data, now_ns, tally);
        });
        let rest = events?;
        self.connections.rows[row as usize].chunk_left = chunk_left;
        match rest {
            Some((rest, decoded)) => self.keep_rest(row, rest, decoded),
            None => {
                self.record_server_close(row, "closed", tally);
                Ok(())
            }
        }
    }

    fn keep_rest(&mut self, row: u32, bytes: &[u8], decoded: usize) -> Result {
        if bytes.len() > UNIT_BYTES_MAX {
            return Err(format!("a unit of more than {UNIT_BYTES_MAX} bytes"));
        }
        self.spill(row, bytes, decoded);
        Ok(())
    }

    /// Long-poll: a complete response has a message (200) or none (204, 304, 408). The client then sends its next request.
    fn handle_poll_response(
        &mut self,
        row: u32,
        bytes: &[u8],
        now_ns: u64,
        tally: &mut Tally,
    ) -> Result {
        let Some(Response { head, body, .. }) = parse::response(bytes)? else {
            return self.keep_rest(row, bytes, 0);
        };
        if head.length.is_none() && !matches!(head.status, 204 | 304) {
            return Err("a response without Content-Length".into());
        }
        self.connections.rows[row as usize].is_gap_announced |= head.gap;
        match head.status {
            200 => {
                self.polls.positions[row as usize] = next_poll_headers(&head);
                self.check_message(row, body, now_ns, tally);
            }
            204 | 304 | 408 => {
                // The next poll continues from this position, so that no message is lost between the two polls.
                if let Some(position) = next_poll_headers(&head) {
                    self.polls.positions[row as usize] = Some(position);
                }
            }
            status => return Err(format!("the server answered {status}")),
        }
        tally.connections.completed += 1;
        if head.close {
            self.close(row, sys::close);
            self.queue_connect(row);
        } else {
            self.polls.answered.push(row);
        }
        Ok(())
    }

    fn check_message(&mut self, row: u32, payload: &[u8], now_ns: u64, tally: &mut Tally) {
        let Some(header) = tally.record_message(payload, now_ns) else {
            return;
        };
        let assignment = &self.plan.assignment;
        let Some(topic_place) = assignment.index_of(self.first_connection + row, header.topic)
        else {
            tally.misdelivered += 1;
            return;
        };
        let connection = &mut self.connections.rows[row as usize];
        let reason = match (connection.is_gap_announced, connection.was_away) {
            (true, _) => GapReason::Announced,
            (_, true) => GapReason::Away,
            _ => GapReason::Unexplained,
        };
        (connection.is_gap_announced, connection.was_away) = (false, false);
        if let Some(grid) = &mut self.grid {
            match grid.last_sequence(row, header.run) {
                Some(last_sequence) => tally.check_sequence(last_sequence, header.sequence, reason),
                None => tally.misdelivered += 1,
            }
            return;
        }
        let topics_per_connection = assignment.per_connection as usize;
        if connection.run != header.run {
            connection.run = header.run;
            connection.sequence = 0;
            if topics_per_connection > 1 {
                self.connections.sequences[row as usize * topics_per_connection..]
                    [..topics_per_connection]
                    .fill(0);
            }
        }
        let last_sequence = match topics_per_connection {
            1 => &mut connection.sequence,
            _ => {
                &mut self.connections.sequences
                    [row as usize * topics_per_connection + topic_place as usize]
            }
        };
        tally.check_sequence(last_sequence, header.sequence, reason);
    }
}

/// The header lines with which the next request continues after this response.
fn next_poll_headers(head: &parse::Head<'_>) -> Option<Box<str>> {
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
