//! A track: the messages of one topic that a subscriber received, in stretches. A stretch is a range of the topic's messages in which no
//! message may be missing. A gap, or a request without a position, ends a stretch and begins the next one.

use crate::truth::{SeenPosition, Truth, UnplacedMessage, Violation};

/// The start of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After this offset.
    After(u64),
    /// With messages sent after this step.
    Sent(u32),
    /// With the first received message.
    FirstReceived,
}

/// The offsets in a partition at which the server knows a position after its log was restored from an older copy.
#[derive(Clone, Copy, Debug)]
pub struct KnownOffsets {
    /// Where the restored log ends. The server knows all positions up to this offset.
    pub restored_end: u64,
    /// The offset just before the life of the log (the time from its start to the crash) that has ended.
    pub before_ended_life: u64,
}

impl KnownOffsets {
    fn has(self, offset: u64) -> bool {
        offset <= self.restored_end || offset == self.before_ended_life
    }
}

/// A received message, with the step and the second of its receipt.
#[derive(Clone, Copy, Debug)]
struct Received {
    number: u32,
    step: u32,
    second: u32,
}

/// A range of the topic's messages, from `start` to the last received message, or to the newest one.
#[derive(Debug)]
struct Stretch {
    start: Start,
    /// Whether the stretch must begin with the oldest kept message.
    from_oldest: bool,
    received: Vec<Received>,
    /// Whether the stretch must end with the newest message.
    must_reach_newest: bool,
}

impl Stretch {
    fn has(&self, number: u32) -> bool {
        self.received
            .iter()
            .any(|received| received.number == number)
    }
}

/// The messages of a topic that a subscriber received.
#[derive(Debug, Default)]
pub struct Track {
    /// The topic.
    pub topic: usize,
    stretches: Vec<Stretch>,
    /// The subscriber's position in this topic, if known.
    pub seen: Option<SeenPosition>,
    /// The offset of the last received position, with or without a message.
    last_offset: Option<u64>,
    /// Whether the subscriber must receive a gap (the notice that messages are lost) before the next message, since its position is from
    /// before the log was damaged.
    is_gap_due: bool,
    /// Whether the subscriber subscribes by filter. Then a delete of a topic does not end the stretch, so deleted messages may be missing
    /// in the stretch.
    pub by_filter: bool,
}

impl Track {
    /// A track without messages.
    pub fn new(topic: usize) -> Self {
        Track {
            topic,
            ..Track::default()
        }
    }

    /// A track without messages, of a subscriber by filter.
    pub fn by_filter(topic: usize) -> Self {
        Track {
            by_filter: true,
            ..Track::new(topic)
        }
    }

    /// Begins a stretch, with no known position.
    pub fn begin_stretch(&mut self, start: Start) {
        (self.seen, self.is_gap_due) = (None, false);
        self.stretches.push(Stretch {
            start,
            from_oldest: false,
            received: Vec::new(),
            must_reach_newest: false,
        });
    }

