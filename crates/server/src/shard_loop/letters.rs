//! Letters to a shard's thread, and its reports to the control thread.

use crore_broker::Verdict;
use crore_broker::mail::{RemoteSubscribers, ReplyTo};
use crore_broker::{Committed, ConnId, Control, Mail, Report, ShardId, Ticket};

/// A letter in a shard's inbox.
pub enum Letter {
    /// From another shard.
    Mail(Mail),
    /// From the control thread.
    Control(Ticket, Control),
    /// About the credential of a connection.
    Verdict(ConnId, Verdict),
    /// Subscribers of a topic at the other nodes, for a request.
    Counted(ReplyTo, RemoteSubscribers),
    /// From the engine.
    Committed(Committed),
}

/// A message of a shard to the control thread.
pub enum Reported {
    /// The answer to an order with this ticket.
    Report(Ticket, Report),
    /// A request at this shard waits for the number of subscribers that a topic has at the other nodes.
    Count(ShardId, ReplyTo, Box<[u8]>),
}
