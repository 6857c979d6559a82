//! The outbox of a connection: bytes that wait for a socket that refuses them, and their bounds.
//!
//! A message may wait if the bytes and the messages that wait for its connection, itself included, are within the bounds of
//! the rule that governs *its* topic, and the account of all that clients hold is not near its limit. Messages of all topics
//! count together: a subscriber to topics of several rules falls back soonest in the topic with the smallest bounds. That
//! is so for every protocol, and for subscribers by filter too.
//!
//! Invariants: rules are looked up where bytes wait already, never on the way into a free socket; the ends of messages are
//! known only where some rule bounds their number.
//!
//! These bounds do not hold for pages of the log, which are asked for when nothing waits; for answers, of which one is due at a
//! time; for the rest of a message sent in part, and for the messages of one turn to an MQTT client, which go out with one write.
//! The account is charged for all of them (`account.rs`), and large messages among them are referred to, not copied (`rope.rs`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::base::ids::Link;
use crate::base::settings::{Limits, Rule};
use crate::io::Io;
use crate::mail::Record;
use crate::store::rope::{Queue, Rope};
use crate::store::shared::Part;

/// Parts of one write.
pub(crate) const PARTS_MAX: usize = 16;

/// How much may wait for a connection when a message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes, with the message.
    pub bytes: usize,
    /// Messages, with this one.
    pub messages: usize,
}

impl Bounds {
    /// Whether a stream that has not begun may hold this message besides so many others with these bytes: none that a newer one may supersede
    /// meanwhile.
    pub(crate) fn may_hold(
        self,
        messages: usize,
        bytes: usize,
        record: &Record,
        len: usize,
    ) -> bool {
        !record.latest && bytes + len <= self.bytes && messages < self.messages
    }

    /// The bounds where no rule governs.
    pub(crate) fn of_all(limits: &Limits) -> Bounds {
        Bounds {
            bytes: limits.outbox_bytes,
            messages: usize::MAX,
        }
    }

    /// The bounds of messages that this rule governs.
    pub(crate) fn by_rule(rule: &Rule, limits: &Limits) -> Bounds {
        let all = Bounds::of_all(limits);
        Bounds {
            bytes: match rule.outbox_bytes {
                0 => all.bytes,
                own => own,
            },
            messages: match rule.outbox_messages {
                0 => all.messages,
                own => own as usize,
            },
        }
    }

    /// The same bounds, less so many messages that are about to be added; the bound on bytes stays.
    pub fn after(self, messages: usize) -> Bounds {
        Bounds {
            messages: self.messages.saturating_sub(messages),
            ..self
        }
    }
}

/// Bytes that the socket refused.
#[derive(Default)]
pub struct Outbox {
    /// The bytes.
    pub queue: Queue,
    /// Bytes that the kernel is taken to hold before them: what its buffer has room for, once the client has taken nothing for some time.
    kernel_bytes: u32,
    /// Bytes charged to the account for all of them.
    charged_bytes: u32,
    /// Waiting bytes, as the shard's `outbox_bytes` counts them.
    counted_bytes: usize,
    /// Where the messages among them end, if a rule bounds their number.
    counted: Option<Box<Counted>>,
}

/// Ends of messages, counted in bytes since the first of them came.
#[derive(Default)]
struct Counted {
    /// Bytes that have been sent.
    gone: u64,
    ends: VecDeque<u64>,
}

