//! One subscriber: the bytes of its connection in, requests and pongs out, every message into its [`Track`].
//!
//! It behaves as a browser or a careful script does: it keeps the newest position that it read whole, and names
//! it when it comes back. Nothing here touches a socket, so that any split of the bytes can be tried. An answer that
//! the server must not give is an error with a reason, and ends the run as a failure.

mod read;

use std::fmt::Write;

use super::track::{Counts, Track};
use super::world::{Part, Transport, World, read_payload};
use crate::client::place::Place;
use crate::client::request;
use crate::measure::add::add;

/// How many broken promises are kept in words.
const BROKEN_MAX: usize = 20;

/// The client's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Stay,
    /// It connects again.
    Return,
}

/// What a client has seen: the counts of its messages, connections and answers.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// The counts of the tracks.
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
    /// Messages at another place than an answer or another subscriber has said.
    pub moved: u64,
    /// The first promises that were broken, in words.
    pub broken: Vec<String>,
}

impl Met {
    /// Adds what another client has seen.
    pub fn merge(&mut self, other: &Met) {
        self.counts.merge(&other.counts);
        add!(
            self, other;
            opened, resumed, ended, closed_for_gap, turned_away, empty_polls, corrupt,
            misdelivered, moved
        );
        self.broken.extend_from_slice(&other.broken);
    }

    fn broke(&mut self, before: &Counts, part: &Part, topic: &str, what: &str) {
        let clean = Counts {
            messages: self.counts.messages,
            told_losses: self.counts.told_losses,
            ..before.clone()
        };
        if self.counts != clean {
            self.tell(part, topic, what);
        }
    }

    fn tell(&mut self, part: &Part, topic: &str, what: &str) {
        if self.broken.len() < BROKEN_MAX {
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
    /// A client that has never been connected.
    pub fn new(part: Part, world: &World) -> Client {
        let track = |topic: &u32| {
            let mut track = Track::default();
            // A client that asks for the oldest message of a log which keeps everything must get every message.
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

    /// Makes the request over a new connection.
    pub fn connected(&mut self, world: &World) {
        self.held.clear();
        self.out.clear();
        (self.decoded, self.chunk_left) = (0, 0);
        (self.streaming, self.live) = (false, false);
        self.ask(world);
    }

    fn ask(&mut self, world: &World) {
        let mut target = String::with_capacity(256);
        let mut separator = '?';
        target.push_str("/sub");
        for topic in &self.part.topics {
            let name = &world.topics[*topic as usize].name;
            write!(target, "{separator}topic={name}").expect("a String takes all");
            separator = '&';
        }
        let since = match (&self.position, self.part.transport) {
            (Some(position), Transport::Ws) => position.as_str(),
            (Some(_), _) => "",
            (None, _) if self.part.live => "live",
            (None, _) => "oldest",
        };
        if !since.is_empty() {
            write!(target, "&since={since}").expect("a String takes all");
        }
        let lines = match (self.part.transport, &self.position) {
            (Transport::Ws, _) => {
                self.out = request::upgrade("localhost", &target, Some("ws+meta.nchan"));
                return;
            }
            (Transport::Sse, None) => {
                "Accept: text/event-stream\r\nCache-Control: no-cache\r\n".into()
            }
            (Transport::Sse, Some(position)) => {
                format!(
                    "Accept: text/event-stream\r\nCache-Control: no-cache\r\nLast-Event-ID: {position}\r\n"
                )
            }
            (Transport::Poll, Some(tag)) => format!("If-None-Match: {tag}\r\n"),
            (Transport::Poll, None) => String::new(),
        };
        let text = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Whether the last message of every topic came, or is told to be lost.
    pub fn is_complete(&self, world: &World) -> bool {
        let topics = self.part.topics.iter().zip(&self.tracks);
        topics
            .into_iter()
            .all(|(topic, track)| track.known() >= world.begun(*topic))
    }

    /// Takes the bytes that have come.
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

    /// The place of a topic that the server names in a gap.
    fn named(&self, name: Option<&str>, world: &World) -> Result<usize, String> {
        let Some(name) = name else {
            let only = self.part.topics.len() == 1;
            return only.then_some(0).ok_or("a gap without a topic".into());
        };
        let mut topics = self.part.topics.iter();
        let place = topics.position(|topic| world.topics[*topic as usize].name == name);
        place.ok_or_else(|| format!("a gap of `{name}`, which was not asked for"))
    }

    /// Notes that the server has told a gap in one topic, or in any of them.
    fn gap(&mut self, place: Option<usize>, world: &World, met: &mut Met) {
        met.counts.told_gaps += 1;
        let certain = place.is_some() || self.tracks.len() == 1;
        for (index, track) in self.tracks.iter_mut().enumerate() {
            if place.is_none_or(|place| place == index) {
                track.gap(world.begun(self.part.topics[index]), certain);
            }
        }
    }

    /// Takes a message with its position, and with the topic that the server names.
    fn message(
        &mut self,
        position: &str,
        name: Option<&str>,
        data: &[u8],
        world: &World,
        met: &mut Met,
    ) {
        let Some((topic, number)) = read_payload(data) else {
            met.corrupt += 1;
            return;
        };
        let place = self.part.topics.iter().position(|mine| *mine == topic);
        let known = world.topics.get(topic as usize);
        let named = |name: &str| known.is_some_and(|topic| topic.name == name);
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
        let stands = Place::read(position).map_or(Ok(()), |at| world.stands(topic, number, at));
        if let Err(other) = stands {
            met.moved += 1;
            let what = format!("{number} came at {position}, stood at {other:?}");
            met.tell(&self.part, name, &what);
        }
    }

    /// Judges what has come, at the end of the run.
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
