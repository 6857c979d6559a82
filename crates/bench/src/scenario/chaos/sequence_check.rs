//! Checks the messages of one topic that one client receives: their order, duplicates, losses, and whether the gaps that the server
//! announces are true. The check gets only the numbers of the messages. Messages of a topic are numbered from 1 in the order in which they
//! are published.
//!
//! * A missing message is a *silent loss*, unless the server has announced a gap that covers it.
//! * A gap is *false* if no message is missing, or if the log of the topic still had the newest missing message.
//!
//! A gap covers every message whose publish had begun when the client received the gap. Some of these messages may have reached the server
//! only after the server sent the gap. The check cannot know that, so it decides in favour of the server.

use std::ops::RangeInclusive;

/// The counts of all clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, derive_more::AddAssign)]
pub struct Counts {
    /// Messages that arrived for the first time.
    pub messages: u64,
    /// Messages that arrived again.
    pub doubles: u64,
    /// Messages that arrived for the first time, but after a later message.
    pub disorders: u64,
    /// Missing messages that no announced gap covers.
    pub silent_losses: u64,
    /// Gaps that the server announced.
    pub told_gaps: u64,
    /// Missing messages that an announced gap covers.
    pub told_losses: u64,
    /// Gaps that the server announced although no message was missing, or although the log still had the newest missing message.
    pub false_gaps: u64,
}

impl Counts {
    /// Whether there is no duplicate, no message out of order, no silent loss and no false gap.
    pub fn is_clean(&self) -> bool {
        self.doubles + self.disorders + self.silent_losses + self.false_gaps == 0
    }
}

/// An announced gap after which no message has arrived yet.
#[derive(Clone, Copy, Debug)]
struct ToldGap {
    /// The newest message whose publish had begun when the client received the gap.
    upto: u32,
    /// Whether the gap certainly concerns this topic. On a connection with several topics, the server may announce a gap without naming the
    /// topic.
    certain: bool,
}

/// The check of one topic of one client.
#[derive(Clone, Debug, Default)]
pub struct SequenceCheck {
    /// The number of the newest received message; 0 before the first.
    last: u32,
    /// The first message that must arrive; `None` while that is unknown.
    promised: Option<u32>,
    told: Option<ToldGap>,
    missing: Vec<RangeInclusive<u32>>,
}

impl SequenceCheck {
    /// Records that all messages from `from` on must arrive. If an earlier call has recorded a number, that number stays in force.
    pub fn promise(&mut self, from: u32) {
        self.promised.get_or_insert(from);
    }

    /// The number of the newest received message; 0 before the first.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// The newest message that the client has received or that the last announced gap covers.
    pub fn known(&self) -> u32 {
        self.last.max(self.told.map_or(0, |told| told.upto))
    }

    /// Records an announced gap. The publish of the first `begun` messages had begun when the client received the gap.
    pub fn gap(&mut self, begun: u32, certain: bool) {
        let certain = certain || self.told.is_some_and(|told| told.certain);
        let upto = begun;
        self.told = Some(ToldGap { upto, certain });
    }

    /// The next message that must arrive.
    fn expected(&self) -> Option<u32> {
        match self.last {
            0 => self.promised,
            last => Some(last + 1),
        }
    }

    /// Checks a received message. The topic's log keeps `kept` messages, and the publish of the first `begun` messages has begun.
    pub fn arrived(&mut self, number: u32, kept: u32, begun: u32, counts: &mut Counts) {
        if number <= self.last {
            if self.missing.iter().any(|range| range.contains(&number)) {
                counts.disorders += 1;
            } else {
                counts.doubles += 1;
            }
            return;
        }
        counts.messages += 1;
        let (from, told) = (self.expected().unwrap_or(number), self.told.take());
        let judged = self.last > 0 || self.promised.is_some();
        self.last = number;
        if from < number {
            let newest_told = self.miss(from, number - 1, told, counts);
            if newest_told.is_some_and(|newest| begun < newest.saturating_add(kept)) {
                counts.false_gaps += 1;
            }
        } else if from == number && judged && told.is_some_and(|told| told.certain) {
            counts.false_gaps += 1;
        }
    }

