//! What the subscriber keeps for each connection, and how a message is checked against it.
//!
//! A row is at most 24 bytes, so that a million connections cost the tool 24 MB. Everything that can be
//! computed from a connection's number (server, local address, topics) is, whenever it is needed.

use super::grid::Said;
use crate::payload::{Header, mix};
use crate::stats::Latency;

/// No place in the spill table.
pub const NO_SPILL: u32 = u32::MAX;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// No descriptor.
    Closed,
    /// The connect is under way.
    Connecting,
    /// The request is sent, the response head (MQTT: the last answer to the greeting) is not whole yet.
    Head,
    /// MQTT over WebSocket: upgraded, and the greeting is sent.
    Greeting,
    /// Messages may come.
    Open,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Row {
    /// The descriptor, meaningless while closed.
    pub fd: i32,
    /// Bytes that are not a whole unit yet, as an index into the worker's spills.
    pub spill: u32,
    /// Number of the last message, when the connection has one topic; 0 before the first.
    pub sequence: u32,
    /// What is left of the current chunk.
    pub chunk_left: u32,
    /// How far it is.
    pub stage: Stage,
    /// Attempts to open it that failed in a row.
    pub failures: u8,
    /// The publisher's run that the sequences belong to.
    pub run: u16,
    /// It was away: the next message may follow a gap that is not the server's.
    pub returned: bool,
    /// The server told that messages before the next one are lost.
    pub told: bool,
    /// The response is chunked.
    pub chunked: bool,
}

const _: () = assert!(size_of::<Row>() <= 24);

impl Default for Row {
    /// A connection that was never opened.
    fn default() -> Row {
        Row {
            fd: -1,
            spill: NO_SPILL,
            sequence: 0,
            chunk_left: 0,
            stage: Stage::Closed,
            failures: 0,
            run: 0,
            returned: false,
            told: false,
            chunked: false,
        }
    }
}

/// Which topics a connection subscribes to.
#[derive(Clone, Copy, Debug)]
pub struct Assignment {
    /// Topics of the pattern.
    pub topics: u32,
    /// Topics of each connection.
    pub per_connection: u32,
    /// Drawn at random instead of one after another.
    pub random: bool,
}

impl Assignment {
    /// Topic `place` of `connection`.
    pub fn topic(&self, connection: u32, place: u32) -> u32 {
        let number = u64::from(connection) * u64::from(self.per_connection) + u64::from(place);
        let number = if self.random {
            mix(number.wrapping_add(0x5eed))
        } else {
            number
        };
        (number % u64::from(self.topics)) as u32
    }

    /// The first place of `connection` that holds `topic`, if any.
    pub fn place(&self, connection: u32, topic: u32) -> Option<u32> {
        (0..self.per_connection).find(|place| self.topic(connection, *place) == topic)
    }
}

/// What is known of messages that did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Nothing.
    Unexplained,
    /// The connection was away meanwhile.
    Away,
    /// The server told that there is a gap.
    Told,
}

/// What one worker has counted. The first part is counted anew for each window.
#[derive(Clone, Default)]
pub struct Tally {
    /// Latency of every message with a header.
    pub latency: Latency,
    /// Messages, with and without a header.
    pub messages: u64,
    /// Messages without a header, or whose time lies in the future.
    pub unmeasured: u64,
    /// Messages that a later number of their topic overtook for good, and nobody said so.
    pub lost: u64,
    /// Messages that came again, or after a later one.
    pub doubled: u64,
    /// Messages of a topic that the connection did not ask for.
    pub misdelivered: u64,
    /// Messages that were published while their connection was away.
    pub missed_away: u64,
    /// Messages whose loss the server told: the log did not reach back to them.
    pub told_lost: u64,
    /// When the first message of the window came; 0 before.
    pub first_ns: u64,
    /// When the last message of the window came.
    pub last_ns: u64,
    /// What the connections said themselves.
    pub said: Said,
    /// Counters of connections.
    pub life: Life,
}

