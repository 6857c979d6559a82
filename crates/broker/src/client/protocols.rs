//! The trait [`Protocol`]: the functions that the rest of the shard calls on a connection's protocol. The default functions serve a protocol whose clients
//! subscribe and unsubscribe on an open connection, and encode through its [`SubscriptionHandler`].
//!
//! [`protocol_of`] is the only place that knows which protocol serves a connection: one `match` over the [state](crate::client::row::State).

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::budget::stats::Transport;
use crate::client::codec::SubscriptionHandler;
use crate::client::delivery::{Addressee, FilterMessage};
use crate::client::front::Front;
use crate::client::list::filters::handle_filter_page;
use crate::client::list::live::{deliver_live_matches, deliver_live_messages};
use crate::client::list::page::handle_topic_page;
use crate::client::parts::{Clients, Connections, Queues};
use crate::client::progress::Allowance;
use crate::client::row::{Row, SUBSCRIPTION_LIST};
use crate::client::types::{
    PartialInput, ProtocolTypes, SlotAndSerial, SubscriptionRef, UnprocessedInput,
};
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::mail::{FilterPage, Frames, Outcome, Page, ReplyTo};
use crate::store::slab::NONE;

/// The kind of received bytes that are held for a connection.
pub(crate) enum InputKind {
    /// A part of an input.
    Incomplete,
    /// Pipelined requests behind a poll that waits for a message.
    Pipelined,
    /// Bytes that must not be dropped to make room.
    MustStay,
}

/// A page of a topic, with the bytes of its messages.
pub(crate) type TopicPage<'a> = (&'a Page, &'a Frames);
/// A page for filters, with the bytes of its messages.
pub(crate) type MatchPage<'a> = (&'a FilterPage, &'a Frames);
/// A run (messages that are delivered together) that matches filters: the connections, the messages, and the messages' bytes.
pub(crate) type Matches<'a> = (&'a [Addressee], &'a [FilterMessage], &'a Frames);

/// Calls a function of the protocol that serves a connection in this state. For example, `protocol_of!(P, state, each_second(clients, slot, io))` calls
/// [`Protocol::each_second`].
macro_rules! protocol_of {
    ($P:ty, $state:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        use $crate::client::protocols::{Protocol, Protocols};
        use $crate::client::row::State;
        match $state {
            State::Proxy | State::Http | State::Waiting | State::Poll | State::Draining => {
                <<$P as Protocols>::Request as Protocol<$P>>::$function($($argument),*)
            }
            State::Sse | State::WebSocket => {
                <<$P as Protocols>::Stream as Protocol<$P>>::$function($($argument),*)
            }
            State::Mqtt => <<$P as Protocols>::Mqtt as Protocol<$P>>::$function($($argument),*),
            State::Centrifugo => {
                <<$P as Protocols>::Centrifugo as Protocol<$P>>::$function($($argument),*)
            }
            State::Pusher => <<$P as Protocols>::Pusher as Protocol<$P>>::$function($($argument),*),
            State::Http2 => <<$P as Protocols>::Http2 as Protocol<$P>>::$function($($argument),*),
        }
    }};
}
pub(crate) use protocol_of;

/// The protocols of a server.
pub(crate) trait Protocols: ProtocolTypes {
    /// HTTP requests, also those that wait for a message. It also gets the bytes before another protocol begins and after it ends.
    type Request: Protocol<Self>;
    /// Event streams, and WebSockets that began with a request.
    type Stream: Protocol<Self>;
    /// MQTT.
    type Mqtt: Protocol<Self>;
    /// Centrifugo's client protocol.
    type Centrifugo: Protocol<Self>;
    /// Pusher's protocol.
    type Pusher: Protocol<Self>;
    /// HTTP/2: links whose streams are connections of the other protocols.
    type Http2: Protocol<Self>;

    /// Encodes the current run in this encoding, unless it was encoded for another subscriber.
    fn encode_once(front: &mut Front<Self>, encoding: Self::Encoding, topic: u32, frames: &Frames);

    /// Called when a connection ends, while it still has its subscriptions: drops the protocols' state of them, and gives back what is counted elsewhere.
    /// The connection's state may already be `Draining`, which does not tell the protocol, so this is no function of [`Protocol`].
    fn connection_ends(front: &mut Front<Self>, slot: u32);
}

