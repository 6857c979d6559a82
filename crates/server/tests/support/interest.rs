//! A follower of interest for tests (a client that is told which topics have subscribers). It checks the events that it receives.

use std::collections::BTreeSet;

use super::Server;
use super::stream::Stream;

/// An event that a follower of interest receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    First(String),
    Last(String),
    Whole(u64),
}

/// Parses an event of interest.
pub fn told(kind: &str, data: &serde_json::Value) -> Told {
    let topic = || data["topic"].as_str().expect("a topic").to_string();
    match kind {
        "first" => Told::First(topic()),
        "last" => Told::Last(topic()),
        "whole" => Told::Whole(data["topics"].as_u64().expect("a count")),
        _ => panic!("{kind}: {data} is no event of interest"),
    }
}

/// A follower that checks its events: no interest begins twice, and none ends that had not begun.
pub struct Follower {
    pub stream: Stream,
    pub present: BTreeSet<String>,
}

impl Follower {
    pub fn open(server: &Server, target: &str) -> Follower {
        let stream = Stream::open(server, target, &[]);
        Follower {
            stream,
            present: BTreeSet::new(),
        }
    }

    pub fn next(&mut self) -> Told {
        let event = self.stream.event().expect("the stream goes on");
        assert_eq!(event.id, "", "interest has no positions");
        let data = serde_json::from_str(&event.data).expect("JSON");
        let told = told(&event.kind, &data);
        match &told {
            Told::First(topic) => {
                assert!(self.present.insert(topic.clone()), "{topic} begins twice")
            }
            Told::Last(topic) => assert!(self.present.remove(topic), "{topic} ends twice"),
            Told::Whole(topics) => assert_eq!(*topics, self.present.len() as u64),
        }
        told
    }

    /// Reads to the end of the snapshot.
    pub fn whole(&mut self) -> &BTreeSet<String> {
        while !matches!(self.next(), Told::Whole(_)) {}
        &self.present
    }
}

/// A set of these topics.
pub fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(String::from).collect()
}

/// A subscriber whose response head has arrived, so that the server counts it.
pub fn subscriber(server: &Server, topic: &str) -> Stream {
    let mut stream = Stream::open(server, &format!("/sub/{topic}"), &[]);
    stream.conn.chunk();
    stream
}
