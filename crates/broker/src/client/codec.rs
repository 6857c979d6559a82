//! The trait [`Codec`]: how a protocol encodes messages and notices for subscriptions that change while the connection is open. The subscriptions
//! themselves, their positions, pages and fallbacks are in [`list`](crate::client::list), once for all such protocols.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::position::Position;
use crate::base::reason::Reason;
use crate::client::outbox::Packets;
use crate::client::parts::{Clients, Connections, Deliveries, Queues, Subscriptions, Topics};
use crate::client::row::Row;
use crate::client::types::ProtocolTypes;
use crate::io::Io;
use crate::mail::{Frames, Page, Record};

/// A message on its way to one client.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    /// The name of its topic.
    pub name: &'a [u8],
    pub record: &'a Record,
    pub frames: &'a Frames,
    /// It was its topic's retained message, or a latest value, when the subscription began.
    pub retained: bool,
}

/// The outcome of offering a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It was written, or the client does not get it.
    Done,
    /// There is no room. The subscription reads it from the log later.
    Full,
}

/// The codec of protocols whose subscriptions do not change. It is never asked.
pub(crate) enum NoCodec {}

/// A protocol whose clients have several subscriptions that change. A subscription is named by its index in the list, its *part*.
pub(crate) trait Codec<P: ProtocolTypes> {
    /// The encoding in which the only subscription of a connection, which is in its row, gets the same bytes as many others. `None` if it does not.
    fn shared_encoding(row: &Row) -> Option<P::Encoding>;

    /// A home (the part of a shard that keeps a topic) has answered: the subscription is in force. Called for each page. Tells the client once.
    fn granted<I: Io>(clients: &mut Clients<P>, slot: u32, part: u32, io: &mut I);

    /// Takes the messages of a page in the protocol's own form, if the page is the answer to a subscribe command. False if they are sent one by one.
    fn first_page<I: Io>(
        _clients: &mut Clients<P>,
        _of: (u32, u32),
        _page: &Page,
        _messages: (&[Record], &Frames),
        _io: &mut I,
    ) -> bool {
        false
    }

    /// A home has no room for the subscription. Tells the client, and ends the subscription ([`leave`](crate::client::list::leave)) or the connection.
    fn refused<I: Io>(
        clients: &mut Clients<P>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        of: (u32, u32),
        reason: Reason,
        io: &mut I,
    );

    /// Appends a message that the subscription `of` has reached to `out`, if there is room for it.
    fn message(
        clients: &mut Clients<P>,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        of: (u32, u32),
        message: &Message<'_>,
        out: &mut Packets,
    ) -> Offered;

    /// Appends a live message that reaches the subscriptions `parts` at once, by filters and by its topic. Leaves in `parts` those that must read it
    /// from the log later.
    fn matched(
        clients: &mut Clients<P>,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        slot: u32,
        parts: &mut Vec<u32>,
        message: &Message<'_>,
        out: &mut Packets,
    ) {
        parts.retain(|part| {
            let of = (slot, *part);
            Self::message(clients, subs, deliveries, of, message, out) == Offered::Full
        });
    }

    /// Messages of the subscription are lost before this position, in this partition. The subscription goes on after it, unless this ends it.
    fn gap<I: Io>(
        clients: &mut Clients<P>,
        subs: &mut Subscriptions,
        of: (u32, u32),
        from: (PartitionId, Position),
        io: &mut I,
    );

    /// The topic of the subscription was deleted, with its messages up to this offset. The subscription goes on after it, unless this ends it.
    fn ended<I: Io>(
        clients: &mut Clients<P>,
        subs: &mut Subscriptions,
        of: (u32, u32),
        from: (PartitionId, u64),
        io: &mut I,
    );

    /// The maximum number of messages that the subscription may be sent from a page now. The client's acknowledgements may bound it.
    fn places(_conns: &Connections<P>, _slot: u32, _part: u32) -> u32 {
        u32::MAX
    }

    /// Whether subscriptions that [`Codec::places`] bounds may read on.
    fn has_place(_conns: &Connections<P>, _slot: u32) -> bool {
        true
    }

    /// Takes what a page has besides messages of the log: retained messages, or latest values.
    fn retained<I: Io>(
        _clients: &mut Clients<P>,
        _subs: &Subscriptions,
        _queues: &mut Queues,
        _of: (u32, u32),
        _page: &Page,
        _messages: (&[Record], &Frames),
        _io: &mut I,
    ) {
    }

    /// Handles the deletion of a topic for what [`Codec::retained`] has begun. Returns whether the page was for that, and not for the subscription.
    fn retained_ended(
        _clients: &mut Clients<P>,
        _queues: &mut Queues,
        _of: (u32, u32),
        _page: &Page,
    ) -> bool {
        false
    }

    /// The subscription is live in this partition from this offset on.
    fn is_live(
        _conns: &mut Connections<P>,
        _of: (u32, u32),
        _partition: PartitionId,
        _offset: u64,
    ) {
    }

    /// Subscriptions of the client fall behind in this partition, before the message with this offset.
    fn falls_behind(
        _clients: &mut Clients<P>,
        _topics: &Topics,
        _slot: u32,
        _partition: PartitionId,
        _offset: u64,
    ) {
    }
}

impl<P: ProtocolTypes> Codec<P> for NoCodec {
    fn shared_encoding(_row: &Row) -> Option<P::Encoding> {
        None
    }

    fn granted<I: Io>(clients: &mut Clients<P>, slot: u32, _part: u32, _io: &mut I) {
        clients.broken(slot);
    }

    fn refused<I: Io>(
        clients: &mut Clients<P>,
        _subs: &mut Subscriptions,
        _queues: &mut Queues,
        of: (u32, u32),
        _reason: Reason,
        _io: &mut I,
    ) {
        clients.broken(of.0);
    }

    fn message(
        clients: &mut Clients<P>,
        _subs: &Subscriptions,
        _deliveries: &Deliveries,
        of: (u32, u32),
        _message: &Message<'_>,
        _out: &mut Packets,
    ) -> Offered {
        clients.broken(of.0);
        Offered::Full
    }

    fn gap<I: Io>(
        clients: &mut Clients<P>,
        _subs: &mut Subscriptions,
        of: (u32, u32),
        _from: (PartitionId, Position),
        _io: &mut I,
    ) {
        clients.broken(of.0);
    }

    fn ended<I: Io>(
        clients: &mut Clients<P>,
        _subs: &mut Subscriptions,
        of: (u32, u32),
        _from: (PartitionId, u64),
        _io: &mut I,
    ) {
        clients.broken(of.0);
    }
}
