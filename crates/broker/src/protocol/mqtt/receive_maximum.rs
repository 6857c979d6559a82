//! Decides when to disconnect a client of 5.0 that sends more messages than the Receive Maximum allows [MQTT-3.3.4-7].
//!
//! Many client libraries ignore the Receive Maximum of the CONNACK: they send all messages of a burst at once, and the PUBRELs after them. Such a burst is
//! served, since the 65,535 packet ids bound it, as they bound clients of 3.1.1. A client that has received its PUBRECs and sends no PUBREL is
//! disconnected.

/// A client past the maximum is disconnected after this many seconds without a message and without a PUBREL. It is longer than a round trip.
const QUIET_S: u32 = 3;
/// A client that keeps sending messages is disconnected after this many seconds without a PUBREL. On a slow link it can take minutes to send a burst that the
/// client's library has queued.
const BURST_S: u32 = 300;

/// The seconds in which a client past the maximum last sent a message and last released one.
#[derive(Clone, Copy)]
pub struct PastMaximum {
    sent_s: u32,
    released_s: u32,
}

impl PastMaximum {
    /// The state after the client has released a message, or while the client waits for the server and so cannot release one.
    pub fn after_release(now_s: u32) -> PastMaximum {
        PastMaximum {
            sent_s: now_s,
            released_s: now_s,
        }
    }

    /// The state after the client has sent another message. `before` is the state until then.
    pub fn after_message(before: Option<PastMaximum>, now_s: u32) -> PastMaximum {
        PastMaximum {
            sent_s: now_s,
            released_s: before.map_or(now_s, |before| before.released_s),
        }
    }

    /// Whether the client has had enough time to release a message, and must be disconnected.
    pub fn is_over(self, now_s: u32) -> bool {
        self.sent_s + QUIET_S < now_s || self.released_s + BURST_S < now_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_beyond_the_receive_maximum_ends_when_quiet_or_releasing_nothing() {
        let mut past = PastMaximum::after_message(None, 10);
        for now_s in 11..=10 + BURST_S - QUIET_S {
            past = PastMaximum::after_message(Some(past), now_s);
            assert!(!past.is_over(now_s + QUIET_S), "{now_s}");
            assert!(past.is_over(now_s + QUIET_S + 1), "{now_s}");
        }
        let last_s = 10 + BURST_S;
        assert!(!PastMaximum::after_message(Some(past), last_s).is_over(last_s));
        assert!(PastMaximum::after_message(Some(past), last_s + 1).is_over(last_s + 1));
        assert!(!PastMaximum::after_release(last_s + 1).is_over(last_s + 1));
    }
}
