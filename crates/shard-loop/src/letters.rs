//! The messages between threads: a [`Letter`] goes to a shard, a [`ControlLetter`] from a shard to the control thread.

use crore_broker::Verdict;
use crore_broker::backend::BackendAnswer;
use crore_broker::mail::{RemoteSubscribers, ReplyTo};
use crore_broker::{Committed, ConnId, Control, Mail, Report, ShardId, Ticket};

/// A letter in a shard's inbox.
pub enum Letter {
    /// From another shard.
    Mail(Mail),
    /// From the control thread.
    Control(Ticket, Control),
    /// From the verifier, about the credentials of a connection.
    Verdict(ConnId, Verdict),
    /// From a thread that calls a backend: the answer to a call of a client.
    BackendAnswer(ConnId, BackendAnswer),
    /// From the control thread, the answer to `ControlLetter::Count`: the number of a topic's subscribers at other nodes.
    Counted(ReplyTo, RemoteSubscribers),
    /// From the engine (the log): a batch is committed.
    Committed(Committed),
}

/// A message of a shard to the control thread.
pub enum ControlLetter {
    /// The report of the order with this ticket.
    Report(Ticket, Report),
    /// A request at this shard needs the number of a topic's subscribers at other nodes.
    Count(ShardId, ReplyTo, Box<[u8]>),
}
