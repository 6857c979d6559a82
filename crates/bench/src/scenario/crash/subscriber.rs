//! A subscriber: notes every message that came whole, with its position, and every gap that was told. Its state outlives its
//! connections: one that resumes names the newest position that it has read whole, as a browser does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crore_wire::websocket::frame::Opcode;

use super::link::{End, Link, until_gone};
use super::message::{self, GROUPS, TOPICS};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};
use crate::client::place::Place;
use crate::client::{parse, request};

/// How long a subscriber waits for a byte. The topics are busy, and long-polls end in between.
const PATIENCE: Duration = Duration::from_secs(20);
/// One of so many event streams and WebSockets does not resume.
const ANEW_EVERY: u32 = 4;
/// Topics of a subscriber with several.
const SEVERAL: u32 = 3;

/// The transport of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Server-Sent Events.
    Sse,
    /// WebSocket with `ws+meta.nchan`.
    Ws,
    /// HTTP long-poll.
    Poll,
    /// MQTT with QoS 1.
    Mqtt,
}

/// What a subscriber subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interest {
    Topic(u32),
    Topics(u32),
    Group(u32),
}

/// What a subscriber noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It began with the present: what comes next has nothing to do with what came before.
    Anew,
    /// A message.
    Message {
        /// Its topic.
        topic: u32,
        /// Its number.
        number: u32,
        /// Where it stands, where the transport says it.
        place: Option<Place>,
    },
    /// Messages are lost, the server said.
    Gap,
}

/// A subscriber.
pub struct Subscriber {
    index: u32,
    transport: Transport,
    interest: Interest,
    resumes: bool,
    position: Option<String>,
    /// Notes that nobody has judged yet.
    pub seen: Vec<Seen>,
    /// So many notes are enough: then it leaves.
    enough: usize,
    /// Messages of all subscribers.
    heard: Arc<AtomicU64>,
    /// Connections that named a position.
    pub resumed: u64,
    /// What no server may do.
    pub wrong: Vec<String>,
}

impl Subscriber {
    /// Subscriber `index` of a run, who counts its messages in `heard`.
    pub fn new(index: u32, heard: &Arc<AtomicU64>) -> Subscriber {
        let transport = [
            Transport::Sse,
            Transport::Ws,
            Transport::Poll,
            Transport::Mqtt,
        ][index as usize % 4];
        let turn = index / 4;
        let streams = matches!(transport, Transport::Sse | Transport::Ws);
        let interest = match transport {
            // A retained message, which comes first over MQTT, is not the next one.
            Transport::Mqtt => Interest::Topic(
                (0..TOPICS)
                    .filter(|topic| !message::retains(*topic))
                    .nth(turn as usize % 32)
                    .unwrap_or(1),
            ),
            _ if turn % 8 == 6 => Interest::Topics(turn % (TOPICS - SEVERAL)),
            // A long-poll of that many topics would not keep up: each message is a request.
            Transport::Sse | Transport::Ws if turn % 16 == 7 => Interest::Group(turn % GROUPS),
            _ => Interest::Topic((turn * 3 + index % 4) % TOPICS),
        };
        let resumes = transport == Transport::Poll || streams && turn % ANEW_EVERY != 1;
        Subscriber::of(index, transport, interest, resumes, heard.clone())
    }

    /// A reader of the whole log of a topic, who goes on where it left off.
    pub fn reader(topic: u32) -> Subscriber {
        let interest = Interest::Topic(topic);
        Subscriber::of(topic, Transport::Sse, interest, true, Arc::default())
    }

    fn of(
        index: u32,
        transport: Transport,
        interest: Interest,
        resumes: bool,
        heard: Arc<AtomicU64>,
    ) -> Subscriber {
        Subscriber {
            index,
            transport,
            interest,
            resumes,
            position: None,
            seen: Vec::new(),
            enough: usize::MAX,
            heard,
            resumed: 0,
            wrong: Vec::new(),
        }
    }

    /// Its name in faults.
    pub fn name(&self) -> String {
        let how = if self.resumes {
            "resumes"
        } else {
            "begins anew"
        };
        format!(
            "subscriber {} ({:?}, {:?}, {how})",
            self.index, self.transport, self.interest
        )
    }