/// Counters since the start.
#[derive(Clone, Default)]
pub struct Life {
    /// Bytes received.
    pub bytes: u64,
    /// Reads that brought bytes.
    pub chunks: u64,
    /// Attempts to open.
    pub attempts: u64,
    /// Connections that were opened (long-poll: asked; the others: answered).
    pub opened: u64,
    /// Open connections that the server closed.
    pub closed: u64,
    /// Long-polls that were answered.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Connections that failed too often to be tried again.
    pub given_up: u64,
    /// The first failure, in words.
    pub first_failure: Option<String>,
}

impl Tally {
    /// Begins a new window.
    pub fn restart(&mut self) {
        *self = Tally {
            life: std::mem::take(&mut self.life),
            ..Tally::default()
        };
    }

    /// Adds what another worker has counted.
    pub fn merge(&mut self, other: &Tally) {
        self.latency.merge(&other.latency);
        self.messages += other.messages;
        self.unmeasured += other.unmeasured;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.misdelivered += other.misdelivered;
        self.missed_away += other.missed_away;
        self.told_lost += other.told_lost;
        if self.first_ns == 0 || (other.first_ns != 0 && other.first_ns < self.first_ns) {
            self.first_ns = other.first_ns;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
        self.said.merge(&other.said);
        let (mine, theirs) = (&mut self.life, &other.life);
        mine.bytes += theirs.bytes;
        mine.chunks += theirs.chunks;
        mine.attempts += theirs.attempts;
        mine.opened += theirs.opened;
        mine.closed += theirs.closed;
        mine.completed += theirs.completed;
        mine.failed += theirs.failed;
        mine.given_up += theirs.given_up;
        if mine.first_failure.is_none() {
            mine.first_failure.clone_from(&theirs.first_failure);
        }
    }

    /// Counts a message that arrived and returns its header.
    pub fn arrived(&mut self, payload: &[u8], now_ns: u64) -> Option<Header> {
        self.messages += 1;
        if self.first_ns == 0 {
            self.first_ns = now_ns;
        }
        self.last_ns = now_ns;
        let header = Header::decode(payload);
        match header.and_then(|header| now_ns.checked_sub(header.sent_ns)) {
            Some(latency_ns) => self.latency.add(latency_ns),
            None => self.unmeasured += 1,
        }
        header
    }

    /// Compares a message's number with the last one of its topic on its connection; `why` is what
    /// is known of a gap between them.
    pub fn in_sequence(&mut self, last: &mut u32, sequence: u32, why: Gap) {
        if sequence <= *last {
            self.doubled += 1;
            return;
        }
        // The first message of a connection may have any number: it came when it came.
        let gap = if *last == 0 {
            0
        } else {
            u64::from(sequence - *last - 1)
        };
        match why {
            Gap::Unexplained => self.lost += gap,
            Gap::Away => self.missed_away += gap,
            Gap::Told => self.told_lost += gap,
        }
        *last = sequence;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_and_repeats_are_counted() {
        let (mut tally, mut last) = (Tally::default(), 0);
        for sequence in [5, 6, 9, 9, 8, 10] {
            tally.in_sequence(&mut last, sequence, Gap::Unexplained);
        }
        assert_eq!((tally.lost, tally.doubled, last), (2, 2, 10));
        tally.in_sequence(&mut last, 14, Gap::Away);
        assert_eq!((tally.lost, tally.missed_away), (2, 3));
        tally.in_sequence(&mut last, 20, Gap::Told);
        assert_eq!((tally.lost, tally.missed_away, tally.told_lost), (2, 3, 5));
    }

    #[test]
    fn a_new_window_keeps_the_connections_counters() {
        let mut tally = Tally::default();
        tally.arrived(b"hello", 9);
        tally.life.opened = 3;
        tally.restart();
        assert_eq!(
            (tally.messages, tally.last_ns, tally.life.opened),
            (0, 0, 3)
        );
    }

    proptest! {
        #[test]
        fn topics_are_found_where_they_were_assigned(
            topics in 1u32..1000, per_connection in 1u32..8, random: bool, connection in 0u32..5000,
        ) {
            let assignment = Assignment { topics, per_connection, random };
            for place in 0..per_connection {
                let topic = assignment.topic(connection, place);
                prop_assert!(topic < topics);
                let found = assignment.place(connection, topic).unwrap();
                prop_assert!(found <= place);
                prop_assert_eq!(assignment.topic(connection, found), topic);
            }
        }
    }
}
