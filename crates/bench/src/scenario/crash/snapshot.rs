//! Reads the logs and the retained messages of a server that nobody publishes to, and has them judged.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::judge::{Fault, Judge};
use super::link::{End, Link};
use super::message::{self, TOPICS};
use super::subscriber::{Seen, Subscriber};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};
use crate::client::parse;

/// How long an answer or a retained message may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads every log on from where the last reading ended.
pub struct Snapshot {
    readers: Vec<Subscriber>,
}

impl Snapshot {
    /// Nothing is read.
    pub fn new() -> Snapshot {
        Snapshot {
            readers: (0..TOPICS).map(Subscriber::reader).collect(),
        }
    }

    /// Reads what is new in all logs, and the retained messages. `begun` are the messages that each publisher has sent.
    pub fn read(&mut self, address: SocketAddr, begun: &[u32], judge: &mut Judge) {
        for (topic, reader) in (0..).zip(&mut self.readers) {
            let now = count(address, topic, judge);
            let known = judge.count(topic);
            judge.counted(topic, now);
            if now > known {
                reader.play(address, now - known);
            }
            take(reader, judge, |judge, topic, _, seen| {
                if let Seen::Message {
                    number,
                    place: Some(place),
                    ..
                } = seen
                {
                    judge.read(topic, number, place, begun);
                }
            });
        }
        if let Err(why) = retained(address, judge) {
            judge.faults.add(Fault::Retained, || format!("{why:?}"));
        }
    }
}

/// Reads all logs from the beginning.
pub fn read_again(address: SocketAddr, judge: &mut Judge) {
    for topic in 0..TOPICS {
        let known = judge.count(topic);
        let mut reader = Subscriber::reader(topic);
        if known > 0 {
            reader.play(address, known);
        }
        take(&mut reader, judge, |judge, topic, index, seen| {
            if let Seen::Message {
                number,
                place: Some(place),
                ..
            } = seen
            {
                judge.read_again(topic, index, number, place);
            }
        });
    }
}

/// Has the notes of a reader judged.
fn take(
    reader: &mut Subscriber,
    judge: &mut Judge,
    message: impl Fn(&mut Judge, u32, usize, Seen),
) {
    let name = reader.name();
    let topic = reader.topics()[0];
    for (index, seen) in reader.seen.drain(..).enumerate() {
        match seen {
            Seen::Gap => judge
                .faults
                .add(Fault::Gap, || format!("the reader, {name}")),
            seen => message(judge, topic, index, seen),
        }
    }
    for why in reader.wrong.drain(..) {
        judge
            .faults
            .add(Fault::Protocol, || format!("the reader, {why}"));
    }
}

/// How many messages the server says that a topic has.
fn count(address: SocketAddr, topic: u32, judge: &mut Judge) -> usize {
    let name = message::name(topic);
    match info(address, &name) {
        Ok(info) => info["messages"].as_u64().unwrap_or(0) as usize,
        Err(why) => {
            judge
                .faults
                .add(Fault::Protocol, || format!("info of {name}: {why:?}"));
            0
        }
    }
}

/// The info of a topic: null when there is none.
pub fn info(address: SocketAddr, name: &str) -> Result<Value, End> {
    let mut link = Link::open(address, PATIENCE)?;
    let request =
        format!("GET /pub/{name} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n");
    link.send(request.as_bytes())?;
    loop {
        match parse::response(&link.held).map_err(End::wrong)? {
            Some(response) if response.head.status == 503 => return Err(End::Cut),
            Some(response) => return Ok(serde_json::from_slice(response.body).unwrap_or_default()),
            None => link.read()?,
        }
    }
}

/// Reads the retained messages over MQTT until there are as many as there must be.
fn retained(address: SocketAddr, judge: &mut Judge) -> Result<(), End> {
    let topics: Vec<u32> = (0..TOPICS)
        .filter(|topic| message::retains(*topic))
        .collect();
    let names: Vec<String> = topics.iter().copied().map(message::name).collect();
    let args = MqttArgs {
        qos: 1,
        ..MqttArgs::default()
    };
    let dialect = Dialect::new(&args, false);
    let mut link = Link::open(address, PATIENCE)?;
    let mut out = Vec::new();
    dialect.greet(&client_id(0, 'r', 0), &names, &mut out);
    link.send(&out)?;
    let mut left = judge.retaining();
    while left > 0 {
        match dialect.packet(&link.held).map_err(End::wrong)? {
            Some((packet, bytes)) => {
                if let Packet::Publish(_, data) = packet {
                    let (topic, number) = message::read(data)
                        .ok_or_else(|| End::wrong("a retained message that nobody published"))?;
                    judge.retained(topic, Some(number));
                    left -= 1;
                }
                link.held.drain(..bytes);
            }
            None => link.read()?,
        }
    }
    Ok(())
}
