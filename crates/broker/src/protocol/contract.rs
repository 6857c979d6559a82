//! The contract of a connection's protocol: what a shard asks of it, in one place. Each method below is one question, with a
//! `match` over the connection's [`State`], whose arms call functions of the protocols. Outside of `mqtt` only this file and
//! `contract/homes.rs` name [`State::Mqtt`]. `contract/homes.rs` has the questions that follow from what homes tell; here are the
//! others.
//!
//! What sockets, the clock and the operator bring:
//!
//! * `received`, `bytes_came`: bytes came. `is_upgraded`: those behind the request belong to another protocol than HTTP.
//! * `resume`: the connection's turn has come to go on with what it began: held bytes, a batch, pages.
//! * `sent_all`: the socket has taken all that waited. `silent_until_s`: until when the client may be silent after that.
//! * `ended`: the peer has closed its side.
//! * `deadline_passed`, `second`: the deadline has passed; a second has passed.
//! * `has_begun_input`, `input_waits`, `partial_of`, `partial_is_slow`, `holds`, `is_held`: what has come in part, whether it lags, and
//!   whether received bytes are still to be carried out.
//! * `has_frames`, `frame_came`, `frame_beside_bytes`: what the frames of a WebSocket carry.
//! * `verdict_came`: who the client is. `settings_changed`: whether it may keep what it has.
//! * `session_of`: the session that the connection holds.
//! * `end_for`: the connection ends for a reason.
//!
//! What homes bring:
//!
//! * `page_came`, `match_page_came`: a page came, perhaps behind a gap. `page_refused`: there is none.
//! * `live`, `live_of_part`, `live_matched`: live messages came. `Encoding::of`: how the connection gets them.
//! * `publish_ended`: its message was appended, or refused. `fence_passed`: what it asked for before is done.

mod homes;

use crate::base::access::Who;
use crate::base::ids::{ConnId, ShardId};
use crate::base::reason::{Closed, Reason};
use crate::conn::io::{Close, Io};
use crate::conn::{EOF, FRAMED, PAUSED, PINGS, SERVED, State};
use crate::home::Home;
use crate::mail::session::SessionId;
use crate::protocol::front::Front;
use crate::protocol::hold::Holds;
use crate::protocol::mqtt::packets;
use crate::protocol::progress::Allowance;
use crate::store::slab::NONE;

impl Front {
    /// Bytes came from the peer, which is alive.
    pub(crate) fn received<I: Io>(
        &mut self,
        conn: ConnId,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        self.conns.get_mut(conn.slot).options &= !PINGS;
        self.bytes_came(conn.slot, bytes, home, io);
    }

    /// Bytes are to be read in the connection's protocol.
    #[inline]
    pub(super) fn bytes_came<I: Io>(
        &mut self,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let row = self.conns.get(slot);
        match row.state {
            State::Proxy | State::Http => self.http_received(slot, bytes, home, io),
            State::Waiting | State::Poll => self.hold(slot, bytes, io),
            State::WebSocket => self.frames_received(slot, bytes, home, io),
            State::Mqtt if row.wants(FRAMED) => self.frames_received(slot, bytes, home, io),
            State::Mqtt => self.mqtt_received(slot, bytes, home, io),
            State::Draining => self.throw_away(slot, bytes.len(), io),
            // A client has nothing to say behind its request.
            State::Sse => {}
        }
    }

    /// Whether the bytes behind the request are no requests: they belong to a protocol that the connection has changed to.
    pub(super) fn is_upgraded(&self, slot: u32) -> bool {
        match self.conns.get(slot).state {
            State::WebSocket | State::Mqtt => true,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::Draining => false,
        }
    }

    /// This node has no way to the log of its cluster: a connection ends whose client would do without answers. Says whether it did.
    pub(crate) fn cut_off<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        match self.conns.get(slot).state {
            State::Mqtt => self.mqtt_cut_off(slot, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => return false,
        }
        true
    }

