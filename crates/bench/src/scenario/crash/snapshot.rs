//! Reads the logs and the retained messages of a server that nobody publishes to, and has them judged.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::judge::{Fault, Judge};
use super::message::{self, TOPICS};
use super::subscriber::{Seen, Subscriber};
use crate::client::link::{End, Link};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};

/// How long an answer or a retained message may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// When all retained messages that must come are there, others would have come within this time.
const QUIET: Duration = Duration::from_millis(100);

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

    /// Reads the new messages of all logs, and the retained messages. `begun` are the messages that each publisher has sent.
    pub fn read(&mut self, address: SocketAddr, begun: &[u32], judge: &mut Judge) {
        for (topic, reader) in (0..).zip(&mut self.readers) {
            let now = count(address, topic).unwrap_or_else(|why| {
                let name = message::name(topic);
                judge
                    .faults
                    .add(Fault::Protocol, || format!("info of {name}: {why}"));
                0
            });
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
        let topics: Vec<u32> = (0..TOPICS)
            .filter(|topic| message::retains(*topic))
            .collect();
        match retained(address, &topics, judge.retaining()) {
            Ok(found) => topics.iter().for_each(|topic| {
                let mut of = found.iter().filter(|(of, _)| of == topic);
                judge.retained(*topic, of.next().map(|(_, number)| *number));
            }),
            Err(why) => judge.faults.add(Fault::Retained, || why.to_string()),
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
pub fn count(address: SocketAddr, topic: u32) -> Result<usize, End> {
    let info = info(address, &message::name(topic))?;
    Ok(info["messages"].as_u64().unwrap_or(0) as usize)
}

/// The info of a topic: null when there is none.
pub fn info(address: SocketAddr, name: &str) -> Result<Value, End> {
    let request =
        format!("GET /pub/{name} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n");
    match Link::open(address, PATIENCE)?.ask(request.as_bytes())? {
        (503, _) => Err(End::Cut),
        (_, body) => Ok(serde_json::from_slice(&body).unwrap_or_default()),
    }
}

/// Topic and number of the retained messages of these topics: reads over MQTT until there are at least so many, and no more
/// come.
pub fn retained(address: SocketAddr, topics: &[u32], least: usize) -> Result<Vec<(u32, u32)>, End> {
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
    let mut found = Vec::new();
    loop {
        match dialect.packet(&link.held).map_err(End::wrong)? {
            Some((packet, bytes)) => {
                if let Packet::Publish(_, data) = packet {
                    let message = message::read(data);
                    found.push(message.ok_or_else(|| End::wrong("a retained message of nobody"))?);
                }
                link.held.drain(..bytes);
            }
            None => {
                let is_whole = found.len() >= least;
                match link.read_for(if is_whole { QUIET } else { PATIENCE }) {
                    // The caller compares, and finds that there are too few.
                    Err(End::Wrong(_)) => return Ok(found),
                    read => read?,
                }
            }
        }
    }
}
