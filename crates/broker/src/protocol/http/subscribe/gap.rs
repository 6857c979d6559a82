//! How subscribers are told that messages are lost: in band where their transport can say so, or by the end of the stream.

use alloc::vec::Vec;

use crore_wire::websocket::frame;

use crate::base::reason::Reason;
use crate::base::settings::Slow;
use crate::io::Io;
use crate::protocol::front::Front;

/// A gap to report to one subscriber.
pub(in crate::protocol) struct Gap<'a> {
    /// The topic.
    pub name: &'a [u8],
    /// The position behind them.
    pub id: &'a [u8],
    /// The rule's setting for slow subscribers.
    pub slow: Slow,
    /// The stream had begun.
    pub again: bool,
}

/// The reason of a close for a gap, before the position; the first one with which it fits.
const GAP_REASONS: [&str; 2] = ["messages are lost; resume from ", "resume from "];
/// The same where a position of very many topics or partitions fits with neither.
const NO_POSITION: &str =
    "messages are lost, and the position is too long for this frame; ?envelope=json tells it";

impl Front {
    /// Reports a gap in band; false when the transport or the rule does not allow it.
    pub(in crate::protocol) fn tell_gap(
        &mut self,
        slot: u32,
        topic: u32,
        from: u64,
        again: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let slow = self.rule_of(topic).slow;
        let mut id = Vec::with_capacity(32);
        self.write_id(slot, from, &mut id);
        let name = self.topics.name(topic);
        let gap = Gap {
            name,
            id: &id,
            slow,
            again,
        };
        self.tell_gap_at(slot, gap, out)
    }

    /// The same of a topic or filter by name.
    pub(in crate::protocol) fn tell_gap_at(
        &self,
        slot: u32,
        gap: Gap<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let ends = gap.again && gap.slow == Slow::Disconnect;
        !ends && self.write_gap(slot, &gap, out)
    }

    pub(in crate::protocol) fn end_for_gap<I: Io>(&mut self, slot: u32, from: u64, io: &mut I) {
        let mut id = Vec::with_capacity(32);
        self.write_id(slot, from, &mut id);
        self.end_for_gap_at(slot, &id, io);
    }

    pub(in crate::protocol) fn end_for_gap_at<I: Io>(&mut self, slot: u32, id: &[u8], io: &mut I) {
        let fits = |reason: &&str| reason.len() + id.len() <= frame::REASON_MAX;
        let reason = GAP_REASONS.iter().copied().find(fits);
        let (reason, id) = reason.map_or((NO_POSITION, &[][..]), |reason| (reason, id));
        let mut reason = Vec::from(reason);
        reason.extend_from_slice(id);
        let reason = core::str::from_utf8(&reason).expect("positions are ASCII");
        self.end_stream_saying(slot, Reason::Gap, reason, io);
    }
}
