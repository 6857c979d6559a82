//! The outbox of a connection: bytes that wait because the socket refused them, and the bounds of an outbox.
//!
//! A message may wait under two conditions. The waiting bytes and messages, with this message, are within the bounds of the rule for the
//! message's topic; and the memory of all clients is not near its limit. Messages of all topics count together, so a client that
//! subscribes to topics of several rules first falls behind in the topic with the smallest bounds. This holds for every protocol, and also
//! for subscriptions by filter.
//!
//! Invariants: the rule is looked up only if bytes or messages of the same write wait already, never for the first message to a free socket. The ends of
//! messages are known only if a rule bounds their number.
//!
//! The bounds do not apply to four kinds of bytes: a page (a bounded run of past messages) of a stream or of MQTT, which is requested only when nothing
//! waits; an answer, since a connection has one at a time; the rest of a partly sent message, which always waits; and the messages of one turn
//! to an MQTT client, which are one write. All four are charged to the memory account (`account.rs`), and large messages are shared, not
//! copied (`rope.rs`). Centrifugo's and Pusher's clients get pages and the messages of a turn in several writes if the bounds are smaller.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::base::settings::{Limits, Rule};
use crate::mail::Record;
use crate::store::rope::{Queue, Rope};
use crate::store::shared::OutputPart;

/// The maximum number of parts of one write.
pub(crate) const PARTS_MAX: usize = 16;

/// The bounds for waiting messages, checked when a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of bytes, including the new message.
    pub bytes: usize,
    /// The maximum number of messages, including the new one.
    pub messages: usize,
}

impl Bounds {
    /// Whether a stream that has not begun may hold this message besides `messages` others of `bytes` bytes. A message that a newer
    /// one may replace is never held.
    pub(crate) fn allow_held_message(
        self,
        messages: usize,
        bytes: usize,
        record: &Record,
        len: usize,
    ) -> bool {
        !record.latest && bytes + len <= self.bytes && messages < self.messages
    }

    /// The bounds without a rule.
    pub(crate) fn without_rule(limits: &Limits) -> Bounds {
        Bounds {
            bytes: limits.outbox_bytes,
            messages: usize::MAX,
        }
    }

    /// The bounds of messages under this rule.
    pub(crate) fn by_rule(rule: &Rule, limits: &Limits) -> Bounds {
        let default_bounds = Bounds::without_rule(limits);
        Bounds {
            bytes: match rule.outbox_bytes {
                0 => default_bounds.bytes,
                own => own,
            },
            messages: match rule.outbox_messages {
                0 => default_bounds.messages,
                own => own as usize,
            },
        }
    }

    /// These bounds, with room for `messages` fewer messages, since that many are about to be added. The bound of bytes does not change.
    pub fn reserving(self, messages: usize) -> Bounds {
        Bounds {
            messages: self.messages.saturating_sub(messages),
            ..self
        }
    }
}

/// Bytes of an outbox before and now.
pub(crate) struct OutboxCharges {
    /// The bytes that only this outbox holds.
    pub own: (usize, usize),
    /// The bytes that the kernel holds for the client.
    pub kernel: (usize, usize),
    /// The bytes that wait for the socket.
    pub waiting: (usize, usize),
}

/// Bytes that the socket refused.
#[derive(Default)]
pub struct Outbox {
    pub queue: Queue,
    /// Bytes assumed to be in the kernel's socket buffer: its size, once the client has read nothing for some time.
    kernel_bytes: u32,
    /// The charge for this outbox without `kernel_bytes`.
    charged_bytes: u32,
    /// The charge for `kernel_bytes`.
    charged_kernel_bytes: u32,
    /// The waiting bytes, as the shard's `outbox_bytes` counts them.
    counted_bytes: u32,
    /// Where the waiting messages end, if a rule bounds their number.
    message_ends: Option<Box<MessageEnds>>,
}

/// Ends of messages, counted in bytes since the first counted message was added.
#[derive(Default)]
struct MessageEnds {
    /// The bytes sent since then.
    sent_bytes: u64,
    ends: VecDeque<u64>,
}

impl Outbox {
    /// The number of waiting bytes.
    pub fn waiting_bytes(&self) -> usize {
        self.queue.waiting_bytes()
    }

    /// The number of waiting messages, with a partly sent one. Zero if no rule counts messages.
    pub fn waiting_messages(&self) -> usize {
        self.message_ends.as_ref().map_or(0, |it| it.ends.len())
    }

