//! What the harness knows: every message that was sent, what was answered, and which offsets they
//! turned out to have. The checkers compare what subscribers saw with it.
//!
//! Invariant: nothing here is read from the inside of a shard. Offsets come from answers to
//! publishers and from the positions that subscribers were given.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crore_broker::settings::Rule;

/// What went wrong, in a sentence.
pub type Wrong = String;

/// A message that was sent to the server.
pub struct Message {
    /// Its topic.
    pub topic: usize,
    /// Bytes of data.
    pub len: usize,
    /// When its bytes were sent, in steps.
    pub sent: u32,
    /// The same, in seconds.
    pub sent_s: u32,
    /// When it was acknowledged, in steps.
    pub acked: Option<u32>,
    /// Where it stands, once that is known.
    pub offset: Option<u64>,
    /// It was refused.
    pub refused: bool,
}

/// A topic.
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The rule that governs it.
    pub rule: Rule,
    /// Deletes: when each was sent and when it was answered, in steps.
    pub deletes: Vec<(u32, Option<u32>)>,
    /// Messages whose place is known.
    pub by_offset: BTreeMap<u64, u32>,
}

/// An acknowledged message of which only the bounds are known.
#[derive(Clone, Copy, Debug)]
pub struct Unplaced {
    /// The message.
    pub number: u32,
    /// Its topic.
    pub topic: usize,
    /// It stands behind this offset.
    pub low: u64,
    /// It stands before this offset.
    pub high: u64,
}

/// Where a subscriber stands in one topic, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The offset.
    pub offset: u64,
    /// A step in which the server knew that offset as the topic's own.
    pub at: u32,
    /// The same, in seconds.
    pub at_s: u32,
}

/// All of it.
pub struct Truth {
    /// By number.
    pub messages: Vec<Message>,
    /// By number.
    pub topics: Vec<Topic>,
    /// The step.
    pub step: u32,
    /// The second.
    pub now_s: u32,
    /// Logs are cut by their rules only, not by the budget of the process or the count of topics.
    pub budgets_are_wide: bool,
    /// What happened, if somebody wants to read it.
    pub trace: Option<Vec<String>>,
}

impl Truth {
    /// Notes what happened.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        let step = self.step;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{step:>6} {}", what()));
        }
    }

    /// A new message to a topic; returns its number and its data.
    pub fn write(&mut self, topic: usize, len: usize) -> (u32, Vec<u8>) {
        let number = self.messages.len() as u32;
        let data = data_of(number, len);
        self.messages.push(Message {
            topic,
            len: data.len(),
            sent: self.step,
            sent_s: self.now_s,
            acked: None,
            offset: None,
            refused: false,
        });
        (number, data)
    }

    /// Which message this is, whole and unharmed.
    pub fn read(&self, data: &[u8]) -> Result<u32, Wrong> {
        let digits = data.strip_prefix(b"m").unwrap_or_default();
        let end = digits.iter().position(|b| !b.is_ascii_digit());
        let digits = &digits[..end.unwrap_or(digits.len())];
        let number: u32 = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| format!("a message that nobody sent: {}", shown(data)))?;
        let message = self.messages.get(number as usize);
        let whole = message.is_some_and(|m| data_of(number, m.len) == data);
        if !whole {
            return Err(format!("a message that was harmed: {}", shown(data)));
        }
        Ok(number)
    }

    /// A message stands at this offset.
    pub fn learn(&mut self, number: u32, offset: u64) -> Result<(), Wrong> {
        let message = &mut self.messages[number as usize];
        match message.offset.replace(offset) {
            Some(known) if known != offset => {
                return Err(format!("message {number} at {offset} and at {known}"));
            }
            _ => {}
        }
        let topic = &mut self.topics[message.topic];
        match topic.by_offset.insert(offset, number) {
            Some(other) if other != number => {
                Err(format!("messages {number} and {other} both at {offset}"))
            }
            _ => Ok(()),
        }
    }

    /// A publisher was told that these stand in the log.
    pub fn acknowledge(&mut self, number: u32) {
        self.messages[number as usize].acked = Some(self.step);
    }

    /// Whether a gap after `seen` cannot be: all that came since must still be in the log.
    pub fn must_reach_back(&self, topic: usize, seen: Seen) -> bool {
        let of = &self.topics[topic];
        let age_s = of.rule.log_age_s.min(of.rule.position_age_s);
        let touched = |(_, done): &(u32, Option<u32>)| done.is_none_or(|done| done >= seen.at);
        if !self.budgets_are_wide
            || of.rule.log_messages == 0
            || self.now_s - seen.at_s >= age_s
            || of.deletes.iter().any(touched)
        {
            return false;
        }
        let since = self.messages.iter().filter(|m| {
            let later = match m.offset {
                Some(offset) => offset > seen.offset,
                None => m.acked.is_none_or(|acked| acked >= seen.at),
            };
            m.topic == topic && later
        });
        let (mut count, mut bytes) = (0, 0);
        for message in since {
            if self.now_s - message.sent_s >= of.rule.log_age_s {
                return false;
            }
            count += 1;
            // A frame's header, the content type and an eighth for the size class.
            bytes += (message.len + 80) * 9 / 8 + 8;
        }
        count <= of.rule.log_messages && bytes <= of.rule.log_bytes
    }

    /// Checks the order of what publishers did: who was acknowledged before another was sent stands
    /// before it.
    pub fn check_order(&self) -> Result<(), Wrong> {
        for topic in &self.topics {
            let mut latest: Option<(u32, u32)> = None;
            for number in topic.by_offset.values() {
                let message = &self.messages[*number as usize];
                if let (Some((sent, other)), Some(acked)) = (latest, message.acked)
                    && acked < sent
                {
                    return Err(format!(
                        "message {number} was acknowledged before {other} was sent and stands behind it"
                    ));
                }
                if latest.is_none_or(|(sent, _)| message.sent > sent) {
                    latest = Some((message.sent, *number));
                }
            }
        }
        Ok(())
    }

    /// Acknowledged messages whose place never became known.
    pub fn unplaced(&self) -> Vec<Unplaced> {
        let mut found = Vec::new();
        for (number, message) in self.messages.iter().enumerate() {
            let Some(acked) = message.acked else { continue };
            if message.offset.is_some() || message.refused {
                continue;
            }
            let (mut low, mut high) = (0, u64::MAX);
            for (offset, other) in &self.topics[message.topic].by_offset {
                let other = &self.messages[*other as usize];
                if other.acked.is_some_and(|acked| acked < message.sent) {
                    low = *offset;
                }
                if other.sent > acked {
                    high = high.min(*offset);
                }
            }
            found.push(Unplaced {
                number: number as u32,
                topic: message.topic,
                low,
                high,
            });
        }
        found
    }
}

/// The data of a message: its number, then a pattern that belongs to it.
fn data_of(number: u32, len: usize) -> Vec<u8> {
    let mut text = String::with_capacity(len + 12);
    let _ = write!(text, "m{number};");
    while text.len() < len {
        let at = text.len() as u32;
        text.push(char::from(
            b'a' + (number.wrapping_mul(7) + at * 11) as u8 % 26,
        ));
    }
    text.into_bytes()
}

/// Bytes for a message to people, shortened.
pub fn shown(bytes: &[u8]) -> String {
    let short = &bytes[..bytes.len().min(160)];
    String::from_utf8_lossy(short).escape_debug().to_string()
}
