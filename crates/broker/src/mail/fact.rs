//! Facts: what changes the topics of a home. They are what a log has of them; all else that a home knows is its own.
//!
//! A fact borrows the bytes of the ask or of the record that it stands in.

use crate::budget::admission::Client;
use crate::mail::message::Publish;

/// A change of a topic as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Make it, if it does not exist.
    Create,
    /// Delete it and end its subscriptions.
    Delete,
    /// Empty it; its subscribers stay.
    Purge,
    /// Remove its messages up to this offset, so many at most.
    PurgeSome(u64, u32),
    /// Remove the message without a key, if it keeps the latest, as if it had never been.
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
        /// The topic, checked.
        name: &'a [u8],
        /// The client for which it is made.
        client: Client,
    },
}

impl<'a> Fact<'a> {
    /// Whether it makes its topic where there is none.
    pub fn makes(&self) -> bool {
        !matches!(self, Fact::Topic { change, .. } if *change != Change::Create)
    }

    /// The keyed hash of its topic, the topic, and the client for which that is made.
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
