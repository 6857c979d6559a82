//! The contract of a connection's protocol: what a shard asks of it, in one place. Each method below is one question and one
//! `match` over the connection's [`State`], whose arms call functions of the protocols. Other files call these methods and do not ask
//! which protocol a connection speaks.

use crate::budget::stats::Reason;
use crate::conn::State;
use crate::conn::io::Io;
use crate::protocol::front::Front;
use crate::protocol::why::Why;
use crate::store::slab::NONE;

impl Front {
    /// Ends a connection for this reason, in its protocol's words; false when it stays, or ends by itself.
    pub(crate) fn end_for<I: Io>(&mut self, slot: u32, why: Why, io: &mut I) -> bool {
        match why {
            Why::TooSlow => self.because(Reason::Timeout),
            Why::Operator => self.because(Reason::Operator),
            Why::NoRoom(_) => {
                self.because(Reason::Full);
                if self.conns.get(slot).outbox != NONE {
                    // It does not read what it is sent.
                    self.reset(slot, io);
                    return true;
                }
            }
            _ => {}
        }
        match self.conns.get(slot).state {
            State::Proxy => self.proxy_end_for(slot, why, io),
            State::Http => self.http_end_for(slot, why, io),
            State::Waiting => self.waiting_end_for(slot, why, io),
            State::Poll => self.poll_end_for(slot, why, io),
            State::Sse | State::WebSocket => self.stream_end_for(slot, why, io),
            State::Mqtt => self.mqtt_end_for(slot, why, io),
            State::Draining => self.draining_end_for(slot, why, io),
        }
    }
}
