//! One subscriber: the bytes of its connection in, requests and pongs out, every message into its [`Track`].
//!
//! It behaves as a browser or a careful script does: it keeps the newest position that it read whole, and names
//! it when it comes back. Nothing here touches a socket, so that any split of the bytes can be tried. What the
//! server may not say is an error with a reason, and ends the run as a failure.

mod read;

use std::fmt::Write;

use super::track::{Counts, Track};
use super::world::{Part, Transport, World, read_payload};
use crate::subscribe::parse;

/// Broken promises that are kept in words.
const BROKEN_MAX: usize = 20;

/// What the client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Stay,
    /// It connects again.
    Return,
}

/// What a client did and met, besides messages.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// What the tracks counted.
    pub counts: Counts,
    /// Connections that were answered.
    pub opened: u64,
    /// Of those, with a position.
    pub resumed: u64,
    /// Connections that the server ended in order.
    pub ended: u64,
    /// Of those, with the close code for lost messages.
    pub closed_for_gap: u64,
    /// Connections or polls that were turned away for now.
    pub turned_away: u64,
    /// Long-polls that no message came for.
    pub empty_polls: u64,
    /// Messages that are not what was published.
    pub corrupt: u64,
    /// Messages of a topic that was not asked for.
    pub misdelivered: u64,
    /// The first promises that were broken, in words.
    pub broken: Vec<String>,
}

impl Met {
    /// Adds what another has met.
    pub fn merge(&mut self, other: &Met) {
        self.counts.merge(&other.counts);
        self.opened += other.opened;
        self.resumed += other.resumed;
        self.ended += other.ended;
        self.closed_for_gap += other.closed_for_gap;
        self.turned_away += other.turned_away;
        self.empty_polls += other.empty_polls;
        self.corrupt += other.corrupt;
        self.misdelivered += other.misdelivered;
        self.broken.extend_from_slice(&other.broken);
    }

    fn broke(&mut self, before: &Counts, part: &Part, topic: &str, what: &str) {
        let clean = Counts {
            messages: self.counts.messages,
            told_losses: self.counts.told_losses,
            ..before.clone()
        };
        if self.counts != clean && self.broken.len() < BROKEN_MAX {
            let Part {
                number,
                transport,
                topics,
                ..
            } = part;
            self.broken.push(format!(
                "client {number}, {transport:?} on {} topics, {topic}: {what}",
                topics.len()
            ));
        }
    }
}

/// A subscriber.
pub struct Client {
    part: Part,
    tracks: Vec<Track>,
    position: Option<String>,
    /// Bytes that are not a whole unit yet; the first `decoded` of an event stream are out of their chunks.
    held: Vec<u8>,
    decoded: usize,
    chunk_left: u32,
    streaming: bool,
    /// The connection was answered.
    pub live: bool,
    /// Bytes to send.
    pub out: Vec<u8>,
}

impl Client {
    /// A client that never was connected.
    pub fn new(part: Part, world: &World) -> Client {
        let track = |topic: &u32| {
            let mut track = Track::default();
            // Who begins with the oldest message of a log that keeps everything gets everything.
            if !part.live && world.topics[*topic as usize].kind.kept() == u32::MAX {
                track.promise(1);
            }
            track
        };
        Client {
            tracks: part.topics.iter().map(track).collect(),
            part,
            position: None,
            held: Vec::new(),
            decoded: 0,
            chunk_left: 0,
            streaming: false,
            live: false,
            out: Vec::new(),
        }
    }

    /// A connection is there: asks.
    pub fn connected(&mut self, world: &World) {
        self.held.clear();
        self.out.clear();
        (self.decoded, self.chunk_left) = (0, 0);
        (self.streaming, self.live) = (false, false);
        self.ask(world);
    }

