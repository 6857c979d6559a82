//! A client of `rumqttc` with the same words for both versions and doors, so that a scenario is written once.
//!
//! The library does something only while it is asked what has happened.

use super::framed;
use crate::support::PATIENCE;
use crate::support::broker::Broker;
use rumqttc::{Client, Connection, Event, LastWill, MqttOptions, Outgoing, Packet, QoS, v5};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use v5::mqttbytes::v5 as five;

/// How long nothing must come to say that nothing more comes.
const QUIET: Duration = Duration::from_millis(400);
/// Requests that its queue holds.
const QUEUE: usize = 100;

/// How the library reaches the broker.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// 4 is MQTT 3.1.1, as in its CONNECT.
    pub version: u8,
    /// `tcp` or `ws`.
    pub door: &'static str,
}

/// The options with which a client connects; `clean` alone for a session that ends with it.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    pub clean: bool,
    /// How long the session outlives its connection; in 3.1.1 a clean one does not and others do.
    pub session_expiry_s: u32,
    /// The will's topic; its text is `gone`, in quality 1.
    pub will: Option<&'a str>,
    pub will_delay_s: u32,
    pub will_retain: bool,
}

/// Clean, and ends with its connection.
pub const CLEAN: How<'_> = How {
    clean: true,
    session_expiry_s: 0,
    will: None,
    will_delay_s: 0,
    will_retain: false,
};

/// A session that outlives its connection for longer than any test takes.
pub const KEPT: How<'_> = How {
    clean: false,
    session_expiry_s: 600,
    ..CLEAN
};

#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub topic: String,
    pub text: String,
    pub qos: u8,
    pub retain: bool,
    pub properties: Option<five::PublishProperties>,
}

/// An event, in either version.
#[derive(Debug)]
enum Said {
    Connected {
        session_present: bool,
    },
    Subscribed {
        refused: bool,
    },
    /// A PUBLISH without quality has gone out.
    Sent,
    /// The last acknowledgement of another one.
    Acknowledged,
    Message(Message),
    /// The end of the connection, with the reason that the server gave.
    Ended(Option<five::DisconnectReasonCode>),
}

enum Library {
    Old(Client, Box<Connection>),
    Five(v5::Client, Box<v5::Connection>),
}

pub struct Peer {
    library: Library,
    /// Messages that came while something else was awaited.
    messages: VecDeque<Message>,
}

impl Peer {
    /// Connects, and says whether a session was present.
    pub fn connect(way: Way, broker: &Broker, id: &str, how: How<'_>) -> (Peer, bool) {
        let port = match way.door {
            "tcp" => broker.tcp(),
            _ => framed::door(broker.ws()),
        };
        let library = match way.version {
            4 => old(port, id, how),
            _ => new(port, id, how),
        };
        let mut peer = Peer {
            library,
            messages: VecDeque::new(),
        };
        let present = peer.until(|said| match said {
            Said::Connected { session_present } => Some(*session_present),
            _ => None,
        });
        (peer, present)
    }

    /// Subscribes and waits until it is granted.
    pub fn subscribe(&mut self, filter: &str, qos: u8) {
        match &self.library {
            Library::Old(client, _) => client.subscribe(filter, old_qos(qos)).expect("room"),
            Library::Five(client, _) => client.subscribe(filter, five_qos(qos)).expect("room"),
        }
        let refused = self.until(|said| match said {
            Said::Subscribed { refused } => Some(*refused),
            _ => None,
        });
        assert!(!refused, "{filter} was refused");
    }

    /// Publishes and waits for the last acknowledgement, if one is due.
    pub fn publish(&mut self, topic: &str, qos: u8, retain: bool, text: &str) {
        match &self.library {
            Library::Old(client, _) => client.publish(topic, old_qos(qos), retain, text),
            Library::Five(..) => {
                return self.publish_with(topic, qos, retain, text, <_>::default());
            }
        }
        .expect("room");
        self.await_publish(qos);
    }

    /// The same with properties of MQTT 5.
    pub fn publish_with(
        &mut self,
        topic: &str,
        qos: u8,
        retain: bool,
        text: &str,
        properties: five::PublishProperties,
    ) {
        let Library::Five(client, _) = &self.library else {
            panic!("3.1.1 has no properties");
        };
        let text = text.to_string();
        client
            .publish_with_properties(topic, five_qos(qos), retain, text, properties)
            .expect("room");
        self.await_publish(qos);
    }

    fn await_publish(&mut self, qos: u8) {
        self.until(|said| match said {
            Said::Sent => (qos == 0).then_some(()),
            Said::Acknowledged => (qos > 0).then_some(()),
            _ => None,
        });
    }

    /// The next message.
    pub fn message(&mut self) -> Message {
        let started = Instant::now();
        while let Some(left) = PATIENCE.checked_sub(started.elapsed()) {
            if let Some(message) = self.messages.pop_front() {
                return message;
            }
            let said = self.next(left);
            self.keep(said);
        }
        panic!("no message came");
    }

    /// The text of the next message.
    pub fn text(&mut self) -> String {
        self.message().text
    }

    /// The texts of all that comes until nothing more does.
    pub fn rest(&mut self) -> Vec<String> {
        while let Some(said) = self.next(QUIET) {
            self.keep(Some(said));
        }
        self.messages
            .drain(..)
            .map(|message| message.text)
            .collect()
    }

    /// Waits for the end of the connection, and returns the server's reason.
    pub fn ended(&mut self) -> Option<five::DisconnectReasonCode> {
        self.until(|said| match said {
            Said::Ended(reason) => Some(*reason),
            _ => None,
        })
    }

