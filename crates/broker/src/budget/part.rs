//! The parts of the account: what clients make the server hold bytes for.

/// A part of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Received bytes that wait for more: requests, frames, packets.
    Received,
    /// Bytes that sockets refused.
    Outboxes,
    /// Large messages that are no longer in a log, and are still being written or waited for.
    Messages,
    /// Turns that shards have written for each other and for themselves, and the answers that homes still owe.
    Turns,
    /// Responses that wait for homes, and state that few connections need: lists, filters, aliases, unacknowledged
    /// messages, addresses behind proxies.
    Connections,
    /// MQTT sessions whose clients are away.
    Sessions,
    /// What shards remember of subscriptions: filters, groups, whose messages are kept, and losses for readers by filter.
    Subscriptions,
    /// First answers to idempotency keys.
    Answers,
    /// TLS handshakes and incomplete records.
    Tls,
}

impl Part {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All of them, in order.
    pub const ALL: [Part; Part::COUNT] = [
        Part::Received,
        Part::Outboxes,
        Part::Messages,
        Part::Turns,
        Part::Connections,
        Part::Sessions,
        Part::Subscriptions,
        Part::Answers,
        Part::Tls,
    ];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Part::Received => "received",
            Part::Outboxes => "outboxes",
            Part::Messages => "messages",
            Part::Turns => "turns",
            Part::Connections => "states",
            Part::Sessions => "absent_sessions",
            Part::Subscriptions => "subscriptions",
            Part::Answers => "answers",
            Part::Tls => "tls",
        }
    }
}
