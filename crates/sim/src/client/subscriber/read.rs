//! Reads the events, frames, and answers to long-polls of a subscriber.
//!
//! An *epoch* is a number in each position, which changes with each start on the log.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::sse::{GAP_EVENT, topic_of_gap};
use crore_wire::websocket::gap::{CLOSE_GAP, resume_position};
use crore_wire::websocket::receive::Event;

use super::{Subscriber, Transport};
use crate::client::http::{self, Framing};
use crate::client::{sse, websocket};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation, key_name, printable};

/// The longest message that the client accepts.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

impl Subscriber {
    pub(super) fn read_events(
        &mut self,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let mut body = std::mem::take(&mut self.conn.body);
        if self.transport == Transport::Sse {
            self.conn.stream_ended |= http::take_chunks(&mut self.conn.bytes, &mut body)?;
        } else {
            body.append(&mut self.conn.bytes);
        }
        while let Some(event) = sse::take_event(&mut body)? {
            let is_gap = event.name == GAP_EVENT.as_bytes();
            match (event.id, event.data) {
                (Some(id), Some(data)) if is_gap => {
                    self.gap_received(Some(topic_of_gap(&data)), &id, truth, coverage)?;
                }
                (Some(id), Some(data)) => {
                    self.message_received(&data, Some(&id), truth, coverage)?
                }
                (Some(id), None) => self.position_received(&id, truth)?,
                (None, None) => {}
                (None, Some(data)) => {
                    return Err(format!("an event without an id: {}", printable(&data)));
                }
            }
        }
        self.conn.body = body;
        Ok(())
    }

    pub(super) fn read_frames(
        &mut self,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let mut partial = self.conn.partial.take();
        let input = std::mem::take(&mut self.conn.bytes);
        websocket::read(
            &mut partial,
            input,
            MESSAGE_BYTES_MAX,
            self.deflate,
            |event| {
                match event {
                    Event::Ping(data) => websocket::pong(&mut self.out, data),
                    Event::Pong(_) => {}
                    Event::Close { code, reason } => {
                        let reason = reason.to_vec();
                        self.read_close(code, &reason, truth, coverage)?;
                        return Ok(false);
                    }
                    Event::Text(data) | Event::Binary(data)
                        if self.transport == Transport::Plain =>
                    {
                        self.message_received(data, None, truth, coverage)?;
                    }
                    Event::Text(data) if self.transport == Transport::Envelope => {
                        self.read_envelope(data, truth, coverage)?;
                    }
                    Event::Binary(_) if self.transport == Transport::Envelope => {
                        return Err("an envelope in a binary frame".into());
                    }
                    Event::Text(data) | Event::Binary(data) => {
                        self.read_meta(data, truth, coverage)?;
                    }
                }
                Ok(true)
            },
        )?;
        self.conn.partial = partial;
        Ok(())
    }

    fn read_meta(
        &mut self,
        data: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let end = data.windows(2).position(|two| two == b"\n\n");
        let end = end.ok_or_else(|| format!("no meta head: {}", printable(data)))?;
        let field = |name: &[u8]| {
            let mut lines = data[..end].split(|b| *b == b'\n');
            lines.find_map(|line| line.strip_prefix(name).map(<[u8]>::to_vec))
        };
        let id = field(b"id: ").ok_or_else(|| format!("no id: {}", printable(data)))?;
        if field(b"gap: ").is_some() {
            return self.gap_received(field(b"topic: ").as_deref(), &id, truth, coverage);
        }
        self.check_key(&data[end + 2..], field(b"key: ").as_deref(), truth)?;
        self.message_received(&data[end + 2..], Some(&id), truth, coverage)
    }

