//! A response to a request by filter that has not begun, because it waits for the homes (the parts of shards that keep topics). It collects their
//! answer for each partition, and the live messages that arrive in the meantime.
//!
//! Invariants: an answer to a long-poll has one message, the oldest one found. Messages of other partitions stay unseen for the
//! next poll. The position in each partition is that of its last held message, or of the page (bounded run of past messages) that
//! its home sent.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::client::outbox::Bounds;
use crate::filters::matching::GroupPosition;
use crate::mail::{FilterPage, Frames, Record};

/// A response that waits for the homes.
#[derive(Default)]
pub struct PendingFilterResponse {
    /// The homes' answers so far, by partition.
    partitions: Vec<PartitionAnswer>,
    /// The held messages, in order of arrival.
    held: Vec<HeldMessage>,
    frames: Frames,
    /// Messages before the held ones are lost.
    gap: bool,
}

/// The state of the answer for one partition.
#[derive(Clone, Copy, Default)]
struct PartitionAnswer {
    /// The home has answered, with a message or with the end of its log.
    is_answered: bool,
    /// `start`: where the first page begins. `end`: the offset up to which the subscriber has all messages.
    start: u64,
    end: u64,
    is_live: bool,
    snapshot_end: u64,
    losses_before: u64,
}

/// A message that waits until the response begins.
pub(crate) struct HeldMessage {
    /// The partition that it came from.
    pub partition: PartitionId,
    /// The place of the topic's name in the response's frames.
    pub name: u32,
    /// The message.
    pub record: Record,
}

/// The maximum number of messages that a response collects before it begins.
#[derive(Clone, Copy)]
pub(crate) enum CollectLimit {
    /// A long-poll: one message.
    OneMessage,
    /// A stream: messages of about this many bytes.
    Bytes(usize),
}

/// The result of taking a page.
pub(crate) struct TakenPage {
    /// The offset up to which the subscriber has seen the partition.
    pub end: u64,
    /// Whether the subscriber is live in the partition.
    pub is_live: bool,
    /// The home has found no message yet, and has more log to examine, so it must be asked again.
    pub is_searching: bool,
}

impl PendingFilterResponse {
    /// A pending response for this many partitions.
    pub fn new(partitions: usize) -> PendingFilterResponse {
        PendingFilterResponse {
            partitions: alloc::vec![PartitionAnswer::default(); partitions],
            ..PendingFilterResponse::default()
        }
    }

    /// This response's share of the bytes of large messages.
    pub fn large_weight(&self) -> usize {
        self.frames.large_weight()
    }

    /// The bytes that the response holds, without large messages.
    pub fn own_bytes(&self) -> usize {
        size_of::<PendingFilterResponse>()
            + self.partitions.capacity() * size_of::<PartitionAnswer>()
            + self.held.capacity() * size_of::<HeldMessage>()
            + self.frames.own_bytes()
    }

    /// Whether the homes have answered for all partitions.
    pub(crate) fn is_complete(&self) -> bool {
        self.partitions.iter().all(|answered| answered.is_answered)
    }

    /// Whether the home of this partition has answered for it.
    pub(crate) fn has_answered(&self, partition: PartitionId) -> bool {
        let answered = self.partitions.get(usize::from(partition));
        answered.is_some_and(|answered| answered.is_answered)
    }

    /// Whether messages before the held ones are lost.
    pub(crate) fn has_gap(&self) -> bool {
        self.gap
    }

    /// The held messages in order of arrival, and the frames that they refer to.
    pub(crate) fn held(&self) -> (&[HeldMessage], &Frames) {
        (&self.held, &self.frames)
    }

