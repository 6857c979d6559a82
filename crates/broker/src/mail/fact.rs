//! A fact is a message, or a change of a topic as a whole, before it is encoded. The home of the topic (the part of a shard that keeps topics) applies
//! it. A fact of a durable topic is first written to the log as a record. A fact borrows its bytes: from the ask (the request to the home) that contains
//! the fact, or from the record.
//!
//! A *gap* is the notice to a subscriber that messages are lost.

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
    /// In a topic that keeps the latest message for each key: remove the latest message without a key. No subscriber gets a gap for it.
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

    /// The topic that the fact changes.
    pub fn topic(&self) -> FactTopic<'a> {
        match *self {
            Fact::Publish(&Publish {
                hash, name, client, ..
            })
            | Fact::Topic {
                hash, name, client, ..
            } => FactTopic { hash, name, client },
        }
    }
}

/// The topic that a fact changes.
pub struct FactTopic<'a> {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The checked name.
    pub name: &'a [u8],
    /// The client that is charged for the topic, if the fact creates it.
    pub client: Client,
}
