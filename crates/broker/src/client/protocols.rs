//! The questions that the clients' side asks the protocols above it. It names none of them: it is generic over [`Protocols`], and so calls the
//! protocols only by the functions of this trait, written `P::...`. Each is called for one connection, by its number.

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::front::Front;
use crate::client::parts::{Clients, Connections, Deliveries, Queues, Subscriptions};
use crate::client::progress::Allowance;
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::io::Io;

/// The kind of received bytes that are held for a connection.
pub(crate) enum Holds {
    /// A part of its input.
    Input,
    /// Requests behind one that waits for a message.
    Pipelined,
    /// They are not dropped to make room.
    Other,
}

/// The protocols of a server, as the clients' side sees them.
pub(crate) trait Protocols: ProtocolTypes {
    /// It is the connection's turn to go on with what it began: held bytes, a batch, pages.
    fn resume<I: Io>(front: &mut Front<Self>, conn: ConnId, home: &mut Option<Home>, io: &mut I);
    /// The socket has taken all that waited for it.
    fn sent_all(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
    );
    /// The second up to which the client may be silent from now on; 0 where it may always be.
    fn silent_until_s(clients: &Clients<Self>, slot: u32) -> u32;
    /// The connection's deadline has passed, and nothing waits for its socket.
    fn deadline_passed<I: Io>(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        deliveries: &Deliveries,
        queues: &mut Queues,
        slot: u32,
        io: &mut I,
    );

    /// Whether bytes of this connection that were read may still have to be carried out.
    fn is_held(conns: &Connections<Self>, slot: u32) -> bool;
    /// Which kind of received bytes the connection holds.
    fn holds(conns: &Connections<Self>, slot: u32) -> Holds;
    /// The part of an input that the protocol itself holds: its bytes, and the bytes that are still to come.
    fn partial_of(conns: &Connections<Self>, slot: u32) -> (usize, u64);
    /// Counts a second of an input that came in part. Whether it is too slow; it is not where it waits for us.
    fn input_lags(clients: &mut Clients<Self>, slot: u32, allowance: Allowance) -> bool;
    /// Drops bytes that are held behind a waiting request, to make room: the client sends them again.
    fn drop_pipelined<I: Io>(clients: &mut Clients<Self>, queues: &Queues, slot: u32, io: &mut I);

    /// The verdict on the client's credential has come.
    fn verdict_came(clients: &mut Clients<Self>, queues: &mut Queues, conn: ConnId, who: Identity);
    /// New settings hold: ends the connection if it would not be granted now what it has; false when it stays.
    fn settings_changed<I: Io>(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
        io: &mut I,
    ) -> bool;

    /// See [`end_connection`](crate::client::close::end_connection).
    fn end_connection<I: Io>(clients: &mut Clients<Self>, slot: u32, reason: Reason, io: &mut I);
    /// Ends what a connection subscribes to or waits for, for this reason and in its protocol's words, and the connection with it unless another
    /// request may follow; false when nothing ends.
    fn try_end<I: Io>(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool;
    /// Ends the connection, or what it has pipelined, since its client holds most of the memory.
    fn relieve<I: Io>(clients: &mut Clients<Self>, queues: &Queues, slot: u32, io: &mut I);
    /// The connection subscribes to nothing any more: ends what only its protocol knows of its subscriptions.
    fn leaves(front: &mut Front<Self>, slot: u32);
    /// The connection is about to be forgotten: lets go of bytes that are counted elsewhere.
    fn dropped(clients: &mut Clients<Self>, slot: u32);
}
