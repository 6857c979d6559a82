//! Reads and writes packets. Over a WebSocket the packets are the content of binary frames. A frame may begin and end within a packet.

use crore_wire::mqtt::{self, encode};
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::receive::Event;

use super::Client;
use super::in_flight::Receipt;
use crate::client::{http, websocket};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

/// The longest packet that the client accepts.
const PACKET_BYTES_MAX: usize = 1 << 20;
/// A packet whose length in bytes is a multiple of this number is sent in two frames.
const SPLIT_DIVISOR: usize = 3;

impl Client {
    /// Reads received bytes.
    pub fn read(
        &mut self,
        bytes: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.conn.received.extend_from_slice(bytes);
        if !self.conn.upgraded && !self.read_upgrade(truth, coverage)? {
            return Ok(());
        }
        if self.role.over_websocket {
            self.read_frames()?;
        } else {
            self.conn.packet_bytes.append(&mut self.conn.received);
        }
        if self.conn.session_present.is_none() && self.conn.packet_bytes.first() == Some(&b'H') {
            // The server answers over HTTP. The first 12 bytes contain the status.
            return match self.conn.packet_bytes.len() {
                ..12 => Ok(()),
                _ => self.refused_over_http(truth, coverage),
            };
        }
        while self.link.is_some() {
            let header = mqtt::fixed_header(&self.conn.packet_bytes, PACKET_BYTES_MAX);
            let header = header.map_err(|error| format!("a packet: {error}"))?;
            let Some((header, len)) = header else { break };
            let end = len + header.body_bytes();
            if self.conn.packet_bytes.len() < end {
                break;
            }
            let packet: Vec<u8> = self.conn.packet_bytes.drain(..end).collect();
            let packet = mqtt::decode(self.role.version, header, &packet[len..])
                .map_err(|error| format!("{:?}: {error}", header.kind()))?;
            self.handle_packet(&packet, truth, coverage)?;
        }
        Ok(())
    }

    /// Handles the server's refusal of the connection by an HTTP response.
    fn refused_over_http(
        &mut self,
        truth: &Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.must_close = true;
        if self.conn.packet_bytes.starts_with(b"HTTP/1.1 408") {
            // The CONNECT did not arrive in time. The server may refuse that.
            return Ok(());
        }
        self.was_refused = true;
        coverage.refused += 1;
        match truth.allowed.budgets_are_wide {
            true => Err("an MQTT client was answered over HTTP".into()),
            false => Ok(()),
        }
    }

    fn read_upgrade(&mut self, truth: &Truth, coverage: &mut Coverage) -> Result<bool, Violation> {
        let Some(head) = http::take_head(&mut self.conn.received)? else {
            return Ok(false);
        };
        if head.status == 408 {
            self.must_close = true;
            return Ok(false);
        }
        if head.status != 101 {
            self.refused_over_http(truth, coverage)?;
            return Ok(false);
        }
        if head.field("sec-websocket-protocol") != Some("mqtt") {
            return Err("an upgrade to another protocol".into());
        }
        self.conn.upgraded = true;
        Ok(true)
    }

    fn read_frames(&mut self) -> Result<(), Violation> {
        let mut partial = self.conn.partial.take();
        let input = std::mem::take(&mut self.conn.received);
        websocket::read(&mut partial, input, PACKET_BYTES_MAX, false, |event| {
            match event {
                Event::Ping(data) => websocket::pong(&mut self.out, data),
                Event::Pong(_) => {}
                Event::Binary(data) => self.conn.packet_bytes.extend_from_slice(data),
                Event::Close { .. } => {
                    self.must_close = true;
                    return Ok(false);
                }
                Event::Text(_) => return Err("packets in a text frame".into()),
            }
            Ok(true)
        })?;
        self.conn.partial = partial;
        Ok(())
    }

    /// Sends one packet.
    pub(super) fn send_packet(&mut self, packet: impl FnOnce(&mut Vec<u8>)) {
        if !self.role.over_websocket {
            return packet(&mut self.out);
        }
        let mut bytes = Vec::new();
        packet(&mut bytes);
        let at = match bytes.len() % SPLIT_DIVISOR {
            0 => bytes.len() / 2,
            _ => 0,
        };
        for part in [&bytes[..at], &bytes[at..]] {
            frame::write_masked(&mut self.out, Opcode::Binary, part, [4, 3, 2, 1]);
        }
    }

    /// Sends a PINGREQ. The answer proves that the server has received all acknowledgements that were sent before the PINGREQ.
    pub fn ping(&mut self) {
        if !self.is_connected() {
            return;
        }
        self.send_packet(encode::pingreq);
        let is_acknowledged =
            |receipt: &&Receipt| receipt.is_acknowledged() && receipt.link == self.link;
        let receipts = self.receipts.iter().filter(is_acknowledged);
        let serials = receipts.map(|receipt| receipt.serial).collect();
        self.conn.pings.push_back(serials);
    }

    pub(super) fn handle_pingresp(&mut self) -> Result<(), Violation> {
        let serials = self.conn.pings.pop_front();
        let serials = serials.ok_or("a PINGRESP to nothing")?;
        // If the server has repeated a message since the PINGREQ, the client must acknowledge that message again, so its receipt stays.
        self.receipts
            .retain(|receipt| !serials.contains(&receipt.serial) || !receipt.is_acknowledged());
        Ok(())
    }
}