    /// Records the messages from `from` to `to` as missing. Returns the newest of them that the gap `told` covers.
    fn miss(
        &mut self,
        from: u32,
        to: u32,
        told: Option<ToldGap>,
        counts: &mut Counts,
    ) -> Option<u32> {
        let upto = told.map_or(0, |told| told.upto.min(to));
        if upto < to {
            self.missing.push(from.max(upto + 1)..=to);
        }
        if upto < from {
            return None;
        }
        counts.told_losses += u64::from(upto - from + 1);
        Some(upto)
    }

    /// Ends the check after the publish of message `newest`, the last one: records the messages that are missing at the end, and counts and
    /// returns all silent losses.
    pub fn close(&mut self, newest: u32, counts: &mut Counts) -> &[RangeInclusive<u32>] {
        // Every client is connected when the last message is published. So that message must arrive even if no message was received before,
        // and none was promised.
        let from = self.expected().unwrap_or(newest);
        if from <= newest && newest > 0 {
            let told = self.told.take();
            self.miss(from, newest, told, counts);
        }
        counts.silent_losses += self.missing.iter().cloned().flatten().count() as u64;
        &self.missing
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The counts after a client has received these messages and gaps (number 0), each with the number of publishes that had begun. All
    /// messages must arrive.
    fn judge(kept: u32, newest: u32, what: &[(u32, u32)]) -> Counts {
        let (mut check, mut counts) = (SequenceCheck::default(), Counts::default());
        check.promise(1);
        for (number, begun) in what {
            match number {
                0 => {
                    counts.told_gaps += 1;
                    check.gap(*begun, true);
                }
                number => check.arrived(*number, kept, *begun, &mut counts),
            }
        }
        check.close(newest, &mut counts);
        counts
    }

    #[test]
    fn each_kind_of_fault_is_told_from_the_others() {
        assert!(judge(9, 3, &[(1, 1), (2, 2), (3, 3)]).is_clean());
        assert_eq!(judge(9, 3, &[(1, 1), (3, 3)]).silent_losses, 1);
        assert_eq!(judge(9, 3, &[(1, 1), (2, 2)]).silent_losses, 1, "the last");
        assert_eq!(judge(9, 3, &[]).silent_losses, 3);
        assert_eq!(judge(9, 2, &[(1, 1), (2, 2), (1, 2)]).doubles, 1);
        let late = judge(9, 3, &[(1, 1), (3, 3), (2, 3)]);
        assert_eq!((late.disorders, late.doubles), (1, 0));
    }

    #[test]
    fn a_told_gap_covers_what_had_begun_and_nothing_later() {
        let told = judge(2, 9, &[(1, 1), (0, 7), (8, 9), (9, 9)]);
        assert_eq!((told.told_losses, told.silent_losses), (6, 0));
        assert!(told.is_clean(), "{told:?}");
        let later = judge(2, 9, &[(1, 1), (0, 5), (8, 8), (9, 9)]);
        assert_eq!((later.told_losses, later.silent_losses), (4, 2));
    }

    #[test]
    fn a_gap_is_false_when_nothing_was_missed_or_the_log_reached_back() {
        assert_eq!(judge(2, 2, &[(1, 1), (0, 1), (2, 2)]).false_gaps, 1);
        // Message 4 is missing. A log that keeps two messages still has it until message 6 is published.
        assert_eq!(judge(2, 5, &[(3, 3), (0, 5), (5, 5)]).false_gaps, 1);
        assert_eq!(judge(2, 6, &[(3, 3), (0, 6), (5, 6), (6, 6)]).false_gaps, 0);
        assert_eq!(judge(u32::MAX, 9, &[(1, 1), (0, 9), (9, 9)]).false_gaps, 1);
    }

    proptest! {
        /// Tests that each message that is left out of an ordered stream counts as a silent loss.
        #[test]
        fn losses_are_counted_to_the_message(came in prop::collection::vec(any::<bool>(), 1..60)) {
            let newest = came.len() as u32;
            let what: Vec<(u32, u32)> = (1..=newest)
                .filter(|number| came[*number as usize - 1])
                .map(|number| (number, newest))
                .collect();
            let counts = judge(3, newest, &what);
            let lost = came.iter().filter(|came| !**came).count() as u64;
            prop_assert_eq!(counts.silent_losses, lost);
            prop_assert_eq!(counts.messages, u64::from(newest) - lost);
            prop_assert_eq!((counts.doubles, counts.disorders, counts.false_gaps), (0, 0, 0));
        }
    }
}
