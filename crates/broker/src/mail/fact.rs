//! Facts: messages, and changes of topics, at a home (the component of a shard that stores topics). Facts of durable topics are written to a
//! log. A fact borrows the bytes of its ask or of its record.
//!
//! A *gap* is the notice that messages are lost.

use crate::budget::admission::Client;
use crate::mail::message::Publish;

/// A change of a topic as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Create the topic, if it does not exist.
    Create,
    /// Delete the topic and end its subscriptions.
    Delete,
    /// Remove all messages, but no subscription.
    Purge,
    /// Remove the messages up to this offset, at most this many.
    PurgeSome(u64, u32),
    /// In a topic that keeps latest values: remove the message without a key. No reader sees a gap.
    ForgetLatest,
}

/// A change of the topics of a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<'a> {
    /// A message.
    Publish(&'a Publish<'a>),
    /// A change of a topic.
    Topic {
        /// The change.
        change: Change,
        /// The keyed hash of the name.
        hash: u32,
        /// The checked name of the topic.
        name: &'a [u8],
        /// The client that is charged for the topic, if it is created.
        client: Client,
    },
}

impl<'a> Fact<'a> {
    /// Whether the fact creates its topic if the topic does not exist.
    pub fn creates_topic(&self) -> bool {
        !matches!(self, Fact::Topic { change, .. } if *change != Change::Create)
    }

    /// The keyed hash of the topic's name, the name, and the client that is charged for the topic if the topic is created.
    pub fn topic(&self) -> (u32, &'a [u8], Client) {
        match *self {
            Fact::Publish(&Publish {
                hash, name, client, ..
            })
            | Fact::Topic {
                hash, name, client, ..
            } => (hash, name, client),
        }
    }
}
