//! Reads a server's bytes to a subscriber, over each transport: whole units only; the rest waits in `held`.

use crore_wire::websocket::frame::Opcode;

use super::{Client, Met, Next};
use crate::client::parse::{self, Response};
use crate::client::request::pong;
use crate::scenario::chaos::world::{Transport, World};

/// The server's close code for messages that are lost.
const CLOSE_GAP: u16 = 4412;
/// The server's close code when it restarts.
const CLOSE_RESTART: u16 = 1012;
/// The server's close code when a frame of the client came too slowly.
const CLOSE_SLOW: u16 = 1001;
/// The reason of that close ends with these words and a position.
const RESUME: &str = "resume from ";

impl Client {
    pub(super) fn responses(&mut self, world: &World, met: &mut Met) -> Result<Next, String> {
        loop {
            let response = parse::response(&self.held).map_err(|error| error.to_string())?;
            let Some(Response { head, body, bytes }) = response else {
                return Ok(Next::Stay);
            };
            let (transport, status) = (self.part.transport, head.status);
            match (transport, status) {
                (Transport::Ws, 101) if head.accepted => {}
                (Transport::Sse, 200) if head.chunked => {}
                (Transport::Poll, 200 | 204 | 304) => {
                    let tag = head
                        .etag
                        .map(|tag| String::from_utf8_lossy(tag).into_owned());
                    let (gap, data) = (head.gap, body.to_vec());
                    self.polled(status, tag, gap, &data, world, met)?;
                    self.held.drain(..bytes);
                    self.answered(met);
                    self.ask(world);
                    continue;
                }
                // The network stalled in the middle of the request (408), or the server has no room now.
                (_, 408 | 429 | 503) => {
                    met.turned_away += 1;
                    return Ok(Next::Return);
                }
                _ => {
                    let said = String::from_utf8_lossy(body);
                    return Err(format!("{transport:?}: {status} {said}"));
                }
            }
            self.held.drain(..bytes);
            self.streaming = true;
            self.answered(met);
            return Ok(Next::Stay);
        }
    }

    fn answered(&mut self, met: &mut Met) {
        if !self.live {
            met.opened += 1;
            met.resumed += u64::from(self.position.is_some());
        }
        self.live = true;
    }

    fn polled(
        &mut self,
        status: u16,
        tag: Option<String>,
        gap: bool,
        data: &[u8],
        world: &World,
        met: &mut Met,
    ) -> Result<(), String> {
        if gap {
            self.gap(None, world, met);
        }
        if status == 200 {
            let tag = tag.as_ref().ok_or("a message without an ETag")?;
            self.message(tag, None, data, world, met);
        } else {
            met.empty_polls += 1;
        }
        if let Some(tag) = tag {
            self.position = Some(tag);
        }
        Ok(())
    }

    pub(super) fn frames(&mut self, world: &World, met: &mut Met) -> Result<Next, String> {
        let held = std::mem::take(&mut self.held);
        let (mut used, mut next) = (0, Next::Stay);
        while next == Next::Stay {
            let frame = parse::frame(&held[used..]).map_err(|error| error.to_string())?;
            let Some(frame) = frame else { break };
            used += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => self.meta(frame.payload, world, met)?,
                Opcode::Close => next = self.closed(frame.payload, world, met)?,
                Opcode::Ping => pong(frame.payload, &mut self.out),
                other => return Err(format!("a frame of the kind {other:?}")),
            }
        }
        self.held = held;
        self.held.drain(..used);
        Ok(next)
    }

    /// A message of `ws+meta.nchan`: lines, an empty line, data.
    fn meta(&mut self, text: &[u8], world: &World, met: &mut Met) -> Result<(), String> {
        let end = text.windows(2).position(|two| two == b"\n\n");
        let end = end.ok_or("a message without its empty line")?;
        let (mut id, mut topic, mut gap) = (None, None, false);
        for line in text[..end].split(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(line).map_err(|_| "a line that is not text")?;
            let (name, value) = line.split_once(": ").ok_or("a line without a name")?;
            match name {
                "id" => id = Some(value),
                "topic" => topic = Some(value),
                "gap" => gap = true,
                _ => {}
            }
        }
        let id = id.ok_or("a message without an id")?.to_string();
        if gap {
            let topic = self.named(topic, world)?;
            self.gap(Some(topic), world, met);
        } else {
            self.message(&id, topic, &text[end + 2..], world, met);
        }
        self.position = Some(id);
        Ok(())
    }

    fn closed(&mut self, payload: &[u8], world: &World, met: &mut Met) -> Result<Next, String> {
        let [high, low, reason @ ..] = payload else {
            return Err("a close without a code".into());
        };
        let reason = String::from_utf8_lossy(reason);
        met.ended += 1;
        match u16::from_be_bytes([*high, *low]) {
            CLOSE_GAP => {
                met.closed_for_gap += 1;
                let (_, position) = reason
                    .rsplit_once(RESUME)
                    .ok_or("4412 without a position")?;
                self.gap(None, world, met);
                self.position = Some(position.to_string());
                Ok(Next::Return)
            }
            CLOSE_SLOW | CLOSE_RESTART => Ok(Next::Return),
            code => Err(format!("closed {code} {reason}")),
        }
    }

    pub(super) fn events(&mut self, world: &World, met: &mut Met) -> Result<Next, String> {
        let unchunked = parse::unchunk(&mut self.held, self.decoded, &mut self.chunk_left);
        let Some((end, rest)) = unchunked.map_err(|error| error.to_string())? else {
            met.ended += 1;
            return Ok(Next::Return);
        };
        let held = std::mem::take(&mut self.held);
        let mut used = 0;
        while let Some(bytes) = whole_event(&held[used..end]) {
            self.event(&held[used..used + bytes], world, met)?;
            used += bytes;
        }
        self.decoded = end - used;
        self.held = held;
        self.held.drain(end..rest);
        self.held.drain(..used);
        Ok(Next::Stay)
    }

    fn event(&mut self, bytes: &[u8], world: &World, met: &mut Met) -> Result<(), String> {
        let (mut id, mut kind, mut data) = (None, "", None);
        let text = std::str::from_utf8(bytes).map_err(|_| "an event that is not text")?;
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value.to_string()),
                Some(("event", value)) => kind = value,
                Some(("data", value)) if data.is_none() => data = Some(value),
                _ => {}
            }
        }
        match (kind, data) {
            ("crore.gap", topic) => {
                let topic = self.named(topic, world)?;
                self.gap(Some(topic), world, met);
            }
            ("", Some(data)) => {
                let position = id.as_deref().ok_or("a message without an id")?;
                self.message(position, None, data.as_bytes(), world, met);
            }
            ("", None) => {}
            (kind, _) => return Err(format!("an event `{kind}`")),
        }
        if let Some(id) = id {
            // A client that has a position must get every message whose publish begins from now on.
            for (topic, track) in self.part.topics.iter().zip(&mut self.tracks) {
                if track.last() == 0 && data.is_none() {
                    track.promise(world.begun(*topic) + 1);
                }
            }
            self.position = Some(id);
        }
        Ok(())
    }
}

/// Bytes of the event at the start, when it is whole.
fn whole_event(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(2)
        .position(|two| two == b"\n\n")
        .map(|at| at + 2)
}
