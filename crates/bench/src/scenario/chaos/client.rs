//! One subscriber: the messages of its connection go into a [`Track`] for each topic. An answer that the server must not give is an error with a
//! reason, and ends the run as a failure.

use crore_wire::websocket::gap::CLOSE_GAP;

use super::track::{Counts, Track};
use super::world::{Part, World, read_payload};
use crate::client::place::Place;
use crate::client::subscription::{Gap, Heard, Next, Subscription};
use crate::measure::add::add;

/// How many broken promises are kept in words.
const BROKEN_MAX: usize = 20;
/// The server's close codes: it restarts, a frame of the client came too slowly.
const CLOSE_RESTART: u16 = 1012;
const CLOSE_SLOW: u16 = 1001;

/// The counts of a client's messages, connections and answers.
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
    /// Messages that differ from those that were published.
    pub corrupt: u64,
    /// Messages of a topic that was not asked for.
    pub misdelivered: u64,
    /// Messages at another place than an answer or another subscriber has said.
    pub moved: u64,
    /// The first promises that were broken, in words.
    pub broken: Vec<String>,
}

impl Met {
    /// Adds the counts of another client.
    pub fn merge(&mut self, other: &Met) {
        self.counts += other.counts;
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
            ..*before
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
    topics: Topics,
    /// Its connection, as far as it is bytes.
    pub subscription: Subscription,
    /// The connection was answered.
    pub live: bool,
}

/// The topics of a subscriber, with a track for each.
struct Topics {
    part: Part,
    tracks: Vec<Track>,
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
        let name = |topic: &u32| ("topic", world.topics[*topic as usize].name.as_str());
        let first = if part.live { "live" } else { "oldest" };
        Client {
            subscription: Subscription::new(part.transport, part.topics.iter().map(name), first),
            topics: Topics {
                tracks: part.topics.iter().map(track).collect(),
                part,
            },
            live: false,
        }
    }

    /// Makes the request over a new connection.
    pub fn connected(&mut self) {
        self.live = false;
        self.subscription.connected();
    }

    /// Whether the last message of every topic came, or is told to be lost.
    pub fn is_complete(&self, world: &World) -> bool {
        let Topics { part, tracks } = &self.topics;
        let mut topics = part.topics.iter().zip(tracks);
        topics.all(|(topic, track)| track.known() >= world.begun(*topic))
    }

    /// Takes the bytes that have come.
    pub fn received(&mut self, bytes: &[u8], world: &World, met: &mut Met) -> Result<Next, String> {
        let (topics, live) = (&mut self.topics, &mut self.live);
        self.subscription.received(bytes, &mut |heard| {
            match heard {
                Heard::Answer { resumes } => {
                    let is_first = !std::mem::replace(live, true);
                    met.opened += u64::from(is_first);
                    met.resumed += u64::from(is_first && resumes);
                }
                Heard::Message {
                    position,
                    topic,
                    data,
                } => topics.message(position, topic, data, world, met),
                Heard::Gap(Gap::Any) => topics.gap(None, world, met),
                Heard::Gap(Gap::Of(name)) => {
                    let place = topics.named(name, world)?;
                    topics.gap(Some(place), world, met);
                }
                Heard::Position => topics.promise(world),
                Heard::Empty => met.empty_polls += 1,
                Heard::TurnedAway => met.turned_away += 1,
                Heard::End(code) => {
                    met.ended += 1;
                    match code {
                        Some(CLOSE_GAP) => met.closed_for_gap += 1,
                        None | Some(CLOSE_SLOW | CLOSE_RESTART) => {}
                        Some(code) => return Err(format!("closed {code}")),
                    }
                }
            }
            Ok(())
        })
    }

    /// Judges the messages that have come, at the end of the run.
    pub fn close(&mut self, world: &World, met: &mut Met) {
        let Topics { part, tracks } = &mut self.topics;
        for (topic, track) in part.topics.iter().zip(tracks) {
            let (before, newest) = (met.counts, world.begun(*topic));
            let what = track.close(newest, &mut met.counts);
            let name = &world.topics[*topic as usize].name;
            met.broke(
                &before,
                part,
                name,
                &format!("{what:?} of {newest} never came"),
            );
        }
    }
}

impl Topics {
    /// A client that has a position must get every message whose publish begins from now on.
    fn promise(&mut self, world: &World) {
        for (topic, track) in self.part.topics.iter().zip(&mut self.tracks) {
            if track.last() == 0 {
                track.promise(world.begun(*topic) + 1);
            }
        }
    }

    /// The place of a topic that the server names in a gap.
    fn named(&self, name: Option<&[u8]>, world: &World) -> Result<usize, String> {
        let Some(name) = name else {
            let only = self.part.topics.len() == 1;
            return only.then_some(0).ok_or("a gap without a topic".into());
        };
        let mut topics = self.part.topics.iter();
        let place = topics.position(|topic| world.topics[*topic as usize].name.as_bytes() == name);
        place.ok_or_else(|| {
            let name = name.escape_ascii();
            format!("a gap of `{name}`, which was not asked for")
        })
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
        let (before, begun) = (met.counts, world.begun(topic));
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
}

#[cfg(test)]
mod tests;