    /// Ends the connection in good order.
    pub fn disconnect(mut self) {
        match &self.library {
            Library::Old(client, _) => client.disconnect().expect("room"),
            Library::Five(client, _) => client.disconnect().expect("room"),
        }
        self.ended();
    }

    /// Ends the connection without a word.
    pub fn kill(self) {
        drop(self);
    }

    fn keep(&mut self, said: Option<Said>) {
        match said {
            Some(Said::Message(message)) => self.messages.push_back(message),
            Some(Said::Ended(reason)) => panic!("the server ended the connection: {reason:?}"),
            _ => {}
        }
    }

    fn until<T>(&mut self, take: impl Fn(&Said) -> Option<T>) -> T {
        let started = Instant::now();
        while let Some(left) = PATIENCE.checked_sub(started.elapsed()) {
            let said = self.next(left);
            if let Some(found) = said.as_ref().and_then(&take) {
                return found;
            }
            self.keep(said);
        }
        panic!("it did not come");
    }

    /// The next event within this time.
    fn next(&mut self, time: Duration) -> Option<Said> {
        let started = Instant::now();
        while let Some(left) = time.checked_sub(started.elapsed()) {
            let said = match &mut self.library {
                Library::Old(_, connection) => match connection.recv_timeout(left).ok()? {
                    Ok(event) => said_by_old(event),
                    Err(_) => Some(Said::Ended(None)),
                },
                Library::Five(_, connection) => match connection.recv_timeout(left).ok()? {
                    Ok(event) => said_by_five(event),
                    Err(error) => Some(Said::Ended(reason(&error))),
                },
            };
            if said.is_some() {
                return said;
            }
        }
        None
    }
}

fn old(port: u16, id: &str, how: How<'_>) -> Library {
    let mut options = MqttOptions::new(id, "127.0.0.1", port);
    options.set_clean_session(how.clean);
    if let Some(topic) = how.will {
        options.set_last_will(LastWill::new(
            topic,
            "gone",
            QoS::AtLeastOnce,
            how.will_retain,
        ));
    }
    let (client, connection) = Client::new(options, QUEUE);
    Library::Old(client, Box::new(connection))
}

fn new(port: u16, id: &str, how: How<'_>) -> Library {
    let mut options = v5::MqttOptions::new(id, "127.0.0.1", port);
    options.set_clean_start(how.clean);
    options.set_session_expiry_interval(Some(how.session_expiry_s));
    if let Some(topic) = how.will {
        let properties = five::LastWillProperties {
            delay_interval: Some(how.will_delay_s),
            payload_format_indicator: None,
            message_expiry_interval: None,
            content_type: None,
            response_topic: None,
            correlation_data: None,
            user_properties: Vec::new(),
        };
        let qos = v5::mqttbytes::QoS::AtLeastOnce;
        let will = five::LastWill::new(topic, "gone", qos, how.will_retain, Some(properties));
        options.set_last_will(will);
    }
    let (client, connection) = v5::Client::new(options, QUEUE);
    Library::Five(client, Box::new(connection))
}

fn said_by_old(event: Event) -> Option<Said> {
    Some(match event {
        Event::Incoming(Packet::ConnAck(it)) => Said::Connected {
            session_present: it.session_present,
        },
        Event::Incoming(Packet::SubAck(it)) => Said::Subscribed {
            refused: it
                .return_codes
                .contains(&rumqttc::SubscribeReasonCode::Failure),
        },
        Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) => Said::Acknowledged,
        Event::Incoming(Packet::Publish(it)) => Said::Message(Message {
            topic: it.topic,
            text: String::from_utf8(it.payload.to_vec()).expect("text"),
            qos: it.qos as u8,
            retain: it.retain,
            properties: None,
        }),
        Event::Outgoing(Outgoing::Publish(0)) => Said::Sent,
        Event::Outgoing(Outgoing::Disconnect) => Said::Ended(None),
        _ => return None,
    })
}

fn said_by_five(event: v5::Event) -> Option<Said> {
    use five::{Packet, SubscribeReasonCode};
    Some(match event {
        v5::Event::Incoming(Packet::ConnAck(it)) => Said::Connected {
            session_present: it.session_present,
        },
        v5::Event::Incoming(Packet::SubAck(it)) => Said::Subscribed {
            refused: !matches!(it.return_codes[..], [SubscribeReasonCode::Success(_)]),
        },
        v5::Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) => Said::Acknowledged,
        v5::Event::Incoming(Packet::Publish(it)) => Said::Message(Message {
            topic: String::from_utf8(it.topic.to_vec()).expect("text"),
            text: String::from_utf8(it.payload.to_vec()).expect("text"),
            qos: it.qos as u8,
            retain: it.retain,
            properties: it.properties,
        }),
        v5::Event::Outgoing(Outgoing::Publish(0)) => Said::Sent,
        v5::Event::Outgoing(Outgoing::Disconnect) => Said::Ended(None),
        _ => return None,
    })
}

/// Why the server ended the connection, where it said so.
fn reason(error: &v5::ConnectionError) -> Option<five::DisconnectReasonCode> {
    match error {
        v5::ConnectionError::MqttState(v5::StateError::ServerDisconnect {
            reason_code, ..
        }) => Some(*reason_code),
        _ => None,
    }
}

fn old_qos(qos: u8) -> QoS {
    rumqttc::qos(qos).expect("a quality")
}

fn five_qos(qos: u8) -> v5::mqttbytes::QoS {
    v5::mqttbytes::qos(qos).expect("a quality")
}
