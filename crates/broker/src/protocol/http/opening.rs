//! A response to a request by filter that waits for the homes: what they have answered of each partition so far, and the messages that came meanwhile.
//!
//! Invariants: an answer to a long-poll has one message, the oldest one found, and the messages of other partitions stay unseen for the next poll; the
//! position in each partition is that of the last message held of it, or of the page that its home answered with.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::client::outbox::Bounds;
use crate::filters::matching::GroupPosition;
use crate::mail::{FilterPage, Frames, Record};

/// A response that waits for the homes.
#[derive(Default)]
pub struct Opening {
    /// The answers so far, by partition.
    partitions: Vec<Answered>,
    /// The messages received, in order.
    held: Vec<HeldMessage>,
    frames: Frames,
    /// Messages before those received are lost.
    gap: bool,
}

/// How far the answer for a partition is.
#[derive(Clone, Copy, Default)]
struct Answered {
    /// Its home has answered, with a message or with the end of its log.
    yes: bool,
    /// Where its first page begins, and up to where the subscriber has its messages.
    start: u64,
    end: u64,
    live: bool,
    snapshot_end: u64,
    losses_before: u64,
}

/// A message that waits for the response to begin.
pub(crate) struct HeldMessage {
    /// The partition that it came from.
    pub partition: PartitionId,
    /// Where the topic's name lies in the opening's frames.
    pub name: u32,
    /// The message.
    pub record: Record,
}

/// The messages and positions that a response collects before it begins.
#[derive(Clone, Copy)]
pub(crate) enum Most {
    /// A long-poll: one message.
    OneMessage,
    /// A stream: messages of about so many bytes.
    Bytes(usize),
}

/// The outcome of a page.
pub(crate) struct Taken {
    /// The subscriber has seen the partition up to here.
    pub end: u64,
    /// It is live there.
    pub live: bool,
    /// Its home has found nothing yet and has more to look at: it must be asked again.
    pub searching: bool,
}

impl Opening {
    /// A response that waits for so many partitions.
    pub fn of(partitions: usize) -> Opening {
        Opening {
            partitions: alloc::vec![Answered::default(); partitions],
            ..Opening::default()
        }
    }

    /// Its share of the large messages that it holds.
    pub fn large_weight(&self) -> usize {
        self.frames.large_weight()
    }

    /// Bytes that it holds, without large messages.
    pub fn own_bytes(&self) -> usize {
        size_of::<Opening>()
            + self.partitions.capacity() * size_of::<Answered>()
            + self.held.capacity() * size_of::<HeldMessage>()
            + self.frames.own_bytes()
    }

    /// Whether the homes have answered for all partitions.
    pub(crate) fn is_whole(&self) -> bool {
        self.partitions.iter().all(|answered| answered.yes)
    }

    /// Whether the home of this partition has answered for it.
    pub(crate) fn has_answered(&self, partition: PartitionId) -> bool {
        let answered = self.partitions.get(usize::from(partition));
        answered.is_some_and(|answered| answered.yes)
    }

    /// Whether messages before those received are lost.
    pub(crate) fn has_gap(&self) -> bool {
        self.gap
    }

    /// The messages received, in order, and the frames that they refer to.
    pub(crate) fn held(&self) -> (&[HeldMessage], &Frames) {
        (&self.held, &self.frames)
    }

    /// Takes the page of a partition: of a long-poll the oldest message of all pages, of a stream the whole page, unless too many
    /// bytes are held already. `None` where it was not asked for.
    pub(crate) fn take_page<'a>(
        &mut self,
        page: &FilterPage,
        records: impl Iterator<Item = (u32, &'a Record)> + Clone,
        frames: &Frames,
        most: Most,
    ) -> Option<Taken> {
        let partition = page.partition;
        if usize::from(partition) >= self.partitions.len() {
            return None;
        }
        self.gap |= page.gap;
        let first = records.clone().next();
        let start = first.map_or(page.head, |(_, first)| first.offset - 1);
        let (mut end, mut live, mut searching) = (page.head, page.at_head, false);
        match (most, first) {
            (Most::OneMessage, Some((name, record))) => {
                // The answer takes one message; the others count as unseen.
                (end, live) = (start, false);
                if self.gives_way_to(record) {
                    self.hold(partition, frames.name(name), record, frames);
                }
            }
            (Most::OneMessage, None) => searching = !page.at_head && self.held.is_empty(),
            (Most::Bytes(most), _) => {
                let bytes: usize = records.clone().map(|(_, it)| it.frame_bytes()).sum();
                if !self.held.is_empty() && self.frames.len() + bytes > most {
                    // It is read again when the response has begun.
                    (end, live) = (start, false);
                } else {
                    for (name, record) in records {
                        self.hold(partition, frames.name(name), record, frames);
                    }
                }
            }
        }
        self.partitions[usize::from(partition)] = Answered {
            yes: !searching,
            start,
            end,
            live,
            snapshot_end: page.snapshot_end,
            losses_before: page.losses_before,
        };
        Some(Taken {
            end,
            live,
            searching,
        })
    }

