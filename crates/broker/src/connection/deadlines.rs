//! The clock of connections: a sweep over the table once a second looks for deadlines that have
//! passed and connections that were silent for too long. No timers, no links in the rows.

use crore_wire::websocket::frame::{self, Opcode};

use super::close_code;
use crate::conn::{HTTP10, PING, PINGS, SERVED, State};
use crate::encode::chunk;
use crate::io::{Close, Io};
use crate::shard::Shard;
use crate::slab::NONE;

/// Rows visited by one tick: a table of millions is swept in several, each of a few milliseconds.
const ROWS_PER_TICK: u32 = 1 << 17;

impl Shard {
    /// Looks at the clock. Called at least once a second.
    pub(crate) fn tick<I: Io>(&mut self, io: &mut I) {
        if let Some(home) = &mut self.home {
            home.forget(&self.world.rules, self.now);
        }
        self.end_sessions();
        if self.swept == 0 && self.swept_s == self.now.s {
            return;
        }
        self.swept_s = self.now.s;
        let end = self.conns.end();
        let until = end.min(self.swept + ROWS_PER_TICK);
        for slot in self.swept..until {
            let row = self.conns.get(slot);
            if !row.is_open() {
                continue;
            }
            if row.deadline_s != 0 && row.deadline_s <= self.now.s {
                self.deadline(slot, io);
            } else if matches!(row.state, State::WebSocket | State::Sse) && row.outbox == NONE {
                self.heartbeat(slot, io);
            } else if row.state == State::Mqtt && row.extra != NONE {
                self.collapse(slot);
            }
        }
        self.swept = if until == end { 0 } else { until };
    }

    fn deadline<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get(slot);
        if row.outbox != NONE {
            // It takes nothing; what waits for it is only memory.
            self.reset(slot, io);
            return;
        }
        match row.state {
            State::Http if row.spill == NONE && row.is(SERVED) => self.shut(slot, io),
            State::Http => self.refuse(slot, 408, "the request took too long", io),
            State::Poll => self.answer_nothing(slot, io),
            State::WebSocket => {
                self.end_stream(slot, close_code::GOING_AWAY, "a frame took too long", io)
            }
            State::Mqtt => self.mqtt_deadline(slot, io),
            State::Proxy | State::Draining => self.drop_conn(slot, Close::Now, io),
            State::Waiting | State::Sse => self.conns.get_mut(slot).deadline_s = 0,
        }
    }

    fn heartbeat<I: Io>(&mut self, slot: u32, io: &mut I) {
        let heartbeat = &self.world.settings.heartbeat;
        let row = self.conns.get_mut(slot);
        if heartbeat.interval_s == 0 {
            return;
        }
        // A multiplicative hash of the slot and the last second spreads what was opened together.
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
        self.reply.clear();
        match row.state {
            State::WebSocket => {
                if row.options & PINGS == 2 * PING {
                    if self.is_held(slot) {
                        // Its answers may stand behind what is held.
                        return;
                    }
                    self.drop_conn(slot, Close::Reset, io);
                    return;
                }
                row.options += PING;
                frame::write_frame(&mut self.reply, Opcode::Ping, b"");
            }
            _ if row.wants(HTTP10) => self.reply.extend_from_slice(b":\n\n"),
            _ => chunk(&mut self.reply, b":\n\n"),
        }
        let bytes = core::mem::take(&mut self.reply);
        self.put(slot, &bytes, io);
        self.reply = bytes;
        self.reply.clear();
    }
}
