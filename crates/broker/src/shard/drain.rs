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
use core::mem;

use crore_wire::mqtt::ReasonCode;

use crate::base::time::Now;
use crate::budget::stats::Reason;
use crate::conn::io::{Close, Io};
use crate::conn::{CLOSING, HTTP10, KEEP, SERVED, State};
use crate::protocol::close_code;
use crate::protocol::encode::chunk;
use crate::shard::Shard;
use crate::store::slab::NONE;

/// Ticks of a second while clients are moved off, so that they leave, and come back, in small groups.
const TICKS_PER_S: u32 = 50;
/// Rows that one tick looks at: some hundred microseconds where few are left of a large table.
const ROWS_PER_TICK: u32 = 16_384;
/// A kept-alive connection that was silent for so many seconds is not about to send a request.
const QUIET_S: u32 = 2;

const RESTART: &str = "the server restarts";

/// The progress of moving clients off.
pub(crate) struct Draining {
    /// Connections of all shards in a second.
    rate_per_s: u64,
    /// The share that the last ticks have left over, counted so that a connection is [`TICKS_PER_S`] for each shard:
    /// shards that outnumber the rate take turns.
    owed: u64,
    /// The next row.
    cursor: u32,
    /// The second in which all that is left is closed.
    until_s: u32,
}

impl Shard {
    /// Begins to move clients off, as `settings.drain` says; its rate is that of all shards together. A second call
    /// changes nothing.
    pub fn drain(&mut self, now: Now) {
        self.front.drains = true;
        let drain = &self.front.world.settings.drain;
        self.draining.get_or_insert(Draining {
            rate_per_s: u64::from(drain.rate_per_s),
            // They begin apart, so that they do not all take the same turn.
            owed: u64::from(self.front.lanes.me) * u64::from(TICKS_PER_S),
            cursor: 0,
            until_s: now.s.saturating_add(drain.deadline_s),
        });
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
        let waits = self.front.resumed.len() + self.front.paging.len() + self.front.stalled.len();
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
        let Some(mut draining) = self.draining.take() else {
            return;
        };
        let over = self.front.now.s >= draining.until_s;
        draining.owed += draining.rate_per_s;
        let whole = u64::from(TICKS_PER_S) * u64::from(self.front.world.shards);
        let mut due = draining.owed / whole;
        draining.owed %= whole;
        // Put back first: the words for "come back" depend on it.
        let end = self.front.conns.end();
        let first = draining.cursor;
        self.draining = Some(draining);
        let mut slot = first;
        while slot < end.min(first.saturating_add(ROWS_PER_TICK)) && (over || due > 0) {
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
        self.front.work.steps.add((slot - first.min(slot)) as usize);
        if let Some(draining) = &mut self.draining {
            draining.cursor = if slot >= end { 0 } else { slot };
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
                let mut bytes = mem::take(&mut self.front.reply);
                bytes.clear();
                match http10 {
                    true => bytes.extend_from_slice(&text),
                    false => chunk(&mut bytes, &text),
                }
                self.front.put(slot, &bytes, io);
                bytes.clear();
                self.front.reply = bytes;
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
                self.front.reply.clear();
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
