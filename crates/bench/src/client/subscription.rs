//! The protocol state of a subscription over HTTP. The subscription behaves as a browser does: it keeps the position of the last complete
//! message, and sends this position when it reconnects.
//!
//! This module uses no socket, so tests can split the received bytes anywhere. A response, frame or event is handled when it is complete.
//! The bytes of an incomplete one are kept in `buffer`. An answer that violates the protocol is an error with a reason.

use std::fmt::Write;

use crore_wire::sse::{GAP_EVENT, topic_of_gap};
use crore_wire::websocket::frame::Opcode;
use crore_wire::websocket::gap::{CLOSE_GAP, resume_position};

use super::parse::{self, Response};
use super::request;

/// The transport of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// WebSocket with `ws+meta.nchan`.
    Ws,
    /// Server-Sent Events.
    Sse,
    /// HTTP long-poll.
    Poll,
}

/// An event that the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent<'a> {
    /// The answer to a request.
    Answer {
        /// Whether the request had a position.
        resumes: bool,
    },
    /// A message with its position, and with its topic if the server names it.
    Message {
        /// The position.
        position: &'a str,
        /// The topic.
        topic: Option<&'a str>,
        /// The data.
        data: &'a [u8],
    },
    /// Messages are lost.
    Gap(Gap<'a>),
    /// A position without a message, of this topic; of all topics of the connection if the server names none.
    Position(Option<&'a str>),
    /// A long-poll ended without a message.
    Empty,
    /// The server has no capacity for now, or the request arrived too slowly.
    Unavailable,
    /// The server has ended the stream. A WebSocket has this close code.
    End(Option<u16>),
}

/// The topic in which messages are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap<'a> {
    /// This topic. `None` if the server names no topic. The connection must then have only one topic.
    Topic(Option<&'a [u8]>),
    /// Any topic of the connection.
    Any,
}

/// What the client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// The client keeps the connection.
    KeepConnection,
    /// The client connects again.
    Reconnect,
}

/// A subscription.
pub struct Subscription {
    transport: Transport,
    /// The topics or the filter, as a query.
    query: String,
    /// `since` of the first request.
    first_since: &'static str,
    /// The newest received position.
    pub position: Option<String>,
    /// Bytes of an incomplete response, frame or event. In an event stream, the chunk lines are already removed from the first
    /// `decoded` bytes.
    buffer: Vec<u8>,
    decoded: usize,
    chunk_left: u32,
    is_streaming: bool,
    /// Whether the last request had a position.
    resumes: bool,
    /// Bytes to send.
    pub outgoing: Vec<u8>,
}

type Result<T = ()> = std::result::Result<T, String>;

