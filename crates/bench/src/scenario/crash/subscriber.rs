//! A subscriber: notes every message that came whole, with its position, and every gap that was told. Its state outlives its
//! connections: one that resumes names the newest position that it has read whole, as a browser does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::message::{self, GROUPS, TOPICS};
use crate::client::link::{End, Link, until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};
use crate::client::place::Place;
use crate::client::subscription::{Heard, Next, Subscription, Transport};

/// How long a subscriber waits for a byte. The topics are busy, and long-polls end in between.
const PATIENCE: Duration = Duration::from_secs(20);
/// One of so many event streams and WebSockets does not resume.
const ANEW_EVERY: u32 = 4;
/// Topics of a subscriber with several.
const SEVERAL: u32 = 3;

/// The topics of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interest {
    Topic(u32),
    Topics(u32),
    Group(u32),
}

impl Interest {
    fn topics(self) -> Vec<u32> {
        match self {
            Interest::Topic(topic) => vec![topic],
            Interest::Topics(first) => (first..first + SEVERAL).collect(),
            Interest::Group(group) => (0..TOPICS)
                .filter(|topic| topic % GROUPS == group)
                .collect(),
        }
    }
}

/// A note of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It began with the present: the next messages need not follow the earlier ones.
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
    /// Over HTTP; else it speaks MQTT with QoS 1.
    http: Option<(Transport, Subscription)>,
    interest: Interest,
    resumes: bool,
    /// Notes that nobody has judged yet.
    pub seen: Vec<Seen>,
    /// So many notes are enough: then it leaves.
    enough: usize,
    /// Messages of all subscribers.
    heard: Arc<AtomicU64>,
    /// Connections that named a position.
    pub resumed: u64,
    /// Faults of the protocol.
    pub wrong: Vec<String>,
}

impl Subscriber {
    /// Subscriber `index` of a run, which counts its messages in `heard`.
    pub fn new(index: u32, heard: &Arc<AtomicU64>) -> Subscriber {
        let all = [Transport::Sse, Transport::Ws, Transport::Poll].map(Some);
        let transport = *all.get(index as usize % 4).unwrap_or(&None);
        let turn = index / 4;
        let streams = matches!(transport, Some(Transport::Sse | Transport::Ws));
        let interest = match transport {
            // A retained message, which comes first over MQTT, is not the next one.
            None => Interest::Topic(
                (0..TOPICS)
                    .filter(|topic| !message::retains(*topic))
                    .nth(turn as usize % 32)
                    .unwrap_or(1),
            ),
            _ if turn % 8 == 6 => Interest::Topics(turn % (TOPICS - SEVERAL)),
            // A long-poll of that many topics would not keep up: each message is a request.
            _ if streams && turn % 16 == 7 => Interest::Group(turn % GROUPS),
            _ => Interest::Topic((turn * 3 + index % 4) % TOPICS),
        };
        let polls = transport == Some(Transport::Poll);
        let resumes = polls || streams && turn % ANEW_EVERY != 1;
        Subscriber::of(index, transport, interest, resumes, heard.clone())
    }

    /// A reader of the whole log of a topic, which goes on where it left off.
    pub fn reader(topic: u32) -> Subscriber {
        let interest = Interest::Topic(topic);
        Subscriber::of(topic, Some(Transport::Sse), interest, true, Arc::default())
    }

    fn of(
        index: u32,
        transport: Option<Transport>,
        interest: Interest,
        resumes: bool,
        heard: Arc<AtomicU64>,
    ) -> Subscriber {
        let names: Vec<(&str, String)> = match interest {
            Interest::Group(group) => vec![("filter", format!("crash/{group}/#"))],
            other => {
                let topics = other.topics().into_iter();
                topics
                    .map(|topic| ("topic", message::name(topic)))
                    .collect()
            }
        };
        let names = names.iter().map(|(kind, name)| (*kind, name.as_str()));
        let first = if resumes { "oldest" } else { "live" };
        let http = transport.map(|it| (it, Subscription::new(it, names, first)));
        Subscriber {
            index,
            http,
            interest,
            resumes,
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
        let transport = self.http.as_ref().map(|(transport, _)| transport);
        format!(
            "subscriber {} ({transport:?}, {:?}, {how})",
            self.index, self.interest
        )
    }

    /// The topics that it gets.
    pub fn topics(&self) -> Vec<u32> {
        self.interest.topics()
    }

    /// Whether it gets every message, from the first on.
    pub fn gets_all(&self) -> bool {
        self.resumes
    }

    /// In how many topics it has a position when it comes back.
    pub fn positions(&self) -> usize {
        let named = |(_, http): &(_, Subscription)| self.resumes && http.position.is_some();
        match self.http.as_ref().is_some_and(named) {
            true => self.topics().len(),
            false => 0,
        }
    }

    /// Subscribes until it has so many notes or the server is gone.
    pub fn play(&mut self, address: SocketAddr, enough: usize) {
        self.enough = enough;
        let wrong = until_gone(|| match self.http {
            Some(_) => self.over_http(address),
            None => self.over_mqtt(address),
        });
        let named = wrong.map(|why| format!("{}: {why}", self.name()));
        self.wrong.extend(named);
    }

    fn over_http(&mut self, address: SocketAddr) -> Result<(), End> {
        let mut link = Link::open(address, PATIENCE)?;
        let topics = self.topics();
        let Some((_, http)) = &mut self.http else {
            return Ok(());
        };
        if !self.resumes {
            self.seen.push(Seen::Anew);
            http.position = None;
        }
        self.resumed += u64::from(http.position.is_some());
        http.connected();
        while self.seen.len() < self.enough {
            link.send(&http.out)?;
            http.out.clear();
            link.read()?;
            let bytes = std::mem::take(&mut link.held);
            let (seen, all) = (&mut self.seen, &self.heard);
            let next = http.received(&bytes, &mut |heard| {
                match heard {
                    Heard::Message { position, data, .. } => {
                        seen.push(message(&topics, Some(position), data)?);
                        all.fetch_add(1, Relaxed);
                    }
                    Heard::Gap(_) => seen.push(Seen::Gap),
                    Heard::End(Some(code)) => return Err(format!("closed {code}")),
                    _ => {}
                }
                Ok(())
            });
            if next.map_err(End::wrong)? == Next::Return {
                return Err(End::Cut);
            }
        }
        Ok(())
    }

    fn over_mqtt(&mut self, address: SocketAddr) -> Result<(), End> {
        let topics = self.topics();
        let filters: Vec<String> = topics.iter().copied().map(message::name).collect();
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
                    let seen = message(&topics, None, data).map_err(End::wrong)?;
                    self.seen.push(seen);
                    self.heard.fetch_add(1, Relaxed);
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

/// The note of a message, if it was published to one of these topics.
fn message(topics: &[u32], position: Option<&str>, data: &[u8]) -> Result<Seen, String> {
    let read = message::read(data).filter(|(topic, _)| topics.contains(topic));
    let Some((topic, number)) = read else {
        let start = String::from_utf8_lossy(&data[..data.len().min(60)]).into_owned();
        return Err(format!(
            "{} bytes that nobody published to it: {start}",
            data.len()
        ));
    };
    Ok(Seen::Message {
        topic,
        number,
        place: position.and_then(Place::read),
    })
}
