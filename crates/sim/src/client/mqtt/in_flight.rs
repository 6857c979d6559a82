//! The packets under way between a client and the server, as the client knows them: messages both ways, acknowledgements that it
//! owes, and requests without an answer.

use crore_wire::mqtt::Qos;

/// A QoS 1 or 2 message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub id: u16,
    pub number: u32,
    pub qos: Qos,
    /// PUBREC came.
    pub received: bool,
}

/// How far a message is, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It came.
    Got,
    /// PUBACK was sent.
    Acked,
    /// PUBREC was sent.
    Received,
    /// PUBREL came.
    Released,
    /// PUBCOMP was sent.
    Done,
}

/// A received QoS 1 or 2 message, until the server surely knows of its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    /// Counts the receipts.
    pub serial: u32,
    pub id: u16,
    pub number: u32,
    pub exactly_once: bool,
    /// It came as a retained one.
    pub retained: bool,
    pub state: Stage,
    /// The connection that it came on last.
    pub link: Option<u32>,
    /// It may belong to a session that has ended.
    pub stale: bool,
}

impl Receipt {
    /// Whether the client has sent all its acknowledgements.
    pub fn is_told(&self) -> bool {
        matches!(self.state, Stage::Acked | Stage::Done)
    }

    /// Whether a server that goes on with the session must send it again, or its PUBREL.
    pub fn is_due(&self) -> bool {
        !self.is_told() && !self.stale
    }
}

/// An acknowledgement that the client has not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingAck {
    Puback(u16),
    Pubrec(u16),
    Pubrel(u16),
    Pubcomp(u16),
}

/// A SUBSCRIBE or UNSUBSCRIBE without an answer.
pub(super) struct Asked {
    /// Its packet id.
    pub id: u16,
    pub leaves: bool,
    /// Places in `subs`; whether the subscription stands already, with the options asked for.
    pub what: Vec<(usize, bool)>,
    /// It asks for all topics too.
    pub covers: bool,
}
