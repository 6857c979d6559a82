//! Clients of 5.0 that send messages past the Receive Maximum [MQTT-3.3.4-7].
//!
//! Libraries send at once what their users publish, each packet by itself, whatever the CONNACK says, and the PUBRELs stand behind all that.
//! Such a burst is served, however it comes: it is bounded by the packet ids, as all that clients of 3.1.1 send. A client that has its PUBRECs and sends no
//! PUBREL is ended.

/// Seconds that a client which has gone past the maximum may send no message and release none: longer than its way to us and back takes.
const QUIET_S: u32 = 3;
/// Seconds for which it may send messages and release none: what its library has taken from its user takes minutes on a slow link.
const BURST_S: u32 = 300;

/// When a client that has gone past the maximum last sent a message, and last released one.
#[derive(Clone, Copy)]
pub struct PastMaximum {
    sent_s: u32,
    released_s: u32,
}

impl PastMaximum {
    /// It has released a message, or cannot release any before we go on.
    pub fn released(now_s: u32) -> PastMaximum {
        PastMaximum {
            sent_s: now_s,
            released_s: now_s,
        }
    }

    /// It has sent a further message.
    pub fn sent(before: Option<PastMaximum>, now_s: u32) -> PastMaximum {
        PastMaximum {
            sent_s: now_s,
            released_s: before.map_or(now_s, |before| before.released_s),
        }
    }

    /// Whether it has had the time to release messages.
    pub fn is_over(self, now_s: u32) -> bool {
        self.sent_s + QUIET_S < now_s || self.released_s + BURST_S < now_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_over_when_it_is_quiet_or_has_sent_for_long_and_released_nothing() {
        let mut past = PastMaximum::sent(None, 10);
        for now_s in 11..=10 + BURST_S - QUIET_S {
            past = PastMaximum::sent(Some(past), now_s);
            assert!(!past.is_over(now_s + QUIET_S), "{now_s}");
            assert!(past.is_over(now_s + QUIET_S + 1), "{now_s}");
        }
        let last_s = 10 + BURST_S;
        assert!(!PastMaximum::sent(Some(past), last_s).is_over(last_s));
        assert!(PastMaximum::sent(Some(past), last_s + 1).is_over(last_s + 1));
        assert!(!PastMaximum::released(last_s + 1).is_over(last_s + 1));
    }
}
