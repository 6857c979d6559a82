//! Detects losses by time: a segment is lost if one that was sent sufficiently later has arrived (RACK, RFC 8985).

use crate::rtt::Rtt;
use crate::scoreboard::{Scoreboard, SentSegment, mark};
use crate::sequence::is_after;

/// Selectively acknowledged segments after which a connection without known reordering waits no more (RFC 8985 §3.2).
const DUPLICATES: u32 = 3;

/// What RACK knows of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rack {
    /// When the latest segment was sent that has arrived, and its end.
    sent_us: u64,
    end: u32,
    /// The round trip of that segment.
    rtt_us: u32,
    /// The shortest round trip that was seen.
    min_rtt_us: u32,
    /// The highest sequence number that has arrived, if any has.
    highest: Option<u32>,
    /// Whether segments were seen to overtake one another.
    is_reordered: bool,
    /// The factor of the time that is left for reordering; it grows when a retransmission turns out to be needless.
    factor: u8,
    /// When the segments that may only be reordered will count as lost.
    pub timeout_us: Option<u64>,
}

impl Rack {
    /// Notes that a segment has arrived. Returns a sample of the round trip, if it was sent only once.
    pub fn arrived(&mut self, segment: &SentSegment, now_us: u64) -> Option<u32> {
        let rtt_us = now_us.saturating_sub(segment.at_us).min(1 << 30) as u32;
        let was_again = segment.is(mark::RETRANSMITTED);
        // The acknowledgement may be for the first transmission.
        if was_again && rtt_us < self.min_rtt_us {
            return None;
        }
        if !was_again {
            if self
                .highest
                .is_some_and(|highest| is_after(highest, segment.end))
            {
                self.is_reordered = true;
            }
            self.min_rtt_us = match self.min_rtt_us {
                0 => rtt_us.max(1),
                least => least.min(rtt_us.max(1)),
            };
        }
        if self
            .highest
            .is_none_or(|highest| is_after(segment.end, highest))
        {
            self.highest = Some(segment.end);
        }
        if self.is_later(segment.at_us, segment.end) {
            (self.sent_us, self.end, self.rtt_us) = (segment.at_us, segment.end, rtt_us);
        }
        (!was_again).then_some(rtt_us)
    }

    /// The peer says that it has received a segment twice, so a retransmission was needless (RFC 8985 §6.2 step 4).
    pub fn was_needless(&mut self) {
        self.is_reordered = true;
        self.factor = (self.factor + 1).min(16);
    }

    /// Marks the segments that are lost. Returns whether there was one.
    pub fn detect(
        &mut self,
        board: &mut Scoreboard,
        rtt: &Rtt,
        is_recovering: bool,
        now_us: u64,
    ) -> bool {
        self.timeout_us = None;
        if self.sent_us == 0 {
            return false;
        }
        let is_patient = self.is_reordered || !(is_recovering || board.sacked() >= DUPLICATES);
        let window_us = if is_patient {
            (u64::from(self.min_rtt_us) * u64::from(self.factor.max(1)) / 4)
                .min(rtt.smoothed_us.into())
        } else {
            0
        };
        let allowed_us = u64::from(self.rtt_us) + window_us;
        let (rack, mut latest_us) = (*self, None);
        let found = board.mark_lost(|segment| {
            if rack.is_later(segment.at_us, segment.end) {
                return false;
            }
            let due_us = segment.at_us + allowed_us;
            if due_us > now_us {
                latest_us = latest_us.max(Some(due_us));
            }
            due_us <= now_us
        });
        self.timeout_us = latest_us;
        found
    }

    /// Whether a segment was sent after the latest one that has arrived.
    fn is_later(&self, at_us: u64, end: u32) -> bool {
        at_us > self.sent_us || (at_us == self.sent_us && is_after(end, self.end))
    }
}