impl Outbox {
    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.queue.waiting_bytes()
    }

    /// Messages that wait, a partly sent one included, as far as messages are counted.
    pub fn waiting_messages(&self) -> usize {
        self.counted.as_ref().map_or(0, |it| it.ends.len())
    }

    /// Whether one more message, of so many bytes, is within these bounds.
    pub fn has_room(&self, bytes: usize, bounds: Bounds) -> bool {
        self.waiting_bytes() + bytes <= bounds.bytes && self.waiting_messages() < bounds.messages
    }

    /// The client has taken nothing for some time: so the kernel holds so many bytes for it, which belong to no table of ours.
    pub(crate) fn is_deaf(&mut self, kernel_bytes: usize) {
        self.kernel_bytes = u32::try_from(kernel_bytes).unwrap_or(u32::MAX);
    }

    /// Bytes that the connection makes the server and the kernel hold; of shared messages its part.
    pub(crate) fn weight(&self) -> usize {
        self.queue.weight() + self.kernel_bytes as usize
    }

    /// The bytes charged for it before and from now on; then the bytes that wait, before and now.
    pub(crate) fn weigh(&mut self) -> ((usize, usize), (usize, usize)) {
        let charged = self.queue.own_bytes() + self.kernel_bytes as usize;
        let charged = u32::try_from(charged).unwrap_or(u32::MAX);
        let before = core::mem::replace(&mut self.charged_bytes, charged) as usize;
        let counted = self.waiting_bytes();
        let counted_before = core::mem::replace(&mut self.counted_bytes, counted);
        ((before, charged as usize), (counted_before, counted))
    }

    /// Sends so many bytes at most, as far as the socket takes them; returns how many.
    pub fn send<I: Io>(&mut self, link: Link, most: usize, io: &mut I) -> usize {
        let mut all = 0;
        loop {
            let mut parts = [Part::Bytes(&[]); PARTS_MAX];
            let used = self.queue.parts(most - all, &mut parts);
            let len = len_of(&parts[..used]);
            let sent = io.send(link, &parts[..used]);
            self.sent(sent);
            all += sent;
            if sent > 0 {
                self.kernel_bytes = 0;
            }
            if sent < len || all == most || self.waiting_bytes() == 0 {
                return all;
            }
        }
    }

    /// Notes that so many more are sent.
    pub fn sent(&mut self, bytes: usize) {
        self.queue.sent(bytes);
        if let Some(counted) = &mut self.counted {
            counted.gone += bytes as u64;
            while counted.ends.front().is_some_and(|end| *end <= counted.gone) {
                counted.ends.pop_front();
            }
        }
    }

    /// Counts the messages that the last `len` bytes belong to, with these ends among them; messages that are fully sent are not
    /// counted any more.
    pub fn count(&mut self, len: usize, ends: &[usize]) {
        let waiting = self.waiting_bytes();
        let counted = self.counted.get_or_insert_default();
        let last = counted.gone + waiting as u64;
        let behind = ends.iter().map(|end| len - end);
        let wait = behind.filter(|behind| *behind < waiting);
        counted.ends.extend(wait.map(|behind| last - behind as u64));
    }
}

/// Messages that go out with one write.
#[derive(Default)]
pub struct Packets {
    /// Their bytes.
    pub bytes: Rope,
    /// Where they end, if that is to be known.
    pub ends: Vec<usize>,
}

fn len_of(parts: &[Part<'_>]) -> usize {
    parts.iter().map(|part| part.as_ref().len()).sum()
}

/// Sends a rope; returns how many bytes were taken.
pub(crate) fn send_rope<I: Io>(link: Link, rope: &Rope, io: &mut I) -> usize {
    let mut sent = 0;
    for parts in rope.parts().chunks(PARTS_MAX) {
        let len = len_of(parts);
        let taken = io.send(link, parts);
        sent += taken;
        if taken < len {
            break;
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(bytes: &[u8]) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.queue.push(bytes);
        outbox
    }

    #[test]
    fn a_message_waits_until_its_last_byte_is_sent() {
        let mut outbox = outbox(b"rest");
        outbox.count(4, &[4]);
        outbox.queue.push(b"firstsecond");
        outbox.count(11, &[5, 11]);
        for (sent, waiting) in [(3, 3), (1, 2), (4, 2), (1, 1), (5, 1), (1, 0)] {
            outbox.sent(sent);
            assert_eq!(outbox.waiting_messages(), waiting);
        }
        assert_eq!(outbox.waiting_bytes(), 0);
    }

    #[test]
    fn of_messages_that_were_written_those_count_that_were_not_sent() {
        // The socket took seven of ten bytes.
        let mut outbox = outbox(b"xyz");
        outbox.count(10, &[4, 7, 8, 10]);
        assert_eq!(outbox.waiting_messages(), 2);
    }

    #[test]
    fn a_rule_has_its_own_bounds_or_those_of_all() {
        let limits = Limits {
            outbox_bytes: 100,
            ..crate::base::settings::Settings::default().limits
        };
        let by = |outbox_bytes, outbox_messages| {
            let rule = Rule {
                outbox_bytes,
                outbox_messages,
                ..Rule::default()
            };
            let bounds = Bounds::by_rule(&rule, &limits);
            (bounds.bytes, bounds.messages)
        };
        assert_eq!(by(0, 0), (100, usize::MAX));
        assert_eq!(by(7, 0), (7, usize::MAX));
        assert_eq!(by(500, 3), (500, 3));
        let outbox = outbox(b"ninebytes");
        let bounds = |bytes, messages| Bounds { bytes, messages };
        assert!(outbox.has_room(1, bounds(10, 1)) && !outbox.has_room(2, bounds(10, 1)));
        assert!(!outbox.has_room(1, bounds(10, 1).after(1)));
    }
}
