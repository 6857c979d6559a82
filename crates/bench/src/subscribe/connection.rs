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
    /// MQTT over WebSocket: upgraded, and CONNECT and SUBSCRIBE are sent.
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
    /// The connection was closed for a time, so messages before the next one may be missing.
    pub was_away: bool,
    /// The server has announced a gap before the next message.
    pub gap_announced: bool,
    /// The response is chunked.
    pub chunked: bool,
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
            gap_announced: false,
            chunked: false,
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
    /// Topic number `place` of `connection`.
    pub fn topic(&self, connection: u32, place: u32) -> u32 {
        let number = u64::from(connection) * u64::from(self.per_connection) + u64::from(place);
        (number % u64::from(self.topics)) as u32
    }

    /// The first `place` at which `connection` has `topic`, if any.
    pub fn index_of(&self, connection: u32, topic: u32) -> Option<u32> {
        (0..self.per_connection).find(|place| self.topic(connection, *place) == topic)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn topics_are_found_where_they_were_assigned(
            topics in 1u32..1000, per_connection in 1u32..8, connection in 0u32..5000,
        ) {
            let assignment = Assignment { topics, per_connection };
            for place in 0..per_connection {
                let topic = assignment.topic(connection, place);
                prop_assert!(topic < topics);
                let found = assignment.index_of(connection, topic).unwrap();
                prop_assert!(found <= place);
                prop_assert_eq!(assignment.topic(connection, found), topic);
            }
        }
    }
}
