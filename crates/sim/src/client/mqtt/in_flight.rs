//! The client's state of packets in flight: messages in both directions, acknowledgements to send, and unanswered requests.

use crore_wire::mqtt::Qos;

/// A QoS 1 or 2 publish in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub id: u16,
    pub number: u32,
    pub qos: Qos,
    /// Whether PUBREC was received.
    pub received: bool,
}

/// The last step in the exchange of packets for a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// PUBLISH was received.
    Received,
    /// PUBACK was sent.
    PubackSent,
    /// PUBREC was sent.
    PubrecSent,
    /// PUBREL was received.
    PubrelReceived,
    /// PUBCOMP was sent.
    PubcompSent,
}

/// A record of a received QoS 1 or 2 message. The client keeps it until the server certainly has the acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    /// The number of the receipt, in the order of first receipt.
    pub serial: u32,
    pub id: u16,
    pub number: u32,
    pub exactly_once: bool,
    /// Whether the message was received with RETAIN.
    pub retained: bool,
    pub state: Stage,
    /// The link on which the message or its PUBREL was received last.
    pub link: Option<u32>,
    /// Whether the message may belong to a session that has ended.
    pub of_ended_session: bool,
    /// Whether the client does not know the place of the message among those that are sent again: it was sent before a crash, after which the client knows
    /// no packet ids of QoS 1.
    pub has_no_order: bool,
}

impl Receipt {
    /// Whether the client has sent the last acknowledgement: PUBACK, or PUBCOMP.
    pub fn is_acknowledged(&self) -> bool {
        matches!(self.state, Stage::PubackSent | Stage::PubcompSent)
    }

    /// Whether a server that resumes the session must send the message or its PUBREL again.
    pub fn must_be_repeated(&self) -> bool {
        !self.is_acknowledged() && !self.of_ended_session
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

/// An unanswered SUBSCRIBE or UNSUBSCRIBE.
pub(super) struct PendingSubscribe {
    /// The packet id.
    pub id: u16,
    pub unsubscribes: bool,
    /// For each subscription its index in `subs`, and whether it existed before with the same options.
    pub subscriptions: Vec<(usize, bool)>,
    /// Whether the request also subscribes to `#`.
    pub has_wildcard: bool,
    /// The messages that the client had acknowledged on this connection before the request. SUBACK tells that the log knows it, if sessions are
    /// durable.
    pub acknowledged: Vec<u32>,
}
