//! The part of the contract that concerns streams of messages: what differs between events and the frames of a WebSocket.

use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::websocket::frame;

use crate::base::reason::{Closed, Reason};
use crate::client::row::State;
use crate::client::words;
use crate::io::Io;
use crate::protocol::front::Front;
use crate::protocol::http::body::write_end;
use crate::protocol::http::options::EVENTS;
use crate::protocol::http::subscribe::Gap;
use crate::protocol::{sse, websocket};

/// The code of a reason that has none for streams: a fault of the server (RFC 6455 section 7.4.1).
const INTERNAL: u16 = 1011;

impl Front {
    /// Writes the head of the response that begins a stream into `reply`: the upgrade to WebSocket, or the head of an event stream for this topic.
    pub(in crate::protocol) fn stream_head(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        upgrade: bool,
        name: &[u8],
    ) -> Result<(), Reason> {
        if upgrade {
            return self.accept_upgrade(slot, head, None);
        }
        self.conns.get_mut(slot).options |= EVENTS;
        self.events_head(slot, name);
        Ok(())
    }

    /// Tells the client of a stream that has not begun the position before its first message, where there is a form for that.
    pub(in crate::protocol) fn tell_position(&mut self, slot: u32, offset: u64) {
        if self.conns.get(slot).wants(EVENTS) {
            self.event_of_position(slot, offset);
        }
    }

    /// Appends what tells of a gap; false where the stream has no form for it.
    pub(in crate::protocol) fn write_gap(
        &self,
        slot: u32,
        gap: &Gap<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let row = self.conns.get(slot);
        match row.wants(EVENTS) {
            true => sse::write_gap(row, gap.name, gap.id, out),
            false => return websocket::gap::write(row, gap.name, gap.id, out),
        }
        true
    }

    /// Ends a stream properly: with a close frame, or the last chunk.
    pub(in crate::protocol) fn end_stream<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) {
        let words = words::of_reason(reason, &self.world.settings);
        self.end_stream_saying(slot, reason, &words, io);
    }

    /// The same, in more exact words.
    pub(in crate::protocol) fn end_stream_saying<I: Io>(
        &mut self,
        slot: u32,
        reason: Reason,
        words: &str,
        io: &mut I,
    ) {
        let row = reason.row();
        self.end_stream_by(slot, row.closed, row.close.unwrap_or(INTERNAL), words, io);
    }

    /// The same with a code that a peer chose, or that stands beside the parser of frames.
    pub(in crate::protocol) fn end_stream_by<I: Io>(
        &mut self,
        slot: u32,
        closed: Closed,
        code: u16,
        words: &str,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        if row.state == State::Draining {
            self.not_ending();
            return;
        }
        self.because(closed);
        let mut bytes = Vec::new();
        match self.has_frames(slot) {
            true => frame::write_close(&mut bytes, code, words),
            false => write_end(self.conns.get(slot), &mut bytes),
        }
        self.put(slot, &bytes, io);
        self.shut(slot, io);
    }
}
