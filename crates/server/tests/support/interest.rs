//! A client of `/interest` for tests. The server tells it which topics have subscribers: first a snapshot, then every change.

use std::collections::BTreeSet;

use super::Server;
use super::stream::Stream;

/// An event of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This topic got its first subscriber.
    First(String),
    /// This topic lost its last subscriber.
    Last(String),
    /// The snapshot is complete. It has this number of topics.
    Whole(u64),
}

/// Parses an event. `kind` is its `event:` field.
pub fn parse_event(kind: &str, data: &serde_json::Value) -> Event {
    let topic = || data["topic"].as_str().expect("a topic").to_string();
    match kind {
        "first" => Event::First(topic()),
        "last" => Event::Last(topic()),
        "whole" => Event::Whole(data["topics"].as_u64().expect("a count")),
        _ => panic!("{kind}: {data} is no event of interest"),
    }
}

/// A follower. It panics if a topic gets a first subscriber twice, or loses its last one without having had a first.
pub struct Follower {
    pub stream: Stream,
    /// The topics that have subscribers, by the events so far.
    pub topics: BTreeSet<String>,
}

impl Follower {
    pub fn open(server: &Server, target: &str) -> Follower {
        let stream = Stream::open(server, target, &[]);
        Follower {
            stream,
            topics: BTreeSet::new(),
        }
    }

    /// The next event, after it is applied to `topics`.
    pub fn next(&mut self) -> Event {
        let received = self.stream.event().expect("the stream goes on");
        assert_eq!(received.id, "", "interest has no positions");
        let data = serde_json::from_str(&received.data).expect("JSON");
        let event = parse_event(&received.kind, &data);
        match &event {
            Event::First(topic) => {
                assert!(self.topics.insert(topic.clone()), "{topic} begins twice")
            }
            Event::Last(topic) => assert!(self.topics.remove(topic), "{topic} ends twice"),
            Event::Whole(count) => assert_eq!(*count, self.topics.len() as u64),
        }
        event
    }

    /// Reads events until the snapshot is complete. Returns its topics.
    pub fn read_snapshot(&mut self) -> &BTreeSet<String> {
        while !matches!(self.next(), Event::Whole(_)) {}
        &self.topics
    }
}

/// A set of topics.
pub fn topic_set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(String::from).collect()
}

/// A subscriber of a topic. It has received its response, so the server counts it.
pub fn subscriber(server: &Server, topic: &str) -> Stream {
    let mut stream = Stream::open(server, &format!("/sub/{topic}"), &[]);
    stream.conn.chunk();
    stream
}
