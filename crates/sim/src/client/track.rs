//! What one subscriber saw of one topic, in stretches within which nothing may be missing.

use crate::truth::{Seen, Truth, Unplaced, Wrong};

/// Where a stretch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Behind this offset.
    After(u64),
    /// With what was sent after this step.
    Sent(u32),
    /// With the first message that came.
    First,
}

/// A stretch: all messages between its start and its end, or as far as it came.
#[derive(Debug)]
struct Stretch {
    start: Start,
    got: Vec<u32>,
    to_head: bool,
}

/// What a subscriber saw of a topic.
#[derive(Debug, Default)]
pub struct Track {
    /// The topic.
    pub topic: usize,
    stretches: Vec<Stretch>,
    /// Where it stands, if that is known.
    pub seen: Option<Seen>,
    /// Gaps cannot be told to this subscriber, by its transport and the rule.
    pub deaf: bool,
}

impl Track {
    /// Nothing of this topic was seen.
    pub fn new(topic: usize, deaf: bool) -> Self {
        Track {
            topic,
            deaf,
            ..Track::default()
        }
    }

    /// Begins anew, with nothing seen.
    pub fn begin(&mut self, start: Start) {
        self.seen = None;
        self.stretches.push(Stretch {
            start,
            got: Vec::new(),
            to_head: false,
        });
    }

    /// The subscription was answered: from now on nothing may be missed.
    pub fn established(&mut self, step: u32) {
        if let Some(stretch) = self.stretches.last_mut()
            && stretch.start == Start::First
            && stretch.got.is_empty()
        {
            stretch.start = Start::Sent(step);
        }
    }

    /// A position came without a message.
    pub fn told(&mut self, seen: Seen) {
        let Some(stretch) = self.stretches.last_mut() else {
            return;
        };
        if stretch.got.is_empty() && self.seen.is_none() {
            stretch.start = Start::After(seen.offset);
            self.seen = Some(seen);
        }
    }

    /// A message came.
    pub fn got(&mut self, number: u32, truth: &Truth) -> Result<(), Wrong> {
        let message = &truth.messages[number as usize];
        let stretch = self.stretches.last_mut().expect("a subscriber has begun");
        if stretch.got.contains(&number) {
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
        stretch.got.push(number);
        self.seen = message.offset.map(|offset| Seen {
            offset,
            at: message.sent,
            at_s: message.sent_s,
        });
        Ok(())
    }

    /// A gap was told: what comes begins behind `to`.
    pub fn gap(&mut self, to: Option<Seen>, truth: &Truth) -> Result<(), Wrong> {
        if let Some(seen) = self.seen {
            if truth.must_reach_back(self.topic, seen) {
                return Err(format!(
                    "a gap after {} was told although the log reaches back (now {to:?})",
                    seen.offset
                ));
            }
            if let Some(to) = to
                && to.offset < seen.offset
            {
                return Err(format!("a gap from {} back to {}", seen.offset, to.offset));
            }
        }
        let seen = self.seen;
        self.begin(to.map_or(Start::First, |to| Start::After(to.offset)));
        self.seen = to.or(seen);
        Ok(())
    }

    /// Something was lost, perhaps here: order still holds, and nothing comes again.
    pub fn lost_count(&mut self) {
        let seen = self.seen;
        self.begin(Start::First);
        self.seen = seen;
    }

    /// Nothing is under way any more: the last stretch reaches to the newest message.
    pub fn at_head(&mut self) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.to_head = true;
        }
    }

    /// Compares everything with what was published.
    pub fn check(&self, truth: &Truth, unplaced: &[Unplaced]) -> Result<(), Wrong> {
        for stretch in &self.stretches {
            self.check_stretch(stretch, truth, unplaced)?;
        }
        Ok(())
    }

    fn check_stretch(
        &self,
        stretch: &Stretch,
        truth: &Truth,
        unplaced: &[Unplaced],
    ) -> Result<(), Wrong> {
        let offset_of = |number: &u32| truth.messages[*number as usize].offset;
        let offsets: Vec<u64> = stretch.got.iter().filter_map(offset_of).collect();
        if let Some(two) = offsets.windows(2).find(|two| two[0] >= two[1]) {
            return Err(format!("{} came before {}", two[0], two[1]));
        }
        if self.deaf {
            return Ok(());
        }
        let topic = &truth.topics[self.topic];
        let end = if stretch.to_head {
            u64::MAX
        } else {
            offsets.last().copied().unwrap_or(0)
        };
        let first = offsets.first().copied();
        let is_due = |offset: u64, number: u32| match stretch.start {
            Start::After(start) => offset > start,
            Start::Sent(step) => {
                first.is_some_and(|first| offset >= first)
                    || truth.messages[number as usize].sent > step
            }
            Start::First => first.is_some_and(|first| offset >= first),
        };
        let mut got = offsets.iter().copied().peekable();
        for (offset, number) in topic.by_offset.range(..=end) {
            let came = got.next_if_eq(offset).is_some();
            if !came && is_due(*offset, *number) {
                return Err(format!(
                    "message {number} at {offset} never came (from {:?}, {} messages, to the head: {})",
                    stretch.start,
                    stretch.got.len(),
                    stretch.to_head
                ));
            }
        }
        self.check_unplaced(stretch, end, unplaced)
    }

    /// Acknowledged messages that nobody saw: one of them within this stretch is lost.
    fn check_unplaced(
        &self,
        stretch: &Stretch,
        end: u64,
        unplaced: &[Unplaced],
    ) -> Result<(), Wrong> {
        let Start::After(start) = stretch.start else {
            return Ok(());
        };
        let lost = unplaced.iter().find(|message| {
            message.topic == self.topic
                && message.low >= start.max(1)
                && message.high <= end
                && !stretch.got.contains(&message.number)
        });
        match lost {
            Some(lost) => Err(format!("{lost:?} never came (from {start} to {end})")),
            None => Ok(()),
        }
    }
}
