//! The state that the subscriber keeps for each connection.
//!
//! A row has at most 24 bytes, so that a million connections cost the tool 24 MB. Server, local address and
//! topics follow from the connection's number: they are not kept but computed whenever they are needed.

/// No spill.
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
    /// Index of the worker's spill that holds the connection's incomplete unit, or [`NO_SPILL`].
    pub spill: u32,
    /// Number of the last message, when the connection has one topic; 0 before the first.
    pub sequence: u32,
    /// Bytes left of the current chunk.
    pub chunk_left: u32,
    /// How far it is.
    pub stage: Stage,
    /// Attempts to open it that failed in a row.
    pub failures: u8,
    /// The publisher's run that the sequences belong to.
    pub run: u16,
    /// It was closed meanwhile: messages that were published then may be missing before the next one.
    pub returned: bool,
    /// The server has said that messages before the next one are lost.
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
}

impl Assignment {
    /// Topic `place` of `connection`.
    pub fn topic(&self, connection: u32, place: u32) -> u32 {
        let number = u64::from(connection) * u64::from(self.per_connection) + u64::from(place);
        (number % u64::from(self.topics)) as u32
    }

    /// The first place of `connection` that holds `topic`, if any.
    pub fn place(&self, connection: u32, topic: u32) -> Option<u32> {
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
                let found = assignment.place(connection, topic).unwrap();
                prop_assert!(found <= place);
                prop_assert_eq!(assignment.topic(connection, found), topic);
            }
        }
    }
}
