//! The seam between the shards' logic and the network: the server implements it over sockets, the simulator in memory.
//! A descriptor is only an opaque [`Link`] here.

use crate::budget::stats::Moved;
use core::net::IpAddr;

use crate::base::access::Question;
use crate::base::ids::{ConnId, Link, ShardId};
use crate::base::journal::ClientEvent;
use crate::base::verdict::Verdict;
use crate::commit::{Batch, Committed};
use crate::mail::orders::{Control, Report, Ticket};
use crate::mail::{Mail, RemoteSubscribers, ReplyTo};
use crate::store::shared::Part;

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

/// The effects of a shard on the world. Failures come back as [`Input::Closed`] only.
pub trait Io {
    /// From now on, events of this link belong to this connection, and the link is read.
    fn open(&mut self, link: Link, conn: ConnId);
    /// Sends the parts in order; returns how many bytes were taken.
    fn send(&mut self, link: Link, parts: &[Part<'_>]) -> usize;
    /// Which readiness is wanted.
    fn interest(&mut self, link: Link, conn: ConnId, read: bool, write: bool);
    /// Ends the link. After `Now` and `Reset` it does not exist.
    fn close(&mut self, link: Link, how: Close);
    /// Hands mail to another shard.
    fn post(&mut self, to: ShardId, mail: Mail);
    /// Hands a batch to the engine of its partition, behind those before it; again, with all behind it, when it is not committed for long.
    /// Only for shards of a world that [appends](crate::World::appends).
    fn append(&mut self, _batch: Batch) {}
    /// Where a link comes from, if that is known. Asked for the operator only.
    fn peer(&self, _link: Link) -> Option<IpAddr> {
        None
    }
    /// Whether a connection is encrypted by TLS.
    fn is_secure(&self, _link: Link) -> bool {
        false
    }
    /// Something happened to a client that the operator's log wants to know ([`Shard::log_clients`](crate::Shard::log_clients)).
    fn client_event(&mut self, _event: &ClientEvent) {}
    /// So many deliveries of messages that were read at this stamp or later are handed to their sockets. Does nothing
    /// where deliveries are not measured.
    fn written(&mut self, _stamp: u64, _deliveries: u64) {}
    /// Bytes that the sockets have moved; none where they are not counted.
    fn moved(&self) -> Moved {
        Moved::default()
    }
    /// Bytes that the transport below holds for its links, beyond what the kernel does; 0 where it holds none.
    fn held_bytes(&self) -> usize {
        0
    }
    /// Answers an order. Does nothing where orders are never given.
    fn report(&mut self, _ticket: Ticket, _report: Report) {}
    /// Has a credential checked, for a connection that waits. The answer comes as [`Input::Verdict`], once. When this
    /// returns false (too many questions wait, or there is nobody to ask) none comes, and the credential is refused.
    fn question(&mut self, _conn: ConnId, _question: Question) -> bool {
        false
    }
    /// Asks the other nodes of the cluster how many subscribers a topic has there, for a request that waits. The answer comes as
    /// [`Input::Counted`], once. When this returns false (there is nobody to ask) none comes.
    fn count(&mut self, _to: ReplyTo, _topic: &[u8]) -> bool {
        false
    }
}

/// All that can happen to a shard.
pub enum Input<'a> {
    /// A link was made from this address.
    Accepted(Link, IpAddr),
    /// Bytes came; they may be changed in place.
    Received(ConnId, &'a mut [u8]),
    /// The socket takes bytes again. It gets so many at most of those that wait for it; while some are left, it is to be reported again.
    Writable(ConnId, usize),
    /// The peer sends no more.
    End(ConnId),
    /// The link failed.
    Closed(ConnId),
    /// Mail of another shard came.
    Mail(Mail),
    /// The operator gives an order.
    Control(Ticket, Control),
    /// The answer about a credential that this connection came with.
    Verdict(ConnId, Verdict),
    /// Subscribers at the other nodes, for a request.
    Counted(ReplyTo, RemoteSubscribers),
    /// A batch stands in the log of its partition. The batches of a partition come in the order of its log.
    Committed(Committed),
    /// Time has passed: to be said as each second begins, and before that whenever
    /// [`Shard::tick_in_ms`](crate::Shard::tick_in_ms) asks for it.
    Tick,
}

impl Input<'_> {
    /// The connection that it is about, if it is about one.
    pub fn about(&self) -> Option<ConnId> {
        match self {
            Input::Received(conn, _)
            | Input::Writable(conn, _)
            | Input::End(conn)
            | Input::Closed(conn)
            | Input::Verdict(conn, ..) => Some(*conn),
            Input::Counted(to, _) => Some(ConnId {
                slot: to.slot,
                generation: to.generation,
            }),
            Input::Accepted(..)
            | Input::Mail(_)
            | Input::Control(..)
            | Input::Committed(..)
            | Input::Tick => None,
        }
    }
}

/// Sockets that take everything, for tests: what was sent, and how links were ended.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Recorded {
    pub sent: alloc::vec::Vec<u8>,
    pub closed: alloc::vec::Vec<(Link, Close)>,
}

#[cfg(test)]
impl Io for Recorded {
    fn open(&mut self, _: Link, _: ConnId) {}
    fn send(&mut self, _: Link, parts: &[Part<'_>]) -> usize {
        let before = self.sent.len();
        self.sent.extend(parts.iter().flat_map(AsRef::as_ref));
        self.sent.len() - before
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, link: Link, how: Close) {
        self.closed.push((link, how));
    }
    fn post(&mut self, _: ShardId, _: Mail) {}
}