    /// Whether one more message of `bytes` bytes is within these bounds.
    pub fn has_room(&self, bytes: usize, bounds: Bounds) -> bool {
        self.waiting_bytes() + bytes <= bounds.bytes && self.waiting_messages() < bounds.messages
    }

    /// Sets the bytes that the kernel holds for a client that has read nothing for some time.
    pub(crate) fn set_kernel_bytes(&mut self, kernel_bytes: usize) {
        self.kernel_bytes = u32::try_from(kernel_bytes).unwrap_or(u32::MAX);
    }

    /// Bytes that the connection makes the server and the kernel hold, with its part of shared messages.
    pub(crate) fn weight(&self) -> usize {
        self.queue.weight() + self.kernel_bytes as usize
    }

    /// Updates the charges.
    pub(crate) fn weigh(&mut self) -> OutboxCharges {
        let replace = |charge: &mut u32, bytes: usize| {
            let now = u32::try_from(bytes).unwrap_or(u32::MAX);
            (core::mem::replace(charge, now) as usize, now as usize)
        };
        OutboxCharges {
            own: replace(&mut self.charged_bytes, self.queue.own_bytes()),
            kernel: replace(&mut self.charged_kernel_bytes, self.kernel_bytes as usize),
            waiting: replace(&mut self.counted_bytes, self.queue.waiting_bytes()),
        }
    }

    /// Sends at most `bytes_max` bytes, as many as `write` accepts. Returns their number.
    pub fn send(
        &mut self,
        bytes_max: usize,
        mut write: impl FnMut(&[OutputPart<'_>]) -> usize,
    ) -> usize {
        let mut total_sent = 0;
        loop {
            let mut parts = [OutputPart::Bytes(&[]); PARTS_MAX];
            let used = self.queue.fill_parts(bytes_max - total_sent, &mut parts);
            let len = parts_len(&parts[..used]);
            let sent = write(&parts[..used]);
            self.remove_sent(sent);
            total_sent += sent;
            if sent > 0 {
                self.kernel_bytes = 0;
            }
            if sent < len || total_sent == bytes_max || self.waiting_bytes() == 0 {
                return total_sent;
            }
        }
    }

    /// Removes `bytes` bytes that were sent.
    pub fn remove_sent(&mut self, bytes: usize) {
        self.queue.remove_sent(bytes);
        if let Some(counted) = &mut self.message_ends {
            counted.sent_bytes += bytes as u64;
            while counted
                .ends
                .front()
                .is_some_and(|end| *end <= counted.sent_bytes)
            {
                counted.ends.pop_front();
            }
        }
    }

    /// Counts the messages of a write of `len` bytes whose unsent rest was just added. `ends` are their ends in the write. Fully
    /// sent messages are not counted.
    pub fn count_messages(&mut self, len: usize, ends: &[usize]) {
        let waiting = self.waiting_bytes();
        let counted = self.message_ends.get_or_insert_default();
        let last = counted.sent_bytes + waiting as u64;
        let behind = ends.iter().map(|end| len - end);
        let wait = behind.filter(|behind| *behind < waiting);
        counted.ends.extend(wait.map(|behind| last - behind as u64));
    }
}

/// Messages that are sent in one write.
#[derive(Default)]
pub struct Packets {
    pub bytes: Rope,
    /// The ends of the messages, if they must be known.
    pub ends: Vec<usize>,
}

/// The bytes of these parts.
pub(crate) fn parts_len(parts: &[OutputPart<'_>]) -> usize {
    parts.iter().map(|part| part.as_ref().len()).sum()
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
        outbox.count_messages(4, &[4]);
        outbox.queue.push(b"firstsecond");
        outbox.count_messages(11, &[5, 11]);
        for (sent, waiting) in [(3, 3), (1, 2), (4, 2), (1, 1), (5, 1), (1, 0)] {
            outbox.remove_sent(sent);
            assert_eq!(outbox.waiting_messages(), waiting);
        }
        assert_eq!(outbox.waiting_bytes(), 0);
    }

    #[test]
    fn only_unsent_written_messages_count() {
        // The socket took seven of ten bytes.
        let mut outbox = outbox(b"xyz");
        outbox.count_messages(10, &[4, 7, 8, 10]);
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
        assert!(!outbox.has_room(1, bounds(10, 1).reserving(1)));
    }
}
