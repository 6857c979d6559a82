//! The trait [`SubscriptionHandler`]: what a protocol writes to its clients, if they can subscribe and unsubscribe while the connection is open. The subscriptions
//! themselves, their positions, pages and fallbacks are in [`list`](crate::client::list), once for all such protocols.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::position::Position;
use crate::base::reason::Reason;
use crate::client::outbox::Packets;
use crate::client::parts::{Clients, Connections, Deliveries, Queues, Subscriptions, Topics};
use crate::client::row::Row;
use crate::client::types::{ProtocolTypes, SlotAndIndex};
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
pub(crate) enum OfferOutcome {
    /// It was written, or the client does not get it.
    Done,
    /// There is no room. The subscription reads it from the log later.
    Full,
}

/// For protocols whose clients subscribe once, with their request. No method of it that writes is ever called.
pub(crate) enum NoSubscriptionHandler {}

/// A protocol whose clients may have several subscriptions, and may add and remove them at any time. `sub_index` is the index of a subscription in the
/// connection's list.
pub(crate) trait SubscriptionHandler<P: ProtocolTypes> {
    /// For a connection with one subscription, whose state is in the connection's row: the encoding, if the bytes of a message are the same for all
    /// subscribers with this encoding. `None` if each of them needs bytes of its own.
    fn shared_encoding(row: &Row) -> Option<P::Encoding>;

    /// A home (the part of a shard that keeps a topic) has answered: the subscription is in force. Called for each page, so the implementation must
    /// tell the client only the first time.
    fn tell_granted<I: Io>(clients: &mut Clients<P>, slot: u32, sub_index: u32, io: &mut I);

    /// If the page answers a subscribe command, and the protocol puts the messages into its answer: sends them so, and returns true. If it returns
    /// false, they are sent one by one.
    fn send_first_page<I: Io>(
        _clients: &mut Clients<P>,
        _subscription: SlotAndIndex,
        _page: &Page,
        _messages: (&[Record], &Frames),
        _io: &mut I,
    ) -> bool {
        false
    }

    /// A home has no room for the subscription. Tells the client, and ends the subscription ([`remove_subscription`](crate::client::list::remove_subscription)) or the connection.
    fn refused<I: Io>(
        clients: &mut Clients<P>,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        subscription: SlotAndIndex,
        reason: Reason,
        io: &mut I,
    );

    /// Appends a message for this subscription to `out`, if there is room.
    fn message(
        clients: &mut Clients<P>,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        subscription: SlotAndIndex,
        message: &Message<'_>,
        out: &mut Packets,
    ) -> OfferOutcome;

    /// Appends a live message that matches several subscriptions of the client (`sub_indexes`), by their filters or because they name its topic. Leaves in
    /// `sub_indexes` those that must read it from the log later.
    fn append_message_to_several(
        clients: &mut Clients<P>,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        slot: u32,
        sub_indexes: &mut Vec<u32>,
        message: &Message<'_>,
        out: &mut Packets,
    ) {
        sub_indexes.retain(|sub_index| {
            let subscription = (slot, *sub_index);
            Self::message(clients, subs, deliveries, subscription, message, out)
                == OfferOutcome::Full
        });
    }

    /// Messages of the subscription are lost before this position, in this partition. After the call the subscription goes on at the position, unless
    /// the implementation has ended it.
    fn gap<I: Io>(
        clients: &mut Clients<P>,
        subs: &mut Subscriptions,
        subscription: SlotAndIndex,
        resumes_at: (PartitionId, Position),
        io: &mut I,
    );

    /// The topic of the subscription was deleted, with its messages up to this offset. After the call the subscription goes on after the offset,
    /// unless the implementation has ended it.
    fn ended<I: Io>(
        clients: &mut Clients<P>,
        subs: &mut Subscriptions,
        subscription: SlotAndIndex,
        deleted_until: (PartitionId, u64),
        io: &mut I,
    );

    /// The maximum number of messages that the subscription may be sent from a page now. The client's acknowledgements may bound it.
    fn page_messages_max(_conns: &Connections<P>, _slot: u32, _part: u32) -> u32 {
        u32::MAX
    }

    /// Whether the client has acknowledged enough that the subscriptions that [`SubscriptionHandler::page_messages_max`] bounds may get more messages.
    fn can_take_more(_conns: &Connections<P>, _slot: u32) -> bool {
        true
    }

    /// Takes what a page has besides messages of the log: retained messages, or latest values.
    fn take_retained<I: Io>(
        _clients: &mut Clients<P>,
        _subs: &Subscriptions,
        _queues: &mut Queues,
        _subscription: SlotAndIndex,
        _page: &Page,
        _messages: (&[Record], &Frames),
        _io: &mut I,
    ) {
    }

    /// A topic was deleted while its retained messages were being read (see [`SubscriptionHandler::take_retained`]). Returns whether the page belongs to that read, and
    /// not to the subscription.
    fn take_retained_deletion(
        _clients: &mut Clients<P>,
        _queues: &mut Queues,
        _subscription: SlotAndIndex,
        _page: &Page,
    ) -> bool {
        false
    }

    /// The first page of a new subscription to filters came, with messages after this offset.
    fn note_beginning_behind(
        _clients: &mut Clients<P>,
        _topics: &Topics,
        _of: (u32, u32),
        _begin: (PartitionId, u64),
    ) {
    }

    /// The subscription is live in this partition from this offset on.
    fn note_live(
        _clients: &mut Clients<P>,
        _subscription: SlotAndIndex,
        _partition: PartitionId,
        _offset: u64,
    ) {
    }

    /// Subscriptions of the client fall behind in this partition, before the message with this offset.
    fn note_falling_behind(
        _clients: &mut Clients<P>,
        _topics: &Topics,
        _slot: u32,
        _partition: PartitionId,
        _offset: u64,
    ) {
    }
}

impl<P: ProtocolTypes> SubscriptionHandler<P> for NoSubscriptionHandler {
    fn shared_encoding(_row: &Row) -> Option<P::Encoding> {
        None
    }

    fn tell_granted<I: Io>(clients: &mut Clients<P>, slot: u32, _part: u32, _io: &mut I) {
        clients.end_as_broken(slot);
    }

    fn refused<I: Io>(
        clients: &mut Clients<P>,
        _subs: &mut Subscriptions,
        _queues: &mut Queues,
        subscription: SlotAndIndex,
        _reason: Reason,
        _io: &mut I,
    ) {
        clients.end_as_broken(subscription.0);
    }

    fn message(
        clients: &mut Clients<P>,
        _subs: &Subscriptions,
        _deliveries: &Deliveries,
        subscription: SlotAndIndex,
        _message: &Message<'_>,
        _out: &mut Packets,
    ) -> OfferOutcome {
        clients.end_as_broken(subscription.0);
        OfferOutcome::Full
    }

    fn gap<I: Io>(
        clients: &mut Clients<P>,
        _subs: &mut Subscriptions,
        subscription: SlotAndIndex,
        _resumes_at: (PartitionId, Position),
        _io: &mut I,
    ) {
        clients.end_as_broken(subscription.0);
    }

    fn ended<I: Io>(
        clients: &mut Clients<P>,
        _subs: &mut Subscriptions,
        subscription: SlotAndIndex,
        _deleted_until: (PartitionId, u64),
        _io: &mut I,
    ) {
        clients.end_as_broken(subscription.0);
    }
}
