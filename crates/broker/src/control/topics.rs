//! Topics, for the operator: pages of them, their logs, and what may be done to them. Their home alone is asked.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::admission::Client;
use crate::home::Publish;
use crate::mail::{Answer, Info, Outcome};
use crate::shard::Shard;

/// Which topics, and from which row on.
#[derive(Debug)]
pub struct TopicsPage {
    /// Those that it matches; `#` matches all, `$` topics among them.
    pub filter: Box<[u8]>,
    /// The row to begin with: 0, or [`Topics::next`].
    pub from: u32,
    /// How many at most.
    pub most: u32,
}

/// A page of topics.
#[derive(Debug, Default)]
pub struct Topics {
    /// Those found.
    pub topics: Vec<Topic>,
    /// Where to go on, unless that were all.
    pub next: Option<u32>,
}

/// A topic as its home sees it.
#[derive(Debug)]
pub struct Topic {
    /// Its name.
    pub name: Box<[u8]>,
    /// How it stands.
    pub info: Info,
    /// What its kept messages occupy.
    pub bytes: u32,
    /// The number of the rule that governs it.
    pub rule: u8,
}

/// What to read of a topic's log.
#[derive(Debug)]
pub struct LogPage {
    /// The topic.
    pub name: Box<[u8]>,
    /// Messages behind this offset; 0 is the beginning.
    pub after: u64,
    /// How many messages at most.
    pub most: u32,
}

/// Messages of a topic's log, oldest first.
#[derive(Debug, Default)]
pub struct Messages {
    /// Those found.
    pub messages: Vec<Message>,
    /// There are more.
    pub more: bool,
    /// Messages between the offset that was asked for and the first one are lost.
    pub lost: bool,
}

/// A kept message.
#[derive(Debug)]
pub struct Message {
    /// Its position at its home.
    pub offset: u64,
    /// Unix seconds.
    pub time_s: u32,
    /// Its data.
    pub data: Vec<u8>,
    /// Sent in binary frames.
    pub binary: bool,
    /// Its content type, or empty.
    pub content_type: Vec<u8>,
    /// Its event name, or empty.
    pub event: Vec<u8>,
    /// Its key, or empty.
    pub key: Vec<u8>,
}

/// A message that the operator publishes. Everything is checked by whoever orders it.
#[derive(Debug)]
pub struct Publishing {
    /// The topic.
    pub name: Box<[u8]>,
    /// The message.
    pub data: Vec<u8>,
    /// Its content type, at most 255 bytes.
    pub content_type: Vec<u8>,
    /// Its event name, at most 255 bytes.
    pub event: Vec<u8>,
    /// Its key, at most 255 bytes.
    pub key: Vec<u8>,
    /// Seconds that it lives, if it says so.
    pub ttl_s: Option<u32>,
    /// To be retained.
    pub retain: bool,
    /// A binary frame.
    pub binary: bool,
}

/// Messages that one order takes away from a log at most.
pub const PURGED_PER_TURN: u32 = 4_096;

impl Shard {
    pub(super) fn topics_page(&self, page: &TopicsPage) -> Topics {
        match &self.home {
            Some(home) => home.list(page, self.now),
            None => Topics::default(),
        }
    }

    pub(super) fn topic(&self, name: &[u8]) -> Option<Topic> {
        self.home.as_ref()?.look_up(name, self.now)
    }

    pub(super) fn log_page(&mut self, page: &LogPage) -> Option<Messages> {
        self.home.as_mut()?.read_log(page)
    }

    pub(super) fn purge_some(&mut self, name: &[u8], until: u64) -> Option<u32> {
        let home = self.home.as_mut()?;
        home.purge_some(name, until, PURGED_PER_TURN, self.now)
    }

    pub(super) fn delete_topic(&mut self, name: &[u8]) -> bool {
        let (hash, home) = self.place_of(name);
        assert_eq!(home, self.lanes.me, "only its home is asked");
        let here = self.home.as_mut().expect("a home has one");
        let outcome = here.delete(hash, name, self.now, &mut self.lanes);
        matches!(outcome, Outcome::Done(_))
    }

    pub(super) fn publish_ordered(&mut self, message: &Publishing) -> Outcome {
        let (hash, home) = self.place_of(&message.name);
        assert_eq!(home, self.lanes.me, "only its home is asked");
        let publish = Publish {
            hash,
            name: &message.name,
            data: &message.data,
            content_type: &message.content_type,
            event: &message.event,
            key: &message.key,
            attributes: &[],
            qos: 0,
            retain: message.retain,
            ttl_s: message.ttl_s,
            binary: message.binary,
            idempotency_key: &[],
            client: Client::NOBODY,
        };
        self.publish(home, &publish, Answer::None)
            .expect("the home is here")
    }
}
