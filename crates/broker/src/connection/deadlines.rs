//! The clock of connections: a sweep over the table once a second looks for deadlines that have
//! passed and connections that were silent for too long. No timers, no links in the rows.
//!
//! A sweep of a large table is many ticks, spread over the second, so that heartbeats leave in small
//! groups and hold up nobody's messages. Invariant: every row is visited once in a sweep, and no sweep
//! begins in the second in which the last one began. A deadline is never early, and late by two seconds at most: seconds
//! are counted from the one in which it was set.

use crore_wire::websocket::frame::{self, Opcode};

use crate::conn::{HTTP10, PING, PINGS, SERVED, State};
use crate::encode::chunk;
use crate::io::{Close, Io};
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

/// A second, which is what a sweep has.
const SWEEP_MS: u32 = 1000;
/// Ticks of a sweep at most: the poller's timeout is in whole milliseconds.
const TICKS_MAX: u32 = 500;

impl Shard {
    /// Milliseconds from one tick to the next while a sweep is under way; none when the next one is
    /// due with the next second.
    pub fn tick_in_ms(&self) -> Option<u32> {
        if self.stopped {
            return None;
        }
        let sweeps_ms = self.sweep_in_ms();
        match self.drain_in_ms() {
            Some(ms) => Some(sweeps_ms.map_or(ms, |sweeps_ms| ms.min(sweeps_ms))),
            None => sweeps_ms,
        }
    }

    fn sweep_in_ms(&self) -> Option<u32> {
        // One more than there are, so that the sweep is over before the next.
        let ticks = self.conns.end().div_ceil(self.rows_per_tick()) + 1;
        (self.swept > 0).then_some(SWEEP_MS / ticks)
    }

    fn rows_per_tick(&self) -> u32 {
        let least = self.pace.rows_per_tick;
        least.max(self.conns.end().div_ceil(TICKS_MAX))
    }

    /// Looks at the clock: begins a sweep when a second has begun, or goes on with the one under way.
    pub(crate) fn tick<I: Io>(&mut self, io: &mut I) {
        if let Some(home) = &mut self.home {
            home.tick(self.now);
        }
        self.end_sessions();
        self.move_off(io);
        if self.swept == 0 {
            if self.swept_s == self.now.s {
                return;
            }
            self.swept_s = self.now.s;
            self.review.begin();
            self.tell_sys(io.moved());
        }
        let end = self.conns.end();
        let until = end.min(self.swept + self.rows_per_tick());
        self.work.steps.add((until - self.swept) as usize);
        let watches_passes = !self.passes.is_empty();
        for slot in self.swept..until {
            let row = self.conns.get(slot);
            if !row.is_open() {
                continue;
            }
            self.tally[0][row.transport() as usize] += 1;
            let over = watches_passes && self.passes.is_over(slot, self.now.unix_s);
            if over && self.lapse(slot, io) {
                continue;
            }
            if self.review.runs() && self.review(slot, io) {
                continue;
            }
            let row = self.conns.get(slot);
            if row.deadline_s != 0 && row.deadline_s < self.now.s {
                self.deadline(slot, io);
                continue;
            }
            let begun = row.spill != NONE || row.state == State::Mqtt && row.extra != NONE;
            if begun && self.is_too_slow(slot) {
                self.end_slow(slot, io);
                continue;
            }
            let row = self.conns.get(slot);
            if matches!(row.state, State::WebSocket | State::Sse) && row.outbox == NONE {
                self.heartbeat(slot, io);
            } else if row.state == State::Mqtt && row.extra != NONE {
                self.collapse(slot);
            }
        }
        if until == end {
            self.tally = [Default::default(), self.tally[0]];
        }
        self.swept = if until == end { 0 } else { until };
    }

    fn deadline<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get(slot);
        if row.outbox != NONE {
            // It takes nothing; what waits for it is only memory.
            self.because(Reason::Slow);
            self.reset(slot, io);
            return;
        }
        match row.state {
            State::Http if row.spill == NONE && row.is(SERVED) => return self.shut(slot, io),
            State::Poll => return self.end_poll(slot, io),
            State::Waiting | State::Sse => return self.conns.get_mut(slot).deadline_s = 0,
            _ => self.because(Reason::Timeout),
        }
        match self.conns.get(slot).state {
            State::Http | State::WebSocket => self.end_slow(slot, io),
            State::Mqtt => self.mqtt_deadline(slot, io),
            State::Proxy | State::Draining => self.drop_conn(slot, Close::Now, io),
            State::Poll | State::Waiting | State::Sse => unreachable!("they do not end"),
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
                    self.because(Reason::Timeout);
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