    /// Takes the page of a partition. A long-poll takes the oldest message of all pages. A stream takes the whole page, unless too
    /// many bytes are held already. `None` if no such partition was requested.
    pub(crate) fn take_page<'a>(
        &mut self,
        page: &FilterPage,
        records: impl Iterator<Item = (u32, &'a Record)> + Clone,
        frames: &Frames,
        limit: CollectLimit,
    ) -> Option<TakenPage> {
        let partition = page.partition;
        if usize::from(partition) >= self.partitions.len() {
            return None;
        }
        self.gap |= page.gap;
        let oldest = records.clone().next();
        let start = oldest.map_or(page.head, |(_, oldest)| oldest.offset - 1);
        let (mut end, mut is_live, mut is_searching) = (page.head, page.at_head, false);
        match (limit, oldest) {
            (CollectLimit::OneMessage, Some((name, record))) => {
                // The answer takes one message. The others count as unseen.
                (end, is_live) = (start, false);
                if self.make_way_for(record) {
                    self.hold(partition, frames.name(name), record, frames);
                }
            }
            (CollectLimit::OneMessage, None) => {
                is_searching = !page.at_head && self.held.is_empty()
            }
            (CollectLimit::Bytes(limit), _) => {
                let bytes: usize = records.clone().map(|(_, it)| it.frame_bytes()).sum();
                if !self.held.is_empty() && self.frames.len() + bytes > limit {
                    // The page is read again after the response has begun.
                    (end, is_live) = (start, false);
                } else {
                    for (name, record) in records {
                        self.hold(partition, frames.name(name), record, frames);
                    }
                }
            }
        }
        self.partitions[usize::from(partition)] = PartitionAnswer {
            is_answered: !is_searching,
            start,
            end,
            is_live,
            snapshot_end: page.snapshot_end,
            losses_before: page.losses_before,
        };
        Some(TakenPage {
            end,
            is_live,
            is_searching,
        })
    }

    /// For a long-poll: releases the held message if this one is older, so that no partition keeps messages of other partitions from the client. Returns whether
    /// there is room for this message.
    fn make_way_for(&mut self, record: &Record) -> bool {
        let Some(held) = self.held.first() else {
            return true;
        };
        let is_older = record.time_s < held.record.time_s;
        if is_older && let Some(held) = self.held.pop() {
            self.leave_unread(held.partition, held.record.offset);
        }
        is_older
    }

    /// Records that a message is not taken: the partition will be read from its log, from this message on.
    fn leave_unread(&mut self, partition: PartitionId, offset: u64) {
        let Some(answered) = self.partitions.get_mut(usize::from(partition)) else {
            return;
        };
        let offset_before = answered.start.max(offset - 1);
        if !answered.is_live {
            // If a later message was not taken either, `end` is already lower than the page's end. The lowest offset counts.
            answered.end = answered.end.min(offset_before);
            return;
        }
        (answered.end, answered.is_live) = (offset_before, false);
        // The group was live here. From now on a loss must be reported, as for any subscriber that falls behind.
        (answered.snapshot_end, answered.losses_before) = (0, 0);
    }

    /// Holds a live message of a partition whose log was read to the end. A poll holds one message. A stream holds as many as these
    /// bounds of an outbox allow, and none that a newer message may replace. If a message is not taken, the partition is read from
    /// its log later. `None` if no such partition was requested.
    pub(crate) fn hold_live(
        &mut self,
        partition: PartitionId,
        (name, record, frames): (&[u8], &Record, &Frames),
        bounds: Bounds,
        is_poll: bool,
    ) -> Option<()> {
        let answered = self.partitions.get(usize::from(partition))?;
        if !answered.is_live {
            return Some(());
        }
        let (held_count, bytes) = (self.held.len(), self.frames.len());
        let has_room = match is_poll {
            true => held_count == 0,
            false => {
                bounds.allow_held_message(held_count, bytes, record, frames.frame(record).len())
            }
        };
        if !has_room {
            self.leave_unread(partition, record.offset);
            return Some(());
        }
        self.hold(partition, name, record, frames);
        Some(())
    }

    /// Records that the held messages were sent: the position in each partition is at least that of its last held message.
    pub(crate) fn mark_held_sent(&mut self) {
        for held in &self.held {
            let end = &mut self.partitions[usize::from(held.partition)].end;
            *end = held.record.offset.max(*end);
        }
    }

    /// The positions by partition: where the first pages begin, or (`at_end`) up to where the subscriber has all messages.
    pub(crate) fn positions(&self, epoch: u32, at_end: bool) -> Vec<GroupPosition> {
        let position_of = |answered: &PartitionAnswer| GroupPosition {
            offset: if at_end { answered.end } else { answered.start },
            snapshot_end: answered.snapshot_end,
            losses_before: answered.losses_before,
            epoch,
            is_live: at_end && answered.is_live,
            ..GroupPosition::default()
        };
        self.partitions.iter().map(position_of).collect()
    }

    /// Whether a client that gave no position may be told this one. Not while a log is still being read: a position promises a
    /// report of all later losses, which is more than the client has asked for.
    pub(crate) fn may_tell_position(&self) -> bool {
        let is_past_begin = self
            .partitions
            .iter()
            .all(|answer| answer.is_live || answer.losses_before == 0);
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
