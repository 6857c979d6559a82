//! A subscriber of `crash`: records every complete message with its position, and every gap (the notice that messages are lost). The state
//! of the subscriber outlives its connections. To resume, the subscriber sends the position of the last complete message, as a browser
//! does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::message::{self, GROUPS, TOPICS};
use crate::client::link::{End, Link, reconnect_until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};
use crate::client::position::Position;
use crate::client::subscription::{Next, ServerEvent, Subscription, Transport};

/// Timeout for the next byte. The topics are busy, and long-polls end earlier.
const TIMEOUT: Duration = Duration::from_secs(20);
/// One in this many event streams and WebSockets does not resume.
const RESTART_EVERY: u32 = 4;
/// The number of topics of a subscriber that has several.
const TOPICS_OF_SEVERAL: u32 = 3;

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
            Interest::Topics(first) => (first..first + TOPICS_OF_SEVERAL).collect(),
            Interest::Group(group) => (0..TOPICS)
                .filter(|topic| topic % GROUPS == group)
                .collect(),
        }
    }
}

/// Something that a subscriber has recorded for the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The subscriber connected without a position, so the next messages need not follow the earlier ones.
    Restart,
    /// A message.
    Message {
        /// The message's topic.
        topic: u32,
        /// The message's number.
        number: u32,
        /// The message's position, if the transport sends one.
        position: Option<Position>,
    },
    /// The server announced that messages are lost.
    Gap,
}

/// A subscriber.
pub struct Subscriber {
    index: u32,
    /// The subscription over HTTP. `None` means MQTT with QoS 1.
    http: Option<(Transport, Subscription)>,
    interest: Interest,
    resumes: bool,
    /// Records that are not checked yet.
    pub observations: Vec<Observation>,
    /// The subscriber disconnects after this many observations.
    observations_max: usize,
    /// The number of messages that all subscribers received.
    received: Arc<AtomicU64>,
    /// Connections that resumed at a position.
    pub resumed: u64,
    /// Violations of the protocol.
    pub violations: Vec<String>,
}

impl Subscriber {
    /// Subscriber `index` of a run. Each message that it receives is also counted in `received`.
    pub fn new(index: u32, received: &Arc<AtomicU64>) -> Subscriber {
        let all = [Transport::Sse, Transport::Ws, Transport::Poll].map(Some);
        let transport = *all.get(index as usize % 4).unwrap_or(&None);
        let turn = index / 4;
        let streams = matches!(transport, Some(Transport::Sse | Transport::Ws));
        let interest = match transport {
            // Over MQTT a retained message arrives first and out of order. So the topic must have no retained message.
            None => Interest::Topic(
                (0..TOPICS)
                    .filter(|topic| !message::retains(*topic))
                    .nth(turn as usize % 32)
                    .unwrap_or(1),
            ),
            _ if turn % 8 == 6 => Interest::Topics(turn % (TOPICS - TOPICS_OF_SEVERAL)),
            // A long-poll needs a request for each message, and would not keep up with this many topics.
            _ if streams && turn % 16 == 7 => Interest::Group(turn % GROUPS),
            _ => Interest::Topic((turn * 3 + index % 4) % TOPICS),
        };
        let polls = transport == Some(Transport::Poll);
        let resumes = polls || streams && turn % RESTART_EVERY != 1;
        Subscriber::of(index, transport, interest, resumes, received.clone())
    }

    /// A reader of a topic's whole log. Each call of `run` continues where the last one ended.
    pub fn reader(topic: u32) -> Subscriber {
        let interest = Interest::Topic(topic);
        Subscriber::of(topic, Some(Transport::Sse), interest, true, Arc::default())
    }

    fn of(
        index: u32,
        transport: Option<Transport>,
        interest: Interest,
        resumes: bool,
        received: Arc<AtomicU64>,
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
            observations: Vec::new(),
            observations_max: usize::MAX,
            received,
            resumed: 0,
            violations: Vec::new(),
        }
    }

    /// The subscriber's name in the descriptions of faults.
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

    /// The topics that the subscriber receives.
    pub fn topics(&self) -> Vec<u32> {
        self.interest.topics()
    }

    /// Whether the subscriber must receive every message from the first on.
    pub fn must_receive_all(&self) -> bool {
        self.resumes
    }

    /// The number of topics in which the subscriber resumes at a position.
    pub fn position_count(&self) -> usize {
        let named = |(_, http): &(_, Subscription)| self.resumes && http.position.is_some();
        match self.http.as_ref().is_some_and(named) {
            true => self.topics().len(),
            false => 0,
        }
    }

    /// Runs the subscriber until it has `observations_max` observations or the server is gone.
    pub fn run(&mut self, address: SocketAddr, observations_max: usize) {
        self.observations_max = observations_max;
        let wrong = reconnect_until_gone(|| match self.http {
            Some(_) => self.over_http(address),
            None => self.over_mqtt(address),
        });
        let named = wrong.map(|why| format!("{}: {why}", self.name()));
        self.violations.extend(named);
    }

    fn over_http(&mut self, address: SocketAddr) -> Result<(), End> {
        let mut link = Link::open(address, TIMEOUT)?;
        let topics = self.topics();
        let Some((_, http)) = &mut self.http else {
            return Ok(());
        };
        if !self.resumes {
            self.observations.push(Observation::Restart);
            http.position = None;
        }
        self.resumed += u64::from(http.position.is_some());
        http.connected();
        while self.observations.len() < self.observations_max {
            link.send(&http.out)?;
            http.out.clear();
            link.read()?;
            let bytes = std::mem::take(&mut link.held);
            let (seen, all) = (&mut self.observations, &self.received);
            let next = http.received(&bytes, &mut |received| {
                match received {
                    ServerEvent::Message { position, data, .. } => {
                        seen.push(message(&topics, Some(position), data)?);
                        all.fetch_add(1, Relaxed);
                    }
                    ServerEvent::Gap(_) => seen.push(Observation::Gap),
                    ServerEvent::End(Some(code)) => return Err(format!("closed {code}")),
                    _ => {}
                }
                Ok(())
            });
            if next.map_err(End::violation)? == Next::Reconnect {
                return Err(End::Disconnected);
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
        let mut link = Link::open(address, TIMEOUT)?;
        let mut out = Vec::new();
        dialect.connect(&client_id(0, 's', self.index), &filters, &mut out);
        self.observations.push(Observation::Restart);
        while self.observations.len() < self.observations_max {
            link.send(&out)?;
            out.clear();
            let mut used = 0;
            while let Some((packet, bytes)) =
                dialect.packet(&link.held[used..]).map_err(End::violation)?
            {
                if let Packet::Publish(answer, data) = packet {
                    let seen = message(&topics, None, data).map_err(End::violation)?;
                    self.observations.push(seen);
                    self.received.fetch_add(1, Relaxed);
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

/// The observation of a message. An error if the message belongs to none of these topics.
fn message(topics: &[u32], position: Option<&str>, data: &[u8]) -> Result<Observation, String> {
    let read = message::read(data).filter(|(topic, _)| topics.contains(topic));
    let Some((topic, number)) = read else {
        let start = String::from_utf8_lossy(&data[..data.len().min(60)]).into_owned();
        return Err(format!(
            "{} bytes that nobody published to it: {start}",
            data.len()
        ));
    };
    Ok(Observation::Message {
        topic,
        number,
        position: position.and_then(Position::parse),
    })
}