    /// The topics that it gets.
    pub fn topics(&self) -> Vec<u32> {
        match self.interest {
            Interest::Topic(topic) => vec![topic],
            Interest::Topics(first) => (first..first + SEVERAL).collect(),
            Interest::Group(group) => (0..TOPICS)
                .filter(|topic| topic % GROUPS == group)
                .collect(),
        }
    }

    /// Whether it gets every message, from the first on.
    pub fn gets_all(&self) -> bool {
        self.resumes
    }

    /// Subscribes until it has so many notes or the server is gone.
    pub fn play(&mut self, address: SocketAddr, enough: usize) {
        self.enough = enough;
        let wrong = until_gone(|| match self.transport {
            Transport::Mqtt => self.over_mqtt(address),
            _ => self.over_http(address),
        });
        let named = wrong.map(|why| format!("{}: {why}", self.name()));
        self.wrong.extend(named);
    }

    fn over_http(&mut self, address: SocketAddr) -> Result<(), End> {
        let mut link = Link::open(address, PATIENCE)?;
        if !self.resumes {
            self.seen.push(Seen::Anew);
        }
        self.resumed += u64::from(self.resumes && self.position.is_some());
        link.send(&self.request())?;
        loop {
            let response = parse::response(&link.held).map_err(End::wrong)?;
            let Some(parse::Response { head, body, bytes }) = response else {
                link.read()?;
                continue;
            };
            match (self.transport, head.status) {
                (Transport::Ws, 101) | (Transport::Sse, 200) => {
                    link.held.drain(..bytes);
                    break;
                }
                (Transport::Poll, 200 | 204 | 304) => {
                    let tag = head
                        .etag
                        .map(|tag| String::from_utf8_lossy(tag).into_owned());
                    if head.gap {
                        self.seen.push(Seen::Gap);
                    }
                    if head.status == 200 {
                        self.message(tag.as_deref(), body)?;
                    }
                    self.position = tag.or(self.position.take());
                    link.held.drain(..bytes);
                    if self.seen.len() >= self.enough {
                        return Ok(());
                    }
                    link.send(&self.request())?;
                }
                (_, 408 | 429 | 503) => return Err(End::Cut),
                (_, status) => {
                    let said = String::from_utf8_lossy(body);
                    return Err(End::wrong(format!("answered {status} {said}")));
                }
            }
        }
        match self.transport {
            Transport::Ws => self.frames(&mut link),
            _ => self.events(&mut link),
        }
    }

    fn request(&self) -> Vec<u8> {
        let mut target = "/sub".to_string();
        let mut separator = '?';
        let mut add = |name: &str, value: &str| {
            target.push(separator);
            target += name;
            target.push('=');
            request::escape(value, &mut target);
            separator = '&';
        };
        match self.interest {
            Interest::Group(group) => add("filter", &format!("crash/{group}/#")),
            _ => self
                .topics()
                .iter()
                .for_each(|topic| add("topic", &message::name(*topic))),
        }
        let position = self.position.as_deref().filter(|_| self.resumes);
        match (self.transport, position) {
            (Transport::Ws, Some(position)) => add("since", position),
            (_, Some(_)) => {}
            (_, None) => add("since", if self.resumes { "oldest" } else { "live" }),
        }
        let lines = match (self.transport, position) {
            (Transport::Ws, _) => {
                return request::upgrade("localhost", &target, Some("ws+meta.nchan"));
            }
            (Transport::Sse, Some(position)) => format!(
                "Accept: text/event-stream\r\nCache-Control: no-cache\r\nLast-Event-ID: {position}\r\n"
            ),
            (Transport::Sse, None) => {
                "Accept: text/event-stream\r\nCache-Control: no-cache\r\n".into()
            }
            (_, Some(tag)) => format!("If-None-Match: {tag}\r\n"),
            (_, None) => String::new(),
        };
        format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").into_bytes()
    }

    fn message(&mut self, position: Option<&str>, data: &[u8]) -> Result<(), End> {
        let read = message::read(data).filter(|(topic, _)| self.topics().contains(topic));
        let Some((topic, number)) = read else {
            let start = String::from_utf8_lossy(&data[..data.len().min(60)]).into_owned();
            return Err(End::wrong(format!(
                "{} bytes that nobody published to it: {start}",
                data.len()
            )));
        };
        let place = position.and_then(Place::read);
        self.heard.fetch_add(1, Relaxed);
        self.seen.push(Seen::Message {
            topic,
            number,
            place,
        });
        Ok(())
    }

