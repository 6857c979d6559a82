//! The interface between a shard and its surroundings: the network, other shards, the log and the operator. Events come in as `Input`, and effects go out
//! through `Io`. The server implements `Io` over sockets, the simulator in memory. A socket is an opaque [`SocketId`].

use crate::budget::stats::SocketBytes;
use core::net::IpAddr;

use crate::base::access::Question;
use crate::base::ids::{ConnId, ShardId, SocketId};
use crate::base::journal::ClientEvent;
use crate::base::verdict::Verdict;
use crate::commit::{Batch, Committed};
use crate::mail::backend::{BackendAnswer, BackendCall, BackendRefusal};
use crate::mail::orders::{Control, Report, Ticket};
use crate::mail::{Mail, RemoteSubscribers, ReplyTo};
use crate::store::shared::OutputPart;

/// How to close a link (the connection behind a [`SocketId`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// Send nothing more. The peer may still send, until the shard closes the link with `Now` or `Reset`.
    Drain,
    /// Close both directions. Bytes that were sent still arrive.
    Now,
    /// Close at once and tell the peer that bytes are lost (TCP RST).
    Reset,
}

/// All effects of a shard: on links, on other shards, on the log, and reports for the operator. If an effect on a link fails, the shard learns it only
/// from [`Input::Failed`].
pub trait Io {
    /// Starts to read a link. The link's events then carry the id `conn`.
    fn start_reading(&mut self, socket: SocketId, conn: ConnId);
    /// Sends the parts in order. Returns the number of bytes that the socket accepted.
    fn send(&mut self, socket: SocketId, parts: &[OutputPart<'_>]) -> usize;
    /// Sets which readiness events of the link the shard wants.
    fn set_interest(&mut self, socket: SocketId, conn: ConnId, wants_read: bool, wants_write: bool);
    /// Closes the link. After `Now` or `Reset` the link no longer exists.
    fn close(&mut self, socket: SocketId, mode: CloseMode);
    /// Sends mail to another shard.
    fn post(&mut self, to: ShardId, mail: Mail);
    /// Appends a batch to the log of its partition, in the order of the calls. If the commit of a batch takes too long, the shard
    /// appends this batch and all later batches again. Called only if there is an engine
    /// ([`World::appends`](crate::World::appends)).
    fn append(&mut self, _batch: Batch) {}
    /// The peer's address, if it is known. Called only for the reports and the log that operators ask for.
    fn peer_address(&self, _socket: SocketId) -> Option<IpAddr> {
        None
    }
    /// Whether the link uses TLS.
    fn is_secure(&self, _socket: SocketId) -> bool {
        false
    }
    /// Reports a client event for the operator's log ([`Shard::report_client_events`](crate::Shard::report_client_events)).
    fn report_client_event(&mut self, _event: &ClientEvent) {}
    /// Reports the number of messages that were just written to the sockets of subscribers. All of them were read from their publishers at
    /// `earliest_read_ns` (a time of `Shard::set_turn_time`) or later. Does nothing where latency is not measured.
    fn report_deliveries(&mut self, _earliest_read_ns: u64, _deliveries: u64) {}
    /// The bytes that the sockets have received and sent; 0 where they are not counted.
    fn socket_bytes(&self) -> SocketBytes {
        SocketBytes::default()
    }
    /// The bytes that the transport holds in user space for its links, such as TLS records.
    fn transport_bytes(&self) -> usize {
        0
    }
    /// Answers an order of the operator.
    fn answer_order(&mut self, _ticket: Ticket, _report: Report) {}
    /// Asks the verifier to check a credential of a connection that waits. The answer is one [`Input::Verdict`]. False if too many questions wait or
    /// there is no verifier: then no answer comes, and the shard refuses the credential.
    fn ask_verifier(&mut self, _conn: ConnId, _question: Question) -> bool {
        false
    }
    /// Sends a call of a client to the operator's backend. The answer is one [`Input::BackendAnswer`]. If the call is not sent, no answer comes.
    ///
    /// # Errors
    /// Why the call is not sent.
    fn ask_backend(&mut self, _conn: ConnId, _call: BackendCall) -> Result<(), BackendRefusal> {
        Err(BackendRefusal::Absent)
    }
    /// Asks the other nodes of the cluster for their number of subscribers of a topic, for a request that waits. The answer is one [`Input::SubscriberCount`].
    /// False if there are no other nodes: then no answer comes.
    fn request_subscriber_count(&mut self, _to: ReplyTo, _topic: &[u8]) -> bool {
        false
    }
}

/// An event for a shard.
pub enum Input<'a> {
    /// A connection was accepted from this address.
    Accepted(SocketId, IpAddr),
    /// Bytes were received. The shard may change them in place.
    Received(ConnId, &'a mut [u8]),
    /// The socket is writable. The shard writes at most this many of the connection's waiting bytes. If some are left, report the event again.
    Writable(ConnId, usize),
    /// The peer has closed its sending side.
    HalfClosed(ConnId),
    /// The link has failed.
    Failed(ConnId),
    /// Mail from another shard.
    Mail(Mail),
    /// An order of the operator.
    Control(Ticket, Control),
    /// The answer to [`Io::ask_verifier`].
    Verdict(ConnId, Verdict),
    /// The answer to [`Io::ask_backend`].
    BackendAnswer(ConnId, BackendAnswer),
    /// The answer to [`Io::request_subscriber_count`].
    SubscriberCount(ReplyTo, RemoteSubscribers),
    /// A batch is committed to the log of its partition. The batches of a partition are reported in the order of the log.
    Committed(Committed),
    /// Time has passed. Due at the beginning of each second, or earlier if [`Shard::ms_until_tick`](crate::Shard::ms_until_tick) says so.
    Tick,
}

impl Input<'_> {
    /// The connection that the event concerns, if any.
    pub fn connection(&self) -> Option<ConnId> {
        match self {
            Input::Received(conn, _)
            | Input::Writable(conn, _)
            | Input::HalfClosed(conn)
            | Input::Failed(conn)
            | Input::Verdict(conn, ..)
            | Input::BackendAnswer(conn, ..) => Some(*conn),
            Input::SubscriberCount(to, _) => Some(ConnId {
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

/// An `Io` for tests, whose sockets accept all bytes. It records the bytes, how links were closed, and what the backend is asked.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct RecordingIo {
    pub sent: alloc::vec::Vec<u8>,
    pub closed: alloc::vec::Vec<(SocketId, CloseMode)>,
    pub calls: alloc::vec::Vec<BackendCall>,
    /// Calls of backends are refused.
    pub refuses_calls: bool,
}

#[cfg(test)]
impl Io for RecordingIo {
    fn start_reading(&mut self, _: SocketId, _: ConnId) {}
    fn send(&mut self, _: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let before = self.sent.len();
        self.sent.extend(parts.iter().flat_map(AsRef::as_ref));
        self.sent.len() - before
    }
    fn set_interest(&mut self, _: SocketId, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, socket: SocketId, how: CloseMode) {
        self.closed.push((socket, how));
    }
    fn post(&mut self, _: ShardId, _: Mail) {}
    fn ask_backend(&mut self, _: ConnId, call: BackendCall) -> Result<(), BackendRefusal> {
        if self.refuses_calls {
            return Err(BackendRefusal::Busy);
        }
        self.calls.push(call);
        Ok(())
    }
}
