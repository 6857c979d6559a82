//! The trait [`Protocols`]: the functions by which the clients' side of a shard calls the protocols. The clients' side names no
//! protocol. It is generic over this trait, and writes `P::...`. Each function is called for one connection, by its number.

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
    /// A part of an input.
    Input,
    /// Pipelined requests behind a poll that waits for a message.
    Pipelined,
    /// Bytes that must not be dropped to make room.
    Other,
}

/// The protocols of a server, as the clients' side calls them.
pub(crate) trait Protocols: ProtocolTypes {
    /// Continues what the connection has begun: held bytes, a batch, pages (bounded runs of past messages).
    fn resume<I: Io>(front: &mut Front<Self>, conn: ConnId, home: &mut Option<Home>, io: &mut I);
    /// Called when the socket has accepted all waiting bytes.
    fn outbox_drained(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
    );
    /// The second up to which the client may be silent from now on, or 0 without a limit.
    fn silent_until_s(clients: &Clients<Self>, slot: u32) -> u32;
    /// Handles a passed deadline of a connection whose outbox is empty.
    fn deadline_passed<I: Io>(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        deliveries: &Deliveries,
        queues: &mut Queues,
        slot: u32,
        io: &mut I,
    );

    /// Whether received bytes of this connection may still have to be processed.
    fn is_held(conns: &Connections<Self>, slot: u32) -> bool;
    /// The kind of received bytes that the connection holds.
    fn holds(conns: &Connections<Self>, slot: u32) -> Holds;
    /// The partly received input that the protocol itself holds: its bytes, and how many bytes it is behind (see `progress.rs`).
    fn partial_of(conns: &Connections<Self>, slot: u32) -> (usize, u64);
    /// Counts a second of a partly received input. Returns whether the input is too slow. False while the server does not read the
    /// connection.
    fn input_lags(clients: &mut Clients<Self>, slot: u32, allowance: Allowance) -> bool;
    /// Drops the bytes behind a waiting request to make room. The client sends them again.
    fn drop_pipelined<I: Io>(clients: &mut Clients<Self>, queues: &Queues, slot: u32, io: &mut I);

    /// Handles the verdict (accepted with an identity, or refused) on the client's credential.
    fn handle_verdict(
        clients: &mut Clients<Self>,
        queues: &mut Queues,
        conn: ConnId,
        who: Identity,
    );
    /// Applies new settings: ends the connection if it would now be refused what it has. False if the connection stays.
    fn settings_changed<I: Io>(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
        io: &mut I,
    ) -> bool;

    /// See [`end_connection`](crate::client::close::end_connection).
    fn end_connection<I: Io>(clients: &mut Clients<Self>, slot: u32, reason: Reason, io: &mut I);
    /// Ends what a connection subscribes to or waits for, and tells the client the reason as its protocol does. The connection ends
    /// too, unless another request may follow. False if nothing ends.
    fn try_end<I: Io>(
        clients: &mut Clients<Self>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        slot: u32,
        reason: Reason,
        io: &mut I,
    ) -> bool;
    /// Ends the connection, or its pipelined requests, because its client holds most of the memory.
    fn relieve<I: Io>(clients: &mut Clients<Self>, queues: &Queues, slot: u32, io: &mut I);
    /// Called when a connection ends, before its subscriptions end. Ends what only its protocol knows about them.
    fn connection_ends(front: &mut Front<Self>, slot: u32);
    /// Called before the connection's row is freed. Releases bytes that are counted elsewhere.
    fn row_is_freed(clients: &mut Clients<Self>, slot: u32);
}