    /// It is the connection's turn to go on with what it began.
    pub(crate) fn resume<I: Io>(&mut self, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        match self.conns.get(conn.slot).state {
            State::Http => self.http_resume(conn, home, io),
            State::Waiting => self.request_resume(conn.slot, home, io),
            State::Sse | State::WebSocket => self.stream_resume(conn, home, io),
            State::Mqtt => self.mqtt_resume(conn.slot, home, io),
            State::Proxy | State::Poll | State::Draining => {}
        }
    }

    /// The socket has taken all that waited for it.
    pub(super) fn sent_all(&mut self, slot: u32) {
        match self.conns.get(slot).state {
            State::Http | State::Mqtt => self.resume_later(self.conns.id_of(slot)),
            State::Sse | State::WebSocket => self.catch_up(slot),
            State::Proxy | State::Waiting | State::Poll | State::Draining => {}
        }
    }

    /// The second up to which the client may be silent from now on; 0 where it may always be.
    pub(super) fn silent_until_s(&self, slot: u32) -> u32 {
        match self.conns.get(slot).state {
            State::Http => self.now.s + self.world.settings.timeouts.keep_alive_s,
            State::Mqtt => self.keep_alive_end_s(slot),
            State::Proxy
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => 0,
        }
    }

    /// The peer has closed its side: the connection ends, unless an answer is due.
    pub(crate) fn ended<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        let answer_due = match row.state {
            State::Waiting => true,
            State::Http | State::Draining => row.outbox != NONE,
            State::Proxy | State::Poll | State::Sse | State::WebSocket | State::Mqtt => false,
        };
        if answer_due {
            row.flags |= EOF | PAUSED;
            return self.conns.update_interest(slot, io);
        }
        self.drop_conn(slot, Close::Now, io);
    }

    /// The connection's deadline has passed, and nothing waits for its socket.
    pub(super) fn deadline_passed<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        match row.state {
            State::Http if row.spill == NONE && row.is(SERVED) => self.shut(slot, io),
            State::Http | State::WebSocket => _ = self.end_for(slot, Reason::TooSlow, io),
            State::Poll => self.end_poll(slot, io),
            State::Waiting | State::Sse => row.deadline_s = 0,
            State::Mqtt => self.mqtt_deadline(slot, io),
            State::Proxy | State::Draining => {
                self.because(Closed::Timeout);
                self.drop_conn(slot, Close::Now, io);
            }
        }
    }

    /// A second has passed in which the connection neither lagged nor was late.
    #[inline]
    pub(crate) fn second<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get(slot);
        match row.state {
            State::Sse | State::WebSocket if row.outbox == NONE => self.heartbeat(slot, io),
            State::Mqtt if row.extra != NONE => self.mqtt_second(slot, io),
            State::Sse | State::WebSocket | State::Mqtt => {}
            State::Proxy | State::Http | State::Waiting | State::Poll | State::Draining => {}
        }
    }

    /// Whether an input may have come in part.
    #[inline]
    pub(crate) fn has_begun_input(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        match row.state {
            State::Mqtt => row.extra != NONE || row.spill != NONE,
            // What it has begun is thrown away.
            State::Draining => false,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket => row.spill != NONE,
        }
    }

    /// Whether the client's input waits for us (a home, the verdict on its credential), so that its seconds do not count.
    pub(super) fn input_waits(&self, slot: u32) -> bool {
        match self.conns.get(slot).state {
            State::Mqtt => self.mqtt_must_wait(slot),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => false,
        }
    }

    /// What the protocol itself holds of an input that came in part, such as an MQTT packet spread over frames: its bytes, and how
    /// many more should have come.
    pub(super) fn partial_of(&self, slot: u32) -> (usize, u64) {
        match self.conns.get(slot).state {
            State::Mqtt => self.mqtt_part(slot),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => (0, 0),
        }
    }

    /// Counts a second of an input that the protocol holds in part, of which `came` bytes stand in the spill. Whether it is too slow.
    pub(super) fn partial_is_slow(&mut self, slot: u32, came: usize, allowance: Allowance) -> bool {
        match self.conns.get(slot).state {
            State::Mqtt => self.mqtt_part_is_slow(slot, came, allowance),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => false,
        }
    }

    /// Which kind of received bytes the connection holds.
    pub(super) fn holds(&self, slot: u32) -> Holds {
        match self.conns.get(slot).state {
            State::Poll => Holds::Pipelined,
            State::Http | State::WebSocket | State::Mqtt => Holds::Input,
            State::Proxy | State::Waiting | State::Sse | State::Draining => Holds::Other,
        }
    }

    /// Whether bytes of this connection that were read may still have to be carried out.
    pub(super) fn is_held(&self, slot: u32) -> bool {
        match self.conns.get(slot).state {
            State::Mqtt => true,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => self.has_held(slot),
        }
    }

    /// Whether the connection's bytes are frames of a WebSocket.
    pub(super) fn has_frames(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        match row.state {
            State::WebSocket => true,
            State::Mqtt => row.wants(FRAMED),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::Draining => false,
        }
    }

    /// A frame came whose data belongs to the protocol. False when it was the last one.
    pub(super) fn frame_came<I: Io>(
        &mut self,
        slot: u32,
        data: &[u8],
        binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        match self.conns.get(slot).state {
            State::Mqtt => self.mqtt_frame(slot, data, binary, home, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => self.frame_published(slot, data, binary, home, io),
        }
    }

    /// Bytes that a frame may have besides the largest message.
    pub(super) fn frame_beside_bytes(&self, slot: u32) -> usize {
        match self.conns.get(slot).state {
            State::Mqtt => packets::PACKET_BESIDE_BYTES,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => 0,
        }
    }

    /// The verdict on the client's credential has come.
    pub(super) fn verdict_came(&mut self, conn: ConnId, who: Who) {
        match self.conns.get(conn.slot).state {
            State::Waiting => self.http_verdict(conn, who),
            State::Mqtt => self.mqtt_verdict(conn, who),
            State::Proxy
            | State::Http
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => {}
        }
    }

    /// New settings hold: ends the connection if it would not be granted now what it has; false when it stays.
    pub(super) fn settings_changed<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        match self.conns.get(slot).state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                let denied = self.may_keep(slot).err();
                denied.is_some_and(|denied| self.end_for(slot, denied, io))
            }
            State::Mqtt => self.mqtt_review(slot, io),
            State::Proxy | State::Http | State::Draining => false,
        }
    }

    /// The session that the connection holds, with its home.
    pub(crate) fn session_of(&self, slot: u32) -> Option<(ShardId, SessionId)> {
        match self.conns.get(slot).state {
            State::Mqtt => self.mqtt_session(slot),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => None,
        }
    }

    /// Ends a connection for this reason, in its protocol's words; false when this call did not end it.
    pub(crate) fn end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        let closed = reason.row().closed;
        match reason {
            Reason::TooSlow | Reason::Operator => self.because(closed),
            Reason::InputsFull | Reason::MemoryFull => {
                self.because(closed);
                if self.conns.get(slot).outbox != NONE {
                    // It does not read what it is sent.
                    self.reset(slot, io);
                    return true;
                }
            }
            _ => {}
        }
        match self.conns.get(slot).state {
            State::Proxy => self.proxy_end_for(slot, reason, io),
            State::Http => self.http_end_for(slot, reason, io),
            State::Waiting => self.waiting_end_for(slot, reason, io),
            State::Poll => self.poll_end_for(slot, reason, io),
            State::Sse | State::WebSocket => self.stream_end_for(slot, reason, io),
            State::Mqtt => self.mqtt_end_for(slot, reason, io),
            State::Draining => self.draining_end_for(slot, reason, io),
        }
    }
}
