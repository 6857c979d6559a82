//! How subscribers are told that messages are lost: in band where their transport can say so, or by the end of the stream.

use alloc::vec::Vec;

use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::{json, sse};

use crate::base::reason::Reason;
use crate::base::settings::Slow;
use crate::conn::io::Io;
use crate::conn::{ENVELOPE, EVENTS, FILTERS, HTTP10, META, MULTI};
use crate::protocol::encode::{chunk, meta_line};
use crate::protocol::front::Front;

/// The text of a gap, in frames.
const LOST: &[u8] = b"messages before this position are lost";

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

/// Appends a gap as an envelope: the fields of `ws+meta.nchan`.
fn gap_object(out: &mut Vec<u8>, name: &[u8], id: &[u8]) {
    for (label, value) in [
        (&b"{\"gap\":"[..], LOST),
        (b",\"topic\":", name),
        (b",\"id\":", id),
    ] {
        out.extend_from_slice(label);
        json::write_string(out, value);
    }
    out.push(b'}');
}

/// The reason of a close for a gap, before the position; the first one with which it fits.
const GAP_REASONS: [&str; 2] = ["messages are lost; resume from ", "resume from "];
/// The same where a position of very many topics or partitions fits with neither.
const NO_POSITION: &str =
    "messages are lost, and the position is too long for this frame; ?envelope=json tells it";

impl Front {
    /// Reports a gap in band; false when the transport or the rule does not allow it.
    pub(super) fn tell_gap(
        &mut self,
        slot: u32,
        topic: u32,
        from: u64,
        again: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let slow = self.poll_rule(topic).slow;
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

    pub(in crate::protocol) fn tell_gap_at(
        &self,
        slot: u32,
        gap: Gap<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let row = self.conns.get(slot);
        let Gap { name, id, .. } = gap;
        if gap.again && gap.slow == Slow::Disconnect {
            return false;
        }
        if row.wants(EVENTS) {
            let mut text = Vec::with_capacity(64);
            sse::write_event(&mut text, Some(id), Some(b"crore.gap"), name);
            if row.wants(HTTP10) {
                out.extend_from_slice(&text)
            } else {
                chunk(out, &text)
            }
            return true;
        }
        let mut text = Vec::with_capacity(96);
        if row.wants(META) {
            meta_line(&mut text, b"gap", LOST);
            meta_line(&mut text, b"id", id);
            if row.options & (MULTI | FILTERS) != 0 {
                meta_line(&mut text, b"topic", name);
            }
            text.push(b'\n');
        } else if row.wants(ENVELOPE) {
            gap_object(&mut text, name, id);
        } else {
            // Plain frames have no place for it: the client learns it from the close.
            return false;
        }
        frame::write_frame(out, Opcode::Text, &text);
        true
    }

    pub(super) fn end_for_gap<I: Io>(&mut self, slot: u32, from: u64, io: &mut I) {
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
