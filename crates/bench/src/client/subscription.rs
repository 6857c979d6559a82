//! The protocol state of a subscription over HTTP. The subscription behaves as a browser does: it keeps the position of the last complete
//! message, and sends this position when it reconnects.
//!
//! This module uses no socket, so tests can split the received bytes anywhere. A response, frame or event is handled when it is complete.
//! The bytes of an incomplete one are kept in `held`. An answer that violates the protocol is an error with a reason.

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
    /// A position without a message.
    Position,
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
pub enum Next {
    /// The client keeps the connection.
    Continue,
    /// The client connects again.
    Reconnect,
}

/// A subscription.
pub struct Subscription {
    transport: Transport,
    /// The topics or the filter, as a query.
    query: String,
    /// `since` of the first request.
    first: &'static str,
    /// The newest received position.
    pub position: Option<String>,
    /// Bytes of an incomplete response, frame or event. In an event stream, the chunk lines are already removed from the first
    /// `decoded` bytes.
    held: Vec<u8>,
    decoded: usize,
    chunk_left: u32,
    is_streaming: bool,
    /// Whether the last request had a position.
    resumes: bool,
    /// Bytes to send.
    pub out: Vec<u8>,
}

type Result<T = ()> = std::result::Result<T, String>;

impl Subscription {
    /// A subscription with these query parameters. Without a position it begins at `first`.
    pub fn new<'a>(
        transport: Transport,
        names: impl IntoIterator<Item = (&'a str, &'a str)>,
        first: &'static str,
    ) -> Subscription {
        let mut query = String::new();
        for (name, value) in names {
            query.push(if query.is_empty() { '?' } else { '&' });
            write!(query, "{name}=").expect("a String takes all");
            request::escape(value, &mut query);
        }
        Subscription {
            transport,
            query,
            first,
            position: None,
            held: Vec::new(),
            decoded: 0,
            chunk_left: 0,
            is_streaming: false,
            resumes: false,
            out: Vec::new(),
        }
    }

    /// Prepares the request for a new connection.
    pub fn connected(&mut self) {
        self.held.clear();
        self.out.clear();
        (self.decoded, self.chunk_left, self.is_streaming) = (0, 0, false);
        self.ask();
    }

    fn ask(&mut self) {
        self.resumes = self.position.is_some();
        let since = match (&self.position, self.transport) {
            (Some(position), Transport::Ws) => format!("&since={position}"),
            (Some(_), _) => String::new(),
            (None, _) => format!("&since={}", self.first),
        };
        let target = format!("/sub{}{since}", self.query);
        const EVENTS: &str = "Accept: text/event-stream\r\nCache-Control: no-cache\r\n";
        let lines = match (self.transport, &self.position) {
            (Transport::Ws, _) => {
                self.out = request::upgrade("localhost", &target, Some("ws+meta.nchan"));
                return;
            }
            (Transport::Sse, None) => EVENTS.into(),
            (Transport::Sse, Some(position)) => format!("{EVENTS}Last-Event-ID: {position}\r\n"),
            (Transport::Poll, Some(tag)) => format!("If-None-Match: {tag}\r\n"),
            (Transport::Poll, None) => String::new(),
        };
        let text = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Handles received bytes, and passes each event in them to `on_event`.
    pub fn received(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result<Next> {
        self.held.extend_from_slice(bytes);
        if !self.is_streaming {
            let next = self.responses(on_event)?;
            if next == Next::Reconnect || !self.is_streaming {
                return Ok(next);
            }
        }
        match self.transport {
            Transport::Ws => self.frames(on_event),
            Transport::Sse => self.events(on_event),
            Transport::Poll => Ok(Next::Continue),
        }
    }

    fn responses(&mut self, on_event: &mut impl FnMut(ServerEvent<'_>) -> Result) -> Result<Next> {
        loop {
            let resumes = self.resumes;
            let response = parse::response(&self.held)?;
            let Some(Response { head, body, bytes }) = response else {
                return Ok(Next::Continue);
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
                    self.held.drain(..bytes);
                    on_event(ServerEvent::Answer { resumes })?;
                    self.ask();
                    continue;
                }
                // The request arrived too slowly (408), or the server has no capacity now.
                (_, 408 | 429 | 503) => {
                    on_event(ServerEvent::Unavailable)?;
                    return Ok(Next::Reconnect);
                }
                (transport, status) => {
                    let said = String::from_utf8_lossy(body);
                    return Err(format!("{transport:?}: {status} {said}"));
                }
            }
            self.held.drain(..bytes);
            self.is_streaming = true;
            on_event(ServerEvent::Answer { resumes })?;
            return Ok(Next::Continue);
        }
    }

    fn frames(&mut self, on_event: &mut impl FnMut(ServerEvent<'_>) -> Result) -> Result<Next> {
        let held = std::mem::take(&mut self.held);
        let (mut used, mut next) = (0, Next::Continue);
        while next == Next::Continue {
            let frame = parse::frame(&held[used..])?;
            let Some(frame) = frame else { break };
            used += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => self.message_frame(frame.payload, on_event)?,
                Opcode::Close => {
                    self.closed(frame.payload, on_event)?;
                    next = Next::Reconnect;
                }
                Opcode::Ping => request::pong(frame.payload, &mut self.out),
                other => return Err(format!("a frame of the kind {other:?}")),
            }
        }
        self.held = held;
        self.held.drain(..used);
        Ok(next)
    }

    /// Parses a message of the subprotocol `ws+meta.nchan`: header lines, an empty line, data.
    fn message_frame(
        &mut self,
        text: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result {
        let end = text.windows(2).position(|two| two == b"\n\n");
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

    fn closed(
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

    fn events(&mut self, on_event: &mut impl FnMut(ServerEvent<'_>) -> Result) -> Result<Next> {
        let unchunked = parse::unchunk(&mut self.held, self.decoded, &mut self.chunk_left);
        let Some((end, rest)) = unchunked? else {
            on_event(ServerEvent::End(None))?;
            return Ok(Next::Reconnect);
        };
        let held = std::mem::take(&mut self.held);
        let mut used = 0;
        while let Some(bytes) = held[used..end].windows(2).position(|two| two == b"\n\n") {
            self.event(&held[used..used + bytes], on_event)?;
            used += bytes + 2;
        }
        self.decoded = end - used;
        self.held = held;
        self.held.drain(end..rest);
        self.held.drain(..used);
        Ok(Next::Continue)
    }

    fn event(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result,
    ) -> Result {
        let (mut id, mut kind, mut data) = (None, "", None);
        let text = std::str::from_utf8(bytes).map_err(|_| "an event that is not text")?;
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value),
                Some(("event", value)) => kind = value,
                Some(("data", value)) if data.is_none() => data = Some(value),
                _ => {}
            }
        }
        match (kind, data, id) {
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
            ("", None, Some(_)) => on_event(ServerEvent::Position)?,
            ("", None, None) => {}
            (kind, ..) => return Err(format!("an event `{kind}`")),
        }
        self.position = id.map(String::from).or(self.position.take());
        Ok(())
    }
}
