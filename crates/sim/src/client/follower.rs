//! A follower: a client that watches which topics have subscribers (their interest). The follower keeps a view of these topics, from a
//! snapshot and the events after it. Every connection starts with an empty view.

use std::collections::BTreeSet;

use crore_wire::topic;
use crore_wire::websocket::receive::{Event, Partial};

use super::http::{self, Head};
use super::{sse, websocket};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation, printable};

/// The longest message that the client accepts.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The follower.
pub struct Follower {
    filter: String,
    over_websocket: bool,
    /// The link of the follower's connection.
    pub link: Option<u32>,
    head: Option<Head>,
    /// Received bytes that are not parsed yet.
    bytes: Vec<u8>,
    /// The body of the event stream that is not parsed yet.
    body: Vec<u8>,
    partial: Option<Box<Partial>>,
    /// The topics that have subscribers, according to the events.
    view: BTreeSet<String>,
    /// Whether the end of the snapshot was received.
    has_snapshot: bool,
    /// Bytes to send.
    pub out: Vec<u8>,
    /// Whether the follower closes its connection when `out` is sent.
    pub must_close: bool,
}

impl Follower {
    /// A follower of the topics that match the filter.
    pub fn new(filter: String, over_websocket: bool) -> Self {
        Follower {
            filter,
            over_websocket,
            link: None,
            head: None,
            bytes: Vec::new(),
            body: Vec::new(),
            partial: None,
            view: BTreeSet::new(),
            has_snapshot: false,
            out: Vec::new(),
            must_close: false,
        }
    }

    /// Begins a connection.
    pub fn connect(&mut self, link: u32, truth: &mut Truth) {
        self.connection_ended();
        self.link = Some(link);
        let filter = self.filter.replace('#', "%23").replace('+', "%2B");
        let fields = match self.over_websocket {
            true => {
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            }
            false => "Accept: text/event-stream\r\n",
        };
        let text =
            format!("GET /interest?match={filter} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        truth.note(|| format!("{link} follows {}", self.filter));
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Forgets the view, because the connection has ended.
    pub fn connection_ended(&mut self) {
        self.link = None;
        self.head = None;
        self.bytes.clear();
        self.body.clear();
        self.partial = None;
        self.view.clear();
        (self.has_snapshot, self.must_close) = (false, false);
        self.out.clear();
    }

    /// Whether the follower is connected and has received the whole snapshot.
    pub fn is_synchronized(&self) -> bool {
        self.link.is_some() && self.has_snapshot && !self.must_close
    }

    /// Reads received bytes.
    pub fn read(
        &mut self,
        bytes: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.bytes.extend_from_slice(bytes);
        if self.head.is_none() {
            self.head = http::take_head(&mut self.bytes)?;
            let Some(head) = &self.head else {
                return Ok(());
            };
            let expected = if self.over_websocket { 101 } else { 200 };
            // An event stream with a length is a refusal that tells the client when to reconnect.
            if head.status != expected || head.field("content-length").is_some() {
                self.must_close = true;
                return match head.status {
                    200 | 408 | 429 | 503 => {
                        coverage.refused += 1;
                        Ok(())
                    }
                    status => Err(format!("a follower was answered {status}")),
                };
            }
        }
        if self.must_close {
            return Ok(());
        }
        match self.over_websocket {
            true => self.read_frames(truth, coverage),
            false => self.read_events(truth, coverage),
        }
    }

    fn read_events(&mut self, truth: &mut Truth, coverage: &mut Coverage) -> Result<(), Violation> {
        let mut body = std::mem::take(&mut self.body);
        http::take_chunks(&mut self.bytes, &mut body)?;
        while let Some(event) = sse::take_event(&mut body)? {
            let Some(data) = event.data else { continue };
            let name = String::from_utf8_lossy(&event.name).into_owned();
            if name == "crore.slow" {
                self.must_close = true;
                break;
            }
            self.event_received(&name, &String::from_utf8_lossy(&data), truth, coverage)?;
        }
        self.body = body;
        Ok(())
    }

    fn read_frames(&mut self, truth: &mut Truth, coverage: &mut Coverage) -> Result<(), Violation> {
        let mut partial = self.partial.take();
        let input = std::mem::take(&mut self.bytes);
        websocket::read(&mut partial, input, MESSAGE_BYTES_MAX, false, |event| {
            match event {
                Event::Ping(data) => websocket::pong(&mut self.out, data),
                Event::Text(data) => {
                    let text = String::from_utf8_lossy(data).into_owned();
                    let event = text
                        .strip_prefix("{\"event\":\"")
                        .and_then(|rest| rest.split_once("\","));
                    let (event, rest) = event.ok_or_else(|| format!("no event: {text}"))?;
                    self.event_received(event, &format!("{{{rest}"), truth, coverage)?;
                }
                Event::Close { code, .. } => {
                    self.must_close = true;
                    match code {
                        Some(4413) => return Ok(false),
                        Some(code) if websocket::is_for_room(code) => return Ok(false),
                        code => return Err(format!("a follower was closed with {code:?}")),
                    }
                }
                other => return Err(format!("a follower got {other:?}")),
            }
            Ok(true)
        })?;
        self.partial = partial;
        Ok(())
    }

    /// Handles an event. Checks that `first` and `last` of a topic alternate, and that `whole`, the end of the snapshot, gives the number
    /// of topics in the snapshot.
    fn event_received(
        &mut self,
        event: &str,
        data: &str,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} is told {event} {data}", self.link));
        if event == "whole" {
            self.has_snapshot = true;
            let counted = format!("{{\"topics\":{}}}", self.view.len());
            return match data == counted {
                true => Ok(()),
                false => Err(format!("a snapshot says {data} and told {counted}")),
            };
        }
        let name = data
            .strip_prefix("{\"topic\":\"")
            .and_then(|rest| rest.strip_suffix("\"}"));
        let name = name.ok_or_else(|| format!("no topic: {}", printable(data.as_bytes())))?;
        if !topic::matches(self.filter.as_bytes(), name.as_bytes()) {
            return Err(format!("{name} does not match {}", self.filter));
        }
        let is_change = match event {
            "first" => self.view.insert(name.to_string()),
            "last" => self.view.remove(name),
            _ => return Err(format!("an event {event}")),
        };
        coverage.interest += 1;
        match is_change {
            true => Ok(()),
            false => Err(format!("{event} of {name} was told twice")),
        }
    }

    /// Checks that the view has exactly the topics with subscribers. Nothing may be in flight. With `linger` the server reports the loss of
    /// a topic's last subscriber with a delay, so the view may still have topics without subscribers.
    pub fn check(&self, subscribers: &[(String, u64)], linger: bool) -> Result<(), Violation> {
        for (name, count) in subscribers {
            if !topic::matches(self.filter.as_bytes(), name.as_bytes()) {
                continue;
            }
            let seen = self.view.contains(name);
            if *count > 0 && !seen || *count == 0 && seen && !linger {
                return Err(format!(
                    "a follower of {} has {name} as {seen} while {count} subscribe",
                    self.filter
                ));
            }
        }
        Ok(())
    }

    /// Checks, long after the last subscriber has left, that the view is empty.
    pub fn check_empty(&self) -> Result<(), Violation> {
        match self.view.first() {
            Some(name) => Err(format!("the end of {name} was never told")),
            None => Ok(()),
        }
    }
}
