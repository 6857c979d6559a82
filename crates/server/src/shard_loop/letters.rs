//! Letters to a shard's thread, and its reports to the control thread.

use crore_broker::access::Verdict;
use crore_broker::{Committed, ConnId, Control, Mail, Report, Ticket};

/// A letter in a shard's inbox.
pub enum Letter {
    /// From another shard.
    Mail(Mail),
    /// From the control thread.
    Control(Ticket, Control),
    /// About the credential of a connection.
    Verdict(ConnId, Verdict),
    /// From the engine.
    Committed(Committed),
}

/// A report on its way to the control thread.
pub struct Reported {
    /// The ticket of the question.
    pub ticket: Ticket,
    /// The answer.
    pub report: Report,
}