    fn frames(&mut self, link: &mut Link) -> Result<(), End> {
        while self.seen.len() < self.enough {
            let Some(frame) = parse::frame(&link.held).map_err(End::wrong)? else {
                link.read()?;
                continue;
            };
            let mut answer = Vec::new();
            match frame.opcode {
                Opcode::Ping => request::pong(frame.payload, &mut answer),
                Opcode::Close => {
                    let reason =
                        String::from_utf8_lossy(frame.payload.get(2..).unwrap_or_default());
                    return Err(End::wrong(format!("closed: {reason}")));
                }
                _ => self.meta(frame.payload)?,
            }
            let bytes = frame.bytes;
            link.held.drain(..bytes);
            link.send(&answer)?;
        }
        Ok(())
    }

    /// A message of `ws+meta.nchan`: lines, an empty line, data.
    fn meta(&mut self, text: &[u8]) -> Result<(), End> {
        let end = text.windows(2).position(|two| two == b"\n\n");
        let end = end.ok_or_else(|| End::wrong("a message without its empty line"))?;
        let head = String::from_utf8_lossy(&text[..end]).into_owned();
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let id = lines
            .clone()
            .find(|(name, _)| *name == "id")
            .map(|(_, id)| id);
        if lines.any(|(name, _)| name == "gap") {
            self.seen.push(Seen::Gap);
        } else {
            self.message(id, &text[end + 2..])?;
        }
        self.position = id.map(String::from).or(self.position.take());
        Ok(())
    }

    fn events(&mut self, link: &mut Link) -> Result<(), End> {
        let (mut decoded, mut left) = (0, 0);
        loop {
            // What came with the head is there already.
            let unchunked = parse::unchunk(&mut link.held, decoded, &mut left);
            let (end, rest) = unchunked.map_err(End::wrong)?.ok_or(End::Cut)?;
            let mut used = 0;
            let event = |from: usize, held: &[u8]| {
                held[from..end].windows(2).position(|two| two == b"\n\n")
            };
            while let Some(bytes) = event(used, &link.held) {
                let event = String::from_utf8_lossy(&link.held[used..used + bytes]).into_owned();
                self.event(&event)?;
                used += bytes + 2;
            }
            link.held.drain(end..rest);
            link.held.drain(..used);
            decoded = end - used;
            if self.seen.len() >= self.enough {
                return Ok(());
            }
            link.read()?;
        }
    }

    fn event(&mut self, text: &str) -> Result<(), End> {
        let (mut id, mut kind, mut data) = (None, "", None);
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value),
                Some(("event", value)) => kind = value,
                Some(("data", value)) => data = Some(value),
                _ => {}
            }
        }
        match (kind, data) {
            ("crore.gap", _) => self.seen.push(Seen::Gap),
            ("", Some(data)) => self.message(id, data.as_bytes())?,
            ("", None) => {}
            (kind, _) => return Err(End::wrong(format!("an event `{kind}`"))),
        }
        self.position = id.map(String::from).or(self.position.take());
        Ok(())
    }

    fn over_mqtt(&mut self, address: SocketAddr) -> Result<(), End> {
        let filters: Vec<String> = self.topics().into_iter().map(message::name).collect();
        let args = MqttArgs {
            qos: 1,
            ..MqttArgs::default()
        };
        let dialect = Dialect::new(&args, false);
        let mut link = Link::open(address, PATIENCE)?;
        let mut out = Vec::new();
        dialect.greet(&client_id(0, 's', self.index), &filters, &mut out);
        self.seen.push(Seen::Anew);
        while self.seen.len() < self.enough {
            link.send(&out)?;
            out.clear();
            let mut used = 0;
            while let Some((packet, bytes)) =
                dialect.packet(&link.held[used..]).map_err(End::wrong)?
            {
                if let Packet::Publish(answer, data) = packet {
                    self.message(None, data)?;
                    answer
                        .into_iter()
                        .for_each(|(kind, id)| dialect.acknowledge(kind, id, &mut out));
                }
                used += bytes;
            }
            link.held.drain(..used);
            if out.is_empty() {
                link.read()?;
            }
        }
        Ok(())
    }
}
