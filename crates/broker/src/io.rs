//! The seam between what is decided and what moves: the server implements it over sockets, the
//! simulator in memory. It says nothing of descriptors beyond an opaque [`Link`].

use core::net::IpAddr;

use crate::access::{Question, Verdict};
use crate::conn::{ConnId, Link};
use crate::control::{Control, Report, Ticket};
use crate::mail::{Mail, ShardId};

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// No more bytes from us; the peer's may still come, until `Now` or `Reset` follows.
    Drain,
    /// Both ways, in order.
    Now,
    /// At once, telling the peer that bytes are lost.
    Reset,
}

/// Bytes that a shard's sockets have moved since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// That came from them.
    pub received_bytes: u64,
    /// That they took.
    pub sent_bytes: u64,
}

/// What a shard does to the world. Failures come back as [`Input::Closed`] only.
pub trait Io {
    /// From now on, events of this link are this connection's; it is read.
    fn open(&mut self, link: Link, conn: ConnId);
    /// Sends the parts in order; returns how many bytes were taken.
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize;
    /// Which readiness is wanted.
    fn interest(&mut self, link: Link, conn: ConnId, read: bool, write: bool);
    /// Ends the link. After `Now` and `Reset` it does not exist.
    fn close(&mut self, link: Link, how: Close);
    /// Hands mail to another shard.
    fn post(&mut self, to: ShardId, mail: Mail);
    /// Where a link comes from, if that is known. Asked for the operator only.
    fn peer(&self, _link: Link) -> Option<IpAddr> {
        None
    }
    /// So many deliveries of messages that were read at this stamp or later are handed to their sockets. Where nobody
    /// measures there is nothing to do.
    fn written(&mut self, _stamp: u64, _deliveries: u64) {}
    /// What the sockets have moved. Where nobody counts that is nothing.
    fn moved(&self) -> Moved {
        Moved::default()
    }
    /// Bytes that the transport below holds for its links, beyond what the kernel does. Where there are none that is nothing.
    fn held_bytes(&self) -> usize {
        0
    }
    /// Answers an order. Where nobody gives any there is nothing to do.
    fn report(&mut self, _ticket: Ticket, _report: Report) {}
    /// Has a credential looked at, for a connection that waits. The answer comes as [`Input::Verdict`], once; it does not
    /// when this returns false, since too many questions wait or there is nobody to ask, and then the credential is refused.
    fn question(&mut self, _conn: ConnId, _question: Question) -> bool {
        false
    }
}

/// All that can happen to a shard.
pub enum Input<'a> {
    /// A link was made, by somebody at this address.
    Accepted(Link, IpAddr),
    /// Bytes came; they may be changed in place.
    Received(ConnId, &'a mut [u8]),
    /// The socket takes bytes again.
    Writable(ConnId),
    /// The peer sends no more.
    End(ConnId),
    /// The link failed.
    Closed(ConnId),
    /// Another shard says something.
    Mail(Mail),
    /// The operator wants something.
    Control(Ticket, Control),
    /// What was found about a credential that this connection came with.
    Verdict(ConnId, Verdict),
    /// Time has passed: to be said as each second begins, and before that whenever
    /// [`Shard::tick_in_ms`](crate::Shard::tick_in_ms) asks for it.
    Tick,
}

impl Input<'_> {
    /// The connection that it is about, if it is about one.
    pub fn about(&self) -> Option<ConnId> {
        match self {
            Input::Received(conn, _)
            | Input::Writable(conn)
            | Input::End(conn)
            | Input::Closed(conn)
            | Input::Verdict(conn, ..) => Some(*conn),
            Input::Accepted(..) | Input::Mail(_) | Input::Control(..) | Input::Tick => None,
        }
    }
}