    /// Requires that the new stretch begins with the oldest kept message.
    pub fn require_oldest(&mut self) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.from_oldest = true;
        }
    }

    /// Records that the subscription was confirmed in `step`. No message that is sent later may be missing.
    pub fn subscription_confirmed(&mut self, step: u32) {
        if let Some(stretch) = self.stretches.last_mut()
            && stretch.start == Start::FirstReceived
            && stretch.received.is_empty()
        {
            stretch.start = Start::Sent(step);
        }
    }

    /// Records a position that was received without a message.
    pub fn position_received(&mut self, seen: SeenPosition) {
        self.last_offset = Some(seen.offset);
        let Some(stretch) = self.stretches.last_mut() else {
            return;
        };
        if stretch.received.is_empty() && self.seen.is_none() {
            stretch.start = Start::After(seen.offset);
            self.seen = Some(seen);
        }
    }

    /// Records a received message.
    pub fn message_received(&mut self, number: u32, truth: &Truth) -> Result<(), Violation> {
        let message = &truth.messages[number as usize];
        if self.is_gap_due {
            return Err(format!("message {number} came, and no gap behind damage"));
        }
        let stretch = self.stretches.last_mut().expect("a subscriber has begun");
        if stretch.has(number) {
            return Err(format!("message {number} came twice"));
        }
        if let (Some(seen), Some(offset)) = (self.seen, message.offset)
            && offset <= seen.offset
        {
            return Err(format!(
                "message {number} at {offset} came after {} was seen",
                seen.offset
            ));
        }
        stretch.received.push(Received {
            number,
            step: truth.step,
            second: truth.now_s,
        });
        self.last_offset = message.offset;
        self.seen = message.offset.map(|offset| SeenPosition {
            offset,
            step: message.sent_step,
            second: message.sent_s,
        });
        Ok(())
    }

    /// Records a gap. The next messages come after `to`, if that is known.
    pub fn gap_received(
        &mut self,
        to: Option<SeenPosition>,
        truth: &Truth,
    ) -> Result<(), Violation> {
        if let Some(seen) = self.seen {
            if truth.must_reach_back(self.topic, seen) {
                return Err(format!(
                    "a gap after {} was told although the log reaches back (now {to:?})",
                    seen.offset
                ));
            }
            // A gap that is due after a restore may go back: the old position is after the end of the restored copy, in batches that the
            // log has lost.
            if let (Some(to), false) = (to, self.is_gap_due)
                && to.offset < seen.offset
            {
                return Err(format!("a gap from {} back to {}", seen.offset, to.offset));
            }
        }
        // An offset in the lost batches cannot be compared with an offset in the restored log.
        let seen = self.seen.filter(|_| !self.is_gap_due);
        self.begin_stretch(to.map_or(Start::FirstReceived, |to| Start::After(to.offset)));
        self.seen = to.or(seen);
        self.last_offset = self.seen.map(|seen| seen.offset);
        Ok(())
    }

    /// Records a gap that may concern this topic. The messages must still be in order, and no message may come twice.
    pub fn may_have_lost(&mut self) {
        let seen = self.seen;
        self.begin_stretch(Start::FirstReceived);
        self.seen = seen;
    }

    /// Forgets the received messages, which were checked already, because the partition was damaged and the offsets of its messages
    /// changed. A subscriber with a position must now receive a gap.
    pub fn partition_damaged(&mut self, has_position: bool) {
        let seen = self.seen;
        self.stretches.clear();
        self.begin_stretch(Start::FirstReceived);
        (self.seen, self.is_gap_due) = (seen, has_position);
    }

    /// Updates the track after the log was restored from an older copy. The server knows the positions at the
    /// offsets `known`. Returns whether the server does not know the subscriber's position, so that the subscriber must receive a gap. The messages
    /// received before were checked already.
    pub fn log_restored(&mut self, has_position: bool, known: KnownOffsets) -> bool {
        let seen = self.seen.filter(|_| has_position);
        // If a gap is still due, the position is from before an earlier restore, so the server does not know it.
        let is_known = |offset| !self.is_gap_due && known.has(offset);
        let is_on_lost_branch =
            seen.is_some_and(|seen| !is_known(self.last_offset.unwrap_or(seen.offset)));
        self.partition_damaged(is_on_lost_branch);
        if let (Some(seen), false) = (seen, is_on_lost_branch) {
            self.begin_stretch(Start::After(seen.offset));
            self.seen = Some(seen);
        }
        is_on_lost_branch
    }

    /// Requires that the last stretch reaches the newest message. The caller makes sure that nothing is in flight.
    pub fn require_newest(&mut self) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.must_reach_newest = true;
        }
    }

    /// Compares all received messages with the published ones.
    pub fn check(&self, truth: &Truth, unplaced: &[UnplacedMessage]) -> Result<(), Violation> {
        for stretch in &self.stretches {
            self.check_stretch(stretch, truth, unplaced)?;
        }
        Ok(())
    }

    fn check_stretch(
        &self,
        stretch: &Stretch,
        truth: &Truth,
        unplaced: &[UnplacedMessage],
    ) -> Result<(), Violation> {
        let with_offset = |received: &Received| {
            let offset = truth.messages[received.number as usize].offset;
            offset.map(|offset| (offset, *received))
        };
        let all: Vec<(u64, Received)> = stretch.received.iter().filter_map(with_offset).collect();
        if let Some(two) = all.windows(2).find(|two| two[0].0 >= two[1].0) {
            return Err(format!("{} came before {}", two[0].0, two[1].0));
        }
        let topic = &truth.topics[self.topic];
        let end = if stretch.must_reach_newest {
            u64::MAX
        } else {
            all.last().map_or(0, |(offset, _)| *offset)
        };
        let first = all.first().map(|(offset, _)| *offset);
        let must_be_received = |offset: u64, number: u32| match stretch.start {
            Start::After(start) => offset > start,
            Start::Sent(step) => {
                first.is_some_and(|first| offset >= first)
                    || truth.messages[number as usize].sent_step > step
            }
            Start::FirstReceived => first.is_some_and(|first| offset >= first),
        };
        let mut received = all.iter().peekable();
        for (offset, number) in topic.by_offset.range(..=end) {
            if received
                .next_if(|(received_offset, _)| received_offset == offset)
                .is_some()
            {
                continue;
            }
            // The server decided not to send this message before the subscriber read the next one.
            let (step, second) = match received.peek() {
                Some((_, next)) => (next.step, next.second),
                None => (truth.step, truth.now_s),
            };
            let is_excused = truth.may_have_expired(*number, second)
                || truth.may_be_superseded(*number, step)
                || self.by_filter && truth.may_be_deleted(*number, step);
            if must_be_received(*offset, *number) && !is_excused {
                return Err(format!(
                    "message {number} at {offset} never came (from {:?}, {} messages, to the head: {})",
                    stretch.start,
                    stretch.received.len(),
                    stretch.must_reach_newest
                ));
            }
        }
        let snapshot = stretch.must_reach_newest && stretch.from_oldest;
        let snapshot = snapshot.then(|| truth.newest_of_each_key(self.topic));
        let mut newest = snapshot.into_iter().flatten();
        if let Some(number) = newest.find(|number| !stretch.has(*number)) {
            return Err(format!(
                "message {number}, the newest of its key, never came to who asked for all"
            ));
        }
        self.check_unplaced(stretch, end, truth, unplaced)
    }

    /// Checks the acknowledged messages that nobody received and whose offset is not known exactly. If such a message certainly lies in
    /// this stretch, it is missing.
    fn check_unplaced(
        &self,
        stretch: &Stretch,
        end: u64,
        truth: &Truth,
        unplaced: &[UnplacedMessage],
    ) -> Result<(), Violation> {
        let Start::After(start) = stretch.start else {
            return Ok(());
        };
        let lost = unplaced.iter().find(|message| {
            message.topic == self.topic
                && message.low >= start.max(1)
                && message.high <= end
                && !stretch.has(message.number)
                && !truth.may_have_expired(message.number, truth.now_s)
                && !truth.may_be_superseded(message.number, truth.step)
                && !(self.by_filter && truth.may_be_deleted(message.number, truth.step))
        });
        match lost {
            Some(lost) => Err(format!("{lost:?} never came (from {start} to {end})")),
            None => Ok(()),
        }
    }
}
