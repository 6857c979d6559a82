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
struct AnnouncedGap {
    /// The newest message whose publish had begun when the client received the gap.
    newest_covered: u32,
    /// Whether the gap certainly concerns this topic. On a connection with several topics, the server may announce a gap without naming the
    /// topic.
    is_certain: bool,
}

/// The check of one topic of one client.
#[derive(Clone, Debug, Default)]
pub struct SequenceCheck {
    /// The number of the newest received message; 0 before the first.
    last_number: u32,
    /// The first message that must arrive; `None` while that is unknown.
    first_expected: Option<u32>,
    announced_gap: Option<AnnouncedGap>,
    missing: Vec<RangeInclusive<u32>>,
}

impl SequenceCheck {
    /// Records that all messages from `first` on must arrive. If an earlier call has recorded a number, that number stays in force.
    pub fn expect_all_from(&mut self, first: u32) {
        self.first_expected.get_or_insert(first);
    }

    /// The number of the newest received message; 0 before the first.
    pub fn last_number(&self) -> u32 {
        self.last_number
    }

    /// The newest message that the client has received or that the last announced gap covers.
    pub fn last_accounted(&self) -> u32 {
        self.last_number
            .max(self.announced_gap.map_or(0, |gap| gap.newest_covered))
    }

    /// Records an announced gap. The publish of the first `begun_count` messages had begun when the client received the gap.
    pub fn record_gap(&mut self, begun_count: u32, is_certain: bool) {
        let is_certain = is_certain || self.announced_gap.is_some_and(|gap| gap.is_certain);
        let newest_covered = begun_count;
        self.announced_gap = Some(AnnouncedGap {
            newest_covered,
            is_certain,
        });
    }

    /// The next message that must arrive.
    fn next_expected(&self) -> Option<u32> {
        match self.last_number {
            0 => self.first_expected,
            last => Some(last + 1),
        }
    }

    /// Checks a received message. The topic's log keeps `kept_count` messages, and the publish of the first
    /// `begun_count` messages has begun.
    pub fn check_message(
        &mut self,
        number: u32,
        kept_count: u32,
        begun_count: u32,
        counts: &mut Counts,
    ) {
        if number <= self.last_number {
            if self.missing.iter().any(|range| range.contains(&number)) {
                counts.disorders += 1;
            } else {
                counts.doubles += 1;
            }
            return;
        }
        counts.messages += 1;
        let (first, announced_gap) = (
            self.next_expected().unwrap_or(number),
            self.announced_gap.take(),
        );
        let is_start_known = self.last_number > 0 || self.first_expected.is_some();
        self.last_number = number;
        if first < number {
            let newest_covered = self.record_missing(first, number - 1, announced_gap, counts);
            if newest_covered.is_some_and(|newest| begun_count < newest.saturating_add(kept_count))
            {
                counts.false_gaps += 1;
            }
        } else if first == number
            && is_start_known
            && announced_gap.is_some_and(|gap| gap.is_certain)
        {
            counts.false_gaps += 1;
        }
    }

    /// Records the messages from `first` to `last` as missing. Returns the newest of them that `announced_gap` covers.
    fn record_missing(
        &mut self,
        first: u32,
        last: u32,
        announced_gap: Option<AnnouncedGap>,
        counts: &mut Counts,
    ) -> Option<u32> {
        let newest_covered = announced_gap.map_or(0, |gap| gap.newest_covered.min(last));
        if newest_covered < last {
            self.missing.push(first.max(newest_covered + 1)..=last);
        }
        if newest_covered < first {
            return None;
        }
        counts.told_losses += u64::from(newest_covered - first + 1);
        Some(newest_covered)
    }

    /// Ends the check after the publish of message `newest`, the last one: records the messages that are missing at the end, and counts and
    /// returns all silent losses.
    pub fn check_missing(&mut self, newest: u32, counts: &mut Counts) -> &[RangeInclusive<u32>] {
        // Every client is connected when the last message is published. So that message must arrive even if no message was received before,
        // and none was promised.
        let first = self.next_expected().unwrap_or(newest);
        if first <= newest && newest > 0 {
            let announced_gap = self.announced_gap.take();
            self.record_missing(first, newest, announced_gap, counts);
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
    fn counts_after(kept_count: u32, newest: u32, events: &[(u32, u32)]) -> Counts {
        let (mut check, mut counts) = (SequenceCheck::default(), Counts::default());
        check.expect_all_from(1);
        for (number, begun_count) in events {
            match number {
                0 => {
                    counts.told_gaps += 1;
                    check.record_gap(*begun_count, true);
                }
                number => check.check_message(*number, kept_count, *begun_count, &mut counts),
            }
        }
        check.check_missing(newest, &mut counts);
        counts
    }

    #[test]
    fn each_kind_of_fault_is_told_from_the_others() {
        assert!(counts_after(9, 3, &[(1, 1), (2, 2), (3, 3)]).is_clean());
        assert_eq!(counts_after(9, 3, &[(1, 1), (3, 3)]).silent_losses, 1);
        assert_eq!(
            counts_after(9, 3, &[(1, 1), (2, 2)]).silent_losses,
            1,
            "the last"
        );
        assert_eq!(counts_after(9, 3, &[]).silent_losses, 3);
        assert_eq!(counts_after(9, 2, &[(1, 1), (2, 2), (1, 2)]).doubles, 1);
        let late = counts_after(9, 3, &[(1, 1), (3, 3), (2, 3)]);
        assert_eq!((late.disorders, late.doubles), (1, 0));
    }

    #[test]
    fn reported_gap_covers_only_messages_that_had_begun() {
        let covered = counts_after(2, 9, &[(1, 1), (0, 7), (8, 9), (9, 9)]);
        assert_eq!((covered.told_losses, covered.silent_losses), (6, 0));
        assert!(covered.is_clean(), "{covered:?}");
        let later = counts_after(2, 9, &[(1, 1), (0, 5), (8, 8), (9, 9)]);
        assert_eq!((later.told_losses, later.silent_losses), (4, 2));
    }

    #[test]
    fn a_gap_is_false_when_nothing_was_missed_or_the_log_reached_back() {
        assert_eq!(counts_after(2, 2, &[(1, 1), (0, 1), (2, 2)]).false_gaps, 1);
        // Message 4 is missing. A log that keeps two messages still has it until message 6 is published.
        assert_eq!(counts_after(2, 5, &[(3, 3), (0, 5), (5, 5)]).false_gaps, 1);
        assert_eq!(
            counts_after(2, 6, &[(3, 3), (0, 6), (5, 6), (6, 6)]).false_gaps,
            0
        );
        assert_eq!(
            counts_after(u32::MAX, 9, &[(1, 1), (0, 9), (9, 9)]).false_gaps,
            1
        );
    }

    proptest! {
        /// Tests that each message that is left out of an ordered stream counts as a silent loss.
        #[test]
        fn losses_are_counted_to_the_message(is_received in prop::collection::vec(any::<bool>(), 1..60)) {
            let newest = is_received.len() as u32;
            let events: Vec<(u32, u32)> = (1..=newest)
                .filter(|number| is_received[*number as usize - 1])
                .map(|number| (number, newest))
                .collect();
            let counts = counts_after(3, newest, &events);
            let lost = is_received.iter().filter(|is_received| !**is_received).count() as u64;
            prop_assert_eq!(counts.silent_losses, lost);
            prop_assert_eq!(counts.messages, u64::from(newest) - lost);
            prop_assert_eq!((counts.doubles, counts.disorders, counts.false_gaps), (0, 0, 0));
        }
    }
}