/// One protocol. `slot` is the connection's row.
pub(crate) trait Protocol<P: Protocols> {
    /// Encodes messages, and the notices that a subscription has begun or ended. [`NoSubscriptionHandler`](crate::client::codec::NoSubscriptionHandler) if the client gets none.
    type SubscriptionHandler: SubscriptionHandler<P>;

    /// The transport that the connection is counted for.
    fn transport(row: &Row) -> Transport;

    /// Whether the connection's bytes are WebSocket frames.
    fn has_frames(_row: &Row) -> bool {
        false
    }

    /// Processes received bytes. `bytes` is empty if only held bytes can be processed now.
    fn received<I: Io>(
        front: &mut Front<P>,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    );

    /// Processes the data of a WebSocket frame. False if the connection takes no more frames.
    fn handle_frame<I: Io>(
        _front: &mut Front<P>,
        _slot: u32,
        _data: &[u8],
        _is_binary: bool,
        _home: &mut Option<Home>,
        _io: &mut I,
    ) -> bool {
        false
    }

    /// Whether further frames must wait for answers that the connection has requested. An answer, or the empty outbox, resumes the connection.
    fn awaits_answers(_clients: &Clients<P>, _slot: u32) -> bool {
        false
    }

    /// The bytes of a frame that are not counted in the size limit of a message.
    fn frame_overhead_bytes(_clients: &Clients<P>) -> usize {
        0
    }

    /// Continues what the connection has begun: held bytes, a batch, pages (bounded runs of past messages).
    fn resume<I: Io>(_front: &mut Front<P>, _conn: ConnId, _home: &mut Option<Home>, _io: &mut I) {}

    /// Called when the socket has accepted all waiting bytes.
    fn outbox_drained(front: &mut Front<P>, slot: u32) {
        let conn = front.clients.conns.id_of(slot);
        front.queues.resume_later(&front.clients, conn);
    }

    /// The peer has closed its side.
    fn peer_ended<I: Io>(clients: &mut Clients<P>, slot: u32, _io: &mut I) {
        clients.drop_connection(slot, CloseMode::Now);
    }

    /// Called each second, unless the connection has just ended because of a slow input or a deadline.
    fn each_second<I: Io>(_front: &mut Front<P>, _slot: u32, _io: &mut I) {}

    /// The second up to which the client may be silent, or 0 without a limit.
    fn silent_until_s(_clients: &Clients<P>, _slot: u32) -> u32 {
        0
    }

