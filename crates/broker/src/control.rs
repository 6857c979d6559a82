//! What an operator asks of a shard, and what it answers: the one door besides mail through which anything that
//! is not a connection reaches a shard.
//!
//! Invariants: what one [`Control`] makes a shard do is bounded like any input (listings are pages of so many rows);
//! each gets one [`Report`], with the [`Ticket`] that it came with, within the call of
//! [`Shard::handle`](crate::Shard::handle) or a later turn.
//!
//! Deliberately not here: who may ask. Whoever holds the other end is the operator.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::conn::ConnId;
use crate::drain::Settled;
use crate::io::Io;
use crate::mail::Outcome;
use crate::sessions::SessionId;
use crate::shard::{Shard, World};
use crate::snapshot::Head;
use crate::stats::{Accounts, Stats};

mod connections;
mod topics;

pub use connections::{Connection, Connections, Ended, Which};
pub use topics::{LogPage, Message, Messages, Publishing, Topic, Topics, TopicsPage};

/// Names an order, so that its report finds who asked. Chosen by whoever asks; the shard only gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// An order.
#[derive(Debug)]
pub enum Control {
    /// Say what you met and what you hold; also the question whether you turn at all.
    Accounts,
    /// A page of the topics whose home the shard is.
    Topics(TopicsPage),
    /// How this topic stands, whose home the shard is.
    Topic(Box<[u8]>),
    /// A page of the log of a topic whose home the shard is.
    Log(LogPage),
    /// Take the messages of this topic up to this offset away, the retained one among them; of the log as many as one
    /// turn may.
    Purge(Box<[u8]>, u64),
    /// End this topic for its subscribers.
    Delete(Box<[u8]>),
    /// Publish to a topic whose home the shard is.
    Publish(Box<Publishing>),
    /// A page of connections, so many at most, from this row on.
    Connections {
        /// Which.
        which: Which,
        /// The row.
        from: u32,
        /// How many.
        most: u32,
    },
    /// All of one connection.
    Connection(ConnId),
    /// The MQTT client ids of these sessions, whose home the shard is; as many as connections of a page at most.
    ClientIds(Vec<SessionId>),
    /// End this connection.
    Disconnect(ConnId),
    /// End connections, from this row on, as many as one turn may.
    DisconnectAll {
        /// Which.
        which: Which,
        /// The row.
        from: u32,
    },
    /// Look ahead to the rules of this world, so many topics further than the last time; the change itself is short then.
    Foresee(Arc<World>),
    /// From now on by the settings and rules of this world, which is one of the same shards and topics.
    Settings(Arc<World>),
    /// Move clients off.
    Drain,
    /// Let no time pass any more, and say whether anything is under way: the last orders before an end.
    Settle,
    /// The next block of your snapshot, which is to have so many bytes at most.
    Save(Head, usize),
}

/// The answer to an order.
#[derive(Debug)]
pub enum Report {
    /// What the shard met and holds.
    Accounts(Box<(Stats, Accounts)>),
    /// A page of topics.
    Topics(Topics),
    /// How a topic stands, if there is one.
    Topic(Option<Box<Topic>>),
    /// A page of a log, if there is such a topic.
    Messages(Option<Messages>),
    /// How many messages of its log are gone, if there is such a topic.
    Purged(Option<u32>),
    /// Whether there was such a topic.
    Deleted(bool),
    /// What came of a publish.
    Published(Outcome),
    /// A page of connections.
    Connections(Connections),
    /// A connection, if there is one.
    Connection(Option<Box<Connection>>),
    /// Client ids in the order of the question; none where the connection has gone meanwhile.
    ClientIds(Vec<Option<Box<[u8]>>>),
    /// What came of ending connections.
    Ended(Ended),
    /// Whether there are topics that are not foreseen yet.
    Foreseen(bool),
    /// It is done.
    Done,
    /// What is under way.
    Settled(Settled),
    /// A block; empty behind the last one.
    Block(Vec<u8>),
}

impl Shard {
    pub(crate) fn control<I: Io>(&mut self, ticket: Ticket, control: Control, io: &mut I) {
        let report = match control {
            Control::Accounts => Report::Accounts(Box::new((self.stats(), self.accounts()))),
            Control::Topics(page) => Report::Topics(self.topics_page(&page)),
            Control::Topic(name) => Report::Topic(self.topic(&name).map(Box::new)),
            Control::Log(page) => Report::Messages(self.log_page(&page)),
            Control::Purge(name, until) => Report::Purged(self.purge_some(&name, until)),
            Control::Delete(name) => Report::Deleted(self.delete_topic(&name)),
            Control::Publish(message) => Report::Published(self.publish_ordered(&message)),
            Control::Connections { which, from, most } => {
                Report::Connections(self.connections_page(&which, from, most as usize, io))
            }
            Control::Connection(id) => Report::Connection(self.connection(id, io).map(Box::new)),
            Control::ClientIds(sessions) => Report::ClientIds(self.client_ids(&sessions)),
            Control::Disconnect(id) => Report::Ended(Ended {
                count: u32::from(self.end_connection(id, io)),
                next: None,
            }),
            Control::DisconnectAll { which, from } => {
                Report::Ended(self.end_connections(&which, from, io))
            }
            Control::Foresee(world) => {
                let home = self.home.as_mut();
                Report::Foreseen(home.is_some_and(|home| home.foresee(&world)))
            }
            Control::Settings(world) => {
                self.change(world);
                Report::Done
            }
            Control::Drain => {
                self.drain(self.now);
                Report::Done
            }
            Control::Save(head, bytes_max) => Report::Block(self.save(&head, bytes_max)),
            Control::Settle => Report::Settled(self.settle()),
        };
        io.report(ticket, report);
    }
}