    fn ask(&mut self, world: &World) {
        let mut text = String::with_capacity(256);
        let mut separator = '?';
        text.push_str("GET /sub");
        for topic in &self.part.topics {
            let name = &world.topics[*topic as usize].name;
            write!(text, "{separator}topic={name}").expect("a String takes all");
            separator = '&';
        }
        let since = match (&self.position, self.part.transport) {
            (Some(position), Transport::Ws) => position.as_str(),
            (Some(_), _) => "",
            (None, _) if self.part.live => "live",
            (None, _) => "oldest",
        };
        if !since.is_empty() {
            write!(text, "&since={since}").expect("a String takes all");
        }
        text.push_str(" HTTP/1.1\r\nHost: localhost\r\n");
        match (self.part.transport, &self.position) {
            (Transport::Ws, _) => write!(
                text,
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Protocol: ws+meta.nchan\r\nSec-WebSocket-Key: {}\r\n",
                parse::KEY
            )
            .expect("a String takes all"),
            (Transport::Sse, position) => {
                text.push_str("Accept: text/event-stream\r\n");
                if let Some(position) = position {
                    write!(text, "Last-Event-ID: {position}\r\n").expect("a String takes all");
                }
            }
            (Transport::Poll, Some(tag)) => {
                write!(text, "If-None-Match: {tag}\r\n").expect("a String takes all");
            }
            (Transport::Poll, None) => {}
        }
        text.push_str("\r\n");
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Whether the last message of every topic came, or is told to be lost.
    pub fn is_complete(&self, world: &World) -> bool {
        let topics = self.part.topics.iter().zip(&self.tracks);
        topics
            .into_iter()
            .all(|(topic, track)| track.known() >= world.begun(*topic))
    }

    /// Bytes came.
    pub fn received(&mut self, bytes: &[u8], world: &World, met: &mut Met) -> Result<Next, String> {
        self.held.extend_from_slice(bytes);
        if !self.streaming {
            let next = self.responses(world, met)?;
            if next == Next::Return || !self.streaming {
                return Ok(next);
            }
        }
        match self.part.transport {
            Transport::Ws => self.frames(world, met),
            Transport::Sse => self.events(world, met),
            Transport::Poll => Ok(Next::Stay),
        }
    }

    /// The place of a topic that the server names.
    fn named(&self, name: Option<&str>, world: &World) -> Result<usize, String> {
        let name = name.ok_or("a gap without a topic")?;
        let mut topics = self.part.topics.iter();
        let place = topics.position(|topic| world.topics[*topic as usize].name == name);
        place.ok_or_else(|| format!("a gap of `{name}`, which was not asked for"))
    }

    /// A gap is told, in one topic or in any of them.
    fn gap(&mut self, place: Option<usize>, world: &World, met: &mut Met) {
        met.counts.told_gaps += 1;
        let certain = place.is_some() || self.tracks.len() == 1;
        for (index, track) in self.tracks.iter_mut().enumerate() {
            if place.is_none_or(|place| place == index) {
                track.gap(world.begun(self.part.topics[index]), certain);
            }
        }
    }

    fn message(&mut self, name: Option<&str>, data: &[u8], world: &World, met: &mut Met) {
        let Some((topic, number)) = read_payload(data) else {
            met.corrupt += 1;
            return;
        };
        let place = self.part.topics.iter().position(|mine| *mine == topic);
        let known = world.topics.get(topic as usize);
        let named = |name: &str| {
            self.part.transport != Transport::Ws || known.is_some_and(|topic| topic.name == name)
        };
        let (Some(place), true) = (place, name.is_none_or(named)) else {
            met.misdelivered += 1;
            return;
        };
        let kept = world.topics[topic as usize].kind.kept();
        let (before, begun) = (met.counts.clone(), world.begun(topic));
        let last = self.tracks[place].last();
        self.tracks[place].arrived(number, kept, begun, &mut met.counts);
        let name = &world.topics[topic as usize].name;
        let what = format!("{number} came after {last} when {begun} had begun");
        met.broke(&before, &self.part, name, &what);
    }

    /// The run is over.
    pub fn close(&mut self, world: &World, met: &mut Met) {
        for (topic, track) in self.part.topics.iter().zip(&mut self.tracks) {
            let (before, newest) = (met.counts.clone(), world.begun(*topic));
            let what = track.close(newest, &mut met.counts);
            let name = &world.topics[*topic as usize].name;
            met.broke(
                &before,
                &self.part,
                name,
                &format!("{what:?} of {newest} never came"),
            );
        }
    }
}

#[cfg(test)]
mod tests;