impl Subscription {
    /// A subscription with these query parameters. Without a position it begins at `first_since`.
    pub fn new<'a>(
        transport: Transport,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
        first_since: &'static str,
    ) -> Subscription {
        let mut query = String::new();
        for (name, value) in parameters {
            query.push(if query.is_empty() { '?' } else { '&' });
            write!(query, "{name}=").expect("a String takes all");
            request::escape(value, &mut query);
        }
        Subscription {
            transport,
            query,
            first_since,
            position: None,
            buffer: Vec::new(),
            decoded: 0,
            chunk_left: 0,
            is_streaming: false,
            resumes: false,
            outgoing: Vec::new(),
        }
    }

    /// Prepares the request for a new connection.
    pub fn start_connection(&mut self) {
        self.buffer.clear();
        self.outgoing.clear();
        (self.decoded, self.chunk_left, self.is_streaming) = (0, 0, false);
        self.write_request();
    }

    fn write_request(&mut self) {
        self.resumes = self.position.is_some();
        let since = match (&self.position, self.transport) {
            (Some(position), Transport::Ws) => format!("&since={position}"),
            (Some(_), _) => String::new(),
            (None, _) => format!("&since={}", self.first_since),
        };
        let target = format!("/sub{}{since}", self.query);
        const EVENTS: &str = "Accept: text/event-stream\r\nCache-Control: no-cache\r\n";
        let header_lines = match (self.transport, &self.position) {
            (Transport::Ws, _) => {
                self.outgoing = request::upgrade("localhost", &target, Some("ws+meta.nchan"));
                return;
            }
            (Transport::Sse, None) => EVENTS.into(),
            (Transport::Sse, Some(position)) => format!("{EVENTS}Last-Event-ID: {position}\r\n"),
            (Transport::Poll, Some(tag)) => format!("If-None-Match: {tag}\r\n"),
            (Transport::Poll, None) => String::new(),
        };
        let text = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{header_lines}\r\n");
        self.outgoing.extend_from_slice(text.as_bytes());
    }

    /// Handles received bytes, and passes each event in them to `on_event`.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result<NextAction> {
        self.buffer.extend_from_slice(bytes);
        if !self.is_streaming {
            let action = self.handle_responses(on_event)?;
            if action == NextAction::Reconnect || !self.is_streaming {
                return Ok(action);
            }
        }
        match self.transport {
            Transport::Ws => self.handle_frames(on_event),
            Transport::Sse => self.handle_events(on_event),
            Transport::Poll => Ok(NextAction::KeepConnection),
        }
    }

    fn handle_responses(
        &mut self,
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result<NextAction> {
        loop {
            let resumes = self.resumes;
            let response = parse::response(&self.buffer)?;
            let Some(Response { head, body, bytes }) = response else {
                return Ok(NextAction::KeepConnection);
            };
            match (self.transport, head.status) {
                (Transport::Ws, 101) if head.accepted => {}
                (Transport::Sse, 200) if head.chunked => {}
                (Transport::Poll, status @ (200 | 204 | 304)) => {
                    let tag = head.etag.map(String::from_utf8_lossy);
                    if head.gap {
                        on_event(ServerEvent::Gap(Gap::Any))?;
                    }
                    on_event(match &tag {
                        Some(tag) if status == 200 => ServerEvent::Message {
                            position: tag,
                            topic: None,
                            data: body,
                        },
                        None if status == 200 => return Err("a message without an ETag".into()),
                        _ => ServerEvent::Empty,
                    })?;
                    self.position = tag.map(String::from).or(self.position.take());
                    self.buffer.drain(..bytes);
                    on_event(ServerEvent::Answer { resumes })?;
                    self.write_request();
                    continue;
                }
                // The request arrived too slowly (408), or the server has no capacity now.
                (_, 408 | 429 | 503) => {
                    on_event(ServerEvent::Unavailable)?;
                    return Ok(NextAction::Reconnect);
                }
                (transport, status) => {
                    let body = String::from_utf8_lossy(body);
                    return Err(format!("{transport:?}: {status} {body}"));
                }
            }
            self.buffer.drain(..bytes);
            self.is_streaming = true;
            on_event(ServerEvent::Answer { resumes })?;
            return Ok(NextAction::KeepConnection);
        }
    }

    fn handle_frames(
        &mut self,
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result<NextAction> {
        let buffer = std::mem::take(&mut self.buffer);
        let (mut handled_bytes, mut action) = (0, NextAction::KeepConnection);
        while action == NextAction::KeepConnection {
            let frame = parse::frame(&buffer[handled_bytes..])?;
            let Some(frame) = frame else { break };
            handled_bytes += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => {
                    self.handle_message_frame(frame.payload, on_event)?
                }
                Opcode::Close => {
                    self.handle_close_frame(frame.payload, on_event)?;
                    action = NextAction::Reconnect;
                }
                Opcode::Ping => request::pong(frame.payload, &mut self.outgoing),
                other => return Err(format!("a frame of the kind {other:?}")),
            }
        }
        self.buffer = buffer;
        self.buffer.drain(..handled_bytes);
        Ok(action)
    }

    /// Parses a message of the subprotocol `ws+meta.nchan`: header lines, an empty line, data.
    fn handle_message_frame(
        &mut self,
        text: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result {
        let end = text.windows(2).position(|pair| pair == b"\n\n");
        let end = end.ok_or("a message without its empty line")?;
        let head = std::str::from_utf8(&text[..end]).map_err(|_| "a line that is not text")?;
        let (mut id, mut topic, mut gap) = (None, None, false);
        for line in head.lines() {
            match line.split_once(": ").ok_or("a line without a name")? {
                ("id", value) => id = Some(value),
                ("topic", value) => topic = Some(value),
                ("gap", _) => gap = true,
                _ => {}
            }
        }
        let position = id.ok_or("a message without an id")?;
        let data = &text[end + 2..];
        on_event(match gap {
            true => ServerEvent::Gap(Gap::Topic(topic.map(str::as_bytes))),
            false => ServerEvent::Message {
                position,
                topic,
                data,
            },
        })?;
        self.position = Some(position.to_string());
        Ok(())
    }

    fn handle_close_frame(
        &mut self,
        payload: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result {
        let Some((code, reason)) = payload.split_first_chunk() else {
            return Err("a close without a code".into());
        };
        let code = u16::from_be_bytes(*code);
        if code == CLOSE_GAP {
            on_event(ServerEvent::Gap(Gap::Any))?;
            let position = resume_position(reason).ok_or("a gap without a position")?;
            self.position = Some(position.to_string());
        }
        let reason = String::from_utf8_lossy(reason);
        on_event(ServerEvent::End(Some(code))).map_err(|why| format!("{why} {reason}"))
    }

    fn handle_events(
        &mut self,
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result<NextAction> {
        let unchunked = parse::unchunk(&mut self.buffer, self.decoded, &mut self.chunk_left);
        let Some((end, rest)) = unchunked? else {
            on_event(ServerEvent::End(None))?;
            return Ok(NextAction::Reconnect);
        };
        let buffer = std::mem::take(&mut self.buffer);
        let mut handled_bytes = 0;
        while let Some(bytes) = buffer[handled_bytes..end]
            .windows(2)
            .position(|pair| pair == b"\n\n")
        {
            self.handle_event(&buffer[handled_bytes..handled_bytes + bytes], on_event)?;
            handled_bytes += bytes + 2;
        }
        self.decoded = end - handled_bytes;
        self.buffer = buffer;
        self.buffer.drain(end..rest);
        self.buffer.drain(..handled_bytes);
        Ok(NextAction::KeepConnection)
    }

    fn handle_event(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result {
        let (mut id, mut event_name, mut data) = (None, "", None);
        let text = std::str::from_utf8(bytes).map_err(|_| "an event that is not text")?;
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value),
                Some(("event", value)) => event_name = value,
                Some(("data", value)) if data.is_none() => data = Some(value),
                _ => {}
            }
        }
        match (event_name, data, id) {
            (GAP_EVENT, data, _) => {
                let topic = data.map(|data| topic_of_gap(data.as_bytes()));
                on_event(ServerEvent::Gap(Gap::Topic(topic)))?;
            }
            ("", Some(data), Some(position)) => on_event(ServerEvent::Message {
                position,
                topic: None,
                data: data.as_bytes(),
            })?,
            ("", Some(_), None) => return Err("a message without an id".into()),
            ("", None, Some(_)) => on_event(ServerEvent::Position(None))?,
            ("", None, None) => {}
            (event_name, ..) => return Err(format!("an event `{event_name}`")),
        }
        self.position = id.map(String::from).or(self.position.take());
        Ok(())
    }
}
