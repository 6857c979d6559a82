//! A subscriber of `crash`: records every complete message with its position, and every gap (the notice that messages are lost). Its state
//! outlives its connections. To resume, it sends the position of the last complete message, as a browser does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::message::{self, GROUPS, TOPICS};
use crate::client::link::{Link, LinkError, reconnect_until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};
use crate::client::position::Position;
use crate::client::subscription::{NextAction, ServerEvent, Subscription, Transport};

/// Timeout for the next byte. The topics are busy, and long-polls end earlier.
const TIMEOUT: Duration = Duration::from_secs(20);
/// One in about this many event streams and WebSockets does not resume.
const RESTART_EVERY: u32 = 4;
/// The number of topics of a subscriber with several topics.
const TOPICS_OF_SEVERAL: u32 = 3;

/// The topics of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicSet {
    Topic(u32),
    Topics(u32),
    Group(u32),
}

impl TopicSet {
    fn topics(self) -> Vec<u32> {
        match self {
            TopicSet::Topic(topic) => vec![topic],
            TopicSet::Topics(first) => (first..first + TOPICS_OF_SEVERAL).collect(),
            TopicSet::Group(group) => (0..TOPICS)
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
    topic_set: TopicSet,
    /// Whether the subscriber sends its position when it connects again.
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
        let transports = [Transport::Sse, Transport::Ws, Transport::Poll].map(Some);
        let transport = *transports.get(index as usize % 4).unwrap_or(&None);
        let turn = index / 4;
        let is_stream = matches!(transport, Some(Transport::Sse | Transport::Ws));
        let topic_set = match transport {
            // Over MQTT a retained message arrives first and out of order, so these topics have none.
            None => TopicSet::Topic(
                (0..TOPICS)
                    .filter(|topic| !message::may_retain(*topic))
                    .nth(turn as usize % 32)
                    .unwrap_or(1),
            ),
            _ if turn % 8 == 6 => TopicSet::Topics(turn % (TOPICS - TOPICS_OF_SEVERAL)),
            // A long-poll needs a request for each message, and would not keep up with this many topics.
            _ if is_stream && turn % 16 == 7 => TopicSet::Group(turn % GROUPS),
            _ => TopicSet::Topic((turn * 3 + index % 4) % TOPICS),
        };
        let is_poll = transport == Some(Transport::Poll);
        let resumes = is_poll || is_stream && turn % RESTART_EVERY != 1;
        Subscriber::with_topics(index, transport, topic_set, resumes, received.clone())
    }

    /// A subscriber that reads a topic's log from the oldest message. Each call of `run` continues where the last one ended.
    pub fn reader(topic: u32) -> Subscriber {
        let topic_set = TopicSet::Topic(topic);
        Subscriber::with_topics(topic, Some(Transport::Sse), topic_set, true, Arc::default())
    }

    fn with_topics(
        index: u32,
        transport: Option<Transport>,
        topic_set: TopicSet,
        resumes: bool,
        received: Arc<AtomicU64>,
    ) -> Subscriber {
        let parameters: Vec<(&str, String)> = match topic_set {
            TopicSet::Group(group) => vec![("filter", format!("crash/{group}/#"))],
            other => {
                let topics = other.topics().into_iter();
                topics
                    .map(|topic| ("topic", message::topic_name(topic)))
                    .collect()
            }
        };
        let parameters = parameters.iter().map(|(kind, name)| (*kind, name.as_str()));
        let since = if resumes { "oldest" } else { "live" };
        let http =
            transport.map(|transport| (transport, Subscription::new(transport, parameters, since)));
        Subscriber {
            index,
            http,
            topic_set,
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
        let resume_text = if self.resumes {
            "resumes"
        } else {
            "starts anew"
        };
        let transport = self.http.as_ref().map(|(transport, _)| transport);
        format!(
            "subscriber {} ({transport:?}, {:?}, {resume_text})",
            self.index, self.topic_set
        )
    }

    /// The topics that the subscriber receives.
    pub fn topics(&self) -> Vec<u32> {
        self.topic_set.topics()
    }

    /// Whether the subscriber must receive every message from the first on.
    pub fn must_receive_all(&self) -> bool {
        self.resumes
    }

    /// The number of topics in which the subscriber resumes at a position.
    pub fn position_count(&self) -> usize {
        let has_position = |(_, http): &(_, Subscription)| self.resumes && http.position.is_some();
        match self.http.as_ref().is_some_and(has_position) {
            true => self.topics().len(),
            false => 0,
        }
    }

    /// Runs the subscriber until it has `observations_max` observations or the server is gone.
    pub fn run(&mut self, address: SocketAddr, observations_max: usize) {
        self.observations_max = observations_max;
        let violation = reconnect_until_gone(|| match self.http {
            Some(_) => self.run_http(address),
            None => self.run_mqtt(address),
        });
        let described = violation.map(|reason| format!("{}: {reason}", self.name()));
        self.violations.extend(described);
    }

    fn run_http(&mut self, address: SocketAddr) -> Result<(), LinkError> {
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
        http.start_connection();
        while self.observations.len() < self.observations_max {
            link.send(&http.outgoing)?;
            http.outgoing.clear();
            wait_for_bytes(&mut link, &self.received)?;
            let bytes = std::mem::take(&mut link.buffer);
            let (observations, received_count) = (&mut self.observations, &self.received);
            let action = http.handle_bytes(&bytes, &mut |received| {
                match received {
                    ServerEvent::Message { position, data, .. } => {
                        observations.push(observation_of(&topics, Some(position), data)?);
                        received_count.fetch_add(1, Relaxed);
                    }
                    ServerEvent::Gap(_) => observations.push(Observation::Gap),
                    ServerEvent::End(Some(code)) => return Err(format!("closed {code}")),
                    _ => {}
                }
                Ok(())
            });
            if action.map_err(LinkError::violation)? == NextAction::Reconnect {
                return Err(LinkError::Disconnected);
            }
        }
        Ok(())
    }

    fn run_mqtt(&mut self, address: SocketAddr) -> Result<(), LinkError> {
        let topics = self.topics();
        let filters: Vec<String> = topics.iter().copied().map(message::topic_name).collect();
        let args = MqttArgs {
            qos: 1,
            ..MqttArgs::default()
        };
        let dialect = Dialect::new(&args, false);
        let mut link = Link::open(address, TIMEOUT)?;
        let mut out = Vec::new();
        dialect.write_connect(&client_id(0, 's', self.index), &filters, &mut out);
        self.observations.push(Observation::Restart);
        while self.observations.len() < self.observations_max {
            link.send(&out)?;
            out.clear();
            let mut handled_bytes = 0;
            while let Some((packet, bytes)) = dialect
                .parse_packet(&link.buffer[handled_bytes..])
                .map_err(LinkError::violation)?
            {
                if let Packet::Publish(answer, data) = packet {
                    let observation =
                        observation_of(&topics, None, data).map_err(LinkError::violation)?;
                    self.observations.push(observation);
                    self.received.fetch_add(1, Relaxed);
                    answer
                        .into_iter()
                        .for_each(|(kind, id)| dialect.write_acknowledgement(kind, id, &mut out));
                }
                handled_bytes += bytes;
            }
            link.buffer.drain(..handled_bytes);
            if out.is_empty() {
                wait_for_bytes(&mut link, &self.received)?;
            }
        }
        Ok(())
    }
}

/// Waits for more bytes as long as other subscribers receive messages. In the last round nobody publishes, and some subscribers still read what they
/// missed.
fn wait_for_bytes(link: &mut Link, received: &AtomicU64) -> Result<(), LinkError> {
    let mut last_received = received.load(Relaxed);
    while !link.read_within(TIMEOUT)? {
        let before = std::mem::replace(&mut last_received, received.load(Relaxed));
        if last_received == before {
            return Err(LinkError::violation("nothing came for too long"));
        }
    }
    Ok(())
}

/// The observation of a received message.
///
/// # Errors
/// If the message is damaged, or belongs to none of these topics.
fn observation_of(
    topics: &[u32],
    position: Option<&str>,
    data: &[u8],
) -> Result<Observation, String> {
    let topic_and_number = message::parse(data).filter(|(topic, _)| topics.contains(topic));
    let Some((topic, number)) = topic_and_number else {
        let text_start = String::from_utf8_lossy(&data[..data.len().min(60)]).into_owned();
        return Err(format!(
            "{} bytes that nobody published to it: {text_start}",
            data.len()
        ));
    };
    Ok(Observation::Message {
        topic,
        number,
        position: position.and_then(Position::parse),
    })
}