    /// Of a long-poll: whether this message is to be held, instead of one that came later. Thus no partition keeps a client from
    /// the messages of others.
    fn gives_way_to(&mut self, record: &Record) -> bool {
        let Some(held) = self.held.first() else {
            return true;
        };
        let older = record.time_s < held.record.time_s;
        if older && let Some(held) = self.held.pop() {
            self.is_left(held.partition, held.record.offset);
        }
        older
    }

    /// A message of this partition is not taken: the partition is read on from its log, from there.
    fn is_left(&mut self, partition: PartitionId, offset: u64) {
        let Some(answered) = self.partitions.get_mut(usize::from(partition)) else {
            return;
        };
        let before = answered.start.max(offset - 1);
        if !answered.live {
            // A later message of the partition may have been left already.
            answered.end = answered.end.min(before);
            return;
        }
        (answered.end, answered.live) = (before, false);
        // The group was live here: from now on a loss must be reported, as for any subscriber that falls behind.
        (answered.snapshot_end, answered.losses_before) = (0, 0);
    }

    /// Takes a live message of a partition whose log was read to the end: for a poll one; for a stream as many as these bounds of an
    /// outbox allow, and none that a newer one may supersede meanwhile. A partition of which a message is not taken is read on from its
    /// log later. `None` where the partition was not asked for.
    pub(crate) fn hold_live(
        &mut self,
        partition: PartitionId,
        (name, record, frames): (&[u8], &Record, &Frames),
        bounds: Bounds,
        poll: bool,
    ) -> Option<()> {
        let answered = self.partitions.get(usize::from(partition))?;
        if !answered.live {
            return Some(());
        }
        let (held, bytes) = (self.held.len(), self.frames.len());
        let takes = match poll {
            true => held == 0,
            false => bounds.may_hold(held, bytes, record, frames.frame(record).len()),
        };
        if !takes {
            self.is_left(partition, record.offset);
            return Some(());
        }
        self.hold(partition, name, record, frames);
        Some(())
    }

    /// The messages held were sent: the position in each partition is at least that of the last of them.
    pub(crate) fn sent_held(&mut self) {
        for held in &self.held {
            let end = &mut self.partitions[usize::from(held.partition)].end;
            *end = held.record.offset.max(*end);
        }
    }

    /// The positions by partition: where the first pages begin, or where the subscriber has them (`at_end`).
    pub(crate) fn positions(&self, epoch: u32, at_end: bool) -> Vec<GroupPosition> {
        let at = |answered: &Answered| GroupPosition {
            offset: if at_end { answered.end } else { answered.start },
            snapshot_end: answered.snapshot_end,
            losses_before: answered.losses_before,
            epoch,
            live: at_end && answered.live,
            ..GroupPosition::default()
        };
        self.partitions.iter().map(at).collect()
    }

    /// Whether the position is one that a client which came without one may be told: it promises more than was asked while a log
    /// is still read.
    pub(crate) fn may_tell_position(&self) -> bool {
        let is_past_begin = self
            .partitions
            .iter()
            .all(|at| at.live || at.losses_before == 0);
        is_past_begin && !self.gap && self.held.is_empty()
    }

    fn hold(&mut self, partition: PartitionId, name: &[u8], record: &Record, frames: &Frames) {
        let name = self.frames.push_name(name);
        let record = self.frames.copy(record, frames);
        self.held.push(HeldMessage {
            partition,
            name,
            record,
        });
    }
}

#[cfg(test)]
mod tests;