    /// Handles a passed deadline of a connection whose outbox is empty.
    fn deadline_passed<I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) {
        front.clients.end_connection(slot, Reason::TooSlow, io);
    }

    /// Whether received bytes may still have to be processed.
    fn has_waiting_input(conns: &Connections<P>, slot: u32) -> bool {
        conns
            .unprocessed_input(slot)
            .is_some_and(UnprocessedInput::is_waiting)
    }

    /// The kind of received bytes that the connection holds.
    fn unprocessed_input_kind(_row: &Row) -> InputKind {
        InputKind::Incomplete
    }

    /// An incomplete input that the protocol stores itself: its length, and by how many bytes it is too slow (see `progress.rs`).
    fn partial_input(_conns: &Connections<P>, _slot: u32) -> PartialInput {
        PartialInput::default()
    }

    /// Whether there may be a partly received input.
    fn has_begun_input(conns: &Connections<P>, slot: u32) -> bool {
        conns.get(slot).link.unprocessed_input != NONE
    }

    /// Called each second while an input is incomplete. Returns whether the client sends it too slowly.
    fn count_input_second(clients: &mut Clients<P>, slot: u32, allowance: Allowance) -> bool {
        let input = clients.conns.unprocessed_input_mut(slot);
        input.is_some_and(|input| input.count_second(allowance))
    }

    /// Drops [pipelined requests](InputKind::Pipelined) to make room. The client sends them again.
    fn drop_pipelined<I: Io>(
        _conns: &mut Connections<P>,
        _queues: &Queues,
        _slot: u32,
        _io: &mut I,
    ) {
    }

    /// Handles the verdict (accepted with an identity, or refused) on the client's credential.
    fn handle_verdict(
        _clients: &mut Clients<P>,
        _queues: &mut Queues,
        _conn: ConnId,
        _who: Identity,
    ) {
    }

    /// Ends the connection if new settings no longer allow what it has. False if the connection stays.
    fn settings_changed<I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) -> bool {
        let denied = front.clients.check_subscriptions(&front.subs, slot);
        denied.is_err_and(|denied| Self::end_for_reason(front, slot, denied, io))
    }

    /// Ends the connection and tells the client the reason, as [`Clients::end_connection`] does.
    fn end<I: Io>(clients: &mut Clients<P>, slot: u32, reason: Reason, io: &mut I);

    /// Whether the connection stays when a topic of it or its credential ends for this reason.
    fn stays_after(_reason: Reason) -> bool {
        false
    }

    /// Ends the subscriptions and the waiting request of a connection, and tells the client the reason. The connection stays open only if another request may
    /// follow. False if nothing ends.
    fn end_for_reason<I: Io>(front: &mut Front<P>, slot: u32, reason: Reason, io: &mut I) -> bool {
        let ends = !Self::stays_after(reason);
        if ends {
            Self::end(&mut front.clients, slot, reason, io);
        }
        ends
    }

    /// Frees memory, because this client holds the most: drops its pipelined requests, or ends the connection.
    fn free_memory<I: Io>(clients: &mut Clients<P>, _queues: &Queues, slot: u32, io: &mut I) {
        clients.end_connection(slot, Reason::MemoryFull, io);
    }

    /// Called before the server stops: asks the client to reconnect, here or elsewhere, and ends the connection. False if the connection stays.
    fn move_off<I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) -> bool {
        Self::end(&mut front.clients, slot, Reason::Restart, io);
        true
    }

    /// Handles the outcome of a publish or a topic request.
    fn handle_outcome<I: Io>(_front: &mut Front<P>, _to: ReplyTo, _outcome: Outcome, _io: &mut I) {}

    /// Called when a home (a part of a shard that keeps topics) has handled all requests that the connection had sent it before an
    /// [`Ask::Fence`](crate::mail::Ask::Fence).
    fn fence_passed<I: Io>(_front: &mut Front<P>, _to: ReplyTo, _io: &mut I) {}

    /// Handles the home's answer to a subscribe: a page of messages, or a refusal. Tells the client if messages are lost.
    fn handle_page<I: Io>(
        front: &mut Front<P>,
        subscription: SubscriptionRef,
        page: TopicPage<'_>,
        io: &mut I,
    ) {
        handle_topic_page::<Self::SubscriptionHandler, P, I>(
            front,
            (subscription.slot, subscription.sub_index),
            page,
            io,
        );
    }

    /// Handles a page that the client has asked for (history). False if the page is for a subscription.
    fn handle_requested_page<I: Io>(
        _front: &mut Front<P>,
        _to: ReplyTo,
        _page: TopicPage<'_>,
        _io: &mut I,
    ) -> bool {
        false
    }

    /// Handles a page of one partition for a group of filters.
    fn handle_filter_page<I: Io>(
        front: &mut Front<P>,
        group: SlotAndSerial,
        page: MatchPage<'_>,
        io: &mut I,
    ) {
        handle_filter_page::<Self::SubscriptionHandler, P, I>(front, group, page, io);
    }

    /// The encoding in which the connection gets a whole run of live messages of a topic, as all others with this encoding do. `None` if its
    /// messages are encoded for it alone: then [`Protocol::deliver_live`] delivers them.
    #[inline]
    fn shared_encoding(row: &Row) -> Option<P::Encoding> {
        match row.has_option(SUBSCRIPTION_LIST) {
            true => None,
            false => Self::SubscriptionHandler::shared_encoding(row),
        }
    }

    /// Delivers the live messages of the current run to a subscription, if there is no encoding that it shares.
    fn deliver_live<I: Io>(
        front: &mut Front<P>,
        subscription: SubscriptionRef,
        frames: &Frames,
        io: &mut I,
    ) {
        let SubscriptionRef {
            slot, sub_index, ..
        } = subscription;
        if !front.clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
            front.clients.move_to_list(slot);
        }
        deliver_live_messages::<Self::SubscriptionHandler, P, I>(
            front,
            (slot, sub_index),
            frames,
            io,
        );
    }

    /// Delivers, in order, the messages of a run that match the connection's filters. Skips a message if the filters still catch up in its partition.
    fn deliver_matched<I: Io>(front: &mut Front<P>, slot: u32, matches: Matches<'_>, io: &mut I) {
        deliver_live_matches::<Self::SubscriptionHandler, P, I>(front, slot, matches, io);
    }
}