    /// Reads an envelope: a JSON object. The fields read here are strings without escapes.
    fn read_envelope(
        &mut self,
        object: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let text = std::str::from_utf8(object).map_err(|_| "an envelope that is not UTF-8")?;
        let field = |name: &str| {
            let start = text.find(&format!("\"{name}\":\""))? + name.len() + 4;
            text[start..].split('"').next().map(str::as_bytes)
        };
        let id = field("id").ok_or_else(|| format!("no id: {text}"))?;
        if field("gap").is_some() {
            coverage.enveloped_gaps += 1;
            return self.gap_received(field("topic"), id, truth, coverage);
        }
        let base64 = field("data_base64").map(|data| STANDARD.decode(data));
        let data = match (field("data"), base64) {
            (Some(data), None) => data.to_vec(),
            (None, Some(Ok(data))) => data,
            (None, None) if text == format!("{{\"id\":\"{}\"}}", printable(id)) => {
                return self.position_received(id, truth);
            }
            _ => return Err(format!("no data: {text}")),
        };
        self.check_key(&data, field("key"), truth)?;
        self.message_received(&data, Some(id), truth, coverage)
    }

    /// Checks that the key received with a message is the one with which it was published.
    fn check_key(&self, data: &[u8], key: Option<&[u8]>, truth: &Truth) -> Result<(), Violation> {
        let number = truth.number_of(data)?;
        let expected = key_name(truth.messages[number as usize].spec.key);
        match expected.as_deref().map(str::as_bytes) == key {
            true => Ok(()),
            false => Err(format!("message {number} came with the key {key:?}")),
        }
    }

    fn read_close(
        &mut self,
        code: Option<u16>,
        reason: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} closed with {code:?} {}", self.link, printable(reason)));
        self.must_close = true;
        match code {
            Some(4410) => self.topic_deleted(coverage),
            Some(CLOSE_GAP) => {
                let Some(id) = resume_position(reason) else {
                    // A position may be too long for the reason of a Close frame, for example with many partitions and several epochs after
                    // a crash. Then the reason has no position, and the subscriber subscribes again without one.
                    self.position = None;
                    let damaged = truth.topics.iter().any(|topic| topic.damage_step.is_some());
                    if !damaged && truth.crash_step.is_none() {
                        return Err(format!("no position in {}", printable(reason)));
                    }
                    coverage.told_gaps += 1;
                    return Ok(());
                };
                return self.gap_received(None, id.as_bytes(), truth, coverage);
            }
            Some(code) if websocket::is_for_room(code) => {}
            code => return Err(format!("closed with {code:?} {}", printable(reason))),
        }
        Ok(())
    }

    pub(super) fn read_poll(
        &mut self,
        end: bool,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let Some(head) = self.conn.head.clone() else {
            return Ok(());
        };
        let Framing::Length(len) = http::framing(&head)? else {
            return Err("a long-poll's answer has a length".into());
        };
        if self.conn.bytes.len() < len {
            return Ok(());
        }
        let body: Vec<u8> = self.conn.bytes.drain(..len).collect();
        self.conn.head = None;
        self.conn.is_requesting = false;
        self.must_close |= end || head.field("connection") == Some("close");
        truth.note(|| {
            format!(
                "{:?} polled {} gap {:?}",
                self.link,
                head.status,
                head.field("crore-gap")
            )
        });
        let gap = head.field("crore-gap").is_some();
        match (head.status, head.etag()) {
            (200, Some(tag)) => {
                coverage.polls += 1;
                if gap {
                    self.poll_gap_received(truth, coverage)?;
                }
                self.check_key(&body, head.field("crore-key").map(str::as_bytes), truth)?;
                self.message_received(&body, Some(&tag), truth, coverage)
            }
            (204 | 304 | 408, Some(tag)) if gap => self.gap_received(None, &tag, truth, coverage),
            (204 | 304 | 408, Some(tag)) => self.position_received(&tag, truth),
            // The request arrived too slowly.
            (408, None) => Ok(()),
            (204 | 304, None) => Err("a long-poll ended without a position".into()),
            (410, _) => {
                self.topic_deleted(coverage);
                Ok(())
            }
            (429 | 503, _) => {
                coverage.refused += 1;
                Ok(())
            }
            (status, _) => Err(format!("a long-poll was answered {status}")),
        }
    }
}
