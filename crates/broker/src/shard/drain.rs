//! Moving clients off before a stop: so many in a second, each in its protocol's words for "come back", and all that
//! are left at the deadline at once.
//!
//! A cursor walks the table again and again until nobody is left. Connections in the middle of a request are passed
//! over: their answers say `Connection: close` from now on, and so end by themselves. Invariants: the work of one tick
//! is bounded; no acknowledged message is lost by it, since a client that is moved off has a position, a session, or an
//! answer.
//!
//! It does not stop new connections: that is up to the owner of the listeners.

use crate::mail::orders::Settled;

use crore_wire::mqtt::ReasonCode;

use crate::base::time::Now;
use crate::budget::stats::Reason;
use crate::conn::io::{Close, Io};
use crate::conn::{CLOSING, HTTP10, KEEP, SERVED, State};
use crate::protocol::close_code;
use crate::protocol::encode::chunk;
use crate::shard::Shard;
use crate::shard::draining::{Draining, TICKS_PER_S};
use crate::store::slab::NONE;

/// A kept-alive connection that was silent for so many seconds is not about to send a request.
const QUIET_S: u32 = 2;

const RESTART: &str = "the server restarts";

impl Shard {
    /// Begins to move clients off, as `settings.drain` says; its rate is that of all shards together. A second call
    /// changes nothing.
    pub fn drain(&mut self, now: Now) {
        self.front.drains = true;
        let drain = &self.front.world.settings.drain;
        let until_s = now.s.saturating_add(drain.deadline_s);
        let me = self.front.lanes.me;
        self.draining
            .get_or_insert(Draining::new(drain.rate_per_s, me, until_s));
    }

    /// Whether clients are moved off.
    pub fn drains(&self) -> bool {
        self.front.drains
    }

    /// Stops the clock, so that nothing begins any more by itself, and says what is under way.
    pub fn settle(&mut self) -> Settled {
        self.stopped = true;
        let says = self.front.lanes.to.iter();
        let mut says = says.map(|lane| lane.asks.len() + lane.tells.len());
        let waits = self.front.queues.len();
        Settled {
            connections: self.front.conns.len(),
            posted: self.posted,
            received: self.received,
            busy: says.any(|count| count > 0)
                || waits + self.front.errands.len() + self.front.deliveries.len() > 0
                || self.has_more(),
        }
    }

    /// Milliseconds to the next tick that moves clients off.
    pub(crate) fn drain_in_ms(&self) -> Option<u32> {
        let waits = self.draining.is_some() && self.front.conns.len() > 0;
        waits.then_some(1000 / TICKS_PER_S)
    }

    /// Moves off the clients that are due with this tick.
    pub(crate) fn move_off<I: Io>(&mut self, io: &mut I) {
        let Some(draining) = &mut self.draining else {
            return;
        };
        let end = self.front.conns.end();
        let over = draining.is_over(self.front.now.s);
        let mut due = draining.tick(self.front.world.shards);
        let rows = draining.rows(end);
        let mut slot = rows.start;
        while slot < rows.end && (over || due > 0) {
            if !self.front.conns.get(slot).is_open() {
                // A free row.
            } else if over {
                self.front.because(Reason::Operator);
                self.front.drop_conn(slot, Close::Now, io);
            } else if self.say_goodbye(slot, io) {
                due -= 1;
            }
            slot += 1;
        }
        self.front.work.steps.add((slot - rows.start) as usize);
        if let Some(draining) = &mut self.draining {
            draining.go_on(slot, end);
        }
    }

    /// Ends a connection in its protocol's words; false when it ends by itself, or soon.
    fn say_goodbye<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        let row = self.front.conns.get_mut(slot);
        if row.is(CLOSING) {
            return false;
        }
        match row.state {
            State::Draining => return false,
            State::Waiting => {
                row.options &= !KEEP;
                return false;
            }
            State::Http => {
                let idle = row.is(SERVED) && row.spill == NONE && row.outbox == NONE;
                if !idle || self.front.now.s.saturating_sub(row.sent_s) < QUIET_S {
                    return false;
                }
                self.front.because(Reason::Operator);
                self.front.shut(slot, io);
            }
            State::Proxy => self.front.drop_conn(slot, Close::Now, io),
            State::Poll => {
                row.options &= !KEEP;
                self.front.end_poll(slot, io);
            }
            State::Sse => {
                let http10 = row.wants(HTTP10);
                self.front.because(Reason::Operator);
                let text = self.front.come_back(slot);
                let mut bytes = self.front.scratch.take_reply();
                bytes.clear();
                match http10 {
                    true => bytes.extend_from_slice(&text),
                    false => chunk(&mut bytes, &text),
                }
                self.front.put(slot, &bytes, io);
                self.front.scratch.reply_sent(bytes);
                self.front
                    .end_stream(slot, close_code::RESTART, RESTART, io);
            }
            State::WebSocket => {
                self.front.because(Reason::Operator);
                self.front
                    .end_stream(slot, close_code::RESTART, RESTART, io);
            }
            State::Mqtt if row.mqtt == NONE => self.front.drop_conn(slot, Close::Now, io),
            State::Mqtt => {
                self.front.scratch.reply().clear();
                self.front.because(Reason::Operator);
                let reason = match self.front.world.settings.drain.server_reference.is_empty() {
                    true => ReasonCode::SERVER_SHUTTING_DOWN,
                    false => ReasonCode::USE_ANOTHER_SERVER,
                };
                self.front.mqtt_end(slot, reason, io);
            }
        }
        true
    }
}
