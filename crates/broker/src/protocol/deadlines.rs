//! Ends connections whose deadline has passed, answers polls that have waited long enough, and sends heartbeats to streams that were
//! sent nothing for long. The sweep that finds them is the shard's (`shard/tick.rs`): no timers, no links in the rows.

use crore_wire::websocket::frame::{self, Opcode};

use crate::base::reason::Closed;
use crate::conn::io::{Close, Io};
use crate::conn::{HTTP10, PING, PINGS, State};
use crate::protocol::encode::chunk;
use crate::protocol::front::Front;
use crate::store::slab::NONE;

/// A comment of an event stream. An empty line behind it would be an event to some readers.
const COMMENT: &[u8] = b":\n";

impl Front {
    /// The connection's deadline has passed.
    pub(crate) fn deadline<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get(slot);
        if row.outbox != NONE {
            // The client reads nothing: its outbox would only hold memory.
            self.because(Closed::Slow);
            self.reset(slot, io);
            return;
        }
        self.deadline_passed(slot, io);
    }

    /// Sends a heartbeat if nothing was sent for too long; a WebSocket that has left two unanswered ends.
    pub(crate) fn heartbeat<I: Io>(&mut self, slot: u32, io: &mut I) {
        let heartbeat = &self.world.settings.heartbeat;
        let row = self.conns.get_mut(slot);
        if heartbeat.interval_s == 0 {
            return;
        }
        // A multiplicative hash of the slot and the last second spreads connections that were opened together.
        let spread = (slot ^ row.sent_s.rotate_left(16)).wrapping_mul(0x9E37_79B9) >> 16;
        let jitter_s = heartbeat.interval_s * heartbeat.jitter_percent / 100;
        let early_s = if jitter_s == 0 {
            0
        } else {
            spread % (jitter_s + 1)
        };
        if self.now.s - row.sent_s < heartbeat.interval_s - early_s {
            return;
        }
        self.scratch.reply().clear();
        match row.state {
            State::WebSocket => {
                if row.options & PINGS == 2 * PING {
                    if self.is_held(slot) {
                        // The pong may be behind the held bytes.
                        return;
                    }
                    self.because(Closed::Timeout);
                    self.drop_conn(slot, Close::Reset, io);
                    return;
                }
                row.options += PING;
                frame::write_frame(self.scratch.reply(), Opcode::Ping, b"");
            }
            _ if row.wants(HTTP10) => self.scratch.reply().extend_from_slice(COMMENT),
            _ => chunk(self.scratch.reply(), COMMENT),
        }
        let bytes = self.scratch.take_reply();
        self.put(slot, &bytes, io);
        self.scratch.reply_sent(bytes);
    }
}
