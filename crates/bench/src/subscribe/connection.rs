//! The state of each connection of the subscriber, in a row of fixed size.
//!
//! A row has at most 24 bytes, so a million connections cost the tool 24 MB. Server, local address and topics are not stored, but computed
//! from the connection's number.

/// In place of the index of a spill: the connection has no incomplete unit.
pub const NO_SPILL: u32 = u32::MAX;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// No descriptor.
    Closed,
    /// The connect is in progress.
    Connecting,
    /// The request is sent, and the response head (MQTT: CONNACK and SUBACK) is not complete yet.
    Head,
    /// MQTT over WebSocket: the upgrade is done, and CONNECT and SUBSCRIBE are sent.
    Greeting,
    /// Messages may arrive.
    Open,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct ConnectionRow {
    /// The descriptor; invalid while closed.
    pub fd: i32,
    /// Index of the spill: the buffer with the bytes of the connection's incomplete unit (response, frame, event or packet). Or
    /// [`NO_SPILL`].
    pub spill: u32,
    /// The number of the last message, if the connection has one topic. 0 before the first.
    pub sequence: u32,
    /// Bytes still missing from the current chunk.
    pub chunk_left: u32,
    /// The stage.
    pub stage: Stage,
    /// Consecutive failed attempts to open the connection.
    pub failures: u8,
    /// The publisher's run to which the sequence numbers belong.
    pub run: u16,
    /// Whether the connection was closed since the last message, so that messages before the next one may be missing.
    pub was_away: bool,
    /// Whether the server has announced that messages before the next one are lost.
    pub is_gap_announced: bool,
    /// Whether the response is chunked.
    pub is_chunked: bool,
}

const _: () = assert!(size_of::<ConnectionRow>() <= 24);

impl Default for ConnectionRow {
    /// A connection that has never been open.
    fn default() -> ConnectionRow {
        ConnectionRow {
            fd: -1,
            spill: NO_SPILL,
            sequence: 0,
            chunk_left: 0,
            stage: Stage::Closed,
            failures: 0,
            run: 0,
            was_away: false,
            is_gap_announced: false,
            is_chunked: false,
        }
    }
}

/// The assignment of topics to connections.
#[derive(Clone, Copy, Debug)]
pub struct Assignment {
    /// The number of topics in the pattern.
    pub topics: u32,
    /// Topics of each connection.
    pub per_connection: u32,
}

impl Assignment {
    /// The topic at place `topic_place` of `connection`.
    pub fn topic(&self, connection: u32, topic_place: u32) -> u32 {
        let topic_number =
            u64::from(connection) * u64::from(self.per_connection) + u64::from(topic_place);
        (topic_number % u64::from(self.topics)) as u32
    }

    /// The first place at which `connection` has `topic`, if any.
    pub fn index_of(&self, connection: u32, topic: u32) -> Option<u32> {
        (0..self.per_connection).find(|topic_place| self.topic(connection, *topic_place) == topic)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn assigned_topics_are_found(
            topics in 1u32..1000, per_connection in 1u32..8, connection in 0u32..5000,
        ) {
            let assignment = Assignment { topics, per_connection };
            for topic_place in 0..per_connection {
                let topic = assignment.topic(connection, topic_place);
                prop_assert!(topic < topics);
                let found = assignment.index_of(connection, topic).unwrap();
                prop_assert!(found <= topic_place);
                prop_assert_eq!(assignment.topic(connection, found), topic);
            }
        }
    }
}
